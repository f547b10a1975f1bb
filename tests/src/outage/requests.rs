//! One request of every API that a node serves, by what becomes of it while the control plane is down.

use crate::crash::check::value_of;
use base::{ProducerEpoch, ProducerId, Sequence, WallMillis};
use batch::{BatchBuilder, BatchProducer};
use bytes::Bytes;
use std::time::Duration;
use wire::messages::*;
use wire::{KafkaString, RequestKind};

pub const TOPIC: &str = "outage";
pub const GROUP: &str = "outage-group";

/// A request, its version, and the one error that its answer has, if it has one.
pub struct Asked {
    pub request: RequestKind,
    pub version: i16,
    pub error: i64,
}

fn asked(request: impl Into<RequestKind>, version: i16) -> Asked {
    Asked { request: request.into(), version, error: 0 }
}

fn text(text: &str) -> KafkaString {
    KafkaString::from(text)
}

pub fn init_producer() -> InitProducerIdRequest {
    InitProducerIdRequest { transactional_id: None, transaction_timeout_ms: 60_000, ..Default::default() }
}

pub fn produce(topic: &str, producer: i64, sequence: i32) -> ProduceRequest {
    let mut builder = BatchBuilder::new();
    builder.producer(BatchProducer {
        id: ProducerId(producer),
        epoch: ProducerEpoch(0),
        base_sequence: Some(Sequence(sequence)),
    });
    builder.append(WallMillis(crate::recovery::fill::wall()), None, Some(&value_of(0, 1)), &[]);
    let data = produce_request::PartitionProduceData {
        index: 0,
        records: Some(Bytes::from(builder.build())),
        ..Default::default()
    };
    let topic =
        produce_request::TopicProduceData { name: text(topic), partition_data: vec![data], ..Default::default() };
    ProduceRequest { acks: -1, timeout_ms: 5000, topic_data: vec![topic], ..Default::default() }
}

fn metadata(topic: &str) -> MetadataRequest {
    let topic = metadata_request::MetadataRequestTopic { name: Some(text(topic)), ..Default::default() };
    MetadataRequest { topics: Some(vec![topic]), allow_auto_topic_creation: false, ..Default::default() }
}

fn fetch() -> FetchRequest {
    perf::client::fetch_request(TOPIC, 0, 0, 1 << 20, Duration::from_millis(100))
}

fn list_offsets() -> ListOffsetsRequest {
    let partition = list_offsets_request::ListOffsetsPartition { timestamp: -2, ..Default::default() };
    let topic = list_offsets_request::ListOffsetsTopic {
        name: text(TOPIC),
        partitions: vec![list_offsets_request::ListOffsetsPartition { current_leader_epoch: -1, ..partition }],
        ..Default::default()
    };
    ListOffsetsRequest { replica_id: -1, topics: vec![topic], ..Default::default() }
}

fn epochs() -> OffsetForLeaderEpochRequest {
    let partition =
        offset_for_leader_epoch_request::OffsetForLeaderPartition { current_leader_epoch: -1, ..Default::default() };
    let topic = offset_for_leader_epoch_request::OffsetForLeaderTopic {
        topic: text(TOPIC),
        partitions: vec![partition],
        ..Default::default()
    };
    OffsetForLeaderEpochRequest { replica_id: -1, topics: vec![topic], ..Default::default() }
}

fn delete_records() -> DeleteRecordsRequest {
    let partition = delete_records_request::DeleteRecordsPartition { offset: 1, ..Default::default() };
    let topic = delete_records_request::DeleteRecordsTopic {
        name: text(TOPIC),
        partitions: vec![partition],
        ..Default::default()
    };
    DeleteRecordsRequest { topics: vec![topic], timeout_ms: 5000, ..Default::default() }
}

pub fn find_coordinator() -> FindCoordinatorRequest {
    FindCoordinatorRequest { coordinator_keys: vec![text(GROUP)], ..Default::default() }
}

/// What the dataplane answers by itself. `producer` is a new one's id.
pub fn answered(producer: i64) -> Vec<Asked> {
    let unknown = |asked: Asked| Asked { error: 3, ..asked };
    let topic = describe_topic_partitions_request::TopicRequest { name: text(TOPIC), ..Default::default() };
    let partitions =
        DescribeTopicPartitionsRequest { topics: vec![topic], response_partition_limit: 100, ..Default::default() };
    let producers = describe_producers_request::TopicRequest {
        name: text(TOPIC),
        partition_indexes: vec![0],
        ..Default::default()
    };
    vec![
        asked(perf::client::api_versions_request(), 3),
        asked(metadata(TOPIC), 12),
        unknown(asked(metadata("no-such-topic"), 12)),
        asked(partitions, 0),
        asked(find_coordinator(), 4),
        asked(DescribeClusterRequest::default(), 1),
        asked(init_producer(), 4),
        asked(produce(TOPIC, producer, 0), 11),
        // The same again: a duplicate is known.
        asked(produce(TOPIC, producer, 0), 11),
        unknown(asked(produce("no-such-topic", producer, 0), 11)),
        asked(fetch(), 12),
        asked(list_offsets(), 7),
        asked(epochs(), 4),
        asked(delete_records(), 2),
        asked(DescribeProducersRequest { topics: vec![producers], ..Default::default() }, 0),
        asked(DescribeLogDirsRequest::default(), 4),
    ]
}

