//! IncrementalAlterConfigs and AlterConfigs: what the broker that is asked checks first, as Kafka's does (names, and what
//! its own settings could become), then the controller; each resource's answer in the request's order.

use crate::held::{Caller, Then};
use crate::node::Node;
use base::Now;
use controller::RequestContext;
use image::{Overrides, Resource, resource_type};
use settings::{Change, Operation};
use wire::messages::alter_configs_response::AlterConfigsResourceResponse as LegacyResult;
use wire::messages::incremental_alter_configs_response::AlterConfigsResourceResponse;
use wire::messages::{
    AlterConfigsRequest, AlterConfigsResponse, IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse,
    alter_configs_request, incremental_alter_configs_request,
};
use wire::{ErrorCode, KafkaString, RequestKind, ResponseKind};

/// A resource as either request names it.
type Named = (i8, KafkaString);

/// What this broker refuses of a request, by resource in the request's order; the rest goes to the controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Screened {
    order: Vec<(Named, Option<String>)>,
}

impl Screened {
    fn refuses_all(&self) -> bool {
        self.order.iter().all(|(_, refusal)| refusal.is_some())
    }

    fn refusal(&self, at: usize) -> Option<&str> {
        self.order[at].1.as_deref()
    }

    fn of<'a>(named: impl Iterator<Item = (i8, &'a KafkaString)>) -> Screened {
        let order: Vec<Named> = named.map(|(kind, name)| (kind, name.clone())).collect();
        let twice = |one: &Named| order.iter().filter(|other| *other == one).count() > 1;
        let refusal = |one: &Named| twice(one).then(|| "Each resource must appear at most once.".to_owned());
        Screened { order: order.iter().map(|one| (one.clone(), refusal(one))).collect() }
    }

    /// Puts the controller's answers among our own. The controller's come in its order, each resource once.
    fn merged<R>(
        &self,
        mut answered: Vec<R>,
        is_of: impl Fn(&R, &Named) -> bool,
        refused: impl Fn(&Named, &str) -> R,
    ) -> Vec<R> {
        let mut merged = Vec::with_capacity(self.order.len());
        for (named, refusal) in &self.order {
            match (refusal, answered.iter().position(|answer| is_of(answer, named))) {
                (Some(why), _) => merged.push(refused(named, why)),
                (None, Some(at)) => merged.push(answered.swap_remove(at)),
                (None, None) => {}
            }
        }
        merged
    }

    /// The whole answer, the controller's part given.
    pub fn complete(&self, response: ResponseKind) -> ResponseKind {
        let code = ErrorCode::InvalidRequest.code();
        match response {
            ResponseKind::IncrementalAlterConfigs(response) => {
                let refused = |(kind, name): &Named, why: &str| AlterConfigsResourceResponse {
                    error_code: code,
                    error_message: Some(why.into()),
                    resource_type: *kind,
                    resource_name: name.clone(),
                    ..Default::default()
                };
                let is_of = |answer: &AlterConfigsResourceResponse, (kind, name): &Named| {
                    answer.resource_type == *kind && answer.resource_name == *name
                };
                let responses = self.merged(response.responses, is_of, refused);
                IncrementalAlterConfigsResponse { responses, ..Default::default() }.into()
            }
            ResponseKind::AlterConfigs(response) => {
                let refused = |(kind, name): &Named, why: &str| LegacyResult {
                    error_code: code,
                    error_message: Some(why.into()),
                    resource_type: *kind,
                    resource_name: name.clone(),
                    ..Default::default()
                };
                let is_of = |answer: &LegacyResult, (kind, name): &Named| {
                    answer.resource_type == *kind && answer.resource_name == *name
                };
                let responses = self.merged(response.responses, is_of, refused);
                AlterConfigsResponse { responses, ..Default::default() }.into()
            }
            other => other,
        }
    }
}

impl Node {
    pub(super) fn incremental_alter_configs(
        &mut self,
        caller: Caller,
        context: &RequestContext,
        mut request: IncrementalAlterConfigsRequest,
        now: Now,
    ) {
        let mut screened = Screened::of(request.resources.iter().map(|r| (r.resource_type, &r.resource_name)));
        for (at, resource) in request.resources.iter().enumerate() {
            let known = |config: &incremental_alter_configs_request::AlterableConfig| {
                Operation::from_code(config.config_operation).is_some()
            };
            // Over an operation that does not exist the controller fails the request.
            if screened.refusal(at).is_none() && resource.configs.iter().all(known) {
                let changes = incremental_changes(&resource.configs);
                screened.order[at].1 = self.screen(resource.resource_type, &resource.resource_name, changes);
            }
        }
        let mut at = 0..;
        request.resources.retain(|_| screened.refusal(at.next().expect("it has no end")).is_none());
        self.alter(caller, context, screened, request.into(), IncrementalAlterConfigsResponse::default().into(), now);
    }

