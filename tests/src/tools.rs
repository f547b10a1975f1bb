//! Kafka's command-line tools, each started as a user's shell would start it, and kcat.

use crate::cases::{Bench, Skip};
use crate::process::{self, Finished};
use crate::{Result, jvm};
use serde_json::{Value, json};
use std::process::Command;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(120);

type Run = fn(&mut Bench<'_>) -> Result<Value>;

pub const CASES: &[(&str, Run)] = &[
    ("tools/topics", topics),
    ("tools/console", console),
    ("tools/console-group", console_group),
    ("tools/perf-test", perf_test),
    ("tools/get-offsets", get_offsets),
    ("tools/configs", configs),
    ("tools/consumer-groups", consumer_groups),
    ("tools/delete-records", delete_records),
    ("tools/log-dirs", log_dirs),
    ("tools/broker-api-versions", broker_api_versions),
    ("tools/features", features),
    ("tools/cluster", cluster),
    ("tools/metadata-quorum", metadata_quorum),
    ("tools/verifiable", verifiable),
    ("kcat/produce-consume", kcat_produce_consume),
    ("kcat/codecs", kcat_codecs),
    ("kcat/empty-topic", kcat_empty_topic),
    ("kcat/group", kcat_group),
    ("kcat/offsets-by-time", kcat_by_time),
];

pub(crate) const TOPICS: &str = "org.apache.kafka.tools.TopicCommand";
const PRODUCER: &str = "org.apache.kafka.tools.ConsoleProducer";
pub(crate) const CONSUMER: &str = "org.apache.kafka.tools.consumer.ConsoleConsumer";
pub(crate) const CONFIGS: &str = "org.apache.kafka.tools.ConfigCommand";
pub(crate) const GROUPS: &str = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand";
pub(crate) const OFFSETS: &str = "org.apache.kafka.tools.GetOffsetShell";

/// Runs a tool with `--bootstrap-server` and the given words.
pub(crate) fn tool(bench: &Bench<'_>, class: &str, words: &[&str], input: &str) -> Result<Finished> {
    let mut command = jvm::java(&jvm::quick_options(), &[])?;
    command.arg(class).args(["--bootstrap-server", &bench.address().to_string()]).args(words);
    there_is(class, process::run(command, class, input.as_bytes(), PATIENCE)?)
}

/// Two brokers are alike to a tool that does not exist.
pub(crate) fn there_is(class: &str, finished: Finished) -> Result<Finished> {
    let missing = ["Could not find or load main class", "ClassNotFoundException"];
    match missing.iter().any(|text| finished.err.contains(text)) {
        true => Err(format!("{class} is not in the jars:\n{}", finished.err).into()),
        false => Ok(finished),
    }
}

/// What a tool told its user, without the times and numbers of the run.
fn told(finished: &Finished) -> Value {
    let keep =
        |text: &str| text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n");
    json!({ "success": finished.success, "out": keep(&finished.out) })
}

/// The output's lines in an order of their own.
fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    lines.sort_unstable();
    lines
}

pub(crate) fn need(finished: Finished, what: &str) -> Result<Finished> {
    if finished.success {
        Ok(finished)
    } else {
        Err(format!("{what} failed:\n{}\n{}", finished.out, finished.err).into())
    }
}

fn create(bench: &Bench<'_>, topic: &str, partitions: u32) -> Result<()> {
    let count = partitions.to_string();
    let words = ["--create", "--topic", topic, "--partitions", &count];
    need(tool(bench, TOPICS, &words, "")?, "kafka-topics --create").map(|_| ())
}

/// The id and the offsets are the node's own: they are cut out of a description.
fn without_ids(text: &str) -> String {
    text.split_whitespace()
        .scan(false, |after, word| {
            let hidden = *after;
            *after = word == "TopicId:";
            Some(if hidden { "<id>" } else { word })
        })
        .collect::<Vec<_>>()
        .join(" ")
}

