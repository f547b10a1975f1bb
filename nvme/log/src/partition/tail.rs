//! The newest bytes of a partition, in memory: everything that cannot be read from the device yet, and what the tail
//! cache still holds. Positions count from the log's first byte ever.

use arena::BufferRef;
use base::Offset;
use std::collections::VecDeque;

#[derive(Clone, Debug)]
pub enum TailBytes {
    /// In the commit that is being built, at this place of its buffer.
    Staged {
        at: usize,
    },
    Ready(BufferRef),
}

/// A batch, or the rest of one whose start is on the device.
#[derive(Clone, Debug)]
pub struct TailPiece {
    pub position: u64,
    pub base: Offset,
    pub last: Offset,
    pub is_rest: bool,
    pub len: u32,
    pub bytes: TailBytes,
}

impl TailPiece {
    pub fn end(&self) -> u64 {
        self.position + u64::from(self.len)
    }

    pub fn ready(&self) -> Option<&BufferRef> {
        match &self.bytes {
            TailBytes::Ready(bytes) => Some(bytes),
            TailBytes::Staged { .. } => None,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Tail {
    pub pieces: VecDeque<TailPiece>,
}

impl Tail {
    pub fn push(&mut self, piece: TailPiece) {
        debug_assert!(self.pieces.back().is_none_or(|last| last.end() <= piece.position));
        self.pieces.push_back(piece);
    }

    /// The index of the piece that holds the byte at `position`.
    pub fn at_position(&self, position: u64) -> Option<usize> {
        let index = self.pieces.partition_point(|piece| piece.end() <= position);
        self.pieces.get(index).filter(|piece| piece.position <= position).map(|_| index)
    }

    /// The index of the first piece that ends beyond `offset`; it may be the rest of a batch.
    pub fn at_offset(&self, offset: Offset) -> Option<usize> {
        let index = self.pieces.partition_point(|piece| piece.last < offset);
        (index < self.pieces.len()).then_some(index)
    }

    /// The commit's buffer is final: pieces that lay in it become views of it.
    pub fn resolve(&mut self, position: u64, buffer: &BufferRef) {
        let Some(index) = self.at_position(position) else { return };
        let piece = &mut self.pieces[index];
        if let TailBytes::Staged { at } = piece.bytes {
            piece.bytes = TailBytes::Ready(buffer.slice(at..at + piece.len as usize));
        }
    }

    /// The end of the contiguous ready bytes from `position` on, or `position` where there are none.
    pub fn ready_until(&self, position: u64) -> u64 {
        let Some(mut index) = self.at_position(position) else { return position };
        let mut end = position;
        while let Some(piece) = self.pieces.get(index) {
            if piece.ready().is_none() || piece.position > end {
                break;
            }
            end = piece.end();
            index += 1;
        }
        end
    }

    /// Copies `from..` into `into`, which the tail holds wholly; staged bytes are taken from the commit being built.
    /// Says whether they were all there.
    pub fn copy(&self, from: u64, into: &mut [u8], staged: &[u8]) -> bool {
        let Some(mut index) = self.at_position(from) else { return into.is_empty() };
        let mut at = from;
        let mut filled = 0;
        while filled < into.len() {
            let Some(piece) = self.pieces.get(index).filter(|piece| piece.position <= at) else { return false };
            let skip = (at - piece.position) as usize;
            let count = (piece.len as usize - skip).min(into.len() - filled);
            let bytes: &[u8] = match &piece.bytes {
                TailBytes::Ready(bytes) => bytes,
                TailBytes::Staged { at } => match staged.get(*at..*at + piece.len as usize) {
                    Some(bytes) => bytes,
                    None => return false,
                },
            };
            into[filled..filled + count].copy_from_slice(&bytes[skip..skip + count]);
            filled += count;
            at += count as u64;
            index += 1;
        }
        true
    }

    /// Drops everything from `position` on; a cut is at a batch's start.
    pub fn cut(&mut self, position: u64) {
        while self.pieces.back().is_some_and(|piece| piece.end() > position) {
            self.pieces.pop_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_found_by_position_and_copied_across_pieces() {
        let mut tail = Tail::default();
        for (n, (position, len)) in [(100u64, 10u32), (110, 5), (115, 20)].into_iter().enumerate() {
            let bytes = (position..position + u64::from(len)).map(|p| p as u8).collect();
            let offset = Offset(n as i64);
            tail.push(TailPiece {
                position,
                base: offset,
                last: offset,
                is_rest: false,
                len,
                bytes: TailBytes::Ready(BufferRef::from_vec(bytes)),
            });
        }
        let mut into = [0; 12];
        assert!(tail.copy(108, &mut into, &[]));
        assert_eq!(into[0], 108);
        assert_eq!(into[11], 119);
        assert!(!tail.copy(130, &mut into, &[]));
        assert_eq!(tail.ready_until(104), 135);
        assert_eq!(tail.ready_until(99), 99);
        assert_eq!(tail.at_offset(Offset(1)), Some(1));
        tail.cut(115);
        assert_eq!(tail.pieces.len(), 2);
    }
}
