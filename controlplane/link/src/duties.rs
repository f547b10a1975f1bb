//! This node's partitions: what it must hold and in which role. The deletion rule of design 04 is about these.

use base::{LeaderEpoch, NodeId, PartitionEpoch, PartitionId};
use serde::{Deserialize, Serialize};

/// Where a message stands in the metadata log; refused where it is older than what is applied, or of another cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    pub cluster_id: String,
    pub quorum_epoch: i32,
    /// Offset of the last metadata record contained.
    pub metadata_offset: i64,
    /// The control plane had caught up with the quorum's high watermark when it made this.
    pub caught_up: bool,
}

/// One message of an image (the state whole) or of a delta.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DutiesPart {
    pub provenance: Provenance,
    /// True in every part of an image. A partition that an image does not name is stray: kept, not served, listed.
    pub image: bool,
    /// The last part: only now is the whole applied.
    pub last: bool,
    pub duties: Vec<Duty>,
    pub removals: Vec<Removal>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Duty {
    pub partition: PartitionId,
    pub topic_name: String,
    /// Metadata offset of the partition's creation, against which a removal is checked.
    pub created_at: i64,
    pub leader: Option<NodeId>,
    pub leader_epoch: LeaderEpoch,
    pub partition_epoch: PartitionEpoch,
    pub replicas: Vec<NodeId>,
    pub isr: Vec<NodeId>,
    /// RECOVERING after an unclean election (KIP-966).
    pub recovering: bool,
    /// The topic's overrides, by Kafka's names; the broker's own defaults lie beneath them.
    pub config: Vec<(String, String)>,
}

/// An explicit removal: the only way a partition goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removal {
    pub partition: PartitionId,
    /// Metadata offset of the record that removed it; refused where it lies below the partition's creation.
    pub removed_at: i64,
}
