//! Index entries, one a stretch, and the blocks that hold those of a closed extent.

use crate::codec::{Malformed, Reader, Sink};
use crate::crc;
use base::{BLOCK_SIZE, Block, Tenancy};

const MAGIC: u32 = u32::from_le_bytes(*b"PXIX");
const VERSION: u16 = 1;
const HEAD: usize = 36;
const ENTRY: usize = 32;
/// Entries in one block, its last four bytes being the CRC.
pub const ENTRIES_PER_BLOCK: usize = (BLOCK_SIZE - HEAD - 4) / ENTRY;

const _: () = assert!(HEAD + ENTRIES_PER_BLOCK * ENTRY + 4 <= BLOCK_SIZE);

/// A stretch of batches (or a piece of one large batch) within an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// Base offset of its first batch (or of the batch it is a piece of), counted from the extent's base offset.
    pub offset: u32,
    /// Bytes from the extent's start.
    pub position: u32,
    pub length: u32,
    /// CRC-32C of its bytes, seeded with partition, extent and tenancy.
    pub crc: u32,
    /// The largest timestamp from the extent's start to this stretch's end; Kafka's -1 where there is none.
    pub largest_timestamp: i64,
    /// The base offset, counted as above, of the first batch that has it.
    pub offset_of_largest: u32,
}

impl IndexEntry {
    pub fn end(&self) -> u64 {
        u64::from(self.position) + u64::from(self.length)
    }

    pub fn encode(&self, sink: &mut (impl Sink + ?Sized)) {
        sink.u32(self.offset);
        sink.u32(self.position);
        sink.u32(self.length);
        sink.u32(self.crc);
        sink.i64(self.largest_timestamp);
        sink.u32(self.offset_of_largest);
        sink.u32(0);
    }

    pub fn decode(reader: &mut Reader<'_>) -> Result<IndexEntry, Malformed> {
        let entry = IndexEntry {
            offset: reader.u32()?,
            position: reader.u32()?,
            length: reader.u32()?,
            crc: reader.u32()?,
            largest_timestamp: reader.i64()?,
            offset_of_largest: reader.u32()?,
        };
        if reader.u32()? != 0 || entry.length == 0 { Err(Malformed) } else { Ok(entry) }
    }
}

pub fn index_blocks(entries: usize) -> u64 {
    entries.div_ceil(ENTRIES_PER_BLOCK) as u64
}

/// The index blocks of an extent, one after the other.
pub fn encode_blocks(extent: Block, tenancy: Tenancy, entries: &[IndexEntry], blocks: &mut [u8]) {
    assert_eq!(blocks.len() as u64, index_blocks(entries.len()) * BLOCK_SIZE as u64);
    for (number, (chunk, block)) in
        entries.chunks(ENTRIES_PER_BLOCK).zip(blocks.chunks_exact_mut(BLOCK_SIZE)).enumerate()
    {
        let mut bytes = Vec::with_capacity(BLOCK_SIZE);
        bytes.u32(MAGIC);
        bytes.u16(VERSION);
        bytes.u16(chunk.len() as u16);
        bytes.u64(extent.0);
        bytes.tenancy(tenancy);
        bytes.u32(number as u32);
        bytes.u64(0);
        for entry in chunk {
            entry.encode(&mut bytes);
        }
        bytes.resize(BLOCK_SIZE, 0);
        block.copy_from_slice(&bytes);
        crc::seal_block(block);
    }
}

/// Reads the index blocks of an extent under its tenancy; anything else is damage.
pub fn decode_blocks(extent: Block, tenancy: Tenancy, blocks: &[u8]) -> Result<Vec<IndexEntry>, Malformed> {
    let mut entries = Vec::new();
    for (number, block) in blocks.chunks(BLOCK_SIZE).enumerate() {
        if block.len() != BLOCK_SIZE || !crc::block_is_sealed(block) {
            return Err(Malformed);
        }
        let mut reader = Reader::new(&block[..BLOCK_SIZE - 4]);
        let head = (reader.u32()?, reader.u16()?);
        let count = usize::from(reader.u16()?);
        let place = (reader.u64()?, reader.u64()?, reader.u32()?, reader.u64()?);
        if head != (MAGIC, VERSION) || place != (extent.0, tenancy.0, number as u32, 0) {
            return Err(Malformed);
        }
        for _ in 0..count {
            entries.push(IndexEntry::decode(&mut reader)?);
        }
        reader.end()?;
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_round_trip_and_know_their_place() {
        let entries: Vec<_> = (0..300)
            .map(|i| IndexEntry {
                offset: i * 3,
                position: i * 4096,
                length: 4096,
                crc: i.wrapping_mul(0x9E37_79B9),
                largest_timestamp: i64::from(i) - 1,
                offset_of_largest: i,
            })
            .collect();
        let mut blocks = vec![0; index_blocks(entries.len()) as usize * BLOCK_SIZE];
        encode_blocks(Block(5), Tenancy(6), &entries, &mut blocks);
        assert_eq!(decode_blocks(Block(5), Tenancy(6), &blocks), Ok(entries));
        assert_eq!(decode_blocks(Block(5), Tenancy(7), &blocks), Err(Malformed));
        assert_eq!(decode_blocks(Block(4), Tenancy(6), &blocks), Err(Malformed));
        assert_eq!(decode_blocks(Block(5), Tenancy(6), &blocks[BLOCK_SIZE..]), Err(Malformed));
        blocks[100] ^= 1;
        assert_eq!(decode_blocks(Block(5), Tenancy(6), &blocks), Err(Malformed));
    }
}
