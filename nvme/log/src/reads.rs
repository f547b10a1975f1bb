//! Reads from the device: those at the tip before the backlog's, two in flight while a commit is, each verified before
//! anyone sees its bytes.

use crate::api::*;
use crate::io::Purpose;
use crate::store::Store;
use arena::{Buffer, BufferRef};
use base::limits::COMMIT_MAX;
use base::{BLOCK_SIZE, Block, BlockRange, IdMap, Monotonic, Now, Offset, Tenancy};
use nvme_format::crc;
use nvme_format::index::{decode_blocks, index_blocks};
use nvme_plan::{Class, DeviceError, Operation};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// A device read is at most this long (rule 14); the index of a large extent takes several.
const READ_BLOCKS: u32 = 32;
/// In flight at once in the whole namespace while a commit is; each core has its share, never less than one.
const BESIDE_COMMITS: usize = 2;
/// In flight at once of a core while no commit of it is.
const ALONE: usize = 16;
/// What lies no further than this before a log's end is read for somebody who follows it, and before what is read for
/// those who catch up.
const TAIL_BYTES: u64 = 1 << 20;
/// After so many reads at the tip one of the backlog goes first, so that it goes on however many follow.
const TAIL_RUN: u32 = 8;
/// Memory that a read leaves to appends: two commits', and less where an arena is small.
const LEFT_TO_APPENDS: usize = 2 * COMMIT_MAX;
const LEFT_TO_APPENDS_SHARE: usize = 16;
/// A read that found no memory tries again after this, since memory that comes back wakes nobody.
const MEMORY_RETRY: Duration = Duration::from_millis(1);
/// What could not be read is read again no sooner than this after the last attempt, and whoever asks waits for it: the Java
/// consumer asks again as soon as it is refused, and had the device read the same damaged blocks 2,750 times a second.
const UNREADABLE_RETRY: Duration = Duration::from_millis(50);

#[derive(Default)]
pub struct Reads {
    /// Who waits for what: one read in flight a stretch.
    wanted: IdMap<ReadPlan, Wanted>,
    /// What was asked for since the last turn.
    asked: Vec<ReadPlan>,
    queues: Queues,
    /// What could not be read a moment ago, by the time at which it is tried again; the number keeps those of one time
    /// apart.
    later: BTreeMap<(Monotonic, u64), ReadPlan>,
    in_flight: usize,
    next_ticket: u64,
    /// When the first read that found no memory tries again.
    short: Option<Monotonic>,
}

/// A read that somebody waits for.
#[derive(Default)]
struct Wanted {
    tickets: Vec<ReadTicket>,
    /// What was read of one that takes several reads.
    pieces: Vec<u8>,
    /// When it has failed, in the queue or in the device; known from the turn after it was asked for.
    until: Option<Monotonic>,
}

/// Reads that the device was not given yet: at the tip, and all others.
#[derive(Default)]
struct Queues {
    tail: VecDeque<ReadPlan>,
    backlog: VecDeque<ReadPlan>,
    /// Reads at the tip since one of the backlog was begun.
    run: u32,
}

impl Queues {
    fn of(&mut self, class: Class) -> &mut VecDeque<ReadPlan> {
        if class == Class::TailRead { &mut self.tail } else { &mut self.backlog }
    }

    /// What goes next.
    fn first(&self) -> Option<(Class, ReadPlan)> {
        let tail = self.tail.front().map(|plan| (Class::TailRead, *plan));
        let backlog = self.backlog.front().map(|plan| (Class::Backlog, *plan));
        if self.run < TAIL_RUN { tail.or(backlog) } else { backlog.or(tail) }
    }

    fn begin(&mut self, class: Class) {
        self.of(class).pop_front();
        self.run = if class == Class::TailRead { self.run + 1 } else { 0 };
    }
}

