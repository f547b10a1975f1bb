//! Frames on a byte stream: an int32 size, then so many bytes. Nothing here does I/O or keeps bytes.

use crate::encoder::EncodeError;
use bytes::{BufMut, BytesMut};
use std::fmt;
use std::ops::Range;

pub const SIZE_BYTES: usize = 4;

/// The stream cannot be read on: what follows has no known beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    NegativeSize(i32),
    TooLarge { size: usize, max: usize },
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::NegativeSize(size) => write!(f, "frame size {size}"),
            FrameError::TooLarge { size, max } => write!(f, "frame of {size} bytes, the limit is {max}"),
        }
    }
}

impl std::error::Error for FrameError {}

fn checked(size: [u8; SIZE_BYTES], max: usize) -> Result<usize, FrameError> {
    let size = i32::from_be_bytes(size);
    let size = usize::try_from(size).map_err(|_| FrameError::NegativeSize(size))?;
    if size > max { Err(FrameError::TooLarge { size, max }) } else { Ok(size) }
}

/// Where the first frame's content lies in `buffer`; `None` while it is incomplete. The size is refused as soon as its
/// four bytes are there.
pub fn split(buffer: &[u8], max: usize) -> Result<Option<Range<usize>>, FrameError> {
    let Some(size) = buffer.first_chunk::<SIZE_BYTES>() else { return Ok(None) };
    let end = SIZE_BYTES + checked(*size, max)?;
    Ok((end <= buffer.len()).then_some(SIZE_BYTES..end))
}

/// What a chunk of the stream holds next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FramePart {
    /// A frame of so many bytes begins: time to take memory for it, or to stop reading.
    Begin(usize),
    /// Bytes of the current frame, as a range of the chunk. `last` says that the frame is complete; an empty frame has
    /// one empty part.
    Body { range: Range<usize>, last: bool },
}

/// Finds frames in chunks that end anywhere, also inside a size.
#[derive(Clone, Debug)]
pub struct FrameParser {
    max: usize,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Size { bytes: [u8; SIZE_BYTES], have: usize },
    Body { left: usize },
    Failed(FrameError),
}

const NO_SIZE: State = State::Size { bytes: [0; SIZE_BYTES], have: 0 };

impl FrameParser {
    pub fn new(max: usize) -> FrameParser {
        FrameParser { max, state: NO_SIZE }
    }

    /// The next part at or after `at`, which moves behind it; `None` when the chunk is used up. An error is final.
    pub fn next(&mut self, chunk: &[u8], at: &mut usize) -> Result<Option<FramePart>, FrameError> {
        match self.state {
            State::Failed(error) => Err(error),
            State::Size { mut bytes, mut have } => {
                while have < SIZE_BYTES {
                    let Some(byte) = chunk.get(*at) else {
                        self.state = State::Size { bytes, have };
                        return Ok(None);
                    };
                    bytes[have] = *byte;
                    have += 1;
                    *at += 1;
                }
                match checked(bytes, self.max) {
                    Ok(size) => {
                        self.state = State::Body { left: size };
                        Ok(Some(FramePart::Begin(size)))
                    }
                    Err(error) => {
                        self.state = State::Failed(error);
                        Err(error)
                    }
                }
            }
            State::Body { left } => {
                let here = left.min(chunk.len().saturating_sub(*at));
                if here == 0 && left > 0 {
                    return Ok(None);
                }
                let range = *at..*at + here;
                *at += here;
                let last = here == left;
                self.state = if last { NO_SIZE } else { State::Body { left: left - here } };
                Ok(Some(FramePart::Body { range, last }))
            }
        }
    }

    /// Bytes missing from the frame that has begun; 0 between frames and inside a size.
    pub fn missing(&self) -> usize {
        match self.state {
            State::Body { left } => left,
            State::Size { .. } | State::Failed(_) => 0,
        }
    }

    /// Whether the stream may end here without cutting a frame.
    pub fn is_between_frames(&self) -> bool {
        self.state == NO_SIZE
    }

