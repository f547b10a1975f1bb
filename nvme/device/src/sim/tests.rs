use super::*;
use arena::Arena;
use base::{BLOCK_SIZE, CoreId, WallMillis};
use nvme_plan::{Class, DeviceError, Operation, Promise, Token};
use std::collections::BTreeSet;

struct Rig {
    arena: Arena,
    now: Monotonic,
    queue: SimNamespace,
}

fn range(start: u64, count: u32) -> BlockRange {
    BlockRange::new(Block(start), count)
}

fn options() -> SimOptions {
    SimOptions { tear: Tear::Blocks, ..SimOptions::new(64) }
}

fn disk(options: SimOptions, seed: u64) -> SimDisk {
    SimDisk::new(options, Random::from_seed(seed))
}

impl Rig {
    fn new(disk: &SimDisk) -> Rig {
        Rig { arena: Arena::heap(CoreId(0), 4 << 20), now: Monotonic(1), queue: disk.open() }
    }

    fn now(&self) -> Now {
        Now { monotonic: self.now, wall: WallMillis(0) }
    }

    fn submit(&mut self, token: u64, operation: Operation, deadline: Option<Monotonic>) {
        let request = Request { token: Token(token), class: Class::Commit, deadline, operation };
        let now = self.now();
        assert!(self.queue.submit(now, request).is_ok());
    }

    fn start_write(&mut self, token: u64, range: BlockRange, byte: u8, promise: Promise) {
        let mut buffer = self.arena.try_allocate(range.bytes() as usize).unwrap();
        buffer.fill(byte);
        self.submit(token, Operation::Write { range, pieces: vec![buffer.freeze()], promise }, None);
    }

    fn poll(&mut self) -> Vec<Completion> {
        let mut completions = Vec::new();
        let now = self.now();
        self.queue.poll(now, 64, &mut completions);
        completions
    }

    fn advance(&mut self, by: Duration) -> Vec<Completion> {
        self.now = self.now + by;
        self.poll()
    }

    /// Jumps from event to event until nothing is in flight.
    fn drain(&mut self) -> Vec<Completion> {
        let mut completions = Vec::new();
        while self.queue.in_flight() > 0 {
            self.now = self.queue.next_deadline().unwrap().max(self.now);
            completions.extend(self.poll());
        }
        completions
    }

    fn write(&mut self, range: BlockRange, byte: u8, promise: Promise) -> Result<(), DeviceError> {
        self.start_write(0, range, byte, promise);
        self.drain().remove(0).result
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        self.submit(0, Operation::Flush, None);
        self.drain().remove(0).result
    }

    fn read(&mut self, range: BlockRange) -> Result<Vec<u8>, DeviceError> {
        let into = self.arena.try_allocate(range.bytes() as usize).unwrap();
        self.submit(0, Operation::Read { range, into }, None);
        let completion = self.drain().remove(0);
        completion.result?;
        match completion.operation {
            Some(Operation::Read { into, .. }) => Ok(into.to_vec()),
            other => panic!("{other:?}"),
        }
    }
}

/// The first byte of each block, having checked that the block is uniform.
fn shades(medium: &Medium, range: BlockRange) -> Vec<u8> {
    let bytes = medium.read_range(range);
    let blocks = bytes.chunks(BLOCK_SIZE);
    blocks.inspect(|block| assert!(block.iter().all(|byte| *byte == block[0]))).map(|block| block[0]).collect()
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let disk = disk(SimOptions { overlap: Overlap::Allowed, ..options() }, seed);
        disk.set_faults(FaultPlan { write_error: PerMillion(200_000), ..FaultPlan::none() });
        let mut rig = Rig::new(&disk);
        for token in 0..20 {
            rig.start_write(token, range(token % 7, 3), token as u8, Promise::Accepted);
        }
        let order: Vec<u64> = rig.drain().iter().map(|completion| completion.token.0).collect();
        disk.power_loss(&mut Random::from_seed(seed));
        (order, disk.injected(), shades(&disk.durable(), range(0, 10)))
    };
    assert_eq!(run(1), run(1));
    let orders: BTreeSet<Vec<u64>> = (0..10).map(|seed| run(seed).0).collect();
    assert!(orders.len() > 5, "completions come in many orders: {orders:?}");
}

