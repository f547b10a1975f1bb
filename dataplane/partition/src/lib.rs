//! One core's partitions: produce, fetch, producers, epochs, watermarks, waiters.
//!
//! `dataplane/core` feeds `Partitions` with commands, duties, events of the store, finished work and time, and carries
//! what it puts out: outcomes to the cores that asked, work to helpers, up-calls to core 0. It knows neither sockets nor
//! correlation ids nor extents, and does no I/O: the store is handed in with each call. Invariants: every command but
//! Cancel has exactly one outcome; nothing is acknowledged, shown or counted before it is durable here; appends of a
//! partition keep the order of their commands; a refused append uses no offset and changes nothing; a finished waiter is
//! in no list. Tests: tables beside the code; tests/ drives a real store on the memory and the simulated device.
#![forbid(unsafe_code)]

mod acknowledge;
mod admin;
mod append;
mod byte_count;
mod delete_records;
mod duties;
mod epochs;
mod fetch;
mod fetch_answer;
mod image_end;
mod internal;
mod list_offsets;
mod log_events;
mod operation;
mod partitions;
mod pieces;
mod produce;
mod reading;
mod refusals;
mod replica;
mod sequence;
mod stretches;
mod sweep;
mod topic_rules;
mod watch;
mod window;

pub use duties::{Duty, DutyError, Removal};
pub use image_end::{FORGOTTEN_A_TURN, ImageEnd, LOOKED_AT_A_TURN};
pub use operation::JobId;
pub use partitions::{Options, Outputs, Partitions, Space, Tally};
