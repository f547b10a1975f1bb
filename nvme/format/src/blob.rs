//! A partition in a checkpoint: all that a recovery must know of it without reading its extents. Its CRC stands in the
//! directory.

use crate::codec::{Malformed, Reader, Sink};
use crate::extent::ExtentAddress;
use crate::index::IndexEntry;
use crate::record::Version;
use base::{LeaderEpoch, Offset, PartitionId, Position, ProducerEpoch, ProducerId, Sequence, Tenancy, WallMillis};

const MAGIC: u32 = u32::from_le_bytes(*b"PXPB");
/// Of a blob whose extents all are what was written to them.
const VERSION: u16 = 1;
/// Of one in which some bytes were given up: each extent says which.
const VERSION_GIVEN_UP: u16 = 2;
/// Batches of a producer whose duplicates are recognised, as in Kafka.
pub const PRODUCER_BATCHES: usize = 5;

/// A segment: the records from its base to the next one's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub base: Offset,
    pub position: Position,
    pub largest_timestamp: WallMillis,
    pub offset_of_largest: Offset,
    /// The timestamp that its age is counted from when it rolls: the first batch's largest.
    pub rolls_from: Option<WallMillis>,
    /// When it was appended to last.
    pub modified: WallMillis,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochStart {
    pub epoch: LeaderEpoch,
    pub offset: Offset,
}

/// A batch of a producer, for recognising duplicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerBatch {
    pub first_sequence: Sequence,
    pub last_sequence: Sequence,
    pub base_offset: Offset,
    pub last_offset: Offset,
    pub timestamp: WallMillis,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerState {
    pub id: ProducerId,
    pub epoch: ProducerEpoch,
    pub coordinator_epoch: i32,
    pub last_timestamp: WallMillis,
    /// The offset of its last record or marker: a cut at or below it changes this state.
    pub last_offset: Offset,
    /// The first offset of its open transaction.
    pub transaction: Option<Offset>,
    /// The last few, oldest first.
    pub batches: Vec<ProducerBatch>,
}

/// A transaction that was aborted, as Kafka's transaction index has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbortedRange {
    pub producer: ProducerId,
    pub first: Offset,
    /// The marker.
    pub last: Offset,
    /// The last stable offset when the marker was appended.
    pub last_stable: Offset,
}

/// A transaction that ended and whose marker may not be below the high watermark yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedTransaction {
    pub first: Offset,
    pub marker: Offset,
}

/// Producers as they were at an offset: where a truncation starts from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerSnapshot {
    pub offset: Offset,
    pub position: Position,
    /// Of its segment so far.
    pub largest_timestamp: WallMillis,
    pub offset_of_largest: Offset,
    pub producers: Vec<ProducerState>,
}

/// Where the index blocks of a closed extent lie: a block number within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexPlace {
    pub block: u32,
    pub entries: u32,
}

/// Bytes of an extent that the operator gave up, since they cannot be read any more: whole stretches (and whole batches),
/// and the offsets that were in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenUp {
    /// Positions in the extent.
    pub from: u32,
    pub to: u32,
    pub first: Offset,
    pub next: Offset,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtentState {
    pub address: ExtentAddress,
    pub tenancy: Tenancy,
    pub position: Position,
    pub base_offset: Offset,
    /// Bytes of batches in it.
    pub len: u64,
    /// Bytes from its start that were given to the device (whole blocks).
    pub submitted: u64,
    pub sealed: bool,
    /// Of the whole extent.
    pub largest_timestamp: i64,
    pub offset_of_largest: Offset,
    /// Entries that no index block holds.
    pub entries: Vec<IndexEntry>,
    /// Entries before those, in index blocks.
    pub index: Option<IndexPlace>,
    /// In the order of their positions.
    pub given_up: Vec<GivenUp>,
}

