//! Fetch: resolved against its session, split over the cores that own the partitions, gathered until enough bytes are
//! there or the time is up (KIP-74, KIP-227). The answer is made in `fetch_answer`.

use crate::api::Asker;
use crate::begin::Reading;
use crate::encode::{self, FetchAnswer, PartitionAnswer};
use crate::fetch_answer::Telling;
use crate::fetch_session::{
    self, Asked, AskedList, FetchScope, NO_SESSION, PartitionKey, Session, SessionError, SessionHead, Standing,
    TopicKey,
};
use crate::gather::{GatherWork, by_core};
use crate::limits::{ENTRIES_A_COMMAND, ITEMS_ON_THE_LOOP_MAX};
use crate::off_loop::{Made, Told};
use crate::produce::Place;
use crate::sessions::{Sessions, Timer, Turn};
use base::limits::RESPONSE_WINDOW;
use base::{CoreId, LeaderEpoch, NodeId, Offset, PartitionId, PartitionIndex, SlotToken, TopicId};
use handoff::{
    Command, EntryIndex, Fetch, FetchEntry, FetchError, FetchNews, Fetched, FetchedRecords, GatherId, Isolation, Reader,
};
use net::Streams;
use std::time::Duration;
use wire::messages::fetch_request::FetchRequestView;
use wire::{DecodeError, ErrorCode, MessageView};

pub(crate) const TOPIC_IDS_SINCE: i16 = 13;
const READ_COMMITTED: i8 = 1;
const DEBUGGING_REPLICA: i32 = -2;
/// Runs of answers that a loop lets go of by itself.
const RUNS_ON_THE_LOOP_MAX: usize = ITEMS_ON_THE_LOOP_MAX / ENTRIES_A_COMMAND;

/// A request that was read.
#[derive(Debug)]
pub struct FetchAsked {
    head: SessionHead,
    asked: AskedList,
    forgotten: Vec<PartitionKey>,
    reader: Reader,
    /// The isolation level is one of Kafka's.
    is_sound: bool,
    min_bytes: i32,
    max_bytes: i32,
    max_wait_ms: i32,
}

#[derive(Debug)]
pub struct FetchGather {
    pub(crate) scope: FetchScope,
    pub(crate) uses_topic_ids: bool,
    pub(crate) reader: Reader,
    min_bytes: u64,
    pub(crate) max_bytes: u32,
    /// The request's own size is below zero: no partition can be read.
    size_is_negative: bool,
    pub(crate) slots: Vec<Slot>,
    /// The cores of its partitions.
    cores: Vec<CoreId>,
    phase: Phase,
    /// The first slot that the look at hand has not come to.
    next: usize,
    /// Bytes that this look has found; and of them, those in memory.
    found: u64,
    ready: usize,
    /// Bytes that can be read of all partitions, as far as is known.
    readable: u64,
    /// A partition has an answer that does not wait.
    urgent: bool,
    /// The answers of the look at hand, as the cores gave them: whoever makes the response puts them to their slots.
    answers: Vec<Vec<Fetched>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The first look; partitions without news register a waiter.
    Looking,
    Waiting,
    /// The look that is answered whatever it finds.
    Last,
}

#[derive(Debug)]
pub(crate) struct Slot {
    pub key: PartitionKey,
    pub asked: Asked,
    pub place: Result<(PartitionId, CoreId), ErrorCode>,
    readable: u64,
}

impl FetchAsked {
    pub(crate) fn max_wait_ms(&self) -> i32 {
        self.max_wait_ms
    }
}

/// Reads a request.
pub(crate) fn open(reading: &mut Reading<'_>) -> Result<FetchAsked, DecodeError> {
    let version = reading.version;
    let view = FetchRequestView::decode_view(&mut reading.decoder, version)?;
    let replica = if version >= 15 { view.replica_state.replica_id } else { view.replica_id };
    let uses_topic_ids = version >= TOPIC_IDS_SINCE;
    Ok(FetchAsked {
        head: SessionHead {
            id: if version >= 7 { view.session_id } else { NO_SESSION },
            epoch: if version >= 7 { view.session_epoch } else { fetch_session::FINAL_EPOCH },
            privileged: replica >= 0,
            uses_topic_ids,
        },
        asked: asked_list(&view, uses_topic_ids),
        forgotten: forgotten_list(&view, uses_topic_ids),
        reader: match replica {
            DEBUGGING_REPLICA => Reader::Debugging,
            node if node >= 0 => Reader::Follower(NodeId(node)),
            _ if view.isolation_level == READ_COMMITTED => Reader::Consumer(Isolation::ReadCommitted),
            _ => Reader::Consumer(Isolation::ReadUncommitted),
        },
        is_sound: (0..=READ_COMMITTED).contains(&view.isolation_level),
        min_bytes: view.min_bytes,
        max_bytes: view.max_bytes,
        max_wait_ms: view.max_wait_ms,
    })
}

