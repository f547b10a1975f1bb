//! One core without sockets: partitions over a real store on the simulated device, in simulated time.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use arena::{Arena, BufferRef};
use base::*;
use batch::{BatchBuilder, BatchProducer, Batches};
use handoff::*;
use nvme_device::sim::{SimDisk, SimNamespace, SimOptions};
use nvme_log::{FormatOptions, Formatting, Keeper, LogEvent, OpenOptions, Opening, Store, StoreOptions};
use nvme_plan::{Completion, Namespace, Plan};
use pollux_partition::{Duty, DutyError, JobId, Options, Partitions};
use settings::BrokerSettings;
use std::time::Duration;

pub const START: Now = Now { monotonic: Monotonic(1_000_000_000), wall: WallMillis(1_700_000_000_000) };
pub const NODE: NodeId = NodeId(1);
const CORE: CoreId = CoreId(0);

pub struct Node {
    pub disk: SimDisk,
    pub store: Store,
    pub keeper: Keeper,
    queue: SimNamespace,
    plan: Plan,
    completions: Vec<Completion>,
    events: Vec<LogEvent>,
    pub partitions: Partitions,
    pub now: Now,
    pub random: Random,
    /// Jobs that no helper has run yet.
    pub work: Vec<(JobId, Box<dyn Work>)>,
    /// Helpers are busy elsewhere.
    pub hold_work: bool,
    pub disorder: bool,
    pub outcomes: Vec<Outcome>,
    pub up_calls: Vec<UpCall>,
    next_gather: u32,
}

pub fn broker(more: &[(&str, &str)]) -> BrokerSettings {
    let minimal = [("node.id", "1"), ("process.roles", "broker"), ("controller.listener.names", "C")];
    let texts = minimal.iter().chain(more).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    BrokerSettings::from_file(&texts.collect()).expect("good settings")
}

pub fn new_disk(mib: u64, seed: u64) -> SimDisk {
    SimDisk::new(SimOptions::new((mib << 20) / BLOCK_SIZE as u64), Random::from_seed(seed))
}

fn submit(queue: &mut SimNamespace, now: Now, plan: &mut Plan) {
    queue.submit_plan(now, plan);
}

fn tick(now: &mut Now, disk: &SimDisk) {
    let next = disk.next_event().unwrap_or(now.monotonic + Duration::from_micros(100));
    let step = next.since(now.monotonic).clamp(Duration::from_micros(1), Duration::from_millis(5));
    pass(now, step);
}

pub fn pass(now: &mut Now, step: Duration) {
    let before = now.monotonic.millis();
    now.monotonic = now.monotonic + step;
    now.wall = WallMillis(now.wall.0 + (now.monotonic.millis() - before) as i64);
}

pub fn format(disk: &SimDisk, now: &mut Now) {
    let (mut queue, mut random) = (disk.open(), Random::from_seed(3));
    let options = FormatOptions::new("pollux-test-cluster-00", NODE, Uuid(42), 2);
    let mut formatting =
        Formatting::new(options, queue.geometry(), Arena::heap(CORE, 16 << 20), &mut random).expect("it fits");
    let (mut plan, mut completions) = (Plan::new(), Vec::new());
    for _ in 0..1_000_000 {
        if let Some(result) = formatting.poll(&mut plan) {
            return drop(result.expect("formatted"));
        }
        submit(&mut queue, *now, &mut plan);
        tick(now, disk);
        queue.poll(*now, usize::MAX, &mut completions);
        completions.drain(..).for_each(|completion| formatting.on_completion(completion));
    }
    panic!("the format does not end");
}

impl Node {
    pub fn new(mib: u64, seed: u64) -> Node {
        Node::with_store(mib, seed, store_options())
    }

    pub fn with_store(mib: u64, seed: u64, options: StoreOptions) -> Node {
        let (disk, mut now) = (new_disk(mib, seed), START);
        format(&disk, &mut now);
        Node::open(&disk, seed, now, &broker(&[]), options)
    }

