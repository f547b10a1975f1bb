//! The directory of a shard's checkpoint: what the shard owns and where each partition's blob lies. A directory's CRC
//! stands in the root that names it.

use crate::codec::{Malformed, Reader, Sink};
use crate::extent::{ExtentAddress, SlabId};
use base::{Block, PartitionId, ShardId};

const MAGIC: u64 = u64::from_le_bytes(*b"POLLUXDI");
const VERSION: u32 = 1;

/// Bytes on the medium that a directory names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlobPlace {
    /// The block its first byte lies in, and where in that block.
    pub block: Block,
    pub at: u16,
    pub len: u32,
    pub crc: u32,
}

/// The view's snapshot, kept by shard 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViewPlace {
    pub metadata_offset: i64,
    pub place: BlobPlace,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directory {
    pub shard: ShardId,
    pub slabs: Vec<SlabId>,
    /// The extents that hold this directory and the blobs it names.
    pub storage: Vec<ExtentAddress>,
    pub partitions: Vec<(PartitionId, BlobPlace)>,
    pub view: Option<ViewPlace>,
}

impl BlobPlace {
    fn encode(&self, sink: &mut (impl Sink + ?Sized)) {
        sink.u64(self.block.0);
        sink.u16(self.at);
        sink.u32(self.len);
        sink.u32(self.crc);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<BlobPlace, Malformed> {
        let place =
            BlobPlace { block: Block(reader.u64()?), at: reader.u16()?, len: reader.u32()?, crc: reader.u32()? };
        let sound = place.block.0 < 1 << 48 && usize::from(place.at) < base::BLOCK_SIZE && place.len > 0;
        if sound { Ok(place) } else { Err(Malformed) }
    }
}

impl Directory {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.u64(MAGIC);
        bytes.u32(VERSION);
        bytes.u16(self.shard.0);
        bytes.list(&self.slabs, |sink, slab| sink.u32(slab.0));
        bytes.list(&self.storage, |sink, extent| extent.encode(sink));
        bytes.list(&self.partitions, |sink, (partition, place)| {
            sink.partition(*partition);
            place.encode(sink);
        });
        bytes.option(&self.view, |sink, view| {
            sink.i64(view.metadata_offset);
            view.place.encode(sink);
        });
        bytes
    }

    pub fn decode(bytes: &[u8], shard: ShardId) -> Result<Directory, Malformed> {
        let mut reader = Reader::new(bytes);
        if (reader.u64()?, reader.u32()?, reader.u16()?) != (MAGIC, VERSION, shard.0) {
            return Err(Malformed);
        }
        let directory = Directory {
            shard,
            slabs: reader.list(|reader| reader.u32().map(SlabId))?,
            storage: reader.list(ExtentAddress::decode)?,
            partitions: reader.list(|reader| Ok((reader.partition()?, BlobPlace::decode(reader)?)))?,
            view: reader
                .option(|reader| Ok(ViewPlace { metadata_offset: reader.i64()?, place: BlobPlace::decode(reader)? }))?,
        };
        reader.end()?;
        Ok(directory)
    }
}
