//! One core's store: its partitions, shards and lane, and what every other module here works on.

use crate::api::*;
use crate::cache::ReadCache;
use crate::checkpoint::Round;
use crate::config::StoreOptions;
use crate::io::Io;
use crate::lane::{Effect, Lane, NoMemory};
use crate::partition::Partition;
use crate::partition::epochs::EpochTable;
use crate::partition::producers::{ProducerTable, Transactions};
use crate::reads::Reads;
use crate::ring_zeroes::RingZeroes;
use crate::shard::{Quarantined, SavedView, Shard, SlabRequest};
use crate::tails::Tails;
use arena::{Arena, BufferRef};
use base::{CoreId, DeletionClock, IdMap, Monotonic, Now, Offset, PartitionId, Random, ShardId, Slots};
use nvme_format::SlabId;
use nvme_format::blob::Segment;
use nvme_format::record::{Change, Record, RecordView};
use nvme_format::region::RegionMap;
use nvme_plan::Geometry;
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

/// After a refusal for want of space it is asked for again.
pub(crate) const SPACE_RETRY: Duration = Duration::from_millis(100);

pub struct Store {
    pub(crate) core: CoreId,
    pub(crate) cores: u16,
    pub(crate) options: StoreOptions,
    pub(crate) namespace: base::Uuid,
    pub(crate) map: RegionMap,
    pub(crate) geometry: Geometry,
    pub(crate) arena: Arena,
    pub(crate) random: Random,
    pub(crate) partitions: Slots<Box<Partition>>,
    pub(crate) by_id: IdMap<PartitionId, LogSlot>,
    pub(crate) shards: Vec<Shard>,
    pub(crate) lane: Lane,
    pub(crate) io: Io,
    pub(crate) tails: Tails,
    pub(crate) cache: ReadCache,
    pub(crate) reads: Reads,
    pub(crate) quarantine: VecDeque<Quarantined>,
    pub(crate) round: Option<Round>,
    pub(crate) last_round: RoundMark,
    pub(crate) rounds: u64,
    pub(crate) checkpoint_wanted: bool,
    pub(crate) copy_out: VecDeque<LogSlot>,
    pub(crate) copy_outs_in_flight: usize,
    pub(crate) data_first_in_flight: usize,
    pub(crate) next_number: u64,
    pub(crate) next_retention: Monotonic,
    pub(crate) deletion_clock: DeletionClock,
    /// Partitions that the round of retention at hand has yet to look at.
    pub(crate) retention_round: Vec<LogSlot>,
    pub(crate) high_watermarks: VecDeque<(Monotonic, LogSlot)>,
    pub(crate) cache_flush: CacheFlush,
    pub(crate) pressure: PressureLevel,
    /// Someone was refused for pressure, and something changed since that may help.
    pub(crate) someone_waits: bool,
    /// They are not told of room before, but by what makes it.
    pub(crate) next_room: Monotonic,
    /// A partition was refused for want of space: when it may be tried again. Not at each room that is made, which is in
    /// every turn, and kept a full node's loops busy (and from ending) for good.
    pub(crate) space_again: Option<Monotonic>,
    /// A turn's background part has begun a commit.
    pub(crate) staged_behind: bool,
    pub(crate) room_made: bool,
    pub(crate) requests: VecDeque<KeeperRequest>,
    pub(crate) truncations: BTreeSet<LogSlot>,
    /// Reads of the store itself, for truncations.
    pub(crate) own_reads: IdMap<ReadTicket, LogSlot>,
    pub(crate) view_queue: Option<SavedView>,
    pub(crate) stopping: Stopping,
    pub(crate) stopped: Option<StopReason>,
    pub(crate) events: Vec<LogEvent>,
    /// Partitions whose ready records found no room in the ring.
    pub(crate) stalled: BTreeSet<LogSlot>,
    /// The arena had no memory since the last turn: the caches give half of theirs back.
    pub(crate) short_of_memory: bool,
    pub(crate) idle: Idleness,
    /// Units were freed since slabs were last looked at.
    pub(crate) units_freed: bool,
    pub(crate) next_quarantine: Monotonic,
    /// By the keeper's last word no slab is left for data, and nothing was freed since.
    pub(crate) full: bool,
    /// What is left to write of a ring that never was written.
    pub(crate) ring_zeroes: Option<RingZeroes>,
}

