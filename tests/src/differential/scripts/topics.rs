//! Topics: made, described, changed, deleted.

use super::{NO_SUCH_ID, NOWHERE, filled, text, topic};
use crate::Result;
use crate::differential::Script;
use base::Uuid;
use wire::messages::alter_partition_reassignments_request::{ReassignablePartition, ReassignableTopic};
use wire::messages::create_partitions_request::{CreatePartitionsAssignment, CreatePartitionsTopic};
use wire::messages::create_topics_request::{CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfig};
use wire::messages::delete_topics_request::DeleteTopicState;
use wire::messages::describe_log_dirs_request::DescribableLogDirTopic;
use wire::messages::describe_topic_partitions_request::{Cursor, TopicRequest};
use wire::messages::elect_leaders_request::TopicPartitions;
use wire::messages::list_partition_reassignments_request::ListPartitionReassignmentsTopics;
use wire::messages::metadata_request::MetadataRequestTopic;
use wire::messages::{
    AlterPartitionReassignmentsRequest, CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest,
    DescribeLogDirsRequest, DescribeTopicPartitionsRequest, ElectLeadersRequest, ListPartitionReassignmentsRequest,
    MetadataRequest,
};

pub fn metadata(s: &mut Script<'_>) -> Result<()> {
    let name = s.name("metadata");
    let id = topic(s, &name, 3, &[])?;
    let named = |name: &str| MetadataRequestTopic { name: Some(text(name)), ..Default::default() };
    // Before version 4 a request cannot say no, and a missing topic is made.
    let auto = s.version < 4;
    let of = |topics: Vec<MetadataRequestTopic>| MetadataRequest {
        topics: Some(topics),
        allow_auto_topic_creation: auto,
        ..Default::default()
    };
    s.send("success", of(vec![named(&name)]))?;
    s.send("invalid name", of(vec![named("in valid")]))?;
    s.send("empty name", of(vec![named("")]))?;
    s.send("dots", of(vec![named("..")]))?;
    s.send("long name", of(vec![named(&"x".repeat(250))]))?;
    if s.version >= 1 {
        s.send("no topics", of(vec![]))?;
    }
    if s.version >= 4 {
        s.send("missing", of(vec![named("not-there"), named(&name)]))?;
        s.send("missing again", of(vec![named("not-there")]))?;
    }
    if s.version >= 8 {
        s.send("operations", MetadataRequest { include_topic_authorized_operations: true, ..of(vec![named(&name)]) })?;
    }
    if (8..=10).contains(&s.version) {
        let request = MetadataRequest { include_cluster_authorized_operations: true, ..of(vec![named(&name)]) };
        s.send("cluster operations", request)?;
    }
    if s.version >= 10 {
        let by_id = |id: Uuid| MetadataRequestTopic { topic_id: id, name: None, ..Default::default() };
        s.send("by id", of(vec![by_id(id)]))?;
        s.send("by an unknown id", of(vec![by_id(NO_SUCH_ID)]))?;
        s.send("by no id and no name", of(vec![by_id(Uuid::ZERO)]))?;
        s.reconnect();
    }
    Ok(())
}

