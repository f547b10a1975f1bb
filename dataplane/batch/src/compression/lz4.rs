//! The LZ4 frame format as Kafka's clients read and write it since KIP-57: independent blocks, the right descriptor
//! checksum. What Kafka's reader refuses is refused here too, so that nothing is stored which its consumers cannot read.
//!
//! lz4_flex's own frame reader was tried first: it takes a frame without its end mark, and dependent blocks.

use super::FrameError;
use twox_hash::XxHash32;

const MAGIC: [u8; 4] = 0x184D_2204u32.to_le_bytes();
/// Version 1 and independent blocks; blocks of 64 KiB; and the checksum of these two bytes.
const DESCRIPTOR: [u8; 3] = [0x60, 0x40, 0x82];
const BLOCK_SIZE: usize = 64 * 1024;
/// The top bit of a block's size says that the block is stored as it is.
const STORED: u32 = 1 << 31;

mod flags {
    pub(super) const RESERVED: u8 = 0x03;
    pub(super) const CONTENT_SIZE: u8 = 0x08;
    pub(super) const BLOCK_CHECKSUM: u8 = 0x10;
    pub(super) const INDEPENDENT: u8 = 0x20;
    pub(super) const VERSION_SHIFT: u8 = 6;
}

/// A frame, block after block; one inflated block is held at a time.
pub(super) struct Lz4Reader<'a> {
    rest: &'a [u8],
    block_size_max: usize,
    block_checksums: bool,
    block: Vec<u8>,
    position: usize,
}

impl<'a> Lz4Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Result<Lz4Reader<'a>, &'static str> {
        const SHORT: &str = "it ends inside its descriptor";
        let (magic, rest) = bytes.split_first_chunk::<4>().ok_or(SHORT)?;
        if *magic != MAGIC {
            return Err("the magic is another");
        }
        let [flags, block] = *rest.first_chunk::<2>().ok_or(SHORT)?;
        if flags & flags::RESERVED != 0 || block & 0x8F != 0 {
            return Err("reserved bits are set");
        }
        if flags >> flags::VERSION_SHIFT != 1 {
            return Err("the frame version is another");
        }
        if flags & flags::INDEPENDENT == 0 {
            return Err("its blocks depend on each other");
        }
        // 4 to 7 stand for 64 KiB, 256 KiB, 1 MiB and 4 MiB.
        let size_code = usize::from(block >> 4);
        if size_code < 4 {
            return Err("the block size is none that exists");
        }
        let descriptor_size = if flags & flags::CONTENT_SIZE == 0 { 2 } else { 10 };
        let (descriptor, rest) = rest.split_at_checked(descriptor_size).ok_or(SHORT)?;
        let (checksum, rest) = rest.split_first().ok_or(SHORT)?;
        if *checksum != (XxHash32::oneshot(0, descriptor) >> 8) as u8 {
            return Err("the descriptor is damaged");
        }
        let block_checksums = flags & flags::BLOCK_CHECKSUM != 0;
        let block_size_max = 1 << (2 * size_code + 8);
        Ok(Lz4Reader { rest, block_size_max, block_checksums, block: Vec::new(), position: 0 })
    }

    /// Fills the front of `out`; no block of more than `allowed` bytes is inflated.
    pub(super) fn read(&mut self, out: &mut [u8], allowed: usize) -> Result<usize, FrameError> {
        while self.position == self.block.len() {
            if !self.next_block(allowed)? {
                return Ok(0);
            }
        }
        let ready = &self.block[self.position..];
        let count = ready.len().min(out.len());
        out[..count].copy_from_slice(&ready[..count]);
        self.position += count;
        Ok(count)
    }

    /// Inflates the next block; false at the end mark. A checksum of the content after it is not looked at, as in
    /// Kafka: the batch has one of its own.
    fn next_block(&mut self, allowed: usize) -> Result<bool, FrameError> {
        const SHORT: FrameError = FrameError::Corrupt("it ends before its end mark");
        let (size, rest) = self.rest.split_first_chunk::<4>().ok_or(SHORT)?;
        let size = u32::from_le_bytes(*size);
        let length = (size & !STORED) as usize;
        if length == 0 {
            return Ok(false);
        }
        if length > self.block_size_max {
            return Err(FrameError::Corrupt("a block is larger than its frame allows"));
        }
        let (packed, rest) = rest.split_at_checked(length).ok_or(SHORT)?;
        let rest = if self.block_checksums { check_block(packed, rest)? } else { rest };
        self.rest = rest;
        self.position = 0;
        if size & STORED != 0 {
            if length > allowed {
                return Err(FrameError::TooLarge);
            }
            self.block.clear();
            self.block.extend_from_slice(packed);
            return Ok(true);
        }
        let most = self.block_size_max.min(allowed);
        self.block.resize(most, 0);
        match lz4_flex::block::decompress_into(packed, &mut self.block) {
            Ok(inflated) => self.block.truncate(inflated),
            Err(lz4_flex::block::DecompressError::OutputTooSmall { .. }) if most < self.block_size_max => {
                return Err(FrameError::TooLarge);
            }
            Err(_) => return Err(FrameError::Corrupt("a block is damaged")),
        }
        Ok(true)
    }
}

