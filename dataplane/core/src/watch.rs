//! The watchdog: which step of a slow turn took most of it, and how much of it the loop ran on its CPU at all: on a CPU
//! that is shared a loop is held by others too. The driver gives it clocks; without them (the simulator) it counts nothing.

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

/// Nanoseconds of clocks that only this uses; functions, so that a turn's decisions cannot depend on them.
#[derive(Clone, Copy, Debug)]
pub struct Clocks {
    pub now: fn() -> u64,
    /// Of the thread, on a CPU. To ask it is a call of the system (240 ns, in some virtual machines 2 us), so it is asked
    /// once in a turn's length that is slow, and not in every turn; and before a sleep rather than after it, where what
    /// has woken the loop waits.
    pub on_cpu: fn() -> u64,
}

/// Both clocks at one moment.
#[derive(Clone, Copy, Debug, Default)]
struct Both {
    now: u64,
    on_cpu: u64,
}

impl Clocks {
    fn both(self, now: u64) -> Both {
        Both { now, on_cpu: (self.on_cpu)() }
    }
}

pub struct Watch {
    clocks: Option<Clocks>,
    counters: CoreCounters,
    took: [u64; STEPS],
    step: Step,
    since: u64,
    began: u64,
    /// The last moment at which both clocks were read, and how long the loop has slept since.
    read: Both,
    slept: u64,
}

impl Watch {
    pub fn new(clocks: Option<Clocks>, counters: CoreCounters) -> Watch {
        let (read, slept) = (Both::default(), 0);
        Watch { clocks, counters, took: [0; STEPS], step: Step::Device, since: 0, began: 0, read, slept }
    }

    /// The turn begins.
    pub fn begin(&mut self) {
        if let Some(clocks) = self.clocks {
            self.began = (clocks.now)();
            self.since = self.began;
            self.took = [0; STEPS];
            let awake = self.began.saturating_sub(self.read.now).saturating_sub(self.slept);
            if awake >= TURN_SLOW.as_nanos() as u64 {
                self.read = clocks.both(self.began);
                self.slept = 0;
            }
        }
    }

    /// The loop goes to sleep, after a turn that has just ended.
    pub fn before_sleep(&mut self) {
        if let Some(clocks) = self.clocks
            && self.since.saturating_sub(self.read.now) >= TURN_SLOW.as_nanos() as u64
        {
            self.read = clocks.both((clocks.now)());
            self.slept = 0;
        }
    }

    /// The loop slept between two turns: it wanted no CPU.
    pub fn note_slept(&mut self, slept: Duration) {
        self.slept += slept.as_nanos() as u64;
    }

    /// Since the turn began; nothing without a clock.
    pub fn elapsed(&self) -> Duration {
        self.clocks.map_or(Duration::ZERO, |clocks| Duration::from_nanos((clocks.now)().saturating_sub(self.began)))
    }

    pub fn step(&mut self, step: Step) {
        if let Some(clocks) = self.clocks {
            let now = (clocks.now)();
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
            self.count_on_cpu(took);
        }
    }

    /// Of a slow turn, the time on a CPU: all but what the thread was off it since both clocks were read, which was the
    /// turn's length that is slow before it began, at most.
    fn count_on_cpu(&mut self, took: Duration) {
        let Some(clocks) = self.clocks else { return };
        let (before, now) = (self.read, clocks.both(self.since));
        let passed = now.now.saturating_sub(before.now).saturating_sub(std::mem::take(&mut self.slept));
        let off_cpu = passed.saturating_sub(now.on_cpu.saturating_sub(before.on_cpu));
        self.read = now;
        let on_cpu = took.saturating_sub(Duration::from_nanos(off_cpu));
        self.counters.record(Histogram::TurnOnCpu, on_cpu);
        if on_cpu <= TURN_SLOW {
            self.counters.add(Counter::SlowOffCpu, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    thread_local! {
        static NOW: Cell<u64> = const { Cell::new(0) };
        static ON_CPU: Cell<u64> = const { Cell::new(0) };
        static ASKED: Cell<u64> = const { Cell::new(0) };
    }

    /// Time passes, some of it on the CPU.
    fn pass(micros: u64, on_cpu: u64) {
        NOW.set(NOW.get() + micros * 1000);
        ON_CPU.set(ON_CPU.get() + on_cpu * 1000);
    }

    #[test]
    fn a_slow_turn_tells_what_of_it_the_loop_had_a_cpu() {
        let words = base::counters::heap_words(1);
        let on_cpu = || {
            ASKED.set(ASKED.get() + 1);
            ON_CPU.get()
        };
        let clocks = Clocks { now: || NOW.get(), on_cpu };
        let counters = CoreCounters::new(words.clone(), base::CoreId(0));
        let mut watch = Watch::new(Some(clocks), counters.clone());
        let mut turn = |micros, on_cpu| {
            watch.begin();
            watch.step(Step::Log);
            pass(micros, on_cpu);
            watch.end(1);
            watch.before_sleep();
            // Asleep, and slow to wake.
            let asked = ASKED.get();
            watch.note_slept(Duration::from_micros(700));
            pass(700, 5);
            watch.begin();
            assert_eq!(ASKED.get(), asked, "what has woken the loop does not wait for the watchdog");
        };
        let told = || {
            let readings = base::counters::readings(&words);
            let long = readings[0].histogram(Histogram::TurnOnCpu);
            (long.count(), long.largest().as_micros(), counters.get(Counter::SlowOffCpu))
        };
        pass(5000, 0);
        turn(200, 200);
        assert_eq!(told(), (0, 0, 0));
        turn(3000, 3000);
        assert_eq!((told().0, told().2), (1, 0));
        assert!((2990..=3010).contains(&told().1), "{}", told().1);
        turn(4000, 100);
        assert_eq!((told().0, told().2), (2, 1), "others had its CPU");
        assert_eq!(counters.get(Counter::SlowLog), 2);
        let asked = ASKED.get();
        (0..1000).for_each(|_| turn(10, 10));
        assert!(ASKED.get() - asked <= 1000 * 710 / 1000 + 1, "no more than once in a millisecond");
    }
}
