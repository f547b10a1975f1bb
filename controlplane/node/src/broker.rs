//! The life of this node's broker: from a dataplane's hello over its registration to heartbeats. The controller is this
//! node's own, so every step is a request to it and its commit.

use crate::api::DiskWork;
use crate::decide::{Decision, Registered, Run, decide};
use crate::features::supported_features;
use crate::held::Then;
use crate::link_end::own_context;
use crate::node::Node;
use crate::run_record::RunRecord;
use base::{Monotonic, Now, Uuid};
use image::Broker;
use link::{Down, DownHello, PROTOCOL_VERSION, UpHello};
use std::time::Duration;
use wire::messages::broker_registration_request::{Feature, Listener};
use wire::messages::{
    BrokerHeartbeatRequest, BrokerHeartbeatResponse, BrokerRegistrationRequest, BrokerRegistrationResponse,
};
use wire::{ApiKey, ErrorCode};

/// After a refused registration.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Between heartbeats of a broker that is leaving.
const LEAVING_BEAT: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing is decided for this connection yet.
    Start,
    /// What is registered is being fenced.
    Fencing,
    /// The file of the run is being written.
    Storing,
    Registering,
    /// A heartbeat asks to be unfenced.
    Unfencing,
    /// The dataplane has its images.
    Serving,
}

/// Where a decision leads.
#[derive(Clone, Copy, Debug)]
struct Plan {
    incarnation: Uuid,
    previous_epoch: Option<i64>,
}

#[derive(Debug)]
pub(crate) struct BrokerLife {
    /// What the file says, or will when it is written.
    record: Option<RunRecord>,
    phase: Phase,
    plan: Option<Plan>,
    /// Of the registration that this connection serves under.
    epoch: Option<i64>,
    /// Nothing is tried before.
    not_before: Option<Monotonic>,
    next_beat: Option<Monotonic>,
    beat_under_way: bool,
    /// Heartbeats ask to leave.
    leaving: bool,
    may_go: bool,
}

impl BrokerLife {
    pub fn new(record: Option<RunRecord>) -> BrokerLife {
        BrokerLife {
            record,
            phase: Phase::Start,
            plan: None,
            epoch: None,
            not_before: None,
            next_beat: None,
            beat_under_way: false,
            leaving: false,
            may_go: false,
        }
    }

    /// The connection is another, or what was registered is gone: everything is decided anew.
    pub fn start_over(&mut self) {
        // A file that is being written stays: its answer comes in its own time.
        if self.phase != Phase::Storing {
            self.phase = Phase::Start;
        }
        (self.plan, self.epoch, self.next_beat, self.beat_under_way) = (None, None, None, false);
    }

    pub fn epoch(&self) -> Option<i64> {
        self.epoch
    }

    pub fn is_serving(&self) -> bool {
        self.phase == Phase::Serving
    }

    pub fn phase(&self) -> crate::status::BrokerPhase {
        use crate::status::BrokerPhase as Told;
        match self.phase {
            Phase::Start => Told::Waiting,
            Phase::Fencing | Phase::Storing | Phase::Registering => Told::Registering,
            Phase::Unfencing => Told::Unfencing,
            Phase::Serving => Told::Serving,
        }
    }

    pub fn next_deadline(&self) -> Option<Monotonic> {
        match self.phase {
            Phase::Start => self.not_before,
            Phase::Serving if !self.beat_under_way => self.next_beat,
            _ => None,
        }
    }

    pub fn beat_now(&mut self) {
        if self.phase == Phase::Serving {
            self.next_beat = Some(Monotonic::ZERO);
        }
    }

    pub fn leave(&mut self) {
        self.leaving = true;
        self.beat_now();
    }

    /// The controller said that this broker may go.
    pub fn may_go(&self) -> bool {
        self.may_go
    }
}

fn run_of(hello: &UpHello) -> Run {
    Run {
        id: hello.run_id,
        boot_id: hello.boot_id.clone(),
        clean_stop: hello.clean_stop,
        damaged: hello.damaged,
        durability_cache: hello.durability_cache,
    }
}

fn registered_of(broker: &Broker) -> Registered {
    Registered {
        incarnation: broker.incarnation,
        epoch: broker.epoch,
        fenced: broker.fenced,
        in_controlled_shutdown: broker.in_controlled_shutdown,
    }
}

