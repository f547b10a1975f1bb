//! An extent of a partition: how full it is, what of it the device was given, and its sparse index.

use crate::cache::{CachedIndex, ReadCache};
use base::{BLOCK_SIZE, Monotonic, Offset, PartitionId, Tenancy, WallMillis};
use batch::{BatchHeader, NO_TIMESTAMP};
use nvme_format::blob::{ExtentState, GivenUp, IndexPlace};
use nvme_format::index::{IndexEntry, index_blocks};
use nvme_format::{ExtentAddress, crc};

const BLOCK: u64 = BLOCK_SIZE as u64;
/// A stretch is closed once it has this many bytes.
pub const STRETCH_TARGET: u64 = 8 * 1024;
/// No stretch is longer; a larger batch has several.
pub const STRETCH_MAX: u64 = 64 * 1024;

/// The stretch that still takes batches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenStretch {
    pub start: u64,
    pub base: Offset,
    pub crc: u32,
}

#[derive(Clone, Debug)]
pub struct Extent {
    pub address: ExtentAddress,
    pub tenancy: Tenancy,
    /// Where its first byte stands in the log.
    pub position: u64,
    pub base_offset: Offset,
    /// Bytes of batches.
    pub len: u64,
    pub sealed: bool,
    pub largest: (WallMillis, Offset),
    /// Entries that no index block holds; before them stand `index.entries` that one does.
    pub entries: Vec<IndexEntry>,
    pub open: Option<OpenStretch>,
    pub index: Option<IndexPlace>,
    /// What the index blocks hold, while the cache has it.
    pub cached: Option<CachedIndex>,
    pub index_write: IndexWrite,
    /// Whole groups of entries whose bytes cannot be read any more, in order: readers go on behind them.
    pub given_up: Vec<GivenUp>,
    /// Bytes from the start that were given to the device in whole blocks.
    pub submitted: u64,
    in_flight: Vec<(u64, u64)>,
    /// Ranges beyond `submitted` that are on the device already (met in a replay only).
    direct: Vec<(u64, u64)>,
    /// Until when a reader may hold a description of it, and how many do.
    pub described_until: Option<Monotonic>,
    pub descriptions: u32,
    seed: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexWrite {
    NotYet,
    InFlight,
    /// A cut came while it was in flight: what it wrote is not the index.
    Void,
    Done,
    /// The extent has no room for another copy: the entries stay in memory and in the checkpoint.
    NoRoom,
}

impl Extent {
    pub fn new(
        partition: PartitionId,
        address: ExtentAddress,
        tenancy: Tenancy,
        position: u64,
        base_offset: Offset,
    ) -> Extent {
        Extent {
            address,
            tenancy,
            position,
            base_offset,
            len: 0,
            sealed: false,
            largest: (NO_TIMESTAMP, base_offset),
            entries: Vec::new(),
            open: None,
            index: None,
            cached: None,
            index_write: IndexWrite::NotYet,
            given_up: Vec::new(),
            submitted: 0,
            in_flight: Vec::new(),
            direct: Vec::new(),
            described_until: None,
            descriptions: 0,
            seed: crc::stretch_seed(partition, address.start, tenancy),
        }
    }

    pub fn end(&self) -> u64 {
        self.position + self.len
    }

    pub fn seed(&self) -> u32 {
        self.seed
    }

    /// Whether a batch fits, with the index that the extent will then need.
    pub fn fits(&self, header: &BatchHeader, end_offset: Offset) -> bool {
        let entries = self.entries.len() as u64 + 3 + u64::from(header.size) / STRETCH_MAX;
        let data = (self.len + u64::from(header.size)).div_ceil(BLOCK);
        let base = if self.len == 0 { header.base_offset } else { self.base_offset };
        let relative = end_offset.0.saturating_sub(base.0);
        !self.sealed
            && data + index_blocks(entries as usize) <= self.address.order.blocks()
            && u32::try_from(relative).is_ok()
    }

