//! All sessions of one core: what comes from the network, from other cores, from the link and from time, and what goes
//! there. No step blocks, and none reads a clock.

use crate::api::Asker;
use crate::assemble::{Assembled, Assembler};
use crate::begin::NotBegun;
use crate::connection::{Connection, EndReason, Request};
use crate::fetch_session::FetchSessions;
use crate::forward::Forwards;
use crate::gather::{Gather, GatherWork};
use crate::limits::{FRAME_TIME_MAX, ITEMS_ON_THE_LOOP_MAX, REQUESTS_A_TURN, TIMERS_PER_TURN, UNREAD_BYTES_MAX};
use crate::outputs::{Answered, Outputs};
use crate::parked::Parked;
use crate::replies::{Piece, Replies, ReplyNumber};
use crate::route::{self, Route};
use arena::{Arena, Buffer, BufferRef};
use base::{ConnectionId, CoreId, IdMap, ListenerId, Monotonic, NodeId, Now, Random, SlotToken, Slots, Wheel};
use handoff::{Command, GatherId, Outcome};
use link::Up;
use net::{Close, StreamId, Streams};
use settings::BrokerSettings;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use view::{ProducerIds, View};
use wire::{ApiKey, Decoder, HeaderError, RequestHeaderView, Response};

/// What is fixed about the node, shared by its cores.
#[derive(Clone, Debug)]
pub struct NodeFacts {
    pub node: NodeId,
    pub cluster_id: String,
    /// Listener names by `ListenerId`.
    pub listeners: Vec<String>,
    /// What DescribeLogDirs calls the namespace.
    pub log_dir: String,
}

/// The turn at hand: time, randomness, and the core's own network and memory.
pub struct Turn<'a, S> {
    pub now: Now,
    pub random: &'a mut Random,
    pub net: &'a mut S,
    pub arena: &'a Arena,
}

/// Which requests may begin now (design 02, rule 9, and the handoff's credits).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    Open,
    /// The journal has to catch up: sockets of producers are not read on.
    NoProduce,
    /// Another core has to catch up: nothing begins.
    Closed,
}

#[derive(Debug)]
pub(crate) enum Timer {
    Gather(SlotToken),
    Connection(StreamId),
    Parked(u64),
}

#[derive(Debug)]
pub struct Sessions {
    pub(crate) core: CoreId,
    pub(crate) cores: u16,
    pub(crate) facts: Arc<NodeFacts>,
    pub(crate) settings: BrokerSettings,
    pub(crate) view: Arc<View>,
    pub(crate) connections: IdMap<StreamId, Connection>,
    pub(crate) gathers: Slots<Gather>,
    pub(crate) fetch_sessions: FetchSessions,
    pub(crate) producer_ids: ProducerIds,
    pub(crate) wheel: Wheel<Timer>,
    pub(crate) forwards: Forwards,
    /// Connections whose next frame waits for memory, first come first served.
    pub(crate) starved: VecDeque<StreamId>,
    gate: Gate,
    /// Connections that the poll at hand brought bytes for, and before them those that the last turn left.
    touched: Vec<StreamId>,
    /// Requests that this turn has begun.
    begun: usize,
    /// Connections that go on when the network was flushed.
    pub(crate) flushing: Vec<StreamId>,
    /// What connections that are not read have sent already.
    pub(crate) parked: Parked,
    next_connection: u64,
    receive_share: usize,
    expired: Vec<Timer>,
    pub out: Outputs,
}

impl Sessions {
    pub fn new(
        now: Now,
        core: CoreId,
        cores: u16,
        facts: Arc<NodeFacts>,
        settings: BrokerSettings,
        receive_share: usize,
    ) -> Sessions {
        let slots = settings.typed().max_incremental_fetch_session_cache_slots.max(1) as usize / usize::from(cores);
        Sessions {
            core,
            cores,
            facts,
            view: Arc::new(View::default()),
            connections: IdMap::default(),
            gathers: Slots::growable(),
            fetch_sessions: FetchSessions::new(core, slots.max(1)),
            producer_ids: ProducerIds::default(),
            wheel: Wheel::new(now.monotonic),
            forwards: Forwards::new(core, cores),
            starved: VecDeque::new(),
            gate: Gate::Open,
            touched: Vec::new(),
            begun: 0,
            flushing: Vec::new(),
            parked: Parked::new(receive_share),
            next_connection: 0,
            receive_share,
            expired: Vec::new(),
            settings,
            out: Outputs::default(),
        }
    }

