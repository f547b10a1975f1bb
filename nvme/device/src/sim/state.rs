//! The simulated device's inside: operations with a time at which each takes effect and a later one at which it
//! completes, both drawn when it is submitted. Effects of all queues are carried out in order of their times, so two
//! overlapping writes land in either order whatever the order of their completions.

use super::{FaultPlan, InjectedFault, Overlap, SimOptions};
use crate::cache::Cache;
use crate::check::{EIO, check, range_of, writes};
use crate::medium::{Contents, Medium, blocks_of};
use base::{Block, BlockRange, Monotonic, Now, Random};
use nvme_plan::{Completion, DeviceError, Geometry, Operation, Promise, Request, Token};
use std::collections::BTreeSet;
use std::time::Duration;

pub(super) type QueueId = u64;

/// What was drawn for an operation beside its times.
#[derive(Clone, Copy)]
enum Fate {
    Normal,
    Fails(DeviceError),
    Dropped,
    Misdirected(Block),
}

struct Operating {
    id: u64,
    /// `None` once its process is gone: the device still carries it out.
    queue: Option<QueueId>,
    token: Token,
    deadline: Option<Monotonic>,
    operation: Operation,
    fate: Fate,
    effect_at: Monotonic,
    complete_at: Monotonic,
    applied: bool,
    /// Its deadline passed and that was reported; its completion will not be.
    abandoned: bool,
    /// For a flush: completions delivered when it was submitted.
    covers: u64,
}

/// Something that happens after its operation completed.
enum Late {
    Rewrite { range: BlockRange, contents: Vec<Contents>, operation: u64 },
    Deallocate { range: BlockRange, trim: u64, completed_before: Option<u64> },
}

struct LateEffect {
    at: Monotonic,
    late: Late,
}

pub(super) struct State {
    pub(super) options: SimOptions,
    pub(super) geometry: Geometry,
    pub(super) faults: FaultPlan,
    pub(super) injected: Vec<InjectedFault>,
    pub(super) cache: Cache,
    pub(super) gone: bool,
    random: Random,
    operating: Vec<Operating>,
    late: Vec<LateEffect>,
    next_operation: u64,
    next_queue: QueueId,
    reported: u64,
    /// Queues that were not told yet of a flush that failed: their next one fails too. The kernel tells each description of
    /// a file once, and each queue flushes through one of its own.
    untold: BTreeSet<QueueId>,
    /// Power losses so far; a queue of an earlier cycle is dead.
    power: u64,
}

impl State {
    pub(super) fn new(options: SimOptions, medium: Medium, random: Random) -> State {
        let geometry = Geometry {
            blocks: medium.blocks(),
            volatile_write_cache: options.volatile_write_cache,
            durable_writes: options.durable_writes,
            trims: options.trims,
            grows: options.grows,
            transfer_max: options.transfer_max,
            in_flight_max: options.in_flight_max,
        };
        State {
            options,
            geometry,
            faults: FaultPlan::none(),
            injected: Vec::new(),
            cache: Cache::new(medium),
            gone: false,
            random,
            operating: Vec::new(),
            late: Vec::new(),
            next_operation: 0,
            next_queue: 0,
            reported: 0,
            untold: BTreeSet::new(),
            power: 0,
        }
    }

    pub(super) fn power(&self) -> u64 {
        self.power
    }

    pub(super) fn new_queue(&mut self) -> QueueId {
        self.next_queue += 1;
        self.next_queue
    }

    /// Requests that occupy the queue, timed-out ones whose buffers the device still has among them.
    fn held(&self, queue: QueueId) -> usize {
        self.operating.iter().filter(|o| o.queue == Some(queue)).count()
    }

    pub(super) fn unreported(&self, queue: QueueId) -> usize {
        self.operating.iter().filter(|o| o.queue == Some(queue) && !o.abandoned).count()
    }

    pub(super) fn submit(&mut self, queue: QueueId, now: Now, request: Request) -> Result<(), Request> {
        if self.held(queue) >= self.geometry.in_flight_max {
            return Err(request);
        }
        self.advance(now.monotonic);
        let checked = check(&request.operation, &self.geometry);
        self.assert_disjoint(&request.operation);
        let cached = matches!(request.operation, Operation::Write { promise: Promise::Cached, .. });
        let fate = match checked {
            Err(error) => Fate::Fails(error),
            Ok(()) => self.draw_fate(&request.operation),
        };
        let refused = checked.is_err() || self.gone;
        let delay = if refused || cached { Duration::ZERO } else { self.draw_delay(&request.operation) };
        let effect = match request.operation {
            // The latest moment is the hardest: until then a power loss takes all that the flush should save.
            Operation::Flush => delay,
            _ => Duration::from_nanos(self.random.below(delay.as_nanos() as u64 + 1)),
        };
        self.next_operation += 1;
        self.operating.push(Operating {
            id: self.next_operation,
            queue: Some(queue),
            token: request.token,
            deadline: request.deadline,
            operation: request.operation,
            fate,
            effect_at: now.monotonic + effect,
            complete_at: now.monotonic + delay,
            applied: false,
            abandoned: false,
            covers: self.reported,
        });
        if cached {
            // The one write that is over when `submit` returns.
            self.advance(now.monotonic);
        }
        Ok(())
    }

