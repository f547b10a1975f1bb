//! Appending as the leader: records gather while the disk is busy, one write and one sync at a time, so that a burst of
//! small appends costs few syncs.

use crate::config::{BATCH_BYTES_MAX, BATCHES_WAITING_MAX};
use crate::disk::{DiskLane, Step};
use crate::jobs::Purpose;
use crate::quorum::Quorum;
use crate::records::{self, Control, RECORD_OVERHEAD_MAX};
use crate::state::Role;
use base::{LeaderEpoch, Now, Offset, WallMillis};
use batch::{BatchView, HEADER_SIZE};
use bytes::Bytes;
use std::collections::VecDeque;

/// An append was refused; nothing of it is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    #[error("this replica does not lead in epoch {0}")]
    NotLeader(LeaderEpoch),
    #[error("records of {size} bytes do not fit into one batch of {BATCH_BYTES_MAX}")]
    TooLarge { size: usize },
    #[error("{BATCHES_WAITING_MAX} full batches wait for the disk")]
    Busy,
}

#[derive(Debug)]
enum Waiting {
    Records { records: Vec<Bytes>, size: usize, at: WallMillis },
    Controls { records: Vec<Control>, at: WallMillis },
}

#[derive(Debug, Default)]
pub(crate) struct Appender {
    waiting: VecDeque<Waiting>,
    /// Records that wait, for the offsets of the next ones.
    count: u64,
    /// A write of the log is on its way to the disk.
    pub(crate) in_flight: bool,
}

impl Appender {
    fn push_records(&mut self, records: Vec<Bytes>, size: usize, at: WallMillis) -> Result<(), AppendError> {
        let count = records.len() as u64;
        let is_full = self.waiting.len() >= BATCHES_WAITING_MAX;
        match self.waiting.back_mut() {
            Some(Waiting::Records { records: open, size: held, .. })
                if *held + size <= BATCH_BYTES_MAX - HEADER_SIZE =>
            {
                open.extend(records);
                *held += size;
            }
            _ if is_full => return Err(AppendError::Busy),
            _ => self.waiting.push_back(Waiting::Records { records, size, at }),
        }
        self.count += count;
        Ok(())
    }

    /// The epoch is over: what waits was never in the log.
    pub(crate) fn discard(&mut self) {
        self.waiting.clear();
        self.count = 0;
    }
}

impl Quorum {
    /// Appends encoded metadata records as the leader of `epoch`, all in one batch or none, and gives the offset of the
    /// last. They are committed once they are delivered; a change of leadership before that loses them.
    pub fn append(&mut self, epoch: LeaderEpoch, records: Vec<Bytes>, now: Now) -> Result<Offset, AppendError> {
        assert!(!records.is_empty(), "an append has records");
        let leads = matches!(self.role, Role::Leader(_)) && epoch == self.election.epoch;
        if !leads || self.stopping || self.failed {
            return Err(AppendError::NotLeader(epoch));
        }
        let size = records.iter().map(|r| r.len() + RECORD_OVERHEAD_MAX).sum();
        if size > BATCH_BYTES_MAX - HEADER_SIZE {
            return Err(AppendError::TooLarge { size });
        }
        self.appender.push_records(records, size, now.wall)?;
        Ok(self.log.end().offset.plus(self.appender.count - 1))
    }

    pub(crate) fn append_controls(&mut self, records: Vec<Control>, now: Now) {
        self.appender.count += records.len() as u64;
        self.appender.waiting.push_back(Waiting::Controls { records, at: now.wall });
    }

    /// Writes and syncs everything that waits, unless an earlier write is still on its way.
    pub(crate) fn flush_appends(&mut self) {
        if self.appender.in_flight || self.appender.waiting.is_empty() {
            return;
        }
        let mut steps = Vec::new();
        while let Some(waiting) = self.appender.waiting.pop_front() {
            let (base, epoch) = (self.log.end().offset, self.election.epoch);
            let bytes = match &waiting {
                Waiting::Records { records, at, .. } => records::build(base, epoch, *at, records),
                Waiting::Controls { records, at } => records::build_control(base, epoch, *at, records),
            };
            if let Waiting::Controls { records, .. } = &waiting {
                for (i, control) in records.iter().enumerate() {
                    self.membership.note(base.plus(i as u64), control);
                }
            }
            self.append_batch(bytes, &mut steps);
        }
        self.appender.count = 0;
        self.sync_log(steps);
    }

    /// Adds a batch of this node's own making to the log.
    fn append_batch(&mut self, bytes: Bytes, steps: &mut Vec<Step>) {
        let (view, _) = BatchView::parse(&bytes).expect("a batch just built");
        let facts = records::facts(&view).expect("a batch just built");
        self.log.append(facts, bytes, steps);
    }

    pub(crate) fn sync_log(&mut self, mut steps: Vec<Step>) {
        self.log.sync_active(&mut steps);
        let end = self.log.end().offset;
        let ticket = self.run(DiskLane::Log, steps);
        self.jobs.expect(ticket, Purpose::Log { end });
        self.appender.in_flight = true;
    }

    pub(crate) fn on_log_durable(&mut self, end: Offset) {
        self.appender.in_flight = false;
        self.durable = self.durable.max(end);
        self.advance_leader_watermark();
        self.advance_follower_watermark();
    }
}
