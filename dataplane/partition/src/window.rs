//! More bytes of an answer, as its socket drains.

use crate::operation::{Operation, OperationToken};
use crate::partitions::Partitions;
use crate::reading::Pieces;
use crate::refusals::of_read;
use crate::stretches::{self, Described};
use arena::BufferRef;
use base::Now;
use handoff::{FetchError, GatherId, Outcome, PartitionError, ReadWindow, Stretch, Window};
use nvme_log::{LogSlot, Part, ReadError, ReadPlan, Relocated, Store};
use std::ops::Range;

/// Indexes that a window may wait for before it is refused.
const LOCATES_MAX: u32 = 16;

#[derive(Debug)]
pub(crate) struct WindowOperation {
    gather: GatherId,
    state: State,
    locates: u32,
}

#[derive(Debug)]
enum State {
    /// An index is read; what was asked for is looked for again then.
    Locating {
        stretches: Vec<Stretch>,
        bytes_max: u32,
    },
    Reading {
        pieces: Pieces,
        cuts: Vec<Cut>,
        rest: Vec<Stretch>,
    },
    Failed(FetchError),
}

/// What of a piece was asked for, and how the reader knows it.
#[derive(Debug)]
struct Cut {
    range: Range<usize>,
    stretch: Stretch,
}

/// What a window will consist of.
#[derive(Debug, Default)]
struct Layout {
    parts: Vec<Part>,
    cuts: Vec<Cut>,
    rest: Vec<Stretch>,
    /// Has to be read before anything is known.
    first: Option<ReadPlan>,
}

impl WindowOperation {
    pub(crate) fn on_read(&mut self, piece: Option<usize>, result: Result<BufferRef, ReadError>) {
        match (&mut self.state, piece, result) {
            (State::Reading { pieces, .. }, Some(piece), result) => pieces.on_read(piece, result),
            // Gone is the index, and the bytes may be found elsewhere or not at all: that is seen next.
            (_, None, Ok(_) | Err(ReadError::Gone)) => {}
            (state, _, Err(error)) => *state = State::Failed(of_read(error)),
            (_, Some(_), Ok(_)) => unreachable!("pieces come to windows that read them"),
        }
    }
}

impl Partitions {
    pub(crate) fn on_read_window(&mut self, now: Now, store: &mut Store, command: ReadWindow) {
        let ReadWindow { gather, stretches, bytes_max } = command;
        let state = State::Locating { stretches, bytes_max };
        let token = self.begin(Operation::Window(WindowOperation { gather, state, locates: 0 }));
        self.advance_window(now, store, token);
    }

    pub(crate) fn advance_window(&mut self, now: Now, store: &mut Store, token: OperationToken) {
        let Some(Operation::Window(mut window)) = self.take(token) else { return };
        if let State::Locating { stretches, bytes_max } = &window.state {
            window.locates += 1;
            let laid_out = match window.locates {
                1..=LOCATES_MAX => self.lay_out(now, store, stretches, *bytes_max),
                _ => Err(FetchError::Partition(PartitionError::Busy)),
            };
            match laid_out {
                Ok(Layout { first: Some(plan), .. }) => self.read(store, plan, token, 0),
                Ok(Layout { parts, cuts, rest, first: None }) => {
                    let pieces = Pieces::begin(self, store, token, 0, parts);
                    window.state = State::Reading { pieces, cuts, rest };
                }
                Err(error) => window.state = State::Failed(error),
            }
        }
        let WindowOperation { gather, state, locates } = window;
        let result = match state {
            State::Failed(error) => Err(error),
            State::Reading { pieces, cuts, rest } if pieces.is_complete() => whole(pieces, cuts, rest),
            state => return self.put_back(token, Operation::Window(WindowOperation { gather, state, locates })),
        };
        self.end(token);
        self.answer(gather.core, Outcome::Window { gather, result });
    }

    /// What holds the first `bytes_max` of the stretches, and what is left of them then.
    fn lay_out(
        &self,
        now: Now,
        store: &mut Store,
        stretches: &[Stretch],
        bytes_max: u32,
    ) -> Result<Layout, FetchError> {
        let (mut layout, mut left) = (Layout::default(), bytes_max);
        for stretch in stretches {
            // What stands behind something that has to wait waits too.
            if left == 0 || !layout.rest.is_empty() {
                layout.rest.push(*stretch);
                continue;
            }
            let wanted = stretch.first(stretch.length.min(left));
            let given = self.lay_out_one(now, store, wanted, &mut layout)?;
            if layout.first.is_some() {
                return Ok(layout);
            }
            left -= given;
            if given < stretch.length {
                layout.rest.push(stretch.after(given));
            }
        }
        Ok(layout)
    }

    /// Adds what holds the stretch, or its beginning; returns how much of it that is.
    fn lay_out_one(
        &self,
        now: Now,
        store: &mut Store,
        wanted: Stretch,
        layout: &mut Layout,
    ) -> Result<u32, FetchError> {
        let refused = || FetchError::Partition(self.why_not(&wanted));
        let log = self.log_of(store, &wanted).ok_or_else(refused)?;
        match stretches::open(&wanted) {
            Some(Described::Stored(stretch, skip)) if stretch.slot() == log => {
                layout.parts.push(Part::Device(stretch));
                layout.cuts.push(Cut { range: skip..skip + wanted.length as usize, stretch: wanted });
                Ok(wanted.length)
            }
            Some(Described::At(position)) => match store.relocate(now, log, position, wanted.length as usize) {
                Relocated::Gone => Err(refused()),
                Relocated::NeedsRead(_) if !layout.parts.is_empty() => Ok(0),
                Relocated::NeedsRead(plan) => {
                    layout.first = Some(plan);
                    Ok(0)
                }
                Relocated::Found(found) => {
                    let mut given = 0;
                    for (part, range) in found {
                        let length = range.len() as u32;
                        layout.parts.push(part);
                        layout.cuts.push(Cut { range, stretch: wanted.after(given).first(length) });
                        given += length;
                    }
                    Ok(given)
                }
            },
            _ => Err(refused()),
        }
    }

    fn log_of(&self, store: &Store, stretch: &Stretch) -> Option<LogSlot> {
        let token = self.by_id.get(&stretch.partition)?;
        let replica = self.replica(*token).filter(|replica| !replica.failed)?;
        (store.is_open(replica.log) && !self.stopped).then_some(replica.log)
    }

    fn why_not(&self, stretch: &Stretch) -> PartitionError {
        let known = self.by_id.get(&stretch.partition).and_then(|token| self.replica(*token));
        match known {
            None => PartitionError::Unknown,
            Some(_) => PartitionError::Storage,
        }
    }
}

/// The window, once all of it that could be read is here.
fn whole(pieces: Pieces, cuts: Vec<Cut>, mut rest: Vec<Stretch>) -> Result<Window, FetchError> {
    let (bytes, failure) = pieces.into_bytes();
    if let (0, Some(error)) = (bytes.len(), failure) {
        return Err(error);
    }
    // What was read is sent; the rest is asked for again, and told then.
    let unread = cuts[bytes.len()..].iter().map(|cut| cut.stretch);
    rest.splice(0..0, unread.collect::<Vec<_>>());
    let cut = |(bytes, cut): (BufferRef, Cut)| (bytes.slice(cut.range).into_parcel(), cut.stretch);
    Ok(Window { pieces: bytes.into_iter().zip(cuts).map(cut).collect(), rest })
}
