//! Creating and deleting topics.

use crate::controller::{Controller, Decision, Outcome, RECORDS_MAX, RequestContext};
use crate::error::{ApiError, bare};
use crate::placement::{self, Choices};
use crate::state::collision_key;
use base::{LeaderEpoch, NodeId, PartitionEpoch, PartitionIndex, TopicId, Uuid};
use image::topics::CreatedAt;
use image::{Partition, Record, Resource};
use settings::{Change, Operation};
use std::collections::{BTreeMap, BTreeSet};
use wire::messages::create_topics_request::{CreatableReplicaAssignment, CreatableTopic};
use wire::messages::create_topics_response::{CreatableTopicConfigs, CreatableTopicResult};
use wire::messages::delete_topics_response::DeletableTopicResult;
use wire::messages::{
    CreateTopicsRequest, CreateTopicsResponse, DeleteTopicsRequest, DeleteTopicsResponse, RemoveTopicRecord,
    TopicRecord,
};
use wire::{ErrorCode, KafkaString};

/// Kept for the quorum's own log.
const METADATA_TOPIC: &str = "__cluster_metadata";
const NAME_LENGTH_MAX: usize = 249;

/// Kafka's rules for the name of a topic.
pub(crate) fn check_topic_name(name: &str) -> Result<(), ApiError> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let why = match name {
        "" => "the empty string is not allowed".to_owned(),
        "." => "'.' is not allowed".to_owned(),
        ".." => "'..' is not allowed".to_owned(),
        _ if name.encode_utf16().count() > NAME_LENGTH_MAX => {
            format!("the length of '{name}' is longer than the max allowed length {NAME_LENGTH_MAX}")
        }
        _ if !name.chars().all(legal) => {
            format!("'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'")
        }
        _ => return Ok(()),
    };
    Err(ApiError::new(ErrorCode::InvalidTopicException, format!("Topic name is invalid: {why}")))
}

/// A topic as it would be made: its records in order, and the answer.
struct Created {
    records: Vec<Record>,
    result: CreatableTopicResult,
}

impl Controller {
    pub fn create_topics(
        &mut self,
        choices: &mut dyn Choices,
        request: &CreateTopicsRequest,
    ) -> Outcome<CreateTopicsResponse> {
        self.decide(|controller| controller.decide_creation(choices, request), |error| refuse_creation(request, error))
    }

    fn decide_creation(
        &self,
        choices: &mut dyn Choices,
        request: &CreateTopicsRequest,
    ) -> Result<Decision<CreateTopicsResponse>, ApiError> {
        let mut counts: BTreeMap<&KafkaString, usize> = BTreeMap::new();
        for topic in &request.topics {
            *counts.entry(&topic.name).or_default() += 1;
        }
        let eligible = |topic: &&CreatableTopic| counts[&topic.name] == 1 && topic.name != METADATA_TOPIC;
        let topics: Vec<&CreatableTopic> = request.topics.iter().filter(eligible).collect();
        self.limit_created_partitions(&topics)?;
        let (mut records, mut results) = (Vec::new(), Vec::new());
        for topic in topics {
            match self.create_topic(choices, topic) {
                Ok(created) => {
                    records.extend(created.records);
                    results.push(created.result);
                }
                Err(error) => results.push(refused(&topic.name, &error)),
            }
            if records.len() > RECORDS_MAX {
                return Err(ApiError::new(
                    ErrorCode::PolicyViolation,
                    "Unable to perform excessively large batch operation.",
                ));
            }
        }
        let twice = counts.iter().filter(|(_, count)| **count > 1);
        let twice_error = ApiError::new(ErrorCode::InvalidRequest, "Duplicate topic name.");
        results.extend(twice.map(|(name, _)| refused(name, &twice_error)));
        if counts.get(&KafkaString::from_static(METADATA_TOPIC)) == Some(&1) {
            let message = format!("Creation of internal topic {METADATA_TOPIC} is prohibited.");
            results.push(refused(METADATA_TOPIC, &ApiError::new(ErrorCode::InvalidRequest, message)));
        }
        if request.validate_only {
            records.clear();
        }
        Ok(Decision::atomic(records, CreateTopicsResponse { topics: results, ..Default::default() }))
    }

