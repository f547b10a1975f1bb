//! Feature levels (KIP-584, KIP-1022), and registrations of controllers, whose support a level needs (KIP-919).

use crate::activation::{config, feature_level};
use crate::controller::{Controller, Decision, Outcome, RequestContext};
use crate::error::ApiError;
use base::NodeId;
use image::{FEATURE_ELR, FEATURE_KRAFT, FeatureRange, MetadataVersion, Record, resource_type};
use std::collections::BTreeMap;
use wire::messages::register_controller_record::{ControllerEndpoint, ControllerFeature, RegisterControllerRecord};
use wire::messages::update_features_request::FeatureUpdateKey;
use wire::messages::update_features_response::UpdatableFeatureResult;
use wire::messages::{
    ControllerRegistrationRequest, ControllerRegistrationResponse, NoOpRecord, UnregisterControllerRecord,
    UnregisterControllerRequest, UnregisterControllerResponse, UpdateFeaturesRequest, UpdateFeaturesResponse,
};
use wire::{ErrorCode, KafkaString};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Upgrade,
    SafeDowngrade,
    UnsafeDowngrade,
}

/// Features that Kafka 4.4 knows beside metadata.version and kraft.version, with the metadata.version each level needs.
const KNOWN: [(&str, &[i16]); 5] = [
    ("transaction.version", &[0, 0, 0]),
    ("group.version", &[0, 0]),
    (FEATURE_ELR, &[0, 23]),
    ("share.version", &[0, 0, 0]),
    ("streams.version", &[0, 0]),
];

fn refuse(feature: &str, level: i16, why: impl std::fmt::Display) -> ApiError {
    let message = format!("Invalid update version {level} for feature {feature}. {why}");
    ApiError::new(ErrorCode::InvalidUpdateVersion, message)
}

fn unsupported(range: FeatureRange, level: i16, who: impl std::fmt::Display) -> Option<String> {
    if range.contains(level) {
        return None;
    }
    Some(match range {
        FeatureRange { max: 0, .. } => format!("{who} does not support this feature."),
        FeatureRange { min, max } if min == max => format!("{who} only supports versions {min}"),
        FeatureRange { min, max } => format!("{who} only supports versions {min}-{max}"),
    })
}

impl Controller {
    pub fn update_features(
        &mut self,
        context: &RequestContext,
        kraft_version: i16,
        request: &UpdateFeaturesRequest,
    ) -> Outcome<UpdateFeaturesResponse> {
        let per_feature = context.version <= 1;
        self.decide(
            |controller| {
                let updated = controller.updated_features(kraft_version, request);
                let (records, response) = match updated {
                    Ok(records) => (records, accepted(request, per_feature)),
                    Err(error) => {
                        let why = error.message.unwrap_or_default();
                        let message = format!(
                            "The update failed for all features since the following feature had an error: {why}"
                        );
                        (Vec::new(), refused(&ApiError::new(error.code, message)))
                    }
                };
                let records = if request.validate_only { Vec::new() } else { records };
                Ok(Decision::atomic(records, response))
            },
            refused,
        )
    }

    fn updated_features(&self, kraft_version: i16, request: &UpdateFeaturesRequest) -> Result<Vec<Record>, ApiError> {
        let mut proposed: BTreeMap<&str, i16> =
            self.state.image.features.levels.iter().map(|(name, level)| (name.as_str(), *level)).collect();
        proposed.insert(MetadataVersion::FEATURE, self.level().0);
        proposed
            .extend(request.feature_updates.iter().map(|update| (update.feature.as_str(), update.max_version_level)));
        let mut records = Vec::new();
        for update in &request.feature_updates {
            records.push(self.updated_feature(kraft_version, update, &proposed)?);
        }
        let elr = request.feature_updates.iter().any(|u| u.feature == FEATURE_ELR && u.max_version_level > 0);
        let safety = if elr { self.elr_safety_records() } else { Vec::new() };
        Ok(safety.into_iter().chain(records.into_iter().flatten()).collect())
    }

