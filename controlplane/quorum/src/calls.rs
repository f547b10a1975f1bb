//! Requests of other replicas: votes, epochs that begin and end, fetches of the log and of snapshots. A fetch with nothing
//! to tell waits.

use crate::config::FETCH_BYTES_MAX;
use crate::disk::{FileName, Ticket};
use crate::ids::{ReplicaKey, SnapshotId};
use crate::log::{FetchPosition, Located};
use crate::message::{
    BeginEpochRequest, CallId, EndEpochRequest, FetchReply, FetchRequest, FetchSnapshotReply, FetchSnapshotRequest,
    Fetched, Refusal, Reply, ReplyBody, Request, VoteRequest,
};
use crate::peers::Learned;
use crate::quorum::{DiskFailed, Quorum};
use crate::scan::Scan;
use crate::state::{EPOCH_MAX, Role};
use base::{LeaderEpoch, Monotonic, Now, Offset};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::Duration;

/// A replica that fetches is observed this long after its last fetch (Kafka's observer session timeout).
const OBSERVER_SESSION: Duration = Duration::from_secs(300);

#[derive(Debug, Default)]
pub(crate) struct Calls {
    waiting: Vec<WaitingFetch>,
    reading: BTreeMap<Ticket, CallRead>,
}

#[derive(Debug)]
struct WaitingFetch {
    id: CallId,
    request: FetchRequest,
    deadline: Monotonic,
}

#[derive(Debug)]
enum CallRead {
    Log { id: CallId, scan: Scan, generation: u64, max_bytes: u32 },
    Snapshot { id: CallId, snapshot: SnapshotId, size: u64, position: u64 },
}

impl CallRead {
    fn id(&self) -> CallId {
        match self {
            CallRead::Log { id, .. } | CallRead::Snapshot { id, .. } => *id,
        }
    }

    fn empty_body(&self) -> ReplyBody {
        match self {
            CallRead::Log { .. } => empty_fetch(),
            CallRead::Snapshot { snapshot, .. } => empty_snapshot(*snapshot),
        }
    }
}

fn empty_fetch() -> ReplyBody {
    ReplyBody::Fetch(FetchReply { high_watermark: None, log_start: None, found: Fetched::Batches(Vec::new()) })
}

fn empty_snapshot(id: SnapshotId) -> ReplyBody {
    ReplyBody::FetchSnapshot(FetchSnapshotReply { id, size: 0, position: 0, bytes: Bytes::new() })
}

impl Quorum {
    fn answer(&mut self, id: CallId, refusal: Option<Refusal>, body: ReplyBody) {
        let leader = self.election.leader;
        let leader_endpoints = match leader {
            Some(leader) if leader == self.config.local.id => self.config.endpoints.clone(),
            Some(leader) => self.leader_endpoints(leader).unwrap_or_default(),
            None => Vec::new(),
        };
        let reply = Reply { refusal, epoch: self.election.epoch, leader, leader_endpoints, body };
        self.release_reply(id, reply);
    }

    pub(crate) fn on_call(&mut self, id: CallId, request: Request, now: Now) {
        match request {
            Request::Vote(request) => {
                let decided = self.on_vote_call(&request, now);
                self.answer(id, decided.err(), ReplyBody::Vote { granted: decided.unwrap_or(false) });
            }
            Request::BeginEpoch(request) => {
                let decided = self.on_begin_call(&request, now);
                self.answer(id, decided.err(), ReplyBody::BeginEpoch);
            }
            Request::EndEpoch(request) => {
                let decided = self.on_end_call(&request, now);
                self.answer(id, decided.err(), ReplyBody::EndEpoch);
            }
            Request::Fetch(request) => self.on_fetch_call(id, request, now),
            Request::FetchSnapshot(request) => self.on_fetch_snapshot_call(id, &request, now),
        }
    }

