//! Folds the link's messages into the next snapshot.

use crate::snapshot::{Topic, View};
use base::{CoreId, PartitionId, TopicId};
use link::{ViewChange, ViewPart, ViewPartition, ViewTopic};
use std::fmt;
use std::sync::Arc;

/// Why a part of the view was refused; the connection it came on is closed and opened anew, which states a whole image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ViewError {
    OtherCluster {
        ours: String,
        theirs: String,
    },
    /// Older than what is applied: a control plane that lags, or was put back in time.
    Older {
        applied: i64,
        offered: i64,
    },
    /// A delta before any image, or an image's parts mixed with a delta's.
    OutOfOrder,
    UnknownTopic(TopicId),
}

impl fmt::Display for ViewError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ViewError::OtherCluster { ours, theirs } => {
                write!(f, "the control plane speaks for cluster {theirs}, this node belongs to {ours}")
            }
            ViewError::Older { applied, offered } => {
                write!(f, "metadata offset {offered} is older than {applied}, which is applied already")
            }
            ViewError::OutOfOrder => f.write_str("a delta came before its image"),
            ViewError::UnknownTopic(id) => write!(f, "partitions of topic {id}, which the view lacks"),
        }
    }
}

impl std::error::Error for ViewError {}

/// Collects parts until the last one, then publishes.
#[derive(Debug)]
pub struct ViewBuilder {
    cluster_id: String,
    published: Arc<View>,
    /// The next snapshot while its parts come in, and whether they are an image's.
    pending: Option<(View, bool)>,
}

impl ViewBuilder {
    /// Starts from what was saved on the medium, or from nothing.
    pub fn new(cluster_id: String, saved: View) -> ViewBuilder {
        ViewBuilder { cluster_id, published: Arc::new(saved), pending: None }
    }

    pub fn published(&self) -> &Arc<View> {
        &self.published
    }

    /// A lost connection drops what was half told.
    pub fn on_disconnected(&mut self) {
        self.pending = None;
    }

    /// Takes one part; the next snapshot where this was the last one.
    pub fn apply(&mut self, part: ViewPart) -> Result<Option<Arc<View>>, ViewError> {
        if part.provenance.cluster_id != self.cluster_id {
            return Err(ViewError::OtherCluster { ours: self.cluster_id.clone(), theirs: part.provenance.cluster_id });
        }
        if let Some(applied) = self.published.metadata_offset()
            && part.provenance.metadata_offset < applied
        {
            return Err(ViewError::Older { applied, offered: part.provenance.metadata_offset });
        }
        let mut next = match self.pending.take() {
            Some((next, image)) if image == part.image => next,
            Some(_) => return Err(ViewError::OutOfOrder),
            None if part.image => View { placements: self.published.placements.clone(), ..View::default() },
            None if self.published.provenance.is_some() => View::clone(&self.published),
            None => return Err(ViewError::OutOfOrder),
        };
        for change in part.changes {
            apply_change(&mut next, change)?;
        }
        if !part.last {
            self.pending = Some((next, part.image));
            return Ok(None);
        }
        next.provenance = Some(part.provenance);
        self.published = Arc::new(next);
        Ok(Some(Arc::clone(&self.published)))
    }

    /// Where the keeper placed or dropped partitions of this node; published at once, since it is ours to say.
    pub fn place(&mut self, changes: impl IntoIterator<Item = (PartitionId, Option<CoreId>)>) -> Arc<View> {
        let mut next = View::clone(&self.published);
        for (partition, core) in changes {
            let in_pending = self.pending.as_mut().map(|(pending, _)| &mut pending.placements);
            for placements in [Some(&mut next.placements), in_pending].into_iter().flatten() {
                match core {
                    Some(core) => placements.insert(partition, core),
                    None => placements.remove(&partition),
                };
            }
        }
        self.published = Arc::new(next);
        Arc::clone(&self.published)
    }
}

fn apply_change(view: &mut View, change: ViewChange) -> Result<(), ViewError> {
    match change {
        ViewChange::Broker(broker) => {
            Arc::make_mut(&mut view.brokers).insert(broker.id, Arc::new(broker));
        }
        ViewChange::BrokerRemoved(id) => {
            Arc::make_mut(&mut view.brokers).remove(&id);
        }
        ViewChange::Topic(topic) => put_topic(view, topic),
        ViewChange::TopicRemoved(id) => {
            if let Some(name) = view.names.remove(&id) {
                view.topics.remove(&name);
            }
        }
        ViewChange::Partitions { topic, partitions } => put_partitions(view, topic, partitions)?,
        ViewChange::Config { resource, entries } => {
            let configs = Arc::make_mut(&mut view.configs);
            if entries.is_empty() {
                configs.remove(&resource);
            } else {
                configs.insert(resource, Arc::new(entries));
            }
        }
        ViewChange::Features { epoch, levels } => view.features = Arc::new((epoch, levels)),
        ViewChange::Controller(controller) => view.controller = controller,
    }
    Ok(())
}

fn put_topic(view: &mut View, topic: ViewTopic) {
    let name: Arc<str> = Arc::from(topic.name);
    let mut partitions = topic.partitions;
    partitions.sort_by_key(|partition| partition.index);
    // A name that was deleted and created again comes as another id; the old id must not resolve to the new topic.
    if let Some(old) = view.topics.get(&*name)
        && old.id != topic.id
    {
        let old = old.id;
        view.names.remove(&old);
    }
    view.names.insert(topic.id, Arc::clone(&name));
    let topic = Topic { id: topic.id, name: Arc::clone(&name), partitions: Arc::new(partitions) };
    view.topics.insert(name, Arc::new(topic));
}

