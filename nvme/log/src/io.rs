//! Requests in flight: what each is for, and the splitting of long ones.

use crate::api::{LogSlot, ReadPlan};
use arena::BufferRef;
use base::{BLOCK_SIZE, Block, BlockRange, IdMap, Monotonic, SlotToken, Slots, Tenancy};
use nvme_format::blob::IndexPlace;
use nvme_plan::{Class, Operation, Plan, Promise, Request, Token};

/// What a completion means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A part of the commit that ends with this sequence.
    Commit {
        sequence: u64,
    },
    CommitFlush {
        sequence: u64,
    },
    /// Under `Durability::Cache`: makes everything up to this sequence durable.
    CacheFlush {
        sequence: u64,
    },
    DataFirst {
        slot: LogSlot,
        tenancy: Tenancy,
        from: u64,
        to: u64,
        number: u64,
    },
    CopyOut {
        slot: LogSlot,
        tenancy: Tenancy,
        from: u64,
        to: u64,
        index: Option<IndexPlace>,
    },
    Read(ReadPlan),
    CheckpointBody,
    CheckpointFlush,
    CheckpointRoot,
    CheckpointRootFlush,
    RingZeroes,
    /// Takes a commit back whose flush has failed.
    Withdrawal,
}

pub struct Io {
    waiting: Slots<Purpose>,
    /// Requests in flight on each extent: one that was given up is not free before they are over.
    busy: IdMap<Tenancy, u32>,
    pub plan: Plan,
}

impl Purpose {
    fn tenancy(&self) -> Option<Tenancy> {
        match self {
            Purpose::DataFirst { tenancy, .. } | Purpose::CopyOut { tenancy, .. } => Some(*tenancy),
            Purpose::Read(ReadPlan::Stretch(stretch)) => Some(stretch.tenancy),
            Purpose::Read(ReadPlan::Index(index)) => Some(index.tenancy),
            _ => None,
        }
    }
}

impl Io {
    pub fn new() -> Io {
        Io { waiting: Slots::growable(), busy: IdMap::default(), plan: Plan::new() }
    }

    pub fn emit(&mut self, purpose: Purpose, class: Class, deadline: Option<Monotonic>, operation: Operation) {
        if let Some(tenancy) = purpose.tenancy() {
            *self.busy.entry(tenancy).or_default() += 1;
        }
        let Ok(slot) = self.waiting.insert(purpose) else { unreachable!("the slots grow") };
        self.plan.push_back(Request { token: Token(slot.to_bits()), class, deadline, operation });
    }

    /// What the completed request was for; `None` for one that is not of this store.
    pub fn take(&mut self, token: Token) -> Option<Purpose> {
        let purpose = self.waiting.remove(SlotToken::from_bits(token.0))?;
        if let Some(tenancy) = purpose.tenancy()
            && let Some(count) = self.busy.get_mut(&tenancy)
        {
            *count -= 1;
            if *count == 0 {
                self.busy.remove(&tenancy);
            }
        }
        Some(purpose)
    }

    pub fn is_busy(&self, tenancy: Tenancy) -> bool {
        self.busy.contains_key(&tenancy)
    }

    pub fn in_flight(&self) -> usize {
        self.waiting.len()
    }
}

/// The writes of a contiguous buffer, none longer than the device takes.
pub fn split_write(
    start: Block,
    bytes: &BufferRef,
    transfer_max: u32,
    promise: Promise,
) -> impl Iterator<Item = (BlockRange, Operation)> + '_ {
    assert!(bytes.len().is_multiple_of(BLOCK_SIZE) && !bytes.is_empty());
    let step = transfer_max as usize * BLOCK_SIZE;
    (0..bytes.len()).step_by(step).map(move |from| {
        let to = (from + step).min(bytes.len());
        let range = BlockRange::new(Block(start.0 + (from / BLOCK_SIZE) as u64), ((to - from) / BLOCK_SIZE) as u32);
        (range, Operation::Write { range, pieces: vec![bytes.slice(from..to)], promise })
    })
}
