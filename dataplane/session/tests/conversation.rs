//! Whole conversations over the simulated network: order, barriers, bad input, the control plane away. The owner of the
//! partitions is played by the test, which answers commands in the order it likes.

mod common;

use arena::{Arena, BufferRef};
use base::*;
use bytes::{Bytes, BytesMut};
use common::Bench;
use handoff::{Appended, Command, GatherId, Outcome, Produced};
use link::*;
use net::Streams;
use net::sim::{SimFaults, SimNetwork, SimPeer, SimStreams};
use pollux_session::{Gate, Sessions, Turn};
use std::time::Duration;
use wire::messages::*;
use wire::{ApiKey, Decoder, KafkaString, Message, Request, ResponseKind, encode_request};

struct World {
    now: Now,
    random: Random,
    arena: Arena,
    network: SimNetwork,
    net: SimStreams,
    sessions: Sessions,
    commands: Vec<Command>,
    up: Vec<Up>,
}

impl World {
    fn new(faults: SimFaults) -> World {
        World::under(faults, &[])
    }

    /// A node with settings, each `KEY=VALUE`.
    fn under(faults: SimFaults, set: &[&str]) -> World {
        let Bench { now, arena, network, net, sessions } = Bench::new(faults, 8 << 20, 1 << 20, set);
        let random = Random::from_seed(1);
        World { now, random, arena, network, net, sessions, commands: Vec::new(), up: Vec::new() }
    }

    fn connect(&self) -> SimPeer {
        common::connect(&self.network)
    }

