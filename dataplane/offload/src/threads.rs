//! The helper threads and the queues between them and the cores.

use crate::placement::place_current_thread;
use crate::{Class, Finished, JobToken, Offload};
use base::{Sleeper, Work};
use crossbeam_queue::ArrayQueue;
use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle, Thread};

/// How many helpers there are, where they run, and how much each core may ask of them.
#[derive(Clone, Debug)]
pub struct HelperThreadsOptions {
    pub threads: usize,
    /// Jobs that one core may have out.
    pub capacity: usize,
    /// Added to the threads' nice value: they give way to the data cores.
    pub nice: i32,
    /// The CPUs they stay on; empty: wherever the process may run.
    pub cpus: Vec<usize>,
}

struct Job {
    token: JobToken,
    work: Box<dyn Work>,
}

/// What a helper sends back: the job, or the panic that ended it.
type Outcome = Result<Finished, Box<dyn Any + Send>>;

/// The queues of one core. Each holds as many as the core may have out, so that no push ever fails.
struct CoreQueues {
    submitted: [ArrayQueue<Job>; Class::ALL.len()],
    finished: ArrayQueue<Outcome>,
    core: Arc<Sleeper>,
}

struct Helper {
    sleeper: Sleeper,
    thread: Arc<OnceLock<Thread>>,
}

struct Shared {
    cores: Vec<CoreQueues>,
    helpers: Vec<Helper>,
    stopping: AtomicBool,
}

/// The running threads; dropping it lets each finish the job it is at, and ends them. Jobs not yet begun are dropped.
pub struct HelperThreads {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// One core's end of the helper threads; it may move to the core's thread once.
pub struct ThreadedOffload {
    shared: Arc<Shared>,
    core: usize,
    capacity: usize,
    in_flight: usize,
}

impl HelperThreads {
    /// Starts the threads and gives one end to each core. `cores` are the sleepers to notify when a job is back.
    pub fn start(
        options: &HelperThreadsOptions,
        cores: Vec<Arc<Sleeper>>,
    ) -> io::Result<(HelperThreads, Vec<ThreadedOffload>)> {
        assert!(options.threads > 0 && options.capacity > 0, "jobs need a thread and a place");
        let capacity = options.capacity;
        let queues = |core| CoreQueues {
            submitted: std::array::from_fn(|_| ArrayQueue::new(capacity)),
            finished: ArrayQueue::new(capacity),
            core,
        };
        let shared = Arc::new(Shared {
            cores: cores.into_iter().map(queues).collect(),
            helpers: (0..options.threads).map(|_| Helper::new()).collect(),
            stopping: AtomicBool::new(false),
        });
        let mut started = HelperThreads { shared: shared.clone(), threads: Vec::new() };
        for index in 0..options.threads {
            let (shared, nice, cpus) = (shared.clone(), options.nice, options.cpus.clone());
            let thread = thread::Builder::new().name(format!("helper-{index}")).spawn(move || {
                place_current_thread(nice, &cpus);
                shared.help(index);
            })?;
            started.threads.push(thread);
        }
        let ends = (0..shared.cores.len())
            .map(|core| ThreadedOffload { shared: shared.clone(), core, capacity, in_flight: 0 })
            .collect();
        Ok((started, ends))
    }
}

impl Drop for HelperThreads {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        for thread in &self.threads {
            thread.thread().unpark();
        }
        for thread in self.threads.drain(..) {
            // A helper catches the panics of its jobs; one of its own has been printed already.
            let _ = thread.join();
        }
    }
}

impl Helper {
    fn new() -> Helper {
        let thread = Arc::new(OnceLock::<Thread>::new());
        let sleeping = thread.clone();
        let sleeper = Sleeper::new(move || {
            if let Some(thread) = sleeping.get() {
                thread.unpark();
            }
        });
        Helper { sleeper, thread }
    }
}

