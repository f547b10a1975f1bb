//! Registrations and heartbeats (KIP-631): who is a broker, under which epoch, and whether it serves.

use crate::controller::{Controller, Decision, Outcome, RequestContext};
use crate::elections::Cause;
use crate::error::ApiError;
use crate::heartbeats::{Standing, Wish};
use base::{BrokerEpoch, NodeId, Now, Uuid};
use image::{Broker, FEATURE_KRAFT, MetadataVersion, Record};
use wire::ErrorCode;
use wire::messages::broker_registration_request::Feature;
use wire::messages::register_broker_record::{BrokerEndpoint, BrokerFeature, RegisterBrokerRecord};
use wire::messages::{
    BrokerHeartbeatRequest, BrokerHeartbeatResponse, BrokerRegistrationChangeRecord, BrokerRegistrationRequest,
    BrokerRegistrationResponse, UnregisterBrokerRecord, UnregisterBrokerRequest, UnregisterBrokerResponse,
};

impl Controller {
    pub fn register_broker(
        &mut self,
        now: Now,
        context: &RequestContext,
        kraft_version: i16,
        request: &BrokerRegistrationRequest,
    ) -> Outcome<BrokerRegistrationResponse> {
        // Before version 3 a broker cannot say that it stopped cleanly.
        let tells_epoch = context.version >= 3;
        self.decide(
            |controller| controller.decide_registration(now, kraft_version, tells_epoch, request),
            |error| BrokerRegistrationResponse { error_code: error.code(), broker_epoch: -1, ..Default::default() },
        )
    }

    fn decide_registration(
        &mut self,
        now: Now,
        kraft_version: i16,
        tells_epoch: bool,
        request: &BrokerRegistrationRequest,
    ) -> Result<Decision<BrokerRegistrationResponse>, ApiError> {
        if request.cluster_id != self.options.cluster_id.as_str() {
            let (ours, theirs) = (&self.options.cluster_id, &request.cluster_id);
            let message = format!("Expected cluster ID {ours}, but got cluster ID {theirs}");
            return Err(ApiError::new(ErrorCode::InconsistentClusterId, message));
        }
        let id = NodeId(request.broker_id);
        let existing = self.state.image.cluster.broker(id).cloned();
        let same = existing.as_ref().filter(|broker| broker.incarnation == request.incarnation_id);
        if let Some(other) = existing.as_ref().filter(|_| same.is_none()) {
            let waits = !(other.fenced && self.options.fenced_may_reregister);
            if waits && self.heartbeats().has_session(id, other.epoch, now.monotonic) {
                return Err(ApiError::new(
                    ErrorCode::DuplicateBrokerRegistration,
                    "Another broker is registered under this id, and its session has not ended.",
                ));
            }
        }
        if request.is_migrating_zk_broker {
            let message = "Controller does not support registering ZK brokers.";
            return Err(ApiError::new(ErrorCode::BrokerIdNotRegistered, message));
        }
        self.check_directories(id, &request.log_dirs)?;
        self.check_features(kraft_version, &request.features)?;
        let mut records = Vec::new();
        if same.is_none() {
            let stored_epoch = existing.as_ref().map_or(-2, |broker| broker.epoch.0);
            let clean = tells_epoch && stored_epoch == request.previous_broker_epoch;
            if self.shut_down(id, clean, &mut records) {
                let decision = Decision::loose(records, BrokerRegistrationResponse::default());
                return Ok(Decision { again: true, ..decision });
            }
        }
        // A new epoch is the offset of the first record of its registration: no other broker can have it.
        let epoch = same.map_or(self.next_offset(), |broker| broker.epoch.0);
        records.push(self.registration(request, same, epoch));
        if same.is_none() {
            self.heartbeats().remove(id);
        }
        Ok(Decision::loose(records, BrokerRegistrationResponse { broker_epoch: epoch, ..Default::default() }))
    }

    fn check_directories(&self, id: NodeId, directories: &[Uuid]) -> Result<(), ApiError> {
        let invalid = |message: String| Err(ApiError::new(ErrorCode::InvalidRegistration, message));
        if !self.level().has_directories() {
            return Ok(());
        }
        if directories.is_empty() {
            return invalid("No directories specified in request".to_owned());
        }
        if directories.iter().any(|directory| image::cluster::directory_is_reserved(*directory)) {
            return invalid("Reserved directory ID in request".to_owned());
        }
        let unique: std::collections::BTreeSet<&Uuid> = directories.iter().collect();
        if unique.len() != directories.len() {
            return invalid("Duplicate directory ID in request".to_owned());
        }
        for directory in directories {
            if let Some(owner) = self.state.index.directory_owner.get(directory).filter(|owner| **owner != id) {
                return invalid(format!("Broker {owner} is already registered with directory {directory}"));
            }
        }
        Ok(())
    }

