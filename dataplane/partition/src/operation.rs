//! What is under way for longer than one call: commands that wait for the device, a helper, or durability.

use crate::delete_records::DeleteOperation;
use crate::fetch::FetchOperation;
use crate::internal::{InternalAppendOperation, InternalReadOperation};
use crate::list_offsets::ListOperation;
use crate::produce::ProduceOperation;
use crate::window::WindowOperation;
use base::SlotToken;

/// Names a job that a helper runs; it comes back with the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct OperationToken(pub SlotToken);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ReplicaToken(pub SlotToken);

#[derive(Debug)]
pub(crate) enum Operation {
    Produce(ProduceOperation),
    Fetch(FetchOperation),
    Window(WindowOperation),
    List(ListOperation),
    Delete(DeleteOperation),
    InternalAppend(InternalAppendOperation),
    InternalRead(InternalReadOperation),
}

/// What a read that is under way will bring, and to whom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub operation: OperationToken,
    /// The entry of the operation.
    pub place: usize,
    /// The piece of the answer; none for what a locate has to know first.
    pub piece: Option<usize>,
}

/// Who waits for a job.
#[derive(Clone, Copy, Debug)]
pub(crate) enum JobOwner {
    /// The batch in the partition's queue that carries this number.
    Append {
        replica: ReplicaToken,
        number: u64,
    },
    FindTime {
        operation: OperationToken,
        place: usize,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Timer {
    /// The request's time is over.
    Operation(OperationToken),
    /// An operation goes on that gave way to others.
    Resume(OperationToken),
    ProducerExpiry,
    /// Topics' settings are resolved anew.
    Configure,
    /// The store has room again.
    Retry,
}
