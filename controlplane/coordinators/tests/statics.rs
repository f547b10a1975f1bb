//! Static members of classic groups (KIP-345).

mod common;

use common::groups::{commit_as, heartbeat, join, join_static, leave, protocol, subscription, sync};
use common::{World, error};
use pollux_coordinators::AppendResult;
use std::time::Duration;
use wire::messages::*;
use wire::{ErrorCode, KafkaString};

fn with_static(world: &mut World, instance: &str) -> ([KafkaString; 2], i32) {
    let fixed = world.ask(9, join_static("g", "", instance));
    let (dynamic, token) = world.enter("g");
    world.pass_until_answered(fixed);
    let joined = world.join_result(fixed);
    world.join_result(token);
    assert!(joined.member_id.starts_with(&format!("{instance}-")));
    let ids = [joined.member_id, dynamic];
    world.assign("g", &joined.leader, joined.generation_id, &ids);
    (ids, joined.generation_id)
}

#[test]
fn a_static_member_comes_back_without_a_rebalance() {
    for version in [5, 8, 9] {
        let mut world = World::new(&[]);
        let ([old, dynamic], generation) = with_static(&mut world, "seat");
        let leader = world.call(9, join("g", &dynamic)).leader;
        let back = world.call(version, join_static("g", "", "seat"));
        assert_eq!((error(back.error_code), back.generation_id), (ErrorCode::None, generation));
        assert_ne!(back.member_id, old);
        assert_eq!(world.beat("g", &dynamic, generation), ErrorCode::None);
        if leader == old {
            // It must not assign anew: it is told so, or takes another for the leader.
            assert_eq!(back.skip_assignment, version >= 9);
            assert_eq!(back.leader == back.member_id, version >= 9);
            assert_eq!(back.members.len(), if version >= 9 { 2 } else { 0 });
        }
        let synced = world.call(5, sync("g", &back.member_id, generation, &[]));
        assert_eq!(&synced.assignment[..], old.as_bytes(), "the assignment stays with the seat");
        // The former self is fenced wherever it shows up with its instance.
        let request = HeartbeatRequest { group_instance_id: Some("seat".into()), ..heartbeat("g", &old, generation) };
        assert_eq!(error(world.call(4, request).error_code), ErrorCode::FencedInstanceId);
        let request = OffsetCommitRequest {
            group_instance_id: Some("seat".into()),
            ..commit_as("g", &old, generation, &[(0, 1)])
        };
        assert_eq!(world.commit_errors(9, request), [ErrorCode::FencedInstanceId]);
        let again = world.call(9, join_static("g", &old, "seat"));
        assert_eq!((error(again.error_code), again.protocol_name), (ErrorCode::FencedInstanceId, None));
        assert_eq!(world.replayed().describe("g"), world.describe("g"), "the new id is in the log");
    }
}

#[test]
fn a_static_member_that_waits_is_fenced_by_its_successor() {
    let mut world = World::new(&[]);
    let first = world.ask(9, join_static("g", "", "seat"));
    let second = world.ask(9, join_static("g", "", "seat"));
    let fenced: JoinGroupResponse = world.taken(first);
    assert_eq!((error(fenced.error_code), fenced.protocol_name), (ErrorCode::FencedInstanceId, None));
    world.pass_until_answered(second);
    let joined = world.join_result(second);
    assert_eq!(joined.members.len(), 1);
    // Before the assignment everyone is called again: the leader may assign to the old id.
    let third = world.ask(9, join_static("g", "", "seat"));
    let joined = world.join_result(third);
    assert_eq!(joined.generation_id, 2);
    let request = SyncGroupRequest { group_instance_id: Some("other".into()), ..sync("g", &joined.member_id, 2, &[]) };
    assert_eq!(error(world.call(5, request).error_code), ErrorCode::UnknownMemberId);
}

#[test]
fn a_static_member_that_changes_the_protocol_rebalances() {
    let mut world = World::new(&[]);
    let metadata = subscription(&["orders"]);
    let both = |names: &[&str]| names.iter().map(|name| protocol(name, &metadata)).collect::<Vec<_>>();
    let request = JoinGroupRequest { protocols: both(&["range", "sticky"]), ..join_static("g", "", "seat") };
    let token = world.ask(9, request);
    world.pass_until_answered(token);
    let joined = world.join_result(token);
    world.call(5, sync("g", &joined.member_id, 1, &[]));
    let request = JoinGroupRequest { protocols: both(&["sticky", "range"]), ..join_static("g", "", "seat") };
    let token = world.ask(9, request);
    let joined = world.join_result(token);
    assert_eq!((joined.generation_id, joined.protocol_name.as_deref()), (2, Some("sticky")));
}

#[test]
fn a_replacement_that_could_not_be_written_is_taken_back() {
    let mut world = World::new(&[]);
    let ([old, dynamic], generation) = with_static(&mut world, "seat");
    world.holding = true;
    let back = world.ask(9, join_static("g", "", "seat"));
    assert!(!world.is_answered(back));
    world.end_append(AppendResult::Refused(ErrorCode::NotEnoughReplicas));
    assert_eq!(world.error_of::<JoinGroupResponse>(back), ErrorCode::CoordinatorNotAvailable);
    world.holding = false;
    world.settle();
    let request = HeartbeatRequest { group_instance_id: Some("seat".into()), ..heartbeat("g", &old, generation) };
    assert_eq!(world.call(4, request).error_code, 0, "the old id is the member again");
    assert_eq!(world.beat("g", &dynamic, generation), ErrorCode::None);
    assert_eq!(world.replayed().describe("g"), world.describe("g"));
}

#[test]
fn static_members_are_removed_by_their_instance_only() {
    let mut world = World::new(&[]);
    let ([id, dynamic], _) = with_static(&mut world, "seat");
    let left = world.call(5, leave("g", &[("", Some("nobody")), (&dynamic, Some("seat")), (&id, Some("seat"))]));
    let errors: Vec<ErrorCode> = left.members.iter().map(|member| error(member.error_code)).collect();
    assert_eq!(errors, [ErrorCode::UnknownMemberId, ErrorCode::FencedInstanceId, ErrorCode::None]);
    let mut world = World::new(&[]);
    with_static(&mut world, "seat");
    let left = world.call(3, leave("g", &[("", Some("seat"))]));
    assert_eq!((left.members[0].error_code, left.members[0].member_id.as_str()), (0, ""));
    assert_eq!(world.describe("g").members.len(), 1);
}

#[test]
fn static_members_that_do_not_come_back_stay_until_their_sessions_end() {
    let mut world = World::new(&[]);
    let mut request = join_static("g", "", "seat");
    request.session_timeout_ms = 300_000;
    let fixed = world.ask(9, request);
    world.pass_until_answered(fixed);
    let joined = world.join_result(fixed);
    world.call(5, sync("g", &joined.member_id, 1, &[]));
    let (_, joining) = world.enter("g");
    world.pass(Duration::from_secs(61));
    // It is still a member, and in the next generation.
    let told = world.join_result(joining);
    assert_eq!((told.generation_id, told.members.len()), (2, 2));
}
