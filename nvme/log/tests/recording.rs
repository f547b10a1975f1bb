//! Durability proven by replaying recorded writes: stores under mixed load on a real file, every write and flush
//! recorded, and then states that a power cut could have left (any subset of what was not flushed, writes torn inside),
//! each recovered and compared with what had been acknowledged at that cut.
//!
//! The short form runs with the other tests. The campaign:
//! `POLLUX_RECORDING_SECONDS=60 POLLUX_RECORDING_IMAGES=1010 cargo test --release -p pollux-nvme-log --test recording -- --nocapture`

mod common;
mod model;

use arena::Arena;
use base::*;
use common::*;
use model::{History, Op};
use nvme_device::recording::EventKind;
use nvme_device::{
    CrashImage, CrashImages, Device, Engine, FileOptions, ImageOptions, Latency, Medium, Queue, QueueOptions, Recorder,
    Recording, SimDisk, SimOptions, Stamp, Tear,
};
use nvme_plan::{Completion, Namespace, Plan};
use pollux_nvme_log::*;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const CORES: u16 = 2;
const PARTITIONS: u64 = 12;
/// What is written a second, so that minutes fit into memory.
const PACE: u64 = 3 * MIB;
/// Bytes that a partition keeps, and how long records are kept elsewhere: every image is read back whole.
const KEPT_BYTES: u64 = MIB;
const KEPT_TIME: Duration = Duration::from_secs(3);

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// What changes the model, in the order of the recording, whose marks count them.
enum Change {
    Created(PartitionId),
    Did(PartitionId, Op),
    Durable(PartitionId, i64),
    LogStart(PartitionId, i64),
    Gone(PartitionId),
}

#[derive(Default)]
struct Model {
    histories: BTreeMap<PartitionId, History>,
}

impl Model {
    fn apply(&mut self, change: &Change) {
        match change {
            Change::Created(id) => {
                self.histories.insert(*id, History::default());
            }
            Change::Did(id, op) => self.history(id).push(op.clone()),
            Change::Durable(id, to) => self.history(id).on_durable(*to),
            Change::LogStart(id, to) => self.history(id).on_log_start(*to),
            Change::Gone(id) => {
                self.histories.remove(id);
            }
        }
    }

    fn history(&mut self, id: &PartitionId) -> &mut History {
        self.histories.get_mut(id).expect("a change of a known partition")
    }
}

struct LoadCore {
    store: Store,
    queue: Recording<Queue>,
    plan: Plan,
    completions: Vec<Completion>,
    events: Vec<LogEvent>,
}

/// How often what happened.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    appends: u64,
    bytes: u64,
    largest: usize,
    truncations: u64,
    retained: u64,
    deleted_records: u64,
    deleted_partitions: u64,
    checkpoints: u64,
    epochs: u64,
}

struct Load {
    recorder: Recorder,
    cores: Vec<LoadCore>,
    keeper: Keeper,
    random: Random,
    began: Instant,
    changes: Vec<Change>,
    marked: usize,
    /// The log start of each partition as the model has it: retention moves it by itself.
    starts: BTreeMap<PartitionId, i64>,
    /// The store cuts them, and tells when it has.
    truncating: BTreeSet<PartitionId>,
    sequences: BTreeMap<(PartitionId, i64), i32>,
    epoch: i32,
    counts: Counts,
}

fn store_options() -> OpenOptions {
    let store = StoreOptions {
        retention_interval: Duration::from_millis(200),
        high_watermark_interval: Duration::from_millis(100),
        copy_out_window: 4 << 20,
        tail_cache: 8 << 20,
        ..StoreOptions::default()
    };
    OpenOptions { cores: CORES, store, boot: Uuid(1), accept_loss: false }
}

/// Drives format and opening against a real device.
fn drive<R>(
    queue: &mut Recording<Queue>,
    now: impl Fn() -> Now,
    mut step: impl FnMut(Now, &mut Plan, Option<Completion>) -> Option<R>,
) -> R {
    let (mut plan, mut completions) = (Plan::new(), Vec::new());
    loop {
        if let Some(end) = step(now(), &mut plan, None) {
            return end;
        }
        queue.submit_plan(now(), &mut plan);
        queue.poll(now(), usize::MAX, &mut completions);
        for completion in completions.drain(..) {
            step(now(), &mut plan, Some(completion));
        }
        std::thread::yield_now();
    }
}

