//! Duties as they come over the link, told to this core's partitions some in every turn.

use crate::message::DutiesForCore;
use base::Now;
use link::Removal as LinkRemoval;
use nvme_log::Store;
use partition::{Duty, DutyError, ImageEnd, Partitions, Removal};

/// Duties and removals that a core applies in one turn: one takes up to 20 us, since a partition's settings are resolved.
pub const DUTIES_A_TURN: usize = 8;

/// A set of duties that is being applied.
pub struct DutiesInHand {
    pub number: u64,
    image: bool,
    duties: std::vec::IntoIter<link::Duty>,
    removals: std::vec::IntoIter<LinkRemoval>,
    /// What an image did not name.
    end: ImageEnd,
    applied: bool,
}

/// Whose the duties are.
pub trait Target {
    fn begin_image(&mut self);
    fn apply(&mut self, duty: link::Duty);
    fn remove(&mut self, removal: LinkRemoval);
    /// Goes on with the end of an image; returns how many partitions it looked at.
    fn end_image(&mut self, end: &mut ImageEnd) -> usize;
}

/// This core's partitions.
pub struct Held<'a> {
    pub now: Now,
    pub partitions: &'a mut Partitions,
    pub store: &'a mut Store,
}

impl Target for Held<'_> {
    fn begin_image(&mut self) {
        self.partitions.begin_image();
    }

    fn apply(&mut self, duty: link::Duty) {
        let id = duty.partition;
        if let Err(error) = self.partitions.apply(self.now, self.store, translate(duty)) {
            tell(id, &error);
        }
    }

    fn remove(&mut self, removal: LinkRemoval) {
        let removed = Removal { partition: removal.partition, removed_at: removal.removed_at };
        if let Err(error) = self.partitions.remove(self.store, removed) {
            tell(removal.partition, &error);
        }
    }

    fn end_image(&mut self, end: &mut ImageEnd) -> usize {
        self.partitions.end_image(self.store, end)
    }
}

impl DutiesInHand {
    pub fn begin(set: DutiesForCore, on: &mut impl Target) -> DutiesInHand {
        if set.image {
            on.begin_image();
        }
        DutiesInHand {
            number: set.number,
            image: set.image,
            duties: set.duties.into_iter(),
            removals: set.removals.into_iter(),
            end: ImageEnd::default(),
            applied: false,
        }
    }

    /// All of them have been told to the partitions.
    pub fn is_applied(&self) -> bool {
        self.applied
    }

    /// Applies some; returns how many. What has no effect is logged with its reason, since an operator must see it.
    pub fn apply_some(&mut self, on: &mut impl Target) -> usize {
        let mut count = 0;
        for duty in self.duties.by_ref().take(DUTIES_A_TURN) {
            count += 1;
            on.apply(duty);
        }
        for removal in self.removals.by_ref().take(DUTIES_A_TURN - count) {
            count += 1;
            on.remove(removal);
        }
        if count < DUTIES_A_TURN && !self.applied {
            if self.image {
                count += on.end_image(&mut self.end);
            }
            self.applied = !self.image || self.end.is_done();
            if self.applied {
                count += 1;
                tell_strays(&self.end);
            }
        }
        count
    }
}

fn tell_strays(end: &ImageEnd) {
    if end.strays > 0 {
        tracing::warn!(
            unnamed = end.unnamed,
            strays = end.strays,
            first = end.first_stray.map(|partition| partition.to_string()),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keeper::tests::{duty, id};

    #[derive(Default)]
    struct Noted {
        images: usize,
        applied: Vec<i32>,
        removed: Vec<i32>,
        ends: usize,
    }

    impl Target for Noted {
        fn begin_image(&mut self) {
            self.images += 1;
        }

        fn apply(&mut self, duty: link::Duty) {
            self.applied.push(duty.partition.index.0);
        }

        fn remove(&mut self, removal: LinkRemoval) {
            self.removed.push(removal.partition.index.0);
        }

        fn end_image(&mut self, end: &mut ImageEnd) -> usize {
            self.ends += 1;
            assert!(!end.is_done());
            5
        }
    }

    fn set(image: bool, duties: i32, removals: i32) -> DutiesForCore {
        let removal = |index| LinkRemoval { partition: id(index), removed_at: 5 };
        let (duties, removals) = ((0..duties).map(duty).collect(), (0..removals).map(removal).collect());
        DutiesForCore { number: 7, image, duties, removals }
    }

    #[test]
    fn a_turn_applies_so_many_and_all_are_applied_in_order() {
        let mut noted = Noted::default();
        let mut duties = DutiesInHand::begin(set(false, 100, 45), &mut noted);
        let mut turns = 0;
        while !duties.is_applied() {
            let before = noted.applied.len() + noted.removed.len();
            duties.apply_some(&mut noted);
            let taken = noted.applied.len() + noted.removed.len() - before;
            assert!(taken <= DUTIES_A_TURN, "{taken} in one turn");
            turns += 1;
        }
        assert_eq!(turns, 145usize.div_ceil(DUTIES_A_TURN));
        assert_eq!((noted.applied, noted.removed), ((0..100).collect(), (0..45).collect()));
        assert_eq!((noted.images, noted.ends, duties.apply_some(&mut Noted::default())), (0, 0, 0));
    }

    #[test]
    fn an_image_ends_in_turns_of_their_own_behind_its_duties() {
        let mut noted = Noted::default();
        let mut duties = DutiesInHand::begin(set(true, DUTIES_A_TURN as i32, 0), &mut noted);
        assert_eq!((duties.apply_some(&mut noted), noted.images, noted.ends), (DUTIES_A_TURN, 1, 0));
        for turn in 1..=3 {
            assert_eq!((duties.apply_some(&mut noted), noted.ends), (5, turn));
            assert!(!duties.is_applied(), "it goes on until it is done");
        }
    }
}
