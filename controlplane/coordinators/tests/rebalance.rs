//! Members of classic groups, scripted under virtual time.

mod common;

use common::groups::{commit_as, heartbeat, join, join_static, leave, protocol, subscription, sync};
use common::{World, error};
use pollux_coordinators::{AppendResult, RequestToken};
use std::time::Duration;
use wire::messages::*;
use wire::{ErrorCode, KafkaString, Message};

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

#[test]
fn every_version_joins_syncs_beats_and_leaves() {
    for version in JoinGroupRequest::VERSIONS.iter() {
        let mut world = World::new(&[]);
        let mut request = join("g", "");
        if version >= 4 {
            let first = world.call(version, request.clone());
            assert_eq!(error(first.error_code), ErrorCode::MemberIdRequired);
            assert!(first.member_id.starts_with("client-") && first.member_id.len() == "client-".len() + 36);
            request.member_id = first.member_id;
        }
        let token = world.ask(version, request);
        world.pass(Duration::from_millis(2_999));
        assert!(!world.is_answered(token));
        world.pass(Duration::from_millis(1));
        let joined = world.join_result(token);
        assert_eq!((joined.generation_id, joined.leader.clone()), (1, joined.member_id.clone()));
        assert_eq!(joined.protocol_name.as_deref(), Some("range"));
        assert_eq!(joined.members[0].metadata, subscription(&["orders"]));
        let id = joined.member_id;

        let synced = world.call(version.min(5), sync("g", &id, 1, &[(&id, b"all")]));
        assert_eq!((error(synced.error_code), &synced.assignment[..]), (ErrorCode::None, &b"all"[..]));
        assert_eq!(world.call(version.min(4), heartbeat("g", &id, 1)).error_code, 0);
        let described = world.describe("g");
        assert_eq!((described.group_state.as_str(), described.protocol_data.as_str()), ("Stable", "range"));
        assert_eq!(
            (described.members[0].client_host.as_str(), &described.members[0].member_assignment[..]),
            ("/10.0.0.9", &b"all"[..])
        );

        let version = version.min(5);
        let request = if version < 3 {
            LeaveGroupRequest { group_id: "g".into(), member_id: id.clone(), ..Default::default() }
        } else {
            leave("g", &[(&id, None), ("stranger", None)])
        };
        let left = world.call(version, request.clone());
        assert_eq!(left.error_code, 0);
        if version >= 3 {
            let errors: Vec<ErrorCode> = left.members.iter().map(|member| error(member.error_code)).collect();
            assert_eq!(errors, [ErrorCode::None, ErrorCode::UnknownMemberId]);
        } else {
            assert_eq!(error(world.call(version, request).error_code), ErrorCode::UnknownMemberId);
        }
        assert_eq!(world.state("g"), "Empty");
    }
}

#[test]
fn requests_are_checked_before_the_group() {
    let mut world = World::new(&[]);
    let ask = |world: &mut World, request: JoinGroupRequest| error(world.call(9, request).error_code);
    assert_eq!(ask(&mut world, join("", "")), ErrorCode::InvalidGroupId);
    for (timeout, refused) in [(5_999, true), (6_000, false), (1_800_000, false), (1_800_001, true)] {
        let told = ask(&mut world, JoinGroupRequest { session_timeout_ms: timeout, ..join("g", "") });
        assert_eq!(told, if refused { ErrorCode::InvalidSessionTimeout } else { ErrorCode::MemberIdRequired });
    }
    assert_eq!(ask(&mut world, join("nobody", "some-id")), ErrorCode::UnknownMemberId);
    assert_eq!(world.state("nobody"), "Dead");
    assert_eq!(
        ask(&mut world, JoinGroupRequest { protocols: vec![], ..join("h", "") }),
        ErrorCode::InconsistentGroupProtocol
    );
    let unnamed = SyncGroupRequest { protocol_name: None, ..sync("g", "m", 1, &[]) };
    assert_eq!(error(world.call(5, unnamed).error_code), ErrorCode::InconsistentGroupProtocol);
    assert_eq!(error(world.call(5, sync("nobody", "m", 1, &[])).error_code), ErrorCode::UnknownMemberId);
    assert_eq!(world.beat("nobody", "m", 1), ErrorCode::UnknownMemberId);
    let left = world.call(5, leave("nobody", &[("m", None)]));
    assert_eq!((left.error_code, error(left.members[0].error_code)), (0, ErrorCode::UnknownMemberId));
    assert_eq!(
        error(world.call(2, LeaveGroupRequest { group_id: "nobody".into(), ..Default::default() }).error_code),
        ErrorCode::UnknownMemberId
    );
}

