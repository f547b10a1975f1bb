//! Appends that wait to be durable here (acks=1) or committed (acks=all), and the watermark that frees them.

use crate::operation::{OperationToken, ReplicaToken};
use crate::partitions::Partitions;
use crate::replica::Replica;
use base::{Monotonic, Now, Offset};
use handoff::{Appended, EntryIndex, PartitionError, ProduceError, Produced};
use nvme_log::Store;
use std::collections::VecDeque;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AckOwner {
    Produce { operation: OperationToken, index: EntryIndex },
    Internal { operation: OperationToken },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    /// The offset after its last record.
    pub end: Offset,
    pub owner: AckOwner,
    pub answer: Appended,
    /// When it was placed in the log.
    pub placed_at: Monotonic,
    /// Its request's time is over: once it is durable here, it waits for nobody else.
    pub late: bool,
}

/// Both in the order of `end`. A duplicate waits for its original, so that not every new one comes last.
#[derive(Debug, Default)]
pub(crate) struct Acknowledgements {
    durable: VecDeque<Waiting>,
    committed: VecDeque<Waiting>,
}

fn insert(queue: &mut VecDeque<Waiting>, waiting: Waiting) {
    if queue.back().is_none_or(|last| last.end <= waiting.end) {
        queue.push_back(waiting);
    } else {
        let place = queue.partition_point(|other| other.end <= waiting.end);
        queue.insert(place, waiting);
    }
}

fn pop_reached(queue: &mut VecDeque<Waiting>, offset: Offset) -> Option<Waiting> {
    queue.front().is_some_and(|first| first.end <= offset).then(|| queue.pop_front()).flatten()
}

impl Acknowledgements {
    pub(crate) fn await_durable(&mut self, waiting: Waiting) {
        insert(&mut self.durable, waiting);
    }

    pub(crate) fn await_committed(&mut self, waiting: Waiting) {
        insert(&mut self.committed, waiting);
    }

    /// The next one that waits for no more than this device.
    pub(crate) fn pop_durable(&mut self, durable: Offset) -> Option<Waiting> {
        pop_reached(&mut self.durable, durable)
    }

    /// The next one that waits for no more than this watermark.
    pub(crate) fn pop_committed(&mut self, watermark: Offset) -> Option<Waiting> {
        pop_reached(&mut self.committed, watermark)
    }

    /// Marks what an operation's deadline left behind; gives those that are durable and wait for replicas alone.
    pub(crate) fn expire(&mut self, operation: OperationToken, durable: Offset) -> Vec<Waiting> {
        let own = |waiting: &&mut Waiting| matches!(waiting.owner, AckOwner::Produce { operation: its, .. } if its == operation);
        self.committed.iter_mut().filter(own).for_each(|waiting| waiting.late = true);
        self.take_late(durable)
    }

    /// Those whose time is over and that are durable here by now.
    pub(crate) fn take_late(&mut self, durable: Offset) -> Vec<Waiting> {
        if !self.committed.iter().any(|waiting| waiting.late) {
            return Vec::new();
        }
        let mut late = Vec::new();
        self.committed.retain(|waiting| {
            let is_late = waiting.late && waiting.end <= durable;
            if is_late {
                late.push(*waiting);
            }
            !is_late
        });
        late
    }

    pub(crate) fn forget(&mut self, operation: OperationToken) {
        let own = |waiting: &Waiting| waiting.owner == AckOwner::Internal { operation };
        self.committed.retain(|waiting| !own(waiting));
    }

    pub(crate) fn drain(&mut self) -> Vec<Waiting> {
        self.durable.drain(..).chain(self.committed.drain(..)).collect()
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.durable.len() + self.committed.len()
    }
}

impl Partitions {
    /// The watermark follows what is durable, and everyone who waited for that is told.
    pub(crate) fn advance(&mut self, now: Now, store: &mut Store, token: ReplicaToken) {
        let Some(replica) = self.replicas.get_mut(token.0) else { return };
        let durable = store.durable_offset(replica.log);
        let watermark = replica.watermark(durable);
        let moved = watermark > replica.high_watermark;
        if moved {
            replica.high_watermark = watermark;
            store.record_high_watermark(now, replica.log, watermark);
        }
        while let Some(replica) = self.replicas.get_mut(token.0)
            && let Some(waiting) = replica.acknowledgements.pop_durable(durable)
        {
            self.count_time(now, &waiting);
            self.acknowledge(store, token, waiting, Ok(()));
        }
        while let Some(replica) = self.replicas.get_mut(token.0)
            && let Some(waiting) = replica.acknowledgements.pop_committed(watermark)
        {
            self.count_time(now, &waiting);
            let Some(replica) = self.replicas.get(token.0) else { return };
            let result = if replica.has_min_isr() { Ok(()) } else { Err(ProduceError::NotEnoughReplicasAfterAppend) };
            self.acknowledge(store, token, waiting, result);
        }
        let late = self.replica_mut(token).map(|replica| replica.acknowledgements.take_late(durable));
        for waiting in late.unwrap_or_default() {
            self.acknowledge(store, token, waiting, Err(ProduceError::TimedOut));
        }
        if moved {
            self.wake_watchers(store, token);
        }
    }

