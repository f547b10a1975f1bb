//! The walk of one lane: the chain of its commits, where it ends, and whether it is damaged (design 02, rules 3 and 4).
//! It is written beside `nvme/log`'s own scan, not with it: `check` compares the two.

use crate::source::{self, Source, Unread};
use base::{BLOCK_SIZE, Block, LaneId};
use nvme_format::journal::{CommitHeader, CommitKind, first_link};
use nvme_format::root::Root;
use nvme_format::superblock::Superblock;

/// Blocks fetched at once.
const FETCH_BLOCKS: u64 = 256;
/// How far behind a break a commit is looked for that states the missing one durable.
const SEARCH_BLOCKS: u64 = 256 * 1024 * 1024 / BLOCK_SIZE as u64;

/// Where a walk begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    pub sequence: u64,
    pub position: u64,
    pub previous: u32,
}

impl Start {
    /// The oldest place that a shard of this lane still needs.
    pub fn of<'a>(superblock: &Superblock, lane: LaneId, roots: impl Iterator<Item = &'a Root>) -> Start {
        let own = roots.filter(|root| root.lane == lane).min_by_key(|root| root.next_sequence);
        match own {
            Some(root) => Start { sequence: root.next_sequence, position: root.position, previous: root.previous },
            None => {
                Start { sequence: superblock.first_sequence, position: 0, previous: first_link(superblock.generation) }
            }
        }
    }
}

/// A part of the chain that is missing though a later commit states it durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Break {
    pub sequence: u64,
    pub position: u64,
    pub resumed_at: u64,
}

/// Why the walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Nothing of this generation follows.
    Quiet,
    /// The last run stopped cleanly.
    Stopped,
    /// Commits follow that are not whole, or whose predecessor is not; nothing states them durable.
    InFlight {
        sequence: u64,
    },
    /// The walk came round the whole ring.
    WholeRing,
    Unread(Unread),
}

pub(crate) struct Walk {
    pub commits: u64,
    pub next_sequence: u64,
    pub next_position: u64,
    /// Stated durable by a commit of the chain.
    pub durable: u64,
    pub breaks: Vec<Break>,
    pub end: End,
}

struct Ring<'a, S: ?Sized> {
    source: &'a mut S,
    superblock: &'a Superblock,
    lane: LaneId,
    cached_from: u64,
    cached: Vec<u8>,
}

impl<S: Source + ?Sized> Ring<'_, S> {
    fn blocks(&self) -> u64 {
        self.superblock.map.ring_blocks
    }

    /// `count` blocks from a ring position on, which do not pass the ring's end.
    fn bytes(&mut self, position: u64, count: u64) -> Result<&[u8], Unread> {
        let inside = position >= self.cached_from
            && (position + count - self.cached_from) * BLOCK_SIZE as u64 <= self.cached.len() as u64;
        if !inside {
            let place = position % self.blocks();
            let fetch = FETCH_BLOCKS.max(count).min(self.blocks() - place);
            let start = Block(self.superblock.map.ring(self.lane).0 + place);
            self.cached = source::read(self.source, start, fetch)?;
            self.cached_from = position;
        }
        let at = (position - self.cached_from) as usize * BLOCK_SIZE;
        Ok(&self.cached[at..at + count as usize * BLOCK_SIZE])
    }

    /// A header of this lane and generation that says it stands here.
    fn header(&mut self, position: u64) -> Result<Option<(CommitHeader, u32)>, Unread> {
        let (namespace, generation, lane) = (self.superblock.namespace, self.superblock.generation, self.lane);
        let Ok((header, crc)) = CommitHeader::decode(self.bytes(position, 1)?) else { return Ok(None) };
        let own = (header.namespace, header.generation, header.lane) == (namespace, generation, lane);
        Ok((own && header.position == position).then_some((header, crc)))
    }
}

