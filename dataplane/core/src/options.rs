//! What the executable says to the dataplane, and what it is told when a start fails.

use base::Uuid;
use net::ListenError;
use settings::NodeConfig;
use std::path::PathBuf;

/// What the executable says.
#[derive(Clone, Debug)]
pub struct DataplaneOptions {
    pub config: NodeConfig,
    /// The namespace's file.
    pub namespace: PathBuf,
    pub ephemeral: bool,
    /// The node has run before: then a namespace that is empty was lost, and is not formatted.
    pub has_run: bool,
    pub cluster_id: String,
    pub directory_id: Uuid,
    /// Where the control plane connects.
    pub link: PathBuf,
    /// The shared mapping of counters.
    pub counters: PathBuf,
    pub seed: u64,
    /// Lines of the log that were dropped so far because nobody took them in time.
    pub log_lines_dropped: fn() -> u64,
}

#[derive(Debug, thiserror::Error)]
pub enum DataplaneError {
    #[error("{0}")]
    Device(#[from] nvme_device::OpenError),
    #[error("{0}")]
    Format(#[from] nvme_log::FormatError),
    #[error("{0}")]
    Open(#[from] nvme_log::OpenError),
    /// Rule 6: the next process opens the namespace again and finds what is on it.
    #[error("the namespace stopped, and nothing is believed of it before it is opened again: {0}")]
    Stopped(nvme_log::StopReason),
    #[error(
        "listener {name} on {address}: {error}; choose an address of this host and a port that is free (--listen), or stop \
         what listens there"
    )]
    Listen { name: String, address: String, error: ListenError },
    #[error(
        "listener {name}: the address {host}:{port} cannot be resolved: {error}; correct it, or make the name known to this host"
    )]
    Resolve { name: String, host: String, port: u16, error: std::io::Error },
    #[error("the system refused {what}: {error}")]
    System { what: &'static str, error: std::io::Error },
    #[error(
        "the namespace belongs to {namespace}, but meta.properties says {expected}: they are of different nodes; \
         give the node its own data directory"
    )]
    Identity { namespace: String, expected: String },
    #[error(
        "{} is missing or empty, though this node has run with it: put it back, or a copy of it; to give up every record \
         that it held, remove the node's whole data directory", .0.display()
    )]
    Lost(PathBuf),
    #[error(
        "the namespace holds {partitions} partitions of this node, but the metadata that names them is gone: put the \
         node's controlplane directory back, or a copy of it; to give up every record, remove the node's whole data \
         directory"
    )]
    MetadataLost { partitions: usize },
    #[error("{wanted} cores were asked for, {most} are the most: set cores to fewer")]
    TooManyCores { wanted: usize, most: usize },
    #[error("cores names CPU {cpu}, which this process may not run on: name some of {allowed:?}, or only how many")]
    NoSuchCpu { cpu: usize, allowed: Vec<usize> },
}

impl DataplaneError {
    /// Starting again would end the same way, and an operator must look first.
    pub fn is_final(&self) -> bool {
        matches!(
            self,
            DataplaneError::Lost(_)
                | DataplaneError::MetadataLost { .. }
                | DataplaneError::Open(
                    nvme_log::OpenError::Unreadable
                        | nvme_log::OpenError::ShardUnreadable { .. }
                        | nvme_log::OpenError::TwoOwners { .. }
                )
        )
    }
}
pub(crate) fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> DataplaneError {
    move |error| DataplaneError::System { what, error }
}
