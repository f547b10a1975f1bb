//! AlterPartitionReassignments and ListPartitionReassignments (KIP-455).

use crate::change::Election;
use crate::controller::{Controller, Decision, Outcome, RECORDS_MAX};
use crate::error::{ApiError, bare};
use crate::reassignment;
use base::{NodeId, PartitionId, PartitionIndex};
use image::topics::ids;
use image::{Partition, Record, Topic};
use wire::ErrorCode;
use wire::messages::alter_partition_reassignments_request::{ReassignablePartition, ReassignableTopic};
use wire::messages::alter_partition_reassignments_response::{
    ReassignablePartitionResponse, ReassignableTopicResponse,
};
use wire::messages::list_partition_reassignments_response::{OngoingPartitionReassignment, OngoingTopicReassignment};
use wire::messages::{
    AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse, ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
};

impl Controller {
    pub fn alter_partition_reassignments(
        &mut self,
        request: &AlterPartitionReassignmentsRequest,
    ) -> Outcome<AlterPartitionReassignmentsResponse> {
        let may_change_factor = request.allow_replication_factor_change;
        self.decide(
            |controller| {
                let mut records = Vec::new();
                let topic = |topic: &ReassignableTopic| {
                    let result = |target: &ReassignablePartition| {
                        let record = controller.reassign(&topic.name, target, may_change_factor);
                        let outcome = record.map(|record| records.extend(record)).err().unwrap_or(ApiError::NONE);
                        result(target, &outcome)
                    };
                    ReassignableTopicResponse {
                        name: topic.name.clone(),
                        partitions: topic.partitions.iter().map(result).collect(),
                        unknown_tags: Default::default(),
                    }
                };
                let responses = request.topics.iter().map(topic).collect();
                if records.len() > RECORDS_MAX {
                    let message = "Unable to perform excessively large batch operation.";
                    return Err(ApiError::new(ErrorCode::PolicyViolation, message));
                }
                let response = AlterPartitionReassignmentsResponse {
                    allow_replication_factor_change: may_change_factor,
                    error_message: None,
                    responses,
                    ..Default::default()
                };
                Ok(Decision::atomic(records, response))
            },
            |error| refuse_reassignments(request, error),
        )
    }

    fn reassign(
        &self,
        name: &str,
        target: &ReassignablePartition,
        may_change_factor: bool,
    ) -> Result<Option<Record>, ApiError> {
        let unknown = |message: String| ApiError::new(ErrorCode::UnknownTopicOrPartition, message);
        let topic = self.state.image.topics.named(name);
        let topic = topic.ok_or_else(|| unknown(format!("Unable to find a topic named {name}.")))?;
        let index = PartitionIndex(target.partition_index);
        let partition = topic.partition(index);
        let partition = partition.ok_or_else(|| unknown(format!("Unable to find partition {name}:{index}.")))?;
        let id = PartitionId { topic: topic.id, index };
        match &target.replicas {
            None => self.cancel_reassignment(name, id, partition),
            Some(replicas) => {
                let replicas: Vec<NodeId> = replicas.iter().copied().map(NodeId).collect();
                self.begin_reassignment(id, partition, &replicas, may_change_factor)
            }
        }
    }

    fn cancel_reassignment(
        &self,
        name: &str,
        id: PartitionId,
        partition: &Partition,
    ) -> Result<Option<Record>, ApiError> {
        let invalid = |message: String| ApiError::new(ErrorCode::InvalidReplicaAssignment, message);
        if !partition.is_reassigning() {
            return Err(bare(ErrorCode::NoReassignmentInProgress));
        }
        let revert = reassignment::revert(partition)
            .ok_or_else(|| invalid("Invalid replica assignment: addingReplicas contains all replicas.".to_owned()))?;
        let unclean_allowed = self.state.allows_unclean_election(id.topic);
        if revert.unclean && !unclean_allowed {
            return Err(invalid(format!(
                "Unable to revert partition assignment for {name}:{} because it would require an unclean leader election.",
                id.index
            )));
        }
        let active = |node| self.is_active_broker(node);
        Ok(self.with_change(id, partition, &active, |mut change| {
            if unclean_allowed {
                change.election = Election::Unclean;
            }
            (change.isr, change.replicas) = (revert.isr, revert.replicas);
            (change.removing, change.adding) = (Vec::new(), Vec::new());
            change.build()
        }))
    }