/// Bytes of the log's end that may lie in no readable block: a batch, or the rest of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TailPart {
    pub position: Position,
    pub base: Offset,
    pub last: Offset,
    /// It is the rest of a batch, not its start.
    pub is_rest: bool,
    pub len: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionBlob {
    pub id: PartitionId,
    pub version: Version,
    pub created_at: i64,
    pub log_start: Offset,
    pub end: Offset,
    pub end_position: Position,
    pub high_watermark: Offset,
    pub epochs: Vec<EpochStart>,
    pub segments: Vec<Segment>,
    pub extents: Vec<ExtentState>,
    pub producers: Vec<ProducerState>,
    pub snapshots: Vec<ProducerSnapshot>,
    pub aborted: Vec<AbortedRange>,
    pub ended: Vec<EndedTransaction>,
    pub dirty_offset: Option<Offset>,
    /// The largest batch seen, which the size of the next extent follows.
    pub largest_batch: u32,
    /// From this offset on records may be lost; it is not served before it is repaired or the loss accepted.
    pub suspect: Option<Offset>,
    pub tail: Vec<TailPart>,
    pub tail_bytes: Vec<u8>,
}

impl Segment {
    fn encode(&self, sink: &mut (impl Sink + ?Sized)) {
        sink.offset(self.base);
        sink.position(self.position);
        sink.i64(self.largest_timestamp.0);
        sink.offset(self.offset_of_largest);
        sink.option(&self.rolls_from, |sink, at| sink.i64(at.0));
        sink.i64(self.modified.0);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Segment, Malformed> {
        Ok(Segment {
            base: reader.offset()?,
            position: reader.position()?,
            largest_timestamp: WallMillis(reader.i64()?),
            offset_of_largest: reader.offset()?,
            rolls_from: reader.option(|reader| reader.i64().map(WallMillis))?,
            modified: WallMillis(reader.i64()?),
        })
    }
}

impl ProducerBatch {
    fn encode(&self, sink: &mut (impl Sink + ?Sized)) {
        sink.i32(self.first_sequence.0);
        sink.i32(self.last_sequence.0);
        sink.offset(self.base_offset);
        sink.offset(self.last_offset);
        sink.i64(self.timestamp.0);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<ProducerBatch, Malformed> {
        Ok(ProducerBatch {
            first_sequence: Sequence(reader.i32()?),
            last_sequence: Sequence(reader.i32()?),
            base_offset: reader.offset()?,
            last_offset: reader.offset()?,
            timestamp: WallMillis(reader.i64()?),
        })
    }
}

impl ProducerState {
    pub fn encode(&self, sink: &mut (impl Sink + ?Sized)) {
        sink.i64(self.id.0);
        sink.i16(self.epoch.0);
        sink.i32(self.coordinator_epoch);
        sink.i64(self.last_timestamp.0);
        sink.offset(self.last_offset);
        sink.option(&self.transaction, |sink, first| sink.offset(*first));
        sink.u8(self.batches.len() as u8);
        for batch in &self.batches {
            batch.encode(sink);
        }
    }

    pub fn decode(reader: &mut Reader<'_>) -> Result<ProducerState, Malformed> {
        let mut state = ProducerState {
            id: ProducerId(reader.i64()?),
            epoch: ProducerEpoch(reader.i16()?),
            coordinator_epoch: reader.i32()?,
            last_timestamp: WallMillis(reader.i64()?),
            last_offset: reader.offset()?,
            transaction: reader.option(Reader::offset)?,
            batches: Vec::new(),
        };
        let count = usize::from(reader.u8()?);
        if count > PRODUCER_BATCHES {
            return Err(Malformed);
        }
        for _ in 0..count {
            state.batches.push(ProducerBatch::decode(reader)?);
        }
        Ok(state)
    }
}

impl AbortedRange {
    pub fn encode(&self, sink: &mut (impl Sink + ?Sized)) {
        sink.i64(self.producer.0);
        sink.offset(self.first);
        sink.offset(self.last);
        sink.offset(self.last_stable);
    }

