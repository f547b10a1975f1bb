//! Kafka's messages and back: the edge between the state machine and the wire. Error codes are mapped here, and only here.

mod describe;
mod fetch;
mod votes;

pub use describe::describe_response;

use crate::ids::{Endpoint, ReplicaKey};
use crate::message::{Refusal, Reply, Request};
use base::{LeaderEpoch, NodeId, Uuid};
use wire::messages::{BeginQuorumEpochResponse, EndQuorumEpochResponse, VoteResponse};
use wire::messages::{FetchResponse, FetchSnapshotResponse};
use wire::{ErrorCode, KafkaString, RequestKind, ResponseKind};

/// The topic whose only partition, 0, is the metadata log. Its id is `Uuid::ONE`.
pub const METADATA_TOPIC: &str = "__cluster_metadata";

/// The answer to a request of ours makes no sense, or is an error above the partition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    #[error("the answer is not one to a request of the quorum, or lacks its partition")]
    Malformed,
    #[error("the answer is error {0}")]
    Refused(i16),
}

/// A request of another replica. An error is answered by `refuse`. Panics on a request that is not the quorum's
/// (Vote, BeginQuorumEpoch, EndQuorumEpoch, Fetch, FetchSnapshot): routing it here is a bug.
pub fn decode_request(request: &RequestKind, version: i16, cluster_id: &str) -> Result<Request, Refusal> {
    match request {
        RequestKind::Vote(m) => votes::decode_vote(m, cluster_id),
        RequestKind::BeginQuorumEpoch(m) => votes::decode_begin(m, cluster_id),
        RequestKind::EndQuorumEpoch(m) => votes::decode_end(m, cluster_id),
        RequestKind::Fetch(m) => fetch::decode_fetch(m, version, cluster_id),
        RequestKind::FetchSnapshot(m) => fetch::decode_fetch_snapshot(m, cluster_id),
        other => panic!("{:?} is not for the quorum", other.api()),
    }
}

/// A request of ours, in a version that both sides know.
pub fn encode_request(request: &Request, version: i16, cluster_id: &str) -> RequestKind {
    match request {
        Request::Vote(m) => RequestKind::Vote(votes::encode_vote(m, version, cluster_id)),
        Request::BeginEpoch(m) => RequestKind::BeginQuorumEpoch(votes::encode_begin(m, version, cluster_id)),
        Request::EndEpoch(m) => RequestKind::EndQuorumEpoch(votes::encode_end(m, version, cluster_id)),
        Request::Fetch(m) => RequestKind::Fetch(fetch::encode_fetch(m, version, cluster_id)),
        Request::FetchSnapshot(m) => RequestKind::FetchSnapshot(fetch::encode_fetch_snapshot(m, version, cluster_id)),
    }
}

/// The answer to a request that `decode_request` accepted; `listener` is the one it came in on.
pub fn encode_reply(reply: &Reply, version: i16, listener: &str) -> ResponseKind {
    use crate::message::ReplyBody::{BeginEpoch, EndEpoch, Fetch, FetchSnapshot, Vote};
    match &reply.body {
        Vote { granted } => ResponseKind::Vote(votes::encode_vote_reply(reply, *granted, version, listener)),
        BeginEpoch => ResponseKind::BeginQuorumEpoch(votes::encode_begin_reply(reply, version, listener)),
        EndEpoch => ResponseKind::EndQuorumEpoch(votes::encode_end_reply(reply, version, listener)),
        Fetch(body) => ResponseKind::Fetch(fetch::encode_fetch_reply(reply, body, version, listener)),
        FetchSnapshot(body) => {
            ResponseKind::FetchSnapshot(fetch::encode_fetch_snapshot_reply(reply, body, version, listener))
        }
    }
}

/// The answer to a request that `decode_request` refused: an error above any partition.
pub fn refuse(request: &RequestKind, refusal: Refusal) -> ResponseKind {
    let error_code = error_code(Some(refusal));
    match request {
        RequestKind::Vote(_) => ResponseKind::Vote(VoteResponse { error_code, ..Default::default() }),
        RequestKind::BeginQuorumEpoch(_) => {
            ResponseKind::BeginQuorumEpoch(BeginQuorumEpochResponse { error_code, ..Default::default() })
        }
        RequestKind::EndQuorumEpoch(_) => {
            ResponseKind::EndQuorumEpoch(EndQuorumEpochResponse { error_code, ..Default::default() })
        }
        RequestKind::Fetch(_) => ResponseKind::Fetch(FetchResponse { error_code, ..Default::default() }),
        RequestKind::FetchSnapshot(_) => {
            ResponseKind::FetchSnapshot(FetchSnapshotResponse { error_code, ..Default::default() })
        }
        other => panic!("{:?} is not for the quorum", other.api()),
    }
}

