//! Vote, BeginQuorumEpoch, EndQuorumEpoch.

use super::{
    METADATA_TOPIC, ReplyError, check_cluster, endpoint, epoch, error_code, is_ours, leader_on, node, node_code, only,
    refusal, replica,
};
use crate::ids::{Endpoint, OffsetAndEpoch, ReplicaKey};
use crate::message::{BeginEpochRequest, EndEpochRequest, Refusal, Reply, ReplyBody, Request, VoteRequest};
use base::{LeaderEpoch, NodeId, Offset};
use wire::messages::{
    BeginQuorumEpochRequest, BeginQuorumEpochResponse, EndQuorumEpochRequest, EndQuorumEpochResponse, VoteResponse,
    begin_quorum_epoch_request, begin_quorum_epoch_response, end_quorum_epoch_request, end_quorum_epoch_response,
    vote_request, vote_response,
};

pub(super) fn decode_vote(m: &vote_request::VoteRequest, cluster_id: &str) -> Result<Request, Refusal> {
    check_cluster(m.cluster_id.as_deref(), cluster_id)?;
    let p = only(&m.topics, |t| is_ours(&t.topic_name), |t| &t.partitions, |p| p.partition_index)
        .ok_or(Refusal::InvalidRequest)?;
    Ok(Request::Vote(VoteRequest {
        voter: replica(m.voter_id, p.voter_directory_id),
        candidate: replica(p.replica_id, p.replica_directory_id).ok_or(Refusal::InvalidRequest)?,
        epoch: epoch(p.replica_epoch)?,
        last: OffsetAndEpoch { offset: Offset(p.last_offset), epoch: LeaderEpoch(p.last_offset_epoch) },
        pre_vote: p.pre_vote,
    }))
}

pub(super) fn encode_vote(m: &VoteRequest, version: i16, cluster_id: &str) -> vote_request::VoteRequest {
    let directory =
        |key: Option<ReplicaKey>| key.and_then(|k| k.directory).filter(|_| version >= 1).unwrap_or_default();
    let partition = vote_request::PartitionData {
        partition_index: 0,
        replica_epoch: m.epoch.0,
        replica_id: m.candidate.id.0,
        replica_directory_id: directory(Some(m.candidate)),
        voter_directory_id: directory(m.voter),
        last_offset_epoch: m.last.epoch.0,
        last_offset: m.last.offset.0,
        pre_vote: m.pre_vote,
        ..Default::default()
    };
    vote_request::VoteRequest {
        cluster_id: Some(cluster_id.into()),
        voter_id: if version >= 1 { node_code(m.voter.map(|v| v.id)) } else { -1 },
        topics: vec![vote_request::TopicData {
            topic_name: METADATA_TOPIC.into(),
            partitions: vec![partition],
            ..Default::default()
        }],
        ..Default::default()
    }
}

pub(super) fn decode_begin(m: &BeginQuorumEpochRequest, cluster_id: &str) -> Result<Request, Refusal> {
    check_cluster(m.cluster_id.as_deref(), cluster_id)?;
    let p = only(&m.topics, |t| is_ours(&t.topic_name), |t| &t.partitions, |p| p.partition_index)
        .ok_or(Refusal::InvalidRequest)?;
    Ok(Request::BeginEpoch(BeginEpochRequest {
        voter: replica(m.voter_id, p.voter_directory_id),
        leader: node(p.leader_id).ok_or(Refusal::InvalidRequest)?,
        epoch: epoch(p.leader_epoch)?,
        endpoints: m.leader_endpoints.iter().map(|e| endpoint(&e.name, &e.host, e.port)).collect(),
    }))
}

pub(super) fn encode_begin(m: &BeginEpochRequest, version: i16, cluster_id: &str) -> BeginQuorumEpochRequest {
    let voter = m.voter.filter(|_| version >= 1);
    let listed = |e: &Endpoint| begin_quorum_epoch_request::LeaderEndpoint {
        name: e.listener.as_str().into(),
        host: e.host.as_str().into(),
        port: e.port,
        ..Default::default()
    };
    let partition = begin_quorum_epoch_request::PartitionData {
        partition_index: 0,
        voter_directory_id: voter.and_then(|v| v.directory).unwrap_or_default(),
        leader_id: m.leader.0,
        leader_epoch: m.epoch.0,
        ..Default::default()
    };
    BeginQuorumEpochRequest {
        cluster_id: Some(cluster_id.into()),
        voter_id: node_code(voter.map(|v| v.id)),
        topics: vec![begin_quorum_epoch_request::TopicData {
            topic_name: METADATA_TOPIC.into(),
            partitions: vec![partition],
            ..Default::default()
        }],
        leader_endpoints: if version >= 1 { m.endpoints.iter().map(listed).collect() } else { Vec::new() },
        ..Default::default()
    }
}

