//! The states of a replica, each with its own data, and the one rule of what may follow what.

use crate::ids::{Endpoint, OffsetAndEpoch, ReplicaKey, SnapshotId};
use crate::message::RequestId;
use crate::records::Control;
use crate::stored::ElectionState;
use base::{LeaderEpoch, Monotonic, NodeId, Offset, WallMillis};
use std::collections::{BTreeMap, BTreeSet};

/// What a replica does in its epoch.
#[derive(Debug)]
pub(crate) enum Role {
    Unattached(Unattached),
    Prospective(Nominee),
    Candidate(Nominee),
    Leader(Box<Leader>),
    Follower(Follower),
    Resigned(Resigned),
}

/// The state's name, as Kafka's metrics and DescribeQuorum know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StateName {
    Unattached,
    Prospective,
    Candidate,
    Leader,
    Follower,
    Resigned,
    /// Unattached or following, outside the voter set.
    Observer,
}

/// Waits for a leader, asks around for one, and stands for election when nobody is found.
#[derive(Debug)]
pub(crate) struct Unattached {
    pub(crate) election_deadline: Monotonic,
    pub(crate) finding: Finding,
}

/// Fetches sent to replicas that may know the leader.
#[derive(Debug, Default)]
pub(crate) struct Finding {
    pub(crate) outstanding: Option<RequestId>,
    pub(crate) not_before: Monotonic,
    pub(crate) next_server: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ballot {
    /// To be asked, or asked again, from this time on.
    Unasked(Monotonic),
    Asked(RequestId),
    Granted,
    Rejected,
}

/// Collects votes: before an epoch is begun (Prospective, KIP-996) or for it (Candidate).
#[derive(Debug)]
pub(crate) struct Nominee {
    pub(crate) ballots: BTreeMap<ReplicaKey, Ballot>,
    pub(crate) deadline: Monotonic,
    /// A lost candidate waits until its deadline before it tries again.
    pub(crate) backing_off: bool,
}

impl Nominee {
    pub(crate) fn granted(&self) -> usize {
        self.ballots.values().filter(|b| **b == Ballot::Granted).count()
    }

    /// Whether the votes still out cannot make `majority`.
    pub(crate) fn is_lost(&self, majority: usize) -> bool {
        let rejected = self.ballots.values().filter(|b| **b == Ballot::Rejected).count();
        self.ballots.len() - rejected < majority
    }
}

/// What the leader knows of a replica.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    /// Its last fetch offset: what it has on disk ends there.
    pub(crate) end: Option<Offset>,
    pub(crate) last_fetch: Option<(Monotonic, WallMillis)>,
    pub(crate) last_caught_up: Option<WallMillis>,
    /// The end of this log when the replica last fetched.
    pub(crate) leader_end_at_fetch: Option<Offset>,
    /// It answered BeginQuorumEpoch.
    pub(crate) acknowledged: bool,
}

#[derive(Debug)]
pub(crate) struct Leader {
    pub(crate) epoch_start: Offset,
    pub(crate) progress: BTreeMap<ReplicaKey, Progress>,
    /// BeginQuorumEpoch on its way, by voter.
    pub(crate) announcing: BTreeMap<ReplicaKey, RequestId>,
    pub(crate) announce_at: Monotonic,
    /// Without fetches of a majority until then, this leader is cut off, and resigns.
    pub(crate) check_quorum_deadline: Monotonic,
    pub(crate) fetched_since_check: BTreeSet<ReplicaKey>,
}

#[derive(Debug)]
pub(crate) struct Follower {
    pub(crate) leader: NodeId,
    pub(crate) endpoints: Vec<Endpoint>,
    /// Without an answer of the leader until then, this voter stands for election.
    pub(crate) fetch_deadline: Monotonic,
    /// While the leader itself is answering, pre-votes are refused.
    pub(crate) has_fetched: bool,
    pub(crate) outstanding: Option<RequestId>,
    pub(crate) not_before: Monotonic,
    pub(crate) snapshot: Option<SnapshotFetch>,
    /// What the first batch of that snapshot says of the membership.
    pub(crate) snapshot_controls: Vec<Control>,
    /// The leader's watermark, as it last told it.
    pub(crate) leader_watermark: Option<Offset>,
}

/// A snapshot that is being fetched from the leader into its `.part` file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SnapshotFetch {
    pub(crate) id: SnapshotId,
    pub(crate) received: u64,
    pub(crate) size: Option<u64>,
}

impl SnapshotFetch {
    /// All bytes came; it is on its way to its name.
    pub(crate) fn is_complete(&self) -> bool {
        self.size == Some(self.received)
    }
}

#[derive(Debug)]
pub(crate) struct Resigned {
    /// Voters that have not yet answered EndQuorumEpoch.
    pub(crate) untold: BTreeMap<ReplicaKey, Ballot>,
    pub(crate) successors: Vec<ReplicaKey>,
    pub(crate) deadline: Monotonic,
}

