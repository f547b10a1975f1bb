//! The fallback where io_uring is refused: one thread per queue that carries requests out with blocking calls, the most
//! urgent class first. The loop and the thread meet in two bounded channels, neither of which ever blocks the loop.
#![allow(unsafe_code)]

use crate::check::range_of;
use crate::counts::Counts;
use crate::file::{NamespaceFile, offset};
use crate::in_flight::{InFlight, Slot};
use crate::sys;
use crate::wake::{Sleeper, Wake};
use base::{Monotonic, Now};
use nvme_plan::{Class, Completion, Geometry, Namespace, Operation, Promise, Request};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fs::File;
use std::io;
use std::mem;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;

/// Bytes of a request's buffers, on their way to the thread.
struct Bytes {
    start: *mut u8,
    len: usize,
}

// SAFETY: the bytes belong to a request that the queue holds in its slot until the thread has answered for it, so they
// stay mapped; a write's are frozen, and a read's buffer is touched by nobody else meanwhile.
unsafe impl Send for Bytes {}

impl Bytes {
    fn of(bytes: &[u8]) -> Bytes {
        Bytes { start: bytes.as_ptr().cast_mut(), len: bytes.len() }
    }

    /// # Safety
    /// The request is held, and these bytes are of a write.
    unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: see the `Send` implementation; nobody writes frozen bytes.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    /// # Safety
    /// The request is held, and these bytes are of a read, whose pointer was taken from an exclusive borrow.
    unsafe fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: see the `Send` implementation; the thread is the only one to touch them.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

enum Task {
    Write { at: u64, pieces: Vec<Bytes>, durable: bool },
    Read { at: u64, into: Bytes },
    Flush,
    WriteZeroes { at: u64, bytes: u64 },
    PunchHole { at: u64, bytes: u64 },
    Grow { at: u64, bytes: u64 },
}

struct Job {
    slot: Slot,
    class: Class,
    task: Task,
}

type Answer = (Slot, io::Result<()>);

pub struct ThreadedNamespace {
    file: Arc<NamespaceFile>,
    geometry: Geometry,
    in_flight: InFlight,
    /// Completed without the thread: cached writes and refusals.
    ready: VecDeque<Completion>,
    jobs: Option<SyncSender<Job>>,
    answers: Receiver<Answer>,
    sleeper: Arc<Sleeper>,
    thread: Option<JoinHandle<()>>,
    counts: Counts,
}

impl ThreadedNamespace {
    /// Starts the thread, on `cpus` unless that is empty: off the data cores, whose affinity it would inherit.
    pub(crate) fn start(file: Arc<NamespaceFile>, wake: Option<Wake>, cpus: &[usize]) -> io::Result<ThreadedNamespace> {
        let (medium, flusher) = (file.clone(), file.flusher()?);
        let mut cpus = Some(cpus.to_vec());
        ThreadedNamespace::start_with(file, wake, move |task| {
            if let Some(cpus) = cpus.take().filter(|cpus| !cpus.is_empty()) {
                sys::place_thread(&cpus);
            }
            carry_out(&medium, &flusher, task)
        })
    }

