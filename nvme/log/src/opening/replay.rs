//! The fold of accepted commits into the recovered shards (rule 2, first pass), by the functions that staged them.

use crate::partition::tail::{TailBytes, TailPiece};
use crate::partition::{Freed, Partition};
use crate::shard::SavedView;
use arena::BufferRef;
use base::{Offset, PartitionId, ShardId, Tenancy};
use batch::{BatchHeader, Batches};
use nvme_format::directory::BlobPlace;
use nvme_format::record::*;
use nvme_format::root::Root;
use nvme_format::{ExtentAddress, SlabId};
use std::collections::{BTreeMap, BTreeSet};

/// A shard while it is being recovered.
#[derive(Default)]
pub struct RecoveredShard {
    pub next_version: u64,
    pub next_tenancy: u64,
    pub slabs: BTreeSet<SlabId>,
    pub partitions: BTreeMap<PartitionId, Partition>,
    /// Extents given up in the replay: they keep their bytes until the opening is complete.
    pub freed: Vec<ExtentAddress>,
    pub view: Option<SavedView>,
    pub view_place: Option<BlobPlace>,
    pub view_parts: Option<(i64, Vec<u8>)>,
    /// Commits of its lane below this are in its checkpoint.
    pub replay_from: u64,
    pub checkpoint: u64,
    pub root_slot: u8,
    /// The root before the newest, where it can be read.
    pub root_before: Option<Root>,
    /// The storage that it names: what an opening would go back to, should the newest be torn.
    pub storage_before: Vec<ExtentAddress>,
    pub storage: BTreeSet<ExtentAddress>,
    /// The newest sequence whose checkpoint the journal says was published.
    pub published: Option<u64>,
    /// Partitions of which no blob can be read, and the largest offset below which the journal shows that they had
    /// records.
    pub unreadable: BTreeMap<PartitionId, Offset>,
}

/// How a record met its partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Met {
    Applied,
    /// The checkpoint has it already, or its partition was deleted later.
    Skipped,
    /// Something before it is missing.
    Gap,
}

/// How a record stands to the version that its partition is at.
pub fn meets(partition: Option<&Partition>, link: &Link, change: &Change<'_>) -> Met {
    match (partition, change) {
        (None, Change::Created { .. }) => Met::Applied,
        (None, _) => Met::Skipped,
        (Some(partition), _) if link.version <= partition.version => Met::Skipped,
        (Some(_), Change::Deleted) => Met::Applied,
        (Some(partition), _) if link.previous == partition.version => Met::Applied,
        (Some(_), _) => Met::Gap,
    }
}

impl RecoveredShard {
    pub fn apply(&mut self, shard: ShardId, record: &Record<'_>, commit: &BufferRef) -> Met {
        match record {
            Record::SlabTaken { slab } => {
                self.slabs.insert(*slab);
            }
            Record::SlabReleased { slab } => {
                self.slabs.remove(slab);
            }
            Record::CheckpointPublished { sequence, .. } => self.published = self.published.max(Some(*sequence)),
            Record::ImageApplied { metadata_offset, total, at, bytes } => {
                self.add_view(*metadata_offset, *total, *at, bytes);
            }
            Record::Partition(link, change) => return self.apply_change(shard, link, change, commit),
        }
        Met::Applied
    }

    fn add_view(&mut self, metadata_offset: i64, total: u32, at: u32, bytes: &[u8]) {
        if at == 0 {
            self.view_parts = Some((metadata_offset, Vec::new()));
        }
        let Some((offset, parts)) = &mut self.view_parts else { return };
        if *offset != metadata_offset || parts.len() != at as usize {
            self.view_parts = None;
            return;
        }
        parts.extend_from_slice(bytes);
        if parts.len() == total as usize
            && let Some((metadata_offset, bytes)) = self.view_parts.take()
            && self.view.as_ref().is_none_or(|view| view.metadata_offset <= metadata_offset)
        {
            self.view = Some(SavedView { metadata_offset, bytes });
            self.view_place = None;
        }
    }

    fn apply_change(&mut self, shard: ShardId, link: &Link, change: &Change<'_>, commit: &BufferRef) -> Met {
        self.next_version = self.next_version.max(link.version.0 + 1);
        if let Change::ExtentTaken(taken) = change {
            self.note_tenancy(taken.tenancy);
        }
        if let Some(end) = self.unreadable.get_mut(&link.partition) {
            *end = (*end).max(end_shown_by(change));
            if matches!(change, Change::Deleted) {
                self.unreadable.remove(&link.partition);
            }
            return Met::Skipped;
        }
        let partition = self.partitions.get_mut(&link.partition);
        let met = meets(partition.as_deref(), link, change);
        if met != Met::Applied {
            return met;
        }
        let Some(partition) = partition else {
            let created_at = if let Change::Created { created_at } = change { *created_at } else { 0 };
            let created = Partition::new(link.partition, shard, link.version, created_at);
            self.partitions.insert(link.partition, created);
            return Met::Applied;
        };
        let freed = match change {
            Change::AppendInline { facts, batches } => {
                if !partition.replay_inline(facts, batches, commit) {
                    return Met::Gap;
                }
                Vec::new()
            }
            Change::AppendDone { facts, done } => {
                if !partition.replay_done(facts, done, commit) {
                    return Met::Gap;
                }
                Vec::new()
            }
            other => partition.apply(other),
        };
        partition.version = link.version;
        partition.changed = true;
        partition.durable = partition.end;
        self.freed.extend(freed.iter().map(|freed: &Freed| freed.address));
        if matches!(change, Change::Deleted) {
            self.partitions.remove(&link.partition);
        }
        Met::Applied
    }

