//! Registrations of brokers and controllers.

use crate::map::Map;
use crate::record::{MetadataVersion, Record};
use base::{BrokerEpoch, NodeId, Uuid};
use std::collections::BTreeMap;
use std::sync::Arc;
use wire::KafkaString;
use wire::messages::broker_registration_change_record::BrokerRegistrationChangeRecord;
use wire::messages::register_broker_record::{BrokerEndpoint, BrokerFeature, RegisterBrokerRecord};
use wire::messages::register_controller_record::{ControllerEndpoint, ControllerFeature, RegisterControllerRecord};

/// Directory ids with a meaning of their own (KIP-858).
pub const DIRECTORY_MIGRATING: Uuid = Uuid(0);
pub const DIRECTORY_UNASSIGNED: Uuid = Uuid(1);
pub const DIRECTORY_LOST: Uuid = Uuid(2);

/// Kafka keeps the first hundred ids for meanings of its own.
pub fn directory_is_reserved(directory: Uuid) -> bool {
    directory.0 < 100
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub name: KafkaString,
    pub host: KafkaString,
    pub port: u16,
    pub security_protocol: i16,
}

/// The levels of a feature that a node can run at, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeatureRange {
    pub min: i16,
    pub max: i16,
}

impl FeatureRange {
    /// Of a feature that a node does not name.
    pub const DISABLED: FeatureRange = FeatureRange { min: 0, max: 0 };

