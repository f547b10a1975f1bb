//! Produce: split over the cores that own the partitions, gathered, and answered in the request's order.

use crate::connection::{EndReason, Request};
use crate::errors;
use crate::gather::{Gather, GatherWork};
use crate::replies::ReplyNumber;
use crate::sessions::{Sessions, Turn};
use base::{CoreId, LeaderEpoch, PartitionId, PartitionIndex, TopicId};
use handoff::{Acks, Command, EntryIndex, GatherId, Produce, ProduceEntry, Produced};
use net::{StreamId, Streams};
use std::collections::VecDeque;
use std::time::Duration;
use view::Topic;
use wire::messages::ProduceResponse;
use wire::messages::produce_request::ProduceRequestView;
use wire::messages::produce_response::{
    BatchIndexAndErrorMessage, LeaderIdAndEpoch, NodeEndpoint, PartitionProduceResponse, TopicProduceResponse,
};
use wire::{Decoder, ErrorCode, KafkaString, MessageView};

/// Topics by id from here on (KIP-516).
const TOPIC_IDS_SINCE: i16 = 13;
/// The leader is told with NOT_LEADER_OR_FOLLOWER from here on (KIP-951).
const LEADER_TOLD_SINCE: i16 = 10;
/// Errors of single records from here on (KIP-467).
const RECORD_ERRORS_SINCE: i16 = 8;

/// The one client whose records Kafka lets into topics that belong to the coordinators.
const INTERNAL_CLIENT: &str = "__admin_client";

fn writes_internal_topics(request: &Request) -> bool {
    request.client_id.as_deref() == Some(INTERNAL_CLIENT)
}

#[derive(Debug)]
pub struct ProduceGather {
    silent: bool,
    response: ProduceResponse,
    /// For each entry its place in the response.
    places: Vec<(u32, u32)>,
    /// Commands whose last outcome has not come.
    outstanding: usize,
}

/// Where a partition of a request is served, or why not here.
pub(crate) enum Place {
    Core(PartitionId, CoreId),
    Refused(ErrorCode),
}

impl Sessions {
    /// The core that leads the partition on this node.
    pub(crate) fn place(&self, topic: Option<&Topic>, index: i32, by_id: bool) -> Place {
        let missing = if by_id { ErrorCode::UnknownTopicId } else { ErrorCode::UnknownTopicOrPartition };
        let Some(topic) = topic else { return Place::Refused(missing) };
        let Some(partition) = topic.partition(PartitionIndex(index)) else {
            return Place::Refused(ErrorCode::UnknownTopicOrPartition);
        };
        let id = PartitionId { topic: topic.id, index: partition.index };
        // A leader whose core is not known yet is a partition just created: the client tries again.
        match self.view.core_of(id).filter(|_| partition.leader == Some(self.facts.node)) {
            Some(core) => Place::Core(id, core),
            None => Place::Refused(ErrorCode::NotLeaderOrFollower),
        }
    }