    fn start_with(
        file: Arc<NamespaceFile>,
        wake: Option<Wake>,
        carry_out: impl FnMut(Task) -> io::Result<()> + Send + 'static,
    ) -> io::Result<ThreadedNamespace> {
        let geometry = file.geometry();
        // As deep as the queue: neither side can ever find them full.
        let (jobs, next_job) = sync_channel(geometry.in_flight_max);
        let (answer, answers) = sync_channel(geometry.in_flight_max);
        let sleeper = Arc::new(Sleeper::default());
        let seen = sleeper.clone();
        let thread = std::thread::Builder::new()
            .name("pollux-io".into())
            .spawn(move || serve(&next_job, &answer, &seen, wake.as_ref(), carry_out))?;
        Ok(ThreadedNamespace {
            in_flight: InFlight::new(geometry.in_flight_max),
            ready: VecDeque::with_capacity(geometry.in_flight_max),
            file,
            geometry,
            jobs: Some(jobs),
            answers,
            sleeper,
            thread: Some(thread),
            counts: Counts::default(),
        })
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    fn take_answer(&mut self) -> Option<Answer> {
        match self.answers.try_recv() {
            Ok(answer) => Some(answer),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => panic!("the I/O thread has ended while its queue is open"),
        }
    }

    fn finish(&mut self, (slot, result): Answer) -> Option<Completion> {
        let operation = self.in_flight.operation(slot);
        if let Operation::Grow { range } = operation {
            self.file.note_growth(*range, result.is_ok());
        }
        let result = result.map_err(|error| sys::device_error(&error, operation));
        let completion = self.in_flight.release(slot, result);
        self.counts.late += u64::from(completion.is_none());
        completion
    }
}

/// The thread: takes what has come, serves the most urgent, answers, until the queue is gone and everything is served.
fn serve(
    jobs: &Receiver<Job>,
    answers: &SyncSender<Answer>,
    sleeper: &Sleeper,
    wake: Option<&Wake>,
    mut carry_out: impl FnMut(Task) -> io::Result<()>,
) {
    let mut waiting: Vec<Option<(Slot, Task)>> = Vec::new();
    let mut order = BinaryHeap::new();
    let mut arrived = 0u64;
    loop {
        let first = if order.is_empty() { jobs.recv().ok() } else { None };
        if first.is_none() && order.is_empty() {
            return;
        }
        for job in first.into_iter().chain(jobs.try_iter()) {
            let index = job.slot.0 as usize;
            waiting.resize_with(waiting.len().max(index + 1), || None);
            waiting[index] = Some((job.slot, job.task));
            arrived += 1;
            order.push(Reverse((job.class, arrived, index)));
        }
        let Some(Reverse((_, _, index))) = order.pop() else { continue };
        let (slot, task) = waiting[index].take().expect("a job in the order waits in its slot");
        let result = carry_out(task);
        if answers.send((slot, result)).is_err() {
            // The queue left without waiting, because something had timed out; nobody wants the rest.
            return;
        }
        if sleeper.must_wake()
            && let Some(wake) = wake
        {
            wake.wake();
        }
    }
}

fn carry_out(file: &NamespaceFile, flusher: &File, task: Task) -> io::Result<()> {
    match task {
        Task::Write { at, pieces, durable } => {
            // SAFETY: the queue holds the request until this job is answered.
            let pieces: Vec<&[u8]> = pieces.iter().map(|piece| unsafe { piece.as_slice() }).collect();
            sys::write_pieces(&file.file, &pieces, at, durable)
        }
        // SAFETY: the queue holds the request until this job is answered.
        Task::Read { at, mut into } => file.file.read_exact_at(unsafe { into.as_mut_slice() }, at),
        Task::Flush => flusher.sync_data(),
        Task::WriteZeroes { at, bytes } => sys::write_pieces(&file.file, &sys::zero_pieces(bytes), at, false),
        Task::PunchHole { at, bytes } => sys::punch_hole(&file.file, at, bytes),
        Task::Grow { at, bytes } => {
            sys::allocate(&file.file, at, bytes)?;
            // A step that the store has been told of must still be there after a power cut.
            file.file.sync_data()
        }
    }
}

fn task_of(operation: &mut Operation) -> Task {
    let at = range_of(operation).map_or(0, offset);
    match operation {
        Operation::Write { pieces, promise, .. } => Task::Write {
            at,
            pieces: pieces.iter().map(|piece| Bytes::of(piece)).collect(),
            durable: *promise == Promise::Durable,
        },
        Operation::Read { into, .. } => {
            let len = into.len();
            Task::Read { at, into: Bytes { start: into.as_mut_ptr(), len } }
        }
        Operation::Flush => Task::Flush,
        Operation::WriteZeroes { range } => Task::WriteZeroes { at, bytes: range.bytes() },
        Operation::Trim { range } => Task::PunchHole { at, bytes: range.bytes() },
        Operation::Grow { range } => Task::Grow { at, bytes: range.bytes() },
    }
}

impl Namespace for ThreadedNamespace {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&mut self, _now: Now, request: Request) -> Result<(), Request> {
        if self.in_flight.held() + self.ready.len() >= self.geometry.in_flight_max {
            return Err(request);
        }
        self.geometry.blocks = self.file.blocks();
        self.counts.submitted += 1;
        if let Some(result) = self.file.answer_at_once(&self.geometry, &request.operation) {
            self.ready.push_back(Completion { token: request.token, operation: Some(request.operation), result });
            return Ok(());
        }
        let class = request.class;
        let (slot, operation) = self.in_flight.hold(request);
        let job = Job { slot, class, task: task_of(operation) };
        let jobs = self.jobs.as_ref().expect("the channel is open as long as the queue");
        // It is as deep as the queue, so that only a dead thread can refuse.
        assert!(jobs.try_send(job).is_ok(), "the I/O thread has ended while its queue is open");
        Ok(())
    }

