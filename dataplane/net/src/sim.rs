//! Streams over a simulated network, deterministic by seed: bytes come in pieces of any size, late, and are taken in
//! pieces of any size; connections break. Everything but the sockets is the code of production.
//!
//! A `SimNetwork` lives on one thread with all its nodes. A test holds the other end of a connection as a `SimPeer`.

use crate::stream::Socket;
use crate::table::{Parts, Readiness, Table};
use crate::{Close, ListenError, StreamEvent, StreamId, Streams, Traffic, Waker};
use arena::{Arena, Buffer, BufferRef, Parcel};
use base::{ListenerId, Monotonic, Now, Random, SlotToken, Slots};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// How badly the network behaves; each chance is one in so many, `None` never.
#[derive(Clone, Copy, Debug)]
pub struct SimFaults {
    /// A receive or a send moves a part only.
    pub partial: Option<u64>,
    /// A poll does not yet see what a connection has.
    pub late: Option<u64>,
    /// A receive or a send finds the connection broken.
    pub reset: Option<u64>,
    /// Bytes on their way to a peer that does not read.
    pub window: usize,
}

impl SimFaults {
    pub fn none() -> SimFaults {
        SimFaults { partial: None, late: None, reset: None, window: 64 << 10 }
    }

    pub fn some() -> SimFaults {
        SimFaults { partial: Some(2), late: Some(3), reset: None, window: 16 << 10 }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Address {
    Tcp(SocketAddr),
    Local(PathBuf),
}

#[derive(Debug)]
struct Connection {
    peer: SocketAddr,
    to_node: VecDeque<u8>,
    to_peer: VecDeque<u8>,
    peer_finished: bool,
    node_finished: bool,
    peer_gone: bool,
    node_gone: bool,
    broken: bool,
}

impl Connection {
    /// As in the kernel: closing with unread bytes resets, and the reset takes what the peer has not read with it.
    fn close_at_node(&mut self) {
        self.node_gone = true;
        if !self.to_node.is_empty() {
            self.broken = true;
            self.to_peer.clear();
        }
    }
}

#[derive(Debug)]
struct Net {
    random: Random,
    faults: SimFaults,
    connections: Slots<Connection>,
    /// Connections that wait to be accepted, by address.
    waiting: BTreeMap<Address, VecDeque<SlotToken>>,
    next_port: u16,
}

impl Net {
    fn happens(&mut self, chance: Option<u64>) -> bool {
        chance.is_some_and(|one_in| self.random.chance(1, one_in))
    }

    /// How many of `count` bytes, at least one of them, a call moves.
    fn part_of(&mut self, count: usize) -> usize {
        if count > 1 && self.happens(self.faults.partial) {
            1 + self.random.below(count as u64) as usize
        } else {
            count
        }
    }

    /// Forgets a connection that both ends have left.
    fn sweep(&mut self, id: SlotToken) {
        if self.connections.get(id).is_some_and(|c| c.peer_gone && c.node_gone) {
            self.connections.remove(id);
        }
    }
}

/// The network; cloning gives another handle to it.
#[derive(Clone, Debug)]
pub struct SimNetwork(Rc<RefCell<Net>>);

impl SimNetwork {
    pub fn new(random: Random, faults: SimFaults) -> SimNetwork {
        let net = Net { random, faults, connections: Slots::growable(), waiting: BTreeMap::new(), next_port: 40_000 };
        SimNetwork(Rc::new(RefCell::new(net)))
    }

    /// Changes how the network behaves from now on.
    pub fn set_faults(&self, faults: SimFaults) {
        self.0.borrow_mut().faults = faults;
    }

    /// Connects `peer` to a listener; none where nobody listens.
    pub fn connect(&self, to: SocketAddr, peer: SocketAddr) -> Option<SimPeer> {
        self.connect_to(&Address::Tcp(to), peer)
    }

    pub fn connect_local(&self, path: &Path) -> Option<SimPeer> {
        self.connect_to(&Address::Local(path.to_owned()), SocketAddr::from(([0, 0, 0, 0], 0)))
    }

    /// The nodes' processes are killed: nobody listens, and their ends close as the kernel closes them, also those that
    /// were on their way between cores. Dropping the streams before or after changes nothing more.
    pub fn kill_nodes(&self) {
        let net = &mut *self.0.borrow_mut();
        net.waiting.clear();
        let ids: Vec<SlotToken> = net.connections.iter().map(|(id, _)| id).collect();
        for id in ids {
            if let Some(connection) = net.connections.get_mut(id) {
                connection.close_at_node();
            }
            net.sweep(id);
        }
    }

    fn connect_to(&self, to: &Address, peer: SocketAddr) -> Option<SimPeer> {
        let net = &mut *self.0.borrow_mut();
        let waiting = net.waiting.get_mut(to)?;
        let connection = Connection {
            peer,
            to_node: VecDeque::new(),
            to_peer: VecDeque::new(),
            peer_finished: false,
            node_finished: false,
            peer_gone: false,
            node_gone: false,
            broken: false,
        };
        let id = net.connections.insert_with(|_| connection).expect("growable slots are never full");
        waiting.push_back(id);
        Some(SimPeer { network: self.clone(), id })
    }
}

/// The other end of a connection. Dropping it closes it as a process's end does.
#[derive(Debug)]
pub struct SimPeer {
    network: SimNetwork,
    id: SlotToken,
}

/// What a peer can tell of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerState {
    Open,
    /// The node sends no more; what it sent can be read.
    Finished,
    Broken,
}

impl SimPeer {
    fn with<R>(&self, act: impl FnOnce(&mut Connection) -> R) -> R {
        let mut net = self.network.0.borrow_mut();
        act(net.connections.get_mut(self.id).expect("a connection stays while its peer does"))
    }