impl Shared {
    /// The life of one helper thread.
    fn help(&self, index: usize) {
        let helper = &self.helpers[index];
        helper.thread.set(thread::current()).expect("a helper starts once, and before it ever sleeps");
        let mut first = index;
        while !self.stopping.load(Ordering::SeqCst) {
            if let Some((core, job)) = self.take(&mut first) {
                self.run(core, job);
                continue;
            }
            helper.sleeper.announce();
            match self.take(&mut first) {
                Some((core, job)) => {
                    if !helper.sleeper.retract() {
                        // Somebody woke us for another job, which must not wait for this one.
                        self.wake_one();
                    }
                    self.run(core, job);
                    continue;
                }
                None if !self.stopping.load(Ordering::SeqCst) => thread::park(),
                None => {}
            }
            helper.sleeper.retract();
        }
    }

    /// The next job, of the highest class that any core has, going round the cores from the one after the last.
    fn take(&self, first: &mut usize) -> Option<(usize, Job)> {
        let count = self.cores.len();
        for class in Class::ALL {
            for step in 0..count {
                let core = (*first + step) % count;
                if let Some(job) = self.cores[core].submitted[class as usize].pop() {
                    *first = core + 1;
                    return Some((core, job));
                }
            }
        }
        None
    }

    /// Wakes one sleeping helper, if there is one.
    fn wake_one(&self) {
        let _ = self.helpers.iter().any(|helper| helper.sleeper.notify());
    }

    fn run(&self, core: usize, job: Job) {
        let Job { token, mut work } = job;
        // The job is not looked at again after a panic; its core re-raises it.
        let outcome = catch_unwind(AssertUnwindSafe(move || {
            work.run();
            Finished { token, work }
        }));
        let queues = &self.cores[core];
        assert!(queues.finished.push(outcome).is_ok(), "a core has no more jobs out than there is room for");
        queues.core.notify();
    }
}

impl Offload for ThreadedOffload {
    fn submit(&mut self, class: Class, token: JobToken, work: Box<dyn Work>) -> Result<(), Box<dyn Work>> {
        if self.room() == 0 {
            return Err(work);
        }
        self.in_flight += 1;
        let pushed = self.shared.cores[self.core].submitted[class as usize].push(Job { token, work });
        assert!(pushed.is_ok(), "the queue holds as many as the core may have out");
        self.shared.wake_one();
        Ok(())
    }

