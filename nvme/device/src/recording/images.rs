//! What a power cut could have left: the durable state at a moment of a recording, any subset of the block writes that
//! were not flushed by then, and any subset of those in flight.

use super::log::{EventKind, RecordedOperation, RecordedRun};
use crate::cache::Cache;
use crate::medium::Medium;
use crate::sim::Tear;
use base::{BlockRange, Monotonic, Random};
use nvme_plan::Promise;
use std::collections::BTreeMap;

/// What is assumed of the device below, beyond what it promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageOptions {
    /// A completed write may be lost until a flush.
    pub volatile_write_cache: bool,
    pub tear: Tear,
}

/// One state that a power cut could have left.
#[derive(Clone, Debug)]
pub struct CrashImage {
    /// Events before the cut.
    pub cut: usize,
    /// The time of the last event before the cut: what was acknowledged until then must be there.
    pub time: Monotonic,
    pub medium: Medium,
}

/// The state of the device after the first events of a recording.
#[derive(Clone)]
struct Replay {
    cache: Cache,
    volatile_write_cache: bool,
    in_flight: BTreeMap<u64, Flying>,
    reported: u64,
}

#[derive(Clone)]
struct Flying {
    operation: RecordedOperation,
    /// Completions before it was submitted: what a flush covers.
    covers: u64,
}

impl Replay {
    fn new(base: Medium, volatile_write_cache: bool) -> Replay {
        Replay { cache: Cache::new(base), volatile_write_cache, in_flight: BTreeMap::new(), reported: 0 }
    }

    fn step(&mut self, kind: &EventKind) {
        match kind {
            EventKind::Submitted { id, operation } => {
                self.in_flight.insert(*id, Flying { operation: operation.clone(), covers: self.reported });
            }
            EventKind::Withdrawn { id } => {
                self.in_flight.remove(id);
            }
            EventKind::Completed { id, ok } => {
                if let Some(done) = self.in_flight.remove(id) {
                    self.complete(*id, done, *ok);
                }
            }
            EventKind::Mark(_) => {}
        }
    }

    fn complete(&mut self, id: u64, done: Flying, ok: bool) {
        match (done.operation, ok) {
            (RecordedOperation::Flush, true) => self.cache.flush(done.covers),
            (RecordedOperation::Flush, false) => self.cache.fail_flush(),
            (RecordedOperation::Grow { range }, true) => self.cache.grow_to(range.end().0),
            (RecordedOperation::Grow { .. }, false) => {}
            // What a failed write left is unknown until the end.
            (operation, false) => self.land(id, &operation, true),
            (operation, true) => {
                let volatile = match &operation {
                    RecordedOperation::Write { promise: Promise::Durable, .. } => false,
                    RecordedOperation::Write { promise: Promise::Cached, .. } => true,
                    _ => self.volatile_write_cache,
                };
                self.land(id, &operation, volatile);
                self.reported += 1;
                if let Some(range) = written(&operation) {
                    self.cache.report(range, id, self.reported);
                }
            }
        }
    }

    fn land(&mut self, id: u64, operation: &RecordedOperation, volatile: bool) {
        let Some(range) = written(operation) else { return };
        for index in 0..range.count {
            let contents = match operation {
                RecordedOperation::Write { contents, .. } => contents[index as usize].clone(),
                _ => None,
            };
            let block = range.start.0 + u64::from(index);
            if volatile {
                self.cache.write_volatile(block, contents, id, index);
            } else {
                self.cache.write_durable(block, contents, id);
            }
        }
    }

    /// Lets everything in flight land in the cache, in an order of the given choice: `pick` names one of the remaining.
    fn land_in_flight(&mut self, mut pick: impl FnMut(usize) -> usize) {
        let mut flying: Vec<(u64, Flying)> = std::mem::take(&mut self.in_flight).into_iter().collect();
        while !flying.is_empty() {
            let (id, next) = flying.swap_remove(pick(flying.len()));
            if let RecordedOperation::Grow { range } = next.operation {
                self.cache.grow_to(range.end().0);
            }
            self.land(id, &next.operation, true);
        }
    }
}

