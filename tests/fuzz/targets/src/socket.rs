//! Whatever a client may send on a connection, from its first byte on.

use crate::sessions::{World, frames_about_the_topic, golden_frames};
use ::session::route;
use bytes::Bytes;
use net::sim::SimFaults;
use wire::messages::*;
use wire::{ApiKey, KafkaString, RequestKind};

/// A stream, in pieces as long as its first byte says, beside a client that behaves.
pub fn connection(data: &[u8]) {
    let Some((piece, stream)) = data.split_first() else { return };
    let seed = stream.iter().fold(u64::from(*piece), |seed, byte| seed.wrapping_mul(31) ^ u64::from(*byte));
    let mut world = World::new(seed, SimFaults::none());
    let pieces: Vec<Vec<u8>> = stream.chunks(usize::from(*piece) * 8 + 1).take(200).map(<[u8]>::to_vec).collect();
    world.hostile(&pieces);
    world.well_behaved();
    if world.close().answers > 1 {
        crate::depth::reached();
    }
}

/// One connection for each API, with a frame of some of its versions.
pub fn connection_seeds() -> Vec<Vec<u8>> {
    let one = |api: ApiKey| {
        let golden = golden_frames(api);
        let step = golden.len().div_ceil(8);
        let ours = frames_about_the_topic(api).into_iter().rev().take(6);
        let some: Vec<Vec<u8>> = golden.into_iter().step_by(step).chain(ours).collect();
        [&[60], &some.concat()[..]].concat()
    };
    route::served().map(one).collect()
}

/// Requests that name what the node has: the golden ones hardly ever do.
pub fn requests_about_the_topic(api: ApiKey) -> Vec<RequestKind> {
    let name = || KafkaString::from("t");
    match api {
        ApiKey::Produce => [-1, 1, 0].into_iter().map(produce).collect(),
        ApiKey::Fetch => vec![fetch(0, 0, -1), fetch(500, 1, -1), fetch(20, 1 << 20, 0)],
        ApiKey::ListOffsets => {
            let partition = |index, timestamp| list_offsets_request::ListOffsetsPartition {
                partition_index: index,
                timestamp,
                ..Default::default()
            };
            let partitions = vec![partition(0, -1), partition(1, -2), partition(2, 5), partition(9, -3)];
            let topic = list_offsets_request::ListOffsetsTopic { name: name(), partitions, ..Default::default() };
            vec![ListOffsetsRequest { replica_id: -1, topics: vec![topic], ..Default::default() }.into()]
        }
        ApiKey::OffsetForLeaderEpoch => {
            let partition = |partition| offset_for_leader_epoch_request::OffsetForLeaderPartition {
                partition,
                leader_epoch: 1,
                ..Default::default()
            };
            let topic = offset_for_leader_epoch_request::OffsetForLeaderTopic {
                topic: name(),
                partitions: vec![partition(0), partition(1), partition(7)],
                ..Default::default()
            };
            vec![OffsetForLeaderEpochRequest { topics: vec![topic], ..Default::default() }.into()]
        }
        ApiKey::DeleteRecords => {
            let partition = |partition_index, offset| delete_records_request::DeleteRecordsPartition {
                partition_index,
                offset,
                ..Default::default()
            };
            let topic = delete_records_request::DeleteRecordsTopic {
                name: name(),
                partitions: vec![partition(0, -1), partition(1, 5), partition(0, -7)],
                ..Default::default()
            };
            vec![DeleteRecordsRequest { topics: vec![topic], timeout_ms: 100, ..Default::default() }.into()]
        }
        ApiKey::DescribeProducers => {
            let topic = describe_producers_request::TopicRequest {
                name: name(),
                partition_indexes: vec![0, 1, 5],
                ..Default::default()
            };
            vec![DescribeProducersRequest { topics: vec![topic], ..Default::default() }.into()]
        }
        ApiKey::DescribeLogDirs => vec![DescribeLogDirsRequest { topics: None, ..Default::default() }.into()],
        ApiKey::Metadata => {
            let topic =
                |name: &str| metadata_request::MetadataRequestTopic { name: Some(name.into()), ..Default::default() };
            vec![
                MetadataRequest { topics: Some(vec![topic("t"), topic("absent")]), ..Default::default() }.into(),
                MetadataRequest { topics: None, ..Default::default() }.into(),
            ]
        }
        ApiKey::FindCoordinator => {
            vec![
                FindCoordinatorRequest { key: "g".into(), ..Default::default() }.into(),
                FindCoordinatorRequest { coordinator_keys: vec!["g".into()], ..Default::default() }.into(),
            ]
        }
        _ => Vec::new(),
    }
}

fn produce(acks: i16) -> RequestKind {
    use produce_request::{PartitionProduceData, TopicProduceData};
    let partition = |index| PartitionProduceData {
        index,
        records: Some(Bytes::from_static(b"some bytes that are no batch")),
        ..Default::default()
    };
    let topic = |topic_id| TopicProduceData {
        name: KafkaString::from("t"),
        topic_id,
        partition_data: vec![partition(0), partition(1), partition(2), partition(7)],
        ..Default::default()
    };
    let topic_data = vec![topic(base::Uuid::ZERO), topic(crate::sessions::TOPIC.0)];
    ProduceRequest { acks, timeout_ms: 100, topic_data, ..Default::default() }.into()
}

fn fetch(max_wait_ms: i32, min_bytes: i32, session_epoch: i32) -> RequestKind {
    let partition =
        |partition| fetch_request::FetchPartition { partition, partition_max_bytes: 1 << 20, ..Default::default() };
    let topic = fetch_request::FetchTopic {
        topic: KafkaString::from("t"),
        topic_id: crate::sessions::TOPIC.0,
        partitions: vec![partition(0), partition(1)],
        ..Default::default()
    };
    FetchRequest {
        max_wait_ms,
        min_bytes,
        max_bytes: 1 << 20,
        session_epoch,
        topics: vec![topic],
        ..Default::default()
    }
    .into()
}
