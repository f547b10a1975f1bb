//! The turn of a store: closing and submitting commits, taking completions, telling what is durable.

use crate::api::*;
use crate::config::Durability;
use crate::io::{Purpose, split_write};
use crate::lane::{CommitInFlight, CommitStep, Effect};
use crate::shard::Quarantined;
use crate::store::{Stopping, Store};
use base::{BlockRange, Monotonic, Now, ShardId};
use nvme_format::journal::CommitKind;
use nvme_plan::{Class, Completion, DeviceError, Operation, Plan, Promise};
use std::time::Duration;

/// Commits in flight on a device without a volatile cache.
const DEPTH_WITHOUT_FLUSH: usize = 4;
/// How often freed extents are looked at, and how many at once.
const QUARANTINE_EVERY: Duration = Duration::from_millis(1);
const QUARANTINE_A_TURN: usize = 256;
/// How often those who wait for room try again while nothing is in flight: memory is given back without a word.
const ROOM_RETRY: Duration = Duration::from_millis(1);

impl Store {
    /// The part of a turn for which answers wait: stages what is due, emits requests in the order in which they are to be
    /// submitted, and gives the events of this turn and of the completions before it. `poll_background` is the rest.
    pub fn poll(&mut self, now: Now, plan: &mut Plan, events: &mut Vec<LogEvent>) {
        if self.stopped.is_none() {
            self.lane.forget_unused();
            self.poll_stalled();
            self.poll_high_watermarks(now);
            self.poll_retention(now);
            self.poll_view();
            self.poll_truncations(now);
            self.poll_stopping();
            self.poll_checkpoint(now);
            self.poll_marker(now);
            self.poll_commits(now);
            self.poll_pressure(now);
        }
        self.poll_reads(now);
        plan.append(&mut self.io.plan);
        events.append(&mut self.events);
    }

    /// The part of a turn for which nobody waits, once its answers have left: gathering a copy-out's bytes and submitting
    /// them takes longer than everything that a produce needs.
    pub fn poll_background(&mut self, now: Now, plan: &mut Plan, events: &mut Vec<LogEvent>) {
        let open = self.lane.has_open();
        if self.stopped.is_none() {
            self.poll_cache_flush(now);
            self.poll_tails(now);
            self.poll_copy_out(now);
            self.poll_quarantine(now);
            self.poll_slabs(now);
            self.poll_ring_zeroes(now);
        }
        self.staged_behind = !open && self.lane.has_open();
        plan.append(&mut self.io.plan);
        events.append(&mut self.events);
    }

    /// Whether `poll_background` has left what only the next turn takes up: requests to the keeper, a record to commit,
    /// room that somebody waits for. Whoever sleeps first leaves it until some deadline.
    pub fn is_owed_a_turn(&self) -> bool {
        !self.requests.is_empty() || self.staged_behind || (self.someone_waits && self.room_made)
    }

    pub fn on_completion(&mut self, now: Now, completion: Completion, events: &mut Vec<LogEvent>) {
        let Some(purpose) = self.io.take(completion.token) else { return };
        if let Purpose::Read(plan) = purpose {
            let into = match completion.operation {
                Some(Operation::Read { into, .. }) => Some(into),
                _ => None,
            };
            self.on_read(now, plan, into, completion.result);
        } else {
            match completion.result {
                Ok(()) => self.on_written(now, purpose),
                Err(error) => self.on_failed(now, &purpose, error),
            }
        }
        events.append(&mut self.events);
    }

    fn on_written(&mut self, now: Now, purpose: Purpose) {
        match purpose {
            Purpose::Commit { sequence } => self.on_commit_part(now, sequence),
            Purpose::CommitFlush { sequence } => {
                if let Some(commit) = self.commit_in_flight(sequence) {
                    commit.step = CommitStep::Complete;
                }
                self.advance_durable(now);
            }
            Purpose::CacheFlush { sequence } => {
                self.cache_flush.in_flight = false;
                self.lane.flushed = self.lane.flushed.max(sequence);
                self.lane.quiet_since = now.monotonic;
                while self.cache_flush.held.front().is_some_and(|(commit, _)| *commit <= sequence) {
                    let (_, effect) = self.cache_flush.held.pop_front().expect("there is a first one");
                    self.take_effect(effect);
                }
            }
            Purpose::DataFirst { slot, tenancy, from, to, number } => {
                self.data_first_in_flight -= 1;
                if let Some(partition) = self.partition_mut(slot) {
                    if let Some(extent) = partition.extent_mut(tenancy) {
                        extent.complete(from, to);
                    }
                    partition.pending.on_part_complete(number);
                    self.drain_pending(slot);
                }
                self.room_made = true;
            }
            Purpose::CopyOut { slot, tenancy, from, to, index } => self.on_copy_out(slot, tenancy, (from, to), index),
            Purpose::Read(_) => unreachable!("reads were told apart"),
            Purpose::CheckpointBody
            | Purpose::CheckpointFlush
            | Purpose::CheckpointRoot
            | Purpose::CheckpointRootFlush => self.on_checkpoint_written(now, &purpose),
            Purpose::RingZeroes => self.on_ring_zeroes(),
            Purpose::Withdrawal => {}
        }
    }

