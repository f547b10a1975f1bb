//! More partitions for a topic, and what leaders and brokers report of partitions: ISRs (KIP-497, KIP-903) and
//! directories (KIP-858).

use crate::change::Election;
use crate::controller::{Controller, Decision, Outcome, RECORDS_MAX, RequestContext};
use crate::elections::Cause;
use crate::error::{ApiError, bare};
use crate::placement::{self, Choices};
use base::{BrokerEpoch, LeaderEpoch, NodeId, PartitionEpoch, PartitionId, PartitionIndex, TopicId};
use image::topics::ids;
use image::{Partition, Record, Topic};
use std::collections::BTreeSet;
use wire::messages::alter_partition_request::{self, PartitionData as Proposal};
use wire::messages::alter_partition_response::{self, PartitionData as IsrResult};
use wire::messages::create_partitions_request::CreatePartitionsTopic;
use wire::messages::create_partitions_response::CreatePartitionsTopicResult;
use wire::messages::{
    AlterPartitionRequest, AlterPartitionResponse, AssignReplicasToDirsRequest, AssignReplicasToDirsResponse,
    CreatePartitionsRequest, CreatePartitionsResponse, assign_replicas_to_dirs_response,
};
use wire::{ErrorCode, MetadataRecordKind};

impl Controller {
    pub fn create_partitions(
        &mut self,
        choices: &mut dyn Choices,
        request: &CreatePartitionsRequest,
    ) -> Outcome<CreatePartitionsResponse> {
        self.decide(
            |controller| {
                let mut seen = BTreeSet::new();
                let twice: BTreeSet<&str> =
                    request.topics.iter().map(|t| t.name.as_str()).filter(|name| !seen.insert(*name)).collect();
                let duplicate = ApiError::new(ErrorCode::InvalidRequest, "Duplicate topic name.");
                let mut results: Vec<CreatePartitionsTopicResult> = Vec::new();
                for name in &twice {
                    let topic = request.topics.iter().find(|topic| topic.name == *name);
                    results.extend(topic.map(|topic| result(topic, &duplicate)));
                }
                let topics: Vec<&CreatePartitionsTopic> =
                    request.topics.iter().filter(|topic| !twice.contains(topic.name.as_str())).collect();
                controller.limit_added_partitions(&topics)?;
                let mut records = Vec::new();
                for topic in topics {
                    let added = controller.add_partitions(choices, topic);
                    let outcome = added.map(|more| records.extend(more)).err().unwrap_or(ApiError::NONE);
                    results.push(result(topic, &outcome));
                }
                if request.validate_only {
                    records.clear();
                }
                Ok(Decision::atomic(records, CreatePartitionsResponse { results, ..Default::default() }))
            },
            |error| refuse_growth(request, error),
        )
    }

    fn limit_added_partitions(&self, topics: &[&CreatePartitionsTopic]) -> Result<(), ApiError> {
        let added = |topic: &&CreatePartitionsTopic| {
            let present = self.state.image.topics.named(&topic.name)?.partitions.len() as i64;
            Some((i64::from(topic.count) - present).max(0))
        };
        if topics.iter().filter_map(added).sum::<i64>() > RECORDS_MAX as i64 {
            let message = "Excessively large number of additional partitions per request.";
            return Err(ApiError::new(ErrorCode::PolicyViolation, message));
        }
        Ok(())
    }

