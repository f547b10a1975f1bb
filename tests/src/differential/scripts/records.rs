//! Produce, Fetch and what asks about records.

use super::{GROUP_TOPIC, NO_SUCH_ID, NOWHERE, PATIENCE, TIME, filled, produce_to, records, text, topic};
use crate::differential::Script;
use crate::{Result, wait};
use base::{ProducerEpoch, ProducerId, Sequence, Uuid, WallMillis};
use batch::{BatchBuilder, BatchProducer, Codec};
use bytes::Bytes;
use wire::ApiKey;
use wire::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use wire::messages::describe_producers_request::TopicRequest;
use wire::messages::fetch_request::{FetchPartition, FetchTopic, ForgottenTopic};
use wire::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use wire::messages::offset_for_leader_epoch_request::{OffsetForLeaderPartition, OffsetForLeaderTopic};
use wire::messages::{
    DeleteRecordsRequest, DescribeProducersRequest, FetchRequest, InitProducerIdRequest, ListOffsetsRequest,
    OffsetForLeaderEpochRequest, ProduceRequest,
};

pub fn produce(s: &mut Script<'_>) -> Result<()> {
    if s.version < 3 {
        // Advertised for old librdkafka's sake, refused when used.
        return s.send_body("refused", ApiKey::Produce, &[0, 1, 0, 0, 0x75, 0x30, 0, 0, 0, 0]);
    }
    let name = s.name("produce");
    let id = topic(s, &name, 2, &[])?;
    let one = |records: Bytes| produce_to(&name, id, vec![(0, Some(records))]);
    s.send("success", one(records(&["a", "b", "c"])))?;
    s.send("acks 1", ProduceRequest { acks: 1, ..one(records(&["d"])) })?;
    s.send("acks 2", ProduceRequest { acks: 2, ..one(records(&["d"])) })?;
    s.send("two partitions", produce_to(&name, id, vec![(1, Some(records(&["x"]))), (0, Some(records(&["y"])))]))?;
    s.send("missing partition", produce_to(&name, id, vec![(7, Some(records(&["x"]))), (0, Some(records(&["y"])))]))?;
    s.send("negative partition", produce_to(&name, id, vec![(-1, Some(records(&["x"])))]))?;
    s.send("missing topic", produce_to(NOWHERE, NO_SUCH_ID, vec![(0, Some(records(&["x"])))]))?;
    s.send("empty topic name and id", produce_to("", Uuid::ZERO, vec![(0, Some(records(&["x"])))]))?;
    s.send("no topics", ProduceRequest { topic_data: vec![], ..one(Bytes::new()) })?;
    // Null records are left out: the reference then never answers, which nobody should copy.
    s.send("empty records", one(Bytes::new()))?;
    s.reconnect();
    let bad = bad_batches();
    // Two partitions for each, so that what happens to one does not show in the offsets of the next.
    let others = s.name("produce-bad");
    let others_id = topic(s, &others, 2 * bad.len() as i32, &[])?;
    for (number, (label, bytes)) in bad.into_iter().enumerate() {
        let (first, second) = (2 * number as i32, 2 * number as i32 + 1);
        let mut partitions = vec![(first, Some(bytes)), (second, Some(records(&["beside it"])))];
        if ["magic 9", "unknown codec"].contains(&label) {
            // The reference fails the whole request then; that the good partition goes on is better.
            partitions.pop();
        }
        s.send(label, produce_to(&others, others_id, partitions))?;
        s.reconnect();
    }
    for codec in Codec::ALL {
        let mut builder = BatchBuilder::new();
        builder.compression(codec.into()).append(WallMillis(TIME), None, Some(&[b'z'; 500]), &[]);
        s.send(codec.name(), one(builder.build().into()))?;
        s.reconnect();
    }
    let internal = super::groups::offsets_topic(s)?;
    s.send("internal topic", produce_to(GROUP_TOPIC, internal, vec![(0, Some(records(&["x"])))]))?;
    let idempotents = s.name("produce-idempotent");
    let id = topic(s, &idempotents, 2, &[])?;
    idempotent(s, &idempotents, id)?;
    refusing_topics(s)
}

