//! What clients of the whole cluster may be told.

use crate::duties::Provenance;
use base::{BrokerEpoch, LeaderEpoch, NodeId, PartitionEpoch, PartitionIndex, TopicId, Uuid};
use serde::{Deserialize, Serialize};

/// One message of an image or of a delta. Absence from an image does remove here: the view is not data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ViewPart {
    pub provenance: Provenance,
    pub image: bool,
    pub last: bool,
    pub changes: Vec<ViewChange>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ViewChange {
    Broker(ViewBroker),
    BrokerRemoved(NodeId),
    Topic(ViewTopic),
    TopicRemoved(TopicId),
    /// Some partitions of a known topic, whole.
    Partitions {
        topic: TopicId,
        partitions: Vec<ViewPartition>,
    },
    /// Overrides of one resource, whole; empty where the last one was removed.
    Config {
        resource: ConfigResource,
        entries: Vec<(String, String)>,
    },
    /// Finalized feature levels, whole, and the epoch (metadata offset) they hold at.
    Features {
        epoch: i64,
        levels: Vec<(String, i16)>,
    },
    /// The controller that answers admin requests, as Metadata and DescribeCluster tell it.
    Controller(Option<NodeId>),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ConfigResource {
    Topic(String),
    Broker(NodeId),
    /// The cluster-wide defaults of brokers (resource name "").
    BrokerDefault,
    Group(String),
    ClientMetrics(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewBroker {
    pub id: NodeId,
    pub epoch: BrokerEpoch,
    pub incarnation: Uuid,
    pub rack: Option<String>,
    pub fenced: bool,
    pub in_controlled_shutdown: bool,
    /// Listener name, host, port, security protocol.
    pub listeners: Vec<(String, String, u16, i16)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewTopic {
    pub id: TopicId,
    pub name: String,
    pub partitions: Vec<ViewPartition>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewPartition {
    pub index: PartitionIndex,
    pub leader: Option<NodeId>,
    pub leader_epoch: LeaderEpoch,
    pub partition_epoch: PartitionEpoch,
    pub replicas: Vec<NodeId>,
    pub isr: Vec<NodeId>,
    pub eligible_leader_replicas: Vec<NodeId>,
    pub last_known_elr: Vec<NodeId>,
    /// Replicas whose broker is gone or whose directory failed.
    pub offline: Vec<NodeId>,
}
