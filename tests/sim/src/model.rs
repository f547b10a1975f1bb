//! The oracle: what was sent, what was acknowledged or shown at which offset, and what therefore may never change. It
//! knows the node only by what clients saw.

use crate::pattern;
use base::{Monotonic, PartitionId};
use batch::{BatchView, Records};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Under `durability = "cache"` what is older than this when the power goes must be there afterwards.
const CACHE_LOSS_MAX: Duration = Duration::from_millis(500);
/// The most a batch of the simulation inflates to.
const INFLATE_MAX: usize = 64 << 20;

/// A batch that some producer sent at least once.
#[derive(Clone, Debug)]
pub struct Sent {
    pub partition: PartitionId,
    pub records: u32,
    /// Producer id and first sequence.
    pub producer: Option<(i64, i32)>,
    /// Where it was last known to stand.
    pub offset: Option<i64>,
}

/// A batch that stands at its offset for good.
#[derive(Clone, Copy, Debug)]
struct Placed {
    batch: u64,
    next: i64,
    at: Monotonic,
    bytes: usize,
}

/// What is known of a partition's log.
#[derive(Debug, Default)]
pub struct Log {
    placed: BTreeMap<i64, Placed>,
    /// The highest watermark told: it never falls.
    pub watermark: i64,
    /// The highest log start told. It falls with a crash to what an answer to DeleteRecords promised: as in Kafka, a
    /// start that retention moved, or that waits to be durable, is told before a crash is sure to leave it.
    pub log_start: i64,
    promised_start: i64,
    /// The highest that DeleteRecords has asked for, whether it was answered or not.
    pub deletes_asked: i64,
    pub retention_bytes: Option<u64>,
    pub deleted: bool,
    /// Bytes sent to it, but for those that are known to be gone.
    bytes: usize,
    largest: usize,
}

/// What a client remembers of a log when it asks, against which the answer is held.
#[derive(Clone, Copy, Debug, Default)]
pub struct Floor {
    pub watermark: i64,
    pub log_start: i64,
}

#[derive(Debug, Default)]
pub struct Model {
    sent: Vec<Sent>,
    pub logs: BTreeMap<PartitionId, Log>,
    /// How often acknowledged records were lost legitimately: a power loss under `durability = "cache"`.
    pub losses: u64,
    granted: BTreeSet<i64>,
    pub stats: Stats,
}

/// What a run did, so that a run that did nothing shows.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    pub acknowledged: u64,
    pub served: u64,
    pub served_bytes: u64,
    pub retries: u64,
    pub duplicates: u64,
    pub reconnects: u64,
    pub refused: BTreeMap<i16, u64>,
    pub fetches: u64,
    pub fetch_errors: BTreeMap<i16, u64>,
    pub deleted_records: u64,
    pub forwarded: u64,
}

impl Model {
    pub fn add_partition(&mut self, partition: PartitionId, retention_bytes: Option<u64>) {
        self.logs.insert(partition, Log { retention_bytes, ..Log::default() });
    }

    pub fn delete_partition(&mut self, partition: PartitionId) {
        self.log(partition).deleted = true;
    }

    pub fn is_deleted(&self, partition: PartitionId) -> bool {
        self.logs[&partition].deleted
    }

    fn log(&mut self, partition: PartitionId) -> &mut Log {
        self.logs.get_mut(&partition).unwrap_or_else(|| panic!("{partition} is not one of ours"))
    }

    pub fn floor(&self, partition: PartitionId) -> Floor {
        let log = &self.logs[&partition];
        Floor { watermark: log.watermark, log_start: log.log_start }
    }

    /// A producer id was given to someone: to nobody else.
    pub fn grant(&mut self, id: i64) {
        assert!(self.granted.insert(id), "producer id {id} is given twice");
    }

    /// A new batch, about to be sent.
    pub fn send(&mut self, partition: PartitionId, records: u32, producer: Option<(i64, i32)>) -> u64 {
        self.sent.push(Sent { partition, records, producer, offset: None });
        self.sent.len() as u64 - 1
    }

    /// How many bytes the batch has.
    pub fn weigh(&mut self, partition: PartitionId, bytes: usize) {
        let log = self.log(partition);
        log.bytes += bytes;
        log.largest = log.largest.max(bytes);
    }

    /// Bytes that the device has to give, at most: an extent has four times the largest batch, and each is as large
    /// as all before it.
    pub fn space_needed(&self) -> usize {
        let of = |log: &Log| 2 * log.bytes + (8 * log.largest).max(64 << 10);
        // Each of the sixteen shards has slabs of its own.
        (64 << 20) + self.logs.values().filter(|log| !log.deleted).map(of).sum::<usize>()
    }

