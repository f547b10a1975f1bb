//! Clients' requests: topics, settings, the quorum, and what answers wait for.

mod common;

use base::NodeId;
use bytes::Bytes;
use common::plane::Plane;
use common::{World, options};
use link::{ConfigResource, Down, Up, ViewChange};
use pollux_node::Event;
use std::time::Duration;
use wire::messages::create_topics_request::CreatableTopic;
use wire::messages::describe_configs_request::DescribeConfigsResource;
use wire::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use wire::messages::*;
use wire::{ApiKey, ErrorCode, KafkaString};

const TOPIC: i8 = 2;
const BROKER: i8 = 4;

fn topic(name: &str, partitions: i32) -> CreateTopicsRequest {
    let topic =
        CreatableTopic { name: name.into(), num_partitions: partitions, replication_factor: -1, ..Default::default() };
    CreateTopicsRequest { topics: vec![topic], timeout_ms: 1000, ..Default::default() }
}

fn describe(kind: i8, name: &str, keys: &[&str]) -> DescribeConfigsRequest {
    let resource = DescribeConfigsResource {
        resource_type: kind,
        resource_name: name.into(),
        configuration_keys: (!keys.is_empty()).then(|| keys.iter().map(|key| (*key).into()).collect()),
        ..Default::default()
    };
    DescribeConfigsRequest { resources: vec![resource], include_synonyms: true, ..Default::default() }
}

fn set(kind: i8, name: &str, key: &str, value: &str) -> AlterConfigsResource {
    let config =
        AlterableConfig { name: key.into(), config_operation: 0, value: Some(value.into()), ..Default::default() };
    AlterConfigsResource {
        resource_type: kind,
        resource_name: name.into(),
        configs: vec![config],
        ..Default::default()
    }
}

fn alter(world: &mut World, resources: Vec<AlterConfigsResource>) -> Vec<(String, i16, Option<String>)> {
    let request = IncrementalAlterConfigsRequest { resources, ..Default::default() };
    let response = world.ask(1, &request);
    let told = |message: &Option<KafkaString>| message.as_ref().map(|message| message.to_string());
    response.responses.iter().map(|r| (r.resource_name.to_string(), r.error_code, told(&r.error_message))).collect()
}

#[test]
fn a_topic_is_answered_once_the_dataplane_has_it() {
    let mut world = World::served();
    world.plane().silent = true;
    let id = world.forward(7, &topic("t", 4));
    world.settle();
    assert!(world.answer(id, ApiKey::CreateTopics, 7).is_none(), "it is committed, but not in force");
    assert_eq!(world.plane().duty("t", 3).leader, Some(NodeId(1)));
    assert_eq!(world.status().answers_held, 1);
    world.plane().silent = false;
    world.settle();
    let answer = world.answer(id, ApiKey::CreateTopics, 7).expect("now it is");
    let wire::ResponseKind::CreateTopics(answer) = answer else { panic!("another answer") };
    let made = &answer.topics[0];
    assert_eq!((made.error_code, made.num_partitions, made.replication_factor), (0, 4, 1));
    assert_eq!(made.topic_id, world.plane().topics["t"].id.0);
    assert!(!made.configs.as_ref().unwrap().is_empty());
}

#[test]
fn an_answer_waits_for_the_disk() {
    let mut world = World::served();
    world.disk_stalls = true;
    let id = world.forward(7, &topic("t", 1));
    world.settle();
    assert!(world.answer(id, ApiKey::CreateTopics, 7).is_none());
    assert!(world.plane().duties.is_empty(), "nothing of an uncommitted record leaves");
    world.disk_stalls = false;
    world.settle();
    assert!(world.answer(id, ApiKey::CreateTopics, 7).is_some());
}

#[test]
fn errors_are_answered_at_once_and_change_nothing() {
    let mut world = World::served();
    world.ask(7, &topic("t", 1));
    let end = world.status().log_end;
    assert_eq!(world.ask(7, &topic("t", 1)).topics[0].error_code, ErrorCode::TopicAlreadyExists.code());
    assert_eq!(world.ask(7, &topic("a b", 1)).topics[0].error_code, ErrorCode::InvalidTopicException.code());
    assert_eq!(world.status().log_end, end);
}

#[test]
fn a_topic_is_deleted_by_an_explicit_removal() {
    let mut world = World::served();
    world.ask(7, &topic("t", 2));
    let id = world.plane().topics["t"].id;
    let state = delete_topics_request::DeleteTopicState { name: Some("t".into()), ..Default::default() };
    let request = DeleteTopicsRequest { topics: vec![state], timeout_ms: 1000, ..Default::default() };
    let response = world.ask(6, &request);
    assert_eq!((response.responses[0].error_code, response.responses[0].topic_id), (0, id.0));
    assert!(world.plane().duties.is_empty() && world.plane().topics.is_empty());
    assert_eq!(world.plane().removed.len(), 2);
}

