//! Rows of the table of traps about size. Figures are printed, and held against ceilings that only a subject has; with
//! `--long` the sizes are those of the table, else ones that a short run can play.

use super::Bench;
use crate::node::Broker;
use crate::raw::Raw;
use crate::reference::Wishes;
use crate::topics::create;
use crate::{Result, wait};
use perf::client::{Connection, api_versions_request};
use perf::load;
use perf::process::{Usage, usage};
use perf::schedule::Arrivals;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use wire::KafkaString;
use wire::messages::create_topics_request::CreatableTopic;
use wire::messages::fetch_request::{FetchPartition, FetchTopic};
use wire::messages::{CreateTopicsRequest, DeleteTopicsRequest, FetchRequest, MetadataRequest};

type Run = fn(&mut Bench<'_>) -> Result<Value>;

pub const CASES: &[(&str, Run)] = &[("trap/idle-consumers", idle_consumers), ("trap/large-topics", large_topics)];

const PATIENCE: Duration = Duration::from_secs(180);
/// CPU that a hundred idle consumers may cost the subject, of one core: each asks twice a second.
const IDLE_CORE_SHARE_MAX: f64 = 0.10;
/// What produce's median may become with consumers at the tip, beside what it was without: a busy machine's p99 says
/// nothing, so that is printed only.
const TIP_FACTOR_MAX: u64 = 10;
const TIP_FLOOR_US: u64 = 20_000;
/// What the processes of the subject may grow by from the third round of creating and deleting to the last.
const GROWTH_MAX: u64 = 96 << 20;
/// What produce's median may become while Metadata of every topic is asked for over and over.
const METADATA_FACTOR_MAX: u64 = 20;

fn text(text: &str) -> KafkaString {
    KafkaString::from(text)
}

/// A ceiling counts for the subject; of the reference it is only told what it does.
fn hold(bench: &Bench<'_>, what: &str, found: f64, most: f64) -> Result<()> {
    let name = bench.broker.name();
    println!("     {name}: {what}: {found:.3} (at most {most:.3} of a subject)");
    if name == "kafka" || found <= most { Ok(()) } else { Err(format!("{what} is {found:.3}, above {most:.3}").into()) }
}

fn spent(node: &dyn Broker) -> Result<Usage> {
    Ok(usage(&node.pids()?)?)
}

/// Creates topics until all of their partitions are there, in requests of a size that a controller takes.
fn create_many(raw: &mut Raw, names: &[String], partitions: i32) -> Result<()> {
    const TOPICS_A_REQUEST: usize = 500;
    for names in names.chunks(TOPICS_A_REQUEST) {
        let topic = |name: &String| CreatableTopic {
            name: text(name),
            num_partitions: partitions,
            replication_factor: 1,
            ..Default::default()
        };
        let topics = names.iter().map(topic).collect();
        let request = CreateTopicsRequest { topics, timeout_ms: 60_000, ..Default::default() };
        let answer = raw.ask(7, &request.into())?;
        let told = answer["answer"]["Topics"].as_array().cloned().unwrap_or_default();
        if told.len() != names.len() || told.iter().any(|topic| topic["ErrorCode"] != 0) {
            return Err(format!("topics were not made: {}", told.first().unwrap_or(&answer)).into());
        }
    }
    Ok(())
}

fn delete_many(raw: &mut Raw, names: &[String]) -> Result<()> {
    let topic_names = names.iter().map(|name| text(name)).collect();
    let request = DeleteTopicsRequest { topic_names, timeout_ms: 60_000, ..Default::default() };
    let answer = raw.ask(5, &request.into())?;
    let told = answer["answer"]["Responses"].as_array().cloned().unwrap_or_default();
    if told.len() == names.len() && told.iter().all(|topic| topic["ErrorCode"] == 0) {
        return Ok(());
    }
    Err(format!("topics were not deleted: {}", told.first().unwrap_or(&answer)).into())
}

/// Asks for these partitions of a topic from `offset` on, over and over, each time waiting as a consumer does.
fn consume(address: SocketAddr, topic: &str, partitions: &[i32], stop: &AtomicBool, answers: &AtomicU64) -> Result<()> {
    let mut connection = Connection::open(address, PATIENCE)?;
    connection.call(3, &api_versions_request())?;
    let mut next = vec![0i64; partitions.len()];
    while !stop.load(Ordering::Relaxed) {
        let one = |(index, offset): (&i32, &i64)| FetchPartition {
            partition: *index,
            fetch_offset: *offset,
            partition_max_bytes: 1 << 20,
            ..Default::default()
        };
        let asked = partitions.iter().zip(&next).map(one).collect();
        let topics = vec![FetchTopic { topic: text(topic), partitions: asked, ..Default::default() }];
        let request =
            FetchRequest { max_wait_ms: 500, min_bytes: 1, max_bytes: 50 << 20, topics, ..Default::default() };
        let answer = connection.call(11, &request)?;
        for partition in answer.responses.iter().flat_map(|topic| &topic.partitions) {
            let at = partitions.iter().position(|index| *index == partition.partition_index);
            // A reader at the tip goes on from what is there, whatever it holds.
            if let Some(at) = at {
                next[at] = partition.high_watermark.max(0);
            }
        }
        answers.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Runs `work` beside so many consumers of the topic, each of its own share of the partitions.
fn beside_consumers<T>(
    address: SocketAddr,
    topic: &str,
    consumers: usize,
    partitions: &dyn Fn(usize) -> Vec<i32>,
    work: impl FnOnce(&AtomicU64) -> Result<T>,
) -> Result<T> {
    let (stop, answers) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let threads: Vec<_> = (0..consumers)
            .map(|number| {
                let partitions = partitions(number);
                let (stop, answers) = (&stop, &answers);
                scope.spawn(move || consume(address, topic, &partitions, stop, answers).map_err(|f| f.to_string()))
            })
            .collect();
        let done = work(&answers);
        stop.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().map_err(|_| "a consumer panicked")??;
        }
        done
    })
}

