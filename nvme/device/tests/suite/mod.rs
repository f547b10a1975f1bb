//! The store suite: one script of operations, run over every implementation of `Namespace`, with a model of the
//! contents beside it. A rig knows how to open the device and what time it is there.

use arena::{Arena, Buffer, BufferRef};
use base::{BLOCK_SIZE, Block, BlockRange, CoreId, Monotonic, Now, Random, WallMillis};
use nvme_plan::{Class, Completion, DeviceError, Namespace, Operation, Plan, Promise, Request, Token};
use pollux_nvme_device::{Engine, FileOptions, Medium, OpenOptions, open};
use std::time::{Duration, Instant};

/// Where time comes from: the simulated device jumps to its next event, a real one is polled until it answers.
pub enum Clock {
    Simulated(Monotonic),
    Real(Instant),
}

pub struct Rig {
    pub namespace: Box<dyn Namespace>,
    pub arena: Arena,
    clock: Clock,
    next_token: u64,
}

impl Rig {
    pub fn simulated(namespace: Box<dyn Namespace>) -> Rig {
        Rig::with(namespace, Clock::Simulated(Monotonic(1)))
    }

    pub fn real(namespace: Box<dyn Namespace>) -> Rig {
        Rig::with(namespace, Clock::Real(Instant::now()))
    }

    fn with(namespace: Box<dyn Namespace>, clock: Clock) -> Rig {
        Rig { namespace, arena: Arena::heap(CoreId(0), 32 << 20), clock, next_token: 0 }
    }

    pub fn now(&self) -> Now {
        let monotonic = match &self.clock {
            Clock::Simulated(now) => *now,
            Clock::Real(start) => Monotonic(start.elapsed().as_nanos() as u64),
        };
        Now { monotonic, wall: WallMillis(0) }
    }

    pub fn buffer(&self, blocks: u32) -> Buffer {
        self.arena.try_allocate(blocks as usize * BLOCK_SIZE).expect("the arena is large enough for the suite")
    }

    /// A frozen buffer in which every block says which block and version it is.
    pub fn pattern(&self, range: BlockRange, version: u64) -> BufferRef {
        let mut buffer = self.buffer(range.count);
        fill(&mut buffer, range.start, version);
        buffer.freeze()
    }

    pub fn request(&mut self, operation: Operation) -> Request {
        self.next_token += 1;
        Request { token: Token(self.next_token), class: Class::Commit, deadline: None, operation }
    }

    pub fn submit(&mut self, operation: Operation) -> Token {
        let request = self.request(operation);
        let token = request.token;
        let now = self.now();
        assert!(self.namespace.submit(now, request).is_ok(), "the device has room");
        token
    }

    /// Waits until at least one completion is there.
    pub fn completions(&mut self) -> Vec<Completion> {
        let mut completions = Vec::new();
        let start = Instant::now();
        loop {
            let now = self.now();
            if self.namespace.poll(now, 16, &mut completions) > 0 {
                return completions;
            }
            assert!(self.namespace.in_flight() > 0, "nothing is in flight, so nothing will complete");
            assert!(start.elapsed() < Duration::from_secs(20), "the device does not answer");
            if let Clock::Simulated(now) = &mut self.clock {
                *now = self.namespace.next_deadline().expect("something is in flight").max(*now);
            } else {
                std::thread::yield_now();
            }
        }
    }

    /// Carries one operation out and gives it back.
    pub fn run(&mut self, operation: Operation) -> (Operation, Result<(), DeviceError>) {
        let token = self.submit(operation);
        let mut completions = self.completions();
        assert_eq!(completions.len(), 1);
        let completion = completions.remove(0);
        assert_eq!(completion.token, token);
        (completion.operation.expect("only a timed-out request keeps its operation"), completion.result)
    }

    pub fn write(&mut self, range: BlockRange, version: u64, promise: Promise) {
        let pieces = vec![self.pattern(range, version)];
        assert_eq!(self.run(Operation::Write { range, pieces, promise }).1, Ok(()));
    }

    pub fn read(&mut self, range: BlockRange) -> Buffer {
        let into = self.buffer(range.count);
        match self.run(Operation::Read { range, into }) {
            (Operation::Read { into, .. }, Ok(())) => into,
            (_, result) => panic!("reading {range}: {result:?}"),
        }
    }
}

pub fn fill(bytes: &mut [u8], start: Block, version: u64) {
    for (index, block) in bytes.chunks_mut(BLOCK_SIZE).enumerate() {
        Random::from_seed(version << 32 ^ (start.0 + index as u64)).fill(block);
    }
}

pub fn range(start: u64, count: u32) -> BlockRange {
    BlockRange::new(Block(start), count)
}

