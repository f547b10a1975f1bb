//! Opening a file: creation, the lock and who holds it, what is refused and with which advice, calibration.

mod loops;

use base::{BLOCK_SIZE, Block, BlockRange, Work};
use loops::Loop;
use pollux_nvme_device::{
    Access, Calibration, Device, Engine, FileOptions, OpenError, OpenOptions, QueueOptions, free_bytes, open,
};
use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A directory that is gone at the end of the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("pollux-opening-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    fn options(&self) -> FileOptions {
        let mut options = FileOptions::new(self.0.join("namespace"));
        options.lock_wait = Duration::from_millis(50);
        options
    }

    fn creating(&self, blocks: u64) -> FileOptions {
        FileOptions { create: Some(blocks * BLOCK_SIZE as u64), ..self.options() }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn open_file(file: FileOptions) -> Result<Device, OpenError> {
    open(&OpenOptions::File { file, engine: Engine::Threaded })
}

#[test]
fn a_file_is_created_once_with_its_size_and_its_space() {
    let scratch = Scratch::new("create");
    let missing = open_file(scratch.options()).unwrap_err();
    assert!(matches!(missing, OpenError::Missing { .. }), "{missing}");
    let device = open_file(scratch.creating(100)).unwrap();
    assert_eq!(device.geometry().blocks, 100);
    assert!(device.geometry().volatile_write_cache && device.geometry().grows && !device.geometry().trims);
    let metadata = std::fs::metadata(scratch.options().path).unwrap();
    assert_eq!(metadata.len(), 100 * BLOCK_SIZE as u64);
    assert!(std::os::unix::fs::MetadataExt::blocks(&metadata) * 512 >= metadata.len(), "a commit never meets ENOSPC");
    drop(device);
    let device = open_file(scratch.creating(200)).unwrap();
    assert_eq!(device.geometry().blocks, 100, "what is there keeps its size");
}

#[test]
fn a_second_process_is_told_who_holds_the_namespace() {
    let scratch = Scratch::new("lock");
    let device = open_file(scratch.creating(10)).unwrap();
    let start = Instant::now();
    let refused = open_file(scratch.options()).unwrap_err();
    assert!(start.elapsed() >= Duration::from_millis(50), "it waited");
    let OpenError::Locked { holder, .. } = &refused else { panic!("{refused}") };
    // Some file systems show another device number in /proc/locks than in stat: then nobody is named.
    assert!(holder.is_none_or(|pid| pid == std::process::id()), "{refused}");
    assert!(refused.to_string().contains("in use by"));
    let reader = open_file(FileOptions { access: Access::ReadOnly, ..scratch.options() });
    assert!(matches!(reader, Err(OpenError::Locked { .. })), "a tool does not look at what a node is writing");
    drop(device);
    let reader = FileOptions { access: Access::ReadOnly, ..scratch.options() };
    let readers = (open_file(reader.clone()).unwrap(), open_file(reader).unwrap());
    assert!(!readers.0.geometry().grows);
    assert!(matches!(open_file(scratch.options()), Err(OpenError::Locked { .. })));
}

#[test]
fn an_open_waits_for_a_predecessor_that_is_about_to_go() {
    let scratch = Scratch::new("wait");
    let device = open_file(scratch.creating(10)).unwrap();
    let leaving = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(60));
        drop(device);
    });
    let options = FileOptions { lock_wait: Duration::from_secs(20), ..scratch.options() };
    open_file(options).unwrap();
    leaving.join().unwrap();
}

#[test]
fn queues_keep_the_namespace_locked() {
    let scratch = Scratch::new("queue");
    let device = open_file(scratch.creating(10)).unwrap();
    let queue = device.attach(&QueueOptions::default()).unwrap();
    drop(device);
    assert!(matches!(open_file(scratch.options()), Err(OpenError::Locked { .. })));
    drop(queue);
    open_file(scratch.options()).unwrap();
}

#[test]
fn what_is_no_namespace_is_refused_with_advice() {
    let scratch = Scratch::new("refused");
    let at = |name: &str| FileOptions::new(scratch.0.join(name));
    std::fs::create_dir(scratch.0.join("directory")).unwrap();
    std::fs::write(scratch.0.join("short"), b"no namespace").unwrap();
    for (options, advice) in [
        (at("directory"), "neither a file nor a block device"),
        (at("short"), "less than one block"),
        (at("nowhere/namespace"), "format a namespace there first"),
        (FileOptions { create: Some(1 << 20), ..at("nowhere/namespace") }, "correct the path"),
        (FileOptions { create: Some(1 << 52), ..at("huge") }, "huge"),
    ] {
        let refused = open_file(options).unwrap_err().to_string();
        assert!(refused.contains(advice), "{refused}");
    }
    assert!(!scratch.0.join("huge").exists(), "a file that got no space is not left behind");
    assert_eq!(std::fs::read(scratch.0.join("short")).unwrap(), b"no namespace");
}

#[test]
fn where_o_direct_is_refused_the_page_cache_serves() {
    let scratch = Scratch::new("direct");
    assert!(!open_file(FileOptions { direct: false, ..scratch.creating(10) }).unwrap().is_direct());
    let device = open_file(scratch.options()).unwrap();
    // Whether a file system has O_DIRECT is its own matter; that the description is true is ours.
    assert_eq!(device.to_string().contains("past the page cache"), device.is_direct(), "{device}");
}

#[test]
fn calibration_measures_both_ways() {
    let scratch = Scratch::new("calibrate");
    let device = open_file(scratch.creating(10)).unwrap();
    let mut calibration = Calibration::new(&device, BlockRange::new(Block(4), 2)).unwrap();
    // Piece by piece, so that no other job waits long.
    for _ in 0..100_000 {
        if calibration.outcome.is_none() {
            calibration.run();
        }
    }
    calibration.run();
    let calibrated = calibration.outcome.unwrap().unwrap();
    assert!(calibrated.samples > 0 && calibrated.durable_write > Duration::ZERO);
    let memory = open(&OpenOptions::Memory { blocks: 10 }).unwrap();
    assert!(Calibration::new(&memory, BlockRange::new(Block(4), 2)).is_none());
    assert!(free_bytes(&scratch.0).unwrap() > 0);
}

/// A block device, where this machine lets the test make one.
#[test]
fn a_block_device_is_opened_alone() {
    let scratch = Scratch::new("loop");
    let backing = scratch.0.join("backing");
    File::create(&backing).unwrap().set_len(8 << 20).unwrap();
    let Some(device) = Loop::attach(&backing) else {
        println!("skipped: no loop device can be attached here");
        return;
    };
    let options = FileOptions { trims: true, lock_wait: Duration::from_millis(50), ..FileOptions::new(&device.0) };
    let opened = open_file(options.clone()).unwrap();
    assert_eq!(opened.geometry().blocks, (8 << 20) / BLOCK_SIZE as u64);
    assert!(!opened.geometry().grows);
    let refused = open_file(options).unwrap_err();
    assert!(matches!(refused, OpenError::InUse { .. } | OpenError::Locked { .. }), "{refused}");
}
