//! The events and their file: a header, then length-prefixed events; blocks of zeroes are left out of a write.

use crate::medium::{BlockBytes, Contents};
use base::{BLOCK_SIZE, Block, BlockRange, Monotonic};
use nvme_plan::Promise;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

const MAGIC: [u8; 8] = *b"PLXREC01";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub time: Monotonic,
    pub kind: EventKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    Submitted {
        id: u64,
        operation: RecordedOperation,
    },
    /// The device had no room: the submission before it never was.
    Withdrawn {
        id: u64,
    },
    Completed {
        id: u64,
        ok: bool,
    },
    Mark(u64),
}

#[derive(Clone, PartialEq, Eq)]
pub enum RecordedOperation {
    Write { range: BlockRange, promise: Promise, contents: Vec<Contents> },
    Flush,
    WriteZeroes { range: BlockRange },
    Trim { range: BlockRange },
    Grow { range: BlockRange },
}

impl fmt::Debug for RecordedOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordedOperation::Write { range, promise, .. } => write!(f, "write {promise:?} {range}"),
            RecordedOperation::Flush => f.write_str("flush"),
            RecordedOperation::WriteZeroes { range } => write!(f, "write zeroes {range}"),
            RecordedOperation::Trim { range } => write!(f, "trim {range}"),
            RecordedOperation::Grow { range } => write!(f, "grow {range}"),
        }
    }
}

/// All events of a run, and the size of the namespace when it began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedRun {
    pub blocks: u64,
    pub events: Vec<Event>,
}

#[derive(Debug)]
pub enum LoadError {
    Io(io::Error),
    NotARecording,
    /// The event at this byte is not one of ours.
    Malformed(usize),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::Io(error) => write!(f, "the recording cannot be read: {error}"),
            LoadError::NotARecording => f.write_str("the file is not a recording"),
            LoadError::Malformed(at) => write!(f, "the recording is malformed at byte {at}"),
        }
    }
}

impl std::error::Error for LoadError {}

pub(super) fn header(blocks: u64) -> Vec<u8> {
    [&MAGIC[..], &blocks.to_le_bytes()].concat()
}

impl RecordedRun {
    /// Reads a recording. An event cut off at the end was being written as the process was killed, and is left out: what
    /// it says had not been asked of the device yet, or had not been told to anyone.
    pub fn load(path: &Path) -> Result<RecordedRun, LoadError> {
        RecordedRun::decode(&std::fs::read(path).map_err(LoadError::Io)?)
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<RecordedRun, LoadError> {
        let mut cursor = Cursor { rest: bytes };
        if cursor.take(MAGIC.len()) != Some(&MAGIC) {
            return Err(LoadError::NotARecording);
        }
        let blocks = cursor.u64().ok_or(LoadError::NotARecording)?;
        let mut events = Vec::new();
        loop {
            let at = bytes.len() - cursor.rest.len();
            let Some(body) = cursor.u32().and_then(|length| cursor.take(length as usize)) else { break };
            let mut cursor = Cursor { rest: body };
            let event = cursor.event().filter(|_| cursor.rest.is_empty()).ok_or(LoadError::Malformed(at))?;
            events.push(event);
        }
        Ok(RecordedRun { blocks, events })
    }
}

const WITHDRAWN: u8 = 1;
const COMPLETED: u8 = 2;
const MARK: u8 = 3;
const FLUSH: u8 = 4;
const WRITE: u8 = 5;
const WRITE_ZEROES: u8 = 6;
const TRIM: u8 = 7;
const GROW: u8 = 8;

pub(super) fn encode(event: &Event, into: &mut Vec<u8>) {
    let start = into.len();
    into.extend([0; 4]);
    let (kind, number) = match &event.kind {
        EventKind::Withdrawn { id } => (WITHDRAWN, *id),
        EventKind::Completed { id, .. } => (COMPLETED, *id),
        EventKind::Mark(mark) => (MARK, *mark),
        EventKind::Submitted { id, operation } => (kind_of(operation), *id),
    };
    into.push(kind);
    into.extend(event.time.0.to_le_bytes());
    into.extend(number.to_le_bytes());
    match &event.kind {
        EventKind::Completed { ok, .. } => into.push(u8::from(*ok)),
        EventKind::Submitted { operation, .. } => encode_operation(operation, into),
        EventKind::Withdrawn { .. } | EventKind::Mark(_) => {}
    }
    let length = u32::try_from(into.len() - start - 4).expect("an event is smaller than 4 GiB");
    into[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

fn kind_of(operation: &RecordedOperation) -> u8 {
    match operation {
        RecordedOperation::Write { .. } => WRITE,
        RecordedOperation::Flush => FLUSH,
        RecordedOperation::WriteZeroes { .. } => WRITE_ZEROES,
        RecordedOperation::Trim { .. } => TRIM,
        RecordedOperation::Grow { .. } => GROW,
    }
}

fn encode_operation(operation: &RecordedOperation, into: &mut Vec<u8>) {
    let range = match operation {
        RecordedOperation::Flush => return,
        RecordedOperation::Write { range, .. }
        | RecordedOperation::WriteZeroes { range }
        | RecordedOperation::Trim { range }
        | RecordedOperation::Grow { range } => range,
    };
    into.extend(range.start.0.to_le_bytes());
    into.extend(range.count.to_le_bytes());
    let RecordedOperation::Write { promise, contents, .. } = operation else { return };
    into.push(match promise {
        Promise::Accepted => 0,
        Promise::Durable => 1,
        Promise::Cached => 2,
    });
    into.extend(contents.iter().map(|block| u8::from(block.is_some())));
    for block in contents.iter().flatten() {
        into.extend(&block[..]);
    }
}

struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn event(&mut self) -> Option<Event> {
        let kind = self.u8()?;
        let time = Monotonic(self.u64()?);
        let id = self.u64()?;
        let kind = match kind {
            WITHDRAWN => EventKind::Withdrawn { id },
            COMPLETED => EventKind::Completed { id, ok: self.u8()? == 1 },
            MARK => EventKind::Mark(id),
            FLUSH => EventKind::Submitted { id, operation: RecordedOperation::Flush },
            other => EventKind::Submitted { id, operation: self.operation(other)? },
        };
        Some(Event { time, kind })
    }

    fn operation(&mut self, kind: u8) -> Option<RecordedOperation> {
        let range = BlockRange::new(Block(self.u64()?), self.u32()?);
        range.start.0.checked_add(u64::from(range.count))?;
        match kind {
            WRITE_ZEROES => Some(RecordedOperation::WriteZeroes { range }),
            TRIM => Some(RecordedOperation::Trim { range }),
            GROW => Some(RecordedOperation::Grow { range }),
            WRITE => {
                let promise = match self.u8()? {
                    0 => Promise::Accepted,
                    1 => Promise::Durable,
                    2 => Promise::Cached,
                    _ => return None,
                };
                let present = self.take(range.count as usize)?;
                let contents = present.iter().map(|present| self.block(*present)).collect::<Option<_>>()?;
                Some(RecordedOperation::Write { range, promise, contents })
            }
            _ => None,
        }
    }

    fn block(&mut self, present: u8) -> Option<Contents> {
        if present == 0 {
            return Some(None);
        }
        let bytes: &BlockBytes = self.take(BLOCK_SIZE)?.try_into().ok()?;
        Some(Some(Arc::new(*bytes)))
    }
}
