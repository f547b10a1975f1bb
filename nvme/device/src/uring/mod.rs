//! The ring: io_uring over a file or a block device, one per core, used by the thread that attached it.
//!
//! Each request has one entry in the ring at a time, so the ring can never be full before the queue is. Reads and writes
//! are first sent as "do not wait" (RWF_NOWAIT): what the kernel would have given to its worker threads comes back, is
//! counted as punted, and is sent again without that. Flushes, growths and trims always run in workers.
#![allow(unsafe_code)]

mod setup;
#[cfg(test)]
mod tests;
mod transfer;

pub use setup::FixedMemory;
pub(crate) use setup::probe;

use crate::counts::Counts;
use crate::file::NamespaceFile;
use crate::in_flight::{InFlight, Slot};
use crate::sys;
use crate::wake::Wake;
use base::{Monotonic, Now};
use io_uring::IoUring;
use io_uring::types::{SubmitArgs, Timespec};
use nvme_plan::{Completion, Geometry, Namespace, Operation, Plan, Request};
use setup::Registered;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};
use transfer::{Step, Target, Transfer, Why};

/// How long a queue that is closed waits for the kernel before it gives up the buffers instead.
const CLOSE_WAIT: Duration = Duration::from_secs(2);

pub struct UringNamespace {
    ring: IoUring,
    file: Arc<NamespaceFile>,
    geometry: Geometry,
    /// Where flushes go; everything else goes to the description that all queues share.
    flusher: File,
    /// Both are registered with the ring.
    fixed_files: bool,
    registered: Registered,
    in_flight: InFlight,
    transfers: Vec<Transfer>,
    /// Completed without the ring: cached writes and refusals.
    ready: VecDeque<Completion>,
    /// The kernel had no room for entries that are still in the ring.
    backlog: bool,
    /// The file takes "do not wait".
    nowait: bool,
    /// Signalled by the kernel at a completion while the loop sleeps.
    eventfd: OwnedFd,
    /// Made here, so that nobody else takes its count off.
    own_eventfd: bool,
    counts: Counts,
}

impl UringNamespace {
    /// Makes a ring for the calling thread, the only one that may use the queue from then on.
    pub(crate) fn attach(
        file: Arc<NamespaceFile>,
        wake: Option<&Wake>,
        fixed: Option<FixedMemory>,
        worker_cpus: &[usize],
    ) -> io::Result<UringNamespace> {
        let geometry = file.geometry();
        let entries = u32::try_from(geometry.in_flight_max).map_err(|_| io::ErrorKind::InvalidInput)?;
        let ring = setup::build(entries.next_power_of_two())?;
        let flusher = file.flusher()?;
        let fixed_files = setup::register_files(&ring, [file.file.as_fd(), flusher.as_fd()]);
        let registered = fixed.map(|memory| setup::register_memory(&ring, memory)).unwrap_or_default();
        let placed = setup::place_workers(&ring, worker_cpus);
        let (eventfd, own_eventfd) = match wake.and_then(Wake::eventfd) {
            Some(given) => (given.try_clone_to_owned()?, false),
            None => (rustix::event::eventfd(0, EVENTFD_FLAGS)?, true),
        };
        ring.submitter().register_eventfd(eventfd.as_raw_fd())?;
        tracing::info!(
            path = %file.path.display(),
            direct = file.direct,
            fixed_files,
            fixed_memory_bytes = registered.bytes(),
            workers_placed = placed,
            "io_uring queue attached"
        );
        let mut queue = UringNamespace {
            ring,
            in_flight: InFlight::new(geometry.in_flight_max),
            transfers: (0..geometry.in_flight_max).map(|_| Transfer::default()).collect(),
            ready: VecDeque::with_capacity(geometry.in_flight_max),
            file,
            geometry,
            flusher,
            fixed_files,
            registered,
            backlog: false,
            nowait: true,
            eventfd,
            own_eventfd,
            counts: Counts::default(),
        };
        // Nobody sleeps yet.
        queue.ring.completion().disable_eventfd();
        Ok(queue)
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Written at a completion while the loop has announced its sleep; the loop watches it where it gave no eventfd of
    /// its own, and watches for edges: nobody takes the count off, which would be a system call for every sleep.
    pub fn wake_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.own_eventfd.then(|| self.eventfd.as_fd())
    }

    fn take(&mut self, request: Request) -> Result<(), Request> {
        if self.in_flight.held() + self.ready.len() >= self.geometry.in_flight_max {
            return Err(request);
        }
        self.geometry.blocks = self.file.blocks();
        self.counts.submitted += 1;
        if let Some(result) = self.file.answer_at_once(&self.geometry, &request.operation) {
            self.ready.push_back(Completion { token: request.token, operation: Some(request.operation), result });
            return Ok(());
        }
        let waits = matches!(request.operation, Operation::Flush | Operation::Trim { .. } | Operation::Grow { .. });
        self.counts.worker_operations += u64::from(waits);
        let (slot, operation) = self.in_flight.hold(request);
        self.transfers[slot.0 as usize].begin(operation);
        self.push(slot);
        Ok(())
    }

