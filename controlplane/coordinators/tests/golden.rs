//! A log of groups that Apache Kafka 4.4 wrote (`tests/golden/groups/Record.java` of the repository made it), replayed:
//! the answers are those that Kafka gave on it.

mod common;

use base::{PartitionIndex, TopicId};
use common::World;
use std::collections::BTreeSet;
use wire::KafkaString;
use wire::messages::*;

const LOG: &[u8] = include_bytes!("../../../tests/golden/groups/consumer_offsets.log");
const ANSWERS: &str = include_str!("../../../tests/golden/groups/answers.txt");
/// Kafka's answers about the group of the newer protocol are not ours to give yet.
const OF_ANOTHER_PROTOCOL: &str = "listed modern ";

fn replayed() -> World {
    let mut world = World::unloaded(&[], 1);
    let orders = ANSWERS.lines().next().and_then(|line| line.strip_prefix("topic orders ")).expect("the topic's id");
    world.topics.0.clear();
    world.topics.0.insert("orders".into(), (TopicId(orders.parse().expect("an id")), 2));
    // As of the recording, so that nothing has expired.
    world.now.wall.0 = 1_795_997_281_000;
    let log = world.logs.entry(PartitionIndex(0)).or_default();
    log.bytes = LOG.to_vec();
    let end = batch::Batches::new(LOG).map(|view| view.expect("a good batch").next_offset().0).last();
    log.end = end.expect("the log is not empty");
    world.lead(0);
    world
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn null_or(text: &Option<KafkaString>) -> String {
    text.as_ref().map_or("null".to_owned(), |text| text.to_string())
}

/// The same questions as the recorder's, the answers written as it does.
fn tell(world: &mut World) -> Vec<String> {
    let mut lines = vec![];
    let listed = world.call(5, ListGroupsRequest::default());
    assert_eq!(listed.error_code, 0);
    let mut groups: Vec<KafkaString> = vec!["nobody".into()];
    for group in listed.groups {
        lines.push(format!(
            "listed {} {} {} [{}]",
            group.group_id, group.group_state, group.group_type, group.protocol_type
        ));
        groups.push(group.group_id);
    }
    let request =
        DescribeGroupsRequest { groups: groups.clone(), include_authorized_operations: true, ..Default::default() };
    for group in world.call(6, request).groups {
        lines.push(format!(
            "described {} {} [{}] {} [{}] [{}] {}",
            group.group_id,
            group.error_code,
            null_or(&group.error_message),
            group.group_state,
            group.protocol_type,
            group.protocol_data,
            group.authorized_operations
        ));
        for member in group.members {
            lines.push(format!(
                "member {} {} {} {} {} {} {}",
                group.group_id,
                member.member_id,
                null_or(&member.group_instance_id),
                member.client_id,
                member.client_host,
                hex(&member.member_metadata),
                hex(&member.member_assignment)
            ));
        }
    }
    for (name, require_stable) in [("any", false), ("stable", true)] {
        for group in &groups {
            let wanted: &[(&str, &[i32])] = &[("orders", &[0, 1, 2]), ("gone", &[0])];
            let response = world.call(9, common::groups::fetch(&[(group, Some(wanted))], require_stable));
            for topic in &response.groups[0].topics {
                for one in &topic.partitions {
                    lines.push(format!(
                        "offset {name} {group} {} {} {} {} [{}] {}",
                        topic.name,
                        one.partition_index,
                        one.committed_offset,
                        one.committed_leader_epoch,
                        null_or(&one.metadata),
                        one.error_code
                    ));
                }
            }
        }
    }
    lines
}

#[test]
fn kafkas_log_gives_kafkas_answers() {
    let mut world = replayed();
    let ours: BTreeSet<String> = tell(&mut world).into_iter().collect();
    let kafkas = ANSWERS.lines().skip(1).filter(|line| !line.starts_with(OF_ANOTHER_PROTOCOL));
    let kafkas: BTreeSet<String> = kafkas.map(str::to_owned).collect();
    assert!(kafkas.len() > 60);
    assert_eq!(ours, kafkas);
}

#[test]
fn a_group_of_another_protocol_is_let_be() {
    let mut world = replayed();
    let joined = world.call(9, common::groups::join("modern", ""));
    assert_eq!(common::error(joined.error_code), wire::ErrorCode::InconsistentGroupProtocol);
    let refused = world.commit_errors(9, common::groups::commit("modern", "orders", &[(0, 1)]));
    assert_eq!(refused, [wire::ErrorCode::UnknownMemberId]);
    let deleted = world.call(2, DeleteGroupsRequest { groups_names: vec!["modern".into()], ..Default::default() });
    assert_eq!(common::error(deleted.results[0].error_code), wire::ErrorCode::NonEmptyGroup);
    assert_eq!(world.committed("modern", 0), 10, "its offsets can be read");
}
