//! A ring that was never written is written with zeroes behind the node's back (rule 13): commits into unwritten blocks
//! of a file are slower, and nothing else. Zeroes go ahead of the commits, which wait where they come close to one in
//! flight; the ring's last block gets a mark, by which a later opening knows that the whole ring was written.

use crate::api::KeeperRequest;
use crate::io::Purpose;
use crate::store::{Stopping, Store};
use base::{BLOCK_SIZE, Block, BlockRange, Monotonic, Now};
use nvme_plan::{Class, Operation, Promise};
use std::time::Duration;

/// Zeroes written ahead of use: 1 MiB every 21 ms is 50 MB/s, of which every ring that is yet to be written and the file's
/// growth have an equal share. The share of a ring is the same until it is written; growth, whose keeper is told when one
/// is, gets what those had that are written.
pub(crate) const ZERO_BLOCKS: u64 = 256;
const ZERO_EVERY: Duration = Duration::from_millis(21);
/// Zeroes stay so far ahead of the commits, in a small ring a quarter of it.
const AHEAD_BLOCKS: u64 = 2048;
/// What stands in the last block of a ring that was written once. Any other bytes but zeroes are those of a commit that
/// came so far, which says the same.
const WRITTEN: &[u8] = b"every block of this ring was written once";

/// How far a ring is written, in positions of its first round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingZeroes {
    next: u64,
    due: Monotonic,
    every: Duration,
}

impl RingZeroes {
    pub(crate) fn new(every: Duration) -> RingZeroes {
        RingZeroes { next: 0, due: Monotonic::ZERO, every }
    }

    pub(crate) fn every(&self) -> Duration {
        self.every
    }
}

/// How often each of those who write zeroes side by side may write a piece.
pub(crate) fn pace(writers: u16) -> Duration {
    ZERO_EVERY * u32::from(writers.max(1))
}

/// Whether a ring with this last block was written once.
pub(crate) fn was_written(last_block: &[u8]) -> bool {
    last_block.iter().any(|byte| *byte != 0)
}

impl Store {
    pub(crate) fn poll_ring_zeroes(&mut self, now: Now) {
        let Some(zeroes) = self.ring_zeroes else { return };
        if self.lane.held_from.is_some() || now.monotonic < zeroes.due || self.stopping != Stopping::No {
            return;
        }
        let last = self.lane.ring_blocks() - 1;
        let ahead = AHEAD_BLOCKS.min(self.lane.ring_blocks() / 4);
        let from = zeroes.next.max(self.lane.head + ahead);
        if from > last {
            // The commits came first; they write the rest themselves.
            self.end_ring_zeroes();
            return;
        }
        let (count, operation) = if from < last {
            let count = ZERO_BLOCKS.min(u64::from(self.geometry.transfer_max)).min(last - from);
            (count, Operation::WriteZeroes { range: self.lane.range(from, count) })
        } else {
            let Some(mut mark) = self.arena.try_allocate(BLOCK_SIZE) else { return };
            mark.fill(0);
            mark[..WRITTEN.len()].copy_from_slice(WRITTEN);
            let range = self.lane.range(last, 1);
            (1, Operation::Write { range, pieces: vec![mark.freeze()], promise: Promise::Accepted })
        };
        self.lane.held_from = Some(from);
        self.ring_zeroes = Some(RingZeroes { next: from + count, due: now.monotonic + zeroes.every, ..zeroes });
        self.io.emit(Purpose::RingZeroes, Class::Background, None, operation);
    }

    pub(crate) fn on_ring_zeroes(&mut self) {
        self.lane.held_from = None;
        if self.ring_zeroes.is_some_and(|zeroes| zeroes.next >= self.lane.ring_blocks()) {
            self.end_ring_zeroes();
        }
    }

    fn end_ring_zeroes(&mut self) {
        self.ring_zeroes = None;
        self.requests.push_back(KeeperRequest::RingWritten);
    }

    /// When the next zeroes are due.
    pub(crate) fn ring_zeroes_deadline(&self) -> Option<Monotonic> {
        let idle = self.lane.held_from.is_none() && self.stopping == Stopping::No;
        self.ring_zeroes.filter(|_| idle).map(|zeroes| zeroes.due)
    }
}

impl crate::lane::Lane {
    fn range(&self, position: u64, count: u64) -> BlockRange {
        BlockRange::new(Block(self.ring_start().0 + position), count as u32)
    }
}
