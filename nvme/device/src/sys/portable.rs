//! Systems other than Linux: plain positioned I/O. A durable write is a write and a sync of the file, a hole is written
//! zeroes, and the memory namespace is a temporary file without a name.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

pub(crate) fn memory_file(name: &str) -> io::Result<File> {
    let path = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

pub(crate) fn write_pieces(file: &File, pieces: &[&[u8]], mut at: u64, durable: bool) -> io::Result<()> {
    for piece in pieces {
        file.write_all_at(piece, at)?;
        at += piece.len() as u64;
    }
    if durable { file.sync_data() } else { Ok(()) }
}

pub(crate) fn punch_hole(file: &File, at: u64, bytes: u64) -> io::Result<()> {
    const ZEROES: &[u8] = &[0; 64 << 10];
    let mut done = 0;
    while done < bytes {
        let count = (bytes - done).min(ZEROES.len() as u64);
        file.write_all_at(&ZEROES[..count as usize], at + done)?;
        done += count;
    }
    Ok(())
}