    fn limit_created_partitions(&self, topics: &[&CreatableTopic]) -> Result<(), ApiError> {
        let mut total = 0i64;
        for topic in topics {
            total += match topic.num_partitions {
                _ if !topic.assignments.is_empty() => topic.assignments.len() as i64,
                -1 => i64::from(self.options.settings.typed().num_partitions),
                count => i64::from(count.max(0)),
            };
        }
        if total > RECORDS_MAX as i64 {
            let message = "Excessively large number of partitions per request.";
            return Err(ApiError::new(ErrorCode::PolicyViolation, message));
        }
        Ok(())
    }

    fn create_topic(&self, choices: &mut dyn Choices, topic: &CreatableTopic) -> Result<Created, ApiError> {
        self.check_new_name(&topic.name)?;
        let configs = self.creation_configs(topic)?;
        let partitions = if topic.assignments.is_empty() {
            self.place_new_topic(choices, topic)?
        } else {
            self.take_assignments(topic)?
        };
        let id = TopicId(choices.topic_id());
        let mut records = vec![Record::v0(TopicRecord {
            name: topic.name.detached(),
            topic_id: id.0,
            unknown_tags: Default::default(),
        })];
        records.extend(configs.iter().map(|(name, value)| {
            crate::activation::config(image::resource_type::TOPIC, &topic.name, name, Some(value))
        }));
        if self.elr_enabled() && configs.contains_key("min.insync.replicas") {
            records.push(crate::configs::clear_elr(&topic.name));
        }
        let to_record = |(index, p): (usize, &Partition)| {
            p.to_record(id, PartitionIndex(index as i32), self.level(), self.elr_enabled())
        };
        records.extend(partitions.iter().enumerate().map(to_record));
        let result = CreatableTopicResult {
            name: topic.name.clone(),
            topic_id: id.0,
            error_message: None,
            num_partitions: partitions.len() as i32,
            replication_factor: partitions.first().map_or(-1, |partition| partition.replicas.len() as i16),
            configs: Some(self.created_configs(&configs)),
            ..Default::default()
        };
        Ok(Created { records, result })
    }

    fn check_new_name(&self, name: &KafkaString) -> Result<(), ApiError> {
        // The later check wins, as in Kafka: an existing name exists, whatever else is wrong with it.
        if self.topic_named(name).is_some() {
            return Err(ApiError::new(ErrorCode::TopicAlreadyExists, format!("Topic '{name}' already exists.")));
        }
        let similar = collision_key(name).and_then(|key| self.state.index.similar_names.get(&key));
        if let Some(other) = similar.and_then(|names| names.keys().next()) {
            let message = format!("Topic '{name}' collides with existing topic: {other}");
            return Err(ApiError::new(ErrorCode::InvalidTopicException, message));
        }
        check_topic_name(name)
    }

    fn creation_configs(&self, topic: &CreatableTopic) -> Result<settings::Texts, ApiError> {
        let nulls = topic.configs.iter().filter(|config| config.value.is_none());
        let nulls: Vec<&str> = nulls.map(|config| config.name.as_str()).collect();
        if !nulls.is_empty() {
            let message = format!("Null value not supported for topic configs: {}", nulls.join(","));
            return Err(ApiError::new(ErrorCode::InvalidConfig, message));
        }
        // Named twice, the last one counts, as in the map Kafka reads them into.
        let given: BTreeMap<&str, &str> =
            topic.configs.iter().filter_map(|c| Some((c.name.as_str(), c.value.as_deref()?))).collect();
        let changes: Vec<Change<'_>> =
            given.iter().map(|(name, value)| Change { name, operation: Operation::Set, value: Some(value) }).collect();
        if changes.is_empty() {
            return Ok(settings::Texts::new());
        }
        let new = self.altered(&Resource::topic(topic.name.clone()), &changes)?;
        Ok(new.into_iter().filter_map(|(name, value)| Some((name, value?))).collect())
    }

