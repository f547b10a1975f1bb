//! Namespaces with a history, on the simulated device; damage by hand; and the next opening, to be compared.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod damage;

use arena::{Arena, Region};
use base::*;
use batch::{BatchBuilder, BatchProducer, EndTransaction};
use nvme_device::Medium;
use nvme_device::sim::{SimDisk, SimNamespace, SimOptions};
use nvme_log::*;
use nvme_plan::{Namespace, Plan};
use std::time::Duration;

pub const START: Now = Now { monotonic: Monotonic(1_000_000_000), wall: WallMillis(1_700_000_000_000) };
const ARENA: usize = 64 << 20;

fn arena(core: CoreId) -> Arena {
    Arena::new(core, Region::anonymous(ARENA).expect("memory"))
}

fn tick(now: &mut Now, disk: &SimDisk) {
    let next = disk.next_event().unwrap_or(now.monotonic + Duration::from_micros(100));
    let step = next.since(now.monotonic).clamp(Duration::from_micros(1), Duration::from_millis(5));
    let before = now.monotonic.millis();
    now.monotonic = now.monotonic + step;
    now.wall = WallMillis(now.wall.0 + (now.monotonic.millis() - before) as i64);
}

pub fn disk_of(medium: &Medium) -> SimDisk {
    SimDisk::from_medium(SimOptions::new(medium.blocks()), medium.clone(), Random::from_seed(5))
}

pub fn format(mib: u64, cpus: u16, random: &mut Random) -> SimDisk {
    let disk = SimDisk::new(SimOptions::new(mib * 256), Random::from_seed(1));
    let mut queue = disk.open();
    let options = FormatOptions::new("pollux-test-cluster-00", NodeId(1), Uuid(42), cpus);
    let memory = arena(CoreId(0));
    let mut formatting = Formatting::new(options, queue.geometry(), memory, random).expect("it fits");
    let (mut plan, mut completions, mut now) = (Plan::new(), Vec::new(), START);
    loop {
        if let Some(result) = formatting.poll(&mut plan) {
            result.expect("formatted");
            return disk;
        }
        queue.submit_plan(now, &mut plan);
        tick(&mut now, &disk);
        queue.poll(now, usize::MAX, &mut completions);
        completions.drain(..).for_each(|completion| formatting.on_completion(completion));
    }
}

/// A node of as many cores as the disk's stores.
pub struct Node {
    pub disk: SimDisk,
    pub stores: Vec<Store>,
    queues: Vec<SimNamespace>,
    plans: Vec<Plan>,
    pub events: Vec<Vec<LogEvent>>,
    keeper: Keeper,
    pub report: RecoveryReport,
    pub now: Now,
}

pub fn try_open(disk: &SimDisk, cores: u16) -> Result<Node, OpenError> {
    let store = StoreOptions { zero_ahead: false, ..StoreOptions::default() };
    let options = OpenOptions { cores, store: store.clone(), boot: Uuid(9), accept_loss: false };
    let mut queue = disk.open();
    let mut random = Random::from_seed(77);
    let memory = arena(CoreId(0));
    let mut opening = Opening::new(options, queue.geometry(), memory, Random::from_seed(random.next_u64()));
    let (mut plan, mut completions, mut now) = (Plan::new(), Vec::new(), START);
    for _ in 0..1_000_000 {
        if let Some(result) = opening.poll(now, &mut plan) {
            let opened = result?;
            let mut node = Node {
                disk: disk.clone(),
                stores: Vec::new(),
                queues: Vec::new(),
                plans: Vec::new(),
                events: Vec::new(),
                keeper: opened.keeper,
                report: opened.report,
                now,
            };
            for seed in opened.seeds {
                let memory = arena(seed.core);
                node.stores.push(Store::from_seed(seed, store.clone(), memory, Random::from_seed(random.next_u64())));
                node.queues.push(disk.open());
                node.plans.push(Plan::new());
                node.events.push(Vec::new());
            }
            return Ok(node);
        }
        queue.submit_plan(now, &mut plan);
        tick(&mut now, disk);
        queue.poll(now, usize::MAX, &mut completions);
        completions.drain(..).for_each(|completion| opening.on_completion(now, completion));
    }
    panic!("the opening does not end");
}

pub fn open(disk: &SimDisk, cores: u16) -> Node {
    try_open(disk, cores).unwrap_or_else(|error| panic!("the namespace does not open: {error}"))
}

