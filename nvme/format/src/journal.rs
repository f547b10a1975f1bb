//! The header of a journal commit, and the walk over its records.
//!
//! A commit is contiguous and whole blocks; its records follow its header. It names the commit before it by the CRC of
//! that one's header, so that a chain of one generation cannot be mistaken for another.

use crate::codec::{Malformed, Reader, Sink};
use crate::crc;
use crate::record::RecordView;
use crate::superblock::Generation;
use base::{BLOCK_SIZE, LaneId, Uuid};

const MAGIC: u64 = u64::from_le_bytes(*b"POLLUXJC");
const VERSION: u16 = 1;
/// Bytes of a header; the payload follows it.
pub const HEADER_SIZE: usize = 128;
/// Every record starts at a multiple of this.
pub const RECORD_ALIGN: usize = 8;
/// No commit is longer, so that a reader never trusts a larger length.
pub const COMMIT_BLOCKS_MAX: u32 = 8 * 1024 * 1024 / BLOCK_SIZE as u32;

const _: () = assert!(HEADER_SIZE.is_multiple_of(RECORD_ALIGN) && HEADER_SIZE < BLOCK_SIZE);

/// What a commit is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitKind {
    Records,
    /// Fills the ring's end; `blocks` counts all of the rest, of which only the first is written.
    Wrap,
    /// No records: states what is durable.
    Marker,
    /// A marker that ends a clean stop.
    Stop,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitHeader {
    pub kind: CommitKind,
    pub namespace: Uuid,
    pub lane: LaneId,
    pub generation: Generation,
    pub sequence: u64,
    /// Blocks written to the ring in this generation before this commit; its place is this modulo the ring's length.
    pub position: u64,
    pub blocks: u32,
    pub payload_len: u32,
    pub payload_crc: u32,
    /// `header_crc` of the previous commit, or `first_link` of the generation.
    pub previous: u32,
    /// Everything up to this sequence was durable when this commit was closed.
    pub durable: u64,
}

/// What the first commit of a generation names as its predecessor.
pub fn first_link(generation: Generation) -> u32 {
    crc::crc32c(&generation.0.to_le_bytes())
}

impl CommitHeader {
    /// Writes the header and returns its CRC, which the next commit names.
    pub fn encode(&self, into: &mut [u8]) -> u32 {
        let mut bytes = Vec::with_capacity(HEADER_SIZE);
        bytes.u64(MAGIC);
        bytes.u16(VERSION);
        bytes.u16(match self.kind {
            CommitKind::Records => 0,
            CommitKind::Wrap => 1,
            CommitKind::Marker => 2,
            CommitKind::Stop => 3,
        });
        bytes.u16(self.lane.0);
        bytes.u16(0);
        bytes.uuid(self.namespace);
        bytes.put(&self.generation.0.to_le_bytes());
        bytes.u64(self.sequence);
        bytes.u64(self.position);
        bytes.u32(self.blocks);
        bytes.u32(self.payload_len);
        bytes.u32(self.payload_crc);
        bytes.u32(self.previous);
        bytes.u64(self.durable);
        bytes.resize(HEADER_SIZE, 0);
        crc::seal_block(&mut bytes);
        into[..HEADER_SIZE].copy_from_slice(&bytes);
        header_crc(&bytes)
    }

    /// Reads a header whose own CRC holds; whether it belongs to a chain is the reader's question.
    pub fn decode(block: &[u8]) -> Result<(CommitHeader, u32), Malformed> {
        let bytes = block.get(..HEADER_SIZE).ok_or(Malformed)?;
        let mut reader = Reader::new(&bytes[..HEADER_SIZE - 4]);
        if reader.u64()? != MAGIC || !crc::block_is_sealed(bytes) || reader.u16()? != VERSION {
            return Err(Malformed);
        }
        let kind = match reader.u16()? {
            0 => CommitKind::Records,
            1 => CommitKind::Wrap,
            2 => CommitKind::Marker,
            3 => CommitKind::Stop,
            _ => return Err(Malformed),
        };
        let lane = LaneId(reader.u16()?);
        let reserved = reader.u16()?;
        let header = CommitHeader {
            kind,
            lane,
            namespace: reader.uuid()?,
            generation: Generation(u128::from_le_bytes(reader.array()?)),
            sequence: reader.u64()?,
            position: reader.u64()?,
            blocks: reader.u32()?,
            payload_len: reader.u32()?,
            payload_crc: reader.u32()?,
            previous: reader.u32()?,
            durable: reader.u64()?,
        };
        reader.end()?;
        let room = u64::from(header.blocks) * BLOCK_SIZE as u64;
        let fits = HEADER_SIZE as u64 + u64::from(header.payload_len) <= room;
        let bounded = kind == CommitKind::Wrap || header.blocks <= COMMIT_BLOCKS_MAX;
        if reserved != 0 || header.blocks == 0 || !fits || !bounded {
            return Err(Malformed);
        }
        Ok((header, header_crc(bytes)))
    }

    /// Whether `commit` (header and payload, as long as `blocks` says) has the payload that was written.
    pub fn payload<'a>(&self, commit: &'a [u8]) -> Result<&'a [u8], Malformed> {
        let end = HEADER_SIZE + self.payload_len as usize;
        let payload = commit.get(HEADER_SIZE..end).ok_or(Malformed)?;
        if crc::crc32c(payload) == self.payload_crc { Ok(payload) } else { Err(Malformed) }
    }
}

fn header_crc(bytes: &[u8]) -> u32 {
    let tail = bytes.last_chunk::<4>().expect("a header has 128 bytes");
    u32::from_le_bytes(*tail)
}

/// The records of a commit's payload; the first that is not one ends the walk with an error.
pub struct Records<'a> {
    reader: Reader<'a>,
}

impl<'a> Records<'a> {
    pub fn new(payload: &'a [u8]) -> Records<'a> {
        Records { reader: Reader::new(payload) }
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<RecordView<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.reader.rest().is_empty() {
            return None;
        }
        let item = RecordView::decode(&mut self.reader);
        if item.is_err() {
            self.reader = Reader::new(&[]);
        }
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_round_trips_and_every_flipped_bit_shows() {
        let header = CommitHeader {
            kind: CommitKind::Records,
            namespace: Uuid(1),
            lane: LaneId(2),
            generation: Generation(3),
            sequence: 4,
            position: 5,
            blocks: 2,
            payload_len: 4000,
            payload_crc: 7,
            previous: 8,
            durable: 3,
        };
        let mut block = vec![0; BLOCK_SIZE];
        let crc = header.encode(&mut block);
        assert_eq!(CommitHeader::decode(&block), Ok((header, crc)));
        for bit in 0..HEADER_SIZE * 8 {
            block[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(CommitHeader::decode(&block), Err(Malformed), "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
        let too_long = CommitHeader { payload_len: 9000, ..header };
        too_long.encode(&mut block);
        assert_eq!(CommitHeader::decode(&block), Err(Malformed));
    }
}