fn check_block<'a>(packed: &[u8], rest: &'a [u8]) -> Result<&'a [u8], FrameError> {
    let (checksum, rest) = rest.split_first_chunk::<4>().ok_or(FrameError::Corrupt("it ends inside a checksum"))?;
    if u32::from_le_bytes(*checksum) == XxHash32::oneshot(0, packed) {
        Ok(rest)
    } else {
        Err(FrameError::Corrupt("a block's checksum is wrong"))
    }
}

pub(super) fn compress(raw: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&DESCRIPTOR);
    for block in raw.chunks(BLOCK_SIZE) {
        let start = out.len() + 4;
        out.resize(start + lz4_flex::block::get_maximum_output_size(block.len()), 0);
        let packed = lz4_flex::block::compress_into(block, &mut out[start..]);
        let packed = packed.expect("the output is as large as it may have to be");
        // A block that does not shrink is stored, so that no block is larger than the frame's block size.
        let size = if packed < block.len() {
            out.truncate(start + packed);
            packed as u32
        } else {
            out.truncate(start);
            out.extend_from_slice(block);
            block.len() as u32 | STORED
        };
        out[start - 4..start].copy_from_slice(&size.to_le_bytes());
    }
    out.extend_from_slice(&[0; 4]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(flags: u8, block: u8, extra: &[u8], body: &[u8]) -> Vec<u8> {
        let mut descriptor = vec![flags, block];
        descriptor.extend_from_slice(extra);
        let checksum = (XxHash32::oneshot(0, &descriptor) >> 8) as u8;
        [&MAGIC[..], &descriptor, &[checksum], body].concat()
    }

    fn read_all(bytes: &[u8]) -> Result<Vec<u8>, String> {
        let mut reader = Lz4Reader::new(bytes)?;
        let mut out = vec![0; 100];
        match reader.read(&mut out, 100) {
            Ok(count) => Ok(out[..count].to_vec()),
            Err(FrameError::Corrupt(reason)) => Err(reason.into()),
            Err(FrameError::TooLarge) => Err("too large".into()),
        }
    }

    #[test]
    fn the_descriptor_is_the_one_its_checksum_says() {
        assert_eq!((XxHash32::oneshot(0, &DESCRIPTOR[..2]) >> 8) as u8, DESCRIPTOR[2]);
    }

    #[test]
    fn descriptors_that_kafka_refuses_are_refused() {
        let stored = [2, 0, 0, 0x80, b'h', b'i', 0, 0, 0, 0];
        assert_eq!(read_all(&frame(0x60, 0x40, &[], &stored)).as_deref(), Ok(&b"hi"[..]));
        assert_eq!(read_all(&frame(0x68, 0x70, &[0; 8], &stored)).as_deref(), Ok(&b"hi"[..]), "a content size");
        for (flags, block) in [(0x40, 0x40), (0x20, 0x40), (0xA0, 0x40), (0x61, 0x40), (0x62, 0x40)] {
            assert!(read_all(&frame(flags, block, &[], &stored)).is_err(), "{flags:#x} {block:#x}");
        }
        for block in [0x30, 0xC0, 0x41] {
            assert!(read_all(&frame(0x60, block, &[], &stored)).is_err(), "{block:#x}");
        }
        let mut damaged = frame(0x60, 0x40, &[], &stored);
        damaged[6] ^= 1;
        assert!(read_all(&damaged).is_err());
    }

    #[test]
    fn block_checksums_are_checked() {
        let mut body = vec![2, 0, 0, 0x80, b'h', b'i'];
        body.extend(XxHash32::oneshot(0, b"hi").to_le_bytes());
        body.extend([0; 4]);
        assert_eq!(read_all(&frame(0x70, 0x40, &[], &body)).as_deref(), Ok(&b"hi"[..]));
        body[7] ^= 1;
        assert!(read_all(&frame(0x70, 0x40, &[], &body)).is_err());
    }
}
