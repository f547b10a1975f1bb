//! DescribeQuorum (KIP-595, KIP-853).

use crate::held::Caller;
use crate::node::Node;
use base::{Now, Uuid};
use quorum::ReplicaDescription;
use wire::messages::describe_quorum_response::{Listener, Node as Told, PartitionData, ReplicaState, TopicData};
use wire::messages::{DescribeQuorumRequest, DescribeQuorumResponse, describe_quorum_request};
use wire::{ErrorCode, KafkaString};

const METADATA_TOPIC: &str = "__cluster_metadata";

impl Node {
    pub(super) fn describe_quorum(&mut self, caller: Caller, request: &DescribeQuorumRequest, now: Now) {
        let response = self.quorum_description(request, caller.version, now);
        self.answer(caller, &response.into());
    }

    fn quorum_description(&self, request: &DescribeQuorumRequest, version: i16, now: Now) -> DescribeQuorumResponse {
        if !names_the_metadata_alone(request) {
            return refused(
                request,
                ErrorCode::UnknownTopicOrPartition,
                "This server does not host this topic-partition.",
            );
        }
        let Some(described) = self.quorum.describe(now) else {
            let message = "For requests intended only for the leader, this error indicates that the broker is not the \
                           current leader. For requests intended for any replica, this error indicates that the broker \
                           is not a replica of the topic partition.";
            return refused(request, ErrorCode::NotLeaderOrFollower, message);
        };
        let partition = PartitionData {
            partition_index: 0,
            leader_id: described.leader.0,
            leader_epoch: described.epoch.0,
            high_watermark: described.high_watermark.map_or(-1, |offset| offset.0),
            current_voters: described.voters.iter().map(|replica| state(replica, version)).collect(),
            observers: described.observers.iter().map(|replica| state(replica, version)).collect(),
            error_message: text_since_2(version, ""),
            ..Default::default()
        };
        let listener = |endpoint: &quorum::Endpoint| Listener {
            name: endpoint.listener.as_str().into(),
            host: endpoint.host.as_str().into(),
            port: endpoint.port,
            ..Default::default()
        };
        let nodes = described.nodes.iter().filter(|_| version >= 2).map(|(id, endpoints)| Told {
            node_id: id.0,
            listeners: endpoints.iter().map(listener).collect(),
            ..Default::default()
        });
        DescribeQuorumResponse {
            error_message: text_since_2(version, ""),
            topics: vec![TopicData {
                topic_name: METADATA_TOPIC.into(),
                partitions: vec![partition],
                ..Default::default()
            }],
            nodes: nodes.collect(),
            ..Default::default()
        }
    }
}

/// Kafka's successes carry an empty text here; older versions have no field for it.
fn text_since_2(version: i16, text: &'static str) -> Option<KafkaString> {
    (version >= 2).then(|| KafkaString::from_static(text))
}

fn names_the_metadata_alone(request: &DescribeQuorumRequest) -> bool {
    let [topic] = request.topics.as_slice() else { return false };
    let [partition] = topic.partitions.as_slice() else { return false };
    topic.topic_name == METADATA_TOPIC && partition.partition_index == 0
}

fn state(replica: &ReplicaDescription, version: i16) -> ReplicaState {
    ReplicaState {
        replica_id: replica.key.id.0,
        replica_directory_id: replica.key.directory.filter(|_| version >= 2).unwrap_or(Uuid::ZERO),
        log_end_offset: replica.log_end.map_or(-1, |offset| offset.0),
        last_fetch_timestamp: replica.last_fetch.map_or(-1, |time| time.0),
        last_caught_up_timestamp: replica.last_caught_up.map_or(-1, |time| time.0),
        ..Default::default()
    }
}

fn refused(request: &DescribeQuorumRequest, code: ErrorCode, message: &'static str) -> DescribeQuorumResponse {
    let partition = |partition: &describe_quorum_request::PartitionData| PartitionData {
        partition_index: partition.partition_index,
        error_code: code.code(),
        error_message: Some(message.into()),
        ..Default::default()
    };
    let topic = |topic: &describe_quorum_request::TopicData| TopicData {
        topic_name: topic.topic_name.clone(),
        partitions: topic.partitions.iter().map(partition).collect(),
        ..Default::default()
    };
    DescribeQuorumResponse { topics: request.topics.iter().map(topic).collect(), ..Default::default() }
}
