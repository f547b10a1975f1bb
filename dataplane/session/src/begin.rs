//! Dispatch of requests that the dataplane answers.

use crate::api::{self, Asker};
use crate::connection::{EndReason, Request};
use crate::gather::{Gather, Opened};
use crate::limits::{DESCRIBED_ON_THE_LOOP_MAX, ITEMS_ON_THE_LOOP_MAX, TOPICS_ON_THE_LOOP_MAX};
use crate::lists;
use crate::replies::ReplyNumber;
use crate::sessions::{Sessions, Turn};
use base::Monotonic;
use link::Up;
use net::{StreamId, Streams};
use wire::messages::*;
use wire::{ApiKey, DecodeError, Decoder, ErrorCode, Message};

/// Ids left in a core's share below which more are asked for.
const PRODUCER_IDS_LOW: u32 = 100;

/// Why a loop did not begin a request.
#[derive(Debug)]
pub(crate) enum NotBegun {
    /// It has more elements than a loop looks at: a helper takes it.
    Long,
    Ends(EndReason),
}

impl NotBegun {
    pub(crate) fn of(api: ApiKey, error: DecodeError) -> NotBegun {
        match error {
            DecodeError::TooManyForReader => NotBegun::Long,
            error => NotBegun::Ends(EndReason::Malformed(format!("{}: {error}", api.name()))),
        }
    }
}

impl From<NotBegun> for EndReason {
    fn from(not_begun: NotBegun) -> EndReason {
        match not_begun {
            NotBegun::Long => unreachable!("only a loop finds a request long"),
            NotBegun::Ends(reason) => reason,
        }
    }
}

/// A request's body being read, by a loop or by a helper, with all that its answer may depend on.
pub(crate) struct Reading<'a> {
    pub asker: Asker<'a>,
    pub version: i16,
    pub client_id: Option<&'a str>,
    /// When it began: its deadlines count from there.
    pub now: Monotonic,
    /// Where the body begins in the frame.
    pub body: usize,
    pub decoder: Decoder<'a>,
}

impl Reading<'_> {
    /// The whole message. Bytes behind it are nobody's, as Kafka has it.
    pub fn message<M: Message>(&mut self) -> Result<M, DecodeError> {
        M::decode(&mut self.decoder, self.version)
    }
}

/// Decodes the body of a request that has no arrays.
fn whole<M: Message>(request: &Request) -> Result<M, NotBegun> {
    let mut decoder = Decoder::new(&request.frame[request.body..]);
    M::decode(&mut decoder, request.version).map_err(|error| NotBegun::of(request.api, error))
}

/// Decodes a request's body on the loop, where it is not too long for that.
fn body<M: Message>(request: &Request) -> Result<M, NotBegun> {
    let mut decoder = Decoder::new(&request.frame[request.body..]).with_elements_max(ITEMS_ON_THE_LOOP_MAX);
    M::decode(&mut decoder, request.version).map_err(|error| NotBegun::of(request.api, error))
}

impl Sessions {
    pub(crate) fn begin_view<S: Streams>(
        &mut self,
        turn: &mut Turn<'_, S>,
        stream: StreamId,
        reply: ReplyNumber,
        request: &Request,
    ) -> Result<(), NotBegun> {
        let listener = self.connections[&stream].listener;
        match request.api {
            ApiKey::ApiVersions => self.begin_api_versions(turn, stream, reply, request)?,
            ApiKey::Metadata => self.begin_metadata(turn, stream, reply, request)?,
            ApiKey::DescribeCluster => {
                let asked: DescribeClusterRequest = whole(request)?;
                let response = api::describe_cluster::answer(self.asker(listener), &asked, request.version);
                self.answer(turn, stream, reply, request, &response);
            }
            ApiKey::DescribeTopicPartitions => {
                let asked: DescribeTopicPartitionsRequest = body(request)?;
                // It goes on behind the last topic that was asked for.
                if self.has_much() {
                    return Err(NotBegun::Long);
                }
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
                let asked: InitProducerIdRequest = whole(request)?;
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
    ) -> Result<(), NotBegun> {
        if !ApiKey::ApiVersions.supports(request.version) {
            let old = Request { version: 0, ..request.clone() };
            self.answer(turn, stream, reply, &old, &api::api_versions::unsupported_version());
            return Ok(());
        }
        let asked: ApiVersionsRequest = whole(request)?;
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
    ) -> Result<(), NotBegun> {
        let asked: MetadataRequest = body(request)?;
        if api::metadata::partitions_told(&self.view, &asked, request.version) > DESCRIBED_ON_THE_LOOP_MAX {
            return Err(NotBegun::Long);
        }
        // Versions below 4 carry no flag: they always allow creation.
        let asker = self.asker(self.connections[&stream].listener);
        let (response, create) = api::metadata::answer(asker, &asked, request.version);
        self.auto_create(stream, create);
        self.answer(turn, stream, reply, request, &response);
        Ok(())
    }

    /// Whether an answer about all topics may take longer than a loop may be held.
    fn has_much(&self) -> bool {
        let partitions = || self.view.topics().map(|topic| topic.partitions.len()).sum::<usize>();
        self.view.topic_count() > TOPICS_ON_THE_LOOP_MAX || partitions() > ITEMS_ON_THE_LOOP_MAX
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
    ) -> Result<(), NotBegun> {
        if request.api == ApiKey::DescribeLogDirs && self.has_much() {
            return Err(NotBegun::Long);
        }
        let listener = self.connections[&stream].listener;
        let decoder = Decoder::new(&request.frame[request.body..]).with_elements_max(ITEMS_ON_THE_LOOP_MAX);
        let mut reading = Reading {
            asker: self.asker(listener),
            version: request.version,
            client_id: request.client_id.as_deref(),
            now: turn.now.monotonic,
            body: request.body,
            decoder,
        };
        let began = turn.now.monotonic;
        if request.api == ApiKey::Fetch {
            let asked = crate::fetch::open(&mut reading).map_err(|error| NotBegun::of(request.api, error))?;
            let id = self.open_gather(Gather::new(stream, reply, listener, request, began));
            self.resolve_fetch(turn, id, asked);
            return Ok(());
        }
        let opened = open(request.api, &mut reading, self.cores).map_err(|error| NotBegun::of(request.api, error))?;
        let id = self.open_gather(Gather::new(stream, reply, listener, request, began));
        self.dispatch(turn, id, opened, request.frame.clone());
        Ok(())
    }
}

/// Reads and routes a request that the cores of its partitions answer.
pub(crate) fn open(api: ApiKey, reading: &mut Reading<'_>, cores: u16) -> Result<Opened, DecodeError> {
    match api {
        ApiKey::Produce => crate::produce::open(reading),
        ApiKey::ListOffsets => lists::open_list_offsets(reading),
        ApiKey::OffsetForLeaderEpoch => lists::open_epoch_ends(reading),
        ApiKey::DeleteRecords => lists::open_delete_records(reading),
        ApiKey::DescribeProducers => lists::open_describe_producers(reading),
        ApiKey::DescribeLogDirs => lists::open_describe_logs(reading, cores),
        other => unreachable!("{other:?} is not routed to partitions"),
    }
}
