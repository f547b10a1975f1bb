//! Opening a namespace: superblock, checkpoints, the journals of all lanes, verification of what may not have been
//! flushed, the fold, copy-out and new checkpoints, a new generation (rules 2 to 4). It may crash at any point and start
//! again: nothing of the old generation changes before the superblock names the new one.

mod build;
mod load;
mod replay;
mod scan;

pub use scan::Damage;

use crate::api::StopReason;
use crate::config::StoreOptions;
use crate::driver::Driver;
use crate::keeper::Keeper;
use crate::lane::RingStart;
use crate::ring_zeroes::was_written;
use crate::seed::StoreSeed;
use crate::shard::SavedView;
use crate::store::Store;
use arena::Arena;
use base::{Block, BlockRange, LaneId, Monotonic, Now, Offset, PartitionId, Random, ShardId, Uuid};
use load::Loading;
use nvme_format::journal::{CommitKind, Records, first_link};
use nvme_format::record::{Change, Record};
use nvme_format::region::superblock_candidates;
use nvme_format::root::Root;
use nvme_format::superblock::{Places, Reading, choose, places_named, read};
use nvme_format::{ExtentAddress, Generation, SlabId, Superblock, crc};
use nvme_plan::{Completion, DeviceError, Geometry, Plan, Token};
use replay::RecoveredShard;
use scan::{LaneScan, ScanStart};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// Sequences left out between generations.
const SEQUENCES_SKIPPED: u64 = 1 << 16;

#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Data cores of this run: at most as many as there are lanes.
    pub cores: u16,
    pub store: StoreOptions,
    /// The host's boot id.
    pub boot: Uuid,
    /// What cannot be read is given up (`pollux repair --accept-loss`).
    pub accept_loss: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    #[error("the namespace is empty: it has to be formatted first")]
    NotFormatted,
    #[error(
        "the namespace has no intact superblock: nothing is changed; put the right file or a copy of it there, `pollux \
         check` says what this one holds; to begin anew, move it away"
    )]
    Unreadable,
    #[error(
        "{cores} cores were asked for and the namespace was formatted for {lanes} at most: set cores to {lanes} or fewer"
    )]
    TooManyCores { cores: u16, lanes: u16 },
    #[error(
        "the namespace had {before} blocks and has {now}: it shrank, and nothing is changed; put back what it was, or a \
         copy of it (`pollux check` says what this one holds)"
    )]
    Shrank { before: u64, now: u64 },
    #[error("no checkpoint of shard {shard} can be read; `pollux repair` says what would have to be given up")]
    ShardUnreadable { shard: ShardId },
    #[error(
        "the shards {one} and {other} both have data in slab {slab}: nothing is changed, since going on would write \
         over one of them; `pollux check` names the partitions and `pollux export` reads what is good"
    )]
    TwoOwners { slab: SlabId, one: ShardId, other: ShardId },
    #[error("there is no room for the checkpoint that ends an opening")]
    NoRoom,
    #[error("{0}")]
    Device(DeviceError),
    #[error("{0}")]
    Stopped(StopReason),
}

/// What an opening found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// The last run ended with a clean stop.
    pub clean: bool,
    /// It was the first open after the format.
    pub first: bool,
    pub previous_boot: Uuid,
    pub commits: u64,
    pub partitions: usize,
    /// Partitions that may have lost records, and from which offset on.
    pub suspects: Vec<(PartitionId, Offset)>,
    pub damages: Vec<Damage>,
    /// Shards recovered from an older checkpoint than the newest.
    pub older_checkpoints: Vec<ShardId>,
    pub unreadable_shards: Vec<ShardId>,
    /// Commits whose data-first writes were lost with the power; nobody was told of them.
    pub rejected: Vec<(LaneId, u64)>,
    /// What the opening's steps took, those that began at the same moment as the one before left out.
    pub steps: Vec<(&'static str, Duration)>,
}

/// An opened namespace; each seed becomes a store on its core's thread.
pub struct Opened {
    pub superblock: Superblock,
    pub seeds: Vec<StoreSeed>,
    pub keeper: Keeper,
    pub report: RecoveryReport,
    pub view: Option<SavedView>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Superblocks,
    Choose,
    Roots,
    TakeRoots,
    Directories,
    Blobs,
    Scan,
    Fold,
    Verify,
    Before,
    Publish,
    Rewrite,
    FirstPair,
    SecondPair,
    Switched,
    Done,
}

