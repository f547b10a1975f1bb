//! Settings of topics, brokers, groups and client metrics: the four operations, and the older replacement of all.

use crate::activation::config;
use crate::controller::{Controller, Decision, Outcome, RECORDS_MAX};
use crate::error::{ApiError, bare};
use crate::topics::check_topic_name;
use base::NodeId;
use image::{Record, Resource, resource_type};
use settings::{Change, Operation, Scope, Texts};
use wire::messages::alter_configs_response::AlterConfigsResourceResponse as LegacyResult;
use wire::messages::incremental_alter_configs_request::AlterableConfig;
use wire::messages::incremental_alter_configs_response::AlterConfigsResourceResponse;
use wire::messages::{
    AlterConfigsRequest, AlterConfigsResponse, ClearElrRecord, IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
};
use wire::{ErrorCode, KafkaString};

/// The ELR means "had everything committed under this min ISR": under another it means nothing. "" is all topics.
pub(crate) fn clear_elr(topic: &str) -> Record {
    Record::v0(ClearElrRecord { topic_name: topic.into(), unknown_tags: Default::default() })
}

/// One resource of a request, and what it came to.
struct Altered {
    resource: Resource,
    result: Result<Vec<Record>, ApiError>,
}

type Results = Vec<(Resource, ApiError)>;

/// A request may name a resource once; the answers for those it names twice or wrongly come first.
fn resources<'a, T>(named: impl Iterator<Item = (i8, &'a KafkaString, T)>) -> (Vec<(Resource, T)>, Results) {
    let (mut once, mut wrong) = (Vec::<(Resource, T)>::new(), Results::new());
    for (resource_type, name, changes) in named {
        let resource = Resource { resource_type, name: name.detached() };
        let twice = wrong.iter().any(|(known, error)| *known == resource && error.code == ErrorCode::InvalidRequest);
        if !resource_type::ALL.contains(&resource_type) {
            let message = format!("Unknown resource type {resource_type}.");
            wrong.push((resource, ApiError::new(ErrorCode::UnsupportedVersion, message)));
        } else if let Some(at) = once.iter().position(|(known, _)| *known == resource) {
            once.remove(at);
            wrong.push((resource, ApiError::new(ErrorCode::InvalidRequest, "Duplicate resource.")));
        } else if !twice {
            once.push((resource, changes));
        }
    }
    (once, wrong)
}

fn scope(resource: &Resource) -> Option<Scope> {
    Some(match resource.resource_type {
        resource_type::TOPIC => Scope::Topic,
        resource_type::BROKER => Scope::Broker,
        resource_type::GROUP => Scope::Group,
        resource_type::CLIENT_METRICS => Scope::ClientMetrics,
        _ => return None,
    })
}

impl Controller {
    pub fn incremental_alter_configs(
        &mut self,
        request: &IncrementalAlterConfigsRequest,
    ) -> Outcome<IncrementalAlterConfigsResponse> {
        let result = |resource: &Resource, error: &ApiError| AlterConfigsResourceResponse {
            error_code: error.code(),
            error_message: error.message(),
            resource_type: resource.resource_type,
            resource_name: resource.name.clone(),
            unknown_tags: Default::default(),
        };
        let response = |results: Results| IncrementalAlterConfigsResponse {
            responses: results.iter().map(|(resource, error)| result(resource, error)).collect(),
            ..Default::default()
        };
        let named = request.resources.iter().map(|r| (r.resource_type, &r.resource_name, &r.configs));
        self.decide(
            |controller| {
                let known = |config: &AlterableConfig| Operation::from_code(config.config_operation).is_some();
                if !request.resources.iter().all(|resource| resource.configs.iter().all(known)) {
                    // Kafka fails the whole request over it, without a word.
                    return Err(bare(ErrorCode::UnknownServerError));
                }
                let (once, wrong) = resources(named.clone());
                let altered = once.into_iter().map(|(resource, configs)| {
                    let operation = |c: &AlterableConfig| {
                        Operation::from_code(c.config_operation).expect("all of them were looked at above")
                    };
                    let changes: Vec<Change<'_>> = configs
                        .iter()
                        .map(|c| Change { name: &c.name, operation: operation(c), value: c.value.as_deref() })
                        .collect();
                    let result = controller.altered_records(&resource, &changes);
                    Altered { resource, result }
                });
                controller.finish_alteration(altered.collect(), wrong, request.validate_only, response)
            },
            |error| response(named.clone().map(|(kind, name, _)| refused(kind, name, error)).collect()),
        )
    }

