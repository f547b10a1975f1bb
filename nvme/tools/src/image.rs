//! What the medium says before any opening: copies of the superblock, roots, and what they name.

use crate::blobs::{self, DirectoryImage, Part};
use crate::error::ToolError;
use crate::source::{self, Source, Unread};
use base::{BLOCK_SIZE, Block, ShardId};
use nvme_format::region::superblock_candidates;
use nvme_format::root::{Root, RootReading};
use nvme_format::superblock::{Reading, Superblock, choose, places_named, read};

/// What one copy of the superblock is, beside the state that was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyState {
    Chosen,
    Zeroes,
    Differs,
    Unread(Unread),
}

pub(crate) struct Superblocks {
    pub superblock: Superblock,
    pub copies: Vec<(Block, CopyState)>,
}

/// Finds the superblock by the rules of an opening.
pub(crate) fn superblocks<S: Source + ?Sized>(source: &mut S) -> Result<Superblocks, ToolError> {
    let blocks = source.geometry().blocks;
    // A copy that the device cannot give is as good as none; what is not there is no zeroes.
    let nothing = vec![0xFF; BLOCK_SIZE];
    let start = [Block(0), Block(1)].map(|block| source::read(source, block, 1).unwrap_or(nothing.clone()));
    let mut places = places_named([&start[0], &start[1]]);
    places.retain(|places| places.iter().all(|place| place.0 < blocks));
    places.extend(superblock_candidates(blocks));
    let mut looked_at = Vec::with_capacity(places.len());
    for places in places {
        let copies = places.map(|place| source::read(source, place, 1));
        looked_at.push((places, copies));
    }
    let readings = looked_at.iter().map(|(places, copies)| {
        let copies = [0, 1, 2, 3].map(|copy| copies[copy].as_deref().unwrap_or(&nothing));
        (*places, read(copies))
    });
    let (superblock, differing, (places, copies)) = match choose(blocks, readings) {
        (index, Reading::Present { superblock, differing }) => (*superblock, differing, &looked_at[index]),
        (_, Reading::Empty) => return Err(ToolError::NotFormatted),
        (_, Reading::Unreadable) => return Err(ToolError::Unreadable),
    };
    let state = |copy: usize| match (&copies[copy], differing.contains(&copy)) {
        (Err(unread), _) => CopyState::Unread(*unread),
        (Ok(_), false) => CopyState::Chosen,
        (Ok(block), true) if block.iter().all(|byte| *byte == 0) => CopyState::Zeroes,
        (Ok(_), true) => CopyState::Differs,
    };
    let copies = places.iter().enumerate().map(|(copy, place)| (*place, state(copy))).collect();
    Ok(Superblocks { superblock, copies })
}

/// What a root's slot holds.
pub(crate) enum SlotState {
    Empty,
    Unreadable,
    /// Of an open that ended, or of one that never did.
    OtherGeneration(Root),
    Current(Root, DirectoryImage),
}

pub(crate) struct ShardImage {
    pub shard: ShardId,
    pub slots: [SlotState; 2],
}

impl ShardImage {
    /// Current roots, newest first.
    pub fn current(&self) -> Vec<(&Root, &DirectoryImage)> {
        let mut current: Vec<_> = self
            .slots
            .iter()
            .filter_map(|slot| match slot {
                SlotState::Current(root, directory) => Some((root, directory)),
                _ => None,
            })
            .collect();
        current.sort_by_key(|(root, _)| std::cmp::Reverse(root.checkpoint));
        current
    }

    /// The checkpoint from which an opening would recover the shard: the newest that is whole, else the newest of which
    /// at least the directory can be read.
    pub fn usable(&self) -> Option<(&Root, &DirectoryImage)> {
        let current = self.current();
        let whole = current.iter().find(|(_, directory)| directory.is_whole());
        let named = || current.iter().find(|(_, image)| matches!(image.directory, Part::Good(_)));
        whole.or_else(named).copied()
    }
}

/// Reads the roots of all shards and what they name.
pub(crate) fn shards<S: Source + ?Sized>(
    source: &mut S,
    superblock: &Superblock,
) -> Result<Vec<ShardImage>, ToolError> {
    let map = superblock.map;
    let roots = source::read(source, map.roots, u64::from(map.shards) * 2)?;
    let mut images = Vec::with_capacity(usize::from(map.shards));
    for (number, pair) in roots.chunks_exact(2 * BLOCK_SIZE).enumerate() {
        let shard = ShardId(number as u16);
        let mut slot = |slot: u8| {
            let block = &pair[usize::from(slot) * BLOCK_SIZE..][..BLOCK_SIZE];
            match Root::read(block, superblock.namespace, shard, slot) {
                RootReading::Empty => SlotState::Empty,
                RootReading::Unreadable => SlotState::Unreadable,
                RootReading::Present(root) if root.generation != superblock.generation => {
                    SlotState::OtherGeneration(root)
                }
                RootReading::Present(root) => SlotState::Current(root, blobs::load(source, &root)),
            }
        };
        images.push(ShardImage { shard, slots: [slot(0), slot(1)] });
    }
    Ok(images)
}
