//! A client's request on its way to the shard, or the shards, that it is for: checks that need no group, topics looked
//! up, and the answer where there is no shard to ask.

use crate::answer::{Answer, Asker, GatherId, To};
use crate::api::{Client, Request, Topics};
use crate::coordinators::{Coordinators, Turning};
use crate::finish::{
    Body, FETCHES_GROUPS_SINCE, FetchedGroup, Gather, LEAVES_SEVERAL_SINCE, TOPIC_IDS_SINCE, unknown_topic,
};
use crate::group::{CommitRequest, Filter};
use base::{PartitionIndex, TopicId};
use std::collections::BTreeMap;
use wire::messages::delete_groups_response::DeletableGroupResult;
use wire::messages::describe_groups_response::DescribedGroup;
use wire::messages::leave_group_request::MemberIdentity;
use wire::messages::offset_commit_request::OffsetCommitRequestTopic;
use wire::messages::offset_commit_response::{OffsetCommitResponsePartition, OffsetCommitResponseTopic};
use wire::messages::offset_delete_request::OffsetDeleteRequestTopic;
use wire::messages::offset_delete_response::{OffsetDeleteResponsePartition, OffsetDeleteResponseTopic};
use wire::messages::offset_fetch_request::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
use wire::messages::offset_fetch_response::OffsetFetchResponseGroup;
use wire::messages::{
    DeleteGroupsRequest, DescribeGroupsRequest, HeartbeatRequest, HeartbeatResponse, JoinGroupRequest,
    JoinGroupResponse, LeaveGroupRequest, LeaveGroupResponse, ListGroupsRequest, OffsetCommitRequest,
    OffsetCommitResponse, OffsetDeleteRequest, OffsetDeleteResponse, OffsetFetchRequest, SyncGroupRequest,
    SyncGroupResponse,
};
use wire::{ErrorCode, KafkaString, RequestKind};

/// From here on SyncGroup names protocol type and protocol.
const SYNC_NAMES_PROTOCOL_SINCE: i16 = 5;

impl Coordinators {
    pub(crate) fn on_request(&mut self, turning: &mut Turning<'_>, request: Request) {
        let asker = Asker { token: request.token, version: request.version };
        match request.body {
            RequestKind::OffsetCommit(body) => self.on_commit(turning, asker, body),
            RequestKind::OffsetFetch(body) => self.on_fetch(turning, asker, body),
            RequestKind::OffsetDelete(body) => self.on_offset_delete(turning, asker, body),
            RequestKind::JoinGroup(body) => self.on_join(turning, asker, &request.client, body),
            RequestKind::SyncGroup(body) => self.on_sync(turning, asker, &body),
            RequestKind::Heartbeat(body) => self.on_heartbeat(turning, asker, &body),
            RequestKind::LeaveGroup(body) => self.on_leave(turning, asker, &body),
            RequestKind::DescribeGroups(body) => self.on_describe(turning, asker, body),
            RequestKind::DeleteGroups(body) => self.on_delete(turning, asker, body),
            RequestKind::ListGroups(body) => self.on_list(turning, asker, body),
            other => unreachable!("{:?} is not served here: the caller asks first", other.api()),
        }
    }

    fn answer(&mut self, asker: Asker, answer: Answer) {
        self.replies.push((To::Client(asker), answer));
    }

    /// The shard of a group that must have a name.
    fn named(&self, group: &str) -> Result<PartitionIndex, ErrorCode> {
        if group.is_empty() { Err(ErrorCode::InvalidGroupId) } else { self.shard_of(group) }
    }

    fn on_join(&mut self, turning: &mut Turning<'_>, asker: Asker, client: &Client, mut body: JoinGroupRequest) {
        if asker.version == 0 {
            // This version knows one timeout for both.
            body.rebalance_timeout_ms = body.session_timeout_ms;
        }
        let bounds = self.session_bounds_ms();
        let refused = if body.group_id.is_empty() {
            Some(ErrorCode::InvalidGroupId)
        } else {
            (!bounds.contains(&body.session_timeout_ms)).then_some(ErrorCode::InvalidSessionTimeout)
        };
        if let Some(error) = refused {
            let response = JoinGroupResponse { member_id: body.member_id, ..Default::default() };
            return self.answer(asker, Answer::Join(response).failed(error));
        }
        match self.shard_of(&body.group_id) {
            Ok(at) => self.call(turning, at, |machine, turn| machine.join(turn, asker, client, &body)),
            Err(error) => self.answer(asker, Answer::Join(JoinGroupResponse::default()).failed(error)),
        }
    }

