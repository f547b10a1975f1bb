//! Idempotent producers that retry, repeat and overtake themselves, while the process dies and the power goes: what was
//! acknowledged is there, once, in order, at the offset that was told; what a reader was shown stays.

mod common;

use base::*;
use batch::{BatchBuilder, BatchProducer, Batches, Codec};
use common::*;
use handoff::*;
use std::collections::{BTreeMap, HashMap};

const PARTITIONS: usize = 3;
const PRODUCERS: usize = 4;
/// Batches of a producer in flight: as many as a partition remembers.
const WINDOW: usize = 5;

struct Sent {
    bytes: Vec<u8>,
    first: i32,
    records: i32,
    base: Option<i64>,
}

/// One producer's end towards one partition.
#[derive(Default)]
struct Client {
    batches: Vec<Sent>,
    next_sequence: i32,
}

impl Client {
    fn unacknowledged(&self) -> usize {
        self.batches.iter().position(|sent| sent.base.is_none()).unwrap_or(self.batches.len())
    }
}

struct World {
    node: Option<Node>,
    random: Random,
    clients: Vec<Client>,
    /// Which client and batch a request is of.
    asked: HashMap<GatherId, (usize, usize)>,
    /// What readers were shown, batch by batch.
    shown: Vec<BTreeMap<i64, Vec<u8>>>,
    epoch: i32,
    acknowledged: usize,
    duplicates: usize,
}

fn at(client: usize) -> PartitionId {
    partition((client / PRODUCERS) as u128)
}

impl World {
    fn new(seed: u64) -> World {
        let mut world = World {
            node: Some(Node::new(64, seed)),
            random: Random::from_seed(seed),
            clients: (0..PARTITIONS * PRODUCERS).map(|_| Client::default()).collect(),
            asked: HashMap::new(),
            shown: vec![BTreeMap::new(); PARTITIONS],
            epoch: 0,
            acknowledged: 0,
            duplicates: 0,
        };
        world.lead();
        world
    }

    fn node(&mut self) -> &mut Node {
        self.node.as_mut().expect("it runs")
    }

    fn lead(&mut self) {
        let epoch = self.epoch;
        self.node().disorder = true;
        for number in 0..PARTITIONS {
            self.node().lead(partition(number as u128), epoch, &[]);
        }
    }

    fn make_batch(&mut self, client: usize) {
        let random = &mut self.random;
        let records = 1 + random.below(4) as i32;
        let size = [10, 300, 3000, 20_000][random.below(4) as usize];
        let codec = if random.chance(1, 3) { Codec::Zstd } else { Codec::None };
        let first = self.clients[client].next_sequence;
        let mut builder = BatchBuilder::new();
        let (id, base_sequence) = (ProducerId((client % PRODUCERS) as i64), Some(Sequence(first)));
        builder.producer(BatchProducer { id, epoch: ProducerEpoch(0), base_sequence }).compression(codec.into());
        let mut value = vec![0; size];
        for number in 0..records {
            random.fill(&mut value);
            builder.append(WallMillis(START.wall.0 + i64::from(first + number)), None, Some(&value), &[]);
        }
        let client = &mut self.clients[client];
        client.batches.push(Sent { bytes: builder.build(), first, records, base: None });
        client.next_sequence += records;
    }

    /// Sends a new batch or an old one again, not always in order.
    fn send(&mut self) {
        let client = self.random.below(self.clients.len() as u64) as usize;
        let from = self.clients[client].unacknowledged();
        let open = self.clients[client].batches.len() - from;
        if open == 0 || (open < WINDOW && self.random.chance(1, 2)) {
            self.make_batch(client);
        }
        let open = self.clients[client].batches.len() - from;
        let number = from + self.random.below(open as u64) as usize;
        let acks = if self.random.chance(1, 2) { Acks::All } else { Acks::Leader };
        let bytes = self.clients[client].batches[number].bytes.clone();
        let gather = self.node().produce_async(acks, at(client), bytes);
        self.asked.insert(gather, (client, number));
    }

    fn hear(&mut self) {
        for outcome in std::mem::take(&mut self.node().outcomes) {
            let Outcome::Produced { gather, entries, .. } = outcome else { continue };
            let (client, number) = self.asked.remove(&gather).expect("one answer for a request");
            match &entries[0].result {
                Ok(appended) => {
                    let sent = &mut self.clients[client].batches[number];
                    let base = appended.base_offset.0;
                    self.duplicates += usize::from(sent.base.is_some());
                    assert_eq!(*sent.base.get_or_insert(base), base, "a retry is told the original offset");
                    self.acknowledged += 1;
                }
                // It overtook one before it, or is older than the five that are remembered.
                Err(ProduceError::OutOfOrderSequence(_)) => {}
                Err(error) => panic!("{error:?}"),
            }
        }
    }