/// Where the lane stood when a checkpoint round began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RoundMark {
    pub position: u64,
}

/// Flushes under `Durability::Cache`.
#[derive(Clone, Debug, Default)]
pub(crate) struct CacheFlush {
    pub in_flight: bool,
    pub last: Monotonic,
    pub wanted: bool,
    /// Appends that reached their topic's `flush.messages`, and those of their partitions behind them, with the commit
    /// that they are in: as in Kafka they are acknowledged once they are flushed.
    pub held: VecDeque<(u64, Effect)>,
    /// The shortest `flush.ms` that was configured.
    pub shortest: Option<Duration>,
}

/// When records were last written or read, and what an idle store has given back.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Idleness {
    /// Since the last turn.
    pub used: bool,
    pub last_use: Monotonic,
    /// Cached pieces that were looked at since one could last be let go of.
    pub looked: usize,
    /// What could be let go of has been; a completion may allow more.
    pub given_back: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stopping {
    No,
    /// A checkpoint round runs, and then the stop commit.
    Checkpointing,
    Committing,
    Done,
}

impl Store {
    pub fn core(&self) -> CoreId {
        self.core
    }

    /// The largest batch that this namespace can hold: `max.message.bytes` above it is refused when it is set.
    pub fn batch_max(&self) -> u64 {
        self.map.batch_max()
    }

    pub fn find(&self, partition: PartitionId) -> Option<LogSlot> {
        self.by_id.get(&partition).copied()
    }

    /// Every partition, in an order that does not change while none is created or deleted.
    pub fn slots(&self) -> impl Iterator<Item = (LogSlot, PartitionId)> {
        self.slots_from(None)
    }

    /// In that order, from this one's place on: for who looks at some of them at a time.
    pub fn slots_from(&self, first: Option<LogSlot>) -> impl Iterator<Item = (LogSlot, PartitionId)> {
        let first = first.map_or(0, |slot| slot.token().index());
        self.partitions.iter_from(first).map(|(token, partition)| (LogSlot::of(token), partition.id))
    }

    pub fn partition_count(&self) -> usize {
        self.partitions.len()
    }

    pub(crate) fn partition(&self, slot: LogSlot) -> Option<&Partition> {
        self.partitions.get(slot.token()).map(|partition| &**partition)
    }

    pub(crate) fn partition_mut(&mut self, slot: LogSlot) -> Option<&mut Partition> {
        self.partitions.get_mut(slot.token()).map(|partition| &mut **partition)
    }

    fn known(&self, slot: LogSlot) -> &Partition {
        self.partition(slot).expect("a slot is used only while its partition is open")
    }

    pub fn is_open(&self, slot: LogSlot) -> bool {
        self.partition(slot).is_some()
    }

    pub fn partition_id(&self, slot: LogSlot) -> PartitionId {
        self.known(slot).id
    }

    pub fn shard(&self, slot: LogSlot) -> ShardId {
        self.known(slot).shard
    }

    /// The metadata offset that it was created at.
    pub fn created_at(&self, slot: LogSlot) -> i64 {
        self.known(slot).created_at
    }

    pub fn end_offset(&self, slot: LogSlot) -> Offset {
        self.known(slot).end
    }

    pub fn durable_offset(&self, slot: LogSlot) -> Offset {
        self.known(slot).durable
    }

    pub fn log_start(&self, slot: LogSlot) -> Offset {
        self.known(slot).log_start
    }

    /// The high watermark as last told, or as recovered: at most the true one.
    pub fn high_watermark_hint(&self, slot: LogSlot) -> Offset {
        self.known(slot).high_watermark
    }

    pub fn epochs(&self, slot: LogSlot) -> &EpochTable {
        &self.known(slot).epochs
    }

    pub fn producers(&self, slot: LogSlot) -> &ProducerTable {
        &self.known(slot).producers
    }

    pub fn transactions(&self, slot: LogSlot) -> &Transactions {
        &self.known(slot).transactions
    }

    /// The first offset that a read of committed records may not pass: of an open transaction, or of an ended one whose
    /// marker is not below the high watermark.
    pub fn first_unstable(&self, slot: LogSlot, high_watermark: Offset) -> Option<Offset> {
        let partition = self.known(slot);
        let unreplicated = partition.transactions.first_unreplicated(high_watermark);
        [partition.producers.first_open(), unreplicated].into_iter().flatten().min()
    }

