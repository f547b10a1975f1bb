//! One segment: its size and its two sparse indexes, as Kafka's storage lays them out.

use base::{Offset, WallMillis};
use bytes::{BufMut, Bytes, BytesMut};

/// Kafka's index.interval.bytes: at most one index entry per this many bytes of log.
const INDEX_INTERVAL: u64 = 4096;
/// Kafka's segment.index.bytes over the size of an entry.
const INDEX_ENTRIES_MAX: usize = 10 * 1024 * 1024 / 8;

/// The facts of a batch that indexes and reads need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchFacts {
    pub(crate) base: Offset,
    pub(crate) last: Offset,
    pub(crate) epoch: base::LeaderEpoch,
    pub(crate) max_time: WallMillis,
    pub(crate) size: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexEntry {
    pub(crate) last: Offset,
    pub(crate) position: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TimeEntry {
    at: WallMillis,
    last: Offset,
}

#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) base: Offset,
    pub(crate) size: u64,
    index: Vec<IndexEntry>,
    times: Vec<TimeEntry>,
    since_entry: u64,
    latest: Option<TimeEntry>,
    first_time: Option<WallMillis>,
}

/// Index bytes that an append adds, with their positions in their files.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct IndexGrowth {
    pub(crate) offset: Option<(u64, Bytes)>,
    pub(crate) time: Option<(u64, Bytes)>,
}

impl Segment {
    pub(crate) fn new(base: Offset) -> Segment {
        Segment { base, size: 0, index: Vec::new(), times: Vec::new(), since_entry: 0, latest: None, first_time: None }
    }

    /// Whether a batch needs the next segment: by size, by age (counted in the batches' own times), by the 32 bits of an
    /// index entry.
    pub(crate) fn is_full_for(&self, batch: &BatchFacts, size_max: u64, age_max_ms: i64) -> bool {
        if self.size == 0 {
            return false;
        }
        let age = self.first_time.map_or(0, |first| batch.max_time.0.saturating_sub(first.0));
        self.size + u64::from(batch.size) > size_max
            || age > age_max_ms
            || self.index.len() >= INDEX_ENTRIES_MAX
            || batch.last.0 - self.base.0 > i64::from(i32::MAX)
    }

    /// Adds a batch at the end. An entry names the first batch after more than an interval, by its last offset.
    pub(crate) fn push(&mut self, batch: &BatchFacts) -> IndexGrowth {
        let mut growth = IndexGrowth::default();
        self.first_time.get_or_insert(batch.max_time);
        if self.latest.is_none_or(|latest| batch.max_time > latest.at) {
            self.latest = Some(TimeEntry { at: batch.max_time, last: batch.last });
        }
        if self.since_entry > INDEX_INTERVAL {
            let position = u32::try_from(self.size).expect("a segment is at most 2 GiB");
            let entry = IndexEntry { last: batch.last, position };
            growth.offset = Some((self.index.len() as u64 * 8, self.encode_entry(entry)));
            self.index.push(entry);
            growth.time = self.note_time();
            self.since_entry = 0;
        }
        self.size += u64::from(batch.size);
        self.since_entry += u64::from(batch.size);
        growth
    }

    /// The last entry of the time index, which a segment gets when the next one takes over.
    pub(crate) fn close(&mut self) -> Option<(u64, Bytes)> {
        self.note_time()
    }

    fn note_time(&mut self) -> Option<(u64, Bytes)> {
        let latest = self.latest?;
        if self.times.last().is_some_and(|t| t.at >= latest.at) {
            return None;
        }
        let position = self.times.len() as u64 * 12;
        self.times.push(latest);
        Some((position, self.encode_time(latest)))
    }

    fn relative(&self, offset: Offset) -> i32 {
        i32::try_from(offset.0 - self.base.0).expect("a segment spans fewer than 2^31 offsets")
    }

    fn encode_entry(&self, entry: IndexEntry) -> Bytes {
        let mut out = BytesMut::with_capacity(8);
        out.put_i32(self.relative(entry.last));
        out.put_u32(entry.position);
        out.freeze()
    }

