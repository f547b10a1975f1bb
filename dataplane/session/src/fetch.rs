//! Fetch: resolved against its session, split over the cores that own the partitions, gathered until enough bytes are
//! there or the time is up, and cut to the response's limit in the request's order (KIP-74, KIP-227).

use crate::connection::{EndReason, Request};
use crate::encode::{self, FetchAnswer, PartitionAnswer};
use crate::errors;
use crate::fetch_session::{
    self, Asked, AskedList, FetchScope, NO_SESSION, NewSession, PartitionKey, SessionError, SessionRequest, Told,
    TopicKey,
};
use crate::gather::{Gather, GatherWork};
use crate::produce::Place;
use crate::replies::{Piece, ReplyNumber};
use crate::sessions::{Sessions, Timer, Turn};
use base::{CoreId, LeaderEpoch, ListenerId, NodeId, Offset, PartitionId, PartitionIndex, SlotToken, TopicId};
use handoff::{
    Command, EntryIndex, Fetch, FetchEntry, FetchError, FetchNews, Fetched, FetchedRecords, GatherId, Isolation, Reader,
};
use net::{StreamId, Streams};
use std::collections::VecDeque;
use std::time::Duration;
use wire::messages::fetch_request::FetchRequestView;
use wire::messages::fetch_response::{AbortedTransaction, EpochEndOffset, LeaderIdAndEpoch, NodeEndpoint};
use wire::{Decoder, ErrorCode, MessageView};

const TOPIC_IDS_SINCE: i16 = 13;
/// The leader and its endpoint are told from here on (KIP-951), though older versions have a field for it.
const LEADER_TOLD_SINCE: i16 = 16;
const READ_COMMITTED: i8 = 1;
const DEBUGGING_REPLICA: i32 = -2;

#[derive(Debug)]
pub struct FetchGather {
    scope: FetchScope,
    uses_topic_ids: bool,
    reader: Reader,
    min_bytes: u64,
    max_bytes: u32,
    /// The request's own size is below zero: no partition can be read.
    size_is_negative: bool,
    slots: Vec<Slot>,
    /// Commands whose outcome has not come.
    outstanding: usize,
    phase: Phase,
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
struct Slot {
    key: PartitionKey,
    asked: Asked,
    place: Result<(PartitionId, CoreId), ErrorCode>,
    answer: Option<Result<FetchedRecords, FetchError>>,
    readable: u64,
}

impl Slot {
    fn is_urgent(&self) -> bool {
        match (&self.place, &self.answer) {
            (Err(_), _) | (_, Some(Err(_))) => true,
            (_, Some(Ok(records))) => records.diverging.is_some(),
            _ => false,
        }
    }
}

impl FetchGather {
    pub(crate) fn cores(&self) -> Vec<CoreId> {
        let mut cores: Vec<CoreId> = self.slots.iter().filter_map(|slot| slot.place.ok()).map(|(_, c)| c).collect();
        cores.sort();
        cores.dedup();
        cores
    }

    /// One command per core, entries in the order of the request.
    fn commands(&self, gather: GatherId, wait: bool) -> Vec<(CoreId, Command)> {
        let mut by_core: Vec<(CoreId, Vec<FetchEntry>)> = Vec::new();
        for (i, slot) in self.slots.iter().enumerate() {
            let Ok((partition, core)) = slot.place else { continue };
            let entry = FetchEntry {
                index: EntryIndex(i as u32),
                partition,
                current_epoch: slot.asked.current_epoch,
                last_fetched_epoch: slot.asked.last_fetched_epoch,
                offset: slot.asked.offset,
                log_start: slot.asked.log_start,
                bytes_max: slot.asked.bytes_max.filter(|_| !self.size_is_negative),
            };
            match by_core.iter_mut().find(|(known, _)| *known == core) {
                Some((_, entries)) => entries.push(entry),
                None => by_core.push((core, vec![entry])),
            }
        }
        let (reader, bytes_max, bytes_min) = (self.reader, self.max_bytes, self.min_bytes as u32);
        let command = |entries| Command::Fetch(Fetch { gather, reader, bytes_max, wait, bytes_min, entries });
        by_core.into_iter().map(|(core, entries)| (core, command(entries))).collect()
    }

