//! What is read first, for how long, and what of the indexes stays in memory.

mod common;

use base::*;
use common::*;
use nvme_device::sim::{SimDisk, SimOptions};
use nvme_plan::{Class, Operation, Plan, Request};
use pollux_nvme_log::*;
use std::time::Duration;

/// Opens a node whose partitions hold `batches` of 8 KB each, with nothing of them in memory.
fn filled(partitions: u128, batches: usize, options: &OpenOptions) -> (Node, Vec<LogSlot>) {
    let disk = SimDisk::new(SimOptions::new((128 << 20) / BLOCK_SIZE as u64), Random::from_seed(60));
    let (mut random, mut now) = (Random::from_seed(61), START);
    format(&disk, 2, 0, &mut random, &mut now);
    let mut node = open(&disk, options, &mut random, &mut now);
    for number in 0..partitions {
        let at = node.now;
        let slot = node.store().create(at, partition(number), 0, LogConfig::keep_everything()).expect("created");
        for _ in 0..batches {
            let bytes = batch(&mut random, 1, 8000, at.wall);
            node.append(slot, &bytes, 0).expect("appended");
            node.settle();
        }
    }
    let (disk, mut now) = node.kill();
    let mut node = open(&disk, options, &mut random, &mut now);
    let find = |number| node.cores[0].store.find(partition(number)).expect("recovered");
    let slots = (0..partitions).map(find).collect();
    node.turns(200);
    (node, slots)
}

/// Whether the index of the log's first extent is in memory; to look is to use it.
fn has_index(node: &mut Node, slot: LogSlot) -> bool {
    let now = node.now;
    let upper = node.store().end_offset(slot);
    !matches!(node.store().locate(now, slot, Offset(0), upper, 1), Located::NeedsRead(ReadPlan::Index(_)))
}

/// The cache of indexes has room for two of a first extent's, each of three or four entries of 32 bytes, and not for three
/// (nor for two and what is left of one after a cut).
fn room_for_two_indexes() -> OpenOptions {
    let mut options = options(1);
    options.store.tail_cache = 64 << 10;
    options.store.index_cache = 280;
    options
}

fn read_first(node: &mut Node, slot: LogSlot) {
    let upper = node.store().end_offset(slot);
    node.fetch(0, slot, Offset(0), upper, 1).expect("it is there");
}

#[test]
fn the_least_recently_used_index_goes_first() {
    let (mut node, slots) = filled(3, 30, &room_for_two_indexes());
    read_first(&mut node, slots[0]);
    read_first(&mut node, slots[1]);
    assert!(has_index(&mut node, slots[1]) && has_index(&mut node, slots[0]), "both fit, and the first was used last");
    read_first(&mut node, slots[2]);
    assert!(has_index(&mut node, slots[0]), "what was used since stays");
    assert!(!has_index(&mut node, slots[1]), "the other has gone");
}

#[test]
fn an_index_that_is_written_anew_after_a_cut_is_counted_once() {
    let (mut node, slots) = filled(2, 30, &room_for_two_indexes());
    slots.iter().for_each(|slot| read_first(&mut node, *slot));
    let now = node.now;
    // Behind the first stretch of its first extent.
    assert_eq!(node.store().truncate(now, slots[1], Offset(3)), Ok(TruncateOutcome::Reading));
    node.settle();
    node.turns(200);
    assert!(node.store().describe(slots[1]).contains("Done open None"), "{}", node.store().describe(slots[1]));
    assert!(has_index(&mut node, slots[0]) && has_index(&mut node, slots[1]), "both fit still");
}

/// The largest time below an offset, whatever has left memory meanwhile: the log goes on while it is looked for (seed
/// 1796700162 of the node's simulation).
#[test]
fn the_largest_time_below_any_offset_is_found() {
    let mut options = options(1);
    options.store.tail_cache = 4 << 10;
    options.store.read_cache = 64 << 10;
    let (mut node, _) = filled(0, 0, &options);
    let mut random = Random::from_seed(77);
    let now = node.now;
    let slot = node.store().create(now, partition(7), 0, LogConfig::keep_everything()).expect("created");
    // For each batch: the offset after it, and the largest time so far with the base offset of the first that has it.
    let mut wanted: Vec<(Offset, WallMillis, Offset)> = Vec::new();
    for number in 0..300 {
        let at = WallMillis(1_700_000_000_000 + number * 10 - random.below(200) as i64);
        let size = if number % 40 == 17 { 40_000 } else { 1000 + random.below(3000) as usize };
        let records = 1 + random.below(3) as usize;
        let bytes = batch(&mut random, records, size, at);
        let appended = node.append(slot, &bytes, 0).expect("appended");
        let (time, base) = (batch::BatchView::parse(&bytes).expect("a batch").0.header().max_timestamp, appended.first);
        let before = wanted.last().map(|(_, time, base)| (*time, *base)).filter(|(before, _)| *before >= time);
        let (time, base) = before.unwrap_or((time, base));
        wanted.push((node.store().end_offset(slot), time, base));
    }
    node.settle();
    node.turns(500);
    for (upper, time, base) in wanted {
        let found = loop {
            match node.store().largest_timestamp_below(slot, upper) {
                Ok(found) => break found,
                Err(plan) => {
                    let ticket = node.store().read(plan);
                    node.wait_read(0, ticket).expect("it can be read");
                }
            }
        };
        assert_eq!(found, Some((time, base)), "below {upper}");
    }
}

