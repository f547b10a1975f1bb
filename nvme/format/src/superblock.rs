//! The superblock: who a namespace is, where everything lies, and which generation of journals is the current one.

use crate::codec::{Malformed, Reader, Sink};
use crate::crc;
use crate::region::{RegionMap, SUPERBLOCK_COPIES};
use base::{BLOCK_SIZE, Block, NodeId, Uuid};

const MAGIC: u64 = u64::from_le_bytes(*b"POLLUXSB");
const VERSION: u32 = 1;
/// A cluster id is a Kafka string; those that tools make have 22 characters.
pub const CLUSTER_ID_MAX: usize = 64;
/// No namespace has as many blocks, so that sizes in bytes never overflow.
const BLOCKS_MAX: u64 = 1 << 48;

/// Random bits that bind commits and roots to one open of a namespace; zero before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Generation(pub u128);

/// How a commit is made durable on this device, once it has been measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlushMethod {
    #[default]
    Unknown,
    /// Each write carries the promise (RWF_DSYNC, FUA).
    DurableWrite,
    WriteThenFlush,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Rises with every update.
    pub sequence: u64,
    pub namespace: Uuid,
    pub directory: Uuid,
    pub cluster: String,
    pub node: NodeId,
    pub map: RegionMap,
    /// Blocks of the namespace at the last update; it never shrinks.
    pub blocks: u64,
    pub generation: Generation,
    /// The first sequence of every lane in this generation.
    pub first_sequence: u64,
    /// Cores of this generation: shard i is journaled on lane i mod cores.
    pub cores: u16,
    /// The host's boot id at the last open: another one means the power may have been off.
    pub boot: Uuid,
    pub flush: FlushMethod,
    /// Lanes below this number have their whole ring written once.
    pub lanes_written: u16,
}

impl Superblock {
    /// The block of one copy; `copy` is stored, so that a misdirected copy is no copy.
    pub fn encode(&self, copy: usize) -> Vec<u8> {
        assert!(copy < SUPERBLOCK_COPIES && self.cluster.len() <= CLUSTER_ID_MAX);
        let mut block = Vec::with_capacity(BLOCK_SIZE);
        block.u64(MAGIC);
        block.u32(VERSION);
        block.u32(copy as u32);
        block.u32(BLOCK_SIZE as u32);
        block.u64(self.sequence);
        block.uuid(self.namespace);
        block.uuid(self.directory);
        block.bytes(self.cluster.as_bytes());
        block.i32(self.node.0);
        self.map.encode(&mut block);
        block.u64(self.blocks);
        block.put(&self.generation.0.to_le_bytes());
        block.u64(self.first_sequence);
        block.u16(self.cores);
        block.uuid(self.boot);
        block.u8(match self.flush {
            FlushMethod::Unknown => 0,
            FlushMethod::DurableWrite => 1,
            FlushMethod::WriteThenFlush => 2,
        });
        block.u16(self.lanes_written);
        block.resize(BLOCK_SIZE, 0);
        crc::seal_block(&mut block);
        block
    }

    fn decode(block: &[u8], copy: usize) -> Result<Superblock, Malformed> {
        if block.len() != BLOCK_SIZE || !crc::block_is_sealed(block) {
            return Err(Malformed);
        }
        let mut reader = Reader::new(&block[..BLOCK_SIZE - 4]);
        let head = (reader.u64()?, reader.u32()?, reader.u32()?, reader.u32()?);
        if head != (MAGIC, VERSION, copy as u32, BLOCK_SIZE as u32) {
            return Err(Malformed);
        }
        let superblock = Superblock {
            sequence: reader.u64()?,
            namespace: reader.uuid()?,
            directory: reader.uuid()?,
            cluster: String::from_utf8(reader.bytes()?.to_vec()).map_err(|_| Malformed)?,
            node: NodeId(reader.i32()?),
            map: RegionMap::decode(&mut reader)?,
            blocks: reader.u64()?,
            generation: Generation(u128::from_le_bytes(reader.array()?)),
            first_sequence: reader.u64()?,
            cores: reader.u16()?,
            boot: reader.uuid()?,
            flush: match reader.u8()? {
                0 => FlushMethod::Unknown,
                1 => FlushMethod::DurableWrite,
                2 => FlushMethod::WriteThenFlush,
                _ => return Err(Malformed),
            },
            lanes_written: reader.u16()?,
        };
        reader.end()?;
        let sound = superblock.cluster.len() <= CLUSTER_ID_MAX
            && superblock.cores <= superblock.map.lanes
            && superblock.blocks < BLOCKS_MAX;
        if !sound {
            return Err(Malformed);
        }
        Ok(superblock)
    }
}

/// What one copy's block holds.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Copy {
    Empty,
    Present(Box<Superblock>),
    Damaged,
}

/// What a namespace is: never a guess.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Nothing was ever stored: it may be formatted.
    Empty,
    /// The copies named in `differing` must be written again before the next update.
    Present { superblock: Box<Superblock>, differing: Vec<usize> },
    /// Something is there that is not a superblock, or a superblock that is damaged: it is never formatted over.
    Unreadable,
}

