//! Requests that name very many topics: how long a loop is held by each, step by step, and what another client notices.
//! The figures are the watchdog's, read in the node's counter pages.

use super::PATIENCE;
use crate::node::Broker;
use crate::reference::Wishes;
use crate::subject::Pollux;
use crate::{Result, wait};
use arena::SharedPages;
use base::counters::{Histogram, HistogramSnapshot, Words, readings};
use base::{Uuid, WallMillis};
use batch::BatchBuilder;
use bytes::Bytes;
use perf::client::Connection;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use wire::messages::create_topics_request::CreatableTopic;
use wire::messages::fetch_request::{FetchPartition, FetchTopic};
use wire::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use wire::messages::metadata_request::MetadataRequestTopic;
use wire::messages::offset_for_leader_epoch_request::{OffsetForLeaderPartition, OffsetForLeaderTopic};
use wire::messages::produce_request::{PartitionProduceData, TopicProduceData};
use wire::messages::*;
use wire::{KafkaString, Request};

/// Topics in one request that makes or removes them.
const CREATED_AT_ONCE: usize = 1000;
/// Topics in a request that is no burden.
const ASKED_AT_ONCE: usize = 20;
const MANY_PATIENCE: Duration = Duration::from_secs(120);

#[derive(Clone, Debug)]
pub struct Plan {
    pub topics: usize,
    /// What a step of a turn may take; above it the run fails.
    pub longest: Option<Duration>,
    pub own: Vec<String>,
}

/// A watchdog's step, by its name.
const STEPS: [(&str, Histogram); 8] = [
    ("device", Histogram::StepDevice),
    ("net", Histogram::StepNet),
    ("session", Histogram::StepSession),
    ("handoff", Histogram::StepHandoff),
    ("partition", Histogram::StepPartition),
    ("log", Histogram::StepLog),
    ("timers", Histogram::StepTimers),
    ("link", Histogram::StepLink),
];

/// All cores' turns and steps up to now.
struct Turns(Vec<HistogramSnapshot>);

impl Turns {
    fn read(words: &Words) -> Turns {
        let of = |histogram| {
            let mut sum = HistogramSnapshot::empty();
            readings(words).iter().for_each(|core| sum.merge(&core.histogram(histogram)));
            sum
        };
        let turns = [Histogram::Turn, Histogram::TurnOnCpu].into_iter();
        Turns(turns.chain(STEPS.map(|(_, step)| step)).map(of).collect())
    }

    /// The longest turn since then, the most that one above 1 ms ran on a CPU, and the longest time of each step that was
    /// long at all.
    fn since(&self, before: &Turns) -> (Duration, Option<Duration>, Vec<(&'static str, Duration)>) {
        let longest = |at: usize| self.0[at].since(&before.0[at]).quantile(1.0);
        let steps = STEPS.iter().enumerate().filter_map(|(at, (name, _))| Some((*name, longest(at + 2)?)));
        (longest(0).unwrap_or_default(), longest(1), steps.collect())
    }
}

/// A client that produces one record after another: its longest wait is what the others cost it.
fn bystander(address: SocketAddr, topic: &str, stop: &AtomicBool) -> Result<Vec<Duration>> {
    let mut connection = Connection::open(address, MANY_PATIENCE)?;
    let mut waits = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        let answer = connection.call(9, &produce(&[topic.into()]))?;
        if answer.responses[0].partition_responses[0].error_code != 0 {
            return Err(format!("the bystander is refused: {answer:?}").into());
        }
        waits.push(began.elapsed());
    }
    Ok(waits)
}

fn produce(names: &[KafkaString]) -> ProduceRequest {
    let mut builder = BatchBuilder::new();
    builder.append(WallMillis(1), None, Some(b"value"), &[]);
    let records = Bytes::from(builder.build());
    let partition = PartitionProduceData { index: 0, records: Some(records), ..Default::default() };
    let topic = |name: &KafkaString| TopicProduceData {
        name: name.clone(),
        partition_data: vec![partition.clone()],
        ..Default::default()
    };
    let topic_data = names.iter().map(topic).collect();
    ProduceRequest { acks: -1, timeout_ms: 30_000, topic_data, ..Default::default() }
}

fn list_offsets(names: &[KafkaString]) -> ListOffsetsRequest {
    let partitions = vec![ListOffsetsPartition { timestamp: -1, current_leader_epoch: -1, ..Default::default() }];
    let topic = |name: &KafkaString| ListOffsetsTopic {
        name: name.clone(),
        partitions: partitions.clone(),
        ..Default::default()
    };
    ListOffsetsRequest { replica_id: -1, topics: names.iter().map(topic).collect(), ..Default::default() }
}