/// Finds where the partitions are that are asked for, here or by the session.
pub(crate) fn resolve(
    asker: Asker<'_>,
    asked: FetchAsked,
    scope: FetchScope,
    session: Option<&mut Session>,
    max_bytes: u32,
) -> FetchGather {
    let FetchAsked { head, asked, forgotten, reader, min_bytes, max_bytes: asked_bytes, .. } = asked;
    let (scope, list) = match session {
        Some(session) => match session.update(asked, &forgotten) {
            list if list.is_empty() => (FetchScope::Sessionless, list),
            list => (scope, list),
        },
        None => (scope, asked),
    };
    let slots: Vec<Slot> = list.into_iter().map(|(key, asked)| slot(asker, key, asked, reader)).collect();
    let mut cores: Vec<CoreId> = Vec::new();
    for (_, core) in slots.iter().filter_map(|slot| slot.place.ok()) {
        if !cores.contains(&core) {
            cores.push(core);
        }
    }
    FetchGather {
        scope,
        uses_topic_ids: head.uses_topic_ids,
        reader,
        min_bytes: u64::from((min_bytes.max(0) as u32).min(max_bytes)),
        max_bytes,
        size_is_negative: asked_bytes < 0,
        urgent: slots.iter().any(|slot| slot.place.is_err()),
        slots,
        cores,
        phase: Phase::Looking,
        next: 0,
        found: 0,
        ready: 0,
        readable: 0,
        answers: Vec::new(),
    }
}

fn slot(asker: Asker<'_>, key: PartitionKey, asked: Asked, reader: Reader) -> Slot {
    let (topic, by_id) = match &key.topic {
        TopicKey::Name(name) => (asker.view.topic(name), false),
        TopicKey::Id(id) => (asker.view.topic_by_id(*id), true),
    };
    let replicas = topic.and_then(|topic| topic.partition(key.index)).map(|partition| &partition.replicas);
    let stranger = matches!((reader, replicas), (Reader::Follower(node), Some(replicas)) if !replicas.contains(&node));
    let place = match asker.place(topic.map(|topic| &**topic), key.index.0, by_id) {
        // A follower that the partition does not have.
        Place::Core(..) if stranger => Err(ErrorCode::NotLeaderOrFollower),
        Place::Core(partition, core) => Ok((partition, core)),
        Place::Refused(error) => Err(error),
    };
    Slot { key, asked, place, readable: 0 }
}

impl FetchGather {
    pub(crate) fn items(&self) -> usize {
        self.slots.len()
    }

    /// The cores on which something may wait for it.
    pub(crate) fn cores(&self) -> &[CoreId] {
        &self.cores
    }

    /// The next run of the look at hand, in the order of the request: one command per core.
    fn next_commands(&mut self, gather: GatherId) -> Vec<(CoreId, Command)> {
        loop {
            let from = self.next;
            let run = &self.slots[from..self.slots.len().min(from + ENTRIES_A_COMMAND)];
            if run.is_empty() {
                return Vec::new();
            }
            self.next += run.len();
            let entry = |(i, slot): (usize, &Slot)| {
                let (partition, core) = slot.place.ok()?;
                let entry = FetchEntry {
                    index: EntryIndex((from + i) as u32),
                    partition,
                    current_epoch: slot.asked.current_epoch,
                    last_fetched_epoch: slot.asked.last_fetched_epoch,
                    offset: slot.asked.offset,
                    log_start: slot.asked.log_start,
                    bytes_max: slot.asked.bytes_max.filter(|_| !self.size_is_negative),
                };
                Some((core, entry))
            };
            let runs = by_core(run.iter().enumerate().filter_map(entry), run.len());
            if runs.is_empty() {
                continue;
            }
            let found = u32::try_from(self.found).unwrap_or(u32::MAX);
            let fetch = |entries| Fetch {
                gather,
                reader: self.reader,
                bytes_max: self.max_bytes.saturating_sub(found),
                ready_max: RESPONSE_WINDOW.saturating_sub(self.ready) as u32,
                wait: self.phase == Phase::Looking && !self.is_enough(),
                bytes_min: self.min_bytes as u32,
                goes_on: from > 0,
                has_bytes: found > 0,
                entries,
            };
            return runs.into_iter().map(|(core, entries)| (core, Command::Fetch(fetch(entries)))).collect();
        }
    }