    /// Bytes that an extent needs so that a batch of `len` bytes fits into it when it is empty.
    pub fn needed_for(len: u64) -> u64 {
        len.div_ceil(BLOCK) * BLOCK + index_blocks((len / STRETCH_MAX + 3) as usize) * BLOCK
    }

    fn relative(&self, offset: Offset) -> u32 {
        let relative = offset.0 - self.base_offset.0;
        u32::try_from(relative).unwrap_or_else(|_| panic!("offset {offset} in an extent from {}", self.base_offset))
    }

    /// The first batch says where an extent starts: the one it was taken for may have been lost with the power.
    fn begin(&mut self, header: &BatchHeader) {
        if self.len == 0 {
            self.base_offset = header.base_offset;
            self.largest = (NO_TIMESTAMP, header.base_offset);
        }
    }

    fn note_largest(&mut self, header: &BatchHeader) {
        if header.max_timestamp > self.largest.0 {
            self.largest = (header.max_timestamp, header.base_offset);
        }
    }

    fn push_entry(&mut self, base: Offset, start: u64, len: u64, crc: u32) {
        let entry = IndexEntry {
            offset: self.relative(base),
            position: start as u32,
            length: len as u32,
            crc,
            largest_timestamp: self.largest.0.0,
            offset_of_largest: self.relative(self.largest.1),
        };
        self.entries.push(entry);
    }

    pub fn close_stretch(&mut self) {
        if let Some(open) = self.open.take() {
            self.push_entry(open.base, open.start, self.len - open.start, open.crc);
        }
    }

    /// Adds a batch's bytes to the index; the extent is longer by it then. A batch that crosses `cut` (a position in
    /// the extent) is split there, so that its end in memory is a stretch of its own.
    pub fn add_batch(&mut self, header: &BatchHeader, bytes: &[u8], cut: Option<u64>) {
        self.begin(header);
        let len = bytes.len() as u64;
        let cut = cut.filter(|cut| self.len < *cut && *cut < self.len + len);
        if len > STRETCH_MAX || cut.is_some() {
            self.close_stretch();
            self.note_largest(header);
            let mut done = 0;
            while done < len {
                let mut piece = (len - done).min(STRETCH_MAX);
                if let Some(cut) = cut
                    && self.len < cut
                {
                    piece = piece.min(cut - self.len);
                }
                let crc = crc::append(self.seed, &bytes[done as usize..(done + piece) as usize]);
                self.push_entry(header.base_offset, self.len, piece, crc);
                self.len += piece;
                done += piece;
            }
            return;
        }
        if self.open.as_ref().is_some_and(|open| self.len - open.start + len > STRETCH_MAX) {
            self.close_stretch();
        }
        let seed = self.seed;
        let start = self.len;
        let open = self.open.get_or_insert(OpenStretch { start, base: header.base_offset, crc: seed });
        open.crc = crc::append(open.crc, bytes);
        let opened = open.start;
        self.note_largest(header);
        self.len += len;
        if self.len - opened >= STRETCH_TARGET {
            self.close_stretch();
        }
    }

    /// As `add_batch` for a replayed direct append, whose entries the record carries.
    pub fn add_direct(&mut self, headers: &[BatchHeader], entries: &[IndexEntry], len: u64) {
        self.open = None;
        for header in headers {
            self.begin(header);
            self.note_largest(header);
        }
        self.entries.extend_from_slice(entries);
        self.len += len;
    }

    pub fn seal(&mut self) {
        self.close_stretch();
        self.sealed = true;
    }

    /// Where data that may be given to the device ends: whole blocks, and all (zero-padded) once it is sealed.
    pub fn writable_until(&self) -> u64 {
        if self.sealed { self.len.next_multiple_of(BLOCK) } else { self.len / BLOCK * BLOCK }
    }

    /// Marks a range as given to the device. It is disjoint from all in flight and from every block written in this
    /// tenancy: the blocks of an extent are written in order, once.
    pub fn submit(&mut self, from: u64, to: u64) {
        assert!(
            from == self.submitted && from < to && to <= self.address.order.bytes(),
            "an extent block written twice"
        );
        assert!(self.in_flight.iter().all(|(_, end)| *end <= from), "overlapping writes in flight");
        self.in_flight.push((from, to));
        self.submitted = to;
        self.pass_direct();
    }

