//! Where slabs come from and go to: growth ahead of need and within bounds, growth inside an opening, the spreading of
//! partitions over shards; and what the keeper writes into the superblock.

mod common;

use base::*;
use common::*;
use nvme_device::sim::{FaultPlan, PerMillion, SimDisk, SimOptions};
use nvme_log::FlushMethod;
use pollux_nvme_log as nvme_log;
use pollux_nvme_log::*;
use std::collections::BTreeMap;
use std::time::Duration;

const MIB: u64 = 1 << 20;

fn growing(mib: u64, max: u64, seed: u64, options: &OpenOptions) -> (Node, Random) {
    let disk = SimDisk::new(SimOptions::new(mib * MIB / BLOCK_SIZE as u64), Random::from_seed(seed));
    let (mut random, mut now) = (Random::from_seed(seed + 1), START);
    format(&disk, 2, max * MIB, &mut random, &mut now);
    (open(&disk, options, &mut random, &mut now), random)
}

fn create(node: &mut Node, number: u128) -> LogSlot {
    let now = node.now;
    node.store().create(now, partition(number), 0, LogConfig::keep_everything()).expect("created")
}

fn blocks(node: &Node) -> u64 {
    node.disk.seen().blocks()
}

#[test]
fn partitions_made_in_one_turn_are_spread_over_the_shards() {
    let (mut node, _) = growing(512, 0, 10, &options(1));
    node.turns(2000);
    let slots: Vec<LogSlot> = (0..64).map(|number| create(&mut node, number)).collect();
    let mut by_shard: BTreeMap<ShardId, usize> = BTreeMap::new();
    for slot in slots {
        *by_shard.entry(node.store().shard(slot)).or_default() += 1;
    }
    assert_eq!(by_shard.len(), usize::from(node.superblock.map.shards), "{by_shard:?}");
    assert!(by_shard.values().all(|count| *count == 8), "{by_shard:?}");
}

/// One partition may have all the space there is, though every shard had a slab ahead of need.
#[test]
fn what_was_taken_ahead_goes_back_when_data_needs_it() {
    let (mut node, mut random) = growing(64, 0, 20, &options(1));
    node.turns(2000);
    let slot = create(&mut node, 1);
    let mut appended = 0u64;
    let bytes = batch(&mut random, 1, 200_000, node.now.wall);
    loop {
        match node.append(slot, &bytes, 0) {
            Ok(_) => appended += bytes.len() as u64,
            Err(error) => {
                assert_eq!(error, AppendError::Full);
                let before = node.keeper.unowned();
                node.turns(20_000);
                if node.keeper.unowned() == before {
                    break;
                }
            }
        }
    }
    let map = node.superblock.map;
    let slabs = u64::from(map.slabs_within(blocks(&node))) * map.slab_bytes();
    assert!(appended * 10 > slabs * 7, "{appended} of {slabs} bytes");
}

#[test]
fn growth_stays_ahead_of_what_is_used_and_within_a_step_of_it() {
    let (mut node, mut random) = growing(512, 2048, 30, &options(1));
    let idle = blocks(&node);
    node.turns(5000);
    assert_eq!(blocks(&node), idle, "an idle node does not grow");
    let mut first = idle;
    let bytes = batch(&mut random, 1, 900_000, node.now.wall);
    // Topics come and go: what they had is used again.
    for round in 0..12u128 {
        let slots: Vec<LogSlot> = (0..4).map(|number| create(&mut node, round * 4 + number)).collect();
        for slot in &slots {
            for _ in 0..8 {
                node.append(*slot, &bytes, 0).expect("appended");
            }
        }
        node.settle();
        for slot in slots {
            node.store().delete(slot).expect("deleted");
        }
        node.turns(3000);
        if round == 2 {
            first = blocks(&node);
            assert!((first - idle) * BLOCK_SIZE as u64 <= 256 * MIB, "one step ahead of use");
        }
    }
    // 345 MB went through, 28 MB at a time.
    assert_eq!(blocks(&node), first, "deleted topics give their space back");
    let slot = create(&mut node, 1000);
    let mut used = 0;
    for _ in 0..400 {
        used += node.append(slot, &bytes, 0).map(|_| bytes.len() as u64).expect("appended");
    }
    node.settle();
    let grown = (blocks(&node) - first) * BLOCK_SIZE as u64;
    assert!(grown > 0, "it grew");
    // Extents of 64 MiB may be half empty, eight shards have a slab each, and 256 MiB are taken at a time.
    let slack = node.superblock.map.slab_bytes() * 8 + 2 * 256 * MIB;
    assert!(first * BLOCK_SIZE as u64 + grown <= used + slack + 512 * MIB, "{grown} for {used}");
    assert_eq!(grown % (256 * MIB), 0);
}

