//! The devices: implementations of `nvme_plan::Namespace`.
//!
//! `dataplane/core` opens one (`open`) and attaches a queue per core; `nvme/log` meets only the trait. Nothing here
//! knows a partition or an offset. `memory` serves `--ephemeral`, `sim` the simulator, `recording` wraps any of them so
//! that every legal crash of a real run can be replayed, `threaded` and `uring` work on a file or a block device that
//! `file` opened. Invariants: a request's buffers stay with the device until the system is done with them, also when its
//! deadline has passed; completions are delivered by `poll` alone; a completed `Flush` covers every write whose
//! completion was delivered before it was submitted. Tests: beside the modules, and `tests/store_suite.rs`, one script
//! over every implementation.
#![deny(unsafe_code)]
#![deny(unsafe_op_in_unsafe_fn)]

mod cache;
mod calibrate;
mod check;
mod counts;
mod device;
mod file;
mod in_flight;
pub mod medium;
pub mod memory;
pub mod recording;
pub mod sim;
mod sys;
pub mod threaded;
#[cfg(target_os = "linux")]
pub mod uring;
mod wake;

pub use calibrate::{Calibrated, Calibration};
pub use counts::Counts;
pub use device::{Device, Engine, OpenOptions, Queue, QueueOptions, open};
pub use file::{Access, FileOptions, OpenError, free_bytes};
pub use medium::Medium;
pub use memory::{MemoryDisk, MemoryNamespace};
pub use recording::{CrashImage, CrashImages, ImageOptions, RecordedRun, Recorder, Recording, Stamp};
pub use sim::{FaultPlan, InjectedFault, Latency, Overlap, PerMillion, SimDisk, SimNamespace, SimOptions, Tear};
pub use threaded::ThreadedNamespace;
#[cfg(target_os = "linux")]
pub use uring::{FixedMemory, UringNamespace};
pub use wake::Wake;
