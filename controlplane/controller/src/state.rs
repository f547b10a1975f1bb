//! What the controller knows: the image at the end of the log as far as it has been appended, and indexes over it that
//! answer "which partitions does this broker hold" without a scan. All of it is a fold over records, and all of it lies in
//! shared trees: a clone is a few counters, so that the state at the end of every uncommitted append is kept and a lost
//! leadership rolls back by dropping the head. (Kafka keeps timeline collections for the same end. Here the price of a
//! kept state is the copy of the tree nodes that the next append writes: about 100 ns a node, a handful of nodes a record,
//! and nothing for the second record that meets the same nodes.)

use base::{NodeId, PartitionId, PartitionIndex, TopicId, Uuid};
use image::{Map, MetadataDelta, MetadataImage, Partition, ReplayError, Resource, Set};
use settings::BrokerSettings;
use wire::{KafkaString, MetadataRecordKind};

#[derive(Clone, Debug)]
pub struct State {
    pub image: MetadataImage,
    /// This node's settings under what the log says of the cluster's defaults and of this broker.
    pub settings: BrokerSettings,
    pub(crate) index: Index,
    /// This node's file, beneath the dynamic settings.
    base_settings: BrokerSettings,
    node: NodeId,
}

/// Everything here could be worked out from the image again; a test does so and compares.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Index {
    pub in_isr: Map<NodeId, Set<PartitionId>>,
    pub in_elr: Map<NodeId, Set<PartitionId>>,
    /// How many partitions a broker leads; never 0.
    pub leads: Map<NodeId, usize>,
    pub leaderless: Set<PartitionId>,
    /// Led by another than the preferred replica, or by nobody.
    pub imbalanced: Set<PartitionId>,
    pub reassigning: Set<PartitionId>,
    pub in_directory: Map<Uuid, Set<PartitionId>>,
    pub directory_owner: Map<Uuid, NodeId>,
    /// Names with '.' or '_' by what they become when both are '_' (metrics once mixed them up).
    pub similar_names: Map<String, Set<KafkaString>>,
    /// The offset of each broker's registration, which it must have reached before it is unfenced.
    pub registered_at: Map<NodeId, i64>,
}

/// Kafka refuses two topics whose names differ in these only.
pub(crate) fn collision_key(name: &str) -> Option<String> {
    name.contains(['.', '_']).then(|| name.replace('.', "_"))
}

impl State {
    pub fn new(node: NodeId, settings: BrokerSettings) -> State {
        State {
            image: MetadataImage::default(),
            settings: settings.clone(),
            index: Index::default(),
            base_settings: settings,
            node,
        }
    }

    /// The same settings over another image: after a snapshot.
    pub fn with_image(&self, image: MetadataImage) -> State {
        let mut state = State { index: Index::of(&image), image, ..self.clone() };
        state.refresh_settings();
        state
    }

    pub fn replay(&mut self, record: &MetadataRecordKind, offset: i64) -> Result<(), ReplayError> {
        use MetadataRecordKind as Kind;
        match record {
            Kind::Partition(r) => self.replay_partition(record, partition_id(r.topic_id, r.partition_id), offset),
            Kind::PartitionChange(r) => self.replay_partition(record, partition_id(r.topic_id, r.partition_id), offset),
            _ => self.replay_other(record, offset),
        }
    }

    /// Nearly all records are of this kind. Only the one partition is kept from before: to keep the image would make
    /// every record copy tree nodes anew.
    fn replay_partition(
        &mut self,
        record: &MetadataRecordKind,
        id: PartitionId,
        offset: i64,
    ) -> Result<(), ReplayError> {
        let before = self.image.topics.shared_partition(id);
        self.image.replay(record, offset, &mut MetadataDelta::default())?;
        self.index.move_partition(id, before.as_deref(), self.image.topics.partition(id));
        Ok(())
    }

