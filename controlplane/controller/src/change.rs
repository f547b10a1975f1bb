//! From what a partition should become to the record that makes it so: elections, ELR (KIP-966), reassignment steps.

use crate::reassignment;
use base::{NodeId, PartitionId, Uuid};
use image::topics::{NO_LEADER, NO_LEADER_CHANGE, NO_RECOVERY_CHANGE, ids};
use image::{MetadataVersion, Partition, Record};
use std::collections::BTreeSet;
use wire::messages::PartitionChangeRecord;

/// Which replicas may be elected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Election {
    /// The preferred replica if it may lead, else the present leader, else anyone who may.
    Preferred,
    /// The present leader if it may lead, else anyone who may.
    Online,
    /// As `Online`, and if there is nobody, any replica that is alive: records may be lost.
    Unclean,
}

/// The change of one partition under way to a record. Fields start as what the partition has.
pub struct PartitionChange<'a> {
    pub partition: &'a Partition,
    pub id: PartitionId,
    /// Whether a node is alive, in charge of its directory, and not on its way out.
    pub acceptable: &'a dyn Fn(NodeId) -> bool,
    /// Where a new replica is put before its broker has said.
    pub default_directory: &'a dyn Fn(NodeId) -> Uuid,
    pub level: MetadataVersion,
    pub min_isr: usize,
    pub elr_enabled: bool,
    pub election: Election,
    pub isr: Vec<NodeId>,
    pub replicas: Vec<NodeId>,
    pub removing: Vec<NodeId>,
    pub adding: Vec<NodeId>,
    pub recovering: bool,
    /// Directories that differ from what the partition has.
    pub directories: Vec<(NodeId, Uuid)>,
    /// A broker that came back after it may have lost what it had: no longer eligible.
    pub unclean_shutdown: Option<NodeId>,
}

struct Elected {
    leader: Option<NodeId>,
    unclean: bool,
}

