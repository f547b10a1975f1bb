//! The coordinators: one runtime of single-threaded shards, each the fold over one partition of an internal topic, and
//! the group coordinator (classic protocol and committed offsets) as its first state machine.
//!
//! `node` calls it: it feeds client requests, leadership, the dataplane's answers and time in, and carries appends,
//! reads and responses out. It may not know sockets, disks, the link, or who is allowed to ask (rights are checked
//! before). Invariants: a reply that depends on a record leaves only once that record's append is reported done; an
//! append that is refused leaves no trace; one whose end is unknown, or whose place in the log is not the expected
//! one, makes the shard replay its partition; records are Kafka's own, byte for byte.
//! Tests: beside the code and in `tests/`, with records that Kafka wrote in `tests/golden/groups` of the repository.
#![forbid(unsafe_code)]

mod answer;
mod api;
mod coordinators;
mod dispatch;
mod finish;
mod group;
mod place;
mod runtime;

pub use api::{
    AppendId, AppendResult, Client, Event, Output, ReadId, ReadResult, Request, RequestToken, Slice, Topics,
};
pub use coordinators::{Coordinators, Options};
pub use place::partition_for;
