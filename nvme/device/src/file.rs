//! Opening a namespace that is a file or a block device: creation, the lock, the two descriptors, and what the device
//! can do. Runs before the loop starts, so it may wait.

use crate::check::{EROFS, check};
use crate::sys;
use base::{BLOCK_SIZE, BlockRange};
use nvme_plan::{DeviceError, Geometry, Operation, Promise};
use rustix::fs::FlockOperation;
use std::fmt;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A growth leaves this much of the file system: the control plane's log lies there too, and whatever else the host has.
pub const HOST_SPACE_LEFT: u64 = 16 * 1024 * 1024;

/// Largest transfer of one request, in blocks: a commit of 1 MiB and its header, with room to spare.
pub(crate) const TRANSFER_MAX: u32 = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Alone.
    ReadWrite,
    /// Beside other readers, for tools that only look.
    ReadOnly,
}

#[derive(Clone, Debug)]
pub struct FileOptions {
    pub path: PathBuf,
    /// Create the file with this many bytes where there is none. Without it a missing file is an error.
    pub create: Option<u64>,
    pub access: Access,
    /// Past the page cache where the file system allows it.
    pub direct: bool,
    /// Serve `Operation::Trim` (off by default for files: a large punch stalls every core).
    pub trims: bool,
    /// How long to wait for a predecessor's lock; a killed process's last writes land some time after its death.
    pub lock_wait: Duration,
    pub in_flight_max: usize,
}

impl FileOptions {
    pub fn new(path: impl Into<PathBuf>) -> FileOptions {
        FileOptions {
            path: path.into(),
            create: None,
            access: Access::ReadWrite,
            direct: true,
            trims: false,
            lock_wait: Duration::from_secs(2),
            in_flight_max: 64,
        }
    }
}

/// Why a namespace could not be opened, and what to do about it.
#[derive(Debug)]
pub enum OpenError {
    Missing {
        path: PathBuf,
    },
    Denied {
        path: PathBuf,
        step: &'static str,
    },
    ReadOnly {
        path: PathBuf,
    },
    NotAFile {
        path: PathBuf,
    },
    Locked {
        path: PathBuf,
        holder: Option<u32>,
    },
    InUse {
        path: PathBuf,
    },
    NoSpace {
        path: PathBuf,
        wanted: u64,
    },
    TooSmall {
        path: PathBuf,
        bytes: u64,
    },
    BlockSize {
        path: PathBuf,
        logical_block: u32,
    },
    /// io_uring was asked for by name and the system refuses it.
    UringRefused {
        reason: String,
    },
    System {
        path: PathBuf,
        step: &'static str,
        source: io::Error,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Missing { path } => {
                write!(f, "{} does not exist: format a namespace there first, or correct the path", path.display())
            }
            OpenError::Denied { path, step } => write!(
                f,
                "no permission to {step} {}: run as its owner, or give this user read and write access to it",
                path.display()
            ),
            OpenError::ReadOnly { path } => write!(
                f,
                "{} is on a file system that takes no writes: mount it for writing, or choose another data directory",
                path.display()
            ),
            OpenError::NotAFile { path } => {
                write!(f, "{} is neither a file nor a block device: name one of the two", path.display())
            }
            OpenError::Locked { path, holder: Some(pid) } => write!(
                f,
                "{} is in use by process {pid}: stop that process, or give this node a data directory of its own",
                path.display()
            ),
            OpenError::Locked { path, holder: None } => write!(
                f,
                "{} is in use by another process (`lslocks` shows which): stop it, or use another data directory",
                path.display()
            ),
            OpenError::InUse { path } => {
                write!(
                    f,
                    "{} is mounted or held by another subsystem: unmount it, or name another device",
                    path.display()
                )
            }
            OpenError::NoSpace { path, wanted } => {
                write!(f, "there is no room for {wanted} bytes at {}: free some, or lower data.size", path.display())
            }
            OpenError::TooSmall { path, bytes } => write!(
                f,
                "{} has {bytes} bytes, less than one block: it is no namespace; format one, or correct the path",
                path.display()
            ),
            OpenError::BlockSize { path, logical_block } => write!(
                f,
                "{} has blocks of {logical_block} bytes; only devices with blocks of 512 to 4096 bytes can be used",
                path.display()
            ),
            OpenError::UringRefused { reason } => {
                write!(f, "io_uring was asked for, and {reason}: allow it, or set data.io to \"threads\" or \"auto\"")
            }
            OpenError::System { path, step, source } => write!(f, "cannot {step} {}: {source}", path.display()),
        }
    }
}

