//! Linux: vectored positioned I/O with RWF_DSYNC, fallocate, memfd.

use rustix::fs::FallocateFlags;
use rustix::io::{IoSlice, ReadWriteFlags};
use std::fs::File;
use std::io;

/// Most pieces one call takes (UIO_MAXIOV).
const PIECES_MAX: usize = 1024;

/// A file without a name that lives in memory and ends with its last descriptor.
pub(crate) fn memory_file(name: &str) -> io::Result<File> {
    Ok(File::from(rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC)?))
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
