//! The runtime: loading, group commit, appends that are refused or whose end is unknown, late answers, leadership.

mod common;

use base::{LeaderEpoch, Offset, PartitionIndex, TopicId, Uuid};
use bytes::Bytes;
use common::groups::{commit, fetch, heartbeat, join, leave, sync};
use common::{EPOCH, ORDERS, World, error};
use pollux_coordinators::{AppendResult, Event, ReadId, ReadResult, RequestToken, Slice};
use std::time::Duration;
use wire::ErrorCode;
use wire::messages::*;

const ZERO: PartitionIndex = PartitionIndex(0);

fn commit_error(world: &mut World, token: RequestToken) -> ErrorCode {
    let response: OffsetCommitResponse = world.taken(token);
    error(response.topics[0].partitions[0].error_code)
}

#[test]
fn what_is_asked_in_one_turn_shares_an_append() {
    let mut world = World::new(&[]);
    let tokens: Vec<RequestToken> =
        (0..10).map(|i| world.send("c", 8, commit(&format!("g{i}"), "orders", &[(0, i)]))).collect();
    assert!(world.appends.is_empty() && !world.is_answered(tokens[0]));
    world.settle();
    assert_eq!((world.logs[&ZERO].count, world.logs[&ZERO].end), (1, 10));
    assert!(tokens.iter().all(|token| world.is_answered(*token)));
}

#[test]
fn answers_wait_for_their_append_and_the_next_append_for_this_one() {
    let mut world = World::new(&[]);
    world.holding = true;
    let first = world.ask(8, commit("g", "orders", &[(0, 1)]));
    let second = world.ask(8, commit("g", "orders", &[(0, 2)]));
    let third = world.ask(8, commit("h", "orders", &[(0, 3)]));
    let read = world.ask(9, fetch(&[("g", Some(&[("orders", &[0])]))], true));
    assert_eq!(world.appends.len(), 1);
    assert!([first, second, third, read].iter().all(|token| !world.is_answered(*token)));
    world.finish_append();
    world.end_turn();
    assert!(world.is_answered(first) && !world.is_answered(second) && !world.is_answered(read));
    assert_eq!(world.appends.len(), 1, "both commits that came meanwhile");
    world.finish_append();
    assert!([second, third].iter().all(|token| world.is_answered(*token)));
    let response: OffsetFetchResponse = world.taken(read);
    assert_eq!(response.groups[0].topics[0].partitions[0].committed_offset, 2);
    assert_eq!((world.logs[&ZERO].count, world.logs[&ZERO].end), (2, 3));
}

#[test]
fn a_batch_stays_within_the_limit_and_an_operation_in_one_batch() {
    let mut world = World::new(&[("message.max.bytes", "2000"), ("offset.metadata.max.bytes", "5000")]);
    world.holding = true;
    let tokens: Vec<RequestToken> =
        (0..60).map(|i| world.send("c", 8, commit(&format!("g{i}"), "orders", &[(0, 1), (1, 1), (2, 1)]))).collect();
    world.end_turn();
    world.holding = false;
    assert!(world.appends[0].batches.len() <= 2000 && world.appends[0].batches.len() > 1500);
    world.settle();
    assert!(world.logs[&ZERO].count >= 5);
    for token in tokens {
        assert_eq!(commit_error(&mut world, token), ErrorCode::None);
    }
    let mut large = commit("g", "orders", &[(0, 1)]);
    large.topics[0].partitions[0].committed_metadata = Some("x".repeat(3000).into());
    assert_eq!(world.commit_errors(8, large), [ErrorCode::UnknownServerError]);
    assert_eq!(world.committed("g", 0), -1);
}

