//! SyncGroup.

use super::classic::{ClassicGroup, State};
use super::rebalance::{assigned, propagate_assignment, rebalance_or_complete, set_assignments, synced};
use super::record::GroupRecord;
use super::{Effect, GroupMachine, GroupTurn, GroupWritten, answer_sync, sync_error};
use crate::answer::Asker;
use bytes::Bytes;
use std::collections::BTreeMap;
use wire::messages::SyncGroupRequest;
use wire::{ErrorCode, KafkaString};

impl GroupMachine {
    pub fn sync(&mut self, turn: &mut GroupTurn<'_>, asker: Asker, request: &SyncGroupRequest) -> GroupWritten {
        let refuse = |turn: &mut GroupTurn<'_>, error: ErrorCode| {
            answer_sync(turn, asker, sync_error(error));
            GroupWritten::nothing()
        };
        let Some(group) = self.groups.get_mut(&request.group_id) else {
            return refuse(turn, ErrorCode::UnknownMemberId);
        };
        if let Err(error) = validate(group, request) {
            return refuse(turn, error);
        }
        match group.state() {
            State::Empty => refuse(turn, ErrorCode::UnknownMemberId),
            State::Preparing(_) => refuse(turn, ErrorCode::RebalanceInProgress),
            State::Stable => {
                synced(turn, group, &request.member_id);
                answer_sync(turn, asker, assigned(group, &request.member_id));
                GroupWritten::nothing()
            }
            State::Completing => {
                let member = group.member_mut(&request.member_id).expect("it was validated");
                if let Some(superseded) = member.awaiting_sync.replace(asker) {
                    answer_sync(turn, superseded, sync_error(ErrorCode::RebalanceInProgress));
                }
                synced(turn, group, &request.member_id);
                if group.is_leader(&request.member_id) {
                    write_assignment(group, request)
                } else {
                    GroupWritten::nothing()
                }
            }
        }
    }

    /// The leader's assignment is in the log, or is not. If another rebalance has begun meanwhile, it means nothing.
    pub(super) fn settle_assignment(
        &mut self,
        turn: &mut GroupTurn<'_>,
        group: &KafkaString,
        generation: i32,
        assignment: BTreeMap<KafkaString, Bytes>,
        result: Result<(), ErrorCode>,
    ) -> GroupWritten {
        let Some(group) = self.groups.get_mut(group) else { return GroupWritten::nothing() };
        if group.state() != State::Completing || group.generation != generation {
            return GroupWritten::nothing();
        }
        match result {
            Ok(()) => {
                set_assignments(group, |member| assignment.get(member).cloned().unwrap_or_default());
                propagate_assignment(turn, group, Ok(()));
                group.transition_to(State::Stable, turn.now.wall);
                GroupWritten::nothing()
            }
            Err(error) => {
                set_assignments(group, |_| Bytes::new());
                propagate_assignment(turn, group, Err(error));
                rebalance_or_complete(turn, group, &self.settings)
            }
        }
    }
}

fn validate(group: &ClassicGroup, request: &SyncGroupRequest) -> Result<(), ErrorCode> {
    if group.state() == State::Empty {
        return Err(ErrorCode::UnknownMemberId);
    }
    group.validate_member(&request.member_id, request.group_instance_id.as_ref())?;
    if request.generation_id != group.generation {
        return Err(ErrorCode::IllegalGeneration);
    }
    let differs = |said: &Option<KafkaString>, own: &Option<KafkaString>| {
        said.as_ref().zip(own.as_ref()).is_some_and(|(said, own)| said != own)
    };
    if differs(&request.protocol_type, &group.protocol_type) || differs(&request.protocol_name, &group.protocol) {
        return Err(ErrorCode::InconsistentGroupProtocol);
    }
    Ok(())
}

/// Members whom the leader forgot get nothing.
fn write_assignment(group: &ClassicGroup, request: &SyncGroupRequest) -> GroupWritten {
    let assignment: BTreeMap<KafkaString, Bytes> = request
        .assignments
        .iter()
        .map(|one| (one.member_id.detached(), Bytes::copy_from_slice(&one.assignment)))
        .collect();
    let record = group.to_record(|member| assignment.get(&member.id).cloned().unwrap_or_default());
    GroupWritten::records(vec![GroupRecord::Group(group.id.clone(), Some(record))]).with_effect(Effect::Assigned {
        group: group.id.clone(),
        generation: group.generation,
        assignment,
    })
}
