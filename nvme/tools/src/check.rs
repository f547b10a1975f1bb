//! `check`: reads everything, changes nothing, and says what the next opening will find.

use crate::blobs::{DirectoryImage, Part};
use crate::error::ToolError;
use crate::extents;
use crate::image::{self, CopyState, ShardImage, SlotState, Superblocks};
use crate::journal::{self, End, Start, Walk};
use crate::overlay::Overlay;
use crate::ownership;
use crate::rehearsal;
use crate::report::{CheckReport, Finding, GivenUpOffsets, LaneReport, Prediction, Severity, Status, SuspectPartition};
use crate::source::{FileSource, Source};
use base::{LaneId, Offset, PartitionId, ShardId};
use nvme_format::SlabId;
use nvme_format::blob::PartitionBlob;
use nvme_format::journal::{CommitKind, Records};
use nvme_format::record::Record;
use nvme_format::superblock::Generation;
use nvme_log::RecoveryReport;
use std::collections::BTreeSet;
use std::path::Path;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckOptions {
    /// Extents are not read: only what an opening reads.
    pub quick: bool,
}

/// How far the reading of extents is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    pub done_bytes: u64,
    pub all_bytes: u64,
}

/// Checks the namespace in a file or on a block device, on which no node may run meanwhile.
pub fn check(path: &Path, options: CheckOptions, progress: &mut dyn FnMut(Progress)) -> Result<CheckReport, ToolError> {
    check_source(FileSource::open(path)?, options, progress)
}

