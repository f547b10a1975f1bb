//! What each kind of record does to a partition.

use super::extent::Extent;
use super::producers::Transactions;
use super::{Freed, Partition, SNAPSHOT_INTERVAL, SNAPSHOT_STATES_MAX, SNAPSHOTS_MAX};
use base::{Offset, Position, WallMillis};
use batch::{BatchHeader, NO_TIMESTAMP};
use nvme_format::blob::{AbortedRange, EndedTransaction, ProducerSnapshot, Segment};
use nvme_format::record::{Change, ExtentTaken, TransactionEnded, Truncated};
use std::collections::VecDeque;

pub fn empty_segment(base: Offset, position: Position) -> Segment {
    Segment {
        base,
        position,
        largest_timestamp: NO_TIMESTAMP,
        offset_of_largest: base,
        rolls_from: None,
        modified: WallMillis(0),
    }
}

impl From<&Extent> for Freed {
    fn from(extent: &Extent) -> Freed {
        Freed {
            address: extent.address,
            tenancy: extent.tenancy,
            described_until: extent.described_until,
            descriptions: extent.descriptions,
        }
    }
}

impl Partition {
    /// A batch was appended at the log's end, of which its bytes are the caller's business. `rolls` starts a segment
    /// with it.
    pub fn note_batch(&mut self, header: &BatchHeader, rolls: bool, appended_at: WallMillis) {
        let position = Position(self.end_position);
        if rolls {
            self.segments.push_back(empty_segment(header.base_offset, position));
        }
        let newest = self.snapshots.back().map(|snapshot| snapshot.position.0);
        let due = newest.is_none_or(|at| rolls || self.end_position - at >= SNAPSHOT_INTERVAL);
        if due && newest != Some(self.end_position) {
            self.take_snapshot(header.base_offset);
        }
        let segment = self.segments.back_mut().expect("a log has a segment");
        if header.max_timestamp > segment.largest_timestamp {
            segment.largest_timestamp = header.max_timestamp;
            segment.offset_of_largest = header.base_offset;
        }
        segment.rolls_from.get_or_insert(header.max_timestamp);
        segment.modified = segment.modified.max(appended_at);
        self.epochs.start(header.partition_leader_epoch, header.base_offset);
        self.producers.note(header);
        self.largest_batch = self.largest_batch.max(header.size);
        self.end = header.next_offset();
        self.end_position += u64::from(header.size);
    }

    fn take_snapshot(&mut self, offset: Offset) {
        let segment = self.segments.back().expect("a log has a segment");
        self.snapshots.push_back(ProducerSnapshot {
            offset,
            position: Position(self.end_position),
            largest_timestamp: segment.largest_timestamp,
            offset_of_largest: segment.offset_of_largest,
            producers: self.producers.states(),
        });
        self.prune_snapshots();
    }

    /// The newest few stay, and those at a segment's base: once the segments before it are gone, nothing else tells
    /// what producers did there.
    fn prune_snapshots(&mut self) {
        let states: usize = self.snapshots.iter().map(|snapshot| snapshot.producers.len()).sum();
        let older = self.snapshots.len().saturating_sub(SNAPSHOTS_MAX);
        let at_base = |snapshot: &ProducerSnapshot| self.segments.iter().any(|segment| segment.base == snapshot.offset);
        let between = (0..older).find(|index| !at_base(&self.snapshots[*index]));
        if let Some(index) = between.or((older > 1 && states > SNAPSHOT_STATES_MAX).then_some(1)) {
            self.snapshots.remove(index);
        }
    }

    /// Applies a record that is not an append; gives what it freed.
    pub fn apply(&mut self, change: &Change<'_>) -> Vec<Freed> {
        match change {
            Change::AppendInline { .. } | Change::AppendDone { .. } => {
                unreachable!("appends have functions of their own")
            }
            Change::Created { created_at } => self.created_at = *created_at,
            Change::Deleted => return self.drop_everything(self.end),
            Change::ExtentTaken(taken) => self.take_extent(taken),
            Change::ExtentFreed { tenancy, .. } => {
                let freed = self.extents.iter().filter(|extent| extent.tenancy == *tenancy).map(Freed::from).collect();
                self.extents.retain(|extent| extent.tenancy != *tenancy);
                return freed;
            }
            Change::Truncated(truncated) => return self.cut(truncated),
            Change::LogStartMoved { to } => return self.move_log_start(*to),
            Change::Restarted { at } => return self.drop_everything(*at),
            Change::EpochStarted { epoch, offset } => self.epochs.start(*epoch, *offset),
            Change::HighWatermark { offset } => self.advance_high_watermark(*offset),
            Change::TransactionBegun { producer, first, .. } => self.producers.begin(*producer, *first),
            Change::TransactionEnded(ended) => self.end_transaction(ended),
            Change::Aborted(range) => self.transactions.aborted.push(*range),
            Change::DirtyOffset { offset } => self.dirty_offset = Some(*offset),
            Change::Moved { .. } => {}
            Change::LossAccepted { end } => {
                self.suspect = None;
                self.high_watermark = self.high_watermark.min(*end);
            }
            Change::GivenUp { tenancy, ranges } => {
                if let Some(extent) = self.extent_mut(*tenancy) {
                    extent.give_up(ranges);
                }
            }
        }
        Vec::new()
    }

    pub fn take_extent(&mut self, taken: &ExtentTaken) {
        if let Some(last) = self.extents.back_mut() {
            last.seal();
            // One that stayed empty was taken for a batch that is not there, perhaps behind a gap of offsets. They stay in
            // order.
            last.base_offset = last.base_offset.min(taken.base_offset);
        }
        let extent = Extent::new(self.id, taken.extent, taken.tenancy, taken.position.0, taken.base_offset);
        self.extents.push_back(extent);
    }

