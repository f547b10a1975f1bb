//! What the broker's settings change in the control plane, where no other test shows it.

mod common;

use base::{NodeId, Now};
use common::plane::Plane;
use common::{World, formatted, options};
use pollux_node::Event;
use std::time::Duration;
use wire::ErrorCode;
use wire::messages::create_topics_request::CreatableTopic;
use wire::messages::*;

fn served(set: &[&str]) -> World {
    let mut world = World::start(options(set), formatted(), Now::default()).expect("a formatted directory");
    world.connect(Plane::new(1));
    world.settle();
    assert!(world.status().ready, "{:?}", world.status());
    world
}

/// A topic for which the broker chooses the partitions and the replicas.
fn create(world: &mut World, name: &str) -> create_topics_response::CreatableTopicResult {
    let topic = CreatableTopic { name: name.into(), num_partitions: -1, replication_factor: -1, ..Default::default() };
    let request = CreateTopicsRequest { topics: vec![topic], timeout_ms: 1000, ..Default::default() };
    world.ask(7, &request).topics.remove(0)
}

#[test]
fn a_topic_gets_the_brokers_partitions_and_replicas() {
    let made = create(&mut served(&["num.partitions=3"]), "t");
    assert_eq!((made.error_code, made.num_partitions, made.replication_factor), (0, 3, 1));
    let refused = create(&mut served(&["default.replication.factor=2"]), "t");
    assert_eq!(refused.error_code, ErrorCode::InvalidReplicationFactor.code(), "there is one broker");
}

#[test]
fn topics_are_deleted_only_where_that_is_allowed() {
    for (set, code) in
        [(&[][..], ErrorCode::None), (&["delete.topic.enable=false"][..], ErrorCode::TopicDeletionDisabled)]
    {
        let mut world = served(set);
        assert_eq!(create(&mut world, "t").error_code, 0);
        let state = delete_topics_request::DeleteTopicState { name: Some("t".into()), ..Default::default() };
        let request = DeleteTopicsRequest { topics: vec![state], timeout_ms: 1000, ..Default::default() };
        assert_eq!(world.ask(6, &request).responses[0].error_code, code.code());
        assert_eq!(world.status().topics, usize::from(code != ErrorCode::None));
    }
}

#[test]
fn the_offsets_topic_is_made_as_is_set() {
    let mut world = served(&["offsets.topic.num.partitions=7", "offsets.topic.segment.bytes=2000000"]);
    let asked = |names: &[&str]| link::Up::AutoCreate {
        topics: names.iter().map(|name| (*name).to_owned()).collect(),
        principal: "User:ANONYMOUS".into(),
        client_host: "/127.0.0.1".into(),
    };
    world.event(Event::Up(asked(&["__consumer_offsets"])));
    world.settle();
    let topic = &world.plane().topics["__consumer_offsets"];
    assert_eq!((topic.partitions.len(), topic.partitions[0].replicas.len()), (7, 1));
    let duty = world.plane().duty("__consumer_offsets", 6).clone();
    assert!(duty.config.contains(&("segment.bytes".to_owned(), "2000000".to_owned())), "{:?}", duty.config);
    let mut world = served(&["offsets.topic.replication.factor=3"]);
    world.event(Event::Up(asked(&["__consumer_offsets"])));
    world.settle();
    assert_eq!(world.status().topics, 0, "one broker cannot hold three replicas");
}

#[test]
fn a_broker_tells_its_rack() {
    let mut world = served(&["broker.rack=r7"]);
    assert_eq!(world.plane().brokers[0].rack.as_deref(), Some("r7"));
    assert_eq!(world.plane().brokers[0].id, NodeId(1));
}

#[test]
fn a_session_lasts_as_long_as_is_set() {
    let mut world = served(&["broker.session.timeout.ms=3000", "broker.heartbeat.interval.ms=500"]);
    world.pass(Duration::from_secs(20));
    let pings = world.plane().heard.iter().filter(|down| matches!(down, link::Down::Ping(_))).count();
    assert!((38..=42).contains(&pings), "one for each heartbeat: {pings}");
    world.disconnect();
    world.pass(Duration::from_millis(2_400));
    assert_eq!(world.status().fenced_brokers, 0);
    world.pass(Duration::from_millis(1_600));
    assert_eq!(world.status().fenced_brokers, 1);
}

#[test]
fn snapshots_of_metadata_are_made_in_their_time_and_removed_in_theirs() {
    let hour = Duration::from_secs(3600);
    // One lies there from the formatting on.
    for (interval, retention, most) in [(0, -1, 1..=1), (7_200_000, -1, 10..=13), (7_200_000, 10_000_000, 1..=4)] {
        let (interval, retention) = (
            format!("metadata.log.max.snapshot.interval.ms={interval}"),
            format!("metadata.max.retention.ms={retention}"),
        );
        let mut world = served(&[&interval, &retention, "metadata.log.segment.ms=1000"]);
        for number in 0..24 {
            create(&mut world, &format!("t{number}"));
            world.pass(hour);
        }
        let found = world.disk.names().filter(|name| name.ends_with(".checkpoint") && name.starts_with("0")).count();
        assert!(most.contains(&found), "{interval} {retention}: {found} snapshots");
    }
}

#[test]
fn segments_of_the_metadata_log_end_by_age() {
    let segments = ["604800000", "120000"].map(|age| {
        let mut world = served(&[&format!("metadata.log.segment.ms={age}")]);
        for number in 0..30 {
            create(&mut world, &format!("t{number}"));
            world.pass(Duration::from_secs(60));
        }
        world.disk.names().filter(|name| name.ends_with(".log")).count()
    });
    assert!(segments[0] == 1 && segments[1] > 5, "{segments:?}");
}

#[test]
fn the_metadata_log_forgets_what_is_beyond_its_bytes() {
    let starts = ["1000", "-1"].map(|most| {
        let retention = format!("metadata.max.retention.bytes={most}");
        let mut world = served(&[
            &retention,
            "metadata.log.max.record.bytes.between.snapshots=3000",
            "metadata.log.segment.ms=1000",
        ]);
        for number in 0..60 {
            create(&mut world, &format!("t{number}"));
            world.pass(Duration::from_secs(60));
        }
        world.status().log_start
    });
    assert!(starts[0] > 0 && starts[1] == 0, "{starts:?}");
}
