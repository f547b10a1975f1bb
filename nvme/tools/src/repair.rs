//! `repair`: makes what an opening refuses serveable again, up to the last record that is proven. It is an opening that
//! gives up what it cannot read, and a `LossAccepted` record for each suspect partition; all else stays as any opening
//! leaves it. What lies unreadable in extents stops no opening: it is given up where that is asked for as well, and only
//! it, since a replica may have it. Without `accept_loss` the same is done over an overlay, which says what would be
//! given up.

use crate::blobs::Part;
use crate::check;
use crate::error::ToolError;
use crate::holes::{self, Found, Holes};
use crate::image::{self, ShardImage};
use crate::journal::{self, Start};
use crate::overlay::Overlay;
use crate::ownership;
use crate::rehearsal::{self, imagined_time};
use crate::session::{Session, Time};
use crate::source::{Clock, FileSource, Source, open_device};
use base::{LaneId, Offset, PartitionId, ShardId};
use nvme_device::{Access, QueueOptions};
use nvme_format::journal::Records;
use nvme_format::record::Record;
use nvme_log::{ChangeError, OpenError};
use nvme_plan::Namespace;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

/// Something that is given up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "what")]
pub enum Loss {
    /// The log ends at `end`; records from `from` on may have been there.
    Records { partition: String, from: i64, end: i64 },
    /// These cannot be read any more: `from` and those up to `to`, which is the first behind them.
    Offsets { partition: String, from: i64, to: i64, ends_log: bool },
    /// Nothing of the partition can be found again.
    Partition { partition: String },
    /// No checkpoint of the shard can be read: partitions of it that nothing names are gone without a trace.
    Shard { shard: u16 },
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Loss::Records { partition, from, end } if from < end => {
                write!(f, "partition {partition}: all records from offset {from} to {end}; its log goes on at {end}")
            }
            Loss::Records { partition, end, .. } => {
                write!(
                    f,
                    "partition {partition}: records from offset {end} on, if there were any; its log ends at {end}"
                )
            }
            Loss::Offsets { partition, from, to, ends_log } => {
                let then = if *ends_log { format!("; its log ends at {from}") } else { String::new() };
                write!(f, "partition {partition}: the records with offsets {from} to {}{then}", to - 1)
            }
            Loss::Partition { partition } => write!(f, "partition {partition}: all of it"),
            Loss::Shard { shard } => {
                write!(
                    f,
                    "shard {shard}: no checkpoint of it can be read; its partitions are gone unless the journal has them"
                )
            }
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RepairOptions {
    /// Every extent is read, and what cannot be read any more is given up too.
    pub extents: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RepairReport {
    /// The losses were taken; else they are what `accept_loss` would take.
    pub accepted: bool,
    pub losses: Vec<Loss>,
    /// What is wrong and is not mended by giving anything up.
    pub left: Vec<String>,
    #[serde(skip)]
    holes: Vec<Holes>,
    /// What was found and done, one line each, for the operator's records.
    pub audit: Vec<String>,
}

impl fmt::Display for RepairReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for left in &self.left {
            writeln!(f, "not mended: {left}")?;
        }
        if self.losses.is_empty() {
            return writeln!(f, "nothing has to be given up: start the node");
        }
        writeln!(f, "{}", if self.accepted { "given up:" } else { "would be given up with --accept-loss:" })?;
        for loss in &self.losses {
            writeln!(f, "  {loss}")?;
        }
        if !self.accepted {
            writeln!(f, "nothing was changed")?;
        }
        Ok(())
    }
}

/// Repairs the namespace in a file or on a block device, or says what that would cost. `seed` is fresh randomness.
pub fn repair(path: &Path, options: RepairOptions, accept_loss: bool, seed: u64) -> Result<RepairReport, ToolError> {
    if !accept_loss {
        return plan_repair(FileSource::open(path)?, options);
    }
    let device = open_device(path, Access::ReadWrite)?;
    let planned = plan_repair(FileSource::on(&device)?, options)?;
    if planned.losses.is_empty() {
        return Ok(planned);
    }
    let mut queue = device.attach(&QueueOptions::default())?;
    let clock = Clock::start();
    repair_device(&mut queue, &mut || clock.now(), &planned, seed)
}

/// What a repair would give up.
pub fn plan_repair<S: Source>(source: S, options: RepairOptions) -> Result<RepairReport, ToolError> {
    let mut overlay = Overlay::new(source);
    let mut audit = Vec::new();
    let named = named(&mut overlay)?;
    match rehearsal::rehearse(&mut overlay, false) {
        Ok(report) if report.suspects.is_empty() && !options.extents => {
            return Ok(RepairReport {
                accepted: false,
                losses: Vec::new(),
                left: Vec::new(),
                holes: Vec::new(),
                audit,
            });
        }
        Ok(report) if report.suspects.is_empty() => {}
        Ok(_) => audit.push("an opening finds suspect partitions".to_owned()),
        Err(ToolError::Refused(error @ OpenError::ShardUnreadable { .. })) => {
            audit.push(format!("an opening refuses the namespace: {error}"));
        }
        Err(error) => return Err(error),
    }
    let mut overlay = Overlay::new(overlay.into_source());
    let (mut losses, left) = rehearse_giving_up(&mut overlay, &[])?;
    for (shard, partition) in named {
        let lost = losses.contains(&Loss::Shard { shard: shard.0 }) && !left.contains(&partition);
        if lost {
            losses.push(Loss::Partition { partition: partition.to_string() });
        }
    }
    let mut found = Found::default();
    if options.extents {
        let superblock = image::superblocks(&mut overlay)?.superblock;
        let shards = image::shards(&mut overlay, &superblock)?;
        found = holes::find(&mut overlay, &shards);
    }
    if !found.holes.is_empty() {
        audit.push("not all that lies in extents can be read".to_owned());
        // So that it is known to come to its end before anything is changed.
        rehearse_giving_up(&mut Overlay::new(overlay.into_source()), &found.holes)?;
        losses.extend(found.holes.iter().flat_map(Holes::losses));
    }
    Ok(RepairReport { accepted: false, losses, left: found.left, holes: found.holes, audit })
}

