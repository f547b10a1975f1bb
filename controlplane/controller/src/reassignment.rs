//! Moving replicas (KIP-455): the target joins beside the present ones, and what is to go goes when the target is in sync.

use base::NodeId;
use image::Partition;

pub struct Reassignment {
    pub replicas: Vec<NodeId>,
    pub removing: Vec<NodeId>,
    pub adding: Vec<NodeId>,
}

fn without(all: &[NodeId], gone: &[NodeId]) -> Vec<NodeId> {
    all.iter().copied().filter(|node| !gone.contains(node)).collect()
}

fn sorted(mut nodes: Vec<NodeId>) -> Vec<NodeId> {
    nodes.sort_unstable();
    nodes
}

/// From where the replicas are to where they shall be: the target first, then what is still to be removed.
pub fn towards(current: &[NodeId], target: &[NodeId]) -> Reassignment {
    let removing = sorted(without(current, target));
    let adding = sorted(without(target, current));
    Reassignment { replicas: target.iter().chain(&removing).copied().collect(), removing, adding }
}

/// Replicas and ISR once a reassignment is over; `None` while it is not, or where there is none.
pub fn completed(
    removing: &[NodeId],
    adding: &[NodeId],
    replicas: &[NodeId],
    isr: &[NodeId],
) -> Option<(Vec<NodeId>, Vec<NodeId>)> {
    if removing.is_empty() && adding.is_empty() {
        return None;
    }
    let (new_isr, new_replicas) = (without(isr, removing), without(replicas, removing));
    if !removing.is_empty() && (new_isr.is_empty() || new_replicas.is_empty()) {
        return None;
    }
    let in_sync = |nodes: &[NodeId]| nodes.iter().all(|node| new_isr.contains(node));
    let done = in_sync(adding) && (adding.len() >= removing.len() || in_sync(&new_replicas));
    done.then_some((new_replicas, new_isr))
}

pub struct Revert {
    pub replicas: Vec<NodeId>,
    pub isr: Vec<NodeId>,
    /// Nothing in sync would be left of what was there before.
    pub unclean: bool,
}

/// Back to where the replicas were; `None` where nothing was there before.
pub fn revert(partition: &Partition) -> Option<Revert> {
    let replicas = without(&partition.replicas, &partition.adding);
    let isr = without(&partition.isr, &partition.adding);
    let first = replicas.first().copied();
    if isr.is_empty() {
        return Some(Revert { isr: vec![first?], replicas, unclean: true });
    }
    Some(Revert { replicas, isr, unclean: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn n(ids: &[i32]) -> Vec<NodeId> {
        ids.iter().map(|id| NodeId(*id)).collect()
    }

    #[test]
    fn a_reassignment_ends_when_what_joins_is_in_sync() {
        let r = towards(&n(&[0, 1, 2]), &n(&[3, 1, 4]));
        assert_eq!(
            (r.replicas.clone(), r.removing.clone(), r.adding.clone()),
            (n(&[3, 1, 4, 0, 2]), n(&[0, 2]), n(&[3, 4]))
        );
        let done = |isr: &[i32]| completed(&r.removing, &r.adding, &r.replicas, &n(isr));
        assert_eq!(done(&[0, 1, 2]), None);
        assert_eq!(done(&[0, 1, 3]), None);
        assert_eq!(done(&[0, 1, 2, 3, 4]), Some((n(&[3, 1, 4]), n(&[1, 3, 4]))));
        // Fewer join than go: the whole target must be in sync.
        assert_eq!(completed(&n(&[2]), &[], &n(&[0, 1, 2]), &n(&[0, 2])), None);
        assert_eq!(completed(&n(&[2]), &[], &n(&[0, 1, 2]), &n(&[0, 1])), Some((n(&[0, 1]), n(&[0, 1]))));
        assert_eq!(completed(&[], &[], &n(&[0]), &n(&[0])), None);
    }
}