#[test]
fn the_first_rebalance_waits_longer_while_members_come_up_to_its_timeout() {
    let mut world = World::new(&[]);
    let mut request = join("g", "");
    request.rebalance_timeout_ms = 8_000;
    let (_, first) = world.enter_as(request.clone());
    for _ in 0..3 {
        world.pass(seconds(2));
        assert!(!world.is_answered(first));
        world.enter_as(request.clone());
    }
    // 3 s, then 3 s more, then the 2 s that are left of the rebalance timeout: 8 s.
    world.pass(Duration::from_millis(1_999));
    assert_eq!(world.state("g"), "PreparingRebalance");
    world.pass(Duration::from_millis(1));
    assert!(world.is_answered(first));
    assert_eq!(world.state("g"), "CompletingRebalance");
    assert_eq!(world.describe("g").members.len(), 4);
}

#[test]
fn a_member_that_comes_calls_the_others_back() {
    let mut world = World::new(&[]);
    let (members, generation) = world.stable("g", 2);
    let (new, joining) = world.enter("g");
    for member in &members {
        assert_eq!(world.beat("g", member, generation), ErrorCode::RebalanceInProgress);
    }
    let early = world.ask(5, sync("g", &members[0], generation, &[]));
    assert_eq!(world.error_of::<SyncGroupResponse>(early), ErrorCode::RebalanceInProgress);
    let tokens: Vec<RequestToken> = members.iter().map(|member| world.ask(9, join("g", member))).collect();
    // All are there, so nobody waits any longer.
    let joined = world.join_result(joining);
    assert_eq!((joined.generation_id, joined.members.len()), (generation + 1, 0));
    let leader = world.join_result(tokens[0]);
    assert_eq!((leader.leader.clone(), leader.members.len()), (members[0].clone(), 3), "the leader stays the leader");
    assert!(leader.members.iter().all(|member| member.metadata == subscription(&["orders"])));
    let mut everyone = members.clone();
    everyone.push(new.clone());
    world.assign("g", &members[0], generation + 1, &everyone);
    for member in &everyone {
        assert_eq!(world.beat("g", member, generation + 1), ErrorCode::None);
        assert_eq!(world.beat("g", member, generation), ErrorCode::IllegalGeneration);
    }
    assert_eq!(world.beat("g", "stranger", generation + 1), ErrorCode::UnknownMemberId);
    // Asking again for the same is answered with the same.
    let again = world.call(5, sync("g", &new, generation + 1, &[]));
    assert_eq!(&again.assignment[..], new.as_bytes());
    let other = SyncGroupRequest { protocol_name: Some("sticky".into()), ..sync("g", &new, generation + 1, &[]) };
    assert_eq!(error(world.call(5, other).error_code), ErrorCode::InconsistentGroupProtocol);
    assert_eq!(error(world.call(5, sync("g", &new, 1, &[])).error_code), ErrorCode::IllegalGeneration);
}

