//! Reads partitions back and holds them against what was acknowledged.

use crate::Result;
use base::Random;
use batch::{BatchView, Batches, Records, inflate};
use perf::client::{Connection, fetch_request};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use wire::ErrorCode;

const FETCH_VERSION: i16 = 12;
const PATIENCE: Duration = Duration::from_secs(60);
const INFLATED_MAX: usize = 16 << 20;
const VALUE_MAX: u64 = 3000;

/// The bytes of a record: partition and number, then a pattern that follows from both.
pub fn value_of(partition: i32, number: u64) -> Vec<u8> {
    let mut random = Random::from_seed((partition as u64) << 40 ^ number);
    let mut value = vec![0u8; 12 + random.below(VALUE_MAX) as usize];
    random.fill(&mut value);
    value[..4].copy_from_slice(&partition.to_be_bytes());
    value[4..12].copy_from_slice(&number.to_be_bytes());
    value
}

/// How far partitions are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Past what was acknowledged when the reading began: writers go on meanwhile.
    Acknowledged,
    /// To the end.
    Everything,
}

/// Reads the partitions from the given records on: record n at offset n with its bytes, and at least as many as were
/// acknowledged before. Returns how many records each has.
pub fn verify(
    address: SocketAddr,
    topic: &str,
    from: &[u64],
    acknowledged: &[u64],
    extent: Extent,
) -> Result<Vec<u64>> {
    let mut counts = Vec::new();
    for (partition, (from, acknowledged)) in from.iter().zip(acknowledged).enumerate() {
        let count = read_partition(address, topic, partition as i32, *from, *acknowledged, extent)?;
        if count < *acknowledged {
            return Err(
                format!("partition {partition}: {acknowledged} records were acknowledged, {count} are there").into()
            );
        }
        counts.push(count);
    }
    Ok(counts)
}

fn read_partition(
    address: SocketAddr,
    topic: &str,
    partition: i32,
    from: u64,
    acknowledged: u64,
    extent: Extent,
) -> Result<u64> {
    let mut connection = Connection::open(address, PATIENCE)?;
    let until = Instant::now() + PATIENCE;
    let mut next = from;
    loop {
        if Instant::now() > until {
            return Err(format!("partition {partition} cannot be read past record {next}").into());
        }
        let request = fetch_request(topic, partition, next as i64, 4 << 20, Duration::from_millis(100));
        let answer = connection.call(FETCH_VERSION, &request)?;
        let Some(told) = answer.responses.first().and_then(|topic| topic.partitions.first()) else {
            return Err("an answer without the partition".into());
        };
        match ErrorCode::from_code(told.error_code) {
            Some(ErrorCode::None) => {}
            Some(error) if error.is_retriable() => continue,
            _ => return Err(format!("partition {partition}: Fetch at {next} answers {}", told.error_code).into()),
        }
        let read = read_batches(told.records.as_deref().unwrap_or_default(), partition, next)?;
        let at_the_end = read == next && told.high_watermark <= next as i64;
        next = read;
        if at_the_end || (next >= acknowledged && extent == Extent::Acknowledged) {
            return Ok(next);
        }
    }
}

/// Checks whole batches from record `next` on; returns the number after the last.
fn read_batches(bytes: &[u8], partition: i32, mut next: u64) -> Result<u64> {
    for batch in Batches::new(bytes) {
        let view = batch.and_then(|batch| BatchView::parse_whole(batch.bytes()));
        let view = view.map_err(|error| format!("partition {partition}: {error}"))?;
        let header = view.header();
        let body = inflate(view.codec()?, view.body(), INFLATED_MAX).map_err(|error| error.to_string())?;
        for record in Records::new(&body, view.records_count()) {
            let record = record.map_err(|error| format!("partition {partition}: {error}"))?;
            let offset = header.offset_at(record.offset_delta).0;
            // A fetch from inside a batch gets the whole batch.
            if offset < next as i64 {
                continue;
            }
            if offset != next as i64 {
                return Err(format!("partition {partition}: offset {offset} follows {next}").into());
            }
            if record.value != Some(&value_of(partition, next)) {
                let named = record.value.and_then(|v| v.get(..12)).map(<[u8]>::to_vec);
                return Err(format!("partition {partition}: offset {offset} holds another record ({named:?})").into());
            }
            next += 1;
        }
    }
    Ok(next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{Offset, WallMillis};
    use batch::BatchBuilder;

    fn batch(base: i64, values: &[Vec<u8>]) -> Vec<u8> {
        let mut builder = BatchBuilder::new();
        builder.base_offset(Offset(base));
        for value in values {
            builder.append(WallMillis(1), None, Some(value), &[]);
        }
        builder.build()
    }

    #[test]
    fn good_batches_are_counted_and_a_cut_one_is_left() {
        let (first, second) = (batch(0, &[value_of(3, 0), value_of(3, 1)]), batch(2, &[value_of(3, 2)]));
        let both = [first.clone(), second.clone()].concat();
        assert_eq!(read_batches(&both, 3, 0).ok(), Some(3));
        assert_eq!(read_batches(&both[..both.len() - 1], 3, 0).ok(), Some(2));
        assert_eq!(read_batches(&both, 3, 1).ok(), Some(3), "from inside a batch");
    }

    #[test]
    fn lost_repeated_and_swapped_records_are_found() {
        let lost = [batch(0, &[value_of(3, 0)]), batch(2, &[value_of(3, 2)])].concat();
        assert!(read_batches(&lost, 3, 0).is_err());
        let repeated = [batch(0, &[value_of(3, 0)]), batch(1, &[value_of(3, 0)])].concat();
        assert!(read_batches(&repeated, 3, 0).is_err());
        assert!(read_batches(&batch(0, &[value_of(2, 0)]), 3, 0).is_err(), "another partition's record");
        let mut flipped = batch(0, &[value_of(3, 0)]);
        let last = flipped.len() - 1;
        flipped[last] ^= 1;
        assert!(read_batches(&flipped, 3, 0).is_err());
    }
}
