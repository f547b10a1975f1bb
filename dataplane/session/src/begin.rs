//! Dispatch of requests that the dataplane answers.

use crate::api;
use crate::connection::{EndReason, Request};
use crate::replies::ReplyNumber;
use crate::sessions::{Sessions, Turn};
use link::Up;
use net::{StreamId, Streams};
use wire::messages::*;
use wire::{ApiKey, Decoder, ErrorCode, Message};

/// Ids left in a core's share below which more are asked for.
const PRODUCER_IDS_LOW: u32 = 100;

/// Decodes a request's body. Bytes behind it are nobody's, as Kafka has it.
pub(crate) fn body<M: Message>(request: &Request) -> Result<M, EndReason> {
    decode_body(request.api, request.version, &request.frame[request.body..])
}

pub(crate) fn decode_body<M: Message>(api: ApiKey, version: i16, bytes: &[u8]) -> Result<M, EndReason> {
    M::decode(&mut Decoder::new(bytes), version)
        .map_err(|error| EndReason::Malformed(format!("{}: {error}", api.name())))
}

impl Sessions {
    pub(crate) fn begin_view<S: Streams>(
        &mut self,
        turn: &mut Turn<'_, S>,
        stream: StreamId,
        reply: ReplyNumber,
        request: &Request,
    ) -> Result<(), EndReason> {
        let listener = self.connections[&stream].listener;
        match request.api {
            _ if self.is_long(request) => self.begin_off_loop(turn, stream, reply, request),
            ApiKey::ApiVersions => self.begin_api_versions(turn, stream, reply, request)?,
            ApiKey::Metadata => self.begin_metadata(turn, stream, reply, request)?,
            ApiKey::DescribeCluster => {
                let asked: DescribeClusterRequest = body(request)?;
                let response = api::describe_cluster::answer(self.asker(listener), &asked, request.version);
                self.answer(turn, stream, reply, request, &response);
            }
            ApiKey::DescribeTopicPartitions => {
                let asked: DescribeTopicPartitionsRequest = body(request)?;
                let limit = self.settings.typed().max_request_partition_size_limit;
                let response = api::describe_topic_partitions::answer(self.asker(listener), &asked, limit);
                self.answer(turn, stream, reply, request, &response);
            }
            ApiKey::FindCoordinator => {
                let asked: FindCoordinatorRequest = body(request)?;
                match api::find_coordinator::answer(self.asker(listener), &asked, request.version) {
                    Some(response) => self.answer(turn, stream, reply, request, &response),
                    None => self.forward(turn, stream, reply, request.clone()),
                }
            }
            ApiKey::InitProducerId => {
                let asked: InitProducerIdRequest = body(request)?;
                let half_known = (asked.producer_id == -1) != (asked.producer_epoch == -1);
                let response = match asked.transactional_id.as_deref() {
                    Some("") => api::init_producer_id::refused(ErrorCode::InvalidRequest),
                    _ if half_known => api::init_producer_id::refused(ErrorCode::InvalidRequest),
                    None => api::init_producer_id::answer(&mut self.producer_ids),
                    Some(_) => api::init_producer_id::refused(ErrorCode::UnsupportedVersion),
                };
                self.out.producer_ids_wanted |= self.producer_ids.in_hand() < PRODUCER_IDS_LOW;
                self.answer(turn, stream, reply, request, &response);
            }
            other => unreachable!("{other:?} is not routed to the view"),
        }
        Ok(())
    }

    fn begin_api_versions<S: Streams>(
        &mut self,
        turn: &mut Turn<'_, S>,
        stream: StreamId,
        reply: ReplyNumber,
        request: &Request,
    ) -> Result<(), EndReason> {
        if !ApiKey::ApiVersions.supports(request.version) {
            let old = Request { version: 0, ..request.clone() };
            self.answer(turn, stream, reply, &old, &api::api_versions::unsupported_version());
            return Ok(());
        }
        let asked: ApiVersionsRequest = body(request)?;
        let connection = self.connections.get_mut(&stream).expect("requests come from connections");
        let response = {
            let listener = connection.listener;
            if request.version >= 3 {
                connection.software_name = asked.client_software_name.to_string();
                connection.software_version = asked.client_software_version.to_string();
            }
            api::api_versions::answer(self.asker(listener), &asked, request.version)
        };
        self.answer(turn, stream, reply, request, &response);
        Ok(())
    }

    fn begin_metadata<S: Streams>(
        &mut self,
        turn: &mut Turn<'_, S>,
        stream: StreamId,
        reply: ReplyNumber,
        request: &Request,
    ) -> Result<(), EndReason> {
        let asked: MetadataRequest = body(request)?;
        if self.has_many_topics() && api::metadata::asks_for_all(&asked, request.version) {
            self.begin_off_loop(turn, stream, reply, request);
            return Ok(());
        }
        // Versions below 4 carry no flag: they always allow creation.
        let asker = self.asker(self.connections[&stream].listener);
        let (response, create) = api::metadata::answer(asker, &asked, request.version);
        self.auto_create(stream, create);
        self.answer(turn, stream, reply, request, &response);
        Ok(())
    }

    /// Asks for topics that a connection's Metadata named and may create.
    pub(crate) fn auto_create(&mut self, stream: StreamId, topics: Vec<String>) {
        if topics.is_empty() || !self.settings.typed().auto_create_topics_enable {
            return;
        }
        let Some(connection) = self.connections.get(&stream) else { return };
        let (principal, client_host) = ("User:ANONYMOUS".to_owned(), connection.peer_host());
        self.out.up.push(Up::AutoCreate { topics, principal, client_host });
    }

    pub(crate) fn begin_partitions<S: Streams>(
        &mut self,
        turn: &mut Turn<'_, S>,
        stream: StreamId,
        reply: ReplyNumber,
        request: &Request,
    ) -> Result<(), EndReason> {
        match request.api {
            ApiKey::Produce => self.begin_produce(turn, stream, reply, request),
            ApiKey::Fetch => self.begin_fetch(turn, stream, reply, request),
            ApiKey::ListOffsets => self.begin_list_offsets(turn, stream, reply, request),
            ApiKey::OffsetForLeaderEpoch => self.begin_epoch_ends(turn, stream, reply, request),
            ApiKey::DeleteRecords => self.begin_delete_records(turn, stream, reply, request),
            ApiKey::DescribeProducers => self.begin_describe_producers(turn, stream, reply, request),
            ApiKey::DescribeLogDirs => self.begin_describe_logs(turn, stream, reply, request),
            other => unreachable!("{other:?} is not routed to partitions"),
        }
    }
}
