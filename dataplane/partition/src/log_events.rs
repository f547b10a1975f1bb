//! What the store tells, and whom it concerns.

use crate::operation::{Operation, Reading, ReplicaToken, Timer};
use crate::partitions::{Partitions, Stalled};
use crate::sweep::next_turn;
use base::{Now, Offset};
use handoff::{PartitionError, UpCall};
use nvme_log::{LogEvent, LogSlot, ReadError, ReadTicket, Store};

/// Of what the store had no room for, tried again in one turn: a duty takes up to 20 us.
const RETRIED_A_TURN: usize = 8;

impl Partitions {
    pub fn on_log_event(&mut self, now: Now, store: &mut Store, event: LogEvent) {
        match event {
            LogEvent::Durable { slot, .. } => {
                if let Some(token) = self.by_log.get(&slot).copied() {
                    self.advance(now, store, token);
                }
            }
            LogEvent::AppendFailed { slot, .. } => {
                if let Some(token) = self.by_log.get(&slot).copied() {
                    self.fail(store, token);
                }
            }
            LogEvent::ReadDone { ticket, result } => self.on_read_done(now, store, ticket, result),
            LogEvent::LogStartMoved { slot, to } => self.on_log_start(store, slot, to),
            LogEvent::NamespaceStopped { reason } => self.on_namespace_stopped(store, reason.to_string()),
            LogEvent::Room => self.on_room(now, store),
            LogEvent::Truncated { .. }
            | LogEvent::Deleted { .. }
            | LogEvent::Unreadable { .. }
            | LogEvent::Committed { .. }
            | LogEvent::ViewSaved { .. }
            | LogEvent::Pressure { .. }
            | LogEvent::Stopped => {}
        }
    }

    fn on_read_done(
        &mut self,
        now: Now,
        store: &mut Store,
        ticket: ReadTicket,
        result: Result<arena::BufferRef, ReadError>,
    ) {
        let Some(Reading { operation, place, piece }) = self.readings.remove(&ticket) else { return };
        match self.operations.get_mut(operation.0).and_then(Option::as_mut) {
            Some(Operation::Fetch(fetch)) => {
                fetch.on_read(place, piece, result);
                return self.advance_fetch(now, store, operation, place..place + 1);
            }
            Some(Operation::Window(window)) => window.on_read(piece, result),
            Some(Operation::List(list)) => list.on_read(place, piece, result),
            Some(Operation::InternalRead(read)) => read.on_read(piece, result),
            _ => return,
        }
        self.resume(now, store, operation);
    }

    /// Retention, or DeleteRecords when it is durable.
    fn on_log_start(&mut self, store: &mut Store, slot: LogSlot, to: Offset) {
        let Some(token) = self.by_log.get(&slot).copied() else { return };
        let Some(replica) = self.replica_mut(token) else { return };
        // A start beyond the watermark is a follower's only: the leader took those records away.
        replica.high_watermark = replica.high_watermark.max(to);
        let done: Vec<_> = replica.deletes.extract_if(.., |waiting| waiting.to <= to).collect();
        for waiting in done {
            self.on_deleted(waiting.operation, waiting.index, Ok(to));
        }
        self.wake_passed(store, token, to);
    }

    /// What was refused for pressure is tried again, oldest first.
    fn on_room(&mut self, now: Now, store: &mut Store) {
        let goes_on = self.to_retry > 0;
        self.to_retry = self.stalled.len();
        if !goes_on {
            self.retry_some(now, store);
        }
    }

    /// Some of it: there may be as many as partitions.
    pub(crate) fn retry_some(&mut self, now: Now, store: &mut Store) {
        let count = self.to_retry.min(self.stalled.len()).min(RETRIED_A_TURN);
        self.to_retry = self.to_retry.min(self.stalled.len()) - count;
        if self.to_retry > 0 {
            self.wheel.insert(next_turn(now), Timer::Retry);
        }
        for _ in 0..count {
            let Some(stalled) = self.stalled.pop_front() else { return };
            match stalled {
                Stalled::Appends(token) => {
                    if let Some(replica) = self.replica_mut(token) {
                        replica.queue.blocked = false;
                        self.run_queue(now, store, token);
                    }
                }
                // What is refused for good has been told to whoever sent it; a stalled one has no one left to tell.
                Stalled::Duty(duty) | Stalled::Unplaced(duty) => drop(self.apply(now, store, *duty)),
                Stalled::Removal(removal) => drop(self.remove(store, removal)),
                Stalled::LogStart(token) => self.retry_delete(store, token),
            }
        }
    }

    /// The partition's storage is gone or unknown: nothing that waits for it is acknowledged.
    fn fail(&mut self, store: &mut Store, token: ReplicaToken) {
        let Some(replica) = self.replica_mut(token) else { return };
        if std::mem::replace(&mut replica.failed, true) {
            return;
        }
        self.refuse_everything(store, token, PartitionError::Storage);
    }

    fn on_namespace_stopped(&mut self, store: &mut Store, reason: String) {
        if std::mem::replace(&mut self.stopped, true) {
            return;
        }
        let tokens: Vec<_> = self.replicas.iter().map(|(token, _)| ReplicaToken(token)).collect();
        for token in tokens {
            self.fail(store, token);
        }
        // Reads that the store still has come back with an error of their own.
        self.out.up_calls.push(UpCall::DirectoryFailed { reason });
    }

    /// Appends, acknowledgements, deletions and waiting fetches of the partition all end.
    pub(crate) fn refuse_everything(&mut self, store: &mut Store, token: ReplicaToken, error: PartitionError) {
        self.refuse_waiting(store, token, error);
        self.refuse_deletes(token, error);
        self.refuse_unplaced(store, token, error);
    }

    /// All but what is in the log, or on its way there.
    pub(crate) fn refuse_unplaced(&mut self, store: &mut Store, token: ReplicaToken, error: PartitionError) {
        self.refuse_queued(store, token, error);
        self.wake_urgently(store, token);
    }
}
