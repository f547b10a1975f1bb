//! Appends: small ones inline in the journal, large ones to their extent first (design 02, write-once blocks).

use crate::api::*;
use crate::io::{Purpose, split_write};
use crate::lane::{Effect, NoMemory};
use crate::partition::extent::{Extent, STRETCH_MAX};
use crate::partition::tail::{TailBytes, TailPiece};
use crate::pending::PendingRecord;
use crate::shard::SlabRequest;
use crate::store::Store;
use arena::{Buffer, BufferRef};
use base::{BLOCK_SIZE, Block, LeaderEpoch, Now, Offset, Position, ShardId, WallMillis};
use batch::{BatchHeader, BatchView, EndTransaction};
use nvme_format::record::*;
use nvme_format::{ExtentAddress, ExtentOrder};
use nvme_plan::{Class, Promise};

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Parts of data-first writes in flight at once, before another append starts one.
const DATA_FIRST_MAX: usize = 32;
/// Whole blocks are copied out once there are this many bytes of them. A commit beside a copy-out is slow (its flush has
/// those bytes to write too): with records of 1 KiB, 64 KiB made that one in 64, more than the hundredth that the 99th
/// percentile counts. Flushed requests, alternating, medians of p99 with 64 and 256 KiB: 934 and 704 us at 1,000/s, 2,511 and
/// 1,580 at 5,000/s, 3,369 and 2,921 at 20,000/s; no difference where the page cache is the promise.
pub const COPY_OUT_FROM: u64 = 256 * 1024;
/// A new extent holds at least so many of the largest batch seen.
const BATCHES_PER_EXTENT: u64 = 4;

/// A batch on its way in: as it will stand in the log.
struct Incoming<'a> {
    header: BatchHeader,
    bytes: &'a [u8],
    stamp: Option<LeaderEpoch>,
    marker: Option<EndTransaction>,
    appended_at: WallMillis,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Path {
    Inline,
    DataFirst,
}

impl Store {
    /// Appends whole, checked batches at the log's end. A leader gives one at a time; of a follower's several those up
    /// to `Appended::last` were taken.
    pub fn append(&mut self, now: Now, slot: LogSlot, append: Append<'_>) -> Result<Appended, AppendError> {
        if self.stopped.is_some() || self.stopping != crate::store::Stopping::No {
            return Err(AppendError::Stopped);
        }
        let mut rest = append.batches;
        let mut appended: Option<Appended> = None;
        while !rest.is_empty() {
            match self.append_next(now, slot, append.mode, rest) {
                Ok((one, left)) => {
                    appended = Some(Appended { first: appended.map_or(one.first, |all| all.first), last: one.last });
                    rest = left;
                }
                Err(error) => {
                    if matches!(error, AppendError::Pressure | AppendError::Full) {
                        self.someone_waits = true;
                    }
                    return appended.ok_or(error);
                }
            }
        }
        appended.ok_or(AppendError::Malformed)
    }

