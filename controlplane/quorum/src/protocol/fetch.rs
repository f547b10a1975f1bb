//! Fetch and FetchSnapshot, as replicas of the metadata log use them.

use super::{
    METADATA_TOPIC, ReplyError, check_cluster, endpoint, error_code, is_ours, leader_on, node, node_code, only,
    refusal, replica,
};
use crate::config::FETCH_BYTES_MAX;
use crate::ids::{OffsetAndEpoch, SnapshotId};
use crate::message::{
    FetchReply, FetchRequest, FetchSnapshotReply, FetchSnapshotRequest, Fetched, Refusal, Reply, ReplyBody, Request,
};
use base::{LeaderEpoch, NodeId, Offset, Uuid};
use batch::Batches;
use bytes::{Bytes, BytesMut};
use wire::messages::{fetch_request, fetch_response, fetch_snapshot_request, fetch_snapshot_response};

/// From this version on a topic is named by its id.
const BY_TOPIC_ID: i16 = 13;
/// The first version that tells of leaders, divergence and snapshots; replicas of the metadata log speak no older one,
/// but anybody may send it.
const FOR_REPLICAS: i16 = 12;
/// What "the fetcher does not care about the watermark" is on the wire.
const ANY_WATERMARK: i64 = i64::MAX;

pub(super) fn decode_fetch(
    m: &fetch_request::FetchRequest,
    version: i16,
    cluster_id: &str,
) -> Result<Request, Refusal> {
    check_cluster(m.cluster_id.as_deref(), cluster_id)?;
    let ours = |t: &fetch_request::FetchTopic| {
        if version >= BY_TOPIC_ID { t.topic_id == Uuid::ONE } else { is_ours(&t.topic) }
    };
    let p = only(&m.topics, ours, |t| &t.partitions, |p| p.partition).ok_or(Refusal::InvalidRequest)?;
    let id = if version >= 15 { m.replica_state.replica_id } else { m.replica_id };
    let positive = |n: i32| u32::try_from(n).map_err(|_| Refusal::InvalidRequest);
    Ok(Request::Fetch(FetchRequest {
        replica: replica(id, p.replica_directory_id),
        epoch: LeaderEpoch(p.current_leader_epoch),
        offset: Offset(p.fetch_offset),
        last_epoch: LeaderEpoch(p.last_fetched_epoch),
        wait_ms: positive(m.max_wait_ms)?,
        // Kafka's replicas leave the partition's limit at 0 and mean the request's.
        max_bytes: positive(m.max_bytes)?,
        // -1 says that the fetcher knows none yet, so that any is news.
        high_watermark: (version >= 18 && p.high_watermark != ANY_WATERMARK).then_some(Offset(p.high_watermark)),
    }))
}

pub(super) fn encode_fetch(m: &FetchRequest, version: i16, cluster_id: &str) -> fetch_request::FetchRequest {
    let id = node_code(m.replica.map(|r| r.id));
    let directory = m.replica.and_then(|r| r.directory).filter(|_| version >= 17);
    let partition = fetch_request::FetchPartition {
        partition: 0,
        current_leader_epoch: m.epoch.0,
        fetch_offset: m.offset.0,
        last_fetched_epoch: m.last_epoch.0,
        replica_directory_id: directory.unwrap_or_default(),
        high_watermark: if version >= 18 { m.high_watermark.map_or(-1, |w| w.0) } else { ANY_WATERMARK },
        ..Default::default()
    };
    let by_id = version >= BY_TOPIC_ID;
    let topic = fetch_request::FetchTopic {
        topic: if by_id { Default::default() } else { METADATA_TOPIC.into() },
        topic_id: if by_id { Uuid::ONE } else { Uuid::ZERO },
        partitions: vec![partition],
        ..Default::default()
    };
    fetch_request::FetchRequest {
        cluster_id: Some(cluster_id.into()),
        replica_id: if version >= 15 { -1 } else { id },
        replica_state: fetch_request::ReplicaState {
            replica_id: if version >= 15 { id } else { -1 },
            ..Default::default()
        },
        max_wait_ms: i32::try_from(m.wait_ms).unwrap_or(i32::MAX),
        max_bytes: m.max_bytes.min(FETCH_BYTES_MAX) as i32,
        topics: vec![topic],
        ..Default::default()
    }
}

