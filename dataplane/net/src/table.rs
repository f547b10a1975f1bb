//! All streams of a core, over sockets of one kind: who may be read, who may be written, in turns and within budgets.
//! What tells it that sockets are ready is its owner's matter.

use crate::stream::{Phase, Sent, Socket, Stream, Target, reason};
use crate::{Close, CloseReason, StreamEvent, StreamId, Traffic};
use arena::{Arena, Buffer, BufferRef, Parcel};
use base::limits::{RECEIVE_CHUNK, RECEIVE_RESERVE_PERCENT};
use base::{Monotonic, Now, Slots, Wheel};
use std::collections::VecDeque;
use std::io;
use std::time::Duration;

/// One receive into a target.
const TARGET_BYTES_PER_CALL: usize = 256 << 10;
/// With less room than this in the chunk the next one is taken.
const CHUNK_ROOM_MIN: usize = 4 << 10;
/// How long a closed stream may take to send what is queued ...
const SENDING_TIME_MAX: Duration = Duration::from_secs(30);
/// ... and how long its peer then may take to finish too.
const LINGER_TIME_MAX: Duration = Duration::from_secs(1);
/// When to look again for memory that other cores return without waking anyone.
const STARVED_PAUSE: Duration = Duration::from_millis(1);
/// Thrown away by one receive of a lingering stream.
const DISCARD: usize = 16 << 10;

/// What the owner learnt of a socket; only news, so `false` means nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Readiness {
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    pub(crate) peer_finished: bool,
    /// The connection is over in both directions, whatever is unread.
    pub(crate) over: bool,
}

/// A stream between two tables. The pieces are what is left to send.
#[derive(Debug)]
pub(crate) struct Parts<S> {
    pub(crate) socket: S,
    pub(crate) unsent: Vec<Parcel>,
    pub(crate) paused: bool,
    pub(crate) essential: bool,
}

pub(crate) struct Table<S> {
    arena: Arena,
    streams: Slots<Stream<S>>,
    /// Streams that may have bytes, each once, served in turn.
    receiving: VecDeque<StreamId>,
    /// Streams with queued bytes and a socket that may take them.
    sending: VecDeque<StreamId>,
    /// Streams that ended and are not yet reported.
    ended: VecDeque<(StreamId, CloseReason)>,
    /// Where bytes without a target are received: slices of it are given out until it is used up.
    chunk: Option<Buffer>,
    /// Streams wait for receive memory.
    starved: bool,
    timers: Wheel<StreamId>,
    now: Monotonic,
    traffic: Traffic,
}

impl<S: Socket> Table<S> {
    pub(crate) fn new(arena: Arena, now: Monotonic) -> Table<S> {
        Table {
            arena,
            streams: Slots::growable(),
            receiving: VecDeque::new(),
            sending: VecDeque::new(),
            ended: VecDeque::new(),
            chunk: None,
            starved: false,
            timers: Wheel::new(now),
            now,
            traffic: Traffic::default(),
        }
    }

    pub(crate) fn open(&mut self, socket: S) -> StreamId {
        let token = self.streams.insert_with(|_| Stream::new(socket)).expect("growable slots are never full");
        StreamId(token)
    }

    pub(crate) fn take_traffic(&mut self) -> Traffic {
        std::mem::take(&mut self.traffic)
    }

    pub(crate) fn len(&self) -> usize {
        self.streams.len()
    }

    pub(crate) fn get_mut(&mut self, id: StreamId) -> Option<&mut Stream<S>> {
        self.streams.get_mut(id.0)
    }

    /// The ids of all streams.
    pub(crate) fn ids(&self) -> Vec<StreamId> {
        self.streams.iter().map(|(token, _)| StreamId(token)).collect()
    }

