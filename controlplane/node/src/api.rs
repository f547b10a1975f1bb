//! What goes into a node and what comes out.

use base::NodeId;
use bytes::Bytes;
use link::{Down, Up};
use settings::BrokerSettings;

/// The file that `DiskWork::StoreRun` replaces, beside `meta.properties`.
pub const RUN_FILE: &str = "dataplane-run";

/// What a node is started with, beside its files.
#[derive(Clone, Debug)]
pub struct Options {
    pub node: NodeId,
    /// This node's file, without dynamic settings.
    pub settings: BrokerSettings,
    /// Largest batch that the storage takes; max.message.bytes above it is refused.
    pub largest_batch: u32,
}

#[derive(Clone, Debug)]
pub enum Event {
    /// The next message of the dataplane. Its `Hello` opens a connection.
    Up(Up),
    /// The connection to the dataplane is gone.
    LinkLost,
    /// A disk job or read of the quorum is done.
    Quorum(quorum::Event),
    /// `DiskWork::StoreRun` is done, or failed.
    RunStored(Result<(), String>),
    /// The node is to stop cleanly; `Outputs::end` says when it has.
    Stop,
    /// Nothing but time has passed.
    Time,
}

/// Done one after the other in this order, each answered by an event. Reads may pass jobs.
#[derive(Clone, Debug)]
pub enum DiskWork {
    Job(quorum::DiskJob),
    Read(quorum::DiskRead),
    /// Replaces the file beside `meta.properties` that names the last run of the dataplane.
    StoreRun(Bytes),
}

/// Why a node ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// It was asked to and has.
    Stopped,
    /// Going on could break a promise; the text says what happened.
    Fault(String),
}

#[derive(Clone, Debug, Default)]
pub struct Outputs {
    pub down: Vec<Down>,
    pub disk: Vec<DiskWork>,
    /// The connection is to be closed after `down` is sent: the dataplane and this node do not belong together.
    pub disconnect: Option<String>,
    pub end: Option<End>,
}