    fn updated_feature(
        &self,
        kraft_version: i16,
        update: &FeatureUpdateKey,
        proposed: &BTreeMap<&str, i16>,
    ) -> Result<Option<Record>, ApiError> {
        let (name, level) = (update.feature.as_str(), update.max_version_level);
        let direction = match update.upgrade_type {
            1 => Direction::Upgrade,
            2 => Direction::SafeDowngrade,
            3 => Direction::UnsafeDowngrade,
            _ => return Err(refuse(name, level, "The controller does not support the given upgrade type.")),
        };
        let current = match name {
            MetadataVersion::FEATURE => self.level().0,
            FEATURE_KRAFT => kraft_version,
            _ => self.state.image.features.level(name),
        };
        if level < 0 {
            return Err(refuse(name, level, "A feature version cannot be less than 0."));
        }
        if let Some(why) = self.not_supported_by(name, level) {
            return Err(refuse(name, level, why));
        }
        if level < current && direction == Direction::Upgrade {
            let why = "Can't downgrade the version of this feature without setting the upgrade type to either safe or \
                       unsafe downgrade.";
            return Err(refuse(name, level, why));
        }
        if level > current && direction != Direction::Upgrade {
            return Err(refuse(name, level, "Can't downgrade to a newer version."));
        }
        match name {
            MetadataVersion::FEATURE => self.updated_metadata_version(level, direction).map(Some),
            // Its level lies in the quorum's control records; asking for the one it has is answered once the log has
            // moved on, by a record that says nothing.
            FEATURE_KRAFT if level == current && direction == Direction::Upgrade => {
                Ok(Some(Record::v0(NoOpRecord::default())))
            }
            FEATURE_KRAFT if level == current => Ok(None),
            FEATURE_KRAFT if level < current => {
                Err(refuse(name, level, "Can't downgrade the version of this feature."))
            }
            FEATURE_KRAFT => Err(refuse(name, level, "The voters of this quorum cannot be moved to it while it runs.")),
            _ => {
                check_dependencies(name, level, proposed)?;
                Ok(Some(feature_level(name, level)))
            }
        }
    }

    /// Every broker and controller must be able to run a level.
    fn not_supported_by(&self, name: &str, level: i16) -> Option<String> {
        let node = self.options.node;
        let own = self.options.supported_features.get(name).copied().unwrap_or(FeatureRange::DISABLED);
        let of = |features: &BTreeMap<KafkaString, FeatureRange>| {
            features.get(name).copied().unwrap_or(FeatureRange::DISABLED)
        };
        let cluster = &self.state.image.cluster;
        let brokers =
            || cluster.brokers.values().find_map(|b| unsupported(of(&b.features), level, format!("Broker {}", b.id)));
        let controllers = || {
            let others = cluster.controllers.values().filter(|controller| controller.id != node);
            others
                .filter(|_| self.level().has_controller_registration())
                .find_map(|c| unsupported(of(&c.features), level, format!("Controller {}", c.id)))
        };
        let missing = || {
            let known = |id: &&NodeId| **id == node || cluster.controllers.contains(*id);
            let absent = self.options.quorum_nodes.iter().find(|id| !known(id))?;
            let checked = self.level().has_controller_registration();
            checked.then(|| format!("controller {absent} has not registered, and may not support this feature"))
        };
        unsupported(own, level, format!("Local controller {node}"))
            .or_else(brokers)
            .or_else(controllers)
            .or_else(missing)
    }

    fn updated_metadata_version(&self, level: i16, direction: Direction) -> Result<Record, ApiError> {
        let (current, new) = (self.level(), MetadataVersion(level));
        if !(MetadataVersion::MINIMUM..=MetadataVersion::LATEST_TESTING).contains(&new) {
            let (min, max) = (MetadataVersion::MINIMUM.0, MetadataVersion::LATEST_TESTING.0);
            let message = format!("Invalid metadata.version {level}. Valid versions are from {min} to {max}.");
            return Err(ApiError::new(ErrorCode::InvalidUpdateVersion, message));
        }
        if new < current && new.metadata_differs(current) {
            let why = if direction == Direction::UnsafeDowngrade {
                "Unsafe metadata downgrade is not supported in this version."
            } else {
                "Refusing to perform the requested downgrade because it might delete metadata information."
            };
            let message = format!("Unsupported metadata.version downgrade from {} to {level}. {why}", current.0);
            return Err(ApiError::new(ErrorCode::InvalidUpdateVersion, message));
        }
        Ok(feature_level(MetadataVersion::FEATURE, level))
    }

    /// With ELR every node must know the same min ISR: it moves into the log, and no broker has its own.
    fn elr_safety_records(&self) -> Vec<Record> {
        let name = "min.insync.replicas";
        let mut records = Vec::new();
        if !self.stored(&image::Resource::broker_default()).contains_key(name) {
            let minimum = self.options.settings.typed().min_insync_replicas.to_string();
            records.push(config(resource_type::BROKER, "", name, Some(&minimum)));
        }
        let brokers = self.state.image.configs.iter().filter(|(resource, overrides)| {
            let one = resource.resource_type == resource_type::BROKER && !resource.name.is_empty();
            one && overrides.contains_key(name)
        });
        records.extend(brokers.map(|(resource, _)| config(resource_type::BROKER, &resource.name, name, None)));
        records
    }

