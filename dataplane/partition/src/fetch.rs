//! Fetch: each entry is checked, located and read, all of them side by side; then the command is answered, and waits
//! for news where it may.

use crate::epochs::{Continuity, continuity};
use crate::fetch_answer::{Answer, trim};
use crate::operation::{Operation, OperationToken};
use crate::partitions::Partitions;
use crate::reading::Pieces;
use crate::refusals::of_read;
use crate::watch::{ToWatch, bound, last_stable};
use arena::BufferRef;
use base::Now;
use base::limits::RESPONSE_WINDOW;
use handoff::*;
use nvme_log::{Located, ReadError, Store};

/// Reads that a locate may ask for before its entry is refused: an index, a stretch, and both again.
const LOCATES_MAX: u32 = 16;
/// Stretches that describe one entry's answer behind its ready bytes: no batch has more, and a reader that asks for much
/// and takes little holds little.
const DESCRIPTIONS_MAX: usize = 512;
/// The least of an entry's answer that is ready, where there is that much.
const READY_MIN: usize = 64 * 1024;

#[derive(Debug)]
pub(crate) struct FetchOperation {
    gather: GatherId,
    reader: Reader,
    wait: bool,
    bytes_min: u32,
    /// What the entries not yet located may bring.
    bytes_left: u32,
    /// What of it may be in memory.
    window_left: usize,
    share: usize,
    /// An entry that came before these has bytes.
    has_bytes: bool,
    /// The first entry that has bytes: of those behind it, a first batch that does not fit is left out.
    first_with_bytes: Option<usize>,
    places: Vec<Place>,
    /// Places that are not done.
    left: usize,
}

#[derive(Debug)]
struct Place {
    entry: FetchEntry,
    state: State,
    locates: u32,
    /// Known after a first attempt that could not tell how long the first batch is.
    first_batch: Option<usize>,
    to_watch: Option<ToWatch>,
}

#[derive(Debug)]
enum State {
    ToLocate,
    Locating,
    Reading(Box<Answer>, Pieces),
    Done(Result<FetchedRecords, FetchError>),
}

impl FetchOperation {
    pub(crate) fn on_read(&mut self, place: usize, piece: Option<usize>, result: Result<BufferRef, ReadError>) {
        let place = &mut self.places[place];
        match (&mut place.state, piece) {
            (State::Reading(_, pieces), Some(piece)) => {
                pieces.on_read(piece, result);
            }
            (State::Locating, None) => {
                place.state = match result {
                    Ok(_) | Err(ReadError::Gone) => State::ToLocate,
                    Err(error) => State::Done(Err(of_read(error))),
                };
            }
            _ => {}
        }
    }

    pub(crate) fn wait_for_nothing(&mut self) {
        self.wait = false;
    }
}

impl Partitions {
    pub(crate) fn on_fetch(&mut self, now: Now, store: &mut Store, command: Fetch) {
        let Fetch { gather, reader, bytes_max, ready_max, goes_on, has_bytes, wait, bytes_min, entries } = command;
        if !goes_on {
            self.unwatch(gather);
        }
        if let Reader::Follower(node) = reader {
            self.note_follower(now, store, node, &entries);
        }
        let share = (RESPONSE_WINDOW / entries.len().max(1)).max(READY_MIN);
        let place = |entry| Place { entry, state: State::ToLocate, locates: 0, first_batch: None, to_watch: None };
        let count = entries.len();
        let places = entries.into_iter().map(place).collect();
        let fetch = FetchOperation {
            gather,
            reader,
            wait,
            bytes_min,
            bytes_left: bytes_max,
            window_left: RESPONSE_WINDOW.min(ready_max as usize),
            has_bytes,
            share,
            first_with_bytes: None,
            places,
            left: count,
        };
        let token = self.begin(Operation::Fetch(fetch));
        self.fetching.insert(gather, token);
        self.advance_fetch(now, store, token, 0..count);
    }

    /// A follower's fetch offset is its durable end (design 04, replication).
    fn note_follower(&mut self, now: Now, store: &mut Store, node: base::NodeId, entries: &[FetchEntry]) {
        for entry in entries {
            let Ok((token, _)) = self.leading(entry.partition, entry.current_epoch) else { continue };
            let Some(replica) = self.replica_mut(token) else { continue };
            if let Some(end) = replica.others.get_mut(&node) {
                *end = entry.offset;
                self.advance(now, store, token);
            }
        }
    }

    /// Goes on with some of a fetch's entries.
    pub(crate) fn advance_fetch(
        &mut self,
        now: Now,
        store: &mut Store,
        token: OperationToken,
        places: std::ops::Range<usize>,
    ) {
        let Some(Operation::Fetch(mut fetch)) = self.take(token) else { return };
        for number in places {
            self.advance_place(now, store, token, &mut fetch, number);
            fetch.left -= usize::from(matches!(fetch.places[number].state, State::Done(_)));
        }
        if fetch.left == 0 {
            self.end(token);
            self.answer_fetch(store, fetch);
        } else {
            self.put_back(token, Operation::Fetch(fetch));
        }
    }

    fn advance_place(
        &mut self,
        now: Now,
        store: &mut Store,
        token: OperationToken,
        fetch: &mut FetchOperation,
        number: usize,
    ) {
        loop {
            let place = &mut fetch.places[number];
            match std::mem::replace(&mut place.state, State::ToLocate) {
                State::Reading(answer, pieces) if pieces.is_gone() && pieces.is_complete() => answer.abandon(store),
                State::Reading(answer, pieces) if pieces.is_complete() => match answer.finish(store, pieces) {
                    Ok(records) => {
                        place.state = State::Done(records);
                        return;
                    }
                    // The first batch reaches beyond what was taken: once more, with its length known.
                    Err(first_batch) => place.first_batch = Some(first_batch),
                },
                State::ToLocate => {}
                other => {
                    place.state = other;
                    return;
                }
            }
            place.locates += 1;
            let state = if place.locates > LOCATES_MAX {
                State::Done(Err(FetchError::Partition(PartitionError::Busy)))
            } else {
                self.locate_entry(now, store, token, fetch, number).unwrap_or_else(|error| State::Done(Err(error)))
            };
            fetch.places[number].state = state;
        }
    }