fn bad_batches() -> Vec<(&'static str, Bytes)> {
    let good = records(&["a", "b"]).to_vec();
    let changed = |at: usize, byte: u8, seal: bool| {
        let mut bytes = good.clone();
        bytes[at] ^= byte;
        if seal {
            // The checksum stands at 17 and covers everything from the attributes at 21 on.
            let crc = crc32c::crc32c(&bytes[21..]);
            bytes[17..21].copy_from_slice(&crc.to_be_bytes());
        }
        Bytes::from(bytes)
    };
    let mut marker = BatchBuilder::new();
    marker.control(true).append(WallMillis(TIME), Some(&[0, 0, 0, 1]), Some(&[0; 6]), &[]);
    vec![
        ("two batches", [good.clone(), good.clone()].concat().into()),
        ("bad crc", changed(good.len() - 1, 1, false)),
        ("wrong count", changed(60, 1, true)),
        ("wrong last offset delta", changed(26, 3, true)),
        ("unknown codec", changed(22, 7, true)),
        ("magic 1", changed(16, 3, false)),
        ("magic 9", changed(16, 11, false)),
        ("control bit", marker.build().into()),
        ("half a batch", good[..good.len() - 5].to_vec().into()),
        ("a header alone", good[..61].to_vec().into()),
        ("ten bytes", good[..10].to_vec().into()),
        ("bytes after the batch", [good.clone(), vec![0; 7]].concat().into()),
    ]
}

fn idempotent(s: &mut Script<'_>, name: &str, id: Uuid) -> Result<()> {
    let of = |producer: i64, epoch: i16, sequence: i32, count: usize| {
        let mut builder = BatchBuilder::new();
        let stamp = BatchProducer {
            id: ProducerId(producer),
            epoch: ProducerEpoch(epoch),
            base_sequence: Some(Sequence(sequence)),
        };
        builder.producer(stamp);
        for _ in 0..count {
            builder.append(WallMillis(TIME), None, Some(b"i"), &[]);
        }
        produce_to(name, id, vec![(1, Some(builder.build().into()))])
    };
    // An id that no producer of this run is given: it was not handed out, which nobody checks.
    let me = 900_000 + i64::from(s.version);
    s.send("sequence 0", of(me, 0, 0, 3))?;
    s.send("sequence 3", of(me, 0, 3, 2))?;
    s.send("duplicate of sequence 0", of(me, 0, 0, 3))?;
    s.send("duplicate of another size", of(me, 0, 3, 1))?;
    s.send("gap", of(me, 0, 9, 1))?;
    s.send("newer epoch, sequence 5", of(me, 1, 5, 1))?;
    s.send("newer epoch, sequence 0", of(me, 1, 0, 1))?;
    s.send("older epoch", of(me, 0, 5, 1))?;
    s.send("another producer begins at 42", of(me + 1000, 0, 42, 1))?;
    s.send("wraps to zero", of(me + 2000, 0, i32::MAX, 1))?;
    s.send("after the wrap", of(me + 2000, 0, 0, 1))?;
    Ok(())
}

/// Topics whose settings refuse what a plain one takes.
fn refusing_topics(s: &mut Script<'_>) -> Result<()> {
    let small = s.name("small");
    let id = topic(s, &small, 1, &[("max.message.bytes", "200")])?;
    let large = "x".repeat(500);
    s.send("too large", produce_to(&small, id, vec![(0, Some(records(&[&large])))]))?;
    let compacted = s.name("compacted");
    let id = topic(s, &compacted, 1, &[("cleanup.policy", "compact")])?;
    let mut keyless = BatchBuilder::new();
    keyless.append(WallMillis(TIME), Some(b"k"), Some(b"v"), &[]);
    keyless.append(WallMillis(TIME), None, Some(b"v"), &[]);
    s.send("compacted without a key", produce_to(&compacted, id, vec![(0, Some(keyless.build().into()))]))?;
    let timed = s.name("timed");
    let id = topic(s, &timed, 1, &[("message.timestamp.before.max.ms", "1000")])?;
    s.send("too old", produce_to(&timed, id, vec![(0, Some(records(&["a", "b"])))]))?;
    let append = s.name("append-time");
    let id = topic(s, &append, 1, &[("message.timestamp.type", "LogAppendTime")])?;
    s.send("append time", produce_to(&append, id, vec![(0, Some(records(&["a"])))]))?;
    let strict = s.name("strict");
    let id = topic(s, &strict, 1, &[("min.insync.replicas", "2")])?;
    s.send("too few replicas", produce_to(&strict, id, vec![(0, Some(records(&["a"])))]))?;
    Ok(())
}