#[test]
fn power_loss_keeps_what_was_flushed_and_any_subset_of_the_rest() {
    let mut seen = BTreeSet::new();
    for seed in 0..200 {
        let disk = disk(options(), seed);
        let mut rig = Rig::new(&disk);
        rig.write(range(0, 2), 1, Promise::Accepted).unwrap();
        rig.flush().unwrap();
        rig.write(range(2, 2), 2, Promise::Durable).unwrap();
        rig.write(range(0, 2), 3, Promise::Accepted).unwrap();
        rig.start_write(9, range(4, 2), 4, Promise::Accepted);
        disk.power_loss(&mut Random::from_seed(seed));
        let after = shades(&disk.durable(), range(0, 6));
        assert!(after[..2].iter().all(|shade| [1, 3].contains(shade)), "{after:?}");
        assert_eq!(after[2..4], [2, 2]);
        assert!(after[4..].iter().all(|shade| [0, 4].contains(shade)), "{after:?}");
        seen.insert(after);
    }
    assert_eq!(seen.len(), 16, "every subset of the four unflushed blocks occurs");
}

#[test]
fn without_a_volatile_cache_a_completed_write_stays() {
    for seed in 0..50 {
        let disk = disk(SimOptions { volatile_write_cache: false, ..options() }, seed);
        let mut rig = Rig::new(&disk);
        rig.write(range(0, 2), 1, Promise::Accepted).unwrap();
        disk.power_loss(&mut Random::from_seed(seed));
        assert_eq!(shades(&disk.durable(), range(0, 2)), [1, 1]);
    }
}

#[test]
fn a_flush_covers_only_completions_delivered_before_it_was_submitted() {
    let mut lost = false;
    for seed in 0..50 {
        let disk = disk(options(), seed);
        let mut rig = Rig::new(&disk);
        rig.start_write(1, range(0, 1), 1, Promise::Accepted);
        rig.submit(2, Operation::Flush, None);
        assert_eq!(rig.drain().len(), 2);
        disk.power_loss(&mut Random::from_seed(seed));
        lost |= shades(&disk.durable(), range(0, 1)) == [0];
    }
    assert!(lost);
}

#[test]
fn a_failed_flush_is_not_made_up_for_by_the_next() {
    let mut lost = false;
    for seed in 0..50 {
        let disk = disk(options(), seed);
        let mut rig = Rig::new(&disk);
        rig.write(range(0, 1), 1, Promise::Accepted).unwrap();
        disk.set_faults(FaultPlan { flush_error: PerMillion::ALWAYS, ..FaultPlan::none() });
        assert!(rig.flush().is_err());
        disk.set_faults(FaultPlan::none());
        rig.flush().unwrap();
        rig.write(range(1, 1), 2, Promise::Accepted).unwrap();
        rig.flush().unwrap();
        disk.power_loss(&mut Random::from_seed(seed));
        lost |= shades(&disk.durable(), range(0, 1)) == [0];
        assert_eq!(shades(&disk.durable(), range(1, 1)), [2], "what came later is flushed");
    }
    assert!(lost);
}

/// Whoever flushes next, on whichever queue, is told; otherwise it would vouch for writes that are lost.
#[test]
fn a_failed_flush_is_told_to_every_queue_once() {
    let disk = disk(options(), 1);
    let (mut one, mut other) = (Rig::new(&disk), Rig::new(&disk));
    other.write(range(0, 1), 1, Promise::Accepted).unwrap();
    disk.set_faults(FaultPlan { flush_error: PerMillion::ALWAYS, ..FaultPlan::none() });
    assert!(one.flush().is_err());
    disk.set_faults(FaultPlan::none());
    assert!(other.flush().is_err());
    one.flush().unwrap();
    other.flush().unwrap();
    // A queue that was opened since was told by what opened it.
    Rig::new(&disk).flush().unwrap();
}

