//! Two caches of a core: verified stretches that were read, and the entries of index blocks. First in, first out.

use crate::api::{LogSlot, Stretch};
use crate::store::Store;
use arena::BufferRef;
use base::Tenancy;
use std::collections::{HashMap, VecDeque};

const ENTRY: usize = size_of::<nvme_format::index::IndexEntry>();

#[derive(Default)]
pub struct ReadCache {
    stretches: HashMap<(Tenancy, u32), BufferRef>,
    order: VecDeque<(Tenancy, u32)>,
    bytes: usize,
    indexes: VecDeque<(LogSlot, Tenancy, usize)>,
    index_bytes: usize,
}

impl ReadCache {
    pub fn get(&self, stretch: &Stretch) -> Option<&BufferRef> {
        self.stretches.get(&(stretch.tenancy, stretch.position)).filter(|bytes| bytes.len() == stretch.len())
    }

    pub fn insert(&mut self, stretch: &Stretch, bytes: BufferRef, budget: usize) {
        let key = (stretch.tenancy, stretch.position);
        self.bytes += bytes.len();
        match self.stretches.insert(key, bytes) {
            Some(old) => self.bytes -= old.len(),
            None => self.order.push_back(key),
        }
        while self.bytes > budget && self.order.len() > 1 {
            let Some(key) = self.order.pop_front() else { break };
            if let Some(old) = self.stretches.remove(&key) {
                self.bytes -= old.len();
            }
        }
    }

    pub fn stretch_bytes(&self) -> usize {
        self.bytes
    }

    pub fn forget_stretches(&mut self) {
        self.stretches.clear();
        self.order.clear();
        self.bytes = 0;
    }

    pub fn note_index(&mut self, slot: LogSlot, tenancy: Tenancy, entries: usize) {
        self.indexes.push_back((slot, tenancy, entries));
        self.index_bytes += entries * ENTRY;
    }
}

impl Store {
    /// Forgets the oldest index entries beyond the budget; they are read again when they are wanted.
    pub(crate) fn evict_index(&mut self) {
        while self.cache.index_bytes > self.options.index_cache && self.cache.indexes.len() > 1 {
            let Some((slot, tenancy, entries)) = self.cache.indexes.pop_front() else { return };
            self.cache.index_bytes -= entries * ENTRY;
            if let Some(extent) = self.partition_mut(slot).and_then(|partition| partition.extent_mut(tenancy)) {
                extent.cached = None;
            }
        }
    }
}
