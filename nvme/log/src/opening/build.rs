//! From the recovered shards to stores: the fold, the spaces, and the checkpoints that end an opening.

use super::load::{decode_directory, directory_range};
use super::replay::{Met, RecoveredShard};
use super::{OpenError, Opening, Step, Uncertain};
use crate::keeper::Keeper;
use crate::ring_zeroes::pace;
use crate::seed::{ShardSeed, StoreSeed};
use crate::shard::NUMBERS_SKIPPED;
use crate::store::Store;
use base::{CoreId, Now, PartitionId, ShardId};
use nvme_format::journal::Records;
use nvme_format::record::Record;
use nvme_format::region::RegionMap;
use nvme_format::{ExtentAddress, SlabId};
use nvme_plan::{Plan, Token};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

impl Opening {
    /// Applies all accepted commits. Behind a damaged place a partition is believed only as far as its records follow
    /// each other; one that no later record proves is suspect.
    pub(super) fn fold(&mut self) {
        self.report.damages.clear();
        self.report.commits = 0;
        let cores = self.superblock().cores.max(1);
        for scan in &self.scans {
            let mut proven: BTreeSet<PartitionId> = BTreeSet::new();
            let last_damage = scan.damages.last().map(|damage| damage.resumed_at);
            for commit in &scan.accepted {
                self.report.commits += 1;
                let Ok(payload) = commit.header.payload(&commit.bytes) else { continue };
                for view in Records::new(payload).map_while(Result::ok) {
                    let Some(shard) = self.shards.get_mut(&view.shard) else { continue };
                    if commit.sequence < shard.replay_from {
                        continue;
                    }
                    let met = shard.apply(view.shard, &view.record, &commit.bytes);
                    if let Record::Partition(link, _) = &view.record {
                        match met {
                            Met::Gap => shard.suspect(link.partition),
                            Met::Applied if last_damage.is_some_and(|at| commit.sequence >= at) => {
                                proven.insert(link.partition);
                            }
                            Met::Applied | Met::Skipped => {}
                        }
                    }
                }
            }
            if scan.damages.is_empty() {
                continue;
            }
            self.report.damages.extend(&scan.damages);
            // What lies before a shard's checkpoint is in it: a damaged place there takes nothing from its partitions.
            let reaches = |shard: &RecoveredShard| last_damage.is_some_and(|at| at > shard.replay_from);
            let own = self.shards.iter_mut().filter(|(id, shard)| id.0 % cores == scan.lane().0 && reaches(shard));
            for (_, shard) in own {
                let unproven: Vec<_> = shard.partitions.keys().filter(|id| !proven.contains(*id)).copied().collect();
                for id in unproven {
                    shard.suspect(id);
                }
            }
        }
        if !self.report.first {
            self.report.clean = self.lanes_stopped_cleanly() && self.report.damages.is_empty();
        }
        for (id, shard) in &self.shards {
            let newer = shard.published.is_some_and(|published| published >= shard.replay_from);
            if newer && !self.report.older_checkpoints.contains(id) {
                self.report.older_checkpoints.push(*id);
            }
        }
        for (id, shard) in &mut self.shards {
            shard.keep_unreadable(*id);
        }
    }

    /// No slab has two shards. A shard whose release of a slab was lost with a damaged place of the journal claims it
    /// still, but has nothing there; where two have data in it, one of them would be written over.
    fn settle_owners(&mut self) -> Result<(), OpenError> {
        let damaged = !self.report.damages.is_empty() || !self.report.older_checkpoints.is_empty();
        let mut owners: BTreeMap<SlabId, ShardId> = BTreeMap::new();
        let map = self.superblock().map;
        let claims: Vec<(SlabId, ShardId)> =
            self.shards.iter().flat_map(|(id, shard)| shard.slabs.iter().map(|slab| (*slab, *id))).collect();
        for (slab, id) in claims {
            let Some(other) = owners.get(&slab).copied() else {
                owners.insert(slab, id);
                continue;
            };
            let uses = |id: ShardId| self.shards[&id].uses(map, slab);
            let loser = match (uses(other), uses(id)) {
                (_, false) if damaged => id,
                (false, true) if damaged => other,
                _ => return Err(OpenError::TwoOwners { slab, one: other, other: id }),
            };
            owners.insert(slab, if loser == id { other } else { id });
            self.shards.get_mut(&loser).expect("it claims a slab").slabs.remove(&slab);
        }
        Ok(())
    }

