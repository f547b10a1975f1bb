//! Metadata: brokers, topics and leaders, from the view (KIP-4, KIP-516).

use super::{Asker, is_valid_topic_name, operations};
use view::{Topic, View};
use wire::messages::metadata_request::MetadataRequestTopic;
use wire::messages::metadata_response::{MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic};
use wire::messages::{MetadataRequest, MetadataResponse};
use wire::{ErrorCode, KafkaString};

/// A leader without the asker's listener is LISTENER_NOT_FOUND from here on (KIP-302's numbering of Metadata).
const LISTENER_ERROR_SINCE: i16 = 6;
/// The response has an error of its own from here on.
const ERROR_SINCE: i16 = 13;
/// Topics may be asked for by id from here on.
const TOPIC_IDS_SINCE: i16 = 12;

/// The answer, and the names that should be created: asked for, absent, valid, and allowed by the request. Whether the
/// broker's setting allows it too is the caller's question.
pub fn answer(asker: Asker<'_>, request: &MetadataRequest, version: i16) -> (MetadataResponse, Vec<String>) {
    let mut create = Vec::new();
    let topics = match topics_asked(request, version) {
        Asked::All => {
            let mut topics: Vec<_> = asker.view.topics().collect();
            topics.sort_by(|a, b| a.name.cmp(&b.name));
            topics.into_iter().map(|topic| describe(asker, topic, request, version)).collect()
        }
        Asked::Invalid(error) => return (refused(request, version, error), Vec::new()),
        Asked::These => {
            let asked = request.topics.as_deref().unwrap_or_default();
            let mut answers = Vec::with_capacity(asked.len());
            let mut seen = std::collections::HashSet::new();
            for one in asked {
                if !seen.insert((one.topic_id, one.name.clone())) {
                    continue;
                }
                // Java's client asks by id with an empty name, not with none.
                let name = one.name.as_ref().filter(|_| one.topic_id.is_zero());
                let topic = match name {
                    Some(name) => asker.view.topic(name),
                    None => asker.view.topic_by_id(base::TopicId(one.topic_id)),
                };
                answers.push(match (topic, name) {
                    (Some(topic), _) => describe(asker, topic, request, version),
                    (None, Some(name)) => missing_name(name, request, version, &mut create),
                    (None, None) => MetadataResponseTopic {
                        error_code: ErrorCode::UnknownTopicId.code(),
                        name: None,
                        topic_id: one.topic_id,
                        topic_authorized_operations: topic_operations(request, version),
                        ..Default::default()
                    },
                });
            }
            answers
        }
    };
    let brokers = asker
        .endpoints()
        .map(|endpoint| MetadataResponseBroker {
            node_id: endpoint.node.0,
            host: endpoint.host,
            port: endpoint.port,
            rack: endpoint.rack,
            ..Default::default()
        })
        .collect();
    let asked_operations = request.include_cluster_authorized_operations && (8..=10).contains(&version);
    let response = MetadataResponse {
        brokers,
        cluster_id: Some(KafkaString::from(asker.cluster_id)),
        controller_id: asker.view.controller().map_or(-1, |node| node.0),
        topics,
        cluster_authorized_operations: if asked_operations { operations::CLUSTER } else { operations::NOT_ASKED },
        ..Default::default()
    };
    (response, create)
}

enum Asked {
    All,
    These,
    Invalid(ErrorCode),
}

/// How many topics and partitions of topics the answer tells of.
pub fn partitions_told(view: &View, request: &MetadataRequest, version: i16) -> usize {
    let named = |topic: &MetadataRequestTopic| match topic.name.as_ref().filter(|_| topic.topic_id.is_zero()) {
        Some(name) => view.topic(name),
        None => view.topic_by_id(base::TopicId(topic.topic_id)),
    };
    match topics_asked(request, version) {
        // Each has a partition; that there are many is known before they are looked at.
        Asked::All if view.topic_count() > crate::limits::TOPICS_ON_THE_LOOP_MAX => usize::MAX,
        Asked::All => view.topics().map(|topic| 1 + topic.partitions.len()).sum(),
        Asked::These => {
            let asked = request.topics.iter().flatten();
            asked.map(|topic| 1 + named(topic).map_or(0, |topic| topic.partitions.len())).sum()
        }
        Asked::Invalid(_) => 0,
    }
}