    pub fn open(disk: &SimDisk, seed: u64, mut now: Now, broker: &BrokerSettings, store: StoreOptions) -> Node {
        let mut random = Random::from_seed(seed ^ now.monotonic.0);
        let mut queue = disk.open();
        let options = OpenOptions { cores: 1, store, boot: Uuid(1), accept_loss: false };
        let seed = Random::from_seed(random.next_u64());
        let mut opening = Opening::new(options.clone(), queue.geometry(), Arena::heap(CORE, 64 << 20), seed);
        let (mut plan, mut completions) = (Plan::new(), Vec::new());
        let opened = loop {
            if let Some(result) = opening.poll(now, &mut plan) {
                break result.expect("it opens");
            }
            submit(&mut queue, now, &mut plan);
            tick(&mut now, disk);
            queue.poll(now, usize::MAX, &mut completions);
            completions.drain(..).for_each(|completion| opening.on_completion(now, completion));
        };
        let seed = opened.seeds.into_iter().next().expect("one core");
        let store_random = Random::from_seed(random.next_u64());
        let store = Store::from_seed(seed, options.store, Arena::heap(CORE, 64 << 20), store_random);
        let own = Options { node: NODE, core: CORE, link_core: CORE, inflate_max: 8 << 20 };
        Node {
            disk: disk.clone(),
            store,
            keeper: opened.keeper,
            queue: disk.open(),
            plan,
            completions,
            events: Vec::new(),
            partitions: Partitions::new(now, own, broker.clone()),
            now,
            random,
            work: Vec::new(),
            hold_work: false,
            disorder: false,
            outcomes: Vec::new(),
            up_calls: Vec::new(),
            next_gather: 0,
        }
    }

    /// The process dies; what is in flight may reach the device or not.
    pub fn kill(self) -> (SimDisk, Now) {
        (self.disk, self.now)
    }

    /// One turn of the loop without its sockets.
    pub fn turn(&mut self) {
        let now = self.now;
        self.store.poll(now, &mut self.plan, &mut self.events);
        self.store.poll_background(now, &mut self.plan, &mut self.events);
        while let Some(request) = self.store.take_keeper_request() {
            self.keeper.on_request(now, request);
        }
        while let Some((_, reply)) = self.keeper.take_reply() {
            self.store.on_keeper_reply(now, reply);
        }
        self.keeper.poll(now, &mut self.plan);
        submit(&mut self.queue, now, &mut self.plan);
        tick(&mut self.now, &self.disk);
        let now = self.now;
        self.queue.poll(now, usize::MAX, &mut self.completions);
        for completion in std::mem::take(&mut self.completions) {
            if Keeper::owns(completion.token) {
                self.keeper.on_completion(now, &completion).expect("the superblock is written");
            } else {
                self.store.on_completion(now, completion, &mut self.events);
            }
        }
        for event in std::mem::take(&mut self.events) {
            self.partitions.on_log_event(now, &mut self.store, event);
        }
        if !self.hold_work {
            for (id, mut work) in std::mem::take(&mut self.work) {
                // Helpers are slow at times, and overtake each other.
                if self.disorder && self.random.chance(2, 3) {
                    self.work.push((id, work));
                    continue;
                }
                work.run();
                self.partitions.on_work(now, &mut self.store, id, work);
            }
        }
        self.partitions.on_time(now, &mut self.store);
        self.collect();
    }

    pub fn turns(&mut self, count: usize) {
        (0..count).for_each(|_| self.turn());
    }

    fn collect(&mut self) {
        let mut outputs = pollux_partition::Outputs::default();
        self.partitions.take_outputs(&mut outputs);
        self.outcomes.extend(outputs.outcomes.into_iter().map(|(_, outcome)| outcome));
        self.work.extend(outputs.work);
        self.up_calls.extend(outputs.up_calls);
    }

    pub fn pass(&mut self, step: Duration) {
        pass(&mut self.now, step);
        self.turn();
    }

    pub fn gather(&mut self) -> GatherId {
        self.next_gather += 1;
        GatherId { core: CORE, slot: self.next_gather, generation: 0 }
    }

    pub fn send(&mut self, command: Command) {
        self.partitions.on_command(self.now, &mut self.store, command);
        self.collect();
    }

    /// The outcome that `wanted` takes, however many turns it needs.
    pub fn wait<T>(&mut self, what: &str, mut wanted: impl FnMut(&Outcome) -> bool, take: impl Fn(Outcome) -> T) -> T {
        for _ in 0..200_000 {
            if let Some(found) = self.outcomes.iter().position(&mut wanted) {
                return take(self.outcomes.remove(found));
            }
            self.turn();
        }
        panic!("{what} does not come");
    }

