//! The types that callers see: slots, appends, what a locate finds, events, errors.

use arena::BufferRef;
use base::{LeaderEpoch, Offset, PartitionId, SlotToken, Tenancy};
use nvme_format::{ExtentAddress, SlabId};
use nvme_plan::DeviceError;
use std::fmt;

/// A partition that is open in a store. The generation keeps a late user of a deleted one from meeting the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogSlot(pub(crate) u64);

impl LogSlot {
    pub(crate) fn of(token: SlotToken) -> LogSlot {
        LogSlot(token.to_bits())
    }

    pub(crate) fn token(self) -> SlotToken {
        SlotToken::from_bits(self.0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendMode {
    /// Offsets and the leader epoch are stamped while the bytes are copied.
    Leader { epoch: LeaderEpoch },
    /// The bytes are kept as they are; their first offset is the log's end or beyond it.
    Follower,
}

/// Whole, checked batches for one partition.
#[derive(Clone, Copy, Debug)]
pub struct Append<'a> {
    pub batches: &'a [u8],
    pub mode: AppendMode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    pub first: Offset,
    pub last: Offset,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    #[error("there is no such partition here")]
    Unknown,
    /// Nothing was changed; `LogEvent::Room` tells when to try again.
    #[error("the store has to catch up first")]
    Pressure,
    #[error("the namespace is full")]
    Full,
    #[error("the namespace has stopped")]
    Stopped,
    #[error("the batch is larger than the {limit} bytes that the namespace can hold in one piece")]
    TooLarge { limit: u64 },
    #[error("the bytes are not whole record batches, or do not continue the log")]
    Malformed,
    #[error("records of this partition may be lost; it waits for repair")]
    Suspect,
}

/// Why a change that needs the journal was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    #[error("there is no such partition here")]
    Unknown,
    #[error("the partition exists already")]
    Exists,
    /// Nothing was changed; `LogEvent::Room` tells when to try again.
    #[error("the store has to catch up first")]
    Pressure,
    /// Nothing was changed, and only deletions or growth will make room; `LogEvent::Room` tells of it.
    #[error("the namespace is full")]
    Full,
    #[error("the namespace has stopped")]
    Stopped,
    #[error("the offset is outside the log")]
    OutOfRange,
    #[error("an epoch does not rise")]
    StaleEpoch,
}

/// A stretch of a log on the device: a description that may leave its core, be kept for a while, and be read later.
/// It is opaque outside the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stretch {
    pub(crate) slot: LogSlot,
    pub(crate) extent: ExtentAddress,
    pub(crate) tenancy: Tenancy,
    pub(crate) position: u32,
    pub(crate) length: u32,
    pub(crate) crc: u32,
    pub(crate) seed: u32,
}

impl Stretch {
    /// Bytes that a read of it delivers.
    pub fn len(&self) -> usize {
        self.length as usize
    }

    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    pub fn slot(&self) -> LogSlot {
        self.slot
    }

    /// The same as plain numbers, for those who carry it to another core and back.
    pub fn to_words(self) -> [u64; 5] {
        let pair = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        let place = self.extent.start.0 | u64::from(self.extent.order.number()) << 56;
        [self.slot.0, place, self.tenancy.0, pair(self.position, self.length), pair(self.crc, self.seed)]
    }

    /// Nothing for numbers that no stretch has.
    pub fn from_words(words: [u64; 5]) -> Option<Stretch> {
        let [slot, place, tenancy, range, check] = words;
        let extent = ExtentAddress {
            start: base::Block(place << 8 >> 8),
            order: nvme_format::ExtentOrder::new((place >> 56) as u8)?,
        };
        Some(Stretch {
            slot: LogSlot(slot),
            extent,
            tenancy: Tenancy(tenancy),
            position: (range >> 32) as u32,
            length: range as u32,
            crc: (check >> 32) as u32,
            seed: check as u32,
        })
    }
}

/// A consecutive part of what was located.
#[derive(Clone, Debug)]
pub enum Part {
    Memory(BufferRef),
    /// To be read by `Store::read`, which verifies it.
    Device(Stretch),
}

