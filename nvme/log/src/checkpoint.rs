//! Checkpoint rounds (rule 8): all shards of a core together, in slices.
//!
//! A round notes where the lane stands, then writes a blob for each partition that changed. A blob may hold more than
//! the lane did at that place: its version says what it holds, and a replay skips the records that are in it. So
//! nothing has to stand still. A root is written only when everything the blobs refer to is on the medium.

use crate::api::{LogSlot, SlabNeed};
use crate::io::{Purpose, split_write};
use crate::partition::Partition;
use crate::shard::{Shard, SlabRequest};
use crate::store::{RoundMark, Store};
use base::{BLOCK_SIZE, Block, Now, ShardId, Tenancy};
use nvme_format::directory::{BlobPlace, Directory, ViewPlace};
use nvme_format::record::{Record, RecordView};
use nvme_format::root::Root;
use nvme_format::{ExtentAddress, ExtentOrder, crc};
use nvme_plan::{Class, Operation, Promise};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Bytes of blobs, or of directories, that one turn writes before others have theirs.
const SLICE: usize = 256 * 1024;
/// A round begins when this part of the ring was written since the last one.
const RING_PART: u64 = 4;
/// Storage beyond this many times the live blobs is rewritten as a whole.
const SPARSE: u64 = 4;
const SPARSE_FROM: u64 = 1024 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Blobs,
    Waiting,
    Directories,
    DirectoriesWriting,
    BodyFlush,
    Roots,
    RootFlush,
    Published,
}

/// What a chunk's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Partition(LogSlot),
    View,
}

struct Chunk {
    shard: ShardId,
    bytes: Vec<u8>,
    parts: Vec<(Content, usize, usize)>,
}

pub struct Round {
    phase: Phase,
    mark: RoundMark,
    next_sequence: u64,
    previous: u32,
    queue: VecDeque<LogSlot>,
    written: BTreeSet<LogSlot>,
    chunk: Option<Chunk>,
    /// What must be on the device before the blobs may be believed.
    waits: BTreeMap<LogSlot, Vec<(Tenancy, u64)>>,
    writes: usize,
    /// This shard has no place for its part of it.
    starved: Option<ShardId>,
    /// The directories of this round by shard, and the storage that each names.
    directories: Vec<(BlobPlace, BTreeSet<ExtentAddress>)>,
}

impl Store {
    /// Asks for a checkpoint whatever the ring holds.
    pub fn checkpoint(&mut self) {
        self.checkpoint_wanted = true;
    }

    pub fn is_checkpointing(&self) -> bool {
        self.checkpoint_wanted || self.round.is_some()
    }

    /// A checkpoint waits for space that the namespace does not have: the ring fills up, and only deletions help.
    pub(crate) fn is_starved(&self) -> bool {
        let starved = self.round.as_ref().and_then(|round| round.starved);
        starved.is_some_and(|shard| {
            let request = self.shards[self.shard_index(shard)].slab_request;
            matches!(request, SlabRequest::Refused { need: SlabNeed::Internal, .. })
        })
    }

    /// For an opening whose checkpoint finds no room (rule 9): begins it anew without the older producer snapshots, which
    /// take the most and only spare a truncation some reading. Nothing of it may be on its way to the device. Says whether
    /// there was anything to leave out.
    pub(crate) fn restart_leaner(&mut self) -> bool {
        let mut leaner = false;
        for (_, partition) in self.partitions.iter_mut() {
            let older = partition.snapshots.len().saturating_sub(1);
            leaner |= older > 0;
            partition.changed |= older > 0;
            partition.snapshots.drain(..older);
        }
        let Some(round) = self.round.take_if(|_| leaner) else { return false };
        for slot in round.written {
            if let Some(partition) = self.partitions.get_mut(slot.token()) {
                partition.changed = true;
            }
        }
        for shard in &mut self.shards {
            shard.view_changed |= shard.view.is_some();
            shard.free_storage();
        }
        self.checkpoint_wanted = true;
        true
    }

    /// The blob of this partition no longer tells what the medium will have: another is written in this round.
    pub(crate) fn recheckpoint(&mut self, slot: LogSlot) {
        let Some(round) = &mut self.round else { return };
        if matches!(round.phase, Phase::Blobs | Phase::Waiting) && round.written.remove(&slot) {
            round.waits.remove(&slot);
            round.queue.push_back(slot);
            round.phase = Phase::Blobs;
        }
    }

    pub(crate) fn poll_checkpoint(&mut self, now: Now) {
        let since = self.lane.head - self.last_round.position;
        if self.round.is_none() && (self.checkpoint_wanted || since * RING_PART >= self.lane.ring_blocks()) {
            self.begin_round();
        }
        let Some(mut round) = self.round.take() else { return };
        round.starved = None;
        self.step_round(now, &mut round);
        if round.phase == Phase::Published {
            self.publish(&round);
        } else {
            self.round = Some(round);
        }
    }