/// A full namespace refuses appends instead of letting them wait, opens again whether it may grow or not, and takes appends
/// once it may.
#[test]
fn a_node_that_is_full_opens_again_and_goes_on_once_it_may_grow() {
    let options = options(1);
    let (mut node, mut random) = growing(48, 63, 40, &options);
    node.disk.set_faults(FaultPlan { growth_refused: PerMillion::ALWAYS, ..FaultPlan::none() });
    let slots: Vec<LogSlot> = (0..160).map(|number| create(&mut node, number)).collect();
    // What producers did takes more of a checkpoint than the records of their partitions take.
    'filling: for producer in 0..700 {
        for slot in &slots {
            let at = node.now.wall;
            let bytes = producer_batch(&mut random, 1, 10, at, (producer, 0, 0), false);
            if node.append(*slot, &bytes, 0).is_err() {
                break 'filling;
            }
        }
    }
    let bytes = batch(&mut random, 1, 60_000, node.now.wall);
    let mut full = 0;
    while full < 200 {
        let slot = slots[random.below(slots.len() as u64) as usize];
        full += u32::from(node.append(slot, &bytes, 0).is_err());
    }
    node.settle();
    let ends: Vec<Offset> = slots.iter().map(|slot| node.cores[0].store.end_offset(*slot)).collect();
    let before = blocks(&node);
    let (disk, mut now) = node.kill();
    now = advance(now, Duration::from_secs(1));
    let full = open(&disk, &options, &mut random, &mut now);
    assert_eq!(blocks(&full), before);
    drop(full);
    disk.set_faults(FaultPlan::none());
    let mut node = open(&disk, &options, &mut random, &mut now);
    for (number, end) in ends.iter().enumerate() {
        let slot = node.store().find(partition(number as u128)).expect("recovered");
        assert_eq!(node.store().end_offset(slot), *end);
    }
    let mut taken = 0;
    for number in 0..100 {
        let slot = node.store().find(partition(number)).expect("recovered");
        taken += u32::from(node.append(slot, &bytes, 0).is_ok());
    }
    assert!(blocks(&node) > before && taken > 20, "it grew, and took {taken}");
}

#[test]
fn what_was_measured_is_kept_over_a_crash_at_any_step() {
    for turns in 0..40 {
        let disk = SimDisk::new(SimOptions::new(64 * 256), Random::from_seed(50 + turns));
        let (mut random, mut now) = (Random::from_seed(51 + turns), START);
        format(&disk, 2, 0, &mut random, &mut now);
        let mut node = open(&disk, &options(1), &mut random, &mut now);
        assert_eq!(node.keeper.flush_method(), nvme_log::FlushMethod::Unknown);
        let arena = arena::Arena::heap(CoreId(0), 1 << 20);
        assert!(node.keeper.keep_flush_method(FlushMethod::DurableWrite, &arena));
        let slot = create(&mut node, 1);
        let bytes = batch(&mut random, 1, 100, node.now.wall);
        node.append(slot, &bytes, 0).expect("appended");
        node.turns(turns as usize);
        node.store().set_durable_writes(true);
        node.append(slot, &bytes, 0).expect("appended");
        let done = turns == 39;
        if done {
            node.settle();
        }
        let (disk, mut now) = node.kill();
        disk.power_loss(&mut random);
        let mut node = open(&disk, &options(1), &mut random, &mut now);
        let known = node.keeper.flush_method();
        assert!(known == FlushMethod::DurableWrite || (!done && known == FlushMethod::Unknown), "{turns}: {known:?}");
        if done {
            let slot = node.store().find(partition(1)).expect("recovered");
            assert_eq!(node.store().end_offset(slot), Offset(2));
        }
    }
}

