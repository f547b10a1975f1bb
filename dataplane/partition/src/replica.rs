//! One partition on this core: role, watermark, settings, and who waits for what.

use crate::acknowledge::Acknowledgements;
use crate::append::AppendQueue;
use crate::byte_count::ByteCount;
use crate::duties::Duty;
use crate::operation::OperationToken;
use crate::topic_rules::{log_config, produce_rules};
use crate::watch::Watcher;
use base::{LeaderEpoch, NodeId, Offset, PartitionEpoch, PartitionId, WallMillis};
use batch::Rules;
use handoff::EntryIndex;
use nvme_log::{LogConfig, LogSlot};
use settings::TopicSettings;
use std::collections::BTreeMap;

/// The part this node plays now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Leader {
        epoch: LeaderEpoch,
    },
    /// It has led, nobody leads now, and no other node was in sync: a node that stops. It takes nothing, and what its log
    /// holds is what any leader will have: what is on its way to the medium is acknowledged when it is there.
    Sole {
        epoch: LeaderEpoch,
    },
    /// Also a leader that may not lead under the epoch it was given: it is of an earlier run (design 04).
    Follower {
        epoch: LeaderEpoch,
    },
}

impl Standing {
    pub(crate) fn epoch(self) -> LeaderEpoch {
        match self {
            Standing::Leader { epoch } | Standing::Sole { epoch } | Standing::Follower { epoch } => epoch,
        }
    }
}

/// A DeleteRecords entry that waits for the log's start to be durable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitingDelete {
    pub to: Offset,
    pub operation: OperationToken,
    pub index: EntryIndex,
}

#[derive(Debug)]
pub(crate) struct Replica {
    pub id: PartitionId,
    pub log: LogSlot,
    pub standing: Standing,
    /// Where the log ended when this node began to lead under the present epoch.
    pub epoch_start: Offset,
    pub partition_epoch: PartitionEpoch,
    pub replicas: usize,
    /// Committed members of the ISR; of one that has resigned alone, itself, whose place in it is the ELR's now (KIP-966).
    pub isr: Vec<NodeId>,
    /// Durable ends that the ISR's other members have told.
    pub others: BTreeMap<NodeId, Offset>,
    /// What the topic sets itself.
    pub overrides: BTreeMap<String, String>,
    pub settings: TopicSettings,
    pub rules: Rules,
    pub high_watermark: Offset,
    /// A wall clock that steps back lowers no append time.
    pub last_append_time: WallMillis,
    pub queue: AppendQueue,
    pub acknowledgements: Acknowledgements,
    pub watchers: Vec<Watcher>,
    pub deletes: Vec<WaitingDelete>,
    pub bytes: ByteCount,
    /// Its storage stopped: everything is refused.
    pub failed: bool,
    /// Duties of which image it was named in last.
    pub image: u64,
}

impl Replica {
    pub(crate) fn leader_epoch(&self) -> Option<LeaderEpoch> {
        match self.standing {
            Standing::Leader { epoch } => Some(epoch),
            Standing::Sole { .. } | Standing::Follower { .. } => None,
        }
    }

    pub(crate) fn is_leader(&self) -> bool {
        matches!(self.standing, Standing::Leader { .. })
    }

    pub(crate) fn configure(&mut self, settings: TopicSettings, inflate_max: usize) -> LogConfig {
        let config = log_config(&settings);
        self.rules = produce_rules(&settings, inflate_max);
        self.settings = settings;
        config
    }

    /// min.insync.replicas, of which there can be no more than replicas (KIP-966).
    pub(crate) fn min_isr(&self) -> usize {
        (self.settings.min_insync_replicas as usize).min(self.replicas)
    }

    pub(crate) fn has_min_isr(&self) -> bool {
        self.isr.len() >= self.min_isr()
    }

    /// Whether it has led with nobody else in sync, and by this duty nobody leads: what stands here is the log.
    pub(crate) fn resigns_alone(&self, node: NodeId, duty: &Duty) -> bool {
        let was_alone = !matches!(self.standing, Standing::Follower { .. }) && self.isr == [node];
        was_alone && duty.leader.is_none() && duty.isr.iter().all(|member| *member == node)
    }

    /// The watermark that durable ends allow (design 08, item 12): the smallest among the leader and the maximal ISR,
    /// never lower than it was, and unmoved below the minimum ISR.
    pub(crate) fn watermark(&self, durable: Offset) -> Offset {
        if matches!(self.standing, Standing::Follower { .. }) || !self.has_min_isr() {
            return self.high_watermark;
        }
        let least = self.others.values().copied().fold(durable, Offset::min);
        least.max(self.high_watermark)
    }
}