impl Node {
    pub fn turn(&mut self) {
        let now = self.now;
        for (core, store) in self.stores.iter_mut().enumerate() {
            store.poll(now, &mut self.plans[core], &mut self.events[core]);
            store.poll_background(now, &mut self.plans[core], &mut self.events[core]);
            while let Some(request) = store.take_keeper_request() {
                self.keeper.on_request(now, request);
            }
        }
        while let Some((core, reply)) = self.keeper.take_reply() {
            self.stores[usize::from(core.0)].on_keeper_reply(now, reply);
        }
        self.keeper.poll(now, &mut self.plans[0]);
        for (queue, plan) in self.queues.iter_mut().zip(&mut self.plans) {
            queue.submit_plan(now, plan);
        }
        tick(&mut self.now, &self.disk);
        let mut completions = Vec::new();
        for (core, queue) in self.queues.iter_mut().enumerate() {
            queue.poll(self.now, usize::MAX, &mut completions);
            for completion in completions.drain(..) {
                if Keeper::owns(completion.token) {
                    self.keeper.on_completion(self.now, &completion).expect("the superblock is written");
                } else {
                    self.stores[core].on_completion(self.now, completion, &mut self.events[core]);
                }
            }
        }
    }

    pub fn turns(&mut self, count: usize) {
        (0..count).for_each(|_| self.turn());
    }

    /// Everything is durable, and the markers that say so are written.
    pub fn settle(&mut self) {
        for _ in 0..100_000 {
            let settled = self.stores.iter().all(|store| {
                store.slots().all(|(slot, _)| store.durable_offset(slot) == store.end_offset(slot)) && !store.has_work()
            });
            if settled {
                return self.turns(200);
            }
            self.turn();
        }
        panic!("the store does not settle");
    }

    pub fn checkpoint(&mut self) {
        self.stores.iter_mut().for_each(Store::checkpoint);
        while self.stores.iter().any(Store::is_checkpointing) {
            self.turn();
        }
    }

    pub fn find(&self, id: PartitionId) -> (usize, LogSlot) {
        let found = self.stores.iter().enumerate().find_map(|(core, store)| Some((core, store.find(id)?)));
        found.unwrap_or_else(|| panic!("{id} is not there"))
    }

    pub fn create(&mut self, core: usize, id: PartitionId, config: LogConfig) -> LogSlot {
        let now = self.now;
        self.stores[core].create(now, id, 3, config).expect("created")
    }

    pub fn append(&mut self, core: usize, slot: LogSlot, batch: &[u8], epoch: i32) -> Result<Appended, AppendError> {
        loop {
            let (now, mode) = (self.now, AppendMode::Leader { epoch: LeaderEpoch(epoch) });
            match self.stores[core].append(now, slot, Append { batches: batch, mode }) {
                Err(AppendError::Pressure) => self.turn(),
                other => return other,
            }
        }
    }

    /// Reads from an offset on until the end or an error.
    pub fn read(&mut self, id: PartitionId, mut from: Offset) -> Result<(Vec<u8>, Offset), (Offset, ReadError)> {
        let (core, slot) = self.find(id);
        let end = self.stores[core].end_offset(slot);
        let mut all = Vec::new();
        while from < end {
            let now = self.now;
            let parts = match self.stores[core].locate(now, slot, from, end, 1) {
                Located::Nothing => break,
                Located::OutOfRange => panic!("{from} is out of range"),
                Located::NeedsRead(plan) => {
                    let ticket = self.stores[core].read(plan);
                    self.wait(core, ticket).map_err(|error| (from, error))?;
                    continue;
                }
                Located::Found(parts) => parts,
            };
            let mut bytes = Vec::new();
            for part in parts {
                match part {
                    Part::Memory(part) => bytes.extend_from_slice(&part),
                    Part::Device(stretch) => {
                        let ticket = self.stores[core].read_described(stretch);
                        bytes.extend(self.wait(core, ticket).map_err(|error| (from, error))?);
                    }
                }
            }
            let last = batch::Batches::new(&bytes).last().expect("a batch").expect("a good one");
            from = last.next_offset();
            all.extend(bytes);
        }
        Ok((all, from))
    }

    fn wait(&mut self, core: usize, wanted: ReadTicket) -> Result<Vec<u8>, ReadError> {
        for _ in 0..100_000 {
            let is_it = |e: &LogEvent| matches!(e, LogEvent::ReadDone { ticket, .. } if *ticket == wanted);
            if let Some(index) = self.events[core].iter().position(is_it) {
                let LogEvent::ReadDone { result, .. } = self.events[core].remove(index) else { unreachable!() };
                return result.map(|bytes| bytes.to_vec());
            }
            self.turn();
        }
        panic!("a read does not end");
    }

    pub fn stop(mut self) -> Medium {
        self.stores.iter_mut().for_each(Store::stop);
        for _ in 0..50_000 {
            let stopped = |events: &Vec<LogEvent>| events.iter().any(|event| matches!(event, LogEvent::Stopped));
            if self.events.iter().all(stopped) {
                return self.disk.seen();
            }
            self.turn();
        }
        panic!("it does not stop");
    }

    /// What a killed process leaves.
    pub fn kill(self) -> Medium {
        self.disk.seen()
    }

