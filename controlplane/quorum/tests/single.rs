//! One voter: it elects itself, appends, commits, writes snapshots, and finds all of it again.

mod common;

use base::{LeaderEpoch, NodeId, Offset};
use bytes::Bytes;
use common::{Replica, at, config, formatted, key, voters};
use pollux_quorum::{
    AppendError, BATCH_BYTES_MAX, BATCHES_WAITING_MAX, Event, FileName, Leadership, LoadError, SnapshotError,
    SnapshotReason, StateName, Whole,
};

fn record(n: u32) -> Bytes {
    Bytes::from(format!("record {n}"))
}

fn leader() -> Replica {
    let mut replica = Replica::load(config(1), formatted(1, &[1]), at(0), 1).unwrap();
    replica.settle(at(0));
    replica
}

#[test]
fn a_single_voter_leads_without_waiting() {
    let replica = leader();
    assert_eq!(replica.quorum.state(), StateName::Leader);
    assert_eq!(replica.quorum.epoch(), LeaderEpoch(1));
    assert_eq!(replica.quorum.bootstrap_records(), [Bytes::from_static(b"bootstrap")]);
    assert_eq!(replica.quorum.kraft_version(), 1);
    assert_eq!(replica.quorum.voters(), &voters(&[1]));
    // LeaderChange, KRaftVersion and voters, as Apache's first leader writes them.
    assert_eq!(replica.quorum.high_watermark(), Some(Offset(3)));
    assert_eq!(replica.model.leads, Some((LeaderEpoch(1), Offset(0))));
    let stored = replica.disk.content(FileName::Whole(Whole::QuorumState)).unwrap();
    let text =
        br#"{"leaderId":1,"leaderEpoch":1,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}"#;
    assert_eq!(stored, text);
    assert_eq!(replica.disk.content(FileName::Whole(Whole::LeaderEpochs)).unwrap(), b"0\n1\n1 0\n");
    assert!(replica.quorum.next_deadline().is_none(), "nothing to do, nothing to wake for");
}