    fn add_partitions(
        &self,
        choices: &mut dyn Choices,
        wanted: &CreatePartitionsTopic,
    ) -> Result<Vec<Record>, ApiError> {
        let invalid = |message: String| Err(ApiError::new(ErrorCode::InvalidPartitions, message));
        let Some(topic) = self.state.image.topics.named(&wanted.name) else {
            return Err(bare(ErrorCode::UnknownTopicOrPartition));
        };
        let present = topic.partitions.len();
        if i64::from(wanted.count) == present as i64 {
            return invalid(format!("Topic already has {present} partition(s)."));
        }
        if i64::from(wanted.count) < present as i64 {
            let (name, count) = (&wanted.name, wanted.count);
            return invalid(format!(
                "The topic {name} currently has {present} partition(s); {count} would not be an increase."
            ));
        }
        let added = wanted.count as usize - present;
        let factor = topic.partition(PartitionIndex(0)).map_or(1, |partition| partition.replicas.len());
        let placed = match &wanted.assignments {
            Some(given) if given.len() != added => {
                let given = given.len();
                return Err(ApiError::new(
                    ErrorCode::InvalidReplicaAssignment,
                    format!(
                        "Attempted to add {added} additional partition(s), but only {given} assignment(s) were specified."
                    ),
                ));
            }
            Some(given) => {
                let given = given.iter().map(|a| a.broker_ids.iter().copied().map(NodeId).collect::<Vec<NodeId>>());
                let given: Vec<Vec<NodeId>> = given.collect();
                self.check_given(&given, factor, present)?;
                given
            }
            None => placement::place(&self.usable_brokers(), added, factor, choices)?,
        };
        let record = |(at, replicas): (usize, Vec<NodeId>)| {
            let isr = self.active_among(&replicas);
            if isr.is_empty() {
                let message = format!(
                    "Unable to replicate the partition {factor} time(s): All brokers are currently fenced or in controlled \
                     shutdown."
                );
                return Err(ApiError::new(ErrorCode::InvalidReplicationFactor, message));
            }
            let index = PartitionIndex((present + at) as i32);
            Ok(self.new_partition(replicas, isr).to_record(topic.id, index, self.level(), self.elr_enabled()))
        };
        placed.into_iter().enumerate().map(record).collect()
    }

    fn check_given(&self, given: &[Vec<NodeId>], factor: usize, present: usize) -> Result<(), ApiError> {
        for (at, replicas) in given.iter().enumerate() {
            self.check_assignment(replicas, Some(factor))?;
            if self.active_among(replicas).is_empty() {
                let message = format!(
                    "All brokers specified in the manual partition assignment for partition {} are fenced or in \
                     controlled shutdown.",
                    present + at
                );
                return Err(ApiError::new(ErrorCode::InvalidReplicaAssignment, message));
            }
        }
        Ok(())
    }

    pub fn alter_partition(
        &mut self,
        context: &RequestContext,
        request: &AlterPartitionRequest,
    ) -> Outcome<AlterPartitionResponse> {
        let with_epochs = context.version >= 3;
        self.decide(
            |controller| {
                controller.check_broker_epoch(request.broker_id, request.broker_epoch)?;
                let mut records = Vec::new();
                let topic = |topic: &alter_partition_request::TopicData| {
                    let found = controller.state.image.topics.get(TopicId(topic.topic_id));
                    let result = |proposal: &Proposal| match found {
                        None => refused_isr(proposal, ErrorCode::UnknownTopicId),
                        Some(found) => {
                            let isr = proposed_isr(proposal, with_epochs);
                            controller.alter_isr(NodeId(request.broker_id), found, proposal, &isr, &mut records)
                        }
                    };
                    alter_partition_response::TopicData {
                        topic_id: topic.topic_id,
                        partitions: topic.partitions.iter().map(result).collect(),
                        unknown_tags: Default::default(),
                    }
                };
                let topics = request.topics.iter().map(topic).collect();
                Ok(Decision::loose(records, AlterPartitionResponse { topics, ..Default::default() }))
            },
            |error| AlterPartitionResponse { error_code: error.code(), ..Default::default() },
        )
    }

