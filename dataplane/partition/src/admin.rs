//! What is only looked up: epochs' ends, producers, sizes.

use crate::epochs::end_of;
use crate::partitions::Partitions;
use base::{LeaderEpoch, Offset, PartitionId};
use handoff::{
    DescribeLogs, DescribeProducers, EpochEnd, EpochEnds, EpochEndsEntry, LogFacts, Outcome, PartitionError,
    ProducerFacts,
};
use nvme_log::{LogSlot, ProducerState, Store};

/// What Kafka keeps where no coordinator has written a marker.
const NO_COORDINATOR: i32 = -1;

impl Partitions {
    pub(crate) fn on_epoch_ends(&mut self, store: &Store, command: EpochEnds) {
        let EpochEnds { gather, entries } = command;
        let answer = |entry: EpochEndsEntry| (entry.index, self.epoch_end(store, &entry));
        let entries = entries.into_iter().map(answer).collect();
        self.answer(gather.core, Outcome::EpochEnds { gather, entries });
    }

    fn epoch_end(&self, store: &Store, entry: &EpochEndsEntry) -> Result<EpochEnd, PartitionError> {
        let (_, replica) = self.leading(entry.partition, entry.current_epoch)?;
        if entry.epoch < LeaderEpoch(0) {
            return Ok(EpochEnd { epoch: None, end: None });
        }
        let found = end_of(store.epochs(replica.log).starts(), store.end_offset(replica.log), entry.epoch);
        Ok(EpochEnd { epoch: found.map(|(epoch, _)| epoch), end: found.map(|(_, end)| end) })
    }

    pub(crate) fn on_describe_producers(&mut self, store: &Store, command: DescribeProducers) {
        let DescribeProducers { gather, entries } = command;
        let describe = |partition| {
            let (_, replica) = self.leading(partition, None)?;
            Ok(store.producers(replica.log).iter().map(facts).collect())
        };
        let entries = entries.into_iter().map(|(index, partition)| (index, describe(partition))).collect();
        self.answer(gather.core, Outcome::ProducersDescribed { gather, entries });
    }

    pub(crate) fn on_describe_logs(&mut self, store: &Store, command: DescribeLogs) {
        let DescribeLogs { gather, partitions } = command;
        let found = partitions.into_iter().filter_map(|partition| Some((partition, store.find(partition)?)));
        let logs = found.map(|(partition, log)| self.log_facts(store, partition, log)).collect();
        let (free, owned) = store.space_use();
        let (total, usable) = self.space.map_or((owned, free), |space| (space.total, space.unowned + free));
        self.answer(gather.core, Outcome::LogsDescribed { gather, logs, total, usable });
    }

    fn log_facts(&self, store: &Store, partition: PartitionId, log: LogSlot) -> LogFacts {
        let replica = self.by_id.get(&partition).and_then(|token| self.replica(*token));
        let behind = |watermark: Offset| (watermark.0 - store.end_offset(log).0).max(0).unsigned_abs();
        let lag = replica.filter(|replica| !replica.is_leader()).map_or(0, |replica| behind(replica.high_watermark));
        LogFacts { partition, size: store.log_bytes(log), lag, future: false }
    }
}

fn facts(state: &ProducerState) -> ProducerFacts {
    ProducerFacts {
        id: state.id,
        epoch: state.epoch,
        last_sequence: state.batches.last().map(|batch| batch.last_sequence),
        last_timestamp: state.last_timestamp.0,
        coordinator_epoch: (state.coordinator_epoch != NO_COORDINATOR).then_some(state.coordinator_epoch),
        transaction_start: state.transaction,
    }
}