fn fetch_of(name: &str, id: Uuid, partitions: Vec<FetchPartition>) -> FetchRequest {
    let topic = FetchTopic { topic: text(name), topic_id: id, partitions, ..Default::default() };
    FetchRequest { max_wait_ms: 200, min_bytes: 1, max_bytes: 1 << 20, topics: vec![topic], ..Default::default() }
}

fn at(partition: i32, offset: i64) -> FetchPartition {
    FetchPartition { partition, fetch_offset: offset, partition_max_bytes: 1 << 20, ..Default::default() }
}

pub fn fetch(s: &mut Script<'_>) -> Result<()> {
    let name = s.name("fetch");
    let id = filled(s, &name, &["first", "second", "third"])?;
    let of = |partitions| fetch_of(&name, id, partitions);
    s.send("success", of(vec![at(0, 0)]))?;
    s.send("from the second", of(vec![at(0, 1)]))?;
    s.send("at the end", of(vec![at(0, 3)]))?;
    s.send("past the end", of(vec![at(0, 4)]))?;
    s.send("negative offset", of(vec![at(0, -1)]))?;
    s.send("missing partition", of(vec![at(9, 0), at(0, 2)]))?;
    s.send("missing topic", fetch_of(NOWHERE, NO_SUCH_ID, vec![at(0, 0)]))?;
    s.send("no topics", FetchRequest { topics: vec![], ..of(vec![]) })?;
    let small = FetchPartition { partition_max_bytes: 1, ..at(0, 0) };
    s.send("one byte", FetchRequest { max_bytes: 1, ..of(vec![small]) })?;
    s.send("committed", FetchRequest { isolation_level: 1, ..of(vec![at(0, 0)]) })?;
    for (label, offset) in [("a negative size", 0), ("a negative size at the end", 3)] {
        let negative = FetchPartition { partition_max_bytes: -1, ..at(0, offset) };
        s.send(label, FetchRequest { max_wait_ms: 0, ..of(vec![negative]) })?;
        let whole = FetchRequest { max_bytes: -1, max_wait_ms: 0, ..of(vec![at(0, offset)]) };
        s.send(&format!("{label}, of all"), whole)?;
        s.reconnect();
    }
    s.send("unknown isolation", FetchRequest { isolation_level: 9, ..of(vec![at(0, 0)]) })?;
    s.reconnect();
    for epoch in [0, 1, -5] {
        let partition = FetchPartition { current_leader_epoch: epoch, ..at(0, 0) };
        s.send(&format!("leader epoch {epoch}"), of(vec![partition]))?;
    }
    if s.version >= 12 {
        for epoch in [0, 3] {
            let partition = FetchPartition { last_fetched_epoch: epoch, ..at(0, 2) };
            s.send(&format!("last fetched epoch {epoch}"), of(vec![partition]))?;
        }
    }
    if s.version >= 7 {
        session(s, &name, id)?;
    }
    Ok(())
}

