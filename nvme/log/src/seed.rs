//! What a store starts from: plain data that an opening makes on one thread and each core takes to its own.

use crate::api::PressureLevel;
use crate::cache::ReadCache;
use crate::config::StoreOptions;
use crate::io::Io;
use crate::lane::{Lane, RingStart};
use crate::partition::Partition;
use crate::reads::Reads;
use crate::ring_zeroes::RingZeroes;
use crate::shard::{SavedView, Shard};
use crate::space::Overlap;
use crate::store::{CacheFlush, Idleness, RoundMark, Stopping, Store};
use crate::tails::Tails;
use arena::Arena;
use base::{CoreId, DeletionClock, IdMap, LaneId, Monotonic, Now, Random, ShardId, Slots, Uuid};
use nvme_format::blob::PartitionBlob;
use nvme_format::directory::BlobPlace;
use nvme_format::region::RegionMap;
use nvme_format::{ExtentAddress, SlabId};
use nvme_plan::Geometry;
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct ShardSeed {
    pub(crate) id: ShardId,
    pub(crate) next_version: u64,
    pub(crate) next_tenancy: u64,
    pub(crate) slabs: Vec<SlabId>,
    pub(crate) storage: BTreeSet<ExtentAddress>,
    pub(crate) published: VecDeque<BTreeSet<ExtentAddress>>,
    pub(crate) checkpoint: u64,
    pub(crate) root_slot: u8,
    pub(crate) view: Option<SavedView>,
    pub(crate) view_place: Option<BlobPlace>,
    pub(crate) partitions: Vec<(PartitionBlob, Option<BlobPlace>)>,
    /// Extents that nobody holds and that may not be given out before the opening is complete.
    pub(crate) held: Vec<ExtentAddress>,
}

/// One core's part of an opened namespace.
#[derive(Clone, Debug)]
pub struct StoreSeed {
    pub core: CoreId,
    pub(crate) cores: u16,
    pub(crate) namespace: Uuid,
    pub(crate) map: RegionMap,
    pub(crate) geometry: Geometry,
    pub(crate) ring: RingStart,
    pub(crate) shards: Vec<ShardSeed>,
    /// How often a piece of the ring is to be written with zeroes, where it never was.
    pub(crate) zero_ring: Option<Duration>,
}

impl StoreSeed {
    /// What this core holds, for whoever routes to it.
    pub fn partition_ids(&self) -> Vec<base::PartitionId> {
        self.shards.iter().flat_map(|shard| shard.partitions.iter().map(|(blob, _)| blob.id)).collect()
    }

    pub fn partitions(&self) -> usize {
        self.shards.iter().map(|shard| shard.partitions.len()).sum()
    }
}

impl Store {
    /// The store of a core, on the thread that will run it.
    pub fn from_seed(seed: StoreSeed, options: StoreOptions, arena: Arena, random: Random) -> Store {
        let lane = LaneId(seed.core.0);
        let (ring, blocks) = (seed.map.ring(lane), seed.map.ring_blocks);
        let mut store = Store {
            core: seed.core,
            cores: seed.cores,
            options,
            namespace: seed.namespace,
            map: seed.map,
            geometry: seed.geometry,
            arena,
            random,
            partitions: Slots::growable(),
            by_id: IdMap::default(),
            shards: Vec::new(),
            lane: Lane::new(lane, seed.namespace, seed.ring, ring, blocks),
            io: Io::new(),
            tails: Tails::default(),
            cache: ReadCache::default(),
            reads: Reads::default(),
            quarantine: VecDeque::new(),
            round: None,
            last_round: RoundMark { position: 0 },
            rounds: 0,
            // The second root of each shard still is the one before the opening.
            checkpoint_wanted: true,
            copy_out: VecDeque::new(),
            copy_outs_in_flight: 0,
            data_first_in_flight: 0,
            next_number: 0,
            next_retention: Monotonic::ZERO,
            deletion_clock: DeletionClock::default(),
            retention_round: Vec::new(),
            high_watermarks: VecDeque::new(),
            cache_flush: CacheFlush::default(),
            pressure: PressureLevel::None,
            someone_waits: false,
            next_room: Monotonic::ZERO,
            space_again: None,
            staged_behind: false,
            room_made: false,
            requests: VecDeque::new(),
            truncations: BTreeSet::new(),
            own_reads: IdMap::default(),
            view_queue: None,
            stopping: Stopping::No,
            stopped: None,
            events: Vec::new(),
            stalled: BTreeSet::new(),
            short_of_memory: false,
            idle: Idleness::default(),
            units_freed: true,
            next_quarantine: Monotonic::ZERO,
            full: false,
            ring_zeroes: seed.zero_ring.map(RingZeroes::new),
        };
        for shard in seed.shards {
            store.add_shard(shard);
        }
        store
    }

