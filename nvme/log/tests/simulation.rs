//! Random histories over the simulated device, a crash at any step (also inside a recovery), and a model that every
//! recovered state must equal. Each seed is at least 2,000 operations over 20 partitions with five crashes, one of them
//! inside a recovery; what a seed did is counted, and a count of zero over all of them fails the run.
//! `POLLUX_LOG_SEEDS` sets how many seeds run, `POLLUX_LOG_FIRST_SEED` the first,
//! `POLLUX_LOG_SEED` runs one, `POLLUX_LOG_OPERATIONS` sets the length of each. Seeds that ever failed run every time.

mod common;
mod model;

use base::*;
use common::*;
use model::{History, Op};
use nvme_device::sim::{FaultPlan, Latency, PerMillion, SimDisk, SimOptions, Tear};
use pollux_nvme_log::*;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const PARTITIONS: u128 = 20;
const OPERATIONS_MIN: u64 = 2000;
const CRASHES: u64 = 5;
/// The crash that is followed by another inside its recovery for certain.
const CRASH_IN_RECOVERY: u64 = 2;
/// Turns of a recovery before it crashes, at most.
const RECOVERY_TURNS_MAX: u64 = 120;
/// Seeds that failed once.
const FAILED_BEFORE: [u64; 15] = [
    1_796_028_424,
    1_796_028_573,
    1_796_028_635,
    1_796_100_146,
    1_796_300_280,
    1_796_300_489,
    1_796_300_571,
    1_796_300_668,
    1_796_300_707,
    1_796_300_772,
    1_796_301_108,
    1_796_600_157,
    1_797_000_036,
    1_797_006_683,
    1_797_016_626,
];

/// How often what happened.
type Counts = BTreeMap<&'static str, u64>;

