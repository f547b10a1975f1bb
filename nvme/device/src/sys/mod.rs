//! The system's calls on files, behind functions that are the same on every system. Linux has its own module; elsewhere
//! plain positioned reads and writes do, without O_DIRECT, holes and per-write durability.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
pub(crate) use linux::*;

#[cfg(not(target_os = "linux"))]
mod portable;
#[cfg(not(target_os = "linux"))]
pub(crate) use portable::*;

use crate::check::EIO;
use nvme_plan::{DeviceError, Operation};
use std::io;

/// What an error of the system means to the store. Only a growth may be told that there is no room: the space of
/// everything else was taken long before.
pub(crate) fn device_error(error: &io::Error, operation: &Operation) -> DeviceError {
    const ENXIO: i32 = 6;
    const ENODEV: i32 = 19;
    const ENOSPC: i32 = 28;
    match error.raw_os_error() {
        Some(ENXIO | ENODEV) => DeviceError::Gone,
        Some(ENOSPC) if matches!(operation, Operation::Grow { .. }) => DeviceError::NoSpace,
        Some(code) => DeviceError::Failed(code.unsigned_abs()),
        // The standard library's own errors: a file that ended early, a write of nothing.
        None => DeviceError::Failed(EIO),
    }
}

#[repr(align(4096))]
struct Zeroes([u8; 64 << 10]);

/// Block-aligned zeroes, for whoever has to write some.
pub(crate) fn zeroes() -> &'static [u8] {
    static ZEROES: Zeroes = Zeroes([0; 64 << 10]);
    &ZEROES.0
}

/// Zeroes as the pieces of one write. They really are written: a hole, and space that was only promised, cost the first
/// real write double.
pub(crate) fn zero_pieces(bytes: u64) -> Vec<&'static [u8]> {
    let zeroes = zeroes();
    let mut pieces = vec![zeroes; (bytes / zeroes.len() as u64) as usize];
    let rest = (bytes % zeroes.len() as u64) as usize;
    if rest > 0 {
        pieces.push(&zeroes[..rest]);
    }
    pieces
}
