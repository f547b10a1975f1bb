//! What one core asks of another. One command per (request, core) at a time; entries keep the order of the request.

use arena::Parcel;
use base::{CoreId, LeaderEpoch, Monotonic, NodeId, Offset, PartitionId};

/// The gather slot that waits for this command's outcome, on the core that sent it (a `base::slots` token).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GatherId {
    pub core: CoreId,
    pub slot: u32,
    pub generation: u32,
}

/// The place of an entry in its request, so that the gather slot can put answers in request order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryIndex(pub u32);

#[derive(Debug)]
pub enum Command {
    Produce(Produce),
    Fetch(Fetch),
    /// More bytes of an answer whose descriptors the session holds, as the socket drains.
    ReadWindow(ReadWindow),
    /// The gather slot waits no more, is done or gone: its waiters leave all lists at once. Has no outcome itself; a
    /// command of it that is under way still has its own.
    Cancel(GatherId),
    ListOffsets(ListOffsets),
    EpochEnds(EpochEnds),
    DeleteRecords(DeleteRecords),
    DescribeProducers(DescribeProducers),
    DescribeLogs(DescribeLogs),
    /// An append or a read for a coordinator of the local control plane.
    Internal(Internal),
}

/// Which answer a Produce waits for (Kafka's `acks`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acks {
    None,
    Leader,
    All,
}

#[derive(Debug)]
pub struct Produce {
    pub gather: GatherId,
    pub acks: Acks,
    /// Produce version of the request: zstd needs 7, and transactional rules differ from 12.
    pub version: i16,
    pub transactional: bool,
    /// Until when the answer may wait for replicas.
    pub deadline: Monotonic,
    pub entries: Vec<ProduceEntry>,
}

#[derive(Debug)]
pub struct ProduceEntry {
    pub index: EntryIndex,
    pub partition: PartitionId,
    /// Bytes of the record set exactly as received; `None` where the request carried null.
    pub records: Option<Parcel>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    ReadUncommitted,
    ReadCommitted,
}

/// Who reads: a consumer sees what is committed, a follower up to the log's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    Consumer(Isolation),
    Follower(NodeId),
    /// Kafka's debugging consumer (replica id -2): up to the log's end, without being a replica.
    Debugging,
}

#[derive(Debug)]
pub struct Fetch {
    pub gather: GatherId,
    pub reader: Reader,
    /// The whole response's limit; every core answers up to it, the gather slot cuts.
    pub bytes_max: u32,
    /// Of the answer's bytes, those that may be in memory; the rest is described.
    pub ready_max: u32,
    /// The request has more entries than go at once, and some of them came before: what they registered stays.
    pub goes_on: bool,
    /// Some of them have bytes: a first batch here that does not fit is left out.
    pub has_bytes: bool,
    /// With `true`, and where no entry was refused or parts from the log and this core's bytes stay below `bytes_min`,
    /// every entry waits and tells of growth by `Outcome::FetchNews`, until this core alone has told of `bytes_min`, or
    /// of something urgent; `Cancel` and the gather's next Fetch that does not go on end it.
    pub wait: bool,
    /// The whole request's `fetch.min.bytes`: a core that reaches it alone needs no waiters, and no `Cancel` after.
    pub bytes_min: u32,
    pub entries: Vec<FetchEntry>,
}

#[derive(Clone, Debug)]
pub struct FetchEntry {
    pub index: EntryIndex,
    pub partition: PartitionId,
    /// The epoch the client believes in; `None` skips the check.
    pub current_epoch: Option<LeaderEpoch>,
    pub last_fetched_epoch: Option<LeaderEpoch>,
    pub offset: Offset,
    /// A follower's log start; `None` for consumers.
    pub log_start: Option<Offset>,
    /// `None` is a size below zero, with which nothing can be read: refused where there is something.
    pub bytes_max: Option<u32>,
}

/// Asks for the bytes of descriptors in order, at most `bytes_max` of them.
#[derive(Debug)]
pub struct ReadWindow {
    pub gather: GatherId,
    pub stretches: Vec<Stretch>,
    pub bytes_max: u32,
}