#[test]
fn a_vote_is_on_disk_before_the_epoch_is_led() {
    let mut replica = Replica::load(config(1), formatted(1, &[1]), at(0), 1).unwrap();
    while replica.quorum.state() != StateName::Leader {
        assert_eq!(replica.quorum.state(), StateName::Candidate);
        assert!(replica.quorum.append(replica.quorum.epoch(), vec![record(1)], at(0)).is_err());
        assert!(replica.work(at(0)), "it waits for the disk alone");
    }
    let stored = replica.disk.content(FileName::Whole(Whole::QuorumState)).unwrap();
    let text = String::from_utf8(stored.to_vec()).unwrap();
    assert!(text.contains(r#""leaderEpoch":1,"votedId":1,"#), "{text}");
}

#[test]
fn what_is_appended_is_committed_once_synced() {
    let mut replica = leader();
    assert_eq!(replica.append(&[record(1), record(2)], at(5)), Ok(Offset(4)));
    assert_eq!(replica.model.records, [] as [Bytes; 0], "not before it is on disk");
    // While the first write is on its way, the next ones gather, and go out together.
    let syncs = replica.disk.syncs;
    for n in 3..100 {
        assert_eq!(replica.append(&[record(n)], at(6)), Ok(Offset(i64::from(n) + 2)));
    }
    replica.settle(at(7));
    assert_eq!(replica.disk.syncs - syncs, 2);
    assert_eq!(replica.model.records, (1..100).map(record).collect::<Vec<_>>());
    assert_eq!(replica.quorum.high_watermark(), Some(Offset(102)));
    let described = replica.quorum.describe(at(8)).unwrap();
    assert_eq!((described.leader, described.high_watermark), (NodeId(1), Some(Offset(102))));
    assert_eq!(described.voters[0].key, key(1));
    assert_eq!(described.voters[0].log_end, Some(Offset(102)));
}

#[test]
fn an_append_is_refused_whole() {
    let mut replica = leader();
    let big = Bytes::from(vec![0u8; BATCH_BYTES_MAX / 2]);
    assert!(matches!(replica.append(&[record(1), big.clone(), big.clone()], at(1)), Err(AppendError::TooLarge { .. })));
    let other = LeaderEpoch(7);
    assert_eq!(replica.quorum.append(other, vec![record(1)], at(1)), Err(AppendError::NotLeader(other)));
    replica.append(&[record(1)], at(1)).unwrap();
    for _ in 0..BATCHES_WAITING_MAX {
        replica.append(std::slice::from_ref(&big), at(1)).unwrap();
    }
    assert_eq!(replica.append(std::slice::from_ref(&big), at(1)), Err(AppendError::Busy));
    replica.settle(at(2));
    assert_eq!(replica.model.records.len(), 1 + BATCHES_WAITING_MAX);
    replica.append(std::slice::from_ref(&big), at(3)).unwrap();
}

#[test]
fn a_restart_replays_and_leads_in_the_next_epoch() {
    let mut replica = leader();
    for n in 0..50 {
        replica.append(&[record(n)], at(1)).unwrap();
        replica.settle(at(1));
    }
    let mut again = Replica::load(config(1), replica.disk, at(100), 2).unwrap();
    assert_eq!(again.report.torn_bytes, 0);
    assert_eq!(again.report.indexes_rebuilt, 0);
    again.settle(at(100));
    assert_eq!(again.model.records, replica.model.records);
    assert_eq!(again.model.leads, Some((LeaderEpoch(2), Offset(53))));
    assert_eq!(again.quorum.high_watermark(), Some(Offset(54)), "later epochs begin with LeaderChange alone");
}

#[test]
fn a_snapshot_stands_for_the_log_before_it() {
    let mut config = config(1);
    config.log.segment_bytes = 2000;
    config.log.segment_bytes_at_snapshot = 1;
    config.snapshots.retention_bytes = 3000;
    config.snapshots.bytes_between = 1500;
    let mut replica = Replica::load(config.clone(), formatted(1, &[1]), at(0), 1).unwrap();
    replica.settle(at(0));
    let mut written = 0;
    for n in 0..200 {
        replica.append(&[record(n)], at(n.into())).unwrap();
        replica.settle(at(n.into()));
        if replica.quorum.snapshot_due(at(n.into())) == Some(SnapshotReason::Bytes) {
            let id = replica.snapshot(at(n.into())).unwrap();
            assert_eq!(replica.snapshot(at(n.into())), Err(SnapshotError::Busy));
            replica.settle(at(n.into()));
            assert_eq!(replica.model.snapshots_written.last(), Some(&id));
            written += 1;
        }
    }
    assert!(written > 5);
    assert!(replica.quorum.log_start() > Offset(0), "the log's start moved");
    let logs = replica.disk.files().into_iter().filter(|f| matches!(f, FileName::Log(_))).count();
    assert!(logs < 5, "{logs} segments are left");
    let mut again = Replica::load(config, replica.disk, at(1000), 2).unwrap();
    again.settle(at(1000));
    assert_eq!(again.model.snapshots_loaded.len(), 1);
    assert_eq!(again.model.records, replica.model.records);
    assert_eq!(again.quorum.voters(), &voters(&[1]), "the snapshot carries the membership");
    assert_eq!(again.quorum.kraft_version(), 1);
}

#[test]
fn a_snapshot_is_of_committed_batches_only() {
    let mut replica = leader();
    replica.append(&[record(1), record(2)], at(1)).unwrap();
    replica.settle(at(1));
    let (id, time) = replica.model.last.unwrap();
    let mut inside = id;
    inside.offset = Offset(id.offset.0 - 1);
    assert_eq!(replica.quorum.begin_snapshot(inside, time, at(2)), Err(SnapshotError::NotCommitted(inside)));
    let mut beyond = id;
    beyond.offset = id.offset.plus(1);
    assert_eq!(replica.quorum.begin_snapshot(beyond, time, at(2)), Err(SnapshotError::NotCommitted(beyond)));
    assert_eq!(replica.quorum.append_snapshot(&[record(1)], at(2)), Err(SnapshotError::NotBegun));
    replica.quorum.begin_snapshot(id, time, at(2)).unwrap();
    replica.quorum.abandon_snapshot();
    replica.quorum.begin_snapshot(id, time, at(2)).unwrap();
    replica.quorum.finish_snapshot(at(2)).unwrap();
    replica.poll(at(2));
    replica.settle(at(2));
    assert_eq!(replica.quorum.begin_snapshot(id, time, at(3)), Err(SnapshotError::Superseded(id)));
}

#[test]
fn a_failed_write_ends_the_node() {
    let mut replica = leader();
    replica.append(&[record(1)], at(1)).unwrap();
    let job = replica.jobs.pop_front().unwrap();
    let failed = pollux_quorum::DiskFailed("no space".into());
    replica.handle(Event::DiskDone { ticket: job.ticket, result: Err(failed) }, at(2));
    assert!(replica.fault.is_some());
    assert_eq!(replica.model.records.len(), 0);
    assert!(replica.append(&[record(2)], at(3)).is_err());
    assert!(replica.jobs.is_empty());
}

#[test]
fn a_stop_ends_with_everything_on_disk() {
    let mut replica = leader();
    replica.append(&[record(1)], at(1)).unwrap();
    replica.handle(Event::Stop, at(2));
    assert!(!replica.quorum.is_stopped(at(2)));
    assert!(replica.append(&[record(2)], at(2)).is_err());
    replica.settle(at(2));
    assert!(replica.quorum.is_stopped(at(2)));
    assert_eq!(replica.model.records, [record(1)]);
    assert_eq!(replica.quorum.state(), StateName::Resigned);
    assert_eq!(replica.model.leadership.last(), Some(&Leadership::Follower { epoch: LeaderEpoch(1), leader: None }));
}

#[test]
fn another_nodes_directory_is_refused() {
    let load = |config| Replica::load(config, formatted(1, &[1]), at(0), 1).err();
    assert!(matches!(load(config(2)), Some(LoadError::Foreign { what: "node.id", .. })));
    let mut other = config(1);
    other.cluster_id = "another".into();
    assert!(matches!(load(other), Some(LoadError::Foreign { what: "cluster.id", .. })));
    let empty = Replica::load(config(1), common::disk::SimDisk::default(), at(0), 1).err();
    assert!(matches!(empty, Some(LoadError::NotFormatted)));
}

#[test]
fn damage_is_told_from_a_torn_end() {
    let mut replica = leader();
    for n in 0..20 {
        let now = at(u64::from(n) * 100_000);
        replica.append(&[record(n)], now).unwrap();
        replica.settle(now);
    }
    let log = FileName::Log(Offset(0));
    let whole = replica.disk.content(log).unwrap().to_vec();
    let reload = |content: Vec<u8>| {
        let mut disk = replica.disk.clone();
        disk.set_content(log, content);
        Replica::load(config(1), disk, at(1 << 32), 2).map(|mut r| {
            r.settle(at(1 << 32));
            (r.report.torn_bytes, r.model.records.len())
        })
    };
    assert_eq!(reload(whole.clone()).unwrap(), (0, 20));
    // The last batch is a header, a record of nine bytes and its frame.
    assert_eq!(reload(whole[..whole.len() - 1].to_vec()).unwrap(), (61 + 7 + 9 - 1, 19));
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    assert!(matches!(reload(flipped), Err(LoadError::Damaged { .. })), "records that were synced follow");
}
