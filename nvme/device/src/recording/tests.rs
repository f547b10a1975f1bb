use super::*;
use crate::{Latency, Medium, MemoryDisk, Overlap, SimDisk, SimOptions, Tear};
use arena::Arena;
use base::{BLOCK_SIZE, Block, BlockRange, CoreId, Random, WallMillis};
use nvme_plan::{Class, Promise};
use std::collections::BTreeSet;

struct Rig<N> {
    queue: Recording<N>,
    arena: Arena,
    now: u64,
}

fn range(start: u64, count: u32) -> BlockRange {
    BlockRange::new(Block(start), count)
}

impl<N: Namespace> Rig<N> {
    fn new(namespace: N, recorder: Recorder) -> Rig<N> {
        Rig { queue: Recording::new(namespace, recorder), arena: Arena::heap(CoreId(0), 4 << 20), now: 0 }
    }

    fn now(&self) -> Now {
        Now { monotonic: Monotonic(self.now), wall: WallMillis(0) }
    }

    fn submit(&mut self, token: u64, operation: Operation) {
        let request = Request { token: Token(token), class: Class::Commit, deadline: None, operation };
        self.now += 1;
        assert!(self.queue.submit(self.now(), request).is_ok());
    }

    fn start_write(&mut self, token: u64, range: BlockRange, byte: u8, promise: Promise) {
        let mut buffer = self.arena.try_allocate(range.bytes() as usize).unwrap();
        buffer.fill(byte);
        self.submit(token, Operation::Write { range, pieces: vec![buffer.freeze()], promise });
    }

    fn drain(&mut self) {
        while self.queue.in_flight() > 0 {
            self.now = self.queue.next_deadline().map_or(self.now, |at| at.0.max(self.now)) + 1;
            self.queue.poll(self.now(), 64, &mut Vec::new());
        }
    }

    fn write(&mut self, range: BlockRange, byte: u8, promise: Promise) {
        self.start_write(0, range, byte, promise);
        self.drain();
    }

    fn flush(&mut self) {
        self.submit(0, Operation::Flush);
        self.drain();
    }
}

fn shades(medium: &Medium, range: BlockRange) -> Vec<u8> {
    medium.read_range(range).chunks(BLOCK_SIZE).map(|block| block[0]).collect()
}

/// A run with something of everything: flushed, superseded, unflushed and in flight.
fn sample(recorder: Recorder) -> Rig<crate::MemoryNamespace> {
    let mut rig = Rig::new(MemoryDisk::new(16).unwrap().attach(), recorder);
    rig.write(range(0, 2), 1, Promise::Accepted);
    rig.flush();
    rig.write(range(1, 2), 2, Promise::Accepted);
    rig.start_write(7, range(4, 1), 3, Promise::Durable);
    rig
}

#[test]
fn every_legal_state_of_a_small_run_and_no_other() {
    let recorder = Recorder::in_memory(16, Stamp::Turn);
    let rig = sample(recorder.clone());
    let run = recorder.recorded().unwrap();
    let base = || Medium::new(16);
    let states = |cut: usize| -> BTreeSet<Vec<u8>> {
        let images = run.every_image(base(), cut, true, 1000).unwrap();
        images.iter().map(|image| shades(image, range(0, 5))).collect()
    };
    let all = |choices: [&[u8]; 5]| -> BTreeSet<Vec<u8>> {
        let mut states = BTreeSet::from([vec![]]);
        for choice in choices {
            states = states
                .iter()
                .flat_map(|state| choice.iter().map(move |shade| [&state[..], &[*shade]].concat()))
                .collect();
        }
        states
    };
    assert_eq!(run.events.len(), 7);
    assert_eq!(states(0), all([&[0], &[0], &[0], &[0], &[0]]));
    // The first write in flight, completed, and beside a flush that has not completed.
    for cut in 1..=3 {
        assert_eq!(states(cut), all([&[0, 1], &[0, 1], &[0], &[0], &[0]]), "cut {cut}");
    }
    assert_eq!(states(4), all([&[1], &[1], &[0], &[0], &[0]]));
    assert_eq!(states(6), all([&[1], &[1, 2], &[0, 2], &[0], &[0]]));
    assert_eq!(states(7), all([&[1], &[1, 2], &[0, 2], &[0], &[0, 3]]));
    assert!(run.every_image(base(), 7, true, 7).is_none(), "more than asked for");
    let kept = run.every_image(base(), 6, false, 1000).unwrap();
    assert_eq!(kept.len(), 1, "without a volatile cache what completed stays");
    drop(rig);
}

