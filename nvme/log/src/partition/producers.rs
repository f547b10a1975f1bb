//! The producers of a partition: epochs, the last five batches of each, open transactions.

use base::{Offset, ProducerId, WallMillis};
use batch::BatchHeader;
use nvme_format::blob::{AbortedRange, EndedTransaction, PRODUCER_BATCHES, ProducerBatch, ProducerState};
use nvme_format::record::TransactionEnded;
use std::collections::{BTreeMap, BTreeSet};

/// What Kafka keeps where no marker of a coordinator was seen.
pub const NO_COORDINATOR: i32 = -1;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProducerTable {
    producers: BTreeMap<ProducerId, ProducerState>,
    /// Open transactions by their first offset.
    open: BTreeSet<(Offset, ProducerId)>,
}

impl ProducerTable {
    pub fn from_states(states: impl IntoIterator<Item = ProducerState>) -> ProducerTable {
        let mut table = ProducerTable::default();
        for state in states {
            table.insert(state);
        }
        table
    }

    pub fn get(&self, id: ProducerId) -> Option<&ProducerState> {
        self.producers.get(&id)
    }

    pub fn iter(&self) -> impl Iterator<Item = &ProducerState> {
        self.producers.values()
    }

    pub fn len(&self) -> usize {
        self.producers.len()
    }

    pub fn is_empty(&self) -> bool {
        self.producers.is_empty()
    }

    pub fn states(&self) -> Vec<ProducerState> {
        self.producers.values().cloned().collect()
    }

    /// The first offset of the oldest open transaction.
    pub fn first_open(&self) -> Option<Offset> {
        self.open.first().map(|(first, _)| *first)
    }

    pub(crate) fn insert(&mut self, state: ProducerState) {
        self.remove(state.id);
        if let Some(first) = state.transaction {
            self.open.insert((first, state.id));
        }
        self.producers.insert(state.id, state);
    }

    pub(crate) fn remove(&mut self, id: ProducerId) -> Option<ProducerState> {
        let state = self.producers.remove(&id)?;
        if let Some(first) = state.transaction {
            self.open.remove(&(first, id));
        }
        Some(state)
    }

    /// Takes note of an appended batch; markers come by `end_transaction`.
    pub(crate) fn note(&mut self, header: &BatchHeader) {
        let Some(stamp) = header.producer() else { return };
        if header.attributes.is_control() {
            return;
        }
        let state = self.producers.entry(stamp.id).or_insert_with(|| ProducerState {
            id: stamp.id,
            epoch: stamp.epoch,
            coordinator_epoch: NO_COORDINATOR,
            last_timestamp: header.max_timestamp,
            last_offset: header.last_offset(),
            transaction: None,
            batches: Vec::with_capacity(PRODUCER_BATCHES),
        });
        if state.epoch != stamp.epoch {
            state.epoch = stamp.epoch;
            state.batches.clear();
        }
        if state.batches.len() == PRODUCER_BATCHES {
            state.batches.remove(0);
        }
        state.batches.push(ProducerBatch {
            first_sequence: stamp.base_sequence,
            last_sequence: stamp.last_sequence,
            base_offset: header.base_offset,
            last_offset: header.last_offset(),
            timestamp: header.max_timestamp,
        });
        state.last_timestamp = header.max_timestamp;
        state.last_offset = header.last_offset();
        if header.attributes.is_transactional() {
            self.begin(stamp.id, header.base_offset);
        }
    }

    pub(crate) fn begin(&mut self, id: ProducerId, first: Offset) {
        if let Some(state) = self.producers.get_mut(&id)
            && state.transaction.is_none()
        {
            state.transaction = Some(first);
            self.open.insert((first, id));
        }
    }

    /// Ends the producer's transaction; gives its first offset where one was open.
    pub(crate) fn end_transaction(&mut self, ended: &TransactionEnded) -> Option<Offset> {
        let mut state = self.remove(ended.producer).unwrap_or_else(|| ProducerState {
            id: ended.producer,
            epoch: ended.epoch,
            coordinator_epoch: NO_COORDINATOR,
            last_timestamp: ended.timestamp,
            last_offset: ended.marker,
            transaction: None,
            batches: Vec::new(),
        });
        if state.epoch != ended.epoch {
            state.epoch = ended.epoch;
            state.batches.clear();
        }
        let first = state.transaction.take();
        state.coordinator_epoch = ended.coordinator_epoch;
        state.last_timestamp = ended.timestamp;
        state.last_offset = ended.marker;
        self.insert(state);
        first
    }

    /// Drops what a cut at `to` makes untrue and puts what was true there in its place.
    pub(crate) fn cut(&mut self, to: Offset, replacements: &[ProducerState]) {
        let beyond: Vec<_> = self.producers.values().filter(|state| state.last_offset >= to).map(|s| s.id).collect();
        for id in beyond {
            self.remove(id);
        }
        for state in replacements {
            self.insert(state.clone());
        }
    }

    /// Forgets producers that wrote nothing since `before` and have no open transaction; gives how many.
    pub(crate) fn expire(&mut self, before: WallMillis) -> usize {
        let count = self.producers.len();
        self.producers.retain(|_, state| state.transaction.is_some() || state.last_timestamp >= before);
        count - self.producers.len()
    }
}

/// What readers must know of transactions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transactions {
    pub(crate) aborted: Vec<AbortedRange>,
    pub(crate) ended: Vec<EndedTransaction>,
}

impl Transactions {
    /// The aborted ranges that overlap `from..upper`, in the order of their markers.
    pub fn aborted(&self, from: Offset, upper: Offset) -> impl Iterator<Item = &AbortedRange> {
        self.aborted.iter().filter(move |range| range.last >= from && range.first < upper)
    }

    pub fn all_aborted(&self) -> &[AbortedRange] {
        &self.aborted
    }

    /// The first offset of an ended transaction whose marker is not below the high watermark.
    pub fn first_unreplicated(&self, high_watermark: Offset) -> Option<Offset> {
        self.ended.iter().filter(|ended| ended.marker >= high_watermark).map(|ended| ended.first).min()
    }
}
