//! How a node starts, refuses to, and ends.

mod common;

use common::*;
use perf::client::CallError;
use rustix::process::Signal;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use wire::messages::fetch_request::{FetchPartition, FetchTopic};
use wire::messages::{ApiVersionsRequest, FetchRequest};

/// A stop is bounded: the supervisor kills what takes longer than 30 s.
const STOP_TIME_MAX: Duration = Duration::from_secs(30);

fn pids(node: &Running) -> [u32; 2] {
    ["dataplane", "controlplane"].map(|part| node.part(part).expect("it runs"))
}

#[test]
fn the_children_end_with_a_supervisor_that_is_killed() {
    let folder = Folder::new();
    let mut node = Running::start(&folder.0.join("data"), &[]).ready();
    let children = pids(&node);
    signal(node.child.id(), Signal::KILL);
    node.wait_end();
    for pid in children {
        until("the end of a child", || (!is_alive(pid)).then_some(()));
    }
    // Nothing of it is in the way of the next start.
    let mut next = Running::start(&folder.0.join("data"), &[]).ready();
    assert!(next.stop().success());
}

#[test]
fn a_stop_answers_what_waits_and_leaves_a_clean_namespace() {
    let folder = Folder::new();
    let mut node = Running::start(&folder.0.join("data"), &[]).ready();
    node.produce("stopped", 200.0, 0.5);
    let mut client = node.client();
    let partition = FetchPartition { partition: 0, fetch_offset: 100_000_000, ..Default::default() };
    let waiting = FetchPartition { fetch_offset: 100, partition_max_bytes: 1 << 20, ..partition };
    let topic = FetchTopic { topic: "stopped".into(), partitions: vec![waiting], ..Default::default() };
    let fetch = FetchRequest {
        max_wait_ms: 3_600_000,
        min_bytes: 1 << 30,
        max_bytes: 1 << 20,
        topics: vec![topic],
        ..Default::default()
    };
    let correlation = client.send(11, &fetch).expect("sent");
    // An answer on a second connection says that the first one's request is known to the node.
    node.client().call(3, &ApiVersionsRequest::default()).expect("served");
    let start = Instant::now();
    signal(node.child.id(), Signal::TERM);
    match client.receive::<FetchRequest>(11, correlation) {
        Ok(answer) => assert_eq!(answer.error_code, 0),
        // A fetch that waits for more may be left: its client asks the next node.
        Err(CallError::Closed) => {}
        Err(other) => panic!("{other}"),
    }
    assert!(node.wait_end().success());
    assert!(start.elapsed() < STOP_TIME_MAX, "{:?}", start.elapsed());
    let mut next = Running::start(&folder.0.join("data"), &[]).ready();
    assert!(next.log().contains("recovered clean=true first=false"), "{}", next.log());
    assert!(next.stop().success());
}

/// The control plane waits for a dataplane that does not answer, and neither may take the other's time.
#[test]
fn a_stop_is_bounded_though_the_dataplane_is_frozen() {
    let folder = Folder::new();
    let mut node = Running::start(&folder.0.join("data"), &[]).ready();
    node.produce("kept", 200.0, 0.3);
    signal(node.part("dataplane").expect("it runs"), Signal::STOP);
    let start = Instant::now();
    signal(node.child.id(), Signal::TERM);
    node.wait_end();
    assert!(start.elapsed() < STOP_TIME_MAX + Duration::from_secs(5), "{:?}", start.elapsed());
    assert!(node.log().contains("did not stop in time"), "{}", node.log());
    let mut next = Running::start(&folder.0.join("data"), &[]).ready();
    assert!(next.stop().success());
}

