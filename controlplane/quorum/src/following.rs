//! Following: fetch after fetch, each one only when everything before it is on disk; divergence; snapshots of the leader;
//! and asking around for a leader when none is known.

use crate::config::{FETCH_BYTES_MAX, FETCH_WAIT_MAX};
use crate::disk::{DiskLane, FileName, Step};
use crate::ids::{Endpoint, OffsetAndEpoch, SnapshotId};
use crate::jobs::Purpose as JobPurpose;
use crate::log::SnapshotFacts;
use crate::message::{
    Destination, FetchReply, FetchRequest, FetchSnapshotReply, FetchSnapshotRequest, Fetched, Request,
};
use crate::peers::Purpose;
use crate::quorum::{Fault, Quorum};
use crate::records::{self, Control};
use crate::snapshotting::place_snapshot;
use crate::state::{Role, SnapshotFetch};
use base::{NodeId, Now, Offset};
use bytes::Bytes;

impl Quorum {
    fn fetch_request(&self) -> FetchRequest {
        let end = self.log.end();
        FetchRequest {
            replica: Some(self.config.local),
            epoch: self.election.epoch,
            offset: end.offset,
            last_epoch: end.epoch,
            wait_ms: FETCH_WAIT_MAX.as_millis() as u32,
            max_bytes: FETCH_BYTES_MAX,
            high_watermark: self.high_watermark,
        }
    }

    pub(crate) fn poll_unattached(&mut self, now: Now) {
        let Role::Unattached(unattached) = &self.role else { return };
        if self.is_voter() && now.monotonic >= unattached.election_deadline {
            return self.stand(now);
        }
        if unattached.finding.outstanding.is_some() || now.monotonic < unattached.finding.not_before {
            return;
        }
        let turn = unattached.finding.next_server;
        let Some(to) = self.somebody_to_ask(turn) else { return };
        let request = Request::Fetch(FetchRequest { wait_ms: 0, ..self.fetch_request() });
        let id = self.send(to, request, Purpose::Find, now);
        if let Role::Unattached(unattached) = &mut self.role {
            unattached.finding.outstanding = Some(id);
            unattached.finding.next_server = turn.wrapping_add(1);
        }
    }

    pub(crate) fn has_somebody_to_ask(&self) -> bool {
        self.somebody_to_ask(0).is_some()
    }

    /// Bootstrap servers and voters but this one, one after the other.
    fn somebody_to_ask(&self, turn: usize) -> Option<Destination> {
        let mut known: Vec<Destination> = self
            .membership
            .voters()
            .iter()
            .filter(|voter| voter.key.id != self.config.local.id)
            .filter_map(|voter| Some((voter.key.id, self.pick_endpoint(&voter.endpoints)?)))
            .map(|(id, endpoint)| Destination { node: Some(id), endpoint })
            .collect();
        let strangers = self.config.bootstrap_servers.iter().filter(|server| {
            let same = |e: &Endpoint| e.host == server.host && e.port == server.port;
            !known.iter().any(|d| same(&d.endpoint)) && !self.config.endpoints.iter().any(same)
        });
        known.extend(strangers.cloned().map(|endpoint| Destination { node: None, endpoint }).collect::<Vec<_>>());
        if known.is_empty() { None } else { Some(known.swap_remove(turn % known.len())) }
    }

    pub(crate) fn poll_follower(&mut self, now: Now) {
        let Role::Follower(follower) = &self.role else { return };
        if self.is_voter() && now.monotonic >= follower.fetch_deadline {
            return self.stand(now);
        }
        // What was appended is on disk before the next fetch says so.
        if follower.outstanding.is_some() || self.appender.in_flight || now.monotonic < follower.not_before {
            return;
        }
        let Some(endpoint) = self.pick_endpoint(&follower.endpoints) else { return };
        let leader = Destination { node: Some(follower.leader), endpoint };
        let late = now.monotonic >= follower.fetch_deadline;
        let (to, request, purpose) = match follower.snapshot {
            Some(snapshot) if snapshot.is_complete() => return,
            Some(snapshot) => (leader, self.fetch_snapshot_request(snapshot), Purpose::FetchSnapshot),
            // An observer whose leader is silent asks the others, too.
            None if late => {
                let turn = self.random.below(1 << 16) as usize;
                let to = self.somebody_to_ask(turn).unwrap_or(leader);
                (to, Request::Fetch(self.fetch_request()), Purpose::Fetch)
            }
            None => (leader, Request::Fetch(self.fetch_request()), Purpose::Fetch),
        };
        let id = self.send(to, request, purpose, now);
        if let Role::Follower(follower) = &mut self.role {
            follower.outstanding = Some(id);
        }
    }