    /// What a failed flush should have saved can still be read, and is lost with the power though every later flush succeeds.
    /// The next opening would find the commit whole, and the direct writes that it tells of, and believe them: a power cut
    /// minutes later left a hole in a log, with acknowledged records behind it (seed 1797101311 of the node's simulation).
    /// Nobody was told of this commit, so it is taken back, as far as the device lets us: its first block becomes zeroes.
    /// To write the direct writes again in the opening instead is worse: some of them are durable and acknowledged, and may
    /// tear (seed 1797006683).
    fn withdraw(&mut self, now: Now, sequence: u64) {
        let deadline = self.deadline(now);
        let Some(commit) = self.commit_in_flight(sequence) else { return };
        let operation = Operation::WriteZeroes { range: BlockRange::new(commit.start, 1) };
        self.io.emit(Purpose::Withdrawal, Class::Commit, deadline, operation);
    }

    /// Rule 6: nothing since the last good flush is known, and nothing is tried again.
    fn on_failed(&mut self, now: Now, purpose: &Purpose, error: DeviceError) {
        if let Purpose::CommitFlush { sequence } = purpose {
            self.withdraw(now, *sequence);
        }
        let reason = match purpose {
            Purpose::Commit { .. } => StopReason::Commit(error),
            Purpose::DataFirst { .. } | Purpose::CopyOut { .. } | Purpose::Read(_) | Purpose::RingZeroes => {
                StopReason::Data(error)
            }
            Purpose::CommitFlush { .. } | Purpose::CacheFlush { .. } => StopReason::Flush(error),
            // The namespace has stopped already.
            Purpose::Withdrawal => return,
            _ => StopReason::Checkpoint(error),
        };
        self.stop_namespace(reason);
    }

    /// The namespace has failed on another core, or here.
    pub fn stop_namespace(&mut self, reason: StopReason) {
        if self.stopped.is_some() {
            return;
        }
        self.stopped = Some(reason);
        self.events.push(LogEvent::NamespaceStopped { reason });
        for (token, partition) in self.partitions.iter() {
            if partition.durable < partition.end {
                let slot = LogSlot::of(token);
                self.events.push(LogEvent::AppendFailed { slot, from: partition.durable });
            }
        }
    }

    fn depth(&self) -> usize {
        let flushes = self.options.durability == Durability::Cache || self.geometry.volatile_write_cache;
        if flushes { 1 } else { DEPTH_WITHOUT_FLUSH }
    }

    fn poll_commits(&mut self, now: Now) {
        let depth = self.depth();
        while self.lane.in_flight.len() < depth {
            if self.lane.closed.is_empty() && !(self.lane.wants_close(depth) && self.lane.close()) {
                break;
            }
            self.resolve_tails();
            self.submit_commit(now);
        }
    }

    fn submit_commit(&mut self, now: Now) {
        let Some(commit) = self.lane.closed.pop_front() else { return };
        let volatile = self.geometry.volatile_write_cache;
        let durable = self.options.durable_writes && self.geometry.durable_writes && !commit.needs_flush;
        let (promise, flush_after) = match self.options.durability {
            Durability::Cache => (Promise::Cached, false),
            Durability::Flush if !volatile => (Promise::Accepted, false),
            Durability::Flush if durable => (Promise::Durable, false),
            Durability::Flush => (Promise::Accepted, true),
        };
        let deadline = self.deadline(now);
        let purpose = Purpose::Commit { sequence: commit.sequence };
        let mut parts = 0;
        for (start, bytes) in &commit.writes {
            for (_, operation) in split_write(*start, bytes, self.geometry.transfer_max, promise) {
                self.io.emit(purpose.clone(), Class::Commit, deadline, operation);
                parts += 1;
            }
        }
        self.lane.quiet_since = now.monotonic;
        self.lane.in_flight.push_back(CommitInFlight {
            sequence: commit.sequence,
            start: commit.writes[0].0,
            step: CommitStep::Writing { parts },
            effects: commit.effects,
            flush_after,
            closed_at: now.monotonic,
            bytes: commit.writes.iter().map(|(_, bytes)| bytes.len()).sum(),
        });
    }

