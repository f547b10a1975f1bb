//! Which way to make a commit durable is faster here: one durable write (RWF_DSYNC), or a write and a flush. Run once
//! on `offload` in the background after the node is ready, one pair of writes at a time, so that no other job waits long
//! behind it; the answer is kept in the superblock (design 02).

use crate::device::Device;
use crate::file::{NamespaceFile, offset};
use crate::sys;
use base::{BLOCK_SIZE, BlockRange, Work};
use std::any::Any;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long both ways are tried in all, alternating.
const TRIAL: Duration = Duration::from_millis(200);

/// A durable write has to be faster by a fifth.
const DECISIVE: (u32, u32) = (5, 4);

/// Medians of one commit-sized write made durable in either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calibrated {
    pub durable_write: Duration,
    pub write_and_flush: Duration,
    /// Measurements of each.
    pub samples: usize,
}

impl Calibrated {
    /// Where there is little between them, chance would choose: two commands are the sure way.
    pub fn prefers_durable_writes(&self) -> bool {
        self.durable_write * DECISIVE.0 < self.write_and_flush * DECISIVE.1
    }
}

/// The measurement as a job, to be run again until it has an outcome. It overwrites the scratch blocks.
pub struct Calibration {
    file: Arc<NamespaceFile>,
    scratch: BlockRange,
    durable: Vec<Duration>,
    flushed: Vec<Duration>,
    spent: Duration,
    /// `None` until both ways were tried for long enough.
    pub outcome: Option<io::Result<Calibrated>>,
}

impl Calibration {
    /// `None` where there is nothing to choose: in memory, or without durable writes.
    pub fn new(device: &Device, scratch: BlockRange) -> Option<Calibration> {
        let file = device.file()?;
        let geometry = file.geometry();
        let fits = scratch.count > 0 && scratch.end().0 <= geometry.blocks;
        assert!(fits, "the scratch {scratch} lies inside the namespace");
        geometry.durable_writes.then(|| Calibration {
            file: file.clone(),
            scratch,
            durable: Vec::new(),
            flushed: Vec::new(),
            spent: Duration::ZERO,
            outcome: None,
        })
    }

    fn measure(&mut self) -> io::Result<Option<Calibrated>> {
        let space = vec![0x5au8; self.scratch.bytes() as usize + BLOCK_SIZE];
        let start = space.as_ptr().align_offset(BLOCK_SIZE);
        let piece = &space[start..start + self.scratch.bytes() as usize];
        let at = offset(self.scratch);
        let file = &self.file.file;
        if self.spent == Duration::ZERO {
            // The first write may have to take space, which no commit does.
            sys::write_pieces(file, &[piece], at, false)?;
            file.sync_data()?;
        }
        let start = Instant::now();
        sys::write_pieces(file, &[piece], at, true)?;
        let middle = Instant::now();
        sys::write_pieces(file, &[piece], at, false)?;
        file.sync_data()?;
        self.durable.push(middle - start);
        self.flushed.push(middle.elapsed());
        self.spent += start.elapsed();
        Ok((self.spent >= TRIAL).then(|| Calibrated {
            durable_write: median(&mut self.durable),
            write_and_flush: median(&mut self.flushed),
            samples: self.durable.len(),
        }))
    }
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

impl Work for Calibration {
    fn run(&mut self) {
        self.outcome = self.measure().transpose();
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_durable_write_is_chosen_where_it_is_faster_by_a_fifth() {
        for (durable, flushed, chosen) in [(79, 100, true), (80, 100, false), (100, 104, false), (120, 100, false)] {
            let micros = Duration::from_micros;
            let measured = Calibrated { durable_write: micros(durable), write_and_flush: micros(flushed), samples: 9 };
            assert_eq!(measured.prefers_durable_writes(), chosen, "{durable} against {flushed}");
        }
    }
}
