//! From waiting to leading: pre-votes (KIP-996), votes, and the transitions between states.

use crate::disk::DiskLane;
use crate::ids::{OffsetAndEpoch, ReplicaKey};
use crate::message::{Request, VoteRequest};
use crate::peers::Purpose;
use crate::quorum::Quorum;
use crate::state::{
    Ballot, Finding, Follower, Leader, Nominee, Progress, Resigned, Role, Unattached, is_up_to_date, may_follow,
    next_epoch,
};
use crate::stored::ElectionState;
use base::{LeaderEpoch, Monotonic, NodeId, Now};
use std::collections::BTreeMap;
use std::time::Duration;

impl Quorum {
    /// The first state, by what was stored and by what the log says.
    pub(crate) fn start(&mut self, now: Now) {
        let end = self.log.end();
        if end.epoch > self.election.epoch {
            self.store_election(ElectionState { epoch: end.epoch, leader: None, voted: None });
        }
        let me = self.config.local;
        let election = self.election;
        self.role = self.unattached(now);
        if self.is_voter() && self.membership.voters().is_only(&me) {
            self.stand(now);
        } else if election.leader == Some(me.id) {
            // It cannot know what it promised as that epoch's leader, so it does not lead in it again.
            self.role = Role::Resigned(Resigned {
                untold: BTreeMap::new(),
                successors: Vec::new(),
                deadline: now.monotonic + self.random_election_timeout(),
            });
        } else if election.voted.is_some_and(|voted| voted.matches(&me)) && self.is_voter() {
            self.role = Role::Candidate(self.nominee(now));
            self.count_votes(now);
        } else if let Some(leader) = election.leader {
            let endpoints = self.membership.voters().get(leader).map(|v| v.endpoints.clone()).unwrap_or_default();
            if !endpoints.is_empty() {
                self.role = self.follower(leader, endpoints, now);
            }
        }
    }