    fn commit_in_flight(&mut self, sequence: u64) -> Option<&mut CommitInFlight> {
        self.lane.in_flight.iter_mut().find(|commit| commit.sequence == sequence)
    }

    fn on_commit_part(&mut self, now: Now, sequence: u64) {
        let (deadline, stopped) = (self.deadline(now), self.stopped.is_some());
        let Some(commit) = self.commit_in_flight(sequence) else { return };
        let CommitStep::Writing { parts } = commit.step else { return };
        if parts > 1 {
            commit.step = CommitStep::Writing { parts: parts - 1 };
            return;
        }
        if commit.flush_after {
            if stopped {
                return self.withdraw(now, sequence);
            }
            commit.step = CommitStep::Flushing;
            self.io.emit(Purpose::CommitFlush { sequence }, Class::Commit, deadline, Operation::Flush);
            return;
        }
        commit.step = CommitStep::Complete;
        self.advance_durable(now);
    }

    /// A commit is durable when it and every earlier one of the lane are complete.
    fn advance_durable(&mut self, now: Now) {
        while self.lane.in_flight.front().is_some_and(|commit| commit.step == CommitStep::Complete) {
            let commit = self.lane.in_flight.pop_front().expect("there is a first one");
            self.lane.durable = commit.sequence;
            let took = now.monotonic.since(commit.closed_at);
            self.events.push(LogEvent::Committed { bytes: commit.bytes, took });
            self.lane.quiet_since = now.monotonic;
            if self.options.durability == Durability::Flush {
                self.lane.flushed = commit.sequence;
            }
            for effect in commit.effects {
                if self.waits_for_flush(&effect) {
                    self.cache_flush.held.push_back((commit.sequence, effect));
                } else {
                    self.take_effect(effect);
                }
            }
        }
        self.room_made = true;
    }

    fn take_effect(&mut self, effect: Effect) {
        match effect {
            Effect::Cut { slot, version } => {
                if let Some(partition) = self.partition_mut(slot) {
                    partition.cuts.retain(|(cut, _)| *cut > version);
                }
            }
            Effect::Durable { slot, version, up_to } => {
                let Some(partition) = self.partition_mut(slot) else { return };
                let cut = partition.cuts.iter().filter(|(cut, _)| *cut > version).map(|(_, to)| *to).min();
                let up_to = up_to.min(cut.unwrap_or(up_to)).min(partition.end);
                if up_to > partition.durable {
                    partition.durable = up_to;
                    self.note_durable(slot);
                    self.events.push(LogEvent::Durable { slot, up_to });
                }
            }
            Effect::Freed { shard, extents } => {
                self.quarantine.extend(extents.into_iter().map(|freed| Quarantined { shard, freed }));
            }
            Effect::Deleted { partition } => self.events.push(LogEvent::Deleted { partition }),
            Effect::LogStart { slot, to } => self.events.push(LogEvent::LogStartMoved { slot, to }),
            Effect::SlabTaken { shard, slab } => {
                self.shard_mut(shard).space.set_durable(slab);
                self.room_made = true;
            }
            Effect::SlabReleased { slab } => self.requests.push_back(KeeperRequest::Released { slab }),
            Effect::View { metadata_offset } => self.events.push(LogEvent::ViewSaved { metadata_offset }),
            Effect::Stopped => {
                self.stopping = Stopping::Done;
                self.events.push(LogEvent::Stopped);
            }
        }
    }

    /// Several `Durable` of a partition in one commit become one event: the last says it all.
    fn note_durable(&mut self, slot: LogSlot) {
        let same = |event: &LogEvent| matches!(event, LogEvent::Durable { slot: other, .. } if *other == slot);
        if self.events.last().is_some_and(same) {
            self.events.pop();
        }
    }

