//! The controller itself: its role, the events' common path, commit and rollback, timers.

use crate::error::ApiError;
use crate::heartbeats::Heartbeats;
use crate::placement::UsableBroker;
use crate::state::State;
use base::{BrokerEpoch, Monotonic, NodeId, Now, PartitionId, TopicId, Uuid};
use image::{FeatureRange, MetadataImage, MetadataVersion, Provenance, Record, ReplayError, Resource};
use settings::BrokerSettings;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use wire::ErrorCode;

/// The most records that one atomic append may hold, and the most partitions that one request may make.
pub const RECORDS_MAX: usize = 10_000;

/// The most partitions that one event changes where it could be all of a broker's: what is left is done by the next one,
/// so that no event holds the controller for long.
pub(crate) const SWEEP_MAX: usize = 10_000;

/// Elections that a timer may start in one event.
pub(crate) const ELECTIONS_MAX: usize = 1_000;

#[derive(Clone, Debug)]
pub struct Options {
    pub node: NodeId,
    pub cluster_id: String,
    /// Controllers that must have registered before a feature is raised.
    pub quorum_nodes: Vec<NodeId>,
    pub settings: BrokerSettings,
    /// Features whose APIs this node serves.
    pub supported_features: BTreeMap<String, FeatureRange>,
    /// What a new cluster starts with: the records of the bootstrap snapshot that the format left
    /// (`bootstrap_records` makes them), feature levels first of all.
    pub bootstrap: Vec<Record>,
    pub session_timeout: Duration,
    /// `None` where auto.leader.rebalance.enable is false.
    pub leader_balance_interval: Option<Duration>,
    pub unclean_election_interval: Duration,
    /// How often a record that says nothing shows others that the log moves (metadata.max.idle.interval.ms).
    pub idle_interval: Option<Duration>,
    /// A fenced broker may register a new incarnation before its session has ended. Apache's controller makes it wait.
    pub fenced_may_reregister: bool,
    /// Largest batch that a node's storage takes; max.message.bytes above it is refused.
    pub largest_batch: u32,
}

/// Who asks, and how.
#[derive(Clone, Debug)]
pub struct RequestContext {
    pub version: i16,
    pub principal: String,
    pub listener: String,
}

impl RequestContext {
    pub fn of_version(version: i16) -> RequestContext {
        RequestContext { version, principal: "User:ANONYMOUS".to_owned(), listener: String::new() }
    }
}

/// Records to be appended at `base_offset`. They are already part of the controller's state.
#[derive(Clone, Debug, PartialEq)]
pub struct Append {
    pub base_offset: i64,
    /// Batches in order; each must be appended whole, and only an event that is not atomic has more than one.
    pub batches: Vec<Vec<Record>>,
}

impl Append {
    pub fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.batches.iter().flatten()
    }
}

/// What an event comes to.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome<R> {
    /// Append, and answer once everything up to `answer_at` is committed (at once where it already is).
    Done { append: Append, answer_at: i64, response: R },
    /// Append, and put the same request again: there was more to do than one event may.
    Again { append: Append },
}

/// Records and an answer before they are applied.
pub(crate) struct Decision<R> {
    pub records: Vec<Record>,
    pub atomic: bool,
    pub response: R,
    /// There is more: the response is not final.
    pub again: bool,
}

impl<R> Decision<R> {
    pub fn atomic(records: Vec<Record>, response: R) -> Decision<R> {
        Decision { records, atomic: true, response, again: false }
    }

    pub fn loose(records: Vec<Record>, response: R) -> Decision<R> {
        Decision { records, atomic: false, response, again: false }
    }

    pub fn answer(response: R) -> Decision<R> {
        Decision::atomic(Vec::new(), response)
    }
}

pub(crate) struct Active {
    pub epoch: i32,
    pub heartbeats: Heartbeats,
    pub next_fence_check: Monotonic,
    pub next_balance: Option<Monotonic>,
    pub next_unclean: Monotonic,
    pub next_idle: Option<Monotonic>,
    /// A broker whose session ended and which has more leaderships than one event may move.
    pub fencing: Option<(NodeId, BrokerEpoch)>,
    /// An unfencing found more partitions without a leader than one event may look at: where to go on.
    pub electing: Option<PartitionId>,
}

pub struct Controller {
    pub(crate) options: Options,
    pub(crate) state: State,
    /// States at the ends of batches that are not yet committed, oldest first; the last one is `state`.
    uncommitted: VecDeque<(i64, State, Option<Box<State>>)>,
    /// At the last committed record.
    committed: (State, Option<Box<State>>),
    committed_offset: i64,
    next_offset: i64,
    /// The state before the metadata transaction that is open.
    before_transaction: Option<Box<State>>,
    /// Nobody but this node reads the log: no voter beside it, no observer.
    pub(crate) alone: bool,
    pub(crate) active: Option<Active>,
}