/// Zeroes go out at one budget, whether rings or what a file grew by is written with them, and growth has all of it once
/// the rings are written.
#[test]
fn rings_and_growth_share_one_budget_for_zeroes() {
    let mut options = options(2);
    options.store.zero_ahead = true;
    let (mut node, mut random) = growing(256, 768, 60, &options);
    let began = node.now.monotonic;
    let slot = create(&mut node, 1);
    let bytes = batch(&mut random, 1, 200_000, node.now.wall);
    let before = blocks(&node);
    while node.append(slot, &bytes, 0).is_ok() && blocks(&node) == before {}
    assert!(blocks(&node) > before, "it grew");
    let all = 2 * node.superblock.map.ring_blocks + 256 * 256;
    // The rings are as large as commits that overtook the zeroes left them.
    let mut last = (0, began);
    while node.now.monotonic.since(last.1) < Duration::from_secs(1) {
        node.turn();
        let took = node.now.monotonic.since(began);
        // A piece of 1 MiB of each may be on its way at any moment.
        let most = took.as_micros() as u64 * 50 / BLOCK_SIZE as u64 + 3 * 256;
        assert!(node.zeroed <= most, "{} blocks in {took:?}", node.zeroed);
        if node.zeroed > last.0 {
            last = (node.zeroed, node.now.monotonic);
        }
    }
    let took = last.1.since(began);
    assert!(node.zeroed > 256 * 256 && node.zeroed <= all, "{} of {all} blocks", node.zeroed);
    assert!(took < Duration::from_secs(9), "all of {} blocks took {took:?}", node.zeroed);
}

/// Fills what is left with large records of one partition.
fn fill(node: &mut Node, random: &mut Random) -> LogSlot {
    let hog = create(node, 1000);
    let large = batch(random, 1, 200_000, node.now.wall);
    let mut refused = 0;
    while refused < 3 {
        refused += u32::from(node.append(hog, &large, 0).is_err());
        node.turns(200);
    }
    hog
}

/// As full as it can get by records, with some partitions that still take small ones.
fn filled(seed: u64, options: &OpenOptions, config: &LogConfig) -> (Node, Random, Vec<LogSlot>) {
    let (mut node, mut random) = growing(48, 63, seed, options);
    node.disk.set_faults(FaultPlan { growth_refused: PerMillion::ALWAYS, ..FaultPlan::none() });
    node.turns(200);
    let mut slots = Vec::new();
    for number in 0..96 {
        let now = node.now;
        slots.push(node.store().create(now, partition(number), 0, config.clone()).expect("created"));
    }
    let small = batch(&mut random, 1, 10, node.now.wall);
    for slot in &slots {
        node.append(*slot, &small, 0).expect("appended");
    }
    fill(&mut node, &mut random);
    node.settle();
    (node, random, slots)
}

/// Retention looks every five minutes where there is room; a full namespace does not wait for that.
#[test]
fn what_retention_may_take_is_taken_as_soon_as_nothing_else_is_left() {
    let (mut node, mut random) = growing(64, 0, 90, &options(1));
    node.turns(2000);
    let config =
        LogConfig { deletes: true, retention_bytes: Some(4 * MIB), segment_bytes: MIB, ..LogConfig::keep_everything() };
    let now = node.now;
    let slot = node.store().create(now, partition(1), 0, config).expect("created");
    let bytes = batch(&mut random, 1, 100_000, node.now.wall);
    let began = node.now.monotonic;
    let mut appended = 0;
    while appended < 200 * MIB {
        match node.append(slot, &bytes, 0) {
            Ok(_) => appended += bytes.len() as u64,
            Err(error) => {
                assert_eq!(error, AppendError::Full);
                let now = node.now;
                let durable = node.store().durable_offset(slot);
                node.store().record_high_watermark(now, slot, durable);
                node.turn();
            }
        }
        let took = node.now.monotonic.since(began);
        assert!(took < Duration::from_secs(60), "{appended} bytes in {took:?}");
    }
}

