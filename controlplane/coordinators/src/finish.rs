//! The last step of an answer: parts put together, and the shape of the client's version.

use crate::answer::{Answer, Asker};
use crate::api::Topics;
use crate::group::nothing_committed;
use base::Uuid;
use wire::messages::delete_groups_response::DeletableGroupResult;
use wire::messages::describe_groups_response::DescribedGroup;
use wire::messages::list_groups_response::ListedGroup;
use wire::messages::offset_fetch_request::OffsetFetchRequestGroup;
use wire::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponseTopic, OffsetFetchResponseTopics,
};
use wire::messages::{
    DeleteGroupsResponse, DescribeGroupsResponse, LeaveGroupResponse, ListGroupsResponse, OffsetFetchResponse,
};
use wire::{ErrorCode, KafkaString, ResponseKind};

/// From here on JoinGroup may name no protocol, where there is none.
const NULL_PROTOCOL_SINCE: i16 = 7;
/// From here on LeaveGroup takes several members (KIP-345).
pub(crate) const LEAVES_SEVERAL_SINCE: i16 = 3;
/// From here on OffsetFetch has an error of the whole, several groups, topic ids.
const FETCH_ERROR_SINCE: i16 = 2;
pub(crate) const FETCHES_GROUPS_SINCE: i16 = 8;
pub(crate) const TOPIC_IDS_SINCE: i16 = 10;
/// What one may do with a group, as bits by the numbers of the operations: read, delete, describe, describe its settings
/// and alter them. Everyone may while no authorizer is configured.
const GROUP_OPERATIONS: i32 = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11;

/// A whole response in the client's version.
pub(crate) fn in_version(response: ResponseKind, version: i16) -> ResponseKind {
    match response {
        ResponseKind::JoinGroup(mut response) => {
            // An empty name and none are the same; versions tell it in their own way.
            let name = response.protocol_name.take().filter(|name| !name.is_empty());
            response.protocol_name = if version < NULL_PROTOCOL_SINCE { Some(name.unwrap_or_default()) } else { name };
            response.into()
        }
        ResponseKind::LeaveGroup(response) if version < LEAVES_SEVERAL_SINCE => {
            // The one member's error is the whole's.
            let own = response.members.first().map_or(0, |member| member.error_code);
            let error_code = if response.error_code == 0 { own } else { response.error_code };
            LeaveGroupResponse { error_code, ..Default::default() }.into()
        }
        other => other,
    }
}

/// A response that several shards make, as far as it has come.
#[derive(Debug)]
pub(crate) struct Gather {
    pub asker: Asker,
    /// Parts that are still to come.
    pub left: usize,
    pub body: Body,
}

#[derive(Debug)]
pub(crate) enum Body {
    Fetch(Vec<FetchedGroup>),
    Describe { groups: Vec<Option<DescribedGroup>>, operations: bool },
    Delete(Vec<Option<DeletableGroupResult>>),
    List(Result<Vec<ListedGroup>, ErrorCode>),
}

#[derive(Debug)]
pub(crate) struct FetchedGroup {
    pub request: OffsetFetchRequestGroup,
    /// Topics that nobody knows.
    pub refused: Vec<OffsetFetchResponseTopics>,
    pub answer: Option<OffsetFetchResponseGroup>,
}

impl Gather {
    pub fn take(&mut self, part: Answer) {
        self.left -= 1;
        match (&mut self.body, part) {
            (Body::Fetch(groups), Answer::Fetched(place, answer)) => groups[place].answer = Some(answer),
            (Body::Describe { groups, .. }, Answer::Described(part)) => {
                part.into_iter().for_each(|(place, group)| groups[place] = Some(group));
            }
            (Body::Delete(results), Answer::Deleted(part)) => {
                part.into_iter().for_each(|(place, result)| results[place] = Some(result));
            }
            (Body::List(all), Answer::Listed(part)) => match (all.as_mut(), part) {
                (Ok(all), Ok(part)) => all.extend(part),
                (Ok(_), Err(error)) => *all = Err(error),
                (Err(_), _) => {}
            },
            (body, part) => unreachable!("{part:?} is no part of {body:?}"),
        }
    }