#[test]
fn a_refused_append_leaves_no_trace() {
    let mut world = World::new(&[]);
    world.commit_errors(8, commit("old", "orders", &[(0, 1), (1, 1)]));
    let before = world.logs[&ZERO].clone();
    world.holding = true;
    let first = world.ask(8, commit("old", "orders", &[(0, 2)]));
    let second = world.ask(8, commit("old", "orders", &[(0, 3), (2, 3)]));
    let made = world.ask(8, commit("new", "orders", &[(0, 4)]));
    let request = DeleteGroupsRequest { groups_names: vec!["new".into(), "old".into()], ..Default::default() };
    let deleted = world.ask(2, request);
    world.end_append(AppendResult::Refused(ErrorCode::NotEnoughReplicas));
    for token in [first, second, made] {
        assert_eq!(commit_error(&mut world, token), ErrorCode::CoordinatorNotAvailable);
    }
    let response: DeleteGroupsResponse = world.taken(deleted);
    assert!(response.results.iter().all(|result| error(result.error_code) == ErrorCode::CoordinatorNotAvailable));
    world.holding = false;
    world.settle();
    assert_eq!((world.committed("old", 0), world.committed("old", 1), world.committed("old", 2)), (1, 1, -1));
    assert_eq!((world.state("new").as_str(), world.state("old").as_str()), ("Dead", "Empty"));
    assert_eq!(world.logs[&ZERO].bytes, before.bytes);
    // It goes on, at the offset where it was.
    assert_eq!(world.commit_errors(8, commit("new", "orders", &[(0, 5)])), [ErrorCode::None]);
    assert_eq!((world.committed("new", 0), world.logs[&ZERO].end), (5, 3));
}

#[test]
fn refusals_are_told_as_kafka_does() {
    let table = [
        (ErrorCode::NotEnoughReplicas, ErrorCode::CoordinatorNotAvailable),
        (ErrorCode::UnknownTopicOrPartition, ErrorCode::CoordinatorNotAvailable),
        (ErrorCode::RequestTimedOut, ErrorCode::CoordinatorNotAvailable),
        (ErrorCode::NotLeaderOrFollower, ErrorCode::NotCoordinator),
        (ErrorCode::KafkaStorageError, ErrorCode::NotCoordinator),
        (ErrorCode::MessageTooLarge, ErrorCode::UnknownServerError),
        (ErrorCode::RecordListTooLarge, ErrorCode::UnknownServerError),
    ];
    let mut world = World::new(&[]);
    world.holding = true;
    for (append, told) in table {
        let token = world.ask(8, commit("g", "orders", &[(0, 2)]));
        world.end_append(AppendResult::Refused(append));
        assert_eq!(commit_error(&mut world, token), told);
    }
}

#[test]
fn an_append_whose_end_is_unknown_is_found_out_by_replay() {
    for was_appended in [false, true] {
        let mut world = World::new(&[]);
        world.commit_errors(8, commit("g", "orders", &[(0, 1)]));
        world.holding = true;
        let waiting = world.ask(8, commit("g", "orders", &[(0, 2)]));
        let queued = world.ask(8, commit("g", "orders", &[(1, 2)]));
        if was_appended {
            let batches = world.appends[0].batches.clone();
            world.logs.get_mut(&ZERO).expect("a log").append(&batches);
        }
        world.end_append(AppendResult::Unknown);
        for token in [waiting, queued] {
            assert_eq!(commit_error(&mut world, token), ErrorCode::NotCoordinator);
        }
        let refused = world.ask(8, commit("g", "orders", &[(0, 3)]));
        assert_eq!(commit_error(&mut world, refused), ErrorCode::CoordinatorLoadInProgress);
        world.holding = false;
        world.settle();
        assert_eq!((world.committed("g", 0), world.committed("g", 1)), (if was_appended { 2 } else { 1 }, -1));
    }
}

