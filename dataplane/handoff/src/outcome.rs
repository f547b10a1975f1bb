//! What the owner of partitions answers. Entries come back in any order and name their place in the request.

use crate::command::{EntryIndex, GatherId, Stretch};
use crate::error::*;
use arena::Parcel;
use base::{LeaderEpoch, Offset, PartitionId, ProducerEpoch, ProducerId, Sequence};

#[derive(Debug)]
pub enum Outcome {
    /// One for each entry of a Produce, as each is done; the command's credit returns with the last.
    Produced {
        gather: GatherId,
        last: bool,
        entries: Vec<Produced>,
    },
    Fetched {
        gather: GatherId,
        entries: Vec<Fetched>,
    },
    /// Something changed for a waiting fetch: more bytes are readable, or a partition's answer changed. Sent unasked.
    FetchNews {
        gather: GatherId,
        entries: Vec<FetchNews>,
    },
    Window {
        gather: GatherId,
        result: Result<Window, FetchError>,
    },
    OffsetsListed {
        gather: GatherId,
        entries: Vec<(EntryIndex, Result<ListedOffset, ListOffsetsError>)>,
    },
    EpochEnds {
        gather: GatherId,
        entries: Vec<(EntryIndex, Result<EpochEnd, PartitionError>)>,
    },
    RecordsDeleted {
        gather: GatherId,
        entries: Vec<(EntryIndex, Result<Offset, DeleteRecordsError>)>,
    },
    ProducersDescribed {
        gather: GatherId,
        entries: Vec<(EntryIndex, Result<Vec<ProducerFacts>, PartitionError>)>,
    },
    /// Sizes, and the namespace's own: bytes in all, and bytes that appends could still take.
    LogsDescribed {
        gather: GatherId,
        logs: Vec<LogFacts>,
        total: u64,
        usable: u64,
    },
    /// The offset of its first record, once all of it is below the high watermark.
    InternalAppended {
        id: u64,
        result: Result<Offset, InternalAppendError>,
    },
    InternalRead {
        id: u64,
        result: Result<InternalSlice, FetchError>,
    },
}

#[derive(Debug)]
pub struct Produced {
    pub index: EntryIndex,
    pub result: Result<Appended, ProduceError>,
    /// The current leader epoch, for the response's CurrentLeader (KIP-951).
    pub epoch: Option<LeaderEpoch>,
    pub log_start: Offset,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    pub base_offset: Offset,
    /// Broker time on LogAppendTime topics, `None` on CreateTime ones.
    pub append_time: Option<i64>,
    pub log_start: Offset,
}

#[derive(Debug)]
pub struct Fetched {
    pub index: EntryIndex,
    pub result: Result<FetchedRecords, FetchError>,
}

/// Answer for one partition; the offsets were taken before the read (design 08, item 8).
#[derive(Debug, Default)]
pub struct FetchedRecords {
    pub high_watermark: Offset,
    pub last_stable_offset: Offset,
    pub log_start: Offset,
    /// Aborted ranges that overlap what was read; only for committed reads.
    pub aborted: Vec<(ProducerId, Offset)>,
    /// Where the reader's log parts from ours (KIP-595): epoch and its end offset.
    pub diverging: Option<(LeaderEpoch, Offset)>,
    /// The first bytes of the answer, ready to send: whole stretches, already verified.
    pub ready: Vec<Parcel>,
    /// Describes `ready`, for a reader that cannot take it now: the bytes are let go and asked for again. `None` where
    /// nothing is ready.
    pub again: Option<Stretch>,
    /// What follows `ready`, to be asked for by `ReadWindow` as the socket drains.
    pub rest: Vec<Stretch>,
    /// Bytes of `ready` and `rest` together.
    pub bytes: u32,
    /// Length of the first batch; it is returned whole however small the limits are.
    pub first_batch: u32,
}

/// A waiting fetch's partition moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchNews {
    pub index: EntryIndex,
    /// Bytes now readable from the fetch offset, as far as the owner counts them (up to the entry's limit).
    pub readable: u32,
    /// The answer must be taken now: an error, a divergence, leadership moved.
    pub urgent: bool,
}

#[derive(Debug)]
pub struct Window {
    /// Each with its description, as `FetchedRecords::again`.
    pub pieces: Vec<(Parcel, Stretch)>,
    /// What is still to be read after this window.
    pub rest: Vec<Stretch>,
}

/// `offset` None is "no record at or after the time": offset -1, timestamp -1 on the wire, no error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedOffset {
    pub offset: Option<Offset>,
    pub timestamp: Option<i64>,
    pub epoch: Option<LeaderEpoch>,
}

/// (-1, -1) on the wire where either is None (OffsetForLeaderEpoch, KIP-101).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochEnd {
    pub epoch: Option<LeaderEpoch>,
    pub end: Option<Offset>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerFacts {
    pub id: ProducerId,
    pub epoch: ProducerEpoch,
    pub last_sequence: Option<Sequence>,
    pub last_timestamp: i64,
    pub coordinator_epoch: Option<i32>,
    pub transaction_start: Option<Offset>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogFacts {
    pub partition: PartitionId,
    /// Bytes of record batches from log start to log end.
    pub size: u64,
    /// How far a follower's log end is behind the high watermark; 0 for leaders.
    pub lag: u64,
    pub future: bool,
}

#[derive(Debug)]
pub struct InternalSlice {
    pub pieces: Vec<Parcel>,
    pub high_watermark: Offset,
    pub log_start: Offset,
    /// First offset after the slice.
    pub next: Offset,
}
