//! What changed between two images: names only, since both images are at hand and cost nothing to keep.

use crate::image::{MetadataImage, QuotaEntity, Resource, ScramUser};
use crate::topics::Topic;
use base::{NodeId, PartitionId, PartitionIndex, TopicId, Uuid};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use wire::KafkaString;

#[derive(Clone, Debug)]
pub struct RemovedTopic {
    /// As it was at the end.
    pub topic: Arc<Topic>,
    /// Metadata offset of the record that removed it.
    pub removed_at: i64,
}

#[derive(Clone, Debug, Default)]
pub struct MetadataDelta {
    pub features: bool,
    pub producer_ids: bool,
    pub brokers: BTreeSet<NodeId>,
    pub controllers: BTreeSet<NodeId>,
    /// Topics that are there after the delta and were not before, with the offset of their creation.
    pub created_topics: BTreeMap<TopicId, i64>,
    /// Partitions that are there after the delta and were made or changed by it, each with the offset of its last change.
    pub partitions: BTreeMap<TopicId, BTreeMap<PartitionIndex, i64>>,
    /// Topics removed since the image before, in the order of their removal; also those that came and went within.
    pub removed_topics: Vec<RemovedTopic>,
    pub configs: BTreeSet<Resource>,
    pub quotas: BTreeSet<QuotaEntity>,
    pub acls: BTreeSet<Uuid>,
    pub scram: BTreeSet<ScramUser>,
    pub tokens: BTreeSet<KafkaString>,
}

impl MetadataDelta {
    pub fn is_empty(&self) -> bool {
        !self.features
            && !self.producer_ids
            && self.brokers.is_empty()
            && self.controllers.is_empty()
            && self.created_topics.is_empty()
            && self.partitions.is_empty()
            && self.removed_topics.is_empty()
            && self.configs.is_empty()
            && self.quotas.is_empty()
            && self.acls.is_empty()
            && self.scram.is_empty()
            && self.tokens.is_empty()
    }

    pub(crate) fn topic_created(&mut self, id: TopicId, offset: i64) {
        self.created_topics.insert(id, offset);
    }

    pub(crate) fn topic_removed(&mut self, topic: Arc<Topic>, removed_at: i64) {
        self.created_topics.remove(&topic.id);
        self.partitions.remove(&topic.id);
        self.removed_topics.push(RemovedTopic { topic, removed_at });
    }

    pub(crate) fn partition_changed(&mut self, id: PartitionId, offset: i64) {
        self.partitions.entry(id.topic).or_default().insert(id.index, offset);
    }

    /// What lies between two images of which nothing else is known: a snapshot was loaded over an older image.
    pub fn between(before: &MetadataImage, after: &MetadataImage) -> MetadataDelta {
        let offset = after.provenance.offset;
        let mut delta = MetadataDelta {
            features: before.features != after.features,
            producer_ids: before.next_producer_id != after.next_producer_id,
            brokers: changed(&before.cluster.brokers, &after.cluster.brokers),
            controllers: changed(&before.cluster.controllers, &after.cluster.controllers),
            configs: changed(&before.configs, &after.configs),
            quotas: changed(&before.quotas, &after.quotas),
            acls: changed(&before.acls, &after.acls),
            scram: changed(&before.scram, &after.scram),
            tokens: changed(&before.tokens, &after.tokens),
            ..MetadataDelta::default()
        };
        if before.topics.is_same(&after.topics) {
            return delta;
        }
        for topic in before.topics.iter().filter(|topic| after.topics.get(topic.id).is_none()) {
            delta.topic_removed(topic.clone(), offset);
        }
        for topic in after.topics.iter() {
            let old = before.topics.get(topic.id);
            if old.is_none() {
                delta.topic_created(topic.id, offset);
            }
            for (index, partition) in &topic.partitions {
                if old.and_then(|old| old.partitions.get(index)) != Some(partition) {
                    delta.partition_changed(PartitionId { topic: topic.id, index: *index }, offset);
                }
            }
        }
        delta
    }
}

fn changed<K: Ord + Clone, V: PartialEq>(before: &crate::map::Map<K, V>, after: &crate::map::Map<K, V>) -> BTreeSet<K> {
    if before.is_same(after) {
        return BTreeSet::new();
    }
    let gone = before.keys().filter(|key| !after.contains(key));
    let new = after.iter().filter(|(key, value)| before.get(key) != Some(value)).map(|(key, _)| key);
    gone.chain(new).cloned().collect()
}