    pub(crate) fn on_ready(&mut self, id: StreamId, readiness: Readiness) {
        let Some(stream) = self.streams.get_mut(id.0) else { return };
        if readiness.over && stream.phase != Phase::Open {
            // We had closed it anyway.
            let reason = if stream.queued > 0 { CloseReason::PeerReset } else { CloseReason::Local };
            self.end(id, reason);
            return;
        }
        stream.finish_announced |= readiness.peer_finished;
        stream.readable |= readiness.readable || readiness.peer_finished || readiness.over;
        stream.writable |= readiness.writable;
        if readiness.over && stream.paused {
            // Nobody would read the error that waits in the socket.
            self.end(id, CloseReason::PeerReset);
            return;
        }
        self.enlist(id);
    }

    /// Puts the stream on the lists on which it belongs by what is known of it.
    fn enlist(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(id.0) else { return };
        let receives = match stream.phase {
            Phase::Open => !stream.paused && !stream.peer_finished,
            Phase::Sending(_) => false,
            Phase::Lingering(_) => true,
        };
        if receives && stream.readable && !stream.in_receiving {
            stream.in_receiving = true;
            self.receiving.push_back(id);
        }
        if stream.queued > 0 && stream.writable && !stream.in_sending {
            stream.in_sending = true;
            self.sending.push_back(id);
        }
    }

    pub(crate) fn send(&mut self, id: StreamId, bytes: BufferRef) {
        let Some(stream) = self.streams.get_mut(id.0).filter(|stream| stream.phase == Phase::Open) else { return };
        stream.push(bytes);
        self.enlist(id);
    }

    pub(crate) fn queued(&self, id: StreamId) -> usize {
        self.streams.get(id.0).map_or(0, |stream| stream.queued)
    }

    pub(crate) fn retract(&mut self, id: StreamId, keep: usize) -> usize {
        self.streams.get_mut(id.0).map_or(0, |stream| stream.retract(keep))
    }

    pub(crate) fn set_target(&mut self, id: StreamId, buffer: Buffer, filled: usize) {
        assert!(filled < buffer.len(), "a target has room");
        let Some(stream) = self.streams.get_mut(id.0) else { return };
        assert!(stream.target.is_none(), "a stream has one target at a time");
        stream.target = Some(Target { buffer, filled });
    }

    pub(crate) fn pause(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(id.0) {
            stream.paused = true;
        }
    }

    pub(crate) fn resume(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(id.0) {
            stream.paused = false;
            self.enlist(id);
        }
    }

    pub(crate) fn close(&mut self, id: StreamId, close: Close) {
        let Some(stream) = self.streams.get_mut(id.0) else { return };
        match close {
            Close::Now => self.end(id, CloseReason::Local),
            Close::AfterSending if stream.phase != Phase::Open => {}
            Close::AfterSending => {
                stream.target = None;
                let timer = self.timers.insert(self.now + SENDING_TIME_MAX, id);
                stream.phase = Phase::Sending(timer);
                if stream.queued == 0 {
                    self.linger(id);
                }
            }
        }
    }

    /// Takes the stream out, where it is at a boundary.
    pub(crate) fn detach(&mut self, id: StreamId) -> Option<Parts<S>> {
        let stream = self.streams.get(id.0)?;
        if stream.phase != Phase::Open || stream.target.is_some() || stream.peer_finished {
            return None;
        }
        let (paused, essential) = (stream.paused, stream.essential);
        let (socket, unsent) = self.streams.remove(id.0)?.into_parts();
        let unsent = unsent.into_iter().map(BufferRef::into_parcel).collect();
        Some(Parts { socket, unsent, paused, essential })
    }

    pub(crate) fn attach(&mut self, parts: Parts<S>) -> StreamId {
        let id = self.open(parts.socket);
        let stream = self.streams.get_mut(id.0).expect("it was just opened");
        stream.paused = parts.paused;
        stream.essential = parts.essential;
        for parcel in parts.unsent {
            stream.push(self.arena.open(parcel));
        }
        // The core it comes from may have been waiting to send more.
        stream.left_behind = stream.queued > 0;
        self.enlist(id);
        id
    }

