//! The timing wheel of a core: a hierarchy of 256 slots a level with a tick of one millisecond (Varghese and Lauck, 1987).
//!
//! A timer lies at the level of the highest byte in which its tick differs from the wheel's present tick, in the slot of
//! that byte. So every timer of a level is due before any of the next one; the earliest is found from one bitmap; time
//! may jump by any amount without visiting the ticks between; and 64-bit time needs no clamping. Timers never fire early:
//! a deadline is rounded up to a tick. Arming and cancelling cost the same however many timers there are, and moving
//! timers down a level counts against the budget like firing them.

use crate::Monotonic;
use crate::slots::{SlotToken, Slots};

const SLOTS: usize = 256;
/// Ticks of 64-bit nanoseconds have 45 bits: six bytes.
const LEVELS: usize = 6;
const NANOS_PER_TICK: u64 = 1_000_000;
/// The list of timers whose tick has come.
const DUE: usize = LEVELS * SLOTS;
const NONE: SlotLink = None;

type SlotLink = Option<SlotToken>;

/// Names an armed timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimerToken(SlotToken);

#[derive(Debug)]
struct Timer<T> {
    tick: u64,
    list: usize,
    next: SlotLink,
    previous: SlotLink,
    value: T,
}

#[derive(Clone, Copy, Debug)]
struct List {
    first: SlotLink,
    last: SlotLink,
}

#[derive(Debug)]
pub struct Wheel<T> {
    /// Every timer with a tick up to this one is in the list of due ones, or in `moving`.
    present: u64,
    timers: Slots<Timer<T>>,
    lists: Box<[List]>,
    /// Which slots of a level hold timers.
    filled: [[u64; SLOTS / 64]; LEVELS],
    /// The list whose first tick is the present one and whose timers are being moved down; it ends with the last of them.
    moving: Option<usize>,
}

impl<T> Wheel<T> {
    pub fn new(now: Monotonic) -> Wheel<T> {
        Wheel {
            present: now.0 / NANOS_PER_TICK,
            timers: Slots::growable(),
            lists: vec![List { first: NONE, last: NONE }; DUE + 1].into_boxed_slice(),
            filled: [[0; SLOTS / 64]; LEVELS],
            moving: None,
        }
    }

    pub fn len(&self) -> usize {
        self.timers.len()
    }

    pub fn is_empty(&self) -> bool {
        self.timers.is_empty()
    }

    /// Arms a timer; one whose deadline has passed fires at the next `expire`.
    pub fn insert(&mut self, deadline: Monotonic, value: T) -> TimerToken {
        let tick = deadline.0.div_ceil(NANOS_PER_TICK);
        let timer = Timer { tick, list: DUE, next: NONE, previous: NONE, value };
        let token = self.timers.insert_with(|_| timer).expect("growable slots are never full");
        self.link(token);
        TimerToken(token)
    }

    /// Disarms a timer and gives its value back; none where it has fired or was cancelled.
    pub fn cancel(&mut self, token: TimerToken) -> Option<T> {
        self.timers.get(token.0)?;
        self.unlink(token.0);
        self.timers.remove(token.0).map(|timer| timer.value)
    }

    /// The value of an armed timer.
    pub fn get(&self, token: TimerToken) -> Option<&T> {
        self.timers.get(token.0).map(|timer| &timer.value)
    }

    /// Appends the values of at most `budget` timers whose deadline has come, earliest tick first, and returns how many
    /// it appended. Where the budget ended it, `next_deadline` is not later than `now`.
    pub fn expire(&mut self, now: Monotonic, budget: usize, out: &mut Vec<T>) -> usize {
        let target = now.0 / NANOS_PER_TICK;
        let (mut left, mut fired) = (budget, 0);
        while left > 0 {
            if let Some(list) = self.moving {
                left -= self.move_down(list, left);
                continue;
            }
            if let Some(token) = self.lists[DUE].first {
                self.unlink(token);
                out.extend(self.timers.remove(token).map(|timer| timer.value));
                left -= 1;
                fired += 1;
                continue;
            }
            match self.earliest() {
                Some((tick, list)) if tick <= target => {
                    self.present = tick;
                    self.moving = Some(list);
                }
                _ => {
                    self.present = self.present.max(target);
                    break;
                }
            }
        }
        fired
    }

    /// A time at or before the earliest deadline: exact within 256 ms, else the moment at which the wheel should look
    /// again. None where no timer is armed.
    pub fn next_deadline(&self) -> Option<Monotonic> {
        if self.moving.is_some() || self.lists[DUE].first.is_some() {
            return Some(Monotonic(self.present.saturating_mul(NANOS_PER_TICK)));
        }
        self.earliest().map(|(tick, _)| Monotonic(tick.saturating_mul(NANOS_PER_TICK)))
    }