/// The trap: the leader hears of live members only.
#[test]
fn a_member_that_dies_is_not_told_to_the_leader() {
    let mut world = World::new(&[]);
    let (members, generation) = world.stable("g", 3);
    let alive = [members[1].clone(), members[2].clone()];
    // The leader is killed; the others go on.
    world.pass(seconds(6));
    alive.iter().for_each(|member| assert_eq!(world.beat("g", member, generation), ErrorCode::None));
    world.pass(seconds(5));
    alive.iter().for_each(|member| assert_eq!(world.beat("g", member, generation), ErrorCode::RebalanceInProgress));
    let tokens: Vec<RequestToken> = alive.iter().map(|member| world.ask(9, join("g", member))).collect();
    let joined: Vec<JoinGroupResponse> = tokens.into_iter().map(|token| world.join_result(token)).collect();
    let leader = joined.iter().find(|response| response.leader == response.member_id).expect("one of them leads");
    let mut told: Vec<&KafkaString> = leader.members.iter().map(|member| &member.member_id).collect();
    let mut expected: Vec<&KafkaString> = alive.iter().collect();
    told.sort();
    expected.sort();
    assert_eq!(told, expected);
}

/// The trap: joining and heartbeats are not enough.
#[test]
fn a_member_that_never_syncs_is_out_at_the_rebalance_timeout() {
    let mut world = World::new(&[]);
    let mut request = join("g", "");
    request.rebalance_timeout_ms = 20_000;
    let (_, first) = world.enter_as(request.clone());
    let (_, second) = world.enter_as(request);
    world.pass_until_answered(first);
    let responses = [world.join_result(first), world.join_result(second)];
    let leader = responses[0].leader.clone();
    let other = responses.iter().map(|joined| joined.member_id.clone()).find(|id| *id != leader).expect("a follower");
    let synced = world.call(5, sync("g", &leader, 1, &[(&leader, b"a"), (&other, b"b")]));
    assert_eq!(synced.error_code, 0);
    assert_eq!(world.state("g"), "Stable");
    for _ in 0..3 {
        world.pass(seconds(6));
        assert_eq!(world.beat("g", &leader, 1), ErrorCode::None);
        assert_eq!(world.beat("g", &other, 1), ErrorCode::None);
    }
    world.pass(seconds(2));
    assert_eq!(world.beat("g", &other, 1), ErrorCode::UnknownMemberId);
    assert_eq!(world.beat("g", &leader, 1), ErrorCode::RebalanceInProgress);
    let token = world.ask(9, join("g", &leader));
    let joined = world.join_result(token);
    assert_eq!((joined.generation_id, joined.members.len()), (2, 1));
}

#[test]
fn members_that_do_not_come_back_are_out_at_the_rebalance_timeout() {
    let mut world = World::new(&[]);
    let (members, generation) = world.stable("g", 3);
    let (_, joining) = world.enter("g");
    let back = world.ask(9, join("g", &members[1]));
    for _ in 0..9 {
        world.pass(seconds(6));
        // A member that only beats is told to come, again and again.
        assert_eq!(world.beat("g", &members[0], generation), ErrorCode::RebalanceInProgress);
    }
    assert!(!world.is_answered(joining));
    world.pass(seconds(6));
    let (one, two) = (world.join_result(joining), world.join_result(back));
    assert_eq!(one.members.len() + two.members.len(), 2, "the leader did not come: one that did leads");
    assert_eq!(world.beat("g", &members[0], generation), ErrorCode::UnknownMemberId);
}

#[test]
fn ids_that_are_never_used_expire() {
    let mut world = World::new(&[]);
    let first = world.call(9, join("g", ""));
    let (_, token) = world.enter("g");
    // The group waits for the first rebalance only, not for the id.
    world.pass(seconds(3));
    let joined = world.join_result(token);
    world.assign("g", &joined.leader, 1, std::slice::from_ref(&joined.member_id));
    world.pass(seconds(7));
    world.beat("g", &joined.member_id, 1);
    let late = world.ask(9, join("g", &first.member_id));
    assert_eq!(world.error_of::<JoinGroupResponse>(late), ErrorCode::UnknownMemberId);
    // Later rebalances do wait for it, until its session ends.
    let pending = world.call(9, join("g", ""));
    let again = world.ask(9, join("g", &joined.member_id));
    world.pass(seconds(9));
    assert!(!world.is_answered(again));
    world.pass(seconds(1));
    assert_eq!(world.join_result(again).generation_id, 2);
    assert!(!pending.member_id.is_empty());
}