/// A fetch session from its beginning to its end (KIP-227).
fn session(s: &mut Script<'_>, name: &str, id: Uuid) -> Result<()> {
    let full = FetchRequest { session_id: 0, session_epoch: 0, ..fetch_of(name, id, vec![at(0, 3)]) };
    let answer = s.send("session begins", full)?;
    let session_id = answer["answer"]["SessionId"].as_i64().unwrap_or(0) as i32;
    let next =
        |epoch: i32| FetchRequest { session_id, session_epoch: epoch, topics: vec![], ..fetch_of(name, id, vec![]) };
    s.send("session without news", next(1))?;
    s.prepare(13, produce_to(name, id, vec![(0, Some(records(&["fourth"])))]))?;
    s.send("session with news", next(2))?;
    s.send("session with news again", next(3))?;
    s.send("session epoch repeated", next(3))?;
    let moved = fetch_of(name, id, vec![at(0, 4), at(5, 0)]);
    s.send("session moved", FetchRequest { session_id, session_epoch: 4, ..moved })?;
    let forgotten = ForgottenTopic { topic: text(name), topic_id: id, partitions: vec![0], ..Default::default() };
    s.send("session forgets", FetchRequest { forgotten_topics_data: vec![forgotten], ..next(5) })?;
    s.send("session ends", FetchRequest { session_epoch: -1, ..next(0) })?;
    s.send("session is gone", next(7))?;
    s.send("unknown session", FetchRequest { session_id: 123_456, ..next(1) })?;
    Ok(())
}

pub fn list_offsets(s: &mut Script<'_>) -> Result<()> {
    let name = s.name("offsets");
    let id = filled(s, &name, &["a", "b"])?;
    s.prepare(13, produce_to(&name, id, vec![(0, Some(records(&["c", "d", "e"])))]))?;
    let of = |name: &str, partition: i32, timestamp: i64, epoch: i32| {
        let partition = ListOffsetsPartition {
            partition_index: partition,
            current_leader_epoch: epoch,
            timestamp,
            ..Default::default()
        };
        let topic = ListOffsetsTopic { name: text(name), partitions: vec![partition], ..Default::default() };
        ListOffsetsRequest { replica_id: -1, topics: vec![topic], timeout_ms: 5000, ..Default::default() }
    };
    s.send("latest", of(&name, 0, -1, -1))?;
    for special in [-2, -3, -4, -5, -6, -7, 0, TIME, TIME + 1, TIME + 2, TIME + 3] {
        s.send(&format!("time {special}"), of(&name, 0, special, -1))?;
        s.reconnect();
    }
    let empty = s.name("empty");
    topic(s, &empty, 1, &[])?;
    for special in [-1, -2, -3, 0, TIME] {
        s.send(&format!("time {special} of none"), of(&empty, 0, special, -1))?;
        s.reconnect();
    }
    for epoch in [0, 1] {
        s.send(&format!("leader epoch {epoch}"), of(&name, 0, -1, epoch))?;
    }
    s.send("missing partition", of(&name, 3, -1, -1))?;
    s.send("missing topic", of(NOWHERE, 0, -1, -1))?;
    let mut twice = of(&name, 0, -1, -1);
    twice.topics[0].partitions.push(ListOffsetsPartition { timestamp: -2, ..Default::default() });
    s.send("a partition twice", twice)?;
    s.send("by a debugger", ListOffsetsRequest { replica_id: -2, ..of(&name, 0, -1, -1) })?;
    if s.version >= 2 {
        s.send("committed", ListOffsetsRequest { isolation_level: 1, ..of(&name, 0, -1, -1) })?;
    }
    Ok(())
}

pub fn delete_records(s: &mut Script<'_>) -> Result<()> {
    let name = s.name("deletes");
    filled(s, &name, &["a", "b", "c", "d"])?;
    let of = |name: &str, partition: i32, offset: i64| {
        let partition = DeleteRecordsPartition { partition_index: partition, offset, ..Default::default() };
        let topic = DeleteRecordsTopic { name: text(name), partitions: vec![partition], ..Default::default() };
        DeleteRecordsRequest { topics: vec![topic], timeout_ms: 10_000, ..Default::default() }
    };
    s.send("success", of(&name, 0, 2))?;
    for offset in [1, 5, -1, -2] {
        s.send(&format!("before {offset}"), of(&name, 0, offset))?;
    }
    s.send("missing partition", of(&name, 4, 0))?;
    s.send("missing topic", of(NOWHERE, 0, 0))?;
    s.send("no topics", DeleteRecordsRequest { timeout_ms: 1000, ..Default::default() })?;
    super::groups::offsets_topic(s)?;
    s.send("internal", of(GROUP_TOPIC, 0, 0))?;
    s.send("internal, a missing partition", of(GROUP_TOPIC, 99, 0))?;
    let compacted = s.name("compacted-only");
    topic(s, &compacted, 1, &[("cleanup.policy", "compact")])?;
    s.send("compacted", of(&compacted, 0, 0))?;
    Ok(())
}

