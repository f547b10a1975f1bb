//! What the store asks of a device, and the one trait that every device stands behind.
//!
//! `nvme/log` emits `Plan`s (requests in the order they must be submitted); `dataplane/core` carries them to its
//! `Namespace` and hands `Completion`s back. A request owns its buffers until it completes; nothing here names a file
//! descriptor, a partition or an offset. Invariant: a device promises no order between requests in flight; whoever
//! needs an order waits for a completion. Tests: the store suite of `nvme/device` runs over every implementation.
#![forbid(unsafe_code)]

use arena::{Buffer, BufferRef};
use base::{BlockRange, Monotonic, Now};
use std::collections::VecDeque;
use std::fmt;

/// Names a request in flight; chosen by the submitter, returned with the completion, opaque to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// What a request is for; devices serve lower numbers first where they have a choice (design 02, rule 14).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    Commit,
    TailRead,
    Backlog,
    /// Copy-out of journal bytes to extents; carries a deadline.
    CopyOut,
    /// Checkpoints, growth, compaction, scrub, trims.
    Background,
}

impl Class {
    /// Somebody's answer waits for it. The rest may be submitted after the answers of a turn have left.
    pub fn is_awaited(self) -> bool {
        self < Class::CopyOut
    }
}

/// What "complete" promises of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Promise {
    /// The device has it; a later completed flush makes it durable.
    Accepted,
    /// Durable when complete (FUA, RWF_DSYNC). Devices whose `Geometry::durable_writes` is false refuse it.
    Durable,
    /// In the kernel's page cache or the device's volatile cache when complete: `durability = "cache"`. On a file the
    /// device carries it out inside `submit` by one write through the page cache (design 02, commit policy).
    Cached,
}

/// One operation on a namespace. Ranges are never empty; buffers' lengths equal the range's bytes, and each piece starts
/// at an address and has a length that are multiples of the block size.
#[derive(Debug)]
pub enum Operation {
    Write {
        range: BlockRange,
        pieces: Vec<BufferRef>,
        promise: Promise,
    },
    Read {
        range: BlockRange,
        into: Buffer,
    },
    /// Makes every write that completed before this was submitted durable.
    Flush,
    WriteZeroes {
        range: BlockRange,
    },
    Trim {
        range: BlockRange,
    },
    /// Grows a file-backed namespace by fallocate; the range is what is new and begins at the present end. Complete means
    /// that the new size is durable. Its blocks are not zero-written by this.
    Grow {
        range: BlockRange,
    },
}

#[derive(Debug)]
pub struct Request {
    pub token: Token,
    pub class: Class,
    /// When the device must have completed it; passing it is `DeviceError::TimedOut` and rule 6. Where nobody looked at a
    /// queue for seconds, it may take a little longer: the process may not have run.
    pub deadline: Option<Monotonic>,
    pub operation: Operation,
}

/// Requests in the order in which they are to be submitted.
pub type Plan = VecDeque<Request>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceError {
    /// The device or the system refused or failed the operation; the number is the system's errno or the NVMe status
    /// field (SCT << 8 | SC), for the log.
    Failed(u32),
    TimedOut,
    /// The namespace is gone: removed, or its file's device failed for good.
    Gone,
    /// A growth found no room (ENOSPC).
    NoSpace,
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // What it would be as a status of NVMe stands in that specification.
            DeviceError::Failed(code) if *code < 256 => {
                let error = std::io::Error::from_raw_os_error(*code as i32);
                write!(f, "the device failed the operation with {code}, as an error of the system: {error}")
            }
            DeviceError::Failed(code) => write!(f, "the device failed the operation (NVMe status {code:#x})"),
            DeviceError::TimedOut => f.write_str("the device did not answer in time"),
            DeviceError::Gone => f.write_str("the device is gone"),
            DeviceError::NoSpace => f.write_str("the file system has no room to grow the namespace"),
        }
    }
}

impl std::error::Error for DeviceError {}

/// The end of a request; the operation comes back with its buffers (a failed read's buffer holds unspecified bytes).
#[derive(Debug)]
pub struct Completion {
    pub token: Token,
    /// `None` exactly when the result is `DeviceError::TimedOut`: the device may still write into the buffers, so they
    /// stay with it until it is done with them.
    pub operation: Option<Operation>,
    pub result: Result<(), DeviceError>,
}

/// What a device is; constant while it is open, except `blocks` after a completed growth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    pub blocks: u64,
    /// A write is durable only after a flush (or `Promise::Durable`).
    pub volatile_write_cache: bool,
    /// `Promise::Durable` is supported.
    pub durable_writes: bool,
    /// `Operation::Trim` is supported and wanted.
    pub trims: bool,
    /// `Operation::Grow` is supported (a file).
    pub grows: bool,
    /// Largest transfer of one request, in blocks.
    pub transfer_max: u32,
    /// Requests that may be in flight at once; `submit` refuses more.
    pub in_flight_max: usize,
}

/// A device as one core sees it: polled, never blocking (one argued exception: `Promise::Cached` on a file).
pub trait Namespace {
    fn geometry(&self) -> &Geometry;

    /// Takes the request, or gives it back where the device has no room for it now.
    fn submit(&mut self, now: Now, request: Request) -> Result<(), Request>;

    /// Submits from the front of the plan until it is empty or the device has no room, and returns how many it took. A
    /// device with a doorbell (a ring, a queue pair) rings it once for all of them.
    fn submit_plan(&mut self, now: Now, plan: &mut Plan) -> usize {
        let mut taken = 0;
        while let Some(request) = plan.pop_front() {
            if let Err(refused) = self.submit(now, request) {
                plan.push_front(refused);
                break;
            }
            taken += 1;
        }
        taken
    }

    /// Moves at most `budget` completions into `completions` and returns how many. Carries out nothing else.
    fn poll(&mut self, now: Now, budget: usize, completions: &mut Vec<Completion>) -> usize;

    /// Requests submitted and not yet returned by `poll`.
    fn in_flight(&self) -> usize;

    /// The time by which `poll` has something to do though nothing woke the loop: the earliest deadline in flight, or on
    /// the simulated device the next completion.
    fn next_deadline(&self) -> Option<Monotonic>;

    /// Tells the device that the loop is about to sleep (true) or is polling again (false): only between the two need a
    /// completion wake it. The loop polls once more after announcing, so a completion in between is not lost.
    fn announce_sleep(&mut self, sleeping: bool) {
        let _ = sleeping;
    }
}

impl<N: Namespace + ?Sized> Namespace for Box<N> {
    fn geometry(&self) -> &Geometry {
        (**self).geometry()
    }

    fn submit(&mut self, now: Now, request: Request) -> Result<(), Request> {
        (**self).submit(now, request)
    }

    fn submit_plan(&mut self, now: Now, plan: &mut Plan) -> usize {
        (**self).submit_plan(now, plan)
    }

    fn poll(&mut self, now: Now, budget: usize, completions: &mut Vec<Completion>) -> usize {
        (**self).poll(now, budget, completions)
    }

    fn in_flight(&self) -> usize {
        (**self).in_flight()
    }

    fn next_deadline(&self) -> Option<Monotonic> {
        (**self).next_deadline()
    }

    fn announce_sleep(&mut self, sleeping: bool) {
        (**self).announce_sleep(sleeping);
    }
}
