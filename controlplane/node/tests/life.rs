//! The life of the broker: registration, restarts of either process, refusals, the clean stop.

mod common;

use base::{NodeId, PartitionId, PartitionIndex, TopicId, Uuid};
use common::plane::Plane;
use common::{World, count_downs, options};
use link::{Down, HeldPartition, Up};
use pollux_node::{BrokerPhase, End, Event};
use std::time::Duration;
use wire::messages::create_topics_request::CreatableTopic;
use wire::messages::{CreateTopicsRequest, UnregisterBrokerRequest};

fn create(world: &mut World, name: &str, partitions: i32) {
    let topic =
        CreatableTopic { name: name.into(), num_partitions: partitions, replication_factor: 1, ..Default::default() };
    let request = CreateTopicsRequest { topics: vec![topic], timeout_ms: 1000, ..Default::default() };
    let response = world.ask(7, &request);
    assert_eq!(response.topics[0].error_code, 0, "{response:?}");
}

#[test]
fn a_new_node_registers_and_serves() {
    let mut world = World::new();
    assert!(world.status().active_controller, "{:?}", world.status());
    assert_eq!(world.status().broker, BrokerPhase::Waiting);
    world.connect(Plane::new(1));
    world.settle();
    let status = world.status();
    assert!(status.ready && status.link_up, "{status:?}");
    assert_eq!((status.active_brokers, status.fenced_brokers), (1, 0));
    assert_eq!(status.metadata_version, Some(33));
    let plane = world.plane();
    let incarnation = plane.incarnation.expect("it was told hello");
    let broker = &plane.brokers[0];
    assert_eq!((broker.id, broker.incarnation, broker.fenced), (NodeId(1), incarnation, false));
    assert_eq!(broker.listeners, [("PLAINTEXT".to_owned(), "localhost".to_owned(), 9092, 0)]);
    assert_eq!(plane.producer_ids, [(0, 1000), (1000, 1000)]);
    assert!(matches!(plane.heard[0], Down::Hello(_)));
    assert!(world.disk.run_file.is_some());
}

#[test]
fn heartbeats_keep_the_session_and_write_nothing() {
    let mut world = World::served();
    let end = world.status().log_end;
    world.pass(Duration::from_secs(60));
    assert_eq!(world.status().log_end, end, "an idle node leaves its disk alone");
    assert!(world.status().ready);
    assert!(count_downs(&world.plane().heard)["ping"] >= 25);
}

#[test]
fn a_control_plane_that_restarts_alone_fences_nothing() {
    let mut world = World::served();
    create(&mut world, "t", 3);
    let (epoch, incarnation) = (world.plane().epoch("t", 0), world.plane().incarnation);
    let end = world.status().log_end;
    let mut world = world.restart_node();
    assert!(world.status().ready, "{:?}", world.status());
    assert_eq!(world.plane().epoch("t", 0), epoch);
    assert_eq!(world.plane().incarnation, incarnation);
    // Only that it leads.
    assert_eq!(world.status().log_end, end + 1);
    assert_eq!(world.plane().producer_ids.len(), 2, "it had its blocks in hand");
}

#[test]
fn every_partition_of_another_run_gets_a_new_epoch() {
    let mut world = World::served();
    create(&mut world, "t", 3);
    let (epoch, incarnation) = (world.plane().epoch("t", 2), world.plane().incarnation);
    let plane = world.disconnect();
    world.settle();
    world.connect(plane.restarted(2));
    world.settle();
    assert!(world.status().ready);
    for index in 0..3 {
        assert!(world.plane().epoch("t", index) > epoch);
        assert_eq!(world.plane().duty("t", index).leader, Some(NodeId(1)));
        assert_eq!(world.plane().duty("t", index).isr, [NodeId(1)]);
    }
    assert_eq!(world.plane().incarnation, incarnation, "the registration stays");
    assert_eq!(world.plane().producer_ids.len(), 2);
    // Both at once are the dataplane's restart.
    let epoch = world.plane().epoch("t", 0);
    let plane = world.plane.take().unwrap();
    let mut world = world.restart_node();
    world.connect(plane.restarted(3));
    world.settle();
    assert!(world.plane().epoch("t", 0) > epoch);
}

