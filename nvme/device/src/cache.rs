//! The medium behind a volatile cache, simulated or replayed from a recording: every version of a block that was written and not yet flushed, in the order in
//! which the device applied them. Power loss may keep any one of them, or the durable contents below.

use crate::medium::{BlockBytes, Contents, Medium};
use crate::sim::{InjectedFault, Tear};
use base::{BLOCK_SIZE, Block, BlockRange, Random};
use std::collections::BTreeMap;
use std::sync::Arc;

const SECTOR: usize = 512;

#[derive(Clone)]
struct Version {
    contents: Contents,
    /// The operation that wrote it, and which of its blocks this is.
    operation: u64,
    index: u32,
    /// The place of its completion in the order in which completions were delivered.
    reported: Option<u64>,
    /// A flush that should have covered it failed: no later flush will.
    orphaned: bool,
}

/// Which of the unflushed versions one power loss keeps; the extremes are where recovery code breaks, so they are drawn
/// as often as the mixtures.
#[derive(Clone, Copy)]
enum Keep {
    Nothing,
    Everything,
    EachBlockAlone,
    /// Some operations wholly, others not at all.
    WholeOperations,
    /// Every operation from its first block up to some block.
    Prefixes,
}

#[derive(Clone)]
pub(crate) struct Cache {
    durable: Medium,
    volatile: BTreeMap<u64, Vec<Version>>,
    /// The operation that last wrote each block, for trims that take effect late.
    last_writer: BTreeMap<u64, u64>,
}

impl Cache {
    pub(crate) fn new(durable: Medium) -> Cache {
        Cache { durable, volatile: BTreeMap::new(), last_writer: BTreeMap::new() }
    }

    pub(crate) fn durable(&self) -> &Medium {
        &self.durable
    }

    pub(crate) fn grow_to(&mut self, blocks: u64) {
        self.durable.grow_to(blocks);
    }

    fn visible(&self, block: u64) -> Option<&Arc<BlockBytes>> {
        match self.volatile.get(&block).and_then(|versions| versions.last()) {
            Some(version) => version.contents.as_ref(),
            None => self.durable.get(block),
        }
    }

    pub(crate) fn read(&self, range: BlockRange, into: &mut [u8]) {
        for (index, chunk) in into.chunks_mut(BLOCK_SIZE).enumerate() {
            match self.visible(range.start.0 + index as u64) {
                Some(bytes) => chunk.copy_from_slice(&bytes[..]),
                None => chunk.fill(0),
            }
        }
    }

    /// What a reader would see of everything: the medium with the cache written over it.
    pub(crate) fn seen(&self) -> Medium {
        let mut seen = self.durable.clone();
        for (block, versions) in &self.volatile {
            if let Some(version) = versions.last() {
                seen.set(*block, version.contents.clone());
            }
        }
        seen
    }

    pub(crate) fn write_durable(&mut self, block: u64, contents: Contents, operation: u64) {
        self.volatile.remove(&block);
        self.last_writer.insert(block, operation);
        self.durable.set(block, contents);
    }

    /// One block of an operation, `index` from its first.
    pub(crate) fn write_volatile(&mut self, block: u64, contents: Contents, operation: u64, index: u32) {
        assert!(block < self.durable.blocks(), "block {block} is past the end of the medium");
        self.last_writer.insert(block, operation);
        let version = Version { contents, operation, index, reported: None, orphaned: false };
        self.volatile.entry(block).or_default().push(version);
    }

    pub(crate) fn last_writer(&self, block: u64) -> Option<u64> {
        self.last_writer.get(&block).copied()
    }

    /// The completion of `operation` was delivered: flushes submitted from now on cover it.
    pub(crate) fn report(&mut self, range: BlockRange, operation: u64, order: u64) {
        for (_, versions) in self.volatile.range_mut(range.start.0..range.end().0) {
            for version in versions.iter_mut().filter(|version| version.operation == operation) {
                version.reported = Some(order);
            }
        }
    }

    /// A flush succeeded that was submitted after `covers` completions were delivered. It covers nothing else: a real
    /// device may well have written more, and a store that relies on that is wrong.
    pub(crate) fn flush(&mut self, covers: u64) {
        let mut clean = Vec::new();
        for (block, versions) in &mut self.volatile {
            let covered = |version: &Version| !version.orphaned && version.reported.is_some_and(|at| at <= covers);
            if let Some(last) = versions.iter().rposition(covered) {
                let flushed = versions.drain(..=last).next_back().expect("the covered version is there");
                self.durable.set(*block, flushed.contents);
            }
            if versions.is_empty() {
                clean.push(*block);
            }
        }
        for block in clean {
            self.volatile.remove(&block);
        }
    }

    pub(crate) fn fail_flush(&mut self) {
        for version in self.volatile.values_mut().flatten() {
            version.orphaned = true;
        }
    }

