//! Kafka's command-line tools at their edges: every way of asking, and what is refused. Compared are the exit code, what a
//! tool that succeeded printed, and of one that failed the exceptions it named (texts of errors are each broker's own).

use crate::cases::{Bench, traps};
use crate::process::Finished;
use crate::tools::{CONFIGS, CONSUMER, GROUPS, OFFSETS, TOPICS, need, there_is, tool};
use crate::{Result, topics, wait};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

type Run = fn(&mut Bench<'_>) -> Result<Value>;

pub const CASES: &[(&str, Run)] = &[
    ("tools/topics-in-every-state", topics_in_every_state),
    ("tools/topics-refused", topics_refused),
    ("tools/configs-of-brokers", configs_of_brokers),
    ("tools/configs-of-others", configs_of_others),
    ("tools/reset-offsets", reset_offsets),
    ("tools/consumer-groups-views", consumer_groups_views),
    ("tools/delete-records-refused", delete_records_refused),
    ("tools/leader-election", leader_election),
    ("tools/log-dirs-of-all", log_dirs_of_all),
    ("tools/every-api-version", every_api_version),
    ("tools/get-offsets-by-time", get_offsets_by_time),
    ("tools/features-and-versions", features_and_versions),
    ("tools/quorum-and-cluster", quorum_and_cluster),
    ("tools/client-metrics", client_metrics),
];

/// How long a change takes to be told by every broker, at most.
const CHANGE_HEARD_MAX: Duration = Duration::from_secs(30);

const ELECTION: &str = "org.apache.kafka.tools.LeaderElectionCommand";

/// Runs a tool in the one JVM: its code is the same there, and hundreds of processes would take minutes.
fn run_tool(bench: &Bench<'_>, class: &str, words: &[&str]) -> Result<Finished> {
    let address = bench.address().to_string();
    there_is(class, bench.java.borrow_mut().tool(class, &[&["--bootstrap-server", &address], words].concat())?)
}

/// What a user saw of a tool.
fn see(bench: &Bench<'_>, class: &str, words: &[&str]) -> Result<Value> {
    Ok(seen(bench, &run_tool(bench, class, words)?))
}

/// The same, as soon as its output says, or no longer says, so: a broker hears of a change after whoever made it was answered.
fn see_once(bench: &Bench<'_>, class: &str, words: &[&str], text: &str, is_said: bool) -> Result<Value> {
    wait::until(text, CHANGE_HEARD_MAX, || {
        let finished = run_tool(bench, class, words)?;
        Ok((finished.out.contains(text) == is_said).then(|| seen(bench, &finished)))
    })
}

fn seen(bench: &Bench<'_>, finished: &Finished) -> Value {
    if finished.code == Some(0) {
        return json!({ "code": 0, "out": lines(bench, &finished.out) });
    }
    json!({ "code": finished.code, "exceptions": exceptions(finished) })
}

/// The output's lines in an order of their own, with one space between words, without addresses, ids and directories.
fn lines(bench: &Bench<'_>, text: &str) -> Vec<String> {
    let plain = text.replace(&bench.address().to_string(), "<address>");
    let mut lines: Vec<String> = plain.lines().map(words).filter(|line| !line.is_empty()).collect();
    lines.sort_unstable();
    lines
}

fn words(line: &str) -> String {
    let mut hide = false;
    let mut made = Vec::new();
    for word in line.split_whitespace() {
        made.push(if std::mem::replace(&mut hide, ["TopicId:", "ClusterId:"].contains(&word)) { "<id>" } else { word });
    }
    made.join(" ")
}

fn exceptions(finished: &Finished) -> BTreeSet<String> {
    let both = format!("{}\n{}", finished.out, finished.err);
    let words = both.split(|c: char| !c.is_alphanumeric());
    words.filter(|word| word.len() > "Exception".len() && word.ends_with("Exception")).map(str::to_owned).collect()
}

/// Numbers are the run's own.
fn without_numbers(value: Value) -> Value {
    match value {
        Value::String(text) => {
            let mut made = String::new();
            for c in text.chars() {
                let digit = c.is_ascii_digit();
                if !(digit && made.ends_with('#')) {
                    made.push(if digit { '#' } else { c });
                }
            }
            json!(made)
        }
        Value::Array(values) => values.into_iter().map(without_numbers).collect(),
        Value::Object(map) => {
            // The exit code is a number, and is compared.
            Value::Object(map.into_iter().map(|(name, inner)| (name, without_numbers(inner))).collect())
        }
        other => other,
    }
}

fn create(bench: &Bench<'_>, topic: &str, partitions: i32) -> Result<()> {
    topics::create(&mut bench.raw(), topic, partitions, &[]).map(|_| ())
}

/// So many records, one a batch, one millisecond apart.
fn produce(bench: &Bench<'_>, topic: &str, count: i64) -> Result<()> {
    let mut raw = bench.raw();
    for time in 0..count {
        let answer = raw.ask(9, &traps::produce(topic, vec![(0, traps::batch(&[time], b"v"))]))?;
        if answer["answer"]["Responses"][0]["PartitionResponses"][0]["ErrorCode"] != 0 {
            return Err(answer.to_string().into());
        }
    }
    Ok(())
}

/// A group that has read all of a topic's partition, as its consumer left it.
fn read_whole(bench: &Bench<'_>, group: &str, topic: &str, count: &str) -> Result<()> {
    let words = ["--topic", topic, "--group", group, "--from-beginning", "--max-messages", count];
    need(tool(bench, CONSUMER, &[&words[..], &["--timeout-ms", "60000"]].concat(), "")?, "kafka-console-consumer")?;
    Ok(())
}

fn topics_in_every_state(bench: &mut Bench<'_>) -> Result<Value> {
    let (plain, strict) = (bench.name("plain"), bench.name("strict"));
    create(bench, &plain, 2)?;
    let made =
        ["--create", "--topic", &strict, "--partitions", "1", "--config", "min.insync.replicas=2", "--if-not-exists"];
    let both = bench.name(".*");
    let mut found = vec![json!(["made", see(bench, TOPICS, &made)?, see(bench, TOPICS, &made)?])];
    for state in [
        "--unavailable-partitions",
        "--under-replicated-partitions",
        "--under-min-isr-partitions",
        "--at-min-isr-partitions",
        "--topics-with-overrides",
        "--exclude-internal",
    ] {
        found.push(json!([state, see(bench, TOPICS, &["--describe", "--topic", &both, state])?]));
    }
    let listed = run_tool(bench, TOPICS, &["--list", "--exclude-internal", "--topic", &both])?;
    found.push(json!(["listed", seen(bench, &listed)]));
    let described = run_tool(bench, TOPICS, &["--describe", "--topic", &plain])?;
    let id = described.out.split_whitespace().skip_while(|word| *word != "TopicId:").nth(1).unwrap_or_default();
    found.push(json!(["by id", see(bench, TOPICS, &["--describe", "--topic-id", id])?]));
    Ok(json!(found))
}

fn topics_refused(bench: &mut Bench<'_>) -> Result<Value> {
    let (name, missing) = (bench.name("kept"), bench.name("missing"));
    create(bench, &name, 2)?;
    let tried: &[&[&str]] = &[
        &["--create", "--topic", &name],
        &["--create", "--topic", &missing, "--replication-factor", "3"],
        &["--create", "--topic", "bad name"],
        &["--create", "--topic", &missing, "--config", "no.such=1"],
        &["--create", "--topic", &missing, "--replica-assignment", "1,1"],
        &["--create", "--topic", &missing, "--replica-assignment", "9"],
        &["--alter", "--topic", &name, "--partitions", "1"],
        &["--alter", "--topic", &missing, "--partitions", "3"],
        &["--alter", "--topic", &missing, "--partitions", "3", "--if-exists"],
        &["--describe", "--topic", &missing, "--if-exists"],
        &["--delete", "--topic", &missing],
        &["--delete", "--topic", &missing, "--if-exists"],
        &["--describe", "--topic-id", "AAAAAAAAAAAAAAAAAAAAAg"],
    ];
    tried.iter().map(|words| Ok(json!([words.join(" "), see(bench, TOPICS, words)?]))).collect()
}

fn configs_of_brokers(bench: &mut Bench<'_>) -> Result<Value> {
    let one = ["--entity-type", "brokers", "--entity-name", "1"];
    let all = ["--entity-type", "brokers", "--entity-default"];
    let run = |entity: &[&str], words: &[&str]| see(bench, CONFIGS, &[entity, words].concat());
    let told = |entity: &[&str], text: &str, is_said: bool| {
        see_once(bench, CONFIGS, &[entity, &["--describe"]].concat(), text, is_said)
    };
    let found = json!({
        "set for all": run(&all, &["--alter", "--add-config", "log.cleaner.backoff.ms=16000"])?,
        "all": told(&all, "=16000", true)?,
        "set for one": run(&one, &["--alter", "--add-config", "log.cleaner.backoff.ms=17000"])?,
        "one": told(&one, "=17000", true)?,
        "unset for one": run(&one, &["--alter", "--delete-config", "log.cleaner.backoff.ms"])?,
        "unset for all": run(&all, &["--alter", "--delete-config", "log.cleaner.backoff.ms"])?,
        "one again": told(&one, "log.cleaner.backoff.ms=1", false)?,
        "every broker": run(&["--entity-type", "brokers"], &["--describe"])?,
        "unset what is not set": run(&one, &["--alter", "--delete-config", "log.cleaner.backoff.ms"])?,
        "read only": run(&one, &["--alter", "--add-config", "num.partitions=4"])?,
        "unknown": run(&one, &["--alter", "--add-config", "no.such=4"])?,
        "bad": run(&one, &["--alter", "--add-config", "log.cleaner.backoff.ms=x"])?,
        "another broker": run(&["--entity-type", "brokers", "--entity-name", "7"], &["--describe"])?,
        "no broker": run(&["--entity-type", "brokers", "--entity-name", "x"], &["--describe"])?,
    });
    Ok(found)
}

fn configs_of_others(bench: &mut Bench<'_>) -> Result<Value> {
    let (group, metrics, topic) = (bench.name("a-group"), bench.name("metrics"), bench.name("listed"));
    create(bench, &topic, 1)?;
    let of_group = ["--entity-type", "groups", "--entity-name", &group];
    let of_metrics = ["--entity-type", "client-metrics", "--entity-name", &metrics];
    let of_topic = ["--entity-type", "topics", "--entity-name", &topic];
    let run = |entity: &[&str], words: &[&str]| see(bench, CONFIGS, &[entity, words].concat());
    let told = |entity: &[&str], text: &str| see_once(bench, CONFIGS, &[entity, &["--describe"]].concat(), text, true);
    let list = "cleanup.policy=[compact,delete]";
    Ok(json!({
        "group": run(&of_group, &["--alter", "--add-config", "consumer.session.timeout.ms=50000"])?,
        "group told": told(&of_group, "=50000")?,
        "group told whole": run(&of_group, &["--describe", "--all"])?,
        "group refused": run(&of_group, &["--alter", "--add-config", "consumer.session.timeout.ms=1"])?,
        "group unset": run(&of_group, &["--alter", "--delete-config", "consumer.session.timeout.ms"])?,
        "metrics": run(&of_metrics, &["--alter", "--add-config", "interval.ms=10000,metrics=org.apache.kafka."])?,
        "metrics told": told(&of_metrics, "=10000")?,
        "metrics refused": run(&of_metrics, &["--alter", "--add-config", "interval.ms=1"])?,
        "metrics unset": run(&of_metrics, &["--alter", "--delete-config", "interval.ms,metrics"])?,
        "topic, a list": run(&of_topic, &["--alter", "--add-config", list])?,
        "topic told": told(&of_topic, "compact,delete")?,
        "topic refused": run(&of_topic, &["--alter", "--add-config", "retention.ms=-7"])?,
        "missing topic": run(&["--entity-type", "topics", "--entity-name", "missing-topic"], &["--describe"])?,
        "topic unset twice": run(&of_topic, &["--alter", "--delete-config", "retention.ms"])?,
    }))
}

fn reset_offsets(bench: &mut Bench<'_>) -> Result<Value> {
    let (topic, other, group) = (bench.name("resets"), bench.name("resets-beside"), bench.name("resetting"));
    create(bench, &topic, 1)?;
    create(bench, &other, 1)?;
    produce(bench, &topic, 5)?;
    produce(bench, &other, 2)?;
    read_whole(bench, &group, &topic, "5")?;
    read_whole(bench, &group, &other, "2")?;
    let scratch = crate::node::Scratch::new("plan")?;
    let file = scratch.path().join("plan.csv").display().to_string();
    let run = |words: &[&str]| see(bench, GROUPS, &[&["--reset-offsets", "--group", &group], words].concat());
    let on = |words: &[&str]| run(&[words, &["--topic", &topic, "--execute"]].concat());
    let mut found = vec![
        json!(["earliest", on(&["--to-earliest"])?]),
        json!(["latest", on(&["--to-latest"])?]),
        json!(["current", on(&["--to-current"])?]),
        json!(["offset", on(&["--to-offset", "2"])?]),
        json!(["offset too high", on(&["--to-offset", "99"])?]),
        json!(["shift", on(&["--shift-by", "-3"])?]),
        json!(["shift too far", on(&["--shift-by", "-30"])?]),
        json!(["datetime", on(&["--to-datetime", "2001-01-01T00:00:00.000"])?]),
        json!(["datetime ahead", on(&["--to-datetime", "2101-01-01T00:00:00.000"])?]),
        json!(["duration", on(&["--by-duration", "P1D"])?]),
        json!(["dry run", run(&["--to-offset", "1", "--topic", &topic, "--dry-run"])?]),
        json!(["partition", run(&["--to-offset", "1", "--topic", &format!("{topic}:0"), "--execute"])?]),
        json!(["missing partition", run(&["--to-offset", "1", "--topic", &format!("{topic}:7"), "--execute"])?]),
        json!(["missing topic", run(&["--to-earliest", "--topic", "missing-topic", "--execute"])?]),
        json!(["all topics", run(&["--to-latest", "--all-topics", "--execute"])?]),
        json!(["no scope", run(&["--to-latest", "--execute"])?]),
    ];
    let export = ["--to-offset", "3", "--topic", &topic, "--export", "--dry-run"];
    let export = run_tool(bench, GROUPS, &[&["--reset-offsets", "--group", &group], &export[..]].concat())?;
    found.push(json!(["export", seen(bench, &export)]));
    std::fs::write(&file, &export.out)?;
    found.push(json!(["from file", run(&["--from-file", &file, "--execute"])?]));
    let none = bench.name("nobody");
    let words = ["--reset-offsets", "--group", &none, "--to-earliest", "--topic", &topic, "--execute"];
    found.push(json!(["a new group", see(bench, GROUPS, &words)?]));
    found.push(json!(["at last", see(bench, GROUPS, &["--describe", "--group", &group])?]));
    Ok(json!(found))
}

fn consumer_groups_views(bench: &mut Bench<'_>) -> Result<Value> {
    let (topic, other, group) = (bench.name("viewed"), bench.name("viewed-beside"), bench.name("viewing"));
    create(bench, &topic, 1)?;
    create(bench, &other, 1)?;
    for name in [&topic, &other] {
        produce(bench, name, 2)?;
        read_whole(bench, &group, name, "2")?;
    }
    let missing = bench.name("nobody");
    let run = |words: &[&str]| see(bench, GROUPS, words);
    let of = |words: &[&str]| see(bench, GROUPS, &[&["--group", &group], words].concat());
    let listed = run_tool(bench, GROUPS, &["--list", "--state"])?;
    let own = |text: &str| text.lines().map(words).filter(|line| line.starts_with(&group)).collect::<Vec<_>>();
    let listed_groups = run_tool(bench, "org.apache.kafka.tools.GroupsCommand", &["--list"])?;
    Ok(json!({
        "listed": own(&listed.out),
        "listed by kafka-groups": own(&listed_groups.out),
        "offsets": of(&["--describe", "--offsets"])?,
        "offsets verbose": of(&["--describe", "--offsets", "--verbose"])?,
        "members": of(&["--describe", "--members"])?,
        "members verbose": of(&["--describe", "--members", "--verbose"])?,
        "state": of(&["--describe", "--state", "--verbose"])?,
        "missing": run(&["--describe", "--group", &missing])?,
        "missing's members": run(&["--describe", "--group", &missing, "--members"])?,
        "delete some offsets": of(&["--delete-offsets", "--topic", &format!("{topic}:0")])?,
        "delete others": of(&["--delete-offsets", "--topic", "missing-topic"])?,
        "delete of missing": run(&["--delete-offsets", "--group", &missing, "--topic", &topic])?,
        "what is left": of(&["--describe"])?,
        "validate": run(&["--validate-regex", "a.*"])?,
        "delete": of(&["--delete"])?,
        "delete again": of(&["--delete"])?,
    }))
}

fn delete_records_refused(bench: &mut Bench<'_>) -> Result<Value> {
    let (topic, compacted) = (bench.name("cut"), bench.name("cut-compacted"));
    create(bench, &topic, 1)?;
    need(
        run_tool(bench, TOPICS, &["--create", "--topic", &compacted, "--config", "cleanup.policy=compact"])?,
        "kafka-topics --create",
    )?;
    produce(bench, &topic, 3)?;
    let scratch = crate::node::Scratch::new("records")?;
    let file = scratch.path().join("offsets.json");
    // For a partition that is missing the client asks again until its own time is over.
    let hasty = scratch.path().join("hasty.properties");
    std::fs::write(&hasty, "default.api.timeout.ms=3000\nrequest.timeout.ms=2000\n")?;
    let hasty = hasty.display().to_string();
    let mut found = Vec::new();
    for (topic, partition, offset) in [
        (topic.as_str(), 0, 2),
        (&topic, 0, 1),
        (&topic, 0, 99),
        (&topic, 7, 1),
        (&topic, 0, -1),
        ("missing-topic", 0, 1),
        ("__consumer_offsets", 0, 0),
        (&compacted, 0, 0),
    ] {
        let wanted =
            json!({ "partitions": [{ "topic": topic, "partition": partition, "offset": offset }], "version": 1 });
        std::fs::write(&file, wanted.to_string())?;
        let path = file.display().to_string();
        let words = ["--offset-json-file", &path, "--command-config", &hasty];
        found.push(json!([offset, see(bench, "org.apache.kafka.tools.DeleteRecordsCommand", &words)?]));
    }
    // Texts of refusals are each broker's own; the exceptions' names stand before them.
    for entry in &mut found {
        let told = entry[1]["out"].as_array().cloned().unwrap_or_default();
        let cut = |line: &Value| json!(line.as_str().unwrap_or_default().split("Exception:").next());
        entry[1]["out"] = told.iter().map(cut).collect();
    }
    Ok(json!(found))
}

fn leader_election(bench: &mut Bench<'_>) -> Result<Value> {
    let topic = bench.name("elected");
    create(bench, &topic, 2)?;
    let scratch = crate::node::Scratch::new("election")?;
    let file = scratch.path().join("partitions.json");
    let wanted = json!({ "partitions": [{ "topic": topic, "partition": 0 }, { "topic": topic, "partition": 1 }] });
    std::fs::write(&file, wanted.to_string())?;
    let path = file.display().to_string();
    let run = |words: &[&str]| see(bench, ELECTION, words);
    Ok(json!({
        "one": run(&["--election-type", "PREFERRED", "--topic", &topic, "--partition", "0"])?,
        "unclean": run(&["--election-type", "UNCLEAN", "--topic", &topic, "--partition", "1"])?,
        "missing partition": run(&["--election-type", "PREFERRED", "--topic", &topic, "--partition", "9"])?,
        "missing topic": run(&["--election-type", "PREFERRED", "--topic", "missing-topic", "--partition", "0"])?,
        "from a file": run(&["--election-type", "PREFERRED", "--path-to-json-file", &path])?,
        "all": run(&["--election-type", "PREFERRED", "--all-topic-partitions"])?["code"],
        "unknown kind": run(&["--election-type", "BEST", "--all-topic-partitions"])?,
    }))
}

fn log_dirs_of_all(bench: &mut Bench<'_>) -> Result<Value> {
    const CLASS: &str = "org.apache.kafka.tools.LogDirsCommand";
    let topic = bench.name("sized");
    create(bench, &topic, 1)?;
    produce(bench, &topic, 2)?;
    let mut found = Vec::new();
    for words in [&["--describe"][..], &["--describe", "--broker-list", "1"], &["--describe", "--broker-list", "7"]] {
        let finished = run_tool(bench, CLASS, words)?;
        let line = finished.out.lines().find(|line| line.starts_with('{')).unwrap_or("null");
        let told: Value = serde_json::from_str(line)?;
        let directory = &told["brokers"][0]["logDirs"][0];
        let partitions = directory["partitions"].as_array().cloned().unwrap_or_default();
        let own = partitions.iter().find(|partition| partition["partition"] == json!(format!("{topic}-0")));
        let room = |name: &str| directory[name].as_i64().is_some_and(|bytes| bytes > 0);
        found.push(json!({
            "code": finished.code,
            "exceptions": exceptions(&finished),
            "version": told["version"],
            "directories": told["brokers"][0]["logDirs"].as_array().map(Vec::len),
            "error": directory["error"],
            "has a size": own.and_then(|own| own["size"].as_i64()).map(|size| size > 0),
            "lag": own.map(|own| [own["offsetLag"].clone(), own["isFuture"].clone()]),
            "room": [room("totalBytes"), room("usableBytes")],
        }));
    }
    Ok(json!(found))
}

/// Every API that the subject serves too, with its versions, as the tool tells them.
fn every_api_version(bench: &mut Bench<'_>) -> Result<Value> {
    let finished = run_tool(bench, "org.apache.kafka.tools.BrokerApiVersionsCommand", &[])?;
    let served = |line: &&str| {
        let code = line.split('(').nth(1).and_then(|rest| rest.split(')').next()).and_then(|code| code.parse().ok());
        code.is_some_and(|code: i16| bench.served.iter().any(|api| api.code() == code))
    };
    let told: BTreeSet<String> = finished.out.lines().filter(served).map(words).collect();
    let told: Vec<String> = told.iter().map(|line| line.trim_end_matches(',').to_owned()).collect();
    Ok(json!({ "code": finished.code, "versions": told }))
}

fn get_offsets_by_time(bench: &mut Bench<'_>) -> Result<Value> {
    let (topic, empty) = (bench.name("timed"), bench.name("timed-none"));
    create(bench, &topic, 1)?;
    create(bench, &empty, 2)?;
    produce(bench, &topic, 3)?;
    let mut found = Vec::new();
    for time in [
        "-1",
        "-2",
        "-3",
        "-4",
        "-5",
        "-6",
        "earliest",
        "latest",
        "max-timestamp",
        "earliest-local",
        "latest-tiered",
        "earliest-pending-upload",
        "0",
        "1000000000000",
        "4000000000000",
        "-9",
        "yesterday",
    ] {
        // Which of records of one time has the largest is told alike; that it is the last of its batch need not be.
        found.push(json!([time, see(bench, OFFSETS, &["--topic", &topic, "--time", time])?]));
    }
    let both = bench.name("timed.*");
    let pairs = format!("{topic}:0,{empty}:1-2");
    for words in [
        &["--topic", &both][..],
        &["--topic", &both, "--partitions", "0"],
        &["--topic-partitions", &pairs],
        &["--topic", "missing-topic"],
        &["--topic", &empty, "--time", "max-timestamp"],
        &["--topic", &both, "--exclude-internal-topics", "--time", "earliest"],
    ] {
        found.push(json!([words.join(" "), see(bench, OFFSETS, words)?]));
    }
    Ok(json!(found))
}

fn features_and_versions(bench: &mut Bench<'_>) -> Result<Value> {
    const CLASS: &str = "org.apache.kafka.tools.FeatureCommand";
    let run = |words: &[&str]| see(bench, CLASS, words);
    // What a node could be upgraded to is its own matter; what it runs at is compared elsewhere.
    let described = run_tool(bench, CLASS, &["describe"])?;
    Ok(json!({
        "described": described.code,
        "mapping": run(&["version-mapping", "--release-version", "4.0-IV3"])?,
        "dependencies": run(&["feature-dependencies", "--feature", "metadata.version=20"])?,
        "to where it is": run(&["upgrade", "--feature", "metadata.version=33"])?,
        "unknown": run(&["upgrade", "--feature", "no.such=1"])?,
        "too high": run(&["upgrade", "--feature", "metadata.version=99"])?,
        "checked only": run(&["downgrade", "--feature", "metadata.version=32", "--dry-run"])?,
    }))
}

fn quorum_and_cluster(bench: &mut Bench<'_>) -> Result<Value> {
    const QUORUM: &str = "org.apache.kafka.tools.MetadataQuorumCommand";
    let status = run_tool(bench, QUORUM, &["describe", "--status"])?;
    // The names of the lines; voters and observers are compared by their ids elsewhere.
    let names: Vec<&str> = status.out.lines().filter_map(|line| line.split(':').next()).collect();
    let replication = run_tool(bench, QUORUM, &["describe", "--replication"])?;
    let columns = |line: Option<&str>| line.map(|line| line.split_whitespace().count());
    let cluster = |words: &[&str]| {
        let (subcommand, rest) = words.split_first().ok_or("a subcommand")?;
        let address = bench.address().to_string();
        let words = [&[*subcommand, "--bootstrap-server", &address], rest].concat();
        let finished = bench.java.borrow_mut().tool("org.apache.kafka.tools.ClusterTool", &words)?;
        Ok::<_, crate::Fault>(seen(bench, &finished))
    };
    let endpoints = cluster(&["list-endpoints"])?;
    let port = bench.address().port().to_string();
    let endpoints = serde_json::from_str(&endpoints.to_string().replace(&port, "<port>"))?;
    let id = without_numbers(cluster(&["cluster-id"])?);
    Ok(json!({
        "status": names,
        "replication": [columns(replication.out.lines().next()), columns(replication.out.lines().nth(1))],
        "human": run_tool(bench, QUORUM, &["describe", "--replication", "--human-readable"])?.code,
        "id": id["code"],
        "endpoints": Value::clone(&endpoints),
        "unregister a missing one": cluster(&["unregister", "--id", "9"])?,
    }))
}

fn client_metrics(bench: &mut Bench<'_>) -> Result<Value> {
    const CLASS: &str = "org.apache.kafka.tools.ClientMetricsCommand";
    let name = bench.name("subscription");
    let run = |words: &[&str]| see(bench, CLASS, words);
    let own = |value: Value| {
        let lines = value["out"].as_array().cloned().unwrap_or_default();
        let own = |line: &Value| line.as_str().is_some_and(|line| line.contains(&name));
        json!([value["code"], lines.into_iter().filter(own).collect::<Vec<_>>()])
    };
    Ok(json!({
        "set": run(&["--alter", "--name", &name, "--metrics", "org.apache.kafka.producer.", "--interval", "30000"])?,
        "told": run(&["--describe", "--name", &name])?,
        "listed": own(run(&["--list"])?),
        "matched": run(&["--alter", "--name", &name, "--match", "client_id=x"])?,
        "refused": run(&["--alter", "--name", &name, "--match", "no_such=x"])?,
        "deleted": run(&["--delete", "--name", &name])?,
        "listed again": own(run(&["--list"])?),
    }))
}
