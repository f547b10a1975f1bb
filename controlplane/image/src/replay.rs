//! What each record does to an image, and what it leaves in a delta.

use crate::cluster::{Broker, Controller};
use crate::delta::MetadataDelta;
use crate::image::{FEATURE_KRAFT, MetadataImage, QuotaEntity, Resource};
use crate::record::MetadataVersion;
use crate::topics::{NO_LEADER_CHANGE, NO_RECOVERY_CHANGE, Partition};
use base::{BrokerEpoch, NodeId, PartitionId, PartitionIndex, TopicId};
use std::fmt;
use std::sync::Arc;
use wire::messages::*;
use wire::{KafkaString, MetadataRecordKind};

/// The log says something that cannot follow what it said before. Nothing of the record has been applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayError {
    DuplicateTopic(KafkaString),
    UnknownTopic(TopicId),
    UnknownTopicName(KafkaString),
    UnknownPartition(PartitionId),
    MalformedPartition(PartitionId),
    UnknownBroker(NodeId),
    BrokerEpoch {
        broker: NodeId,
        record: BrokerEpoch,
        current: BrokerEpoch,
    },
    MalformedRegistration(NodeId),
    UnknownController(NodeId),
    UnknownAcl(base::Uuid),
    UnsupportedMetadataVersion(i16),
    /// Transactions are the loader's to honour; an image sees only what is inside them.
    Transaction(&'static str),
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReplayError::DuplicateTopic(name) => write!(f, "topic {name} is created twice"),
            ReplayError::UnknownTopic(id) => write!(f, "there is no topic with id {id}"),
            ReplayError::UnknownTopicName(name) => write!(f, "there is no topic {name}"),
            ReplayError::UnknownPartition(id) => write!(f, "there is no partition {id}"),
            ReplayError::MalformedPartition(id) => write!(f, "a record of partition {id} has no meaning"),
            ReplayError::UnknownBroker(id) => write!(f, "broker {id} is not registered"),
            ReplayError::BrokerEpoch { broker, record, current } => {
                write!(f, "a record of broker {broker} names epoch {record}, but it is {current}")
            }
            ReplayError::MalformedRegistration(id) => write!(f, "a registration change of broker {id} has no meaning"),
            ReplayError::UnknownController(id) => write!(f, "controller {id} is not registered"),
            ReplayError::UnknownAcl(id) => write!(f, "there is no ACL with id {id}"),
            ReplayError::UnsupportedMetadataVersion(level) => {
                write!(f, "metadata.version {level} is not one of {} to {}", MIN.0, MAX.0)
            }
            ReplayError::Transaction(name) => write!(f, "{name} out of place"),
        }
    }
}

impl std::error::Error for ReplayError {}

const MIN: MetadataVersion = MetadataVersion::MINIMUM;
const MAX: MetadataVersion = MetadataVersion::LATEST_TESTING;

impl MetadataImage {
    /// Applies one record that stands at `offset`.
    pub fn replay(
        &mut self,
        record: &MetadataRecordKind,
        offset: i64,
        delta: &mut MetadataDelta,
    ) -> Result<(), ReplayError> {
        use MetadataRecordKind as Kind;
        match record {
            Kind::RegisterBroker(r) => self.register_broker(r, delta),
            Kind::UnregisterBroker(r) => self.unregister_broker(r, delta)?,
            Kind::BrokerRegistrationChange(r) => self.change_broker(r, delta)?,
            Kind::FenceBroker(r) => self.fence(r.id, r.epoch, true, delta)?,
            Kind::UnfenceBroker(r) => self.fence(r.id, r.epoch, false, delta)?,
            Kind::RegisterController(r) => {
                let controller = Controller::from_record(r);
                delta.controllers.insert(controller.id);
                self.cluster.controllers.insert(controller.id, Arc::new(controller));
            }
            Kind::UnregisterController(r) => {
                let id = NodeId(r.controller_id);
                self.cluster.controllers.remove(&id).ok_or(ReplayError::UnknownController(id))?;
                delta.controllers.insert(id);
            }
            Kind::Topic(r) => self.create_topic(r, offset, delta)?,
            Kind::RemoveTopic(r) => self.remove_topic(r, offset, delta)?,
            Kind::Partition(r) => self.put_partition(r, offset, delta)?,
            Kind::PartitionChange(r) => self.change_partition(r, offset, delta)?,
            Kind::ClearElr(r) => self.clear_elr(r, offset, delta)?,
            Kind::Config(r) => self.configure(r, delta),
            Kind::FeatureLevel(r) => self.finalize(r, delta)?,
            Kind::ProducerIds(r) => {
                self.next_producer_id = Some(r.next_producer_id);
                delta.producer_ids = true;
            }
            // Kafka 4 has no more use for the first; the second only moves the log on.
            Kind::ZkMigrationState(_) | Kind::NoOp(_) => {}
            Kind::BeginTransaction(_) | Kind::EndTransaction(_) | Kind::AbortTransaction(_) => {
                return Err(ReplayError::Transaction(record.name()));
            }
            security => self.replay_security(security, delta)?,
        }
        self.provenance.offset = offset;
        Ok(())
    }