#[test]
fn what_is_read_at_the_tip_goes_before_the_backlog() {
    let mut options = options(1);
    options.store.tail_cache = 64 << 10;
    let (mut node, slots) = filled(1, 300, &options);
    let (old, older, new) =
        (stretch(&mut node, slots[0], 8), stretch(&mut node, slots[0], 1), stretch(&mut node, slots[0], 250));
    for asked in [old, older, new] {
        node.store().read_described(asked);
    }
    assert_eq!(classes(&begun(&mut node)), [Class::TailRead, Class::Backlog, Class::Backlog]);
}

/// The reads that the next turn begins; the device never gets them.
fn begun(node: &mut Node) -> Vec<Request> {
    let (now, mut plan, mut events) = (node.now, Plan::new(), Vec::new());
    node.store().poll(now, &mut plan, &mut events);
    node.store().poll_background(now, &mut plan, &mut events);
    node.cores[0].events.extend(events);
    plan.into_iter().filter(|request| matches!(request.operation, Operation::Read { .. })).collect()
}

fn classes(requests: &[Request]) -> Vec<Class> {
    requests.iter().map(|request| request.class).collect()
}

#[test]
fn the_backlog_goes_on_however_many_read_at_the_tip() {
    let mut options = options(1);
    options.store.tail_cache = 64 << 10;
    let (mut node, slots) = filled(1, 300, &options);
    let backlog = [20, 40].map(|from| stretch(&mut node, slots[0], from));
    let tail: Vec<Stretch> = (220..250).step_by(2).map(|from| stretch(&mut node, slots[0], from)).collect();
    for asked in backlog.into_iter().chain(tail) {
        node.store().read_described(asked);
    }
    let classes = classes(&begun(&mut node));
    // The indexes that were read for it count among the eight.
    let first = classes.iter().position(|class| *class == Class::Backlog);
    assert!(first.is_some_and(|first| (1..=8).contains(&first)), "{classes:?}");
    let behind = classes.iter().skip(9).filter(|class| **class == Class::Backlog).count();
    assert!(classes.len() == 16 && behind <= 1, "{classes:?}");
}

#[test]
fn a_read_ends_at_its_deadline_though_the_device_takes_no_more() {
    let mut options = options(1);
    options.store.tail_cache = 64 << 10;
    let (mut node, slots) = filled(1, 300, &options);
    let all: Vec<Stretch> = (0..40).map(|number| stretch(&mut node, slots[0], number * 6)).collect();
    let tickets: Vec<ReadTicket> = all.into_iter().map(|asked| node.store().read_described(asked)).collect();
    let until = node.now.monotonic + options.store.read_deadline;
    let requests = begun(&mut node);
    assert!(requests.len() < tickets.len() && requests.iter().all(|request| request.deadline == Some(until)));
    let ended = |node: &Node| {
        let errors = node.cores[0].events.iter().filter_map(|event| match event {
            LogEvent::ReadDone { ticket, result: Err(error) } => Some((*ticket, *error)),
            _ => None,
        });
        errors.collect::<Vec<_>>()
    };
    node.now = advance(node.now, options.store.read_deadline - Duration::from_millis(1));
    assert_eq!((begun(&mut node).len(), ended(&node)), (0, vec![]));
    node.now = advance(node.now, Duration::from_millis(1));
    assert_eq!(begun(&mut node).len(), 0);
    let ended = ended(&node);
    assert_eq!(ended.len(), tickets.len() - requests.len(), "those in the device end by it");
    assert!(ended.iter().all(|(ticket, error)| {
        tickets.contains(ticket) && *error == ReadError::Device(nvme_plan::DeviceError::TimedOut)
    }));
}

/// Two reads are in flight in a namespace while a commit is: two cores have one each.
#[test]
fn reads_beside_a_commit_are_few_and_shared_by_the_cores() {
    for (cores, expected) in [(1, 2), (2, 1), (4, 1)] {
        let mut options = options(cores);
        options.store.tail_cache = 64 << 10;
        let (mut node, slots) = filled(1, 300, &options);
        let asked: Vec<Stretch> = [1, 60, 120].map(|from| stretch(&mut node, slots[0], from)).into();
        let (now, bytes) = (node.now, batch(&mut Random::from_seed(1), 1, 100, START.wall));
        let mode = AppendMode::Leader { epoch: LeaderEpoch(0) };
        node.store().append(now, slots[0], Append { batches: &bytes, mode }).expect("appended");
        let (mut plan, mut events) = (Plan::new(), Vec::new());
        node.store().poll(now, &mut plan, &mut events);
        node.store().poll_background(now, &mut plan, &mut events);
        assert!(plan.iter().any(|request| request.class == Class::Commit), "a commit is in flight");
        for stretch in asked {
            node.store().read_described(stretch);
        }
        assert_eq!(begun(&mut node).len(), expected, "{cores} cores");
    }
}
