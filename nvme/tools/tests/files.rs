//! The tools on a real file: locks, reading only, dumps, repair in place, a segment out and in again.

mod common;

use base::*;
use common::*;
use nvme_device::{Engine, FileOptions, Medium, OpenOptions};
use pollux_nvme_tools::*;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A file that is removed in the end.
struct Temporary(PathBuf);

impl Temporary {
    fn holding(name: &str, medium: &Medium) -> Temporary {
        let path = std::env::temp_dir().join(format!("pollux-tools-{}-{name}", std::process::id()));
        medium.store(&File::create(&path).expect("created")).expect("written");
        Temporary(path)
    }

    fn medium(&self) -> Medium {
        Medium::load(&File::open(&self.0).expect("opened")).expect("read")
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn lines(path: &Path, what: &str) -> Vec<Line> {
    let mut lines = Vec::new();
    let what: What = what.parse().expect("something that can be dumped");
    dump(path, what, &mut |line| {
        lines.push(line);
        Ok(())
    })
    .expect("dumped");
    lines
}

#[test]
fn reading_tools_change_nothing_and_repair_in_place_serves_again() {
    let medium = history(70, 1).kill();
    let mut damaged = medium.clone();
    let file = Temporary::holding("repair", &medium);
    let report = check(&file.0, CheckOptions::default(), &mut |_| {}).expect("checked");
    assert_eq!(report.status, Status::Recoverable, "{report}");
    assert!(repair(&file.0, RepairOptions::default(), true, 1).expect("nothing to do").losses.is_empty());
    assert_eq!(file.medium(), medium, "nothing was to be repaired, so nothing is written");

    // The first commit that the journal still needs.
    let lane = lines(&file.0, "lane=0");
    let first = lane.iter().find(|line| line.kind == "commit").expect("a commit").to_json();
    let regions = lines(&file.0, "regions");
    let ring = regions.iter().find(|line| line.to_json()["name"] == "lane 0").expect("its ring").to_json();
    let number = |value: &serde_json::Value| value.as_u64().expect("a number");
    let place = number(&ring["block"]) + number(&first["position"]) % number(&ring["blocks"]);
    flip(&mut damaged, place, 200);
    drop(file);
    let file = Temporary::holding("repair", &damaged);
    let report = check(&file.0, CheckOptions::default(), &mut |_| {}).expect("checked");
    assert_eq!(report.status, Status::Suspect, "{report}");
    let planned = repair(&file.0, RepairOptions::default(), false, 1).expect("planned");
    assert!(!planned.accepted && planned.losses.len() == report.suspects.len(), "{planned}");
    assert!(planned.to_string().contains("nothing was changed"));
    assert_eq!(file.medium(), damaged, "only accepting writes");
    let done = repair(&file.0, RepairOptions::default(), true, 2).expect("repaired");
    assert!(done.accepted && done.losses == planned.losses, "{done}");
    let report = check(&file.0, CheckOptions::default(), &mut |_| {}).expect("checked");
    assert_eq!(report.status, Status::Clean, "{report}");
    let json = serde_json::to_value(&report).expect("a report is plain data");
    assert_eq!(json["status"], "clean");
}

#[test]
fn a_namespace_in_use_is_left_alone() {
    let file = Temporary::holding("locked", &history(71, 1).stop());
    let mut options = FileOptions::new(&file.0);
    options.lock_wait = Duration::ZERO;
    let held = nvme_device::open(&OpenOptions::File { file: options, engine: Engine::Threaded }).expect("opened");
    let refused = check(&file.0, CheckOptions::default(), &mut |_| {});
    assert!(matches!(refused, Err(ToolError::Open(nvme_device::OpenError::Locked { .. }))));
    drop(held);
    check(&file.0, CheckOptions { quick: true }, &mut |_| {}).expect("checked");
}

#[test]
fn dumps_name_everything() {
    let mut node = history(72, 2);
    let state = node.state();
    let (bytes, _) = node.read(partition(9), Offset(0)).expect("readable");
    let file = Temporary::holding("dump", &node.kill());
    let copies = lines(&file.0, "superblock");
    assert_eq!((copies.len(), copies[0].kind), (5, "superblock"));
    assert!(copies[1].to_string().starts_with("superblock-copy copy=0 block=0 state=good"), "{}", copies[1]);
    assert!(lines(&file.0, "roots").iter().any(|line| line.to_json()["state"] == "whole"));
    let lanes = lines(&file.0, "lanes");
    let kinds = |kind: &str| lanes.iter().filter(|line| line.kind == kind).count();
    assert!(kinds("commit") > 10 && kinds("append-inline") > 3 && kinds("end") == 2);
    let partitions = lines(&file.0, "partitions");
    let ends: Vec<i64> = partitions
        .iter()
        .filter(|line| line.kind == "partition")
        .map(|line| line.to_json()["end"].as_i64().expect("an end"))
        .collect();
    assert_eq!(ends, state.iter().map(|(_, _, end, _)| end.0).collect::<Vec<_>>());
    assert!(partitions.iter().any(|line| line.kind == "producer") && partitions.iter().any(|l| l.kind == "aborted"));
    let batches = lines(&file.0, &partition(9).to_string());
    assert_eq!(batches.len(), batch::Batches::new(&bytes).count());
    assert!("lane=x".parse::<What>().is_err() && "nonsense-1".parse::<What>().is_err());
}

#[test]
fn a_partition_leaves_as_a_segment_and_comes_back_under_another_name() {
    let mut node = history(73, 1);
    let from = node.state().into_iter().find(|(id, ..)| *id == partition(7)).expect("it is there").1;
    let (whole, _) = node.read(partition(9), Offset(0)).expect("readable");
    let (later, _) = node.read(partition(7), from).expect("readable");
    let file = Temporary::holding("transfer", &node.stop());
    for (old, new, start, expected) in [(9, 40, Offset(0), &whole), (7, 41, from, &later)] {
        let mut segment = Vec::new();
        let all = Offset(0)..Offset(i64::MAX);
        let out = export(&file.0, partition(old), all.clone(), &mut segment).expect("exported");
        assert_eq!((&segment, out.bytes), (expected, expected.len() as u64));
        let back = import(&file.0, partition(new), &mut &segment[..], 3).expect("imported");
        assert_eq!(back, out);
        assert!(matches!(import(&file.0, partition(new), &mut &segment[..], 3), Err(ToolError::Exists(_))));
        let mut again = Vec::new();
        export(&file.0, partition(new), start..Offset(i64::MAX), &mut again).expect("exported");
        assert_eq!(&again, expected);
    }
    let mut part = Vec::new();
    let out = export(&file.0, partition(9), Offset(5)..Offset(9), &mut part).expect("exported");
    assert!(out.first.expect("some") <= 5 && out.last.expect("some") >= 8 && part.len() < whole.len());
    let cut = import(&file.0, partition(42), &mut &whole[..whole.len() - 1], 4);
    assert!(matches!(cut, Err(ToolError::Damaged(_))));
    let report = check(&file.0, CheckOptions::default(), &mut |_| {}).expect("checked");
    assert_eq!(report.status, Status::Clean, "{report}");
    assert_eq!(report.prediction.partitions, 13);
}