    fn add_shard(&mut self, seed: ShardSeed) {
        let mut shard = Shard::new(seed.id, self.map);
        for slab in seed.slabs {
            shard.space.add(slab, true);
        }
        let mark =
            |shard: &mut Shard, extent| shard.space.mark(extent).expect("an opening found every place owned once");
        for extent in seed.storage.iter().chain(&seed.held) {
            mark(&mut shard, *extent);
        }
        shard.next_version = seed.next_version;
        shard.next_tenancy = seed.next_tenancy;
        shard.storage = seed.storage;
        shard.published = seed.published;
        shard.checkpoint = seed.checkpoint;
        shard.root_slot = seed.root_slot;
        shard.view_changed = seed.view.is_some() && seed.view_place.is_none();
        shard.view = seed.view;
        shard.view_place = seed.view_place;
        let id = shard.id;
        for (blob, _) in &seed.partitions {
            for extent in &blob.extents {
                mark(&mut shard, extent.address);
            }
        }
        self.shards.push(shard);
        for (blob, place) in seed.partitions {
            let mut partition = Partition::from_blob(blob, id).expect("a blob that was made from a partition");
            partition.blob = place;
            partition.changed = place.is_none();
            self.insert_loaded(partition);
        }
    }

    /// Storage that was marked for an opening alone is free.
    pub(crate) fn release_held(&mut self, shard: ShardId, extents: &[ExtentAddress]) {
        let space = &mut self.shard_mut(shard).space;
        extents.iter().for_each(|extent| space.release(*extent));
    }

    /// Takes a recovered partition. Where one of its extents has another owner too, one of them is wrong: it is not
    /// believed beyond its start, and gives its extents up.
    pub(crate) fn adopt(&mut self, mut partition: Partition) {
        let shard = self.shard_mut(partition.shard);
        let mut taken = Vec::new();
        for extent in &partition.extents {
            match shard.space.mark(extent.address) {
                Ok(()) => taken.push(extent.address),
                Err(Overlap) => {
                    for address in taken.drain(..) {
                        shard.space.release(address);
                    }
                    partition.lose_everything();
                    break;
                }
            }
        }
        self.insert_loaded(partition);
    }

    /// The turn of a store that an opening drives: copy-out and a checkpoint, no commits.
    pub(crate) fn poll_opening(&mut self, now: Now) {
        if self.stopped.is_none() {
            self.poll_checkpoint(now);
            self.poll_copy_out(now);
        }
    }

    /// A partition with bytes in memory that no block holds.
    pub(crate) fn insert_loaded(&mut self, partition: Partition) {
        let slot = self.insert(Box::new(partition));
        let pieces: Vec<(u64, usize)> = {
            let partition = self.partition(slot).expect("it was inserted");
            partition.tail.pieces.iter().map(|piece| (piece.position, piece.len as usize)).collect()
        };
        for (position, len) in pieces {
            self.tails.note_cached(slot, position, len);
        }
        self.queue_copy_out(slot);
    }

    /// This store as plain data again, after a round has put everything into blobs.
    pub(crate) fn to_seed(&self) -> StoreSeed {
        let shards = self.shards.iter().map(|shard| {
            let own = self.partitions.iter().filter(|(_, partition)| partition.shard == shard.id);
            let mut partitions: Vec<_> = own.map(|(_, partition)| (partition.to_blob(&[]), partition.blob)).collect();
            partitions.sort_by_key(|(blob, _)| blob.id);
            ShardSeed {
                id: shard.id,
                next_version: shard.next_version,
                next_tenancy: shard.next_tenancy,
                slabs: shard.space.slabs(),
                storage: shard.storage.clone(),
                published: shard.published.clone(),
                checkpoint: shard.checkpoint,
                root_slot: shard.root_slot,
                view: shard.view.clone(),
                view_place: shard.view_place,
                partitions,
                held: Vec::new(),
            }
        });
        StoreSeed {
            core: self.core,
            cores: self.cores,
            namespace: self.namespace,
            map: self.map,
            geometry: self.geometry.clone(),
            ring: RingStart { generation: self.lane.generation(), first_sequence: self.lane.first_sequence() },
            shards: shards.collect(),
            zero_ring: self.ring_zeroes.map(|zeroes| zeroes.every()),
        }
    }
}
