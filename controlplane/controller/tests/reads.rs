//! What any node answers from a published image.

mod common;

use base::{NodeId, Random};
use common::{golden, now, options, recording};
use image::MetadataImage;
use pollux_controller::{Controller, Reading, settings_under};
use wire::messages::describe_configs_request::DescribeConfigsResource;
use wire::messages::*;

/// The image at the end of a recording: brokers, topics, overrides of all kinds.
fn image() -> MetadataImage {
    let (_, steps) = recording(&golden("racks.txt.gz"));
    let records: Vec<image::Record> = steps.into_iter().flat_map(|step| step.records).collect();
    let mut follower = Controller::new(options());
    follower.load_batch(0, &records).unwrap();
    follower.image().clone()
}

fn ask(kind: i8, name: &str, keys: Option<&[&str]>) -> DescribeConfigsResource {
    let configuration_keys = keys.map(|keys| keys.iter().map(|key| (*key).into()).collect());
    DescribeConfigsResource {
        resource_type: kind,
        resource_name: name.into(),
        configuration_keys,
        ..Default::default()
    }
}

#[test]
fn settings_are_described_with_their_sources() {
    let image = image();
    let (settings, _) = settings_under(&options().settings, &image, NodeId(1));
    let reading = Reading { image: &image, settings: &settings, node: NodeId(1), listener: "PLAINTEXT" };
    let set = |kind: i8| {
        image.configs.iter().find(|(resource, _)| resource.resource_type == kind && !resource.name.is_empty())
    };
    let (topic, overrides) = set(2).expect("a topic has overrides");
    let (key, value) = overrides.iter().next().unwrap();
    let request = DescribeConfigsRequest {
        resources: vec![
            ask(2, &topic.name, Some(&[key.as_str(), "file.delete.delay.ms"])),
            ask(2, &topic.name, None),
            ask(2, "missing", None),
            ask(2, "a b", None),
            ask(4, "1", Some(&[])),
            ask(4, "2", None),
            ask(4, "x", None),
            ask(4, "", None),
            ask(32, "", None),
            ask(77, "", None),
        ],
        include_synonyms: true,
        ..Default::default()
    };
    let results = reading.describe_configs(&request).results;
    let codes: Vec<i16> = results.iter().map(|result| result.error_code).collect();
    assert_eq!(codes, [0, 0, 3, 17, 0, 42, 42, 0, 42, 42]);
    assert_eq!(results[0].configs.len(), 2);
    let entry = results[0].configs.iter().find(|entry| entry.name == key.as_str()).unwrap();
    assert_eq!((entry.value.as_deref(), entry.config_source), (Some(value.as_str()), 1));
    assert_eq!((entry.synonyms[0].source, entry.documentation.is_none()), (1, true));
    assert!(results[1].configs.len() > 35 && results[4].configs.len() > 300);
    let message = results[5].error_message.as_deref();
    assert_eq!(message, Some("Unexpected broker id, expected 1 or empty string, but received 2"));
    assert!(results[7].configs.iter().any(|entry| entry.name == "min.insync.replicas"));
}

#[test]
fn configured_resources_are_listed_by_kind() {
    let image = image();
    let reading = Reading { image: &image, settings: &options().settings, node: NodeId(1), listener: "PLAINTEXT" };
    let list = |version, kinds: &[i8]| {
        let request = ListConfigResourcesRequest { resource_types: kinds.to_vec(), ..Default::default() };
        reading.list_config_resources(version, &request)
    };
    assert_eq!(list(1, &[2]).config_resources.len(), image.topics.len());
    assert_eq!(list(1, &[4]).config_resources.len(), image.cluster.brokers.len());
    assert_eq!(list(0, &[]).config_resources, list(1, &[16]).config_resources);
    let kinds: std::collections::BTreeSet<i8> = list(1, &[]).config_resources.iter().map(|r| r.resource_type).collect();
    assert!(kinds.contains(&2) && kinds.contains(&4) && kinds.contains(&8));
    assert_eq!((list(0, &[2]).error_code, list(1, &[99]).error_code), (35, 35));
    let elsewhere = Reading { listener: "NOWHERE", ..reading };
    let request = ListConfigResourcesRequest { resource_types: vec![4], ..Default::default() };
    assert!(elsewhere.list_config_resources(1, &request).config_resources.is_empty());
}

#[test]
fn controllers_describe_themselves_on_their_own_listener() {
    let mut controller = Controller::new(options());
    controller.claim(1, 0, now(0)).unwrap();
    let listener = controller_registration_request::Listener {
        name: "CONTROLLER".into(),
        host: "c1".into(),
        port: 9093,
        ..Default::default()
    };
    controller.register_controller(&ControllerRegistrationRequest {
        controller_id: 1,
        incarnation_id: base::Uuid::random(&mut Random::from_seed(1)),
        listeners: vec![listener],
        ..Default::default()
    });
    let settings = options().settings;
    let reading = Reading { image: controller.image(), settings: &settings, node: NodeId(1), listener: "CONTROLLER" };
    let ask = |endpoint_type| {
        let request = DescribeClusterRequest { endpoint_type, ..Default::default() };
        reading.describe_controllers("c", Some(NodeId(1)), 2, &request)
    };
    let told = ask(2);
    assert_eq!((told.error_code, told.controller_id, told.brokers.len()), (0, 1, 1));
    assert_eq!((told.brokers[0].host.as_str(), told.brokers[0].port), ("c1", 9093));
    assert_eq!(ask(1).error_code, wire::ErrorCode::MismatchedEndpointType.code());
    assert_eq!(ask(7).error_code, wire::ErrorCode::UnsupportedEndpointType.code());
}
