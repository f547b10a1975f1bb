use super::*;
use crate::ids::OffsetAndEpoch;
use crate::message::{
    BeginEpochRequest, EndEpochRequest, FetchReply, FetchRequest, FetchSnapshotReply, FetchSnapshotRequest, Fetched,
    ReplyBody, VoteRequest,
};
use base::{Offset, WallMillis};
use bytes::Bytes;
use wire::messages::{FetchRequest as WireFetch, describe_quorum_request};
use wire::{ApiKey, Decoder, Message, VersionRange};

const CLUSTER: &str = "cluster";
const LISTENER: &str = "CONTROLLER";

fn key(id: i32) -> ReplicaKey {
    ReplicaKey { id: NodeId(id), directory: Some(Uuid(100 + id as u128)) }
}

fn end(epoch: i32, offset: i64) -> OffsetAndEpoch {
    OffsetAndEpoch { offset: Offset(offset), epoch: LeaderEpoch(epoch) }
}

fn requests() -> Vec<Request> {
    let epoch = LeaderEpoch(7);
    let endpoints = vec![endpoint(LISTENER, "host", 9093)];
    vec![
        Request::Vote(VoteRequest { voter: Some(key(2)), candidate: key(1), epoch, last: end(6, 90), pre_vote: true }),
        Request::BeginEpoch(BeginEpochRequest {
            voter: Some(key(2)),
            leader: NodeId(1),
            epoch,
            endpoints: endpoints.clone(),
        }),
        Request::EndEpoch(EndEpochRequest { leader: NodeId(1), epoch, successors: vec![key(3), key(2)], endpoints }),
        Request::Fetch(FetchRequest {
            replica: Some(key(2)),
            epoch,
            offset: Offset(55),
            last_epoch: LeaderEpoch(6),
            wait_ms: 500,
            max_bytes: 1 << 20,
            high_watermark: Some(Offset(50)),
        }),
        Request::FetchSnapshot(FetchSnapshotRequest {
            replica: Some(key(2)),
            epoch,
            id: end(5, 40),
            position: 8192,
            max_bytes: 1 << 20,
        }),
    ]
}

fn newest(api: ApiKey) -> VersionRange {
    match api {
        ApiKey::Vote => wire::messages::VoteRequest::VERSIONS,
        ApiKey::BeginQuorumEpoch => wire::messages::BeginQuorumEpochRequest::VERSIONS,
        ApiKey::EndQuorumEpoch => wire::messages::EndQuorumEpochRequest::VERSIONS,
        ApiKey::Fetch => WireFetch::VERSIONS,
        _ => wire::messages::FetchSnapshotRequest::VERSIONS,
    }
}

#[test]
fn requests_survive_the_wire_in_their_newest_version() {
    for request in requests() {
        let api = encode_request(&request, 0, CLUSTER).api();
        let version = newest(api).max;
        let encoded = encode_request(&request, version, CLUSTER);
        let mut bytes = bytes::BytesMut::new();
        encoded.encode(&mut bytes, version).unwrap();
        let decoded = RequestKind::decode(api, version, &mut Decoder::new(&bytes)).unwrap();
        assert_eq!(decode_request(&decoded, version, CLUSTER), Ok(request.clone()));
        assert_eq!(decode_request(&decoded, version, "another"), Err(Refusal::InconsistentClusterId));
    }
}

#[test]
fn every_older_version_can_be_written_too() {
    for request in requests() {
        let api = encode_request(&request, 0, CLUSTER).api();
        // A fetch of the metadata log needs the cluster id and the last fetched epoch; a pre-vote needs version 2.
        let oldest = if api == ApiKey::Fetch { 12 } else { 0 };
        for version in oldest..=newest(api).max {
            let mut request = request.clone();
            if let Request::Vote(vote) = &mut request {
                vote.pre_vote = version >= 2;
            }
            let mut bytes = bytes::BytesMut::new();
            encode_request(&request, version, CLUSTER).encode(&mut bytes, version).unwrap();
            let decoded = RequestKind::decode(api, version, &mut Decoder::new(&bytes)).unwrap();
            decode_request(&decoded, version, CLUSTER).unwrap();
        }
    }
}