#[test]
fn two_starts_on_one_directory_are_one_too_many() {
    let folder = Folder::new();
    let mut first = Running::start(&folder.0.join("data"), &[]).ready();
    let mut second = Running::start(&folder.0.join("data"), &[]);
    assert!(!second.wait_end().success());
    // Both halves wait for the holder to go; the first to give up names whom it waited for.
    let holders = pids(&first);
    let log = second.log();
    let named = holders.iter().any(|pid| log.contains(&format!("process {pid}")));
    assert!(named, "it names the holder, one of {holders:?}: {log}");
    // The first one never noticed.
    first.produce("undisturbed", 100.0, 0.3);
    assert!(first.stop().success());
}

#[test]
fn a_port_that_is_taken_ends_the_start_with_its_name() {
    let folder = Folder::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("bound").port();
    let (_, free) = ports();
    let mut node = Running::start_on(&folder.0.join("data"), port, free, &[]);
    assert!(!node.wait_end().success());
    assert!(node.log().contains(&format!("127.0.0.1:{port}")), "{}", node.log());
    let mut node = Running::start_on(&folder.0.join("other"), free, port, &[]);
    assert!(!node.wait_end().success());
    assert!(node.log().contains(&format!("metrics on 127.0.0.1:{port}")), "{}", node.log());
}

#[test]
fn a_namespace_of_another_node_is_refused_naming_both() {
    let folder = Folder::new();
    for name in ["a", "b"] {
        let mut node = Running::start(&folder.0.join(name), &[]).ready();
        assert!(node.stop().success());
    }
    fs::copy(folder.0.join("a/namespace"), folder.0.join("b/namespace")).expect("copied");
    let cluster = |name: &str| {
        let text = fs::read_to_string(folder.0.join(name).join("controlplane/meta.properties")).expect("formatted");
        text.lines().find_map(|line| line.strip_prefix("cluster.id=")).expect("an id").to_owned()
    };
    let mut node = Running::start(&folder.0.join("b"), &[]);
    assert!(!node.wait_end().success());
    for name in ["a", "b"] {
        assert!(node.log().contains(&cluster(name)), "{}", node.log());
    }
}

#[test]
fn a_namespace_that_is_gone_is_asked_for_and_never_made_anew() {
    let folder = Folder::new();
    let data = folder.0.join("data");
    let mut node = Running::start(&data, &[]).ready();
    node.produce("kept", 200.0, 0.3);
    assert!(node.stop().success());
    let (namespace, kept) = (data.join("namespace"), data.join("kept"));
    fs::rename(&namespace, &kept).expect("renamed");
    for emptied in [false, true] {
        if emptied {
            fs::write(&namespace, []).expect("an empty file");
        }
        let mut node = Running::start(&data, &[]);
        assert_eq!(node.wait_end().code(), Some(65), "it is not started again and again");
        let log = node.log();
        assert!(log.contains("missing or empty") && log.contains("put it back"), "{log}");
        assert_eq!(namespace.exists(), emptied, "nothing was made");
        assert!(fs::metadata(&namespace).map_or(0, |found| found.len()) == 0, "and nothing was written");
    }
    fs::rename(&kept, &namespace).expect("put back");
    let mut node = Running::start(&data, &[]).ready();
    let partition = FetchPartition { partition_max_bytes: 1 << 20, ..Default::default() };
    let topic = FetchTopic { topic: "kept".into(), partitions: vec![partition], ..Default::default() };
    let fetch = FetchRequest { max_bytes: 1 << 20, topics: vec![topic], ..Default::default() };
    let answer = node.client().call(11, &fetch).expect("served");
    assert!(answer.responses[0].partitions[0].records.as_ref().is_some_and(|records| !records.is_empty()));
    assert!(node.stop().success());
}