/// Partitions without a record take room in checkpoints too: they are refused while there is enough for the next opening.
#[test]
fn a_full_namespace_refuses_partitions_and_opens() {
    let options = options(1);
    let (mut node, mut random, _) = filled(70, &options, &LogConfig::keep_everything());
    let mut created = 0u128;
    let refusal = loop {
        let now = node.now;
        match node.store().create(now, partition(2000 + created), 0, LogConfig::keep_everything()) {
            Ok(_) => created += 1,
            Err(ChangeError::Pressure) => node.turns(100),
            Err(error) => break error,
        }
        assert!(created < 100_000, "they are never refused");
    };
    assert_eq!(refusal, ChangeError::Full);
    node.settle();
    let (used, ring) = node.store().journal_use();
    assert!(used * 16 <= ring * 15, "{used} of {ring}: deletions have their part");
    let before = blocks(&node);
    let (disk, mut now) = node.kill();
    now = advance(now, Duration::from_secs(1));
    let mut node = open(&disk, &options, &mut random, &mut now);
    assert_eq!((blocks(&node), node.store().partition_count() as u128), (before, 97 + created));
    let hog = node.store().find(partition(1000)).expect("recovered");
    node.store().delete(hog).expect("deleted");
    node.turns(20_000);
    create(&mut node, 1001);
}

/// Who is refused for want of space tries again and again, and that writes nothing to the device: seed 1797100779
/// of the node's simulation counted 26,178 commits for 124 batches.
#[test]
fn what_is_refused_is_no_commit() {
    let (mut node, mut random) = growing(48, 0, 111, &options(1));
    let hog = fill(&mut node, &mut random);
    node.settle();
    node.cores[0].events.clear();
    let large = batch(&mut random, 1, 200_000, node.now.wall);
    let mut told = 0;
    for _ in 0..100 {
        assert_eq!(node.append(hog, &large, 0), Err(AppendError::Full));
        node.turns(50);
        let events = std::mem::take(&mut node.cores[0].events);
        told += events.iter().filter(|event| matches!(event, LogEvent::Room)).count();
        let commits = events.iter().filter(|event| matches!(event, LogEvent::Committed { .. })).count();
        assert_eq!(commits, 0, "an append that was refused was committed");
    }
    assert!(told > 0 && told <= 100, "told {told} times of room for 100 refusals");
}

/// What deleted partitions took goes to those that are left and are refused, without a restart, whichever shards had it.
#[test]
fn what_deleted_partitions_took_goes_to_whoever_is_refused() {
    let options = options(1);
    let (mut node, mut random) = growing(96, 0, 112, &options);
    node.turns(2000);
    let slots: Vec<LogSlot> = (0..12).map(|number| create(&mut node, number)).collect();
    node.turns(2000);
    let fill = |node: &mut Node, slots: &[LogSlot], bytes: &[u8]| {
        let (mut taken, mut refused) = (0, 0);
        while refused < 200 {
            for slot in slots {
                match node.append(*slot, bytes, 0) {
                    Ok(_) => (taken, refused) = (taken + bytes.len(), 0),
                    Err(_) => refused += 1,
                }
            }
            node.turns(20);
            node.now = advance(node.now, Duration::from_millis(100));
        }
        taken
    };
    let (small, large) = (batch(&mut random, 1, 20_000, node.now.wall), batch(&mut random, 1, 400_000, node.now.wall));
    let before = fill(&mut node, &slots, &small);
    // Two checkpoints have taken room in every shard.
    for _ in 0..2 {
        node.store().checkpoint();
        node.turns(2000);
    }
    for slot in &slots[4..] {
        node.store().delete(*slot).expect("deleted");
    }
    let after = fill(&mut node, &slots[..4], &large);
    let (free, all) = node.store().space_use();
    assert!(free * 8 < all, "{free} bytes of {all} lie idle while appends are refused; {before} bytes, then {after}");
}

