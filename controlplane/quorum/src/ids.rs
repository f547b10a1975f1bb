//! The quorum's ids: log positions by epoch, replicas, endpoints and voter sets.

use base::{LeaderEpoch, NodeId, Offset, Uuid};
use std::collections::BTreeMap;
use std::fmt;

/// An end of a log: the offset after its last record, and that record's epoch. Ordered as Raft orders logs: by epoch,
/// then by offset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct OffsetAndEpoch {
    pub offset: Offset,
    pub epoch: LeaderEpoch,
}

impl PartialOrd for OffsetAndEpoch {
    fn partial_cmp(&self, other: &OffsetAndEpoch) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for OffsetAndEpoch {
    fn cmp(&self, other: &OffsetAndEpoch) -> std::cmp::Ordering {
        (self.epoch, self.offset).cmp(&(other.epoch, other.offset))
    }
}

/// A snapshot is named by the end of the log that it replaces.
pub type SnapshotId = OffsetAndEpoch;

impl OffsetAndEpoch {
    /// The snapshot that formatting writes.
    pub const BOOTSTRAP: SnapshotId = OffsetAndEpoch { offset: Offset(0), epoch: LeaderEpoch(0) };

    /// Reads the stem of a snapshot's file name: twenty digits of offset, ten of epoch.
    pub fn parse(stem: &str) -> Option<SnapshotId> {
        let (offset, epoch) = stem.split_once('-')?;
        let digits = |s: &str, n: usize| s.len() == n && s.bytes().all(|b| b.is_ascii_digit());
        if !digits(offset, 20) || !digits(epoch, 10) {
            return None;
        }
        Some(OffsetAndEpoch { offset: Offset(offset.parse().ok()?), epoch: LeaderEpoch(epoch.parse().ok()?) })
    }
}

impl fmt::Display for OffsetAndEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:020}-{:010}", self.offset.0, self.epoch.0)
    }
}

/// A replica: a node on a disk. The directory is absent where kraft.version 0 knows only node ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaKey {
    pub id: NodeId,
    pub directory: Option<Uuid>,
}

impl ReplicaKey {
    /// Whether both may name the same replica: equal ids, and equal directories where both state one.
    pub fn matches(&self, other: &ReplicaKey) -> bool {
        self.id == other.id
            && match (self.directory, other.directory) {
                (Some(a), Some(b)) => a == b,
                _ => true,
            }
    }
}

impl fmt::Display for ReplicaKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.directory {
            Some(directory) => write!(f, "{}@{directory}", self.id),
            None => self.id.fmt(f),
        }
    }
}

/// A listener of a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub listener: String,
    pub host: String,
    pub port: u16,
}

/// The kraft.version levels that a voter supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KRaftVersionRange {
    pub min: i16,
    pub max: i16,
}

impl KRaftVersionRange {
    /// Both: static voter sets (0) and voter sets in the log (1, KIP-853).
    pub const OURS: KRaftVersionRange = KRaftVersionRange { min: 0, max: 1 };
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Voter {
    pub key: ReplicaKey,
    pub endpoints: Vec<Endpoint>,
    pub versions: KRaftVersionRange,
}

/// Who votes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VoterSet {
    voters: BTreeMap<NodeId, Voter>,
}

impl VoterSet {
    pub fn new(voters: impl IntoIterator<Item = Voter>) -> VoterSet {
        VoterSet { voters: voters.into_iter().map(|v| (v.key.id, v)).collect() }
    }

    pub fn is_empty(&self) -> bool {
        self.voters.is_empty()
    }

    pub fn len(&self) -> usize {
        self.voters.len()
    }

    /// The smallest number of voters that is more than half of them.
    pub fn majority(&self) -> usize {
        self.voters.len() / 2 + 1
    }

    pub fn iter(&self) -> impl Iterator<Item = &Voter> {
        self.voters.values()
    }

    pub fn get(&self, id: NodeId) -> Option<&Voter> {
        self.voters.get(&id)
    }

    pub fn contains(&self, key: &ReplicaKey) -> bool {
        self.voters.get(&key.id).is_some_and(|v| v.key.matches(key))
    }

    pub fn is_only(&self, key: &ReplicaKey) -> bool {
        self.voters.len() == 1 && self.contains(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn voter(id: i32, directory: u128) -> Voter {
        Voter {
            key: ReplicaKey { id: NodeId(id), directory: Some(Uuid(directory)) },
            endpoints: Vec::new(),
            versions: KRaftVersionRange::OURS,
        }
    }

    #[test]
    fn logs_are_ordered_by_epoch_first() {
        let end = |epoch, offset| OffsetAndEpoch { offset: Offset(offset), epoch: LeaderEpoch(epoch) };
        assert!(end(2, 5) > end(1, 100));
        assert!(end(2, 6) > end(2, 5));
    }

    #[test]
    fn a_voter_is_an_id_on_its_directory() {
        let set = VoterSet::new([voter(1, 7), voter(2, 8), voter(3, 9)]);
        let key = |id, directory: Option<u128>| ReplicaKey { id: NodeId(id), directory: directory.map(Uuid) };
        assert!(set.contains(&key(1, Some(7))));
        assert!(set.contains(&key(1, None)));
        assert!(!set.contains(&key(1, Some(8))), "a replaced disk is another replica");
        assert!(!set.contains(&key(4, None)));
        assert_eq!(set.majority(), 2);
        assert_eq!(VoterSet::new([voter(1, 1), voter(2, 2), voter(3, 3), voter(4, 4)]).majority(), 3);
    }
}