    pub fn alter_configs(&mut self, request: &AlterConfigsRequest) -> Outcome<AlterConfigsResponse> {
        let result = |resource: &Resource, error: &ApiError| LegacyResult {
            error_code: error.code(),
            error_message: error.message(),
            resource_type: resource.resource_type,
            resource_name: resource.name.clone(),
            unknown_tags: Default::default(),
        };
        let response = |results: Results| AlterConfigsResponse {
            responses: results.iter().map(|(resource, error)| result(resource, error)).collect(),
            ..Default::default()
        };
        let named = request.resources.iter().map(|r| (r.resource_type, &r.resource_name, &r.configs));
        self.decide(
            |controller| {
                let (once, wrong) = resources(named.clone());
                let altered = once.into_iter().map(|(resource, configs)| {
                    let given: Vec<(&str, Option<&str>)> =
                        configs.iter().map(|c| (c.name.as_str(), c.value.as_deref())).collect();
                    let stored = controller.stored(&resource);
                    let changes = settings::replacement(&stored, &given);
                    let result = controller.altered_records(&resource, &changes);
                    Altered { resource, result }
                });
                controller.finish_alteration(altered.collect(), wrong, request.validate_only, response)
            },
            |error| response(named.clone().map(|(kind, name, _)| refused(kind, name, error)).collect()),
        )
    }

    fn finish_alteration<R>(
        &self,
        altered: Vec<Altered>,
        wrong: Results,
        validate_only: bool,
        response: impl FnOnce(Results) -> R,
    ) -> Result<Decision<R>, ApiError> {
        let (mut records, mut results) = (Vec::new(), wrong);
        for Altered { resource, result } in altered {
            let outcome = result.map(|more| records.extend(more)).err().unwrap_or(ApiError::NONE);
            results.push((resource, outcome));
        }
        let cleared = self.elr_records(&records);
        records.extend(cleared);
        if records.len() > RECORDS_MAX {
            let message = "Unable to perform excessively large batch operation.";
            return Err(ApiError::new(ErrorCode::PolicyViolation, message));
        }
        if validate_only {
            records.clear();
        }
        Ok(Decision::atomic(records, response(results)))
    }

    fn elr_records(&self, records: &[Record]) -> Vec<Record> {
        if !self.elr_enabled() {
            return Vec::new();
        }
        let clear = |record: &Record| match &record.kind {
            wire::MetadataRecordKind::Config(r) if r.name == "min.insync.replicas" => {
                let topic = r.resource_type == resource_type::TOPIC;
                Some(clear_elr(if topic { &r.resource_name } else { "" }))
            }
            _ => None,
        };
        records.iter().filter_map(clear).collect()
    }

