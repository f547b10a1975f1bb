//! One partition's log as its blob describes it, read whole: index entries, stretches, batches, and what they must agree
//! on.

use crate::source::{self, Source};
use crate::stream::{BatchStream, Seen, Visit};
use base::{BLOCK_SIZE, Offset, WallMillis};
use batch::NO_TIMESTAMP;
use nvme_format::blob::{ExtentState, PartitionBlob};
use nvme_format::crc;
use nvme_format::index::{IndexEntry, decode_blocks, index_blocks};

/// What is wrong with a log, and the first offset that it concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub from: Offset,
    pub text: String,
}

/// What was read and found good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub extents: u64,
    pub stretches: u64,
    pub bytes: u64,
    pub batches: u64,
}

/// Bytes that a reading of these blobs will go through.
pub(crate) fn bytes_of(blob: &PartitionBlob) -> u64 {
    blob.extents.iter().map(|extent| extent.len).sum()
}

/// What must hold between the parts of a blob, without reading anything else.
pub(crate) fn check_shape(blob: &PartitionBlob) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut say = |from: Offset, text: String| faults.push(Fault { from, text });
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
    };
    for extent in &blob.extents {
        reading.extent(extent, visit);
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
}

/// What is carried from one stretch of an extent to the next.
struct Running {
    largest: (WallMillis, Offset),
    /// The base that the entry of the batch being read named.
    base: Offset,
}

impl<S: Source + ?Sized> Reading<'_, S> {
    fn say(&mut self, from: Offset, text: String) {
        self.faults.push(Fault { from, text });
    }

    fn extent(&mut self, extent: &ExtentState, visit: Visit<'_>) {
        self.counts.extents += 1;
        if !self.lost && !self.stream.is_between_batches() {
            self.say(self.stream.next, "a batch is cut by the end of its extent".into());
        }
        self.stream.restart(extent.position.0, extent.base_offset);
        self.lost = false;
        let entries = match self.entries(extent) {
            Ok(entries) => entries,
            Err(why) => {
                self.say(extent.base_offset, format!("the index of the extent at {}: {why}", extent.address.whole()));
                self.lost = true;
                return;
            }
        };
        let seed = crc::stretch_seed(self.blob.id, extent.address.start, extent.tenancy);
        let mut running = Running { largest: (NO_TIMESTAMP, extent.base_offset), base: extent.base_offset };
        let mut at = 0;
        for entry in &entries {
            if u64::from(entry.position) != at || entry.end() > extent.len {
                let text = format!("index entries of the extent at {} leave a gap at {at}", extent.address.whole());
                self.say(extent.base_offset, text);
                self.lost = true;
                return;
            }
            at = entry.end();
            self.stretch(extent, entry, seed, &mut running, visit);
        }
        self.open_part(extent, at, visit);
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

    fn stretch(
        &mut self,
        extent: &ExtentState,
        entry: &IndexEntry,
        seed: u32,
        running: &mut Running,
        visit: Visit<'_>,
    ) {
        let base = Offset(extent.base_offset.0.saturating_add(i64::from(entry.offset)));
        let place = format!("the stretch at position {} of the extent at {}", entry.position, extent.address.whole());
        let bytes = match self.bytes(extent, u64::from(entry.position), entry.end()) {
            Ok(bytes) if crc::append(seed, &bytes) == entry.crc => bytes,
            Ok(_) => return self.lose(base, format!("{place} is not what was written"), running, extent, entry),
            Err(why) => return self.lose(base, format!("{place}: {why}"), running, extent, entry),
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
            self.say(base, format!("{place} is named by {base}, the batch it continues by {}", running.base));
        }
        running.base = base;
        match self.stream.feed(&bytes, visit) {
            Ok(seen) => self.seen(&seen, begins.then_some((base, &place)), running),
            Err(why) => return self.lose(base, why, running, extent, entry),
        }
        let largest = (
            WallMillis(entry.largest_timestamp),
            Offset(extent.base_offset.0.saturating_add(i64::from(entry.offset_of_largest))),
        );
        if self.stream.is_between_batches() && largest != running.largest {
            let text = format!(
                "{place} says the largest time so far is {} at {}, its batches say {} at {}",
                largest.0.0, largest.1, running.largest.0.0, running.largest.1
            );
            self.say(base, text);
            running.largest = largest;
        }
    }

    fn lose(&mut self, from: Offset, text: String, running: &mut Running, extent: &ExtentState, entry: &IndexEntry) {
        self.say(from, text);
        self.lost = true;
        running.base = from;
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
        }
    }

    /// What the maps say of a batch: its segment, its epoch.
    fn check_batch(&mut self, batch: &Seen) {
        while let Some(segment) = self.blob.segments.get(self.segments_met)
            && segment.position.0 <= batch.position
        {
            self.segments_met += 1;
            let skipped = segment.position.0 < batch.position && segment.position.0 >= self.blob.extents[0].position.0;
            if skipped && self.segments_met > 1 {
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
