//! A node's namespace, opened once and attached once per core.

use crate::counts::Counts;
use crate::file::{FileOptions, NamespaceFile, OpenError};
use crate::memory::{MemoryDisk, MemoryNamespace};
use crate::sys;
use crate::threaded::ThreadedNamespace;
#[cfg(target_os = "linux")]
use crate::uring::{self, FixedMemory, UringNamespace};
use crate::wake::Wake;
use base::{Monotonic, Now};
use nvme_plan::{Completion, Geometry, Namespace, Plan, Request};
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// What carries requests to the system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// io_uring where the system allows it, else a thread per queue.
    #[default]
    Automatic,
    Uring,
    Threaded,
}

#[derive(Clone, Debug)]
pub enum OpenOptions {
    /// `--ephemeral`: in memory, gone with the process.
    Memory {
        blocks: u64,
    },
    File {
        file: FileOptions,
        engine: Engine,
    },
}

/// How one core's queue is made.
#[derive(Clone, Debug, Default)]
pub struct QueueOptions {
    /// Wakes the core's loop when something completes while it sleeps.
    pub wake: Option<Wake>,
    /// Memory to register with a ring.
    #[cfg(target_os = "linux")]
    pub fixed: Option<FixedMemory>,
    /// CPUs for a ring's worker threads or the I/O thread; empty leaves them where the kernel puts them.
    pub worker_cpus: Vec<usize>,
}

