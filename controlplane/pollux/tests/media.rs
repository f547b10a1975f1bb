//! The tools for a stopped node's namespace, run as the operator runs them: on what a real node left, whole and damaged,
//! and what the node says before and after.

mod common;

use base::{BLOCK_SIZE, Random, ShardId, WallMillis};
use batch::{BatchBuilder, Batches, Records};
use common::*;
use nvme_format::directory::Directory;
use perf::client::Connection;
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::UNIX_EPOCH;
use wire::messages::create_topics_request::CreatableTopic;
use wire::messages::fetch_request::{FetchPartition, FetchTopic};
use wire::messages::metadata_request::MetadataRequestTopic;
use wire::messages::produce_request::{PartitionProduceData, TopicProduceData};
use wire::messages::{CreateTopicsRequest, DeleteTopicsRequest, FetchRequest, MetadataRequest, ProduceRequest};
use wire::{ErrorCode, KafkaString};

const STORAGE_ERROR: i16 = ErrorCode::KafkaStorageError.code();
const PARTITIONS: i32 = 3;
/// The one that is damaged.
const VICTIM: i32 = 1;
const TOPIC: &str = "held";

/// What a partition holds, by offset.
type Values = Vec<Vec<u8>>;

/// A node's directory, and what its topic's partitions hold by acknowledgements.
struct Site {
    _folder: Folder,
    data: PathBuf,
    random: Random,
    held: Vec<Values>,
}

impl Site {
    fn new(seed: u64) -> Site {
        let folder = Folder::new();
        let data = folder.0.join("data");
        Site { _folder: folder, data, random: Random::from_seed(seed), held: vec![Values::new(); PARTITIONS as usize] }
    }

    fn start(&self) -> Running {
        Running::start(&self.data, &[]).ready()
    }

    fn produce(&mut self, node: &mut Connection, index: i32, size: usize) {
        let mut value = vec![0; size];
        self.random.fill(&mut value);
        let offset = produce(node, index, &value).expect("acknowledged");
        let held = &mut self.held[index as usize];
        assert_eq!(offset, held.len() as i64);
        held.push(value);
    }

    fn fill(&mut self, node: &mut Connection, sizes: &[usize]) {
        for size in sizes {
            (0..PARTITIONS).for_each(|index| self.produce(node, index, *size));
        }
    }

    /// A partition takes a record more, and gives everything it holds.
    fn serves(&mut self, node: &mut Connection, index: i32) {
        self.produce(node, index, 700);
        assert!(read(node, index, 0) == Ok(self.numbered(index)), "partition {index} is not what it was");
    }

    /// What a partition holds, with offsets.
    fn numbered(&self, index: i32) -> Vec<(i64, Vec<u8>)> {
        (0..).zip(self.held[index as usize].iter().cloned()).collect()
    }

    /// The victim is refused, the others are served.
    fn serves_all_but_the_victim(&mut self) {
        let mut running = self.start();
        let mut node = running.client();
        assert_eq!(produce(&mut node, VICTIM, b"refused"), Err(STORAGE_ERROR));
        assert_eq!(read(&mut node, VICTIM, 0), Err(STORAGE_ERROR));
        (0..PARTITIONS).filter(|index| *index != VICTIM).for_each(|index| self.serves(&mut node, index));
        assert!(running.log().contains("not served until repaired"), "{}", running.log());
        assert!(running.stop().success());
    }

    /// All are served after a repair; the last check finds nothing.
    fn serves_all(&mut self) {
        let mut running = self.start();
        let mut node = running.client();
        (0..PARTITIONS).for_each(|index| self.serves(&mut node, index));
        assert!(running.stop().success());
        self.is_clean();
    }

    fn tool(&self, words: &[&str]) -> (i32, String) {
        let (name, rest) = words.split_first().expect("a tool");
        let output = Command::new(env!("CARGO_BIN_EXE_pollux")).arg(name).arg(&self.data).args(rest).output();
        let output = output.expect("it runs");
        let (out, log) = (String::from_utf8(output.stdout).expect("text"), String::from_utf8_lossy(&output.stderr));
        (output.status.code().unwrap_or_else(|| panic!("{words:?} was killed: {log}")), out)
    }

