//! Requests that the control plane answers. With the link down a request that was not yet sent waits for it, within a
//! time and a budget; one that was sent is never replayed: the client is told to retry, or the connection closes
//! (design 04, when the control plane is down).

use crate::connection::{EndReason, Request};
use crate::limits::{PARKED_BYTES_MAX, PARKED_TIME_MAX};
use crate::outputs::Answered;
use crate::replies::{Piece, ReplyNumber};
use crate::route::{Route, route};
use crate::sessions::{Sessions, Timer, Turn};
use base::{CoreId, Monotonic, TimerToken};
use bytes::Bytes;
use link::{FORWARD_CREDIT_BYTES, FORWARD_OVERHEAD_BYTES, FORWARDED_REQUEST_BYTES_MAX, Forward, Up};
use net::{StreamId, Streams};
use std::collections::{BTreeMap, HashMap, VecDeque};
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
    /// What each request under way takes of the credit, until its answer is here, whoever still waits for it.
    charges: HashMap<u64, usize>,
    charged: usize,
    credit: usize,
    /// Connections whose next request waits for credit, first come first served.
    wanting: VecDeque<StreamId>,
    /// The first of them is being called on.
    is_spending: bool,
    /// Requests that had to wait for it.
    waited: u64,
}

/// The core that a forwarded request came from.
pub fn core_of_forward(id: u64) -> CoreId {
    CoreId((id >> 48) as u16)
}

impl Forwards {
    /// One core's end; the node's credit is shared out, and is enough for the largest request.
    pub fn new(core: CoreId, cores: u16) -> Forwards {
        let share = FORWARD_CREDIT_BYTES / usize::from(cores);
        Forwards {
            next: u64::from(core.0) << 48,
            link_up: false,
            waiting: BTreeMap::new(),
            parked: BTreeMap::new(),
            parked_bytes: 0,
            charges: HashMap::new(),
            charged: 0,
            credit: share.max(FORWARDED_REQUEST_BYTES_MAX + FORWARD_OVERHEAD_BYTES),
            wanting: VecDeque::new(),
            is_spending: false,
            waited: 0,
        }
    }

    /// Whether a request of this size may begin: always where none is under way.
    fn has_credit(&self, bytes: usize) -> bool {
        !self.link_up || self.charged == 0 || self.charged + bytes + FORWARD_OVERHEAD_BYTES <= self.credit
    }

    /// The connection's next request waits for credit.
    pub fn wants_credit(&self, stream: StreamId) -> bool {
        self.wanting.contains(&stream)
    }

    fn charge(&mut self, id: u64, bytes: usize) {
        let charge = bytes + FORWARD_OVERHEAD_BYTES;
        self.charged += charge;
        self.charges.insert(id, charge);
    }

    /// The request's answer is here.
    fn discharge(&mut self, id: u64) {
        self.charged -= self.charges.remove(&id).unwrap_or(0);
    }

    /// Bytes under way, and requests that had to wait for credit so far.
    pub fn credit_facts(&self) -> (usize, u64) {
        (self.charged, self.waited)
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
    /// Whether the request may begin as far as the link's credit goes; else its connection is called on when it may.
    pub(crate) fn admit_forward(&mut self, stream: StreamId, request: &Request) -> bool {
        let goes_up = request.api == ApiKey::FindCoordinator || route(request.api) == Some(Route::ControlPlane);
        let comes_next = self.forwards.is_spending || self.forwards.wanting.is_empty();
        if !goes_up || comes_next && self.forwards.has_credit(request.frame.len()) {
            return true;
        }
        if !self.forwards.wanting.contains(&stream) {
            self.forwards.wanting.push_back(stream);
            self.forwards.waited += 1;
        }
        false
    }

    /// Credit came back: requests that waited for it begin.
    fn spend_credit<S: Streams>(&mut self, turn: &mut Turn<'_, S>) {
        while let Some(id) = self.forwards.parked.keys().next().copied()
            && self.forwards.link_up
            && self.forwards.has_credit(self.forwards.parked[&id].message.body.len())
        {
            let Parked { message, timer } = self.forwards.parked.remove(&id).expect("just looked");
            self.wheel.cancel(timer);
            self.forwards.parked_bytes -= message.body.len();
            self.forwards.charge(id, message.body.len());
            self.out.up.push(Up::Forward(message));
        }
        for _ in 0..self.forwards.wanting.len() {
            let Some(stream) = self.forwards.wanting.pop_front() else { return };
            self.forwards.is_spending = true;
            self.advance(turn, stream);
            self.forwards.is_spending = false;
            if self.forwards.wanting.back() == Some(&stream) {
                self.forwards.wanting.rotate_right(1);
                return;
            }
        }
    }

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
        if self.forwards.link_up && self.forwards.has_credit(message.body.len()) {
            self.forwards.waiting.insert(id, sent);
            self.forwards.charge(id, message.body.len());
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

    pub fn on_link_up<S: Streams>(&mut self, turn: &mut Turn<'_, S>) {
        self.forwards.link_up = true;
        self.spend_credit(turn);
    }

    /// What was sent may have taken effect or not: it is never sent again.
    pub fn on_link_down<S: Streams>(&mut self, turn: &mut Turn<'_, S>) {
        self.forwards.link_up = false;
        self.forwards.charges.clear();
        self.forwards.charged = 0;
        let parked = &self.forwards.parked;
        let ids: Vec<u64> = self.forwards.waiting.keys().filter(|id| !parked.contains_key(id)).copied().collect();
        for id in ids {
            self.refuse(turn, id);
        }
        self.spend_credit(turn);
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
        self.forwards.discharge(id);
        self.spend_credit(turn);
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
