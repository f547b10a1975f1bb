//! Feeding the states above: the latest snapshot first, then every committed batch in order, from memory where it is and
//! from the files where it is not; and who leads, at the point of that order where it is true.

use crate::disk::{DiskRead, FileName, Ticket};
use crate::ids::SnapshotId;
use crate::log::Located;
use crate::quorum::{Delivery, DiskFailed, Fault, Leadership, Quorum};
use crate::records;
use crate::scan::{PIECE, Scan};
use crate::state::Role;
use base::{LeaderEpoch, NodeId, Offset};
use bytes::Bytes;

/// How far the states above are.
#[derive(Debug, Default)]
pub(crate) enum FeedAt {
    /// Nothing was delivered yet, or what was is beyond the log's start.
    #[default]
    Unstarted,
    Snapshot {
        id: SnapshotId,
        size: u64,
        scan: Scan,
    },
    /// The next offset to deliver.
    Log(Offset),
}

#[derive(Debug, Default)]
pub(crate) struct Feed {
    pub(crate) at: FeedAt,
    reading: Option<Reading>,
    /// What the states above believe.
    told: Option<Told>,
}

#[derive(Debug)]
struct Reading {
    ticket: Ticket,
    scan: Scan,
    /// The log's generation when the read began; absent for a snapshot, which never changes.
    generation: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Leads(LeaderEpoch),
    Follows(LeaderEpoch, Option<NodeId>),
}

impl Feed {
    /// The offset up to which the states above have everything.
    pub(crate) fn delivered(&self) -> Option<Offset> {
        match &self.at {
            FeedAt::Log(next) => Some(*next),
            FeedAt::Unstarted | FeedAt::Snapshot { .. } => None,
        }
    }
}

impl Quorum {
    /// Delivers what is committed and at hand, and asks for the next piece that is not.
    pub(crate) fn pump_feed(&mut self) {
        while !self.failed && self.feed.reading.is_none() {
            let Some(watermark) = self.high_watermark else { break };
            let more = match &self.feed.at {
                FeedAt::Unstarted => self.start_feed(),
                FeedAt::Snapshot { scan, .. } => {
                    let scan = scan.clone();
                    self.read_feed(scan, None);
                    true
                }
                FeedAt::Log(next) if *next < self.log.start() && *next < watermark => {
                    self.feed.at = FeedAt::Unstarted;
                    true
                }
                FeedAt::Log(next) => {
                    let next = *next;
                    next < watermark && self.feed_log(next, watermark)
                }
            };
            if !more {
                break;
            }
        }
        self.tell_leadership();
        self.shed_tail();
    }

    fn start_feed(&mut self) -> bool {
        // What formatting left is not state: the first controller appends it to the log.
        match self.log.latest_snapshot().filter(|id| *id != SnapshotId::BOOTSTRAP) {
            Some(id) => {
                let size = self.log.snapshot(id).expect("the latest is known").size;
                let scan = Scan::new(FileName::Snapshot(id), 0, PIECE, Offset::ZERO);
                self.feed.at = FeedAt::Snapshot { id, size, scan };
                self.deliver(Delivery::SnapshotBegin { id });
            }
            None => self.feed.at = FeedAt::Log(self.log.start()),
        }
        true
    }

    fn feed_log(&mut self, next: Offset, watermark: Offset) -> bool {
        match self.log.locate(next, PIECE) {
            Located::Memory(batches) => self.feed_batches(batches, watermark),
            Located::File { file, position, length } => {
                let generation = self.log.generation();
                self.read_feed(Scan::new(file, position, length, next), Some(generation));
                true
            }
            Located::Nothing => panic!("committed offset {next} is not in the log"),
        }
    }

    /// Delivers whole batches below the watermark; true if there was one.
    fn feed_batches(&mut self, batches: Vec<Bytes>, watermark: Offset) -> bool {
        let mut fed = false;
        for bytes in batches {
            match records::decode(&bytes) {
                Ok(batch) if batch.last_offset >= watermark => break,
                Ok(batch) => {
                    self.feed.at = FeedAt::Log(batch.last_offset.plus(1));
                    self.snapshotting.count_committed(&batch);
                    self.deliver(Delivery::Committed(batch));
                    fed = true;
                }
                Err(error) => {
                    self.fail(Fault::Unreadable(error.to_string()));
                    return false;
                }
            }
        }
        fed
    }

    fn read_feed(&mut self, scan: Scan, generation: Option<u64>) {
        let ticket = self.next_read(scan.file, scan.position, scan.length);
        self.feed.reading = Some(Reading { ticket, scan, generation });
    }

