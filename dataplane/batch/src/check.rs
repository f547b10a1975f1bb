//! What Kafka's log checks before it appends a batch, as a pure function of the bytes, the topic's rules and the time.
//!
//! The order is Kafka's, since the first thing wrong decides the answer: framing and magic, the codec the request may
//! use, one batch only, base offset, size, CRC, the batch's counts, then record by record. It differs from Kafka in
//! one place, on purpose: Kafka stores an uncompressed batch whose records are not numbered 0, 1, 2 .. as it is (a log
//! whose offsets repeat or leap) and renumbers a compressed one by recompressing it; here both are refused.
//!
//! A compressed batch that passes is stored as sent: its records are only looked at, and what the leader assigns stands
//! in the header.

use crate::builder::{BatchBuilder, BatchProducer};
use crate::compression::{Codec, Compression, InflateError};
use crate::header::{BatchError, BatchView, NO_TIMESTAMP, TimestampType, restamp_timestamp, stamp};
use crate::record::RecordError;
use crate::skim::skim_records;
use crate::stream::{InflateLimits, StreamError, Walk, walk_records};
use base::{LeaderEpoch, Offset, ProducerId, Sequence, WallMillis};

/// Who appends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A Produce request. Everything is checked.
    Client,
    /// A coordinator of this cluster: it may write control batches, and it numbers records as it should.
    Coordinator,
    /// A follower's fetch. The leader has checked the records; offsets stand in the batch and may have gaps.
    Replica,
}

/// A topic's rules for what is appended to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    pub origin: Origin,
    /// `max.message.bytes`: of the whole batch, as stored.
    pub batch_bytes_max: u32,
    /// `segment.bytes`: a batch has to fit into a segment.
    pub segment_bytes: u32,
    pub inflate: InflateLimits,
    /// `message.timestamp.type`.
    pub timestamp_type: TimestampType,
    /// `message.timestamp.before.max.ms` and `.after.max.ms`; Kafka's default is the largest number.
    pub timestamp_before_max_ms: i64,
    pub timestamp_after_max_ms: i64,
    /// Whether `cleanup.policy` has `compact`.
    pub compacted: bool,
    /// `compression.type`; `None` stands for `producer`.
    pub compression: Option<Compression>,
    /// False for Produce below version 7.
    pub zstd_allowed: bool,
}

/// What the leader writes into the timestamp fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimestampStamp {
    /// They are right.
    AsSent,
    /// The header names another maximum, or another clock, than the records have.
    Max(WallMillis),
    /// The time of the append.
    AppendTime,
}

/// A batch that may be appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Bytes of the batch; bytes of the input after it are not part of the append.
    pub size: usize,
    pub records: u32,
    /// The largest timestamp of the records, -1 without any. Of a topic with append times, that time stands for it.
    pub max_timestamp: WallMillis,
    /// The first record that has it. A replica's records are not looked at: a job finds it when it is asked for.
    pub max_timestamp_delta: Option<u32>,
    pub timestamp: TimestampStamp,
    /// The topic stores another codec than the batch has; `rebuild` gives the batch to append.
    pub rebuild: Option<Compression>,
}

impl Checked {
    /// Writes what the leader assigns into the batch that was checked.
    pub fn stamp(&self, batch: &mut [u8], base_offset: Offset, epoch: LeaderEpoch, append_time: WallMillis) {
        assert!(batch.len() == self.size && self.rebuild.is_none(), "the batch that was checked is the one stamped");
        stamp(batch, base_offset, epoch);
        match self.timestamp {
            TimestampStamp::AsSent => {}
            TimestampStamp::Max(max) => restamp_timestamp(batch, TimestampType::CreateTime, max),
            TimestampStamp::AppendTime => restamp_timestamp(batch, TimestampType::LogAppendTime, append_time),
        }
    }

    /// The batch's largest timestamp once it is stamped.
    pub fn stored_max_timestamp(&self, append_time: WallMillis) -> WallMillis {
        if self.timestamp == TimestampStamp::AppendTime { append_time } else { self.max_timestamp }
    }
}