    pub fn complete(&mut self, from: u64, to: u64) {
        self.in_flight.retain(|range| *range != (from, to));
    }

    /// A replayed direct write: these blocks are on the device.
    pub fn note_direct(&mut self, from: u64, to: u64) {
        self.direct.push((from, to));
        self.pass_direct();
    }

    fn pass_direct(&mut self) {
        while let Some((from, to)) = self.direct.first().copied()
            && from <= self.submitted
        {
            self.submitted = self.submitted.max(to);
            self.direct.remove(0);
        }
    }

    /// Where the next copy-out has to stop because what follows is on the device.
    pub fn next_direct(&self) -> Option<u64> {
        self.direct.first().map(|(from, _)| *from)
    }

    /// Everything below is on the device (complete, not necessarily flushed).
    pub fn written(&self) -> u64 {
        self.in_flight.iter().map(|(from, _)| *from).min().unwrap_or(self.submitted)
    }

    /// Everything below can be read from the device: stretches that are closed and wholly written.
    pub fn readable(&self) -> u64 {
        let written = self.written();
        if self.open.is_none() && self.len <= written {
            return self.len;
        }
        let closed = self.open.as_ref().map_or(self.len, |open| open.start);
        if closed <= written {
            return closed;
        }
        let count = self.entries.partition_point(|entry| entry.end() <= written);
        match count.checked_sub(1) {
            Some(last) => self.entries[last].end(),
            None => self.entries.first().map_or(closed.min(written), |entry| u64::from(entry.position)),
        }
    }

    /// All entries in order, where those of the index blocks are in memory.
    pub fn all_entries(&self) -> Option<EntryList<'_>> {
        let head = match (self.index, &self.cached) {
            (None, _) => &[][..],
            (Some(place), Some(cached)) => &cached.entries[..place.entries as usize],
            (Some(_), None) => return None,
        };
        Some(EntryList { head, tail: &self.entries })
    }

    /// Whether the byte at `position` of the extent was given up.
    pub fn is_given_up(&self, position: u64) -> bool {
        let index = self.given_up.partition_point(|range| u64::from(range.to) <= position);
        self.given_up.get(index).is_some_and(|range| u64::from(range.from) <= position)
    }

    /// Everything in it was given up, its index with it: that may be what could not be read.
    pub fn is_lost(&self) -> bool {
        self.given_up.first().is_some_and(|range| range.from == 0 && u64::from(range.to) == self.len)
    }

    /// Gives up ranges that hold whole groups of entries, or all of a sealed extent.
    pub fn give_up(&mut self, ranges: &[GivenUp]) {
        for range in ranges.iter().filter(|range| u64::from(range.to) <= self.len) {
            let index = self.given_up.partition_point(|other| other.to <= range.from);
            let end = self.given_up.partition_point(|other| other.from < range.to).max(index);
            let mut whole = *range;
            for other in self.given_up.drain(index..end) {
                (whole.from, whole.to) = (whole.from.min(other.from), whole.to.max(other.to));
                (whole.first, whole.next) = (whole.first.min(other.first), whole.next.max(other.next));
            }
            self.given_up.insert(index, whole);
        }
        self.forget_lost_index();
    }

    fn forget_lost_index(&mut self) {
        if self.sealed && self.is_lost() {
            self.entries.clear();
            (self.index, self.cached) = (None, None);
            self.index_write = IndexWrite::NoRoom;
        }
    }

