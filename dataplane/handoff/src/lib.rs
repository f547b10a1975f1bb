//! The only door between cores: rings, commands, outcomes, error enums, up-calls to the link, and `Stretch`.
//!
//! A connection's core sends a `Command` to the core that owns the partitions and gets one `Outcome` for it; a core's
//! commands to itself take the same path. It knows neither sockets nor logs. Invariant: a core never has more commands
//! out than its credits, and outcome rings hold that many, so that an outcome push never fails.
//! Tests: `ring.rs` beside the code; order and credits again in the simulator.

pub mod command;
pub mod error;
pub mod outcome;
pub mod ring;
pub mod upcall;

pub use command::*;
pub use error::*;
pub use outcome::*;
pub use upcall::*;
