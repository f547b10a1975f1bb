//! What the log must be after any history: an independent reading of the rules, on plain lists.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use base::*;
use batch::{BatchView, EndTransaction};
use pollux_nvme_log::{AbortedRange, ProducerBatch, ProducerState, Store};
use std::collections::BTreeMap;
use std::rc::Rc;

#[derive(Clone)]
pub enum Op {
    Append(Rc<Vec<u8>>),
    Truncate(i64),
    LogStart(i64),
    Restart(i64),
    Epoch(i32, i64),
    Delete,
}

#[derive(Clone)]
struct Entry {
    base: i64,
    last: i64,
    bytes: Rc<Vec<u8>>,
}

/// One state of a partition.
#[derive(Clone, Default)]
pub struct State {
    entries: Vec<Entry>,
    epochs: Vec<(i32, i64)>,
    pub log_start: i64,
    pub end: i64,
    pub deleted: bool,
}

impl State {
    pub fn apply(&mut self, op: &Op) {
        match op {
            Op::Append(bytes) => {
                let header = BatchView::parse(bytes).expect("a good batch").0.header();
                let (base, last) = (header.base_offset.0, header.last_offset().0);
                // A cut inside the batch takes the batch, but the epoch began before the cut.
                self.start_epoch(header.partition_leader_epoch.0, base);
                self.entries.push(Entry { base, last, bytes: bytes.clone() });
                self.end = last + 1;
            }
            Op::Truncate(to) => {
                self.entries.retain(|entry| entry.last < *to);
                self.epochs.retain(|(_, offset)| offset < to);
                self.end = *to;
            }
            Op::LogStart(to) => {
                self.log_start = self.log_start.max(*to);
                while self.epochs.len() > 1 && self.epochs[1].1 <= self.log_start {
                    self.epochs.remove(0);
                }
                if let Some(first) = self.epochs.first_mut() {
                    first.1 = first.1.max(self.log_start);
                }
            }
            Op::Restart(at) => *self = State { log_start: *at, end: *at, ..State::default() },
            Op::Epoch(epoch, offset) => self.start_epoch(*epoch, *offset),
            Op::Delete => self.deleted = true,
        }
    }

    /// The bytes that readers see: whole batches from the one that holds the log's start.
    pub fn bytes(&self) -> Vec<u8> {
        let mut all = Vec::new();
        for entry in &self.entries {
            if entry.last >= self.log_start {
                all.extend_from_slice(&entry.bytes);
            }
        }
        all
    }

    pub fn batch_starts(&self) -> Vec<i64> {
        self.entries.iter().filter(|entry| entry.last >= self.log_start).map(|entry| entry.base).collect()
    }

    fn start_epoch(&mut self, epoch: i32, offset: i64) {
        if self.epochs.last().is_none_or(|last| epoch > last.0) {
            self.epochs.retain(|start| start.1 < offset);
            self.epochs.push((epoch, offset));
        }
    }

    /// Producers and aborted ranges.
    fn producers(&self) -> (BTreeMap<i64, ProducerState>, Vec<AbortedRange>) {
        let mut producers: BTreeMap<i64, ProducerState> = BTreeMap::new();
        let mut aborted = Vec::new();
        for entry in &self.entries {
            let Entry { base, last, bytes } = entry;
            let view = BatchView::parse(bytes).expect("good").0;
            let header = view.header();
            let Some(stamp) = header.producer() else { continue };
            let marker = EndTransaction::from_batch(&view).expect("good");
            let state = producers.entry(stamp.id.0).or_insert_with(|| ProducerState {
                id: stamp.id,
                epoch: stamp.epoch,
                coordinator_epoch: -1,
                last_timestamp: WallMillis(0),
                last_offset: Offset(0),
                transaction: None,
                batches: Vec::new(),
            });
            if state.epoch != stamp.epoch {
                state.batches.clear();
            }
            state.epoch = stamp.epoch;
            state.last_timestamp = header.max_timestamp;
            state.last_offset = Offset(*last);
            if let Some(marker) = marker {
                state.coordinator_epoch = marker.coordinator_epoch;
                let first = state.transaction.take();
                let open = producers.values().filter_map(|state| state.transaction).min();
                if let Some(first) = first.filter(|_| !marker.committed) {
                    let last_stable = open.unwrap_or(Offset(base + 1));
                    aborted.push(AbortedRange { producer: stamp.id, first, last: Offset(*base), last_stable });
                }
                continue;
            }
            state.batches.push(ProducerBatch {
                first_sequence: stamp.base_sequence,
                last_sequence: stamp.last_sequence,
                base_offset: Offset(*base),
                last_offset: Offset(*last),
                timestamp: header.max_timestamp,
            });
            if state.batches.len() > 5 {
                state.batches.remove(0);
            }
            if header.attributes.is_transactional() && state.transaction.is_none() {
                state.transaction = Some(Offset(*base));
            }
        }
        aborted.retain(|range| range.last.0 >= self.log_start);
        (producers, aborted)
    }

