//! Heartbeat, LeaveGroup, and members that are not heard of.

use super::classic::{ClassicGroup, State};
use super::rebalance::{complete_if_all_joined, complete_join, rebalance_or_complete, restart_session};
use super::{GroupMachine, GroupTurn, GroupWritten, Timer, answer_join, join_error};
use crate::answer::{Answer, To};
use wire::messages::leave_group_request::MemberIdentity;
use wire::messages::leave_group_response::MemberResponse;
use wire::messages::{HeartbeatRequest, HeartbeatResponse, LeaveGroupRequest, LeaveGroupResponse};
use wire::{ErrorCode, KafkaString};

impl GroupMachine {
    pub fn heartbeat(&mut self, turn: &mut GroupTurn<'_>, to: To, request: &HeartbeatRequest) -> GroupWritten {
        let error = self.take_heartbeat(turn, request).err().unwrap_or(ErrorCode::None);
        let response = HeartbeatResponse { error_code: error.code(), ..Default::default() };
        GroupWritten::reply(to, Answer::Heartbeat(response))
    }

    fn take_heartbeat(&mut self, turn: &mut GroupTurn<'_>, request: &HeartbeatRequest) -> Result<(), ErrorCode> {
        let group = self.groups.get(&request.group_id).ok_or(ErrorCode::UnknownMemberId)?;
        group.validate_member(&request.member_id, request.group_instance_id.as_ref())?;
        if request.generation_id != group.generation {
            return Err(ErrorCode::IllegalGeneration);
        }
        restart_session(turn, group, &request.member_id);
        match group.state() {
            State::Empty => Err(ErrorCode::UnknownMemberId),
            State::Preparing(_) => Err(ErrorCode::RebalanceInProgress),
            State::Completing | State::Stable => Ok(()),
        }
    }

    /// `members` is what the request names, in whichever way its version does.
    pub fn leave(
        &mut self,
        turn: &mut GroupTurn<'_>,
        to: To,
        request: &LeaveGroupRequest,
        members: &[MemberIdentity],
    ) -> GroupWritten {
        let Some(group) = self.groups.get_mut(&request.group_id) else {
            let members = members.iter().map(|member| left(member, ErrorCode::UnknownMemberId)).collect();
            return GroupWritten::reply(to, Answer::Leave(LeaveGroupResponse { members, ..Default::default() }));
        };
        let mut someone = false;
        let mut responses = Vec::with_capacity(members.len());
        for member in members {
            let error = take_leave(turn, group, member).err().unwrap_or(ErrorCode::None);
            someone |= !error.is_error();
            responses.push(left(member, error));
        }
        let written = match group.state() {
            State::Stable | State::Completing if someone => rebalance_or_complete(turn, group, &self.settings),
            State::Preparing(_) if someone => complete_if_all_joined(turn, group),
            _ => GroupWritten::nothing(),
        };
        written.with_reply(to, Answer::Leave(LeaveGroupResponse { members: responses, ..Default::default() }))
    }

    /// A member's session is over.
    pub(super) fn expire_member(&mut self, turn: &mut GroupTurn<'_>, group: &str, member: &str) -> GroupWritten {
        let Some(group) = self.groups.get_mut(group) else { return GroupWritten::nothing() };
        let was_pending = group.pending_joins.contains(member);
        if !was_pending {
            match group.member(member) {
                Some(known) if !known.is_excused() => {}
                // It is excused until it has been answered, which starts its session anew; or it is gone.
                _ => return GroupWritten::nothing(),
            }
            tracing::info!(group = %group.id, member, "a member was not heard of for its session timeout");
            answer_waiting_to_join(turn, group, member);
        }
        group.remove(member);
        match group.state() {
            State::Stable | State::Completing if !was_pending => rebalance_or_complete(turn, group, &self.settings),
            State::Preparing(_) if group.all_have_joined() => complete_join(turn, group),
            _ => GroupWritten::nothing(),
        }
    }
}

fn left(member: &MemberIdentity, error: ErrorCode) -> MemberResponse {
    MemberResponse {
        member_id: member.member_id.clone(),
        group_instance_id: member.group_instance_id.clone(),
        error_code: error.code(),
        ..Default::default()
    }
}

fn take_leave(turn: &mut GroupTurn<'_>, group: &mut ClassicGroup, member: &MemberIdentity) -> Result<(), ErrorCode> {
    let instance = member.group_instance_id.as_ref();
    let id: KafkaString = if member.member_id.is_empty() {
        // An administrator removes a static member by its instance.
        instance.and_then(|instance| group.member_of_instance(instance)).cloned().ok_or(ErrorCode::UnknownMemberId)?
    } else {
        if !group.pending_joins.contains(&member.member_id) {
            group.validate_member(&member.member_id, instance)?;
        }
        member.member_id.clone()
    };
    turn.timers.cancel(&Timer::Session(group.id.clone(), id.clone()));
    answer_waiting_to_join(turn, group, &id);
    if let Some(asker) = group.remove(&id).and_then(|member| member.awaiting_sync) {
        super::answer_sync(turn, asker, super::sync_error(ErrorCode::UnknownMemberId));
    }
    Ok(())
}

/// A member that leaves or is removed while it waits: if it is still there, it joins anew.
fn answer_waiting_to_join(turn: &mut GroupTurn<'_>, group: &mut ClassicGroup, member: &str) {
    if let Some(asker) = group.set_awaiting_join(member, None) {
        answer_join(turn, asker, join_error("", ErrorCode::UnknownMemberId));
    }
}
