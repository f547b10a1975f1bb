//! Where each epoch of the log starts (KIP-101): what divergence is decided by.

use crate::ids::OffsetAndEpoch;
use base::{LeaderEpoch, Offset};

/// Epochs with their first offsets; both rise strictly.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Epochs {
    entries: Vec<(LeaderEpoch, Offset)>,
}

impl Epochs {
    pub(crate) fn entries(&self) -> &[(LeaderEpoch, Offset)] {
        &self.entries
    }

    pub(crate) fn latest(&self) -> Option<LeaderEpoch> {
        self.entries.last().map(|(epoch, _)| *epoch)
    }

    /// Notes that `epoch` starts at `start`; true if that is news. An epoch in which nothing was appended gives way.
    pub(crate) fn start(&mut self, epoch: LeaderEpoch, start: Offset) -> bool {
        match self.entries.last() {
            Some((latest, _)) if *latest == epoch => return false,
            Some((latest, _)) => assert!(*latest < epoch, "epoch {epoch} starts after epoch {latest}"),
            None => (),
        }
        while self.entries.last().is_some_and(|(_, s)| *s >= start) {
            self.entries.pop();
        }
        self.entries.push((epoch, start));
        true
    }

    /// The end of the largest epoch not above `epoch`. Below all known epochs, it is the start of the first; above all,
    /// the end of the log.
    pub(crate) fn end_of(&self, epoch: LeaderEpoch, log_end: OffsetAndEpoch) -> OffsetAndEpoch {
        let next = self.entries.partition_point(|(e, _)| *e <= epoch);
        if next == self.entries.len() {
            return match self.entries.last() {
                Some((latest, _)) if *latest == epoch => OffsetAndEpoch { offset: log_end.offset, epoch },
                _ => log_end,
            };
        }
        let found = if next == 0 { epoch } else { self.entries[next - 1].0 };
        OffsetAndEpoch { offset: self.entries[next].1, epoch: found }
    }

    /// Forgets epochs that start at `end` or later; true if there were any.
    pub(crate) fn truncate_to(&mut self, end: Offset) -> bool {
        let keep = self.entries.partition_point(|(_, start)| *start < end);
        let changed = keep < self.entries.len();
        self.entries.truncate(keep);
        changed
    }

    /// Forgets epochs that end at `start` or before; the one that covers it then begins there. True if anything changed.
    pub(crate) fn drop_before(&mut self, start: Offset) -> bool {
        let next = self.entries.partition_point(|(_, s)| *s <= start);
        let Some(covering) = next.checked_sub(1) else { return false };
        let changed = covering > 0 || self.entries[0].1 != start;
        self.entries.drain(..covering);
        self.entries[0].1 = start;
        changed
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epochs(entries: &[(i32, i64)]) -> Epochs {
        Epochs { entries: entries.iter().map(|(e, s)| (LeaderEpoch(*e), Offset(*s))).collect() }
    }

    fn end(epoch: i32, offset: i64) -> OffsetAndEpoch {
        OffsetAndEpoch { offset: Offset(offset), epoch: LeaderEpoch(epoch) }
    }

    #[test]
    fn the_end_of_an_epoch_by_table() {
        let known = epochs(&[(2, 10), (4, 20), (7, 35)]);
        let log_end = end(7, 50);
        for (asked, answer) in [
            (1, end(1, 10)),
            (2, end(2, 20)),
            (3, end(2, 20)),
            (4, end(4, 35)),
            (6, end(4, 35)),
            (7, log_end),
            (9, log_end),
        ] {
            assert_eq!(known.end_of(LeaderEpoch(asked), log_end), answer, "epoch {asked}");
        }
        assert_eq!(epochs(&[]).end_of(LeaderEpoch(3), end(0, 0)), end(0, 0));
    }

    #[test]
    fn an_empty_epoch_gives_way_and_truncation_forgets() {
        let mut known = epochs(&[(1, 0)]);
        assert!(known.start(LeaderEpoch(2), Offset(5)));
        assert!(known.start(LeaderEpoch(3), Offset(5)));
        assert!(!known.start(LeaderEpoch(3), Offset(9)));
        assert_eq!(known, epochs(&[(1, 0), (3, 5)]));
        assert!(known.truncate_to(Offset(5)));
        assert_eq!(known, epochs(&[(1, 0)]));
    }

    #[test]
    fn trimming_keeps_the_covering_epoch() {
        let mut known = epochs(&[(1, 0), (2, 10), (3, 20)]);
        assert!(known.drop_before(Offset(15)));
        assert_eq!(known, epochs(&[(2, 15), (3, 20)]));
        assert!(!known.drop_before(Offset(15)));
    }
}
