//! The store's stretches as the handoff carries them. The last word counts the bytes that a reader has had already.

use base::{CoreId, PartitionId};
use handoff::Stretch;

pub(crate) fn describe(owner: CoreId, partition: PartitionId, stretch: nvme_log::Stretch) -> Stretch {
    let [a, b, c, d, e] = stretch.to_words();
    Stretch { owner, partition, length: stretch.len() as u32, inside: [a, b, c, d, e, 0] }
}

/// What is to be read, and how many of its first bytes are not wanted.
pub(crate) fn open(stretch: &Stretch) -> Option<(nvme_log::Stretch, usize)> {
    let [a, b, c, d, e, skip] = stretch.inside;
    let opened = nvme_log::Stretch::from_words([a, b, c, d, e])?;
    let skip = usize::try_from(skip).ok()?;
    (skip + stretch.length as usize <= opened.len()).then_some((opened, skip))
}

/// What remains of a stretch after its first `bytes`.
pub(crate) fn after(stretch: &Stretch, bytes: u32) -> Stretch {
    let mut rest = *stretch;
    rest.length -= bytes;
    rest.inside[5] += u64::from(bytes);
    rest
}