    fn read(&mut self, number: usize) -> BTreeMap<i64, Vec<u8>> {
        let pending = std::mem::take(&mut self.node().outcomes);
        let limit = [3000, 30_000, 100_000, 1 << 20][self.random.below(4) as usize];
        let bytes = self.node().consume(partition(number as u128), 0, limit);
        self.node().outcomes.extend(pending);
        let whole = Batches::new(&bytes).map(|view| view.expect("a good batch"));
        whole.map(|view| (view.base_offset().0, view.bytes().to_vec())).collect()
    }

    fn look(&mut self) {
        for number in 0..PARTITIONS {
            let found = self.read(number);
            for (base, bytes) in &self.shown[number] {
                assert!(found.get(base) == Some(bytes), "what was shown at {base} is another now");
            }
            self.check(number, &found);
            self.look_from_the_middle(number, &found);
            self.shown[number] = found;
        }
    }

    /// From any offset on, the bytes are those from its batch on.
    fn look_from_the_middle(&mut self, number: usize, found: &BTreeMap<i64, Vec<u8>>) {
        let Some((base, bytes)) = found.last_key_value() else { return };
        let end =
            base + Batches::new(bytes).next().expect("a batch").expect("a good one").header().records_count as i64;
        let from = self.random.below(end as u64) as i64;
        let pending = std::mem::take(&mut self.node().outcomes);
        let read = self.node().consume(partition(number as u128), from, 30_000);
        self.node().outcomes.extend(pending);
        let (first, _) = found.range(..=from).next_back().expect("a batch that begins before");
        let expected: Vec<u8> = found.range(first..).flat_map(|(_, bytes)| bytes.iter().copied()).collect();
        assert!(read.starts_with(&expected), "from offset {from} on");
    }

    /// Everything acknowledged is there, and every producer's sequences are without gap or repetition.
    fn check(&self, number: usize, found: &BTreeMap<i64, Vec<u8>>) {
        let mut next = [0; PRODUCERS];
        let mut end = 0;
        for (base, bytes) in found {
            assert_eq!(*base, end, "offsets have no gaps");
            let header = Batches::new(bytes).next().expect("a batch").expect("a good one").header();
            let producer = header.producer().expect("an idempotent batch");
            let expected = &mut next[producer.id.0 as usize];
            assert_eq!(producer.base_sequence.0, *expected, "producer {}", producer.id);
            *expected += header.records_count;
            end = header.next_offset().0;
        }
        for (index, client) in self.clients.iter().enumerate().filter(|(index, _)| index / PRODUCERS == number) {
            for sent in &client.batches {
                let Some(base) = sent.base else { continue };
                let stored = &found[&base];
                let header = Batches::new(stored).next().expect("a batch").expect("a good one").header();
                assert_eq!((header.base_sequence.0, header.records_count), (sent.first, sent.records));
                let epoch = header.partition_leader_epoch.0;
                assert!(*stored == stamped(&sent.bytes, base, epoch), "batch {base} of client {index}");
            }
        }
    }

    fn crash(&mut self) {
        let (disk, now) = self.node.take().expect("it runs").kill();
        if self.random.chance(3, 4) {
            disk.power_loss(&mut self.random);
        }
        self.asked.clear();
        self.epoch += 1;
        self.node = Some(Node::open(&disk, self.random.next_u64(), now, &broker(&[]), store_options()));
        self.lead();
        self.look();
    }

    /// Every client retries until all it has is acknowledged.
    fn finish(&mut self) {
        for _ in 0..200_000 {
            let open: Vec<usize> = (0..self.clients.len())
                .filter(|i| self.clients[*i].unacknowledged() < self.clients[*i].batches.len())
                .collect();
            if open.is_empty() && self.node().partitions.pending() == 0 {
                return self.look();
            }
            for client in open {
                let number = self.clients[client].unacknowledged();
                if !self.asked.values().any(|asked| *asked == (client, number)) {
                    let bytes = self.clients[client].batches[number].bytes.clone();
                    let gather = self.node().produce_async(Acks::All, at(client), bytes);
                    self.asked.insert(gather, (client, number));
                }
            }
            self.node().turn();
            self.hear();
        }
        panic!("the clients do not end");
    }
}

fn run(seed: u64) {
    let mut world = World::new(seed);
    for _ in 0..4 {
        for _ in 0..100 {
            world.send();
            let turns = world.random.below(4) as usize;
            world.node().turns(turns);
            world.hear();
            if world.random.chance(1, 60) {
                world.look();
            }
        }
        world.crash();
    }
    world.finish();
    assert!(world.acknowledged > 100 && world.duplicates > 0, "{} and {}", world.acknowledged, world.duplicates);
}

#[test]
fn idempotent_producers_through_crashes() {
    for seed in 1..=3 {
        println!("seed {seed}");
        run(seed);
    }
}
