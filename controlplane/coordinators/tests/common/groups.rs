//! Requests about groups, in few words.

use super::{TakenFrom, World, error};
use bytes::Bytes;
use pollux_coordinators::RequestToken;
use wire::messages::join_group_request::JoinGroupRequestProtocol;
use wire::messages::leave_group_request::MemberIdentity;
use wire::messages::offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use wire::messages::offset_fetch_request::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
use wire::messages::sync_group_request::SyncGroupRequestAssignment;
use wire::messages::*;
use wire::{ErrorCode, KafkaString, Message};

pub fn protocol(name: &str, metadata: &[u8]) -> JoinGroupRequestProtocol {
    JoinGroupRequestProtocol { name: name.into(), metadata: Bytes::copy_from_slice(metadata), ..Default::default() }
}

/// What a consumer of these topics says of itself.
pub fn subscription(topics: &[&str]) -> Bytes {
    let topics = topics.iter().map(|name| KafkaString::from(*name)).collect();
    let message = ConsumerProtocolSubscription { topics, ..Default::default() };
    let mut bytes = bytes::BytesMut::new();
    message.encode_prefixed(&mut bytes, 3).expect("it is encoded");
    bytes.freeze()
}

/// A JoinGroup of a consumer of "orders" with usual timeouts.
pub fn join(group: &str, member: &str) -> JoinGroupRequest {
    JoinGroupRequest {
        group_id: group.into(),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 60_000,
        member_id: member.into(),
        protocol_type: "consumer".into(),
        protocols: vec![protocol("range", &subscription(&["orders"]))],
        ..Default::default()
    }
}

pub fn join_static(group: &str, member: &str, instance: &str) -> JoinGroupRequest {
    JoinGroupRequest { group_instance_id: Some(instance.into()), ..join(group, member) }
}