/// A core that was refused a slab asks again by itself: that another core has given one back it is not told (seeds
/// 1796700018 and 1796700234 of the node's simulation).
#[test]
fn what_one_core_frees_is_another_s_that_was_refused() {
    let options = options(2);
    let (mut node, mut random) = growing(48, 0, 110, &options);
    node.disk.set_faults(FaultPlan { growth_refused: PerMillion::ALWAYS, ..FaultPlan::none() });
    node.turns(200);
    let hog = fill(&mut node, &mut random);
    let make = |node: &mut Node, number| {
        let now = node.now;
        node.cores[1].store.create(now, partition(number), 0, LogConfig::keep_everything()).err()
    };
    // Its first partition asks for its first slab, and there is none.
    assert_eq!(make(&mut node, 2000), None);
    node.turns(1000);
    assert_eq!(make(&mut node, 2001), Some(ChangeError::Full));
    // Whoever waits is not told of room in each turn: a loop that is never idle takes a core, and never ends.
    let began = node.now.monotonic;
    let mut tries = 0;
    for _ in 0..2000 {
        let events = std::mem::take(&mut node.cores[1].events);
        if events.iter().any(|event| matches!(event, LogEvent::Room)) {
            tries += 1;
            assert_eq!(make(&mut node, 2001), Some(ChangeError::Full));
        }
        node.turn();
    }
    let most = node.now.monotonic.since(began).as_millis() / 100 + 1;
    assert!(tries > 0 && tries <= most, "{tries} tries where {most} are due");
    node.store().delete(hog).expect("deleted");
    let mut turns = 0;
    while make(&mut node, 2001).is_some() {
        node.turns(10);
        turns += 10;
        assert!(turns < 100_000, "{} slabs are free, and the partition is refused", node.keeper.unowned());
    }
}

/// What producers did takes more room in checkpoints than in the journal, a snapshot at each segment's base most of all:
/// the opening has to grow the file before it can end.
#[test]
fn an_opening_grows_the_file_where_its_checkpoints_find_no_room() {
    let options = options(1);
    let config = LogConfig { segment_bytes: 2_000, ..LogConfig::keep_everything() };
    let (mut node, mut random, slots) = filled(71, &options, &config);
    let shard = node.store().shard(slots[0]);
    let slots: Vec<LogSlot> = slots.into_iter().filter(|slot| node.cores[0].store.shard(*slot) == shard).collect();
    'filling: for producer in 0..900 {
        for slot in &slots {
            let at = node.now.wall;
            let bytes = producer_batch(&mut random, 1, 10, at, (producer, 0, 0), false);
            if node.append(*slot, &bytes, 0).is_err() {
                break 'filling;
            }
        }
    }
    node.settle();
    let held = |store: &Store| -> Vec<(PartitionId, Offset)> {
        let mut held: Vec<_> = store.slots().map(|(slot, id)| (id, store.end_offset(slot))).collect();
        held.sort();
        held
    };
    let (before, ends) = (blocks(&node), held(node.store()));
    assert_eq!(node.keeper.unowned(), 0, "checkpoints have taken what is kept for them");
    let (disk, mut now) = node.kill();
    now = advance(now, Duration::from_secs(1));
    let medium = disk.seen();
    // Where it may not, checkpoints are made with less.
    let mut full = open(&disk, &options, &mut random, &mut now);
    assert_eq!((blocks(&full), held(full.store())), (before, ends.clone()));
    full.turns(2_000);
    let (disk, mut now) = full.kill();
    assert_eq!(held(open(&disk, &options, &mut random, &mut now).store()), ends);
    let disk = SimDisk::from_medium(
        SimOptions { grows: true, ..SimOptions::new(medium.blocks()) },
        medium,
        Random::from_seed(72),
    );
    let mut node = open(&disk, &options, &mut random, &mut now);
    assert!(blocks(&node) > before, "it grew before it was open");
    assert_eq!(held(node.store()), ends);
    // The superblock knows of it: the next opening finds no namespace that shrank, and nothing beyond its end.
    assert_eq!(node.superblock.blocks, blocks(&node));
    node.turns(2_000);
    let (disk, mut now) = node.kill();
    assert_eq!(held(open(&disk, &options, &mut random, &mut now).store()), ends);
}