pub fn create_topics(s: &mut Script<'_>) -> Result<()> {
    let of = |topics: Vec<CreatableTopic>| CreateTopicsRequest { topics, timeout_ms: 30_000, ..Default::default() };
    let plain = |name: &str| CreatableTopic {
        name: text(name),
        num_partitions: 2,
        replication_factor: 1,
        ..Default::default()
    };
    let set = |name: &str, value: Option<&str>| CreatableTopicConfig {
        name: text(name),
        value: value.map(text),
        ..Default::default()
    };
    let made = s.name("made");
    s.send("success", of(vec![plain(&made)]))?;
    s.send("exists", of(vec![plain(&made)]))?;
    if s.version >= 4 {
        let default = CreatableTopic { num_partitions: -1, replication_factor: -1, ..plain(&s.name("defaults")) };
        s.send("defaults", of(vec![CreatableTopic { configs: vec![set("retention.ms", Some("777"))], ..default }]))?;
    }
    let tried = s.name("tried");
    let refused: Vec<(&str, CreatableTopic)> = vec![
        ("bad name", plain("bad name")),
        ("empty name", plain("")),
        ("no partitions", CreatableTopic { num_partitions: 0, ..plain(&tried) }),
        ("negative partitions", CreatableTopic { num_partitions: -2, ..plain(&tried) }),
        ("no replicas", CreatableTopic { replication_factor: 0, ..plain(&tried) }),
        ("two replicas", CreatableTopic { replication_factor: 2, ..plain(&tried) }),
        ("unknown setting", CreatableTopic { configs: vec![set("no.such", Some("1"))], ..plain(&tried) }),
        ("bad setting", CreatableTopic { configs: vec![set("retention.ms", Some("x"))], ..plain(&tried) }),
        ("null setting", CreatableTopic { configs: vec![set("retention.ms", None)], ..plain(&tried) }),
        ("assignment and counts", CreatableTopic { assignments: assigned(&[(0, &[1])]), ..plain(&tried) }),
    ];
    for (label, topic) in refused {
        s.send(label, of(vec![topic]))?;
        s.reconnect();
    }
    for time in [0, -1] {
        let never = plain(&s.name("never"));
        s.send(&format!("no time: {time}"), CreateTopicsRequest { timeout_ms: time, ..of(vec![never]) })?;
    }
    for (label, assignments) in [
        ("assigned", assigned(&[(0, &[1]), (1, &[1])])),
        ("assigned elsewhere", assigned(&[(0, &[9])])),
        ("assigned twice", assigned(&[(0, &[1, 1])])),
        ("assigned with a gap", assigned(&[(0, &[1]), (2, &[1])])),
        ("assigned to nobody", assigned(&[(0, &[])])),
    ] {
        let topic = CreatableTopic {
            name: text(&s.name(&label.replace(' ', "-"))),
            num_partitions: -1,
            replication_factor: -1,
            assignments,
            ..Default::default()
        };
        s.send(label, of(vec![topic]))?;
    }
    s.send("twice in one request", of(vec![plain(&s.name("twice")), plain(&s.name("twice")), plain(&s.name("once"))]))?;
    s.send("only checked", CreateTopicsRequest { validate_only: true, ..of(vec![plain(&tried)]) })?;
    s.send("no topics", of(vec![]))?;
    Ok(())
}

fn assigned(partitions: &[(i32, &[i32])]) -> Vec<CreatableReplicaAssignment> {
    let one = |(index, brokers): &(i32, &[i32])| CreatableReplicaAssignment {
        partition_index: *index,
        broker_ids: brokers.to_vec(),
        ..Default::default()
    };
    partitions.iter().map(one).collect()
}

pub fn delete_topics(s: &mut Script<'_>) -> Result<()> {
    let of = |names: &[&str]| DeleteTopicsRequest {
        topic_names: names.iter().map(|name| text(name)).collect(),
        topics: names.iter().map(|name| DeleteTopicState { name: Some(text(name)), ..Default::default() }).collect(),
        timeout_ms: 30_000,
        ..Default::default()
    };
    let fit = |request: DeleteTopicsRequest, version: i16| {
        if version < 6 { DeleteTopicsRequest { topics: vec![], ..request } } else { request }
    };
    let version = s.version;
    let name = s.name("doomed");
    topic(s, &name, 2, &[])?;
    s.send("success", fit(of(&[&name]), version))?;
    s.send("again", fit(of(&[&name]), version))?;
    s.send("missing", fit(of(&[NOWHERE]), version))?;
    s.send("bad name", fit(of(&["bad name"]), version))?;
    s.send("none", fit(of(&[]), version))?;
    for time in [0, -1] {
        let request = fit(of(&[&s.name("spared"), NOWHERE]), version);
        s.send(&format!("no time: {time}"), DeleteTopicsRequest { timeout_ms: time, ..request })?;
    }
    let twice = s.name("doomed-twice");
    topic(s, &twice, 1, &[])?;
    s.send("twice in one request", fit(of(&[&twice, &twice]), version))?;
    if version >= 6 {
        let by_id = |name: Option<&str>, id: Uuid| DeleteTopicsRequest {
            topics: vec![DeleteTopicState { name: name.map(text), topic_id: id, ..Default::default() }],
            timeout_ms: 30_000,
            ..Default::default()
        };
        let other = s.name("doomed-by-id");
        let id = topic(s, &other, 1, &[])?;
        s.send("by name and id", by_id(Some(&other), id))?;
        s.send("by id", by_id(None, id))?;
        s.send("by an unknown id", by_id(None, NO_SUCH_ID))?;
        s.send("by nothing", by_id(None, Uuid::ZERO))?;
        s.send("no time, by id", DeleteTopicsRequest { timeout_ms: 0, ..by_id(None, NO_SUCH_ID) })?;
    }
    Ok(())
}

