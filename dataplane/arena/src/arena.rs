//! The arena itself: slots with plain counts over a page map, the budget, and the taking back of foreign references.

use crate::buffer::{Buffer, BufferRef, Parcel};
use crate::pages::{PageMap, Place};
use crate::region::{Region, RegionAddress};
use crate::returns::{Returns, Taken};
use base::{BLOCK_SIZE, CoreId};
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

/// So much of the memory that will be taken next is touched ahead of its use.
const AHEAD_PAGES: u32 = ((128 << 10) / BLOCK_SIZE) as u32;
/// Lengths whose next places are looked at: a commit's, and a receive chunk's or a copy-out's as most are.
const AHEAD_OF: [u32; 2] = [1, ((64 << 10) / BLOCK_SIZE) as u32];

/// One core's memory for buffers; cloning gives another handle to it. Not `Send`: it stays on its core.
#[derive(Clone)]
pub struct Arena {
    home: Rc<Home>,
}

impl Arena {
    pub fn new(owner: CoreId, region: Region) -> Arena {
        let pages = PageMap::new(region.len() / BLOCK_SIZE);
        let state = State {
            pages,
            slots: Vec::new(),
            vacant: Vec::new(),
            oversized: 0,
            taken: Taken::nothing(),
            cannot_populate: false,
        };
        let shared = Arc::new(Shared { returns: Returns::new(), region, orphans: OnceLock::new() });
        Arena { home: Rc::new(Home { owner, shared, state: RefCell::new(state) }) }
    }

    /// An arena over memory from the heap, for tests, tools and the simulator.
    pub fn heap(owner: CoreId, limit: usize) -> Arena {
        Arena::new(owner, Region::heap(limit))
    }

    /// A buffer of `len` bytes of no particular value, or none where the budget is used up. It starts at a block
    /// boundary where `len` is at least a block. A length of zero is the caller's bug.
    pub fn try_allocate(&self, len: usize) -> Option<Buffer> {
        assert!(len > 0, "an empty buffer needs no arena");
        if let Some(buffer) = self.home.allocate(len) {
            return Some(buffer);
        }
        // Before giving up, take back what other cores have finished with.
        (self.home.poll_returns(usize::MAX) > 0).then(|| self.home.allocate(len)).flatten()
    }

    /// A frozen copy of `bytes`, or none where the budget is used up.
    pub fn copy(&self, bytes: &[u8]) -> Option<BufferRef> {
        if bytes.is_empty() {
            return Some(BufferRef::empty());
        }
        let mut buffer = self.try_allocate(bytes.len())?;
        buffer.copy_from_slice(bytes);
        Some(buffer.freeze())
    }

    /// Memory of its own, beside the budget, for a frame longer than the core's share. There is one at a time: none is
    /// given while the last is still referred to, or where the system refuses.
    pub fn allocate_oversized(&self, len: usize) -> Option<Buffer> {
        assert!(len > 0, "an empty buffer needs no arena");
        if self.home.state.borrow().oversized > 0 {
            self.home.poll_returns(usize::MAX);
            if self.home.state.borrow().oversized > 0 {
                return None;
            }
        }
        let region = self.home.shared.region.another(len).ok()?;
        let bytes = region.at(0);
        let mut state = self.home.state.borrow_mut();
        state.oversized = region.len();
        let slot = state.occupy(Source::Oversized(region));
        Some(Buffer::new(bytes, len, self.home.clone(), slot))
    }

    /// Opens what another core (or this one) sent. The bytes stay where they are; when the last reference made from the
    /// result is dropped, the sender's arena gets its own back.
    pub fn open(&self, mut parcel: Parcel) -> BufferRef {
        if let Some(slot) = parcel.take_slot_at(&self.home.shared) {
            // It never left home: the parcel's count becomes the reference's.
            let (bytes, len) = parcel.extent();
            return BufferRef::in_slot(bytes, len, self.home.clone(), slot);
        }
        match parcel.into_unowned() {
            Ok(reference) => reference,
            Err(parcel) => {
                let (bytes, len) = parcel.extent();
                let slot = self.home.state.borrow_mut().occupy(Source::Foreign(parcel));
                BufferRef::in_slot(bytes, len, self.home.clone(), slot)
            }
        }
    }

    /// Takes back at most `budget` buffers to which other cores gave references up, and returns how many it saw.
    pub fn poll_returns(&self, budget: usize) -> usize {
        self.home.poll_returns(budget)
    }

    pub fn owner(&self) -> CoreId {
        self.home.owner
    }

    pub fn capacity(&self) -> usize {
        self.home.shared.region.len()
    }

    /// Bytes of pages that are wholly free. They may lie apart, so that a buffer of this length need not fit.
    pub fn free_bytes(&self) -> usize {
        self.home.state.borrow().pages.free_pages() * BLOCK_SIZE
    }

    /// Bytes of pages in use, oversized buffers not included.
    pub fn used_bytes(&self) -> usize {
        self.capacity() - self.free_bytes()
    }

    /// Bytes of the oversized buffer, where there is one.
    pub fn oversized_bytes(&self) -> usize {
        self.home.state.borrow().oversized
    }

    /// Where the region lies, for registering it with a device.
    pub fn region(&self) -> RegionAddress {
        self.home.shared.region.address()
    }

    /// Free bytes that have memory behind them, which `release_idle` may give back.
    pub fn touched_bytes(&self) -> usize {
        self.home.state.borrow().pages.touched_pages() * BLOCK_SIZE
    }

