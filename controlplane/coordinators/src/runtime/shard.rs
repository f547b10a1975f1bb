//! One partition's shard: its life from loading to unloading, its batches, and what becomes of them.

use super::pending::{Held, Operation, Pending, fits_a_batch, size_most};
use super::{Encoded, Machine, Place, Timers, Turn, Written};
use crate::api::{AppendId, AppendResult, Output, ReadId, ReadResult, Slice};
use base::{LeaderEpoch, Monotonic, Now, Offset, PartitionId, Random};
use batch::{Batches, Compression, InflateLimits, Walk, walk_records};
use std::collections::VecDeque;
use std::time::Duration;
use wire::ErrorCode;

/// Batches that may wait behind the one under way; beyond, operations that write are refused.
const QUEUED_BATCHES_MAX: usize = 8;
/// A shard whose partition could not be read tries again after this.
const LOAD_RETRY_TIME: Duration = Duration::from_secs(1);
/// What a batch of the log may inflate to: above all that Kafka's own limits let in.
const LOAD_LIMITS: InflateLimits = InflateLimits { batch_bytes_max: 256 << 20, record_bytes_max: 128 << 20 };

/// What the settings say about writing and loading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub batch_bytes_max: usize,
    pub compression: Compression,
    pub reply_wait_max: Duration,
    pub read_bytes_max: u32,
}

/// What a shard is given with every call, and where it puts what comes out.
pub(crate) struct Context<'a, M: Machine> {
    pub now: Now,
    pub random: &'a mut Random,
    pub limits: Limits,
    /// The next id of an append or a read.
    pub ids: &'a mut u64,
    pub replies: &'a mut Vec<(M::To, M::Answer)>,
    pub outputs: &'a mut Vec<Output>,
}

impl<M: Machine> Context<'_, M> {
    fn take_id(&mut self) -> u64 {
        *self.ids += 1;
        *self.ids
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Records below `position` are in the machine.
    Loading {
        read: ReadId,
        position: Offset,
    },
    Active,
    /// The partition could not be read, or is led under an epoch that this shard has not been told of.
    Failed {
        retry: Option<Monotonic>,
    },
}

pub(crate) struct Shard<M: Machine> {
    partition: PartitionId,
    epoch: LeaderEpoch,
    state: State,
    machine: M,
    timers: Timers<M::Timer>,
    /// The offset of the next record that an operation writes.
    next: Offset,
    under_way: Option<(AppendId, Pending<M>)>,
    /// Closed batches, the last of them still open.
    queued: VecDeque<Pending<M>>,
}

/// Kafka's answers for a coordinator's failed append.
pub(crate) fn coordinator_error(append: ErrorCode) -> ErrorCode {
    match append {
        ErrorCode::UnknownTopicOrPartition | ErrorCode::NotEnoughReplicas | ErrorCode::RequestTimedOut => {
            ErrorCode::CoordinatorNotAvailable
        }
        ErrorCode::NotLeaderOrFollower | ErrorCode::KafkaStorageError => ErrorCode::NotCoordinator,
        ErrorCode::MessageTooLarge | ErrorCode::RecordListTooLarge | ErrorCode::InvalidFetchSize => {
            ErrorCode::UnknownServerError
        }
        other => other,
    }
}

impl<M: Machine> Shard<M> {
    /// A shard that has begun to load.
    pub fn loading(context: &mut Context<'_, M>, partition: PartitionId, epoch: LeaderEpoch, machine: M) -> Shard<M> {
        let mut shard = Shard {
            partition,
            epoch,
            state: State::Failed { retry: None },
            machine,
            timers: Timers::new(),
            next: Offset::ZERO,
            under_way: None,
            queued: VecDeque::new(),
        };
        shard.load(context);
        shard
    }

    pub fn epoch(&self) -> LeaderEpoch {
        self.epoch
    }

    pub fn has_failed(&self) -> bool {
        matches!(self.state, State::Failed { .. })
    }

    pub fn machine_mut(&mut self) -> &mut M {
        &mut self.machine
    }

    pub fn awaits_append(&self, id: AppendId) -> bool {
        self.under_way.as_ref().is_some_and(|(under_way, _)| *under_way == id)
    }