#[test]
fn drawn_images_are_legal_repeatable_and_cover_all_states() {
    let recorder = Recorder::in_memory(16, Stamp::Turn);
    sample(recorder.clone()).drain();
    let run = recorder.recorded().unwrap();
    let options = ImageOptions { volatile_write_cache: true, tear: Tear::Blocks };
    let draw = |seed| CrashImages::new(&run, Medium::new(16), options, 1000, Random::from_seed(seed));
    let mut seen = BTreeSet::new();
    let mut last = 0;
    for image in draw(1) {
        assert!(image.cut >= last);
        last = image.cut;
        assert_eq!(image.time, image.cut.checked_sub(1).map_or(Monotonic::ZERO, |at| run.events[at].time));
        let legal = run.every_image(Medium::new(16), image.cut, true, 1000).unwrap();
        assert!(legal.contains(&image.medium), "cut {}", image.cut);
        seen.insert((image.cut, shades(&image.medium, range(0, 5))));
    }
    let mut possible = BTreeSet::new();
    for cut in 0..=run.events.len() {
        let images = run.every_image(Medium::new(16), cut, true, 1000).unwrap();
        possible.extend(images.iter().map(|image| (cut, shades(image, range(0, 5)))));
    }
    assert_eq!(seen, possible);
    let one: Vec<CrashImage> = draw(2).collect();
    assert!(one.iter().zip(draw(2)).all(|(one, other)| one.cut == other.cut && one.medium == other.medium));
}

#[test]
fn a_recording_in_a_file_reads_back_and_may_end_in_the_middle() {
    let path = std::env::temp_dir().join(format!("pollux-recording-{}", std::process::id()));
    let memory = Recorder::in_memory(16, Stamp::Turn);
    let both = |recorder: &Recorder| {
        let mut rig = sample(recorder.clone());
        rig.drain();
        rig.submit(8, Operation::WriteZeroes { range: range(0, 3) });
        rig.submit(9, Operation::Trim { range: range(3, 3) });
        rig.submit(10, Operation::Grow { range: range(16, 4) });
        rig.submit(11, Operation::Read { range: range(0, 1), into: rig.arena.try_allocate(BLOCK_SIZE).unwrap() });
        rig.drain();
        recorder.mark(rig.now(), 4711);
    };
    both(&memory);
    both(&Recorder::to_file(&path, 16, Stamp::Turn).unwrap());
    let run = memory.recorded().unwrap();
    assert_eq!(RecordedRun::load(&path).unwrap(), run);
    assert_eq!(run.events.len(), 8 + 6 + 1, "reads leave no event");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    for cut in (16..bytes.len()).step_by(97) {
        let part = RecordedRun::decode(&bytes[..cut]).unwrap();
        assert_eq!(part.events[..], run.events[..part.events.len()]);
    }
    assert!(matches!(RecordedRun::decode(&bytes[1..]), Err(LoadError::NotARecording)));
    let mut wrong = bytes;
    wrong[20] = 99;
    assert!(matches!(RecordedRun::decode(&wrong), Err(LoadError::Malformed(16))));
}

#[test]
fn what_the_device_refused_never_was() {
    let options = SimOptions { in_flight_max: 1, latency: Latency::NONE, ..SimOptions::new(16) };
    let recorder = Recorder::in_memory(16, Stamp::Turn);
    let mut rig = Rig::new(SimDisk::new(options, Random::from_seed(1)).open(), recorder.clone());
    rig.start_write(1, range(0, 1), 1, Promise::Durable);
    let operation = Operation::WriteZeroes { range: range(1, 1) };
    let refused = Request { token: Token(2), class: Class::Commit, deadline: None, operation };
    assert!(rig.queue.submit(rig.now(), refused).is_err());
    let run = recorder.recorded().unwrap();
    assert!(matches!(run.events[2].kind, EventKind::Withdrawn { id: 2 }));
    assert_eq!(run.every_image(Medium::new(16), 3, true, 100).unwrap().len(), 2);
}

#[test]
fn a_simulated_power_loss_is_one_of_the_images() {
    for seed in 0..40 {
        let options = SimOptions { tear: Tear::Blocks, overlap: Overlap::Panics, ..SimOptions::new(16) };
        let disk = SimDisk::new(options, Random::from_seed(seed));
        let recorder = Recorder::in_memory(16, Stamp::Turn);
        let mut rig = Rig::new(disk.open(), recorder.clone());
        let mut random = Random::from_seed(seed);
        for step in 0..12u64 {
            let byte = step as u8 + 1;
            match random.below(4) {
                0 => rig.flush(),
                1 => rig.write(range(random.below(6), 2), byte, Promise::Durable),
                _ => rig.write(range(random.below(6), 2), byte, Promise::Accepted),
            }
        }
        rig.start_write(99, range(8, 3), 99, Promise::Accepted);
        disk.power_loss(&mut random);
        let run = recorder.recorded().unwrap();
        let images = run.every_image(Medium::new(16), run.events.len(), true, 1 << 20).unwrap();
        assert!(images.contains(&disk.durable()), "seed {seed}");
    }
}