impl Node {
    /// Does the next step that can be done; true if there was one.
    pub(crate) fn advance_broker(&mut self, now: Now) -> bool {
        if self.dataplane.is_none() || !self.controller.is_active() {
            return false;
        }
        match self.broker.phase {
            Phase::Start => self.begin_broker(now),
            Phase::Serving => self.beat_if_due(now),
            Phase::Fencing | Phase::Storing | Phase::Registering | Phase::Unfencing => false,
        }
    }

    fn begin_broker(&mut self, now: Now) -> bool {
        let settled = self.loader.image().provenance.offset + 1 == self.controller.next_offset();
        if self.broker.not_before.is_some_and(|at| at > now.monotonic) || self.stopping.has_begun() {
            return false;
        }
        self.broker.not_before = None;
        if !settled || self.refuse_newer_dataplane() {
            return false;
        }
        let run = run_of(&self.dataplane.as_ref().expect("it is connected").hello);
        let known = self.loader.image().cluster.broker(self.options.node).map(registered_of);
        let decision = decide(known.as_ref(), self.broker.record.as_ref(), &run);
        tracing::info!(?decision, run = %run.id, "the dataplane's run is judged");
        let kept = known.as_ref().map(|known| known.incarnation);
        let previous_of_record = self.broker.record.as_ref().and_then(|record| record.previous_epoch);
        let plan = match decision {
            Decision::Keep | Decision::Fence => {
                Plan { incarnation: kept.expect("it is registered"), previous_epoch: previous_of_record }
            }
            Decision::Register { chosen, previous_epoch } => {
                Plan { incarnation: chosen.unwrap_or_else(|| Uuid::random(&mut self.random)), previous_epoch }
            }
        };
        self.broker.plan = Some(plan);
        match known {
            Some(known) if decision != Decision::Keep && !known.fenced => {
                self.broker.phase = Phase::Fencing;
                let request = BrokerHeartbeatRequest { want_fence: true, ..self.heartbeat(known.epoch.0) };
                self.ask(&own_context(ApiKey::BrokerHeartbeat), &request.into(), Then::Fenced, now);
            }
            _ => self.store_run(now),
        }
        true
    }

    /// A dataplane that has applied more than this log holds would take partitions for strays: the log was put back.
    fn refuse_newer_dataplane(&mut self) -> bool {
        let dataplane = self.dataplane.as_ref().expect("it is connected");
        let newest = dataplane.hello.duties_offset.max(dataplane.hello.view_offset);
        let offset = self.loader.image().provenance.offset;
        let Some(newest) = newest.filter(|newest| *newest > offset) else { return false };
        let why = format!(
            "the dataplane has applied metadata up to offset {newest}, the metadata log ends at {offset}: it was put back or \
             cut, and what it lacks would be taken for deleted; restore the newest copy of the folder controlplane"
        );
        tracing::error!(why, "the dataplane is refused");
        self.out.disconnect = Some(why);
        self.dataplane = None;
        true
    }

    pub(crate) fn on_fenced(&mut self, response: &BrokerHeartbeatResponse, now: Now) {
        if self.broker.phase != Phase::Fencing || self.dataplane.is_none() {
            return;
        }
        if response.error_code != 0 || !response.is_fenced {
            return self.retry_broker(response.error_code, "the fencing", now);
        }
        self.store_run(now);
    }

    /// Writes the file of the run, where it says something else: only now that what it replaces leads nothing.
    fn store_run(&mut self, now: Now) {
        let (Some(plan), Some(dataplane)) = (self.broker.plan, &self.dataplane) else { return };
        let record = RunRecord {
            run: dataplane.hello.run_id,
            boot_id: dataplane.hello.boot_id.clone(),
            incarnation: plan.incarnation,
            previous_epoch: plan.previous_epoch,
        };
        if self.broker.record.as_ref() == Some(&record) {
            return self.register(now);
        }
        self.broker.phase = Phase::Storing;
        self.out.disk.push(DiskWork::StoreRun(record.encode()));
        self.broker.record = Some(record);
    }

