//! The newest part of the log in memory: facts of every batch above what is committed, and their bytes where they are kept.

use super::segment::BatchFacts;
use base::Offset;
use bytes::Bytes;
use std::collections::VecDeque;

#[derive(Clone, Debug)]
pub(crate) struct TailBatch {
    pub(crate) facts: BatchFacts,
    /// The base offset of its segment, and its position there.
    pub(crate) segment: Offset,
    pub(crate) position: u64,
    /// Absent where loading found more log than it keeps in memory.
    pub(crate) bytes: Option<Bytes>,
}

/// Contiguous batches up to the end of the log.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    batches: VecDeque<TailBatch>,
    bytes: usize,
}

impl Tail {
    pub(crate) fn push(&mut self, batch: TailBatch) {
        if let Some(last) = self.batches.back() {
            assert_eq!(last.facts.last.plus(1), batch.facts.base, "the tail has no gap");
        }
        self.bytes += batch.bytes.as_ref().map_or(0, Bytes::len);
        self.batches.push_back(batch);
    }

    fn index(&self, offset: Offset) -> Option<usize> {
        let at = self.batches.partition_point(|b| b.facts.last < offset);
        (self.batches.get(at)?.facts.base <= offset).then_some(at)
    }

    /// The batch that holds `offset`.
    pub(crate) fn get(&self, offset: Offset) -> Option<&TailBatch> {
        self.index(offset).map(|at| &self.batches[at])
    }

    pub(crate) fn position(&self, offset: Offset) -> Option<(Offset, u64)> {
        self.get(offset).map(|b| (b.segment, b.position))
    }

    /// Batches from `offset` on while they are in memory; `None` if the first is not.
    pub(crate) fn read(&self, offset: Offset, max_bytes: usize) -> Option<Vec<Bytes>> {
        let mut found = Vec::new();
        let mut total = 0;
        for batch in self.batches.iter().skip(self.index(offset)?) {
            let Some(bytes) = &batch.bytes else { break };
            if !found.is_empty() && total + bytes.len() > max_bytes {
                break;
            }
            total += bytes.len();
            found.push(bytes.clone());
        }
        (!found.is_empty()).then_some(found)
    }

    /// Forgets batches at the front that end before `below`, while more than `keep` bytes are held.
    pub(crate) fn shed(&mut self, below: Offset, keep: usize) {
        while let Some(first) = self.batches.front() {
            let has_bytes = first.bytes.is_some();
            if first.facts.last >= below || (has_bytes && self.bytes <= keep) {
                return;
            }
            self.bytes -= first.bytes.as_ref().map_or(0, Bytes::len);
            self.batches.pop_front();
        }
    }

    /// Forgets batches that begin at `end` or later.
    pub(crate) fn truncate_to(&mut self, end: Offset) {
        while self.batches.back().is_some_and(|b| b.facts.base >= end) {
            let batch = self.batches.pop_back().expect("just seen");
            self.bytes -= batch.bytes.map_or(0, |b| b.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{LeaderEpoch, WallMillis};

    fn batch(base: i64, last: i64, bytes: Option<&'static [u8]>) -> TailBatch {
        let facts = BatchFacts {
            base: Offset(base),
            last: Offset(last),
            epoch: LeaderEpoch(1),
            max_time: WallMillis(0),
            size: 4,
        };
        TailBatch { facts, segment: Offset(0), position: base as u64, bytes: bytes.map(Bytes::from_static) }
    }

    #[test]
    fn reads_whole_batches_and_at_least_one() {
        let mut tail = Tail::default();
        tail.push(batch(5, 6, None));
        tail.push(batch(7, 9, Some(b"aaaa")));
        tail.push(batch(10, 10, Some(b"bbbb")));
        assert_eq!(tail.read(Offset(4), 100), None);
        assert_eq!(tail.read(Offset(5), 100), None, "its bytes are only on disk");
        assert_eq!(tail.position(Offset(6)), Some((Offset(0), 5)));
        assert_eq!(tail.read(Offset(8), 1).unwrap().len(), 1);
        assert_eq!(tail.read(Offset(8), 8).unwrap().len(), 2);
        assert_eq!(tail.read(Offset(11), 8), None);
        tail.shed(Offset(10), 4);
        assert_eq!(tail.read(Offset(8), 8), None);
        tail.shed(Offset(11), 4);
        assert!(tail.read(Offset(10), 8).is_some(), "within the budget it stays");
        tail.truncate_to(Offset(10));
        assert_eq!(tail.position(Offset(10)), None);
    }
}