    /// Why the store's partition is not this state, if it is not (its bytes are compared apart).
    pub fn differs(&self, store: &Store, slot: pollux_nvme_log::LogSlot) -> Option<String> {
        let found = (store.log_start(slot).0, store.end_offset(slot).0);
        if found != (self.log_start, self.end) {
            return Some(format!("start and end are {found:?}, not {:?}", (self.log_start, self.end)));
        }
        let epochs: Vec<(i32, i64)> =
            store.epochs(slot).starts().iter().map(|start| (start.epoch.0, start.offset.0)).collect();
        if epochs != self.epochs {
            return Some(format!("epochs are {epochs:?}, not {:?}", self.epochs));
        }
        let (producers, aborted) = self.producers();
        let found: BTreeMap<i64, ProducerState> =
            store.producers(slot).iter().map(|state| (state.id.0, state.clone())).collect();
        if found != producers {
            return Some(format!("producers are {found:?}, not {producers:?}"));
        }
        let open = producers.values().filter_map(|state| state.transaction).min();
        if store.producers(slot).first_open() != open {
            return Some(format!("the first open transaction is not {open:?}"));
        }
        if store.transactions(slot).all_aborted() != aborted {
            return Some(format!("aborted are {:?}, not {aborted:?}", store.transactions(slot).all_aborted()));
        }
        if store.high_watermark_hint(slot) > store.end_offset(slot) {
            return Some("the high watermark is beyond the end".to_owned());
        }
        None
    }
}

/// A partition's history: what is acknowledged, and what may or may not be there after a crash.
#[derive(Clone, Default)]
pub struct History {
    pub acknowledged: State,
    /// It certainly exists on the medium.
    pub certain: bool,
    pub pending: Vec<Op>,
    /// Everything that happened, for the report of a failure.
    pub told: Vec<String>,
}

impl Op {
    fn tell(&self) -> String {
        match self {
            Op::Append(bytes) => {
                let header = BatchView::parse(bytes).expect("good").0.header();
                let (first, last) = (header.base_offset.0, header.last_offset().0);
                format!("append {first}..{last} size {} epoch {}", header.size, header.partition_leader_epoch)
            }
            Op::Truncate(to) => format!("truncate {to}"),
            Op::LogStart(to) => format!("log start {to}"),
            Op::Restart(at) => format!("restart {at}"),
            Op::Epoch(epoch, offset) => format!("epoch {epoch} at {offset}"),
            Op::Delete => "delete".to_owned(),
        }
    }
}

impl History {
    pub fn push(&mut self, op: Op) {
        self.told.push(op.tell());
        self.pending.push(op);
    }

    pub fn now(&self) -> State {
        let mut state = self.acknowledged.clone();
        for op in &self.pending {
            state.apply(op);
        }
        state
    }

    /// The store said that everything below `offset` is durable.
    pub fn on_durable(&mut self, offset: i64) {
        let covered = self.pending.iter().rposition(|op| match op {
            Op::Append(bytes) => BatchView::parse(bytes).expect("good").0.header().next_offset().0 <= offset,
            _ => false,
        });
        if let Some(last) = covered {
            self.acknowledge(last + 1);
        }
    }

    pub fn on_log_start(&mut self, to: i64) {
        let covered = self.pending.iter().rposition(|op| matches!(op, Op::LogStart(at) | Op::Restart(at) if *at == to));
        if let Some(last) = covered {
            self.acknowledge(last + 1);
        }
    }

    pub fn acknowledge(&mut self, count: usize) {
        self.told.push(format!("{count} of {} acknowledged", self.pending.len()));
        for op in self.pending.drain(..count) {
            self.acknowledged.apply(&op);
        }
        self.certain = true;
    }

    /// Every state that a crash may leave, the newest first, with how many pending operations it has.
    pub fn possible(&self) -> Vec<(usize, State)> {
        let mut state = self.acknowledged.clone();
        let mut all = vec![(0, state.clone())];
        for (number, op) in self.pending.iter().enumerate() {
            state.apply(op);
            all.push((number + 1, state.clone()));
        }
        all.reverse();
        all
    }
}
