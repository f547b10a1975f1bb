//! Responses as bytes. A fetch response is written around its records: they are never copied, their pieces go between
//! the cuts of the rest.

use crate::fetch_session::TopicKey;
use crate::limits::COPIED_RECORDS_MAX;
use arena::{BufferRef, Parcel};
use base::Uuid;
use base::limits::RESPONSE_WINDOW;
use bytes::BytesMut;
use handoff::Stretch;
use wire::messages::fetch_response::{NodeEndpoint, PartitionData};
use wire::{FetchResponseHead, FetchResponseWriter, Response, encode_response};

/// A whole response, framed.
pub fn response<R: Response>(version: i16, correlation_id: i32, body: &R) -> BufferRef {
    BufferRef::from_vec(response_bytes(version, correlation_id, body))
}

pub fn response_bytes<R: Response>(version: i16, correlation_id: i32, body: &R) -> Vec<u8> {
    let mut out = BytesMut::with_capacity(128);
    encode_response(&mut out, version, correlation_id, body).expect("handlers fill only what a version has");
    out.into()
}

/// A response that the control plane made: header and body, without the size, in its parts.
pub fn framed(parts: &[bytes::Bytes]) -> BufferRef {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut out = Vec::with_capacity(length + 4);
    out.extend_from_slice(&(length as i32).to_be_bytes());
    for part in parts {
        out.extend_from_slice(part);
    }
    BufferRef::from_vec(out)
}

/// A piece of a log in an answer, not yet any core's.
#[derive(Debug)]
pub enum Taken {
    /// Bytes at hand, of which the description takes the first, and how to ask for them again.
    Ready(Parcel, Stretch),
    Stored(Stretch),
}

/// A response but for its records, and where those belong in it.
#[derive(Debug)]
pub struct Encoded {
    pub bytes: Vec<u8>,
    pub holes: Vec<(usize, Vec<Taken>)>,
}

impl Encoded {
    /// With what is at hand of records, where that is little, in the response's own bytes. An answer about very many
    /// partitions would else have so many pieces that the loop which sends it is held for milliseconds. What is copied is
    /// no more than a response's window, since no more of one is at hand.
    pub fn with_small_records(self) -> Encoded {
        let little = |records: &[Taken]| {
            let lengths = records.iter().map(|taken| match taken {
                Taken::Ready(_, again) => Some(again.length as usize),
                Taken::Stored(_) => None,
            });
            lengths.sum::<Option<usize>>().is_some_and(|length| length <= COPIED_RECORDS_MAX)
        };
        let (mut bytes, mut holes, mut from) = (Vec::with_capacity(self.bytes.len() + RESPONSE_WINDOW), Vec::new(), 0);
        for (hole, records) in self.holes {
            bytes.extend_from_slice(&self.bytes[from..hole]);
            from = hole;
            if !little(&records) {
                holes.push((bytes.len(), records));
                continue;
            }
            for taken in records {
                let Taken::Ready(parcel, again) = taken else { unreachable!("just looked") };
                bytes.extend_from_slice(&parcel[..again.length as usize]);
            }
        }
        bytes.extend_from_slice(&self.bytes[from..]);
        Encoded { bytes, holes }
    }
}

/// One partition of a fetch response: everything but its records, and those.
#[derive(Debug)]
pub struct PartitionAnswer {
    pub data: PartitionData,
    pub records: Vec<Taken>,
    pub bytes: usize,
}

impl PartitionAnswer {
    /// What Kafka says of a partition whose log refused: as an error, and aborted transactions are null.
    pub fn refusal(index: i32, error_code: i16) -> PartitionAnswer {
        let mut answer = PartitionAnswer::error(index, error_code);
        answer.data.aborted_transactions = None;
        answer
    }

    /// What Kafka says of a partition that nobody knows: no offsets, no records.
    pub fn error(index: i32, error_code: i16) -> PartitionAnswer {
        let data = PartitionData {
            partition_index: index,
            error_code,
            high_watermark: -1,
            aborted_transactions: Some(Vec::new()),
            ..Default::default()
        };
        PartitionAnswer { data, records: Vec::new(), bytes: 0 }
    }
}

#[derive(Debug, Default)]
pub struct FetchAnswer {
    pub error_code: i16,
    pub session_id: i32,
    pub topics: Vec<(TopicKey, Vec<PartitionAnswer>)>,
    pub endpoints: Vec<NodeEndpoint>,
}

