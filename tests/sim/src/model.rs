//! The oracle: what was sent, what was acknowledged or shown at which offset, and what therefore may never change. It
//! knows the node only by what clients saw.

use crate::pattern;
use crate::plane::Cluster;
use base::{Monotonic, PartitionId};
use batch::{BatchView, Records, TimestampType};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
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
    /// The times that its records were given.
    pub times: Vec<i64>,
    /// Where it was last known to stand.
    pub offset: Option<i64>,
}

/// A batch that stands at its offset for good.
#[derive(Clone, Copy, Debug)]
pub struct Placed {
    pub batch: u64,
    pub next: i64,
    bytes: usize,
    /// What it looked like when it was first served: it never looks different.
    seen: Option<Seen>,
    /// The node's time, in a topic that takes that.
    pub stamped: Option<i64>,
}

/// What tells two batches with the same records apart; the CRC covers everything but the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    crc: u32,
    epoch: i32,
}

/// What a topic's settings change in its log.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    pub retention_bytes: Option<u64>,
    /// Records have the node's time, not their producer's.
    pub append_time: bool,
}

/// What is known of a partition's log.
#[derive(Clone, Debug, Default)]
pub struct Log {
    pub placed: BTreeMap<i64, Placed>,
    /// The highest watermark told: it never falls.
    pub watermark: i64,
    /// The highest log start told. It falls with a crash to what an answer to DeleteRecords promised: as in Kafka, a
    /// start that retention moved, or that waits to be durable, is told before a crash is sure to leave it.
    pub log_start: i64,
    promised_start: i64,
    /// When the watermark and the promised start rose, and to what: the last step that is old, and the young ones.
    risen: VecDeque<Risen>,
    /// The highest that DeleteRecords has asked for, whether it was answered or not.
    pub deletes_asked: i64,
    pub rules: Rules,
    pub deleted: bool,
    /// Bytes sent to it, but for those whose place is known to be free again.
    bytes: usize,
    largest: usize,
}

/// What was told of a log up to a moment.
#[derive(Clone, Copy, Debug)]
struct Risen {
    at: Monotonic,
    watermark: i64,
    promised_start: i64,
}

impl Log {
    fn rise(&mut self, now: Monotonic) {
        let risen = Risen { at: now, watermark: self.watermark, promised_start: self.promised_start };
        self.risen.push_back(risen);
        while self.risen.get(1).is_some_and(|next| now.since(next.at) >= CACHE_LOSS_MAX) {
            self.risen.pop_front();
        }
    }
}

/// What a client remembers of a log when it asks, against which the answer is held.
#[derive(Clone, Copy, Debug, Default)]
pub struct Floor {
    pub watermark: i64,
    pub log_start: i64,
    /// The run of the node that was asked.
    run: u64,
}

impl Floor {
    pub fn is_of_run(&self, other: &Floor) -> bool {
        self.run == other.run
    }
}

/// A step of what is known, as a recording keeps it: applied in their order to a new model they make the same one.
#[derive(Clone, Debug)]
pub enum Told {
    Partition(PartitionId, Rules),
    Deleted(PartitionId),
    Sent(Sent),
    Placed {
        batch: u64,
        base: i64,
        at: Monotonic,
        bytes: usize,
    },
    Stamped(PartitionId, i64, i64),
    Seen(PartitionId, i64, Seen),
    /// Watermark and log start.
    Raised(PartitionId, i64, i64),
    Promised(PartitionId, i64),
    DeletesAsked(PartitionId, i64),
    /// What the metadata are from here on.
    Metadata(Box<Cluster>),
}

#[derive(Clone, Debug, Default)]
pub struct Model {
    pub sent: Vec<Sent>,
    pub logs: BTreeMap<PartitionId, Log>,
    /// How often acknowledged records were lost legitimately: a power loss under `durability = "cache"`.
    pub losses: u64,
    granted: BTreeSet<i64>,
    /// How often the process died.
    run: u64,
    /// Where every step is kept.
    pub journal: Option<Vec<Told>>,
    /// Somebody waits for an answer that should have come.
    pub late: Option<String>,
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
    /// Answers by time that were held against the records that are known.
    pub times_checked: u64,
    pub largest_times_checked: u64,
    pub append_times_checked: u64,
    pub audited_batches: u64,
    pub sequences_checked: u64,
    pub epochs_checked: u64,
    pub retention_checked: u64,
}

