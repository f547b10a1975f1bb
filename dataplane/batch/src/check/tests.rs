use super::*;
use crate::header::seal;

/// The rules of a topic with Kafka's defaults.
pub(crate) fn rules() -> Rules {
    Rules {
        origin: Origin::Client,
        batch_bytes_max: 1_048_588,
        segment_bytes: 1 << 30,
        inflate: InflateLimits { batch_bytes_max: 16 << 20, record_bytes_max: i32::MAX as u32 - 8 },
        timestamp_type: TimestampType::CreateTime,
        timestamp_before_max_ms: i64::MAX,
        timestamp_after_max_ms: 3_600_000,
        compacted: false,
        compression: None,
        zstd_allowed: true,
    }
}

const NOW: WallMillis = WallMillis(1_700_000_000_000);

fn batch(codec: Codec, times: &[i64]) -> Vec<u8> {
    let mut builder = BatchBuilder::new();
    builder.compression(codec.into());
    for time in times {
        builder.append(WallMillis(*time), Some(b"key"), Some(b"value"), &[]);
    }
    builder.build()
}

fn good() -> Vec<u8> {
    batch(Codec::None, &[NOW.0 - 5, NOW.0, NOW.0 - 9])
}

/// A good batch with some header bytes written over and, unless they are outside of it, the CRC made right again.
fn with(at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut batch = good();
    batch[at..at + bytes.len()].copy_from_slice(bytes);
    if at >= 21 {
        seal(&mut batch);
    }
    batch
}

