//! One request's way through the ring: the submission entries it needs, one at a time, and what an answer leads to.
#![allow(unsafe_code)]

use super::setup::Registered;
use crate::check::range_of;
use crate::file::offset;
use crate::sys;
use io_uring::types::{Fd, Fixed, FsyncFlags};
use io_uring::{opcode, squeue};
use nvme_plan::{Operation, Promise};
use std::io;

/// How a request names a descriptor: by its place among the registered ones, or by its number.
#[derive(Clone, Copy)]
pub(super) enum Target {
    Registered(u32),
    Descriptor(i32),
}

macro_rules! on {
    ($target:expr, $fd:ident => $entry:expr) => {
        match $target {
            Target::Registered(place) => {
                let $fd = Fixed(place);
                $entry.build()
            }
            Target::Descriptor(raw) => {
                let $fd = Fd(raw);
                $entry.build()
            }
        }
    };
}

/// Where a request stands. Its vector of pieces is kept between requests, so that none allocates.
#[derive(Default)]
pub(super) struct Transfer {
    pieces: Vec<libc::iovec>,
    /// The first piece not transferred yet.
    first: usize,
    /// Bytes of the range transferred so far.
    done: u64,
    /// The next attempt may wait in a worker thread of the kernel.
    may_wait: bool,
    /// A growth has its space and is being flushed.
    flushing: bool,
}

/// What an answer means.
pub(super) enum Step {
    Finished(io::Result<()>),
    /// The rest, or the same again.
    Again(Why),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// It would have waited, so a worker does it.
    Punted,
    /// The file knows no "do not wait".
    NoNowait,
    Resumed,
    Interrupted,
    NextPart,
}

impl Transfer {
    pub(super) fn begin(&mut self, operation: &mut Operation) {
        self.pieces.clear();
        (self.first, self.done, self.may_wait, self.flushing) = (0, 0, false, false);
        match operation {
            Operation::Write { pieces, .. } => {
                self.pieces.extend(pieces.iter().map(|piece| piece_of(piece.as_ptr().cast_mut(), piece.len())));
            }
            Operation::Read { into, .. } => {
                let len = into.len();
                self.pieces.push(piece_of(into.as_mut_ptr(), len));
            }
            Operation::WriteZeroes { range } => {
                let zeroes = sys::zero_pieces(range.bytes()).into_iter();
                self.pieces.extend(zeroes.map(|piece| piece_of(piece.as_ptr().cast_mut(), piece.len())));
            }
            Operation::Flush | Operation::Trim { .. } | Operation::Grow { .. } => {}
        }
    }

    /// The next entry. Its pointers stay good until it is answered: the pieces stand in this transfer, which is not
    /// touched meanwhile, and the bytes in a request that the queue holds.
    pub(super) fn entry(
        &self,
        operation: &Operation,
        target: Target,
        nowait: bool,
        registered: &Registered,
    ) -> squeue::Entry {
        let at = range_of(operation).map_or(0, offset) + self.done;
        let mut flags = if nowait && !self.may_wait { libc::RWF_NOWAIT } else { 0 };
        let pieces = &self.pieces[self.first..];
        match operation {
            Operation::Read { .. } => match pieces {
                [one] if registered.holds(one.iov_base.cast(), one.iov_len) => {
                    on!(target, fd => opcode::ReadFixed::new(
                    fd, one.iov_base.cast(), one.iov_len as u32, 0).offset(at).rw_flags(flags))
                }
                _ => on!(target, fd => opcode::Readv::new(fd, pieces.as_ptr(), pieces.len() as u32)
                    .offset(at).rw_flags(flags)),
            },
            Operation::Write { .. } | Operation::WriteZeroes { .. } => {
                if matches!(operation, Operation::Write { promise: Promise::Durable, .. }) {
                    flags |= libc::RWF_DSYNC;
                }
                match pieces {
                    [one] if registered.holds(one.iov_base.cast(), one.iov_len) => {
                        on!(target, fd => opcode::WriteFixed::new(
                            fd, one.iov_base.cast_const().cast(), one.iov_len as u32, 0).offset(at).rw_flags(flags))
                    }
                    _ => on!(target, fd => opcode::Writev::new(fd, pieces.as_ptr(), pieces.len() as u32)
                        .offset(at).rw_flags(flags)),
                }
            }
            Operation::Flush => on!(target, fd => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC)),
            Operation::Grow { .. } if self.flushing => {
                on!(target, fd => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC))
            }
            Operation::Grow { range } => on!(target, fd => opcode::Fallocate::new(fd, range.bytes()).offset(at)),
            Operation::Trim { range } => on!(target, fd => opcode::Fallocate::new(fd, range.bytes())
                .offset(at).mode(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE)),
        }
    }

    /// Takes the ring's answer: bytes transferred, or a negative error number.
    pub(super) fn answer(&mut self, operation: &Operation, result: i32) -> Step {
        let transfers = !self.pieces.is_empty();
        match result {
            code if code == -libc::EINTR => Step::Again(Why::Interrupted),
            code if code == -libc::EAGAIN && transfers && !self.may_wait => {
                self.may_wait = true;
                Step::Again(Why::Punted)
            }
            code if code == -libc::EOPNOTSUPP && transfers && !self.may_wait => {
                self.may_wait = true;
                Step::Again(Why::NoNowait)
            }
            code if code < 0 => Step::Finished(Err(io::Error::from_raw_os_error(-code))),
            0 if transfers => Step::Finished(Err(io::ErrorKind::UnexpectedEof.into())),
            bytes if transfers => {
                self.advance(bytes as usize);
                if self.first < self.pieces.len() { Step::Again(Why::Resumed) } else { Step::Finished(Ok(())) }
            }
            _ if matches!(operation, Operation::Grow { .. }) && !self.flushing => {
                // A step that the store has been told of must still be there after a power cut.
                self.flushing = true;
                Step::Again(Why::NextPart)
            }
            _ => Step::Finished(Ok(())),
        }
    }

    fn advance(&mut self, mut bytes: usize) {
        self.done += bytes as u64;
        while bytes > 0 {
            let piece = &mut self.pieces[self.first];
            if bytes < piece.iov_len {
                // SAFETY: `bytes` is less than the piece's length, so the result lies inside the same buffer.
                piece.iov_base = unsafe { piece.iov_base.byte_add(bytes) };
                piece.iov_len -= bytes;
                return;
            }
            bytes -= piece.iov_len;
            self.first += 1;
        }
    }
}