    pub fn decode(reader: &mut Reader<'_>) -> Result<AbortedRange, Malformed> {
        Ok(AbortedRange {
            producer: ProducerId(reader.i64()?),
            first: reader.offset()?,
            last: reader.offset()?,
            last_stable: reader.offset()?,
        })
    }
}

impl GivenUp {
    pub fn encode(&self, sink: &mut (impl Sink + ?Sized)) {
        sink.u32(self.from);
        sink.u32(self.to);
        sink.offset(self.first);
        sink.offset(self.next);
    }

    pub fn decode(reader: &mut Reader<'_>) -> Result<GivenUp, Malformed> {
        let given_up =
            GivenUp { from: reader.u32()?, to: reader.u32()?, first: reader.offset()?, next: reader.offset()? };
        if given_up.from < given_up.to { Ok(given_up) } else { Err(Malformed) }
    }
}

impl ExtentState {
    fn encode(&self, version: u16, sink: &mut (impl Sink + ?Sized)) {
        self.address.encode(sink);
        sink.tenancy(self.tenancy);
        sink.position(self.position);
        sink.offset(self.base_offset);
        sink.u64(self.len);
        sink.u64(self.submitted);
        sink.bool(self.sealed);
        sink.i64(self.largest_timestamp);
        sink.offset(self.offset_of_largest);
        sink.count(self.entries.len());
        for entry in &self.entries {
            entry.encode(sink);
        }
        sink.bool(self.index.is_some());
        if let Some(index) = self.index {
            sink.u32(index.block);
            sink.u32(index.entries);
        }
        if version == VERSION_GIVEN_UP {
            sink.count(self.given_up.len());
            for given_up in &self.given_up {
                given_up.encode(sink);
            }
        }
    }

