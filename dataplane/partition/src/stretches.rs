//! Parts of answers as the handoff carries them. The last word counts the bytes that a reader has had already.

use base::{CoreId, PartitionId};
use handoff::Stretch;
use nvme_log::LogPosition;

/// In the second word, where a stretch of the store has its extent: no extent has this address.
const BY_POSITION: u64 = u64::MAX;

/// What a description names.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Described {
    /// A stretch of the store, and how many of its first bytes are not wanted.
    Stored(nvme_log::Stretch, usize),
    /// Bytes of the log from here on, wherever they are by now.
    At(LogPosition),
}

pub(crate) fn describe(owner: CoreId, partition: PartitionId, stretch: nvme_log::Stretch) -> Stretch {
    let [a, b, c, d, e] = stretch.to_words();
    Stretch { owner, partition, length: stretch.len() as u32, inside: [a, b, c, d, e, 0] }
}

/// Bytes that are in memory now, so that whoever cannot take them lets them go and asks again.
pub(crate) fn by_position(owner: CoreId, partition: PartitionId, from: LogPosition, length: u32) -> Stretch {
    Stretch { owner, partition, length, inside: [from.0, BY_POSITION, 0, 0, 0, 0] }
}

pub(crate) fn open(stretch: &Stretch) -> Option<Described> {
    let [a, b, c, d, e, skip] = stretch.inside;
    if b == BY_POSITION {
        return Some(Described::At(LogPosition(a.checked_add(skip)?)));
    }
    let opened = nvme_log::Stretch::from_words([a, b, c, d, e])?;
    let skip = usize::try_from(skip).ok()?;
    (skip + stretch.length as usize <= opened.len()).then_some(Described::Stored(opened, skip))
}