#[test]
fn an_id_can_be_given_back() {
    let mut world = World::new(&[]);
    let (members, _) = world.stable("g", 1);
    let pending = world.call(9, join("g", ""));
    let again = world.ask(9, join("g", &members[0]));
    assert!(!world.is_answered(again));
    let left = world.call(5, leave("g", &[(&pending.member_id, None)]));
    assert_eq!(left.members[0].error_code, 0);
    assert!(world.is_answered(again), "nobody is left to wait for");
}

#[test]
fn a_join_that_is_repeated_in_a_stable_group_changes_nothing_unless_it_says_so() {
    let mut world = World::new(&[]);
    let (members, generation) = world.stable("g", 2);
    let same = world.call(9, join("g", &members[1]));
    assert_eq!((same.generation_id, same.leader, same.members.len()), (generation, members[0].clone(), 0));
    assert_eq!(world.state("g"), "Stable");
    let mut changed = join("g", &members[1]);
    changed.protocols = vec![protocol("range", &subscription(&["orders", "bills"]))];
    let token = world.ask(9, changed);
    assert_eq!(world.state("g"), "PreparingRebalance");
    world.ask(9, join("g", &members[0]));
    assert_eq!(world.join_result(token).generation_id, generation + 1);
    world.assign("g", &members[0], generation + 1, &members);
    // The leader may have new partitions to assign.
    world.ask(9, join("g", &members[0]));
    assert_eq!(world.state("g"), "PreparingRebalance");
}

#[test]
fn a_join_that_is_repeated_before_the_assignment_is_answered_alike() {
    let mut world = World::new(&[]);
    let (id, token) = world.enter("g");
    world.pass_until_answered(token);
    let first = world.join_result(token);
    let again = world.call(9, join("g", &id));
    assert_eq!(again, first);
    // Another connection takes over a wait.
    let (_, waiting) = world.enter("g");
    assert!(!world.is_answered(waiting));
    let rejoined = world.ask(9, join("g", &id));
    assert_eq!(world.join_result(rejoined).generation_id, 2);
}

#[test]
fn a_wait_on_another_connection_supersedes_the_first() {
    let mut world = World::new(&[]);
    let (id, first) = world.enter("g");
    let second = world.ask(9, join("g", &id));
    assert_eq!(world.error_of::<JoinGroupResponse>(first), ErrorCode::RebalanceInProgress);
    world.pass_until_answered(second);
    assert_eq!(world.join_result(second).members.len(), 1);
    let (_, other) = world.enter("g");
    let third = world.ask(9, join("g", &id));
    let leader = world.join_result(third).leader;
    let follower = world.join_result(other).member_id;
    assert_eq!(leader, id);
    let first = world.ask(5, sync("g", &follower, 2, &[]));
    let second = world.ask(5, sync("g", &follower, 2, &[]));
    assert_eq!(world.error_of::<SyncGroupResponse>(first), ErrorCode::RebalanceInProgress);
    world.call(5, sync("g", &leader, 2, &[(&follower, b"x")]));
    assert_eq!(&world.taken::<SyncGroupResponse>(second).assignment[..], b"x");
}