impl Step {
    /// What was waited for before this step.
    fn name(self) -> &'static str {
        match self {
            Step::Superblocks => "start",
            Step::Choose => "superblocks",
            Step::Roots => "first flush",
            Step::TakeRoots => "roots",
            Step::Directories => "directories",
            Step::Blobs => "partitions",
            Step::Scan => "journal",
            Step::Fold => "fold",
            Step::Verify => "verification",
            Step::Before => "directories before",
            Step::Publish => "copy-out and checkpoints",
            Step::Rewrite => "superblock repair",
            Step::FirstPair => "first superblocks",
            Step::SecondPair | Step::Switched | Step::Done => "last superblocks",
        }
    }
}

/// A direct write that has to be read back.
struct Verification {
    lane: usize,
    sequence: u64,
    crc: u32,
    result: usize,
}

/// A newest root that the journal does not vouch for, the one before it, and where its directory is among what was read.
struct Uncertain {
    newest: Root,
    before: Root,
    read: Option<usize>,
}

pub struct Opening {
    options: OpenOptions,
    geometry: Geometry,
    arena: Arena,
    random: Random,
    driver: Driver,
    step: Step,
    looked_at: Vec<(Places, [usize; 4])>,
    superblock: Option<Superblock>,
    differing: Vec<usize>,
    loading: Option<Loading>,
    roots: Vec<Option<Root>>,
    shards: BTreeMap<ShardId, RecoveredShard>,
    scans: Vec<LaneScan>,
    scanning: Vec<(usize, usize)>,
    verifications: Vec<Verification>,
    uncertain: Vec<Uncertain>,
    /// Storage that the roots before the newest name.
    held_before: Vec<(ShardId, Vec<ExtentAddress>)>,
    stores: Vec<Store>,
    keeper: Option<Keeper>,
    /// Requests of the stores, which count their tokens for themselves.
    tokens: HashMap<u64, (usize, Token)>,
    next_token: u64,
    report: RecoveryReport,
    /// Rings below this number are known to be written once, whole.
    rings_written: u16,
    step_began: Option<Monotonic>,
}

impl Opening {
    pub fn new(options: OpenOptions, geometry: &Geometry, arena: Arena, random: Random) -> Opening {
        Opening {
            driver: Driver::new(arena.clone(), geometry),
            geometry: geometry.clone(),
            options,
            arena,
            random,
            step: Step::Superblocks,
            looked_at: Vec::new(),
            superblock: None,
            differing: Vec::new(),
            loading: None,
            roots: Vec::new(),
            shards: BTreeMap::new(),
            scans: Vec::new(),
            scanning: Vec::new(),
            verifications: Vec::new(),
            uncertain: Vec::new(),
            held_before: Vec::new(),
            stores: Vec::new(),
            keeper: None,
            tokens: HashMap::new(),
            next_token: 1 << 62,
            report: RecoveryReport::default(),
            rings_written: 0,
            step_began: None,
        }
    }

    /// Goes on as far as it can; its end is what was opened.
    pub fn poll(&mut self, now: Now, plan: &mut Plan) -> Option<Result<Opened, OpenError>> {
        loop {
            match self.driver.poll(plan) {
                Err(error) => return Some(Err(OpenError::Device(error))),
                Ok(false) => return None,
                Ok(true) => {}
            }
            if self.step == Step::Publish {
                match self.poll_stores(now, plan) {
                    Err(error) => return Some(Err(error)),
                    Ok(false) => return None,
                    Ok(true) => {}
                }
            }
            let over = self.step;
            let advanced = self.advance();
            self.note_time(over, now);
            match advanced {
                Err(error) => return Some(Err(error)),
                Ok(()) if self.step == Step::Done => return self.finish().map(Ok),
                Ok(()) => {}
            }
        }
    }

    fn note_time(&mut self, step: Step, now: Now) {
        let took = now.monotonic.since(self.step_began.unwrap_or(now.monotonic));
        match self.report.steps.last_mut() {
            Some((name, sum)) if *name == step.name() => *sum += took,
            _ if took.is_zero() => {}
            _ => self.report.steps.push((step.name(), took)),
        }
        self.step_began = Some(now.monotonic);
    }