    fn created_configs(&self, configs: &settings::Texts) -> Vec<CreatableTopicConfigs> {
        let entry = |entry: settings::Entry| CreatableTopicConfigs {
            name: entry.name.as_ref().into(),
            value: entry.value.map(Into::into),
            read_only: entry.read_only,
            config_source: entry.source.code(),
            is_sensitive: entry.sensitive,
            unknown_tags: Default::default(),
        };
        settings::describe_created_topic(configs, &self.state.settings).into_iter().map(entry).collect()
    }

    fn place_new_topic(&self, choices: &mut dyn Choices, topic: &CreatableTopic) -> Result<Vec<Partition>, ApiError> {
        let defaults = self.options.settings.typed();
        let replicas = match topic.replication_factor {
            -1 => defaults.default_replication_factor,
            factor if factor < 1 => {
                let message = "Replication factor must be larger than 0, or -1 to use the default value.";
                return Err(ApiError::new(ErrorCode::InvalidReplicationFactor, message));
            }
            factor => i32::from(factor),
        };
        let partitions = match topic.num_partitions {
            -1 => defaults.num_partitions,
            count if count < 1 => {
                let message = "Number of partitions was set to an invalid non-positive value.";
                return Err(ApiError::new(ErrorCode::InvalidPartitions, message));
            }
            count => count,
        };
        let unable = |why: &str| {
            let message = format!("Unable to replicate the partition {replicas} time(s): {why}");
            ApiError::new(ErrorCode::InvalidReplicationFactor, message)
        };
        let placed = placement::place(&self.usable_brokers(), partitions as usize, replicas.max(0) as usize, choices);
        let placed = placed.map_err(|error| unable(error.message.as_deref().unwrap_or_default()))?;
        let partition = |replicas: Vec<NodeId>| {
            let isr = self.active_among(&replicas);
            let why = "All brokers are currently fenced or in controlled shutdown.";
            if isr.is_empty() { Err(unable(why)) } else { Ok(self.new_partition(replicas, isr)) }
        };
        placed.into_iter().map(partition).collect()
    }

    fn take_assignments(&self, topic: &CreatableTopic) -> Result<Vec<Partition>, ApiError> {
        let invalid = |message: String| Err(ApiError::new(ErrorCode::InvalidReplicaAssignment, message));
        let given =
            [("replication factor", i32::from(topic.replication_factor)), ("numPartitions", topic.num_partitions)];
        if let Some((what, _)) = given.into_iter().find(|(_, value)| *value != -1) {
            let message = format!("A manual partition assignment was specified, but {what} was not set to -1.");
            return Err(ApiError::new(ErrorCode::InvalidRequest, message));
        }
        let mut partitions: BTreeMap<i32, Partition> = BTreeMap::new();
        let mut factor = None;
        for CreatableReplicaAssignment { partition_index, broker_ids, .. } in &topic.assignments {
            if partitions.contains_key(partition_index) {
                return invalid(format!("Found multiple manual partition assignments for partition {partition_index}"));
            }
            let replicas: Vec<NodeId> = broker_ids.iter().copied().map(NodeId).collect();
            self.check_assignment(&replicas, factor)?;
            factor = Some(replicas.len());
            let isr = self.active_among(&replicas);
            if isr.is_empty() {
                return invalid(format!(
                    "All brokers specified in the manual partition assignment for partition {partition_index} are fenced \
                     or in controlled shutdown."
                ));
            }
            partitions.insert(*partition_index, self.new_partition(replicas, isr));
        }
        if partitions.keys().enumerate().any(|(at, index)| at as i32 != *index) {
            return invalid("partitions should be a consecutive 0-based integer sequence".to_owned());
        }
        Ok(partitions.into_values().collect())
    }

