//! Buffers over a memory region that the arena is given, one arena per core.
//!
//! Every room of the data path calls it. It does not know who registers the region with a device or a port, nor what
//! the bytes mean. Invariants: a byte of the region belongs to at most one buffer; a buffer's bytes never change once
//! it is frozen; counts of references are plain numbers that only the owning core touches, and a reference that was
//! made on another core comes home through a lock-free stack (`returns`), never by an atomic count on the hot path.
//! Returning a parcel wakes nobody: a core that waits for memory must poll while it waits.
//! `unsafe` stands in `region` (mapping memory), `buffer` (views of it) and `shared_pages` only.
//! Tests: beside each module and in `tests/` (properties of the page map, parcels between threads); those that map no
//! memory also run under miri.
#![deny(unsafe_code)]
#![deny(unsafe_op_in_unsafe_fn)]

mod arena;
mod buffer;
mod pages;
mod region;
mod returns;
mod shared_pages;

pub use arena::Arena;
pub use buffer::{Buffer, BufferRef, Parcel};
pub use region::{Region, RegionAddress};
pub use shared_pages::SharedPages;
