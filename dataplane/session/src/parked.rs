//! What connections have sent that are not read on: requests behind one that is being evaluated, or behind answers that the
//! peer does not read. It leaves the receive memory, which is everybody's, and is bounded; beyond the bound the connection
//! that has had its share longest ends.

use crate::connection::EndReason;
use crate::limits::{FRAME_TIME_PRESSED, PRESSED_LOOK};
use crate::sessions::{Sessions, Turn, set_paused};
use base::Monotonic;
use net::{StreamId, Streams};
use std::collections::VecDeque;

#[derive(Debug)]
pub(crate) struct Parked {
    bytes_max: usize,
    bytes: usize,
    /// Streams with the bytes of each, the one that has been here longest first.
    streams: VecDeque<(StreamId, usize)>,
    next_look: Monotonic,
}

impl Parked {
    pub fn new(bytes_max: usize) -> Parked {
        Parked { bytes_max, bytes: 0, streams: VecDeque::new(), next_look: Monotonic::ZERO }
    }

    pub fn remove(&mut self, stream: StreamId) {
        if let Some(at) = self.streams.iter().position(|(known, _)| *known == stream) {
            self.bytes -= self.streams.remove(at).map_or(0, |(_, bytes)| bytes);
        }
    }

    /// Notes what a stream has here; returns the one that has to end for it.
    fn add(&mut self, stream: StreamId, bytes: usize) -> Option<StreamId> {
        self.remove(stream);
        if bytes == 0 {
            return None;
        }
        self.streams.push_back((stream, bytes));
        self.bytes += bytes;
        (self.bytes > self.bytes_max).then(|| self.streams[0].0)
    }
}

impl Sessions {
    /// Reads nothing more from the connection until its next request may begin.
    pub(crate) fn mute<S: Streams>(&mut self, turn: &mut Turn<'_, S>, stream: StreamId) {
        let Some(connection) = self.connections.get_mut(&stream) else { return };
        set_paused(connection, turn.net, stream, true);
        let bytes = connection.assembler.leave_arena() + connection.held_outside;
        if let Some(longest) = self.parked.add(stream, bytes) {
            let reason = "it sent requests faster than it takes their answers, and memory for them is used up";
            self.end(turn, longest, EndReason::Refused(reason.into()));
            self.parked.remove(longest);
        }
    }

    /// Where receive memory is short, a peer that trickles a frame may not keep it from everybody.
    pub(crate) fn end_a_slow_frame<S: Streams>(&mut self, turn: &mut Turn<'_, S>) {
        let (now, arena) = (turn.now.monotonic, turn.arena);
        let reserve = arena.capacity() / 100 * base::limits::RECEIVE_RESERVE_PERCENT;
        if arena.free_bytes() >= reserve && self.starved.is_empty() || now < self.parked.next_look {
            return;
        }
        self.parked.next_look = now + PRESSED_LOOK;
        let oldest = self.connections.iter().filter_map(|(stream, connection)| {
            let since = connection.frame_since.filter(|_| !connection.ending)?;
            (now.since(since) >= FRAME_TIME_PRESSED).then_some((since, *stream))
        });
        if let Some((_, stream)) = oldest.min() {
            self.end(turn, stream, EndReason::TooSlow);
        }
    }
}
