//! Topics for raw cases: made, and waited for until they can be used.

use crate::raw::Raw;
use crate::{Result, wait};
use base::Uuid;
use serde_json::Value;
use std::time::Duration;
use wire::KafkaString;
use wire::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use wire::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use wire::messages::{CreateTopicsRequest, ListOffsetsRequest};

const PATIENCE: Duration = Duration::from_secs(30);
const LATEST: i64 = -1;

/// Creates a topic and waits until every partition serves. Returns its id.
pub fn create(raw: &mut Raw, name: &str, partitions: i32, configs: &[(&str, &str)]) -> Result<Uuid> {
    let configs = configs.iter().map(|(name, value)| CreatableTopicConfig {
        name: KafkaString::from(*name),
        value: Some(KafkaString::from(*value)),
        ..Default::default()
    });
    let topic = CreatableTopic {
        name: KafkaString::from(name),
        num_partitions: partitions,
        replication_factor: 1,
        configs: configs.collect(),
        ..Default::default()
    };
    let request = CreateTopicsRequest { topics: vec![topic], timeout_ms: 30_000, ..Default::default() };
    let created = raw.ask(7, &request.into())?;
    let told = &created["answer"]["Topics"][0];
    if told["ErrorCode"] != 0 {
        return Err(format!("topic {name} was not created: {created}").into());
    }
    let id = told["TopicId"].as_str().and_then(|id| id.parse::<Uuid>().ok()).ok_or("a topic has an id")?;
    wait_until_usable(raw, name, partitions)?;
    Ok(id)
}

/// Metadata may name a leader a moment before it serves: asked for the end of each partition it tells.
pub fn wait_until_usable(raw: &mut Raw, name: &str, partitions: i32) -> Result<()> {
    let one = |index| ListOffsetsPartition { partition_index: index, timestamp: LATEST, ..Default::default() };
    let topic = ListOffsetsTopic {
        name: KafkaString::from(name),
        partitions: (0..partitions).map(one).collect(),
        ..Default::default()
    };
    let request = ListOffsetsRequest { replica_id: -1, topics: vec![topic], ..Default::default() }.into();
    wait::until(&format!("the partitions of {name}"), PATIENCE, || {
        let answer = raw.ask(7, &request)?;
        let listed = answer["answer"]["Topics"][0]["Partitions"].as_array().map_or(&[][..], Vec::as_slice);
        let serves = |partition: &Value| partition["ErrorCode"] == 0;
        Ok((listed.len() as i32 == partitions && listed.iter().all(serves)).then_some(()))
    })
}