/// Walks the lane; `visit` sees every accepted commit and its payload.
pub(crate) fn walk<S: Source + ?Sized>(
    source: &mut S,
    superblock: &Superblock,
    lane: LaneId,
    start: Start,
    visit: &mut dyn FnMut(&CommitHeader, &[u8]),
) -> Walk {
    let mut walk = Walk {
        commits: 0,
        next_sequence: start.sequence,
        next_position: start.position,
        durable: start.sequence.saturating_sub(1),
        breaks: Vec::new(),
        end: End::WholeRing,
    };
    let mut ring = Ring { source, superblock, lane, cached_from: 0, cached: Vec::new() };
    if let Err(unread) = walk.run(&mut ring, start, visit) {
        walk.end = End::Unread(unread);
    }
    walk
}

impl Walk {
    fn run<S: Source + ?Sized>(
        &mut self,
        ring: &mut Ring<'_, S>,
        start: Start,
        visit: &mut dyn FnMut(&CommitHeader, &[u8]),
    ) -> Result<(), Unread> {
        let limit = start.position.saturating_add(ring.blocks());
        let mut previous = Some(start.previous);
        let mut stopped = false;
        while self.next_position < limit {
            if let Some((header, crc)) = self.accept(ring, limit, previous, visit)? {
                self.commits += 1;
                self.durable = self.durable.max(header.durable);
                self.next_sequence = header.sequence + 1;
                self.next_position += u64::from(header.blocks);
                previous = Some(crc);
                stopped = header.kind == CommitKind::Stop;
                continue;
            }
            let Some((header, position)) = self.search(ring, limit)? else {
                if self.end == End::Quiet && stopped {
                    self.end = End::Stopped;
                }
                return Ok(());
            };
            self.durable = self.durable.max(header.durable);
            self.breaks.push(Break {
                sequence: self.next_sequence,
                position: self.next_position,
                resumed_at: header.sequence,
            });
            (self.next_sequence, self.next_position, previous) = (header.sequence, position, None);
        }
        Ok(())
    }

    /// The commit at the walk's place, if it extends the chain.
    fn accept<S: Source + ?Sized>(
        &self,
        ring: &mut Ring<'_, S>,
        limit: u64,
        previous: Option<u32>,
        visit: &mut dyn FnMut(&CommitHeader, &[u8]),
    ) -> Result<Option<(CommitHeader, u32)>, Unread> {
        let position = self.next_position;
        let Some((header, crc)) = ring.header(position)? else { return Ok(None) };
        let written = if header.kind == CommitKind::Wrap { 1 } else { u64::from(header.blocks) };
        let extends = header.sequence == self.next_sequence
            && previous.is_none_or(|previous| previous == header.previous)
            && position % ring.blocks() + u64::from(header.blocks) <= ring.blocks()
            && position + written <= limit;
        if !extends {
            return Ok(None);
        }
        match header.payload(ring.bytes(position, written)?) {
            Ok(payload) => {
                visit(&header, payload);
                Ok(Some((header, crc)))
            }
            Err(_) => Ok(None),
        }
    }

    /// Looks behind a break for a commit that states the missing one durable. Where there is none the chain ends here,
    /// and `end` says how.
    fn search<S: Source + ?Sized>(
        &mut self,
        ring: &mut Ring<'_, S>,
        limit: u64,
    ) -> Result<Option<(CommitHeader, u64)>, Unread> {
        let missing = self.next_sequence;
        let begun = ring.header(self.next_position)?.is_some_and(|(header, _)| header.sequence >= missing);
        self.end = if begun { End::InFlight { sequence: missing } } else { End::Quiet };
        let until = (self.next_position + SEARCH_BLOCKS).min(limit);
        for position in self.next_position + 1..until {
            let Some((header, _)) = ring.header(position)? else { continue };
            if header.sequence <= missing {
                continue;
            }
            if header.durable >= missing {
                return Ok(Some((header, position)));
            }
            self.end = End::InFlight { sequence: missing };
        }
        Ok(None)
    }
}