    pub fn write(&mut self, bytes: &[u8]) {
        self.with(|connection| {
            assert!(!connection.peer_finished, "a peer that finished writes no more");
            if !connection.broken && !connection.node_gone {
                connection.to_node.extend(bytes);
            }
        });
    }

    /// Takes all that has come.
    pub fn read(&mut self) -> Vec<u8> {
        self.with(|connection| connection.to_peer.drain(..).collect())
    }

    /// Takes at most `count` bytes of what has come: a slow reader.
    pub fn read_some(&mut self, count: usize) -> Vec<u8> {
        self.with(|connection| {
            let count = count.min(connection.to_peer.len());
            connection.to_peer.drain(..count).collect()
        })
    }

    /// Sends no more, and still reads.
    pub fn finish(&mut self) {
        self.with(|connection| connection.peer_finished = true);
    }

    pub fn reset(&mut self) {
        self.with(|connection| connection.broken = true);
    }

    pub fn state(&self) -> PeerState {
        self.with(|connection| {
            if connection.broken {
                PeerState::Broken
            } else if connection.node_finished || connection.node_gone {
                PeerState::Finished
            } else {
                PeerState::Open
            }
        })
    }
}

impl Drop for SimPeer {
    fn drop(&mut self) {
        self.with(|connection| {
            connection.peer_gone = true;
            connection.peer_finished = true;
            // Bytes that nobody will read break the connection, as in the kernel.
            connection.broken |= !connection.to_peer.is_empty();
        });
        self.network.0.borrow_mut().sweep(self.id);
    }
}

/// The node's end.
#[derive(Debug)]
struct SimSocket {
    network: SimNetwork,
    id: SlotToken,
    /// The connection goes on at another core: the end of this value does not close it.
    moved: bool,
}

impl SimSocket {
    fn check(net: &mut Net, id: SlotToken) -> io::Result<()> {
        let breaks = net.happens(net.faults.reset);
        let connection = net.connections.get_mut(id).expect("a connection stays while its node does");
        connection.broken |= breaks;
        if connection.broken { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(()) }
    }

