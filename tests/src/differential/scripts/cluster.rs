//! Versions, settings, the quorum, features.

use super::{NOWHERE, text, topic};
use crate::Result;
use crate::differential::Script;
use serde_json::Value;
use wire::messages::alter_configs_request as alter;
use wire::messages::describe_configs_request::DescribeConfigsResource;
use wire::messages::describe_quorum_request::{PartitionData, TopicData};
use wire::messages::incremental_alter_configs_request as incremental;
use wire::messages::update_features_request::FeatureUpdateKey;
use wire::messages::{
    AlterConfigsRequest, ApiVersionsRequest, DescribeClusterRequest, DescribeConfigsRequest, DescribeQuorumRequest,
    IncrementalAlterConfigsRequest, ListConfigResourcesRequest, UnregisterBrokerRequest, UpdateFeaturesRequest,
};

const TOPIC: i8 = 2;
const BROKER: i8 = 4;

/// Features whose APIs a Pollux node does not serve yet: it names level 0 as their highest.
const LATER_FEATURES: [&str; 4] = ["group.version", "transaction.version", "share.version", "streams.version"];

/// Leaves what both brokers serve, and of it the same versions must be named.
pub fn only_served(s: &Script<'_>, value: &mut Value) {
    if let Some(keys) = value.pointer_mut("/answer/ApiKeys").and_then(Value::as_array_mut) {
        keys.retain(|entry| s.serves(entry["ApiKey"].as_i64().unwrap_or(-1)));
    }
    if let Some(features) = value.pointer_mut("/answer/SupportedFeatures").and_then(Value::as_array_mut) {
        features.retain(|feature| !LATER_FEATURES.contains(&feature["Name"].as_str().unwrap_or("")));
    }
}

pub fn api_versions(s: &mut Script<'_>) -> Result<()> {
    let named = |name: &str, version: &str| ApiVersionsRequest {
        client_software_name: text(name),
        client_software_version: text(version),
        ..Default::default()
    };
    s.send("success", named("a-client", "1.0"))?;
    for (label, name, version) in
        [("no name", "", "1"), ("bad name", "a client", "1"), ("bad end", "client-", "1"), ("no version", "a", "")]
    {
        s.send(label, named(name, version))?;
    }
    Ok(())
}

pub fn describe_cluster(s: &mut Script<'_>) -> Result<()> {
    let plain = DescribeClusterRequest { endpoint_type: 1, ..Default::default() };
    s.send("success", plain.clone())?;
    s.send("operations", DescribeClusterRequest { include_cluster_authorized_operations: true, ..plain.clone() })?;
    if s.version >= 1 {
        s.send("controllers", DescribeClusterRequest { endpoint_type: 2, ..plain.clone() })?;
        s.send("unknown kind", DescribeClusterRequest { endpoint_type: 9, ..plain.clone() })?;
    }
    if s.version >= 2 {
        s.send("fenced too", DescribeClusterRequest { include_fenced_brokers: true, ..plain })?;
    }
    Ok(())
}

pub fn describe_configs(s: &mut Script<'_>) -> Result<()> {
    let name = s.name("configs");
    topic(s, &name, 1, &[("retention.ms", "1234567"), ("cleanup.policy", "compact,delete")])?;
    let of = |kind: i8, name: &str, keys: Option<&[&str]>| DescribeConfigsRequest {
        resources: vec![DescribeConfigsResource {
            resource_type: kind,
            resource_name: text(name),
            configuration_keys: keys.map(|keys| keys.iter().map(|key| text(key)).collect()),
            ..Default::default()
        }],
        include_synonyms: true,
        ..Default::default()
    };
    s.send("topic", of(TOPIC, &name, None))?;
    s.send("some", of(TOPIC, &name, Some(&["retention.ms", "no.such"])))?;
    s.send("none", of(TOPIC, &name, Some(&[])))?;
    s.send("missing topic", of(TOPIC, NOWHERE, None))?;
    s.send("bad topic", of(TOPIC, "bad name", None))?;
    s.send("cluster", of(BROKER, "", None))?;
    s.send("broker", of(BROKER, "1", Some(&["num.partitions", "log.retention.ms", "log.retention.hours", "node.id"])))?;
    s.send("another broker", of(BROKER, "9", None))?;
    s.send("no broker", of(BROKER, "one", None))?;
    s.send("unknown kind", of(99, "x", None))?;
    s.reconnect();
    s.send("no resources", DescribeConfigsRequest::default())?;
    s.send("without synonyms", DescribeConfigsRequest { include_synonyms: false, ..of(TOPIC, &name, None) })?;
    if s.version >= 3 {
        s.send("documented", DescribeConfigsRequest { include_documentation: true, ..of(TOPIC, &name, None) })?;
    }
    Ok(())
}