pub fn join(group: &str, member: &str) -> JoinGroupRequest {
    let protocol = join_group_request::JoinGroupRequestProtocol {
        name: text("range"),
        metadata: Bytes::from_static(b"subscribed"),
        ..Default::default()
    };
    JoinGroupRequest {
        group_id: text(group),
        session_timeout_ms: 30_000,
        rebalance_timeout_ms: 1000,
        member_id: text(member),
        protocol_type: text("consumer"),
        protocols: vec![protocol],
        ..Default::default()
    }
}

pub fn sync(member: &str) -> SyncGroupRequest {
    let assignment = sync_group_request::SyncGroupRequestAssignment {
        member_id: text(member),
        assignment: Bytes::from_static(b"all"),
        ..Default::default()
    };
    SyncGroupRequest {
        group_id: text(GROUP),
        generation_id: 1,
        member_id: text(member),
        assignments: vec![assignment],
        ..Default::default()
    }
}

pub fn commit(member: &str) -> OffsetCommitRequest {
    let partition = offset_commit_request::OffsetCommitRequestPartition { committed_offset: 1, ..Default::default() };
    let topic = offset_commit_request::OffsetCommitRequestTopic {
        name: text(TOPIC),
        partitions: vec![partition],
        ..Default::default()
    };
    OffsetCommitRequest {
        group_id: text(GROUP),
        generation_id_or_member_epoch: 1,
        member_id: text(member),
        topics: vec![topic],
        ..Default::default()
    }
}

pub fn offsets() -> OffsetFetchRequest {
    let all = None;
    let group =
        offset_fetch_request::OffsetFetchRequestGroup { group_id: text(GROUP), topics: all, ..Default::default() };
    OffsetFetchRequest { groups: vec![group], ..Default::default() }
}

pub fn heartbeat(member: &str) -> HeartbeatRequest {
    HeartbeatRequest { group_id: text(GROUP), generation_id: 1, member_id: text(member), ..Default::default() }
}

fn configs() -> DescribeConfigsRequest {
    let resource = describe_configs_request::DescribeConfigsResource {
        resource_type: 2,
        resource_name: text(TOPIC),
        ..Default::default()
    };
    DescribeConfigsRequest { resources: vec![resource], ..Default::default() }
}

/// What only the control plane answers. The error is what the dataplane says in its place when it cannot: a retriable
/// one of coordinators where the response has a place for it, -1 where the connection closes.
pub fn others(member: &str) -> Vec<Asked> {
    const COORDINATOR: i64 = 15;
    const CLOSE: i64 = -1;
    let coordinator = |asked: Asked| Asked { error: COORDINATOR, ..asked };
    let close = |asked: Asked| Asked { error: CLOSE, ..asked };
    let group = || vec![text(GROUP)];
    vec![
        coordinator(asked(heartbeat(member), 4)),
        coordinator(asked(join("another-group", ""), 5)),
        coordinator(asked(sync(member), 3)),
        coordinator(asked(LeaveGroupRequest { group_id: text("another-group"), ..Default::default() }, 2)),
        coordinator(asked(commit(member), 8)),
        coordinator(asked(offsets(), 8)),
        coordinator(asked(ListGroupsRequest::default(), 4)),
        coordinator(asked(DescribeGroupsRequest { groups: group(), ..Default::default() }, 5)),
        coordinator(asked(DeleteGroupsRequest { groups_names: vec![text("another-group")], ..Default::default() }, 2)),
        coordinator(asked(OffsetDeleteRequest { group_id: text("another-group"), ..Default::default() }, 0)),
        close(asked(CreateTopicsRequest { timeout_ms: 1000, ..Default::default() }, 7)),
        close(asked(DeleteTopicsRequest { timeout_ms: 1000, ..Default::default() }, 5)),
        close(asked(CreatePartitionsRequest { timeout_ms: 1000, ..Default::default() }, 3)),
        close(asked(configs(), 4)),
        close(asked(AlterConfigsRequest::default(), 2)),
        close(asked(IncrementalAlterConfigsRequest::default(), 1)),
        close(asked(ElectLeadersRequest { timeout_ms: 1000, ..Default::default() }, 2)),
        close(asked(AlterPartitionReassignmentsRequest { timeout_ms: 1000, ..Default::default() }, 0)),
        close(asked(ListPartitionReassignmentsRequest { timeout_ms: 1000, ..Default::default() }, 0)),
        close(asked(DescribeQuorumRequest::default(), 1)),
        close(asked(UpdateFeaturesRequest { timeout_ms: 1000, ..Default::default() }, 1)),
        close(asked(UnregisterBrokerRequest { broker_id: 77, ..Default::default() }, 0)),
        close(asked(ListConfigResourcesRequest::default(), 1)),
    ]
}