fn topics(bench: &mut Bench<'_>) -> Result<Value> {
    let topic = bench.name("made");
    let created = tool(
        bench,
        TOPICS,
        &["--create", "--topic", &topic, "--partitions", "3", "--config", "retention.ms=5000"],
        "",
    )?;
    let again = tool(bench, TOPICS, &["--create", "--topic", &topic], "")?;
    let listed = tool(bench, TOPICS, &["--list"], "")?;
    let described = tool(bench, TOPICS, &["--describe", "--topic", &topic], "")?;
    let altered = tool(bench, TOPICS, &["--alter", "--topic", &topic, "--partitions", "5"], "")?;
    let grown = tool(bench, TOPICS, &["--describe", "--topic", &topic], "")?;
    let deleted = tool(bench, TOPICS, &["--delete", "--topic", &topic], "")?;
    let missing = tool(bench, TOPICS, &["--describe", "--topic", &topic], "")?;
    Ok(json!({
        "created": told(&created),
        "again": again.success,
        "listed": listed.out.lines().any(|line| line == topic),
        "described": without_ids(&described.out),
        "altered": told(&altered),
        "grown": without_ids(&grown.out),
        "deleted": told(&deleted),
        "missing": missing.success,
    }))
}

fn console(bench: &mut Bench<'_>) -> Result<Value> {
    let topic = bench.name("console");
    create(bench, &topic, 1)?;
    let lines = "k1:first\nk2:second\nk3:third\n";
    let words = ["--topic", &topic, "--reader-property", "parse.key=true", "--reader-property", "key.separator=:"];
    let produced = tool(bench, PRODUCER, &words, lines)?;
    let words = [
        "--topic",
        &topic,
        "--from-beginning",
        "--max-messages",
        "3",
        "--timeout-ms",
        "60000",
        "--formatter-property",
        "print.key=true",
        "--formatter-property",
        "print.offset=true",
        "--formatter-property",
        "print.partition=true",
    ];
    let consumed = tool(bench, CONSUMER, &words, "")?;
    let none =
        tool(bench, CONSUMER, &["--topic", &topic, "--timeout-ms", "1500", "--offset", "3", "--partition", "0"], "")?;
    Ok(json!({ "produced": produced.success, "consumed": told(&consumed), "none": none.out }))
}

fn console_group(bench: &mut Bench<'_>) -> Result<Value> {
    let (topic, group) = (bench.name("grouped"), bench.name("console-group"));
    create(bench, &topic, 1)?;
    let mut rounds = Vec::new();
    for round in 0..2 {
        need(tool(bench, PRODUCER, &["--topic", &topic], &format!("a{round}\nb{round}\n"))?, "kafka-console-producer")?;
        let words =
            ["--topic", &topic, "--group", &group, "--from-beginning", "--max-messages", "2", "--timeout-ms", "60000"];
        rounds.push(told(&tool(bench, CONSUMER, &words, "")?));
    }
    Ok(json!(rounds))
}

fn perf_test(bench: &mut Bench<'_>) -> Result<Value> {
    let topic = bench.name("perf");
    create(bench, &topic, 3)?;
    let mut found = Vec::new();
    for acks in ["1", "all"] {
        let acks = format!("acks={acks}");
        let words = [
            "--topic",
            &topic,
            "--num-records",
            "20000",
            "--record-size",
            "500",
            "--throughput",
            "-1",
            "--command-property",
            &acks,
        ];
        let produced =
            need(tool(bench, "org.apache.kafka.tools.ProducerPerformance", &words, "")?, "kafka-producer-perf-test")?;
        found.push(produced.out.lines().last().is_some_and(|line| line.starts_with("20000 records sent")));
    }
    let words = ["--topic", &topic, "--num-records", "40000", "--timeout", "60000"];
    let consumed =
        need(tool(bench, "org.apache.kafka.tools.ConsumerPerformance", &words, "")?, "kafka-consumer-perf-test")?;
    let count = consumed.out.lines().last().and_then(|line| line.split(", ").nth(4)).unwrap_or_default().to_owned();
    Ok(json!({ "produced": found, "consumed": count }))
}