    fn poll(&mut self, budget: usize, finished: &mut Vec<Finished>) -> usize {
        let queue = &self.shared.cores[self.core].finished;
        for done in 0..budget {
            match queue.pop() {
                None => return done,
                Some(Ok(job)) => finished.push(job),
                Some(Err(panic)) => resume_unwind(panic),
            }
            self.in_flight -= 1;
        }
        budget
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn room(&self) -> usize {
        self.capacity - self.in_flight
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    type Body = Box<dyn FnMut() -> u64 + Send>;

    struct Call {
        body: Body,
        result: Option<u64>,
    }

    impl Work for Call {
        fn run(&mut self) {
            self.result = Some((self.body)());
        }
        fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
            self
        }
    }

    fn call(body: impl FnMut() -> u64 + Send + 'static) -> Box<dyn Work> {
        Box::new(Call { body: Box::new(body), result: None })
    }

    fn result(job: Finished) -> u64 {
        job.work.into_any().downcast::<Call>().unwrap().result.unwrap()
    }

    fn start(threads: usize, cores: usize, capacity: usize) -> (HelperThreads, Vec<ThreadedOffload>) {
        let current = thread::current();
        let sleeper = Arc::new(Sleeper::new(move || current.unpark()));
        let options = HelperThreadsOptions { threads, capacity, nice: 5, cpus: vec![] };
        HelperThreads::start(&options, vec![sleeper; cores]).unwrap()
    }

    fn drain(end: &mut ThreadedOffload, count: usize) -> Vec<Finished> {
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut finished = Vec::new();
        while finished.len() < count {
            assert!(Instant::now() < deadline, "{} of {count} came back", finished.len());
            end.poll(3, &mut finished);
            thread::yield_now();
        }
        finished
    }

    #[test]
    fn every_job_comes_back_to_its_core() {
        let (_threads, mut ends) = start(2, 3, 64);
        for (core, end) in ends.iter_mut().enumerate() {
            for i in 0..64 {
                let answer = core as u64 * 1000 + i;
                assert!(end.submit(Class::ALL[i as usize % 3], JobToken(i), call(move || answer)).is_ok());
            }
            assert!(end.submit(Class::Request, JobToken(99), call(|| 0)).is_err());
        }
        for (core, end) in ends.iter_mut().enumerate() {
            for job in drain(end, 64) {
                let token = job.token.0;
                assert_eq!(result(job), core as u64 * 1000 + token);
            }
            assert_eq!((end.in_flight(), end.room()), (0, 64));
        }
    }

    #[test]
    fn a_lower_class_waits_for_a_higher_one() {
        let (_threads, mut ends) = start(1, 2, 8);
        let (go, gate) = mpsc::channel::<()>();
        let (note, order) = mpsc::channel::<u64>();
        assert!(ends[0].submit(Class::Request, JobToken(0), call(move || gate.recv().map_or(1, |()| 0))).is_ok());
        for (class, token, core) in [(Class::Background, 3, 0), (Class::Image, 2, 1), (Class::Request, 1, 1)] {
            let note = note.clone();
            let body = call(move || note.send(token).map_or(1, |()| 0));
            assert!(ends[core].submit(class, JobToken(token), body).is_ok());
        }
        go.send(()).unwrap();
        drain(&mut ends[0], 2);
        drain(&mut ends[1], 2);
        assert_eq!(order.try_iter().collect::<Vec<_>>(), [1, 2, 3]);
    }

    /// Both ends sleep whenever they have nothing to do; a lost wake of either hangs until the deadline.
    #[test]
    fn sleeping_helpers_and_cores_are_woken() {
        let current = thread::current();
        let sleeper = Arc::new(Sleeper::new(move || current.unpark()));
        let options = HelperThreadsOptions { threads: 2, capacity: 4, nice: 0, cpus: vec![0] };
        let (_threads, mut ends) = HelperThreads::start(&options, vec![sleeper.clone()]).unwrap();
        let end = &mut ends[0];
        let mut finished = Vec::new();
        for i in 0..2000 {
            assert!(end.submit(Class::Request, JobToken(i), call(move || i)).is_ok());
            loop {
                sleeper.announce();
                if end.poll(4, &mut finished) > 0 {
                    sleeper.retract();
                    break;
                }
                let before = Instant::now();
                thread::park_timeout(Duration::from_secs(10));
                assert!(before.elapsed() < Duration::from_secs(9), "a wake was lost");
                sleeper.retract();
            }
        }
        assert_eq!(finished.len(), 2000);
    }

    #[test]
    fn a_panic_goes_on_in_the_core() {
        let (_threads, mut ends) = start(1, 1, 2);
        assert!(ends[0].submit(Class::Request, JobToken(0), call(|| panic!("a bug in a job"))).is_ok());
        let panicked = catch_unwind(AssertUnwindSafe(|| drain(&mut ends[0], 1))).unwrap_err();
        assert_eq!(panicked.downcast_ref::<&str>(), Some(&"a bug in a job"));
    }

    #[test]
    fn stopping_waits_for_the_running_job_only() {
        let (threads, mut ends) = start(1, 1, 8);
        let (entered, running) = mpsc::channel::<()>();
        let (go, gate) = mpsc::channel::<()>();
        let body = call(move || {
            let _ = entered.send(());
            gate.recv().map_or(1, |()| 7)
        });
        assert!(ends[0].submit(Class::Request, JobToken(0), body).is_ok());
        running.recv().unwrap();
        assert!(ends[0].submit(Class::Request, JobToken(1), call(|| unreachable!("never begun"))).is_ok());
        threads.shared.stopping.store(true, Ordering::SeqCst);
        go.send(()).unwrap();
        drop(threads);
        let mut finished = Vec::new();
        assert_eq!(ends[0].poll(8, &mut finished), 1);
        assert_eq!(result(finished.remove(0)), 7);
    }
}
