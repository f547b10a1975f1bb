//! One script per API. A script names what it creates through `Script::name`, so that versions do not meet.

mod cluster;
mod groups;
mod records;
mod topics;

use super::Script;
use crate::Result;
use base::{Uuid, WallMillis};
use batch::BatchBuilder;
use bytes::Bytes;
use serde_json::Value;
use std::time::Duration;
use wire::messages::ProduceRequest;
use wire::messages::produce_request::{PartitionProduceData, TopicProduceData};
use wire::{ApiKey, KafkaString};

pub type Run = fn(&mut Script<'_>) -> Result<()>;

/// Takes out of an answer what two brokers need not have in common in this API.
pub type Edit = fn(&Script<'_>, &mut Value);

const SCRIPTS: &[(ApiKey, Run)] = &[
    (ApiKey::Produce, records::produce),
    (ApiKey::Fetch, records::fetch),
    (ApiKey::ListOffsets, records::list_offsets),
    (ApiKey::Metadata, topics::metadata),
    (ApiKey::OffsetCommit, groups::offset_commit),
    (ApiKey::OffsetFetch, groups::offset_fetch),
    (ApiKey::FindCoordinator, groups::find_coordinator),
    (ApiKey::JoinGroup, groups::join_group),
    (ApiKey::Heartbeat, groups::heartbeat),
    (ApiKey::LeaveGroup, groups::leave_group),
    (ApiKey::SyncGroup, groups::sync_group),
    (ApiKey::DescribeGroups, groups::describe_groups),
    (ApiKey::ListGroups, groups::list_groups),
    (ApiKey::ApiVersions, cluster::api_versions),
    (ApiKey::CreateTopics, topics::create_topics),
    (ApiKey::DeleteTopics, topics::delete_topics),
    (ApiKey::DeleteRecords, records::delete_records),
    (ApiKey::InitProducerId, records::init_producer_id),
    (ApiKey::OffsetForLeaderEpoch, records::offset_for_leader_epoch),
    (ApiKey::DescribeConfigs, cluster::describe_configs),
    (ApiKey::AlterConfigs, cluster::alter_configs),
    (ApiKey::DescribeLogDirs, topics::describe_log_dirs),
    (ApiKey::CreatePartitions, topics::create_partitions),
    (ApiKey::DeleteGroups, groups::delete_groups),
    (ApiKey::ElectLeaders, topics::elect_leaders),
    (ApiKey::IncrementalAlterConfigs, cluster::incremental_alter_configs),
    (ApiKey::AlterPartitionReassignments, topics::alter_partition_reassignments),
    (ApiKey::ListPartitionReassignments, topics::list_partition_reassignments),
    (ApiKey::OffsetDelete, groups::offset_delete),
    (ApiKey::DescribeQuorum, cluster::describe_quorum),
    (ApiKey::UpdateFeatures, cluster::update_features),
    (ApiKey::DescribeCluster, cluster::describe_cluster),
    (ApiKey::DescribeProducers, records::describe_producers),
    (ApiKey::UnregisterBroker, cluster::unregister_broker),
    (ApiKey::ListConfigResources, cluster::list_config_resources),
    (ApiKey::DescribeTopicPartitions, topics::describe_topic_partitions),
];

const EDITS: &[(ApiKey, Edit)] = &[
    (ApiKey::ApiVersions, cluster::only_served),
    (ApiKey::DescribeQuorum, cluster::hide_progress),
    (ApiKey::JoinGroup, groups::hide_leader),
    (ApiKey::ListGroups, groups::only_own),
];

pub fn find(api: ApiKey) -> Option<(Run, Option<Edit>)> {
    let edit = EDITS.iter().find(|(name, _)| *name == api).map(|(_, edit)| *edit);
    SCRIPTS.iter().find(|(name, _)| *name == api).map(|(_, run)| (*run, edit))
}

/// The APIs that have a script.
pub fn apis() -> impl Iterator<Item = ApiKey> {
    SCRIPTS.iter().map(|(api, _)| *api)
}

const PATIENCE: Duration = Duration::from_secs(30);
/// A time that every record of a script has as its base.
const TIME: i64 = 1_700_000_000_000;
const NOWHERE: &str = "missing-topic";
/// A topic that belongs to the brokers.
const GROUP_TOPIC: &str = "__consumer_offsets";
/// The id of no topic.
const NO_SUCH_ID: Uuid = Uuid(0x1234_5678_9ABC_4DEF_8123_4567_89AB_CDEF);

fn text(text: &str) -> KafkaString {
    KafkaString::from(text)
}

/// Creates a topic that can be used at once. Returns its id.
fn topic(s: &mut Script<'_>, name: &str, partitions: i32, configs: &[(&str, &str)]) -> Result<Uuid> {
    crate::topics::create(s.raw, name, partitions, configs)
}

/// A batch of records with rising times and the given values.
fn records(values: &[&str]) -> Bytes {
    let mut builder = BatchBuilder::new();
    for (index, value) in values.iter().enumerate() {
        builder.append(WallMillis(TIME + index as i64), Some(b"key"), Some(value.as_bytes()), &[]);
    }
    builder.build().into()
}

fn produce_to(name: &str, id: Uuid, partitions: Vec<(i32, Option<Bytes>)>) -> ProduceRequest {
    let partition_data = partitions
        .into_iter()
        .map(|(index, records)| PartitionProduceData { index, records, ..Default::default() })
        .collect();
    let data = TopicProduceData { name: text(name), topic_id: id, partition_data, ..Default::default() };
    ProduceRequest { acks: -1, timeout_ms: 10_000, topic_data: vec![data], ..Default::default() }
}

/// A topic of one partition with records in it, one batch for each of them.
fn filled(s: &mut Script<'_>, name: &str, values: &[&str]) -> Result<Uuid> {
    let id = topic(s, name, 1, &[])?;
    for value in values {
        let answer = s.prepare(13, produce_to(name, id, vec![(0, Some(records(&[value])))]))?;
        if answer["answer"]["Responses"][0]["PartitionResponses"][0]["ErrorCode"] != 0 {
            return Err(format!("a record was not taken: {answer}").into());
        }
    }
    Ok(id)
}