fn invalid(bytes: &[u8], rules: &Rules) -> InvalidBatch {
    match check(bytes, rules, NOW) {
        Err(Refusal::Invalid(invalid)) => invalid,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_good_batch_is_stored_as_sent() {
    for codec in Codec::ALL {
        let mut bytes = batch(codec, &[NOW.0 - 5, NOW.0, NOW.0]);
        let checked = check(&bytes, &rules(), NOW).expect("a good batch");
        let wanted = Checked {
            size: bytes.len(),
            records: 3,
            max_timestamp: NOW,
            max_timestamp_delta: Some(1),
            timestamp: TimestampStamp::AsSent,
            rebuild: None,
        };
        assert_eq!(checked, wanted, "{codec:?}");
        assert_eq!(check_inline(&bytes, &rules(), NOW), Some(Ok(wanted)));
        let body = bytes[61..].to_vec();
        checked.stamp(&mut bytes, Offset(77), LeaderEpoch(3), WallMillis(0));
        let view = BatchView::parse_whole(&bytes).expect("stamped");
        assert_eq!((view.base_offset(), view.body(), view.max_timestamp()), (Offset(77), &body[..], NOW));
    }
}

#[test]
fn framing_is_checked_first() {
    let check = |bytes: &[u8]| check(bytes, &rules(), NOW).map(|checked| checked.size);
    let good = good();
    assert_eq!(check(&[]), Err(Refusal::Invalid(InvalidBatch::None)));
    assert_eq!(check(&good[..70]), Err(Refusal::Invalid(InvalidBatch::None)));
    assert_eq!(check(&[good.clone(), good.clone()].concat()), Err(Refusal::Invalid(InvalidBatch::Several)));
    // Kafka trims what may be the start of another batch.
    assert_eq!(check(&[&good[..], &good[..30]].concat()), Ok(good.len()));
    assert_eq!(check(&[&good[..], &[0; 13]].concat()), Err(Refusal::Corrupt(BatchError::Length(0))));
    assert_eq!(check(&with(16, &[1])), Err(Refusal::Invalid(InvalidBatch::OldMagic(1))));
    assert_eq!(check(&with(16, &[3])), Err(Refusal::Corrupt(BatchError::UnknownMagic(3))));
    assert_eq!(check(&with(0, &[0, 0, 0, 0, 0, 0, 0, 1])), Err(Refusal::Invalid(InvalidBatch::BaseOffset(1))));
    assert!(matches!(check(&with(17, &[1, 2, 3, 4])), Err(Refusal::Corrupt(BatchError::Crc { .. }))));
    assert_eq!(check(&with(22, &[5])), Err(Refusal::UnknownCodec(5)));
}

#[test]
fn counts_and_numbers_have_to_agree() {
    for (count, delta) in [(0, 2), (-1, 2), (4, 2), (2, 2), (3, 1), (3, -1), (0, -1)] {
        let mut bytes = with(57, &i32::to_be_bytes(count));
        bytes[23..27].copy_from_slice(&i32::to_be_bytes(delta));
        seal(&mut bytes);
        assert_eq!(invalid(&bytes, &rules()), InvalidBatch::Count { count, last_offset_delta: delta });
    }
    // Two records declared and numbered, three there; then four.
    for (count, error, index) in [(2, RecordError::Trailing, 1), (4, RecordError::Varint, 3)] {
        let mut bytes = with(57, &i32::to_be_bytes(count));
        bytes[23..27].copy_from_slice(&i32::to_be_bytes(count - 1));
        seal(&mut bytes);
        assert_eq!(invalid(&bytes, &rules()), InvalidBatch::Record { index, error });
    }
    for codec in Codec::ALL {
        let plain = good();
        let (view, _) = BatchView::parse(&plain).expect("a good batch");
        let mut builder = BatchBuilder::new();
        builder.compression(codec.into()).last_offset_delta(2);
        for (delta, record) in [0, 2, 3].into_iter().zip(view.records().expect("uncompressed")) {
            builder.append_view_at(NOW, delta, &record.expect("good"));
        }
        let found = invalid(&builder.build(), &rules());
        assert_eq!(found, InvalidBatch::OffsetDelta { index: 1, offset_delta: 2 }, "{codec:?}");
    }
}

#[test]
fn clients_write_no_control_records_and_no_negative_sequences() {
    assert_eq!(invalid(&with(22, &[0x20]), &rules()), InvalidBatch::Control);
    let producer = with(43, &7i64.to_be_bytes());
    let wanted = InvalidBatch::Sequence { producer: ProducerId(7), sequence: Sequence(-1) };
    assert_eq!(invalid(&producer, &rules()), wanted);
    let coordinator = Rules { origin: Origin::Coordinator, ..rules() };
    assert!(check(&with(22, &[0x20]), &coordinator, NOW).is_ok());
    assert!(check(&producer, &coordinator, NOW).is_ok());
}

#[test]
fn sizes_are_limited_before_and_after() {
    let bytes = good();
    let size = bytes.len();
    let most = size as u32 - 1;
    let check = |rules: &Rules| check(&bytes, rules, NOW).map(|checked| checked.size);
    assert_eq!(check(&Rules { batch_bytes_max: most + 1, ..rules() }), Ok(size));
    assert_eq!(check(&Rules { batch_bytes_max: most, ..rules() }), Err(Refusal::TooLarge { size, most }));
    let segment = Rules { segment_bytes: most, ..rules() };
    assert_eq!(check(&segment), Err(Refusal::LargerThanSegment { size, most }));
    let replica = Rules { batch_bytes_max: 1, origin: Origin::Replica, ..rules() };
    assert_eq!(check(&replica), Ok(size), "the leader has taken it");
    let packed = batch(Codec::Gzip, &[NOW.0; 500]);
    let tight = Rules { batch_bytes_max: packed.len() as u32, compression: Some(Compression::NONE), ..rules() };
    let checked = super::check(&packed, &tight, NOW).expect("it is small as sent");
    let (view, _) = BatchView::parse(&packed).expect("a good batch");
    let rebuilt = rebuild(&view, &checked, Compression::NONE, &tight);
    assert!(matches!(rebuilt, Err(Refusal::TooLarge { .. })), "{rebuilt:?}");
}

#[test]
fn refused_records_are_all_named() {
    let mut builder = BatchBuilder::new();
    builder.append(NOW, None, None, &[]).append(NOW, Some(b"k"), None, &[]).append(NOW, None, None, &[]);
    let compacted = Rules { compacted: true, ..rules() };
    let refused = check(&builder.build(), &compacted, NOW).expect_err("two have no key");
    let no_key = |index| RecordRefusal { index, reason: RecordReason::NoKey };
    assert_eq!(refused, Refusal::Records(vec![no_key(0), no_key(2)]));
    assert!(!refused.is_timestamp());
}

#[test]
fn timestamps_have_a_window() {
    let window = Rules { timestamp_before_max_ms: 100, timestamp_after_max_ms: 10, ..rules() };
    let times = [NOW.0 - 100, NOW.0 - 101, NOW.0 + 10, NOW.0 + 11, -1, -2, i64::MIN, i64::MAX];
    for codec in [Codec::None, Codec::Snappy] {
        let refused = check(&batch(codec, &times), &window, NOW).expect_err("some are outside");
        assert!(refused.is_timestamp());
        let Refusal::Records(records) = refused else { panic!("{refused:?}") };
        assert_eq!(records.iter().map(|record| record.index).collect::<Vec<_>>(), [1, 3, 5, 6, 7]);
        let (earliest, latest) = (WallMillis(NOW.0 - 100), WallMillis(NOW.0 + 10));
        let reason = RecordReason::Timestamp { timestamp: WallMillis(NOW.0 - 101), earliest, latest };
        assert_eq!(records[0].reason, reason);
    }
    // Append times are the broker's, so the window is not looked at.
    let append = Rules { timestamp_type: TimestampType::LogAppendTime, ..window };
    assert!(check(&batch(Codec::None, &times), &append, NOW).is_ok());
}

#[test]
fn append_times_are_stamped_and_never_believed() {
    let append = Rules { timestamp_type: TimestampType::LogAppendTime, ..rules() };
    let mut bytes = batch(Codec::Lz4, &[3, 2]);
    let checked = check(&bytes, &append, NOW).expect("a good batch");
    assert_eq!((checked.timestamp, checked.max_timestamp_delta), (TimestampStamp::AppendTime, Some(0)));
    assert_eq!(checked.stored_max_timestamp(NOW), NOW);
    checked.stamp(&mut bytes, Offset(0), LeaderEpoch(0), NOW);
    let view = BatchView::parse_whole(&bytes).expect("stamped");
    assert_eq!((view.timestamp_type(), view.max_timestamp()), (TimestampType::LogAppendTime, NOW));
    // Sent again as it is stored, the claim is refused; on a topic of create times the clock is set right.
    let refused = check(&bytes, &append, NOW).expect_err("clients give no append times");
    assert!(refused.is_timestamp());
    let checked = check(&bytes, &rules(), NOW).expect("within the window");
    assert_eq!(checked.timestamp, TimestampStamp::Max(NOW));
}

#[test]
fn a_wrong_maximum_in_the_header_is_set_right() {
    let mut bytes = with(35, &(NOW.0 + 50).to_be_bytes());
    let checked = check(&bytes, &rules(), NOW).expect("Kafka takes it");
    assert_eq!((checked.timestamp, checked.max_timestamp_delta), (TimestampStamp::Max(NOW), Some(1)));
    checked.stamp(&mut bytes, Offset(0), LeaderEpoch(0), WallMillis(0));
    assert_eq!(BatchView::parse_whole(&bytes).map(|view| view.max_timestamp()), Ok(NOW));
    let none = batch(Codec::None, &[-1, -1]);
    assert_eq!(
        check(&none, &rules(), NOW).map(|c| (c.max_timestamp, c.timestamp)),
        Ok((NO_TIMESTAMP, TimestampStamp::AsSent))
    );
}

#[test]
fn zstd_depends_on_the_requests_version() {
    let old = Rules { zstd_allowed: false, ..rules() };
    assert_eq!(check(&batch(Codec::Zstd, &[1]), &old, NOW), Err(Refusal::ZstdNotAllowed));
    assert!(check(&batch(Codec::Gzip, &[1]), &old, NOW).is_ok());
}

#[test]
fn damaged_compressed_bytes_and_bombs_are_refused() {
    let mut bytes = batch(Codec::Zstd, &[1, 2]);
    bytes[64] ^= 0xFF;
    seal(&mut bytes);
    assert!(matches!(check(&bytes, &rules(), NOW), Err(Refusal::Undecodable(_))));
    let mut bomb = BatchBuilder::new();
    bomb.compression(Codec::Gzip.into()).append(NOW, None, Some(&vec![0; 3 << 20]), &[]);
    let bomb = bomb.build();
    let most = 1 << 20;
    let tight = Rules { inflate: InflateLimits { batch_bytes_max: most, ..rules().inflate }, ..rules() };
    assert_eq!(check(&bomb, &tight, NOW), Err(Refusal::InflatesTooFar { most }));
    let record = Rules { inflate: InflateLimits { record_bytes_max: 1000, ..rules().inflate }, ..rules() };
    let found = invalid(&bomb, &record);
    assert!(matches!(found, InvalidBatch::RecordTooLarge { index: 0, .. }), "{found:?}");
}

#[test]
fn a_loop_leaves_long_work_to_a_helper() {
    let rules = rules();
    let inline = |bytes: &[u8]| check_inline(bytes, &rules, NOW).map(|result| result.is_ok());
    assert_eq!(inline(&batch(Codec::None, &[NOW.0; 4096])), Some(true));
    assert_eq!(inline(&batch(Codec::None, &[NOW.0; 4097])), None);
    assert_eq!(inline(&batch(Codec::Zstd, &[NOW.0; 100])), Some(true));
    assert_eq!(inline(&batch(Codec::Zstd, &[NOW.0; 5000])), None, "few bytes, but they inflate far");
    assert_eq!(inline(b"junk"), Some(false));
    let replica = Rules { origin: Origin::Replica, ..rules };
    assert!(check_inline(&batch(Codec::Zstd, &[NOW.0; 5000]), &replica, NOW).is_some());
}

#[test]
fn replicas_take_gaps_but_nothing_impossible() {
    let replica = Rules { origin: Origin::Replica, ..rules() };
    let mut bytes = with(23, &9i32.to_be_bytes());
    stamp(&mut bytes, Offset(1000), LeaderEpoch(2));
    let checked = check(&bytes, &replica, NOW).expect("compaction leaves gaps");
    assert_eq!((checked.records, checked.max_timestamp_delta), (3, None));
    let found = invalid(&with(23, &1i32.to_be_bytes()), &replica);
    assert_eq!(found, InvalidBatch::Count { count: 3, last_offset_delta: 1 });
}