#[test]
fn overlapping_writes_land_in_either_order() {
    let mut seen = BTreeSet::new();
    for seed in 0..50 {
        let disk = disk(SimOptions { overlap: Overlap::Allowed, ..options() }, seed);
        let mut rig = Rig::new(&disk);
        rig.start_write(1, range(0, 1), 1, Promise::Accepted);
        rig.start_write(2, range(0, 1), 2, Promise::Accepted);
        let last = rig.drain()[1].token.0;
        seen.insert((shades(&disk.seen(), range(0, 1))[0], last));
    }
    assert_eq!(seen.len(), 4, "either order, whatever the order of completions: {seen:?}");
}

#[test]
#[should_panic(expected = "is in flight")]
fn overlapping_writes_are_the_stores_bug() {
    let mut rig = Rig::new(&disk(options(), 1));
    rig.start_write(1, range(0, 4), 1, Promise::Accepted);
    rig.start_write(2, range(3, 1), 2, Promise::Accepted);
}

#[test]
fn torn_sectors_mix_and_garbage_strikes_only_rewritten_blocks() {
    let (mut mixed, mut garbage) = (false, false);
    for seed in 0..300 {
        let disk = disk(SimOptions::new(64), seed);
        let mut rig = Rig::new(&disk);
        rig.write(range(0, 1), 1, Promise::Durable).unwrap();
        rig.start_write(1, range(0, 1), 2, Promise::Accepted);
        rig.start_write(2, range(1, 1), 3, Promise::Accepted);
        disk.power_loss(&mut Random::from_seed(seed));
        let torn = disk.injected().contains(&InjectedFault::TornBlock(Block(0)));
        garbage |= torn;
        assert!(!disk.injected().contains(&InjectedFault::TornBlock(Block(1))));
        let old = disk.durable().read_range(range(0, 1));
        assert_eq!(old.iter().all(|byte| [1, 2].contains(byte)), !torn);
        let fresh = disk.durable().read_range(range(1, 1));
        assert!(fresh.chunks(512).all(|sector| sector.iter().all(|byte| *byte == sector[0] && [0, 3].contains(byte))));
        mixed |= fresh.contains(&0) && fresh.contains(&3);
    }
    assert!(mixed && garbage);
}

#[test]
fn an_error_strikes_once_and_a_failed_write_may_have_landed_in_part() {
    let mut seen = BTreeSet::new();
    for seed in 0..50 {
        let disk = disk(options(), seed);
        let mut rig = Rig::new(&disk);
        disk.set_faults(FaultPlan {
            write_error: PerMillion::ALWAYS,
            read_error: PerMillion::ALWAYS,
            ..FaultPlan::none()
        });
        assert_eq!(rig.write(range(0, 2), 1, Promise::Durable), Err(DeviceError::Failed(5)));
        assert_eq!(rig.read(range(0, 2)), Err(DeviceError::Failed(5)));
        disk.set_faults(FaultPlan::none());
        seen.insert(shades(&disk.seen(), range(0, 2)));
        rig.write(range(0, 2), 1, Promise::Durable).unwrap();
        assert_eq!(rig.read(range(0, 2)).unwrap(), vec![1; 2 * BLOCK_SIZE]);
    }
    assert_eq!(seen.len(), 4);
}

#[test]
fn lying_writes_are_recorded() {
    let disk = disk(options(), 3);
    let mut rig = Rig::new(&disk);
    disk.set_faults(FaultPlan { dropped_write: PerMillion::ALWAYS, ..FaultPlan::none() });
    rig.write(range(0, 1), 1, Promise::Durable).unwrap();
    assert_eq!(shades(&disk.seen(), range(0, 1)), [0]);
    disk.set_faults(FaultPlan { misdirected_write: PerMillion::ALWAYS, ..FaultPlan::none() });
    rig.write(range(0, 2), 2, Promise::Durable).unwrap();
    let injected = disk.injected();
    assert_eq!(injected[0], InjectedFault::DroppedWrite(range(0, 1)));
    let InjectedFault::MisdirectedWrite { meant, landed } = injected[1] else { panic!("{injected:?}") };
    assert_eq!(meant, range(0, 2));
    assert_eq!(shades(&disk.seen(), landed), [2, 2]);
    let used = disk.seen().used();
    assert_eq!(used, 2);
}