fn epoch_ends(names: &[KafkaString]) -> OffsetForLeaderEpochRequest {
    let partitions = vec![OffsetForLeaderPartition { current_leader_epoch: -1, ..Default::default() }];
    let topic = |name: &KafkaString| OffsetForLeaderTopic {
        topic: name.clone(),
        partitions: partitions.clone(),
        ..Default::default()
    };
    OffsetForLeaderEpochRequest { replica_id: -1, topics: names.iter().map(topic).collect(), ..Default::default() }
}

/// A fetch of all from this offset on; of nothing more than what its session has where that is not its first.
fn fetch(names: &[KafkaString], offset: i64, (session_id, session_epoch): (i32, i32), wait_ms: i32) -> FetchRequest {
    let partition = FetchPartition {
        fetch_offset: offset,
        partition_max_bytes: 1 << 20,
        current_leader_epoch: -1,
        last_fetched_epoch: -1,
        log_start_offset: -1,
        ..Default::default()
    };
    let topic = |name: &KafkaString| FetchTopic {
        topic: name.clone(),
        partitions: vec![partition.clone()],
        ..Default::default()
    };
    FetchRequest {
        max_wait_ms: wait_ms,
        min_bytes: 1,
        max_bytes: 50 << 20,
        session_id,
        session_epoch,
        topics: names.iter().map(topic).collect(),
        ..Default::default()
    }
}

fn metadata(names: Option<&[KafkaString]>) -> MetadataRequest {
    let topic = |name: &KafkaString| MetadataRequestTopic {
        name: Some(name.clone()),
        topic_id: Uuid::ZERO,
        ..Default::default()
    };
    MetadataRequest { topics: names.map(|names| names.iter().map(topic).collect()), ..Default::default() }
}

fn create(connection: &mut Connection, names: &[KafkaString]) -> Result<()> {
    let topic = |name: &KafkaString| CreatableTopic {
        name: name.clone(),
        num_partitions: 1,
        replication_factor: 1,
        ..Default::default()
    };
    let topics = names.iter().map(topic).collect();
    let request = CreateTopicsRequest { topics, timeout_ms: 60_000, ..Default::default() };
    let answer = connection.call(7, &request)?;
    match answer.topics.iter().find(|topic| topic.error_code != 0) {
        Some(refused) => Err(format!("{refused:?}").into()),
        None => Ok(()),
    }
}

/// The run at hand.
struct Bench {
    connection: Connection,
    words: Words,
    longest: Option<Duration>,
    missed: Vec<String>,
}

impl Bench {
    /// Does something and tells how long loops were held meanwhile.
    fn measure<T>(&mut self, what: &str, act: impl FnOnce(&mut Connection) -> Result<T>) -> Result<T> {
        let (before, began) = (Turns::read(&self.words), Instant::now());
        let done = act(&mut self.connection)?;
        let took = began.elapsed();
        let (turn, on_cpu, steps) = Turns::read(&self.words).since(&before);
        let on_cpu = on_cpu.map_or_else(String::new, |took| format!(" (on a CPU at most {} us)", took.as_micros()));
        let told: Vec<String> = steps.iter().map(|(step, took)| format!("{step} {} us", took.as_micros())).collect();
        println!(
            "{what:28} {:7.1} ms; the longest turn {:7} us{on_cpu}; {}",
            took.as_secs_f64() * 1e3,
            turn.as_micros(),
            told.join(", ")
        );
        let over = steps.iter().filter(|(_, took)| self.longest.is_some_and(|longest| *took > longest));
        self.missed.extend(over.map(|(step, took)| format!("{what}: {step} {} us", took.as_micros())));
        Ok(done)
    }

    fn ask<R: Request>(&mut self, what: &str, version: i16, request: &R) -> Result<R::Response> {
        self.measure(what, |connection| Ok(connection.call(version, request)?))
    }

