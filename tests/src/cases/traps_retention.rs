//! Rows of the table of traps about retention and times: readers that race it, lookups after it, clocks that are wrong.

use super::Bench;
use super::traps::{TIME, by_time, delete_records, fetch, produce};
use crate::topics::create;
use crate::{Result, wait};
use base::WallMillis;
use batch::BatchBuilder;
use bytes::Bytes;
use serde_json::{Value, json};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

type Run = fn(&mut Bench<'_>) -> Result<Value>;

pub const CASES: &[(&str, Run)] = &[
    ("trap/fetch-races-retention", fetch_races_retention),
    ("trap/after-retention", after_retention),
    ("trap/wrong-clocks", wrong_clocks),
    ("trap/largest-time-deleted", largest_time_deleted),
];

const PATIENCE: Duration = Duration::from_secs(60);
const EARLIEST: i64 = -2;
const LATEST: i64 = -1;
const MAX_TIMESTAMP: i64 = -3;
const OFFSET_OUT_OF_RANGE: i64 = 1;

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}

fn at(time: i64, value: &[u8]) -> Bytes {
    let mut builder = BatchBuilder::new();
    builder.append(WallMillis(time), None, Some(value), &[]);
    builder.build().into()
}

/// A topic that loses its records while it is written: whoever begins at 0 is told OFFSET_OUT_OF_RANGE for it alone, the
/// topic beside it is served in the same answer, and what EARLIEST names can be read.
fn fetch_races_retention(bench: &mut Bench<'_>) -> Result<Value> {
    let (mut raw, mut writer) = (bench.raw(), bench.raw());
    let (short, long) = (bench.name("short-lived"), bench.name("long-lived"));
    create(&mut raw, &short, 1, &[("retention.ms", "1000"), ("segment.ms", "1000")])?;
    create(&mut raw, &long, 1, &[])?;
    writer.ask(9, &produce(&long, vec![(0, at(now_ms(), b"it stays"))]))?;
    let (mut raced, mut served_beside, mut read, mut moved) = (0, 0, 0, 0);
    let (mut odd, mut last_start) = (Vec::new(), -1);
    let until = Instant::now() + Duration::from_secs(if bench.long { 60 } else { 6 });
    while Instant::now() < until || moved < 2 {
        if Instant::now() > until + PATIENCE {
            return Err(format!("retention moved the start {moved} times only").into());
        }
        let produced = writer.ask(9, &produce(&short, vec![(0, at(now_ms(), b"it goes"))]))?;
        if produced["answer"]["Responses"][0]["PartitionResponses"][0]["ErrorCode"] != 0 {
            odd.push(produced);
        }
        let mut both = fetch(&short, &[(0, 0, 10_000)], 100_000);
        both.topics.extend(fetch(&long, &[(0, 0, 10_000)], 100_000).topics);
        let answer = raw.ask(11, &both.into())?;
        let topics = &answer["answer"]["Responses"];
        let (of_short, of_long) = (&topics[0]["Partitions"][0], &topics[1]["Partitions"][0]);
        raced += i64::from(of_short["ErrorCode"] == OFFSET_OUT_OF_RANGE);
        served_beside += i64::from(of_long["ErrorCode"] == 0 && of_long["Records"] != json!([]));
        if (of_short["ErrorCode"] != OFFSET_OUT_OF_RANGE && of_short["ErrorCode"] != 0) || of_long["ErrorCode"] != 0 {
            odd.push(answer);
            continue;
        }
        // It may have moved between the two questions: then once more.
        let start = by_time(&mut raw, &short, EARLIEST, 7)?["Offset"].as_i64().unwrap_or(-1);
        let there = raw.ask(11, &fetch(&short, &[(0, start, 10_000)], 10_000).into())?;
        let error = &there["answer"]["Responses"][0]["Partitions"][0]["ErrorCode"];
        let start_after = by_time(&mut raw, &short, EARLIEST, 7)?["Offset"].as_i64().unwrap_or(-1);
        read += i64::from(*error == 0);
        if *error != 0 && start == start_after {
            odd.push(json!({ "start": start, "answer": there }));
        }
        moved += i64::from(start > last_start && last_start >= 0);
        last_start = start;
    }
    Ok(json!({ "raced": raced > 0, "served beside it": served_beside > 0, "read": read > 0, "odd": odd }))
}

