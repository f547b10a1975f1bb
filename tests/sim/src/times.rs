//! Answers by time, held against the records whose place and time are known (design 08, item 11): the first batch in the
//! order of offsets whose largest time reaches the target, and its first record at or after it.

use crate::model::{Floor, Log, Model, Placed, Sent};
use base::PartitionId;

/// What ListOffsets was answered with; offset and time are -1 for "nothing".
#[derive(Clone, Copy, Debug)]
pub struct ToldTime {
    pub offset: i64,
    pub timestamp: i64,
}

/// The times of a batch's records; empty where they are not known.
fn times<'a>(log: &Log, sent: &'a [Sent], placed: &'a Placed) -> &'a [i64] {
    match (log.rules.append_time, &placed.stamped) {
        (true, Some(stamped)) => std::slice::from_ref(stamped),
        (true, None) => &[],
        (false, _) => &sent[placed.batch as usize].times,
    }
}

/// The time of the record at an offset within the batch.
fn time_at(times: &[i64], index: i64) -> Option<i64> {
    if times.len() == 1 { times.first().copied() } else { times.get(index as usize).copied() }
}

impl Model {
    /// `floor` is what was known when it was asked. What retention takes by itself is not known: such logs are left out.
    pub fn told_time(&mut self, partition: PartitionId, floor: Floor, at: i64, told: ToldTime) {
        let log = &self.logs[&partition];
        if log.deleted || log.rules.retention_bytes.is_some() {
            return;
        }
        // Where a record is known to be there still, and to have been there when it was asked.
        let first = log.deletes_asked.max(log.log_start);
        let known = |base: i64, placed: &Placed| base >= first && placed.next <= floor.watermark;
        let largest = |placed: &Placed| times(log, &self.sent, placed).iter().copied().max();
        for (base, placed) in log.placed.range(first..).filter(|(base, placed)| known(**base, placed)) {
            let passed = told.offset == -1 || placed.next <= told.offset;
            let reaches = largest(placed).is_some_and(|largest| largest >= at);
            assert!(!(passed && reaches), "{partition}: {told:?} for {at} passes {placed:?} at {base}");
        }
        let holds = log.placed.range(..=told.offset).next_back().filter(|(_, placed)| placed.next > told.offset);
        if let Some((base, placed)) = holds {
            let times = times(log, &self.sent, placed);
            let index = told.offset - base;
            let time = time_at(times, index).unwrap_or(told.timestamp);
            assert!(time == told.timestamp && time >= at, "{partition}: {told:?} for {at}, and that record has {time}");
            for before in (0..index).filter(|before| base + before >= first) {
                let time = time_at(times, before).unwrap_or(i64::MIN);
                assert!(time < at, "{partition}: {told:?} for {at} passes a record with {time} in its batch");
            }
        }
        self.stats.times_checked += 1;
    }

    /// The answer about the largest time. Where records were deleted, one of them may have it still: nothing is compared.
    pub fn told_largest_time(&mut self, partition: PartitionId, floor: Floor, told: ToldTime) {
        let log = &self.logs[&partition];
        if log.deleted || log.rules.retention_bytes.is_some() || log.deletes_asked > 0 {
            return;
        }
        for (base, placed) in log.placed.iter().filter(|(_, placed)| placed.next <= floor.watermark) {
            let largest = times(log, &self.sent, placed).iter().copied().max().unwrap_or(i64::MIN);
            assert!(
                largest <= told.timestamp,
                "{partition}: {told:?} is the largest, and {placed:?} at {base} is larger"
            );
        }
        let holds = log.placed.range(..=told.offset).next_back().filter(|(_, placed)| placed.next > told.offset);
        if let Some((base, placed)) = holds {
            let time = time_at(times(log, &self.sent, placed), told.offset - base).unwrap_or(told.timestamp);
            assert!(time == told.timestamp, "{partition}: {told:?} is the largest, and that record has {time}");
        }
        self.stats.largest_times_checked += 1;
    }
}
