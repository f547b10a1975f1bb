//! More bytes of an answer, as its socket drains.

use crate::operation::{Operation, OperationToken};
use crate::partitions::Partitions;
use crate::reading::Pieces;
use crate::stretches;
use arena::BufferRef;
use handoff::{FetchError, GatherId, Outcome, PartitionError, ReadWindow, Stretch, Window};
use nvme_log::{Part, ReadError, Store};

#[derive(Debug)]
pub(crate) struct WindowOperation {
    gather: GatherId,
    pieces: Pieces,
    /// Of each piece: the stretch that it belongs to, and what of it was asked for.
    cuts: Vec<(Stretch, usize, usize)>,
    rest: Vec<Stretch>,
}

impl WindowOperation {
    pub(crate) fn on_read(&mut self, piece: Option<usize>, result: Result<BufferRef, ReadError>) {
        self.pieces.on_read(piece.expect("a window reads pieces only"), result);
    }
}

impl Partitions {
    pub(crate) fn on_read_window(&mut self, store: &mut Store, command: ReadWindow) {
        let ReadWindow { gather, stretches, bytes_max } = command;
        let (mut parts, mut cuts, mut rest, mut left) = (Vec::new(), Vec::new(), Vec::new(), bytes_max);
        for stretch in stretches {
            if left == 0 {
                rest.push(stretch);
                continue;
            }
            let Some((opened, skip)) = self.open_stretch(store, &stretch) else {
                let result = Err(FetchError::Partition(self.why_not(&stretch)));
                return self.answer(gather.core, Outcome::Window { gather, result });
            };
            let take = stretch.length.min(left);
            left -= take;
            parts.push(Part::Device(opened));
            cuts.push((stretch, skip, take as usize));
            if take < stretch.length {
                rest.push(stretches::after(&stretch, take));
            }
        }
        let operation = WindowOperation { gather, pieces: Pieces::default(), cuts, rest };
        let token = self.begin(Operation::Window(operation));
        let pieces = Pieces::begin(self, store, token, 0, parts);
        if let Some(Some(Operation::Window(operation))) = self.operations.get_mut(token.0) {
            operation.pieces = pieces;
        }
        self.advance_window(token);
    }

    fn open_stretch(&self, store: &Store, stretch: &Stretch) -> Option<(nvme_log::Stretch, usize)> {
        let token = self.by_id.get(&stretch.partition)?;
        let replica = self.replica(*token).filter(|replica| !replica.failed)?;
        let (opened, skip) = stretches::open(stretch)?;
        (opened.slot() == replica.log && store.is_open(replica.log) && !self.stopped).then_some((opened, skip))
    }

    fn why_not(&self, stretch: &Stretch) -> PartitionError {
        let known = self.by_id.get(&stretch.partition).and_then(|token| self.replica(*token));
        match known {
            None => PartitionError::Unknown,
            Some(_) => PartitionError::Storage,
        }
    }

    pub(crate) fn advance_window(&mut self, token: OperationToken) {
        match self.operations.get(token.0) {
            Some(Some(Operation::Window(operation))) if operation.pieces.is_complete() => {}
            _ => return,
        }
        let Some(Operation::Window(WindowOperation { gather, pieces, cuts, mut rest })) = self.take(token) else {
            unreachable!("it was just looked at")
        };
        self.end(token);
        let (bytes, failure) = pieces.into_bytes();
        let result = match (bytes.len(), failure) {
            (0, Some(error)) => Err(error),
            (read, failure) => {
                if failure.is_some() {
                    // What was read is sent; the rest is asked for again, and told then.
                    let (stretch, ..) = cuts[read];
                    let unread = cuts[read..].iter().map(|(stretch, ..)| *stretch);
                    rest.retain(|other| {
                        !is_rest_of(other, &stretch) && !cuts[read..].iter().any(|cut| is_rest_of(other, &cut.0))
                    });
                    rest.splice(0..0, unread);
                }
                let cut = |(bytes, (_, skip, take)): (BufferRef, &(Stretch, usize, usize))| {
                    bytes.slice(*skip..skip + take).into_parcel()
                };
                Ok(Window { pieces: bytes.into_iter().zip(&cuts).map(cut).collect(), rest })
            }
        };
        self.answer(gather.core, Outcome::Window { gather, result });
    }
}

fn is_rest_of(rest: &Stretch, whole: &Stretch) -> bool {
    rest.partition == whole.partition && rest.inside[..5] == whole.inside[..5] && rest.inside[5] > whole.inside[5]
}