    fn with(&mut self, act: impl FnOnce(&mut Sessions, &mut Turn<'_, SimStreams>)) {
        let mut turn = Turn { now: self.now, random: &mut self.random, net: &mut self.net, arena: &self.arena };
        act(&mut self.sessions, &mut turn);
        self.commands.extend(self.sessions.out.commands.drain(..).map(|(_, command)| command));
        self.up.append(&mut self.sessions.out.up);
    }

    /// A few turns of the network: everything that can move without new input has moved.
    fn settle(&mut self) {
        for _ in 0..200 {
            let mut events = Vec::new();
            self.net.poll(self.now, 64, &mut events);
            for event in events {
                self.with(|sessions, turn| common::on_event(sessions, turn, event));
            }
            self.with(|sessions, turn| {
                sessions.on_events_taken(turn);
            });
            self.with(|sessions, turn| sessions.on_time(turn));
            self.net.flush(self.now);
            self.with(|sessions, turn| {
                sessions.on_flushed(turn);
            });
            self.now.monotonic = self.now.monotonic + Duration::from_micros(100);
        }
    }

    fn answer_produce(&mut self, gather: GatherId, entries: usize, base_offset: i64) {
        let entries = (0..entries).map(|i| Produced {
            index: handoff::EntryIndex(i as u32),
            result: Ok(Appended { base_offset: Offset(base_offset), append_time: None, log_start: Offset(0) }),
            epoch: None,
            log_start: Offset(0),
        });
        let outcome = Outcome::Produced { gather, last: true, entries: entries.collect() };
        self.with(|sessions, turn| sessions.on_outcome(turn, outcome));
    }
}

fn frame<R: Request>(version: i16, correlation_id: i32, body: &R) -> Vec<u8> {
    let mut out = BytesMut::new();
    encode_request(&mut out, version, correlation_id, Some("test"), body).unwrap();
    out.to_vec()
}

fn produce(acks: i16) -> ProduceRequest {
    use produce_request::{PartitionProduceData, TopicProduceData};
    let partition_data =
        vec![PartitionProduceData { index: 0, records: Some(Bytes::from_static(b"batch")), ..Default::default() }];
    let topic = TopicProduceData { name: KafkaString::from("t"), partition_data, ..Default::default() };
    ProduceRequest { acks, timeout_ms: 1000, topic_data: vec![topic], ..Default::default() }
}

/// Correlation ids and bodies of what a peer received.
fn answers(bytes: &[u8], asked: &[(ApiKey, i16)]) -> Vec<(i32, ResponseKind)> {
    let mut at = 0;
    let mut answers = Vec::new();
    for (api, version) in asked {
        if at == bytes.len() {
            break;
        }
        let size = i32::from_be_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        let mut d = Decoder::new(&bytes[at + 4..at + 4 + size]);
        let id = wire::read_response_header(&mut d, *api, *version).unwrap();
        answers.push((id, ResponseKind::decode(*api, *version, &mut d).unwrap()));
        d.finish().unwrap();
        at += 4 + size;
    }
    assert_eq!(at, bytes.len(), "nothing follows");
    answers
}

fn gather_of(command: &Command) -> GatherId {
    match command {
        Command::Produce(produce) => produce.gather,
        Command::Fetch(fetch) => fetch.gather,
        other => panic!("{other:?}"),
    }
}

#[test]
fn produces_run_side_by_side_and_everything_else_waits_for_what_stands_before() {
    for faults in [SimFaults::none(), SimFaults { reset: None, ..SimFaults::some() }] {
        let mut world = World::new(faults);
        let mut peer = world.connect();
        let mut stream = Vec::new();
        stream.extend(frame(9, 1, &produce(-1)));
        stream.extend(frame(9, 2, &produce(1)));
        stream.extend(frame(12, 3, &MetadataRequest::default()));
        stream.extend(frame(9, 4, &produce(-1)));
        peer.write(&stream);
        world.settle();
        assert_eq!(world.commands.len(), 2, "the produce after the metadata waits");
        let (first, second) = (gather_of(&world.commands[0]), gather_of(&world.commands[1]));
        world.answer_produce(second, 1, 11);
        world.settle();
        assert_eq!(peer.read(), b"", "the first request is answered first");
        world.answer_produce(first, 1, 10);
        world.settle();
        assert_eq!(world.commands.len(), 3);
        let third = gather_of(&world.commands[2]);
        world.answer_produce(third, 1, 12);
        world.settle();
        let asked = [(ApiKey::Produce, 9), (ApiKey::Produce, 9), (ApiKey::Metadata, 12), (ApiKey::Produce, 9)];
        let answers = answers(&peer.read(), &asked);
        assert_eq!(answers.iter().map(|(id, _)| *id).collect::<Vec<_>>(), vec![1, 2, 3, 4]);
        let ResponseKind::Produce(response) = &answers[1].1 else { panic!("a produce response") };
        assert_eq!(response.responses[0].partition_responses[0].base_offset, 11);
    }
}

#[test]
fn an_unknown_api_versions_version_is_answered_and_the_connection_lives() {
    let mut world = World::new(SimFaults::none());
    let mut peer = world.connect();
    // Version 127 with junk where its header goes on.
    let mut odd = vec![0, 18, 0, 127, 0, 0, 0, 5];
    odd.extend([0xFF; 20]);
    let mut stream = (odd.len() as i32).to_be_bytes().to_vec();
    stream.extend(odd);
    let named = ApiVersionsRequest {
        client_software_name: KafkaString::from("x"),
        client_software_version: KafkaString::from("1"),
        ..Default::default()
    };
    stream.extend(frame(3, 6, &named));
    peer.write(&stream);
    world.settle();
    let answers = answers(&peer.read(), &[(ApiKey::ApiVersions, 0), (ApiKey::ApiVersions, 3)]);
    let ResponseKind::ApiVersions(old) = &answers[0].1 else { panic!("api versions") };
    assert_eq!((answers[0].0, old.error_code, old.api_keys.len()), (5, 35, 1));
    let ResponseKind::ApiVersions(new) = &answers[1].1 else { panic!("api versions") };
    assert_eq!((answers[1].0, new.error_code), (6, 0));
    assert!(new.api_keys.iter().any(|key| key.api_key == 0 && key.min_version == 0));
}

#[test]
fn bad_input_ends_its_own_connection_only() {
    let bad: [Vec<u8>; 5] = [
        (-1i32).to_be_bytes().to_vec(),
        i32::MAX.to_be_bytes().to_vec(),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        frame(2, 1, &MetadataRequest { topics: None, ..Default::default() })
            .into_iter()
            .enumerate()
            .map(|(i, b)| if i == 5 { 99 } else { b })
            .collect(),
        vec![0, 0, 0, 3, 1, 2, 3],
    ];
    let mut world = World::new(SimFaults::none());
    let mut good = world.connect();
    for bytes in bad {
        let mut peer = world.connect();
        peer.write(&bytes);
        world.settle();
        assert_eq!(peer.read(), b"");
        assert!(!matches!(peer.state(), net::sim::PeerState::Open), "{bytes:?}");
        assert_eq!(world.sessions.out.ended.len(), 1);
        world.sessions.out.ended.clear();
    }
    good.write(&frame(12, 8, &MetadataRequest::default()));
    world.settle();
    assert_eq!(answers(&good.read(), &[(ApiKey::Metadata, 12)])[0].0, 8);
}

#[test]
fn what_was_sent_before_the_peer_finished_is_served() {
    for faults in [SimFaults::none(), SimFaults { reset: None, ..SimFaults::some() }] {
        let mut world = World::new(faults);
        let mut peer = world.connect();
        world.settle();
        // All of it, and the end, may come in one poll; the last request is cut short.
        let sent = [
            frame(9, 1, &produce(0)),
            frame(12, 2, &MetadataRequest::default()),
            frame(9, 3, &produce(-1)),
            frame(9, 4, &produce(0)),
            frame(12, 5, &MetadataRequest::default())[..9].to_vec(),
        ];
        peer.write(&sent.concat());
        peer.finish();
        for number in 0..3 {
            world.settle();
            assert_eq!(world.commands.len(), [1, 3, 3][number], "what may be evaluated is");
            let gather = gather_of(&world.commands[number]);
            world.answer_produce(gather, 1, number as i64);
        }
        world.settle();
        let answers = answers(&peer.read(), &[(ApiKey::Metadata, 12), (ApiKey::Produce, 9)]);
        assert_eq!(answers.iter().map(|(id, _)| *id).collect::<Vec<_>>(), vec![2, 3]);
        assert_eq!(peer.state(), net::sim::PeerState::Finished, "then the connection ends");
        assert!(world.sessions.out.ended.is_empty(), "which was the peer's wish");
    }
}

#[test]
fn a_failed_produce_without_acks_closes_and_a_good_one_is_silent() {
    let mut world = World::new(SimFaults::none());
    let mut peer = world.connect();
    peer.write(&[frame(9, 1, &produce(0)), frame(12, 2, &MetadataRequest::default())].concat());
    world.settle();
    let gather = gather_of(&world.commands[0]);
    world.answer_produce(gather, 1, 3);
    world.settle();
    assert_eq!(answers(&peer.read(), &[(ApiKey::Metadata, 12)])[0].0, 2);
    let mut missing = produce(0);
    missing.topic_data[0].name = KafkaString::from("absent");
    peer.write(&frame(9, 3, &missing));
    world.settle();
    assert!(!matches!(peer.state(), net::sim::PeerState::Open));
}

#[test]
fn requests_wait_for_a_control_plane_that_is_away_and_are_never_sent_twice() {
    let mut world = World::new(SimFaults::none());
    let mut peer = world.connect();
    let heartbeat = HeartbeatRequest { group_id: KafkaString::from("g"), ..Default::default() };
    peer.write(&frame(4, 1, &heartbeat));
    world.settle();
    assert!(world.up.is_empty(), "parked");
    world.with(|sessions, turn| sessions.on_link_up(turn));
    let Some(Up::Forward(forward)) = world.up.pop() else { panic!("sent once the link is up") };
    assert_eq!((forward.api_key, forward.api_version, forward.correlation_id), (12, 4, 1));
    world.with(|sessions, turn| sessions.on_link_down(turn));
    world.with(|sessions, turn| sessions.on_link_up(turn));
    assert!(world.up.is_empty(), "what was sent is not sent again");
    world.settle();
    let answers = answers(&peer.read(), &[(ApiKey::Heartbeat, 4)]);
    let ResponseKind::Heartbeat(response) = &answers[0].1 else { panic!("heartbeat") };
    assert_eq!(response.error_code, 15);
    // An answer that comes late finds nobody.
    world.with(|sessions, turn| sessions.on_forward_answer(turn, forward.id, Some(Bytes::from_static(b"late"))));
    world.settle();
    assert_eq!(peer.read(), b"");
    peer.write(&frame(7, 2, &CreateTopicsRequest::default()));
    world.with(|sessions, turn| sessions.on_link_down(turn));
    world.settle();
    world.now.monotonic = world.now.monotonic + Duration::from_secs(11);
    world.settle();
    assert!(!matches!(peer.state(), net::sim::PeerState::Open), "no answer says it: the connection closes");
}

#[test]
fn a_waiting_fetch_is_answered_by_news_or_by_time() {
    let mut world = World::new(SimFaults::none());
    let mut peer = world.connect();
    let fetch = FetchRequest {
        max_wait_ms: 500,
        min_bytes: 1,
        max_bytes: 1 << 20,
        topics: vec![fetch_request::FetchTopic {
            topic: KafkaString::from("t"),
            partitions: vec![fetch_request::FetchPartition { partition_max_bytes: 1 << 20, ..Default::default() }],
            ..Default::default()
        }],
        ..Default::default()
    };
    peer.write(&frame(4, 1, &fetch));
    world.settle();
    let Some(Command::Fetch(first)) = world.commands.pop() else { panic!("a fetch") };
    assert!(first.wait);
    let found = |bytes: &'static [u8]| handoff::FetchedRecords {
        high_watermark: Offset(bytes.len() as i64),
        ready: if bytes.is_empty() { vec![] } else { vec![BufferRef::from_static(bytes).into_parcel()] },
        again: Some(handoff::Stretch {
            owner: CoreId(0),
            partition: PartitionId::default(),
            length: bytes.len() as u32,
            inside: [0; 6],
        }),
        bytes: bytes.len() as u32,
        first_batch: bytes.len() as u32,
        ..Default::default()
    };
    let fetched = |gather, bytes| Outcome::Fetched {
        gather,
        entries: vec![handoff::Fetched { index: handoff::EntryIndex(0), result: Ok(found(bytes)) }],
    };
    world.with(|sessions, turn| sessions.on_outcome(turn, fetched(first.gather, b"")));
    world.settle();
    assert!(world.commands.is_empty(), "it waits");
    let news = vec![handoff::FetchNews { index: handoff::EntryIndex(0), readable: 5, urgent: false }];
    world.with(|sessions, turn| {
        sessions.on_outcome(turn, Outcome::FetchNews { gather: first.gather, entries: news });
    });
    assert!(matches!(world.commands[..], [Command::Cancel(_), Command::Fetch(_)]));
    world.with(|sessions, turn| sessions.on_outcome(turn, fetched(first.gather, b"batch")));
    world.settle();
    let answered = answers(&peer.read(), &[(ApiKey::Fetch, 4)]);
    let ResponseKind::Fetch(response) = &answered[0].1 else { panic!("a fetch response") };
    assert_eq!(response.responses[0].partitions[0].records.as_deref(), Some(&b"batch"[..]));
    world.commands.clear();
    peer.write(&frame(4, 2, &fetch));
    world.settle();
    let Some(Command::Fetch(second)) = world.commands.pop() else { panic!("a fetch") };
    world.with(|sessions, turn| sessions.on_outcome(turn, fetched(second.gather, b"")));
    world.now.monotonic = world.now.monotonic + Duration::from_millis(501);
    world.settle();
    assert!(matches!(world.commands[..], [Command::Cancel(_), Command::Fetch(_)]), "the time is up");
    world.with(|sessions, turn| sessions.on_outcome(turn, fetched(second.gather, b"")));
    world.settle();
    assert_eq!(answers(&peer.read(), &[(ApiKey::Fetch, 4)])[0].0, 2);
}

