//! The simulated network: every byte in order under partial, late and broken transfers, and the same again by the seed.

mod common;

use arena::{Arena, BufferRef};
use base::{CoreId, ListenerId, Monotonic, Now, Random, WallMillis};
use common::{LISTENER, Node, pattern};
use pollux_net::sim::{PeerState, SimFaults, SimNetwork, SimStreams};
use pollux_net::{Close, CloseReason, StreamId, Streams};
use proptest::prelude::*;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9092);

fn peer_address(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], port))
}

fn node(network: &SimNetwork, core: u16) -> Node<SimStreams> {
    let arena = Arena::heap(CoreId(core), 1 << 20);
    Node::new(SimStreams::new(network.clone(), arena.clone(), Now::default()), arena)
}

fn listening(seed: u64, faults: SimFaults) -> (SimNetwork, Node<SimStreams>) {
    let network = SimNetwork::new(Random::from_seed(seed), faults);
    let mut node = node(&network, 0);
    assert_eq!(node.streams.listen(LISTENER, ADDRESS).unwrap(), ADDRESS);
    (network, node)
}

fn at(millis: u64) -> Now {
    Now { monotonic: Monotonic(millis * 1_000_000), wall: WallMillis(millis as i64) }
}

/// Echoes between several peers, a moving stream and a slow reader; returns a trace that only the seed decides.
fn echo_run(seed: u64) -> Vec<(usize, usize)> {
    let (network, mut first) = listening(seed, SimFaults::some());
    let mut second = node(&network, 1);
    let mut random = Random::from_seed(seed ^ 1);
    let mut peers: Vec<_> = (0..5)
        .map(|i| {
            (network.connect(ADDRESS, peer_address(i)).unwrap(), pattern(seed + u64::from(i), 40_000), 0, Vec::new())
        })
        .collect();
    let mut trace = Vec::new();
    for turn in 0.. {
        assert!(turn < 20_000, "seed {seed}: no progress");
        for (peer, sent, written, got) in &mut peers {
            let count = (random.below(3000) as usize).min(sent.len() - *written);
            peer.write(&sent[*written..*written + count]);
            *written += count;
            got.extend(peer.read_some(random.below(4000) as usize));
        }
        for node in [&mut first, &mut second] {
            node.turn_at(at(turn), 1 + random.below(6) as usize);
            for (stream, bytes) in std::mem::take(&mut node.received) {
                trace.push((stream.index(), bytes.len()));
                node.streams.send(stream, node.arena.copy(&bytes).unwrap());
            }
        }
        if random.chance(1, 5) {
            let (from, to) = if random.chance(1, 2) { (&mut first, &mut second) } else { (&mut second, &mut first) };
            if let Some(id) = moving(from, &mut random) {
                let detached = from.streams.detach(id).expect("it is at a boundary");
                let attached = to.streams.attach(detached).unwrap();
                to.opened.push((attached, ADDRESS));
            }
        }
        if peers.iter().all(|(_, sent, _, got)| got.len() == sent.len()) {
            break;
        }
    }
    for (_, sent, _, got) in &peers {
        assert!(sent == got, "seed {seed}");
    }
    assert_eq!(first.streams.len() + second.streams.len(), 5);
    assert!(first.closed.is_empty() && second.closed.is_empty());
    drop(peers);
    trace
}

fn moving(from: &mut Node<SimStreams>, random: &mut Random) -> Option<StreamId> {
    let count = from.opened.len() as u64;
    (count > 0).then(|| from.opened.swap_remove(random.below(count) as usize).0)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn bytes_keep_their_order_whatever_the_network_does(seed in any::<u64>()) {
        echo_run(seed);
    }
}

#[test]
fn a_seed_repeats_a_run() {
    assert_eq!(echo_run(7), echo_run(7));
    assert_ne!(echo_run(7), echo_run(8));
}

#[test]
fn finish_reset_and_close_are_told_to_both_ends() {
    let (network, mut node) = listening(1, SimFaults::none());
    let mut peers: Vec<_> = (0..4).map(|i| network.connect(ADDRESS, peer_address(i)).unwrap()).collect();
    node.turn_at(at(1), 9);
    let ids: Vec<_> = node.opened.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids.len(), 4);
    peers[0].write(b"bye");
    peers[0].finish();
    peers[1].reset();
    node.streams.pause(ids[1]);
    node.streams.send(ids[2], BufferRef::from_static(b"last"));
    node.streams.close(ids[2], Close::AfterSending);
    peers[3].write(b"unread");
    node.streams.close(ids[3], Close::Now);
    node.turn_at(at(2), 9);
    node.turn_at(at(3), 9);
    assert_eq!(node.received(ids[0]), b"bye");
    assert!(node.finished.contains(&ids[0]));
    assert_eq!(node.closed.get(&ids[1]), Some(&CloseReason::PeerReset));
    assert_eq!((peers[2].read(), peers[2].state()), (b"last".to_vec(), PeerState::Finished));
    assert_eq!(node.closed.get(&ids[2]), None, "it lingers");
    peers[2].finish();
    assert_eq!((node.closed.get(&ids[3]), peers[3].state()), (Some(&CloseReason::Local), PeerState::Broken));
    node.turn_at(at(4), 9);
    assert_eq!(node.closed.get(&ids[2]), Some(&CloseReason::Local));
    node.streams.close(ids[0], Close::AfterSending);
    node.turn_at(at(5), 9);
    assert_eq!(node.closed.get(&ids[0]), Some(&CloseReason::Local));
    assert_eq!(node.streams.len(), 0);
}

