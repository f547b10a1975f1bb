//! Units of the media (design: a block is 4096 bytes; an extent a power-of-two run of blocks under a tenancy number).

use std::fmt;

/// The unit of every device operation.
pub const BLOCK_SIZE: usize = 4096;

/// A block of a namespace, counted from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block(pub u64);

/// A contiguous run of blocks, never empty in an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockRange {
    pub start: Block,
    pub count: u32,
}

impl BlockRange {
    pub const fn new(start: Block, count: u32) -> BlockRange {
        BlockRange { start, count }
    }

    /// The first block after the range.
    pub const fn end(self) -> Block {
        Block(self.start.0 + self.count as u64)
    }

    pub const fn bytes(self) -> u64 {
        self.count as u64 * BLOCK_SIZE as u64
    }

    pub const fn overlaps(self, other: BlockRange) -> bool {
        self.start.0 < other.end().0 && other.start.0 < self.end().0
    }
}

impl fmt::Display for BlockRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "blocks {}..{}", self.start.0, self.end().0)
    }
}

/// Bytes from the start of a partition's log on the medium (or of an extent, where the type around it says so).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub u64);

/// The number under which an extent is given to a partition; never reused in a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenancy(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_overlap_only_when_they_share_a_block() {
        let a = BlockRange::new(Block(4), 4);
        assert!(a.overlaps(BlockRange::new(Block(7), 1)));
        assert!(!a.overlaps(BlockRange::new(Block(8), 1)));
        assert!(!a.overlaps(BlockRange::new(Block(0), 4)));
        assert_eq!(a.bytes(), 16384);
    }
}