    fn replay_other(&mut self, record: &MetadataRecordKind, offset: i64) -> Result<(), ReplayError> {
        let before = self.image.clone();
        let mut delta = MetadataDelta::default();
        self.image.replay(record, offset, &mut delta)?;
        if let MetadataRecordKind::RegisterBroker(r) = record {
            self.index.registered_at.insert(NodeId(r.broker_id), offset);
        }
        for id in &delta.brokers {
            self.index.move_broker(*id, &before, &self.image);
        }
        for removed in &delta.removed_topics {
            self.index.name_removed(&removed.topic.name);
            for (index, partition) in &removed.topic.partitions {
                let id = PartitionId { topic: removed.topic.id, index: *index };
                self.index.move_partition(id, Some(partition), None);
            }
        }
        for id in delta.created_topics.keys() {
            let topic = self.image.topics.get(*id).expect("the delta says that it was created");
            self.index.name_created(&topic.name);
        }
        // An emptied ELR.
        for (topic, partitions) in &delta.partitions {
            for index in partitions.keys() {
                let id = PartitionId { topic: *topic, index: *index };
                self.index.move_partition(id, before.topics.partition(id), self.image.topics.partition(id));
            }
        }
        if delta.configs.contains(&Resource::broker_default()) || delta.configs.contains(&Resource::broker(self.node)) {
            self.refresh_settings();
        }
        Ok(())
    }

    fn refresh_settings(&mut self) {
        // What is stored but not obeyed is the node's to report.
        self.settings = crate::reads::settings_under(&self.base_settings, &self.image, self.node).0;
    }

    /// Whether the indexes are what the image says.
    pub fn is_consistent(&self) -> bool {
        let fresh = Index::of(&self.image);
        let registered: Set<NodeId> = self.index.registered_at.keys().map(|id| (*id, ())).collect();
        let brokers: Set<NodeId> = self.image.cluster.brokers.keys().map(|id| (*id, ())).collect();
        registered == brokers && fresh == Index { registered_at: fresh.registered_at.clone(), ..self.index.clone() }
    }

    /// A topic's setting as it holds on this controller, read without parsing all of the others.
    fn topic_text(&self, topic: &str, name: &str) -> Option<&str> {
        let own = self.image.overrides(&Resource::topic(topic)).and_then(|overrides| overrides.get(name));
        let layers = [self.settings.own(), self.settings.cluster(), self.settings.file()];
        own.or_else(|| layers.into_iter().find_map(|layer| layer.get(name))).map(String::as_str)
    }

    /// min.insync.replicas, but never more than there are replicas.
    pub fn effective_min_isr(&self, topic: TopicId) -> usize {
        let Some(topic) = self.image.topics.get(topic) else { return 1 };
        let text = self.topic_text(&topic.name, "min.insync.replicas");
        let wanted = text.and_then(|text| text.trim().parse::<usize>().ok()).unwrap_or(1);
        let replicas = topic.partition(PartitionIndex(0)).map_or(wanted, |partition| partition.replicas.len());
        wanted.min(replicas)
    }

    pub fn allows_unclean_election(&self, topic: TopicId) -> bool {
        let Some(topic) = self.image.topics.get(topic) else { return false };
        let text = self.topic_text(&topic.name, "unclean.leader.election.enable");
        text.is_some_and(|text| text.trim().eq_ignore_ascii_case("true"))
    }
}

fn partition_id(topic: Uuid, index: i32) -> PartitionId {
    PartitionId { topic: TopicId(topic), index: PartitionIndex(index) }
}

fn add<K: Ord + Clone>(map: &mut Map<K, Set<PartitionId>>, key: K, id: PartitionId) {
    map.get_or_default(key).insert(id, ());
}

fn take<K: Ord + Clone>(map: &mut Map<K, Set<PartitionId>>, key: &K, id: PartitionId) {
    let Some(set) = map.get_mut(key) else { return };
    set.remove(&id);
    if set.is_empty() {
        map.remove(key);
    }
}

fn keep(set: &mut Set<PartitionId>, id: PartitionId, whether: bool) {
    if whether {
        set.insert(id, ());
    } else {
        set.remove(&id);
    }
}