    /// What was written by a process that was killed before it flushed, a device may take back when the power fails, though
    /// this opening has flushed: it owes that to writes whose completion was told. A newest root of which the journal does
    /// not say that it was flushed is therefore written once more, and flushed, before anything is done that needs the one
    /// before no more: its place is the new root's (seeds 1796100146 and 1796300280). Should this write be torn, the one
    /// before is gone back to; so its storage is held until this opening has ended (an earlier one had used it again, and
    /// the next tore the newest root: seed 1797000036), and where there is none that can be read it is not made.
    pub(super) fn look_before_roots(&mut self) -> Result<Step, OpenError> {
        self.driver.clear();
        self.uncertain.clear();
        for root in self.roots.iter().flatten() {
            let Some(shard) = self.shards.get(&root.shard) else { continue };
            let certain = shard.published.is_some_and(|sequence| sequence + 1 >= root.next_sequence);
            if let Some(before) = shard.root_before.filter(|_| !certain) {
                let read = directory_range(&before).map(|range| self.driver.read(range));
                self.uncertain.push(Uncertain { newest: *root, before, read });
            }
        }
        if self.uncertain.is_empty() { self.start_publishing() } else { Ok(Step::Before) }
    }

    pub(super) fn make_roots_certain(&mut self) -> Result<Step, OpenError> {
        let (map, blocks) = (self.superblock().map, self.geometry.blocks);
        let mut newest = Vec::new();
        for Uncertain { newest: root, before, read } in std::mem::take(&mut self.uncertain) {
            let storage = match read {
                Some(read) => decode_directory(&before, self.driver.result(read), map, blocks).map(|it| it.storage),
                None => Some(Vec::new()),
            };
            let Some(storage) = storage else { continue };
            self.shards.get_mut(&root.shard).expect("it has roots").storage_before = storage;
            newest.push(root);
        }
        self.driver.clear();
        for root in &newest {
            self.driver.write(map.root(root.shard, usize::from(root.slot)), root.encode());
        }
        if !newest.is_empty() {
            self.driver.flush();
        }
        self.start_publishing()
    }

    /// Makes the stores of the new cores and starts the checkpoints that put everything under a new generation.
    pub(super) fn start_publishing(&mut self) -> Result<Step, OpenError> {
        let ring = self.next_generation();
        let cores = self.options.cores;
        let superblock = self.superblock().clone();
        self.rehome_slabless();
        let mut owned: Vec<(SlabId, ShardId)> = Vec::new();
        let mut by_core: BTreeMap<u16, Vec<ShardId>> = (0..cores).map(|core| (core, Vec::new())).collect();
        for shard in self.shards.values_mut() {
            shard.own_slabs_in_use(superblock.map, self.geometry.blocks);
        }
        self.settle_owners()?;
        for (id, shard) in &mut self.shards {
            shard.hold_freed(superblock.map);
            if !shard.storage_before.is_empty() {
                self.held_before.push((*id, shard.storage_before.clone()));
            }
            owned.extend(shard.slabs.iter().map(|slab| (*slab, *id)));
            by_core.entry(id.0 % cores).or_default().push(*id);
        }
        let zero_ahead = self.options.store.zero_ahead;
        let rings = if zero_ahead { cores.saturating_sub(self.rings_written) } else { 0 };
        let every = pace(rings + u16::from(self.geometry.grows));
        let zeroes = zero_ahead.then_some(rings);
        self.keeper = Some(Keeper::new(superblock.clone(), &self.geometry, cores, &owned, zeroes));
        for (core, ids) in by_core {
            let mut seeds = Vec::new();
            let mut partitions = Vec::new();
            for id in ids {
                let shard = self.shards.remove(&id).unwrap_or_default();
                let (seed, own) = seed_of(id, shard);
                seeds.push(seed);
                partitions.extend(own);
            }
            let seed = StoreSeed {
                core: CoreId(core),
                cores,
                namespace: superblock.namespace,
                map: superblock.map,
                geometry: self.geometry.clone(),
                ring,
                shards: seeds,
                zero_ring: (zero_ahead && core >= self.rings_written).then_some(every),
            };
            let random = base::Random::from_seed(self.random.next_u64());
            let mut store = Store::from_seed(seed, self.options.store.clone(), self.arena.clone(), random);
            for partition in partitions {
                store.adopt(partition);
            }
            self.stores.push(store);
        }
        Ok(Step::Publish)
    }

    /// A shard that never got a slab has partitions without extents only. They go to a shard that has one, so that their
    /// checkpoint has a place even where the namespace is full.
    fn rehome_slabless(&mut self) {
        let slabless = |shard: &RecoveredShard| shard.slabs.is_empty() && shard.view.is_none();
        let from: Vec<ShardId> =
            self.shards.iter().filter(|(_, s)| slabless(s) && !s.partitions.is_empty()).map(|(id, _)| *id).collect();
        for id in from {
            let with_slabs = self.shards.iter().filter(|(_, shard)| !shard.slabs.is_empty());
            let Some(to) = with_slabs.min_by_key(|(id, s)| (s.partitions.len(), **id)).map(|(id, _)| *id) else {
                return;
            };
            let shard = self.shards.get_mut(&id).expect("it was found");
            let version = shard.next_version;
            let moving = std::mem::take(&mut shard.partitions);
            let target = self.shards.get_mut(&to).expect("it was found");
            target.next_version = target.next_version.max(version);
            for (id, mut partition) in moving {
                (partition.blob, partition.changed) = (None, true);
                target.partitions.insert(id, partition);
            }
        }
    }

