//! The partitions of one core: what comes in is given to whom it concerns, what goes out is collected here.

use crate::operation::*;
use crate::replica::Replica;
use crate::sweep::expiry_interval;
use crate::watch::Watches;
use base::{
    CoreId, DeletionClock, IdMap, LeaderEpoch, Monotonic, NodeId, Now, PartitionId, Slots, TimerToken, Wheel, Work,
};
use handoff::{Command, GatherId, Internal, Outcome, PartitionError, UpCall};
use nvme_log::{LogSlot, ReadPlan, ReadTicket, Store, Stretch};
use settings::{BrokerSettings, TopicSettings};
use std::collections::VecDeque;
use std::time::Duration;

/// Timers looked at in one call.
const TIMERS_A_TURN: usize = 256;

#[derive(Clone, Debug)]
pub struct Options {
    pub node: NodeId,
    pub core: CoreId,
    /// The core that speaks to the link: answers to coordinators go there.
    pub link_core: CoreId,
    /// The most that one compressed batch may inflate to.
    pub inflate_max: usize,
}

/// What the core carries away after a call.
#[derive(Default)]
pub struct Outputs {
    pub outcomes: Vec<(CoreId, Outcome)>,
    pub work: Vec<(JobId, Box<dyn Work>)>,
    pub up_calls: Vec<UpCall>,
    pub tally: Tally,
}

/// What metrics are told.
#[derive(Debug, Default)]
pub struct Tally {
    /// Batches that clients' requests appended, and their bytes.
    pub batches: u64,
    pub bytes: u64,
    /// Entries of Produce requests that were refused.
    pub refused: u64,
    /// Fetches that registered to be told of news.
    pub fetch_waits: u64,
    /// From the placing of a client's batch in its log to the acknowledgement.
    pub append_times: Vec<Duration>,
}

impl Outputs {
    /// Nothing is to be carried; there may be something to count.
    pub fn is_empty(&self) -> bool {
        self.outcomes.is_empty() && self.work.is_empty() && self.up_calls.is_empty()
    }
}

/// The whole namespace, of which a core's store knows only its own slabs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    pub total: u64,
    /// Bytes of slabs that no core owns.
    pub unowned: u64,
}

/// Who is to try again when the store has room.
#[derive(Clone, Debug)]
pub(crate) enum Stalled {
    Appends(ReplicaToken),
    Duty(Box<crate::duties::Duty>),
    /// Of a partition for which the namespace has no room: no other duty waits for it, since a removal may make some.
    Unplaced(Box<crate::duties::Duty>),
    Removal(crate::duties::Removal),
    LogStart(OperationToken),
}

pub struct Partitions {
    pub(crate) options: Options,
    pub(crate) broker: BrokerSettings,
    /// What a topic obeys that sets nothing itself.
    pub(crate) defaults: TopicSettings,
    pub(crate) replicas: Slots<Box<Replica>>,
    pub(crate) by_id: IdMap<PartitionId, ReplicaToken>,
    pub(crate) by_log: IdMap<LogSlot, ReplicaToken>,
    pub(crate) operations: Slots<Option<Operation>>,
    /// Fetches that have not been answered yet.
    pub(crate) fetching: IdMap<GatherId, OperationToken>,
    pub(crate) watches: Watches,
    pub(crate) readings: IdMap<ReadTicket, Reading>,
    pub(crate) jobs: IdMap<JobId, JobOwner>,
    pub(crate) next_job: u64,
    pub(crate) wheel: Wheel<Timer>,
    pub(crate) fired: Vec<Timer>,
    pub(crate) stalled: VecDeque<Stalled>,
    /// Of those, from the first on, the ones to try again since the store has room.
    pub(crate) to_retry: usize,
    pub(crate) scratch: Vec<u8>,
    pub(crate) image: u64,
    pub(crate) space: Option<Space>,
    /// Partitions whose turn has yet to come.
    pub(crate) to_expire: Vec<ReplicaToken>,
    pub(crate) deletion_clock: DeletionClock,
    pub(crate) to_configure: Vec<ReplicaToken>,
    pub(crate) stopped: bool,
    /// Replicas that lead their partition.
    pub(crate) leaders: usize,
    pub(crate) out: Outputs,
}