    pub fn acknowledged(&mut self, now: Monotonic, batch: u64, base: i64, bytes: usize) {
        self.stats.acknowledged += 1;
        let partition = self.sent[batch as usize].partition;
        if self.log(partition).deleted {
            return;
        }
        self.place(now, batch, base, bytes);
    }

    fn place(&mut self, now: Monotonic, batch: u64, base: i64, bytes: usize) {
        let sent = &mut self.sent[batch as usize];
        let (partition, next) = (sent.partition, base + i64::from(sent.records));
        if let Some(known) = sent.offset.filter(|known| *known != base) {
            panic!("batch {batch} of {partition} stands at {known} and at {base}: {sent:?}");
        }
        sent.offset = Some(base);
        let log = self.logs.get_mut(&partition).expect("it was sent there");
        if let Some(known) = log.placed.get(&base) {
            assert!(
                (known.batch, known.next) == (batch, next),
                "batch {batch} is at {base}..{next} of {partition}, where {known:?} was before"
            );
            return;
        }
        let before = log.placed.range(..base).next_back().filter(|(_, placed)| placed.next > base);
        let after = log.placed.range(base..).next().filter(|(after, _)| **after < next);
        if let Some((other, placed)) = before.or(after) {
            panic!("batch {batch} is at {base}..{next} of {partition}, where {placed:?} at {other} was before");
        }
        log.placed.insert(base, Placed { batch, next, at: now, bytes });
        log.watermark = log.watermark.max(next);
    }

    /// Someone was told a watermark and a log start; `floor` is what was known when the request left.
    pub fn told(&mut self, partition: PartitionId, floor: Floor, watermark: Option<i64>, log_start: Option<i64>) {
        let log = self.log(partition);
        if log.deleted {
            return;
        }
        if let Some(watermark) = watermark {
            assert!(
                watermark >= floor.watermark,
                "the high watermark of {partition} fell from {} to {watermark}",
                floor.watermark
            );
            log.watermark = log.watermark.max(watermark);
        }
        if let Some(log_start) = log_start {
            assert!(
                log_start >= floor.log_start,
                "the log start of {partition} fell from {} to {log_start}",
                floor.log_start
            );
            if log_start > log.log_start {
                let gone = log.placed.range(..log_start).filter(|(_, one)| one.next > log.log_start);
                let gone = gone.filter(|(_, one)| one.next <= log_start).map(|(_, one)| one.bytes).sum();
                log.bytes = log.bytes.saturating_sub(gone);
                log.log_start = log_start;
            }
        }
    }

    /// DeleteRecords was answered.
    pub fn promised(&mut self, partition: PartitionId, floor: Floor, log_start: i64) {
        self.told(partition, floor, None, Some(log_start));
        let log = self.log(partition);
        log.promised_start = log.promised_start.max(log_start);
    }

    /// The process died.
    pub fn forget_starts(&mut self) {
        for log in self.logs.values_mut() {
            log.log_start = log.promised_start;
        }
    }

    /// Bytes were shown to a consumer at `from`; returns the offset after them. A last batch may be cut short.
    pub fn served(&mut self, now: Monotonic, partition: PartitionId, from: i64, bytes: &[u8]) -> i64 {
        let (mut rest, mut position, mut first) = (bytes, from, true);
        while let Ok((view, after)) = BatchView::parse(rest) {
            let header = view.header();
            let (base, next) = (header.base_offset.0, header.next_offset().0);
            let continues = if first { base <= from && next > from } else { base == position };
            assert!(continues, "{partition}: a batch at {base}..{next} follows {position} in an answer from {from}");
            let batch = self.check_batch(partition, &view);
            if !self.log(partition).deleted {
                self.place(now, batch, base, view.size());
            }
            self.stats.served += 1;
            self.stats.served_bytes += view.size() as u64;
            (rest, position, first) = (after, next, false);
        }
        assert!(!first || bytes.is_empty(), "{partition}: {} bytes at {from} hold no whole batch", bytes.len());
        position
    }