impl std::error::Error for OpenError {}

/// An open namespace: what the queues of all cores share.
#[derive(Debug)]
pub(crate) struct NamespaceFile {
    pub(crate) path: PathBuf,
    /// Carries all transfers but cached writes, and the lock: as long as a transfer is under way in the kernel, also
    /// of a process that was killed, this description lives and nobody else gets in.
    pub(crate) file: File,
    /// Through the page cache, for `Promise::Cached`. A direct read of the same blocks writes the cache out first, so
    /// recovery sees what a killed process had only cached.
    pub(crate) cached: Option<File>,
    pub(crate) direct: bool,
    blocks: AtomicU64,
    geometry: Geometry,
}

impl NamespaceFile {
    pub(crate) fn open(options: &FileOptions) -> Result<NamespaceFile, OpenError> {
        let path = &options.path;
        let is_device = classify(options)?;
        let (file, mut direct) = open_first(options, is_device)?;
        lock(&file, options)?;
        if !is_device && let Some(bytes) = options.create {
            create(&file, path, bytes)?;
        }
        let bytes = (&file).seek(SeekFrom::End(0)).map_err(|source| system(path, "measure", source))?;
        if bytes < BLOCK_SIZE as u64 {
            return Err(OpenError::TooSmall { path: path.clone(), bytes });
        }
        if direct && !can_read_direct(&file, path)? {
            sys::leave_direct(&file).map_err(|source| system(path, "set the flags of", source))?;
            direct = false;
        }
        if options.direct && !direct {
            tracing::warn!(path = %path.display(), "no O_DIRECT here: transfers go through the page cache");
        }
        let cached = match options.access {
            Access::ReadOnly => None,
            Access::ReadWrite => Some(open_again(&file, path, true)?),
        };
        let geometry = geometry(&file, options, direct, is_device, bytes / BLOCK_SIZE as u64)?;
        let blocks = AtomicU64::new(geometry.blocks);
        Ok(NamespaceFile { path: path.clone(), file, cached, direct, blocks, geometry })
    }

    /// A description for the flushes of one queue. Linux tells each description once that cached writes could not be
    /// written: the first to flush a shared one, or to grow the file, would be told, and the next flush would succeed over
    /// writes of its own that are lost.
    pub(crate) fn flusher(&self) -> io::Result<File> {
        let again = |path: &Path| open_again(&self.file, path, self.cached.is_some());
        let unnamed = sys::path_of(&self.file).and_then(|path| again(&path).ok());
        unnamed.map_or_else(|| again(&self.path), Ok).map_err(io::Error::other)
    }

    pub(crate) fn geometry(&self) -> Geometry {
        Geometry { blocks: self.blocks(), ..self.geometry.clone() }
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Acquire)
    }

    /// A growth is over. ext4 keeps what it took before it found no more, up to the last block of the file system, where
    /// nobody else could write any more, the control plane first of all: a growth that was refused is taken back. That call
    /// may block; it comes only where somebody else took the space since `has_room` looked.
    pub(crate) fn note_growth(&self, range: BlockRange, grown: bool) {
        if grown {
            self.blocks.fetch_max(range.end().0, Ordering::AcqRel);
        } else if let Err(error) = self.file.set_len(offset(range)) {
            tracing::warn!(path = %self.path.display(), %error, "what a refused growth took cannot be given back");
        }
    }

    /// Whether the file system has room for so much more, and leaves some to others. What cannot be found out is tried.
    fn has_room(&self, bytes: u64) -> bool {
        rustix::fs::fstatvfs(&self.file).map_or(true, |facts| {
            // One in memory may have no bounds of its own.
            facts.f_blocks == 0 || free(&facts) >= bytes + HOST_SPACE_LEFT
        })
    }

    /// The result of what is over when `submit` returns: a refusal, or a write into the page cache (the one argued
    /// exception to "no blocking call"). `None` for everything that goes to the system's queue.
    pub(crate) fn answer_at_once(&self, geometry: &Geometry, operation: &Operation) -> Option<Result<(), DeviceError>> {
        if let Err(error) = check(operation, geometry) {
            return Some(Err(error));
        }
        if let Operation::Grow { range } = operation
            && !self.has_room(range.bytes())
        {
            return Some(Err(DeviceError::NoSpace));
        }
        let Operation::Write { range, pieces, promise: Promise::Cached } = operation else { return None };
        let Some(cached) = &self.cached else { return Some(Err(DeviceError::Failed(EROFS))) };
        let pieces: Vec<&[u8]> = pieces.iter().map(|piece| &piece[..]).collect();
        let written = sys::write_pieces(cached, &pieces, offset(*range), false);
        Some(written.map_err(|error| sys::device_error(&error, operation)))
    }
}

