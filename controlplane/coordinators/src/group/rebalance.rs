//! How a group gets from one generation to the next: members are called, come together within a time, hear of the new
//! generation, and ask for what the leader assigned.

use super::classic::{ClassicGroup, Preparing, State};
use super::member::wait;
use super::record::GroupRecord;
use super::settings::GroupSettings;
use super::{GroupTurn, GroupWritten, Timer, answer_join, answer_sync, sync_error};
use bytes::Bytes;
use std::time::Duration;
use wire::messages::join_group_response::JoinGroupResponseMember;
use wire::messages::{JoinGroupResponse, SyncGroupResponse};
use wire::{ErrorCode, KafkaString};

/// A member has been heard of: its session starts anew.
pub(super) fn restart_session(turn: &mut GroupTurn<'_>, group: &ClassicGroup, member: &str) {
    if let Some(member) = group.member(member) {
        set_session(turn, &group.id, &member.id, wait(member.session_timeout_ms));
    }
}

pub(super) fn set_session(turn: &mut GroupTurn<'_>, group: &KafkaString, member: &KafkaString, timeout: Duration) {
    turn.timers.set(Timer::Session(group.clone(), member.clone()), turn.now.monotonic + timeout);
}

/// What a member is told of the present generation.
pub(super) fn joined(
    group: &ClassicGroup,
    member: &KafkaString,
    members: Vec<JoinGroupResponseMember>,
) -> JoinGroupResponse {
    JoinGroupResponse {
        generation_id: group.generation,
        protocol_type: group.protocol_type.clone(),
        protocol_name: group.protocol.clone(),
        leader: group.leader.clone().unwrap_or_default(),
        member_id: member.clone(),
        members,
        ..Default::default()
    }
}

/// Something about the members changed.
pub(super) fn rebalance_or_complete(
    turn: &mut GroupTurn<'_>,
    group: &mut ClassicGroup,
    settings: &GroupSettings,
) -> GroupWritten {
    if group.is_preparing() { complete_if_all_joined(turn, group) } else { prepare(turn, group, settings) }
}

/// Calls the members of a group that is not being rebalanced.
pub(super) fn prepare(turn: &mut GroupTurn<'_>, group: &mut ClassicGroup, settings: &GroupSettings) -> GroupWritten {
    if group.state() == State::Completing {
        set_assignments(group, |_| Bytes::new());
        propagate_assignment(turn, group, Err(ErrorCode::RebalanceInProgress));
    }
    group.pending_syncs.clear();
    turn.timers.cancel(&Timer::Sync(group.id.clone()));
    if group.state() == State::Empty {
        let delay = settings.initial_rebalance_delay;
        let remaining = wait(group.rebalance_timeout_ms()).saturating_sub(delay);
        let preparing = Preparing::Initial { joined_since: false, delay, remaining };
        group.transition_to(State::Preparing(preparing), turn.now.wall);
        turn.timers.set(Timer::Join(group.id.clone()), turn.now.monotonic + delay);
        return GroupWritten::nothing();
    }
    group.transition_to(State::Preparing(Preparing::Again), turn.now.wall);
    if group.all_have_joined() {
        return complete_join(turn, group);
    }
    let timeout = wait(group.rebalance_timeout_ms());
    turn.timers.set(Timer::Join(group.id.clone()), turn.now.monotonic + timeout);
    GroupWritten::nothing()
}

/// The first rebalance of a group always takes its time; a later one ends once everyone is there.
pub(super) fn complete_if_all_joined(turn: &mut GroupTurn<'_>, group: &mut ClassicGroup) -> GroupWritten {
    match group.state() {
        State::Preparing(Preparing::Again) if group.all_have_joined() => complete_join(turn, group),
        _ => GroupWritten::nothing(),
    }
}

pub(super) fn on_join_timer(
    turn: &mut GroupTurn<'_>,
    group: &mut ClassicGroup,
    settings: &GroupSettings,
) -> GroupWritten {
    match group.state() {
        State::Preparing(Preparing::Initial { joined_since: true, delay, remaining }) if !remaining.is_zero() => {
            let next = settings.initial_rebalance_delay.min(remaining);
            let left = remaining.saturating_sub(delay);
            group.set_preparing(Preparing::Initial { joined_since: false, delay: next, remaining: left });
            turn.timers.set(Timer::Join(group.id.clone()), turn.now.monotonic + next.max(Duration::from_millis(1)));
            GroupWritten::nothing()
        }
        State::Preparing(_) => complete_join(turn, group),
        State::Empty | State::Completing | State::Stable => GroupWritten::nothing(),
    }
}

