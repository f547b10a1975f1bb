//! Pieces of an answer, some of which are on their way from the device.

use crate::operation::OperationToken;
use crate::partitions::Partitions;
use crate::refusals::of_read;
use arena::BufferRef;
use handoff::FetchError;
use nvme_log::{Part, ReadError, Store};

#[derive(Debug)]
enum Piece {
    Here(BufferRef),
    Coming,
    Failed(ReadError),
}

/// Consecutive bytes of a log.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    pieces: Vec<Piece>,
    missing: usize,
}

impl Pieces {
    /// Begins to read whatever is not in memory.
    pub(crate) fn begin(
        partitions: &mut Partitions,
        store: &mut Store,
        operation: OperationToken,
        place: usize,
        parts: Vec<Part>,
    ) -> Pieces {
        let mut pieces = Pieces::default();
        for (number, part) in parts.into_iter().enumerate() {
            match part {
                Part::Memory(bytes) => pieces.pieces.push(Piece::Here(bytes)),
                Part::Device(stretch) => {
                    partitions.read_piece(store, stretch, operation, place, number);
                    pieces.pieces.push(Piece::Coming);
                    pieces.missing += 1;
                }
            }
        }
        pieces
    }

    pub(crate) fn on_read(&mut self, piece: usize, result: Result<BufferRef, ReadError>) {
        assert!(matches!(self.pieces[piece], Piece::Coming), "a piece comes once");
        self.missing -= 1;
        self.pieces[piece] = match result {
            Ok(bytes) => Piece::Here(bytes),
            Err(error) => Piece::Failed(error),
        };
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.missing == 0
    }

    /// The extent was given away while it was read: the log is to be asked again.
    pub(crate) fn is_gone(&self) -> bool {
        self.pieces.iter().any(|piece| matches!(piece, Piece::Failed(ReadError::Gone)))
    }

    /// The bytes before the first piece that could not be read, and why that was.
    pub(crate) fn into_bytes(self) -> (Vec<BufferRef>, Option<FetchError>) {
        let mut bytes = Vec::with_capacity(self.pieces.len());
        for piece in self.pieces {
            match piece {
                Piece::Here(piece) => bytes.push(piece),
                Piece::Failed(error) => return (bytes, Some(of_read(error))),
                Piece::Coming => unreachable!("it is complete"),
            }
        }
        (bytes, None)
    }
}
