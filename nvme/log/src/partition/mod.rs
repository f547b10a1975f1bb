//! One partition's log as a fold over its records: the same functions run when a record is staged and when it is
//! replayed, so what a recovery builds is what was there.

pub mod blob;
pub mod epochs;
pub mod extent;
pub mod fold;
pub mod producers;
pub mod tail;

use crate::config::LogConfig;
use crate::pending::PendingRecords;
use crate::truncate::Truncation;
use base::{Monotonic, Offset, PartitionId, Position, ShardId, Tenancy, WallMillis};
use epochs::EpochTable;
use extent::Extent;
use nvme_format::ExtentAddress;
use nvme_format::blob::{ProducerSnapshot, Segment};
use nvme_format::directory::BlobPlace;
use nvme_format::record::{Change, Link, Version};
use producers::{ProducerTable, Transactions};
use std::collections::VecDeque;
use tail::Tail;

/// Producer snapshots are taken at each segment's base and every so many bytes; a cut starts from the nearest.
pub const SNAPSHOT_INTERVAL: u64 = 64 * 1024 * 1024;
/// Between segments' bases only the last few are kept: a deeper cut reads more headers.
pub const SNAPSHOTS_MAX: usize = 4;
/// Producers in all snapshots of a partition, beyond which older ones are thinned out.
pub const SNAPSHOT_STATES_MAX: usize = 4096;

/// An extent that its partition gave back; it becomes free once that is durable and nobody reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freed {
    pub address: ExtentAddress,
    pub tenancy: Tenancy,
    pub described_until: Option<Monotonic>,
    pub descriptions: u32,
}

pub struct Partition {
    pub id: PartitionId,
    pub shard: ShardId,
    pub version: Version,
    pub created_at: i64,
    pub log_start: Offset,
    pub end: Offset,
    pub end_position: u64,
    pub high_watermark: Offset,
    pub epochs: EpochTable,
    pub segments: VecDeque<Segment>,
    pub extents: VecDeque<Extent>,
    pub producers: ProducerTable,
    pub snapshots: VecDeque<ProducerSnapshot>,
    pub transactions: Transactions,
    pub dirty_offset: Option<Offset>,
    pub largest_batch: u32,
    pub suspect: Option<Offset>,
    pub tail: Tail,

    /// What the medium does not know.
    pub durable: Offset,
    pub config: LogConfig,
    pub jitter: WallMillis,
    /// Records that wait behind a data-first write.
    pub pending: PendingRecords,
    pub truncation: Option<Box<Truncation>>,
    /// Cuts whose records are not durable yet.
    pub cuts: Vec<(Version, Offset)>,
    /// It changed since its blob was written.
    pub changed: bool,
    pub blob: Option<BlobPlace>,
    pub copy_out_queued: bool,
    pub high_watermark_recorded: Offset,
    pub high_watermark_queued: bool,
    /// Under `Durability::Cache`: appended since the last flush, and when the first of it was.
    pub unflushed: u64,
}

impl Partition {
    pub fn new(id: PartitionId, shard: ShardId, version: Version, created_at: i64) -> Partition {
        Partition {
            id,
            shard,
            version,
            created_at,
            log_start: Offset::ZERO,
            end: Offset::ZERO,
            end_position: 0,
            high_watermark: Offset::ZERO,
            epochs: EpochTable::default(),
            segments: VecDeque::from([fold::empty_segment(Offset::ZERO, Position(0))]),
            extents: VecDeque::new(),
            producers: ProducerTable::default(),
            snapshots: VecDeque::new(),
            transactions: Transactions::default(),
            dirty_offset: None,
            largest_batch: 0,
            suspect: None,
            tail: Tail::default(),
            durable: Offset::ZERO,
            config: LogConfig::keep_everything(),
            jitter: WallMillis(0),
            pending: PendingRecords::default(),
            truncation: None,
            cuts: Vec::new(),
            changed: true,
            blob: None,
            copy_out_queued: false,
            high_watermark_recorded: Offset::ZERO,
            high_watermark_queued: false,
            unflushed: 0,
        }
    }

    /// The link of its next record, which the partition is at from now on.
    pub fn link(&mut self, version: Version) -> Link {
        let link = Link { partition: self.id, previous: self.version, version };
        self.version = version;
        self.changed = true;
        link
    }

    pub fn active_extent(&self) -> Option<&Extent> {
        self.extents.back().filter(|extent| !extent.sealed)
    }

    pub fn extent_mut(&mut self, tenancy: Tenancy) -> Option<&mut Extent> {
        self.extents.iter_mut().rev().find(|extent| extent.tenancy == tenancy)
    }

    pub fn extent(&self, tenancy: Tenancy) -> Option<&Extent> {
        self.extents.iter().rev().find(|extent| extent.tenancy == tenancy)
    }

    /// The extent that stays behind this change, which was just applied, and whose index is no longer in memory.
    pub fn index_voided_by(&self, change: &Change<'_>) -> Option<Tenancy> {
        let tenancy = match change {
            Change::Truncated(_) => self.extents.back().map(|extent| extent.tenancy),
            Change::GivenUp { tenancy, .. } => Some(*tenancy),
            _ => None,
        };
        tenancy.filter(|tenancy| self.extent(*tenancy).is_some_and(|extent| extent.cached.is_none()))
    }

    /// The sizes that clients see: from a segment's base to the next one's.
    pub fn segment_bytes(&self, index: usize) -> u64 {
        let end = self.segments.get(index + 1).map_or(self.end_position, |next| next.position.0);
        end - self.segments[index].position.0
    }

    /// The extent that holds the byte at `position`.
    pub fn extent_at(&self, position: u64) -> Option<&Extent> {
        let index = self.extents.partition_point(|extent| extent.end() <= position);
        self.extents.get(index).filter(|extent| extent.position <= position)
    }

    /// The extent that holds the batch of `offset`, the log being without gaps between extents.
    pub fn extent_of(&self, offset: Offset) -> Option<usize> {
        self.extents.partition_point(|extent| extent.base_offset <= offset).checked_sub(1)
    }
}
