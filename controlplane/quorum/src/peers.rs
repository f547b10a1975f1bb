//! Requests to other replicas: whom they go to, what their answers mean, and what every answer tells of epoch and leader.

use crate::ids::{Endpoint, ReplicaKey};
use crate::message::{Destination, Refusal, Reply, ReplyBody, Request, RequestId};
use crate::quorum::{Quorum, SentRequest};
use crate::state::{Ballot, EPOCH_MAX, Role};
use base::{LeaderEpoch, Monotonic, NodeId, Now};
use std::collections::BTreeMap;

/// What a request was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Vote(ReplicaKey),
    Begin(ReplicaKey),
    End(ReplicaKey),
    Fetch,
    FetchSnapshot,
    /// A fetch sent to somebody who may know the leader.
    Find,
}

#[derive(Debug, Default)]
pub(crate) struct Peers {
    issued: u64,
    sent: BTreeMap<RequestId, (Purpose, Monotonic)>,
    /// Where the last leader that was followed listens.
    leader: Option<(NodeId, Vec<Endpoint>)>,
}

impl Peers {
    /// Answers to what was asked in an earlier state mean nothing any more.
    pub(crate) fn forget_all(&mut self) {
        self.sent.clear();
    }

    pub(crate) fn next_expiry(&self) -> Option<Monotonic> {
        self.sent.values().map(|(_, expires)| *expires).min()
    }
}

/// What an answer or request told of epoch and leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Learned {
    /// This replica is in another state now; what was asked for is over.
    Changed,
    /// The other is behind.
    Stale,
    Nothing,
}

impl Quorum {
    pub(crate) fn send(&mut self, to: Destination, request: Request, purpose: Purpose, now: Now) -> RequestId {
        self.peers.issued += 1;
        let id = RequestId(self.peers.issued);
        self.peers.sent.insert(id, (purpose, now.monotonic + self.config.timing.request_timeout));
        self.release_request(SentRequest { id, to, request });
        id
    }

    /// Sends to a voter where its set tells an address.
    pub(crate) fn send_to_voter(
        &mut self,
        voter: ReplicaKey,
        request: Request,
        purpose: Purpose,
        now: Now,
    ) -> Option<RequestId> {
        let endpoint = self.pick_endpoint(&self.membership.voters().get(voter.id)?.endpoints)?;
        Some(self.send(Destination { node: Some(voter.id), endpoint }, request, purpose, now))
    }

    /// The endpoint on the listener that this replica itself uses among controllers; else the first.
    pub(crate) fn pick_endpoint(&self, endpoints: &[Endpoint]) -> Option<Endpoint> {
        let own = self.config.endpoints.first().map(|e| e.listener.as_str());
        endpoints.iter().find(|e| Some(e.listener.as_str()) == own).or(endpoints.first()).cloned()
    }

    pub(crate) fn leader_endpoints(&self, leader: NodeId) -> Option<Vec<Endpoint>> {
        match &self.peers.leader {
            Some((known, endpoints)) if *known == leader => Some(endpoints.clone()),
            _ => self.membership.voters().get(leader).map(|v| v.endpoints.clone()),
        }
        .filter(|endpoints| !endpoints.is_empty())
    }

    pub(crate) fn expire_requests(&mut self, now: Now) {
        let expired = |(id, (_, at)): (&RequestId, &(Purpose, Monotonic))| (*at <= now.monotonic).then_some(*id);
        let ids: Vec<RequestId> = self.peers.sent.iter().filter_map(expired).collect();
        for id in ids {
            self.on_no_reply(id, now);
        }
    }

    pub(crate) fn on_no_reply(&mut self, id: RequestId, now: Now) {
        match self.peers.sent.remove(&id) {
            Some((Purpose::Vote(voter), _)) => self.on_vote_answered(voter, None, now),
            Some((Purpose::Begin(voter), _)) => self.on_begin_answered(voter, false),
            Some((Purpose::End(voter), _)) => self.on_end_answered(voter, false, now),
            Some((Purpose::Fetch | Purpose::FetchSnapshot | Purpose::Find, _)) => self.on_fetch_failed(now),
            None => (),
        }
    }

