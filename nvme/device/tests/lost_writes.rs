//! Writes that the system took and cannot put on the medium: what their flushes tell, queue by queue. The medium is a
//! loop device whose file lies on a full file system (Linux, as root).
#![cfg(target_os = "linux")]

use arena::Arena;
use base::{BLOCK_SIZE, Block, BlockRange, CoreId, Monotonic, Now, WallMillis};
use nvme_plan::{Class, DeviceError, Namespace, Operation, Promise, Request, Token};
use pollux_nvme_device::{Engine, FileOptions, OpenOptions, Queue, QueueOptions, open};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

/// A block device of holes, and a file system around them that has no room to fill them.
struct Unwritable {
    mounted: PathBuf,
    device: PathBuf,
}

fn command(name: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(name).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

impl Unwritable {
    fn new(name: &str) -> Option<Unwritable> {
        let mounted = std::env::temp_dir().join(format!("pollux-lost-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&mounted).ok()?;
        let folder = mounted.to_str()?;
        let mut made = Unwritable { mounted: mounted.clone(), device: PathBuf::new() };
        command("mount", &["-t", "tmpfs", "-o", "size=8m", "pollux-lost", folder])?;
        let backing = mounted.join("backing");
        File::create(&backing).and_then(|file| file.set_len(4 << 20)).ok()?;
        made.device = command("losetup", &["--find", "--show", backing.to_str()?])?.into();
        // Everything else is taken.
        let mut rest = File::create(mounted.join("rest")).ok()?;
        while rest.write_all(&[1; BLOCK_SIZE]).is_ok() {}
        Some(made)
    }
}

impl Drop for Unwritable {
    fn drop(&mut self) {
        if self.device != Path::new("") {
            command("losetup", &["--detach", self.device.to_str().expect("a name")]);
        }
        command("umount", &["-l", self.mounted.to_str().expect("a name")]);
        let _ = std::fs::remove_dir(&self.mounted);
    }
}

fn carry_out(queue: &mut Queue, operation: Operation) -> Result<(), DeviceError> {
    let now = Now { monotonic: Monotonic(0), wall: WallMillis(0) };
    let request = Request { token: Token(1), class: Class::Commit, deadline: None, operation };
    assert!(queue.submit(now, request).is_ok());
    let (start, mut completions) = (Instant::now(), Vec::new());
    while queue.poll(now, 1, &mut completions) == 0 {
        assert!(start.elapsed() < PATIENCE, "it does not answer");
        std::thread::yield_now();
    }
    completions.remove(0).result
}

#[test]
fn every_queue_is_told_of_writes_that_are_lost() {
    for engine in [Engine::Uring, Engine::Threaded] {
        let Some(medium) = Unwritable::new(&format!("{engine:?}")) else {
            println!("skipped: no loop device or file system can be made here (needs root)");
            return;
        };
        let file = FileOptions { direct: false, ..FileOptions::new(&medium.device) };
        let device = match open(&OpenOptions::File { file, engine }) {
            Ok(device) => device,
            Err(error) if engine == Engine::Uring => {
                println!("skipped: {error}");
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        assert!(!device.geometry().durable_writes, "the page cache tells of a lost write by a flush alone");
        let mut queues = [0, 1].map(|_| device.attach(&QueueOptions::default()).expect("a queue"));
        let arena = Arena::heap(CoreId(0), 1 << 20);
        for (block, queue) in (0..).zip(&mut queues) {
            let mut bytes = arena.try_allocate(BLOCK_SIZE).expect("memory");
            bytes.fill(7);
            let range = BlockRange::new(Block(block), 1);
            let write = Operation::Write { range, pieces: vec![bytes.freeze()], promise: Promise::Accepted };
            assert_eq!(carry_out(queue, write), Ok(()), "the page cache took it");
        }
        // Both writes are lost with the first flush, whoever asks for it.
        for queue in &mut queues {
            assert!(matches!(carry_out(queue, Operation::Flush), Err(DeviceError::Failed(_))), "{engine:?}");
        }
    }
}
