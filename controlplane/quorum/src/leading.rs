//! What a leader does: the records that begin its epoch, the high watermark, BeginQuorumEpoch until every voter has
//! answered, watching that a majority still fetches, and handing over.

use crate::ids::{ReplicaKey, VoterSet};
use crate::message::{BeginEpochRequest, EndEpochRequest, Request};
use crate::peers::Purpose;
use crate::quorum::Quorum;
use crate::records::Control;
use crate::state::{Ballot, Resigned, Role, next_epoch};
use base::{Monotonic, NodeId, Now, Offset};
use std::time::Duration;

impl Quorum {
    /// The control records at the start of an epoch. The watermark waits for them, so that entries of earlier epochs are
    /// committed only together with one of this epoch. The first leader after formatting also writes the membership,
    /// which until then is only in the formatted snapshot; later ones only when their own address changed.
    pub(crate) fn begin_epoch_records(&mut self, granting: Vec<NodeId>, now: Now) {
        let voters = self.membership.voters().clone();
        let mut records = vec![Control::LeaderChange {
            leader: self.config.local.id,
            voters: voters.iter().map(|v| v.key.id).collect(),
            granting,
        }];
        if self.membership.kraft_version() >= 1 {
            let current = self.with_own_endpoints(&voters);
            if self.membership.voters_offset().is_some_and(|offset| offset < Offset::ZERO) {
                records.push(Control::KRaftVersion(self.membership.kraft_version()));
                records.push(Control::Voters(current));
            } else if current != voters {
                records.push(Control::Voters(current));
            }
        }
        self.append_controls(records, now);
    }

    fn with_own_endpoints(&self, voters: &VoterSet) -> VoterSet {
        VoterSet::new(voters.iter().map(|voter| {
            let mut voter = voter.clone();
            if voter.key.matches(&self.config.local) && !self.config.endpoints.is_empty() {
                voter.endpoints.clone_from(&self.config.endpoints);
            }
            voter
        }))
    }

    /// The watermark is what a majority has on disk, once that covers an entry of this epoch. A lower result, normal
    /// after a change of voters, keeps the old one.
    pub(crate) fn advance_leader_watermark(&mut self) {
        let Role::Leader(leader) = &self.role else { return };
        let voters = self.membership.voters();
        let mut ends: Vec<Offset> = voters
            .iter()
            .map(|voter| {
                if voter.key.matches(&self.config.local) {
                    self.durable
                } else {
                    leader.progress.get(&voter.key).and_then(|p| p.end).unwrap_or(Offset(-1))
                }
            })
            .collect();
        ends.sort_unstable_by(|a, b| b.cmp(a));
        let Some(majority_end) = ends.get(voters.majority() - 1).copied() else { return };
        if majority_end > leader.epoch_start && self.high_watermark.is_none_or(|old| majority_end > old) {
            self.high_watermark = Some(majority_end);
        }
    }

    pub(crate) fn poll_leader(&mut self, now: Now) {
        if self.stopping {
            // What was appended is worth its sync; who follows takes it from there.
            if !self.appender.in_flight {
                self.resign(now);
            }
            return;
        }
        if self.is_cut_off(now) {
            return self.resign(now);
        }
        if matches!(&self.role, Role::Leader(leader) if now.monotonic >= leader.announce_at) {
            self.announce(now);
        }
    }

    /// Whether no majority fetched for a whole check period; renews the period where one did.
    fn is_cut_off(&mut self, now: Now) -> bool {
        let timeout = self.check_quorum_timeout();
        let voters = self.membership.voters();
        // A leader that votes is one of the majority itself; one that was voted out is not (KIP-853).
        let needed = voters.majority() - usize::from(voters.contains(&self.config.local));
        let Role::Leader(leader) = &mut self.role else { return false };
        leader.fetched_since_check.retain(|key| voters.contains(key));
        if leader.fetched_since_check.len() >= needed {
            leader.fetched_since_check.clear();
            leader.check_quorum_deadline = now.monotonic + timeout;
        }
        now.monotonic >= leader.check_quorum_deadline
    }