/// Retention took everything: there is nothing at or after any time, and no real offset is named.
fn after_retention(bench: &mut Bench<'_>) -> Result<Value> {
    let (mut raw, name) = (bench.raw(), bench.name("gone"));
    create(&mut raw, &name, 1, &[("retention.ms", "1000"), ("segment.ms", "1000")])?;
    let time = now_ms();
    for _ in 0..3 {
        raw.ask(9, &produce(&name, vec![(0, at(time, b"v"))]))?;
    }
    wait::until("retention to take everything", PATIENCE, || {
        let start = by_time(&mut raw, &name, EARLIEST, 7)?;
        Ok((start["Offset"] == 3).then_some(()))
    })?;
    let mut found = Vec::new();
    for asked in [LATEST, EARLIEST, MAX_TIMESTAMP, 0, time, time + 1_000_000] {
        let mut told = by_time(&mut raw, &name, asked, 7)?;
        // The epoch of a log's end without records is the leader's or none.
        told["LeaderEpoch"] = Value::Null;
        found.push(told);
    }
    Ok(json!(found))
}

/// The record with the largest time is deleted: it is named while its segment is there, and then that of those left.
fn largest_time_deleted(bench: &mut Bench<'_>) -> Result<Value> {
    let (mut raw, name) = (bench.raw(), bench.name("largest-deleted"));
    create(&mut raw, &name, 1, &[("segment.bytes", "1048576"), ("retention.ms", "-1")])?;
    // Two segments of two batches each; the largest time is the first of all.
    for before in [0, 7000, 9000, 8000] {
        raw.ask(9, &produce(&name, vec![(0, at(TIME - before, &vec![7; 400_000]))]))?;
    }
    let mut found = vec![by_time(&mut raw, &name, MAX_TIMESTAMP, 7)?];
    for start in [1, 3] {
        delete_records(&mut raw, &name, start)?;
        if start == 3 {
            // Kafka looks for segments before the log's start from time to time.
            wait::until("the first segment to go", PATIENCE, || {
                Ok((by_time(&mut raw, &name, MAX_TIMESTAMP, 7)?["Offset"] != 0).then_some(()))
            })?;
        }
        found.extend(
            [EARLIEST, MAX_TIMESTAMP]
                .iter()
                .map(|asked| by_time(&mut raw, &name, *asked, 7))
                .collect::<Result<Vec<_>>>()?,
        );
    }
    Ok(json!(found))
}

/// Times from a clock that is wrong: refused where they are too far ahead, and no reason to keep records for ever.
fn wrong_clocks(bench: &mut Bench<'_>) -> Result<Value> {
    let mut raw = bench.raw();
    let strict = bench.name("strict-times");
    create(&mut raw, &strict, 1, &[("message.timestamp.after.max.ms", "3600000")])?;
    // Nanoseconds where milliseconds belong, in the second of three records.
    let mut nanoseconds = BatchBuilder::new();
    for time in [now_ms(), now_ms() * 1_000_000, now_ms()] {
        nanoseconds.append(WallMillis(time), None, Some(b"v"), &[]);
    }
    let refused = raw.ask(9, &produce(&strict, vec![(0, nanoseconds.build().into())]))?;
    let mut refused = refused["answer"]["Responses"][0]["PartitionResponses"][0].clone();
    crate::differential::mask::apply(&mut refused);
    // Broker time counts where it is what the topic has, however wrong the records' own.
    let future = now_ms() + 1_000_000_000_000;
    let by_broker = bench.name("broker-times");
    let times = [("message.timestamp.type", "LogAppendTime"), ("retention.ms", "2000"), ("segment.ms", "1000")];
    create(&mut raw, &by_broker, 1, &times)?;
    // Size counts whatever the times are, where such times are taken.
    const FAR: (&str, &str) = ("message.timestamp.after.max.ms", "9223372036854775807");
    let by_size = bench.name("by-size");
    let sizes = [("retention.ms", "-1"), ("retention.bytes", "1"), ("segment.bytes", "1048576"), FAR];
    create(&mut raw, &by_size, 1, &sizes)?;
    for _ in 0..3 {
        raw.ask(9, &produce(&by_broker, vec![(0, at(future, b"v"))]))?;
        raw.ask(9, &produce(&by_size, vec![(0, at(future, &vec![7; 700_000]))]))?;
    }
    let mut went = |name: &str, start: i64| {
        wait::until(&format!("retention of {name}"), PATIENCE, || {
            Ok((by_time(&mut raw, name, EARLIEST, 7)?["Offset"].as_i64() >= Some(start)).then_some(()))
        })
    };
    went(&by_broker, 3)?;
    went(&by_size, 2)?;
    Ok(json!({ "nanoseconds": refused, "aged by broker time and by size": true }))
}
