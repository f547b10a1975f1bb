//! How many bytes lie between two offsets near the log's end, so that a waiter can be told how much there is for it
//! without looking the batches up.

use base::Offset;
use std::collections::VecDeque;

/// Appends remembered; beyond, pairs of the oldest are merged, and counts between them are a little low.
const APPENDS_MAX: usize = 4096;

/// Bytes appended since this was made, by the offset after each append, back to what every reader has been shown.
#[derive(Debug, Default)]
pub(crate) struct ByteCount {
    appends: VecDeque<(Offset, u64)>,
    /// The count at everything forgotten.
    floor: u64,
    total: u64,
}

impl ByteCount {
    pub(crate) fn append(&mut self, end: Offset, bytes: usize) {
        self.total += bytes as u64;
        if self.appends.len() >= APPENDS_MAX {
            self.merge();
        }
        self.appends.push_back((end, self.total));
    }

    fn merge(&mut self) {
        let mut keep = false;
        self.appends.retain(|_| {
            keep = !keep;
            !keep
        });
    }

    /// Nobody will ask for an offset before this.
    pub(crate) fn forget_below(&mut self, offset: Offset) {
        while let Some((end, count)) = self.appends.front().copied().filter(|(end, _)| *end <= offset) {
            debug_assert!(end <= offset);
            self.floor = count;
            self.appends.pop_front();
        }
    }

    /// Bytes up to `offset`, comparable with other results of this.
    pub(crate) fn at(&self, offset: Offset) -> u64 {
        let after = self.appends.partition_point(|(end, _)| *end <= offset);
        after.checked_sub(1).and_then(|index| self.appends.get(index)).map_or(self.floor, |(_, count)| *count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_between_offsets_are_counted() {
        let mut count = ByteCount::default();
        for end in 1..=10 {
            count.append(Offset(end), 100);
        }
        assert_eq!(count.at(Offset(10)) - count.at(Offset(4)), 600);
        count.forget_below(Offset(4));
        assert_eq!(count.at(Offset(10)) - count.at(Offset(4)), 600);
        assert_eq!(count.appends.len(), 6);
    }

    #[test]
    fn memory_is_bounded() {
        let mut count = ByteCount::default();
        for end in 1..=100_000 {
            count.append(Offset(end), 1);
        }
        assert!(count.appends.len() <= APPENDS_MAX);
        assert_eq!(count.at(Offset(100_000)), 100_000);
    }
}