    pub fn contains(self, level: i16) -> bool {
        self.min <= level && level <= self.max
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broker {
    pub id: NodeId,
    pub epoch: BrokerEpoch,
    pub incarnation: Uuid,
    /// In the order of the record, names unique.
    pub endpoints: Vec<Endpoint>,
    pub features: BTreeMap<KafkaString, FeatureRange>,
    pub rack: Option<KafkaString>,
    pub fenced: bool,
    pub in_controlled_shutdown: bool,
    pub is_migrating_zk_broker: bool,
    /// Online directories, sorted as Kafka sorts them (signed halves).
    pub directories: Vec<Uuid>,
    /// `None` where the broker never said.
    pub cordoned_directories: Option<Vec<Uuid>>,
}

/// Kafka compares the two halves of a UUID as signed numbers.
pub fn directory_order(directory: &Uuid) -> (i64, i64) {
    ((directory.0 >> 64) as i64, directory.0 as i64)
}

fn sorted(mut directories: Vec<Uuid>) -> Vec<Uuid> {
    directories.sort_by_key(directory_order);
    directories
}

impl Broker {
    pub fn from_record(record: &RegisterBrokerRecord) -> Broker {
        let mut endpoints: Vec<Endpoint> = Vec::with_capacity(record.end_points.len());
        for e in &record.end_points {
            let endpoint = Endpoint {
                name: e.name.detached(),
                host: e.host.detached(),
                port: e.port,
                security_protocol: e.security_protocol,
            };
            match endpoints.iter_mut().find(|known| known.name == endpoint.name) {
                Some(known) => *known = endpoint,
                None => endpoints.push(endpoint),
            }
        }
        let range = |f: &BrokerFeature| FeatureRange { min: f.min_supported_version, max: f.max_supported_version };
        Broker {
            id: NodeId(record.broker_id),
            epoch: BrokerEpoch(record.broker_epoch),
            incarnation: record.incarnation_id,
            endpoints,
            features: record.features.iter().map(|f| (f.name.detached(), range(f))).collect(),
            rack: record.rack.as_ref().map(KafkaString::detached),
            fenced: record.fenced,
            in_controlled_shutdown: record.in_controlled_shutdown,
            is_migrating_zk_broker: record.is_migrating_zk_broker,
            directories: sorted(record.log_dirs.clone()),
            cordoned_directories: record.cordoned_log_dirs.clone(),
        }
    }

    pub fn to_record(&self, level: MetadataVersion) -> Record {
        let version = level.register_broker_record_version();
        let endpoint = |e: &Endpoint| BrokerEndpoint {
            name: e.name.clone(),
            host: e.host.clone(),
            port: e.port,
            security_protocol: e.security_protocol,
            ..Default::default()
        };
        let feature = |(name, range): (&KafkaString, &FeatureRange)| BrokerFeature {
            name: name.clone(),
            min_supported_version: range.min,
            max_supported_version: range.max,
            ..Default::default()
        };
        let record = RegisterBrokerRecord {
            broker_id: self.id.0,
            is_migrating_zk_broker: self.is_migrating_zk_broker && version >= 2,
            incarnation_id: self.incarnation,
            broker_epoch: self.epoch.0,
            end_points: self.endpoints.iter().map(endpoint).collect(),
            features: self.features.iter().map(feature).collect(),
            rack: self.rack.clone(),
            fenced: self.fenced,
            in_controlled_shutdown: self.in_controlled_shutdown,
            log_dirs: if version >= 3 { self.directories.clone() } else { Vec::new() },
            cordoned_log_dirs: self.cordoned_directories.clone().filter(|_| version >= 4),
            unknown_tags: Default::default(),
        };
        Record::new(record, version)
    }

    /// The registration after a change; `None` where the record says something that has no meaning.
    pub(crate) fn changed(&self, record: &BrokerRegistrationChangeRecord) -> Option<Broker> {
        let mut next = self.clone();
        match record.fenced {
            0 => {}
            1 => next.fenced = true,
            -1 => next.fenced = false,
            _ => return None,
        }
        match record.in_controlled_shutdown {
            0 => {}
            1 => next.in_controlled_shutdown = true,
            _ => return None,
        }
        if !record.log_dirs.is_empty() {
            next.directories = sorted(record.log_dirs.clone());
        }
        if record.cordoned_log_dirs.is_some() {
            next.cordoned_directories.clone_from(&record.cordoned_log_dirs);
        }
        Some(next)
    }

    /// Neither fenced nor leaving: it may lead and join ISRs.
    pub fn is_active(&self) -> bool {
        !self.fenced && !self.in_controlled_shutdown
    }

    /// A broker that names no directories has all of them online.
    pub fn has_online_directory(&self, directory: Uuid) -> bool {
        match directory {
            DIRECTORY_UNASSIGNED | DIRECTORY_MIGRATING => true,
            DIRECTORY_LOST => false,
            _ => self.directories.is_empty() || self.directories.contains(&directory),
        }
    }

    pub fn has_uncordoned_directory(&self) -> bool {
        let Some(cordoned) = &self.cordoned_directories else { return true };
        self.directories.is_empty() || self.directories.iter().any(|directory| !cordoned.contains(directory))
    }

    /// Where a new replica goes before the broker says: its one directory, or not yet assigned.
    pub fn default_directory(&self) -> Uuid {
        match self.directories.as_slice() {
            [] => DIRECTORY_MIGRATING,
            [only] => *only,
            _ => DIRECTORY_UNASSIGNED,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controller {
    pub id: NodeId,
    pub incarnation: Uuid,
    pub zk_migration_ready: bool,
    pub endpoints: Vec<Endpoint>,
    pub features: BTreeMap<KafkaString, FeatureRange>,
}

impl Controller {
    pub fn from_record(record: &RegisterControllerRecord) -> Controller {
        let range = |f: &ControllerFeature| FeatureRange { min: f.min_supported_version, max: f.max_supported_version };
        let endpoint = |e: &ControllerEndpoint| Endpoint {
            name: e.name.detached(),
            host: e.host.detached(),
            port: e.port,
            security_protocol: e.security_protocol,
        };
        Controller {
            id: NodeId(record.controller_id),
            incarnation: record.incarnation_id,
            zk_migration_ready: record.zk_migration_ready,
            endpoints: record.end_points.iter().map(endpoint).collect(),
            features: record.features.iter().map(|f| (f.name.detached(), range(f))).collect(),
        }
    }

    pub fn to_record(&self) -> Record {
        let endpoint = |e: &Endpoint| ControllerEndpoint {
            name: e.name.clone(),
            host: e.host.clone(),
            port: e.port,
            security_protocol: e.security_protocol,
            ..Default::default()
        };
        let feature = |(name, range): (&KafkaString, &FeatureRange)| ControllerFeature {
            name: name.clone(),
            min_supported_version: range.min,
            max_supported_version: range.max,
            ..Default::default()
        };
        Record::v0(RegisterControllerRecord {
            controller_id: self.id.0,
            incarnation_id: self.incarnation,
            zk_migration_ready: self.zk_migration_ready,
            end_points: self.endpoints.iter().map(endpoint).collect(),
            features: self.features.iter().map(feature).collect(),
            unknown_tags: Default::default(),
        })
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    pub brokers: Map<NodeId, Arc<Broker>>,
    pub controllers: Map<NodeId, Arc<Controller>>,
}

impl Cluster {
    pub fn broker(&self, id: NodeId) -> Option<&Broker> {
        self.brokers.get(&id).map(|broker| &**broker)
    }

    pub fn is_active(&self, id: NodeId) -> bool {
        self.broker(id).is_some_and(Broker::is_active)
    }
}