fn now_since(began: Instant) -> Now {
    let elapsed = began.elapsed();
    Now {
        monotonic: START.monotonic + elapsed,
        wall: WallMillis(START.wall.0 + i64::try_from(elapsed.as_millis()).expect("a short run")),
    }
}

impl Load {
    fn start(path: &std::path::Path, seed: u64) -> Load {
        let mut file = FileOptions::new(path);
        file.create = Some(256 * MIB);
        let device = open_device(file);
        let blocks = device.geometry().blocks;
        let recorder = Recorder::in_memory(blocks, Stamp::Turn);
        let attach = || {
            let queue = device.attach(&QueueOptions::default()).expect("a queue");
            Recording::new(queue, recorder.clone())
        };
        let (mut random, began) = (Random::from_seed(seed), Instant::now());
        let mut queue = attach();
        let mut options = FormatOptions::new("pollux-test-cluster-00", NodeId(1), Uuid(42), 2);
        options.bytes_max = 512 * MIB;
        let arena = Arena::heap(CoreId(0), 32 << 20);
        let mut formatting = Formatting::new(options, &device.geometry(), arena.clone(), &mut random).expect("it fits");
        let formatted = drive(
            &mut queue,
            || now_since(began),
            |_, plan, completion| match completion {
                Some(completion) => {
                    formatting.on_completion(completion);
                    None
                }
                None => formatting.poll(plan),
            },
        );
        formatted.expect("formatted");
        let opening_seed = Random::from_seed(random.next_u64());
        let mut opening = Opening::new(store_options(), &device.geometry(), arena, opening_seed);
        let opened = drive(
            &mut queue,
            || now_since(began),
            |now, plan, completion| match completion {
                Some(completion) => {
                    opening.on_completion(now, completion);
                    None
                }
                None => opening.poll(now, plan),
            },
        );
        let opened = opened.expect("opened");
        let mut queues = vec![queue, attach()];
        let cores = opened.seeds.into_iter().zip(queues.drain(..)).map(|(seed, queue)| LoadCore {
            store: Store::from_seed(seed, store_options().store, Arena::heap(CoreId(0), 48 << 20), random.clone()),
            queue,
            plan: Plan::new(),
            completions: Vec::new(),
            events: Vec::new(),
        });
        let cores = cores.collect();
        Load {
            recorder,
            cores,
            keeper: opened.keeper,
            random,
            began,
            changes: Vec::new(),
            marked: 0,
            starts: BTreeMap::new(),
            truncating: BTreeSet::new(),
            sequences: BTreeMap::new(),
            epoch: 1,
            counts: Counts::default(),
        }
    }

    fn now(&self) -> Now {
        now_since(self.began)
    }

    /// Puts a mark behind the changes so far: what is submitted from here on may carry them.
    fn mark(&mut self) {
        if self.marked < self.changes.len() || self.marked == 0 {
            self.marked = self.changes.len();
            self.recorder.mark(self.now(), self.marked as u64);
        }
    }

    fn run(&mut self, time: Duration) {
        self.mark();
        while self.began.elapsed() < time {
            let due = (self.began.elapsed().as_secs_f64() * PACE as f64) as u64;
            if self.counts.bytes < due {
                self.step();
            }
            if self.turn() == 0 {
                std::thread::yield_now();
            }
        }
    }

    /// One turn of every core; the model learns what happened before anything of it reaches the device.
    fn turn(&mut self) -> usize {
        let now = self.now();
        for core in &mut self.cores {
            core.store.poll(now, &mut core.plan, &mut core.events);
            core.store.poll_background(now, &mut core.plan, &mut core.events);
            while let Some(request) = core.store.take_keeper_request() {
                self.keeper.on_request(now, request);
            }
        }
        while let Some((core, reply)) = self.keeper.take_reply() {
            self.cores[usize::from(core.0)].store.on_keeper_reply(now, reply);
        }
        self.keeper.poll(now, &mut self.cores[0].plan);
        self.note_retention();
        self.take_events();
        self.mark();
        let mut work = 0;
        for core in &mut self.cores {
            work += core.queue.submit_plan(now, &mut core.plan);
        }
        let now = self.now();
        for core in &mut self.cores {
            work += core.queue.poll(now, usize::MAX, &mut core.completions);
            for completion in core.completions.drain(..) {
                if Keeper::owns(completion.token) {
                    self.keeper.on_completion(now, &completion).expect("the superblock is written");
                } else {
                    core.store.on_completion(now, completion, &mut core.events);
                }
            }
        }
        self.take_events();
        self.mark();
        work
    }