    /// Partitions whose blobs cannot be read are kept, empty and suspect: refused until their loss is accepted, and
    /// then going on behind every offset that is known to have been used.
    pub fn keep_unreadable(&mut self, shard: ShardId) {
        for (id, end) in std::mem::take(&mut self.unreadable) {
            let version = Version(self.next_version);
            self.next_version += 1;
            let mut partition = Partition::new(id, shard, version, 0);
            partition.apply(&Change::Restarted { at: end });
            partition.suspect = Some(Offset::ZERO);
            self.partitions.insert(id, partition);
        }
    }

    fn note_tenancy(&mut self, tenancy: Tenancy) {
        let number = tenancy.0 & ((1 << 48) - 1);
        self.next_tenancy = self.next_tenancy.max(number + 1);
    }
}

/// An offset that the log had reached where a change was made.
fn end_shown_by(change: &Change<'_>) -> Offset {
    match change {
        Change::AppendInline { facts, batches } => {
            let ends = Batches::new(batches).map_while(Result::ok).map(|view| view.header().next_offset());
            ends.max().unwrap_or(facts.previous_end)
        }
        Change::AppendDone { facts, done } => {
            let headers = done.headers().map_while(|bytes| BatchHeader::from_bytes(bytes).ok());
            headers.map(|header| header.next_offset()).max().unwrap_or(facts.previous_end)
        }
        Change::LogStartMoved { to: offset }
        | Change::Restarted { at: offset }
        | Change::EpochStarted { offset, .. }
        | Change::HighWatermark { offset }
        | Change::LossAccepted { end: offset } => *offset,
        _ => Offset::ZERO,
    }
}

/// A view of the commit's bytes where `part` lies in it.
fn view_of(commit: &BufferRef, part: &[u8]) -> BufferRef {
    let from = part.as_ptr() as usize - commit.as_ptr() as usize;
    commit.slice(from..from + part.len())
}

impl Partition {
    fn continues(&self, facts: &AppendFacts) -> bool {
        let extent = self.extents.back().filter(|extent| !extent.sealed && extent.tenancy == facts.tenancy);
        extent.is_some_and(|extent| extent.end() == facts.position.0)
            && facts.position.0 == self.end_position
            && facts.previous_end == self.end
    }

    fn replay_inline(&mut self, facts: &AppendFacts, batches: &[u8], commit: &BufferRef) -> bool {
        let whole: usize = Batches::new(batches).map_while(Result::ok).map(|view| view.size()).sum();
        if !self.continues(facts) || whole != batches.len() {
            return false;
        }
        for (number, view) in Batches::new(batches).map_while(Result::ok).enumerate() {
            let header = view.header();
            let extent = self.extents.back_mut().expect("it continues one");
            if extent.len + u64::from(header.size) > extent.address.order.bytes() {
                return false;
            }
            extent.add_batch(&header, view.bytes(), None);
            self.tail.push(TailPiece {
                position: self.end_position,
                base: header.base_offset,
                last: header.last_offset(),
                is_rest: false,
                len: header.size,
                bytes: TailBytes::Ready(view_of(commit, view.bytes())),
            });
            self.note_batch(&header, facts.rolls && number == 0, facts.appended_at);
        }
        true
    }

    fn replay_done(&mut self, facts: &AppendFacts, done: &AppendDone<'_>, commit: &BufferRef) -> bool {
        let headers: Vec<BatchHeader> = done.headers().map_while(|bytes| BatchHeader::from_bytes(bytes).ok()).collect();
        let len: u64 = headers.iter().map(|header| u64::from(header.size)).sum();
        let Some(extent) = self.extents.back_mut() else { return false };
        let direct_end = done.direct_from.0 + done.direct_len;
        let end = facts.position.0 + len;
        let whole = headers.len() * BATCH_HEADER == done.headers.len()
            && direct_end + done.remainder.len() as u64 == end
            && done.direct_from.0 >= extent.position
            && end - extent.position <= extent.address.order.bytes();
        if !whole || !self.continues(facts) {
            return false;
        }
        let extent = self.extents.back_mut().expect("it continues one");
        extent.add_direct(&headers, &done.entries, len);
        extent.note_direct(done.direct_from.0 - extent.position, direct_end - extent.position);
        let remainder = view_of(commit, done.remainder);
        for (number, header) in headers.iter().enumerate() {
            let (from, to) = (self.end_position, self.end_position + u64::from(header.size));
            let start = from.max(direct_end);
            if start < to {
                let at = (start - direct_end) as usize..(to - direct_end) as usize;
                self.tail.push(TailPiece {
                    position: start,
                    base: header.base_offset,
                    last: header.last_offset(),
                    is_rest: start > from,
                    len: (to - start) as u32,
                    bytes: TailBytes::Ready(remainder.slice(at)),
                });
            }
            self.note_batch(header, facts.rolls && number == 0, facts.appended_at);
        }
        true
    }

    /// None of its records can be believed.
    pub fn lose_everything(&mut self) {
        let (log_start, end) = (self.log_start, self.end);
        self.apply(&Change::Restarted { at: end });
        self.suspect = Some(log_start);
        self.changed = true;
    }

    /// Records from `from` on may be lost.
    pub fn mark_suspect(&mut self, from: Offset) {
        if self.suspect.is_none() {
            self.suspect = Some(from);
            self.changed = true;
        }
    }
}