/// Every test of the suite, on devices that `open` makes with the given number of blocks.
pub fn run_all(open: impl Fn(u64) -> Rig) {
    single_operations(&mut open(64));
    pieces_are_gathered(&mut open(64));
    promises(&mut open(64));
    places_outside_are_refused(&mut open(64));
    growth(&mut open(64));
    a_full_device_gives_requests_back(&mut open(2048));
    plans_are_taken_from_the_front(&mut open(2048));
    for seed in 0..3 {
        random_script(&mut open(512), seed);
    }
}

fn single_operations(rig: &mut Rig) {
    assert!(rig.read(range(3, 2)).iter().all(|byte| *byte == 0), "what was never written reads as zeroes");
    rig.write(range(3, 4), 1, Promise::Accepted);
    assert_eq!(&rig.read(range(3, 4))[..], &rig.pattern(range(3, 4), 1)[..]);
    assert_eq!(&rig.read(range(5, 1))[..], &rig.pattern(range(5, 1), 1)[..]);
    assert_eq!(rig.run(Operation::Flush).1, Ok(()));
    assert_eq!(rig.run(Operation::WriteZeroes { range: range(4, 2) }).1, Ok(()));
    assert!(rig.read(range(4, 2)).iter().all(|byte| *byte == 0));
    assert_eq!(&rig.read(range(6, 1))[..], &rig.pattern(range(6, 1), 1)[..], "zeroing leaves the neighbours alone");
    assert_eq!(&rig.read(range(3, 1))[..], &rig.pattern(range(3, 1), 1)[..]);
    let last = range(63, 1);
    rig.write(last, 2, Promise::Accepted);
    assert_eq!(&rig.read(last)[..], &rig.pattern(last, 2)[..]);
    let trimmed = rig.run(Operation::Trim { range: range(3, 1) }).1;
    assert_eq!(trimmed.is_ok(), rig.namespace.geometry().trims, "{trimmed:?}");
}

fn pieces_are_gathered(rig: &mut Rig) {
    let pieces = vec![
        rig.pattern(range(0, 1), 9),
        rig.pattern(range(8, 4), 9).slice(BLOCK_SIZE..3 * BLOCK_SIZE),
        rig.pattern(range(2, 1), 9),
    ];
    let write = Operation::Write { range: range(10, 4), pieces, promise: Promise::Accepted };
    let (operation, result) = rig.run(write);
    assert_eq!(result, Ok(()));
    assert!(matches!(operation, Operation::Write { pieces, .. } if pieces.len() == 3), "the pieces come back");
    for (at, source) in [(10, 0), (11, 9), (12, 10), (13, 2)] {
        assert_eq!(&rig.read(range(at, 1))[..], &rig.pattern(range(source, 1), 9)[..]);
    }
}

fn promises(rig: &mut Rig) {
    rig.write(range(1, 3), 4, Promise::Cached);
    assert_eq!(&rig.read(range(1, 3))[..], &rig.pattern(range(1, 3), 4)[..], "a read sees what the cache holds");
    rig.write(range(1, 1), 5, Promise::Accepted);
    assert_eq!(&rig.read(range(1, 1))[..], &rig.pattern(range(1, 1), 5)[..], "and what replaced it");
    assert_eq!(rig.run(Operation::Flush).1, Ok(()));
    let operation =
        Operation::Write { range: range(2, 1), pieces: vec![rig.pattern(range(2, 1), 6)], promise: Promise::Durable };
    let (_, result) = rig.run(operation);
    assert_eq!(result.is_ok(), rig.namespace.geometry().durable_writes, "{result:?}");
    let expected = if result.is_ok() { 6 } else { 4 };
    assert_eq!(&rig.read(range(2, 1))[..], &rig.pattern(range(2, 1), expected)[..]);
}

fn places_outside_are_refused(rig: &mut Rig) {
    for outside in [range(64, 1), range(63, 2), range(u64::MAX, 1), range(u64::MAX - 1, 2)] {
        let into = rig.buffer(outside.count);
        let (operation, result) = rig.run(Operation::Read { range: outside, into });
        assert!(matches!(result, Err(DeviceError::Failed(_))), "{outside}: {result:?}");
        assert!(matches!(operation, Operation::Read { into, .. } if into.len() == outside.count as usize * BLOCK_SIZE));
        assert!(rig.run(Operation::WriteZeroes { range: outside }).1.is_err());
    }
}

fn growth(rig: &mut Rig) {
    if !rig.namespace.geometry().grows {
        assert!(rig.run(Operation::Grow { range: range(64, 64) }).1.is_err());
        return;
    }
    assert!(rig.run(Operation::Grow { range: range(65, 64) }).1.is_err(), "growth leaves no gap");
    assert_eq!(rig.run(Operation::Grow { range: range(64, 64) }).1, Ok(()));
    assert_eq!(rig.namespace.geometry().blocks, 128);
    assert!(rig.read(range(60, 40)).iter().all(|byte| *byte == 0));
    rig.write(range(60, 8), 3, Promise::Accepted);
    assert_eq!(&rig.read(range(60, 8))[..], &rig.pattern(range(60, 8), 3)[..]);
}