/// The range's place in bytes.
pub(crate) fn offset(range: BlockRange) -> u64 {
    range.start.0 * BLOCK_SIZE as u64
}

fn system(path: &Path, step: &'static str, source: io::Error) -> OpenError {
    match source.kind() {
        io::ErrorKind::NotFound => OpenError::Missing { path: path.to_owned() },
        io::ErrorKind::ReadOnlyFilesystem => OpenError::ReadOnly { path: path.to_owned() },
        io::ErrorKind::PermissionDenied => OpenError::Denied { path: path.to_owned(), step },
        io::ErrorKind::ResourceBusy => OpenError::InUse { path: path.to_owned() },
        _ => OpenError::System { path: path.to_owned(), step, source },
    }
}

/// Whether the path is a block device; a file that is to be created counts as a file.
fn classify(options: &FileOptions) -> Result<bool, OpenError> {
    match std::fs::metadata(&options.path) {
        Ok(metadata) if metadata.is_file() => Ok(false),
        Ok(metadata) if metadata.file_type().is_block_device() => Ok(true),
        Ok(_) => Err(OpenError::NotAFile { path: options.path.clone() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound && options.create.is_some() => Ok(false),
        Err(error) => Err(system(&options.path, "look at", error)),
    }
}

fn open_first(options: &FileOptions, is_device: bool) -> Result<(File, bool), OpenError> {
    let writes = options.access == Access::ReadWrite;
    let mut how = File::options();
    how.read(true).write(writes).create(writes && !is_device && options.create.is_some());
    if options.direct {
        match sys::open_direct(&mut how, &options.path, is_device) {
            Ok(file) => return Ok((file, true)),
            Err(error) if sys::refuses_direct(&error) => {}
            Err(error) => return Err(system(&options.path, "open", error)),
        }
    }
    match sys::open_plain(&mut how, &options.path, is_device) {
        Ok(file) => Ok((file, false)),
        Err(error) => Err(system(&options.path, "open", error)),
    }
}

fn lock(file: &File, options: &FileOptions) -> Result<(), OpenError> {
    let operation = match options.access {
        Access::ReadWrite => FlockOperation::NonBlockingLockExclusive,
        Access::ReadOnly => FlockOperation::NonBlockingLockShared,
    };
    let start = Instant::now();
    loop {
        match rustix::fs::flock(file, operation) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::INTR) => continue,
            Err(rustix::io::Errno::WOULDBLOCK) if start.elapsed() < options.lock_wait => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(OpenError::Locked { path: options.path.clone(), holder: sys::lock_holder(file) });
            }
            Err(error) => return Err(system(&options.path, "lock", error.into())),
        }
    }
}

/// Gives a file without a size its first one, and makes both the file and its name durable.
fn create(file: &File, path: &Path, bytes: u64) -> Result<(), OpenError> {
    let present = file.metadata().map_err(|source| system(path, "measure", source))?.len();
    if present > 0 {
        return Ok(());
    }
    let bytes = bytes / BLOCK_SIZE as u64 * BLOCK_SIZE as u64;
    if let Err(error) = sys::allocate(file, 0, bytes.max(BLOCK_SIZE as u64)) {
        // Only a file that holds nothing is removed: this one had no size.
        let _ = std::fs::remove_file(path);
        return Err(match error.kind() {
            io::ErrorKind::StorageFull => OpenError::NoSpace { path: path.to_owned(), wanted: bytes },
            _ => system(path, "take space for", error),
        });
    }
    file.sync_all().map_err(|source| system(path, "flush", source))?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let directory = File::open(parent).map_err(|source| system(parent, "open", source))?;
    directory.sync_all().map_err(|source| system(parent, "flush", source))
}