fn get_offsets(bench: &mut Bench<'_>) -> Result<Value> {
    let topic = bench.name("offsets");
    create(bench, &topic, 2)?;
    need(tool(bench, PRODUCER, &["--topic", &topic], "a\nb\nc\n")?, "kafka-console-producer")?;
    let mut found = Vec::new();
    for time in ["-1", "-2", "-3", "earliest", "latest", "max-timestamp", "earliest-local"] {
        let finished = tool(bench, OFFSETS, &["--topic", &topic, "--time", time], "")?;
        // Which partition a console producer chose is its own affair: the sum tells what the broker said.
        let sum: i64 =
            finished.out.lines().filter_map(|line| line.rsplit(':').next()?.trim().parse::<i64>().ok()).sum();
        let sum = if time == "-3" || time == "max-timestamp" { i64::from(sum >= 0) } else { sum };
        found.push(json!([time, finished.success, finished.out.lines().count(), sum]));
    }
    Ok(json!(found))
}

fn configs(bench: &mut Bench<'_>) -> Result<Value> {
    let topic = bench.name("configured");
    create(bench, &topic, 1)?;
    let entity = ["--entity-type", "topics", "--entity-name", &topic];
    let run = |words: &[&str]| tool(bench, CONFIGS, &[&entity[..], words].concat(), "");
    let altered = run(&["--alter", "--add-config", "retention.ms=60000,cleanup.policy=compact"])?;
    let described = run(&["--describe"])?;
    let all = run(&["--describe", "--all"])?;
    let removed = run(&["--alter", "--delete-config", "retention.ms"])?;
    let rest = run(&["--describe"])?;
    let refused = run(&["--alter", "--add-config", "no.such=1"])?;
    let broker = tool(bench, CONFIGS, &["--entity-type", "brokers", "--entity-name", "1", "--describe"], "")?;
    Ok(json!({
        "altered": told(&altered),
        "described": sorted(&described.out),
        "all": sorted(&all.out),
        "removed": told(&removed),
        "rest": sorted(&rest.out),
        "refused": refused.success,
        "broker": told(&broker),
    }))
}

fn consumer_groups(bench: &mut Bench<'_>) -> Result<Value> {
    let (topic, group) = (bench.name("consumed"), bench.name("the-group"));
    create(bench, &topic, 1)?;
    need(tool(bench, PRODUCER, &["--topic", &topic], "a\nb\nc\nd\n")?, "kafka-console-producer")?;
    let words =
        ["--topic", &topic, "--group", &group, "--from-beginning", "--max-messages", "4", "--timeout-ms", "60000"];
    need(tool(bench, CONSUMER, &words, "")?, "kafka-console-consumer")?;
    let run = |words: &[&str]| tool(bench, GROUPS, words, "");
    let listed = run(&["--list"])?;
    let described = run(&["--describe", "--group", &group])?;
    let state = run(&["--describe", "--group", &group, "--state"])?;
    let reset = run(&["--reset-offsets", "--group", &group, "--topic", &topic, "--to-offset", "1", "--execute"])?;
    let shifted = run(&["--reset-offsets", "--group", &group, "--topic", &topic, "--shift-by", "2", "--execute"])?;
    let again = run(&["--describe", "--group", &group])?;
    let no_offsets = run(&["--delete-offsets", "--group", &group, "--topic", &topic])?;
    let deleted = run(&["--delete", "--group", &group])?;
    let missing = run(&["--delete", "--group", &group])?;
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
    let address = bench.address().to_string();
    let plain = |text: &str| words(&text.replace(&address, "<address>"));
    Ok(json!({
        "listed": listed.out.lines().any(|line| line == group),
        "described": plain(&described.out),
        "state": plain(&state.out),
        "reset": plain(&reset.out),
        "shifted": plain(&shifted.out),
        "again": plain(&again.out),
        "no offsets": plain(&no_offsets.out),
        "deleted": told(&deleted),
        "missing": missing.success,
    }))
}

fn delete_records(bench: &mut Bench<'_>) -> Result<Value> {
    let topic = bench.name("trimmed");
    create(bench, &topic, 1)?;
    need(tool(bench, PRODUCER, &["--topic", &topic], "a\nb\nc\n")?, "kafka-console-producer")?;
    let scratch = crate::node::Scratch::new("records")?;
    let file = scratch.path().join("offsets.json");
    let wanted = json!({ "partitions": [{ "topic": topic, "partition": 0, "offset": 2 }], "version": 1 });
    std::fs::write(&file, wanted.to_string())?;
    let path = file.display().to_string();
    let deleted = tool(bench, "org.apache.kafka.tools.DeleteRecordsCommand", &["--offset-json-file", &path], "")?;
    let earliest = tool(bench, OFFSETS, &["--topic", &topic, "--time", "-2"], "")?;
    Ok(json!({ "deleted": told(&deleted), "earliest": told(&earliest) }))
}

