//! What the hot path allocates (nothing), and what hostile bytes can make us allocate (the cap and little more).

use base::WallMillis;
use pollux_batch::check::{check, check_inline};
use pollux_batch::{
    BatchBuilder, BatchView, Codec, InflateLimits, Origin, Rules, TimestampType, Walk, inflate, walk_records,
};

const RULES: Rules = Rules {
    origin: Origin::Client,
    batch_bytes_max: 1 << 20,
    segment_bytes: 1 << 30,
    inflate: InflateLimits { batch_bytes_max: 1 << 20, record_bytes_max: i32::MAX as u32 },
    timestamp_type: TimestampType::CreateTime,
    timestamp_before_max_ms: i64::MAX,
    timestamp_after_max_ms: 3_600_000,
    compacted: true,
    compression: None,
    zstd_allowed: true,
};

fn batch(codec: Codec, records: usize, value: &[u8]) -> Vec<u8> {
    let mut builder = BatchBuilder::new();
    builder.compression(codec.into());
    for i in 0..records {
        builder.append(WallMillis(i as i64), Some(b"key"), Some(value), &[]);
    }
    builder.build()
}

#[test]
fn checking_and_stamping_an_uncompressed_batch_allocates_nothing() {
    for records in [1, 10] {
        let mut bytes = batch(Codec::None, records, &[7; 100]);
        let counted = allocation_counter::measure(|| {
            let checked = check_inline(&bytes, &RULES, WallMillis(9)).expect("inline").expect("a good batch");
            checked.stamp(&mut bytes, base::Offset(5), base::LeaderEpoch(1), WallMillis(9));
            let view = BatchView::parse_whole(&bytes).expect("whole");
            assert_eq!(view.records().expect("uncompressed").filter(Result::is_ok).count(), records);
        });
        assert_eq!(counted.count_total, 0);
    }
}

/// Zstandard allocates in C, which is not counted here; its window is bounded by the library.
const COUNTED: [Codec; 3] = [Codec::Gzip, Codec::Snappy, Codec::Lz4];
/// The codecs' own state and one read of the window.
const BESIDE_THE_CAP: u64 = 128 * 1024;

#[test]
fn a_bomb_costs_the_cap_at_most() {
    for codec in COUNTED {
        let bomb = batch(codec, 1, &vec![0; 20 << 20]);
        let (view, _) = BatchView::parse(&bomb).expect("framed");
        let cap = RULES.inflate.batch_bytes_max;
        let counted = allocation_counter::measure(|| {
            assert!(inflate(codec, view.body(), cap).is_err());
        });
        assert!(counted.count_total > 0, "the counter counts");
        // The buffer may be moved while it grows, so two of it can live for a moment.
        assert!(counted.bytes_max < 2 * cap as u64 + BESIDE_THE_CAP, "{codec:?}: {}", counted.bytes_max);
        let checked = allocation_counter::measure(|| assert!(check(&bomb, &RULES, WallMillis(0)).is_err()));
        assert!(checked.bytes_max < 2 * cap as u64 + BESIDE_THE_CAP, "{codec:?}: {}", checked.bytes_max);
    }
}

#[test]
fn looking_through_many_small_records_keeps_a_window_only() {
    for codec in COUNTED {
        let bytes = batch(codec, 5000, &[1; 100]);
        let (view, _) = BatchView::parse(&bytes).expect("framed");
        let counted = allocation_counter::measure(|| {
            walk_records(&view, RULES.inflate, |_, _| Walk::On).expect("good records");
        });
        assert!(counted.bytes_max < BESIDE_THE_CAP, "{codec:?}: {}", counted.bytes_max);
    }
}

#[test]
fn lengths_that_lie_reserve_nothing() {
    // A record that claims 1 GiB, in a batch of each codec; a count of 2^31-1 headers; a count of 2^31-1 records.
    let mut claims = Vec::new();
    for codec in Codec::ALL {
        let mut raw = vec![0xFE, 0xFF, 0xFF, 0xFF, 0x07];
        raw.resize(600, 0);
        let mut bytes = batch(codec, 1, b"v")[..61].to_vec();
        pollux_batch::Compression::from(codec).compress(&raw, &mut bytes);
        let length = (bytes.len() - 12) as i32;
        bytes[8..12].copy_from_slice(&length.to_be_bytes());
        bytes[57..61].copy_from_slice(&i32::MAX.to_be_bytes());
        bytes[23..27].copy_from_slice(&(i32::MAX - 1).to_be_bytes());
        pollux_batch::restamp_timestamp(&mut bytes, TimestampType::CreateTime, WallMillis(0));
        claims.push(bytes);
    }
    for bytes in claims {
        let counted = allocation_counter::measure(|| assert!(check(&bytes, &RULES, WallMillis(0)).is_err()));
        assert!(counted.bytes_max < BESIDE_THE_CAP, "{}", counted.bytes_max);
    }
}