    fn alter_isr(
        &self,
        broker: NodeId,
        topic: &Topic,
        proposal: &Proposal,
        isr: &[(NodeId, BrokerEpoch)],
        records: &mut Vec<Record>,
    ) -> IsrResult {
        let id = PartitionId { topic: topic.id, index: PartitionIndex(proposal.partition_index) };
        let Some(partition) = topic.partition(id.index) else {
            return refused_isr(proposal, ErrorCode::UnknownTopicOrPartition);
        };
        if let Err(code) = self.check_proposal(broker, partition, proposal, isr) {
            return refused_isr(proposal, code);
        }
        let active = |node| self.is_active_broker(node);
        let record = self.with_change(id, partition, &active, |mut change| {
            if self.state.allows_unclean_election(id.topic) {
                change.election = Election::Unclean;
            }
            change.isr = isr.iter().map(|(node, _)| *node).collect();
            change.recovering = proposal.leader_recovery_state == 1;
            change.build()
        });
        let mut now = partition.clone();
        if let Some(record) = record {
            if let MetadataRecordKind::PartitionChange(change) = &record.kind {
                now = partition.changed(change).expect("our own change applies");
            }
            records.push(record);
            // The end of a reassignment may have taken the leadership away from who asked.
            if now.leader_epoch != partition.leader_epoch && now.leader != Some(broker) {
                return refused_isr(proposal, ErrorCode::NewLeaderElected);
            }
        }
        IsrResult {
            partition_index: proposal.partition_index,
            error_code: 0,
            leader_id: now.leader.map_or(-1, |leader| leader.0),
            leader_epoch: now.leader_epoch.0,
            isr: ids(&now.isr),
            leader_recovery_state: i8::from(now.recovering),
            partition_epoch: now.partition_epoch.0,
            unknown_tags: Default::default(),
        }
    }

    /// In this order, since a leader acts on the code: a controller that is behind is not to be believed.
    fn check_proposal(
        &self,
        broker: NodeId,
        partition: &Partition,
        proposal: &Proposal,
        isr: &[(NodeId, BrokerEpoch)],
    ) -> Result<(), ErrorCode> {
        let leader_epoch = LeaderEpoch(proposal.leader_epoch);
        let partition_epoch = PartitionEpoch(proposal.partition_epoch);
        if leader_epoch > partition.leader_epoch || partition_epoch > partition.partition_epoch {
            return Err(ErrorCode::NotController);
        }
        if leader_epoch < partition.leader_epoch {
            return Err(ErrorCode::FencedLeaderEpoch);
        }
        if partition.leader != Some(broker) {
            return Err(ErrorCode::InvalidRequest);
        }
        if partition_epoch < partition.partition_epoch {
            return Err(ErrorCode::InvalidUpdateVersion);
        }
        let unique: BTreeSet<NodeId> = isr.iter().map(|(node, _)| *node).collect();
        let members = unique.len() == isr.len() && unique.iter().all(|node| partition.replicas.contains(node));
        if isr.is_empty() || !members || !unique.contains(&broker) {
            return Err(ErrorCode::InvalidRequest);
        }
        let recovering = match proposal.leader_recovery_state {
            0 => false,
            1 => true,
            _ => return Err(ErrorCode::InvalidRequest),
        };
        // While the leader recovers nobody else can be known to have what it has; and it cannot fall back into it.
        if recovering && (isr.len() > 1 || !partition.recovering) {
            return Err(ErrorCode::InvalidRequest);
        }
        let eligible = |(node, epoch): &(NodeId, BrokerEpoch)| {
            let broker = self.state.image.cluster.broker(*node);
            broker.is_some_and(|broker| broker.is_active() && (epoch.0 == -1 || *epoch == broker.epoch))
        };
        if isr.iter().all(eligible) { Ok(()) } else { Err(ErrorCode::IneligibleReplica) }
    }

