//! A node in miniature: the coordinators, a log for each partition of the offsets topic, virtual time, topics. Requests
//! and responses pass through their encodings, so that whatever a version cannot carry fails.
#![allow(dead_code, reason = "every test binary uses its own part of this")]

use base::{LeaderEpoch, Monotonic, Now, Offset, PartitionId, PartitionIndex, Random, TopicId, Uuid, WallMillis};
use batch::{BatchView, Batches, Records};
use bytes::{Bytes, BytesMut};
use pollux_coordinators::{
    AppendId, AppendResult, Client, Coordinators, Event, Options, Output, ReadId, ReadResult, Request, RequestToken,
    Slice, Topics,
};
use settings::BrokerSettings;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use wire::{Decoder, ErrorCode, KafkaString, Message, RequestKind, ResponseKind};

pub const OFFSETS_TOPIC: TopicId = TopicId(Uuid(77));
pub const ORDERS: TopicId = TopicId(Uuid(1001));
pub const EPOCH: LeaderEpoch = LeaderEpoch(3);

#[derive(Clone, Debug, Default)]
pub struct FakeTopics(pub BTreeMap<KafkaString, (TopicId, u32)>);

impl Topics for FakeTopics {
    fn id(&self, name: &str) -> Option<TopicId> {
        self.0.get(name).map(|(id, _)| *id)
    }
    fn name(&self, id: TopicId) -> Option<KafkaString> {
        self.0.iter().find(|(_, (known, _))| *known == id).map(|(name, _)| name.clone())
    }
    fn partitions(&self, name: &str) -> Option<u32> {
        self.0.get(name).map(|(_, count)| *count)
    }
}

pub fn settings(more: &[(&str, &str)]) -> BrokerSettings {
    let minimal = [("node.id", "1"), ("process.roles", "broker,controller"), ("controller.listener.names", "C")];
    let texts = minimal.iter().chain(more).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    BrokerSettings::from_file(&texts).expect("good settings")
}

/// An append that nobody has ended yet.
pub struct Waiting {
    pub id: AppendId,
    pub partition: PartitionId,
    pub batches: Bytes,
}

pub struct World {
    pub coordinators: Coordinators,
    pub now: Now,
    pub topics: FakeTopics,
    /// The log of each partition, as appended.
    pub logs: BTreeMap<PartitionIndex, Log>,
    /// Appends in the order they were asked for; they end at once where `holding` is false.
    pub appends: VecDeque<Waiting>,
    pub reads: VecDeque<(ReadId, PartitionId, Offset)>,
    pub holding: bool,
    answers: BTreeMap<RequestToken, ResponseKind>,
    asked: BTreeMap<RequestToken, i16>,
    tokens: u64,
}

#[derive(Clone, Debug, Default)]
pub struct Log {
    pub bytes: Vec<u8>,
    pub end: i64,
    /// Appends that were done.
    pub count: usize,
}

impl Log {
    pub fn append(&mut self, batches: &[u8]) -> Offset {
        let base = Offset(self.end);
        let mut bytes = batches.to_vec();
        batch::stamp(&mut bytes, base, EPOCH);
        let view = BatchView::parse_whole(&bytes).expect("a coordinator appends one whole batch");
        view.check_crc().expect("its checksum is right");
        view.check_counts().expect("its counts are right");
        self.end = view.next_offset().0;
        self.bytes.extend_from_slice(&bytes);
        self.count += 1;
        base
    }

    /// Keys and values.
    pub fn records(&self) -> Vec<(Bytes, Option<Bytes>)> {
        let mut all = Vec::new();
        for view in Batches::new(&self.bytes) {
            let view = view.expect("a good batch");
            let body = batch::inflate(view.codec().expect("a codec"), view.body(), 64 << 20).expect("it inflates");
            for record in Records::new(&body, view.records_count()) {
                let record = record.expect("a good record");
                let own = |bytes: &[u8]| Bytes::copy_from_slice(bytes);
                all.push((own(record.key.expect("a key")), record.value.map(own)));
            }
        }
        all
    }
}

