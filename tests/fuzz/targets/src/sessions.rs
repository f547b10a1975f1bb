//! Sessions of one core over the simulated network, with clients that send anything and, on the same core, one that
//! behaves and must go on getting right answers.

mod owner;

use crate::messages::api_messages;
use crate::mutate::{mutated, nudged};
use ::session::route;
use ::session::{Gate, NodeFacts, OffLoop, Sessions, Turn};
use arena::Arena;
use base::limits::RECEIVE_CHUNK;
use base::*;
use bytes::BytesMut;
use handoff::{Command, GatherId, Outcome};
use link::*;
use net::sim::{PeerState, SimFaults, SimNetwork, SimPeer, SimStreams};
use net::{StreamEvent, Streams};
use owner::Owner;
use settings::NodeConfig;
use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use wire::messages::*;
use wire::{ApiKey, Decoder, KafkaString, ResponseKind};

pub const TOPIC: TopicId = TopicId(Uuid(77));
const ARENA_BYTES: usize = 8 << 20;
const RECEIVE_SHARE: usize = 1 << 20;
/// Turns in which everything that can move has moved.
const SETTLE_TURNS: usize = 24;
const STEP: Duration = Duration::from_millis(2);

/// What a run came to, so that a run in which nothing happened is seen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub frames: usize,
    /// Answers to the frames that were sent.
    pub answers: usize,
    /// Connections that the core ended with a reason.
    pub ended: usize,
    pub commands: usize,
    pub forwards: usize,
}

/// A core with its clients.
pub struct World {
    now: Now,
    random: Random,
    arena: Arena,
    network: SimNetwork,
    net: SimStreams,
    sessions: Sessions,
    commands: Vec<Command>,
    up: Vec<Up>,
    owner: Owner,
    good: SimPeer,
    correlation: i32,
    tally: Tally,
    link_up: bool,
}

fn address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 9092))
}

impl World {
    pub fn new(seed: u64, faults: SimFaults) -> World {
        let arena = Arena::heap(CoreId(0), ARENA_BYTES);
        let now = Now { monotonic: Monotonic(1_000_000_000), wall: WallMillis(1) };
        let network = SimNetwork::new(Random::from_seed(seed ^ 5), faults);
        let mut net = SimStreams::new(network.clone(), arena.clone(), now);
        net.listen(ListenerId(0), address()).expect("nobody listens yet");
        let facts = NodeFacts {
            node: NodeId(1),
            cluster_id: "c".into(),
            listeners: vec!["PLAINTEXT".into()],
            log_dir: "/data".into(),
        };
        let settings = NodeConfig::laptop(&[]).expect("the built-in configuration is good").broker;
        let mut sessions = Sessions::new(now, CoreId(0), 1, Arc::new(facts), settings, RECEIVE_SHARE);
        sessions.on_view(view());
        sessions.on_producer_ids(1000, 100_000_000);
        let good = network.connect(address(), SocketAddr::from(([10, 0, 0, 1], 1))).expect("the core listens");
        let mut world = World {
            now,
            random: Random::from_seed(seed),
            arena,
            network,
            net,
            sessions,
            commands: Vec::new(),
            up: Vec::new(),
            owner: Owner::default(),
            good,
            correlation: 0,
            tally: Tally::default(),
            link_up: true,
        };
        world.with(|sessions, turn| sessions.on_link_up(turn));
        world
    }

    pub fn tally(&self) -> Tally {
        self.tally
    }

    pub fn connect(&self) -> SimPeer {
        self.network.connect(address(), SocketAddr::from(([10, 0, 0, 9], 1))).expect("the core listens")
    }

