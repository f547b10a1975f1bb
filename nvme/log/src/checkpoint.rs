//! Checkpoint rounds (rule 8): all shards of a core together, in slices.
//!
//! A round notes where the lane stands, then writes a blob for each partition that changed. A blob may hold more than
//! the lane did at that place: its version says what it holds, and a replay skips the records that are in it. So
//! nothing has to stand still. A root is written only when everything the blobs refer to is on the medium.

use crate::api::{LogSlot, SlabNeed};
use crate::io::{Purpose, split_write};
use crate::partition::Partition;
use crate::shard::{SavedView, Shard, SlabRequest};
use crate::store::{RoundMark, Store};
use base::{BLOCK_SIZE, Block, Now, PartitionId, ShardId, Tenancy};
use nvme_format::directory::{BlobPlace, Directory, ViewPlace};
use nvme_format::record::{Record, RecordView};
use nvme_format::root::Root;
use nvme_format::{ExtentAddress, ExtentOrder, crc};
use nvme_plan::{Class, Operation, Promise};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

/// Bytes of blobs that one turn writes before others have theirs; of directories it writes one.
const SLICE: usize = 256 * 1024;
/// Partitions that one turn looks at, of the walks over all: one takes up to 200 ns.
const PARTITIONS_A_TURN: usize = 512;
/// Blobs of one slice at most: one takes up to 3 us though it is small.
const BLOBS_A_TURN: usize = 64;
/// Bytes of the view that one turn writes.
const VIEW_SLICE: usize = 64 * 1024;
/// A round begins when this part of the ring was written since the last one.
const RING_PART: u64 = 4;
/// Storage beyond this many times the live blobs is rewritten as a whole.
const SPARSE: u64 = 4;
const SPARSE_FROM: u64 = 1024 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Gathering,
    Blobs,
    Waiting,
    Directories,
    DirectoriesWriting,
    BodyFlush,
    Roots,
    RootFlush,
    Published,
}

struct Chunk {
    shard: ShardId,
    bytes: Vec<u8>,
    /// Whose blobs lie where in it, and how long they are.
    parts: Vec<(LogSlot, usize, usize)>,
}

/// The view, which a round writes once where it changed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ViewWrite {
    NotBegun,
    At { view: Rc<SavedView>, extent: ExtentAddress, at: usize, crc: u32 },
    Done,
}

pub struct Round {
    phase: Phase,
    mark: RoundMark,
    next_sequence: u64,
    previous: u32,
    /// Where the walk over all partitions is that this phase takes.
    walk: usize,
    /// Of each shard what the walk found, and the bytes of its live blobs.
    found: BTreeMap<ShardId, Found>,
    queue: VecDeque<LogSlot>,
    written: BTreeSet<LogSlot>,
    chunk: Option<Chunk>,
    /// What must be on the device before the blobs may be believed.
    waits: BTreeMap<LogSlot, Vec<(Tenancy, u64)>>,
    /// The first of them that this pass over them has not come to.
    next_wait: Option<LogSlot>,
    writes: usize,
    view: ViewWrite,
    /// This shard has no place for its part of it, or no memory to write it from.
    starved: Option<ShardId>,
    /// Where the blobs of each shard's partitions are; none until the walk for them is over.
    places: Option<BTreeMap<ShardId, Vec<(PartitionId, BlobPlace)>>>,
    /// The directories of this round by shard, and the storage that each names.
    directories: Vec<(BlobPlace, BTreeSet<ExtentAddress>)>,
}

