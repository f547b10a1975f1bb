//! Committed offsets: committing, fetching and deleting in every version, expiry, deleted topics.

mod common;

use base::TopicId;
use common::groups::{commit, commit_as, fetch, subscription};
use common::{ORDERS, World, error};
use pollux_coordinators::Event;
use std::time::Duration;
use wire::messages::offset_delete_request::{OffsetDeleteRequestPartition, OffsetDeleteRequestTopic};
use wire::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use wire::messages::*;
use wire::{ErrorCode, Message};

#[test]
fn every_version_commits() {
    for version in OffsetCommitRequest::VERSIONS.iter() {
        let mut world = World::new(&[]);
        let mut request = commit("g", "orders", &[(0, 5), (2, 7)]);
        if version >= 10 {
            request.topics[0].topic_id = ORDERS.0;
        }
        let response = world.call(version, request);
        assert_eq!(response.topics.len(), 1);
        assert!(response.topics[0].partitions.iter().all(|partition| partition.error_code == 0), "{response:?}");
        assert_eq!((world.committed("g", 0), world.committed("g", 1), world.committed("g", 2)), (5, -1, 7));
    }
}

/// The trap: every partition asked for is answered, without error, also of a group nobody knows.
#[test]
fn every_version_fetches_what_was_asked_for() {
    for version in OffsetFetchRequest::VERSIONS.iter() {
        let mut world = World::new(&[]);
        world.commit_errors(8, commit("g", "orders", &[(1, 42)]));
        for (group, expected) in [("g", [-1, 42, -1]), ("nobody", [-1; 3])] {
            let request = if version >= 8 {
                let mut request = fetch(&[(group, Some(&[("orders", &[0, 1, 2])]))], false);
                if version >= 10 {
                    request.groups[0].topics.as_mut().expect("topics")[0].topic_id = ORDERS.0;
                }
                request
            } else {
                let topic = OffsetFetchRequestTopic {
                    name: "orders".into(),
                    partition_indexes: vec![0, 1, 2],
                    ..Default::default()
                };
                OffsetFetchRequest { group_id: group.into(), topics: Some(vec![topic]), ..Default::default() }
            };
            let response = world.call(version, request);
            let answers: Vec<(i64, i32, String, i16)> = if version >= 8 {
                assert_eq!(response.groups[0].error_code, 0);
                let partitions = response.groups[0].topics[0].partitions.iter();
                partitions
                    .map(|p| (p.committed_offset, p.committed_leader_epoch, text(&p.metadata), p.error_code))
                    .collect()
            } else {
                assert_eq!(response.error_code, 0);
                let partitions = response.topics[0].partitions.iter();
                partitions
                    .map(|p| (p.committed_offset, p.committed_leader_epoch, text(&p.metadata), p.error_code))
                    .collect()
            };
            for (answer, offset) in answers.iter().zip(expected) {
                let metadata = if offset == -1 { "" } else { "note" };
                assert_eq!(*answer, (offset, -1, metadata.to_owned(), 0), "version {version}");
            }
            assert_eq!(answers.len(), 3);
        }
    }
}

fn text(metadata: &Option<wire::KafkaString>) -> String {
    metadata.as_ref().expect("metadata is never null here").to_string()
}

#[test]
fn all_topics_of_several_groups_are_fetched() {
    let mut world = World::new(&[]);
    world.commit_errors(8, commit("a", "orders", &[(0, 1)]));
    world.commit_errors(8, commit("a", "bills", &[(0, 2)]));
    world.commit_errors(8, commit("b", "orders", &[(1, 3)]));
    let response = world.call(9, fetch(&[("b", None), ("nobody", None), ("a", None)], true));
    let names: Vec<&str> = response.groups.iter().map(|group| group.group_id.as_str()).collect();
    assert_eq!(names, ["b", "nobody", "a"]);
    assert!(response.groups[1].topics.is_empty());
    assert_eq!(
        response.groups[2].topics.iter().map(|topic| topic.name.as_str()).collect::<Vec<_>>(),
        ["bills", "orders"]
    );
    // By id, a topic that is gone cannot be told.
    world.topics.0.remove("bills");
    let response = world.call(10, fetch(&[("a", None)], false));
    assert_eq!(response.groups[0].topics.iter().map(|topic| topic.topic_id).collect::<Vec<_>>(), [ORDERS.0]);
    // Before version 8 null means all.
    let response = world.call(7, OffsetFetchRequest { group_id: "a".into(), topics: None, ..Default::default() });
    assert_eq!(response.topics.len(), 2);
}

