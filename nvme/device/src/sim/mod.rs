//! The simulated device: in memory, on simulated time, deterministic by seed (design 02, "What the simulator's device
//! does"). `SimDisk` is the medium, which outlives processes and power; a `SimNamespace` is one core's queue on it.
//!
//! Several queues share one disk and one thread. What a crash leaves is decided here: `power_loss` keeps any subset of
//! the unflushed block writes; dropping the queues and opening again is the kill of a process, whose requests in flight
//! were carried out or were not, and whose completed writes all stay.

mod faults;
mod state;
#[cfg(test)]
mod tests;

pub use faults::{FaultPlan, InjectedFault, PerMillion};

use crate::medium::Medium;
use base::{Block, BlockRange, Monotonic, Now, Random};
use nvme_plan::{Completion, Geometry, Namespace, Request};
use state::{QueueId, State};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// Base times of the operations; each request's delay is one of them and a uniform part of the jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    pub read: Duration,
    pub write: Duration,
    pub flush: Duration,
    pub jitter: Duration,
}

impl Latency {
    /// Everything completes at the poll after its submission.
    pub const NONE: Latency =
        Latency { read: Duration::ZERO, write: Duration::ZERO, flush: Duration::ZERO, jitter: Duration::ZERO };

    pub const SSD: Latency = Latency {
        read: Duration::from_micros(80),
        write: Duration::from_micros(20),
        flush: Duration::from_micros(400),
        jitter: Duration::from_micros(200),
    };
}

/// How a power loss may cut a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tear {
    /// A block is old or new.
    Blocks,
    /// A block may be a mix of old and new sectors of 512 bytes, and garbage if it held data before.
    Sectors,
}

/// Whether a write may overlap another in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    Allowed,
    /// It is the store's bug (write-once blocks), and a panic.
    Panics,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimOptions {
    pub blocks: u64,
    pub volatile_write_cache: bool,
    pub durable_writes: bool,
    pub trims: bool,
    pub grows: bool,
    pub transfer_max: u32,
    pub in_flight_max: usize,
    pub latency: Latency,
    pub tear: Tear,
    pub overlap: Overlap,
    /// A trim takes effect at any time up to this after it completed.
    pub trim_delay: Duration,
}

impl SimOptions {
    /// The hardest device that keeps its promises: volatile cache, torn sectors, late trims.
    pub fn new(blocks: u64) -> SimOptions {
        SimOptions {
            blocks,
            volatile_write_cache: true,
            durable_writes: true,
            trims: true,
            grows: true,
            transfer_max: 1024,
            in_flight_max: 64,
            latency: Latency::SSD,
            tear: Tear::Sectors,
            overlap: Overlap::Panics,
            trim_delay: Duration::from_millis(50),
        }
    }
}

/// The medium and the device around it; clones are handles on the same one.
#[derive(Clone)]
pub struct SimDisk {
    state: Rc<RefCell<State>>,
}

impl SimDisk {
    pub fn new(options: SimOptions, random: Random) -> SimDisk {
        let medium = Medium::new(options.blocks);
        SimDisk::from_medium(options, medium, random)
    }

    /// A disk that holds `medium` already, which decides its size.
    pub fn from_medium(options: SimOptions, medium: Medium, random: Random) -> SimDisk {
        SimDisk { state: Rc::new(RefCell::new(State::new(options, medium, random))) }
    }

    /// A queue for one core. What processes that died before left in flight is over by then.
    pub fn open(&self) -> SimNamespace {
        let mut state = self.state.borrow_mut();
        state.settle_orphans();
        let queue = state.new_queue();
        SimNamespace { disk: self.clone(), queue, geometry: state.geometry.clone(), power: state.power() }
    }

    pub fn set_faults(&self, faults: FaultPlan) {
        self.state.borrow_mut().faults = faults;
    }

    /// What went wrong so far, in order.
    pub fn injected(&self) -> Vec<InjectedFault> {
        self.state.borrow().injected.clone()
    }

    /// Cuts the power. Every queue on the disk is dead from here on: it takes nothing and completes nothing.
    pub fn power_loss(&self, random: &mut Random) {
        self.state.borrow_mut().lose_power(random);
    }

    /// Pulls the device out: everything in flight and everything submitted ends with `Gone`.
    pub fn disappear(&self) {
        self.state.borrow_mut().gone = true;
    }

    pub fn reappear(&self) {
        self.state.borrow_mut().gone = false;
    }

    /// Flips a bit at rest in some block of the range that holds data, and says in which.
    pub fn flip_bit(&self, range: BlockRange, random: &mut Random) -> Option<Block> {
        let mut state = self.state.borrow_mut();
        let block = state.cache.flip_bit(range, random)?;
        state.injected.push(InjectedFault::BitFlip(block));
        Some(block)
    }

    /// What a reader would see now.
    pub fn seen(&self) -> Medium {
        self.state.borrow().cache.seen()
    }

    /// What is on the medium whatever happens now.
    pub fn durable(&self) -> Medium {
        self.state.borrow().cache.durable().clone()
    }

    /// When the next completion or deadline of any queue is due.
    pub fn next_event(&self) -> Option<Monotonic> {
        self.state.borrow().next_event(None)
    }
}

/// One core's queue on a simulated disk.
pub struct SimNamespace {
    disk: SimDisk,
    queue: QueueId,
    geometry: Geometry,
    /// The power cycle it was opened in.
    power: u64,
}

impl SimNamespace {
    pub fn disk(&self) -> &SimDisk {
        &self.disk
    }
}

impl Namespace for SimNamespace {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&mut self, now: Now, request: Request) -> Result<(), Request> {
        let mut state = self.disk.state.borrow_mut();
        if state.power() != self.power {
            return Err(request);
        }
        let taken = state.submit(self.queue, now, request);
        self.geometry.blocks = state.geometry.blocks;
        taken
    }

    fn poll(&mut self, now: Now, budget: usize, completions: &mut Vec<Completion>) -> usize {
        let mut state = self.disk.state.borrow_mut();
        if state.power() != self.power {
            return 0;
        }
        state.advance(now.monotonic);
        self.geometry.blocks = state.geometry.blocks;
        let mut taken = 0;
        while taken < budget {
            let Some(completion) = state.take_completion(self.queue, now.monotonic) else { break };
            completions.push(completion);
            taken += 1;
        }
        taken
    }

    fn in_flight(&self) -> usize {
        self.disk.state.borrow().unreported(self.queue)
    }

    fn next_deadline(&self) -> Option<Monotonic> {
        self.disk.state.borrow().next_event(Some(self.queue))
    }
}

impl Drop for SimNamespace {
    fn drop(&mut self) {
        // A panic inside the disk (an overlap found) unwinds through here with the state still borrowed.
        if let Ok(mut state) = self.disk.state.try_borrow_mut() {
            state.orphan(self.queue);
        }
    }
}