#[test]
fn records_of_someone_else_make_the_shard_replay() {
    let mut world = World::new(&[]);
    world.commit_errors(8, commit("g", "orders", &[(0, 1)]));
    // Another hand writes a commit for the same group.
    let mut other = World::new(&[]);
    other.commit_errors(8, commit("g", "orders", &[(1, 9)]));
    let foreign = other.logs[&ZERO].bytes.clone();
    world.logs.get_mut(&ZERO).expect("a log").append(&foreign);
    assert_eq!(world.commit_errors(8, commit("g", "orders", &[(0, 2)])), [ErrorCode::NotCoordinator]);
    assert_eq!((world.committed("g", 0), world.committed("g", 1)), (2, 9), "the retry finds everything");
}

#[test]
fn an_answer_does_not_wait_longer_than_the_commit_timeout() {
    let mut world = World::new(&[]);
    world.holding = true;
    let late = world.ask(8, commit("g", "orders", &[(0, 1)]));
    world.pass(Duration::from_secs(2));
    let later = world.ask(8, commit("g", "orders", &[(0, 2)]));
    world.pass(Duration::from_millis(2_999));
    assert!(!world.is_answered(late));
    world.pass(Duration::from_millis(1));
    assert_eq!(commit_error(&mut world, late), ErrorCode::CoordinatorNotAvailable);
    assert!(!world.is_answered(later));
    world.holding = false;
    world.settle();
    assert_eq!(commit_error(&mut world, later), ErrorCode::None);
    assert_eq!(world.committed("g", 0), 2, "what was late was appended nevertheless");
}

#[test]
fn writing_is_refused_when_nothing_gets_through() {
    let mut world = World::new(&[("message.max.bytes", "300")]);
    world.holding = true;
    let tokens: Vec<RequestToken> =
        (0..40).map(|i| world.ask(8, commit(&format!("g{i}"), "orders", &[(0, 1), (1, 1)]))).collect();
    let refused: Vec<RequestToken> = tokens.iter().copied().filter(|token| world.is_answered(*token)).collect();
    assert!(refused.len() > 20, "one batch under way and eight queued take at most a few each");
    for token in refused {
        assert_eq!(commit_error(&mut world, token), ErrorCode::CoordinatorNotAvailable);
    }
}

#[test]
fn a_shard_that_is_lost_acknowledges_nothing() {
    let mut world = World::new(&[]);
    let (_, joining) = world.enter("members");
    world.holding = true;
    let waiting = world.ask(8, commit("g", "orders", &[(0, 2)]));
    world.event(Event::Resigned { partition: ZERO, epoch: Some(EPOCH) });
    assert_eq!(commit_error(&mut world, waiting), ErrorCode::NotCoordinator);
    assert_eq!(world.error_of::<JoinGroupResponse>(joining), ErrorCode::NotCoordinator);
    // The append succeeds after all: nobody hears of it.
    world.finish_append();
    let token = world.ask(4, heartbeat("g", "m", 1));
    assert_eq!(world.error_of::<HeartbeatResponse>(token), ErrorCode::NotCoordinator);
    assert!(world.call(4, ListGroupsRequest::default()).groups.is_empty());
    world.holding = false;
    world.event(Event::Leading { partition: ZERO, epoch: LeaderEpoch(EPOCH.0) });
    assert_eq!(world.committed("g", 0), 2);
}

#[test]
fn old_news_of_leadership_changes_nothing() {
    let mut world = World::new(&[]);
    world.commit_errors(8, commit("g", "orders", &[(0, 2)]));
    world.event(Event::Leading { partition: ZERO, epoch: LeaderEpoch(1) });
    world.event(Event::Leading { partition: ZERO, epoch: EPOCH });
    world.event(Event::Resigned { partition: ZERO, epoch: Some(LeaderEpoch(EPOCH.0 - 1)) });
    assert_eq!(world.committed("g", 0), 2);
    // An append under another epoch: this node is not told yet, but no longer coordinates.
    world.holding = true;
    let token = world.ask(8, commit("g", "orders", &[(0, 3)]));
    world.end_append(AppendResult::OtherEpoch);
    assert_eq!(commit_error(&mut world, token), ErrorCode::NotCoordinator);
    let token = world.ask(8, commit("g", "orders", &[(0, 4)]));
    assert_eq!(commit_error(&mut world, token), ErrorCode::NotCoordinator);
    assert!(world.reads.is_empty());
}

