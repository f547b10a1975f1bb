//! The quorum itself: events in, what is to be done out.

use crate::appending::Appender;
use crate::calls::Calls;
use crate::config::Config;
use crate::disk::{DiskJob, DiskLane, DiskRead, Step, Ticket};
use crate::feed::Feed;
use crate::ids::{OffsetAndEpoch, ReplicaKey, SnapshotId, VoterSet};
use crate::jobs::Jobs;
use crate::log::Log;
use crate::membership::Membership;
use crate::message::{CallId, Destination, Reply, Request, RequestId};
use crate::peers::Peers;
use crate::records::CommittedBatch;
use crate::snapshotting::Snapshotting;
use crate::state::{Role, StateName};
use crate::stored::ElectionState;
use base::{LeaderEpoch, Monotonic, NodeId, Now, Offset, Random};
use bytes::Bytes;

/// What happens to a quorum, beside time.
#[derive(Clone, Debug)]
pub enum Event {
    /// All steps of a job are done, or one failed. The jobs of a lane are done in the order in which they were given out.
    DiskDone {
        ticket: Ticket,
        result: Result<(), DiskFailed>,
    },
    /// What a read found: fewer bytes than asked for where the file ends.
    ReadDone {
        ticket: Ticket,
        result: Result<Bytes, DiskFailed>,
    },
    /// A replica asks; `Outputs::replies` answers under the same id, perhaps later.
    Call {
        id: CallId,
        request: Request,
    },
    Reply {
        id: RequestId,
        reply: Reply,
    },
    /// The connection was lost, or nothing sensible came back.
    NoReply {
        id: RequestId,
    },
    /// The node is going down: a leader hands over. `is_stopped` tells when nothing is left to wait for.
    Stop,
}

/// The text of an I/O error, for the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DiskFailed(pub String);

/// Why this node must stop: going on could break what it has promised.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("a write or sync of the metadata log failed: {0}")]
    Disk(DiskFailed),
    #[error("the metadata log cannot be read back: {0}")]
    Unreadable(String),
    #[error("the leader asks to cut the log at {asked}, below the high watermark {high_watermark}")]
    CutBelowWatermark { asked: Offset, high_watermark: Offset },
    #[error("the leader sent what a log cannot hold: {0}")]
    BadReplication(String),
}