    fn is_enough(&self) -> bool {
        let readable: u64 = self.slots.iter().map(|slot| slot.readable).sum();
        readable >= self.min_bytes || self.slots.iter().any(Slot::is_urgent)
    }
}

impl Sessions {
    pub(crate) fn begin_fetch<S: Streams>(
        &mut self,
        turn: &mut Turn<'_, S>,
        stream: StreamId,
        reply: ReplyNumber,
        request: &Request,
    ) -> Result<(), EndReason> {
        let frame = request.frame.clone();
        let mut decoder = Decoder::new(&frame[request.body..]);
        let view = FetchRequestView::decode_view(&mut decoder, request.version)
            .map_err(|error| EndReason::Malformed(format!("Fetch: {error}")))?;
        let replica = if request.version >= 15 { view.replica_state.replica_id } else { view.replica_id };
        let uses_topic_ids = request.version >= TOPIC_IDS_SINCE;
        let session = SessionRequest {
            id: if request.version >= 7 { view.session_id } else { NO_SESSION },
            epoch: if request.version >= 7 { view.session_epoch } else { fetch_session::FINAL_EPOCH },
            privileged: replica >= 0,
            uses_topic_ids,
            asked: asked_list(&view, uses_topic_ids),
            forgotten: forgotten_list(&view, uses_topic_ids),
        };
        if !(0..=READ_COMMITTED).contains(&view.isolation_level) {
            let asked = session.asked.into_iter().map(|(key, _)| key);
            self.reply(turn, stream, reply, refused(request, asked, ErrorCode::UnknownServerError));
            return Ok(());
        }
        let (scope, asked) = match self.fetch_sessions.resolve(turn.now.monotonic, session) {
            Ok(resolved) => resolved,
            Err(error) => {
                let error_code = session_error(error).code();
                let answer = FetchAnswer { error_code, ..FetchAnswer::default() };
                let pieces = encode::fetch(request.version, request.correlation_id, answer);
                self.reply(turn, stream, reply, pieces);
                return Ok(());
            }
        };
        let reader = match replica {
            DEBUGGING_REPLICA => Reader::Debugging,
            node if node >= 0 => Reader::Follower(NodeId(node)),
            _ if view.isolation_level == READ_COMMITTED => Reader::Consumer(Isolation::ReadCommitted),
            _ => Reader::Consumer(Isolation::ReadUncommitted),
        };
        let bytes_max = self.settings.typed().fetch_max_bytes.min(view.max_bytes).max(0) as u32;
        let slots = asked.into_iter().map(|(key, asked)| self.slot(key, asked, reader)).collect();
        let work = FetchGather {
            scope,
            uses_topic_ids,
            reader,
            min_bytes: u64::from((view.min_bytes.max(0) as u32).min(bytes_max)),
            max_bytes: bytes_max,
            size_is_negative: view.max_bytes < 0,
            slots,
            outstanding: 0,
            phase: Phase::Looking,
        };
        self.look(turn, stream, reply, request, work, view.max_wait_ms);
        Ok(())
    }

    fn slot(&self, key: PartitionKey, asked: Asked, reader: Reader) -> Slot {
        let (topic, by_id) = match &key.topic {
            TopicKey::Name(name) => (self.view.topic(name), false),
            TopicKey::Id(id) => (self.view.topic_by_id(*id), true),
        };
        let replicas = topic.and_then(|topic| topic.partition(key.index)).map(|partition| &partition.replicas);
        let stranger =
            matches!((reader, replicas), (Reader::Follower(node), Some(replicas)) if !replicas.contains(&node));
        let place = match self.place(topic.map(|topic| &**topic), key.index.0, by_id) {
            // A follower that the partition does not have.
            Place::Core(..) if stranger => Err(ErrorCode::NotLeaderOrFollower),
            Place::Core(partition, core) => Ok((partition, core)),
            Place::Refused(error) => Err(error),
        };
        Slot { key, asked, place, answer: None, readable: 0 }
    }