/// A consumer that closes ends its fetch session with such a fetch, in which it still names its usual wait.
#[test]
fn a_fetch_of_nothing_is_answered_without_waiting() {
    let mut world = World::new(SimFaults::none());
    let mut peer = world.connect();
    let nothing = |session_epoch| FetchRequest { max_wait_ms: 500, min_bytes: 1, session_epoch, ..Default::default() };
    for (version, session_epoch) in [(4, -1), (12, -1), (12, 0), (17, -1)] {
        peer.write(&frame(version, 1, &nothing(session_epoch)));
        world.settle();
        assert_eq!(answers(&peer.read(), &[(ApiKey::Fetch, version)])[0].0, 1, "version {version} {session_epoch}");
        assert!(world.commands.is_empty(), "nobody else has anything to do with it");
    }
}

/// Several pieces of one large frame in one poll: the target may only be set behind the last of them.
#[test]
fn a_large_frame_that_comes_in_many_pieces_is_put_together_in_order() {
    let mut world = World::new(SimFaults { partial: Some(2), ..SimFaults::none() });
    let mut peer = world.connect();
    let mut request = produce(1);
    let records: Vec<u8> = (0..700_000u32).map(|i| ((i * 31) >> 3) as u8).collect();
    request.topic_data[0].partition_data[0].records = Some(Bytes::from(records.clone()));
    for round in 0..3 {
        peer.write(&frame(9, round, &request));
        for _ in 0..40 {
            world.settle();
        }
        let Some(Command::Produce(produce)) = world.commands.pop() else { panic!("a produce") };
        assert!(world.arena.open(produce.entries.into_iter().next().unwrap().records.unwrap())[..] == records[..]);
        world.answer_produce(produce.gather, 1, 0);
        world.settle();
        assert_eq!(answers(&peer.read(), &[(ApiKey::Produce, 9)])[0].0, round);
    }
}

