//! Cuts a connection's bytes into request frames: a 4-byte size, then that many bytes.
//!
//! A frame that lies whole in what was received is a slice of it. One that arrived in part goes on into a buffer of its
//! own, which grows as bytes really come: a peer that announces 100 MiB and sends nothing holds 16 KiB. The length is
//! checked before any memory is taken.

use crate::limits::PARTIAL_FRAME_BYTES_FIRST;
use arena::{Arena, Buffer, BufferRef};
use std::collections::VecDeque;
use std::fmt;

const SIZE_BYTES: usize = 4;
/// Growth of a partial frame's buffer; each byte is copied a third of once on average.
const GROWTH: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AssembleError {
    /// The announced size is negative, zero or above `socket.request.max.bytes`.
    BadSize(i32),
}

impl fmt::Display for AssembleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AssembleError::BadSize(size) = self;
        write!(f, "a frame of {size} bytes was announced: not a Kafka request, or above socket.request.max.bytes")
    }
}

/// What the assembler has or wants.
#[derive(Debug)]
pub enum Assembled {
    /// A whole request: header and body, without the size.
    Frame(BufferRef),
    /// The bytes that follow should be received straight into this buffer from `filled` on.
    Target { buffer: Buffer, filled: usize },
    /// There is no memory for the frame now: read nothing more and call `poll` again later.
    NoMemory,
    /// More bytes are needed, and they may come as they like.
    Incomplete,
}

#[derive(Debug)]
pub struct Assembler {
    frame_bytes_max: usize,
    /// A frame above this is admitted alone, outside the core's region (design 01, memory).
    share_bytes: usize,
    received: VecDeque<BufferRef>,
    /// What waits lies outside the arena.
    outside: bool,
    /// It has waited for memory the longest: its frame may lie beside the core's region, as one above the share does.
    alone: bool,
    /// The size field where it was cut.
    head: [u8; SIZE_BYTES],
    head_len: usize,
    state: State,
}

#[derive(Debug)]
enum State {
    Size,
    /// The size is known; `received` holds what came of the frame.
    Body {
        size: usize,
    },
    /// A buffer of the frame is with the network.
    Filling {
        size: usize,
    },
    /// A buffer came back full but short of the frame, and there was no memory to go on.
    Growing {
        size: usize,
        buffer: Buffer,
    },
}

impl Assembler {
    pub fn new(frame_bytes_max: usize, share_bytes: usize) -> Assembler {
        Assembler {
            frame_bytes_max,
            share_bytes,
            received: VecDeque::new(),
            outside: false,
            alone: false,
            head: [0; SIZE_BYTES],
            head_len: 0,
            state: State::Size,
        }
    }

    /// True between frames with nothing of the next one here.
    pub fn is_at_boundary(&self) -> bool {
        matches!(self.state, State::Size) && self.head_len == 0 && self.received.is_empty()
    }

    pub fn push(&mut self, bytes: BufferRef) {
        assert!(!matches!(self.state, State::Filling { .. }), "bytes past a target come after it was filled");
        if !bytes.is_empty() {
            self.outside = false;
            self.received.push_back(bytes);
        }
    }

    /// Bytes waiting here while a frame before them is being served.
    pub fn waiting_bytes(&self) -> usize {
        self.received.iter().map(|piece| piece.len()).sum()
    }

    /// Moves what waits into memory outside the arena, so that a stopped connection holds nothing of what everybody
    /// receives into; returns how much that is.
    pub fn leave_arena(&mut self) -> usize {
        let total = self.waiting_bytes();
        if total > 0 && !self.outside {
            let mut copy = Vec::with_capacity(total);
            self.received.iter().for_each(|piece| copy.extend_from_slice(piece));
            self.received = VecDeque::from([BufferRef::from_vec(copy)]);
        }
        self.outside = true;
        total
    }

    /// Frames that each hold a part of the memory and wait for the rest would wait for one another for good: the next
    /// `poll` may take memory beside the core's region, of which there is one piece at a time.
    pub fn admit_alone(&mut self) {
        self.alone = true;
    }

    /// The network filled the target.
    pub fn on_filled(&mut self, buffer: Buffer) {
        let State::Filling { size } = self.state else { panic!("no target was out") };
        self.state = State::Growing { size, buffer };
    }

    pub fn poll(&mut self, arena: &Arena) -> Result<Assembled, AssembleError> {
        let result = self.cut(arena);
        self.alone = false;
        result
    }

