//! A node over the simulated device: stores, keeper, one queue per core, simulated time.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use arena::Arena;
use base::*;
use batch::{BatchBuilder, BatchProducer, Batches, EndTransaction};
use nvme_device::sim::{SimDisk, SimNamespace};
use nvme_format::Superblock;
use nvme_plan::{Completion, Namespace, Operation, Plan, Request};
use pollux_nvme_log::*;
use std::time::Duration;

pub const START: Now = Now { monotonic: Monotonic(1_000_000_000), wall: WallMillis(1_700_000_000_000) };

pub fn advance(now: Now, by: Duration) -> Now {
    Now { monotonic: now.monotonic + by, wall: WallMillis(now.wall.0 + by.as_millis() as i64) }
}

/// Moves time to the device's next completion, or a little.
pub fn tick(now: &mut Now, disk: &SimDisk) {
    let next = disk.next_event().unwrap_or(now.monotonic + Duration::from_micros(100));
    let step = next.since(now.monotonic).clamp(Duration::from_micros(1), Duration::from_millis(5));
    let before = now.monotonic.millis();
    now.monotonic = now.monotonic + step;
    now.wall = WallMillis(now.wall.0 + (now.monotonic.millis() - before) as i64);
}

fn submit(queue: &mut SimNamespace, now: Now, plan: &mut Plan) -> bool {
    while let Some(request) = plan.pop_front() {
        if let Err(request) = queue.submit(now, request) {
            plan.push_front(request);
            return queue.in_flight() > 0;
        }
    }
    true
}

pub fn format(disk: &SimDisk, cpus: u16, bytes_max: u64, random: &mut Random, now: &mut Now) -> Superblock {
    let mut queue = disk.open();
    let mut options = FormatOptions::new("pollux-test-cluster-00", NodeId(1), Uuid(42), cpus);
    options.bytes_max = bytes_max;
    let arena = Arena::heap(CoreId(0), 16 << 20);
    let mut formatting = Formatting::new(options, queue.geometry(), arena, random).expect("it fits");
    let mut plan = Plan::new();
    let mut completions = Vec::new();
    for _ in 0..1_000_000 {
        if let Some(result) = formatting.poll(&mut plan) {
            return result.expect("formatted");
        }
        submit(&mut queue, *now, &mut plan);
        tick(now, disk);
        queue.poll(*now, usize::MAX, &mut completions);
        for completion in completions.drain(..) {
            formatting.on_completion(completion);
        }
    }
    panic!("the format does not end");
}

pub struct Core {
    pub store: Store,
    /// The store's memory.
    pub arena: Arena,
    pub queue: SimNamespace,
    pub plan: Plan,
    completions: Vec<Completion>,
    pub events: Vec<LogEvent>,
}

pub struct Node {
    pub disk: SimDisk,
    pub cores: Vec<Core>,
    pub keeper: Keeper,
    pub report: RecoveryReport,
    pub superblock: Superblock,
    pub view: Option<SavedView>,
    pub now: Now,
    /// Blocks that the device was told to write with zeroes.
    pub zeroed: u64,
}

pub fn options(cores: u16) -> OpenOptions {
    let store = StoreOptions { zero_ahead: false, ..StoreOptions::default() };
    OpenOptions { cores, store, boot: Uuid(1), accept_loss: false }
}

/// Opens; `steps` cuts the opening short after so many turns.
pub fn try_open(
    disk: &SimDisk,
    options: &OpenOptions,
    random: &mut Random,
    now: &mut Now,
    steps: usize,
) -> Option<Result<Node, OpenError>> {
    let mut queue = disk.open();
    let arena = Arena::heap(CoreId(0), 20 << 20);
    let seed = Random::from_seed(random.next_u64());
    let mut opening = Opening::new(options.clone(), queue.geometry(), arena, seed);
    let mut plan = Plan::new();
    let mut completions = Vec::new();
    for _ in 0..steps {
        match opening.poll(*now, &mut plan) {
            Some(Err(error)) => return Some(Err(error)),
            Some(Ok(opened)) => {
                assert!(plan.is_empty() && queue.in_flight() == 0);
                return Some(Ok(Node::from_opened(disk, opened, options, random, *now)));
            }
            None => {}
        }
        submit(&mut queue, *now, &mut plan);
        tick(now, disk);
        queue.poll(*now, usize::MAX, &mut completions);
        for completion in completions.drain(..) {
            opening.on_completion(*now, completion);
        }
    }
    None
}

