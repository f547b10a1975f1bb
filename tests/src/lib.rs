//! Proof from outside: nodes (Apache Kafka as the reference, Pollux) started, killed and compared; cases of real clients,
//! of the raw differential driver, of the traps, and the crash checker.
//!
//! Called by the executables `conformance` and `crash`; `tests/tidy.rs` checks the sources themselves. It knows a broker
//! only through its process, its files of settings and its listener. Invariants: an expectation is what Apache Kafka
//! answered in the same run, never a constant of ours; a case that could not run says so and is counted; only processes
//! started here are ended, each by its id; nothing waits without a deadline.
//! The README beside this crate says how to add a case.
#![forbid(unsafe_code)]

pub mod abuse;
pub mod cases;
pub mod crash;
pub mod differential;
pub mod jvm;
pub mod outage;
pub mod raw;
pub mod recovery;
pub mod tools;
pub mod tools_edges;
pub mod topics;

pub use perf::nodes::{self as node, Fault, Result, process, reference, subject, wait};
