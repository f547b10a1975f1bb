//! ListOffsets: the log's ends at once, times by the index, the batch it leads to, and the record in that batch.

use crate::operation::{JobOwner, Operation, OperationToken, Timer};
use crate::partitions::Partitions;
use crate::pieces::total;
use crate::reading::Pieces;
use crate::watch::bound;
use arena::BufferRef;
use base::{LeaderEpoch, Now, Offset, WallMillis, Work};
use batch::{BatchView, Codec, FindTimeJob, FoundTime, InflateLimits, NO_TIMESTAMP, TimeQuery, find_time};
use bytes::Bytes;
use handoff::*;
use nvme_log::{Located, LogSlot, ReadError, Store, TimeLocated};

/// Looked through in one step; the index leads to a stretch of no more.
const STEP: usize = 64 * 1024;
/// Steps of one entry before others get their turn.
const STEPS_A_TURN: usize = 8;
/// Records that the loop looks through itself.
const INLINE_RECORDS_MAX: i32 = 4096;

#[derive(Debug)]
pub(crate) struct ListOperation {
    gather: GatherId,
    places: Vec<Place>,
}

#[derive(Debug)]
struct Place {
    index: EntryIndex,
    state: State,
}

#[derive(Debug)]
enum State {
    Search(Search, Step),
    Done(Result<ListedOffset, ListOffsetsError>),
}

/// A search for a record by its time.
#[derive(Clone, Copy, Debug)]
struct Search {
    partition: base::PartitionId,
    epoch: Option<LeaderEpoch>,
    log: LogSlot,
    query: Wanted,
    /// Only what is before this is told.
    upper: Offset,
    /// The leader cannot yet say what is committed (KIP-207).
    unsure: bool,
    limits: InflateLimits,
    /// From where on batches are looked at; none until the index was asked.
    cursor: Option<Offset>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    At(WallMillis),
    /// The batch that the log knows to have the largest time below the bound; which time that is, it says with the batch.
    Max(WallMillis),
}

#[derive(Debug)]
enum Step {
    Next,
    /// The index, or the stretch around the cursor, is read.
    Locating,
    Reading(Pieces),
    /// Batches to look through.
    Walking(Bytes),
    /// A helper looks through the batch at the front.
    Finding(Bytes),
}

impl ListOperation {
    pub(crate) fn on_read(&mut self, place: usize, piece: Option<usize>, result: Result<BufferRef, ReadError>) {
        let State::Search(_, step) = &mut self.places[place].state else { return };
        match (step, piece) {
            (Step::Reading(pieces), Some(piece)) => pieces.on_read(piece, result),
            (step @ Step::Locating, None) => match result {
                Ok(_) | Err(ReadError::Gone) => *step = Step::Next,
                Err(error) => self.places[place].state = State::Done(Err(of_read(error))),
            },
            _ => {}
        }
    }
}

fn of_read(error: ReadError) -> ListOffsetsError {
    match error {
        ReadError::Corrupt => ListOffsetsError::Corrupt,
        ReadError::Gone | ReadError::Device(_) | ReadError::Stopped => {
            ListOffsetsError::Partition(PartitionError::Storage)
        }
        ReadError::NoMemory => ListOffsetsError::Partition(PartitionError::Busy),
    }
}

/// The version since which each special time may be asked for; other negative times never may.
fn is_supported(query: OffsetQuery, version: i16) -> bool {
    match query {
        OffsetQuery::Latest | OffsetQuery::Earliest => version >= 1,
        OffsetQuery::MaxTimestamp => version >= 7,
        OffsetQuery::EarliestLocal => version >= 8,
        OffsetQuery::LatestTiered => version >= 9,
        OffsetQuery::EarliestPendingUpload => version >= 11,
        OffsetQuery::At(time) => time >= 0,
    }
}

const NOTHING: ListedOffset = ListedOffset { offset: None, timestamp: None, epoch: None };

impl Partitions {
    pub(crate) fn on_list_offsets(&mut self, now: Now, store: &mut Store, command: ListOffsets) {
        let ListOffsets { gather, reader, version, entries } = command;
        let place = |entry: ListOffsetsEntry| {
            let index = entry.index;
            let state = self.begin_list(store, reader, version, entry).unwrap_or_else(|error| State::Done(Err(error)));
            Place { index, state }
        };
        let places = entries.into_iter().map(place).collect();
        let token = self.begin(Operation::List(ListOperation { gather, places }));
        self.advance_list(now, store, token);
    }