    /// Every finalized feature must be one that the broker can run; what it does not name it runs at level 0.
    fn check_features(&self, kraft_version: i16, features: &[Feature]) -> Result<(), ApiError> {
        let finalized = |name: &str| match name {
            MetadataVersion::FEATURE => self.level().0,
            FEATURE_KRAFT => kraft_version,
            _ => self.state.image.features.level(name),
        };
        let check = |name: &str, min: i16, max: i16| {
            let level = finalized(name);
            if (min..=max).contains(&level) {
                return Ok(());
            }
            let message = format!(
                "Unable to register because the broker does not support finalized version {level} of {name}. The broker \
                 wants a version between {min} and {max}, inclusive."
            );
            Err(ApiError::new(ErrorCode::UnsupportedVersion, message))
        };
        for feature in features {
            check(&feature.name, feature.min_supported_version, feature.max_supported_version)?;
        }
        let named = |name: &str| features.iter().any(|feature| feature.name == name);
        if !named(MetadataVersion::FEATURE) {
            let message = "Request features do not contain 'metadata.version'";
            return Err(ApiError::new(ErrorCode::InvalidRegistration, message));
        }
        let others = self.state.image.features.levels.keys().map(|name| name.as_str());
        for name in others.chain([FEATURE_KRAFT]).filter(|name| !named(name) && finalized(name) != 0) {
            check(name, 0, 0)?;
        }
        Ok(())
    }

    fn registration(&self, request: &BrokerRegistrationRequest, same: Option<&Broker>, epoch: i64) -> Record {
        let version = self.level().register_broker_record_version();
        let endpoint = |l: &wire::messages::broker_registration_request::Listener| BrokerEndpoint {
            name: l.name.clone(),
            host: l.host.clone(),
            port: l.port,
            security_protocol: l.security_protocol,
            unknown_tags: Default::default(),
        };
        let feature = |f: &Feature| BrokerFeature {
            name: f.name.clone(),
            min_supported_version: f.min_supported_version,
            max_supported_version: f.max_supported_version,
            unknown_tags: Default::default(),
        };
        let record = RegisterBrokerRecord {
            broker_id: request.broker_id,
            is_migrating_zk_broker: false,
            incarnation_id: request.incarnation_id,
            broker_epoch: epoch,
            end_points: request.listeners.iter().map(endpoint).collect(),
            features: request.features.iter().map(feature).collect(),
            rack: request.rack.clone(),
            fenced: same.is_none_or(|broker| broker.fenced),
            in_controlled_shutdown: same.is_some_and(|broker| broker.in_controlled_shutdown),
            log_dirs: if version >= 3 { request.log_dirs.clone() } else { Vec::new() },
            cordoned_log_dirs: None,
            unknown_tags: Default::default(),
        };
        Record::new(record, version)
    }

    /// What the last incarnation left: it leaves the ISRs, and the ELRs too unless it stopped cleanly. True when there
    /// is more to do than one event may.
    fn shut_down(&self, id: NodeId, clean: bool, records: &mut Vec<Record>) -> bool {
        if self.elr_enabled() && !clean {
            let cause = Cause { unclean_shutdown: Some(id), ..Cause::default() };
            let more = self.sweep_isr(id, cause, records);
            return self.sweep_elr(id, cause, records) || more;
        }
        self.sweep_isr(id, Cause { removed: Some(id), ..Cause::default() }, records)
    }

    pub fn unregister_broker(&mut self, request: &UnregisterBrokerRequest) -> Outcome<UnregisterBrokerResponse> {
        self.decide(
            |controller| {
                let id = NodeId(request.broker_id);
                let Some(broker) = controller.state.image.cluster.broker(id) else {
                    let message = format!("Broker ID {id} is not currently registered");
                    return Err(ApiError::new(ErrorCode::BrokerIdNotRegistered, message));
                };
                let mut records = Vec::new();
                let cause = Cause { removed: Some(id), ..Cause::default() };
                let more = controller.sweep_isr(id, cause, &mut records);
                let more = controller.sweep_elr(id, cause, &mut records) || more;
                if !more {
                    records.push(Record::v0(UnregisterBrokerRecord {
                        broker_id: id.0,
                        broker_epoch: broker.epoch.0,
                        unknown_tags: Default::default(),
                    }));
                }
                let response = UnregisterBrokerResponse::default();
                Ok(Decision { again: more, ..Decision::loose(records, response) })
            },
            |error| UnregisterBrokerResponse {
                error_code: error.code(),
                error_message: error.message(),
                ..Default::default()
            },
        )
    }

    pub fn heartbeat(&mut self, now: Now, request: &BrokerHeartbeatRequest) -> Outcome<BrokerHeartbeatResponse> {
        let id = NodeId(request.broker_id);
        if let Some(active) = &mut self.active {
            active.heartbeats.contact(id, BrokerEpoch(request.broker_epoch), now.monotonic);
        }
        let mut leaving = false;
        let outcome = self.decide(
            |controller| {
                let (decision, standing) = controller.decide_heartbeat(id, request)?;
                leaving = standing == Standing::ControlledShutdown;
                Ok(decision)
            },
            |error| BrokerHeartbeatResponse { error_code: error.code(), is_fenced: true, ..Default::default() },
        );
        if leaving {
            let end = self.next_offset() - 1;
            self.heartbeats().begin_shutdown(id, end);
        }
        outcome
    }

