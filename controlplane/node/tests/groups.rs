//! Groups over the whole node: the topic of groups is made, its shards are loaded and written through the link.

mod common;

use common::World;
use link::Down;
use std::time::Duration;
use wire::messages::join_group_request::JoinGroupRequestProtocol;
use wire::messages::*;
use wire::{ApiKey, ErrorCode, ResponseKind};

fn find(world: &mut World, key_type: i8) -> find_coordinator_response::Coordinator {
    let request = FindCoordinatorRequest { key_type, coordinator_keys: vec!["g".into()], ..Default::default() };
    world.ask(4, &request).coordinators.remove(0)
}

/// The offsets topic is there and this node coordinates.
fn ready() -> World {
    let mut world = World::served();
    let first = find(&mut world, 0);
    assert_eq!((first.error_code, first.node_id), (ErrorCode::CoordinatorNotAvailable.code(), -1));
    let found = find(&mut world, 0);
    assert_eq!((found.error_code, found.node_id, found.port), (0, 1, 9092));
    world
}

fn commit(offset: i64) -> OffsetCommitRequest {
    let partition = offset_commit_request::OffsetCommitRequestPartition {
        committed_offset: offset,
        committed_leader_epoch: -1,
        ..Default::default()
    };
    let topic = offset_commit_request::OffsetCommitRequestTopic {
        name: "t".into(),
        partitions: vec![partition],
        ..Default::default()
    };
    OffsetCommitRequest {
        group_id: "g".into(),
        generation_id_or_member_epoch: -1,
        topics: vec![topic],
        ..Default::default()
    }
}

fn fetch(world: &mut World) -> (i16, i64) {
    let topic = offset_fetch_request::OffsetFetchRequestTopics {
        name: "t".into(),
        partition_indexes: vec![0],
        ..Default::default()
    };
    let group = offset_fetch_request::OffsetFetchRequestGroup {
        group_id: "g".into(),
        topics: Some(vec![topic]),
        ..Default::default()
    };
    let request = OffsetFetchRequest { groups: vec![group], ..Default::default() };
    let group = world.ask(8, &request).groups.remove(0);
    let offset = group.topics.first().map_or(-2, |topic| topic.partitions[0].committed_offset);
    (group.error_code, offset)
}

fn with_topic() -> World {
    let mut world = ready();
    let topic = create_topics_request::CreatableTopic {
        name: "t".into(),
        num_partitions: 1,
        replication_factor: 1,
        ..Default::default()
    };
    world.ask(7, &CreateTopicsRequest { topics: vec![topic], timeout_ms: 1000, ..Default::default() });
    world
}

fn committed(world: &mut World, offset: i64) -> i16 {
    world.ask(8, &commit(offset)).topics[0].partitions[0].error_code
}

#[test]
fn other_kinds_of_coordinators_do_not_exist() {
    let mut world = ready();
    for key_type in [1, 2] {
        assert_eq!(find(&mut world, key_type).error_code, ErrorCode::UnsupportedVersion.code());
    }
    assert_eq!(find(&mut world, 9).error_code, ErrorCode::InvalidRequest.code());
    let old = FindCoordinatorRequest { key: "g".into(), ..Default::default() };
    assert_eq!((world.ask(0, &old).node_id, world.ask(3, &old).port), (1, 9092));
}

#[test]
fn offsets_survive_both_processes() {
    let mut world = with_topic();
    assert_eq!(fetch(&mut world), (0, -1));
    assert_eq!(committed(&mut world, 42), 0);
    assert_eq!(fetch(&mut world), (0, 42));
    let mut world = world.restart_node();
    assert_eq!(fetch(&mut world), (0, 42));
    let plane = world.disconnect();
    world.connect(plane.restarted(2));
    world.settle();
    assert_eq!(fetch(&mut world), (0, 42), "loaded again under the new epoch");
    assert_eq!(committed(&mut world, 43), 0);
    assert_eq!(fetch(&mut world), (0, 43));
}

