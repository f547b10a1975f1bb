//! What the store suite cannot reach: a kernel that does not answer, the sleeping loop, and a system that refuses.

use super::*;
use crate::file::FileOptions;
use crate::{Device, Engine, OpenError, OpenOptions};
use arena::{Arena, Region};
use base::{BLOCK_SIZE, Block, BlockRange, CoreId, WallMillis};
use nvme_plan::{Class, DeviceError, Promise, Token};
use rustix::event::{PollFd, PollFlags, poll};
use std::fs::File;
use std::path::PathBuf;

fn path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("pollux-uring-{name}-{}", std::process::id()))
}

fn open(name: &str, engine: Engine) -> Result<Device, OpenError> {
    let mut file = FileOptions::new(path(name));
    file.create = Some(64 * BLOCK_SIZE as u64);
    crate::open(&OpenOptions::File { file, engine })
}

fn attach(name: &str, fixed: Option<FixedMemory>) -> UringNamespace {
    let device = open(name, Engine::Uring).unwrap();
    let queue = UringNamespace::attach(device.file().unwrap().clone(), None, fixed, &[0]).unwrap();
    std::fs::remove_file(path(name)).unwrap();
    queue
}

fn now(nanos: u64) -> Now {
    Now { monotonic: Monotonic(nanos), wall: WallMillis(0) }
}

fn range(start: u64, count: u32) -> BlockRange {
    BlockRange::new(Block(start), count)
}

fn request(token: u64, operation: Operation) -> Request {
    Request { token: Token(token), class: Class::Commit, deadline: None, operation }
}

fn wait(queue: &mut UringNamespace) -> Completion {
    let (start, mut completions) = (Instant::now(), Vec::new());
    while queue.poll(now(0), 1, &mut completions) == 0 {
        assert!(start.elapsed() < Duration::from_secs(10), "the ring does not answer");
        std::thread::yield_now();
    }
    completions.remove(0)
}

/// Points the queue at one end of a socket pair: a read there ends when the test says so.
fn never_answering(queue: &mut UringNamespace) -> File {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    queue.ring.submitter().unregister_files().unwrap();
    queue.ring.submitter().register_files(&[ours.as_raw_fd()]).unwrap();
    queue.nowait = false;
    File::from(OwnedFd::from(theirs))
}

#[test]
fn a_timed_out_read_keeps_its_buffer_until_the_kernel_is_done() {
    use std::io::Write;
    let mut queue = attach("late", None);
    let mut other_end = never_answering(&mut queue);
    let arena = Arena::heap(CoreId(0), 1 << 20);
    let into = arena.try_allocate(BLOCK_SIZE).unwrap();
    let mut read = request(7, Operation::Read { range: range(0, 1), into });
    read.deadline = Some(Monotonic(1000));
    assert!(queue.submit(now(1), read).is_ok());
    assert_eq!(queue.next_deadline(), Some(Monotonic(1000)));
    let mut completions = Vec::new();
    assert_eq!(queue.poll(now(999), 8, &mut completions), 0);
    assert_eq!(queue.poll(now(1000), 8, &mut completions), 1);
    assert_eq!((completions[0].token, completions[0].result), (Token(7), Err(DeviceError::TimedOut)));
    assert!(completions[0].operation.is_none());
    assert_eq!((queue.in_flight(), queue.in_flight.held()), (0, 1));
    assert_eq!(arena.used_bytes(), BLOCK_SIZE, "the kernel may still write there");
    other_end.write_all(&[1; BLOCK_SIZE]).unwrap();
    let start = Instant::now();
    while queue.counts().late == 0 {
        assert_eq!(queue.poll(now(2000), 8, &mut completions), 0);
        assert!(start.elapsed() < Duration::from_secs(10));
    }
    assert_eq!((queue.in_flight.held(), arena.used_bytes()), (0, 0));
}

#[test]
fn closing_gives_the_buffers_of_a_timed_out_read_up() {
    let mut queue = attach("stuck", None);
    let _other_end = never_answering(&mut queue);
    let arena = Arena::heap(CoreId(0), 1 << 20);
    let into = arena.try_allocate(BLOCK_SIZE).unwrap();
    let mut read = request(7, Operation::Read { range: range(0, 1), into });
    read.deadline = Some(Monotonic(1));
    assert!(queue.submit(now(0), read).is_ok());
    assert_eq!(queue.poll(now(2), 8, &mut Vec::new()), 1);
    let start = Instant::now();
    drop(queue);
    assert!(start.elapsed() < Duration::from_secs(1), "what timed out is not waited for");
    assert_eq!(arena.used_bytes(), BLOCK_SIZE, "given up, not given back");
}

#[test]
fn a_completion_wakes_a_loop_that_announced_its_sleep() {
    let mut queue = attach("sleep", None);
    let watched = |queue: &UringNamespace, millis: i64| {
        let descriptor = queue.wake_descriptor().expect("the ring made its own eventfd");
        let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: millis * 1_000_000 };
        poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&timeout)).unwrap()
    };
    for round in 0..3 {
        assert!(queue.submit(now(0), request(round, Operation::Flush)).is_ok());
        wait(&mut queue);
        assert_eq!(watched(&queue, 0), 0, "an awake loop is not signalled");
        queue.announce_sleep(true);
        assert!(queue.submit(now(0), request(round, Operation::Flush)).is_ok());
        assert_eq!(watched(&queue, 900), 1, "the flush in a worker thread wakes the loop");
        queue.announce_sleep(false);
        // The loop watches for edges and leaves the count as it is; this test asks for levels.
        assert_eq!(rustix::io::read(&queue.eventfd, &mut [0u8; 8]), Ok(8));
        wait(&mut queue);
    }
    assert_eq!(queue.counts().worker_operations, 6);
}

