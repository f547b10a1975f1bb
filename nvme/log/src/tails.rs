//! What of the partitions' newest bytes is in memory: those that no extent holds yet (the copy-out window), and those
//! that a reader at the tip may still want (the tail cache). Each is one queue per core in the order of the appends.

use crate::api::LogSlot;
use crate::partition::Partition;
use crate::partition::extent::Extent;
use crate::partition::tail::TailBytes;
use crate::store::Store;
use arena::Arena;
use base::limits::IDLE_MEMORY_TIME;
use base::{Monotonic, Now};
use std::collections::VecDeque;

/// Pieces looked at in one turn.
const EVICTIONS_A_TURN: usize = 256;
/// Of a full window, so many of the oldest are copied out side by side.
const COPIES_AHEAD: usize = 64;

struct Uncopied {
    slot: LogSlot,
    end: u64,
    len: usize,
}

struct Cached {
    slot: LogSlot,
    position: u64,
    len: usize,
}

#[derive(Default)]
pub struct Tails {
    uncopied: VecDeque<Uncopied>,
    pub uncopied_bytes: usize,
    cached: VecDeque<Cached>,
    pub cached_bytes: usize,
}

impl Tails {
    pub fn note_uncopied(&mut self, slot: LogSlot, end: u64, len: usize) {
        self.uncopied.push_back(Uncopied { slot, end, len });
        self.uncopied_bytes += len;
    }

    pub fn note_cached(&mut self, slot: LogSlot, position: u64, len: usize) {
        self.cached.push_back(Cached { slot, position, len });
        self.cached_bytes += len;
    }
}

/// Whether the device has everything of the log below `position`.
fn is_written(partition: &Partition, position: u64) -> bool {
    match partition.extent_at(position - 1) {
        Some(extent) => extent.position + extent.written() >= position,
        None => true,
    }
}

impl Store {
    /// Lets go of what is copied; the oldest quarter of a full window (or half of it where memory is short) is made to
    /// be.
    pub(crate) fn poll_tails(&mut self, now: Now) {
        let idle = self.note_use(now);
        if idle && self.idle.given_back && !self.room_made {
            return;
        }
        let held = self.memory_held();
        self.let_go(idle);
        if idle {
            self.cache.forget_stretches();
            self.idle.looked = if self.memory_held() < held { 0 } else { self.idle.looked + EVICTIONS_A_TURN };
            // Pieces that wait for their copy-out are looked at again when it is complete.
            self.idle.given_back = self.idle.looked >= self.tails.cached.len();
        }
    }

    /// Whether nobody has written or read records for a while.
    fn note_use(&mut self, now: Now) -> bool {
        if std::mem::take(&mut self.idle.used) {
            self.idle.last_use = now.monotonic;
            (self.idle.given_back, self.idle.looked) = (false, 0);
        }
        now.monotonic.since(self.idle.last_use) >= IDLE_MEMORY_TIME
    }

    /// Bytes of records in memory: on their way to extents, and in both caches.
    pub fn memory_held(&self) -> usize {
        self.tails.uncopied_bytes + self.tails.cached_bytes + self.cache.stretch_bytes()
    }

    /// When the caches of an idle store are given back: it is woken for that once.
    pub(crate) fn idle_deadline(&self) -> Option<Monotonic> {
        (!self.idle.given_back && self.memory_held() > 0).then(|| self.idle.last_use + IDLE_MEMORY_TIME)
    }

    fn let_go(&mut self, idle: bool) {
        let window = if idle { 0 } else { self.options.copy_out_window / 4 * 3 };
        let limit = if self.short_of_memory { window.min(self.tails.uncopied_bytes / 2) } else { window };
        for _ in 0..EVICTIONS_A_TURN {
            let Some(front) = self.tails.uncopied.front() else { break };
            let (slot, end, len) = (front.slot, front.end, front.len);
            let done = self.partition(slot).is_none_or(|p| end > p.end_position || is_written(p, end));
            let pressed = self.tails.uncopied_bytes > limit;
            if !done && !pressed {
                break;
            }
            if !done && self.force_copy_out(slot, end) {
                // On its way, and so are those behind it; the window shrinks when they are there.
                self.copy_out_ahead();
                break;
            }
            self.tails.uncopied.pop_front();
            self.tails.uncopied_bytes -= len;
        }
        self.evict_tails(idle);
    }

    fn copy_out_ahead(&mut self) {
        for index in 1..self.tails.uncopied.len().min(COPIES_AHEAD) {
            let slot = self.tails.uncopied[index].slot;
            if self.partition(slot).is_some_and(|partition| !partition.writes_wanted().is_empty()) {
                self.queue_copy_out(slot);
            }
        }
    }

