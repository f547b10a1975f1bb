//! The node whole on a real file, every write and flush of it recorded while clients produce, consume and delete; and then
//! states that a power cut could have left, each opened by the same loop and read by a consumer: whatever a client had
//! been told before the cut is there.

use crate::admin::Admin;
use crate::consumer::{Consumer, ConsumerOptions};
use crate::faults::Happened;
use crate::model::{Model, Stats, Told};
use crate::node::{Disk, format};
use crate::plane::{Cluster, Plane};
use crate::producer::{Producer, ProducerOptions};
use crate::scenario::Scenario;
use crate::world::{Clients, IDLE_STEP, START, World};
use base::{Monotonic, Random};
use batch::Codec;
use nvme_device::recording::EventKind;
use nvme_device::{
    CrashImages, Device, Engine, FileOptions, ImageOptions, Latency, Medium, OpenOptions, Queue, QueueOptions,
    RecordedRun, Recorder, Recording, SimDisk, Stamp, Tear,
};
use std::path::Path;
use std::time::{Duration, Instant};

const BYTES: u64 = 256 << 20;
const CORES: u16 = 2;
/// Clients act this often, so that a minute's load fits into memory.
const CLIENTS_EVERY: Duration = Duration::from_micros(200);
const ACTS_AT_ONCE: usize = 16;
/// Largest record of a producer, its records in a batch, and one in how many steps makes a batch.
const LOAD: [(usize, u32, u64, Codec); 4] = [
    (200, 4, 30, Codec::None),
    (2000, 6, 100, Codec::Lz4),
    (30_000, 2, 300, Codec::None),
    (300_000, 1, 4000, Codec::None),
];
/// The device's own time goes on after the cut.
const AFTER: Duration = Duration::from_secs(3600);

/// A file on which everything is recorded.
pub struct RecordedDisk {
    device: Device,
    recorder: Recorder,
}

impl Disk for RecordedDisk {
    type Queue = Recording<Queue>;

    fn queue(&self) -> Recording<Queue> {
        let queue = self.device.attach(&QueueOptions::default()).expect("a queue on the file");
        Recording::new(queue, self.recorder.clone())
    }

    fn next_event(&self) -> Option<Monotonic> {
        None
    }
}

/// What a run left.
pub struct Recorded {
    run: RecordedRun,
    /// What clients were told, in its order; marks in the recording count it.
    told: Vec<Told>,
    pub stats: Stats,
    pub happened: Happened,
    /// Topics that were made, and that were deleted.
    pub topics: (u32, u32),
    pub elections: u32,
}

/// What the images showed.
#[derive(Clone, Debug, Default)]
pub struct Checked {
    pub images: usize,
    pub commits: u64,
    pub audited_batches: u64,
    /// Lanes cut back for writes that were lost with the power.
    pub rejected: usize,
    /// Images at whose cut clients knew of records.
    pub with_records: usize,
}

/// Runs a node for a while on a file that is there no more afterwards.
pub fn record(path: &Path, seed: u64, time: Duration) -> Recorded {
    let mut file = FileOptions::new(path);
    file.create = Some(BYTES);
    let device = nvme_device::open(&OpenOptions::File { file, engine: Engine::Automatic }).expect("a namespace");
    let recorder = Recorder::in_memory(device.geometry().blocks, Stamp::Turn);
    let disk = RecordedDisk { device, recorder: recorder.clone() };
    let (mut random, mut now) = (Random::from_seed(seed), START);
    format(&disk, 4, 0, &mut random, &mut now);
    let clients = Clients { producers: producers(), consumers: consumers(&mut random), ..Clients::default() };
    let mut world = World::on(disk, Scenario::recorded(BYTES), clients, random, now);
    world.clients.admins = (0..2).map(|n| Admin::new(format!("admin {n}"), 60, true)).collect();
    world.model.journal = Some(Vec::new());
    let mut load = Load { world, recorder, marked: 0, metadata: -1, topics: (0, 0), elections: 0 };
    load.run(time);
    let Load { mut world, recorder, topics, elections, .. } = load;
    world.node.kill();
    std::fs::remove_file(path).expect("the namespace was there");
    let told = world.model.journal.take().expect("it was kept");
    let run = recorder.recorded().expect("it was kept in memory");
    Recorded { run, told, stats: world.model.stats, happened: world.happened, topics, elections }
}

fn producers() -> Vec<Producer> {
    let producer = |(number, (value_max, records_max, laziness, codec)): (usize, &(usize, u32, u64, Codec))| {
        let options = ProducerOptions {
            idempotent: number != 1,
            acks: if number == 1 { 1 } else { -1 },
            version: 9 + number as i16,
            codec: *codec,
            value_max: *value_max,
            records_max: *records_max,
            lines: 3,
            laziness: *laziness,
            first_sequence: if number == 0 { i32::MAX - 100 } else { 0 },
        };
        Producer::new(format!("producer {number}"), options)
    };
    LOAD.iter().enumerate().map(producer).collect()
}

fn consumers(random: &mut Random) -> Vec<Consumer> {
    (0..3).map(|number| Consumer::new(format!("consumer {number}"), ConsumerOptions::some(random))).collect()
}

struct Load {
    world: World<RecordedDisk>,
    recorder: Recorder,
    marked: usize,
    /// The metadata offset that was noted last.
    metadata: i64,
    topics: (u32, u32),
    elections: u32,
}