    pub(crate) fn active_among(&self, replicas: &[NodeId]) -> Vec<NodeId> {
        replicas.iter().copied().filter(|node| self.is_active_broker(*node)).collect()
    }

    /// What a client names by hand must be registered, distinct, and as many as elsewhere in the topic.
    pub(crate) fn check_assignment(&self, replicas: &[NodeId], factor: Option<usize>) -> Result<(), ApiError> {
        let invalid = |message: String| Err(ApiError::new(ErrorCode::InvalidReplicaAssignment, message));
        if replicas.is_empty() {
            return invalid("The manual partition assignment includes an empty replica list.".to_owned());
        }
        let mut sorted = replicas.to_vec();
        sorted.sort_unstable();
        let mut before = None;
        for id in sorted {
            let Some(broker) = self.state.image.cluster.broker(id) else {
                let what = format!("broker {id}, but no such broker is registered.");
                return invalid(format!("The manual partition assignment includes {what}"));
            };
            if !broker.has_uncordoned_directory() {
                let what = format!("broker {id}, but all its log directories are cordoned.");
                return invalid(format!("The manual partition assignment includes {what}"));
            }
            if before == Some(id) {
                return invalid(format!("The manual partition assignment includes the broker {id} more than once."));
            }
            before = Some(id);
        }
        match factor {
            Some(factor) if factor != replicas.len() => invalid(format!(
                "The manual partition assignment includes a partition with {} replica(s), but this is not consistent with \
                 previous partitions, which have {factor} replica(s).",
                replicas.len()
            )),
            _ => Ok(()),
        }
    }

    pub(crate) fn new_partition(&self, replicas: Vec<NodeId>, isr: Vec<NodeId>) -> Partition {
        Partition {
            directories: replicas.iter().map(|node| self.default_directory(*node)).collect(),
            replicas: replicas.into(),
            leader: isr.first().copied(),
            isr: isr.into(),
            removing: [].into(),
            adding: [].into(),
            eligible_leader_replicas: [].into(),
            last_known_elr: [].into(),
            recovering: false,
            leader_epoch: LeaderEpoch(0),
            partition_epoch: PartitionEpoch(0),
            created_at: CreatedAt(self.next_offset()),
        }
    }

    pub fn delete_topics(
        &mut self,
        context: &RequestContext,
        request: &DeleteTopicsRequest,
    ) -> Outcome<DeleteTopicsResponse> {
        let version = context.version;
        self.decide(
            |controller| {
                if !controller.options.settings.typed().delete_topic_enable {
                    return Err(deletion_disabled(version));
                }
                let (ids, mut responses) = controller.topics_to_delete(request);
                let mut records = Vec::new();
                for (id, name) in ids {
                    records.push(Record::v0(RemoveTopicRecord { topic_id: id.0, unknown_tags: Default::default() }));
                    responses.push(deleted(Some(name), id.0, &ApiError::NONE));
                }
                if records.len() > RECORDS_MAX {
                    let message = "Unable to perform excessively large batch operation.";
                    return Err(ApiError::new(ErrorCode::PolicyViolation, message));
                }
                Ok(Decision::atomic(records, DeleteTopicsResponse { responses, ..Default::default() }))
            },
            |error| refuse_deletion(request, error),
        )
    }