    fn assert_disjoint(&self, operation: &Operation) {
        if self.options.overlap == Overlap::Allowed || !writes(operation) {
            return;
        }
        let range = range_of(operation).expect("a write has a range");
        for other in self.operating.iter().filter(|o| writes(&o.operation)) {
            let in_flight = range_of(&other.operation).expect("a write has a range");
            assert!(!range.overlaps(in_flight), "a write to {range} while {in_flight} is in flight");
        }
    }

    fn draw_fate(&mut self, operation: &Operation) -> Fate {
        let (faults, random) = (&self.faults, &mut self.random);
        if !self.gone && faults.disappears.strikes(random) {
            self.gone = true;
            self.injected.push(InjectedFault::Disappeared);
        }
        if self.gone {
            return Fate::Fails(DeviceError::Gone);
        }
        let (fault, error) = match operation {
            Operation::Read { range, .. } if faults.read_error.strikes(random) => {
                (InjectedFault::ReadError(*range), DeviceError::Failed(EIO))
            }
            Operation::Flush if faults.flush_error.strikes(random) => {
                (InjectedFault::FlushError, DeviceError::Failed(EIO))
            }
            Operation::Grow { .. } if faults.growth_refused.strikes(random) => {
                (InjectedFault::GrowthRefused, DeviceError::NoSpace)
            }
            Operation::Write { range, .. } | Operation::WriteZeroes { range } => return self.draw_write_fate(*range),
            _ => return Fate::Normal,
        };
        self.injected.push(fault);
        Fate::Fails(error)
    }

    fn draw_write_fate(&mut self, range: BlockRange) -> Fate {
        let (faults, random) = (&self.faults, &mut self.random);
        if faults.write_error.strikes(random) {
            self.injected.push(InjectedFault::WriteError(range));
            Fate::Fails(DeviceError::Failed(EIO))
        } else if faults.dropped_write.strikes(random) {
            self.injected.push(InjectedFault::DroppedWrite(range));
            Fate::Dropped
        } else if faults.misdirected_write.strikes(random) {
            let start = Block(random.below(self.geometry.blocks - u64::from(range.count) + 1));
            let landed = BlockRange::new(start, range.count);
            self.injected.push(InjectedFault::MisdirectedWrite { meant: range, landed });
            Fate::Misdirected(start)
        } else {
            Fate::Normal
        }
    }

    fn draw_delay(&mut self, operation: &Operation) -> Duration {
        let latency = &self.options.latency;
        let base = match operation {
            Operation::Read { .. } => latency.read,
            Operation::Flush => latency.flush,
            _ => latency.write,
        };
        let jitter = Duration::from_nanos(self.random.below(latency.jitter.as_nanos() as u64 + 1));
        let stall = if self.faults.stall.strikes(&mut self.random) {
            self.injected.push(InjectedFault::Stall);
            self.faults.stall_for
        } else {
            Duration::ZERO
        };
        base + jitter + stall
    }

    /// Carries out everything whose time has come, in order of time.
    pub(super) fn advance(&mut self, now: Monotonic) {
        loop {
            let waiting = self.operating.iter().enumerate().filter(|(_, o)| !o.applied && o.effect_at <= now);
            let operation = waiting.min_by_key(|(_, o)| (o.effect_at, o.id)).map(|(index, o)| (o.effect_at, index));
            let waiting = self.late.iter().enumerate().filter(|(_, late)| late.at <= now);
            let late = waiting.min_by_key(|(_, late)| late.at).map(|(index, late)| (late.at, index));
            match (operation, late) {
                (None, None) => break,
                (Some((at, index)), other) if other.is_none_or(|(late_at, _)| at <= late_at) => self.apply(index),
                (_, Some((_, index))) => {
                    let effect = self.late.remove(index);
                    self.apply_late(effect.late);
                }
                (Some(_), None) => unreachable!("an operation without a late effect before it was applied above"),
            }
        }
        // What nobody waits for any more is over when it completes.
        self.operating.retain(|o| !((o.queue.is_none() || o.abandoned) && o.applied && o.complete_at <= now));
    }

