//! What a core tells core 0 to say up the link, and what core 0 tells the others.

use base::{LeaderEpoch, NodeId, Offset, PartitionEpoch, PartitionId};

/// The replica set of a partition as the metadata log has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaSet {
    pub replicas: Vec<NodeId>,
    pub isr: Vec<NodeId>,
    pub partition_epoch: PartitionEpoch,
}

/// The part this node plays for a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Leader { epoch: LeaderEpoch },
    Follower { leader: Option<NodeId>, epoch: LeaderEpoch },
}

/// From a core to core 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpCall {
    /// The ISR should change (AlterPartition, KIP-497).
    ProposeIsr { partition: PartitionId, epoch: LeaderEpoch, partition_epoch: PartitionEpoch, isr: Vec<NodeId> },
    /// The namespace of a core stopped: its partitions are offline.
    DirectoryFailed { reason: String },
    /// Where an internal partition's duty stands after a change of role: its end offset when it began to lead.
    Leads { partition: PartitionId, epoch: LeaderEpoch, end: Offset },
}
