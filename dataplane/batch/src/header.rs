//! The 61 bytes before a batch's records (KIP-98): layout, borrowed view, owned meaning, and stamping in place.
//!
//! The CRC covers everything from the attributes on, so the base offset and the leader epoch are stamped for free; any
//! other change of the header costs a pass over the batch.

use crate::compression::{Codec, UnknownCodec};
use crate::record::Records;
use base::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, Sequence, WallMillis};

/// Where each field starts. Big endian throughout.
mod at {
    pub const BASE_OFFSET: usize = 0;
    pub const LENGTH: usize = 8;
    pub const PARTITION_LEADER_EPOCH: usize = 12;
    pub const MAGIC: usize = 16;
    pub const CRC: usize = 17;
    pub const ATTRIBUTES: usize = 21;
    pub const LAST_OFFSET_DELTA: usize = 23;
    pub const BASE_TIMESTAMP: usize = 27;
    pub const MAX_TIMESTAMP: usize = 35;
    pub const PRODUCER_ID: usize = 43;
    pub const PRODUCER_EPOCH: usize = 51;
    pub const BASE_SEQUENCE: usize = 53;
    pub const RECORDS_COUNT: usize = 57;
    pub const RECORDS: usize = 61;
}

/// The size of a batch without records.
pub const HEADER_SIZE: usize = at::RECORDS;
/// The length field counts what follows it; these bytes do not count.
pub(crate) const BEFORE_LENGTH: usize = at::PARTITION_LEADER_EPOCH;
/// The one version of a batch that is stored; 0 and 1 are message sets that Kafka 4 no longer takes.
pub const MAGIC: i8 = 2;
/// What Kafka puts where a record or batch has no timestamp. It is kept as a plain number because records carry any.
pub const NO_TIMESTAMP: WallMillis = WallMillis(-1);
/// The smallest length a message of any version can have; below it the bytes are not a batch at all.
const SMALLEST_LENGTH: i32 = 14;

const _: () = {
    assert!(at::LENGTH == at::BASE_OFFSET + 8);
    assert!(at::PARTITION_LEADER_EPOCH == at::LENGTH + 4);
    assert!(at::MAGIC == at::PARTITION_LEADER_EPOCH + 4);
    assert!(at::CRC == at::MAGIC + 1);
    assert!(at::ATTRIBUTES == at::CRC + 4);
    assert!(at::LAST_OFFSET_DELTA == at::ATTRIBUTES + 2);
    assert!(at::BASE_TIMESTAMP == at::LAST_OFFSET_DELTA + 4);
    assert!(at::MAX_TIMESTAMP == at::BASE_TIMESTAMP + 8);
    assert!(at::PRODUCER_ID == at::MAX_TIMESTAMP + 8);
    assert!(at::PRODUCER_EPOCH == at::PRODUCER_ID + 8);
    assert!(at::BASE_SEQUENCE == at::PRODUCER_EPOCH + 2);
    assert!(at::RECORDS_COUNT == at::BASE_SEQUENCE + 4);
    assert!(at::RECORDS == at::RECORDS_COUNT + 4);
    assert!(HEADER_SIZE == 61);
};

/// Why bytes are not a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    #[error("the batch needs {need} bytes and there are {have}")]
    Incomplete { have: usize, need: usize },
    #[error("the length {0} is too small for a batch")]
    Length(i32),
    #[error("magic {0} is not one of Kafka's")]
    UnknownMagic(i8),
    #[error("magic {0} is of a message set before record batches")]
    OldMagic(i8),
    #[error("{0} bytes follow the one batch there may be")]
    Trailing(usize),
    #[error("the stored CRC is {stored:#010x}, the bytes have {computed:#010x}")]
    Crc { stored: u32, computed: u32 },
    #[error("the count {count} or the last offset delta {last_offset_delta} is impossible")]
    Count { count: i32, last_offset_delta: i32 },
}

/// Whose clock a batch's timestamps come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TimestampType {
    #[default]
    CreateTime,
    LogAppendTime,
}

/// The attribute bits of a batch. Unknown bits are kept, so that a header is written back as it was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Attributes(pub u16);

impl Attributes {
    const CODEC: u16 = 0x07;
    const LOG_APPEND_TIME: u16 = 0x08;
    const TRANSACTIONAL: u16 = 0x10;
    const CONTROL: u16 = 0x20;
    const DELETE_HORIZON: u16 = 0x40;

