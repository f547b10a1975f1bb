//! A shard as its core holds it: its space, its numbers, the storage of its checkpoints, the view's bytes.

use crate::api::SlabNeed;
use crate::partition::Freed;
use crate::space::Space;
use base::{Monotonic, ShardId, Tenancy};
use nvme_format::directory::BlobPlace;
use nvme_format::record::Version;
use nvme_format::region::RegionMap;
use nvme_format::{ExtentAddress, ExtentOrder};
use std::collections::{BTreeSet, VecDeque};

/// Numbers that an opening leaves out, so that none of a lost commit is given out again.
pub const NUMBERS_SKIPPED: u64 = 1 << 20;
/// What a partition takes in a checkpoint, as far as can be said in advance; there are two of each and a third while
/// it is written.
const CHECKPOINT_BYTES: u64 = 24 * 1024;
const INTERNAL_UNITS_MIN: u64 = 4;

/// Where the request for another slab stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlabRequest {
    None,
    Sent {
        need: SlabNeed,
    },
    /// There was none for this need; asked again later.
    Refused {
        at: Monotonic,
        need: SlabNeed,
    },
}

/// The view's snapshot and the offset of the metadata log it stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedView {
    pub metadata_offset: i64,
    pub bytes: Vec<u8>,
}

pub struct Shard {
    pub id: ShardId,
    pub space: Space,
    pub partitions: usize,
    pub next_version: u64,
    pub next_tenancy: u64,
    pub slab_request: SlabRequest,
    /// A slab was asked for ahead of need, and one that is empty stays until data has no other place.
    pub asked_ahead: bool,
    pub keeps_ahead: bool,
    /// Every extent that checkpoints have, and the sets that the last two published roots name.
    pub storage: BTreeSet<ExtentAddress>,
    pub published: VecDeque<BTreeSet<ExtentAddress>>,
    pub checkpoint: u64,
    /// The slot of the newest root.
    pub root_slot: u8,
    pub view: Option<SavedView>,
    pub view_changed: bool,
    pub view_place: Option<BlobPlace>,
}

impl Shard {
    pub fn new(id: ShardId, map: RegionMap) -> Shard {
        Shard {
            id,
            space: Space::new(map),
            partitions: 0,
            next_version: 1,
            next_tenancy: 1,
            slab_request: SlabRequest::None,
            asked_ahead: false,
            keeps_ahead: true,
            storage: BTreeSet::new(),
            published: VecDeque::new(),
            checkpoint: 0,
            root_slot: 1,
            view: None,
            view_changed: false,
            view_place: None,
        }
    }

    /// By which the least-loaded shard is found, one of several by its number.
    pub fn load(&self) -> (usize, ShardId) {
        (self.partitions, self.id)
    }

    pub fn take_version(&mut self) -> Version {
        let version = Version(self.next_version);
        self.next_version += 1;
        version
    }

    /// Tenancies are numbered per shard, under its number, so that no two shards give out the same.
    pub fn take_tenancy(&mut self) -> Tenancy {
        let tenancy = Tenancy(u64::from(self.id.0) << 48 | self.next_tenancy);
        self.next_tenancy += 1;
        tenancy
    }

    /// It has storage for checkpoints, and nothing that they would have to tell of.
    pub fn keeps_for_nobody(&self) -> bool {
        self.partitions == 0 && self.view.is_none() && !self.storage.is_empty()
    }

    /// Units of its slabs that a shard keeps from data, for checkpoints.
    fn internal_units(&self) -> u64 {
        self.checkpoint_units().min(self.space.total_units() / 2)
    }

    /// Units that the checkpoints of its partitions may take.
    fn checkpoint_units(&self) -> u64 {
        let live = (self.partitions as u64 * CHECKPOINT_BYTES).div_ceil(nvme_format::EXTENT_UNIT) + 1;
        2 * live + INTERNAL_UNITS_MIN
    }

    /// Whether the checkpoints of a partition more find room in the slabs it has.
    pub fn holds_another(&self) -> bool {
        self.space.free_units() > self.checkpoint_units()
    }

    /// An extent for data: as large as wanted, else as large as there is, at least `least`.
    pub fn allocate_data(&mut self, wanted: ExtentOrder, least: ExtentOrder) -> Option<ExtentAddress> {
        let mut order = wanted;
        loop {
            if self.space.free_units() >= order.units() + self.internal_units()
                && let Some(extent) = self.space.allocate(order)
            {
                return Some(extent);
            }
            if order <= least {
                return None;
            }
            order = ExtentOrder::new(order.number() - 1).expect("smaller than one that is possible");
        }
    }

    /// Storage for a checkpoint, which may use what is kept from data.
    pub fn allocate_storage(&mut self, order: ExtentOrder) -> Option<ExtentAddress> {
        let extent = self.space.allocate(order)?;
        self.storage.insert(extent);
        Some(extent)
    }

    /// Whether another slab should be asked for ahead of need.
    pub fn is_short(&self) -> bool {
        self.space.free_units() <= self.internal_units() + self.space.total_units() / 8
    }
}

/// An extent between its freeing and its next use (rule 7).
#[derive(Clone, Copy, Debug)]
pub struct Quarantined {
    pub shard: ShardId,
    pub freed: Freed,
}
