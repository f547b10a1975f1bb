//! The group coordinator: partitions of the offsets topic as they are loaded, and clients' requests to it.

use crate::batches::mended;
use crate::golden;
use crate::memory::bounded;
use crate::messages::{api_and_version, api_messages};
use base::{LeaderEpoch, Monotonic, Now, Offset, PartitionIndex, Random, TopicId, Uuid, WallMillis};
use batch::{BatchBuilder, BatchView};
use bytes::{Bytes, BytesMut};
use coordinators::{
    AppendResult, Client, Coordinators, Event, Options, Output, ReadId, ReadResult, Request, RequestToken, Slice,
    Topics,
};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use wire::messages::{DescribeGroupsRequest, ListGroupsRequest, OffsetFetchRequest};
use wire::{ApiKey, Decoder, ErrorCode, KafkaString, RequestKind, ResponseKind};

const FACTOR: u64 = 1024;
const BASE: u64 = 16 << 20;
const OFFSETS_TOPIC: TopicId = TopicId(Uuid(77));
const EPOCH: LeaderEpoch = LeaderEpoch(3);

struct SomeTopics;

impl Topics for SomeTopics {
    fn id(&self, name: &str) -> Option<TopicId> {
        (name == "orders").then_some(TopicId(Uuid(1001)))
    }

    fn name(&self, id: TopicId) -> Option<KafkaString> {
        (id == TopicId(Uuid(1001))).then(|| "orders".into())
    }

    fn partitions(&self, name: &str) -> Option<u32> {
        (name == "orders").then_some(3)
    }
}

/// A coordinator of one partition, and the dataplane below it, which does what it is told or, now and then, does not.
struct World {
    coordinators: Coordinators,
    now: Now,
    random: Random,
    end: i64,
    asked: BTreeMap<RequestToken, i16>,
    answered: usize,
    tokens: u64,
    /// What a read finds: the partition's content.
    content: Bytes,
}

impl World {
    fn new(content: Bytes, end: i64) -> World {
        let options = Options { settings: crate::options::broker().clone(), random: Random::from_seed(5) };
        World {
            coordinators: Coordinators::new(options),
            now: Now { monotonic: Monotonic(1_000_000_000), wall: WallMillis(1_700_000_000_000) },
            random: Random::from_seed(content.len() as u64),
            end,
            asked: BTreeMap::new(),
            answered: 0,
            tokens: 0,
            content,
        }
    }

    fn lead(&mut self) {
        self.event(Event::OffsetsTopic { topic: OFFSETS_TOPIC, partitions: 1 });
        self.event(Event::Leading { partition: PartitionIndex(0), epoch: EPOCH });
    }

    /// One event and all that follows from it.
    fn event(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let mut outputs = Vec::new();
            self.coordinators.handle(self.now, event, &SomeTopics, &mut outputs);
            self.coordinators.end_turn(self.now, &mut outputs);
            for output in outputs {
                self.take(output, &mut events);
            }
        }
    }

    fn take(&mut self, output: Output, events: &mut VecDeque<Event>) {
        match output {
            Output::Respond { token, response } => {
                let version = self.asked.remove(&token).expect("a request is answered once");
                let mut bytes = BytesMut::new();
                response.encode(&mut bytes, version).unwrap_or_else(|error| panic!("{response:?}: {error}"));
                self.answered += 1;
                if response_is_good(&response) {
                    crate::depth::reached();
                }
            }
            Output::Append { id, batches, .. } => {
                let view = BatchView::parse_whole(&batches).expect("a coordinator appends one whole batch");
                view.check_crc().expect("its checksum is right");
                let result = match self.random.below(8) {
                    0 => AppendResult::Refused(ErrorCode::NotEnoughReplicas),
                    1 => AppendResult::Unknown,
                    _ => {
                        let base = Offset(self.end);
                        self.end += i64::from(view.last_offset_delta()) + 1;
                        AppendResult::Done { base }
                    }
                };
                events.push_back(Event::Appended { id, result });
            }
            Output::Read { id, offset, .. } => events.push_back(self.read(id, offset)),
        }
    }

    fn read(&mut self, id: ReadId, offset: Offset) -> Event {
        let (batches, next) =
            if offset <= Offset(0) { (self.content.clone(), self.end) } else { (Bytes::new(), self.end) };
        let slice = Slice { batches, high_watermark: Offset(self.end), next: Offset(next) };
        Event::Read { id, result: ReadResult::Slice(slice) }
    }

    fn ask(&mut self, body: RequestKind, version: i16) {
        self.tokens += 1;
        let token = RequestToken(self.tokens);
        self.asked.insert(token, version);
        let client = Client { client_id: "client".into(), host: "127.0.0.1".into() };
        self.event(Event::Request(Box::new(Request { token, version, client, body })));
    }

    fn pass(&mut self, time: Duration) {
        self.now.monotonic = self.now.monotonic + time;
        self.now.wall.0 += time.as_millis() as i64;
        self.event(Event::Time);
    }

    /// What an operator asks of a coordinator, and long enough for every timer.
    fn look_around(&mut self) {
        self.ask(RequestKind::ListGroups(ListGroupsRequest::default()), 4);
        let fetch = OffsetFetchRequest { group_id: "g".into(), topics: None, ..Default::default() };
        self.ask(RequestKind::OffsetFetch(fetch), 7);
        for group in ["g", "group", "console"] {
            let groups = vec![KafkaString::from(group)];
            self.ask(RequestKind::DescribeGroups(DescribeGroupsRequest { groups, ..Default::default() }), 5);
        }
        for seconds in [1, 60, 700, 8 * 24 * 3600] {
            self.pass(Duration::from_secs(seconds));
        }
    }
}