fn options(address: SocketAddr, topic: &str, duration: Duration) -> load::Options {
    load::Options {
        bootstrap: address,
        topic: topic.to_owned(),
        partitions: 4,
        configs: Vec::new(),
        connections: 4,
        record_size: 1024,
        acks: -1,
        rate: 500.0,
        arrivals: Arrivals::Uniform,
        warm_up: Duration::from_secs(1),
        duration,
        sleep: true,
        seed: 1,
    }
}

/// Median and p99 of produce in microseconds.
fn latencies(options: &load::Options) -> Result<(u64, u64)> {
    let outcome = load::run(options, || ())?;
    if !outcome.errors.is_empty() || outcome.unanswered > 0 || outcome.counted == 0 {
        return Err(format!("{} unanswered, errors {:?}", outcome.unanswered, outcome.errors).into());
    }
    Ok((outcome.latencies.value_at_quantile(0.5), outcome.latencies.value_at_quantile(0.99)))
}

fn idle_consumers(bench: &mut Bench<'_>) -> Result<Value> {
    const CONSUMERS: usize = 100;
    const AT_THE_TIP: usize = 50;
    let (partitions, seconds) = if bench.long { (1000, 60) } else { (200, 8) };
    let node = bench.own_node(&Wishes::default())?;
    let (address, mut raw) = (node.address(), Raw::new(node.address()));
    let empty = bench.name("empty");
    create(&mut raw, &empty, partitions, &[])?;
    let share = move |number: usize| {
        let each = partitions as usize / CONSUMERS;
        (number * each..(number + 1) * each).map(|index| index as i32).collect::<Vec<i32>>()
    };
    let idle = beside_consumers(address, &empty, CONSUMERS, &share, |answers| {
        // Everybody has asked and waits.
        wait::until("the consumers", PATIENCE, || Ok((answers.load(Ordering::Relaxed) > 300).then_some(())))?;
        let (before, from) = (spent(node.as_ref())?, Instant::now());
        let answered = answers.load(Ordering::Relaxed);
        let until = Duration::from_secs(seconds);
        wait::until("the idle time's end", until + PATIENCE, || Ok((from.elapsed() >= until).then_some(())))?;
        let cpu = spent(node.as_ref())?.cpu.saturating_sub(before.cpu);
        let asked = answers.load(Ordering::Relaxed) - answered;
        println!("     {}: {asked} empty answers in {:?}", node.name(), from.elapsed());
        Ok(cpu.as_secs_f64() / from.elapsed().as_secs_f64())
    })?;
    hold(bench, "cores that 100 idle consumers cost", idle, IDLE_CORE_SHARE_MAX)?;
    let tip = options(address, &bench.name("tip"), Duration::from_secs(if bench.long { 20 } else { 4 }));
    load::prepare(&tip)?;
    let (alone, alone_p99) = latencies(&tip)?;
    let whole = |_: usize| vec![0, 1, 2, 3];
    let (beside, beside_p99) = beside_consumers(address, &tip.topic, AT_THE_TIP, &whole, |_| latencies(&tip))?;
    println!("     {}: produce p99 {alone_p99} us, beside {AT_THE_TIP} at the tip {beside_p99} us", node.name());
    let most = (alone * TIP_FACTOR_MAX).max(TIP_FLOOR_US);
    hold(bench, "median of produce beside consumers at the tip, us", beside as f64, most as f64)?;
    Ok(json!({ "idle": true, "tip": true }))
}

