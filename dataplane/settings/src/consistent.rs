//! The rules between a broker's values, with Kafka's words.

use crate::broker::Texts;
use crate::java;
use crate::topic;
use crate::value::{Invalid, Value};

/// Looks values up by name.
type Find<'a, 'b> = &'b dyn Fn(&str) -> &'a Value;

/// Checks a broker's effective values; `merged` are the texts they came from.
pub(crate) fn ensure_consistent(find: Find<'_, '_>, merged: &Texts) -> Result<(), Invalid> {
    for protocol in ["consumer", "share", "streams"] {
        ensure_group(protocol, find)?;
    }
    ensure_streams_groups(find, merged)?;
    ensure_share_groups(find)?;
    if number(find, "node.id") != number(find, "broker.id") {
        let why = "`node.id` and `broker.id` must be set to the same value. `broker.id` is deprecated, please use `node.id` instead.";
        return Err(Invalid(why.to_owned()));
    }
    ensure_logs(find)?;
    ensure_connections(find)?;
    ensure_cordoned(find)
}

fn number(find: Find<'_, '_>, name: &str) -> i64 {
    find(name).as_integer().unwrap_or(-1)
}

/// Kafka's plain requirement.
fn require(holds: bool, why: &str) -> Result<(), Invalid> {
    if holds { Ok(()) } else { Err(Invalid(format!("requirement failed: {why}"))) }
}

fn at_least(find: Find<'_, '_>, name: &str, other: &str) -> Result<(), Invalid> {
    if number(find, name) >= number(find, other) {
        return Ok(());
    }
    Err(Invalid(format!("{name} must be greater than or equal to {other}")))
}

fn at_most(find: Find<'_, '_>, name: &str, other: &str) -> Result<(), Invalid> {
    if number(find, name) <= number(find, other) {
        return Ok(());
    }
    Err(Invalid(format!("{name} must be less than or equal to {other}")))
}

/// A protocol's intervals lie within their bounds, and a session outlasts a heartbeat.
fn ensure_group(protocol: &str, find: Find<'_, '_>) -> Result<(), Invalid> {
    let name = |bound: &str, what: &str| format!("group.{protocol}.{bound}{what}");
    let within = |what: &str| {
        at_least(find, &name("max.", what), &name("min.", what))?;
        at_least(find, &name("", what), &name("min.", what))?;
        at_most(find, &name("", what), &name("max.", what))
    };
    within("heartbeat.interval.ms")?;
    within("session.timeout.ms")?;
    let (heartbeat, session) = (name("", "heartbeat.interval.ms"), name("", "session.timeout.ms"));
    if number(find, &heartbeat) >= number(find, &session) {
        return Err(Invalid(format!("{heartbeat} must be less than {session}")));
    }
    within("assignment.interval.ms")
}

fn ensure_streams_groups(find: Find<'_, '_>, merged: &Texts) -> Result<(), Invalid> {
    at_most(find, "group.streams.num.standby.replicas", "group.streams.max.standby.replicas")?;
    at_least(find, "group.streams.task.offset.interval.ms", "group.streams.min.task.offset.interval.ms")?;
    at_most(find, "group.streams.num.warmup.replicas", "group.streams.max.warmup.replicas")?;
    let name = "group.streams.rack.aware.assignment.tags";
    let mut tags = merged.get(name).map(|text| java::split_list(text)).unwrap_or_default();
    let all = tags.len();
    tags.sort();
    tags.dedup();
    if tags.len() != all {
        return Err(Invalid(format!("{name} must not contain duplicate tag keys.")));
    }
    Ok(())
}

fn ensure_share_groups(find: Find<'_, '_>) -> Result<(), Invalid> {
    let assignors = find("group.share.assignors").as_list().unwrap_or_default().len();
    if assignors != 1 {
        let why = format!("group.share.assignors must contain exactly one assignor, but found {assignors}");
        return Err(Invalid(why));
    }
    for what in ["delivery.count.limit", "partition.max.record.locks", "record.lock.duration.ms"] {
        let name = |bound: &str| format!("group.share.{bound}{what}");
        at_least(find, &name("max."), &name(""))?;
        at_least(find, &name(""), &name("min."))?;
    }
    at_least(find, "group.share.max.share.sessions", "group.share.max.size")
}