    fn cut(&mut self, arena: &Arena) -> Result<Assembled, AssembleError> {
        loop {
            match std::mem::replace(&mut self.state, State::Size) {
                State::Size => match self.take_size()? {
                    Some(size) => self.state = State::Body { size },
                    None => return Ok(Assembled::Incomplete),
                },
                State::Body { size } => {
                    if let Some(assembled) = self.take_body(arena, size) {
                        return Ok(assembled);
                    }
                }
                State::Growing { size, buffer } if buffer.len() >= size => {
                    assert_eq!(buffer.len(), size, "a target never reaches past its frame");
                    return Ok(Assembled::Frame(buffer.freeze()));
                }
                State::Growing { size, buffer } => {
                    if let Some(assembled) = self.grow(arena, size, buffer) {
                        return Ok(assembled);
                    }
                }
                State::Filling { size } => {
                    self.state = State::Filling { size };
                    return Ok(Assembled::Incomplete);
                }
            }
        }
    }

    fn take_size(&mut self) -> Result<Option<usize>, AssembleError> {
        while self.head_len < SIZE_BYTES {
            let Some(piece) = self.received.front_mut() else { return Ok(None) };
            let count = piece.len().min(SIZE_BYTES - self.head_len);
            self.head[self.head_len..self.head_len + count].copy_from_slice(&piece[..count]);
            self.head_len += count;
            advance(&mut self.received, count);
        }
        let size = i32::from_be_bytes(self.head);
        self.head_len = 0;
        match usize::try_from(size) {
            Ok(bytes) if bytes > 0 && bytes <= self.frame_bytes_max => Ok(Some(bytes)),
            _ => Err(AssembleError::BadSize(size)),
        }
    }

    fn take_body(&mut self, arena: &Arena, size: usize) -> Option<Assembled> {
        if let Some(first) = self.received.front()
            && first.len() >= size
        {
            let frame = first.slice(0..size);
            advance(&mut self.received, size);
            return Some(Assembled::Frame(frame));
        }
        let have = self.waiting_bytes();
        // Oversized memory is mapped whole and touched as it fills.
        let wanted = if size > self.share_bytes { size } else { size.min(PARTIAL_FRAME_BYTES_FIRST.max(have * 2)) };
        let Some(mut buffer) = self.allocate(arena, size, wanted) else {
            self.state = State::Body { size };
            return Some(Assembled::NoMemory);
        };
        let filled = gather(&mut self.received, &mut buffer, 0);
        self.hand_out(size, buffer, filled)
    }

    fn grow(&mut self, arena: &Arena, size: usize, old: Buffer) -> Option<Assembled> {
        let wanted = size.min(old.len() * GROWTH);
        let Some(mut buffer) = self.allocate(arena, size, wanted) else {
            self.state = State::Growing { size, buffer: old };
            return Some(Assembled::NoMemory);
        };
        buffer[..old.len()].copy_from_slice(&old);
        let filled = gather(&mut self.received, &mut buffer, old.len());
        self.hand_out(size, buffer, filled)
    }

    /// `None` where what was received already fills the buffer: it has to grow before anything can be asked for.
    fn hand_out(&mut self, size: usize, buffer: Buffer, filled: usize) -> Option<Assembled> {
        if filled == buffer.len() {
            self.state = State::Growing { size, buffer };
            return None;
        }
        self.state = State::Filling { size };
        Some(Assembled::Target { buffer, filled })
    }

    /// Memory for the first `wanted` bytes of a frame, or for all of it where it is beside the region.
    fn allocate(&self, arena: &Arena, size: usize, wanted: usize) -> Option<Buffer> {
        let own = if size > self.share_bytes { arena.allocate_oversized(wanted) } else { arena.try_allocate(wanted) };
        if let Some(mut buffer) = own {
            buffer.truncate(wanted);
            return Some(buffer);
        }
        let mut buffer = self.alone.then(|| arena.allocate_oversized(size)).flatten()?;
        buffer.truncate(size);
        Some(buffer)
    }
}

/// Drops `count` bytes from the front.
fn advance(pieces: &mut VecDeque<BufferRef>, count: usize) {
    let front = pieces.front_mut().expect("bytes to drop are there");
    if front.len() == count {
        pieces.pop_front();
    } else {
        *front = front.slice(count..front.len());
    }
}