impl Index {
    pub fn of(image: &MetadataImage) -> Index {
        let mut index = Index::default();
        for broker in image.cluster.brokers.values() {
            // Where a snapshot was loaded the registration lies before its end.
            index.registered_at.insert(broker.id, image.provenance.offset);
            for directory in &broker.directories {
                index.directory_owner.insert(*directory, broker.id);
            }
        }
        for topic in image.topics.iter() {
            index.name_created(&topic.name);
            for (at, partition) in &topic.partitions {
                index.move_partition(PartitionId { topic: topic.id, index: *at }, None, Some(partition));
            }
        }
        index
    }

    fn move_broker(&mut self, id: NodeId, before: &MetadataImage, after: &MetadataImage) {
        for directory in before.cluster.broker(id).into_iter().flat_map(|broker| &broker.directories) {
            self.directory_owner.remove(directory);
        }
        match after.cluster.broker(id) {
            None => {
                self.registered_at.remove(&id);
            }
            Some(broker) => {
                for directory in &broker.directories {
                    self.directory_owner.insert(*directory, id);
                }
            }
        }
    }

    fn name_created(&mut self, name: &KafkaString) {
        if let Some(key) = collision_key(name) {
            self.similar_names.get_or_default(key).insert(name.clone(), ());
        }
    }

    fn name_removed(&mut self, name: &KafkaString) {
        let Some(key) = collision_key(name) else { return };
        let Some(names) = self.similar_names.get_mut(&key) else { return };
        names.remove(name.as_str());
        if names.is_empty() {
            self.similar_names.remove(&key);
        }
    }

    fn move_partition(&mut self, id: PartitionId, before: Option<&Partition>, after: Option<&Partition>) {
        let (old_isr, new_isr) = (before.map_or(&[][..], |p| &p.isr), after.map_or(&[][..], |p| &p.isr));
        move_members(&mut self.in_isr, id, old_isr, new_isr);
        let old_elr = before.map_or(&[][..], |p| &p.eligible_leader_replicas);
        move_members(&mut self.in_elr, id, old_elr, after.map_or(&[][..], |p| &p.eligible_leader_replicas));
        let old_directories = before.map_or(&[][..], |p| &p.directories);
        let new_directories = after.map_or(&[][..], |p| &p.directories);
        if old_directories != new_directories {
            let real = |directory: &&Uuid| !image::cluster::directory_is_reserved(**directory);
            for directory in old_directories.iter().filter(real) {
                take(&mut self.in_directory, directory, id);
            }
            for directory in new_directories.iter().filter(real) {
                add(&mut self.in_directory, *directory, id);
            }
        }
        let (old_leader, new_leader) = (before.and_then(|p| p.leader), after.and_then(|p| p.leader));
        if old_leader != new_leader {
            if let Some(count) = old_leader.and_then(|leader| self.leads.get_mut(&leader)) {
                *count -= 1;
                if *count == 0 {
                    self.leads.remove(&old_leader.expect("it has a count"));
                }
            }
            if let Some(leader) = new_leader {
                *self.leads.get_or_default(leader) += 1;
            }
        }
        let flags = |p: Option<&Partition>| {
            p.map_or((false, false, false), |p| (p.leader.is_none(), !p.has_preferred_leader(), p.is_reassigning()))
        };
        let (old, new) = (flags(before), flags(after));
        if old != new {
            keep(&mut self.leaderless, id, new.0);
            keep(&mut self.imbalanced, id, new.1);
            keep(&mut self.reassigning, id, new.2);
        }
    }
}

fn move_members(map: &mut Map<NodeId, Set<PartitionId>>, id: PartitionId, old: &[NodeId], new: &[NodeId]) {
    if old == new {
        return;
    }
    for node in old.iter().filter(|node| !new.contains(node)) {
        take(map, node, id);
    }
    for node in new.iter().filter(|node| !old.contains(node)) {
        add(map, *node, id);
    }
}

/// The partition behind an index entry: the index follows the image record by record.
pub(crate) fn indexed(image: &MetadataImage, id: PartitionId) -> &Partition {
    image.topics.partition(id).expect("the index names only partitions of the image")
}