    /// Where buffers were taken since the last call, lets the system put memory behind what is likely to be taken next. The
    /// first use of a page costs 0.7 us natively and 4 us and more under a hypervisor; a loop calls this when its answers
    /// have left.
    pub fn touch_ahead(&self) {
        let state = &mut *self.home.state.borrow_mut();
        if state.cannot_populate || !state.pages.was_taken() {
            return;
        }
        for count in AHEAD_OF {
            let Some((page, len)) = state.pages.untouched_ahead(count, AHEAD_PAGES) else { continue };
            if !self.home.shared.region.populate(page * BLOCK_SIZE, len * BLOCK_SIZE) {
                state.cannot_populate = true;
                return;
            }
            state.pages.note_touched(page, len);
        }
    }

    /// Whether `release_idle` has come to the region's end, so that its next call begins another pass.
    pub fn is_swept(&self) -> bool {
        self.home.state.borrow().pages.is_swept()
    }

    /// Gives free memory that was not used since the last but one pass back to the system, looking at no more than
    /// `budget` bytes; the next call goes on from there. A pass is made every few seconds. Returns the bytes that went.
    pub fn release_idle(&self, budget: usize) -> usize {
        let region = &self.home.shared.region;
        let mut state = self.home.state.borrow_mut();
        let released = state
            .pages
            .sweep(budget.div_ceil(BLOCK_SIZE), |page, count| region.give_back(page * BLOCK_SIZE, count * BLOCK_SIZE));
        released * BLOCK_SIZE
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Arena(core {}, {} of {} bytes used)", self.owner(), self.used_bytes(), self.capacity())
    }
}

/// What buffers of an arena hold on to, on its core.
pub(crate) struct Home {
    owner: CoreId,
    shared: Arc<Shared>,
    state: RefCell<State>,
}

/// What parcels hold on to, on any core.
#[derive(Debug)]
pub(crate) struct Shared {
    returns: Returns,
    region: Region,
    /// What parcels still refer to when the arena itself is gone; it goes with the last parcel.
    orphans: OnceLock<Vec<Source>>,
}

impl Shared {
    /// Gives up a reference that left its core.
    pub(crate) fn give_up(&self, slot: u32) {
        self.returns.push(slot);
    }
}

struct State {
    pages: PageMap,
    slots: Vec<Slot>,
    vacant: Vec<u32>,
    /// Length of the one oversized buffer, zero while there is none.
    oversized: usize,
    taken: Taken,
    /// The system or this kind of region does not touch pages ahead; it is not asked again.
    cannot_populate: bool,
}

/// One allocation, or one parcel that was opened here.
struct Slot {
    /// References on this core and parcels that left it. Zero: vacant.
    count: u32,
    source: Option<Source>,
}

/// What becomes free with the last reference.
#[derive(Debug)]
enum Source {
    Place(Place),
    Oversized(Region),
    /// Another core's bytes: dropping the parcel sends the reference home.
    Foreign(Parcel),
}

impl State {
    fn occupy(&mut self, source: Source) -> u32 {
        let slot = Slot { count: 1, source: Some(source) };
        if let Some(index) = self.vacant.pop() {
            self.slots[index as usize] = slot;
            return index;
        }
        self.slots.push(slot);
        u32::try_from(self.slots.len() - 1).expect("fewer buffers than bytes")
    }

    fn release(&mut self, index: u32, references: u32) {
        let slot = &mut self.slots[index as usize];
        assert!(slot.count >= references, "more references given up than there were");
        slot.count -= references;
        if slot.count > 0 {
            return;
        }
        match slot.source.take().expect("an occupied slot has a source") {
            Source::Place(place) => self.pages.give_back(place),
            Source::Oversized(region) => {
                drop(region);
                self.oversized = 0;
            }
            Source::Foreign(parcel) => drop(parcel),
        }
        self.vacant.push(index);
    }
}

impl Home {
    fn allocate(self: &Rc<Home>, len: usize) -> Option<Buffer> {
        let mut state = self.state.borrow_mut();
        let place = state.pages.take(len)?;
        let offset = state.pages.offset(place);
        let slot = state.occupy(Source::Place(place));
        Some(Buffer::new(self.shared.region.at(offset), len, self.clone(), slot))
    }

    fn poll_returns(&self, budget: usize) -> usize {
        let state = &mut *self.state.borrow_mut();
        let mut seen = 0;
        while seen < budget {
            let Some((slot, references)) = self.shared.returns.pop(&mut state.taken) else { break };
            state.release(slot, references);
            seen += 1;
        }
        seen
    }

    pub(crate) fn retain(&self, slot: u32) {
        let count = &mut self.state.borrow_mut().slots[slot as usize].count;
        *count = count.checked_add(1).expect("fewer references than 2^32");
    }

    pub(crate) fn release(&self, slot: u32) {
        self.state.borrow_mut().release(slot, 1);
    }

    /// Turns a reference on this core into one that may leave it: the count stays as it is.
    pub(crate) fn part_with(&self, slot: u32) -> Arc<Shared> {
        self.shared.returns.prepare(slot);
        self.shared.clone()
    }
}

impl Drop for Home {
    /// Buffers hold the home alive, so whatever is still occupied is referred to by parcels alone. Its bytes must
    /// outlive them: the region does by itself, the rest is left to them.
    fn drop(&mut self) {
        self.poll_returns(usize::MAX);
        let slots = self.state.get_mut().slots.drain(..);
        let orphans: Vec<Source> =
            slots.filter_map(|slot| slot.source).filter(|source| !matches!(source, Source::Place(_))).collect();
        if !orphans.is_empty() {
            self.shared.orphans.set(orphans).expect("a home ends once");
        }
    }
}
