//! InitProducerId without a transactional id: answered from the ids in hand (KIP-98). With one it is the transaction
//! coordinator's.

use view::ProducerIds;
use wire::ErrorCode;
use wire::messages::InitProducerIdResponse;

/// `None` in hand: the block is on its way, and the client is told to retry.
pub fn answer(ids: &mut ProducerIds) -> InitProducerIdResponse {
    match ids.take() {
        Some(id) => InitProducerIdResponse { producer_id: id.0, producer_epoch: 0, ..Default::default() },
        None => refused(ErrorCode::CoordinatorLoadInProgress),
    }
}

pub fn refused(error: ErrorCode) -> InitProducerIdResponse {
    InitProducerIdResponse { error_code: error.code(), producer_id: -1, producer_epoch: -1, ..Default::default() }
}