    pub(crate) fn on_run_stored(&mut self, result: Result<(), String>, now: Now) {
        if let Err(error) = result {
            return self.fault(format!("the file of the dataplane's run cannot be written: {error}"));
        }
        if self.broker.phase != Phase::Storing {
            return;
        }
        self.broker.phase = Phase::Start;
        if self.broker.plan.is_some() && self.dataplane.is_some() && self.controller.is_active() {
            self.register(now);
        }
    }

    /// Registers where the log does not say the same already.
    fn register(&mut self, now: Now) {
        let Some(plan) = self.broker.plan else { return };
        let request = self.registration(plan);
        let known = self.loader.image().cluster.broker(self.options.node);
        match known {
            Some(known) if says_the_same(known, &request) => {
                self.broker.epoch = Some(known.epoch.0);
                self.unfence(now);
            }
            _ => {
                self.broker.phase = Phase::Registering;
                self.ask(&own_context(ApiKey::BrokerRegistration), &request.into(), Then::Registered, now);
            }
        }
    }

    fn registration(&self, plan: Plan) -> BrokerRegistrationRequest {
        let hello = &self.dataplane.as_ref().expect("registrations are a connected dataplane's").hello;
        let listener = |bound: &link::BoundListener| Listener {
            name: bound.name.as_str().into(),
            host: bound.advertised_host.as_str().into(),
            port: bound.advertised_port,
            security_protocol: bound.security_protocol,
            ..Default::default()
        };
        let feature = |(name, range): (&String, &image::FeatureRange)| Feature {
            name: name.as_str().into(),
            min_supported_version: range.min,
            max_supported_version: range.max,
            ..Default::default()
        };
        BrokerRegistrationRequest {
            broker_id: self.options.node.0,
            cluster_id: self.cluster_id.as_str().into(),
            incarnation_id: plan.incarnation,
            listeners: hello.listeners.iter().map(listener).collect(),
            features: supported_features().iter().map(feature).collect(),
            rack: self.options.settings.text("broker.rack").map(Into::into),
            log_dirs: hello.directories.clone(),
            previous_broker_epoch: plan.previous_epoch.unwrap_or(-1),
            ..Default::default()
        }
    }

    pub(crate) fn on_registered(&mut self, response: &BrokerRegistrationResponse, now: Now) {
        if self.broker.phase != Phase::Registering || self.dataplane.is_none() {
            return;
        }
        if response.error_code == ErrorCode::UnsupportedVersion.code() {
            let levels = self.loader.image().features.levels.clone();
            return self
                .fault(format!("the cluster's feature levels are not ones that this version serves: {levels:?}"));
        }
        if response.error_code != 0 {
            return self.retry_broker(response.error_code, "the registration", now);
        }
        tracing::info!(epoch = response.broker_epoch, "the broker is registered");
        self.broker.epoch = Some(response.broker_epoch);
        self.unfence(now);
    }

    fn retry_broker(&mut self, code: i16, what: &str, now: Now) {
        tracing::warn!(code, what, "the controller refuses; it is tried again");
        self.broker.start_over();
        self.broker.not_before = Some(now.monotonic + RETRY_AFTER);
    }

    fn unfence(&mut self, now: Now) {
        self.broker.phase = Phase::Unfencing;
        self.beat(now);
    }

    fn heartbeat(&self, epoch: i64) -> BrokerHeartbeatRequest {
        BrokerHeartbeatRequest {
            broker_id: self.options.node.0,
            broker_epoch: epoch,
            current_metadata_offset: self.loader.image().provenance.offset,
            ..Default::default()
        }
    }

    fn beat(&mut self, now: Now) {
        let Some(epoch) = self.broker.epoch else { return };
        let offline = self.dataplane.as_ref().map(|dataplane| dataplane.failed_directories.clone()).unwrap_or_default();
        let leaving = self.broker.leaving && self.broker.phase == Phase::Serving;
        let request =
            BrokerHeartbeatRequest { want_shut_down: leaving, offline_log_dirs: offline, ..self.heartbeat(epoch) };
        self.broker.beat_under_way = true;
        let interval = u64::try_from(self.settings.typed().broker_heartbeat_interval_ms).unwrap_or(0).max(1);
        let wait = if leaving { LEAVING_BEAT } else { Duration::from_millis(interval) };
        self.broker.next_beat = Some(now.monotonic + wait);
        self.ask(&own_context(ApiKey::BrokerHeartbeat), &request.into(), Then::Beat, now);
    }