fn piece_of(start: *mut u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: start.cast(), iov_len: len }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arena::Arena;
    use base::{BLOCK_SIZE, Block, BlockRange, CoreId};

    fn write(blocks: &[u32]) -> (Operation, Transfer) {
        let arena = Arena::heap(CoreId(0), 1 << 20);
        let piece = |blocks: &u32| arena.try_allocate(*blocks as usize * BLOCK_SIZE).unwrap().freeze();
        let pieces = blocks.iter().map(piece).collect();
        let range = BlockRange::new(Block(8), blocks.iter().sum());
        let mut operation = Operation::Write { range, pieces, promise: Promise::Durable };
        let mut transfer = Transfer::default();
        transfer.begin(&mut operation);
        (operation, transfer)
    }

    #[test]
    fn a_part_of_a_transfer_is_sent_again_for_the_rest() {
        let (operation, mut transfer) = write(&[1, 2, 1]);
        let start = transfer.pieces[1].iov_base.addr();
        assert!(matches!(transfer.answer(&operation, 4096 + 512), Step::Again(Why::Resumed)));
        assert_eq!((transfer.first, transfer.done), (1, 4608));
        assert_eq!((transfer.pieces[1].iov_base.addr(), transfer.pieces[1].iov_len), (start + 512, 8192 - 512));
        assert!(matches!(transfer.answer(&operation, 8192 - 512 + 4096), Step::Finished(Ok(()))));
    }

    #[test]
    fn what_would_wait_is_given_to_a_worker_once() {
        let (operation, mut transfer) = write(&[1]);
        assert!(matches!(transfer.answer(&operation, -libc::EAGAIN), Step::Again(Why::Punted)));
        assert!(matches!(transfer.answer(&operation, -libc::EAGAIN), Step::Finished(Err(_))));
        let (operation, mut transfer) = write(&[1]);
        assert!(matches!(transfer.answer(&operation, -libc::EINTR), Step::Again(Why::Interrupted)));
        assert!(matches!(transfer.answer(&operation, 0), Step::Finished(Err(_))));
    }

    #[test]
    fn a_growth_is_over_when_it_is_flushed() {
        let mut operation = Operation::Grow { range: BlockRange::new(Block(8), 8) };
        let mut transfer = Transfer::default();
        transfer.begin(&mut operation);
        assert!(matches!(transfer.answer(&operation, 0), Step::Again(Why::NextPart)));
        assert!(matches!(transfer.answer(&operation, 0), Step::Finished(Ok(()))));
        transfer.begin(&mut operation);
        assert!(matches!(transfer.answer(&operation, -libc::ENOSPC), Step::Finished(Err(_))));
    }
}
