//! Answers from the view that grow with the number of topics: a helper looks them up and encodes them over the immutable
//! snapshot, and the loop sends what comes back. In the loop, Metadata of 20,000 topics held a core for 50 to 100 ms.

use crate::api::{self, Asker};
use crate::begin::decode_body;
use crate::connection::{EndReason, Request};
use crate::gather::{Gather, GatherWork};
use crate::replies::{Piece, ReplyNumber};
use crate::sessions::{NodeFacts, Sessions, Turn};
use arena::BufferRef;
use base::{ListenerId, Work};
use handoff::GatherId;
use net::{StreamId, Streams};
use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use view::View;
use wire::messages::{DescribeTopicPartitionsRequest, MetadataRequest};
use wire::{ApiKey, Response};

/// A request longer than this may name more topics than a loop looks up in its time.
const BODY_ON_THE_LOOP_MAX: usize = 2048;
/// Topics that a loop answers about by itself: one takes some 3 us.
const TOPICS_ON_THE_LOOP_MAX: usize = 32;

/// A job for a helper, and the gather that waits for it.
pub struct OffLoop {
    pub gather: GatherId,
    pub work: Box<dyn Work>,
}

impl fmt::Debug for OffLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OffLoop").field("gather", &self.gather).finish_non_exhaustive()
    }
}

/// A request that a helper answers.
struct ViewAnswer {
    view: Arc<View>,
    facts: Arc<NodeFacts>,
    listener: ListenerId,
    api: ApiKey,
    version: i16,
    correlation_id: i32,
    body: Vec<u8>,
    /// `max.request.partition.size.limit`.
    partitions_max: i32,
    made: Result<Made, EndReason>,
}

#[derive(Default)]
struct Made {
    bytes: Vec<u8>,
    /// Topics that the request would have created.
    create: Vec<String>,
}

impl ViewAnswer {
    fn make(&self) -> Result<Made, EndReason> {
        let asker = Asker {
            view: &self.view,
            node: self.facts.node,
            cluster_id: &self.facts.cluster_id,
            listener_name: &self.facts.listeners[usize::from(self.listener.0)],
        };
        match self.api {
            ApiKey::Metadata => {
                let asked: MetadataRequest = decode_body(self.api, self.version, &self.body)?;
                let (response, create) = api::metadata::answer(asker, &asked, self.version);
                Ok(Made { bytes: self.encode(&response), create })
            }
            ApiKey::DescribeTopicPartitions => {
                let asked: DescribeTopicPartitionsRequest = decode_body(self.api, self.version, &self.body)?;
                let response = api::describe_topic_partitions::answer(asker, &asked, self.partitions_max);
                Ok(Made { bytes: self.encode(&response), create: Vec::new() })
            }
            other => unreachable!("{other:?} is answered by the loop"),
        }
    }

    fn encode<R: Response>(&self, response: &R) -> Vec<u8> {
        crate::encode::response_bytes(self.version, self.correlation_id, response)
    }
}

impl Work for ViewAnswer {
    fn run(&mut self) {
        self.made = self.make();
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

impl Sessions {
    /// Whether an answer about all topics may take longer than a loop may be held.
    pub(crate) fn has_many_topics(&self) -> bool {
        self.view.topic_count() > TOPICS_ON_THE_LOOP_MAX
    }

    /// Whether the request may take longer than that, as far as can be told without reading it.
    pub(crate) fn is_long(&self, request: &Request) -> bool {
        let long = request.frame.len() - request.body > BODY_ON_THE_LOOP_MAX;
        match request.api {
            ApiKey::Metadata => long,
            // It goes on behind the last topic that was asked for.
            ApiKey::DescribeTopicPartitions => long || self.has_many_topics(),
            _ => false,
        }
    }

    pub(crate) fn begin_off_loop<S: Streams>(
        &mut self,
        turn: &mut Turn<'_, S>,
        stream: StreamId,
        reply: ReplyNumber,
        request: &Request,
    ) {
        let work = ViewAnswer {
            view: Arc::clone(&self.view),
            facts: Arc::clone(&self.facts),
            listener: self.connections[&stream].listener,
            api: request.api,
            version: request.version,
            correlation_id: request.correlation_id,
            body: request.frame[request.body..].to_vec(),
            partitions_max: self.settings.typed().max_request_partition_size_limit,
            made: Ok(Made::default()),
        };
        let gather = self.open_gather(Gather::new(stream, reply, request, turn.now.monotonic, GatherWork::OffLoop));
        self.out.work.push(OffLoop { gather, work: Box::new(work) });
    }

    /// A helper is done with an answer.
    pub fn on_work<S: Streams>(&mut self, turn: &mut Turn<'_, S>, id: GatherId, work: Box<dyn Work>) {
        let work = work.into_any().downcast::<ViewAnswer>().expect("what was sent comes back");
        // Nobody waits where the connection ended.
        let Some(gather) = self.gathers.remove(Self::token(id)) else { return };
        self.note_answered(turn.now, &gather, false);
        match work.made {
            Ok(Made { bytes, create }) => {
                self.auto_create(gather.stream, create);
                self.reply(
                    turn,
                    gather.stream,
                    gather.reply,
                    VecDeque::from([Piece::Bytes(BufferRef::from_vec(bytes))]),
                );
                self.advance(turn, gather.stream);
            }
            Err(reason) => self.end(turn, gather.stream, reason),
        }
    }
}
