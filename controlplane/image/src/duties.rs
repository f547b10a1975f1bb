//! Images and deltas as the link carries them: this node's partitions (duties) and what clients may be told (view).
//! Parts are made one at a time, so that a large image neither lies in memory twice nor holds the caller for long.

use crate::cluster::Broker;
use crate::delta::{MetadataDelta, RemovedTopic};
use crate::image::{MetadataImage, Resource, resource_type};
use crate::loader::Publication;
use crate::record::MetadataVersion;
use crate::topics::{Partition, Topic};
use base::{NodeId, PartitionId, PartitionIndex, TopicId};
use link::{ConfigResource, DutiesPart, Duty, IMAGE_ITEMS_MAX, Provenance, Removal};
use link::{ViewBroker, ViewChange, ViewPart, ViewPartition, ViewTopic};
use std::collections::BTreeSet;
use std::iter::Peekable;

/// A part closes at this estimate of its bytes, far below `link::MESSAGE_BYTES_MAX`: overrides may be long.
const PART_BYTES: usize = 1 << 20;

/// What the parts say about where they come from, beside what the image itself says.
#[derive(Clone, Debug)]
pub struct Origin {
    pub cluster_id: String,
    /// The image holds everything up to the quorum's high watermark as far as this node knows.
    pub caught_up: bool,
    /// The finalized kraft.version, which is the quorum's to say.
    pub kraft_version: i16,
    /// The controller that clients are told.
    pub controller: Option<NodeId>,
}

impl Origin {
    fn provenance(&self, image: &MetadataImage) -> Provenance {
        Provenance {
            cluster_id: self.cluster_id.clone(),
            quorum_epoch: image.provenance.epoch,
            metadata_offset: image.provenance.offset,
            caught_up: self.caught_up,
        }
    }
}

/// One entry of a duties message.
enum Task {
    Duty(Box<Duty>),
    Removal(Removal),
}

/// All of a node's partitions. There is at least one part: a node without partitions is told so.
pub fn duties_image<'a>(
    image: &'a MetadataImage,
    node: NodeId,
    origin: &Origin,
) -> impl Iterator<Item = DutiesPart> + use<'a> {
    let held = image.topics.iter().flat_map(move |topic| {
        let partitions = topic.partitions.iter().filter(move |(_, partition)| partition.replicas.contains(&node));
        partitions.map(move |(index, partition)| Task::Duty(Box::new(duty(image, topic, *index, partition))))
    });
    duties_parts(held, origin.provenance(image), true)
}

/// What a publication changes for a node; no part at all where it changes nothing.
pub fn duties_delta<'a>(
    publication: &'a Publication,
    node: NodeId,
    origin: &Origin,
) -> impl Iterator<Item = DutiesPart> + use<'a> {
    let Publication { before, image, delta } = publication;
    let removed = delta.removed_topics.iter().filter(|removed| before.topics.get(removed.topic.id).is_some());
    // A replica may have moved away in the same delta that removed its topic, so both images are asked.
    let removed = removed.flat_map(move |removed| {
        let old = before.topics.get(removed.topic.id);
        let ids = removals(removed, node).chain(
            old.into_iter()
                .flat_map(move |topic| held_by(topic, node))
                .map(move |partition| Removal { partition, removed_at: removed.removed_at }),
        );
        let unique: BTreeSet<PartitionIndex> = ids.map(|removal| removal.partition.index).collect();
        unique.into_iter().map(move |index| {
            Task::Removal(Removal {
                partition: PartitionId { topic: removed.topic.id, index },
                removed_at: removed.removed_at,
            })
        })
    });
    let changed = changed_partitions(image, delta).filter_map(move |(topic, index, changed_at)| {
        let partition = topic.partition(index)?;
        let id = PartitionId { topic: topic.id, index };
        if partition.replicas.contains(&node) {
            return Some(Task::Duty(Box::new(duty(image, topic, index, partition))));
        }
        let had = before.topics.partition(id).is_some_and(|old| old.replicas.contains(&node));
        had.then_some(Task::Removal(Removal { partition: id, removed_at: changed_at }))
    });
    let mut tasks = removed.chain(changed).peekable();
    let any = tasks.peek().is_some();
    any.then(|| duties_parts(tasks, origin.provenance(image), false)).into_iter().flatten()
}