/// A process that dies meanwhile finds nothing, and makes nothing: a node without its records would serve.
#[test]
fn a_directory_that_is_taken_away_from_a_running_node_is_waited_for() {
    let folder = Folder::new();
    let (data, moved) = (folder.0.join("data"), folder.0.join("moved"));
    let mut node = Running::start(&data, &[]).ready();
    node.produce("kept", 200.0, 0.3);
    let dies = |node: &Running, part: &str| {
        signal(node.part(part).expect("it runs"), Signal::KILL);
        let told = || node.log().matches("was taken away while the node ran").count();
        let before = told();
        until("two more tries", || (told() >= before + 2).then_some(()));
    };
    let is_ready = |node: &Running| node.http("/ready").filter(|answer| answer.starts_with("HTTP/1.1 200")).map(drop);
    // Only the metadata, with an empty directory in its place.
    let metadata = data.join("controlplane");
    fs::rename(&metadata, &moved).expect("renamed");
    fs::create_dir(&metadata).expect("made");
    dies(&node, "controlplane");
    fs::remove_dir(&metadata).expect("nothing was made in it");
    fs::rename(&moved, &metadata).expect("put back");
    until("readiness", || is_ready(&node));
    // All of it.
    fs::rename(&data, &moved).expect("renamed");
    for part in ["controlplane", "dataplane"] {
        dies(&node, part);
        assert!(!data.exists(), "nothing is made");
    }
    fs::rename(&moved, &data).expect("put back");
    until("readiness", || is_ready(&node));
    node.produce("kept", 200.0, 0.3);
    let partition = FetchPartition { partition_max_bytes: 1 << 20, ..Default::default() };
    let topic = FetchTopic { topic: "kept".into(), partitions: vec![partition], ..Default::default() };
    let fetch = FetchRequest { max_bytes: 1 << 20, topics: vec![topic], ..Default::default() };
    let answer = node.client().call(11, &fetch).expect("served");
    assert_eq!(answer.responses[0].partitions[0].high_watermark, 120, "those of before and those of after");
    assert!(node.stop().success());
}

#[test]
fn cores_that_cannot_be_are_refused_before_anything_is_made() {
    let folder = Folder::new();
    for (cores, told) in [("cores=300", "256 are the most"), ("cores=[9999]", "CPU 9999")] {
        let mut node = Running::start(&folder.0.join("data"), &[cores]);
        assert!(!node.wait_end().success());
        assert!(node.log().contains(told), "{}", node.log());
        assert!(!node.log().contains("panicked"), "{}", node.log());
    }
}

#[test]
fn a_child_that_dies_again_and_again_is_started_with_growing_pauses() {
    let folder = Folder::new();
    let mut node = Running::start(&folder.0.join("data"), &[]).ready();
    let mut last = 0;
    for _ in 0..3 {
        let pid = until("a new control plane", || node.part("controlplane").filter(|pid| *pid != last));
        signal(pid, Signal::KILL);
        last = pid;
    }
    let pauses = until("three pauses", || {
        let log = node.log();
        let of = |line: &str| line.rsplit_once("pause_ms=").and_then(|(_, rest)| rest.trim().parse::<u64>().ok());
        let pauses: Vec<u64> = log.lines().filter_map(of).collect();
        (pauses.len() == 3).then_some(pauses)
    });
    assert_eq!(pauses, [100, 200, 400]);
    until("readiness", || node.http("/ready").filter(|answer| answer.starts_with("HTTP/1.1 200")));
    assert!(node.stop().success());
}

