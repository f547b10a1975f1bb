//! A shard's root block: which checkpoint is its newest, and from where its lane must be replayed.

use crate::codec::{Malformed, Reader, Sink};
use crate::crc;
use crate::superblock::Generation;
use base::{BLOCK_SIZE, Block, LaneId, ShardId, Uuid};

const MAGIC: u64 = u64::from_le_bytes(*b"POLLUXRT");
const VERSION: u32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root {
    pub namespace: Uuid,
    pub shard: ShardId,
    /// The slot it was written to.
    pub slot: u8,
    /// Rises with every checkpoint of the shard.
    pub checkpoint: u64,
    pub generation: Generation,
    pub lane: LaneId,
    /// Every commit below this sequence is in the checkpoint; replay starts with it, at `position` of the ring.
    pub next_sequence: u64,
    pub position: u64,
    /// What the commit at `next_sequence` names as its predecessor.
    pub previous: u32,
    /// Versions and tenancies below these were given out.
    pub next_version: u64,
    pub next_tenancy: u64,
    pub directory: Block,
    /// Zero where the shard holds nothing.
    pub directory_len: u32,
    pub directory_crc: u32,
}

/// What a root block holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootReading {
    Empty,
    Present(Root),
    Unreadable,
}

impl Root {
    pub fn encode(&self) -> Vec<u8> {
        let mut block = Vec::with_capacity(BLOCK_SIZE);
        block.u64(MAGIC);
        block.u32(VERSION);
        block.uuid(self.namespace);
        block.u16(self.shard.0);
        block.u8(self.slot);
        block.u64(self.checkpoint);
        block.put(&self.generation.0.to_le_bytes());
        block.u16(self.lane.0);
        block.u64(self.next_sequence);
        block.u64(self.position);
        block.u32(self.previous);
        block.u64(self.next_version);
        block.u64(self.next_tenancy);
        block.u64(self.directory.0);
        block.u32(self.directory_len);
        block.u32(self.directory_crc);
        block.resize(BLOCK_SIZE, 0);
        crc::seal_block(&mut block);
        block
    }

    fn decode(block: &[u8]) -> Result<Root, Malformed> {
        if block.len() != BLOCK_SIZE || !crc::block_is_sealed(block) {
            return Err(Malformed);
        }
        let mut reader = Reader::new(&block[..BLOCK_SIZE - 4]);
        if (reader.u64()?, reader.u32()?) != (MAGIC, VERSION) {
            return Err(Malformed);
        }
        let root = Root {
            namespace: reader.uuid()?,
            shard: ShardId(reader.u16()?),
            slot: reader.u8()?,
            checkpoint: reader.u64()?,
            generation: Generation(u128::from_le_bytes(reader.array()?)),
            lane: LaneId(reader.u16()?),
            next_sequence: reader.u64()?,
            position: reader.u64()?,
            previous: reader.u32()?,
            next_version: reader.u64()?,
            next_tenancy: reader.u64()?,
            directory: Block(reader.u64()?),
            directory_len: reader.u32()?,
            directory_crc: reader.u32()?,
        };
        reader.end()?;
        Ok(root)
    }

    /// Reads the block of a shard's slot in a namespace; a root that belongs elsewhere is unreadable here.
    pub fn read(block: &[u8], namespace: Uuid, shard: ShardId, slot: u8) -> RootReading {
        match Root::decode(block) {
            Ok(root) if (root.namespace, root.shard, root.slot) == (namespace, shard, slot) => {
                RootReading::Present(root)
            }
            Ok(_) => RootReading::Unreadable,
            Err(Malformed) if block.iter().all(|b| *b == 0) => RootReading::Empty,
            Err(Malformed) => RootReading::Unreadable,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_is_read_only_where_it_belongs() {
        let root = Root {
            namespace: Uuid(1),
            shard: ShardId(2),
            slot: 1,
            checkpoint: 3,
            generation: Generation(4),
            lane: LaneId(0),
            next_sequence: 5,
            position: 6,
            previous: 7,
            next_version: 11,
            next_tenancy: 12,
            directory: Block(8),
            directory_len: 9,
            directory_crc: 10,
        };
        let mut block = root.encode();
        assert_eq!(Root::read(&block, Uuid(1), ShardId(2), 1), RootReading::Present(root));
        assert_eq!(Root::read(&block, Uuid(1), ShardId(2), 0), RootReading::Unreadable);
        assert_eq!(Root::read(&block, Uuid(1), ShardId(3), 1), RootReading::Unreadable);
        assert_eq!(Root::read(&vec![0; BLOCK_SIZE], Uuid(1), ShardId(2), 1), RootReading::Empty);
        block[50] ^= 1;
        assert_eq!(Root::read(&block, Uuid(1), ShardId(2), 1), RootReading::Unreadable);
    }
}
