//! Replies of one connection, in the order of its requests (design 01, order on a connection).

use crate::limits::{CONNECTION_RESPONSE_BYTES_MAX, WINDOW_BYTES};
use arena::BufferRef;
use handoff::Stretch;
use std::collections::VecDeque;

/// Names a reply of its connection; numbers rise by one with each request that is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplyNumber(pub u64);

/// A part of a response: bytes at hand, or stored bytes that come into memory when the socket has drained.
#[derive(Clone, Debug)]
pub enum Piece {
    Bytes(BufferRef),
    Stored(Stretch),
}

#[derive(Debug)]
enum Reply {
    Waiting,
    Ready(VecDeque<Piece>),
    /// The request has no answer (Produce with acks=0).
    Silent,
    /// The connection ends here, after what stands before was sent.
    Close,
}

/// What the queue wants done next.
#[derive(Debug)]
pub enum Next {
    Send(BufferRef),
    /// Ask the owner for these stretches; the pieces go in by `on_window`.
    Fetch {
        stretches: Vec<Stretch>,
        bytes_max: u32,
    },
    Close,
    /// A window is due when the network has sent more of what it holds.
    Behind,
    Nothing,
}

#[derive(Debug, Default)]
pub struct Replies {
    /// Each reply, and whether its request is a Produce.
    queue: VecDeque<(Reply, bool)>,
    first: u64,
    produces: usize,
    /// A window of stored bytes was asked for and has not come.
    window_out: bool,
}

impl Replies {
    /// Takes the next place.
    pub fn begin(&mut self, is_produce: bool) -> ReplyNumber {
        self.queue.push_back((Reply::Waiting, is_produce));
        self.produces += usize::from(is_produce);
        ReplyNumber(self.first + self.queue.len() as u64 - 1)
    }

    /// Produce requests among those pending.
    pub fn produces(&self) -> usize {
        self.produces
    }

    /// Requests that are not yet answered, or whose answer is not yet sent.
    pub fn pending(&self) -> usize {
        self.queue.len()
    }

    fn at(&mut self, number: ReplyNumber) -> &mut Reply {
        let index = number.0.checked_sub(self.first).expect("a reply is given once") as usize;
        let (reply, _) = self.queue.get_mut(index).expect("a reply was begun");
        assert!(matches!(reply, Reply::Waiting), "a reply is given once");
        reply
    }

    pub fn ready(&mut self, number: ReplyNumber, pieces: VecDeque<Piece>) {
        *self.at(number) = Reply::Ready(pieces);
    }

    pub fn silent(&mut self, number: ReplyNumber) {
        *self.at(number) = Reply::Silent;
    }

    pub fn close(&mut self, number: ReplyNumber) {
        *self.at(number) = Reply::Close;
    }

    /// The next thing to do, given how many bytes of this connection wait in the network.
    pub fn poll(&mut self, queued: usize) -> Next {
        loop {
            let Some((Reply::Ready(pieces), _)) = self.queue.front_mut() else {
                match self.queue.front() {
                    Some((Reply::Silent, _)) => {
                        self.pop();
                        continue;
                    }
                    Some((Reply::Close, _)) => return Next::Close,
                    _ => return Next::Nothing,
                }
            };
            match pieces.front() {
                // Bytes of this reply are still on their way from their owner: nothing may overtake them.
                _ if self.window_out => return Next::Nothing,
                None => self.pop(),
                Some(Piece::Bytes(_)) => {
                    let Some(Piece::Bytes(bytes)) = pieces.pop_front() else { unreachable!("just looked") };
                    return Next::Send(bytes);
                }
                Some(Piece::Stored(_)) if queued + WINDOW_BYTES as usize > CONNECTION_RESPONSE_BYTES_MAX => {
                    return Next::Behind;
                }
                Some(Piece::Stored(_)) => {
                    self.window_out = true;
                    return take_window(pieces);
                }
            }
        }
    }

    /// The stored bytes asked for, and the stretches that are still to be read after them.
    pub fn on_window(&mut self, bytes: Vec<BufferRef>, rest: Vec<Stretch>) {
        assert!(self.window_out, "a window was asked for");
        self.window_out = false;
        let Some((Reply::Ready(pieces), _)) = self.queue.front_mut() else { panic!("its reply is the first") };
        for stretch in rest.into_iter().rev() {
            pieces.push_front(Piece::Stored(stretch));
        }
        for piece in bytes.into_iter().rev() {
            pieces.push_front(Piece::Bytes(piece));
        }
    }

    fn pop(&mut self) {
        let popped = self.queue.pop_front();
        self.produces -= usize::from(popped.is_some_and(|(_, is_produce)| is_produce));
        self.first += 1;
    }
}