impl Partitions {
    pub fn new(now: Now, options: Options, broker: BrokerSettings) -> Partitions {
        let mut wheel = Wheel::new(now.monotonic);
        wheel.insert(now.monotonic + expiry_interval(&broker), Timer::ProducerExpiry);
        Partitions {
            options,
            defaults: crate::sweep::defaults(&broker).expect("the broker's own settings were checked"),
            broker,
            replicas: Slots::growable(),
            by_id: IdMap::default(),
            by_log: IdMap::default(),
            operations: Slots::growable(),
            fetching: IdMap::default(),
            watches: Watches::default(),
            readings: IdMap::default(),
            jobs: IdMap::default(),
            next_job: 0,
            wheel,
            fired: Vec::new(),
            stalled: VecDeque::new(),
            to_retry: 0,
            scratch: Vec::new(),
            image: 0,
            space: None,
            to_expire: Vec::new(),
            deletion_clock: DeletionClock::at(now),
            to_configure: Vec::new(),
            stopped: false,
            leaders: 0,
            out: Outputs::default(),
        }
    }

    pub fn on_command(&mut self, now: Now, store: &mut Store, command: Command) {
        match command {
            Command::Produce(produce) => self.on_produce(now, store, produce),
            Command::Fetch(fetch) => self.on_fetch(now, store, fetch),
            Command::ReadWindow(window) => self.on_read_window(now, store, window),
            Command::Cancel(gather) => self.on_cancel(gather),
            Command::ListOffsets(list) => self.on_list_offsets(now, store, list),
            Command::EpochEnds(ends) => self.on_epoch_ends(store, ends),
            Command::DeleteRecords(delete) => self.on_delete_records(store, delete),
            Command::DescribeProducers(describe) => self.on_describe_producers(store, describe),
            Command::DescribeLogs(describe) => self.on_describe_logs(store, describe),
            Command::Internal(Internal::Append(append)) => self.on_internal_append(now, store, append),
            Command::Internal(Internal::Read(read)) => self.on_internal_read(now, store, read),
        }
    }

    /// A helper is done with a job.
    pub fn on_work(&mut self, now: Now, store: &mut Store, id: JobId, work: Box<dyn Work>) {
        match self.jobs.remove(&id) {
            Some(JobOwner::Append { replica, number }) => self.on_batch_checked(now, store, replica, number, work),
            Some(JobOwner::FindTime { operation, place }) => self.on_time_found(now, store, operation, place, work),
            None => {}
        }
    }

    /// Timers; nothing else happens by time alone.
    pub fn on_time(&mut self, now: Now, store: &mut Store) {
        self.unlist(crate::watch::ENDED_AT_ONCE);
        self.wake_some(store);
        let mut fired = std::mem::take(&mut self.fired);
        self.wheel.expire(now.monotonic, TIMERS_A_TURN, &mut fired);
        for timer in fired.drain(..) {
            match timer {
                Timer::Operation(token) => self.on_deadline(store, token),
                Timer::Resume(token) => self.resume(now, store, token),
                Timer::ProducerExpiry => self.expire_producers(now, store),
                Timer::Configure => self.configure_some(now, store),
                Timer::Retry => self.retry_some(now, store),
            }
        }
        self.fired = fired;
    }

    /// When `on_time` has something to do.
    pub fn next_deadline(&self) -> Option<Monotonic> {
        if self.watches.go_on() { Some(Monotonic::ZERO) } else { self.wheel.next_deadline() }
    }

    /// Partitions that this core leads.
    pub fn leader_count(&self) -> usize {
        self.leaders
    }

    /// Takes everything there is to carry away, news to waiting fetches among it. Called after each batch of inputs, with
    /// empty lists whose room serves the next ones.
    pub fn take_outputs(&mut self, outputs: &mut Outputs) {
        debug_assert!(outputs.is_empty(), "what was taken before has been carried away");
        self.tell_news();
        std::mem::swap(&mut self.out, outputs);
    }

    /// What DescribeLogDirs tells of the namespace; the keeper knows it.
    pub fn set_space(&mut self, space: Space) {
        self.space = Some(space);
    }

    /// Commands that have no outcome yet.
    pub fn pending(&self) -> usize {
        self.operations.len()
    }

    /// Fetches that wait for news.
    pub fn waiting_fetches(&self) -> usize {
        self.watches.len()
    }

    fn on_deadline(&mut self, store: &mut Store, token: OperationToken) {
        match self.operations.get(token.0).and_then(Option::as_ref) {
            Some(Operation::Produce(_)) => self.on_produce_deadline(store, token),
            Some(Operation::Delete(_)) => self.on_delete_deadline(token),
            Some(Operation::InternalAppend(_)) => self.on_internal_deadline(token),
            _ => {}
        }
    }