fn ensure_logs(find: Find<'_, '_>) -> Result<(), Invalid> {
    let topic = |name: &str| topic::default_number(name, find);
    require(topic("segment.ms") >= 1, "log.roll.ms must be greater than or equal to 1")?;
    require(topic("segment.jitter.ms") >= 0, "log.roll.jitter.ms must be greater than or equal to 0")?;
    let retention = topic("retention.ms");
    require(
        retention >= 1 || retention == -1,
        "log.retention.ms must be unlimited (-1) or, greater than or equal to 1",
    )?;
    let threads = number(find, "log.cleaner.threads");
    if threads == 0 {
        // Kafka divides by it.
        return Err(Invalid("/ by zero".to_owned()));
    }
    let share = number(find, "log.cleaner.dedupe.buffer.size") / threads;
    require(share > 1 << 20, "log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread.")?;
    let wait = number(find, "replica.fetch.wait.max.ms");
    require(
        wait <= number(find, "replica.socket.timeout.ms"),
        "replica.socket.timeout.ms should always be at least replica.fetch.wait.max.ms to prevent unnecessary socket timeouts",
    )?;
    require(
        wait <= number(find, "replica.lag.time.max.ms"),
        "replica.fetch.wait.max.ms should always be less than or equal to replica.lag.time.max.ms to prevent frequent \
         changes in ISR",
    )
}

fn ensure_connections(find: Find<'_, '_>) -> Result<(), Invalid> {
    let queued = number(find, "queued.max.request.bytes");
    require(
        queued <= 0 || queued >= number(find, "socket.request.max.bytes"),
        "queued.max.request.bytes must be larger or equal to socket.request.max.bytes",
    )?;
    let overrides = connections_per_ip(find("max.connections.per.ip.overrides").as_text().unwrap_or_default())?;
    require(
        number(find, "max.connections.per.ip") != 0 || !overrides.is_empty(),
        "max.connections.per.ip can be set to zero only if max.connections.per.ip.overrides property is set.",
    )?;
    let idle = number(find, "connections.max.idle.ms");
    let delay = number(find, "connection.failed.authentication.delay.ms");
    let why = format!(
        "connection.failed.authentication.delay.ms={delay} should always be less than connections.max.idle.ms={idle} to \
         prevent failed authentication responses from timing out"
    );
    require(idle < 0 || delay < idle, &why)
}

/// Reads `address:count,...`.
pub(crate) fn connections_per_ip(text: &str) -> Result<Vec<(String, i32)>, Invalid> {
    let mut result = Vec::new();
    for entry in java::split_list(text) {
        let Some((address, count)) = entry.rsplit_once(':') else {
            let why = format!("begin 0, end -1, length {}", entry.len());
            let name = "max.connections.per.ip.overrides";
            return Err(Invalid(format!("Error parsing configuration property '{name}': {why}")));
        };
        let count = count.trim();
        let count = count.parse().map_err(|_| Invalid(format!("For input string: \"{count}\"")))?;
        result.push((address.trim().to_owned(), count));
    }
    Ok(result)
}

fn ensure_cordoned(find: Find<'_, '_>) -> Result<(), Invalid> {
    let cordoned = find("cordoned.log.dirs").as_list().unwrap_or_default();
    if cordoned.iter().any(|entry| entry == "*") {
        return require(cordoned.len() == 1, "When cordoned.log.dirs is set to *, it must not contain other values");
    }
    let known = log_dirs(find);
    let unknown: Vec<&str> = cordoned.iter().filter(|dir| !known.contains(dir)).map(String::as_str).collect();
    let why = format!(
        "All entries in cordoned.log.dirs must be present in log.dirs or log.dir. Missing entries : {}",
        unknown.join(", ")
    );
    require(unknown.is_empty(), &why)
}

/// `log.dirs`, or where that is not set the single `log.dir`.
fn log_dirs(find: Find<'_, '_>) -> Vec<String> {
    let one = |name: &str| match find(name) {
        Value::List(directories) => Some(directories.clone()),
        Value::Text(text) => Some(java::split_list(text)),
        _ => None,
    };
    one("log.dirs").or_else(|| one("log.dir")).unwrap_or_default()
}