fn put_partitions(view: &mut View, id: TopicId, changed: Vec<ViewPartition>) -> Result<(), ViewError> {
    let topic = Arc::clone(view.topic_by_id(id).ok_or(ViewError::UnknownTopic(id))?);
    let mut partitions = Vec::clone(&topic.partitions);
    for partition in changed {
        match partitions.binary_search_by_key(&partition.index, |known| known.index) {
            Ok(at) => partitions[at] = partition,
            Err(at) => partitions.insert(at, partition),
        }
    }
    let next = Topic { partitions: Arc::new(partitions), ..Topic::clone(&topic) };
    view.topics.insert(Arc::clone(&topic.name), Arc::new(next));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{LeaderEpoch, NodeId, PartitionEpoch, PartitionIndex, Uuid};
    use link::Provenance;

    fn part(offset: i64, image: bool, last: bool, changes: Vec<ViewChange>) -> ViewPart {
        let provenance =
            Provenance { cluster_id: "c".into(), quorum_epoch: 1, metadata_offset: offset, caught_up: true };
        ViewPart { provenance, image, last, changes }
    }

    fn partition(index: i32, epoch: i32) -> ViewPartition {
        ViewPartition {
            index: PartitionIndex(index),
            leader: Some(NodeId(1)),
            leader_epoch: LeaderEpoch(epoch),
            partition_epoch: PartitionEpoch(0),
            replicas: vec![NodeId(1)],
            isr: vec![NodeId(1)],
            eligible_leader_replicas: vec![],
            last_known_elr: vec![],
            offline: vec![],
        }
    }

    fn topic(id: u128, name: &str, partitions: i32) -> ViewChange {
        ViewChange::Topic(ViewTopic {
            id: TopicId(Uuid(id)),
            name: name.into(),
            partitions: (0..partitions).rev().map(|i| partition(i, 0)).collect(),
        })
    }

    #[test]
    fn nothing_is_seen_before_the_last_part() {
        let mut builder = ViewBuilder::new("c".into(), View::default());
        assert_eq!(builder.apply(part(5, false, true, vec![])).unwrap_err(), ViewError::OutOfOrder);
        assert!(builder.apply(part(5, true, false, vec![topic(1, "a", 3)])).unwrap().is_none());
        assert!(builder.published().topic("a").is_none());
        let view = builder.apply(part(5, true, true, vec![topic(2, "b", 1)])).unwrap().unwrap();
        assert_eq!(view.topic("a").unwrap().partition(PartitionIndex(2)).unwrap().index, PartitionIndex(2));
        assert_eq!(view.topic_by_id(TopicId(Uuid(2))).unwrap().name.as_ref(), "b");
        assert_eq!(view.metadata_offset(), Some(5));
    }

    #[test]
    fn deltas_change_what_they_name_and_old_snapshots_stay() {
        let mut builder = ViewBuilder::new("c".into(), View::default());
        let first = builder.apply(part(1, true, true, vec![topic(1, "a", 2)])).unwrap().unwrap();
        let change = ViewChange::Partitions { topic: TopicId(Uuid(1)), partitions: vec![partition(1, 7)] };
        let second = builder.apply(part(2, false, true, vec![change])).unwrap().unwrap();
        let epoch = |view: &View| view.topic("a").unwrap().partitions[1].leader_epoch;
        assert_eq!((epoch(&first), epoch(&second)), (LeaderEpoch(0), LeaderEpoch(7)));
        let older = part(1, true, true, vec![]);
        assert_eq!(builder.apply(older).unwrap_err(), ViewError::Older { applied: 2, offered: 1 });
    }

    #[test]
    fn a_name_created_again_is_another_topic() {
        let mut builder = ViewBuilder::new("c".into(), View::default());
        builder.apply(part(1, true, true, vec![topic(1, "a", 2)])).unwrap();
        let again = vec![ViewChange::TopicRemoved(TopicId(Uuid(1))), topic(9, "a", 1)];
        let view = builder.apply(part(2, false, true, again)).unwrap().unwrap();
        assert!(view.topic_by_id(TopicId(Uuid(1))).is_none());
        assert_eq!(view.topic("a").unwrap().id, TopicId(Uuid(9)));
        assert_eq!(view.topic_count(), 1);
    }

    #[test]
    fn placements_outlive_images() {
        let mut builder = ViewBuilder::new("c".into(), View::default());
        let id = PartitionId { topic: TopicId(Uuid(1)), index: PartitionIndex(0) };
        builder.place([(id, Some(CoreId(1)))]);
        let view = builder.apply(part(1, true, true, vec![topic(1, "a", 1)])).unwrap().unwrap();
        assert_eq!(view.core_of(id), Some(CoreId(1)));
        assert_eq!(builder.place([(id, None)]).core_of(id), None);
    }

    #[test]
    fn another_cluster_is_refused() {
        let mut builder = ViewBuilder::new("ours".into(), View::default());
        assert!(matches!(builder.apply(part(1, true, true, vec![])), Err(ViewError::OtherCluster { .. })));
    }
}
