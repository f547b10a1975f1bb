//! Truncation: finding the cut and what was true there (rule 11). It may have to read: the stretch that is cut, and the
//! batch headers from the nearest producer snapshot on.

use crate::api::*;
use crate::locate::{End, Gathering, index_read};
use crate::partition::Partition;
use crate::partition::extent::Extent;
use crate::partition::producers::ProducerTable;
use crate::store::Store;
use arena::BufferRef;
use base::{Now, Offset, Position, WallMillis};
use batch::{BatchHeader, BatchView, EndTransaction, NO_TIMESTAMP};
use nvme_format::crc;
use nvme_format::index::IndexEntry;
use nvme_format::record::{Change, TransactionEnded, Truncated};

/// A cut on its way: what was true at `next`, the start of the first batch not looked at.
pub struct Truncation {
    to: Offset,
    next: Offset,
    position: u64,
    /// Batches below this only complete the cut stretch; the snapshot has their producers.
    producers_from: Offset,
    producers: ProducerTable,
    segment_largest: (WallMillis, Offset),
    /// The stretch that is cut: where it starts in the log, its first offset, its CRC up to `position`.
    stretch: Option<(u64, Offset, u32)>,
    extent_largest: (WallMillis, Offset),
    reading: bool,
    input: Option<BufferRef>,
}

impl Store {
    /// Cuts the log at `to`, which the log holds: every batch that reaches `to` or beyond is gone.
    pub fn truncate(&mut self, now: Now, slot: LogSlot, to: Offset) -> Result<TruncateOutcome, ChangeError> {
        if self.stopped.is_some() {
            return Err(ChangeError::Stopped);
        }
        let partition = self.partition(slot).ok_or(ChangeError::Unknown)?;
        if to < partition.log_start {
            return Err(ChangeError::OutOfRange);
        }
        if to >= partition.end {
            return Ok(TruncateOutcome::Done);
        }
        if !partition.pending.is_empty() || partition.truncation.is_some() {
            self.someone_waits = true;
            return Err(ChangeError::Pressure);
        }
        match self.start_truncation(slot, to) {
            Ok(truncation) => {
                let partition = self.partition_mut(slot).expect("it was there");
                partition.truncation = Some(Box::new(truncation));
            }
            Err(plan) => {
                // The index is not in memory: the start is tried again when it is.
                let partition = self.partition_mut(slot).expect("it was there");
                partition.truncation = Some(Box::new(Truncation::unstarted(to)));
                self.read_for_truncation(slot, plan);
            }
        }
        // Only this one goes on here: the ends of others are told by the turn.
        while self.step_truncation(slot) {}
        self.poll_reads(now);
        let running = self.partition(slot).is_some_and(|partition| partition.truncation.is_some());
        if running {
            self.truncations.insert(slot);
            return Ok(TruncateOutcome::Reading);
        }
        // The answer says it; the event is for those that had to wait.
        self.events.retain(|event| !matches!(event, LogEvent::Truncated { slot: done, .. } if *done == slot));
        Ok(TruncateOutcome::Done)
    }

    fn read_for_truncation(&mut self, slot: LogSlot, plan: ReadPlan) {
        if let Some(truncation) = self.partition_mut(slot).and_then(|partition| partition.truncation.as_mut()) {
            truncation.reading = true;
        }
        let ticket = self.read(plan);
        self.own_reads.insert(ticket, slot);
        // A read that the cache answers has its event already.
        let cached = self
            .events
            .iter()
            .position(|event| matches!(event, LogEvent::ReadDone { ticket: done, .. } if *done == ticket));
        if let Some(index) = cached
            && let LogEvent::ReadDone { result, .. } = self.events.remove(index)
        {
            self.own_reads.remove(&ticket);
            self.on_truncation_read(slot, result);
        }
    }