#[test]
fn while_loading_everything_is_told_to_come_again() {
    let mut world = World::unloaded(&[], 1);
    world.holding = true;
    let errors = |world: &mut World| {
        let join = world.ask(9, join("g", ""));
        let sync = world.ask(5, sync("g", "m", 1, &[]));
        let beat = world.ask(4, heartbeat("g", "m", 1));
        let leave = world.ask(5, leave("g", &[("m", None)]));
        let listed = world.call(4, ListGroupsRequest::default());
        let request = DescribeGroupsRequest { groups: vec!["g".into()], ..Default::default() };
        let described = world.call(5, request);
        let request = DeleteGroupsRequest { groups_names: vec!["g".into()], ..Default::default() };
        let deleted = world.call(2, request);
        let fetched = world.call(9, fetch(&[("g", None)], false));
        let old = OffsetFetchRequest {
            group_id: "g".into(),
            topics: Some(vec![offset_fetch_request::OffsetFetchRequestTopic {
                name: "orders".into(),
                partition_indexes: vec![1],
                ..Default::default()
            }]),
            ..Default::default()
        };
        let oldest = world.call(1, old.clone());
        let old = world.call(7, old);
        vec![
            world.error_of::<JoinGroupResponse>(join),
            world.error_of::<SyncGroupResponse>(sync),
            world.error_of::<LeaveGroupResponse>(leave),
            world.commit_errors(8, commit("g", "orders", &[(0, 1)]))[0],
            error(described.groups[0].error_code),
            error(deleted.results[0].error_code),
            error(fetched.groups[0].error_code),
            error(oldest.topics[0].partitions[0].error_code),
            error(old.error_code),
            error(listed.error_code),
            world.error_of::<HeartbeatResponse>(beat),
        ]
    };
    let mut expected = vec![ErrorCode::NotCoordinator; 11];
    expected[9] = ErrorCode::None;
    assert_eq!(errors(&mut world), expected, "a shard of another node");
    world.lead(0);
    let mut expected = vec![ErrorCode::CoordinatorLoadInProgress; 11];
    expected[10] = ErrorCode::None;
    assert_eq!(errors(&mut world), expected, "a shard that is loading");
}

#[test]
fn loading_starts_where_the_log_does_and_fails_loudly() {
    let mut world = World::new(&[]);
    world.commit_errors(8, commit("g", "orders", &[(0, 1)]));
    world.commit_errors(8, commit("g", "orders", &[(0, 2)]));
    let mut again = World::unloaded(&[], 1);
    again.holding = true;
    again.lead(0);
    let (id, partition, offset) = again.reads.pop_front().expect("a read");
    assert_eq!(offset, Offset(0));
    again.raw_event(Event::Read { id: ReadId(id.0 + 1000), result: ReadResult::OtherEpoch });
    again.raw_event(Event::Read { id, result: ReadResult::OutOfRange { log_start: Offset(1) } });
    let (id, _, offset) = again.reads.pop_front().expect("another read");
    assert_eq!(offset, Offset(1));
    again.raw_event(Event::Read { id, result: ReadResult::Failed("the device is gone".into()) });
    assert!(again.reads.is_empty());
    let token = again.ask(8, commit("g", "orders", &[(0, 4)]));
    assert_eq!(commit_error(&mut again, token), ErrorCode::NotCoordinator);
    // It tries again by itself.
    again.pass(Duration::from_secs(1));
    let (id, _, _) = again.reads.pop_front().expect("a new attempt");
    let slice = Slice { batches: Bytes::from_static(&[7; 80]), high_watermark: Offset(2), next: Offset(2) };
    again.raw_event(Event::Read { id, result: ReadResult::Slice(slice) });
    let token = again.ask(8, commit("g", "orders", &[(0, 4)]));
    assert_eq!(commit_error(&mut again, token), ErrorCode::NotCoordinator);
    again.pass(Duration::from_secs(1));
    let (id, _, offset) = again.reads.pop_front().expect("a new attempt");
    again.logs = world.logs.clone();
    again.holding = false;
    again.read(id, partition, offset);
    again.settle();
    assert_eq!(again.committed("g", 0), 2);
}

