//! What a check says: findings, their weight, and one status for the whole.

use serde::Serialize;
use std::fmt;

/// How much a finding weighs; the heaviest decides the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The next opening puts it right, and nothing is lost.
    Recoverable,
    /// A partition is refused from an offset on until it is repaired or its loss accepted.
    Suspect,
    /// Something is lost, contradicts itself, or keeps the namespace from opening.
    Damage,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub severity: Severity,
    /// Where: a superblock copy, a lane, a shard, a partition.
    pub place: String,
    pub text: String,
    /// The partition it concerns, and from which of its offsets on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<i64>,
}

impl Finding {
    pub(crate) fn new(severity: Severity, place: impl Into<String>, text: impl Into<String>) -> Finding {
        Finding { severity, place: place.into(), text: text.into(), partition: None, from: None }
    }

    pub(crate) fn at(mut self, partition: base::PartitionId, from: base::Offset) -> Finding {
        self.partition = Some(partition.to_string());
        self.from = Some(from.0);
        self
    }
}

/// One lane's journal as the walk found it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LaneReport {
    pub lane: u16,
    pub first_sequence: u64,
    pub commits: u64,
    pub records: u64,
    pub markers: u64,
    pub durable: u64,
    pub next_sequence: u64,
    pub breaks: usize,
    /// `stopped`, `quiet`, `in flight`, `whole ring`, `unread`.
    pub end: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SuspectPartition {
    pub partition: String,
    /// Records from here on may be lost.
    pub from: i64,
    /// Where the log would end once the loss is accepted.
    pub end: i64,
}

/// Offsets that an operator gave up before: `from` and those up to `to`, which is the first behind them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GivenUpOffsets {
    pub partition: String,
    pub from: i64,
    pub to: i64,
}

/// What the next opening will find: it was rehearsed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Prediction {
    pub opens: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub clean: bool,
    pub commits: u64,
    pub partitions: usize,
    /// Commits that are void because their data never reached the medium; nobody was told of them.
    pub rejected: Vec<(u16, u64)>,
    /// Shards recovered from the checkpoint before the newest.
    pub older_checkpoints: Vec<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Clean,
    /// The last run did not stop cleanly, or a copy has to be written anew: opening does it, nothing is lost.
    Recoverable,
    Suspect,
    Damaged,
}

impl Status {
    /// What a process that ends with this status returns.
    pub fn exit_code(self) -> u8 {
        match self {
            Status::Clean => 0,
            Status::Recoverable => 1,
            Status::Suspect => 2,
            Status::Damaged => 3,
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Status::Clean => "clean",
            Status::Recoverable => "recoverable",
            Status::Suspect => "suspect",
            Status::Damaged => "damaged",
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckReport {
    pub status: Status,
    pub namespace: String,
    pub directory: String,
    pub cluster: String,
    pub node: i32,
    pub superblock_sequence: u64,
    /// Extents were not read.
    pub quick: bool,
    pub lanes: Vec<LaneReport>,
    pub prediction: Prediction,
    pub suspects: Vec<SuspectPartition>,
    pub findings: Vec<Finding>,
    /// What is missing, and known to be: no finding.
    pub given_up: Vec<GivenUpOffsets>,
    pub extents: u64,
    pub stretches: u64,
    pub batches: u64,
    pub bytes: u64,
}

impl CheckReport {
    pub(crate) fn judge(&mut self) {
        let heaviest = self.findings.iter().map(|finding| finding.severity).max();
        self.status = match heaviest {
            Some(Severity::Damage) => Status::Damaged,
            Some(Severity::Suspect) => Status::Suspect,
            Some(Severity::Recoverable) => Status::Recoverable,
            None => Status::Clean,
        };
    }
}

impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "namespace {} (directory {}, cluster {}, node {})",
            self.namespace, self.directory, self.cluster, self.node
        )?;
        for lane in &self.lanes {
            writeln!(
                f,
                "lane {}: {} commits from {} on, {} records, {} markers, durable to {}, {} breaks, end: {}",
                lane.lane,
                lane.commits,
                lane.first_sequence,
                lane.records,
                lane.markers,
                lane.durable,
                lane.breaks,
                lane.end
            )?;
        }
        if self.quick {
            writeln!(f, "extents were not read")?;
        } else {
            writeln!(
                f,
                "read {} bytes in {} stretches of {} extents: {} batches",
                self.bytes, self.stretches, self.extents, self.batches
            )?;
        }
        for finding in &self.findings {
            let severity = match finding.severity {
                Severity::Recoverable => "recoverable",
                Severity::Suspect => "suspect",
                Severity::Damage => "damage",
            };
            writeln!(f, "{severity}: {}: {}", finding.place, finding.text)?;
        }
        for given_up in &self.given_up {
            let GivenUpOffsets { partition, from, to } = given_up;
            writeln!(f, "given up before: partition {partition}: offsets {from} to {}", to - 1)?;
        }
        match &self.prediction.error {
            Some(error) => writeln!(f, "the next start fails: {error}")?,
            None => writeln!(
                f,
                "the next start replays {} commits and finds {} partitions, {} of them suspect",
                self.prediction.commits,
                self.prediction.partitions,
                self.suspects.len()
            )?,
        }
        writeln!(f, "status: {}", self.status)
    }
}
