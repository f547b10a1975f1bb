//! Sessions of one core over the simulated network, with a view of one broker and one partition.

use arena::Arena;
use base::*;
use link::*;
use net::sim::{SimFaults, SimNetwork, SimPeer, SimStreams};
use net::{StreamEvent, Streams};
use pollux_session::{NodeFacts, Sessions, Turn};
use settings::NodeConfig;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

pub const TOPIC: TopicId = TopicId(Uuid(77));

pub struct Bench {
    pub now: Now,
    pub arena: Arena,
    pub network: SimNetwork,
    pub net: SimStreams,
    pub sessions: Sessions,
}

fn address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 9092))
}

impl Bench {
    /// With a core's memory, the share of it that receives, and settings, each `KEY=VALUE`.
    pub fn new(faults: SimFaults, arena_bytes: usize, receive_share: usize, set: &[&str]) -> Bench {
        let arena = Arena::heap(CoreId(0), arena_bytes);
        let now = Now { monotonic: Monotonic(1_000_000_000), wall: WallMillis(1) };
        let network = SimNetwork::new(Random::from_seed(5), faults);
        let mut net = SimStreams::new(network.clone(), arena.clone(), now);
        net.listen(ListenerId(0), address()).unwrap();
        let facts = NodeFacts {
            node: NodeId(1),
            cluster_id: "c".into(),
            listeners: vec!["PLAINTEXT".into()],
            log_dir: "/data".into(),
        };
        let set: Vec<String> = set.iter().map(|set| (*set).to_owned()).collect();
        let settings = NodeConfig::laptop(&set).unwrap().broker;
        let mut sessions = Sessions::new(now, CoreId(0), 1, Arc::new(facts), settings, receive_share);
        sessions.on_view(view());
        Bench { now, arena, network, net, sessions }
    }

    /// One turn of a loop, 100 us long; what the sessions put out is left there.
    #[allow(dead_code, reason = "some test files look at what comes between the steps")]
    pub fn turn(&mut self, random: &mut Random) {
        let Bench { now, arena, net, sessions, .. } = self;
        let mut events = Vec::new();
        net.poll(*now, 64, &mut events);
        let mut turn = Turn { now: *now, random, net, arena };
        for event in events {
            on_event(sessions, &mut turn, event);
        }
        sessions.on_events_taken(&mut turn);
        sessions.on_time(&mut turn);
        turn.net.flush(*now);
        sessions.on_flushed(&mut turn);
        arena.poll_returns(64);
        now.monotonic = now.monotonic + Duration::from_micros(100);
    }
}

pub fn connect(network: &SimNetwork) -> SimPeer {
    network.connect(address(), "10.0.0.9:1".parse().unwrap()).expect("somebody listens")
}

pub fn on_event(sessions: &mut Sessions, turn: &mut Turn<'_, SimStreams>, event: StreamEvent) {
    match event {
        StreamEvent::Opened { stream, listener, peer } => sessions.on_opened(turn.now, stream, listener, Some(peer)),
        StreamEvent::Received { stream, bytes } => sessions.on_received(turn.now, stream, bytes),
        StreamEvent::Filled { stream, buffer } => sessions.on_filled(turn.now, stream, buffer),
        StreamEvent::Writable { stream, .. } => sessions.on_writable(turn, stream),
        StreamEvent::PeerFinished { stream } => sessions.on_peer_finished(stream),
        StreamEvent::Closed { stream, .. } => sessions.on_closed(stream),
        other => panic!("{other:?}"),
    }
}

fn view() -> Arc<::view::View> {
    view_of([("t".to_owned(), TOPIC)])
}

/// Topics of one partition each, which core 0 leads.
pub fn view_of(topics: impl IntoIterator<Item = (String, TopicId)>) -> Arc<::view::View> {
    let partition = ViewPartition {
        index: PartitionIndex(0),
        leader: Some(NodeId(1)),
        leader_epoch: LeaderEpoch(0),
        partition_epoch: PartitionEpoch(0),
        replicas: vec![NodeId(1)],
        isr: vec![NodeId(1)],
        eligible_leader_replicas: vec![],
        last_known_elr: vec![],
        offline: vec![],
    };
    let mut changes = vec![ViewChange::Broker(ViewBroker {
        id: NodeId(1),
        epoch: BrokerEpoch(1),
        incarnation: Uuid(1),
        rack: None,
        fenced: false,
        in_controlled_shutdown: false,
        listeners: vec![("PLAINTEXT".into(), "localhost".into(), 9092, 0)],
    })];
    let mut placed = Vec::new();
    for (name, id) in topics {
        placed.push((PartitionId { topic: id, index: PartitionIndex(0) }, Some(CoreId(0))));
        changes.push(ViewChange::Topic(ViewTopic { id, name, partitions: vec![partition.clone()] }));
    }
    let provenance = Provenance { cluster_id: "c".into(), quorum_epoch: 1, metadata_offset: 9, caught_up: true };
    let mut builder = ::view::ViewBuilder::new("c".into(), ::view::View::default());
    builder.apply(ViewPart { provenance, image: true, last: true, changes }).unwrap();
    builder.place(placed)
}
