//! The dataplane whole in one deterministic process: cores, network, device and time are simulated, everything else is
//! the code of production; clients that behave well and badly; a control plane that comes and goes; a model as oracle.
//!
//! Called by the executable `sim` (campaigns) and by tests/seeds.rs. It knows the node by its listener, its link and its
//! device only. Invariants: a seed decides everything, so a failure repeats; whatever a client was told is held against
//! every later answer; after every crash everything heals in bounded simulated time. Seeds that ever failed stand in
//! seeds/failed.txt and run every time. Tests: tests/seeds.rs; tests/recording.rs records the same node on a real file.
#![forbid(unsafe_code)]

mod admin;
mod caller;
mod consumer;
mod context;
mod faults;
mod model;
mod node;
mod pattern;
mod plane;
mod producer;
mod recorded;
mod scenario;
mod times;
mod vandal;
mod world;

pub use context::Trace;
pub use faults::{Fault, Happened};
pub use model::Stats;
pub use recorded::{Checked, Recorded, record};
pub use scenario::Scenario;
pub use world::World;

use std::time::Duration;

/// Rounds of faults, healing and audit in one run.
const ROUNDS: u64 = 2;

/// What a run has lasted at its end, in simulated time, and how many faults it has met, at least.
pub const TIME_MIN: Duration = Duration::from_secs(60);
pub const FAULTS_MIN: u32 = 2;

/// Runs a seed; a failure is a panic. Two runs of a seed give the same trace.
pub fn run(seed: u64, steps: u64) -> World {
    let mut world = World::new(seed, |random| Scenario::of(seed, random));
    for fault in Fault::of_seed(seed) {
        world.round(steps / ROUNDS, Some(fault));
    }
    assert!(world.simulated() >= TIME_MIN, "it lasted {:?}", world.simulated());
    assert!(world.happened.faults() >= FAULTS_MIN, "too little went wrong: {:?}", world.happened);
    world
}

/// Runs a seed on one core without any fault.
pub fn run_plain(seed: u64, steps: u64) -> World {
    let mut world = World::new(seed, |_| Scenario::plain());
    world.round(steps, None);
    world
}
