//! How a completion wakes a loop that sleeps in the kernel. A sender wakes only a declared sleeper (design 01).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// What wakes the loop of one core: called on the device's own thread, so it must not block.
#[derive(Clone)]
pub struct Wake {
    call: Arc<dyn Fn() + Send + Sync>,
    #[cfg(target_os = "linux")]
    eventfd: Option<Arc<std::os::fd::OwnedFd>>,
}

impl Wake {
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Wake {
        Wake {
            call: Arc::new(wake),
            #[cfg(target_os = "linux")]
            eventfd: None,
        }
    }

    /// Wakes whoever polls this eventfd. A ring signals it by itself, without a call.
    #[cfg(target_os = "linux")]
    pub fn from_eventfd(eventfd: Arc<std::os::fd::OwnedFd>) -> Wake {
        let signalled = eventfd.clone();
        let wake = move || {
            // A count that is full already wakes as well.
            let _ = rustix::io::write(&signalled, &1u64.to_ne_bytes());
        };
        Wake { call: Arc::new(wake), eventfd: Some(eventfd) }
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn eventfd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        use std::os::fd::AsFd;
        self.eventfd.as_ref().map(|eventfd| eventfd.as_fd())
    }

    pub(crate) fn wake(&self) {
        (self.call)();
    }
}

impl fmt::Debug for Wake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wake")
    }
}

/// Whether the loop has said that it is about to sleep.
#[derive(Debug, Default)]
pub(crate) struct Sleeper(AtomicBool);

impl Sleeper {
    /// The loop's side. After announcing it looks at the completions once more.
    pub(crate) fn announce(&self, sleeping: bool) {
        self.0.store(sleeping, Ordering::Relaxed);
        // Pairs with the fence in `must_wake`: either the loop's last look sees the completion, or the sender sees the
        // announcement.
        fence(Ordering::SeqCst);
    }

    /// The sender's side, after the completion can be seen. True once per announcement.
    pub(crate) fn must_wake(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed)
    }
}