#[test]
fn a_member_that_leaves_calls_the_others_and_the_last_leaves_an_empty_group() {
    let mut world = World::new(&[]);
    let (members, generation) = world.stable("g", 2);
    world.commit_errors(9, commit_as("g", &members[0], generation, &[(0, 7)]));
    world.call(5, leave("g", &[(&members[0], None)]));
    assert_eq!(world.beat("g", &members[1], generation), ErrorCode::RebalanceInProgress);
    world.call(5, leave("g", &[(&members[1], None)]));
    let described = world.describe("g");
    assert_eq!((described.group_state.as_str(), described.protocol_type.as_str()), ("Empty", "consumer"));
    assert_eq!(world.committed("g", 0), 7);
    assert_eq!(world.replayed().describe("g"), described);
    let request = DeleteGroupsRequest { groups_names: vec!["g".into(), "nobody".into()], ..Default::default() };
    let deleted = world.call(2, request.clone());
    let errors: Vec<ErrorCode> = deleted.results.iter().map(|result| error(result.error_code)).collect();
    assert_eq!(errors, [ErrorCode::None, ErrorCode::GroupIdNotFound]);
    assert_eq!((world.state("g").as_str(), world.committed("g", 0)), ("Dead", -1));
    let (_, generation) = world.stable("g", 1);
    assert_eq!(generation, 1, "a group of the same name is another");
    let refused = world.call(2, request);
    assert_eq!(error(refused.results[0].error_code), ErrorCode::NonEmptyGroup);
}

#[test]
fn a_member_that_leaves_while_it_waits_is_answered() {
    let mut world = World::new(&[]);
    let (id, token) = world.enter("g");
    world.call(5, leave("g", &[(&id, None)]));
    assert_eq!(world.error_of::<JoinGroupResponse>(token), ErrorCode::UnknownMemberId);
    world.pass(seconds(3));
    assert_eq!(world.state("g"), "Empty");
    let (one, first) = world.enter("g");
    let (two, second) = world.enter("g");
    world.pass_until_answered(first);
    let leader = world.join_result(first).leader;
    world.join_result(second);
    let follower = if leader == one { two } else { one };
    let waiting = world.ask(5, sync("g", &follower, 2, &[]));
    world.call(5, leave("g", &[(&follower, None)]));
    assert_eq!(world.error_of::<SyncGroupResponse>(waiting), ErrorCode::UnknownMemberId);
}

#[test]
fn members_agree_on_a_protocol_that_all_know() {
    let mut world = World::new(&[]);
    let with = |protocols: &[&str]| {
        let metadata = subscription(&["orders"]);
        let protocols = protocols.iter().map(|name| protocol(name, &metadata)).collect();
        JoinGroupRequest { protocols, ..join("g", "") }
    };
    let (_, first) = world.enter_as(with(&["a", "b", "c"]));
    let (_, second) = world.enter_as(with(&["b", "c"]));
    let (_, third) = world.enter_as(with(&["c", "b", "d"]));
    let stranger = world.call(9, with(&["a", "d"]));
    assert_eq!(error(stranger.error_code), ErrorCode::InconsistentGroupProtocol);
    let other_type = JoinGroupRequest { protocol_type: "connect".into(), ..with(&["b"]) };
    assert_eq!(error(world.call(9, other_type).error_code), ErrorCode::InconsistentGroupProtocol);
    world.pass_until_answered(first);
    for token in [first, second, third] {
        assert_eq!(world.join_result(token).protocol_name.as_deref(), Some("b"), "two of three votes");
    }
}

#[test]
fn a_group_takes_no_more_members_than_it_may() {
    let mut world = World::new(&[("group.max.size", "2")]);
    let (members, _) = world.stable("g", 2);
    let third = world.call(9, join("g", ""));
    assert_eq!((error(third.error_code), third.member_id.as_str()), (ErrorCode::GroupMaxSizeReached, ""));
    // Ids may be given out beyond it; who comes first is in.
    let mut world = World::new(&[("group.max.size", "1")]);
    let ids: Vec<KafkaString> = (0..2).map(|_| world.call(9, join("g", "")).member_id).collect();
    let first = world.ask(9, join("g", &ids[0]));
    let second = world.ask(9, join("g", &ids[1]));
    assert_eq!(world.error_of::<JoinGroupResponse>(second), ErrorCode::GroupMaxSizeReached);
    world.pass_until_answered(first);
    assert_eq!(world.join_result(first).members.len(), 1);
    assert_eq!(members.len(), 2);
}

