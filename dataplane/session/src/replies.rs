//! Replies of one connection, in the order of its requests (design 01, order on a connection).
//!
//! A peer that does not read pins nothing: what can be described is given to the network a little ahead of the socket
//! only, and where the socket stays full the bytes are let go, to be asked for again when there is room.

use crate::limits::{SEND_AHEAD, WINDOW_BYTES, WINDOW_BYTES_SLOW};
use arena::BufferRef;
use handoff::Stretch;
use std::collections::VecDeque;

/// Names a reply of its connection; numbers rise by one with each request that is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplyNumber(pub u64);

/// A part of a response.
#[derive(Clone, Debug)]
pub enum Piece {
    /// Bytes of the response's own.
    Bytes(BufferRef),
    /// Bytes of a log at hand, and how to ask for them again.
    Held(BufferRef, Stretch),
    /// Bytes of a log that come into memory when the socket has drained.
    Stored(Stretch),
}

impl Piece {
    /// The bytes to send now, at most `room` of them, and what is left of the piece.
    fn split(self, room: usize) -> (Piece, Option<Piece>) {
        match self {
            Piece::Bytes(bytes) if bytes.len() > room => {
                (Piece::Bytes(bytes.slice(0..room)), Some(Piece::Bytes(bytes.slice(room..bytes.len()))))
            }
            Piece::Held(bytes, again) if bytes.len() > room => {
                let (first, rest) = (again.first(room as u32), again.after(room as u32));
                let after = bytes.slice(room..bytes.len());
                (Piece::Held(bytes.slice(0..room), first), Some(Piece::Held(after, rest)))
            }
            whole => (whole, None),
        }
    }

    fn len(&self) -> usize {
        match self {
            Piece::Bytes(bytes) | Piece::Held(bytes, _) => bytes.len(),
            Piece::Stored(stretch) => stretch.length as usize,
        }
    }

    fn pins(&self) -> bool {
        matches!(self, Piece::Held(..))
    }
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
    /// More is due when the network has sent what it holds.
    Behind,
    Nothing,
}

/// Where a window belongs that was asked for.
#[derive(Clone, Copy, Debug)]
enum WindowOf {
    Returned,
    FirstReply,
}

#[derive(Debug)]
pub struct Replies {
    /// Each reply, and whether its request is a Produce.
    queue: VecDeque<(Reply, bool)>,
    first: u64,
    produces: usize,
    /// Pieces that the network gave back; they come before everything else.
    returned: VecDeque<Piece>,
    /// Pieces that the network was given since it was last seen to have sent everything.
    handed: VecDeque<Piece>,
    /// A window of stored bytes was asked for and has not come.
    window_out: Option<WindowOf>,
    /// The next window: small after the socket was full, since most of it would have to be let go.
    window: u32,
}

impl Default for Replies {
    fn default() -> Replies {
        Replies {
            queue: VecDeque::new(),
            first: 0,
            produces: 0,
            returned: VecDeque::new(),
            handed: VecDeque::new(),
            window_out: None,
            window: WINDOW_BYTES,
        }
    }
}

impl Replies {
    /// Takes the next place.
    pub fn begin(&mut self, is_produce: bool) -> ReplyNumber {
        self.queue.push_back((Reply::Waiting, is_produce));
        self.produces += usize::from(is_produce);
        ReplyNumber(self.first + self.queue.len() as u64 - 1)
    }

    /// The newest request is to be the last until it is answered, though it is a Produce.
    pub fn let_none_beside(&mut self, number: ReplyNumber) {
        assert_eq!(number.0 + 1, self.first + self.queue.len() as u64, "it is the newest");
        if let Some((_, is_produce)) = self.queue.back_mut() {
            self.produces -= usize::from(std::mem::take(is_produce));
        }
    }

    /// Produce requests among those pending.
    pub fn produces(&self) -> usize {
        self.produces
    }

