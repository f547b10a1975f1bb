//! Produce: split over the cores that own the partitions, gathered, and answered in the request's order.

use crate::api::Asker;
use crate::begin::Reading;
use crate::errors;
use crate::gather::{GatherWork, Later, Opened, Waiting, next_run};
use crate::off_loop::Made;
use crate::sessions::{Sessions, Turn};
use arena::BufferRef;
use base::{CoreId, LeaderEpoch, Monotonic, PartitionId, PartitionIndex, TopicId};
use handoff::{Acks, Command, EntryIndex, GatherId, Produce, ProduceEntry, Produced};
use net::Streams;
use std::ops::Range;
use std::time::Duration;
use view::Topic;
use wire::messages::ProduceResponse;
use wire::messages::produce_request::ProduceRequestView;
use wire::messages::produce_response::{
    BatchIndexAndErrorMessage, LeaderIdAndEpoch, NodeEndpoint, PartitionProduceResponse, TopicProduceResponse,
};
use wire::{DecodeError, ErrorCode, KafkaString, MessageView};

/// Topics by id from here on (KIP-516).
const TOPIC_IDS_SINCE: i16 = 13;
/// The leader is told with NOT_LEADER_OR_FOLLOWER from here on (KIP-951).
const LEADER_TOLD_SINCE: i16 = 10;
/// Errors of single records from here on (KIP-467).
const RECORD_ERRORS_SINCE: i16 = 8;

/// The one client whose records Kafka lets into topics that belong to the coordinators.
const INTERNAL_CLIENT: &str = "__admin_client";

#[derive(Debug)]
pub struct ProduceGather {
    silent: bool,
    response: ProduceResponse,
    /// For each entry its place in the response.
    places: Vec<(u32, u32)>,
    items: usize,
}

impl ProduceGather {
    pub(crate) fn items(&self) -> usize {
        self.items
    }
}

/// The batches of a Produce that have not gone to their cores.
#[derive(Debug)]
pub struct ProduceRun {
    acks: Acks,
    version: i16,
    transactional: bool,
    deadline: Monotonic,
    /// Where in the frame each entry's records lie; none where it has none.
    entries: Waiting<(EntryIndex, PartitionId, Option<Range<usize>>)>,
}

impl ProduceRun {
    pub(crate) fn next_commands(&mut self, gather: GatherId, frame: &BufferRef) -> Vec<(CoreId, Command)> {
        let ProduceRun { acks, version, transactional, deadline, entries } = self;
        let (acks, version, transactional, deadline) = (*acks, *version, *transactional, *deadline);
        let command =
            |(core, entries): (CoreId, Vec<_>)| {
                let entry = |(index, partition, records): (EntryIndex, PartitionId, Option<Range<usize>>)| {
                    ProduceEntry { index, partition, records: records.map(|range| frame.slice(range).into_parcel()) }
                };
                let entries = entries.into_iter().map(entry).collect();
                (core, Command::Produce(Produce { gather, acks, version, transactional, deadline, entries }))
            };
        next_run(entries).into_iter().map(command).collect()
    }
}

/// Reads and routes a request.
pub(crate) fn open(reading: &mut Reading<'_>) -> Result<Opened, DecodeError> {
    let version = reading.version;
    let body = reading.body;
    let view = ProduceRequestView::decode_view(&mut reading.decoder, version)?;
    let acks = match view.acks {
        0 => Ok(Acks::None),
        1 => Ok(Acks::Leader),
        -1 => Ok(Acks::All),
        _ => Err(ErrorCode::InvalidRequiredAcks),
    };
    let mut work =
        ProduceGather { silent: view.acks == 0, response: ProduceResponse::default(), places: Vec::new(), items: 0 };
    let mut entries = Waiting::new();
    let may_write_internal = reading.client_id == Some(INTERNAL_CLIENT);
    for (t, topic) in view.topic_data.iter().enumerate() {
        let (by_id, name) = (version >= TOPIC_IDS_SINCE, topic.name.lossy());
        let known = &reading.asker.view;
        let found = if by_id { known.topic_by_id(TopicId(topic.topic_id)) } else { known.topic(&name) };
        let closed = found.is_some_and(|topic| topic.is_internal()) && !may_write_internal;
        let mut answers = Vec::with_capacity(topic.partition_data.len());
        for (p, partition) in topic.partition_data.iter().enumerate() {
            let mut answer = PartitionProduceResponse {
                index: partition.index,
                base_offset: -1,
                log_append_time_ms: -1,
                ..Default::default()
            };
            let place = match acks {
                Ok(_) => reading.asker.place(found.map(|topic| &**topic), partition.index, by_id),
                Err(error) => Place::Refused(error),
            };
            match place {
                Place::Refused(error) => answer.error_code = error.code(),
                Place::Core(..) if closed => answer.error_code = ErrorCode::InvalidTopicException.code(),
                Place::Core(id, core) => {
                    let index = EntryIndex(work.places.len() as u32);
                    work.places.push((t as u32, p as u32));
                    let records = partition.records.map(|records| {
                        let range = records.range();
                        body + range.start..body + range.end
                    });
                    entries.push_back((core, (index, id, records)));
                }
            }
            answers.push(answer);
        }
        work.items += answers.len();
        work.response.responses.push(TopicProduceResponse {
            name: KafkaString::from(&*name),
            topic_id: topic.topic_id,
            partition_responses: answers,
            ..Default::default()
        });
    }
    let deadline = reading.now + Duration::from_millis(view.timeout_ms.max(0) as u64);
    let transactional = view.transactional_id.is_some();
    let later = acks
        .map_or(Later::Nothing, |acks| Later::Produce(ProduceRun { acks, version, transactional, deadline, entries }));
    Ok(Opened { work: GatherWork::Produce(work), later })
}

