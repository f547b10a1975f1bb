//! Where everything lies: computed once from size and CPUs at format, kept in the superblock, checked when it is read.

use crate::codec::{Malformed, Reader, Sink};
use crate::extent::{EXTENT_MAX, EXTENT_UNIT_BLOCKS, ExtentOrder, SlabId};
use base::{BLOCK_SIZE, Block, BlockRange, LaneId, ShardId};

const MIB: u64 = 1024 * 1024;
const GIB: u64 = 1024 * MIB;
const BLOCK: u64 = BLOCK_SIZE as u64;

/// The smallest namespace that can be formatted.
pub const NAMESPACE_MIN: u64 = 16 * MIB;
/// The ring of a lane where nothing else was asked for.
pub const RING_DEFAULT: u64 = 64 * MIB;
const RING_MIN: u64 = MIB;
const LANES_MIN: u16 = 4;
const SHARDS_PER_CPU: u16 = 4;
const SHARDS_MIN: u16 = 8;
const SHARDS_MAX: u16 = 1024;
/// Rings together take at most this part of the namespace.
const RINGS_PART: u64 = 4;
const SLABS_MIN: u64 = 4;
/// The largest slab there is.
const SLAB_MAX: u64 = GIB;
/// Copies of the superblock; two at each end of the first GiB.
pub const SUPERBLOCK_COPIES: usize = 4;

/// What a format is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Blocks that the namespace has now.
    pub blocks: u64,
    /// Blocks that it may have in the end: more than `blocks` only for a file that grows.
    pub blocks_max: u64,
    pub cpus: u16,
    /// Bytes of a lane's ring at most.
    pub ring_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegionError {
    #[error("a namespace of {bytes} bytes is too small: at least {least} bytes are needed")]
    TooSmall { bytes: u64, least: u64 },
}

/// The map of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionMap {
    pub lanes: u16,
    pub shards: u16,
    /// The first block after the second pair of superblock copies.
    pub superblocks_end: Block,
    pub rings: Block,
    pub ring_blocks: u64,
    pub roots: Block,
    pub slabs: Block,
    pub slab_blocks: u64,
    pub blocks_max: u64,
}

impl RegionMap {
    pub fn compute(plan: Plan) -> Result<RegionMap, RegionError> {
        let nominal = plan.blocks_max.max(plan.blocks);
        let too_small = |least| RegionError::TooSmall { bytes: plan.blocks * BLOCK, least };
        if plan.blocks * BLOCK < NAMESPACE_MIN {
            return Err(too_small(NAMESPACE_MIN));
        }
        let lanes = plan.cpus.max(LANES_MIN);
        let shards = plan.cpus.saturating_mul(SHARDS_PER_CPU).clamp(SHARDS_MIN, SHARDS_MAX);
        let bytes = nominal * BLOCK;
        let slab_bytes = slab_bytes(bytes);
        let largest = (bytes / 16).min(bytes / RINGS_PART / u64::from(lanes));
        let ring_bytes = plan.ring_bytes.min(largest).max(RING_MIN) / MIB * MIB;
        let superblocks_end = Block(superblocks_end(plan.blocks, plan.blocks_max > plan.blocks));
        let hole = BlockRange::new(Block(superblocks_end.0 - 2), 2);
        let place = |from: u64, blocks: u64| {
            let wanted = from.next_multiple_of(EXTENT_UNIT_BLOCKS);
            let overlaps = wanted < hole.end().0 && hole.start.0 < wanted + blocks;
            if overlaps { hole.end().0.next_multiple_of(EXTENT_UNIT_BLOCKS) } else { wanted }
        };
        let rings = place(2, ring_bytes / BLOCK * u64::from(lanes));
        let roots = place(rings + ring_bytes / BLOCK * u64::from(lanes), u64::from(shards) * 2);
        let slabs = (roots + u64::from(shards) * 2).next_multiple_of(EXTENT_UNIT_BLOCKS);
        let map = RegionMap {
            lanes,
            shards,
            superblocks_end,
            rings: Block(rings),
            ring_blocks: ring_bytes / BLOCK,
            roots: Block(roots),
            slabs: Block(slabs),
            slab_blocks: slab_bytes / BLOCK,
            blocks_max: nominal,
        };
        if u64::from(map.slabs_within(plan.blocks)) < SLABS_MIN {
            return Err(too_small(slabs * BLOCK + SLABS_MIN * slab_bytes));
        }
        Ok(map)
    }