impl Reads {
    /// With reads in flight the end of one is soon enough for those that found no memory.
    pub(crate) fn next_deadline(&self) -> Option<Monotonic> {
        let later = self.later.first_key_value().map(|((at, _), _)| *at);
        self.short.filter(|_| self.in_flight == 0).into_iter().chain(later).min()
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

impl Store {
    /// Reads what came with `Located::Found`, as `read` does, and gives its description back.
    pub fn read_described(&mut self, stretch: Stretch) -> ReadTicket {
        let ticket = self.read(ReadPlan::Stretch(stretch));
        self.release(stretch);
        ticket
    }

    /// Reads and verifies; `LogEvent::ReadDone` brings the bytes (none for an index, after which `locate` knows more).
    pub fn read(&mut self, plan: ReadPlan) -> ReadTicket {
        self.idle.used = true;
        let ticket = ReadTicket(self.reads.next_ticket);
        self.reads.next_ticket += 1;
        if let ReadPlan::Stretch(stretch) = &plan
            && let Some(bytes) = self.cache.get(stretch)
        {
            let result = Ok(bytes.clone());
            self.events.push(LogEvent::ReadDone { ticket, result });
        } else if let Some(wanted) = self.reads.wanted.get_mut(&plan) {
            wanted.tickets.push(ticket);
        } else {
            self.reads.wanted.insert(plan, Wanted { tickets: vec![ticket], ..Wanted::default() });
            self.reads.asked.push(plan);
        }
        ticket
    }

    /// Tail reads go before the backlog's (rule 14).
    fn class_of(&self, plan: &ReadPlan) -> Class {
        let Some(partition) = self.partition(plan.slot()) else { return Class::Backlog };
        let end = partition.extent(plan.tenancy()).map(|extent| match plan {
            ReadPlan::Stretch(stretch) => extent.position + u64::from(stretch.position) + u64::from(stretch.length),
            ReadPlan::Index(_) => extent.end(),
        });
        let is_tail = end.is_some_and(|end| end + TAIL_BYTES >= partition.end_position);
        if is_tail { Class::TailRead } else { Class::Backlog }
    }

    fn reads_at_once(&self) -> usize {
        match self.lane.in_flight.is_empty() {
            true => ALONE,
            false => (BESIDE_COMMITS / usize::from(self.cores)).max(1),
        }
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
        for plan in std::mem::take(&mut self.reads.asked) {
            match self.not_before(&plan).filter(|at| *at > now.monotonic) {
                Some(at) => {
                    let number = self.reads.next_ticket;
                    self.reads.next_ticket += 1;
                    self.reads.later.insert((at, number), plan);
                }
                None => self.queue_read(now, plan),
            }
        }
        // With a namespace that has stopped nobody waits for nothing.
        while let Some(first) = self.reads.later.first_entry()
            && (first.key().0 <= now.monotonic || self.stopped.is_some())
        {
            let plan = first.remove();
            self.queue_read(now, plan);
        }
        self.end_late_reads(now);
        let limit = self.reads_at_once();
        while self.reads.in_flight < limit {
            let Some((class, plan)) = self.reads.queues.first() else {
                self.reads.short = None;
                return;
            };
            let tenancy = plan.tenancy();
            let live = self.partition(plan.slot()).is_some_and(|partition| partition.extent(tenancy).is_some())
                || self.quarantine.iter().any(|held| held.freed.tenancy == tenancy);
            if self.stopped.is_some() || !live {
                self.reads.queues.of(class).pop_front();
                let error = if live { ReadError::Stopped } else { ReadError::Gone };
                self.finish_read(&plan, Err(error));
                continue;
            }
            let wanted = self.reads.wanted.get(&plan).expect("what is queued is wanted");
            let (done, until) = ((wanted.pieces.len() / BLOCK_SIZE) as u32, wanted.until);
            let whole = plan.range();
            let start = Block(whole.start.0 + u64::from(done));
            let range = BlockRange::new(start, (whole.count - done).min(READ_BLOCKS));
            let Some(into) = self.memory_for_a_read(range.bytes() as usize) else {
                // Those before it give theirs back as they are sent or let go of, and the caches shrink: it comes again,
                // first, so that whole answers are made of what there is and not the beginnings of many.
                self.short_of_memory = true;
                self.reads.short = Some(now.monotonic + MEMORY_RETRY);
                return;
            };
            self.reads.short = None;
            self.reads.queues.begin(class);
            self.reads.in_flight += 1;
            self.io.emit(Purpose::Read(plan), class, until, Operation::Read { range, into });
        }
    }

    /// Of what could not be read, when it is tried again.
    fn not_before(&self, plan: &ReadPlan) -> Option<Monotonic> {
        let ReadPlan::Stretch(stretch) = plan else { return None };
        Some(self.cache.failed_at(stretch)? + UNREADABLE_RETRY)
    }

    fn queue_read(&mut self, now: Now, plan: ReadPlan) {
        let class = self.class_of(&plan);
        self.reads.queues.of(class).push_back(plan);
        if let Some(wanted) = self.reads.wanted.get_mut(&plan) {
            wanted.until = Some(now.monotonic + self.options.read_deadline);
        }
    }

    /// A read has failed that was not begun within its time; each queue has them in the order of their deadlines.
    fn end_late_reads(&mut self, now: Now) {
        let error = match self.reads.short {
            Some(_) => ReadError::NoMemory,
            None => ReadError::Device(DeviceError::TimedOut),
        };
        for class in [Class::TailRead, Class::Backlog] {
            while let Some(plan) = self.reads.queues.of(class).front().copied() {
                let until = self.reads.wanted.get(&plan).and_then(|wanted| wanted.until);
                if until.is_none_or(|until| now.monotonic < until) {
                    break;
                }
                self.reads.queues.of(class).pop_front();
                self.finish_read(&plan, Err(error));
            }
        }
    }

    fn memory_for_a_read(&self, len: usize) -> Option<Buffer> {
        let wanted = len + LEFT_TO_APPENDS.min(self.arena.capacity() / LEFT_TO_APPENDS_SHARE);
        if self.arena.free_bytes() < wanted {
            // What others are done with is free once it is taken back.
            self.arena.poll_returns(usize::MAX);
        }
        (self.arena.free_bytes() >= wanted).then(|| self.arena.try_allocate(len)).flatten()
    }

    fn finish_read(&mut self, plan: &ReadPlan, result: Result<BufferRef, ReadError>) {
        for ticket in self.reads.wanted.remove(plan).unwrap_or_default().tickets {
            let result = result.clone();
            match self.own_reads.remove(&ticket) {
                Some(slot) => self.on_truncation_read(slot, result),
                None => self.events.push(LogEvent::ReadDone { ticket, result }),
            }
        }
    }

    pub(crate) fn on_read(&mut self, now: Now, plan: ReadPlan, into: Option<Buffer>, result: Result<(), DeviceError>) {
        self.reads.in_flight -= 1;
        let verified = match (result, into) {
            (Err(error), _) => Err(ReadError::Device(error)),
            (Ok(()), None) => Err(ReadError::Device(DeviceError::Gone)),
            (Ok(()), Some(into)) => match &plan {
                ReadPlan::Stretch(stretch) => self.verify_stretch(stretch, into),
                ReadPlan::Index(index) => {
                    let wanted = self.reads.wanted.get_mut(&plan).expect("what is read is wanted");
                    wanted.pieces.extend_from_slice(&into);
                    if (wanted.pieces.len() as u64) < plan.range().bytes() {
                        let class = self.class_of(&plan);
                        self.reads.queues.of(class).push_front(plan);
                        return;
                    }
                    let blocks = std::mem::take(&mut wanted.pieces);
                    self.take_index(index, &blocks)
                }
            },
        };
        if let (ReadPlan::Stretch(stretch), Err(error @ (ReadError::Device(_) | ReadError::Corrupt))) =
            (&plan, &verified)
            && self.cache.note_unreadable(now, stretch)
        {
            self.tell_unreadable(stretch, *error);
        }
        self.finish_read(&plan, verified);
    }

    /// Once for each stretch, until it could be read.
    fn tell_unreadable(&mut self, stretch: &Stretch, error: ReadError) {
        let Some(partition) = self.partition(stretch.slot) else { return };
        let Some(extent) = partition.extent(stretch.tenancy) else { return };
        let within = extent.entries_used(&self.cache).and_then(|entries| {
            let index = entries.partition_point(|entry| entry.position < stretch.position);
            Some(i64::from(entries.get(index)?.offset))
        });
        let from = Offset(extent.base_offset.0 + within.unwrap_or(0));
        let partition = partition.id;
        self.events.push(LogEvent::Unreadable { partition, from, error });
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
        let Some(partition) = self.partitions.get_mut(index.slot.token()) else { return Err(ReadError::Gone) };
        let Some(extent) = partition.extent_mut(index.tenancy) else { return Err(ReadError::Gone) };
        extent.cached = Some(self.cache.note_index(index.slot, index.tenancy, entries));
        self.evict_index();
        Ok(BufferRef::empty())
    }
}