/// Why a batch as a whole is refused with INVALID_RECORD.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidBatch {
    #[error("there is no record batch")]
    None,
    #[error("there is more than one record batch")]
    Several,
    #[error("magic {0} is of a message set; only record batches of magic 2 are taken")]
    OldMagic(i8),
    #[error("the base offset is {0}; a producer writes 0")]
    BaseOffset(i64),
    #[error("the count of records is {count} and the last offset delta {last_offset_delta}")]
    Count { count: i32, last_offset_delta: i32 },
    #[error("only the brokers write control records")]
    Control,
    #[error("sequence {} of producer {} is negative", .sequence.0, .producer.0)]
    Sequence { producer: ProducerId, sequence: Sequence },
    #[error("record {index}: {error}")]
    Record { index: u32, error: RecordError },
    /// `max.decompressed.message.bytes`, which Kafka looks at in compressed batches only.
    #[error("record {index} has {size} bytes, more than the {most} that the topic takes")]
    RecordTooLarge { index: u32, size: u32, most: u32 },
    #[error("record {index} is numbered {offset_delta}")]
    OffsetDelta { index: u32, offset_delta: i32 },
}

/// A record that a topic's rules refuse: Kafka lists them in the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordRefusal {
    /// Its place in the batch.
    pub index: u32,
    pub reason: RecordReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordReason {
    #[error("a compacted topic takes no record without a key")]
    NoKey,
    #[error("timestamp {} is not between {} and {}", .timestamp.0, .earliest.0, .latest.0)]
    Timestamp { timestamp: WallMillis, earliest: WallMillis, latest: WallMillis },
    #[error("the batch claims append times, which only the broker gives")]
    AppendTime,
}

impl RecordReason {
    /// Whether this reason alone is INVALID_TIMESTAMP; the other is INVALID_RECORD.
    pub fn is_timestamp(self) -> bool {
        self != RecordReason::NoKey
    }
}

/// Why a batch is not appended. Each variant names Kafka's error, which the edge maps.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// CORRUPT_MESSAGE.
    #[error(transparent)]
    Corrupt(BatchError),
    /// INVALID_RECORD.
    #[error(transparent)]
    Invalid(InvalidBatch),
    /// INVALID_TIMESTAMP if any record's reason is a timestamp, else INVALID_RECORD; the records are listed.
    #[error("{} of the records break the topic's rules, the first: {}", .0.len(), .0[0].reason)]
    Records(Vec<RecordRefusal>),
    /// MESSAGE_TOO_LARGE.
    #[error("the batch has {size} bytes, more than the {most} that the topic takes")]
    TooLarge { size: usize, most: u32 },
    /// RECORD_LIST_TOO_LARGE.
    #[error("the batch has {size} bytes, more than a segment's {most}")]
    LargerThanSegment { size: usize, most: u32 },
    /// UNSUPPORTED_COMPRESSION_TYPE.
    #[error("this version of the request may not carry zstd")]
    ZstdNotAllowed,
    /// Kafka throws what it has no error for and so answers UNKNOWN_SERVER_ERROR.
    #[error("codec {0} does not exist")]
    UnknownCodec(u8),
    /// The same: the compressed bytes are damaged under a CRC that is right.
    #[error(transparent)]
    Undecodable(InflateError),
    /// Our own limit; told as MESSAGE_TOO_LARGE, on which the Java client splits the batch.
    #[error("the batch inflates to more than {most} bytes")]
    InflatesTooFar { most: usize },
}

impl Refusal {
    /// Whether `Records` is INVALID_TIMESTAMP rather than INVALID_RECORD.
    pub fn is_timestamp(&self) -> bool {
        matches!(self, Refusal::Records(records) if records.iter().any(|record| record.reason.is_timestamp()))
    }
}

