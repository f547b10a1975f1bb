//! Kafka's messages: requests with their header, responses, every message by itself, frames on a stream, and the
//! records of the internal logs.

use crate::golden;
use crate::memory::{bounded, without_allocation};
use bytes::{Bytes, BytesMut};
use wire::frame::{FrameParser, FramePart};
use wire::messages::fetch_request::{FetchRequest, FetchRequestView};
use wire::messages::produce_request::{ProduceRequest, ProduceRequestView};
use wire::{
    ApiKey, DecodeError, Decoder, EncodeError, GroupRecordKey, GroupRecordValue, Message, MessageView,
    MetadataRecordKind, RemoteLogRecordKind, RequestHeaderView, RequestKind, ResponseKind, ShareStateRecordKey,
    ShareStateRecordValue, TextView, TransactionRecordKey, TransactionRecordValue, control, frame,
};

/// A decoder may take 64 times the bytes it reads, and 64 KiB; the targets read what they wrote once more, and keep both.
const FACTOR: u64 = 256;
const BASE: u64 = 512 << 10;

/// What was read from `body` is written, read again and written again: both times the same bytes. Only unknown tags that
/// came out of order are read and cannot be written. Strings that share the frame say what copies say.
fn assert_stable<T: PartialEq>(
    body: &[u8],
    message: &T,
    encode: impl Fn(&T, &mut BytesMut) -> Result<(), EncodeError>,
    decode: impl Fn(&mut Decoder<'_>) -> Result<T, DecodeError>,
) {
    crate::depth::reached();
    let mut first = BytesMut::new();
    if encode(message, &mut first).is_err() {
        return;
    }
    let mut d = Decoder::new(&first);
    let again = decode(&mut d).expect("what was written is read");
    d.finish().expect("all of what was written is read");
    let frame = Bytes::copy_from_slice(body);
    let shared = decode(&mut Decoder::shared(&frame)).expect("sharing changes nothing");
    for other in [again, shared] {
        // NaN differs from itself, its bytes do not.
        if other != *message {
            let mut second = BytesMut::new();
            encode(&other, &mut second).expect("what was written is written again");
            assert_eq!(first, second);
        }
    }
}

/// A request as it comes in a frame: header and body.
pub fn request(data: &[u8]) {
    bounded(data, FACTOR, BASE, || {
        let mut d = Decoder::new(data);
        let Ok(header) = without_allocation(|| RequestHeaderView::decode(&mut d)) else { return };
        let body = &data[d.position()..];
        match header.api {
            ApiKey::Produce => assert_produce_view(body, header.version),
            ApiKey::Fetch => assert_fetch_view(body, header.version),
            _ => {}
        }
        let mut owned = Decoder::new(body);
        let Ok(message) = RequestKind::decode(header.api, header.version, &mut owned) else { return };
        assert_stable(
            body,
            &message,
            |message, out| message.encode(out, header.version),
            |d| RequestKind::decode(header.api, header.version, d),
        );
    });
}

fn assert_produce_view(body: &[u8], version: i16) {
    let (mut d, mut e) = (Decoder::new(body), Decoder::new(body));
    let view = without_allocation(|| ProduceRequestView::decode_view(&mut d, version));
    let owned = ProduceRequest::decode(&mut e, version);
    assert_eq!(d.position(), e.position());
    let (view, owned) = match (view, owned) {
        (Ok(view), Ok(owned)) => (view, owned),
        // The view reserves no memory, so it has no use for the owned form's allowance.
        (Ok(_), Err(DecodeError::TooManyElements { .. })) => return,
        (view, owned) => return assert_eq!(view.err(), owned.err()),
    };
    assert_eq!(view.transactional_id.map(TextView::lossy).as_deref(), owned.transactional_id.as_deref());
    assert_eq!((view.acks, view.timeout_ms), (owned.acks, owned.timeout_ms));
    assert_eq!(view.topic_data.len(), owned.topic_data.len());
    for (topic, owned) in view.topic_data.iter().zip(&owned.topic_data) {
        assert_eq!((&*topic.name.lossy(), topic.topic_id), (owned.name.as_str(), owned.topic_id));
        assert_eq!(topic.partition_data.len(), owned.partition_data.len());
        for (partition, owned) in topic.partition_data.iter().zip(&owned.partition_data) {
            assert_eq!(partition.index, owned.index);
            assert_eq!(partition.records.as_deref(), owned.records.as_deref());
            if let Some(records) = partition.records {
                assert_eq!(&body[records.range()], records.bytes());
            }
        }
    }
}

fn assert_fetch_view(body: &[u8], version: i16) {
    let (mut d, mut e) = (Decoder::new(body), Decoder::new(body));
    let view = without_allocation(|| FetchRequestView::decode_view(&mut d, version));
    let owned = FetchRequest::decode(&mut e, version);
    let (view, owned) = match (view, owned) {
        (Ok(view), Ok(owned)) => (view, owned),
        (Ok(_), Err(DecodeError::TooManyElements { .. })) => return,
        (view, owned) => return assert_eq!(view.err(), owned.err()),
    };
    assert_eq!(d.position(), e.position());
    assert_eq!(view.cluster_id.map(TextView::lossy).as_deref(), owned.cluster_id.as_deref());
    assert_eq!(view.rack_id.lossy(), owned.rack_id.as_str());
    assert_eq!(
        (view.min_bytes, view.max_bytes, view.max_wait_ms),
        (owned.min_bytes, owned.max_bytes, owned.max_wait_ms)
    );
    assert_eq!((view.session_id, view.session_epoch), (owned.session_id, owned.session_epoch));
    assert_eq!(view.topics.len(), owned.topics.len());
    for (topic, owned) in view.topics.iter().zip(&owned.topics) {
        assert_eq!((&*topic.topic.lossy(), topic.topic_id), (owned.topic.as_str(), owned.topic_id));
        assert_eq!(topic.partitions.len(), owned.partitions.len());
        for (partition, owned) in topic.partitions.iter().zip(&owned.partitions) {
            assert_eq!((partition.partition, partition.fetch_offset), (owned.partition, owned.fetch_offset));
            assert_eq!(partition.partition_max_bytes, owned.partition_max_bytes);
            assert_eq!(partition.high_watermark, owned.high_watermark);
        }
    }
    assert_eq!(view.forgotten_topics_data.len(), owned.forgotten_topics_data.len());
    for (topic, owned) in view.forgotten_topics_data.iter().zip(&owned.forgotten_topics_data) {
        assert_eq!((&*topic.topic.lossy(), topic.topic_id), (owned.topic.as_str(), owned.topic_id));
        assert_eq!(topic.partitions.iter().collect::<Vec<i32>>(), owned.partitions);
    }
}

/// API and version, then a response with its header.
pub fn response(data: &[u8]) {
    let Some((api, version, rest)) = api_and_version(data) else { return };
    bounded(data, FACTOR, BASE, || {
        let mut d = Decoder::new(rest);
        if wire::read_response_header(&mut d, api, version).is_err() {
            return;
        }
        let body = &rest[d.position()..];
        let Ok(message) = ResponseKind::decode(api, version, &mut d) else { return };
        assert_stable(
            body,
            &message,
            |message, out| message.encode(out, version),
            |d| ResponseKind::decode(api, version, d),
        );
    });
}

/// The API whose key stands in front, and one of its versions.
pub fn api_and_version(data: &[u8]) -> Option<(ApiKey, i16, &[u8])> {
    let (head, rest) = data.split_first_chunk::<4>()?;
    let api = ApiKey::from_code(i16::from_be_bytes([head[0], head[1]]))?;
    let versions = api.versions();
    let span = i32::from(versions.max) - i32::from(versions.min) + 1;
    let version = i32::from(versions.min)
        + (i32::from(i16::from_be_bytes([head[2], head[3]])) - i32::from(versions.min)).rem_euclid(span);
    Some((api, version as i16, rest))
}

/// One of the 286 messages, by its place in the list.
struct Row {
    name: &'static str,
    min: i16,
    max: i16,
    check: fn(&[u8], i16),
}

fn check<M: Message>(body: &[u8], version: i16) {
    let mut d = Decoder::new(body);
    let Ok(message) = M::decode(&mut d, version) else { return };
    assert_stable(body, &message, |message, out| message.encode(out, version), |d| M::decode(d, version));
}

macro_rules! rows {
    ($($message:ident,)*) => {
        &[$(Row {
            name: <wire::messages::$message as Message>::NAME,
            min: <wire::messages::$message as Message>::VERSIONS.min,
            max: <wire::messages::$message as Message>::VERSIONS.max,
            check: check::<wire::messages::$message>,
        }),*]
    };
}

const ROWS: &[Row] = wire::for_each_message!(rows);

/// The number of a message and its version, then its body.
pub fn message(data: &[u8]) {
    let Some((head, body)) = data.split_first_chunk::<3>() else { return };
    let row = &ROWS[usize::from(u16::from_be_bytes([head[0], head[1]])) % ROWS.len()];
    let span = i32::from(row.max) - i32::from(row.min) + 1;
    let version = i32::from(row.min) + i32::from(head[2]) % span;
    bounded(data, FACTOR, BASE, || (row.check)(body, version as i16));
}

const FRAME_MAX: usize = 1 << 16;

/// The size of the pieces a stream comes in, then the stream: frames are the same however it is cut.
pub fn framing(data: &[u8]) {
    let Some((piece, stream)) = data.split_first() else { return };
    let mut whole = Vec::new();
    let mut at = 0;
    let whole_end = loop {
        match frame::split(&stream[at..], FRAME_MAX) {
            Ok(Some(range)) => {
                whole.push(&stream[at + range.start..at + range.end]);
                at += range.end;
            }
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    let mut parser = FrameParser::new(FRAME_MAX);
    let mut frames: Vec<Vec<u8>> = Vec::new();
    let mut current = Vec::new();
    let mut end = Ok(());
    'stream: for chunk in stream.chunks(usize::from(*piece) + 1) {
        let mut position = 0;
        loop {
            match parser.next(chunk, &mut position) {
                Ok(Some(FramePart::Begin(size))) => assert!(size <= FRAME_MAX),
                Ok(Some(FramePart::Body { range, last })) => {
                    current.extend_from_slice(&chunk[range]);
                    if last {
                        frames.push(std::mem::take(&mut current));
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    end = Err(error);
                    break 'stream;
                }
            }
        }
        assert_eq!(position, chunk.len());
    }
    if !whole.is_empty() {
        crate::depth::reached();
    }
    assert_eq!(frames, whole);
    assert_eq!(end, whole_end);
}

/// A record of the metadata log or of the remote log's metadata, with its frame.
pub fn metadata_record(data: &[u8]) {
    bounded(data, FACTOR, BASE, || {
        if let Ok((record, version)) = MetadataRecordKind::decode(&mut Decoder::new(data)) {
            let decode = |d: &mut Decoder<'_>| MetadataRecordKind::decode(d).map(|(record, _)| record);
            assert!(record.versions().contains(version));
            assert_stable(data, &record, |record, out| record.encode(out, version), decode);
        }
        if let Ok((record, version)) = RemoteLogRecordKind::decode(&mut Decoder::new(data)) {
            let decode = |d: &mut Decoder<'_>| RemoteLogRecordKind::decode(d).map(|(record, _)| record);
            assert_stable(data, &record, |record, out| record.encode(out, version), decode);
        }
    });
}

/// The length of a key, the key, and a value: of a coordinator's log.
pub fn coordinator_record(data: &[u8]) {
    let Some((key, value)) = keyed(data) else { return };
    macro_rules! check {
        ($key:ident, $value:ident) => {
            if let Ok(decoded) = $key::decode(&mut Decoder::new(key)) {
                let id = decoded.id();
                assert_stable(key, &decoded, |key, out| key.encode(out), |d| $key::decode(d));
                if let Ok((decoded, version)) = $value::decode(id, &mut Decoder::new(value)) {
                    assert!(decoded.versions().contains(version));
                    let decode = |d: &mut Decoder<'_>| $value::decode(id, d).map(|(value, _)| value);
                    assert_stable(value, &decoded, |value, out| value.encode(out, version), decode);
                }
            }
        };
    }
    bounded(data, FACTOR, BASE, || {
        check!(GroupRecordKey, GroupRecordValue);
        check!(TransactionRecordKey, TransactionRecordValue);
        check!(ShareStateRecordKey, ShareStateRecordValue);
    });
}

/// A two-byte length, so many bytes, and the rest.
pub fn keyed(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = data.split_first_chunk::<2>()?;
    rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))
}

/// Key and value of a control record.
pub fn control_record(data: &[u8]) {
    let Some((key, value)) = keyed(data) else { return };
    bounded(data, FACTOR, BASE, || {
        let Ok(record) = control::ControlRecord::decode(key, value) else { return };
        let (mut key, mut value) = (BytesMut::new(), BytesMut::new());
        record.encode_key(&mut key);
        crate::depth::reached();
        if record.encode_value(&mut value).is_ok() {
            assert_eq!(control::ControlRecord::decode(&key, &value), Ok(record));
        }
    });
}

fn with_length(key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut bytes = (key.len() as u16).to_be_bytes().to_vec();
    bytes.extend_from_slice(key);
    bytes.extend_from_slice(value);
    bytes
}

/// Every request of Kafka 4.4 with a header.
pub fn request_seeds() -> Vec<Vec<u8>> {
    api_messages("Request")
        .into_iter()
        .map(|(api, message)| {
            let mut frame = BytesMut::new();
            wire::put_request_header(&mut frame, api, message.version, 7, Some("client")).expect("a short client id");
            frame.extend_from_slice(&message.bytes);
            frame.to_vec()
        })
        .collect()
}

pub fn response_seeds() -> Vec<Vec<u8>> {
    api_messages("Response")
        .into_iter()
        .map(|(api, message)| {
            let mut data = BytesMut::new();
            data.extend_from_slice(&api.code().to_be_bytes());
            data.extend_from_slice(&message.version.to_be_bytes());
            wire::put_response_header(&mut data, api, message.version, 7).expect("a header without tags");
            data.extend_from_slice(&message.bytes);
            data.to_vec()
        })
        .collect()
}

/// Golden messages that are a request or a response of an API.
pub fn api_messages(kind: &str) -> Vec<(ApiKey, golden::GoldenMessage)> {
    let of_api = |message: golden::GoldenMessage| {
        let stem = message.name.strip_suffix(kind)?;
        let api = ApiKey::ALL.iter().find(|api| api.name() == stem)?;
        api.supports(message.version).then_some((*api, message))
    };
    golden::messages().into_iter().filter_map(of_api).collect()
}

pub fn message_seeds() -> Vec<Vec<u8>> {
    let seed = |message: golden::GoldenMessage| {
        let at = ROWS.iter().position(|row| row.name == message.name).expect("every message is generated");
        let mut data = (at as u16).to_be_bytes().to_vec();
        data.push((message.version - ROWS[at].min) as u8);
        data.extend_from_slice(&message.bytes);
        data
    };
    golden::messages().into_iter().filter(|message| message.flavour != 'p').map(seed).collect()
}

pub fn framing_seeds() -> Vec<Vec<u8>> {
    let sized = |frame: &Vec<u8>| [&(frame.len() as i32).to_be_bytes(), &frame[..]].concat();
    let requests = request_seeds();
    let stream = |(at, frames): (usize, &[Vec<u8>])| {
        let mut data = vec![(at * 37) as u8];
        frames.iter().for_each(|frame| data.extend(sized(frame)));
        data
    };
    requests.chunks(5).take(100).enumerate().map(stream).collect()
}

pub fn metadata_record_seeds() -> Vec<Vec<u8>> {
    let framed = golden::messages().into_iter().filter(|message| message.flavour == 'p');
    framed.filter(|message| message.name.ends_with("Record")).map(|message| message.bytes).collect()
}

/// Values stand behind their keys in the golden file.
pub fn coordinator_record_seeds() -> Vec<Vec<u8>> {
    let mut key = Vec::new();
    let mut seeds = Vec::new();
    for message in golden::messages().into_iter().filter(|message| message.flavour == 'p') {
        if message.name.ends_with("Key") {
            key = message.bytes;
        } else if message.name.ends_with("Value") {
            seeds.push(with_length(&key, &message.bytes));
        }
    }
    seeds
}

pub fn control_record_seeds() -> Vec<Vec<u8>> {
    let bodies = [
        ("LeaderChangeMessage", control::ControlType::LeaderChange),
        ("SnapshotHeaderRecord", control::ControlType::SnapshotHeader),
        ("SnapshotFooterRecord", control::ControlType::SnapshotFooter),
        ("KRaftVersionRecord", control::ControlType::KRaftVersion),
        ("VotersRecord", control::ControlType::KRaftVoters),
    ];
    let key = |kind: control::ControlType| {
        let mut key = BytesMut::new();
        kind.encode_key(&mut key);
        key
    };
    let mut seeds = vec![
        with_length(&key(control::ControlType::Commit), &[0, 0, 0, 0, 0, 9]),
        with_length(&key(control::ControlType::Abort), &[0, 0, 0, 0, 0, 9]),
    ];
    for message in golden::messages().iter().filter(|message| message.flavour != 'p' && message.version == 0) {
        if let Some((_, kind)) = bodies.iter().find(|(name, _)| *name == message.name) {
            seeds.push(with_length(&key(*kind), &message.bytes));
        }
    }
    seeds
}
