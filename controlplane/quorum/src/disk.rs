//! What the quorum wants done to its files, as data. A job is a list of steps which its lane's executor runs in order, one
//! job after the other; its answer is `Event::DiskDone` with the job's ticket. Nothing in a job is ever retried: after a
//! failed fsync the state of a file is unknown, so a failed job stops the node.

use crate::ids::SnapshotId;
use base::Offset;
use bytes::Bytes;
use std::fmt;

/// The folder of the only Raft partition, inside the control plane's directory.
pub const PARTITION_FOLDER: &str = "__cluster_metadata-0";

/// Files that are replaced as a whole: written under a second name, synced, renamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Whole {
    MetaProperties,
    QuorumState,
    LeaderEpochs,
    PartitionMetadata,
}

/// A file of the control plane's directory, named as Kafka names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileName {
    Whole(Whole),
    /// The next content of a `Whole`, before its rename.
    Next(Whole),
    /// What older formatting tools leave the bootstrap records in (a static voter set).
    BootstrapCheckpoint,
    Log(Offset),
    Index(Offset),
    TimeIndex(Offset),
    Snapshot(SnapshotId),
    /// A snapshot that is still being written or fetched.
    Partial(SnapshotId),
}

/// A folder whose entries are made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Folder {
    Root,
    Partition,
}

impl Whole {
    const ALL: [Whole; 4] = [Whole::MetaProperties, Whole::QuorumState, Whole::LeaderEpochs, Whole::PartitionMetadata];

    fn name(self) -> &'static str {
        match self {
            Whole::MetaProperties => "meta.properties",
            Whole::QuorumState => "quorum-state",
            Whole::LeaderEpochs => "leader-epoch-checkpoint",
            Whole::PartitionMetadata => "partition.metadata",
        }
    }
}

impl FileName {
    pub fn folder(self) -> Folder {
        match self {
            FileName::Whole(Whole::MetaProperties)
            | FileName::Next(Whole::MetaProperties)
            | FileName::BootstrapCheckpoint => Folder::Root,
            _ => Folder::Partition,
        }
    }

    /// The file of that name in that folder, where it is one of the quorum's.
    pub fn parse(folder: Folder, name: &str) -> Option<FileName> {
        let file = parse_name(name)?;
        (file.folder() == folder).then_some(file)
    }
}

fn parse_name(name: &str) -> Option<FileName> {
    if name == "bootstrap.checkpoint" {
        return Some(FileName::BootstrapCheckpoint);
    }
    for whole in Whole::ALL {
        if name == whole.name() {
            return Some(FileName::Whole(whole));
        }
        if name.strip_suffix(".tmp") == Some(whole.name()) {
            return Some(FileName::Next(whole));
        }
    }
    let (stem, suffix) = name.split_once('.')?;
    match suffix {
        "log" => parse_offset(stem).map(FileName::Log),
        "index" => parse_offset(stem).map(FileName::Index),
        "timeindex" => parse_offset(stem).map(FileName::TimeIndex),
        "checkpoint" => SnapshotId::parse(stem).map(FileName::Snapshot),
        "checkpoint.part" => SnapshotId::parse(stem).map(FileName::Partial),
        _ => None,
    }
}

/// Offsets in file names have twenty digits.
fn parse_offset(digits: &str) -> Option<Offset> {
    let plain = digits.len() == 20 && digits.bytes().all(|b| b.is_ascii_digit());
    if plain { digits.parse().ok().map(Offset) } else { None }
}

/// The name inside its folder.
impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileName::Whole(whole) => f.write_str(whole.name()),
            FileName::Next(whole) => write!(f, "{}.tmp", whole.name()),
            FileName::BootstrapCheckpoint => f.write_str("bootstrap.checkpoint"),
            FileName::Log(base) => write!(f, "{:020}.log", base.0),
            FileName::Index(base) => write!(f, "{:020}.index", base.0),
            FileName::TimeIndex(base) => write!(f, "{:020}.timeindex", base.0),
            FileName::Snapshot(id) => write!(f, "{id}.checkpoint"),
            FileName::Partial(id) => write!(f, "{id}.checkpoint.part"),
        }
    }
}

/// One step of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Makes the partition's folder if it is not there.
    CreateFolder,
    /// Makes the file, or empties it.
    Create(FileName),
    /// Writes into an existing file; it grows by contiguous writes only.
    Write { file: FileName, position: u64, bytes: Bytes },
    /// Cuts the file.
    Truncate { file: FileName, length: u64 },
    /// The file's bytes and length reach the medium before the next step begins.
    Sync(FileName),
    /// Takes the place of a file of the new name.
    Rename { from: FileName, to: FileName },
    /// A file that is already gone is no error: a crash may have come between this step and the job's answer.
    Remove(FileName),
    /// The folder's entries (creations, renames, removals) reach the medium before the next step begins.
    SyncFolder(Folder),
}

/// Names a job or a read until its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Jobs of a lane are done in the order in which they came; the lanes do not wait for each other, since the sync of a
/// large snapshot must not hold up the sync of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DiskLane {
    /// The log, the election state, and everything that removes files.
    Log,
    /// Snapshots until they have their names.
    Snapshots,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskJob {
    pub ticket: Ticket,
    pub lane: DiskLane,
    pub steps: Vec<Step>,
}

/// A read of `length` bytes, or of what the file still has after `position`. Reads may pass jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskRead {
    pub ticket: Ticket,
    pub file: FileName,
    pub position: u64,
    pub length: u32,
}

/// The steps that replace a whole file so that after a crash either content is there, entire.
pub fn replace(whole: Whole, content: Bytes, steps: &mut Vec<Step>) {
    let (next, file) = (FileName::Next(whole), FileName::Whole(whole));
    steps.push(Step::Create(next));
    steps.push(Step::Write { file: next, position: 0, bytes: content });
    steps.push(Step::Sync(next));
    steps.push(Step::Rename { from: next, to: file });
    steps.push(Step::SyncFolder(file.folder()));
}

/// Where the files are read from when the quorum is loaded: before the node runs, so it may block.
pub trait Source {
    /// The quorum's files with their sizes; foreign files are not listed.
    fn list(&self) -> Result<Vec<(FileName, u64)>, std::io::Error>;
    /// `length` bytes from `position`, or what there is of them.
    fn read(&self, file: FileName, position: u64, length: usize) -> Result<Vec<u8>, std::io::Error>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::LeaderEpoch;

    #[test]
    fn names_are_kafkas_and_parse_back() {
        let id = SnapshotId { offset: Offset(68), epoch: LeaderEpoch(1) };
        for (file, name) in [
            (FileName::Whole(Whole::MetaProperties), "meta.properties"),
            (FileName::Next(Whole::QuorumState), "quorum-state.tmp"),
            (FileName::Log(Offset(0)), "00000000000000000000.log"),
            (FileName::Index(Offset(17)), "00000000000000000017.index"),
            (FileName::TimeIndex(Offset(17)), "00000000000000000017.timeindex"),
            (FileName::Snapshot(id), "00000000000000000068-0000000001.checkpoint"),
            (FileName::Partial(id), "00000000000000000068-0000000001.checkpoint.part"),
        ] {
            assert_eq!(file.to_string(), name);
            assert_eq!(FileName::parse(file.folder(), name), Some(file));
        }
        for foreign in ["", "x.log", "0.log", "0000000000000000000a.log", "00000000000000000068.snapshot", ".lock"] {
            assert_eq!(FileName::parse(Folder::Partition, foreign), None, "{foreign}");
        }
        assert_eq!(FileName::parse(Folder::Root, "quorum-state"), None, "a file counts only in its folder");
    }
}