/// The explicit removals of a topic that went while a dataplane was away.
pub fn removals(removed: &RemovedTopic, node: NodeId) -> impl Iterator<Item = Removal> + '_ {
    held_by(&removed.topic, node).map(|partition| Removal { partition, removed_at: removed.removed_at })
}

fn held_by(topic: &Topic, node: NodeId) -> impl Iterator<Item = PartitionId> + '_ {
    let held = topic.partitions.iter().filter(move |(_, partition)| partition.replicas.contains(&node));
    held.map(|(index, _)| PartitionId { topic: topic.id, index: *index })
}

/// The partitions that a delta changed, or whose topic's overrides it changed, with the offset of the change.
fn changed_partitions<'a>(
    image: &'a MetadataImage,
    delta: &'a MetadataDelta,
) -> impl Iterator<Item = (&'a Topic, PartitionIndex, i64)> {
    let named = delta.configs.iter().filter(|resource| resource.resource_type == resource_type::TOPIC);
    let configured: BTreeSet<TopicId> = named.filter_map(|resource| image.topics.id(&resource.name)).collect();
    let reconfigured = configured.clone().into_iter().flat_map(move |id| {
        let topic = image.topics.get(id).expect("its id was looked up in this image");
        topic.partitions.keys().map(move |index| (&**topic, *index, image.provenance.offset))
    });
    let changed = delta.partitions.iter().filter(move |(id, _)| !configured.contains(id));
    let changed = changed.filter_map(move |(id, partitions)| image.topics.get(*id).map(|topic| (&**topic, partitions)));
    let changed =
        changed.flat_map(|(topic, partitions)| partitions.iter().map(move |(index, at)| (topic, *index, *at)));
    reconfigured.chain(changed)
}

fn duty(image: &MetadataImage, topic: &Topic, index: PartitionIndex, partition: &Partition) -> Duty {
    Duty {
        partition: PartitionId { topic: topic.id, index },
        topic_name: topic.name.to_string(),
        created_at: partition.created_at.0,
        leader: partition.leader,
        leader_epoch: partition.leader_epoch,
        partition_epoch: partition.partition_epoch,
        replicas: partition.replicas.to_vec(),
        isr: partition.isr.to_vec(),
        recovering: partition.recovering,
        config: entries(image, &Resource::topic(topic.name.clone())),
    }
}

fn entries(image: &MetadataImage, resource: &Resource) -> Vec<(String, String)> {
    let overrides = image.overrides(resource).into_iter().flatten();
    overrides.map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn entries_bytes(entries: &[(String, String)]) -> usize {
    entries.iter().map(|(name, value)| name.len() + value.len() + 8).sum()
}

fn duties_parts<I: Iterator<Item = Task>>(
    tasks: I,
    provenance: Provenance,
    image: bool,
) -> impl Iterator<Item = DutiesPart> + use<I> {
    let weigh = |task: &Task| match task {
        Task::Duty(duty) => (1, 128 + duty.topic_name.len() + entries_bytes(&duty.config)),
        Task::Removal(_) => (1, 40),
    };
    Parts::new(tasks, weigh).map(move |(tasks, last)| {
        let mut part =
            DutiesPart { provenance: provenance.clone(), image, last, duties: Vec::new(), removals: Vec::new() };
        for task in tasks {
            match task {
                Task::Duty(duty) => part.duties.push(*duty),
                Task::Removal(removal) => part.removals.push(removal),
            }
        }
        part
    })
}

/// Everything that clients may be told.
pub fn view_image<'a>(image: &'a MetadataImage, origin: &Origin) -> impl Iterator<Item = ViewPart> + use<'a> {
    let brokers = image.cluster.brokers.values().map(|broker| ViewChange::Broker(view_broker(broker)));
    let topics = image.topics.iter().flat_map(move |topic| view_topic(image, topic));
    let configs = image.configs.keys().filter_map(move |resource| view_config(image, resource));
    let whole = [features(image, origin), ViewChange::Controller(origin.controller)];
    view_parts(whole.into_iter().chain(brokers).chain(topics).chain(configs), origin.provenance(image), true)
}

