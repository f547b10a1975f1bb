//! Changes of the log, each with the steps that carry it to the files.

use super::{BatchFacts, Log, Segment, SnapshotFacts, TailBatch};
use crate::disk::{FileName, Folder, Step, Whole, replace};
use crate::ids::SnapshotId;
use crate::stored::encode_epochs;
use base::{LeaderEpoch, Offset};
use bytes::Bytes;

/// Where a truncation ends: the segment and the position in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CutPoint {
    pub(crate) segment: Offset,
    pub(crate) position: u64,
}

impl Log {
    fn active(&mut self) -> &mut Segment {
        self.segments.last_mut().expect("a log has a segment")
    }

    /// The segment's three files, empty and durable in their folder before anything is written into them.
    pub(crate) fn create_segment(&mut self, base: Offset, steps: &mut Vec<Step>) {
        self.segments.push(Segment::new(base));
        for file in [FileName::Log(base), FileName::Index(base), FileName::TimeIndex(base)] {
            steps.push(Step::Create(file));
        }
        steps.push(Step::SyncFolder(Folder::Partition));
    }

    /// Ends the active segment. Its bytes are synced first, so that only the last segment can have a torn end.
    fn roll(&mut self, steps: &mut Vec<Step>) {
        let end = self.end;
        let active = self.active();
        let base = active.base;
        if let Some((position, bytes)) = active.close() {
            steps.push(Step::Write { file: FileName::TimeIndex(base), position, bytes });
        }
        steps.push(Step::Sync(FileName::Log(base)));
        self.create_segment(end, steps);
    }

    /// Ends a large segment at a snapshot, so that the log before the snapshot becomes removable.
    pub(crate) fn roll_at_snapshot(&mut self, steps: &mut Vec<Step>) {
        if self.active().size >= self.limits.segment_bytes_at_snapshot {
            self.roll(steps);
        }
    }

    /// Appends one whole batch whose offsets and epoch are stamped. The caller adds the sync.
    pub(crate) fn append(&mut self, facts: BatchFacts, bytes: Bytes, steps: &mut Vec<Step>) {
        assert_eq!(facts.base, self.end, "a log has no gap");
        assert_eq!(facts.size as usize, bytes.len());
        let limits = self.limits;
        if self.active().is_full_for(&facts, limits.segment_bytes, limits.segment_age_ms) {
            self.roll(steps);
        }
        self.start_epoch(facts.epoch, facts.base, steps);
        let active = self.active();
        let (base, position) = (active.base, active.size);
        steps.push(Step::Write { file: FileName::Log(base), position, bytes: bytes.clone() });
        let growth = active.push(&facts);
        if let Some((position, bytes)) = growth.offset {
            steps.push(Step::Write { file: FileName::Index(base), position, bytes });
        }
        if let Some((position, bytes)) = growth.time {
            steps.push(Step::Write { file: FileName::TimeIndex(base), position, bytes });
        }
        self.end = facts.last.plus(1);
        self.tail.push(TailBatch { facts, segment: base, position, bytes: Some(bytes) });
    }

    pub(crate) fn sync_active(&mut self, steps: &mut Vec<Step>) {
        steps.push(Step::Sync(FileName::Log(self.active().base)));
    }

    /// A leader notes its epoch's start when it takes over, a follower at the first batch of a higher epoch.
    pub(crate) fn start_epoch(&mut self, epoch: LeaderEpoch, start: Offset, steps: &mut Vec<Step>) {
        if self.epochs.start(epoch, start) {
            self.store_epochs(steps);
        }
    }

    fn store_epochs(&self, steps: &mut Vec<Step>) {
        replace(Whole::LeaderEpochs, encode_epochs(self.epochs.entries()), steps);
    }

    /// Where the log would be cut to end at `end`, where that is known without reading: a cut is at the start of a batch,
    /// and all batches above what is committed are in the tail.
    pub(crate) fn cut_point(&self, end: Offset) -> Option<CutPoint> {
        let batch = self.tail.get(end)?;
        (batch.facts.base == end).then_some(CutPoint { segment: batch.segment, position: batch.position })
    }

    /// Cuts the log to end at `end`. Newer segments go first, newest first and each for good before the next, so that a
    /// crash between leaves no gap: without a snapshot beyond it, a gap is damage.
    pub(crate) fn truncate_to(&mut self, end: Offset, at: CutPoint, steps: &mut Vec<Step>) {
        while self.segments.last().is_some_and(|s| s.base > at.segment) {
            let segment = self.segments.pop().expect("just seen");
            remove_segment(segment.base, steps);
            steps.push(Step::SyncFolder(Folder::Partition));
        }
        let active = self.active();
        assert_eq!(active.base, at.segment, "the cut is in a segment of this log");
        active.truncate(at.position, end);
        let base = active.base;
        let (index, times) = (active.encode_index().len() as u64, active.encode_times().len() as u64);
        steps.push(Step::Truncate { file: FileName::Index(base), length: index });
        steps.push(Step::Truncate { file: FileName::TimeIndex(base), length: times });
        steps.push(Step::Truncate { file: FileName::Log(base), length: at.position });
        steps.push(Step::Sync(FileName::Log(base)));
        self.end = end;
        self.tail.truncate_to(end);
        self.generation += 1;
        if self.epochs.truncate_to(end) {
            self.store_epochs(steps);
        }
    }