    fn apply(&mut self, index: usize) {
        self.operating[index].applied = true;
        let (id, fate) = (self.operating[index].id, self.operating[index].fate);
        if let Operation::Read { range, .. } = self.operating[index].operation
            && matches!(fate, Fate::Normal)
            && self.faults.bit_rot.strikes(&mut self.random)
            && let Some(block) = self.cache.flip_bit(range, &mut self.random)
        {
            self.injected.push(InjectedFault::BitFlip(block));
        }
        let complete_at = self.operating[index].complete_at;
        let covers = self.operating[index].covers;
        match &mut self.operating[index].operation {
            Operation::Read { range, into } => {
                if matches!(fate, Fate::Normal) {
                    self.cache.read(*range, into);
                }
            }
            Operation::Write { range, pieces, promise } => {
                let contents = blocks_of(pieces.iter().map(|piece| &piece[..]));
                let (range, promise) = (*range, *promise);
                self.apply_write(id, fate, range, contents, promise, complete_at);
            }
            Operation::WriteZeroes { range } => {
                let range = *range;
                self.apply_write(id, fate, range, vec![None; range.count as usize], Promise::Accepted, complete_at);
            }
            Operation::Flush => self.apply_flush(index, covers),
            Operation::Trim { range } => {
                if matches!(fate, Fate::Normal) {
                    let late = Late::Deallocate { range: *range, trim: id, completed_before: None };
                    let delay = self.options.trim_delay.as_nanos() as u64;
                    let at = complete_at + Duration::from_nanos(self.random.below(delay + 1));
                    self.late.push(LateEffect { at, late });
                }
            }
            Operation::Grow { range } => {
                if matches!(fate, Fate::Normal) {
                    self.geometry.blocks = self.geometry.blocks.max(range.end().0);
                    self.cache.grow_to(range.end().0);
                }
            }
        }
    }

    /// A flush that fails leaves its error to the next of each other queue, which does its work all the same.
    fn apply_flush(&mut self, index: usize, covers: u64) {
        let Operating { queue, fate, .. } = &mut self.operating[index];
        let untold = queue.is_some_and(|queue| self.untold.remove(&queue));
        if !matches!(fate, Fate::Normal) {
            self.cache.fail_flush();
            self.untold.extend((1..=self.next_queue).filter(|other| Some(*other) != *queue));
            return;
        }
        if untold {
            *fate = Fate::Fails(DeviceError::Failed(EIO));
        }
        self.cache.flush(covers);
    }

    fn apply_write(
        &mut self,
        id: u64,
        fate: Fate,
        range: BlockRange,
        contents: Vec<Contents>,
        promise: Promise,
        complete_at: Monotonic,
    ) {
        match fate {
            Fate::Dropped => {}
            Fate::Fails(DeviceError::Failed(EIO)) => {
                for (index, contents) in (0..).zip(contents) {
                    if self.random.chance(1, 2) {
                        self.put(range.start, index, contents, id, Promise::Accepted);
                    }
                }
            }
            // A refusal touches nothing.
            Fate::Fails(_) => {}
            Fate::Misdirected(start) => self.put_all(start, &contents, id, promise),
            Fate::Normal => {
                self.put_all(range.start, &contents, id, promise);
                if self.faults.duplicated_write.strikes(&mut self.random) {
                    self.injected.push(InjectedFault::DuplicatedWrite(range));
                    let delay = self.options.latency.write.as_nanos() as u64 * 8;
                    let at = complete_at + Duration::from_nanos(self.random.below(delay + 1));
                    self.late.push(LateEffect { at, late: Late::Rewrite { range, contents, operation: id } });
                }
            }
        }
    }

    fn put_all(&mut self, start: Block, contents: &[Contents], id: u64, promise: Promise) {
        for (index, contents) in (0..).zip(contents) {
            self.put(start, index, contents.clone(), id, promise);
        }
    }

    /// Writes the block at `index` of an operation that begins at `start`.
    fn put(&mut self, start: Block, index: u32, contents: Contents, id: u64, promise: Promise) {
        let block = start.0 + u64::from(index);
        let volatile = match promise {
            Promise::Durable => false,
            Promise::Accepted => self.options.volatile_write_cache,
            // The page cache above the device is lost with the power, whatever the device's own cache does.
            Promise::Cached => true,
        };
        if volatile {
            self.cache.write_volatile(block, contents, id, index);
        } else {
            self.cache.write_durable(block, contents, id);
        }
    }