/// What a publication changes for clients; no part at all where it changes nothing.
pub fn view_delta<'a>(publication: &'a Publication, origin: &Origin) -> impl Iterator<Item = ViewPart> + use<'a> {
    let Publication { before, image, delta } = publication;
    let features = delta.features.then(|| features(image, origin));
    let brokers = delta.brokers.iter().map(move |id| match image.cluster.broker(*id) {
        Some(broker) => ViewChange::Broker(view_broker(broker)),
        None => ViewChange::BrokerRemoved(*id),
    });
    let known = delta.removed_topics.iter().filter(|removed| before.topics.get(removed.topic.id).is_some());
    let removed = known.map(|removed| ViewChange::TopicRemoved(removed.topic.id));
    let created = delta.created_topics.keys().filter_map(|id| image.topics.get(*id));
    let created = created.flat_map(move |topic| view_topic(image, topic));
    let changed = view_changed(publication).into_iter();
    let configs = delta.configs.iter().filter_map(move |resource| view_config(image, resource));
    let changes = features.into_iter().chain(brokers).chain(removed).chain(created).chain(changed).chain(configs);
    let mut changes = changes.peekable();
    let any = changes.peek().is_some();
    any.then(|| view_parts(changes, origin.provenance(image), false)).into_iter().flatten()
}

/// The controller that clients are told has changed and nothing else has.
pub fn view_controller(image: &MetadataImage, origin: &Origin) -> ViewPart {
    let changes = vec![ViewChange::Controller(origin.controller)];
    ViewPart { provenance: origin.provenance(image), image: false, last: true, changes }
}

/// Partitions of topics that were there before, in runs of at most `IMAGE_ITEMS_MAX`.
fn view_changed(publication: &Publication) -> Vec<ViewChange> {
    let Publication { before, image, delta } = publication;
    let mut named: BTreeSet<PartitionId> = BTreeSet::new();
    for (topic, partitions) in &delta.partitions {
        named.extend(partitions.keys().map(|index| PartitionId { topic: *topic, index: *index }));
    }
    // Who is offline depends on registrations and directories: those of their replicas are told again.
    let moved = delta.brokers.iter().filter(|id| {
        let directories = |image: &MetadataImage| image.cluster.broker(**id).map(|broker| broker.directories.clone());
        directories(before) != directories(image)
    });
    for id in moved {
        let held = image.topics.iter().flat_map(|topic| held_by(topic, *id));
        named
            .extend(held.filter(|partition| image.topics.partition(*partition) == before.topics.partition(*partition)));
    }
    let mut runs: Vec<ViewChange> = Vec::new();
    for id in named.into_iter().filter(|id| !delta.created_topics.contains_key(&id.topic)) {
        let Some(partition) = image.topics.partition(id) else { continue };
        let next = view_partition(image, id.index, partition);
        match runs.last_mut() {
            Some(ViewChange::Partitions { topic, partitions })
                if *topic == id.topic && partitions.len() < IMAGE_ITEMS_MAX =>
            {
                partitions.push(next);
            }
            _ => runs.push(ViewChange::Partitions { topic: id.topic, partitions: vec![next] }),
        }
    }
    runs
}

/// A topic with its first partitions, then the others in runs.
fn view_topic<'a>(image: &'a MetadataImage, topic: &'a Topic) -> impl Iterator<Item = ViewChange> + 'a {
    let mut partitions = topic.partitions.iter().map(|(index, partition)| view_partition(image, *index, partition));
    let first = ViewChange::Topic(ViewTopic {
        id: topic.id,
        name: topic.name.to_string(),
        partitions: partitions.by_ref().take(IMAGE_ITEMS_MAX).collect(),
    });
    let others = std::iter::from_fn(move || {
        let partitions: Vec<ViewPartition> = partitions.by_ref().take(IMAGE_ITEMS_MAX).collect();
        (!partitions.is_empty()).then_some(ViewChange::Partitions { topic: topic.id, partitions })
    });
    std::iter::once(first).chain(others)
}