fn rehearse_giving_up<S: Source>(
    overlay: &mut Overlay<S>,
    holes: &[Holes],
) -> Result<(Vec<Loss>, BTreeSet<PartitionId>), ToolError> {
    let mut time = imagined_time();
    rehearsal::guarded(|| give_up(overlay, &mut time, holes, 1))
}

/// Repairs on a device, giving up what `planned` names and nothing else.
pub fn repair_device<N: Namespace>(
    queue: &mut N,
    time: Time<'_>,
    planned: &RepairReport,
    seed: u64,
) -> Result<RepairReport, ToolError> {
    let (losses, _) = give_up(queue, time, &planned.holes, seed)?;
    if let Some(other) = losses.iter().find(|loss| !planned.losses.contains(loss)) {
        // The plan was made under the same lock, so that only a device that reads differently each time comes here.
        return Err(ToolError::Damaged(format!("the device reads differently each time; given up as well: {other}")));
    }
    let mut audit = planned.audit.clone();
    audit.extend(planned.losses.iter().map(|loss| format!("given up: {loss}")));
    audit.push("the namespace was checkpointed and stopped cleanly".to_owned());
    Ok(RepairReport { accepted: true, audit, ..planned.clone() })
}

/// An opening that gives up what it cannot read, the acceptance of every loss, the giving up of `holes`, and a clean stop.
/// Gives what the opening lost, and the partitions that are left.
fn give_up<N: Namespace>(
    queue: &mut N,
    time: Time<'_>,
    holes: &[Holes],
    seed: u64,
) -> Result<(Vec<Loss>, BTreeSet<PartitionId>), ToolError> {
    let mut session = Session::open(queue, time, true, seed)?;
    let unreadable = session.report.unreadable_shards.iter();
    let mut losses: Vec<Loss> = unreadable.map(|shard| Loss::Shard { shard: shard.0 }).collect();
    let mut suspects: Vec<(PartitionId, Offset)> = session.store.suspects();
    suspects.sort();
    for (id, from) in suspects {
        let slot = session.store.find(id).ok_or(ToolError::NoPartition(id))?;
        let end = session.store.end_offset(slot);
        loop {
            match session.store.accept_loss(slot) {
                Ok(()) => break,
                Err(ChangeError::Pressure) => session.turn()?,
                Err(error) => return Err(ToolError::Damaged(format!("partition {id}: {error}"))),
            }
        }
        losses.push(Loss::Records { partition: id.to_string(), from: from.0, end: end.0 });
    }
    for holes in holes {
        holes.give_up(&mut session)?;
    }
    let left = session.store.slots().map(|(_, id)| id).collect();
    session.stop()?;
    Ok((losses, left))
}

/// Partitions that something readable still names, with their shards. A namespace in which a slab has two owners is not
/// repaired: an opening would write over one of them.
fn named<S: Source>(source: &mut S) -> Result<BTreeSet<(ShardId, PartitionId)>, ToolError> {
    let superblock = image::superblocks(source)?.superblock;
    let shards = image::shards(source, &superblock)?;
    let mut named = BTreeSet::new();
    for image in &shards {
        for (_, directory) in image.current() {
            if let Part::Good(directory) = &directory.directory {
                named.extend(directory.partitions.iter().map(|(id, _)| (image.shard, *id)));
            }
        }
    }
    let mut moved = BTreeSet::new();
    for lane in (0..superblock.cores).map(LaneId) {
        let roots = shards.iter().filter_map(ShardImage::usable).map(|(root, _)| root);
        let start = Start::of(&superblock, lane, roots);
        journal::walk(source, &superblock, lane, start, &mut |_, payload| {
            for view in Records::new(payload).map_while(Result::ok) {
                match view.record {
                    Record::Partition(link, _) => drop(named.insert((view.shard, link.partition))),
                    Record::SlabTaken { slab } | Record::SlabReleased { slab } => drop(moved.insert(slab)),
                    Record::ImageApplied { .. } | Record::CheckpointPublished { .. } => {}
                }
            }
        });
    }
    let contested = ownership::contested_slabs(superblock.map, check::usable(&shards).into_iter(), &moved);
    match contested.into_iter().next() {
        Some(finding) => Err(ToolError::Damaged(finding.text)),
        None => Ok(named),
    }
}