    fn push(&mut self, slot: Slot) {
        let transfer = &self.transfers[slot.0 as usize];
        let operation = self.in_flight.operation(slot);
        let (place, file) = match operation {
            Operation::Flush => (1, &self.flusher),
            _ => (0, &self.file.file),
        };
        let target = match self.fixed_files {
            true => Target::Registered(place),
            false => Target::Descriptor(file.as_raw_fd()),
        };
        let entry = transfer.entry(operation, target, self.nowait, &self.registered).user_data(slot.0.into());
        // SAFETY: the entry's pointers lead to the transfer's pieces and the request's buffers. Both stay where they are
        // until the ring answers: the slot is held until then, and `drop` waits or gives them up.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        assert!(pushed.is_ok(), "the ring has an entry for every slot of the queue");
    }

    /// Tells the kernel of what was pushed, and lets it post what is done. What it has no room for now stays in the ring
    /// for the next time.
    fn enter(&mut self) {
        let pending = {
            let submission = self.ring.submission();
            !submission.is_empty() || submission.taskrun() || submission.cq_overflow()
        };
        if !pending {
            return;
        }
        match self.ring.submit() {
            Ok(_) => self.backlog = !self.ring.submission().is_empty(),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY | libc::EINTR)) => {
                self.backlog = true;
            }
            // The ring is ours and open, and its entries are well formed: anything else is a bug.
            Err(error) => panic!("io_uring_enter failed: {error}"),
        }
    }

    /// Takes one answer off the ring; false where there is none.
    fn reap(&mut self, completions: &mut Vec<Completion>) -> bool {
        let Some(answer) = self.ring.completion().next() else { return false };
        let slot = Slot(answer.user_data() as u32);
        let operation = self.in_flight.operation(slot);
        match self.transfers[slot.0 as usize].answer(operation, answer.result()) {
            Step::Again(why) => {
                match why {
                    Why::Punted => self.counts.punted += 1,
                    Why::NoNowait => self.nowait = false,
                    Why::Resumed => self.counts.resumed += 1,
                    Why::Interrupted | Why::NextPart => {}
                }
                self.push(slot);
            }
            Step::Finished(result) => {
                if let Operation::Grow { range } = operation {
                    self.file.note_growth(*range, result.is_ok());
                }
                let result = result.map_err(|error| sys::device_error(&error, operation));
                let completion = self.in_flight.release(slot, result);
                self.counts.late += u64::from(completion.is_none());
                completions.extend(completion);
            }
        }
        true
    }
}

const EVENTFD_FLAGS: rustix::event::EventfdFlags =
    rustix::event::EventfdFlags::CLOEXEC.union(rustix::event::EventfdFlags::NONBLOCK);

impl Namespace for UringNamespace {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&mut self, _now: Now, request: Request) -> Result<(), Request> {
        self.take(request)?;
        self.enter();
        Ok(())
    }

    fn submit_plan(&mut self, _now: Now, plan: &mut Plan) -> usize {
        let mut taken = 0;
        while let Some(request) = plan.pop_front() {
            if let Err(refused) = self.take(request) {
                plan.push_front(refused);
                break;
            }
            taken += 1;
        }
        self.enter();
        taken
    }

    fn poll(&mut self, now: Now, budget: usize, completions: &mut Vec<Completion>) -> usize {
        let before = completions.len();
        while completions.len() - before < budget
            && let Some(completion) = self.ready.pop_front()
        {
            completions.push(completion);
        }
        // Work that the kernel put off is done here; then requests that must be sent again are.
        self.enter();
        while completions.len() - before < budget && self.reap(completions) {}
        self.enter();
        self.geometry.blocks = self.file.blocks();
        let left = budget - (completions.len() - before);
        self.counts.timed_out += self.in_flight.expire(now.monotonic, left, completions) as u64;
        completions.len() - before
    }

    fn in_flight(&self) -> usize {
        self.in_flight.unreported() + self.ready.len()
    }

    fn next_deadline(&self) -> Option<Monotonic> {
        let due = self.backlog || !self.ready.is_empty();
        if due { Some(Monotonic::ZERO) } else { self.in_flight.next_deadline() }
    }

    fn announce_sleep(&mut self, sleeping: bool) {
        if sleeping {
            self.ring.completion().enable_eventfd();
            // Before the loop's last look: a completion is seen by that, or finds the eventfd enabled.
            fence(Ordering::SeqCst);
        } else {
            self.ring.completion().disable_eventfd();
        }
    }
}

impl Drop for UringNamespace {
    fn drop(&mut self) {
        let start = Instant::now();
        let mut rest = Vec::new();
        // What has timed out already is not waited for.
        while self.in_flight.unreported() > 0 && start.elapsed() < CLOSE_WAIT {
            let wait = Timespec::from(Duration::from_millis(50));
            let _ = self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&wait));
            while self.reap(&mut rest) {}
        }
        if self.in_flight.held() > 0 {
            // The kernel may still write into these buffers: they, and the pieces that name them, are given up.
            mem::forget(mem::replace(&mut self.in_flight, InFlight::new(0)));
            mem::forget(mem::take(&mut self.transfers));
        }
    }
}
