//! The dataplane's end of the link: one stream on core 0, opened by the control plane.

use arena::{Arena, BufferRef};
use link::{Down, FrameError, Framer, Up, frame};
use net::{Close, StreamId, Streams};

/// Bytes of messages collected before they are handed to the network as one piece.
const STAGED_BYTES_MAX: usize = 256 << 10;

#[derive(Default)]
pub struct LinkEnd {
    stream: Option<StreamId>,
    framer: Framer,
    staged: Vec<u8>,
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
        self.framer = Framer::default();
        self.staged.clear();
        net.set_essential(stream);
    }

    pub fn on_closed(&mut self) {
        self.stream = None;
        self.framer = Framer::default();
        self.staged.clear();
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
        if self.stream.is_some() {
            frame::encode(message, &mut self.staged);
        }
    }

    /// Returns the bytes that went.
    pub fn flush<S: Streams>(&mut self, net: &mut S, arena: &Arena) -> usize {
        let Some(stream) = self.stream else { return 0 };
        for piece in self.staged.chunks(STAGED_BYTES_MAX) {
            let bytes = arena.copy(piece).unwrap_or_else(|| BufferRef::from_vec(piece.to_vec()));
            net.send(stream, bytes);
        }
        let sent = self.staged.len();
        self.staged.clear();
        sent
    }
}
