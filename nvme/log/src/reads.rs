//! Reads from the device: two in flight while a commit is, each verified before anyone sees its bytes.

use crate::api::*;
use crate::io::Purpose;
use crate::store::Store;
use arena::{Buffer, BufferRef};
use base::limits::COMMIT_MAX;
use base::{BLOCK_SIZE, Block, BlockRange, Monotonic, Now, Tenancy};
use nvme_format::crc;
use nvme_format::index::{decode_blocks, index_blocks};
use nvme_plan::{Class, DeviceError, Operation};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// A device read is at most this long (rule 14); the index of a large extent takes several.
const READ_BLOCKS: u32 = 32;
/// In flight at once: while a commit is, and else.
const BESIDE_COMMITS: usize = 2;
const ALONE: usize = 16;
/// Memory that a read leaves to appends: two commits', and less where an arena is small.
const LEFT_TO_APPENDS: usize = 2 * COMMIT_MAX;
const LEFT_TO_APPENDS_SHARE: usize = 16;
/// A read that found no memory tries again after this, since memory that comes back wakes nobody.
const MEMORY_RETRY: Duration = Duration::from_millis(1);

#[derive(Default)]
pub struct Reads {
    /// Who waits for what: one read in flight a stretch.
    waiting: HashMap<ReadPlan, Vec<ReadTicket>>,
    queue: VecDeque<ReadPlan>,
    /// What was read of those that take several reads.
    pieces: HashMap<ReadPlan, Vec<u8>>,
    in_flight: usize,
    next_ticket: u64,
    /// Since when the first of the queue has found no memory, and when it tries again.
    short: Option<(Monotonic, Monotonic)>,
}

impl Reads {
    /// With reads in flight the end of one is soon enough.
    pub(crate) fn next_deadline(&self) -> Option<Monotonic> {
        self.short.map(|(_, again)| again).filter(|_| self.in_flight == 0)
    }
}

impl ReadPlan {
    fn slot(&self) -> LogSlot {
        match self {
            ReadPlan::Stretch(stretch) => stretch.slot,
            ReadPlan::Index(index) => index.slot,
        }
    }

    fn tenancy(&self) -> Tenancy {
        match self {
            ReadPlan::Stretch(stretch) => stretch.tenancy,
            ReadPlan::Index(index) => index.tenancy,
        }
    }

    /// The blocks that hold it.
    fn range(&self) -> BlockRange {
        match self {
            ReadPlan::Stretch(stretch) => {
                let from = u64::from(stretch.position);
                let end = (from + u64::from(stretch.length)).next_multiple_of(BLOCK);
                stretch.extent.range(from / BLOCK * BLOCK, end)
            }
            ReadPlan::Index(index) => {
                let from = u64::from(index.block) * BLOCK;
                index.extent.range(from, from + index_blocks(index.entries as usize) * BLOCK)
            }
        }
    }
}

impl From<Stretch> for ReadPlan {
    fn from(stretch: Stretch) -> ReadPlan {
        ReadPlan::Stretch(stretch)
    }
}

impl Store {
    /// Reads and verifies; `LogEvent::ReadDone` brings the bytes (none for an index, after which `locate` knows more).
    /// A description that came with `Located::Found` is given back by this.
    pub fn read(&mut self, plan: impl Into<ReadPlan>) -> ReadTicket {
        let plan = plan.into();
        let ticket = self.start_read(plan);
        if let ReadPlan::Stretch(stretch) = plan {
            self.release(stretch);
        }
        ticket
    }

    pub(crate) fn start_read(&mut self, plan: ReadPlan) -> ReadTicket {
        self.idle.used = true;
        let ticket = ReadTicket(self.reads.next_ticket);
        self.reads.next_ticket += 1;
        if let ReadPlan::Stretch(stretch) = &plan
            && let Some(bytes) = self.cache.get(stretch)
        {
            let result = Ok(bytes.clone());
            self.events.push(LogEvent::ReadDone { ticket, result });
        } else if let Some(waiting) = self.reads.waiting.get_mut(&plan) {
            waiting.push(ticket);
        } else {
            self.reads.waiting.insert(plan, vec![ticket]);
            self.reads.queue.push_back(plan);
        }
        ticket
    }

    /// Gives back a description that will not be read.
    pub fn release(&mut self, stretch: Stretch) {
        let tenancy = stretch.tenancy;
        if let Some(extent) = self.partition_mut(stretch.slot).and_then(|partition| partition.extent_mut(tenancy)) {
            extent.descriptions = extent.descriptions.saturating_sub(1);
        } else if let Some(held) = self.quarantine.iter_mut().find(|held| held.freed.tenancy == tenancy) {
            held.freed.descriptions = held.freed.descriptions.saturating_sub(1);
        }
    }