    /// The first look at every partition.
    fn look<S: Streams>(
        &mut self,
        turn: &mut Turn<'_, S>,
        stream: StreamId,
        reply: ReplyNumber,
        request: &Request,
        work: FetchGather,
        max_wait_ms: i32,
    ) {
        let now = turn.now.monotonic;
        let wait = max_wait_ms > 0 && work.min_bytes > 0 && !work.slots.iter().any(Slot::is_urgent);
        let gather = self.open_gather(Gather::new(stream, reply, request, now, GatherWork::Fetch(work)));
        let token = Self::token(gather);
        let slot = self.gathers.get_mut(token).expect("just opened");
        let GatherWork::Fetch(work) = &mut slot.work else { unreachable!("just opened") };
        if !wait {
            work.phase = Phase::Last;
        }
        let commands = work.commands(gather, wait);
        work.outstanding = commands.len();
        if commands.is_empty() {
            // Nothing to wait for here: an empty fetch is answered when its time is up, as Kafka does.
            if !wait {
                return self.finish_fetch(turn, gather);
            }
            work.phase = Phase::Waiting;
        }
        if wait {
            let deadline = now + Duration::from_millis(max_wait_ms as u64);
            slot.timer = Some(self.wheel.insert(deadline, Timer::Gather(token)));
        }
        self.out.commands.extend(commands);
    }

    pub(crate) fn on_fetched<S: Streams>(&mut self, turn: &mut Turn<'_, S>, id: GatherId, entries: Vec<Fetched>) {
        let Some(gather) = self.gathers.get_mut(Self::token(id)) else { return };
        let GatherWork::Fetch(work) = &mut gather.work else { panic!("outcomes answer their commands") };
        for entry in entries {
            let slot = &mut work.slots[entry.index.0 as usize];
            slot.readable = entry.result.as_ref().map_or(0, |records| u64::from(records.bytes));
            slot.answer = Some(entry.result);
        }
        work.outstanding -= 1;
        if work.outstanding > 0 {
            return;
        }
        match work.phase {
            Phase::Last => self.finish_fetch(turn, id),
            Phase::Looking if work.is_enough() => {
                // What was found is answered as it is; the waiters that were registered leave their lists.
                self.cancel_waiters(id);
                self.finish_fetch(turn, id);
            }
            Phase::Looking => {
                for slot in &mut work.slots {
                    slot.answer = None;
                }
                work.phase = Phase::Waiting;
            }
            Phase::Waiting => panic!("no command is out while a fetch waits"),
        }
    }

