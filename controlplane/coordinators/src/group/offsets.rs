//! Committed offsets of all groups of a shard, and those that open transactions will commit.

use super::record::{Commit, CommitKey};
use base::{PartitionIndex, ProducerId};
use std::collections::BTreeMap;
use wire::KafkaString;

pub(crate) type TopicOffsets = BTreeMap<PartitionIndex, Commit>;
pub(crate) type GroupOffsets = BTreeMap<KafkaString, TopicOffsets>;

/// Offsets by group, topic and partition; no level is ever empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Table {
    groups: BTreeMap<KafkaString, GroupOffsets>,
}

impl Table {
    pub fn get(&self, group: &str, topic: &str, partition: PartitionIndex) -> Option<&Commit> {
        self.groups.get(group)?.get(topic)?.get(&partition)
    }

    pub fn group(&self, group: &str) -> Option<&GroupOffsets> {
        self.groups.get(group)
    }

    pub fn put(&mut self, key: &CommitKey, commit: Commit) -> Option<Commit> {
        let topics = self.groups.entry(key.group.clone()).or_default();
        topics.entry(key.topic.clone()).or_default().insert(key.partition, commit)
    }

    pub fn remove(&mut self, key: &CommitKey) -> Option<Commit> {
        let topics = self.groups.get_mut(&key.group)?;
        let partitions = topics.get_mut(&key.topic)?;
        let removed = partitions.remove(&key.partition);
        if partitions.is_empty() {
            topics.remove(&key.topic);
        }
        if topics.is_empty() {
            self.groups.remove(&key.group);
        }
        removed
    }

    pub fn iter(&self) -> impl Iterator<Item = (CommitKey, &Commit)> {
        self.groups.iter().flat_map(|(group, topics)| {
            topics.iter().flat_map(move |(topic, partitions)| {
                partitions.iter().map(move |(partition, commit)| {
                    (CommitKey { group: group.clone(), topic: topic.clone(), partition: *partition }, commit)
                })
            })
        })
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Offsets {
    pub committed: Table,
    /// What open transactions will commit, by the producer that has each.
    pending: BTreeMap<ProducerId, Table>,
}

/// What stood where a record was applied.
#[derive(Debug)]
pub(crate) struct Before {
    key: CommitKey,
    committed: Option<Commit>,
    /// A tombstone takes what open transactions hold for the same partition.
    pending: Vec<(ProducerId, Commit)>,
}

impl Before {
    pub fn key(&self) -> &CommitKey {
        &self.key
    }
}

impl Offsets {
    pub fn apply(&mut self, key: CommitKey, commit: Option<Commit>) -> Before {
        match commit {
            Some(commit) => {
                let committed = self.committed.put(&key, commit);
                Before { key, committed, pending: Vec::new() }
            }
            None => {
                let committed = self.committed.remove(&key);
                let mut pending = Vec::new();
                for (producer, table) in &mut self.pending {
                    pending.extend(table.remove(&key).map(|commit| (*producer, commit)));
                }
                Before { key, committed, pending }
            }
        }
    }

    pub fn undo(&mut self, before: Before) {
        let Before { key, committed, pending } = before;
        for (producer, commit) in pending {
            self.pending.entry(producer).or_default().put(&key, commit);
        }
        match committed {
            Some(commit) => self.committed.put(&key, commit),
            None => self.committed.remove(&key),
        };
    }

    pub fn put_pending(&mut self, producer: ProducerId, key: &CommitKey, commit: Commit) {
        self.pending.entry(producer).or_default().put(key, commit);
    }

    /// A transaction has ended. A commit that stands later in the log than the transaction's own record stays.
    pub fn end_transaction(&mut self, producer: ProducerId, committed: bool) {
        let Some(table) = self.pending.remove(&producer) else { return };
        if !committed {
            return;
        }
        for (key, commit) in table.iter() {
            let newer = self.committed.get(&key.group, &key.topic, key.partition);
            if newer.is_none_or(|newer| newer.record < commit.record) {
                self.committed.put(&key, commit.clone());
            }
        }
    }

    pub fn is_pending(&self, group: &str, topic: &str, partition: PartitionIndex) -> bool {
        self.pending.values().any(|table| table.get(group, topic, partition).is_some())
    }

    pub fn has_open_transaction(&self, group: &str) -> bool {
        self.pending.values().any(|table| table.group(group).is_some())
    }

    /// Everything held for a group, committed first, without repetition.
    pub fn keys_of(&self, group: &str) -> Vec<CommitKey> {
        let tables = std::iter::once(&self.committed).chain(self.pending.values());
        let mut keys = Vec::new();
        for (topic, partitions) in tables.filter_map(|table| table.group(group)).flatten() {
            for partition in partitions.keys() {
                keys.push(CommitKey { group: group.into(), topic: topic.clone(), partition: *partition });
            }
        }
        let mut seen = std::collections::BTreeSet::new();
        keys.retain(|key| seen.insert(key.clone()));
        keys
    }

    /// Everything held for a topic, by whether it passes, without repetition.
    pub fn keys_of_topic(&self, topic: &str, passes: impl Fn(&Commit) -> bool) -> Vec<CommitKey> {
        let tables = std::iter::once(&self.committed).chain(self.pending.values());
        let found = tables.flat_map(Table::iter).filter(|(key, commit)| key.topic == *topic && passes(commit));
        let keys: std::collections::BTreeSet<CommitKey> = found.map(|(key, _)| key).collect();
        keys.into_iter().collect()
    }
}