#[test]
fn a_topic_deleted_while_loading_is_forgotten_afterwards() {
    let mut world = World::new(&[]);
    world.commit_errors(8, commit("g", "orders", &[(0, 1)]));
    let mut again = World::unloaded(&[], 1);
    again.logs = world.logs.clone();
    again.holding = true;
    again.lead(0);
    again.event(Event::TopicDeleted { topic: ORDERS, name: "orders".into() });
    again.holding = false;
    again.settle();
    assert_eq!(again.committed("g", 0), -1);
}

#[test]
fn groups_are_spread_over_partitions_and_gathered_again() {
    let mut world = World::unloaded(&[], 50);
    (0..50).for_each(|partition| world.lead(partition));
    let names: Vec<String> = (0..40).map(|i| format!("group-{i}")).collect();
    for (i, name) in names.iter().enumerate() {
        world.commit_errors(8, commit(name, "orders", &[(0, i as i64)]));
        let at = pollux_coordinators::partition_for(name, 50);
        assert!(world.logs[&at].end > 0);
    }
    let mut listed: Vec<String> =
        world.call(5, ListGroupsRequest::default()).groups.iter().map(|group| group.group_id.to_string()).collect();
    listed.sort();
    let mut sorted = names.clone();
    sorted.sort();
    assert_eq!(listed, sorted);
    let groups: Vec<wire::KafkaString> = names.iter().map(|name| name.as_str().into()).collect();
    let described = world.call(5, DescribeGroupsRequest { groups: groups.clone(), ..Default::default() });
    assert_eq!(described.groups.iter().map(|group| group.group_id.clone()).collect::<Vec<_>>(), groups);
    let wanted: Vec<common::groups::Wanted<'_>> = names.iter().map(|name| (name.as_str(), None)).collect();
    let fetched = world.call(9, fetch(&wanted, true));
    let offsets = fetched.groups.iter().map(|group| group.topics[0].partitions[0].committed_offset);
    assert!(offsets.eq(0..40));
    // A name given twice is deleted once.
    let mut twice = groups.clone();
    twice.push(groups[0].clone());
    let deleted = world.call(2, DeleteGroupsRequest { groups_names: twice, ..Default::default() });
    assert_eq!(deleted.results.len(), 40);
    assert!(deleted.results.iter().all(|result| result.error_code == 0));
    assert!(world.call(5, ListGroupsRequest::default()).groups.is_empty());
}

#[test]
fn another_offsets_topic_starts_from_nothing() {
    let mut world = World::new(&[]);
    world.commit_errors(8, commit("g", "orders", &[(0, 1)]));
    world.event(Event::OffsetsTopic { topic: TopicId(Uuid(78)), partitions: 1 });
    let token = world.ask(8, commit("g", "orders", &[(0, 4)]));
    assert_eq!(commit_error(&mut world, token), ErrorCode::NotCoordinator);
}

#[test]
fn what_is_appended_is_packed_as_is_set() {
    for (number, codec) in [("0", batch::Codec::None), ("1", batch::Codec::Gzip), ("4", batch::Codec::Zstd)] {
        let mut world = World::new(&[("offsets.topic.compression.codec", number)]);
        let token = world.ask(8, commit("g", "orders", &[(0, 1)]));
        world.settle();
        assert_eq!(commit_error(&mut world, token), ErrorCode::None);
        let (view, _) = batch::BatchView::parse(&world.logs[&ZERO].bytes).expect("a batch");
        assert_eq!(view.codec(), Ok(codec));
        assert_eq!(world.committed("g", 0), 1);
    }
}