    /// Where every partition stands.
    pub fn state(&self) -> Vec<(PartitionId, Offset, Offset, Option<Offset>)> {
        let mut state: Vec<_> = self
            .stores
            .iter()
            .flat_map(|store| {
                store
                    .slots()
                    .map(|(slot, id)| (id, store.log_start(slot), store.end_offset(slot), store.suspect_from(slot)))
            })
            .collect();
        state.sort();
        state
    }
}

pub fn partition(number: u128) -> PartitionId {
    PartitionId { topic: TopicId(Uuid(1000 + number)), index: PartitionIndex((number % 3) as i32) }
}

pub fn batch(random: &mut Random, records: usize, value: usize, at: WallMillis) -> Vec<u8> {
    let mut builder = BatchBuilder::new();
    fill(&mut builder, random, records, value, at);
    builder.build()
}

fn fill(builder: &mut BatchBuilder, random: &mut Random, records: usize, value: usize, at: WallMillis) {
    let mut bytes = vec![0; value];
    for number in 0..records {
        random.fill(&mut bytes);
        builder.append(WallMillis(at.0 + number as i64), None, Some(&bytes), &[]);
    }
}

pub fn transactional(random: &mut Random, id: i64, sequence: i32, at: WallMillis) -> Vec<u8> {
    let mut builder = BatchBuilder::new();
    let base_sequence = Some(Sequence(sequence));
    builder.producer(BatchProducer { id: ProducerId(id), epoch: ProducerEpoch(0), base_sequence });
    builder.transactional(true);
    fill(&mut builder, random, 2, 300, at);
    builder.build()
}

pub fn marker(id: i64, committed: bool, at: WallMillis) -> Vec<u8> {
    EndTransaction { committed, coordinator_epoch: 1 }.build(ProducerId(id), ProducerEpoch(0), at).build()
}

/// Partitions 0 to 9 with all kinds of history, 10 deleted; on `cores` cores. Some were last changed before the newest
/// two checkpoints, some before the newest, some after it. Everything is settled.
pub fn history(seed: u64, cores: u16) -> Node {
    let mut random = Random::from_seed(seed);
    let disk = format(128, 2, &mut random);
    let mut node = open(&disk, cores);
    let config = LogConfig { segment_bytes: 200_000, ..LogConfig::keep_everything() };
    let mut slots = Vec::new();
    for number in 0..=10 {
        let core = number as usize % usize::from(cores);
        slots.push((core, node.create(core, partition(number), config.clone())));
    }
    let sizes = [40, 900, 5_000, 14_000, 30_000, 90_000];
    for round in 0..4 {
        for step in 0..50 {
            let number = random.below(10) as usize;
            if number < 2 && round > 0 || number < 5 && round > 1 {
                continue;
            }
            let (core, slot) = slots[number];
            let size = sizes[random.below(sizes.len() as u64) as usize];
            let at = WallMillis(node.now.wall.0 - random.below(1000) as i64);
            let bytes = batch(&mut random, 1 + step % 4, size / (1 + step % 4), at);
            node.append(core, slot, &bytes, round).expect("appended");
            if step % 7 == 0 {
                node.turns(30);
            }
        }
        if round == 1 {
            let (core, slot) = slots[10];
            node.settle();
            node.stores[core].delete(slot).expect("deleted");
        }
        if round < 3 {
            change(&mut node, &slots, round, &mut random);
            node.checkpoint();
        }
    }
    change(&mut node, &slots, 3, &mut random);
    node.settle();
    node
}

/// A truncation, a moved start, and transactions of which one is aborted and one stays open.
fn change(node: &mut Node, slots: &[(usize, LogSlot)], round: i32, random: &mut Random) {
    node.settle();
    let (core, slot) = slots[6];
    let end = node.stores[core].end_offset(slot);
    let now = node.now;
    if end.0 > 4 {
        node.stores[core].truncate(now, slot, Offset(end.0 - 3)).expect("truncated");
        node.settle();
    }
    let (core, slot) = slots[7];
    let durable = node.stores[core].durable_offset(slot);
    node.stores[core].record_high_watermark(now, slot, durable);
    node.stores[core].set_log_start(slot, Offset(durable.0 / 2)).expect("moved");
    let (core, slot) = slots[8];
    let wall = node.now.wall;
    for (id, committed) in [(1, true), (2, false)] {
        let bytes = transactional(random, id, round * 2, wall);
        node.append(core, slot, &bytes, round).expect("appended");
        node.append(core, slot, &marker(id, committed, wall), round).expect("appended");
    }
    let bytes = transactional(random, 3, round * 2, wall);
    node.append(core, slot, &bytes, round).expect("appended");
    node.settle();
}

/// Flips one bit of a block.
pub fn flip(medium: &mut Medium, block: u64, byte: usize) {
    let mut bytes = medium.read_range(BlockRange::new(Block(block), 1));
    bytes[byte] ^= 0x10;
    medium.write(Block(block), &bytes);
}