    fn fetch_snapshot_request(&self, snapshot: SnapshotFetch) -> Request {
        Request::FetchSnapshot(FetchSnapshotRequest {
            replica: Some(self.config.local),
            epoch: self.election.epoch,
            id: snapshot.id,
            position: snapshot.received,
            max_bytes: FETCH_BYTES_MAX,
        })
    }

    pub(crate) fn on_fetch_failed(&mut self, now: Now) {
        let again = now.monotonic + self.config.timing.retry_backoff;
        match &mut self.role {
            Role::Follower(follower) => {
                follower.outstanding = None;
                follower.not_before = again;
            }
            Role::Unattached(unattached) => {
                unattached.finding.outstanding = None;
                unattached.finding.not_before = again;
            }
            _ => (),
        }
    }

    /// The leader answered: it is alive.
    fn on_leader_answered(&mut self, now: Now) {
        let deadline = now.monotonic + self.config.timing.fetch_timeout;
        if let Role::Follower(follower) = &mut self.role {
            follower.outstanding = None;
            follower.fetch_deadline = deadline;
            follower.has_fetched = true;
        }
    }

    pub(crate) fn on_fetched(&mut self, reply: FetchReply, now: Now) {
        self.on_leader_answered(now);
        match reply.found {
            Fetched::Batches(batches) => {
                if let Some(watermark) = reply.high_watermark {
                    self.note_leader_watermark(watermark);
                }
                if batches.is_empty() {
                    self.advance_follower_watermark();
                } else {
                    self.append_fetched(batches);
                }
            }
            Fetched::Diverging(at) => self.cut_to(at),
            Fetched::Snapshot(id) => self.begin_snapshot_fetch(id),
        }
    }

    fn note_leader_watermark(&mut self, watermark: Offset) {
        if let Role::Follower(follower) = &mut self.role {
            follower.leader_watermark = Some(watermark);
        }
    }

    /// A follower's watermark is its leader's, as far as its own log is on disk.
    pub(crate) fn advance_follower_watermark(&mut self) {
        let Role::Follower(follower) = &self.role else { return };
        let Some(watermark) = follower.leader_watermark.map(|w| w.min(self.durable)) else { return };
        if self.high_watermark.is_none_or(|old| watermark > old) {
            self.high_watermark = Some(watermark);
        }
    }

    fn append_fetched(&mut self, batches: Vec<Bytes>) {
        let mut steps = Vec::new();
        for bytes in batches {
            let end = self.log.end();
            let facts = match records::check(&bytes) {
                Ok(facts) if facts.base == end.offset && facts.epoch >= end.epoch => facts,
                Ok(facts) => {
                    let text = format!("offset {} of epoch {} after {end}", facts.base, facts.epoch);
                    return self.fail(Fault::BadReplication(text));
                }
                Err(error) => return self.fail(Fault::BadReplication(error.to_string())),
            };
            match records::controls(&bytes) {
                Ok(controls) => controls.iter().for_each(|(offset, control)| self.membership.note(*offset, control)),
                Err(error) => return self.fail(Fault::BadReplication(error.to_string())),
            }
            self.log.append(facts, bytes, &mut steps);
        }
        self.sync_log(steps);
    }

    /// Cuts off what the leader does not have: to the end of the epoch it names, or of the next lower one of this log.
    fn cut_to(&mut self, at: OffsetAndEpoch) {
        let own = self.log.end_of_epoch(at.epoch);
        let target = if own.epoch == at.epoch { own.offset.min(at.offset) } else { own.offset };
        if target >= self.log.end().offset {
            return;
        }
        let floor = self.high_watermark.unwrap_or(self.log.start());
        let Some(point) = self.log.cut_point(target).filter(|_| target >= floor) else {
            return self.fail(Fault::CutBelowWatermark { asked: target, high_watermark: floor });
        };
        let mut steps = Vec::new();
        self.log.truncate_to(target, point, &mut steps);
        self.membership.truncate_to(target);
        self.jobs.cut_log(target);
        self.durable = self.durable.min(target);
        self.sync_log(steps);
    }