    pub(crate) fn next_read(&mut self, file: FileName, position: u64, length: u32) -> Ticket {
        self.reads_issued += 1;
        let ticket = Ticket(self.reads_issued);
        self.out.reads.push(DiskRead { ticket, file, position, length });
        ticket
    }

    pub(crate) fn on_read_done(&mut self, ticket: Ticket, result: Result<Bytes, DiskFailed>) {
        match self.feed.reading.take() {
            Some(reading) if reading.ticket == ticket => self.on_feed_read(reading, result),
            other => {
                self.feed.reading = other;
                self.on_call_read(ticket, result);
            }
        }
    }

    fn on_feed_read(&mut self, mut reading: Reading, result: Result<Bytes, DiskFailed>) {
        if reading.generation.is_some_and(|generation| generation != self.log.generation()) {
            return;
        }
        let absorbed = match result {
            Ok(bytes) => reading.scan.absorb(&bytes),
            Err(error) => Err(error.to_string()),
        };
        let batches = match absorbed {
            Ok(batches) => batches,
            // The snapshot gave way to a later one while it was read: begin again with that.
            Err(_) if self.feeds_removed_snapshot() => {
                self.feed.at = FeedAt::Unstarted;
                return;
            }
            Err(error) => return self.fail(Fault::Unreadable(error)),
        };
        match &self.feed.at {
            FeedAt::Log(_) if batches.is_empty() => self.read_feed(reading.scan, reading.generation),
            FeedAt::Log(_) => {
                let watermark = self.high_watermark.expect("a watermark never goes away");
                self.feed_batches(batches, watermark);
            }
            FeedAt::Snapshot { id, size, .. } => self.feed_snapshot(*id, *size, reading.scan, batches),
            FeedAt::Unstarted => (),
        }
    }

    fn feeds_removed_snapshot(&self) -> bool {
        matches!(&self.feed.at, FeedAt::Snapshot { id, .. } if self.log.snapshot(*id).is_none())
    }

    fn feed_snapshot(&mut self, id: SnapshotId, size: u64, scan: Scan, batches: Vec<Bytes>) {
        for bytes in batches {
            match records::decode(&bytes) {
                Ok(batch) if batch.records.is_empty() => (),
                Ok(batch) => self.deliver(Delivery::SnapshotBatch(batch)),
                Err(error) => return self.fail(Fault::Unreadable(error.to_string())),
            }
        }
        if scan.position < size {
            self.feed.at = FeedAt::Snapshot { id, size, scan };
        } else {
            self.deliver(Delivery::SnapshotEnd { id });
            self.feed.at = FeedAt::Log(id.offset);
        }
    }

    /// Tells who leads, where that changed. This replica's own leadership is told once everything before it has been
    /// delivered, so that a controller begins on complete state.
    fn tell_leadership(&mut self) {
        let epoch = self.election.epoch;
        let now = match &self.role {
            Role::Leader(leader) if self.feed.delivered().is_none_or(|next| next <= leader.epoch_start) => return,
            Role::Leader(_) => Told::Leads(epoch),
            _ => Told::Follows(epoch, self.election.leader.filter(|id| *id != self.config.local.id)),
        };
        if self.feed.told == Some(now) {
            return;
        }
        if let Some(Told::Leads(epoch)) = self.feed.told {
            self.deliver(Delivery::Leadership(Leadership::Resigned { epoch }));
        }
        self.feed.told = Some(now);
        self.deliver(Delivery::Leadership(match (now, &self.role) {
            (Told::Leads(epoch), Role::Leader(leader)) => Leadership::Leader { epoch, start: leader.epoch_start },
            (Told::Follows(epoch, leader), _) => Leadership::Follower { epoch, leader },
            (Told::Leads(_), _) => unreachable!("only a leader is told to lead"),
        }));
    }

    /// A resignation is told at once, before anything else happens in a later epoch.
    pub(crate) fn tell_resigned(&mut self) {
        if let Some(Told::Leads(epoch)) = self.feed.told {
            self.feed.told = None;
            self.deliver(Delivery::Leadership(Leadership::Resigned { epoch }));
        }
    }

    /// What is delivered and durable need not stay in memory, beyond a budget for replicas that are nearly caught up.
    fn shed_tail(&mut self) {
        if let (Some(delivered), Some(watermark)) = (self.feed.delivered(), self.high_watermark) {
            self.log.shed_tail(delivered.min(watermark).min(self.durable));
        }
    }
}