fn large_topics(bench: &mut Bench<'_>) -> Result<Value> {
    let (rounds, partitions, topics) = match (bench.long, bench.broker.name()) {
        (true, "pollux") => (50, 5000, 20_000),
        _ => (6, 200, 400),
    };
    let node = bench.own_node(&Wishes::default())?;
    let (address, mut raw) = (node.address(), Raw::new(node.address()));
    let mut resident = Vec::new();
    for round in 0..rounds {
        let name = [bench.name(&format!("large-{round}"))];
        create_many(&mut raw, &name, partitions)?;
        wait::until("its partitions", PATIENCE, || {
            Ok((told_partitions(&mut raw, &name[0])? == partitions).then_some(()))
        })?;
        delete_many(&mut raw, &name)?;
        wait::until("its end", PATIENCE, || Ok((told_partitions(&mut raw, &name[0])? == 0).then_some(())))?;
        resident.push(spent(node.as_ref())?.resident_bytes);
    }
    let (early, last) = (resident[2], resident[rounds - 1]);
    println!("     {}: {} and {} MiB after the third and the last round", node.name(), early >> 20, last >> 20);
    hold(bench, "growth, MiB", last.saturating_sub(early) as f64 / 1048576.0, (GROWTH_MAX >> 20) as f64)?;
    metadata_under_load(bench, address, topics)?;
    Ok(json!({ "rounds": true, "metadata": true }))
}

/// How many partitions with a leader Metadata tells.
fn told_partitions(raw: &mut Raw, name: &str) -> Result<i32> {
    use wire::messages::metadata_request::MetadataRequestTopic;
    let topic = MetadataRequestTopic { name: Some(text(name)), ..Default::default() };
    let request = MetadataRequest { topics: Some(vec![topic]), ..Default::default() };
    let answer = raw.ask(12, &request.into())?;
    let told = answer["answer"]["Topics"][0]["Partitions"].as_array().cloned().unwrap_or_default();
    Ok(told.iter().filter(|partition| partition["LeaderId"] == 1).count() as i32)
}

/// Produce while another connection asks for all topics over and over.
fn metadata_under_load(bench: &Bench<'_>, address: SocketAddr, topics: usize) -> Result<()> {
    let names: Vec<String> = (0..topics).map(|number| bench.name(&format!("one-of-many-{number}"))).collect();
    create_many(&mut Raw::new(address), &names, 1)?;
    let load = options(address, &bench.name("under-load"), Duration::from_secs(if bench.long { 20 } else { 4 }));
    load::prepare(&load)?;
    let (alone, alone_p99) = latencies(&load)?;
    let stop = AtomicBool::new(false);
    let (beside, asked) = thread::scope(|scope| {
        let asker = scope.spawn(|| -> std::result::Result<u64, String> {
            let mut connection = Connection::open(address, PATIENCE).map_err(|error| error.to_string())?;
            let mut asked = 0;
            while !stop.load(Ordering::Relaxed) {
                let request = MetadataRequest { topics: None, ..Default::default() };
                let answer = connection.call(12, &request).map_err(|error| error.to_string())?;
                if answer.topics.len() < topics {
                    return Err(format!("{} of {topics} topics are told", answer.topics.len()));
                }
                asked += 1;
            }
            Ok(asked)
        });
        let found = latencies(&load);
        stop.store(true, Ordering::Relaxed);
        let asked = asker.join().map_err(|_| "the asker panicked")??;
        Ok::<_, crate::Fault>((found?, asked))
    })?;
    let name = bench.broker.name();
    println!(
        "     {name}: produce p99 {alone_p99} us, beside Metadata of {topics} topics {asked} times {} us",
        beside.1
    );
    let most = (alone * METADATA_FACTOR_MAX).max(TIP_FLOOR_US);
    hold(bench, "median of produce beside Metadata of every topic, us", beside.0 as f64, most as f64)
}
