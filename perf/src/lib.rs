//! Measuring: a raw client, an open-loop load generator over it, nodes of Apache Kafka and of Pollux to measure, what
//! their processes cost meanwhile, and the table that compares them.
//!
//! Called by its own executables (`load`, `compare`) and by `tests`, which uses the raw client and the nodes. It knows
//! Kafka's protocol through `wire` and `batch` only, and a broker through its process, its settings and its listener:
//! the same bytes go to either. Invariant: a
//! latency counts from the moment a request was due, so that a broker that stalls is charged for every request that
//! had to wait meanwhile (no coordinated omission).
//! Tests: beside the modules; `tests/` runs the client against both brokers.
#![forbid(unsafe_code)]

pub mod client;
pub mod compare;
pub mod floor;
pub mod load;
pub mod loopback;
pub mod nodes;
pub mod process;
pub mod report;
pub mod schedule;
pub mod steady;