pub(super) fn encode_fetch_reply(
    reply: &Reply,
    body: &FetchReply,
    version: i16,
    listener: &str,
) -> fetch_response::FetchResponse {
    let mut partition = fetch_response::PartitionData {
        partition_index: 0,
        error_code: error_code(reply.refusal),
        high_watermark: body.high_watermark.map_or(-1, |w| w.0),
        log_start_offset: body.log_start.map_or(-1, |s| s.0),
        // Never null: clients take that for a broken answer.
        records: Some(Bytes::new()),
        ..Default::default()
    };
    if version >= FOR_REPLICAS {
        partition.current_leader.leader_id = node_code(reply.leader);
        partition.current_leader.leader_epoch = reply.epoch.0;
    }
    match &body.found {
        Fetched::Batches(batches) => partition.records = Some(joined(batches)),
        Fetched::Diverging(_) | Fetched::Snapshot(_) if version < FOR_REPLICAS => {}
        Fetched::Diverging(end) => {
            partition.diverging_epoch.epoch = end.epoch.0;
            partition.diverging_epoch.end_offset = end.offset.0;
        }
        Fetched::Snapshot(id) => {
            partition.snapshot_id.epoch = id.epoch.0;
            partition.snapshot_id.end_offset = id.offset.0;
        }
    }
    let by_id = version >= BY_TOPIC_ID;
    let topic = fetch_response::FetchableTopicResponse {
        topic: if by_id { Default::default() } else { METADATA_TOPIC.into() },
        topic_id: if by_id { Uuid::ONE } else { Uuid::ZERO },
        partitions: vec![partition],
        ..Default::default()
    };
    let endpoints = leader_on(reply, listener).filter(|_| version >= 16);
    let endpoint = |(id, e): (NodeId, &crate::ids::Endpoint)| fetch_response::NodeEndpoint {
        node_id: id.0,
        host: e.host.as_str().into(),
        port: i32::from(e.port),
        ..Default::default()
    };
    fetch_response::FetchResponse {
        responses: vec![topic],
        node_endpoints: endpoints.map(endpoint).into_iter().collect(),
        ..Default::default()
    }
}

fn joined(batches: &[Bytes]) -> Bytes {
    match batches {
        [only] => only.clone(),
        _ => {
            let mut all = BytesMut::with_capacity(batches.iter().map(Bytes::len).sum());
            batches.iter().for_each(|b| all.extend_from_slice(b));
            all.freeze()
        }
    }
}

pub(super) fn decode_fetch_reply(m: &fetch_response::FetchResponse, listener: &str) -> Result<Reply, ReplyError> {
    if m.error_code != 0 {
        return Err(ReplyError::Refused(m.error_code));
    }
    let ours = |t: &fetch_response::FetchableTopicResponse| t.topic_id == Uuid::ONE || is_ours(&t.topic);
    let p = only(&m.responses, ours, |t| &t.partitions, |p| p.partition_index).ok_or(ReplyError::Malformed)?;
    let (diverging, snapshot) = (&p.diverging_epoch, &p.snapshot_id);
    let found = if diverging.epoch >= 0 {
        Fetched::Diverging(position(diverging.epoch, diverging.end_offset)?)
    } else if snapshot.epoch >= 0 || snapshot.end_offset >= 0 {
        Fetched::Snapshot(position(snapshot.epoch, snapshot.end_offset)?)
    } else {
        Fetched::Batches(split(p.records.as_ref())?)
    };
    let leader = node(p.current_leader.leader_id);
    let of_leader = m.node_endpoints.iter().filter(|e| Some(NodeId(e.node_id)) == leader);
    let leader_endpoints = of_leader.filter_map(|e| Some(endpoint(listener, &e.host, u16::try_from(e.port).ok()?)));
    Ok(Reply {
        refusal: refusal(p.error_code),
        epoch: LeaderEpoch(p.current_leader.leader_epoch),
        leader,
        leader_endpoints: leader_endpoints.collect(),
        body: ReplyBody::Fetch(FetchReply {
            high_watermark: (p.high_watermark >= 0).then_some(Offset(p.high_watermark)),
            log_start: (p.log_start_offset >= 0).then_some(Offset(p.log_start_offset)),
            found,
        }),
    })
}

fn position(epoch: i32, offset: i64) -> Result<OffsetAndEpoch, ReplyError> {
    if epoch < 0 || offset < 0 {
        return Err(ReplyError::Malformed);
    }
    Ok(OffsetAndEpoch { offset: Offset(offset), epoch: LeaderEpoch(epoch) })
}

/// The whole batches of an answer; it may end inside one.
fn split(records: Option<&Bytes>) -> Result<Vec<Bytes>, ReplyError> {
    let Some(records) = records else { return Ok(Vec::new()) };
    Batches::new(records)
        .map(|batch| batch.map(|view| records.slice_ref(view.bytes())).map_err(|_| ReplyError::Malformed))
        .collect()
}

