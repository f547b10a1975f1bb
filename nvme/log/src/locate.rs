//! Where the batches of an offset are: memory, device, or behind a read that must come first.

use crate::api::*;
use crate::cache::ReadCache;
use crate::partition::Partition;
use crate::partition::extent::{EntryList, Extent};
use crate::store::Store;
use arena::BufferRef;
use base::{Now, Offset, WallMillis};
use batch::{BatchHeader, BatchView};
use nvme_format::index::IndexEntry;
use std::ops::Range;

/// What is being collected.
pub(crate) struct Gathering<'a> {
    slot: LogSlot,
    partition: &'a Partition,
    cache: &'a ReadCache,
    from: Offset,
    upper: Offset,
    max_bytes: usize,
    pub(crate) parts: Vec<Part>,
    /// The position of the first byte that was gathered.
    start: Option<u64>,
    bytes: usize,
}

/// Why gathering goes no further.
pub(crate) enum End {
    Done,
    NeedsRead(ReadPlan),
}

impl Store {
    /// The batches from the one that contains `from`, all wholly below `upper`, of at most `max_bytes` (the first is
    /// given whole however large it is).
    pub fn locate(&mut self, now: Now, slot: LogSlot, from: Offset, upper: Offset, max_bytes: usize) -> Located {
        self.locate_placed(now, slot, from, upper, max_bytes).0
    }

    /// The same, and the position in the log of what was found.
    pub fn locate_placed(
        &mut self,
        now: Now,
        slot: LogSlot,
        from: Offset,
        upper: Offset,
        max_bytes: usize,
    ) -> (Located, LogPosition) {
        self.gather(now, slot, from, upper, max_bytes, |partition| partition.log_start)
    }

    /// As `locate`, also before the log's start: what the oldest segment still holds of deleted records.
    pub fn locate_kept(&mut self, now: Now, slot: LogSlot, from: Offset, upper: Offset, max_bytes: usize) -> Located {
        self.gather(now, slot, from, upper, max_bytes, |partition| partition.segments[0].base).0
    }

    /// `first` says from where on records count.
    fn gather(
        &mut self,
        now: Now,
        slot: LogSlot,
        from: Offset,
        upper: Offset,
        max_bytes: usize,
        first: impl FnOnce(&Partition) -> Offset,
    ) -> (Located, LogPosition) {
        let nowhere = LogPosition(0);
        let Some(partition) = self.partition(slot) else { return (Located::OutOfRange, nowhere) };
        if from < first(partition) || from > partition.end {
            return (Located::OutOfRange, nowhere);
        }
        let upper = upper.min(partition.end);
        if from >= upper {
            return (Located::Nothing, nowhere);
        }
        let mut gathering = Gathering::new(slot, partition, &self.cache, from, upper, max_bytes);
        match gathering.run() {
            End::NeedsRead(plan) => (Located::NeedsRead(plan), nowhere),
            End::Done if gathering.parts.is_empty() => (Located::Nothing, nowhere),
            End::Done => {
                let start = gathering.start.expect("what was gathered stands somewhere");
                let parts = gathering.parts;
                self.idle.used = true;
                self.note_descriptions(now, slot, &parts);
                (Located::Found(parts), LogPosition(start))
            }
        }
    }

    pub(crate) fn note_descriptions(&mut self, now: Now, slot: LogSlot, parts: &[Part]) {
        let until = now.monotonic + self.options.description_held_max;
        for part in parts {
            let Part::Device(stretch) = part else { continue };
            let extent = self.partition_mut(slot).and_then(|partition| partition.extent_mut(stretch.tenancy));
            if let Some(extent) = extent {
                extent.described_until = Some(until);
                extent.descriptions += 1;
            }
        }
    }

