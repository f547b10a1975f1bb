//! Answers that only read a published image, so that any node gives them, leader or not.

use crate::error::ApiError;
use crate::topics::check_topic_name;
use base::NodeId;
use image::{MetadataImage, Resource, resource_type};
use settings::{BrokerSettings, Entry, Texts};
use wire::messages::describe_cluster_response::DescribeClusterBroker;
use wire::messages::describe_configs_request::DescribeConfigsResource;
use wire::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult, DescribeConfigsSynonym,
};
use wire::messages::list_config_resources_response::ConfigResource;
use wire::messages::{
    DescribeClusterRequest, DescribeClusterResponse, DescribeConfigsRequest, DescribeConfigsResponse,
    ListConfigResourcesRequest, ListConfigResourcesResponse,
};
use wire::{ErrorCode, KafkaString};

/// What a node answers from: the image it has published, and its own settings under the image's.
#[derive(Clone, Copy, Debug)]
pub struct Reading<'a> {
    pub image: &'a MetadataImage,
    pub settings: &'a BrokerSettings,
    pub node: NodeId,
    /// The listener that the request came in on.
    pub listener: &'a str,
}

/// This node's settings under what an image says of the cluster's defaults and of this broker, and what is not obeyed.
pub fn settings_under(
    file: &BrokerSettings,
    image: &MetadataImage,
    node: NodeId,
) -> (BrokerSettings, Vec<settings::Ignored>) {
    let none = Texts::new();
    let cluster = image.overrides(&Resource::broker_default()).unwrap_or(&none);
    let own = Resource::broker(node);
    file.with_dynamic(cluster, image.overrides(&own).unwrap_or(&none))
}

