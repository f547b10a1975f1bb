//! What goes into the coordinators and what comes out.

use base::{LeaderEpoch, Offset, PartitionId, PartitionIndex, TopicId};
use bytes::Bytes;
use settings::BrokerSettings;
use wire::{ErrorCode, KafkaString, RequestKind, ResponseKind};

/// Names a client's request until it is answered; chosen by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestToken(pub u64);

/// Names an append until its end is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AppendId(pub u64);

/// Names a read until its end is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadId(pub u64);

/// Who asks. Rights have been checked before a request gets here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Client {
    /// Empty where the header had none.
    pub client_id: KafkaString,
    /// The address without port. Groups show it as Kafka does, with a slash before it.
    pub host: KafkaString,
}

/// A client's request of one of the APIs that the coordinators serve (`Coordinators::serves`).
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    pub token: RequestToken,
    pub version: i16,
    pub client: Client,
    pub body: RequestKind,
}

#[derive(Clone, Debug)]
pub enum Event {
    Request(Box<Request>),
    /// How an append ended.
    Appended {
        id: AppendId,
        result: AppendResult,
    },
    /// How a read ended.
    Read {
        id: ReadId,
        result: ReadResult,
    },
    /// The topic that holds groups and offsets exists with so many partitions; 0 where it is gone. Until it is known,
    /// nobody is coordinated here, and leadership of its partitions means nothing.
    OffsetsTopic {
        topic: TopicId,
        partitions: u32,
    },
    /// This node leads a partition of the offsets topic: its shard is loaded.
    Leading {
        partition: PartitionIndex,
        epoch: LeaderEpoch,
    },
    /// This node leads a partition of the offsets topic no longer, as of this epoch where one is known.
    Resigned {
        partition: PartitionIndex,
        epoch: Option<LeaderEpoch>,
    },
    /// A topic is gone: its committed offsets go too.
    TopicDeleted {
        topic: TopicId,
        name: KafkaString,
    },
    SettingsChanged(BrokerSettings),
    /// Nothing but time has passed.
    Time,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    Respond {
        token: RequestToken,
        response: ResponseKind,
    },
    /// Exactly one record batch, to be refused under another epoch than the expected one.
    Append {
        id: AppendId,
        partition: PartitionId,
        expected_epoch: LeaderEpoch,
        batches: Bytes,
    },
    Read {
        id: ReadId,
        partition: PartitionId,
        expected_epoch: LeaderEpoch,
        offset: Offset,
        bytes_max: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendResult {
    /// The batch is below the high watermark; `base` is the offset of its first record.
    Done { base: Offset },
    /// Nothing was appended and nothing will be.
    Refused(ErrorCode),
    /// Another epoch leads, or none.
    OtherEpoch,
    /// It may or may not be in the log.
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadResult {
    Slice(Slice),
    OutOfRange {
        log_start: Offset,
    },
    OtherEpoch,
    /// The text is for the log.
    Failed(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Whole record batches.
    pub batches: Bytes,
    /// What replay must reach.
    pub high_watermark: Offset,
    /// Where the next read goes on.
    pub next: Offset,
}

/// What the metadata image knows of topics.
pub trait Topics {
    fn id(&self, name: &str) -> Option<TopicId>;
    fn name(&self, id: TopicId) -> Option<KafkaString>;
    /// `None` for a topic that does not exist.
    fn partitions(&self, name: &str) -> Option<u32>;
}