/// A range of stored bytes as its owner names it; opaque elsewhere. It keeps a freed extent from reuse for 60 s at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    pub owner: CoreId,
    pub partition: PartitionId,
    /// Bytes from here on that belong to the answer.
    pub length: u32,
    /// The owner's own description (extent, tenancy, position, checksum place); the last word counts the bytes that the
    /// reader has had already.
    pub inside: [u64; 6],
}

impl Stretch {
    /// What remains after the first `bytes` of it.
    pub fn after(&self, bytes: u32) -> Stretch {
        let mut rest = *self;
        rest.length -= bytes;
        rest.inside[5] += u64::from(bytes);
        rest
    }

    /// The first `bytes` of it.
    pub fn first(&self, bytes: u32) -> Stretch {
        assert!(bytes <= self.length, "{bytes} of {} bytes", self.length);
        Stretch { length: bytes, ..*self }
    }

    /// Takes `next` in where it goes on just where this ends; says whether it did.
    pub fn join(&mut self, next: &Stretch) -> bool {
        let same = self.owner == next.owner && self.partition == next.partition && self.inside[..5] == next.inside[..5];
        let follows = same && self.inside[5] + u64::from(self.length) == next.inside[5];
        if follows {
            self.length += next.length;
        }
        follows
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffsetQuery {
    /// -1
    Latest,
    /// -2
    Earliest,
    /// -3 (KIP-734)
    MaxTimestamp,
    /// -4 (KIP-405): without remote storage the same as earliest.
    EarliestLocal,
    /// -5 (KIP-1005)
    LatestTiered,
    /// -6 (KIP-1023)
    EarliestPendingUpload,
    At(i64),
}

#[derive(Debug)]
pub struct ListOffsets {
    pub gather: GatherId,
    pub reader: Reader,
    pub version: i16,
    pub entries: Vec<ListOffsetsEntry>,
}

#[derive(Clone, Debug)]
pub struct ListOffsetsEntry {
    pub index: EntryIndex,
    pub partition: PartitionId,
    pub current_epoch: Option<LeaderEpoch>,
    pub query: OffsetQuery,
}

#[derive(Debug)]
pub struct EpochEnds {
    pub gather: GatherId,
    pub entries: Vec<EpochEndsEntry>,
}

#[derive(Clone, Debug)]
pub struct EpochEndsEntry {
    pub index: EntryIndex,
    pub partition: PartitionId,
    pub current_epoch: Option<LeaderEpoch>,
    pub epoch: LeaderEpoch,
}

#[derive(Debug)]
pub struct DeleteRecords {
    pub gather: GatherId,
    pub deadline: Monotonic,
    pub entries: Vec<DeleteRecordsEntry>,
}

#[derive(Clone, Debug)]
pub struct DeleteRecordsEntry {
    pub index: EntryIndex,
    pub partition: PartitionId,
    /// `None` is the wire's -1: up to the high watermark.
    pub before: Option<Offset>,
}

#[derive(Debug)]
pub struct DescribeProducers {
    pub gather: GatherId,
    pub entries: Vec<(EntryIndex, PartitionId)>,
}

/// Sizes of partitions, those of them that this core has.
#[derive(Debug)]
pub struct DescribeLogs {
    pub gather: GatherId,
    pub partitions: Vec<PartitionId>,
}

#[derive(Debug)]
pub enum Internal {
    Append(InternalAppend),
    Read(InternalRead),
}

/// An append by a coordinator; it is refused where the leader epoch is not the one at which its shard was loaded.
#[derive(Debug)]
pub struct InternalAppend {
    pub id: u64,
    pub partition: PartitionId,
    pub expected_epoch: LeaderEpoch,
    /// Whole record batches; offsets and epoch are stamped at the append.
    pub batches: Parcel,
    pub deadline: Monotonic,
}

/// A read for loading a coordinator's shard: up to the high watermark as it stands.
#[derive(Debug)]
pub struct InternalRead {
    pub id: u64,
    pub partition: PartitionId,
    pub expected_epoch: LeaderEpoch,
    pub offset: Offset,
    pub bytes_max: u32,
}