    fn on_vote_call(&mut self, request: &VoteRequest, now: Now) -> Result<bool, Refusal> {
        self.check_call_epoch(request.epoch)?;
        let last = request.last;
        // A candidate stands in an epoch later than its log's; a pre-vote is asked in the epoch it is in.
        let bad_epoch = if request.pre_vote { last.epoch > request.epoch } else { last.epoch >= request.epoch };
        if last.offset < Offset::ZERO || last.epoch.0 < 0 || bad_epoch {
            return Err(Refusal::InvalidRequest);
        }
        if request.epoch > self.election.epoch {
            self.become_unattached(request.epoch, now);
        }
        if request.voter.is_some_and(|voter| !voter.matches(&self.config.local)) {
            return Err(Refusal::InvalidVoterKey);
        }
        Ok(self.decide_vote(request, now))
    }

    fn check_call_epoch(&self, epoch: LeaderEpoch) -> Result<(), Refusal> {
        if self.stopping {
            Err(Refusal::BrokerNotAvailable)
        } else if epoch < self.election.epoch {
            Err(Refusal::FencedLeaderEpoch)
        } else if epoch > EPOCH_MAX {
            Err(Refusal::InvalidRequest)
        } else {
            Ok(())
        }
    }

    fn on_begin_call(&mut self, request: &BeginEpochRequest, now: Now) -> Result<(), Refusal> {
        self.check_call_epoch(request.epoch)?;
        let same = request.epoch == self.election.epoch;
        if request.leader == self.config.local.id || (same && self.election.leader.is_some_and(|l| l != request.leader))
        {
            return Err(Refusal::InvalidRequest);
        }
        self.learn(request.epoch, Some(request.leader), &request.endpoints, now);
        if request.voter.is_some_and(|voter| !voter.matches(&self.config.local)) {
            return Err(Refusal::InvalidVoterKey);
        }
        Ok(())
    }

    fn on_end_call(&mut self, request: &EndEpochRequest, now: Now) -> Result<(), Refusal> {
        self.check_call_epoch(request.epoch)?;
        if request.leader == self.config.local.id {
            return Err(Refusal::InvalidRequest);
        }
        let learned = self.learn(request.epoch, Some(request.leader), &request.endpoints, now);
        debug_assert_ne!(learned, Learned::Stale, "the epoch was checked");
        let backoff = self.successor_backoff(&request.successors);
        if let Role::Follower(follower) = &mut self.role
            && follower.leader == request.leader
        {
            // The best successor stands at once, the others one after the other.
            follower.fetch_deadline = follower.fetch_deadline.min(now.monotonic + backoff);
        }
        Ok(())
    }

    fn successor_backoff(&self, successors: &[ReplicaKey]) -> Duration {
        let max = self.config.timing.election_backoff_max;
        match successors.iter().position(|key| key.matches(&self.config.local)) {
            Some(0) => Duration::ZERO,
            Some(place) => {
                let base = max / (1u32 << (successors.len() - 1).min(31));
                base.saturating_mul(1u32 << (place - 1).min(31)).min(max)
            }
            None => max,
        }
    }

    /// What only the leader of exactly this epoch answers.
    fn check_leader_call(&self, epoch: LeaderEpoch) -> Result<(), Refusal> {
        let leads = matches!(self.role, Role::Leader(_));
        if self.stopping {
            Err(Refusal::BrokerNotAvailable)
        } else if epoch < self.election.epoch {
            Err(Refusal::FencedLeaderEpoch)
        } else if epoch > self.election.epoch {
            Err(Refusal::UnknownLeaderEpoch)
        } else if !leads {
            Err(Refusal::NotLeaderOrFollower)
        } else {
            Ok(())
        }
    }

    fn on_fetch_call(&mut self, id: CallId, request: FetchRequest, now: Now) {
        if let Err(refusal) = self.check_leader_call(request.epoch) {
            return self.answer(id, Some(refusal), empty_fetch());
        }
        if request.offset < Offset::ZERO || request.last_epoch.0 < 0 || request.last_epoch > request.epoch {
            return self.answer(id, Some(Refusal::InvalidRequest), empty_fetch());
        }
        let deadline = now.monotonic + Duration::from_millis(request.wait_ms.into());
        self.serve_fetch(WaitingFetch { id, request, deadline }, now);
    }