    pub(crate) fn on_fetch_news<S: Streams>(&mut self, turn: &mut Turn<'_, S>, id: GatherId, entries: Vec<FetchNews>) {
        let Some(gather) = self.gathers.get_mut(Self::token(id)) else { return };
        let GatherWork::Fetch(work) = &mut gather.work else { panic!("outcomes answer their commands") };
        let mut urgent = false;
        for news in entries {
            work.slots[news.index.0 as usize].readable = u64::from(news.readable);
            urgent |= news.urgent;
        }
        if work.phase == Phase::Waiting && (urgent || work.is_enough()) {
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
        self.out.commands.extend(work.cores().into_iter().map(|core| (core, Command::Cancel(id))));
    }

    /// The waiting is over: everything is read afresh, in the order of the request.
    fn look_again<S: Streams>(&mut self, turn: &mut Turn<'_, S>, id: GatherId) {
        self.cancel_waiters(id);
        let gather = self.gathers.get_mut(Self::token(id)).expect("its caller looked");
        let GatherWork::Fetch(work) = &mut gather.work else { unreachable!("its caller looked") };
        work.phase = Phase::Last;
        let commands = work.commands(id, false);
        work.outstanding = commands.len();
        if commands.is_empty() {
            return self.finish_fetch(turn, id);
        }
        self.out.commands.extend(commands);
    }

    fn finish_fetch<S: Streams>(&mut self, turn: &mut Turn<'_, S>, id: GatherId) {
        let gather = self.gathers.remove(Self::token(id)).expect("finished once");
        if let Some(timer) = gather.timer {
            self.wheel.cancel(timer);
        }
        let GatherWork::Fetch(work) = &gather.work else { panic!("outcomes answer their commands") };
        let refused = |slot: &Slot| slot.place.is_err() || matches!(slot.answer, Some(Err(_)));
        let failed = work.slots.iter().any(refused);
        self.note_answered(turn.now, &gather, failed);
        let Some(listener) = self.connections.get(&gather.stream).map(|connection| connection.listener) else { return };
        let GatherWork::Fetch(work) = gather.work else { panic!("just looked") };
        let pieces = self.fetch_answer(turn, listener, gather.version, gather.correlation_id, work);
        self.reply(turn, gather.stream, gather.reply, pieces);
        self.advance(turn, gather.stream);
    }

    fn fetch_answer<S: Streams>(
        &mut self,
        turn: &mut Turn<'_, S>,
        listener: ListenerId,
        version: i16,
        correlation_id: i32,
        work: FetchGather,
    ) -> VecDeque<Piece> {
        let committed = work.reader == Reader::Consumer(Isolation::ReadCommitted);
        let mut left = work.max_bytes;
        let mut first = true;
        let mut answers: Vec<(PartitionKey, Asked, PartitionAnswer)> = Vec::with_capacity(work.slots.len());
        // What nobody knows stands last, as Kafka has it; other refusals stand where they were asked for.
        let unknown =
            |error: ErrorCode| matches!(error, ErrorCode::UnknownTopicOrPartition | ErrorCode::UnknownTopicId);
        let (asked, refused): (Vec<Slot>, Vec<Slot>) =
            work.slots.into_iter().partition(|slot| !slot.place.is_err_and(unknown));
        for slot in asked.into_iter().chain(refused) {
            let index = slot.key.index.0;
            let refused = slot.place.err();
            let mut answer = match (refused, slot.answer) {
                (Some(error), _) if unknown(error) => PartitionAnswer::error(index, error.code()),
                (Some(error), _) => PartitionAnswer::refusal(index, error.code()),
                (None, Some(Err(error))) => PartitionAnswer::refusal(index, errors::of_fetch(error).code()),
                (None, Some(Ok(records))) => {
                    let room = Room { left, first };
                    let answer = partition_answer(turn, index, records, committed, room);
                    left = left.saturating_sub(answer.bytes as u32);
                    first &= answer.bytes == 0;
                    self.out.fetched += answer.bytes as u64;
                    answer
                }
                (None, None) => PartitionAnswer::error(index, ErrorCode::UnknownServerError.code()),
            };
            if version >= LEADER_TOLD_SINCE {
                self.tell_leader(&slot.key, &mut answer);
            }
            answers.push((slot.key, slot.asked, answer));
        }
        let endpoints =
            if version >= LEADER_TOLD_SINCE { self.leader_endpoints(listener, &answers) } else { Vec::new() };
        let session_id = self.settle_session(turn, &work.scope, work.uses_topic_ids, &mut answers);
        let mut topics: Vec<(TopicKey, Vec<PartitionAnswer>)> = Vec::new();
        for (key, _, answer) in answers {
            match topics.last_mut() {
                Some((topic, partitions)) if *topic == key.topic => partitions.push(answer),
                _ => topics.push((key.topic, vec![answer])),
            }
        }
        encode::fetch(version, correlation_id, FetchAnswer { error_code: 0, session_id, topics, endpoints })
    }

    /// Makes or updates the session, and takes out of an incremental answer what did not change.
    fn settle_session<S: Streams>(
        &mut self,
        turn: &mut Turn<'_, S>,
        scope: &FetchScope,
        uses_topic_ids: bool,
        answers: &mut Vec<(PartitionKey, Asked, PartitionAnswer)>,
    ) -> i32 {
        match scope {
            FetchScope::Sessionless => NO_SESSION,
            FetchScope::Full { privileged } => {
                let partitions = answers.iter().map(|(key, asked, answer)| {
                    let told =
                        Told { high_watermark: answer.data.high_watermark, log_start: answer.data.log_start_offset };
                    (key.clone(), asked.clone(), (answer.data.error_code == 0).then_some(told))
                });
                let new = NewSession { privileged: *privileged, uses_topic_ids, partitions: partitions.collect() };
                self.fetch_sessions.create(turn.now.monotonic, turn.random, new)
            }
            FetchScope::Incremental { id } => {
                answers.retain(|(key, _, answer)| {
                    let facts = fetch_session::PartitionAnswer {
                        has_records: answer.bytes > 0,
                        has_error: answer.data.error_code != 0,
                        always: answer.data.diverging_epoch.epoch >= 0,
                        high_watermark: answer.data.high_watermark,
                        log_start: answer.data.log_start_offset,
                    };
                    self.fetch_sessions.tell(*id, key, facts)
                });
                *id
            }
        }
    }

    fn tell_leader(&self, key: &PartitionKey, answer: &mut PartitionAnswer) {
        let moved = [ErrorCode::NotLeaderOrFollower.code(), ErrorCode::FencedLeaderEpoch.code()];
        if !moved.contains(&answer.data.error_code) {
            return;
        }
        let topic = match &key.topic {
            TopicKey::Name(name) => self.view.topic(name),
            TopicKey::Id(id) => self.view.topic_by_id(*id),
        };
        let Some(partition) = topic.and_then(|topic| topic.partition(key.index)) else { return };
        answer.data.current_leader = LeaderIdAndEpoch {
            leader_id: partition.leader.map_or(-1, |leader| leader.0),
            leader_epoch: partition.leader_epoch.0,
            ..Default::default()
        };
    }

    fn leader_endpoints(
        &self,
        listener: ListenerId,
        answers: &[(PartitionKey, Asked, PartitionAnswer)],
    ) -> Vec<NodeEndpoint> {
        let asker = self.asker(listener);
        let mut endpoints: Vec<NodeEndpoint> = Vec::new();
        for (_, _, answer) in answers {
            let leader = answer.data.current_leader.leader_id;
            if leader < 0 || endpoints.iter().any(|known| known.node_id == leader) {
                continue;
            }
            if let Some(endpoint) = asker.endpoint(NodeId(leader)) {
                endpoints.push(NodeEndpoint {
                    node_id: endpoint.node.0,
                    host: endpoint.host,
                    port: endpoint.port,
                    rack: endpoint.rack,
                    ..Default::default()
                });
            }
        }
        endpoints
    }
}

/// What the response may still take.
#[derive(Clone, Copy)]
struct Room {
    left: u32,
    /// Nothing was given yet: the first batch goes out whole, however small the limits.
    first: bool,
}

fn partition_answer<S: Streams>(
    turn: &mut Turn<'_, S>,
    index: i32,
    records: FetchedRecords,
    committed: bool,
    room: Room,
) -> PartitionAnswer {
    let mut answer = PartitionAnswer::error(index, 0);
    answer.data.high_watermark = records.high_watermark.0;
    answer.data.last_stable_offset = records.last_stable_offset.0;
    answer.data.log_start_offset = records.log_start.0;
    answer.data.aborted_transactions = committed.then(|| {
        let aborted = records.aborted.iter().map(|(producer, first)| AbortedTransaction {
            producer_id: producer.0,
            first_offset: first.0,
            ..Default::default()
        });
        aborted.collect()
    });
    if let Some((epoch, end)) = records.diverging {
        answer.data.diverging_epoch = EpochEndOffset { epoch: epoch.0, end_offset: end.0, ..Default::default() };
    }
    let mut take = records.bytes.min(room.left);
    if take < records.first_batch {
        take = if room.first { records.first_batch } else { 0 };
    }
    answer.bytes = take as usize;
    let mut left = take as usize;
    let mut again = records.again;
    for parcel in records.ready {
        let bytes = turn.arena.open(parcel);
        let description = again.expect("what is ready is described");
        again = Some(description.after(bytes.len() as u32));
        if left > 0 {
            let count = bytes.len().min(left);
            left -= count;
            answer.records.push_back(Piece::Held(bytes.slice(0..count), description.first(count as u32)));
        }
    }
    for mut stretch in records.rest {
        if left == 0 {
            break;
        }
        stretch.length = stretch.length.min(left as u32);
        left -= stretch.length as usize;
        answer.records.push_back(Piece::Stored(stretch));
    }
    assert_eq!(left, 0, "an outcome has as many bytes as it says");
    answer
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
fn refused(request: &Request, asked: impl Iterator<Item = PartitionKey>, error: ErrorCode) -> VecDeque<Piece> {
    let mut topics: Vec<(TopicKey, Vec<PartitionAnswer>)> = Vec::new();
    for key in asked.filter(|_| request.version < TOPIC_IDS_SINCE) {
        let answer = PartitionAnswer::error(key.index.0, error.code());
        match topics.last_mut() {
            Some((topic, answers)) if *topic == key.topic => answers.push(answer),
            _ => topics.push((key.topic, vec![answer])),
        }
    }
    let answer = FetchAnswer { error_code: error.code(), topics, ..FetchAnswer::default() };
    encode::fetch(request.version, request.correlation_id, answer)
}

fn session_error(error: SessionError) -> ErrorCode {
    match error {
        SessionError::IdNotFound => ErrorCode::FetchSessionIdNotFound,
        SessionError::InvalidEpoch => ErrorCode::InvalidFetchSessionEpoch,
        SessionError::TopicIdMismatch => ErrorCode::FetchSessionTopicIdError,
    }
}
