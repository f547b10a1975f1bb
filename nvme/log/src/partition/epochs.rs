//! The start offset of each leader epoch (KIP-101); both fields rise strictly.

use base::{LeaderEpoch, Offset};
use nvme_format::blob::EpochStart;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EpochTable {
    starts: Vec<EpochStart>,
}

impl EpochTable {
    pub(crate) fn from_starts(starts: Vec<EpochStart>) -> EpochTable {
        EpochTable { starts }
    }

    pub fn starts(&self) -> &[EpochStart] {
        &self.starts
    }

    pub fn latest(&self) -> Option<EpochStart> {
        self.starts.last().copied()
    }

    /// The largest epoch not above `epoch`, and where it ends: the next one's start, or the log's end.
    pub fn end_of(&self, epoch: LeaderEpoch, log_end: Offset) -> Option<(LeaderEpoch, Offset)> {
        let next = self.starts.partition_point(|start| start.epoch <= epoch);
        let found = self.starts.get(next.checked_sub(1)?)?;
        Some((found.epoch, self.starts.get(next).map_or(log_end, |start| start.offset)))
    }

    /// The epoch of a record.
    pub fn epoch_at(&self, offset: Offset) -> Option<LeaderEpoch> {
        let next = self.starts.partition_point(|start| start.offset <= offset);
        self.starts.get(next.checked_sub(1)?).map(|start| start.epoch)
    }

    /// An epoch that does not rise is no news. One that starts where the last did replaces it: no record has that one.
    pub(crate) fn start(&mut self, epoch: LeaderEpoch, offset: Offset) {
        if epoch.0 < 0 || self.latest().is_some_and(|last| epoch <= last.epoch) {
            return;
        }
        while self.latest().is_some_and(|last| last.offset >= offset) {
            self.starts.pop();
        }
        self.starts.push(EpochStart { epoch, offset });
    }

    pub(crate) fn cut(&mut self, to: Offset) {
        self.starts.retain(|start| start.offset < to);
    }

    /// Keeps the entry that covers the log's new start, as of that start.
    pub(crate) fn trim(&mut self, log_start: Offset) {
        let covering = self.starts.partition_point(|start| start.offset <= log_start);
        if covering > 0 {
            self.starts.drain(..covering - 1);
            self.starts[0].offset = self.starts[0].offset.max(log_start);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.starts.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> EpochTable {
        let mut table = EpochTable::default();
        for (epoch, offset) in [(1, 0), (3, 10), (4, 20)] {
            table.start(LeaderEpoch(epoch), Offset(offset));
        }
        table
    }

    #[test]
    fn an_epoch_ends_where_the_next_starts() {
        let table = table();
        let end = |epoch| table.end_of(LeaderEpoch(epoch), Offset(25)).map(|(e, o)| (e.0, o.0));
        assert_eq!(
            [end(0), end(1), end(2), end(3), end(4), end(9)],
            [None, Some((1, 10)), Some((1, 10)), Some((3, 20)), Some((4, 25)), Some((4, 25))]
        );
        assert_eq!(table.epoch_at(Offset(19)), Some(LeaderEpoch(3)));
    }

    #[test]
    fn both_fields_rise_and_trimming_keeps_the_covering_entry() {
        let mut table = table();
        table.start(LeaderEpoch(4), Offset(30));
        table.start(LeaderEpoch(2), Offset(30));
        assert_eq!(table.starts().len(), 3);
        table.start(LeaderEpoch(7), Offset(20));
        assert_eq!(table.latest(), Some(EpochStart { epoch: LeaderEpoch(7), offset: Offset(20) }));
        assert_eq!(table.starts().len(), 3);
        table.trim(Offset(15));
        assert_eq!(table.starts()[0], EpochStart { epoch: LeaderEpoch(3), offset: Offset(15) });
        table.cut(Offset(20));
        assert_eq!(table.starts().len(), 1);
    }
}