    /// What clients are told the cluster is.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// The next snapshot. The one before shares with it what did not change; whoever is the last to have it lets go of
    /// the rest, which is every topic's place where some hundred topics came at once.
    pub fn on_view(&mut self, view: Arc<View>) {
        let before = std::mem::replace(&mut self.view, view);
        if before.topic_count() > ITEMS_ON_THE_LOOP_MAX {
            self.let_go(before);
        }
    }

    /// Opens or closes the gate; what waited at it goes on in the order of its connections.
    pub fn set_gate<S: Streams>(&mut self, turn: &mut Turn<'_, S>, gate: Gate) {
        if std::mem::replace(&mut self.gate, gate) == gate || gate == Gate::Closed {
            return;
        }
        let held = self.connections.iter().filter(|(_, connection)| connection.held.is_some());
        let mut held: Vec<StreamId> = held.map(|(stream, _)| *stream).collect();
        held.sort();
        for stream in held {
            self.advance(turn, stream);
        }
    }

    pub fn on_settings(&mut self, settings: BrokerSettings) {
        self.settings = settings;
    }

    pub fn on_producer_ids(&mut self, first: i64, count: u32) {
        self.producer_ids.add(first, count);
    }

    /// Fetch sessions, partitions in them, evictions and refusals so far.
    pub fn fetch_session_facts(&self) -> (usize, usize, u64, u64) {
        let (sessions, partitions) = self.fetch_sessions.size();
        (sessions, partitions, self.fetch_sessions.evictions, self.fetch_sessions.refusals)
    }

