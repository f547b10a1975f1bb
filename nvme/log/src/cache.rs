//! Two caches of a core: verified stretches that were read, first in, first out; and the entries of index blocks, of which
//! the least recently used go first.

use crate::api::{LogSlot, Stretch};
use crate::store::Store;
use arena::BufferRef;
use base::{IdMap, Monotonic, Now, Tenancy};
use nvme_format::index::IndexEntry;
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// As many stretches that could not be read are remembered, 24 bytes each; then all are forgotten, and found again.
const UNREADABLE_MAX: usize = 4096;

const ENTRY: usize = size_of::<IndexEntry>();

#[derive(Default)]
pub struct ReadCache {
    stretches: IdMap<(Tenancy, u32), BufferRef>,
    order: VecDeque<(Tenancy, u32)>,
    bytes: usize,
    /// Whose last read failed, and when: answers end before them, so that none is begun that cannot be finished.
    unreadable: IdMap<(Tenancy, u32), Monotonic>,
    /// The indexes of extents that are in memory, by their last use as it was when they were put in order.
    indexes: BTreeMap<u64, (LogSlot, Tenancy, usize)>,
    /// Where the extent's stands in that order: each is counted once.
    noted: IdMap<Tenancy, u64>,
    index_bytes: usize,
    uses: Cell<u64>,
}

/// The entries of an extent's index blocks, while they are in memory.
#[derive(Clone, Debug)]
pub struct CachedIndex {
    pub entries: Rc<Vec<IndexEntry>>,
    used: Cell<u64>,
}

impl CachedIndex {
    /// Somebody looked something up in it.
    pub fn touch(&self, cache: &ReadCache) {
        self.used.set(cache.next_use());
    }
}

impl ReadCache {
    pub fn get(&self, stretch: &Stretch) -> Option<&BufferRef> {
        self.stretches.get(&(stretch.tenancy, stretch.position)).filter(|bytes| bytes.len() == stretch.len())
    }

    pub fn insert(&mut self, stretch: &Stretch, bytes: BufferRef, budget: usize) {
        let key = (stretch.tenancy, stretch.position);
        self.unreadable.remove(&key);
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

    /// Says whether that is news.
    pub fn note_unreadable(&mut self, now: Now, stretch: &Stretch) -> bool {
        if self.unreadable.len() >= UNREADABLE_MAX {
            self.unreadable.clear();
        }
        self.unreadable.insert((stretch.tenancy, stretch.position), now.monotonic).is_none()
    }

    pub fn is_unreadable(&self, tenancy: Tenancy, position: u32) -> bool {
        self.unreadable.contains_key(&(tenancy, position))
    }

    /// When the last read of it failed.
    pub fn failed_at(&self, stretch: &Stretch) -> Option<Monotonic> {
        self.unreadable.get(&(stretch.tenancy, stretch.position)).copied()
    }

    pub fn stretch_bytes(&self) -> usize {
        self.bytes
    }

    pub fn forget_stretches(&mut self) {
        self.stretches.clear();
        self.order.clear();
        self.bytes = 0;
    }

    fn next_use(&self) -> u64 {
        self.uses.set(self.uses.get() + 1);
        self.uses.get()
    }

    /// Counts the entries of an extent, which become its cached index.
    pub fn note_index(&mut self, slot: LogSlot, tenancy: Tenancy, entries: Vec<IndexEntry>) -> CachedIndex {
        self.forget_index(tenancy);
        let used = self.next_use();
        self.index_bytes += entries.len() * ENTRY;
        self.indexes.insert(used, (slot, tenancy, entries.len()));
        self.noted.insert(tenancy, used);
        CachedIndex { entries: Rc::new(entries), used: Cell::new(used) }
    }

    /// The extent's entries are no longer in memory: they count no more.
    pub fn forget_index(&mut self, tenancy: Tenancy) {
        let counted = self.noted.remove(&tenancy).and_then(|noted| self.indexes.remove(&noted));
        self.index_bytes -= counted.map_or(0, |(_, _, len)| len * ENTRY);
    }
}

impl Store {
    /// Forgets the least recently used index entries beyond the budget; they are read again when they are wanted. What was
    /// used since it was put in order is put behind the others, by its last use: so the first that was not is the one.
    pub(crate) fn evict_index(&mut self) {
        while self.cache.index_bytes > self.options.index_cache && self.cache.indexes.len() > 1 {
            let Some((noted, (slot, tenancy, len))) = self.cache.indexes.pop_first() else { return };
            let extent = self.partitions.get_mut(slot.token()).and_then(|partition| partition.extent_mut(tenancy));
            let used = extent.as_ref().and_then(|extent| extent.cached.as_ref()).map(|cached| cached.used.get());
            match used {
                Some(used) if used > noted => {
                    self.cache.indexes.insert(used, (slot, tenancy, len));
                    self.cache.noted.insert(tenancy, used);
                }
                _ => {
                    self.cache.noted.remove(&tenancy);
                    self.cache.index_bytes -= len * ENTRY;
                    if let Some(extent) = extent {
                        extent.cached = None;
                    }
                }
            }
        }
    }
}