    fn on_sync(&mut self, turning: &mut Turning<'_>, asker: Asker, body: &SyncGroupRequest) {
        let unnamed = body.protocol_type.is_none() || body.protocol_name.is_none();
        let at = if asker.version >= SYNC_NAMES_PROTOCOL_SINCE && unnamed {
            Err(ErrorCode::InconsistentGroupProtocol)
        } else {
            self.named(&body.group_id)
        };
        match at {
            Ok(at) => self.call(turning, at, |machine, turn| machine.sync(turn, asker, body)),
            Err(error) => self.answer(asker, Answer::Sync(SyncGroupResponse::default()).failed(error)),
        }
    }

    fn on_heartbeat(&mut self, turning: &mut Turning<'_>, asker: Asker, body: &HeartbeatRequest) {
        match self.named(&body.group_id) {
            Ok(at) => self.call(turning, at, |machine, turn| machine.heartbeat(turn, To::Client(asker), body)),
            // Sessions start anew once the group is loaded, so the member may be told that all is well.
            Err(ErrorCode::CoordinatorLoadInProgress) => {
                self.answer(asker, Answer::Heartbeat(HeartbeatResponse::default()));
            }
            Err(error) => self.answer(asker, Answer::Heartbeat(HeartbeatResponse::default()).failed(error)),
        }
    }

    fn on_leave(&mut self, turning: &mut Turning<'_>, asker: Asker, body: &LeaveGroupRequest) {
        let only = [MemberIdentity { member_id: body.member_id.clone(), ..Default::default() }];
        let members = if asker.version < LEAVES_SEVERAL_SINCE { &only[..] } else { &body.members[..] };
        match self.named(&body.group_id) {
            Ok(at) => {
                self.call(turning, at, |machine, turn| machine.leave(turn, To::Client(asker), body, members));
            }
            Err(error) => self.answer(asker, Answer::Leave(LeaveGroupResponse::default()).failed(error)),
        }
    }

    fn on_commit(&mut self, turning: &mut Turning<'_>, asker: Asker, mut body: OffsetCommitRequest) {
        let mut refused = Vec::new();
        let topics = std::mem::take(&mut body.topics);
        for topic in topics {
            body.topics.extend(check_commit(topic, asker.version, turning.topics, &mut refused));
        }
        if body.topics.is_empty() {
            let response = OffsetCommitResponse { topics: refused, ..Default::default() };
            return self.answer(asker, Answer::Commit(response));
        }
        match self.shard_of(&body.group_id) {
            Ok(at) => {
                let commit = CommitRequest { request: body, version: asker.version, refused };
                self.call(turning, at, |machine, turn| machine.commit(turn, To::Client(asker), commit));
            }
            Err(error) => {
                refused.extend(body.topics.iter().map(|topic| commit_answer(topic, |_| true, error)));
                let response = OffsetCommitResponse { topics: refused, ..Default::default() };
                self.answer(asker, Answer::Commit(response));
            }
        }
    }

    fn on_offset_delete(&mut self, turning: &mut Turning<'_>, asker: Asker, mut body: OffsetDeleteRequest) {
        let mut refused = Vec::new();
        let topics = std::mem::take(&mut body.topics);
        for topic in topics {
            let count = turning.topics.partitions(&topic.name).unwrap_or(0);
            let (known, unknown): (Vec<_>, Vec<_>) =
                topic.partitions.into_iter().partition(|partition| exists(partition.partition_index, count));
            if !unknown.is_empty() {
                let refuse = |partition: wire::messages::offset_delete_request::OffsetDeleteRequestPartition| {
                    OffsetDeleteResponsePartition {
                        partition_index: partition.partition_index,
                        error_code: ErrorCode::UnknownTopicOrPartition.code(),
                    }
                };
                let partitions = unknown.into_iter().map(refuse).collect();
                refused.push(OffsetDeleteResponseTopic { name: topic.name.clone(), partitions });
            }
            if !known.is_empty() {
                body.topics.push(OffsetDeleteRequestTopic { name: topic.name, partitions: known });
            }
        }
        match self.named(&body.group_id) {
            Ok(at) => {
                self.call(turning, at, |machine, _| machine.delete_offsets(To::Client(asker), &body, refused));
            }
            Err(error) => self.answer(asker, Answer::OffsetDelete(OffsetDeleteResponse::default()).failed(error)),
        }
    }