impl From<StreamError> for Refusal {
    fn from(error: StreamError) -> Refusal {
        match error {
            StreamError::UnknownCodec(id) => Refusal::UnknownCodec(id),
            StreamError::Record { index, error } => Refusal::Invalid(InvalidBatch::Record { index, error }),
            StreamError::RecordTooLarge { index, size, most } => {
                Refusal::Invalid(InvalidBatch::RecordTooLarge { index, size, most })
            }
            StreamError::Inflate(InflateError::TooLarge { cap }) => Refusal::InflatesTooFar { most: cap },
            StreamError::Inflate(error) => Refusal::Undecodable(error),
        }
    }
}

/// Everything that can be said of a batch without looking at its records. Costs a pass over the bytes for the CRC, 20 us
/// for 1 MiB.
pub fn check_head<'a>(bytes: &'a [u8], rules: &Rules) -> Result<BatchView<'a>, Refusal> {
    let view = only_batch(bytes, rules)?;
    let size = view.size();
    if rules.origin == Origin::Client && view.base_offset() != Offset::ZERO {
        return Err(Refusal::Invalid(InvalidBatch::BaseOffset(view.base_offset().0)));
    }
    if rules.origin != Origin::Replica && size > rules.batch_bytes_max as usize {
        return Err(Refusal::TooLarge { size, most: rules.batch_bytes_max });
    }
    view.check_crc().map_err(Refusal::Corrupt)?;
    view.codec().map_err(|unknown| Refusal::UnknownCodec(unknown.0))?;
    check_numbers(&view, rules)?;
    Ok(view)
}

/// Last of all, since a batch may have been rebuilt smaller or larger.
fn check_stored_size(size: usize, rules: &Rules) -> Result<(), Refusal> {
    if rules.origin != Origin::Replica && size > rules.batch_bytes_max as usize {
        return Err(Refusal::TooLarge { size, most: rules.batch_bytes_max });
    }
    if size > rules.segment_bytes as usize {
        return Err(Refusal::LargerThanSegment { size, most: rules.segment_bytes });
    }
    Ok(())
}

/// Frames the one batch there may be. Kafka trims a partial batch after it, and so nothing is said of one here.
fn only_batch<'a>(bytes: &'a [u8], rules: &Rules) -> Result<BatchView<'a>, Refusal> {
    let (view, rest) = BatchView::parse(bytes).map_err(framing)?;
    if view.codec() == Ok(Codec::Zstd) && !rules.zstd_allowed {
        return Err(Refusal::ZstdNotAllowed);
    }
    match BatchView::parse(rest) {
        Err(BatchError::Incomplete { .. }) => Ok(view),
        Err(error @ (BatchError::UnknownMagic(_) | BatchError::Length(_))) => Err(framing(error)),
        _ => Err(Refusal::Invalid(InvalidBatch::Several)),
    }
}

fn framing(error: BatchError) -> Refusal {
    match error {
        BatchError::Incomplete { .. } => Refusal::Invalid(InvalidBatch::None),
        BatchError::OldMagic(magic) => Refusal::Invalid(InvalidBatch::OldMagic(magic)),
        error => Refusal::Corrupt(error),
    }
}

/// The header's own numbers. Kafka asks for a full count from clients only; a coordinator's batch has it too, and ours
/// refuses one that has not, because offsets are given out by the count.
fn check_numbers(view: &BatchView<'_>, rules: &Rules) -> Result<(), Refusal> {
    let (count, last_offset_delta) = (view.records_count(), view.last_offset_delta());
    let wrong_count = || Refusal::Invalid(InvalidBatch::Count { count, last_offset_delta });
    if rules.origin == Origin::Replica {
        return view.check_counts().map_err(|_| wrong_count());
    }
    if last_offset_delta < 0 || count <= 0 || i64::from(count) != i64::from(last_offset_delta) + 1 {
        return Err(wrong_count());
    }
    if rules.origin == Origin::Coordinator {
        return Ok(());
    }
    if view.is_control() {
        return Err(Refusal::Invalid(InvalidBatch::Control));
    }
    let (producer, sequence) = (view.producer_id(), view.base_sequence());
    if producer.0 >= 0 && sequence.0 < 0 {
        return Err(Refusal::Invalid(InvalidBatch::Sequence { producer, sequence }));
    }
    Ok(())
}