#[test]
fn a_dataplane_that_was_away_is_told_what_was_removed() {
    told_what_was_removed(Plane::reconnected);
}

/// It was killed: the new run does not know what the last one had applied.
#[test]
fn a_new_run_of_a_dataplane_is_told_what_was_removed() {
    told_what_was_removed(|plane| plane.restarted(2));
}

fn told_what_was_removed(back: impl FnOnce(Plane) -> Plane) {
    let mut world = World::served();
    world.ask(7, &topic("t", 2));
    world.ask(7, &topic("kept", 1));
    // The deletion commits while the link is down: asked for before, on the disk after.
    world.disk_stalls = true;
    let state = delete_topics_request::DeleteTopicState { name: Some("t".into()), ..Default::default() };
    let request = DeleteTopicsRequest { topics: vec![state], timeout_ms: 1000, ..Default::default() };
    world.forward(6, &request);
    let plane = world.disconnect();
    world.disk_stalls = false;
    world.settle();
    world.connect(back(plane));
    world.settle();
    assert_eq!(world.plane().removed.len(), 2);
    assert_eq!(world.plane().duties.len(), 1);
    assert!(world.plane().answers.is_empty(), "nobody waits for the answer any more");
}

#[test]
fn partitions_are_added() {
    let mut world = World::served();
    world.ask(7, &topic("t", 1));
    let more = create_partitions_request::CreatePartitionsTopic {
        name: "t".into(),
        count: 3,
        assignments: None,
        ..Default::default()
    };
    let request = CreatePartitionsRequest { topics: vec![more], timeout_ms: 1000, ..Default::default() };
    assert_eq!(world.ask(3, &request).results[0].error_code, 0);
    assert_eq!(world.plane().duties.len(), 3);
}

#[test]
fn settings_of_topics_are_described_and_altered() {
    let mut world = World::served();
    world.ask(7, &topic("t", 1));
    let all = world.ask(4, &describe(TOPIC, "t", &[]));
    assert!(all.results[0].configs.len() > 30);
    let one = |world: &mut World| {
        let answer = world.ask(4, &describe(TOPIC, "t", &["retention.ms"]));
        let config = answer.results[0].configs[0].clone();
        (config.value.unwrap().to_string(), config.config_source)
    };
    assert_eq!(one(&mut world), ("604800000".to_owned(), 5));
    assert_eq!(alter(&mut world, vec![set(TOPIC, "t", "retention.ms", "60000")]), [("t".to_owned(), 0, None)]);
    assert_eq!(one(&mut world), ("60000".to_owned(), 1), "an answered change is there");
    assert_eq!(world.plane().duty("t", 0).config, [("retention.ms".to_owned(), "60000".to_owned())]);
    let refused = alter(&mut world, vec![set(TOPIC, "t", "retention.ms", "soon")]);
    assert_eq!(refused[0].1, ErrorCode::InvalidConfig.code());
    for (kind, name, code) in [
        (TOPIC, "absent", ErrorCode::UnknownTopicOrPartition),
        (TOPIC, "a b", ErrorCode::InvalidTopicException),
        (BROKER, "7", ErrorCode::InvalidRequest),
        (BROKER, "x", ErrorCode::InvalidRequest),
        (77, "x", ErrorCode::InvalidRequest),
    ] {
        let answer = world.ask(4, &describe(kind, name, &[]));
        assert_eq!(answer.results[0].error_code, code.code(), "{kind} {name}");
        assert_eq!((answer.results[0].resource_type, &answer.results[0].resource_name), (kind, &name.into()));
    }
}

