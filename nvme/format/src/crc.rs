//! CRC-32C, plain and seeded.

use crate::codec::Sink;
use base::{Block, PartitionId, Tenancy};

pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

pub fn append(crc: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc, bytes)
}

/// What the CRC of a stretch starts from: bytes of another partition, place or tenancy do not match it, so a lost or
/// misdirected write cannot pass for good data.
pub fn stretch_seed(partition: PartitionId, extent: Block, tenancy: Tenancy) -> u32 {
    let mut bytes = Vec::with_capacity(36);
    bytes.partition(partition);
    bytes.u64(extent.0);
    bytes.tenancy(tenancy);
    crc32c(&bytes)
}

/// Seals a block whose last four bytes are its CRC.
pub fn seal_block(block: &mut [u8]) {
    let at = block.len() - 4;
    let crc = crc32c(&block[..at]);
    block[at..].copy_from_slice(&crc.to_le_bytes());
}

/// Whether a block's last four bytes are the CRC of the others.
pub fn block_is_sealed(block: &[u8]) -> bool {
    match block.split_last_chunk::<4>() {
        Some((body, stored)) => crc32c(body) == u32::from_le_bytes(*stored),
        None => false,
    }
}
