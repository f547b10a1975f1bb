//! The scan of one lane: which commits are accepted, and whether the chain ends there or is damaged (rules 3 and 4).

use arena::BufferRef;
use base::{BLOCK_SIZE, Block, BlockRange, LaneId, Uuid};
use nvme_format::Generation;
use nvme_format::journal::{CommitHeader, CommitKind};

/// What one step reads: enough that the device always has several reads to work on.
const CHUNK_BLOCKS: u64 = 1024;
/// How far behind a break a later commit of the chain is looked for: the whole ring, but of a very large one, where only
/// damage of as many commits in a row could be taken for the journal's end.
const WINDOW_BLOCKS: u64 = 256 * 1024 * 1024 / BLOCK_SIZE as u64;

pub struct Accepted {
    pub sequence: u64,
    /// The whole commit.
    pub bytes: BufferRef,
    pub header: CommitHeader,
}

/// A place of the chain that is damaged: a later commit states it durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    pub lane: LaneId,
    pub sequence: u64,
    /// The first commit that is accepted behind it.
    pub resumed_at: u64,
}

/// Where a chain goes on.
#[derive(Clone, Copy, Debug)]
struct Expected {
    sequence: u64,
    position: u64,
    previous: Option<u32>,
}

pub struct LaneScan {
    lane: LaneId,
    namespace: Uuid,
    generation: Generation,
    ring: Block,
    ring_blocks: u64,
    /// Ring positions that were read into `bytes`, whose first byte is of `from`.
    from: u64,
    bytes: Vec<u8>,
    /// Nothing is read at or beyond this position: the ring has come round.
    limit: u64,
    expected: Expected,
    /// The chain broke here; a later commit is looked for from `looked` on.
    broken: Option<u64>,
    looked: u64,
    pub accepted: Vec<Accepted>,
    pub damages: Vec<Damage>,
    pub durable: u64,
    pub stopped_cleanly: bool,
    pub done: bool,
}

/// Where a lane's scan begins.
#[derive(Clone, Copy, Debug)]
pub struct ScanStart {
    pub sequence: u64,
    pub position: u64,
    pub previous: u32,
}

impl LaneScan {
    pub fn new(
        lane: LaneId,
        namespace: Uuid,
        generation: Generation,
        (ring, ring_blocks): (Block, u64),
        start: ScanStart,
    ) -> LaneScan {
        let expected = Expected { sequence: start.sequence, position: start.position, previous: Some(start.previous) };
        LaneScan {
            lane,
            namespace,
            generation,
            ring,
            ring_blocks,
            from: start.position,
            bytes: Vec::new(),
            limit: start.position + ring_blocks,
            expected,
            broken: None,
            looked: start.position,
            accepted: Vec::new(),
            damages: Vec::new(),
            durable: start.sequence - 1,
            stopped_cleanly: false,
            done: false,
        }
    }

    pub fn lane(&self) -> LaneId {
        self.lane
    }

    /// The sequence of the last accepted commit, or of the one before the scan.
    pub fn last_sequence(&self) -> u64 {
        self.expected.sequence - 1
    }

    fn read_until(&self) -> u64 {
        self.from + (self.bytes.len() / BLOCK_SIZE) as u64
    }

    /// The next range to read, which never passes the ring's end.
    pub fn next_read(&self) -> BlockRange {
        let at = self.read_until();
        let place = at % self.ring_blocks;
        let count = CHUNK_BLOCKS.min(self.ring_blocks - place).min(self.limit - at).max(1);
        BlockRange::new(Block(self.ring.0 + place), count as u32)
    }

    /// Takes what was read and goes on with the chain as far as that goes.
    pub fn take(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        while self.step() {}
        if self.read_until() >= self.limit && !self.done {
            self.done = true;
        }
    }

    fn block(&self, position: u64) -> Option<&[u8]> {
        let at = position.checked_sub(self.from)? as usize * BLOCK_SIZE;
        self.bytes.get(at..at + BLOCK_SIZE)
    }