    pub fn codec(self) -> Result<Codec, UnknownCodec> {
        Codec::from_id((self.0 & Self::CODEC) as u8)
    }

    pub fn timestamp_type(self) -> TimestampType {
        if self.0 & Self::LOG_APPEND_TIME == 0 { TimestampType::CreateTime } else { TimestampType::LogAppendTime }
    }

    pub fn is_transactional(self) -> bool {
        self.0 & Self::TRANSACTIONAL != 0
    }

    pub fn is_control(self) -> bool {
        self.0 & Self::CONTROL != 0
    }

    /// The base timestamp is then the time after which tombstones and markers may go (KIP-534).
    pub fn has_delete_horizon(self) -> bool {
        self.0 & Self::DELETE_HORIZON != 0
    }

    fn with(self, bit: u16, on: bool) -> Attributes {
        Attributes(if on { self.0 | bit } else { self.0 & !bit })
    }

    pub fn with_codec(self, codec: Codec) -> Attributes {
        Attributes((self.0 & !Self::CODEC) | u16::from(codec.id()))
    }

    pub fn with_timestamp_type(self, kind: TimestampType) -> Attributes {
        self.with(Self::LOG_APPEND_TIME, kind == TimestampType::LogAppendTime)
    }

    pub fn with_transactional(self, on: bool) -> Attributes {
        self.with(Self::TRANSACTIONAL, on)
    }

    pub fn with_control(self, on: bool) -> Attributes {
        self.with(Self::CONTROL, on)
    }

    pub fn with_delete_horizon(self, on: bool) -> Attributes {
        self.with(Self::DELETE_HORIZON, on)
    }

    /// Without the bits that have no meaning yet. Whatever writes attributes anew drops them, as Kafka does.
    pub fn known(self) -> Attributes {
        Attributes(self.0 & 0x7F)
    }
}

/// The owned meaning of a header. Numbers stand as on the wire (-1 where there is no producer or no epoch yet), so that
/// it is written back byte for byte; `producer` gives the checked reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    pub base_offset: Offset,
    /// Bytes of the whole batch, header and length field included.
    pub size: u32,
    pub partition_leader_epoch: LeaderEpoch,
    pub crc: u32,
    pub attributes: Attributes,
    pub last_offset_delta: i32,
    pub base_timestamp: WallMillis,
    pub max_timestamp: WallMillis,
    pub producer_id: ProducerId,
    pub producer_epoch: ProducerEpoch,
    pub base_sequence: Sequence,
    pub records_count: i32,
}

/// Who wrote a batch with idempotence on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerStamp {
    pub id: ProducerId,
    pub epoch: ProducerEpoch,
    pub base_sequence: Sequence,
    pub last_sequence: Sequence,
}

impl BatchHeader {
    /// Reads a header alone, as the journal carries it. Its CRC can only be checked where the records are.
    pub fn from_bytes(bytes: &[u8; HEADER_SIZE]) -> Result<BatchHeader, BatchError> {
        let size = claimed_size(bytes)?;
        let header = BatchHeader {
            base_offset: Offset(be_i64(bytes, at::BASE_OFFSET)),
            size: u32::try_from(size).expect("an i32 and twelve is below 2^32"),
            partition_leader_epoch: LeaderEpoch(be_i32(bytes, at::PARTITION_LEADER_EPOCH)),
            crc: be_i32(bytes, at::CRC) as u32,
            attributes: Attributes(be_i16(bytes, at::ATTRIBUTES) as u16),
            last_offset_delta: be_i32(bytes, at::LAST_OFFSET_DELTA),
            base_timestamp: WallMillis(be_i64(bytes, at::BASE_TIMESTAMP)),
            max_timestamp: WallMillis(be_i64(bytes, at::MAX_TIMESTAMP)),
            producer_id: ProducerId(be_i64(bytes, at::PRODUCER_ID)),
            producer_epoch: ProducerEpoch(be_i16(bytes, at::PRODUCER_EPOCH)),
            base_sequence: Sequence(be_i32(bytes, at::BASE_SEQUENCE)),
            records_count: be_i32(bytes, at::RECORDS_COUNT),
        };
        Ok(header)
    }

