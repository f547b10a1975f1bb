//! The store suite over every device.

mod suite;

use base::{BLOCK_SIZE, Random};
use pollux_nvme_device::{
    Engine, FileOptions, Latency, MemoryDisk, OpenOptions, Overlap, QueueOptions, SimDisk, SimOptions, open,
};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use suite::{Rig, uring_here};

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

/// A queue on a new file, which is gone once the queue is.
fn on_file(directory: &Path, engine: Engine, direct: bool, blocks: u64) -> Rig {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("pollux-suite-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let path: PathBuf = directory.join(name);
    let mut file = FileOptions::new(&path);
    (file.create, file.direct, file.trims) = (Some(blocks * BLOCK_SIZE as u64), direct, blocks > 100);
    let device = open(&OpenOptions::File { file, engine }).unwrap();
    std::fs::remove_file(&path).unwrap();
    Rig::real(Box::new(device.attach(&QueueOptions::default()).unwrap()))
}

#[test]
fn threaded() {
    suite::run_all(|blocks| on_file(&std::env::temp_dir(), Engine::Threaded, true, blocks));
}

#[test]
fn threaded_through_the_page_cache() {
    suite::run_all(|blocks| on_file(&std::env::temp_dir(), Engine::Threaded, false, blocks));
}

#[test]
fn uring() {
    if let Some(engine) = uring_here() {
        suite::run_all(|blocks| on_file(&std::env::temp_dir(), engine, true, blocks));
    }
}

#[test]
fn uring_through_the_page_cache() {
    if let Some(engine) = uring_here() {
        suite::run_all(|blocks| on_file(&std::env::temp_dir(), engine, false, blocks));
    }
}

#[test]
fn uring_on_tmpfs() {
    let directory = Path::new("/dev/shm");
    match uring_here() {
        Some(engine) if directory.is_dir() => suite::run_all(|blocks| on_file(directory, engine, true, blocks)),
        _ => println!("skipped: no tmpfs at {} or no io_uring", directory.display()),
    }
}