    pub fn assign_replicas_to_directories(
        &mut self,
        request: &AssignReplicasToDirsRequest,
    ) -> Outcome<AssignReplicasToDirsResponse> {
        use assign_replicas_to_dirs_response::{DirectoryData, PartitionData, TopicData};
        self.decide(
            |controller| {
                if !controller.level().has_directories() {
                    let message = "Directory assignment is not supported yet.";
                    return Err(ApiError::new(ErrorCode::UnsupportedVersion, message));
                }
                controller.check_broker_epoch(request.broker_id, request.broker_epoch)?;
                let (mut records, mut offline) = (Vec::new(), BTreeSet::new());
                let broker = NodeId(request.broker_id);
                let directories = request.directories.iter().map(|directory| DirectoryData {
                    id: directory.id,
                    topics: directory
                        .topics
                        .iter()
                        .map(|topic| TopicData {
                            topic_id: topic.topic_id,
                            partitions: topic
                                .partitions
                                .iter()
                                .map(|partition| {
                                    let index = PartitionIndex(partition.partition_index);
                                    let id = PartitionId { topic: TopicId(topic.topic_id), index };
                                    let result =
                                        controller.assign(broker, id, directory.id, &mut records, &mut offline);
                                    PartitionData {
                                        partition_index: partition.partition_index,
                                        error_code: result.err().unwrap_or(ErrorCode::None).code(),
                                        unknown_tags: Default::default(),
                                    }
                                })
                                .collect(),
                            unknown_tags: Default::default(),
                        })
                        .collect(),
                    unknown_tags: Default::default(),
                });
                let directories = directories.collect();
                controller.update_leaders(Cause { removed: Some(broker), ..Cause::default() }, offline, &mut records);
                Ok(Decision::loose(records, AssignReplicasToDirsResponse { directories, ..Default::default() }))
            },
            |error| AssignReplicasToDirsResponse { error_code: error.code(), ..Default::default() },
        )
    }

    fn assign(
        &self,
        broker: NodeId,
        id: PartitionId,
        directory: base::Uuid,
        records: &mut Vec<Record>,
        offline: &mut BTreeSet<PartitionId>,
    ) -> Result<(), ErrorCode> {
        let topic = self.state.image.topics.get(id.topic).ok_or(ErrorCode::UnknownTopicId)?;
        let partition = topic.partition(id.index).ok_or(ErrorCode::UnknownTopicOrPartition)?;
        if !partition.replicas.contains(&broker) {
            return Err(ErrorCode::NotLeaderOrFollower);
        }
        let active = |node| self.is_active_broker(node);
        records.extend(self.with_change(id, partition, &active, |mut change| {
            change.directories.push((broker, directory));
            change.build()
        }));
        let registered = self.state.image.cluster.broker(broker);
        if !registered.is_some_and(|broker| broker.has_online_directory(directory)) {
            offline.insert(id);
        }
        Ok(())
    }
}

fn proposed_isr(proposal: &Proposal, with_epochs: bool) -> Vec<(NodeId, BrokerEpoch)> {
    if with_epochs {
        let members = proposal.new_isr_with_epochs.iter();
        return members.map(|state| (NodeId(state.broker_id), BrokerEpoch(state.broker_epoch))).collect();
    }
    proposal.new_isr.iter().map(|id| (NodeId(*id), BrokerEpoch(-1))).collect()
}

fn result(topic: &CreatePartitionsTopic, error: &ApiError) -> CreatePartitionsTopicResult {
    CreatePartitionsTopicResult {
        name: topic.name.clone(),
        error_code: error.code(),
        error_message: error.message(),
        unknown_tags: Default::default(),
    }
}

/// Every topic of the request is refused for the same reason.
pub(crate) fn refuse_growth(request: &CreatePartitionsRequest, error: &ApiError) -> CreatePartitionsResponse {
    CreatePartitionsResponse {
        results: request.topics.iter().map(|topic| result(topic, error)).collect(),
        ..Default::default()
    }
}

fn refused_isr(proposal: &Proposal, code: ErrorCode) -> IsrResult {
    IsrResult { partition_index: proposal.partition_index, error_code: code.code(), ..Default::default() }
}
