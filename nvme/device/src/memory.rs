//! The namespace of `--ephemeral` and of tests that need no faults: a memfd behind the same trait. Holes stay holes,
//! nothing is zeroed, a flush does nothing (design 02, rule 16). Every operation is a copy in memory, carried out in
//! `submit`; its completion is delivered by the next `poll`.

use crate::check::check;
use crate::medium::Medium;
use crate::sys;
use base::{BLOCK_SIZE, BlockRange, Monotonic, Now};
use nvme_plan::{Completion, Geometry, Namespace, Operation, Request};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const IN_FLIGHT_MAX: usize = 256;
const TRANSFER_MAX: u32 = 1024;

/// The memory itself: `Send`, shared by the queues of all cores, gone with the last of them.
#[derive(Clone, Debug)]
pub struct MemoryDisk {
    file: Arc<File>,
    blocks: Arc<AtomicU64>,
}

impl MemoryDisk {
    pub fn new(blocks: u64) -> io::Result<MemoryDisk> {
        let file = sys::memory_file("pollux-namespace")?;
        file.set_len(blocks.saturating_mul(BLOCK_SIZE as u64))?;
        Ok(MemoryDisk { file: Arc::new(file), blocks: Arc::new(AtomicU64::new(blocks)) })
    }

    /// A disk that holds `medium`.
    pub fn from_medium(medium: &Medium) -> io::Result<MemoryDisk> {
        let disk = MemoryDisk::new(medium.blocks())?;
        medium.store(&disk.file)?;
        Ok(disk)
    }

    /// A copy of all it holds.
    pub fn contents(&self) -> io::Result<Medium> {
        Medium::load(&self.file)
    }

    /// A queue for one core.
    pub fn attach(&self) -> MemoryNamespace {
        let geometry = self.geometry();
        MemoryNamespace { disk: self.clone(), geometry, done: VecDeque::with_capacity(IN_FLIGHT_MAX) }
    }

    pub fn geometry(&self) -> Geometry {
        Geometry {
            blocks: self.blocks.load(Ordering::Acquire),
            volatile_write_cache: false,
            durable_writes: true,
            trims: true,
            grows: true,
            transfer_max: TRANSFER_MAX,
            in_flight_max: IN_FLIGHT_MAX,
        }
    }

    fn carry_out(&self, operation: &mut Operation) -> io::Result<()> {
        let at = |range: &BlockRange| range.start.0 * BLOCK_SIZE as u64;
        match operation {
            Operation::Write { range, pieces, .. } => {
                let pieces: Vec<&[u8]> = pieces.iter().map(|piece| &piece[..]).collect();
                sys::write_pieces(&self.file, &pieces, at(range), false)
            }
            Operation::Read { range, into } => self.file.read_exact_at(into, at(range)),
            Operation::Flush => Ok(()),
            Operation::WriteZeroes { range } | Operation::Trim { range } => {
                sys::punch_hole(&self.file, at(range), range.bytes())
            }
            Operation::Grow { range } => {
                self.file.set_len(at(range) + range.bytes())?;
                self.blocks.fetch_max(range.end().0, Ordering::AcqRel);
                Ok(())
            }
        }
    }
}

/// One core's queue on a `MemoryDisk`.
#[derive(Debug)]
pub struct MemoryNamespace {
    disk: MemoryDisk,
    geometry: Geometry,
    done: VecDeque<Completion>,
}

impl MemoryNamespace {
    pub fn disk(&self) -> &MemoryDisk {
        &self.disk
    }
}

impl Namespace for MemoryNamespace {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&mut self, _now: Now, request: Request) -> Result<(), Request> {
        if self.done.len() >= self.geometry.in_flight_max {
            return Err(request);
        }
        // Another core may have grown the disk.
        self.geometry.blocks = self.disk.blocks.load(Ordering::Acquire);
        let Request { token, mut operation, .. } = request;
        let checked = check(&operation, &self.geometry);
        let result = checked
            .and_then(|()| self.disk.carry_out(&mut operation).map_err(|error| sys::device_error(&error, &operation)));
        self.done.push_back(Completion { token, operation: Some(operation), result });
        Ok(())
    }

    fn poll(&mut self, _now: Now, budget: usize, completions: &mut Vec<Completion>) -> usize {
        self.geometry.blocks = self.disk.blocks.load(Ordering::Acquire);
        let count = budget.min(self.done.len());
        completions.extend(self.done.drain(..count));
        count
    }

    fn in_flight(&self) -> usize {
        self.done.len()
    }

    fn next_deadline(&self) -> Option<Monotonic> {
        // What is done waits for nothing but the poll.
        (!self.done.is_empty()).then_some(Monotonic::ZERO)
    }
}