/// Checks a namespace wherever its blocks come from.
pub fn check_source<S: Source>(
    source: S,
    options: CheckOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<CheckReport, ToolError> {
    let mut overlay = Overlay::new(source);
    let superblocks = image::superblocks(&mut overlay)?;
    let mut report = blank(&superblocks, options);
    check_copies(&superblocks, &mut report.findings);
    let before = image::shards(&mut overlay, &superblocks.superblock)?;
    let first = superblocks.superblock.generation == Generation::default();
    let mut walks = Vec::new();
    if !first {
        check_roots(&before, &mut report.findings);
        let mut moved = BTreeSet::new();
        walks = walk_lanes(&mut overlay, &superblocks, &before, &mut report, &mut moved);
        let usable = usable(&before);
        let contested = ownership::contested_slabs(superblocks.superblock.map, usable.into_iter(), &moved);
        report.findings.extend(contested);
    }
    match rehearsal::rehearse(&mut overlay, false) {
        Ok(opened) => {
            let after_superblock = image::superblocks(&mut overlay)?.superblock;
            let after = image::shards(&mut overlay, &after_superblock)?;
            predict(&opened, &before, &after, &mut report);
            compare(&walks, &opened, &mut report.findings);
            check_state(&mut overlay, &superblocks, &after, options, &mut report, progress);
        }
        Err(error) => {
            report.prediction.error = Some(error.to_string());
            report.findings.push(Finding::new(Severity::Damage, "opening", error.to_string()));
            // What would be left after a repair is the only state there is to look at.
            let mut overlay = Overlay::new(overlay.into_source());
            if rehearsal::rehearse(&mut overlay, true).is_ok() {
                let after_superblock = image::superblocks(&mut overlay)?.superblock;
                let after = image::shards(&mut overlay, &after_superblock)?;
                check_state(&mut overlay, &superblocks, &after, options, &mut report, progress);
            }
        }
    }
    report.judge();
    Ok(report)
}

fn blank(superblocks: &Superblocks, options: CheckOptions) -> CheckReport {
    let superblock = &superblocks.superblock;
    CheckReport {
        status: Status::Clean,
        namespace: superblock.namespace.to_string(),
        directory: superblock.directory.to_string(),
        cluster: superblock.cluster.clone(),
        node: superblock.node.0,
        superblock_sequence: superblock.sequence,
        quick: options.quick,
        lanes: Vec::new(),
        prediction: Prediction {
            opens: false,
            error: None,
            clean: false,
            commits: 0,
            partitions: 0,
            rejected: Vec::new(),
            older_checkpoints: Vec::new(),
        },
        suspects: Vec::new(),
        findings: Vec::new(),
        given_up: Vec::new(),
        extents: 0,
        stretches: 0,
        batches: 0,
        bytes: 0,
    }
}

fn check_copies(superblocks: &Superblocks, findings: &mut Vec<Finding>) {
    for (copy, (block, state)) in superblocks.copies.iter().enumerate() {
        let text = match state {
            CopyState::Chosen => continue,
            CopyState::Zeroes => "is empty".to_owned(),
            CopyState::Differs => "is damaged or older than the others".to_owned(),
            CopyState::Unread(unread) => unread.to_string(),
        };
        let text = format!("the copy in block {} {text}; the next opening writes it anew", block.0);
        findings.push(Finding::new(Severity::Recoverable, format!("superblock copy {copy}"), text));
    }
}

/// Damage of roots, directories and blobs. It is recoverable while another checkpoint of the shard is whole: the journal
/// goes back to the older of two. Where none is, but a directory can be read, it costs the partitions whose blobs cannot.
fn check_roots(shards: &[ShardImage], findings: &mut Vec<Finding>) {
    for image in shards {
        let severity = match image.usable() {
            Some((_, directory)) if directory.is_whole() => Severity::Recoverable,
            Some(_) => Severity::Suspect,
            None => Severity::Damage,
        };
        let place = |slot: usize| format!("shard {} root {slot}", image.shard);
        for (slot, state) in image.slots.iter().enumerate() {
            match state {
                SlotState::Unreadable => {
                    findings.push(Finding::new(severity, place(slot), "the root block is damaged"));
                }
                SlotState::Current(_, directory) => check_directory(directory, severity, &place(slot), findings),
                SlotState::Empty | SlotState::OtherGeneration(_) => {}
            }
        }
        if image.usable().is_none() && image.current().is_empty() {
            findings.push(Finding::new(
                Severity::Damage,
                format!("shard {}", image.shard),
                "no root of it can be read",
            ));
        }
    }
}

fn check_directory(image: &DirectoryImage, severity: Severity, place: &str, findings: &mut Vec<Finding>) {
    if let Part::Bad(why) = &image.directory {
        findings.push(Finding::new(severity, place, format!("the directory it names: {why}")));
    }
    for (id, blob_place, blob) in &image.blobs {
        if let Part::Bad(why) = blob {
            let text = format!("the blob of partition {id} in block {}: {why}", blob_place.block.0);
            findings.push(Finding::new(severity, place, text).at(*id, Offset::ZERO));
        }
    }
    if let Some(Part::Bad(why)) = &image.view {
        findings.push(Finding::new(severity, place, format!("the saved view: {why}")));
    }
}

fn walk_lanes<S: Source>(
    source: &mut S,
    superblocks: &Superblocks,
    shards: &[ShardImage],
    report: &mut CheckReport,
    moved: &mut BTreeSet<SlabId>,
) -> Vec<Walk> {
    let superblock = &superblocks.superblock;
    let mut walks = Vec::new();
    for lane in (0..superblock.cores).map(LaneId) {
        let roots = shards.iter().filter_map(ShardImage::usable).map(|(root, _)| root);
        let start = Start::of(superblock, lane, roots);
        let (mut records, mut markers, mut malformed) = (0, 0, Vec::new());
        let walk = journal::walk(source, superblock, lane, start, &mut |header, payload| {
            markers += u64::from(matches!(header.kind, CommitKind::Marker | CommitKind::Stop));
            for record in Records::new(payload) {
                let Ok(view) = record else {
                    malformed.push(header.sequence);
                    continue;
                };
                records += 1;
                if let Record::SlabTaken { slab } | Record::SlabReleased { slab } = view.record {
                    moved.insert(slab);
                }
            }
        });
        let place = format!("lane {lane}");
        for sequence in malformed {
            let text = format!("commit {sequence} holds something that is no record");
            report.findings.push(Finding::new(Severity::Damage, &place, text));
        }
        for gap in &walk.breaks {
            let text = format!(
                "the commits from {} to {} were stated durable and are damaged (ring position {})",
                gap.sequence,
                gap.resumed_at - 1,
                gap.position
            );
            report.findings.push(Finding::new(Severity::Recoverable, &place, text));
        }
        match walk.end {
            End::Stopped | End::Quiet | End::WholeRing => {}
            End::InFlight { sequence } => {
                let text = format!("commit {sequence} was on its way when the run ended; nobody was told of it");
                report.findings.push(Finding::new(Severity::Recoverable, &place, text));
            }
            End::Unread(unread) => {
                report.findings.push(Finding::new(Severity::Damage, &place, unread.to_string()));
            }
        }
        report.lanes.push(LaneReport {
            lane: lane.0,
            first_sequence: start.sequence,
            commits: walk.commits,
            records,
            markers,
            durable: walk.durable,
            next_sequence: walk.next_sequence,
            breaks: walk.breaks.len(),
            end: end_name(walk.end).to_owned(),
        });
        walks.push(walk);
    }
    walks
}

pub(crate) fn end_name(end: End) -> &'static str {
    match end {
        End::Quiet => "quiet",
        End::Stopped => "stopped",
        End::InFlight { .. } => "in flight",
        End::WholeRing => "whole ring",
        End::Unread(_) => "unread",
    }
}