/// Decides from all copies: the highest sequence that two equal copies carry. A format that died while it wrote its
/// first copies stored nothing and leaves an empty namespace.
pub fn read(blocks: [&[u8]; SUPERBLOCK_COPIES]) -> Reading {
    let mut copies = Vec::with_capacity(SUPERBLOCK_COPIES);
    for (number, block) in blocks.iter().enumerate() {
        copies.push(match Superblock::decode(block, number) {
            Ok(superblock) => Copy::Present(Box::new(superblock)),
            Err(Malformed) if block.iter().all(|b| *b == 0) => Copy::Empty,
            Err(Malformed) => Copy::Damaged,
        });
    }
    let agreed = copies.iter().enumerate().filter_map(|(number, copy)| match copy {
        Copy::Present(superblock) if copies[..number].contains(copy) => Some(superblock),
        _ => None,
    });
    if let Some(superblock) = agreed.max_by_key(|superblock| superblock.sequence) {
        let equal = Copy::Present(superblock.clone());
        let differing = (0..SUPERBLOCK_COPIES).filter(|number| copies[*number] != equal).collect();
        return Reading::Present { superblock: superblock.clone(), differing };
    }
    let stored_nothing = |copy: &Copy| match copy {
        Copy::Empty => true,
        Copy::Present(superblock) => superblock.generation == Generation::default(),
        Copy::Damaged => false,
    };
    let present = copies.iter().filter(|copy| matches!(copy, Copy::Present(_))).count();
    if copies.iter().all(stored_nothing) && present <= 1 { Reading::Empty } else { Reading::Unreadable }
}

/// Where the copies of a superblock lie, one beside the other as they are numbered.
pub type Places = [Block; SUPERBLOCK_COPIES];

/// Where the copies lie by the word of those at the start, whose places never change. A namespace that was enlarged since
/// its format is found by them, whatever its size is now.
pub fn places_named(start: [&[u8]; 2]) -> Vec<Places> {
    let mut named = Vec::new();
    for (copy, block) in [0, 2].into_iter().zip(start) {
        let places = Superblock::decode(block, copy).map(|superblock| superblock.map.superblock_copies());
        named.extend(places.ok().filter(|places| !named.contains(places)));
    }
    named
}