    pub fn finish(self, topics: &dyn Topics) -> ResponseKind {
        match self.body {
            Body::Fetch(groups) => finish_fetch(groups, self.asker.version, topics),
            Body::Describe { groups, operations } => {
                let mut groups: Vec<DescribedGroup> = groups.into_iter().flatten().collect();
                for group in groups.iter_mut().filter(|group| operations && group.error_code == 0) {
                    group.authorized_operations = GROUP_OPERATIONS;
                }
                DescribeGroupsResponse { groups, ..Default::default() }.into()
            }
            Body::Delete(results) => {
                DeleteGroupsResponse { results: results.into_iter().flatten().collect(), ..Default::default() }.into()
            }
            Body::List(Ok(groups)) => ListGroupsResponse { groups, ..Default::default() }.into(),
            Body::List(Err(error)) => ListGroupsResponse { error_code: error.code(), ..Default::default() }.into(),
        }
    }
}

fn finish_fetch(groups: Vec<FetchedGroup>, version: i16, topics: &dyn Topics) -> ResponseKind {
    let finished = groups.into_iter().map(|group| finish_group(group, version, topics));
    if version >= FETCHES_GROUPS_SINCE {
        return OffsetFetchResponse { groups: finished.collect(), ..Default::default() }.into();
    }
    let mut response = OffsetFetchResponse::default();
    for group in finished {
        response.error_code = group.error_code;
        response.topics = group.topics.into_iter().map(old_topic).collect();
    }
    response.into()
}

fn finish_group(group: FetchedGroup, version: i16, topics: &dyn Topics) -> OffsetFetchResponseGroup {
    let mut answer = group.answer.unwrap_or_default();
    if answer.error_code != 0 {
        if version < FETCH_ERROR_SINCE {
            let error = ErrorCode::from_code(answer.error_code).unwrap_or(ErrorCode::UnknownServerError);
            answer.topics = refused_topics(&group.request, error);
        }
        return answer;
    }
    if version >= TOPIC_IDS_SINCE {
        // All topics of a group were asked for: ids take the place of the names, and what has none is left out.
        for topic in answer.topics.iter_mut().filter(|topic| topic.topic_id.is_zero()) {
            topic.topic_id = topics.id(&topic.name).map_or(Uuid::ZERO, |id| id.0);
        }
        answer.topics.retain(|topic| !topic.topic_id.is_zero());
    }
    answer.topics.extend(group.refused);
    answer
}

/// The error on every partition asked for.
fn refused_topics(request: &OffsetFetchRequestGroup, error: ErrorCode) -> Vec<OffsetFetchResponseTopics> {
    let refuse = |topic: &wire::messages::offset_fetch_request::OffsetFetchRequestTopics| OffsetFetchResponseTopics {
        name: topic.name.clone(),
        topic_id: topic.topic_id,
        partitions: topic.partition_indexes.iter().map(|index| nothing_committed(*index, error)).collect(),
        ..Default::default()
    };
    request.topics.iter().flatten().map(refuse).collect()
}

/// A topic in the shape of the versions with one group.
fn old_topic(topic: OffsetFetchResponseTopics) -> OffsetFetchResponseTopic {
    let old = |partition: wire::messages::offset_fetch_response::OffsetFetchResponsePartitions| {
        OffsetFetchResponsePartition {
            partition_index: partition.partition_index,
            committed_offset: partition.committed_offset,
            committed_leader_epoch: partition.committed_leader_epoch,
            metadata: partition.metadata,
            error_code: partition.error_code,
            ..Default::default()
        }
    };
    OffsetFetchResponseTopic {
        name: topic.name,
        partitions: topic.partitions.into_iter().map(old).collect(),
        ..Default::default()
    }
}

/// The topics of a group in an OffsetFetch whose name or id nobody knows, with that error on every partition.
pub(crate) fn unknown_topic(
    topic: &wire::messages::offset_fetch_request::OffsetFetchRequestTopics,
) -> OffsetFetchResponseTopics {
    OffsetFetchResponseTopics {
        name: KafkaString::default(),
        topic_id: topic.topic_id,
        partitions: topic
            .partition_indexes
            .iter()
            .map(|index| nothing_committed(*index, ErrorCode::UnknownTopicId))
            .collect(),
        ..Default::default()
    }
}
