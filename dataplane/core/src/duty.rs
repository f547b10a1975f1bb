//! Duties as they come over the link, told to this core's partitions.

use crate::message::DutiesForCore;
use base::Now;
use nvme_log::Store;
use partition::{Duty, DutyError, Partitions, Removal};

/// Applies one set; what has no effect is logged with its reason, since an operator must see it.
pub fn apply(now: Now, partitions: &mut Partitions, store: &mut Store, set: DutiesForCore) {
    if set.image {
        partitions.begin_image();
    }
    for duty in set.duties {
        let id = duty.partition;
        if let Err(error) = partitions.apply(now, store, translate(duty)) {
            tell(id, &error);
        }
    }
    for removal in set.removals {
        let removed = Removal { partition: removal.partition, removed_at: removal.removed_at };
        if let Err(error) = partitions.remove(store, removed) {
            tell(removal.partition, &error);
        }
    }
    if set.image {
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
