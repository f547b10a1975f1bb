//! Linux: O_DIRECT, vectored positioned I/O with RWF_DSYNC, fallocate, memfd, and what /proc and /sys tell.

use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::{IoSlice, ReadWriteFlags};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Most pieces one call takes (UIO_MAXIOV).
const PIECES_MAX: usize = 1024;

/// A write can be durable by itself (RWF_DSYNC).
pub(crate) const DURABLE_WRITES: bool = true;

/// A file without a name that lives in memory and ends with its last descriptor.
pub(crate) fn memory_file(name: &str) -> io::Result<File> {
    Ok(File::from(rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC)?))
}

/// Opens past the page cache. File systems that cannot do that refuse with EINVAL, here or at the first transfer.
pub(crate) fn open_direct(options: &mut std::fs::OpenOptions, path: &Path, exclusive: bool) -> io::Result<File> {
    let mut flags = OFlags::DIRECT;
    if exclusive {
        flags |= OFlags::EXCL;
    }
    options.custom_flags(flags.bits() as i32).open(path)
}

pub(crate) fn open_plain(options: &mut std::fs::OpenOptions, path: &Path, exclusive: bool) -> io::Result<File> {
    let flags = if exclusive { OFlags::EXCL } else { OFlags::empty() };
    options.custom_flags(flags.bits() as i32).open(path)
}

/// By which the file can be opened again, whatever became of its name.
pub(crate) fn path_of(file: &File) -> Option<PathBuf> {
    Some(PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))).filter(|path| path.exists())
}

/// Sends the descriptor's transfers through the page cache from now on. The lock on it stays.
pub(crate) fn leave_direct(file: &File) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    Ok(rustix::fs::fcntl_setfl(file, flags - OFlags::DIRECT)?)
}

/// Whether the system refused because the file system has no O_DIRECT, or has it for larger units only.
pub(crate) fn refuses_direct(error: &io::Error) -> bool {
    const EINVAL: i32 = 22;
    error.raw_os_error() == Some(EINVAL)
}

/// Writes all pieces one after the other from `at` on; `durable` means on the medium when it returns.
pub(crate) fn write_pieces(file: &File, pieces: &[&[u8]], mut at: u64, durable: bool) -> io::Result<()> {
    let flags = if durable { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
    let mut slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
    let mut rest = &mut slices[..];
    while !rest.is_empty() {
        let count = rest.len().min(PIECES_MAX);
        let written = match rustix::io::pwritev2(file, &rest[..count], at, flags) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => written,
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        at += written as u64;
        IoSlice::advance_slices(&mut rest, written);
    }
    Ok(())
}

/// Frees the space of the bytes, which read as zeroes from then on.
pub(crate) fn punch_hole(file: &File, at: u64, bytes: u64) -> io::Result<()> {
    Ok(rustix::fs::fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, bytes)?)
}

/// Takes space for the bytes and extends the file over them. A file system that cannot promise space (EOPNOTSUPP) only
/// extends it.
pub(crate) fn allocate(file: &File, at: u64, bytes: u64) -> io::Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), at, bytes) {
        Err(rustix::io::Errno::OPNOTSUPP) => file.set_len(at + bytes),
        result => Ok(result?),
    }
}

/// Keeps the calling thread on these CPUs. Best effort: a container may allow none of them.
pub(crate) fn place_thread(cpus: &[usize]) {
    let mut set = rustix::thread::CpuSet::new();
    for cpu in cpus.iter().filter(|cpu| **cpu < rustix::thread::CpuSet::MAX_CPU) {
        set.set(*cpu);
    }
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        tracing::warn!(%error, ?cpus, "the I/O thread stays where it is");
    }
}

/// The process that holds a lock on the file, as far as the kernel tells.
pub(crate) fn lock_holder(file: &File) -> Option<u32> {
    let metadata = file.metadata().ok()?;
    let (major, minor) = (rustix::fs::major(metadata.dev()), rustix::fs::minor(metadata.dev()));
    let inode = format!("{major:02x}:{minor:02x}:{}", metadata.ino());
    find_holder(&std::fs::read_to_string("/proc/locks").ok()?, &inode)
}

