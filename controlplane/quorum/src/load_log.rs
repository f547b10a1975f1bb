//! Reading the log's segments at load: every batch is checked, a torn end is cut, damage elsewhere is reported, indexes
//! are compared with what they should be.

use crate::config::{BATCH_BYTES_MAX, BATCHES_WAITING_MAX};
use crate::disk::{FileName, Folder, Source, Step, Whole, replace};
use crate::ids::SnapshotId;
use crate::load::{LoadError, LoadReport, read};
use crate::log::{BatchFacts, Log, LogLimits, SnapshotFacts};
use crate::membership::Membership;
use crate::records;
use crate::stored::encode_epochs;
use base::{LeaderEpoch, Offset, WallMillis};
use batch::{BatchError, BatchView, HEADER_SIZE};
use bytes::Bytes;
use std::collections::BTreeMap;

/// How much of the log after the latest snapshot stays in memory for the replay that follows; the rest is read again.
const KEPT_BYTES_MAX: usize = 32 << 20;
/// How much is read at a time.
const PIECE: u64 = 1 << 20;
/// More than this is never on its way to the disk unsynced, so a longer invalid end is no torn write.
const UNSYNCED_MAX: u64 = (BATCH_BYTES_MAX * BATCHES_WAITING_MAX) as u64;
/// Records that were appended this much after the last good batch were appended after it was synced.
const SYNC_TIME_MAX_MS: i64 = 60_000;

pub(crate) struct Scanned {
    pub(crate) log: Log,
    pub(crate) report: LoadReport,
}

struct Scanner<'a> {
    source: &'a dyn Source,
    log: Log,
    report: LoadReport,
    membership: &'a mut Membership,
    kept: usize,
    /// The end of the latest snapshot: what lies before is not replayed.
    replay_from: Offset,
    last: Option<(LeaderEpoch, WallMillis)>,
}

pub(crate) fn scan_log(
    source: &dyn Source,
    files: &BTreeMap<FileName, u64>,
    mut snapshots: BTreeMap<SnapshotId, SnapshotFacts>,
    limits: LogLimits,
    membership: &mut Membership,
    steps: &mut Vec<Step>,
) -> Result<Scanned, LoadError> {
    let segments: Vec<(Offset, u64)> = files
        .iter()
        .filter_map(|(f, size)| if let FileName::Log(base) = f { Some((*base, *size)) } else { None })
        .collect();
    remove_orphans(files, steps);
    let log_start = segments.first().map(|(base, _)| *base);
    if let Some(start) = log_start {
        // A snapshot that ends before the log's start is left over from a removal that did not come to its end.
        while let Some((id, _)) =
            snapshots.first_key_value().map(|(id, f)| (*id, *f)).filter(|(id, _)| id.offset < start)
        {
            snapshots.remove(&id);
            steps.push(Step::Remove(FileName::Snapshot(id)));
        }
        if start > Offset::ZERO && snapshots.is_empty() {
            return Err(LoadError::NoSnapshot { log_start: start });
        }
    }
    let latest = snapshots.last_key_value().map(|(id, _)| *id);
    let start = log_start.or(latest.map(|id| id.offset)).unwrap_or(Offset::ZERO);
    let mut scanner = Scanner {
        source,
        report: LoadReport { snapshots: snapshots.len() as u32, ..LoadReport::default() },
        log: Log::new(start, snapshots, limits),
        membership,
        kept: 0,
        replay_from: latest.map_or(start, |id| id.offset),
        last: None,
    };
    for (i, (base, size)) in segments.iter().enumerate() {
        scanner.segment(*base, *size, i + 1 == segments.len(), steps)?;
    }
    if segments.is_empty() {
        scanner.log.create_segment(start, steps);
    }
    scanner.finish(files, latest, steps)?;
    Ok(Scanned { log: scanner.log, report: scanner.report })
}

/// Index files whose log file is gone: a removal that did not come to its end.
fn remove_orphans(files: &BTreeMap<FileName, u64>, steps: &mut Vec<Step>) {
    for file in files.keys() {
        if let FileName::Index(base) | FileName::TimeIndex(base) = file
            && !files.contains_key(&FileName::Log(*base))
        {
            steps.push(Step::Remove(*file));
        }
    }
}