    /// The same for a reader, whose use the cache goes by.
    pub fn entries_used(&self, cache: &ReadCache) -> Option<EntryList<'_>> {
        if let Some(cached) = &self.cached {
            cached.touch(cache);
        }
        self.all_entries()
    }

    /// Cuts the extent at `len`; later appends take another. Index blocks that were written are void: the entries are
    /// those of the cut, and are written again where there is room.
    pub fn cut(&mut self, len: u64, entries: &[IndexEntry], largest: (WallMillis, Offset)) {
        self.open = None;
        self.sealed = true;
        self.len = len;
        self.largest = largest;
        self.entries = entries.to_vec();
        (self.index, self.cached) = (None, None);
        if self.index_write == IndexWrite::Done {
            self.index_write = IndexWrite::NotYet;
        }
        if self.index_write == IndexWrite::InFlight {
            self.index_write = IndexWrite::Void;
        }
        self.given_up.retain(|range| u64::from(range.from) < len);
        if let Some(last) = self.given_up.last_mut() {
            last.to = last.to.min(len as u32);
        }
        self.forget_lost_index();
    }

    /// Where the index blocks go: behind the data and behind everything that was written before a cut. A direct write of
    /// which an opening knows only by a commit is part of that: should the opening crash, and the cut be lost with the
    /// power, the next one holds the commit to these blocks.
    pub fn index_place(&self) -> Option<IndexPlace> {
        let direct = self.direct.iter().map(|(_, to)| *to).max().unwrap_or(0);
        let from = self.writable_until().max(self.submitted).max(direct) / BLOCK;
        let blocks = index_blocks(self.entries.len());
        let fits = from + blocks <= self.address.order.blocks();
        (fits && blocks > 0).then_some(IndexPlace { block: from as u32, entries: self.entries.len() as u32 })
    }

    pub fn to_state(&self) -> ExtentState {
        ExtentState {
            address: self.address,
            tenancy: self.tenancy,
            position: base::Position(self.position),
            base_offset: self.base_offset,
            len: self.len,
            submitted: self.writable_until(),
            sealed: self.sealed,
            largest_timestamp: self.largest.0.0,
            offset_of_largest: self.largest.1,
            entries: self.entries.clone(),
            index: self.index,
            given_up: self.given_up.clone(),
        }
    }

    pub fn from_state(partition: PartitionId, state: &ExtentState) -> Extent {
        let mut extent = Extent::new(partition, state.address, state.tenancy, state.position.0, state.base_offset);
        extent.len = state.len;
        extent.submitted = state.submitted;
        extent.sealed = state.sealed;
        extent.largest = (WallMillis(state.largest_timestamp), state.offset_of_largest);
        extent.entries = state.entries.clone();
        extent.index = state.index;
        extent.given_up = state.given_up.clone();
        if let Some(place) = state.index {
            // The index lies behind the data: nothing below its end is written again.
            let end = u64::from(place.block) * BLOCK + index_blocks(place.entries as usize) * BLOCK;
            extent.submitted = extent.submitted.max(end.min(state.address.order.bytes()));
            extent.index_write = IndexWrite::Done;
        }
        extent.forget_lost_index();
        extent
    }

    /// The running stretch of a loaded extent, from the bytes of its tail.
    pub fn reopen(&mut self, start: u64, base: Offset) {
        self.open = Some(OpenStretch { start, base, crc: self.seed });
    }

    pub fn reopened_batch(&mut self, bytes: &[u8]) {
        if let Some(open) = &mut self.open {
            open.crc = crc::append(open.crc, bytes);
        }
    }
}

/// Index entries in two parts.
#[derive(Clone, Copy)]
pub struct EntryList<'a> {
    head: &'a [IndexEntry],
    tail: &'a [IndexEntry],
}

impl EntryList<'_> {
    pub fn len(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    pub fn get(&self, index: usize) -> Option<&IndexEntry> {
        match self.head.get(index) {
            Some(entry) => Some(entry),
            None => self.tail.get(index - self.head.len()),
        }
    }

    /// The number of leading entries for which `holds` is true.
    pub fn partition_point(&self, mut holds: impl FnMut(&IndexEntry) -> bool) -> usize {
        let in_head = self.head.partition_point(&mut holds);
        if in_head < self.head.len() { in_head } else { in_head + self.tail.partition_point(holds) }
    }
}
