//! Views of an arena's bytes: unique (`Buffer`), shared on one core (`BufferRef`), on the way to another (`Parcel`).
#![allow(unsafe_code)]

use crate::arena::{Home, Shared};
use std::fmt;
use std::mem;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

/// Bytes with one owner, who may write them. Neither `Send` nor cloneable.
pub struct Buffer {
    bytes: NonNull<u8>,
    len: usize,
    hold: Hold,
}

/// A shared view of bytes that no longer change. Cloning and slicing count with a plain number; not `Send`.
pub struct BufferRef {
    bytes: NonNull<u8>,
    len: usize,
    hold: Hold,
}

/// A view on its way between cores: `Send`, not cloneable, readable wherever it is (a job on a helper thread reads it
/// in place). `Arena::open` turns it into a `BufferRef`; dropping it unopened sends the reference home all the same.
pub struct Parcel {
    bytes: NonNull<u8>,
    len: usize,
    hold: ParcelHold,
}

/// What keeps the bytes of a view alive on a core.
enum Hold {
    /// Nothing does: they are static, or the view has been taken apart.
    Nothing,
    /// Bytes from outside an arena, in tests and tools: these are counted atomically.
    Vec(Arc<Vec<u8>>),
    Slot {
        home: Rc<Home>,
        slot: u32,
    },
}

/// What keeps the bytes of a parcel alive.
enum ParcelHold {
    Nothing,
    Vec(Arc<Vec<u8>>),
    Slot { shared: Arc<Shared>, slot: u32 },
}

// SAFETY: a parcel reads its bytes and nothing else. They are frozen: a `Buffer` is consumed by `freeze`, and no other
// way leads from a view back to writing while any reference is counted; the parcel is counted in its slot until `give_up`,
// which is lock-free and may be called by any thread, and the memory itself lives at least as long as `Arc<Shared>` (the
// region, and the orphans of an arena that ended). `Arc<Vec<u8>>` is `Send` by itself.
unsafe impl Send for Parcel {}
// SAFETY: `&Parcel` only reads bytes that do not change.
unsafe impl Sync for Parcel {}

impl Buffer {
    /// The slot has one count, which becomes this buffer's; the `len` bytes are its alone.
    pub(crate) fn new(bytes: NonNull<u8>, len: usize, home: Rc<Home>, slot: u32) -> Buffer {
        Buffer { bytes, len, hold: Hold::Slot { home, slot } }
    }

    /// Forgets all bytes from `len` on. The memory stays taken.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Cuts the first `len` bytes off as a buffer of their own; both keep the memory taken.
    pub fn split_to(&mut self, len: usize) -> Buffer {
        assert!(len <= self.len, "{len} of {} bytes", self.len);
        let front = Buffer { bytes: self.bytes, len, hold: self.hold.clone() };
        // SAFETY: at most one past the end of the allocation, as just asserted; the two parts share no byte.
        self.bytes = unsafe { self.bytes.add(len) };
        self.len -= len;
        front
    }

    /// No one writes these bytes from now on, and so they can be shared.
    pub fn freeze(mut self) -> BufferRef {
        BufferRef { bytes: self.bytes, len: self.len, hold: mem::replace(&mut self.hold, Hold::Nothing) }
    }
}

impl BufferRef {
    /// The slot has a count for this reference already.
    pub(crate) fn in_slot(bytes: NonNull<u8>, len: usize, home: Rc<Home>, slot: u32) -> BufferRef {
        BufferRef { bytes, len, hold: Hold::Slot { home, slot } }
    }

    pub fn empty() -> BufferRef {
        BufferRef::from_static(&[])
    }

    pub fn from_static(bytes: &'static [u8]) -> BufferRef {
        BufferRef { bytes: start(bytes), len: bytes.len(), hold: Hold::Nothing }
    }

    /// A view of bytes outside any arena, for tests and tools: neither budgeted nor block-aligned.
    pub fn from_vec(bytes: Vec<u8>) -> BufferRef {
        let bytes = Arc::new(bytes);
        BufferRef { bytes: start(&bytes), len: bytes.len(), hold: Hold::Vec(bytes) }
    }

