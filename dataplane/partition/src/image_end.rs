//! What an image did not name, looked for when it has ended: some partitions in every turn, since there may be very many.

use crate::operation::ReplicaToken;
use crate::partitions::Partitions;
use base::PartitionId;
use nvme_log::{LogSlot, Store};

/// Partitions that one turn looks at: one takes up to 200 ns.
pub const LOOKED_AT_A_TURN: usize = 256;
/// Of those, partitions that it puts out of service.
pub const FORGOTTEN_A_TURN: usize = 16;

/// How far the search is, and what it found.
#[derive(Debug, Default)]
pub struct ImageEnd {
    step: Step,
    /// Partitions that were served until then.
    pub unnamed: usize,
    /// Partitions that the store holds and no duty names, the unnamed among them: kept, not served.
    pub strays: usize,
    pub first_stray: Option<PartitionId>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Replicas, from the one in this slot on.
    Replicas(usize),
    Logs(Option<LogSlot>),
    Done,
}

impl Default for Step {
    fn default() -> Step {
        Step::Replicas(0)
    }
}

impl ImageEnd {
    pub fn is_done(&self) -> bool {
        matches!(self.step, Step::Done)
    }
}

impl Partitions {
    /// Goes on with the end of an image: partitions that it did not name are put out of service, and strays are counted.
    /// Returns how many it looked at.
    pub fn end_image(&mut self, store: &mut Store, end: &mut ImageEnd) -> usize {
        match end.step {
            Step::Replicas(from) => self.forget_unnamed(store, end, from),
            Step::Logs(from) => self.count_strays(store, end, from),
            Step::Done => 0,
        }
    }

    fn forget_unnamed(&mut self, store: &mut Store, end: &mut ImageEnd, from: usize) -> usize {
        let (mut looked, mut unnamed) = (0, Vec::new());
        end.step = Step::Logs(None);
        for (token, replica) in self.replicas.iter_from(from) {
            if looked == LOOKED_AT_A_TURN || unnamed.len() == FORGOTTEN_A_TURN {
                end.step = Step::Replicas(token.index());
                break;
            }
            looked += 1;
            if replica.image != self.image {
                unnamed.push(ReplicaToken(token));
            }
        }
        end.unnamed += unnamed.len();
        for token in unnamed {
            self.forget(store, token);
        }
        looked
    }

    fn count_strays(&mut self, store: &Store, end: &mut ImageEnd, from: Option<LogSlot>) -> usize {
        let mut looked = 0;
        end.step = Step::Done;
        for (slot, partition) in store.slots_from(from) {
            if looked == LOOKED_AT_A_TURN {
                end.step = Step::Logs(Some(slot));
                break;
            }
            looked += 1;
            if !self.by_id.contains_key(&partition) {
                end.strays += 1;
                end.first_stray.get_or_insert(partition);
            }
        }
        looked
    }
}
