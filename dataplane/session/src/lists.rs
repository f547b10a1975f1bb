//! The requests that ask several partitions one small question each: ListOffsets, OffsetForLeaderEpoch, DeleteRecords,
//! DescribeProducers, DescribeLogDirs. One gather each; answers stand in the order of the request.

use crate::begin::body;
use crate::connection::{EndReason, Request};
use crate::errors;
use crate::gather::{Gather, GatherWork};
use crate::produce::Place;
use crate::replies::{Piece, ReplyNumber};
use crate::sessions::{Answered, Sessions, Turn};
use base::{CoreId, LeaderEpoch, NodeId, Now, Offset, PartitionId, PartitionIndex};
use handoff::*;
use net::{StreamId, Streams};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::Duration;
use wire::messages::delete_records_response::{DeleteRecordsPartitionResult, DeleteRecordsTopicResult};
use wire::messages::describe_log_dirs_response::{
    DescribeLogDirsPartition, DescribeLogDirsResult, DescribeLogDirsTopic,
};
use wire::messages::describe_producers_response::{PartitionResponse, ProducerState, TopicResponse};
use wire::messages::list_offsets_response::{ListOffsetsPartitionResponse, ListOffsetsTopicResponse};
use wire::messages::offset_for_leader_epoch_response::{EpochEndOffset, OffsetForLeaderTopicResult};
use wire::messages::*;
use wire::{ErrorCode, KafkaString, Response};

/// ListOffsets answers carry the leader epoch from here on.
const LIST_OFFSETS_EPOCH_SINCE: i16 = 4;

/// The place of an entry in its response: topic, partition.
type Spot = (u32, u32);

macro_rules! gather_state {
    ($($name:ident: $response:ty),* $(,)?) => {
        $(#[derive(Debug)]
        pub struct $name {
            response: $response,
            spots: Vec<Spot>,
            outstanding: usize,
        })*
    };
}

gather_state! {
    ListOffsetsGather: ListOffsetsResponse,
    EpochEndsGather: OffsetForLeaderEpochResponse,
    DeleteRecordsGather: DeleteRecordsResponse,
    ProducersGather: DescribeProducersResponse,
}

#[derive(Debug)]
pub struct LogsGather {
    /// `None` asks for everything.
    asked: Option<HashSet<PartitionId>>,
    logs: Vec<LogFacts>,
    total: u64,
    usable: u64,
    outstanding: usize,
}

/// Entries of one request by the core that answers them.
struct ByCore<E>(Vec<(CoreId, Vec<E>)>);

impl<E> ByCore<E> {
    fn push(&mut self, core: CoreId, entry: E) {
        match self.0.iter_mut().find(|(known, _)| *known == core) {
            Some((_, entries)) => entries.push(entry),
            None => self.0.push((core, vec![entry])),
        }
    }
}

fn epoch(epoch: i32) -> Option<LeaderEpoch> {
    (epoch >= 0).then_some(LeaderEpoch(epoch))
}

impl Sessions {
    /// Opens a gather, or answers at once where no core is asked.
    fn gather_or_answer<S: Streams, E>(
        &mut self,
        turn: &mut Turn<'_, S>,
        (stream, reply): (StreamId, ReplyNumber),
        request: &Request,
        work: GatherWork,
        by_core: ByCore<E>,
        command: impl Fn(GatherId, Vec<E>) -> Command,
    ) {
        let gather = self.open_gather(Gather::new(stream, reply, request, turn.now.monotonic, work));
        if by_core.0.is_empty() {
            return self.finish_list(turn, gather);
        }
        self.out.commands.extend(by_core.0.into_iter().map(|(core, entries)| (core, command(gather, entries))));
    }

    pub(crate) fn note_answered(&mut self, now: Now, gather: &Gather, failed: bool) {
        let took = now.monotonic.since(gather.began);
        self.out.answered.push(Answered { api: gather.api, took, failed });
    }

    /// Encodes and sends what has been gathered.
    fn finish_list<S: Streams>(&mut self, turn: &mut Turn<'_, S>, id: GatherId) {
        let Some(gather) = self.gathers.remove(Self::token(id)) else { return };
        let (version, correlation_id) = (gather.version, gather.correlation_id);
        fn bytes<R: Response>(version: i16, correlation_id: i32, body: &R) -> VecDeque<Piece> {
            VecDeque::from([Piece::Bytes(crate::encode::response(version, correlation_id, body))])
        }
        let pieces = match &gather.work {
            GatherWork::ListOffsets(work) => bytes(version, correlation_id, &work.response),
            GatherWork::EpochEnds(work) => bytes(version, correlation_id, &work.response),
            GatherWork::DeleteRecords(work) => bytes(version, correlation_id, &work.response),
            GatherWork::Producers(work) => bytes(version, correlation_id, &work.response),
            GatherWork::Logs(work) => bytes(version, correlation_id, &self.log_dirs(work)),
            other => unreachable!("{other:?} is finished elsewhere"),
        };
        self.note_answered(turn.now, &gather, false);
        self.reply(turn, gather.stream, gather.reply, pieces);
        self.advance(turn, gather.stream);
    }