    pub(crate) fn begin_produce<S: Streams>(
        &mut self,
        turn: &mut Turn<'_, S>,
        stream: StreamId,
        reply: ReplyNumber,
        request: &Request,
    ) -> Result<(), EndReason> {
        let frame = request.frame.clone();
        let mut decoder = Decoder::new(&frame[request.body..]);
        let view = ProduceRequestView::decode_view(&mut decoder, request.version)
            .map_err(|error| EndReason::Malformed(format!("Produce: {error}")))?;
        let acks = match view.acks {
            0 => Ok(Acks::None),
            1 => Ok(Acks::Leader),
            -1 => Ok(Acks::All),
            _ => Err(ErrorCode::InvalidRequiredAcks),
        };
        let mut work = ProduceGather {
            silent: view.acks == 0,
            response: ProduceResponse::default(),
            places: Vec::new(),
            outstanding: 0,
        };
        let mut by_core: Vec<(CoreId, Vec<ProduceEntry>)> = Vec::new();
        for (t, topic) in view.topic_data.iter().enumerate() {
            let (by_id, name) = (request.version >= TOPIC_IDS_SINCE, topic.name.lossy());
            let found = if by_id { self.view.topic_by_id(TopicId(topic.topic_id)) } else { self.view.topic(&name) };
            let closed = found.is_some_and(|topic| topic.is_internal()) && !writes_internal_topics(request);
            let mut answers = Vec::with_capacity(topic.partition_data.len());
            for (p, partition) in topic.partition_data.iter().enumerate() {
                let mut answer = PartitionProduceResponse {
                    index: partition.index,
                    base_offset: -1,
                    log_append_time_ms: -1,
                    ..Default::default()
                };
                let place = match acks {
                    Ok(_) => self.place(found.map(|topic| &**topic), partition.index, by_id),
                    Err(error) => Place::Refused(error),
                };
                let place = match place {
                    Place::Core(..) if closed => Place::Refused(ErrorCode::InvalidTopicException),
                    place => place,
                };
                match place {
                    Place::Refused(error) => answer.error_code = error.code(),
                    Place::Core(id, core) => {
                        let index = EntryIndex(work.places.len() as u32);
                        work.places.push((t as u32, p as u32));
                        let records = partition.records.map(|records| {
                            let range = records.range();
                            frame.slice(request.body + range.start..request.body + range.end).into_parcel()
                        });
                        let entry = ProduceEntry { index, partition: id, records };
                        match by_core.iter_mut().find(|(known, _)| *known == core) {
                            Some((_, entries)) => entries.push(entry),
                            None => by_core.push((core, vec![entry])),
                        }
                    }
                }
                answers.push(answer);
            }
            work.response.responses.push(TopicProduceResponse {
                name: KafkaString::from(&*name),
                topic_id: topic.topic_id,
                partition_responses: answers,
                ..Default::default()
            });
        }
        work.outstanding = by_core.len();
        let now = turn.now.monotonic;
        let gather = self.open_gather(Gather::new(stream, reply, request, now, GatherWork::Produce(work)));
        let deadline = now + Duration::from_millis(view.timeout_ms.max(0) as u64);
        let Ok(acks) = acks else {
            self.finish_produce(turn, gather);
            return Ok(());
        };
        if by_core.is_empty() {
            self.finish_produce(turn, gather);
            return Ok(());
        }
        let transactional = view.transactional_id.is_some();
        for (core, entries) in by_core {
            let version = request.version;
            let command = Produce { gather, acks, version, transactional, deadline, entries };
            self.out.commands.push((core, Command::Produce(command)));
        }
        Ok(())
    }

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
        work.outstanding -= usize::from(last);
        if work.outstanding == 0 {
            self.finish_produce(turn, id);
        }
    }

    fn finish_produce<S: Streams>(&mut self, turn: &mut Turn<'_, S>, id: GatherId) {
        let gather = self.gathers.remove(Self::token(id)).expect("finished once");
        let GatherWork::Produce(work) = &gather.work else { panic!("outcomes answer their commands") };
        let refused = |answer: &PartitionProduceResponse| answer.error_code != 0;
        let failed = work.response.responses.iter().any(|topic| topic.partition_responses.iter().any(refused));
        self.note_answered(turn.now, &gather, failed);
        let GatherWork::Produce(mut work) = gather.work else { panic!("just looked") };
        let Some(connection) = self.connections.get_mut(&gather.stream) else { return };
        if work.silent {
            if failed {
                connection.replies.close(gather.reply);
            } else {
                connection.replies.silent(gather.reply);
            }
        } else {
            if gather.version >= LEADER_TOLD_SINCE {
                let listener = connection.listener;
                self.tell_leaders(listener, gather.version, &mut work.response);
            }
            let bytes = crate::encode::response(gather.version, gather.correlation_id, &work.response);
            let connection = self.connections.get_mut(&gather.stream).expect("just looked");
            connection.replies.ready(gather.reply, VecDeque::from([crate::replies::Piece::Bytes(bytes)]));
        }
        self.pump(turn, gather.stream);
        self.advance(turn, gather.stream);
    }

    fn tell_leaders(&self, listener: base::ListenerId, version: i16, response: &mut ProduceResponse) {
        let asker = self.asker(listener);
        let mut endpoints: Vec<NodeEndpoint> = Vec::new();
        for topic in &mut response.responses {
            let known = if version >= TOPIC_IDS_SINCE {
                self.view.topic_by_id(TopicId(topic.topic_id))
            } else {
                self.view.topic(&topic.name)
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
