//! Snappy in the framing of the xerial library, which Kafka's Java clients write: a header, then blocks with their
//! length before them. Other clients write one raw block without framing; both are read.

use super::FrameError;

/// The header's first eight bytes. Two version numbers follow, the second being the oldest that can read the stream.
const MAGIC: [u8; 8] = [0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0];
const HEADER_SIZE: usize = 16;
const VERSION: u32 = 1;
/// The block size that Java's writer uses.
const BLOCK_SIZE: usize = 32 * 1024;
/// No element of Snappy gives more than 64 bytes for 3, so a block that claims more lies about its length.
const EXPANSION_MAX: usize = 22;

/// Block after block; one inflated block is held at a time.
pub(super) struct SnappyReader<'a> {
    rest: &'a [u8],
    framed: bool,
    decoder: snap::raw::Decoder,
    block: Vec<u8>,
    position: usize,
}

impl<'a> SnappyReader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Result<SnappyReader<'a>, &'static str> {
        if bytes.is_empty() {
            return Err("there is nothing");
        }
        let framed = bytes.starts_with(&MAGIC);
        let rest = if framed { after_header(bytes)? } else { bytes };
        Ok(SnappyReader { rest, framed, decoder: snap::raw::Decoder::new(), block: Vec::new(), position: 0 })
    }

    /// Fills the front of `out`; no block of more than `allowed` bytes is inflated.
    pub(super) fn read(&mut self, out: &mut [u8], allowed: usize) -> Result<usize, FrameError> {
        while self.position == self.block.len() {
            let Some(packed) = self.next_block().map_err(FrameError::Corrupt)? else { return Ok(0) };
            let size = snap::raw::decompress_len(packed).map_err(|_| FrameError::Corrupt("a block has no length"))?;
            if size > allowed {
                return Err(FrameError::TooLarge);
            }
            if size > packed.len().saturating_mul(EXPANSION_MAX) {
                return Err(FrameError::Corrupt("a block claims more than it can hold"));
            }
            self.block.resize(size, 0);
            self.position = 0;
            let inflated = self.decoder.decompress(packed, &mut self.block);
            inflated.map_err(|_| FrameError::Corrupt("a block is damaged"))?;
        }
        let ready = &self.block[self.position..];
        let count = ready.len().min(out.len());
        out[..count].copy_from_slice(&ready[..count]);
        self.position += count;
        Ok(count)
    }

    fn next_block(&mut self) -> Result<Option<&'a [u8]>, &'static str> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        if !self.framed {
            return Ok(Some(std::mem::take(&mut self.rest)));
        }
        // Streams that were written one after the other: the next header stands where a length would.
        while self.rest.starts_with(&MAGIC) {
            self.rest = after_header(self.rest)?;
        }
        // Java's reader takes up to three bytes after the last block for the end.
        let Some((length, rest)) = self.rest.split_first_chunk::<4>() else { return Ok(None) };
        let length = usize::try_from(i32::from_be_bytes(*length)).map_err(|_| "a block's length is negative")?;
        let (block, rest) = rest.split_at_checked(length).ok_or("it ends inside a block")?;
        self.rest = rest;
        Ok(Some(block))
    }
}

fn after_header(bytes: &[u8]) -> Result<&[u8], &'static str> {
    let (header, rest) = bytes.split_first_chunk::<HEADER_SIZE>().ok_or("it ends inside its header")?;
    let oldest = u32::from_be_bytes([header[8], header[9], header[10], header[11]]);
    if oldest < VERSION { Err("its version is none that exists") } else { Ok(rest) }
}

pub(super) fn compress(raw: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&VERSION.to_be_bytes());
    out.extend_from_slice(&VERSION.to_be_bytes());
    let mut encoder = snap::raw::Encoder::new();
    for block in raw.chunks(BLOCK_SIZE) {
        let start = out.len() + 4;
        out.resize(start + snap::raw::max_compress_len(block.len()), 0);
        let size = encoder.compress(block, &mut out[start..]).expect("the output is as large as it may have to be");
        let length = i32::try_from(size).expect("a block of 32 KiB grows little");
        out[start - 4..start].copy_from_slice(&length.to_be_bytes());
        out.truncate(start + size);
    }
}