    pub fn apply(&mut self, duty: Duty) -> Result<(), DutyError> {
        let result = self.partitions.apply(self.now, &mut self.store, duty);
        self.collect();
        result
    }

    pub fn lead(&mut self, partition: PartitionId, epoch: i32, config: &[(&str, &str)]) {
        self.apply(duty(partition, epoch, config)).expect("it leads");
    }

    pub fn produce_command(&mut self, acks: Acks, entries: Vec<(PartitionId, Option<Vec<u8>>)>) -> Produce {
        let entry = |(index, (partition, records)): (usize, (PartitionId, Option<Vec<u8>>))| ProduceEntry {
            index: EntryIndex(index as u32),
            partition,
            records: records.map(|bytes| BufferRef::from_vec(bytes).into_parcel()),
        };
        Produce {
            gather: self.gather(),
            acks,
            version: 11,
            transactional: false,
            deadline: self.now.monotonic + Duration::from_secs(30),
            entries: entries.into_iter().enumerate().map(entry).collect(),
        }
    }

    pub fn produce_async(&mut self, acks: Acks, partition: PartitionId, batch: Vec<u8>) -> GatherId {
        let command = self.produce_command(acks, vec![(partition, Some(batch))]);
        let gather = command.gather;
        self.send(Command::Produce(command));
        gather
    }

    pub fn produced(&mut self, gather: GatherId) -> Vec<Produced> {
        self.wait(
            "an answer to produce",
            |outcome| matches!(outcome, Outcome::Produced { gather: its, .. } if *its == gather),
            |outcome| match outcome {
                Outcome::Produced { last: true, mut entries, .. } => {
                    entries.sort_by_key(|produced| produced.index);
                    entries
                }
                other => panic!("{other:?}"),
            },
        )
    }

    pub fn produce(&mut self, acks: Acks, partition: PartitionId, batch: Vec<u8>) -> Result<Appended, ProduceError> {
        let gather = self.produce_async(acks, partition, batch);
        self.produced(gather).remove(0).result
    }

    pub fn fetch_command(&mut self, entries: Vec<FetchEntry>, wait: bool) -> Fetch {
        Fetch {
            gather: self.gather(),
            reader: Reader::Consumer(Isolation::ReadUncommitted),
            bytes_max: 50 << 20,
            ready_max: base::limits::RESPONSE_WINDOW as u32,
            goes_on: false,
            has_bytes: false,
            wait,
            bytes_min: 1,
            entries,
        }
    }

    pub fn fetched(&mut self, gather: GatherId) -> Vec<Fetched> {
        self.wait(
            "an answer to fetch",
            |outcome| matches!(outcome, Outcome::Fetched { gather: its, .. } if *its == gather),
            |outcome| match outcome {
                Outcome::Fetched { entries, .. } => entries,
                other => panic!("{other:?}"),
            },
        )
    }

    pub fn fetch(&mut self, partition: PartitionId, offset: i64, bytes_max: u32) -> Result<FetchedRecords, FetchError> {
        let command = self.fetch_command(vec![entry(partition, offset, bytes_max)], false);
        let gather = command.gather;
        self.send(Command::Fetch(command));
        self.fetched(gather).remove(0).result
    }

    /// An answer whose ready bytes were let go: only descriptions of it are left.
    pub fn let_go(&mut self, mut records: FetchedRecords) -> FetchedRecords {
        let ready: usize = records.ready.drain(..).map(|piece| piece.len()).sum();
        let again = records.again.take();
        assert_eq!(again.map_or(0, |again| again.length as usize), ready);
        records.rest.splice(0..0, again);
        records
    }

    /// More bytes of an answer.
    pub fn window(&mut self, stretches: Vec<Stretch>, bytes_max: u32) -> Result<Window, FetchError> {
        let gather = self.gather();
        self.send(Command::ReadWindow(ReadWindow { gather, stretches, bytes_max }));
        self.wait(
            "a window",
            |outcome| matches!(outcome, Outcome::Window { gather: its, .. } if *its == gather),
            |outcome| match outcome {
                Outcome::Window { result, .. } => result,
                other => panic!("{other:?}"),
            },
        )
    }