fn predict(opened: &RecoveryReport, before: &[ShardImage], after: &[ShardImage], report: &mut CheckReport) {
    let prediction = &mut report.prediction;
    prediction.opens = true;
    prediction.clean = opened.clean;
    prediction.commits = opened.commits;
    prediction.partitions = opened.partitions;
    prediction.rejected = opened.rejected.iter().map(|(lane, sequence)| (lane.0, *sequence)).collect();
    for (lane, sequence) in &opened.rejected {
        let text = format!("commit {sequence} names data that never reached the medium; nobody was told of it");
        report.findings.push(Finding::new(Severity::Recoverable, format!("lane {lane}"), text));
    }
    for shard in &opened.older_checkpoints {
        let text = "its newest checkpoint cannot be used; the one before it and the journal make up for it";
        report.findings.push(Finding::new(Severity::Recoverable, format!("shard {shard}"), text));
        report.prediction.older_checkpoints.push(shard.0);
    }
    if !opened.clean {
        report.findings.push(Finding::new(Severity::Recoverable, "namespace", "the last run did not stop cleanly"));
    }
    for (id, from) in &opened.suspects {
        let end = blob_end(after, *id).unwrap_or(*from);
        let was_known = known_before(before, *id);
        let text = match (from < &end, was_known) {
            (true, _) => format!(
                "none of its records from {from} on can be read: its part of the checkpoint is damaged, or its place has another owner"
            ),
            (false, true) => format!("records from offset {from} on may be lost: it was suspect before"),
            (false, false) => format!("records from offset {from} on may be lost: nothing proves where it ended"),
        };
        report.findings.push(Finding::new(Severity::Suspect, format!("partition {id}"), text).at(*id, *from));
        report.suspects.push(SuspectPartition { partition: id.to_string(), from: from.0, end: end.0 });
    }
}

fn blob_end(shards: &[ShardImage], id: PartitionId) -> Option<Offset> {
    shards
        .iter()
        .filter_map(ShardImage::usable)
        .flat_map(|(_, image)| image.partitions())
        .find_map(|blob| (blob.id == id).then_some(blob.end))
}

fn known_before(shards: &[ShardImage], id: PartitionId) -> bool {
    shards
        .iter()
        .filter_map(ShardImage::usable)
        .flat_map(|(_, image)| image.partitions())
        .any(|blob| blob.id == id && blob.suspect.is_some())
}

/// The walk and the opening were written apart; where they differ one of them is wrong, and nothing is sure.
fn compare(walks: &[Walk], opened: &RecoveryReport, findings: &mut Vec<Finding>) {
    let walked: Vec<(u16, u64, u64)> = (0u16..)
        .zip(walks)
        .flat_map(|(lane, walk)| walk.breaks.iter().map(move |gap| (lane, gap.sequence, gap.resumed_at)))
        .collect();
    let found: Vec<(u16, u64, u64)> =
        opened.damages.iter().map(|damage| (damage.lane.0, damage.sequence, damage.resumed_at)).collect();
    let commits: u64 = walks.iter().map(|walk| walk.commits).sum();
    if walked != found || (opened.rejected.is_empty() && commits != opened.commits) {
        let text = format!(
            "the journal was read in two ways with two results ({commits} commits, breaks {walked:?}; {} commits, breaks {found:?})",
            opened.commits
        );
        findings.push(Finding::new(Severity::Damage, "check", text));
    }
}

pub(crate) fn usable(shards: &[ShardImage]) -> Vec<(ShardId, &DirectoryImage)> {
    shards.iter().filter_map(|image| image.usable().map(|(_, directory)| (image.shard, directory))).collect()
}

/// Owners, and every live extent, as the newest state has them.
fn check_state<S: Source>(
    source: &mut S,
    superblocks: &Superblocks,
    shards: &[ShardImage],
    options: CheckOptions,
    report: &mut CheckReport,
    progress: &mut dyn FnMut(Progress),
) {
    let usable = usable(shards);
    for image in shards.iter().filter(|image| image.usable().is_none()) {
        let text = "its checkpoint cannot be read after the opening that wrote it";
        report.findings.push(Finding::new(Severity::Damage, format!("shard {}", image.shard), text));
    }
    let blocks = source.geometry().blocks;
    ownership::check(superblocks.superblock.map, blocks, usable.iter().copied(), &mut report.findings);
    let all_bytes = usable.iter().flat_map(|(_, image)| image.partitions()).map(extents::bytes_of).sum();
    let mut done_bytes = 0;
    for blob in usable.iter().flat_map(|(_, image)| image.partitions()) {
        report.given_up.extend(given_up(blob));
        let faults = if options.quick {
            extents::check_shape(blob)
        } else {
            let (counts, faults) = extents::verify(source, blob, &mut |_, _| {});
            report.extents += counts.extents;
            report.stretches += counts.stretches;
            report.batches += counts.batches;
            report.bytes += counts.bytes;
            done_bytes += extents::bytes_of(blob);
            progress(Progress { done_bytes, all_bytes });
            faults
        };
        for fault in faults {
            let finding = Finding::new(Severity::Damage, format!("partition {}", blob.id), fault.text);
            report.findings.push(finding.at(blob.id, fault.from));
        }
    }
}

/// What is missing of a partition by an operator's word, ranges that follow each other being one.
fn given_up(blob: &PartitionBlob) -> Vec<GivenUpOffsets> {
    let mut offsets: Vec<GivenUpOffsets> = Vec::new();
    for range in blob.extents.iter().flat_map(|extent| &extent.given_up).filter(|range| range.next > blob.log_start) {
        let (from, to) = (range.first.max(blob.log_start).0, range.next.0);
        match offsets.last_mut() {
            Some(last) if last.to == from => last.to = to,
            _ => offsets.push(GivenUpOffsets { partition: blob.id.to_string(), from, to }),
        }
    }
    offsets
}
