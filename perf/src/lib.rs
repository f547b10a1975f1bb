//! Measuring: a raw client, an open-loop load generator over it, what the broker's processes cost meanwhile, and the
//! table that compares Apache Kafka with Pollux.
//!
//! Called by its own executables (`load`, `compare`) and by `tests`, which uses the raw client. It knows Kafka's
//! protocol through `wire` and `batch` only, and nothing of Pollux: the same bytes go to either broker. Invariant: a
//! latency counts from the moment a request was due, so that a broker that stalls is charged for every request that
//! had to wait meanwhile (no coordinated omission).
//! Tests: beside the modules; `tests/` runs the client against both brokers.
#![forbid(unsafe_code)]

pub mod client;
pub mod load;
pub mod process;
pub mod report;
pub mod schedule;
