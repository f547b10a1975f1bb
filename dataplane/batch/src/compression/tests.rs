use super::*;

fn sample(size: usize) -> Vec<u8> {
    let mut random = base::Random::from_seed(size as u64);
    (0..size).map(|i| if i % 7 == 0 { random.below(256) as u8 } else { (i / 11) as u8 }).collect()
}

fn packed(compression: Compression, raw: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    compression.compress(raw, &mut out);
    out
}

#[test]
fn every_codec_gives_back_what_it_took() {
    for codec in Codec::ALL {
        for size in [0, 1, 100, 32 * 1024, 32 * 1024 + 1, 300_000] {
            let raw = sample(size);
            let bytes = packed(codec.into(), &raw);
            assert_eq!(inflate(codec, &bytes, size).as_deref(), Ok(&raw[..]), "{codec:?} {size}");
        }
    }
}

#[test]
fn every_level_a_topic_may_ask_for_is_taken() {
    let raw = sample(10_000);
    let gzip = [-1, 1, 6, 9].map(|level| (Codec::Gzip, level));
    let lz4 = [1, 9, 17].map(|level| (Codec::Lz4, level));
    let zstd = [-131_072, -5, 1, 3, 19].map(|level| (Codec::Zstd, level));
    for (codec, level) in gzip.into_iter().chain(lz4).chain(zstd) {
        let bytes = packed(Compression { codec, level: Some(level) }, &raw);
        assert_eq!(inflate(codec, &bytes, raw.len()).as_deref(), Ok(&raw[..]), "{codec:?} {level}");
    }
}

#[test]
fn a_higher_level_makes_gzip_and_zstd_smaller() {
    let raw: Vec<u8> = (0..6_000u32).flat_map(|i| format!("record {} of {}\n", i % 977, i / 13).into_bytes()).collect();
    for (codec, low, high) in [(Codec::Gzip, 1, 9), (Codec::Zstd, -50, 19)] {
        let size = |level| packed(Compression { codec, level: Some(level) }, &raw).len();
        assert!(size(high) < size(low), "{codec:?}");
    }
}

#[test]
fn bombs_stop_at_the_cap() {
    let zeros = vec![0u8; 4 << 20];
    for codec in Codec::ALL.into_iter().filter(|codec| *codec != Codec::None) {
        let bytes = packed(codec.into(), &zeros);
        for cap in [0, 1000, 1 << 20] {
            assert_eq!(inflate(codec, &bytes, cap), Err(InflateError::TooLarge { cap }), "{codec:?}");
        }
        let mut inflater = Inflater::new(codec, &bytes, 1 << 20).expect("the start is good");
        let mut out = [0u8; 4096];
        while let Ok(read) = inflater.read(&mut out) {
            assert!(read > 0 && inflater.given() <= 1 << 20);
        }
    }
}

#[test]
fn a_raw_snappy_block_is_read_and_a_lying_one_is_not() {
    let raw = sample(5000);
    let block = snap::raw::Encoder::new().compress_vec(&raw).expect("it compresses");
    assert_eq!(inflate(Codec::Snappy, &block, 5000).as_deref(), Ok(&raw[..]));
    // A varint of 2^30 before three bytes of data: nothing of that size is reserved.
    let lying = [0x80, 0x80, 0x80, 0x80, 0x04, 0, 0, 0];
    assert!(matches!(inflate(Codec::Snappy, &lying, usize::MAX), Err(InflateError::Corrupt { .. })));
    assert_eq!(inflate(Codec::Snappy, &lying, 1 << 20), Err(InflateError::TooLarge { cap: 1 << 20 }));
}

#[test]
fn streams_after_each_other_are_one_where_java_reads_them_so() {
    for codec in [Codec::Gzip, Codec::Snappy, Codec::Zstd] {
        let mut bytes = packed(codec.into(), b"first ");
        bytes.extend(packed(codec.into(), b"second"));
        assert_eq!(inflate(codec, &bytes, 100).as_deref(), Ok(&b"first second"[..]), "{codec:?}");
    }
    let mut bytes = packed(Codec::Lz4.into(), b"first ");
    bytes.extend(packed(Codec::Lz4.into(), b"second"));
    assert_eq!(inflate(Codec::Lz4, &bytes, 100).as_deref(), Ok(&b"first "[..]));
}

#[test]
fn cut_streams_are_corrupt() {
    let raw = sample(100_000);
    for codec in Codec::ALL.into_iter().filter(|codec| *codec != Codec::None) {
        let bytes = packed(codec.into(), &raw);
        for cut in [1, 4, 15, bytes.len() / 2, bytes.len() - 1] {
            let result = inflate(codec, &bytes[..cut], 1 << 20);
            assert!(matches!(result, Err(InflateError::Corrupt { .. })), "{codec:?} cut at {cut}");
        }
    }
}
