//! Jobs on their way to the disk: what each means once it is done, and the messages that wait for one.

use crate::disk::{DiskLane, Ticket, Whole, replace};
use crate::ids::SnapshotId;
use crate::message::{CallId, Reply};
use crate::quorum::{DiskFailed, Fault, Quorum, SentRequest};
use crate::stored::ElectionState;
use base::{Now, Offset};
use std::collections::{BTreeMap, VecDeque};

/// What a job's completion means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The log is durable up to here, unless it was cut since.
    Log {
        end: Offset,
    },
    /// The election state is stored.
    Election,
    /// A snapshot of this node's own state is in place.
    Snapshot(SnapshotId),
    /// A snapshot from the leader is in place, and the log is to begin after it.
    FetchedSnapshot(SnapshotId),
    Housekeeping,
}

/// A message that must not leave before the vote or epoch behind it is stored.
#[derive(Clone, Debug)]
enum Held {
    Request(SentRequest),
    Reply(CallId, Reply),
}

#[derive(Debug, Default)]
pub(crate) struct Jobs {
    issued: u64,
    log: VecDeque<Ticket>,
    snapshots: VecDeque<Ticket>,
    purposes: BTreeMap<Ticket, Purpose>,
    election: Option<Ticket>,
    held: VecDeque<(Ticket, Held)>,
}

impl Jobs {
    pub(crate) fn next(&mut self, lane: DiskLane) -> Ticket {
        self.issued += 1;
        let ticket = Ticket(self.issued);
        match lane {
            DiskLane::Log => self.log.push_back(ticket),
            DiskLane::Snapshots => self.snapshots.push_back(ticket),
        }
        ticket
    }

    fn done(&mut self, ticket: Ticket) {
        let lane = if self.log.front() == Some(&ticket) { &mut self.log } else { &mut self.snapshots };
        assert_eq!(lane.pop_front(), Some(ticket), "the jobs of a lane are done in their order");
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.log.is_empty() && self.snapshots.is_empty()
    }

    pub(crate) fn expect(&mut self, ticket: Ticket, purpose: Purpose) {
        self.purposes.insert(ticket, purpose);
    }

    /// The log was cut: a job that is on its way makes nothing durable beyond.
    pub(crate) fn cut_log(&mut self, cut: Offset) {
        for purpose in self.purposes.values_mut() {
            if let Purpose::Log { end } = purpose {
                *end = (*end).min(cut);
            }
        }
    }

    /// Whether what was last decided about epoch, leader and vote is on disk.
    pub(crate) fn election_is_stored(&self) -> bool {
        self.election.is_none()
    }
}

impl Quorum {
    pub(crate) fn on_disk_done(&mut self, ticket: Ticket, result: Result<(), DiskFailed>, now: Now) {
        self.jobs.done(ticket);
        if let Err(error) = result {
            self.fail(Fault::Disk(error));
            return;
        }
        match self.jobs.purposes.remove(&ticket) {
            Some(Purpose::Log { end }) => self.on_log_durable(end),
            Some(Purpose::Election) => self.on_election_stored(ticket, now),
            Some(Purpose::Snapshot(id)) => self.on_snapshot_written(id, now),
            Some(Purpose::FetchedSnapshot(id)) => self.on_snapshot_fetched(id),
            Some(Purpose::Housekeeping) | None => (),
        }
    }

    /// Stores epoch, leader and vote; messages wait for it from here on.
    pub(crate) fn store_election(&mut self, election: ElectionState) {
        if self.election == election {
            return;
        }
        self.election = election;
        let mut steps = Vec::new();
        let content = election.encode(self.membership.kraft_version(), self.membership.voters());
        replace(Whole::QuorumState, content, &mut steps);
        let ticket = self.run(DiskLane::Log, steps);
        self.jobs.expect(ticket, Purpose::Election);
        self.jobs.election = Some(ticket);
    }

    fn on_election_stored(&mut self, ticket: Ticket, now: Now) {
        if self.jobs.election == Some(ticket) {
            self.jobs.election = None;
        }
        while self.jobs.held.front().is_some_and(|(after, _)| *after <= ticket) {
            match self.jobs.held.pop_front().expect("just seen").1 {
                Held::Request(request) => self.out.requests.push(request),
                Held::Reply(id, reply) => self.out.replies.push((id, reply)),
            }
        }
        self.count_votes(now);
    }

    pub(crate) fn release_request(&mut self, request: SentRequest) {
        match self.jobs.election {
            Some(ticket) => self.jobs.held.push_back((ticket, Held::Request(request))),
            None => self.out.requests.push(request),
        }
    }

    pub(crate) fn release_reply(&mut self, id: CallId, reply: Reply) {
        match self.jobs.election {
            Some(ticket) => self.jobs.held.push_back((ticket, Held::Reply(id, reply))),
            None => self.out.replies.push((id, reply)),
        }
    }
}