#[test]
fn unknown_topics_and_partitions_are_refused_one_by_one() {
    let mut world = World::new(&[]);
    let mut request = commit("g", "orders", &[(0, 1), (3, 1), (-1, 1)]);
    request.topics.extend(commit("g", "nowhere", &[(0, 1)]).topics);
    let response = world.call(9, request.clone());
    let told: Vec<(String, i32, ErrorCode)> = response
        .topics
        .iter()
        .flat_map(|topic| {
            topic.partitions.iter().map(|p| (topic.name.to_string(), p.partition_index, error(p.error_code)))
        })
        .collect();
    let unknown = ErrorCode::UnknownTopicOrPartition;
    let expected =
        [("orders", 3, unknown), ("orders", -1, unknown), ("orders", 0, ErrorCode::None), ("nowhere", 0, unknown)];
    assert_eq!(told, expected.map(|(name, index, error)| (name.to_owned(), index, error)));
    assert_eq!(response.topics.len(), 2, "answers of one topic stand together");

    request.topics[0].topic_id = ORDERS.0;
    request.topics[1].topic_id = base::Uuid(404);
    let response = world.call(10, request);
    assert_eq!(response.topics.len(), 2);
    let unknown: Vec<i16> =
        response.topics.iter().filter(|t| t.topic_id.0 == 404).map(|t| t.partitions[0].error_code).collect();
    assert_eq!(unknown, [ErrorCode::UnknownTopicId.code()]);

    let topics =
        vec![OffsetFetchRequestTopics { topic_id: base::Uuid(404), partition_indexes: vec![0], ..Default::default() }];
    let group = OffsetFetchRequestGroup { group_id: "g".into(), topics: Some(topics), ..Default::default() };
    let response = world.call(10, OffsetFetchRequest { groups: vec![group], ..Default::default() });
    let partition = &response.groups[0].topics[0].partitions[0];
    assert_eq!((error(partition.error_code), partition.committed_offset), (ErrorCode::UnknownTopicId, -1));
}

#[test]
fn metadata_is_limited_in_utf16_units() {
    let mut world = World::new(&[("offset.metadata.max.bytes", "4")]);
    let mut request = commit("g", "orders", &[(0, 1), (1, 1)]);
    request.topics[0].partitions[0].committed_metadata = Some("😀😀".into());
    request.topics[0].partitions[1].committed_metadata = Some("abcde".into());
    assert_eq!(world.commit_errors(8, request), [ErrorCode::None, ErrorCode::OffsetMetadataTooLarge]);
    let mut request = commit("g", "orders", &[(2, 1)]);
    request.topics[0].partitions[0].committed_metadata = None;
    assert_eq!(world.commit_errors(8, request), [ErrorCode::None]);
}

#[test]
fn who_may_commit_when() {
    let mut world = World::new(&[]);
    // A group that nobody knows takes no generation, and says so by version.
    assert_eq!(world.commit_errors(8, commit_as("g", "m", 1, &[(0, 1)])), [ErrorCode::IllegalGeneration]);
    assert_eq!(world.commit_errors(9, commit_as("g", "m", 1, &[(0, 1)])), [ErrorCode::GroupIdNotFound]);
    let (members, generation) = world.stable("g", 2);
    let member = members[1].clone();
    let cases = [
        (member.as_str(), generation, ErrorCode::None),
        (member.as_str(), generation - 1, ErrorCode::IllegalGeneration),
        ("stranger", generation, ErrorCode::UnknownMemberId),
        // Without a generation it is an administrator: not while the group has members.
        ("", -1, ErrorCode::UnknownMemberId),
        (member.as_str(), -1, ErrorCode::IllegalGeneration),
    ];
    for (member, generation, expected) in cases {
        assert_eq!(world.commit_errors(9, commit_as("g", member, generation, &[(0, 9)])), [expected]);
    }
    // While members are called back, the former generation may still commit.
    let (_, token) = world.enter("g");
    assert_eq!(world.state("g"), "PreparingRebalance");
    assert_eq!(world.commit_errors(9, commit_as("g", &member, generation, &[(0, 10)])), [ErrorCode::None]);
    assert_eq!(world.committed("g", 0), 10);
    // Between joining and the assignment nobody may.
    for id in &members {
        world.ask(9, common::groups::join("g", id));
    }
    let joined = world.join_result(token);
    let request = commit_as("g", &member, joined.generation_id, &[(0, 11)]);
    assert_eq!(world.commit_errors(9, request), [ErrorCode::RebalanceInProgress]);
    assert_eq!(world.committed("g", 0), 10);
}