    /// Starts the copy-out of everything below `end` that is whole blocks. Says whether something has to be waited for;
    /// a partial block stays in memory, in a buffer of its own so that it holds no commit's.
    fn force_copy_out(&mut self, slot: LogSlot, end: u64) -> bool {
        let Store { partitions, arena, .. } = self;
        let Some(partition) = partitions.get_mut(slot.token()) else { return false };
        let Some(extent) = partition.extent_at(end - 1) else { return false };
        let block = base::BLOCK_SIZE as u64;
        let whole = extent.position + (end - extent.position) / block * block;
        if extent.sealed || extent.position + extent.written() < whole {
            self.queue_copy_out(slot);
            return true;
        }
        rehome(partition, whole, arena);
        false
    }

    fn evict_tails(&mut self, idle: bool) {
        let mut budget = if idle { 0 } else { self.options.tail_cache };
        if std::mem::take(&mut self.short_of_memory) {
            budget = budget.min(self.tails.cached_bytes / 2);
            self.cache.forget_stretches();
            self.room_made = true;
        }
        for _ in 0..EVICTIONS_A_TURN {
            if self.tails.cached_bytes <= budget {
                return;
            }
            let Some(front) = self.tails.cached.pop_front() else { return };
            self.tails.cached_bytes -= front.len;
            let Some(partition) = self.partitions.get_mut(front.slot.token()) else { continue };
            if partition.tail.pieces.front().is_none_or(|piece| piece.position > front.position) {
                continue;
            }
            let end = front.position + front.len as u64;
            if !partition.extents.iter().any(|extent| extent.end() >= end && extent.position < end) {
                continue;
            }
            let missing = partition.first_unreadable();
            if missing.is_none_or(|extent| extent.position + extent.readable() >= end) {
                partition.drop_tail_below(end);
                continue;
            }
            // Not readable from the device yet: whole blocks go out, and it is looked at again when others have been.
            // (Closing its stretch early would make the index another one than a replay builds.)
            let wants = missing.is_some_and(|extent| extent.written() < extent.writable_until());
            self.tails.note_cached(front.slot, front.position, front.len);
            if wants {
                self.queue_copy_out(front.slot);
            } else if let Some(partition) = self.partitions.get_mut(front.slot.token()) {
                partition.shorten_front(&self.arena);
            }
            if !idle {
                return;
            }
        }
    }
}

/// Copies the pieces from `from` on into buffers of their own.
fn rehome(partition: &mut Partition, from: u64, arena: &Arena) {
    for piece in partition.tail.pieces.iter_mut().rev() {
        if piece.end() <= from {
            break;
        }
        if let TailBytes::Ready(bytes) = &piece.bytes
            && let Some(copy) = arena.copy(bytes)
        {
            piece.bytes = TailBytes::Ready(copy);
        }
    }
}

impl Partition {
    /// Of the extents that the tail reaches into, the first that cannot be read from the device wholly. Later ones may
    /// be there before it: what a large batch brings is written at once, the end of the extent before it waits for a
    /// copy-out, and has only the tail until then.
    fn first_unreadable(&self) -> Option<&Extent> {
        let from = self.tail.pieces.front()?.position;
        let first = self.extents.partition_point(|extent| extent.end() <= from);
        self.extents.iter().skip(first).find(|extent| extent.readable() < extent.len)
    }

    /// Lets go of pieces that end at or below `end`, all of which can be read from the device.
    pub fn drop_tail_below(&mut self, end: u64) {
        while self.tail.pieces.front().is_some_and(|piece| piece.end() <= end) {
            self.tail.pieces.pop_front();
        }
    }

    /// A large first piece of which only the end is not on the device keeps that end alone.
    fn shorten_front(&mut self, arena: &Arena) {
        let Some(piece) = self.tail.pieces.front() else { return };
        let Some(extent) = self.extent_at(piece.position) else { return };
        let readable = extent.position + extent.readable();
        if readable <= piece.position || readable >= piece.end() {
            return;
        }
        let skip = (readable - piece.position) as usize;
        let Some(rest) = piece.ready().and_then(|bytes| arena.copy(&bytes[skip..])) else { return };
        let piece = self.tail.pieces.front_mut().expect("there is a first one");
        piece.position = readable;
        piece.len = rest.len() as u32;
        piece.is_rest = true;
        piece.bytes = TailBytes::Ready(rest);
    }
}
