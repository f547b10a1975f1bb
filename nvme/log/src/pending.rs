//! Records of a partition that wait behind a data-first write of it, in their order.

use crate::lane::Effect;
use arena::BufferRef;
use std::collections::VecDeque;

pub struct PendingRecord {
    /// As it goes into the commit.
    pub record: BufferRef,
    pub effects: Vec<Effect>,
    /// Parts of its data-first write that are not complete; none for a record that merely stands behind one.
    pub waits_for: u32,
    /// It names data that only a flush makes durable.
    pub needs_flush: bool,
    pub number: u64,
}

#[derive(Default)]
pub struct PendingRecords {
    pub queue: VecDeque<PendingRecord>,
}

impl PendingRecords {
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// A part of the data-first write of this record is complete.
    pub fn on_part_complete(&mut self, number: u64) {
        if let Some(record) = self.queue.iter_mut().find(|record| record.number == number) {
            record.waits_for -= 1;
        }
    }

    pub fn ready_len(&self) -> Option<usize> {
        self.queue.front().filter(|record| record.waits_for == 0).map(|record| record.record.len())
    }
}