impl Controller {
    pub fn new(options: Options) -> Controller {
        let state = State::new(options.node, options.settings.clone());
        Controller {
            committed: (state.clone(), None),
            state,
            uncommitted: VecDeque::new(),
            committed_offset: -1,
            next_offset: 0,
            before_transaction: None,
            alone: options.quorum_nodes.len() <= 1,
            active: None,
            options,
        }
    }

    pub fn is_active(&self) -> bool {
        self.active.is_some()
    }

    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The epoch of the leadership, while there is one.
    pub fn epoch(&self) -> Option<i32> {
        self.active.as_ref().map(|active| active.epoch)
    }

    /// What the log says, uncommitted records included.
    pub fn state(&self) -> &State {
        &self.state
    }

    pub fn image(&self) -> &MetadataImage {
        &self.state.image
    }

    /// The state as of the last committed record.
    pub fn committed_image(&self) -> &MetadataImage {
        &self.committed.0.image
    }

    pub fn next_offset(&self) -> i64 {
        self.next_offset
    }

    /// Whether anybody else reads the log. A single voter without observers writes no record that says nothing: there is
    /// nobody to show that the log moves, and an idle node leaves its disk alone.
    pub fn set_alone(&mut self, alone: bool) {
        self.alone = alone;
    }

    /// The quorum appended control records of its own: the log's end is now here.
    pub fn log_ends_at(&mut self, offset: i64) {
        assert!(offset >= self.next_offset, "a leader's log never shrinks");
        self.next_offset = offset;
    }

    /// A snapshot was loaded, while another leads.
    pub fn load_snapshot(&mut self, image: MetadataImage) {
        assert!(self.active.is_none(), "a leader loads no snapshot");
        let Provenance { offset, .. } = image.provenance;
        self.state = self.state.with_image(image);
        self.before_transaction = None;
        self.uncommitted.clear();
        self.committed = (self.state.clone(), None);
        (self.committed_offset, self.next_offset) = (offset, offset + 1);
    }

    /// Committed records that another controller wrote, or this one before it started.
    pub fn load_batch(&mut self, base_offset: i64, records: &[Record]) -> Result<(), ReplayError> {
        assert!(self.active.is_none(), "a leader has applied its records before they commit");
        let mut offset = base_offset;
        for record in records {
            self.apply(record, offset)?;
            offset += 1;
        }
        self.next_offset = offset;
        self.committed = (self.state.clone(), self.before_transaction.clone());
        self.committed_offset = offset - 1;
        Ok(())
    }

    fn apply(&mut self, record: &Record, offset: i64) -> Result<(), ReplayError> {
        use wire::MetadataRecordKind as Kind;
        match (&record.kind, self.before_transaction.is_some()) {
            (Kind::BeginTransaction(_), false) => self.before_transaction = Some(Box::new(self.state.clone())),
            (Kind::EndTransaction(_), true) => self.before_transaction = None,
            (Kind::AbortTransaction(_), true) => {
                self.state = *self.before_transaction.take().expect("it was asked for");
            }
            _ => return self.state.replay(&record.kind, offset),
        }
        self.state.image.provenance.offset = offset;
        Ok(())
    }

    /// Takes the leadership over at the end of a log of which everything has been loaded. The append opens it: it ends a
    /// transaction that was left open, and writes what a new cluster starts with.
    pub fn claim(&mut self, epoch: i32, log_end: i64, now: Now) -> Result<Append, ApiError> {
        assert!(self.active.is_none(), "the leadership is claimed once");
        self.next_offset = log_end;
        let records = crate::activation::records(&self.options, &self.state, self.before_transaction.as_deref())?;
        let now = now.monotonic;
        self.active = Some(Active {
            epoch,
            heartbeats: Heartbeats::new(self.options.session_timeout, &self.state.image.cluster, now),
            next_fence_check: now + self.fence_check_interval(),
            next_balance: self.options.leader_balance_interval.map(|interval| now + interval),
            next_unclean: now + self.options.unclean_election_interval,
            next_idle: self.options.idle_interval.map(|interval| now + interval),
            fencing: None,
            electing: None,
        });
        Ok(self.append(records, false))
    }

    pub(crate) fn fence_check_interval(&self) -> Duration {
        (self.options.session_timeout / 8).max(Duration::from_millis(1))
    }

    /// The leadership is lost: whatever is not committed is undone. What of it commits after all comes back as batches.
    pub fn renounce(&mut self) {
        self.active = None;
        self.uncommitted.clear();
        (self.state, self.before_transaction) = self.committed.clone();
        self.next_offset = self.committed_offset + 1;
    }

    /// Everything up to `offset` is committed. Batches commit whole, so it is the end of one, or of control records.
    pub fn on_committed(&mut self, offset: i64) {
        while self.uncommitted.front().is_some_and(|(end, ..)| *end <= offset) {
            let (end, state, transaction) = self.uncommitted.pop_front().expect("it was looked at");
            self.committed = (state, transaction);
            self.committed_offset = end;
        }
        if self.uncommitted.is_empty() {
            self.committed_offset = self.committed_offset.max(offset);
        }
    }