    pub(crate) fn on_truncation_read(&mut self, slot: LogSlot, result: Result<BufferRef, ReadError>) {
        let Some(partition) = self.partition_mut(slot) else { return };
        let Some(truncation) = partition.truncation.as_mut() else { return };
        truncation.reading = false;
        match result {
            // An index brings no bytes.
            Ok(bytes) => truncation.input = Some(bytes).filter(|bytes| !bytes.is_empty()),
            Err(ReadError::NoMemory) => {}
            Err(error) => {
                partition.truncation = None;
                self.truncations.remove(&slot);
                self.events.push(LogEvent::Truncated { slot, result: Err(error) });
            }
        }
    }

    fn start_truncation(&self, slot: LogSlot, to: Offset) -> Result<Truncation, ReadPlan> {
        self.partition(slot).expect("checked by the caller").start_truncation(slot, to)
    }

    pub(crate) fn poll_truncations(&mut self, now: Now) {
        for slot in self.truncations.clone() {
            while self.step_truncation(slot) {}
            let done = self.partition(slot).is_none_or(|partition| partition.truncation.is_none());
            if done {
                self.truncations.remove(&slot);
            }
        }
        self.poll_reads(now);
    }

    /// One step; says whether another can follow at once.
    fn step_truncation(&mut self, slot: LogSlot) -> bool {
        let Some(partition) = self.partitions.get_mut(slot.token()) else { return false };
        let Some(truncation) = partition.truncation.as_mut() else { return false };
        if truncation.reading {
            return false;
        }
        if truncation.is_unstarted() {
            let to = truncation.to;
            match partition.start_truncation(slot, to) {
                Ok(started) => **partition.truncation.as_mut().expect("it is there") = started,
                Err(plan) => self.read_for_truncation(slot, plan),
            }
            return true;
        }
        if let Some(bytes) = truncation.input.take() {
            let segments: Vec<Offset> = partition.segments.iter().map(|segment| segment.base).collect();
            truncation.walk(&bytes, &segments);
            return true;
        }
        let (next, to) = (truncation.next, truncation.to);
        if next >= to {
            return self.finish_truncation(slot);
        }
        let partition = self.partitions.get(slot.token()).expect("it is there");
        let mut gathering = Gathering::new(slot, partition, &self.cache, next, to, 1);
        let end = gathering.run();
        let parts = gathering.parts;
        match (end, parts.first()) {
            (End::NeedsRead(plan), _) => {
                self.read_for_truncation(slot, plan);
                true
            }
            (End::Done, None) => {
                // Bytes of the commit that is being built are looked at when it is closed.
                let ended = partition.truncation.as_ref().is_some_and(|t| t.position_reached(partition));
                ended && self.finish_truncation(slot)
            }
            (End::Done, Some(Part::Device(stretch))) => {
                self.read_for_truncation(slot, ReadPlan::Stretch(*stretch));
                true
            }
            (End::Done, Some(Part::Memory(bytes))) => {
                let bytes = bytes.clone();
                let partition = self.partitions.get_mut(slot.token()).expect("it is there");
                if let Some(truncation) = partition.truncation.as_mut() {
                    truncation.input = Some(bytes);
                }
                true
            }
        }
    }

    fn finish_truncation(&mut self, slot: LogSlot) -> bool {
        let Some(partition) = self.partitions.get_mut(slot.token()) else { return false };
        let at = partition.truncation.as_ref().map(|truncation| truncation.position);
        let cut = at.and_then(|at| partition.cut_extent(at));
        if let Some(plan) = cut.filter(|extent| extent.all_entries().is_none()).map(|extent| index_read(slot, extent)) {
            // Others pushed the index out meanwhile.
            self.read_for_truncation(slot, plan);
            return false;
        }
        let Some(truncation) = partition.truncation.take() else { return false };
        let truncated = truncation.result(partition);
        let change = Change::Truncated(truncated);
        match self.change(slot, change, Vec::new()) {
            Ok(()) => {
                let to = truncation.to;
                self.queue_copy_out(slot);
                self.recheckpoint(slot);
                self.events.push(LogEvent::Truncated { slot, result: Ok(to) });
            }
            Err(_) => {
                // No room in the ring: what was found stays true, for nothing else changes the partition meanwhile.
                if let Some(partition) = self.partitions.get_mut(slot.token()) {
                    partition.truncation = Some(truncation);
                }
            }
        }
        false
    }
}

