//! Blocks of producer ids (KIP-730): each is given to one broker and never again.

use crate::controller::{Controller, Decision, Outcome};
use crate::error::ApiError;
use image::Record;
use wire::ErrorCode;
use wire::messages::{AllocateProducerIdsRequest, AllocateProducerIdsResponse, ProducerIdsRecord};

const BLOCK_SIZE: i64 = 1_000;

impl Controller {
    pub fn allocate_producer_ids(
        &mut self,
        request: &AllocateProducerIdsRequest,
    ) -> Outcome<AllocateProducerIdsResponse> {
        self.decide(
            |controller| {
                controller.check_broker_epoch(request.broker_id, request.broker_epoch)?;
                let first = controller.state.image.next_producer_id.unwrap_or(0);
                let Some(next_producer_id) = first.checked_add(BLOCK_SIZE) else {
                    let message = "Exhausted all producerIds as the next block's end producerId has exceeded the int64 type limit";
                    return Err(ApiError::new(ErrorCode::UnknownServerError, message));
                };
                let record = Record::v0(ProducerIdsRecord {
                    broker_id: request.broker_id,
                    broker_epoch: request.broker_epoch,
                    next_producer_id,
                    unknown_tags: Default::default(),
                });
                let response = AllocateProducerIdsResponse {
                    producer_id_start: first,
                    producer_id_len: BLOCK_SIZE as i32,
                    ..Default::default()
                };
                Ok(Decision::atomic(vec![record], response))
            },
            |error| AllocateProducerIdsResponse { error_code: error.code(), ..Default::default() },
        )
    }
}
