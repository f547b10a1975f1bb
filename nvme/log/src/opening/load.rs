//! The checkpoints of all shards: roots, directories, blobs, each shard from its newest root or, where that or what it
//! names is damaged, from the one before. Where neither is whole, the newest with a directory counts, and only the
//! partitions whose blobs cannot be read are lost.

use super::replay::RecoveredShard;
use super::{OpenError, RecoveryReport};
use crate::driver::Driver;
use crate::partition::Partition;
use crate::shard::SavedView;
use base::{BLOCK_SIZE, Block, BlockRange, Offset, ShardId};
use nvme_format::blob::PartitionBlob;
use nvme_format::directory::{BlobPlace, Directory};
use nvme_format::region::RegionMap;
use nvme_format::root::{Root, RootReading};
use nvme_format::{Malformed, Superblock, crc};

/// Blobs that lie this close are read together.
const READ_BLOCKS_MAX: u64 = 256;

/// A shard whose numbers were lost goes on far beyond any that it can have given out.
const NUMBERS_AFTER_LOSS: u64 = 1 << 44;

struct Candidate {
    shard: ShardId,
    /// Newest first.
    roots: Vec<Root>,
    directory: Option<Directory>,
    reading: usize,
    loaded: Option<RecoveredShard>,
    /// The newest root whose directory could be read, though some of its blobs could not.
    incomplete: Option<(Root, Directory)>,
    /// That is what is loaded now: blobs that cannot be read cost their partitions alone.
    takes_losses: bool,
}

/// Where a blob is among what was read.
struct BlobRead {
    candidate: usize,
    /// Of the directory; the view comes last.
    number: usize,
    place: BlobPlace,
    result: usize,
    skip: usize,
}

pub struct Loading {
    candidates: Vec<Candidate>,
    blobs: Vec<BlobRead>,
    accept_loss: bool,
    map: RegionMap,
    blocks: u64,
}

impl Loading {
    /// Decides from the root blocks, which lie one after the other.
    pub fn new(superblock: &Superblock, blocks: u64, roots: &[u8], accept_loss: bool) -> Loading {
        let mut candidates = Vec::new();
        for shard in (0..superblock.map.shards).map(ShardId) {
            let mut roots: Vec<Root> = (0..2u8)
                .filter_map(|slot| {
                    let at = (usize::from(shard.0) * 2 + usize::from(slot)) * BLOCK_SIZE;
                    match Root::read(&roots[at..at + BLOCK_SIZE], superblock.namespace, shard, slot) {
                        RootReading::Present(root) if root.generation == superblock.generation => Some(root),
                        _ => None,
                    }
                })
                .collect();
            roots.sort_by_key(|root| std::cmp::Reverse(root.checkpoint));
            candidates.push(Candidate {
                shard,
                roots,
                directory: None,
                reading: 0,
                loaded: None,
                incomplete: None,
                takes_losses: false,
            });
        }
        Loading { candidates, blobs: Vec::new(), accept_loss, map: superblock.map, blocks }
    }

    /// Asks for the directories that are still missing.
    pub fn read_directories(&mut self, driver: &mut Driver) {
        for candidate in self.candidates.iter_mut().filter(|candidate| candidate.directory.is_none()) {
            let Some(root) = candidate.roots.first() else { continue };
            match directory_range(root) {
                Some(range) => candidate.reading = driver.read(range),
                None => candidate.directory = Some(Directory { shard: candidate.shard, ..Directory::default() }),
            }
        }
    }

    /// Takes the directories; a damaged one sends its shard to the root before. Says whether all are there.
    pub fn take_directories(&mut self, driver: &Driver, report: &mut RecoveryReport) -> Result<bool, OpenError> {
        let mut complete = true;
        for candidate in &mut self.candidates {
            if candidate.directory.is_some() {
                continue;
            }
            if let Some(root) = candidate.roots.first() {
                candidate.directory = decode_directory(root, driver.result(candidate.reading), self.map, self.blocks);
            }
            if candidate.directory.is_none() {
                complete &= candidate.fall_back(self.accept_loss, report)?;
            }
        }
        Ok(complete)
    }

