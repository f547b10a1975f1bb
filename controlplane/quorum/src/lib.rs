//! KRaft, Kafka's own consensus, as a sans-I/O state machine: (event, time) -> (messages, disk jobs, deliveries), with log
//! and snapshots in Kafka's own files.
//!
//! `node` calls it: `format` or `Quorum::load`, then `handle`, `append`, `poll`; `files::Files` (run by `daemon` on a thread)
//! does the jobs. It knows no topics, groups or sockets, and no metadata record but its own control records.
//! Invariants: votes and entries are synced before they are answered or counted; the high watermark waits for an entry of
//! its own epoch and never falls; nothing below it is cut; a snapshot is synced and renamed before the log's start moves.
//! A clean stop leaves no marker: as in Kafka, every start checks the whole metadata log.
//! Tests: beside each module; `tests/single.rs` (one voter), `tests/crash.rs` (power cuts at every step), `tests/rules.rs`
//! (the protocol, rule by rule), `tests/cluster.rs` (several replicas, simulated), `tests/reference.rs` (Apache's tools and
//! broker; needs KAFKA_LIBS).
#![forbid(unsafe_code)]

mod appending;
mod calls;
mod config;
mod describe;
mod disk;
mod election;
mod feed;
pub mod files;
mod following;
mod format;
mod ids;
mod jobs;
mod leading;
mod load;
mod load_log;
mod log;
mod membership;
mod message;
mod peers;
pub mod protocol;
mod quorum;
mod records;
mod scan;
mod snapshotting;
mod state;
mod stored;

pub use appending::AppendError;
pub use config::{BATCH_BYTES_MAX, BATCHES_WAITING_MAX, Config, SnapshotPolicy, Timing};
pub use describe::{Description, ReplicaDescription};
pub use disk::{DiskJob, DiskLane, DiskRead, FileName, Folder, PARTITION_FOLDER, Source, Step, Ticket, Whole};
pub use format::{FormatOptions, format};
pub use ids::{Endpoint, KRaftVersionRange, OffsetAndEpoch, ReplicaKey, SnapshotId, Voter, VoterSet};
pub use load::{LoadError, LoadReport, read_meta};
pub use log::LogLimits;
pub use message::{
    BeginEpochRequest, CallId, Destination, EndEpochRequest, FetchReply, FetchRequest, FetchSnapshotReply,
    FetchSnapshotRequest, Fetched, Refusal, Reply, ReplyBody, Request, RequestId, VoteRequest,
};
pub use quorum::{Delivery, DiskFailed, Event, Fault, Leadership, Outputs, Quorum, SentRequest};
pub use records::CommittedBatch;
pub use snapshotting::{SnapshotError, SnapshotReason, snapshot_id};
pub use state::StateName;
pub use stored::{FormatError, MetaProperties};
