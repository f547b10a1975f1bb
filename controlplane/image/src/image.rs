//! The whole of the metadata at one offset. Cloning it costs a few counters.

use crate::cluster::Cluster;
use crate::map::Map;
use crate::record::MetadataVersion;
use crate::topics::Topics;
use base::Uuid;
use std::collections::BTreeMap;
use std::sync::Arc;
use wire::KafkaString;
use wire::messages::{AccessControlEntryRecord, DelegationTokenRecord, UserScramCredentialRecord};

/// Where in the log an image stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Provenance {
    /// Of the last record contained; -1 before the first.
    pub offset: i64,
    pub epoch: i32,
    /// Append time of the last batch contained.
    pub append_time: i64,
}

impl Provenance {
    pub const EMPTY: Provenance = Provenance { offset: -1, epoch: -1, append_time: -1 };
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features {
    pub metadata_version: Option<MetadataVersion>,
    /// Finalized levels above 0 of all other features; kraft.version is not among them (it lives in control records).
    pub levels: BTreeMap<KafkaString, i16>,
}

pub const FEATURE_KRAFT: &str = "kraft.version";
pub const FEATURE_ELR: &str = "eligible.leader.replicas.version";

impl Features {
    pub fn level(&self, name: &str) -> i16 {
        self.levels.get(name).copied().unwrap_or(0)
    }

    pub fn has_eligible_leader_replicas(&self) -> bool {
        self.level(FEATURE_ELR) >= 1
    }
}

/// Kafka's numbers of what a configuration can belong to.
pub mod resource_type {
    pub const TOPIC: i8 = 2;
    pub const BROKER: i8 = 4;
    pub const BROKER_LOGGER: i8 = 8;
    pub const CLIENT_METRICS: i8 = 16;
    pub const GROUP: i8 = 32;
    pub const ALL: [i8; 5] = [TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP];
}

/// What a configuration belongs to. The cluster's defaults of brokers are the broker named "".
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Resource {
    pub resource_type: i8,
    pub name: KafkaString,
}

impl Resource {
    pub fn topic(name: impl Into<KafkaString>) -> Resource {
        Resource { resource_type: resource_type::TOPIC, name: name.into() }
    }

    pub fn broker(id: base::NodeId) -> Resource {
        Resource { resource_type: resource_type::BROKER, name: id.to_string().into() }
    }

    pub fn broker_default() -> Resource {
        Resource { resource_type: resource_type::BROKER, name: KafkaString::default() }
    }
}

/// The overrides of one resource; never empty in an image.
pub type Overrides = BTreeMap<String, String>;

/// Who a quota is for: types and names (no name is the default of its type), sorted by type.
pub type QuotaEntity = Vec<(KafkaString, Option<KafkaString>)>;

/// A user and the number of a SCRAM mechanism.
pub type ScramUser = (i8, KafkaString);

#[derive(Clone, Debug, PartialEq)]
pub struct MetadataImage {
    pub provenance: Provenance,
    pub features: Features,
    pub cluster: Cluster,
    pub topics: Topics,
    pub configs: Map<Resource, Arc<Overrides>>,
    pub quotas: Map<QuotaEntity, Arc<BTreeMap<KafkaString, f64>>>,
    pub next_producer_id: Option<i64>,
    pub acls: Map<Uuid, Arc<AccessControlEntryRecord>>,
    pub scram: Map<ScramUser, Arc<UserScramCredentialRecord>>,
    pub tokens: Map<KafkaString, Arc<DelegationTokenRecord>>,
}

impl Default for MetadataImage {
    fn default() -> Self {
        MetadataImage {
            provenance: Provenance::EMPTY,
            features: Features::default(),
            cluster: Cluster::default(),
            topics: Topics::default(),
            configs: Map::new(),
            quotas: Map::new(),
            next_producer_id: None,
            acls: Map::new(),
            scram: Map::new(),
            tokens: Map::new(),
        }
    }
}

impl MetadataImage {
    /// The overrides of a resource, none where nothing is set.
    pub fn overrides(&self, resource: &Resource) -> Option<&Overrides> {
        self.configs.get(resource).map(|overrides| &**overrides)
    }

    /// As `MetadataImage` equality, but for where in a log they stand.
    pub fn says_the_same(&self, other: &MetadataImage) -> bool {
        let mut at_same_place = self.clone();
        at_same_place.provenance = other.provenance;
        at_same_place == *other
    }
}
