//! The contents of a namespace as a sparse map of blocks: what the simulated device keeps and what a replayed recording
//! becomes. A copy shares its blocks, so a thousand crash images of one run cost little.

use base::{BLOCK_SIZE, Block, BlockRange};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::Arc;

pub(crate) type BlockBytes = [u8; BLOCK_SIZE];
/// One block's contents; `None` reads as zeroes and takes no memory.
pub(crate) type Contents = Option<Arc<BlockBytes>>;

/// A block's worth of a slice, or nothing where it is all zeroes.
pub(crate) fn contents_of(bytes: &[u8]) -> Contents {
    let block: &BlockBytes = bytes.try_into().expect("contents are one block");
    if block.iter().all(|byte| *byte == 0) { None } else { Some(Arc::new(*block)) }
}

/// Splits a write's pieces into blocks.
pub(crate) fn blocks_of<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Vec<Contents> {
    pieces.flat_map(|piece| piece.chunks_exact(BLOCK_SIZE)).map(contents_of).collect()
}

#[derive(Clone)]
pub struct Medium {
    blocks: u64,
    written: BTreeMap<u64, Arc<BlockBytes>>,
}

impl Medium {
    pub fn new(blocks: u64) -> Medium {
        Medium { blocks, written: BTreeMap::new() }
    }

    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Blocks that hold something other than zeroes.
    pub fn used(&self) -> usize {
        self.written.len()
    }

    pub fn grow_to(&mut self, blocks: u64) {
        self.blocks = self.blocks.max(blocks);
    }

    pub(crate) fn get(&self, block: u64) -> Option<&Arc<BlockBytes>> {
        self.written.get(&block)
    }

    pub(crate) fn set(&mut self, block: u64, contents: Contents) {
        assert!(block < self.blocks, "block {block} is past the end of the medium");
        match contents {
            Some(bytes) => self.written.insert(block, bytes),
            None => self.written.remove(&block),
        };
    }

    /// Fills `into` with the blocks from `start` on; what was never written reads as zeroes.
    pub fn read(&self, start: Block, into: &mut [u8]) {
        for (index, chunk) in into.chunks_mut(BLOCK_SIZE).enumerate() {
            match self.get(start.0 + index as u64) {
                Some(bytes) => chunk.copy_from_slice(&bytes[..chunk.len()]),
                None => chunk.fill(0),
            }
        }
    }

    pub fn read_range(&self, range: BlockRange) -> Vec<u8> {
        let mut bytes = vec![0; range.bytes() as usize];
        self.read(range.start, &mut bytes);
        bytes
    }

    /// Writes whole blocks from `start` on.
    pub fn write(&mut self, start: Block, bytes: &[u8]) {
        for (index, chunk) in bytes.chunks_exact(BLOCK_SIZE).enumerate() {
            self.set(start.0 + index as u64, contents_of(chunk));
        }
    }

    /// The numbers of the blocks in the range that hold something other than zeroes.
    pub(crate) fn used_in(&self, range: BlockRange) -> impl Iterator<Item = u64> + '_ {
        self.written.range(range.start.0..range.end().0).map(|(block, _)| *block)
    }

    /// Reads a namespace file into memory, zero blocks left out.
    pub fn load(file: &File) -> io::Result<Medium> {
        let mut medium = Medium::new(file.metadata()?.len() / BLOCK_SIZE as u64);
        let mut buffer = vec![0u8; 256 * BLOCK_SIZE];
        let mut at = 0;
        while at < medium.blocks {
            let count = (medium.blocks - at).min(256) as usize;
            let bytes = &mut buffer[..count * BLOCK_SIZE];
            read_exact_at(file, bytes, at * BLOCK_SIZE as u64)?;
            medium.write(Block(at), bytes);
            at += count as u64;
        }
        Ok(medium)
    }

    /// Makes `file` hold exactly this medium, holes where nothing was written, so that the executable can be started on
    /// a crash image.
    pub fn store(&self, file: &File) -> io::Result<()> {
        use std::os::unix::fs::FileExt;
        file.set_len(0)?;
        file.set_len(self.blocks * BLOCK_SIZE as u64)?;
        for (block, bytes) in &self.written {
            file.write_all_at(&bytes[..], block * BLOCK_SIZE as u64)?;
        }
        Ok(())
    }
}

fn read_exact_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    file.read_exact_at(bytes, at)
}

impl PartialEq for Medium {
    fn eq(&self, other: &Medium) -> bool {
        self.blocks == other.blocks && self.written == other.written
    }
}

impl std::fmt::Debug for Medium {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Medium({} blocks, {} used)", self.blocks, self.used())
    }
}