    pub fn awaits_read(&self, id: ReadId) -> bool {
        matches!(self.state, State::Loading { read, .. } if read == id)
    }

    /// Why a request cannot be served now, if so.
    pub fn refusal(&self) -> Option<ErrorCode> {
        match self.state {
            State::Loading { .. } => Some(ErrorCode::CoordinatorLoadInProgress),
            State::Active => None,
            State::Failed { .. } => Some(ErrorCode::NotCoordinator),
        }
    }

    fn transition_to(&mut self, state: State) {
        tracing::debug!(partition = %self.partition, epoch = %self.epoch, from = ?self.state, to = ?state, "shard");
        self.state = state;
    }

    fn load(&mut self, context: &mut Context<'_, M>) {
        assert!(self.under_way.is_none() && self.queued.is_empty(), "a shard is unloaded before it is loaded");
        self.machine = self.machine.emptied();
        self.timers.clear();
        self.read(context, Offset::ZERO);
    }

    fn read(&mut self, context: &mut Context<'_, M>, offset: Offset) {
        let read = ReadId(context.take_id());
        self.transition_to(State::Loading { read, position: offset });
        context.outputs.push(Output::Read {
            id: read,
            partition: self.partition,
            expected_epoch: self.epoch,
            offset,
            bytes_max: context.limits.read_bytes_max,
        });
    }

    pub fn on_read(&mut self, context: &mut Context<'_, M>, id: ReadId, result: ReadResult) {
        let State::Loading { read, position } = self.state else { unreachable!("only a loading shard reads") };
        assert!(read == id, "the caller asked whether this read is awaited");
        match result {
            ReadResult::Slice(slice) => match self.load_slice(position, &slice) {
                Ok(()) if slice.next >= slice.high_watermark => {
                    self.next = slice.next;
                    self.transition_to(State::Active);
                    self.call(context, |machine, turn| machine.on_loaded(turn));
                }
                Ok(()) if slice.next > position => self.read(context, slice.next),
                Ok(()) => self.fail_load(context, "a read brought nothing"),
                Err(why) => self.fail_load(context, &why),
            },
            ReadResult::OutOfRange { log_start } if log_start > position => {
                // The log starts later, so what was read before it is gone: from the start again.
                self.machine = self.machine.emptied();
                self.read(context, log_start);
            }
            ReadResult::OutOfRange { .. } => self.fail_load(context, "the log ends below what was read"),
            ReadResult::OtherEpoch => self.transition_to(State::Failed { retry: None }),
            ReadResult::Failed(why) => self.fail_load(context, &why),
        }
    }

    fn fail_load(&mut self, context: &mut Context<'_, M>, why: &str) {
        tracing::error!(
            partition = %self.partition,
            epoch = %self.epoch,
            why,
            "a coordinator's partition cannot be loaded, and its groups are not served; tried again. Where bytes of it are \
             damaged the dataplane's log says so: stop the node, and `pollux repair --extents` names them"
        );
        self.transition_to(State::Failed { retry: Some(context.now.monotonic + LOAD_RETRY_TIME) });
    }

    fn load_slice(&mut self, position: Offset, slice: &Slice) -> Result<(), String> {
        for view in Batches::new(&slice.batches) {
            let view = view.map_err(|error| error.to_string())?;
            if view.is_control() {
                let records = batch::control::control_records(&view).map_err(|error| error.to_string())?;
                for record in records {
                    let record = record.map_err(|error| error.to_string())?;
                    let committed = record.kind == batch::ControlKind::Commit;
                    if record.offset >= position && (committed || record.kind == batch::ControlKind::Abort) {
                        self.machine.load_marker(view.producer_id(), committed);
                    }
                }
                continue;
            }
            let transaction = view.is_transactional().then(|| view.producer_id());
            let header = view.header();
            let mut failure = None;
            let walked = walk_records(&view, LOAD_LIMITS, |_, record| {
                let offset = header.offset_at(record.offset_delta);
                let Some(key) = record.key.filter(|_| offset >= position) else { return Walk::On };
                match self.machine.load(Place { offset, transaction }, key, record.value) {
                    Ok(()) => Walk::On,
                    Err(error) => {
                        failure = Some(format!("the record at {offset}: {error}"));
                        Walk::Enough
                    }
                }
            });
            if let Some(failure) = failure {
                return Err(failure);
            }
            walked.map_err(|error| format!("the batch at {}: {error}", view.base_offset()))?;
        }
        Ok(())
    }

