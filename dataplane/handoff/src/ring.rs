//! Rings between cores: bounded, one sender and one receiver, no locks. A ring's capacity is its credit: where it is
//! full, the message comes back and the sender stops reading whatever made it. What a core sends to itself takes a
//! `LocalRing`, which has the same methods and no atomics.
//!
//! Pushing wakes nobody. After a batch of pushes the sender calls `base::Sleeper::notify` of the receiving core, which
//! wakes it only if it declared itself asleep; the receiver announces its sleep, looks at every ring once more, and then
//! sleeps.
#![allow(unsafe_code)]

use std::cell::{Cell, UnsafeCell};
use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Keeps what one side writes off the cache lines of the other (pairs of lines are fetched together).
#[repr(align(128))]
struct Apart<T>(T);

struct Shared<T> {
    /// Messages taken so far, written by the receiver alone. Both counts run on and wrap; places are counts modulo the
    /// length, a power of two.
    taken: Apart<AtomicUsize>,
    /// Messages pushed so far, written by the sender alone.
    pushed: Apart<AtomicUsize>,
    capacity: usize,
    places: Box<[UnsafeCell<MaybeUninit<T>>]>,
}

// SAFETY: a place belongs to the receiver while `pushed` covers it and `taken` does not, and to the sender otherwise; the
// release store and the acquire load of the two counts hand it over. So both ends never touch one place at a time, and
// messages only move between threads, for which `T: Send` is enough.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: as above; the ring owns the messages in it.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T> Shared<T> {
    fn place(&self, count: usize) -> *mut MaybeUninit<T> {
        self.places[count & (self.places.len() - 1)].get()
    }
}

/// The sending end; one core's.
pub struct Sender<T> {
    ring: Arc<Shared<T>>,
    /// Our own count, and the receiver's as we last saw it: the other core's line is read only when the ring looks full.
    pushed: usize,
    taken_seen: usize,
}

/// The receiving end; another core's.
pub struct Receiver<T> {
    ring: Arc<Shared<T>>,
    taken: usize,
    /// The sender's count as we last saw it; in a cell, so that looking needs no exclusive borrow.
    pushed_seen: Cell<usize>,
}

/// A ring for at most `capacity` messages.
pub fn ring<T: Send>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    assert!(capacity > 0, "a ring holds at least one message");
    let places = (0..capacity.next_power_of_two()).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect();
    let ring =
        Arc::new(Shared { taken: Apart(AtomicUsize::new(0)), pushed: Apart(AtomicUsize::new(0)), capacity, places });
    let sender = Sender { ring: ring.clone(), pushed: 0, taken_seen: 0 };
    (sender, Receiver { ring, taken: 0, pushed_seen: Cell::new(0) })
}

impl<T: Send> Sender<T> {
    /// Puts the message in, or gives it back where the ring is full.
    pub fn push(&mut self, message: T) -> Result<(), T> {
        if self.room() == 0 {
            return Err(message);
        }
        // SAFETY: fewer than `capacity` messages lie between `taken` and `pushed`, so this place is empty and the
        // receiver does not touch it before the store below; we are the only sender (`&mut self`, not `Clone`).
        unsafe { (*self.ring.place(self.pushed)).write(message) };
        self.pushed = self.pushed.wrapping_add(1);
        self.ring.pushed.0.store(self.pushed, Ordering::Release);
        Ok(())
    }

    /// How many messages fit now at least.
    pub fn room(&mut self) -> usize {
        let in_ring = self.pushed.wrapping_sub(self.taken_seen);
        if in_ring < self.ring.capacity {
            return self.ring.capacity - in_ring;
        }
        // Acquire: the receiver has moved the messages out of the places we are about to fill.
        self.taken_seen = self.ring.taken.0.load(Ordering::Acquire);
        self.ring.capacity - self.pushed.wrapping_sub(self.taken_seen)
    }

    pub fn capacity(&self) -> usize {
        self.ring.capacity
    }

    /// The receiver is gone: what is pushed will not be taken.
    pub fn is_abandoned(&self) -> bool {
        Arc::strong_count(&self.ring) == 1
    }
}

impl<T: Send> Receiver<T> {
    pub fn pop(&mut self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        // SAFETY: `pushed` covers this place (seen with acquire in `is_empty`), so the sender has written it and does not
        // touch it before the store below; we are the only receiver and move each message out once.
        let message = unsafe { (*self.ring.place(self.taken)).assume_init_read() };
        self.taken = self.taken.wrapping_add(1);
        self.ring.taken.0.store(self.taken, Ordering::Release);
        Some(message)
    }

    /// Whether nothing can be taken now; the last look before a sleep.
    pub fn is_empty(&self) -> bool {
        if self.taken != self.pushed_seen.get() {
            return false;
        }
        // Acquire: the messages that the count covers are written.
        self.pushed_seen.set(self.ring.pushed.0.load(Ordering::Acquire));
        self.taken == self.pushed_seen.get()
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        let (mut taken, pushed) = (*self.taken.0.get_mut(), *self.pushed.0.get_mut());
        while taken != pushed {
            // SAFETY: both ends are gone, and exactly the places between the counts hold messages.
            unsafe { (*self.place(taken)).assume_init_drop() };
            taken = taken.wrapping_add(1);
        }
    }
}

/// What a core sends to itself: bounded like a ring, so that both are used alike.
#[derive(Debug)]
pub struct LocalRing<T> {
    messages: VecDeque<T>,
    capacity: usize,
}

impl<T> LocalRing<T> {
    pub fn new(capacity: usize) -> LocalRing<T> {
        assert!(capacity > 0, "a ring holds at least one message");
        LocalRing { messages: VecDeque::with_capacity(capacity), capacity }
    }