    fn apply_late(&mut self, late: Late) {
        match late {
            Late::Rewrite { range, contents, operation } => {
                self.put_all(range.start, &contents, operation, Promise::Accepted);
            }
            Late::Deallocate { range, trim, completed_before } => {
                for index in 0..range.count {
                    // A device may forget the blocks long after the trim, but not what was written after it completed.
                    let later = |writer: u64| completed_before.is_some_and(|before| writer > before);
                    let block = range.start.0 + u64::from(index);
                    if !self.cache.last_writer(block).is_some_and(later) {
                        self.put(range.start, index, None, trim, Promise::Accepted);
                    }
                }
            }
        }
    }

    /// Takes one completion of the queue whose time has come, the earliest first.
    pub(super) fn take_completion(&mut self, queue: QueueId, now: Monotonic) -> Option<Completion> {
        let due = self.operating.iter().enumerate().filter(|(_, o)| {
            o.queue == Some(queue) && !o.abandoned && o.applied && (o.complete_at <= now || self.gone)
        });
        if let Some((index, _)) = due.min_by_key(|(_, o)| (o.complete_at, o.id)) {
            let done = self.operating.swap_remove(index);
            return Some(self.complete(done));
        }
        let late = |o: &Operating| o.queue == Some(queue) && !o.abandoned && o.deadline.is_some_and(|at| at <= now);
        let expired = self.operating.iter_mut().filter(|o| late(o)).min_by_key(|o| (o.deadline, o.id))?;
        expired.abandoned = true;
        Some(Completion { token: expired.token, operation: None, result: Err(DeviceError::TimedOut) })
    }

    fn complete(&mut self, done: Operating) -> Completion {
        let result = match done.fate {
            _ if self.gone => Err(DeviceError::Gone),
            Fate::Fails(error) => Err(error),
            Fate::Normal | Fate::Dropped | Fate::Misdirected(_) => Ok(()),
        };
        if result.is_ok() {
            self.reported += 1;
            match &done.operation {
                Operation::Write { range, .. } | Operation::WriteZeroes { range } => {
                    let landed = match done.fate {
                        Fate::Misdirected(start) => BlockRange::new(start, range.count),
                        _ => *range,
                    };
                    self.cache.report(landed, done.id, self.reported);
                }
                Operation::Trim { .. } => self.note_trim_completed(done.id),
                _ => {}
            }
        }
        Completion { token: done.token, operation: Some(done.operation), result }
    }

    fn note_trim_completed(&mut self, id: u64) {
        for effect in &mut self.late {
            if let Late::Deallocate { trim, completed_before, .. } = &mut effect.late
                && *trim == id
            {
                *completed_before = Some(self.next_operation);
            }
        }
    }

    pub(super) fn next_event(&self, queue: Option<QueueId>) -> Option<Monotonic> {
        let mine = self.operating.iter().filter(|o| !o.abandoned && (queue.is_none() || o.queue == queue));
        mine.map(|o| o.deadline.map_or(o.complete_at, |deadline| deadline.min(o.complete_at))).min()
    }

    /// The queue's process is gone; what it had submitted is still the device's.
    pub(super) fn orphan(&mut self, queue: QueueId) {
        for operation in self.operating.iter_mut().filter(|o| o.queue == Some(queue)) {
            operation.queue = None;
        }
    }

    /// An open after a killed process (flock, or a controller reset) ends what that process left: each request has been
    /// carried out, or never will be.
    pub(super) fn settle_orphans(&mut self) {
        let mut index = 0;
        while index < self.operating.len() {
            let orphan = &self.operating[index];
            if orphan.queue.is_some() {
                index += 1;
                continue;
            }
            if !orphan.applied && self.random.chance(1, 2) {
                self.apply(index);
            }
            self.operating.remove(index);
        }
    }

    pub(super) fn lose_power(&mut self, random: &mut Random) {
        // Writes in flight may have reached the cache in any order.
        let mut unapplied: Vec<Operating> = std::mem::take(&mut self.operating);
        unapplied.retain(|o| !o.applied);
        while !unapplied.is_empty() {
            let lost = unapplied.swap_remove(random.below(unapplied.len() as u64) as usize);
            if !matches!(lost.fate, Fate::Normal) {
                continue;
            }
            let (range, contents) = match &lost.operation {
                Operation::Write { range, pieces, .. } => (*range, blocks_of(pieces.iter().map(|piece| &piece[..]))),
                Operation::WriteZeroes { range } => (*range, vec![None; range.count as usize]),
                _ => continue,
            };
            for (index, contents) in (0..).zip(contents) {
                self.cache.write_volatile(range.start.0 + u64::from(index), contents, lost.id, index);
            }
        }
        for effect in std::mem::take(&mut self.late) {
            if random.chance(1, 2) {
                self.apply_late(effect.late);
            }
        }
        self.cache.lose_power(self.options.tear, random, &mut self.injected);
        self.gone = false;
        self.power += 1;
    }
}