    /// Whether a receive and a send would do something.
    fn readiness(&self) -> Readiness {
        let net = &mut *self.network.0.borrow_mut();
        let late = net.happens(net.faults.late);
        let window = net.faults.window;
        let connection = net.connections.get(self.id).expect("a connection stays while its node does");
        if late && !connection.broken {
            return Readiness::default();
        }
        Readiness {
            readable: !connection.to_node.is_empty() || connection.peer_finished || connection.broken,
            writable: connection.to_peer.len() < window || connection.peer_gone || connection.broken,
            peer_finished: connection.peer_finished,
            over: connection.broken,
        }
    }
}

impl Socket for SimSocket {
    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let net = &mut *self.network.0.borrow_mut();
        SimSocket::check(net, self.id)?;
        let connection = net.connections.get(self.id).expect("just checked");
        let (available, finished) = (connection.to_node.len(), connection.peer_finished);
        if available == 0 {
            return if finished { Ok(0) } else { Err(io::ErrorKind::WouldBlock.into()) };
        }
        let count = net.part_of(available.min(into.len()));
        let connection = net.connections.get_mut(self.id).expect("just checked");
        into.iter_mut().zip(connection.to_node.drain(..count)).for_each(|(to, from)| *to = from);
        Ok(count)
    }

    fn send(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let net = &mut *self.network.0.borrow_mut();
        SimSocket::check(net, self.id)?;
        let connection = net.connections.get_mut(self.id).expect("just checked");
        assert!(!connection.node_finished, "nothing is sent after the end");
        if connection.peer_gone {
            connection.broken = true;
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let room = net.faults.window.saturating_sub(connection.to_peer.len());
        let offered: usize = pieces.iter().map(|piece| piece.len()).sum();
        if room == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let count = net.part_of(offered.min(room));
        let connection = net.connections.get_mut(self.id).expect("just checked");
        connection.to_peer.extend(pieces.iter().flat_map(|piece| piece.iter()).take(count));
        Ok(count)
    }

    fn finish_sending(&mut self) {
        let net = &mut *self.network.0.borrow_mut();
        net.connections.get_mut(self.id).expect("a connection stays while its node does").node_finished = true;
    }
}

impl Drop for SimSocket {
    fn drop(&mut self) {
        if self.moved {
            return;
        }
        let net = &mut *self.network.0.borrow_mut();
        let Some(connection) = net.connections.get_mut(self.id) else { return };
        connection.close_at_node();
        net.sweep(self.id);
    }
}

/// One core's streams in the simulator.
pub struct SimStreams {
    network: SimNetwork,
    table: Table<SimSocket>,
    listeners: BTreeMap<ListenerId, SimListener>,
}

struct SimListener {
    address: Address,
    paused: bool,
}

/// A connection on its way to another core of the same network. Being `Send` it cannot reach the network: a dropped one
/// leaves its peer waiting.
#[derive(Debug)]
pub struct SimDetached {
    id: SlotToken,
    unsent: Vec<Parcel>,
    paused: bool,
    essential: bool,
}

impl SimStreams {
    pub fn new(network: SimNetwork, arena: Arena, now: Now) -> SimStreams {
        SimStreams { network, table: Table::new(arena, now.monotonic), listeners: BTreeMap::new() }
    }

    fn add_listener(&mut self, listener: ListenerId, address: Address) -> Result<(), ListenError> {
        if self.listeners.contains_key(&listener) {
            return Err(ListenError::Exists);
        }
        let net = &mut *self.network.0.borrow_mut();
        if net.waiting.contains_key(&address) {
            return Err(ListenError::Address(io::ErrorKind::AddrInUse.into()));
        }
        net.waiting.insert(address.clone(), VecDeque::new());
        self.listeners.insert(listener, SimListener { address, paused: false });
        Ok(())
    }

    fn announce_readiness(&mut self) {
        for stream in self.table.ids() {
            if let Some(open) = self.table.get_mut(stream) {
                let readiness = open.socket.readiness();
                self.table.on_ready(stream, readiness);
            }
        }
    }

