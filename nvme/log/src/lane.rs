//! A core's journal lane: the commit being built, those on their way, and what is durable.

use crate::api::LogSlot;
use crate::partition::Freed;
use arena::{Arena, Buffer, BufferRef};
use base::{BLOCK_SIZE, Block, LaneId, Monotonic, Offset, PartitionId, ShardId, Uuid};
use nvme_format::journal::{CommitHeader, CommitKind, HEADER_SIZE, first_link};
use nvme_format::record::Version;
use nvme_format::{Generation, SlabId, crc};
use std::collections::VecDeque;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// A commit is closed at this size (or at 1/16 of a small ring).
const CLOSE_AT: usize = 1024 * 1024;
const GUESS_MIN: usize = 8 * 1024;
/// Closed commits that wait for the one in flight; beyond it nothing more is staged.
const CLOSED_MAX: usize = 4;

/// What happens once the commit of a record is durable.
#[derive(Clone, Debug)]
pub enum Effect {
    /// The append that the record of this version was; cuts after it lower what it makes durable.
    Durable {
        slot: LogSlot,
        version: Version,
        up_to: Offset,
    },
    /// The cut of this version, and so everything staged before it.
    Cut {
        slot: LogSlot,
        version: Version,
    },
    Freed {
        shard: ShardId,
        extents: Vec<Freed>,
    },
    Deleted {
        partition: PartitionId,
    },
    LogStart {
        slot: LogSlot,
        to: Offset,
    },
    SlabTaken {
        shard: ShardId,
        slab: SlabId,
    },
    SlabReleased {
        slab: SlabId,
    },
    View {
        metadata_offset: i64,
    },
    Stopped,
}

/// The arena has no memory for a commit now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMemory;

struct OpenCommit {
    buffer: Buffer,
    used: usize,
    kind: CommitKind,
    /// Tail pieces that lie in the buffer, by partition and position.
    pieces: Vec<(LogSlot, u64)>,
    effects: Vec<Effect>,
    needs_flush: bool,
}

/// A commit (with the wrap before it, where there is one), ready to be written.
pub struct ClosedCommit {
    pub sequence: u64,
    pub writes: Vec<(Block, BufferRef)>,
    pub effects: Vec<Effect>,
    pub needs_flush: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitStep {
    Writing { parts: u32 },
    Flushing,
    Complete,
}

pub struct CommitInFlight {
    pub sequence: u64,
    /// Where its first block lies.
    pub start: Block,
    pub step: CommitStep,
    pub effects: Vec<Effect>,
    pub flush_after: bool,
    pub closed_at: Monotonic,
    pub bytes: usize,
}

pub struct Lane {
    pub id: LaneId,
    namespace: Uuid,
    generation: Generation,
    first_sequence: u64,
    ring: Block,
    ring_blocks: u64,
    /// Blocks written to the ring in this generation, and how many of them are trimmed.
    pub head: u64,
    pub trimmed: u64,
    /// Of the next commit, and what it will name as its predecessor.
    pub sequence: u64,
    pub previous: u32,
    open: Option<OpenCommit>,
    pub closed: VecDeque<ClosedCommit>,
    pub in_flight: VecDeque<CommitInFlight>,
    /// Every commit up to it is complete, and (beside the cache mode) on the medium.
    pub durable: u64,
    /// Every commit up to it is on the medium whatever happens.
    pub flushed: u64,
    /// The newest sequence that is stated durable by a closed commit, and the newest commit that has records.
    pub stated: u64,
    pub last_records: u64,
    pub quiet_since: Monotonic,
    guess: usize,
    /// Buffers of closed commits and the tail pieces that lie in them, until the store has told the partitions.
    pub resolved: Vec<(BufferRef, Vec<(LogSlot, u64)>)>,
    /// A wrap stands at the ring's end, apart from the commit behind it: its block is kept ready, so that closing
    /// needs no memory.
    spare: Option<Buffer>,
    /// Zeroes are on their way to this position and beyond: no commit is closed into it meanwhile.
    pub held_from: Option<u64>,
}

/// Where a ring stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingStart {
    pub generation: Generation,
    pub first_sequence: u64,
}