    /// Drops the whole log for a snapshot that is beyond its end, and starts again there. After a crash whatever is left
    /// ends below the snapshot, and loading finishes the work.
    pub(crate) fn restart_at(&mut self, id: SnapshotId, steps: &mut Vec<Step>) {
        assert!(self.snapshots.contains_key(&id), "the snapshot is in place before the log goes");
        while let Some(segment) = self.segments.pop() {
            remove_segment(segment.base, steps);
        }
        steps.push(Step::SyncFolder(Folder::Partition));
        self.epochs.clear();
        self.tail.truncate_to(Offset(i64::MIN));
        self.start = id.offset;
        self.end = id.offset;
        self.generation += 1;
        self.store_epochs(steps);
        self.create_segment(id.offset, steps);
        self.drop_snapshots_before(id, steps);
    }

    pub(crate) fn add_snapshot(&mut self, id: SnapshotId, facts: SnapshotFacts) {
        self.snapshots.insert(id, facts);
    }

    /// Moves the log's start up to a snapshot that is durable, and removes the segments and snapshots wholly below it.
    pub(crate) fn drop_before(&mut self, id: SnapshotId, steps: &mut Vec<Step>) {
        assert!(self.snapshots.contains_key(&id), "the log starts after a snapshot");
        assert!(id.offset <= self.end, "the log's start is not beyond its end");
        if id.offset > self.start {
            self.start = id.offset;
        }
        let mut removed = false;
        while self.segments.len() > 1 && self.segments[1].base <= self.start {
            let segment = self.segments.remove(0);
            remove_segment(segment.base, steps);
            removed = true;
        }
        if removed {
            self.generation += 1;
        }
        self.drop_snapshots_before(id, steps);
        if self.epochs.drop_before(self.start) {
            self.store_epochs(steps);
        }
    }

    fn drop_snapshots_before(&mut self, id: SnapshotId, steps: &mut Vec<Step>) {
        while let Some(first) = self.earliest_snapshot().filter(|first| *first < id) {
            self.snapshots.remove(&first);
            steps.push(Step::Remove(FileName::Snapshot(first)));
        }
    }
}

/// The log file goes before its indexes, which alone are nothing to loading.
fn remove_segment(base: Offset, steps: &mut Vec<Step>) {
    for file in [FileName::Log(base), FileName::Index(base), FileName::TimeIndex(base)] {
        steps.push(Step::Remove(file));
    }
}

/// Rebuilding from the files, at load: no steps.
impl Log {
    /// Forgets what was read so far: it lies before a gap, which a snapshot covers.
    pub(crate) fn begin_again_at(&mut self, base: Offset, steps: &mut Vec<Step>) {
        for segment in std::mem::take(&mut self.segments) {
            remove_segment(segment.base, steps);
        }
        self.epochs.clear();
        self.tail.truncate_to(Offset(i64::MIN));
        self.start = base;
        self.end = base;
        while let Some(first) = self.earliest_snapshot().filter(|first| first.offset < base) {
            self.snapshots.remove(&first);
            steps.push(Step::Remove(FileName::Snapshot(first)));
        }
    }

    pub(crate) fn open_segment(&mut self, base: Offset) {
        assert_eq!(base, self.end, "segments follow each other");
        if let Some(previous) = self.segments.last_mut() {
            previous.close();
        }
        self.segments.push(Segment::new(base));
    }

    pub(crate) fn active_base(&self) -> Offset {
        self.segments.last().expect("a segment was opened").base
    }

    /// Takes a batch in as the files have it; `in_tail` where it is still to be replayed.
    pub(crate) fn load_batch(&mut self, facts: BatchFacts, in_tail: bool, bytes: Option<Bytes>) {
        self.epochs.start(facts.epoch, facts.base);
        let active = self.active();
        let (segment, position) = (active.base, active.size);
        active.push(&facts);
        self.end = facts.last.plus(1);
        if in_tail {
            self.tail.push(TailBatch { facts, segment, position, bytes });
        }
    }

    /// What the index files should hold.
    pub(crate) fn index_files(&self) -> Vec<(FileName, Bytes)> {
        let both = |s: &Segment| {
            [(FileName::Index(s.base), s.encode_index()), (FileName::TimeIndex(s.base), s.encode_times())]
        };
        self.segments.iter().flat_map(both).collect()
    }
}
