//! The queue of a partition's appends: batches wait in it for a helper's verdict or for room in the store, and leave it
//! in the order in which they came.

use crate::acknowledge::{AckOwner, Waiting};
use crate::operation::{JobOwner, OperationToken, ReplicaToken};
use crate::partitions::{Partitions, Stalled};
use crate::refusals::{of_append, of_sequence, of_validation};
use crate::replica::Replica;
use crate::sequence::{Verdict, judge};
use arena::Parcel;
use base::{Now, Offset, WallMillis, Work};
use batch::jobs::CheckedBatch;
use batch::{BatchHeader, BatchView, CheckJob, Checked, Origin, RebuildJob, Refusal, TimestampStamp, TimestampType};
use bytes::Bytes;
use handoff::{Acks, Appended, EntryIndex, PartitionError, ProduceError};
use nvme_log::{Append, AppendMode, Store};
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AppendOwner {
    Produce { operation: OperationToken, index: EntryIndex, acks: Acks },
    Internal { operation: OperationToken },
}

impl AppendOwner {
    pub(crate) fn operation(self) -> OperationToken {
        match self {
            AppendOwner::Produce { operation, .. } | AppendOwner::Internal { operation } => operation,
        }
    }

    fn origin(self) -> Origin {
        match self {
            AppendOwner::Produce { .. } => Origin::Client,
            AppendOwner::Internal { .. } => Origin::Coordinator,
        }
    }
}

#[derive(Debug)]
pub(crate) enum BatchBytes {
    /// As received; the batch begins here and may be followed by a partial one, which is no part of the append.
    Received(Parcel),
    /// Of several batches received together.
    Part(Rc<Parcel>, Range<usize>),
    /// As a helper left them.
    Made(Vec<u8>),
}

impl BatchBytes {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            BatchBytes::Received(parcel) => parcel,
            BatchBytes::Part(parcel, range) => &parcel[range.clone()],
            BatchBytes::Made(bytes) => bytes,
        }
    }
}

#[derive(Debug)]
pub(crate) enum AppendState {
    /// A helper has it.
    Checking,
    Ready(BatchBytes, Checked),
}

#[derive(Debug)]
pub(crate) struct PendingAppend {
    pub number: u64,
    pub owner: AppendOwner,
    pub state: AppendState,
}

#[derive(Debug, Default)]
pub(crate) struct AppendQueue {
    pub waiting: VecDeque<PendingAppend>,
    pub next_number: u64,
    /// The store has no room for the first one.
    pub blocked: bool,
}

/// What became of the first in the queue.
enum Placed {
    /// Where its answer is, and what it waits for.
    There {
        end: Offset,
        answer: Appended,
        /// Appended now: none where it was there before.
        bytes: u64,
    },
    Refused(ProduceError),
    NoRoom,
}

impl Partitions {
    /// Puts a batch that passed the first checks into its partition's queue, for which `check_inline` said what it says.
    pub(crate) fn enqueue(
        &mut self,
        now: Now,
        token: ReplicaToken,
        owner: AppendOwner,
        bytes: BatchBytes,
        rules: batch::Rules,
        checked: Option<Checked>,
    ) {
        let Some(replica) = self.replica_mut(token) else { return };
        let number = replica.queue.next_number;
        replica.queue.next_number += 1;
        let mut job: Option<Box<dyn Work>> = None;
        let state = match checked {
            Some(checked) if checked.rebuild.is_none() => AppendState::Ready(bytes, checked),
            Some(checked) => {
                let rebuild = RebuildJob::new(into_bytes(bytes), checked, rules).expect("a rebuild was asked for");
                job = Some(Box::new(rebuild));
                AppendState::Checking
            }
            None => {
                job = Some(Box::new(CheckJob::new(into_bytes(bytes), rules, now.wall)));
                AppendState::Checking
            }
        };
        replica.queue.waiting.push_back(PendingAppend { number, owner, state });
        if let Some(job) = job {
            self.send_work(JobOwner::Append { replica: token, number }, job);
        }
    }