/// The answer to a request of ours; `listener` names the controllers' listener, on which leaders' addresses are meant.
pub fn decode_reply(response: &ResponseKind, listener: &str) -> Result<Reply, ReplyError> {
    match response {
        ResponseKind::Vote(m) => votes::decode_vote_reply(m, listener),
        ResponseKind::BeginQuorumEpoch(m) => votes::decode_begin_reply(m, listener),
        ResponseKind::EndQuorumEpoch(m) => votes::decode_end_reply(m, listener),
        ResponseKind::Fetch(m) => fetch::decode_fetch_reply(m, listener),
        ResponseKind::FetchSnapshot(m) => fetch::decode_fetch_snapshot_reply(m, listener),
        _ => Err(ReplyError::Malformed),
    }
}

fn error_code(refusal: Option<Refusal>) -> i16 {
    match refusal {
        None => ErrorCode::None,
        Some(Refusal::FencedLeaderEpoch) => ErrorCode::FencedLeaderEpoch,
        Some(Refusal::UnknownLeaderEpoch) => ErrorCode::UnknownLeaderEpoch,
        Some(Refusal::NotLeaderOrFollower) => ErrorCode::NotLeaderOrFollower,
        Some(Refusal::InvalidVoterKey) => ErrorCode::InvalidVoterKey,
        Some(Refusal::InvalidRequest) => ErrorCode::InvalidRequest,
        Some(Refusal::BrokerNotAvailable) => ErrorCode::BrokerNotAvailable,
        Some(Refusal::SnapshotNotFound) => ErrorCode::SnapshotNotFound,
        Some(Refusal::PositionOutOfRange) => ErrorCode::PositionOutOfRange,
        Some(Refusal::InconsistentClusterId) => ErrorCode::InconsistentClusterId,
        Some(Refusal::UnknownTopicOrPartition) => ErrorCode::UnknownTopicOrPartition,
        Some(Refusal::Storage) => ErrorCode::KafkaStorageError,
    }
    .code()
}

/// A code that replicas do not send each other is as good as a storage error: the request is tried again.
fn refusal(code: i16) -> Option<Refusal> {
    let known = [
        Refusal::FencedLeaderEpoch,
        Refusal::UnknownLeaderEpoch,
        Refusal::NotLeaderOrFollower,
        Refusal::InvalidVoterKey,
        Refusal::InvalidRequest,
        Refusal::BrokerNotAvailable,
        Refusal::SnapshotNotFound,
        Refusal::PositionOutOfRange,
        Refusal::InconsistentClusterId,
        Refusal::UnknownTopicOrPartition,
    ];
    match code {
        0 => None,
        code => Some(known.into_iter().find(|r| error_code(Some(*r)) == code).unwrap_or(Refusal::Storage)),
    }
}

/// A cluster id is optional; one that is stated has to be this cluster's.
fn check_cluster(stated: Option<&str>, own: &str) -> Result<(), Refusal> {
    match stated {
        Some(stated) if stated != own => Err(Refusal::InconsistentClusterId),
        _ => Ok(()),
    }
}

/// The only topic's only partition, where a request or answer has exactly that.
fn only<'a, T, P>(
    topics: &'a [T],
    is_ours: impl Fn(&T) -> bool,
    partitions: impl Fn(&'a T) -> &'a [P],
    index: impl Fn(&P) -> i32,
) -> Option<&'a P> {
    match topics {
        [topic] if is_ours(topic) => match partitions(topic) {
            [partition] if index(partition) == 0 => Some(partition),
            _ => None,
        },
        _ => None,
    }
}

fn is_ours(name: &KafkaString) -> bool {
    name.as_str() == METADATA_TOPIC
}

/// Kafka says -1 where there is no node.
fn node(id: i32) -> Option<NodeId> {
    (id >= 0).then_some(NodeId(id))
}

fn node_code(id: Option<NodeId>) -> i32 {
    id.map_or(-1, |id| id.0)
}

fn epoch(epoch: i32) -> Result<LeaderEpoch, Refusal> {
    if epoch < 0 { Err(Refusal::InvalidRequest) } else { Ok(LeaderEpoch(epoch)) }
}

fn replica(id: i32, directory: Uuid) -> Option<ReplicaKey> {
    Some(ReplicaKey { id: node(id)?, directory: Some(directory).filter(|d| !d.is_zero()) })
}

/// The address of the leader on a listener, for an answer that knows it.
fn leader_on<'a>(reply: &'a Reply, listener: &str) -> Option<(NodeId, &'a Endpoint)> {
    let endpoint = reply.leader_endpoints.iter().find(|e| e.listener == listener)?;
    Some((reply.leader?, endpoint))
}

fn endpoint(listener: &str, host: &str, port: u16) -> Endpoint {
    Endpoint { listener: listener.to_owned(), host: host.to_owned(), port }
}

#[cfg(test)]
mod tests;