impl Stats {
    /// What the oracle has compared and what clients were given, by name.
    pub fn list(&self) -> Vec<(&'static str, u64)> {
        let refused = |code: i16| self.refused.get(&code).copied().unwrap_or_default();
        vec![
            ("batches acknowledged", self.acknowledged),
            ("batches served", self.served),
            ("batches sent again", self.retries),
            ("duplicates answered", self.duplicates),
            ("refusals for want of a leader", refused(6)),
            ("refusals for the storage", refused(56)),
            ("DeleteRecords answered", self.deleted_records),
            ("requests forwarded", self.forwarded),
            ("answers by time compared", self.times_checked),
            ("answers of the largest time compared", self.largest_times_checked),
            ("append times compared", self.append_times_checked),
            ("batches audited", self.audited_batches),
            ("sequences audited", self.sequences_checked),
            ("epochs audited", self.epochs_checked),
            ("retention audited", self.retention_checked),
        ]
    }
}

impl Model {
    pub fn note(&mut self, told: impl FnOnce() -> Told) {
        if let Some(journal) = &mut self.journal {
            journal.push(told());
        }
    }

    pub fn apply(&mut self, told: &Told) {
        match told.clone() {
            Told::Partition(partition, rules) => self.add_partition(partition, rules),
            Told::Deleted(partition) => self.delete_partition(partition),
            Told::Sent(sent) => self.sent.push(sent),
            Told::Placed { batch, base, at, bytes } => self.place(at, batch, base, bytes),
            Told::Stamped(partition, base, time) => self.stamp(partition, base, time),
            Told::Seen(partition, base, seen) => self.see_as(partition, base, seen),
            // Nothing of a recording is young: no power fails in it under the weaker durability.
            Told::Raised(partition, watermark, log_start) => {
                let floor = self.no_floor();
                self.told(Monotonic::ZERO, partition, floor, Some(watermark), Some(log_start));
            }
            Told::Promised(partition, log_start) => {
                let floor = self.no_floor();
                self.promised(Monotonic::ZERO, partition, floor, log_start);
            }
            Told::DeletesAsked(partition, offset) => self.ask_to_delete(partition, offset),
            Told::Metadata(_) => {}
        }
    }

    /// DeleteRecords is about to be asked for.
    pub fn ask_to_delete(&mut self, partition: PartitionId, offset: i64) {
        self.note(|| Told::DeletesAsked(partition, offset));
        let log = self.log(partition);
        log.deletes_asked = log.deletes_asked.max(offset);
    }

    pub fn add_partition(&mut self, partition: PartitionId, rules: Rules) {
        self.note(|| Told::Partition(partition, rules));
        self.logs.insert(partition, Log { rules, ..Log::default() });
    }

    pub fn delete_partition(&mut self, partition: PartitionId) {
        self.note(|| Told::Deleted(partition));
        self.log(partition).deleted = true;
    }

    pub fn is_deleted(&self, partition: PartitionId) -> bool {
        self.logs[&partition].deleted
    }

    fn log(&mut self, partition: PartitionId) -> &mut Log {
        self.logs.get_mut(&partition).unwrap_or_else(|| panic!("{partition} is not one of ours"))
    }

    /// Of one who knew nothing.
    fn no_floor(&self) -> Floor {
        Floor { run: self.run, ..Floor::default() }
    }

    pub fn floor(&self, partition: PartitionId) -> Floor {
        let log = &self.logs[&partition];
        Floor { watermark: log.watermark, log_start: log.log_start, run: self.run }
    }

    /// A producer id was given to someone: to nobody else.
    pub fn grant(&mut self, id: i64) {
        assert!(self.granted.insert(id), "producer id {id} is given twice");
    }

    /// A new batch, about to be sent; what it holds is told by its builder.
    pub fn send(&mut self, partition: PartitionId, times: Vec<i64>, producer: Option<(i64, i32)>) -> u64 {
        let sent = Sent { partition, records: times.len() as u32, producer, times, offset: None };
        self.note(|| Told::Sent(sent.clone()));
        self.sent.push(sent);
        self.sent.len() as u64 - 1
    }

    /// Whether something was asked, or set, for which the log's start may have moved beyond this.
    pub fn may_have_moved(&self, partition: PartitionId, beyond: i64) -> bool {
        let moves = |log: &Log| log.deletes_asked > beyond || log.rules.retention_bytes.is_some();
        self.logs.get(&partition).is_some_and(moves)
    }