    /// Runs an operation of the machine, which must be active, and takes up what it wants written.
    pub fn call(
        &mut self,
        context: &mut Context<'_, M>,
        operation: impl FnOnce(&mut M, &mut Turn<'_, M>) -> Written<M>,
    ) {
        assert!(self.state == State::Active, "only an active shard operates");
        let mut turn = Turn {
            now: context.now,
            random: &mut *context.random,
            timers: &mut self.timers,
            replies: &mut *context.replies,
        };
        let written = operation(&mut self.machine, &mut turn);
        self.take_up(context, written);
    }

    fn take_up(&mut self, context: &mut Context<'_, M>, written: Written<M>) {
        let Written { records, divisible, effect, reply } = written;
        let deadline = context.now.monotonic + context.limits.reply_wait_max;
        let reply = reply.map(|(to, answer)| Held { to, answer, deadline });
        if records.is_empty() {
            assert!(effect.is_none(), "an effect follows from records");
            return self.hold(context, reply);
        }
        let encoded: Vec<Encoded> = match records.iter().map(M::encode).collect() {
            Ok(encoded) => encoded,
            Err(error) => {
                tracing::warn!(partition = %self.partition, %error, "a record cannot be written");
                return self.refuse(context, Operation { reply, effect }, ErrorCode::UnknownServerError);
            }
        };
        let bytes: usize = encoded.iter().map(size_most).sum();
        let largest = if divisible { encoded.iter().map(size_most).max().unwrap_or(0) } else { bytes };
        let bytes_max = context.limits.batch_bytes_max;
        if !fits_a_batch(largest, bytes_max) {
            return self.refuse(context, Operation { reply, effect }, ErrorCode::UnknownServerError);
        }
        if self.queued.len() >= QUEUED_BATCHES_MAX && !self.open_batch_has_room(bytes, bytes_max) {
            return self.refuse(context, Operation { reply, effect }, ErrorCode::CoordinatorNotAvailable);
        }
        if !divisible && !self.open_batch_has_room(bytes, bytes_max) {
            self.open_batch(context.limits.compression);
        }
        for (record, encoded) in records.into_iter().zip(&encoded) {
            if divisible && !self.open_batch_has_room(size_most(encoded), bytes_max) {
                self.open_batch(context.limits.compression);
            }
            let undo = self.machine.apply(self.next, record);
            self.queued.back_mut().expect("a batch is open").append(context.now.wall, encoded, undo);
            self.next = self.next.plus(1);
        }
        self.queued.back_mut().expect("a batch is open").operations.push(Operation { reply, effect });
    }

    fn open_batch_has_room(&self, bytes: usize, bytes_max: usize) -> bool {
        self.queued.back().is_some_and(|open| open.has_room(bytes, bytes_max))
    }

    fn open_batch(&mut self, compression: Compression) {
        self.queued.push_back(Pending::new(self.next, compression));
    }

    /// An answer without records of its own rests on everything decided before it, so it waits for that.
    fn hold(&mut self, context: &mut Context<'_, M>, reply: Option<Held<M>>) {
        let Some(held) = reply else { return };
        let last = self.queued.back_mut().or(self.under_way.as_mut().map(|(_, pending)| pending));
        match last {
            Some(pending) => pending.operations.push(Operation { reply: Some(held), effect: None }),
            None => context.replies.push((held.to, held.answer)),
        }
    }

    fn refuse(&mut self, context: &mut Context<'_, M>, operation: Operation<M>, error: ErrorCode) {
        if let Some(held) = operation.reply {
            context.replies.push((held.to, M::failed(held.answer, error)));
        }
        if let Some(effect) = operation.effect {
            self.call(context, |machine, turn| machine.settle(turn, effect, Err(error)));
        }
    }

    /// Sends the next batch if none is under way. One at a time, so that the records of the next, which rest on this
    /// one, are never in the log without it; meanwhile the next grows, and that is the group commit.
    pub fn flush(&mut self, context: &mut Context<'_, M>) -> Option<AppendId> {
        if self.under_way.is_some() {
            return None;
        }
        let pending = self.queued.pop_front()?;
        let id = AppendId(context.take_id());
        context.outputs.push(Output::Append {
            id,
            partition: self.partition,
            expected_epoch: self.epoch,
            batches: pending.bytes(),
        });
        self.under_way = Some((id, pending));
        Some(id)
    }

    pub fn on_appended(&mut self, context: &mut Context<'_, M>, id: AppendId, result: AppendResult) {
        assert!(self.awaits_append(id), "the caller asked whether this append is awaited");
        match result {
            AppendResult::Done { base } if self.under_way.as_ref().is_some_and(|(_, batch)| batch.first == base) => {
                let (_, pending) = self.under_way.take().expect("it was compared");
                self.commit(context, pending);
            }
            AppendResult::Refused(error) => self.roll_back(context, coordinator_error(error)),
            AppendResult::OtherEpoch => {
                self.unload(context, ErrorCode::NotCoordinator);
                self.transition_to(State::Failed { retry: None });
            }
            // Something else was appended in between, so the machine has not seen the whole log; or nobody knows.
            AppendResult::Done { .. } | AppendResult::Unknown => {
                tracing::warn!(partition = %self.partition, ?result, "a coordinator's state is replayed");
                self.unload(context, ErrorCode::NotCoordinator);
                self.load(context);
            }
        }
    }

    fn commit(&mut self, context: &mut Context<'_, M>, pending: Pending<M>) {
        for operation in pending.operations {
            if let Some(held) = operation.reply {
                context.replies.push((held.to, held.answer));
            }
            if let Some(effect) = operation.effect {
                self.call(context, |machine, turn| machine.settle(turn, effect, Ok(())));
            }
        }
    }

    /// Takes back the refused batch and all that was decided upon it, newest first; then says so, oldest first.
    fn roll_back(&mut self, context: &mut Context<'_, M>, error: ErrorCode) {
        let mut refused: Vec<Pending<M>> = self.under_way.take().map(|(_, batch)| batch).into_iter().collect();
        refused.extend(self.queued.drain(..));
        for pending in refused.iter_mut().rev() {
            for undo in pending.undos.drain(..).rev() {
                self.machine.undo(undo);
            }
            self.next = pending.first;
        }
        for operation in refused.into_iter().flat_map(|pending| pending.operations) {
            self.refuse(context, operation, error);
        }
    }

    /// Answers everyone who waits. The state is worth nothing afterwards: the shard is dropped, or loaded again.
    pub fn unload(&mut self, context: &mut Context<'_, M>, error: ErrorCode) {
        let under_way = self.under_way.take().map(|(_, batch)| batch);
        for operation in under_way.into_iter().chain(self.queued.drain(..)).flat_map(|pending| pending.operations) {
            if let Some(held) = operation.reply {
                context.replies.push((held.to, M::failed(held.answer, error)));
            }
        }
        let mut turn = Turn {
            now: context.now,
            random: &mut *context.random,
            timers: &mut self.timers,
            replies: &mut *context.replies,
        };
        self.machine.on_unloading(&mut turn, error);
        self.timers.clear();
    }

    pub fn next_deadline(&self) -> Option<Monotonic> {
        match self.state {
            State::Loading { .. } => None,
            State::Failed { retry } => retry,
            State::Active => {
                let batches = self.under_way.iter().map(|(_, batch)| batch).chain(&self.queued);
                batches.filter_map(Pending::next_deadline).chain(self.timers.next()).min()
            }
        }
    }

    pub fn on_time(&mut self, context: &mut Context<'_, M>) {
        let now = context.now.monotonic;
        match self.state {
            State::Loading { .. } => {}
            State::Failed { retry } => {
                if retry.is_some_and(|at| at <= now) {
                    self.load(context);
                }
            }
            State::Active => {
                let mut late = Vec::new();
                for batch in self.under_way.iter_mut().map(|(_, batch)| batch).chain(&mut self.queued) {
                    batch.take_late(now, &mut late);
                }
                let error = coordinator_error(ErrorCode::RequestTimedOut);
                context.replies.extend(late.into_iter().map(|(to, answer)| (to, M::failed(answer, error))));
                while let Some(timer) = self.timers.pop_due(now) {
                    self.call(context, |machine, turn| machine.on_timer(turn, timer));
                }
            }
        }
    }
}