    fn note(&mut self, fetched: &Fetched) {
        let slot = &mut self.slots[fetched.index.0 as usize];
        let (bytes, ready) = match &fetched.result {
            Ok(records) => {
                self.urgent |= records.diverging.is_some();
                (records.bytes, records.ready.iter().map(|parcel| parcel.len()).sum())
            }
            Err(_) => {
                self.urgent = true;
                (0, 0)
            }
        };
        self.found += u64::from(bytes);
        self.ready += ready;
        self.readable = self.readable - slot.readable + u64::from(bytes);
        slot.readable = u64::from(bytes);
    }

    /// Each slot with its answer, where it has one.
    pub(crate) fn into_answered(self) -> impl Iterator<Item = (Slot, Option<Result<FetchedRecords, FetchError>>)> {
        let mut answers: Vec<_> = self.slots.iter().map(|_| None).collect();
        for fetched in self.answers.into_iter().flatten() {
            answers[fetched.index.0 as usize] = Some(fetched.result);
        }
        self.slots.into_iter().zip(answers)
    }

    fn is_enough(&self) -> bool {
        self.readable >= self.min_bytes || self.urgent
    }

    /// What was found is to be let go of, and everything is to be looked at once more.
    fn begin_anew(&mut self, phase: Phase) -> Vec<Vec<Fetched>> {
        (self.phase, self.next, self.found, self.ready) = (phase, 0, 0, 0);
        std::mem::take(&mut self.answers)
    }
}

impl Sessions {
    /// A request was read: its session says what else it asks for.
    pub(crate) fn resolve_fetch<S: Streams>(&mut self, turn: &mut Turn<'_, S>, id: GatherId, asked: FetchAsked) {
        let Some(gather) = self.gathers.get(Self::token(id)) else { return };
        let (listener, version, correlation_id) = (gather.listener, gather.version, gather.correlation_id);
        if !asked.is_sound {
            let keys = asked.asked.into_iter().map(|(key, _)| key);
            let answer = refused(version, keys, ErrorCode::UnknownServerError);
            return self.on_made(turn, id, Made::plain(encode::fetch(version, correlation_id, answer).bytes));
        }
        let standing = self.fetch_sessions.begin(turn.now.monotonic, &asked.head);
        self.forget_ended_sessions();
        let (scope, in_session) = match standing {
            Ok(Standing::Alone) => (FetchScope::Sessionless, 0),
            Ok(Standing::Wants) => (FetchScope::Full { privileged: asked.head.privileged }, 0),
            Ok(Standing::Has { partitions }) => (FetchScope::Incremental { id: asked.head.id }, partitions),
            Err(error) => {
                let answer = FetchAnswer { error_code: session_error(error).code(), ..FetchAnswer::default() };
                return self.on_made(turn, id, Made::plain(encode::fetch(version, correlation_id, answer).bytes));
            }
        };
        let max_bytes = self.settings.typed().fetch_max_bytes.min(asked.max_bytes).max(0) as u32;
        if asked.asked.len() + in_session > ITEMS_ON_THE_LOOP_MAX {
            let session = match scope {
                FetchScope::Incremental { id } => self.fetch_sessions.lend(id),
                FetchScope::Sessionless | FetchScope::Full { .. } => None,
            };
            return self.resolve_off_loop(id, Box::new(asked), scope, session, max_bytes);
        }
        let max_wait_ms = asked.max_wait_ms;
        let asker = Asker {
            view: &self.view,
            node: self.facts.node,
            cluster_id: &self.facts.cluster_id,
            listener_name: &self.facts.listeners[usize::from(listener.0)],
        };
        let session = match scope {
            FetchScope::Incremental { id } => self.fetch_sessions.get_mut(id),
            FetchScope::Sessionless | FetchScope::Full { .. } => None,
        };
        let work = resolve(asker, asked, scope, session, max_bytes);
        self.fetch_sessions.end_if_empty(scope);
        self.look(turn, id, work, max_wait_ms);
    }

