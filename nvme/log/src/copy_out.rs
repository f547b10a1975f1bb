//! Copy-out: inline bytes go from memory to their extent in whole blocks, and a sealed extent gets its index blocks.

use crate::api::LogSlot;
use crate::io::{Purpose, split_write};
use crate::partition::extent::{Extent, IndexWrite};
use crate::partition::tail::Tail;
use crate::store::Store;
use base::{BLOCK_SIZE, Block, Now, Tenancy};
use nvme_format::blob::IndexPlace;
use nvme_format::index::{encode_blocks, index_blocks};
use nvme_plan::{Class, Promise};

const BLOCK: u64 = BLOCK_SIZE as u64;
const IN_FLIGHT_MAX: usize = 16;
/// Bytes of one copy-out at most.
const COPY_MAX: u64 = 512 * 1024;

/// Up to where the extent's next copy-out goes; none where its bytes are staged still, or are less than a block.
fn copied_until(extent: &Extent, tail: &Tail) -> Option<u64> {
    let from = extent.submitted;
    let ready = tail.ready_until(extent.position + from).saturating_sub(extent.position).min(extent.len);
    let mut to = ready / BLOCK * BLOCK;
    if extent.sealed && ready == extent.len {
        to = extent.writable_until();
    }
    to = to.min(from + COPY_MAX);
    if let Some(direct) = extent.next_direct() {
        to = to.min(direct);
    }
    if to > from {
        return Some(to);
    }
    // A copy-out that waits for bytes that nobody holds would wait for ever, and the journal with it.
    let position = extent.position + from;
    assert!(
        from >= extent.len || tail.at_position(position).is_some(),
        "bytes from position {position} on are nowhere"
    );
    None
}

impl Store {
    pub(crate) fn queue_copy_out(&mut self, slot: LogSlot) {
        if let Some(partition) = self.partitions.get_mut(slot.token())
            && !partition.copy_out_queued
        {
            partition.copy_out_queued = true;
            self.copy_out.push_back(slot);
        }
    }

    pub(crate) fn poll_copy_out(&mut self, now: Now) {
        let mut rounds = self.copy_out.len();
        while rounds > 0 && self.copy_outs_in_flight < IN_FLIGHT_MAX {
            rounds -= 1;
            let Some(slot) = self.copy_out.pop_front() else { return };
            let Some(partition) = self.partitions.get_mut(slot.token()) else { continue };
            partition.copy_out_queued = false;
            if self.copy_one(now, slot) {
                self.queue_copy_out(slot);
            }
        }
    }

    /// Submits the partition's next copy-out; says whether more is left to be tried.
    fn copy_one(&mut self, now: Now, slot: LogSlot) -> bool {
        let Some(partition) = self.partition(slot) else { return false };
        let space = &self.shards[self.shard_index(partition.shard)].space;
        for extent in &partition.extents {
            let tenancy = extent.tenancy;
            if !space.is_durable(extent.address) {
                // Its slab is not the shard's before the record of its taking is durable.
                return true;
            }
            if extent.submitted < extent.writable_until() {
                return self.copy_data(now, slot, tenancy);
            }
            if extent.sealed && extent.index_write == IndexWrite::NotYet && !extent.entries.is_empty() {
                return self.write_index(now, slot, tenancy);
            }
        }
        false
    }

    fn copy_data(&mut self, now: Now, slot: LogSlot, tenancy: Tenancy) -> bool {
        let deadline = self.deadline(now);
        let transfer_max = self.geometry.transfer_max;
        let Store { partitions, io, arena, .. } = self;
        let partition = partitions.get_mut(slot.token()).expect("checked by the caller");
        let extent = partition.extents.iter().find(|extent| extent.tenancy == tenancy).expect("it is the partition's");
        let from = extent.submitted;
        let Some(to) = copied_until(extent, &partition.tail) else { return false };
        // No memory: what holds it is on its way out, and this comes again.
        let Some(mut buffer) = arena.try_allocate((to - from) as usize) else {
            self.short_of_memory = true;
            return true;
        };
        let data = (to.min(extent.len) - from) as usize;
        buffer[data..].fill(0);
        let there = partition.tail.copy(extent.position + from, &mut buffer[..data], &[]);
        assert!(there, "the bytes that no block holds are in memory");
        let start = Block(extent.address.start.0 + from / BLOCK);
        let origin = extent.address.start.0;
        let extent = partition.extent_mut(tenancy).expect("it is the partition's");
        for (range, operation) in split_write(start, &buffer.freeze(), transfer_max, Promise::Accepted) {
            let from = (range.start.0 - origin) * BLOCK;
            let to = from + range.bytes();
            extent.submit(from, to);
            let purpose = Purpose::CopyOut { slot, tenancy, from, to, index: None };
            io.emit(purpose, Class::CopyOut, deadline, operation);
            self.copy_outs_in_flight += 1;
        }
        true
    }