    fn begin_reassignment(
        &self,
        id: PartitionId,
        partition: &Partition,
        target: &[NodeId],
        may_change_factor: bool,
    ) -> Result<Option<Record>, ApiError> {
        self.check_assignment(target, None)?;
        if !may_change_factor {
            // What counts is where a reassignment under way is going.
            let removed = partition.replicas.iter().filter(|node| partition.removing.contains(node)).count();
            let (from, to) = (partition.replicas.len() - removed, target.len());
            if from != to {
                let message = format!("The replication factor is changed from {from} to {to}");
                return Err(ApiError::new(ErrorCode::InvalidReplicationFactor, message));
            }
        }
        let next = reassignment::towards(&partition.replicas, target);
        let active = |node| self.is_active_broker(node);
        Ok(self.with_change(id, partition, &active, |mut change| {
            change.replicas = next.replicas;
            // An empty list leaves what is there, as Kafka does.
            if !next.removing.is_empty() {
                change.removing = next.removing;
            }
            if !next.adding.is_empty() {
                change.adding = next.adding;
            }
            change.build()
        }))
    }

    pub fn list_partition_reassignments(
        &mut self,
        request: &ListPartitionReassignmentsRequest,
    ) -> Outcome<ListPartitionReassignmentsResponse> {
        self.decide(
            |controller| {
                let topics = match &request.topics {
                    None => controller.all_reassignments(),
                    Some(named) => {
                        let topic = |t: &wire::messages::list_partition_reassignments_request::ListPartitionReassignmentsTopics| {
                            let topic = controller.state.image.topics.named(&t.name)?;
                            ongoing(topic, t.partition_indexes.iter().copied().map(PartitionIndex))
                        };
                        named.iter().filter_map(topic).collect()
                    }
                };
                let response =
                    ListPartitionReassignmentsResponse { error_message: None, topics, ..Default::default() };
                Ok(Decision::answer(response))
            },
            |error| ListPartitionReassignmentsResponse {
                error_code: error.code(),
                error_message: error.message(),
                ..Default::default()
            },
        )
    }

    fn all_reassignments(&self) -> Vec<OngoingTopicReassignment> {
        let mut topics: Vec<OngoingTopicReassignment> = Vec::new();
        let mut last = None;
        for id in self.state.index.reassigning.keys().map(|id| id.topic) {
            if last.replace(id) == Some(id) {
                continue;
            }
            let Some(topic) = self.state.image.topics.get(id) else { continue };
            topics.extend(ongoing(topic, topic.partitions.keys().copied()));
        }
        topics
    }
}

fn result(target: &ReassignablePartition, error: &ApiError) -> ReassignablePartitionResponse {
    ReassignablePartitionResponse {
        partition_index: target.partition_index,
        error_code: error.code(),
        error_message: error.message(),
        unknown_tags: Default::default(),
    }
}

fn ongoing(topic: &Topic, indexes: impl Iterator<Item = PartitionIndex>) -> Option<OngoingTopicReassignment> {
    let moving = |index: PartitionIndex| {
        let partition = topic.partition(index).filter(|partition| partition.is_reassigning())?;
        Some(OngoingPartitionReassignment {
            partition_index: index.0,
            replicas: ids(&partition.replicas),
            adding_replicas: ids(&partition.adding),
            removing_replicas: ids(&partition.removing),
            unknown_tags: Default::default(),
        })
    };
    let partitions: Vec<OngoingPartitionReassignment> = indexes.filter_map(moving).collect();
    let name = topic.name.clone();
    (!partitions.is_empty()).then(|| OngoingTopicReassignment { name, partitions, unknown_tags: Default::default() })
}

/// Every partition of the request is refused for the same reason.
pub(crate) fn refuse_reassignments(
    request: &AlterPartitionReassignmentsRequest,
    error: &ApiError,
) -> AlterPartitionReassignmentsResponse {
    let topic = |topic: &ReassignableTopic| ReassignableTopicResponse {
        name: topic.name.clone(),
        partitions: topic.partitions.iter().map(|target| result(target, error)).collect(),
        unknown_tags: Default::default(),
    };
    AlterPartitionReassignmentsResponse {
        error_code: error.code(),
        error_message: error.message(),
        responses: request.topics.iter().map(topic).collect(),
        ..Default::default()
    }
}
