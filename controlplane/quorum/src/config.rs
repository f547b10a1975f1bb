//! What a quorum is started with. Names in brackets are Kafka's settings.

use crate::ids::{Endpoint, ReplicaKey, VoterSet};
use crate::log::LogLimits;
use std::time::Duration;

/// The largest batch of the metadata log: one append is one batch, so that it is atomic.
pub const BATCH_BYTES_MAX: usize = 8 << 20;
/// How many batches wait for the disk before an append is refused.
pub const BATCHES_WAITING_MAX: usize = 10;
/// How much one Fetch or FetchSnapshot answer carries, and one read of the log.
pub const FETCH_BYTES_MAX: u32 = 8 << 20;
/// How long a Fetch waits at the leader for news.
pub const FETCH_WAIT_MAX: Duration = Duration::from_millis(500);

/// Timeouts of the protocol.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// [controller.quorum.election.timeout.ms]
    pub election_timeout: Duration,
    /// [controller.quorum.election.backoff.max.ms]
    pub election_backoff_max: Duration,
    /// [controller.quorum.fetch.timeout.ms]
    pub fetch_timeout: Duration,
    /// [controller.quorum.request.timeout.ms]
    pub request_timeout: Duration,
    /// [controller.quorum.retry.backoff.ms]
    pub retry_backoff: Duration,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            election_timeout: Duration::from_millis(1000),
            election_backoff_max: Duration::from_millis(1000),
            fetch_timeout: Duration::from_millis(2000),
            request_timeout: Duration::from_millis(2000),
            retry_backoff: Duration::from_millis(20),
        }
    }
}

/// When a snapshot is due, and how long older ones and the log before them are kept.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotPolicy {
    /// [metadata.log.max.record.bytes.between.snapshots]
    pub bytes_between: u64,
    /// [metadata.log.max.snapshot.interval.ms]
    pub interval: Duration,
    /// [metadata.max.retention.bytes]
    pub retention_bytes: u64,
    /// [metadata.max.retention.ms]
    pub retention: Duration,
}

impl Default for SnapshotPolicy {
    fn default() -> SnapshotPolicy {
        SnapshotPolicy {
            bytes_between: 20 << 20,
            interval: Duration::from_secs(3600),
            retention_bytes: 100 << 20,
            retention: Duration::from_secs(7 * 24 * 3600),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Config {
    pub cluster_id: String,
    /// This replica; its directory is always known.
    pub local: ReplicaKey,
    /// Whether this node may vote at all: a controller. Others only observe.
    pub can_vote: bool,
    /// The controller listeners of this node, as other voters reach it.
    pub endpoints: Vec<Endpoint>,
    /// [controller.quorum.voters], for a cluster whose voter set is not in its log (kraft.version 0).
    pub static_voters: VoterSet,
    /// [controller.quorum.bootstrap.servers]: whom to ask for the leader.
    pub bootstrap_servers: Vec<Endpoint>,
    pub timing: Timing,
    pub snapshots: SnapshotPolicy,
    pub log: LogLimits,
}

impl Config {
    /// A voter with Kafka's defaults.
    pub fn voter(cluster_id: &str, local: ReplicaKey, endpoints: Vec<Endpoint>) -> Config {
        assert!(local.directory.is_some(), "a replica knows its own directory");
        Config {
            cluster_id: cluster_id.to_owned(),
            local,
            can_vote: true,
            endpoints,
            static_voters: VoterSet::default(),
            bootstrap_servers: Vec::new(),
            timing: Timing::default(),
            snapshots: SnapshotPolicy::default(),
            log: LogLimits::default(),
        }
    }
}