impl Part {
    pub fn len(&self) -> usize {
        match self {
            Part::Memory(bytes) => bytes.len(),
            Part::Device(stretch) => stretch.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a locate must know first. Read it, and locate again when `ReadDone` comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReadPlan {
    /// The batches around the wanted offset.
    Stretch(Stretch),
    /// The index blocks of a closed extent.
    Index(IndexRead),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IndexRead {
    pub(crate) slot: LogSlot,
    pub(crate) extent: ExtentAddress,
    pub(crate) tenancy: Tenancy,
    pub(crate) block: u32,
    pub(crate) entries: u32,
}

/// Counts from the first byte that a log ever had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogPosition(pub u64);

/// What holds consecutive bytes that were located before: of each part, the range that belongs to them.
#[derive(Clone, Debug)]
pub enum Relocated {
    Found(Vec<(Part, std::ops::Range<usize>)>),
    NeedsRead(ReadPlan),
    /// The log does not hold them any more.
    Gone,
}

#[derive(Clone, Debug)]
pub enum Located {
    /// The offset is at the bound (or the partition has nothing between them).
    Nothing,
    OutOfRange,
    /// Whole batches in order, the first of which contains the offset.
    Found(Vec<Part>),
    NeedsRead(ReadPlan),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeLocated {
    /// No batch reaches the time.
    Nothing,
    /// The first batch that reaches it is the first that does from this offset on.
    From(Offset),
    NeedsRead(ReadPlan),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadTicket(pub u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    #[error("the bytes on the medium are not those that were written")]
    Corrupt,
    #[error("the extent was given to someone else since")]
    Gone,
    #[error("{0}")]
    Device(DeviceError),
    #[error("there is no memory for it now")]
    NoMemory,
    #[error("the namespace has stopped")]
    Stopped,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TruncateOutcome {
    Done,
    /// Blocks must be read first; `LogEvent::Truncated` tells the end, and appends are refused until then.
    Reading,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PressureLevel {
    None,
    /// Three quarters of the ring are un-trimmed: sockets of producers are not read.
    StopReading,
    /// Appends are refused.
    Refusing,
}

/// Why a namespace stopped (rule 6): it is opened anew before anything else is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    Commit(DeviceError),
    Data(DeviceError),
    Flush(DeviceError),
    Checkpoint(DeviceError),
    Superblock(DeviceError),
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, error) = match self {
            StopReason::Commit(error) => ("a journal commit", error),
            StopReason::Data(error) => ("a data write", error),
            StopReason::Flush(error) => ("a flush", error),
            StopReason::Checkpoint(error) => ("a checkpoint's write", error),
            StopReason::Superblock(error) => ("a superblock's write", error),
        };
        write!(f, "{what} failed: {error}")
    }
}

#[derive(Debug)]
pub enum LogEvent {
    /// Every record below is durable.
    Durable {
        slot: LogSlot,
        up_to: Offset,
    },
    /// A commit of the lane completed, so long after it was closed: a fact for metrics alone.
    Committed {
        bytes: usize,
        took: std::time::Duration,
    },
    /// Everything from `from` on is unknown until the namespace is opened again.
    AppendFailed {
        slot: LogSlot,
        from: Offset,
    },
    ReadDone {
        ticket: ReadTicket,
        result: Result<BufferRef, ReadError>,
    },
    /// A stretch with records from about `from` on cannot be read: told once, until it could be.
    Unreadable {
        partition: PartitionId,
        from: Offset,
        error: ReadError,
    },
    /// Retention or `set_log_start` moved it, and that is durable.
    LogStartMoved {
        slot: LogSlot,
        to: Offset,
    },
    Truncated {
        slot: LogSlot,
        result: Result<Offset, ReadError>,
    },
    Deleted {
        partition: PartitionId,
    },
    ViewSaved {
        metadata_offset: i64,
    },
    NamespaceStopped {
        reason: StopReason,
    },
    Pressure {
        level: PressureLevel,
    },
    /// What was refused for pressure may be tried again.
    Room,
    /// The clean stop that was asked for is complete.
    Stopped,
}

/// What a slab is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlabNeed {
    /// So that new partitions find every shard with a slab: given only while there are plenty.
    Ahead,
    Data,
    /// A checkpoint, which may take the reserve.
    Internal,
}

/// What a store asks of the namespace's keeper on core 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeeperRequest {
    Slab {
        shard: base::ShardId,
        need: SlabNeed,
    },
    /// The release is durable: the slab may be given to another shard.
    Released {
        slab: SlabId,
    },
    /// The core's ring is written once, whole: its share of the budget for zeroes is free.
    RingWritten,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeeperReply {
    Slab {
        shard: base::ShardId,
        slab: SlabId,
        /// It came from what is kept for checkpoints.
        reserve: bool,
    },
    /// Nothing is left.
    Full { shard: base::ShardId },
    /// There are not so many that one is given ahead of need.
    NotNow { shard: base::ShardId },
}
