//! Changes of a partition beside its records: creation, deletion, epochs, log start, high watermark, producers; and the
//! view's snapshot.

use crate::api::*;
use crate::config::LogConfig;
use crate::lane::{Effect, NoMemory};
use crate::partition::Partition;
use crate::shard::{SavedView, Shard, SlabRequest};
use crate::store::{SPACE_RETRY, Store};
use base::{LeaderEpoch, Now, Offset, PartitionId, ShardId, Tenancy, WallMillis};
use nvme_format::blob::GivenUp;
use nvme_format::record::{Change, Link, Record, RecordView, Version};

/// Bytes that any of these records takes at most.
const SMALL: usize = 256;

impl Store {
    /// A new, empty partition in the least-loaded shard of this core.
    pub fn create(
        &mut self,
        now: Now,
        partition: PartitionId,
        created_at: i64,
        config: LogConfig,
    ) -> Result<LogSlot, ChangeError> {
        if self.by_id.contains_key(&partition) {
            return Err(ChangeError::Exists);
        }
        self.refuse_new(now)?;
        self.reserve_change(SMALL)?;
        let shard = self.shard_for_new(now);
        let version = self.shard_mut(shard).take_version();
        let mut new = Partition::new(partition, shard, version, created_at);
        self.note_flush_age(&config);
        new.config = config;
        let link = Link { partition, previous: Version(0), version };
        let slot = self.insert(Box::new(new));
        self.stage_change(slot, link, Change::Created { created_at }, Vec::new());
        Ok(slot)
    }

    /// A partition more takes room in every checkpoint from now on, the one that ends the next opening too. Where there is
    /// none for data either, or only the part of the ring is left that deletions need, none is made (rule 9).
    fn refuse_new(&mut self, now: Now) -> Result<(), ChangeError> {
        if self.stopped.is_some() || self.is_closed() {
            return Err(ChangeError::Stopped);
        }
        let starved = self.is_starved();
        if starved || self.full && !self.shards.iter().any(Shard::holds_another) {
            self.space_again.get_or_insert(now.monotonic + SPACE_RETRY);
            if !starved {
                // What another core frees is told to nobody: whoever was refused asks again.
                let shard = self.shard_without_slab().or_else(|| self.least_loaded_shard());
                self.request_slab(now, shard.expect("a core has shards"), SlabNeed::Data);
            }
            return Err(ChangeError::Full);
        }
        if !self.lane.has_room(SMALL, false) {
            self.someone_waits = true;
            return Err(ChangeError::Pressure);
        }
        Ok(())
    }

    fn least_loaded_shard(&self) -> Option<ShardId> {
        self.shards.iter().min_by_key(|shard| shard.load()).map(|shard| shard.id)
    }

    /// The shard whose first slab is on its way, else the least-loaded without one.
    fn shard_without_slab(&self) -> Option<ShardId> {
        let without = self.shards.iter().filter(|shard| shard.space.total_units() == 0);
        let coming = without.clone().find(|shard| matches!(shard.slab_request, SlabRequest::Sent { .. }));
        coming.or_else(|| without.min_by_key(|shard| shard.load())).map(|shard| shard.id)
    }

    /// The least-loaded shard among those that have a slab; another is asked for meanwhile, so that the next ones
    /// spread over more shards as far as there are slabs for them.
    fn shard_for_new(&mut self, now: Now) -> ShardId {
        let full = self.full;
        let takes = |shard: &&Shard| shard.space.total_units() > 0 && (!full || shard.holds_another());
        let found =
            self.shards.iter().filter(takes).min_by_key(|shard| shard.load()).map(|shard| (shard.id, shard.partitions));
        let next = self.shard_without_slab();
        if let Some(next) = next
            && found.is_none_or(|(_, partitions)| partitions > 0)
        {
            self.request_slab(now, next, SlabNeed::Data);
        }
        if let Some((shard, _)) = found
            && self.shard_mut(shard).is_short()
        {
            self.request_slab(now, shard, SlabNeed::Data);
        }
        found.map(|(shard, _)| shard).or(next).expect("a core has shards")
    }

    pub(crate) fn insert(&mut self, partition: Box<Partition>) -> LogSlot {
        let (id, shard) = (partition.id, partition.shard);
        let Ok(token) = self.partitions.insert(partition) else { unreachable!("the slots grow") };
        self.by_id.insert(id, LogSlot::of(token));
        self.shard_mut(shard).partitions += 1;
        LogSlot::of(token)
    }