    fn append_next<'a>(
        &mut self,
        now: Now,
        slot: LogSlot,
        mode: AppendMode,
        bytes: &'a [u8],
    ) -> Result<(Appended, &'a [u8]), AppendError> {
        let partition = self.partition(slot).ok_or(AppendError::Unknown)?;
        let (view, rest) = BatchView::parse(bytes).map_err(|_| AppendError::Malformed)?;
        view.check_counts().map_err(|_| AppendError::Malformed)?;
        let marker = EndTransaction::from_batch(&view).map_err(|_| AppendError::Malformed)?;
        let mut header = view.header();
        let stamp = match mode {
            AppendMode::Leader { epoch } => {
                (header.base_offset, header.partition_leader_epoch) = (partition.end, epoch);
                Some(epoch)
            }
            AppendMode::Follower if header.base_offset < partition.end => return Err(AppendError::Malformed),
            AppendMode::Follower => None,
        };
        if partition.suspect.is_some() {
            return Err(AppendError::Suspect);
        }
        if partition.truncation.is_some() {
            return Err(AppendError::Pressure);
        }
        if u64::from(header.size) > self.map.batch_max() {
            return Err(AppendError::TooLarge { limit: self.map.batch_max() });
        }
        let incoming = Incoming { header, bytes: view.bytes(), stamp, marker, appended_at: now.wall };
        self.append_one(now, slot, &incoming)?;
        Ok((Appended { first: header.base_offset, last: header.last_offset() }, rest))
    }

    fn append_one(&mut self, now: Now, slot: LogSlot, incoming: &Incoming<'_>) -> Result<(), AppendError> {
        self.idle.used = true;
        let partition = self.partition(slot).ok_or(AppendError::Unknown)?;
        let (shard, header) = (partition.shard, &incoming.header);
        let size = u64::from(header.size);
        let active = partition.active_extent().filter(|extent| extent.fits(header, header.next_offset()));
        let takes = active.is_none();
        let partial = active.map_or(0, |extent| extent.len % BLOCK);
        let mut path = Path::Inline;
        if partial + size >= self.data_first_from() {
            path = Path::DataFirst;
        }
        if self.tails.uncopied_bytes > self.options.copy_out_window {
            return Err(AppendError::Pressure);
        }
        let record = match path {
            Path::Inline => inline_len(header.size as usize),
            Path::DataFirst => 1024 + BLOCK_SIZE + 32 * (size / STRETCH_MAX + 4) as usize,
        };
        // With it go the taking of an extent and the end of a transaction.
        if !self.lane.has_room(record + 512, false) {
            return Err(if self.is_starved() { AppendError::Full } else { AppendError::Pressure });
        }
        self.reserve(record + 512, false).map_err(|NoMemory| AppendError::Pressure)?;
        let taken = if takes { Some(self.find_extent(now, slot, shard, size)?) } else { None };
        let result = match path {
            Path::Inline => self.append_inline(slot, shard, incoming, taken),
            Path::DataFirst => self.append_data_first(now, slot, shard, incoming, taken),
        };
        if let (Err(_), Some(extent)) = (result, taken) {
            self.shard_mut(shard).space.release(extent);
        }
        result
    }

    /// The threshold T. Inline bytes are written twice; where copy-outs are half a window behind, the device is near its
    /// bandwidth, and what can be written once is.
    fn data_first_from(&self) -> u64 {
        let behind = self.tails.uncopied_bytes * 2 > self.options.copy_out_window;
        let least = 2 * BLOCK_SIZE;
        if behind { least as u64 } else { self.options.data_first_from.max(least) as u64 }
    }

    /// A free extent for the partition's next batches (not yet its own).
    fn find_extent(
        &mut self,
        now: Now,
        slot: LogSlot,
        shard: ShardId,
        batch: u64,
    ) -> Result<ExtentAddress, AppendError> {
        let partition = self.partition(slot).ok_or(AppendError::Unknown)?;
        let largest = self.map.largest_extent();
        let needed = Extent::needed_for(batch);
        let least = ExtentOrder::holding(needed).filter(|order| *order <= largest);
        let least = least.ok_or(AppendError::TooLarge { limit: self.map.batch_max() })?;
        let doubled = partition.extents.back().map_or(ExtentOrder::SMALLEST, |last| last.address.order.next());
        let seen = u64::from(partition.largest_batch).max(batch) * BATCHES_PER_EXTENT;
        let several = ExtentOrder::holding(seen).unwrap_or(largest);
        let wanted = doubled.max(several).max(least).min(largest);
        let own = self.shard_mut(shard);
        let found = own.allocate_data(wanted, least);
        let refused = matches!(own.slab_request, SlabRequest::Refused { .. });
        if found.is_none() || own.is_short() {
            self.request_slab(now, shard, SlabNeed::Data);
        }
        found.ok_or(if refused { AppendError::Full } else { AppendError::Pressure })
    }

    /// The extent becomes the partition's; the one before is sealed, and its rest goes out.
    fn take_extent(&mut self, slot: LogSlot, shard: ShardId, extent: ExtentAddress, base_offset: Offset) {
        let own = self.shard_mut(shard);
        let (tenancy, version) = (own.take_tenancy(), own.take_version());
        let partition = self.partition_mut(slot).expect("checked by the caller");
        let position = Position(partition.end_position);
        let taken = ExtentTaken { extent, tenancy, position, base_offset, job: None };
        let link = partition.link(version);
        partition.take_extent(&taken);
        if partition.extents.len() > 1 {
            self.queue_copy_out(slot);
        }
        self.stage_change(slot, link, Change::ExtentTaken(taken), Vec::new());
    }

    fn facts(&mut self, slot: LogSlot, shard: ShardId, incoming: &Incoming<'_>) -> (Link, AppendFacts) {
        let version = self.shard_mut(shard).take_version();
        let partition = self.partition_mut(slot).expect("checked by the caller");
        let facts = AppendFacts {
            rolls: partition.rolls(&incoming.header),
            previous_end: partition.end,
            appended_at: incoming.appended_at,
            position: Position(partition.end_position),
            tenancy: partition.extents.back().expect("an extent was taken").tenancy,
        };
        if facts.rolls {
            let most = partition.config.segment_jitter.as_millis().min(i64::MAX as u128 / 2) as u64;
            let jitter = WallMillis(self.random.below(most + 1) as i64);
            self.partition_mut(slot).expect("checked by the caller").jitter = jitter;
        }
        let partition = self.partition_mut(slot).expect("checked by the caller");
        (partition.link(version), facts)
    }

    fn append_inline(
        &mut self,
        slot: LogSlot,
        shard: ShardId,
        incoming: &Incoming<'_>,
        taken: Option<ExtentAddress>,
    ) -> Result<(), AppendError> {
        let len = inline_len(incoming.bytes.len());
        let behind = !self.partition(slot).ok_or(AppendError::Unknown)?.pending.is_empty();
        let own = if behind { Some(self.allocate(len)?) } else { None };
        if let Some(extent) = taken {
            self.take_extent(slot, shard, extent, incoming.header.base_offset);
        }
        let (link, facts) = self.facts(slot, shard, incoming);
        let range = INLINE_BATCHES_AT..INLINE_BATCHES_AT + incoming.bytes.len();
        let build = |into: &mut [u8]| {
            encode_inline_around(into, shard, link, &facts, incoming.bytes.len());
            let batch = &mut into[range.clone()];
            batch.copy_from_slice(incoming.bytes);
            if let Some(epoch) = incoming.stamp {
                batch::stamp(batch, incoming.header.base_offset, epoch);
            }
        };
        let effect = Effect::Durable { slot, version: link.version, up_to: incoming.header.next_offset() };
        let number = self.next_number;
        let Store { lane, partitions, .. } = self;
        let partition = partitions.get_mut(slot.token()).expect("checked above");
        let extent = partition.extents.back_mut().expect("an extent was taken");
        let bytes = match own {
            None => {
                let (at, into) = lane.push(len);
                build(into);
                extent.add_batch(&incoming.header, &into[range.clone()], None);
                lane.note_effect(effect);
                lane.note_piece(slot, facts.position.0);
                TailBytes::Staged { at: at + range.start }
            }
            Some(mut buffer) => {
                build(&mut buffer);
                buffer.truncate(len);
                let record = buffer.freeze();
                let batch = record.slice(range);
                extent.add_batch(&incoming.header, &batch, None);
                let effects = vec![effect];
                let record = PendingRecord { record, effects, waits_for: 0, needs_flush: false, number };
                partition.pending.queue.push_back(record);
                TailBytes::Ready(batch)
            }
        };
        let full = extent.len - extent.submitted >= COPY_OUT_FROM + BLOCK;
        self.next_number += 1;
        self.tails.note_uncopied(slot, facts.position.0 + incoming.bytes.len() as u64, incoming.bytes.len());
        self.finish_append(slot, shard, incoming, &facts, bytes);
        if full {
            self.queue_copy_out(slot);
        }
        Ok(())
    }

    fn allocate(&mut self, len: usize) -> Result<Buffer, AppendError> {
        let buffer = self.arena.try_allocate(len).or_else(|| self.arena.allocate_oversized(len));
        self.short_of_memory |= buffer.is_none();
        buffer.ok_or(AppendError::Pressure)
    }

    fn append_data_first(
        &mut self,
        now: Now,
        slot: LogSlot,
        shard: ShardId,
        incoming: &Incoming<'_>,
        taken: Option<ExtentAddress>,
    ) -> Result<(), AppendError> {
        let partition = self.partition(slot).ok_or(AppendError::Unknown)?;
        let address = match (taken, partition.extents.back()) {
            (Some(extent), _) => extent,
            (None, Some(extent)) => extent.address,
            (None, None) => unreachable!("an extent was found"),
        };
        let unwritten = match (taken, partition.extents.back()) {
            (None, Some(extent)) => extent.len - extent.submitted,
            _ => 0,
        };
        if self.data_first_in_flight >= DATA_FIRST_MAX
            || !self.shards[self.shard_index(shard)].space.is_durable(address)
        {
            return Err(AppendError::Pressure);
        }
        let mut buffer = self.allocate((unwritten as usize + incoming.bytes.len()).next_multiple_of(BLOCK_SIZE))?;
        if let Some(extent) = taken {
            self.take_extent(slot, shard, extent, incoming.header.base_offset);
        }
        let (link, facts) = self.facts(slot, shard, incoming);
        let batch = unwritten as usize..unwritten as usize + incoming.bytes.len();
        buffer[batch.clone()].copy_from_slice(incoming.bytes);
        if let Some(epoch) = incoming.stamp {
            batch::stamp(&mut buffer[batch.clone()], incoming.header.base_offset, epoch);
        }
        buffer[batch.end..].fill(0);
        let staged = self.lane.staged();
        let partition = self.partitions.get(slot.token()).expect("checked above");
        let there = partition.tail.copy(facts.position.0 - unwritten, &mut buffer[..batch.start], staged);
        assert!(there, "the bytes that no block holds are in memory");
        self.submit_data_first(now, slot, shard, incoming, (link, facts), buffer.freeze(), batch);
        Ok(())
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of one append, all of them different things")]
    fn submit_data_first(
        &mut self,
        now: Now,
        slot: LogSlot,
        shard: ShardId,
        incoming: &Incoming<'_>,
        (link, facts): (Link, AppendFacts),
        buffer: BufferRef,
        batch: std::ops::Range<usize>,
    ) {
        let deadline = self.deadline(now);
        let number = self.next_number;
        let transfer_max = self.geometry.transfer_max;
        let Store { partitions, io, .. } = self;
        let partition = partitions.get_mut(slot.token()).expect("checked by the caller");
        let extent = partition.extents.back_mut().expect("an extent was taken");
        let (from, new_len) = (extent.submitted, extent.len + incoming.bytes.len() as u64);
        let to = new_len / BLOCK * BLOCK;
        let direct = buffer.slice(0..(to - from) as usize);
        let before = extent.entries.len();
        extent.add_batch(&incoming.header, &buffer[batch.clone()], Some(to));
        extent.close_stretch();
        let done_block = Block(extent.address.start.0 + from / BLOCK);
        let done = AppendDone {
            direct_block: done_block,
            direct_from: Position(extent.position + from),
            direct_len: to - from,
            direct_crc: nvme_format::crc::crc32c(&direct),
            entries: extent.entries[before..].to_vec(),
            headers: &incoming.header.to_bytes(),
            remainder: &buffer[direct.len()..batch.end],
        };
        let record = RecordView { shard, record: Record::Partition(link, Change::AppendDone { facts, done }) };
        let mut bytes = Vec::with_capacity(record.encoded_len());
        record.encode(&mut bytes);
        let mut parts = 0;
        let start = done_block;
        for (range, operation) in split_write(start, &direct, transfer_max, Promise::Accepted) {
            let from = (range.start.0 - extent.address.start.0) * BLOCK;
            let to = from + range.bytes();
            extent.submit(from, to);
            let purpose = Purpose::DataFirst { slot, tenancy: extent.tenancy, from, to, number };
            io.emit(purpose, Class::Commit, deadline, operation);
            parts += 1;
        }
        partition.pending.queue.push_back(PendingRecord {
            record: BufferRef::from_vec(bytes),
            effects: vec![Effect::Durable { slot, version: link.version, up_to: incoming.header.next_offset() }],
            waits_for: parts,
            needs_flush: true,
            number,
        });
        self.next_number += 1;
        self.data_first_in_flight += parts as usize;
        self.finish_append(slot, shard, incoming, &facts, TailBytes::Ready(buffer.slice(batch)));
    }

    /// What both kinds of append change beside the bytes.
    fn finish_append(
        &mut self,
        slot: LogSlot,
        shard: ShardId,
        incoming: &Incoming<'_>,
        facts: &AppendFacts,
        bytes: TailBytes,
    ) {
        let header = &incoming.header;
        let partition = self.partitions.get_mut(slot.token()).expect("checked by the caller");
        partition.tail.push(TailPiece {
            position: facts.position.0,
            base: header.base_offset,
            last: header.last_offset(),
            is_rest: false,
            len: header.size,
            bytes,
        });
        partition.note_batch(header, facts.rolls, facts.appended_at);
        partition.unflushed += header.records_count.max(0) as u64;
        self.tails.note_cached(slot, facts.position.0, header.size as usize);
        if let Some(marker) = incoming.marker {
            let ended = TransactionEnded {
                producer: header.producer_id,
                epoch: header.producer_epoch,
                coordinator_epoch: marker.coordinator_epoch,
                marker: header.base_offset,
                aborted: !marker.committed,
                timestamp: header.max_timestamp,
            };
            let version = self.shard_mut(shard).take_version();
            let partition = self.partitions.get_mut(slot.token()).expect("checked by the caller");
            let link = partition.link(version);
            partition.end_transaction(&ended);
            self.stage_change(slot, link, Change::TransactionEnded(ended), Vec::new());
        }
    }

    /// Records whose data-first writes are complete join the commit, each behind those of its partition before it.
    pub(crate) fn drain_pending(&mut self, slot: LogSlot) {
        loop {
            let Some(partition) = self.partitions.get_mut(slot.token()) else { return };
            let Some(len) = partition.pending.ready_len() else { return };
            if self.reserve(len, true).is_err() {
                self.stalled.insert(slot);
                return;
            }
            let partition = self.partitions.get_mut(slot.token()).expect("it was there");
            let record = partition.pending.queue.pop_front().expect("it is ready");
            let (_, into) = self.lane.push(len);
            into.copy_from_slice(&record.record);
            for effect in record.effects {
                self.lane.note_effect(effect);
            }
            if record.needs_flush {
                self.lane.note_needs_flush();
            }
        }
    }
}