/// Ends the waiting: dynamic members that did not come are out, and a generation begins with the rest.
pub(super) fn complete_join(turn: &mut GroupTurn<'_>, group: &mut ClassicGroup) -> GroupWritten {
    turn.timers.cancel(&Timer::Join(group.id.clone()));
    let absent: Vec<KafkaString> = group
        .members()
        .filter(|member| member.awaiting_join.is_none() && !member.is_static())
        .map(|member| member.id.clone())
        .collect();
    for member in absent {
        group.remove(&member);
        turn.timers.cancel(&Timer::Session(group.id.clone(), member));
    }
    if !group.elect_joined_leader() && group.members_count() > 0 {
        // Only static members are left and none of them came: their sessions end sooner or later.
        group.set_preparing(Preparing::Again);
        let timeout = wait(group.rebalance_timeout_ms());
        turn.timers.set(Timer::Join(group.id.clone()), turn.now.monotonic + timeout);
        return GroupWritten::nothing();
    }
    group.begin_generation(turn.now.wall);
    if group.state() == State::Empty {
        let record = GroupRecord::Group(group.id.clone(), Some(group.to_record(|_| Bytes::new())));
        return GroupWritten::records(vec![record]);
    }
    let ids: Vec<KafkaString> = group.members().map(|member| member.id.clone()).collect();
    for id in ids {
        let members = if group.is_leader(&id) { group.members_for_leader() } else { Vec::new() };
        if let Some(asker) = group.set_awaiting_join(&id, None) {
            answer_join(turn, asker, joined(group, &id, members));
        }
        restart_session(turn, group, &id);
        group.member_mut(&id).expect("members stay").is_new = false;
        group.pending_syncs.insert(id);
    }
    let timeout = wait(group.rebalance_timeout_ms());
    turn.timers.set(Timer::Sync(group.id.clone()), turn.now.monotonic + timeout);
    GroupWritten::nothing()
}

/// Members that joined but never asked for their assignment are out, heartbeats or not.
pub(super) fn on_sync_timer(
    turn: &mut GroupTurn<'_>,
    group: &mut ClassicGroup,
    settings: &GroupSettings,
) -> GroupWritten {
    let in_generation = matches!(group.state(), State::Completing | State::Stable);
    if !in_generation || group.pending_syncs.is_empty() {
        return GroupWritten::nothing();
    }
    for member in std::mem::take(&mut group.pending_syncs) {
        group.remove(&member);
        turn.timers.cancel(&Timer::Session(group.id.clone(), member));
    }
    prepare(turn, group, settings)
}

/// A member has asked for its assignment.
pub(super) fn synced(turn: &mut GroupTurn<'_>, group: &mut ClassicGroup, member: &str) {
    group.pending_syncs.remove(member);
    if group.pending_syncs.is_empty() {
        turn.timers.cancel(&Timer::Sync(group.id.clone()));
    }
}

pub(super) fn set_assignments(group: &mut ClassicGroup, mut assignment: impl FnMut(&str) -> Bytes) {
    let ids: Vec<KafkaString> = group.members().map(|member| member.id.clone()).collect();
    for id in ids {
        group.member_mut(&id).expect("members stay").assignment = assignment(&id);
    }
}

/// Tells all who wait for their assignment. Their sessions start anew, since they were excused while they waited.
pub(super) fn propagate_assignment(turn: &mut GroupTurn<'_>, group: &mut ClassicGroup, result: Result<(), ErrorCode>) {
    let ids: Vec<KafkaString> = group.members().map(|member| member.id.clone()).collect();
    for id in ids {
        let member = group.member_mut(&id).expect("members stay");
        let Some(asker) = member.awaiting_sync.take() else { continue };
        let response = match result {
            Ok(()) => assigned(group, &id),
            Err(error) => sync_error(error),
        };
        answer_sync(turn, asker, response);
        restart_session(turn, group, &id);
    }
}

/// The answer with a member's assignment.
pub(super) fn assigned(group: &ClassicGroup, member: &str) -> SyncGroupResponse {
    SyncGroupResponse {
        protocol_type: group.protocol_type.clone(),
        protocol_name: group.protocol.clone(),
        assignment: group.member(member).map(|member| member.assignment.clone()).unwrap_or_default(),
        ..Default::default()
    }
}
