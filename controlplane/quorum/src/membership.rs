//! Who votes and at which kraft.version, as of every offset of the log: control records take effect when they are
//! appended (KIP-853), and a truncated one never was.

use crate::ids::VoterSet;
use crate::records::Control;
use base::Offset;
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default)]
pub(crate) struct Membership {
    fixed: VoterSet,
    versions: BTreeMap<Offset, i16>,
    voters: BTreeMap<Offset, VoterSet>,
}

impl Membership {
    pub(crate) fn new(fixed: VoterSet) -> Membership {
        Membership { fixed, ..Membership::default() }
    }

    /// Takes note of a control record; those of a snapshot count as of the offset before its end.
    pub(crate) fn note(&mut self, offset: Offset, control: &Control) {
        match control {
            Control::KRaftVersion(level) => {
                self.versions.insert(offset, *level);
            }
            Control::Voters(set) => {
                self.voters.insert(offset, set.clone());
            }
            Control::LeaderChange { .. } | Control::SnapshotHeader { .. } | Control::SnapshotFooter => (),
        }
    }

    /// The voters by the end of the log; the configured ones where the log names none.
    pub(crate) fn voters(&self) -> &VoterSet {
        self.voters.last_key_value().map_or(&self.fixed, |(_, set)| set)
    }

    pub(crate) fn kraft_version(&self) -> i16 {
        self.versions.last_key_value().map_or(0, |(_, level)| *level)
    }

    /// The offset of the record that names the voters; -1 where formatting named them.
    pub(crate) fn voters_offset(&self) -> Option<Offset> {
        self.voters.last_key_value().map(|(offset, _)| *offset)
    }

    pub(crate) fn voters_before(&self, end: Offset) -> &VoterSet {
        self.voters.range(..end).next_back().map_or(&self.fixed, |(_, set)| set)
    }

    pub(crate) fn kraft_version_before(&self, end: Offset) -> i16 {
        self.versions.range(..end).next_back().map_or(0, |(_, level)| *level)
    }

    pub(crate) fn truncate_to(&mut self, end: Offset) {
        self.versions.split_off(&end);
        self.voters.split_off(&end);
    }

    /// The log was replaced by a snapshot.
    pub(crate) fn clear(&mut self) {
        self.versions.clear();
        self.voters.clear();
    }

    /// Forgets what was superseded before `start`.
    pub(crate) fn drop_before(&mut self, start: Offset) {
        fn drop<T>(map: &mut BTreeMap<Offset, T>, start: Offset) {
            if let Some(kept) = map.range(..start).next_back().map(|(offset, _)| *offset) {
                *map = map.split_off(&kept);
            }
        }
        drop(&mut self.versions, start);
        drop(&mut self.voters, start);
    }
}