    /// A view of a part, which keeps the whole alive. A range outside the view is the caller's bug.
    pub fn slice(&self, range: Range<usize>) -> BufferRef {
        let part = start(&self[range.clone()]);
        if range.is_empty() {
            return BufferRef::empty();
        }
        BufferRef { bytes: part, len: range.len(), hold: self.hold.clone() }
    }

    /// The same view, fit to leave this core.
    pub fn into_parcel(mut self) -> Parcel {
        let hold = match mem::replace(&mut self.hold, Hold::Nothing) {
            Hold::Nothing => ParcelHold::Nothing,
            Hold::Vec(bytes) => ParcelHold::Vec(bytes),
            Hold::Slot { home, slot } => ParcelHold::Slot { shared: home.part_with(slot), slot },
        };
        Parcel { bytes: self.bytes, len: self.len, hold }
    }
}

impl Parcel {
    pub(crate) fn extent(&self) -> (NonNull<u8>, usize) {
        (self.bytes, self.len)
    }

    /// The slot that this parcel is counted in, where that is one of `home`'s; the count is the caller's then.
    pub(crate) fn take_slot_at(&mut self, home: &Arc<Shared>) -> Option<u32> {
        match &self.hold {
            ParcelHold::Slot { shared, slot } if Arc::ptr_eq(shared, home) => {
                let slot = *slot;
                self.hold = ParcelHold::Nothing;
                Some(slot)
            }
            _ => None,
        }
    }

    /// A reference, where no arena has to hear of the parcel's end; else the parcel again.
    pub(crate) fn into_unowned(mut self) -> Result<BufferRef, Parcel> {
        let hold = match mem::replace(&mut self.hold, ParcelHold::Nothing) {
            ParcelHold::Nothing => Hold::Nothing,
            ParcelHold::Vec(bytes) => Hold::Vec(bytes),
            slot @ ParcelHold::Slot { .. } => {
                self.hold = slot;
                return Err(self);
            }
        };
        Ok(BufferRef { bytes: self.bytes, len: self.len, hold })
    }
}

/// The address of the first byte; dangling, and never read through, where there is none.
fn start(bytes: &[u8]) -> NonNull<u8> {
    NonNull::from(bytes).cast()
}

impl Clone for Hold {
    fn clone(&self) -> Hold {
        match self {
            Hold::Nothing => Hold::Nothing,
            Hold::Vec(bytes) => Hold::Vec(bytes.clone()),
            Hold::Slot { home, slot } => {
                home.retain(*slot);
                Hold::Slot { home: home.clone(), slot: *slot }
            }
        }
    }
}

impl Hold {
    fn release(&self) {
        if let Hold::Slot { home, slot } = self {
            home.release(*slot);
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.hold.release();
    }
}

impl Drop for BufferRef {
    fn drop(&mut self) {
        self.hold.release();
    }
}

impl Drop for Parcel {
    fn drop(&mut self) {
        if let ParcelHold::Slot { shared, slot } = &self.hold {
            shared.give_up(*slot);
        }
    }
}

impl Clone for BufferRef {
    fn clone(&self) -> BufferRef {
        BufferRef { bytes: self.bytes, len: self.len, hold: self.hold.clone() }
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the arena gave these `len` bytes to this buffer alone and keeps them mapped while the slot is counted;
        // every byte of a region is initialised from the start. The borrow of `self` keeps writers away.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the exclusive borrow of the only view of these bytes makes the slice exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.bytes.as_ptr(), self.len) }
    }
}

impl Deref for BufferRef {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `hold` keeps the bytes alive (a counted slot, an `Arc`, or static), they are initialised, and since
        // `freeze` nobody writes them.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr(), self.len) }
    }
}

impl Deref for Parcel {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: as for `BufferRef`; the parcel's count in its slot is given up only when it is dropped.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for BufferRef {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Vec<u8>> for BufferRef {
    fn from(bytes: Vec<u8>) -> BufferRef {
        BufferRef::from_vec(bytes)
    }
}

/// Bytes of users stay out of logs: only the length shows.
macro_rules! debug_by_length {
    ($($name:ident),*) => {$(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({} bytes)"), self.len)
            }
        }
    )*};
}
debug_by_length!(Buffer, BufferRef, Parcel);
