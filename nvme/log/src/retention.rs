//! Retention by size and time: whole segments below the high watermark, oldest first.

use crate::lane::Effect;
use crate::partition::Partition;
use crate::shard::Shard;
use crate::store::{Stopping, Store};
use base::{Now, Offset, WallMillis};
use nvme_format::record::Change;
use std::time::Duration;

/// Partitions that are looked at in one turn: one takes up to 200 ns, and no item may hold a loop above 200 us.
const RETAINED_A_TURN: usize = 512;
/// Where an append finds no room, retention looks this much later, however long its interval is: what it may take is all
/// that keeps producers going.
const LOOK_WHEN_FULL: Duration = Duration::from_secs(1);

impl Store {
    pub(crate) fn poll_retention(&mut self, now: Now) {
        if now.monotonic < self.next_retention {
            return;
        }
        if self.retention_round.is_empty() {
            self.retention_round = self.slots().map(|(slot, _)| slot).collect();
            // The roots of a shard whose partitions are gone still name storage, and that holds its slabs back, until two
            // more have been written: where all is refused, nothing else brings those.
            self.checkpoint_wanted |= self.stopping == Stopping::No && self.shards.iter().any(Shard::keeps_for_nobody);
        }
        self.retain_some(now, RETAINED_A_TURN);
        // A round that is not over goes on in the next turn.
        let pause = if self.retention_round.is_empty() { self.options.retention_interval } else { Duration::ZERO };
        self.next_retention = now.monotonic + pause;
    }

    /// There is no room left.
    pub(crate) fn hasten_retention(&mut self, now: Now) {
        self.next_retention = self.next_retention.min(now.monotonic + LOOK_WHEN_FULL);
    }

    /// Looks at every partition now; `poll` does it every `retention_interval`, some in every turn.
    pub fn retain_all(&mut self, now: Now) {
        self.retention_round = self.slots().map(|(slot, _)| slot).collect();
        self.retain_some(now, usize::MAX);
    }

    fn retain_some(&mut self, now: Now, count: usize) {
        let wall = self.deletion_clock.look(now);
        for _ in 0..count {
            let Some(slot) = self.retention_round.pop() else { return };
            let Some(partition) = self.partition(slot) else { continue };
            let to = partition.retained_from(wall).min(partition.high_watermark).min(partition.durable);
            if to > partition.log_start && partition.truncation.is_none() {
                // Without memory or room it comes again with the next round.
                let _ = self.change(slot, Change::LogStartMoved { to }, vec![Effect::LogStart { slot, to }]);
            }
        }
    }
}

impl Partition {
    /// Where the log would start if retention had its way.
    fn retained_from(&self, now: WallMillis) -> Offset {
        if !self.config.deletes || self.suspect.is_some() {
            return self.log_start;
        }
        let mut gone = 0;
        if let Some(age) = self.config.retention_age {
            let age = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
            while let Some(segment) = self.segments.get(gone) {
                let newest =
                    if segment.largest_timestamp.0 >= 0 { segment.largest_timestamp } else { segment.modified };
                if self.segment_bytes(gone) == 0 || now.0.saturating_sub(newest.0) <= age {
                    break;
                }
                gone += 1;
            }
        }
        if let Some(limit) = self.config.retention_bytes {
            // The active segment is not deleted for its size.
            let mut size: u64 = (gone..self.segments.len()).map(|index| self.segment_bytes(index)).sum();
            while gone + 1 < self.segments.len() && size >= limit.saturating_add(self.segment_bytes(gone)) {
                size -= self.segment_bytes(gone);
                gone += 1;
            }
        }
        // Only segments wholly below the high watermark.
        loop {
            let next = self.segments.get(gone).map_or(self.end, |segment| segment.base);
            if gone == 0 || next <= self.high_watermark {
                return if gone == 0 { self.log_start } else { next };
            }
            gone -= 1;
        }
    }
}
