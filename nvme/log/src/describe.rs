//! A partition in words, for tools and for the reports of failed tests.

use crate::api::LogSlot;
use crate::store::Store;
use std::fmt::Write;

impl Store {
    /// Where the partition's bytes are: extents, their index, what is in memory.
    pub fn describe(&self, slot: LogSlot) -> String {
        let Some(partition) = self.partition(slot) else { return "not open".to_owned() };
        let mut text = format!(
            "{} version {} start {} end {} at {} durable {}",
            partition.id,
            partition.version.0,
            partition.log_start,
            partition.end,
            partition.end_position,
            partition.durable
        );
        for extent in &partition.extents {
            let _ = write!(
                text,
                "\n extent {} order {} tenancy {:x} at {} base {} len {} sealed {} submitted {} written {} readable {} index {:?} {:?} open {:?}",
                extent.address.start.0,
                extent.address.order.number(),
                extent.tenancy.0,
                extent.position,
                extent.base_offset,
                extent.len,
                extent.sealed,
                extent.submitted,
                extent.written(),
                extent.readable(),
                extent.index,
                extent.index_write,
                extent.open
            );
            if let Some(entries) = extent.all_entries() {
                for entry in (0..entries.len()).filter_map(|index| entries.get(index)) {
                    let _ = write!(text, "\n  +{} at {} len {}", entry.offset, entry.position, entry.length);
                }
            }
        }
        for segment in &partition.segments {
            let _ = write!(text, "\n segment {} at {}", segment.base, segment.position.0);
        }
        for piece in &partition.tail.pieces {
            let (rest, ready) = (piece.is_rest, piece.ready().is_some());
            let _ = write!(
                text,
                "\n tail {}..{} at {} len {} rest {rest} ready {ready}",
                piece.base, piece.last, piece.position, piece.len
            );
        }
        text
    }
}