    fn decode(version: u16, reader: &mut Reader<'_>) -> Result<ExtentState, Malformed> {
        let state = ExtentState {
            address: ExtentAddress::decode(reader)?,
            tenancy: reader.tenancy()?,
            position: reader.position()?,
            base_offset: reader.offset()?,
            len: reader.u64()?,
            submitted: reader.u64()?,
            sealed: reader.bool()?,
            largest_timestamp: reader.i64()?,
            offset_of_largest: reader.offset()?,
            entries: reader.list(IndexEntry::decode)?,
            index: reader.option(|reader| Ok(IndexPlace { block: reader.u32()?, entries: reader.u32()? }))?,
            given_up: if version == VERSION_GIVEN_UP { reader.list(GivenUp::decode)? } else { Vec::new() },
        };
        let size = state.address.order.bytes();
        let in_order = state.given_up.windows(2).all(|pair| pair[0].to <= pair[1].from);
        let inside = state.given_up.last().is_none_or(|last| u64::from(last.to) <= state.len);
        let sound = state.len <= size && state.submitted <= size && in_order && inside;
        if sound { Ok(state) } else { Err(Malformed) }
    }
}

impl TailPart {
    fn encode(&self, sink: &mut (impl Sink + ?Sized)) {
        sink.position(self.position);
        sink.offset(self.base);
        sink.offset(self.last);
        sink.bool(self.is_rest);
        sink.u32(self.len);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<TailPart, Malformed> {
        Ok(TailPart {
            position: reader.position()?,
            base: reader.offset()?,
            last: reader.offset()?,
            is_rest: reader.bool()?,
            len: reader.u32()?,
        })
    }
}

impl PartitionBlob {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(512 + self.tail_bytes.len());
        let version = self.layout();
        bytes.u32(MAGIC);
        bytes.u16(version);
        bytes.partition(self.id);
        bytes.u64(self.version.0);
        bytes.i64(self.created_at);
        bytes.offset(self.log_start);
        bytes.offset(self.end);
        bytes.position(self.end_position);
        bytes.offset(self.high_watermark);
        bytes.list(&self.epochs, |sink, start| {
            sink.epoch(start.epoch);
            sink.offset(start.offset);
        });
        bytes.list(&self.segments, |sink, segment| segment.encode(sink));
        bytes.list(&self.extents, |sink, extent| extent.encode(version, sink));
        bytes.list(&self.producers, |sink, producer| producer.encode(sink));
        bytes.list(&self.snapshots, |sink, snapshot| {
            sink.offset(snapshot.offset);
            sink.position(snapshot.position);
            sink.i64(snapshot.largest_timestamp.0);
            sink.offset(snapshot.offset_of_largest);
            sink.list(&snapshot.producers, |sink, producer| producer.encode(sink));
        });
        bytes.list(&self.aborted, |sink, range| range.encode(sink));
        bytes.list(&self.ended, |sink, ended| {
            sink.offset(ended.first);
            sink.offset(ended.marker);
        });
        bytes.option(&self.dirty_offset, |sink, offset| sink.offset(*offset));
        bytes.u32(self.largest_batch);
        bytes.option(&self.suspect, |sink, from| sink.offset(*from));
        bytes.list(&self.tail, |sink, part| part.encode(sink));
        bytes.bytes(&self.tail_bytes);
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<PartitionBlob, Malformed> {
        let mut reader = Reader::new(bytes);
        let (magic, version) = (reader.u32()?, reader.u16()?);
        if magic != MAGIC || !(VERSION..=VERSION_GIVEN_UP).contains(&version) {
            return Err(Malformed);
        }
        let blob = PartitionBlob {
            id: reader.partition()?,
            version: Version(reader.u64()?),
            created_at: reader.i64()?,
            log_start: reader.offset()?,
            end: reader.offset()?,
            end_position: reader.position()?,
            high_watermark: reader.offset()?,
            epochs: reader.list(|reader| Ok(EpochStart { epoch: reader.epoch()?, offset: reader.offset()? }))?,
            segments: reader.list(Segment::decode)?,
            extents: reader.list(|reader| ExtentState::decode(version, reader))?,
            producers: reader.list(ProducerState::decode)?,
            snapshots: reader.list(|reader| {
                Ok(ProducerSnapshot {
                    offset: reader.offset()?,
                    position: reader.position()?,
                    largest_timestamp: WallMillis(reader.i64()?),
                    offset_of_largest: reader.offset()?,
                    producers: reader.list(ProducerState::decode)?,
                })
            })?,
            aborted: reader.list(AbortedRange::decode)?,
            ended: reader.list(|reader| Ok(EndedTransaction { first: reader.offset()?, marker: reader.offset()? }))?,
            dirty_offset: reader.option(Reader::offset)?,
            largest_batch: reader.u32()?,
            suspect: reader.option(Reader::offset)?,
            tail: reader.list(TailPart::decode)?,
            tail_bytes: reader.bytes()?.to_vec(),
        };
        let sound = reader.rest().is_empty() && blob.layout() == version && blob.is_sound();
        if sound { Ok(blob) } else { Err(Malformed) }
    }

    /// The layout that has room for what it holds, and no more: a partition has one form.
    fn layout(&self) -> u16 {
        let whole = self.extents.iter().all(|extent| extent.given_up.is_empty());
        if whole { VERSION } else { VERSION_GIVEN_UP }
    }

    /// The parts of a tail are contiguous, end at the log's end, and are what the bytes hold.
    fn is_sound(&self) -> bool {
        let mut at = self.tail.first().map_or(self.end_position.0, |part| part.position.0);
        for part in &self.tail {
            if part.position.0 != at {
                return false;
            }
            at = at.saturating_add(u64::from(part.len));
        }
        let bytes: u64 = self.tail.iter().map(|part| u64::from(part.len)).sum();
        at == self.end_position.0 && bytes == self.tail_bytes.len() as u64 && self.log_start <= self.end
    }
}