#[test]
fn settings_are_refused_with_the_line_and_the_reason() {
    let folder = Folder::new();
    let file = folder.0.join("pollux.toml");
    let start = |text: &str| {
        fs::write(&file, text).expect("written");
        let mut command = Command::new(env!("CARGO_BIN_EXE_pollux"));
        command.arg("start").arg("--data").arg(folder.0.join("data")).arg("--config").arg(&file);
        let output = command.output().expect("it runs");
        assert_eq!(output.status.code(), Some(78), "{text}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let log = start("[node]\nid = 1\n\n[network]\nlissten = \"127.0.0.1:9092\"\n");
    assert!(log.contains("lissten") && log.contains('5'), "{log}");
    let log = start("[kafka]\n\"num.partitions\" = \"many\"\n");
    assert!(log.contains("num.partitions") && log.contains('2'), "{log}");
    assert!(!folder.0.join("data/namespace").exists(), "nothing was formatted");
}

#[test]
fn a_directory_that_cannot_be_made_is_named() {
    let folder = Folder::new();
    let file = folder.0.join("file");
    fs::write(&file, "no directory").expect("written");
    let mut node = Running::start(&file.join("data"), &[]);
    assert!(!node.wait_end().success());
    let log = node.log();
    assert!(log.contains(&file.join("data").display().to_string()), "{log}");
}

#[test]
fn a_node_in_memory_leaves_nothing_when_it_is_killed() {
    let folder = Folder::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_pollux"));
    command.args(["start", "--ephemeral"]).env("TMPDIR", &folder.0);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    assert!(line.contains("bootstrap"), "{line}");
    let left = || fs::read_dir(&folder.0).expect("the folder").count();
    assert!(left() > 0, "it is here that it keeps its files");
    child.kill().expect("killed");
    child.wait().expect("reaped");
    until("nothing to be left", || (left() == 0).then_some(()));
}

#[test]
fn metadata_that_is_gone_is_not_made_anew_over_a_namespace_with_records() {
    let folder = Folder::new();
    let data = folder.0.join("data");
    let mut node = Running::start(&data, &[]).ready();
    node.produce("kept", 100.0, 0.3);
    assert!(node.stop().success());
    let moved = folder.0.join("elsewhere");
    fs::rename(data.join("controlplane"), &moved).expect("moved");
    let mut node = Running::start(&data, &[]);
    assert_eq!(node.wait_end().code(), Some(65), "{}", node.log());
    assert!(node.log().contains("put the node's controlplane directory back"), "{}", node.log());
    // What it says helps.
    fs::remove_dir_all(data.join("controlplane")).expect("what the refused start left");
    fs::rename(&moved, data.join("controlplane")).expect("moved back");
    let mut node = Running::start(&data, &[]).ready();
    node.produce("kept", 100.0, 0.3);
    assert!(node.stop().success());
    // Without the draw of the first start, ids are not drawn anew.
    let meta = data.join("controlplane/meta.properties");
    let text = fs::read(&meta).expect("it is there");
    fs::remove_file(&meta).expect("removed");
    fs::remove_dir_all(data.join("run")).expect("removed");
    let mut node = Running::start(&data, &[]);
    assert_eq!(node.wait_end().code(), Some(78), "{}", node.log());
    assert!(node.log().contains("has no meta.properties"), "{}", node.log());
    fs::write(&meta, text).expect("put back");
    let mut node = Running::start(&data, &[]).ready();
    assert!(node.stop().success());
}

/// The end of a terminal goes to all of its processes; the supervisor alone takes it, and stops the pair in order.
#[test]
fn the_end_of_a_terminal_is_a_clean_stop_unless_it_was_to_be_survived() {
    let folder = Folder::new();
    let mut node = Running::start(&folder.0.join("data"), &[]).ready();
    node.produce("stopped", 100.0, 0.3);
    signal(node.child.id(), Signal::HUP);
    assert!(node.wait_end().success(), "{}", node.log());
    let mut node = Running::start_under(&folder.0.join("data"), &["nohup"]).ready();
    assert!(node.log().contains("recovered clean=true first=false"), "{}", node.log());
    signal(node.child.id(), Signal::HUP);
    node.produce("stopped", 100.0, 0.3);
    assert!(node.stop().success());
}

/// Else one whose supervisor was killed before it could ask to end with it would hold the node's files for good.
#[test]
fn a_child_whose_supervisor_is_gone_does_not_begin() {
    let folder = Folder::new();
    for part in ["dataplane", "controlplane"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pollux"));
        command.arg(part).arg("--data").arg(folder.0.join("data")).arg("--run-dir").arg(&folder.0);
        // Nobody's parent here.
        let output = command.args(["--supervisor", "2147483647"]).output().expect("it runs");
        assert!(!output.status.success());
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(log.contains("has ended"), "{log}");
        assert!(!folder.0.join("data").exists(), "it made nothing");
    }
}