    /// Deletes the partition: one record; its extents are freed when that is durable and nobody reads them.
    pub fn delete(&mut self, slot: LogSlot) -> Result<(), ChangeError> {
        let shard = self.partition(slot).ok_or(ChangeError::Unknown)?.shard;
        self.reserve_change(SMALL)?;
        let version = self.shard_mut(shard).take_version();
        let mut partition = self.partitions.remove(slot.token()).expect("it was there");
        self.by_id.remove(&partition.id);
        self.shard_mut(shard).partitions -= 1;
        let link = partition.link(version);
        let extents = partition.apply(&Change::Deleted);
        let view = RecordView { shard, record: Record::Partition(link, Change::Deleted) };
        extents.iter().for_each(|freed| self.cache.forget_index(freed.tenancy));
        let effects = vec![Effect::Freed { shard, extents }, Effect::Deleted { partition: partition.id }];
        self.stage_record(&view, effects);
        self.truncations.remove(&slot);
        Ok(())
    }

    pub fn configure(&mut self, slot: LogSlot, config: LogConfig) -> Result<(), ChangeError> {
        self.note_flush_age(&config);
        self.partition_mut(slot).ok_or(ChangeError::Unknown)?.config = config;
        Ok(())
    }

    fn note_flush_age(&mut self, config: &LogConfig) {
        if let Some(age) = config.flush_age {
            let age = age.max(std::time::Duration::from_millis(1));
            self.cache_flush.shortest = Some(self.cache_flush.shortest.map_or(age, |shortest| shortest.min(age)));
        }
    }

    pub fn config(&self, slot: LogSlot) -> Option<&LogConfig> {
        self.partition(slot).map(|partition| &partition.config)
    }

    /// Stages a change that the partition has not applied yet, and applies it.
    pub(crate) fn change(
        &mut self,
        slot: LogSlot,
        change: Change<'_>,
        mut effects: Vec<Effect>,
    ) -> Result<(), ChangeError> {
        let shard = self.partition(slot).ok_or(ChangeError::Unknown)?.shard;
        let probe = Link { partition: PartitionId::default(), previous: Version(0), version: Version(1) };
        let len = RecordView { shard, record: Record::Partition(probe, change.clone()) }.encoded_len();
        self.reserve_change(len)?;
        let version = self.shard_mut(shard).take_version();
        let partition = self.partition_mut(slot).ok_or(ChangeError::Unknown)?;
        let link = partition.link(version);
        let extents = partition.apply(&change);
        if let Change::Truncated(truncated) = &change {
            // Appends before it may become durable later, but not beyond the cut.
            partition.cuts.push((version, truncated.to));
            effects.push(Effect::Cut { slot, version });
        }
        let voided = partition.index_voided_by(&change);
        extents.iter().map(|freed| freed.tenancy).chain(voided).for_each(|tenancy| self.cache.forget_index(tenancy));
        let freed = !extents.is_empty();
        if freed {
            effects.push(Effect::Freed { shard, extents });
        }
        self.stage_change(slot, link, change, effects);
        if freed {
            self.recheckpoint(slot);
        }
        Ok(())
    }

    /// A leadership began at the log's end; both numbers rise.
    pub fn start_epoch(&mut self, slot: LogSlot, epoch: LeaderEpoch, offset: Offset) -> Result<(), ChangeError> {
        let partition = self.partition(slot).ok_or(ChangeError::Unknown)?;
        if partition.epochs.latest().is_some_and(|last| epoch <= last.epoch) {
            return Err(ChangeError::StaleEpoch);
        }
        if offset != partition.end {
            return Err(ChangeError::OutOfRange);
        }
        self.refuse_while_truncating(slot)?;
        self.change(slot, Change::EpochStarted { epoch, offset }, Vec::new())
    }

    /// Moves the log's start forward (DeleteRecords, a leader's start): `LogStartMoved` comes when it is durable.
    pub fn set_log_start(&mut self, slot: LogSlot, to: Offset) -> Result<(), ChangeError> {
        let partition = self.partition(slot).ok_or(ChangeError::Unknown)?;
        if to > partition.durable {
            return Err(ChangeError::OutOfRange);
        }
        let start = partition.log_start;
        if to <= start && self.lane.is_idle() {
            self.events.push(LogEvent::LogStartMoved { slot, to: start });
            return Ok(());
        }
        // The one that moved it there may be on its way still: this one is durable after it.
        let to = to.max(start);
        self.refuse_while_truncating(slot)?;
        self.change(slot, Change::LogStartMoved { to }, vec![Effect::LogStart { slot, to }])
    }

    /// A cut that is being looked for must find the log as it was.
    fn refuse_while_truncating(&mut self, slot: LogSlot) -> Result<(), ChangeError> {
        if self.partition(slot).is_some_and(|partition| partition.truncation.is_some()) {
            self.someone_waits = true;
            return Err(ChangeError::Pressure);
        }
        Ok(())
    }

    /// Drops everything and starts anew at `at`, the leader's log start lying beyond our end.
    pub fn restart_at(&mut self, slot: LogSlot, at: Offset) -> Result<(), ChangeError> {
        let partition = self.partition(slot).ok_or(ChangeError::Unknown)?;
        if !partition.pending.is_empty() || partition.truncation.is_some() {
            self.someone_waits = true;
            return Err(ChangeError::Pressure);
        }
        self.change(slot, Change::Restarted { at }, vec![Effect::LogStart { slot, to: at }])
    }

