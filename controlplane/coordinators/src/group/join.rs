//! JoinGroup.

use super::classic::{ClassicGroup, Preparing, State};
use super::member::{Member, protocols_of, wait};
use super::rebalance::{joined, prepare, rebalance_or_complete, set_session};
use super::record::GroupRecord;
use super::settings::GroupSettings;
use super::{Effect, GroupMachine, GroupTurn, GroupWritten, answer_join, join_error};
use crate::answer::Asker;
use crate::api::Client;
use bytes::Bytes;
use std::time::Duration;
use wire::messages::{JoinGroupRequest, JoinGroupResponse};
use wire::{ErrorCode, KafkaString};

/// From this version on a member asks for an id first and joins with it (KIP-394).
const ID_REQUIRED_SINCE: i16 = 4;
/// A new member cannot send heartbeats while it waits, and its client may have given up; so it has this long. If it is
/// still there, it asks again.
const NEW_MEMBER_JOIN_TIME: Duration = Duration::from_secs(5 * 60);

/// What a string of Kafka's messages holds at most.
const STRING_BYTES_MAX: usize = i16::MAX as usize;

/// A JoinGroup under way: whom to answer, and what it says.
pub(super) struct Joining<'a> {
    pub asker: Asker,
    pub client: &'a Client,
    pub request: &'a JoinGroupRequest,
}

impl Joining<'_> {
    pub fn refuse(&self, turn: &mut GroupTurn<'_>, member: &str, error: ErrorCode) -> GroupWritten {
        self.answer(turn, join_error(member, error))
    }

    pub fn answer(&self, turn: &mut GroupTurn<'_>, response: JoinGroupResponse) -> GroupWritten {
        answer_join(turn, self.asker, response);
        GroupWritten::nothing()
    }
}

impl GroupMachine {
    pub fn join(
        &mut self,
        turn: &mut GroupTurn<'_>,
        asker: Asker,
        client: &Client,
        request: &JoinGroupRequest,
    ) -> GroupWritten {
        let joining = Joining { asker, client, request };
        if self.others.contains(&request.group_id) {
            return joining.refuse(turn, "", ErrorCode::InconsistentGroupProtocol);
        }
        let is_unknown = request.member_id.is_empty();
        let is_new_group = !self.groups.contains_key(&request.group_id);
        if is_new_group && !is_unknown {
            return joining.refuse(turn, &request.member_id, ErrorCode::UnknownMemberId);
        }
        let id = request.group_id.detached();
        let group = self.groups.entry(id.clone()).or_insert_with(|| ClassicGroup::new(id, turn.now.wall));
        // The record of a new group is what is known before anyone has joined it.
        let first = is_new_group.then(|| GroupRecord::Group(group.id.clone(), Some(group.to_record(|_| Bytes::new()))));
        let written = if !has_place(group, &request.member_id, &self.settings) {
            group.remove(&request.member_id);
            joining.refuse(turn, "", ErrorCode::GroupMaxSizeReached)
        } else if is_unknown {
            join_new(turn, group, &joining, &self.settings)
        } else {
            join_existing(turn, group, &joining, &self.settings)
        };
        match first {
            Some(record) if written.records.is_empty() => {
                GroupWritten::records(vec![record]).with_effect(Effect::Created { group: request.group_id.detached() })
            }
            _ => written,
        }
    }
}

fn has_place(group: &ClassicGroup, member: &str, settings: &GroupSettings) -> bool {
    match group.state() {
        State::Empty => true,
        // Who waits already has a place. The others count by waiting, so that the last to come back are turned away
        // where the limit was lowered.
        State::Preparing(_) => {
            group.member(member).is_some_and(|member| member.awaiting_join.is_some())
                || group.awaiting_join_count() < settings.members_max
        }
        State::Completing | State::Stable => {
            group.member(member).is_some() || group.members_count() < settings.members_max
        }
    }
}

/// As Java's `UUID.randomUUID` prints one.
fn random_uuid(turn: &mut GroupTurn<'_>) -> String {
    let high = (turn.random.next_u64() & !0xF000) | 0x4000;
    let low = (turn.random.next_u64() & !(0b11 << 62)) | (0b10 << 62);
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xFFFF,
        high & 0xFFFF,
        low >> 48,
        low & 0xFFFF_FFFF_FFFF
    )
}

