//! What DescribeQuorum answers.

use crate::ids::{Endpoint, ReplicaKey};
use crate::quorum::Quorum;
use crate::state::{Progress, Role};
use base::{LeaderEpoch, NodeId, Now, Offset, WallMillis};

/// The quorum as its leader knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    pub leader: NodeId,
    pub epoch: LeaderEpoch,
    pub high_watermark: Option<Offset>,
    pub voters: Vec<ReplicaDescription>,
    pub observers: Vec<ReplicaDescription>,
    /// Where the voters listen.
    pub nodes: Vec<(NodeId, Vec<Endpoint>)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaDescription {
    pub key: ReplicaKey,
    pub log_end: Option<Offset>,
    pub last_fetch: Option<WallMillis>,
    pub last_caught_up: Option<WallMillis>,
}

impl Quorum {
    /// `None` where this replica does not lead, and so does not know.
    pub fn describe(&self, now: Now) -> Option<Description> {
        let Role::Leader(leader) = &self.role else { return None };
        let voters = self.membership.voters();
        let row = |key: ReplicaKey, progress: Option<&Progress>| ReplicaDescription {
            key,
            log_end: progress.and_then(|p| p.end),
            last_fetch: progress.and_then(|p| p.last_fetch).map(|(_, wall)| wall),
            last_caught_up: progress.and_then(|p| p.last_caught_up),
        };
        let local = self.config.local;
        let own = ReplicaDescription {
            key: local,
            log_end: Some(self.log.end().offset),
            last_fetch: Some(now.wall),
            last_caught_up: Some(now.wall),
        };
        let describe =
            |key: ReplicaKey| if key.matches(&local) { own.clone() } else { row(key, leader.progress.get(&key)) };
        let observers = leader.progress.iter().filter(|(key, _)| !voters.contains(key));
        Some(Description {
            leader: local.id,
            epoch: self.election.epoch,
            high_watermark: self.high_watermark,
            voters: voters.iter().map(|v| describe(v.key)).collect(),
            observers: observers.map(|(key, progress)| row(*key, Some(progress))).collect(),
            nodes: voters.iter().map(|v| (v.key.id, v.endpoints.clone())).collect(),
        })
    }
}
