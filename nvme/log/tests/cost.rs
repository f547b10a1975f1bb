//! What an append costs of a core, beside the device: run by hand in release, `cargo test --release -- --ignored`.

mod common;

use base::*;
use common::*;
use nvme_device::sim::{Latency, SimDisk, SimOptions};
use pollux_nvme_log::*;
use std::time::Instant;

#[test]
#[ignore = "a measurement, not a check"]
fn appends_and_recovery() {
    let mut disk_options = SimOptions::new((2 << 30) / BLOCK_SIZE as u64);
    disk_options.latency = Latency::NONE;
    disk_options.volatile_write_cache = false;
    let disk = SimDisk::new(disk_options, Random::from_seed(1));
    let (mut random, mut now) = (Random::from_seed(2), START);
    format(&disk, 2, 0, &mut random, &mut now);
    let mut options = options(1);
    options.store.tail_cache = 200 << 20;
    let mut node = open(&disk, &options, &mut random, &mut now);
    let at = node.now;
    let slots: Vec<LogSlot> = (0..1000)
        .map(|number| node.store().create(at, partition(number), 0, LogConfig::keep_everything()).expect("created"))
        .collect();
    node.turns(100);
    let bytes = batch(&mut random, 1, 1000, at.wall);
    let (mut spent, mut count) = (std::time::Duration::ZERO, 0u64);
    let mut turns = std::time::Duration::ZERO;
    for round in 0..100 {
        for slot in &slots {
            let started = Instant::now();
            let mode = AppendMode::Leader { epoch: LeaderEpoch(0) };
            let at = node.now;
            let result = node.store().append(at, *slot, Append { batches: &bytes, mode });
            spent += started.elapsed();
            match result {
                Ok(_) => count += 1,
                Err(_) => node.turn(),
            }
        }
        let started = Instant::now();
        node.turns(1 + round % 2);
        turns += started.elapsed();
    }
    node.settle();
    let (append, turn) = (spent.as_nanos() as u64 / count, turns.as_nanos() as u64 / count);
    println!("{count} appends: {append} ns each, and {turn} ns in turns of the store and the simulated device");
    let (disk, mut now) = node.kill();
    let started = Instant::now();
    let node = open(&disk, &options, &mut random, &mut now);
    println!(
        "opening with {} partitions: {:?}, {} commits",
        node.report.partitions,
        started.elapsed(),
        node.report.commits
    );
}