/// Decides among all places that were looked at in a namespace of `blocks`; gives the index of those that count.
/// Copies that say they lie elsewhere are none, unless it is beyond the end: then the namespace shrank, as whoever opens
/// it has to say. Places that a copy at the start speaks for come before any others: at those a client's record may lie,
/// and look like a superblock.
pub fn choose(blocks: u64, looked_at: impl IntoIterator<Item = (Places, Reading)>) -> (usize, Reading) {
    let mut best = (0, Reading::Empty);
    for (index, (places, reading)) in looked_at.into_iter().enumerate() {
        let Reading::Present { superblock, differing } = &reading else {
            if reading == Reading::Unreadable && best.1 == Reading::Empty {
                best = (index, reading);
            }
            continue;
        };
        let own = superblock.map.superblock_copies();
        let lies_here = own == places || superblock.map.superblocks_end.0 > blocks;
        let from_start = !(differing.contains(&0) && differing.contains(&2));
        if lies_here && from_start {
            return (index, reading);
        }
        if !matches!(best.1, Reading::Present { .. }) {
            best = (index, if lies_here { reading } else { Reading::Unreadable });
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::{Plan, RING_DEFAULT, superblock_candidates};
    use std::collections::BTreeMap;

    fn superblock(sequence: u64) -> Superblock {
        let plan = Plan { blocks: 1 << 16, blocks_max: 1 << 16, cpus: 2, ring_bytes: RING_DEFAULT };
        Superblock {
            sequence,
            namespace: Uuid(77),
            directory: Uuid(78),
            cluster: "AAAAAAAAAAAAAAAAAAAAAQ".into(),
            node: NodeId(3),
            map: RegionMap::compute(plan).expect("large enough"),
            blocks: 1 << 16,
            generation: Generation(u128::from(sequence) << 64),
            first_sequence: 9,
            cores: 2,
            boot: Uuid(5),
            flush: FlushMethod::WriteThenFlush,
            lanes_written: 1,
        }
    }

    fn reading(copies: [Vec<u8>; 4]) -> Reading {
        read([&copies[0], &copies[1], &copies[2], &copies[3]])
    }

    /// Every way in which an update from 1 to 2 can be cut: each copy is old, new or garbage, in the order of the writes.
    #[test]
    fn an_update_cut_anywhere_reads_as_the_old_or_the_new_state() {
        let block = |state: usize, copy: usize| match state {
            0 => superblock(1).encode(copy),
            1 => superblock(2).encode(copy),
            _ => vec![0xA5; BLOCK_SIZE],
        };
        for first in 0..9 {
            let copies = [block(first % 3, 0), block(first / 3, 1), block(0, 2), block(0, 3)];
            let expected = if first == 4 { 2 } else { 1 };
            let Reading::Present { superblock: read, differing } = reading(copies) else { panic!("{first}") };
            assert_eq!(read.sequence, expected);
            assert_eq!(differing.contains(&0), first % 3 != (expected - 1) as usize);
        }
        for second in 0..9 {
            let copies = [block(1, 0), block(1, 1), block(second % 3, 2), block(second / 3, 3)];
            let Reading::Present { superblock: read, .. } = reading(copies) else { panic!("{second}") };
            assert_eq!(read.sequence, 2);
        }
    }

    /// A medium of which only the superblocks count: what an opening finds after the namespace's size became `blocks`.
    fn found(blocks: u64, stored: &BTreeMap<u64, Vec<u8>>) -> Reading {
        let zeroes = vec![0; BLOCK_SIZE];
        let block = |at: Block| stored.get(&at.0).unwrap_or(&zeroes).as_slice();
        let mut places = places_named([block(Block(0)), block(Block(1))]);
        places.retain(|places| places.iter().all(|place| place.0 < blocks));
        places.extend(superblock_candidates(blocks));
        choose(blocks, places.into_iter().map(|places| (places, read(places.map(block))))).1
    }

    fn stored(superblock: &Superblock, copies: &[usize]) -> BTreeMap<u64, Vec<u8>> {
        let places = superblock.map.superblock_copies();
        copies.iter().map(|copy| (places[*copy].0, superblock.encode(*copy))).collect()
    }

    #[test]
    fn an_enlarged_namespace_is_found_by_what_its_start_says() {
        let before = Superblock { blocks: 50_000, ..superblock(3) };
        let plan = Plan { blocks: 50_000, blocks_max: 50_000, cpus: 2, ring_bytes: RING_DEFAULT };
        let before = Superblock { map: RegionMap::compute(plan).expect("large enough"), ..before };
        for blocks in [50_000, 60_000, 1 << 19] {
            let Reading::Present { superblock, differing } = found(blocks, &stored(&before, &[0, 1, 2, 3])) else {
                panic!("{blocks}")
            };
            assert_eq!((&*superblock, differing), (&before, vec![]));
        }
        // An update was cut after its first pair: neither pair has two equal copies.
        let mut cut = stored(&before, &[0, 1, 2, 3]);
        let after = Superblock { sequence: 4, ..before.clone() };
        cut.extend(stored(&after, &[0, 1]));
        let Reading::Present { superblock, differing } = found(60_000, &cut) else { panic!("cut") };
        assert_eq!((&*superblock, differing), (&after, vec![2, 3]));
        // One that shrank is no unreadable one.
        assert!(matches!(found(40_000, &stored(&before, &[0, 1, 2, 3])), Reading::Present { .. }));
    }

    #[test]
    fn bytes_that_look_like_a_superblock_do_not_count_beside_the_start() {
        let real = superblock(3);
        let small = Plan { blocks: 1 << 15, blocks_max: 1 << 15, cpus: 2, ring_bytes: RING_DEFAULT };
        let forged =
            Superblock { sequence: 99, map: RegionMap::compute(small).expect("large enough"), ..superblock(3) };
        let mut medium = stored(&real, &[0, 1, 2, 3]);
        medium.extend(stored(&forged, &[1, 3]));
        let chosen = |medium: &BTreeMap<u64, Vec<u8>>| match found(1 << 16, medium) {
            Reading::Present { superblock, .. } => superblock.sequence,
            other => panic!("{other:?}"),
        };
        assert_eq!(chosen(&medium), 3);
        medium.remove(&1);
        assert_eq!(chosen(&medium), 3);
        medium.remove(&0);
        assert_eq!(chosen(&medium), 3, "the places of the namespace's own size come first");
        assert_eq!(
            found(1 << 16, &stored(&forged, &[0, 1])),
            Reading::Present { superblock: Box::new(forged), differing: vec![2, 3] }
        );
    }

    /// Its checksum is right, its numbers are those of no namespace: sizes in bytes would overflow.
    #[test]
    fn impossible_sizes_are_unreadable() {
        let mut slabs = superblock(1);
        slabs.map.slab_blocks = 1 << 40;
        for wrong in [Superblock { blocks: 1 << 60, ..superblock(1) }, slabs] {
            assert_eq!(reading([0, 1, 2, 3].map(|copy| wrong.encode(copy))), Reading::Unreadable);
        }
    }

    #[test]
    fn empty_and_unreadable_are_told_apart() {
        let zero = || vec![0; BLOCK_SIZE];
        let good = |copy| superblock(1).encode(copy);
        let first = |copy| Superblock { generation: Generation(0), ..superblock(1) }.encode(copy);
        assert_eq!(reading([zero(), zero(), zero(), zero()]), Reading::Empty);
        assert_eq!(reading([first(0), zero(), zero(), zero()]), Reading::Empty);
        assert_eq!(reading([good(0), zero(), zero(), zero()]), Reading::Unreadable);
        assert_eq!(reading([vec![1; BLOCK_SIZE], zero(), zero(), zero()]), Reading::Unreadable);
        // A copy at the wrong place is no copy.
        assert_eq!(reading([good(1), good(0), zero(), zero()]), Reading::Unreadable);
        assert!(matches!(reading([good(0), zero(), zero(), good(3)]), Reading::Present { .. }));
    }
}
