//! One entry for all requests that the controller answers, so that `node` only dispatches.

use crate::controller::{Append, Controller, Outcome, RequestContext};
use crate::placement::Choices;
use base::Now;
use wire::{ApiKey, RequestKind, ResponseKind, VersionRange};

/// What the controller serves. All versions of each that Kafka 4.4 has.
pub const SERVED: [ApiKey; 17] = [
    ApiKey::CreateTopics,
    ApiKey::DeleteTopics,
    ApiKey::AlterConfigs,
    ApiKey::CreatePartitions,
    ApiKey::ElectLeaders,
    ApiKey::IncrementalAlterConfigs,
    ApiKey::AlterPartitionReassignments,
    ApiKey::ListPartitionReassignments,
    ApiKey::AlterPartition,
    ApiKey::UpdateFeatures,
    ApiKey::BrokerRegistration,
    ApiKey::BrokerHeartbeat,
    ApiKey::UnregisterBroker,
    ApiKey::AllocateProducerIds,
    ApiKey::ControllerRegistration,
    ApiKey::AssignReplicasToDirs,
    ApiKey::UnregisterController,
];

/// The served APIs with their versions.
pub fn api_support() -> impl Iterator<Item = (ApiKey, VersionRange)> {
    SERVED.into_iter().map(|api| (api, api.stable_versions()))
}

/// What a request may depend on beside the state.
pub struct Circumstances<'a> {
    pub now: Now,
    pub choices: &'a mut dyn Choices,
    /// The finalized kraft.version, which is the quorum's to say.
    pub kraft_version: i16,
}

impl Controller {
    /// `None` for an API that is not the controller's.
    pub fn handle(
        &mut self,
        circumstances: Circumstances<'_>,
        context: &RequestContext,
        request: &RequestKind,
    ) -> Option<Outcome<ResponseKind>> {
        use RequestKind as Kind;
        let Circumstances { now, choices, kraft_version } = circumstances;
        Some(match request {
            Kind::CreateTopics(r) => self.create_topics(choices, r).into_kind(),
            Kind::DeleteTopics(r) => self.delete_topics(context, r).into_kind(),
            Kind::AlterConfigs(r) => self.alter_configs(r).into_kind(),
            Kind::CreatePartitions(r) => self.create_partitions(choices, r).into_kind(),
            Kind::ElectLeaders(r) => self.elect_leaders(context, r).into_kind(),
            Kind::IncrementalAlterConfigs(r) => self.incremental_alter_configs(r).into_kind(),
            Kind::AlterPartitionReassignments(r) => self.alter_partition_reassignments(r).into_kind(),
            Kind::ListPartitionReassignments(r) => self.list_partition_reassignments(r).into_kind(),
            Kind::AlterPartition(r) => self.alter_partition(context, r).into_kind(),
            Kind::UpdateFeatures(r) => self.update_features(context, kraft_version, r).into_kind(),
            Kind::BrokerRegistration(r) => self.register_broker(now, context, kraft_version, r).into_kind(),
            Kind::BrokerHeartbeat(r) => self.heartbeat(now, r).into_kind(),
            Kind::UnregisterBroker(r) => self.unregister_broker(r).into_kind(),
            Kind::AllocateProducerIds(r) => self.allocate_producer_ids(r).into_kind(),
            Kind::ControllerRegistration(r) => self.register_controller(r).into_kind(),
            Kind::AssignReplicasToDirs(r) => self.assign_replicas_to_directories(r).into_kind(),
            Kind::UnregisterController(r) => self.unregister_controller(r).into_kind(),
            _ => return None,
        })
    }
}

impl<R: Into<ResponseKind>> Outcome<R> {
    pub fn into_kind(self) -> Outcome<ResponseKind> {
        match self {
            Outcome::Done { append, answer_at, response } => {
                Outcome::Done { append, answer_at, response: response.into() }
            }
            Outcome::Again { append } => Outcome::Again { append },
        }
    }
}

impl<R> Outcome<R> {
    pub fn append(&self) -> &Append {
        match self {
            Outcome::Done { append, .. } | Outcome::Again { append } => append,
        }
    }
}