    fn begin_round(&mut self) {
        self.checkpoint_wanted = false;
        // One walk over all partitions: a walk for each shard held a loop 3 ms where there were 20,000.
        let mut live: BTreeMap<ShardId, u64> = BTreeMap::new();
        let mut queue: Vec<(ShardId, LogSlot)> = Vec::new();
        for (token, partition) in self.partitions.iter() {
            *live.entry(partition.shard).or_default() += partition.blob.map_or(0, |place| u64::from(place.len));
            if partition.changed {
                queue.push((partition.shard, LogSlot::of(token)));
            }
        }
        let sparse = |shard: &&Shard| {
            let view = shard.view_place.map_or(0, |place| u64::from(place.len));
            let live = live.get(&shard.id).copied().unwrap_or(0) + view;
            let stored: u64 = shard.storage.iter().map(|extent| extent.order.bytes()).sum();
            stored > SPARSE_FROM && stored > live * SPARSE
        };
        let sparse: BTreeSet<ShardId> = self.shards.iter().filter(sparse).map(|shard| shard.id).collect();
        if !sparse.is_empty() {
            let rewritten = |partition: &Partition| !partition.changed && sparse.contains(&partition.shard);
            for (token, partition) in self.partitions.iter_mut().filter(|(_, partition)| rewritten(partition)) {
                partition.changed = true;
                queue.push((partition.shard, LogSlot::of(token)));
            }
        }
        queue.sort();
        self.round = Some(Round {
            phase: Phase::Blobs,
            mark: RoundMark { position: self.lane.head },
            next_sequence: self.lane.sequence,
            previous: self.lane.previous,
            queue: queue.into_iter().map(|(_, slot)| slot).collect(),
            written: BTreeSet::new(),
            chunk: None,
            waits: BTreeMap::new(),
            writes: 0,
            starved: None,
            directories: Vec::new(),
        });
    }

    fn step_round(&mut self, now: Now, round: &mut Round) {
        if round.phase == Phase::Blobs && self.write_blobs(now, round) {
            round.phase = Phase::Waiting;
        }
        if round.phase == Phase::Waiting && round.writes == 0 && self.waits_are_over(round) {
            round.phase = Phase::Directories;
        }
        if round.phase == Phase::Directories && self.write_directories(now, round) {
            round.phase = Phase::DirectoriesWriting;
        }
        let journaled = self.lane.durable + 1 >= round.next_sequence;
        if round.phase == Phase::DirectoriesWriting && round.writes == 0 && journaled {
            let deadline = self.deadline(now);
            self.io.emit(Purpose::CheckpointFlush, Class::Background, deadline, Operation::Flush);
            round.phase = Phase::BodyFlush;
        }
        if round.phase == Phase::Roots && self.write_roots(now, round) {
            round.phase = Phase::RootFlush;
        }
    }

    /// Writes blobs for one slice; says whether all are written.
    fn write_blobs(&mut self, now: Now, round: &mut Round) -> bool {
        let mut budget = SLICE;
        let chunk_max = SLICE.min(self.map.slab_bytes() as usize / 16);
        loop {
            if let Some(chunk) = &round.chunk {
                let next = round.queue.front().and_then(|slot| self.partition(*slot)).map(|next| next.shard);
                let full = chunk.bytes.len() >= chunk_max || next.is_some_and(|shard| shard != chunk.shard);
                if (full || round.queue.is_empty()) && !self.write_chunk(now, round) {
                    return false;
                }
            }
            if budget == 0 {
                return false;
            }
            if let Some(slot) = round.queue.pop_front() {
                budget = budget.saturating_sub(self.add_blob(round, slot));
            } else if self.add_view(round) || round.chunk.is_some() {
                continue;
            } else {
                return true;
            }
        }
    }

    fn add_blob(&mut self, round: &mut Round, slot: LogSlot) -> usize {
        let Store { partitions, lane, .. } = self;
        let Some(partition) = partitions.get_mut(slot.token()) else { return 0 };
        let blob = partition.to_blob(lane.staged()).encode();
        partition.changed = false;
        let waits = partition.writes_wanted();
        if !waits.is_empty() {
            round.waits.insert(slot, waits);
        }
        round.written.insert(slot);
        let shard = partition.shard;
        let chunk = round.chunk.get_or_insert_with(|| Chunk { shard, bytes: Vec::new(), parts: Vec::new() });
        chunk.parts.push((Content::Partition(slot), chunk.bytes.len(), blob.len()));
        chunk.bytes.extend_from_slice(&blob);
        self.queue_copy_out(slot);
        blob.len()
    }