    pub(crate) fn on_reply(&mut self, id: RequestId, reply: Reply, now: Now) {
        let Some((purpose, _)) = self.peers.sent.remove(&id) else { return };
        let learned = self.learn(reply.epoch, reply.leader, &reply.leader_endpoints, now);
        if learned == Learned::Changed {
            return;
        }
        let good = learned == Learned::Nothing && reply.refusal.is_none();
        match (purpose, reply.body) {
            (Purpose::Vote(voter), ReplyBody::Vote { granted }) => {
                self.on_vote_answered(voter, good.then_some(granted), now);
            }
            (Purpose::Begin(voter), ReplyBody::BeginEpoch) => self.on_begin_answered(voter, good),
            // A voter that has moved on needs no telling.
            (Purpose::End(voter), ReplyBody::EndEpoch) => {
                self.on_end_answered(voter, reply.refusal != Some(Refusal::BrokerNotAvailable), now);
            }
            (Purpose::Fetch, ReplyBody::Fetch(found)) if good => self.on_fetched(found, now),
            (Purpose::FetchSnapshot, ReplyBody::FetchSnapshot(found)) if good => self.on_snapshot_piece(found, now),
            (Purpose::FetchSnapshot, _) if reply.refusal.is_some() => self.on_snapshot_refused(now),
            (Purpose::Fetch | Purpose::FetchSnapshot | Purpose::Find, _) => self.on_fetch_failed(now),
            (Purpose::Vote(voter), _) => self.on_vote_answered(voter, None, now),
            (Purpose::Begin(voter), _) => self.on_begin_answered(voter, false),
            (Purpose::End(voter), _) => self.on_end_answered(voter, false, now),
        }
    }

    /// Follows a later epoch, or a leader that was not known. Nothing is believed of a leader without an address.
    pub(crate) fn learn(
        &mut self,
        epoch: LeaderEpoch,
        leader: Option<NodeId>,
        endpoints: &[Endpoint],
        now: Now,
    ) -> Learned {
        if epoch < self.election.epoch || epoch > EPOCH_MAX {
            return Learned::Stale;
        }
        let leader = leader.filter(|id| *id != self.config.local.id).and_then(|id| {
            let given = (!endpoints.is_empty()).then(|| endpoints.to_vec());
            let known = || self.membership.voters().get(id).map(|v| v.endpoints.clone()).filter(|e| !e.is_empty());
            given.or_else(known).map(|endpoints| (id, endpoints))
        });
        let is_news = epoch > self.election.epoch || self.election.leader.is_none();
        match leader {
            Some((id, endpoints)) if is_news => {
                self.peers.leader = Some((id, endpoints.clone()));
                self.become_follower(epoch, id, endpoints, now);
                Learned::Changed
            }
            _ if epoch > self.election.epoch => {
                self.become_unattached(epoch, now);
                Learned::Changed
            }
            _ => Learned::Nothing,
        }
    }

    pub(crate) fn poll_role(&mut self, now: Now) {
        match &self.role {
            Role::Unattached(_) => self.poll_unattached(now),
            Role::Prospective(_) | Role::Candidate(_) => self.poll_nominee(now),
            Role::Leader(_) => self.poll_leader(now),
            Role::Follower(_) => self.poll_follower(now),
            Role::Resigned(_) => self.poll_resigned(now),
        }
    }

    pub(crate) fn role_deadline(&self) -> Option<Monotonic> {
        match &self.role {
            Role::Unattached(unattached) => {
                let find = unattached.finding.outstanding.is_none().then_some(unattached.finding.not_before);
                let find = find.filter(|_| self.has_somebody_to_ask());
                let stand = self.is_voter().then_some(unattached.election_deadline);
                [find, stand].into_iter().flatten().min()
            }
            Role::Prospective(nominee) | Role::Candidate(nominee) => Some(Quorum::nominee_deadline(nominee)),
            Role::Leader(_) => self.leader_deadline(),
            Role::Follower(follower) => {
                let placing = follower.snapshot.is_some_and(|snapshot| snapshot.is_complete());
                let idle = follower.outstanding.is_none() && !self.appender.in_flight && !placing;
                let fetch = idle.then_some(follower.not_before);
                let stand = self.is_voter().then_some(follower.fetch_deadline);
                [fetch, stand].into_iter().flatten().min()
            }
            Role::Resigned(resigned) => {
                let due = |b: &Ballot| if let Ballot::Unasked(at) = b { Some(*at) } else { None };
                let first = resigned.untold.values().filter_map(due).min();
                let ends = (!self.stopping).then_some(resigned.deadline);
                [first, ends].into_iter().flatten().min()
            }
        }
    }
}