pub(super) fn decode_end(m: &EndQuorumEpochRequest, cluster_id: &str) -> Result<Request, Refusal> {
    check_cluster(m.cluster_id.as_deref(), cluster_id)?;
    let p = only(&m.topics, |t| is_ours(&t.topic_name), |t| &t.partitions, |p| p.partition_index)
        .ok_or(Refusal::InvalidRequest)?;
    let by_id = p.preferred_successors.iter().filter_map(|id| replica(*id, base::Uuid::ZERO));
    let by_key = p.preferred_candidates.iter().filter_map(|c| replica(c.candidate_id, c.candidate_directory_id));
    Ok(Request::EndEpoch(EndEpochRequest {
        leader: node(p.leader_id).ok_or(Refusal::InvalidRequest)?,
        epoch: epoch(p.leader_epoch)?,
        successors: by_key.chain(by_id).collect(),
        endpoints: m.leader_endpoints.iter().map(|e| endpoint(&e.name, &e.host, e.port)).collect(),
    }))
}

pub(super) fn encode_end(m: &EndEpochRequest, version: i16, cluster_id: &str) -> EndQuorumEpochRequest {
    let listed = |e: &Endpoint| end_quorum_epoch_request::LeaderEndpoint {
        name: e.listener.as_str().into(),
        host: e.host.as_str().into(),
        port: e.port,
        ..Default::default()
    };
    let candidate = |key: &ReplicaKey| end_quorum_epoch_request::ReplicaInfo {
        candidate_id: key.id.0,
        candidate_directory_id: key.directory.unwrap_or_default(),
        ..Default::default()
    };
    let by_key = version >= 1;
    let partition = end_quorum_epoch_request::PartitionData {
        partition_index: 0,
        leader_id: m.leader.0,
        leader_epoch: m.epoch.0,
        preferred_successors: if by_key { Vec::new() } else { m.successors.iter().map(|k| k.id.0).collect() },
        preferred_candidates: if by_key { m.successors.iter().map(candidate).collect() } else { Vec::new() },
        ..Default::default()
    };
    EndQuorumEpochRequest {
        cluster_id: Some(cluster_id.into()),
        topics: vec![end_quorum_epoch_request::TopicData {
            topic_name: METADATA_TOPIC.into(),
            partitions: vec![partition],
            ..Default::default()
        }],
        leader_endpoints: if by_key { m.endpoints.iter().map(listed).collect() } else { Vec::new() },
        ..Default::default()
    }
}

/// The three answers have the same shape around what is their own.
macro_rules! reply_codec {
    ($encode:ident, $decode:ident, $message:ident, $module:ident, $oldest_with_endpoints:expr,
     |$reply:ident $(, $own:ident: $own_type:ty)?| $body:expr $(, $field:ident)?) => {
        pub(super) fn $encode(reply: &Reply, $($own: $own_type,)? version: i16, listener: &str) -> $message {
            let partition = $module::PartitionData {
                partition_index: 0,
                error_code: error_code(reply.refusal),
                leader_id: node_code(reply.leader),
                leader_epoch: reply.epoch.0,
                $($field: $own,)?
                ..Default::default()
            };
            let endpoints = leader_on(reply, listener).filter(|_| version >= $oldest_with_endpoints);
            let endpoint = |(id, e): (NodeId, &Endpoint)| $module::NodeEndpoint {
                node_id: id.0,
                host: e.host.as_str().into(),
                port: e.port,
                ..Default::default()
            };
            $message {
                topics: vec![$module::TopicData {
                    topic_name: METADATA_TOPIC.into(),
                    partitions: vec![partition],
                    ..Default::default()
                }],
                node_endpoints: endpoints.map(endpoint).into_iter().collect(),
                ..Default::default()
            }
        }

        pub(super) fn $decode(m: &$message, listener: &str) -> Result<Reply, ReplyError> {
            if m.error_code != 0 {
                return Err(ReplyError::Refused(m.error_code));
            }
            let $reply = only(&m.topics, |t| is_ours(&t.topic_name), |t| &t.partitions, |p| p.partition_index)
                .filter(|p| p.leader_epoch >= 0)
                .ok_or(ReplyError::Malformed)?;
            let leader = node($reply.leader_id);
            let of_leader = m.node_endpoints.iter().filter(|e| Some(NodeId(e.node_id)) == leader);
            Ok(Reply {
                refusal: refusal($reply.error_code),
                epoch: LeaderEpoch($reply.leader_epoch),
                leader,
                leader_endpoints: of_leader.map(|e| endpoint(listener, &e.host, e.port)).collect(),
                body: $body,
            })
        }
    };
}

reply_codec!(
    encode_vote_reply,
    decode_vote_reply,
    VoteResponse,
    vote_response,
    1,
    |p, granted: bool| ReplyBody::Vote { granted: p.vote_granted },
    vote_granted
);
reply_codec!(encode_begin_reply, decode_begin_reply, BeginQuorumEpochResponse, begin_quorum_epoch_response, 1, |p| {
    ReplyBody::BeginEpoch
});
reply_codec!(encode_end_reply, decode_end_reply, EndQuorumEpochResponse, end_quorum_epoch_response, 1, |p| {
    ReplyBody::EndEpoch
});