    fn note_retention(&mut self) {
        for core in &self.cores {
            for (slot, id) in core.store.slots() {
                let start = core.store.log_start(slot).0;
                let known = self.starts.entry(id).or_insert(0);
                if start > *known {
                    *known = start;
                    self.counts.retained += 1;
                    self.changes.push(Change::Did(id, Op::LogStart(start)));
                }
            }
        }
    }

    fn take_events(&mut self) {
        let Load { cores, changes, truncating, counts, starts, began, .. } = self;
        for core in cores {
            for event in core.events.drain(..) {
                match event {
                    LogEvent::Durable { slot, up_to } => {
                        core.store.record_high_watermark(now_since(*began), slot, up_to);
                        changes.push(Change::Durable(core.store.partition_id(slot), up_to.0));
                    }
                    LogEvent::LogStartMoved { slot, to } if core.store.is_open(slot) => {
                        changes.push(Change::LogStart(core.store.partition_id(slot), to.0));
                    }
                    LogEvent::Truncated { slot, result } => {
                        let id = core.store.partition_id(slot);
                        let to = result.expect("what was written can be read");
                        truncating.remove(&id);
                        counts.truncations += 1;
                        changes.push(Change::Did(id, Op::Truncate(to.0)));
                    }
                    LogEvent::Deleted { partition } => {
                        starts.remove(&partition);
                        changes.push(Change::Gone(partition));
                    }
                    LogEvent::NamespaceStopped { reason } => panic!("stopped: {reason}"),
                    _ => {}
                }
            }
        }
    }

    /// A partition, created where it is not there. One that is being deleted is nobody's until that is durable.
    fn some_partition(&mut self) -> Option<(PartitionId, usize, LogSlot)> {
        let choice = self.random.below(PARTITIONS);
        let id = partition(choice.into());
        let core = (choice % u64::from(CORES)) as usize;
        let now = self.now();
        let store = &mut self.cores[core].store;
        if let Some(slot) = store.find(id) {
            return Some((id, core, slot));
        }
        if self.starts.contains_key(&id) {
            return None;
        }
        let config = LogConfig {
            segment_bytes: [64 << 10, 256 << 10, MIB][choice as usize % 3],
            deletes: true,
            retention_bytes: choice.is_multiple_of(2).then_some(KEPT_BYTES),
            retention_age: (!choice.is_multiple_of(2)).then_some(KEPT_TIME),
            ..LogConfig::keep_everything()
        };
        let slot = store.create(now, id, 0, config).ok()?;
        self.sequences.retain(|(partition, _), _| *partition != id);
        self.starts.insert(id, 0);
        self.changes.push(Change::Created(id));
        Some((id, core, slot))
    }

    fn step(&mut self) {
        let Some((id, core, slot)) = self.some_partition() else { return };
        if self.truncating.contains(&id) {
            return;
        }
        match self.random.below(400) {
            0..=5 => self.truncate(id, core, slot),
            6..=9 => self.delete_records(id, core, slot),
            10..=14 => self.start_epoch(id, core, slot),
            15 => {
                if self.cores[core].store.delete(slot).is_ok() {
                    self.counts.deleted_partitions += 1;
                    self.changes.push(Change::Did(id, Op::Delete));
                }
            }
            16 | 17 => {
                self.counts.checkpoints += 1;
                self.cores[core].store.checkpoint();
            }
            _ => self.append(id, core, slot),
        }
    }

