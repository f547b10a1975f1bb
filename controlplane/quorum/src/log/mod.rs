//! The log as the quorum sees it: segments, epochs, the newest batches in memory, snapshots by name. It does no I/O: a
//! change adds the steps that bring the files after it, in an order in which a crash at any step leaves a loadable log.

mod change;
mod epochs;
mod segment;
mod tail;

pub(crate) use epochs::Epochs;
pub(crate) use segment::{BatchFacts, Segment};
pub(crate) use tail::{Tail, TailBatch};

use crate::disk::FileName;
use crate::ids::{OffsetAndEpoch, SnapshotId};
use base::{LeaderEpoch, Offset};
use bytes::Bytes;
use std::collections::BTreeMap;

/// Sizes and ages that shape the log on disk and in memory.
#[derive(Clone, Copy, Debug)]
pub struct LogLimits {
    /// Kafka's metadata.log.segment.bytes.
    pub segment_bytes: u64,
    /// Kafka's metadata.log.segment.ms.
    pub segment_age_ms: i64,
    /// A segment of this size also ends at a snapshot, so that the log before the snapshot can be removed.
    pub segment_bytes_at_snapshot: u64,
    /// How much of the newest committed log stays in memory for replicas that are nearly caught up.
    pub tail_bytes: usize,
}

impl Default for LogLimits {
    fn default() -> LogLimits {
        LogLimits {
            segment_bytes: 1 << 30,
            segment_age_ms: 7 * 24 * 3600 * 1000,
            segment_bytes_at_snapshot: 20 << 20,
            tail_bytes: 4 << 20,
        }
    }
}

/// What a snapshot's file is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotFacts {
    pub(crate) size: u64,
    /// The time of the last record that it covers, for retention.
    pub(crate) last_time: base::WallMillis,
}

/// How a fetch position relates to this log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FetchPosition {
    Valid,
    /// The largest epoch of this log not above the fetcher's, with its end: the fetcher cuts to it.
    Diverging(OffsetAndEpoch),
    /// What the fetcher needs is no longer in the log.
    Snapshot(SnapshotId),
}

/// Where batches from an offset on are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Located {
    Nothing,
    Memory(Vec<Bytes>),
    /// From `position` of the file on; the batch that holds the offset may begin a little later.
    File {
        file: FileName,
        position: u64,
        length: u32,
    },
}

#[derive(Debug)]
pub(crate) struct Log {
    pub(super) segments: Vec<Segment>,
    pub(super) epochs: Epochs,
    pub(super) tail: Tail,
    pub(super) snapshots: BTreeMap<SnapshotId, SnapshotFacts>,
    pub(super) start: Offset,
    pub(super) end: Offset,
    pub(super) limits: LogLimits,
    /// Changes whenever positions in files stop meaning what they meant: a read begun before is thrown away.
    pub(super) generation: u64,
}

impl Log {
    /// An empty log that begins at `start`; its first segment's files are to be created by `create_segment`.
    pub(crate) fn new(start: Offset, snapshots: BTreeMap<SnapshotId, SnapshotFacts>, limits: LogLimits) -> Log {
        Log {
            segments: Vec::new(),
            epochs: Epochs::default(),
            tail: Tail::default(),
            snapshots,
            start,
            end: start,
            limits,
            generation: 0,
        }
    }

    pub(crate) fn start(&self) -> Offset {
        self.start
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    pub(crate) fn epochs(&self) -> &Epochs {
        &self.epochs
    }

    /// The end offset and the epoch of the last record; of an empty log, those of the snapshot that it begins after.
    pub(crate) fn end(&self) -> OffsetAndEpoch {
        let epoch = self.epochs.latest().or(self.latest_snapshot().map(|id| id.epoch)).unwrap_or(LeaderEpoch(0));
        OffsetAndEpoch { offset: self.end, epoch }
    }

    pub(crate) fn latest_snapshot(&self) -> Option<SnapshotId> {
        self.snapshots.last_key_value().map(|(id, _)| *id)
    }

    pub(crate) fn earliest_snapshot(&self) -> Option<SnapshotId> {
        self.snapshots.first_key_value().map(|(id, _)| *id)
    }

    pub(crate) fn snapshot(&self, id: SnapshotId) -> Option<SnapshotFacts> {
        self.snapshots.get(&id).copied()
    }

    pub(crate) fn size(&self) -> u64 {
        self.segments.iter().map(|s| s.size).sum()
    }

    pub(crate) fn snapshots_size(&self) -> u64 {
        self.snapshots.values().map(|s| s.size).sum()
    }

    pub(crate) fn two_oldest_snapshots(&self) -> Option<(SnapshotId, SnapshotId)> {
        let mut ids = self.snapshots.keys();
        Some((*ids.next()?, *ids.next()?))
    }

    /// Whether a batch may end before `offset`: false only if the batches in memory show that none does.
    pub(crate) fn may_end_batch(&self, offset: Offset) -> bool {
        self.tail.get(offset).is_none_or(|batch| batch.facts.base == offset)
    }

    /// Lets go of batches that end before `below`, beyond the budget for readers that are nearly caught up.
    pub(crate) fn shed_tail(&mut self, below: Offset) {
        self.tail.shed(below, self.limits.tail_bytes);
    }

    /// The end of the largest epoch not above `epoch`, as Kafka answers it for the metadata log.
    pub(crate) fn end_of_epoch(&self, epoch: LeaderEpoch) -> OffsetAndEpoch {
        let end = self.epochs.end_of(epoch, self.end());
        match self.earliest_snapshot() {
            Some(earliest) if end.offset == earliest.offset && end.epoch == epoch => earliest,
            _ => end,
        }
    }

    /// What a fetcher at `offset`, whose last record has `epoch`, is told.
    pub(crate) fn validate(&self, offset: Offset, epoch: LeaderEpoch) -> FetchPosition {
        if self.start == Offset::ZERO && offset == Offset::ZERO && epoch == LeaderEpoch(0) {
            return FetchPosition::Valid;
        }
        if let (Some(earliest), Some(latest)) = (self.earliest_snapshot(), self.latest_snapshot()) {
            let before = offset < self.start
                || (offset == self.start && self.start == earliest.offset && epoch != earliest.epoch)
                || epoch < earliest.epoch;
            if before {
                return FetchPosition::Snapshot(latest);
            }
        }
        let end = self.end_of_epoch(epoch);
        if end.epoch != epoch || end.offset < offset { FetchPosition::Diverging(end) } else { FetchPosition::Valid }
    }

    /// Whole batches from the one that holds `offset` on, about `max_bytes` of them but always one.
    pub(crate) fn locate(&self, offset: Offset, max_bytes: u32) -> Located {
        if offset >= self.end || offset < self.start {
            return Located::Nothing;
        }
        if let Some(found) = self.tail.read(offset, max_bytes as usize) {
            return Located::Memory(found);
        }
        let at = self.segments.partition_point(|s| s.base <= offset);
        let segment = &self.segments[at.checked_sub(1).expect("the log begins at its first segment or later")];
        let position = match self.tail.position(offset) {
            Some((base, position)) if base == segment.base => position,
            _ => segment.position_before(offset),
        };
        let length = (segment.size - position).min(u64::from(max_bytes)) as u32;
        Located::File { file: FileName::Log(segment.base), position, length }
    }
}
