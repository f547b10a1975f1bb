//! Against Apache Kafka itself: its tools read what is written here, its broker runs on it, and what its broker wrote is
//! loaded here. Needs Java and KAFKA_LIBS, the folder of Apache Kafka's jars; its shell needs KAFKA_SHELL_LIBS.

mod common;

use base::{LeaderEpoch, NodeId, Now, Offset, Random, Uuid};
use bytes::{BufMut, Bytes, BytesMut};
use common::{Model, at};
use pollux_quorum::files::Files;
use pollux_quorum::{
    Config, DiskJob, Endpoint, Event, FileName, Folder, FormatOptions, KRaftVersionRange, MetaProperties, Outputs,
    Quorum, ReplicaKey, Source, StateName, Voter, VoterSet, Whole, format, read_meta,
};
use std::collections::VecDeque;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use wire::Message;
use wire::messages::{FeatureLevelRecord, NoOpRecord};

const TOPICS: usize = 3;

fn libs() -> Option<String> {
    let libs = std::env::var("KAFKA_LIBS").ok().filter(|libs| !libs.is_empty());
    if libs.is_none() {
        println!("skipped: KAFKA_LIBS names no folder of Apache Kafka's jars");
    }
    libs.map(|libs| format!("{libs}/*"))
}

fn java(libs: &str, class: &str, args: &[&str]) -> String {
    let output = Command::new("java").args(["-cp", libs, class]).args(args).output().expect("java runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{class} {args:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

fn dump(libs: &str, file: &Path) -> String {
    let file = file.to_str().unwrap();
    let args = ["--cluster-metadata-decoder", "--files", file];
    java(libs, "org.apache.kafka.tools.DumpLogSegments", &args)
}

struct TempDir(PathBuf);

impl TempDir {
    fn new(name: &str) -> TempDir {
        let path = std::env::temp_dir().join(format!("pollux-quorum-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        TempDir(path)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A metadata record as Kafka frames it: frame version 1, api key, version, body.
fn framed(api_key: u8, version: u8, body: Bytes) -> Bytes {
    let mut out = BytesMut::new();
    out.put_slice(&[1, api_key, version]);
    out.put_slice(&body);
    out.freeze()
}

fn feature(name: &str, level: i16) -> Bytes {
    let record = FeatureLevelRecord { name: name.into(), feature_level: level, ..Default::default() };
    framed(12, 0, record.to_bytes(0).unwrap())
}

fn no_op() -> Bytes {
    framed(20, 0, NoOpRecord::default().to_bytes(0).unwrap())
}

fn features() -> Vec<Bytes> {
    vec![feature("metadata.version", 33), feature("eligible.leader.replicas.version", 1)]
}

/// A quorum on a real directory, driven on one thread.
struct Node {
    files: Files,
    quorum: Quorum,
    jobs: VecDeque<DiskJob>,
    model: Model,
}

impl Node {
    fn load(path: &Path, controller_port: u16) -> Node {
        let files = Files::open(path).unwrap();
        let meta = read_meta(&files).unwrap().expect("formatted");
        let local = ReplicaKey { id: meta.node_id, directory: Some(meta.directory_id) };
        let mut config = Config::voter(&meta.cluster_id, local, vec![controller(controller_port)]);
        config.log.segment_bytes = 6000;
        let (quorum, _) = Quorum::load(config, &files, at(0), Random::from_seed(3)).unwrap();
        let mut node = Node { files, quorum, jobs: VecDeque::new(), model: Model::default() };
        let out = node.quorum.poll(at(0));
        node.settle(out, at(0));
        node
    }

    fn settle(&mut self, out: Outputs, now: Now) {
        let mut todo = VecDeque::from([out]);
        while let Some(out) = todo.pop_front() {
            assert_eq!(out.fault, None);
            self.jobs.extend(out.jobs);
            out.deliveries.into_iter().for_each(|d| self.model.take(d));
            for read in out.reads {
                let event: Event = self.files.read(read);
                todo.push_back(self.quorum.handle(event, now));
            }
            if todo.is_empty()
                && let Some(job) = self.jobs.pop_front()
            {
                let event = self.files.run(job);
                todo.push_back(self.quorum.handle(event, now));
            }
        }
    }

    fn append(&mut self, records: Vec<Bytes>, now: Now) {
        self.quorum.append(self.quorum.epoch(), records, now).unwrap();
        let out = self.quorum.poll(now);
        self.settle(out, now);
    }

    fn snapshot(&mut self, now: Now) {
        let (id, time) = self.model.last.unwrap();
        self.quorum.begin_snapshot(id, time, now).unwrap();
        let records = self.model.records.clone();
        self.quorum.append_snapshot(&records, now).unwrap();
        self.quorum.finish_snapshot(now).unwrap();
        let out = self.quorum.poll(now);
        self.settle(out, now);
        assert_eq!(self.model.snapshots_written.last(), Some(&id));
    }
}

fn controller(port: u16) -> Endpoint {
    Endpoint { listener: "CONTROLLER".into(), host: "127.0.0.1".into(), port }
}

fn format_here(path: &Path, port: u16) {
    let mut random = Random::from_seed(port.into());
    let directory_id = Uuid::random(&mut random);
    let voter = Voter {
        key: ReplicaKey { id: NodeId(1), directory: Some(directory_id) },
        endpoints: vec![controller(port)],
        versions: KRaftVersionRange::OURS,
    };
    let options = FormatOptions {
        cluster_id: Uuid::random(&mut random).to_string(),
        node_id: NodeId(1),
        directory_id,
        voters: VoterSet::new([voter]),
        bootstrap: features(),
    };
    Files::open(path).unwrap().run_steps(&format(&options, at(0))).unwrap();
}

fn partition_files(path: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(path.join("__cluster_metadata-0")).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn apaches_tool_decodes_our_files() {
    let Some(libs) = libs() else { return };
    let dir = TempDir::new("dump");
    format_here(&dir.0, 19093);
    let mut node = Node::load(&dir.0, 19093);
    node.append(features(), at(10));
    for n in 0..200u64 {
        node.append(vec![no_op(), no_op()], at(20 + n));
    }
    node.snapshot(at(300));
    node.append(vec![no_op()], at(301));
    let (mut logs, mut indexes, mut snapshots) = (0, 0, 0);
    for file in partition_files(&dir.0) {
        let name = file.file_name().unwrap().to_str().unwrap();
        let text = match FileName::parse(Folder::Partition, name) {
            Some(FileName::Log(base)) => {
                logs += 1;
                let text = dump(&libs, &file);
                if base == Offset(0) {
                    for expected in
                        ["LeaderChange", "KRaftVersion", "KRaftVoters", "FEATURE_LEVEL_RECORD", "NO_OP_RECORD"]
                    {
                        assert!(text.contains(expected), "{expected} is not in {text}");
                    }
                }
                text
            }
            Some(FileName::Index(_) | FileName::TimeIndex(_)) => {
                indexes += 1;
                dump(&libs, &file)
            }
            Some(FileName::Snapshot(_)) => {
                snapshots += 1;
                let text = dump(&libs, &file);
                assert!(text.contains("SnapshotHeader") && text.contains("SnapshotFooter"), "{text}");
                text
            }
            _ => continue,
        };
        for complaint in ["isvalid: false", "Mismatches", "Exception", "non-consecutive", "out of order", "invalid"] {
            assert!(!text.contains(complaint), "{name}: {text}");
        }
    }
    assert!(logs >= 3 && indexes == 2 * logs && snapshots == 2, "{logs} {indexes} {snapshots}");
}

/// The shell's newest jar is of 4.3.0. It runs with 4.4's jars in front and those of 4.3.0 behind them for the classes that
/// have moved; with 4.3.0's alone it shows nothing of a log at 4.4's metadata.version, Apache's own neither.
#[test]
fn apaches_shell_reads_our_snapshot() {
    let Some(libs) = libs() else { return };
    let Some(shell) = std::env::var("KAFKA_SHELL_LIBS").ok().filter(|libs| !libs.is_empty()) else {
        println!("skipped: KAFKA_SHELL_LIBS names no folder of kafka-shell's jars");
        return;
    };
    let dir = TempDir::new("shell");
    format_here(&dir.0, 19094);
    let mut node = Node::load(&dir.0, 19094);
    node.append(features(), at(10));
    node.snapshot(at(20));
    let id = node.quorum.latest_snapshot().unwrap();
    let file = dir.0.join("__cluster_metadata-0").join(FileName::Snapshot(id).to_string());
    let args = ["--snapshot", file.to_str().unwrap(), "ls", "/image/features"];
    let text = java(&format!("{libs}:{shell}/*"), "org.apache.kafka.shell.MetadataShell", &args);
    assert!(text.contains("finalized_eligible.leader.replicas.version"), "{text}");
}

/// Apache's broker, in combined mode.
struct Broker {
    process: Child,
    libs: String,
    port: u16,
}

impl Broker {
    fn properties(path: &Path, port: u16, controller: u16) -> PathBuf {
        let text = format!(
            "process.roles=broker,controller\nnode.id=1\nlisteners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n\
             controller.listener.names=CONTROLLER\nlistener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n\
             controller.quorum.bootstrap.servers=127.0.0.1:{controller}\nlog.dirs={}\noffsets.topic.replication.factor=1\n\
             metadata.log.max.record.bytes.between.snapshots=2000\n",
            path.join("data").display()
        );
        let file = path.join("server.properties");
        fs::write(&file, text).unwrap();
        file
    }

    fn start(libs: &str, path: &Path, port: u16, controller: u16) -> Broker {
        let properties = Broker::properties(path, port, controller);
        let log = fs::File::create(path.join("broker.log")).unwrap();
        let process = Command::new("java")
            .args(["-Xmx512m", "-cp", libs, "kafka.Kafka", properties.to_str().unwrap()])
            .stdout(Stdio::from(log.try_clone().unwrap()))
            .stderr(Stdio::from(log))
            .spawn()
            .unwrap();
        let mut broker = Broker { process, libs: libs.to_owned(), port };
        let deadline = Instant::now() + Duration::from_secs(60);
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            let ended = broker.process.try_wait().unwrap();
            let log = || fs::read_to_string(path.join("broker.log")).unwrap_or_default();
            assert!(ended.is_none() && Instant::now() < deadline, "the broker does not run: {}", log());
            std::thread::sleep(Duration::from_millis(100));
        }
        broker
    }

    fn topics(&self, args: &[&str]) -> String {
        let server = format!("127.0.0.1:{}", self.port);
        let args = [&["--bootstrap-server", &server], args].concat();
        java(&self.libs, "org.apache.kafka.tools.TopicCommand", &args)
    }

    fn stop(mut self) {
        Command::new("kill").arg(self.process.id().to_string()).status().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn what_apaches_broker_wrote_is_loaded_and_given_back() {
    let Some(libs) = libs() else { return };
    let dir = TempDir::new("theirs");
    let (port, controller_port) = (free_port(), free_port());
    let properties = Broker::properties(&dir.0, port, controller_port);
    let args = ["format", "--standalone", "-t", common::CLUSTER, "-c", properties.to_str().unwrap()];
    java(&libs, "kafka.tools.StorageTool", &args);
    let broker = Broker::start(&libs, &dir.0, port, controller_port);
    for n in 0..TOPICS {
        broker.topics(&["--create", "--topic", &format!("theirs{n}"), "--partitions", "5"]);
    }
    broker.stop();

    let data = dir.0.join("data");
    let end = {
        let mut node = Node::load(&data, controller_port);
        assert_eq!(node.quorum.state(), StateName::Leader);
        assert_eq!(node.quorum.epoch(), LeaderEpoch(2));
        assert_eq!(node.model.snapshots_loaded.len(), 1, "their snapshot is loaded");
        let records = &node.model.records;
        let holds = |text: &str| records.iter().any(|r| r.windows(text.len()).any(|w| w == text.as_bytes()));
        assert!((0..TOPICS).all(|n| holds(&format!("theirs{n}"))), "their topics are in what was delivered");
        assert_eq!(node.quorum.bootstrap_records().len(), 6, "their formatting left six records");
        node.append(vec![no_op()], at(1));
        node.quorum.log_end()
    };

    // And back: Apache's controller runs on what was appended here, and knows its topics.
    let broker = Broker::start(&libs, &dir.0, port, controller_port);
    let listed = broker.topics(&["--list"]);
    assert!((0..TOPICS).all(|n| listed.contains(&format!("theirs{n}"))), "{listed}");
    broker.stop();
    let node = Node::load(&data, controller_port);
    assert!(node.quorum.log_end().offset > end.offset);
    assert_eq!(node.quorum.epoch(), LeaderEpoch(4));
}

#[test]
fn apaches_controller_runs_on_our_files() {
    let Some(libs) = libs() else { return };
    let dir = TempDir::new("ours");
    let (port, controller_port) = (free_port(), free_port());
    let data = dir.0.join("data");
    fs::create_dir_all(&data).unwrap();
    format_here(&data, controller_port);
    {
        let mut node = Node::load(&data, controller_port);
        node.append(features(), at(10));
        for n in 0..200u64 {
            node.append(vec![no_op(), no_op()], at(20 + n));
        }
        node.model.records.truncate(2);
        node.snapshot(at(300));
        node.append(vec![no_op()], at(301));
    }
    let broker = Broker::start(&libs, &dir.0, port, controller_port);
    broker.topics(&["--create", "--topic", "ours", "--partitions", "2"]);
    assert!(broker.topics(&["--list"]).contains("ours"));
    broker.stop();
    let node = Node::load(&data, controller_port);
    assert_eq!(node.quorum.epoch(), LeaderEpoch(3));
    assert!(node.model.records.iter().any(|r| r.windows(4).any(|w| w == b"ours")));
    let files = node.files.list().unwrap();
    assert!(files.iter().any(|(f, _)| *f == FileName::Whole(Whole::QuorumState)));
    let meta: MetaProperties = read_meta(&node.files).unwrap().unwrap();
    assert_eq!(meta.node_id, NodeId(1));
}
