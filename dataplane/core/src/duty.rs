//! Duties as they come over the link, told to this core's partitions some in every turn.

use crate::message::DutiesForCore;
use base::Now;
use link::Removal as LinkRemoval;
use nvme_log::Store;
use partition::{Duty, DutyError, Partitions, Removal};

/// Duties and removals that a core applies in one turn: one takes up to 20 us, since a partition's settings are resolved.
pub const DUTIES_A_TURN: usize = 8;

/// A set of duties that is being applied.
pub struct DutiesInHand {
    pub number: u64,
    image: bool,
    duties: std::vec::IntoIter<link::Duty>,
    removals: std::vec::IntoIter<LinkRemoval>,
    applied: bool,
}

impl DutiesInHand {
    pub fn begin(partitions: &mut Partitions, set: DutiesForCore) -> DutiesInHand {
        if set.image {
            partitions.begin_image();
        }
        DutiesInHand {
            number: set.number,
            image: set.image,
            duties: set.duties.into_iter(),
            removals: set.removals.into_iter(),
            applied: false,
        }
    }

    /// All of them have been told to the partitions.
    pub fn is_applied(&self) -> bool {
        self.applied
    }

    /// Applies some; returns how many. What has no effect is logged with its reason, since an operator must see it.
    pub fn apply_some(&mut self, now: Now, partitions: &mut Partitions, store: &mut Store) -> usize {
        let mut count = 0;
        for duty in self.duties.by_ref().take(DUTIES_A_TURN) {
            count += 1;
            let id = duty.partition;
            if let Err(error) = partitions.apply(now, store, translate(duty)) {
                tell(id, &error);
            }
        }
        for removal in self.removals.by_ref().take(DUTIES_A_TURN - count) {
            count += 1;
            let removed = Removal { partition: removal.partition, removed_at: removal.removed_at };
            if let Err(error) = partitions.remove(store, removed) {
                tell(removal.partition, &error);
            }
        }
        if count < DUTIES_A_TURN && !self.applied {
            self.applied = true;
            count += 1;
            if self.image {
                end_image(partitions, store);
            }
        }
        count
    }
}

fn end_image(partitions: &mut Partitions, store: &mut Store) {
    let unnamed = partitions.end_image(store);
    let strays = partitions.strays(store);
    if !unnamed.is_empty() || !strays.is_empty() {
        tracing::warn!(
            unnamed = unnamed.len(),
            strays = strays.len(),
            first = strays.first().map(|partition| partition.to_string()),
            "partitions that the metadata does not name are kept and not served"
        );
    }
}

fn tell(partition: base::PartitionId, error: &DutyError) {
    match error {
        // The link states things again after a reconnect: nothing is wrong.
        DutyError::Old => tracing::debug!(%partition, "an older duty is skipped"),
        DutyError::EpochOfEarlierRun { epoch } => {
            tracing::info!(%partition, epoch = epoch.0, "not led under an epoch of an earlier run; a new one is awaited");
        }
        DutyError::CreatedLater => tracing::warn!(%partition, "a removal older than the partition is refused"),
        DutyError::Full => {
            tracing::error!(%partition, "the namespace is full: delete topics or enlarge it, and it is made")
        }
        DutyError::Stopped => tracing::error!(%partition, "the namespace has stopped"),
        DutyError::Suspect { from } => {
            tracing::error!(%partition, from = from.0, "records may be lost from this offset on; not served until repaired");
        }
        DutyError::Settings(reason) => tracing::error!(%partition, reason, "the topic's settings are not valid"),
    }
}

fn translate(duty: link::Duty) -> Duty {
    Duty {
        partition: duty.partition,
        topic_name: duty.topic_name,
        created_at: duty.created_at,
        leader: duty.leader,
        leader_epoch: duty.leader_epoch,
        partition_epoch: duty.partition_epoch,
        replicas: duty.replicas,
        isr: duty.isr,
        config: duty.config,
    }
}
