//! Rows of the table of traps about connections: order of replies, sizes of frames, batches above the limit.

use super::Bench;
use super::traps::{batch, produce};
use crate::Result;
use crate::topics::create;
use bytes::Bytes;
use perf::client::{CallError, Connection, api_versions_request};
use serde_json::{Value, json};
use std::time::Duration;
use wire::messages::fetch_request::{FetchPartition, FetchTopic};
use wire::messages::{FetchRequest, HeartbeatRequest, MetadataRequest};
use wire::{ApiKey, KafkaString, RequestKind};

type Run = fn(&mut Bench<'_>) -> Result<Value>;

pub const CASES: &[(&str, Run)] = &[
    ("trap/order-of-replies", order_of_replies),
    ("trap/frame-lengths", frame_lengths),
    ("trap/names-that-are-no-text", names_that_are_no_text),
    ("trap/unknown-apis", unknown_apis),
    ("trap/batch-above-the-limit", batch_above_the_limit),
    ("trap/acks-none", acks_none),
    ("trap/advertised-address", advertised_address),
];

const PATIENCE: Duration = Duration::from_secs(60);

/// Requests that take different ways through a broker, sent without waiting; the answers come in their order.
fn order_of_replies(bench: &mut Bench<'_>) -> Result<Value> {
    const ROUNDS: usize = 1000;
    let (mut raw, name) = (bench.raw(), bench.name("order"));
    create(&mut raw, &name, 1, &[])?;
    let partition = FetchPartition { fetch_offset: 1_000_000, partition_max_bytes: 1000, ..Default::default() };
    let waiting = FetchPartition { fetch_offset: 0, ..partition.clone() };
    let fetch = |partition: FetchPartition, wait: i32| -> RequestKind {
        let topic =
            FetchTopic { topic: KafkaString::from(name.as_str()), partitions: vec![partition], ..Default::default() };
        FetchRequest {
            max_wait_ms: wait,
            min_bytes: 1 << 20,
            max_bytes: 1 << 20,
            topics: vec![topic],
            ..Default::default()
        }
        .into()
    };
    let beat = HeartbeatRequest {
        group_id: KafkaString::from("nobodys"),
        member_id: KafkaString::from("nobody"),
        ..Default::default()
    };
    let kinds: Vec<(i16, RequestKind)> = vec![
        (12, fetch(waiting, 5)),
        (9, produce(&name, vec![(0, batch(&[0], b"v"))])),
        (12, MetadataRequest::default().into()),
        (4, beat.into()),
        (3, api_versions_request().into()),
        (12, fetch(partition, 0)),
    ];
    let mut connection = Connection::open(bench.address(), PATIENCE)?;
    let mut sent = Vec::new();
    for round in 0..ROUNDS {
        for (version, request) in &kinds {
            sent.push((connection.send_kind(*version, request)?, request.api(), *version));
        }
        // Unread answers are bounded, or both ends would wait for the other to read.
        if round % 20 == 19 {
            for (correlation, api, version) in sent.drain(..) {
                connection.receive_kind(api, version, correlation)?;
            }
        }
    }
    Ok(json!({ "in order": sent.is_empty() }))
}

/// What the broker does after such bytes came first on a connection.
fn after(bench: &Bench<'_>, bytes: &[u8]) -> Result<Value> {
    let mut connection = Connection::open(bench.address(), Duration::from_secs(15))?;
    connection.send_bytes(bytes)?;
    Ok(match connection.receive_frame() {
        Ok(frame) => json!({ "frame": frame.len() }),
        Err(CallError::Closed) => json!("closed"),
        Err(CallError::TimedOut) => json!("silent"),
        Err(error) => json!(error.to_string()),
    })
}

fn frame_lengths(bench: &mut Bench<'_>) -> Result<Value> {
    let lengths: Vec<Value> = [-1i32, i32::MIN, i32::MAX, 104_857_601, 0]
        .iter()
        .map(|length| after(bench, &length.to_be_bytes()))
        .collect::<Result<_>>()?;
    let hello = [0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xFC, 0x03, 0x03, 0x11, 0x22, 0x33];
    let http = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let tls = after(bench, &hello)?;
    let http = after(bench, http)?;
    let mut connection = Connection::open(bench.address(), PATIENCE)?;
    let alive = connection.call(3, &api_versions_request())?.error_code;
    Ok(json!({ "lengths": lengths, "tls": tls, "http": http, "others go on": alive }))
}

/// A header that says nothing known, in a frame of the right length.
fn unknown_apis(bench: &mut Bench<'_>) -> Result<Value> {
    let framed = |api: i16, version: i16| {
        let mut bytes = vec![0, 0, 0, 10];
        bytes.extend(api.to_be_bytes());
        bytes.extend(version.to_be_bytes());
        bytes.extend([0, 0, 0, 7, 0xFF, 0xFF]);
        bytes
    };
    let tried = [(-1, 0), (999, 0), (4, 0), (ApiKey::Metadata.code(), 99), (ApiKey::Metadata.code(), -1)];
    let found: Result<Vec<Value>> = tried.iter().map(|(api, version)| after(bench, &framed(*api, *version))).collect();
    Ok(json!(found?))
}

fn batch_above_the_limit(bench: &mut Bench<'_>) -> Result<Value> {
    let (mut raw, name) = (bench.raw(), bench.name("above"));
    create(&mut raw, &name, 1, &[])?;
    let above: Bytes = batch(&[0], &vec![3; 1_100_000]);
    let refused = raw.ask(9, &produce(&name, vec![(0, above)]))?;
    let taken = raw.ask(9, &produce(&name, vec![(0, batch(&[0], b"small"))]))?;
    let code = |answer: &Value| answer["answer"]["Responses"][0]["PartitionResponses"][0]["ErrorCode"].clone();
    Ok(json!({ "refused": code(&refused), "the connection lives": code(&taken) }))
}

/// Without acknowledgement nothing comes back, and an error closes the connection.
fn acks_none(bench: &mut Bench<'_>) -> Result<Value> {
    let (mut raw, name) = (bench.raw(), bench.name("acks-none"));
    create(&mut raw, &name, 1, &[])?;
    let without = |request: RequestKind| match request {
        RequestKind::Produce(mut produce) => {
            produce.acks = 0;
            RequestKind::from(produce)
        }
        other => other,
    };
    let mut connection = Connection::open(bench.address(), Duration::from_secs(15))?;
    connection.send_kind(9, &without(produce(&name, vec![(0, batch(&[0], b"v"))])))?;
    // The next answer on the connection is that of the next request.
    let next = connection.call(3, &api_versions_request())?.error_code;
    connection.send_kind(9, &without(produce(&name, vec![(7, batch(&[0], b"v"))])))?;
    let end = match connection.receive_frame() {
        Err(CallError::Closed) => "closed".to_owned(),
        Err(error) => error.to_string(),
        Ok(frame) => format!("a frame of {} bytes", frame.len()),
    };
    Ok(json!({ "next": next, "after an error": end }))
}

fn advertised_address(bench: &mut Bench<'_>) -> Result<Value> {
    let mut connection = Connection::open(bench.address(), PATIENCE)?;
    let metadata = connection.call(12, &MetadataRequest { topics: Some(vec![]), ..Default::default() })?;
    let told: Vec<bool> = metadata
        .brokers
        .iter()
        .map(|broker| format!("{}:{}", broker.host, broker.port) == bench.address().to_string())
        .collect();
    Ok(json!(told))
}

/// A client id and a topic's name of bytes that are no UTF-8: read with a mark in place of each, and answered like any.
fn names_that_are_no_text(bench: &mut Bench<'_>) -> Result<Value> {
    const LONGEST: usize = i16::MAX as usize;
    let questions =
        [(&b"\xFF\xFEid"[..], &b"plain"[..]), (b"plain", b"\xC3\x28\xE2\x82name"), (b"\xF0\x9F", b"\xED\xA0\x80")];
    let mut found = Vec::new();
    for (client, topic) in questions {
        found.push(topics_of(bench, client, topic)?);
    }
    // The first has made its topic, sooner or later.
    crate::wait::until("the topic", Duration::from_secs(15), || {
        let topics = topics_of(bench, questions[0].0, questions[0].1)?;
        Ok((topics[0]["ErrorCode"] == 0).then_some(()))
    })?;
    // As long as a name can be. Of a topic it is left out: the reference never answers it.
    found.push(topics_of(bench, &[0xFF; LONGEST], questions[0].1)?);
    Ok(json!(found))
}

/// Metadata v1: a header with a client id, an array of one name.
fn topics_of(bench: &Bench<'_>, client: &[u8], topic: &[u8]) -> Result<Value> {
    let mut connection = Connection::open(bench.address(), Duration::from_secs(15))?;
    let mut frame: Vec<u8> = Vec::new();
    frame.extend(ApiKey::Metadata.code().to_be_bytes());
    frame.extend([0, 1, 0, 0, 0, 7]);
    frame.extend((client.len() as i16).to_be_bytes());
    frame.extend(client);
    frame.extend([0, 0, 0, 1]);
    frame.extend((topic.len() as i16).to_be_bytes());
    frame.extend(topic);
    connection.send_bytes(&(frame.len() as i32).to_be_bytes())?;
    connection.send_bytes(&frame)?;
    Ok(match connection.receive_frame() {
        Ok(frame) => {
            let answer = crate::raw::describe_response(ApiKey::Metadata, 1, &frame.slice(4..));
            answer["answer"]["Topics"].clone()
        }
        Err(CallError::Closed) => json!("closed"),
        Err(error) => json!(error.to_string()),
    })
}
