//! Answers on their way to a client: whole responses, and parts of a response that several shards make together.

use crate::api::RequestToken;
use wire::messages::delete_groups_response::DeletableGroupResult;
use wire::messages::describe_groups_response::DescribedGroup;
use wire::messages::list_groups_response::ListedGroup;
use wire::messages::offset_fetch_response::OffsetFetchResponseGroup;
use wire::messages::{
    HeartbeatResponse, JoinGroupResponse, LeaveGroupResponse, OffsetCommitResponse, OffsetDeleteResponse,
    SyncGroupResponse,
};
use wire::{ErrorCode, ResponseKind};

/// A client that waits, and the version it speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asker {
    pub token: RequestToken,
    pub version: i16,
}

/// A request that is split over shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct GatherId(pub u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum To {
    Client(Asker),
    Gather(GatherId),
}

/// In parts, a number is the item's place in the request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Answer {
    Commit(OffsetCommitResponse),
    OffsetDelete(OffsetDeleteResponse),
    Join(JoinGroupResponse),
    Sync(SyncGroupResponse),
    Heartbeat(HeartbeatResponse),
    Leave(LeaveGroupResponse),
    Fetched(usize, OffsetFetchResponseGroup),
    Described(Vec<(usize, DescribedGroup)>),
    Deleted(Vec<(usize, DeletableGroupResult)>),
    Listed(Result<Vec<ListedGroup>, ErrorCode>),
}

impl Answer {
    /// The response, unless this is a part of one.
    pub fn into_response(self) -> Option<ResponseKind> {
        Some(match self {
            Answer::Commit(response) => response.into(),
            Answer::OffsetDelete(response) => response.into(),
            Answer::Join(response) => response.into(),
            Answer::Sync(response) => response.into(),
            Answer::Heartbeat(response) => response.into(),
            Answer::Leave(response) => response.into(),
            Answer::Fetched(..) | Answer::Described(_) | Answer::Deleted(_) | Answer::Listed(_) => return None,
        })
    }

    /// The same answer after the append that it rests on failed. What was refused for its own reason stays so.
    pub fn failed(self, error: ErrorCode) -> Answer {
        let code = error.code();
        let fail = |own: &mut i16| {
            if *own == ErrorCode::None.code() {
                *own = code;
            }
        };
        match self {
            Answer::Commit(mut response) => {
                for partition in response.topics.iter_mut().flat_map(|topic| &mut topic.partitions) {
                    fail(&mut partition.error_code);
                }
                Answer::Commit(response)
            }
            Answer::OffsetDelete(_) => {
                Answer::OffsetDelete(OffsetDeleteResponse { error_code: code, ..Default::default() })
            }
            Answer::Join(response) => Answer::Join(JoinGroupResponse {
                member_id: response.member_id,
                error_code: code,
                ..Default::default()
            }),
            Answer::Sync(_) => Answer::Sync(SyncGroupResponse { error_code: code, ..Default::default() }),
            Answer::Heartbeat(_) => Answer::Heartbeat(HeartbeatResponse { error_code: code, ..Default::default() }),
            Answer::Leave(_) => Answer::Leave(LeaveGroupResponse { error_code: code, ..Default::default() }),
            Answer::Fetched(place, group) => Answer::Fetched(
                place,
                OffsetFetchResponseGroup { group_id: group.group_id, error_code: code, ..Default::default() },
            ),
            Answer::Described(groups) => {
                let failed = |(place, group): (usize, DescribedGroup)| {
                    (place, DescribedGroup { group_id: group.group_id, error_code: code, ..Default::default() })
                };
                Answer::Described(groups.into_iter().map(failed).collect())
            }
            Answer::Deleted(mut results) => {
                results.iter_mut().for_each(|(_, result)| fail(&mut result.error_code));
                Answer::Deleted(results)
            }
            Answer::Listed(_) => Answer::Listed(Err(error)),
        }
    }
}