    fn append(&mut self, records: Vec<Record>, atomic: bool) -> Append {
        let base_offset = self.next_offset;
        assert!(!atomic || records.len() <= RECORDS_MAX, "an atomic event is bounded by its validation");
        let mut batches: Vec<Vec<Record>> = Vec::new();
        let mut rest = records.into_iter().peekable();
        while rest.peek().is_some() {
            let batch: Vec<Record> = rest.by_ref().take(RECORDS_MAX).collect();
            for record in &batch {
                let offset = self.next_offset;
                // A record of our own that cannot be applied would be a log that nobody can read: better no controller.
                self.apply(record, offset).unwrap_or_else(|error| panic!("own record {record:?}: {error}"));
                self.follow(record);
                self.next_offset += 1;
            }
            batches.push(batch);
            let end = self.next_offset - 1;
            self.uncommitted.push_back((end, self.state.clone(), self.before_transaction.clone()));
        }
        Append { base_offset, batches }
    }

    /// Keeps what is known of brokers beyond the log in step with it.
    fn follow(&mut self, record: &Record) {
        use wire::MetadataRecordKind as Kind;
        let Some(active) = &mut self.active else { return };
        let (id, afresh) = match &record.kind {
            Kind::RegisterBroker(r) => (r.broker_id, true),
            Kind::UnregisterBroker(r) => (r.broker_id, true),
            Kind::BrokerRegistrationChange(r) => (r.broker_id, false),
            _ => return,
        };
        let id = NodeId(id);
        if afresh {
            active.heartbeats.remove(id);
        }
        if let Some(broker) = self.state.image.cluster.broker(id) {
            active.heartbeats.register(id, broker.fenced);
        }
    }

    /// The common path of all events of the active controller.
    pub(crate) fn decide<R>(
        &mut self,
        event: impl FnOnce(&mut Controller) -> Result<Decision<R>, ApiError>,
        refuse: impl FnOnce(&ApiError) -> R,
    ) -> Outcome<R> {
        let decision = if self.is_active() { event(self) } else { Err(ApiError::plain(ErrorCode::NotController)) };
        let decision = decision.unwrap_or_else(|error| Decision::answer(refuse(&error)));
        let append = self.append(decision.records, decision.atomic);
        if decision.again {
            return Outcome::Again { append };
        }
        // Also an answer without records may rest on records that are not yet committed.
        Outcome::Done { append, answer_at: self.next_offset - 1, response: decision.response }
    }

    pub(crate) fn level(&self) -> MetadataVersion {
        self.state.image.features.metadata_version.unwrap_or(MetadataVersion::MINIMUM)
    }

    pub(crate) fn elr_enabled(&self) -> bool {
        self.state.image.features.has_eligible_leader_replicas()
    }

    pub(crate) fn heartbeats(&mut self) -> &mut Heartbeats {
        &mut self.active.as_mut().expect("events run on the active controller only").heartbeats
    }

    /// The broker is registered under this epoch.
    pub(crate) fn check_broker_epoch(&self, id: i32, epoch: i64) -> Result<(), ApiError> {
        let stale = |message: String| Err(ApiError::new(ErrorCode::StaleBrokerEpoch, message));
        match self.state.image.cluster.broker(NodeId(id)) {
            None => stale(format!("No broker registration found for broker id {id}")),
            Some(broker) if broker.epoch != BrokerEpoch(epoch) => {
                stale(format!("Expected broker epoch {}, but got broker epoch {epoch}", broker.epoch))
            }
            Some(_) => Ok(()),
        }
    }

    /// Brokers that may be given new replicas.
    pub(crate) fn usable_brokers(&self) -> Vec<UsableBroker> {
        let active = self.active.as_ref().expect("events run on the active controller only");
        let brokers = self.state.image.cluster.brokers.values();
        let usable = brokers.filter(|b| !active.heartbeats.is_shutting_down(b.id) && b.has_uncordoned_directory());
        usable.map(|b| UsableBroker { id: b.id, rack: b.rack.clone(), fenced: b.fenced }).collect()
    }

    pub(crate) fn default_directory(&self, node: NodeId) -> Uuid {
        let broker = self.state.image.cluster.broker(node);
        broker.map_or(image::cluster::DIRECTORY_UNASSIGNED, image::Broker::default_directory)
    }

    pub(crate) fn topic_named(&self, name: &str) -> Option<TopicId> {
        self.state.image.topics.id(name)
    }

    /// The texts stored for a resource.
    pub(crate) fn stored(&self, resource: &Resource) -> settings::Texts {
        self.state.image.overrides(resource).cloned().unwrap_or_default()
    }
}
