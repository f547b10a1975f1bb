//! Helper threads off the data cores that run `Work`: whatever would hold a loop above 200 us.
//!
//! `dataplane/core` carries jobs here and back; what a job does is unknown here. Invariants: a core has at most its
//! capacity of jobs out, so neither submitting nor finishing ever waits and a data core touches no lock; every job comes
//! back to the core that sent it; no core can starve another, since helpers go round the cores within a class. A job
//! that panics is a bug: its panic goes on in the core that polls it. Jobs of one core may come back in any order.
//! The simulator runs jobs on the loop's own thread (`InlineOffload`). Tests: below and in `threads`.
#![forbid(unsafe_code)]

mod inline;
mod placement;
mod threads;

pub use inline::InlineOffload;
pub use threads::{HelperThreads, HelperThreadsOptions, ThreadedOffload};

use base::Work;
use std::fmt;

/// What a job is for; helpers take a lower class only when no higher one waits anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// A client waits for it: handshakes, checking and rebuilding batches, lookups.
    Request,
    /// Images and views: others wait, but not in microseconds.
    Image,
    /// Compaction, flushing under `durability = "cache"`, scrubbing.
    Background,
}

impl Class {
    pub const ALL: [Class; 3] = [Class::Request, Class::Image, Class::Background];
}

/// Names a job among those of its core; chosen by the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobToken(pub u64);

/// A job that has run, back at its core.
pub struct Finished {
    pub token: JobToken,
    pub work: Box<dyn Work>,
}

impl fmt::Debug for Finished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Finished").field(&self.token).finish()
    }
}

/// One core's end.
pub trait Offload {
    /// Takes the job, or gives it back where the core has as many out as it may.
    fn submit(&mut self, class: Class, token: JobToken, work: Box<dyn Work>) -> Result<(), Box<dyn Work>>;

    /// Appends at most `budget` jobs that have run, and returns how many.
    fn poll(&mut self, budget: usize, finished: &mut Vec<Finished>) -> usize;

    /// Jobs submitted and not yet returned by `poll`.
    fn in_flight(&self) -> usize;

    /// How many more `submit` takes now.
    fn room(&self) -> usize;
}