pub fn sync(group: &str, member: &str, generation: i32, assignments: &[(&str, &[u8])]) -> SyncGroupRequest {
    SyncGroupRequest {
        group_id: group.into(),
        generation_id: generation,
        member_id: member.into(),
        protocol_type: Some("consumer".into()),
        protocol_name: Some("range".into()),
        assignments: assignments
            .iter()
            .map(|(member, bytes)| SyncGroupRequestAssignment {
                member_id: (*member).into(),
                assignment: Bytes::copy_from_slice(bytes),
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    }
}

pub fn heartbeat(group: &str, member: &str, generation: i32) -> HeartbeatRequest {
    HeartbeatRequest {
        group_id: group.into(),
        member_id: member.into(),
        generation_id: generation,
        ..Default::default()
    }
}

pub fn leave(group: &str, members: &[(&str, Option<&str>)]) -> LeaveGroupRequest {
    let identity = |(member, instance): &(&str, Option<&str>)| MemberIdentity {
        member_id: (*member).into(),
        group_instance_id: instance.map(Into::into),
        ..Default::default()
    };
    LeaveGroupRequest { group_id: group.into(), members: members.iter().map(identity).collect(), ..Default::default() }
}

pub fn commit(group: &str, topic: &str, offsets: &[(i32, i64)]) -> OffsetCommitRequest {
    let partition = |(index, offset): &(i32, i64)| OffsetCommitRequestPartition {
        partition_index: *index,
        committed_offset: *offset,
        committed_metadata: Some("note".into()),
        ..Default::default()
    };
    OffsetCommitRequest {
        group_id: group.into(),
        topics: vec![OffsetCommitRequestTopic {
            name: topic.into(),
            partitions: offsets.iter().map(partition).collect(),
            ..Default::default()
        }],
        ..Default::default()
    }
}

pub fn commit_as(group: &str, member: &str, generation: i32, offsets: &[(i32, i64)]) -> OffsetCommitRequest {
    OffsetCommitRequest {
        member_id: member.into(),
        generation_id_or_member_epoch: generation,
        ..commit(group, "orders", offsets)
    }
}

/// A group, and topics with partitions, or all.
pub type Wanted<'a> = (&'a str, Option<&'a [(&'a str, &'a [i32])]>);

/// OffsetFetch in the versions with several groups and names.
pub fn fetch(groups: &[Wanted<'_>], require_stable: bool) -> OffsetFetchRequest {
    let topic = |(name, partitions): &(&str, &[i32])| OffsetFetchRequestTopics {
        name: (*name).into(),
        partition_indexes: partitions.to_vec(),
        ..Default::default()
    };
    let group = |(id, topics): &Wanted<'_>| OffsetFetchRequestGroup {
        group_id: (*id).into(),
        topics: topics.map(|topics| topics.iter().map(topic).collect()),
        ..Default::default()
    };
    OffsetFetchRequest { groups: groups.iter().map(group).collect(), require_stable, ..Default::default() }
}

impl World {
    /// The offset of a partition of "orders", -1 without one.
    pub fn committed(&mut self, group: &str, partition: i32) -> i64 {
        let response = self.call(9, fetch(&[(group, Some(&[("orders", &[partition])]))], false));
        assert_eq!(response.groups[0].error_code, 0);
        response.groups[0].topics[0].partitions[0].committed_offset
    }

    pub fn commit_errors(&mut self, version: i16, request: OffsetCommitRequest) -> Vec<ErrorCode> {
        let response = self.call(version, request);
        response.topics.iter().flat_map(|topic| &topic.partitions).map(|one| error(one.error_code)).collect()
    }

    /// Joins with an id that is asked for first, and leaves the member waiting.
    pub fn enter(&mut self, group: &str) -> (KafkaString, RequestToken) {
        self.enter_as(join(group, ""))
    }

    pub fn enter_as(&mut self, mut request: JoinGroupRequest) -> (KafkaString, RequestToken) {
        let first = self.call(9, request.clone());
        assert_eq!(error(first.error_code), ErrorCode::MemberIdRequired);
        request.member_id = first.member_id.clone();
        let token = self.ask(9, request);
        (first.member_id, token)
    }

    pub fn join_result(&mut self, token: RequestToken) -> JoinGroupResponse {
        let response: JoinGroupResponse = self.taken(token);
        assert_eq!(error(response.error_code), ErrorCode::None, "{response:?}");
        response
    }

    /// A stable group of members that each got their own id as assignment; the first is the leader.
    pub fn stable(&mut self, group: &str, members: usize) -> (Vec<KafkaString>, i32) {
        let entered: Vec<(KafkaString, RequestToken)> = (0..members).map(|_| self.enter(group)).collect();
        self.pass_until_answered(entered[0].1);
        let mut leader = KafkaString::default();
        let mut generation = 0;
        for (_, token) in &entered {
            let joined = self.join_result(*token);
            (leader, generation) = (joined.leader, joined.generation_id);
        }
        let mut ids: Vec<KafkaString> = entered.into_iter().map(|(id, _)| id).collect();
        self.assign(group, &leader, generation, &ids);
        ids.sort_by_key(|id| *id != leader);
        (ids, generation)
    }

    pub fn pass_until_answered(&mut self, token: RequestToken) {
        for _ in 0..600 {
            if self.is_answered(token) {
                return;
            }
            self.pass(std::time::Duration::from_millis(500));
        }
        panic!("{token:?} is not answered in five minutes");
    }

    /// Everyone syncs; the leader gives each member its own id.
    pub fn assign(&mut self, group: &str, leader: &str, generation: i32, members: &[KafkaString]) {
        let mut waiting = Vec::new();
        for member in members.iter().filter(|member| ***member != *leader) {
            waiting.push((member.clone(), self.ask(5, sync(group, member, generation, &[]))));
        }
        let assignment: Vec<(&str, &[u8])> = members.iter().map(|id| (id.as_str(), id.as_bytes())).collect();
        waiting.push((leader.into(), self.ask(5, sync(group, leader, generation, &assignment))));
        for (member, token) in waiting {
            let response: SyncGroupResponse = self.taken(token);
            assert_eq!((error(response.error_code), &response.assignment[..]), (ErrorCode::None, member.as_bytes()));
        }
    }

    pub fn beat(&mut self, group: &str, member: &str, generation: i32) -> ErrorCode {
        error(self.call(4, heartbeat(group, member, generation)).error_code)
    }

    pub fn describe(&mut self, group: &str) -> describe_groups_response::DescribedGroup {
        let request = DescribeGroupsRequest { groups: vec![group.into()], ..Default::default() };
        self.call(5, request).groups.remove(0)
    }

    pub fn state(&mut self, group: &str) -> KafkaString {
        self.describe(group).group_state
    }

    pub fn error_of<A: TakenFrom + HasError>(&mut self, token: RequestToken) -> ErrorCode {
        error(self.taken::<A>(token).code())
    }
}

pub trait HasError {
    fn code(&self) -> i16;
}

macro_rules! has_error {
    ($($message:ident),*) => { $(impl HasError for $message { fn code(&self) -> i16 { self.error_code } })* };
}

has_error! { JoinGroupResponse, SyncGroupResponse, HeartbeatResponse, LeaveGroupResponse }
