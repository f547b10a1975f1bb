//! Record batches: whole ones in every codec, the records inside, and compressed streams.

use crate::golden;
use crate::memory::bounded;
use base::{LeaderEpoch, Offset, WallMillis};
use batch::check::{check, check_inline, rebuild};
use batch::compression::Inflater;
use batch::{
    BatchBuilder, BatchHeader, BatchView, Batches, Codec, Compression, EndTransaction, HEADER_SIZE, HeaderView,
    InflateLimits, Origin, RecordView, Records, Rules, TimeQuery, TimestampType, Walk, find_time, inflate,
    restamp_timestamp, walk_records,
};

/// What a batch may inflate to here, and what the codecs may keep for themselves: a gzip state and window, and two of a
/// buffer while it grows. Zstandard's memory is C's and bounded by its window.
const CAP: usize = 1 << 18;
const BASE: u64 = 8 * CAP as u64;
const FACTOR: u64 = 64;
const NOW: WallMillis = WallMillis(1_000);
const ORIGINS: [Origin; 3] = [Origin::Client, Origin::Coordinator, Origin::Replica];

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

/// Batches as they come, and once more with their lengths and checksums made right, so that damage is met further in.
pub fn record_batch(data: &[u8]) {
    bounded(data, FACTOR, BASE, || read_everything(data));
    let mended = mended(data);
    bounded(data, FACTOR, BASE, || read_everything(&mended));
}

/// The same bytes as a run of batches whose checksums hold; the last one's length is what is there.
pub fn mended(data: &[u8]) -> Vec<u8> {
    const LENGTH_AT: usize = 8;
    const LENGTH_END: usize = 12;
    let mut bytes = data.to_vec();
    let mut at = 0;
    while bytes.len() - at >= HEADER_SIZE {
        let rest = &mut bytes[at..];
        let stated = i32::from_be_bytes(rest[LENGTH_AT..LENGTH_END].try_into().expect("four bytes"));
        let there = rest.len();
        let size = usize::try_from(stated).map_or(there, |stated| LENGTH_END + stated);
        let size = if (HEADER_SIZE..=there).contains(&size) { size } else { there };
        let Ok(length) = i32::try_from(size - LENGTH_END) else { break };
        rest[LENGTH_AT..LENGTH_END].copy_from_slice(&length.to_be_bytes());
        if let Ok((view, _)) = BatchView::parse(&rest[..size]) {
            let (kind, time) = (view.timestamp_type(), view.max_timestamp());
            restamp_timestamp(&mut rest[..size], kind, time);
        }
        at += size;
    }
    bytes
}

fn read_everything(bytes: &[u8]) {
    for origin in ORIGINS {
        let checked = check(bytes, &rules(origin), NOW);
        if let Some(inline) = check_inline(bytes, &rules(origin), NOW) {
            assert_eq!(inline, checked, "the loop and a helper say the same");
        }
        let Ok(checked) = checked else { continue };
        crate::depth::reached();
        let mut batch = bytes[..checked.size].to_vec();
        if origin == Origin::Replica {
            BatchView::parse_whole(&batch).expect("what passed is whole");
            continue;
        }
        checked.stamp(&mut batch, Offset(5), LeaderEpoch(1), NOW);
        let view = BatchView::parse_whole(&batch).expect("what passed is whole");
        view.check_crc().expect("a stamp keeps the checksum right");
        assert_eq!(view.records_count(), view.last_offset_delta() + 1);
        let (again, _) = rebuild(&view, &checked, Codec::Lz4.into(), &rules(origin)).expect("what passed is rebuilt");
        let again = BatchView::parse_whole(&again).expect("what is rebuilt is whole");
        assert_eq!(again.records_count(), view.records_count());
        assert_eq!(records_of(&again), records_of(&view), "a rebuilt batch has the same records");
    }
    for view in Batches::new(bytes).filter_map(Result::ok).take(200) {
        let header = view.header();
        assert_eq!(&header.to_bytes(), view.header_bytes());
        let _ = (header.producer(), header.next_offset(), view.check_crc(), view.check_counts());
        let _ = EndTransaction::from_batch(&view);
        if let Ok(records) = batch::control::control_records(&view) {
            records.take(1000).for_each(drop);
        }
        let query = TimeQuery::AtOrAfter { time: header.max_timestamp, from: header.base_offset };
        let _ = find_time(&view, query, rules(Origin::Client).inflate);
    }
    if let Some(header) = bytes.first_chunk::<HEADER_SIZE>() {
        let _ = BatchHeader::from_bytes(header);
    }
}

/// How many records a batch has, and how many bytes of keys and values, in any codec.
fn records_of(view: &BatchView<'_>) -> Option<(u32, usize)> {
    let mut found = (0, 0);
    let walked = walk_records(view, rules(Origin::Client).inflate, |_, record| {
        found.0 += 1;
        found.1 += record.key.map_or(0, <[u8]>::len) + record.value.map_or(0, <[u8]>::len);
        Walk::On
    });
    walked.ok().map(|()| found)
}