    /// The header of this lane's chain at a position, whatever its number.
    fn header_at(&self, position: u64) -> Option<(CommitHeader, u32)> {
        let (header, crc) = CommitHeader::decode(self.block(position)?).ok()?;
        let own = header.lane == self.lane
            && header.namespace == self.namespace
            && header.generation == self.generation
            && header.position == position;
        own.then_some((header, crc))
    }

    /// One commit, or one block of the search behind a break; false where more must be read or all is done.
    fn step(&mut self) -> bool {
        if self.done {
            return false;
        }
        match self.broken {
            None => self.step_chain(),
            Some(sequence) => self.step_search(sequence),
        }
    }

    fn step_chain(&mut self) -> bool {
        let position = self.expected.position;
        if self.block(position).is_none() {
            return false;
        }
        let found = self.header_at(position).filter(|(header, _)| {
            header.sequence == self.expected.sequence
                && self.expected.previous.is_none_or(|previous| header.previous == previous)
        });
        let Some((header, crc)) = found else { return self.begin_search() };
        let wanted = if header.kind == CommitKind::Wrap { 1 } else { u64::from(header.blocks) };
        let place = position % self.ring_blocks;
        if place + u64::from(header.blocks) > self.ring_blocks || position + wanted > self.limit {
            return self.begin_search();
        }
        let at = (position - self.from) as usize * BLOCK_SIZE;
        let Some(bytes) = self.bytes.get(at..at + wanted as usize * BLOCK_SIZE) else { return false };
        if header.payload(bytes).is_err() {
            return self.begin_search();
        }
        let bytes = BufferRef::from_vec(bytes.to_vec());
        self.durable = self.durable.max(header.durable);
        self.stopped_cleanly = header.kind == CommitKind::Stop;
        self.accepted.push(Accepted { sequence: header.sequence, bytes, header });
        self.expected = Expected {
            sequence: header.sequence + 1,
            position: position + u64::from(header.blocks),
            previous: Some(crc),
        };
        self.forget(self.expected.position);
        true
    }

    /// Bytes before the place of the chain, or of the search, are not needed again.
    fn forget(&mut self, position: u64) {
        let count = (position.min(self.read_until()) - self.from) as usize;
        if count as u64 >= CHUNK_BLOCKS {
            self.bytes.drain(..count * BLOCK_SIZE);
            self.from += count as u64;
        }
        // A wrap fills the ring's end without its blocks being of interest; they are read all the same.
    }

    fn begin_search(&mut self) -> bool {
        if self.stopped_cleanly {
            // Nothing follows the commit that says so.
            self.done = true;
            return false;
        }
        self.broken = Some(self.expected.sequence);
        self.looked = self.expected.position + 1;
        true
    }

    /// Looks for a commit of this generation that says the missing one was durable. Anything else that is found was in
    /// flight with it, and the journal ends before them.
    fn step_search(&mut self, sequence: u64) -> bool {
        if self.looked >= (self.expected.position + WINDOW_BLOCKS).min(self.limit) {
            self.done = true;
            return false;
        }
        if self.block(self.looked).is_none() {
            return false;
        }
        let position = self.looked;
        self.forget(position);
        self.looked += 1;
        let Some((header, _)) = self.header_at(position) else { return true };
        if header.sequence <= sequence || header.durable < sequence {
            return true;
        }
        self.durable = self.durable.max(header.durable);
        self.damages.push(Damage { lane: self.lane, sequence, resumed_at: header.sequence });
        self.expected = Expected { sequence: header.sequence, position, previous: None };
        self.broken = None;
        true
    }

    /// Takes back everything from this commit on: what it names was lost with the power, and nobody was told of it.
    pub fn reject_from(&mut self, sequence: u64) {
        self.accepted.retain(|commit| commit.sequence < sequence);
        self.stopped_cleanly = false;
    }
}