fn topics_asked(request: &MetadataRequest, version: i16) -> Asked {
    let Some(topics) = &request.topics else { return Asked::All };
    if version == 0 && topics.is_empty() {
        return Asked::All;
    }
    let odd = |topic: &MetadataRequestTopic| topic.name.is_none() || !topic.topic_id.is_zero();
    let nameless = |topic: &MetadataRequestTopic| topic.name.is_none() && topic.topic_id.is_zero();
    if version < TOPIC_IDS_SINCE && topics.iter().any(odd) {
        Asked::Invalid(ErrorCode::InvalidRequest)
    } else if topics.iter().any(nameless) {
        Asked::Invalid(ErrorCode::UnknownServerError)
    } else {
        Asked::These
    }
}

/// The whole request is refused: every topic carries the error, and nothing else is told.
fn refused(request: &MetadataRequest, version: i16, error: ErrorCode) -> MetadataResponse {
    let topics = request.topics.iter().flatten().map(|topic| MetadataResponseTopic {
        error_code: error.code(),
        // Kafka's own answer names it, if by nothing.
        name: Some(topic.name.clone().unwrap_or_default()),
        topic_id: topic.topic_id,
        topic_authorized_operations: operations::NOT_ASKED,
        ..Default::default()
    });
    MetadataResponse {
        cluster_id: None,
        controller_id: -1,
        topics: topics.collect(),
        cluster_authorized_operations: operations::NOT_ASKED,
        error_code: if version >= ERROR_SINCE { error.code() } else { 0 },
        ..Default::default()
    }
}

/// The operations are told of every topic, known or not, where they were asked for.
fn topic_operations(request: &MetadataRequest, version: i16) -> i32 {
    let asked = request.include_topic_authorized_operations && version >= 8;
    if asked { operations::TOPIC } else { operations::NOT_ASKED }
}

fn missing_name(
    name: &KafkaString,
    request: &MetadataRequest,
    version: i16,
    create: &mut Vec<String>,
) -> MetadataResponseTopic {
    let valid = is_valid_topic_name(name);
    if valid && request.allow_auto_topic_creation {
        create.push(name.to_string());
    }
    let error = if valid { ErrorCode::UnknownTopicOrPartition } else { ErrorCode::InvalidTopicException };
    MetadataResponseTopic {
        error_code: error.code(),
        name: Some(name.clone()),
        is_internal: matches!(name.as_str(), "__consumer_offsets" | "__transaction_state" | "__share_group_state"),
        topic_authorized_operations: topic_operations(request, version),
        ..Default::default()
    }
}

