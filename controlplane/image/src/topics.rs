//! Topics and their partitions.

use crate::cluster::DIRECTORY_MIGRATING;
use crate::map::Map;
use crate::record::{MetadataVersion, Record};
use base::{LeaderEpoch, NodeId, PartitionEpoch, PartitionId, PartitionIndex, TopicId, Uuid};
use std::sync::Arc;
use wire::KafkaString;
use wire::messages::partition_change_record::PartitionChangeRecord;
use wire::messages::partition_record::PartitionRecord;
use wire::messages::topic_record::TopicRecord;

/// In a PartitionChangeRecord: the leader stays and so does its epoch.
pub const NO_LEADER_CHANGE: i32 = -2;
/// In a record: nobody leads.
pub const NO_LEADER: i32 = -1;
/// In a PartitionChangeRecord: the recovery state stays.
pub const NO_RECOVERY_CHANGE: i8 = -1;

/// The metadata offset that created something. Snapshots do not carry it (then it is the snapshot's own offset), so it
/// takes no part in comparing images.
#[derive(Clone, Copy, Debug, Default)]
pub struct CreatedAt(pub i64);

impl PartialEq for CreatedAt {
    fn eq(&self, _: &CreatedAt) -> bool {
        true
    }
}

impl Eq for CreatedAt {}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// The first one is the preferred leader.
    pub replicas: Box<[NodeId]>,
    /// One per replica.
    pub directories: Box<[Uuid]>,
    pub isr: Box<[NodeId]>,
    pub removing: Box<[NodeId]>,
    pub adding: Box<[NodeId]>,
    pub eligible_leader_replicas: Box<[NodeId]>,
    pub last_known_elr: Box<[NodeId]>,
    pub leader: Option<NodeId>,
    /// After an unclean election, until the leader says that it has recovered (KIP-704).
    pub recovering: bool,
    pub leader_epoch: LeaderEpoch,
    pub partition_epoch: PartitionEpoch,
    pub created_at: CreatedAt,
}

/// The record does not describe a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedPartition;

pub fn nodes(ids: &[i32]) -> Box<[NodeId]> {
    ids.iter().map(|id| NodeId(*id)).collect()
}

pub fn ids(nodes: &[NodeId]) -> Vec<i32> {
    nodes.iter().map(|node| node.0).collect()
}

fn leader(id: i32) -> Option<NodeId> {
    (id != NO_LEADER).then_some(NodeId(id))
}

/// Records older than KIP-858 name no directories.
fn directories(named: &[Uuid], replicas: usize) -> Result<Box<[Uuid]>, MalformedPartition> {
    if named.is_empty() {
        return Ok(vec![DIRECTORY_MIGRATING; replicas].into());
    }
    if named.len() != replicas { Err(MalformedPartition) } else { Ok(named.into()) }
}

fn recovering(state: i8) -> Result<bool, MalformedPartition> {
    match state {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(MalformedPartition),
    }
}

impl Partition {
    pub fn from_record(record: &PartitionRecord, created_at: i64) -> Result<Partition, MalformedPartition> {
        Ok(Partition {
            replicas: nodes(&record.replicas),
            directories: directories(&record.directories, record.replicas.len())?,
            isr: nodes(&record.isr),
            removing: nodes(&record.removing_replicas),
            adding: nodes(&record.adding_replicas),
            eligible_leader_replicas: nodes(record.eligible_leader_replicas.as_deref().unwrap_or_default()),
            last_known_elr: nodes(record.last_known_elr.as_deref().unwrap_or_default()),
            leader: leader(record.leader),
            recovering: recovering(record.leader_recovery_state)?,
            leader_epoch: LeaderEpoch(record.leader_epoch),
            partition_epoch: PartitionEpoch(record.partition_epoch),
            created_at: CreatedAt(created_at),
        })
    }

    /// The partition after a change. Naming a leader raises the leader epoch, also when it is the same one.
    pub fn changed(&self, record: &PartitionChangeRecord) -> Result<Partition, MalformedPartition> {
        let mut next = self.clone();
        let set = |field: &mut Box<[NodeId]>, to: &Option<Vec<i32>>| {
            if let Some(to) = to {
                *field = nodes(to);
            }
        };
        set(&mut next.replicas, &record.replicas);
        set(&mut next.isr, &record.isr);
        set(&mut next.removing, &record.removing_replicas);
        set(&mut next.adding, &record.adding_replicas);
        set(&mut next.eligible_leader_replicas, &record.eligible_leader_replicas);
        set(&mut next.last_known_elr, &record.last_known_elr);
        if let Some(named) = &record.directories {
            next.directories = directories(named, next.replicas.len())?;
        } else if next.directories.iter().all(|directory| *directory == DIRECTORY_MIGRATING) {
            next.directories = directories(&[], next.replicas.len())?;
        }
        if next.directories.len() != next.replicas.len() {
            return Err(MalformedPartition);
        }
        if record.leader != NO_LEADER_CHANGE {
            next.leader = leader(record.leader);
            next.leader_epoch = LeaderEpoch(self.leader_epoch.0.checked_add(1).ok_or(MalformedPartition)?);
        }
        if record.leader_recovery_state != NO_RECOVERY_CHANGE {
            next.recovering = recovering(record.leader_recovery_state)?;
        }
        next.partition_epoch = PartitionEpoch(self.partition_epoch.0.checked_add(1).ok_or(MalformedPartition)?);
        Ok(next)
    }

