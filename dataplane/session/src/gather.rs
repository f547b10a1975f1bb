//! Gather slots: one per request that waits for other cores, on its connection's core. The slot alone keeps the deadline
//! and puts the answers in the order of the request.

use crate::connection::Request;
use crate::fetch::FetchGather;
use crate::lists::{DeleteRecordsGather, EpochEndsGather, ListOffsetsGather, LogsGather, ProducersGather};
use crate::produce::ProduceGather;
use crate::replies::ReplyNumber;
use base::{Monotonic, TimerToken};
use net::StreamId;
use wire::ApiKey;

#[derive(Debug)]
pub struct Gather {
    pub stream: StreamId,
    pub reply: ReplyNumber,
    pub api: ApiKey,
    pub version: i16,
    pub correlation_id: i32,
    pub began: Monotonic,
    pub timer: Option<TimerToken>,
    pub work: GatherWork,
}

#[derive(Debug)]
pub enum GatherWork {
    Produce(ProduceGather),
    Fetch(FetchGather),
    ListOffsets(ListOffsetsGather),
    EpochEnds(EpochEndsGather),
    DeleteRecords(DeleteRecordsGather),
    Producers(ProducersGather),
    Logs(LogsGather),
    /// A helper makes the answer.
    OffLoop,
    /// Stored bytes of a response that is being sent; it has no reply of its own.
    Window,
}

impl Gather {
    pub fn new(stream: StreamId, reply: ReplyNumber, request: &Request, now: Monotonic, work: GatherWork) -> Gather {
        Gather {
            stream,
            reply,
            api: request.api,
            version: request.version,
            correlation_id: request.correlation_id,
            began: now,
            timer: None,
            work,
        }
    }

    pub fn window(stream: StreamId, now: Monotonic) -> Gather {
        Gather {
            stream,
            reply: ReplyNumber(u64::MAX),
            api: ApiKey::Fetch,
            version: 0,
            correlation_id: 0,
            began: now,
            timer: None,
            work: GatherWork::Window,
        }
    }
}
