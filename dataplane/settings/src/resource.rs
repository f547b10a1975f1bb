//! The rules for settings of groups and of subscriptions to client metrics, with Kafka's words.

use crate::broker::{BrokerSettings, Texts};
use crate::catalog::Catalog;
use crate::describe::group_default;
use crate::java;
use crate::kind::Scope;
use crate::value::{Refusal, Value};

/// A group's setting that must lie between two of the broker's.
const RANGES: [(&str, &str, &str); 11] = [
    (
        "consumer.heartbeat.interval.ms",
        "group.consumer.min.heartbeat.interval.ms",
        "group.consumer.max.heartbeat.interval.ms",
    ),
    ("consumer.session.timeout.ms", "group.consumer.min.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
    (
        "consumer.assignment.interval.ms",
        "group.consumer.min.assignment.interval.ms",
        "group.consumer.max.assignment.interval.ms",
    ),
    ("share.heartbeat.interval.ms", "group.share.min.heartbeat.interval.ms", "group.share.max.heartbeat.interval.ms"),
    ("share.session.timeout.ms", "group.share.min.session.timeout.ms", "group.share.max.session.timeout.ms"),
    (
        "share.record.lock.duration.ms",
        "group.share.min.record.lock.duration.ms",
        "group.share.max.record.lock.duration.ms",
    ),
    ("share.delivery.count.limit", "group.share.min.delivery.count.limit", "group.share.max.delivery.count.limit"),
    (
        "share.partition.max.record.locks",
        "group.share.min.partition.max.record.locks",
        "group.share.max.partition.max.record.locks",
    ),
    (
        "share.assignment.interval.ms",
        "group.share.min.assignment.interval.ms",
        "group.share.max.assignment.interval.ms",
    ),
    (
        "streams.heartbeat.interval.ms",
        "group.streams.min.heartbeat.interval.ms",
        "group.streams.max.heartbeat.interval.ms",
    ),
    ("streams.session.timeout.ms", "group.streams.min.session.timeout.ms", "group.streams.max.session.timeout.ms"),
];
/// The one more range, which Kafka looks at after the first of the next.
const STREAMS_ASSIGNMENT: (&str, &str, &str) = (
    "streams.assignment.interval.ms",
    "group.streams.min.assignment.interval.ms",
    "group.streams.max.assignment.interval.ms",
);
const INTERVAL_MS: std::ops::RangeInclusive<i64> = 100..=3_600_000;
const MATCH_NAMES: [&str; 6] = [
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
];

/// Checks all settings a group would have after a change.
pub fn validate_group_overrides(overrides: &Texts, broker: &BrokerSettings) -> Result<(), Refusal> {
    let catalog = Catalog::get();
    if let Some(name) = overrides.keys().find(|name| catalog.find(Scope::Group, name).is_none()) {
        return Err(Refusal::config(format!("Unknown group config name: {name}")));
    }
    if let Some(tags) = overrides.get("streams.rack.aware.assignment.tags") {
        let mut tags = java::split_list(tags);
        let all = tags.len();
        tags.sort();
        tags.dedup();
        if tags.len() != all {
            return Err(Refusal::config("streams.rack.aware.assignment.tags must not contain duplicate tag keys."));
        }
    }
    let mut parsed = Vec::new();
    for setting in catalog.settings(Scope::Group) {
        if let Some(text) = overrides.get(setting.name) {
            parsed.push((setting.name, setting.parse(text)?));
        }
    }
    let group = Group { parsed, broker };
    for range in RANGES {
        group.ensure_range(range)?;
    }
    group.ensure_at_most("streams.num.standby.replicas", "group.streams.max.standby.replicas")?;
    group.ensure_range(STREAMS_ASSIGNMENT)?;
    group.ensure_at_least("streams.task.offset.interval.ms", "group.streams.min.task.offset.interval.ms")?;
    group.ensure_at_most("streams.num.warmup.replicas", "group.streams.max.warmup.replicas")?;
    group.ensure_assignor()?;
    for protocol in ["consumer", "share", "streams"] {
        group.ensure_session_outlasts_heartbeat(protocol)?;
    }
    let letters = group.set("errors.deadletterqueue.topic.name").and_then(Value::as_text).unwrap_or_default();
    if letters.starts_with("__") {
        return Err(Refusal::config("errors.deadletterqueue.topic.name: DLQ topic name must not start with '__'"));
    }
    Ok(())
}

struct Group<'a> {
    parsed: Vec<(&'static str, Value)>,
    broker: &'a BrokerSettings,
}

impl Group<'_> {
    fn set(&self, name: &str) -> Option<&Value> {
        self.parsed.iter().find(|(set, _)| *set == name).map(|(_, value)| value)
    }

    fn number(&self, name: &str) -> Option<i64> {
        self.set(name).and_then(Value::as_integer)
    }

    fn bound(&self, name: &str) -> i64 {
        self.broker.value(name).and_then(Value::as_integer).unwrap_or(0)
    }

    fn ensure_range(&self, (name, min, max): (&str, &str, &str)) -> Result<(), Refusal> {
        let (min, max) = (self.bound(min), self.bound(max));
        match self.number(name) {
            Some(value) if value < min || value > max => {
                Err(Refusal::config(format!("{name} must be in the range {min} to {max} inclusive.")))
            }
            _ => Ok(()),
        }
    }

    fn ensure_at_most(&self, name: &str, max: &str) -> Result<(), Refusal> {
        let max = self.bound(max);
        match self.number(name) {
            Some(value) if value > max => Err(Refusal::config(format!("{name} must be less than or equal to {max}"))),
            _ => Ok(()),
        }
    }

    fn ensure_at_least(&self, name: &str, min: &str) -> Result<(), Refusal> {
        let min = self.bound(min);
        match self.number(name) {
            Some(value) if value < min => {
                Err(Refusal::config(format!("{name} must be greater than or equal to {min}")))
            }
            _ => Ok(()),
        }
    }

    fn ensure_assignor(&self) -> Result<(), Refusal> {
        let known = self.broker.list("group.streams.assignors");
        match self.set("streams.assignor.name").and_then(Value::as_text) {
            Some(name) if !known.iter().any(|one| one == name) => Err(Refusal::config(format!(
                "streams.assignor.name '{name}' is not a registered task assignor. Registered assignors are: [{}].",
                known.join(", ")
            ))),
            _ => Ok(()),
        }
    }

    fn ensure_session_outlasts_heartbeat(&self, protocol: &str) -> Result<(), Refusal> {
        let session = format!("{protocol}.session.timeout.ms");
        let heartbeat = format!("{protocol}.heartbeat.interval.ms");
        if self.set(&session).is_none() && self.set(&heartbeat).is_none() {
            return Ok(());
        }
        let effective = |name: &str| {
            let default = || group_default(Catalog::get().find(Scope::Group, name)?, self.broker).as_integer();
            self.number(name).or_else(default).unwrap_or(0)
        };
        if effective(&session) <= effective(&heartbeat) {
            return Err(Refusal::config(format!("{session} must be greater than {heartbeat}")));
        }
        Ok(())
    }
}

