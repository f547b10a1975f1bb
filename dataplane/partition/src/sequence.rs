//! Whether a producer's batch continues what its partition has of it (design 08, items 3 and 4).

use base::{Offset, ProducerEpoch, Sequence, WallMillis};
use batch::header::ProducerStamp;
use nvme_log::ProducerState;

/// What is to be done with a batch of an idempotent producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Append,
    /// It is in the log already, one of the last five of its producer.
    Duplicate {
        base: Offset,
        last: Offset,
        timestamp: WallMillis,
    },
    StaleEpoch {
        current: ProducerEpoch,
    },
    /// A new epoch begins at 0.
    NewEpochNotAtZero,
    /// None stands for an epoch of which no batch is known (its last record was a marker).
    OutOfOrder {
        last: Option<Sequence>,
    },
}

/// Duplicates come first, since a retry's sequence can never be the next one. Without state any number is taken.
pub(crate) fn judge(known: Option<&ProducerState>, batch: &ProducerStamp) -> Verdict {
    let Some(known) = known else { return Verdict::Append };
    if known.epoch == batch.epoch {
        let same = |kept: &&nvme_log::ProducerBatch| {
            kept.first_sequence == batch.base_sequence && kept.last_sequence == batch.last_sequence
        };
        if let Some(kept) = known.batches.iter().find(same) {
            return Verdict::Duplicate { base: kept.base_offset, last: kept.last_offset, timestamp: kept.timestamp };
        }
    }
    if batch.epoch < known.epoch {
        return Verdict::StaleEpoch { current: known.epoch };
    }
    if batch.epoch > known.epoch {
        return if batch.base_sequence == Sequence(0) { Verdict::Append } else { Verdict::NewEpochNotAtZero };
    }
    let last = known.batches.last().map(|kept| kept.last_sequence);
    let next = last.map_or(Sequence(0), |last| last.plus(1));
    if batch.base_sequence == next { Verdict::Append } else { Verdict::OutOfOrder { last } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::ProducerId;
    use nvme_log::ProducerBatch;

    fn stamp(epoch: i16, first: i32, last: i32) -> ProducerStamp {
        ProducerStamp {
            id: ProducerId(7),
            epoch: ProducerEpoch(epoch),
            base_sequence: Sequence(first),
            last_sequence: Sequence(last),
        }
    }

    fn state(epoch: i16, ranges: &[(i32, i32)]) -> ProducerState {
        let batches = ranges.iter().enumerate().map(|(i, (first, last))| ProducerBatch {
            first_sequence: Sequence(*first),
            last_sequence: Sequence(*last),
            base_offset: Offset(100 * i as i64),
            last_offset: Offset(100 * i as i64 + 9),
            timestamp: WallMillis(i as i64),
        });
        ProducerState {
            id: ProducerId(7),
            epoch: ProducerEpoch(epoch),
            coordinator_epoch: -1,
            last_timestamp: WallMillis(0),
            last_offset: Offset(0),
            transaction: None,
            batches: batches.collect(),
        }
    }

    #[test]
    fn verdicts_by_table() {
        let known = state(3, &[(0, 4), (5, 5), (6, 9)]);
        let duplicate =
            |i: i64| Verdict::Duplicate { base: Offset(100 * i), last: Offset(100 * i + 9), timestamp: WallMillis(i) };
        let out = |last| Verdict::OutOfOrder { last: Some(Sequence(last)) };
        let cases = [
            (stamp(3, 10, 12), Verdict::Append),
            (stamp(3, 6, 9), duplicate(2)),
            (stamp(3, 0, 4), duplicate(0)),
            (stamp(3, 0, 3), out(9)),
            (stamp(3, 11, 11), out(9)),
            (stamp(3, 6, 8), out(9)),
            (stamp(2, 10, 12), Verdict::StaleEpoch { current: ProducerEpoch(3) }),
            // A duplicate is one of this epoch only.
            (stamp(2, 6, 9), Verdict::StaleEpoch { current: ProducerEpoch(3) }),
            (stamp(4, 0, 0), Verdict::Append),
            (stamp(4, 10, 10), Verdict::NewEpochNotAtZero),
        ];
        for (batch, verdict) in cases {
            assert_eq!(judge(Some(&known), &batch), verdict, "{batch:?}");
        }
    }

    #[test]
    fn without_state_any_number_is_taken_and_the_largest_is_followed_by_zero() {
        assert_eq!(judge(None, &stamp(0, 55, 60)), Verdict::Append);
        let wraps = state(0, &[(i32::MAX - 1, i32::MAX)]);
        assert_eq!(judge(Some(&wraps), &stamp(0, 0, 3)), Verdict::Append);
        let over = state(0, &[(i32::MAX - 1, 1)]);
        assert_eq!(judge(Some(&over), &stamp(0, 2, 2)), Verdict::Append);
        assert_eq!(judge(Some(&state(1, &[])), &stamp(1, 0, 0)), Verdict::Append);
        assert_eq!(judge(Some(&state(1, &[])), &stamp(1, 4, 4)), Verdict::OutOfOrder { last: None });
    }
}