pub fn alter_configs(s: &mut Script<'_>) -> Result<()> {
    let name = s.name("replaced");
    topic(s, &name, 1, &[("retention.ms", "1234567")])?;
    let of = |kind: i8, name: &str, configs: &[(&str, Option<&str>)]| {
        let configs = configs.iter().map(|(name, value)| alter::AlterableConfig {
            name: text(name),
            value: value.map(text),
            ..Default::default()
        });
        let resource = alter::AlterConfigsResource {
            resource_type: kind,
            resource_name: text(name),
            configs: configs.collect(),
            ..Default::default()
        };
        AlterConfigsRequest { resources: vec![resource], ..Default::default() }
    };
    s.send("success", of(TOPIC, &name, &[("max.message.bytes", Some("5000"))]))?;
    s.send("unknown", of(TOPIC, &name, &[("no.such", Some("1"))]))?;
    s.send("bad value", of(TOPIC, &name, &[("retention.ms", Some("x"))]))?;
    s.send("null", of(TOPIC, &name, &[("retention.ms", None)]))?;
    s.send("missing topic", of(TOPIC, NOWHERE, &[("retention.ms", Some("5"))]))?;
    s.send("unknown kind", of(99, "x", &[("a", Some("b"))]))?;
    s.reconnect();
    let checked = AlterConfigsRequest { validate_only: true, ..of(TOPIC, &name, &[("retention.ms", Some("6"))]) };
    s.send("only checked", checked)?;
    // The same resource twice is left out: the reference then never answers, which nobody should copy.
    Ok(())
}

pub fn incremental_alter_configs(s: &mut Script<'_>) -> Result<()> {
    const SET: i8 = 0;
    const DELETE: i8 = 1;
    const APPEND: i8 = 2;
    const SUBTRACT: i8 = 3;
    let name = s.name("altered");
    topic(s, &name, 1, &[])?;
    let of = |kind: i8, name: &str, configs: &[(&str, i8, Option<&str>)]| {
        let configs = configs.iter().map(|(name, operation, value)| incremental::AlterableConfig {
            name: text(name),
            config_operation: *operation,
            value: value.map(text),
            ..Default::default()
        });
        let resource = incremental::AlterConfigsResource {
            resource_type: kind,
            resource_name: text(name),
            configs: configs.collect(),
            ..Default::default()
        };
        IncrementalAlterConfigsRequest { resources: vec![resource], ..Default::default() }
    };
    s.send("success", of(TOPIC, &name, &[("retention.ms", SET, Some("5000"))]))?;
    s.send("append", of(TOPIC, &name, &[("cleanup.policy", APPEND, Some("compact"))]))?;
    s.send("subtract", of(TOPIC, &name, &[("cleanup.policy", SUBTRACT, Some("compact"))]))?;
    s.send("delete", of(TOPIC, &name, &[("retention.ms", DELETE, None)]))?;
    s.send("append to no list", of(TOPIC, &name, &[("retention.ms", APPEND, Some("1"))]))?;
    s.send("set to null", of(TOPIC, &name, &[("retention.ms", SET, None)]))?;
    s.send("unknown operation", of(TOPIC, &name, &[("retention.ms", 9, Some("1"))]))?;
    s.reconnect();
    let mut beside = of(TOPIC, &name, &[("retention.ms", SET, Some("7000"))]);
    beside.resources.extend(of(TOPIC, NOWHERE, &[("retention.ms", 9, Some("1"))]).resources);
    s.send("unknown operation beside a good one", beside)?;
    s.reconnect();
    s.send("unknown", of(TOPIC, &name, &[("no.such", SET, Some("1"))]))?;
    s.send("bad value", of(TOPIC, &name, &[("retention.ms", SET, Some("x"))]))?;
    s.send("twice", of(TOPIC, &name, &[("retention.ms", SET, Some("1")), ("retention.ms", SET, Some("2"))]))?;
    s.send("missing topic", of(TOPIC, NOWHERE, &[("retention.ms", SET, Some("5"))]))?;
    s.send("missing broker", of(BROKER, "9", &[("log.retention.ms", SET, Some("5"))]))?;
    s.send("read only", of(BROKER, "1", &[("num.partitions", SET, Some("5"))]))?;
    let group = of(32, "a-group", &[("consumer.session.timeout.ms", SET, Some("50000"))]);
    s.send("a group", group)?;
    let checked = of(TOPIC, &name, &[("retention.ms", SET, Some("6"))]);
    s.send("only checked", IncrementalAlterConfigsRequest { validate_only: true, ..checked })?;
    Ok(())
}