    fn begin_list(
        &self,
        store: &Store,
        reader: Reader,
        version: i16,
        entry: ListOffsetsEntry,
    ) -> Result<State, ListOffsetsError> {
        if !is_supported(entry.query, version) {
            return Err(ListOffsetsError::UnsupportedVersion);
        }
        let (_, replica) = self.leading(entry.partition, entry.current_epoch).map_err(ListOffsetsError::Partition)?;
        let log = replica.log;
        let upper = bound(store, replica, reader);
        let unsure = matches!(reader, Reader::Consumer(_)) && replica.epoch_start > replica.high_watermark;
        let done = |offset, epoch| State::Done(Ok(ListedOffset { offset: Some(offset), timestamp: None, epoch }));
        let query = match entry.query {
            OffsetQuery::Latest if unsure => return Err(ListOffsetsError::OffsetNotAvailable),
            OffsetQuery::Latest => return Ok(done(upper, replica.leader_epoch())),
            OffsetQuery::Earliest | OffsetQuery::EarliestLocal => {
                let start = store.log_start(log);
                return Ok(done(start, store.epochs(log).epoch_at(start)));
            }
            // Nothing is in remote storage, and nothing is to go there.
            OffsetQuery::LatestTiered | OffsetQuery::EarliestPendingUpload => return Ok(State::Done(Ok(NOTHING))),
            OffsetQuery::MaxTimestamp => Wanted::Max(NO_TIMESTAMP),
            OffsetQuery::At(time) => Wanted::At(WallMillis(time)),
        };
        let search = Search {
            partition: entry.partition,
            epoch: entry.current_epoch,
            log,
            query,
            upper,
            unsure,
            limits: replica.rules.inflate,
            cursor: None,
        };
        Ok(State::Search(search, Step::Next))
    }

    pub(crate) fn advance_list(&mut self, now: Now, store: &mut Store, token: OperationToken) {
        let Some(Operation::List(mut list)) = self.take(token) else { return };
        let mut again = false;
        for number in 0..list.places.len() {
            again |= self.advance_search(now, store, token, number, &mut list.places[number].state);
        }
        if list.places.iter().all(|place| matches!(place.state, State::Done(_))) {
            self.end(token);
            let answer = |place: Place| match place.state {
                State::Done(result) => (place.index, result),
                State::Search(..) => unreachable!("every place is done"),
            };
            let (gather, entries) = (list.gather, list.places.into_iter().map(answer).collect());
            self.answer(gather.core, Outcome::OffsetsListed { gather, entries });
            return;
        }
        self.put_back(token, Operation::List(list));
        if again {
            self.wheel.insert(now.monotonic, Timer::Resume(token));
        }
    }

    /// Goes on with a search until it is done or waits for something; says whether it merely gave way.
    fn advance_search(
        &mut self,
        now: Now,
        store: &mut Store,
        token: OperationToken,
        number: usize,
        state: &mut State,
    ) -> bool {
        for _ in 0..STEPS_A_TURN {
            let State::Search(search, step) = state else { return false };
            if let Err(error) = self.leading(search.partition, search.epoch) {
                *state = State::Done(Err(ListOffsetsError::Partition(error)));
                return false;
            }
            match std::mem::replace(step, Step::Next) {
                waits @ (Step::Locating | Step::Finding(_)) => {
                    *step = waits;
                    return false;
                }
                Step::Reading(pieces) if !pieces.is_complete() => {
                    *step = Step::Reading(pieces);
                    return false;
                }
                Step::Reading(pieces) if pieces.is_gone() => {}
                Step::Reading(pieces) => match pieces.into_bytes() {
                    (_, Some(FetchError::Corrupt)) => *state = State::Done(Err(ListOffsetsError::Corrupt)),
                    (_, Some(FetchError::Partition(error))) => {
                        *state = State::Done(Err(ListOffsetsError::Partition(error)));
                    }
                    (bytes, _) => *step = Step::Walking(joined(bytes)),
                },
                Step::Walking(bytes) => match walk(search, &bytes) {
                    Walked::Found(found) => *state = State::Done(told(search, found)),
                    Walked::Failed(error) => *state = State::Done(Err(error)),
                    Walked::Offload(batch, rest) => {
                        let query = search.time_query(store.log_start(search.log));
                        let job = FindTimeJob::new(batch, query, search.limits);
                        *step = Step::Finding(rest);
                        self.send_work(JobOwner::FindTime { operation: token, place: number }, Box::new(job));
                        return false;
                    }
                    Walked::Through => {}
                },
                Step::Next => {
                    if let Some(next) = self.next_step(now, store, token, number, search) {
                        *step = next;
                    } else {
                        *state = State::Done(told(search, None));
                    }
                }
            }
        }
        matches!(state, State::Search(..))
    }