    /// From where a search by time has to look: the first batch that reaches `at` is the first that does from the
    /// offset given on.
    pub fn locate_time(&self, slot: LogSlot, at: WallMillis) -> TimeLocated {
        let Some(partition) = self.partition(slot) else { return TimeLocated::Nothing };
        let start = |base: Offset| TimeLocated::From(base.max(partition.log_start));
        let first = partition.extent_of(partition.log_start).unwrap_or(0);
        for (number, extent) in partition.extents.iter().enumerate().skip(first) {
            if extent.largest.0 < at || extent.len == 0 {
                continue;
            }
            let Some(entries) = extent.entries_used(&self.cache) else {
                return TimeLocated::NeedsRead(index_read(slot, extent));
            };
            let reached = entries.partition_point(|entry| entry.largest_timestamp < at.0);
            let base = match (entries.get(reached), &extent.open) {
                (Some(entry), _) => Offset(extent.base_offset.0 + i64::from(entry.offset)),
                (None, Some(open)) => open.base,
                (None, None) => extent.base_offset,
            };
            let next = partition.extents.get(number + 1).map_or(partition.end, |next| next.base_offset);
            // What reached it may be records before the log's start, and then the rest of the extent has to be looked
            // through; one that lies wholly before it is not there at all.
            if next > partition.log_start {
                return start(base);
            }
        }
        TimeLocated::Nothing
    }

    /// The largest timestamp of the batches below `upper`, with the base offset of the first that has it: what stands above
    /// may have a larger one. An index that is not in memory has to be read first.
    pub fn largest_timestamp_below(
        &self,
        slot: LogSlot,
        upper: Offset,
    ) -> Result<Option<(WallMillis, Offset)>, ReadPlan> {
        let Some(partition) = self.partition(slot) else { return Ok(None) };
        let mut best: Option<(WallMillis, Offset)> = None;
        let mut crossing = None;
        for segment in &partition.segments {
            if segment.offset_of_largest >= upper {
                crossing = Some(segment.base);
                break;
            }
            consider(&mut best, segment.largest_timestamp, segment.offset_of_largest);
        }
        let Some(from) = crossing else { return Ok(best) };
        let first = partition.extent_of(from).unwrap_or(0);
        for extent in partition.extents.iter().skip(first).take_while(|extent| extent.base_offset < upper) {
            let below = |(time, at): (WallMillis, Offset), best: &mut _| {
                if from <= at && at < upper {
                    consider(best, time, at);
                }
            };
            if extent.largest.1 < upper {
                below(extent.largest, &mut best);
                continue;
            }
            let entries = extent.entries_used(&self.cache).ok_or_else(|| index_read(slot, extent))?;
            let largest_of = |entry: &IndexEntry| Offset(extent.base_offset.0 + i64::from(entry.offset_of_largest));
            let count = entries.partition_point(|entry| largest_of(entry) < upper);
            let last = count.checked_sub(1).and_then(|index| entries.get(index));
            if let Some(entry) = last {
                below((WallMillis(entry.largest_timestamp), largest_of(entry)), &mut best);
            }
            // Of the stretch that reaches beyond `upper` some batches may lie below it.
            let walked = extent.position + last.map_or(0, IndexEntry::end);
            let crossing = entries.get(count);
            if crossing.is_some_and(|entry| Offset(extent.base_offset.0 + i64::from(entry.offset)) >= upper) {
                continue;
            }
            match crossing {
                // The log has gone on since `upper` was its watermark, and the tail's pieces have left memory.
                Some(entry) if partition.tail.at_position(walked).is_none() => {
                    if extent.is_given_up(u64::from(entry.position)) {
                        continue;
                    }
                    let stretch = stretch_of(slot, extent, entry);
                    let bytes = self.cache.get(&stretch).ok_or(ReadPlan::Stretch(stretch))?;
                    let mut rest = &bytes[..];
                    while let Ok((view, after)) = BatchView::parse(rest) {
                        below((view.header().max_timestamp, view.header().base_offset), &mut best);
                        rest = after;
                    }
                }
                _ => {
                    let pieces = &partition.tail.pieces;
                    let start = pieces.partition_point(|piece| piece.end() <= walked);
                    for piece in pieces.iter().skip(start).take_while(|piece| piece.last < upper) {
                        let header = piece.ready().and_then(|bytes| BatchHeader::from_bytes(bytes.first_chunk()?).ok());
                        if let Some(header) = header.filter(|_| !piece.is_rest) {
                            below((header.max_timestamp, header.base_offset), &mut best);
                        }
                    }
                }
            }
        }
        Ok(best)
    }
}

