//! The requests that ask several partitions one small question each: ListOffsets, OffsetForLeaderEpoch, DeleteRecords,
//! DescribeProducers, DescribeLogDirs. One gather each; answers stand in the order of the request.

use crate::api::Asker;
use crate::begin::Reading;
use crate::errors;
use crate::gather::{GatherWork, Later, Opened, Waiting};
use crate::produce::Place;
use crate::sessions::{Sessions, Turn};
use base::{CoreId, LeaderEpoch, NodeId, Offset, PartitionId, PartitionIndex};
use handoff::*;
use net::Streams;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;
use wire::messages::delete_records_response::{DeleteRecordsPartitionResult, DeleteRecordsTopicResult};
use wire::messages::describe_log_dirs_response::{
    DescribeLogDirsPartition, DescribeLogDirsResult, DescribeLogDirsTopic,
};
use wire::messages::describe_producers_response::{PartitionResponse, ProducerState, TopicResponse};
use wire::messages::list_offsets_response::{ListOffsetsPartitionResponse, ListOffsetsTopicResponse};
use wire::messages::offset_for_leader_epoch_response::{EpochEndOffset, OffsetForLeaderTopicResult};
use wire::messages::*;
use wire::{DecodeError, ErrorCode, KafkaString, Response};

/// ListOffsets answers carry the leader epoch from here on.
const LIST_OFFSETS_EPOCH_SINCE: i16 = 4;

/// The place of an entry in its response: topic, partition.
type Spot = (u32, u32);