    /// Bytes of forwarded requests under way, and requests that had to wait for credit so far.
    pub fn forward_facts(&self) -> (usize, u64) {
        self.forwards.credit_facts()
    }

    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    pub(crate) fn asker(&self, listener: ListenerId) -> Asker<'_> {
        Asker {
            view: &self.view,
            node: self.facts.node,
            cluster_id: &self.facts.cluster_id,
            listener_name: &self.facts.listeners[usize::from(listener.0)],
        }
    }

    pub fn on_opened(&mut self, now: Now, stream: StreamId, listener: ListenerId, peer: Option<SocketAddr>) {
        self.next_connection += 1;
        let frame_max = self.settings.typed().socket_request_max_bytes.max(1) as usize;
        let id = ConnectionId(u64::from(self.core.0) << 48 | self.next_connection);
        let mut connection = Connection {
            id,
            listener,
            peer,
            assembler: Assembler::new(frame_max, self.receive_share),
            replies: Replies::default(),
            held: None,
            held_outside: 0,
            paused: false,
            peer_finished: false,
            ending: false,
            software_name: String::new(),
            software_version: String::new(),
            last_active: now.monotonic,
            timer: None,
            frame_since: None,
            is_flushing: false,
        };
        let idle_max = u64::try_from(self.settings.typed().connections_max_idle_ms);
        let first_look = now.monotonic + idle_max.map_or(FRAME_TIME_MAX, Duration::from_millis).min(FRAME_TIME_MAX);
        connection.timer = Some(self.wheel.insert(first_look, Timer::Connection(stream)));
        self.connections.insert(stream, connection);
    }

    /// Bytes are looked at when all events of a poll are in (`on_events_taken`): a target that was set between two of
    /// them would be filled out of order.
    pub fn on_received(&mut self, now: Now, stream: StreamId, bytes: BufferRef) {
        let Some(connection) = self.connections.get_mut(&stream) else { return };
        if connection.ending {
            return;
        }
        connection.last_active = now.monotonic;
        connection.assembler.push(bytes);
        self.touch(stream);
    }

    pub fn on_filled(&mut self, now: Now, stream: StreamId, buffer: Buffer) {
        let Some(connection) = self.connections.get_mut(&stream) else { return };
        connection.last_active = now.monotonic;
        connection.assembler.on_filled(buffer);
        self.touch(stream);
    }

    fn touch(&mut self, stream: StreamId) {
        if self.touched.last() != Some(&stream) {
            self.touched.push(stream);
        }
    }

    /// All events of a poll are in: what they brought is cut into requests, which begin, as many as a turn may. Returns how
    /// many.
    pub fn on_events_taken<S: Streams>(&mut self, turn: &mut Turn<'_, S>) -> usize {
        self.begun = 0;
        let mut touched = std::mem::take(&mut self.touched);
        for stream in touched.drain(..) {
            self.advance(turn, stream);
        }
        touched.append(&mut self.touched);
        self.touched = touched;
        self.begun
    }

    /// The peer sends no more. What it sent before may have come in the same poll, and is looked at first
    /// (`on_events_taken`): a producer that wants no acknowledgement sends, closes and is gone.
    pub fn on_peer_finished(&mut self, stream: StreamId) {
        let Some(connection) = self.connections.get_mut(&stream) else { return };
        connection.peer_finished = true;
        self.touch(stream);
    }

    /// The stream is no more: what waits for it is cancelled.
    pub fn on_closed(&mut self, stream: StreamId) {
        let Some(connection) = self.connections.remove(&stream) else { return };
        self.parked.remove(stream);
        if let Some(timer) = connection.timer {
            self.wheel.cancel(timer);
        }
        let waiting: Vec<SlotToken> =
            self.gathers.iter().filter(|(_, gather)| gather.stream == stream).map(|(token, _)| token).collect();
        for token in waiting {
            self.drop_gather(token);
        }
        if self.forwards.on_connection_closed(stream) {
            self.out.up.push(Up::ConnectionClosed(connection.id));
        }
    }

    /// Ends a connection from our side, with a reason for the log.
    pub(crate) fn end<S: Streams>(&mut self, turn: &mut Turn<'_, S>, stream: StreamId, reason: EndReason) {
        let Some(connection) = self.connections.get_mut(&stream) else { return };
        if !connection.ending {
            connection.ending = true;
            connection.held = None;
            self.out.ended.push((connection.peer, reason));
            turn.net.close(stream, Close::AfterSending);
        }
    }

    /// Cuts and begins requests until one must wait.
    pub(crate) fn advance<S: Streams>(&mut self, turn: &mut Turn<'_, S>, stream: StreamId) {
        loop {
            let Some(connection) = self.connections.get_mut(&stream) else { return };
            if connection.ending {
                return;
            }
            if self.begun >= REQUESTS_A_TURN {
                // It goes on in the next turn, and until then no more of it is taken into everybody's memory.
                set_paused(connection, turn.net, stream, true);
                return self.touch(stream);
            }
            if turn.net.queued(stream) >= UNREAD_BYTES_MAX {
                self.flush_first(stream);
                return self.mute(turn, stream);
            }
            if let Some(request) = connection.held.take() {
                connection.held_outside = 0;
                if !self.may_begin(turn.net, stream, &request) {
                    return self.hold(stream, request);
                }
                self.begin(turn, stream, request);
                continue;
            }
            // Nothing may begin beside what is being evaluated, so nothing more is taken from the socket.
            if connection.replies.pending() > connection.replies.produces() {
                return self.mute(turn, stream);
            }
            let frame = match connection.assembler.poll(turn.arena) {
                Ok(Assembled::Frame(frame)) => frame,
                Ok(Assembled::Incomplete) => {
                    self.on_incomplete(turn, stream);
                    return;
                }
                Ok(Assembled::Target { buffer, filled }) => {
                    connection.frame_since.get_or_insert(turn.now.monotonic);
                    turn.net.set_target(stream, buffer, filled);
                    self.on_incomplete(turn, stream);
                    return;
                }
                Ok(Assembled::NoMemory) => {
                    connection.frame_since.get_or_insert(turn.now.monotonic);
                    set_paused(connection, turn.net, stream, true);
                    if !self.starved.contains(&stream) {
                        self.starved.push_back(stream);
                    }
                    return;
                }
                Err(error) => return self.end(turn, stream, EndReason::BadFrame(error.to_string())),
            };
            connection.frame_since = None;
            match self.parse(stream, frame) {
                Ok(request) if self.may_begin(turn.net, stream, &request) => self.begin(turn, stream, request),
                Ok(request) => {
                    self.hold(stream, request);
                    return self.mute(turn, stream);
                }
                Err(reason) => return self.end(turn, stream, reason),
            }
        }
    }

    /// The gate, the requests before it, and the link's credit let the request begin. A Fetch waits until all before it has
    /// left too: what it finds might be let go behind that, and taken by retention before its answer begins.
    fn may_begin<S: Streams>(&mut self, net: &S, stream: StreamId, request: &Request) -> bool {
        if request.api == ApiKey::Fetch && net.queued(stream) > 0 {
            self.flush_first(stream);
            return false;
        }
        let connection = &self.connections[&stream];
        self.gate.admits(request.api) && connection.may_begin(request.api) && self.admit_forward(stream, request)
    }

    /// What waits for the control plane waits outside the receive memory, which is everybody's.
    fn hold(&mut self, stream: StreamId, mut request: Request) {
        let wants_credit = self.forwards.wants_credit(stream);
        let connection = self.connections.get_mut(&stream).expect("requests come from connections");
        if wants_credit {
            connection.held_outside = request.frame.len();
            request.frame = BufferRef::from_vec(request.frame.to_vec());
        }
        connection.held = Some(request);
    }

    /// Between frames: read on, or close where the peer has finished and is owed nothing.
    fn on_incomplete<S: Streams>(&mut self, turn: &mut Turn<'_, S>, stream: StreamId) {
        let Some(connection) = self.connections.get_mut(&stream) else { return };
        if !connection.assembler.is_at_boundary() {
            connection.frame_since.get_or_insert(turn.now.monotonic);
        }
        if connection.paused {
            self.parked.remove(stream);
        }
        set_paused(connection, turn.net, stream, false);
        if connection.peer_finished && connection.replies.pending() == 0 {
            connection.ending = true;
            turn.net.close(stream, Close::AfterSending);
        }
    }

    fn parse(&mut self, stream: StreamId, frame: BufferRef) -> Result<Request, EndReason> {
        let mut decoder = Decoder::new(&frame);
        let header = RequestHeaderView::decode(&mut decoder);
        let request = match header {
            Ok(header) => Request {
                api: header.api,
                version: header.version,
                correlation_id: header.correlation_id,
                client_id: header.client_id.map(|id| id.lossy().into_owned()),
                body: decoder.position(),
                frame: frame.clone(),
            },
            // An unknown version of ApiVersions may have a header nobody can read; it is answered all the same.
            Err(HeaderError::Malformed(_)) if unreadable_api_versions(&frame) => Request {
                api: ApiKey::ApiVersions,
                version: i16::from_be_bytes([frame[2], frame[3]]),
                correlation_id: i32::from_be_bytes([frame[4], frame[5], frame[6], frame[7]]),
                client_id: None,
                body: frame.len(),
                frame: frame.clone(),
            },
            Err(error) => return Err(EndReason::Malformed(error.to_string())),
        };
        debug_assert!(self.connections.contains_key(&stream));
        if request.api != ApiKey::ApiVersions && !route::supports(request.api, request.version) {
            let what = format!("{} version {}", request.api.name(), request.version);
            return Err(EndReason::UnsupportedRequest(what));
        }
        Ok(request)
    }

    fn begin<S: Streams>(&mut self, turn: &mut Turn<'_, S>, stream: StreamId, request: Request) {
        self.begun += 1;
        let connection = self.connections.get_mut(&stream).expect("requests come from connections");
        let reply = connection.replies.begin(request.api == ApiKey::Produce);
        let began = match route::route(request.api) {
            Some(Route::View) => self.begin_view(turn, stream, reply, &request),
            Some(Route::Partitions) => self.begin_partitions(turn, stream, reply, &request),
            Some(Route::ControlPlane) => return self.forward(turn, stream, reply, request),
            None => unreachable!("requests that are not served were refused"),
        };
        match began {
            Ok(()) => {}
            Err(NotBegun::Long) => self.begin_off_loop(turn, stream, reply, request),
            Err(NotBegun::Ends(reason)) => self.end(turn, stream, reason),
        }
    }

    /// Answers a request at once.
    pub(crate) fn answer<S: Streams, R: Response>(
        &mut self,
        turn: &mut Turn<'_, S>,
        stream: StreamId,
        reply: ReplyNumber,
        request: &Request,
        body: &R,
    ) {
        let bytes = crate::encode::response(request.version, request.correlation_id, body);
        self.out.answered.push(Answered { api: request.api, took: Duration::ZERO, failed: false });
        self.reply(turn, stream, reply, VecDeque::from([Piece::Bytes(bytes)]));
    }

    pub(crate) fn open_gather(&mut self, gather: Gather) -> GatherId {
        let token = self.gathers.insert(gather).unwrap_or_else(|_| panic!("growable slots take everything"));
        self.gather_id(token)
    }

    pub(crate) fn gather_id(&self, token: SlotToken) -> GatherId {
        let bits = token.to_bits();
        GatherId { core: self.core, slot: bits as u32, generation: (bits >> 32) as u32 }
    }

    pub(crate) fn token(gather: GatherId) -> SlotToken {
        SlotToken::from_bits(u64::from(gather.generation) << 32 | u64::from(gather.slot))
    }

    /// Ends a gather whose connection is gone; a waiting fetch leaves its owners' lists.
    fn drop_gather(&mut self, token: SlotToken) {
        let id = self.gather_id(token);
        let Some(gather) = self.gathers.remove(token) else { return };
        if let Some(timer) = gather.timer {
            self.wheel.cancel(timer);
        }
        if let GatherWork::Fetch(fetch) = &gather.work {
            self.out.commands.extend(fetch.cores().iter().map(|core| (*core, Command::Cancel(id))));
        }
        self.forget_gather(gather);
    }

    pub fn on_outcome<S: Streams>(&mut self, turn: &mut Turn<'_, S>, outcome: Outcome) {
        match outcome {
            Outcome::Produced { gather, last, entries } => self.on_produced(turn, gather, last, entries),
            Outcome::Fetched { gather, entries } => self.on_fetched(turn, gather, entries),
            Outcome::FetchNews { gather, entries } => self.on_fetch_news(turn, gather, entries),
            Outcome::Window { gather, result } => self.on_window(turn, gather, result),
            Outcome::OffsetsListed { gather, entries } => self.on_offsets_listed(turn, gather, entries),
            Outcome::EpochEnds { gather, entries } => self.on_epoch_ends(turn, gather, entries),
            Outcome::RecordsDeleted { gather, entries } => self.on_records_deleted(turn, gather, entries),
            Outcome::ProducersDescribed { gather, entries } => self.on_producers_described(turn, gather, entries),
            Outcome::LogsDescribed { gather, logs, total, usable } => {
                self.on_logs_described(turn, gather, logs, total, usable);
            }
            Outcome::InternalAppended { .. } | Outcome::InternalRead { .. } => {
                unreachable!("answers for coordinators go to the link")
            }
        }
    }

    /// Expires timers and serves connections that waited for memory; bounded work.
    pub fn on_time<S: Streams>(&mut self, turn: &mut Turn<'_, S>) {
        let mut expired = std::mem::take(&mut self.expired);
        self.wheel.expire(turn.now.monotonic, TIMERS_PER_TURN, &mut expired);
        for timer in expired.drain(..) {
            match timer {
                Timer::Gather(token) => self.on_gather_deadline(turn, token),
                Timer::Connection(stream) => self.on_connection_timer(turn, stream),
                Timer::Parked(id) => self.on_parked_deadline(turn, id),
            }
        }
        self.expired = expired;
        self.end_a_slow_frame(turn);
        for _ in 0..self.starved.len() {
            let Some(stream) = self.starved.pop_front() else { break };
            if let Some(connection) = self.connections.get_mut(&stream) {
                connection.assembler.admit_alone();
            }
            self.advance(turn, stream);
            if self.starved.back() == Some(&stream) {
                break;
            }
        }
    }

    pub fn next_deadline(&self, now: Now) -> Option<Monotonic> {
        let starved = (!self.starved.is_empty()).then(|| now.monotonic + Duration::from_millis(1));
        let left = (!self.touched.is_empty()).then_some(now.monotonic);
        [self.wheel.next_deadline(), starved, left].into_iter().flatten().min()
    }

    fn on_connection_timer<S: Streams>(&mut self, turn: &mut Turn<'_, S>, stream: StreamId) {
        let idle_max = self.settings.typed().connections_max_idle_ms;
        let Some(connection) = self.connections.get_mut(&stream) else { return };
        connection.timer = None;
        let now = turn.now.monotonic;
        if connection.frame_since.is_some_and(|since| now.since(since) >= FRAME_TIME_MAX) {
            return self.end(turn, stream, EndReason::TooSlow);
        }
        let idle = now.since(connection.last_active);
        let idle_max = u64::try_from(idle_max).ok().map(Duration::from_millis);
        // A peer that does not take what is there for it is owed nothing.
        let owed = connection.replies.pending() > 0 && turn.net.queued(stream) == 0;
        if idle_max.is_some_and(|max| idle >= max) && !owed {
            return self.end(turn, stream, EndReason::Idle);
        }
        // The next look is when either could be due at the earliest.
        let until_idle = idle_max.map_or(FRAME_TIME_MAX, |max| max.saturating_sub(idle).max(Duration::from_millis(1)));
        let next = now + FRAME_TIME_MAX.min(until_idle);
        connection.timer = Some(self.wheel.insert(next, Timer::Connection(stream)));
    }
}

impl Gate {
    fn admits(self, api: ApiKey) -> bool {
        match self {
            Gate::Open => true,
            Gate::NoProduce => api != ApiKey::Produce,
            Gate::Closed => false,
        }
    }
}

/// ApiVersions in a version whose header cannot be read: the first eight bytes are all that is needed.
fn unreadable_api_versions(frame: &[u8]) -> bool {
    frame.len() >= 8 && i16::from_be_bytes([frame[0], frame[1]]) == ApiKey::ApiVersions.code()
}

pub(crate) fn set_paused<S: Streams>(connection: &mut Connection, net: &mut S, stream: StreamId, paused: bool) {
    if connection.paused != paused {
        connection.paused = paused;
        if paused { net.pause(stream) } else { net.resume(stream) }
    }
}
