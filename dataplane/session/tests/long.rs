//! Requests that name very many partitions: no loop reads, routes, asks for or answers many at once, and the order of
//! replies and of a partition's batches stays. The owner of the partitions and the helpers are played by the test.

mod common;

use base::*;
use bytes::{Bytes, BytesMut};
use common::Bench;
use handoff::*;
use net::sim::{SimFaults, SimPeer, SimStreams};
use pollux_session::limits::{ENTRIES_A_COMMAND, ITEMS_ON_THE_LOOP_MAX, PRODUCE_COMMANDS_MAX, REQUESTS_A_TURN};
use pollux_session::{OffLoop, Sessions, Turn};
use std::time::Duration;
use wire::messages::*;
use wire::{ApiKey, Decoder, KafkaString, Message, Request, encode_request};

/// Twice as many as a loop does by itself, and not a multiple of what a command has.
const TOPICS: usize = 2 * ITEMS_ON_THE_LOOP_MAX + 33;

struct World {
    bench: Bench,
    random: Random,
    peer: SimPeer,
    commands: Vec<Command>,
    work: Vec<OffLoop>,
    /// Partitions that produce came for, in the order of the commands.
    appended: Vec<(PartitionId, Vec<u8>)>,
    next: i32,
}

fn name(number: usize) -> KafkaString {
    KafkaString::from(format!("topic-{number:05}"))
}

fn id(number: usize) -> TopicId {
    TopicId(Uuid(1000 + number as u128))
}

impl World {
    fn new() -> World {
        let mut bench = Bench::new(SimFaults::none(), 16 << 20, 8 << 20, &[]);
        bench.sessions.on_view(common::view_of((0..TOPICS).map(|n| (name(n).to_string(), id(n)))));
        let peer = common::connect(&bench.network);
        let (commands, work, appended) = (Vec::new(), Vec::new(), Vec::new());
        World { bench, random: Random::from_seed(1), peer, commands, work, appended, next: 0 }
    }