    /// The first look at every partition.
    pub(crate) fn look<S: Streams>(
        &mut self,
        turn: &mut Turn<'_, S>,
        id: GatherId,
        mut work: FetchGather,
        max_wait_ms: i32,
    ) {
        let token = Self::token(id);
        let Some(gather) = self.gathers.get_mut(token) else { return };
        // A fetch of nothing waits for nothing: a consumer that closes ends its session with one, and waits for the answer.
        if max_wait_ms > 0 && work.min_bytes > 0 && !work.urgent && work.items() > 0 {
            let deadline = turn.now.monotonic + Duration::from_millis(max_wait_ms as u64);
            gather.timer = Some(self.wheel.insert(deadline, Timer::Gather(token)));
        } else {
            work.phase = Phase::Last;
        }
        gather.work = GatherWork::Fetch(work);
        self.look_on(turn, id);
    }

    /// Goes on with the look at hand, or ends it.
    fn look_on<S: Streams>(&mut self, turn: &mut Turn<'_, S>, id: GatherId) {
        let Some(gather) = self.gathers.get_mut(Self::token(id)) else { return };
        let GatherWork::Fetch(work) = &mut gather.work else { panic!("its caller looked") };
        let commands = work.next_commands(id);
        gather.outstanding = commands.len();
        if !commands.is_empty() {
            return self.out.commands.extend(commands);
        }
        match work.phase {
            Phase::Last => self.finish(turn, id),
            Phase::Looking if work.is_enough() => {
                // What was found is answered as it is; the waiters that were registered leave their lists.
                self.cancel_waiters(id);
                self.finish(turn, id);
            }
            Phase::Looking => {
                let found = work.begin_anew(Phase::Waiting);
                self.forget_found(found);
            }
            Phase::Waiting => panic!("no command is out while a fetch waits"),
        }
    }

    pub(crate) fn on_fetched<S: Streams>(&mut self, turn: &mut Turn<'_, S>, id: GatherId, entries: Vec<Fetched>) {
        let Some(gather) = self.gathers.get_mut(Self::token(id)) else { return };
        let GatherWork::Fetch(work) = &mut gather.work else { panic!("outcomes answer their commands") };
        entries.iter().for_each(|entry| work.note(entry));
        work.answers.push(entries);
        gather.outstanding -= 1;
        if gather.outstanding == 0 {
            self.look_on(turn, id);
        }
    }

    pub(crate) fn on_fetch_news<S: Streams>(&mut self, turn: &mut Turn<'_, S>, id: GatherId, entries: Vec<FetchNews>) {
        let Some(gather) = self.gathers.get_mut(Self::token(id)) else { return };
        // News of a fetch whose answer is being made come too late.
        let GatherWork::Fetch(work) = &mut gather.work else { return };
        for news in entries {
            let slot = &mut work.slots[news.index.0 as usize];
            work.readable = work.readable - slot.readable + u64::from(news.readable);
            slot.readable = u64::from(news.readable);
            work.urgent |= news.urgent;
        }
        if work.phase == Phase::Waiting && work.is_enough() {
            self.look_again(turn, id);
        }
    }

    pub(crate) fn on_gather_deadline<S: Streams>(&mut self, turn: &mut Turn<'_, S>, token: SlotToken) {
        let id = self.gather_id(token);
        let Some(gather) = self.gathers.get_mut(token) else { return };
        gather.timer = None;
        let GatherWork::Fetch(work) = &mut gather.work else { return };
        match work.phase {
            Phase::Waiting => self.look_again(turn, id),
            // The first look is still under way: it becomes the last.
            Phase::Looking => {
                work.phase = Phase::Last;
                self.cancel_waiters(id);
            }
            Phase::Last => {}
        }
    }

    fn cancel_waiters(&mut self, id: GatherId) {
        let Some(gather) = self.gathers.get(Self::token(id)) else { return };
        let GatherWork::Fetch(work) = &gather.work else { return };
        self.out.commands.extend(work.cores.iter().map(|core| (*core, Command::Cancel(id))));
    }

    /// The waiting is over: everything is read afresh, in the order of the request.
    fn look_again<S: Streams>(&mut self, turn: &mut Turn<'_, S>, id: GatherId) {
        self.cancel_waiters(id);
        let gather = self.gathers.get_mut(Self::token(id)).expect("its caller looked");
        let GatherWork::Fetch(work) = &mut gather.work else { unreachable!("its caller looked") };
        let found = work.begin_anew(Phase::Last);
        self.forget_found(found);
        self.look_on(turn, id);
    }

    /// A look's answers that nobody is told: those of many partitions take longer to let go of than a loop may be held.
    fn forget_found(&mut self, found: Vec<Vec<Fetched>>) {
        if found.len() > RUNS_ON_THE_LOOP_MAX {
            self.let_go(found);
        }
    }