    fn with(&mut self, act: impl FnOnce(&mut Sessions, &mut Turn<'_, SimStreams>)) {
        let mut turn = Turn { now: self.now, random: &mut self.random, net: &mut self.net, arena: &self.arena };
        act(&mut self.sessions, &mut turn);
        self.commands.extend(self.sessions.out.commands.drain(..).map(|(_, command)| command));
        self.up.append(&mut self.sessions.out.up);
        self.tally.ended += self.sessions.out.ended.drain(..).count();
        self.tally.answers += self.sessions.out.answered.drain(..).count();
    }

    /// What is for helpers is done here.
    fn help(&mut self) {
        for OffLoop { gather, mut work } in std::mem::take(&mut self.sessions.out.work) {
            work.run();
            self.with(|sessions, turn| sessions.on_work(turn, gather, work));
        }
    }

    /// One turn of the network and of time.
    fn turn(&mut self) {
        let mut events = Vec::new();
        self.net.poll(self.now, 64, &mut events);
        for event in events {
            self.on_event(event);
        }
        self.with(|sessions, turn| {
            sessions.on_events_taken(turn);
        });
        self.help();
        self.with(|sessions, turn| sessions.on_time(turn));
        self.net.flush(self.now);
        self.with(|sessions, turn| {
            sessions.on_flushed(turn);
        });
        self.arena.poll_returns(64);
        self.now.monotonic = self.now.monotonic + STEP;
    }

    fn on_event(&mut self, event: StreamEvent) {
        match event {
            StreamEvent::Opened { stream, listener, peer } => {
                self.sessions.on_opened(self.now, stream, listener, Some(peer));
            }
            StreamEvent::Received { stream, bytes } => self.sessions.on_received(self.now, stream, bytes),
            StreamEvent::Filled { stream, buffer } => self.sessions.on_filled(self.now, stream, buffer),
            StreamEvent::Writable { stream, .. } => self.with(|s, turn| s.on_writable(turn, stream)),
            StreamEvent::PeerFinished { stream } => self.with(|s, _| s.on_peer_finished(stream)),
            StreamEvent::Closed { stream, .. } => self.with(|s, _| s.on_closed(stream)),
            other => panic!("{other:?}"),
        }
    }

    /// Answers some of what waits, in any order.
    fn answer_some(&mut self) {
        for _ in 0..self.commands.len() {
            if self.random.chance(1, 5) {
                continue;
            }
            let at = self.random.below(self.commands.len() as u64) as usize;
            let command = self.commands.remove(at);
            self.answer(command);
        }
        if self.random.chance(1, 3)
            && let Some(news) = self.owner.news(&mut self.random)
        {
            self.with(|sessions, turn| sessions.on_outcome(turn, news));
        }
        self.answer_forwards();
    }

    fn answer(&mut self, command: Command) {
        self.tally.commands += 1;
        let outcomes = self.owner.answer(command, &self.arena, &mut self.random);
        for outcome in outcomes {
            self.with(|sessions, turn| sessions.on_outcome(turn, outcome));
        }
    }

    fn answer_forwards(&mut self) {
        for up in std::mem::take(&mut self.up) {
            let Up::Forward(forward) = up else { continue };
            self.tally.forwards += 1;
            let (parts, last) = owner::forwarded(&forward, &mut self.random);
            for part in parts {
                self.sessions.on_forward_part(forward.id, part);
            }
            self.with(|sessions, turn| sessions.on_forward_answer(turn, forward.id, last));
        }
    }

    /// Everything is answered, and everything that can move has moved.
    fn settle(&mut self) {
        for _ in 0..SETTLE_TURNS {
            self.turn();
            self.answer_some();
        }
    }

    /// The link goes, or comes back.
    pub fn toggle_link(&mut self) {
        self.link_up = !self.link_up;
        if self.link_up {
            self.with(|sessions, turn| sessions.on_link_up(turn));
        } else {
            self.with(|sessions, turn| sessions.on_link_down(turn));
        }
    }

    pub fn toggle_gate(&mut self) {
        let gate = [Gate::Open, Gate::NoProduce, Gate::Closed][self.random.below(3) as usize];
        self.with(|sessions, turn| sessions.set_gate(turn, gate));
    }

    /// A hostile connection from its first byte to its end: the frames go out in one piece or several, and the answers are
    /// read at once, slowly or never.
    pub fn hostile(&mut self, frames: &[Vec<u8>]) {
        let mut peer = self.connect();
        let manner = self.random.below(6);
        // It is accepted before it sends, or most would be gone before anybody looked.
        self.turn();
        for frame in frames {
            if peer.state() != PeerState::Open {
                break;
            }
            self.tally.frames += 1;
            let cut = if frame.is_empty() { 0 } else { self.random.below(frame.len() as u64) as usize };
            peer.write(&frame[..cut]);
            if manner == 1 {
                self.turn();
            }
            peer.write(&frame[cut..]);
            if manner != 2 {
                self.turn();
                self.answer_some();
            }
            match manner {
                3 => drop(peer.read_some(10)),
                4 => {}
                _ => drop(peer.read()),
            }
        }
        if manner == 5 {
            peer.finish();
        }
        let turns = 2 + self.random.below(10);
        for _ in 0..turns {
            self.turn();
            self.answer_some();
            if manner != 4 {
                peer.read();
            }
        }
        match self.random.below(3) {
            0 => peer.reset(),
            1 => drop(peer.read()),
            _ => {}
        }
    }

    /// The client that behaves asks, and must be answered rightly.
    pub fn well_behaved(&mut self) {
        let gate = Gate::Open;
        self.with(|sessions, turn| sessions.set_gate(turn, gate));
        self.correlation += 1;
        let id = self.correlation;
        match self.random.below(3) {
            0 => self.ask_metadata(id),
            1 => self.ask_produce(id),
            _ => self.ask_fetch(id),
        }
    }

    fn ask_metadata(&mut self, id: i32) {
        let topic = metadata_request::MetadataRequestTopic { name: Some("t".into()), ..Default::default() };
        let asked = MetadataRequest { topics: Some(vec![topic]), ..Default::default() };
        self.send_good(12, id, &asked);
        let ResponseKind::Metadata(response) = self.good_answer(ApiKey::Metadata, 12, id, None) else {
            panic!("a metadata response")
        };
        assert_eq!(response.topics[0].topic_id, TOPIC.0);
        assert_eq!(response.topics[0].partitions[0].leader_id, 1);
        assert_eq!(response.brokers[0].host, "localhost");
    }

    fn ask_produce(&mut self, id: i32) {
        use produce_request::{PartitionProduceData, TopicProduceData};
        let records = Some(bytes::Bytes::from_static(b"well behaved"));
        let partition_data = vec![PartitionProduceData { index: 0, records, ..Default::default() }];
        let topic = TopicProduceData { name: KafkaString::from("t"), partition_data, ..Default::default() };
        let asked = ProduceRequest { acks: -1, timeout_ms: 1000, topic_data: vec![topic], ..Default::default() };
        self.send_good(9, id, &asked);
        let offset = i64::from(id) * 3;
        let ResponseKind::Produce(response) = self.good_answer(ApiKey::Produce, 9, id, Some(offset)) else {
            panic!("a produce response")
        };
        let partition = &response.responses[0].partition_responses[0];
        assert_eq!((partition.error_code, partition.base_offset), (0, offset));
    }

    fn ask_fetch(&mut self, id: i32) {
        let partition = fetch_request::FetchPartition { partition_max_bytes: 1 << 20, ..Default::default() };
        let topic = fetch_request::FetchTopic {
            topic: KafkaString::from("t"),
            partitions: vec![partition],
            ..Default::default()
        };
        let asked = FetchRequest { max_bytes: GOOD_FETCH_BYTES, topics: vec![topic], ..Default::default() };
        self.send_good(6, id, &asked);
        let mark = i64::from(id) * 5;
        let ResponseKind::Fetch(response) = self.good_answer(ApiKey::Fetch, 6, id, Some(mark)) else {
            panic!("a fetch response")
        };
        let partition = &response.responses[0].partitions[0];
        assert_eq!((partition.error_code, partition.high_watermark), (0, mark));
        assert_eq!(partition.records.as_deref(), Some(&mark.to_be_bytes()[..]));
    }

    fn send_good<R: wire::Request>(&mut self, version: i16, id: i32, body: &R) {
        let mut frame = BytesMut::new();
        wire::encode_request(&mut frame, version, id, Some("good"), body).expect("a good request");
        self.good.write(&frame);
    }

    /// Waits for the answer. The first new command that appears while only this client sends is its own, and is answered
    /// with `number`.
    fn good_answer(&mut self, api: ApiKey, version: i16, id: i32, number: Option<i64>) -> ResponseKind {
        let known: HashSet<GatherId> = self.commands.iter().filter_map(gather_of).collect();
        let mut received = Vec::new();
        let mut answered = number.is_none();
        for _ in 0..600 {
            self.turn();
            if !answered {
                let own =
                    |command: &Command| is_good(command) && gather_of(command).is_some_and(|g| !known.contains(&g));
                if let Some(at) = self.commands.iter().position(own) {
                    let outcome = good_outcome(self.commands.remove(at), number.unwrap_or_default());
                    self.with(|sessions, turn| sessions.on_outcome(turn, outcome));
                    answered = true;
                }
            }
            self.answer_some_but(answered, &known);
            received.extend(self.good.read());
            if let Some(response) = whole_answer(&received, api, version, id) {
                return response;
            }
        }
        panic!("the client that behaves was not answered: {api} {:?}", self.good.state());
    }

    /// The others go on being answered, so that memory comes back to the core.
    fn answer_some_but(&mut self, all: bool, known: &HashSet<GatherId>) {
        if all {
            return self.answer_some();
        }
        let others: Vec<usize> = (0..self.commands.len())
            .rev()
            .filter(|at| gather_of(&self.commands[*at]).is_none_or(|gather| known.contains(&gather)))
            .collect();
        for at in others {
            let command = self.commands.remove(at);
            self.answer(command);
        }
        self.answer_forwards();
    }

    /// Every connection ends, everything is answered: nothing stays behind.
    pub fn close(mut self) -> Tally {
        if !self.link_up {
            self.toggle_link();
        }
        self.with(|sessions, turn| sessions.set_gate(turn, Gate::Open));
        self.settle();
        assert_eq!(self.good.state(), PeerState::Open, "the client that behaves was not disturbed");
        self.good.reset();
        let mut step = Duration::from_secs(5);
        for _ in 0..40 {
            self.settle();
            // Parked requests and slow frames end by their timers; a fetch may ask to wait for up to 25 days, and is owed
            // an answer even after its client has said that it sends no more.
            self.now.monotonic = self.now.monotonic + step;
            step = (step * 2).min(Duration::from_secs(30 * 24 * 3600));
            if self.sessions.connections() == 0 && self.commands.is_empty() {
                break;
            }
        }
        assert_eq!(self.sessions.connections(), 0, "every connection is gone: {:?}", self.sessions);
        assert_eq!(self.net.len(), 0, "every stream is gone");
        assert_eq!(self.owner.waiters(), 0, "no waiter stays with the owner");
        self.arena.poll_returns(usize::MAX);
        // The network keeps the chunk that it receives into.
        assert!(self.arena.used_bytes() <= RECEIVE_CHUNK, "memory comes back: {:?}", self.arena);
        drop(self.net);
        self.arena.poll_returns(usize::MAX);
        assert_eq!(self.arena.used_bytes() + self.arena.oversized_bytes(), 0, "all memory comes back");
        self.tally
    }
}

fn gather_of(command: &Command) -> Option<GatherId> {
    match command {
        Command::Produce(command) => Some(command.gather),
        Command::Fetch(command) => Some(command.gather),
        Command::ReadWindow(command) => Some(command.gather),
        Command::ListOffsets(command) => Some(command.gather),
        Command::EpochEnds(command) => Some(command.gather),
        Command::DeleteRecords(command) => Some(command.gather),
        Command::DescribeProducers(command) => Some(command.gather),
        Command::DescribeLogs(command) => Some(command.gather),
        Command::Cancel(_) | Command::Internal(_) => None,
    }
}

/// By this size a fetch of the client that behaves is known.
const GOOD_FETCH_BYTES: i32 = (1 << 20) + 7;

/// A command that the client that behaves can have caused.
fn is_good(command: &Command) -> bool {
    match command {
        Command::Produce(produce) => produce.version == 9 && produce.entries.len() == 1,
        Command::Fetch(fetch) => fetch.bytes_max == GOOD_FETCH_BYTES as u32 && fetch.entries.len() == 1,
        _ => false,
    }
}

fn good_outcome(command: Command, number: i64) -> Outcome {
    match command {
        Command::Produce(produce) => {
            let appended = handoff::Appended { base_offset: Offset(number), append_time: None, log_start: Offset(0) };
            let entry = handoff::Produced {
                index: produce.entries[0].index,
                result: Ok(appended),
                epoch: None,
                log_start: Offset(0),
            };
            Outcome::Produced { gather: produce.gather, last: true, entries: vec![entry] }
        }
        Command::Fetch(fetch) => {
            let bytes = arena::BufferRef::from_vec(number.to_be_bytes().to_vec());
            let records = handoff::FetchedRecords {
                high_watermark: Offset(number),
                bytes: 8,
                first_batch: 8,
                again: Some(owner::stretch(fetch.entries[0].partition, 8)),
                ready: vec![bytes.into_parcel()],
                ..Default::default()
            };
            let entry = handoff::Fetched { index: fetch.entries[0].index, result: Ok(records) };
            Outcome::Fetched { gather: fetch.gather, entries: vec![entry] }
        }
        other => panic!("{other:?} is not asked for by the client that behaves"),
    }
}

/// The one answer that was asked for, once all of it is here.
fn whole_answer(received: &[u8], api: ApiKey, version: i16, id: i32) -> Option<ResponseKind> {
    let range = wire::frame::split(received, 1 << 24).expect("a good frame")?;
    assert_eq!(range.end, received.len(), "one answer to one request");
    let mut d = Decoder::new(&received[range]);
    assert_eq!(wire::read_response_header(&mut d, api, version), Ok(id));
    let response = ResponseKind::decode(api, version, &mut d).expect("a good answer");
    d.finish().expect("nothing follows");
    Some(response)
}

fn view() -> Arc<::view::View> {
    let partition = |index, leader| ViewPartition {
        index: PartitionIndex(index),
        leader: Some(NodeId(leader)),
        leader_epoch: LeaderEpoch(0),
        partition_epoch: PartitionEpoch(0),
        replicas: vec![NodeId(1), NodeId(2)],
        isr: vec![NodeId(1)],
        eligible_leader_replicas: vec![],
        last_known_elr: vec![],
        offline: vec![],
    };
    let broker = |id| {
        ViewChange::Broker(ViewBroker {
            id: NodeId(id),
            epoch: BrokerEpoch(1),
            incarnation: Uuid(1),
            rack: None,
            fenced: false,
            in_controlled_shutdown: false,
            listeners: vec![("PLAINTEXT".into(), "localhost".into(), 9092, 0)],
        })
    };
    let topic = |id, name: &str, partitions| ViewChange::Topic(ViewTopic { id, name: name.into(), partitions });
    let changes = vec![
        broker(1),
        broker(2),
        topic(TOPIC, "t", vec![partition(0, 1), partition(1, 1), partition(2, 2)]),
        topic(TopicId(Uuid(78)), "__consumer_offsets", vec![partition(0, 1)]),
    ];
    let provenance = Provenance { cluster_id: "c".into(), quorum_epoch: 1, metadata_offset: 9, caught_up: true };
    let mut builder = ::view::ViewBuilder::new("c".into(), ::view::View::default());
    builder.apply(ViewPart { provenance, image: true, last: true, changes }).expect("a good image");
    let place = |index| (PartitionId { topic: TOPIC, index: PartitionIndex(index) }, Some(CoreId(0)));
    builder.place([place(0), place(1)])
}

/// Valid frames of an API in every version it is served in, Apache's.
pub fn golden_frames(api: ApiKey) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for (of, message) in api_messages("Request") {
        if of != api || !(route::supports(api, message.version) || api == ApiKey::ApiVersions) {
            continue;
        }
        let mut content = BytesMut::new();
        wire::put_request_header(&mut content, api, message.version, 3, Some("c")).expect("a short client id");
        content.extend_from_slice(&message.bytes);
        frames.push(sized(&content));
    }
    assert!(!frames.is_empty(), "{api} has valid frames");
    frames
}

