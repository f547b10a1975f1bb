//! An image as records: what a snapshot holds. Replaying them gives the image again.

use crate::image::MetadataImage;
use crate::record::{MetadataVersion, Record};
use wire::messages::client_quota_record::{ClientQuotaRecord, EntityData};
use wire::messages::{ConfigRecord, FeatureLevelRecord, ProducerIdsRecord};

impl MetadataImage {
    /// In the order in which Kafka writes a snapshot: features first, since they decide the versions of what follows.
    /// An iterator, so that a snapshot of a million partitions is written in slices; the image it borrows costs nothing
    /// to keep.
    pub fn records(&self) -> impl Iterator<Item = Record> + '_ {
        let level = self.features.metadata_version.unwrap_or(MetadataVersion::MINIMUM);
        let elr = self.features.has_eligible_leader_replicas();
        let cluster = &self.cluster;
        let brokers = cluster.brokers.values().map(move |broker| broker.to_record(level));
        let controllers = cluster.controllers.values().map(|controller| controller.to_record());
        let topics = self.topics.iter().flat_map(move |topic| {
            let partitions = topic.partitions.iter();
            let partitions = partitions.map(move |(index, p)| p.to_record(topic.id, *index, level, elr));
            std::iter::once(topic.to_record()).chain(partitions)
        });
        (self.feature_records().chain(brokers).chain(controllers).chain(topics))
            .chain(self.config_records())
            .chain(self.quota_records())
            .chain(self.next_producer_id.map(producer_ids))
            .chain(self.acls.values().map(|acl| Record::v0(acl.as_ref().clone())))
            .chain(self.scram.values().map(|credential| Record::v0(credential.as_ref().clone())))
            .chain(self.tokens.values().map(|token| Record::v0(token.as_ref().clone())))
    }

    fn feature_records(&self) -> impl Iterator<Item = Record> + '_ {
        let record = |name: &str, level: i16| {
            Record::v0(FeatureLevelRecord { name: name.into(), feature_level: level, unknown_tags: Default::default() })
        };
        let version = self.features.metadata_version.map(|level| record(MetadataVersion::FEATURE, level.0));
        version.into_iter().chain(self.features.levels.iter().map(move |(name, level)| record(name, *level)))
    }

    fn config_records(&self) -> impl Iterator<Item = Record> + '_ {
        self.configs.iter().flat_map(|(resource, overrides)| {
            overrides.iter().map(|(name, value)| {
                Record::v0(ConfigRecord {
                    resource_type: resource.resource_type,
                    resource_name: resource.name.clone(),
                    name: name.as_str().into(),
                    value: Some(value.as_str().into()),
                    unknown_tags: Default::default(),
                })
            })
        })
    }

    fn quota_records(&self) -> impl Iterator<Item = Record> + '_ {
        self.quotas.iter().flat_map(|(entity, quotas)| {
            let part = |(entity_type, entity_name): &(_, _)| EntityData {
                entity_type: Clone::clone(entity_type),
                entity_name: Clone::clone(entity_name),
                unknown_tags: Default::default(),
            };
            let entity: Vec<EntityData> = entity.iter().map(part).collect();
            quotas.iter().map(move |(key, value)| {
                Record::v0(ClientQuotaRecord {
                    entity: entity.clone(),
                    key: key.clone(),
                    value: *value,
                    remove: false,
                    unknown_tags: Default::default(),
                })
            })
        })
    }
}

fn producer_ids(next: i64) -> Record {
    Record::v0(ProducerIdsRecord {
        broker_id: -1,
        broker_epoch: -1,
        next_producer_id: next,
        unknown_tags: Default::default(),
    })
}