    /// The batch is known to stand somewhere.
    pub fn is_placed(&self, batch: u64) -> bool {
        self.sent[batch as usize].offset.is_some()
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

    /// What the partitions hold, or have been sent.
    pub fn bytes_kept(&self) -> usize {
        self.logs.values().filter(|log| !log.deleted).map(|log| log.bytes).sum()
    }

    /// `append_time` is what the answer says: -1 for a topic that keeps its producers' times, or the time of a duplicate.
    pub fn acknowledged(&mut self, now: Monotonic, batch: u64, base: i64, append_time: i64, bytes: usize) {
        self.stats.acknowledged += 1;
        let partition = self.sent[batch as usize].partition;
        let log = self.log(partition);
        if log.deleted {
            return;
        }
        if log.rules.append_time {
            assert!(append_time >= 0, "{partition}: batch {batch} was given no time");
        }
        self.place(now, batch, base, bytes);
        self.stamp(partition, base, append_time);
    }

    /// The node's time of a batch, once it is known, is that for good.
    fn stamp(&mut self, partition: PartitionId, base: i64, time: i64) {
        let log = self.log(partition);
        let append_time = log.rules.append_time;
        let Some(placed) = log.placed.get_mut(&base).filter(|_| append_time) else { return };
        let known = placed.stamped.replace(time);
        assert!(known.is_none_or(|known| known == time), "{partition}: {known:?} at {base} was appended at {time}");
        if known.is_none() {
            self.note(|| Told::Stamped(partition, base, time));
        }
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
        log.placed.insert(base, Placed { batch, next, bytes, seen: None, stamped: None });
        if next > log.watermark {
            log.watermark = next;
            log.rise(now);
        }
        self.note(|| Told::Placed { batch, base, at: now, bytes });
    }

    /// Someone was told a watermark and a log start; `floor` is what was known when the request left.
    pub fn told(
        &mut self,
        now: Monotonic,
        partition: PartitionId,
        floor: Floor,
        watermark: Option<i64>,
        log_start: Option<i64>,
    ) {
        let of_this_run = floor.run == self.run;
        let log = self.log(partition);
        if log.deleted {
            return;
        }
        let before = (log.watermark, log.log_start);
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
            // What a run that died has told of a start is heard after its death, and may be gone with it.
            if log_start > log.log_start && of_this_run {
                let gone = log.placed.range(..log_start).filter(|(_, one)| one.next > log.log_start);
                let gone = gone.filter(|(_, one)| one.next <= log_start).map(|(_, one)| one.bytes).sum();
                // A start within a segment frees nothing, and only these topics have small ones.
                if log.rules.retention_bytes.is_some() {
                    log.bytes = log.bytes.saturating_sub(gone);
                }
                log.log_start = log_start;
            }
            // No log starts beyond its watermark.
            log.watermark = log.watermark.max(log_start);
        }
        if log.watermark > before.0 {
            log.rise(now);
        }
        let after = (log.watermark, log.log_start);
        if after != before {
            self.note(|| Told::Raised(partition, after.0, after.1));
        }
    }

    /// DeleteRecords was answered.
    pub fn promised(&mut self, now: Monotonic, partition: PartitionId, floor: Floor, log_start: i64) {
        self.told(now, partition, floor, None, Some(log_start));
        let log = self.log(partition);
        log.promised_start = log.promised_start.max(log_start);
        log.log_start = log.log_start.max(log_start);
        log.rise(now);
        self.note(|| Told::Promised(partition, log_start));
    }