    pub fn on_completion(&mut self, now: Now, mut completion: Completion) {
        if let Some(keeper) = self.keeper.as_mut().filter(|_| Keeper::owns(completion.token)) {
            // An opening has no update of the keeper under way, and a growth that fails is a growth that did not come.
            let _ = keeper.on_completion(now, &completion);
            return;
        }
        let Some((store, token)) = self.tokens.remove(&completion.token.0) else {
            self.driver.on_completion(completion);
            return;
        };
        completion.token = token;
        self.stores[store].on_completion(now, completion, &mut Vec::new());
    }

    fn superblock(&self) -> &Superblock {
        self.superblock.as_ref().expect("it was chosen in an earlier step")
    }

    fn advance(&mut self) -> Result<(), OpenError> {
        self.step = match self.step {
            Step::Superblocks => {
                self.look_for_superblocks(superblock_candidates(self.geometry.blocks));
                Step::Choose
            }
            Step::Choose => {
                if self.look_where_the_start_says() {
                    Step::Choose
                } else {
                    self.choose_superblock()?;
                    // What a killed process left in the device's cache is what we are about to believe: make it durable.
                    self.driver.flush();
                    Step::Roots
                }
            }
            Step::Roots => self.read_roots(),
            Step::TakeRoots => {
                self.count_rings_written();
                let (blocks, accept_loss) = (self.geometry.blocks, self.options.accept_loss);
                let mut loading = Loading::new(self.superblock(), blocks, self.driver.result(0), accept_loss);
                self.driver.clear();
                loading.read_directories(&mut self.driver);
                self.loading = Some(loading);
                Step::Directories
            }
            Step::Directories => {
                let loading = self.loading.as_mut().expect("loading");
                let complete = loading.take_directories(&self.driver, &mut self.report)?;
                self.driver.clear();
                if complete {
                    loading.read_blobs(&mut self.driver);
                    Step::Blobs
                } else {
                    loading.read_directories(&mut self.driver);
                    Step::Directories
                }
            }
            Step::Blobs => self.take_blobs()?,
            Step::Scan => self.take_scans(),
            Step::Fold => self.fold_and_verify()?,
            Step::Verify => self.take_verifications()?,
            Step::Before => self.make_roots_certain()?,
            Step::Publish => self.rewrite_differing(),
            Step::Rewrite => self.write_pair(0, Step::FirstPair),
            Step::FirstPair => self.write_pair(2, Step::SecondPair),
            Step::SecondPair => Step::Switched,
            Step::Switched | Step::Done => Step::Done,
        };
        Ok(())
    }

    fn look_for_superblocks(&mut self, places: Vec<Places>) {
        for places in places {
            let copies = places.map(|block| self.driver.read(BlockRange::new(block, 1)));
            self.looked_at.push((places, copies));
        }
    }

    /// Reads the copies that those at the start name, where they were not looked at; says whether there are any.
    fn look_where_the_start_says(&mut self) -> bool {
        let Some((_, [first, _, second, _])) = self.looked_at.first().copied() else { return false };
        let mut named = places_named([first, second].map(|copy| self.driver.result(copy)));
        let seen: Vec<Places> = self.looked_at.iter().map(|(places, _)| *places).collect();
        let blocks = self.geometry.blocks;
        named.retain(|places| !seen.contains(places) && places.iter().all(|place| place.0 < blocks));
        let any = !named.is_empty();
        self.look_for_superblocks(named);
        any
    }

    fn choose_superblock(&mut self) -> Result<(), OpenError> {
        let looked_at = self.looked_at.iter();
        let readings = looked_at.map(|(places, copies)| (*places, read(copies.map(|copy| self.driver.result(copy)))));
        let (superblock, differing) = match choose(self.geometry.blocks, readings) {
            (_, Reading::Present { superblock, differing }) => (*superblock, differing),
            (_, Reading::Unreadable) => return Err(OpenError::Unreadable),
            (_, Reading::Empty) => return Err(OpenError::NotFormatted),
        };
        if self.geometry.blocks < superblock.blocks {
            return Err(OpenError::Shrank { before: superblock.blocks, now: self.geometry.blocks });
        }
        if self.options.cores == 0 || self.options.cores > superblock.map.lanes {
            let (cores, lanes) = (self.options.cores, superblock.map.lanes);
            return Err(OpenError::TooManyCores { cores, lanes });
        }
        self.report.previous_boot = superblock.boot;
        self.report.first = superblock.generation == Generation::default();
        (self.superblock, self.differing) = (Some(superblock), differing);
        Ok(())
    }

