//! The dataplane's end of the link: one stream on core 0, opened by the control plane.

use arena::{Arena, BufferRef};
use base::Monotonic;
use link::{Down, FrameError, Framer, LINK_BEHIND_BYTES, Up, frame};
use net::{Close, StreamId, Streams};
use std::time::Duration;

/// Bytes of messages collected before they are handed to the network as one piece.
const STAGED_BYTES_MAX: usize = 256 << 10;

/// What a control plane that reads takes at once: a turn's requests of a busy node.
const PASSING_BYTES_MAX: usize = 16 << 10;

/// How long a dataplane that has stopped waits for its control plane to read what was said to it: that there is an end, and
/// answers before it that coordinators wait for. One that reads at all takes milliseconds.
pub const STOP_READ_WITHIN: Duration = Duration::from_secs(3);

#[derive(Default)]
pub struct LinkEnd {
    stream: Option<StreamId>,
    framer: Framer,
    staged: Vec<u8>,
    /// Bytes that the control plane has not read, when they were last counted.
    unread: usize,
    dropped: u64,
    /// Bytes that were handed to the network on this connection.
    said: u64,
    end: Option<End>,
}

/// The word that the dataplane has stopped.
#[derive(Clone, Copy)]
struct End {
    /// The bytes of the connection up to its end.
    at: u64,
    /// When nobody waits any longer for its reader.
    until: Monotonic,
}

impl LinkEnd {
    pub fn is_up(&self) -> bool {
        self.stream.is_some()
    }

    pub fn owns(&self, stream: StreamId) -> bool {
        self.stream == Some(stream)
    }

    /// A control plane connected; an older connection is over, since it reconnects only after losing one.
    pub fn on_opened<S: Streams>(&mut self, net: &mut S, stream: StreamId) {
        if let Some(old) = self.stream.replace(stream) {
            net.close(old, Close::Now);
        }
        self.forget();
        net.set_essential(stream);
    }

    pub fn on_closed(&mut self) {
        self.stream = None;
        self.forget();
    }

    fn forget(&mut self) {
        self.framer = Framer::default();
        self.staged.clear();
        (self.unread, self.said, self.end) = (0, 0, None);
    }

    pub fn on_received(&mut self, bytes: &BufferRef) {
        self.framer.push(bytes);
    }

    pub fn poll_message(&mut self) -> Result<Option<Down>, FrameError> {
        self.framer.poll_message()
    }

    /// Drops a connection whose peer speaks nonsense; it will come again.
    pub fn close<S: Streams>(&mut self, net: &mut S) {
        if let Some(stream) = self.stream {
            net.close(stream, Close::Now);
        }
    }

    /// What is said while the link is down is lost by design: on the next connection everything is stated anew.
    pub fn stage(&mut self, message: &Up) {
        if self.stream.is_none() {
            return;
        }
        let may_be_lost = matches!(message, Up::AutoCreate { .. } | Up::ConnectionClosed(_));
        if may_be_lost && self.unread + self.staged.len() >= LINK_BEHIND_BYTES {
            self.dropped += 1;
            return;
        }
        frame::encode(message, &mut self.staged);
    }

    /// Says that the dataplane has stopped; it ends when that was read, or at a deadline.
    pub fn stage_stopped(&mut self, now: Monotonic) {
        self.stage(&Up::Stopped);
        let at = self.said + self.staged.len() as u64;
        let until = self.end.map_or(now + STOP_READ_WITHIN, |end| end.until);
        self.end = self.stream.map(|_| End { at, until });
    }

    /// Nobody has to wait (any longer) for the control plane to read of the end, as the last flush saw it.
    pub fn has_ended(&self, now: Monotonic) -> bool {
        self.end.is_none_or(|end| self.said - self.unread as u64 >= end.at || now >= end.until)
    }

    /// When it is no longer waited for that the end is read.
    pub fn next_deadline(&self) -> Option<Monotonic> {
        self.end.map(|end| end.until)
    }

    /// What was not said since this was last asked, since the control plane reads nothing.
    pub fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }

    /// Returns the bytes that went.
    pub fn flush<S: Streams>(&mut self, net: &mut S, arena: &Arena) -> usize {
        let Some(stream) = self.stream else { return 0 };
        for piece in self.staged.chunks(STAGED_BYTES_MAX) {
            // What may lie here for long takes nothing of the memory that everybody receives into.
            let passes = self.unread == 0 && self.staged.len() <= PASSING_BYTES_MAX;
            let copy = if passes { arena.copy(piece) } else { None };
            net.send(stream, copy.unwrap_or_else(|| BufferRef::from_vec(piece.to_vec())));
        }
        let sent = self.staged.len();
        self.said += sent as u64;
        self.staged.clear();
        self.staged.shrink_to(STAGED_BYTES_MAX);
        self.unread = net.queued(stream);
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{CoreId, ListenerId, Monotonic, Now, Random, WallMillis};
    use net::StreamEvent;
    use net::sim::{SimFaults, SimNetwork, SimStreams};

    #[test]
    fn what_may_be_lost_is_not_said_to_a_control_plane_that_reads_nothing() {
        let arena = Arena::heap(CoreId(0), 16 << 20);
        let now = Now { monotonic: Monotonic(1), wall: WallMillis(1) };
        let network = SimNetwork::new(Random::from_seed(1), SimFaults::none());
        let mut net = SimStreams::new(network.clone(), arena.clone(), now);
        let address = "127.0.0.1:1".parse().unwrap();
        net.listen(ListenerId(0), address).unwrap();
        let _silent = network.connect(address, "127.0.0.1:2".parse().unwrap()).unwrap();
        let mut events = Vec::new();
        net.poll(now, 64, &mut events);
        let Some(StreamEvent::Opened { stream, .. }) = events.pop() else { panic!("{events:?}") };
        let mut link = LinkEnd::default();
        link.on_opened(&mut net, stream);
        let wish = Up::AutoCreate {
            topics: vec!["t".repeat(1000)],
            principal: "User:ANONYMOUS".into(),
            client_host: "/127.0.0.1".into(),
        };
        let mut unread = 0;
        for _ in 0..10 {
            (0..1000).for_each(|_| link.stage(&wish));
            unread += link.flush(&mut net, &arena);
            net.flush(now);
        }
        let dropped = link.take_dropped();
        assert!(dropped > 7000, "{dropped} of 10,000 wishes are dropped");
        assert!(unread < 2 * LINK_BEHIND_BYTES + (64 << 10), "{unread} bytes wait to be read");
        // What must not be lost is said all the same.
        link.stage(&Up::Pong(1));
        assert!(link.flush(&mut net, &arena) > 0);
    }
}
