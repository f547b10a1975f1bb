//! Why an operation on a partition was refused; one small enum per operation. Kafka's error codes are mapped from these
//! in one place, `session::errors`.

use base::{LeaderEpoch, Offset};

/// Refusals that any operation on a partition can meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartitionError {
    /// This node holds no such partition.
    Unknown,
    /// This node is not its leader (or its core is another now).
    NotLeader,
    /// The client's epoch is older than ours.
    FencedEpoch,
    /// The client's epoch is newer than ours: we have yet to learn it.
    UnknownEpoch,
    /// The namespace failed or its state is unknown; the partition is offline here.
    Storage,
    /// The owner's core is out of credit or memory; nothing was done.
    Busy,
}

/// A record that made its batch invalid (KIP-467).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordError {
    pub index: i32,
    pub message: Option<String>,
}

/// Refusals of a Produce that Kafka makes while it reads the request: their answers name no log start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// No batch, more than one, or one of an old message format.
    NotOneBatch(String),
    /// Bytes that cannot be told apart into batches.
    Framing(String),
    Zstd(String),
    UnknownCodec(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProduceError {
    Partition(PartitionError),
    Corrupt(String),
    InvalidRecord {
        message: String,
        records: Vec<RecordError>,
    },
    InvalidTimestamp {
        message: String,
        records: Vec<RecordError>,
    },
    TooLarge(String),
    /// The record set is larger than a segment.
    BatchTooLarge(String),
    UnsupportedForMessageFormat(String),
    /// What the request carries is no batch that its version may carry; the log was not asked.
    Unfit(Unfit),
    /// Compressed bytes that are none under a right CRC: Kafka has no error for it and answers UNKNOWN_SERVER_ERROR.
    Undecodable(String),
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    TimedOut,
    OutOfOrderSequence(String),
    InvalidProducerEpoch(String),
    /// A transaction's guard is missing or stale (KIP-890).
    InvalidTransactionState(String),
    UnknownProducer(String),
    /// The namespace is full.
    Full,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchError {
    Partition(PartitionError),
    OutOfRange,
    /// A size below zero, and records to read: Kafka has no error for it and answers UNKNOWN_SERVER_ERROR.
    NegativeSize,
    /// Stored bytes failed their checksum and no replica could mend them.
    Corrupt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListOffsetsError {
    Partition(PartitionError),
    /// The leader has not yet established its high watermark (KIP-207).
    OffsetNotAvailable,
    UnsupportedVersion,
    Corrupt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteRecordsError {
    Partition(PartitionError),
    OutOfRange,
    TimedOut,
    /// The topic's cleanup.policy does not include delete.
    PolicyViolation,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InternalAppendError {
    /// Nothing was appended and nothing will be.
    Refused(ProduceError),
    /// Another epoch leads.
    OtherEpoch { current: Option<LeaderEpoch> },
    /// It may or may not be in the log: unload the shard and replay it.
    Unknown { from: Offset },
}
