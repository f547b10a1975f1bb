//! Responses written piece by piece are what the generated codec writes.

use crate::contents::{Dice, bytes};
use crate::random::schema;
use bytes::{Bytes, BytesMut};
use wire::messages::{FetchResponse, ProduceResponse};
use wire::{Decoder, FetchResponseHead, FetchResponseWriter, Message, ProduceResponseWriter, encode_response};

/// Contents of every version.
fn responses<M: Message>(mut check: impl FnMut(i16, M)) {
    let schema = schema();
    let message = schema.find(M::NAME).unwrap();
    let mut dice = Dice(11);
    for version in M::VERSIONS.iter() {
        for _ in 0..60 {
            let bytes = bytes(message, version, &mut dice);
            check(version, M::decode(&mut Decoder::new(&bytes), version).unwrap());
        }
    }
}

#[test]
fn fetch_responses_are_the_same_with_their_holes_filled() {
    responses(|version, mut response: FetchResponse| {
        // The writer knows no unknown tags outside partitions, and no null records.
        response.unknown_tags = Default::default();
        for topic in &mut response.responses {
            topic.unknown_tags = Default::default();
            for partition in &mut topic.partitions {
                partition.records.get_or_insert_with(Bytes::new);
            }
        }
        let mut whole = BytesMut::new();
        encode_response(&mut whole, version, 5, &response).unwrap();

        let mut out = BytesMut::from(&b"earlier"[..]);
        let head = FetchResponseHead {
            throttle_time_ms: response.throttle_time_ms,
            error_code: response.error_code,
            session_id: response.session_id,
        };
        let mut holes = Vec::new();
        let mut writer = FetchResponseWriter::begin(&mut out, version, 5, head, response.responses.len()).unwrap();
        for topic in &response.responses {
            writer.topic(&topic.topic, topic.topic_id, topic.partitions.len()).unwrap();
            for partition in &topic.partitions {
                let records = partition.records.clone().unwrap();
                holes.push((writer.partition(partition, records.len()).unwrap(), records));
            }
        }
        writer.finish(&response.node_endpoints).unwrap();
        let mut filled = Vec::new();
        let mut from = "earlier".len();
        for (hole, records) in holes {
            filled.extend_from_slice(&out[from..hole]);
            filled.extend_from_slice(&records);
            from = hole;
        }
        filled.extend_from_slice(&out[from..]);
        assert_eq!(filled, whole, "version {version}");
    });
}

#[test]
fn produce_responses_are_the_same() {
    responses(|version, mut response: ProduceResponse| {
        response.unknown_tags = Default::default();
        response.responses.iter_mut().for_each(|topic| topic.unknown_tags = Default::default());
        let mut whole = BytesMut::new();
        encode_response(&mut whole, version, 5, &response).unwrap();

        let mut out = BytesMut::new();
        let mut writer = ProduceResponseWriter::begin(&mut out, version, 5, response.responses.len()).unwrap();
        for topic in &response.responses {
            writer.topic(&topic.name, topic.topic_id, topic.partition_responses.len()).unwrap();
            topic.partition_responses.iter().for_each(|partition| writer.partition(partition).unwrap());
        }
        writer.finish(response.throttle_time_ms, &response.node_endpoints).unwrap();
        assert_eq!(out, whole, "version {version}");
    });
}