impl Role {
    pub(crate) fn name(&self) -> StateName {
        match self {
            Role::Unattached(_) => StateName::Unattached,
            Role::Prospective(_) => StateName::Prospective,
            Role::Candidate(_) => StateName::Candidate,
            Role::Leader(_) => StateName::Leader,
            Role::Follower(_) => StateName::Follower,
            Role::Resigned(_) => StateName::Resigned,
        }
    }
}

/// Whether `to` may follow `from`. Within an epoch a vote is never changed, a leader never replaced, and only a
/// Prospective may fall back (to where it came from). A broken rule is a bug of this node, so callers assert.
pub(crate) fn may_follow(from: (StateName, &ElectionState), to: (StateName, &ElectionState)) -> bool {
    use StateName::{Candidate, Follower, Leader, Prospective, Resigned, Unattached};
    let ((from, old), (to, new)) = (from, to);
    if new.epoch < old.epoch {
        return false;
    }
    if new.epoch > old.epoch {
        // A new epoch begins with an election of ours, with one of others, or with news of its leader.
        return matches!(to, Unattached | Follower) || (to == Candidate && matches!(from, Prospective));
    }
    // A leader's own state drops the vote that made it one, as Kafka writes it.
    let vote_kept = old.voted.is_none() || old.voted == new.voted || matches!(to, Leader | Follower);
    let leader_kept = old.leader.is_none() || old.leader == new.leader;
    let order = match (from, to) {
        (Unattached, Unattached) => old.voted.is_none(),
        (Unattached, Prospective | Follower) => true,
        (Prospective, Unattached | Follower) => true,
        (Prospective, Prospective) => old.voted.is_none(),
        (Candidate, Leader | Follower | Prospective) => true,
        (Leader, Resigned) => true,
        (Follower, Prospective) => true,
        (Resigned, Follower) => false,
        _ => false,
    };
    vote_kept && leader_kept && order
}

/// Whether a replica whose log ends at `own` may vote for one whose log ends at `theirs`.
pub(crate) fn is_up_to_date(theirs: OffsetAndEpoch, own: OffsetAndEpoch) -> bool {
    theirs >= own
}

/// Later epochs are taken from nobody: no cluster holds that many elections, and there must be room for the next ones.
pub(crate) const EPOCH_MAX: LeaderEpoch = LeaderEpoch(i32::MAX - (1 << 24));

/// Epochs are counted up by one.
pub(crate) fn next_epoch(epoch: LeaderEpoch) -> LeaderEpoch {
    LeaderEpoch(epoch.0.checked_add(1).expect("fewer than 2^31 elections"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use StateName::{Candidate, Follower, Leader, Prospective, Resigned, Unattached};

    const ALL: [StateName; 6] = [Unattached, Prospective, Candidate, Leader, Follower, Resigned];

    fn election(epoch: i32, leader: Option<i32>, voted: Option<i32>) -> ElectionState {
        ElectionState {
            epoch: LeaderEpoch(epoch),
            leader: leader.map(NodeId),
            voted: voted.map(|id| ReplicaKey { id: NodeId(id), directory: None }),
        }
    }

    #[test]
    fn within_an_epoch_only_these_follow() {
        let open = election(3, None, None);
        let allowed: Vec<_> = ALL
            .into_iter()
            .flat_map(|from| ALL.into_iter().map(move |to| (from, to)))
            .filter(|(from, to)| may_follow((*from, &open), (*to, &open)))
            .collect();
        assert_eq!(
            allowed,
            [
                (Unattached, Unattached),
                (Unattached, Prospective),
                (Unattached, Follower),
                (Prospective, Unattached),
                (Prospective, Prospective),
                (Prospective, Follower),
                (Candidate, Prospective),
                (Candidate, Leader),
                (Candidate, Follower),
                (Leader, Resigned),
                (Follower, Prospective),
            ]
        );
    }

    #[test]
    fn votes_and_leaders_stay_within_an_epoch_and_epochs_never_fall() {
        let voted = election(3, None, Some(1));
        assert!(!may_follow((Unattached, &voted), (Unattached, &election(3, None, Some(2)))));
        assert!(!may_follow((Prospective, &voted), (Unattached, &election(3, None, None))));
        let led = election(3, Some(1), None);
        assert!(!may_follow((Follower, &led), (Prospective, &election(3, Some(2), None))));
        for from in ALL {
            for to in ALL {
                assert!(!may_follow((from, &voted), (to, &election(2, None, None))), "{from:?} to {to:?}");
                let higher = may_follow((from, &voted), (to, &election(4, None, None)));
                let expected = matches!(to, Unattached | Follower) || (from == Prospective && to == Candidate);
                assert_eq!(higher, expected, "{from:?} to {to:?}");
            }
        }
    }
}