fn join_new(
    turn: &mut GroupTurn<'_>,
    group: &mut ClassicGroup,
    joining: &Joining<'_>,
    settings: &GroupSettings,
) -> GroupWritten {
    let request = joining.request;
    if !group.supports(&request.protocol_type, &request.protocols) {
        return joining.refuse(turn, "", ErrorCode::InconsistentGroupProtocol);
    }
    let named = request.group_instance_id.as_ref().unwrap_or(&joining.client.client_id);
    let new_id = KafkaString::from(format!("{named}-{}", random_uuid(turn)));
    if new_id.len() > STRING_BYTES_MAX {
        return joining.refuse(turn, "", ErrorCode::UnknownServerError);
    }
    if let Some(instance) = &request.group_instance_id {
        return match group.member_of_instance(instance).cloned() {
            Some(old_id) => super::statics::come_back(turn, group, joining, &old_id, new_id, settings),
            None => add(turn, group, joining, new_id, settings),
        };
    }
    if joining.asker.version < ID_REQUIRED_SINCE {
        return add(turn, group, joining, new_id, settings);
    }
    group.pending_joins.insert(new_id.clone());
    set_session(turn, &group.id, &new_id, wait(request.session_timeout_ms));
    joining.refuse(turn, &new_id, ErrorCode::MemberIdRequired)
}

fn join_existing(
    turn: &mut GroupTurn<'_>,
    group: &mut ClassicGroup,
    joining: &Joining<'_>,
    settings: &GroupSettings,
) -> GroupWritten {
    let request = joining.request;
    let id = &request.member_id;
    if !group.supports(&request.protocol_type, &request.protocols) {
        return joining.refuse(turn, id, ErrorCode::InconsistentGroupProtocol);
    }
    if group.pending_joins.contains(id) {
        if request.group_instance_id.is_some() {
            // Such an id was given to a dynamic member; Kafka runs into an assertion here.
            return joining.refuse(turn, "", ErrorCode::UnknownServerError);
        }
        return add(turn, group, joining, id.detached(), settings);
    }
    if let Err(error) = group.validate_member(id, request.group_instance_id.as_ref()) {
        return joining.refuse(turn, id, error);
    }
    let same = group.member(id).is_some_and(|member| member.matches(&request.protocols));
    match group.state() {
        // A leader that joins again wants a rebalance: what it assigns may have changed though its metadata has not.
        State::Stable if same && !group.is_leader(id) => {
            let response = joined(group, id, Vec::new());
            joining.answer(turn, response)
        }
        // It has probably not received the answer to its first JoinGroup.
        State::Completing if same => {
            let members = if group.is_leader(id) { group.members_for_leader() } else { Vec::new() };
            let response = joined(group, id, members);
            joining.answer(turn, response)
        }
        State::Preparing(_) | State::Completing | State::Stable => {
            update(turn, group, joining, id);
            rebalance_or_complete(turn, group, settings)
        }
        State::Empty => joining.refuse(turn, id, ErrorCode::UnknownMemberId),
    }
}

/// Takes over what a member now says of itself, and lets it wait.
pub(super) fn update(turn: &mut GroupTurn<'_>, group: &mut ClassicGroup, joining: &Joining<'_>, id: &str) {
    group.set_protocols(id, protocols_of(&joining.request.protocols));
    if let Some(member) = group.member_mut(id) {
        member.rebalance_timeout_ms = joining.request.rebalance_timeout_ms;
        member.session_timeout_ms = joining.request.session_timeout_ms;
    }
    if let Some(superseded) = group.set_awaiting_join(id, Some(joining.asker)) {
        // The member asks on another connection; whoever still listens on the first shall try again.
        answer_join(turn, superseded, join_error(id, ErrorCode::RebalanceInProgress));
    }
}

fn add(
    turn: &mut GroupTurn<'_>,
    group: &mut ClassicGroup,
    joining: &Joining<'_>,
    id: KafkaString,
    settings: &GroupSettings,
) -> GroupWritten {
    let request = joining.request;
    let host = joining.client.host.as_str();
    let member = Member {
        id: id.clone(),
        instance: request.group_instance_id.as_ref().map(KafkaString::detached),
        client_id: joining.client.client_id.detached(),
        client_host: if host.starts_with('/') { host.into() } else { format!("/{host}").into() },
        rebalance_timeout_ms: request.rebalance_timeout_ms,
        session_timeout_ms: request.session_timeout_ms,
        protocols: protocols_of(&request.protocols),
        assignment: Bytes::new(),
        awaiting_join: Some(joining.asker),
        awaiting_sync: None,
        is_new: true,
    };
    if let State::Preparing(Preparing::Initial { delay, remaining, .. }) = group.state() {
        group.set_preparing(Preparing::Initial { joined_since: true, delay, remaining });
    }
    if group.members_count() == 0 {
        group.protocol_type = Some(request.protocol_type.detached());
    }
    group.insert(member);
    set_session(turn, &group.id, &id, NEW_MEMBER_JOIN_TIME);
    if group.is_preparing() {
        super::rebalance::complete_if_all_joined(turn, group)
    } else {
        prepare(turn, group, settings)
    }
}
