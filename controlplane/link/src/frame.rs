//! Framing: a 4-byte big-endian length, then one message. Incremental: bytes go in as the socket yields them.

use crate::MESSAGE_BYTES_MAX;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// The peer announced a message above `MESSAGE_BYTES_MAX`.
    TooLong(usize),
    /// The bytes are not a message of this protocol version.
    Malformed(String),
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::TooLong(n) => write!(f, "a link message of {n} bytes is above {MESSAGE_BYTES_MAX}"),
            FrameError::Malformed(why) => write!(f, "a link message cannot be read: {why}"),
        }
    }
}

impl std::error::Error for FrameError {}

/// Appends one framed message.
pub fn encode<M: Serialize>(message: &M, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    let mut taken = std::mem::take(out);
    taken = postcard::to_extend(message, taken).expect("serialising to memory cannot fail");
    let length = taken.len() - start - 4;
    assert!(length <= MESSAGE_BYTES_MAX, "senders split what is larger ({length} bytes)");
    taken[start..start + 4].copy_from_slice(&(length as u32).to_be_bytes());
    *out = taken;
}

/// Cuts a byte stream into messages.
#[derive(Debug, Default)]
pub struct Framer {
    pending: Vec<u8>,
    /// Bytes of `pending` already handed out; compacted when they are half of it, so that each byte moves twice at most.
    consumed: usize,
}

impl Framer {
    pub fn push(&mut self, bytes: &[u8]) {
        if self.consumed > 0 && self.consumed * 2 >= self.pending.len() {
            self.pending.drain(..self.consumed);
            self.consumed = 0;
        }
        self.pending.extend_from_slice(bytes);
    }

    /// The next whole message, if one is there.
    pub fn poll_message<M: DeserializeOwned>(&mut self) -> Result<Option<M>, FrameError> {
        let rest = &self.pending[self.consumed..];
        let Some(head) = rest.first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_be_bytes(*head) as usize;
        if length > MESSAGE_BYTES_MAX {
            return Err(FrameError::TooLong(length));
        }
        let Some(body) = rest.get(4..4 + length) else { return Ok(None) };
        let (message, left) =
            postcard::take_from_bytes::<M>(body).map_err(|error| FrameError::Malformed(error.to_string()))?;
        if !left.is_empty() {
            return Err(FrameError::Malformed(format!("{} bytes follow the message", left.len())));
        }
        self.consumed += 4 + length;
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Down, DownHello, PROTOCOL_VERSION, Up};
    use base::{NodeId, Uuid};

    #[test]
    fn messages_survive_any_cut_of_the_stream() {
        let hello = Down::Hello(DownHello {
            protocol_version: PROTOCOL_VERSION,
            cluster_id: "c".into(),
            node_id: NodeId(1),
            incarnation: Uuid(5),
        });
        let mut stream = Vec::new();
        for _ in 0..3 {
            encode(&hello, &mut stream);
        }
        encode(&Down::Ping(9), &mut stream);
        for piece in 1..stream.len() {
            let mut framer = Framer::default();
            let mut got = Vec::new();
            for chunk in stream.chunks(piece) {
                framer.push(chunk);
                while let Some(message) = framer.poll_message::<Down>().unwrap() {
                    got.push(message);
                }
            }
            assert_eq!(got, vec![hello.clone(), hello.clone(), hello.clone(), Down::Ping(9)]);
        }
    }

    #[test]
    fn garbage_is_an_error_not_a_panic() {
        let mut random = base::Random::from_seed(3);
        for _ in 0..2000 {
            let mut body = vec![0; random.below(60) as usize];
            random.fill(&mut body);
            let mut framer = Framer::default();
            framer.push(&(body.len() as u32).to_be_bytes());
            framer.push(&body);
            let _ = framer.poll_message::<Up>();
        }
        let mut framer = Framer::default();
        framer.push(&u32::MAX.to_be_bytes());
        assert_eq!(framer.poll_message::<Up>(), Err(FrameError::TooLong(u32::MAX as usize)));
    }
}
