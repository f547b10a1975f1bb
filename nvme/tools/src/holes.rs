//! Bytes of extents that cannot be read any more: found by reading every extent, given up by a repair that was told to.

use crate::check;
use crate::error::ToolError;
use crate::extents;
use crate::image::ShardImage;
use crate::repair::Loss;
use crate::session::Session;
use crate::source::Source;
use base::{Offset, PartitionId, Tenancy};
use nvme_format::blob::{GivenUp, PartitionBlob};
use nvme_log::{ChangeError, LogEvent, LogSlot, TruncateOutcome};
use nvme_plan::Namespace;

/// Ranges of one record: it has to fit the smallest ring's commits.
const RANGES_A_RECORD: usize = 256;

/// What of one extent cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hole {
    tenancy: Tenancy,
    ranges: Vec<GivenUp>,
}

/// What of one partition cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holes {
    partition: PartitionId,
    holes: Vec<Hole>,
    /// Nothing that can be read follows from here on: the log ends here, so that nobody waits for what will not come.
    cut: Option<Offset>,
    end: Offset,
}

/// What cannot be read of the partitions, and what is wrong beside that, which no repair mends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub holes: Vec<Holes>,
    pub left: Vec<String>,
}

pub(crate) fn find<S: Source>(source: &mut S, shards: &[ShardImage]) -> Found {
    let mut found = Found::default();
    for blob in check::usable(shards).iter().flat_map(|(_, image)| image.partitions()) {
        let (_, faults) = extents::verify(source, blob, &mut |_, _| {});
        let mut holes: Vec<Hole> = Vec::new();
        for fault in faults {
            let Some((tenancy, range)) = fault.unreadable else {
                found.left.push(format!("partition {}: from offset {} on: {}", blob.id, fault.from, fault.text));
                continue;
            };
            match holes.last_mut() {
                Some(hole) if hole.tenancy == tenancy => add(&mut hole.ranges, range),
                _ => holes.push(Hole { tenancy, ranges: vec![range] }),
            }
        }
        if !holes.is_empty() {
            let (cut, end) = (cut_of(blob, &holes), blob.end);
            found.holes.push(Holes { partition: blob.id, holes, cut, end });
        }
    }
    found
}

/// Pieces of one batch name the same range; those that follow each other are one.
fn add(ranges: &mut Vec<GivenUp>, range: GivenUp) {
    match ranges.last_mut() {
        Some(last) if last.to >= range.from => {
            (last.to, last.next) = (last.to.max(range.to), last.next.max(range.next))
        }
        _ => ranges.push(range),
    }
}

/// Where the log has to end so that something readable comes last.
fn cut_of(blob: &PartitionBlob, holes: &[Hole]) -> Option<Offset> {
    let before = blob.extents.iter().flat_map(|extent| &extent.given_up);
    let now = holes.iter().flat_map(|hole| &hole.ranges);
    let mut ranges: Vec<&GivenUp> = before.chain(now).collect();
    ranges.sort_by_key(|range| range.first);
    let mut end = blob.end;
    while let Some(last) = ranges.pop().filter(|last| last.next == end) {
        end = last.first;
    }
    (end < blob.end).then_some(end.max(blob.log_start))
}

impl Holes {
    /// What is lost, by offsets.
    pub fn losses(&self) -> Vec<Loss> {
        let mut losses: Vec<(Offset, Offset)> = Vec::new();
        for range in self.holes.iter().flat_map(|hole| &hole.ranges) {
            match losses.last_mut() {
                Some((_, to)) if *to == range.first => *to = range.next,
                _ => losses.push((range.first, range.next)),
            }
        }
        let partition = self.partition.to_string();
        let loss = |(from, to): (Offset, Offset)| {
            let ends_log = self.cut.is_some() && to == self.end;
            Loss::Offsets { partition: partition.clone(), from: from.0, to: to.0, ends_log }
        };
        losses.into_iter().map(loss).collect()
    }

    pub fn give_up<N: Namespace>(&self, session: &mut Session<'_, N>) -> Result<(), ToolError> {
        let slot = session.store.find(self.partition).ok_or(ToolError::NoPartition(self.partition))?;
        let failed = |error: ChangeError| ToolError::Damaged(format!("partition {}: {error}", self.partition));
        for Hole { tenancy, ranges } in &self.holes {
            for ranges in ranges.chunks(RANGES_A_RECORD) {
                loop {
                    match session.store.give_up(slot, *tenancy, ranges) {
                        Ok(()) => break,
                        Err(ChangeError::Pressure) => session.turn()?,
                        Err(error) => return Err(failed(error)),
                    }
                }
            }
        }
        match self.cut {
            Some(to) => cut(session, slot, to, failed),
            None => Ok(()),
        }
    }
}

fn cut<N: Namespace>(
    session: &mut Session<'_, N>,
    slot: LogSlot,
    to: Offset,
    failed: impl Fn(ChangeError) -> ToolError,
) -> Result<(), ToolError> {
    loop {
        let now = session.now();
        match session.store.truncate(now, slot, to) {
            Ok(TruncateOutcome::Done) => return Ok(()),
            Ok(TruncateOutcome::Reading) => break,
            Err(ChangeError::Pressure) => session.turn()?,
            Err(error) => return Err(failed(error)),
        }
    }
    loop {
        let is_end = |event: &LogEvent| matches!(event, LogEvent::Truncated { slot: done, .. } if *done == slot);
        if let Some(index) = session.events.iter().position(is_end)
            && let LogEvent::Truncated { result, .. } = session.events.remove(index)
        {
            return result.map(drop).map_err(|error| ToolError::Damaged(format!("at offset {to}: {error}")));
        }
        session.turn()?;
    }
}
