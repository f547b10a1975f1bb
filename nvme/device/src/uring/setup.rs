//! Making a ring: whether the system allows one, its flags, and what is registered with it.
#![allow(unsafe_code)]

use arena::RegionAddress;
use io_uring::{IoUring, Probe, opcode};
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Why the system gives no ring.
#[derive(Debug)]
pub(crate) enum Refusal {
    Setup(io::Error),
    /// A ring was made, but this kernel's lacks an operation.
    Operations,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refusal::Setup(error) = self else {
            return f.write_str("this kernel's io_uring lacks operations that are needed (Linux 5.6 has them)");
        };
        match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => f.write_str(
                "the system forbids io_uring (a container's seccomp profile, or the sysctl kernel.io_uring_disabled)",
            ),
            Some(libc::ENOSYS) => f.write_str("the system has no io_uring"),
            Some(libc::ENOMEM) => f.write_str("RLIMIT_MEMLOCK is too low for io_uring on this kernel"),
            _ => write!(f, "io_uring cannot be set up: {error}"),
        }
    }
}

/// Whether a ring as we need it can be made here.
pub(crate) fn probe() -> Result<(), Refusal> {
    let ring = build(4).map_err(Refusal::Setup)?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).map_err(Refusal::Setup)?;
    let needed = [
        opcode::Readv::CODE,
        opcode::Writev::CODE,
        opcode::ReadFixed::CODE,
        opcode::WriteFixed::CODE,
        opcode::Fsync::CODE,
        opcode::Fallocate::CODE,
    ];
    if needed.iter().all(|code| probe.is_supported(*code)) { Ok(()) } else { Err(Refusal::Operations) }
}

/// A ring used by the thread that makes it. The best flags are tried first: completions are then posted only when the
/// loop asks for them, and interrupt nothing (Linux 6.1; 5.19 has the second set).
pub(super) fn build(entries: u32) -> io::Result<IoUring> {
    let deferred = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .setup_clamp()
        .build(entries);
    let refused = |error: &io::Error| error.raw_os_error() == Some(libc::EINVAL);
    match deferred {
        Err(error) if refused(&error) => {}
        result => return result,
    }
    match IoUring::builder().setup_coop_taskrun().setup_taskrun_flag().setup_clamp().build(entries) {
        Err(error) if refused(&error) => IoUring::builder().setup_clamp().build(entries),
        result => result,
    }
}

/// Registers descriptors; false where the system does not take them and they are named in every request.
pub(super) fn register_files(ring: &IoUring, files: [BorrowedFd<'_>; 2]) -> bool {
    ring.submitter().register_files(&files.map(|file| file.as_raw_fd())).is_ok()
}

/// Memory whose pages are pinned for transfers once instead of at each one.
#[derive(Clone, Copy, Debug)]
pub struct FixedMemory {
    address: RegionAddress,
}

impl FixedMemory {
    /// # Safety
    /// The memory stays mapped as long as a queue has it registered, and its pages are never given back to the system
    /// meanwhile (no `release_idle` on its arena, unless its region keeps its pages): transfers would go on to the old
    /// pages, which nobody reads any more.
    pub unsafe fn new(address: RegionAddress) -> FixedMemory {
        FixedMemory { address }
    }
}

/// The part of `FixedMemory` that was registered, as buffer 0.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Registered {
    start: usize,
    bytes: usize,
}

impl Registered {
    pub(super) fn holds(&self, start: *const u8, bytes: usize) -> bool {
        let start = start.addr();
        start >= self.start && start.saturating_add(bytes) <= self.start + self.bytes
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Registers as much of the memory, from its start, as the system lets this user pin.
pub(super) fn register_memory(ring: &IoUring, memory: FixedMemory) -> Registered {
    /// The kernel's limit for one buffer.
    const BUFFER_MAX: usize = 1 << 30;
    const WORTHWHILE: usize = 256 << 10;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let mut bytes = memory.address.len.min(BUFFER_MAX);
    // Asked first, since the system would touch every page before it finds that they are too many.
    bytes = bytes.min(limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX));
    while bytes >= WORTHWHILE {
        let buffer = libc::iovec { iov_base: memory.address.base.cast(), iov_len: bytes };
        // SAFETY: `FixedMemory::new` promises that the memory outlives the ring and keeps its pages.
        if unsafe { ring.submitter().register_buffers(&[buffer]) }.is_ok() {
            return Registered { start: memory.address.base.addr(), bytes };
        }
        // Other rings of this user share the limit.
        bytes /= 2;
    }
    Registered::default()
}

/// Keeps the ring's worker threads on these CPUs, off the data cores. Best effort: an old kernel has no such call.
pub(super) fn place_workers(ring: &IoUring, cpus: &[usize]) -> bool {
    if cpus.is_empty() {
        return false;
    }
    // SAFETY: a CPU set is plain bits, for which zeroes are the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for cpu in cpus.iter().filter(|cpu| **cpu < libc::CPU_SETSIZE as usize) {
        // SAFETY: the number is below the set's size, as just filtered.
        unsafe { libc::CPU_SET(*cpu, &mut set) };
    }
    ring.submitter().register_iowq_aff(&set).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_why() {
        let text = |code| Refusal::Setup(io::Error::from_raw_os_error(code)).to_string();
        assert!(text(libc::EPERM).contains("seccomp"));
        assert!(text(libc::ENOSYS).contains("has no io_uring"));
        assert!(text(libc::EIO).contains("cannot be set up"));
    }

    #[test]
    fn registered_memory_holds_whole_transfers_only() {
        let registered = Registered { start: 4096, bytes: 8192 };
        let at = |address: usize| std::ptr::without_provenance::<u8>(address);
        assert!(registered.holds(at(4096), 8192));
        assert!(!registered.holds(at(8192), 8192));
        assert!(!registered.holds(at(0), 4096));
        assert!(!Registered::default().holds(at(4096), 4096));
    }
}