    /// Between one and two election timeouts, so that replicas rarely stand at the same time.
    pub(crate) fn random_election_timeout(&mut self) -> Duration {
        let timeout = self.config.timing.election_timeout;
        let spread = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).max(1);
        timeout + Duration::from_millis(self.random.below(spread))
    }

    pub(crate) fn unattached(&mut self, now: Now) -> Role {
        let finding = Finding { not_before: now.monotonic, ..Finding::default() };
        Role::Unattached(Unattached { election_deadline: now.monotonic + self.random_election_timeout(), finding })
    }

    pub(crate) fn follower(&self, leader: NodeId, endpoints: Vec<crate::ids::Endpoint>, now: Now) -> Role {
        Role::Follower(Follower {
            leader,
            endpoints,
            fetch_deadline: now.monotonic + self.config.timing.fetch_timeout,
            has_fetched: false,
            outstanding: None,
            not_before: now.monotonic,
            snapshot: None,
            snapshot_controls: Vec::new(),
            leader_watermark: None,
        })
    }

    fn nominee(&mut self, now: Now) -> Nominee {
        let me = self.config.local;
        let ballot = |key: ReplicaKey| if key.matches(&me) { Ballot::Granted } else { Ballot::Unasked(now.monotonic) };
        let ballots = self.membership.voters().iter().map(|v| (v.key, ballot(v.key))).collect();
        Nominee { ballots, deadline: now.monotonic + self.random_election_timeout(), backing_off: false }
    }

    /// The one setter of the state: checks the rule, stores what must be, and ends what belongs to the state before.
    pub(crate) fn transition_to(&mut self, role: Role, election: ElectionState) {
        let (from, to) = ((self.role.name(), &self.election), (role.name(), &election));
        assert!(may_follow(from, to), "{from:?} is not followed by {to:?}");
        let old = std::mem::replace(&mut self.role, role);
        self.peers.forget_all();
        match old {
            Role::Leader(_) => {
                self.appender.discard();
                self.tell_resigned();
                self.refuse_waiting_calls();
            }
            Role::Follower(follower) => self.abandon_snapshot_fetch(follower.snapshot),
            _ => (),
        }
        self.store_election(election);
    }

    /// Asks for pre-votes: whether an election could be won, before an epoch is spent on one.
    pub(crate) fn stand(&mut self, now: Now) {
        let nominee = self.nominee(now);
        self.transition_to(Role::Prospective(nominee), self.election);
        self.count_votes(now);
    }

    fn become_candidate(&mut self, now: Now) {
        let nominee = self.nominee(now);
        let election =
            ElectionState { epoch: next_epoch(self.election.epoch), leader: None, voted: Some(self.config.local) };
        self.transition_to(Role::Candidate(nominee), election);
        self.count_votes(now);
    }

    /// Decides an election by the votes that are in. A candidate's own vote counts once it is stored.
    pub(crate) fn count_votes(&mut self, now: Now) {
        let majority = self.membership.voters().majority();
        match &mut self.role {
            Role::Prospective(nominee) if nominee.granted() >= majority => self.become_candidate(now),
            Role::Prospective(nominee) if nominee.is_lost(majority) => self.fall_back(now),
            Role::Candidate(nominee) if nominee.granted() >= majority && self.jobs.election_is_stored() => {
                self.become_leader(now);
            }
            Role::Candidate(nominee) if nominee.is_lost(majority) && !nominee.backing_off => {
                nominee.backing_off = true;
                self.elections_lost += 1;
                let wait = self.election_backoff();
                if let Role::Candidate(nominee) = &mut self.role {
                    nominee.deadline = now.monotonic + wait;
                }
            }
            _ => (),
        }
    }

    /// Doubles with every election lost in a row, randomly below that, up to a maximum.
    fn election_backoff(&mut self) -> Duration {
        let max = self.config.timing.election_backoff_max;
        let ceiling = 50u64.saturating_mul(2 << self.elections_lost.min(20).saturating_sub(1));
        Duration::from_millis(self.random.below(ceiling.max(1))).min(max)
    }

    /// A lost pre-vote changes nothing: back to the leader of the epoch, if there is one, else to waiting.
    pub(crate) fn fall_back(&mut self, now: Now) {
        let endpoints = self
            .election
            .leader
            .filter(|leader| *leader != self.config.local.id)
            .and_then(|leader| self.leader_endpoints(leader).map(|endpoints| (leader, endpoints)));
        let role = match endpoints {
            Some((leader, endpoints)) => self.follower(leader, endpoints, now),
            None => self.unattached(now),
        };
        self.transition_to(role, self.election);
    }

    fn become_leader(&mut self, now: Now) {
        let Role::Candidate(nominee) = &self.role else { unreachable!("only a candidate is elected") };
        let granting = nominee.ballots.iter().filter(|(_, b)| **b == Ballot::Granted).map(|(key, _)| key.id).collect();
        let start = self.log.end().offset;
        let election = ElectionState { leader: Some(self.config.local.id), voted: None, ..self.election };
        let others = self.membership.voters().iter().map(|v| v.key).filter(|key| !key.matches(&self.config.local));
        let leader = Leader {
            epoch_start: start,
            progress: others.map(|key| (key, Progress::default())).collect(),
            announcing: BTreeMap::new(),
            announce_at: now.monotonic,
            check_quorum_deadline: now.monotonic + self.check_quorum_timeout(),
            fetched_since_check: Default::default(),
        };
        self.elections_lost = 0;
        self.transition_to(Role::Leader(Box::new(leader)), election);
        let mut steps = Vec::new();
        self.log.start_epoch(election.epoch, start, &mut steps);
        if !steps.is_empty() {
            self.run(DiskLane::Log, steps);
        }
        self.begin_epoch_records(granting, now);
    }

    /// A cut-off leader notices within one and a half fetch timeouts, before its voters elect another for long.
    pub(crate) fn check_quorum_timeout(&self) -> Duration {
        self.config.timing.fetch_timeout * 3 / 2
    }

    /// Waits in a later epoch, of which no leader is known.
    pub(crate) fn become_unattached(&mut self, epoch: LeaderEpoch, now: Now) {
        let role = self.unattached(now);
        self.transition_to(role, ElectionState { epoch, leader: None, voted: None });
    }

    pub(crate) fn become_follower(
        &mut self,
        epoch: LeaderEpoch,
        leader: NodeId,
        endpoints: Vec<crate::ids::Endpoint>,
        now: Now,
    ) {
        let voted = if epoch == self.election.epoch { self.election.voted } else { None };
        let role = self.follower(leader, endpoints, now);
        self.elections_lost = 0;
        self.transition_to(role, ElectionState { epoch, leader: Some(leader), voted });
    }

    /// Answers a vote or pre-vote whose request was found valid; true if it is granted.
    pub(crate) fn decide_vote(&mut self, request: &VoteRequest, now: Now) -> bool {
        let up_to_date = is_up_to_date(request.last, self.log.end());
        if request.pre_vote {
            return up_to_date
                && match &self.role {
                    Role::Unattached(_) | Role::Prospective(_) | Role::Candidate(_) => true,
                    Role::Follower(follower) => !follower.has_fetched,
                    Role::Leader(_) | Role::Resigned(_) => false,
                };
        }
        let grants = match (&self.role, self.election.voted) {
            (Role::Unattached(_) | Role::Prospective(_), Some(voted)) => {
                return voted.id == request.candidate.id && (voted.directory.is_none() || voted == request.candidate);
            }
            (Role::Unattached(_) | Role::Prospective(_), None) => self.election.leader.is_none() && up_to_date,
            _ => false,
        };
        if grants {
            self.grant_vote(request.candidate, now);
        }
        grants
    }

    fn grant_vote(&mut self, candidate: ReplicaKey, now: Now) {
        let election = ElectionState { voted: Some(candidate), ..self.election };
        match &self.role {
            // Its own pre-votes go on; they spend no vote.
            Role::Prospective(_) => self.store_election(election),
            _ => {
                let role = self.unattached(now);
                self.transition_to(role, election);
            }
        }
    }

    pub(crate) fn poll_nominee(&mut self, now: Now) {
        let (expired, pre_vote) = match &self.role {
            Role::Prospective(nominee) => (now.monotonic >= nominee.deadline, true),
            Role::Candidate(nominee) => (now.monotonic >= nominee.deadline, false),
            _ => return,
        };
        if expired {
            return match pre_vote {
                true => self.fall_back(now),
                false => self.stand(now),
            };
        }
        let (Role::Prospective(nominee) | Role::Candidate(nominee)) = &self.role else { return };
        if nominee.backing_off {
            return;
        }
        let due = |ballot: &Ballot| matches!(ballot, Ballot::Unasked(at) if *at <= now.monotonic);
        let voters: Vec<_> = nominee.ballots.iter().filter(|(_, b)| due(b)).map(|(key, _)| *key).collect();
        for voter in voters {
            self.ask_for_vote(voter, pre_vote, now);
        }
    }

    fn ask_for_vote(&mut self, voter: ReplicaKey, pre_vote: bool, now: Now) {
        let last: OffsetAndEpoch = self.log.end();
        let request = VoteRequest {
            voter: Some(voter),
            candidate: self.config.local,
            epoch: self.election.epoch,
            last,
            pre_vote,
        };
        let sent = self.send_to_voter(voter, Request::Vote(request), Purpose::Vote(voter), now);
        let retry = now.monotonic + self.config.timing.retry_backoff;
        if let Role::Prospective(nominee) | Role::Candidate(nominee) = &mut self.role {
            nominee.ballots.insert(voter, sent.map_or(Ballot::Unasked(retry), Ballot::Asked));
        }
    }

    pub(crate) fn on_vote_answered(&mut self, voter: ReplicaKey, answer: Option<bool>, now: Now) {
        let retry = now.monotonic + self.config.timing.retry_backoff;
        if let Role::Prospective(nominee) | Role::Candidate(nominee) = &mut self.role {
            let ballot = match answer {
                Some(true) => Ballot::Granted,
                Some(false) => Ballot::Rejected,
                None => Ballot::Unasked(retry),
            };
            nominee.ballots.insert(voter, ballot);
            self.count_votes(now);
        }
    }

    pub(crate) fn nominee_deadline(nominee: &Nominee) -> Monotonic {
        let unasked =
            nominee.ballots.values().filter_map(|b| if let Ballot::Unasked(at) = b { Some(*at) } else { None });
        match nominee.backing_off {
            true => nominee.deadline,
            false => unasked.fold(nominee.deadline, Monotonic::min),
        }
    }
}
