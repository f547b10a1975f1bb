//! Against Apache Kafka itself: a node starts on the metadata that Apache's controller wrote, and Apache's on a copy of
//! ours. Needs Java and KAFKA_LIBS, the folder of Apache Kafka's jars.

mod common;

use base::{NodeId, Now, WallMillis};
use common::disk::MemoryDisk;
use common::plane::Plane;
use common::{World, options};
use pollux_node::{End, Event};
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use wire::messages::CreateTopicsRequest;
use wire::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};

const PATIENCE: Duration = Duration::from_secs(120);
const TOPICS: usize = 3;

fn libs() -> Option<String> {
    let libs = std::env::var("KAFKA_LIBS").ok().filter(|libs| !libs.is_empty());
    if libs.is_none() {
        println!("skipped: KAFKA_LIBS names no folder of Apache Kafka's jars");
    }
    libs.map(|libs| format!("{libs}/*"))
}

fn java(libs: &str, class: &str, args: &[&str]) -> Result<String, String> {
    let output = Command::new("java").args(["-cp", libs, class]).args(args).output().expect("java runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() { Ok(text) } else { Err(format!("{text}{}", String::from_utf8_lossy(&output.stderr))) }
}

struct TempDir(PathBuf);

impl TempDir {
    fn new(name: &str) -> TempDir {
        let path = std::env::temp_dir().join(format!("pollux-node-{name}-{}", std::process::id()));
        let _nothing_there = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        TempDir(path)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _left_behind = fs::remove_dir_all(&self.0);
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A broker of Apache's on a directory.
struct Apache {
    child: Child,
    bootstrap: String,
    log: PathBuf,
}

impl Apache {
    fn properties(dir: &Path) -> (PathBuf, String) {
        let (port, controller) = (free_port(), free_port());
        let path = dir.join("server.properties");
        let data = dir.join("data");
        let text = format!(
            "process.roles=broker,controller\nnode.id=1\nlisteners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n\
             controller.listener.names=CONTROLLER\ncontroller.quorum.bootstrap.servers=127.0.0.1:{controller}\nlog.dirs={}\n\
             listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\noffsets.topic.replication.factor=1\n\
             metadata.log.max.record.bytes.between.snapshots=2000\n",
            data.display()
        );
        fs::write(&path, text).unwrap();
        (path, format!("127.0.0.1:{port}"))
    }

    fn start(libs: &str, dir: &Path) -> Apache {
        let (properties, bootstrap) = Apache::properties(dir);
        Apache::start_with(libs, dir, &properties, bootstrap)
    }

    fn start_with(libs: &str, dir: &Path, properties: &Path, bootstrap: String) -> Apache {
        let log = dir.join("broker.log");
        let out = fs::File::create(&log).unwrap();
        let child = Command::new("java")
            .args(["-Xmx512m", "-cp", libs, "kafka.Kafka"])
            .arg(properties)
            .stdout(Stdio::from(out.try_clone().unwrap()))
            .stderr(Stdio::from(out))
            .spawn()
            .expect("java runs");
        Apache { child, bootstrap, log }
    }

    /// Runs a tool until it succeeds: the broker may still be starting.
    fn tool(&mut self, libs: &str, class: &str, args: &[&str]) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let all: Vec<&str> =
                ["--bootstrap-server", &self.bootstrap].into_iter().chain(args.iter().copied()).collect();
            match java(libs, class, &all) {
                Ok(text) => return text,
                Err(text) => {
                    let log = fs::read_to_string(&self.log).unwrap_or_default();
                    assert!(self.child.try_wait().unwrap().is_none(), "the broker has ended: {log}");
                    assert!(Instant::now() < deadline, "{class} {args:?}: {text}\n{log}");
                }
            }
        }
    }

    fn stop(mut self) {
        let status = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
        self.child.wait().unwrap();
    }
}

impl Drop for Apache {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

fn now() -> Now {
    Now { monotonic: base::Monotonic(1), wall: WallMillis(1_800_000_000_000) }
}

#[test]
fn a_node_starts_on_what_apaches_controller_wrote() {
    let Some(libs) = libs() else { return };
    let dir = TempDir::new("from-apache");
    let (properties, bootstrap) = Apache::properties(&dir.0);
    let properties_path = properties.to_str().unwrap();
    let mut format = vec!["format", "--standalone", "-t", common::CLUSTER, "-c", properties_path];
    // Levels whose APIs are not served here yet are not finalized.
    for feature in ["group.version=0", "transaction.version=0", "share.version=0", "streams.version=0"] {
        format.extend(["--feature", feature]);
    }
    java(&libs, "kafka.tools.StorageTool", &format).unwrap();
    let mut apache = Apache::start_with(&libs, &dir.0, &properties, bootstrap);
    for number in 0..TOPICS {
        let name = format!("topic-{number}");
        let args = ["--create", "--topic", &name, "--partitions", "4", "--config", "retention.ms=12345"];
        apache.tool(&libs, "org.apache.kafka.tools.TopicCommand", &args);
    }
    let args = ["--alter", "--entity-type", "brokers", "--entity-default", "--add-config", "message.max.bytes=2000000"];
    apache.tool(&libs, "org.apache.kafka.tools.ConfigCommand", &args);
    apache.stop();

    let disk = MemoryDisk::read_from(&dir.0.join("data"));
    let snapshots = disk.names().filter(|name| name.ends_with(".checkpoint")).count();
    assert!(snapshots > 1, "Apache wrote a snapshot of its own");
    let meta = quorum::read_meta(&disk).unwrap().expect("it is formatted");
    let mut world = World::start(options(&[]), disk, now()).expect("a directory of one voter");
    // A node's data directory has the id of its metadata directory, which the partitions are assigned to.
    let mut plane = Plane::new(1);
    plane.hello.directories = vec![meta.directory_id];
    world.connect(plane);
    world.settle();
    world.pass(Duration::from_secs(12));
    let status = world.status();
    assert!(status.ready, "{status:?} {:?}", world.end);
    assert_eq!((status.topics, status.partitions, status.offline_partitions), (TOPICS, 4 * TOPICS, 0));
    let duty = world.plane().duty("topic-1", 3).clone();
    assert_eq!((duty.leader, duty.config), (Some(NodeId(1)), vec![("retention.ms".to_owned(), "12345".to_owned())]));
    // What is stored of the broker holds, and the cluster goes on.
    let topic = CreatableTopic { name: "more".into(), num_partitions: 1, replication_factor: 1, ..Default::default() };
    let answer = world.ask(7, &CreateTopicsRequest { topics: vec![topic], timeout_ms: 1000, ..Default::default() });
    let configs = answer.topics[0].configs.as_ref().unwrap();
    let largest = configs.iter().find(|config| config.name == "max.message.bytes").unwrap();
    assert_eq!((answer.topics[0].error_code, largest.value.as_deref()), (0, Some("2000000")));
}

#[test]
fn levels_that_are_not_served_are_named() {
    let Some(libs) = libs() else { return };
    let dir = TempDir::new("levels");
    let (properties, bootstrap) = Apache::properties(&dir.0);
    let properties_path = properties.to_str().unwrap();
    let format = ["format", "--standalone", "-t", common::CLUSTER, "-c", properties_path];
    java(&libs, "kafka.tools.StorageTool", &format).unwrap();
    let new = World::start(options(&[]), MemoryDisk::read_from(&dir.0.join("data")), now()).unwrap();
    assert!(matches!(&new.end, Some(End::Fault(why)) if why.contains("was formatted with")), "{:?}", new.end);
    let mut apache = Apache::start_with(&libs, &dir.0, &properties, bootstrap);
    apache.tool(&libs, "org.apache.kafka.tools.TopicCommand", &["--create", "--topic", "t"]);
    apache.stop();
    let mut used = World::start(options(&[]), MemoryDisk::read_from(&dir.0.join("data")), now()).unwrap();
    used.connect(Plane::new(1));
    used.settle();
    assert!(matches!(&used.end, Some(End::Fault(why)) if why.contains("group.version")), "{:?}", used.end);
}

#[test]
fn apaches_controller_starts_on_a_copy_of_ours() {
    let Some(libs) = libs() else { return };
    let dir = TempDir::new("to-apache");
    let small = options(&["metadata.log.max.record.bytes.between.snapshots=1000"]);
    let mut world = World::start(small, common::formatted(), now()).unwrap();
    world.connect(Plane::new(1));
    world.settle();
    for number in 0..TOPICS {
        let config =
            CreatableTopicConfig { name: "retention.ms".into(), value: Some("12345".into()), ..Default::default() };
        let topic = CreatableTopic {
            name: format!("topic-{number}").into(),
            num_partitions: 4,
            replication_factor: 1,
            configs: vec![config],
            ..Default::default()
        };
        let answer = world.ask(7, &CreateTopicsRequest { topics: vec![topic], timeout_ms: 1000, ..Default::default() });
        assert_eq!(answer.topics[0].error_code, 0);
    }
    assert!(world.status().latest_snapshot.is_some_and(|at| at > 0));
    world.event(Event::Stop);
    world.settle();
    world.pass(Duration::from_secs(1));
    assert_eq!(world.end, Some(End::Stopped));

    world.disk.write_to(&dir.0.join("data"));
    let mut apache = Apache::start(&libs, &dir.0);
    let text = apache.tool(&libs, "org.apache.kafka.tools.TopicCommand", &["--describe"]);
    for number in 0..TOPICS {
        let line = text.lines().find(|line| line.contains(&format!("Topic: topic-{number}\t")));
        let line = line.unwrap_or_else(|| panic!("topic-{number} is not in {text}"));
        assert!(line.contains("PartitionCount: 4") && line.contains("retention.ms=12345"), "{line}");
    }
    apache.tool(&libs, "org.apache.kafka.tools.TopicCommand", &["--create", "--topic", "more"]);
    let text = apache.tool(&libs, "org.apache.kafka.tools.MetadataQuorumCommand", &["describe", "--status"]);
    assert!(text.contains("LeaderId:") && text.contains(common::CLUSTER), "{text}");
    apache.stop();
}