    pub fn register_controller(
        &mut self,
        request: &ControllerRegistrationRequest,
    ) -> Outcome<ControllerRegistrationResponse> {
        self.decide(
            |controller| {
                if !controller.level().has_controller_registration() {
                    let message = "The current MetadataVersion is too old to support controller registrations.";
                    return Err(ApiError::new(ErrorCode::UnsupportedVersion, message));
                }
                let endpoint = |l: &wire::messages::controller_registration_request::Listener| ControllerEndpoint {
                    name: l.name.clone(),
                    host: l.host.clone(),
                    port: l.port,
                    security_protocol: l.security_protocol,
                    unknown_tags: Default::default(),
                };
                let feature = |f: &wire::messages::controller_registration_request::Feature| ControllerFeature {
                    name: f.name.clone(),
                    min_supported_version: f.min_supported_version,
                    max_supported_version: f.max_supported_version,
                    unknown_tags: Default::default(),
                };
                let record = Record::v0(RegisterControllerRecord {
                    controller_id: request.controller_id,
                    incarnation_id: request.incarnation_id,
                    zk_migration_ready: false,
                    end_points: request.listeners.iter().map(endpoint).collect(),
                    features: request.features.iter().map(feature).collect(),
                    unknown_tags: Default::default(),
                });
                let response = ControllerRegistrationResponse::default();
                Ok(Decision::atomic(vec![record], response))
            },
            |error| ControllerRegistrationResponse {
                error_code: error.code(),
                error_message: error.message(),
                ..Default::default()
            },
        )
    }

    pub fn unregister_controller(
        &mut self,
        request: &UnregisterControllerRequest,
    ) -> Outcome<UnregisterControllerResponse> {
        self.decide(
            |controller| {
                let id = NodeId(request.controller_id);
                if id == controller.options.node {
                    let message = "Controller cannot unregister itself while it is active.";
                    return Err(ApiError::new(ErrorCode::InvalidRequest, message));
                }
                if !controller.level().has_controller_unregistration() {
                    let message = "The current MetadataVersion is too old to support controller unregistration.";
                    return Err(ApiError::new(ErrorCode::UnsupportedVersion, message));
                }
                if !controller.state.image.cluster.controllers.contains(&id) {
                    let message = format!("Controller ID {id} is not currently registered.");
                    return Err(ApiError::new(ErrorCode::ControllerIdNotRegistered, message));
                }
                let record =
                    Record::v0(UnregisterControllerRecord { controller_id: id.0, unknown_tags: Default::default() });
                let response = UnregisterControllerResponse::default();
                Ok(Decision::atomic(vec![record], response))
            },
            |error| UnregisterControllerResponse {
                error_code: error.code(),
                error_message: error.message(),
                ..Default::default()
            },
        )
    }
}

fn check_dependencies(name: &str, level: i16, proposed: &BTreeMap<&str, i16>) -> Result<(), ApiError> {
    let Some((_, needs)) = KNOWN.iter().find(|(known, _)| *known == name) else {
        return Err(refuse(name, level, format!("Feature {name} not found.")));
    };
    let Some(needed) = usize::try_from(level).ok().and_then(|level| needs.get(level)) else {
        return Err(refuse(name, level, format!("No feature:{name} with feature level {level}")));
    };
    if proposed.get(MetadataVersion::FEATURE).is_none_or(|version| version < needed) {
        let depends = format!("it depends on metadata.version level {needed}");
        return Err(refuse(name, level, format!("{name} could not be set to {level} because {depends}")));
    }
    Ok(())
}

fn accepted(request: &UpdateFeaturesRequest, per_feature: bool) -> UpdateFeaturesResponse {
    let result = |update: &FeatureUpdateKey| UpdatableFeatureResult {
        feature: update.feature.clone(),
        error_code: 0,
        // Kafka puts the name of its code here.
        error_message: Some("NONE".into()),
        unknown_tags: Default::default(),
    };
    let results = if per_feature { request.feature_updates.iter().map(result).collect() } else { Vec::new() };
    UpdateFeaturesResponse { error_message: None, results, ..Default::default() }
}

fn refused(error: &ApiError) -> UpdateFeaturesResponse {
    UpdateFeaturesResponse { error_code: error.code(), error_message: error.message(), ..Default::default() }
}