#[test]
fn a_loaded_group_that_is_too_large_gives_its_members_the_chance_to_commit() {
    let mut world = World::new(&[]);
    let (members, generation) = world.stable("g", 3);
    let mut small = World::unloaded(&[("group.max.size", "2")], 1);
    small.logs = world.logs.clone();
    small.now = world.now;
    small.lead(0);
    assert_eq!(small.state("g"), "PreparingRebalance");
    assert_eq!(small.commit_errors(9, commit_as("g", &members[0], generation, &[(0, 4)])), [ErrorCode::None]);
    let tokens: Vec<RequestToken> = members.iter().map(|member| small.ask(9, join("g", member))).collect();
    let last = small.error_of::<JoinGroupResponse>(tokens[2]);
    assert_eq!(last, ErrorCode::GroupMaxSizeReached);
    small.pass_until_answered(tokens[0]);
    assert_eq!(small.describe("g").members.len(), 2);
}

#[test]
fn sessions_start_anew_when_a_group_is_loaded() {
    let mut world = World::new(&[]);
    let (members, generation) = world.stable("g", 2);
    let mut again = world.replayed();
    assert_eq!(again.describe("g"), world.describe("g"));
    again.pass(seconds(9));
    assert_eq!(again.beat("g", &members[0], generation), ErrorCode::None);
    again.pass(seconds(2));
    assert_eq!(again.beat("g", &members[1], generation), ErrorCode::UnknownMemberId);
    assert_eq!(again.beat("g", &members[0], generation), ErrorCode::RebalanceInProgress);
}

#[test]
fn an_assignment_that_could_not_be_written_is_made_again() {
    let mut world = World::new(&[]);
    let (_, first) = world.enter("g");
    let (_, second) = world.enter("g");
    world.pass_until_answered(first);
    let (leader, ids) = {
        let responses = [world.join_result(first), world.join_result(second)];
        (responses[0].leader.clone(), responses.map(|joined| joined.member_id))
    };
    let follower = ids.iter().find(|id| **id != leader).expect("a follower").clone();
    world.holding = true;
    let waiting = world.ask(5, sync("g", &follower, 1, &[]));
    let leading = world.ask(5, sync("g", &leader, 1, &[(&follower, b"x")]));
    assert!(!world.is_answered(waiting));
    world.end_append(AppendResult::Refused(ErrorCode::NotEnoughReplicas));
    for token in [waiting, leading] {
        assert_eq!(world.error_of::<SyncGroupResponse>(token), ErrorCode::CoordinatorNotAvailable);
    }
    world.holding = false;
    world.settle();
    assert_eq!(world.state("g"), "PreparingRebalance");
    let tokens = [world.ask(9, join("g", &leader)), world.ask(9, join("g", &follower))];
    assert_eq!(world.join_result(tokens[0]).generation_id, 2);
    world.join_result(tokens[1]);
    world.assign("g", &leader, 2, &ids);
    assert_eq!(world.replayed().describe("g"), world.describe("g"));
}

#[test]
fn an_assignment_that_a_rebalance_overtakes_reaches_nobody() {
    let mut world = World::new(&[]);
    let (_, token) = world.enter("g");
    world.pass_until_answered(token);
    let leader = world.join_result(token).leader;
    world.holding = true;
    let leading = world.ask(5, sync("g", &leader, 1, &[(&leader, b"x")]));
    let new = world.ask(9, join("g", ""));
    let id = world.taken::<JoinGroupResponse>(new).member_id;
    let joining = world.ask(9, join("g", &id));
    assert_eq!(world.error_of::<SyncGroupResponse>(leading), ErrorCode::RebalanceInProgress);
    world.holding = false;
    world.settle();
    assert_eq!(world.state("g"), "PreparingRebalance");
    world.ask(9, join("g", &leader));
    assert_eq!(world.join_result(joining).generation_id, 2);
}