    fn altered_records(&self, resource: &Resource, changes: &[Change<'_>]) -> Result<Vec<Record>, ApiError> {
        let new = self.altered(resource, changes)?;
        self.check_exists(resource)?;
        let record = |(name, value): &(String, Option<String>)| {
            config(resource.resource_type, &resource.name, name, value.as_deref())
        };
        Ok(new.iter().map(record).collect())
    }

    /// The new values of a resource, checked together with those that stay.
    pub(crate) fn altered(
        &self,
        resource: &Resource,
        changes: &[Change<'_>],
    ) -> Result<Vec<(String, Option<String>)>, ApiError> {
        let Some(scope) = scope(resource) else {
            let message = "Unknown resource type BROKER_LOGGER";
            return Err(ApiError::new(ErrorCode::InvalidRequest, message));
        };
        // Kafka's controller knows the types of topics' and brokers' settings only, so no other can be edited as a list.
        let edited = |change: &&Change<'_>| matches!(change.operation, Operation::Append | Operation::Subtract);
        if matches!(scope, Scope::Group | Scope::ClientMetrics)
            && let Some(Change { name, operation, .. }) = changes.iter().find(edited)
        {
            let verb = if *operation == Operation::Append { "APPEND" } else { "SUBTRACT" };
            let message = format!("Can't {verb} to key {name} because its type is not LIST.");
            return Err(ApiError::new(ErrorCode::InvalidConfig, message));
        }
        let stored = self.stored(resource);
        let new = settings::apply_changes(scope, &stored, changes)?;
        if scope == Scope::Broker {
            for (name, value) in &new {
                let cluster = resource.name.is_empty();
                let refusal = settings::controller_refusal(cluster, name, value.as_deref(), self.elr_enabled());
                refusal.map_or(Ok(()), |refusal| Err(ApiError::from(refusal)))?;
            }
        }
        let mut all = stored.clone();
        for (name, value) in &new {
            match value {
                Some(value) => all.insert(name.clone(), value.clone()),
                None => all.remove(name),
            };
        }
        self.check_resource(scope, resource, &all, &stored)?;
        Ok(new)
    }

    fn check_resource(&self, scope: Scope, resource: &Resource, all: &Texts, stored: &Texts) -> Result<(), ApiError> {
        let invalid = |message: &str| Err(ApiError::new(ErrorCode::InvalidRequest, message));
        let name = resource.name.as_str();
        match scope {
            Scope::Topic if name.is_empty() => return invalid("Default topic resources are not allowed."),
            Scope::Topic => {
                check_topic_name(name)?;
                settings::validate_topic_overrides(all, stored, &self.options.settings, self.options.largest_batch)?;
            }
            Scope::Broker if name.is_empty() => {}
            Scope::Broker => match name.parse::<i32>() {
                Err(_) => return invalid("Unable to parse broker name as a base 10 number."),
                Ok(id) if id < 0 => return invalid("Invalid negative broker ID."),
                Ok(_) => {}
            },
            Scope::Group if name.is_empty() => return invalid("Default group resources are not allowed."),
            Scope::Group => settings::validate_group_overrides(all, &self.options.settings)?,
            Scope::ClientMetrics if name.is_empty() => {
                return invalid("Subscription name can't be empty");
            }
            Scope::ClientMetrics => settings::validate_client_metrics(all)?,
        }
        Ok(())
    }

    /// A topic or a node must be there before it is configured; groups and subscriptions need not.
    fn check_exists(&self, resource: &Resource) -> Result<(), ApiError> {
        match resource.resource_type {
            resource_type::TOPIC if self.topic_named(&resource.name).is_none() => Err(ApiError::new(
                ErrorCode::UnknownTopicOrPartition,
                format!("The topic '{}' does not exist.", resource.name),
            )),
            resource_type::BROKER if !resource.name.is_empty() => {
                let id = resource.name.parse::<i32>().unwrap_or(-1);
                let cluster = &self.state.image.cluster;
                let known = cluster.broker(NodeId(id)).is_some()
                    || cluster.controllers.contains(&NodeId(id))
                    || self.options.quorum_nodes.contains(&NodeId(id));
                if known {
                    return Ok(());
                }
                Err(ApiError::new(ErrorCode::BrokerIdNotRegistered, format!("No node with id {id} found.")))
            }
            _ => Ok(()),
        }
    }
}

fn refused(kind: i8, name: &KafkaString, error: &ApiError) -> (Resource, ApiError) {
    (Resource { resource_type: kind, name: name.clone() }, error.clone())
}