    fn begin_snapshot_fetch(&mut self, id: SnapshotId) {
        if self.log.snapshot(id).is_some() || id.offset <= self.log.start() {
            return;
        }
        if let Role::Follower(follower) = &mut self.role {
            follower.snapshot = Some(SnapshotFetch { id, received: 0, size: None });
            follower.snapshot_controls.clear();
            self.abandon_snapshot();
            self.run(DiskLane::Snapshots, vec![Step::Create(FileName::Partial(id))]);
        }
    }

    pub(crate) fn on_snapshot_piece(&mut self, piece: FetchSnapshotReply, now: Now) {
        self.on_leader_answered(now);
        let Role::Follower(follower) = &mut self.role else { return };
        let Some(snapshot) = &mut follower.snapshot else { return };
        let end = piece.position.saturating_add(piece.bytes.len() as u64);
        if piece.id != snapshot.id || piece.position != snapshot.received || piece.bytes.is_empty() || end > piece.size
        {
            return self.on_fetch_failed(now);
        }
        snapshot.received = end;
        snapshot.size = Some(piece.size);
        let snapshot = *snapshot;
        let file = FileName::Partial(snapshot.id);
        let mut steps = vec![Step::Write { file, position: piece.position, bytes: piece.bytes.clone() }];
        if piece.position == 0 {
            let Some(controls) = head_controls(&piece.bytes) else {
                return self.fail(Fault::BadReplication(format!("snapshot {} without a header", snapshot.id)));
            };
            if let Role::Follower(follower) = &mut self.role {
                follower.snapshot_controls = controls;
            }
        }
        if snapshot.is_complete() {
            place_snapshot(snapshot.id, &mut steps);
        }
        let ticket = self.run(DiskLane::Snapshots, steps);
        let done = JobPurpose::FetchedSnapshot(snapshot.id);
        self.jobs.expect(ticket, if snapshot.is_complete() { done } else { JobPurpose::Housekeeping });
    }

    pub(crate) fn on_snapshot_refused(&mut self, now: Now) {
        if let Role::Follower(follower) = &mut self.role {
            let snapshot = follower.snapshot.take();
            self.abandon_snapshot_fetch(snapshot);
        }
        self.on_fetch_failed(now);
    }

    pub(crate) fn abandon_snapshot_fetch(&mut self, snapshot: Option<SnapshotFetch>) {
        if let Some(snapshot) = snapshot {
            self.run(DiskLane::Snapshots, vec![Step::Remove(FileName::Partial(snapshot.id))]);
        }
    }

    /// The snapshot is in place: the log begins anew after it.
    pub(crate) fn on_snapshot_fetched(&mut self, id: SnapshotId) {
        let (size, controls) = match &mut self.role {
            Role::Follower(follower) if follower.snapshot.is_some_and(|s| s.id == id) => {
                let snapshot = follower.snapshot.take().expect("just seen");
                (snapshot.received, std::mem::take(&mut follower.snapshot_controls))
            }
            _ => {
                // The leader it came from is not followed any more; the next one offers its own.
                self.run(DiskLane::Snapshots, vec![Step::Remove(FileName::Snapshot(id))]);
                return;
            }
        };
        let last_time = controls
            .iter()
            .find_map(|c| if let Control::SnapshotHeader { last_time } = c { Some(*last_time) } else { None });
        self.log.add_snapshot(id, SnapshotFacts { size, last_time: last_time.unwrap_or_default() });
        let mut steps = Vec::new();
        self.log.restart_at(id, &mut steps);
        self.membership.clear();
        for control in &controls {
            self.membership.note(Offset(id.offset.0 - 1), control);
        }
        self.durable = id.offset;
        if self.high_watermark.is_none_or(|old| old < id.offset) {
            self.high_watermark = Some(id.offset);
        }
        self.sync_log(steps);
    }

    /// The leader that this replica follows, for forwarding.
    pub fn leader_endpoint(&self) -> Option<(NodeId, Endpoint)> {
        match &self.role {
            Role::Follower(follower) => Some((follower.leader, self.pick_endpoint(&follower.endpoints)?)),
            _ => None,
        }
    }
}

/// The control records of a snapshot's first batch, which its first piece holds whole.
fn head_controls(piece: &Bytes) -> Option<Vec<Control>> {
    let (view, _) = batch::BatchView::parse(piece).ok()?;
    let controls = records::controls(view.bytes()).ok()?;
    let controls: Vec<Control> = controls.into_iter().map(|(_, control)| control).collect();
    matches!(controls.first(), Some(Control::SnapshotHeader { .. })).then_some(controls)
}