    /// Whether an append is told durable only after a flush: under cache durability, where its topic asks for one after so
    /// many messages.
    fn waits_for_flush(&mut self, effect: &Effect) -> bool {
        let Effect::Durable { slot, .. } = effect else { return false };
        if self.options.durability != Durability::Cache {
            return false;
        }
        let same = |(_, held): &(u64, Effect)| matches!(held, Effect::Durable { slot: other, .. } if other == slot);
        let behind = self.cache_flush.held.iter().any(same);
        let Some(partition) = self.partition_mut(*slot) else { return false };
        let due = partition.config.flush_messages.is_some_and(|messages| partition.unflushed >= messages);
        if due {
            partition.unflushed = 0;
        }
        self.cache_flush.wanted |= due || behind;
        due || behind
    }

    fn poll_stalled(&mut self) {
        for slot in std::mem::take(&mut self.stalled) {
            self.drain_pending(slot);
        }
    }

    /// Rule 4: what is durable and followed by nothing is stated durable, so that its loss would show.
    fn poll_marker(&mut self, now: Now) {
        let lane = &self.lane;
        let quiet = now.monotonic.since(lane.quiet_since) >= self.options.marker_delay;
        if !self.is_closed()
            && lane.is_idle()
            && quiet
            && lane.flushed >= lane.last_records
            && lane.stated < lane.last_records
            && lane.has_room(0, true)
        {
            // Without memory it is tried again next turn.
            let _ = self.lane.stage_marker(&self.arena, CommitKind::Marker);
        }
    }

    /// The store's own, or the shortest `flush.ms` of a partition.
    fn cache_flush_interval(&self) -> Duration {
        self.options.cache_flush_interval.min(self.cache_flush.shortest.unwrap_or(Duration::MAX))
    }

    // Tried without gain at 1,000 requests/s, alternating: to flush a little early, right behind a turn's answers, and to
    // flush every 10 s only. What is left of the 99th percentile there is not the flush.
    fn poll_cache_flush(&mut self, now: Now) {
        if self.options.durability != Durability::Cache || self.cache_flush.in_flight {
            return;
        }
        let due = now.monotonic.since(self.cache_flush.last) >= self.cache_flush_interval();
        if self.lane.durable > self.lane.flushed && (due || self.cache_flush.wanted) {
            self.cache_flush.in_flight = true;
            self.cache_flush.wanted = false;
            self.cache_flush.last = now.monotonic;
            let deadline = self.deadline(now);
            let purpose = Purpose::CacheFlush { sequence: self.lane.durable };
            self.io.emit(purpose, Class::Background, deadline, Operation::Flush);
        }
    }

    /// Frees what nobody reads, writes or holds a description of any more.
    fn poll_quarantine(&mut self, now: Now) {
        if self.quarantine.is_empty() || now.monotonic < self.next_quarantine {
            return;
        }
        self.next_quarantine = now.monotonic + QUARANTINE_EVERY;
        for _ in 0..self.quarantine.len().min(QUARANTINE_A_TURN) {
            let Some(held) = self.quarantine.pop_front() else { return };
            let described =
                held.freed.descriptions > 0 && held.freed.described_until.is_some_and(|until| until > now.monotonic);
            if described || self.io.is_busy(held.freed.tenancy) {
                self.quarantine.push_back(held);
                continue;
            }
            self.shard_mut(held.shard).space.release(held.freed.address);
            (self.room_made, self.units_freed, self.full) = (true, true, false);
        }
    }

    /// Slabs of which nothing is left go back to the keeper, but for the last one of a shard, which stays for its
    /// partitions, or for those to come while there are plenty.
    fn poll_slabs(&mut self, now: Now) {
        if !self.units_freed || self.round.is_some() {
            return;
        }
        self.ask_ahead(now);
        self.units_freed = false;
        for index in 0..self.shards.len() {
            let shard = &self.shards[index];
            let empty = shard.space.empty_slabs();
            let wanted = shard.partitions > 0 || shard.keeps_ahead;
            let keep = usize::from(wanted && empty.len() == shard.space.slabs().len());
            if empty.len() <= keep {
                continue;
            }
            self.units_freed = true;
            let (id, slab) = (shard.id, empty[empty.len() - 1]);
            let record = nvme_format::record::Record::SlabReleased { slab };
            let view = nvme_format::record::RecordView { shard: id, record };
            if self.reserve(view.encoded_len(), true).is_err() {
                return;
            }
            self.shards[index].space.remove(slab);
            self.stage_record(&view, vec![Effect::SlabReleased { slab }]);
        }
    }