    /// Begins a response of several parts; it is given at once if there are none.
    fn gather(&mut self, turning: &mut Turning<'_>, asker: Asker, parts: usize, body: Body) -> GatherId {
        let id = GatherId(self.take_id());
        let gather = Gather { asker, left: parts, body };
        if parts == 0 {
            self.finish(turning, gather);
        } else {
            self.gathers.insert(id, gather);
        }
        id
    }

    fn part(&mut self, id: GatherId, answer: Answer) {
        self.replies.push((To::Gather(id), answer));
    }

    fn on_fetch(&mut self, turning: &mut Turning<'_>, asker: Asker, body: OffsetFetchRequest) {
        let require_stable = body.require_stable;
        let mut groups = groups_of(body, asker.version);
        for group in &mut groups {
            name_topics(group, asker.version, turning.topics);
        }
        let requests: Vec<OffsetFetchRequestGroup> = groups.iter().map(|group| group.request.clone()).collect();
        let gather = self.gather(turning, asker, requests.len(), Body::Fetch(groups));
        for (place, request) in requests.into_iter().enumerate() {
            match self.shard_of(&request.group_id) {
                Ok(at) => self
                    .call(turning, at, |machine, _| machine.fetch(To::Gather(gather), place, &request, require_stable)),
                Err(error) => {
                    let answer = OffsetFetchResponseGroup { group_id: request.group_id, ..Default::default() };
                    self.part(gather, Answer::Fetched(place, answer).failed(error));
                }
            }
        }
    }

    /// Groups by their shard, each with its place; those without a shard are told why.
    fn by_shard(&self, groups: &[KafkaString]) -> (BTreeMap<PartitionIndex, Vec<(usize, KafkaString)>>, Unserved) {
        let mut served: BTreeMap<PartitionIndex, Vec<(usize, KafkaString)>> = BTreeMap::new();
        let mut unserved = Vec::new();
        for (place, group) in groups.iter().enumerate() {
            match self.shard_of(group) {
                Ok(at) => served.entry(at).or_default().push((place, group.clone())),
                Err(error) => unserved.push((place, group.clone(), error)),
            }
        }
        (served, unserved)
    }

    fn on_describe(&mut self, turning: &mut Turning<'_>, asker: Asker, body: DescribeGroupsRequest) {
        let (served, unserved) = self.by_shard(&body.groups);
        let empty = vec![None; body.groups.len()];
        let body = Body::Describe { groups: empty, operations: body.include_authorized_operations };
        let gather = self.gather(turning, asker, served.len() + unserved.len(), body);
        for (at, groups) in served {
            self.call(turning, at, |machine, _| machine.describe(To::Gather(gather), &groups, asker.version));
        }
        for (place, group_id, error) in unserved {
            let group = DescribedGroup { group_id, ..Default::default() };
            self.part(gather, Answer::Described(vec![(place, group)]).failed(error));
        }
    }

    fn on_delete(&mut self, turning: &mut Turning<'_>, asker: Asker, body: DeleteGroupsRequest) {
        let mut groups = body.groups_names;
        let mut seen = std::collections::BTreeSet::new();
        groups.retain(|group| seen.insert(group.clone()));
        let (served, unserved) = self.by_shard(&groups);
        let body = Body::Delete(vec![None; groups.len()]);
        let gather = self.gather(turning, asker, served.len() + unserved.len(), body);
        for (at, groups) in served {
            self.call(turning, at, |machine, _| machine.delete(To::Gather(gather), &groups));
        }
        for (place, group_id, error) in unserved {
            let result = DeletableGroupResult { group_id, ..Default::default() };
            self.part(gather, Answer::Deleted(vec![(place, result)]).failed(error));
        }
    }

