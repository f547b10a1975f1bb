//! What a core keeps of one connection.

use crate::assemble::Assembler;
use crate::replies::Replies;
use crate::sessions::Sessions;
use arena::BufferRef;
use base::{ConnectionId, ListenerId, Monotonic, TimerToken};
use net::StreamId;
use std::net::SocketAddr;
use wire::ApiKey;

/// A request whose header was read; `body` is where the body begins in the frame.
#[derive(Clone, Debug)]
pub struct Request {
    pub api: ApiKey,
    pub version: i16,
    pub correlation_id: i32,
    pub client_id: Option<String>,
    pub frame: BufferRef,
    pub body: usize,
}

/// Why a connection ends from our side; logged once, with the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndReason {
    BadFrame(String),
    UnsupportedRequest(String),
    Malformed(String),
    TooSlow,
    Idle,
    /// A Produce with acks=0 failed: closing is the only way to tell (as Kafka does).
    SilentProduceFailed,
    /// Stored bytes could not be read while their response was being sent.
    ReadFailed,
    ControlPlaneAway,
    Refused(String),
}

#[derive(Debug)]
pub struct Connection {
    pub id: ConnectionId,
    pub listener: ListenerId,
    /// `None` for a process of this host on a path.
    pub peer: Option<SocketAddr>,
    pub assembler: Assembler,
    pub replies: Replies,
    /// A whole request that must wait for the answers before it.
    pub held: Option<Request>,
    /// Bytes of it that lie outside the receive memory.
    pub held_outside: usize,
    pub paused: bool,
    pub peer_finished: bool,
    /// Nothing more is read or begun; the stream closes when what is queued has been sent.
    pub ending: bool,
    pub software_name: String,
    pub software_version: String,
    pub last_active: Monotonic,
    /// Watches for idleness, and for a frame that takes too long.
    pub timer: Option<TimerToken>,
    pub frame_since: Option<Monotonic>,
    /// Stands in the list of those that go on when the network was flushed.
    pub is_flushing: bool,
}

impl Connection {
    pub fn peer_host(&self) -> String {
        self.peer.map_or_else(|| "127.0.0.1".into(), |peer| peer.ip().to_string())
    }

    /// Whether the request may be evaluated now (design 01, order on a connection).
    pub fn may_begin(&self, api: ApiKey) -> bool {
        match api {
            ApiKey::Produce => {
                self.replies.produces() == self.replies.pending()
                    && self.replies.pending() < crate::limits::PIPELINED_PRODUCES_MAX
            }
            _ => self.replies.pending() == 0,
        }
    }
}

impl Sessions {
    /// Where a client that is served came in, and from where.
    pub fn client_of(&self, stream: StreamId) -> Option<(ListenerId, Option<SocketAddr>)> {
        self.connections.get(&stream).map(|connection| (connection.listener, connection.peer))
    }
}