#[test]
fn replies_survive_the_wire_in_their_newest_version() {
    let batch = crate::records::build(Offset(5), LeaderEpoch(7), WallMillis(1), &[Bytes::from_static(b"record")]);
    let fetched =
        |found| ReplyBody::Fetch(FetchReply { high_watermark: Some(Offset(9)), log_start: Some(Offset(2)), found });
    let snapshot = FetchSnapshotReply { id: end(5, 40), size: 100, position: 10, bytes: Bytes::from_static(b"part") };
    for (api, body) in [
        (ApiKey::Vote, ReplyBody::Vote { granted: true }),
        (ApiKey::BeginQuorumEpoch, ReplyBody::BeginEpoch),
        (ApiKey::EndQuorumEpoch, ReplyBody::EndEpoch),
        (ApiKey::Fetch, fetched(Fetched::Batches(vec![batch.clone(), batch]))),
        (ApiKey::Fetch, fetched(Fetched::Diverging(end(6, 70)))),
        (ApiKey::Fetch, fetched(Fetched::Snapshot(end(5, 40)))),
        (ApiKey::FetchSnapshot, ReplyBody::FetchSnapshot(snapshot)),
    ] {
        for refusal in [None, Some(Refusal::FencedLeaderEpoch), Some(Refusal::NotLeaderOrFollower)] {
            let reply = Reply {
                refusal,
                epoch: LeaderEpoch(7),
                leader: Some(NodeId(3)),
                leader_endpoints: vec![endpoint(LISTENER, "leader", 9095)],
                body: body.clone(),
            };
            let version = newest(api).max;
            let mut bytes = bytes::BytesMut::new();
            encode_reply(&reply, version, LISTENER).encode(&mut bytes, version).unwrap();
            let decoded = ResponseKind::decode(api, version, &mut Decoder::new(&bytes)).unwrap();
            assert_eq!(decode_reply(&decoded, LISTENER), Ok(reply.clone()));
            // Whatever version a request came in, it has an answer.
            for version in newest(api).iter() {
                encode_reply(&reply, version, LISTENER).encode(&mut bytes, version).unwrap();
            }
        }
    }
}

#[test]
fn codes_map_back_and_strange_ones_are_tried_again() {
    for code in -1..140 {
        match refusal(code) {
            None => assert_eq!(code, 0),
            Some(Refusal::Storage) => (),
            Some(known) => assert_eq!(error_code(Some(known)), code),
        }
    }
}

#[test]
fn another_partition_is_refused() {
    let Request::Fetch(fetch) = &requests()[3] else { panic!("the fourth is a fetch") };
    let mut encoded = fetch::encode_fetch(fetch, 17, CLUSTER);
    encoded.topics[0].partitions[0].partition = 1;
    let kind = RequestKind::Fetch(encoded);
    assert_eq!(decode_request(&kind, 17, CLUSTER), Err(Refusal::InvalidRequest));
    let ResponseKind::Fetch(answer) = refuse(&kind, Refusal::InvalidRequest) else {
        panic!("a fetch is answered as one")
    };
    assert_eq!(answer.error_code, ErrorCode::InvalidRequest.code());
}

#[test]
fn the_quorum_is_described_only_by_its_leader_and_for_its_partition() {
    let request = |name: &str, partition_index| wire::messages::DescribeQuorumRequest {
        topics: vec![describe_quorum_request::TopicData {
            topic_name: name.into(),
            partitions: vec![describe_quorum_request::PartitionData { partition_index, ..Default::default() }],
            ..Default::default()
        }],
        ..Default::default()
    };
    let description = crate::Description {
        leader: NodeId(1),
        epoch: LeaderEpoch(4),
        high_watermark: Some(Offset(10)),
        voters: vec![crate::ReplicaDescription {
            key: key(1),
            log_end: Some(Offset(11)),
            last_fetch: Some(WallMillis(5)),
            last_caught_up: None,
        }],
        observers: Vec::new(),
        nodes: vec![(NodeId(1), vec![endpoint(LISTENER, "host", 9093)])],
    };
    let code = |r: &wire::messages::DescribeQuorumResponse| r.topics[0].partitions[0].error_code;
    for version in 0..=2 {
        let answer = describe_response(&request(METADATA_TOPIC, 0), Some(&description), version);
        answer.to_bytes(version).unwrap();
        assert_eq!((code(&answer), answer.topics[0].partitions[0].high_watermark), (0, 10));
        assert_eq!(answer.nodes.len(), usize::from(version >= 2));
        let other = describe_response(&request("topic", 0), Some(&description), version);
        assert_eq!(code(&other), ErrorCode::UnknownTopicOrPartition.code());
        let other = describe_response(&request(METADATA_TOPIC, 1), Some(&description), version);
        assert_eq!(code(&other), ErrorCode::UnknownTopicOrPartition.code());
        let follower = describe_response(&request(METADATA_TOPIC, 0), None, version);
        assert_eq!(code(&follower), ErrorCode::NotLeaderOrFollower.code());
        follower.to_bytes(version).unwrap();
    }
}