    fn add_view(&mut self, round: &mut Round) -> bool {
        let Some(shard) = self.shards.iter_mut().find(|shard| shard.id == ShardId(0) && shard.view_changed) else {
            return false;
        };
        if round.chunk.is_some() {
            return false;
        }
        shard.view_changed = false;
        let Some(view) = &shard.view else { return false };
        let bytes = [&view.metadata_offset.to_le_bytes()[..], &view.bytes].concat();
        let parts = vec![(Content::View, 0, bytes.len())];
        round.chunk = Some(Chunk { shard: ShardId(0), bytes, parts });
        true
    }

    /// Writes the chunk to storage of its own; false where there is no room or memory yet.
    fn write_chunk(&mut self, now: Now, round: &mut Round) -> bool {
        let Some(chunk) = &round.chunk else { return true };
        let Some(start) = self.write_storage(now, &mut round.writes, chunk.shard, &chunk.bytes) else {
            round.starved = Some(chunk.shard);
            return false;
        };
        let chunk = round.chunk.take().expect("it is there");
        for (content, at, len) in chunk.parts {
            let bytes = &chunk.bytes[at..at + len];
            let place = BlobPlace {
                block: Block(start.0 + (at / BLOCK_SIZE) as u64),
                at: (at % BLOCK_SIZE) as u16,
                len: len as u32,
                crc: crc::crc32c(bytes),
            };
            match content {
                Content::Partition(slot) => {
                    if let Some(partition) = self.partition_mut(slot) {
                        partition.blob = Some(place);
                    }
                }
                Content::View => self.shard_mut(ShardId(0)).view_place = Some(place),
            }
        }
        true
    }

    fn write_storage(&mut self, now: Now, writes: &mut usize, shard: ShardId, bytes: &[u8]) -> Option<Block> {
        let order = ExtentOrder::holding(bytes.len() as u64).expect("a checkpoint's piece fits the largest extent");
        let Some(extent) = self.shard_mut(shard).allocate_storage(order) else {
            self.request_slab(now, shard, SlabNeed::Internal);
            return None;
        };
        let start = self.write_at(now, writes, extent, bytes);
        if start.is_none() {
            self.shard_mut(shard).give_back(extent);
        }
        start
    }

    /// Whether the extents hold what the blobs say; what does not yet is copied out.
    fn waits_are_over(&mut self, round: &mut Round) -> bool {
        let mut waiting = Vec::new();
        round.waits.retain(|slot, waits| {
            let Some(partition) = self.partitions.get(slot.token()) else { return false };
            waits.retain(|(tenancy, until)| partition.extent(*tenancy).is_some_and(|extent| extent.written() < *until));
            if !waits.is_empty() {
                waiting.push(*slot);
            }
            !waits.is_empty()
        });
        for slot in waiting {
            self.queue_copy_out(slot);
        }
        round.waits.is_empty()
    }

    fn write_directories(&mut self, now: Now, round: &mut Round) -> bool {
        let mut written = 0;
        while let Some(index) = Some(round.directories.len()).filter(|index| *index < self.shards.len()) {
            if written >= SLICE {
                return false;
            }
            let mut directory = self.directory_of(index);
            let shard = self.shards[index].id;
            if directory.partitions.is_empty() && directory.view.is_none() {
                // It holds nothing, so it needs no storage, and its slabs can go back. One that is taken into use
                // later is known again by the extents in it.
                let nothing = BlobPlace { block: Block(0), at: 0, len: 0, crc: 0 };
                round.directories.push((nothing, BTreeSet::new()));
                continue;
            }
            let mut storage: BTreeSet<ExtentAddress> = BTreeSet::new();
            let view = directory.view.map(|view| view.place.block);
            for block in directory.partitions.iter().map(|(_, place)| place.block).chain(view) {
                storage.insert(self.shards[index].storage_of(block));
            }
            directory.storage = storage.iter().copied().collect();
            // Its own extent is named in it, which makes it longer by one entry.
            let len = directory.encode().len() as u64 + 16;
            let order = ExtentOrder::holding(len).expect("a directory fits the largest extent");
            let Some(own) = self.shards[index].allocate_storage(order) else {
                self.request_slab(now, shard, SlabNeed::Internal);
                round.starved = Some(shard);
                return false;
            };
            storage.insert(own);
            directory.storage.push(own);
            let bytes = directory.encode();
            let Some(start) = self.write_at(now, &mut round.writes, own, &bytes) else {
                self.shards[index].give_back(own);
                return false;
            };
            let place = BlobPlace { block: start, at: 0, len: bytes.len() as u32, crc: crc::crc32c(&bytes) };
            written += bytes.len();
            round.directories.push((place, storage));
        }
        true
    }

