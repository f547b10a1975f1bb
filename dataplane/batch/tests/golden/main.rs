//! Batches of Apache Kafka's own classes: read, written again byte for byte, judged as its log judges them; and ours,
//! read by its classes where KAFKA_LIBS names a folder of its jars.

mod ours;
mod text;
mod verdicts;

use base::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, WallMillis};
use pollux_batch::{
    BatchBuilder, BatchHeader, BatchProducer, BatchView, ControlKind, EndTransaction, Records, TimestampType, emptied,
};
use text::{body, describe, folder, load};

fn batches() -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder())
        .expect("the golden files")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"))
        .filter_map(|name| name.strip_suffix(".batch").map(str::to_owned))
        .collect();
    names.sort();
    assert!(names.len() > 30, "the golden batches are there");
    names
}

#[test]
fn every_batch_is_read_as_kafka_reads_it() {
    let large = String::from_utf8(load("large.none.txt")).expect("text");
    let (_, large_records) = large.split_once('\n').expect("a line");
    for name in batches() {
        let bytes = load(&format!("{name}.batch"));
        let text = String::from_utf8(load(&format!("{name}.txt"))).expect("text");
        let with_records = describe(&bytes, true);
        if text.lines().count() > 1 || bytes.len() == 61 {
            assert_eq!(with_records, text, "{name}");
        } else {
            assert_eq!(describe(&bytes, false), text, "{name}");
            let (_, records) = with_records.split_once('\n').expect("a line");
            assert!(records == large_records, "{name}: the records of the large batches are the same");
        }
    }
}

/// The same settings and records through our builder.
fn built_again(view: &BatchView<'_>) -> Vec<u8> {
    let header = view.header();
    let mut builder = BatchBuilder::new();
    builder
        .base_offset(header.base_offset)
        .leader_epoch(header.partition_leader_epoch)
        .compression(view.codec().expect("a codec").into())
        .transactional(view.is_transactional())
        .control(view.is_control())
        .last_offset_delta(header.last_offset_delta);
    if let Some(producer) = header.producer() {
        let base_sequence = Some(producer.base_sequence);
        builder.producer(BatchProducer { id: producer.id, epoch: producer.epoch, base_sequence });
    }
    if let Some(horizon) = header.delete_horizon() {
        builder.delete_horizon(horizon);
    }
    if header.attributes.timestamp_type() == TimestampType::LogAppendTime {
        builder.log_append_time(header.max_timestamp);
    }
    let body = body(view);
    for record in Records::new(&body, header.records_count) {
        let record = record.expect("a record");
        // Under append times the records keep the deltas of their own times.
        let time = WallMillis(header.base_timestamp.0 + record.timestamp_delta);
        builder.append_view_at(time, record.offset_delta, &record);
    }
    builder.build()
}

#[test]
fn uncompressed_batches_are_written_byte_for_byte() {
    let mut seen = 0;
    for name in batches() {
        let bytes = load(&format!("{name}.batch"));
        let view = BatchView::parse_whole(&bytes).expect("a batch");
        if name.contains('.') && !name.ends_with(".none") || name == "compacted-empty" {
            continue;
        }
        seen += 1;
        assert!(built_again(&view) == bytes, "{name}");
    }
    assert_eq!(seen, 4 + 7 + 1, "plain and large ones, control batches, a compacted one");
}

#[test]
fn compressed_batches_hold_the_same_records_when_written_again() {
    for name in batches().into_iter().filter(|name| name.contains('.')) {
        let bytes = load(&format!("{name}.batch"));
        let view = BatchView::parse_whole(&bytes).expect("a batch");
        let again = built_again(&view);
        let again = BatchView::parse_whole(&again).expect("a batch");
        let but_bytes = |header: BatchHeader| BatchHeader { size: 0, crc: 0, ..header };
        assert_eq!(but_bytes(again.header()), but_bytes(view.header()), "{name}");
        assert!(body(&again) == body(&view), "{name}");
    }
}

#[test]
fn an_emptied_batch_is_kafkas() {
    let source = load("compacted.batch");
    let golden = load("compacted-empty.batch");
    let header = BatchView::parse_whole(&source).expect("a batch").header();
    assert_eq!(&emptied(&header)[..], golden);
    let compressed = load("transactional.zstd.batch");
    let header = BatchView::parse_whole(&compressed).expect("a batch").header();
    let empty = emptied(&header);
    let view = BatchView::parse_whole(&empty).expect("a batch");
    assert_eq!((view.next_offset(), view.producer()), (header.next_offset(), header.producer()));
}

#[test]
fn control_batches_are_written_from_their_meaning() {
    for (name, committed, offset) in [("commit", true, 9), ("abort", false, 10)] {
        let golden = load(&format!("{name}.batch"));
        let marker = EndTransaction { committed, coordinator_epoch: 21 };
        let mut builder = marker.build(ProducerId(4000), ProducerEpoch(3), WallMillis(1_700_000_000_000));
        builder.base_offset(Offset(offset)).leader_epoch(LeaderEpoch(6));
        assert_eq!(builder.build(), golden, "{name}");
        let view = BatchView::parse_whole(&golden).expect("a batch");
        assert_eq!(EndTransaction::from_batch(&view), Ok(Some(marker)));
    }
    for (name, kind) in [
        ("leader-change", ControlKind::LeaderChange),
        ("snapshot-header", ControlKind::SnapshotHeader),
        ("snapshot-footer", ControlKind::SnapshotFooter),
        ("kraft-version", ControlKind::KraftVersion),
        ("kraft-voters", ControlKind::KraftVoters),
    ] {
        let golden = load(&format!("{name}.batch"));
        let view = BatchView::parse_whole(&golden).expect("a batch");
        let records: Vec<_> = pollux_batch::control::control_records(&view)
            .expect("a control batch")
            .collect::<Result<_, _>>()
            .expect("its records");
        assert_eq!(records.iter().map(|record| record.kind).collect::<Vec<_>>(), [kind], "{name}");
        let again = pollux_batch::control::quorum_batch(
            view.base_offset(),
            view.partition_leader_epoch(),
            records[0].timestamp,
            records.iter().map(|record| (record.kind, record.value)),
        );
        assert_eq!(again, golden, "{name}");
    }
}