    fn requests(&mut self, address: SocketAddr, names: &[KafkaString]) -> Result<()> {
        let expect = |what: &str, got: usize| match got == names.len() {
            true => Ok(()),
            false => Err(format!("{what}: {got} of {} topics are answered", names.len())),
        };
        let told = self.ask("Metadata of all", 12, &metadata(None))?;
        expect("Metadata", told.topics.len() - 1)?;
        expect("Metadata", self.ask("Metadata by name", 12, &metadata(Some(names)))?.topics.len())?;
        let listed = self.ask("ListOffsets", 7, &list_offsets(names))?;
        expect("ListOffsets", listed.topics.iter().filter(|topic| topic.partitions[0].offset == 0).count())?;
        let ends = self.ask("OffsetForLeaderEpoch", 4, &epoch_ends(names))?;
        expect("OffsetForLeaderEpoch", ends.topics.iter().filter(|topic| topic.partitions[0].end_offset >= 0).count())?;
        let quiet = self.ask("Fetch that waits", 12, &fetch(names, 0, (0, -1), 300))?;
        expect("Fetch", quiet.responses.len())?;
        let produced = self.ask("Produce", 9, &produce(names))?;
        let placed = |topic: &produce_response::TopicProduceResponse| topic.partition_responses[0].base_offset == 0;
        expect("Produce", produced.responses.iter().filter(|topic| placed(topic)).count())?;
        let full = self.ask("Fetch of records", 12, &fetch(names, 0, (0, -1), 300))?;
        expect("Fetch", full.responses.len())?;
        let session = self.ask("Fetch, a new session", 12, &fetch(names, 1, (0, 0), 300))?;
        expect("Fetch", session.responses.len())?;
        if session.session_id == 0 {
            return Err("there is no room for a session".into());
        }
        for epoch in 1..=2 {
            self.ask("Fetch of the session", 12, &fetch(&[], 1, (session.session_id, epoch), 300))?;
        }
        self.measure("the session wakes and ends", |connection| {
            let waiting = connection.send(12, &fetch(&[], 1, (session.session_id, 3), 20_000))?;
            let mut other = Connection::open(address, PATIENCE)?;
            other.call(9, &produce(&names[..1]))?;
            let woken = connection.receive::<FetchRequest>(12, waiting)?;
            if woken.responses.len() != 1 {
                return Err(format!("{} topics woke the session", woken.responses.len()).into());
            }
            Ok(connection.call(12, &fetch(&[], 1, (session.session_id, -1), 0))?)
        })?;
        let logs = self.ask("DescribeLogDirs", 4, &DescribeLogDirsRequest { topics: None, ..Default::default() })?;
        expect("DescribeLogDirs", logs.results[0].topics.len() - 1)?;
        Ok(())
    }
}

pub fn run(plan: &Plan) -> Result<()> {
    let own = [vec!["durability=\"cache\"".to_owned()], plan.own.clone()].concat();
    let mut node = Pollux::start_new(&Wishes { own, ..Wishes::default() })?;
    let pages = SharedPages::open(&node.data().join("run/counters"))?;
    let mut connection = Connection::open(node.address(), MANY_PATIENCE)?;
    create(&mut connection, &["bystander".into()])?;
    let (mut bench, address) =
        (Bench { connection, words: Arc::new(pages), longest: plan.longest, missed: Vec::new() }, node.address());
    usable(&mut bench.connection, &["bystander".into()])?;
    let names: Vec<KafkaString> = (0..plan.topics).map(|n| KafkaString::from(format!("one-of-many-{n:06}"))).collect();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let bystander = scope.spawn(|| bystander(address, "bystander", &stop).map_err(|fault| fault.to_string()));
        let done = bench.measure("CreateTopics, 1000 at a time", |connection| {
            names.chunks(CREATED_AT_ONCE).try_for_each(|names| create(connection, names))?;
            usable(connection, &names)
        });
        let done = done.and_then(|()| bench.requests(address, &names));
        stop.store(true, Ordering::Relaxed);
        let mut waits = bystander.join().map_err(|_| "the bystander panicked")??;
        waits.sort();
        let at = |share: f64| waits[((waits.len() - 1) as f64 * share) as usize].as_micros();
        println!("the bystander: {} records, p99 {} us, at most {} us", waits.len(), at(0.99), at(1.0));
        done
    })?;
    node.stop()?;
    match bench.missed.as_slice() {
        [] => Ok(()),
        missed => Err(format!("held for too long: {}", missed.join("; ")).into()),
    }
}

/// Waits until every topic serves, asked for a few at a time.
fn usable(connection: &mut Connection, names: &[KafkaString]) -> Result<()> {
    for names in names.chunks(ASKED_AT_ONCE) {
        wait::until("the topics", MANY_PATIENCE, || {
            let listed = connection.call(7, &list_offsets(names))?;
            Ok(listed.topics.iter().all(|topic| topic.partitions[0].error_code == 0).then_some(()))
        })?;
    }
    Ok(())
}