    pub fn to_bytes(&self) -> [u8; HEADER_SIZE] {
        let mut bytes = [0u8; HEADER_SIZE];
        let length = i32::try_from(self.size - BEFORE_LENGTH as u32).expect("a length has 31 bits");
        put(&mut bytes, at::BASE_OFFSET, self.base_offset.0.to_be_bytes());
        put(&mut bytes, at::LENGTH, length.to_be_bytes());
        put(&mut bytes, at::PARTITION_LEADER_EPOCH, self.partition_leader_epoch.0.to_be_bytes());
        put(&mut bytes, at::MAGIC, MAGIC.to_be_bytes());
        put(&mut bytes, at::CRC, self.crc.to_be_bytes());
        put(&mut bytes, at::ATTRIBUTES, self.attributes.0.to_be_bytes());
        put(&mut bytes, at::LAST_OFFSET_DELTA, self.last_offset_delta.to_be_bytes());
        put(&mut bytes, at::BASE_TIMESTAMP, self.base_timestamp.0.to_be_bytes());
        put(&mut bytes, at::MAX_TIMESTAMP, self.max_timestamp.0.to_be_bytes());
        put(&mut bytes, at::PRODUCER_ID, self.producer_id.0.to_be_bytes());
        put(&mut bytes, at::PRODUCER_EPOCH, self.producer_epoch.0.to_be_bytes());
        put(&mut bytes, at::BASE_SEQUENCE, self.base_sequence.0.to_be_bytes());
        put(&mut bytes, at::RECORDS_COUNT, self.records_count.to_be_bytes());
        bytes
    }

    /// The offset of the last record, or of the last one there was before compaction took it.
    pub fn last_offset(&self) -> Offset {
        Offset(self.base_offset.0.wrapping_add(i64::from(self.last_offset_delta)))
    }

    pub fn next_offset(&self) -> Offset {
        Offset(self.last_offset().0.wrapping_add(1))
    }

    /// The producer, where the batch has one (its id is not negative). Markers have one whose sequence is -1.
    pub fn producer(&self) -> Option<ProducerStamp> {
        (self.producer_id.0 >= 0).then(|| ProducerStamp {
            id: self.producer_id,
            epoch: self.producer_epoch,
            base_sequence: self.base_sequence,
            last_sequence: last_sequence(self.base_sequence, self.last_offset_delta),
        })
    }

    /// When tombstones and markers of this batch may go, once a first cleaning pass has decided that (KIP-534).
    pub fn delete_horizon(&self) -> Option<WallMillis> {
        self.attributes.has_delete_horizon().then_some(self.base_timestamp)
    }

    /// The timestamp of a record of this batch.
    pub fn timestamp_at(&self, timestamp_delta: i64) -> WallMillis {
        match self.attributes.timestamp_type() {
            TimestampType::CreateTime => WallMillis(self.base_timestamp.0.wrapping_add(timestamp_delta)),
            TimestampType::LogAppendTime => self.max_timestamp,
        }
    }

    /// The offset of a record of this batch.
    pub fn offset_at(&self, offset_delta: i32) -> Offset {
        Offset(self.base_offset.0.wrapping_add(i64::from(offset_delta)))
    }
}

fn last_sequence(base: Sequence, last_offset_delta: i32) -> Sequence {
    if base.0 < 0 { base } else { base.plus(last_offset_delta.max(0) as u32) }
}

/// One batch, framed: length and magic are right and all its bytes are there. Nothing else is known of it before
/// `check_crc` and `check_counts`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchView<'a> {
    bytes: &'a [u8],
}

impl<'a> BatchView<'a> {
    /// The first batch of `bytes` and what follows it.
    pub fn parse(bytes: &'a [u8]) -> Result<(BatchView<'a>, &'a [u8]), BatchError> {
        let size = claimed_size(bytes)?;
        let (batch, rest) =
            bytes.split_at_checked(size).ok_or(BatchError::Incomplete { have: bytes.len(), need: size })?;
        Ok((BatchView { bytes: batch }, rest))
    }

