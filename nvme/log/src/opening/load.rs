//! The checkpoints of all shards: roots, directories, blobs, each shard from its newest root or, where that or what it
//! names is damaged, from the one before.

use super::replay::RecoveredShard;
use super::{OpenError, RecoveryReport};
use crate::driver::Driver;
use crate::partition::Partition;
use crate::shard::SavedView;
use base::{BLOCK_SIZE, Block, BlockRange, ShardId};
use nvme_format::blob::PartitionBlob;
use nvme_format::directory::{BlobPlace, Directory};
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
}

impl Loading {
    /// Decides from the root blocks, which lie one after the other.
    pub fn new(superblock: &Superblock, roots: &[u8], accept_loss: bool) -> Loading {
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
            candidates.push(Candidate { shard, roots, directory: None, reading: 0, loaded: None });
        }
        Loading { candidates, blobs: Vec::new(), accept_loss }
    }

    /// Asks for the directories that are still missing.
    pub fn read_directories(&mut self, driver: &mut Driver) {
        for candidate in self.candidates.iter_mut().filter(|candidate| candidate.directory.is_none()) {
            let Some(root) = candidate.roots.first() else { continue };
            if root.directory_len == 0 {
                candidate.directory = Some(Directory { shard: candidate.shard, ..Directory::default() });
                continue;
            }
            let blocks = u64::from(root.directory_len).div_ceil(BLOCK_SIZE as u64).max(1);
            candidate.reading = driver.read(BlockRange::new(root.directory, blocks as u32));
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
                let bytes = driver.result(candidate.reading).get(..root.directory_len as usize);
                let good = bytes.filter(|bytes| crc::crc32c(bytes) == root.directory_crc);
                candidate.directory = good.and_then(|bytes| Directory::decode(bytes, candidate.shard).ok());
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
        let mut damaged = Vec::new();
        for blob in &self.blobs {
            let candidate = &mut self.candidates[blob.candidate];
            let bytes = driver.result(blob.result).get(blob.skip..blob.skip + blob.place.len as usize);
            let good = bytes.filter(|bytes| crc::crc32c(bytes) == blob.place.crc);
            if load_blob(candidate, blob, good).is_err() {
                damaged.push(blob.candidate);
            }
        }
        damaged.dedup();
        let mut complete = true;
        for index in damaged {
            let candidate = &mut self.candidates[index];
            if candidate.loaded.take().is_some() {
                candidate.directory = None;
                complete &= candidate.fall_back(self.accept_loss, report)?;
            }
        }
        Ok(complete)
    }

    /// The shards and the roots they come from.
    pub fn finish(self) -> Vec<(ShardId, RecoveredShard, Option<Root>)> {
        let whole = self.candidates.into_iter();
        whole.map(|c| (c.shard, c.loaded.unwrap_or_default(), c.roots.first().copied())).collect()
    }
}

fn blocks_of(place: &BlobPlace) -> u64 {
    (u64::from(place.at) + u64::from(place.len)).div_ceil(BLOCK_SIZE as u64)
}

fn start_shard(directory: &Directory, root: Option<&Root>) -> RecoveredShard {
    let mut storage: std::collections::BTreeSet<_> = directory.storage.iter().copied().collect();
    storage.retain(|extent| extent.start.0 > 0);
    RecoveredShard {
        next_version: root.map_or(NUMBERS_AFTER_LOSS, |root| root.next_version),
        next_tenancy: root.map_or(NUMBERS_AFTER_LOSS, |root| root.next_tenancy),
        slabs: directory.slabs.iter().copied().collect(),
        storage,
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
    /// Turns to the root before; says whether nothing more has to be read for this shard.
    fn fall_back(&mut self, accept_loss: bool, report: &mut RecoveryReport) -> Result<bool, OpenError> {
        if !self.roots.is_empty() {
            self.roots.remove(0);
        }
        if !self.roots.is_empty() {
            report.older_checkpoints.push(self.shard);
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
