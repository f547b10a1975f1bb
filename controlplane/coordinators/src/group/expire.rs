//! Offsets that are old, groups that hold nothing, and topics that are gone.

use super::classic::{ClassicGroup, State};
use super::record::{Commit, CommitKey, GroupRecord};
use super::{GroupMachine, GroupTurn, GroupWritten, Timer};
use base::{PartitionIndex, TopicId, WallMillis};
use std::time::Duration;
use wire::KafkaString;

impl GroupMachine {
    /// Tombstones for expired offsets, and for groups that are empty and have none left. Comes back by itself.
    pub(super) fn clean_up(&mut self, turn: &mut GroupTurn<'_>) -> GroupWritten {
        turn.timers.set(Timer::Cleanup, turn.now.monotonic + self.settings.offsets_retention_check_interval);
        let wall = self.clock.look(turn.now);
        let mut records = Vec::new();
        for group in self.groups.values() {
            let all_expired = self.expire_offsets(group, wall, &mut records);
            if all_expired && group.state() == State::Empty && !self.offsets.has_open_transaction(&group.id) {
                records.push(GroupRecord::Group(group.id.clone(), None));
            }
        }
        GroupWritten { divisible: true, ..GroupWritten::records(records) }
    }

    /// True where no offset of the group remains.
    fn expire_offsets(&self, group: &ClassicGroup, now: WallMillis, records: &mut Vec<GroupRecord>) -> bool {
        let Some(topics) = self.offsets.committed.group(&group.id) else { return true };
        let Some(aged_from) = Aging::of(group) else { return false };
        let mut all = true;
        for (topic, partitions) in topics {
            let is_read = group.is_subscribed_to(topic);
            for (partition, commit) in partitions {
                let expired = !is_read
                    && aged_from.is_over(commit, now, self.settings.offsets_retention)
                    && !self.offsets.is_pending(&group.id, topic, *partition);
                if expired {
                    records.push(tombstone(&group.id, topic, *partition));
                }
                all &= expired;
            }
        }
        all
    }

    /// Tombstones for the offsets of a topic that was deleted; one of the same name that came after keeps its own.
    pub fn forget_topic(&self, topic: TopicId, name: &KafkaString) -> GroupWritten {
        let keys = self.offsets.keys_of_topic(name, |commit| commit.topic.is_none_or(|known| known == topic));
        let records = keys.into_iter().map(|key| GroupRecord::Commit(key, None)).collect();
        GroupWritten { divisible: true, ..GroupWritten::records(records) }
    }
}

fn tombstone(group: &KafkaString, topic: &KafkaString, partition: PartitionIndex) -> GroupRecord {
    GroupRecord::Commit(CommitKey { group: group.clone(), topic: topic.clone(), partition }, None)
}

/// Since when an offset counts as unused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aging {
    /// Since the group became empty, where that is known.
    SinceEmpty(Option<WallMillis>),
    SinceCommit,
}

impl Aging {
    /// None where offsets do not age: the group is at work, or nobody can tell what on.
    fn of(group: &ClassicGroup) -> Option<Aging> {
        if group.protocol_type.is_none() {
            return Some(Aging::SinceCommit);
        }
        match group.state() {
            State::Empty => Some(Aging::SinceEmpty(group.since)),
            State::Stable if group.is_consumers() && group.subscribed.is_some() => Some(Aging::SinceCommit),
            _ => None,
        }
    }

    fn is_over(self, commit: &Commit, now: WallMillis, retention: Duration) -> bool {
        if let Some(expires_at) = commit.expires_at {
            return now >= expires_at;
        }
        let from = match self {
            Aging::SinceEmpty(Some(since)) => since,
            Aging::SinceEmpty(None) | Aging::SinceCommit => commit.committed_at,
        };
        u128::try_from(now.0.saturating_sub(from.0)).is_ok_and(|age| age >= retention.as_millis())
    }
}