    fn accept(&mut self, budget: usize, events: &mut Vec<StreamEvent>) -> usize {
        let mut done = 0;
        for (listener, SimListener { address, paused }) in &self.listeners {
            while done < budget && !paused {
                let net = &mut *self.network.0.borrow_mut();
                let Some(id) = net.waiting.get_mut(address).and_then(VecDeque::pop_front) else { break };
                let Some(peer) = net.connections.get(id).map(|connection| connection.peer) else { continue };
                let stream = self.table.open(SimSocket { network: self.network.clone(), id, moved: false });
                done += 1;
                events.push(match address {
                    Address::Tcp(_) => StreamEvent::Opened { stream, listener: *listener, peer },
                    Address::Local(_) => StreamEvent::LocalOpened { stream, listener: *listener },
                });
            }
        }
        done
    }
}

impl Streams for SimStreams {
    type Detached = SimDetached;

    fn listen(&mut self, listener: ListenerId, mut address: SocketAddr) -> Result<SocketAddr, ListenError> {
        if address.port() == 0 {
            let mut net = self.network.0.borrow_mut();
            address.set_port(net.next_port);
            net.next_port += 1;
        }
        self.add_listener(listener, Address::Tcp(address))?;
        Ok(address)
    }

    fn listen_local(&mut self, listener: ListenerId, path: &Path) -> Result<(), ListenError> {
        self.add_listener(listener, Address::Local(path.to_owned()))
    }

    fn unlisten(&mut self, listener: ListenerId) {
        let Some(listener) = self.listeners.remove(&listener) else { return };
        let net = &mut *self.network.0.borrow_mut();
        for id in net.waiting.remove(&listener.address).into_iter().flatten() {
            if let Some(connection) = net.connections.get_mut(id) {
                connection.broken = true;
                connection.node_gone = true;
            }
            net.sweep(id);
        }
    }

    fn pause_listener(&mut self, listener: ListenerId) {
        if let Some(listener) = self.listeners.get_mut(&listener) {
            listener.paused = true;
        }
    }

    fn resume_listener(&mut self, listener: ListenerId) {
        if let Some(listener) = self.listeners.get_mut(&listener) {
            listener.paused = false;
        }
    }

    fn poll(&mut self, now: Now, budget: usize, events: &mut Vec<StreamEvent>) -> usize {
        self.announce_readiness();
        let done = self.table.poll(now, budget, events);
        done + self.accept(budget - done, events)
    }

    fn send(&mut self, stream: StreamId, bytes: BufferRef) {
        self.table.send(stream, bytes);
    }

    fn flush(&mut self, now: Now) {
        self.table.flush(now);
    }

    fn take_traffic(&mut self) -> Traffic {
        self.table.take_traffic()
    }

    fn queued(&self, stream: StreamId) -> usize {
        self.table.queued(stream)
    }

    fn retract(&mut self, stream: StreamId, keep: usize) -> usize {
        self.table.retract(stream, keep)
    }

    fn set_target(&mut self, stream: StreamId, buffer: Buffer, filled: usize) {
        self.table.set_target(stream, buffer, filled);
    }

    fn pause(&mut self, stream: StreamId) {
        self.table.pause(stream);
    }

    fn resume(&mut self, stream: StreamId) {
        self.table.resume(stream);
    }

    fn set_essential(&mut self, stream: StreamId) {
        if let Some(stream) = self.table.get_mut(stream) {
            stream.essential = true;
        }
    }

    fn close(&mut self, stream: StreamId, close: Close) {
        self.table.close(stream, close);
    }

    fn detach(&mut self, stream: StreamId) -> Option<SimDetached> {
        let Parts { mut socket, unsent, paused, essential } = self.table.detach(stream)?;
        socket.moved = true;
        Some(SimDetached { id: socket.id, unsent, paused, essential })
    }

    fn attach(&mut self, detached: SimDetached) -> Option<StreamId> {
        let SimDetached { id, unsent, paused, essential } = detached;
        let socket = SimSocket { network: self.network.clone(), id, moved: false };
        Some(self.table.attach(Parts { socket, unsent, paused, essential }))
    }

    fn len(&self) -> usize {
        self.table.len()
    }

    fn next_deadline(&self) -> Option<Monotonic> {
        self.table.next_deadline()
    }

    /// Time passes in the simulator alone.
    fn wait(&mut self, _now: Now, _until: Option<Monotonic>) {}

    /// Nobody sleeps in the simulator.
    fn waker(&self) -> Waker {
        Waker::new(|| {})
    }
}