    fn check(&self) -> (i32, Value) {
        let (code, out) = self.tool(&["check", "--json"]);
        (code, serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}")))
    }

    fn is_clean(&self) {
        let (code, report) = self.check();
        assert_eq!((code, &report["status"]), (0, &Value::from("clean")), "{report}");
    }

    fn dump(&self, what: &str) -> Vec<Value> {
        let (code, out) = self.tool(&["dump", what, "--json"]);
        assert_eq!(code, 0, "{what}");
        out.lines().map(|line| serde_json::from_str(line).expect("an object a line")).collect()
    }

    /// What check says of a namespace in which only the victim is suspect, and that a repair gives up just that.
    fn is_repaired(&mut self, victim: &str, from: i64) {
        let (code, report) = self.check();
        assert_eq!(code, 2, "{report}");
        let suspects = report["suspects"].as_array().expect("a list");
        assert_eq!(suspects.len(), 1, "{report}");
        assert_eq!((&suspects[0]["partition"], &suspects[0]["from"]), (&victim.into(), &from.into()), "{report}");
        let (code, plan) = self.tool(&["repair"]);
        assert!(code == 2 && plan.contains(victim) && plan.contains("nothing was changed"), "{plan}");
        let (code, done) = self.tool(&["repair", "--accept-loss"]);
        assert!(code == 0 && done.contains("given up:") && done.contains(victim), "{done}");
        assert_eq!(done.matches("partition ").count(), 1, "{done}");
        let audit = std::fs::read_to_string(self.data.join("repair.log")).expect("written");
        assert!(audit.contains(victim), "{audit}");
        self.is_clean();
    }

    fn flip(&self, block: u64, byte: usize) {
        let file = File::options().read(true).write(true).open(self.data.join("namespace")).expect("a namespace");
        let at = block * BLOCK_SIZE as u64 + byte as u64;
        let mut bytes = [0];
        file.read_exact_at(&mut bytes, at).expect("read");
        file.write_all_at(&[bytes[0] ^ 0x10], at).expect("written");
    }

    fn bytes(&self, block: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let file = File::open(self.data.join("namespace")).expect("a namespace");
        file.read_exact_at(&mut bytes, block * BLOCK_SIZE as u64).expect("read");
        bytes
    }
}

fn create(node: &mut Connection) {
    let topic = CreatableTopic {
        name: KafkaString::from(TOPIC),
        num_partitions: PARTITIONS,
        replication_factor: 1,
        ..Default::default()
    };
    let request = CreateTopicsRequest { topics: vec![topic], timeout_ms: 30_000, ..Default::default() };
    assert_eq!(node.call(7, &request).expect("answered").topics[0].error_code, 0);
}

/// The name of a partition as the tools say it.
fn name(node: &mut Connection, index: i32) -> String {
    let topic = MetadataRequestTopic { name: Some(TOPIC.into()), ..Default::default() };
    let request = MetadataRequest { topics: Some(vec![topic]), ..Default::default() };
    let answer = node.call(12, &request).expect("answered");
    format!("{}-{index}", answer.topics[0].topic_id)
}

/// A node that was just started may not lead yet; any other word is its last.
fn is_last_word(code: i16) -> bool {
    let not_yet = [ErrorCode::NotLeaderOrFollower, ErrorCode::UnknownTopicOrPartition, ErrorCode::LeaderNotAvailable];
    !not_yet.iter().any(|error| error.code() == code)
}