    /// Where the copies of the superblock lie: one of each pair at each end, so that the two writes of an update go to
    /// different ends.
    pub fn superblock_copies(&self) -> [Block; SUPERBLOCK_COPIES] {
        copies(self.superblocks_end.0)
    }

    pub fn ring(&self, lane: LaneId) -> Block {
        assert!(lane.0 < self.lanes, "lane {lane} is not one of {}", self.lanes);
        Block(self.rings.0 + u64::from(lane.0) * self.ring_blocks)
    }

    pub fn root(&self, shard: ShardId, slot: usize) -> Block {
        assert!(shard.0 < self.shards && slot < 2, "shard {shard} has no root {slot}");
        Block(self.roots.0 + u64::from(shard.0) * 2 + slot as u64)
    }

    pub fn slab_bytes(&self) -> u64 {
        self.slab_blocks * BLOCK
    }

    pub fn slab_start(&self, slab: SlabId) -> Block {
        Block(self.slabs.0 + u64::from(slab.0) * self.slab_blocks)
    }

    pub fn slab_of(&self, block: Block) -> Option<SlabId> {
        let from = block.0.checked_sub(self.slabs.0)?;
        u32::try_from(from / self.slab_blocks).ok().map(SlabId)
    }

    /// Slabs that lie wholly within the first `blocks` of the namespace.
    pub fn slabs_within(&self, blocks: u64) -> u32 {
        (blocks.saturating_sub(self.slabs.0) / self.slab_blocks) as u32
    }

    /// The copies of the superblock that may lie inside the slab region: no extent may take them.
    pub fn hole(&self) -> BlockRange {
        BlockRange::new(Block(self.superblocks_end.0 - 2), 2)
    }

    /// Blocks that no region has, for trying out how fast the device is.
    pub fn scratch(&self) -> Option<BlockRange> {
        let count = (self.rings.0 - 2).min(2);
        (count > 0).then(|| BlockRange::new(Block(2), count as u32))
    }

    /// The largest extent there can be.
    pub fn largest_extent(&self) -> ExtentOrder {
        ExtentOrder::holding(self.slab_bytes().min(EXTENT_MAX)).expect("a slab is a power of two of the unit")
    }

    /// The largest batch that fits: `max.message.bytes` above it is refused when it is set.
    pub fn batch_max(&self) -> u64 {
        (16 * MIB).min(self.slab_bytes() / 2)
    }

    /// Slabs that only internal records, checkpoints and deletion may use: 64 MiB or 1/16 of the namespace, if less.
    pub fn reserved_slabs(&self, blocks: u64) -> u32 {
        let bytes = (64 * MIB).min(blocks * BLOCK / 16);
        u32::try_from(bytes / self.slab_bytes()).unwrap_or(u32::MAX).max(1)
    }

    pub fn encode(&self, sink: &mut impl Sink) {
        sink.u16(self.lanes);
        sink.u16(self.shards);
        sink.u64(self.superblocks_end.0);
        sink.u64(self.rings.0);
        sink.u64(self.ring_blocks);
        sink.u64(self.roots.0);
        sink.u64(self.slabs.0);
        sink.u64(self.slab_blocks);
        sink.u64(self.blocks_max);
    }