/// What every run over several seeds must have done.
const KINDS: [&str; 22] = [
    "appends",
    "appends of a follower",
    "appends refused for want of room or time",
    "blocks grown",
    "checkpoints",
    "crashes inside a recovery",
    "creations",
    "deletions",
    "epochs",
    "high watermarks",
    "log starts",
    "openings under another number of cores",
    "operations",
    "partitions compared",
    "partitions whose last operations were lost",
    "power losses",
    "reads compared",
    "restarts at an offset",
    "transaction markers",
    "truncations",
    "truncations that read",
    "views saved",
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Crash {
    Kill,
    PowerLoss,
}

struct Simulation {
    seed: u64,
    random: Random,
    node: Option<Node>,
    options: OpenOptions,
    histories: BTreeMap<PartitionId, History>,
    producers: BTreeMap<(PartitionId, i64), i32>,
    view: Option<SavedView>,
    views: Vec<SavedView>,
    crash: Crash,
    epoch: i32,
    /// Partitions with a truncation on its way.
    truncating: BTreeSet<PartitionId>,
    counts: Counts,
    /// Partitions that something was done to.
    touched: BTreeSet<PartitionId>,
}

impl Simulation {
    fn new(seed: u64) -> Simulation {
        let mut random = Random::from_seed(seed);
        let most = 48 + random.below(64);
        let grows = seed % 3 == 1;
        let mib = if grows { most / 2 + 16 } else { most };
        let mut disk_options = SimOptions::new(mib * MIB / BLOCK_SIZE as u64);
        disk_options.volatile_write_cache = random.chance(3, 4);
        disk_options.latency = if random.chance(1, 2) { Latency::SSD } else { Latency::NONE };
        disk_options.tear = if random.chance(1, 2) { Tear::Sectors } else { Tear::Blocks };
        disk_options.transfer_max = [32, 256, 1024][random.below(3) as usize];
        let crash = if random.chance(3, 4) { Crash::PowerLoss } else { Crash::Kill };
        let disk = SimDisk::new(disk_options, Random::from_seed(random.next_u64()));
        let mut now = START;
        format(&disk, 4, if grows { most * MIB } else { 0 }, &mut random, &mut now);
        if grows {
            disk.set_faults(FaultPlan { growth_refused: PerMillion(700_000), ..FaultPlan::none() });
        }
        let mut options = options(1 + random.below(3) as u16);
        options.store.durable_writes = random.chance(1, 2);
        options.store.copy_out_window = [256 << 10, 4 << 20][random.below(2) as usize];
        options.store.tail_cache = [64 << 10, 8 << 20][random.below(2) as usize];
        options.store.read_cache = [256 << 10, 8 << 20][random.below(2) as usize];
        options.store.index_cache = [4 << 10, 1 << 20][random.below(2) as usize];
        options.store.zero_ahead = seed % 2 == 1;
        options.store.high_watermark_interval = Duration::from_millis(20);
        options.store.description_held_max = Duration::from_millis(50);
        if crash == Crash::Kill && random.chance(1, 2) {
            options.store.durability = Durability::Cache;
        }
        let node = open(&disk, &options, &mut random, &mut now);
        let (histories, producers) = (BTreeMap::new(), BTreeMap::new());
        let (view, views, truncating) = (None, Vec::new(), BTreeSet::new());
        let node = Some(node);
        let (epoch, counts, touched) = (0, Counts::new(), BTreeSet::new());
        Simulation {
            seed,
            random,
            node,
            options,
            histories,
            producers,
            view,
            views,
            crash,
            epoch,
            truncating,
            counts,
            touched,
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// An operation of the store on a partition took place.
    fn did(&mut self, id: PartitionId, what: &'static str) {
        self.touched.insert(id);
        self.count(what);
        self.count("operations");
    }

    fn node(&mut self) -> &mut Node {
        self.node.as_mut().expect("it runs")
    }

    fn find(&mut self, id: PartitionId) -> Option<(usize, LogSlot)> {
        let node = self.node();
        let find = |(index, core): (usize, &Core)| core.store.find(id).map(|slot| (index, slot));
        node.cores.iter().enumerate().find_map(find)
    }

    fn some_partition(&mut self) -> Option<(PartitionId, usize, LogSlot)> {
        let id = partition(self.random.below(PARTITIONS as u64).into());
        self.find(id).map(|(core, slot)| (id, core, slot))
    }

    fn turn(&mut self) {
        self.node().turn();
        self.take_events();
    }

    fn take_events(&mut self) {
        let Simulation { node, histories, view, views, seed, truncating, .. } = self;
        let node = node.as_mut().expect("it runs");
        for core in &mut node.cores {
            let mut kept = Vec::new();
            for event in core.events.drain(..) {
                match event {
                    LogEvent::Durable { slot, up_to } => {
                        let id = core.store.partition_id(slot);
                        histories.get_mut(&id).expect("known").on_durable(up_to.0);
                    }
                    LogEvent::LogStartMoved { slot, to } if core.store.is_open(slot) => {
                        let id = core.store.partition_id(slot);
                        histories.get_mut(&id).expect("known").on_log_start(to.0);
                    }
                    LogEvent::Truncated { slot, result } => {
                        let to = result.unwrap_or_else(|error| panic!("seed {seed}: truncation: {error}"));
                        let id = core.store.partition_id(slot);
                        histories.get_mut(&id).expect("known").push(Op::Truncate(to.0));
                        truncating.remove(&id);
                    }
                    LogEvent::Deleted { partition } => {
                        let history = histories.get(&partition);
                        if history.is_some_and(|h| h.now().deleted) {
                            histories.remove(&partition);
                        }
                    }
                    LogEvent::ViewSaved { metadata_offset } => {
                        let saved = views.iter().rposition(|view| view.metadata_offset == metadata_offset);
                        if let Some(index) = saved {
                            *view = Some(views[index].clone());
                            views.drain(..=index);
                        }
                    }
                    LogEvent::NamespaceStopped { reason } => panic!("seed {seed}: stopped: {reason}"),
                    event @ LogEvent::ReadDone { .. } => kept.push(event),
                    _ => {}
                }
            }
            core.events = kept;
        }
    }

    fn create(&mut self) {
        let id = partition(self.random.below(PARTITIONS as u64).into());
        let known = self.histories.contains_key(&id);
        if known || self.find(id).is_some() {
            return;
        }
        let cores = self.node().cores.len() as u64;
        let core = self.random.below(cores) as usize;
        let config = LogConfig {
            segment_bytes: [64 << 10, 1 << 20][self.random.below(2) as usize],
            ..LogConfig::keep_everything()
        };
        let node = self.node();
        let now = node.now;
        if node.cores[core].store.create(now, id, 0, config).is_ok() {
            self.histories.insert(id, History::default());
            self.producers.retain(|(partition, _), _| *partition != id);
            self.did(id, "creations");
        }
    }

    fn some_batch(&mut self, id: PartitionId) -> Vec<u8> {
        let at = self.node().now.wall;
        let value = match self.random.below(40) {
            0 => 60_000 + self.random.below(200_000) as usize,
            1..=4 => 10_000 + self.random.below(15_000) as usize,
            5..=12 => 1000 + self.random.below(4000) as usize,
            _ => self.random.below(400) as usize,
        };
        let records = if value > 10_000 { 1 } else { 1 + self.random.below(4) as usize };
        let at = WallMillis(at.0 - self.random.below(5000) as i64);
        if self.random.chance(1, 2) {
            return batch(&mut self.random, records, value, at);
        }
        let producer = 1 + self.random.below(6) as i64;
        let transactional = producer >= 4;
        if transactional && self.random.chance(1, 4) {
            let committed = self.random.chance(1, 2);
            self.count("transaction markers");
            return marker(producer, 0, committed, at);
        }
        let sequence = self.producers.entry((id, producer)).or_insert(0);
        let first = *sequence;
        *sequence += records as i32;
        let epoch = (first / 200) as i16 * i16::from(!transactional);
        producer_batch(&mut self.random, records, value, at, (producer, epoch, first), transactional)
    }

    fn append(&mut self) {
        let Some((id, core, slot)) = self.some_partition() else { return };
        let bytes = self.some_batch(id);
        let epoch = self.epoch;
        let follows = self.random.chance(1, 10);
        let node = self.node.as_mut().expect("it runs");
        let now = node.now;
        let store = &mut node.cores[core].store;
        let base = Offset(store.end_offset(slot).0 + if follows { self.random.below(3) as i64 } else { 0 });
        let stamped = stamped(&bytes, base, epoch);
        let append = match follows {
            true => Append { batches: &stamped, mode: AppendMode::Follower },
            false => Append { batches: &bytes, mode: AppendMode::Leader { epoch: LeaderEpoch(epoch) } },
        };
        match store.append(now, slot, append) {
            Ok(appended) => {
                assert_eq!(appended.first, base);
                self.histories.get_mut(&id).expect("known").push(Op::Append(Rc::new(stamped)));
                self.did(id, if follows { "appends of a follower" } else { "appends" });
            }
            Err(AppendError::Pressure | AppendError::Full) => {
                self.count("appends refused for want of room or time");
                self.turn();
            }
            Err(error) => panic!("seed {}: append: {error}", self.seed),
        }
    }

    fn change(&mut self) {
        let Some((id, core, slot)) = self.some_partition() else { return };
        let what = self.random.below(10);
        let pick = self.random.next_u64();
        let node = self.node.as_mut().expect("it runs");
        let now = node.now;
        let store = &mut node.cores[core].store;
        let history = self.histories.get_mut(&id).expect("known");
        let (start, durable, end) = (store.log_start(slot), store.durable_offset(slot), store.end_offset(slot));
        let done = match what {
            0..=2 if end > start => {
                let span = (end.0 - start.0) as u64;
                let back = if pick.is_multiple_of(4) { pick % span + 1 } else { (pick % 8 + 1).min(span) };
                let to = Offset(end.0 - back as i64);
                match store.truncate(now, slot, to) {
                    Ok(TruncateOutcome::Done) => {
                        history.push(Op::Truncate(to.0));
                        Some("truncations")
                    }
                    Ok(TruncateOutcome::Reading) => {
                        self.truncating.insert(id);
                        Some("truncations that read")
                    }
                    Err(_) => {
                        self.turn();
                        None
                    }
                }
            }
            3 | 4 if durable > start => {
                let to = Offset(start.0 + (pick % (durable.0 - start.0) as u64) as i64 + 1);
                store.set_log_start(slot, to).is_ok().then(|| {
                    history.push(Op::LogStart(to.0));
                    "log starts"
                })
            }
            5 | 6 => {
                self.epoch += 1;
                store.start_epoch(slot, LeaderEpoch(self.epoch), end).is_ok().then(|| {
                    history.push(Op::Epoch(self.epoch, end.0));
                    "epochs"
                })
            }
            7 if pick.is_multiple_of(4) => store.delete(slot).is_ok().then(|| {
                self.truncating.remove(&id);
                history.push(Op::Delete);
                "deletions"
            }),
            8 if pick.is_multiple_of(4) => {
                let at = end.0 + (pick >> 8) as i64 % 50;
                store.restart_at(slot, Offset(at)).is_ok().then(|| {
                    history.push(Op::Restart(at));
                    "restarts at an offset"
                })
            }
            _ => {
                store.record_high_watermark(now, slot, durable);
                Some("high watermarks")
            }
        };
        if let Some(what) = done {
            self.did(id, what);
        }
        self.take_events();
    }

    fn check_reads(&mut self) {
        let Some((id, core, slot)) = self.some_partition() else { return };
        if self.truncating.contains(&id) {
            return;
        }
        let state = self.histories[&id].now();
        let upper = self.node().cores[core].store.durable_offset(slot);
        let start = Offset(state.log_start);
        if upper <= start {
            return;
        }
        let from = Offset(start.0 + self.random.below((upper.0 - start.0) as u64) as i64);
        let max = 1 + self.random.below(200_000) as usize;
        let read = self.node().fetch(core, slot, from, upper, max);
        // What its turns told came before what is done next, though nothing could be read (seed 1796300707).
        self.take_events();
        let Some(bytes) = read else { return };
        let all = state.bytes();
        let view = batch::BatchView::parse(&bytes).expect("a batch").0.header();
        let found = all.windows(bytes.len()).any(|window| window == bytes);
        assert!(found, "seed {}: {from} to {upper} of {id} reads what was never there", self.seed);
        let gap = state.batch_starts().iter().all(|base| *base > from.0 || *base <= view.base_offset.0);
        assert!(view.last_offset() >= from && gap, "seed {}: {from} gives {view:?}", self.seed);
        self.did(id, "reads compared");
    }

    fn save_view(&mut self) {
        let offset = self.views.last().or(self.view.as_ref()).map_or(0, |view| view.metadata_offset) + 1;
        let view = SavedView { metadata_offset: offset, bytes: vec![offset as u8; self.random.below(20_000) as usize] };
        for core in &mut self.node().cores {
            if core.store.save_view(view.bytes.clone(), offset).is_ok() {
                self.views.push(view);
                self.count("views saved");
                self.count("operations");
                return;
            }
        }
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..=2 => self.create(),
            3..=54 => self.append(),
            55..=60 => self.change(),
            61..=63 => self.check_reads(),
            64 => {
                let cores = self.node().cores.len() as u64;
                let core = self.random.below(cores) as usize;
                self.node().cores[core].store.checkpoint();
                self.count("checkpoints");
                self.count("operations");
            }
            65 => self.save_view(),
            66 => {
                let wait = Duration::from_millis(self.random.below(30));
                let node = self.node();
                node.now = advance(node.now, wait);
            }
            _ => self.turn(),
        }
    }

    /// The process dies, and perhaps the power goes; and again inside the recovery. Then what is found is compared.
    fn crash(&mut self, in_recovery: bool) {
        let node = self.node.take().expect("it runs");
        let (disk, mut now) = node.kill();
        self.count("crashes");
        self.lose_power(&disk);
        let mut turns = self.random.below(RECOVERY_TURNS_MAX);
        let mut certain = in_recovery;
        while certain || self.random.chance(1, 2) {
            self.options.cores = 1 + self.random.below(4) as u16;
            match try_open(&disk, &self.options, &mut self.random, &mut now, 1 + turns as usize) {
                Some(Err(error)) => panic!("seed {}: {error}", self.seed),
                // It was over before, and the crash comes right behind it.
                Some(Ok(_)) => turns /= 2,
                None => {
                    self.count("crashes inside a recovery");
                    certain = false;
                    turns = self.random.below(RECOVERY_TURNS_MAX);
                }
            }
            self.lose_power(&disk);
        }
        let before = self.options.cores;
        self.options.cores = 1 + self.random.below(4) as u16;
        if self.options.cores != before {
            self.count("openings under another number of cores");
        }
        let node = match try_open(&disk, &self.options, &mut self.random, &mut now, 1_000_000) {
            Some(Ok(node)) => node,
            Some(Err(error)) => panic!("seed {}: {error}", self.seed),
            None => panic!("seed {}: the opening does not end", self.seed),
        };
        let report = &node.report;
        let honest = report.damages.is_empty() && report.suspects.is_empty() && report.older_checkpoints.is_empty();
        assert!(honest, "seed {}: damage without a fault: {report:?}", self.seed);
        let view = node.view.clone();
        self.node = Some(node);
        let saved = view == self.view || self.views.iter().any(|newer| Some(newer) == view.as_ref());
        assert!(saved, "seed {}: the view is {:?}", self.seed, view.map(|view| view.metadata_offset));
        self.view = view;
        self.views.clear();
        self.truncating.clear();
        self.compare();
    }

    fn lose_power(&mut self, disk: &SimDisk) {
        if self.crash == Crash::PowerLoss && self.random.chance(3, 4) {
            disk.power_loss(&mut self.random);
            self.count("power losses");
        }
    }

    fn compare(&mut self) {
        let ids: Vec<PartitionId> = self.histories.keys().copied().collect();
        for id in ids {
            let history = self.histories[&id].clone();
            let possible = history.possible();
            let Some((core, slot)) = self.find(id) else {
                let may_lack = !history.certain || possible.iter().any(|(_, state)| state.deleted);
                assert!(may_lack, "seed {}: {id} is gone", self.seed);
                self.histories.remove(&id);
                continue;
            };
            let store = &self.node.as_ref().expect("it runs").cores[core].store;
            let mut why = Vec::new();
            let like: Vec<_> = possible
                .iter()
                .filter(|(_, state)| !state.deleted)
                .filter(|(_, state)| {
                    why.push(state.differs(store, slot));
                    why.last().is_some_and(Option::is_none)
                })
                .collect();
            let Some((_, state)) = like.first() else {
                let told = history.told.join("\n ");
                panic!("seed {}: {id} is none of {} possible states: {why:?}\n {told}", self.seed, possible.len());
            };
            let end = Offset(state.end);
            let max = 1 + self.random.below(300_000) as usize;
            let bytes = self.node().read_all(core, slot, end, max);
            // Of a batch that was cut off and another in its place nothing but the bytes may tell which is there.
            let found = like.iter().find(|(_, state)| state.bytes() == bytes);
            let Some((count, _)) = found else {
                let list = |bytes: &[u8]| -> Vec<(i64, i64, usize)> {
                    let header =
                        |view: batch::BatchView<'_>| (view.base_offset().0, view.header().last_offset().0, view.size());
                    batch::Batches::new(bytes).map_while(Result::ok).map(header).collect()
                };
                let (found, wanted) = (list(&bytes), list(&state.bytes()));
                let seed = self.seed;
                let described = self.node().cores[core].store.describe(slot);
                panic!("seed {seed}: {id} has {found:?}, not {wanted:?}: {described}\n {}", history.told.join("\n "));
            };
            self.count("partitions compared");
            let history = self.histories.get_mut(&id).expect("known");
            let lost = *count < history.pending.len();
            history.acknowledge(*count);
            history.pending.clear();
            history.told.push("crash".to_owned());
            if lost {
                self.count("partitions whose last operations were lost");
            }
        }
        for core in 0..self.node().cores.len() {
            let found: Vec<_> = self.node().cores[core].store.slots().collect();
            for (_, id) in found {
                assert!(self.histories.contains_key(&id), "seed {}: {id} came from nowhere", self.seed);
            }
        }
        self.take_events();
    }
}

fn run(seed: u64, operations: u64) -> Counts {
    let mut simulation = Simulation::new(seed);
    let blocks = simulation.node().disk.seen().blocks();
    for round in 0..CRASHES {
        let share = operations / CRASHES;
        let until = share * round + share / 2 + simulation.random.below(share);
        let until = if round + 1 == CRASHES { operations } else { until };
        let last = round + 1 == CRASHES;
        let goes_on = |simulation: &Simulation| {
            let operations = simulation.counts.get("operations").copied().unwrap_or_default();
            operations < until || last && simulation.touched.len() < PARTITIONS as usize
        };
        while goes_on(&simulation) {
            simulation.step();
        }
        if round % 2 == 1 {
            for _ in 0..simulation.random.below(40) {
                simulation.turn();
            }
        }
        simulation.crash(round == CRASH_IN_RECOVERY);
    }
    let grown = simulation.node().disk.seen().blocks() - blocks;
    simulation.counts.insert("blocks grown", grown);
    let counts = simulation.counts;
    let count = |what| counts.get(what).copied().unwrap_or_default();
    let whole = count("operations") >= OPERATIONS_MIN.min(operations)
        && count("crashes") == CRASHES
        && count("crashes inside a recovery") > 0;
    assert!(whole, "seed {seed}: {counts:?}");
    assert_eq!(simulation.touched.len(), PARTITIONS as usize, "seed {seed}");
    counts
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn every_crash_leaves_what_was_acknowledged() {
    let operations = number("POLLUX_LOG_OPERATIONS", OPERATIONS_MIN);
    if let Ok(seed) = std::env::var("POLLUX_LOG_SEED") {
        run(seed.parse().expect("a seed is a number"), operations);
        return;
    }
    // Fresh ones are a run by hand until thousands pass.
    let (first, seeds) = (number("POLLUX_LOG_FIRST_SEED", 1), number("POLLUX_LOG_SEEDS", 8));
    println!("seeds {first}..{}", first + seeds);
    let mut all = Counts::new();
    for seed in (first..first + seeds).chain(FAILED_BEFORE) {
        for (what, count) in run(seed, operations) {
            *all.entry(what).or_default() += count;
        }
    }
    println!("{all:?}");
    let missing: Vec<_> = KINDS.iter().filter(|kind| all.get(*kind).is_none_or(|count| *count == 0)).collect();
    assert!(seeds < 8 || missing.is_empty(), "none of these in {seeds} seeds from {first}: {missing:?}");
}
