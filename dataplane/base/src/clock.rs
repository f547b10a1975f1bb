//! Time as an argument. The driver of a loop reads both clocks once a turn and passes `Now` down; nothing below reads a
//! clock itself, so that the simulator can run the same code on its own time.

use std::ops::{Add, Sub};
use std::time::Duration;

/// Nanoseconds of a clock that never steps, counted from an arbitrary start. Deadlines and timers use it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Monotonic(pub u64);

impl Monotonic {
    pub const ZERO: Monotonic = Monotonic(0);

    /// The time from `earlier` to this, zero where `earlier` is later.
    pub fn since(self, earlier: Monotonic) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Whole milliseconds, rounded down: the unit of the timing wheel.
    pub fn millis(self) -> u64 {
        self.0 / 1_000_000
    }
}

impl Add<Duration> for Monotonic {
    type Output = Monotonic;
    fn add(self, by: Duration) -> Monotonic {
        Monotonic(self.0.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Monotonic {
    type Output = Monotonic;
    fn sub(self, by: Duration) -> Monotonic {
        Monotonic(self.0.saturating_sub(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// Milliseconds since the Unix epoch: the unit of record timestamps. It may step in either direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WallMillis(pub i64);

/// Both clocks, read together once a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    pub monotonic: Monotonic,
    pub wall: WallMillis,
}