    pub(crate) fn on_batch_checked(
        &mut self,
        now: Now,
        store: &mut Store,
        token: ReplicaToken,
        number: u64,
        work: Box<dyn Work>,
    ) {
        let result = take_result(work);
        let Some(replica) = self.replica_mut(token) else { return };
        let Some(place) = replica.queue.waiting.iter().position(|pending| pending.number == number) else { return };
        match result {
            Ok(CheckedBatch { batch, checked, .. }) => {
                replica.queue.waiting[place].state = AppendState::Ready(BatchBytes::Made(batch), checked);
            }
            Err(refusal) => {
                let pending = replica.queue.waiting.remove(place).expect("it was found there");
                self.append_refused(store, token, pending.owner, of_validation(refusal));
            }
        }
        self.run_queue(now, store, token);
    }

    /// Appends whatever can be appended now, in order.
    pub(crate) fn run_queue(&mut self, now: Now, store: &mut Store, token: ReplicaToken) {
        loop {
            let Partitions { replicas, scratch, operations, .. } = self;
            let Some(replica) = replicas.get_mut(token.0) else { return };
            let Some(first) = replica.queue.waiting.front() else {
                replica.queue.blocked = false;
                return;
            };
            let owner = first.owner;
            if !operations.contains(owner.operation().0) {
                replica.queue.waiting.pop_front();
                continue;
            }
            if matches!(first.state, AppendState::Checking) {
                return;
            }
            let placed = place_first(now, store, replica, scratch);
            if matches!(placed, Placed::NoRoom) {
                if !std::mem::replace(&mut replica.queue.blocked, true) {
                    self.stalled.push_back(Stalled::Appends(token));
                }
                return;
            }
            replica.queue.blocked = false;
            replica.queue.waiting.pop_front();
            match placed {
                Placed::There { end, answer, bytes } => {
                    if owner.origin() == Origin::Client && bytes > 0 {
                        self.out.tally.batches += 1;
                        self.out.tally.bytes += bytes;
                    }
                    self.append_placed(now, store, token, owner, end, answer);
                }
                Placed::Refused(error) => self.append_refused(store, token, owner, error),
                Placed::NoRoom => unreachable!("it was looked at above"),
            }
        }
    }

    fn append_placed(
        &mut self,
        now: Now,
        store: &mut Store,
        token: ReplicaToken,
        owner: AppendOwner,
        end: Offset,
        answer: Appended,
    ) {
        let Some(replica) = self.replicas.get_mut(token.0) else { return };
        match owner {
            AppendOwner::Produce { operation, index, acks } => {
                let owner = AckOwner::Produce { operation, index };
                let waiting = Waiting { end, owner, answer, placed_at: now.monotonic, late: false };
                let durable = store.durable_offset(replica.log);
                match acks {
                    Acks::Leader if end > durable => return replica.acknowledgements.await_durable(waiting),
                    Acks::All if end > replica.high_watermark => {
                        return replica.acknowledgements.await_committed(waiting);
                    }
                    Acks::None | Acks::Leader | Acks::All => {}
                }
                self.acknowledge(store, token, waiting, Ok(()));
            }
            AppendOwner::Internal { operation } => self.on_internal_appended(token, operation, end, answer),
        }
    }

    pub(crate) fn append_refused(
        &mut self,
        store: &Store,
        token: ReplicaToken,
        owner: AppendOwner,
        error: ProduceError,
    ) {
        match owner {
            AppendOwner::Produce { operation, index, .. } => {
                let produced = self.produced_of(store, Some(token), index, Err(error));
                self.on_produced(operation, produced);
            }
            AppendOwner::Internal { operation } => self.on_internal_refused(operation, error),
        }
    }

    /// Everything that waits to be appended is refused.
    pub(crate) fn refuse_queued(&mut self, store: &Store, token: ReplicaToken, error: PartitionError) {
        let Some(replica) = self.replica_mut(token) else { return };
        replica.queue.blocked = false;
        for pending in std::mem::take(&mut replica.queue.waiting) {
            self.append_refused(store, token, pending.owner, ProduceError::Partition(error));
        }
    }
}