    /// Reads a map and refuses one whose regions overlap or whose sizes this code could not have computed.
    pub fn decode(reader: &mut Reader<'_>) -> Result<RegionMap, Malformed> {
        let map = RegionMap {
            lanes: reader.u16()?,
            shards: reader.u16()?,
            superblocks_end: Block(reader.u64()?),
            rings: Block(reader.u64()?),
            ring_blocks: reader.u64()?,
            roots: Block(reader.u64()?),
            slabs: Block(reader.u64()?),
            slab_blocks: reader.u64()?,
            blocks_max: reader.u64()?,
        };
        if map.is_sound() { Ok(map) } else { Err(Malformed) }
    }

    fn is_sound(&self) -> bool {
        let far = 1u64 << 48;
        let all = [
            self.superblocks_end.0,
            self.rings.0,
            self.ring_blocks,
            self.roots.0,
            self.slabs.0,
            self.slab_blocks,
            self.blocks_max,
        ];
        if all.iter().any(|n| *n >= far) || self.lanes == 0 || self.shards == 0 || self.superblocks_end.0 < 4 {
            return false;
        }
        let rings_end = self.rings.0 + self.ring_blocks * u64::from(self.lanes);
        let roots_end = self.roots.0 + u64::from(self.shards) * 2;
        let hole = self.superblocks_end.0 - 2;
        let clear = |from: u64, to: u64| to <= hole || self.superblocks_end.0 <= from;
        self.rings.0 >= 2
            && self.ring_blocks * BLOCK >= RING_MIN
            && rings_end <= self.roots.0
            && roots_end <= self.slabs.0
            && clear(self.rings.0, rings_end)
            && clear(self.roots.0, roots_end)
            && self.slabs.0.is_multiple_of(EXTENT_UNIT_BLOCKS)
            && self.slab_blocks.is_power_of_two()
            && self.slab_blocks >= EXTENT_UNIT_BLOCKS
            && self.slab_blocks <= SLAB_MAX / BLOCK
    }
}

/// What a file grows by.
pub const GROWTH_STEP: u64 = 256 * MIB;

/// What a file that grows to `plan.blocks_max` should have at first: rings, roots and a few slabs. Up to a GiB a power
/// of two, so that the superblock's second copies lie at its end, and by steps of growth beyond; `None` where even the
/// whole is too small.
pub fn initial_blocks(plan: Plan) -> Option<u64> {
    let mut blocks = NAMESPACE_MIN / BLOCK;
    while blocks < plan.blocks_max {
        if RegionMap::compute(Plan { blocks, ..plan }).is_ok() {
            return Some(blocks);
        }
        blocks += if blocks < GIB / BLOCK { blocks } else { GROWTH_STEP / BLOCK };
    }
    RegionMap::compute(Plan { blocks: plan.blocks_max, ..plan }).ok().map(|_| plan.blocks_max)
}

/// size/1024 as a power of two from 64 MiB to 1 GiB; under 4 GiB size/64, at least 4 MiB. Below 64 MiB of namespace
/// (tests) a slab is 1 MiB, so that the shards have one each.
fn slab_bytes(bytes: u64) -> u64 {
    let floor = |n: u64| 1 << n.ilog2();
    if bytes < 64 * MIB {
        MIB
    } else if bytes < 4 * GIB {
        floor(bytes / 64).max(4 * MIB)
    } else {
        floor(bytes / 1024).clamp(64 * MIB, SLAB_MAX)
    }
}

/// A namespace that grows has its second pair at a power of two, where an opening finds it again without being told.
fn superblocks_end(blocks: u64, grows: bool) -> u64 {
    let end = blocks.min(GIB / BLOCK);
    if grows { 1 << end.ilog2() } else { end }
}

fn copies(superblocks_end: u64) -> [Block; SUPERBLOCK_COPIES] {
    [Block(0), Block(superblocks_end - 2), Block(1), Block(superblocks_end - 1)]
}