#[test]
fn a_run_that_may_have_lost_something_is_another_incarnation() {
    let mut world = World::served();
    create(&mut world, "t", 1);
    let (epoch, incarnation) = (world.plane().epoch("t", 0), world.plane().incarnation);
    let mut plane = world.disconnect().restarted(2);
    plane.hello.damaged = true;
    world.connect(plane);
    world.settle();
    // A sole replica that lost something leads again as the last one known (KIP-966), and says that it recovers.
    world.pass(Duration::from_secs(1));
    assert!(world.status().ready, "{:?}", world.status());
    assert_ne!(world.plane().incarnation, incarnation);
    assert!(world.plane().epoch("t", 0) > epoch);
    assert_eq!(world.plane().duty("t", 0).leader, Some(NodeId(1)));
    assert!(world.plane().duty("t", 0).recovering, "{:?}", world.plane().duty("t", 0));
    let under_cache = |boot: &str, clean: bool| {
        let mut world = World::new();
        let mut plane = Plane::new(1);
        plane.hello.durability_cache = true;
        world.connect(plane);
        world.settle();
        let before = world.plane().incarnation;
        let mut plane = world.disconnect().restarted(2);
        plane.hello.boot_id = boot.to_owned();
        plane.hello.clean_stop = clean;
        world.connect(plane);
        world.settle();
        assert!(world.status().ready);
        before != world.plane().incarnation
    };
    assert!(!under_cache("boot", false), "the page cache of this boot has everything");
    assert!(under_cache("another", false));
    assert!(!under_cache("another", true));
}

#[test]
fn a_dataplane_that_is_away_is_fenced_after_its_session() {
    let mut world = World::served();
    create(&mut world, "t", 1);
    let epoch = world.plane().epoch("t", 0);
    let plane = world.disconnect();
    world.pass(Duration::from_secs(8));
    assert_eq!(world.status().fenced_brokers, 0);
    world.pass(Duration::from_secs(4));
    assert_eq!((world.status().fenced_brokers, world.status().offline_partitions), (1, 1));
    world.connect(plane.reconnected());
    world.settle();
    assert!(world.status().ready);
    assert_eq!((world.status().fenced_brokers, world.status().offline_partitions), (0, 0));
    assert!(world.plane().epoch("t", 0) > epoch);
}

#[test]
fn a_stop_moves_leaderships_and_a_start_brings_them_back() {
    let mut world = World::served();
    create(&mut world, "t", 2);
    let incarnation = world.plane().incarnation;
    world.event(Event::Stop);
    world.settle();
    world.pass(Duration::from_secs(1));
    assert!(world.plane().stop_asked);
    assert_eq!(world.end, Some(End::Stopped));
    assert_eq!(world.plane().duty("t", 0).leader, None);
    let plane = world.plane.take().unwrap();
    let mut world = world.restart_node();
    world.connect(plane.restarted(2));
    world.settle();
    assert!(world.status().ready, "{:?}", world.status());
    assert_ne!(world.plane().incarnation, incarnation, "what has left does not come back, its successor does");
    assert_eq!(world.plane().duty("t", 0).leader, Some(NodeId(1)));
    assert_eq!(world.plane().duty("t", 1).isr, [NodeId(1)]);
    assert!(!world.plane().duty("t", 0).recovering, "nothing was lost");
}

#[test]
fn a_stop_without_a_dataplane_ends_too() {
    let mut world = World::new();
    world.event(Event::Stop);
    world.settle();
    assert_eq!(world.end, Some(End::Stopped));
}

#[test]
fn a_dataplane_of_another_cluster_or_version_is_refused() {
    let mut cases = [Plane::new(1), Plane::new(1), Plane::new(1), Plane::new(1)];
    cases[0].hello.cluster_id = "another".into();
    cases[1].hello.node_id = NodeId(9);
    cases[2].hello.protocol_version += 1;
    cases[3].hello.duties_offset = Some(1_000_000);
    let texts = ["superblock says cluster another", "superblock says node 9", "version 2 of the link", "put back"];
    for (plane, text) in cases.into_iter().zip(texts) {
        let mut world = World::new();
        world.connect(plane);
        world.settle();
        let why = world.refused.clone().expect("it is refused");
        assert!(why.contains(text), "{why}");
        assert_eq!(world.status().active_brokers + world.status().fenced_brokers, 0, "nothing was registered");
        // Another try that is right is taken.
        world.connect(Plane::new(1));
        world.settle();
        assert!(world.status().ready);
    }
}

#[test]
fn listeners_that_moved_are_registered_again() {
    let mut world = World::served();
    let mut plane = world.disconnect().restarted(2);
    plane.hello.listeners[0].advertised_port = 9999;
    world.connect(plane);
    world.settle();
    assert!(world.status().ready);
    assert_eq!(world.plane().brokers[0].listeners[0].2, 9999);
}

