//! Snapshots of this node's own state: written beside the log, synced, renamed; only then does the log's start move.

use crate::config::BATCH_BYTES_MAX;
use crate::disk::{DiskLane, FileName, Folder, Step};
use crate::ids::{OffsetAndEpoch, SnapshotId};
use crate::jobs::Purpose;
use crate::log::{FetchPosition, SnapshotFacts};
use crate::quorum::{Delivery, Quorum};
use crate::records::{self, CommittedBatch, Control, RECORD_OVERHEAD_MAX};
use base::{LeaderEpoch, Monotonic, Now, Offset, WallMillis};
use batch::HEADER_SIZE;
use bytes::Bytes;
use std::time::Duration;

/// How often snapshots are looked over for retention by age.
const CLEAN_EVERY: Duration = Duration::from_secs(60);

/// A snapshot cannot be written now, or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    #[error("another snapshot is being written")]
    Busy,
    #[error("a snapshot at {0} is already there, or was overtaken")]
    Superseded(SnapshotId),
    #[error("{0} is not the end of a committed batch of this log")]
    NotCommitted(SnapshotId),
    #[error("no snapshot is being written")]
    NotBegun,
}

/// Why a snapshot is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotReason {
    Bytes,
    Age,
}

#[derive(Debug)]
struct Writing {
    id: SnapshotId,
    last_time: WallMillis,
    position: u64,
    next: Offset,
}

#[derive(Debug, Default)]
pub(crate) struct Snapshotting {
    writing: Option<Writing>,
    /// Finished, on its way to its name.
    finishing: Option<Writing>,
    bytes_since: u64,
    last_at: Monotonic,
    clean_at: Monotonic,
}

impl Snapshotting {
    pub(crate) fn new(now: Now) -> Snapshotting {
        let clean_at = now.monotonic + CLEAN_EVERY;
        Snapshotting { last_at: now.monotonic, clean_at, ..Snapshotting::default() }
    }

    pub(crate) fn count_committed(&mut self, batch: &CommittedBatch) {
        self.bytes_since += u64::from(batch.size);
    }
}

impl Quorum {
    /// Whether the states above should write a snapshot of what they have.
    pub fn snapshot_due(&self, now: Now) -> Option<SnapshotReason> {
        let state = &self.snapshotting;
        if state.writing.is_some() || state.finishing.is_some() || state.bytes_since == 0 {
            return None;
        }
        if state.bytes_since >= self.config.snapshots.bytes_between {
            Some(SnapshotReason::Bytes)
        } else if now.monotonic.since(state.last_at) >= self.config.snapshots.interval {
            Some(SnapshotReason::Age)
        } else {
            None
        }
    }

    /// Begins a snapshot of the state after the batch that ends before `id.offset`, whose epoch is `id.epoch` and which
    /// was appended at `last_time`.
    pub fn begin_snapshot(&mut self, id: SnapshotId, last_time: WallMillis, now: Now) -> Result<(), SnapshotError> {
        if self.snapshotting.writing.is_some() || self.snapshotting.finishing.is_some() {
            return Err(SnapshotError::Busy);
        }
        if self.log.latest_snapshot().is_some_and(|latest| latest >= id) {
            return Err(SnapshotError::Superseded(id));
        }
        let committed = self.high_watermark.is_some_and(|watermark| id.offset <= watermark);
        if !committed
            || !self.log.may_end_batch(id.offset)
            || self.log.validate(id.offset, id.epoch) != FetchPosition::Valid
        {
            return Err(SnapshotError::NotCommitted(id));
        }
        let header = snapshot_header(
            id.epoch,
            last_time,
            self.membership.kraft_version_before(id.offset),
            self.membership.voters_before(id.offset),
            now.wall,
        );
        let mut writing = Writing { id, last_time, position: 0, next: Offset::ZERO };
        let mut steps = vec![Step::Create(FileName::Partial(id))];
        writing.push(header, &mut steps);
        self.snapshotting.writing = Some(writing);
        self.run(DiskLane::Snapshots, steps);
        Ok(())
    }

    /// Adds encoded metadata records to the snapshot, cut into batches.
    pub fn append_snapshot(&mut self, records: &[Bytes], now: Now) -> Result<(), SnapshotError> {
        let Some(writing) = &mut self.snapshotting.writing else { return Err(SnapshotError::NotBegun) };
        let mut steps = Vec::new();
        for batch in batches(records) {
            writing.push(records::build(writing.next, writing.id.epoch, now.wall, batch), &mut steps);
        }
        if !steps.is_empty() {
            self.run(DiskLane::Snapshots, steps);
        }
        Ok(())
    }

    /// Ends the snapshot; `Delivery::SnapshotWritten` tells when it is in place.
    pub fn finish_snapshot(&mut self, now: Now) -> Result<(), SnapshotError> {
        let Some(mut writing) = self.snapshotting.writing.take() else { return Err(SnapshotError::NotBegun) };
        let mut steps = Vec::new();
        let id = writing.id;
        writing.push(snapshot_footer(writing.next, id.epoch, now.wall), &mut steps);
        place_snapshot(id, &mut steps);
        let ticket = self.run(DiskLane::Snapshots, steps);
        self.jobs.expect(ticket, Purpose::Snapshot(id));
        self.snapshotting.finishing = Some(writing);
        Ok(())
    }

