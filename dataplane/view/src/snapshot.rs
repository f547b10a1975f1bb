//! The snapshot that sessions read.

use crate::buckets::Buckets;
use base::{CoreId, NodeId, PartitionId, PartitionIndex, TopicId};
use link::{ConfigResource, Provenance, ViewBroker, ViewPartition};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A topic whole. Partitions are sorted by index, which Kafka numbers from 0 without a gap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    pub id: TopicId,
    pub name: Arc<str>,
    pub partitions: Arc<Vec<ViewPartition>>,
}

impl Topic {
    pub fn partition(&self, index: PartitionIndex) -> Option<&ViewPartition> {
        let at = self.partitions.binary_search_by_key(&index, |partition| partition.index).ok()?;
        Some(&self.partitions[at])
    }

    /// Kafka marks its own topics by name.
    pub fn is_internal(&self) -> bool {
        is_internal(&self.name)
    }
}

pub(crate) fn is_internal(name: &str) -> bool {
    matches!(name, "__consumer_offsets" | "__transaction_state" | "__share_group_state")
}

/// A resource's overrides, by Kafka's names.
pub(crate) type Overrides = Vec<(String, String)>;

/// Everything a session needs to know of the cluster, at one metadata offset.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// `None` until the first image came: a node that was never told anything.
    pub(crate) provenance: Option<Provenance>,
    pub(crate) brokers: Arc<BTreeMap<NodeId, Arc<ViewBroker>>>,
    pub(crate) topics: Buckets<Arc<str>, Arc<Topic>>,
    pub(crate) names: Buckets<TopicId, Arc<str>>,
    pub(crate) configs: Arc<BTreeMap<ConfigResource, Arc<Overrides>>>,
    pub(crate) features: Arc<(i64, Vec<(String, i16)>)>,
    pub(crate) controller: Option<NodeId>,
    pub(crate) placements: Buckets<PartitionId, CoreId>,
}

impl View {
    pub fn provenance(&self) -> Option<&Provenance> {
        self.provenance.as_ref()
    }

    pub fn metadata_offset(&self) -> Option<i64> {
        self.provenance.as_ref().map(|p| p.metadata_offset)
    }

    pub fn brokers(&self) -> impl Iterator<Item = &Arc<ViewBroker>> {
        self.brokers.values()
    }

    pub fn broker(&self, id: NodeId) -> Option<&Arc<ViewBroker>> {
        self.brokers.get(&id)
    }

    pub fn controller(&self) -> Option<NodeId> {
        self.controller
    }

    pub fn topic(&self, name: &str) -> Option<&Arc<Topic>> {
        self.topics.get(name)
    }

    pub fn topic_by_id(&self, id: TopicId) -> Option<&Arc<Topic>> {
        self.topics.get(self.names.get(&id)?)
    }

    /// In no order; callers that answer clients sort by name.
    pub fn topics(&self) -> impl Iterator<Item = &Arc<Topic>> {
        self.topics.iter().map(|(_, topic)| topic)
    }

    pub fn topic_count(&self) -> usize {
        self.topics.len()
    }

    /// The overrides of a resource, empty where it has none.
    pub fn overrides(&self, resource: &ConfigResource) -> &[(String, String)] {
        self.configs.get(resource).map_or(&[], |entries| entries.as_slice())
    }

    /// Finalized features and the epoch they hold at (-1 before the first image).
    pub fn features(&self) -> (i64, &[(String, i16)]) {
        if self.provenance.is_none() { (-1, &[]) } else { (self.features.0, &self.features.1) }
    }

    /// The core of this node that owns a partition it holds.
    pub fn core_of(&self, partition: PartitionId) -> Option<CoreId> {
        self.placements.get(&partition).copied()
    }
}