fn view_partition(image: &MetadataImage, index: PartitionIndex, partition: &Partition) -> ViewPartition {
    let offline = |(node, directory): (&NodeId, &base::Uuid)| {
        let online = image.cluster.broker(*node).is_some_and(|broker| broker.has_online_directory(*directory));
        (!online).then_some(*node)
    };
    ViewPartition {
        index,
        leader: partition.leader,
        leader_epoch: partition.leader_epoch,
        partition_epoch: partition.partition_epoch,
        replicas: partition.replicas.to_vec(),
        isr: partition.isr.to_vec(),
        eligible_leader_replicas: partition.eligible_leader_replicas.to_vec(),
        last_known_elr: partition.last_known_elr.to_vec(),
        offline: partition.replicas.iter().zip(&partition.directories).filter_map(offline).collect(),
    }
}

fn view_broker(broker: &Broker) -> ViewBroker {
    let endpoint = |e: &crate::Endpoint| (e.name.to_string(), e.host.to_string(), e.port, e.security_protocol);
    ViewBroker {
        id: broker.id,
        epoch: broker.epoch,
        incarnation: broker.incarnation,
        rack: broker.rack.as_ref().map(|rack| rack.to_string()),
        fenced: broker.fenced,
        in_controlled_shutdown: broker.in_controlled_shutdown,
        listeners: broker.endpoints.iter().map(endpoint).collect(),
    }
}

fn features(image: &MetadataImage, origin: &Origin) -> ViewChange {
    let version = image.features.metadata_version.map(|level| (MetadataVersion::FEATURE.to_owned(), level.0));
    let kraft = (origin.kraft_version > 0).then(|| (crate::FEATURE_KRAFT.to_owned(), origin.kraft_version));
    let others = image.features.levels.iter().map(|(name, level)| (name.to_string(), *level));
    let levels = version.into_iter().chain(kraft).chain(others).collect();
    ViewChange::Features { epoch: image.provenance.offset, levels }
}

/// `None` for kinds of resources that clients are told nothing of.
fn view_config(image: &MetadataImage, resource: &Resource) -> Option<ViewChange> {
    let name = resource.name.to_string();
    let told = match resource.resource_type {
        resource_type::TOPIC => ConfigResource::Topic(name),
        resource_type::BROKER if name.is_empty() => ConfigResource::BrokerDefault,
        resource_type::BROKER => ConfigResource::Broker(NodeId(name.parse().ok()?)),
        resource_type::GROUP => ConfigResource::Group(name),
        resource_type::CLIENT_METRICS => ConfigResource::ClientMetrics(name),
        _ => return None,
    };
    Some(ViewChange::Config { resource: told, entries: entries(image, resource) })
}

fn view_parts<I: Iterator<Item = ViewChange>>(
    changes: I,
    provenance: Provenance,
    image: bool,
) -> impl Iterator<Item = ViewPart> + use<I> {
    let weigh = |change: &ViewChange| match change {
        ViewChange::Topic(topic) => (1 + topic.partitions.len(), 64 + topic.name.len()),
        ViewChange::Partitions { partitions, .. } => (partitions.len(), 64),
        ViewChange::Config { entries, .. } => (1, 64 + entries_bytes(entries)),
        _ => (1, 256),
    };
    Parts::new(changes, weigh).map(move |(changes, last)| ViewPart {
        provenance: provenance.clone(),
        image,
        last,
        changes,
    })
}

/// Cuts a sequence into runs of bounded items and bytes; the last run is marked. An empty sequence is one empty run.
struct Parts<I: Iterator, W> {
    items: Peekable<I>,
    weigh: W,
    ended: bool,
}

impl<I: Iterator, W: Fn(&I::Item) -> (usize, usize)> Parts<I, W> {
    fn new(items: I, weigh: W) -> Self {
        Parts { items: items.peekable(), weigh, ended: false }
    }
}

impl<I: Iterator, W: Fn(&I::Item) -> (usize, usize)> Iterator for Parts<I, W> {
    type Item = (Vec<I::Item>, bool);

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let (mut run, mut count, mut bytes) = (Vec::new(), 0, 0);
        while let Some(item) = self.items.peek() {
            let (more_items, more_bytes) = (self.weigh)(item);
            let fits = count + more_items <= IMAGE_ITEMS_MAX && bytes + more_bytes <= PART_BYTES;
            if !run.is_empty() && !fits {
                break;
            }
            (count, bytes) = (count + more_items, bytes + more_bytes);
            run.extend(self.items.next());
        }
        self.ended = self.items.peek().is_none();
        Some((run, self.ended))
    }
}