    fn register_broker(&mut self, r: &RegisterBrokerRecord, delta: &mut MetadataDelta) {
        let broker = Broker::from_record(r);
        delta.brokers.insert(broker.id);
        self.cluster.brokers.insert(broker.id, Arc::new(broker));
    }

    fn registered(&self, id: i32, epoch: i64) -> Result<&Broker, ReplayError> {
        let id = NodeId(id);
        let broker = self.cluster.broker(id).ok_or(ReplayError::UnknownBroker(id))?;
        if broker.epoch != BrokerEpoch(epoch) {
            return Err(ReplayError::BrokerEpoch { broker: id, record: BrokerEpoch(epoch), current: broker.epoch });
        }
        Ok(broker)
    }

    fn unregister_broker(&mut self, r: &UnregisterBrokerRecord, delta: &mut MetadataDelta) -> Result<(), ReplayError> {
        let id = self.registered(r.broker_id, r.broker_epoch)?.id;
        self.cluster.brokers.remove(&id);
        delta.brokers.insert(id);
        Ok(())
    }

    fn change_broker(
        &mut self,
        r: &BrokerRegistrationChangeRecord,
        delta: &mut MetadataDelta,
    ) -> Result<(), ReplayError> {
        let broker = self.registered(r.broker_id, r.broker_epoch)?;
        let next = broker.changed(r).ok_or(ReplayError::MalformedRegistration(broker.id))?;
        if next != *broker {
            delta.brokers.insert(next.id);
            self.cluster.brokers.insert(next.id, Arc::new(next));
        }
        Ok(())
    }

    fn fence(&mut self, id: i32, epoch: i64, fenced: bool, delta: &mut MetadataDelta) -> Result<(), ReplayError> {
        let next = Broker { fenced, ..self.registered(id, epoch)?.clone() };
        delta.brokers.insert(next.id);
        self.cluster.brokers.insert(next.id, Arc::new(next));
        Ok(())
    }

    fn create_topic(&mut self, r: &TopicRecord, offset: i64, delta: &mut MetadataDelta) -> Result<(), ReplayError> {
        let (id, name) = (TopicId(r.topic_id), r.name.detached());
        if !self.topics.create(id, name.clone()) {
            return Err(ReplayError::DuplicateTopic(name));
        }
        delta.topic_created(id, offset);
        Ok(())
    }

    fn remove_topic(
        &mut self,
        r: &RemoveTopicRecord,
        offset: i64,
        delta: &mut MetadataDelta,
    ) -> Result<(), ReplayError> {
        let id = TopicId(r.topic_id);
        let topic = self.topics.remove(id).ok_or(ReplayError::UnknownTopic(id))?;
        let resource = Resource::topic(topic.name.clone());
        if self.configs.remove(&resource).is_some() {
            delta.configs.insert(resource);
        }
        delta.topic_removed(topic, offset);
        Ok(())
    }

    fn put_partition(
        &mut self,
        r: &PartitionRecord,
        offset: i64,
        delta: &mut MetadataDelta,
    ) -> Result<(), ReplayError> {
        let id = PartitionId { topic: TopicId(r.topic_id), index: PartitionIndex(r.partition_id) };
        let mut partition = Partition::from_record(r, offset).map_err(|_| ReplayError::MalformedPartition(id))?;
        let topic = self.topics.get(id.topic).ok_or(ReplayError::UnknownTopic(id.topic))?;
        if let Some(existing) = topic.partition(id.index) {
            partition.created_at = existing.created_at;
        }
        self.topics.put(id, partition);
        delta.partition_changed(id, offset);
        Ok(())
    }

    fn change_partition(
        &mut self,
        r: &PartitionChangeRecord,
        offset: i64,
        delta: &mut MetadataDelta,
    ) -> Result<(), ReplayError> {
        let id = PartitionId { topic: TopicId(r.topic_id), index: PartitionIndex(r.partition_id) };
        let before = self.topics.partition(id).ok_or(ReplayError::UnknownPartition(id))?;
        let next = before.changed(r).map_err(|_| ReplayError::MalformedPartition(id))?;
        self.topics.put(id, next);
        delta.partition_changed(id, offset);
        Ok(())
    }