    /// Requests that are not yet answered, or whose answer is not yet given to the network.
    pub fn pending(&self) -> usize {
        self.queue.len() + usize::from(!self.returned.is_empty())
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
            // Bytes are still on their way from their owner: nothing may overtake them.
            if self.window_out.is_some() {
                return Next::Nothing;
            }
            let (pieces, of) = match (self.returned.is_empty(), self.queue.front_mut()) {
                (false, _) => (&mut self.returned, WindowOf::Returned),
                (true, Some((Reply::Ready(pieces), _))) => (pieces, WindowOf::FirstReply),
                (true, Some((Reply::Silent, _))) => {
                    self.pop();
                    continue;
                }
                (true, Some((Reply::Close, _))) => return Next::Close,
                (true, _) => return Next::Nothing,
            };
            match pieces.pop_front() {
                None => self.pop(),
                // A window is asked for when everything before it has left, so that what is let go keeps its place.
                Some(Piece::Stored(stretch)) => {
                    pieces.push_front(Piece::Stored(stretch));
                    if queued > 0 {
                        return Next::Behind;
                    }
                    self.window_out = Some(of);
                    return Next::Fetch { stretches: take_window(pieces, self.window), bytes_max: self.window };
                }
                Some(piece) if queued >= SEND_AHEAD => {
                    pieces.push_front(piece);
                    return Next::Behind;
                }
                Some(piece) => {
                    let (now, later) = piece.split(SEND_AHEAD - queued);
                    later.into_iter().for_each(|later| pieces.push_front(later));
                    let (Piece::Bytes(bytes) | Piece::Held(bytes, _)) = &now else { unreachable!("it has bytes") };
                    let bytes = bytes.clone();
                    self.handed.push_back(now);
                    return Next::Send(bytes);
                }
            }
        }
    }

    /// The stored bytes asked for, and the stretches that are still to be read after them.
    pub fn on_window(&mut self, bytes: Vec<(BufferRef, Stretch)>, rest: Vec<Stretch>) {
        let pieces = match self.window_out.take().expect("a window was asked for") {
            WindowOf::Returned => &mut self.returned,
            WindowOf::FirstReply => match self.queue.front_mut() {
                Some((Reply::Ready(pieces), _)) => pieces,
                _ => panic!("its reply is the first"),
            },
        };
        for stretch in rest.into_iter().rev() {
            pieces.push_front(Piece::Stored(stretch));
        }
        for (piece, again) in bytes.into_iter().rev() {
            pieces.push_front(Piece::Held(piece, again));
        }
    }

    /// The network has sent everything that it was given.
    pub fn on_sent(&mut self) {
        self.handed.clear();
        self.window = WINDOW_BYTES.min(self.window * 2);
    }

    /// Of what the network was given, the bytes that it may give back for the sake of those that pin a log's memory.
    pub fn may_give_back(&mut self) -> usize {
        if !self.handed.iter().any(Piece::pins) {
            self.handed.clear();
        }
        self.handed.iter().map(Piece::len).sum()
    }

    /// The socket is full. The network gave back the last `forgotten` bytes that it was given and keeps copies of those
    /// before them; everything that can be described is asked for again when it is due.
    pub fn let_go(&mut self, mut forgotten: usize) {
        while forgotten > 0 {
            let piece = self.handed.pop_back().expect("the network gives back what it was given");
            let sent = piece.len().saturating_sub(forgotten);
            forgotten -= piece.len() - sent;
            let unsent = if sent == 0 { Some(piece) } else { piece.split(sent).1 };
            unsent.into_iter().for_each(|unsent| self.returned.push_front(unsent));
        }
        self.handed.clear();
        self.window = WINDOW_BYTES_SLOW;
        describe(&mut self.returned);
        if let Some((Reply::Ready(pieces), _)) = self.queue.front_mut() {
            describe(pieces);
        }
    }

    fn pop(&mut self) {
        let popped = self.queue.pop_front();
        self.produces -= usize::from(popped.is_some_and(|(_, is_produce)| is_produce));
        self.first += 1;
    }
}

/// Bytes that can be asked for again become what is to be asked for.
fn describe(pieces: &mut VecDeque<Piece>) {
    if !pieces.iter().any(Piece::pins) {
        return;
    }
    for piece in std::mem::take(pieces) {
        let piece = match piece {
            Piece::Held(_, again) => Piece::Stored(again),
            other => other,
        };
        let joined = match (pieces.back_mut(), &piece) {
            (Some(Piece::Stored(before)), Piece::Stored(next)) => before.join(next),
            _ => false,
        };
        if !joined {
            pieces.push_back(piece);
        }
    }
}