    fn with(&mut self, act: impl FnOnce(&mut Sessions, &mut Turn<'_, SimStreams>)) {
        let Bench { now, arena, net, sessions, .. } = &mut self.bench;
        act(sessions, &mut Turn { now: *now, random: &mut self.random, net, arena });
        self.collect();
    }

    fn collect(&mut self) {
        let sessions = &mut self.bench.sessions;
        self.commands.extend(sessions.out.commands.drain(..).map(|(_, command)| command));
        self.work.append(&mut sessions.out.work);
    }

    fn turn(&mut self) {
        self.bench.turn(&mut self.random);
        self.collect();
    }

    fn settle(&mut self) {
        (0..300).for_each(|_| self.turn());
    }

    fn send<R: Request>(&mut self, version: i16, body: &R) {
        self.next += 1;
        let mut out = BytesMut::new();
        encode_request(&mut out, version, self.next, Some("test"), body).unwrap();
        self.peer.write(&out);
        self.settle();
    }

    /// What helpers have to do is done, and how many jobs there were.
    fn help(&mut self) -> usize {
        let jobs = std::mem::take(&mut self.work);
        let count = jobs.len();
        for OffLoop { gather, mut work } in jobs {
            work.run();
            self.with(|sessions, turn| sessions.on_work(turn, gather, work));
        }
        self.settle();
        count
    }

    /// Answers what is asked, one command after another, until nothing is; returns how many commands there were, and how
    /// many were out at once at most.
    fn own(&mut self) -> (usize, usize) {
        let (mut count, mut most) = (0, 0);
        while !self.commands.is_empty() {
            most = most.max(self.commands.len());
            count += 1;
            let outcome = self.answer();
            if let Some(outcome) = outcome {
                self.with(|sessions, turn| sessions.on_outcome(turn, outcome));
            }
        }
        self.settle();
        (count, most)
    }

    fn answer(&mut self) -> Option<Outcome> {
        let few = |count: usize| assert!(count <= ENTRIES_A_COMMAND, "{count} partitions in one command");
        Some(match self.commands.remove(0) {
            Command::Produce(Produce { gather, entries, .. }) => {
                few(entries.len());
                let appended = Appended { base_offset: Offset(7), append_time: None, log_start: Offset(0) };
                let produced = |index| Produced { index, result: Ok(appended), epoch: None, log_start: Offset(0) };
                let mut done = Vec::new();
                for entry in entries {
                    self.appended.push((entry.partition, entry.records.expect("it has records").to_vec()));
                    done.push(produced(entry.index));
                }
                Outcome::Produced { gather, last: true, entries: done }
            }
            Command::Fetch(fetch) => {
                few(fetch.entries.len());
                let fetched = |entry: FetchEntry| Fetched {
                    index: entry.index,
                    result: Ok(FetchedRecords { high_watermark: entry.offset, ..Default::default() }),
                };
                Outcome::Fetched { gather: fetch.gather, entries: fetch.entries.into_iter().map(fetched).collect() }
            }
            Command::ListOffsets(ListOffsets { gather, entries, .. }) => {
                few(entries.len());
                // A number that tells the partitions apart.
                let listed = |entry: ListOffsetsEntry| {
                    let offset = Some(Offset(entry.partition.topic.0.0 as i64));
                    (entry.index, Ok(ListedOffset { offset, timestamp: None, epoch: None }))
                };
                Outcome::OffsetsListed { gather, entries: entries.into_iter().map(listed).collect() }
            }
            Command::DescribeLogs(DescribeLogs { gather, partitions }) => {
                few(partitions.len());
                let logs = |partition| LogFacts { partition, size: 5, lag: 0, future: false };
                let logs = partitions.into_iter().map(logs).collect();
                Outcome::LogsDescribed { gather, logs, total: 10, usable: 5 }
            }
            Command::Cancel(_) => return None,
            other => panic!("{other:?}"),
        })
    }

    /// The next answer, which is that to the request of this number.
    fn read<R: Request>(&mut self, version: i16, number: i32) -> R::Response
    where
        R::Response: Message,
    {
        self.settle();
        let bytes = self.peer.read();
        let size = i32::from_be_bytes(bytes[..4].try_into().unwrap()) as usize;
        assert_eq!(bytes.len(), 4 + size, "one whole answer");
        let mut d = Decoder::new(&bytes[4..]);
        assert_eq!(wire::read_response_header(&mut d, R::API, version), Ok(number));
        R::Response::decode(&mut d, version).unwrap()
    }
}

fn list_offsets(topics: usize) -> ListOffsetsRequest {
    use list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
    let partitions = vec![ListOffsetsPartition { timestamp: -1, current_leader_epoch: -1, ..Default::default() }];
    let topic = |n| ListOffsetsTopic { name: name(n), partitions: partitions.clone(), ..Default::default() };
    ListOffsetsRequest { replica_id: -1, topics: (0..topics).map(topic).collect(), ..Default::default() }
}

fn produce(topics: std::ops::Range<usize>, text: &'static str) -> ProduceRequest {
    use produce_request::{PartitionProduceData, TopicProduceData};
    let records = Some(Bytes::from_static(text.as_bytes()));
    let partition_data = vec![PartitionProduceData { index: 0, records, ..Default::default() }];
    let topic = |n| TopicProduceData { name: name(n), partition_data: partition_data.clone(), ..Default::default() };
    ProduceRequest { acks: -1, timeout_ms: 1000, topic_data: topics.map(topic).collect(), ..Default::default() }
}

fn fetch(topics: usize, (session_id, session_epoch): (i32, i32)) -> FetchRequest {
    use fetch_request::{FetchPartition, FetchTopic};
    let partition = FetchPartition {
        current_leader_epoch: -1,
        last_fetched_epoch: -1,
        log_start_offset: -1,
        partition_max_bytes: 1000,
        ..Default::default()
    };
    let topic = |n| FetchTopic { topic: name(n), partitions: vec![partition.clone()], ..Default::default() };
    let (max_wait_ms, min_bytes, max_bytes) = (1000, 1, 1 << 20);
    let topics = (0..topics).map(topic).collect();
    FetchRequest { max_wait_ms, min_bytes, max_bytes, session_id, session_epoch, topics, ..Default::default() }
}

#[test]
fn a_loop_gives_long_requests_away_and_asks_for_few_partitions_at_a_time() {
    let mut world = World::new();
    world.send(7, &list_offsets(TOPICS));
    assert_eq!((world.work.len(), world.commands.len()), (1, 0), "a helper reads and routes it");
    assert_eq!(world.help(), 1);
    assert_eq!(world.own(), (TOPICS.div_ceil(ENTRIES_A_COMMAND), 1), "one run after another");
    assert_eq!(world.help(), 1, "a helper writes the answer");
    let answer = world.read::<ListOffsetsRequest>(7, 1);
    let offsets: Vec<i64> = answer.topics.iter().map(|topic| topic.partitions[0].offset).collect();
    assert_eq!(offsets, (0..TOPICS).map(|n| id(n).0.0 as i64).collect::<Vec<i64>>(), "in the order of the request");
    assert!(answer.topics.iter().enumerate().all(|(n, topic)| topic.name == name(n)));

    // What is short enough needs no helper, but still goes in runs.
    let short = ITEMS_ON_THE_LOOP_MAX / 2;
    world.send(7, &list_offsets(short));
    assert_eq!(world.own(), (short.div_ceil(ENTRIES_A_COMMAND), 1));
    assert_eq!(world.read::<ListOffsetsRequest>(7, 2).topics.len(), short);

    world.send(4, &DescribeLogDirsRequest { topics: None, ..Default::default() });
    assert_eq!(world.help(), 1);
    assert_eq!(world.own(), (TOPICS.div_ceil(ENTRIES_A_COMMAND), 1));
    assert_eq!(world.help(), 1);
    let dirs = world.read::<DescribeLogDirsRequest>(4, 3);
    assert_eq!(dirs.results[0].topics.len(), TOPICS);

    world.send(12, &MetadataRequest { topics: None, ..Default::default() });
    assert_eq!(world.help(), 1);
    assert_eq!(world.read::<MetadataRequest>(12, 4).topics.len(), TOPICS);
}

#[test]
fn nothing_of_a_connection_comes_before_its_long_produce() {
    let mut world = World::new();
    world.send(9, &produce(4..5, "before"));
    world.own();
    world.read::<ProduceRequest>(9, 1);
    // What the network itself keeps for the next bytes.
    let idle = world.bench.arena.used_bytes();
    world.send(9, &produce(3..4, "first"));
    world.send(9, &produce(0..TOPICS, "second"));
    world.send(9, &produce(3..4, "third"));
    assert_eq!(world.commands.len(), 1, "the third waits, though it is short");
    assert_eq!(world.help(), 1);
    assert!(world.commands.len() <= 1 + PRODUCE_COMMANDS_MAX, "{} commands at once", world.commands.len());
    let (commands, most) = world.own();
    assert_eq!(commands, 1 + TOPICS.div_ceil(ENTRIES_A_COMMAND));
    assert!(most <= 1 + PRODUCE_COMMANDS_MAX);
    assert_eq!(world.read::<ProduceRequest>(9, 2).responses.len(), 1);
    assert_eq!(world.help(), 1);
    let answer = world.read::<ProduceRequest>(9, 3);
    assert!(answer.responses.iter().all(|topic| topic.partition_responses[0].base_offset == 7));
    assert_eq!(answer.responses.len(), TOPICS);
    world.own();
    world.read::<ProduceRequest>(9, 4);
    let of_one: Vec<&[u8]> =
        world.appended.iter().filter(|(at, _)| at.topic == id(3)).map(|(_, records)| &records[..]).collect();
    assert_eq!(of_one, [&b"first"[..], b"second", b"third"]);
    assert_eq!(world.bench.arena.used_bytes(), idle, "nothing of the frames stays in the receive memory");
}

#[test]
fn a_long_session_is_looked_through_in_runs_and_told_by_a_helper() {
    let mut world = World::new();
    world.send(12, &fetch(TOPICS, (0, 0)));
    assert_eq!((world.help(), world.help()), (1, 1), "read, then routed");
    let runs = TOPICS.div_ceil(ENTRIES_A_COMMAND);
    assert_eq!(world.own(), (runs, 1), "the first look");
    assert_eq!(world.help(), 1, "what it found is let go of");
    // The time is up: everything is looked at once more.
    world.bench.now.monotonic = world.bench.now.monotonic + Duration::from_secs(2);
    world.settle();
    assert_eq!(world.own().0, 1 + runs, "the waiters leave, and the last look");
    assert_eq!(world.help(), 1);
    let answer = world.read::<FetchRequest>(12, 1);
    assert_eq!(answer.responses.len(), TOPICS);
    assert!(answer.session_id != 0);

    // The session's next request names nothing, and is as long.
    world.send(12, &fetch(0, (answer.session_id, 1)));
    assert_eq!(world.sessions_of_fetch(), (1, TOPICS), "its slot is kept while a helper has it");
    assert_eq!(world.help(), 1);
    assert_eq!(world.own(), (runs, 1));
    assert_eq!(world.help(), 1, "what it found is let go of");
    world.bench.now.monotonic = world.bench.now.monotonic + Duration::from_secs(2);
    world.settle();
    world.own();
    assert_eq!(world.help(), 1);
    assert_eq!(world.read::<FetchRequest>(12, 2).responses.len(), 0, "nothing changed");

    // A connection that ends leaves its session, and the helper's work is nobody's.
    world.send(12, &fetch(0, (answer.session_id, 2)));
    world.peer.reset();
    world.settle();
    world.help();
    world.own();
    assert_eq!(world.sessions_of_fetch(), (1, TOPICS));
    let mut again = common::connect(&world.bench.network);
    std::mem::swap(&mut world.peer, &mut again);
    world.send(12, &fetch(0, (answer.session_id, -1)));
    while world.help() + world.own().0 > 0 {}
    assert_eq!(world.sessions_of_fetch(), (0, 0));
}

impl World {
    fn sessions_of_fetch(&self) -> (usize, usize) {
        let (sessions, partitions, _, _) = self.bench.sessions.fetch_session_facts();
        (sessions, partitions)
    }
}

/// Kinds of requests that are read by helpers are all of those that the dataplane answers with arrays in them.
#[test]
fn every_api_is_answered_though_it_has_more_elements_than_a_loop_reads() {
    let many: Vec<KafkaString> = (0..=ITEMS_ON_THE_LOOP_MAX).map(name).collect();
    let mut world = World::new();
    let find = FindCoordinatorRequest { coordinator_keys: many.clone(), ..Default::default() };
    world.with(|sessions, turn| sessions.on_link_up(turn));
    world.send(4, &find);
    assert_eq!(world.help(), 1);
    // The view has no topic of groups: it is the control plane's.
    let forwarded = std::mem::take(&mut world.bench.sessions.out.up);
    let [link::Up::Forward(forward)] = forwarded.as_slice() else { panic!("{forwarded:?}") };
    assert_eq!(ApiKey::from_code(forward.api_key), Some(ApiKey::FindCoordinator));
    let asked = FindCoordinatorRequest::decode(&mut Decoder::new(&forward.body), 4).unwrap();
    assert_eq!(asked.coordinator_keys, many);
}

#[test]
fn an_older_view_of_many_topics_is_let_go_of_by_a_helper() {
    let mut world = World::new();
    for (topics, jobs) in [(3, 1), (3, 0), (TOPICS, 0), (TOPICS, 1)] {
        world.bench.sessions.on_view(common::view_of((0..topics).map(|n| (name(n).to_string(), id(n)))));
        world.collect();
        assert_eq!(world.help(), jobs, "before {topics} topics");
    }
}

#[test]
fn a_turn_begins_so_many_requests_and_the_next_goes_on() {
    const REQUESTS: usize = 40;
    let mut world = World::new();
    let mut peers: Vec<SimPeer> = (0..5).map(|_| common::connect(&world.bench.network)).collect();
    world.settle();
    for peer in &mut peers {
        for number in 0..REQUESTS {
            let mut out = BytesMut::new();
            encode_request(&mut out, 9, number as i32, Some("test"), &produce(0..1, "text")).unwrap();
            peer.write(&out);
        }
    }
    let (mut taken, mut turns) = (0, 0);
    while taken < peers.len() * REQUESTS {
        world.turn();
        let begun = std::mem::take(&mut world.commands);
        assert!(begun.len() <= REQUESTS_A_TURN, "{} in one turn", begun.len());
        if begun.len() == REQUESTS_A_TURN {
            let goes_on = world.bench.sessions.next_deadline(world.bench.now);
            assert!(goes_on.is_some_and(|at| at <= world.bench.now.monotonic), "the next turn follows at once");
        }
        taken += begun.len();
        turns += 1;
        assert!(turns < 1000, "{taken} requests began");
    }
}