    /// Emptying a partition's ELR is a change like any other: it raises the partition epoch.
    fn clear_elr(&mut self, r: &ClearElrRecord, offset: i64, delta: &mut MetadataDelta) -> Result<(), ReplayError> {
        let ids: Vec<TopicId> = if r.topic_name.is_empty() {
            self.topics.iter().map(|topic| topic.id).collect()
        } else {
            vec![self.topics.id(&r.topic_name).ok_or_else(|| ReplayError::UnknownTopicName(r.topic_name.detached()))?]
        };
        for id in ids {
            let Some(topic) = self.topics.get(id).cloned() else { continue };
            let with_elr = |p: &Partition| !p.eligible_leader_replicas.is_empty() || !p.last_known_elr.is_empty();
            for (index, _) in topic.partitions.iter().filter(|(_, partition)| with_elr(partition)) {
                let change = PartitionChangeRecord {
                    partition_id: index.0,
                    topic_id: id.0,
                    leader: NO_LEADER_CHANGE,
                    leader_recovery_state: NO_RECOVERY_CHANGE,
                    eligible_leader_replicas: Some(Vec::new()),
                    last_known_elr: Some(Vec::new()),
                    ..Default::default()
                };
                self.change_partition(&change, offset, delta)?;
            }
        }
        Ok(())
    }

    fn configure(&mut self, r: &ConfigRecord, delta: &mut MetadataDelta) {
        let resource = Resource { resource_type: r.resource_type, name: r.resource_name.detached() };
        let overrides = Arc::make_mut(self.configs.get_or_default(resource.clone()));
        match &r.value {
            Some(value) => overrides.insert(r.name.to_string(), value.to_string()),
            None => overrides.remove(r.name.as_str()),
        };
        if overrides.is_empty() {
            self.configs.remove(&resource);
        }
        delta.configs.insert(resource);
    }

    fn finalize(&mut self, r: &FeatureLevelRecord, delta: &mut MetadataDelta) -> Result<(), ReplayError> {
        delta.features = true;
        if r.name == MetadataVersion::FEATURE {
            let level = MetadataVersion(r.feature_level);
            if !(MIN..=MAX).contains(&level) {
                return Err(ReplayError::UnsupportedMetadataVersion(r.feature_level));
            }
            self.features.metadata_version = Some(level);
        } else if r.name == FEATURE_KRAFT {
            // Its level is what the quorum's control records say.
        } else if r.feature_level == 0 {
            self.features.levels.remove(r.name.as_str());
        } else {
            self.features.levels.insert(r.name.detached(), r.feature_level);
        }
        Ok(())
    }

    fn replay_security(&mut self, record: &MetadataRecordKind, delta: &mut MetadataDelta) -> Result<(), ReplayError> {
        use MetadataRecordKind as Kind;
        match record {
            Kind::AccessControlEntry(r) => {
                delta.acls.insert(r.id);
                self.acls.insert(r.id, Arc::new(r.clone()));
            }
            Kind::RemoveAccessControlEntry(r) => {
                self.acls.remove(&r.id).ok_or(ReplayError::UnknownAcl(r.id))?;
                delta.acls.insert(r.id);
            }
            Kind::UserScramCredential(r) => {
                let user = (r.mechanism, r.name.detached());
                delta.scram.insert(user.clone());
                self.scram.insert(user, Arc::new(r.clone()));
            }
            Kind::RemoveUserScramCredential(r) => {
                let user = (r.mechanism, r.name.detached());
                self.scram.remove(&user);
                delta.scram.insert(user);
            }
            Kind::DelegationToken(r) => {
                delta.tokens.insert(r.token_id.detached());
                self.tokens.insert(r.token_id.detached(), Arc::new(r.clone()));
            }
            Kind::RemoveDelegationToken(r) => {
                self.tokens.remove(r.token_id.as_str());
                delta.tokens.insert(r.token_id.detached());
            }
            Kind::ClientQuota(r) => self.quota(r, delta),
            other => unreachable!("{} is replayed elsewhere", other.name()),
        }
        Ok(())
    }

    fn quota(&mut self, r: &ClientQuotaRecord, delta: &mut MetadataDelta) {
        let part = |e: &client_quota_record::EntityData| {
            (e.entity_type.detached(), e.entity_name.as_ref().map(KafkaString::detached))
        };
        let mut entity: QuotaEntity = r.entity.iter().map(part).collect();
        entity.sort();
        let quotas = Arc::make_mut(self.quotas.get_or_default(entity.clone()));
        if r.remove {
            quotas.remove(r.key.as_str());
        } else {
            quotas.insert(r.key.detached(), r.value);
        }
        if quotas.is_empty() {
            self.quotas.remove(&entity);
        }
        delta.quotas.insert(entity);
    }
}