#[test]
fn a_lingering_end_and_a_stuck_one_have_deadlines() {
    let (network, mut node) = listening(2, SimFaults { window: 10, ..SimFaults::none() });
    let peers: Vec<_> = (0..2).map(|i| network.connect(ADDRESS, peer_address(i)).unwrap()).collect();
    node.turn_at(at(0), 9);
    let (silent, stuck) = (node.opened[0].0, node.opened[1].0);
    node.streams.send(stuck, BufferRef::from_static(b"more than the window takes"));
    node.turn_at(at(1), 9);
    node.streams.close(silent, Close::AfterSending);
    node.streams.close(stuck, Close::AfterSending);
    node.turn_at(at(2), 9);
    let deadline = node.streams.next_deadline().unwrap();
    assert!(deadline > at(2).monotonic && deadline <= at(2).monotonic + Duration::from_secs(1));
    node.turn_at(at(1_100), 9);
    assert_eq!(node.closed.get(&silent), Some(&CloseReason::Local));
    node.turn_at(at(31_000), 9);
    assert_eq!(node.closed.get(&stuck), Some(&CloseReason::TimedOut));
    assert_eq!(node.streams.next_deadline(), None);
    drop(peers);
}

#[test]
fn a_target_is_filled_over_many_receives() {
    let (network, mut node) = listening(3, SimFaults::some());
    let mut peer = network.connect(ADDRESS, peer_address(1)).unwrap();
    node.turn_at(at(0), 9);
    let stream = node.opened[0].0;
    let frame = pattern(3, 300_000);
    let target = node.arena.try_allocate(frame.len()).unwrap();
    node.streams.set_target(stream, target, 0);
    peer.write(&frame);
    peer.write(b"next");
    for turn in 1..10_000 {
        node.turn_at(at(turn), 3);
        if node.received(stream) == b"next" {
            break;
        }
    }
    assert!(node.filled[0].1[..] == frame[..]);
    assert_eq!(node.received(stream), b"next");
}

#[test]
fn broken_connections_end_in_one_closed_event_each() {
    let (network, mut node) = listening(4, SimFaults { reset: Some(20), ..SimFaults::some() });
    let mut peers: Vec<_> = (0..50).map(|i| network.connect(ADDRESS, peer_address(i)).unwrap()).collect();
    for turn in 0..3000 {
        for peer in &mut peers {
            peer.write(&[1; 10]);
        }
        node.turn_at(at(turn), 20);
        for (stream, bytes) in std::mem::take(&mut node.received) {
            node.streams.send(stream, BufferRef::from_vec(bytes));
        }
    }
    assert_eq!((node.closed.len(), node.streams.len()), (50, 0));
    assert!(node.closed.values().all(|reason| *reason == CloseReason::PeerReset));
    network.set_faults(SimFaults::none());
    assert!(network.connect(ADDRESS, peer_address(99)).is_some());
}

#[test]
fn listeners_of_the_simulator() {
    let (network, mut node) = listening(5, SimFaults::none());
    assert!(node.streams.listen(LISTENER, ADDRESS).is_err());
    assert!(node.streams.listen(ListenerId(8), ADDRESS).is_err());
    assert!(network.connect(peer_address(1), ADDRESS).is_none());
    let chosen = node.streams.listen(ListenerId(8), SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    assert_ne!(chosen.port(), 0);
    node.streams.pause_listener(LISTENER);
    let waiting = network.connect(ADDRESS, peer_address(1)).unwrap();
    node.turn_at(at(1), 9);
    assert!(node.opened.is_empty());
    node.streams.unlisten(LISTENER);
    assert_eq!(waiting.state(), PeerState::Broken);
    node.streams.listen_local(ListenerId(2), Path::new("link")).unwrap();
    let mut link = network.connect_local(Path::new("link")).unwrap();
    link.write(b"up");
    node.turn_at(at(2), 9);
    node.turn_at(at(3), 9);
    assert_eq!(node.received(node.local[0]), b"up");
}