pub fn list_config_resources(s: &mut Script<'_>) -> Result<()> {
    // Client metrics: the one kind that version 0 lists.
    let kinds = |kinds: &[i8]| ListConfigResourcesRequest { resource_types: kinds.to_vec(), ..Default::default() };
    s.send("success", kinds(if s.version >= 1 { &[16] } else { &[] }))?;
    if s.version >= 1 {
        s.send("brokers", kinds(&[BROKER]))?;
        s.send("unknown kind", kinds(&[99]))?;
    }
    Ok(())
}

/// Offsets and times of the metadata log and the names of its hosts say nothing about the answer's shape.
pub fn hide_progress(_: &Script<'_>, value: &mut Value) {
    crate::differential::mask::hide_fields(value, &["HighWatermark", "LogEndOffset", "LeaderEpoch", "Host"]);
}

pub fn describe_quorum(s: &mut Script<'_>) -> Result<()> {
    let of = |name: &str, partition: i32| DescribeQuorumRequest {
        topics: vec![TopicData {
            topic_name: text(name),
            partitions: vec![PartitionData { partition_index: partition, ..Default::default() }],
            ..Default::default()
        }],
        ..Default::default()
    };
    s.send("success", of("__cluster_metadata", 0))?;
    s.send("another partition", of("__cluster_metadata", 3))?;
    s.send("another topic", of(NOWHERE, 0))?;
    s.send("no topics", DescribeQuorumRequest::default())?;
    Ok(())
}

pub fn update_features(s: &mut Script<'_>) -> Result<()> {
    let of = |feature: &str, level: i16| UpdateFeaturesRequest {
        feature_updates: vec![FeatureUpdateKey {
            feature: text(feature),
            max_version_level: level,
            upgrade_type: 1,
            ..Default::default()
        }],
        timeout_ms: 10_000,
        ..Default::default()
    };
    s.send("to where it is", of("metadata.version", 33))?;
    s.send("too high", of("metadata.version", 99))?;
    s.send("a downgrade called upgrade", of("metadata.version", 20))?;
    s.send("unknown", of("no.such.version", 1))?;
    s.send("negative", of("metadata.version", -1))?;
    s.send("none", UpdateFeaturesRequest { feature_updates: vec![], ..of("", 0) })?;
    if s.version >= 1 {
        s.send("only checked", UpdateFeaturesRequest { validate_only: true, ..of("metadata.version", 33) })?;
        let mut odd = of("metadata.version", 33);
        odd.feature_updates[0].upgrade_type = 9;
        s.send("unknown kind of upgrade", odd)?;
    }
    Ok(())
}

pub fn unregister_broker(s: &mut Script<'_>) -> Result<()> {
    // The one broker there is stays: taking it away is a matter for a cluster.
    s.send("missing broker", UnregisterBrokerRequest { broker_id: 9, ..Default::default() })?;
    s.send("negative broker", UnregisterBrokerRequest { broker_id: -1, ..Default::default() })?;
    Ok(())
}
