//! The control plane's directory: whether it is formatted, and formatting it.

use crate::DaemonError;
use crate::clock::Clock;
use base::{NodeId, Uuid};
use node::FormatRequest;
use quorum::files::Files;
use quorum::{Endpoint, MetaProperties};
use settings::NodeConfig;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

const META_FILE: &str = "meta.properties";
/// A process that was killed may hold the directory's lock for a moment longer.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(100);

/// Cluster and directory id of a formatted directory.
pub fn formatted_ids(directory: &Path) -> Result<Option<(String, Uuid)>, DaemonError> {
    let path = directory.join(META_FILE);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        Err(error) => return Err(DaemonError::File { what: "reading", path, error }),
    };
    match MetaProperties::decode(&bytes) {
        Ok(meta) => Ok(Some((meta.cluster_id, meta.directory_id))),
        Err(error) => Err(DaemonError::Unreadable { path, reason: error.to_string() }),
    }
}

/// Formats an empty or new directory as that of a cluster of one node.
pub fn format(directory: &Path, cluster_id: &str, directory_id: Uuid, config: &NodeConfig) -> Result<(), DaemonError> {
    let mut files = open(directory)?;
    format_files(&mut files, directory, cluster_id, directory_id, config)
}

pub(crate) fn format_files(
    files: &mut Files,
    directory: &Path,
    cluster_id: &str,
    directory_id: Uuid,
    config: &NodeConfig,
) -> Result<(), DaemonError> {
    if formatted_ids(directory)?.is_some() {
        return Err(DaemonError::Formatted(directory.to_owned()));
    }
    let request = FormatRequest {
        cluster_id: cluster_id.to_owned(),
        node: NodeId(config.node.id),
        directory: directory_id,
        // A single node's controller listens to nobody; a voter has an address all the same, and this is Kafka's usual.
        controller: Endpoint { listener: "CONTROLLER".to_owned(), host: "localhost".to_owned(), port: 9093 },
    };
    let steps = node::format_steps(&request, Clock::start().now());
    files.run_steps(&steps).map_err(|error| DaemonError::Format(error.to_string()))
}

/// Takes the directory, making it where it is not there.
pub(crate) fn open(directory: &Path) -> Result<Files, DaemonError> {
    let mut tries = 0;
    loop {
        match Files::open(directory) {
            Ok(files) => return Ok(files),
            Err(error) if error.kind() == ErrorKind::ResourceBusy && tries < LOCK_TRIES => {
                tries += 1;
                std::thread::sleep(LOCK_PAUSE);
            }
            Err(error) => {
                return Err(DaemonError::File { what: "opening", path: directory.to_owned(), error });
            }
        }
    }
}