/// Where an opening looks for superblocks when those at the start do not say: ends of the first GiB that a format may
/// have chosen for a namespace of this size.
pub fn superblock_candidates(blocks: u64) -> Vec<[Block; SUPERBLOCK_COPIES]> {
    let mut ends = vec![blocks.min(GIB / BLOCK)];
    let mut power = 1u64 << blocks.clamp(1, GIB / BLOCK).ilog2();
    while power * BLOCK >= NAMESPACE_MIN {
        if !ends.contains(&power) {
            ends.push(power);
        }
        power /= 2;
    }
    ends.into_iter().filter(|end| *end >= 4).map(copies).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(bytes: u64, max: u64, cpus: u16) -> RegionMap {
        RegionMap::compute(Plan { blocks: bytes / BLOCK, blocks_max: max / BLOCK, cpus, ring_bytes: RING_DEFAULT })
            .expect("large enough")
    }

    #[test]
    fn sizes_follow_the_design() {
        assert_eq!(map(64 * MIB, 64 * MIB, 2).slab_bytes(), 4 * MIB);
        assert_eq!(map(2 * GIB, 2 * GIB, 2).slab_bytes(), 32 * MIB);
        assert_eq!(map(GIB, 100 * GIB, 8).slab_bytes(), 64 * MIB);
        assert_eq!(map(2048 * GIB, 2048 * GIB, 64).slab_bytes(), GIB);
        let small = map(64 * MIB, 64 * MIB, 2);
        assert_eq!((small.lanes, small.shards, small.ring_blocks * BLOCK), (4, 8, 4 * MIB));
        assert_eq!(map(2048 * GIB, 2048 * GIB, 300).shards, 1024);
        assert_eq!(map(GIB, GIB, 2).batch_max(), 8 * MIB);
        assert_eq!(map(64 * GIB, 64 * GIB, 2).batch_max(), 16 * MIB);
    }

    #[test]
    fn every_computed_map_is_sound_and_round_trips() {
        for mib in [16, 17, 31, 32, 48, 64, 100, 255, 256, 512, 700, 1024, 1500, 4096, 20_000, 300_000] {
            for cpus in [1, 2, 8, 64] {
                for factor in [1, 3, 40] {
                    let plan = Plan {
                        blocks: mib * MIB / BLOCK,
                        blocks_max: mib * factor * MIB / BLOCK,
                        cpus,
                        ring_bytes: RING_DEFAULT,
                    };
                    let Ok(map) = RegionMap::compute(plan) else { continue };
                    assert!(map.is_sound(), "{plan:?} {map:?}");
                    let mut bytes = Vec::new();
                    map.encode(&mut bytes);
                    assert_eq!(RegionMap::decode(&mut Reader::new(&bytes)), Ok(map));
                    assert!(superblock_candidates(plan.blocks).contains(&map.superblock_copies()));
                    assert!(superblock_candidates(plan.blocks_max).contains(&map.superblock_copies()));
                }
            }
        }
    }

    #[test]
    fn a_growing_file_starts_small() {
        let start = |gib: u64, cpus| {
            let plan = Plan { blocks: 0, blocks_max: gib * GIB / BLOCK, cpus, ring_bytes: RING_DEFAULT };
            initial_blocks(plan).map(|blocks| blocks * BLOCK / MIB)
        };
        assert_eq!((start(100, 2), start(100, 8), start(1, 2)), (Some(1024), Some(1024), Some(512)));
        // Large rings (behind the first GiB, whose end has copies of the superblock) cost their size, not the next power
        // of two.
        let plan = Plan { blocks: 0, blocks_max: 50 * GIB / BLOCK, cpus: 2, ring_bytes: 2 * GIB };
        assert_eq!(initial_blocks(plan).map(|blocks| blocks * BLOCK / MIB), Some(9728));
    }

    #[test]
    fn what_is_too_small_is_refused_with_the_size_it_needs() {
        let plan = Plan { blocks: 100, blocks_max: 100, cpus: 1, ring_bytes: RING_DEFAULT };
        assert_eq!(RegionMap::compute(plan), Err(RegionError::TooSmall { bytes: 409_600, least: NAMESPACE_MIN }));
    }
}