    fn read_roots(&mut self) -> Step {
        self.driver.clear();
        if self.report.first {
            // No root was ever written.
            self.report.clean = true;
            for shard in (0..self.superblock().map.shards).map(ShardId) {
                self.shards.insert(shard, RecoveredShard { root_slot: 1, ..RecoveredShard::default() });
            }
            return Step::Fold;
        }
        let map = self.superblock().map;
        self.driver.read(BlockRange::new(map.roots, u32::from(map.shards) * 2));
        for lane in self.rings_in_doubt() {
            self.driver.read(BlockRange::new(Block(map.ring(lane).0 + map.ring_blocks - 1), 1));
        }
        Step::TakeRoots
    }

    /// Rings that were taken by the last run and are not known to be written whole.
    fn rings_in_doubt(&self) -> impl Iterator<Item = LaneId> + use<> {
        let superblock = self.superblock();
        (superblock.lanes_written..superblock.cores).map(LaneId)
    }

    /// The results after the roots are those rings' last blocks.
    fn count_rings_written(&mut self) {
        let last_blocks = (1..).map(|result| self.driver.result(result));
        let written = self.rings_in_doubt().zip(last_blocks).take_while(|(_, block)| was_written(block)).count();
        self.rings_written = self.superblock().lanes_written + written as u16;
    }

    fn take_blobs(&mut self) -> Result<Step, OpenError> {
        let mut loading = self.loading.take().expect("loading");
        let complete = loading.take_blobs(&self.driver, &mut self.report)?;
        self.driver.clear();
        if !complete {
            loading.read_directories(&mut self.driver);
            self.loading = Some(loading);
            return Ok(Step::Directories);
        }
        self.roots.clear();
        self.shards.clear();
        for (shard, recovered, root) in loading.finish() {
            self.shards.insert(shard, recovered);
            self.roots.push(root);
        }
        if self.scans.is_empty() {
            self.start_scans();
            return Ok(self.read_scans());
        }
        // The journals were read before; only the shards had to be loaded again.
        Ok(Step::Fold)
    }

    fn start_scans(&mut self) {
        let superblock = self.superblock().clone();
        for lane in (0..superblock.cores).map(LaneId) {
            let own = self.roots.iter().flatten().filter(|root| root.lane == lane);
            let start = match own.min_by_key(|root| root.next_sequence) {
                Some(root) => {
                    ScanStart { sequence: root.next_sequence, position: root.position, previous: root.previous }
                }
                None => ScanStart {
                    sequence: superblock.first_sequence,
                    position: 0,
                    previous: first_link(superblock.generation),
                },
            };
            let ring = (superblock.map.ring(lane), superblock.map.ring_blocks);
            self.scans.push(LaneScan::new(lane, superblock.namespace, superblock.generation, ring, start));
        }
    }

    fn read_scans(&mut self) -> Step {
        self.driver.clear();
        self.scanning.clear();
        for (index, scan) in self.scans.iter().enumerate().filter(|(_, scan)| !scan.done) {
            self.scanning.push((index, self.driver.read(scan.next_read())));
        }
        if self.scanning.is_empty() { Step::Fold } else { Step::Scan }
    }

    fn take_scans(&mut self) -> Step {
        for (index, result) in &self.scanning {
            self.scans[*index].take(self.driver.result(*result));
        }
        self.read_scans()
    }

    /// Folds everything accepted, then asks for the direct writes that the final map still holds and that no later
    /// commit states durable.
    fn fold_and_verify(&mut self) -> Result<Step, OpenError> {
        self.driver.clear();
        self.verifications.clear();
        self.fold();
        if !self.geometry.volatile_write_cache {
            return self.look_before_roots();
        }
        for (lane, scan) in self.scans.iter().enumerate() {
            for commit in scan.accepted.iter().filter(|commit| commit.sequence > scan.durable) {
                let Ok(payload) = commit.header.payload(&commit.bytes) else { continue };
                for record in Records::new(payload).map_while(Result::ok) {
                    let Record::Partition(link, Change::AppendDone { facts, done }) = &record.record else { continue };
                    let shard = self.shards.get(&record.shard);
                    let partition = shard.and_then(|shard| shard.partitions.get(&link.partition));
                    if partition.is_none_or(|partition| partition.extent(facts.tenancy).is_none()) {
                        continue;
                    }
                    let blocks = (done.direct_len / base::BLOCK_SIZE as u64) as u32;
                    if done.direct_block.0 + u64::from(blocks) > self.geometry.blocks || blocks == 0 {
                        continue;
                    }
                    let result = self.driver.read(BlockRange::new(done.direct_block, blocks));
                    let (sequence, crc) = (commit.sequence, done.direct_crc);
                    self.verifications.push(Verification { lane, sequence, crc, result });
                }
            }
        }
        if self.verifications.is_empty() { self.look_before_roots() } else { Ok(Step::Verify) }
    }

