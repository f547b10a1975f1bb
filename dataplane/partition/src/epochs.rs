//! What the table of leader epochs says to a reader (KIP-101, KIP-595).

use base::{LeaderEpoch, Offset};
use nvme_log::EpochStart;

/// The largest own epoch not above `asked`, and where it ends. `None` is an epoch that we have yet to learn of. An epoch
/// before all that are known ends where the first known one starts.
pub(crate) fn end_of(starts: &[EpochStart], log_end: Offset, asked: LeaderEpoch) -> Option<(LeaderEpoch, Offset)> {
    let next = starts.partition_point(|start| start.epoch <= asked);
    match (next.checked_sub(1).and_then(|index| starts.get(index)), starts.get(next)) {
        (Some(last), None) => (last.epoch == asked).then_some((asked, log_end)),
        (Some(found), Some(next)) => Some((found.epoch, next.offset)),
        (None, Some(first)) => Some((asked, first.offset)),
        (None, None) => None,
    }
}

/// Where a reader that last read `last_fetched` before `offset` stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Continuity {
    Continues,
    /// Its log is another's from the end of this epoch on.
    Diverges(LeaderEpoch, Offset),
    /// The epoch is none of ours.
    Unknown,
}

pub(crate) fn continuity(
    starts: &[EpochStart],
    log_end: Offset,
    last_fetched: LeaderEpoch,
    offset: Offset,
) -> Continuity {
    match end_of(starts, log_end, last_fetched) {
        None => Continuity::Unknown,
        Some((epoch, end)) if epoch < last_fetched || end < offset => Continuity::Diverges(epoch, end),
        Some(_) => Continuity::Continues,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts() -> Vec<EpochStart> {
        [(1, 0), (3, 10), (4, 20)]
            .map(|(epoch, offset)| EpochStart { epoch: LeaderEpoch(epoch), offset: Offset(offset) })
            .to_vec()
    }

    #[test]
    fn an_epoch_ends_where_kafka_says() {
        let end = |epoch| end_of(&starts(), Offset(25), LeaderEpoch(epoch)).map(|(e, o)| (e.0, o.0));
        assert_eq!(
            [0, 1, 2, 3, 4, 5].map(end),
            [Some((0, 0)), Some((1, 10)), Some((1, 10)), Some((3, 20)), Some((4, 25)), None]
        );
        assert_eq!(end_of(&[], Offset(3), LeaderEpoch(0)), None);
    }

    #[test]
    fn a_reader_diverges_by_a_lower_epoch_or_an_earlier_end() {
        let at = |epoch, offset| continuity(&starts(), Offset(25), LeaderEpoch(epoch), Offset(offset));
        assert_eq!(at(4, 25), Continuity::Continues);
        assert_eq!(at(3, 20), Continuity::Continues);
        assert_eq!(at(3, 21), Continuity::Diverges(LeaderEpoch(3), Offset(20)));
        assert_eq!(at(2, 10), Continuity::Diverges(LeaderEpoch(1), Offset(10)));
        assert_eq!(at(5, 25), Continuity::Unknown);
    }
}