    /// Gives a begun snapshot up.
    pub fn abandon_snapshot(&mut self) {
        if let Some(writing) = self.snapshotting.writing.take() {
            self.run(DiskLane::Snapshots, vec![Step::Remove(FileName::Partial(writing.id))]);
        }
    }

    pub(crate) fn on_snapshot_written(&mut self, id: SnapshotId, now: Now) {
        let written = self.snapshotting.finishing.take().expect("one snapshot was on its way");
        assert_eq!(written.id, id);
        self.snapshotting.bytes_since = 0;
        self.snapshotting.last_at = now.monotonic;
        let mut steps = Vec::new();
        if id.offset < self.log.start() {
            // A later one of the leader came in between.
            steps.push(Step::Remove(FileName::Snapshot(id)));
        } else {
            self.log.add_snapshot(id, SnapshotFacts { size: written.position, last_time: written.last_time });
            self.log.roll_at_snapshot(&mut steps);
            self.clean(now, &mut steps);
        }
        if !steps.is_empty() {
            let ticket = self.run(DiskLane::Log, steps);
            self.jobs.expect(ticket, Purpose::Housekeeping);
        }
        self.deliver(Delivery::SnapshotWritten { id });
    }

    pub(crate) fn poll_snapshots(&mut self, now: Now) {
        if now.monotonic >= self.snapshotting.clean_at {
            self.snapshotting.clean_at = now.monotonic + CLEAN_EVERY;
            let mut steps = Vec::new();
            self.clean(now, &mut steps);
            if !steps.is_empty() {
                self.run(DiskLane::Log, steps);
            }
        }
    }

    pub(crate) fn clean_deadline(&self) -> Option<Monotonic> {
        // Without a second snapshot there is nothing that could go.
        (self.log.earliest_snapshot() != self.log.latest_snapshot()).then_some(self.snapshotting.clean_at)
    }

    /// Moves the log's start to a later snapshot while the oldest is beyond retention, as far as it is not being read.
    fn clean(&mut self, now: Now, steps: &mut Vec<Step>) {
        let policy = self.config.snapshots;
        while let Some((oldest, next)) = self.log.two_oldest_snapshots() {
            let facts = self.log.snapshot(oldest).expect("just listed");
            let size = self.log.size() + self.log.snapshots_size();
            let age = u128::try_from(now.wall.0.saturating_sub(facts.last_time.0)).unwrap_or(0);
            let due = size > policy.retention_bytes || age > policy.retention.as_millis();
            if !due || self.feed.delivered().is_none_or(|delivered| delivered < next.offset) {
                return;
            }
            self.log.drop_before(next, steps);
            self.membership.drop_before(self.log.start());
        }
    }
}

impl Writing {
    fn push(&mut self, batch: Bytes, steps: &mut Vec<Step>) {
        let facts = records::check(&batch).expect("a batch just built");
        let position = self.position;
        self.position += batch.len() as u64;
        self.next = facts.last.plus(1);
        steps.push(Step::Write { file: FileName::Partial(self.id), position, bytes: batch });
    }
}

/// The steps that give a complete snapshot its name.
pub(crate) fn place_snapshot(id: SnapshotId, steps: &mut Vec<Step>) {
    let (from, to) = (FileName::Partial(id), FileName::Snapshot(id));
    steps.push(Step::Sync(from));
    steps.push(Step::Rename { from, to });
    steps.push(Step::SyncFolder(Folder::Partition));
}

/// The first batch of a snapshot: header, and the membership as of its end where the cluster keeps that in its log.
pub(crate) fn snapshot_header(
    epoch: LeaderEpoch,
    last_time: WallMillis,
    kraft_version: i16,
    voters: &crate::ids::VoterSet,
    at: WallMillis,
) -> Bytes {
    let mut controls = vec![Control::SnapshotHeader { last_time }];
    if kraft_version > 0 {
        controls.push(Control::KRaftVersion(kraft_version));
        if !voters.is_empty() {
            controls.push(Control::Voters(voters.clone()));
        }
    }
    records::build_control(Offset::ZERO, epoch, at, &controls)
}

pub(crate) fn snapshot_footer(next: Offset, epoch: LeaderEpoch, at: WallMillis) -> Bytes {
    records::build_control(next, epoch, at, &[Control::SnapshotFooter])
}

/// Cuts records into runs that fit into a batch each; a record larger than a batch stands alone.
pub(crate) fn batches(records: &[Bytes]) -> impl Iterator<Item = &[Bytes]> {
    let mut rest = records;
    std::iter::from_fn(move || {
        let mut size = HEADER_SIZE;
        let mut count = 0;
        for record in rest {
            size += record.len() + RECORD_OVERHEAD_MAX;
            if count > 0 && size > BATCH_BYTES_MAX {
                break;
            }
            count += 1;
        }
        let (batch, after) = rest.split_at(count);
        rest = after;
        (!batch.is_empty()).then_some(batch)
    })
}

/// The end of a committed batch, as a snapshot of the state after it is named.
pub fn snapshot_id(batch: &CommittedBatch) -> SnapshotId {
    OffsetAndEpoch { offset: batch.last_offset.plus(1), epoch: batch.epoch }
}