    /// Asks for all blobs, those that lie together in one read.
    pub fn read_blobs(&mut self, driver: &mut Driver) {
        self.blobs.clear();
        for (candidate, shard) in self.candidates.iter().enumerate() {
            let Some(directory) = shard.directory.as_ref().filter(|_| shard.loaded.is_none()) else { continue };
            let view = directory.view.map(|view| view.place);
            let places = directory.partitions.iter().map(|(_, place)| *place).chain(view);
            for (number, place) in places.enumerate() {
                self.blobs.push(BlobRead { candidate, number, place, result: 0, skip: 0 });
            }
        }
        self.blobs.sort_by_key(|blob| (blob.place.block, blob.place.at));
        let mut from = 0;
        while from < self.blobs.len() {
            let start = self.blobs[from].place.block.0;
            let mut end = start;
            let mut to = from;
            while let Some(blob) = self.blobs.get(to) {
                let last = blob.place.block.0 + blocks_of(&blob.place);
                if to > from && (blob.place.block.0 > end || last - start > READ_BLOCKS_MAX) {
                    break;
                }
                end = end.max(last);
                to += 1;
            }
            let result = driver.read(BlockRange::new(Block(start), (end - start) as u32));
            for blob in &mut self.blobs[from..to] {
                blob.result = result;
                blob.skip = (blob.place.block.0 - start) as usize * BLOCK_SIZE + usize::from(blob.place.at);
            }
            from = to;
        }
    }

    /// Builds the shards from what was read; says whether all are there.
    pub fn take_blobs(&mut self, driver: &Driver, report: &mut RecoveryReport) -> Result<bool, OpenError> {
        for candidate in &mut self.candidates {
            if candidate.loaded.is_none()
                && let Some(directory) = &candidate.directory
            {
                candidate.loaded = Some(start_shard(directory, candidate.roots.first()));
            }
        }
        let mut damaged: Vec<usize> = Vec::new();
        for blob in &self.blobs {
            let candidate = &mut self.candidates[blob.candidate];
            let bytes = driver.result(blob.result).get(blob.skip..blob.skip + blob.place.len as usize);
            let good = bytes.filter(|bytes| crc::crc32c(bytes) == blob.place.crc);
            if load_blob(candidate, blob, good).is_ok() {
                continue;
            }
            if candidate.takes_losses {
                candidate.lose(blob.number);
            } else {
                damaged.push(blob.candidate);
            }
        }
        let mut complete = true;
        for index in damaged {
            let candidate = &mut self.candidates[index];
            if candidate.loaded.take().is_some() {
                let root = candidate.roots.first().copied();
                let directory = candidate.directory.take();
                candidate.incomplete = candidate.incomplete.take().or(root.zip(directory));
                complete &= candidate.fall_back(self.accept_loss, report)?;
            }
        }
        Ok(complete)
    }

    /// The shards and the roots they come from.
    pub fn finish(self) -> Vec<(ShardId, RecoveredShard, Option<Root>)> {
        let whole = self.candidates.into_iter();
        let one = |candidate: Candidate| {
            let mut shard = candidate.loaded.unwrap_or_default();
            shard.root_before = candidate.roots.get(1).copied();
            (candidate.shard, shard, candidate.roots.first().copied())
        };
        whole.map(one).collect()
    }
}

/// Where the root's directory is; an empty one is nowhere.
pub(super) fn directory_range(root: &Root) -> Option<BlockRange> {
    let blocks = u64::from(root.directory_len).div_ceil(BLOCK_SIZE as u64);
    (blocks > 0).then(|| BlockRange::new(root.directory, blocks as u32))
}

/// The root's directory from what was read, if it is whole and can have been written.
pub(super) fn decode_directory(root: &Root, read: &[u8], map: RegionMap, blocks: u64) -> Option<Directory> {
    let bytes = read.get(..root.directory_len as usize)?;
    let good = Some(bytes).filter(|bytes| crc::crc32c(bytes) == root.directory_crc);
    let decoded = good.and_then(|bytes| Directory::decode(bytes, root.shard).ok());
    decoded.filter(|directory| is_possible(directory, map, blocks))
}

fn blocks_of(place: &BlobPlace) -> u64 {
    (u64::from(place.at) + u64::from(place.len)).div_ceil(BLOCK_SIZE as u64)
}