#[test]
fn settings_of_the_broker_hold_at_once() {
    let mut world = World::served();
    let value = |world: &mut World, name: &str| {
        let answer = world.ask(4, &describe(BROKER, name, &["message.max.bytes"]));
        let config = answer.results[0].configs.first().cloned();
        config.map(|config| (config.value.unwrap().to_string(), config.config_source))
    };
    assert_eq!(value(&mut world, "1"), Some(("1048588".to_owned(), 5)));
    assert_eq!(value(&mut world, ""), None);
    alter(&mut world, vec![set(BROKER, "", "message.max.bytes", "2000000")]);
    assert_eq!(value(&mut world, ""), Some(("2000000".to_owned(), 3)));
    assert_eq!(value(&mut world, "1"), Some(("2000000".to_owned(), 3)));
    alter(&mut world, vec![set(BROKER, "1", "message.max.bytes", "3000000")]);
    assert_eq!(value(&mut world, "1"), Some(("3000000".to_owned(), 2)));
    let told = world.plane().configs.last().cloned();
    let entries = vec![("message.max.bytes".to_owned(), "3000000".to_owned())];
    assert_eq!(told, Some(ViewChange::Config { resource: ConfigResource::Broker(NodeId(1)), entries }));
    // They outlive the process.
    let mut world = world.restart_node();
    assert_eq!(value(&mut world, "1"), Some(("3000000".to_owned(), 2)));
}

#[test]
fn each_resource_is_answered_in_the_order_of_the_request() {
    let mut world = World::served();
    world.ask(7, &topic("t", 1));
    let twice = set(TOPIC, "twice", "retention.ms", "1");
    let answers = alter(
        &mut world,
        vec![
            set(BROKER, "9", "message.max.bytes", "2000000"),
            set(TOPIC, "t", "retention.ms", "5000"),
            set(BROKER, "1", "process.roles", "broker"),
            twice.clone(),
            twice,
            set(99, "x", "y", "z"),
            set(TOPIC, "absent", "retention.ms", "1"),
        ],
    );
    let codes: Vec<(&str, i16)> = answers.iter().map(|(name, code, _)| (name.as_str(), *code)).collect();
    let (invalid, unknown) = (ErrorCode::InvalidRequest.code(), ErrorCode::UnknownTopicOrPartition.code());
    assert_eq!(
        codes,
        [
            ("9", invalid),
            ("t", 0),
            ("1", invalid),
            ("twice", invalid),
            ("twice", invalid),
            ("x", invalid),
            ("absent", unknown)
        ]
    );
    assert_eq!(answers[0].2.as_deref(), Some("Unexpected broker id, expected 1, but received 9"));
    assert_eq!(answers[3].2.as_deref(), Some("Each resource must appear at most once."));
    // Where nothing is left for the controller, nothing is asked of it.
    let answers = alter(&mut world, vec![set(BROKER, "x", "message.max.bytes", "2000000")]);
    assert_eq!(answers[0].2.as_deref(), Some("Node id must be an integer, but it is: x"));
}

#[test]
fn the_older_request_replaces_all() {
    let mut world = World::served();
    world.ask(7, &topic("t", 1));
    alter(&mut world, vec![set(TOPIC, "t", "retention.ms", "5000")]);
    let config = alter_configs_request::AlterableConfig {
        name: "segment.ms".into(),
        value: Some("70000".into()),
        ..Default::default()
    };
    let resource = alter_configs_request::AlterConfigsResource {
        resource_type: TOPIC,
        resource_name: "t".into(),
        configs: vec![config],
        ..Default::default()
    };
    let request = AlterConfigsRequest { resources: vec![resource], ..Default::default() };
    assert_eq!(world.ask(2, &request).responses[0].error_code, 0);
    assert_eq!(world.plane().duty("t", 0).config, [("segment.ms".to_owned(), "70000".to_owned())]);
}

#[test]
fn resources_are_listed() {
    let mut world = World::served();
    world.ask(7, &topic("t", 1));
    let listed =
        world.ask(1, &ListConfigResourcesRequest { resource_types: vec![TOPIC, BROKER], ..Default::default() });
    let found: Vec<_> =
        listed.config_resources.iter().map(|r| (r.resource_type, r.resource_name.to_string())).collect();
    assert_eq!(found, [(BROKER, "1".to_owned()), (TOPIC, "t".to_owned())]);
}

#[test]
fn the_quorum_is_described() {
    let mut world = World::served();
    let partition = describe_quorum_request::PartitionData::default();
    let asked = |name: &str| {
        let topic = describe_quorum_request::TopicData {
            topic_name: name.into(),
            partitions: vec![partition.clone()],
            ..Default::default()
        };
        DescribeQuorumRequest { topics: vec![topic], ..Default::default() }
    };
    for version in 0..=2 {
        let answer = world.ask(version, &asked("__cluster_metadata"));
        let told = &answer.topics[0].partitions[0];
        assert_eq!((answer.error_code, told.error_code, told.leader_id, told.leader_epoch), (0, 0, 1, 1));
        assert_eq!(told.high_watermark, world.status().high_watermark);
        assert_eq!(told.current_voters[0].log_end_offset, world.status().log_end);
        assert_eq!(answer.nodes.len(), usize::from(version >= 2));
        let answer = world.ask(version, &asked("t"));
        assert_eq!(answer.topics[0].partitions[0].error_code, ErrorCode::UnknownTopicOrPartition.code());
    }
}