    pub(crate) fn count_time(&mut self, now: Now, waiting: &Waiting) {
        if matches!(waiting.owner, AckOwner::Produce { .. }) {
            self.out.tally.append_times.push(now.monotonic.since(waiting.placed_at));
        }
    }

    pub(crate) fn acknowledge(
        &mut self,
        store: &Store,
        token: ReplicaToken,
        waiting: Waiting,
        result: Result<(), ProduceError>,
    ) {
        match waiting.owner {
            AckOwner::Produce { operation, index } => {
                let result = result.map(|()| waiting.answer);
                let produced = self.produced_of(store, Some(token), index, result);
                self.on_produced(operation, produced);
            }
            AckOwner::Internal { operation } => self.on_internal_committed(operation, result.is_ok()),
        }
    }

    /// Nobody waits any more for what this partition's appends would have become.
    pub(crate) fn refuse_waiting(&mut self, store: &Store, token: ReplicaToken, error: PartitionError) {
        let Some(replica) = self.replica_mut(token) else { return };
        for waiting in replica.acknowledgements.drain() {
            self.acknowledge(store, token, waiting, Err(ProduceError::Partition(error)));
        }
    }

    pub(crate) fn produced_of(
        &self,
        store: &Store,
        token: Option<ReplicaToken>,
        index: EntryIndex,
        result: Result<Appended, ProduceError>,
    ) -> Produced {
        let replica = token.and_then(|token| self.replica(token));
        let log_start = |replica: &Replica| {
            if store.is_open(replica.log) { store.log_start(replica.log) } else { Offset::ZERO }
        };
        Produced {
            index,
            result,
            epoch: replica.map(|replica| replica.standing.epoch()),
            log_start: replica.map_or(Offset::ZERO, log_start),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::SlotToken;

    fn waiting(end: i64, operation: u64) -> Waiting {
        let owner =
            AckOwner::Produce { operation: OperationToken(SlotToken::from_bits(operation)), index: EntryIndex(0) };
        let answer = Appended { base_offset: Offset(0), append_time: None, log_start: Offset(0) };
        Waiting { end: Offset(end), owner, answer, placed_at: Monotonic::ZERO, late: false }
    }

    #[test]
    fn each_waits_for_its_own_kind_in_offset_order() {
        let mut acks = Acknowledgements::default();
        acks.await_durable(waiting(10, 1));
        acks.await_committed(waiting(10, 2));
        acks.await_committed(waiting(20, 3));
        acks.await_committed(waiting(5, 4));
        let ends =
            |pop: &mut dyn FnMut() -> Option<Waiting>| std::iter::from_fn(pop).map(|one| one.end.0).collect::<Vec<_>>();
        assert_eq!(ends(&mut || acks.pop_durable(Offset(9))), []);
        assert_eq!(ends(&mut || acks.pop_durable(Offset(20))), [10]);
        assert_eq!(ends(&mut || acks.pop_committed(Offset(10))), [5, 10]);
        assert_eq!(ends(&mut || acks.pop_committed(Offset(20))), [20]);
        assert_eq!(acks.len(), 0);
    }

    #[test]
    fn a_late_one_waits_for_its_own_device_only() {
        let mut acks = Acknowledgements::default();
        for (end, operation) in [(10, 1), (20, 2), (30, 1)] {
            acks.await_committed(waiting(end, operation));
        }
        let one = OperationToken(SlotToken::from_bits(1));
        let ends = |late: Vec<Waiting>| late.iter().map(|waiting| waiting.end.0).collect::<Vec<_>>();
        assert_eq!(ends(acks.expire(one, Offset(20))), [10]);
        assert_eq!(ends(acks.take_late(Offset(29))), []);
        assert_eq!(ends(acks.take_late(Offset(30))), [30]);
        assert_eq!(acks.len(), 1);
    }
}