#[test]
fn a_commit_keeps_its_member_alive() {
    let mut world = World::new(&[]);
    let (members, generation) = world.stable("g", 1);
    for _ in 0..5 {
        world.pass(Duration::from_secs(9));
        assert_eq!(world.commit_errors(9, commit_as("g", &members[0], generation, &[(0, 1)])), [ErrorCode::None]);
    }
    assert_eq!(world.state("g"), "Stable");
    world.pass(Duration::from_secs(11));
    assert_eq!(world.state("g"), "Empty");
}

fn delete_offsets(group: &str, topic: &str, partitions: &[i32]) -> OffsetDeleteRequest {
    let partition = |index: &i32| OffsetDeleteRequestPartition { partition_index: *index };
    let topic = OffsetDeleteRequestTopic { name: topic.into(), partitions: partitions.iter().map(partition).collect() };
    OffsetDeleteRequest { group_id: group.into(), topics: vec![topic] }
}

#[test]
fn offsets_are_deleted_unless_someone_reads_the_topic() {
    let mut world = World::new(&[]);
    assert_eq!(world.call(0, delete_offsets("g", "orders", &[0])).error_code, ErrorCode::GroupIdNotFound.code());
    assert_eq!(world.call(0, delete_offsets("", "orders", &[0])).error_code, ErrorCode::InvalidGroupId.code());
    let (members, generation) = world.stable("g", 1);
    let mut request = commit_as("g", &members[0], generation, &[(0, 1), (1, 2)]);
    request.topics.extend(commit("g", "bills", &[(0, 3)]).topics);
    world.commit_errors(9, request);
    let errors = |response: OffsetDeleteResponse| {
        assert_eq!(response.error_code, 0);
        let partitions = response.topics.into_iter().flat_map(|topic| topic.partitions);
        partitions.map(|one| (one.partition_index, error(one.error_code))).collect::<Vec<_>>()
    };
    let subscribed = errors(world.call(0, delete_offsets("g", "orders", &[0, 9])));
    assert_eq!(subscribed, [(9, ErrorCode::UnknownTopicOrPartition), (0, ErrorCode::GroupSubscribedToTopic)]);
    assert_eq!(errors(world.call(0, delete_offsets("g", "bills", &[0]))), [(0, ErrorCode::None)]);
    let left = world.call(9, fetch(&[("g", None)], false));
    assert_eq!(left.groups[0].topics.iter().map(|topic| topic.name.as_str()).collect::<Vec<_>>(), ["orders"]);
    // Nobody is left to read it.
    world.pass(Duration::from_secs(11));
    assert_eq!(
        errors(world.call(0, delete_offsets("g", "orders", &[0, 2]))),
        [(0, ErrorCode::None), (2, ErrorCode::None)]
    );
    assert_eq!((world.committed("g", 0), world.committed("g", 1)), (-1, 2));
    // Members that are no consumers say nothing of topics, so all offsets are theirs.
    let mut join = common::groups::join("other", "");
    join.protocol_type = "connect".into();
    world.enter_as(join);
    assert_eq!(world.call(0, delete_offsets("other", "orders", &[0])).error_code, ErrorCode::NonEmptyGroup.code());
}

const DAY: Duration = Duration::from_secs(24 * 3600);

#[test]
fn offsets_of_groups_without_members_expire_with_the_group() {
    let mut world = World::new(&[]);
    world.commit_errors(8, commit("g", "orders", &[(0, 1)]));
    world.pass(3 * DAY);
    world.commit_errors(8, commit("g", "orders", &[(1, 2)]));
    world.pass(4 * DAY + Duration::from_secs(700));
    assert_eq!((world.committed("g", 0), world.committed("g", 1)), (-1, 2), "each by its own commit");
    assert_eq!(world.state("g"), "Empty");
    world.pass(3 * DAY);
    assert_eq!((world.committed("g", 1), world.state("g").as_str()), (-1, "Dead"));
    // The tombstones are in the log: nothing comes back.
    let mut again = world.replayed();
    assert_eq!((again.committed("g", 1), again.state("g").as_str()), (-1, "Dead"));
}

