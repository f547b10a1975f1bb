//! Words in memory that other processes read: the per-core pages of counters.
#![allow(unsafe_code)]

use crate::region::map_shared;
use base::BLOCK_SIZE;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// A shared mapping as a slice of atomic words, zero at first. Whoever maps the same file sees the same words.
#[derive(Debug)]
pub struct SharedPages {
    base: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the mapping belongs to this value alone within the process and is reached only as atomics.
unsafe impl Send for SharedPages {}
// SAFETY: as above; atomics may be shared.
unsafe impl Sync for SharedPages {}

impl SharedPages {
    /// A memory file that no path names, and its descriptor, which a child process may inherit (it is closed on exec
    /// until the caller lets it through).
    #[cfg(target_os = "linux")]
    pub fn memfd(name: &str, bytes: usize) -> io::Result<(SharedPages, File)> {
        let file = File::from(rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC)?);
        let pages = SharedPages::sized(&file, bytes)?;
        Ok((pages, file))
    }

    /// A new file of `bytes` rounded up to blocks, all of which it has. An old one of that name is replaced and never emptied: a process that
    /// still maps it would die of touching pages beyond its end.
    pub fn create(path: &Path, bytes: usize) -> io::Result<SharedPages> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        SharedPages::sized(&File::options().read(true).write(true).create_new(true).open(path)?, bytes)
    }

    /// The whole of a file that another process made. The file must not shrink while it is mapped: whoever creates it
    /// gives it its length once and never truncates it again.
    pub fn open(path: &Path) -> io::Result<SharedPages> {
        SharedPages::from_file(&File::options().read(true).write(true).open(path)?)
    }

    /// The whole of a file that is open already, for example an inherited one.
    pub fn from_file(file: &File) -> io::Result<SharedPages> {
        let len = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
        if len == 0 || !len.is_multiple_of(BLOCK_SIZE) || isize::try_from(len).is_err() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a counter file is a whole number of blocks"));
        }
        let base = NonNull::new(map_shared(file, len)?.cast()).expect("the system maps nothing at address zero");
        Ok(SharedPages { base, words: len / size_of::<AtomicU64>() })
    }

    /// The file gets its blocks here, where a full file system is an error: a hole that is touched in a mapping when
    /// there is no room for it ends the process (SIGBUS).
    fn sized(mut file: &File, bytes: usize) -> io::Result<SharedPages> {
        for _ in 0..bytes.div_ceil(BLOCK_SIZE) {
            file.write_all(&[0; BLOCK_SIZE])?;
        }
        SharedPages::from_file(file)
    }

    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is `words` words long, page-aligned and lives as long as `self`; any bit pattern is a valid
        // `AtomicU64`; every access within this process is atomic, and other processes write the file behind it as words
        // too, by the same type.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }
}

impl AsRef<[AtomicU64]> for SharedPages {
    fn as_ref(&self) -> &[AtomicU64] {
        self.words()
    }
}

impl Drop for SharedPages {
    fn drop(&mut self) {
        let bytes = self.words * size_of::<AtomicU64>();
        // SAFETY: mapped by this value with this length; no borrow of the words outlives it.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), bytes) };
        debug_assert!(unmapped.is_ok(), "unmapping a whole mapping cannot fail");
    }
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn two_mappings_of_one_file_share_their_words() {
        let (pages, file) = SharedPages::memfd("counters-test", 5000).unwrap();
        assert_eq!(pages.words().len(), 8192 / 8);
        let other = SharedPages::from_file(&file).unwrap();
        pages.words()[1023].store(7, Relaxed);
        assert_eq!(other.words()[1023].load(Relaxed), 7);
        drop(pages);
        assert_eq!(other.words()[1023].load(Relaxed), 7);
    }

    #[test]
    fn a_named_file_is_created_opened_and_checked() {
        let path = std::env::temp_dir().join(format!("pollux-shared-pages-{}", std::process::id()));
        let pages = SharedPages::create(&path, 1).unwrap();
        pages.words()[0].store(9, Relaxed);
        assert_eq!(SharedPages::open(&path).unwrap().words()[0].load(Relaxed), 9);
        SharedPages::create(&path, 3 * BLOCK_SIZE).unwrap();
        assert_eq!(pages.words()[0].load(Relaxed), 9, "a mapping of the replaced file lives on");
        let blocks = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&path).unwrap());
        assert!(blocks * 512 >= 3 * BLOCK_SIZE as u64, "no hole is left for later");
        std::fs::write(&path, b"short").unwrap();
        assert_eq!(SharedPages::open(&path).unwrap_err().kind(), io::ErrorKind::InvalidData);
        std::fs::remove_file(&path).unwrap();
        assert!(SharedPages::open(&path).is_err());
    }
}