    /// One batch, nothing after it, CRC and counts right: what a stored or fetched batch has to be.
    pub fn parse_whole(bytes: &'a [u8]) -> Result<BatchView<'a>, BatchError> {
        let (view, rest) = BatchView::parse(bytes)?;
        if !rest.is_empty() {
            return Err(BatchError::Trailing(rest.len()));
        }
        view.check_crc()?;
        view.check_counts()?;
        Ok(view)
    }

    pub fn check_crc(&self) -> Result<(), BatchError> {
        let (stored, computed) = (self.crc(), self.computed_crc());
        if stored == computed { Ok(()) } else { Err(BatchError::Crc { stored, computed }) }
    }

    /// Whether the header's numbers can be used in arithmetic: a compacted batch may have fewer records than its offset
    /// range, never more; offsets stay below 2^63.
    pub fn check_counts(&self) -> Result<(), BatchError> {
        let (count, last_offset_delta) = (self.records_count(), self.last_offset_delta());
        let range = i64::from(last_offset_delta) + 1;
        let offsets_fit = self.base_offset().0 >= 0 && self.base_offset().0.checked_add(range).is_some();
        if last_offset_delta >= 0 && (0..=range).contains(&i64::from(count)) && offsets_fit {
            Ok(())
        } else {
            Err(BatchError::Count { count, last_offset_delta })
        }
    }

    pub fn computed_crc(&self) -> u32 {
        crc32c(&self.bytes[at::ATTRIBUTES..])
    }

    /// All bytes of the batch.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// The 61 bytes that the journal carries.
    pub fn header_bytes(&self) -> &'a [u8; HEADER_SIZE] {
        self.bytes.first_chunk().expect("a view holds a whole header")
    }

    /// What follows the header: the records, or their compressed bytes.
    pub fn body(&self) -> &'a [u8] {
        &self.bytes[HEADER_SIZE..]
    }

    /// The records of a batch without compression; of another its bytes are first inflated.
    pub fn records(&self) -> Option<Records<'a>> {
        (self.codec() == Ok(Codec::None)).then(|| Records::new(self.body(), self.records_count()))
    }

    pub fn header(&self) -> BatchHeader {
        BatchHeader::from_bytes(self.header_bytes()).expect("the view was checked when it was made")
    }

    pub fn base_offset(&self) -> Offset {
        Offset(be_i64(self.bytes, at::BASE_OFFSET))
    }

    pub fn last_offset(&self) -> Offset {
        Offset(self.base_offset().0.wrapping_add(i64::from(self.last_offset_delta())))
    }

    pub fn next_offset(&self) -> Offset {
        Offset(self.last_offset().0.wrapping_add(1))
    }

    /// As on the wire: -1 until a leader stamped it.
    pub fn partition_leader_epoch(&self) -> LeaderEpoch {
        LeaderEpoch(be_i32(self.bytes, at::PARTITION_LEADER_EPOCH))
    }

    pub fn magic(&self) -> i8 {
        self.bytes[at::MAGIC] as i8
    }

    pub fn crc(&self) -> u32 {
        be_i32(self.bytes, at::CRC) as u32
    }

    pub fn attributes(&self) -> Attributes {
        Attributes(be_i16(self.bytes, at::ATTRIBUTES) as u16)
    }

    pub fn codec(&self) -> Result<Codec, UnknownCodec> {
        self.attributes().codec()
    }

    pub fn timestamp_type(&self) -> TimestampType {
        self.attributes().timestamp_type()
    }

    pub fn is_transactional(&self) -> bool {
        self.attributes().is_transactional()
    }

    pub fn is_control(&self) -> bool {
        self.attributes().is_control()
    }

    pub fn last_offset_delta(&self) -> i32 {
        be_i32(self.bytes, at::LAST_OFFSET_DELTA)
    }

    pub fn base_timestamp(&self) -> WallMillis {
        WallMillis(be_i64(self.bytes, at::BASE_TIMESTAMP))
    }

    pub fn max_timestamp(&self) -> WallMillis {
        WallMillis(be_i64(self.bytes, at::MAX_TIMESTAMP))
    }

    pub fn producer_id(&self) -> ProducerId {
        ProducerId(be_i64(self.bytes, at::PRODUCER_ID))
    }

    pub fn producer_epoch(&self) -> ProducerEpoch {
        ProducerEpoch(be_i16(self.bytes, at::PRODUCER_EPOCH))
    }

    pub fn base_sequence(&self) -> Sequence {
        Sequence(be_i32(self.bytes, at::BASE_SEQUENCE))
    }

    pub fn producer(&self) -> Option<ProducerStamp> {
        self.header().producer()
    }

    pub fn records_count(&self) -> i32 {
        be_i32(self.bytes, at::RECORDS_COUNT)
    }
}