fn produce(node: &mut Connection, index: i32, value: &[u8]) -> Result<i64, i16> {
    let mut builder = BatchBuilder::new();
    let wall = UNIX_EPOCH.elapsed().expect("a clock past 1970").as_millis() as i64;
    builder.append(WallMillis(wall), None, Some(value), &[]);
    let data = PartitionProduceData { index, records: Some(builder.build().into()), ..Default::default() };
    let topic = TopicProduceData { name: TOPIC.into(), partition_data: vec![data], ..Default::default() };
    let request = ProduceRequest { acks: -1, timeout_ms: 30_000, topic_data: vec![topic], ..Default::default() };
    until("a last word to a produce", || {
        let answer = node.call(9, &request).expect("answered");
        let told = &answer.responses[0].partition_responses[0];
        let result = if told.error_code == 0 { Ok(told.base_offset) } else { Err(told.error_code) };
        is_last_word(told.error_code).then_some(result)
    })
}

/// The records from an offset up to the high watermark.
fn read(node: &mut Connection, index: i32, from: i64) -> Result<Vec<(i64, Vec<u8>)>, i16> {
    let (mut found, mut next) = (Vec::new(), from);
    loop {
        let partition =
            FetchPartition { partition: index, fetch_offset: next, partition_max_bytes: 1 << 20, ..Default::default() };
        let topic = FetchTopic { topic: TOPIC.into(), partitions: vec![partition], ..Default::default() };
        let request = FetchRequest { min_bytes: 0, max_bytes: 1 << 20, topics: vec![topic], ..Default::default() };
        let told = until("a last word to a fetch", || {
            let answer = node.call(11, &request).expect("answered");
            let told = answer.responses[0].partitions[0].clone();
            is_last_word(told.error_code).then_some(told)
        });
        if told.error_code != 0 {
            return Err(told.error_code);
        }
        for view in Batches::new(&told.records.unwrap_or_default()).map_while(Result::ok) {
            for record in Records::new(view.body(), view.records_count()) {
                let record = record.expect("a good record");
                let offset = view.header().offset_at(record.offset_delta).0;
                if offset >= next {
                    found.push((offset, record.value.expect("a value").to_vec()));
                    next = offset + 1;
                }
            }
        }
        if next >= told.high_watermark {
            return Ok(found);
        }
    }
}

/// Ends a node as a crash of its machine's processes does: nothing is stopped cleanly.
fn kill(mut node: Running) {
    let parts = ["dataplane", "controlplane"].map(|part| node.part(part).expect("it runs"));
    // So that it starts none anew.
    signal(node.child.id(), Signal::STOP);
    parts.iter().for_each(|pid| signal(*pid, Signal::KILL));
    signal(node.child.id(), Signal::KILL);
    node.wait_end();
    parts.iter().for_each(|pid| until("the end of a child", || (!is_alive(*pid)).then_some(())));
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("no {name} in {value}"))
}

#[test]
fn a_whole_namespace_is_clean_and_its_partition_moves_to_a_new_node() {
    let mut site = Site::new(1);
    let running = site.start();
    let mut node = running.client();
    create(&mut node);
    site.fill(&mut node, &[300, 20_000, 900, 70_000]);
    let moved = name(&mut node, VICTIM);
    let (code, _) = site.tool(&["check"]);
    assert_eq!(code, 4, "a namespace in use is not checked");
    kill(running);
    // Its epochs are beyond those of the node that it moves to.
    let mut running = site.start();
    site.fill(&mut running.client(), &[800]);
    assert!(running.stop().success());
    site.is_clean();
    let (code, text) = site.tool(&["check"]);
    assert!(code == 0 && text.contains("finds 3 partitions, 0 of them suspect"), "{text}");
    for (what, kinds) in [
        ("superblock", &["superblock", "superblock-copy"][..]),
        ("regions", &["region", "slabs"]),
        ("roots", &["root"]),
        ("lanes", &["end"]),
        ("lane=0", &["end"]),
        ("partitions", &["partition", "segment", "extent"]),
        (&moved, &["batch"]),
    ] {
        let dumped = site.dump(what);
        let found: BTreeSet<&str> = dumped.iter().filter_map(|line| line["kind"].as_str()).collect();
        assert!(kinds.iter().all(|kind| found.contains(kind)), "{what}: {found:?}");
    }
    let partitions = site.dump("partitions");
    let line = partitions.iter().find(|line| line["kind"] == "partition" && line["partition"] == moved.as_str());
    let line = line.expect("it is named");
    assert_eq!((number(line, "log_start"), number(line, "end")), (0, 5), "{line}");
    let batches = site.dump(&moved);
    assert!(batches.len() == 5 && number(&batches[4], "epoch") > 0, "{batches:?}");

    let segment = site.data.join("00000000000000000000.log");
    let segment = segment.to_str().expect("a path in text");
    let (code, done) = site.tool(&["export", &moved, segment]);
    assert!(code == 0 && done.contains("\"batches\":5"), "{done}");
    let mut other = Site::new(2);
    let mut running = other.start();
    let mut node = running.client();
    create(&mut node);
    other.produce(&mut node, 0, 100);
    let (empty, full) = (name(&mut node, VICTIM), name(&mut node, 0));
    assert!(running.stop().success());
    assert_eq!(other.tool(&["import", &full, segment]).0, 4, "what has records is not written over");
    let (code, done) = other.tool(&["import", &empty, segment]);
    assert!(code == 0 && done.contains("\"batches\":5"), "{done}");
    other.is_clean();
    other.held[VICTIM as usize] = site.held[VICTIM as usize].clone();
    other.serves_all();
}