    fn place_by_name(&self, topic: &str, index: i32) -> Place {
        self.place(self.view.topic(topic).map(|topic| &**topic), index, false)
    }

    pub(crate) fn begin_list_offsets<S: Streams>(
        &mut self,
        turn: &mut Turn<'_, S>,
        stream: StreamId,
        reply: ReplyNumber,
        request: &Request,
    ) -> Result<(), EndReason> {
        let asked: ListOffsetsRequest = body(request)?;
        let reader = match asked.replica_id {
            -2 => Reader::Debugging,
            node if node >= 0 => Reader::Follower(NodeId(node)),
            _ if asked.isolation_level == 1 => Reader::Consumer(Isolation::ReadCommitted),
            _ => Reader::Consumer(Isolation::ReadUncommitted),
        };
        let mut times: HashMap<(&str, i32), u32> = HashMap::new();
        for topic in &asked.topics {
            for partition in &topic.partitions {
                *times.entry((topic.name.as_str(), partition.partition_index)).or_default() += 1;
            }
        }
        let mut by_core = ByCore(Vec::new());
        let mut work =
            ListOffsetsGather { response: ListOffsetsResponse::default(), spots: Vec::new(), outstanding: 0 };
        for (t, topic) in asked.topics.iter().enumerate() {
            let mut answers = Vec::with_capacity(topic.partitions.len());
            let mut seen = HashSet::new();
            for partition in &topic.partitions {
                let index = partition.partition_index;
                // One asked for twice is refused once.
                if !seen.insert(index) {
                    continue;
                }
                let p = answers.len();
                let mut answer = ListOffsetsPartitionResponse {
                    partition_index: index,
                    timestamp: -1,
                    offset: -1,
                    leader_epoch: -1,
                    ..Default::default()
                };
                let query = offset_query(partition.timestamp, request.version);
                match (self.place_by_name(&topic.name, index), query) {
                    _ if times[&(topic.name.as_str(), index)] > 1 => {
                        answer.error_code = ErrorCode::InvalidRequest.code();
                    }
                    (_, None) => answer.error_code = ErrorCode::UnsupportedVersion.code(),
                    (Place::Refused(error), _) => answer.error_code = error.code(),
                    (Place::Core(id, core), Some(query)) => {
                        let entry = ListOffsetsEntry {
                            index: EntryIndex(work.spots.len() as u32),
                            partition: id,
                            current_epoch: epoch(partition.current_leader_epoch),
                            query,
                        };
                        work.spots.push((t as u32, p as u32));
                        by_core.push(core, entry);
                    }
                }
                answers.push(answer);
            }
            let (name, partitions) = (topic.name.clone(), answers);
            work.response.topics.push(ListOffsetsTopicResponse { name, partitions, ..Default::default() });
        }
        work.outstanding = by_core.0.len();
        let version = request.version;
        self.gather_or_answer(
            turn,
            (stream, reply),
            request,
            GatherWork::ListOffsets(work),
            by_core,
            |gather, entries| Command::ListOffsets(ListOffsets { gather, reader, version, entries }),
        );
        Ok(())
    }

    pub(crate) fn on_offsets_listed<S: Streams>(
        &mut self,
        turn: &mut Turn<'_, S>,
        id: GatherId,
        entries: Vec<(EntryIndex, Result<ListedOffset, ListOffsetsError>)>,
    ) {
        let Some(gather) = self.gathers.get_mut(Self::token(id)) else { return };
        let version = gather.version;
        let GatherWork::ListOffsets(work) = &mut gather.work else { panic!("outcomes answer their commands") };
        for (index, result) in entries {
            let (t, p) = work.spots[index.0 as usize];
            let answer = &mut work.response.topics[t as usize].partitions[p as usize];
            match result {
                Ok(listed) => {
                    answer.offset = listed.offset.map_or(-1, |offset| offset.0);
                    answer.timestamp = listed.timestamp.unwrap_or(-1);
                    if version >= LIST_OFFSETS_EPOCH_SINCE {
                        answer.leader_epoch = listed.epoch.map_or(-1, |epoch| epoch.0);
                    }
                }
                Err(error) => answer.error_code = errors::of_list_offsets(error).code(),
            }
        }
        work.outstanding -= 1;
        if work.outstanding == 0 {
            self.finish_list(turn, id);
        }
    }

