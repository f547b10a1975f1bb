//! Memory that is free and unused for a while is given back to the system: a pass over the arenas every few seconds, in
//! slices, and none while nothing could be given back, so that an idle loop is not woken for it.

use arena::Arena;
use base::limits::IDLE_MEMORY_TIME;
use base::{Monotonic, Now};
use std::time::Duration;

/// Pages that were free at the pass before go, so a page goes within two of these; what an idle cache lets go of follows
/// soon.
const PASS_INTERVAL: Duration = Duration::from_nanos(IDLE_MEMORY_TIME.as_nanos() as u64 / 4);
/// Looked at, and perhaps given back, in one turn: unmapping it takes some 100 us.
const SLICE_BYTES: usize = 1 << 20;

/// When the next pass begins, and which arena one that has begun is at.
#[derive(Debug, Default)]
pub(crate) struct IdleMemory {
    next_pass: Monotonic,
    /// Arenas that this pass has still to look at.
    left: usize,
}

impl IdleMemory {
    /// One slice of a pass, where one is due.
    pub(crate) fn poll(&mut self, now: Now, arenas: &[&Arena]) {
        if self.left == 0 {
            if now.monotonic < self.next_pass || arenas.iter().all(|arena| arena.touched_bytes() == 0) {
                return;
            }
            self.next_pass = now.monotonic + PASS_INTERVAL;
            self.left = arenas.len();
        }
        let arena = arenas[self.left - 1];
        arena.release_idle(SLICE_BYTES);
        if arena.is_swept() {
            self.left -= 1;
        }
    }

    pub(crate) fn next_deadline(&self, now: Now, arenas: &[&Arena]) -> Option<Monotonic> {
        if self.left > 0 {
            return Some(now.monotonic);
        }
        arenas.iter().any(|arena| arena.touched_bytes() > 0).then_some(self.next_pass)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arena::Region;
    use base::{CoreId, WallMillis};

    fn at(time: Monotonic) -> Now {
        Now { monotonic: time, wall: WallMillis(0) }
    }

    /// Turns whenever something is due, until nothing is or the time is over; returns when it stopped.
    fn run(memory: &mut IdleMemory, from: Monotonic, until: Monotonic, arenas: &[&Arena]) -> Monotonic {
        let mut now = from;
        for _ in 0..10_000 {
            memory.poll(at(now), arenas);
            match memory.next_deadline(at(now), arenas) {
                Some(due) if due.max(now) < until => now = now.max(due),
                _ => return now,
            }
        }
        panic!("it never comes to rest");
    }

    #[test]
    fn what_was_used_goes_back_within_the_idle_time_and_then_nothing_is_due() {
        let arena = |bytes| Arena::new(CoreId(0), Region::anonymous(bytes).expect("memory"));
        let (small, large) = (arena(4 << 20), arena(40 << 20));
        let arenas = [&small, &large];
        let mut memory = IdleMemory::default();
        let begin = Monotonic::ZERO + Duration::from_secs(100);
        assert_eq!(memory.next_deadline(at(begin), &arenas), None, "nothing was ever used");

        let kept = large.try_allocate(1 << 20).expect("room");
        drop((small.try_allocate(2 << 20).expect("room"), large.try_allocate(30 << 20).expect("room")));
        assert_eq!(small.touched_bytes() + large.touched_bytes(), 32 << 20);
        let rest = run(&mut memory, begin, begin + IDLE_MEMORY_TIME, &arenas);
        assert_eq!(small.touched_bytes() + large.touched_bytes(), 0);
        assert!(rest.since(begin) <= IDLE_MEMORY_TIME);
        assert_eq!(memory.next_deadline(at(rest), &arenas), None, "an idle loop is not woken");
        assert_eq!(large.used_bytes(), kept.len());
    }

    #[test]
    fn memory_in_use_again_and_again_stays() {
        let arena = Arena::new(CoreId(0), Region::anonymous(1 << 20).expect("memory"));
        let mut memory = IdleMemory::default();
        let mut now = Monotonic::ZERO + Duration::from_secs(1);
        for _ in 0..40 {
            drop(arena.try_allocate(64 << 10).expect("room"));
            memory.poll(at(now), &[&arena]);
            assert_eq!(arena.touched_bytes(), 64 << 10);
            now = now + Duration::from_secs(1);
        }
    }
}
