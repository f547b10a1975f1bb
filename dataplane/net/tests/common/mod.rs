//! A loop around `Streams` for tests: collects events and waits on conditions with a deadline.
#![allow(dead_code, reason = "each test binary uses its part of this")]

use arena::Arena;
use base::{CoreId, ListenerId, Monotonic, Now, WallMillis};
use pollux_net::kernel_socket::{KernelStreams, SocketOptions};
use pollux_net::{CloseReason, StreamEvent, StreamId, Streams};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

pub const LISTENER: ListenerId = ListenerId(3);
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A node of one core, and what happened to its streams.
pub struct Node<S> {
    pub streams: S,
    pub arena: Arena,
    start: Instant,
    pub opened: Vec<(StreamId, SocketAddr)>,
    pub local: Vec<StreamId>,
    pub received: BTreeMap<StreamId, Vec<u8>>,
    pub filled: Vec<(StreamId, arena::Buffer)>,
    pub finished: BTreeSet<StreamId>,
    pub writable: Vec<(StreamId, usize)>,
    pub closed: BTreeMap<StreamId, CloseReason>,
    pub accept_failures: usize,
    pub turns: usize,
}

pub fn kernel_node(arena_bytes: usize) -> (Node<KernelStreams>, SocketAddr) {
    let arena = Arena::heap(CoreId(0), arena_bytes);
    let streams = KernelStreams::new(arena.clone(), SocketOptions::default(), Now::default()).unwrap();
    let mut node = Node::new(streams, arena);
    let address = node.streams.listen(LISTENER, SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    (node, address)
}

impl<S: Streams> Node<S> {
    pub fn new(streams: S, arena: Arena) -> Node<S> {
        Node {
            streams,
            arena,
            start: Instant::now(),
            opened: Vec::new(),
            local: Vec::new(),
            received: BTreeMap::new(),
            filled: Vec::new(),
            finished: BTreeSet::new(),
            writable: Vec::new(),
            closed: BTreeMap::new(),
            accept_failures: 0,
            turns: 0,
        }
    }

    pub fn now(&self) -> Now {
        let nanos = self.start.elapsed().as_nanos() as u64;
        Now { monotonic: Monotonic(nanos), wall: WallMillis(nanos as i64 / 1_000_000) }
    }

    /// One turn without sleeping.
    pub fn turn(&mut self) -> usize {
        self.turn_at(self.now(), 64)
    }

    pub fn turn_at(&mut self, now: Now, budget: usize) -> usize {
        let mut events = Vec::new();
        self.turns += 1;
        let done = self.streams.poll(now, budget, &mut events);
        assert!(done <= budget, "{done} operations of {budget}");
        for event in events {
            self.on_event(event);
        }
        self.streams.flush(now);
        done
    }

    fn on_event(&mut self, event: StreamEvent) {
        match event {
            StreamEvent::Opened { stream, listener, peer } => {
                assert_eq!(listener, LISTENER);
                self.opened.push((stream, peer));
            }
            StreamEvent::LocalOpened { stream, .. } => self.local.push(stream),
            StreamEvent::Received { stream, bytes } => {
                assert!(!bytes.is_empty() && !self.closed.contains_key(&stream));
                self.received.entry(stream).or_default().extend_from_slice(&bytes);
            }
            StreamEvent::Filled { stream, buffer } => self.filled.push((stream, buffer)),
            StreamEvent::PeerFinished { stream } => assert!(self.finished.insert(stream), "told once"),
            StreamEvent::Writable { stream, queued } => self.writable.push((stream, queued)),
            StreamEvent::Closed { stream, reason } => {
                assert!(self.closed.insert(stream, reason).is_none(), "closed once");
            }
            StreamEvent::AcceptFailed { .. } => self.accept_failures += 1,
        }
    }

    /// Turns and sleeps until the condition holds.
    pub fn until(&mut self, what: &str, mut condition: impl FnMut(&mut Node<S>) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.turn();
            if condition(self) {
                return;
            }
            assert!(Instant::now() < deadline, "waited in vain for: {what}");
            let now = self.now();
            self.streams.wait(now, Some(now.monotonic + Duration::from_millis(5)));
        }
    }

    /// Turns for a while, to see that something does not happen.
    pub fn for_a_while(&mut self) {
        let end = Instant::now() + Duration::from_millis(60);
        while Instant::now() < end {
            self.turn();
            let now = self.now();
            self.streams.wait(now, Some(now.monotonic + Duration::from_millis(5)));
        }
    }

    pub fn next_stream(&mut self) -> StreamId {
        let before = self.opened.len();
        self.until("a client", |node| node.opened.len() > before);
        self.opened[before].0
    }

    pub fn received(&self, stream: StreamId) -> &[u8] {
        self.received.get(&stream).map_or(&[], |bytes| bytes)
    }
}

/// Bytes that no shift or swap leaves the same.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    base::Random::from_seed(seed).fill(&mut bytes);
    bytes
}