    fn take_verifications(&mut self) -> Result<Step, OpenError> {
        let mut rejected: BTreeMap<usize, u64> = BTreeMap::new();
        for verification in &self.verifications {
            if crc::crc32c(self.driver.result(verification.result)) != verification.crc {
                let first = rejected.entry(verification.lane).or_insert(u64::MAX);
                *first = (*first).min(verification.sequence);
            }
        }
        if rejected.is_empty() {
            return self.look_before_roots();
        }
        for (lane, sequence) in rejected {
            self.report.rejected.push((self.scans[lane].lane(), sequence));
            self.scans[lane].reject_from(sequence);
        }
        // What they had done to the shards is undone by loading those again, and told again: what was told of them may
        // rest on what is rejected now, as that a root was published which this opening, cut before, has torn since
        // (seed 1797016626).
        let report = &mut self.report;
        report.suspects.clear();
        report.older_checkpoints.clear();
        report.unreadable_shards.clear();
        Ok(self.read_roots())
    }

    fn rewrite_differing(&mut self) -> Step {
        let superblock = self.superblock().clone();
        for copy in std::mem::take(&mut self.differing) {
            let block = superblock.map.superblock_copies()[copy];
            self.driver.write(block, superblock.encode(copy));
        }
        self.driver.flush();
        let ring = self.ring();
        let cores = self.options.cores;
        let blocks = self.keeper.as_ref().map_or(self.geometry.blocks, Keeper::blocks);
        let next = self.superblock.as_mut().expect("it was chosen");
        next.sequence += 1;
        next.generation = ring.generation;
        next.first_sequence = ring.first_sequence;
        next.cores = cores;
        next.boot = self.options.boot;
        next.blocks = blocks;
        next.lanes_written = self.rings_written;
        Step::Rewrite
    }

    fn ring(&self) -> RingStart {
        let lane = &self.stores[0].lane;
        RingStart { generation: lane.generation(), first_sequence: lane.first_sequence() }
    }

    fn write_pair(&mut self, first: usize, next: Step) -> Step {
        let superblock = self.superblock().clone();
        let copies = superblock.map.superblock_copies();
        for copy in [first, first + 1] {
            self.driver.write(Block(copies[copy].0), superblock.encode(copy));
        }
        self.driver.flush();
        next
    }

    fn finish(&mut self) -> Option<Opened> {
        let seeds: Vec<StoreSeed> = self.stores.iter().map(Store::to_seed).collect();
        let view = self.stores.iter().find_map(|store| store.saved_view().cloned());
        self.report.partitions = seeds.iter().map(StoreSeed::partitions).sum();
        self.report.suspects = self.stores.iter().flat_map(Store::suspects).collect();
        let superblock = self.superblock.clone()?;
        let mut keeper = self.keeper.take()?;
        keeper.set_superblock(superblock.clone());
        Some(Opened { superblock, seeds, keeper, report: self.report.clone(), view })
    }

    fn next_generation(&mut self) -> RingStart {
        let last = self.scans.iter().map(LaneScan::last_sequence).max().unwrap_or(0);
        let first_sequence = last.max(self.superblock().first_sequence) + SEQUENCES_SKIPPED;
        let generation = u128::from(self.random.next_u64()) << 64 | u128::from(self.random.next_u64());
        RingStart { generation: Generation(generation.max(1)), first_sequence }
    }

    fn lanes_stopped_cleanly(&self) -> bool {
        self.scans.iter().all(|scan| {
            scan.stopped_cleanly && scan.accepted.last().is_some_and(|commit| commit.header.kind == CommitKind::Stop)
        })
    }
}
