//! Refusals of validation and of the store in the words of the handoff.

use base::PartitionId;
use batch::header::ProducerStamp;
use batch::{BatchError, InvalidBatch, Refusal};
use handoff::{PartitionError, ProduceError, RecordError, Unfit};
use nvme_log::{AppendError, ReadError};

use crate::sequence::Verdict;

pub(crate) fn of_validation(refusal: Refusal) -> ProduceError {
    let message = refusal.to_string();
    match refusal {
        Refusal::Corrupt(BatchError::UnknownMagic(_) | BatchError::Length(_)) => {
            ProduceError::Unfit(Unfit::Framing(message))
        }
        Refusal::Corrupt(_) => ProduceError::Corrupt(message),
        Refusal::Invalid(InvalidBatch::None | InvalidBatch::Several | InvalidBatch::OldMagic(_)) => {
            ProduceError::Unfit(Unfit::NotOneBatch(message))
        }
        Refusal::Invalid(_) => ProduceError::InvalidRecord { message, records: Vec::new() },
        Refusal::Records(ref refused) => {
            let told = |one: &batch::RecordRefusal| RecordError {
                index: i32::try_from(one.index).unwrap_or(i32::MAX),
                message: Some(one.reason.to_string()),
            };
            let records = refused.iter().map(told).collect();
            if refusal.is_timestamp() {
                ProduceError::InvalidTimestamp { message, records }
            } else {
                ProduceError::InvalidRecord { message, records }
            }
        }
        Refusal::TooLarge { .. } | Refusal::InflatesTooFar { .. } => ProduceError::TooLarge(message),
        Refusal::LargerThanSegment { .. } => ProduceError::BatchTooLarge(message),
        Refusal::ZstdNotAllowed => ProduceError::Unfit(Unfit::Zstd(message)),
        Refusal::UnknownCodec(_) => ProduceError::Unfit(Unfit::UnknownCodec(message)),
        Refusal::Undecodable(_) => ProduceError::Undecodable(message),
    }
}

/// `None` for a refusal that passes by itself: the append waits for room.
pub(crate) fn of_append(error: AppendError) -> Option<ProduceError> {
    Some(match error {
        AppendError::Pressure => return None,
        AppendError::Full => ProduceError::Full,
        AppendError::Stopped | AppendError::Suspect => ProduceError::Partition(PartitionError::Storage),
        AppendError::Unknown => ProduceError::Partition(PartitionError::NotLeader),
        AppendError::TooLarge { .. } => ProduceError::TooLarge(error.to_string()),
        AppendError::Malformed => ProduceError::InvalidRecord { message: error.to_string(), records: Vec::new() },
    })
}

/// `None` where the batch is to be appended, or is there already.
pub(crate) fn of_sequence(verdict: Verdict, partition: PartitionId, batch: &ProducerStamp) -> Option<ProduceError> {
    let (id, epoch, first) = (batch.id, batch.epoch, batch.base_sequence);
    Some(match verdict {
        Verdict::Append | Verdict::Duplicate { .. } => return None,
        Verdict::StaleEpoch { current } => ProduceError::InvalidProducerEpoch(format!(
            "producer {id} writes to {partition} with epoch {epoch}, and its epoch is {current} by now"
        )),
        Verdict::NewEpochNotAtZero => ProduceError::OutOfOrderSequence(format!(
            "producer {id} begins its epoch {epoch} in {partition} with sequence {first} instead of 0"
        )),
        Verdict::OutOfOrder { last } => {
            let before = last.map_or_else(|| "nothing".to_owned(), |last| format!("sequence {last}"));
            ProduceError::OutOfOrderSequence(format!(
                "producer {id} with epoch {epoch} writes sequence {first} to {partition} after {before}"
            ))
        }
    })
}

pub(crate) fn of_read(error: ReadError) -> handoff::FetchError {
    match error {
        ReadError::Corrupt => handoff::FetchError::Corrupt,
        ReadError::Gone => handoff::FetchError::OutOfRange,
        ReadError::Device(_) | ReadError::Stopped => handoff::FetchError::Partition(PartitionError::Storage),
        ReadError::NoMemory => handoff::FetchError::Partition(PartitionError::Busy),
    }
}
