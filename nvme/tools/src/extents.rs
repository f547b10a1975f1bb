//! One partition's log as its blob describes it, read whole: index entries, stretches, batches, and what they must agree
//! on.

use crate::source::{self, Source};
use crate::stream::{BatchStream, Seen, Visit};
use base::{BLOCK_SIZE, Offset, Tenancy, WallMillis};
use batch::NO_TIMESTAMP;
use nvme_format::blob::{ExtentState, GivenUp, PartitionBlob};
use nvme_format::crc;
use nvme_format::index::{IndexEntry, decode_blocks, index_blocks};

/// What is wrong with a log, and the first offset that it concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub from: Offset,
    pub text: String,
    /// The bytes that cannot be read, where it is that: a repair can give them up.
    pub unreadable: Option<(Tenancy, GivenUp)>,
}

/// What was read and found good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub extents: u64,
    pub stretches: u64,
    pub bytes: u64,
    pub batches: u64,
}

/// Everything in it was given up.
fn is_lost(extent: &ExtentState) -> bool {
    extent.given_up.first().is_some_and(|range| range.from == 0 && u64::from(range.to) == extent.len)
}

/// What has to be given up with an entry: all those that name the same batch. `next` is the offset behind the extent.
fn group_of(extent: &ExtentState, entries: &[IndexEntry], number: usize, next: Offset) -> GivenUp {
    let own = entries[number].offset;
    let from = entries.partition_point(|entry| entry.offset < own);
    let to = entries.partition_point(|entry| entry.offset <= own).max(number + 1);
    let offset = |entry: &IndexEntry| Offset(extent.base_offset.0.saturating_add(i64::from(entry.offset)));
    GivenUp {
        from: entries[from.min(number)].position,
        to: entries[to - 1].end() as u32,
        first: offset(&entries[number]),
        next: entries.get(to).map_or(next, offset),
    }
}

/// Bytes that a reading of these blobs will go through.
pub(crate) fn bytes_of(blob: &PartitionBlob) -> u64 {
    blob.extents.iter().map(|extent| extent.len).sum()
}

/// What must hold between the parts of a blob, without reading anything else.
pub(crate) fn check_shape(blob: &PartitionBlob) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut say = |from: Offset, text: String| faults.push(Fault { from, text, unreadable: None });
    for pair in blob.extents.windows(2) {
        if pair[0].position.0 + pair[0].len != pair[1].position.0 || pair[0].base_offset > pair[1].base_offset {
            let text = format!(
                "its extents do not follow each other: one ends at position {}, the next begins at {}",
                pair[0].position.0 + pair[0].len,
                pair[1].position.0
            );
            say(pair[1].base_offset, text);
        }
    }
    if let Some(last) = blob.extents.last()
        && last.position.0 + last.len != blob.end_position.0
    {
        say(last.base_offset, format!("its last extent does not end at its end, position {}", blob.end_position.0));
    }
    if blob.segments.is_empty() {
        say(blob.log_start, "it has no segment".into());
    }
    for pair in blob.segments.windows(2) {
        if pair[0].base >= pair[1].base || pair[0].position > pair[1].position {
            say(pair[1].base, format!("its segments at {} and {} are out of order", pair[0].base, pair[1].base));
        }
    }
    for pair in blob.epochs.windows(2) {
        if pair[0].epoch >= pair[1].epoch || pair[0].offset >= pair[1].offset {
            say(pair[1].offset, format!("its epochs {} and {} do not rise", pair[0].epoch, pair[1].epoch));
        }
    }
    if blob.high_watermark > blob.end {
        say(blob.end, format!("its high watermark {} is beyond its end", blob.high_watermark));
    }
    faults
}

