//! Lookups by time inside one batch, for ListOffsets: the index finds the batch, this finds the record.

use crate::header::BatchView;
use crate::skim::skim_records;
use crate::stream::{InflateLimits, StreamError, Walk};
use base::{LeaderEpoch, Offset, WallMillis};

/// Which record is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeQuery {
    /// The first record at or after a time. Records before `from`, the log's start, do not count.
    AtOrAfter { time: WallMillis, from: Offset },
    /// The first record that has the batch's largest timestamp.
    Max,
}

/// A record, its time, and the epoch of its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundTime {
    pub offset: Offset,
    pub timestamp: WallMillis,
    pub epoch: LeaderEpoch,
}

/// The record, or `None` where the batch has none such: the header's maximum may belong to a record that compaction or
/// the log's start took away, and the search goes on in the next batch.
pub fn find_time(
    batch: &BatchView<'_>,
    query: TimeQuery,
    limits: InflateLimits,
) -> Result<Option<FoundTime>, StreamError> {
    let header = batch.header();
    let (time, from) = match query {
        TimeQuery::AtOrAfter { time, from } => (time, from),
        TimeQuery::Max => (header.max_timestamp, header.base_offset),
    };
    if header.max_timestamp < time || header.last_offset() < from {
        return Ok(None);
    }
    let mut found = None;
    skim_records(batch, limits, |_, record| {
        let record = FoundTime {
            offset: header.offset_at(record.offset_delta),
            timestamp: header.timestamp_at(record.timestamp_delta),
            epoch: header.partition_leader_epoch,
        };
        if record.timestamp >= time && record.offset >= from {
            found = Some(record);
            return Walk::Enough;
        }
        Walk::On
    })?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::BatchBuilder;
    use crate::compression::Codec;
    use crate::header::{TimestampType, restamp_timestamp};

    const LIMITS: InflateLimits = InflateLimits { batch_bytes_max: 1 << 20, record_bytes_max: u32::MAX };

    fn batch(codec: Codec) -> Vec<u8> {
        let mut builder = BatchBuilder::new();
        builder.base_offset(Offset(100)).compression(codec.into());
        for time in [5, 9, 1, 9, 7] {
            builder.append(WallMillis(time), None, Some(b"v"), &[]);
        }
        builder.build()
    }

    fn find(bytes: &[u8], query: TimeQuery) -> Option<(i64, i64)> {
        let view = BatchView::parse_whole(bytes).expect("a good batch");
        let found = find_time(&view, query, LIMITS).expect("good records");
        found.map(|found| (found.offset.0, found.timestamp.0))
    }

    #[test]
    fn the_first_record_at_or_after_a_time_is_found_in_every_codec() {
        for codec in Codec::ALL {
            let bytes = batch(codec);
            let at = |time, from| find(&bytes, TimeQuery::AtOrAfter { time: WallMillis(time), from: Offset(from) });
            assert_eq!(at(-1, 0), Some((100, 5)));
            assert_eq!(at(6, 0), Some((101, 9)));
            assert_eq!(at(9, 102), Some((103, 9)), "the log starts inside the batch");
            assert_eq!(at(9, 104), None);
            assert_eq!(at(10, 0), None);
            assert_eq!(at(0, 105), None);
            assert_eq!(find(&bytes, TimeQuery::Max), Some((101, 9)));
        }
    }

    #[test]
    fn with_append_times_every_record_has_the_batchs() {
        let mut bytes = batch(Codec::Gzip);
        restamp_timestamp(&mut bytes, TimestampType::LogAppendTime, WallMillis(50));
        assert_eq!(find(&bytes, TimeQuery::Max), Some((100, 50)));
        let query = TimeQuery::AtOrAfter { time: WallMillis(50), from: Offset(103) };
        assert_eq!(find(&bytes, query), Some((103, 50)));
    }
}
