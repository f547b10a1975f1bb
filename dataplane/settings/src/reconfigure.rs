//! What Kafka refuses when a broker's settings change while it runs, and what Pollux refuses beyond that.

use crate::broker::BrokerSettings;
use crate::catalog::Catalog;
use crate::config::LARGEST_BATCH;
use crate::kind::Scope;
use crate::status::Status;
use crate::topic;
use crate::validate::{ensure_copy_lag, ensure_local_retention};
use crate::value::{Invalid, Refusal, Value};

/// Threads that Kafka lets grow or shrink by a factor of two at once.
const THREADS: [&str; 8] = [
    "background.threads",
    "num.io.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
    "remote.log.manager.copier.thread.pool.size",
    "remote.log.manager.expiration.thread.pool.size",
    "remote.log.manager.follower.thread.pool.size",
    "remote.log.reader.threads",
];
/// What Kafka may change while it runs and Pollux may not.
const FIXED_WHILE_RUNNING: [&str; 2] = ["listener.security.protocol.map", "listeners"];

/// Kafka wraps these refusals in one that names no setting; clients see the whole text.
pub(crate) fn ensure_reconfigurable(before: &BrokerSettings, after: &BrokerSettings) -> Result<(), Refusal> {
    ensure_threads(before, after).and_then(|()| ensure_retention(after)).map_err(|error| {
        let wrapped =
            format!("Invalid value org.apache.kafka.common.config.ConfigException: {error} for configuration ");
        Refusal::request(wrapped + "Invalid dynamic configuration")
    })
}

fn number(broker: &BrokerSettings, name: &str) -> i64 {
    broker.value(name).and_then(Value::as_integer).unwrap_or(0)
}

fn ensure_threads(before: &BrokerSettings, after: &BrokerSettings) -> Result<(), Invalid> {
    for name in THREADS {
        let (old, new) = (number(before, name), number(after, name));
        let failed = format!("Dynamic thread count update validation failed for {name}={new}");
        if new < old / 2 {
            return Err(Invalid(format!("{failed}, value should be at least half the current value {old}")));
        }
        if new > old * 2 {
            return Err(Invalid(format!("{failed}, value should not be greater than double the current value {old}")));
        }
    }
    let (old, new) = (number(before, "log.cleaner.threads"), number(after, "log.cleaner.threads"));
    let failed = |how: &str| Err(Invalid(format!("Log cleaner threads cannot be {how} the current value {old}")));
    if new < old / 2 {
        return failed("reduced to less than half");
    }
    if new > old * 2 {
        return failed("increased to more than double");
    }
    Ok(())
}

fn ensure_retention(after: &BrokerSettings) -> Result<(), Invalid> {
    let find = |name: &str| after.value(name).unwrap_or(&Value::Null);
    for unit in ["ms", "bytes"] {
        let whole = topic::default_number(&format!("retention.{unit}"), &find);
        let (local, lag) = (format!("log.local.retention.{unit}"), format!("log.remote.copy.lag.{unit}"));
        let local = (local.as_str(), number(after, &local));
        ensure_local_retention((&format!("log.retention.{unit}"), whole), local)?;
        ensure_copy_lag((&lag, number(after, &lag)), local, whole)?;
    }
    Ok(())
}

/// What Kafka would take and Pollux must not pretend to.
pub(crate) fn ensure_within_pollux(before: &BrokerSettings, after: &BrokerSettings) -> Result<(), Refusal> {
    for setting in Catalog::get().settings(Scope::Broker) {
        let (old, new) = (before.value(setting.name), after.value(setting.name));
        if old == new {
            continue;
        }
        let too_large = setting.name == "message.max.bytes" && number(after, setting.name) > LARGEST_BATCH;
        let why = match setting.status {
            Status::Refused { why } => why.to_owned(),
            _ if FIXED_WHILE_RUNNING.contains(&setting.name) => "it takes effect at a start only".to_owned(),
            _ if too_large => format!("Value must be no more than {LARGEST_BATCH}, the largest batch that is stored"),
            _ => continue,
        };
        let text = new.map_or_else(String::new, Value::message_text);
        return Err(Refusal::request(format!("Invalid value {text} for configuration {}: {why}", setting.name)));
    }
    Ok(())
}