    /// The process died.
    pub fn forget_starts(&mut self) {
        self.run += 1;
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
                self.see(partition, &view);
            }
            self.stats.served += 1;
            self.stats.served_bytes += view.size() as u64;
            (rest, position, first) = (after, next, false);
        }
        assert!(!first || bytes.is_empty(), "{partition}: {} bytes at {from} hold no whole batch", bytes.len());
        position
    }

    /// What is served of an offset is the same batch for good, in a topic of the node's time with that.
    fn see(&mut self, partition: PartitionId, view: &BatchView<'_>) {
        let header = view.header();
        let (base, largest) = (header.base_offset.0, header.max_timestamp.0);
        let log = self.log(partition);
        let node_time = view.timestamp_type() == TimestampType::LogAppendTime;
        assert_eq!(node_time, log.rules.append_time, "{partition}: {header:?} has another's time");
        self.see_as(partition, base, Seen { crc: header.crc, epoch: header.partition_leader_epoch.0 });
        self.stamp(partition, base, largest);
    }

    fn see_as(&mut self, partition: PartitionId, base: i64, now: Seen) {
        let Some(placed) = self.log(partition).placed.get_mut(&base) else { return };
        let seen = placed.seen.replace(now);
        assert!(seen.is_none_or(|seen| seen == now), "{partition} at {base} was {seen:?} and is {now:?}");
        if seen.is_none() {
            self.note(|| Told::Seen(partition, base, now));
        }
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

    /// The power went under `durability = "cache"`: what was young when the node last ran is uncertain. All that lies
    /// below a watermark that was told earlier is not, whenever it was placed.
    pub fn lose_young(&mut self, ran_at: Monotonic) {
        self.losses += 1;
        for log in self.logs.values_mut().filter(|log| !log.deleted) {
            let old = |risen: &&Risen| ran_at.since(risen.at) >= CACHE_LOSS_MAX;
            let old = log.risen.iter().rev().find(old).copied();
            let old = old.unwrap_or(Risen { at: ran_at, watermark: 0, promised_start: 0 });
            for placed in log.placed.split_off(&old.watermark).into_values() {
                self.sent[placed.batch as usize].offset = None;
            }
            (log.watermark, log.promised_start) = (old.watermark, old.promised_start);
            log.log_start = old.promised_start;
            log.risen = VecDeque::from([old]);
        }
    }

    /// A reader went through the whole partition: from `start` to `end`, every batch of which was placed.
    pub fn audit(&mut self, partition: PartitionId, start: i64, end: i64) {
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
        let audited = log.placed.range(start..).count() as u64;
        let sequences = self.audit_sequences(partition, log);
        let (epochs, times) = audit_order(partition, log, start);
        let retention = self.audit_retention(partition, log, start);
        self.stats.audited_batches += audited;
        self.stats.sequences_checked += sequences;
        self.stats.epochs_checked += epochs;
        self.stats.append_times_checked += times;
        self.stats.retention_checked += u64::from(retention);
    }

    /// An idempotent producer's batches follow one another.
    fn audit_sequences(&self, partition: PartitionId, log: &Log) -> u64 {
        let (mut next, mut compared): (BTreeMap<i64, i32>, u64) = (BTreeMap::new(), 0);
        for placed in log.placed.values() {
            let sent = &self.sent[placed.batch as usize];
            let Some((id, sequence)) = sent.producer else { continue };
            let wanted = next.get(&id).copied();
            compared += u64::from(wanted.is_some());
            let wanted = wanted.unwrap_or(sequence);
            assert!(
                wanted == sequence || self.losses > 0,
                "{partition}: batch {} of producer {id} has sequence {sequence} where {wanted} follows",
                placed.batch
            );
            next.insert(id, sequence_after(sequence, sent.records));
        }
        compared
    }

    /// Retention by size leaves at least what is to be kept, of which the power may take young records later.
    fn audit_retention(&self, partition: PartitionId, log: &Log, start: i64) -> bool {
        if start <= log.deletes_asked || self.losses > 0 {
            return false;
        }
        let Some(kept) = log.rules.retention_bytes else {
            panic!("{partition} starts at {start}: nobody deleted beyond {}", log.deletes_asked)
        };
        let bytes: usize = log.placed.values().filter(|placed| placed.next > start).map(|placed| placed.bytes).sum();
        assert!(bytes as u64 >= kept, "{partition}: {bytes} bytes are left of {kept} that are to be kept");
        true
    }

    /// Partitions that exist, in their order.
    pub fn live(&self) -> Vec<PartitionId> {
        self.logs.iter().filter(|(_, log)| !log.deleted).map(|(partition, _)| *partition).collect()
    }
}

/// Leader epochs never fall along the log, nor does the node's time, whatever its clock did and however often it died. Says
/// how many neighbours of each kind were compared.
fn audit_order(partition: PartitionId, log: &Log, start: i64) -> (u64, u64) {
    let (mut epochs, mut times) = (0, 0);
    let batches: Vec<(&i64, &Placed)> = log.placed.range(start..).collect();
    for pair in batches.windows(2) {
        let ((_, before), (at, after)) = (pair[0], pair[1]);
        if let (Some(before), Some(after)) = (before.seen, after.seen) {
            assert!(before.epoch <= after.epoch, "{partition} at {at}: epoch {} after {}", after.epoch, before.epoch);
            epochs += 1;
        }
        if let (Some(before), Some(after)) = (before.stamped, after.stamped) {
            assert!(before <= after, "{partition} at {at}: time {after} after {before}");
            times += 1;
        }
    }
    (epochs, times)
}

/// The sequence after `records` records from `sequence`: after the largest comes 0.
pub fn sequence_after(sequence: i32, records: u32) -> i32 {
    ((i64::from(sequence) + i64::from(records)) % (1 << 31)) as i32
}
