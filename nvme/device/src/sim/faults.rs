//! What the simulated device does wrong, how often, and a record of what it did, so that a model knows which damage it
//! must see reported.

use base::{Block, BlockRange, Random};
use std::time::Duration;

/// How often something happens, in cases of a million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PerMillion(pub u32);

impl PerMillion {
    pub const NEVER: PerMillion = PerMillion(0);
    pub const ALWAYS: PerMillion = PerMillion(1_000_000);

    pub(crate) fn strikes(self, random: &mut Random) -> bool {
        // Zero draws nothing, so that a plan without faults leaves the stream of latencies as it is.
        self.0 > 0 && random.chance(u64::from(self.0), 1_000_000)
    }
}

/// Probabilities per request. An error strikes once: the same request sent again meets a fresh draw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    pub read_error: PerMillion,
    /// The write fails; any subset of its blocks may have landed.
    pub write_error: PerMillion,
    /// The flush fails; as with the kernel's page cache, no later flush makes up for what it should have covered.
    pub flush_error: PerMillion,
    /// A growth finds no room.
    pub growth_refused: PerMillion,
    /// The write completes and nothing was written.
    pub dropped_write: PerMillion,
    /// The write lands a second time, some time after it completed.
    pub duplicated_write: PerMillion,
    /// The write completes and landed elsewhere.
    pub misdirected_write: PerMillion,
    /// A bit of the blocks about to be read has flipped at rest, for good.
    pub bit_rot: PerMillion,
    /// The request completes only after `stall_for`.
    pub stall: PerMillion,
    pub stall_for: Duration,
    /// The device is gone from this request on.
    pub disappears: PerMillion,
}

impl FaultPlan {
    pub fn none() -> FaultPlan {
        FaultPlan::default()
    }
}

/// A fault that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectedFault {
    ReadError(BlockRange),
    WriteError(BlockRange),
    FlushError,
    GrowthRefused,
    DroppedWrite(BlockRange),
    DuplicatedWrite(BlockRange),
    MisdirectedWrite {
        meant: BlockRange,
        landed: BlockRange,
    },
    BitFlip(Block),
    Stall,
    /// A block being rewritten when power went holds neither its old nor its new contents.
    TornBlock(Block),
    Disappeared,
}