    /// Puts the message in, or gives it back where the ring is full.
    pub fn push(&mut self, message: T) -> Result<(), T> {
        if self.messages.len() == self.capacity {
            return Err(message);
        }
        self.messages.push_back(message);
        Ok(())
    }

    pub fn pop(&mut self) -> Option<T> {
        self.messages.pop_front()
    }

    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub fn room(&self) -> usize {
        self.capacity - self.messages.len()
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{Random, Sleeper};
    use std::thread;

    #[test]
    fn a_full_ring_gives_the_message_back() {
        let (mut sender, mut receiver) = ring(3);
        let mut local = LocalRing::new(3);
        for i in 0..3 {
            assert_eq!((sender.room(), local.room()), (3 - i, 3 - i));
            assert_eq!((sender.push(i), local.push(i)), (Ok(()), Ok(())));
        }
        assert_eq!((sender.push(9), local.push(9)), (Err(9), Err(9)));
        assert_eq!((receiver.pop(), local.pop()), (Some(0), Some(0)));
        assert_eq!((sender.push(3), local.push(3)), (Ok(()), Ok(())));
        for i in 1..4 {
            assert!(!receiver.is_empty() && !local.is_empty());
            assert_eq!((receiver.pop(), local.pop()), (Some(i), Some(i)));
        }
        assert_eq!((receiver.pop(), local.pop()), (None, None));
        assert!(receiver.is_empty() && local.is_empty());
        assert_eq!((sender.capacity(), local.capacity()), (3, 3));
        assert!(!sender.is_abandoned());
        drop(receiver);
        assert!(sender.is_abandoned());
    }

    #[test]
    fn messages_left_in_a_ring_are_dropped_once() {
        let message = Arc::new(());
        for taken in 0..=5 {
            let (mut sender, mut receiver) = ring(6);
            for _ in 0..5 {
                assert!(sender.push(message.clone()).is_ok());
            }
            for _ in 0..taken {
                drop(receiver.pop());
            }
            drop(sender);
            assert_eq!(Arc::strong_count(&message), 1 + 5 - taken);
            drop(receiver);
            assert_eq!(Arc::strong_count(&message), 1);
        }
    }

    #[test]
    fn counts_may_wrap() {
        let (mut sender, mut receiver) = ring(4);
        let start = usize::MAX - 5;
        sender.ring.pushed.0.store(start, Ordering::Relaxed);
        sender.ring.taken.0.store(start, Ordering::Relaxed);
        (sender.pushed, sender.taken_seen, receiver.taken) = (start, start, start);
        receiver.pushed_seen.set(start);
        for i in 0..20 {
            assert_eq!(sender.push(i), Ok(()));
            assert_eq!(sender.push(i + 100), Ok(()));
            assert_eq!((receiver.pop(), receiver.pop(), receiver.pop()), (Some(i), Some(i + 100), None));
        }
    }

    #[test]
    fn two_threads_keep_order_and_lose_nothing() {
        let messages = if cfg!(miri) { 200 } else { 500_000u64 };
        for capacity in [1, 3, 64] {
            let (mut sender, mut receiver) = ring(capacity);
            let thread = thread::spawn(move || {
                for i in 0..messages {
                    let mut message = Box::new(i);
                    while let Err(back) = sender.push(message) {
                        message = back;
                        thread::yield_now();
                    }
                }
            });
            let mut expected = 0;
            while expected < messages {
                match receiver.pop() {
                    Some(message) => {
                        assert_eq!(*message, expected);
                        expected += 1;
                    }
                    None => thread::yield_now(),
                }
            }
            assert!(receiver.is_empty());
            thread.join().unwrap();
        }
    }

    /// Two cores that talk in both directions and sleep without a timeout whenever they find nothing: a lost wake hangs.
    #[test]
    fn two_sleeping_cores_never_miss_a_message() {
        struct Core {
            outbox: Sender<u64>,
            inbox: Receiver<u64>,
            own: Arc<Sleeper>,
            peer: Arc<Sleeper>,
        }
        impl Core {
            fn wait(&mut self) -> u64 {
                loop {
                    if let Some(message) = self.inbox.pop() {
                        return message;
                    }
                    self.own.announce();
                    if self.inbox.is_empty() {
                        thread::park();
                    }
                    self.own.retract();
                }
            }
            fn send(&mut self, message: u64) {
                assert!(self.outbox.push(message).is_ok(), "one message is out at a time");
                self.peer.notify();
            }
        }
        let rounds = if cfg!(miri) { 20 } else { 20_000 };
        let (to_b, from_a) = ring(1);
        let (to_a, from_b) = ring(1);
        let main = thread::current();
        let sleeper_a = Arc::new(Sleeper::new(move || main.unpark()));
        let (hand_over, start) = std::sync::mpsc::channel::<Arc<Sleeper>>();
        let peer = sleeper_a.clone();
        let thread = thread::spawn(move || {
            let own = start.recv().unwrap();
            let mut core = Core { outbox: to_a, inbox: from_a, own, peer };
            let mut random = Random::from_seed(5);
            for _ in 0..rounds {
                let message = core.wait();
                if random.chance(1, 4) {
                    thread::yield_now();
                }
                core.send(message + 1);
            }
        });
        let other = thread.thread().clone();
        let sleeper_b = Arc::new(Sleeper::new(move || other.unpark()));
        hand_over.send(sleeper_b.clone()).unwrap();
        let mut core = Core { outbox: to_b, inbox: from_b, own: sleeper_a, peer: sleeper_b };
        for round in 0..rounds {
            core.send(round * 10);
            assert_eq!(core.wait(), round * 10 + 1);
        }
        thread.join().unwrap();
    }
}
