//! Bytes that were located before, found again by their position: a reader that could not take them has let them go.

use crate::api::*;
use crate::locate::{index_read, stretch_of};
use crate::store::Store;
use base::Now;

impl Store {
    /// What holds the bytes from `position` on, up to `bytes` of them: fewer where something has to be read first to know
    /// the rest. Retention or a cut may have taken them meanwhile; then they are gone, and nothing else is given.
    pub fn relocate(&mut self, now: Now, slot: LogSlot, position: LogPosition, bytes: usize) -> Relocated {
        let Some(partition) = self.partition(slot) else { return Relocated::Gone };
        let (mut at, end) = (position.0, position.0 + bytes as u64);
        if end > partition.end_position {
            return Relocated::Gone;
        }
        let mut found = Vec::new();
        while at < end {
            let in_memory = partition.tail.at_position(at).map(|index| &partition.tail.pieces[index]);
            if let Some((piece, bytes)) = in_memory.and_then(|piece| piece.ready().map(|bytes| (piece, bytes))) {
                let (from, to) = ((at - piece.position) as usize, (end.min(piece.end()) - piece.position) as usize);
                found.push((Part::Memory(bytes.clone()), from..to));
                at = piece.position + to as u64;
                continue;
            }
            let Some(extent) = partition.extent_at(at) else { return Relocated::Gone };
            let Some(entries) = extent.all_entries() else {
                if found.is_empty() {
                    return Relocated::NeedsRead(index_read(slot, extent));
                }
                break;
            };
            let within = at - extent.position;
            if extent.is_given_up(within) {
                return Relocated::Gone;
            }
            let entry = entries.partition_point(|entry| u64::from(entry.position) <= within).checked_sub(1);
            let entry = entry.and_then(|index| entries.get(index));
            let Some(entry) = entry.filter(|entry| within < entry.end() && entry.end() <= extent.written()) else {
                return Relocated::Gone;
            };
            let from = (within - u64::from(entry.position)) as usize;
            let to = (entry.end().min(end - extent.position) - u64::from(entry.position)) as usize;
            found.push((Part::Device(stretch_of(slot, extent, entry)), from..to));
            at += (to - from) as u64;
        }
        let parts: Vec<Part> = found.iter().map(|(part, _)| part.clone()).collect();
        self.note_descriptions(now, slot, &parts);
        Relocated::Found(found)
    }
}