    /// Turns of the stores until their checkpoints are published.
    pub(super) fn poll_stores(&mut self, now: Now, plan: &mut Plan) -> Result<bool, OpenError> {
        let mut done = true;
        let keeper = self.keeper.as_mut().expect("made with the stores");
        let mut full = false;
        for index in 0..self.stores.len() {
            let store = &mut self.stores[index];
            store.poll_opening(now);
            while let Some(request) = store.take_keeper_request() {
                keeper.on_request(now, request);
            }
            while let Some((core, reply)) = keeper.take_reply() {
                full |= matches!(reply, crate::api::KeeperReply::Full { .. });
                self.stores[usize::from(core.0)].on_keeper_reply(now, reply);
            }
            let store = &mut self.stores[index];
            if let Some(reason) = store.stop_reason() {
                return Err(OpenError::Stopped(reason));
            }
            for mut request in store.io.plan.drain(..) {
                self.tokens.insert(self.next_token, (index, request.token));
                request.token = Token(self.next_token);
                self.next_token += 1;
                plan.push_back(request);
            }
            done &= !store.is_checkpointing();
        }
        if full && self.tokens.is_empty() && !keeper.is_busy() {
            let leaner = self.stores.iter_mut().map(Store::restart_leaner).filter(|leaner| *leaner).count();
            if leaner == 0 && self.held_before.is_empty() {
                return Err(OpenError::NoRoom);
            }
            if leaner == 0 {
                // The newest roots are certain by now: rather than not at all it opens without the way back.
                let cores = self.options.cores;
                for (shard, storage) in std::mem::take(&mut self.held_before) {
                    self.stores[usize::from(shard.0 % cores)].release_held(shard, &storage);
                }
            }
            return Ok(false);
        }
        // A namespace that is nearly full may have to grow for the checkpoints that end its opening.
        if keeper.has_waiting() {
            keeper.poll(now, plan);
        }
        Ok(done && self.tokens.is_empty() && !keeper.is_busy())
    }
}

fn seed_of(id: ShardId, shard: RecoveredShard) -> (ShardSeed, Vec<crate::partition::Partition>) {
    let mut published = VecDeque::new();
    published.push_back(shard.storage.clone());
    let held = [shard.freed, shard.storage_before].concat();
    let seed = ShardSeed {
        id,
        next_version: shard.next_version + NUMBERS_SKIPPED,
        next_tenancy: shard.next_tenancy + NUMBERS_SKIPPED,
        slabs: shard.slabs.into_iter().collect(),
        storage: shard.storage,
        published,
        checkpoint: shard.checkpoint,
        root_slot: shard.root_slot,
        view: shard.view,
        view_place: shard.view_place,
        partitions: Vec::new(),
        held,
    };
    let mut partitions: Vec<_> = shard.partitions.into_values().collect();
    for partition in &mut partitions {
        partition.shard = id;
        partition.pending = Default::default();
    }
    (seed, partitions)
}

impl RecoveredShard {
    fn suspect(&mut self, partition: PartitionId) {
        if let Some(partition) = self.partitions.get_mut(&partition) {
            partition.mark_suspect(partition.end);
        }
    }

    /// Every extent that its partitions and its checkpoints have.
    fn taken(&self) -> impl Iterator<Item = ExtentAddress> {
        let data = self.partitions.values().flat_map(|p| p.extents.iter().map(|extent| extent.address));
        data.chain(self.storage.iter().copied())
    }

    fn uses(&self, map: RegionMap, slab: SlabId) -> bool {
        self.taken().any(|extent| map.slab_of(extent.start) == Some(slab))
    }

    /// A slab whose taking was lost with a commit, and that a checkpoint's blob uses all the same, is the shard's. None
    /// lies beyond the namespace's end, whatever a record says.
    fn own_slabs_in_use(&mut self, map: RegionMap, blocks: u64) {
        let used: Vec<SlabId> = self.taken().filter_map(|extent| map.slab_of(extent.start)).collect();
        self.slabs.extend(used);
        self.slabs.retain(|slab| slab.0 < map.slabs_within(blocks));
    }

    /// What was freed and is in use again (or lies in a slab that is no longer the shard's) needs no holding, nor does
    /// storage of the root before that the newest names too.
    fn hold_freed(&mut self, map: RegionMap) {
        let mut taken: Vec<ExtentAddress> = self.taken().collect();
        let mut hold = |extents: Vec<ExtentAddress>, slabs: &BTreeSet<SlabId>| {
            let mut held: Vec<ExtentAddress> = Vec::new();
            for extent in extents {
                let owned = map.slab_of(extent.start).is_some_and(|slab| slabs.contains(&slab));
                if owned && !taken.iter().any(|other| other.whole().overlaps(extent.whole())) {
                    taken.push(extent);
                    held.push(extent);
                }
            }
            held
        };
        self.storage_before = hold(std::mem::take(&mut self.storage_before), &self.slabs);
        self.freed = hold(std::mem::take(&mut self.freed), &self.slabs);
    }
}