    /// Flips one bit of one block in the range that holds data; `None` where there is none.
    pub(crate) fn flip_bit(&mut self, range: BlockRange, random: &mut Random) -> Option<Block> {
        let mut used: Vec<u64> = self.durable.used_in(range).collect();
        used.extend(self.volatile.range(range.start.0..range.end().0).map(|(block, _)| *block));
        used.sort_unstable();
        used.dedup();
        used.retain(|block| self.visible(*block).is_some());
        if used.is_empty() {
            return None;
        }
        let block = used[random.below(used.len() as u64) as usize];
        let mut bytes = **self.visible(block).expect("only blocks with contents were kept");
        let bit = random.below(BLOCK_SIZE as u64 * 8) as usize;
        bytes[bit / 8] ^= 1 << (bit % 8);
        let flipped = crate::medium::contents_of(&bytes);
        match self.volatile.get_mut(&block).and_then(|versions| versions.last_mut()) {
            Some(version) => version.contents = flipped,
            None => self.durable.set(block, flipped),
        }
        Some(Block(block))
    }

    /// Every medium that a power loss could leave at block granularity, where there are no more than `max`.
    pub(crate) fn every_outcome(&self, max: usize) -> Option<Vec<Medium>> {
        let choices = |count: usize, versions: &Vec<Version>| count.checked_mul(versions.len() + 1);
        self.volatile.values().try_fold(1, choices).filter(|count| *count <= max)?;
        let mut outcomes = vec![self.durable.clone()];
        for (block, versions) in &self.volatile {
            let without = outcomes.clone();
            for version in versions {
                let with = without.iter().cloned().map(|mut medium| {
                    medium.set(*block, version.contents.clone());
                    medium
                });
                outcomes.extend(with);
            }
        }
        Some(outcomes)
    }

    /// Power is gone: for every block with unflushed versions, one of them or the durable contents stays.
    pub(crate) fn lose_power(&mut self, tear: Tear, random: &mut Random, faults: &mut Vec<InjectedFault>) {
        let keep = match random.below(6) {
            0 => Keep::Nothing,
            1 => Keep::Everything,
            2 => Keep::WholeOperations,
            3 => Keep::Prefixes,
            _ => Keep::EachBlockAlone,
        };
        let salt = random.next_u64();
        for (block, versions) in std::mem::take(&mut self.volatile) {
            let kept = choose(keep, salt, &versions, random);
            let old = self.durable.get(block).cloned();
            let new = kept.map_or(old.clone(), |index| versions[index].contents.clone());
            let last = versions.last().expect("a block in the cache has a version").contents.clone();
            let after = match tear {
                Tear::Blocks => new,
                Tear::Sectors => tear_block(block, old, new, last, random, faults),
            };
            self.durable.set(block, after);
        }
        self.last_writer.clear();
    }
}

fn choose(keep: Keep, salt: u64, versions: &[Version], random: &mut Random) -> Option<usize> {
    match keep {
        Keep::Nothing => None,
        Keep::Everything => Some(versions.len() - 1),
        Keep::EachBlockAlone => {
            let choice = random.below(versions.len() as u64 + 1) as usize;
            choice.checked_sub(1)
        }
        // The same operation has the same fate in every block.
        Keep::WholeOperations => {
            versions.iter().rposition(|version| Random::from_seed(salt ^ version.operation).chance(1, 2))
        }
        // Lengths of all magnitudes, the same in every block of the operation.
        Keep::Prefixes => versions.iter().rposition(|version| {
            let mut drawn = Random::from_seed(salt ^ version.operation);
            let magnitude = drawn.below(9);
            u64::from(version.index) < drawn.below(1 << magnitude)
        }),
    }
}

/// One block in eight was under the head: fresh ones are a mix of old and new sectors, rewritten ones may be garbage.
fn tear_block(
    block: u64,
    old: Contents,
    new: Contents,
    last: Contents,
    random: &mut Random,
    faults: &mut Vec<InjectedFault>,
) -> Contents {
    if !random.chance(1, 8) {
        return new;
    }
    let mut bytes = old.as_deref().copied().unwrap_or([0; BLOCK_SIZE]);
    if old.is_some() && random.chance(1, 2) {
        random.fill(&mut bytes);
        faults.push(InjectedFault::TornBlock(Block(block)));
    } else {
        let source = last.as_deref().copied().unwrap_or([0; BLOCK_SIZE]);
        for sector in 0..BLOCK_SIZE / SECTOR {
            if random.chance(1, 2) {
                let at = sector * SECTOR..(sector + 1) * SECTOR;
                bytes[at.clone()].copy_from_slice(&source[at]);
            }
        }
    }
    crate::medium::contents_of(&bytes)
}