    /// Kafka's order: epoch and leadership, divergence, the range. Old versions get zstd too: 4.4 no longer looks.
    fn locate_entry(
        &mut self,
        now: Now,
        store: &mut Store,
        token: OperationToken,
        fetch: &mut FetchOperation,
        number: usize,
    ) -> Result<State, FetchError> {
        let entry = fetch.places[number].entry.clone();
        let (replica_token, replica) =
            self.leading(entry.partition, entry.current_epoch).map_err(FetchError::Partition)?;
        let (log, upper) = (replica.log, bound(store, replica, fetch.reader));
        let facts = FetchedRecords {
            high_watermark: replica.high_watermark,
            last_stable_offset: last_stable(store, replica),
            log_start: store.log_start(log),
            ..FetchedRecords::default()
        };
        let end = store.end_offset(log);
        if let Some(epoch) = entry.last_fetched_epoch {
            match continuity(store.epochs(log).starts(), end, epoch, entry.offset) {
                Continuity::Unknown => return Err(FetchError::OutOfRange),
                _ if entry.offset < facts.log_start => return Err(FetchError::OutOfRange),
                Continuity::Diverges(epoch, end) => {
                    return Ok(State::Done(Ok(FetchedRecords { diverging: Some((epoch, end)), ..facts })));
                }
                Continuity::Continues => {}
            }
        }
        if entry.offset < facts.log_start || entry.offset > end {
            return Err(FetchError::OutOfRange);
        }
        let watch = ToWatch {
            replica: replica_token,
            index: entry.index,
            offset: entry.offset,
            limit: entry.bytes_max.unwrap_or(0),
            bound: upper,
            available: 0,
            answered: 0,
        };
        fetch.places[number].to_watch = Some(watch);
        let later = fetch.has_bytes || fetch.first_with_bytes.is_some_and(|first| first < number);
        let limit = entry.bytes_max.unwrap_or(0).min(fetch.bytes_left);
        let (located, position) = store.locate_placed(now, log, entry.offset, upper, limit as usize);
        match located {
            Located::OutOfRange => Err(FetchError::OutOfRange),
            Located::Nothing => Ok(State::Done(Ok(facts))),
            _ if entry.bytes_max.is_none() => Err(FetchError::NegativeSize),
            Located::NeedsRead(plan) => {
                self.read(store, plan, token, number);
                Ok(State::Locating)
            }
            Located::Found(parts) => {
                let available: usize = parts.iter().map(|part| part.len()).sum();
                let share = fetch.share.min(fetch.window_left);
                let none_fits = later && (available > limit as usize || share == 0);
                let first_batch = fetch.places[number].first_batch;
                let mut trimmed = trim(store, parts, if none_fits { None } else { Some(share) }, first_batch);
                while trimmed.rest.len() > DESCRIPTIONS_MAX {
                    trimmed.rest.pop().into_iter().for_each(|stretch| store.release(stretch));
                }
                let ready: usize = trimmed.ready.iter().map(|part| part.len()).sum();
                let rest = trimmed.rest.iter().map(|stretch| stretch.len()).sum::<usize>();
                fetch.window_left = fetch.window_left.saturating_sub(ready);
                let answered = u32::try_from(ready + rest).unwrap_or(u32::MAX);
                fetch.bytes_left = fetch.bytes_left.saturating_sub(answered);
                if answered > 0 {
                    let first = fetch.first_with_bytes.get_or_insert(number);
                    *first = number.min(*first);
                }
                if let Some(watch) = &mut fetch.places[number].to_watch {
                    watch.available = u32::try_from(available).unwrap_or(u32::MAX);
                    watch.answered = answered;
                }
                let core = self.options.core;
                let mut answer = Answer::new(core, entry.partition, log, facts, position, trimmed.rest);
                if fetch.reader == Reader::Consumer(Isolation::ReadCommitted) {
                    answer = answer.committed_only(entry.offset);
                }
                let pieces = Pieces::begin(self, store, token, number, trimmed.ready);
                Ok(State::Reading(Box::new(answer), pieces))
            }
        }
    }

    /// Answers, and registers what waits (design 08, item 10: register, then check again).
    fn answer_fetch(&mut self, store: &Store, fetch: FetchOperation) {
        let FetchOperation { gather, reader, wait, bytes_min, places, .. } = fetch;
        self.fetching.remove(&gather);
        let (mut entries, mut to_watch) = (Vec::with_capacity(places.len()), Vec::new());
        let (mut bytes, mut settled) = (0u32, false);
        for place in places {
            let State::Done(result) = place.state else { unreachable!("every place is done") };
            match &result {
                Ok(records) => {
                    bytes = bytes.saturating_add(records.bytes);
                    settled |= records.diverging.is_some();
                    if let Some(watch) = place.to_watch {
                        to_watch.push(ToWatch { answered: records.bytes, ..watch });
                    }
                }
                Err(_) => settled = true,
            }
            entries.push(Fetched { index: place.entry.index, result });
        }
        self.answer(gather.core, Outcome::Fetched { gather, entries });
        if wait && !settled && bytes < bytes_min {
            self.out.tally.fetch_waits += 1;
            self.watch(store, gather, reader, bytes_min, to_watch);
        }
    }
}