/// Valid frames in every version about the topic that is here, for an API that asks of topics.
pub fn frames_about_the_topic(api: ApiKey) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for version in api.stable_versions().iter() {
        for request in crate::socket::requests_about_the_topic(api) {
            let mut frame = BytesMut::new();
            // What a version cannot say is left to the others.
            if request.encode_frame(&mut frame, version, 3, Some("c")).is_ok() {
                frames.push(frame.to_vec());
            }
        }
    }
    frames
}

fn sized(content: &[u8]) -> Vec<u8> {
    [&(content.len() as i32).to_be_bytes(), content].concat()
}

/// Mutated frames of one API, so many, on connections of a few frames each, beside the client that behaves.
pub fn campaign(api: ApiKey, count: usize, seed: u64) -> Tally {
    let mut dice = Random::from_seed(seed ^ (api.code() as u64) << 32);
    let faults = if dice.chance(1, 2) { SimFaults::none() } else { SimFaults { reset: None, ..SimFaults::some() } };
    let mut world = World::new(seed, faults);
    let seeds = [golden_frames(api), frames_about_the_topic(api)];
    while world.tally.frames < count {
        let here = 1 + dice.below(6) as usize;
        let frames: Vec<Vec<u8>> = (0..here).map(|_| one_frame(&seeds, &mut dice)).collect();
        world.hostile(&frames);
        match dice.below(40) {
            0 => world.toggle_link(),
            1 => world.toggle_gate(),
            _ => {}
        }
        if dice.chance(1, 6) {
            world.well_behaved();
        }
    }
    world.well_behaved();
    world.close()
}

/// Most mutations leave the frame's size right, so that the damage is met further in; a fifth is no mutation.
pub fn one_frame(seeds: &[Vec<Vec<u8>>; 2], dice: &mut Random) -> Vec<u8> {
    let pick = |dice: &mut Random| {
        let from = if seeds[1].is_empty() { &seeds[0] } else { &seeds[dice.below(2) as usize] };
        &from[dice.below(from.len() as u64) as usize]
    };
    let (frame, other) = (pick(dice), pick(dice));
    // API key, version and correlation id, which alone would end most of the connections, stay.
    let kept = 12.min(frame.len());
    match dice.below(10) {
        0 | 1 => frame.clone(),
        2 | 3 => mutated(frame, other, dice),
        4..=6 => [&frame[..kept], &nudged(&frame[kept..], dice)].concat(),
        _ => sized(&[&frame[4..kept], &mutated(&frame[kept..], other, dice)].concat()),
    }
}