impl World {
    /// One partition, loaded and empty.
    pub fn new(more: &[(&str, &str)]) -> World {
        let mut world = World::unloaded(more, 1);
        world.lead(0);
        world
    }

    pub fn unloaded(more: &[(&str, &str)], partitions: u32) -> World {
        let options = Options { settings: settings(more), random: Random::from_seed(5) };
        let mut world = World {
            coordinators: Coordinators::new(options),
            now: Now { monotonic: Monotonic(1_000_000_000), wall: WallMillis(1_700_000_000_000) },
            topics: FakeTopics::default(),
            logs: BTreeMap::new(),
            appends: VecDeque::new(),
            reads: VecDeque::new(),
            holding: false,
            answers: BTreeMap::new(),
            asked: BTreeMap::new(),
            tokens: 0,
        };
        world.topics.0.insert("orders".into(), (ORDERS, 3));
        world.topics.0.insert("bills".into(), (TopicId(Uuid(1002)), 1));
        world.event(Event::OffsetsTopic { topic: OFFSETS_TOPIC, partitions });
        world
    }

    pub fn lead(&mut self, partition: i32) {
        self.event(Event::Leading { partition: PartitionIndex(partition), epoch: EPOCH });
    }

    /// A fresh node on a copy of the logs, loaded.
    pub fn replayed(&self) -> World {
        let mut world = World::unloaded(&[], 1);
        world.now = self.now;
        world.topics = self.topics.clone();
        world.logs = self.logs.clone();
        world.lead(0);
        world
    }

    pub fn event(&mut self, event: Event) {
        self.raw_event(event);
        self.settle();
    }

    pub fn raw_event(&mut self, event: Event) {
        let mut outputs = Vec::new();
        self.coordinators.handle(self.now, event, &self.topics, &mut outputs);
        self.take(outputs);
    }

    pub fn end_turn(&mut self) {
        let mut outputs = Vec::new();
        self.coordinators.end_turn(self.now, &mut outputs);
        self.take(outputs);
    }