    /// Answers a fetch, begins to read for it, or lets it wait.
    fn serve_fetch(&mut self, fetch: WaitingFetch, now: Now) {
        let request = &fetch.request;
        let latest = self.log.latest_snapshot().filter(|id| *id != SnapshotId::BOOTSTRAP);
        let position = match latest {
            // From nothing, a snapshot is the shorter way.
            Some(id) if request.offset == Offset::ZERO => FetchPosition::Snapshot(id),
            _ => self.log.validate(request.offset, request.last_epoch),
        };
        let found = match position {
            FetchPosition::Snapshot(id) => Fetched::Snapshot(id),
            FetchPosition::Diverging(end) => Fetched::Diverging(end),
            FetchPosition::Valid => {
                self.note_fetch(request.replica, request.offset, now);
                let max_bytes = request.max_bytes.clamp(1, FETCH_BYTES_MAX);
                match self.log.locate(request.offset, max_bytes) {
                    Located::Memory(batches) => Fetched::Batches(batches),
                    Located::File { file, position, length } => {
                        let scan = Scan::new(file, position, length, request.offset);
                        let generation = self.log.generation();
                        return self.read_for_call(CallRead::Log { id: fetch.id, scan, generation, max_bytes });
                    }
                    Located::Nothing => {
                        let news = request.high_watermark.is_some_and(|known| self.high_watermark > Some(known));
                        if !news && now.monotonic < fetch.deadline {
                            self.calls.waiting.push(fetch);
                            return;
                        }
                        Fetched::Batches(Vec::new())
                    }
                }
            }
        };
        self.answer_fetch(fetch.id, found);
    }

    fn answer_fetch(&mut self, id: CallId, found: Fetched) {
        let body = FetchReply { high_watermark: self.high_watermark, log_start: Some(self.log.start()), found };
        self.answer(id, None, ReplyBody::Fetch(body));
    }

    /// A fetch at an offset says that everything before it is on the fetcher's disk.
    fn note_fetch(&mut self, replica: Option<ReplicaKey>, offset: Offset, now: Now) {
        let Some(replica) = replica.filter(|key| key.id != self.config.local.id) else { return };
        let end = self.log.end().offset;
        let key = self.membership.voters().get(replica.id).map(|v| v.key).filter(|k| k.matches(&replica));
        let is_voter = key.is_some();
        let Role::Leader(leader) = &mut self.role else { return };
        let progress = leader.progress.entry(key.unwrap_or(replica)).or_default();
        // Caught up now, or as of the last fetch, whose end of the log this fetch has reached (KIP-595).
        if offset >= end {
            progress.last_caught_up = Some(now.wall);
        } else if let (Some(then), Some((_, at))) = (progress.leader_end_at_fetch, progress.last_fetch)
            && offset >= then
        {
            progress.last_caught_up = progress.last_caught_up.max(Some(at));
        }
        progress.end = progress.end.max(Some(offset));
        progress.last_fetch = Some((now.monotonic, now.wall));
        progress.leader_end_at_fetch = Some(end);
        if is_voter {
            leader.fetched_since_check.insert(key.expect("a voter has a key"));
            self.advance_leader_watermark();
        }
    }

    pub(crate) fn poll_calls(&mut self, now: Now) {
        let waiting = std::mem::take(&mut self.calls.waiting);
        for fetch in waiting {
            let news = self.log.end().offset > fetch.request.offset
                || fetch.request.high_watermark.is_some_and(|known| self.high_watermark > Some(known));
            if news || now.monotonic >= fetch.deadline {
                self.serve_fetch(fetch, now);
            } else {
                self.calls.waiting.push(fetch);
            }
        }
        let voters = self.membership.voters();
        if let Role::Leader(leader) = &mut self.role {
            let seen = |at: Monotonic| now.monotonic.since(at) < OBSERVER_SESSION;
            leader.progress.retain(|key, p| voters.contains(key) || p.last_fetch.is_some_and(|(at, _)| seen(at)));
        }
    }