macro_rules! gather_state {
    ($($name:ident: $response:ty),* $(,)?) => {
        $(#[derive(Debug, Default)]
        pub struct $name {
            response: $response,
            spots: Vec<Spot>,
            pub(crate) items: usize,
        }

        impl $name {
            /// The next entry's number, which is to stand there in the response.
            fn entry(&mut self, topic: usize, partition: usize) -> EntryIndex {
                self.spots.push((topic as u32, partition as u32));
                EntryIndex(self.spots.len() as u32 - 1)
            }
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
}

impl LogsGather {
    pub(crate) fn items(&self) -> usize {
        self.logs.len().max(self.asked.as_ref().map_or(0, HashSet::len))
    }
}

fn epoch(epoch: i32) -> Option<LeaderEpoch> {
    (epoch >= 0).then_some(LeaderEpoch(epoch))
}

fn place_by_name(asker: Asker<'_>, topic: &str, index: i32) -> Place {
    asker.place(asker.view.topic(topic).map(|topic| &**topic), index, false)
}

/// What has been gathered, as bytes.
pub(crate) fn finish(asker: Asker<'_>, log_dir: &str, version: i16, correlation_id: i32, work: GatherWork) -> Vec<u8> {
    fn bytes<R: Response>(version: i16, correlation_id: i32, body: &R) -> Vec<u8> {
        crate::encode::response_bytes(version, correlation_id, body)
    }
    match work {
        GatherWork::ListOffsets(work) => bytes(version, correlation_id, &work.response),
        GatherWork::EpochEnds(work) => bytes(version, correlation_id, &work.response),
        GatherWork::DeleteRecords(work) => bytes(version, correlation_id, &work.response),
        GatherWork::Producers(work) => bytes(version, correlation_id, &work.response),
        GatherWork::Logs(work) => bytes(version, correlation_id, &log_dirs(asker, log_dir, &work)),
        other => unreachable!("{other:?} is finished elsewhere"),
    }
}

pub(crate) fn open_list_offsets(reading: &mut Reading<'_>) -> Result<Opened, DecodeError> {
    let asked: ListOffsetsRequest = reading.message()?;
    let (asker, version) = (reading.asker, reading.version);
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
    let (mut work, mut entries) = (ListOffsetsGather::default(), Waiting::new());
    for (t, topic) in asked.topics.iter().enumerate() {
        let mut answers = Vec::with_capacity(topic.partitions.len());
        let mut seen = HashSet::new();
        for partition in &topic.partitions {
            let index = partition.partition_index;
            // One asked for twice is refused once.
            if !seen.insert(index) {
                continue;
            }
            let mut answer = ListOffsetsPartitionResponse {
                partition_index: index,
                timestamp: -1,
                offset: -1,
                leader_epoch: -1,
                ..Default::default()
            };
            let query = offset_query(partition.timestamp, version);
            match (place_by_name(asker, &topic.name, index), query) {
                _ if times[&(topic.name.as_str(), index)] > 1 => {
                    answer.error_code = ErrorCode::InvalidRequest.code();
                }
                (_, None) => answer.error_code = ErrorCode::UnsupportedVersion.code(),
                (Place::Refused(error), _) => answer.error_code = error.code(),
                (Place::Core(partition_id, core), Some(query)) => {
                    let current_epoch = epoch(partition.current_leader_epoch);
                    let index = work.entry(t, answers.len());
                    let entry = ListOffsetsEntry { index, partition: partition_id, current_epoch, query };
                    entries.push_back((core, entry));
                }
            }
            answers.push(answer);
        }
        work.items += answers.len();
        let (name, partitions) = (topic.name.clone(), answers);
        work.response.topics.push(ListOffsetsTopicResponse { name, partitions, ..Default::default() });
    }
    Ok(Opened { work: GatherWork::ListOffsets(work), later: Later::ListOffsets(reader, version, entries) })
}

pub(crate) fn open_epoch_ends(reading: &mut Reading<'_>) -> Result<Opened, DecodeError> {
    let asked: OffsetForLeaderEpochRequest = reading.message()?;
    let (mut work, mut entries) = (EpochEndsGather::default(), Waiting::new());
    for (t, topic) in asked.topics.iter().enumerate() {
        let mut answers = Vec::with_capacity(topic.partitions.len());
        for (p, partition) in topic.partitions.iter().enumerate() {
            let mut answer = EpochEndOffset {
                partition: partition.partition,
                leader_epoch: -1,
                end_offset: -1,
                ..Default::default()
            };
            match place_by_name(reading.asker, &topic.topic, partition.partition) {
                Place::Refused(error) => answer.error_code = error.code(),
                Place::Core(id, core) => {
                    let entry = EpochEndsEntry {
                        index: work.entry(t, p),
                        partition: id,
                        current_epoch: epoch(partition.current_leader_epoch),
                        epoch: LeaderEpoch(partition.leader_epoch),
                    };
                    entries.push_back((core, entry));
                }
            }
            answers.push(answer);
        }
        work.items += answers.len();
        let (topic, partitions) = (topic.topic.clone(), answers);
        work.response.topics.push(OffsetForLeaderTopicResult { topic, partitions, ..Default::default() });
    }
    Ok(Opened { work: GatherWork::EpochEnds(work), later: Later::EpochEnds(entries) })
}

pub(crate) fn open_delete_records(reading: &mut Reading<'_>) -> Result<Opened, DecodeError> {
    let asked: DeleteRecordsRequest = reading.message()?;
    let (mut work, mut entries) = (DeleteRecordsGather::default(), Waiting::new());
    for (t, topic) in asked.topics.iter().enumerate() {
        // The records of the coordinators' topics are theirs.
        let internal = reading.asker.view.topic(&topic.name).is_some_and(|topic| topic.is_internal());
        let mut answers = Vec::with_capacity(topic.partitions.len());
        for (p, partition) in topic.partitions.iter().enumerate() {
            let mut answer = DeleteRecordsPartitionResult {
                partition_index: partition.partition_index,
                low_watermark: -1,
                ..Default::default()
            };
            match place_by_name(reading.asker, &topic.name, partition.partition_index) {
                Place::Refused(error) => answer.error_code = error.code(),
                Place::Core(..) if internal => answer.error_code = ErrorCode::InvalidTopicException.code(),
                Place::Core(..) if partition.offset < -1 => answer.error_code = ErrorCode::OffsetOutOfRange.code(),
                Place::Core(id, core) => {
                    let before = (partition.offset >= 0).then_some(Offset(partition.offset));
                    entries.push_back((core, DeleteRecordsEntry { index: work.entry(t, p), partition: id, before }));
                }
            }
            answers.push(answer);
        }
        work.items += answers.len();
        let (name, partitions) = (topic.name.clone(), answers);
        work.response.topics.push(DeleteRecordsTopicResult { name, partitions, ..Default::default() });
    }
    let deadline = reading.now + Duration::from_millis(asked.timeout_ms.max(0) as u64);
    Ok(Opened { work: GatherWork::DeleteRecords(work), later: Later::DeleteRecords(deadline, entries) })
}

pub(crate) fn open_describe_producers(reading: &mut Reading<'_>) -> Result<Opened, DecodeError> {
    let asked: DescribeProducersRequest = reading.message()?;
    let (mut work, mut entries) = (ProducersGather::default(), Waiting::new());
    for (t, topic) in asked.topics.iter().enumerate() {
        let mut answers = Vec::with_capacity(topic.partition_indexes.len());
        for (p, index) in topic.partition_indexes.iter().enumerate() {
            let mut answer = PartitionResponse { partition_index: *index, ..Default::default() };
            match place_by_name(reading.asker, &topic.name, *index) {
                _ if !crate::api::is_valid_topic_name(&topic.name) => {
                    answer.error_code = ErrorCode::InvalidTopicException.code();
                    answer.error_message = Some(KafkaString::from_static("The topic's name is not valid."));
                }
                Place::Refused(error) => {
                    answer.error_code = error.code();
                    if reading.asker.view.topic(&topic.name).is_none() {
                        answer.error_message = Some(KafkaString::from_static("There is no such topic."));
                    }
                }
                Place::Core(id, core) => entries.push_back((core, (work.entry(t, p), id))),
            }
            answers.push(answer);
        }
        work.items += answers.len();
        let (name, partitions) = (topic.name.clone(), answers);
        work.response.topics.push(TopicResponse { name, partitions, ..Default::default() });
    }
    Ok(Opened { work: GatherWork::Producers(work), later: Later::Producers(entries) })
}

pub(crate) fn open_describe_logs(reading: &mut Reading<'_>, cores: u16) -> Result<Opened, DecodeError> {
    let asked: DescribeLogDirsRequest = reading.message()?;
    let (view, node) = (reading.asker.view, reading.asker.node);
    let wanted = asked.topics.as_ref().map(|topics| {
        let mut wanted = HashSet::new();
        for topic in topics {
            let Some(known) = view.topic(&topic.topic) else { continue };
            let id = |index: &i32| PartitionId { topic: known.id, index: PartitionIndex(*index) };
            wanted.extend(topic.partitions.iter().map(id));
        }
        wanted
    });
    let mut entries = Waiting::new();
    // What no topic of the view has is not told of: so only partitions of the view are asked for.
    for topic in view.topics() {
        for partition in topic.partitions.iter().filter(|partition| partition.replicas.contains(&node)) {
            let id = PartitionId { topic: topic.id, index: partition.index };
            if wanted.as_ref().is_some_and(|wanted| !wanted.contains(&id)) {
                continue;
            }
            match view.core_of(id) {
                Some(core) => entries.push_back((core, id)),
                // Held by a core that no duty has named yet, if at all.
                None => entries.extend((0..cores).map(|core| (CoreId(core), id))),
            }
        }
    }
    let work = LogsGather { asked: wanted, logs: Vec::new(), total: 0, usable: 0 };
    Ok(Opened { work: GatherWork::Logs(work), later: Later::Logs { cores, entries } })
}

impl Sessions {
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
        self.on_command_done(turn, id);
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
        self.on_command_done(turn, id);
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
        self.on_command_done(turn, id);
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
        self.on_command_done(turn, id);
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
        self.on_command_done(turn, id);
    }
}

fn log_dirs(asker: Asker<'_>, log_dir: &str, work: &LogsGather) -> DescribeLogDirsResponse {
    let mut topics: BTreeMap<String, Vec<DescribeLogDirsPartition>> = BTreeMap::new();
    for log in &work.logs {
        if work.asked.as_ref().is_some_and(|asked| !asked.contains(&log.partition)) {
            continue;
        }
        let Some(topic) = asker.view.topic_by_id(log.partition.topic) else { continue };
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
            log_dir: KafkaString::from(log_dir),
            topics: topics.collect(),
            total_bytes: work.total as i64,
            usable_bytes: work.usable as i64,
            ..Default::default()
        }],
        ..Default::default()
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