    fn truncate(&mut self, id: PartitionId, core: usize, slot: LogSlot) {
        let (now, pick) = (self.now(), self.random.next_u64());
        let store = &mut self.cores[core].store;
        let (start, end) = (store.log_start(slot).0, store.end_offset(slot).0);
        if end <= start {
            return;
        }
        let to = end - 1 - (pick % 8).min((end - start - 1) as u64) as i64;
        match store.truncate(now, slot, Offset(to)) {
            Ok(TruncateOutcome::Done) => {
                self.counts.truncations += 1;
                self.changes.push(Change::Did(id, Op::Truncate(to)));
            }
            Ok(TruncateOutcome::Reading) => {
                self.truncating.insert(id);
            }
            Err(_) => {}
        }
        // What producers know of the log's end is gone with it: they begin anew, as after a bump of their epoch.
        self.sequences.retain(|(partition, _), _| *partition != id);
    }

    fn delete_records(&mut self, id: PartitionId, core: usize, slot: LogSlot) {
        let pick = self.random.next_u64();
        let store = &mut self.cores[core].store;
        let (start, durable) = (store.log_start(slot).0, store.durable_offset(slot).0);
        if durable <= start {
            return;
        }
        let to = start + 1 + (pick % (durable - start) as u64) as i64;
        if store.set_log_start(slot, Offset(to)).is_ok() {
            self.counts.deleted_records += 1;
            self.starts.insert(id, to);
            self.changes.push(Change::Did(id, Op::LogStart(to)));
        }
    }

    fn start_epoch(&mut self, id: PartitionId, core: usize, slot: LogSlot) {
        self.epoch += 1;
        let store = &mut self.cores[core].store;
        let end = store.end_offset(slot);
        if store.start_epoch(slot, LeaderEpoch(self.epoch), end).is_ok() {
            self.counts.epochs += 1;
            self.changes.push(Change::Did(id, Op::Epoch(self.epoch, end.0)));
        }
    }

    /// From one record of a byte to one of 1 MiB; half by idempotent producers.
    fn append(&mut self, id: PartitionId, core: usize, slot: LogSlot) {
        let now = self.now();
        let value = match self.random.below(600) {
            0 => 1 << 20,
            1..=4 => 100_000 + self.random.below(500_000) as usize,
            5..=60 => 8_000 + self.random.below(40_000) as usize,
            61..=300 => 500 + self.random.below(4000) as usize,
            _ => 1 + self.random.below(200) as usize,
        };
        let records = if value > 8000 { 1 } else { 1 + self.random.below(6) as usize };
        let producer = 1 + self.random.below(8) as i64;
        let bytes = if producer > 4 {
            batch(&mut self.random, records, value, now.wall)
        } else {
            let next = self.sequences.get(&(id, producer)).copied().unwrap_or(0);
            producer_batch(&mut self.random, records, value, now.wall, (producer, 0, next), false)
        };
        let store = &mut self.cores[core].store;
        let base = store.end_offset(slot);
        let mode = AppendMode::Leader { epoch: LeaderEpoch(self.epoch) };
        match store.append(now, slot, Append { batches: &bytes, mode }) {
            Ok(appended) => {
                assert_eq!(appended.first, base);
                if producer <= 4 {
                    *self.sequences.entry((id, producer)).or_insert(0) += records as i32;
                }
                self.counts.appends += 1;
                self.counts.bytes += bytes.len() as u64;
                self.counts.largest = self.counts.largest.max(bytes.len());
                let written = Rc::new(stamped(&bytes, base, self.epoch));
                self.changes.push(Change::Did(id, Op::Append(written)));
            }
            Err(AppendError::Pressure | AppendError::Full) => {}
            Err(error) => panic!("append: {error}"),
        }
    }
}

fn open_device(file: FileOptions) -> Device {
    nvme_device::open(&nvme_device::OpenOptions::File { file, engine: Engine::Automatic }).expect("a namespace")
}