fn a_full_device_gives_requests_back(rig: &mut Rig) {
    let max = rig.namespace.geometry().in_flight_max;
    let now = rig.now();
    for index in 0..max {
        let into = rig.buffer(1);
        let request = rig.request(Operation::Read { range: range(index as u64, 1), into });
        assert!(rig.namespace.submit(now, request).is_ok());
    }
    assert_eq!(rig.namespace.in_flight(), max);
    let request = rig.request(Operation::Flush);
    let refused = rig.namespace.submit(now, request).expect_err("the device is full");
    assert!(matches!(refused.operation, Operation::Flush));
    let mut done = 0;
    while done < max {
        done += rig.completions().len();
    }
    assert_eq!((done, rig.namespace.in_flight()), (max, 0));
    assert_eq!(rig.run(Operation::Flush).1, Ok(()));
}

fn plans_are_taken_from_the_front(rig: &mut Rig) {
    let max = rig.namespace.geometry().in_flight_max;
    let mut plan = Plan::new();
    for index in 0..max + 3 {
        let pieces = vec![rig.pattern(range(index as u64, 1), 7)];
        plan.push_back(rig.request(Operation::Write {
            range: range(index as u64, 1),
            pieces,
            promise: Promise::Accepted,
        }));
    }
    let now = rig.now();
    assert_eq!(rig.namespace.submit_plan(now, &mut plan), max);
    assert_eq!(plan.len(), 3);
    let mut done = 0;
    while done < max + 3 {
        for completion in rig.completions() {
            assert_eq!(completion.result, Ok(()));
            done += 1;
        }
        let now = rig.now();
        rig.namespace.submit_plan(now, &mut plan);
    }
    assert_eq!(&rig.read(range(max as u64 + 2, 1))[..], &rig.pattern(range(max as u64 + 2, 1), 7)[..]);
}

/// Random reads, writes, zeroings and flushes with several in flight, writes disjoint from all in flight as the store
/// keeps them, compared with a model.
fn random_script(rig: &mut Rig, seed: u64) {
    let mut random = Random::from_seed(seed);
    let mut model = Medium::new(rig.namespace.geometry().blocks);
    let mut in_flight: Vec<(Token, BlockRange)> = Vec::new();
    for version in 0..400u64 {
        while in_flight.len() > random.below(12) as usize {
            check_completions(rig, &model, &mut in_flight);
        }
        let chosen = range(random.below(480), 1 + random.below(32) as u32);
        if in_flight.iter().any(|(_, other)| other.overlaps(chosen)) {
            continue;
        }
        let operation = match random.below(10) {
            0 => Operation::Flush,
            1 => {
                model.write(chosen.start, &vec![0; chosen.bytes() as usize]);
                Operation::WriteZeroes { range: chosen }
            }
            2..=5 => {
                let bytes = rig.pattern(chosen, version);
                model.write(chosen.start, &bytes);
                let cut = random.below(u64::from(chosen.count)) as usize * BLOCK_SIZE;
                let pieces = match cut {
                    0 => vec![bytes],
                    _ => vec![bytes.slice(0..cut), bytes.slice(cut..bytes.len())],
                };
                let promise = match random.below(4) {
                    0 if rig.namespace.geometry().durable_writes => Promise::Durable,
                    1 => Promise::Cached,
                    _ => Promise::Accepted,
                };
                Operation::Write { range: chosen, pieces, promise }
            }
            _ => Operation::Read { range: chosen, into: rig.buffer(chosen.count) },
        };
        let token = rig.submit(operation);
        in_flight.push((token, chosen));
    }
    while !in_flight.is_empty() {
        check_completions(rig, &model, &mut in_flight);
    }
    for start in (0..model.blocks()).step_by(64) {
        assert_eq!(&rig.read(range(start, 64))[..], &model.read_range(range(start, 64))[..]);
    }
}

fn check_completions(rig: &mut Rig, model: &Medium, in_flight: &mut Vec<(Token, BlockRange)>) {
    for completion in rig.completions() {
        assert_eq!(completion.result, Ok(()));
        let index = in_flight.iter().position(|(token, _)| *token == completion.token);
        in_flight.swap_remove(index.expect("each token completes once"));
        if let Some(Operation::Read { range, into }) = completion.operation {
            assert_eq!(&into[..], &model.read_range(range)[..], "{range}");
        }
    }
}

/// io_uring, unless this system refuses it; the start of a node says so, and so does the test.
pub fn uring_here() -> Option<Engine> {
    let mut file = FileOptions::new(std::env::temp_dir().join(format!("pollux-suite-probe-{}", std::process::id())));
    file.create = Some(BLOCK_SIZE as u64);
    let opened = open(&OpenOptions::File { file: file.clone(), engine: Engine::Uring });
    let _ = std::fs::remove_file(&file.path);
    match opened {
        Ok(_) => Some(Engine::Uring),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}