#[test]
fn a_duplicated_write_lands_again_over_what_came_after() {
    let mut overwritten = false;
    for seed in 0..50 {
        let disk = disk(SimOptions { latency: Latency { jitter: Duration::ZERO, ..Latency::SSD }, ..options() }, seed);
        let mut rig = Rig::new(&disk);
        disk.set_faults(FaultPlan { duplicated_write: PerMillion::ALWAYS, ..FaultPlan::none() });
        rig.write(range(0, 1), 1, Promise::Accepted).unwrap();
        disk.set_faults(FaultPlan::none());
        rig.write(range(0, 1), 2, Promise::Accepted).unwrap();
        rig.advance(Duration::from_secs(1));
        overwritten |= shades(&disk.seen(), range(0, 1)) == [1];
    }
    assert!(overwritten);
}

#[test]
fn a_stalled_request_times_out_and_keeps_its_buffer_and_its_slot() {
    let disk = disk(SimOptions { in_flight_max: 1, ..options() }, 1);
    let mut rig = Rig::new(&disk);
    disk.set_faults(FaultPlan { stall: PerMillion::ALWAYS, stall_for: Duration::from_secs(60), ..FaultPlan::none() });
    let into = rig.arena.try_allocate(BLOCK_SIZE).unwrap();
    let taken = rig.arena.used_bytes();
    let deadline = rig.now + Duration::from_secs(30);
    rig.submit(7, Operation::Read { range: range(0, 1), into }, Some(deadline));
    assert!(rig.advance(Duration::from_secs(29)).is_empty());
    assert_eq!(rig.queue.next_deadline(), Some(deadline));
    let completion = rig.advance(Duration::from_secs(2)).remove(0);
    assert_eq!((completion.token, completion.result), (Token(7), Err(DeviceError::TimedOut)));
    assert!(completion.operation.is_none());
    assert_eq!(rig.queue.in_flight(), 0);
    assert_eq!(rig.arena.used_bytes(), taken, "the device still has the buffer");
    let now = rig.now();
    let flush = Request { token: Token(8), class: Class::Commit, deadline: None, operation: Operation::Flush };
    assert!(rig.queue.submit(now, flush).is_err(), "and the slot");
    disk.set_faults(FaultPlan::none());
    assert!(rig.advance(Duration::from_secs(60)).is_empty(), "it is reported once");
    assert!(rig.arena.used_bytes() < taken);
    rig.flush().unwrap();
}

#[test]
fn a_device_that_disappears_ends_everything() {
    let disk = disk(options(), 1);
    let mut rig = Rig::new(&disk);
    rig.start_write(1, range(0, 1), 1, Promise::Accepted);
    disk.disappear();
    let completions = rig.drain();
    assert_eq!(completions[0].result, Err(DeviceError::Gone));
    assert_eq!(rig.flush(), Err(DeviceError::Gone));
    disk.reappear();
    assert_eq!(rig.flush(), Ok(()));
    disk.set_faults(FaultPlan { disappears: PerMillion::ALWAYS, ..FaultPlan::none() });
    assert_eq!(rig.flush(), Err(DeviceError::Gone));
    assert_eq!(disk.injected(), [InjectedFault::Disappeared]);
}