    /// `count` bytes of the current frame were received elsewhere (straight into its buffer). Returns whether it is
    /// complete now.
    pub fn skip_body(&mut self, count: usize) -> bool {
        let State::Body { left } = self.state else { panic!("no frame has begun") };
        assert!(count <= left, "more bytes than the frame has left");
        self.state = if count == left { NO_SIZE } else { State::Body { left: left - count } };
        count == left
    }
}

/// Writes a frame: `write` appends its content, the size in front is filled in. After an error nothing of it is left.
pub fn sized(
    out: &mut BytesMut,
    write: impl FnOnce(&mut BytesMut) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    let start = out.len();
    out.put_i32(0);
    let written = write(out).and_then(|()| {
        let size = out.len() - start - SIZE_BYTES;
        i32::try_from(size).map_err(|_| EncodeError::TooLong(size))
    });
    match written {
        Ok(size) => {
            out[start..start + SIZE_BYTES].copy_from_slice(&size.to_be_bytes());
            Ok(())
        }
        Err(error) => {
            out.truncate(start);
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(frames: &[&[u8]]) -> Vec<u8> {
        let mut out = BytesMut::new();
        for frame in frames {
            sized(&mut out, |out| {
                out.put_slice(frame);
                Ok(())
            })
            .unwrap();
        }
        out.to_vec()
    }

    #[test]
    fn frames_are_found_however_the_stream_is_cut() {
        let frames: [&[u8]; 4] = [b"first", b"", b"x", b"a longer one"];
        let bytes = stream(&frames);
        for step in 1..=bytes.len() {
            let mut parser = FrameParser::new(100);
            let mut found: Vec<Vec<u8>> = Vec::new();
            let mut sizes = Vec::new();
            let mut current = Vec::new();
            for chunk in bytes.chunks(step) {
                let mut at = 0;
                while let Some(part) = parser.next(chunk, &mut at).unwrap() {
                    match part {
                        FramePart::Begin(size) => sizes.push(size),
                        FramePart::Body { range, last } => {
                            current.extend_from_slice(&chunk[range]);
                            if last {
                                found.push(std::mem::take(&mut current));
                            }
                        }
                    }
                }
                assert_eq!(at, chunk.len());
            }
            assert_eq!(found, frames, "chunks of {step}");
            assert_eq!(sizes, frames.map(<[u8]>::len));
            assert!(parser.is_between_frames());
        }
    }

    #[test]
    fn sizes_are_refused_before_the_frame_arrives() {
        let max = 100;
        let cases = [
            (-1i32, FrameError::NegativeSize(-1)),
            (i32::MIN, FrameError::NegativeSize(i32::MIN)),
            (101, FrameError::TooLarge { size: 101, max }),
            (i32::MAX, FrameError::TooLarge { size: i32::MAX as usize, max }),
        ];
        for (size, error) in cases {
            let bytes = size.to_be_bytes();
            assert_eq!(split(&bytes, max), Err(error));
            let mut parser = FrameParser::new(max);
            assert_eq!(parser.next(&bytes, &mut 0), Err(error));
            assert_eq!(parser.next(&stream(&[b"ok"]), &mut 0), Err(error), "an error is final");
        }
        assert_eq!(split(&100i32.to_be_bytes(), max), Ok(None));
        assert_eq!(split(&[0, 0, 0], max), Ok(None));
        assert_eq!(split(&[0, 0, 0, 1, 7, 8], max), Ok(Some(4..5)));
    }

    #[test]
    fn bytes_received_elsewhere_count() {
        let mut parser = FrameParser::new(100);
        let mut at = 0;
        assert_eq!(parser.next(&[0, 0, 0, 9, 1], &mut at), Ok(Some(FramePart::Begin(9))));
        assert_eq!(parser.next(&[0, 0, 0, 9, 1], &mut at), Ok(Some(FramePart::Body { range: 4..5, last: false })));
        assert_eq!(parser.missing(), 8);
        assert!(!parser.skip_body(7));
        assert!(parser.skip_body(1));
        assert!(parser.is_between_frames());
    }

    #[test]
    fn a_failed_frame_leaves_nothing() {
        let mut out = BytesMut::from(&b"before"[..]);
        let result = sized(&mut out, |out| {
            out.put_u8(1);
            Err(EncodeError::TooLong(1))
        });
        assert!(result.is_err());
        assert_eq!(&out[..], b"before");
    }
}
