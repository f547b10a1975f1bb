//! The extents of a shard: its slabs, and which of their units are taken. No other shard allocates from them.

use base::{Block, BlockRange};
use nvme_format::region::RegionMap;
use nvme_format::{EXTENT_UNIT_BLOCKS, ExtentAddress, ExtentOrder, SlabId};
use std::collections::BTreeMap;

struct Slab {
    start: Block,
    units: u32,
    free: u32,
    taken: Vec<u64>,
    /// The record of its taking is durable: extents of it may be written.
    durable: bool,
}

/// Two owners of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overlap;

pub struct Space {
    map: RegionMap,
    slabs: BTreeMap<SlabId, Slab>,
}

impl Space {
    pub fn new(map: RegionMap) -> Space {
        Space { map, slabs: BTreeMap::new() }
    }

    /// Takes a slab. The units under the superblock's copies, where they lie in it, are never given out.
    pub fn add(&mut self, slab: SlabId, durable: bool) {
        let start = self.map.slab_start(slab);
        let units = (self.map.slab_blocks / EXTENT_UNIT_BLOCKS) as u32;
        let mut space = Slab { start, units, free: units, taken: vec![0; (units as usize).div_ceil(64)], durable };
        for unit in 0..units {
            let range =
                BlockRange::new(Block(start.0 + u64::from(unit) * EXTENT_UNIT_BLOCKS), EXTENT_UNIT_BLOCKS as u32);
            if range.overlaps(self.map.hole()) {
                space.set(unit, 1, true);
            }
        }
        self.slabs.insert(slab, space);
    }

    pub fn remove(&mut self, slab: SlabId) {
        self.slabs.remove(&slab);
    }

    pub fn set_durable(&mut self, slab: SlabId) {
        if let Some(slab) = self.slabs.get_mut(&slab) {
            slab.durable = true;
        }
    }

    pub fn slabs(&self) -> Vec<SlabId> {
        self.slabs.keys().copied().collect()
    }

    pub fn free_units(&self) -> u64 {
        self.slabs.values().map(|slab| u64::from(slab.free)).sum()
    }

    pub fn total_units(&self) -> u64 {
        self.slabs.values().map(|slab| u64::from(slab.units)).sum()
    }

    /// Whether the extent lies in a slab whose taking is durable.
    pub fn is_durable(&self, extent: ExtentAddress) -> bool {
        self.slab(extent).is_some_and(|slab| slab.durable)
    }

    fn slab(&self, extent: ExtentAddress) -> Option<&Slab> {
        self.slabs.get(&self.map.slab_of(extent.start)?)
    }

    /// The first free extent of this order, low ones first.
    pub fn allocate(&mut self, order: ExtentOrder) -> Option<ExtentAddress> {
        let count = order.units() as u32;
        for slab in self.slabs.values_mut().filter(|slab| slab.free >= count) {
            let mut unit = 0;
            while unit + count <= slab.units {
                if slab.is_free(unit, count) {
                    slab.set(unit, count, true);
                    let start = Block(slab.start.0 + u64::from(unit) * EXTENT_UNIT_BLOCKS);
                    return Some(ExtentAddress { start, order });
                }
                unit += count;
            }
        }
        None
    }

    fn place(&mut self, extent: ExtentAddress) -> Option<(&mut Slab, u32, u32)> {
        let slab = self.slabs.get_mut(&self.map.slab_of(extent.start)?)?;
        let from = extent.start.0 - slab.start.0;
        let (unit, count) = ((from / EXTENT_UNIT_BLOCKS) as u32, extent.order.units() as u32);
        (from.is_multiple_of(EXTENT_UNIT_BLOCKS) && unit + count <= slab.units).then_some((slab, unit, count))
    }

    /// Takes a particular extent, as a recovery does for those that the map holds.
    pub fn mark(&mut self, extent: ExtentAddress) -> Result<(), Overlap> {
        let (slab, unit, count) = self.place(extent).ok_or(Overlap)?;
        if !slab.is_free(unit, count) {
            return Err(Overlap);
        }
        slab.set(unit, count, true);
        Ok(())
    }

    pub fn release(&mut self, extent: ExtentAddress) {
        let (slab, unit, count) = self.place(extent).expect("an extent of this shard");
        slab.set(unit, count, false);
    }

    /// Slabs of which nothing is taken, with a durable taking.
    pub fn empty_slabs(&self) -> Vec<SlabId> {
        let empty = |slab: &Slab| slab.durable && slab.free == slab.units;
        self.slabs.iter().filter(|(_, slab)| empty(slab)).map(|(id, _)| *id).collect()
    }
}

impl Slab {
    fn is_free(&self, unit: u32, count: u32) -> bool {
        (unit..unit + count).all(|unit| self.taken[unit as usize / 64] & (1 << (unit % 64)) == 0)
    }

    fn set(&mut self, unit: u32, count: u32, taken: bool) {
        for unit in unit..unit + count {
            let (word, bit) = (&mut self.taken[unit as usize / 64], 1u64 << (unit % 64));
            assert!((*word & bit == 0) == taken, "a unit is taken once and freed once");
            *word ^= bit;
        }
        self.free = if taken { self.free - count } else { self.free + count };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvme_format::region::{Plan, RING_DEFAULT};

    #[test]
    fn extents_are_disjoint_aligned_and_come_back() {
        let blocks = 64 * 256;
        let plan = Plan { blocks, blocks_max: blocks, cpus: 2, ring_bytes: RING_DEFAULT };
        let map = RegionMap::compute(plan).expect("large enough");
        let mut space = Space::new(map);
        let last = SlabId(map.slabs_within(blocks) - 1);
        space.add(last, true);
        space.add(SlabId(0), false);
        let mut taken: Vec<ExtentAddress> = Vec::new();
        for order in [0, 3, 1, 0, 5, 2].into_iter().cycle() {
            let Some(extent) = space.allocate(ExtentOrder::new(order).expect("small")) else { break };
            assert!(taken.iter().all(|other| !other.whole().overlaps(extent.whole())));
            assert!(!extent.whole().overlaps(map.hole()), "a copy of the superblock was given out");
            taken.push(extent);
        }
        assert!(!taken.is_empty());
        assert_eq!(space.mark(taken[0]), Err(Overlap));
        for extent in taken.drain(..) {
            space.release(extent);
        }
        assert_eq!(space.empty_slabs(), if space.free_units() == space.total_units() { vec![last] } else { vec![] });
    }
}
