//! Producer ids in hand: InitProducerId without a transactional id is answered from blocks that the controller gave, so
//! that new idempotent producers can start while no control plane runs (design 04). Each core has its own share.

use base::ProducerId;
use std::collections::VecDeque;

/// Ids kept in hand, given out in order.
#[derive(Clone, Debug, Default)]
pub struct ProducerIds {
    /// First id and count of each run; never empty runs.
    runs: VecDeque<(i64, u32)>,
}

impl ProducerIds {
    pub fn in_hand(&self) -> u32 {
        self.runs.iter().map(|run| run.1).sum()
    }

    pub fn add(&mut self, first: i64, count: u32) {
        if count > 0 {
            self.runs.push_back((first, count));
        }
    }

    /// The next id, or `None` where none is in hand: the client is told to retry.
    pub fn take(&mut self) -> Option<ProducerId> {
        let run = self.runs.front_mut()?;
        let id = run.0;
        run.0 += 1;
        run.1 -= 1;
        if run.1 == 0 {
            self.runs.pop_front();
        }
        Some(ProducerId(id))
    }

    /// Cuts off up to `count` ids as one run, for another core.
    pub fn split(&mut self, count: u32) -> Option<(i64, u32)> {
        let run = self.runs.front_mut()?;
        let taken = (run.0, run.1.min(count));
        run.0 += i64::from(taken.1);
        run.1 -= taken.1;
        if run.1 == 0 {
            self.runs.pop_front();
        }
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_given_once_and_in_order() {
        let mut keeper = ProducerIds::default();
        assert_eq!(keeper.take(), None);
        keeper.add(1000, 3);
        keeper.add(5000, 2);
        let share = keeper.split(2).unwrap();
        assert_eq!(share, (1000, 2));
        let rest: Vec<_> = std::iter::from_fn(|| keeper.take()).map(|id| id.0).collect();
        assert_eq!(rest, vec![1002, 5000, 5001]);
        assert_eq!(keeper.in_hand(), 0);
    }
}