    fn encode_time(&self, entry: TimeEntry) -> Bytes {
        let mut out = BytesMut::with_capacity(12);
        out.put_i64(entry.at.0);
        out.put_i32(self.relative(entry.last));
        out.freeze()
    }

    /// The whole `.index` file.
    pub(crate) fn encode_index(&self) -> Bytes {
        self.index.iter().flat_map(|e| self.encode_entry(*e)).collect()
    }

    /// The whole `.timeindex` file.
    pub(crate) fn encode_times(&self) -> Bytes {
        self.times.iter().flat_map(|t| self.encode_time(*t)).collect()
    }

    /// A position at or before the batch that holds `offset`: the start of an indexed batch, or of the segment.
    pub(crate) fn position_before(&self, offset: Offset) -> u64 {
        // An entry names the *last* offset of its batch, so the batch of the first entry not below `offset` may hold it,
        // but so may one before it; the entry before is always safe.
        let at = self.index.partition_point(|e| e.last < offset);
        at.checked_sub(1).map_or(0, |i| u64::from(self.index[i].position))
    }

    /// Cuts the segment at a batch's start, with the indexes. The caller has checked that `position` is one.
    pub(crate) fn truncate(&mut self, position: u64, end: Offset) {
        assert!(position <= self.size, "a cut lies inside the segment");
        self.size = position;
        self.index.retain(|e| e.last < end);
        self.times.retain(|t| t.last < end);
        self.since_entry = position - self.index.last().map_or(0, |e| u64::from(e.position));
        if self.latest.is_some_and(|latest| latest.last >= end) {
            // The time index must not run behind the log's largest time; the last entry kept is the best known bound.
            self.latest = self.times.last().copied();
        }
        if position == 0 {
            self.first_time = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::LeaderEpoch;

    fn batch(base: i64, last: i64, size: u32) -> BatchFacts {
        BatchFacts { base: Offset(base), last: Offset(last), epoch: LeaderEpoch(1), max_time: WallMillis(base), size }
    }

    #[test]
    fn entries_come_after_more_than_an_interval() {
        let mut segment = Segment::new(Offset(0));
        assert_eq!(segment.push(&batch(0, 9, 4096)), IndexGrowth::default());
        assert_eq!(segment.push(&batch(10, 19, 1)), IndexGrowth::default(), "4096 is not more than 4096");
        let growth = segment.push(&batch(20, 29, 100));
        assert_eq!(growth.offset, Some((0, Bytes::from_static(&[0, 0, 0, 29, 0, 0, 0x10, 0x01]))));
        assert_eq!(growth.time, Some((0, Bytes::from_static(&[0, 0, 0, 0, 0, 0, 0, 20, 0, 0, 0, 29]))));
        assert_eq!(segment.position_before(Offset(29)), 0);
        assert_eq!(segment.position_before(Offset(30)), 4097);
        segment.truncate(4097, Offset(20));
        assert_eq!(segment.encode_index().len(), 0);
        assert_eq!(segment.size, 4097);
        assert!(segment.push(&batch(20, 20, 10)).offset.is_some());
    }

    #[test]
    fn a_segment_is_full_by_size_age_and_reach() {
        let mut segment = Segment::new(Offset(0));
        let full = |s: &Segment, b: &BatchFacts| s.is_full_for(b, 1000, 50);
        assert!(!full(&segment, &batch(0, 0, 5000)), "an empty segment takes any batch");
        segment.push(&batch(0, 0, 600));
        assert!(!full(&segment, &batch(1, 1, 400)));
        assert!(full(&segment, &batch(1, 1, 401)));
        assert!(!full(&segment, &batch(50, 50, 1)));
        assert!(full(&segment, &batch(51, 51, 1)));
        assert!(segment.is_full_for(&batch(1 << 31, 1 << 31, 1), 1000, i64::MAX));
    }
}