/// Whether such a directory can have been written: its storage lies in slabs of the namespace, is taken once, and holds
/// every blob. Anything else is treated as unreadable, whatever its checksum says.
fn is_possible(directory: &Directory, map: RegionMap, blocks: u64) -> bool {
    let slabs = map.slabs_within(blocks);
    let mut storage: Vec<BlockRange> = directory.storage.iter().map(|extent| extent.whole()).collect();
    storage.sort_by_key(|range| range.start);
    let disjoint = storage.windows(2).all(|pair| pair[0].end() <= pair[1].start);
    let inside = directory.storage.iter().all(|extent| {
        let slab = map.slab_of(extent.start).filter(|slab| slab.0 < slabs);
        let ends_in = slab.is_some_and(|slab| extent.whole().end().0 <= map.slab_start(slab).0 + map.slab_blocks);
        ends_in && !extent.whole().overlaps(map.hole())
    });
    let view = directory.view.map(|view| view.place);
    let held = directory.partitions.iter().map(|(_, place)| *place).chain(view).all(|place| {
        let index = storage.partition_point(|range| range.start <= place.block);
        let holder = index.checked_sub(1).map(|index| storage[index]);
        holder.is_some_and(|holder| place.block.0 + blocks_of(&place) <= holder.end().0)
    });
    disjoint && inside && held && directory.slabs.iter().all(|slab| slab.0 < slabs)
}

fn start_shard(directory: &Directory, root: Option<&Root>) -> RecoveredShard {
    RecoveredShard {
        next_version: root.map_or(NUMBERS_AFTER_LOSS, |root| root.next_version),
        next_tenancy: root.map_or(NUMBERS_AFTER_LOSS, |root| root.next_tenancy),
        slabs: directory.slabs.iter().copied().collect(),
        storage: directory.storage.iter().copied().collect(),
        replay_from: root.map_or(0, |root| root.next_sequence),
        checkpoint: root.map_or(0, |root| root.checkpoint),
        root_slot: root.map_or(1, |root| root.slot),
        ..RecoveredShard::default()
    }
}

fn load_blob(candidate: &mut Candidate, blob: &BlobRead, bytes: Option<&[u8]>) -> Result<(), Malformed> {
    let bytes = bytes.ok_or(Malformed)?;
    let directory = candidate.directory.as_ref().ok_or(Malformed)?;
    let shard = candidate.loaded.as_mut().ok_or(Malformed)?;
    match directory.partitions.get(blob.number) {
        Some((id, _)) => {
            let mut partition = Partition::from_blob(PartitionBlob::decode(bytes)?, candidate.shard)?;
            partition.blob = Some(blob.place);
            if partition.id != *id {
                return Err(Malformed);
            }
            shard.partitions.insert(*id, partition);
        }
        None => {
            let (offset, rest) = bytes.split_first_chunk::<8>().ok_or(Malformed)?;
            shard.view = Some(SavedView { metadata_offset: i64::from_le_bytes(*offset), bytes: rest.to_vec() });
            shard.view_place = Some(blob.place);
        }
    }
    Ok(())
}

impl Candidate {
    /// No blob of this partition can be read (or none of the view, which the control plane states again).
    fn lose(&mut self, number: usize) {
        let id = self.directory.as_ref().and_then(|directory| directory.partitions.get(number)).map(|(id, _)| *id);
        if let (Some(id), Some(shard)) = (id, &mut self.loaded) {
            shard.partitions.remove(&id);
            shard.unreadable.insert(id, Offset::ZERO);
        }
    }

    /// Turns to the root before; says whether nothing more has to be read for this shard.
    fn fall_back(&mut self, accept_loss: bool, report: &mut RecoveryReport) -> Result<bool, OpenError> {
        if !self.roots.is_empty() {
            self.roots.remove(0);
        }
        if !self.roots.is_empty() {
            report.older_checkpoints.push(self.shard);
            return Ok(false);
        }
        if let Some((root, directory)) = self.incomplete.take() {
            (self.roots, self.directory, self.takes_losses) = (vec![root], Some(directory), true);
            report.older_checkpoints.retain(|shard| *shard != self.shard);
            return Ok(false);
        }
        if !accept_loss {
            return Err(OpenError::ShardUnreadable { shard: self.shard });
        }
        report.unreadable_shards.push(self.shard);
        self.directory = Some(Directory { shard: self.shard, ..Directory::default() });
        Ok(true)
    }
}
