//! What a topic's settings change in its log: when segments roll, and when a cached append goes to the medium.

mod common;

use base::*;
use common::*;
use nvme_device::sim::{SimDisk, SimOptions};
use pollux_nvme_log::*;
use std::time::Duration;

fn disk(seed: u64) -> SimDisk {
    SimDisk::new(SimOptions::new((64 << 20) / BLOCK_SIZE as u64), Random::from_seed(seed))
}

/// Appends one small batch a second, and tells at which of them segments began.
fn rolls(config: LogConfig, seed: u64, count: u64) -> Vec<i64> {
    let (disk, mut random, mut now) = (disk(seed), Random::from_seed(seed), START);
    format(&disk, 2, 0, &mut random, &mut now);
    let mut node = open(&disk, &options(1), &mut random, &mut now);
    let at = node.now;
    let slot = node.store().create(at, partition(1), 0, config).expect("created");
    for number in 0..count {
        let bytes = batch(&mut random, 1, 1000, WallMillis(at.wall.0 + number as i64 * 1000));
        node.append(slot, &bytes, 0).expect("appended");
    }
    node.settle();
    node.store().segments(slot).map(|(segment, _)| segment.base.0).collect()
}

#[test]
fn a_segment_rolls_by_its_size() {
    let at_most = |bytes: u64| LogConfig { segment_bytes: bytes, ..LogConfig::keep_everything() };
    let alone = rolls(at_most(1 << 30), 1, 40);
    assert_eq!(alone, [0]);
    let sized = rolls(at_most(5_000), 1, 40);
    assert!(sized.windows(2).all(|pair| pair[1] - pair[0] == 4), "four records of a KiB each: {sized:?}");
}

#[test]
fn a_segment_rolls_by_the_age_of_its_records_and_earlier_by_the_jitter() {
    let aged = |jitter: u64| LogConfig {
        segment_age: Some(Duration::from_secs(10)),
        segment_jitter: Duration::from_secs(jitter),
        ..LogConfig::keep_everything()
    };
    let gaps = |rolls: &[i64]| rolls.windows(2).map(|pair| pair[1] - pair[0]).collect::<Vec<_>>();
    let exact = gaps(&rolls(aged(0), 2, 200));
    assert!(exact.len() > 10 && exact.iter().all(|gap| *gap == 11), "{exact:?}");
    let early = gaps(&rolls(aged(6), 2, 200));
    assert!(early[1..].iter().all(|gap| (5..=11).contains(gap)), "{early:?}");
    assert!(early[1..].iter().any(|gap| *gap < 11), "{early:?}");
}

/// Under cache durability a record is acknowledged before it is on the medium; a topic that asks for a flush after every
/// message loses none with the power, and one that does not may lose what came since the last flush of all.
#[test]
fn a_cached_append_is_flushed_after_as_many_messages_as_are_set() {
    let kept = |messages: Option<u64>, seed: u64| -> i64 {
        let (disk, mut random, mut now) = (disk(seed), Random::from_seed(4), START);
        let mut options = options(1);
        options.store.durability = Durability::Cache;
        options.store.cache_flush_interval = Duration::from_secs(3600);
        format(&disk, 2, 0, &mut random, &mut now);
        let mut node = open(&disk, &options, &mut random, &mut now);
        let (at, config) = (node.now, LogConfig { flush_messages: messages, ..LogConfig::keep_everything() });
        let slot = node.store().create(at, partition(1), 0, config).expect("created");
        for _ in 0..20 {
            let bytes = batch(&mut random, 1, 500, node.now.wall);
            node.append(slot, &bytes, 0).expect("appended");
            node.settle();
        }
        // What is acknowledged by now may be lost only as far as the topic's setting lets it.
        let (disk, mut now) = node.kill();
        disk.power_loss(&mut Random::from_seed(seed));
        let mut node = open(&disk, &options, &mut random, &mut now);
        node.store().find(partition(1)).map_or(0, |slot| node.cores[0].store.end_offset(slot).0)
    };
    let least = |messages: Option<u64>| (30..38).map(|seed| kept(messages, seed)).min();
    assert_eq!(least(Some(1)), Some(20));
    assert!((14..20).contains(&least(Some(7)).unwrap()), "{:?}", least(Some(7)));
    assert!(least(None) < Some(14), "without it the cut takes more, so that this test can tell: {:?}", least(None));
}

