//! OffsetFetch of one group.

use super::record::Commit;
use super::{GroupMachine, GroupWritten};
use crate::answer::{Answer, To};
use base::PartitionIndex;
use wire::messages::offset_fetch_request::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
use wire::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartitions, OffsetFetchResponseTopics,
};
use wire::{ErrorCode, KafkaString};

/// Kafka's answer where nothing is committed.
const NO_OFFSET: i64 = -1;

impl GroupMachine {
    /// `place` is the group's in the request; every topic asked for is named.
    pub fn fetch(&self, to: To, place: usize, request: &OffsetFetchRequestGroup, require_stable: bool) -> GroupWritten {
        let group = &request.group_id;
        let topics = match &request.topics {
            Some(topics) => topics.iter().map(|topic| self.fetch_topic(group, topic, require_stable)).collect(),
            None => self.fetch_all(group, require_stable),
        };
        let answer = OffsetFetchResponseGroup { group_id: group.clone(), topics, ..Default::default() };
        GroupWritten::reply(to, Answer::Fetched(place, answer))
    }

    fn fetch_topic(
        &self,
        group: &str,
        topic: &OffsetFetchRequestTopics,
        require_stable: bool,
    ) -> OffsetFetchResponseTopics {
        let answer = |index: &i32| {
            let partition = PartitionIndex(*index);
            if require_stable && self.offsets.is_pending(group, &topic.name, partition) {
                return nothing(*index, ErrorCode::UnstableOffsetCommit);
            }
            // A commit for a topic of this name that was deleted means nothing to one who asks by id.
            let is_same = |commit: &&Commit| {
                topic.topic_id.is_zero() || commit.topic.is_none_or(|known| known.0 == topic.topic_id)
            };
            match self.offsets.committed.get(group, &topic.name, partition).filter(is_same) {
                Some(commit) => committed(*index, commit),
                None => nothing(*index, ErrorCode::None),
            }
        };
        OffsetFetchResponseTopics {
            name: topic.name.clone(),
            topic_id: topic.topic_id,
            partitions: topic.partition_indexes.iter().map(answer).collect(),
            ..Default::default()
        }
    }

    fn fetch_all(&self, group: &str, require_stable: bool) -> Vec<OffsetFetchResponseTopics> {
        let topics = self.offsets.committed.group(group).into_iter().flatten();
        let answer = |(name, partitions): (&KafkaString, &super::offsets::TopicOffsets)| OffsetFetchResponseTopics {
            name: name.clone(),
            partitions: partitions
                .iter()
                .map(|(partition, commit)| {
                    if require_stable && self.offsets.is_pending(group, name, *partition) {
                        nothing(partition.0, ErrorCode::UnstableOffsetCommit)
                    } else {
                        committed(partition.0, commit)
                    }
                })
                .collect(),
            ..Default::default()
        };
        topics.map(answer).collect()
    }
}

fn committed(partition: i32, commit: &Commit) -> OffsetFetchResponsePartitions {
    OffsetFetchResponsePartitions {
        partition_index: partition,
        committed_offset: commit.offset,
        committed_leader_epoch: commit.leader_epoch.map_or(-1, |epoch| epoch.0),
        metadata: Some(commit.metadata.clone()),
        ..Default::default()
    }
}

/// The answer of a partition that has no offset to tell.
pub(crate) fn nothing(partition: i32, error: ErrorCode) -> OffsetFetchResponsePartitions {
    OffsetFetchResponsePartitions {
        partition_index: partition,
        committed_offset: NO_OFFSET,
        committed_leader_epoch: -1,
        metadata: Some(KafkaString::default()),
        error_code: error.code(),
        ..Default::default()
    }
}