    fn beat_if_due(&mut self, now: Now) -> bool {
        if self.broker.beat_under_way || self.broker.next_beat.is_none_or(|at| at > now.monotonic) {
            return false;
        }
        let session = u64::try_from(self.settings.typed().broker_session_timeout_ms).unwrap_or(0);
        let dataplane = self.dataplane.as_mut().expect("a serving broker has a dataplane");
        dataplane.pings += 1;
        self.out.down.push(Down::Ping(dataplane.pings));
        if now.monotonic.since(dataplane.last_heard) > Duration::from_millis(session) {
            // Its session may end: a dataplane that answers nothing leads nothing.
            tracing::warn!("the dataplane has not answered for a session's time");
            let interval = u64::try_from(self.settings.typed().broker_heartbeat_interval_ms).unwrap_or(0).max(1);
            self.broker.next_beat = Some(now.monotonic + Duration::from_millis(interval));
            return true;
        }
        self.beat(now);
        true
    }

    pub(crate) fn on_beat(&mut self, response: &BrokerHeartbeatResponse, now: Now) {
        if !self.broker.beat_under_way || self.dataplane.is_none() {
            return;
        }
        self.broker.beat_under_way = false;
        if response.error_code != 0 {
            return self.on_beat_refused(response.error_code, now);
        }
        self.broker.may_go |= response.should_shut_down;
        match self.broker.phase {
            Phase::Unfencing if !response.is_fenced => self.serve(now),
            // It must have its own registration first, which the next publication brings.
            Phase::Unfencing => self.beat(now),
            _ => {}
        }
    }

    /// The registration is gone, by an operator's hand: a new one is made, as at the first start.
    fn on_beat_refused(&mut self, code: i16, now: Now) {
        tracing::warn!(code, "a heartbeat was refused");
        if self.broker.leaving {
            self.broker.may_go = true;
            return;
        }
        if code == ErrorCode::StaleBrokerEpoch.code() {
            self.broker.start_over();
            self.broker.not_before = Some(now.monotonic + RETRY_AFTER);
        }
    }

    /// The broker is unfenced: hello, everything there is, and then whatever changes.
    fn serve(&mut self, now: Now) {
        let incarnation = self.broker.plan.expect("it was registered by a plan").incarnation;
        self.broker.phase = Phase::Serving;
        let dataplane = self.dataplane.as_ref().expect("it is connected");
        let (known, in_hand) = (dataplane.hello.duties_offset, dataplane.hello.producer_ids_in_hand);
        if !dataplane.is_served() {
            self.out.down.push(Down::Hello(DownHello {
                protocol_version: PROTOCOL_VERSION,
                cluster_id: self.cluster_id.clone(),
                node_id: self.options.node,
                incarnation,
            }));
            self.send_images(known);
            self.list_strays();
            tracing::info!(offset = self.loader.image().provenance.offset, "the dataplane has its images");
            self.fill_producer_ids(in_hand, now);
            let early = self.dataplane.as_mut().map(|dataplane| dataplane.take_early()).unwrap_or_default();
            early.into_iter().for_each(|forward| self.dispatch(forward, now));
        }
    }
}

/// The log holds this registration already, and a heartbeat is all that is missing.
fn says_the_same(known: &Broker, request: &BrokerRegistrationRequest) -> bool {
    let same_listeners = known.endpoints.len() == request.listeners.len()
        && known.endpoints.iter().zip(&request.listeners).all(|(a, b)| {
            (&a.name, &a.host, a.port, a.security_protocol) == (&b.name, &b.host, b.port, b.security_protocol)
        });
    let same_features = known.features.len() == request.features.len()
        && request.features.iter().all(|feature| {
            let range = known.features.get(&feature.name);
            range.is_some_and(|r| (r.min, r.max) == (feature.min_supported_version, feature.max_supported_version))
        });
    let mut directories = request.log_dirs.clone();
    directories.sort_by_key(image::cluster::directory_order);
    known.incarnation == request.incarnation_id
        && same_listeners
        && same_features
        && known.rack == request.rack
        && known.directories == directories
}
