//! What a run of the dataplane means for the broker's registration (design 04, "a dataplane run never continues an
//! epoch"): a pure table over what is registered, what the last run's file says, and what the dataplane says of itself.

use crate::run_record::RunRecord;
use base::{BrokerEpoch, Uuid};

/// The registration as the log has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Registered {
    pub incarnation: Uuid,
    pub epoch: BrokerEpoch,
    pub fenced: bool,
    pub in_controlled_shutdown: bool,
}

/// What the dataplane says of its run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub id: Uuid,
    pub boot_id: String,
    pub clean_stop: bool,
    pub damaged: bool,
    pub durability_cache: bool,
}

impl Run {
    /// The run before may have lost something it reported: then its promises must leave ISR and ELR.
    fn may_have_lost(&self, last: &RunRecord) -> bool {
        self.damaged || (self.durability_cache && !self.clean_stop && self.boot_id != last.boot_id)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The same run under the registration it has: nothing is fenced.
    Keep,
    /// Another run: fenced first, so that every partition it led gets a new leader epoch; the registration stays.
    Fence,
    /// A new registration. What is registered under another incarnation is fenced first, which makes way for it at once.
    Register {
        /// The one of the file, where it was chosen before and did not get into the log.
        chosen: Option<Uuid>,
        previous_epoch: Option<i64>,
    },
}

pub(crate) fn decide(registered: Option<&Registered>, last: Option<&RunRecord>, run: &Run) -> Decision {
    let same_run = last.filter(|last| last.run == run.id);
    match (registered, last) {
        (None, _) => Decision::Register { chosen: same_run.map(|last| last.incarnation), previous_epoch: None },
        (Some(registered), Some(last)) if registered.incarnation == last.incarnation => {
            // A registration in controlled shutdown never serves again (KIP-631): its successor is another one.
            match (registered.in_controlled_shutdown, last.run == run.id) {
                (true, true) => Decision::Register { chosen: None, previous_epoch: Some(registered.epoch.0) },
                (false, true) => Decision::Keep,
                _ if run.may_have_lost(last) => Decision::Register { chosen: None, previous_epoch: None },
                (true, false) => Decision::Register { chosen: None, previous_epoch: Some(registered.epoch.0) },
                (false, false) => Decision::Fence,
            }
        }
        // The file was written for this run and the node ended before the registration.
        (Some(_), Some(last)) if last.run == run.id => {
            Decision::Register { chosen: Some(last.incarnation), previous_epoch: last.previous_epoch }
        }
        // Nobody knows what stood behind that registration: another dataplane, perhaps another product.
        (Some(_), _) => Decision::Register { chosen: None, previous_epoch: None },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPOCH: i64 = 40;

    fn registered(incarnation: u128, in_controlled_shutdown: bool) -> Registered {
        let (incarnation, epoch) = (Uuid(incarnation), BrokerEpoch(EPOCH));
        Registered { incarnation, epoch, fenced: false, in_controlled_shutdown }
    }

    fn last(run: u128, incarnation: u128) -> RunRecord {
        let boot_id = "boot".to_owned();
        RunRecord { run: Uuid(run), boot_id, incarnation: Uuid(incarnation), previous_epoch: Some(7) }
    }

    fn run(id: u128) -> Run {
        let boot_id = "boot".to_owned();
        Run { id: Uuid(id), boot_id, clean_stop: false, damaged: false, durability_cache: false }
    }

    fn anew(previous_epoch: Option<i64>) -> Decision {
        Decision::Register { chosen: None, previous_epoch }
    }

    #[test]
    fn every_case() {
        let (a, shut) = (registered(1000, false), registered(1000, true));
        let (same, other, foreign) = (last(1, 1000), last(2, 1000), last(1, 2000));
        let chosen = |previous_epoch| Decision::Register { chosen: Some(Uuid(2000)), previous_epoch };
        let cases = [
            (None, None, anew(None)),
            (None, Some(&foreign), chosen(None)),
            (None, Some(&other), anew(None)),
            (Some(&a), None, anew(None)),
            (Some(&a), Some(&same), Decision::Keep),
            (Some(&a), Some(&other), Decision::Fence),
            (Some(&a), Some(&foreign), chosen(Some(7))),
            (Some(&a), Some(&last(2, 2000)), anew(None)),
            (Some(&shut), Some(&same), anew(Some(EPOCH))),
            (Some(&shut), Some(&other), anew(Some(EPOCH))),
        ];
        for (registered, last, expected) in cases {
            assert_eq!(decide(registered, last, &run(1)), expected, "{registered:?} {last:?}");
        }
    }

    #[test]
    fn what_may_have_lost_something_is_another_incarnation() {
        let (a, other, same) = (registered(1000, false), last(2, 1000), last(1, 1000));
        let damaged = Run { damaged: true, ..run(1) };
        assert_eq!(decide(Some(&a), Some(&other), &damaged), anew(None));
        assert_eq!(decide(Some(&a), Some(&same), &damaged), Decision::Keep, "it was judged when the run began");
        let elsewhere = Run { durability_cache: true, boot_id: "another".into(), ..run(1) };
        assert_eq!(decide(Some(&a), Some(&other), &elsewhere), anew(None));
        for kept in [
            Run { clean_stop: true, ..elsewhere.clone() },
            Run { durability_cache: false, ..elsewhere.clone() },
            Run { boot_id: "boot".into(), ..elsewhere.clone() },
        ] {
            assert_eq!(decide(Some(&a), Some(&other), &kept), Decision::Fence, "{kept:?}");
        }
        let shut = registered(1000, true);
        assert_eq!(decide(Some(&shut), Some(&other), &elsewhere), anew(None));
    }
}
