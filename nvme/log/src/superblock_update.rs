//! An update of the superblock while a node runs: two copies, flush, two copies, flush, so that at every moment two equal
//! copies of the old state or of the new one are on the medium.

use arena::{Arena, BufferRef};
use base::{Block, BlockRange};
use nvme_format::Superblock;
use nvme_plan::{Operation, Promise};
use std::collections::VecDeque;

enum Step {
    Write(Block, BufferRef),
    Flush,
}

pub struct SuperblockUpdate {
    steps: VecDeque<Step>,
    in_flight: bool,
}

impl SuperblockUpdate {
    /// All memory that it needs is taken here; `None` where there is not enough.
    pub fn new(superblock: &Superblock, arena: &Arena) -> Option<SuperblockUpdate> {
        let mut steps = VecDeque::new();
        for (copy, block) in superblock.map.superblock_copies().into_iter().enumerate() {
            steps.push_back(Step::Write(block, arena.copy(&superblock.encode(copy))?));
            if copy % 2 == 1 {
                steps.push_back(Step::Flush);
            }
        }
        Some(SuperblockUpdate { steps, in_flight: false })
    }

    /// What the device is to do next, one thing at a time.
    pub fn next(&mut self) -> Option<Operation> {
        if self.in_flight {
            return None;
        }
        let operation = match self.steps.pop_front()? {
            Step::Write(block, piece) => {
                let (range, pieces) = (BlockRange::new(block, 1), vec![piece]);
                Operation::Write { range, pieces, promise: Promise::Accepted }
            }
            Step::Flush => Operation::Flush,
        };
        self.in_flight = true;
        Some(operation)
    }

    /// Says whether that was the last.
    pub fn on_complete(&mut self) -> bool {
        self.in_flight = false;
        self.steps.is_empty()
    }
}
