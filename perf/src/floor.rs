//! What the device alone makes of the load: one write and one flush at a time, each for all that is due, nothing else.
//!
//! A broker that acknowledges only what is on the medium cannot have better percentiles than this on the same file system.

use crate::load::histogram;
use hdrhistogram::Histogram;
use rustix::fs::{Mode, OFlags, fdatasync, open};
use rustix::io::pwrite;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const BLOCK: usize = 4096;
const FILE_SIZE: usize = 64 << 20;
/// As much as one commit of a journal holds.
const WRITE_MAX: usize = 1 << 20;

/// A file whose blocks were written before: what flushes cost that change no metadata. It is made once: a file that goes
/// is a journal's commit and a discard of its blocks, in the middle of whatever is measured next.
pub struct Floor {
    path: PathBuf,
    file: OwnedFd,
}

impl Floor {
    pub fn make(folder: &Path) -> io::Result<Floor> {
        let path = folder.join(format!("floor-{}", std::process::id()));
        let file = std::fs::File::create(&path)?;
        let content = vec![0x5a; WRITE_MAX];
        for position in (0..FILE_SIZE).step_by(WRITE_MAX) {
            pwrite(&file, &content, position as u64)?;
        }
        file.sync_all()?;
        let file = open(&path, OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Floor { path, file })
    }

    /// Writes records of `size` bytes at `rate` a second, past the page cache, and flushes; latencies are in
    /// microseconds from the due time.
    pub fn measure(&self, size: usize, rate: f64, duration: Duration) -> io::Result<Histogram<u64>> {
        measure_on(&self.file, size, rate, duration)
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        // Left behind it is 64 MiB in a folder for what is temporary.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn measure_on(file: &OwnedFd, size: usize, rate: f64, duration: Duration) -> io::Result<Histogram<u64>> {
    let memory = vec![0x5a; WRITE_MAX + BLOCK];
    let aligned = memory.as_ptr().align_offset(BLOCK);
    let memory = &memory[aligned..aligned + WRITE_MAX];
    let mut latencies = histogram();
    let (start, total) = (Instant::now(), (rate * duration.as_secs_f64()) as u64);
    let due_of = |number: u64| Duration::from_secs_f64(number as f64 / rate);
    let (mut done, mut position) = (0u64, 0usize);
    while done < total {
        let now = start.elapsed();
        let due = ((now.as_secs_f64() * rate) as u64 + 1).min(total);
        if due <= done {
            std::thread::sleep(due_of(done).saturating_sub(now));
            continue;
        }
        let count = (due - done).min((WRITE_MAX / size) as u64);
        let bytes = (count as usize * size).next_multiple_of(BLOCK);
        if position + bytes > FILE_SIZE {
            position = 0;
        }
        pwrite(file, &memory[..bytes], position as u64)?;
        fdatasync(file)?;
        position += bytes;
        let end = start.elapsed();
        for number in done..done + count {
            latencies.saturating_record(end.saturating_sub(due_of(number)).as_micros() as u64);
        }
        done += count;
    }
    Ok(latencies)
}
