//! Records of the offsets topic that this coordinator writes and reads: commits and classic groups.

use crate::runtime::Encoded;
use base::{LeaderEpoch, Offset, PartitionIndex, TopicId, Uuid, WallMillis};
use bytes::BytesMut;
use wire::messages::{GroupMetadataKey, GroupMetadataValue, OffsetCommitKey, OffsetCommitValue};
use wire::{DecodeError, Decoder, EncodeError, GroupRecordKey, GroupRecordValue, KafkaString};

/// An offset that a group committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Commit {
    pub offset: i64,
    pub leader_epoch: Option<LeaderEpoch>,
    pub metadata: KafkaString,
    pub committed_at: WallMillis,
    /// Only where an old client asked for a retention of its own.
    pub expires_at: Option<WallMillis>,
    /// Unknown in records of Kafka before 4.1.
    pub topic: Option<TopicId>,
    /// Where the record stands: of two commits, the later one in the log counts (a transaction's may be older).
    pub record: Offset,
}

/// What a commit is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CommitKey {
    pub group: KafkaString,
    pub topic: KafkaString,
    pub partition: PartitionIndex,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum GroupRecord {
    Commit(CommitKey, Option<Commit>),
    Group(KafkaString, Option<GroupMetadataValue>),
}

/// Kafka 4.4 writes groups in this version.
const GROUP_VERSION: i16 = 3;
/// Commits carry their topic's id in this version, and an expiry of their own in the other.
const COMMIT_VERSION: i16 = 4;
const COMMIT_EXPIRING_VERSION: i16 = 1;

impl GroupRecord {
    pub fn encode(&self) -> Result<Encoded, EncodeError> {
        let (key, value) = match self {
            GroupRecord::Commit(key, commit) => {
                let key =
                    OffsetCommitKey { group: key.group.clone(), topic: key.topic.clone(), partition: key.partition.0 };
                let version = commit.as_ref().map_or(COMMIT_VERSION, |commit| {
                    if commit.expires_at.is_some() { COMMIT_EXPIRING_VERSION } else { COMMIT_VERSION }
                });
                let value = commit.as_ref().map(|commit| (GroupRecordValue::OffsetCommit(commit.to_value()), version));
                (GroupRecordKey::OffsetCommit(key), value)
            }
            GroupRecord::Group(group, value) => {
                let key = GroupMetadataKey { group: group.clone() };
                let value = value.clone().map(|value| (GroupRecordValue::GroupMetadata(value), GROUP_VERSION));
                (GroupRecordKey::GroupMetadata(key), value)
            }
        };
        let mut key_bytes = BytesMut::new();
        key.encode(&mut key_bytes)?;
        let encode = |(value, version): (GroupRecordValue, i16)| {
            let mut bytes = BytesMut::new();
            value.encode(&mut bytes, version).map(|()| bytes.freeze())
        };
        Ok(Encoded { key: key_bytes.freeze(), value: value.map(encode).transpose()? })
    }
}

impl Commit {
    fn to_value(&self) -> OffsetCommitValue {
        OffsetCommitValue {
            offset: self.offset,
            leader_epoch: self.leader_epoch.map_or(-1, |epoch| epoch.0),
            metadata: self.metadata.clone(),
            commit_timestamp: self.committed_at.0,
            expire_timestamp: self.expires_at.map_or(-1, |at| at.0),
            topic_id: self.topic.map_or(Uuid::ZERO, |id| id.0),
            ..Default::default()
        }
    }

    fn from_value(record: Offset, value: OffsetCommitValue) -> Commit {
        Commit {
            offset: value.offset,
            leader_epoch: (value.leader_epoch >= 0).then_some(LeaderEpoch(value.leader_epoch)),
            metadata: value.metadata,
            committed_at: WallMillis(value.commit_timestamp),
            expires_at: (value.expire_timestamp >= 0).then_some(WallMillis(value.expire_timestamp)),
            topic: (!value.topic_id.is_zero()).then_some(TopicId(value.topic_id)),
            record,
        }
    }
}

/// A record that was read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Loaded {
    Ours(GroupRecord),
    /// A group of another protocol exists (true) or is gone.
    Other(KafkaString, bool),
    /// It changes nothing here: parts of groups of other protocols, and kinds that nobody knows yet, which Kafka skips too.
    Nothing,
}