    /// The answer is put together here, or by a helper where it is long; its session learns what was told.
    pub(crate) fn finish_fetch<S: Streams>(&mut self, turn: &mut Turn<'_, S>, id: GatherId, work: Box<FetchGather>) {
        let Some(gather) = self.gathers.get(Self::token(id)) else { return };
        let (listener, version, correlation_id) = (gather.listener, gather.version, gather.correlation_id);
        let is_long = work.items() > ITEMS_ON_THE_LOOP_MAX;
        let told = match work.scope {
            FetchScope::Sessionless => Told::Nobody,
            FetchScope::Full { privileged } => {
                let session = self.fetch_sessions.reserve(turn.now.monotonic, turn.random, privileged, work.items());
                self.forget_ended_sessions();
                Told::New { id: session, privileged, now: turn.now.monotonic }
            }
            FetchScope::Incremental { id } if is_long => Told::Known { id, session: self.fetch_sessions.lend(id) },
            FetchScope::Incremental { id } => Told::Known { id, session: None },
        };
        if is_long {
            return self.answer_fetch_off_loop(id, work, told);
        }
        let asker = Asker {
            view: &self.view,
            node: self.facts.node,
            cluster_id: &self.facts.cluster_id,
            listener_name: &self.facts.listeners[usize::from(listener.0)],
        };
        let telling = match told {
            Told::Nobody => Telling::Nobody,
            Told::New { id, privileged, now } => Telling::New { id, privileged, now },
            Told::Known { id, .. } => Telling::Known { id, session: self.fetch_sessions.get_mut(id) },
        };
        let mut made = crate::fetch_answer::make(asker, version, correlation_id, *work, telling);
        let session = made.take_session();
        self.on_made(turn, id, Made::Fetched { made, session });
    }
}

fn asked_list(view: &FetchRequestView<'_>, by_id: bool) -> AskedList {
    let mut asked = Vec::new();
    for topic in view.topics.iter() {
        let key = topic_key(&topic.topic.lossy(), topic.topic_id, by_id);
        for partition in topic.partitions.iter() {
            let epoch = |epoch: i32| (epoch >= 0).then_some(LeaderEpoch(epoch));
            asked.push((
                PartitionKey { topic: key.clone(), index: PartitionIndex(partition.partition) },
                Asked {
                    offset: Offset(partition.fetch_offset),
                    bytes_max: u32::try_from(partition.partition_max_bytes).ok(),
                    current_epoch: epoch(partition.current_leader_epoch),
                    last_fetched_epoch: epoch(partition.last_fetched_epoch),
                    log_start: (partition.log_start_offset >= 0).then_some(Offset(partition.log_start_offset)),
                },
            ));
        }
    }
    asked
}

fn forgotten_list(view: &FetchRequestView<'_>, by_id: bool) -> Vec<PartitionKey> {
    let mut forgotten = Vec::new();
    for topic in view.forgotten_topics_data.iter() {
        let key = topic_key(&topic.topic.lossy(), topic.topic_id, by_id);
        let indexes = topic.partitions.iter().map(PartitionIndex);
        forgotten.extend(indexes.map(|index| PartitionKey { topic: key.clone(), index }));
    }
    forgotten
}

fn topic_key(name: &str, id: base::Uuid, by_id: bool) -> TopicKey {
    if by_id { TopicKey::Id(TopicId(id)) } else { TopicKey::Name(name.into()) }
}

/// A whole fetch is refused: at the top from version 7 on, and, while topics have names, at every partition.
fn refused(version: i16, asked: impl Iterator<Item = PartitionKey>, error: ErrorCode) -> FetchAnswer {
    let mut topics: Vec<(TopicKey, Vec<PartitionAnswer>)> = Vec::new();
    for key in asked.filter(|_| version < TOPIC_IDS_SINCE) {
        let answer = PartitionAnswer::error(key.index.0, error.code());
        match topics.last_mut() {
            Some((topic, answers)) if *topic == key.topic => answers.push(answer),
            _ => topics.push((key.topic, vec![answer])),
        }
    }
    FetchAnswer { error_code: error.code(), topics, ..FetchAnswer::default() }
}

fn session_error(error: SessionError) -> ErrorCode {
    match error {
        SessionError::IdNotFound => ErrorCode::FetchSessionIdNotFound,
        SessionError::InvalidEpoch => ErrorCode::InvalidFetchSessionEpoch,
        SessionError::TopicIdMismatch => ErrorCode::FetchSessionTopicIdError,
    }
}