/// A topic's `flush.ms` bounds how old an acknowledged record may be that the power takes; without it the interval of all
/// does.
#[test]
fn a_cached_append_is_flushed_after_the_time_that_is_set() {
    let kept = |age: Option<Duration>, seed: u64| -> i64 {
        let (disk, mut random, mut now) = (disk(seed), Random::from_seed(5), START);
        let mut options = options(1);
        options.store.durability = Durability::Cache;
        options.store.cache_flush_interval = Duration::from_secs(3600);
        format(&disk, 2, 0, &mut random, &mut now);
        let mut node = open(&disk, &options, &mut random, &mut now);
        let (at, config) = (node.now, LogConfig { flush_age: age, ..LogConfig::keep_everything() });
        let slot = node.store().create(at, partition(1), 0, config).expect("created");
        // The checkpoint that follows an opening would flush them.
        node.turns(200);
        for _ in 0..4 {
            let bytes = batch(&mut random, 1, 500, node.now.wall);
            node.append(slot, &bytes, 0).expect("appended");
            node.settle();
        }
        node.now = advance(node.now, Duration::from_millis(40));
        node.turns(20);
        let (disk, mut now) = node.kill();
        disk.power_loss(&mut Random::from_seed(seed));
        let mut node = open(&disk, &options, &mut random, &mut now);
        node.store().find(partition(1)).map_or(0, |slot| node.cores[0].store.end_offset(slot).0)
    };
    let least = |age: Option<Duration>| (40..45).map(|seed| kept(age, seed)).min();
    assert_eq!(least(Some(Duration::from_millis(20))), Some(4));
    assert!(least(Some(Duration::from_secs(60))) < Some(4), "the time has not come");
    assert!(least(None) < Some(4), "without it the cut takes some, so that this test can tell");
}

/// A clock that is set forward and back again makes everything look old meanwhile: nothing goes for it.
#[test]
fn a_clock_that_steps_forth_and_back_deletes_nothing_and_one_that_stays_does() {
    const HOUR: i64 = 3_600_000;
    let (disk, mut random, mut now) = (disk(5), Random::from_seed(5), START);
    format(&disk, 2, 0, &mut random, &mut now);
    let mut node = open(&disk, &options(1), &mut random, &mut now);
    let age = Duration::from_secs(7200);
    let config =
        LogConfig { deletes: true, retention_age: Some(age), segment_bytes: 5_000, ..LogConfig::keep_everything() };
    let at = node.now;
    let slot = node.store().create(at, partition(1), 0, config).expect("created");
    for _ in 0..40 {
        let bytes = batch(&mut random, 1, 1000, node.now.wall);
        node.append(slot, &bytes, 0).expect("appended");
    }
    node.settle();
    let now = node.now;
    node.store().record_high_watermark(now, slot, Offset(40));
    let mut look = |minutes: u64, step: i64| {
        let mut now = advance(at, Duration::from_secs(60 * minutes));
        now.wall.0 += step;
        node.now = now;
        node.store().retain_all(now);
        node.settle();
        node.store().log_start(slot).0
    };
    let steps = [(1, 0), (2, 3 * HOUR), (20, 3 * HOUR), (21, -5 * HOUR), (22, 0), (23, 9 * HOUR), (50, 0)];
    for (minutes, step) in steps {
        assert_eq!(look(minutes, step), 0, "a step of {step} after {minutes} minutes");
    }
    assert_eq!(look(83, 3 * HOUR), 0);
    assert_eq!(look(144, 3 * HOUR), 40, "who says so for an hour is believed");
}
