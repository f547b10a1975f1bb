//! How far targets get: a target whose inputs are all refused at the door shows nothing, and would never be missed.

use std::cell::Cell;

thread_local! {
    static REACHED: Cell<u64> = const { Cell::new(0) };
}

/// Called by a target where it has read what it is about.
pub fn reached() {
    REACHED.with(|count| count.set(count.get() + 1));
}

/// How often targets got there on this thread.
pub fn count() -> u64 {
    REACHED.with(Cell::get)
}