#[test]
fn an_unregistered_broker_registers_again() {
    let mut world = World::served();
    create(&mut world, "t", 1);
    let request = UnregisterBrokerRequest { broker_id: 1, ..Default::default() };
    assert_eq!(world.ask(0, &request).error_code, 0);
    assert!(world.plane().brokers.is_empty());
    world.pass(Duration::from_secs(10));
    assert!(world.status().ready, "{:?}", world.status());
    assert_eq!(world.plane().brokers.len(), 1);
}

#[test]
fn a_failed_directory_takes_its_leaderships() {
    let mut world = World::served();
    create(&mut world, "t", 1);
    world.event(Event::Up(Up::DirectoryFailed { directory: Uuid(0x7000), reason: "a write failed".into() }));
    world.settle();
    assert_eq!(world.plane().duty("t", 0).leader, None);
}

#[test]
fn a_disk_that_fails_ends_the_node() {
    let mut world = World::served();
    world.disk.fails = true;
    let topic = CreatableTopic { name: "t".into(), num_partitions: 1, replication_factor: 1, ..Default::default() };
    let request = CreateTopicsRequest { topics: vec![topic], timeout_ms: 1000, ..Default::default() };
    let id = world.forward(7, &request);
    world.settle();
    assert!(matches!(&world.end, Some(End::Fault(why)) if why.contains("no space")), "{:?}", world.end);
    assert!(!world.plane().answers.contains_key(&id), "nothing is answered that is not on the disk");
}

#[test]
fn strays_are_counted_and_kept() {
    let mut world = World::served();
    create(&mut world, "t", 2);
    let held: Vec<HeldPartition> = world.plane().duties.keys().map(|partition| held(*partition)).collect();
    let stray = PartitionId { topic: TopicId(Uuid(777)), index: PartitionIndex(0) };
    // The list comes before the node has read its log, as after a start of its own.
    let plane = world.plane.take().unwrap().reconnected();
    let mut world = world.restart_node_stalled();
    world.connect(plane);
    world.event(Event::Up(Up::Held { partitions: held, last: false }));
    world.event(Event::Up(Up::Held { partitions: vec![self::held(stray)], last: true }));
    world.disk_stalls = false;
    world.settle();
    assert!(world.status().ready);
    assert_eq!(world.status().stray_partitions, 1);
    assert!(world.plane().removed.is_empty());
}

fn held(partition: PartitionId) -> HeldPartition {
    HeldPartition {
        partition,
        directory: Uuid(0x7000),
        leader_epoch: None,
        log_start: base::Offset(0),
        end: base::Offset(0),
    }
}

#[test]
fn a_directory_of_several_voters_is_refused() {
    let voter = |id: i32| quorum::Voter {
        key: quorum::ReplicaKey { id: NodeId(id), directory: Some(Uuid(0x5000 + id as u128 - 1)) },
        endpoints: vec![quorum::Endpoint { listener: "C".into(), host: "localhost".into(), port: 9093 }],
        versions: quorum::KRaftVersionRange::OURS,
    };
    let options = quorum::FormatOptions {
        cluster_id: common::CLUSTER.to_owned(),
        node_id: NodeId(1),
        directory_id: Uuid(0x5000),
        voters: quorum::VoterSet::new([voter(1), voter(2)]),
        bootstrap: Vec::new(),
    };
    let mut disk = common::disk::MemoryDisk::default();
    quorum::format(&options, base::Now::default()).iter().for_each(|step| disk.step(step));
    let refused = World::start(common::options(&[]), disk, base::Now::default()).err().expect("it is refused");
    assert!(refused.to_string().contains("this version runs a quorum of one voter"), "{refused}");
}

#[test]
fn snapshots_carry_everything_over_a_restart() {
    let small = options(&["metadata.log.max.record.bytes.between.snapshots=5000"]);
    let mut world = World::start(small, common::formatted(), base::Now::default()).unwrap();
    world.connect(Plane::new(1));
    world.settle();
    for number in 0..40 {
        create(&mut world, &format!("topic-{number}"), 5);
    }
    assert!(world.status().latest_snapshot.is_some_and(|at| at > 0), "{:?}", world.status());
    let epoch = world.plane().epoch("topic-0", 0);
    let mut world = world.restart_node();
    assert!(world.status().ready);
    assert_eq!((world.status().topics, world.status().partitions), (40, 200));
    assert_eq!(world.plane().duties.len(), 200);
    assert_eq!(world.plane().epoch("topic-0", 0), epoch);
}