/// Reads the whole log. `visit` sees every good batch.
pub(crate) fn verify<S: Source + ?Sized>(
    source: &mut S,
    blob: &PartitionBlob,
    visit: Visit<'_>,
) -> (Counts, Vec<Fault>) {
    let first = blob.extents.first();
    let (at, next) = first.map_or((blob.end_position.0, blob.end), |extent| (extent.position.0, extent.base_offset));
    let mut reading = Reading {
        source,
        blob,
        stream: BatchStream::new(at, next),
        counts: Counts::default(),
        faults: check_shape(blob),
        lost: false,
        segments_met: 0,
        last_end: 0,
    };
    for (number, extent) in blob.extents.iter().enumerate() {
        let next = blob.extents.get(number + 1).map_or(blob.end, |next| next.base_offset);
        reading.extent(extent, next, visit);
    }
    reading.finish();
    reading.counts.batches = reading.stream.batches;
    (reading.counts, reading.faults)
}

struct Reading<'a, S: ?Sized> {
    source: &'a mut S,
    blob: &'a PartitionBlob,
    stream: BatchStream,
    counts: Counts,
    faults: Vec<Fault>,
    /// The stream waits for a stretch that begins a batch.
    lost: bool,
    segments_met: usize,
    /// Where the last good batch ends.
    last_end: u64,
}

/// A stretch in its extent.
#[derive(Clone, Copy)]
struct Place<'a> {
    extent: &'a ExtentState,
    entry: &'a IndexEntry,
    /// The stretches that hold the same batch, or this one alone: what has to be given up where one cannot be read.
    group: GivenUp,
}

/// What is carried from one stretch of an extent to the next.
struct Running {
    largest: (WallMillis, Offset),
    /// The base that the entry of the batch being read named.
    base: Offset,
}