/// The coordinator was there and had something to say: a partition that was refused answers errors alone.
fn response_is_good(response: &ResponseKind) -> bool {
    match response {
        ResponseKind::ListGroups(response) => response.error_code == 0,
        ResponseKind::OffsetCommit(_) | ResponseKind::JoinGroup(_) | ResponseKind::OffsetDelete(_) => true,
        _ => false,
    }
}

/// A partition of the offsets topic, checksums made right; then the coordinator is asked and time passes.
pub fn offsets_partition(data: &[u8]) {
    let content = Bytes::from(mended(data));
    bounded(data, FACTOR, BASE, || {
        let mut world = World::new(content, 1 << 20);
        world.lead();
        world.look_around();
        let fresh = world.tokens;
        assert!(world.answered as u64 <= fresh);
    });
}

/// Requests one after the other, each with its length, to a coordinator whose partition is empty.
pub fn group_request(data: &[u8]) {
    bounded(data, FACTOR, BASE, || {
        let mut world = World::new(Bytes::new(), 0);
        world.lead();
        let mut rest = data;
        for _ in 0..20 {
            let Some((request, after)) = crate::messages::keyed(rest) else { break };
            rest = after;
            let Some((api, version, body)) = api_and_version(request) else { continue };
            if !Coordinators::serves(api) || !api.stable_versions().contains(version) {
                continue;
            }
            let Ok(body) = RequestKind::decode(api, version, &mut Decoder::new(body)) else { continue };
            world.ask(body, version);
            if request.len() % 3 == 0 {
                world.pass(Duration::from_secs(request.len() as u64 % 50));
            }
        }
        world.look_around();
        for _ in 0..4 {
            world.pass(Duration::from_secs(3600));
        }
        assert!(world.asked.is_empty(), "every request is answered in the end: {:?}", world.asked);
    });
}

pub fn offsets_partition_seeds() -> Vec<Vec<u8>> {
    const SEED_MAX: usize = 16 << 10;
    let log = golden::file("groups/consumer_offsets.log");
    let mut seeds = vec![log[..log.len().min(SEED_MAX)].to_vec()];
    let mut rest = &log[..];
    while let Ok((view, after)) = BatchView::parse(rest) {
        if view.size() <= SEED_MAX {
            seeds.push(view.bytes().to_vec());
        }
        rest = after;
    }
    let records = crate::messages::coordinator_record_seeds();
    for some in records.chunks(3) {
        let mut builder = BatchBuilder::new();
        for record in some {
            let (key, value) = crate::messages::keyed(record).expect("a key and a value");
            builder.append(WallMillis(1), Some(key), Some(value), &[]);
        }
        seeds.push(builder.build());
    }
    seeds
}

pub fn group_request_seeds() -> Vec<Vec<u8>> {
    let served = |(api, _): &(ApiKey, golden::GoldenMessage)| Coordinators::serves(*api);
    let one = |(api, message): (ApiKey, golden::GoldenMessage)| {
        let request = [&api.code().to_be_bytes()[..], &message.version.to_be_bytes(), &message.bytes].concat();
        [&(request.len() as u16).to_be_bytes(), &request[..]].concat()
    };
    let requests: Vec<Vec<u8>> = api_messages("Request").into_iter().filter(served).map(one).collect();
    let mut seeds: Vec<Vec<u8>> = requests.chunks(4).map(<[Vec<u8>]>::concat).collect();
    seeds.extend(requests);
    seeds.push(conversation());
    seeds
}

/// A consumer that joins, syncs, commits, beats and leaves.
fn conversation() -> Vec<u8> {
    use wire::messages::*;
    let group = || KafkaString::from("g");
    let member = || KafkaString::from("m");
    let protocol = join_group_request::JoinGroupRequestProtocol {
        name: "range".into(),
        metadata: Bytes::from_static(b"meta"),
        ..Default::default()
    };
    let join = JoinGroupRequest {
        group_id: group(),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 10_000,
        group_instance_id: Some(KafkaString::from("static")),
        protocol_type: "consumer".into(),
        protocols: vec![protocol],
        ..Default::default()
    };
    let partition = offset_commit_request::OffsetCommitRequestPartition { committed_offset: 5, ..Default::default() };
    let topic = offset_commit_request::OffsetCommitRequestTopic {
        name: "orders".into(),
        partitions: vec![partition],
        ..Default::default()
    };
    let commit = OffsetCommitRequest { group_id: group(), topics: vec![topic], ..Default::default() };
    let sync = SyncGroupRequest { group_id: group(), generation_id: 1, member_id: member(), ..Default::default() };
    let beat = HeartbeatRequest { group_id: group(), generation_id: 1, member_id: member(), ..Default::default() };
    let leave = LeaveGroupRequest {
        group_id: group(),
        members: vec![leave_group_request::MemberIdentity {
            group_instance_id: Some(KafkaString::from("static")),
            ..Default::default()
        }],
        ..Default::default()
    };
    let requests: [(RequestKind, i16); 7] = [
        (commit.clone().into(), 8),
        (join.clone().into(), 9),
        (sync.into(), 5),
        (beat.into(), 4),
        (join.into(), 9),
        (commit.into(), 8),
        (leave.into(), 5),
    ];
    let mut seed = Vec::new();
    for (request, version) in requests {
        let mut body = BytesMut::new();
        request.encode(&mut body, version).expect("a good request");
        seed.extend_from_slice(&(body.len() as u16 + 4).to_be_bytes());
        seed.extend_from_slice(&request.api().code().to_be_bytes());
        seed.extend_from_slice(&version.to_be_bytes());
        seed.extend_from_slice(&body);
    }
    seed
}