    pub(crate) fn begin_epoch_ends<S: Streams>(
        &mut self,
        turn: &mut Turn<'_, S>,
        stream: StreamId,
        reply: ReplyNumber,
        request: &Request,
    ) -> Result<(), EndReason> {
        let asked: OffsetForLeaderEpochRequest = body(request)?;
        let mut by_core = ByCore(Vec::new());
        let mut work =
            EpochEndsGather { response: OffsetForLeaderEpochResponse::default(), spots: Vec::new(), outstanding: 0 };
        for (t, topic) in asked.topics.iter().enumerate() {
            let mut answers = Vec::with_capacity(topic.partitions.len());
            for (p, partition) in topic.partitions.iter().enumerate() {
                let mut answer = EpochEndOffset {
                    partition: partition.partition,
                    leader_epoch: -1,
                    end_offset: -1,
                    ..Default::default()
                };
                match self.place_by_name(&topic.topic, partition.partition) {
                    Place::Refused(error) => answer.error_code = error.code(),
                    Place::Core(id, core) => {
                        let entry = EpochEndsEntry {
                            index: EntryIndex(work.spots.len() as u32),
                            partition: id,
                            current_epoch: epoch(partition.current_leader_epoch),
                            epoch: LeaderEpoch(partition.leader_epoch),
                        };
                        work.spots.push((t as u32, p as u32));
                        by_core.push(core, entry);
                    }
                }
                answers.push(answer);
            }
            let (topic, partitions) = (topic.topic.clone(), answers);
            work.response.topics.push(OffsetForLeaderTopicResult { topic, partitions, ..Default::default() });
        }
        work.outstanding = by_core.0.len();
        let work = GatherWork::EpochEnds(work);
        self.gather_or_answer(turn, (stream, reply), request, work, by_core, |gather, entries| {
            Command::EpochEnds(EpochEnds { gather, entries })
        });
        Ok(())
    }

    pub(crate) fn on_epoch_ends<S: Streams>(
        &mut self,
        turn: &mut Turn<'_, S>,
        id: GatherId,
        entries: Vec<(EntryIndex, Result<EpochEnd, PartitionError>)>,
    ) {
        let Some(gather) = self.gathers.get_mut(Self::token(id)) else { return };
        let GatherWork::EpochEnds(work) = &mut gather.work else { panic!("outcomes answer their commands") };
        for (index, result) in entries {
            let (t, p) = work.spots[index.0 as usize];
            let answer = &mut work.response.topics[t as usize].partitions[p as usize];
            match result {
                Ok(found) => {
                    answer.leader_epoch = found.epoch.map_or(-1, |epoch| epoch.0);
                    answer.end_offset = found.end.map_or(-1, |end| end.0);
                }
                Err(error) => answer.error_code = errors::of_partition(error).code(),
            }
        }
        work.outstanding -= 1;
        if work.outstanding == 0 {
            self.finish_list(turn, id);
        }
    }

    pub(crate) fn begin_delete_records<S: Streams>(
        &mut self,
        turn: &mut Turn<'_, S>,
        stream: StreamId,
        reply: ReplyNumber,
        request: &Request,
    ) -> Result<(), EndReason> {
        let asked: DeleteRecordsRequest = body(request)?;
        let mut by_core = ByCore(Vec::new());
        let mut work =
            DeleteRecordsGather { response: DeleteRecordsResponse::default(), spots: Vec::new(), outstanding: 0 };
        for (t, topic) in asked.topics.iter().enumerate() {
            // The records of the coordinators' topics are theirs.
            let internal = self.view.topic(&topic.name).is_some_and(|topic| topic.is_internal());
            let mut answers = Vec::with_capacity(topic.partitions.len());
            for (p, partition) in topic.partitions.iter().enumerate() {
                let mut answer = DeleteRecordsPartitionResult {
                    partition_index: partition.partition_index,
                    low_watermark: -1,
                    ..Default::default()
                };
                match self.place_by_name(&topic.name, partition.partition_index) {
                    Place::Refused(error) => answer.error_code = error.code(),
                    Place::Core(..) if internal => answer.error_code = ErrorCode::InvalidTopicException.code(),
                    Place::Core(..) if partition.offset < -1 => {
                        answer.error_code = ErrorCode::OffsetOutOfRange.code();
                    }
                    Place::Core(id, core) => {
                        let entry = DeleteRecordsEntry {
                            index: EntryIndex(work.spots.len() as u32),
                            partition: id,
                            before: (partition.offset >= 0).then_some(Offset(partition.offset)),
                        };
                        work.spots.push((t as u32, p as u32));
                        by_core.push(core, entry);
                    }
                }
                answers.push(answer);
            }
            let (name, partitions) = (topic.name.clone(), answers);
            work.response.topics.push(DeleteRecordsTopicResult { name, partitions, ..Default::default() });
        }
        work.outstanding = by_core.0.len();
        let deadline = turn.now.monotonic + Duration::from_millis(asked.timeout_ms.max(0) as u64);
        let work = GatherWork::DeleteRecords(work);
        self.gather_or_answer(turn, (stream, reply), request, work, by_core, |gather, entries| {
            Command::DeleteRecords(DeleteRecords { gather, deadline, entries })
        });
        Ok(())
    }