    /// `elr`: eligible.leader.replicas.version is at least 1, so its fields may be written.
    pub fn to_record(&self, topic: TopicId, index: PartitionIndex, level: MetadataVersion, elr: bool) -> Record {
        let version = level.partition_record_version();
        let with_elr = |nodes: &[NodeId]| (elr && version >= 2 && !nodes.is_empty()).then(|| ids(nodes));
        let record = PartitionRecord {
            partition_id: index.0,
            topic_id: topic.0,
            replicas: ids(&self.replicas),
            isr: ids(&self.isr),
            removing_replicas: ids(&self.removing),
            adding_replicas: ids(&self.adding),
            leader: self.leader.map_or(NO_LEADER, |leader| leader.0),
            leader_recovery_state: i8::from(self.recovering),
            leader_epoch: self.leader_epoch.0,
            partition_epoch: self.partition_epoch.0,
            directories: if version >= 1 { self.directories.to_vec() } else { Vec::new() },
            eligible_leader_replicas: with_elr(&self.eligible_leader_replicas),
            last_known_elr: with_elr(&self.last_known_elr),
            unknown_tags: Default::default(),
        };
        Record::new(record, version)
    }

    pub fn has_preferred_leader(&self) -> bool {
        self.leader == self.replicas.first().copied()
    }

    pub fn is_reassigning(&self) -> bool {
        !self.removing.is_empty() || !self.adding.is_empty()
    }

    /// The directory of a replica; `None` where the node holds none.
    pub fn directory(&self, node: NodeId) -> Option<Uuid> {
        let at = self.replicas.iter().position(|replica| *replica == node)?;
        self.directories.get(at).copied()
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Topic {
    pub id: TopicId,
    pub name: KafkaString,
    pub partitions: Map<PartitionIndex, Arc<Partition>>,
}

impl Topic {
    pub fn to_record(&self) -> Record {
        Record::v0(TopicRecord { name: self.name.clone(), topic_id: self.id.0, unknown_tags: Default::default() })
    }

    pub fn partition(&self, index: PartitionIndex) -> Option<&Partition> {
        self.partitions.get(&index).map(|partition| &**partition)
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Topics {
    by_id: Map<TopicId, Arc<Topic>>,
    by_name: Map<KafkaString, TopicId>,
}

impl Topics {
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// By id, in the order of ids.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Topic>> {
        self.by_id.values()
    }

    /// In the order of names.
    pub fn names(&self) -> impl Iterator<Item = (&KafkaString, TopicId)> {
        self.by_name.iter().map(|(name, id)| (name, *id))
    }

    pub fn get(&self, id: TopicId) -> Option<&Arc<Topic>> {
        self.by_id.get(&id)
    }

    pub fn id(&self, name: &str) -> Option<TopicId> {
        self.by_name.get(name).copied()
    }

    pub fn named(&self, name: &str) -> Option<&Arc<Topic>> {
        self.get(self.id(name)?)
    }

    pub fn partition(&self, id: PartitionId) -> Option<&Partition> {
        self.get(id.topic)?.partition(id.index)
    }

    /// The same to be kept while the image moves on.
    pub fn shared_partition(&self, id: PartitionId) -> Option<Arc<Partition>> {
        self.get(id.topic)?.partitions.get(&id.index).cloned()
    }

    pub(crate) fn create(&mut self, id: TopicId, name: KafkaString) -> bool {
        if self.by_name.contains(&name) || self.by_id.contains(&id) {
            return false;
        }
        self.by_name.insert(name.clone(), id);
        self.by_id.insert(id, Arc::new(Topic { id, name, partitions: Map::new() }));
        true
    }

    pub(crate) fn remove(&mut self, id: TopicId) -> Option<Arc<Topic>> {
        let topic = self.by_id.remove(&id)?;
        self.by_name.remove(&topic.name);
        Some(topic)
    }

    /// `None` where there is no such topic; else what stood there before.
    pub(crate) fn put(&mut self, id: PartitionId, partition: Partition) -> Option<Option<Arc<Partition>>> {
        let topic = Arc::make_mut(self.by_id.get_mut(&id.topic)?);
        Some(topic.partitions.insert(id.index, Arc::new(partition)))
    }

    pub(crate) fn is_same(&self, other: &Topics) -> bool {
        self.by_id.is_same(&other.by_id)
    }
}
