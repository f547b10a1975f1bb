//! The timers of a shard, by name: setting one again moves it.

use base::Monotonic;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug)]
pub(crate) struct Timers<K> {
    deadlines: BTreeMap<K, Monotonic>,
    order: BTreeSet<(Monotonic, K)>,
}

impl<K: Clone + Ord> Timers<K> {
    pub fn new() -> Timers<K> {
        Timers { deadlines: BTreeMap::new(), order: BTreeSet::new() }
    }

    pub fn set(&mut self, timer: K, deadline: Monotonic) {
        self.cancel(&timer);
        self.order.insert((deadline, timer.clone()));
        self.deadlines.insert(timer, deadline);
    }

    pub fn cancel(&mut self, timer: &K) {
        if let Some(deadline) = self.deadlines.remove(timer) {
            self.order.remove(&(deadline, timer.clone()));
        }
    }

    pub fn next(&self) -> Option<Monotonic> {
        self.order.first().map(|(deadline, _)| *deadline)
    }

    /// The earliest timer that is due.
    pub fn pop_due(&mut self, now: Monotonic) -> Option<K> {
        if self.next()? > now {
            return None;
        }
        let (_, timer) = self.order.pop_first()?;
        self.deadlines.remove(&timer);
        Some(timer)
    }

    pub fn clear(&mut self) {
        self.deadlines.clear();
        self.order.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_is_moved_cancelled_and_fires_once_in_order() {
        let mut timers = Timers::new();
        timers.set("a", Monotonic(5));
        timers.set("b", Monotonic(3));
        timers.set("c", Monotonic(4));
        timers.set("b", Monotonic(6));
        timers.cancel(&"c");
        assert_eq!((timers.next(), timers.pop_due(Monotonic(4))), (Some(Monotonic(5)), None));
        assert_eq!((timers.pop_due(Monotonic(9)), timers.pop_due(Monotonic(9))), (Some("a"), Some("b")));
        assert_eq!((timers.pop_due(Monotonic(9)), timers.next()), (None, None));
    }
}
