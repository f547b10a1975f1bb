//! Clients' requests that the dataplane does not own: decoded, put to whoever answers, one file per family of APIs.

mod configs;
mod find_coordinator;

pub(crate) use configs::Screened;

use crate::held::{Caller, Then};
use crate::node::Node;
use base::Now;
use controller::{Reading, RequestContext};
use coordinators::Coordinators;
use link::Forward;
use quorum::protocol::describe_response;
use wire::{ApiKey, Decoder, RequestKind};

/// What clients may ask of the controller; its other APIs are for brokers, and not served to clients.
const CONTROLLER: [ApiKey; 8] = [
    ApiKey::CreateTopics,
    ApiKey::DeleteTopics,
    ApiKey::CreatePartitions,
    ApiKey::ElectLeaders,
    ApiKey::AlterPartitionReassignments,
    ApiKey::ListPartitionReassignments,
    ApiKey::UpdateFeatures,
    ApiKey::UnregisterBroker,
];

/// The request, if its bytes are one of a version that is served.
fn decode(forward: &Forward) -> Result<(ApiKey, RequestKind), String> {
    let api = ApiKey::try_from(forward.api_key).map_err(|error| error.to_string())?;
    if !api.stable_versions().contains(forward.api_version) {
        return Err(format!("{api} has no version {}", forward.api_version));
    }
    let mut decoder = Decoder::shared(&forward.body);
    let request = RequestKind::decode(api, forward.api_version, &mut decoder);
    request.map(|request| (api, request)).map_err(|error| format!("{api}: {error}"))
}

impl Node {
    pub(crate) fn dispatch(&mut self, forward: Forward, now: Now) {
        self.counts.forwarded += 1;
        let (api, request) = match decode(&forward) {
            Ok(decoded) => decoded,
            Err(why) => {
                self.counts.malformed += 1;
                tracing::warn!(why, client = forward.client_host, "a request cannot be read");
                return self.close(forward.id);
            }
        };
        let caller =
            Caller { id: forward.id, api, version: forward.api_version, correlation_id: forward.correlation_id };
        let context = RequestContext {
            version: forward.api_version,
            principal: forward.principal,
            listener: forward.listener_name,
        };
        if let Some(response) = controller::run_out(caller.version, &request) {
            return self.answer(caller, &response);
        }
        match request {
            RequestKind::DescribeConfigs(request) => {
                let response = self.reading(&context.listener).describe_configs(&request);
                self.answer(caller, &response.into());
            }
            RequestKind::ListConfigResources(request) => {
                let reading = self.reading(&context.listener);
                let response = reading.list_config_resources(caller.version, &request);
                self.answer(caller, &response.into());
            }
            RequestKind::IncrementalAlterConfigs(request) => {
                self.incremental_alter_configs(caller, &context, request, now);
            }
            RequestKind::AlterConfigs(request) => self.alter_configs(caller, &context, request, now),
            RequestKind::FindCoordinator(request) => self.find_coordinator(caller, &request, &context.listener, now),
            RequestKind::DescribeQuorum(request) => {
                let described = self.quorum.describe(now);
                let response = describe_response(&request, described.as_ref(), caller.version);
                self.answer(caller, &response.into());
            }
            request if Coordinators::serves(api) => {
                let client_id = forward.client_id.as_deref().unwrap_or_default();
                self.ask_coordinator(caller, client_id, &forward.client_host, request);
            }
            request if CONTROLLER.contains(&api) => self.ask(&context, &request, Then::Answer(caller), now),
            _ => {
                self.counts.malformed += 1;
                tracing::warn!(%api, "a request that is not served to clients");
                self.close(caller.id);
            }
        }
    }

    /// What answers that only read are made from.
    fn reading<'a>(&'a self, listener: &'a str) -> Reading<'a> {
        let image = self.loader.image();
        Reading { image, settings: &self.settings, node: self.options.node, listener }
    }
}
