//! The store suite over every device.

mod suite;

use base::Random;
use pollux_nvme_device::{Latency, MemoryDisk, Overlap, SimDisk, SimOptions};
use suite::Rig;

#[test]
fn memory() {
    suite::run_all(|blocks| Rig::real(Box::new(MemoryDisk::new(blocks).unwrap().attach())));
}

#[test]
fn simulated() {
    for (volatile_write_cache, durable_writes, trims) in [(true, true, true), (true, false, false), (false, true, true)]
    {
        let seed = std::cell::Cell::new(0);
        suite::run_all(|blocks| {
            seed.set(seed.get() + 1);
            let options = SimOptions { volatile_write_cache, durable_writes, trims, ..SimOptions::new(blocks) };
            Rig::simulated(Box::new(SimDisk::new(options, Random::from_seed(seed.get())).open()))
        });
    }
}

#[test]
fn simulated_without_latency() {
    suite::run_all(|blocks| {
        let options = SimOptions { latency: Latency::NONE, overlap: Overlap::Allowed, ..SimOptions::new(blocks) };
        Rig::simulated(Box::new(SimDisk::new(options, Random::from_seed(blocks)).open()))
    });
}
