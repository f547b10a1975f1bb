//! Appends and reads of the local control plane's coordinators. An append ends done, refused, or unknown, never
//! silently: unknown makes the coordinator load its shard anew (design 04).

use crate::acknowledge::{AckOwner, Waiting};
use crate::append::{AppendOwner, BatchBytes};
use crate::operation::{Operation, OperationToken, ReplicaToken};
use crate::partitions::Partitions;
use crate::pieces::whole_batches;
use crate::reading::Pieces;
use crate::refusals::{of_read, of_validation};
use arena::BufferRef;
use base::{LeaderEpoch, Now, Offset, PartitionId, TimerToken};
use batch::check::check_inline;
use batch::{Batches, Checked, Origin, Rules};
use handoff::*;
use nvme_log::{Located, ReadError, Store};
use std::ops::Range;
use std::rc::Rc;

#[derive(Debug)]
pub(crate) struct InternalAppendOperation {
    id: u64,
    replica: ReplicaToken,
    /// The offset of its first record, once that is in the log.
    first: Option<Offset>,
    /// Batches that are not in the log yet.
    to_append: usize,
    timer: Option<TimerToken>,
}

#[derive(Debug)]
pub(crate) struct InternalReadOperation {
    command: InternalRead,
    state: ReadState,
}

#[derive(Debug)]
enum ReadState {
    ToLocate,
    Locating,
    Reading(Pieces),
    Failed(FetchError),
}

impl InternalReadOperation {
    pub(crate) fn on_read(&mut self, piece: Option<usize>, result: Result<BufferRef, ReadError>) {
        match (&mut self.state, piece) {
            (ReadState::Reading(pieces), Some(piece)) => pieces.on_read(piece, result),
            (ReadState::Locating, None) => {
                self.state = match result {
                    Ok(_) | Err(ReadError::Gone) => ReadState::ToLocate,
                    Err(error) => ReadState::Failed(of_read(error)),
                };
            }
            _ => {}
        }
    }
}

/// A part of what was received, and what the loop could say of it.
type Part = (Range<usize>, Option<Checked>);

impl Partitions {
    pub(crate) fn on_internal_append(&mut self, now: Now, store: &mut Store, command: InternalAppend) {
        let InternalAppend { id, partition, expected_epoch, batches, deadline } = command;
        let admitted = self.expected(partition, expected_epoch).and_then(|token| {
            let rules = self.replica(token).map(|replica| Rules { origin: Origin::Coordinator, ..replica.rules });
            let rules = rules.expect("it was just found");
            let parts = split(&batches, &rules, now).map_err(InternalAppendError::Refused)?;
            Ok((token, rules, parts))
        });
        let (replica, rules, parts) = match admitted {
            Ok(admitted) => admitted,
            Err(error) => return self.answer_internal(id, Err(error)),
        };
        let to_append = parts.len();
        let operation = InternalAppendOperation { id, replica, first: None, to_append, timer: None };
        let token = self.begin(Operation::InternalAppend(operation));
        let batches = Rc::new(batches);
        for (range, checked) in parts {
            let bytes = BatchBytes::Part(batches.clone(), range);
            self.enqueue(now, replica, AppendOwner::Internal { operation: token }, bytes, rules, checked);
        }
        self.run_queue(now, store, replica);
        if self.operations.contains(token.0) {
            let timer = self.arm(deadline, token);
            if let Some(Some(Operation::InternalAppend(operation))) = self.operations.get_mut(token.0) {
                operation.timer = Some(timer);
            }
        }
    }

    /// The partition, led here under the very epoch at which the coordinator loaded it.
    fn expected(
        &self,
        partition: PartitionId,
        expected_epoch: LeaderEpoch,
    ) -> Result<ReplicaToken, InternalAppendError> {
        let refused = |error| InternalAppendError::Refused(ProduceError::Partition(error));
        match self.leading(partition, None) {
            Ok((_, replica)) if !replica.has_min_isr() => {
                Err(InternalAppendError::Refused(ProduceError::NotEnoughReplicas))
            }
            Ok((token, replica)) => match replica.leader_epoch() {
                Some(epoch) if epoch == expected_epoch => Ok(token),
                current => Err(InternalAppendError::OtherEpoch { current }),
            },
            Err(PartitionError::NotLeader) => Err(InternalAppendError::OtherEpoch { current: None }),
            Err(error) => Err(refused(error)),
        }
    }

    /// One batch of an internal append is in the log; with its last one, it waits for the watermark.
    pub(crate) fn on_internal_appended(
        &mut self,
        token: ReplicaToken,
        operation: OperationToken,
        end: Offset,
        answer: Appended,
    ) {
        let Some(Some(Operation::InternalAppend(append))) = self.operations.get_mut(operation.0) else { return };
        append.first.get_or_insert(answer.base_offset);
        append.to_append -= 1;
        if append.to_append > 0 {
            return;
        }
        let Some(replica) = self.replica_mut(token) else { return };
        let waiting = Waiting {
            end,
            owner: AckOwner::Internal { operation },
            answer,
            placed_at: base::Monotonic::ZERO,
            late: false,
        };
        replica.acknowledgements.await_committed(waiting);
    }

    pub(crate) fn on_internal_committed(&mut self, token: OperationToken, committed: bool) {
        let Some(Some(Operation::InternalAppend(append))) = self.operations.get(token.0) else { return };
        let first = append.first.expect("it waited for the watermark, and so it was appended");
        let result = if committed { Ok(first) } else { Err(InternalAppendError::Unknown { from: first }) };
        self.end_internal(token, result);
    }