    fn on_list(&mut self, turning: &mut Turning<'_>, asker: Asker, body: ListGroupsRequest) {
        let filter = Filter { states: body.states_filter, types: body.types_filter };
        // A shard that this node does not have is another's to list.
        let shards: Vec<(PartitionIndex, Option<ErrorCode>)> = self
            .shards
            .iter()
            .map(|(at, shard)| (*at, shard.refusal()))
            .filter(|(_, refusal)| *refusal != Some(ErrorCode::NotCoordinator))
            .collect();
        let gather = self.gather(turning, asker, shards.len(), Body::List(Ok(Vec::new())));
        for (at, refusal) in shards {
            match refusal {
                None => self.call(turning, at, |machine, _| machine.list(To::Gather(gather), &filter)),
                Some(error) => self.part(gather, Answer::Listed(Err(error))),
            }
        }
    }
}

/// Groups that no shard here can tell about: place, name, why.
type Unserved = Vec<(usize, KafkaString, ErrorCode)>;

fn exists(partition: i32, count: u32) -> bool {
    u32::try_from(partition).is_ok_and(|partition| partition < count)
}

/// The part of a topic that exists, under its name and its id; the rest is answered.
fn check_commit(
    mut topic: OffsetCommitRequestTopic,
    version: i16,
    topics: &dyn Topics,
    refused: &mut Vec<OffsetCommitResponseTopic>,
) -> Option<OffsetCommitRequestTopic> {
    if version >= TOPIC_IDS_SINCE {
        match topics.name(TopicId(topic.topic_id)).filter(|_| !topic.topic_id.is_zero()) {
            Some(name) => topic.name = name,
            None => {
                refused.push(commit_answer(&topic, |_| true, ErrorCode::UnknownTopicId));
                return None;
            }
        }
    }
    let count = topics.partitions(&topic.name).unwrap_or(0);
    topic.topic_id = topics.id(&topic.name).map_or(topic.topic_id, |id| id.0);
    if topic.partitions.is_empty() || topic.partitions.iter().any(|one| !exists(one.partition_index, count)) {
        let is_unknown = |partition| !exists(partition, count);
        let answer = commit_answer(&topic, is_unknown, ErrorCode::UnknownTopicOrPartition);
        if count == 0 || !answer.partitions.is_empty() {
            refused.push(answer);
        }
        topic.partitions.retain(|one| exists(one.partition_index, count));
    }
    (!topic.partitions.is_empty()).then_some(topic)
}

fn commit_answer(
    topic: &OffsetCommitRequestTopic,
    which: impl Fn(i32) -> bool,
    error: ErrorCode,
) -> OffsetCommitResponseTopic {
    let partitions = topic.partitions.iter().map(|partition| partition.partition_index).filter(|index| which(*index));
    OffsetCommitResponseTopic {
        name: topic.name.clone(),
        topic_id: topic.topic_id,
        partitions: partitions
            .map(|partition_index| OffsetCommitResponsePartition {
                partition_index,
                error_code: error.code(),
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    }
}

/// The groups asked for, whichever way the version names them.
fn groups_of(body: OffsetFetchRequest, version: i16) -> Vec<FetchedGroup> {
    let requests = if version >= FETCHES_GROUPS_SINCE {
        body.groups
    } else {
        let topics = body.topics.map(|topics| {
            let named = topics.into_iter().map(|topic| OffsetFetchRequestTopics {
                name: topic.name,
                partition_indexes: topic.partition_indexes,
                ..Default::default()
            });
            named.collect()
        });
        vec![OffsetFetchRequestGroup { group_id: body.group_id, topics, ..Default::default() }]
    };
    requests.into_iter().map(|request| FetchedGroup { request, refused: Vec::new(), answer: None }).collect()
}

/// Gives the topics of a group their names; those that have none are answered.
fn name_topics(group: &mut FetchedGroup, version: i16, topics: &dyn Topics) {
    let Some(asked) = group.request.topics.as_mut().filter(|_| version >= TOPIC_IDS_SINCE) else { return };
    for topic in asked.iter_mut() {
        topic.name = topics.name(TopicId(topic.topic_id)).filter(|_| !topic.topic_id.is_zero()).unwrap_or_default();
    }
    let refused = asked.iter().filter(|topic| topic.name.is_empty()).map(unknown_topic);
    group.refused = refused.collect();
    asked.retain(|topic| !topic.name.is_empty());
}
