//! The link's credit: a control plane that answers nothing makes nothing grow here, and stops nobody whom it need not
//! serve.

mod common;

use base::*;
use bytes::{Bytes, BytesMut};
use common::Bench;
use handoff::Command;
use link::{FORWARD_CREDIT_BYTES, Up};
use net::sim::{SimFaults, SimPeer, SimStreams};
use pollux_session::{Sessions, Turn};
use wire::messages::*;
use wire::{KafkaString, Request, encode_request};

/// As large as a request that goes to the control plane may nearly be.
const LARGE: usize = 1_000_000;
const CLIENTS: usize = 20;

struct World {
    bench: Bench,
    random: Random,
    commands: Vec<Command>,
    /// Ids of requests that went to the control plane, in order.
    forwarded: Vec<u64>,
}

impl World {
    fn new() -> World {
        let bench = Bench::new(SimFaults::none(), 8 << 20, 8 << 20, &[]);
        let mut world = World { bench, random: Random::from_seed(1), commands: Vec::new(), forwarded: Vec::new() };
        world.with(|sessions, turn| sessions.on_link_up(turn));
        world
    }

    fn with(&mut self, act: impl FnOnce(&mut Sessions, &mut Turn<'_, SimStreams>)) {
        let Bench { now, arena, net, sessions, .. } = &mut self.bench;
        act(sessions, &mut Turn { now: *now, random: &mut self.random, net, arena });
        self.collect();
    }

    fn collect(&mut self) {
        let sessions = &mut self.bench.sessions;
        self.commands.extend(sessions.out.commands.drain(..).map(|(_, command)| command));
        self.forwarded.extend(sessions.out.up.drain(..).filter_map(|up| match up {
            Up::Forward(forward) => Some(forward.id),
            _ => None,
        }));
    }

    fn settle(&mut self) {
        for _ in 0..1500 {
            self.bench.turn(&mut self.random);
            self.collect();
        }
    }

    fn answer(&mut self, id: u64) {
        self.with(|sessions, turn| sessions.on_forward_answer(turn, id, Some(Bytes::from_static(b"answer"))));
        self.settle();
    }

    /// Bytes under way to the control plane, and how many requests have waited for credit.
    fn facts(&self) -> (usize, u64) {
        self.bench.sessions.forward_facts()
    }
}

fn frame<R: Request>(version: i16, body: &R) -> Vec<u8> {
    let mut out = BytesMut::new();
    encode_request(&mut out, version, 1, Some("test"), body).unwrap();
    out.to_vec()
}

fn large() -> SyncGroupRequest {
    use sync_group_request::SyncGroupRequestAssignment;
    let assignment = Bytes::from(vec![1; LARGE]);
    let assignments = vec![SyncGroupRequestAssignment { assignment, ..Default::default() }];
    SyncGroupRequest { group_id: KafkaString::from("g"), assignments, ..Default::default() }
}

fn produce() -> ProduceRequest {
    use produce_request::{PartitionProduceData, TopicProduceData};
    let records = Some(Bytes::from_static(b"batch"));
    let partition_data = vec![PartitionProduceData { index: 0, records, ..Default::default() }];
    let topic = TopicProduceData { name: KafkaString::from("t"), partition_data, ..Default::default() };
    ProduceRequest { acks: -1, timeout_ms: 1000, topic_data: vec![topic], ..Default::default() }
}

#[test]
fn a_control_plane_that_answers_nothing_is_asked_no_more_than_its_credit() {
    let mut world = World::new();
    let mut peers: Vec<SimPeer> = (0..CLIENTS).map(|_| common::connect(&world.bench.network)).collect();
    for peer in &mut peers {
        peer.write(&frame(3, &large()));
        world.settle();
    }
    let within = FORWARD_CREDIT_BYTES / LARGE;
    let (charged, waited) = world.facts();
    assert_eq!((world.forwarded.len(), waited), (within, (CLIENTS - within) as u64));
    assert!(charged <= FORWARD_CREDIT_BYTES, "{charged} bytes are under way");

    let used = world.bench.arena.used_bytes();
    assert!(used < LARGE, "{used} bytes of the receive memory are taken by who waits");

    // Small ones wait too, those of other connections; who needs no control plane goes on.
    let mut small = common::connect(&world.bench.network);
    small.write(&frame(4, &HeartbeatRequest { group_id: KafkaString::from("g".repeat(20_000)), ..Default::default() }));
    let mut other = common::connect(&world.bench.network);
    other.write(&frame(9, &produce()));
    world.settle();
    assert_eq!(world.forwarded.len(), within);
    assert!(matches!(world.commands.as_slice(), [Command::Produce(_)]));

    // A connection that ends gives nothing back: what it asked is still under way.
    peers[0].reset();
    world.settle();
    assert_eq!(world.facts().0, charged);
    assert_eq!(world.forwarded.len(), within);
    let first = world.forwarded[0];
    world.answer(first);
    assert_eq!(world.forwarded.len(), within + 1, "its answer does");
    assert!(world.facts().0 <= FORWARD_CREDIT_BYTES);

    // Whoever waited is served, first come first served.
    for at in 1..CLIENTS {
        let id = world.forwarded[at];
        world.answer(id);
    }
    assert_eq!(world.forwarded.len(), CLIENTS + 1);
    let last = world.forwarded[CLIENTS];
    world.answer(last);
    assert_eq!(world.facts().0, 0);
    assert!(!small.read().is_empty());
}

#[test]
fn a_link_that_ends_gives_all_credit_back() {
    let mut world = World::new();
    let mut peers: Vec<SimPeer> = (0..CLIENTS).map(|_| common::connect(&world.bench.network)).collect();
    for peer in &mut peers {
        peer.write(&frame(3, &large()));
        world.settle();
    }
    world.with(|sessions, turn| sessions.on_link_down(turn));
    world.settle();
    assert_eq!(world.facts().0, 0);
    // Who waited is parked now, within the bounds of that, and goes when the link is back.
    let before = world.forwarded.len();
    world.with(|sessions, turn| sessions.on_link_up(turn));
    world.settle();
    assert_eq!(world.forwarded.len(), before + 4);
}
