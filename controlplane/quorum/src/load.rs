//! Loading: from what the files hold after any crash, or after Apache Kafka wrote them, to a quorum ready to run. Reads
//! through `Source`; what has to be repaired is the first job that comes out.

use crate::appending::Appender;
use crate::calls::Calls;
use crate::config::{BATCH_BYTES_MAX, Config};
use crate::disk::{FileName, Source, Step, Whole, replace};
use crate::feed::Feed;
use crate::ids::SnapshotId;
use crate::jobs::Jobs;
use crate::load_log::{Scanned, scan_log};
use crate::log::{Log, SnapshotFacts};
use crate::membership::Membership;
use crate::peers::Peers;
use crate::quorum::{Outputs, Quorum};
use crate::records::{self, Control};
use crate::snapshotting::Snapshotting;
use crate::state::{Finding, Role, Unattached};
use crate::stored::{ElectionState, FormatError, MetaProperties, encode_partition_metadata};
use base::{Now, Offset, Random};
use batch::{BatchError, BatchView};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::io;

/// The files are not those of a replica that can run.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("the directory is not formatted: it has no meta.properties")]
    NotFormatted,
    #[error("{file}: {error}")]
    Format { file: FileName, error: FormatError },
    #[error(
        "meta.properties says {what} {found}, the configuration {expected}: start the node as {found}, or give it a data \
         directory of its own"
    )]
    Foreign { what: &'static str, found: String, expected: String },
    /// Acknowledged records may be missing: this replica must not vote or lead as if nothing were.
    #[error("{file} is damaged at {position}: {reason}")]
    Damaged { file: FileName, position: u64, reason: String },
    #[error("the log begins at {log_start}, but no snapshot reaches that far")]
    NoSnapshot { log_start: Offset },
    #[error("reading {file}: {error}")]
    Read { file: String, error: io::Error },
}

/// What loading found and did, for the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    pub batches: u64,
    /// Bytes cut from the log's end: written, but not whole when the node stopped.
    pub torn_bytes: u64,
    /// Index files written anew.
    pub indexes_rebuilt: u32,
    pub snapshots: u32,
}

/// Reads `meta.properties`, if the directory is formatted.
pub fn read_meta(source: &dyn Source) -> Result<Option<MetaProperties>, LoadError> {
    let files = list(source)?;
    let file = FileName::Whole(Whole::MetaProperties);
    match files.get(&file) {
        None => Ok(None),
        Some(size) => {
            let bytes = read(source, file, 0, *size)?;
            MetaProperties::decode(&bytes).map(Some).map_err(|error| LoadError::Format { file, error })
        }
    }
}

pub(crate) fn read(source: &dyn Source, file: FileName, position: u64, length: u64) -> Result<Vec<u8>, LoadError> {
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    source.read(file, position, length).map_err(|error| LoadError::Read { file: file.to_string(), error })
}

fn list(source: &dyn Source) -> Result<BTreeMap<FileName, u64>, LoadError> {
    let files = source.list().map_err(|error| LoadError::Read { file: "the directory".into(), error })?;
    Ok(files.into_iter().collect())
}

impl Quorum {
    /// Loads a formatted directory. The quorum's first outputs (from `poll`) repair what a crash left behind.
    pub fn load(
        config: Config,
        source: &dyn Source,
        now: Now,
        random: Random,
    ) -> Result<(Quorum, LoadReport), LoadError> {
        let meta = read_meta(source)?.ok_or(LoadError::NotFormatted)?;
        check_identity(&config, &meta)?;
        let files = list(source)?;
        let mut steps = Vec::new();
        let mut membership = Membership::new(config.static_voters.clone());
        let (snapshots, bootstrap) = load_snapshots(source, &files, &mut membership, &mut steps)?;
        let scanned = scan_log(source, &files, snapshots, config.log, &mut membership, &mut steps)?;
        let election = load_election(source, &files)?;
        let Scanned { log, report } = scanned;
        if !files.contains_key(&FileName::Whole(Whole::PartitionMetadata)) {
            replace(Whole::PartitionMetadata, encode_partition_metadata(), &mut steps);
        }
        for file in files.keys().filter(|f| matches!(f, FileName::Next(_))) {
            steps.push(Step::Remove(*file));
        }
        let mut quorum = Quorum::assemble(config, log, membership, election, bootstrap, now, random);
        quorum.repair(steps);
        quorum.start(now);
        Ok((quorum, report))
    }

    fn assemble(
        config: Config,
        log: Log,
        membership: Membership,
        election: ElectionState,
        bootstrap: Vec<Bytes>,
        now: Now,
        random: Random,
    ) -> Quorum {
        let durable = log.end().offset;
        Quorum {
            config,
            log,
            membership,
            election,
            role: Role::Unattached(Unattached { election_deadline: now.monotonic, finding: Finding::default() }),
            jobs: Jobs::default(),
            appender: Appender::default(),
            peers: Peers::default(),
            calls: Calls::default(),
            feed: Feed::default(),
            snapshotting: Snapshotting::new(now),
            durable,
            high_watermark: None,
            random,
            out: Outputs::default(),
            reads_issued: 0,
            stopping: false,
            elections_lost: 0,
            bootstrap,
            failed: false,
        }
    }