impl Partition {
    /// The extent that a cut at this position leaves a part of.
    fn cut_extent(&self, at: u64) -> Option<&Extent> {
        self.extents.iter().find(|extent| extent.position < at && at < extent.end())
    }

    /// Where to start looking: at the nearest snapshot, or at the stretch that is cut where that is earlier.
    fn start_truncation(&self, slot: LogSlot, to: Offset) -> Result<Truncation, ReadPlan> {
        let snapshot = self.snapshots.iter().rev().find(|snapshot| snapshot.offset <= to);
        let first = self.extents.front();
        let oldest = (first.map_or(self.end, |e| e.base_offset), first.map_or(self.end_position, |e| e.position));
        let mut truncation = Truncation::unstarted(to);
        (truncation.next, truncation.position) = oldest;
        truncation.producers_from = truncation.next;
        if let Some(snapshot) = snapshot {
            if snapshot.position.0 >= truncation.position {
                (truncation.next, truncation.position) = (snapshot.offset, snapshot.position.0);
                truncation.producers_from = snapshot.offset;
            }
            truncation.producers = ProducerTable::from_states(snapshot.producers.iter().cloned());
            truncation.segment_largest = (snapshot.largest_timestamp, snapshot.offset_of_largest);
        }
        let Some(extent) = self.extent_of(to).and_then(|index| self.extents.get(index)) else {
            return Ok(truncation);
        };
        let entries = extent.all_entries().ok_or_else(|| index_read(slot, extent))?;
        let relative = to.0 - extent.base_offset.0;
        let at = |entry: &IndexEntry| (extent.position + u64::from(entry.position), entry.offset);
        let after = entries.partition_point(|entry| i64::from(entry.offset) < relative);
        // The stretch that holds the batch before the cut: an entry, or the open one.
        let open = extent.open.as_ref().filter(|open| open.base < to);
        let found = match open {
            Some(open) => Some((extent.position + open.start, open.base)),
            None => after.checked_sub(1).and_then(|index| entries.get(index)).map(|entry| {
                let group = entries.partition_point(|other| other.offset < entry.offset);
                let (position, offset) = at(entries.get(group).expect("within the list"));
                (position, Offset(extent.base_offset.0 + i64::from(offset)))
            }),
        };
        let before = match (open, found) {
            (Some(_), _) => entries.len(),
            (None, Some((position, _))) => {
                entries.partition_point(|entry| extent.position + u64::from(entry.position) < position)
            }
            (None, None) => 0,
        };
        truncation.extent_largest = match before.checked_sub(1).and_then(|index| entries.get(index)) {
            Some(entry) => {
                (WallMillis(entry.largest_timestamp), Offset(extent.base_offset.0 + i64::from(entry.offset_of_largest)))
            }
            None => (NO_TIMESTAMP, extent.base_offset),
        };
        if let Some((position, base)) = found {
            truncation.stretch = Some((position, base, extent.seed()));
            if position < truncation.position {
                (truncation.next, truncation.position) = (base, position);
            }
        }
        Ok(truncation)
    }
}

impl Truncation {
    fn unstarted(to: Offset) -> Truncation {
        Truncation {
            to,
            next: Offset(-1),
            position: 0,
            producers_from: Offset::ZERO,
            producers: ProducerTable::default(),
            segment_largest: (NO_TIMESTAMP, Offset::ZERO),
            stretch: None,
            extent_largest: (NO_TIMESTAMP, Offset::ZERO),
            reading: false,
            input: None,
        }
    }

    fn is_unstarted(&self) -> bool {
        self.next.0 < 0
    }

