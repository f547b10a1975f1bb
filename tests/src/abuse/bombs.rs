//! Batches that inflate to a thousand times their size and more, in every codec, and a producer of them.

use crate::Result;
use base::WallMillis;
use batch::{BatchBuilder, Codec, Compression};
use bytes::Bytes;
use perf::client::{CallError, Connection, produce_request};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use wire::messages::ProduceRequest;

const PATIENCE: Duration = Duration::from_secs(60);
/// Zeros in a bomb that a codec made.
const INFLATED: usize = 96 << 20;
/// Of a batch's header: where its length stands, the CRC, and what the CRC is of.
const LENGTH_AT: usize = 8;
const CRC_AT: usize = 17;
const ATTRIBUTES_AT: usize = 21;
const HEADER: usize = 61;
const ZSTD: u8 = 4;

pub fn all() -> Vec<(&'static str, Bytes)> {
    vec![
        ("gzip", made(Codec::Gzip)),
        ("lz4", made(Codec::Lz4)),
        ("snappy", made(Codec::Snappy)),
        ("zstd", made(Codec::Zstd)),
        ("zstd of run-length blocks", zstd_of_runs(200_000, 0x50)),
        ("zstd with a window of 2 GiB", zstd_of_runs(1000, 0xA8)),
        ("zstd with the widest window", zstd_of_runs(1000, 0xFF)),
        ("gzip in gzip", nested()),
    ]
}

/// One record of zeros. Codecs that shrink less have fewer of them, so that every batch is below 1 MiB.
fn made(codec: Codec) -> Bytes {
    let size = match codec {
        Codec::Snappy => 15 << 20,
        _ => INFLATED,
    };
    let mut builder = BatchBuilder::new();
    builder.append(WallMillis(1_700_000_000_000), None, Some(&vec![0; size]), &[]);
    builder.compression(codec.into()).build().into()
}

/// A batch whose records say that they are compressed once, and whose value is compressed once more.
fn nested() -> Bytes {
    let mut inner = Vec::new();
    Compression::from(Codec::Gzip).compress(&vec![0; INFLATED], &mut inner);
    let mut builder = BatchBuilder::new();
    builder.append(WallMillis(1_700_000_000_000), None, Some(&inner), &[]);
    builder.compression(Codec::Gzip.into()).build().into()
}

/// Blocks of four bytes that stand for 128 KiB each (RFC 8878), behind a frame's header with this window descriptor.
fn zstd_of_runs(blocks: usize, window: u8) -> Bytes {
    const RUN: u32 = 128 << 10;
    const RUN_TYPE: u32 = 1;
    let mut frame = vec![0x28, 0xB5, 0x2F, 0xFD, 0x00, window];
    for number in 0..blocks {
        let last = u32::from(number + 1 == blocks);
        frame.extend_from_slice(&(RUN << 3 | RUN_TYPE << 1 | last).to_le_bytes()[..3]);
        frame.push(0);
    }
    around(&frame, ZSTD)
}

/// A batch of one record around bytes that are called compressed.
fn around(content: &[u8], codec: u8) -> Bytes {
    let mut builder = BatchBuilder::new();
    builder.append(WallMillis(1_700_000_000_000), None, Some(b"x"), &[]);
    let mut batch = builder.build();
    batch.truncate(HEADER);
    batch[ATTRIBUTES_AT + 1] = codec;
    batch.extend_from_slice(content);
    let length = (batch.len() - LENGTH_AT - 4) as i32;
    batch[LENGTH_AT..LENGTH_AT + 4].copy_from_slice(&length.to_be_bytes());
    let crc = crc32c::crc32c(&batch[ATTRIBUTES_AT..]);
    batch[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_be_bytes());
    batch.into()
}

/// What came of the bombs, by name and answer.
pub type Answers = BTreeMap<(&'static str, String), u64>;

fn request(topic: &str, records: &Bytes, acks: i16) -> ProduceRequest {
    produce_request(topic, 0, records.clone(), acks, Duration::from_secs(30))
}

/// One bomb after the other, with and without acknowledgement, until it is told to stop.
pub fn produce(address: SocketAddr, topic: &str, stop: &AtomicBool) -> Result<Answers> {
    let bombs = all();
    let mut answers = Answers::new();
    let mut connection = Connection::open(address, PATIENCE)?;
    for (number, (name, bomb)) in bombs.iter().cycle().enumerate() {
        if stop.load(Ordering::Acquire) && number >= bombs.len() * 2 {
            break;
        }
        let acks = if (number / bombs.len()).is_multiple_of(2) { 1 } else { 0 };
        let answer = if acks == 0 {
            connection.send(11, &request(topic, bomb, acks))?;
            // It is answered behind the silent one, or the connection ends because that failed.
            connection.call(3, &perf::client::api_versions_request()).map(|_| "taken in silence".to_owned())
        } else {
            connection.call(11, &request(topic, bomb, acks)).map(|answer| {
                let partition = answer.responses.first().and_then(|topic| topic.partition_responses.first());
                partition.map_or_else(|| "nothing".into(), |partition| super::name_of(partition.error_code))
            })
        };
        let told = match answer {
            Ok(told) => told,
            Err(CallError::Closed) => {
                connection = Connection::open(address, PATIENCE)?;
                "closed".to_owned()
            }
            Err(error) => return Err(format!("{name}: {error}").into()),
        };
        *answers.entry((*name, told)).or_default() += 1;
    }
    Ok(answers)
}