pub fn open(disk: &SimDisk, options: &OpenOptions, random: &mut Random, now: &mut Now) -> Node {
    match try_open(disk, options, random, now, 1_000_000) {
        Some(Ok(node)) => node,
        Some(Err(error)) => panic!("the namespace does not open: {error}"),
        None => panic!("the opening does not end"),
    }
}

impl Node {
    fn from_opened(disk: &SimDisk, opened: Opened, options: &OpenOptions, random: &mut Random, now: Now) -> Node {
        let mut cores = Vec::new();
        for seed in opened.seeds {
            let arena = Arena::heap(seed.core, options.store.tail_cache + (20 << 20));
            let seed_random = Random::from_seed(random.next_u64());
            cores.push(Core {
                store: Store::from_seed(seed, options.store.clone(), arena.clone(), seed_random),
                arena,
                queue: disk.open(),
                plan: Plan::new(),
                completions: Vec::new(),
                events: Vec::new(),
            });
        }
        Node {
            disk: disk.clone(),
            cores,
            keeper: opened.keeper,
            report: opened.report,
            superblock: opened.superblock,
            view: opened.view,
            now,
            zeroed: 0,
        }
    }

    pub fn store(&mut self) -> &mut Store {
        &mut self.cores[0].store
    }

    /// One turn of every core, and of the device.
    pub fn turn(&mut self) {
        let now = self.now;
        let Node { cores, keeper, zeroed, .. } = self;
        for core in cores.iter_mut() {
            core.store.poll(now, &mut core.plan, &mut core.events);
            core.store.poll_background(now, &mut core.plan, &mut core.events);
            let owed = core.store.is_owed_a_turn();
            while let Some(request) = core.store.take_keeper_request() {
                assert!(owed, "a core that sleeps now carries {request:?} at some deadline only");
                keeper.on_request(now, request);
            }
        }
        while let Some((core, reply)) = keeper.take_reply() {
            cores[usize::from(core.0)].store.on_keeper_reply(now, reply);
        }
        keeper.poll(now, &mut cores[0].plan);
        for core in cores.iter_mut() {
            let zeroes = |request: &Request| match request.operation {
                Operation::WriteZeroes { range } => u64::from(range.count),
                _ => 0,
            };
            *zeroed += core.plan.iter().map(zeroes).sum::<u64>();
            submit(&mut core.queue, now, &mut core.plan);
        }
        tick(&mut self.now, &self.disk);
        let now = self.now;
        for core in cores.iter_mut() {
            core.queue.poll(now, usize::MAX, &mut core.completions);
            for completion in core.completions.drain(..) {
                if Keeper::owns(completion.token) {
                    keeper.on_completion(now, &completion).expect("the superblock is written");
                } else {
                    core.store.on_completion(now, completion, &mut core.events);
                }
            }
        }
    }

    pub fn turns(&mut self, count: usize) {
        for _ in 0..count {
            self.turn();
        }
    }

    /// Turns until everything appended on a core is durable.
    pub fn settle(&mut self) {
        for _ in 0..200_000 {
            let settled = self.cores.iter().all(|core| {
                core.store.slots().all(|(slot, _)| core.store.durable_offset(slot) == core.store.end_offset(slot))
                    && !core.store.has_work()
            });
            if settled {
                return;
            }
            self.turn();
        }
        panic!("the store does not settle");
    }

    /// Appends on core 0, turning while the store wants to catch up.
    pub fn append(&mut self, slot: LogSlot, batch: &[u8], epoch: i32) -> Result<Appended, AppendError> {
        for _ in 0..100_000 {
            let now = self.now;
            let mode = AppendMode::Leader { epoch: LeaderEpoch(epoch) };
            match self.store().append(now, slot, Append { batches: batch, mode }) {
                Err(AppendError::Pressure) => self.turn(),
                other => return other,
            }
        }
        panic!("the pressure does not end");
    }