/// The size that the length field claims, once length and magic are ones a batch can have. The order is Kafka's: a
/// length below every version's minimum, then the magic, then what is missing, then this version's own minimum.
fn claimed_size(bytes: &[u8]) -> Result<usize, BatchError> {
    if bytes.len() < BEFORE_LENGTH {
        return Err(BatchError::Incomplete { have: bytes.len(), need: HEADER_SIZE });
    }
    let length = be_i32(bytes, at::LENGTH);
    if length < SMALLEST_LENGTH {
        return Err(BatchError::Length(length));
    }
    match bytes.get(at::MAGIC).map(|magic| *magic as i8) {
        None => return Err(BatchError::Incomplete { have: bytes.len(), need: HEADER_SIZE }),
        Some(MAGIC) => {}
        Some(magic @ (0 | 1)) => return Err(BatchError::OldMagic(magic)),
        Some(magic) => return Err(BatchError::UnknownMagic(magic)),
    }
    let size = length as usize + BEFORE_LENGTH;
    if size < HEADER_SIZE { Err(BatchError::Length(length)) } else { Ok(size) }
}

/// The batches of a fetched or replicated slice. A partial last batch is dropped without a word: a Fetch answer is cut
/// by bytes, and the next one brings it whole. Anything else that is not a batch is an error, and the last item.
#[derive(Clone, Debug)]
pub struct Batches<'a> {
    rest: &'a [u8],
}

impl<'a> Batches<'a> {
    pub fn new(bytes: &'a [u8]) -> Batches<'a> {
        Batches { rest: bytes }
    }

    /// The bytes not yet given out: after the last item, the partial batch.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for Batches<'a> {
    type Item = Result<BatchView<'a>, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        match BatchView::parse(self.rest) {
            Ok((view, rest)) => {
                self.rest = rest;
                Some(Ok(view))
            }
            Err(BatchError::Incomplete { .. }) => None,
            Err(error) => {
                self.rest = &[];
                Some(Err(error))
            }
        }
    }
}

/// Writes what a leader assigns. `batch` starts with a whole header; the CRC does not cover these fields.
pub fn stamp(batch: &mut [u8], base_offset: Offset, leader_epoch: LeaderEpoch) {
    assert!(batch.len() >= HEADER_SIZE, "only a checked batch is stamped");
    put(batch, at::BASE_OFFSET, base_offset.0.to_be_bytes());
    put(batch, at::PARTITION_LEADER_EPOCH, leader_epoch.0.to_be_bytes());
}

/// Writes the timestamp type and the largest timestamp and computes the CRC again: LogAppendTime, or a CreateTime batch
/// whose header names another maximum than its records. `batch` is exactly one checked batch.
///
/// A CRC combined from the old one and the changed header was measured: 8 us at any size, dearer than a pass over less
/// than 400 KiB.
pub fn restamp_timestamp(batch: &mut [u8], kind: TimestampType, max_timestamp: WallMillis) {
    assert!(batch.len() >= HEADER_SIZE, "only a checked batch is stamped");
    let attributes = Attributes(be_i16(batch, at::ATTRIBUTES) as u16).known().with_timestamp_type(kind);
    put(batch, at::ATTRIBUTES, attributes.0.to_be_bytes());
    put(batch, at::MAX_TIMESTAMP, max_timestamp.0.to_be_bytes());
    seal(batch);
}

/// Computes the CRC of a batch whose other bytes are final.
pub(crate) fn seal(batch: &mut [u8]) {
    let crc = crc32c(&batch[at::ATTRIBUTES..]);
    put(batch, at::CRC, crc.to_be_bytes());
}

/// CRC-32C by crc-fast: measured against the crc32c crate 1.4 times as fast at 1 KiB (42 to 60 ns) and 2.2 times at
/// 64 KiB (1.2 to 2.6 us) on a machine with AVX-512.
fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

fn be_i64(bytes: &[u8], at: usize) -> i64 {
    i64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn be_i32(bytes: &[u8], at: usize) -> i32 {
    i32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn be_i16(bytes: &[u8], at: usize) -> i16 {
    i16::from_be_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&value);
}

#[cfg(test)]
mod tests;