fn consider(best: &mut Option<(WallMillis, Offset)>, time: WallMillis, at: Offset) {
    if time.0 >= 0 && best.is_none_or(|(known, _)| time > known) {
        *best = Some((time, at));
    }
}

pub(crate) fn stretch_of(slot: LogSlot, extent: &Extent, entry: &IndexEntry) -> Stretch {
    Stretch {
        slot,
        extent: extent.address,
        tenancy: extent.tenancy,
        position: entry.position,
        length: entry.length,
        crc: entry.crc,
        seed: extent.seed(),
    }
}

pub(crate) fn index_read(slot: LogSlot, extent: &Extent) -> ReadPlan {
    let place = extent.index.expect("entries that are not in memory are in index blocks");
    ReadPlan::Index(IndexRead {
        slot,
        extent: extent.address,
        tenancy: extent.tenancy,
        block: place.block,
        entries: place.entries,
    })
}

impl<'a> Gathering<'a> {
    pub(crate) fn new(
        slot: LogSlot,
        partition: &'a Partition,
        cache: &'a ReadCache,
        from: Offset,
        upper: Offset,
        max_bytes: usize,
    ) -> Gathering<'a> {
        Gathering { slot, partition, cache, from, upper, max_bytes, parts: Vec::new(), start: None, bytes: 0 }
    }

    pub(crate) fn run(&mut self) -> End {
        let tail = &self.partition.tail;
        if let Some(index) = tail.at_offset(self.from) {
            let piece = &tail.pieces[index];
            let certain = piece.base <= self.from || index > 0;
            if !piece.is_rest && certain {
                self.gather_memory(index);
                return End::Done;
            }
        }
        self.gather_device()
    }

    fn is_full(&self, len: usize) -> bool {
        self.bytes > 0 && self.bytes + len > self.max_bytes
    }

    fn push(&mut self, position: u64, part: Part) {
        self.start.get_or_insert(position);
        self.bytes += part.len();
        self.parts.push(part);
    }

    fn gather_memory(&mut self, index: usize) {
        for piece in self.partition.tail.pieces.iter().skip(index) {
            let Some(bytes) = piece.ready() else { return };
            if piece.is_rest || piece.last >= self.upper || self.is_full(bytes.len()) {
                return;
            }
            self.push(piece.position, Part::Memory(bytes.clone()));
        }
    }

    fn gather_device(&mut self) -> End {
        let first = self.partition.extent_of(self.from).unwrap_or(0);
        for (number, extent) in self.partition.extents.iter().enumerate().skip(first) {
            if extent.is_lost() && !self.parts.is_empty() {
                return End::Done;
            }
            let Some(entries) = extent.entries_used(self.cache) else {
                // What was found is answered first: two indexes that push each other out would never both be there.
                return if self.parts.is_empty() { End::NeedsRead(index_read(self.slot, extent)) } else { End::Done };
            };
            let index = if number == first { self.start_in(extent, entries) } else { 0 };
            match self.gather_extent(extent, entries, index) {
                Ok(true) => {}
                Ok(false) => return End::Done,
                Err(plan) => return End::NeedsRead(plan),
            }
        }
        End::Done
    }

    /// The first entry of the stretch (or of the large batch) that may hold the offset.
    fn start_in(&self, extent: &Extent, entries: EntryList<'_>) -> usize {
        let relative = self.from.0.saturating_sub(extent.base_offset.0);
        let after = entries.partition_point(|entry| i64::from(entry.offset) <= relative);
        match after.checked_sub(1).and_then(|index| entries.get(index)) {
            Some(found) => entries.partition_point(|entry| entry.offset < found.offset),
            None => 0,
        }
    }

    fn stretch(&self, extent: &Extent, entry: &IndexEntry) -> Stretch {
        stretch_of(self.slot, extent, entry)
    }

    /// Gathers from an entry on; says whether the next extent follows, or what has to be read first.
    fn gather_extent(&mut self, extent: &Extent, entries: EntryList<'_>, mut index: usize) -> Result<bool, ReadPlan> {
        while let Some(first) = entries.get(index).copied() {
            let end = entries.partition_point(|entry| entry.offset <= first.offset);
            let base = Offset(extent.base_offset.0 + i64::from(first.offset));
            if base >= self.upper {
                return Ok(false);
            }
            if extent.is_given_up(u64::from(first.position)) {
                if !self.parts.is_empty() {
                    // What is gathered stands together in the log.
                    return Ok(false);
                }
                index = end;
                continue;
            }
            let next = match entries.get(end) {
                Some(entry) => Offset(extent.base_offset.0 + i64::from(entry.offset)),
                None => self.end_of_entries(extent),
            };
            let last = *entries.get(end - 1).expect("the group is not empty");
            let len = (last.end() - u64::from(first.position)) as usize;
            let one_batch = end - index > 1;
            let starts_here = !self.parts.is_empty() || base >= self.from || one_batch;
            let fits = next <= self.upper && (len <= self.max_bytes || one_batch);
            if self.parts.is_empty() && one_batch && base < self.from && !self.reaches(extent, &first)? {
                index = end;
                continue;
            }
            if let Some(plan) = self.unreadable_of(extent, entries, index..end) {
                // What precedes it is answered; whoever begins with it is told how a new attempt went.
                return if self.parts.is_empty() { Err(plan) } else { Ok(false) };
            }
            if self.parts.is_empty() && !(starts_here && fits) {
                if one_batch && next > self.upper {
                    return Ok(false);
                }
                if !self.walk(extent, &first)? {
                    return Ok(false);
                }
            } else if next > self.upper || self.is_full(len) || !self.push_group(extent, entries, index, end) {
                return Ok(false);
            }
            index = end;
        }
        if extent.open.is_none() {
            return Ok(true);
        }
        // Behind the closed stretches the rest is in memory.
        let open = extent.open.as_ref().map_or(extent.len, |open| open.start);
        if let Some(piece) = self.partition.tail.at_position(extent.position + open) {
            let offset = self.partition.tail.pieces.iter().skip(piece).position(|piece| piece.last >= self.from);
            if let Some(skip) = offset {
                self.gather_memory(piece + skip);
            }
        }
        Ok(false)
    }

    /// The first stretch of a group whose last read failed.
    fn unreadable_of(&self, extent: &Extent, entries: EntryList<'_>, group: Range<usize>) -> Option<ReadPlan> {
        let mut group = group.map(|index| entries.get(index).expect("within the list"));
        let bad = group.find(|entry| self.cache.is_unreadable(extent.tenancy, entry.position))?;
        Some(ReadPlan::Stretch(self.stretch(extent, bad)))
    }

    /// Whether the large batch that starts with this entry holds the wanted offset: it may lie in a gap behind it.
    fn reaches(&self, extent: &Extent, entry: &IndexEntry) -> Result<bool, ReadPlan> {
        let stretch = self.stretch(extent, entry);
        let mut memory = Vec::new();
        let bytes = match self.cache.get(&stretch) {
            Some(bytes) => bytes.clone(),
            None if entry.end() <= extent.written() => return Err(ReadPlan::Stretch(stretch)),
            None => {
                let position = extent.position + u64::from(entry.position);
                self.memory_range(position, entry.length, &mut memory);
                match memory.first() {
                    Some(Part::Memory(bytes)) => bytes.clone(),
                    _ => return Ok(true),
                }
            }
        };
        let header = bytes.first_chunk().and_then(|bytes| BatchHeader::from_bytes(bytes).ok());
        Ok(header.is_none_or(|header| header.last_offset() >= self.from))
    }

    fn end_of_entries(&self, extent: &Extent) -> Offset {
        if let Some(open) = &extent.open {
            return open.base;
        }
        let next = self.partition.extents.partition_point(|other| other.position <= extent.position);
        // The next may have been taken for a batch behind a gap, which was lost then: it begins beyond the log's end.
        let end = self.partition.end;
        self.partition.extents.get(next).map_or(end, |next| next.base_offset.min(end))
    }

    /// The stretches of a group, those that cannot be read yet from memory; false where they are not there either.
    fn push_group(&mut self, extent: &Extent, entries: EntryList<'_>, from: usize, to: usize) -> bool {
        let written = extent.written();
        let mut parts = Vec::new();
        for index in from..to {
            let entry = entries.get(index).expect("within the list");
            if entry.end() <= written {
                parts.push(Part::Device(self.stretch(extent, entry)));
                continue;
            }
            if !self.memory_range(extent.position + u64::from(entry.position), entry.length, &mut parts) {
                return false;
            }
        }
        let mut position = extent.position + u64::from(entries.get(from).expect("within the list").position);
        for part in parts {
            let len = part.len() as u64;
            self.push(position, part);
            position += len;
        }
        true
    }

    fn memory_range(&self, from: u64, len: u32, parts: &mut Vec<Part>) -> bool {
        let (mut at, end) = (from, from + u64::from(len));
        let Some(mut index) = self.partition.tail.at_position(at) else { return false };
        while at < end {
            let Some(piece) = self.partition.tail.pieces.get(index) else { return false };
            let Some(bytes) = piece.ready().filter(|_| piece.position <= at) else { return false };
            let (start, stop) = ((at - piece.position) as usize, (end.min(piece.end()) - piece.position) as usize);
            parts.push(Part::Memory(bytes.slice(start..stop)));
            at = piece.end();
            index += 1;
        }
        true
    }

    /// Goes through the batches of one stretch, whose bytes are in the cache or in memory; says whether what follows it
    /// may be gathered too.
    fn walk(&mut self, extent: &Extent, entry: &IndexEntry) -> Result<bool, ReadPlan> {
        let stretch = self.stretch(extent, entry);
        let position = extent.position + u64::from(entry.position);
        let bytes = match self.cache.get(&stretch) {
            Some(bytes) => bytes.clone(),
            None if entry.end() <= extent.written() => return Err(ReadPlan::Stretch(stretch)),
            None => {
                if let Some(index) = self.partition.tail.at_position(position) {
                    let pieces = self.partition.tail.pieces.iter().skip(index);
                    let skip = pieces.take_while(|piece| piece.last < self.from).count();
                    self.gather_memory(index + skip);
                }
                return Ok(false);
            }
        };
        self.walk_bytes(position, &bytes)
    }

    fn walk_bytes(&mut self, position: u64, bytes: &BufferRef) -> Result<bool, ReadPlan> {
        let (mut at, mut from, mut more) = (0, None, true);
        while let Ok((view, _)) = BatchView::parse(&bytes[at..]) {
            let (last, size) = (view.header().last_offset(), view.size());
            let taken = from.map_or(0, |from: usize| at - from);
            if last >= self.from {
                if last >= self.upper || (taken > 0 && taken + size > self.max_bytes) {
                    more = false;
                    break;
                }
                from.get_or_insert(at);
            }
            at += size;
        }
        if let Some(from) = from {
            self.push(position + from as u64, Part::Memory(bytes.slice(from..at)));
        }
        Ok(more && self.bytes < self.max_bytes)
    }
}
