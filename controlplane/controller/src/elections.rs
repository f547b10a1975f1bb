//! Leaders: after a broker has come, gone or lost a directory; on request; and on the timers.

use crate::change::{Election, PartitionChange};
use crate::controller::{Controller, Decision, ELECTIONS_MAX, Outcome, RECORDS_MAX, RequestContext, SWEEP_MAX};
use crate::error::ApiError;
use crate::state::indexed;
use base::{NodeId, PartitionId, PartitionIndex};
use image::{Partition, Record};
use wire::ErrorCode;
use wire::messages::elect_leaders_response::{ElectLeadersResponse, PartitionResult, ReplicaElectionResult};
use wire::messages::{ElectLeadersRequest, elect_leaders_request::TopicPartitions};

/// Why partitions are looked at again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cause {
    /// It stops serving: it leaves ISRs and leads nothing.
    pub removed: Option<NodeId>,
    /// It starts serving: it may lead although the log does not say so yet.
    pub added: Option<NodeId>,
    /// It came back and may have lost records: it also leaves the ELR.
    pub unclean_shutdown: Option<NodeId>,
}

impl Controller {
    /// The change builder of a partition as things stand, its acceptor and its directories by the registrations.
    pub(crate) fn with_change<R>(
        &self,
        id: PartitionId,
        partition: &Partition,
        acceptable: &dyn Fn(NodeId) -> bool,
        make: impl FnOnce(PartitionChange<'_>) -> R,
    ) -> R {
        let cluster = &self.state.image.cluster;
        let in_charge = |node: NodeId| {
            acceptable(node)
                && partition.directory(node).is_some_and(|directory| {
                    cluster.broker(node).is_some_and(|broker| broker.has_online_directory(directory))
                })
        };
        let default_directory = |node: NodeId| self.default_directory(node);
        let mut change = PartitionChange::new(partition, id, &in_charge, &default_directory);
        change.level = self.level();
        change.min_isr = self.state.effective_min_isr(id.topic);
        change.elr_enabled = self.elr_enabled();
        make(change)
    }

    pub(crate) fn is_active_broker(&self, node: NodeId) -> bool {
        self.state.image.cluster.is_active(node)
    }

    /// New leaders and ISRs for these partitions.
    pub(crate) fn update_leaders(
        &self,
        cause: Cause,
        partitions: impl IntoIterator<Item = PartitionId>,
        records: &mut Vec<Record>,
    ) {
        let gone = |node: NodeId| cause.removed == Some(node) || cause.unclean_shutdown == Some(node);
        let acceptable = |node: NodeId| !gone(node) && (cause.added == Some(node) || self.is_active_broker(node));
        for id in partitions {
            let partition = indexed(&self.state.image, id);
            let record = self.with_change(id, partition, &acceptable, |mut change| {
                if self.state.allows_unclean_election(id.topic) {
                    change.election = Election::Unclean;
                }
                change.unclean_shutdown = cause.unclean_shutdown;
                change.isr.retain(|node| !gone(*node));
                change.build()
            });
            records.extend(record);
        }
    }

    /// The same for all partitions in whose ISR a broker is, a bounded number at a time: true when some are left. What
    /// has been changed is no longer in the index, so the next event goes on where this one stopped.
    pub(crate) fn sweep_isr(&self, node: NodeId, cause: Cause, records: &mut Vec<Record>) -> bool {
        let Some(set) = self.state.index.in_isr.get(&node) else { return false };
        // Without ELR an ISR may not become empty: its last member stays in the index, and there would be no progress.
        let share = if self.elr_enabled() { SWEEP_MAX } else { usize::MAX };
        self.update_leaders(cause, set.keys().copied().take(share), records);
        set.len() > share
    }

    /// As `sweep_isr`, over the partitions for which a broker is eligible though not in sync.
    pub(crate) fn sweep_elr(&self, node: NodeId, cause: Cause, records: &mut Vec<Record>) -> bool {
        let Some(set) = self.state.index.in_elr.get(&node) else { return false };
        self.update_leaders(cause, set.keys().copied().take(SWEEP_MAX), records);
        set.len() > SWEEP_MAX
    }

    /// Leaders for partitions without one, from `from` on; where to go on when the event's share is done.
    pub(crate) fn elect_leaderless(
        &self,
        added: Option<NodeId>,
        from: Option<PartitionId>,
        records: &mut Vec<Record>,
    ) -> Option<PartitionId> {
        let leaderless = &self.state.index.leaderless;
        let mut ids = leaderless.range_from(&from.unwrap_or_default()).map(|(id, ())| *id);
        let share: Vec<PartitionId> = ids.by_ref().take(SWEEP_MAX).collect();
        let next = ids.next();
        self.update_leaders(Cause { added, ..Cause::default() }, share, records);
        next
    }

    pub fn elect_leaders(
        &mut self,
        context: &RequestContext,
        request: &ElectLeadersRequest,
    ) -> Outcome<ElectLeadersResponse> {
        // Version 0 knows preferred elections only.
        let kind = if context.version == 0 { 0 } else { request.election_type };
        self.decide(
            |controller| controller.decide_elections(kind, request),
            |error| refuse_elections(context.version, request, error),
        )
    }

    fn decide_elections(
        &self,
        kind: i8,
        request: &ElectLeadersRequest,
    ) -> Result<Decision<ElectLeadersResponse>, ApiError> {
        let election = match kind {
            0 => Election::Preferred,
            1 => Election::Unclean,
            _ => return Err(ApiError::new(ErrorCode::InvalidRequest, format!("Unknown election type {kind}"))),
        };
        let mut records = Vec::new();
        let mut response = ElectLeadersResponse::default();
        match &request.topic_partitions {
            None => {
                for (name, id) in self.state.image.topics.names() {
                    let mut topic = ReplicaElectionResult { topic: name.clone(), ..Default::default() };
                    let indexes = self.state.image.topics.get(id).into_iter().flat_map(|topic| topic.partitions.keys());
                    for index in indexes {
                        let result = self.elect_one(name, index.0, election, &mut records);
                        if result.code != ErrorCode::ElectionNotNeeded {
                            topic.partition_result.push(partition_result(index.0, &result));
                        }
                    }
                    response.replica_election_results.push(topic);
                }
            }
            Some(topics) => {
                for TopicPartitions { topic, partitions, .. } in topics {
                    let result =
                        |index: &i32| partition_result(*index, &self.elect_one(topic, *index, election, &mut records));
                    let partition_result = partitions.iter().map(result).collect();
                    let topic = topic.clone();
                    let result = ReplicaElectionResult { topic, partition_result, ..Default::default() };
                    response.replica_election_results.push(result);
                }
            }
        }
        if records.len() > RECORDS_MAX {
            return Err(ApiError::new(
                ErrorCode::PolicyViolation,
                "Unable to perform excessively large batch operation.",
            ));
        }
        Ok(Decision::loose(records, response))
    }

    fn elect_one(&self, topic: &str, index: i32, election: Election, records: &mut Vec<Record>) -> ApiError {
        let unknown = |what: String| ApiError::new(ErrorCode::UnknownTopicOrPartition, what);
        let Some(found) = self.state.image.topics.named(topic) else {
            return unknown(format!("No such topic as {topic}"));
        };
        let Some(partition) = found.partition(PartitionIndex(index)) else {
            return unknown(format!("No such partition as {topic}-{index}"));
        };
        let settled = match election {
            Election::Unclean => partition.leader.is_some(),
            _ => partition.has_preferred_leader(),
        };
        if settled {
            return ApiError::plain(ErrorCode::ElectionNotNeeded);
        }
        let id = PartitionId { topic: found.id, index: PartitionIndex(index) };
        let active = |node| self.is_active_broker(node);
        let record = self.with_change(id, partition, &active, |mut change| {
            change.election = election;
            change.build()
        });
        match record {
            Some(record) => {
                records.push(record);
                ApiError::NONE
            }
            None if election == Election::Preferred => ApiError::plain(ErrorCode::PreferredLeaderNotAvailable),
            None => ApiError::plain(ErrorCode::EligibleLeadersNotAvailable),
        }
    }

    /// Leaderships go back to preferred replicas, some at a time.
    pub(crate) fn balance_leaders(&self, records: &mut Vec<Record>) {
        let active = |node| self.is_active_broker(node);
        for id in self.state.index.imbalanced.keys() {
            if records.len() >= ELECTIONS_MAX {
                return;
            }
            let partition = indexed(&self.state.image, *id);
            records.extend(self.with_change(*id, partition, &active, |mut change| {
                change.election = Election::Preferred;
                change.build()
            }));
        }
    }

    /// Leaders for partitions without one whose topics allow that records are lost.
    pub(crate) fn elect_unclean(&self, records: &mut Vec<Record>) {
        for id in self.state.index.leaderless.keys() {
            if records.len() >= ELECTIONS_MAX {
                return;
            }
            if self.state.allows_unclean_election(id.topic)
                && let Some(topic) = self.state.image.topics.get(id.topic)
            {
                self.elect_one(&topic.name, id.index.0, Election::Unclean, records);
            }
        }
    }
}

fn partition_result(index: i32, result: &ApiError) -> PartitionResult {
    PartitionResult {
        partition_id: index,
        error_code: result.code(),
        error_message: result.message(),
        unknown_tags: Default::default(),
    }
}

pub(crate) fn refuse_elections(version: i16, request: &ElectLeadersRequest, error: &ApiError) -> ElectLeadersResponse {
    let topics = request.topic_partitions.as_deref().unwrap_or_default();
    let result = |t: &TopicPartitions| ReplicaElectionResult {
        topic: t.topic.clone(),
        partition_result: t.partitions.iter().map(|index| partition_result(*index, error)).collect(),
        unknown_tags: Default::default(),
    };
    ElectLeadersResponse {
        // Version 0 has no place for an error of the whole.
        error_code: if version == 0 { 0 } else { error.code() },
        replica_election_results: topics.iter().map(result).collect(),
        ..Default::default()
    }
}
