//! What replicas say to each other, as the state machine means it; `protocol` turns it into Kafka's messages and back.

use crate::ids::{Endpoint, OffsetAndEpoch, ReplicaKey, SnapshotId};
use base::{LeaderEpoch, NodeId, Offset};
use bytes::Bytes;

/// Names a request that this replica sent, until its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Names a request that this replica received, until it is answered: given by whoever delivers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    Vote(VoteRequest),
    BeginEpoch(BeginEpochRequest),
    EndEpoch(EndEpochRequest),
    Fetch(FetchRequest),
    FetchSnapshot(FetchSnapshotRequest),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VoteRequest {
    /// Whose vote is asked for; absent in the oldest version.
    pub voter: Option<ReplicaKey>,
    pub candidate: ReplicaKey,
    pub epoch: LeaderEpoch,
    pub last: OffsetAndEpoch,
    pub pre_vote: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BeginEpochRequest {
    pub voter: Option<ReplicaKey>,
    pub leader: NodeId,
    pub epoch: LeaderEpoch,
    pub endpoints: Vec<Endpoint>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndEpochRequest {
    pub leader: NodeId,
    pub epoch: LeaderEpoch,
    /// Who should stand next, best first.
    pub successors: Vec<ReplicaKey>,
    pub endpoints: Vec<Endpoint>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchRequest {
    /// Who fetches; absent for a reader that is no replica.
    pub replica: Option<ReplicaKey>,
    pub epoch: LeaderEpoch,
    pub offset: Offset,
    pub last_epoch: LeaderEpoch,
    pub wait_ms: u32,
    pub max_bytes: u32,
    /// The watermark the follower knows, so that news of a higher one need not wait for a record.
    pub high_watermark: Option<Offset>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchSnapshotRequest {
    pub replica: Option<ReplicaKey>,
    pub epoch: LeaderEpoch,
    pub id: SnapshotId,
    pub position: u64,
    pub max_bytes: u32,
}

/// Why a request was refused: each is one of Kafka's error codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The sender's epoch is behind.
    FencedLeaderEpoch,
    /// The sender's epoch is ahead of one that only the leader can answer for.
    UnknownLeaderEpoch,
    NotLeaderOrFollower,
    /// The request is for another replica on this node's address.
    InvalidVoterKey,
    InvalidRequest,
    BrokerNotAvailable,
    SnapshotNotFound,
    PositionOutOfRange,
    InconsistentClusterId,
    UnknownTopicOrPartition,
    /// The file could not be read.
    Storage,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub refusal: Option<Refusal>,
    pub epoch: LeaderEpoch,
    pub leader: Option<NodeId>,
    /// Where the leader listens.
    pub leader_endpoints: Vec<Endpoint>,
    pub body: ReplyBody,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyBody {
    Vote { granted: bool },
    BeginEpoch,
    EndEpoch,
    Fetch(FetchReply),
    FetchSnapshot(FetchSnapshotReply),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchReply {
    pub high_watermark: Option<Offset>,
    pub log_start: Option<Offset>,
    pub found: Fetched,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fetched {
    /// Whole batches, perhaps none.
    Batches(Vec<Bytes>),
    Diverging(OffsetAndEpoch),
    Snapshot(SnapshotId),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchSnapshotReply {
    pub id: SnapshotId,
    pub size: u64,
    pub position: u64,
    pub bytes: Bytes,
}

/// Whom a request goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Absent for a bootstrap server, of which only the address is known.
    pub node: Option<NodeId>,
    pub endpoint: Endpoint,
}