#[test]
fn a_closed_gate_holds_produces_back_and_lets_them_go_on() {
    let mut world = World::new(SimFaults::none());
    let (mut producer, mut reader) = (world.connect(), world.connect());
    world.with(|sessions, turn| sessions.set_gate(turn, Gate::NoProduce));
    producer.write(&[frame(9, 1, &produce(1)), frame(12, 2, &MetadataRequest::default())].concat());
    reader.write(&frame(12, 3, &MetadataRequest::default()));
    world.settle();
    assert!(world.commands.is_empty());
    assert_eq!(answers(&reader.read(), &[(ApiKey::Metadata, 12)])[0].0, 3);
    assert_eq!(producer.read(), b"", "what stands behind a held produce waits too");
    world.with(|sessions, turn| sessions.set_gate(turn, Gate::Open));
    let gather = gather_of(&world.commands[0]);
    world.answer_produce(gather, 1, 0);
    world.settle();
    assert_eq!(answers(&producer.read(), &[(ApiKey::Produce, 9), (ApiKey::Metadata, 12)]).len(), 2);
}

/// Every version of every API that partitions answer can carry what its owner said (a ListOffsets version without a
/// leader epoch once ended the process).
#[test]
fn every_version_can_say_what_partitions_answer() {
    for version in ApiKey::ListOffsets.stable_versions().iter() {
        let mut world = World::new(SimFaults::none());
        let mut peer = world.connect();
        use list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
        let partition = ListOffsetsPartition { timestamp: -1, current_leader_epoch: -1, ..Default::default() };
        let topic =
            ListOffsetsTopic { name: KafkaString::from("t"), partitions: vec![partition], ..Default::default() };
        let request = ListOffsetsRequest { replica_id: -1, topics: vec![topic], ..Default::default() };
        peer.write(&frame(version, 1, &request));
        world.settle();
        let Some(Command::ListOffsets(list)) = world.commands.pop() else { panic!("a list") };
        let listed = handoff::ListedOffset { offset: Some(Offset(5)), timestamp: Some(7), epoch: Some(LeaderEpoch(3)) };
        let entries = vec![(handoff::EntryIndex(0), Ok(listed))];
        let outcome = Outcome::OffsetsListed { gather: list.gather, entries };
        world.with(|sessions, turn| sessions.on_outcome(turn, outcome));
        world.settle();
        let answered = answers(&peer.read(), &[(ApiKey::ListOffsets, version)]);
        let ResponseKind::ListOffsets(response) = &answered[0].1 else { panic!("a list") };
        let partition = &response.topics[0].partitions[0];
        assert_eq!((partition.offset, partition.leader_epoch), (5, if version >= 4 { 3 } else { -1 }));
    }
    for version in ApiKey::DescribeLogDirs.stable_versions().iter() {
        let mut world = World::new(SimFaults::none());
        let mut peer = world.connect();
        peer.write(&frame(version, 1, &DescribeLogDirsRequest { topics: None, ..Default::default() }));
        world.settle();
        let Some(Command::DescribeLogs(describe)) = world.commands.pop() else { panic!("a description") };
        let partition = PartitionId { topic: common::TOPIC, index: PartitionIndex(0) };
        let logs = vec![handoff::LogFacts { partition, size: 9, lag: 0, future: false }];
        let outcome = Outcome::LogsDescribed { gather: describe.gather, logs, total: 100, usable: 50 };
        world.with(|sessions, turn| sessions.on_outcome(turn, outcome));
        world.settle();
        assert_eq!(answers(&peer.read(), &[(ApiKey::DescribeLogDirs, version)])[0].0, 1);
    }
}