#[test]
fn topics_are_created_on_use() {
    let mut world = World::start(options(&["num.partitions=3"]), common::formatted(), base::Now::default()).unwrap();
    world.connect(Plane::new(1));
    world.settle();
    let used = |names: &[&str]| Up::AutoCreate {
        topics: names.iter().map(|name| (*name).to_owned()).collect(),
        principal: "User:ANONYMOUS".into(),
        client_host: "/127.0.0.1".into(),
    };
    let names = ["u", "not a name", "__consumer_offsets", "__transaction_state"];
    world.event(Event::Up(used(&names)));
    world.event(Event::Up(used(&names)));
    world.settle();
    assert_eq!(world.status().topics, 2);
    assert_eq!(world.plane().topics["u"].partitions.len(), 3);
    let offsets = world.plane().duty("__consumer_offsets", 49).clone();
    let config = |name: &str| offsets.config.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
    assert_eq!(config("cleanup.policy").as_deref(), Some("compact"));
    assert_eq!(config("compression.type").as_deref(), Some("producer"));
    assert_eq!(config("segment.bytes").as_deref(), Some("104857600"));
    // What failed may be tried again.
    world.event(Event::Up(used(&["not a name", "v"])));
    world.settle();
    assert_eq!(world.status().topics, 3);
}

#[test]
fn an_answer_larger_than_a_message_comes_in_parts() {
    let mut world = World::served();
    let resources = (0..250).map(|_| describe(BROKER, "1", &[]).resources.remove(0)).collect();
    let request = DescribeConfigsRequest { resources, include_synonyms: true, ..Default::default() };
    let answer = world.ask(4, &request);
    assert_eq!(answer.results.len(), 250);
    assert!(world.plane().heard.iter().any(|down| matches!(down, Down::AnswerPart { .. })));
    let mut out = Vec::new();
    for down in &world.plane().heard {
        out.clear();
        link::frame::encode(down, &mut out);
    }
}

#[test]
fn what_cannot_be_read_closes_the_connection() {
    let mut world = World::served();
    let junk = Bytes::from_static(&[0xFF; 40]);
    for (key, version) in [(19, 7), (19, 99), (19, -1), (999, 0), (-1, 0), (32, 4), (10, 6), (11, 9), (0, 9), (62, 4)] {
        let id = world.forward_bytes(key, version, junk.clone());
        world.settle();
        assert!(world.is_closed(id), "API {key} version {version}");
    }
    // Brokers' requests are not for clients, however well they are written.
    let request = BrokerHeartbeatRequest { broker_id: 1, want_fence: true, ..Default::default() };
    let id = world.forward(1, &request);
    world.settle();
    assert!(world.is_closed(id));
    assert_eq!(world.status().malformed_requests, 11);
    let mut random = base::Random::from_seed(5);
    for _ in 0..3000 {
        let mut body = vec![0; random.below(60) as usize];
        random.fill(&mut body);
        let (key, version) = (random.below(93) as i16, random.below(12) as i16);
        world.forward_bytes(key, version, body.into());
        world.settle();
        world.plane().answers.clear();
        world.plane().heard.truncate(1);
    }
    world.pass(Duration::from_secs(3));
    assert!(world.status().ready);
}

/// A list as long as a value may be, times the topics: more than one batch of the metadata log takes.
#[test]
fn a_change_that_no_batch_takes_is_undone() {
    let mut world = World::served();
    for number in 0..300 {
        world.ask(7, &topic(&format!("t{number}"), 1));
    }
    let end = world.status().log_end;
    let long = vec!["0:1"; 8000].join(",");
    let key = "leader.replication.throttled.replicas";
    let resources = (0..300).map(|number| set(TOPIC, &format!("t{number}"), key, &long)).collect();
    let request = IncrementalAlterConfigsRequest { resources, ..Default::default() };
    let id = world.forward(1, &request);
    world.settle();
    assert!(world.is_closed(id), "there is no answer to what was begun and is not done");
    assert_eq!(world.status().log_end, end);
    assert!(world.status().active_controller);
    let answer = world.ask(4, &describe(TOPIC, "t7", &[key]));
    assert_eq!(answer.results[0].configs[0].value.as_deref(), Some(""));
    assert_eq!(alter(&mut world, vec![set(TOPIC, "t7", key, "0:1")])[0].1, 0);
    world.pass(Duration::from_secs(20));
    assert!(world.status().ready);
}
