//! A batch of records that is gathered or under way, with all that hangs on it.

use super::{Encoded, Machine};
use base::{Monotonic, Offset, WallMillis};
use batch::{BatchBuilder, Compression, HEADER_SIZE};

/// An answer that waits for an append.
pub(crate) struct Held<M: Machine> {
    pub to: M::To,
    pub answer: M::Answer,
    /// The client is told to come again by then, though the append may still succeed.
    pub deadline: Monotonic,
}

/// What an operation left behind beside its records.
pub(crate) struct Operation<M: Machine> {
    pub reply: Option<Held<M>>,
    pub effect: Option<M::Effect>,
}

pub(crate) struct Pending<M: Machine> {
    /// The offset that its first record will have.
    pub first: Offset,
    builder: BatchBuilder,
    /// One for each record, in order.
    pub undos: Vec<M::Undo>,
    pub operations: Vec<Operation<M>>,
}

/// The most bytes that a record takes beside its key and value: its length, attributes, deltas, two lengths and the count
/// of headers.
const RECORD_OVERHEAD_MAX: usize = 5 + 1 + 10 + 5 + 5 + 5 + 1;

pub(crate) fn size_most(record: &Encoded) -> usize {
    record.key.len() + record.value.as_ref().map_or(0, |value| value.len()) + RECORD_OVERHEAD_MAX
}

impl<M: Machine> Pending<M> {
    pub fn new(first: Offset, compression: Compression) -> Pending<M> {
        let mut builder = BatchBuilder::new();
        builder.compression(compression);
        Pending { first, builder, undos: Vec::new(), operations: Vec::new() }
    }

    /// Whether so many more bytes of records fit.
    pub fn has_room(&self, bytes: usize, bytes_max: usize) -> bool {
        self.builder.size() + bytes <= bytes_max
    }

    pub fn append(&mut self, at: WallMillis, record: &Encoded, undo: M::Undo) {
        self.builder.append(at, Some(&record.key), record.value.as_deref(), &[]);
        self.undos.push(undo);
    }

    pub fn bytes(&self) -> bytes::Bytes {
        assert!(self.builder.count() as usize == self.undos.len() && !self.undos.is_empty());
        self.builder.build().into()
    }

    /// The earliest deadline of its answers.
    pub fn next_deadline(&self) -> Option<Monotonic> {
        self.operations.iter().find_map(|operation| operation.reply.as_ref().map(|held| held.deadline))
    }

    /// Answers whose time is up.
    pub fn take_late(&mut self, now: Monotonic, late: &mut Vec<(M::To, M::Answer)>) {
        for operation in &mut self.operations {
            match &operation.reply {
                Some(held) if held.deadline <= now => {}
                Some(_) => return,
                None => continue,
            }
            late.extend(operation.reply.take().map(|held| (held.to, held.answer)));
        }
    }
}

/// Whether an operation of this size fits any batch at all.
pub(crate) fn fits_a_batch(bytes: usize, bytes_max: usize) -> bool {
    HEADER_SIZE + bytes <= bytes_max
}