/// The run of stretches at the front that one core owns, up to a window.
fn take_window(pieces: &mut VecDeque<Piece>, bytes_max: u32) -> Vec<Stretch> {
    let mut stretches: Vec<Stretch> = Vec::new();
    let mut bytes = 0u32;
    while let Some(Piece::Stored(stretch)) = pieces.front() {
        let same_owner = stretches.first().is_none_or(|first| first.owner == stretch.owner);
        if !same_owner || bytes >= bytes_max {
            break;
        }
        bytes = bytes.saturating_add(stretch.length);
        stretches.push(*stretch);
        pieces.pop_front();
    }
    stretches
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

    /// A window of one piece with this text.
    fn window(text: &str) -> Vec<(BufferRef, Stretch)> {
        let Piece::Stored(again) = stored(text.len() as u32, 0) else { unreachable!("it is stored") };
        vec![(BufferRef::from_vec(text.as_bytes().to_vec()), again)]
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
        assert!(matches!(replies.poll(1), Next::Behind), "the socket is behind");
        let Next::Fetch { stretches, .. } = replies.poll(0) else { panic!("a window is due") };
        assert_eq!(stretches.len(), 1);
        assert!(matches!(replies.poll(0), Next::Nothing), "one window at a time");
        replies.on_window(window("w"), vec![]);
        assert_eq!(sent_until_fetch(&mut replies), ("w".into(), 1), "the next window stops where the owner changes");
        replies.on_window(window("x"), vec![]);
        assert_eq!(sent_until_fetch(&mut replies), ("x".into(), 1));
        replies.on_window(window("y"), vec![]);
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
            replies.on_window(super::tests::window(window), vec![]);
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

    /// A log of letters, of which a stretch's last word counts the ones before it.
    fn letters(stretch: &Stretch) -> Vec<u8> {
        (stretch.inside[5]..stretch.inside[5] + u64::from(stretch.length)).map(|at| b'a' + (at % 26) as u8).collect()
    }

    #[test]
    fn a_full_socket_has_everything_let_go_that_can_be_described_and_nothing_is_lost_or_twice() {
        for seed in 0..300 {
            let mut random = base::Random::from_seed(seed);
            let mut replies = Replies::default();
            let number = replies.begin(false);
            let length = 1 + random.below(3 * u64::from(WINDOW_BYTES)) as u32;
            let Piece::Stored(whole) = stored(length, 0) else { unreachable!("it is stored") };
            let ready = length.min(random.below(u64::from(length)) as u32 + 1);
            let held = Piece::Held(BufferRef::from_vec(letters(&whole.first(ready))), whole.first(ready));
            let mut pieces = VecDeque::from([bytes("head"), held, bytes("tail")]);
            if ready < length {
                pieces.insert(2, Piece::Stored(whole.after(ready)));
            }
            replies.ready(number, pieces);
            let expected = [b"head", &letters(&whole)[..], b"tail"].concat();
            let (mut network, mut arrived): (Vec<u8>, Vec<u8>) = (Vec::new(), Vec::new());
            let mut rounds = 0;
            while arrived.len() < expected.len() {
                rounds += 1;
                assert!(rounds < 100_000, "seed {seed}: it stands still at {}", arrived.len());
                match replies.poll(network.len()) {
                    Next::Send(piece) => {
                        network.extend_from_slice(&piece);
                        assert!(network.len() <= SEND_AHEAD);
                        continue;
                    }
                    Next::Fetch { stretches, bytes_max } => {
                        let first = stretches[0].first(stretches[0].length.min(bytes_max));
                        let left = stretches[0].after(first.length);
                        let rest = Some(left).filter(|left| left.length > 0).into_iter();
                        let window = vec![(BufferRef::from_vec(letters(&first)), first)];
                        replies.on_window(window, rest.chain(stretches[1..].iter().copied()).collect());
                        continue;
                    }
                    Next::Behind | Next::Nothing => {}
                    Next::Close => panic!("nothing closes"),
                }
                // The socket takes something, everything, or nothing.
                let takes =
                    [0, random.below(5000) as usize, network.len()][random.below(3) as usize].min(network.len());
                arrived.extend(network.drain(..takes));
                if network.is_empty() {
                    replies.on_sent();
                    continue;
                }
                let may = replies.may_give_back();
                let keep = crate::limits::KEPT_BYTES.max(network.len().saturating_sub(may));
                let forgotten = if may == 0 { 0 } else { network.len().saturating_sub(keep) };
                network.truncate(network.len() - forgotten);
                replies.let_go(forgotten);
                assert!(!replies.returned.iter().any(Piece::pins) && replies.handed.is_empty(), "nothing is pinned");
            }
            assert!(arrived == expected, "seed {seed}");
            replies.poll(0);
            assert_eq!(replies.pending(), 0);
        }
    }
}
