//! The one place where refusals of partitions become Kafka's error codes, exhaustively.

use handoff::{DeleteRecordsError, FetchError, ListOffsetsError, PartitionError, ProduceError, RecordError, Unfit};
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
        ProduceError::Unfit(Unfit::NotOneBatch(message)) => told(ErrorCode::InvalidRecord, message),
        ProduceError::Unfit(Unfit::Framing(message)) => told(ErrorCode::CorruptMessage, message),
        ProduceError::Unfit(Unfit::Zstd(message)) => told(ErrorCode::UnsupportedCompressionType, message),
        ProduceError::Unfit(Unfit::UnknownCodec(message)) => told(ErrorCode::UnknownServerError, message),
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

/// From here on zstd may be produced, and the request's reader does not ask for the codec.
const CODEC_LEFT_TO_THE_LOG_SINCE: i16 = 7;

/// Whether the answer to a refused Produce names the log's start. Kafka does so for what its log judged record by record
/// or producer by producer; what is refused before that, or by the batch's frame, is answered without. Which of
/// these an unknown codec is depends on the version: only for old ones Kafka looks at it while it reads the request.
pub fn names_log_start(error: &ProduceError, version: i16) -> bool {
    match error {
        ProduceError::Unfit(Unfit::UnknownCodec(_)) => version >= CODEC_LEFT_TO_THE_LOG_SINCE,
        ProduceError::InvalidRecord { .. }
        | ProduceError::InvalidTimestamp { .. }
        | ProduceError::Undecodable(_)
        | ProduceError::OutOfOrderSequence(_)
        | ProduceError::InvalidProducerEpoch(_) => true,
        ProduceError::Partition(_)
        | ProduceError::Corrupt(_)
        | ProduceError::TooLarge(_)
        | ProduceError::BatchTooLarge(_)
        | ProduceError::UnsupportedForMessageFormat(_)
        | ProduceError::Unfit(_)
        | ProduceError::NotEnoughReplicas
        | ProduceError::NotEnoughReplicasAfterAppend
        | ProduceError::TimedOut
        | ProduceError::InvalidTransactionState(_)
        | ProduceError::UnknownProducer(_)
        | ProduceError::Full => false,
    }
}

/// Whether a text is sent with it. Kafka does so with errors of single records, and where it cannot read the batches at
/// all; and whoever runs out of space is to know what to do about it.
pub fn has_text(error: &ProduceError) -> bool {
    match error {
        ProduceError::InvalidRecord { records, .. } | ProduceError::InvalidTimestamp { records, .. } => {
            !records.is_empty()
        }
        ProduceError::Unfit(Unfit::Framing(_)) | ProduceError::Full => true,
        _ => false,
    }
}

pub fn of_fetch(error: FetchError) -> ErrorCode {
    match error {
        FetchError::Partition(error) => of_partition(error),
        FetchError::OutOfRange => ErrorCode::OffsetOutOfRange,
        FetchError::NegativeSize => ErrorCode::UnknownServerError,
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
