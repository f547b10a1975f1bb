//! `export` and `import`: a partition's batches as the bytes of a segment of Apache Kafka's, which its own tools read.

use crate::dump::opened_partitions;
use crate::error::ToolError;
use crate::extents;
use crate::overlay::Overlay;
use crate::session::{Session, Time};
use crate::source::{Clock, FileSource, Source, open_device};
use base::{LeaderEpoch, Offset, PartitionId};
use batch::BatchView;
use nvme_device::{Access, QueueOptions};
use nvme_log::{Append, AppendError, AppendMode, ChangeError, LogConfig, LogSlot, Store};
use nvme_plan::Namespace;
use std::io::{Read, Write};
use std::ops::Range;
use std::path::Path;

/// Bytes that are read from a segment at once.
const CHUNK: usize = 1 << 20;

/// What went through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Transferred {
    pub batches: u64,
    pub bytes: u64,
    pub first: Option<i64>,
    pub last: Option<i64>,
}

impl Transferred {
    fn note(&mut self, view: &BatchView<'_>) {
        self.batches += 1;
        self.bytes += view.size() as u64;
        self.first.get_or_insert(view.base_offset().0);
        self.last = Some(view.last_offset().0);
    }
}

/// Writes the batches that hold offsets of the range, byte for byte, from a file or a block device.
pub fn export(
    path: &Path,
    partition: PartitionId,
    offsets: Range<Offset>,
    out: &mut dyn Write,
) -> Result<Transferred, ToolError> {
    export_source(FileSource::open(path)?, partition, offsets, out)
}

/// Every batch is verified before it is written; a fault within the range ends it with an error.
pub fn export_source<S: Source>(
    source: S,
    partition: PartitionId,
    offsets: Range<Offset>,
    out: &mut dyn Write,
) -> Result<Transferred, ToolError> {
    let mut overlay = Overlay::new(source);
    let blobs = opened_partitions(&mut overlay)?;
    let blob = blobs.into_iter().find(|blob| blob.id == partition).ok_or(ToolError::NoPartition(partition))?;
    let from = offsets.start.max(blob.log_start);
    let mut done = Transferred::default();
    let mut result = Ok(());
    let (_, faults) = extents::verify(&mut overlay, &blob, &mut |_, view| {
        if view.last_offset() >= from && view.base_offset() < offsets.end && result.is_ok() {
            result = out.write_all(view.bytes());
            done.note(view);
        }
    });
    result?;
    match faults.into_iter().find(|fault| fault.from < offsets.end) {
        Some(fault) => Err(ToolError::Damaged(format!("from offset {} on: {}", fault.from, fault.text))),
        None => Ok(done),
    }
}

/// Makes a partition of a segment's bytes, a new one or one that never had a record, on a file or a block device. `seed`
/// is fresh randomness.
pub fn import(
    path: &Path,
    partition: PartitionId,
    segment: &mut dyn Read,
    seed: u64,
) -> Result<Transferred, ToolError> {
    let device = open_device(path, Access::ReadWrite)?;
    let mut queue = device.attach(&QueueOptions::default())?;
    let clock = Clock::start();
    import_device(&mut queue, &mut || clock.now(), partition, segment, seed)
}

/// Batches keep their offsets, and in a new partition their epochs. A segment that is cut or broken leaves what came before its fault.
pub fn import_device<N: Namespace>(
    queue: &mut N,
    time: Time<'_>,
    partition: PartitionId,
    segment: &mut dyn Read,
    seed: u64,
) -> Result<Transferred, ToolError> {
    let mut session = Session::open(queue, time, false, seed)?;
    let (slot, epoch) = match session.store.find(partition) {
        // A topic of a node that is to have these records was created there first: nothing is in it yet. It is led under
        // that node's epochs, and never again where its log has later ones.
        Some(slot) if is_untouched(&session.store, slot) => {
            let latest = session.store.epochs(slot).latest();
            (slot, Some(latest.map_or(LeaderEpoch(0), |last| last.epoch)))
        }
        Some(_) => return Err(ToolError::Exists(partition)),
        None => (create(&mut session, partition)?, None),
    };
    let mut done = Transferred::default();
    let mut bytes = Vec::new();
    let result = loop {
        let have = bytes.len();
        bytes.resize(have + CHUNK, 0);
        let count = segment.read(&mut bytes[have..])?;
        bytes.truncate(have + count);
        match append_whole(&mut session, (slot, epoch), &mut bytes, &mut done) {
            Ok(used) => drop(bytes.drain(..used)),
            Err(error) => break Err(error),
        }
        if count == 0 {
            break if bytes.is_empty() { Ok(()) } else { Err(ToolError::Damaged("the last batch is cut".into())) };
        }
    };
    session.until(|session| session.store.durable_offset(slot) == session.store.end_offset(slot))?;
    session.stop()?;
    result.map(|()| done)
}

fn is_untouched(store: &Store, slot: LogSlot) -> bool {
    store.end_offset(slot) == Offset::ZERO && store.suspect_from(slot).is_none()
}

fn create<N: Namespace>(session: &mut Session<'_, N>, partition: PartitionId) -> Result<LogSlot, ToolError> {
    loop {
        let now = session.now();
        match session.store.create(now, partition, -1, LogConfig::keep_everything()) {
            Ok(slot) => return Ok(slot),
            Err(ChangeError::Pressure) => session.turn()?,
            Err(error) => return Err(ToolError::Invalid(error.to_string())),
        }
    }
}

/// Appends the whole batches at the start of `bytes`, under `epoch` or their own; gives how long they are.
fn append_whole<N: Namespace>(
    session: &mut Session<'_, N>,
    (slot, epoch): (LogSlot, Option<LeaderEpoch>),
    bytes: &mut [u8],
    done: &mut Transferred,
) -> Result<usize, ToolError> {
    let mut used = 0;
    while used < bytes.len() {
        let (size, base) = match BatchView::parse(&bytes[used..]) {
            Ok((view, _)) => (view.size(), view.base_offset()),
            Err(batch::BatchError::Incomplete { .. }) => break,
            Err(error) => return Err(ToolError::Damaged(error.to_string())),
        };
        let bytes = &mut bytes[used..used + size];
        if let Some(epoch) = epoch {
            batch::stamp(bytes, base, epoch);
        }
        let view = BatchView::parse_whole(bytes).map_err(|error| ToolError::Damaged(error.to_string()))?;
        view.check_crc().map_err(|error| ToolError::Damaged(error.to_string()))?;
        if done.batches == 0 && view.base_offset() > Offset::ZERO {
            // The log starts where the segment does.
            restart(session, slot, view.base_offset())?;
        }
        loop {
            let now = session.now();
            match session.store.append(now, slot, Append { batches: view.bytes(), mode: AppendMode::Follower }) {
                Ok(_) => break,
                Err(AppendError::Pressure) => session.turn()?,
                Err(error) => return Err(ToolError::Damaged(format!("at offset {}: {error}", view.base_offset()))),
            }
        }
        done.note(&view);
        used += size;
    }
    Ok(used)
}

fn restart<N: Namespace>(session: &mut Session<'_, N>, slot: LogSlot, at: Offset) -> Result<(), ToolError> {
    loop {
        match session.store.restart_at(slot, at) {
            Ok(()) => return Ok(()),
            Err(ChangeError::Pressure) => session.turn()?,
            Err(error) => return Err(ToolError::Invalid(error.to_string())),
        }
    }
}
