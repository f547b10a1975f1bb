//! DescribeQuorum.

use super::{METADATA_TOPIC, is_ours};
use crate::describe::{Description, ReplicaDescription};
use wire::messages::describe_quorum_response::{Listener, Node, PartitionData, ReplicaState, TopicData};
use wire::messages::{DescribeQuorumRequest, DescribeQuorumResponse};
use wire::{ErrorCode, KafkaString};

/// Errors of partitions have a text from here on.
const TEXTS_SINCE: i16 = 2;

/// The answer of a leader's description; of a replica that does not lead, `None`.
pub fn describe_response(
    request: &DescribeQuorumRequest,
    description: Option<&Description>,
    version: i16,
) -> DescribeQuorumResponse {
    let asks_for_ours = match &request.topics[..] {
        [topic] => is_ours(&topic.topic_name) && matches!(&topic.partitions[..], [p] if p.partition_index == 0),
        _ => false,
    };
    if !asks_for_ours {
        return refused_topics(request, version);
    }
    let Some(description) = description else {
        return partition_answer(error_partition(0, ErrorCode::NotLeaderOrFollower), Vec::new());
    };
    let partition = PartitionData {
        partition_index: 0,
        leader_id: description.leader.0,
        leader_epoch: description.epoch.0,
        high_watermark: description.high_watermark.map_or(-1, |offset| offset.0),
        current_voters: description.voters.iter().map(|r| replica_state(r, version)).collect(),
        observers: description.observers.iter().map(|r| replica_state(r, version)).collect(),
        ..Default::default()
    };
    let nodes = match version {
        0..=1 => Vec::new(),
        _ => description.nodes.iter().map(|(id, endpoints)| node(*id, endpoints)).collect(),
    };
    partition_answer(partition, nodes)
}

fn partition_answer(partition: PartitionData, nodes: Vec<Node>) -> DescribeQuorumResponse {
    let topic = TopicData { topic_name: METADATA_TOPIC.into(), partitions: vec![partition], ..Default::default() };
    DescribeQuorumResponse { topics: vec![topic], nodes, ..Default::default() }
}

fn error_partition(index: i32, error: ErrorCode) -> PartitionData {
    PartitionData { partition_index: index, error_code: error.code(), ..Default::default() }
}

/// Every partition asked for is unknown: there is only one quorum.
fn refused_topics(request: &DescribeQuorumRequest, version: i16) -> DescribeQuorumResponse {
    let text = "The quorum has one partition, number 0 of __cluster_metadata.";
    let unknown = |index| PartitionData {
        error_message: (version >= TEXTS_SINCE).then(|| KafkaString::from_static(text)),
        ..error_partition(index, ErrorCode::UnknownTopicOrPartition)
    };
    let topics = request.topics.iter().map(|topic| TopicData {
        topic_name: topic.topic_name.clone(),
        partitions: topic.partitions.iter().map(|p| unknown(p.partition_index)).collect(),
        ..Default::default()
    });
    DescribeQuorumResponse { topics: topics.collect(), ..Default::default() }
}

fn replica_state(replica: &ReplicaDescription, version: i16) -> ReplicaState {
    ReplicaState {
        replica_id: replica.key.id.0,
        replica_directory_id: if version >= 2 { replica.key.directory.unwrap_or_default() } else { Default::default() },
        log_end_offset: replica.log_end.map_or(-1, |offset| offset.0),
        last_fetch_timestamp: replica.last_fetch.map_or(-1, |time| time.0),
        last_caught_up_timestamp: replica.last_caught_up.map_or(-1, |time| time.0),
        ..Default::default()
    }
}

fn node(id: base::NodeId, endpoints: &[crate::ids::Endpoint]) -> Node {
    let listener = |e: &crate::ids::Endpoint| Listener {
        name: e.listener.as_str().into(),
        host: e.host.as_str().into(),
        port: e.port,
        ..Default::default()
    };
    Node { node_id: id.0, listeners: endpoints.iter().map(listener).collect(), ..Default::default() }
}
