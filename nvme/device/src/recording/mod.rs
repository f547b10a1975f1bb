//! A recording of what a real run asked of its device, in order, with contents: `Recording<N>` wraps any namespace.
//!
//! A kill -9 proves nothing about power cuts, since the page cache survives it. From a recording every state is rebuilt
//! that a power cut at any moment could have left (`CrashImages`), and recovered from. A test instrument: its recorder
//! has a lock and writes a file, which the data path has not.

mod images;
mod log;
#[cfg(test)]
mod tests;

pub use images::{CrashImage, CrashImages, ImageOptions};
pub use log::{Event, EventKind, LoadError, RecordedOperation, RecordedRun};

use crate::medium::blocks_of;
use base::{Monotonic, Now};
use nvme_plan::{Completion, DeviceError, Geometry, Namespace, Operation, Request, Token};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Which time an event bears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stamp {
    /// The turn's, as passed to the namespace: for the simulator.
    Turn,
    /// The system's monotonic clock as the event is written, in nanoseconds since its start, which other processes of
    /// the machine can read too: for a client that notes when it was acknowledged.
    System,
}

enum Sink {
    Memory(Vec<Event>),
    File(File),
}

struct Inner {
    sink: Sink,
    stamp: Stamp,
    next_id: u64,
    encoded: Vec<u8>,
}

/// Where the events of all queues of one namespace go, in one order.
#[derive(Clone)]
pub struct Recorder {
    inner: Arc<Mutex<Inner>>,
    blocks: u64,
}

impl Recorder {
    /// `blocks` is the namespace's size as the recording starts.
    pub fn in_memory(blocks: u64, stamp: Stamp) -> Recorder {
        Recorder::new(blocks, stamp, Sink::Memory(Vec::new()))
    }

    /// Every event is in the file when the call that caused it returns, so that a killed process loses none.
    pub fn to_file(path: &Path, blocks: u64, stamp: Stamp) -> io::Result<Recorder> {
        let mut file = File::create(path)?;
        file.write_all(&log::header(blocks))?;
        Ok(Recorder::new(blocks, stamp, Sink::File(file)))
    }

    fn new(blocks: u64, stamp: Stamp, sink: Sink) -> Recorder {
        let inner = Inner { sink, stamp, next_id: 0, encoded: Vec::new() };
        Recorder { inner: Arc::new(Mutex::new(inner)), blocks }
    }

    /// Puts a number of the test's own between the events: what was acknowledged up to here, say.
    pub fn mark(&self, now: Now, mark: u64) {
        self.lock().record(now, EventKind::Mark(mark));
    }

    /// What an in-memory recorder has so far; a file is read by `RecordedRun::load`.
    pub fn recorded(&self) -> Option<RecordedRun> {
        match &self.lock().sink {
            Sink::Memory(events) => Some(RecordedRun { blocks: self.blocks, events: events.clone() }),
            Sink::File(_) => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A thread that panicked while it held the lock had at worst written half an event at the end.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn record(&mut self, now: Now, kind: EventKind) {
        let time = match self.stamp {
            Stamp::Turn => now.monotonic,
            Stamp::System => {
                let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
                Monotonic(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
            }
        };
        let event = Event { time, kind };
        match &mut self.sink {
            Sink::Memory(events) => events.push(event),
            Sink::File(file) => {
                self.encoded.clear();
                log::encode(&event, &mut self.encoded);
                file.write_all(&self.encoded).expect("a recording that cannot be written is worth nothing");
            }
        }
    }
}

/// Any namespace, with everything that changes it recorded.
pub struct Recording<N> {
    namespace: N,
    recorder: Recorder,
    ids: HashMap<Token, u64>,
}

impl<N: Namespace> Recording<N> {
    pub fn new(namespace: N, recorder: Recorder) -> Recording<N> {
        Recording { namespace, recorder, ids: HashMap::new() }
    }

    pub fn namespace(&self) -> &N {
        &self.namespace
    }

    fn submit_recorded(&mut self, now: Now, request: Request) -> Result<(), Request> {
        let Some(operation) = recorded(&request.operation) else { return self.namespace.submit(now, request) };
        let token = request.token;
        let id = {
            let mut inner = self.recorder.lock();
            inner.next_id += 1;
            let id = inner.next_id;
            inner.record(now, EventKind::Submitted { id, operation });
            id
        };
        let taken = self.namespace.submit(now, request);
        if taken.is_ok() {
            let twice = self.ids.insert(token, id);
            assert!(twice.is_none(), "{token:?} is in flight twice");
        } else {
            self.recorder.lock().record(now, EventKind::Withdrawn { id });
        }
        taken
    }
}

/// The operation as it is kept; `None` for a read, which changes nothing.
fn recorded(operation: &Operation) -> Option<RecordedOperation> {
    Some(match operation {
        Operation::Read { .. } => return None,
        Operation::Write { range, pieces, promise } => RecordedOperation::Write {
            range: *range,
            promise: *promise,
            contents: blocks_of(pieces.iter().map(|piece| &piece[..])),
        },
        Operation::Flush => RecordedOperation::Flush,
        Operation::WriteZeroes { range } => RecordedOperation::WriteZeroes { range: *range },
        Operation::Trim { range } => RecordedOperation::Trim { range: *range },
        Operation::Grow { range } => RecordedOperation::Grow { range: *range },
    })
}

impl<N: Namespace> Namespace for Recording<N> {
    fn geometry(&self) -> &Geometry {
        self.namespace.geometry()
    }

    fn submit(&mut self, now: Now, request: Request) -> Result<(), Request> {
        self.submit_recorded(now, request)
    }

    fn poll(&mut self, now: Now, budget: usize, completions: &mut Vec<Completion>) -> usize {
        let first = completions.len();
        let taken = self.namespace.poll(now, budget, completions);
        for completion in &completions[first..] {
            let Some(id) = self.ids.remove(&completion.token) else { continue };
            // What timed out may still land at any time: it stays in flight for good.
            if completion.result != Err(DeviceError::TimedOut) {
                self.recorder.lock().record(now, EventKind::Completed { id, ok: completion.result.is_ok() });
            }
        }
        taken
    }

    fn in_flight(&self) -> usize {
        self.namespace.in_flight()
    }

    fn next_deadline(&self) -> Option<Monotonic> {
        self.namespace.next_deadline()
    }

    fn announce_sleep(&mut self, sleeping: bool) {
        self.namespace.announce_sleep(sleeping);
    }
}
