//! What a client is told of a request that the control plane cannot answer now (design 04's table). Group requests have
//! a retriable error of their own; for the rest the connection closes, and the client tries another or again.

use arena::BufferRef;
use wire::messages::*;
use wire::{ApiKey, Decoder, ErrorCode, KafkaString, Message};

/// Responses whose error stands at their top.
trait WithCode: Default {
    fn with_code(code: i16) -> Self;
}

macro_rules! with_code {
    ($($response:ty),*) => {
        $(impl WithCode for $response {
            fn with_code(code: i16) -> Self {
                Self { error_code: code, ..Default::default() }
            }
        })*
    };
}

with_code!(
    HeartbeatResponse,
    JoinGroupResponse,
    SyncGroupResponse,
    LeaveGroupResponse,
    ListGroupsResponse,
    OffsetDeleteResponse
);

/// The answer, or `None` where the API has no way to say it.
pub fn answer(api: ApiKey, version: i16, correlation_id: i32, body: &[u8]) -> Option<BufferRef> {
    let code = ErrorCode::CoordinatorNotAvailable.code();
    let mut d = Decoder::new(body);
    macro_rules! plain {
        ($response:ty) => {
            Some(crate::encode::response(version, correlation_id, &<$response>::with_code(code)))
        };
    }
    match api {
        ApiKey::Heartbeat => plain!(HeartbeatResponse),
        ApiKey::JoinGroup => plain!(JoinGroupResponse),
        ApiKey::SyncGroup => plain!(SyncGroupResponse),
        ApiKey::LeaveGroup => plain!(LeaveGroupResponse),
        ApiKey::ListGroups => plain!(ListGroupsResponse),
        ApiKey::OffsetDelete => plain!(OffsetDeleteResponse),
        ApiKey::OffsetCommit => {
            let request = OffsetCommitRequest::decode(&mut d, version).ok()?;
            Some(crate::encode::response(version, correlation_id, &offset_commit(request, code)))
        }
        ApiKey::OffsetFetch => {
            let request = OffsetFetchRequest::decode(&mut d, version).ok()?;
            Some(crate::encode::response(version, correlation_id, &offset_fetch(request, version, code)))
        }
        ApiKey::FindCoordinator => {
            let request = FindCoordinatorRequest::decode(&mut d, version).ok()?;
            Some(crate::encode::response(version, correlation_id, &find_coordinator(request, version, code)))
        }
        ApiKey::DescribeGroups => {
            let request = DescribeGroupsRequest::decode(&mut d, version).ok()?;
            let groups = request.groups.into_iter().map(|group_id| describe_groups_response::DescribedGroup {
                error_code: code,
                group_id,
                ..Default::default()
            });
            let response = DescribeGroupsResponse { groups: groups.collect(), ..Default::default() };
            Some(crate::encode::response(version, correlation_id, &response))
        }
        ApiKey::DeleteGroups => {
            let request = DeleteGroupsRequest::decode(&mut d, version).ok()?;
            let results = request.groups_names.into_iter().map(|group_id| {
                delete_groups_response::DeletableGroupResult { group_id, error_code: code, ..Default::default() }
            });
            let response = DeleteGroupsResponse { results: results.collect(), ..Default::default() };
            Some(crate::encode::response(version, correlation_id, &response))
        }
        _ => None,
    }
}

fn offset_commit(request: OffsetCommitRequest, code: i16) -> OffsetCommitResponse {
    use offset_commit_response::{OffsetCommitResponsePartition, OffsetCommitResponseTopic};
    let topics = request.topics.into_iter().map(|topic| OffsetCommitResponseTopic {
        name: topic.name,
        topic_id: topic.topic_id,
        partitions: topic
            .partitions
            .into_iter()
            .map(|partition| OffsetCommitResponsePartition {
                partition_index: partition.partition_index,
                error_code: code,
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    });
    OffsetCommitResponse { topics: topics.collect(), ..Default::default() }
}

/// First version with several groups in one request.
const OFFSET_FETCH_GROUPS_SINCE: i16 = 8;
/// First version whose error stands above the partitions.
const OFFSET_FETCH_ERROR_SINCE: i16 = 2;

fn offset_fetch(request: OffsetFetchRequest, version: i16, code: i16) -> OffsetFetchResponse {
    use offset_fetch_response::{OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponseTopic};
    if version >= OFFSET_FETCH_GROUPS_SINCE {
        let groups = request.groups.into_iter().map(|group| OffsetFetchResponseGroup {
            group_id: group.group_id,
            error_code: code,
            ..Default::default()
        });
        return OffsetFetchResponse { groups: groups.collect(), ..Default::default() };
    }
    if version >= OFFSET_FETCH_ERROR_SINCE {
        return OffsetFetchResponse { error_code: code, ..Default::default() };
    }
    let topics = request.topics.unwrap_or_default().into_iter().map(|topic| OffsetFetchResponseTopic {
        name: topic.name,
        partitions: topic
            .partition_indexes
            .into_iter()
            .map(|partition_index| OffsetFetchResponsePartition {
                partition_index,
                committed_offset: -1,
                metadata: Some(KafkaString::from_static("")),
                error_code: code,
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    });
    OffsetFetchResponse { topics: topics.collect(), ..Default::default() }
}

fn find_coordinator(request: FindCoordinatorRequest, version: i16, code: i16) -> FindCoordinatorResponse {
    if version < 4 {
        return FindCoordinatorResponse { error_code: code, node_id: -1, port: -1, ..Default::default() };
    }
    let coordinators = request.coordinator_keys.into_iter().map(|key| find_coordinator_response::Coordinator {
        key,
        node_id: -1,
        port: -1,
        error_code: code,
        ..Default::default()
    });
    FindCoordinatorResponse { coordinators: coordinators.collect(), ..Default::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::{self, Route};
    use wire::{RequestKind, ResponseKind};

    #[test]
    fn every_group_request_gets_an_answer_in_every_version() {
        let requests: [RequestKind; 10] = [
            HeartbeatRequest::default().into(),
            JoinGroupRequest::default().into(),
            SyncGroupRequest::default().into(),
            LeaveGroupRequest::default().into(),
            ListGroupsRequest::default().into(),
            OffsetDeleteRequest::default().into(),
            OffsetCommitRequest::default().into(),
            OffsetFetchRequest::default().into(),
            DescribeGroupsRequest::default().into(),
            DeleteGroupsRequest::default().into(),
        ];
        for request in requests {
            let api = request.api();
            assert_eq!(route::route(api), Some(Route::ControlPlane));
            for version in api.stable_versions().iter() {
                let mut out = bytes::BytesMut::new();
                request.encode(&mut out, version).unwrap();
                let bytes = answer(api, version, 7, &out).expect("an answer");
                let mut d = Decoder::new(&bytes[4..]);
                assert_eq!(wire::read_response_header(&mut d, api, version), Ok(7));
                ResponseKind::decode(api, version, &mut d).unwrap();
                d.finish().unwrap();
            }
        }
    }

    #[test]
    fn admin_requests_and_garbage_have_no_answer() {
        assert!(answer(ApiKey::CreateTopics, 7, 1, &[]).is_none());
        assert!(answer(ApiKey::OffsetCommit, 9, 1, &[1, 2, 3]).is_none());
    }
}