impl Lane {
    pub fn new(id: LaneId, namespace: Uuid, start: RingStart, ring: Block, ring_blocks: u64) -> Lane {
        let before = start.first_sequence - 1;
        Lane {
            id,
            namespace,
            generation: start.generation,
            first_sequence: start.first_sequence,
            ring,
            ring_blocks,
            head: 0,
            trimmed: 0,
            sequence: start.first_sequence,
            previous: first_link(start.generation),
            open: None,
            closed: VecDeque::new(),
            in_flight: VecDeque::new(),
            durable: before,
            flushed: before,
            stated: before,
            last_records: before,
            quiet_since: Monotonic::ZERO,
            guess: GUESS_MIN,
            resolved: Vec::new(),
            spare: None,
            held_from: None,
        }
    }

    pub fn generation(&self) -> Generation {
        self.generation
    }

    pub fn first_sequence(&self) -> u64 {
        self.first_sequence
    }

    pub fn ring_start(&self) -> Block {
        self.ring
    }

    pub fn ring_blocks(&self) -> u64 {
        self.ring_blocks
    }

    fn close_at(&self) -> usize {
        CLOSE_AT.min((self.ring_blocks * BLOCK / 16) as usize)
    }

    /// Bytes of one record at most.
    pub fn record_max(&self) -> usize {
        self.close_at()
    }

    /// The commit being built, for bytes that only lie there yet.
    pub fn staged(&self) -> &[u8] {
        self.open.as_ref().map_or(&[], |open| &open.buffer[..open.used])
    }

    pub fn has_open(&self) -> bool {
        self.open.is_some()
    }

    pub fn is_idle(&self) -> bool {
        self.open.is_none() && self.closed.is_empty() && self.in_flight.is_empty()
    }

    /// Blocks of the ring that are in use, with the commit being built.
    pub fn untrimmed(&self) -> u64 {
        let open = self.open.as_ref().map_or(0, |open| open.used as u64).div_ceil(BLOCK);
        self.head + open - self.trimmed
    }

    /// Whether `len` more bytes of records fit, leaving 1/16 of the ring to internal ones.
    pub fn has_room(&self, len: usize, internal: bool) -> bool {
        if self.closed.len() >= CLOSED_MAX && !internal {
            return false;
        }
        // A commit that does not fit before the ring's end leaves up to its own length there unused.
        let open = self.open.as_ref().map_or(HEADER_SIZE, |open| open.used);
        let blocks = 2 * ((open + len) as u64).div_ceil(BLOCK) + 1;
        let limit = if internal { self.ring_blocks } else { self.ring_blocks - self.ring_blocks / 16 };
        self.head + blocks - self.trimmed <= limit
    }

    /// Makes sure that `len` more bytes can be staged without memory being asked for.
    pub fn reserve(&mut self, arena: &Arena, len: usize) -> Result<(), NoMemory> {
        if self.open.as_ref().is_some_and(|open| open.used + len > HEADER_SIZE && open.used + len > self.close_at()) {
            self.close();
        }
        if self.spare.is_none() {
            self.spare = Some(arena.try_allocate(BLOCK_SIZE).ok_or(NoMemory)?);
        }
        let open = self.open.as_ref();
        let used = open.map_or(HEADER_SIZE, |open| open.used);
        let needed = (used + len).next_multiple_of(BLOCK_SIZE);
        if open.is_some_and(|open| open.buffer.len() >= needed) {
            return Ok(());
        }
        let wanted = match open {
            None => needed.max(self.guess),
            Some(open) => needed.max(open.buffer.len() * 2),
        };
        let mut buffer = arena.try_allocate(wanted).or_else(|| arena.allocate_oversized(needed)).ok_or(NoMemory)?;
        match &mut self.open {
            Some(open) => {
                buffer[..open.used].copy_from_slice(&open.buffer[..open.used]);
                open.buffer = buffer;
            }
            None => {
                let (pieces, effects) = (Vec::new(), Vec::new());
                let kind = CommitKind::Records;
                self.open = Some(OpenCommit { buffer, used: HEADER_SIZE, kind, pieces, effects, needs_flush: false });
            }
        }
        Ok(())
    }