    /// The log that was loaded may have been written but never synced by the process before: it is synced before any of
    /// it is counted, and nothing is durable until then.
    fn repair(&mut self, steps: Vec<Step>) {
        self.durable = self.log.start();
        self.sync_log(steps);
    }
}

fn check_identity(config: &Config, meta: &MetaProperties) -> Result<(), LoadError> {
    let foreign = |what, found: String, expected: String| Err(LoadError::Foreign { what, found, expected });
    if meta.cluster_id != config.cluster_id {
        return foreign("cluster.id", meta.cluster_id.clone(), config.cluster_id.clone());
    }
    if meta.node_id != config.local.id {
        return foreign("node.id", meta.node_id.to_string(), config.local.id.to_string());
    }
    match config.local.directory {
        Some(directory) if directory != meta.directory_id => {
            foreign("directory.id", meta.directory_id.to_string(), directory.to_string())
        }
        _ => Ok(()),
    }
}

type Snapshots = BTreeMap<SnapshotId, SnapshotFacts>;

/// Lists the snapshots, takes the membership from the latest one's first batch, and the bootstrap records from the one
/// that formatting wrote. Unfinished snapshots go; their records are in the log, or at the leader.
fn load_snapshots(
    source: &dyn Source,
    files: &BTreeMap<FileName, u64>,
    membership: &mut Membership,
    steps: &mut Vec<Step>,
) -> Result<(Snapshots, Vec<Bytes>), LoadError> {
    let mut snapshots = Snapshots::new();
    let mut bootstrap = Vec::new();
    for (file, size) in files {
        match *file {
            FileName::Partial(_) => steps.push(Step::Remove(*file)),
            FileName::Snapshot(id) => {
                let (last_time, _) = snapshot_head(source, *file, *size)?;
                snapshots.insert(id, SnapshotFacts { size: *size, last_time });
                if id == SnapshotId::BOOTSTRAP {
                    bootstrap = bootstrap_records(source, *file, *size)?;
                }
            }
            // What a static quorum was formatted with; it has no 0-0 snapshot.
            FileName::BootstrapCheckpoint if bootstrap.is_empty() => {
                bootstrap = bootstrap_records(source, *file, *size)?;
            }
            _ => (),
        }
    }
    if let Some((id, facts)) = snapshots.last_key_value() {
        let (_, controls) = snapshot_head(source, FileName::Snapshot(*id), facts.size)?;
        for control in &controls {
            membership.note(Offset(id.offset.0 - 1), control);
        }
    }
    Ok((snapshots, bootstrap))
}

fn damaged(file: FileName, position: u64, reason: impl std::fmt::Display) -> LoadError {
    LoadError::Damaged { file, position, reason: reason.to_string() }
}

/// The time and the control records of a snapshot's first batch.
fn snapshot_head(
    source: &dyn Source,
    file: FileName,
    size: u64,
) -> Result<(base::WallMillis, Vec<Control>), LoadError> {
    let mut length = size.min(64 << 10);
    loop {
        let bytes = read(source, file, 0, length)?;
        match BatchView::parse(&bytes) {
            Ok((view, _)) => {
                let controls = records::controls(view.bytes()).map_err(|error| damaged(file, 0, error))?;
                let mut controls = controls.into_iter().map(|(_, control)| control);
                return match controls.next() {
                    Some(Control::SnapshotHeader { last_time }) => Ok((last_time, controls.collect())),
                    _ => Err(damaged(file, 0, "it does not begin with a snapshot header")),
                };
            }
            Err(BatchError::Incomplete { need, .. }) if need as u64 > length && need as u64 <= size => {
                length = need as u64;
            }
            Err(error) => return Err(damaged(file, 0, error)),
        }
    }
}

fn bootstrap_records(source: &dyn Source, file: FileName, size: u64) -> Result<Vec<Bytes>, LoadError> {
    if size > 8 * BATCH_BYTES_MAX as u64 {
        return Err(damaged(file, 0, "too large for bootstrap records"));
    }
    let bytes = Bytes::from(read(source, file, 0, size)?);
    let mut records = Vec::new();
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let position = (bytes.len() - rest.len()) as u64;
        let (view, after) = BatchView::parse(rest).map_err(|error| damaged(file, position, error))?;
        let batch = records::decode(&bytes.slice_ref(view.bytes())).map_err(|error| damaged(file, position, error))?;
        records.extend(batch.records);
        rest = after;
    }
    Ok(records)
}

fn load_election(source: &dyn Source, files: &BTreeMap<FileName, u64>) -> Result<ElectionState, LoadError> {
    let file = FileName::Whole(Whole::QuorumState);
    match files.get(&file) {
        // A replica that never voted and never met a leader has none.
        None => Ok(ElectionState::default()),
        Some(size) => {
            let bytes = read(source, file, 0, *size)?;
            ElectionState::decode(&bytes).map_err(|error| LoadError::Format { file, error })
        }
    }
}
