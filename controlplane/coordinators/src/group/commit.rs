//! OffsetCommit and OffsetDelete.

use super::classic::{ClassicGroup, State};
use super::rebalance::restart_session;
use super::record::{Commit, CommitKey, GroupRecord};
use super::{GroupMachine, GroupTurn, GroupWritten};
use crate::answer::{Answer, To};
use base::{LeaderEpoch, Offset, PartitionIndex, TopicId, WallMillis};
use wire::messages::offset_commit_request::OffsetCommitRequestPartition;
use wire::messages::offset_commit_response::{OffsetCommitResponsePartition, OffsetCommitResponseTopic};
use wire::messages::offset_delete_response::{OffsetDeleteResponsePartition, OffsetDeleteResponseTopic};
use wire::messages::{OffsetCommitRequest, OffsetCommitResponse, OffsetDeleteRequest, OffsetDeleteResponse};
use wire::{ErrorCode, KafkaString};

/// From this version on, committing in a group that does not exist says so.
const UNKNOWN_GROUP_SINCE: i16 = 9;

/// A commit whose topics exist and are named both ways, and the answers for those that do not.
#[derive(Clone, Debug)]
pub(crate) struct CommitRequest {
    pub request: OffsetCommitRequest,
    pub version: i16,
    pub refused: Vec<OffsetCommitResponseTopic>,
}

impl GroupMachine {
    /// Whether the group was made: one without members, which keeps offsets only.
    pub(super) fn ensure_group(&mut self, group: &KafkaString, now: WallMillis) -> bool {
        let is_new = !self.groups.contains_key(group) && !self.others.contains(group);
        if is_new {
            self.groups.insert(group.clone(), ClassicGroup::new(group.clone(), now));
        }
        is_new
    }

    pub fn commit(&mut self, turn: &mut GroupTurn<'_>, to: To, commit: CommitRequest) -> GroupWritten {
        let CommitRequest { request, version, refused } = commit;
        let admitted = self.admit_commit(turn, &request, version);
        let mut records = Vec::new();
        let mut answers = Merge(refused);
        let expires_at = (request.retention_time_ms != -1)
            .then(|| WallMillis(turn.now.wall.0.saturating_add(request.retention_time_ms)));
        let group = request.group_id.detached();
        for topic in &request.topics {
            let name = topic.name.detached();
            let mut answered = Vec::with_capacity(topic.partitions.len());
            for partition in &topic.partitions {
                let error = match admitted {
                    Err(error) => error,
                    Ok(()) if self.is_too_large(partition) => ErrorCode::OffsetMetadataTooLarge,
                    Ok(()) => {
                        let key = CommitKey {
                            group: group.clone(),
                            topic: name.clone(),
                            partition: PartitionIndex(partition.partition_index),
                        };
                        let commit = commit_of(partition, TopicId(topic.topic_id), turn.now.wall, expires_at);
                        records.push(GroupRecord::Commit(key, Some(commit)));
                        ErrorCode::None
                    }
                };
                answered.push(OffsetCommitResponsePartition {
                    partition_index: partition.partition_index,
                    error_code: error.code(),
                    ..Default::default()
                });
            }
            answers.add(OffsetCommitResponseTopic {
                name: topic.name.clone(),
                topic_id: topic.topic_id,
                partitions: answered,
                ..Default::default()
            });
        }
        let response = OffsetCommitResponse { topics: answers.0, ..Default::default() };
        GroupWritten::records(records).with_reply(to, Answer::Commit(response))
    }

    fn is_too_large(&self, partition: &OffsetCommitRequestPartition) -> bool {
        let units = |metadata: &KafkaString| metadata.encode_utf16().count();
        partition.committed_metadata.as_ref().map_or(0, units) > self.settings.offset_metadata_units_max
    }

