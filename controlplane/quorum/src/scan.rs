//! Reading batches back from a file in pieces: a read may begin before the first wanted batch and end inside one.

use crate::disk::FileName;
use base::Offset;
use batch::{BatchError, BatchView};
use bytes::Bytes;

/// How much one read asks for, unless a single batch is larger.
pub(crate) const PIECE: u32 = 1 << 20;

/// Where a read of batches stands.
#[derive(Clone, Debug)]
pub(crate) struct Scan {
    pub(crate) file: FileName,
    pub(crate) position: u64,
    pub(crate) length: u32,
    /// Batches wholly before this offset are passed over.
    from: Offset,
}

impl Scan {
    pub(crate) fn new(file: FileName, position: u64, length: u32, from: Offset) -> Scan {
        Scan { file, position, length: length.max(1), from }
    }

    /// Takes in what a read at `position` found, and gives the whole wanted batches in it. Without any, the scan has moved
    /// on, and its next read gets further; a file that ends there is an error.
    pub(crate) fn absorb(&mut self, bytes: &Bytes) -> Result<Vec<Bytes>, String> {
        let mut found = Vec::new();
        let mut rest = &bytes[..];
        loop {
            match BatchView::parse(rest) {
                Ok((view, after)) => {
                    view.check_crc().and_then(|()| view.check_counts()).map_err(|e| self.broken(e))?;
                    if view.last_offset() >= self.from {
                        found.push(bytes.slice_ref(view.bytes()));
                    }
                    self.position += view.size() as u64;
                    rest = after;
                }
                Err(BatchError::Incomplete { need, .. }) => {
                    if found.is_empty() && bytes.len() < self.length as usize {
                        return Err(format!("{} ends at {}", self.file, self.position + rest.len() as u64));
                    }
                    self.length = PIECE.max(u32::try_from(need).map_err(|_| self.broken("a batch above 4 GiB"))?);
                    return Ok(found);
                }
                Err(error) => return Err(self.broken(error)),
            }
        }
    }

    fn broken(&self, error: impl std::fmt::Display) -> String {
        format!("{} at {}: {error}", self.file, self.position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{LeaderEpoch, WallMillis};

    #[test]
    fn pieces_of_any_size_give_every_wanted_batch_once() {
        let record = Bytes::from(vec![7u8; 300]);
        let batches: Vec<Bytes> = (0..20)
            .map(|i| crate::records::build(Offset(i), LeaderEpoch(1), WallMillis(i), std::slice::from_ref(&record)))
            .collect();
        let file: Bytes = batches.concat().into();
        for length in [1u32, 60, 61, 300, 1000, 5000, 100_000] {
            let mut scan = Scan::new(FileName::Log(Offset(0)), 0, length, Offset(5));
            let mut found = Vec::new();
            while found.len() < 15 {
                let from = scan.position as usize;
                let piece = file.slice(from..(from + scan.length as usize).min(file.len()));
                found.extend(scan.absorb(&piece).unwrap());
            }
            assert_eq!(found, batches[5..], "pieces of {length}");
        }
        let mut scan = Scan::new(FileName::Log(Offset(0)), 0, 1000, Offset(0));
        assert!(scan.absorb(&file.slice(..100)).is_err(), "a file that ends inside its first batch");
    }
}
