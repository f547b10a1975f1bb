//! The layout of everything that is on a medium: superblock, regions, journal commits and records, root blocks,
//! checkpoint directories and blobs, index blocks.
//!
//! `nvme/log` and `nvme/tools` call it; it does no I/O and knows no policy. Numbers are little endian. Invariant: every
//! block and record has a magic or a kind, a version, a CRC-32C (its own, or that of the commit, root or directory that
//! names it) and a zeroed reserve; decoding bytes from a medium never panics and never allocates more than they hold.
//! Tests: round trips and garbage, beside each module and in tests/garbage.rs.
#![forbid(unsafe_code)]

pub mod blob;
pub mod codec;
pub mod crc;
pub mod directory;
pub mod extent;
pub mod index;
pub mod journal;
pub mod record;
pub mod region;
pub mod root;
pub mod superblock;

pub use codec::{Malformed, Reader, Sink};
pub use extent::{EXTENT_UNIT, EXTENT_UNIT_BLOCKS, ExtentAddress, ExtentOrder, SlabId};
pub use superblock::{Generation, Superblock};