#[test]
fn a_given_eventfd_is_signalled_and_left_alone() {
    let eventfd = Arc::new(rustix::event::eventfd(0, EVENTFD_FLAGS).unwrap());
    let device = open("given", Engine::Uring).unwrap();
    std::fs::remove_file(path("given")).unwrap();
    let wake = Wake::from_eventfd(eventfd.clone());
    let mut queue = UringNamespace::attach(device.file().unwrap().clone(), Some(&wake), None, &[]).unwrap();
    assert!(queue.wake_descriptor().is_none());
    queue.announce_sleep(true);
    assert!(queue.submit(now(0), request(1, Operation::Flush)).is_ok());
    let timeout = rustix::event::Timespec { tv_sec: 5, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(&eventfd, PollFlags::IN)], Some(&timeout)).unwrap(), 1);
    queue.announce_sleep(false);
    assert_eq!(rustix::io::read(&*eventfd, &mut [0u8; 8]), Ok(8), "its owner takes the count off");
    wait(&mut queue);
}

#[test]
fn registered_memory_carries_transfers() {
    let arena = Arena::new(CoreId(0), Region::heap(1 << 20));
    // SAFETY: the arena outlives the queue below, and a heap region keeps its pages.
    let fixed = unsafe { FixedMemory::new(arena.region()) };
    let mut queue = attach("fixed", Some(fixed));
    assert!(queue.registered.bytes() > 0);
    let mut piece = arena.try_allocate(2 * BLOCK_SIZE).unwrap();
    piece.fill(0x77);
    let pieces = vec![piece.freeze()];
    assert!(queue.registered.holds(pieces[0].as_ptr(), pieces[0].len()));
    let write = Operation::Write { range: range(3, 2), pieces, promise: Promise::Durable };
    assert!(queue.submit(now(0), request(1, write)).is_ok());
    assert_eq!(wait(&mut queue).result, Ok(()));
    let into = arena.try_allocate(2 * BLOCK_SIZE).unwrap();
    assert!(queue.submit(now(0), request(2, Operation::Read { range: range(3, 2), into })).is_ok());
    match wait(&mut queue) {
        Completion { operation: Some(Operation::Read { into, .. }), result: Ok(()), .. } => {
            assert!(into.iter().all(|byte| *byte == 0x77));
        }
        other => panic!("{other:?}"),
    }
    drop(queue);
}

#[test]
fn writes_over_written_blocks_are_not_punted() {
    let arena = Arena::heap(CoreId(0), 1 << 20);
    let mut queue = attach("punts", None);
    let direct = queue.file.direct;
    for (round, promise) in (0..40).zip([Promise::Accepted, Promise::Durable].into_iter().cycle()) {
        if round == 4 {
            // The first round takes space, which may have to wait.
            queue.counts.punted = 0;
        }
        let pieces = vec![arena.copy(&[round as u8; 4 * BLOCK_SIZE]).unwrap()];
        let write = Operation::Write { range: range(round % 2 * 4, 4), pieces, promise };
        assert!(queue.submit(now(0), request(round, write)).is_ok());
        assert_eq!(wait(&mut queue).result, Ok(()));
    }
    if direct {
        assert_eq!(queue.counts().punted, 0);
    } else {
        println!("skipped: {} has no O_DIRECT", std::env::temp_dir().display());
    }
}

/// Forbids io_uring_setup to the calling thread, as a container's seccomp profile does to a process.
fn forbid_io_uring(errno: i32) {
    const ALLOW: u32 = 0x7fff_0000;
    const ERRNO: u32 = 0x0005_0000;
    let load_number = libc::sock_filter { code: 0x20, jt: 0, jf: 0, k: 0 };
    let is_setup = libc::sock_filter { code: 0x15, jt: 0, jf: 1, k: libc::SYS_io_uring_setup as u32 };
    let returns = |k| libc::sock_filter { code: 0x06, jt: 0, jf: 0, k };
    let mut program = [load_number, is_setup, returns(ERRNO | errno as u32), returns(ALLOW)];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: both calls only read their arguments, which live until they return; the filter binds this thread alone.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &filter), 0);
    }
}

#[test]
fn where_io_uring_is_refused_a_thread_takes_over() {
    for errno in [libc::EPERM, libc::ENOSYS] {
        let refused = move || {
            forbid_io_uring(errno);
            let name = format!("refused-{errno}");
            match open(&name, Engine::Uring) {
                Err(OpenError::UringRefused { reason }) => assert!(!reason.is_empty()),
                other => panic!("{other:?}"),
            }
            let device = open(&name, Engine::Automatic).unwrap();
            std::fs::remove_file(path(&name)).unwrap();
            assert!(device.to_string().contains("an I/O thread"), "{device}");
            let mut queue = device.attach(&crate::QueueOptions::default()).unwrap();
            assert!(queue.submit(now(0), request(1, Operation::Flush)).is_ok());
            while queue.poll(now(0), 1, &mut Vec::new()) == 0 {
                std::thread::yield_now();
            }
        };
        std::thread::spawn(refused).join().unwrap();
    }
}
