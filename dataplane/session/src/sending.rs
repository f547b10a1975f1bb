//! From replies to the network, no faster than the peer reads.

use crate::connection::EndReason;
use crate::gather::Gather;
use crate::limits::KEPT_BYTES;
use crate::replies::{Next, Piece, ReplyNumber};
use crate::sessions::{Sessions, Turn};
use handoff::{Command, FetchError, GatherId, ReadWindow, Window};
use net::{Close, StreamId, Streams};
use std::collections::VecDeque;

impl Sessions {
    pub(crate) fn reply<S: Streams>(
        &mut self,
        turn: &mut Turn<'_, S>,
        stream: StreamId,
        reply: ReplyNumber,
        pieces: VecDeque<Piece>,
    ) {
        if let Some(connection) = self.connections.get_mut(&stream) {
            connection.replies.ready(reply, pieces);
            self.pump(turn, stream);
        }
    }

    /// Hands to the network what may leave now, and asks for stored bytes that are due.
    pub(crate) fn pump<S: Streams>(&mut self, turn: &mut Turn<'_, S>, stream: StreamId) {
        loop {
            let Some(connection) = self.connections.get_mut(&stream) else { return };
            let next = connection.replies.poll(turn.net.queued(stream));
            match next {
                Next::Send(bytes) => {
                    turn.net.send(stream, bytes);
                    self.flush_first(stream);
                }
                Next::Fetch { stretches, bytes_max } => {
                    let owner = stretches[0].owner;
                    let gather = self.open_gather(Gather::window(stream, turn.now.monotonic));
                    self.out.commands.push((owner, Command::ReadWindow(ReadWindow { gather, stretches, bytes_max })));
                    return;
                }
                Next::Close => return self.end(turn, stream, EndReason::SilentProduceFailed),
                // The flush at the turn's end may send all of it, and then no event says so.
                Next::Behind => return self.flush_first(stream),
                Next::Nothing => return,
            }
        }
    }

    /// The connection goes on when the network was flushed.
    pub(crate) fn flush_first(&mut self, stream: StreamId) {
        let Some(connection) = self.connections.get_mut(&stream) else { return };
        if !std::mem::replace(&mut connection.is_flushing, true) {
            self.flushing.push(stream);
        }
    }

    /// The network was flushed: who waited for it goes on now, or with `on_writable` where the socket is full; then what it
    /// has for the peer is let go. Returns how many went on.
    pub fn on_flushed<S: Streams>(&mut self, turn: &mut Turn<'_, S>) -> usize {
        let mut count = 0;
        let mut flushed = std::mem::take(&mut self.flushing);
        for stream in flushed.drain(..) {
            let Some(connection) = self.connections.get_mut(&stream) else { continue };
            connection.is_flushing = false;
            let queued = turn.net.queued(stream);
            if queued > 0 {
                let may_forget = connection.replies.may_give_back();
                let forgotten = match may_forget {
                    0 => 0,
                    _ => turn.net.retract(stream, KEPT_BYTES.max(queued.saturating_sub(may_forget))),
                };
                connection.replies.let_go(forgotten);
                continue;
            }
            connection.replies.on_sent();
            if connection.replies.pending() > 0 || connection.paused {
                count += 1;
                self.pump(turn, stream);
                self.advance(turn, stream);
            }
        }
        // Its room serves the next flush too.
        flushed.append(&mut self.flushing);
        self.flushing = flushed;
        count
    }

    pub fn on_writable<S: Streams>(&mut self, turn: &mut Turn<'_, S>, stream: StreamId) {
        if let Some(connection) = self.connections.get_mut(&stream) {
            connection.last_active = turn.now.monotonic;
            self.pump(turn, stream);
            self.advance(turn, stream);
        }
    }

    pub(crate) fn on_window<S: Streams>(
        &mut self,
        turn: &mut Turn<'_, S>,
        gather: GatherId,
        result: Result<Window, FetchError>,
    ) {
        let Some(gather) = self.gathers.remove(Self::token(gather)) else { return };
        let stream = gather.stream;
        let Some(connection) = self.connections.get_mut(&stream) else { return };
        match result {
            Ok(window) => {
                let pieces = window.pieces.into_iter().map(|(parcel, again)| (turn.arena.open(parcel), again));
                connection.replies.on_window(pieces.collect(), window.rest);
                self.pump(turn, stream);
                self.advance(turn, stream);
            }
            // Part of the response is out: only closing keeps the consumer from taking what follows for records.
            Err(_) => {
                turn.net.close(stream, Close::Now);
                connection.ending = true;
                self.out.ended.push((connection.peer, EndReason::ReadFailed));
            }
        }
    }
}
