//! What every device checks of a request before it takes it. Shapes (empty ranges, lengths, alignment) are the
//! submitter's own doing, so a wrong one asserts; places may come from bytes read back, so a wrong one is an error.

use base::{BLOCK_SIZE, BlockRange};
use nvme_plan::{DeviceError, Geometry, Operation, Promise};

/// Linux's numbers, used as the codes of our own refusals on every system.
pub(crate) const EINVAL: u32 = 22;
pub(crate) const EOPNOTSUPP: u32 = 95;
pub(crate) const EIO: u32 = 5;
pub(crate) const EROFS: u32 = 30;

/// The blocks an operation touches; a flush touches none.
pub(crate) fn range_of(operation: &Operation) -> Option<BlockRange> {
    match operation {
        Operation::Write { range, .. }
        | Operation::Read { range, .. }
        | Operation::WriteZeroes { range }
        | Operation::Trim { range }
        | Operation::Grow { range } => Some(*range),
        Operation::Flush => None,
    }
}

/// Whether the operation changes what its blocks hold.
pub(crate) fn writes(operation: &Operation) -> bool {
    matches!(operation, Operation::Write { .. } | Operation::WriteZeroes { .. } | Operation::Trim { .. })
}

pub(crate) fn check(operation: &Operation, geometry: &Geometry) -> Result<(), DeviceError> {
    assert_shape(operation, geometry);
    let Some(range) = range_of(operation) else { return Ok(()) };
    let end = range.start.0.checked_add(u64::from(range.count)).ok_or(DeviceError::Failed(EINVAL))?;
    match operation {
        Operation::Grow { .. } if !geometry.grows => Err(DeviceError::Failed(EOPNOTSUPP)),
        // New blocks follow the present ones without a gap, so that a size is all there is to remember.
        Operation::Grow { .. } if range.start.0 != geometry.blocks => Err(DeviceError::Failed(EINVAL)),
        Operation::Grow { .. } => Ok(()),
        _ if end > geometry.blocks => Err(DeviceError::Failed(EINVAL)),
        Operation::Trim { .. } if !geometry.trims => Err(DeviceError::Failed(EOPNOTSUPP)),
        Operation::Write { promise: Promise::Durable, .. } if !geometry.durable_writes => {
            Err(DeviceError::Failed(EOPNOTSUPP))
        }
        _ => Ok(()),
    }
}

fn assert_shape(operation: &Operation, geometry: &Geometry) {
    if let Some(range) = range_of(operation) {
        assert!(range.count > 0, "an operation on no blocks");
    }
    match operation {
        Operation::Write { range, pieces, .. } => {
            let total: usize = pieces.iter().map(|piece| piece.len()).sum();
            assert_eq!(total as u64, range.bytes(), "a write's pieces fill {range}");
            for piece in pieces {
                assert_aligned(piece);
            }
            assert!(range.count <= geometry.transfer_max, "a write of {range} is above the device's transfer size");
        }
        Operation::Read { range, into } => {
            assert_eq!(into.len() as u64, range.bytes(), "a read's buffer fits {range}");
            assert_aligned(into);
            assert!(range.count <= geometry.transfer_max, "a read of {range} is above the device's transfer size");
        }
        Operation::WriteZeroes { range } => {
            assert!(range.count <= geometry.transfer_max, "zeroing {range} is above the device's transfer size");
        }
        Operation::Flush | Operation::Trim { .. } | Operation::Grow { .. } => {}
    }
}

fn assert_aligned(bytes: &[u8]) {
    assert!(!bytes.is_empty() && bytes.len().is_multiple_of(BLOCK_SIZE), "a piece is whole blocks");
    assert!(bytes.as_ptr().addr().is_multiple_of(BLOCK_SIZE), "a piece starts at a multiple of the block size");
}