    pub(super) fn alter_configs(
        &mut self,
        caller: Caller,
        context: &RequestContext,
        mut request: AlterConfigsRequest,
        now: Now,
    ) {
        let mut screened = Screened::of(request.resources.iter().map(|r| (r.resource_type, &r.resource_name)));
        for (at, resource) in request.resources.iter().enumerate() {
            if screened.refusal(at).is_some() {
                continue;
            }
            let (kind, name) = (resource.resource_type, &resource.resource_name);
            let stored = self.stored(kind, name);
            let changes = replacing_changes(&stored, &resource.configs);
            screened.order[at].1 = self.screen(kind, name, changes);
        }
        let mut at = 0..;
        request.resources.retain(|_| screened.refusal(at.next().expect("it has no end")).is_none());
        self.alter(caller, context, screened, request.into(), AlterConfigsResponse::default().into(), now);
    }

    fn stored(&self, kind: i8, name: &KafkaString) -> Overrides {
        let resource = Resource { resource_type: kind, name: name.clone() };
        self.loader.image().overrides(&resource).cloned().unwrap_or_default()
    }

    fn alter(
        &mut self,
        caller: Caller,
        context: &RequestContext,
        screened: Screened,
        rest: RequestKind,
        nothing: ResponseKind,
        now: Now,
    ) {
        if screened.refuses_all() {
            return self.answer(caller, &screened.complete(nothing));
        }
        self.ask(context, &rest, Then::Altered(caller, Box::new(screened)), now);
    }

    /// Why this broker refuses a resource, if it does.
    fn screen(&self, kind: i8, name: &str, changes: Result<Vec<Change<'_>>, String>) -> Option<String> {
        let changes = match changes {
            Ok(changes) => changes,
            Err(why) => return Some(why),
        };
        match kind {
            resource_type::BROKER | resource_type::BROKER_LOGGER if !name.is_empty() => {
                if let Some(why) = self.own_name_refusal(name) {
                    return Some(why);
                }
            }
            resource_type::TOPIC | resource_type::CLIENT_METRICS | resource_type::GROUP | resource_type::BROKER => {}
            resource_type::BROKER_LOGGER => {}
            _ => return Some(format!("Unknown resource type {kind}")),
        }
        match kind {
            resource_type::BROKER => {
                let own = !name.is_empty();
                settings::check_broker_change(&self.settings, own, &changes).err().map(|refusal| refusal.message)
            }
            // There is no logger of that name, whatever it is.
            resource_type::BROKER_LOGGER => {
                changes.first().map(|change| format!("Logger {} does not exist!", change.name))
            }
            _ => None,
        }
    }

    fn own_name_refusal(&self, name: &str) -> Option<String> {
        match name.parse::<i32>() {
            Err(_) => Some(format!("Node id must be an integer, but it is: {name}")),
            Ok(id) if id != self.options.node.0 => {
                Some(format!("Unexpected broker id, expected {}, but received {name}", self.options.node))
            }
            Ok(_) => None,
        }
    }
}

fn incremental_changes(
    configs: &[incremental_alter_configs_request::AlterableConfig],
) -> Result<Vec<Change<'_>>, String> {
    let operation =
        |code| Operation::from_code(code).expect("only resources whose operations all exist are looked at here");
    let changes = configs.iter().map(|config| Change {
        name: &config.name,
        operation: operation(config.config_operation),
        value: config.value.as_deref(),
    });
    well_formed(changes.collect())
}

fn replacing_changes<'a>(
    stored: &'a Overrides,
    configs: &'a [alter_configs_request::AlterableConfig],
) -> Result<Vec<Change<'a>>, String> {
    let given: Vec<(&str, Option<&str>)> =
        configs.iter().map(|config| (config.name.as_str(), config.value.as_deref())).collect();
    well_formed(settings::replacement(stored, &given))
}

/// What Kafka's broker checks of every resource.
fn well_formed(changes: Vec<Change<'_>>) -> Result<Vec<Change<'_>>, String> {
    let twice = |change: &Change<'_>| changes.iter().filter(|other| other.name == change.name).count() > 1;
    if changes.iter().any(twice) {
        return Err("Error due to duplicate config keys".to_owned());
    }
    let valueless = changes.iter().filter(|change| change.operation != Operation::Delete && change.value.is_none());
    let valueless: Vec<&str> = valueless.map(|change| change.name).collect();
    if valueless.is_empty() {
        Ok(changes)
    } else {
        Err(format!("Null value not supported for : {}", valueless.join(",")))
    }
}
