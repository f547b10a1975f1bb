//! Streams over the kernel's sockets: non-blocking, told of readiness by edges (mio: epoll, kqueue).

mod listener;
mod socket;

use crate::table::{Parts, Readiness, Table};
use crate::{Close, ListenError, StreamEvent, StreamId, Streams, Traffic, Waker};
use arena::{Arena, Buffer, BufferRef};
use base::{ListenerId, Monotonic, Now, SlotToken};
use listener::{Accepted, Listener};
use mio::{Events, Interest, Poll, Token};
use socket::KernelSocket;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Clients taken in one poll.
const ACCEPTS_PER_POLL: usize = 16;
/// Readiness taken from the system at once; what does not fit is told by the next call.
const EVENTS: usize = 512;

/// Tokens at the upper end are ours: no slot has such an index.
const WAKE: Token = Token(usize::MAX);
const LISTENERS: usize = usize::MAX - 1 - u16::MAX as usize;
const _: () = assert!(size_of::<usize>() == size_of::<u64>(), "a stream's token fills a word");

/// How sockets are set up. `None` leaves the system's default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketOptions {
    /// Clients that may wait to be accepted.
    pub backlog: i32,
    pub send_buffer: Option<usize>,
    pub receive_buffer: Option<usize>,
}

impl Default for SocketOptions {
    fn default() -> SocketOptions {
        SocketOptions { backlog: 1024, send_buffer: None, receive_buffer: None }
    }
}

pub struct KernelStreams {
    poll: Poll,
    ready: Events,
    table: Table<KernelSocket>,
    listeners: BTreeMap<ListenerId, Listener>,
    options: SocketOptions,
    waker: Waker,
    /// `wait` has just asked the system, or is about to: the next poll need not.
    asked: bool,
}

/// A socket on its way to another core.
#[derive(Debug)]
pub struct DetachedSocket(Parts<KernelSocket>);

impl KernelStreams {
    /// Received bytes lie in `arena`, which is the core's.
    pub fn new(arena: Arena, options: SocketOptions, now: Now) -> io::Result<KernelStreams> {
        let poll = Poll::new()?;
        let wake = Arc::new(mio::Waker::new(poll.registry(), WAKE)?);
        // An eventfd refuses nothing; where a platform's waker fails, the sleeper finds out at its next deadline.
        let waker = Waker::new(move || drop(wake.wake()));
        Ok(KernelStreams {
            poll,
            ready: Events::with_capacity(EVENTS),
            table: Table::new(arena, now.monotonic),
            listeners: BTreeMap::new(),
            options,
            waker,
            asked: false,
        })
    }

    /// Lets something else of the system end a sleep: the completions of a device, for instance. For the driver that
    /// puts both together, not for those who use streams. The descriptor must stay open as long as this.
    pub fn watch(&mut self, source: BorrowedFd<'_>) -> io::Result<()> {
        self.poll.registry().register(&mut mio::unix::SourceFd(&source.as_raw_fd()), WAKE, Interest::READABLE)
    }

    /// The caller is going to `wait` unless the next poll finds work: that poll need not ask the system, for `wait`
    /// returns at once where something is ready.
    pub fn wait_follows(&mut self) {
        self.asked = true;
    }

    /// Asks the system what is ready, waiting for at most `timeout`.
    fn collect(&mut self, timeout: Option<Duration>) {
        if let Err(error) = self.poll.poll(&mut self.ready, timeout) {
            // A signal ends a wait like any event does.
            assert!(error.kind() == io::ErrorKind::Interrupted, "asking for readiness failed: {error}");
            return;
        }
        for event in &self.ready {
            let token = event.token();
            if token == WAKE {
                continue;
            }
            if token.0 >= LISTENERS {
                let id = ListenerId((token.0 - LISTENERS) as u16);
                if let Some(listener) = self.listeners.get_mut(&id) {
                    listener.ready = true;
                }
                continue;
            }
            let readiness = Readiness {
                readable: event.is_readable(),
                writable: event.is_writable(),
                peer_finished: event.is_read_closed(),
                over: event.is_error() || event.is_write_closed(),
            };
            self.table.on_ready(StreamId(SlotToken::from_bits(token.0 as u64)), readiness);
        }
    }

