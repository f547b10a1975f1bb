//! One stream: its queue, its target, and what is known of its socket.

use crate::CloseReason;
use arena::{Buffer, BufferRef};
use base::TimerToken;
use base::limits::GATHER_MAX;
use std::collections::VecDeque;
use std::io::{self, IoSlice};

/// What the table needs of a socket. Both calls return at once; `WouldBlock` means that readiness will be announced.
pub(crate) trait Socket {
    /// Zero bytes: the peer has finished.
    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize>;
    fn send(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize>;
    /// No more bytes follow; the peer is told.
    fn finish_sending(&mut self);
}

/// How far a stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Open,
    /// Closed by us; what is queued still leaves, until the timer ends it.
    Sending(TimerToken),
    /// All is sent. The socket is kept and what comes is thrown away until the peer has finished too: closing a socket
    /// with unread bytes would reset the connection, and the reset could destroy our last answer at the peer (RFC 9112,
    /// section 9.6).
    Lingering(TimerToken),
}

impl Phase {
    pub(crate) fn timer(self) -> Option<TimerToken> {
        match self {
            Phase::Open => None,
            Phase::Sending(timer) | Phase::Lingering(timer) => Some(timer),
        }
    }
}

/// How much of a turn one stream gets when it sends.
const SEND_BYTES_PER_CALL: usize = 512 << 10;
/// An emptied queue keeps this much room, so that an idle stream holds little.
const QUEUE_KEPT: usize = 16;

#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) buffer: Buffer,
    pub(crate) filled: usize,
}

#[derive(Debug)]
pub(crate) struct Stream<S> {
    pub(crate) socket: S,
    pub(crate) phase: Phase,
    /// The socket may have bytes, as far as we know.
    pub(crate) readable: bool,
    /// The system said that the peer has finished: a short read is then not the last.
    pub(crate) finish_announced: bool,
    pub(crate) peer_finished: bool,
    pub(crate) writable: bool,
    pub(crate) paused: bool,
    pub(crate) essential: bool,
    pub(crate) target: Option<Target>,
    queue: VecDeque<BufferRef>,
    /// Bytes of the first piece that are sent.
    first_sent: usize,
    pub(crate) queued: usize,
    /// Whether the stream stands in the table's list of those to receive from, or to send to.
    pub(crate) in_receiving: bool,
    pub(crate) in_sending: bool,
    /// A flush left bytes: the next progress is an event.
    pub(crate) left_behind: bool,
}

/// How sending ended.
#[derive(Debug)]
pub(crate) enum Sent {
    All,
    /// The socket is full.
    Blocked,
    /// The stream had its share of this call.
    ShareUsed,
    Failed(CloseReason),
}

impl<S: Socket> Stream<S> {
    pub(crate) fn new(socket: S) -> Stream<S> {
        Stream {
            socket,
            phase: Phase::Open,
            readable: false,
            finish_announced: false,
            peer_finished: false,
            writable: true,
            paused: false,
            essential: false,
            target: None,
            queue: VecDeque::new(),
            first_sent: 0,
            queued: 0,
            in_receiving: false,
            in_sending: false,
            left_behind: false,
        }
    }

    pub(crate) fn push(&mut self, bytes: BufferRef) {
        if !bytes.is_empty() {
            self.queued += bytes.len();
            self.queue.push_back(bytes);
        }
    }

    /// Keeps a copy of the first unsent bytes and forgets the others; returns how many those are.
    pub(crate) fn retract(&mut self, keep: usize) -> usize {
        let (kept, mut copy) = (self.queued.min(keep), Vec::with_capacity(self.queued.min(keep)));
        for piece in &self.queue {
            let skip = std::mem::take(&mut self.first_sent);
            let take = (piece.len() - skip).min(kept - copy.len());
            copy.extend_from_slice(&piece[skip..skip + take]);
        }
        self.queue.clear();
        let forgotten = std::mem::take(&mut self.queued) - kept;
        self.push(BufferRef::from_vec(copy));
        forgotten
    }

    /// Sends from the queue until it is empty, the socket is full, or the share is used.
    pub(crate) fn send_queued(&mut self) -> Sent {
        let mut left = SEND_BYTES_PER_CALL;
        while self.queued > 0 {
            if left == 0 {
                return Sent::ShareUsed;
            }
            match self.send_once() {
                Ok(0) => return Sent::Failed(CloseReason::Failed(None)),
                Ok(sent) => {
                    self.remove_sent(sent);
                    left = left.saturating_sub(sent);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.writable = false;
                    return Sent::Blocked;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Sent::Failed(reason(&error)),
            }
        }
        Sent::All
    }

    fn send_once(&mut self) -> io::Result<usize> {
        let mut pieces = [IoSlice::new(&[]); GATHER_MAX];
        let mut count = 0;
        for (piece, bytes) in pieces.iter_mut().zip(&self.queue) {
            let skip = if count == 0 { self.first_sent } else { 0 };
            *piece = IoSlice::new(&bytes[skip..]);
            count += 1;
        }
        self.socket.send(&pieces[..count])
    }

    fn remove_sent(&mut self, mut sent: usize) {
        assert!(sent <= self.queued, "a socket takes no more than it was given");
        self.queued -= sent;
        while let Some(first) = self.queue.front() {
            let left = first.len() - self.first_sent;
            if sent < left {
                self.first_sent += sent;
                return;
            }
            sent -= left;
            self.first_sent = 0;
            self.queue.pop_front();
        }
        if self.queue.capacity() > QUEUE_KEPT {
            self.queue.shrink_to(QUEUE_KEPT);
        }
    }

    /// The stream's parts for its next core: the socket, and what is left to send.
    pub(crate) fn into_parts(mut self) -> (S, Vec<BufferRef>) {
        if let Some(first) = self.queue.front_mut() {
            *first = first.slice(self.first_sent..first.len());
        }
        (self.socket, self.queue.into())
    }
}

/// Why a stream ends after this error.
pub(crate) fn reason(error: &io::Error) -> CloseReason {
    match error.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionAborted => {
            CloseReason::PeerReset
        }
        io::ErrorKind::TimedOut => CloseReason::TimedOut,
        _ => CloseReason::Failed(error.raw_os_error()),
    }
}
