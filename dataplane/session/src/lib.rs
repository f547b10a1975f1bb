//! One connection's conversation: receive, cut, decode, route, keep order, gather, fetch sessions, encode.
//!
//! `dataplane/core` feeds it events of the network, outcomes of other cores, answers of the link and time; it leaves
//! commands and up-calls in `Outputs`. It knows neither logs nor devices. Invariants: replies leave in the order of
//! requests; only a Produce is evaluated beside an unanswered Produce; a slow reader holds `KEPT_BYTES` of
//! memory and what its response has of its own; bad input ends one connection, with a reason.
//! Tests: beside the code, and `tests/` over the simulated network.
#![forbid(unsafe_code)]

pub mod api;
mod assemble;
mod begin;
mod connection;
mod encode;
mod errors;
mod fetch;
mod fetch_answer;
mod fetch_session;
mod forward;
mod gather;
pub mod limits;
mod lists;
mod off_loop;
mod outputs;
mod parked;
mod produce;
mod replies;
pub mod route;
mod sending;
mod sessions;
mod unavailable;

pub use connection::EndReason;
pub use errors::produce_error_code;
pub use forward::core_of_forward;
pub use off_loop::OffLoop;
pub use outputs::{Answered, Outputs};
pub use sessions::{Gate, NodeFacts, Sessions, Turn};
