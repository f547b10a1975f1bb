//! Bytes from outside: whatever they are, nothing panics, nothing passes that is not whole, and what passes can be
//! stamped, stored, read and rebuilt.

use base::{LeaderEpoch, Offset, WallMillis};
use pollux_batch::check::{check, check_inline, rebuild};
use pollux_batch::{
    BatchBuilder, BatchHeader, BatchView, Batches, Codec, EndTransaction, HEADER_SIZE, HeaderView, InflateLimits,
    Origin, RecordView, Records, Rules, TimeQuery, TimestampType, find_time, inflate, restamp_timestamp,
};
use proptest::prelude::*;

const CAP: usize = 1 << 18;
const NOW: WallMillis = WallMillis(1_000);

fn rules(origin: Origin) -> Rules {
    Rules {
        origin,
        batch_bytes_max: 1 << 20,
        segment_bytes: 1 << 30,
        inflate: InflateLimits { batch_bytes_max: CAP, record_bytes_max: 1 << 20 },
        timestamp_type: TimestampType::CreateTime,
        timestamp_before_max_ms: i64::MAX,
        timestamp_after_max_ms: i64::MAX,
        compacted: false,
        compression: None,
        zstd_allowed: true,
    }
}

/// Everything that reads a batch, on bytes that may be none.
fn read_everything(bytes: &[u8]) {
    for origin in [Origin::Client, Origin::Coordinator, Origin::Replica] {
        let checked = check(bytes, &rules(origin), NOW);
        if let Some(inline) = check_inline(bytes, &rules(origin), NOW) {
            assert_eq!(inline, checked, "the loop and a helper say the same");
        }
        let Ok(checked) = checked else { continue };
        let mut batch = bytes[..checked.size].to_vec();
        if origin != Origin::Replica {
            checked.stamp(&mut batch, Offset(5), LeaderEpoch(1), NOW);
        }
        let view = BatchView::parse_whole(&batch).expect("what passed is whole");
        if origin != Origin::Replica {
            assert_eq!(view.records_count(), view.last_offset_delta() + 1);
            let (again, _) =
                rebuild(&view, &checked, Codec::Lz4.into(), &rules(origin)).expect("what passed is rebuilt");
            BatchView::parse_whole(&again).expect("what is rebuilt is whole");
        }
    }
    for view in Batches::new(bytes).filter_map(Result::ok) {
        let header = view.header();
        assert_eq!(&header.to_bytes(), view.header_bytes());
        let _ = (header.producer(), header.next_offset(), view.check_crc(), view.check_counts());
        let _ = EndTransaction::from_batch(&view);
        let query = TimeQuery::AtOrAfter { time: header.max_timestamp, from: header.base_offset };
        let _ = find_time(&view, query, rules(Origin::Client).inflate);
        if let Some(records) = view.records() {
            records.take(1000).for_each(drop);
        }
    }
    if let Some(header) = bytes.first_chunk::<HEADER_SIZE>() {
        let _ = BatchHeader::from_bytes(header);
    }
    let _ = RecordView::decode(bytes);
    Records::new(bytes, i32::MAX).for_each(drop);
    for codec in Codec::ALL {
        if let Ok(inflated) = inflate(codec, bytes, CAP) {
            assert!(inflated.len() <= CAP);
        }
    }
}

type RecordParts = (i64, Option<Vec<u8>>, Option<Vec<u8>>, Vec<(Vec<u8>, Option<Vec<u8>>)>);

fn a_record() -> impl Strategy<Value = RecordParts> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..40);
    let header = (bytes(), prop::option::of(bytes()));
    (any::<i64>(), prop::option::of(bytes()), prop::option::of(bytes()), prop::collection::vec(header, 0..3))
}

fn build(codec: Codec, records: &[RecordParts]) -> Vec<u8> {
    let mut builder = BatchBuilder::new();
    builder.compression(codec.into());
    for (time, key, value, headers) in records {
        let headers: Vec<_> = headers.iter().map(|(key, value)| HeaderView { key, value: value.as_deref() }).collect();
        builder.append(WallMillis(*time), key.as_deref(), value.as_deref(), &headers);
    }
    builder.build()
}

fn a_codec() -> impl Strategy<Value = Codec> {
    prop::sample::select(Codec::ALL.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        read_everything(&bytes);
    }

    #[test]
    fn damaged_batches_are_survived(
        codec in a_codec(),
        records in prop::collection::vec(a_record(), 0..6),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in prop::option::weighted(0.2, any::<prop::sample::Index>()),
        sealed in prop::bool::weighted(0.8),
    ) {
        let mut bytes = build(codec, &records);
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if sealed && bytes.len() >= HEADER_SIZE {
            // The length and the CRC made right, so that the damage is met further in.
            let length = (bytes.len() - 12) as i32;
            bytes[8..12].copy_from_slice(&length.to_be_bytes());
            if let Ok((view, _)) = BatchView::parse(&bytes) {
                let (kind, max) = (view.timestamp_type(), view.max_timestamp());
                restamp_timestamp(&mut bytes, kind, max);
            }
        }
        read_everything(&bytes);
    }

    #[test]
    fn damaged_streams_are_survived(
        codec in a_codec(),
        raw in prop::collection::vec(0u8..4, 0..3000),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = Vec::new();
        pollux_batch::Compression::from(codec).compress(&raw, &mut bytes);
        for (at, value) in damage {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
        }
        if let Ok(inflated) = inflate(codec, &bytes, CAP) {
            prop_assert!(inflated.len() <= CAP);
        }
    }

    #[test]
    fn any_records_round_trip_in_any_codec(codec in a_codec(), records in prop::collection::vec(a_record(), 1..20)) {
        let bytes = build(codec, &records);
        let view = BatchView::parse_whole(&bytes).expect("whole");
        let body = inflate(codec, view.body(), CAP).expect("inflates");
        let read: Vec<RecordParts> = Records::new(&body, view.records_count())
            .map(|record| {
                let record = record.expect("a record").to_record(WallMillis(0));
                let headers = record.headers.iter().map(|h| (h.key.to_vec(), h.value.as_ref().map(|v| v.to_vec())));
                (0, record.key.map(|k| k.to_vec()), record.value.map(|v| v.to_vec()), headers.collect())
            })
            .collect();
        let wanted: Vec<RecordParts> = records.iter().cloned().map(|(_, key, value, headers)| (0, key, value, headers)).collect();
        prop_assert_eq!(read, wanted);
        let times = Records::new(&body, view.records_count()).map(|r| view.header().timestamp_at(r.expect("a record").timestamp_delta).0);
        prop_assert_eq!(times.collect::<Vec<_>>(), records.iter().map(|record| record.0).collect::<Vec<_>>());
        let append_times = Rules { timestamp_type: TimestampType::LogAppendTime, ..rules(Origin::Client) };
        prop_assert_eq!(check(&bytes, &append_times, NOW).map(|checked| checked.records), Ok(records.len() as u32));
    }
}