    pub(crate) fn on_records_deleted<S: Streams>(
        &mut self,
        turn: &mut Turn<'_, S>,
        id: GatherId,
        entries: Vec<(EntryIndex, Result<Offset, DeleteRecordsError>)>,
    ) {
        let Some(gather) = self.gathers.get_mut(Self::token(id)) else { return };
        let GatherWork::DeleteRecords(work) = &mut gather.work else { panic!("outcomes answer their commands") };
        for (index, result) in entries {
            let (t, p) = work.spots[index.0 as usize];
            let answer = &mut work.response.topics[t as usize].partitions[p as usize];
            match result {
                Ok(low_watermark) => answer.low_watermark = low_watermark.0,
                Err(error) => answer.error_code = errors::of_delete_records(error).code(),
            }
        }
        work.outstanding -= 1;
        if work.outstanding == 0 {
            self.finish_list(turn, id);
        }
    }

    pub(crate) fn begin_describe_producers<S: Streams>(
        &mut self,
        turn: &mut Turn<'_, S>,
        stream: StreamId,
        reply: ReplyNumber,
        request: &Request,
    ) -> Result<(), EndReason> {
        let asked: DescribeProducersRequest = body(request)?;
        let mut by_core = ByCore(Vec::new());
        let mut work =
            ProducersGather { response: DescribeProducersResponse::default(), spots: Vec::new(), outstanding: 0 };
        for (t, topic) in asked.topics.iter().enumerate() {
            let mut answers = Vec::with_capacity(topic.partition_indexes.len());
            for (p, index) in topic.partition_indexes.iter().enumerate() {
                let mut answer = PartitionResponse { partition_index: *index, ..Default::default() };
                match self.place_by_name(&topic.name, *index) {
                    _ if !crate::api::is_valid_topic_name(&topic.name) => {
                        answer.error_code = ErrorCode::InvalidTopicException.code();
                        answer.error_message = Some(KafkaString::from_static("The topic's name is not valid."));
                    }
                    Place::Refused(error) => {
                        answer.error_code = error.code();
                        if self.view.topic(&topic.name).is_none() {
                            answer.error_message = Some(KafkaString::from_static("There is no such topic."));
                        }
                    }
                    Place::Core(id, core) => {
                        by_core.push(core, (EntryIndex(work.spots.len() as u32), id));
                        work.spots.push((t as u32, p as u32));
                    }
                }
                answers.push(answer);
            }
            let (name, partitions) = (topic.name.clone(), answers);
            work.response.topics.push(TopicResponse { name, partitions, ..Default::default() });
        }
        work.outstanding = by_core.0.len();
        let work = GatherWork::Producers(work);
        self.gather_or_answer(turn, (stream, reply), request, work, by_core, |gather, entries| {
            Command::DescribeProducers(DescribeProducers { gather, entries })
        });
        Ok(())
    }

    pub(crate) fn on_producers_described<S: Streams>(
        &mut self,
        turn: &mut Turn<'_, S>,
        id: GatherId,
        entries: Vec<(EntryIndex, Result<Vec<ProducerFacts>, PartitionError>)>,
    ) {
        let Some(gather) = self.gathers.get_mut(Self::token(id)) else { return };
        let GatherWork::Producers(work) = &mut gather.work else { panic!("outcomes answer their commands") };
        for (index, result) in entries {
            let (t, p) = work.spots[index.0 as usize];
            let answer = &mut work.response.topics[t as usize].partitions[p as usize];
            match result {
                Ok(producers) => answer.active_producers = producers.into_iter().map(producer_state).collect(),
                Err(error) => answer.error_code = errors::of_partition(error).code(),
            }
        }
        work.outstanding -= 1;
        if work.outstanding == 0 {
            self.finish_list(turn, id);
        }
    }

