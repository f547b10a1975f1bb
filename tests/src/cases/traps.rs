//! Rows of the table of traps that are told with raw requests: negotiation, metadata, produce, fetch, offsets.

use super::Bench;
use crate::Result;
use crate::differential::mask;
use crate::raw::Raw;
use crate::topics::create;
use base::{Uuid, WallMillis};
use batch::{BatchBuilder, Compression};
use bytes::{Bytes, BytesMut};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use wire::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use wire::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use wire::messages::fetch_request::{FetchPartition, FetchTopic};
use wire::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use wire::messages::metadata_request::MetadataRequestTopic;
use wire::messages::produce_request::{PartitionProduceData, TopicProduceData};
use wire::messages::{
    CreateTopicsRequest, DeleteRecordsRequest, FetchRequest, ListOffsetsRequest, MetadataRequest, ProduceRequest,
};
use wire::{ApiKey, KafkaString, Message, RequestKind};

type Run = fn(&mut Bench<'_>) -> Result<Value>;

pub const CASES: &[(&str, Run)] = &[
    ("trap/unknown-version-of-api-versions", unknown_version),
    ("trap/empty-record-sets", empty_record_sets),
    ("trap/auto-creation", auto_creation),
    ("trap/batch-per-partition", batch_per_partition),
    ("trap/append-time", append_time),
    ("trap/times-out-of-order", times_out_of_order),
    ("trap/nothing-at-that-time", nothing_at_that_time),
    ("trap/first-batch-whole", first_batch_whole),
    ("trap/incremental-fetch", incremental_fetch),
    ("trap/empty-fetch", empty_fetch),
    ("trap/topics-as-made", topics_as_made),
];

pub(super) const TIME: i64 = 1_700_000_000_000;

fn text(text: &str) -> KafkaString {
    KafkaString::from(text)
}

pub(crate) fn produce(name: &str, partitions: Vec<(i32, Bytes)>) -> RequestKind {
    let partition_data = partitions
        .into_iter()
        .map(|(index, records)| PartitionProduceData { index, records: Some(records), ..Default::default() })
        .collect();
    let topic = TopicProduceData { name: text(name), partition_data, ..Default::default() };
    ProduceRequest { acks: -1, timeout_ms: 10_000, topic_data: vec![topic], ..Default::default() }.into()
}

pub(crate) fn batch(times: &[i64], value: &[u8]) -> Bytes {
    let mut builder = BatchBuilder::new();
    for time in times {
        builder.append(WallMillis(TIME + time), Some(b"key"), Some(value), &[]);
    }
    builder.build().into()
}

fn masked(mut value: Value) -> Value {
    mask::apply(&mut value);
    value
}

fn unknown_version(bench: &mut Bench<'_>) -> Result<Value> {
    use perf::client::Connection;
    let mut connection = Connection::open(bench.address(), Duration::from_secs(20))?;
    // Only the fixed part of the header is known of a version that does not exist; whatever follows is passed over.
    connection.send_body(ApiKey::ApiVersions, 127, b"\xFF\xFFjunk after the header")?;
    let frame = connection.receive_frame()?;
    let answer = crate::raw::describe_response(ApiKey::ApiVersions, 0, &frame.slice(4..));
    let after = connection.call(3, &perf::client::api_versions_request())?;
    Ok(json!({ "answer": answer, "the connection lives": after.error_code }))
}

pub(super) fn fetch(name: &str, partitions: &[(i32, i64, i32)], max_bytes: i32) -> FetchRequest {
    let one = |(partition, offset, bytes): &(i32, i64, i32)| FetchPartition {
        partition: *partition,
        fetch_offset: *offset,
        partition_max_bytes: *bytes,
        ..Default::default()
    };
    let topic =
        FetchTopic { topic: text(name), partitions: partitions.iter().map(one).collect(), ..Default::default() };
    FetchRequest { max_wait_ms: 100, min_bytes: 1, max_bytes, topics: vec![topic], ..Default::default() }
}

fn empty_record_sets(bench: &mut Bench<'_>) -> Result<Value> {
    let (mut raw, name) = (bench.raw(), bench.name("none"));
    create(&mut raw, &name, 1, &[])?;
    let mut found = Vec::new();
    for version in [4, 7, 11, 12] {
        // A partition without records, one that does not exist, one asked for past its end.
        for (partition, offset) in [(0, 0), (5, 0), (0, 9)] {
            let answer = raw.ask(version, &fetch(&name, &[(partition, offset, 1000)], 1000).into())?;
            found.push(json!([version, answer["answer"]["Responses"][0]["Partitions"][0]["Records"]]));
        }
    }
    Ok(json!(found))
}

fn auto_creation(bench: &mut Bench<'_>) -> Result<Value> {
    let mut raw = bench.raw();
    let mut ask = |name: &str, auto: bool| {
        let topic = MetadataRequestTopic { name: Some(text(name)), ..Default::default() };
        let request =
            MetadataRequest { topics: Some(vec![topic]), allow_auto_topic_creation: auto, ..Default::default() };
        raw.ask(12, &request.into())
    };
    let never = bench.name("never");
    let refused = ask(&never, false)?;
    let still = ask(&never, false)?;
    let wanted = bench.name("wanted");
    let first = ask(&wanted, true)?;
    let made = crate::wait::until("the topic", Duration::from_secs(30), || {
        let answer = ask(&wanted, true)?;
        let code = answer["answer"]["Topics"][0]["ErrorCode"].as_i64();
        let led = answer["answer"]["Topics"][0]["Partitions"][0]["LeaderId"] == 1;
        Ok((code == Some(0) && led).then_some(answer))
    })?;
    // Whether the first answer says "not yet" or "unknown" depends on how quick the creation was.
    let retriable = [0, 3, 5].contains(&first["answer"]["Topics"][0]["ErrorCode"].as_i64().unwrap_or(-1));
    Ok(json!({
        "refused": refused["answer"]["Topics"][0]["ErrorCode"],
        "still": still["answer"]["Topics"][0]["ErrorCode"],
        "retriable": retriable,
        "made": masked(made["answer"]["Topics"][0].clone()),
    }))
}

fn batch_per_partition(bench: &mut Bench<'_>) -> Result<Value> {
    let (mut raw, name) = (bench.raw(), bench.name("one-batch"));
    create(&mut raw, &name, 2, &[])?;
    let mut zstd = BatchBuilder::new();
    zstd.compression(Compression::from(batch::Codec::Zstd)).append(WallMillis(TIME), None, Some(&[7; 300]), &[]);
    let zstd: Bytes = zstd.build().into();
    let two: Bytes = [batch(&[0], b"a"), batch(&[0], b"b")].concat().into();
    let mut found = Vec::new();
    for (label, version, bytes) in
        [("two batches", 9, two), ("zstd before its time", 6, zstd.clone()), ("zstd", 7, zstd.clone())]
    {
        let answer = raw.ask(version, &produce(&name, vec![(0, bytes), (1, batch(&[0], b"beside"))]))?;
        found.push(json!([label, masked(answer)]));
    }
    // Readers too old for zstd are told so, in a topic that has some.
    let recompressed = bench.name("zstd-topic");
    create(&mut raw, &recompressed, 1, &[("compression.type", "zstd")])?;
    raw.ask(9, &produce(&recompressed, vec![(0, batch(&[0], b"a"))]))?;
    for version in [9, 10] {
        let answer = raw.ask(version, &fetch(&recompressed, &[(0, 0, 1000)], 1000).into())?;
        found.push(json!(["fetched", version, answer["answer"]["Responses"][0]["Partitions"][0]["ErrorCode"]]));
    }
    Ok(json!(found))
}

fn append_time(bench: &mut Bench<'_>) -> Result<Value> {
    let mut raw = bench.raw();
    let mut found = Vec::new();
    for kind in ["LogAppendTime", "CreateTime"] {
        let name = bench.name(kind);
        create(&mut raw, &name, 1, &[("message.timestamp.type", kind)])?;
        let produced = raw.ask(9, &produce(&name, vec![(0, batch(&[0, 5], b"v"))]))?;
        let told = &produced["answer"]["Responses"][0]["PartitionResponses"][0]["LogAppendTimeMs"];
        let fetched = raw.ask(12, &fetch(&name, &[(0, 0, 10_000)], 10_000).into())?;
        let stored = &fetched["answer"]["Responses"][0]["Partitions"][0]["Records"][0];
        found.push(json!({
            "told": told.as_i64() == Some(-1),
            "attributes": stored["attributes"],
            "stored as told": stored["max_timestamp"] == *told,
            "stored as sent": stored["max_timestamp"] == TIME + 5,
            "a good batch": stored["bad batch"],
        }));
    }
    Ok(json!(found))
}

pub(super) fn by_time(raw: &mut Raw, name: &str, timestamp: i64, version: i16) -> Result<Value> {
    let partition = ListOffsetsPartition { timestamp, ..Default::default() };
    let topic = ListOffsetsTopic { name: text(name), partitions: vec![partition], ..Default::default() };
    let request = ListOffsetsRequest { replica_id: -1, topics: vec![topic], ..Default::default() };
    let answer = raw.ask(version, &request.into())?;
    Ok(answer["answer"]["Topics"][0]["Partitions"][0].clone())
}

fn times_out_of_order(bench: &mut Bench<'_>) -> Result<Value> {
    let (mut raw, name) = (bench.raw(), bench.name("disorder"));
    create(&mut raw, &name, 1, &[])?;
    for times in [&[5, 9], &[1, 2], &[7, 8]] {
        raw.ask(9, &produce(&name, vec![(0, batch(times, b"v"))]))?;
    }
    let found: Result<Vec<Value>> = [3, 6, 8, 9, 10].iter().map(|t| by_time(&mut raw, &name, TIME + t, 7)).collect();
    Ok(json!(found?))
}

/// Deletes what lies before `offset`, everything for -1.
pub(super) fn delete_records(raw: &mut Raw, name: &str, offset: i64) -> Result<Value> {
    let partition = DeleteRecordsPartition { partition_index: 0, offset, ..Default::default() };
    let topic = DeleteRecordsTopic { name: text(name), partitions: vec![partition], ..Default::default() };
    let request = DeleteRecordsRequest { topics: vec![topic], timeout_ms: 10_000, ..Default::default() };
    raw.ask(2, &request.into())
}

fn nothing_at_that_time(bench: &mut Bench<'_>) -> Result<Value> {
    let (mut raw, name) = (bench.raw(), bench.name("later"));
    create(&mut raw, &name, 1, &[])?;
    let mut found = Vec::new();
    for version in [1, 5, 7] {
        found.push(by_time(&mut raw, &name, TIME, version)?);
    }
    raw.ask(9, &produce(&name, vec![(0, batch(&[0, 1], b"v"))]))?;
    found.push(by_time(&mut raw, &name, TIME + 2, 7)?);
    delete_records(&mut raw, &name, -1)?;
    for time in [0, TIME, TIME + 1, -1, -2, -3] {
        found.push(by_time(&mut raw, &name, time, 7)?);
    }
    Ok(json!(found))
}

fn first_batch_whole(bench: &mut Bench<'_>) -> Result<Value> {
    let (mut raw, name) = (bench.raw(), bench.name("whole"));
    create(&mut raw, &name, 3, &[])?;
    let large = vec![1; 5000];
    raw.ask(9, &produce(&name, vec![(0, batch(&[0], &large)), (1, batch(&[0], &large)), (2, batch(&[0], b"s"))]))?;
    let mut found = Vec::new();
    for order in [[0, 1, 2], [1, 2, 0], [2, 0, 1]] {
        for limit in [1, 1024, 5100, 20_000] {
            let partitions: Vec<(i32, i64, i32)> = order.iter().map(|partition| (*partition, 0, limit)).collect();
            let answer = raw.ask(12, &fetch(&name, &partitions, limit).into())?;
            let listed = answer["answer"]["Responses"][0]["Partitions"].clone();
            let sizes: Vec<Value> = listed
                .as_array()
                .map_or(&[][..], Vec::as_slice)
                .iter()
                .map(|partition| {
                    let whole = partition["Records"][0].get("base_offset").is_some();
                    json!([partition["PartitionIndex"], partition["ErrorCode"], whole])
                })
                .collect();
            found.push(json!([order, limit, sizes]));
        }
    }
    Ok(json!(found))
}

fn incremental_fetch(bench: &mut Bench<'_>) -> Result<Value> {
    let (mut raw, name) = (bench.raw(), bench.name("session"));
    create(&mut raw, &name, 2, &[])?;
    let mut writer = bench.raw();
    raw.ask(9, &produce(&name, vec![(0, batch(&[0, 1, 2], b"v"))]))?;
    let full = fetch(&name, &[(0, 3, 10_000), (1, 0, 10_000)], 10_000);
    let begun = raw.ask(12, &FetchRequest { session_epoch: 0, ..full }.into())?;
    let session_id = begun["answer"]["SessionId"].as_i64().unwrap_or(0) as i32;
    let mut found = vec![json!(["begun", masked(begun)])];
    let mut epoch = 0;
    let mut next = |label: &str, raw: &mut Raw, partitions: &[(i32, i64, i32)]| {
        epoch += 1;
        let mut request = FetchRequest { session_id, session_epoch: epoch, ..fetch(&name, partitions, 10_000) };
        if partitions.is_empty() {
            request.topics.clear();
        }
        let answer = raw.ask(12, &request.into())?;
        found.push(json!([label, masked(answer)]));
        Ok::<(), crate::Fault>(())
    };
    next("quiet", &mut raw, &[])?;
    writer.ask(9, &produce(&name, vec![(0, batch(&[3], b"v"))]))?;
    next("records", &mut raw, &[])?;
    next("taken", &mut raw, &[(0, 4, 10_000)])?;
    next("quiet again", &mut raw, &[])?;
    let partition = DeleteRecordsPartition { partition_index: 0, offset: 2, ..Default::default() };
    let topic = DeleteRecordsTopic { name: text(&name), partitions: vec![partition], ..Default::default() };
    let request = DeleteRecordsRequest { topics: vec![topic], timeout_ms: 10_000, ..Default::default() };
    writer.ask(2, &request.into())?;
    next("the start has moved", &mut raw, &[])?;
    next("quiet after the move", &mut raw, &[])?;
    next("an error", &mut raw, &[(0, 99, 10_000)])?;
    next("the error stays", &mut raw, &[])?;
    next("the error is cleared", &mut raw, &[(0, 4, 10_000)])?;
    next("quiet at last", &mut raw, &[])?;
    Ok(json!(found))
}

/// With it a consumer that closes ends its session, and it waits for the answer.
fn empty_fetch(bench: &mut Bench<'_>) -> Result<Value> {
    let mut raw = bench.raw();
    let mut found = Vec::new();
    for session_epoch in [-1, 0] {
        let request = FetchRequest { max_wait_ms: 8000, min_bytes: 1, session_epoch, ..Default::default() };
        let start = Instant::now();
        let answer = raw.ask(12, &request.into())?;
        found.push(json!([masked(answer), start.elapsed() < Duration::from_secs(4)]));
    }
    Ok(json!(found))
}

fn topics_as_made(bench: &mut Bench<'_>) -> Result<Value> {
    let mut raw = bench.raw();
    let mut found = Vec::new();
    for version in [5, 7] {
        let config =
            CreatableTopicConfig { name: text("retention.ms"), value: Some(text("4321")), ..Default::default() };
        let topic = CreatableTopic {
            name: text(&bench.name(&format!("made-v{version}"))),
            num_partitions: -1,
            replication_factor: -1,
            configs: vec![config],
            ..Default::default()
        };
        let request = CreateTopicsRequest { topics: vec![topic], timeout_ms: 30_000, ..Default::default() };
        let mut body = BytesMut::new();
        request.encode(&mut body, version).map_err(|error| error.to_string())?;
        found.push(masked(raw.exchange(ApiKey::CreateTopics, version, &body)?));
    }
    let no_id = Uuid::ZERO.to_string();
    let id = found.last().map(|answer| answer["answer"]["Topics"][0]["TopicId"] != json!(no_id));
    Ok(json!({ "answers": found, "an id": id }))
}
