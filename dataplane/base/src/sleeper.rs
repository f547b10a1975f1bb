//! Sleeping without missing a message and waking without a system call: whoever is about to sleep announces it, looks
//! at everything that could have work once more, and only then sleeps; whoever sends wakes a declared sleeper alone.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// One thread's announcement and the way to wake it. The announcing end is that thread's; `notify` is anyone's.
pub struct Sleeper {
    asleep: AtomicBool,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl Sleeper {
    /// `wake` must end a sleep that has begun or, having been called, the next one that begins (an eventfd, `unpark`).
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Sleeper {
        Sleeper { asleep: AtomicBool::new(false), wake: Box::new(wake) }
    }

    /// From now on senders wake this thread. It must look at all its inputs again after this and before it sleeps.
    pub fn announce(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        // With the fence in `notify`: either we see the sender's message when we look again, or it sees us asleep.
        fence(Ordering::SeqCst);
    }

    /// Takes the announcement back, after sleeping or instead of it. False where a sender has used it up: one of several
    /// threads that share their work then owes the wake to another, if it is busy already.
    pub fn retract(&self) -> bool {
        self.asleep.swap(false, Ordering::Relaxed)
    }

    /// Wakes the thread if it declared itself asleep, after a message was made visible to it. Returns whether it did: of
    /// several senders one does.
    pub fn notify(&self) -> bool {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            (self.wake)();
            return true;
        }
        false
    }
}

impl fmt::Debug for Sleeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sleeper(asleep: {})", self.asleep.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn only_a_declared_sleeper_is_woken_and_once() {
        let wakes = Arc::new(AtomicU64::new(0));
        let seen = wakes.clone();
        let sleeper = Sleeper::new(move || {
            seen.fetch_add(1, Ordering::Relaxed);
        });
        assert!(!sleeper.notify());
        sleeper.announce();
        assert!(sleeper.notify());
        assert!(!sleeper.notify());
        assert!(!sleeper.retract());
        sleeper.announce();
        assert!(sleeper.retract());
        assert!(!sleeper.notify());
        assert_eq!(wakes.load(Ordering::Relaxed), 1);
    }

    /// The receiver parks without a timeout: a lost wake hangs the test.
    #[test]
    fn no_message_is_missed() {
        let messages = 50_000u64;
        let sent = Arc::new(AtomicU64::new(0));
        let receiver = std::thread::current();
        let sleeper = Arc::new(Sleeper::new(move || receiver.unpark()));
        let sender = std::thread::spawn({
            let (sent, sleeper) = (sent.clone(), sleeper.clone());
            move || {
                for i in 1..=messages {
                    sent.store(i, Ordering::Release);
                    sleeper.notify();
                    if i % 64 == 0 {
                        std::thread::yield_now();
                    }
                }
            }
        });
        let mut seen = 0;
        while seen < messages {
            sleeper.announce();
            if sent.load(Ordering::Acquire) == seen {
                std::thread::park();
            }
            sleeper.retract();
            seen = sent.load(Ordering::Acquire);
        }
        sender.join().unwrap();
    }
}