/// Copies pieces into `buffer` from `filled` on until either ends; returns how much of the buffer is filled.
fn gather(pieces: &mut VecDeque<BufferRef>, buffer: &mut Buffer, mut filled: usize) -> usize {
    while filled < buffer.len() {
        let Some(front) = pieces.front() else { break };
        let count = front.len().min(buffer.len() - filled);
        buffer[filled..filled + count].copy_from_slice(&front[..count]);
        filled += count;
        advance(pieces, count);
    }
    filled
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{CoreId, Random};

    fn arena() -> Arena {
        Arena::heap(CoreId(0), 64 << 20)
    }

    /// Feeds a stream in random pieces the way the network does, and returns the frames.
    fn feed(stream: &[u8], random: &mut Random, arena: &Arena) -> Vec<Vec<u8>> {
        let mut assembler = Assembler::new(1 << 20, 256 << 10);
        let mut frames = Vec::new();
        let mut target: Option<(Buffer, usize)> = None;
        let mut at = 0;
        while at < stream.len() {
            let count = (1 + random.below(40_000) as usize).min(stream.len() - at);
            if let Some((mut buffer, filled)) = target.take() {
                let count = count.min(buffer.len() - filled);
                buffer[filled..filled + count].copy_from_slice(&stream[at..at + count]);
                at += count;
                if filled + count < buffer.len() {
                    target = Some((buffer, filled + count));
                    continue;
                }
                assembler.on_filled(buffer);
            } else {
                assembler.push(BufferRef::from_vec(stream[at..at + count].to_vec()));
                at += count;
            }
            loop {
                match assembler.poll(arena).unwrap() {
                    Assembled::Frame(frame) => frames.push(frame.to_vec()),
                    Assembled::Target { buffer, filled } => {
                        target = Some((buffer, filled));
                        break;
                    }
                    Assembled::NoMemory => continue,
                    Assembled::Incomplete => break,
                }
            }
        }
        assert!(assembler.is_at_boundary());
        frames
    }

    #[test]
    fn frames_survive_any_cut_of_the_stream() {
        let arena = arena();
        for seed in 0..60 {
            let mut random = Random::from_seed(seed);
            let mut stream = Vec::new();
            let mut expected = Vec::new();
            for _ in 0..20 {
                let len = if random.chance(1, 5) { random.below(700_000) } else { random.below(300) } as usize + 1;
                let mut frame = vec![0; len];
                random.fill(&mut frame);
                stream.extend_from_slice(&(len as i32).to_be_bytes());
                stream.extend_from_slice(&frame);
                expected.push(frame);
            }
            assert!(feed(&stream, &mut random, &arena) == expected, "seed {seed}");
        }
        assert_eq!(arena.used_bytes(), 0, "nothing stays behind");
    }

    #[test]
    fn a_bad_size_is_refused_before_memory_is_taken() {
        let arena = arena();
        for size in [-1, 0, i32::MIN, i32::MAX, (1 << 20) + 1, i32::from_be_bytes(*b"GET ")] {
            let mut assembler = Assembler::new(1 << 20, 256 << 10);
            assembler.push(BufferRef::from_vec(size.to_be_bytes().to_vec()));
            assert_eq!(assembler.poll(&arena).unwrap_err(), AssembleError::BadSize(size));
            assert_eq!(arena.used_bytes(), 0);
        }
    }

    #[test]
    fn a_peer_that_announces_much_and_sends_little_holds_little() {
        let arena = arena();
        let mut assembler = Assembler::new(1 << 20, 2 << 20);
        assembler.push(BufferRef::from_vec((1i32 << 20).to_be_bytes().to_vec()));
        assembler.push(BufferRef::from_vec(vec![1; 10]));
        let Assembled::Target { buffer, filled } = assembler.poll(&arena).unwrap() else { panic!("a target") };
        assert_eq!((buffer.len(), filled), (PARTIAL_FRAME_BYTES_FIRST, 10));
    }

    #[test]
    fn without_memory_the_frame_waits_and_nothing_is_lost() {
        let arena = Arena::heap(CoreId(0), 32 << 10);
        let hog = arena.try_allocate(32 << 10).unwrap();
        let mut assembler = Assembler::new(1 << 20, 1 << 20);
        let mut stream = 20_000i32.to_be_bytes().to_vec();
        stream.extend_from_slice(&[7; 100]);
        assembler.push(BufferRef::from_vec(stream));
        assert!(matches!(assembler.poll(&arena).unwrap(), Assembled::NoMemory));
        drop(hog);
        assert!(matches!(assembler.poll(&arena).unwrap(), Assembled::Target { filled: 100, .. }));
    }
}