impl Scanner<'_> {
    fn segment(&mut self, base: Offset, size: u64, is_last: bool, steps: &mut Vec<Step>) -> Result<(), LoadError> {
        let file = FileName::Log(base);
        let end = self.log.end().offset;
        // Of segments that were removed for a snapshot, any may be left after a power cut. Any other gap is a loss.
        let is_covered = self.log.latest_snapshot().is_some_and(|id| id.offset >= base);
        if base > end && is_covered {
            self.log.begin_again_at(base, steps);
            self.last = None;
        } else if base != end {
            return Err(damaged(file, 0, format!("it begins at {base}, the log before it ends at {end}")));
        }
        self.log.open_segment(base);
        let (good, reason) = self.batches(file, size)?;
        let Some(reason) = reason else { return Ok(()) };
        if !is_last {
            return Err(damaged(file, good, reason));
        }
        self.check_torn(file, good, size, &reason)?;
        self.report.torn_bytes = size - good;
        steps.push(Step::Truncate { file, length: good });
        Ok(())
    }

    /// Reads batches until the end of the file, or the first that is not one: its position, and why.
    fn batches(&mut self, file: FileName, size: u64) -> Result<(u64, Option<String>), LoadError> {
        let mut position = 0;
        let mut want = PIECE;
        while position < size {
            let bytes = Bytes::from(read(self.source, file, position, want.min(size - position))?);
            let mut used = 0;
            loop {
                let rest = &bytes[used..];
                match BatchView::parse(rest) {
                    Ok((view, _)) => match self.batch(view, &bytes) {
                        Ok(()) => used += view.size(),
                        Err(reason) => return Ok((position + used as u64, Some(reason))),
                    },
                    Err(BatchError::Incomplete { need, .. }) => {
                        let at = position + used as u64;
                        if at + need as u64 > size && at < size && (rest.len() as u64) == size - at {
                            return Ok((at, Some("the file ends inside a batch".into())));
                        }
                        want = PIECE.max(need as u64);
                        break;
                    }
                    Err(error) => return Ok((position + used as u64, Some(error.to_string()))),
                }
            }
            position += used as u64;
        }
        Ok((position, None))
    }

    fn batch(&mut self, view: BatchView<'_>, bytes: &Bytes) -> Result<(), String> {
        view.check_crc().and_then(|()| view.check_counts()).map_err(|e| e.to_string())?;
        let facts = records::facts(&view).map_err(|e| e.to_string())?;
        let end = self.log.end().offset;
        if facts.base != end {
            return Err(format!("offset {} where {end} was to follow", facts.base));
        }
        if facts.last.0 - self.log.active_base().0 > i64::from(i32::MAX) {
            return Err(format!("offset {} is beyond a segment's reach", facts.last));
        }
        if self.last.is_some_and(|(epoch, _)| facts.epoch < epoch) {
            return Err(format!("epoch {} after a higher one", facts.epoch));
        }
        if view.is_control() {
            for (offset, control) in records::controls(view.bytes()).map_err(|e| e.to_string())? {
                // The snapshot's own membership already covers what lies before its end.
                if offset >= self.replay_from {
                    self.membership.note(offset, &control);
                }
            }
        }
        let keep = facts.last >= self.replay_from && self.kept < KEPT_BYTES_MAX;
        let kept = keep.then(|| Bytes::copy_from_slice(view.bytes()));
        debug_assert!(bytes.len() >= view.size());
        self.kept += kept.as_ref().map_or(0, Bytes::len);
        self.log.load_batch(facts, facts.last >= self.replay_from, kept);
        self.last = Some((facts.epoch, facts.max_time));
        self.report.batches += 1;
        Ok(())
    }

    /// An end that is not whole may be cut only if it can be a write that was never synced. Good batches behind the bad
    /// one that are of a later time, or of a later epoch, show that it was, and that acknowledged records were lost.
    fn check_torn(&self, file: FileName, good: u64, size: u64, reason: &str) -> Result<(), LoadError> {
        if size - good > UNSYNCED_MAX {
            return Err(damaged(file, good, reason));
        }
        let rest = read(self.source, file, good, size - good)?;
        let end = self.log.end().offset;
        for at in 1..rest.len().saturating_sub(HEADER_SIZE) {
            let Some(found) = batch_at(&rest[at..], end) else { continue };
            let later = self.last.is_some_and(|(epoch, time)| {
                found.epoch > epoch || found.max_time.0.saturating_sub(time.0) > SYNC_TIME_MAX_MS
            });
            if later {
                return Err(damaged(
                    file,
                    good,
                    format!("{reason}, and good batches follow from offset {}", found.base),
                ));
            }
            break;
        }
        Ok(())
    }

    fn finish(
        &mut self,
        files: &BTreeMap<FileName, u64>,
        latest: Option<SnapshotId>,
        steps: &mut Vec<Step>,
    ) -> Result<(), LoadError> {
        // A follower that fetched a snapshot and stopped before its log began anew.
        match latest {
            Some(id) if id.offset > self.log.end().offset || self.is_behind(id) => {
                self.log.restart_at(id, steps);
                return Ok(());
            }
            _ => (),
        }
        for (file, expected) in self.log.index_files() {
            let there = match files.get(&file) {
                Some(size) if *size == expected.len() as u64 => read(self.source, file, 0, *size)? == expected[..],
                _ => false,
            };
            if !there {
                self.report.indexes_rebuilt += 1;
                steps.push(Step::Create(file));
                if !expected.is_empty() {
                    steps.push(Step::Write { file, position: 0, bytes: expected });
                }
            }
        }
        let epochs = encode_epochs(self.log.epochs().entries());
        let file = FileName::Whole(Whole::LeaderEpochs);
        let there = match files.get(&file) {
            Some(size) => read(self.source, file, 0, *size)? == epochs[..],
            None => false,
        };
        if !there {
            replace(Whole::LeaderEpochs, epochs, steps);
        }
        steps.push(Step::SyncFolder(Folder::Partition));
        Ok(())
    }

    fn is_behind(&self, id: SnapshotId) -> bool {
        self.log.epochs().latest().is_some_and(|epoch| id.epoch > epoch)
    }
}

/// A whole, good batch that begins here and can follow a log that ends at `end`.
fn batch_at(bytes: &[u8], end: Offset) -> Option<BatchFacts> {
    // Cheap before dear: the magic byte, then the framing, then the checksum.
    if bytes.get(16) != Some(&2) {
        return None;
    }
    let (view, _) = BatchView::parse(bytes).ok()?;
    if view.base_offset() < end || view.check_crc().is_err() || view.check_counts().is_err() {
        return None;
    }
    records::facts(&view).ok()
}

fn damaged(file: FileName, position: u64, reason: impl std::fmt::Display) -> LoadError {
    LoadError::Damaged { file, position, reason: reason.to_string() }
}