/// The duplicate, guard and sequence steps of design 08, item 1, and the append itself.
fn place_first(now: Now, store: &mut Store, replica: &mut Replica, scratch: &mut Vec<u8>) -> Placed {
    let Some(epoch) = replica.leader_epoch() else {
        return Placed::Refused(ProduceError::Partition(PartitionError::NotLeader));
    };
    let Some(PendingAppend { owner, state: AppendState::Ready(bytes, checked), .. }) =
        replica.queue.waiting.front_mut()
    else {
        unreachable!("the caller saw that it is ready")
    };
    let batch = &bytes.bytes()[..checked.size];
    let header = BatchView::parse(batch).expect("it was checked").0.header();
    let append_times = replica.rules.timestamp_type == TimestampType::LogAppendTime;
    if owner.origin() == Origin::Client {
        match judge_client(store, replica.log, replica.id, &header) {
            Ok(None) => {}
            Ok(Some((base, last, timestamp))) => {
                // Kafka tells a duplicate's time on CreateTime topics too.
                let append_time = Some(timestamp.0);
                let answer = Appended { base_offset: base, append_time, log_start: store.log_start(replica.log) };
                return Placed::There { end: last.plus(1), answer, bytes: 0 };
            }
            Err(error) => return Placed::Refused(error),
        }
    }
    let append_time = now.wall.max(replica.last_append_time);
    let stamped: &[u8] = match (checked.timestamp, bytes) {
        (TimestampStamp::AsSent, bytes) => &bytes.bytes()[..checked.size],
        (stamp, BatchBytes::Made(made)) => {
            restamp(stamp, made, append_time);
            made
        }
        (stamp, received) => {
            scratch.clear();
            scratch.extend_from_slice(&received.bytes()[..checked.size]);
            restamp(stamp, scratch, append_time);
            scratch
        }
    };
    match store.append(now, replica.log, Append { batches: stamped, mode: AppendMode::Leader { epoch } }) {
        Ok(appended) => {
            let end = appended.last.plus(1);
            replica.bytes.append(end, checked.size);
            if append_times {
                replica.last_append_time = append_time;
            }
            let answer = Appended {
                base_offset: appended.first,
                append_time: append_times.then_some(append_time.0),
                log_start: store.log_start(replica.log),
            };
            Placed::There { end, answer, bytes: checked.size as u64 }
        }
        Err(error) => of_append(error).map_or(Placed::NoRoom, Placed::Refused),
    }
}

fn restamp(stamp: TimestampStamp, batch: &mut [u8], append_time: WallMillis) {
    match stamp {
        TimestampStamp::AsSent => {}
        TimestampStamp::Max(max) => batch::restamp_timestamp(batch, TimestampType::CreateTime, max),
        TimestampStamp::AppendTime => batch::restamp_timestamp(batch, TimestampType::LogAppendTime, append_time),
    }
}

/// The place of a duplicate's original, nothing for a batch that goes on, or why it may not.
fn judge_client(
    store: &Store,
    log: nvme_log::LogSlot,
    partition: base::PartitionId,
    header: &BatchHeader,
) -> Result<Option<(Offset, Offset, WallMillis)>, ProduceError> {
    if header.attributes.is_transactional() {
        let message = format!("no transaction is open on {partition}: this cluster has no transaction coordinator yet");
        return Err(ProduceError::InvalidTransactionState(message));
    }
    let Some(producer) = header.producer() else { return Ok(None) };
    match judge(store.producers(log).get(producer.id), &producer) {
        Verdict::Append => Ok(None),
        Verdict::Duplicate { base, last, timestamp } => Ok(Some((base, last, timestamp))),
        refused => Err(of_sequence(refused, partition, &producer).expect("the other verdicts stand above")),
    }
}

/// A parcel that a job can hold.
struct Held(Parcel);

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// The same bytes for a helper, without a copy where they came alone.
fn into_bytes(bytes: BatchBytes) -> Bytes {
    match bytes {
        BatchBytes::Received(parcel) => Bytes::from_owner(Held(parcel)),
        BatchBytes::Made(made) => made.into(),
        part @ BatchBytes::Part(..) => Bytes::copy_from_slice(part.bytes()),
    }
}

fn take_result(work: Box<dyn Work>) -> Result<CheckedBatch, Refusal> {
    let work = match work.into_any().downcast::<CheckJob>() {
        Ok(check) => return check.into_result(),
        Err(other) => other,
    };
    work.downcast::<RebuildJob>().expect("only these two are sent for appends").into_result()
}