#[test]
fn a_group_whose_first_record_is_refused_never_was() {
    let mut world = World::new(&[]);
    world.holding = true;
    let first = world.ask(9, join("g", ""));
    let id = world.taken::<JoinGroupResponse>(first).member_id;
    let joining = world.ask(9, join("g", &id));
    world.end_append(AppendResult::Refused(ErrorCode::KafkaStorageError));
    assert_eq!(world.error_of::<JoinGroupResponse>(joining), ErrorCode::NotCoordinator);
    world.holding = false;
    world.settle();
    assert_eq!(world.state("g"), "Dead");
    world.pass(seconds(30));
    let again = world.ask(9, join("g", &id));
    assert_eq!(world.error_of::<JoinGroupResponse>(again), ErrorCode::UnknownMemberId);
}

/// A stable group of one dynamic and one static member: ids and generation, the static one's first.
#[test]
fn a_group_without_delay_starts_at_once() {
    let mut world = World::new(&[("group.initial.rebalance.delay.ms", "0")]);
    let (_, token) = world.enter("g");
    world.pass(Duration::ZERO);
    assert_eq!(world.join_result(token).generation_id, 1);
    // Timeouts of nothing are no busy loop either.
    let request = JoinGroupRequest { rebalance_timeout_ms: -5, ..join("h", "") };
    let (_, token) = world.enter_as(request);
    world.pass(seconds(1));
    assert!(world.is_answered(token));
    world.pass(seconds(60));
    assert_eq!(world.state("h"), "Empty");
}

#[test]
fn groups_are_listed_by_state_and_type() {
    let mut world = World::new(&[]);
    world.stable("stable", 1);
    world.enter("preparing");
    world.commit_errors(8, common::groups::commit("simple", "orders", &[(0, 1)]));
    let list = |world: &mut World, version: i16, states: &[&str], types: &[&str]| {
        let own = |names: &[&str]| names.iter().map(|name| KafkaString::from(*name)).collect::<Vec<_>>();
        let request = ListGroupsRequest { states_filter: own(states), types_filter: own(types), ..Default::default() };
        let response = world.call(version, request);
        assert_eq!(response.error_code, 0);
        response.groups.iter().map(|group| group.group_id.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(list(&mut world, 5, &[], &[]), ["preparing", "simple", "stable"]);
    assert_eq!(list(&mut world, 4, &["stable", " EMPTY "], &[]), ["simple", "stable"]);
    assert_eq!(list(&mut world, 5, &["PreparingRebalance"], &["Classic"]), ["preparing"]);
    assert!(list(&mut world, 5, &[], &["consumer"]).is_empty() && list(&mut world, 5, &["none"], &[]).is_empty());
    for version in ListGroupsRequest::VERSIONS.iter() {
        assert_eq!(list(&mut world, version, &[], &[]).len(), 3);
    }
    for version in DescribeGroupsRequest::VERSIONS.iter() {
        let groups = vec!["stable".into(), "nobody".into()];
        let operations = version >= 3;
        let request = DescribeGroupsRequest { groups, include_authorized_operations: operations, ..Default::default() };
        let response = world.call(version, request);
        assert_eq!(response.groups[0].authorized_operations, if operations { 3400 } else { i32::MIN });
        let missing = if version >= 6 { ErrorCode::GroupIdNotFound } else { ErrorCode::None };
        assert_eq!((error(response.groups[1].error_code), response.groups[1].group_state.as_str()), (missing, "Dead"));
    }
}

#[test]
fn an_id_that_would_be_longer_than_its_field_is_refused() {
    let mut world = World::new(&[]);
    let long = "x".repeat(32_750);
    let refused = world.call(9, join_static("g", "", &long));
    assert_eq!((error(refused.error_code), refused.member_id.as_str()), (ErrorCode::UnknownServerError, ""));
    let token = world.ask_as(&long, 3, join("g", ""));
    assert_eq!(world.error_of::<JoinGroupResponse>(token), ErrorCode::UnknownServerError);
    assert!(world.describe("g").members.is_empty());
    // The longest that fits.
    let token = world.ask(9, join_static("g", "", &long[..32_767 - 37]));
    world.pass_until_answered(token);
    let joined = world.join_result(token);
    assert_eq!(world.call(5, sync("g", &joined.member_id, 1, &[])).error_code, 0);
}