#[test]
fn a_journal_damaged_behind_a_stated_commit_costs_the_partition_it_named() {
    let mut site = Site::new(3);
    let running = site.start();
    let mut node = running.client();
    create(&mut node);
    site.fill(&mut node, &[300, 20_000, 900]);
    let victim = name(&mut node, VICTIM);
    site.produce(&mut node, VICTIM, 500);
    // Later records prove the others, and their commits state the victim's durable.
    for index in (0..PARTITIONS).filter(|index| *index != VICTIM) {
        site.produce(&mut node, index, 500);
        site.produce(&mut node, index, 500);
    }
    kill(running);
    let (code, report) = site.check();
    assert_eq!((code, &report["status"]), (1, &Value::from("recoverable")), "{report}");
    let lanes = site.dump("lanes");
    let append = |line: &&Value| line["kind"] == "append-inline" && line["partition"] == victim.as_str();
    let last = lanes.iter().rfind(append).expect("its last append");
    let commit = |line: &&Value| line["kind"] == "commit" && line["sequence"] == last["sequence"];
    let commit = lanes.iter().find(commit).expect("its commit");
    let regions = site.dump("regions");
    let ring = format!("lane {}", number(commit, "lane"));
    let ring = regions.iter().find(|region| region["name"] == ring.as_str()).expect("its ring");
    site.flip(number(ring, "block") + number(commit, "position") % number(ring, "blocks"), 300);

    let lost = site.held[VICTIM as usize].len() - 1;
    let (code, report) = site.check();
    assert_eq!(code, 2, "{report}");
    site.serves_all_but_the_victim();
    site.is_repaired(&victim, lost as i64);
    site.held[VICTIM as usize].truncate(lost);
    site.serves_all();
}

#[test]
fn a_damaged_blob_of_the_checkpoints_costs_its_partition() {
    let mut site = Site::new(4);
    let mut running = site.start();
    let mut node = running.client();
    create(&mut node);
    site.fill(&mut node, &[300, 20_000, 900]);
    let victim = name(&mut node, VICTIM);
    assert!(running.stop().success());
    // Both checkpoints of another run have it.
    let mut running = site.start();
    site.fill(&mut running.client(), &[400]);
    assert!(running.stop().success());
    let mut places = BTreeSet::new();
    for root in site.dump("roots").iter().filter(|root| root["state"] == "whole") {
        let len = number(root, "directory_bytes") as usize;
        if len == 0 {
            continue;
        }
        let shard = ShardId(number(root, "shard") as u16);
        let directory = Directory::decode(&site.bytes(number(root, "directory"), len), shard).expect("a directory");
        let of_victim = directory.partitions.iter().find(|(id, _)| id.to_string() == victim);
        places.extend(of_victim.map(|(_, place)| (place.block.0, usize::from(place.at))));
    }
    assert!(!places.is_empty(), "a checkpoint has it");
    places.iter().for_each(|(block, at)| site.flip(*block, at + 40));

    let (code, report) = site.check();
    assert_eq!(code, 2, "{report}");
    site.serves_all_but_the_victim();
    site.is_repaired(&victim, 0);
    site.held[VICTIM as usize].clear();
    site.serves_all();
}