#[test]
fn a_commit_is_answered_once_it_is_in_the_log() {
    let mut world = with_topic();
    world.plane().appends_stall = true;
    let id = world.forward(8, &commit(7));
    world.settle();
    assert!(world.answer(id, ApiKey::OffsetCommit, 8).is_none());
    // The link breaks: nobody knows whether it is there, and what the log says counts.
    let mut plane = world.disconnect().reconnected();
    plane.appends_stall = false;
    world.connect(plane);
    world.settle();
    assert_eq!(fetch(&mut world), (0, -1));
    assert!(world.answer(id, ApiKey::OffsetCommit, 8).is_none(), "the one who waited is gone");
}

#[test]
fn shards_wait_for_the_dataplane_to_lead() {
    let mut world = World::served();
    world.plane().silent = true;
    let request = FindCoordinatorRequest { coordinator_keys: vec!["g".into()], ..Default::default() };
    world.forward(4, &request);
    world.settle();
    assert_eq!(world.status().topics, 1);
    assert!(!world.plane().heard.iter().any(|down| matches!(down, Down::InternalRead(_))));
    world.plane().silent = false;
    world.settle();
    assert!(world.plane().heard.iter().any(|down| matches!(down, Down::InternalRead(_))));
}

#[test]
fn who_waited_for_the_control_plane_is_not_told_that_the_coordinator_is_elsewhere() {
    let mut world = with_topic();
    assert_eq!(committed(&mut world, 42), 0);
    let plane = world.disconnect().reconnected();
    let mut world = world.restart_node();
    world.connect(plane);
    // What the dataplane parked comes right behind its hello, long before anything is led or loaded.
    let heartbeat = HeartbeatRequest { group_id: "g".into(), generation_id: 1, ..Default::default() };
    let id = world.forward(4, &heartbeat);
    world.settle();
    let Some(ResponseKind::Heartbeat(answer)) = world.answer(id, ApiKey::Heartbeat, 4) else { panic!("an answer") };
    assert_eq!(answer.error_code, 0, "sessions start anew");
    assert_eq!(fetch(&mut world), (0, 42));
}

#[test]
fn a_member_joins_syncs_and_is_expelled_in_its_time() {
    let mut world = ready();
    let protocol = JoinGroupRequestProtocol { name: "range".into(), metadata: vec![1u8].into(), ..Default::default() };
    let mut join = JoinGroupRequest {
        group_id: "g".into(),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 20_000,
        protocol_type: "consumer".into(),
        protocols: vec![protocol],
        ..Default::default()
    };
    let first = world.ask(9, &join);
    assert_eq!(first.error_code, ErrorCode::MemberIdRequired.code());
    join.member_id = first.member_id;
    let id = world.forward(9, &join);
    world.settle();
    // The first rebalance waits for others.
    assert!(world.answer(id, ApiKey::JoinGroup, 9).is_none());
    world.pass(Duration::from_secs(4));
    let Some(wire::ResponseKind::JoinGroup(joined)) = world.answer(id, ApiKey::JoinGroup, 9) else {
        panic!("it has joined")
    };
    assert_eq!((joined.error_code, joined.leader == join.member_id), (0, true));
    let assignment = sync_group_request::SyncGroupRequestAssignment {
        member_id: join.member_id.clone(),
        assignment: vec![9u8].into(),
        ..Default::default()
    };
    let sync = SyncGroupRequest {
        group_id: "g".into(),
        generation_id: joined.generation_id,
        member_id: join.member_id.clone(),
        protocol_type: Some("consumer".into()),
        protocol_name: Some("range".into()),
        assignments: vec![assignment],
        ..Default::default()
    };
    let synced = world.ask(5, &sync);
    assert_eq!((synced.error_code, &synced.assignment[..]), (0, &[9u8][..]));
    let beat = HeartbeatRequest {
        group_id: "g".into(),
        generation_id: joined.generation_id,
        member_id: join.member_id.clone(),
        ..Default::default()
    };
    world.pass(Duration::from_secs(8));
    assert_eq!(world.ask(4, &beat).error_code, 0);
    // Its session starts anew when the shard is loaded by another process.
    let mut world = world.restart_node();
    assert_eq!(world.ask(4, &beat).error_code, 0);
    world.pass(Duration::from_secs(12));
    assert_eq!(world.ask(4, &beat).error_code, ErrorCode::UnknownMemberId.code());
}