#[derive(Default)]
struct Found {
    live: u64,
    changed: Vec<LogSlot>,
    unchanged: Vec<LogSlot>,
    places: Vec<(PartitionId, BlobPlace)>,
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
        leaner && self.restart_round()
    }

    /// The same with the room of those storages, which nothing needs any more.
    pub(crate) fn restart_with_room(&mut self, storages: &[(ShardId, ExtentAddress)]) {
        for (id, extent) in storages {
            if let Some(shard) = self.shards.iter_mut().find(|shard| shard.id == *id) {
                shard.space.release(*extent);
            }
        }
        self.restart_round();
    }

    fn restart_round(&mut self) -> bool {
        let Some(round) = self.round.take() else { return false };
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
        self.round = Some(Round {
            phase: Phase::Gathering,
            mark: RoundMark { position: self.lane.head },
            next_sequence: self.lane.sequence,
            previous: self.lane.previous,
            walk: 0,
            found: BTreeMap::new(),
            queue: VecDeque::new(),
            written: BTreeSet::new(),
            chunk: None,
            waits: BTreeMap::new(),
            next_wait: None,
            writes: 0,
            view: ViewWrite::NotBegun,
            starved: None,
            places: None,
            directories: Vec::new(),
        });
    }

    /// Takes one turn's part of a walk over all partitions; says whether it is over. A walk held a loop 1 ms where there
    /// were 20,000. What changes behind it changes after the round's mark, and so is in the journal that is kept.
    fn walk(&self, round: &mut Round, mut visit: impl FnMut(&mut Found, LogSlot, &Partition)) -> bool {
        let from = std::mem::take(&mut round.walk);
        for (looked, (token, partition)) in self.partitions.iter_from(from).enumerate() {
            if looked == PARTITIONS_A_TURN {
                round.walk = token.index();
                return false;
            }
            visit(round.found.entry(partition.shard).or_default(), LogSlot::of(token), partition);
        }
        true
    }

    /// Finds the partitions whose blobs are to be written, shard by shard; says whether all are found.
    fn find_blobs(&self, round: &mut Round) -> bool {
        let over = self.walk(round, |found, slot, partition| {
            found.live += partition.blob.map_or(0, |place| u64::from(place.len));
            let list = if partition.changed { &mut found.changed } else { &mut found.unchanged };
            list.push(slot);
        });
        if !over {
            return false;
        }
        for (id, found) in std::mem::take(&mut round.found) {
            let shard = &self.shards[self.shard_index(id)];
            let live = found.live + shard.view_place.map_or(0, |place| u64::from(place.len));
            let stored: u64 = shard.storage.iter().map(|extent| extent.order.bytes()).sum();
            round.queue.extend(found.changed);
            if stored > SPARSE_FROM && stored > live * SPARSE {
                round.queue.extend(found.unchanged);
            }
        }
        true
    }

    /// When the next turn goes on with a round, though nothing completes.
    pub(crate) fn round_goes_on(&self) -> bool {
        self.round.as_ref().is_some_and(|round| match round.phase {
            Phase::Gathering => true,
            Phase::Blobs => round.starved.is_none(),
            Phase::Waiting => round.writes == 0 && round.next_wait.is_some(),
            Phase::Directories => round.starved.is_none(),
            _ => false,
        })
    }

    fn step_round(&mut self, now: Now, round: &mut Round) {
        if round.phase == Phase::Gathering && self.find_blobs(round) {
            round.phase = Phase::Blobs;
        }
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
        let (mut budget, mut blobs) = (SLICE, BLOBS_A_TURN);
        let chunk_max = SLICE.min(self.map.slab_bytes() as usize / 16);
        loop {
            if let Some(chunk) = &round.chunk {
                let next = round.queue.front().and_then(|slot| self.partition(*slot)).map(|next| next.shard);
                let full = chunk.bytes.len() >= chunk_max || next.is_some_and(|shard| shard != chunk.shard);
                if (full || round.queue.is_empty()) && !self.write_chunk(now, round) {
                    return false;
                }
            }
            if budget == 0 || blobs == 0 {
                return false;
            }
            if let Some(slot) = round.queue.pop_front() {
                budget = budget.saturating_sub(self.add_blob(round, slot));
                blobs -= 1;
            } else if round.chunk.is_none() {
                return self.write_view(now, round);
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
        chunk.parts.push((slot, chunk.bytes.len(), blob.len()));
        chunk.bytes.extend_from_slice(&blob);
        self.queue_copy_out(slot);
        blob.len()
    }

    /// Writes one slice of the view, where it changed; says whether there is no more of it.
    fn write_view(&mut self, now: Now, round: &mut Round) -> bool {
        let Some(index) = self.shards.iter().position(|shard| shard.id == ShardId(0)) else { return true };
        if round.view == ViewWrite::NotBegun {
            let shard = &mut self.shards[index];
            let Some(view) = shard.view.as_ref().filter(|_| shard.view_changed).map(Rc::clone) else { return true };
            let order = ExtentOrder::holding(view.bytes.len() as u64 + 8).expect("a view fits the largest extent");
            let Some(extent) = shard.allocate_storage(order) else {
                self.request_slab(now, ShardId(0), SlabNeed::Internal);
                round.starved = Some(ShardId(0));
                return false;
            };
            shard.view_changed = false;
            round.view = ViewWrite::At { view, extent, at: 0, crc: 0 };
        }
        let ViewWrite::At { view, extent, at, crc } = round.view.clone() else { return true };
        // Its metadata offset stands before its bytes.
        let len = view.bytes.len() + 8;
        let to = len.min(at + VIEW_SLICE);
        let mut slice = Vec::with_capacity(VIEW_SLICE);
        if at == 0 {
            slice.extend_from_slice(&view.metadata_offset.to_le_bytes());
        }
        slice.extend_from_slice(&view.bytes[at.saturating_sub(8)..to - 8]);
        if !self.write_at(now, &mut round.writes, Block(extent.start.0 + (at / BLOCK_SIZE) as u64), &slice) {
            round.starved = Some(ShardId(0));
            return false;
        }
        let crc = crc::append(crc, &slice);
        if to < len {
            round.view = ViewWrite::At { view, extent, at: to, crc };
            return false;
        }
        round.view = ViewWrite::Done;
        self.shards[index].view_place = Some(BlobPlace { block: extent.start, at: 0, len: len as u32, crc });
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
        for (slot, at, len) in chunk.parts {
            let bytes = &chunk.bytes[at..at + len];
            let place = BlobPlace {
                block: Block(start.0 + (at / BLOCK_SIZE) as u64),
                at: (at % BLOCK_SIZE) as u16,
                len: len as u32,
                crc: crc::crc32c(bytes),
            };
            if let Some(partition) = self.partition_mut(slot) {
                partition.blob = Some(place);
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
        if !self.write_at(now, writes, extent.start, bytes) {
            self.shard_mut(shard).give_back(extent);
            return None;
        }
        Some(extent.start)
    }

    /// Whether the extents hold what the blobs say, looked at in passes, some in every turn; what does not yet is copied
    /// out.
    fn waits_are_over(&mut self, round: &mut Round) -> bool {
        let from = round.next_wait.take().unwrap_or(LogSlot::FIRST);
        let mut slots: Vec<LogSlot> =
            round.waits.range(from..).map(|(slot, _)| *slot).take(PARTITIONS_A_TURN + 1).collect();
        if slots.len() > PARTITIONS_A_TURN {
            round.next_wait = slots.pop();
        }
        for slot in slots {
            let waits = round.waits.get_mut(&slot).expect("it was just found");
            match self.partitions.get(slot.token()) {
                Some(partition) => waits.retain(|(tenancy, until)| {
                    partition.extent(*tenancy).is_some_and(|extent| extent.written() < *until)
                }),
                None => waits.clear(),
            }
            if waits.is_empty() {
                round.waits.remove(&slot);
            } else {
                self.queue_copy_out(slot);
            }
        }
        round.waits.is_empty()
    }

    /// Writes the directory of one shard; says whether all are written.
    fn write_directories(&mut self, now: Now, round: &mut Round) -> bool {
        let Some(places) = &mut round.places else {
            let over = self.walk(round, |found, _, partition| {
                found.places.extend(partition.blob.map(|place| (partition.id, place)));
            });
            if over {
                let found = std::mem::take(&mut round.found).into_iter();
                round.places = Some(found.map(|(shard, found)| (shard, found.places)).collect());
            }
            return false;
        };
        while let Some(index) = Some(round.directories.len()).filter(|index| *index < self.shards.len()) {
            let shard = self.shards[index].id;
            let mut directory = directory_of(&self.shards[index], places.get(&shard).map_or(&[], Vec::as_slice));
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
            if !self.write_at(now, &mut round.writes, own.start, &bytes) {
                self.shards[index].give_back(own);
                round.starved = Some(shard);
                return false;
            }
            let place = BlobPlace { block: own.start, at: 0, len: bytes.len() as u32, crc: crc::crc32c(&bytes) };
            round.directories.push((place, storage));
            break;
        }
        round.directories.len() == self.shards.len()
    }

    /// Writes whole blocks from this one on; false where there is no memory.
    fn write_at(&mut self, now: Now, writes: &mut usize, start: Block, bytes: &[u8]) -> bool {
        let padded = bytes.len().next_multiple_of(BLOCK_SIZE);
        let buffer = self.arena.try_allocate(padded).or_else(|| self.arena.allocate_oversized(padded));
        let Some(mut buffer) = buffer else { return false };
        buffer[..bytes.len()].copy_from_slice(bytes);
        buffer[bytes.len()..].fill(0);
        let deadline = self.deadline(now);
        for (_, operation) in split_write(start, &buffer.freeze(), self.geometry.transfer_max, Promise::Accepted) {
            self.io.emit(Purpose::CheckpointBody, Class::Background, deadline, operation);
            *writes += 1;
        }
        true
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

fn directory_of(shard: &Shard, places: &[(PartitionId, BlobPlace)]) -> Directory {
    let mut partitions = places.to_vec();
    partitions.sort_unstable_by_key(|(id, _)| *id);
    let view = shard.view_place.zip(shard.view.as_ref());
    Directory {
        shard: shard.id,
        slabs: shard.space.slabs(),
        storage: Vec::new(),
        partitions,
        view: view.map(|(place, view)| ViewPlace { metadata_offset: view.metadata_offset, place }),
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
