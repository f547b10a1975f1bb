//! Slabs and extents: their sizes and addresses.

use base::{BLOCK_SIZE, Block, BlockRange};
use std::fmt;

/// The smallest extent: what an almost empty partition costs.
pub const EXTENT_UNIT: u64 = 64 * 1024;
pub const EXTENT_UNIT_BLOCKS: u64 = EXTENT_UNIT / BLOCK_SIZE as u64;
/// No extent is larger, whatever the slab.
pub const EXTENT_MAX: u64 = 64 * 1024 * 1024;

const _: () = assert!(EXTENT_UNIT.is_multiple_of(BLOCK_SIZE as u64) && EXTENT_UNIT.is_power_of_two());
const _: () = assert!(EXTENT_MAX.is_multiple_of(EXTENT_UNIT) && EXTENT_MAX.is_power_of_two());

/// A slab, counted from the start of the slab region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlabId(pub u32);

impl fmt::Display for SlabId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The power of two of `EXTENT_UNIT` that an extent takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExtentOrder(u8);

impl ExtentOrder {
    pub const SMALLEST: ExtentOrder = ExtentOrder(0);
    pub const LARGEST: ExtentOrder = ExtentOrder((EXTENT_MAX / EXTENT_UNIT).trailing_zeros() as u8);

    pub fn new(order: u8) -> Option<ExtentOrder> {
        (order <= Self::LARGEST.0).then_some(ExtentOrder(order))
    }

    /// The smallest extent that holds `bytes`, where one does.
    pub fn holding(bytes: u64) -> Option<ExtentOrder> {
        let units = bytes.div_ceil(EXTENT_UNIT).max(1).checked_next_power_of_two()?;
        ExtentOrder::new(units.trailing_zeros() as u8)
    }

    pub fn number(self) -> u8 {
        self.0
    }

    pub fn next(self) -> ExtentOrder {
        ExtentOrder((self.0 + 1).min(Self::LARGEST.0))
    }

    pub fn units(self) -> u64 {
        1 << self.0
    }

    pub fn bytes(self) -> u64 {
        EXTENT_UNIT << self.0
    }

    pub fn blocks(self) -> u64 {
        EXTENT_UNIT_BLOCKS << self.0
    }
}

/// Where an extent lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExtentAddress {
    pub start: Block,
    pub order: ExtentOrder,
}

impl ExtentAddress {
    /// The blocks of a part of the extent; both bounds are multiples of the block size within it.
    pub fn range(self, from: u64, to: u64) -> BlockRange {
        let block = BLOCK_SIZE as u64;
        assert!(from < to && to <= self.order.bytes() && from.is_multiple_of(block) && to.is_multiple_of(block));
        BlockRange::new(Block(self.start.0 + from / block), ((to - from) / block) as u32)
    }

    pub fn whole(self) -> BlockRange {
        self.range(0, self.order.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_powers_of_two_of_the_unit() {
        assert_eq!(ExtentOrder::holding(0), Some(ExtentOrder::SMALLEST));
        assert_eq!(ExtentOrder::holding(EXTENT_UNIT), Some(ExtentOrder::SMALLEST));
        assert_eq!(ExtentOrder::holding(EXTENT_UNIT + 1).map(ExtentOrder::bytes), Some(2 * EXTENT_UNIT));
        assert_eq!(ExtentOrder::holding(EXTENT_MAX), Some(ExtentOrder::LARGEST));
        assert_eq!(ExtentOrder::holding(EXTENT_MAX + 1), None);
        assert_eq!(ExtentOrder::holding(u64::MAX), None);
        assert_eq!(ExtentOrder::LARGEST.next(), ExtentOrder::LARGEST);
    }

    #[test]
    fn a_part_of_an_extent_is_whole_blocks() {
        let extent = ExtentAddress { start: Block(100), order: ExtentOrder::SMALLEST };
        assert_eq!(extent.range(4096, 12288), BlockRange::new(Block(101), 2));
        assert_eq!(extent.whole(), BlockRange::new(Block(100), 16));
    }
}