#[test]
fn what_decodes_to_nothing_known_is_malformed() {
    let mut d = Decoder::new(&[1, 2, 3]);
    assert!(MetadataRequest::decode(&mut d, 12).is_err());
}

#[test]
fn an_idle_connection_is_closed_in_its_time_and_a_busy_one_is_not() {
    let mut world = World::under(SimFaults::none(), &["connections.max.idle.ms=10000"]);
    let (mut idle, mut busy) = (world.connect(), world.connect());
    for number in 0..6 {
        busy.write(&frame(12, number, &MetadataRequest::default()));
        world.settle();
        assert_eq!(answers(&busy.read(), &[(ApiKey::Metadata, 12)]).len(), 1);
        assert!(matches!(idle.state(), net::sim::PeerState::Open) == (number < 5), "round {number}");
        world.now.monotonic = world.now.monotonic + Duration::from_secs(2);
    }
    assert_eq!(idle.read(), b"");
    assert!(matches!(busy.state(), net::sim::PeerState::Open));
}

#[test]
fn a_frame_may_be_as_large_as_is_set_and_no_larger() {
    for (size, taken) in [(2000, true), (2001, false)] {
        let mut world = World::under(SimFaults::none(), &["socket.request.max.bytes=2000"]);
        let mut peer = world.connect();
        let mut bytes = i32::to_be_bytes(size).to_vec();
        bytes.extend(&frame(12, 7, &MetadataRequest::default())[4..]);
        peer.write(&bytes);
        world.settle();
        assert_eq!(matches!(peer.state(), net::sim::PeerState::Open), taken, "a frame of {size}");
    }
}