    /// Ends streams whose time is over, reports ended ones, sends what was left, and receives.
    pub(crate) fn poll(&mut self, now: Now, budget: usize, events: &mut Vec<StreamEvent>) -> usize {
        self.now = now.monotonic;
        let mut late = Vec::new();
        self.timers.expire(self.now, budget, &mut late);
        for id in late {
            self.on_timer(id);
        }
        let mut done = self.send_left(budget, events);
        done += self.receive_in_turn(budget - done, events);
        while let Some((stream, reason)) = self.ended.pop_front() {
            events.push(StreamEvent::Closed { stream, reason });
        }
        done
    }

    fn on_timer(&mut self, id: StreamId) {
        match self.streams.get(id.0).map(|stream| stream.phase) {
            Some(Phase::Sending(_)) => self.end(id, CloseReason::TimedOut),
            Some(Phase::Lingering(_)) => self.end(id, CloseReason::Local),
            Some(Phase::Open) | None => {}
        }
    }

    pub(crate) fn flush(&mut self, now: Now) {
        self.now = now.monotonic;
        for _ in 0..self.sending.len() {
            let Some(id) = self.sending.pop_front() else { break };
            // Progress of a stream with bytes left behind is an event, so it is made by `poll` alone.
            if self.streams.get(id.0).is_some_and(|stream| stream.left_behind) {
                self.sending.push_back(id);
            } else {
                self.send_to(id, None);
            }
        }
    }

    fn send_left(&mut self, budget: usize, events: &mut Vec<StreamEvent>) -> usize {
        let count = self.sending.len().min(budget);
        for _ in 0..count {
            let Some(id) = self.sending.pop_front() else { break };
            self.send_to(id, Some(events));
        }
        count
    }

    /// Sends to a stream that was just taken off the list.
    fn send_to(&mut self, id: StreamId, events: Option<&mut Vec<StreamEvent>>) {
        let Some(stream) = self.streams.get_mut(id.0) else { return };
        stream.in_sending = false;
        let before = stream.queued;
        let sent = stream.send_queued();
        let queued = stream.queued;
        if !stream.essential {
            self.traffic.sent += (before - queued) as u64;
        }
        if let Some(events) = events.filter(|_| stream.left_behind && queued < before && stream.phase == Phase::Open) {
            events.push(StreamEvent::Writable { stream: id, queued });
        }
        stream.left_behind = queued > 0;
        match sent {
            Sent::All if matches!(stream.phase, Phase::Sending(_)) => self.linger(id),
            Sent::All | Sent::Blocked => {}
            Sent::ShareUsed => self.enlist(id),
            Sent::Failed(reason) => self.end(id, reason),
        }
    }

    /// All is sent: tells the peer and waits a little for its end.
    fn linger(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(id.0) else { return };
        if stream.peer_finished {
            return self.end(id, CloseReason::Local);
        }
        stream.socket.finish_sending();
        if let Some(timer) = stream.phase.timer() {
            self.timers.cancel(timer);
        }
        stream.phase = Phase::Lingering(self.timers.insert(self.now + LINGER_TIME_MAX, id));
        self.enlist(id);
    }

    fn receive_in_turn(&mut self, budget: usize, events: &mut Vec<StreamEvent>) -> usize {
        self.starved = false;
        // Each stream that waits now gets one turn per round; those that starve wait for the next poll.
        let mut starving = VecDeque::new();
        let mut done = 0;
        while done < budget {
            let Some(id) = self.receiving.pop_front() else { break };
            let Some(stream) = self.streams.get_mut(id.0) else { continue };
            stream.in_receiving = false;
            if stream.phase == Phase::Open && (stream.paused || stream.peer_finished) {
                continue;
            }
            if self.must_starve(id) {
                starving.push_back(id);
                continue;
            }
            done += 1;
            self.receive_from(id, events);
            self.enlist(id);
        }
        self.starved = !starving.is_empty();
        for id in starving {
            self.enlist(id);
        }
        done
    }