/// Reads one block as every transfer will be: the only sure way to learn that the alignment of a block is enough.
fn can_read_direct(file: &File, path: &Path) -> Result<bool, OpenError> {
    let mut space = vec![0u8; 2 * BLOCK_SIZE];
    let start = space.as_ptr().align_offset(BLOCK_SIZE);
    match file.read_exact_at(&mut space[start..start + BLOCK_SIZE], 0) {
        Ok(()) => Ok(true),
        Err(error) if sys::refuses_direct(&error) => Ok(false),
        Err(error) => Err(system(path, "read", error)),
    }
}

/// Another description of the same file, through the page cache and without its lock.
fn open_again(file: &File, path: &Path, writes: bool) -> Result<File, OpenError> {
    let another = File::options().read(true).write(writes).open(path).map_err(|source| system(path, "open", source))?;
    let identity = |file: &File| file.metadata().map(|metadata| (metadata.dev(), metadata.ino()));
    let same = identity(file).and_then(|one| identity(&another).map(|other| one == other));
    match same.map_err(|source| system(path, "look at", source))? {
        true => Ok(another),
        // Renamed or replaced between the two opens.
        false => Err(OpenError::Locked { path: path.to_owned(), holder: None }),
    }
}

fn geometry(
    file: &File,
    options: &FileOptions,
    direct: bool,
    is_device: bool,
    blocks: u64,
) -> Result<Geometry, OpenError> {
    let mut geometry = Geometry {
        blocks,
        volatile_write_cache: true,
        // Through the page cache a write that failed is told to whoever asks the shared description first.
        durable_writes: sys::DURABLE_WRITES && direct,
        trims: options.trims,
        grows: options.access == Access::ReadWrite,
        transfer_max: TRANSFER_MAX,
        in_flight_max: options.in_flight_max,
    };
    if is_device {
        let device =
            sys::block_device(file).map_err(|source| system(&options.path, "ask the block size of", source))?;
        if !(512..=BLOCK_SIZE as u32).contains(&device.logical_block) {
            let logical_block = device.logical_block;
            return Err(OpenError::BlockSize { path: options.path.clone(), logical_block });
        }
        geometry.volatile_write_cache = device.volatile_write_cache;
        geometry.trims = options.trims && device.trims;
        geometry.grows = false;
    }
    Ok(geometry)
}

/// Bytes that an unprivileged process may still take on the file system of `path` (a directory or a file): what a
/// default of `data.size` is a share of.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    Ok(free(&rustix::fs::statvfs(path)?))
}

fn free(facts: &rustix::fs::StatVfs) -> u64 {
    facts.f_bavail.saturating_mul(facts.f_frsize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_growth_is_taken_back_and_none_begins_that_would_leave_nothing() {
        let path = std::env::temp_dir().join(format!("pollux-growth-{}", std::process::id()));
        let options = FileOptions { create: Some(64 * BLOCK_SIZE as u64), ..FileOptions::new(&path) };
        let file = NamespaceFile::open(&options).unwrap();
        let range = BlockRange::new(base::Block(64), 64);
        let len = || std::fs::metadata(&path).unwrap().len();
        // What a file system had found when it refused the rest.
        file.file.set_len(100 * BLOCK_SIZE as u64).unwrap();
        file.note_growth(range, false);
        assert_eq!((len(), file.blocks()), (64 * BLOCK_SIZE as u64, 64));
        file.file.set_len(128 * BLOCK_SIZE as u64).unwrap();
        file.note_growth(range, true);
        assert_eq!((len(), file.blocks()), (128 * BLOCK_SIZE as u64, 128));
        let facts = rustix::fs::fstatvfs(&file.file).unwrap();
        assert!(file.has_room(0) && (facts.f_blocks == 0 || !file.has_room(free(&facts))));
        std::fs::remove_file(&path).unwrap();
    }
}