#[test]
fn a_fetch_asks_for_no_more_than_the_broker_gives() {
    for (asked, given) in [(5000, 3000), (2000, 2000)] {
        let mut world = World::under(SimFaults::none(), &["fetch.max.bytes=3000"]);
        let mut peer = world.connect();
        let partition = fetch_request::FetchPartition { partition_max_bytes: 1 << 20, ..Default::default() };
        let topic = fetch_request::FetchTopic {
            topic: KafkaString::from("t"),
            partitions: vec![partition],
            ..Default::default()
        };
        peer.write(&frame(4, 1, &FetchRequest { max_bytes: asked, topics: vec![topic], ..Default::default() }));
        world.settle();
        let Some(Command::Fetch(fetch)) = world.commands.pop() else { panic!("a fetch") };
        assert_eq!(fetch.bytes_max, given);
    }
}

#[test]
fn a_topic_that_is_missing_is_made_only_where_that_is_allowed() {
    for (set, allowed) in [(&[][..], true), (&["auto.create.topics.enable=false"][..], false)] {
        let mut world = World::under(SimFaults::none(), set);
        let mut peer = world.connect();
        let topic = metadata_request::MetadataRequestTopic { name: Some("missing".into()), ..Default::default() };
        let asked =
            MetadataRequest { topics: Some(vec![topic]), allow_auto_topic_creation: true, ..Default::default() };
        peer.write(&frame(9, 1, &asked));
        world.settle();
        assert_eq!(answers(&peer.read(), &[(ApiKey::Metadata, 9)]).len(), 1);
        assert_eq!(world.up.iter().any(|up| matches!(up, Up::AutoCreate { .. })), allowed);
    }
}

#[test]
fn there_are_as_many_fetch_sessions_as_slots() {
    let mut world = World::under(SimFaults::none(), &["max.incremental.fetch.session.cache.slots=2"]);
    let ids: Vec<i32> = (0..3)
        .map(|_| {
            let mut peer = world.connect();
            peer.write(&frame(7, 1, &FetchRequest { max_bytes: 1000, session_epoch: 0, ..Default::default() }));
            world.settle();
            let mut answers = answers(&peer.read(), &[(ApiKey::Fetch, 7)]);
            let (_, ResponseKind::Fetch(response)) = answers.remove(0) else { panic!("a fetch response") };
            response.session_id
        })
        .collect();
    assert!(ids[0] != 0 && ids[1] != 0 && ids[2] == 0, "{ids:?}");
}

#[test]
fn a_listing_has_as_many_partitions_as_the_broker_gives() {
    let mut world = World::under(SimFaults::none(), &["max.request.partition.size.limit=1"]);
    let mut peer = world.connect();
    let topics = ["t", "z"]
        .map(|name| describe_topic_partitions_request::TopicRequest { name: name.into(), ..Default::default() });
    let asked =
        DescribeTopicPartitionsRequest { topics: topics.into(), response_partition_limit: 50, ..Default::default() };
    peer.write(&frame(0, 1, &asked));
    world.settle();
    let mut answers = answers(&peer.read(), &[(ApiKey::DescribeTopicPartitions, 0)]);
    let (_, ResponseKind::DescribeTopicPartitions(response)) = answers.remove(0) else { panic!("a listing") };
    assert_eq!(
        (response.topics.len(), response.next_cursor.map(|next| next.topic_name.to_string())),
        (1, Some("z".into()))
    );
}