    fn poll(&mut self, now: Now, budget: usize, completions: &mut Vec<Completion>) -> usize {
        let before = completions.len();
        self.geometry.blocks = self.file.blocks();
        while completions.len() - before < budget {
            if let Some(completion) = self.ready.pop_front() {
                completions.push(completion);
            } else if let Some(answer) = self.take_answer() {
                completions.extend(self.finish(answer));
            } else {
                break;
            }
        }
        self.geometry.blocks = self.file.blocks();
        let left = budget - (completions.len() - before);
        self.counts.timed_out += self.in_flight.expire(now.monotonic, left, completions) as u64;
        completions.len() - before
    }

    fn in_flight(&self) -> usize {
        self.in_flight.unreported() + self.ready.len()
    }

    fn next_deadline(&self) -> Option<Monotonic> {
        if self.ready.is_empty() { self.in_flight.next_deadline() } else { Some(Monotonic::ZERO) }
    }

    fn announce_sleep(&mut self, sleeping: bool) {
        self.sleeper.announce(sleeping);
    }
}

impl Drop for ThreadedNamespace {
    fn drop(&mut self) {
        self.jobs = None;
        let thread = self.thread.take();
        if self.in_flight.timed_out() > 0 {
            // The thread may be stuck in the system for good and write into its buffers whenever that ends: they, and
            // the thread, are given up.
            mem::forget(mem::replace(&mut self.in_flight, InFlight::new(0)));
        } else if let Some(thread) = thread {
            // It serves what it has, which takes as long as the device takes, and ends. Its panic was reported.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::FileOptions;
    use arena::Arena;
    use base::{BLOCK_SIZE, Block, BlockRange, CoreId, WallMillis};
    use nvme_plan::{DeviceError, Token};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{Sender, channel};
    use std::time::{Duration, Instant};

    fn file(name: &str) -> Arc<NamespaceFile> {
        let path = std::env::temp_dir().join(format!("pollux-threaded-{name}-{}", std::process::id()));
        let options = FileOptions { create: Some(64 * BLOCK_SIZE as u64), ..FileOptions::new(&path) };
        let file = NamespaceFile::open(&options).unwrap();
        std::fs::remove_file(&path).unwrap();
        Arc::new(file)
    }

    fn now(nanos: u64) -> Now {
        Now { monotonic: Monotonic(nanos), wall: WallMillis(0) }
    }

    fn read(arena: &Arena, token: u64, class: Class, deadline: Option<u64>) -> Request {
        let into = arena.try_allocate(BLOCK_SIZE).unwrap();
        let operation = Operation::Read { range: BlockRange::new(Block(token), 1), into };
        Request { token: Token(token), class, deadline: deadline.map(Monotonic), operation }
    }

    /// A queue whose thread says which block's read it begins, and carries it out when the test says so.
    fn gated(name: &str) -> (ThreadedNamespace, Sender<()>, Receiver<u64>) {
        let (open, gate) = channel::<()>();
        let (begin, begun) = channel();
        let carry_out = move |task| {
            let Task::Read { at, mut into } = task else { return Ok(()) };
            // A test that is over listens and opens no gate any more; the thread goes on to end.
            let _ = begin.send(at / BLOCK_SIZE as u64);
            let _ = gate.recv();
            // SAFETY: the queue holds the request until this task is answered.
            unsafe { into.as_mut_slice() }.fill(1);
            Ok(())
        };
        (ThreadedNamespace::start_with(file(name), None, carry_out).unwrap(), open, begun)
    }

    #[test]
    fn a_timed_out_read_keeps_its_buffer_until_the_thread_is_done() {
        let (mut queue, open, _begun) = gated("late");
        let arena = Arena::heap(CoreId(0), 1 << 20);
        assert!(queue.submit(now(0), read(&arena, 7, Class::Commit, Some(10))).is_ok());
        let mut completions = Vec::new();
        assert_eq!(queue.poll(now(9), 8, &mut completions), 0);
        assert_eq!(queue.poll(now(10), 8, &mut completions), 1);
        assert_eq!((completions[0].token, completions[0].result), (Token(7), Err(DeviceError::TimedOut)));
        assert!(completions[0].operation.is_none());
        assert_eq!((queue.in_flight(), arena.used_bytes()), (0, BLOCK_SIZE));
        open.send(()).unwrap();
        let start = Instant::now();
        while queue.counts().late == 0 {
            assert_eq!(queue.poll(now(20), 8, &mut completions), 0);
            assert!(start.elapsed() < Duration::from_secs(10));
        }
        assert_eq!(arena.used_bytes(), 0);
    }

    #[test]
    fn closing_does_not_wait_for_a_thread_that_is_stuck() {
        let (mut queue, open, _begun) = gated("stuck");
        let arena = Arena::heap(CoreId(0), 1 << 20);
        assert!(queue.submit(now(0), read(&arena, 1, Class::Commit, Some(1))).is_ok());
        assert_eq!(queue.poll(now(2), 8, &mut Vec::new()), 1);
        drop(queue);
        assert_eq!(arena.used_bytes(), BLOCK_SIZE, "given up, not given back");
        drop(open);
    }

    #[test]
    fn the_most_urgent_class_goes_first() {
        let (mut queue, open, begun) = gated("classes");
        let arena = Arena::heap(CoreId(0), 1 << 20);
        assert!(queue.submit(now(0), read(&arena, 0, Class::Background, None)).is_ok());
        assert_eq!(begun.recv(), Ok(0), "this one holds the thread until all others wait");
        let classes = [Class::Background, Class::CopyOut, Class::Commit, Class::TailRead, Class::Commit];
        for (token, class) in (1..).zip(classes) {
            assert!(queue.submit(now(0), read(&arena, token, class, None)).is_ok());
        }
        for next in [3, 5, 4, 2, 1] {
            open.send(()).unwrap();
            assert_eq!(begun.recv(), Ok(next));
        }
        open.send(()).unwrap();
    }

    #[test]
    fn only_a_declared_sleeper_is_woken() {
        let woken = Arc::new(AtomicUsize::new(0));
        let seen = woken.clone();
        let wake = Wake::new(move || {
            seen.fetch_add(1, Ordering::SeqCst);
        });
        let mut queue = ThreadedNamespace::start(file("wake"), Some(wake), &[0]).unwrap();
        let arena = Arena::heap(CoreId(0), 1 << 20);
        let start = Instant::now();
        assert!(queue.submit(now(0), read(&arena, 1, Class::Commit, None)).is_ok());
        while queue.poll(now(0), 1, &mut Vec::new()) == 0 {
            assert!(start.elapsed() < Duration::from_secs(10));
        }
        assert_eq!(woken.load(Ordering::SeqCst), 0);
        queue.announce_sleep(true);
        assert!(queue.submit(now(0), read(&arena, 2, Class::Commit, None)).is_ok());
        while woken.load(Ordering::SeqCst) == 0 {
            assert!(start.elapsed() < Duration::from_secs(10));
            std::thread::yield_now();
        }
        queue.announce_sleep(false);
        assert_eq!(queue.poll(now(0), 1, &mut Vec::new()), 1, "the completion is there before the wake");
    }
}
