//! Byte streams, polled and with owned buffers: what a session sees of the network.
//!
//! `dataplane/core` drives one `Streams` per core. It knows no Kafka: no frame, no request. `kernel_socket` stands on
//! non-blocking sockets, `sim` on a simulated network; a user-space TCP will stand beside them, and TLS between any of
//! them and the session, as a `Streams` around a `Streams`. Invariants: no signature names a file descriptor; an idle
//! stream holds no buffer; a stream that was opened or attached ends in exactly one `Closed`, or is detached; a stream's
//! bytes arrive and leave in order, whatever is paused, moved or cut short.
//! Both implementations share `table`, so that the simulator runs the code of production. Tests: `tests/`.
#![forbid(unsafe_code)]

pub mod kernel_socket;
pub mod sim;
mod stream;
mod table;

use arena::{Buffer, BufferRef};
use base::{ListenerId, Monotonic, Now, SlotToken};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

/// A stream of this core; another core gives the same connection another id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(SlotToken);

impl StreamId {
    /// Below the largest number of streams that were ever open at once: an index for what others keep of a stream.
    pub fn index(self) -> usize {
        self.0.index()
    }
}

/// What happened, in the order in which it happened to each stream.
#[derive(Debug)]
pub enum StreamEvent {
    /// A client came. It has sent nothing that was read yet: it may be refused, or detached to another core, unread.
    Opened { stream: StreamId, listener: ListenerId, peer: SocketAddr },
    /// A process of this host came, on a listener with a path.
    LocalOpened { stream: StreamId, listener: ListenerId },
    /// Bytes, as many as came; never empty.
    Received { stream: StreamId, bytes: BufferRef },
    /// The buffer of `set_target` is full.
    Filled { stream: StreamId, buffer: Buffer },
    /// The peer will send no more, and may still read. Whoever owns the stream answers what it owes and closes it.
    PeerFinished { stream: StreamId },
    /// A stream that `flush` left with unsent bytes has sent some of them; `queued` are left.
    Writable { stream: StreamId, queued: usize },
    /// The stream is no more; its id finds nothing.
    Closed { stream: StreamId, reason: CloseReason },
    /// A client could not be taken; the listener tries again after a pause.
    AcceptFailed { listener: ListenerId, error: io::ErrorKind, code: Option<i32> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// By `close`.
    Local,
    /// The peer broke the connection off, or no longer reads.
    PeerReset,
    /// The peer's host no longer answers, or did not take the last bytes before the stream's end in time.
    TimedOut,
    /// Something else, with the system's number where there is one.
    Failed(Option<i32>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// What is queued is sent first, for a limited time; nothing more is received.
    AfterSending,
    Now,
}

#[derive(Debug)]
pub enum ListenError {
    /// Another listener of this core has that id.
    Exists,
    /// The address cannot be used: it is taken, not of this host, or not allowed.
    Address(io::Error),
    System(io::Error),
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenError::Exists => f.write_str("the listener exists already"),
            ListenError::Address(error) => write!(f, "the address cannot be listened on: {error}"),
            ListenError::System(error) => write!(f, "the system refused a listener: {error}"),
        }
    }
}

impl std::error::Error for ListenError {}

/// Ends a sleep in `Streams::wait`, from any thread; called before the sleep, it ends the next one.
#[derive(Clone)]
pub struct Waker(Arc<dyn Fn() + Send + Sync>);

impl Waker {
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Waker {
        Waker(Arc::new(wake))
    }

    pub fn wake(&self) {
        (self.0)();
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waker")
    }
}

/// Bytes that sockets gave and took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub received: u64,
    pub sent: u64,
}

/// The streams of one core. A method that is given the id of a stream that has ended does nothing.
pub trait Streams {
    /// A stream on its way to another core's `Streams` of the same kind.
    type Detached: Send;

    /// Accepts clients on the address; port 0 lets the system choose. Returns the address as it is.
    fn listen(&mut self, listener: ListenerId, address: SocketAddr) -> Result<SocketAddr, ListenError>;

    /// Accepts processes of this host that connect to the path. A socket that a dead process left there is replaced.
    fn listen_local(&mut self, listener: ListenerId, path: &Path) -> Result<(), ListenError>;

    /// Ends the listener; clients that it accepted stay.
    fn unlisten(&mut self, listener: ListenerId);

    /// Lets clients wait in the system's queue until `resume_listener`: the way to keep limits of numbers and rates.
    fn pause_listener(&mut self, listener: ListenerId);

    fn resume_listener(&mut self, listener: ListenerId);

    /// Receives, sends what was left, accepts: at most `budget` operations of at most 256 KiB each. Returns the
    /// operations done. New streams are accepted last and never read in the same call.
    fn poll(&mut self, now: Now, budget: usize, events: &mut Vec<StreamEvent>) -> usize;

    /// Queues bytes behind those queued before. Nothing is sent before `flush`.
    fn send(&mut self, stream: StreamId, bytes: BufferRef);

    /// Sends what `send` queued since the last flush, gathered, as far as sockets take it.
    fn flush(&mut self, now: Now);

    /// What went over the streams of clients (those that are not essential) since it was last asked.
    fn take_traffic(&mut self) -> Traffic;

    /// Bytes queued and not yet taken by the socket.
    fn queued(&self, stream: StreamId) -> usize;

    /// Keeps of the bytes queued and not yet taken by the socket the first `keep`, as a copy, and forgets the others, which
    /// the caller sends again later: so a peer that does not read keeps no buffer. Returns how many were forgotten.
    fn retract(&mut self, stream: StreamId, keep: usize) -> usize;

    /// The stream's next bytes go straight into `buffer` from `filled` on; when it is full, `Filled` gives it back and
    /// receiving goes on as before. A stream that ends drops it.
    fn set_target(&mut self, stream: StreamId, buffer: Buffer, filled: usize);

    /// Reads nothing from the stream until `resume`; bytes that were read before may already be among the events.
    fn pause(&mut self, stream: StreamId);

    fn resume(&mut self, stream: StreamId);

    /// A stream that is read also when receive memory is short (replication, the link); others then wait.
    fn set_essential(&mut self, stream: StreamId);

    fn close(&mut self, stream: StreamId, close: Close);

    /// Takes a stream off this core at a boundary: none where it is closing, finished by its peer, or has a target.
    /// Bytes not yet received or sent go with it; whether it is paused or essential does too.
    fn detach(&mut self, stream: StreamId) -> Option<Self::Detached>;

    /// Puts a detached stream on this core; none where the system refuses, and then the connection is over.
    fn attach(&mut self, detached: Self::Detached) -> Option<StreamId>;

    /// Streams open or closing.
    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// When `poll` has something to do though nothing arrives: not later than now where work was left over.
    fn next_deadline(&self) -> Option<Monotonic>;

    /// Sleeps in the system until something arrives, the waker is called, `until` has come, or `next_deadline`.
    fn wait(&mut self, now: Now, until: Option<Monotonic>);

    fn waker(&self) -> Waker;
}
