//! Writing a batch: what producers inside the node, the quorum and tests append, in any codec.

use crate::compression::Compression;
use crate::header::{Attributes, BatchHeader, HEADER_SIZE, NO_TIMESTAMP, TimestampType, seal};
use crate::record::{HeaderView, Record, RecordParts, RecordView};
use base::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, Sequence, WallMillis};

/// The idempotent producer that writes a batch; a marker has no sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchProducer {
    pub id: ProducerId,
    pub epoch: ProducerEpoch,
    pub base_sequence: Option<Sequence>,
}

/// Collects records and writes them as one batch. Settings may come at any time before `build`.
///
/// The first record's timestamp is the base timestamp, as in Kafka's builder, so that equal records give equal bytes.
#[derive(Clone, Debug)]
pub struct BatchBuilder {
    base_offset: Offset,
    leader_epoch: LeaderEpoch,
    compression: Compression,
    attributes: Attributes,
    producer: Option<BatchProducer>,
    log_append_time: Option<WallMillis>,
    delete_horizon: Option<WallMillis>,
    last_offset_delta: Option<i32>,
    base_timestamp: Option<WallMillis>,
    max_timestamp: WallMillis,
    next_delta: i32,
    count: i32,
    records: Vec<u8>,
}

/// What Kafka writes for the epoch of a batch that no leader has taken yet.
const NO_LEADER_EPOCH: LeaderEpoch = LeaderEpoch(-1);

impl Default for BatchBuilder {
    fn default() -> BatchBuilder {
        BatchBuilder::new()
    }
}

impl BatchBuilder {
    /// An empty batch as a client sends it: base offset 0, no epoch, no producer, no compression.
    pub fn new() -> BatchBuilder {
        BatchBuilder {
            base_offset: Offset::ZERO,
            leader_epoch: NO_LEADER_EPOCH,
            compression: Compression::NONE,
            attributes: Attributes::default(),
            producer: None,
            log_append_time: None,
            delete_horizon: None,
            last_offset_delta: None,
            base_timestamp: None,
            max_timestamp: NO_TIMESTAMP,
            next_delta: 0,
            count: 0,
            records: Vec::new(),
        }
    }

    pub fn base_offset(&mut self, offset: Offset) -> &mut Self {
        self.base_offset = offset;
        self
    }

    pub fn leader_epoch(&mut self, epoch: LeaderEpoch) -> &mut Self {
        self.leader_epoch = epoch;
        self
    }

    pub fn compression(&mut self, compression: Compression) -> &mut Self {
        self.compression = compression;
        self
    }

    pub fn producer(&mut self, producer: BatchProducer) -> &mut Self {
        self.producer = Some(producer);
        self
    }

    pub fn transactional(&mut self, on: bool) -> &mut Self {
        self.attributes = self.attributes.with_transactional(on);
        self
    }

    pub fn control(&mut self, on: bool) -> &mut Self {
        self.attributes = self.attributes.with_control(on);
        self
    }

    /// All records then carry this time, whatever time they are appended with.
    pub fn log_append_time(&mut self, time: WallMillis) -> &mut Self {
        self.log_append_time = Some(time);
        self
    }

    /// Takes the place of the base timestamp, so it has to be set before the first record (KIP-534).
    pub fn delete_horizon(&mut self, horizon: WallMillis) -> &mut Self {
        assert!(self.count == 0, "a delete horizon is the base of the timestamps that follow");
        self.delete_horizon = Some(horizon);
        self.base_timestamp = Some(horizon);
        self
    }