/// What an image's recovery must find: everything acknowledged at its cut, and of what was under way any first part.
fn check(image: CrashImage, model: &Model, seed: u64) -> RecoveryReport {
    let cut = image.cut;
    let mut options = SimOptions::new(image.medium.blocks());
    options.latency = Latency::NONE;
    let mut random = Random::from_seed(seed);
    let disk = SimDisk::from_medium(options, image.medium, Random::from_seed(random.next_u64()));
    let mut now = advance(START, Duration::from_secs(3600));
    let mut options = store_options();
    options.cores = 1 + random.below(4) as u16;
    options.store.zero_ahead = false;
    let mut node = common::open(&disk, &options, &mut random, &mut now);
    let report = node.report.clone();
    let honest = report.damages.is_empty() && report.suspects.is_empty() && report.older_checkpoints.is_empty();
    assert!(honest, "cut {cut}: damage without a fault: {report:?}");
    for (id, history) in &model.histories {
        let place = node.cores.iter().enumerate().find_map(|(core, c)| c.store.find(*id).map(|slot| (core, slot)));
        let possible = history.possible();
        let Some((core, slot)) = place else {
            let may_lack = !history.certain || possible.iter().any(|(_, state)| state.deleted);
            assert!(may_lack, "cut {cut}: {id} is gone\n {}", history.told.join("\n "));
            continue;
        };
        let mut why = Vec::new();
        let states = possible.iter().map(|(_, state)| state).filter(|state| !state.deleted);
        let found = { states }.find(|state| {
            why.push(state.differs(&node.cores[core].store, slot));
            why.last().is_some_and(Option::is_none)
        });
        let Some(state) = found else {
            panic!("cut {cut}: {id} is none of {} possible states: {why:?}", possible.len());
        };
        let bytes = node.read_all(core, slot, Offset(state.end), 1 << 20);
        assert!(bytes == state.bytes(), "cut {cut}: {id} has other bytes\n {}", history.told.join("\n "));
    }
    for core in &node.cores {
        for (_, id) in core.store.slots() {
            assert!(model.histories.contains_key(&id), "cut {cut}: {id} came from nowhere");
        }
    }
    report
}

#[test]
fn every_subset_of_recorded_writes_recovers_to_what_was_acknowledged() {
    let seconds = number("POLLUX_RECORDING_SECONDS", 6);
    let images = number("POLLUX_RECORDING_IMAGES", 60) as usize;
    let seed = number("POLLUX_RECORDING_SEED", 1);
    let path = std::env::temp_dir().join(format!("pollux-recording-{}", std::process::id()));
    let mut load = Load::start(&path, seed);
    load.run(Duration::from_secs(seconds));
    let run = load.recorder.recorded().expect("it was kept in memory");
    let (changes, counts) = (std::mem::take(&mut load.changes), load.counts);
    drop(load);
    std::fs::remove_file(&path).expect("the namespace was there");
    println!("{seconds} s, {} events: {counts:?}", run.events.len());
    let all = [counts.truncations, counts.retained, counts.deleted_records, counts.deleted_partitions];
    assert!(all.iter().chain([&counts.checkpoints, &counts.epochs]).all(|count| *count > 0), "{counts:?}");
    let began = Instant::now();
    let (mut checked, mut inside, mut commits, mut rejected) = (0, 0, 0, 0);
    for tear in [Tear::Blocks, Tear::Sectors] {
        let options = ImageOptions { volatile_write_cache: true, tear };
        let drawn = Random::from_seed(seed ^ 0x5EED ^ (tear == Tear::Sectors) as u64);
        let (mut model, mut applied, mut at) = (Model::default(), 0, 0);
        for image in CrashImages::new(&run, Medium::new(run.blocks), options, images.div_ceil(2), drawn) {
            let mut marks = run.events[at..image.cut].iter().filter_map(|event| match &event.kind {
                EventKind::Mark(count) => Some(*count as usize),
                _ => None,
            });
            let Some(count) = marks.next_back().or((applied > 0).then_some(applied)) else { continue };
            at = image.cut;
            changes[applied..count].iter().for_each(|change| model.apply(change));
            applied = count;
            inside += usize::from(model.histories.values().any(|history| !history.pending.is_empty()));
            let report = check(image, &model, seed ^ checked as u64);
            (checked, commits) = (checked + 1, commits + report.commits);
            rejected += report.rejected.len();
        }
    }
    println!(
        "{checked} images recovered in {:?}: {inside} with operations under way, {commits} commits replayed, {rejected} \
         lanes cut back for writes that were lost",
        began.elapsed()
    );
    assert!(checked * 10 >= images * 9, "cuts inside the format are few");
    assert!(inside * 4 > checked, "most cuts lie in the midst of work: {inside} of {checked}");
}
