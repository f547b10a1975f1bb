//! The loop of a data core, its driver, and what is core 0's alone: the link, the view, placements, the keeper.
//!
//! The executable calls `run`. It joins all rooms of the dataplane, and knows nothing of the quorum. Invariants: a turn
//! never blocks and takes its time as an argument; cores share nothing but rings; core 0 alone speaks to the control
//! plane; a core that panics ends the process. Tests: beside the code; the whole loop in tests/sim; the executable in
//! tests/conformance and tests/crash.
#![forbid(unsafe_code)]

mod build;
mod calibrating;
mod clock;
mod cpus;
mod doors;
mod driver;
mod duty;
mod gauges;
mod hearing;
mod keeper;
mod link_end;
mod log_events;
mod memory;
mod mesh;
mod message;
mod office;
mod open;
mod options;
mod start;
mod tally;
mod turn;
mod watch;

pub use calibrating::Calibrating;
pub use cpus::{CpuPlan, NICE_ON_A_SHARED_CPU, cpu_plan};
pub use doors::ConnectionLimits;
pub use keeper::Keeper;
pub use link_end::LinkEnd;
pub use mesh::{Mesh, meshes};
pub use message::Message;
pub use office::{HelloFacts, LINK_LISTENER};
pub use open::format;
pub use options::{DataplaneError, DataplaneOptions};
pub use start::run;
pub use turn::{Core, CoreParts, Office};
pub use watch::Clocks as WatchClocks;