/// Checks one batch, records and all. Nothing is allocated for a batch without compression that passes.
///
/// A loop calls `check_inline` instead, which leaves batches to a job that may take longer than a loop may be held.
pub fn check(bytes: &[u8], rules: &Rules, now: WallMillis) -> Result<Checked, Refusal> {
    let view = check_head(bytes, rules)?;
    if rules.origin == Origin::Replica {
        check_stored_size(view.size(), rules)?;
        return Ok(Checked {
            size: view.size(),
            records: view.records_count() as u32,
            max_timestamp: view.max_timestamp(),
            max_timestamp_delta: None,
            timestamp: TimestampStamp::AsSent,
            rebuild: None,
        });
    }
    let found = check_records(&view, rules, now)?;
    let codec = view.codec().map_err(|unknown| Refusal::UnknownCodec(unknown.0))?;
    // Control batches are never compressed, whatever the topic says.
    let rebuild = rules.compression.filter(|target| target.codec != codec && !view.is_control());
    if rebuild.is_none() {
        check_stored_size(view.size(), rules)?;
    }
    let as_sent = view.timestamp_type() == TimestampType::CreateTime && view.max_timestamp() == found.max_timestamp;
    let timestamp = match rules.timestamp_type {
        TimestampType::LogAppendTime => TimestampStamp::AppendTime,
        TimestampType::CreateTime if as_sent => TimestampStamp::AsSent,
        TimestampType::CreateTime => TimestampStamp::Max(found.max_timestamp),
    };
    let max_timestamp_delta = if timestamp == TimestampStamp::AppendTime { 0 } else { found.max_timestamp_delta };
    Ok(Checked {
        size: view.size(),
        records: view.records_count() as u32,
        max_timestamp: found.max_timestamp,
        max_timestamp_delta: Some(max_timestamp_delta),
        timestamp,
        rebuild,
    })
}

struct RecordsFound {
    max_timestamp: WallMillis,
    max_timestamp_delta: u32,
}

fn check_records(view: &BatchView<'_>, rules: &Rules, now: WallMillis) -> Result<RecordsFound, Refusal> {
    let header = view.header();
    let mut found = RecordsFound { max_timestamp: NO_TIMESTAMP, max_timestamp_delta: 0 };
    let mut refused = Vec::new();
    let mut misnumbered = None;
    skim_records(view, rules.inflate, |index, record| {
        if i64::from(record.offset_delta) != i64::from(index) {
            misnumbered = Some(InvalidBatch::OffsetDelta { index, offset_delta: record.offset_delta });
            return Walk::Enough;
        }
        let timestamp = header.timestamp_at(record.timestamp_delta);
        if rules.compacted && !record.has_key {
            refused.push(RecordRefusal { index, reason: RecordReason::NoKey });
        } else if let Some(reason) = refuse_timestamp(timestamp, header.attributes.timestamp_type(), rules, now) {
            refused.push(RecordRefusal { index, reason });
        }
        if timestamp > found.max_timestamp {
            found = RecordsFound { max_timestamp: timestamp, max_timestamp_delta: index };
        }
        Walk::On
    })?;
    if let Some(misnumbered) = misnumbered {
        return Err(Refusal::Invalid(misnumbered));
    }
    if refused.is_empty() { Ok(found) } else { Err(Refusal::Records(refused)) }
}