fn written(operation: &RecordedOperation) -> Option<BlockRange> {
    match operation {
        RecordedOperation::Write { range, .. }
        | RecordedOperation::WriteZeroes { range }
        | RecordedOperation::Trim { range } => Some(*range),
        RecordedOperation::Flush | RecordedOperation::Grow { .. } => None,
    }
}

impl RecordedRun {
    /// Every state that a cut after the first `cut` events could have left at block granularity, where there are no more
    /// than `max`; two writes in flight over the same block are taken in the order of their submission.
    pub fn every_image(&self, base: Medium, cut: usize, volatile_write_cache: bool, max: usize) -> Option<Vec<Medium>> {
        let mut replay = Replay::new(base, volatile_write_cache);
        for event in &self.events[..cut] {
            replay.step(&event.kind);
        }
        replay.land_in_flight(|_| 0);
        replay.cache.every_outcome(max)
    }
}

/// Crash images drawn by seed, in the order of their cuts.
pub struct CrashImages<'a> {
    run: &'a RecordedRun,
    options: ImageOptions,
    /// In descending order: the next is the last.
    cuts: Vec<usize>,
    replay: Replay,
    at: usize,
    random: Random,
}

impl<'a> CrashImages<'a> {
    /// `count` images of a run that began on `base`. Half of the cuts lie anywhere; half right before or after a flush
    /// or a durable write completed, where a store that acknowledges too early shows.
    pub fn new(
        run: &'a RecordedRun,
        base: Medium,
        options: ImageOptions,
        count: usize,
        mut random: Random,
    ) -> CrashImages<'a> {
        let turning = turning_points(run);
        let mut cuts: Vec<usize> = (0..count)
            .map(|_| match turning.len() as u64 {
                points if points > 0 && random.chance(1, 2) => {
                    turning[random.below(points) as usize] + random.below(2) as usize
                }
                _ => random.below(run.events.len() as u64 + 1) as usize,
            })
            .collect();
        cuts.sort_unstable_by(|one, other| other.cmp(one));
        let replay = Replay::new(base, options.volatile_write_cache);
        CrashImages { run, options, cuts, replay, at: 0, random }
    }
}

/// The places of the completions that made something durable.
fn turning_points(run: &RecordedRun) -> Vec<usize> {
    let mut waiting = BTreeMap::new();
    let mut points = Vec::new();
    for (index, event) in run.events.iter().enumerate() {
        match &event.kind {
            EventKind::Submitted { id, operation } => {
                let durable = matches!(
                    operation,
                    RecordedOperation::Flush | RecordedOperation::Write { promise: Promise::Durable, .. }
                );
                waiting.insert(*id, durable);
            }
            EventKind::Withdrawn { id } => {
                waiting.remove(id);
            }
            EventKind::Completed { id, .. } => {
                if waiting.remove(id) == Some(true) {
                    points.push(index);
                }
            }
            EventKind::Mark(_) => {}
        }
    }
    points
}

impl Iterator for CrashImages<'_> {
    type Item = CrashImage;

    fn next(&mut self) -> Option<CrashImage> {
        let cut = self.cuts.pop()?;
        for event in &self.run.events[self.at..cut] {
            self.replay.step(&event.kind);
        }
        self.at = cut;
        let mut crashed = self.replay.clone();
        let random = &mut self.random;
        crashed.land_in_flight(|remaining| random.below(remaining as u64) as usize);
        crashed.cache.lose_power(self.options.tear, random, &mut Vec::new());
        let time = cut.checked_sub(1).map_or(Monotonic::ZERO, |last| self.run.events[last].time);
        Some(CrashImage { cut, time, medium: crashed.cache.durable().clone() })
    }
}