pub fn init_producer_id(s: &mut Script<'_>) -> Result<()> {
    let plain = InitProducerIdRequest { transactional_id: None, transaction_timeout_ms: 60_000, ..Default::default() };
    // A fresh node has no block of ids yet and says so.
    wait::until("a block of ids", PATIENCE, || {
        let answer = s.prepare(4, plain.clone())?;
        Ok((answer["answer"]["ErrorCode"] == 0).then_some(()))
    })?;
    s.send("success", plain.clone())?;
    s.send("again", plain.clone())?;
    s.send("no timeout", InitProducerIdRequest { transaction_timeout_ms: 0, ..plain.clone() })?;
    if s.version >= 3 {
        s.send("known", InitProducerIdRequest { producer_id: 5, producer_epoch: 3, ..plain.clone() })?;
        s.send("epoch without id", InitProducerIdRequest { producer_epoch: 3, ..plain.clone() })?;
    }
    s.send("empty transactional id", InitProducerIdRequest { transactional_id: Some(text("")), ..plain })?;
    Ok(())
}

pub fn offset_for_leader_epoch(s: &mut Script<'_>) -> Result<()> {
    let name = s.name("epochs");
    filled(s, &name, &["a", "b"])?;
    let of = |name: &str, partition: i32, current: i32, epoch: i32| {
        let partition = OffsetForLeaderPartition {
            partition,
            current_leader_epoch: current,
            leader_epoch: epoch,
            ..Default::default()
        };
        let topic = OffsetForLeaderTopic { topic: text(name), partitions: vec![partition], ..Default::default() };
        OffsetForLeaderEpochRequest { replica_id: -1, topics: vec![topic], ..Default::default() }
    };
    s.send("success", of(&name, 0, -1, 0))?;
    for epoch in [1, -1, 7] {
        s.send(&format!("epoch {epoch}"), of(&name, 0, -1, epoch))?;
    }
    for current in [0, 1] {
        s.send(&format!("current epoch {current}"), of(&name, 0, current, 0))?;
    }
    s.send("missing partition", of(&name, 4, -1, 0))?;
    s.send("missing topic", of(NOWHERE, 0, -1, 0))?;
    Ok(())
}

pub fn describe_producers(s: &mut Script<'_>) -> Result<()> {
    let name = s.name("producers");
    let id = topic(s, &name, 2, &[])?;
    let mut builder = BatchBuilder::new();
    let stamp = BatchProducer { id: ProducerId(77), epoch: ProducerEpoch(2), base_sequence: Some(Sequence(0)) };
    builder.producer(stamp).append(WallMillis(TIME), None, Some(b"i"), &[]);
    builder.append(WallMillis(TIME), None, Some(b"i"), &[]);
    s.prepare(13, produce_to(&name, id, vec![(0, Some(builder.build().into()))]))?;
    let of = |name: &str, partition_indexes: Vec<i32>| DescribeProducersRequest {
        topics: vec![TopicRequest { name: text(name), partition_indexes, ..Default::default() }],
        ..Default::default()
    };
    s.send("success", of(&name, vec![0, 1]))?;
    s.send("missing partition", of(&name, vec![0, 9]))?;
    s.send("missing topic", of(NOWHERE, vec![0]))?;
    s.send("bad name", of("bad name", vec![0]))?;
    s.send("no topics", DescribeProducersRequest::default())?;
    Ok(())
}