    pub fn end_transaction(&mut self, ended: &TransactionEnded) {
        let Some(first) = self.producers.end_transaction(ended) else { return };
        self.transactions.ended.push(EndedTransaction { first, marker: ended.marker });
        if ended.aborted {
            let last_stable = self.producers.first_open().unwrap_or(Offset(ended.marker.0 + 1));
            let range = AbortedRange { producer: ended.producer, first, last: ended.marker, last_stable };
            self.transactions.aborted.push(range);
        }
    }

    /// It never falls but by a cut, and never passes the end.
    pub fn advance_high_watermark(&mut self, offset: Offset) {
        let offset = offset.min(self.end);
        if offset > self.high_watermark {
            self.high_watermark = offset;
            self.transactions.ended.retain(|ended| ended.marker >= offset);
        }
    }

    fn drop_everything(&mut self, at: Offset) -> Vec<Freed> {
        let freed = self.extents.iter().map(Freed::from).collect();
        self.extents.clear();
        self.segments = VecDeque::from([empty_segment(at, Position(self.end_position))]);
        self.tail.pieces.clear();
        self.snapshots.clear();
        self.epochs.clear();
        self.producers = Default::default();
        self.transactions = Transactions::default();
        self.log_start = at;
        self.end = at;
        self.durable = at;
        self.high_watermark = at;
        self.dirty_offset = None;
        freed
    }

    /// Moves the log's start and gives up what lies wholly before it.
    pub fn move_log_start(&mut self, to: Offset) -> Vec<Freed> {
        if to <= self.log_start {
            return Vec::new();
        }
        self.log_start = to;
        while self.segments.len() > 1 && self.segments[1].base <= to {
            self.segments.pop_front();
        }
        if to >= self.end {
            self.segments = VecDeque::from([empty_segment(to, Position(self.end_position))]);
            if let Some(last) = self.extents.back_mut() {
                last.seal();
            }
            self.snapshots.clear();
            self.take_snapshot(to);
        }
        let first = self.segments[0].position.0;
        let mut freed = Vec::new();
        while self.extents.front().is_some_and(|extent| extent.sealed && extent.end() <= first) {
            let extent = self.extents.pop_front().expect("there is a first one");
            freed.push(Freed::from(&extent));
        }
        // What lies in an extent that stays may be a part of a block that is yet to be written.
        let kept = self.extents.front().map_or(self.end_position, |extent| extent.position);
        while self.tail.pieces.front().is_some_and(|piece| piece.end() <= kept) {
            self.tail.pieces.pop_front();
        }
        self.epochs.trim(to);
        self.transactions.aborted.retain(|range| range.last >= to);
        while self.snapshots.len() > 1 && self.snapshots[1].offset <= to {
            self.snapshots.pop_front();
        }
        self.high_watermark = self.high_watermark.max(to);
        if let Some(dirty) = &mut self.dirty_offset {
            *dirty = (*dirty).max(to);
        }
        freed
    }

    /// Removes everything from the cut on (rule 11).
    fn cut(&mut self, cut: &Truncated) -> Vec<Freed> {
        let at = cut.position.0;
        let mut freed = Vec::new();
        while self.extents.back().is_some_and(|extent| extent.position >= at) {
            let extent = self.extents.pop_back().expect("there is a last one");
            freed.push(Freed::from(&extent));
        }
        if let Some(extent) = self.extents.back_mut() {
            if extent.end() > at {
                extent.cut(at - extent.position, &cut.entries, cut.extent_largest);
            } else {
                extent.seal();
            }
        }
        while self.segments.len() > 1 && self.segments.back().is_some_and(|segment| segment.base >= cut.to) {
            self.segments.pop_back();
        }
        let segment = self.segments.back_mut().expect("a log has a segment");
        if cut.to <= segment.base {
            *segment = empty_segment(segment.base, segment.position);
        } else {
            (segment.largest_timestamp, segment.offset_of_largest) = cut.segment_largest;
        }
        self.tail.cut(at);
        self.end = cut.to;
        self.end_position = at;
        self.durable = self.durable.min(cut.to);
        self.epochs.cut(cut.to);
        self.producers.cut(cut.to, &cut.producers);
        self.transactions.aborted.retain(|range| range.last < cut.to);
        self.transactions.ended.retain(|ended| ended.marker < cut.to);
        self.snapshots.retain(|snapshot| snapshot.offset <= cut.to);
        self.high_watermark = self.high_watermark.min(cut.to);
        if let Some(dirty) = &mut self.dirty_offset {
            *dirty = (*dirty).min(cut.to);
        }
        freed
    }

    /// Whether a batch starts a new segment, by Kafka's rules.
    pub fn rolls(&self, header: &BatchHeader) -> bool {
        let segment = self.segments.back().expect("a log has a segment");
        let size = self.end_position - segment.position.0;
        if size == 0 {
            return false;
        }
        let by_size = size + u64::from(header.size) > self.config.segment_bytes;
        let by_age = match (self.config.segment_age, segment.rolls_from) {
            (Some(age), Some(from)) => {
                let age = i64::try_from(age.as_millis()).unwrap_or(i64::MAX).saturating_sub(self.jitter.0);
                header.max_timestamp.0.saturating_sub(from.0) > age
            }
            _ => false,
        };
        let relative = header.last_offset().0.saturating_sub(segment.base.0);
        by_size || by_age || i32::try_from(relative).is_err()
    }
}