    fn register(&mut self, stream: StreamId) -> io::Result<()> {
        let token = Token(stream.0.to_bits() as usize);
        let Some(open) = self.table.get_mut(stream) else { return Ok(()) };
        open.socket.register(self.poll.registry(), token)
    }

    fn accept(&mut self, now: Now, budget: usize, events: &mut Vec<StreamEvent>) -> usize {
        let ids: Vec<ListenerId> = self.listeners.keys().copied().collect();
        let mut done = 0;
        for id in ids {
            while done < budget.min(ACCEPTS_PER_POLL) {
                let Some(accepted) = self.listeners.get_mut(&id).and_then(|l| l.accept(now, &self.options)) else {
                    break;
                };
                done += 1;
                events.push(match accepted {
                    Accepted::Tcp(socket, peer) => match self.take_in(socket) {
                        Ok(stream) => StreamEvent::Opened { stream, listener: id, peer },
                        Err(error) => accept_failed(id, &error),
                    },
                    Accepted::Local(socket) => match self.take_in(socket) {
                        Ok(stream) => StreamEvent::LocalOpened { stream, listener: id },
                        Err(error) => accept_failed(id, &error),
                    },
                    Accepted::Failed(error) => accept_failed(id, &error),
                });
            }
        }
        done
    }

    fn take_in(&mut self, socket: KernelSocket) -> io::Result<StreamId> {
        let stream = self.table.open(socket);
        self.register(stream).inspect_err(|_| drop(self.table.detach(stream)))?;
        Ok(stream)
    }

    fn add_listener(&mut self, id: ListenerId, mut listener: Listener) -> Result<(), ListenError> {
        let token = Token(LISTENERS + usize::from(id.0));
        listener.register(self.poll.registry(), token).map_err(ListenError::System)?;
        self.listeners.insert(id, listener);
        Ok(())
    }
}

fn accept_failed(listener: ListenerId, error: &io::Error) -> StreamEvent {
    StreamEvent::AcceptFailed { listener, error: error.kind(), code: error.raw_os_error() }
}

impl Streams for KernelStreams {
    type Detached = DetachedSocket;

    fn listen(&mut self, id: ListenerId, address: SocketAddr) -> Result<SocketAddr, ListenError> {
        if self.listeners.contains_key(&id) {
            return Err(ListenError::Exists);
        }
        let (listener, address) = Listener::bind(address, &self.options)?;
        self.add_listener(id, listener)?;
        Ok(address)
    }

    fn listen_local(&mut self, id: ListenerId, path: &Path) -> Result<(), ListenError> {
        if self.listeners.contains_key(&id) {
            return Err(ListenError::Exists);
        }
        let listener = Listener::bind_local(path)?;
        self.add_listener(id, listener)
    }

    fn unlisten(&mut self, listener: ListenerId) {
        self.listeners.remove(&listener);
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
        if !std::mem::take(&mut self.asked) {
            self.collect(Some(Duration::ZERO));
        }
        let done = self.table.poll(now, budget, events);
        // Last, so that nobody reads a new stream before its owner has decided where it lives.
        done + self.accept(now, budget - done, events)
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

    fn detach(&mut self, stream: StreamId) -> Option<DetachedSocket> {
        let mut parts = self.table.detach(stream)?;
        // A socket that cannot be deregistered is still known to this core's poll and would wake it forever.
        parts.socket.deregister(self.poll.registry()).expect("an open socket that was registered can be deregistered");
        Some(DetachedSocket(parts))
    }

    fn attach(&mut self, detached: DetachedSocket) -> Option<StreamId> {
        let stream = self.table.attach(detached.0);
        match self.register(stream) {
            Ok(()) => Some(stream),
            Err(_) => {
                drop(self.table.detach(stream));
                None
            }
        }
    }

    fn len(&self) -> usize {
        self.table.len()
    }

    fn next_deadline(&self) -> Option<Monotonic> {
        let listeners = self.listeners.values().filter_map(Listener::next_deadline);
        self.table.next_deadline().into_iter().chain(listeners).min()
    }

    fn wait(&mut self, now: Now, until: Option<Monotonic>) {
        let until = until.into_iter().chain(self.next_deadline()).min();
        self.collect(until.map(|until| until.since(now.monotonic)));
        self.asked = true;
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }
}
