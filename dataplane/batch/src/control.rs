//! Control batches: transaction markers and what a quorum writes among its records. Here are the key, the marker's value
//! and the batch around them; the bodies of the quorum's records are messages of `wire`.

use crate::builder::{BatchBuilder, BatchProducer};
use crate::header::BatchView;
use crate::record::RecordError;
use base::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, WallMillis};

/// The kind of a control record, from its key. A kind that is not known is skipped by readers, so it is no error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ControlKind {
    Abort,
    Commit,
    LeaderChange,
    SnapshotHeader,
    SnapshotFooter,
    KraftVersion,
    KraftVoters,
    Unknown(i16),
}

impl ControlKind {
    pub const fn id(self) -> i16 {
        match self {
            ControlKind::Abort => 0,
            ControlKind::Commit => 1,
            ControlKind::LeaderChange => 2,
            ControlKind::SnapshotHeader => 3,
            ControlKind::SnapshotFooter => 4,
            ControlKind::KraftVersion => 5,
            ControlKind::KraftVoters => 6,
            ControlKind::Unknown(id) => id,
        }
    }

    pub const fn from_id(id: i16) -> ControlKind {
        match id {
            0 => ControlKind::Abort,
            1 => ControlKind::Commit,
            2 => ControlKind::LeaderChange,
            3 => ControlKind::SnapshotHeader,
            4 => ControlKind::SnapshotFooter,
            5 => ControlKind::KraftVersion,
            6 => ControlKind::KraftVoters,
            other => ControlKind::Unknown(other),
        }
    }

    /// The key: version 0 and the kind.
    pub const fn key(self) -> [u8; 4] {
        let [high, low] = self.id().to_be_bytes();
        [0, 0, high, low]
    }
}

/// The highest version of a key and of a marker's value that is written. A higher one is read as this one, as in Kafka.
const VERSION: i16 = 0;

/// Why bytes are not a control record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    #[error("the batch is not a control batch")]
    NotControl,
    #[error("a control batch is never compressed")]
    Compressed,
    #[error("a control record's key is not a version and a kind")]
    Key,
    #[error("a transaction marker's value is not a version and a coordinator epoch")]
    Marker,
    #[error(transparent)]
    Record(#[from] RecordError),
}

/// A record of a control batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlRecord<'a> {
    pub kind: ControlKind,
    pub offset: Offset,
    pub timestamp: WallMillis,
    /// The encoded body; of a transaction marker, `EndTransaction::decode` reads it.
    pub value: &'a [u8],
}

/// The kind that a key names.
pub fn decode_key(key: Option<&[u8]>) -> Result<ControlKind, ControlError> {
    let (version, rest) = key.and_then(|key| key.split_first_chunk::<2>()).ok_or(ControlError::Key)?;
    let kind = rest.first_chunk::<2>().ok_or(ControlError::Key)?;
    if i16::from_be_bytes(*version) < VERSION {
        return Err(ControlError::Key);
    }
    Ok(ControlKind::from_id(i16::from_be_bytes(*kind)))
}

/// The records of a control batch.
pub fn control_records<'a>(
    batch: &BatchView<'a>,
) -> Result<impl Iterator<Item = Result<ControlRecord<'a>, ControlError>> + use<'a>, ControlError> {
    if !batch.is_control() {
        return Err(ControlError::NotControl);
    }
    let header = batch.header();
    let records = batch.records().ok_or(ControlError::Compressed)?;
    Ok(records.map(move |record| {
        let record = record?;
        Ok(ControlRecord {
            kind: decode_key(record.key)?,
            offset: header.offset_at(record.offset_delta),
            timestamp: header.timestamp_at(record.timestamp_delta),
            value: record.value.unwrap_or(&[]),
        })
    }))
}

/// A transaction marker: how a transaction ended, and under which epoch of its coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndTransaction {
    pub committed: bool,
    pub coordinator_epoch: i32,
}

impl EndTransaction {
    const VALUE_SIZE: usize = 6;

    fn kind(self) -> ControlKind {
        if self.committed { ControlKind::Commit } else { ControlKind::Abort }
    }

    fn value(self) -> [u8; Self::VALUE_SIZE] {
        let mut value = [0; Self::VALUE_SIZE];
        value[..2].copy_from_slice(&VERSION.to_be_bytes());
        value[2..].copy_from_slice(&self.coordinator_epoch.to_be_bytes());
        value
    }

    /// The marker in a control record, `None` where it is of another kind.
    pub fn decode(record: &ControlRecord<'_>) -> Result<Option<EndTransaction>, ControlError> {
        let committed = match record.kind {
            ControlKind::Commit => true,
            ControlKind::Abort => false,
            _ => return Ok(None),
        };
        let (version, rest) = record.value.split_first_chunk::<2>().ok_or(ControlError::Marker)?;
        let epoch = rest.first_chunk::<4>().ok_or(ControlError::Marker)?;
        if i16::from_be_bytes(*version) < VERSION {
            return Err(ControlError::Marker);
        }
        Ok(Some(EndTransaction { committed, coordinator_epoch: i32::from_be_bytes(*epoch) }))
    }