#[test]
fn bits_flip_at_rest_where_there_is_data() {
    let disk = disk(options(), 1);
    let mut rig = Rig::new(&disk);
    assert_eq!(disk.flip_bit(range(0, 64), &mut Random::from_seed(1)), None);
    rig.write(range(5, 1), 1, Promise::Accepted).unwrap();
    assert_eq!(disk.flip_bit(range(0, 64), &mut Random::from_seed(1)), Some(Block(5)));
    let ones = |bytes: Vec<u8>| bytes.iter().map(|byte| (byte ^ 1).count_ones()).sum::<u32>();
    assert_eq!(ones(rig.read(range(5, 1)).unwrap()), 1);
    disk.set_faults(FaultPlan { bit_rot: PerMillion::ALWAYS, ..FaultPlan::none() });
    assert_ne!(ones(rig.read(range(5, 1)).unwrap()), 1, "rot found by the read");
}

#[test]
fn a_trim_takes_effect_late_but_spares_what_was_written_after_it_completed() {
    let (mut late, mut soon) = (false, false);
    for seed in 0..50 {
        let disk = disk(options(), seed);
        let mut rig = Rig::new(&disk);
        rig.write(range(0, 2), 1, Promise::Durable).unwrap();
        rig.submit(1, Operation::Trim { range: range(0, 2) }, None);
        rig.drain();
        rig.write(range(1, 1), 2, Promise::Durable).unwrap();
        match shades(&disk.seen(), range(0, 2))[..] {
            [1, 2] => late = true,
            [0, 2] => soon = true,
            ref other => panic!("{other:?}"),
        }
        rig.advance(Duration::from_secs(1));
        assert_eq!(shades(&disk.seen(), range(0, 2)), [0, 2]);
    }
    assert!(late && soon);
}

#[test]
fn a_killed_process_leaves_its_completed_writes_and_perhaps_those_in_flight() {
    let mut seen = BTreeSet::new();
    for seed in 0..50 {
        let disk = disk(options(), seed);
        let mut rig = Rig::new(&disk);
        rig.write(range(0, 1), 1, Promise::Accepted).unwrap();
        rig.start_write(1, range(1, 1), 2, Promise::Accepted);
        rig.start_write(2, range(2, 1), 3, Promise::Cached);
        drop(rig);
        let mut next = Rig::new(&disk);
        let found = next.read(range(0, 3)).unwrap();
        assert_eq!((found[0], found[2 * BLOCK_SIZE]), (1, 3), "a cached write is in the kernel once submit returned");
        let landed = found[BLOCK_SIZE];
        next.advance(Duration::from_secs(1));
        assert_eq!(next.read(range(1, 1)).unwrap()[0], landed, "nothing lands after the open");
        seen.insert(landed);
    }
    assert_eq!(seen, BTreeSet::from([0, 2]));
}

#[test]
fn cached_writes_need_a_flush_on_any_device() {
    let mut lost = false;
    for seed in 0..50 {
        let disk = disk(SimOptions { volatile_write_cache: false, ..options() }, seed);
        let mut rig = Rig::new(&disk);
        rig.write(range(0, 1), 1, Promise::Cached).unwrap();
        disk.power_loss(&mut Random::from_seed(seed));
        lost |= shades(&disk.durable(), range(0, 1)) == [0];
        assert!(rig.poll().is_empty(), "a queue from before the power loss is dead");
        let mut rig = Rig::new(&disk);
        rig.write(range(0, 1), 2, Promise::Cached).unwrap();
        rig.flush().unwrap();
        disk.power_loss(&mut Random::from_seed(seed));
        assert_eq!(shades(&disk.durable(), range(0, 1)), [2]);
    }
    assert!(lost);
}

#[test]
fn two_queues_share_the_medium_and_its_flushes() {
    let disk = disk(options(), 1);
    let (mut one, mut two) = (Rig::new(&disk), Rig::new(&disk));
    one.write(range(0, 1), 1, Promise::Accepted).unwrap();
    two.now = one.now;
    two.flush().unwrap();
    assert_eq!(shades(&disk.durable(), range(0, 1)), [1]);
    two.submit(1, Operation::Grow { range: range(64, 64) }, None);
    two.drain();
    one.now = two.now;
    one.poll();
    assert_eq!(one.queue.geometry().blocks, 128);
}