    /// The next `len` bytes of the commit being built, and where they stand in it; `reserve` came before.
    pub fn push(&mut self, len: usize) -> (usize, &mut [u8]) {
        let open = self.open.as_mut().expect("reserved before");
        let at = open.used;
        open.used += len;
        (at, &mut open.buffer[at..at + len])
    }

    pub fn note_piece(&mut self, slot: LogSlot, position: u64) {
        self.open.as_mut().expect("a piece lies in the commit").pieces.push((slot, position));
    }

    pub fn note_effect(&mut self, effect: Effect) {
        self.open.as_mut().expect("an effect belongs to a record").effects.push(effect);
    }

    pub fn note_needs_flush(&mut self) {
        self.open.as_mut().expect("a record was staged").needs_flush = true;
    }

    /// Makes the commit being built, or an empty one, a marker or the stop.
    pub fn stage_marker(&mut self, arena: &Arena, kind: CommitKind) -> Result<(), NoMemory> {
        self.reserve(arena, 0)?;
        let open = self.open.as_mut().expect("reserved");
        if open.used == HEADER_SIZE || kind == CommitKind::Stop {
            open.kind = kind;
        }
        Ok(())
    }

    /// Gives up a commit being built in which nothing stands: what it was reserved for was refused.
    pub fn forget_unused(&mut self) {
        if self.open.as_ref().is_some_and(|open| open.used == HEADER_SIZE && open.kind == CommitKind::Records) {
            self.open = None;
        }
    }

    /// Closes the commit being built where the ring has room for it and nothing else is on its way there; its tail pieces
    /// wait in `resolved`.
    pub fn close(&mut self) -> bool {
        let Some(open) = &self.open else { return false };
        let blocks = (open.used as u64).div_ceil(BLOCK);
        let at = self.head % self.ring_blocks;
        let rest = self.ring_blocks - at;
        let wrap = if blocks > rest { rest } else { 0 };
        let held = self.held_from.is_some_and(|from| self.head + wrap + blocks > from);
        if held || self.head + wrap + blocks - self.trimmed > self.ring_blocks {
            return false;
        }
        let mut open = self.open.take().expect("there is one");
        let mut writes = Vec::with_capacity(2);
        if wrap > 0 {
            let header = self.header(CommitKind::Wrap, wrap as u32, &[]);
            let mut block = self.spare.take().expect("reserved with the commit");
            block.fill(0);
            self.chain(&header, &mut block);
            writes.push((Block(self.ring.0 + at), block.freeze()));
        }
        let len = blocks as usize * BLOCK_SIZE;
        open.buffer[open.used..len].fill(0);
        self.guess = open.used.next_power_of_two().clamp(GUESS_MIN, CLOSE_AT);
        let header = self.header(open.kind, blocks as u32, &open.buffer[HEADER_SIZE..open.used]);
        let at = self.head % self.ring_blocks;
        let sequence = self.sequence;
        self.chain(&header, &mut open.buffer);
        open.buffer.truncate(len);
        let buffer = open.buffer.freeze();
        writes.push((Block(self.ring.0 + at), buffer.clone()));
        if open.kind == CommitKind::Records {
            self.last_records = sequence;
        }
        self.stated = header.durable;
        self.resolved.push((buffer, open.pieces));
        self.closed.push_back(ClosedCommit { sequence, writes, effects: open.effects, needs_flush: open.needs_flush });
        true
    }

    fn header(&self, kind: CommitKind, blocks: u32, payload: &[u8]) -> CommitHeader {
        CommitHeader {
            kind,
            namespace: self.namespace,
            lane: self.id,
            generation: self.generation,
            sequence: self.sequence,
            position: self.head,
            blocks,
            payload_len: payload.len() as u32,
            payload_crc: crc::crc32c(payload),
            previous: self.previous,
            durable: self.flushed,
        }
    }

    fn chain(&mut self, header: &CommitHeader, into: &mut [u8]) {
        self.previous = header.encode(into);
        self.sequence += 1;
        self.head += u64::from(header.blocks);
    }

    /// Whether the next commit should be closed now, one of `depth` being allowed in flight.
    pub fn wants_close(&self, depth: usize) -> bool {
        self.open.is_some() && self.closed.is_empty() && self.in_flight.len() < depth
    }
}
