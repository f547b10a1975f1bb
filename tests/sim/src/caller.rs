//! A client's end of a connection: frames out, answers in, and the order of answers checked.

use crate::context::Context;
use base::Monotonic;
use bytes::{Bytes, BytesMut};
use net::sim::{PeerState, SimPeer};
use std::collections::VecDeque;
use std::time::Duration;
use wire::{ApiKey, Decoder, Request, ResponseKind, encode_request};

/// A client gives a connection up when its oldest request is older than this.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(40);

#[derive(Debug)]
struct Asked {
    id: i32,
    api: ApiKey,
    version: i16,
    at: Monotonic,
}

/// What a poll finds.
#[derive(Debug)]
pub enum Arrival {
    Answer(i32, Box<ResponseKind>),
    /// The connection is over; whatever was asked is unanswered.
    Closed,
}

/// How fast a client reads.
#[derive(Clone, Copy, Debug)]
pub enum Pace {
    Prompt,
    /// At most so many bytes at a time.
    Slow(usize),
}

pub struct Caller {
    name: String,
    peer: Option<SimPeer>,
    inbound: Vec<u8>,
    asked: VecDeque<Asked>,
    next_id: i32,
    pub pace: Pace,
    retry_at: Monotonic,
}

impl std::fmt::Debug for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.peer.as_ref().map(SimPeer::state);
        write!(f, "{} ({state:?}, {} bytes in, {:?})", self.name, self.inbound.len(), self.asked.front())
    }
}

impl Caller {
    pub fn new(name: String) -> Caller {
        Caller {
            name,
            peer: None,
            inbound: Vec::new(),
            asked: VecDeque::new(),
            next_id: 0,
            pace: Pace::Prompt,
            retry_at: Monotonic::ZERO,
        }
    }

    /// Connected, if need be by a new connection; true on the turn in which it was made too.
    pub fn connect(&mut self, context: &mut Context<'_>) -> bool {
        if self.peer.is_some() {
            return true;
        }
        if context.now.monotonic < self.retry_at {
            return false;
        }
        let pause = Duration::from_millis(1 + context.random.below(50));
        self.retry_at = context.now.monotonic + pause;
        let from = std::net::SocketAddr::from(([10, 0, 0, 1], 1024 + context.random.below(60_000) as u16));
        self.peer = context.network.connect(crate::node::address(), from);
        if self.peer.is_some() {
            context.model.stats.reconnects += 1;
        }
        self.peer.is_some()
    }

    pub fn is_connected(&self) -> bool {
        self.peer.is_some()
    }

    pub fn waiting(&self) -> usize {
        self.asked.len()
    }

    /// Sends a request; its number comes back with the answer.
    pub fn ask<R: Request>(&mut self, now: Monotonic, version: i16, body: &R) -> i32 {
        self.write(now, R::API, version, true, |out, id| encode_request(out, version, id, Some("sim"), body))
    }

    /// Sends a request that has no answer.
    pub fn tell<R: Request>(&mut self, now: Monotonic, version: i16, body: &R) {
        self.write(now, R::API, version, false, |out, id| encode_request(out, version, id, Some("sim"), body));
    }

    fn write(
        &mut self,
        at: Monotonic,
        api: ApiKey,
        version: i16,
        answered: bool,
        encode: impl FnOnce(&mut BytesMut, i32) -> Result<(), wire::EncodeError>,
    ) -> i32 {
        self.next_id += 1;
        let mut out = BytesMut::new();
        encode(&mut out, self.next_id).expect("a request that the version can carry");
        if answered {
            self.asked.push_back(Asked { id: self.next_id, api, version, at });
        }
        self.raw(&out);
        self.next_id
    }

    /// Any bytes.
    pub fn raw(&mut self, bytes: &[u8]) {
        if let Some(peer) = &mut self.peer {
            peer.write(bytes);
        }
    }

    /// Takes what has come. The answers are in the order of the questions.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Vec<Arrival> {
        let Some(peer) = &mut self.peer else { return Vec::new() };
        let state = peer.state();
        let bytes = match self.pace {
            Pace::Prompt => peer.read(),
            Pace::Slow(most) => peer.read_some(context.random.below(most as u64 + 1) as usize),
        };
        context.trace.bytes(&bytes);
        self.inbound.extend_from_slice(&bytes);
        let mut arrivals = Vec::new();
        while let Some(answer) = self.next_answer() {
            arrivals.push(answer);
        }
        let oldest = self.asked.front().map(|asked| asked.at);
        let late = oldest.is_some_and(|at| context.now.monotonic.since(at) > REQUEST_TIME_MAX);
        if late && matches!(self.pace, Pace::Prompt) && context.calm_for(REQUEST_TIME_MAX) {
            let late = format!("{}: no answer to {:?} for {REQUEST_TIME_MAX:?}", self.name, self.asked.front());
            context.model.late.get_or_insert(late);
        }
        let over = match state {
            PeerState::Open => false,
            // What was sent before the end can still be read.
            PeerState::Finished => bytes.is_empty(),
            PeerState::Broken => true,
        };
        if over || late {
            self.close();
            arrivals.push(Arrival::Closed);
        }
        arrivals
    }

    fn next_answer(&mut self) -> Option<Arrival> {
        let size = i32::from_be_bytes(*self.inbound.first_chunk::<4>()?);
        let size = usize::try_from(size).unwrap_or_else(|_| panic!("{}: an answer of {size} bytes", self.name));
        let frame = Bytes::copy_from_slice(self.inbound.get(4..4 + size)?);
        self.inbound.drain(..4 + size);
        let asked = self.asked.pop_front().unwrap_or_else(|| panic!("{}: an answer nobody asked for", self.name));
        let mut d = Decoder::shared(&frame);
        let answer = wire::read_response_header(&mut d, asked.api, asked.version).and_then(|id| {
            assert_eq!(id, asked.id, "{}: answers leave in the order of the requests", self.name);
            let answer = ResponseKind::decode(asked.api, asked.version, &mut d)?;
            d.finish()?;
            Ok(answer)
        });
        let answer = answer.unwrap_or_else(|error| panic!("{}: {asked:?} has a bad answer: {error}", self.name));
        Some(Arrival::Answer(asked.id, Box::new(answer)))
    }

    /// Ends the connection as a process's end does.
    pub fn close(&mut self) {
        self.peer = None;
        self.inbound.clear();
        self.asked.clear();
    }

    /// Ends it rudely.
    pub fn reset(&mut self) {
        if let Some(peer) = &mut self.peer {
            peer.reset();
        }
        self.close();
    }
}
