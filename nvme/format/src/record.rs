//! The records of a commit: what happened to a partition, a shard or the node, in the order of the journal.
//!
//! A record of a partition names the version of the partition before and after it. So a record is known to follow what
//! was read before it, whatever was lost in between, and a replay over a newer checkpoint skips what that already holds.

use crate::blob::{AbortedRange, GivenUp, ProducerState};
use crate::codec::{Length, Malformed, Reader, Sink};
use crate::extent::{ExtentAddress, ExtentOrder, SlabId};
use crate::index::IndexEntry;
use crate::journal::RECORD_ALIGN;
use base::{
    Block, LeaderEpoch, Offset, PartitionId, Position, ProducerEpoch, ProducerId, ShardId, Tenancy, Uuid, WallMillis,
};

/// Numbers the changes of a shard's partitions; never reused within a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

/// The change of a partition that a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    pub partition: PartitionId,
    /// Zero where the partition did not exist.
    pub previous: Version,
    pub version: Version,
}

/// What both kinds of append say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppendFacts {
    /// A new segment starts with the first batch.
    pub rolls: bool,
    pub previous_end: Offset,
    pub appended_at: WallMillis,
    /// Where the first batch starts in the partition's log.
    pub position: Position,
    pub tenancy: Tenancy,
}

/// Batches that a direct write put into the extent, whole blocks; what is left of them follows in `remainder`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppendDone<'a> {
    /// The first block of the direct write.
    pub direct_block: Block,
    /// Where the direct write starts (at or below the append's own position), how long it is, and its CRC.
    pub direct_from: Position,
    pub direct_len: u64,
    pub direct_crc: u32,
    /// The stretches that this append closed.
    pub entries: Vec<IndexEntry>,
    /// The batches' headers, 61 bytes each.
    pub headers: &'a [u8],
    /// The bytes from the direct write's end to the last batch's end, less than a block.
    pub remainder: &'a [u8],
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtentTaken {
    pub extent: ExtentAddress,
    pub tenancy: Tenancy,
    /// Where the extent's first byte stands in the partition's log, and the offset it starts at.
    pub position: Position,
    pub base_offset: Offset,
    /// The compaction that took it; freed by recovery if its swap never came.
    pub job: Option<u64>,
}

