//! DeleteRecords: the log's start moves up to the high watermark at most, and is answered when that is durable.

use crate::operation::{Operation, OperationToken, ReplicaToken};
use crate::partitions::{Partitions, Stalled};
use crate::replica::WaitingDelete;
use base::{Offset, TimerToken};
use handoff::{DeleteRecords, DeleteRecordsEntry, DeleteRecordsError, EntryIndex, GatherId, Outcome, PartitionError};
use nvme_log::{ChangeError, Store};

#[derive(Debug)]
pub(crate) struct DeleteOperation {
    gather: GatherId,
    done: Vec<(EntryIndex, Result<Offset, DeleteRecordsError>)>,
    left: usize,
    /// Entries for which the store had no room.
    refused: Vec<DeleteRecordsEntry>,
    timer: Option<TimerToken>,
}

impl Partitions {
    pub(crate) fn on_delete_records(&mut self, store: &mut Store, command: DeleteRecords) {
        let DeleteRecords { gather, deadline, entries } = command;
        if entries.is_empty() {
            return self.answer(gather.core, Outcome::RecordsDeleted { gather, entries: Vec::new() });
        }
        let operation =
            DeleteOperation { gather, done: Vec::new(), left: entries.len(), refused: Vec::new(), timer: None };
        let token = self.begin(Operation::Delete(operation));
        self.delete_entries(store, token, entries);
        if self.operations.contains(token.0) {
            let timer = self.arm(deadline, token);
            if let Some(Some(Operation::Delete(operation))) = self.operations.get_mut(token.0) {
                operation.timer = Some(timer);
            }
        }
    }

    fn delete_entries(&mut self, store: &mut Store, token: OperationToken, entries: Vec<DeleteRecordsEntry>) {
        for entry in entries {
            let index = entry.index;
            if let Err(error) = self.delete_entry(store, token, entry) {
                self.on_deleted(token, index, Err(error));
            }
        }
    }

    fn delete_entry(
        &mut self,
        store: &mut Store,
        operation: OperationToken,
        entry: DeleteRecordsEntry,
    ) -> Result<(), DeleteRecordsError> {
        let (token, replica) = self.leading(entry.partition, None).map_err(DeleteRecordsError::Partition)?;
        if !replica.settings.cleanup_policy.delete {
            return Err(DeleteRecordsError::PolicyViolation);
        }
        let to = entry.before.unwrap_or(replica.high_watermark);
        if to < Offset::ZERO || to > replica.high_watermark {
            return Err(DeleteRecordsError::OutOfRange);
        }
        let log = replica.log;
        // Where it lies before the start already, retention may have moved that, and not durably yet: the store knows.
        let start = store.log_start(log);
        match store.set_log_start(log, to) {
            Ok(()) => {
                let index = entry.index;
                if let Some(replica) = self.replica_mut(token) {
                    replica.deletes.push(WaitingDelete { to: to.max(start), operation, index });
                }
                Ok(())
            }
            Err(ChangeError::Pressure) => {
                if let Some(Some(Operation::Delete(delete))) = self.operations.get_mut(operation.0) {
                    if delete.refused.is_empty() {
                        self.stalled.push_back(Stalled::LogStart(operation));
                    }
                    delete.refused.push(entry);
                }
                Ok(())
            }
            Err(ChangeError::OutOfRange) => Err(DeleteRecordsError::OutOfRange),
            Err(ChangeError::Stopped | ChangeError::Full) => {
                Err(DeleteRecordsError::Partition(PartitionError::Storage))
            }
            Err(ChangeError::Unknown | ChangeError::Exists | ChangeError::StaleEpoch) => {
                Err(DeleteRecordsError::Partition(PartitionError::Unknown))
            }
        }
    }

    pub(crate) fn retry_delete(&mut self, store: &mut Store, token: OperationToken) {
        let Some(Some(Operation::Delete(delete))) = self.operations.get_mut(token.0) else { return };
        let refused = std::mem::take(&mut delete.refused);
        self.delete_entries(store, token, refused);
    }

    pub(crate) fn on_deleted(
        &mut self,
        token: OperationToken,
        index: EntryIndex,
        result: Result<Offset, DeleteRecordsError>,
    ) {
        let Some(Some(Operation::Delete(delete))) = self.operations.get_mut(token.0) else { return };
        delete.done.push((index, result));
        delete.left -= 1;
        if delete.left == 0 {
            self.answer_delete(token);
        }
    }

    fn answer_delete(&mut self, token: OperationToken) {
        let Some(Operation::Delete(delete)) = self.take(token) else { return };
        self.end(token);
        if let Some(timer) = delete.timer {
            self.wheel.cancel(timer);
        }
        let DeleteOperation { gather, done, .. } = delete;
        self.answer(gather.core, Outcome::RecordsDeleted { gather, entries: done });
    }

    /// The time that the request gives replicas is over. What is on its way to the medium goes on until it is there: its time
    /// is the device's, and Kafka, which writes no log start before it answers, never lacks it. What the store had no room
    /// for is given up.
    pub(crate) fn on_delete_deadline(&mut self, token: OperationToken) {
        let Some(Some(Operation::Delete(delete))) = self.operations.get_mut(token.0) else { return };
        delete.timer = None;
        for entry in std::mem::take(&mut delete.refused) {
            self.on_deleted(token, entry.index, Err(DeleteRecordsError::TimedOut));
        }
    }

    pub(crate) fn refuse_deletes(&mut self, token: ReplicaToken, error: PartitionError) {
        let Some(replica) = self.replica_mut(token) else { return };
        for waiting in std::mem::take(&mut replica.deletes) {
            self.on_deleted(waiting.operation, waiting.index, Err(DeleteRecordsError::Partition(error)));
        }
    }
}