/// A record without a timestamp (-1) is in no window. As in Kafka, a batch that claims append times passes where the
/// topic keeps create times and they are within the window; it is stamped as one of create times.
fn refuse_timestamp(
    timestamp: WallMillis,
    claimed: TimestampType,
    rules: &Rules,
    now: WallMillis,
) -> Option<RecordReason> {
    if rules.timestamp_type == TimestampType::CreateTime && timestamp != NO_TIMESTAMP {
        let (before, after) = (rules.timestamp_before_max_ms, rules.timestamp_after_max_ms);
        // Kafka's arithmetic wraps, and so does this, for timestamps near the ends of the numbers.
        let age = now.0.wrapping_sub(timestamp.0);
        let outside = age > before || age.wrapping_neg() > after;
        return outside.then(|| RecordReason::Timestamp {
            timestamp,
            earliest: WallMillis(now.0.saturating_sub(before)),
            latest: WallMillis(now.0.saturating_add(after)),
        });
    }
    (claimed == TimestampType::LogAppendTime).then_some(RecordReason::AppendTime)
}

/// What a loop may check itself: 4,096 records in 256 KiB take 100 us, measured (20 ns a record, and 33 us for a MiB of
/// large ones); 1 KiB takes 80 to 200 ns.
const INLINE_RECORDS_MAX: i32 = 4096;
const INLINE_BYTES_MAX: usize = 256 * 1024;
/// Compressed bytes are tried in the loop if they are few and inflate little: 1 to 25 us, measured, in any codec. A hop to
/// a helper that sleeps costs 35 us.
const INLINE_PACKED_BYTES_MAX: usize = 2 * 1024;
const INLINE_INFLATED_BYTES_MAX: usize = 16 * 1024;

/// `check` for a loop; `None` where a `CheckJob` has to do it.
pub fn check_inline(bytes: &[u8], rules: &Rules, now: WallMillis) -> Option<Result<Checked, Refusal>> {
    let Ok((view, _)) = BatchView::parse(bytes) else { return Some(check(bytes, rules, now)) };
    let compressed = view.codec() != Ok(Codec::None);
    if rules.origin == Origin::Replica || (!compressed && fits_loop(&view)) {
        return Some(check(bytes, rules, now));
    }
    let budget = INLINE_INFLATED_BYTES_MAX.min(rules.inflate.batch_bytes_max);
    if !compressed || view.size() > INLINE_PACKED_BYTES_MAX {
        return None;
    }
    let bounded = Rules { inflate: InflateLimits { batch_bytes_max: budget, ..rules.inflate }, ..*rules };
    match check(bytes, &bounded, now) {
        Err(Refusal::InflatesTooFar { .. }) if budget < rules.inflate.batch_bytes_max => None,
        result => Some(result),
    }
}

fn fits_loop(view: &BatchView<'_>) -> bool {
    view.size() <= INLINE_BYTES_MAX && view.records_count() <= INLINE_RECORDS_MAX
}

/// The batch with the same records and producer in another codec, and so with other bytes: what a topic stores whose
/// `compression.type` is not the producer's. Offsets and append time are stamped later, as on any batch.
///
/// It comes with what is left to do to it: the builder has set timestamps from the records.
pub fn rebuild(
    batch: &BatchView<'_>,
    checked: &Checked,
    target: Compression,
    rules: &Rules,
) -> Result<(Vec<u8>, Checked), Refusal> {
    let header = batch.header();
    let mut builder = BatchBuilder::new();
    builder.compression(target).transactional(header.attributes.is_transactional());
    if let Some(producer) = header.producer() {
        let base_sequence = Some(producer.base_sequence);
        builder.producer(BatchProducer { id: producer.id, epoch: producer.epoch, base_sequence });
    }
    walk_records(batch, rules.inflate, |_, record| {
        builder.append_view(header.timestamp_at(record.timestamp_delta), record);
        Walk::On
    })?;
    let bytes = builder.build();
    check_stored_size(bytes.len(), rules)?;
    let timestamp = match checked.timestamp {
        TimestampStamp::AppendTime => TimestampStamp::AppendTime,
        TimestampStamp::AsSent | TimestampStamp::Max(_) => TimestampStamp::AsSent,
    };
    let checked = Checked { size: bytes.len(), rebuild: None, timestamp, ..*checked };
    Ok((bytes, checked))
}

#[cfg(test)]
pub(crate) mod tests;