    fn announce(&mut self, now: Now) {
        let period = self.announce_period();
        let Role::Leader(leader) = &mut self.role else { return };
        leader.announce_at = now.monotonic + period;
        let silent: Vec<ReplicaKey> = leader
            .progress
            .iter()
            .filter(|(key, p)| {
                let fetches = p.last_fetch.is_some_and(|(at, _)| now.monotonic.since(at) < period * 2);
                let knows = p.acknowledged && fetches;
                !knows && !leader.announcing.contains_key(key)
            })
            .filter(|(key, _)| self.membership.voters().contains(key))
            .map(|(key, _)| *key)
            .collect();
        for voter in silent {
            let request = BeginEpochRequest {
                voter: Some(voter),
                leader: self.config.local.id,
                epoch: self.election.epoch,
                endpoints: self.config.endpoints.clone(),
            };
            let sent = self.send_to_voter(voter, Request::BeginEpoch(request), Purpose::Begin(voter), now);
            if let (Some(id), Role::Leader(leader)) = (sent, &mut self.role) {
                leader.announcing.insert(voter, id);
            }
        }
    }

    pub(crate) fn announce_period(&self) -> Duration {
        self.config.timing.fetch_timeout / 2
    }

    pub(crate) fn on_begin_answered(&mut self, voter: ReplicaKey, accepted: bool) {
        if let Role::Leader(leader) = &mut self.role {
            leader.announcing.remove(&voter);
            if let Some(progress) = leader.progress.get_mut(&voter) {
                progress.acknowledged |= accepted;
            }
        }
    }

    pub(crate) fn leader_deadline(&self) -> Option<Monotonic> {
        let Role::Leader(leader) = &self.role else { return None };
        if leader.progress.is_empty() {
            // A single voter has nobody to announce itself to, and cannot be cut off.
            return None;
        }
        Some(leader.announce_at.min(leader.check_quorum_deadline))
    }

    /// Leads no more in this epoch, and tells the voters, those with the longest logs first.
    pub(crate) fn resign(&mut self, now: Now) {
        let Role::Leader(leader) = &self.role else { return };
        let mut successors: Vec<(Offset, ReplicaKey)> = leader
            .progress
            .iter()
            .filter(|(key, _)| self.membership.voters().contains(key))
            .map(|(key, p)| (p.end.unwrap_or(Offset(-1)), *key))
            .collect();
        successors.sort_by(|a, b| b.cmp(a));
        let successors: Vec<ReplicaKey> = successors.into_iter().map(|(_, key)| key).collect();
        let resigned = Resigned {
            untold: successors.iter().map(|key| (*key, Ballot::Unasked(now.monotonic))).collect(),
            successors,
            deadline: now.monotonic + self.random_election_timeout(),
        };
        self.transition_to(Role::Resigned(resigned), self.election);
    }

    pub(crate) fn poll_resigned(&mut self, now: Now) {
        let Role::Resigned(resigned) = &self.role else { return };
        if now.monotonic >= resigned.deadline && !self.stopping {
            // As leader of this epoch it cannot vote in it; the next one is open to it.
            return self.become_unattached(next_epoch(self.election.epoch), now);
        }
        let due = |b: &Ballot| matches!(b, Ballot::Unasked(at) if *at <= now.monotonic);
        let untold: Vec<_> = resigned.untold.iter().filter(|(_, b)| due(b)).map(|(key, _)| *key).collect();
        let successors = resigned.successors.clone();
        for voter in untold {
            let request = EndEpochRequest {
                leader: self.config.local.id,
                epoch: self.election.epoch,
                successors: successors.clone(),
                endpoints: self.config.endpoints.clone(),
            };
            let sent = self.send_to_voter(voter, Request::EndEpoch(request), Purpose::End(voter), now);
            let retry = now.monotonic + self.config.timing.retry_backoff;
            if let Role::Resigned(resigned) = &mut self.role {
                resigned.untold.insert(voter, sent.map_or(Ballot::Unasked(retry), Ballot::Asked));
            }
        }
    }

    pub(crate) fn on_end_answered(&mut self, voter: ReplicaKey, told: bool, now: Now) {
        let retry = now.monotonic + self.config.timing.retry_backoff;
        if let Role::Resigned(resigned) = &mut self.role {
            if told {
                resigned.untold.remove(&voter);
            } else {
                resigned.untold.insert(voter, Ballot::Unasked(retry));
            }
        }
    }

    pub(crate) fn on_stop(&mut self) {
        self.stopping = true;
        self.flush_appends();
    }
}
