//! Static members that come back under a new member id (KIP-345).

use super::classic::{ClassicGroup, State};
use super::join::{Joining, update};
use super::member::Protocol;
use super::rebalance::{complete_if_all_joined, joined, prepare, restart_session};
use super::record::GroupRecord;
use super::settings::GroupSettings;
use super::{Effect, GroupMachine, GroupTurn, GroupWritten, answer_join, answer_sync, join_error, sync_error};
use crate::answer::Asker;
use wire::messages::JoinGroupResponse;
use wire::{ErrorCode, KafkaString};

/// From this version on a leader that comes back hears of the members, and that it need not assign again (KIP-814).
const SKIPS_ASSIGNMENT_SINCE: i16 = 9;

/// A static member that took the place of its former self, and what it was before.
#[derive(Debug)]
pub(crate) struct Replaced {
    group: KafkaString,
    asker: Asker,
    instance: KafkaString,
    new_id: KafkaString,
    old_id: KafkaString,
    old_leader: Option<KafkaString>,
    old_protocols: Vec<Protocol>,
    old_rebalance_timeout_ms: i32,
    old_session_timeout_ms: i32,
}

/// The one that had the instance until now is fenced where it waits, and the new one takes its place.
fn replace(
    turn: &mut GroupTurn<'_>,
    group: &mut ClassicGroup,
    instance: &KafkaString,
    old: &KafkaString,
    new: &KafkaString,
) {
    if let Some(asker) = group.set_awaiting_join(old, None) {
        answer_join(turn, asker, join_error(old, ErrorCode::FencedInstanceId));
    }
    if let Some(asker) = group.member_mut(old).and_then(|member| member.awaiting_sync.take()) {
        answer_sync(turn, asker, sync_error(ErrorCode::FencedInstanceId));
    }
    group.rename_static(instance, old, new);
    turn.timers.cancel(&super::Timer::Session(group.id.clone(), old.clone()));
    restart_session(turn, group, new);
}

/// A known instance joins without a member id.
pub(super) fn come_back(
    turn: &mut GroupTurn<'_>,
    group: &mut ClassicGroup,
    joining: &Joining<'_>,
    old_id: &KafkaString,
    new_id: KafkaString,
    settings: &GroupSettings,
) -> GroupWritten {
    let old = group.member(old_id).expect("an instance names a member");
    let replaced = Replaced {
        group: group.id.clone(),
        asker: joining.asker,
        instance: old.instance.clone().expect("a static member has an instance"),
        new_id: new_id.clone(),
        old_id: old_id.clone(),
        old_leader: group.leader.clone(),
        old_protocols: old.protocols.clone(),
        old_rebalance_timeout_ms: old.rebalance_timeout_ms,
        old_session_timeout_ms: old.session_timeout_ms,
    };
    replace(turn, group, &replaced.instance, old_id, &new_id);
    update(turn, group, joining, &new_id);
    match group.state() {
        // If all would choose the same protocol again, nothing has changed but the id, and that is written.
        State::Stable if group.select_protocol() == group.protocol => {
            let record = group.to_record(|member| member.assignment.clone());
            GroupWritten::records(vec![GroupRecord::Group(group.id.clone(), Some(record))])
                .with_effect(Effect::Replaced(Box::new(replaced)))
        }
        // While the leader assigns, it may do so for the old id: everyone is called again.
        State::Stable | State::Completing => prepare(turn, group, settings),
        State::Preparing(_) => complete_if_all_joined(turn, group),
        State::Empty => unreachable!("an empty group has no members to come back"),
    }
}

impl GroupMachine {
    pub(super) fn settle_replacement(
        &mut self,
        turn: &mut GroupTurn<'_>,
        replaced: Replaced,
        result: Result<(), ErrorCode>,
    ) -> GroupWritten {
        let Some(group) = self.groups.get_mut(&replaced.group) else { return GroupWritten::nothing() };
        let waits = group.member(&replaced.new_id).is_some_and(|member| member.awaiting_join == Some(replaced.asker));
        match result {
            // A rebalance that began meanwhile answers whoever waits.
            Ok(()) if waits && group.state() == State::Stable => {
                group.set_awaiting_join(&replaced.new_id, None);
                let response = welcome_back(group, &replaced);
                answer_join(turn, replaced.asker, response);
            }
            Ok(()) => {}
            Err(error) => take_back(turn, group, replaced, waits, error),
        }
        GroupWritten::nothing()
    }
}

fn welcome_back(group: &ClassicGroup, replaced: &Replaced) -> JoinGroupResponse {
    if replaced.asker.version < SKIPS_ASSIGNMENT_SINCE {
        // With its former id as leader it does not take itself for the leader, and does not assign.
        let leader = replaced.old_leader.clone().unwrap_or_default();
        return JoinGroupResponse { leader, ..joined(group, &replaced.new_id, Vec::new()) };
    }
    let leads = group.is_leader(&replaced.new_id);
    let members = if leads { group.members_for_leader() } else { Vec::new() };
    JoinGroupResponse { skip_assignment: leads, ..joined(group, &replaced.new_id, members) }
}

/// The new id is not in the log, so the old one is the member again.
fn take_back(turn: &mut GroupTurn<'_>, group: &mut ClassicGroup, replaced: Replaced, waits: bool, error: ErrorCode) {
    if waits {
        group.set_awaiting_join(&replaced.new_id, None);
        let response = JoinGroupResponse {
            leader: replaced.old_leader.clone().unwrap_or_default(),
            error_code: error.code(),
            ..joined(group, &KafkaString::default(), Vec::new())
        };
        answer_join(turn, replaced.asker, response);
    }
    if group.member_of_instance(&replaced.instance) == Some(&replaced.new_id) {
        group.set_protocols(&replaced.new_id, replaced.old_protocols);
        if let Some(member) = group.member_mut(&replaced.new_id) {
            member.rebalance_timeout_ms = replaced.old_rebalance_timeout_ms;
            member.session_timeout_ms = replaced.old_session_timeout_ms;
        }
        replace(turn, group, &replaced.instance, &replaced.new_id, &replaced.old_id);
    }
}
