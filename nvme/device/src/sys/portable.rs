//! Systems other than Linux: plain positioned I/O. A durable write is a write and a sync of the file, a hole is written
//! zeroes, growth extends the file, and the memory namespace is a temporary file without a name.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A write is made durable by a sync of the whole file, which is what a flush does better.
pub(crate) const DURABLE_WRITES: bool = false;

pub(crate) fn memory_file(name: &str) -> io::Result<File> {
    let path = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

pub(crate) fn open_direct(_options: &mut std::fs::OpenOptions, _path: &Path, _exclusive: bool) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(crate) fn open_plain(options: &mut std::fs::OpenOptions, path: &Path, _exclusive: bool) -> io::Result<File> {
    options.open(path)
}

pub(crate) fn path_of(_file: &File) -> Option<PathBuf> {
    None
}

pub(crate) fn leave_direct(_file: &File) -> io::Result<()> {
    Ok(())
}

pub(crate) fn refuses_direct(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Unsupported
}

pub(crate) fn write_pieces(file: &File, pieces: &[&[u8]], mut at: u64, durable: bool) -> io::Result<()> {
    for piece in pieces {
        file.write_all_at(piece, at)?;
        at += piece.len() as u64;
    }
    if durable { file.sync_data() } else { Ok(()) }
}

pub(crate) fn punch_hole(file: &File, at: u64, bytes: u64) -> io::Result<()> {
    write_pieces(file, &super::zero_pieces(bytes), at, false)
}

pub(crate) fn allocate(file: &File, at: u64, bytes: u64) -> io::Result<()> {
    file.set_len(at + bytes)
}

pub(crate) fn place_thread(_cpus: &[usize]) {}

pub(crate) fn lock_holder(_file: &File) -> Option<u32> {
    None
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockDevice {
    pub(crate) volatile_write_cache: bool,
    pub(crate) trims: bool,
    pub(crate) logical_block: u32,
}

pub(crate) fn block_device(_file: &File) -> io::Result<BlockDevice> {
    Ok(BlockDevice { volatile_write_cache: true, trims: false, logical_block: 512 })
}

pub(crate) fn forces_unit_access(_file: &File) -> Option<bool> {
    None
}