    /// The range a batch keeps although compaction took its last records.
    pub fn last_offset_delta(&mut self, delta: i32) -> &mut Self {
        self.last_offset_delta = Some(delta);
        self
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn count(&self) -> u32 {
        self.count as u32
    }

    /// The size the batch has without compression.
    pub fn size(&self) -> usize {
        HEADER_SIZE + self.records.len()
    }

    pub fn append(
        &mut self,
        timestamp: WallMillis,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[HeaderView<'_>],
    ) -> &mut Self {
        let (timestamp_delta, offset_delta) = self.take_place(timestamp, self.next_delta);
        RecordParts { timestamp_delta, offset_delta, key, value, headers }.encode(&mut self.records);
        self
    }

    pub fn append_record(&mut self, record: &Record) -> &mut Self {
        let headers: Vec<HeaderView<'_>> = record.headers.iter().map(|header| header.view()).collect();
        self.append(record.timestamp, record.key.as_deref(), record.value.as_deref(), &headers)
    }

    /// Appends a record of another batch at its next place.
    pub fn append_view(&mut self, timestamp: WallMillis, record: &RecordView<'_>) -> &mut Self {
        self.append_view_at(timestamp, self.next_delta, record)
    }

    /// Appends a record of another batch under an offset delta of its own: compaction leaves gaps, never renumbers.
    pub fn append_view_at(&mut self, timestamp: WallMillis, offset_delta: i32, record: &RecordView<'_>) -> &mut Self {
        let (timestamp_delta, offset_delta) = self.take_place(timestamp, offset_delta);
        record.encode(timestamp_delta, offset_delta, &mut self.records);
        self
    }

    fn take_place(&mut self, timestamp: WallMillis, offset_delta: i32) -> (i64, i32) {
        assert!(offset_delta >= self.next_delta, "records of a batch are in offset order");
        let base = *self.base_timestamp.get_or_insert(timestamp);
        self.max_timestamp = self.max_timestamp.max(timestamp);
        self.count += 1;
        self.next_delta = offset_delta.checked_add(1).expect("a batch holds fewer than 2^31 records");
        (timestamp.0.wrapping_sub(base.0), offset_delta)
    }

    /// The batch's bytes.
    pub fn build(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.size());
        bytes.resize(HEADER_SIZE, 0);
        self.compression.compress(&self.records, &mut bytes);
        let kind =
            if self.log_append_time.is_some() { TimestampType::LogAppendTime } else { TimestampType::CreateTime };
        let header = BatchHeader {
            base_offset: self.base_offset,
            size: u32::try_from(bytes.len()).expect("a batch is smaller than 2 GiB"),
            partition_leader_epoch: self.leader_epoch,
            crc: 0,
            attributes: self
                .attributes
                .with_codec(self.compression.codec)
                .with_timestamp_type(kind)
                .with_delete_horizon(self.delete_horizon.is_some()),
            last_offset_delta: self.last_offset_delta.unwrap_or(self.next_delta - 1),
            base_timestamp: self.base_timestamp.unwrap_or(NO_TIMESTAMP),
            max_timestamp: self.log_append_time.unwrap_or(self.max_timestamp),
            producer_id: self.producer.map_or(ProducerId(-1), |producer| producer.id),
            producer_epoch: self.producer.map_or(ProducerEpoch(-1), |producer| producer.epoch),
            base_sequence: self.producer.and_then(|producer| producer.base_sequence).unwrap_or(Sequence(-1)),
            records_count: self.count,
        };
        bytes[..HEADER_SIZE].copy_from_slice(&header.to_bytes());
        seal(&mut bytes);
        bytes
    }
}

/// What compaction leaves of a batch whose records it took all: the header alone, which keeps the offsets and the
/// producer's place. Kafka writes it without compression and without a base timestamp.
pub fn emptied(header: &BatchHeader) -> [u8; HEADER_SIZE] {
    let kept = Attributes::default()
        .with_timestamp_type(header.attributes.timestamp_type())
        .with_transactional(header.attributes.is_transactional())
        .with_control(header.attributes.is_control());
    let empty = BatchHeader {
        size: HEADER_SIZE as u32,
        attributes: kept,
        base_timestamp: NO_TIMESTAMP,
        records_count: 0,
        ..*header
    };
    let mut bytes = empty.to_bytes();
    seal(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compression::{Codec, inflate};
    use crate::header::BatchView;

    #[test]
    fn what_is_appended_is_read_back_in_every_codec() {
        let header = [HeaderView { key: b"trace", value: None }];
        for codec in Codec::ALL {
            let mut builder = BatchBuilder::new();
            let producer =
                BatchProducer { id: ProducerId(9), epoch: ProducerEpoch(2), base_sequence: Some(Sequence(100)) };
            builder.base_offset(Offset(1000)).leader_epoch(LeaderEpoch(4)).compression(codec.into()).producer(producer);
            builder.transactional(true).append(WallMillis(50), Some(b"a"), None, &header);
            builder.append(WallMillis(40), None, Some(b"value"), &[]);
            let bytes = builder.build();
            let view = BatchView::parse_whole(&bytes).expect("a good batch");
            assert_eq!(view.codec(), Ok(codec));
            assert!(view.is_transactional() && !view.is_control());
            assert_eq!((view.base_timestamp(), view.max_timestamp()), (WallMillis(50), WallMillis(50)));
            assert_eq!(view.producer().map(|p| p.last_sequence), Some(Sequence(101)));
            let body = inflate(codec, view.body(), 1000).expect("it inflates");
            let records: Vec<_> =
                crate::Records::new(&body, view.records_count()).collect::<Result<_, _>>().expect("good records");
            assert_eq!(
                records.iter().map(|r| view.header().offset_at(r.offset_delta).0).collect::<Vec<_>>(),
                [1000, 1001]
            );
            assert_eq!(
                records.iter().map(|r| view.header().timestamp_at(r.timestamp_delta).0).collect::<Vec<_>>(),
                [50, 40]
            );
            assert_eq!(records[0].headers().next(), Some(header[0]));
        }
    }

    #[test]
    fn gaps_and_ranges_of_compacted_batches_are_kept() {
        let mut source = BatchBuilder::new();
        source.append(WallMillis(1), Some(b"k"), Some(b"v"), &[]);
        let bytes = source.build();
        let view = BatchView::parse_whole(&bytes).expect("a good batch");
        let record = view.records().expect("uncompressed").next().expect("one").expect("good");
        let mut builder = BatchBuilder::new();
        builder.base_offset(Offset(10)).delete_horizon(WallMillis(77)).last_offset_delta(9);
        builder.append_view_at(WallMillis(1), 4, &record).append_view_at(WallMillis(2), 6, &record);
        let bytes = builder.build();
        let view = BatchView::parse_whole(&bytes).expect("a good batch");
        assert_eq!((view.last_offset(), view.records_count()), (Offset(19), 2));
        assert_eq!(view.header().delete_horizon(), Some(WallMillis(77)));
        let times: Vec<_> = view
            .records()
            .expect("uncompressed")
            .map(|r| r.map(|r| (r.offset_delta, view.header().timestamp_at(r.timestamp_delta).0)))
            .collect();
        assert_eq!(times, [Ok((4, 1)), Ok((6, 2))]);
    }
}