pub fn create_partitions(s: &mut Script<'_>) -> Result<()> {
    let name = s.name("grows");
    topic(s, &name, 1, &[])?;
    let of = |name: &str, count: i32, assignments: Option<&[&[i32]]>| {
        let assignments = assignments.map(|list| {
            list.iter()
                .map(|ids| CreatePartitionsAssignment { broker_ids: ids.to_vec(), ..Default::default() })
                .collect()
        });
        let topic = CreatePartitionsTopic { name: text(name), count, assignments, ..Default::default() };
        CreatePartitionsRequest { topics: vec![topic], timeout_ms: 30_000, ..Default::default() }
    };
    s.send("success", of(&name, 3, None))?;
    s.send("the same", of(&name, 3, None))?;
    s.send("fewer", of(&name, 2, None))?;
    s.send("none", of(&name, 0, None))?;
    s.send("missing topic", of(NOWHERE, 3, None))?;
    s.send("assigned", of(&name, 4, Some(&[&[1]])))?;
    s.send("assigned elsewhere", of(&name, 5, Some(&[&[9]])))?;
    s.send("assigned too few", of(&name, 7, Some(&[&[1]])))?;
    s.send("assigned to nobody", of(&name, 5, Some(&[&[]])))?;
    for time in [0, -1] {
        s.send(&format!("no time: {time}"), CreatePartitionsRequest { timeout_ms: time, ..of(&name, 8, None) })?;
    }
    s.send("only checked", CreatePartitionsRequest { validate_only: true, ..of(&name, 9, None) })?;
    let mut twice = of(&name, 6, None);
    twice.topics.push(twice.topics[0].clone());
    s.send("twice in one request", twice)?;
    Ok(())
}

pub fn describe_topic_partitions(s: &mut Script<'_>) -> Result<()> {
    let (first, second) = (s.name("described-a"), s.name("described-b"));
    topic(s, &first, 3, &[])?;
    topic(s, &second, 2, &[])?;
    let of = |names: &[&str]| DescribeTopicPartitionsRequest {
        topics: names.iter().map(|name| TopicRequest { name: text(name), ..Default::default() }).collect(),
        response_partition_limit: 2000,
        ..Default::default()
    };
    let cursor = |name: &str, partition: i32| {
        Some(Cursor { topic_name: text(name), partition_index: partition, ..Default::default() })
    };
    s.send("success", of(&[&first, &second]))?;
    s.send("missing", of(&[NOWHERE, &first]))?;
    s.send("bad name", of(&["bad name"]))?;
    s.send("limited", DescribeTopicPartitionsRequest { response_partition_limit: 2, ..of(&[&first, &second]) })?;
    let rest = DescribeTopicPartitionsRequest { cursor: cursor(&first, 2), ..of(&[&first, &second]) };
    s.send("from a cursor", rest)?;
    let wrong = DescribeTopicPartitionsRequest { cursor: cursor(&first, -1), ..of(&[&first]) };
    s.send("from a negative cursor", wrong)?;
    Ok(())
}