    pub(crate) fn on_internal_refused(&mut self, token: OperationToken, error: ProduceError) {
        let Some(Some(Operation::InternalAppend(append))) = self.operations.get(token.0) else { return };
        let result = match append.first {
            // A part of it is in the log.
            Some(from) => InternalAppendError::Unknown { from },
            None => InternalAppendError::Refused(error),
        };
        self.end_internal(token, Err(result));
    }

    pub(crate) fn on_internal_deadline(&mut self, token: OperationToken) {
        let Some(Some(Operation::InternalAppend(append))) = self.operations.get_mut(token.0) else { return };
        append.timer = None;
        let (replica, first) = (append.replica, append.first);
        if let Some(replica) = self.replica_mut(replica) {
            replica.acknowledgements.forget(token);
        }
        // Batches of it that still wait in the queue find no operation there, and are dropped.
        let result = match first {
            Some(from) => InternalAppendError::Unknown { from },
            None => InternalAppendError::Refused(ProduceError::TimedOut),
        };
        self.end_internal(token, Err(result));
    }

    fn end_internal(&mut self, token: OperationToken, result: Result<Offset, InternalAppendError>) {
        let Some(Operation::InternalAppend(append)) = self.take(token) else { return };
        self.end(token);
        if let Some(timer) = append.timer {
            self.wheel.cancel(timer);
        }
        self.answer_internal(append.id, result);
    }

    fn answer_internal(&mut self, id: u64, result: Result<Offset, InternalAppendError>) {
        self.answer(self.options.link_core, Outcome::InternalAppended { id, result });
    }

    pub(crate) fn on_internal_read(&mut self, now: Now, store: &mut Store, command: InternalRead) {
        let operation = InternalReadOperation { command, state: ReadState::ToLocate };
        let token = self.begin(Operation::InternalRead(operation));
        self.advance_internal_read(now, store, token);
    }

    pub(crate) fn advance_internal_read(&mut self, now: Now, store: &mut Store, token: OperationToken) {
        let Some(Operation::InternalRead(mut read)) = self.take(token) else { return };
        loop {
            match std::mem::replace(&mut read.state, ReadState::ToLocate) {
                ReadState::ToLocate => match self.locate_internal(now, store, token, &read.command) {
                    Ok(Some(state)) => read.state = state,
                    Ok(None) => break self.finish_internal_read(store, token, &read.command, Ok(Vec::new())),
                    Err(error) => break self.finish_internal_read(store, token, &read.command, Err(error)),
                },
                ReadState::Reading(pieces) if pieces.is_complete() && pieces.is_gone() => {}
                ReadState::Reading(pieces) if pieces.is_complete() => {
                    let result = match pieces.into_bytes() {
                        (_, Some(error)) => Err(error),
                        (bytes, None) => Ok(bytes),
                    };
                    break self.finish_internal_read(store, token, &read.command, result);
                }
                ReadState::Failed(error) => {
                    break self.finish_internal_read(store, token, &read.command, Err(error));
                }
                waits => {
                    read.state = waits;
                    break self.put_back(token, Operation::InternalRead(read));
                }
            }
        }
    }

    fn locate_internal(
        &mut self,
        now: Now,
        store: &mut Store,
        token: OperationToken,
        command: &InternalRead,
    ) -> Result<Option<ReadState>, FetchError> {
        let leading = self.leading(command.partition, Some(command.expected_epoch));
        let (_, replica) = leading.map_err(FetchError::Partition)?;
        let (log, watermark) = (replica.log, replica.high_watermark);
        match store.locate(now, log, command.offset, watermark, command.bytes_max as usize) {
            Located::OutOfRange => Err(FetchError::OutOfRange),
            Located::Nothing => Ok(None),
            Located::NeedsRead(plan) => {
                self.read(store, plan, token, 0);
                Ok(Some(ReadState::Locating))
            }
            Located::Found(parts) => Ok(Some(ReadState::Reading(Pieces::begin(self, store, token, 0, parts)))),
        }
    }

    fn finish_internal_read(
        &mut self,
        store: &Store,
        token: OperationToken,
        command: &InternalRead,
        result: Result<Vec<BufferRef>, FetchError>,
    ) {
        self.end(token);
        let leading = self.leading(command.partition, Some(command.expected_epoch)).map_err(FetchError::Partition);
        let result = result.and_then(|bytes| {
            let (_, replica) = leading?;
            let (mut left, next) = whole_batches(&bytes).unwrap_or((0, command.offset));
            let mut pieces = Vec::with_capacity(bytes.len());
            for piece in bytes {
                let take = piece.len().min(left);
                left -= take;
                if take > 0 {
                    pieces.push(piece.slice(0..take).into_parcel());
                }
            }
            let log_start = store.log_start(replica.log);
            Ok(InternalSlice { pieces, high_watermark: replica.high_watermark, log_start, next })
        });
        self.answer(self.options.link_core, Outcome::InternalRead { id: command.id, result });
    }
}

/// The batches of an append, each checked as far as the loop may.
fn split(bytes: &[u8], rules: &Rules, now: Now) -> Result<Vec<Part>, ProduceError> {
    let (mut parts, mut at) = (Vec::new(), 0);
    let mut batches = Batches::new(bytes);
    for view in &mut batches {
        let invalid = |error: batch::BatchError| ProduceError::Corrupt(error.to_string());
        let range = at..at + view.map_err(invalid)?.size();
        at = range.end;
        let checked = check_inline(&bytes[range.clone()], rules, now.wall).transpose().map_err(of_validation)?;
        parts.push((range, checked));
    }
    if parts.is_empty() || at != bytes.len() {
        let message = "an append is one or more whole batches".to_owned();
        return Err(ProduceError::InvalidRecord { message, records: Vec::new() });
    }
    Ok(parts)
}