    pub fn segments(&self, slot: LogSlot) -> impl Iterator<Item = (Segment, u64)> {
        let partition = self.known(slot);
        (0..partition.segments.len()).map(|index| (partition.segments[index], partition.segment_bytes(index)))
    }

    /// Bytes of all segments: Kafka's log size.
    pub fn log_bytes(&self, slot: LogSlot) -> u64 {
        let partition = self.known(slot);
        partition.end_position - partition.segments[0].position.0
    }

    /// From which offset on records of it may be lost; it refuses appends until that is repaired or accepted.
    pub fn suspect_from(&self, slot: LogSlot) -> Option<Offset> {
        self.known(slot).suspect
    }

    /// Partitions whose records may be lost, and from where on.
    pub fn suspects(&self) -> Vec<(PartitionId, Offset)> {
        let suspect = |partition: &Partition| partition.suspect.map(|from| (partition.id, from));
        self.partitions.iter().filter_map(|(_, partition)| suspect(partition)).collect()
    }

    /// When a batch was last appended, by the clock of the node, as far as segments still tell.
    pub fn last_appended_at(&self, slot: LogSlot) -> base::WallMillis {
        let times = self.known(slot).segments.iter().map(|segment| segment.modified);
        times.max().unwrap_or(base::WallMillis(0))
    }

    /// Commits carry the promise themselves from now on, or are followed by a flush: whichever was measured to be faster.
    pub fn set_durable_writes(&mut self, durable: bool) {
        self.options.durable_writes = durable;
    }

    pub fn stop_reason(&self) -> Option<StopReason> {
        self.stopped
    }

    pub fn pressure(&self) -> PressureLevel {
        self.pressure
    }

    /// Un-trimmed blocks of the ring, and all of them.
    pub fn journal_use(&self) -> (u64, u64) {
        (self.lane.untrimmed(), self.lane.ring_blocks())
    }

    /// Free and all bytes of the slabs that this core's shards own.
    pub fn space_use(&self) -> (u64, u64) {
        let unit = nvme_format::EXTENT_UNIT;
        let sum = |count: fn(&Shard) -> u64| self.shards.iter().map(count).sum::<u64>() * unit;
        (sum(|shard| shard.space.free_units()), sum(|shard| shard.space.total_units()))
    }

    /// The view's snapshot as it was saved last (the core of shard 0 has it).
    pub fn saved_view(&self) -> Option<&SavedView> {
        self.shards.iter().find(|shard| shard.id == ShardId(0))?.view.as_ref()
    }

    /// What the keeper is asked since the last call.
    pub fn take_keeper_request(&mut self) -> Option<KeeperRequest> {
        self.requests.pop_front()
    }

    pub(crate) fn shard_index(&self, shard: ShardId) -> usize {
        self.shards.iter().position(|own| own.id == shard).expect("a partition's shard is its core's")
    }

    pub(crate) fn shard_mut(&mut self, shard: ShardId) -> &mut Shard {
        let index = self.shard_index(shard);
        &mut self.shards[index]
    }

    /// Stages a change of a partition behind everything that waits for it; the partition has applied it already.
    /// `reserve_for` came before, so memory and ring are there.
    pub(crate) fn stage_change(
        &mut self,
        slot: LogSlot,
        link: nvme_format::record::Link,
        change: Change<'_>,
        effects: Vec<Effect>,
    ) {
        let shard = self.partitions.get(slot.token()).map(|p| p.shard).expect("an open partition");
        let view = RecordView { shard, record: Record::Partition(link, change) };
        let number = self.next_number;
        let partition = self.partitions.get_mut(slot.token()).expect("an open partition");
        if partition.pending.is_empty() {
            self.stage_record(&view, effects);
            return;
        }
        self.next_number += 1;
        let mut record = Vec::with_capacity(view.encoded_len());
        view.encode(&mut record);
        partition.pending.queue.push_back(crate::pending::PendingRecord {
            record: BufferRef::from_vec(record),
            effects,
            waits_for: 0,
            needs_flush: false,
            number,
        });
    }