    /// From the index to the batches; nothing where there are none.
    fn next_step(
        &mut self,
        now: Now,
        store: &mut Store,
        token: OperationToken,
        number: usize,
        search: &mut Search,
    ) -> Option<Step> {
        let start = store.log_start(search.log);
        let cursor = match (search.cursor, search.query) {
            (Some(cursor), Wanted::Max(_)) => cursor,
            (Some(cursor), Wanted::At(_)) => cursor.max(start),
            (None, Wanted::Max(_)) => match store.largest_timestamp_below(search.log, search.upper) {
                Ok(found) => {
                    let (largest, offset) = found?;
                    search.query = Wanted::Max(largest);
                    offset
                }
                Err(plan) => {
                    self.read(store, plan, token, number);
                    return Some(Step::Locating);
                }
            },
            (None, Wanted::At(time)) => match store.locate_time(search.log, time) {
                TimeLocated::Nothing => return None,
                TimeLocated::From(offset) => offset.max(start),
                TimeLocated::NeedsRead(plan) => {
                    self.read(store, plan, token, number);
                    return Some(Step::Locating);
                }
            },
        };
        search.cursor = Some(cursor);
        // The largest time is that of what is kept, as in Kafka: of a record before the log's start, too, while its segment
        // is there.
        let located = match search.query {
            Wanted::Max(_) => store.locate_kept(now, search.log, cursor, search.upper, STEP),
            Wanted::At(_) => store.locate(now, search.log, cursor, search.upper, STEP),
        };
        match located {
            // The segment went meanwhile: another has the largest time now.
            Located::OutOfRange if matches!(search.query, Wanted::Max(_)) => {
                search.cursor = None;
                Some(Step::Next)
            }
            Located::Nothing | Located::OutOfRange => None,
            Located::NeedsRead(plan) => {
                self.read(store, plan, token, number);
                Some(Step::Locating)
            }
            Located::Found(parts) => Some(Step::Reading(Pieces::begin(self, store, token, number, parts))),
        }
    }

    pub(crate) fn on_time_found(
        &mut self,
        now: Now,
        store: &mut Store,
        token: OperationToken,
        number: usize,
        work: Box<dyn Work>,
    ) {
        let job = work.into_any().downcast::<FindTimeJob>().expect("only this is sent for lookups");
        let Some(Some(Operation::List(list))) = self.operations.get_mut(token.0) else { return };
        let State::Search(search, step) = &mut list.places[number].state else { return };
        let Step::Finding(rest) = std::mem::replace(step, Step::Next) else { return };
        match job.into_result() {
            Ok(Some(found)) => list.places[number].state = State::Done(told(search, Some(found))),
            Ok(None) => *step = Step::Walking(rest),
            Err(_) => list.places[number].state = State::Done(Err(ListOffsetsError::Corrupt)),
        }
        self.advance_list(now, store, token);
    }
}

impl Search {
    /// Which record of a batch is wanted; of those before `from` none is, where a time is looked for.
    fn time_query(&self, from: Offset) -> TimeQuery {
        match self.query {
            Wanted::At(time) => TimeQuery::AtOrAfter { time, from },
            Wanted::Max(_) => TimeQuery::Max,
        }
    }
}

/// What is told of a record: one at or above the bound does not exist for the reader.
fn told(search: &Search, found: Option<FoundTime>) -> Result<ListedOffset, ListOffsetsError> {
    match found.filter(|found| found.offset < search.upper) {
        Some(FoundTime { offset, timestamp, epoch }) => {
            let epoch = Some(epoch).filter(|epoch| epoch.0 >= 0);
            Ok(ListedOffset { offset: Some(offset), timestamp: Some(timestamp.0), epoch })
        }
        None if search.unsure => Err(ListOffsetsError::OffsetNotAvailable),
        None => Ok(NOTHING),
    }
}

enum Walked {
    Found(Option<FoundTime>),
    Failed(ListOffsetsError),
    Offload(Bytes, Bytes),
    /// The cursor stands behind the last of them.
    Through,
}

/// Looks through batches in offset order for the first whose largest time reaches the target (design 08, item 11).
fn walk(search: &mut Search, bytes: &Bytes) -> Walked {
    let (mut at, mut next) = (0, None);
    while let Ok((view, _)) = BatchView::parse(&bytes[at..]) {
        next = Some(view.next_offset());
        let from = search.cursor.unwrap_or(Offset::ZERO);
        let (start, end) = (at, at + view.size());
        at = end;
        let (Wanted::At(time) | Wanted::Max(time)) = search.query;
        if view.last_offset() < from || view.max_timestamp() < time {
            continue;
        }
        search.cursor = Some(view.next_offset());
        if view.codec() != Ok(Codec::None) || view.records_count() > INLINE_RECORDS_MAX {
            return Walked::Offload(bytes.slice(start..end), bytes.slice(end..));
        }
        match find_time(&view, search.time_query(from), search.limits) {
            Ok(Some(found)) => return Walked::Found(Some(found)),
            Ok(None) => {}
            Err(_) => return Walked::Failed(ListOffsetsError::Corrupt),
        }
    }
    search.cursor = search.cursor.max(next);
    // Of the largest time only the stretch is looked at in which the log says it is.
    if matches!(search.query, Wanted::Max(_)) { Walked::Found(None) } else { Walked::Through }
}

/// One run of bytes: a helper may take a part of it.
fn joined(pieces: Vec<BufferRef>) -> Bytes {
    let mut bytes = Vec::with_capacity(total(&pieces));
    for piece in pieces {
        bytes.extend_from_slice(&piece);
    }
    bytes.into()
}