/// A cut; everything from `to` on is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Truncated {
    pub to: Offset,
    pub position: Position,
    /// The index of the cut extent as it is then, the stretch that the cut shortens with its new CRC.
    pub entries: Vec<IndexEntry>,
    /// Of the cut extent, and of the last segment, as they are at the cut.
    pub extent_largest: (WallMillis, Offset),
    pub segment_largest: (WallMillis, Offset),
    /// Producers whose state lay beyond the cut, as they were at the cut.
    pub producers: Vec<ProducerState>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransactionEnded {
    pub producer: ProducerId,
    pub epoch: ProducerEpoch,
    pub coordinator_epoch: i32,
    /// The marker's offset.
    pub marker: Offset,
    pub aborted: bool,
    pub timestamp: WallMillis,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveState {
    Future,
    Current,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// Whole batches, byte for byte.
    AppendInline {
        facts: AppendFacts,
        batches: &'a [u8],
    },
    AppendDone {
        facts: AppendFacts,
        done: AppendDone<'a>,
    },
    /// The metadata offset of its creation: an explicit removal below it is of another life.
    Created {
        created_at: i64,
    },
    Deleted,
    ExtentTaken(ExtentTaken),
    ExtentFreed {
        extent: ExtentAddress,
        tenancy: Tenancy,
    },
    Truncated(Truncated),
    LogStartMoved {
        to: Offset,
    },
    /// Everything is dropped and the log starts anew at an offset beyond its end.
    Restarted {
        at: Offset,
    },
    EpochStarted {
        epoch: LeaderEpoch,
        offset: Offset,
    },
    HighWatermark {
        offset: Offset,
    },
    TransactionBegun {
        producer: ProducerId,
        epoch: ProducerEpoch,
        first: Offset,
    },
    TransactionEnded(TransactionEnded),
    Aborted(AbortedRange),
    DirtyOffset {
        offset: Offset,
    },
    Moved {
        namespace: Uuid,
        state: MoveState,
    },
    /// The operator took the loss of what lay beyond `end`.
    LossAccepted {
        end: Offset,
    },
    /// The operator gave up bytes of an extent that cannot be read; the log goes on behind them.
    GivenUp {
        tenancy: Tenancy,
        ranges: Vec<GivenUp>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    Partition(Link, Change<'a>),
    SlabTaken {
        slab: SlabId,
    },
    SlabReleased {
        slab: SlabId,
    },
    /// A part of the view's snapshot: the last part makes it the current one.
    ImageApplied {
        metadata_offset: i64,
        total: u32,
        at: u32,
        bytes: &'a [u8],
    },
    CheckpointPublished {
        sequence: u64,
        root: u8,
    },
}

/// A record and the shard it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordView<'a> {
    pub shard: ShardId,
    pub record: Record<'a>,
}

/// kind, flags, shard, length.
const HEAD: usize = 8;
/// partition, previous, version.
const LINK: usize = 36;
/// rolls, previous end, append time, position, tenancy.
const FACTS: usize = 33;
/// Where the batches start in an inline append, so that they can be copied and stamped in place.
pub const INLINE_BATCHES_AT: usize = HEAD + LINK + FACTS + 4;
/// A batch's header, as `batch` reads it.
pub const BATCH_HEADER: usize = 61;

mod kind {
    pub const APPEND_INLINE: u8 = 1;
    pub const APPEND_DONE: u8 = 2;
    pub const CREATED: u8 = 3;
    pub const DELETED: u8 = 4;
    pub const EXTENT_TAKEN: u8 = 5;
    pub const EXTENT_FREED: u8 = 6;
    pub const TRUNCATED: u8 = 7;
    pub const LOG_START_MOVED: u8 = 8;
    pub const RESTARTED: u8 = 9;
    pub const EPOCH_STARTED: u8 = 10;
    pub const HIGH_WATERMARK: u8 = 11;
    pub const TRANSACTION_BEGUN: u8 = 12;
    pub const TRANSACTION_ENDED: u8 = 13;
    pub const ABORTED: u8 = 14;
    pub const DIRTY_OFFSET: u8 = 15;
    pub const MOVED: u8 = 16;
    pub const LOSS_ACCEPTED: u8 = 17;
    pub const GIVEN_UP: u8 = 18;
    pub const SLAB_TAKEN: u8 = 32;
    pub const SLAB_RELEASED: u8 = 33;
    pub const IMAGE_APPLIED: u8 = 34;
    pub const CHECKPOINT_PUBLISHED: u8 = 35;
}

impl AppendFacts {
    fn encode(&self, sink: &mut impl Sink) {
        sink.bool(self.rolls);
        sink.offset(self.previous_end);
        sink.i64(self.appended_at.0);
        sink.position(self.position);
        sink.tenancy(self.tenancy);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<AppendFacts, Malformed> {
        Ok(AppendFacts {
            rolls: reader.bool()?,
            previous_end: reader.offset()?,
            appended_at: WallMillis(reader.i64()?),
            position: reader.position()?,
            tenancy: reader.tenancy()?,
        })
    }
}

impl ExtentAddress {
    pub fn encode(&self, sink: &mut (impl Sink + ?Sized)) {
        sink.u64(self.start.0);
        sink.u8(self.order.number());
    }

    pub fn decode(reader: &mut Reader<'_>) -> Result<ExtentAddress, Malformed> {
        let start = Block(reader.u64()?);
        let order = ExtentOrder::new(reader.u8()?).ok_or(Malformed)?;
        if start.0 >= 1 << 48 { Err(Malformed) } else { Ok(ExtentAddress { start, order }) }
    }
}

impl<'a> AppendDone<'a> {
    fn encode(&self, sink: &mut impl Sink) {
        sink.u64(self.direct_block.0);
        sink.position(self.direct_from);
        sink.u64(self.direct_len);
        sink.u32(self.direct_crc);
        sink.list(&self.entries, |sink, entry| entry.encode(sink));
        sink.bytes(self.headers);
        sink.bytes(self.remainder);
    }

    fn decode(reader: &mut Reader<'a>) -> Result<AppendDone<'a>, Malformed> {
        let done = AppendDone {
            direct_block: Block(reader.u64()?),
            direct_from: reader.position()?,
            direct_len: reader.u64()?,
            direct_crc: reader.u32()?,
            entries: reader.list(IndexEntry::decode)?,
            headers: reader.bytes()?,
            remainder: reader.bytes()?,
        };
        let sound = done.headers.len().is_multiple_of(BATCH_HEADER) && done.direct_block.0 < 1 << 48;
        if sound { Ok(done) } else { Err(Malformed) }
    }

    /// The headers one by one.
    pub fn headers(&self) -> impl Iterator<Item = &'a [u8; BATCH_HEADER]> + use<'a> {
        self.headers.chunks_exact(BATCH_HEADER).map(|chunk| chunk.first_chunk().expect("chunks are exact"))
    }
}

impl Truncated {
    fn encode(&self, sink: &mut impl Sink) {
        sink.offset(self.to);
        sink.position(self.position);
        sink.list(&self.entries, |sink, entry| entry.encode(sink));
        for (timestamp, offset) in [self.extent_largest, self.segment_largest] {
            sink.i64(timestamp.0);
            sink.offset(offset);
        }
        sink.list(&self.producers, |sink, producer| producer.encode(sink));
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Truncated, Malformed> {
        Ok(Truncated {
            to: reader.offset()?,
            position: reader.position()?,
            entries: reader.list(IndexEntry::decode)?,
            extent_largest: (WallMillis(reader.i64()?), reader.offset()?),
            segment_largest: (WallMillis(reader.i64()?), reader.offset()?),
            producers: reader.list(ProducerState::decode)?,
        })
    }
}

impl TransactionEnded {
    fn encode(&self, sink: &mut impl Sink) {
        sink.i64(self.producer.0);
        sink.i16(self.epoch.0);
        sink.i32(self.coordinator_epoch);
        sink.offset(self.marker);
        sink.bool(self.aborted);
        sink.i64(self.timestamp.0);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<TransactionEnded, Malformed> {
        Ok(TransactionEnded {
            producer: ProducerId(reader.i64()?),
            epoch: ProducerEpoch(reader.i16()?),
            coordinator_epoch: reader.i32()?,
            marker: reader.offset()?,
            aborted: reader.bool()?,
            timestamp: WallMillis(reader.i64()?),
        })
    }
}

impl<'a> Change<'a> {
    fn kind(&self) -> u8 {
        match self {
            Change::AppendInline { .. } => kind::APPEND_INLINE,
            Change::AppendDone { .. } => kind::APPEND_DONE,
            Change::Created { .. } => kind::CREATED,
            Change::Deleted => kind::DELETED,
            Change::ExtentTaken(_) => kind::EXTENT_TAKEN,
            Change::ExtentFreed { .. } => kind::EXTENT_FREED,
            Change::Truncated(_) => kind::TRUNCATED,
            Change::LogStartMoved { .. } => kind::LOG_START_MOVED,
            Change::Restarted { .. } => kind::RESTARTED,
            Change::EpochStarted { .. } => kind::EPOCH_STARTED,
            Change::HighWatermark { .. } => kind::HIGH_WATERMARK,
            Change::TransactionBegun { .. } => kind::TRANSACTION_BEGUN,
            Change::TransactionEnded(_) => kind::TRANSACTION_ENDED,
            Change::Aborted(_) => kind::ABORTED,
            Change::DirtyOffset { .. } => kind::DIRTY_OFFSET,
            Change::Moved { .. } => kind::MOVED,
            Change::LossAccepted { .. } => kind::LOSS_ACCEPTED,
            Change::GivenUp { .. } => kind::GIVEN_UP,
        }
    }

    fn encode(&self, sink: &mut impl Sink) {
        match self {
            Change::AppendInline { facts, batches } => {
                facts.encode(sink);
                sink.bytes(batches);
            }
            Change::AppendDone { facts, done } => {
                facts.encode(sink);
                done.encode(sink);
            }
            Change::Created { created_at } => sink.i64(*created_at),
            Change::Deleted => {}
            Change::ExtentTaken(taken) => {
                taken.extent.encode(sink);
                sink.tenancy(taken.tenancy);
                sink.position(taken.position);
                sink.offset(taken.base_offset);
                sink.option(&taken.job, |sink, job| sink.u64(*job));
            }
            Change::ExtentFreed { extent, tenancy } => {
                extent.encode(sink);
                sink.tenancy(*tenancy);
            }
            Change::Truncated(truncated) => truncated.encode(sink),
            Change::LogStartMoved { to } => sink.offset(*to),
            Change::Restarted { at } => sink.offset(*at),
            Change::EpochStarted { epoch, offset } => {
                sink.epoch(*epoch);
                sink.offset(*offset);
            }
            Change::HighWatermark { offset } => sink.offset(*offset),
            Change::TransactionBegun { producer, epoch, first } => {
                sink.i64(producer.0);
                sink.i16(epoch.0);
                sink.offset(*first);
            }
            Change::TransactionEnded(ended) => ended.encode(sink),
            Change::Aborted(range) => range.encode(sink),
            Change::DirtyOffset { offset } => sink.offset(*offset),
            Change::Moved { namespace, state } => {
                sink.uuid(*namespace);
                sink.bool(*state == MoveState::Current);
            }
            Change::LossAccepted { end } => sink.offset(*end),
            Change::GivenUp { tenancy, ranges } => {
                sink.tenancy(*tenancy);
                sink.list(ranges, |sink, range| range.encode(sink));
            }
        }
    }

    fn decode(number: u8, reader: &mut Reader<'a>) -> Result<Change<'a>, Malformed> {
        Ok(match number {
            kind::APPEND_INLINE => {
                Change::AppendInline { facts: AppendFacts::decode(reader)?, batches: reader.bytes()? }
            }
            kind::APPEND_DONE => {
                Change::AppendDone { facts: AppendFacts::decode(reader)?, done: AppendDone::decode(reader)? }
            }
            kind::CREATED => Change::Created { created_at: reader.i64()? },
            kind::DELETED => Change::Deleted,
            kind::EXTENT_TAKEN => Change::ExtentTaken(ExtentTaken {
                extent: ExtentAddress::decode(reader)?,
                tenancy: reader.tenancy()?,
                position: reader.position()?,
                base_offset: reader.offset()?,
                job: reader.option(Reader::u64)?,
            }),
            kind::EXTENT_FREED => {
                Change::ExtentFreed { extent: ExtentAddress::decode(reader)?, tenancy: reader.tenancy()? }
            }
            kind::TRUNCATED => Change::Truncated(Truncated::decode(reader)?),
            kind::LOG_START_MOVED => Change::LogStartMoved { to: reader.offset()? },
            kind::RESTARTED => Change::Restarted { at: reader.offset()? },
            kind::EPOCH_STARTED => Change::EpochStarted { epoch: reader.epoch()?, offset: reader.offset()? },
            kind::HIGH_WATERMARK => Change::HighWatermark { offset: reader.offset()? },
            kind::TRANSACTION_BEGUN => Change::TransactionBegun {
                producer: ProducerId(reader.i64()?),
                epoch: ProducerEpoch(reader.i16()?),
                first: reader.offset()?,
            },
            kind::TRANSACTION_ENDED => Change::TransactionEnded(TransactionEnded::decode(reader)?),
            kind::ABORTED => Change::Aborted(AbortedRange::decode(reader)?),
            kind::DIRTY_OFFSET => Change::DirtyOffset { offset: reader.offset()? },
            kind::MOVED => Change::Moved {
                namespace: reader.uuid()?,
                state: if reader.bool()? { MoveState::Current } else { MoveState::Future },
            },
            kind::LOSS_ACCEPTED => Change::LossAccepted { end: reader.offset()? },
            kind::GIVEN_UP => Change::GivenUp { tenancy: reader.tenancy()?, ranges: reader.list(GivenUp::decode)? },
            _ => return Err(Malformed),
        })
    }
}

impl<'a> RecordView<'a> {
    fn kind(&self) -> u8 {
        match &self.record {
            Record::Partition(_, change) => change.kind(),
            Record::SlabTaken { .. } => kind::SLAB_TAKEN,
            Record::SlabReleased { .. } => kind::SLAB_RELEASED,
            Record::ImageApplied { .. } => kind::IMAGE_APPLIED,
            Record::CheckpointPublished { .. } => kind::CHECKPOINT_PUBLISHED,
        }
    }

    fn encode_body(&self, sink: &mut impl Sink) {
        match &self.record {
            Record::Partition(link, change) => {
                sink.partition(link.partition);
                sink.u64(link.previous.0);
                sink.u64(link.version.0);
                change.encode(sink);
            }
            Record::SlabTaken { slab } | Record::SlabReleased { slab } => sink.u32(slab.0),
            Record::ImageApplied { metadata_offset, total, at, bytes } => {
                sink.i64(*metadata_offset);
                sink.u32(*total);
                sink.u32(*at);
                sink.bytes(bytes);
            }
            Record::CheckpointPublished { sequence, root } => {
                sink.u64(*sequence);
                sink.u8(*root);
            }
        }
    }

    /// The bytes it takes in a commit.
    pub fn encoded_len(&self) -> usize {
        let mut length = Length(HEAD);
        self.encode_body(&mut length);
        length.0.next_multiple_of(RECORD_ALIGN)
    }

    /// Writes the record; the sink gets exactly `encoded_len` bytes.
    pub fn encode(&self, sink: &mut impl Sink) {
        let mut length = Length(HEAD);
        self.encode_body(&mut length);
        encode_head(sink, self.kind(), self.shard, length.0);
        self.encode_body(sink);
        pad(sink, length.0);
    }

    pub fn decode(reader: &mut Reader<'a>) -> Result<RecordView<'a>, Malformed> {
        let number = reader.u8()?;
        if reader.u8()? != 0 {
            return Err(Malformed);
        }
        let shard = ShardId(reader.u16()?);
        let length = reader.u32()? as usize;
        let body = reader.take(length.checked_sub(HEAD).ok_or(Malformed)?)?;
        reader.take(length.next_multiple_of(RECORD_ALIGN) - length)?;
        let mut body = Reader::new(body);
        let record = match number {
            kind::SLAB_TAKEN => Record::SlabTaken { slab: SlabId(body.u32()?) },
            kind::SLAB_RELEASED => Record::SlabReleased { slab: SlabId(body.u32()?) },
            kind::IMAGE_APPLIED => Record::ImageApplied {
                metadata_offset: body.i64()?,
                total: body.u32()?,
                at: body.u32()?,
                bytes: body.bytes()?,
            },
            kind::CHECKPOINT_PUBLISHED => Record::CheckpointPublished { sequence: body.u64()?, root: body.u8()? },
            _ => {
                let link = Link {
                    partition: body.partition()?,
                    previous: Version(body.u64()?),
                    version: Version(body.u64()?),
                };
                if link.version <= link.previous {
                    return Err(Malformed);
                }
                Record::Partition(link, Change::decode(number, &mut body)?)
            }
        };
        if body.rest().is_empty() { Ok(RecordView { shard, record }) } else { Err(Malformed) }
    }
}

fn encode_head(sink: &mut impl Sink, kind: u8, shard: ShardId, length: usize) {
    sink.u8(kind);
    sink.u8(0);
    sink.u16(shard.0);
    sink.count(length);
}

fn pad(sink: &mut impl Sink, length: usize) {
    sink.put(&[0u8; RECORD_ALIGN][..length.next_multiple_of(RECORD_ALIGN) - length]);
}

/// The bytes that an inline append of `batches` bytes takes in a commit.
pub fn inline_len(batches: usize) -> usize {
    (INLINE_BATCHES_AT + batches).next_multiple_of(RECORD_ALIGN)
}

/// Writes an inline append around batches that are copied in place: everything before and after `batches` bytes at
/// `INLINE_BATCHES_AT`. The result is what `RecordView::encode` writes.
pub fn encode_inline_around(into: &mut [u8], shard: ShardId, link: Link, facts: &AppendFacts, batches: usize) {
    let length = INLINE_BATCHES_AT + batches;
    let mut sink = crate::codec::SliceSink::new(&mut into[..INLINE_BATCHES_AT]);
    encode_head(&mut sink, kind::APPEND_INLINE, shard, length);
    sink.partition(link.partition);
    sink.u64(link.previous.0);
    sink.u64(link.version.0);
    facts.encode(&mut sink);
    sink.count(batches);
    assert_eq!(sink.at(), INLINE_BATCHES_AT, "the layout of an inline append");
    into[length..length.next_multiple_of(RECORD_ALIGN)].fill(0);
}

#[cfg(test)]
mod tests;
