//! The way home of references that other cores held: a lock-free stack of slots, which any thread pushes to and only the
//! owner empties.
//!
//! A slot has a number of references that came back and are not yet taken off its count. Whoever raises that number from
//! zero also pushes the slot; others only raise it. The owner takes the whole stack at once, so the ABA problem of
//! popping single entries does not arise, and it reads a slot's link before it lowers the number to zero, because from
//! then on the slot may be pushed again. Nothing is allocated by a return, and none can fail.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The first chunk of slots; each further one doubles the table.
const FIRST_CHUNK: u32 = 256;
const CHUNKS: usize = 24;
/// The end of the stack.
const NONE: u32 = u32::MAX;

#[derive(Debug, Default)]
struct Node {
    /// References that came back since the owner last looked.
    returned: AtomicU32,
    /// The slot below this one in the stack; means something only while this one is in it.
    next: AtomicU32,
}

#[derive(Debug)]
pub(crate) struct Returns {
    /// Chunks never move, so that other threads may use a slot while the owner adds more.
    chunks: [OnceLock<Box<[Node]>>; CHUNKS],
    head: AtomicU32,
}

impl Returns {
    pub(crate) fn new() -> Returns {
        Returns { chunks: [const { OnceLock::new() }; CHUNKS], head: AtomicU32::new(NONE) }
    }

    /// Makes sure that `slot` has a place; by the owner, before it lets a reference to the slot leave.
    pub(crate) fn prepare(&self, slot: u32) {
        let (chunk, _) = locate(slot);
        self.chunks[chunk].get_or_init(|| (0..FIRST_CHUNK << chunk).map(|_| Node::default()).collect());
    }

    fn node(&self, slot: u32) -> &Node {
        let (chunk, index) = locate(slot);
        let nodes = self.chunks[chunk].get().expect("the owner prepared the slot before a reference left");
        &nodes[index]
    }

    /// One reference to `slot` is given up, by any thread. What that thread did with the bytes happens before the owner
    /// takes the slot.
    pub(crate) fn push(&self, slot: u32) {
        let node = self.node(slot);
        // Release: our reads of the bytes stay before it. Each increment continues the release sequence of those before
        // it, so the owner's one acquiring exchange orders all of them. Acquire: our write of `next` below stays after
        // the owner's last reading of it, which precedes its lowering the number to zero.
        if node.returned.fetch_add(1, Ordering::AcqRel) > 0 {
            return;
        }
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            node.next.store(head, Ordering::Relaxed);
            // Release publishes `next`. The head may have been here before (emptied and refilled); that is harmless,
            // since what we link to is whatever is on top now.
            match self.head.compare_exchange_weak(head, slot, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// The next slot with references that came back, and their number; by the owner only, which keeps `taken` between
    /// calls (the part of the stack that it took and has not looked at).
    pub(crate) fn pop(&self, taken: &mut Taken) -> Option<(u32, u32)> {
        if taken.0 == NONE {
            if self.head.load(Ordering::Relaxed) == NONE {
                return None;
            }
            // Acquire: sees every `next` that the pushes published (their exchanges form one release sequence).
            taken.0 = self.head.swap(NONE, Ordering::Acquire);
        }
        let slot = taken.0;
        let node = self.node(slot);
        taken.0 = node.next.load(Ordering::Relaxed);
        Some((slot, node.returned.swap(0, Ordering::AcqRel)))
    }
}

/// The part of the stack that the owner has taken and not yet looked at.
#[derive(Debug)]
pub(crate) struct Taken(u32);

impl Taken {
    pub(crate) fn nothing() -> Taken {
        Taken(NONE)
    }
}

/// The chunk of a slot and its index there.
fn locate(slot: u32) -> (usize, usize) {
    let shifted = slot + FIRST_CHUNK;
    let chunk = shifted.ilog2() - FIRST_CHUNK.ilog2();
    (chunk as usize, (shifted - (FIRST_CHUNK << chunk)) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::sync::Arc;

    #[test]
    fn slots_fill_the_chunks_in_order() {
        assert_eq!(locate(0), (0, 0));
        assert_eq!(locate(255), (0, 255));
        assert_eq!(locate(256), (1, 0));
        assert_eq!(locate(767), (1, 511));
        assert_eq!(locate(768), (2, 0));
    }

    #[test]
    fn references_of_one_slot_are_counted_together() {
        let returns = Returns::new();
        returns.prepare(3);
        returns.prepare(300);
        for slot in [3, 300, 3, 3] {
            returns.push(slot);
        }
        let mut taken = Taken::nothing();
        let seen: HashMap<_, _> = std::iter::from_fn(|| returns.pop(&mut taken)).collect();
        assert_eq!(seen, HashMap::from([(3, 3), (300, 1)]));
        assert_eq!(returns.pop(&mut taken), None);
    }

    #[test]
    fn threads_lose_no_return() {
        let each = if cfg!(miri) { 50 } else { 100_000 };
        let slots = 7;
        let returns = Arc::new(Returns::new());
        returns.prepare(slots);
        let threads: Vec<_> = (0..3u32)
            .map(|thread| {
                let returns = returns.clone();
                std::thread::spawn(move || {
                    for i in 0..each {
                        returns.push((thread + i) % slots);
                    }
                })
            })
            .collect();
        let (mut total, mut taken) = (0, Taken::nothing());
        while threads.iter().any(|thread| !thread.is_finished()) {
            total += std::iter::from_fn(|| returns.pop(&mut taken)).map(|(_, count)| count).sum::<u32>();
            std::thread::yield_now();
        }
        for thread in threads {
            thread.join().unwrap();
        }
        total += std::iter::from_fn(|| returns.pop(&mut taken)).map(|(_, count)| count).sum::<u32>();
        assert_eq!(total, 3 * each);
    }
}