    /// Reads everything of a partition as clients would, `max` bytes at a time.
    pub fn read_all(&mut self, core: usize, slot: LogSlot, upper: Offset, max: usize) -> Vec<u8> {
        let mut all = Vec::new();
        let mut from = self.cores[core].store.log_start(slot);
        while let Some(bytes) = self.fetch(core, slot, from, upper, max) {
            let last = Batches::new(&bytes).last().expect("a batch").expect("a good one");
            let first = Batches::new(&bytes).next().expect("a batch").expect("a good one");
            assert!(first.header().last_offset() >= from, "the first batch contains the offset");
            from = last.header().next_offset();
            all.extend_from_slice(&bytes);
        }
        all
    }

    /// One fetch, with all the reads it takes.
    pub fn fetch(&mut self, core: usize, slot: LogSlot, from: Offset, upper: Offset, max: usize) -> Option<Vec<u8>> {
        loop {
            let now = self.now;
            let store = &mut self.cores[core].store;
            let parts = match store.locate(now, slot, from, upper, max) {
                Located::Nothing => return None,
                Located::OutOfRange => panic!("{from} is out of range"),
                Located::NeedsRead(plan) => {
                    let ticket = store.read(plan);
                    self.wait_read(core, ticket).expect("it can be read");
                    continue;
                }
                Located::Found(parts) => parts,
            };
            let mut bytes = Vec::new();
            for part in parts {
                match part {
                    Part::Memory(part) => bytes.extend_from_slice(&part),
                    Part::Device(stretch) => {
                        let ticket = self.cores[core].store.read_described(stretch);
                        bytes.extend_from_slice(&self.wait_read(core, ticket).expect("it can be read"));
                    }
                }
            }
            assert!(!bytes.is_empty());
            return Some(bytes);
        }
    }

    pub fn wait_read(&mut self, core: usize, ticket: ReadTicket) -> Result<Vec<u8>, ReadError> {
        for _ in 0..100_000 {
            let done = self.cores[core]
                .events
                .iter()
                .position(|event| matches!(event, LogEvent::ReadDone { ticket: done, .. } if *done == ticket));
            if let Some(index) = done {
                let LogEvent::ReadDone { result, .. } = self.cores[core].events.remove(index) else { unreachable!() };
                return result.map(|bytes| bytes.to_vec());
            }
            self.turn();
        }
        panic!("a read does not end");
    }

    /// What a process leaves that is killed: the device, and what is in flight.
    pub fn kill(self) -> (SimDisk, Now) {
        (self.disk.clone(), self.now)
    }
}

/// The stretch that a reader at `from` needs.
pub fn stretch(node: &mut Node, slot: LogSlot, from: i64) -> Stretch {
    loop {
        let now = node.now;
        let upper = node.store().end_offset(slot);
        match node.store().locate(now, slot, Offset(from), upper, 1) {
            Located::NeedsRead(ReadPlan::Stretch(stretch)) => return stretch,
            Located::NeedsRead(plan) => {
                let ticket = node.store().read(plan);
                node.wait_read(0, ticket).expect("it can be read");
            }
            Located::Found(parts) => match parts.into_iter().next() {
                Some(Part::Device(stretch)) => return stretch,
                other => panic!("{from} is in memory: {other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }
}

pub fn partition(number: u128) -> PartitionId {
    PartitionId { topic: TopicId(Uuid(1000 + number)), index: PartitionIndex((number % 3) as i32) }
}

/// A batch with a pattern by its seed.
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

pub fn producer_batch(
    random: &mut Random,
    records: usize,
    value: usize,
    at: WallMillis,
    (id, epoch, sequence): (i64, i16, i32),
    transactional: bool,
) -> Vec<u8> {
    let mut builder = BatchBuilder::new();
    let base_sequence = Some(Sequence(sequence));
    builder.producer(BatchProducer { id: ProducerId(id), epoch: ProducerEpoch(epoch), base_sequence });
    builder.transactional(transactional);
    fill(&mut builder, random, records, value, at);
    builder.build()
}

pub fn marker(id: i64, epoch: i16, committed: bool, at: WallMillis) -> Vec<u8> {
    let end = EndTransaction { committed, coordinator_epoch: 3 };
    end.build(ProducerId(id), ProducerEpoch(epoch), at).build()
}

/// The batch as it stands in the log.
pub fn stamped(batch: &[u8], base: Offset, epoch: i32) -> Vec<u8> {
    let mut bytes = batch.to_vec();
    batch::stamp(&mut bytes, base, LeaderEpoch(epoch));
    bytes
}
