//! The clocks, read once a turn by the driver and nowhere else.

use base::{Monotonic, Now, WallMillis};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Reads both clocks. The monotonic one starts with the process.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    pub fn start() -> Clock {
        Clock { origin: Instant::now() }
    }

    pub fn now(&self) -> Now {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now {
            monotonic: Monotonic(self.origin.elapsed().as_nanos() as u64),
            wall: WallMillis(i64::try_from(wall.as_millis()).unwrap_or(i64::MAX)),
        }
    }
}

/// The watchdog's.
pub(crate) const WATCH_CLOCKS: crate::watch::Clocks = crate::watch::Clocks {
    now: || nanos(rustix::time::ClockId::Monotonic),
    on_cpu: || nanos(rustix::time::ClockId::ThreadCPUTime),
};

fn nanos(clock: rustix::time::ClockId) -> u64 {
    let now = rustix::time::clock_gettime(clock);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
