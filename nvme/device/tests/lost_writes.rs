//! Writes that the system took and cannot put on the medium: what their flushes tell, queue by queue. The medium is a
//! loop device whose file lies on a full file system (Linux, as root).
#![cfg(target_os = "linux")]

mod loops;
#[allow(dead_code, reason = "the script is for whole devices; its rig serves here")]
mod suite;

use base::BLOCK_SIZE;
use loops::Loop;
use nvme_plan::{DeviceError, Operation, Promise};
use pollux_nvme_device::{Engine, FileOptions, OpenOptions, QueueOptions, open};
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use suite::{Rig, range, uring_here};

/// A small file system in memory, mounted for as long as this lives.
struct Mounted(PathBuf);

impl Mounted {
    fn new(name: &str) -> Option<Mounted> {
        let folder = std::env::temp_dir().join(format!("pollux-lost-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).ok()?;
        // Given back also where nothing could be mounted.
        let mounted = Mounted(folder);
        let arguments = ["-t", "tmpfs", "-o", "size=8m", "pollux-lost"];
        let mount = Command::new("mount").args(arguments).arg(&mounted.0).output().ok()?;
        mount.status.success().then_some(mounted)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// A block device of holes, and a file system around them that has no room to fill them.
struct Unwritable {
    device: Loop,
    _around: Mounted,
}

impl Unwritable {
    fn new(name: &str) -> Option<Unwritable> {
        let around = Mounted::new(name)?;
        let backing = around.0.join("backing");
        File::create(&backing).and_then(|file| file.set_len(4 << 20)).ok()?;
        let device = Loop::attach(&backing)?;
        // Everything else is taken.
        let mut rest = File::create(around.0.join("rest")).ok()?;
        while rest.write_all(&[1; BLOCK_SIZE]).is_ok() {}
        Some(Unwritable { device, _around: around })
    }
}

#[test]
fn every_queue_is_told_of_writes_that_are_lost() {
    for engine in uring_here().into_iter().chain([Engine::Threaded]) {
        let Some(medium) = Unwritable::new(&format!("{engine:?}")) else {
            println!("skipped: no loop device or file system can be made here (needs root)");
            return;
        };
        let file = FileOptions { direct: false, ..FileOptions::new(&medium.device.0) };
        let device = open(&OpenOptions::File { file, engine }).expect("it opens");
        assert!(!device.geometry().durable_writes, "the page cache tells of a lost write by a flush alone");
        let mut rigs = [0, 1].map(|_| Rig::real(Box::new(device.attach(&QueueOptions::default()).expect("a queue"))));
        for (block, rig) in (0..).zip(&mut rigs) {
            // The page cache takes it.
            rig.write(range(block, 1), 1, Promise::Accepted);
        }
        // Both writes are lost with the first flush, whoever asks for it.
        for rig in &mut rigs {
            assert!(matches!(rig.run(Operation::Flush).1, Err(DeviceError::Failed(_))), "{engine:?}");
        }
    }
}