    pub(crate) fn calls_deadline(&self) -> Option<Monotonic> {
        self.calls.waiting.iter().map(|w| w.deadline).min()
    }

    /// This replica leads no more: whoever waits asks the next leader.
    pub(crate) fn refuse_waiting_calls(&mut self) {
        let calls = std::mem::take(&mut self.calls);
        for fetch in calls.waiting {
            self.answer(fetch.id, Some(Refusal::NotLeaderOrFollower), empty_fetch());
        }
        for read in calls.reading.into_values() {
            self.answer(read.id(), Some(Refusal::NotLeaderOrFollower), read.empty_body());
        }
    }

    fn on_fetch_snapshot_call(&mut self, id: CallId, request: &FetchSnapshotRequest, now: Now) {
        let checked = self.check_leader_call(request.epoch).and_then(|()| {
            let facts = self.log.snapshot(request.id).ok_or(Refusal::SnapshotNotFound)?;
            if request.position < facts.size { Ok(facts.size) } else { Err(Refusal::PositionOutOfRange) }
        });
        let size = match checked {
            Ok(size) => size,
            Err(refusal) => return self.answer(id, Some(refusal), empty_snapshot(request.id)),
        };
        if let (Some(replica), Role::Leader(leader)) = (request.replica, &mut self.role) {
            // A follower that is busy with a snapshot is there, too.
            if let Some(voter) = self.membership.voters().get(replica.id).filter(|v| v.key.matches(&replica)) {
                leader.fetched_since_check.insert(voter.key);
                if let Some(progress) = leader.progress.get_mut(&voter.key) {
                    progress.last_fetch = Some((now.monotonic, now.wall));
                }
            }
        }
        let length = request.max_bytes.clamp(1, FETCH_BYTES_MAX);
        let ticket = self.next_read(FileName::Snapshot(request.id), request.position, length);
        let read = CallRead::Snapshot { id, snapshot: request.id, size, position: request.position };
        self.calls.reading.insert(ticket, read);
    }

    fn read_for_call(&mut self, read: CallRead) {
        let CallRead::Log { scan, .. } = &read else { unreachable!("snapshots are read as they are") };
        let ticket = self.next_read(scan.file, scan.position, scan.length);
        self.calls.reading.insert(ticket, read);
    }

    pub(crate) fn on_call_read(&mut self, ticket: Ticket, result: Result<Bytes, DiskFailed>) {
        // A call that was refused meanwhile has no read any more.
        let Some(read) = self.calls.reading.remove(&ticket) else { return };
        match read {
            CallRead::Snapshot { id, snapshot, size, position } => match result {
                Ok(bytes) if !bytes.is_empty() => {
                    let body = FetchSnapshotReply { id: snapshot, size, position, bytes };
                    self.answer(id, None, ReplyBody::FetchSnapshot(body));
                }
                // It went while it was read: a later one is there.
                _ if self.log.snapshot(snapshot).is_none() => {
                    self.answer(id, Some(Refusal::SnapshotNotFound), empty_snapshot(snapshot));
                }
                _ => self.answer(id, Some(Refusal::Storage), empty_snapshot(snapshot)),
            },
            CallRead::Log { id, mut scan, generation, max_bytes } => {
                if generation != self.log.generation() {
                    return self.answer_fetch(id, Fetched::Batches(Vec::new()));
                }
                match result.map_err(|e| e.to_string()).and_then(|bytes| scan.absorb(&bytes)) {
                    Ok(batches) if batches.is_empty() => {
                        self.read_for_call(CallRead::Log { id, scan, generation, max_bytes });
                    }
                    Ok(batches) => self.answer_fetch(id, Fetched::Batches(batches)),
                    Err(_) => self.answer(id, Some(Refusal::Storage), empty_fetch()),
                }
            }
        }
    }
}
