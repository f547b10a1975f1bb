//! The watchdog: which step of a slow turn took most of it. The driver gives it a clock; without one (the simulator) it
//! counts nothing.

use base::counters::{CoreCounters, Counter, Histogram};
use base::limits::TURN_SLOW;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Device,
    Net,
    Session,
    Handoff,
    Partition,
    Log,
    Timers,
    Link,
}

const STEPS: usize = 8;

const SLOW: [Counter; STEPS] = [
    Counter::SlowDevice,
    Counter::SlowNet,
    Counter::SlowSession,
    Counter::SlowHandoff,
    Counter::SlowPartition,
    Counter::SlowLog,
    Counter::SlowTimers,
    Counter::SlowLink,
];

const LONG: [Histogram; STEPS] = [
    Histogram::StepDevice,
    Histogram::StepNet,
    Histogram::StepSession,
    Histogram::StepHandoff,
    Histogram::StepPartition,
    Histogram::StepLog,
    Histogram::StepTimers,
    Histogram::StepLink,
];

/// A step of a turn that takes this long is counted by itself: half of what an item may take.
const STEP_LONG_NANOS: u64 = 100_000;

/// Nanoseconds of a clock that only this uses; a function, so that a turn's decisions cannot depend on it.
pub type Clock = fn() -> u64;

pub struct Watch {
    clock: Option<Clock>,
    counters: CoreCounters,
    took: [u64; STEPS],
    step: Step,
    since: u64,
    began: u64,
}

impl Watch {
    pub fn new(clock: Option<Clock>, counters: CoreCounters) -> Watch {
        Watch { clock, counters, took: [0; STEPS], step: Step::Device, since: 0, began: 0 }
    }

    /// The turn begins.
    pub fn begin(&mut self) {
        if let Some(clock) = self.clock {
            self.began = clock();
            self.since = self.began;
            self.took = [0; STEPS];
        }
    }

    /// Since the turn began; nothing without a clock.
    pub fn elapsed(&self) -> Duration {
        self.clock.map_or(Duration::ZERO, |clock| Duration::from_nanos(clock().saturating_sub(self.began)))
    }

    pub fn step(&mut self, step: Step) {
        if let Some(clock) = self.clock {
            let now = clock();
            self.took[self.step as usize] += now.saturating_sub(self.since);
            self.since = now;
        }
        self.step = step;
    }

    /// The turn ends: it is counted, and if it was slow, the step that took most of it.
    pub fn end(&mut self, work: usize) {
        self.step(Step::Device);
        self.counters.add(Counter::Turns, 1);
        let took = Duration::from_nanos(self.since.saturating_sub(self.began));
        if work == 0 {
            return;
        }
        self.counters.add(Counter::BusyNanos, took.as_nanos() as u64);
        self.counters.record(Histogram::Turn, took);
        for (step, took) in self.took.iter().enumerate().filter(|(_, took)| **took >= STEP_LONG_NANOS) {
            self.counters.record(LONG[step], Duration::from_nanos(*took));
        }
        if took > TURN_SLOW {
            let slowest = (0..STEPS).max_by_key(|step| self.took[*step]).expect("there are steps");
            self.counters.add(SLOW[slowest], 1);
        }
    }
}
