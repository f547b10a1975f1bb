//! Requests that the control plane answers. With the link down a request that was not yet sent waits for it, within a
//! time and a budget; one that was sent is never replayed: the client is told to retry, or the connection closes
//! (design 04, when the control plane is down).

use crate::connection::{EndReason, Request};
use crate::limits::{PARKED_BYTES_MAX, PARKED_TIME_MAX};
use crate::replies::{Piece, ReplyNumber};
use crate::sessions::{Answered, Sessions, Timer, Turn};
use base::{CoreId, Monotonic, TimerToken};
use bytes::Bytes;
use link::{FORWARDED_REQUEST_BYTES_MAX, Forward, Up};
use net::{StreamId, Streams};
use std::collections::{BTreeMap, VecDeque};
use wire::ApiKey;

#[derive(Debug)]
struct Sent {
    stream: StreamId,
    reply: ReplyNumber,
    api: ApiKey,
    version: i16,
    correlation_id: i32,
    body: Bytes,
    began: Monotonic,
    /// The beginning of an answer that takes several messages.
    parts: Vec<Bytes>,
}

#[derive(Debug)]
struct Parked {
    message: Box<Forward>,
    timer: TimerToken,
}

#[derive(Debug)]
pub struct Forwards {
    /// Ids carry the core, so that core 0 can hand answers back.
    next: u64,
    link_up: bool,
    waiting: BTreeMap<u64, Sent>,
    parked: BTreeMap<u64, Parked>,
    parked_bytes: usize,
}

/// The core that a forwarded request came from.
pub fn core_of_forward(id: u64) -> CoreId {
    CoreId((id >> 48) as u16)
}

impl Forwards {
    pub fn new(core: CoreId) -> Forwards {
        Forwards {
            next: u64::from(core.0) << 48,
            link_up: false,
            waiting: BTreeMap::new(),
            parked: BTreeMap::new(),
            parked_bytes: 0,
        }
    }

    /// Forgets what a closed connection waited for; true where the control plane may know the connection.
    pub fn on_connection_closed(&mut self, stream: StreamId) -> bool {
        let ids: Vec<u64> = self.waiting.iter().filter(|(_, sent)| sent.stream == stream).map(|(id, _)| *id).collect();
        for id in &ids {
            self.waiting.remove(id);
            if let Some(parked) = self.parked.remove(id) {
                self.parked_bytes -= parked.message.body.len();
            }
        }
        self.link_up && !ids.is_empty()
    }
}

impl Sessions {
    pub(crate) fn forward<S: Streams>(
        &mut self,
        turn: &mut Turn<'_, S>,
        stream: StreamId,
        reply: ReplyNumber,
        request: Request,
    ) {
        let body = Bytes::copy_from_slice(&request.frame[request.body..]);
        if body.len() > FORWARDED_REQUEST_BYTES_MAX {
            let what = format!("{} of {} bytes: more than the control plane takes", request.api.name(), body.len());
            return self.end(turn, stream, EndReason::Refused(what));
        }
        let connection = self.connections.get(&stream).expect("requests come from connections");
        self.forwards.next += 1;
        let id = self.forwards.next;
        let message = Box::new(Forward {
            id,
            connection: connection.id,
            listener: connection.listener,
            listener_name: self.facts.listeners[usize::from(connection.listener.0)].clone(),
            principal: "User:ANONYMOUS".into(),
            client_host: format!("/{}", connection.peer_host()),
            api_key: request.api.code(),
            api_version: request.version,
            correlation_id: request.correlation_id,
            client_id: request.client_id,
            client_software_name: connection.software_name.clone(),
            client_software_version: connection.software_version.clone(),
            body: body.clone(),
        });
        let sent = Sent {
            stream,
            reply,
            api: request.api,
            version: request.version,
            correlation_id: request.correlation_id,
            body,
            began: turn.now.monotonic,
            parts: Vec::new(),
        };
        if self.forwards.link_up {
            self.forwards.waiting.insert(id, sent);
            self.out.up.push(Up::Forward(message));
        } else if self.forwards.parked_bytes + message.body.len() > PARKED_BYTES_MAX {
            self.forwards.waiting.insert(id, sent);
            self.refuse(turn, id);
        } else {
            self.forwards.parked_bytes += message.body.len();
            self.forwards.waiting.insert(id, sent);
            let timer = self.wheel.insert(turn.now.monotonic + PARKED_TIME_MAX, Timer::Parked(id));
            self.forwards.parked.insert(id, Parked { message, timer });
        }
    }

    pub fn on_link_up(&mut self) {
        self.forwards.link_up = true;
        for (_, parked) in std::mem::take(&mut self.forwards.parked) {
            self.wheel.cancel(parked.timer);
            self.forwards.parked_bytes -= parked.message.body.len();
            self.out.up.push(Up::Forward(parked.message));
        }
    }

    /// What was sent may have taken effect or not: it is never sent again.
    pub fn on_link_down<S: Streams>(&mut self, turn: &mut Turn<'_, S>) {
        self.forwards.link_up = false;
        let ids: Vec<u64> = self.forwards.waiting.keys().copied().collect();
        for id in ids {
            self.refuse(turn, id);
        }
    }

    pub(crate) fn on_parked_deadline<S: Streams>(&mut self, turn: &mut Turn<'_, S>, id: u64) {
        if let Some(parked) = self.forwards.parked.remove(&id) {
            self.forwards.parked_bytes -= parked.message.body.len();
            self.refuse(turn, id);
        }
    }

    /// Tells the client to retry, where its API has a way to say so; else closes.
    fn refuse<S: Streams>(&mut self, turn: &mut Turn<'_, S>, id: u64) {
        let Some(sent) = self.forwards.waiting.remove(&id) else { return };
        match crate::unavailable::answer(sent.api, sent.version, sent.correlation_id, &sent.body) {
            Some(bytes) => {
                self.reply(turn, sent.stream, sent.reply, VecDeque::from([Piece::Bytes(bytes)]));
                self.advance(turn, sent.stream);
            }
            None => self.end(turn, sent.stream, EndReason::ControlPlaneAway),
        }
    }

    /// A part of an answer; the last comes by `on_forward_answer`.
    pub fn on_forward_part(&mut self, id: u64, bytes: Bytes) {
        if let Some(sent) = self.forwards.waiting.get_mut(&id) {
            sent.parts.push(bytes);
        }
    }

    /// The control plane's answer; `None` closes the connection.
    pub fn on_forward_answer<S: Streams>(&mut self, turn: &mut Turn<'_, S>, id: u64, response: Option<Bytes>) {
        let Some(sent) = self.forwards.waiting.remove(&id) else { return };
        let took = turn.now.monotonic.since(sent.began);
        self.out.answered.push(Answered { api: sent.api, took, failed: false });
        match response {
            Some(response) => {
                let mut parts = sent.parts;
                parts.push(response);
                let bytes = crate::encode::framed(&parts);
                self.reply(turn, sent.stream, sent.reply, VecDeque::from([Piece::Bytes(bytes)]));
                self.advance(turn, sent.stream);
            }
            None => {
                let what = format!("{} could not be read by the control plane", sent.api.name());
                self.end(turn, sent.stream, EndReason::Malformed(what));
            }
        }
    }
}