    /// The first list that holds timers, and its first tick.
    fn earliest(&self) -> Option<(u64, usize)> {
        for (level, filled) in self.filled.iter().enumerate() {
            let Some(word) = filled.iter().position(|word| *word != 0) else { continue };
            let slot = word * 64 + filled[word].trailing_zeros() as usize;
            let shift = 8 * level as u32;
            let above = self.present >> shift >> 8 << 8;
            return Some(((above | slot as u64) << shift, level * SLOTS + slot));
        }
        None
    }

    /// Moves at most `budget` timers of a list to where they belong now, and returns how many.
    fn move_down(&mut self, list: usize, budget: usize) -> usize {
        let mut moved = 0;
        while let Some(token) = self.lists[list].first.filter(|_| moved < budget) {
            self.unlink(token);
            self.link(token);
            moved += 1;
        }
        moved
    }

    fn link(&mut self, token: SlotToken) {
        let timer = self.timers.get_mut(token).expect("only live timers are linked");
        let list = if timer.tick <= self.present {
            DUE
        } else {
            let level = (timer.tick ^ self.present).ilog2() as usize / 8;
            let slot = (timer.tick >> (8 * level)) as usize % SLOTS;
            self.filled[level][slot / 64] |= 1 << (slot % 64);
            level * SLOTS + slot
        };
        timer.list = list;
        timer.next = NONE;
        timer.previous = self.lists[list].last.replace(token);
        match timer.previous {
            Some(last) => self.timers.get_mut(last).expect("lists hold live timers").next = Some(token),
            None => self.lists[list].first = Some(token),
        }
    }

    fn unlink(&mut self, token: SlotToken) {
        let timer = self.timers.get(token).expect("only live timers are linked");
        let (list, next, previous) = (timer.list, timer.next, timer.previous);
        match next {
            Some(next) => self.timers.get_mut(next).expect("lists hold live timers").previous = previous,
            None => self.lists[list].last = previous,
        }
        match previous {
            Some(previous) => self.timers.get_mut(previous).expect("lists hold live timers").next = next,
            None => self.lists[list].first = next,
        }
        if list != DUE && self.lists[list].first.is_none() {
            let (level, slot) = (list / SLOTS, list % SLOTS);
            self.filled[level][slot / 64] &= !(1 << (slot % 64));
            self.moving = self.moving.filter(|moving| *moving != list);
        }
    }
}