    fn decide_heartbeat(
        &mut self,
        id: NodeId,
        request: &BrokerHeartbeatRequest,
    ) -> Result<(Decision<BrokerHeartbeatResponse>, Standing), ApiError> {
        let Some(registered_at) = self.state.index.registered_at.get(&id).copied() else {
            let message = format!("Receive a heartbeat from broker {id} before registration");
            return Err(ApiError::new(ErrorCode::StaleBrokerEpoch, message));
        };
        self.check_broker_epoch(request.broker_id, request.broker_epoch)?;
        let epoch = BrokerEpoch(request.broker_epoch);
        let wish = Wish {
            fence: request.want_fence,
            shut_down: request.want_shut_down,
            offset: request.current_metadata_offset,
        };
        let leads = self.state.index.leads.contains(&id);
        let standing = self.heartbeats().standing(id);
        let next = self.heartbeats().next_standing(id, wish, registered_at, leads);
        let mut records = Vec::new();
        let mut more = false;
        if next != standing {
            more = match next {
                Standing::Fenced | Standing::ShutdownNow => self.fence(id, epoch, &mut records),
                Standing::Unfenced => {
                    records.push(fencing(id, epoch, -1));
                    let next = self.elect_leaderless(Some(id), None, &mut records);
                    self.active.as_mut().expect("events run while active").electing = next;
                    false
                }
                Standing::ControlledShutdown => self.begin_leaving(id, epoch, &mut records),
            };
        }
        if more {
            let response = BrokerHeartbeatResponse::default();
            return Ok((Decision { again: true, ..Decision::loose(records, response) }, standing));
        }
        let offset = Some(request.current_metadata_offset);
        self.heartbeats().touch(id, next.is_fenced(), offset);
        self.report_directories(id, epoch, request, &mut records);
        let response = BrokerHeartbeatResponse {
            is_caught_up: request.current_metadata_offset >= registered_at,
            is_fenced: next.is_fenced(),
            should_shut_down: next == Standing::ShutdownNow,
            ..Default::default()
        };
        Ok((Decision::loose(records, response), next))
    }

    /// Leaderships first, then the fence, so that no record names a fenced leader. True when there is more to do.
    pub(crate) fn fence(&self, id: NodeId, epoch: BrokerEpoch, records: &mut Vec<Record>) -> bool {
        let more = self.sweep_isr(id, Cause { removed: Some(id), ..Cause::default() }, records);
        if !more {
            records.push(fencing(id, epoch, 1));
        }
        more
    }

    fn begin_leaving(&self, id: NodeId, epoch: BrokerEpoch, records: &mut Vec<Record>) -> bool {
        let leaving = self.state.image.cluster.broker(id).is_some_and(|broker| broker.in_controlled_shutdown);
        if !leaving {
            let change = BrokerRegistrationChangeRecord { in_controlled_shutdown: 1, ..change_of(id, epoch) };
            records.push(Record::new(change, 1));
        }
        self.sweep_isr(id, Cause { removed: Some(id), ..Cause::default() }, records)
    }

    fn report_directories(
        &self,
        id: NodeId,
        epoch: BrokerEpoch,
        request: &BrokerHeartbeatRequest,
        records: &mut Vec<Record>,
    ) {
        let Some(broker) = self.state.image.cluster.broker(id) else { return };
        if self.level().has_directories() {
            let offline = |directory: &&Uuid| request.offline_log_dirs.contains(directory);
            let failed: Vec<Uuid> = broker.directories.iter().filter(offline).copied().collect();
            for directory in &failed {
                let held = self.state.index.in_directory.get(directory).into_iter().flat_map(|set| set.keys().copied());
                self.update_leaders(Cause { removed: Some(id), ..Cause::default() }, held, records);
            }
            if !failed.is_empty() {
                let log_dirs = broker.directories.iter().filter(|directory| !offline(directory)).copied().collect();
                records.push(Record::new(BrokerRegistrationChangeRecord { log_dirs, ..change_of(id, epoch) }, 2));
            }
        }
        if self.level().has_cordoned_directories()
            && let Some(told) = &request.cordoned_log_dirs
        {
            let set = |directories: &[Uuid]| directories.iter().copied().collect::<std::collections::BTreeSet<Uuid>>();
            if broker.cordoned_directories.as_ref().is_none_or(|known| set(known) != set(told)) {
                let cordoned_log_dirs = Some(told.clone());
                let change = BrokerRegistrationChangeRecord { cordoned_log_dirs, ..change_of(id, epoch) };
                records.push(Record::new(change, 3));
            }
        }
    }
}

fn change_of(id: NodeId, epoch: BrokerEpoch) -> BrokerRegistrationChangeRecord {
    BrokerRegistrationChangeRecord { broker_id: id.0, broker_epoch: epoch.0, ..Default::default() }
}

/// 1 fences, -1 unfences.
fn fencing(id: NodeId, epoch: BrokerEpoch, fenced: i8) -> Record {
    Record::v0(BrokerRegistrationChangeRecord { fenced, ..change_of(id, epoch) })
}