    /// Takes note of batches from `next` on, all of which stay. Of a batch in several stretches only the first is here.
    fn walk(&mut self, bytes: &[u8], segments: &[Offset]) {
        let mut at = 0;
        while at < bytes.len() && self.next < self.to {
            let Some(chunk) = bytes[at..].first_chunk() else { break };
            let Ok(header) = BatchHeader::from_bytes(chunk) else { break };
            if header.last_offset() >= self.to {
                break;
            }
            let view = BatchView::parse(&bytes[at..]).ok().map(|(view, _)| view);
            if header.last_offset() >= self.next {
                self.note(&header, view, segments);
            }
            at += header.size as usize;
        }
        // The batch at the cut reaches beyond it: the log ends before it.
        if at == 0 {
            self.next = self.to;
        }
    }

    fn note(&mut self, header: &BatchHeader, view: Option<BatchView<'_>>, segments: &[Offset]) {
        if let Some((start, _, crc)) = &mut self.stretch
            && self.position >= *start
        {
            if let Some(view) = view {
                *crc = crc::append(*crc, view.bytes());
            }
            if header.max_timestamp > self.extent_largest.0 {
                self.extent_largest = (header.max_timestamp, header.base_offset);
            }
        }
        if header.base_offset >= self.producers_from {
            if segments.contains(&header.base_offset) {
                self.segment_largest = (NO_TIMESTAMP, header.base_offset);
            }
            if header.max_timestamp > self.segment_largest.0 {
                self.segment_largest = (header.max_timestamp, header.base_offset);
            }
            self.producers.note(header);
            if let Some(Ok(Some(marker))) = view.map(|view| EndTransaction::from_batch(&view)) {
                self.producers.end_transaction(&TransactionEnded {
                    producer: header.producer_id,
                    epoch: header.producer_epoch,
                    coordinator_epoch: marker.coordinator_epoch,
                    marker: header.base_offset,
                    aborted: !marker.committed,
                    timestamp: header.max_timestamp,
                });
            }
        }
        self.position += u64::from(header.size);
        self.next = header.next_offset();
    }

    /// Whether the batch at `position` reaches the cut, or there is none.
    fn position_reached(&self, partition: &Partition) -> bool {
        if self.position >= partition.end_position {
            return true;
        }
        let tail = &partition.tail;
        tail.at_position(self.position).is_some_and(|index| tail.pieces[index].last >= self.to)
    }

    fn result(&self, partition: &Partition) -> Truncated {
        let (to, at) = (self.to, self.position);
        let mut truncated = Truncated {
            to,
            position: Position(at),
            entries: Vec::new(),
            extent_largest: self.extent_largest,
            segment_largest: self.segment_largest,
            producers: Vec::new(),
        };
        let changed = partition.producers.iter().filter(|state| state.last_offset >= to);
        truncated.producers = changed.filter_map(|state| self.producers.get(state.id)).cloned().collect();
        if let Some(extent) = partition.cut_extent(at) {
            let len = at - extent.position;
            let entries = extent.all_entries().expect("it was looked for before");
            let kept = entries.partition_point(|entry| entry.end() <= len);
            truncated.entries = (0..kept).filter_map(|index| entries.get(index)).copied().collect();
            let kept_end = truncated.entries.last().map_or(0, IndexEntry::end);
            if let Some((start, base, crc)) = self.stretch
                && kept_end < len
            {
                assert_eq!(start, extent.position + kept_end, "the cut stretch follows the kept ones");
                truncated.entries.push(IndexEntry {
                    offset: (base.0 - extent.base_offset.0) as u32,
                    position: kept_end as u32,
                    length: (len - kept_end) as u32,
                    crc,
                    largest_timestamp: self.extent_largest.0.0,
                    offset_of_largest: (self.extent_largest.1.0 - extent.base_offset.0) as u32,
                });
            }
        }
        truncated
    }
}