pub fn elect_leaders(s: &mut Script<'_>) -> Result<()> {
    let name = s.name("elects");
    topic(s, &name, 1, &[])?;
    let of = |name: &str, partition: i32| ElectLeadersRequest {
        topic_partitions: Some(vec![TopicPartitions {
            topic: text(name),
            partitions: vec![partition],
            ..Default::default()
        }]),
        timeout_ms: 10_000,
        ..Default::default()
    };
    s.send("not needed", of(&name, 0))?;
    s.send("missing partition", of(&name, 3))?;
    s.send("missing topic", of(NOWHERE, 0))?;
    for time in [0, -1] {
        s.send(&format!("no time: {time}"), ElectLeadersRequest { timeout_ms: time, ..of(&name, 0) })?;
        let all = ElectLeadersRequest { timeout_ms: time, topic_partitions: None, ..Default::default() };
        s.send(&format!("no time for all: {time}"), all)?;
    }
    if s.version >= 1 {
        s.send("unclean", ElectLeadersRequest { election_type: 1, ..of(&name, 0) })?;
        s.send("unknown kind", ElectLeadersRequest { election_type: 7, ..of(&name, 0) })?;
    }
    Ok(())
}

pub fn alter_partition_reassignments(s: &mut Script<'_>) -> Result<()> {
    let name = s.name("moves");
    topic(s, &name, 1, &[])?;
    let of = |name: &str, partition: i32, replicas: Option<&[i32]>| {
        let partition = ReassignablePartition {
            partition_index: partition,
            replicas: replicas.map(<[i32]>::to_vec),
            ..Default::default()
        };
        let topic = ReassignableTopic { name: text(name), partitions: vec![partition], ..Default::default() };
        AlterPartitionReassignmentsRequest { timeout_ms: 10_000, topics: vec![topic], ..Default::default() }
    };
    s.send("to where it is", of(&name, 0, Some(&[1])))?;
    s.send("elsewhere", of(&name, 0, Some(&[9])))?;
    s.send("nowhere", of(&name, 0, Some(&[])))?;
    s.send("twice", of(&name, 0, Some(&[1, 1])))?;
    s.send("cancelled", of(&name, 0, None))?;
    s.send("missing partition", of(&name, 4, Some(&[1])))?;
    s.send("missing topic", of(NOWHERE, 0, Some(&[1])))?;
    for time in [0, -1] {
        let request = of(&name, 0, Some(&[1]));
        s.send(&format!("no time: {time}"), AlterPartitionReassignmentsRequest { timeout_ms: time, ..request })?;
    }
    Ok(())
}

pub fn list_partition_reassignments(s: &mut Script<'_>) -> Result<()> {
    let name = s.name("moving");
    topic(s, &name, 1, &[])?;
    let of = |name: &str| ListPartitionReassignmentsRequest {
        topics: Some(vec![ListPartitionReassignmentsTopics {
            name: text(name),
            partition_indexes: vec![0],
            ..Default::default()
        }]),
        timeout_ms: 10_000,
        ..Default::default()
    };
    s.send("none of a topic", of(&name))?;
    s.send("none at all", ListPartitionReassignmentsRequest { topics: None, ..of(&name) })?;
    s.send("missing topic", of(NOWHERE))?;
    Ok(())
}

pub fn describe_log_dirs(s: &mut Script<'_>) -> Result<()> {
    let name = s.name("directories");
    filled(s, &name, &["a"])?;
    let of = |name: &str, partitions: Vec<i32>| DescribeLogDirsRequest {
        topics: Some(vec![DescribableLogDirTopic { topic: text(name), partitions, ..Default::default() }]),
        ..Default::default()
    };
    s.send("success", of(&name, vec![0]))?;
    s.send("missing partition", of(&name, vec![5]))?;
    s.send("missing topic", of(NOWHERE, vec![0]))?;
    s.send("no topics", DescribeLogDirsRequest { topics: Some(vec![]), ..Default::default() })?;
    Ok(())
}