impl<'a> PartitionChange<'a> {
    pub fn new(
        partition: &'a Partition,
        id: PartitionId,
        acceptable: &'a dyn Fn(NodeId) -> bool,
        default_directory: &'a dyn Fn(NodeId) -> Uuid,
    ) -> PartitionChange<'a> {
        PartitionChange {
            partition,
            id,
            acceptable,
            default_directory,
            level: MetadataVersion::LATEST,
            min_isr: 1,
            elr_enabled: false,
            election: Election::Online,
            isr: partition.isr.to_vec(),
            replicas: partition.replicas.to_vec(),
            removing: partition.removing.to_vec(),
            adding: partition.adding.to_vec(),
            recovering: partition.recovering,
            directories: Vec::new(),
            unclean_shutdown: None,
        }
    }

    /// `None` where nothing would change.
    pub fn build(mut self) -> Option<Record> {
        let before = self.partition;
        let mut record = PartitionChangeRecord {
            partition_id: self.id.index.0,
            topic_id: self.id.topic.0,
            leader: NO_LEADER_CHANGE,
            leader_recovery_state: NO_RECOVERY_CHANGE,
            ..Default::default()
        };
        if let Some((replicas, isr)) = reassignment::completed(&self.removing, &self.adding, &self.replicas, &self.isr)
        {
            (self.replicas, self.isr) = (replicas, isr);
            (self.removing, self.adding) = (Vec::new(), Vec::new());
        }
        let mut elr = self.target_elr();
        self.elect(&mut record, &mut elr);
        // A leader that must stop serving replicas it no longer has learns so by a new epoch.
        if record.leader == NO_LEADER_CHANGE && before.replicas.iter().any(|r| !self.replicas.contains(r)) {
            record.leader = leader_id(before.leader);
        }
        if record.isr.is_some() || !self.elr_enabled {
            // An unclean election starts from nothing.
            elr.clear();
        }
        if elr != *before.eligible_leader_replicas {
            record.eligible_leader_replicas = Some(ids(&elr));
        }
        let may_be_empty = !self.isr.is_empty() || self.elr_enabled;
        if record.isr.is_none() && may_be_empty && self.isr != *before.isr {
            record.isr = Some(ids(&self.isr));
        }
        self.raise_epoch_on_shrink(&mut record);
        self.remember_last_leader(&mut record);
        self.assign(&mut record);
        if self.recovering != before.recovering {
            record.leader_recovery_state = i8::from(self.recovering);
        }
        (!is_no_op(&record)).then(|| Record::new(record, self.level.partition_record_version()))
    }

    /// Members that leave the ISR stay eligible while the rest is below min ISR: they have everything committed.
    fn target_elr(&self) -> Vec<NodeId> {
        let before = self.partition;
        if !self.elr_enabled {
            return before.eligible_leader_replicas.to_vec();
        }
        if self.isr.len() >= self.min_isr {
            return Vec::new();
        }
        let candidates: BTreeSet<NodeId> = before.eligible_leader_replicas.iter().chain(&before.isr).copied().collect();
        let stays = |node: &NodeId| !self.isr.contains(node) && self.unclean_shutdown != Some(*node);
        candidates.into_iter().filter(stays).collect()
    }

    fn may_lead(&self, node: NodeId, elr: &[NodeId]) -> bool {
        let member = self.isr.contains(&node) || (self.isr.is_empty() && elr.contains(&node));
        member && (self.acceptable)(node)
    }

    fn choose(&self, elr: &[NodeId]) -> Elected {
        let clean = |leader| Elected { leader: Some(leader), unclean: false };
        let unclean = |leader| Elected { leader: Some(leader), unclean: true };
        let may_lead = |node: &NodeId| self.may_lead(*node, elr);
        let preferred = self.replicas.first().copied();
        if self.election == Election::Preferred
            && let Some(leader) = preferred.filter(may_lead)
        {
            return clean(leader);
        }
        if let Some(leader) = self.partition.leader.filter(may_lead) {
            return clean(leader);
        }
        if let Some(leader) = self.replicas.iter().copied().find(may_lead) {
            return clean(leader);
        }
        if let Some(leader) = self.last_known_leader(elr) {
            return unclean(leader);
        }
        if self.election == Election::Unclean
            && let Some(leader) = self.replicas.iter().copied().find(|node| (self.acceptable)(*node))
        {
            return unclean(leader);
        }
        Elected { leader: None, unclean: false }
    }

    /// With ISR and ELR empty the one that led last is taken, though it may have lost something.
    fn last_known_leader(&self, elr: &[NodeId]) -> Option<NodeId> {
        match *self.partition.last_known_elr {
            [last] if self.elr_enabled && elr.is_empty() && self.isr.is_empty() && (self.acceptable)(last) => {
                Some(last)
            }
            _ => None,
        }
    }

    fn elect(&mut self, record: &mut PartitionChangeRecord, elr: &mut Vec<NodeId>) {
        let elected = self.choose(elr);
        if elected.leader == self.partition.leader {
            return;
        }
        if let Some(leader) = elected.leader
            && elr.contains(&leader)
        {
            self.isr = vec![leader];
            elr.retain(|node| *node != leader);
        }
        record.leader = leader_id(elected.leader);
        if elected.unclean {
            record.isr = elected.leader.map(|leader| vec![leader.0]);
            if !self.partition.recovering {
                record.leader_recovery_state = 1;
            }
        }
    }

    fn raise_epoch_on_shrink(&self, record: &mut PartitionChangeRecord) {
        let before = self.partition;
        let Some(isr) = &record.isr else { return };
        let shrinks = before.isr.iter().any(|node| !isr.contains(&node.0));
        if self.level.raises_epoch_on_isr_shrink() && record.leader == NO_LEADER_CHANGE && shrinks {
            record.leader = leader_id(before.leader);
        }
    }

    fn remember_last_leader(&self, record: &mut PartitionChangeRecord) {
        let known = &self.partition.last_known_elr;
        if !self.elr_enabled {
            return;
        }
        if record.leader == NO_LEADER && known.is_empty() {
            record.last_known_elr = Some(vec![leader_id(self.partition.leader)]);
        } else if record.leader >= 0 && !known.is_empty() {
            record.last_known_elr = Some(Vec::new());
        }
    }

    fn assign(&self, record: &mut PartitionChangeRecord) {
        let before = self.partition;
        if !self.replicas.is_empty() {
            if self.level.has_directories() {
                let named = |node: NodeId| self.directories.iter().find(|(to, _)| *to == node).map(|(_, d)| *d);
                let place = |node: &NodeId| {
                    let known = named(*node).or_else(|| before.directory(*node));
                    known.unwrap_or_else(|| (self.default_directory)(*node))
                };
                let directories: Vec<Uuid> = self.replicas.iter().map(place).collect();
                if directories != *before.directories {
                    record.directories = Some(directories);
                }
            }
            if self.replicas != *before.replicas {
                record.replicas = Some(ids(&self.replicas));
            }
        }
        if self.removing != *before.removing {
            record.removing_replicas = Some(ids(&self.removing));
        }
        if self.adding != *before.adding {
            record.adding_replicas = Some(ids(&self.adding));
        }
    }
}

fn leader_id(leader: Option<NodeId>) -> i32 {
    leader.map_or(NO_LEADER, |leader| leader.0)
}

fn is_no_op(record: &PartitionChangeRecord) -> bool {
    record.isr.is_none()
        && record.eligible_leader_replicas.is_none()
        && record.last_known_elr.is_none()
        && record.leader == NO_LEADER_CHANGE
        && record.replicas.is_none()
        && record.removing_replicas.is_none()
        && record.adding_replicas.is_none()
        && record.leader_recovery_state == NO_RECOVERY_CHANGE
        && record.directories.is_none()
}