    pub(crate) fn stage_record(&mut self, view: &RecordView<'_>, effects: Vec<Effect>) {
        let len = view.encoded_len();
        let (_, bytes) = self.lane.push(len);
        view.encode(&mut nvme_format::codec::SliceSink::new(bytes));
        for effect in effects {
            self.lane.note_effect(effect);
        }
    }

    /// Memory and ring for `len` bytes of records, or none of them.
    pub(crate) fn reserve(&mut self, len: usize, internal: bool) -> Result<(), NoMemory> {
        // Nothing follows the stop commit: the next opening would take the stop for a crash.
        if self.is_closed() || !self.lane.has_room(len, internal) {
            return Err(NoMemory);
        }
        let result = self.lane.reserve(&self.arena, len);
        self.short_of_memory |= result.is_err();
        self.resolve_tails();
        result
    }

    /// The commit that says that the stop is clean is staged, or stands.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.stopping, Stopping::Committing | Stopping::Done)
    }

    /// As `reserve` for a caller that is told to come back.
    pub(crate) fn reserve_change(&mut self, len: usize) -> Result<(), ChangeError> {
        if self.stopped.is_some() || self.is_closed() {
            return Err(ChangeError::Stopped);
        }
        self.reserve(len, true).map_err(|NoMemory| {
            self.someone_waits = true;
            ChangeError::Pressure
        })
    }

    /// Tells the partitions where the bytes of closed commits are.
    pub(crate) fn resolve_tails(&mut self) {
        for (buffer, pieces) in std::mem::take(&mut self.lane.resolved) {
            for (slot, position) in pieces {
                if let Some(partition) = self.partitions.get_mut(slot.token()) {
                    partition.tail.resolve(position, &buffer);
                }
            }
        }
    }

    pub(crate) fn deadline(&self, now: Now) -> Option<Monotonic> {
        Some(now.monotonic + self.options.write_deadline)
    }

    /// Asks the keeper for a slab unless that is on its way.
    pub(crate) fn request_slab(&mut self, now: Now, shard: ShardId, need: SlabNeed) {
        let own = self.shard_mut(shard);
        let ask = match own.slab_request {
            SlabRequest::None => true,
            SlabRequest::Sent { .. } => false,
            // What was refused to data may be had for a checkpoint.
            SlabRequest::Refused { need: refused, .. }
                if refused != SlabNeed::Internal && need == SlabNeed::Internal =>
            {
                true
            }
            SlabRequest::Refused { at, .. } => now.monotonic.since(at) >= SPACE_RETRY,
        };
        if ask {
            own.slab_request = SlabRequest::Sent { need };
            self.requests.push_back(KeeperRequest::Slab { shard, need });
        }
    }

    pub fn on_keeper_reply(&mut self, now: Now, reply: KeeperReply) {
        match reply {
            KeeperReply::Full { shard } => {
                self.full = true;
                self.hasten_retention(now);
                let own = self.shard_mut(shard);
                let need = if let SlabRequest::Sent { need } = own.slab_request { need } else { SlabNeed::Data };
                own.slab_request = SlabRequest::Refused { at: now.monotonic, need };
                self.room_made = true;
                // What shards without partitions have got ahead goes back: it is asked for again soon.
                self.shards.iter_mut().for_each(|shard| shard.keeps_ahead = false);
                self.units_freed = true;
            }
            KeeperReply::NotNow { shard } => self.shard_mut(shard).slab_request = SlabRequest::None,
            KeeperReply::Slab { shard, slab, reserve } => {
                self.full = reserve;
                self.on_slab(shard, slab);
                self.space_again = self.space_again.map(|_| now.monotonic);
            }
        }
    }

    fn on_slab(&mut self, shard: ShardId, slab: SlabId) {
        let record = RecordView { shard, record: Record::SlabTaken { slab } };
        let len = record.encoded_len();
        if self.stopped.is_some() || self.reserve(len, true).is_err() {
            // Nothing was taken yet: the slab goes back, and the shard asks again when it needs one.
            self.requests.push_back(KeeperRequest::Released { slab });
            self.shard_mut(shard).slab_request = SlabRequest::None;
            return;
        }
        let own = self.shard_mut(shard);
        own.slab_request = SlabRequest::None;
        own.space.add(slab, false);
        self.stage_record(&record, vec![Effect::SlabTaken { shard, slab }]);
        self.room_made = true;
    }
}
