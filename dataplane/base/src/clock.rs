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

/// What `DeletionClock` takes for a step of the wall clock and not for its correction.
pub const CLOCK_STEP_MIN: Duration = Duration::from_secs(60);
/// How long a wall clock that was set forward has to stand before anything is deleted by it.
pub const CLOCK_STEP_SETTLES: Duration = Duration::from_secs(3600);

/// The wall clock as far as something may be deleted by it. A clock that is set forward by hours and back again makes
/// everything look old for a while, and what was deleted then does not come back; so a step forward counts only once it
/// has stood for `CLOCK_STEP_SETTLES`, and until then time goes on as it did before. A step back counts at once: it deletes
/// nothing. A host that slept is seen as a step, since the monotonic clock slept too. The first look believes the clock:
/// nothing is known of before.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeletionClock {
    /// What the clock said at the last look, and what was believed then.
    last: Option<(Now, WallMillis)>,
    /// When it was last set while it was ahead.
    ahead_since: Option<Monotonic>,
}

impl DeletionClock {
    /// One that looks for the first time now.
    pub fn at(now: Now) -> DeletionClock {
        DeletionClock { last: Some((now, now.wall)), ahead_since: None }
    }

    /// What time it is for whoever deletes. It has to be asked now and then, since a step is seen by asking.
    pub fn look(&mut self, now: Now) -> WallMillis {
        let (said, believed) = self.last.unwrap_or((now, now.wall));
        let passed = i64::try_from(now.monotonic.since(said.monotonic).as_millis()).unwrap_or(i64::MAX);
        let after = |wall: WallMillis| WallMillis(wall.0.saturating_add(passed));
        let step_min = CLOCK_STEP_MIN.as_millis() as i64;
        if now.wall.0.saturating_sub(after(said.wall).0).saturating_abs() >= step_min {
            // What stood so far stands no more.
            self.ahead_since = None;
        }
        let expected = after(believed);
        let wall = if now.wall.0.saturating_sub(expected.0) < step_min {
            self.ahead_since = None;
            now.wall
        } else if now.monotonic.since(*self.ahead_since.get_or_insert(now.monotonic)) < CLOCK_STEP_SETTLES {
            expected
        } else {
            self.ahead_since = None;
            now.wall
        };
        self.last = Some((now, wall));
        wall
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000;

    /// A clock whose wall is `ahead` of what it should be, `minutes` after the start.
    fn at(minutes: u64, ahead: i64) -> Now {
        let monotonic = Monotonic(60_000_000_000 * minutes);
        Now { monotonic, wall: WallMillis(1_000 * HOUR + 60_000 * minutes as i64 + ahead) }
    }

    fn ahead(clock: &mut DeletionClock, minutes: u64, by: i64) -> i64 {
        clock.look(at(minutes, by)).0 - at(minutes, 0).wall.0
    }

    #[test]
    fn a_step_forward_counts_once_it_has_stood_and_a_step_back_at_once() {
        let mut clock = DeletionClock::default();
        assert_eq!(ahead(&mut clock, 0, 0), 0);
        assert_eq!(ahead(&mut clock, 5, 3 * HOUR), 0);
        assert_eq!(ahead(&mut clock, 50, 3 * HOUR), 0);
        assert_eq!(ahead(&mut clock, 55, 0), 0, "back before it counted");
        assert_eq!(ahead(&mut clock, 60, 3 * HOUR), 0);
        assert_eq!(ahead(&mut clock, 119, 3 * HOUR), 0);
        assert_eq!(ahead(&mut clock, 120, 3 * HOUR), 3 * HOUR, "it stands");
        assert_eq!(ahead(&mut clock, 125, 3 * HOUR), 3 * HOUR);
        assert_eq!(ahead(&mut clock, 130, -5 * HOUR), -5 * HOUR, "back");
        assert_eq!(ahead(&mut clock, 135, 0), -5 * HOUR, "and forth");
        assert_eq!(ahead(&mut clock, 190, 9 * HOUR), -5 * HOUR, "another step has to stand for itself");
        assert_eq!(ahead(&mut clock, 195, 0), -5 * HOUR);
        assert_eq!(ahead(&mut clock, 255, 0), 0);
    }

    #[test]
    fn a_clock_that_is_corrected_is_followed() {
        let mut clock = DeletionClock::default();
        for (minutes, by) in [(0, 0), (1, 50_000), (2, 20_000), (3, 70_000), (4, -100)] {
            assert_eq!(ahead(&mut clock, minutes, by), by);
        }
    }
}