    fn write_at(&mut self, now: Now, writes: &mut usize, extent: ExtentAddress, bytes: &[u8]) -> Option<Block> {
        let padded = bytes.len().next_multiple_of(BLOCK_SIZE);
        let mut buffer = self.arena.try_allocate(padded).or_else(|| self.arena.allocate_oversized(padded))?;
        buffer[..bytes.len()].copy_from_slice(bytes);
        buffer[bytes.len()..].fill(0);
        let deadline = self.deadline(now);
        for (_, operation) in split_write(extent.start, &buffer.freeze(), self.geometry.transfer_max, Promise::Accepted)
        {
            self.io.emit(Purpose::CheckpointBody, Class::Background, deadline, operation);
            *writes += 1;
        }
        Some(extent.start)
    }

    fn directory_of(&self, index: usize) -> Directory {
        let shard = &self.shards[index];
        let own = self.partitions.iter().filter(|(_, partition)| partition.shard == shard.id);
        let mut partitions: Vec<_> =
            own.filter_map(|(_, partition)| partition.blob.map(|place| (partition.id, place))).collect();
        partitions.sort_by_key(|(id, _)| *id);
        let view = shard.view_place.zip(shard.view.as_ref());
        Directory {
            shard: shard.id,
            slabs: shard.space.slabs(),
            storage: Vec::new(),
            partitions,
            view: view.map(|(place, view)| ViewPlace { metadata_offset: view.metadata_offset, place }),
        }
    }

    fn write_roots(&mut self, now: Now, round: &mut Round) -> bool {
        let deadline = self.deadline(now);
        let mut requests = Vec::new();
        for (shard, (directory, _)) in self.shards.iter().zip(&round.directories) {
            let slot = 1 - shard.root_slot;
            let root = Root {
                namespace: self.namespace,
                shard: shard.id,
                slot,
                checkpoint: shard.checkpoint + 1,
                generation: self.lane.generation(),
                lane: self.lane.id,
                next_sequence: round.next_sequence,
                position: round.mark.position,
                previous: round.previous,
                next_version: shard.next_version,
                next_tenancy: shard.next_tenancy,
                directory: directory.block,
                directory_len: directory.len,
                directory_crc: directory.crc,
            };
            let Some(mut buffer) = self.arena.try_allocate(BLOCK_SIZE) else { return false };
            buffer.copy_from_slice(&root.encode());
            requests.push((self.map.root(shard.id, usize::from(slot)), buffer.freeze()));
        }
        for (block, buffer) in requests {
            for (_, operation) in split_write(block, &buffer, self.geometry.transfer_max, Promise::Accepted) {
                self.io.emit(Purpose::CheckpointRoot, Class::Background, deadline, operation);
                round.writes += 1;
            }
        }
        true
    }

    pub(crate) fn on_checkpoint_written(&mut self, now: Now, purpose: &Purpose) {
        let deadline = self.deadline(now);
        let Some(round) = &mut self.round else { return };
        match purpose {
            Purpose::CheckpointBody => round.writes -= 1,
            Purpose::CheckpointFlush => round.phase = Phase::Roots,
            Purpose::CheckpointRoot => {
                round.writes -= 1;
                if round.writes == 0 {
                    self.io.emit(Purpose::CheckpointRootFlush, Class::Background, deadline, Operation::Flush);
                }
            }
            _ => round.phase = Phase::Published,
        }
    }

    /// The roots are on the medium: the ring is trimmed to the older of the two, storage that neither names is free.
    fn publish(&mut self, round: &Round) {
        self.rounds += 1;
        for (shard, (_, storage)) in self.shards.iter_mut().zip(&round.directories) {
            shard.root_slot = 1 - shard.root_slot;
            shard.checkpoint += 1;
            shard.published.push_back(storage.clone());
            if shard.published.len() > 2 {
                shard.published.pop_front();
            }
            shard.free_storage();
        }
        self.lane.trimmed = self.lane.trimmed.max(self.last_round.position);
        self.last_round = round.mark;
        (self.room_made, self.units_freed) = (true, true);
        for index in 0..self.shards.len() {
            let (shard, sequence, root) =
                (self.shards[index].id, round.next_sequence - 1, self.shards[index].root_slot);
            let view = RecordView { shard, record: Record::CheckpointPublished { sequence, root } };
            if self.reserve(view.encoded_len(), true).is_err() {
                return;
            }
            self.stage_record(&view, Vec::new());
        }
    }
}

impl Shard {
    fn storage_of(&self, block: Block) -> ExtentAddress {
        let found = self.storage.iter().rev().find(|extent| extent.start <= block);
        *found.expect("a blob lies in the shard's storage")
    }

    fn give_back(&mut self, extent: ExtentAddress) {
        self.storage.remove(&extent);
        self.space.release(extent);
    }

    fn free_storage(&mut self) {
        let named: BTreeSet<ExtentAddress> = self.published.iter().flatten().copied().collect();
        let unnamed: Vec<_> = self.storage.difference(&named).copied().collect();
        for extent in unnamed {
            self.give_back(extent);
        }
    }
}