    pub(crate) fn begin_describe_logs<S: Streams>(
        &mut self,
        turn: &mut Turn<'_, S>,
        stream: StreamId,
        reply: ReplyNumber,
        request: &Request,
    ) -> Result<(), EndReason> {
        let asked: DescribeLogDirsRequest = body(request)?;
        let wanted = asked.topics.as_ref().map(|topics| {
            let mut wanted = HashSet::new();
            for topic in topics {
                let Some(known) = self.view.topic(&topic.topic) else { continue };
                let id = |index: &i32| PartitionId { topic: known.id, index: PartitionIndex(*index) };
                wanted.extend(topic.partitions.iter().map(id));
            }
            wanted
        });
        let cores = self.cores;
        let partitions: Option<Vec<PartitionId>> = wanted.as_ref().map(|wanted| wanted.iter().copied().collect());
        let work = LogsGather { asked: wanted, logs: Vec::new(), total: 0, usable: 0, outstanding: usize::from(cores) };
        let by_core = ByCore((0..cores).map(|core| (CoreId(core), Vec::<()>::new())).collect());
        self.gather_or_answer(turn, (stream, reply), request, GatherWork::Logs(work), by_core, |gather, _| {
            Command::DescribeLogs(DescribeLogs { gather, partitions: partitions.clone() })
        });
        Ok(())
    }

    pub(crate) fn on_logs_described<S: Streams>(
        &mut self,
        turn: &mut Turn<'_, S>,
        id: GatherId,
        logs: Vec<LogFacts>,
        total: u64,
        usable: u64,
    ) {
        let Some(gather) = self.gathers.get_mut(Self::token(id)) else { return };
        let GatherWork::Logs(work) = &mut gather.work else { panic!("outcomes answer their commands") };
        work.logs.extend(logs);
        work.total = work.total.max(total);
        work.usable = work.usable.max(usable);
        work.outstanding -= 1;
        if work.outstanding == 0 {
            self.finish_list(turn, id);
        }
    }

    fn log_dirs(&self, work: &LogsGather) -> DescribeLogDirsResponse {
        let mut topics: BTreeMap<String, Vec<DescribeLogDirsPartition>> = BTreeMap::new();
        for log in &work.logs {
            if work.asked.as_ref().is_some_and(|asked| !asked.contains(&log.partition)) {
                continue;
            }
            let Some(topic) = self.view.topic_by_id(log.partition.topic) else { continue };
            topics.entry(topic.name.to_string()).or_default().push(DescribeLogDirsPartition {
                partition_index: log.partition.index.0,
                partition_size: log.size as i64,
                offset_lag: log.lag as i64,
                is_future_key: log.future,
                ..Default::default()
            });
        }
        let topics = topics.into_iter().map(|(name, mut partitions)| {
            partitions.sort_by_key(|partition| partition.partition_index);
            DescribeLogDirsTopic { name: KafkaString::from(name), partitions, ..Default::default() }
        });
        DescribeLogDirsResponse {
            results: vec![DescribeLogDirsResult {
                log_dir: KafkaString::from(self.facts.log_dir.as_str()),
                topics: topics.collect(),
                total_bytes: work.total as i64,
                usable_bytes: work.usable as i64,
                ..Default::default()
            }],
            ..Default::default()
        }
    }
}

fn producer_state(facts: ProducerFacts) -> ProducerState {
    ProducerState {
        producer_id: facts.id.0,
        producer_epoch: i32::from(facts.epoch.0),
        last_sequence: facts.last_sequence.map_or(-1, |sequence| sequence.0),
        last_timestamp: facts.last_timestamp,
        coordinator_epoch: facts.coordinator_epoch.unwrap_or(-1),
        current_txn_start_offset: facts.transaction_start.map_or(-1, |offset| offset.0),
        ..Default::default()
    }
}

/// The special values of ListOffsets and the version each came with; `None` where the version lacks it.
fn offset_query(timestamp: i64, version: i16) -> Option<OffsetQuery> {
    let (query, since) = match timestamp {
        -1 => (OffsetQuery::Latest, 1),
        -2 => (OffsetQuery::Earliest, 1),
        -3 => (OffsetQuery::MaxTimestamp, 7),
        -4 => (OffsetQuery::EarliestLocal, 8),
        -5 => (OffsetQuery::LatestTiered, 9),
        -6 => (OffsetQuery::EarliestPendingUpload, 11),
        at => (OffsetQuery::At(at), 1),
    };
    (version >= since).then_some(query)
}