/// No opening reads extents: the partition is served but for the place, as with a replica that has it; an operator who
/// has none gives the place up, and readers go on behind it.
#[test]
fn a_damaged_extent_is_refused_there_until_its_offsets_are_given_up() {
    let mut site = Site::new(5);
    let mut running = site.start();
    let mut node = running.client();
    create(&mut node);
    site.fill(&mut node, &[300, 40_000, 40_000, 900]);
    let victim = name(&mut node, VICTIM);
    assert!(running.stop().success());
    let partitions = site.dump("partitions");
    let extent = |line: &&Value| line["kind"] == "extent" && line["partition"] == victim.as_str();
    let extent = partitions.iter().find(extent).expect("it has extents");
    site.flip(number(extent, "block") + 2, 100);

    let (code, report) = site.check();
    assert_eq!(code, 3, "{report}");
    let findings = report["findings"].as_array().expect("a list");
    assert!(findings.iter().all(|finding| finding["partition"] == victim.as_str()), "{report}");
    let (code, plan) = site.tool(&["repair", "--accept-loss"]);
    assert!(code == 0 && plan.contains("nothing has to be given up"), "{plan}");
    let mut running = site.start();
    let mut node = running.client();
    assert_eq!(read(&mut node, VICTIM, 0), Err(STORAGE_ERROR));
    site.produce(&mut node, VICTIM, 600);
    assert!(read(&mut node, VICTIM, 3).as_deref() == Ok(&site.numbered(VICTIM)[3..]), "what lies behind it is served");
    (0..PARTITIONS).filter(|index| *index != VICTIM).for_each(|index| site.serves(&mut node, index));
    assert!(running.stop().success());

    let (code, plan) = site.tool(&["repair", "--extents"]);
    assert!(code == 2 && plan.contains(&victim) && plan.contains("nothing was changed"), "{plan}");
    let (code, done) = site.tool(&["repair", "--extents", "--accept-loss", "--json"]);
    assert_eq!(code, 0, "{done}");
    let done: Value = serde_json::from_str(&done).expect("an object");
    let [loss] = &done["losses"].as_array().expect("a list")[..] else { panic!("{done}") };
    assert_eq!((&loss["what"], &loss["partition"]), (&"offsets".into(), &victim.as_str().into()), "{done}");
    let (from, to) = (number(loss, "from") as i64, number(loss, "to") as i64);
    assert!(from < to && to <= 3, "{done}");
    site.is_clean();
    let (_, report) = site.check();
    assert_eq!(report["given_up"][0]["from"].as_i64(), Some(from), "{report}");

    let mut running = site.start();
    let mut node = running.client();
    site.produce(&mut node, VICTIM, 700);
    let left: Vec<_> = site.numbered(VICTIM).into_iter().filter(|(offset, _)| !(from..to).contains(offset)).collect();
    assert!(read(&mut node, VICTIM, 0).as_ref() == Ok(&left), "all but what was given up");
    assert!(read(&mut node, VICTIM, from).as_deref() == Ok(&left[from as usize..]), "readers go on behind it");
    (0..PARTITIONS).filter(|index| *index != VICTIM).for_each(|index| site.serves(&mut node, index));
    let request = DeleteTopicsRequest { topic_names: vec![TOPIC.into()], timeout_ms: 30_000, ..Default::default() };
    assert_eq!(node.call(5, &request).expect("answered").responses[0].error_code, 0);
    create(&mut node);
    assert!(running.stop().success());
    site.held.iter_mut().for_each(Values::clear);
    site.serves_all();
}
