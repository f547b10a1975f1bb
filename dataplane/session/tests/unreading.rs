//! Peers that do not read, over the simulated network: what their responses pin, and what their requests hold.

mod common;

use arena::{Arena, BufferRef};
use base::*;
use bytes::BytesMut;
use common::Bench;
use handoff::{Command, EntryIndex, FetchError, Fetched, FetchedRecords, Outcome, PartitionError, Stretch, Window};
use net::Streams;
use net::sim::{PeerState, SimFaults, SimNetwork, SimPeer, SimStreams};
use pollux_session::limits::{KEPT_BYTES, UNREAD_BYTES_MAX};
use pollux_session::{EndReason, Sessions, Turn};
use std::time::Duration;
use wire::messages::*;
use wire::{ApiKey, Decoder, KafkaString, ResponseKind, encode_request};

const SHARE: usize = 1 << 20;
const LENGTH: u32 = 3 << 20;

/// A core whose partition is played by the test: a log of a pattern, of which every fetch gets `LENGTH` bytes.
struct World {
    now: Now,
    random: Random,
    arena: Arena,
    network: SimNetwork,
    net: SimStreams,
    sessions: Sessions,
    ended: Vec<EndReason>,
    windows: usize,
    /// Bytes of all answers.
    length: u32,
    /// Retention took everything.
    is_taken: bool,
}

fn pattern(from: u64, length: u32) -> Vec<u8> {
    (from..from + u64::from(length)).map(|at| (at * 7 + (at >> 9)) as u8).collect()
}

impl World {
    fn new() -> World {
        let faults = SimFaults { partial: Some(2), ..SimFaults::none() };
        let Bench { now, arena, network, net, sessions } = Bench::new(faults, 16 << 20, SHARE, &[]);
        let random = Random::from_seed(1);
        World {
            now,
            random,
            arena,
            network,
            net,
            sessions,
            ended: Vec::new(),
            windows: 0,
            length: LENGTH,
            is_taken: false,
        }
    }

    fn connect(&self) -> SimPeer {
        common::connect(&self.network)
    }