/// An open namespace: `Send`, cloned for each core, closed (and unlocked) with the last clone and queue.
#[derive(Clone, Debug)]
pub struct Device(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Memory(MemoryDisk),
    File { file: Arc<NamespaceFile>, engine: Chosen },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chosen {
    #[cfg(target_os = "linux")]
    Uring,
    Threaded,
}

/// Opens a namespace, waiting up to `FileOptions::lock_wait` for a predecessor to be gone.
pub fn open(options: &OpenOptions) -> Result<Device, OpenError> {
    match options {
        OpenOptions::Memory { blocks } => match MemoryDisk::new(*blocks) {
            Ok(disk) => Ok(Device(Kind::Memory(disk))),
            Err(source) => Err(OpenError::System { path: "memory".into(), step: "take", source }),
        },
        OpenOptions::File { file, engine } => {
            let engine = choose(*engine)?;
            let file = Arc::new(NamespaceFile::open(file)?);
            let device = Device(Kind::File { file, engine });
            tracing::info!(device = %device, "namespace opened");
            Ok(device)
        }
    }
}

#[cfg(target_os = "linux")]
fn choose(engine: Engine) -> Result<Chosen, OpenError> {
    if engine == Engine::Threaded {
        return Ok(Chosen::Threaded);
    }
    match uring::probe() {
        Ok(()) => Ok(Chosen::Uring),
        Err(refusal) if engine == Engine::Uring => Err(OpenError::UringRefused { reason: refusal.to_string() }),
        Err(refusal) => {
            tracing::warn!("{refusal}: each core uses an I/O thread instead");
            Ok(Chosen::Threaded)
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn choose(engine: Engine) -> Result<Chosen, OpenError> {
    match engine {
        Engine::Uring => Err(OpenError::UringRefused { reason: "this system is not Linux".into() }),
        Engine::Automatic | Engine::Threaded => Ok(Chosen::Threaded),
    }
}

impl Device {
    pub fn geometry(&self) -> Geometry {
        match &self.0 {
            Kind::Memory(disk) => disk.geometry(),
            Kind::File { file, .. } => file.geometry(),
        }
    }

    /// A queue for the calling thread, which is the only one that may use it.
    pub fn attach(&self, options: &QueueOptions) -> io::Result<Queue> {
        match &self.0 {
            Kind::Memory(disk) => Ok(Queue::Memory(disk.attach())),
            #[cfg(target_os = "linux")]
            Kind::File { file, engine: Chosen::Uring } => {
                let wake = options.wake.as_ref();
                UringNamespace::attach(file.clone(), wake, options.fixed, &options.worker_cpus).map(Queue::Uring)
            }
            Kind::File { file, engine: Chosen::Threaded } => {
                ThreadedNamespace::start(file.clone(), options.wake.clone(), &options.worker_cpus).map(Queue::Threaded)
            }
        }
    }

    /// Whether transfers go past the page cache.
    pub fn is_direct(&self) -> bool {
        match &self.0 {
            Kind::Memory(_) => false,
            Kind::File { file, .. } => file.direct,
        }
    }

    /// Whether a durable write may be a single command (FUA) instead of a write and a flush. Where it is not, the kernel
    /// makes both of it, the flush on a worker of whichever CPU took the interrupt, where it waits behind whatever keeps
    /// that CPU: commits took 6 ms in place of 0.25 beside one busy process.
    pub fn may_force_unit_access(&self) -> bool {
        self.file().is_some_and(|file| sys::forces_unit_access(&file.file) != Some(false))
    }

    pub fn path(&self) -> Option<&Path> {
        match &self.0 {
            Kind::Memory(_) => None,
            Kind::File { file, .. } => Some(&file.path),
        }
    }

    pub(crate) fn file(&self) -> Option<&Arc<NamespaceFile>> {
        match &self.0 {
            Kind::Memory(_) => None,
            Kind::File { file, .. } => Some(file),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Kind::File { file, engine } = &self.0 else { return f.write_str("memory") };
        let engine = match engine {
            #[cfg(target_os = "linux")]
            Chosen::Uring => "io_uring",
            Chosen::Threaded => "an I/O thread",
        };
        let path = if file.direct { "past the page cache" } else { "through the page cache" };
        write!(f, "{} by {engine}, {path}, {} blocks", file.path.display(), file.blocks())
    }
}

/// One core's queue on a `Device`.
#[allow(clippy::large_enum_variant, reason = "there is one per core")]
pub enum Queue {
    Memory(MemoryNamespace),
    Threaded(ThreadedNamespace),
    #[cfg(target_os = "linux")]
    Uring(UringNamespace),
}

macro_rules! each {
    ($queue:expr, $inner:ident => $call:expr) => {
        match $queue {
            Queue::Memory($inner) => $call,
            Queue::Threaded($inner) => $call,
            #[cfg(target_os = "linux")]
            Queue::Uring($inner) => $call,
        }
    };
}

impl Queue {
    pub fn counts(&self) -> Counts {
        match self {
            Queue::Memory(_) => Counts::default(),
            Queue::Threaded(queue) => queue.counts(),
            #[cfg(target_os = "linux")]
            Queue::Uring(queue) => queue.counts(),
        }
    }

    /// What a sleeping loop watches beside its own waker; `None` where the waker it gave does all.
    #[cfg(target_os = "linux")]
    pub fn wake_descriptor(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        match self {
            Queue::Uring(queue) => queue.wake_descriptor(),
            Queue::Memory(_) | Queue::Threaded(_) => None,
        }
    }
}

impl Namespace for Queue {
    fn geometry(&self) -> &Geometry {
        each!(self, queue => queue.geometry())
    }

    fn submit(&mut self, now: Now, request: Request) -> Result<(), Request> {
        each!(self, queue => queue.submit(now, request))
    }

    fn submit_plan(&mut self, now: Now, plan: &mut Plan) -> usize {
        each!(self, queue => queue.submit_plan(now, plan))
    }

    fn poll(&mut self, now: Now, budget: usize, completions: &mut Vec<Completion>) -> usize {
        each!(self, queue => queue.poll(now, budget, completions))
    }

    fn in_flight(&self) -> usize {
        each!(self, queue => queue.in_flight())
    }

    fn next_deadline(&self) -> Option<Monotonic> {
        each!(self, queue => queue.next_deadline())
    }

    fn announce_sleep(&mut self, sleeping: bool) {
        each!(self, queue => queue.announce_sleep(sleeping));
    }
}