/// A whole fetch response, framed.
pub fn fetch(version: i16, correlation_id: i32, answer: FetchAnswer) -> Encoded {
    let complete = "handlers fill only what a version has, and what they promise";
    let head = FetchResponseHead { throttle_time_ms: 0, error_code: answer.error_code, session_id: answer.session_id };
    let mut out = BytesMut::with_capacity(256);
    let mut holes = Vec::new();
    let mut writer =
        FetchResponseWriter::begin(&mut out, version, correlation_id, head, answer.topics.len()).expect(complete);
    for (topic, partitions) in answer.topics {
        let (name, id) = match &topic {
            TopicKey::Name(name) => (&**name, Uuid::ZERO),
            TopicKey::Id(id) => ("", id.0),
        };
        writer.topic(name, id, partitions.len()).expect(complete);
        for partition in partitions {
            let hole = writer.partition(&partition.data, partition.bytes).expect(complete);
            if partition.bytes > 0 {
                holes.push((hole, partition.records));
            }
        }
    }
    writer.finish(&answer.endpoints).expect(complete);
    Encoded { bytes: out.into(), holes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::messages::FetchResponse;
    use wire::{ApiKey, Decoder, Message};

    fn ready(bytes: BufferRef, length: usize) -> Taken {
        let stretch = Stretch {
            owner: base::CoreId(0),
            partition: base::PartitionId::default(),
            length: length as u32,
            inside: [0; 6],
        };
        Taken::Ready(bytes.into_parcel(), stretch)
    }

    /// The response as the peer reads it.
    fn received(encoded: Encoded, version: i16) -> FetchResponse {
        let (mut bytes, mut from) = (Vec::new(), 0);
        for (hole, records) in encoded.holes {
            bytes.extend_from_slice(&encoded.bytes[from..hole]);
            for taken in records {
                let Taken::Ready(parcel, again) = taken else { panic!("only bytes here") };
                bytes.extend_from_slice(&parcel[..again.length as usize]);
            }
            from = hole;
        }
        bytes.extend_from_slice(&encoded.bytes[from..]);
        let mut d = Decoder::new(&bytes[4..]);
        assert_eq!(wire::read_response_header(&mut d, ApiKey::Fetch, version), Ok(42));
        let read = FetchResponse::decode(&mut d, version).unwrap();
        d.finish().unwrap();
        read
    }

    #[test]
    fn an_answer_about_very_many_partitions_is_in_few_pieces() {
        const MANY: usize = 3000;
        let lengths: Vec<usize> =
            (0..MANY).map(|n| if n % 1000 == 7 { 2 * COPIED_RECORDS_MAX } else { n % 90 }).collect();
        // More lies there than the answer takes.
        let some = |length: usize| ready(BufferRef::from_vec(vec![length as u8; length + 5]), length);
        let partition = |length: &usize| PartitionAnswer {
            records: vec![some(length / 2), some(length - length / 2)],
            bytes: *length,
            ..PartitionAnswer::error(0, 0)
        };
        let topics = lengths
            .iter()
            .enumerate()
            .map(|(n, length)| (TopicKey::Id(base::TopicId(Uuid(n as u128))), vec![partition(length)]));
        let encoded =
            fetch(18, 42, FetchAnswer { topics: topics.collect(), ..Default::default() }).with_small_records();
        assert_eq!(encoded.holes.len(), 3, "only what is long is a piece of its own");
        let read = received(encoded, 18);
        for (topic, length) in read.responses.iter().zip(&lengths) {
            let half = length / 2;
            let expected = [vec![half as u8; half], vec![(length - half) as u8; length - half]].concat();
            assert_eq!(topic.partitions[0].records.as_deref(), Some(&expected[..]));
        }
    }

    #[test]
    fn records_stand_where_the_response_has_them() {
        for version in [4, 12, 18] {
            let topic = |n: u128| {
                if version >= 13 {
                    TopicKey::Id(base::TopicId(Uuid(n)))
                } else {
                    TopicKey::Name(format!("t{n}").into())
                }
            };
            let with = |text: &'static str| PartitionAnswer {
                records: vec![ready(BufferRef::from_static(text.as_bytes()), text.len())],
                bytes: text.len(),
                ..PartitionAnswer::error(0, 0)
            };
            let answer = FetchAnswer {
                topics: vec![
                    (topic(1), vec![with("first"), PartitionAnswer::error(1, 6)]),
                    (topic(2), vec![with("second")]),
                ],
                ..Default::default()
            };
            let read = received(fetch(version, 42, answer), version);
            let records: Vec<_> =
                read.responses.iter().flat_map(|t| t.partitions.iter().map(|p| p.records.clone().unwrap())).collect();
            assert_eq!(records, vec!["first", "", "second"], "empty, never null");
        }
    }
}