    fn write_index(&mut self, now: Now, slot: LogSlot, tenancy: Tenancy) -> bool {
        let deadline = self.deadline(now);
        let transfer_max = self.geometry.transfer_max;
        let Store { partitions, io, arena, .. } = self;
        let partition = partitions.get_mut(slot.token()).expect("checked by the caller");
        let extent = partition.extent_mut(tenancy).expect("it is the partition's");
        let place = extent.index_place().filter(|_| extent.index.is_none());
        let Some(place) = place else {
            extent.index_write = IndexWrite::NoRoom;
            return true;
        };
        let bytes = index_blocks(extent.entries.len()) as usize * BLOCK_SIZE;
        if bytes > transfer_max as usize * BLOCK_SIZE {
            extent.index_write = IndexWrite::NoRoom;
            return true;
        }
        let Some(mut buffer) = arena.try_allocate(bytes) else { return true };
        encode_blocks(extent.address.start, tenancy, &extent.entries, &mut buffer);
        let from = u64::from(place.block) * BLOCK;
        let to = from + bytes as u64;
        let range = extent.address.range(from, to);
        extent.submitted = from;
        extent.submit(from, to);
        extent.index_write = IndexWrite::InFlight;
        let pieces = vec![buffer.freeze()];
        let operation = nvme_plan::Operation::Write { range, pieces, promise: Promise::Accepted };
        let purpose = Purpose::CopyOut { slot, tenancy, from, to, index: Some(place) };
        io.emit(purpose, Class::CopyOut, deadline, operation);
        self.copy_outs_in_flight += 1;
        true
    }

    pub(crate) fn on_copy_out(
        &mut self,
        slot: LogSlot,
        tenancy: Tenancy,
        (from, to): (u64, u64),
        index: Option<IndexPlace>,
    ) {
        self.copy_outs_in_flight -= 1;
        self.room_made = true;
        // An extent that was given up meanwhile waits in quarantine for this, and needs nothing more.
        let Some(partition) = self.partitions.get_mut(slot.token()) else { return };
        let Some(extent) = partition.extent_mut(tenancy) else { return };
        extent.complete(from, to);
        let Some(place) = index else { return };
        if extent.index_write == IndexWrite::Void {
            extent.index_write = IndexWrite::NotYet;
            self.queue_copy_out(slot);
            return;
        }
        extent.index_write = IndexWrite::Done;
        let entries = std::mem::take(&mut extent.entries);
        extent.cached = Some(self.cache.note_index(slot, tenancy, entries));
        extent.index = Some(place);
        self.evict_index();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partition::tail::{TailBytes, TailPiece};
    use arena::BufferRef;
    use base::{Offset, PartitionId};
    use nvme_format::{ExtentAddress, ExtentOrder};

    const PIECE: u32 = 3000;

    fn extent(len: u64, submitted: u64) -> Extent {
        let address = ExtentAddress { start: Block(64), order: ExtentOrder::SMALLEST };
        let mut extent = Extent::new(PartitionId::default(), address, Tenancy(1), 10_000, Offset(0));
        (extent.len, extent.submitted) = (len, submitted);
        extent
    }

    /// Pieces of the extent's bytes, those with these numbers.
    fn tail(numbers: &[u64], staged: bool) -> Tail {
        let mut tail = Tail::default();
        for number in numbers {
            let bytes = match staged {
                true => TailBytes::Staged { at: 0 },
                false => TailBytes::Ready(BufferRef::from_vec(vec![0; PIECE as usize])),
            };
            let (position, offset) = (10_000 + number * u64::from(PIECE), Offset(*number as i64));
            tail.push(TailPiece { position, base: offset, last: offset, is_rest: false, len: PIECE, bytes });
        }
        tail
    }

    #[test]
    fn whole_blocks_go_as_far_as_memory_reaches() {
        assert_eq!(copied_until(&extent(9000, 0), &tail(&[0, 1, 2], false)), Some(2 * BLOCK));
        assert_eq!(copied_until(&extent(3000, 0), &tail(&[0], false)), None, "less than a block");
        assert_eq!(copied_until(&extent(9000, 0), &tail(&[0, 1, 2], true)), None, "staged still");
        assert_eq!(copied_until(&extent(9000, 0), &tail(&[0, 1], false)), Some(BLOCK), "up to the gap");
    }

    #[test]
    #[should_panic(expected = "are nowhere")]
    fn bytes_that_nobody_holds_are_not_skipped() {
        copied_until(&extent(9000, BLOCK), &tail(&[0, 2], false));
    }
}