    /// The marker of a stored batch, `None` where the batch holds no marker.
    pub fn from_batch(batch: &BatchView<'_>) -> Result<Option<EndTransaction>, ControlError> {
        if !batch.is_control() {
            return Ok(None);
        }
        match control_records(batch)?.next() {
            None => Ok(None),
            Some(record) => EndTransaction::decode(&record?),
        }
    }

    /// The batch of one marker, which takes one offset.
    pub fn build(self, producer_id: ProducerId, producer_epoch: ProducerEpoch, timestamp: WallMillis) -> BatchBuilder {
        let mut builder = BatchBuilder::new();
        builder.control(true).transactional(true).producer(BatchProducer {
            id: producer_id,
            epoch: producer_epoch,
            base_sequence: None,
        });
        builder.append(timestamp, Some(&self.kind().key()), Some(&self.value()), &[]);
        builder
    }
}

/// A control batch of the quorum: leader change, snapshot header and footer, version and voters.
pub fn quorum_batch<'a>(
    base_offset: Offset,
    epoch: LeaderEpoch,
    timestamp: WallMillis,
    records: impl IntoIterator<Item = (ControlKind, &'a [u8])>,
) -> Vec<u8> {
    let mut builder = BatchBuilder::new();
    builder.base_offset(base_offset).leader_epoch(epoch).control(true);
    for (kind, value) in records {
        builder.append(timestamp, Some(&kind.key()), Some(value), &[]);
    }
    builder.build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_round_trips_and_takes_one_offset() {
        for committed in [true, false] {
            let marker = EndTransaction { committed, coordinator_epoch: 12 };
            let bytes = marker.build(ProducerId(3), ProducerEpoch(1), WallMillis(8)).build();
            let view = BatchView::parse_whole(&bytes).expect("a good batch");
            assert!(view.is_control() && view.is_transactional());
            assert_eq!((view.records_count(), view.last_offset_delta()), (1, 0));
            assert_eq!(EndTransaction::from_batch(&view), Ok(Some(marker)));
        }
    }

    #[test]
    fn every_kind_has_its_number() {
        for id in -1..8 {
            let kind = ControlKind::from_id(id);
            assert_eq!(kind.id(), id);
            assert_eq!(decode_key(Some(&kind.key())), Ok(kind));
        }
        assert_eq!(ControlKind::from_id(7), ControlKind::Unknown(7));
    }

    #[test]
    fn what_is_no_control_record_is_refused() {
        assert_eq!(decode_key(None), Err(ControlError::Key));
        assert_eq!(decode_key(Some(&[0, 0, 0])), Err(ControlError::Key));
        assert_eq!(decode_key(Some(&[0xFF, 0xFF, 0, 0])), Err(ControlError::Key));
        // A later version of key and value is read as far as it is known.
        assert_eq!(decode_key(Some(&[0, 9, 0, 1, 7])), Ok(ControlKind::Commit));
        let record = |kind, value| ControlRecord { kind, offset: Offset(0), timestamp: WallMillis(0), value };
        assert_eq!(EndTransaction::decode(&record(ControlKind::Commit, &[0, 0, 0])), Err(ControlError::Marker));
        assert_eq!(EndTransaction::decode(&record(ControlKind::LeaderChange, &[])), Ok(None));
        let later = EndTransaction { committed: false, coordinator_epoch: 1 };
        assert_eq!(EndTransaction::decode(&record(ControlKind::Abort, &[0, 3, 0, 0, 0, 1, 9, 9])), Ok(Some(later)));
        let mut plain = BatchBuilder::new();
        let bytes = plain.append(WallMillis(1), None, None, &[]).build();
        let view = BatchView::parse_whole(&bytes).expect("a good batch");
        assert!(matches!(control_records(&view), Err(ControlError::NotControl)));
        assert_eq!(EndTransaction::from_batch(&view), Ok(None));
    }

    #[test]
    fn a_quorum_batch_carries_its_epoch() {
        let records = [(ControlKind::LeaderChange, &b"body"[..]), (ControlKind::KraftVoters, b"voters")];
        let bytes = quorum_batch(Offset(5), LeaderEpoch(3), WallMillis(9), records);
        let view = BatchView::parse_whole(&bytes).expect("a good batch");
        assert_eq!((view.partition_leader_epoch(), view.base_offset()), (LeaderEpoch(3), Offset(5)));
        let found: Vec<_> = control_records(&view).expect("control").collect::<Result<_, _>>().expect("good");
        assert_eq!(
            found.iter().map(|r| (r.kind, r.value, r.offset.0)).collect::<Vec<_>>(),
            [(ControlKind::LeaderChange, &b"body"[..], 5), (ControlKind::KraftVoters, &b"voters"[..], 6),]
        );
    }
}