    fn take(&mut self, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Respond { token, response } => {
                    let version = self.asked.remove(&token).expect("a request is answered once");
                    let mut bytes = BytesMut::new();
                    response.encode(&mut bytes, version).unwrap_or_else(|error| panic!("{response:?}: {error}"));
                    self.answers.insert(token, response);
                }
                Output::Append { id, partition, expected_epoch, batches } => {
                    assert_eq!((partition.topic, expected_epoch), (OFFSETS_TOPIC, EPOCH));
                    let same = self.appends.iter().any(|waiting| waiting.partition == partition);
                    assert!(!same, "one append a partition at a time");
                    self.appends.push_back(Waiting { id, partition, batches });
                }
                Output::Read { id, partition, expected_epoch, offset, .. } => {
                    assert_eq!((partition.topic, expected_epoch), (OFFSETS_TOPIC, EPOCH));
                    self.reads.push_back((id, partition, offset));
                }
            }
        }
    }

    /// Plays the dataplane until nothing is asked of it any more.
    pub fn settle(&mut self) {
        loop {
            self.end_turn();
            if self.holding {
                return;
            } else if let Some((id, partition, offset)) = self.reads.pop_front() {
                self.read(id, partition, offset);
            } else if !self.appends.is_empty() {
                self.finish_append();
            } else {
                return;
            }
        }
    }

    /// A slice of at most one batch, so that loading takes several reads.
    pub fn read(&mut self, id: ReadId, partition: PartitionId, offset: Offset) {
        let log = self.logs.entry(partition.index).or_default();
        let whole = Batches::new(&log.bytes).map(|view| view.expect("a good batch"));
        let wanted = whole.into_iter().find(|view| view.last_offset() >= offset);
        let slice = match wanted {
            Some(view) => Slice {
                batches: Bytes::copy_from_slice(view.bytes()),
                high_watermark: Offset(log.end),
                next: view.next_offset(),
            },
            None => Slice { batches: Bytes::new(), high_watermark: Offset(log.end), next: Offset(log.end) },
        };
        self.raw_event(Event::Read { id, result: ReadResult::Slice(slice) });
    }

    /// The oldest append succeeds.
    pub fn finish_append(&mut self) {
        let waiting = self.appends.pop_front().expect("an append waits");
        let base = self.logs.entry(waiting.partition.index).or_default().append(&waiting.batches);
        self.raw_event(Event::Appended { id: waiting.id, result: AppendResult::Done { base } });
    }

    /// The oldest append ends otherwise.
    pub fn end_append(&mut self, result: AppendResult) {
        let waiting = self.appends.pop_front().expect("an append waits");
        self.raw_event(Event::Appended { id: waiting.id, result });
    }

    /// Time passes, timer by timer.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now.monotonic + time;
        loop {
            let next = self.coordinators.next_deadline().filter(|at| *at <= end);
            let to = next.map_or(end, |at| at.max(self.now.monotonic));
            let step = to.since(self.now.monotonic);
            self.now.monotonic = to;
            self.now.wall.0 += step.as_millis() as i64;
            self.event(Event::Time);
            if next.is_none() {
                return;
            }
        }
    }

    pub fn ask<R: Message>(&mut self, version: i16, request: R) -> RequestToken
    where
        RequestKind: From<R>,
    {
        self.ask_as("client", version, request)
    }

    pub fn ask_as<R: Message>(&mut self, client: &str, version: i16, request: R) -> RequestToken
    where
        RequestKind: From<R>,
    {
        let token = self.send(client, version, request);
        self.settle();
        token
    }

    /// Without ending the turn.
    pub fn send<R: Message>(&mut self, client: &str, version: i16, request: R) -> RequestToken
    where
        RequestKind: From<R>,
    {
        let bytes = request.to_bytes(version).expect("the version carries the request");
        let decoded = R::decode(&mut Decoder::shared(&bytes), version).expect("it is read back");
        self.tokens += 1;
        let token = RequestToken(self.tokens);
        self.asked.insert(token, version);
        let client = Client { client_id: client.into(), host: "10.0.0.9".into() };
        self.raw_event(Event::Request(Box::new(Request { token, version, client, body: decoded.into() })));
        token
    }

    pub fn answer(&mut self, token: RequestToken) -> Option<ResponseKind> {
        self.answers.remove(&token)
    }

    pub fn is_answered(&self, token: RequestToken) -> bool {
        self.answers.contains_key(&token)
    }

    /// Asks and takes the answer.
    pub fn call<R: wire::Request>(&mut self, version: i16, request: R) -> R::Response
    where
        RequestKind: From<R>,
        R::Response: TakenFrom,
    {
        let token = self.ask(version, request);
        self.taken(token)
    }

    pub fn taken<A: TakenFrom>(&mut self, token: RequestToken) -> A {
        let answer = self.answer(token).unwrap_or_else(|| panic!("{token:?} is not answered"));
        A::taken_from(answer)
    }
}

pub trait TakenFrom: Sized {
    fn taken_from(kind: ResponseKind) -> Self;
}

macro_rules! taken_from {
    ($($kind:ident $message:ident),*) => {
        $(impl TakenFrom for wire::messages::$message {
            fn taken_from(kind: ResponseKind) -> Self {
                match kind {
                    ResponseKind::$kind(response) => response,
                    other => panic!("{other:?}"),
                }
            }
        })*
    };
}

taken_from! {
    OffsetCommit OffsetCommitResponse, OffsetFetch OffsetFetchResponse, OffsetDelete OffsetDeleteResponse,
    JoinGroup JoinGroupResponse, SyncGroup SyncGroupResponse, Heartbeat HeartbeatResponse,
    LeaveGroup LeaveGroupResponse, DescribeGroups DescribeGroupsResponse, ListGroups ListGroupsResponse,
    DeleteGroups DeleteGroupsResponse
}

pub fn error(code: i16) -> ErrorCode {
    ErrorCode::from_code(code).expect("a known error")
}

pub mod groups;
