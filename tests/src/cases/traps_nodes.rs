//! Rows of the table of traps that need a node of their own: a fresh one, one with other settings, one that is restarted,
//! one whose device is full.

use super::traps::{batch, fetch, produce};
use super::{Apart, Bench, Skip};
use crate::node::{Broker, Victim, free_ports};
use crate::process;
use crate::raw::Raw;
use crate::reference::Wishes;
use crate::topics::create;
use crate::{Result, wait};
use base::{ProducerEpoch, ProducerId, Sequence, WallMillis};
use batch::{BatchBuilder, BatchProducer};
use bytes::Bytes;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::Duration;
use wire::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use wire::messages::metadata_request::MetadataRequestTopic;
use wire::messages::offset_for_leader_epoch_request::{OffsetForLeaderPartition, OffsetForLeaderTopic};
use wire::messages::{
    DeleteTopicsRequest, FindCoordinatorRequest, IncrementalAlterConfigsRequest, MetadataRequest,
    OffsetForLeaderEpochRequest,
};
use wire::{KafkaString, RequestKind};

type Run = fn(&mut Bench<'_>) -> Result<Value>;

pub const CASES: &[(&str, Run)] = &[
    ("trap/fresh-cluster", fresh_cluster),
    ("trap/other-settings", other_settings),
    ("trap/advertised-wildcard", advertised_wildcard),
    ("trap/leader-epochs", leader_epochs),
    ("trap/full-device", full_device),
];

const PATIENCE: Duration = Duration::from_secs(60);
const NO_ERROR: i64 = 0;

fn text(text: &str) -> KafkaString {
    KafkaString::from(text)
}

fn with(settings: &[(&str, &str)]) -> Wishes {
    let settings = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Wishes { settings: settings.collect(), ..Wishes::default() }
}

/// The first act of anybody is a consumer without a group's protocol that asks for committed offsets.
fn fresh_cluster(bench: &mut Bench<'_>) -> Result<Value> {
    let mut node = bench.own_node(&Wishes::default())?;
    let first = bench.java.borrow_mut().run("group/aFirstCommittedOffset", node.address(), &bench.prefix)?;
    node.stop()?;
    Ok(first)
}

/// Auto-creation off, producers that expire soon, two listeners.
fn other_settings(bench: &mut Bench<'_>) -> Result<Value> {
    let second = free_ports(1)?[0];
    let settings = with(&[
        ("auto.create.topics.enable", "false"),
        ("producer.id.expiration.ms", "1000"),
        ("producer.id.expiration.check.interval.ms", "200"),
    ]);
    let mut node = bench.own_node(&Wishes { second_listener: Some(second), ..settings })?;
    let mut raw = Raw::new(node.address());
    let name = bench.name("first-by-kcat");
    create(&mut raw, &name, 1, &[])?;
    let found = json!({
        "kcat asks for committed offsets first": stored_offset(node.address(), &name)?,
        "creation": creation_is_off(&mut raw, &bench.name("unmade"))?,
        "an expired producer": expired_producer(&mut raw, &bench.name("expiring"))?,
        "listeners": [
            told_address(&mut raw, node.address())?,
            told_address(&mut Raw::new((Ipv4Addr::LOCALHOST, second).into()), (Ipv4Addr::LOCALHOST, second).into())?,
        ],
    });
    node.stop()?;
    Ok(found)
}

/// A manual assignment that begins where its group committed, which is nowhere.
fn stored_offset(address: SocketAddr, topic: &str) -> Result<Value> {
    let mut command = Command::new("kcat");
    command.args(["-b", &address.to_string(), "-q", "-C", "-t", topic, "-p", "0", "-o", "stored", "-e"]);
    command.args(["-X", "group.id=firsts", "-X", "auto.offset.reset=earliest"]);
    match process::run(command, "kcat", b"", PATIENCE) {
        Err(fault) if fault.to_string().contains("does not start") => Err(Skip("kcat is not installed".into()).into()),
        Ok(finished) => Ok(json!([finished.success, finished.out])),
        Err(fault) => Err(fault),
    }
}

fn creation_is_off(raw: &mut Raw, name: &str) -> Result<Value> {
    let mut found = Vec::new();
    for allow_auto_topic_creation in [true, false, true] {
        let topic = MetadataRequestTopic { name: Some(text(name)), ..Default::default() };
        let request = MetadataRequest { topics: Some(vec![topic]), allow_auto_topic_creation, ..Default::default() };
        found.push(raw.ask(12, &request.into())?["answer"]["Topics"][0]["ErrorCode"].clone());
    }
    Ok(json!(found))
}

/// What a producer's batch that begins at a sequence is answered.
fn sequenced(raw: &mut Raw, name: &str, sequence: i32) -> Result<i64> {
    let mut builder = BatchBuilder::new();
    let producer =
        BatchProducer { id: ProducerId(4711), epoch: ProducerEpoch(0), base_sequence: Some(Sequence(sequence)) };
    builder.producer(producer).append(WallMillis(1_700_000_000_000), None, Some(b"v"), &[]);
    let answer = raw.ask(9, &produce(name, vec![(0, builder.build().into())]))?;
    let code = &answer["answer"]["Responses"][0]["PartitionResponses"][0]["ErrorCode"];
    code.as_i64().ok_or_else(|| format!("no code in {answer}").into())
}

/// While it is known, a gap is refused; once its state has gone, any number begins.
fn expired_producer(raw: &mut Raw, name: &str) -> Result<Value> {
    create(raw, name, 1, &[])?;
    let first = sequenced(raw, name, 0)?;
    let gap = sequenced(raw, name, 10)?;
    let later = wait::until("the producer to expire", PATIENCE, || {
        Ok(Some(sequenced(raw, name, 10)?).filter(|code| *code == NO_ERROR))
    })?;
    Ok(json!([first, gap, later]))
}

/// Whether Metadata names the address that was asked.
fn told_address(raw: &mut Raw, asked: SocketAddr) -> Result<bool> {
    let answer = raw.ask(12, &MetadataRequest { topics: Some(vec![]), ..Default::default() }.into())?;
    let brokers = answer["answer"]["Brokers"].as_array().cloned().unwrap_or_default();
    let own = |broker: &Value| broker["Host"] == asked.ip().to_string() && broker["Port"] == asked.port();
    Ok(brokers.len() == 1 && brokers.iter().all(own))
}

fn advertised_wildcard(bench: &mut Bench<'_>) -> Result<Value> {
    let wishes = with(&[("advertised.listeners", "PLAINTEXT://0.0.0.0:9092")]);
    match bench.own_node(&wishes) {
        Ok(mut node) => {
            node.stop()?;
            Ok(json!("started"))
        }
        // The process ended by itself (the reference's while it was formatted); one that hung is told as such.
        Err(fault) => {
            let fault = fault.to_string();
            let refused = fault.contains("the node ended with") || fault.contains("kafka-storage failed");
            if refused { Ok(json!({ "refused, naming it": fault.contains("0.0.0.0") })) } else { Err(fault.into()) }
        }
    }
}

/// Three restarts give three changes of leadership or more; epochs differ between brokers, what is told of them does not.
fn leader_epochs(bench: &mut Bench<'_>) -> Result<Value> {
    let mut node = bench.own_node(&Wishes::default())?;
    let coordinators = first_coordinator_answers(node.as_ref())?;
    let name = bench.name("led");
    create(&mut Raw::new(node.address()), &name, 1, &[])?;
    // The epoch and the first offset of each stretch of records.
    let mut written: Vec<(i64, i64)> = Vec::new();
    let mut lowered = Vec::new();
    for round in 0..4 {
        if round > 0 {
            node.kill(Victim::Everything)?;
            node.start()?;
        }
        let mut raw = Raw::new(node.address());
        let least = written.last().map_or(-1, |(epoch, _)| *epoch);
        let epoch = wait::until("the partition to be led", PATIENCE, || {
            let told = partition_metadata(&mut raw, &name)?;
            let (leader, epoch) = (told["LeaderId"].as_i64(), told["LeaderEpoch"].as_i64().unwrap_or(-1));
            if epoch != -1 && epoch < least {
                lowered.push(told.clone());
            }
            let taken = raw.ask(9, &produce(&name, vec![(0, batch(&[0, 1], b"v"))]))?;
            let taken = &taken["answer"]["Responses"][0]["PartitionResponses"][0];
            let offset = taken["BaseOffset"].as_i64().filter(|_| taken["ErrorCode"] == 0);
            // Taken under the epoch that was told just before, or under a later one.
            let after = partition_metadata(&mut raw, &name)?["LeaderEpoch"].as_i64().unwrap_or(-1);
            Ok(offset.filter(|_| leader == Some(1)).map(|offset| (after, offset)))
        })?;
        written.push(epoch);
    }
    let current = written.last().map_or(0, |(epoch, _)| *epoch);
    let mut raw = Raw::new(node.address());
    let mut told = Vec::new();
    for asked in 0..=current + 1 {
        let answer = epoch_end(&mut raw, &name, asked)?;
        // The largest known epoch that is not above the one asked for, by its number among those with records.
        let known = written.iter().rposition(|(epoch, _)| *epoch <= asked);
        let epoch = answer["LeaderEpoch"].as_i64();
        let of = written.iter().position(|(written, _)| Some(*written) == epoch);
        told.push((known, of, answer["EndOffset"].clone(), answer["ErrorCode"].clone(), epoch == Some(-1)));
    }
    node.stop()?;
    let above = told.pop();
    let by_epoch: BTreeMap<usize, BTreeSet<String>> = told.iter().fold(BTreeMap::new(), |mut found, entry| {
        if let (Some(known), of, end, error, _) = entry {
            let told = json!([*of == Some(*known), end, error]).to_string();
            found.entry(*known).or_insert_with(BTreeSet::new).insert(told);
        }
        found
    });
    Ok(json!({
        "coordinators": coordinators,
        "lowered": lowered,
        "rises": written.windows(2).all(|pair| pair[0].0 < pair[1].0),
        "offsets": written.iter().map(|(_, offset)| *offset).collect::<Vec<_>>(),
        "above": above.map(|(_, _, end, error, unknown)| json!([end, error, unknown])),
        "by epoch": by_epoch,
    }))
}

/// What FindCoordinator says until it names one: errors after which clients try again.
fn first_coordinator_answers(node: &dyn Broker) -> Result<Value> {
    const NOT_AVAILABLE: i64 = 15;
    let mut raw = Raw::new(node.address());
    let mut others = BTreeSet::new();
    wait::until("a coordinator", PATIENCE, || {
        let find = FindCoordinatorRequest { coordinator_keys: vec![text("anyone")], ..Default::default() };
        let code = raw.ask(4, &find.into())?["answer"]["Coordinators"][0]["ErrorCode"].as_i64().unwrap_or(i64::MIN);
        if code != NO_ERROR && code != NOT_AVAILABLE {
            others.insert(code);
        }
        Ok((code == NO_ERROR).then_some(()))
    })?;
    Ok(json!({ "other errors": others }))
}

fn partition_metadata(raw: &mut Raw, name: &str) -> Result<Value> {
    let topic = MetadataRequestTopic { name: Some(text(name)), ..Default::default() };
    let request = MetadataRequest { topics: Some(vec![topic]), ..Default::default() };
    Ok(raw.ask(12, &request.into())?["answer"]["Topics"][0]["Partitions"][0].clone())
}

fn epoch_end(raw: &mut Raw, name: &str, leader_epoch: i64) -> Result<Value> {
    let leader_epoch = i32::try_from(leader_epoch)?;
    let partition = OffsetForLeaderPartition { leader_epoch, current_leader_epoch: -1, ..Default::default() };
    let topic = OffsetForLeaderTopic { topic: text(name), partitions: vec![partition], ..Default::default() };
    let request = OffsetForLeaderEpochRequest { replica_id: -1, topics: vec![topic], ..Default::default() };
    Ok(raw.ask(3, &request.into())?["answer"]["Topics"][0]["Partitions"][0].clone())
}

const STORAGE_ERROR: i64 = 56;

/// Writes until it is refused. Returns how many records were taken, and the error.
fn fill(raw: &mut Raw, name: &str) -> Result<(i64, i64)> {
    const MOST: i64 = 2000;
    let large: Bytes = batch(&[0], &vec![9; 900_000]);
    for taken in 0..MOST {
        let answer = raw.ask(9, &produce(name, vec![(0, large.clone())]))?;
        let code = answer["answer"]["Responses"][0]["PartitionResponses"][0]["ErrorCode"].as_i64();
        match code {
            Some(NO_ERROR) => {}
            Some(code) => return Ok((taken, code)),
            None => return Err(format!("no code in {answer}").into()),
        }
    }
    Err(format!("{MOST} records were taken by a device that cannot hold them").into())
}

/// How many records can be read from the beginning on.
fn readable(raw: &mut Raw, name: &str) -> Result<i64> {
    let mut next = 0;
    loop {
        let answer = raw.ask(11, &fetch(name, &[(0, next, 1 << 20)], 1 << 20).into())?;
        let partition = &answer["answer"]["Responses"][0]["Partitions"][0];
        if partition["ErrorCode"] != 0 {
            return Err(format!("offset {next} cannot be read: error {}", partition["ErrorCode"]).into());
        }
        let last = partition["Records"].as_array().and_then(|batches| batches.last());
        match last.and_then(|batch| batch["base_offset"].as_i64()) {
            Some(base) => next = base + 1,
            None => return Ok(next),
        }
    }
}

fn set_topic(raw: &mut Raw, name: &str, setting: &str, value: &str) -> Result<()> {
    let config = AlterableConfig { name: text(setting), value: Some(text(value)), ..Default::default() };
    let resource = AlterConfigsResource {
        resource_type: 2,
        resource_name: text(name),
        configs: vec![config],
        ..Default::default()
    };
    let request = IncrementalAlterConfigsRequest { resources: vec![resource], ..Default::default() };
    let answer = raw.ask(1, &RequestKind::from(request))?;
    if answer["answer"]["Responses"][0]["ErrorCode"] == 0 { Ok(()) } else { Err(answer.to_string().into()) }
}

/// A full device: appends are refused, reads go on, a start works, and what is freed can be written again, twice: by
/// retention, and by deleting the topic. A broker on a file system cannot be given a full device of its own here.
fn full_device(bench: &mut Bench<'_>) -> Result<Value> {
    if bench.broker.name() == "kafka" {
        return Err(Apart("its log directory has no size of its own".into()).into());
    }
    let wishes = Wishes { own: vec!["data.size=\"192MiB\"".into()], ..Wishes::default() };
    let mut node = bench.own_node(&wishes)?;
    let mut raw = Raw::new(node.address());
    let (name, beside) = (bench.name("fills"), bench.name("fills-beside"));
    create(&mut raw, &name, 1, &[("segment.bytes", "1048576")])?;
    create(&mut raw, &beside, 1, &[])?;
    let (taken, refusal) = fill(&mut raw, &name)?;
    if refusal != STORAGE_ERROR || taken < 20 {
        return Err(format!("{taken} records were taken, then error {refusal}").into());
    }
    let before = readable(&mut raw, &name)?;
    node.kill(Victim::Everything)?;
    node.start()?;
    let mut raw = Raw::new(node.address());
    crate::topics::wait_until_usable(&mut raw, &name, 1)?;
    let after = readable(&mut raw, &name)?;
    // The start may have made a little room; it is full again soon.
    let (more, refusal) = fill(&mut raw, &name)?;
    let held = readable(&mut raw, &name)?;
    if (before, after, held, refusal) != (taken, taken, taken + more, STORAGE_ERROR) {
        return Err(format!("{taken} and {more} records were taken; {before}, {after}, {held} could be read").into());
    }
    set_topic(&mut raw, &name, "retention.bytes", "10485760")?;
    writes_again(&mut raw, &beside)?;
    fill(&mut raw, &beside)?;
    let request = DeleteTopicsRequest { topic_names: vec![text(&beside)], timeout_ms: 30_000, ..Default::default() };
    raw.ask(5, &request.into())?;
    writes_again(&mut raw, &name)?;
    node.stop()?;
    Ok(json!({ "refusal": refusal, "nothing lost": true, "writes again": true }))
}

fn writes_again(raw: &mut Raw, name: &str) -> Result<()> {
    wait::until("room for records", PATIENCE, || {
        let answer = raw.ask(9, &produce(name, vec![(0, batch(&[0], &vec![9; 900_000]))]))?;
        Ok((answer["answer"]["Responses"][0]["PartitionResponses"][0]["ErrorCode"] == 0).then_some(()))
    })
}