    pub(crate) fn resume(&mut self, now: Now, store: &mut Store, token: OperationToken) {
        match self.operations.get(token.0).and_then(Option::as_ref) {
            Some(Operation::Window(_)) => self.advance_window(now, store, token),
            Some(Operation::List(_)) => self.advance_list(now, store, token),
            Some(Operation::InternalRead(_)) => self.advance_internal_read(now, store, token),
            _ => {}
        }
    }

    pub(crate) fn replica(&self, token: ReplicaToken) -> Option<&Replica> {
        self.replicas.get(token.0).map(|replica| &**replica)
    }

    pub(crate) fn replica_mut(&mut self, token: ReplicaToken) -> Option<&mut Replica> {
        self.replicas.get_mut(token.0).map(|replica| &mut **replica)
    }

    /// The partition, where it is served here under the epoch that the client believes in (Kafka's order of checks).
    pub(crate) fn leading(
        &self,
        partition: PartitionId,
        current_epoch: Option<LeaderEpoch>,
    ) -> Result<(ReplicaToken, &Replica), PartitionError> {
        let token = *self.by_id.get(&partition).ok_or(PartitionError::Unknown)?;
        let replica = self.replica(token).ok_or(PartitionError::Unknown)?;
        if replica.failed || self.stopped {
            return Err(PartitionError::Storage);
        }
        match current_epoch {
            Some(epoch) if epoch < replica.standing.epoch() => return Err(PartitionError::FencedEpoch),
            Some(epoch) if epoch > replica.standing.epoch() => return Err(PartitionError::UnknownEpoch),
            _ => {}
        }
        if replica.is_leader() { Ok((token, replica)) } else { Err(PartitionError::NotLeader) }
    }

    pub(crate) fn begin(&mut self, operation: Operation) -> OperationToken {
        let Ok(token) = self.operations.insert(Some(operation)) else { unreachable!("the slots grow") };
        OperationToken(token)
    }

    /// What still comes for it finds nothing.
    pub(crate) fn end(&mut self, token: OperationToken) {
        self.operations.remove(token.0);
    }

    /// Takes an operation out of its slot, so that it can be worked on beside everything else.
    pub(crate) fn take(&mut self, token: OperationToken) -> Option<Operation> {
        self.operations.get_mut(token.0)?.take()
    }

    pub(crate) fn put_back(&mut self, token: OperationToken, operation: Operation) {
        let slot = self.operations.get_mut(token.0).expect("it was taken from there");
        assert!(slot.is_none(), "an operation is worked on once at a time");
        *slot = Some(operation);
    }

    pub(crate) fn answer(&mut self, to: CoreId, outcome: Outcome) {
        self.out.outcomes.push((to, outcome));
    }

    pub(crate) fn arm(&mut self, deadline: Monotonic, token: OperationToken) -> TimerToken {
        self.wheel.insert(deadline, Timer::Operation(token))
    }

    pub(crate) fn read(&mut self, store: &mut Store, plan: ReadPlan, operation: OperationToken, place: usize) {
        let ticket = store.read(plan);
        self.readings.insert(ticket, Reading { operation, place, piece: None });
    }

    /// Reads a piece of an answer.
    pub(crate) fn read_piece(
        &mut self,
        store: &mut Store,
        stretch: Stretch,
        operation: OperationToken,
        place: usize,
        piece: usize,
    ) {
        let ticket = store.read_described(stretch);
        self.readings.insert(ticket, Reading { operation, place, piece: Some(piece) });
    }

    pub(crate) fn send_work(&mut self, owner: JobOwner, work: Box<dyn Work>) -> JobId {
        let id = JobId(self.next_job);
        self.next_job += 1;
        self.jobs.insert(id, owner);
        self.out.work.push((id, work));
        id
    }

    /// Waiters leave all lists. A read that is under way goes on to its outcome, since the asker counts one a command;
    /// it is small, and nothing waits for news after it.
    fn on_cancel(&mut self, gather: GatherId) {
        self.unwatch(gather);
        if let Some(token) = self.fetching.get(&gather).copied()
            && let Some(Some(Operation::Fetch(fetch))) = self.operations.get_mut(token.0)
        {
            fetch.wait_for_nothing();
        }
    }
}