fn log_dirs(bench: &mut Bench<'_>) -> Result<Value> {
    let topic = bench.name("located");
    create(bench, &topic, 2)?;
    let finished = tool(bench, "org.apache.kafka.tools.LogDirsCommand", &["--describe", "--topic-list", &topic], "")?;
    let line = finished.out.lines().find(|line| line.starts_with('{')).unwrap_or("null");
    let told: Value = serde_json::from_str(line)?;
    let directory = &told["brokers"][0]["logDirs"][0];
    Ok(json!({
        "broker": told["brokers"][0]["broker"],
        "error": directory["error"],
        "partitions": directory["partitions"].as_array().map(Vec::len),
        "lag": directory["partitions"][0]["offsetLag"],
    }))
}

fn broker_api_versions(bench: &mut Bench<'_>) -> Result<Value> {
    let finished = tool(bench, "org.apache.kafka.tools.BrokerApiVersionsCommand", &[], "")?;
    // Which APIs there are differs by design (the raw cases compare their versions); that the tool is content does not.
    Ok(json!({ "success": finished.success, "produce": finished.out.contains("Produce(0): 0 to 13 [usable: 13]") }))
}

fn features(bench: &mut Bench<'_>) -> Result<Value> {
    let finished = tool(bench, "org.apache.kafka.tools.FeatureCommand", &["describe"], "")?;
    let level = |name: &str| {
        let line = finished.out.lines().find(|line| line.contains(name)).unwrap_or_default();
        line.split("FinalizedVersionLevel:").nth(1).and_then(|rest| rest.split_whitespace().next()).map(str::to_owned)
    };
    Ok(json!({
        "success": finished.success,
        "metadata.version": level("metadata.version"),
        "eligible.leader.replicas.version": level("eligible.leader.replicas.version"),
        "kraft.version": level("kraft.version"),
    }))
}

fn cluster(bench: &mut Bench<'_>) -> Result<Value> {
    let run = |subcommand: &str| {
        let mut command = jvm::java(&jvm::quick_options(), &[])?;
        command.args(["org.apache.kafka.tools.ClusterTool", subcommand, "--bootstrap-server"]);
        command.arg(bench.address().to_string());
        process::run(command, "kafka-cluster", b"", PATIENCE)
    };
    let (id, endpoints) = (run("cluster-id")?, run("list-endpoints")?);
    let id = id.out.trim().strip_prefix("Cluster ID: ").map(str::len);
    Ok(json!({ "length of the id": id, "endpoints": endpoints.success, "lines": endpoints.out.lines().count() }))
}

fn metadata_quorum(bench: &mut Bench<'_>) -> Result<Value> {
    const CLASS: &str = "org.apache.kafka.tools.MetadataQuorumCommand";
    let mut found = Vec::new();
    for what in ["--status", "--replication"] {
        let finished = tool(bench, CLASS, &["describe", what], "")?;
        let words: Vec<&str> = finished.out.split_whitespace().collect();
        let follows = |name: &str| words.iter().position(|word| *word == name).and_then(|at| words.get(at + 1));
        found.push(json!([finished.success, follows("LeaderId:"), words.contains(&"Leader")]));
    }
    Ok(json!(found))
}

fn verifiable(bench: &mut Bench<'_>) -> Result<Value> {
    let topic = bench.name("verified");
    create(bench, &topic, 1)?;
    let words = ["--topic", &topic, "--max-messages", "500", "--acks", "-1"];
    let produced = tool(bench, "org.apache.kafka.tools.VerifiableProducer", &words, "")?;
    let acked = produced.out.lines().filter(|line| line.contains("producer_send_success")).count();
    let group = bench.name("verifiers");
    let words = ["--topic", &topic, "--group-id", &group, "--max-messages", "500"];
    let consumed = tool(bench, "org.apache.kafka.tools.VerifiableConsumer", &words, "")?;
    let read: u64 = consumed
        .out
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|event| event["name"] == "records_consumed")
        .filter_map(|event| event["count"].as_u64())
        .sum();
    Ok(json!({ "produced": produced.success, "acked": acked, "consumed": consumed.success, "read": read }))
}

