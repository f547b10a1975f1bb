//! The one place where refusals of partitions become Kafka's error codes, exhaustively.

use handoff::{DeleteRecordsError, FetchError, ListOffsetsError, PartitionError, ProduceError, RecordError};
use wire::ErrorCode;

pub fn of_partition(error: PartitionError) -> ErrorCode {
    match error {
        PartitionError::Unknown | PartitionError::NotLeader | PartitionError::Busy => ErrorCode::NotLeaderOrFollower,
        PartitionError::FencedEpoch => ErrorCode::FencedLeaderEpoch,
        PartitionError::UnknownEpoch => ErrorCode::UnknownLeaderEpoch,
        PartitionError::Storage => ErrorCode::KafkaStorageError,
    }
}

/// What a Produce answer carries besides the code.
#[derive(Debug, Default)]
pub struct ProduceRefusal {
    pub message: Option<String>,
    pub records: Vec<RecordError>,
}

pub fn of_produce(error: ProduceError) -> (ErrorCode, ProduceRefusal) {
    let plain = |code| (code, ProduceRefusal::default());
    let told = |code, message| (code, ProduceRefusal { message: Some(message), records: Vec::new() });
    match error {
        ProduceError::Partition(error) => plain(of_partition(error)),
        ProduceError::Corrupt(message) => told(ErrorCode::CorruptMessage, message),
        ProduceError::InvalidRecord { message, records } => {
            (ErrorCode::InvalidRecord, ProduceRefusal { message: Some(message), records })
        }
        ProduceError::InvalidTimestamp { message, records } => {
            (ErrorCode::InvalidTimestamp, ProduceRefusal { message: Some(message), records })
        }
        ProduceError::TooLarge(message) => told(ErrorCode::MessageTooLarge, message),
        ProduceError::BatchTooLarge(message) => told(ErrorCode::RecordListTooLarge, message),
        ProduceError::UnsupportedCompression(message) => told(ErrorCode::UnsupportedCompressionType, message),
        ProduceError::UnsupportedForMessageFormat(message) => told(ErrorCode::UnsupportedForMessageFormat, message),
        ProduceError::Undecodable(message) => told(ErrorCode::UnknownServerError, message),
        ProduceError::NotEnoughReplicas => plain(ErrorCode::NotEnoughReplicas),
        ProduceError::NotEnoughReplicasAfterAppend => plain(ErrorCode::NotEnoughReplicasAfterAppend),
        ProduceError::TimedOut => plain(ErrorCode::RequestTimedOut),
        ProduceError::OutOfOrderSequence(message) => told(ErrorCode::OutOfOrderSequenceNumber, message),
        ProduceError::InvalidProducerEpoch(message) => told(ErrorCode::InvalidProducerEpoch, message),
        ProduceError::InvalidTransactionState(message) => told(ErrorCode::InvalidTxnState, message),
        ProduceError::UnknownProducer(message) => told(ErrorCode::UnknownProducerId, message),
        ProduceError::Full => told(
            ErrorCode::KafkaStorageError,
            "The namespace is full: delete topics, lower retention or enlarge data.size.".into(),
        ),
    }
}

pub fn of_fetch(error: FetchError) -> ErrorCode {
    match error {
        FetchError::Partition(error) => of_partition(error),
        FetchError::OutOfRange => ErrorCode::OffsetOutOfRange,
        FetchError::UnsupportedCompression => ErrorCode::UnsupportedCompressionType,
        FetchError::Corrupt => ErrorCode::KafkaStorageError,
    }
}

pub fn of_list_offsets(error: ListOffsetsError) -> ErrorCode {
    match error {
        ListOffsetsError::Partition(error) => of_partition(error),
        ListOffsetsError::OffsetNotAvailable => ErrorCode::OffsetNotAvailable,
        ListOffsetsError::UnsupportedVersion => ErrorCode::UnsupportedVersion,
        ListOffsetsError::Corrupt => ErrorCode::KafkaStorageError,
    }
}

pub fn of_delete_records(error: DeleteRecordsError) -> ErrorCode {
    match error {
        DeleteRecordsError::Partition(error) => of_partition(error),
        DeleteRecordsError::OutOfRange => ErrorCode::OffsetOutOfRange,
        DeleteRecordsError::TimedOut => ErrorCode::RequestTimedOut,
        DeleteRecordsError::PolicyViolation => ErrorCode::PolicyViolation,
    }
}

/// The bare code of a refused append, for a coordinator.
pub fn produce_error_code(error: &ProduceError) -> i16 {
    of_produce(error.clone()).0.code()
}