impl<S: Source + ?Sized> Reading<'_, S> {
    fn say(&mut self, from: Offset, text: String) {
        self.faults.push(Fault { from, text, unreadable: None });
    }

    /// `next` is the offset behind the extent.
    fn extent(&mut self, extent: &ExtentState, next: Offset, visit: Visit<'_>) {
        self.counts.extents += 1;
        if !self.lost && !self.stream.is_between_batches() {
            self.say(self.stream.next, "a batch is cut by the end of its extent".into());
        }
        self.stream.restart(extent.position.0, extent.base_offset);
        self.lost = is_lost(extent);
        if self.lost {
            return;
        }
        let entries = match self.entries(extent) {
            Ok(entries) => entries,
            Err(why) => {
                let text = format!("the index of the extent at {}: {why}", extent.address.whole());
                // Without it nothing proves what lies in the extent.
                let whole = GivenUp { from: 0, to: extent.len as u32, first: extent.base_offset, next };
                let unreadable = Some((extent.tenancy, whole)).filter(|_| extent.sealed && extent.len > 0);
                self.faults.push(Fault { from: extent.base_offset, text, unreadable });
                self.lost = true;
                return;
            }
        };
        let seed = crc::stretch_seed(self.blob.id, extent.address.start, extent.tenancy);
        let mut running = Running { largest: (NO_TIMESTAMP, extent.base_offset), base: extent.base_offset };
        let mut at = 0;
        let next = self.open_base(extent, entries.last().map_or(0, IndexEntry::end)).unwrap_or(next);
        for (number, entry) in entries.iter().enumerate() {
            if u64::from(entry.position) != at || entry.end() > extent.len {
                let text = format!("index entries of the extent at {} leave a gap at {at}", extent.address.whole());
                self.say(extent.base_offset, text);
                self.lost = true;
                return;
            }
            at = entry.end();
            let group = group_of(extent, &entries, number, next);
            self.stretch(Place { extent, entry, group }, seed, &mut running, visit);
        }
        self.open_part(extent, at, visit);
    }

    /// Where the part of an extent begins that no entry covers yet, where there is one.
    fn open_base(&self, extent: &ExtentState, closed: u64) -> Option<Offset> {
        let part = self.blob.tail.iter().find(|part| part.position.0 == extent.position.0 + closed)?;
        (closed < extent.len).then_some(part.base)
    }

    /// All entries of an extent: those of its index blocks, then those of the blob.
    fn entries(&mut self, extent: &ExtentState) -> Result<Vec<IndexEntry>, String> {
        let mut entries = Vec::new();
        if let Some(place) = extent.index {
            let blocks = index_blocks(place.entries as usize);
            if u64::from(place.block) + blocks > extent.address.order.blocks() {
                return Err("its place is outside the extent".into());
            }
            if blocks > 0 {
                let start = base::Block(extent.address.start.0 + u64::from(place.block));
                let bytes = source::read(self.source, start, blocks).map_err(|unread| unread.to_string())?;
                entries = decode_blocks(extent.address.start, extent.tenancy, &bytes)
                    .map_err(|_| "its blocks are not what was written".to_owned())?;
            }
            if entries.len() < place.entries as usize {
                return Err(format!("it has {} entries of {}", entries.len(), place.entries));
            }
            entries.truncate(place.entries as usize);
        }
        entries.extend_from_slice(&extent.entries);
        Ok(entries)
    }

    /// The bytes from `from` to `to` of an extent, from the medium or from the blob's tail.
    fn bytes(&mut self, extent: &ExtentState, from: u64, to: u64) -> Result<Vec<u8>, String> {
        let position = extent.position.0 + from;
        let tail = self.blob.tail.first().map_or(u64::MAX, |part| part.position.0);
        if let Some(skip) = position.checked_sub(tail) {
            let bytes = self.blob.tail_bytes.get(skip as usize..(skip + to - from) as usize);
            return bytes.map(<[u8]>::to_vec).ok_or_else(|| "the checkpoint's tail does not have it".into());
        }
        if from.next_multiple_of(BLOCK_SIZE as u64) > extent.address.order.bytes() {
            return Err("it is outside the extent".into());
        }
        source::read_bytes(self.source, extent.address.start, from, to - from).map_err(|unread| unread.to_string())
    }

    fn stretch(&mut self, place: Place<'_>, seed: u32, running: &mut Running, visit: Visit<'_>) {
        let Place { extent, entry, .. } = place;
        let base = Offset(extent.base_offset.0.saturating_add(i64::from(entry.offset)));
        let name = format!("the stretch at position {} of the extent at {}", entry.position, extent.address.whole());
        if extent.given_up.iter().any(|range| range.from <= entry.position && entry.position < range.to) {
            return self.skip(place, running);
        }
        let unreadable = match self.bytes(extent, u64::from(entry.position), entry.end()) {
            Ok(bytes) if crc::append(seed, &bytes) == entry.crc => Ok(bytes),
            Ok(_) => Err(format!("{name} is not what was written")),
            Err(why) => Err(format!("{name}: {why}")),
        };
        let bytes = match unreadable {
            Ok(bytes) => bytes,
            Err(text) => {
                let unreadable = Some((extent.tenancy, place.group));
                self.faults.push(Fault { from: base, text, unreadable });
                return self.skip(place, running);
            }
        };
        self.counts.stretches += 1;
        self.counts.bytes += bytes.len() as u64;
        let begins = self.stream.is_between_batches();
        if self.lost {
            // The rest of a batch whose start was not good: its base is that of the stretch before.
            if base == running.base {
                return;
            }
            self.stream.restart(extent.position.0 + u64::from(entry.position), base);
            self.lost = false;
        } else if !begins && base != running.base {
            self.say(base, format!("{name} is named by {base}, the batch it continues by {}", running.base));
        }
        running.base = base;
        match self.stream.feed(&bytes, visit) {
            Ok(seen) => self.seen(&seen, begins.then_some((base, &name)), running),
            Err(why) => {
                self.say(base, why);
                return self.skip(place, running);
            }
        }
        let largest = (
            WallMillis(entry.largest_timestamp),
            Offset(extent.base_offset.0.saturating_add(i64::from(entry.offset_of_largest))),
        );
        if self.stream.is_between_batches() && largest != running.largest {
            let text = format!(
                "{name} says the largest time so far is {} at {}, its batches say {} at {}",
                largest.0.0, largest.1, running.largest.0.0, running.largest.1
            );
            self.say(base, text);
            running.largest = largest;
        }
    }

    /// Goes on behind a stretch: with the next that begins a batch.
    fn skip(&mut self, Place { extent, entry, .. }: Place<'_>, running: &mut Running) {
        self.lost = true;
        running.base = Offset(extent.base_offset.0.saturating_add(i64::from(entry.offset)));
        running.largest = (
            WallMillis(entry.largest_timestamp),
            Offset(extent.base_offset.0.saturating_add(i64::from(entry.offset_of_largest))),
        );
    }

    /// Batches that came whole; `named` is the base that the index names for the first of them.
    fn seen(&mut self, seen: &[Seen], named: Option<(Offset, &str)>, running: &mut Running) {
        if let (Some((base, place)), Some(first)) = (named, seen.first())
            && first.base != base
        {
            self.say(base, format!("{place} is named by {base} and begins with {}", first.base));
        }
        for batch in seen {
            if batch.largest > running.largest.0 {
                running.largest = (batch.largest, batch.base);
            }
            self.check_batch(batch);
            self.last_end = batch.end;
        }
    }

    /// What the maps say of a batch: its segment, its epoch.
    fn check_batch(&mut self, batch: &Seen) {
        while let Some(segment) = self.blob.segments.get(self.segments_met)
            && segment.position.0 <= batch.position
        {
            self.segments_met += 1;
            // Nothing is known of those that begin where batches cannot be read.
            let within = segment.position.0 < self.last_end && segment.position.0 >= self.blob.extents[0].position.0;
            if within && self.segments_met > 1 {
                self.say(segment.base, format!("its segment {} begins within a batch", segment.base));
            }
            if segment.position.0 == batch.position && segment.base > batch.base {
                self.say(batch.base, format!("its segment {} begins with a batch of {}", segment.base, batch.base));
            }
        }
        if batch.base < self.blob.log_start || batch.epoch.0 < 0 {
            return;
        }
        let covering = self.blob.epochs.iter().rev().find(|start| start.offset <= batch.base);
        if let Some(covering) = covering.filter(|start| start.epoch != batch.epoch) {
            let text =
                format!("the batch of {} has epoch {}, the epochs say {}", batch.base, batch.epoch, covering.epoch);
            self.say(batch.base, text);
        }
    }

    /// What lies behind the last entry: only the extent that takes appends has it, and its checkpoint holds it.
    fn open_part(&mut self, extent: &ExtentState, from: u64, visit: Visit<'_>) {
        if from == extent.len {
            return;
        }
        if extent.sealed {
            let text = format!("the index of the sealed extent at {} ends at {from}", extent.address.whole());
            return self.say(extent.base_offset, text);
        }
        if self.lost {
            // The open stretch begins with a batch.
            self.stream.restart(extent.position.0 + from, self.stream.next);
            self.lost = false;
        }
        let mut running = Running { largest: (NO_TIMESTAMP, extent.base_offset), base: self.stream.next };
        let fed = self.bytes(extent, from, extent.len).and_then(|bytes| {
            self.counts.bytes += bytes.len() as u64;
            self.stream.feed(&bytes, visit)
        });
        match fed {
            Ok(seen) => self.seen(&seen, None, &mut running),
            Err(why) => {
                self.say(self.stream.next, format!("the newest bytes, in the checkpoint: {why}"));
                self.lost = true;
            }
        }
    }

    fn finish(&mut self) {
        if self.lost || self.blob.extents.is_empty() {
            return;
        }
        if !self.stream.is_between_batches() {
            self.say(self.stream.next, "its last batch is cut".into());
        } else if self.stream.next > self.blob.end {
            // A cut within a batch takes the whole batch and leaves the end where it was asked for, as in Kafka: the
            // batches may end before it.
            let text = format!("its batches end at {}, it says {}", self.stream.next, self.blob.end);
            self.say(self.blob.end, text);
        }
    }
}