/// Checks all settings a subscription to client metrics would have after a change.
pub fn validate_client_metrics(overrides: &Texts) -> Result<(), Refusal> {
    let catalog = Catalog::get();
    if let Some(name) = overrides.keys().find(|name| catalog.find(Scope::ClientMetrics, name).is_none()) {
        return Err(Refusal::request(format!("Unknown client metrics configuration: {name}")));
    }
    for setting in catalog.settings(Scope::ClientMetrics) {
        let Some(text) = overrides.get(setting.name) else {
            continue;
        };
        let value = setting.parse(text)?;
        match (setting.name, &value) {
            ("interval.ms", Value::Int(interval)) if !INTERVAL_MS.contains(&i64::from(*interval)) => {
                let why = format!(
                    "Invalid value {interval} for interval.ms, interval must be between 100 and 3600000 (1 hour)"
                );
                return Err(Refusal::request(why));
            }
            ("match", Value::List(patterns)) => {
                if let Some(bad) = patterns.iter().find(|pattern| !is_match_pattern(pattern)) {
                    return Err(Refusal::config(format!("Illegal client matching pattern: {bad}")));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn is_match_pattern(pattern: &str) -> bool {
    let mut parts: Vec<&str> = pattern.split('=').collect();
    while parts.last() == Some(&"") {
        parts.pop();
    }
    let &[name, expression] = parts.as_slice() else {
        return false;
    };
    MATCH_NAMES.contains(&java::trim(name)) && is_closed(java::trim(expression))
}

/// Whether an expression is closed: groups and classes balanced, no escape at its end, nothing to repeat missing. That is
/// what a hand gets wrong; whoever collects client metrics will compile the expression.
fn is_closed(expression: &str) -> bool {
    let mut groups = 0_usize;
    let mut class = false;
    let mut repeatable = false;
    let mut characters = expression.chars();
    while let Some(one) = characters.next() {
        match one {
            '\\' => {
                if characters.next().is_none() {
                    return false;
                }
                repeatable = true;
            }
            ']' if class => (class, repeatable) = (false, true),
            _ if class => {}
            '[' => class = true,
            '(' => (groups, repeatable) = (groups + 1, false),
            // Groups that begin with a question mark are named, atomic or look around.
            '?' if !repeatable && groups > 0 => {}
            ')' if groups == 0 => return false,
            ')' => (groups, repeatable) = (groups - 1, true),
            '|' => repeatable = false,
            '*' | '+' | '?' if !repeatable => return false,
            _ => repeatable = true,
        }
    }
    groups == 0 && !class
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions() {
        for good in ["a.*", "", "(a|b)+", "[a-z(]*", "\\(", "(?:a)?", "^a$"] {
            assert!(is_closed(good), "{good}");
        }
        for bad in ["(", ")", "[a", "*a", "a|*", "\\", "(*)"] {
            assert!(!is_closed(bad), "{bad}");
        }
        assert!(is_match_pattern("client_id = a.*"));
        assert!(!is_match_pattern("client=a"));
        assert!(!is_match_pattern("client_id"));
    }
}