/// What the states above learn, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// All earlier state is replaced by the snapshot's batches that follow, up to its end.
    SnapshotBegin {
        id: SnapshotId,
    },
    SnapshotBatch(CommittedBatch),
    SnapshotEnd {
        id: SnapshotId,
    },
    /// The next committed batch; offsets have no gaps.
    Committed(CommittedBatch),
    Leadership(Leadership),
    /// A snapshot begun by `begin_snapshot` is durable under its name.
    SnapshotWritten {
        id: SnapshotId,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leadership {
    /// This replica leads, and everything before `start` has been delivered.
    Leader { epoch: LeaderEpoch, start: Offset },
    /// It leads no more: what it appended and was not delivered may be gone.
    Resigned { epoch: LeaderEpoch },
    /// Somebody else leads, or nobody known.
    Follower { epoch: LeaderEpoch, leader: Option<NodeId> },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentRequest {
    pub id: RequestId,
    pub to: Destination,
    pub request: Request,
}

/// What is to be done.
#[derive(Clone, Debug, Default)]
pub struct Outputs {
    pub jobs: Vec<DiskJob>,
    pub reads: Vec<DiskRead>,
    pub requests: Vec<SentRequest>,
    pub replies: Vec<(CallId, Reply)>,
    pub deliveries: Vec<Delivery>,
    /// Set once; nothing else comes out after it.
    pub fault: Option<Fault>,
}

/// One replica of the metadata partition.
#[derive(Debug)]
pub struct Quorum {
    pub(crate) config: Config,
    pub(crate) log: Log,
    pub(crate) membership: Membership,
    pub(crate) election: ElectionState,
    pub(crate) role: Role,
    pub(crate) jobs: Jobs,
    pub(crate) appender: Appender,
    pub(crate) peers: Peers,
    pub(crate) calls: Calls,
    pub(crate) feed: Feed,
    pub(crate) snapshotting: Snapshotting,
    /// The end of what is known to be on this replica's disk.
    pub(crate) durable: Offset,
    /// The end of what a majority has; unknown until this epoch's leader knows it.
    pub(crate) high_watermark: Option<Offset>,
    pub(crate) random: Random,
    pub(crate) out: Outputs,
    pub(crate) reads_issued: u64,
    pub(crate) stopping: bool,
    /// How often in a row an election was lost, for the backoff.
    pub(crate) elections_lost: u32,
    pub(crate) bootstrap: Vec<Bytes>,
    pub(crate) failed: bool,
}

impl Quorum {
    /// Takes an event in, and gives out what is to be done.
    pub fn handle(&mut self, event: Event, now: Now) -> Outputs {
        if !self.failed {
            match event {
                Event::DiskDone { ticket, result } => self.on_disk_done(ticket, result, now),
                Event::ReadDone { ticket, result } => self.on_read_done(ticket, result),
                Event::Call { id, request } => self.on_call(id, request, now),
                Event::Reply { id, reply } => self.on_reply(id, reply, now),
                Event::NoReply { id } => self.on_no_reply(id, now),
                Event::Stop => self.on_stop(),
            }
        }
        self.poll(now)
    }

    /// Does what time and earlier calls made due. Called after `append` and at `next_deadline`; `handle` ends with it.
    pub fn poll(&mut self, now: Now) -> Outputs {
        if !self.failed {
            self.expire_requests(now);
            self.poll_role(now);
            self.flush_appends();
            self.poll_calls(now);
            self.poll_snapshots(now);
            self.pump_feed();
        }
        if self.failed {
            let fault = self.out.fault.take();
            self.out = Outputs { fault, ..Outputs::default() };
        }
        std::mem::take(&mut self.out)
    }

    /// When `poll` is next needed if nothing happens before.
    pub fn next_deadline(&self) -> Option<Monotonic> {
        let deadlines = [self.role_deadline(), self.peers.next_expiry(), self.calls_deadline(), self.clean_deadline()];
        if self.failed { None } else { deadlines.into_iter().flatten().min() }
    }

    pub fn state(&self) -> StateName {
        match self.role.name() {
            StateName::Unattached | StateName::Follower if !self.is_voter() => StateName::Observer,
            name => name,
        }
    }

    pub fn epoch(&self) -> LeaderEpoch {
        self.election.epoch
    }

    /// The leader of the epoch, where known.
    pub fn leader(&self) -> Option<NodeId> {
        self.election.leader
    }

    pub fn high_watermark(&self) -> Option<Offset> {
        self.high_watermark
    }

    pub fn log_start(&self) -> Offset {
        self.log.start()
    }

    pub fn log_end(&self) -> OffsetAndEpoch {
        self.log.end()
    }

    pub fn latest_snapshot(&self) -> Option<SnapshotId> {
        self.log.latest_snapshot()
    }

    pub fn voters(&self) -> &VoterSet {
        self.membership.voters()
    }

    pub fn kraft_version(&self) -> i16 {
        self.membership.kraft_version()
    }

    /// The records that formatting left for the first controller: it appends them when the log holds no other.
    pub fn bootstrap_records(&self) -> &[Bytes] {
        &self.bootstrap
    }

    pub fn local(&self) -> ReplicaKey {
        self.config.local
    }

    pub(crate) fn is_voter(&self) -> bool {
        self.config.can_vote && self.membership.voters().contains(&self.config.local)
    }

    /// Whether nothing of a stop is left to wait for: everything appended is on disk, and successors were told or the
    /// time for telling them is over.
    pub fn is_stopped(&self, now: Now) -> bool {
        let told = match &self.role {
            Role::Resigned(resigned) => resigned.untold.is_empty() || now.monotonic >= resigned.deadline,
            Role::Leader(_) => false,
            _ => true,
        };
        self.failed || (self.stopping && told && self.jobs.is_idle())
    }

    pub(crate) fn fail(&mut self, fault: Fault) {
        if !self.failed {
            self.failed = true;
            self.out.fault = Some(fault);
        }
    }

    /// Gives a job to the disk.
    pub(crate) fn run(&mut self, lane: DiskLane, steps: Vec<Step>) -> Ticket {
        let ticket = self.jobs.next(lane);
        self.out.jobs.push(DiskJob { ticket, lane, steps });
        ticket
    }

    pub(crate) fn deliver(&mut self, delivery: Delivery) {
        self.out.deliveries.push(delivery);
    }
}
