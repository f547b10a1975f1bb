//! Produce: what is checked before a batch may queue for its log, and the answer when every entry is done.

use crate::append::{AppendOwner, AppendState, BatchBytes};
use crate::operation::{Operation, OperationToken, ReplicaToken};
use crate::partitions::Partitions;
use crate::refusals::of_validation;
use base::{Monotonic, Now, TimerToken};
use batch::Rules;
use batch::check::check_inline;
use handoff::{Acks, EntryIndex, GatherId, Outcome, Produce, ProduceEntry, ProduceError, Produced, Unfit};
use nvme_log::Store;

/// Produce versions below this may not carry zstd (KIP-110).
const ZSTD_SINCE: i16 = 7;

#[derive(Debug)]
pub(crate) struct ProduceOperation {
    gather: GatherId,
    done: Vec<Produced>,
    /// Entries without an answer.
    left: usize,
    /// Partitions whose queue or acknowledgements hold an entry of this.
    waiting_in: Vec<ReplicaToken>,
    timer: Option<TimerToken>,
}

impl Partitions {
    pub(crate) fn on_produce(&mut self, now: Now, store: &mut Store, command: Produce) {
        let Produce { gather, acks, version, deadline, entries, .. } = command;
        let left = entries.len();
        if left == 0 {
            return self.answer(gather.core, Outcome::Produced { gather, last: true, entries: Vec::new() });
        }
        let operation =
            ProduceOperation { gather, done: Vec::with_capacity(left), left, waiting_in: Vec::new(), timer: None };
        let token = self.begin(Operation::Produce(operation));
        for entry in entries {
            self.produce_entry(now, store, token, acks, version, entry);
        }
        if self.operations.contains(token.0) {
            self.arm_produce(token, deadline);
        }
    }

    fn arm_produce(&mut self, token: OperationToken, deadline: Monotonic) {
        let timer = self.arm(deadline, token);
        if let Some(Some(Operation::Produce(operation))) = self.operations.get_mut(token.0) {
            operation.timer = Some(timer);
        }
    }

    fn produce_entry(
        &mut self,
        now: Now,
        store: &mut Store,
        operation: OperationToken,
        acks: Acks,
        version: i16,
        entry: ProduceEntry,
    ) {
        let index = entry.index;
        let token = self.by_id.get(&entry.partition).copied();
        match self.admit(now, acks, version, entry) {
            Ok((token, rules, bytes, checked)) => {
                if let Some(Some(Operation::Produce(operation))) = self.operations.get_mut(operation.0) {
                    operation.waiting_in.push(token);
                }
                let owner = AppendOwner::Produce { operation, index, acks };
                self.enqueue(now, token, owner, bytes, rules, checked);
                self.run_queue(now, store, token);
            }
            Err(error) => {
                let produced = self.produced_of(store, token, index, Err(error));
                self.on_produced(operation, produced);
            }
        }
    }

    /// Leadership, the minimum ISR, and the validation as far as the loop can do it, in this order.
    #[allow(clippy::type_complexity, reason = "what the queue takes, once")]
    fn admit(
        &self,
        now: Now,
        acks: Acks,
        version: i16,
        entry: ProduceEntry,
    ) -> Result<(ReplicaToken, Rules, BatchBytes, Option<batch::Checked>), ProduceError> {
        let (token, replica) = self.leading(entry.partition, None).map_err(ProduceError::Partition)?;
        if acks == Acks::All && !replica.has_min_isr() {
            return Err(ProduceError::NotEnoughReplicas);
        }
        let Some(records) = entry.records else {
            let message = "the request carries no records for the partition".to_owned();
            return Err(ProduceError::Unfit(Unfit::NotOneBatch(message)));
        };
        let rules = Rules { zstd_allowed: version >= ZSTD_SINCE, ..replica.rules };
        let checked = check_inline(&records, &rules, now.wall).transpose().map_err(of_validation)?;
        Ok((token, rules, BatchBytes::Received(records), checked))
    }

    /// One entry has its answer; with the last of them the request has.
    pub(crate) fn on_produced(&mut self, token: OperationToken, produced: Produced) {
        let Some(Some(Operation::Produce(operation))) = self.operations.get_mut(token.0) else { return };
        self.out.tally.refused += u64::from(produced.result.is_err());
        operation.done.push(produced);
        operation.left -= 1;
        if operation.left > 0 {
            return;
        }
        let Some(Operation::Produce(operation)) = self.take(token) else { return };
        self.end(token);
        if let Some(timer) = operation.timer {
            self.wheel.cancel(timer);
        }
        let ProduceOperation { gather, done, .. } = operation;
        self.answer(gather.core, Outcome::Produced { gather, last: true, entries: done });
    }

    /// The time that the request gives replicas is over. What is not yet durable here goes on until it is: its time is
    /// the device's. What waits for room in the store was never appended and is taken back.
    pub(crate) fn on_produce_deadline(&mut self, store: &mut Store, token: OperationToken) {
        let Some(Some(Operation::Produce(operation))) = self.operations.get_mut(token.0) else { return };
        operation.timer = None;
        let mut replicas = std::mem::take(&mut operation.waiting_in);
        replicas.sort_unstable();
        replicas.dedup();
        for replica_token in replicas {
            let Some(replica) = self.replica_mut(replica_token) else { continue };
            let durable = store.durable_offset(replica.log);
            let late = replica.acknowledgements.expire(token, durable);
            let blocked: Vec<EntryIndex> =
                if replica.queue.blocked { take_blocked(replica, token) } else { Vec::new() };
            for waiting in late {
                self.acknowledge(store, replica_token, waiting, Err(ProduceError::TimedOut));
            }
            for index in blocked {
                let produced = self.produced_of(store, Some(replica_token), index, Err(ProduceError::TimedOut));
                self.on_produced(token, produced);
            }
        }
    }
}

/// Takes the operation's batches out of a queue for which the store has no room.
fn take_blocked(replica: &mut crate::replica::Replica, operation: OperationToken) -> Vec<EntryIndex> {
    let mut taken = Vec::new();
    replica.queue.waiting.retain(|pending| match (pending.owner, &pending.state) {
        (AppendOwner::Produce { operation: its, index, .. }, AppendState::Ready(..)) if its == operation => {
            taken.push(index);
            false
        }
        _ => true,
    });
    taken
}