    /// Every byte of the batch is what was sent; says which batch it is.
    fn check_batch(&self, partition: PartitionId, view: &BatchView<'_>) -> u64 {
        let header = view.header();
        let bad = |why: String| -> ! { panic!("{partition} serves a bad batch: {why}: {header:?}") };
        if let Err(error) = view.check_crc().and_then(|()| view.check_counts()) {
            bad(error.to_string());
        }
        let codec = view.codec().unwrap_or_else(|error| bad(format!("{error:?}")));
        let body = batch::inflate(codec, view.body(), INFLATE_MAX).unwrap_or_else(|error| bad(error.to_string()));
        let mut found = None;
        for (number, record) in (0..).zip(Records::new(&body, view.records_count())) {
            let record = record.unwrap_or_else(|error| bad(error.to_string()));
            let tag = pattern::read(record.value.unwrap_or_default()).unwrap_or_else(|error| bad(error));
            if tag.partition != partition || tag.record != number || found.is_some_and(|batch| batch != tag.batch) {
                bad(format!("record {number} is {tag:?}"));
            }
            found = Some(tag.batch);
        }
        let batch = found.unwrap_or_else(|| bad("no records".to_owned()));
        let Some(sent) = self.sent.get(batch as usize) else { bad(format!("batch {batch} was never sent")) };
        let producer = header.producer().map(|stamp| (stamp.id.0, stamp.base_sequence.0));
        if sent.partition != partition || sent.records != header.records_count as u32 || sent.producer != producer {
            bad(format!("batch {batch} was sent as {sent:?}"));
        }
        batch
    }

    /// The power went under `durability = "cache"`: what was young is uncertain.
    pub fn lose_young(&mut self, now: Monotonic) {
        self.losses += 1;
        for log in self.logs.values_mut().filter(|log| !log.deleted) {
            let young = |placed: &Placed| now.since(placed.at) < CACHE_LOSS_MAX;
            let first = log.placed.iter().find(|(_, placed)| young(placed)).map(|(base, _)| *base);
            let Some(first) = first else { continue };
            for placed in log.placed.split_off(&first).into_values() {
                self.sent[placed.batch as usize].offset = None;
            }
            log.watermark = log.watermark.min(first);
            log.promised_start = log.promised_start.min(first);
            log.log_start = log.promised_start;
        }
    }

    /// A reader went through the whole partition: from `start` to `end`, every batch of which was placed.
    pub fn audit(&self, partition: PartitionId, start: i64, end: i64) {
        let log = &self.logs[&partition];
        // Retention may have moved it while the reader was under way.
        assert!(start <= log.log_start, "{partition} starts at {start}, and only {} was told", log.log_start);
        assert!(end >= log.watermark, "{partition} ends at {end}, and {} was told", log.watermark);
        let mut position = start;
        for (base, placed) in log.placed.iter().filter(|(_, placed)| placed.next > start) {
            assert!(*base <= position, "{partition} has nothing at {position}..{base}");
            position = placed.next;
        }
        assert!(position == end, "{partition} ends at {end}, its records at {position}");
        self.audit_sequences(partition, log);
        self.audit_retention(partition, log, start);
    }

    /// An idempotent producer's batches follow one another.
    fn audit_sequences(&self, partition: PartitionId, log: &Log) {
        let mut next: BTreeMap<i64, i32> = BTreeMap::new();
        for placed in log.placed.values() {
            let sent = &self.sent[placed.batch as usize];
            let Some((id, sequence)) = sent.producer else { continue };
            let wanted = next.get(&id).copied().unwrap_or(sequence);
            assert!(
                wanted == sequence || self.losses > 0,
                "{partition}: batch {} of producer {id} has sequence {sequence} where {wanted} follows",
                placed.batch
            );
            next.insert(id, sequence_after(sequence, sent.records));
        }
    }

    /// Retention by size leaves at least what is to be kept.
    fn audit_retention(&self, partition: PartitionId, log: &Log, start: i64) {
        if start <= log.deletes_asked {
            return;
        }
        let Some(kept) = log.retention_bytes else {
            panic!("{partition} starts at {start}: nobody deleted beyond {}", log.deletes_asked)
        };
        let bytes: usize = log.placed.values().filter(|placed| placed.next > start).map(|placed| placed.bytes).sum();
        assert!(bytes as u64 >= kept, "{partition}: {bytes} bytes are left of {kept} that are to be kept");
    }

    /// Partitions that exist, in their order.
    pub fn live(&self) -> Vec<PartitionId> {
        self.logs.iter().filter(|(_, log)| !log.deleted).map(|(partition, _)| *partition).collect()
    }
}

/// The sequence after `records` records from `sequence`: after the largest comes 0.
pub fn sequence_after(sequence: i32, records: u32) -> i32 {
    ((i64::from(sequence) + i64::from(records)) % (1 << 31)) as i32
}