    /// Whether the group takes commits from this member; if so, the member has been heard of.
    fn admit_commit(
        &self,
        turn: &mut GroupTurn<'_>,
        request: &OffsetCommitRequest,
        version: i16,
    ) -> Result<(), ErrorCode> {
        let generation = request.generation_id_or_member_epoch;
        let Some(group) = self.groups.get(&request.group_id) else {
            return if self.others.contains(&request.group_id) {
                Err(ErrorCode::UnknownMemberId)
            } else if generation < 0 {
                // Without a generation it is an administrator, or a consumer that assigns itself.
                Ok(())
            } else if version >= UNKNOWN_GROUP_SINCE {
                Err(ErrorCode::GroupIdNotFound)
            } else {
                Err(ErrorCode::IllegalGeneration)
            };
        };
        let is_empty = group.state() == State::Empty;
        if generation < 0 && is_empty {
            return Ok(());
        }
        if generation >= 0 || !request.member_id.is_empty() || request.group_instance_id.is_some() {
            group.validate_member(&request.member_id, request.group_instance_id.as_ref())?;
            if generation != group.generation {
                return Err(ErrorCode::IllegalGeneration);
            }
        } else if !is_empty {
            return Err(ErrorCode::UnknownMemberId);
        }
        match group.state() {
            // The member knows the generation but not yet its assignment, so it commits what was another's by now.
            State::Completing => Err(ErrorCode::RebalanceInProgress),
            State::Stable | State::Preparing(_) => {
                restart_session(turn, group, &request.member_id);
                Ok(())
            }
            State::Empty => Ok(()),
        }
    }

    pub fn delete_offsets(
        &mut self,
        to: To,
        request: &OffsetDeleteRequest,
        refused: Vec<OffsetDeleteResponseTopic>,
    ) -> GroupWritten {
        let group = match self.admit_delete(&request.group_id) {
            Ok(group) => group,
            Err(error) => {
                let response = OffsetDeleteResponse { error_code: error.code(), ..Default::default() };
                return GroupWritten::reply(to, Answer::OffsetDelete(response));
            }
        };
        let mut records = Vec::new();
        let mut topics = refused;
        for topic in &request.topics {
            let is_subscribed = group.is_subscribed_to(&topic.name);
            let error = if is_subscribed { ErrorCode::GroupSubscribedToTopic } else { ErrorCode::None };
            let mut answered = Vec::with_capacity(topic.partitions.len());
            for partition in &topic.partitions {
                let index = PartitionIndex(partition.partition_index);
                if !is_subscribed && self.has_offset(&group.id, &topic.name, index) {
                    let key = CommitKey { group: group.id.clone(), topic: topic.name.detached(), partition: index };
                    records.push(GroupRecord::Commit(key, None));
                }
                answered.push(OffsetDeleteResponsePartition { partition_index: index.0, error_code: error.code() });
            }
            match topics.iter_mut().find(|known| known.name == topic.name) {
                Some(known) => known.partitions.extend(answered),
                None => topics.push(OffsetDeleteResponseTopic { name: topic.name.clone(), partitions: answered }),
            }
        }
        let response = OffsetDeleteResponse { topics, ..Default::default() };
        GroupWritten::records(records).with_reply(to, Answer::OffsetDelete(response))
    }

    fn has_offset(&self, group: &str, topic: &str, partition: PartitionIndex) -> bool {
        self.offsets.committed.get(group, topic, partition).is_some()
            || self.offsets.is_pending(group, topic, partition)
    }

    /// Consumers name their topics, so only those are protected; members of other kinds protect everything.
    fn admit_delete(&self, group: &str) -> Result<&ClassicGroup, ErrorCode> {
        let Some(known) = self.groups.get(group) else {
            let other = self.others.contains(group);
            return Err(if other { ErrorCode::NonEmptyGroup } else { ErrorCode::GroupIdNotFound });
        };
        let protected = known.state() != State::Empty && !known.is_consumers();
        if protected { Err(ErrorCode::NonEmptyGroup) } else { Ok(known) }
    }
}

fn commit_of(
    partition: &OffsetCommitRequestPartition,
    topic: TopicId,
    now: WallMillis,
    expires_at: Option<WallMillis>,
) -> Commit {
    Commit {
        offset: partition.committed_offset,
        leader_epoch: (partition.committed_leader_epoch >= 0).then_some(LeaderEpoch(partition.committed_leader_epoch)),
        metadata: partition.committed_metadata.as_ref().map(KafkaString::detached).unwrap_or_default(),
        committed_at: now,
        expires_at,
        topic: (!topic.0.is_zero()).then_some(topic),
        // Known when the record is applied.
        record: Offset::ZERO,
    }
}

/// Answers of one topic stand together, whoever gave them.
struct Merge(Vec<OffsetCommitResponseTopic>);

impl Merge {
    fn add(&mut self, topic: OffsetCommitResponseTopic) {
        match self.0.iter_mut().find(|known| known.name == topic.name && known.topic_id == topic.topic_id) {
            Some(known) => known.partitions.extend(topic.partitions),
            None => self.0.push(topic),
        }
    }
}
