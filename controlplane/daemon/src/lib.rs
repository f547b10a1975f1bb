//! The control plane's process around `node`: one thread with tokio's sockets, timers and signals, one for the files, and
//! the console (metrics and readiness over HTTP).
//!
//! `pollux` calls `format` and `run`. It may not know what a message or a record means, nor anything of the dataplane's
//! insides but its counter pages. Invariants: disk work is done one after the other in the order it was asked for, and
//! its answers come in that order; a message of one connection is never answered on another; the loop waits for nothing
//! but events.
//! Tests: beside the code, and `tests/` (the process on real sockets and files, against a dataplane of the test's own).
#![forbid(unsafe_code)]

mod clock;
mod console;
mod directory;
mod disk;
mod link_client;
mod metrics;
mod names;
mod prometheus;
mod run;

pub use console::{Console, http_answer};
pub use directory::{format, formatted_ids};
pub use disk::has_run;
pub use metrics::dataplane_metrics;
pub use names::metric_names_markdown;
pub use run::run;

use base::Uuid;
use settings::NodeConfig;
use std::path::PathBuf;

/// What an operator does about what the system says of a file.
pub fn advice(error: &std::io::Error) -> &'static str {
    use std::io::ErrorKind;
    match error.kind() {
        ErrorKind::PermissionDenied => "; run as its owner, or give this user the right to read and write there",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "; make room on its file system",
        ErrorKind::ReadOnlyFilesystem => "; mount its file system for writing, or choose another directory (--data)",
        ErrorKind::NotADirectory | ErrorKind::AlreadyExists => {
            "; a file stands where a directory is needed: name another"
        }
        ErrorKind::NotFound => "; correct the path",
        _ => "",
    }
}

/// What the process is started with.
#[derive(Clone, Debug)]
pub struct DaemonOptions {
    /// The control plane's files; formatted on first use.
    pub directory: PathBuf,
    /// The dataplane's socket.
    pub link: PathBuf,
    /// The dataplane's counter pages.
    pub counters: PathBuf,
    pub cluster_id: String,
    /// Given to the directory when it is formatted.
    pub directory_id: Uuid,
    pub config: NodeConfig,
    /// Where metrics and readiness are answered, if anywhere.
    pub console: Option<Console>,
    pub seed: u64,
}

/// Why the process ends, or does not begin.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    #[error("{what} {}: {error}{}", path.display(), advice(error))]
    File { what: &'static str, path: PathBuf, error: std::io::Error },
    #[error(
        "{}: {reason}; put the file back, or a copy of it: the ids that belong in it stand in the namespace (`pollux dump \
         DIR superblock`)", path.display()
    )]
    Unreadable { path: PathBuf, reason: String },
    #[error("{} is formatted already", .0.display())]
    Formatted(PathBuf),
    #[error("{} belongs to cluster {found}, the node is started for cluster {expected}", path.display())]
    OtherCluster { path: PathBuf, found: String, expected: String },
    #[error("the metadata cannot be formatted: {0}")]
    Format(String),
    #[error(transparent)]
    Start(#[from] node::StartError),
    #[error("the console cannot listen on {address}: {error}")]
    Console { address: String, error: std::io::Error },
    #[error("the system refused: {0}")]
    System(#[from] std::io::Error),
    #[error("{0}")]
    Fault(String),
}