    /// Which topics a request names, and the answers for what it names wrongly.
    fn topics_to_delete(
        &self,
        request: &DeleteTopicsRequest,
    ) -> (BTreeMap<TopicId, KafkaString>, Vec<DeletableTopicResult>) {
        let invalid = |message: &str| ApiError::new(ErrorCode::InvalidRequest, message);
        let mut responses = Vec::new();
        let (mut names, mut ids) = (Mentioned::default(), Mentioned::default());
        request.topic_names.iter().for_each(|name| names.mention(name.clone()));
        for topic in &request.topics {
            match (&topic.name, topic.topic_id) {
                (None, Uuid::ZERO) => {
                    responses.push(deleted(None, Uuid::ZERO, &invalid("Neither topic name nor id were specified.")));
                }
                (None, id) => ids.mention(TopicId(id)),
                (Some(name), Uuid::ZERO) => names.mention(name.clone()),
                (Some(name), id) => {
                    let error = invalid("You may not specify both topic name and topic id.");
                    responses.push(deleted(Some(name.clone()), id, &error));
                }
            }
        }
        let twice = |name: &KafkaString| deleted(Some(name.clone()), Uuid::ZERO, &invalid("Duplicate topic name."));
        responses.extend(names.twice.iter().map(twice));
        responses.extend(ids.twice.iter().map(|id| deleted(None, id.0, &invalid("Duplicate topic id."))));
        let mut found: BTreeMap<TopicId, KafkaString> = BTreeMap::new();
        for id in ids.once {
            match self.state.image.topics.get(id) {
                None => responses.push(deleted(None, id.0, &ApiError::plain(ErrorCode::UnknownTopicId))),
                Some(topic) => drop(found.insert(id, topic.name.clone())),
            }
        }
        for name in names.once {
            let Some(id) = self.topic_named(&name) else {
                let error = ApiError::plain(ErrorCode::UnknownTopicOrPartition);
                responses.push(deleted(Some(name), Uuid::ZERO, &error));
                continue;
            };
            if ids.twice.contains(&id) || found.insert(id, name.clone()).is_some() {
                found.remove(&id);
                ids.twice.insert(id);
                let error = invalid("The provided topic name maps to an ID that was already supplied.");
                responses.push(deleted(Some(name), id.0, &error));
            }
        }
        (found, responses)
    }
}

struct Mentioned<T> {
    once: BTreeSet<T>,
    twice: BTreeSet<T>,
}

impl<T> Default for Mentioned<T> {
    fn default() -> Self {
        Mentioned { once: BTreeSet::new(), twice: BTreeSet::new() }
    }
}

impl<T: Ord + Clone> Mentioned<T> {
    fn mention(&mut self, item: T) {
        if self.twice.contains(&item) || !self.once.insert(item.clone()) {
            self.once.remove(&item);
            self.twice.insert(item);
        }
    }
}

fn refused(name: &str, error: &ApiError) -> CreatableTopicResult {
    CreatableTopicResult {
        name: name.into(),
        error_code: error.code(),
        error_message: error.message(),
        configs: Some(Vec::new()),
        ..Default::default()
    }
}

fn deleted(name: Option<KafkaString>, id: Uuid, error: &ApiError) -> DeletableTopicResult {
    DeletableTopicResult {
        name,
        topic_id: id,
        error_code: error.code(),
        error_message: error.message(),
        unknown_tags: Default::default(),
    }
}

/// Every topic of the request is refused for the same reason.
pub(crate) fn refuse_creation(request: &CreateTopicsRequest, error: &ApiError) -> CreateTopicsResponse {
    CreateTopicsResponse {
        topics: request.topics.iter().map(|topic| refused(&topic.name, error)).collect(),
        ..Default::default()
    }
}

pub(crate) fn refuse_deletion(request: &DeleteTopicsRequest, error: &ApiError) -> DeleteTopicsResponse {
    let by_name = request.topic_names.iter().map(|name| (Some(name.clone()), Uuid::ZERO));
    let topics = by_name.chain(request.topics.iter().map(|t| (t.name.clone(), t.topic_id)));
    let refused = |(name, id)| DeletableTopicResult { error_message: None, ..deleted(name, id, error) };
    DeleteTopicsResponse { responses: topics.map(refused).collect(), ..Default::default() }
}

fn deletion_disabled(version: i16) -> ApiError {
    if version < 3 {
        let message = "This version does not support topic deletion.";
        return ApiError::new(ErrorCode::InvalidRequest, message);
    }
    bare(ErrorCode::TopicDeletionDisabled)
}