const _: () = assert!(u64::MAX / NANOS_PER_TICK + 1 < 1 << (8 * LEVELS), "every tick has a level");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::time::Duration;

    fn at(millis: u64) -> Monotonic {
        Monotonic(millis * NANOS_PER_TICK)
    }

    fn fired(wheel: &mut Wheel<u64>, now: Monotonic, budget: usize) -> Vec<u64> {
        let mut out = Vec::new();
        assert_eq!(wheel.expire(now, budget, &mut out), out.len());
        out
    }

    #[test]
    fn nothing_fires_early_and_everything_within_a_tick() {
        let mut wheel = Wheel::new(Monotonic(123));
        wheel.insert(Monotonic(NANOS_PER_TICK + 1), 1);
        assert_eq!(fired(&mut wheel, Monotonic(2 * NANOS_PER_TICK - 1), 9), []);
        assert_eq!(wheel.next_deadline(), Some(at(2)));
        assert_eq!(fired(&mut wheel, at(2), 9), [1]);
        assert_eq!(wheel.next_deadline(), None);
        wheel.insert(at(1), 2);
        assert!(wheel.next_deadline().unwrap() <= at(2));
        assert_eq!(fired(&mut wheel, at(2), 9), [2], "a passed deadline fires at once");
    }

    #[test]
    fn the_furthest_deadline_has_a_place() {
        let mut wheel = Wheel::new(Monotonic::ZERO);
        wheel.insert(Monotonic(u64::MAX), 1);
        assert_eq!(fired(&mut wheel, at(u64::MAX / NANOS_PER_TICK - 1), 100), []);
        assert!(wheel.next_deadline().is_some());
        assert_eq!(wheel.len(), 1);
    }

    #[test]
    fn a_jump_of_years_visits_only_timers() {
        let mut wheel = Wheel::new(Monotonic::ZERO);
        for millis in [1, 255, 256, 65_535, 65_536, 16_777_216, 5_000_000_000, 10_000_000_000] {
            wheel.insert(at(millis), millis);
        }
        assert_eq!(
            fired(&mut wheel, at(9_000_000_000), 1000),
            [1, 255, 256, 65_535, 65_536, 16_777_216, 5_000_000_000]
        );
        assert_eq!(wheel.next_deadline().map(|d| d <= at(10_000_000_000)), Some(true));
    }

    #[test]
    fn a_budget_ends_the_work_and_the_rest_follows_in_order() {
        let mut wheel = Wheel::new(Monotonic::ZERO);
        for i in (0..600).rev() {
            wheel.insert(at(300 + i), 300 + i);
        }
        let mut all = Vec::new();
        let mut calls = 0;
        while wheel.next_deadline().is_some_and(|deadline| deadline <= at(700)) {
            let mut out = Vec::new();
            assert!(wheel.expire(at(700), 7, &mut out) <= 7);
            all.extend(out);
            calls += 1;
        }
        assert_eq!(all, (300..=700).collect::<Vec<_>>());
        assert!(calls > 2 * all.len() / 7, "moving down counts too");
        assert_eq!(wheel.len(), 199);
    }

    #[test]
    fn a_cancelled_timer_is_gone_wherever_it_lies() {
        let mut wheel = Wheel::new(Monotonic::ZERO);
        let tokens: Vec<_> = [0, 5, 300, 301, 70_000].into_iter().map(|m| wheel.insert(at(m), m)).collect();
        assert_eq!(wheel.get(tokens[2]), Some(&300));
        // Ends with 300 and 301 still to be moved down.
        assert_eq!(fired(&mut wheel, at(300), 3), [0, 5]);
        assert_eq!(wheel.cancel(tokens[2]), Some(300));
        assert_eq!(wheel.cancel(tokens[2]), None);
        assert_eq!(wheel.cancel(tokens[1]), None);
        assert_eq!(wheel.cancel(tokens[4]), Some(70_000));
        assert_eq!(fired(&mut wheel, at(100_000), 100), [301]);
        assert!(wheel.is_empty() && wheel.next_deadline().is_none());
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        /// Against a sorted set: the same timers fire, in the order of their ticks, never early, and `next_deadline`
        /// never passes the earliest.
        #[test]
        fn agrees_with_a_sorted_set(seed in any::<u64>()) {
            let mut random = Random::from_seed(seed);
            let mut now = Monotonic(random.below(1 << 50));
            let mut wheel = Wheel::new(now);
            let mut model = BTreeSet::new();
            let mut tokens = Vec::new();
            for id in 0..400u64 {
                match random.below(4) {
                    0 | 1 => {
                        let spread = 1 << random.below(45);
                        let deadline = now + Duration::from_nanos(random.below(spread));
                        tokens.push((wheel.insert(deadline, id), deadline, id));
                        model.insert((deadline.0.div_ceil(NANOS_PER_TICK), id));
                    }
                    2 if !tokens.is_empty() => {
                        let (token, deadline, id) = tokens.swap_remove(random.below(tokens.len() as u64) as usize);
                        let present = model.remove(&(deadline.0.div_ceil(NANOS_PER_TICK), id));
                        prop_assert_eq!(wheel.cancel(token), present.then_some(id));
                    }
                    _ => {
                        let spread = 1 << random.below(43);
                        now = now + Duration::from_nanos(random.below(spread));
                        let budget = 1 + random.below(40) as usize;
                        let mut ticks = Vec::new();
                        for id in fired(&mut wheel, now, budget) {
                            let tick = model.iter().find(|(_, i)| *i == id).map(|(tick, _)| *tick);
                            prop_assert!(tick.is_some_and(|tick| tick <= now.millis()));
                            ticks.extend(tick);
                            model.retain(|(_, i)| *i != id);
                        }
                        prop_assert!(ticks.is_sorted());
                        if ticks.last() > model.first().map(|(tick, _)| tick) && !model.is_empty() {
                            prop_assert!(false, "a later timer overtook an earlier one");
                        }
                        if wheel.next_deadline().is_none_or(|deadline| deadline > now) {
                            prop_assert!(model.iter().all(|(tick, _)| *tick > now.millis()));
                        }
                    }
                }
                match (wheel.next_deadline(), model.first()) {
                    (None, None) => {}
                    (Some(deadline), Some((tick, _))) => prop_assert!(deadline.millis() <= *tick),
                    (deadline, first) => prop_assert!(false, "{deadline:?} {first:?}"),
                }
                prop_assert_eq!(wheel.len(), model.len());
            }
        }
    }
}