    pub(crate) fn poll_reads(&mut self, now: Now) {
        let limit = if self.lane.in_flight.is_empty() { ALONE } else { BESIDE_COMMITS };
        while self.reads.in_flight < limit {
            let Some(plan) = self.reads.queue.pop_front() else {
                self.reads.short = None;
                return;
            };
            if self.stopped.is_some() {
                self.finish_read(&plan, Err(ReadError::Stopped));
                continue;
            }
            let tenancy = plan.tenancy();
            let live = self.partition(plan.slot()).is_some_and(|partition| partition.extent(tenancy).is_some())
                || self.quarantine.iter().any(|held| held.freed.tenancy == tenancy);
            let done = self.reads.pieces.get(&plan).map_or(0, |pieces| (pieces.len() / BLOCK_SIZE) as u32);
            let whole = plan.range();
            let start = Block(whole.start.0 + u64::from(done));
            let range = BlockRange::new(start, (whole.count - done).min(READ_BLOCKS));
            if !live {
                self.finish_read(&plan, Err(ReadError::Gone));
                continue;
            }
            match self.memory_for_a_read(range.bytes() as usize) {
                // Those before it give theirs back as they are sent or let go of, and the caches shrink: it comes again,
                // first, so that whole answers are made of what there is and not the beginnings of many.
                None => {
                    self.short_of_memory = true;
                    let since = self.reads.short.map_or(now.monotonic, |(since, _)| since);
                    self.reads.short = Some((since, now.monotonic + MEMORY_RETRY));
                    if now.monotonic.since(since) < self.options.read_deadline {
                        self.reads.queue.push_front(plan);
                        return;
                    }
                    self.finish_read(&plan, Err(ReadError::NoMemory));
                }
                Some(into) => {
                    self.reads.short = None;
                    let deadline: Option<Monotonic> = Some(now.monotonic + self.options.read_deadline);
                    self.reads.in_flight += 1;
                    self.io.emit(Purpose::Read(plan), Class::Backlog, deadline, Operation::Read { range, into });
                }
            }
        }
    }

    fn memory_for_a_read(&self, len: usize) -> Option<Buffer> {
        let left = LEFT_TO_APPENDS.min(self.arena.capacity() / LEFT_TO_APPENDS_SHARE);
        (self.arena.free_bytes() >= len + left).then(|| self.arena.try_allocate(len)).flatten()
    }

    fn finish_read(&mut self, plan: &ReadPlan, result: Result<BufferRef, ReadError>) {
        self.reads.pieces.remove(plan);
        for ticket in self.reads.waiting.remove(plan).unwrap_or_default() {
            let result = result.clone();
            match self.own_reads.remove(&ticket) {
                Some(slot) => self.on_truncation_read(slot, result),
                None => self.events.push(LogEvent::ReadDone { ticket, result }),
            }
        }
    }

    pub(crate) fn on_read(&mut self, plan: ReadPlan, into: Option<Buffer>, result: Result<(), DeviceError>) {
        self.reads.in_flight -= 1;
        let verified = match (result, into) {
            (Err(error), _) => Err(ReadError::Device(error)),
            (Ok(()), None) => Err(ReadError::Device(DeviceError::Gone)),
            (Ok(()), Some(into)) => match &plan {
                ReadPlan::Stretch(stretch) => self.verify_stretch(stretch, into),
                ReadPlan::Index(index) => {
                    let pieces = self.reads.pieces.entry(plan).or_default();
                    pieces.extend_from_slice(&into);
                    if (pieces.len() as u64) < plan.range().bytes() {
                        self.reads.queue.push_front(plan);
                        return;
                    }
                    let blocks = self.reads.pieces.remove(&plan).unwrap_or_default();
                    self.take_index(index, &blocks)
                }
            },
        };
        self.finish_read(&plan, verified);
    }

    fn verify_stretch(&mut self, stretch: &Stretch, into: Buffer) -> Result<BufferRef, ReadError> {
        let skip = stretch.position as usize % BLOCK_SIZE;
        let bytes = into.freeze().slice(skip..skip + stretch.len());
        if crc::append(stretch.seed, &bytes) != stretch.crc {
            return Err(ReadError::Corrupt);
        }
        self.cache.insert(stretch, bytes.clone(), self.options.read_cache);
        Ok(bytes)
    }

    fn take_index(&mut self, index: &IndexRead, blocks: &[u8]) -> Result<BufferRef, ReadError> {
        let entries = decode_blocks(index.extent.start, index.tenancy, blocks).map_err(|_| ReadError::Corrupt)?;
        if entries.len() < index.entries as usize {
            return Err(ReadError::Corrupt);
        }
        let Some(partition) = self.partition_mut(index.slot) else { return Err(ReadError::Gone) };
        let Some(extent) = partition.extent_mut(index.tenancy) else { return Err(ReadError::Gone) };
        extent.cached = Some(Rc::new(entries));
        self.cache.note_index(index.slot, index.tenancy, index.entries as usize);
        self.evict_index();
        Ok(BufferRef::empty())
    }
}