    /// Whether the stream has no memory to receive into now.
    fn must_starve(&mut self, id: StreamId) -> bool {
        let Some(stream) = self.streams.get(id.0) else { return false };
        if stream.target.is_some() || stream.phase != Phase::Open {
            return false;
        }
        let (free, capacity) = (self.arena.free_bytes(), self.arena.capacity());
        if free < capacity / 100 * RECEIVE_RESERVE_PERCENT && !stream.essential {
            self.arena.poll_returns(usize::MAX);
            if self.arena.free_bytes() < capacity / 100 * RECEIVE_RESERVE_PERCENT {
                return true;
            }
        }
        if self.chunk.as_ref().is_none_or(|chunk| chunk.len() < CHUNK_ROOM_MIN) {
            self.chunk = self.arena.try_allocate(RECEIVE_CHUNK);
        }
        self.chunk.is_none()
    }

    fn receive_from(&mut self, id: StreamId, events: &mut Vec<StreamEvent>) {
        let Some(stream) = self.streams.get_mut(id.0) else { return };
        if stream.phase != Phase::Open {
            return self.discard_from(id);
        }
        let room = match &mut stream.target {
            Some(Target { buffer, filled }) => {
                let end = buffer.len().min(*filled + TARGET_BYTES_PER_CALL);
                &mut buffer[*filled..end]
            }
            None => &mut self.chunk.as_mut().expect("a stream without a chunk starves")[..],
        };
        let asked = room.len();
        match stream.socket.receive(room) {
            Ok(0) => {
                stream.peer_finished = true;
                stream.readable = false;
                events.push(StreamEvent::PeerFinished { stream: id });
            }
            Ok(count) => {
                // Fewer bytes than there was room for: the socket is empty, and whatever comes later is announced. That
                // saves a call per request. A finish that was announced before would not be announced again.
                stream.readable = count == asked || stream.finish_announced;
                self.on_received(id, count, events);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.readable = false,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => self.end(id, reason(&error)),
        }
    }

    /// Looks for the end of a lingering stream behind whatever its peer still sends.
    fn discard_from(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(id.0) else { return };
        match stream.socket.receive(&mut [0; DISCARD]) {
            Ok(0) => self.end(id, CloseReason::Local),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.readable = false,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => self.end(id, CloseReason::Local),
        }
    }

    fn on_received(&mut self, id: StreamId, count: usize, events: &mut Vec<StreamEvent>) {
        let Some(stream) = self.streams.get_mut(id.0) else { return };
        if !stream.essential {
            self.traffic.received += count as u64;
        }
        if let Some(target) = &mut stream.target {
            target.filled += count;
            if target.filled == target.buffer.len()
                && let Some(Target { buffer, .. }) = stream.target.take()
            {
                events.push(StreamEvent::Filled { stream: id, buffer });
            }
            return;
        }
        let chunk = self.chunk.as_mut().expect("the bytes were received into it");
        let bytes = chunk.split_to(count).freeze();
        events.push(StreamEvent::Received { stream: id, bytes });
        if chunk.is_empty() {
            self.chunk = None;
        }
    }

    /// The socket is closed here; the event follows with the next poll.
    fn end(&mut self, id: StreamId, reason: CloseReason) {
        let Some(stream) = self.streams.remove(id.0) else { return };
        if let Some(timer) = stream.phase.timer() {
            self.timers.cancel(timer);
        }
        self.ended.push_back((id, reason));
    }

    pub(crate) fn next_deadline(&self) -> Option<Monotonic> {
        if !self.ended.is_empty() || !self.sending.is_empty() || (!self.receiving.is_empty() && !self.starved) {
            return Some(self.now);
        }
        let memory = (!self.receiving.is_empty()).then(|| self.now + STARVED_PAUSE);
        memory.into_iter().chain(self.timers.next_deadline()).min()
    }
}
