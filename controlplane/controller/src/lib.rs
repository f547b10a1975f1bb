//! The controller: (event, state) -> (records, response), on one thread, without I/O, time and chance passed in.
//!
//! `node` decodes requests, calls one function per API, appends the records through the quorum and lets the response go
//! when they are committed. It may not know sockets, files or voting. Invariants: its state is exactly a fold over the
//! records of the log; what is not committed is undone when the leadership is lost; one event makes a bounded number of
//! records.
//! Tests: beside the code, and `tests/` (random events; the same requests as Apache Kafka's controller answered, with
//! its responses and records, in tests/golden/metadata).
#![forbid(unsafe_code)]

mod activation;
mod api;
mod brokers;
mod change;
mod configs;
mod controller;
mod deadline;
mod elections;
mod error;
mod features;
mod heartbeats;
mod partitions;
mod placement;
mod producer_ids;
mod reads;
mod reassignment;
mod reassignments;
mod state;
mod timers;
mod topics;

pub use activation::bootstrap_records;
pub use api::{Circumstances, SERVED, api_support};
pub use controller::{Append, Controller, Options, Outcome, RECORDS_MAX, RequestContext};
pub use deadline::run_out;
pub use error::ApiError;
pub use placement::Choices;
pub use reads::{Reading, settings_under};
pub use state::State;
