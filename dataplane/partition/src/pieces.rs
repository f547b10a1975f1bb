//! Batches that lie in several consecutive pieces of memory.

use arena::BufferRef;
use base::Offset;
use batch::{BatchHeader, HEADER_SIZE};

/// The header of the batch that begins `at` bytes into the pieces, where all of it is there.
pub(crate) fn header_at(pieces: &[BufferRef], mut at: usize) -> Option<BatchHeader> {
    let mut bytes = [0u8; HEADER_SIZE];
    let mut filled = 0;
    for piece in pieces {
        if at >= piece.len() {
            at -= piece.len();
            continue;
        }
        let take = (piece.len() - at).min(HEADER_SIZE - filled);
        bytes[filled..filled + take].copy_from_slice(&piece[at..at + take]);
        filled += take;
        at = 0;
        if filled == HEADER_SIZE {
            return BatchHeader::from_bytes(&bytes).ok();
        }
    }
    None
}

pub(crate) fn total(pieces: &[BufferRef]) -> usize {
    pieces.iter().map(|piece| piece.len()).sum()
}

/// Where the whole batches of the pieces end: in bytes, and the offset that follows them.
pub(crate) fn whole_batches(pieces: &[BufferRef]) -> Option<(usize, Offset)> {
    let (mut at, mut next, total) = (0, None, total(pieces));
    while let Some(header) = header_at(pieces, at) {
        let end = at + header.size as usize;
        if end > total {
            break;
        }
        at = end;
        next = Some(header.next_offset());
    }
    next.map(|next| (at, next))
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::WallMillis;
    use batch::BatchBuilder;

    #[test]
    fn headers_are_found_across_pieces_of_any_length() {
        let mut bytes = Vec::new();
        for base in 0..3 {
            let mut builder = BatchBuilder::new();
            builder.base_offset(Offset(base)).append(WallMillis(1), None, Some(b"some value"), &[]);
            bytes.extend(builder.build());
        }
        let size = bytes.len() / 3;
        for length in [1, 7, 60, 61, 62, 100, 1000] {
            let pieces: Vec<BufferRef> = bytes.chunks(length).map(|chunk| chunk.to_vec().into()).collect();
            assert_eq!(header_at(&pieces, size).map(|header| header.base_offset), Some(Offset(1)), "{length}");
            assert_eq!(whole_batches(&pieces), Some((3 * size, Offset(3))));
            assert_eq!(header_at(&pieces, 3 * size), None);
        }
        let cut: Vec<BufferRef> = vec![bytes[..2 * size + 70].to_vec().into()];
        assert_eq!(whole_batches(&cut), Some((2 * size, Offset(2))));
    }
}