    fn with(&mut self, act: impl FnOnce(&mut Sessions, &mut Turn<'_, SimStreams>)) {
        let mut turn = Turn { now: self.now, random: &mut self.random, net: &mut self.net, arena: &self.arena };
        act(&mut self.sessions, &mut turn);
        self.ended.extend(self.sessions.out.ended.drain(..).map(|(_, reason)| reason));
    }

    fn settle(&mut self) {
        (0..60).for_each(|_| self.turn());
    }

    fn turn(&mut self) {
        let mut events = Vec::new();
        self.net.poll(self.now, 64, &mut events);
        for event in events {
            self.with(|sessions, turn| common::on_event(sessions, turn, event));
        }
        self.with(|sessions, turn| {
            sessions.on_events_taken(turn);
        });
        while let Some((_, command)) = self.sessions.out.commands.pop() {
            if let Some(outcome) = self.answer(command) {
                self.with(|sessions, turn| sessions.on_outcome(turn, outcome));
            }
        }
        self.with(|sessions, turn| sessions.on_time(turn));
        self.net.flush(self.now);
        self.with(|sessions, turn| {
            sessions.on_flushed(turn);
        });
        self.arena.poll_returns(usize::MAX);
        self.now.monotonic = self.now.monotonic + Duration::from_micros(100);
    }

    fn bytes(&self, from: u64, length: u32) -> BufferRef {
        self.arena.copy(&pattern(from, length)).expect("there is room in the arena")
    }

    fn answer(&mut self, command: Command) -> Option<Outcome> {
        match command {
            Command::Fetch(fetch) => {
                let (length, partition) = (self.length, fetch.entries[0].partition);
                let (first, ready) = (length.min(120_000), length.min(200_000));
                let whole = Stretch { owner: CoreId(0), partition, length, inside: [0; 6] };
                let pieces = [(0, first), (first, ready - first)].into_iter().filter(|(_, length)| *length > 0);
                let records = FetchedRecords {
                    ready: pieces.map(|(from, length)| self.bytes(from.into(), length).into_parcel()).collect(),
                    again: Some(whole.first(ready)),
                    rest: Some(whole.after(ready)).filter(|rest| rest.length > 0).into_iter().collect(),
                    bytes: length,
                    first_batch: 100,
                    ..Default::default()
                };
                let result = if self.is_taken { Err(FetchError::OutOfRange) } else { Ok(records) };
                let entries = vec![Fetched { index: EntryIndex(0), result }];
                Some(Outcome::Fetched { gather: fetch.gather, entries })
            }
            Command::ReadWindow(window) if self.is_taken => {
                let result = Err(FetchError::Partition(PartitionError::Storage));
                Some(Outcome::Window { gather: window.gather, result })
            }
            Command::ReadWindow(window) => {
                self.windows += 1;
                let (mut left, mut pieces, mut rest) = (window.bytes_max, Vec::new(), Vec::new());
                for stretch in window.stretches {
                    let take = stretch.length.min(left);
                    left -= take;
                    if take > 0 {
                        let bytes = self.bytes(stretch.inside[5], take);
                        pieces.push((bytes.into_parcel(), stretch.first(take)));
                    }
                    rest.extend(Some(stretch.after(take)).filter(|rest| rest.length > 0));
                }
                Some(Outcome::Window { gather: window.gather, result: Ok(Window { pieces, rest }) })
            }
            _ => None,
        }
    }
}

fn fetch(correlation: i32) -> Vec<u8> {
    let partition = fetch_request::FetchPartition { partition_max_bytes: i32::MAX, ..Default::default() };
    let topic =
        fetch_request::FetchTopic { topic: KafkaString::from("t"), partitions: vec![partition], ..Default::default() };
    let request = FetchRequest { max_bytes: i32::MAX, topics: vec![topic], ..Default::default() };
    let mut out = BytesMut::new();
    encode_request(&mut out, 11, correlation, Some("c"), &request).unwrap();
    out.to_vec()
}

fn read_whole(world: &mut World, peer: &mut SimPeer, crumbs: usize) -> Vec<u8> {
    let mut all: Vec<u8> = Vec::new();
    for _ in 0..2_000_000 {
        all.extend(peer.read_some(crumbs));
        if all.len() > 4 && all.len() == 4 + i32::from_be_bytes(all[..4].try_into().unwrap()) as usize {
            return all;
        }
        world.turn();
    }
    panic!("{} bytes came", all.len());
}

#[test]
fn a_consumer_that_does_not_read_pins_nothing_and_may_go_on() {
    let mut world = World::new();
    let mut peers: Vec<SimPeer> = (0..20).map(|_| world.connect()).collect();
    for peer in &mut peers {
        peer.write(&fetch(1));
    }
    world.settle();
    let windows = world.windows;
    world.settle();
    assert_eq!(world.windows, windows, "nothing is read from the log for those who do not read");
    assert!(
        world.arena.used_bytes() <= limits::RECEIVE_CHUNK,
        "and nothing is held but what the network receives into"
    );
    // Each then reads as it likes, and gets the same bytes.
    let mut whole: Option<Vec<u8>> = None;
    for (number, peer) in peers.iter_mut().enumerate().take(4) {
        let mut all = read_whole(&mut world, peer, [700, 5000, 64 << 10, usize::MAX][number]);
        let mut d = Decoder::new(&all[4..]);
        assert_eq!(wire::read_response_header(&mut d, ApiKey::Fetch, 11), Ok(1));
        let response = ResponseKind::decode(ApiKey::Fetch, 11, &mut d).unwrap();
        let ResponseKind::Fetch(response) = response else { panic!("a fetch response") };
        let records = response.responses[0].partitions[0].records.clone().unwrap();
        assert!(records[..] == pattern(0, LENGTH)[..]);
        all.drain(..8);
        assert!(whole.get_or_insert(all.clone()) == &all);
        // The connection serves its next request.
        peer.write(&fetch(2));
        read_whole(&mut world, peer, usize::MAX);
    }
    assert!(KEPT_BYTES <= 4096 && world.ended.is_empty(), "{:?}", world.ended);
}

/// A fetch behind an answer that its peer has not taken finds what is there when that has left. What it found before would
/// be let go, and once retention has taken it nothing is left but to end the connection.
#[test]
fn a_fetch_behind_an_unread_answer_is_told_what_is_there_when_its_turn_comes() {
    let mut world = World::new();
    let mut peer = world.connect();
    // The socket takes the first answer but for less than is kept of one, so that nothing of it is let go.
    world.length = (64 << 10) + 1000;
    peer.write(&[fetch(1), fetch(2)].concat());
    world.settle();
    let mut all: Vec<u8> = peer.read_some(600);
    world.settle();
    world.is_taken = true;
    let mut errors = Vec::new();
    for _ in 0..20_000 {
        all.extend(peer.read_some(5000));
        world.turn();
        let whole = all.first_chunk().map(|size| 4 + i32::from_be_bytes(*size) as usize);
        if let Some(whole) = whole.filter(|whole| *whole <= all.len()) {
            let frame: Vec<u8> = all.drain(..whole).collect();
            let mut d = Decoder::new(&frame[4..]);
            assert_eq!(wire::read_response_header(&mut d, ApiKey::Fetch, 11), Ok(errors.len() as i32 + 1));
            let response = ResponseKind::decode(ApiKey::Fetch, 11, &mut d).unwrap();
            let ResponseKind::Fetch(response) = response else { panic!("a fetch response") };
            errors.push(response.responses[0].partitions[0].error_code);
        }
    }
    let out_of_range = wire::ErrorCode::OffsetOutOfRange.code();
    assert!(errors == [0, out_of_range] && world.ended.is_empty(), "{errors:?}, {:?}", world.ended);
}

#[test]
fn requests_without_end_from_a_peer_that_reads_nothing_are_bounded() {
    let mut world = World::new();
    let mut request = BytesMut::new();
    encode_request(&mut request, 3, 1, Some("c"), &ApiVersionsRequest::default()).unwrap();
    let many = request.repeat(60_000 / request.len());
    let mut peers: Vec<SimPeer> = (0..40).map(|_| world.connect()).collect();
    for _ in 0..30 {
        for peer in peers.iter_mut().filter(|peer| peer.state() == PeerState::Open) {
            peer.write(&many);
        }
        world.settle();
    }
    assert!(world.arena.used_bytes() < 2 * SHARE, "{} bytes of the receive memory are held", world.arena.used_bytes());
    // The share of a core takes some of them; who had it longest makes room.
    assert!(world.ended.iter().all(|reason| matches!(reason, EndReason::Refused(_))), "{:?}", world.ended);
    let open = peers.iter().filter(|peer| peer.state() == PeerState::Open).count();
    assert!(open > 5, "{open} are open");
    // Those that read then are answered, all their requests in order.
    let peer = peers.iter_mut().rfind(|peer| peer.state() == PeerState::Open).expect("some are");
    let mut bytes = 0;
    for _ in 0..20_000 {
        bytes += peer.read_some(9000).len();
        world.turn();
    }
    assert!(bytes > 50 * UNREAD_BYTES_MAX, "{bytes} bytes came");
}

#[test]
fn where_receive_memory_is_short_a_frame_that_trickles_ends() {
    let mut world = World::new();
    let mut trickling: Vec<SimPeer> = (0..40).map(|_| world.connect()).collect();
    for peer in &mut trickling {
        peer.write(&[&(900i32 << 10).to_be_bytes()[..], &[0; 600 << 10]].concat());
    }
    for _ in 0..40 {
        world.settle();
    }
    let mut honest = world.connect();
    honest.write(&fetch(9));
    for _ in 0..60 {
        world.now.monotonic = world.now.monotonic + Duration::from_millis(100);
        world.settle();
    }
    assert!(world.ended.contains(&EndReason::TooSlow), "{:?}", world.ended);
    assert!(!read_whole(&mut world, &mut honest, usize::MAX).is_empty());
}