/// The run of stretches at the front that one core owns, up to a window.
fn take_window(pieces: &mut VecDeque<Piece>) -> Next {
    let mut stretches: Vec<Stretch> = Vec::new();
    let mut bytes = 0u32;
    while let Some(Piece::Stored(stretch)) = pieces.front() {
        let same_owner = stretches.first().is_none_or(|first| first.owner == stretch.owner);
        if !same_owner || bytes >= WINDOW_BYTES {
            break;
        }
        bytes = bytes.saturating_add(stretch.length);
        stretches.push(*stretch);
        pieces.pop_front();
    }
    Next::Fetch { stretches, bytes_max: WINDOW_BYTES }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{CoreId, PartitionId};

    fn bytes(text: &'static str) -> Piece {
        Piece::Bytes(BufferRef::from_vec(text.as_bytes().to_vec()))
    }

    fn stored(length: u32, owner: u16) -> Piece {
        Piece::Stored(Stretch { owner: CoreId(owner), partition: PartitionId::default(), length, inside: [0; 6] })
    }

    fn sent(replies: &mut Replies) -> String {
        let mut all = String::new();
        while let Next::Send(piece) = replies.poll(0) {
            all.push_str(std::str::from_utf8(&piece).unwrap());
        }
        all
    }

    #[test]
    fn answers_leave_in_the_order_of_requests() {
        let mut replies = Replies::default();
        let numbers: Vec<_> = (0..4).map(|i| replies.begin(i % 2 == 0)).collect();
        replies.ready(numbers[2], VecDeque::from([bytes("c")]));
        assert_eq!(sent(&mut replies), "");
        replies.ready(numbers[0], VecDeque::from([bytes("a"), bytes("a")]));
        assert_eq!(sent(&mut replies), "aa");
        replies.silent(numbers[1]);
        assert_eq!(sent(&mut replies), "c");
        assert_eq!((replies.pending(), replies.produces()), (1, 0));
        replies.close(numbers[3]);
        assert!(matches!(replies.poll(0), Next::Close));
    }

    #[test]
    fn stored_bytes_come_in_windows_as_the_socket_drains() {
        let mut replies = Replies::default();
        let number = replies.begin(false);
        let pieces = VecDeque::from([bytes("h"), stored(WINDOW_BYTES, 0), stored(10, 0), stored(10, 1), bytes("t")]);
        replies.ready(number, pieces);
        assert!(matches!(replies.poll(0), Next::Send(_)));
        assert!(matches!(replies.poll(CONNECTION_RESPONSE_BYTES_MAX), Next::Behind), "the socket is behind");
        let Next::Fetch { stretches, .. } = replies.poll(0) else { panic!("a window is due") };
        assert_eq!(stretches.len(), 1);
        assert!(matches!(replies.poll(0), Next::Nothing), "one window at a time");
        replies.on_window(vec![BufferRef::from_vec(b"w".to_vec())], vec![]);
        assert_eq!(sent_until_fetch(&mut replies), ("w".into(), 1), "the next window stops where the owner changes");
        replies.on_window(vec![BufferRef::from_vec(b"x".to_vec())], vec![]);
        assert_eq!(sent_until_fetch(&mut replies), ("x".into(), 1));
        replies.on_window(vec![BufferRef::from_vec(b"y".to_vec())], vec![]);
        assert_eq!(sent(&mut replies), "yt");
        assert_eq!(replies.pending(), 0);
    }

    #[test]
    fn nothing_overtakes_stored_bytes_that_were_asked_for() {
        let mut replies = Replies::default();
        let numbers = [replies.begin(false), replies.begin(false)];
        replies.ready(numbers[0], VecDeque::from([bytes("h"), stored(10, 0), bytes("i"), stored(10, 0)]));
        replies.ready(numbers[1], VecDeque::from([bytes("next")]));
        for (before, window) in [("h", "w"), ("wi", "x")] {
            assert_eq!(sent_until_fetch(&mut replies), (before.into(), 1));
            assert!(matches!(replies.poll(0), Next::Nothing), "the socket drained meanwhile");
            replies.on_window(vec![BufferRef::from_vec(window.as_bytes().to_vec())], vec![]);
        }
        assert_eq!(sent(&mut replies), "xnext");
    }

    fn sent_until_fetch(replies: &mut Replies) -> (String, usize) {
        let mut all = String::new();
        loop {
            match replies.poll(0) {
                Next::Send(piece) => all.push_str(std::str::from_utf8(&piece).unwrap()),
                Next::Fetch { stretches, .. } => return (all, stretches.len()),
                other => panic!("{other:?}"),
            }
        }
    }
}
