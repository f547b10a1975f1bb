//! From the control plane to the dataplane.

use crate::duties::DutiesPart;
use crate::view::ViewPart;
use base::{LeaderEpoch, NodeId, Offset, PartitionId, Uuid};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Down {
    Hello(DownHello),
    /// A part of an image or a delta of this node's partitions.
    Duties(Box<DutiesPart>),
    /// A part of an image or a delta of what clients are told.
    View(Box<ViewPart>),
    /// The answer to `Up::Forward`: header and body, ready to be framed. `None` closes the connection.
    Answer {
        id: u64,
        response: Option<Bytes>,
    },
    /// The beginning of an answer too large for one message: the parts in their order, then `Answer` with the rest.
    AnswerPart {
        id: u64,
        bytes: Bytes,
    },
    InternalAppend(InternalAppend),
    InternalRead(InternalRead),
    /// A block of producer ids for InitProducerId without a transactional id.
    ProducerIds {
        first: i64,
        count: u32,
    },
    /// Stop cleanly: refuse produce, make everything durable, answer `Up::Stopped`.
    Stop,
    Ping(u64),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DownHello {
    pub protocol_version: u16,
    pub cluster_id: String,
    pub node_id: NodeId,
    /// The incarnation under which the broker is registered.
    pub incarnation: Uuid,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InternalAppend {
    pub id: u64,
    pub partition: PartitionId,
    pub expected_epoch: LeaderEpoch,
    pub batches: Bytes,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InternalRead {
    pub id: u64,
    pub partition: PartitionId,
    pub expected_epoch: LeaderEpoch,
    pub offset: Offset,
    pub bytes_max: u32,
}