    /// Told at every advance; it is written down now and then, as a hint for a restart.
    pub fn record_high_watermark(&mut self, now: Now, slot: LogSlot, offset: Offset) {
        let due = now.monotonic + self.options.high_watermark_interval;
        let Some(partition) = self.partition_mut(slot) else { return };
        partition.advance_high_watermark(offset);
        if !partition.high_watermark_queued && partition.high_watermark > partition.high_watermark_recorded {
            partition.high_watermark_queued = true;
            self.high_watermarks.push_back((due, slot));
        }
    }

    pub(crate) fn poll_high_watermarks(&mut self, now: Now) {
        while let Some((due, slot)) = self.high_watermarks.front().copied() {
            if due > now.monotonic {
                return;
            }
            self.high_watermarks.pop_front();
            let Some(partition) = self.partition_mut(slot) else { continue };
            partition.high_watermark_queued = false;
            let offset = partition.high_watermark;
            if offset > partition.high_watermark_recorded
                && self.change(slot, Change::HighWatermark { offset }, Vec::new()).is_ok()
                && let Some(partition) = self.partition_mut(slot)
            {
                partition.high_watermark_recorded = offset;
            }
        }
    }

    /// Forgets producers that wrote nothing since `before`; gives how many.
    pub fn expire_producers(&mut self, slot: LogSlot, before: WallMillis) -> usize {
        let Some(partition) = self.partition_mut(slot) else { return 0 };
        let expired = partition.producers.expire(before);
        partition.changed |= expired > 0;
        expired
    }

    /// The operator takes the loss of whatever a suspect partition had beyond its end.
    pub fn accept_loss(&mut self, slot: LogSlot) -> Result<(), ChangeError> {
        let end = self.partition(slot).ok_or(ChangeError::Unknown)?.end;
        self.change(slot, Change::LossAccepted { end }, Vec::new())
    }

    /// The operator gives up bytes of an extent that cannot be read any more: ranges of whole stretches and whole batches.
    /// Readers go on behind them.
    pub fn give_up(&mut self, slot: LogSlot, tenancy: Tenancy, ranges: &[GivenUp]) -> Result<(), ChangeError> {
        let partition = self.partition(slot).ok_or(ChangeError::Unknown)?;
        let extent = partition.extent(tenancy).ok_or(ChangeError::Unknown)?;
        if ranges.iter().any(|range| range.from >= range.to || u64::from(range.to) > extent.len) {
            return Err(ChangeError::OutOfRange);
        }
        self.refuse_while_truncating(slot)?;
        self.change(slot, Change::GivenUp { tenancy, ranges: ranges.to_vec() }, Vec::new())?;
        self.recheckpoint(slot);
        Ok(())
    }

    /// Saves the view's snapshot on the core that has shard 0; `ViewSaved` comes when it is durable. A newer one
    /// replaces one that was not staged yet.
    pub fn save_view(&mut self, bytes: Vec<u8>, metadata_offset: i64) -> Result<(), ChangeError> {
        if self.stopped.is_some() {
            return Err(ChangeError::Stopped);
        }
        if !self.shards.iter().any(|shard| shard.id == ShardId(0)) {
            return Err(ChangeError::Unknown);
        }
        self.view_queue = Some(SavedView { metadata_offset, bytes });
        self.poll_view();
        Ok(())
    }

    pub(crate) fn poll_view(&mut self) {
        let Some(view) = self.view_queue.take() else { return };
        let chunk_max = self.lane.record_max() / 2;
        let records = view.bytes.len().div_ceil(chunk_max).max(1);
        if self.reserve(view.bytes.len().min(chunk_max) + SMALL, true).is_err()
            || !self.lane.has_room(view.bytes.len() + records * SMALL, true)
        {
            self.view_queue = Some(view);
            return;
        }
        let total = view.bytes.len() as u32;
        for number in 0..records {
            let from = number * chunk_max;
            let bytes = &view.bytes[from..view.bytes.len().min(from + chunk_max)];
            let record = Record::ImageApplied { metadata_offset: view.metadata_offset, total, at: from as u32, bytes };
            let record = RecordView { shard: ShardId(0), record };
            if let Err(NoMemory) = self.reserve(record.encoded_len(), true) {
                // What is staged of it is void without its last part; the whole comes again.
                self.view_queue = Some(view);
                return;
            }
            let last = number + 1 == records;
            let effects = if last { vec![Effect::View { metadata_offset: view.metadata_offset }] } else { Vec::new() };
            self.stage_record(&record, effects);
        }
        let shard = self.shard_mut(ShardId(0));
        shard.view = Some(view);
        shard.view_changed = true;
    }
}