/// The answer as bytes; none where the client wants none.
pub(crate) fn finish(asker: Asker<'_>, version: i16, correlation_id: i32, mut work: ProduceGather) -> Made {
    let refused = |answer: &PartitionProduceResponse| answer.error_code != 0;
    let failed = work.response.responses.iter().any(|topic| topic.partition_responses.iter().any(refused));
    if work.silent {
        return Made::Silence { failed };
    }
    if version >= LEADER_TOLD_SINCE && failed {
        tell_leaders(asker, version, &mut work.response);
    }
    let bytes = crate::encode::response_bytes(version, correlation_id, &work.response);
    Made::Answer { bytes, create: Vec::new(), failed }
}

impl Sessions {
    pub(crate) fn on_produced<S: Streams>(
        &mut self,
        turn: &mut Turn<'_, S>,
        id: GatherId,
        last: bool,
        entries: Vec<Produced>,
    ) {
        let Some(gather) = self.gathers.get_mut(Self::token(id)) else { return };
        let version = gather.version;
        let GatherWork::Produce(work) = &mut gather.work else { panic!("outcomes answer their commands") };
        for entry in entries {
            let (topic, partition) = work.places[entry.index.0 as usize];
            let topic = &mut work.response.responses[topic as usize];
            fill(&mut topic.partition_responses[partition as usize], version, entry);
        }
        if last {
            self.on_command_done(turn, id);
        }
    }
}

fn tell_leaders(asker: Asker<'_>, version: i16, response: &mut ProduceResponse) {
    let mut endpoints: Vec<NodeEndpoint> = Vec::new();
    for topic in &mut response.responses {
        let known = if version >= TOPIC_IDS_SINCE {
            asker.view.topic_by_id(TopicId(topic.topic_id))
        } else {
            asker.view.topic(&topic.name)
        };
        for answer in &mut topic.partition_responses {
            if answer.error_code != ErrorCode::NotLeaderOrFollower.code() {
                continue;
            }
            let partition = known.and_then(|topic| topic.partition(PartitionIndex(answer.index)));
            let Some(partition) = partition else { continue };
            answer.current_leader = LeaderIdAndEpoch {
                leader_id: partition.leader.map_or(-1, |leader| leader.0),
                leader_epoch: partition.leader_epoch.0,
                ..Default::default()
            };
            let Some(endpoint) = partition.leader.and_then(|leader| asker.endpoint(leader)) else { continue };
            if !endpoints.iter().any(|known| known.node_id == endpoint.node.0) {
                endpoints.push(NodeEndpoint {
                    node_id: endpoint.node.0,
                    host: endpoint.host,
                    port: endpoint.port,
                    rack: endpoint.rack,
                    ..Default::default()
                });
            }
        }
    }
    response.node_endpoints = endpoints;
}

/// Where a partition of a request is served, or why not here.
pub(crate) enum Place {
    Core(PartitionId, CoreId),
    Refused(ErrorCode),
}

impl Asker<'_> {
    /// The core that leads the partition on this node.
    pub(crate) fn place(&self, topic: Option<&Topic>, index: i32, by_id: bool) -> Place {
        let missing = if by_id { ErrorCode::UnknownTopicId } else { ErrorCode::UnknownTopicOrPartition };
        let Some(topic) = topic else { return Place::Refused(missing) };
        let Some(partition) = topic.partition(PartitionIndex(index)) else {
            return Place::Refused(ErrorCode::UnknownTopicOrPartition);
        };
        let id = PartitionId { topic: topic.id, index: partition.index };
        // A leader whose core is not known yet is a partition just created: the client tries again.
        match self.view.core_of(id).filter(|_| partition.leader == Some(self.node)) {
            Some(core) => Place::Core(id, core),
            None => Place::Refused(ErrorCode::NotLeaderOrFollower),
        }
    }
}

fn fill(answer: &mut PartitionProduceResponse, version: i16, entry: Produced) {
    match entry.result {
        Ok(appended) => {
            answer.base_offset = appended.base_offset.0;
            answer.log_append_time_ms = appended.append_time.unwrap_or(-1);
            answer.log_start_offset = appended.log_start.0;
        }
        Err(error) => {
            let text = version >= RECORD_ERRORS_SINCE && errors::has_text(&error);
            if errors::names_log_start(&error, version) {
                answer.log_start_offset = entry.log_start.0;
            }
            let (code, refusal) = errors::of_produce(error);
            answer.error_code = code.code();
            if text {
                answer.error_message = refusal.message.map(KafkaString::from);
                answer.record_errors = refusal.records.into_iter().map(record_error).collect();
            }
        }
    }
    let _: Option<LeaderEpoch> = entry.epoch;
}

fn record_error(error: handoff::RecordError) -> BatchIndexAndErrorMessage {
    BatchIndexAndErrorMessage {
        batch_index: error.index,
        batch_index_error_message: error.message.map(KafkaString::from),
        ..Default::default()
    }
}