    /// All bytes of an answer, its windows read `step` bytes at a time.
    pub fn whole(&mut self, records: FetchedRecords, step: u32) -> Vec<u8> {
        let mut bytes: Vec<u8> = records.ready.iter().flat_map(|piece| piece.to_vec()).collect();
        let mut rest = records.rest;
        while !rest.is_empty() {
            let window = self.window(rest, step).expect("it can be read");
            let length: usize = window.pieces.iter().map(|(piece, _)| piece.len()).sum();
            assert!(length > 0 && length <= step as usize);
            for (piece, again) in &window.pieces {
                assert_eq!(again.length as usize, piece.len());
                bytes.extend_from_slice(piece);
            }
            rest = window.rest;
        }
        assert_eq!(bytes.len(), records.bytes as usize);
        bytes
    }

    /// A consumer from `offset` to the end.
    pub fn consume(&mut self, partition: PartitionId, mut offset: i64, bytes_max: u32) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            let records = self.fetch(partition, offset, bytes_max).expect("it can be fetched");
            if records.bytes == 0 {
                return all;
            }
            let first_batch = records.first_batch as usize;
            let bytes = self.whole(records, 100_000);
            let mut batches = Batches::new(&bytes);
            let mut next = offset;
            for (number, view) in (&mut batches).enumerate() {
                let view = view.expect("a good batch");
                view.check_crc().expect("a good CRC");
                if number == 0 {
                    assert_eq!(view.size(), first_batch);
                    assert!(view.base_offset().0 <= offset && view.last_offset().0 >= offset);
                }
                next = view.next_offset().0;
            }
            assert!(next > offset, "a fetch makes progress");
            all.extend_from_slice(&bytes[..bytes.len() - batches.rest().len()]);
            offset = next;
        }
    }
}

pub fn store_options() -> StoreOptions {
    StoreOptions { zero_ahead: false, ..StoreOptions::default() }
}

pub fn partition(number: u128) -> PartitionId {
    PartitionId { topic: TopicId(Uuid(1000 + number)), index: PartitionIndex(0) }
}

pub fn duty(partition: PartitionId, epoch: i32, config: &[(&str, &str)]) -> Duty {
    Duty {
        partition,
        topic_name: "topic".to_owned(),
        created_at: 10,
        leader: Some(NODE),
        leader_epoch: LeaderEpoch(epoch),
        partition_epoch: PartitionEpoch(epoch),
        replicas: vec![NODE],
        isr: vec![NODE],
        config: config.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
    }
}

pub fn entry(partition: PartitionId, offset: i64, bytes_max: u32) -> FetchEntry {
    FetchEntry {
        index: EntryIndex(0),
        partition,
        current_epoch: None,
        last_fetched_epoch: None,
        offset: Offset(offset),
        log_start: None,
        bytes_max: Some(bytes_max),
    }
}

/// A batch of records of `size` bytes whose times begin at `at`.
pub fn builder(records: usize, size: usize, at: i64) -> BatchBuilder {
    let mut builder = BatchBuilder::new();
    for number in 0..records {
        let value: Vec<u8> = (0..size).map(|i| (i * 7 + number + at as usize) as u8).collect();
        builder.append(WallMillis(at + number as i64), Some(b"key"), Some(&value), &[]);
    }
    builder
}

pub fn batch(records: usize, size: usize) -> Vec<u8> {
    builder(records, size, START.wall.0).build()
}

pub fn producer_batch(records: usize, id: i64, epoch: i16, sequence: i32) -> Vec<u8> {
    let mut builder = builder(records, 20, START.wall.0);
    let base_sequence = Some(Sequence(sequence));
    builder.producer(BatchProducer { id: ProducerId(id), epoch: ProducerEpoch(epoch), base_sequence });
    builder.build()
}

pub fn stamped(batch: &[u8], base: i64, epoch: i32) -> Vec<u8> {
    let mut bytes = batch.to_vec();
    batch::stamp(&mut bytes, Offset(base), LeaderEpoch(epoch));
    bytes
}

/// Caches so small that almost everything comes from the device.
pub fn tight() -> StoreOptions {
    StoreOptions { tail_cache: 64 << 10, read_cache: 0, index_cache: 1 << 10, ..store_options() }
}

pub fn tight_node(seed: u64) -> Node {
    Node::with_store(96, seed, tight())
}