    /// Once in a run each shard asks for its first slab before it has a partition: new partitions go to the least-loaded
    /// shard among those that have one, and many may come in one turn.
    fn ask_ahead(&mut self, now: Now) {
        let mut lacking: Vec<ShardId> = Vec::new();
        for shard in self.shards.iter_mut().filter(|shard| shard.space.total_units() == 0 && !shard.asked_ahead) {
            shard.asked_ahead = true;
            lacking.push(shard.id);
        }
        for shard in lacking {
            self.request_slab(now, shard, SlabNeed::Ahead);
        }
    }

    fn poll_pressure(&mut self, now: Now) {
        let (used, ring) = self.journal_use();
        let level = if used * 16 >= ring * 15 {
            PressureLevel::Refusing
        } else if used * 4 >= ring * 3 {
            PressureLevel::StopReading
        } else {
            PressureLevel::None
        };
        if level != self.pressure {
            self.pressure = level;
            self.events.push(LogEvent::Pressure { level });
        }
        let again = self.room_deadline().is_some_and(|at| at <= now.monotonic);
        if again {
            self.next_room = now.monotonic + ROOM_RETRY;
        }
        let room = self.someone_waits && self.room_made;
        if room || again || self.space_deadline().is_some_and(|at| at <= now.monotonic) {
            (self.someone_waits, self.space_again) = (false, None);
            self.events.push(LogEvent::Room);
        }
        self.room_made = false;
    }

    /// When whoever waits tries again though nothing is in flight that could tell of room.
    fn room_deadline(&self) -> Option<Monotonic> {
        (self.someone_waits && self.io.in_flight() == 0).then_some(self.next_room)
    }

    /// When whoever was refused for want of space is to try again; once a stop has begun, never.
    fn space_deadline(&self) -> Option<Monotonic> {
        self.space_again.filter(|_| self.stopping == Stopping::No)
    }

    /// When `poll` has something to do though nothing completes.
    pub fn next_deadline(&self) -> Option<Monotonic> {
        if self.stopped.is_some() {
            return None;
        }
        let lane = &self.lane;
        let marker = (lane.is_idle() && lane.stated < lane.last_records && lane.flushed >= lane.last_records)
            .then(|| lane.quiet_since + self.options.marker_delay);
        let flush = (self.options.durability == Durability::Cache
            && lane.durable > lane.flushed
            && !self.cache_flush.in_flight)
            .then(|| match self.cache_flush.wanted {
                true => Monotonic::ZERO,
                false => self.cache_flush.last + self.cache_flush_interval(),
            });
        let watermark = self.high_watermarks.front().map(|(due, _)| *due);
        // Those that nobody holds are looked at soon; the others when their descriptions end.
        let due = |held: &Quarantined| match held.freed.described_until {
            Some(until) if held.freed.descriptions > 0 => until,
            _ => self.next_quarantine,
        };
        let held = self.quarantine.iter().take(QUARANTINE_A_TURN).map(due).min();
        let zeroes = self.ring_zeroes_deadline();
        let idle = self.idle_deadline();
        let memory = self.reads.next_deadline();
        let room = self.room_deadline();
        let space = self.space_deadline();
        [marker, flush, watermark, held, zeroes, idle, memory, room, space, Some(self.next_retention)]
            .into_iter()
            .flatten()
            .min()
    }

    /// Whether another turn has something to do at once.
    pub fn has_work(&self) -> bool {
        let staged = self.lane.has_open() && self.lane.in_flight.len() < self.depth();
        self.stopped.is_none() && (staged || !self.io.plan.is_empty() || !self.events.is_empty())
    }

    /// A clean stop: a checkpoint, and a commit that says so. Appends are refused from here on; `Stopped` is its end.
    pub fn stop(&mut self) {
        if self.stopping == Stopping::No {
            self.stopping = Stopping::Checkpointing;
            self.checkpoint_wanted = true;
        }
    }

    fn poll_stopping(&mut self) {
        if self.stopping != Stopping::Checkpointing || self.checkpoint_wanted || self.round.is_some() {
            return;
        }
        let pending = self.partitions.iter().any(|(_, partition)| !partition.pending.is_empty())
            || !self.cache_flush.held.is_empty();
        if pending || self.lane.held_from.is_some() || !self.lane.is_idle() || !self.lane.has_room(0, true) {
            return;
        }
        if self.lane.stage_marker(&self.arena, CommitKind::Stop).is_ok() {
            self.lane.note_effect(Effect::Stopped);
            self.stopping = Stopping::Committing;
        }
    }
}
