//! The whole control plane without I/O: (event, time) -> (messages, disk work, next deadline). It holds the quorum, the
//! controller, the loader with its publications, the coordinators and the life of this node's broker.
//!
//! `daemon` calls it, one event at a time, and carries its outputs to the socket and the files. It may not know tokio,
//! sockets or files. Invariants: an answer leaves only when what it rests on is committed and in force at the dataplane;
//! nothing of an uncommitted record leaves; a run of the dataplane never continues a leader epoch of another run; an
//! append of a coordinator ends done, refused or unknown, once.
//! Tests: beside the code (the table of a run's decisions), and `tests/` (the whole node between a disk in memory and the
//! other end of the link).
#![forbid(unsafe_code)]

mod api;
mod broker;
mod coordinate;
mod decide;
mod dispatch;
mod features;
mod format;
mod held;
mod link_end;
mod metadata;
mod node;
mod publish;
mod run_record;
mod snapshots;
mod status;
mod stop;
mod topics;

pub use api::{DiskWork, End, Event, Options, Outputs, RUN_FILE};
pub use features::{bootstrap_features, supported_features};
pub use format::{FormatRequest, format_steps};
pub use node::{Node, StartError};
pub use status::{BrokerPhase, Status};
