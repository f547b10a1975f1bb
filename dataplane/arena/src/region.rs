//! The memory that an arena hands out: mapped from the system, or taken from the heap for tests and the simulator.
#![allow(unsafe_code)]

use base::BLOCK_SIZE;
use std::alloc::Layout;
use std::io;
use std::ptr::NonNull;

/// A contiguous piece of memory, block-aligned, a whole number of blocks long, all of it initialised (zero at first).
/// Its pages take real memory when they are first touched.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    len: usize,
    backing: Backing,
}

#[derive(Debug)]
enum Backing {
    /// Where the allocation starts, less than a block before the region, and its layout.
    Heap(NonNull<u8>, Layout),
    Mapped(GiveBack),
}

/// How free pages are given back to the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GiveBack {
    /// Private anonymous memory: the pages are dropped and read as zeroes later.
    DontNeed,
    /// Shared memory keeps its pages in the file behind it: they are punched out there.
    Remove,
    /// Huge pages are reserved by the operator; giving some back could lose them to others.
    Never,
}

/// Where a region lies, for those who register it with a device or a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionAddress {
    pub base: *mut u8,
    pub len: usize,
}

// SAFETY: a `Region` is only an address range that it alone owns; it has no thread affinity. Who may touch which of its
// bytes is the arena's matter, which hands each byte to one buffer at a time.
unsafe impl Send for Region {}
// SAFETY: the shared methods read the two immutable numbers or pass pages that the caller promises are free to the
// system; none touches the bytes.
unsafe impl Sync for Region {}

impl Region {
    /// Private anonymous memory of the system's page size.
    pub fn anonymous(bytes: usize) -> io::Result<Region> {
        Region::map(bytes, GiveBack::DontNeed, |len| {
            use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
            // SAFETY: a null hint lets the system choose an unused range, so that no existing memory is replaced.
            Ok(unsafe {
                mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)?
            })
        })
    }

    /// Memory in 2 MiB pages from the pool that the operator reserved; an error where that pool has too few.
    #[cfg(target_os = "linux")]
    pub fn hugepages(bytes: usize) -> io::Result<Region> {
        const HUGE_PAGE: usize = 2 << 20;
        Region::map(bytes.next_multiple_of(HUGE_PAGE), GiveBack::Never, |len| {
            use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
            // SAFETY: as in `anonymous`.
            Ok(unsafe {
                mmap_anonymous(
                    std::ptr::null_mut(),
                    len,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::PRIVATE | MapFlags::HUGETLB,
                )?
            })
        })
    }

    #[cfg(not(target_os = "linux"))]
    pub fn hugepages(_bytes: usize) -> io::Result<Region> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "huge pages are supported on Linux only"))
    }

    /// Shared memory behind an anonymous file; `name` shows in the process's map.
    #[cfg(target_os = "linux")]
    pub fn memfd(name: &str, bytes: usize) -> io::Result<Region> {
        Region::map(bytes, GiveBack::Remove, |len| {
            let file = rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC)?;
            rustix::fs::ftruncate(&file, len as u64)?;
            map_shared(&file, len)
        })
    }

    #[cfg(not(target_os = "linux"))]
    pub fn memfd(_name: &str, bytes: usize) -> io::Result<Region> {
        // Without memfd nothing outside the process can share the memory anyway.
        Region::anonymous(bytes)
    }

    /// Memory from the heap: needs no system call, so that tests run under miri. Panics where the heap is exhausted.
    pub fn heap(bytes: usize) -> Region {
        let len = whole_blocks(bytes).expect("a heap region has between one block and isize::MAX bytes");
        // Without an alignment of its own: the allocator would fill aligned memory with zeroes itself, every byte of it,
        // instead of taking zeroed pages on use.
        let layout =
            Layout::array::<u8>(len.saturating_add(BLOCK_SIZE)).expect("a heap region is far below isize::MAX");
        // SAFETY: the layout's size is not zero.
        let pointer = unsafe { std::alloc::alloc_zeroed(layout) };
        let Some(start) = NonNull::new(pointer) else { std::alloc::handle_alloc_error(layout) };
        let skip = start.addr().get().next_multiple_of(BLOCK_SIZE) - start.addr().get();
        // SAFETY: less than a block is skipped, and the allocation is a block longer than the region.
        let base = unsafe { start.add(skip) };
        Region { base, len, backing: Backing::Heap(start, layout) }
    }

    /// A further region of the same family: from the heap or from the system.
    pub(crate) fn another(&self, bytes: usize) -> io::Result<Region> {
        match self.backing {
            Backing::Heap(..) => Ok(Region::heap(bytes)),
            Backing::Mapped(_) => Region::anonymous(bytes),
        }
    }

    fn map(
        bytes: usize,
        give_back: GiveBack,
        map: impl FnOnce(usize) -> io::Result<*mut std::ffi::c_void>,
    ) -> io::Result<Region> {
        let len = whole_blocks(bytes)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a region has at least one byte"))?;
        let base = NonNull::new(map(len)?.cast::<u8>()).expect("the system maps nothing at address zero");
        assert!(base.as_ptr().addr().is_multiple_of(BLOCK_SIZE), "pages of the system are whole blocks");
        Ok(Region { base, len, backing: Backing::Mapped(give_back) })
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        false
    }

    pub fn address(&self) -> RegionAddress {
        RegionAddress { base: self.base.as_ptr(), len: self.len }
    }

    /// The address of the byte at `offset`, with the right to reach the rest of the region.
    pub(crate) fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset < self.len, "byte {offset} of a region of {}", self.len);
        // SAFETY: the result lies inside the one allocation that `base` points to, as just asserted.
        unsafe { self.base.add(offset) }
    }

    /// Puts memory behind `bytes` (whole blocks) at `offset`, their contents unchanged, so that whoever uses them first
    /// does not wait for the system to find and clear each page. False where this kind of region or system cannot.
    pub(crate) fn populate(&self, offset: usize, bytes: usize) -> bool {
        assert!(offset.is_multiple_of(BLOCK_SIZE) && bytes.is_multiple_of(BLOCK_SIZE) && offset + bytes <= self.len);
        match self.backing {
            #[cfg(target_os = "linux")]
            Backing::Mapped(_) => {
                let start = self.at(offset).as_ptr().cast();
                // SAFETY: the range lies in this mapping (asserted above), and populating changes no byte of it.
                unsafe { rustix::mm::madvise(start, bytes, rustix::mm::Advice::LinuxPopulateWrite) }.is_ok()
            }
            _ => false,
        }
    }

    /// Gives the memory of `bytes` (whole blocks) at `offset` back to the system, where this kind of region can; later
    /// reads see initialised bytes of no particular value. False where it kept them.
    ///
    /// The caller promises that no buffer holds any of these bytes; the arena, the only caller, reads that off its page
    /// map under the same borrow.
    pub(crate) fn give_back(&self, offset: usize, bytes: usize) -> bool {
        assert!(offset.is_multiple_of(BLOCK_SIZE) && bytes.is_multiple_of(BLOCK_SIZE) && offset + bytes <= self.len);
        let advice = match self.backing {
            Backing::Heap(..) | Backing::Mapped(GiveBack::Never) => return false,
            #[cfg(target_os = "linux")]
            Backing::Mapped(GiveBack::DontNeed) => rustix::mm::Advice::LinuxDontNeed,
            #[cfg(target_os = "linux")]
            Backing::Mapped(GiveBack::Remove) => rustix::mm::Advice::LinuxRemove,
            // Elsewhere the advice that drops pages is not guaranteed to leave zeroes; the plain hint is enough.
            #[cfg(not(target_os = "linux"))]
            Backing::Mapped(_) => rustix::mm::Advice::DontNeed,
        };
        // SAFETY: the range lies in this mapping (asserted above) and no one refers to its bytes (the caller's promise);
        // dropped pages read as zeroes, which are valid bytes.
        unsafe { rustix::mm::madvise(self.at(offset).as_ptr().cast(), bytes, advice) }.is_ok()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        match self.backing {
            // SAFETY: allocated in `heap`, at this start and with this very layout, and freed only here.
            Backing::Heap(start, layout) => unsafe { std::alloc::dealloc(start.as_ptr(), layout) },
            Backing::Mapped(_) => {
                // SAFETY: mapped by this region with this length, unmapped only here; buffers and parcels keep the
                // region alive, so nothing refers to it any more.
                let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
                debug_assert!(unmapped.is_ok(), "unmapping a whole mapping cannot fail");
            }
        }
    }
}

