//! Data cores have no neighbours: where every thread of a running node may run.

mod common;

use common::*;
use std::fs;

#[derive(Debug)]
struct Thread {
    process: String,
    name: String,
    cpus: Vec<usize>,
    nice: i32,
}

/// "0-2,5" as numbers.
fn cpu_list(text: &str) -> Vec<usize> {
    let number = |text: &str| text.trim().parse::<usize>().expect("a CPU");
    let range = |part: &str| match part.split_once('-') {
        Some((first, last)) => (number(first)..=number(last)).collect(),
        None => vec![number(part)],
    };
    text.split(',').flat_map(range).collect()
}

fn threads(process: &str, pid: u32) -> Vec<Thread> {
    let mut threads = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").flatten() {
        let read = |file: &str| fs::read_to_string(entry.path().join(file)).unwrap_or_default();
        let (status, stat) = (read("status"), read("stat"));
        let field = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        // A thread that ended meanwhile has none.
        let (Some(cpus), Some((_, rest))) = (field, stat.rsplit_once(')')) else { continue };
        let nice = rest.split_whitespace().nth(16).expect("a nice value").parse().expect("a number");
        threads.push(Thread {
            process: process.to_owned(),
            name: read("comm").trim().to_owned(),
            cpus: cpu_list(cpus),
            nice,
        });
    }
    threads
}

#[test]
fn nobody_else_runs_on_a_data_core() {
    let folder = Folder::new();
    let mut node = Running::start(&folder.0.join("data"), &["durability=\"cache\""]).ready();
    // Flushes make the device's workers appear.
    node.produce("placed", 500.0, 0.5);
    let mut all = threads("start", node.child.id());
    for part in ["dataplane", "controlplane"] {
        all.extend(threads(part, node.part(part).expect("it runs")));
    }
    let allowed = rustix::thread::sched_getaffinity(None).expect("an affinity").count() as usize;
    let is_core = |thread: &&Thread| thread.process == "dataplane" && thread.name == "pollux";
    let cores: Vec<&Thread> = all.iter().filter(is_core).collect();
    assert_eq!(cores.len(), 1, "this node has one data core: {all:?}");
    let core = &cores[0].cpus;
    // Whoever runs this test may be nice already.
    let own = rustix::process::getpriority_process(None).expect("a nice value");
    assert_eq!((core.len(), cores[0].nice), (1, own), "it is pinned, and gives way to nobody");
    let others = all.iter().filter(|thread| !is_core(thread));
    for thread in others {
        if allowed > 1 {
            assert!(!thread.cpus.contains(&core[0]), "{thread:?} may run on the data core {core:?}");
        } else if thread.process != "start" && !thread.name.starts_with("iou-") {
            assert!(thread.nice > own, "{thread:?} does not give way to the data core");
        }
    }
    assert!(node.stop().success());
}