/// The codec and a count, then records: packed into a batch whose header is right, so that only the records can be wrong.
pub fn inner_records(data: &[u8]) {
    let Some((head, records)) = data.split_first_chunk::<2>() else { return };
    let codec = codec_of(head[0]);
    let batch = batch_around(codec, i32::from(head[1]), records);
    bounded(data, FACTOR, BASE, || {
        let mut rest = records;
        while let Ok((record, after)) = RecordView::decode(rest) {
            assert_eq!(record.size, rest.len() - after.len());
            assert_eq!(record.headers().count(), record.headers_count() as usize);
            let owned = record.to_record(NOW);
            assert_eq!(owned.headers.len(), record.headers_count() as usize);
            rest = after;
        }
        Records::new(records, i32::MAX).for_each(drop);
        read_everything(&batch);
    });
}

fn codec_of(byte: u8) -> Codec {
    Codec::ALL[usize::from(byte) % Codec::ALL.len()]
}

fn batch_around(codec: Codec, count: i32, records: &[u8]) -> Vec<u8> {
    let mut builder = BatchBuilder::new();
    builder.compression(codec.into());
    let mut bytes = builder.build()[..HEADER_SIZE].to_vec();
    bytes[21..23].copy_from_slice(&u16::from(codec.id()).to_be_bytes());
    bytes[23..27].copy_from_slice(&(count - 1).to_be_bytes());
    bytes[57..61].copy_from_slice(&count.to_be_bytes());
    Compression::from(codec).compress(records, &mut bytes);
    let length = (bytes.len() - 12) as i32;
    bytes[8..12].copy_from_slice(&length.to_be_bytes());
    mended(&bytes)
}

/// The codec, then what may be a stream of it. Read in one go and in small pieces it is the same.
pub fn compressed(data: &[u8]) {
    let Some((codec, stream)) = data.split_first() else { return };
    let codec = codec_of(*codec);
    bounded(data, FACTOR, BASE, || {
        let whole = inflate(codec, stream, CAP);
        if let Ok(whole) = &whole {
            crate::depth::reached();
            assert!(whole.len() <= CAP);
        }
        let Ok(mut inflater) = Inflater::new(codec, stream, CAP) else {
            assert!(whole.is_err());
            return;
        };
        let mut piece = [0; 777];
        let mut at = 0;
        let result = loop {
            match inflater.read(&mut piece) {
                Ok(0) => break Ok(()),
                Ok(count) => {
                    if let Ok(whole) = &whole {
                        assert_eq!(whole.get(at..at + count), Some(&piece[..count]));
                    }
                    at += count;
                }
                Err(error) => break Err(error),
            }
        };
        assert_eq!(result.is_ok(), whole.is_ok(), "{result:?} but {:?}", whole.map(|bytes| bytes.len()));
        assert!(at <= CAP);
    });
}

fn some_records() -> Vec<Vec<u8>> {
    let headers = [HeaderView { key: b"h", value: None }, HeaderView { key: b"", value: Some(b"w") }];
    let mut one = BatchBuilder::new();
    one.append(WallMillis(5), Some(b"key"), Some(b"value"), &[]);
    let mut three = BatchBuilder::new();
    three.append(WallMillis(5), None, Some(&[7; 300]), &headers);
    three.append(WallMillis(-1), Some(b""), None, &[]);
    three.append(WallMillis(i64::MAX), Some(&[1; 130]), Some(b""), &headers[..1]);
    [(1, one), (3, three)]
        .into_iter()
        .map(|(count, builder)| [&[count], &builder.build()[HEADER_SIZE..]].concat())
        .collect()
}

/// Batches that Apache wrote, and a run of several; large ones are left to the golden tests.
pub fn record_batch_seeds() -> Vec<Vec<u8>> {
    const SEED_MAX: usize = 8 << 10;
    let mut seeds: Vec<Vec<u8>> = golden::batches().into_iter().filter(|batch| batch.len() <= SEED_MAX).collect();
    let run = seeds.iter().take(4).flatten().copied().collect();
    seeds.push(run);
    seeds
}

pub fn inner_records_seeds() -> Vec<Vec<u8>> {
    let with_codec = |codec: u8| some_records().into_iter().map(move |records| [&[codec], &records[..]].concat());
    (0..Codec::ALL.len() as u8).flat_map(with_codec).collect()
}

pub fn compressed_seeds() -> Vec<Vec<u8>> {
    let mixed: Vec<u8> = (0..3000u32).map(|i| (i % 7 * (i / 500)) as u8).collect();
    let raws = [Vec::new(), b"hello".to_vec(), mixed, vec![0; 40_000], vec![3; CAP + 1]];
    let mut seeds = Vec::new();
    for (number, codec) in Codec::ALL.iter().enumerate() {
        for raw in &raws {
            let mut seed = vec![number as u8];
            Compression::from(*codec).compress(raw, &mut seed);
            if seed.len() <= 64 << 10 {
                seeds.push(seed);
            }
        }
    }
    seeds
}