/// Maps the first `len` bytes of a file for reading and writing, shared with whoever else maps it.
pub(crate) fn map_shared(file: impl std::os::fd::AsFd, len: usize) -> io::Result<*mut std::ffi::c_void> {
    use rustix::mm::{MapFlags, ProtFlags, mmap};
    // SAFETY: a null hint lets the system choose an unused range, so that no existing memory is replaced.
    Ok(unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)? })
}

/// `bytes` rounded up to whole blocks, where that is neither zero nor more than an allocation may have.
fn whole_blocks(bytes: usize) -> Option<usize> {
    let len = bytes.checked_next_multiple_of(BLOCK_SIZE)?;
    (len > 0 && isize::try_from(len).is_ok()).then_some(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_rounded_up_to_blocks_and_nonsense_is_refused() {
        assert_eq!(Region::heap(1).len(), BLOCK_SIZE);
        assert_eq!(Region::heap(BLOCK_SIZE + 1).len(), 2 * BLOCK_SIZE);
        assert_eq!(whole_blocks(0), None);
        assert_eq!(whole_blocks(usize::MAX), None);
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps memory")]
    fn every_kind_of_mapping_is_zeroed_writable_and_gives_pages_back() {
        for region in [Region::anonymous(1 << 20).unwrap(), Region::memfd("region-test", 1 << 20).unwrap()] {
            let last = region.at(region.len() - 1);
            // SAFETY: the test is the only user of this region.
            unsafe {
                assert_eq!(last.read(), 0);
                last.write(7);
                assert_eq!(last.read(), 7);
                let populates = region.populate(0, region.len());
                assert!(populates || !cfg!(target_os = "linux"));
                assert_eq!(last.read(), 7, "populating changes nothing");
                assert!(region.give_back(region.len() - BLOCK_SIZE, BLOCK_SIZE));
                if cfg!(target_os = "linux") {
                    assert_eq!(last.read(), 0);
                }
            }
        }
        assert!(Region::anonymous(0).is_err());
    }

    #[test]
    fn a_heap_region_keeps_its_pages() {
        let region = Region::heap(2 * BLOCK_SIZE);
        assert!(!region.give_back(0, BLOCK_SIZE) && !region.populate(0, BLOCK_SIZE));
        assert_eq!(region.address().len, 2 * BLOCK_SIZE);
    }
}