impl Load {
    fn run(&mut self, time: Duration) {
        let began = Instant::now();
        self.world.clock = Some(began);
        let mut next_act = Duration::ZERO;
        while began.elapsed() < time {
            if self.world.node.is_down() && self.world.now.monotonic >= self.world.restart_at {
                let World { node, now, random, .. } = &mut self.world;
                node.start(*now, random, CORES);
            }
            let work = self.world.step_servers();
            // A machine that is busy elsewhere makes up for it, in bounds.
            for _ in 0..ACTS_AT_ONCE {
                if began.elapsed() < next_act {
                    break;
                }
                next_act += CLIENTS_EVERY;
                self.change();
                self.world.turn_clients();
            }
            self.mark();
            self.world.pass_time(work > 1, IDLE_STEP);
            if work <= 1 {
                std::thread::yield_now();
            }
        }
        assert!(self.world.node.is_running() || self.world.stopping || self.world.happened.clean_stops > 0);
    }

    /// Topics come and go, are led anew, and the node stops and starts again.
    fn change(&mut self) {
        let World { random, model, plane, .. } = &mut self.world;
        if !plane.is_up() {
            return;
        }
        let topics = plane.cluster.topics();
        let pick = random.next_u64();
        if topics < 2 || (topics < 4 && random.chance(1, 1000)) {
            self.topics.0 += 1;
            let config = match self.topics.0 % 3 {
                0 => vec![("message.timestamp.type", "LogAppendTime".to_owned())],
                _ => vec![("segment.bytes", (1 << 20).to_string()), ("retention.bytes", (1 << 20).to_string())],
            };
            plane.create(random, model, &config);
        } else if topics > 2 && random.chance(1, 4000) {
            self.topics.1 += 1;
            plane.delete(random, model, pick);
        } else if random.chance(1, 3000) {
            self.elections += 1;
            plane.elect(random, pick);
        } else if random.chance(1, 500) {
            plane.lead_all(random);
        } else if random.chance(1, 10_000) {
            self.world.stop_cleanly();
        }
    }

    /// Whatever is submitted from here on may carry what clients know by now.
    fn mark(&mut self) {
        let cluster = &self.world.plane.cluster;
        if cluster.offset() != self.metadata {
            self.metadata = cluster.offset();
            let cluster = Box::new(cluster.clone());
            self.world.model.note(|| Told::Metadata(cluster));
        }
        let told = self.world.model.journal.as_ref().map_or(0, Vec::len);
        if told > self.marked {
            self.marked = told;
            self.recorder.mark(self.world.now, told as u64);
        }
    }
}

impl Recorded {
    pub fn events(&self) -> usize {
        self.run.events.len()
    }

    /// Opens `count` images and reads everything that had been told at their cuts.
    pub fn check(&self, count: usize, seed: u64) -> Checked {
        let mut checked = Checked::default();
        for tear in [Tear::Blocks, Tear::Sectors] {
            let options = ImageOptions { volatile_write_cache: true, tear };
            let drawn = Random::from_seed(seed ^ (tear == Tear::Sectors) as u64);
            let (mut model, mut cluster) = (Model::default(), None);
            let (mut applied, mut at) = (0, 0);
            for image in CrashImages::new(&self.run, Medium::new(self.run.blocks), options, count.div_ceil(2), drawn) {
                let mut marks = self.run.events[at..image.cut].iter().filter_map(|event| match event.kind {
                    EventKind::Mark(told) => Some(told as usize),
                    _ => None,
                });
                let told = marks.next_back().unwrap_or(applied);
                at = image.cut;
                for one in &self.told[applied..told] {
                    match one {
                        Told::Metadata(now) => cluster = Some(now.clone()),
                        other => model.apply(other),
                    }
                }
                applied = told;
                // Before anything was told there is nothing to be held against.
                let Some(cluster) = &cluster else { continue };
                let number = seed ^ (checked.images as u64) << 8;
                check_image(image.medium, model.clone(), cluster, tear, number, &mut checked);
            }
        }
        checked
    }
}

fn check_image(medium: Medium, mut model: Model, cluster: &Cluster, tear: Tear, seed: u64, checked: &mut Checked) {
    let mut scenario = Scenario::recorded(BYTES);
    (scenario.disk.latency, scenario.disk.tear) = (Latency::NONE, tear);
    let mut random = Random::from_seed(seed);
    let disk = SimDisk::from_medium(scenario.disk.clone(), medium, Random::from_seed(random.next_u64()));
    let mut now = START;
    now.monotonic = now.monotonic + AFTER;
    now.wall.0 += AFTER.as_millis() as i64;
    // A start that retention moved is told before it is sure to stand, as in Kafka.
    model.forget_starts();
    let with_records = model.logs.values().any(|log| !log.deleted && !log.placed.is_empty());
    checked.with_records += usize::from(with_records);
    let mut world = World::on(disk, scenario, Clients::default(), random, now);
    world.model = model;
    world.plane = Plane::new();
    world.plane.cluster = cluster.clone();
    world.heal();
    let audited = world.model.stats.audited_batches;
    world.audit();
    checked.images += 1;
    checked.audited_batches += world.model.stats.audited_batches - audited;
    let report = world.report.expect("it was opened");
    checked.commits += report.commits;
    checked.rejected += report.rejected.len();
}
