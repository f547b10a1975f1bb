//! The process's clocks.

use base::{Monotonic, Now, WallMillis};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    pub fn start() -> Clock {
        Clock { start: Instant::now() }
    }

    pub fn now(&self) -> Now {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Now {
            monotonic: Monotonic(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)),
            wall: WallMillis(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX)),
        }
    }

    pub fn instant(&self, at: Monotonic) -> Instant {
        self.start + Duration::from_nanos(at.0)
    }
}