impl Reading<'_> {
    pub fn describe_configs(&self, request: &DescribeConfigsRequest) -> DescribeConfigsResponse {
        let result = |resource: &DescribeConfigsResource| {
            let described = self.described(resource);
            let (configs, error) = match described {
                Ok(entries) => (entries, None),
                Err(error) => (Vec::new(), Some(error)),
            };
            let asked = resource.configuration_keys.as_deref().unwrap_or_default();
            let wanted = |entry: &Entry| asked.is_empty() || asked.iter().any(|name| *name == *entry.name);
            let configs = configs.into_iter().filter(wanted);
            DescribeConfigsResult {
                error_code: error.as_ref().map_or(0, ApiError::code),
                // Kafka leaves its message empty, not null, where there is nothing to say.
                error_message: error.map_or(Some(KafkaString::default()), |error| error.message()),
                resource_type: resource.resource_type,
                resource_name: resource.resource_name.clone(),
                configs: configs.map(|entry| described_entry(entry, request)).collect(),
                unknown_tags: Default::default(),
            }
        };
        DescribeConfigsResponse { results: request.resources.iter().map(result).collect(), ..Default::default() }
    }

    fn described(&self, resource: &DescribeConfigsResource) -> Result<Vec<Entry>, ApiError> {
        let invalid = |message: String| Err(ApiError::new(ErrorCode::InvalidRequest, message));
        let name = resource.resource_name.as_str();
        let stored = || {
            let key = Resource { resource_type: resource.resource_type, name: resource.resource_name.clone() };
            self.image.overrides(&key).cloned().unwrap_or_default()
        };
        let unreadable = |error: settings::Invalid| ApiError::new(ErrorCode::InvalidConfig, error.0);
        match resource.resource_type {
            resource_type::TOPIC => {
                check_topic_name(name)?;
                if self.image.topics.id(name).is_none() {
                    return Err(ApiError::new(ErrorCode::UnknownTopicOrPartition, ""));
                }
                settings::describe_topic(&stored(), self.settings).map_err(unreadable)
            }
            resource_type::BROKER if name.is_empty() => Ok(settings::describe_cluster_default(self.settings)),
            resource_type::BROKER => match name.parse::<i32>() {
                Err(_) => invalid(format!("Broker id must be an integer, but it is: {name}")),
                Ok(id) if id != self.node.0 => invalid(format!(
                    "Unexpected broker id, expected {} or empty string, but received {name}",
                    self.node
                )),
                Ok(_) => Ok(settings::describe_broker(self.settings)),
            },
            resource_type::CLIENT_METRICS if name.is_empty() => {
                invalid("Client metrics subscription name must not be empty".to_owned())
            }
            resource_type::CLIENT_METRICS => settings::describe_client_metrics(&stored()).map_err(unreadable),
            resource_type::GROUP if name.is_empty() => invalid("Group name must not be empty".to_owned()),
            resource_type::GROUP => settings::describe_group(&stored(), self.settings).map_err(unreadable),
            resource_type::BROKER_LOGGER => invalid("Unsupported resource type: BROKER_LOGGER".to_owned()),
            _ => invalid("Unsupported resource type: UNKNOWN".to_owned()),
        }
    }

    pub fn list_config_resources(
        &self,
        version: i16,
        request: &ListConfigResourcesRequest,
    ) -> ListConfigResourcesResponse {
        let all: &[i8] = if version == 0 { &[resource_type::CLIENT_METRICS] } else { &resource_type::ALL };
        let asked = if request.resource_types.is_empty() { all } else { &request.resource_types };
        if asked.iter().any(|kind| !all.contains(kind)) {
            return ListConfigResourcesResponse {
                error_code: ErrorCode::UnsupportedVersion.code(),
                ..Default::default()
            };
        }
        let configured = |kind: i8| {
            let keys = self.image.configs.keys();
            keys.filter(move |resource| resource.resource_type == kind).map(|resource| resource.name.clone())
        };
        let mut config_resources = Vec::new();
        for kind in [
            resource_type::GROUP,
            resource_type::CLIENT_METRICS,
            resource_type::BROKER_LOGGER,
            resource_type::BROKER,
            resource_type::TOPIC,
        ] {
            let names: Vec<KafkaString> = match kind {
                _ if !asked.contains(&kind) => continue,
                resource_type::GROUP | resource_type::CLIENT_METRICS => configured(kind).collect(),
                resource_type::TOPIC => self.image.topics.names().map(|(name, _)| name.clone()).collect(),
                _ => self.brokers_here().map(|broker| broker.id.to_string().into()).collect(),
            };
            config_resources.extend(names.into_iter().map(|resource_name| ConfigResource {
                resource_name,
                resource_type: kind,
                unknown_tags: Default::default(),
            }));
        }
        ListConfigResourcesResponse { config_resources, ..Default::default() }
    }

    /// Brokers that the asking client could reach.
    fn brokers_here(&self) -> impl Iterator<Item = &image::Broker> {
        let has_listener = |broker: &&image::Broker| broker.endpoints.iter().any(|e| e.name == self.listener);
        self.image.cluster.brokers.values().map(|broker| &**broker).filter(has_listener)
    }

    /// What a controller's own listener says of the cluster (KIP-919): its controllers. In version 0 a request cannot
    /// say which end it means, so that a wrong one is an invalid request.
    pub fn describe_controllers(
        &self,
        cluster_id: &str,
        leader: Option<NodeId>,
        version: i16,
        request: &DescribeClusterRequest,
    ) -> DescribeClusterResponse {
        const BROKERS: i8 = 1;
        const CONTROLLERS: i8 = 2;
        let refuse = |code: ErrorCode, message: String| DescribeClusterResponse {
            error_code: if version == 0 { ErrorCode::InvalidRequest } else { code }.code(),
            error_message: Some(message.into()),
            ..Default::default()
        };
        match request.endpoint_type {
            CONTROLLERS => {}
            BROKERS => {
                let message =
                    "The request was sent to an endpoint of type CONTROLLER, but we wanted an endpoint of type BROKER";
                return refuse(ErrorCode::MismatchedEndpointType, message.to_owned());
            }
            other => {
                return refuse(ErrorCode::UnsupportedEndpointType, format!("Unsupported endpoint type {other}"));
            }
        }
        let reachable = |controller: &image::Controller| {
            let endpoint = controller.endpoints.iter().find(|e| e.name == self.listener)?;
            Some(DescribeClusterBroker {
                broker_id: controller.id.0,
                host: endpoint.host.clone(),
                port: i32::from(endpoint.port),
                rack: None,
                ..Default::default()
            })
        };
        let brokers: Vec<DescribeClusterBroker> =
            self.image.cluster.controllers.values().filter_map(|controller| reachable(controller)).collect();
        let known = leader.filter(|leader| brokers.iter().any(|broker| broker.broker_id == leader.0));
        DescribeClusterResponse {
            endpoint_type: CONTROLLERS,
            cluster_id: cluster_id.into(),
            controller_id: known.map_or(-1, |leader| leader.0),
            brokers,
            ..Default::default()
        }
    }
}

fn described_entry(entry: Entry, request: &DescribeConfigsRequest) -> DescribeConfigsResourceResult {
    let documentation = request.include_documentation.then(|| entry.documentation()).flatten();
    let config_type = entry.kind_code();
    let synonym = |synonym: settings::SynonymEntry| DescribeConfigsSynonym {
        name: synonym.name.as_ref().into(),
        value: synonym.value.map(Into::into),
        source: synonym.source.code(),
        unknown_tags: Default::default(),
    };
    DescribeConfigsResourceResult {
        name: entry.name.as_ref().into(),
        value: entry.value.map(Into::into),
        read_only: entry.read_only,
        config_source: entry.source.code(),
        is_sensitive: entry.sensitive,
        synonyms: if request.include_synonyms { entry.synonyms.into_iter().map(synonym).collect() } else { Vec::new() },
        config_type,
        documentation: documentation.map(Into::into),
        unknown_tags: Default::default(),
    }
}
