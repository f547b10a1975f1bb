//! A partition's log as a stream of batches: whole ones are checked as their bytes come.

use base::{LeaderEpoch, Offset, WallMillis};
use batch::{BatchError, BatchView};

/// No batch is longer than half a slab of the largest kind; a length beyond it is nonsense that the checksums let by.
const BATCH_MAX: usize = 512 << 20;

/// A batch that went by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// In the partition's log.
    pub position: u64,
    pub end: u64,
    pub base: Offset,
    pub largest: WallMillis,
    pub epoch: LeaderEpoch,
}

/// Takes every whole batch, with its position.
pub(crate) type Visit<'a> = &'a mut dyn FnMut(u64, &BatchView<'_>);

pub(crate) struct BatchStream {
    /// The position of `rest`'s first byte.
    at: u64,
    rest: Vec<u8>,
    /// No batch begins below it.
    pub next: Offset,
    pub batches: u64,
}

impl BatchStream {
    pub fn new(at: u64, next: Offset) -> BatchStream {
        BatchStream { at, rest: Vec::new(), next, batches: 0 }
    }

    /// Whether the next byte begins a batch.
    pub fn is_between_batches(&self) -> bool {
        self.rest.is_empty()
    }

    pub fn position(&self) -> u64 {
        self.at + self.rest.len() as u64
    }

    /// Goes on at another place, where a batch begins.
    pub fn restart(&mut self, at: u64, next: Offset) {
        self.at = at;
        self.rest.clear();
        self.next = self.next.max(next);
    }

    /// Takes the bytes that follow. An error leaves the stream at their end, where it must be restarted.
    pub fn feed(&mut self, bytes: &[u8], visit: Visit<'_>) -> Result<Vec<Seen>, String> {
        let end = self.position() + bytes.len() as u64;
        self.rest.extend_from_slice(bytes);
        let mut seen = Vec::new();
        let mut used = 0;
        let result = loop {
            match BatchView::parse(&self.rest[used..]) {
                Ok((view, _)) => {
                    let position = self.at + used as u64;
                    if let Err(why) = check(&view, self.next) {
                        break Err(format!("the batch at position {position}: {why}"));
                    }
                    visit(position, &view);
                    seen.push(Seen {
                        position,
                        end: position + view.size() as u64,
                        base: view.base_offset(),
                        largest: view.max_timestamp(),
                        epoch: view.partition_leader_epoch(),
                    });
                    self.next = view.next_offset();
                    self.batches += 1;
                    used += view.size();
                }
                Err(BatchError::Incomplete { .. }) if self.rest.len() - used < BATCH_MAX => break Ok(()),
                Err(error) => break Err(format!("no batch at position {}: {error}", self.at + used as u64)),
            }
        };
        match result {
            Ok(()) => {
                self.rest.drain(..used);
                self.at += used as u64;
                Ok(seen)
            }
            Err(why) => {
                self.rest.clear();
                self.at = end;
                Err(why)
            }
        }
    }
}

fn check(view: &BatchView<'_>, next: Offset) -> Result<(), String> {
    view.check_crc().map_err(|error| error.to_string())?;
    let (base, last) = (view.base_offset(), view.last_offset());
    if base < next || last < base {
        return Err(format!("offsets {base} to {last} do not follow {next}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use batch::BatchBuilder;

    fn batch(base: i64, len: usize) -> Vec<u8> {
        let mut builder = BatchBuilder::new();
        builder.append(WallMillis(7), None, Some(&vec![base as u8; len]), &[]);
        let mut bytes = builder.build();
        batch::stamp(&mut bytes, Offset(base), LeaderEpoch(1));
        bytes
    }

    #[test]
    fn batches_cut_anywhere_come_whole_and_in_order() {
        let whole: Vec<u8> = (0..5).flat_map(|n| batch(n, 10 + 300 * n as usize)).collect();
        for step in [1, 60, 61, 62, 1000, whole.len()] {
            let mut stream = BatchStream::new(100, Offset(0));
            let (mut bytes, mut bases) = (Vec::new(), Vec::new());
            for chunk in whole.chunks(step) {
                let seen = stream.feed(chunk, &mut |_, view| bytes.extend_from_slice(view.bytes())).expect("good");
                bases.extend(seen.iter().map(|seen| seen.base.0));
            }
            assert_eq!(bytes, whole);
            assert_eq!(bases, [0, 1, 2, 3, 4]);
            assert!(stream.is_between_batches());
            assert_eq!(stream.position(), 100 + whole.len() as u64);
        }
    }

    #[test]
    fn a_repeated_or_broken_batch_is_told() {
        let mut stream = BatchStream::new(0, Offset(0));
        let mut good = batch(3, 10);
        assert_eq!(stream.feed(&good, &mut |_, _| {}).map(|seen| seen.len()), Ok(1));
        assert!(stream.feed(&good, &mut |_, _| {}).unwrap_err().contains("do not follow 4"));
        good = batch(9, 10);
        *good.last_mut().expect("not empty") ^= 1;
        stream.restart(500, Offset(9));
        assert!(stream.feed(&good, &mut |_, _| {}).unwrap_err().contains("position 500"));
    }
}