pub(crate) fn decode(offset: Offset, key: &[u8], value: Option<&[u8]>) -> Result<Loaded, DecodeError> {
    let key = match GroupRecordKey::decode(&mut Decoder::new(key)) {
        Ok(key) => key,
        Err(DecodeError::UnknownRecordType(_)) => return Ok(Loaded::Nothing),
        Err(error) => return Err(error),
    };
    let id = key.id();
    let value = value.map(|value| GroupRecordValue::decode(id, &mut Decoder::new(value))).transpose()?;
    let value = value.map(|(value, _)| value);
    Ok(match (key, value) {
        (GroupRecordKey::OffsetCommit(key), value) => commit(
            offset,
            key.group,
            key.topic,
            key.partition,
            match value {
                Some(GroupRecordValue::OffsetCommit(value)) => Some(value),
                _ => None,
            },
        ),
        (GroupRecordKey::LegacyOffsetCommit(key), value) => {
            let value = match value {
                Some(GroupRecordValue::LegacyOffsetCommit(old)) => Some(OffsetCommitValue {
                    offset: old.offset,
                    metadata: old.metadata,
                    commit_timestamp: old.commit_timestamp,
                    ..Default::default()
                }),
                _ => None,
            };
            commit(offset, key.group, key.topic, key.partition, value)
        }
        (GroupRecordKey::GroupMetadata(key), value) => Loaded::Ours(GroupRecord::Group(
            key.group,
            match value {
                Some(GroupRecordValue::GroupMetadata(value)) => Some(value),
                _ => None,
            },
        )),
        (GroupRecordKey::ConsumerGroupMetadata(key), value) => Loaded::Other(key.group_id, value.is_some()),
        (GroupRecordKey::ShareGroupMetadata(key), value) => Loaded::Other(key.group_id, value.is_some()),
        (GroupRecordKey::StreamsGroupMetadata(key), value) => Loaded::Other(key.group_id, value.is_some()),
        _ => Loaded::Nothing,
    })
}

fn commit(
    record: Offset,
    group: KafkaString,
    topic: KafkaString,
    partition: i32,
    value: Option<OffsetCommitValue>,
) -> Loaded {
    let key = CommitKey { group, topic, partition: PartitionIndex(partition) };
    Loaded::Ours(GroupRecord::Commit(key, value.map(|value| Commit::from_value(record, value))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use batch::Batches;

    /// What Apache Kafka 4.4 wrote.
    const LOG: &[u8] = include_bytes!("../../../../tests/golden/groups/consumer_offsets.log");

    /// Calls with key, value and offset of each record outside of control batches.
    fn for_each_record(mut visit: impl FnMut(&[u8], Option<&[u8]>, Offset)) {
        for view in Batches::new(LOG) {
            let view = view.expect("a good batch");
            if view.is_control() {
                continue;
            }
            for record in view.records().expect("no compression") {
                let record = record.expect("a good record");
                visit(record.key.expect("a key"), record.value, view.header().offset_at(record.offset_delta));
            }
        }
    }

    #[test]
    fn kafkas_records_are_written_again_byte_for_byte() {
        let mut counts = [0; 4];
        for_each_record(|key, value, offset| {
            let Loaded::Ours(record) = decode(offset, key, value).expect("it is read") else { return };
            let kind = match &record {
                GroupRecord::Commit(_, Some(commit)) if commit.expires_at.is_some() => 0,
                GroupRecord::Commit(_, value) => 1 + usize::from(value.is_none()),
                GroupRecord::Group(..) => 3,
            };
            counts[kind] += 1;
            let written = record.encode().expect("it is written");
            assert_eq!((&written.key[..], written.value.as_deref()), (key, value), "{record:?}");
        });
        assert!(counts[0] == 1 && counts[1] > 10 && counts[2] > 4 && counts[3] >= 5, "{counts:?}");
    }

    #[test]
    fn kafkas_groups_are_what_a_group_writes_of_itself() {
        let mut groups = 0;
        for_each_record(|key, value, offset| {
            if let Loaded::Ours(GroupRecord::Group(id, Some(value))) = decode(offset, key, value).expect("it is read") {
                let group = super::super::classic::ClassicGroup::from_record(id, value.clone());
                assert_eq!(group.to_record(|member| member.assignment.clone()), value);
                groups += 1;
            }
        });
        assert!(groups >= 4);
    }

    #[test]
    fn what_does_not_fit_is_no_record() {
        let key = CommitKey { group: "x".repeat(40_000).into(), topic: "t".into(), partition: PartitionIndex(0) };
        assert!(GroupRecord::Commit(key, None).encode().is_err());
    }

    #[test]
    fn other_records_are_told_apart() {
        let mut others = 0;
        let mut nothing = 0;
        for_each_record(|key, value, offset| match decode(offset, key, value).expect("it is read") {
            Loaded::Other(group, _) => {
                assert_eq!(group, "modern");
                others += 1;
            }
            Loaded::Nothing => nothing += 1,
            Loaded::Ours(_) => {}
        });
        assert!(others >= 2 && nothing >= 6, "{others} {nothing}");
        assert_eq!(decode(Offset(0), &[0, 99, 1], Some(b"x")), Ok(Loaded::Nothing), "a kind of a later Kafka");
        assert!(decode(Offset(0), &[0], None).is_err() && decode(Offset(0), &[0, 2, 0, 9], None).is_err());
        assert!(decode(Offset(0), &[0, 2, 0, 1, b'g'], Some(&[0, 3])).is_err());
    }
}