fn kcat(bench: &Bench<'_>, words: &[&str], input: &str) -> Result<Finished> {
    let mut command = Command::new("kcat");
    command.args(["-b", &bench.address().to_string(), "-q"]).args(words);
    match process::run(command, "kcat", input.as_bytes(), PATIENCE) {
        Err(fault) if fault.to_string().contains("does not start") => Err(Skip("kcat is not installed".into()).into()),
        other => other,
    }
}

fn kcat_produce_consume(bench: &mut Bench<'_>) -> Result<Value> {
    let topic = bench.name("kcat");
    create(bench, &topic, 2)?;
    let lines: String = (0..100).map(|i| format!("key{i}:value{i}\n")).collect();
    let produced = kcat(bench, &["-P", "-t", &topic, "-K", ":", "-p", "1", "-H", "h=1"], &lines)?;
    let consumed = kcat(bench, &["-C", "-t", &topic, "-e", "-o", "beginning", "-f", "%p %o %k %s %h\\n"], "")?;
    let tail = kcat(bench, &["-C", "-t", &topic, "-p", "1", "-e", "-o", "-3", "-f", "%o %s\\n"], "")?;
    let metadata = kcat(bench, &["-L", "-t", &topic, "-J"], "")?;
    let metadata: Value = serde_json::from_str(&metadata.out)?;
    Ok(json!({
        "produced": produced.success,
        "consumed": sorted(&consumed.out),
        "tail": told(&tail),
        "topics": metadata["topics"],
    }))
}

fn kcat_codecs(bench: &mut Bench<'_>) -> Result<Value> {
    let topic = bench.name("kcat-codecs");
    create(bench, &topic, 1)?;
    for codec in ["none", "gzip", "snappy", "lz4", "zstd"] {
        let lines: String = (0..50).map(|i| format!("{codec}-{i}-{}\n", "x".repeat(100))).collect();
        need(kcat(bench, &["-P", "-t", &topic, "-z", codec], &lines)?, "kcat -P")?;
    }
    let consumed = kcat(bench, &["-C", "-t", &topic, "-e", "-o", "beginning", "-f", "%o %s\\n"], "")?;
    Ok(told(&consumed))
}

fn kcat_empty_topic(bench: &mut Bench<'_>) -> Result<Value> {
    let topic = bench.name("kcat-empty");
    create(bench, &topic, 1)?;
    let consumed = kcat(bench, &["-C", "-t", &topic, "-e", "-o", "beginning"], "")?;
    let missing =
        kcat(bench, &["-C", "-t", &bench.name("kcat-missing"), "-e", "-X", "allow.auto.create.topics=false"], "")?;
    Ok(json!({ "consumed": told(&consumed), "missing": missing.success }))
}

fn kcat_group(bench: &mut Bench<'_>) -> Result<Value> {
    let (topic, group) = (bench.name("kcat-grouped"), bench.name("kcat-group"));
    create(bench, &topic, 1)?;
    let mut rounds = Vec::new();
    for round in 0..2 {
        need(kcat(bench, &["-P", "-t", &topic], &format!("a{round}\nb{round}\n"))?, "kcat -P")?;
        let words = ["-G", &group, "-c", "2", "-X", "auto.offset.reset=earliest", &topic];
        rounds.push(told(&kcat(bench, &words, "")?));
    }
    Ok(json!(rounds))
}

fn kcat_by_time(bench: &mut Bench<'_>) -> Result<Value> {
    let topic = bench.name("kcat-times");
    create(bench, &topic, 1)?;
    need(kcat(bench, &["-P", "-t", &topic], "a\nb\n")?, "kcat -P")?;
    let mut found = Vec::new();
    // A time before all records, and one after them.
    for time in ["1000000000000", "4000000000000"] {
        found.push(told(&kcat(bench, &["-Q", "-t", &format!("{topic}:0:{time}")], "")?));
    }
    Ok(json!(found))
}