pub(super) fn decode_fetch_snapshot(
    m: &fetch_snapshot_request::FetchSnapshotRequest,
    cluster_id: &str,
) -> Result<Request, Refusal> {
    check_cluster(m.cluster_id.as_deref(), cluster_id)?;
    let p = only(&m.topics, |t| is_ours(&t.name), |t| &t.partitions, |p| p.partition)
        .ok_or(Refusal::UnknownTopicOrPartition)?;
    let unsigned = |n: i64| u64::try_from(n).map_err(|_| Refusal::PositionOutOfRange);
    Ok(Request::FetchSnapshot(FetchSnapshotRequest {
        replica: replica(m.replica_id, p.replica_directory_id),
        epoch: LeaderEpoch(p.current_leader_epoch),
        id: SnapshotId { offset: Offset(p.snapshot_id.end_offset), epoch: LeaderEpoch(p.snapshot_id.epoch) },
        position: unsigned(p.position)?,
        max_bytes: u32::try_from(m.max_bytes).map_err(|_| Refusal::InvalidRequest)?,
    }))
}

pub(super) fn encode_fetch_snapshot(
    m: &FetchSnapshotRequest,
    version: i16,
    cluster_id: &str,
) -> fetch_snapshot_request::FetchSnapshotRequest {
    let directory = m.replica.and_then(|r| r.directory).filter(|_| version >= 1);
    let partition = fetch_snapshot_request::PartitionSnapshot {
        partition: 0,
        current_leader_epoch: m.epoch.0,
        snapshot_id: fetch_snapshot_request::SnapshotId {
            end_offset: m.id.offset.0,
            epoch: m.id.epoch.0,
            ..Default::default()
        },
        position: i64::try_from(m.position).unwrap_or(i64::MAX),
        replica_directory_id: directory.unwrap_or_default(),
        ..Default::default()
    };
    fetch_snapshot_request::FetchSnapshotRequest {
        cluster_id: Some(cluster_id.into()),
        replica_id: node_code(m.replica.map(|r| r.id)),
        max_bytes: m.max_bytes.min(FETCH_BYTES_MAX) as i32,
        topics: vec![fetch_snapshot_request::TopicSnapshot {
            name: METADATA_TOPIC.into(),
            partitions: vec![partition],
            ..Default::default()
        }],
        ..Default::default()
    }
}

pub(super) fn encode_fetch_snapshot_reply(
    reply: &Reply,
    body: &FetchSnapshotReply,
    version: i16,
    listener: &str,
) -> fetch_snapshot_response::FetchSnapshotResponse {
    let partition = fetch_snapshot_response::PartitionSnapshot {
        index: 0,
        error_code: error_code(reply.refusal),
        snapshot_id: fetch_snapshot_response::SnapshotId {
            end_offset: body.id.offset.0,
            epoch: body.id.epoch.0,
            ..Default::default()
        },
        current_leader: fetch_snapshot_response::LeaderIdAndEpoch {
            leader_id: node_code(reply.leader),
            leader_epoch: reply.epoch.0,
            ..Default::default()
        },
        size: i64::try_from(body.size).unwrap_or(i64::MAX),
        position: i64::try_from(body.position).unwrap_or(i64::MAX),
        unaligned_records: body.bytes.clone(),
        ..Default::default()
    };
    let endpoints = leader_on(reply, listener).filter(|_| version >= 1);
    let endpoint = |(id, e): (NodeId, &crate::ids::Endpoint)| fetch_snapshot_response::NodeEndpoint {
        node_id: id.0,
        host: e.host.as_str().into(),
        port: e.port,
        ..Default::default()
    };
    fetch_snapshot_response::FetchSnapshotResponse {
        topics: vec![fetch_snapshot_response::TopicSnapshot {
            name: METADATA_TOPIC.into(),
            partitions: vec![partition],
            ..Default::default()
        }],
        node_endpoints: endpoints.map(endpoint).into_iter().collect(),
        ..Default::default()
    }
}

pub(super) fn decode_fetch_snapshot_reply(
    m: &fetch_snapshot_response::FetchSnapshotResponse,
    listener: &str,
) -> Result<Reply, ReplyError> {
    if m.error_code != 0 {
        return Err(ReplyError::Refused(m.error_code));
    }
    let p = only(&m.topics, |t| is_ours(&t.name), |t| &t.partitions, |p| p.index).ok_or(ReplyError::Malformed)?;
    let leader = node(p.current_leader.leader_id);
    let of_leader = m.node_endpoints.iter().filter(|e| Some(NodeId(e.node_id)) == leader);
    let unsigned = |n: i64| u64::try_from(n).map_err(|_| ReplyError::Malformed);
    Ok(Reply {
        refusal: refusal(p.error_code),
        epoch: LeaderEpoch(p.current_leader.leader_epoch),
        leader,
        leader_endpoints: of_leader.map(|e| endpoint(listener, &e.host, e.port)).collect(),
        body: ReplyBody::FetchSnapshot(FetchSnapshotReply {
            id: SnapshotId { offset: Offset(p.snapshot_id.end_offset), epoch: LeaderEpoch(p.snapshot_id.epoch) },
            size: unsigned(p.size)?,
            position: unsigned(p.position)?,
            bytes: p.unaligned_records.clone(),
        }),
    })
}