/// `1: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF`; a waiter's line has `->` behind the number.
fn find_holder(locks: &str, inode: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        if words.next()? != "FLOCK" {
            return None;
        }
        let (pid, place) = (words.nth(2)?, words.next()?);
        if place == inode { pid.parse().ok() } else { None }
    })
}

/// What a block device says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockDevice {
    pub(crate) volatile_write_cache: bool,
    pub(crate) trims: bool,
    pub(crate) logical_block: u32,
}

pub(crate) fn block_device(file: &File) -> io::Result<BlockDevice> {
    let base = sysfs_folder(file.metadata()?.rdev());
    Ok(BlockDevice {
        // What is not known to be written through is taken for volatile.
        volatile_write_cache: queue_attribute(&base, "write_cache").as_deref() != Some("write through"),
        trims: queue_attribute(&base, "discard_max_bytes")
            .and_then(|bytes| bytes.parse::<u64>().ok())
            .is_some_and(|bytes| bytes > 0),
        logical_block: rustix::fs::ioctl_blksszget(file)?,
    })
}

/// Whether the device below a file, or the device that the file is, carries out a durable write as one command: it has FUA
/// (force unit access), or no volatile cache. `None` where the kernel does not say.
pub(crate) fn forces_unit_access(file: &File) -> Option<bool> {
    let metadata = file.metadata().ok()?;
    let device = if metadata.file_type().is_block_device() { metadata.rdev() } else { metadata.dev() };
    one_command(&sysfs_folder(device))
}

fn one_command(base: &Path) -> Option<bool> {
    let fua = queue_attribute(base, "fua")?;
    Some(fua == "1" || queue_attribute(base, "write_cache").as_deref() == Some("write through"))
}

fn sysfs_folder(device: u64) -> PathBuf {
    format!("/sys/dev/block/{}:{}", rustix::fs::major(device), rustix::fs::minor(device)).into()
}

/// What the kernel says of a device's queue; a partition's is its disk's.
fn queue_attribute(base: &Path, name: &str) -> Option<String> {
    let own = std::fs::read_to_string(base.join("queue").join(name));
    let text = own.or_else(|_| std::fs::read_to_string(base.join("../queue").join(name)));
    text.ok().map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_a_lock_is_found_among_others() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 fe:00:1234 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 4712 fe:00:1234 0 EOF\n\
                     3: FLOCK  ADVISORY  READ 13 fe:00:99 0 EOF\n";
        assert_eq!(find_holder(locks, "fe:00:1234"), Some(4711));
        assert_eq!(find_holder(locks, "fe:00:99"), Some(13));
        assert_eq!(find_holder(locks, "fe:00:9"), None);
        assert_eq!(find_holder("garbage\n1: FLOCK\n", "fe:00:9"), None);
    }

    #[test]
    fn one_command_makes_a_write_durable_where_the_queue_says_so() {
        let root = std::env::temp_dir().join(format!("pollux-queue-{}", std::process::id()));
        let (disk, partition) = (root.join("disk"), root.join("disk/part"));
        std::fs::create_dir_all(disk.join("queue")).unwrap();
        std::fs::create_dir_all(&partition).unwrap();
        assert_eq!(one_command(&disk), None, "an old kernel, or no block device");
        for (fua, cache, expected) in
            [("0", "write back", false), ("1", "write back", true), ("0", "write through", true)]
        {
            std::fs::write(disk.join("queue/fua"), format!("{fua}\n")).unwrap();
            std::fs::write(disk.join("queue/write_cache"), format!("{cache}\n")).unwrap();
            assert_eq!((one_command(&disk), one_command(&partition)), (Some(expected), Some(expected)));
        }
        std::fs::remove_dir_all(&root).unwrap();
    }
}