#[test]
fn offsets_survive_a_clock_that_steps_forth_and_back() {
    let mut world = World::new(&[]);
    world.commit_errors(8, commit("g", "orders", &[(0, 1)]));
    let step = 8 * DAY.as_millis() as i64;
    world.now.wall.0 += step;
    world.pass(Duration::from_secs(1800));
    world.now.wall.0 -= step;
    world.pass(Duration::from_secs(1800));
    assert_eq!(world.committed("g", 0), 1);
    world.now.wall.0 += step;
    world.pass(Duration::from_secs(2 * 3600));
    assert_eq!(world.committed("g", 0), -1, "who says so for an hour is believed");
}

#[test]
fn offsets_of_a_group_that_had_members_expire_from_when_the_last_left() {
    let mut world = World::new(&[]);
    let (members, generation) = world.stable("g", 1);
    for _ in 0..8 * 24 * 3600 / 9 {
        world.pass(Duration::from_secs(9));
        world.beat("g", &members[0], generation);
    }
    world.commit_errors(9, commit_as("g", &members[0], generation, &[(0, 1)]));
    world.pass(6 * DAY);
    assert_eq!((world.committed("g", 0), world.state("g").as_str()), (1, "Empty"));
    world.pass(DAY + Duration::from_secs(700));
    assert_eq!((world.committed("g", 0), world.state("g").as_str()), (-1, "Dead"));
}

#[test]
fn a_topic_that_nobody_of_the_group_reads_expires_meanwhile() {
    let mut world = World::new(&[("offsets.retention.minutes", "1"), ("offsets.retention.check.interval.ms", "10000")]);
    let (members, generation) = world.stable("g", 1);
    let mut request = commit_as("g", &members[0], generation, &[(0, 1)]);
    request.topics.extend(commit("g", "bills", &[(0, 3)]).topics);
    world.commit_errors(9, request);
    for _ in 0..9 {
        world.pass(Duration::from_secs(9));
        assert_eq!(world.beat("g", &members[0], generation), ErrorCode::None);
    }
    let left = world.call(9, fetch(&[("g", None)], false));
    assert_eq!(left.groups[0].topics.iter().map(|topic| topic.name.as_str()).collect::<Vec<_>>(), ["orders"]);
    assert!(!subscription(&["orders"]).is_empty());
}

#[test]
fn a_retention_asked_for_counts() {
    let mut world = World::new(&[]);
    let request = OffsetCommitRequest { retention_time_ms: 3_600_000, ..commit("g", "orders", &[(0, 1)]) };
    world.commit_errors(4, request);
    world.pass(Duration::from_secs(3500));
    assert_eq!(world.committed("g", 0), 1);
    world.pass(Duration::from_secs(800));
    assert_eq!(world.committed("g", 0), -1);
}

#[test]
fn a_deleted_topic_takes_its_offsets_along() {
    let mut world = World::new(&[]);
    world.commit_errors(8, commit("g", "orders", &[(0, 1)]));
    world.commit_errors(8, commit("g", "bills", &[(0, 2)]));
    // A new topic of the same name: commits for it are another's.
    let other = TopicId(base::Uuid(2002));
    world.topics.0.insert("orders".into(), (other, 3));
    world.commit_errors(8, commit("g", "orders", &[(1, 5)]));
    world.event(Event::TopicDeleted { topic: ORDERS, name: "orders".into() });
    assert_eq!((world.committed("g", 0), world.committed("g", 1)), (-1, 5));
    assert_eq!(world.call(9, fetch(&[("g", None)], false)).groups[0].topics.len(), 2);
    let mut again = world.replayed();
    assert_eq!((again.committed("g", 0), again.committed("g", 1)), (-1, 5));
}

#[test]
fn who_asks_by_id_is_not_told_of_a_former_topic() {
    let mut world = World::new(&[]);
    world.commit_errors(8, commit("g", "orders", &[(0, 1)]));
    let other = TopicId(base::Uuid(2002));
    world.topics.0.insert("orders".into(), (other, 3));
    let mut request = fetch(&[("g", Some(&[("", &[0])]))], false);
    request.groups[0].topics.as_mut().expect("topics")[0].topic_id = other.0;
    assert_eq!(world.call(10, request).groups[0].topics[0].partitions[0].committed_offset, -1);
    assert_eq!(world.committed("g", 0), 1, "by name it is the same");
}