fn describe(asker: Asker<'_>, topic: &Topic, request: &MetadataRequest, version: i16) -> MetadataResponseTopic {
    let partitions = topic.partitions.iter().map(|partition| {
        let endpoint = partition.leader.map(|leader| asker.endpoint(leader));
        let error = match endpoint {
            Some(Some(_)) => ErrorCode::None,
            Some(None) if version >= LISTENER_ERROR_SINCE => ErrorCode::ListenerNotFound,
            _ => ErrorCode::LeaderNotAvailable,
        };
        let leader = partition.leader.filter(|_| !error.is_error());
        MetadataResponsePartition {
            error_code: error.code(),
            partition_index: partition.index.0,
            leader_id: leader.map_or(-1, |leader| leader.0),
            leader_epoch: partition.leader_epoch.0,
            replica_nodes: partition.replicas.iter().map(|node| node.0).collect(),
            isr_nodes: partition.isr.iter().map(|node| node.0).collect(),
            offline_replicas: partition.offline.iter().map(|node| node.0).collect(),
            ..Default::default()
        }
    });
    MetadataResponseTopic {
        name: Some(KafkaString::from(&*topic.name)),
        topic_id: topic.id.0,
        is_internal: topic.is_internal(),
        partitions: partitions.collect(),
        topic_authorized_operations: topic_operations(request, version),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::test_view::{broker, topic, view};
    use base::{NodeId, Uuid};

    fn request(names: &[&str]) -> MetadataRequest {
        let topics = names
            .iter()
            .map(|name| MetadataRequestTopic { name: Some(KafkaString::from(*name)), ..Default::default() });
        MetadataRequest { topics: Some(topics.collect()), allow_auto_topic_creation: true, ..Default::default() }
    }

    #[test]
    fn each_partition_tells_its_own_trouble() {
        let brokers = [broker(1, false, &["A", "B"]), broker(2, false, &["B"]), broker(3, true, &["A"])];
        let leaders = [Some(1), Some(2), None, Some(3)];
        let view = view(brokers.into_iter().chain([topic(7, "t", &leaders)]).collect());
        let asker = Asker { view: &view, node: NodeId(1), cluster_id: "c", listener_name: "A" };
        let (response, _) = answer(asker, &request(&["t"]), 12);
        let got: Vec<_> =
            response.topics[0].partitions.iter().map(|p| (p.error_code, p.leader_id, p.leader_epoch)).collect();
        assert_eq!(got, vec![(0, 1, 4), (72, -1, 4), (5, -1, 4), (72, -1, 4)]);
        assert_eq!(response.brokers.len(), 1, "a broker without the listener, and a fenced one, are left out");
        let (response, _) = answer(asker, &request(&["t"]), 5);
        assert_eq!(response.topics[0].partitions[1].error_code, 5, "older clients know no such error");
    }

    #[test]
    fn absent_topics_are_named_for_creation_only_where_asked() {
        let view = view(vec![]);
        let asker = Asker { view: &view, node: NodeId(1), cluster_id: "c", listener_name: "A" };
        let (response, create) = answer(asker, &request(&["new", "bad name", "new"]), 9);
        let errors: Vec<_> = response.topics.iter().map(|t| t.error_code).collect();
        assert_eq!((errors, create), (vec![3, 17], vec!["new".to_string()]));
        let quiet = MetadataRequest { allow_auto_topic_creation: false, ..request(&["new"]) };
        assert!(answer(asker, &quiet, 9).1.is_empty());
    }

    #[test]
    fn ids_are_for_version_twelve_and_later() {
        let view = view(vec![topic(7, "t", &[])]);
        let asker = Asker { view: &view, node: NodeId(1), cluster_id: "c", listener_name: "A" };
        let by_id = |id| MetadataRequest {
            topics: Some(vec![MetadataRequestTopic { topic_id: Uuid(id), name: None, ..Default::default() }]),
            ..Default::default()
        };
        assert_eq!(answer(asker, &by_id(7), 11).0.topics[0].error_code, 42);
        assert_eq!(answer(asker, &by_id(0), 12).0.topics[0].error_code, -1);
        assert_eq!(answer(asker, &by_id(7), 12).0.topics[0].name.as_deref(), Some("t"));
        assert_eq!(answer(asker, &by_id(8), 12).0.topics[0].error_code, 100);
        let mut as_java_asks = by_id(8);
        as_java_asks.topics.as_mut().unwrap()[0].name = Some(KafkaString::from_static(""));
        let missing = answer(asker, &as_java_asks, 12).0.topics.remove(0);
        assert_eq!((missing.error_code, missing.topic_id, missing.name), (100, Uuid(8), None));
        let all = MetadataRequest { topics: Some(vec![]), ..Default::default() };
        assert_eq!(answer(asker, &all, 0).0.topics.len(), 1);
        assert_eq!(answer(asker, &all, 1).0.topics.len(), 0);
    }
}
