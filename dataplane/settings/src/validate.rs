//! The rules between a topic's values, with Kafka's words.

use crate::broker::{BrokerSettings, Texts};
use crate::catalog::Catalog;
use crate::kind::Scope;
use crate::topic;
use crate::value::{Invalid, Refusal, Value};

/// Checks all overrides a topic would have after a change; `before` are those it has. `largest_batch` is what one batch
/// may take in this node's namespaces, which is our limit and not Kafka's.
pub fn validate_topic_overrides(
    overrides: &Texts,
    before: &Texts,
    broker: &BrokerSettings,
    largest_batch: u32,
) -> Result<(), Refusal> {
    let catalog = Catalog::get();
    if let Some(name) = overrides.keys().find(|name| catalog.find(Scope::Topic, name).is_none()) {
        return Err(Refusal::config(format!("Unknown topic config name: {name}")));
    }
    let values = topic::effective(overrides, broker)?;
    let find = |name: &str| catalog.position(Scope::Topic, name).map_or(&Value::Null, |at| &values[at]);
    let topic = Topic { find: &find };
    topic.ensure_compaction_lags()?;
    if topic.boolean("remote.storage.enable") {
        let system = broker.value("remote.log.storage.system.enable").and_then(Value::as_boolean).unwrap_or(false);
        topic.ensure_remote(system)?;
    } else {
        let was = before.get("remote.storage.enable").is_some_and(|text| text.eq_ignore_ascii_case("true"));
        topic.ensure_remote_may_end(was)?;
    }
    let bytes = topic.number("max.message.bytes");
    if overrides.contains_key("max.message.bytes") && bytes > i64::from(largest_batch) {
        return Err(Refusal::config(format!(
            "Invalid value {bytes} for configuration max.message.bytes: Value must be no more than {largest_batch}, the \
             largest batch that this node's storage takes"
        )));
    }
    Ok(())
}

/// Local retention may be neither unlimited nor longer where the whole retention is bounded.
pub(crate) fn ensure_local_retention(
    (whole_name, whole): (&str, i64),
    (name, local): (&str, i64),
) -> Result<(), Invalid> {
    if whole < 0 || local == -2 {
        return Ok(());
    }
    if local == -1 {
        return Err(Invalid::value(
            name,
            "-1",
            &format!("Value must not be -1 as {whole_name} value is set as {whole}."),
        ));
    }
    if local > whole {
        let why = format!("Value must not be more than {whole_name} property value: {whole}");
        return Err(Invalid::value(name, &local.to_string(), &why));
    }
    Ok(())
}

/// What is not yet copied away must still be held.
pub(crate) fn ensure_copy_lag(
    (name, lag): (&str, i64),
    (local_name, local): (&str, i64),
    whole: i64,
) -> Result<(), Invalid> {
    let effective = if local == -2 { whole } else { local };
    if lag > 0 && effective >= 0 && lag > effective {
        let why = format!("Value must not exceed {local_name} (effective value: {effective})");
        return Err(Invalid::value(name, &lag.to_string(), &why));
    }
    Ok(())
}

struct Topic<'a> {
    find: &'a dyn Fn(&str) -> &'a Value,
}

impl Topic<'_> {
    fn number(&self, name: &str) -> i64 {
        (self.find)(name).as_integer().unwrap_or(-1)
    }

    fn boolean(&self, name: &str) -> bool {
        (self.find)(name).as_boolean().unwrap_or(false)
    }

    fn ensure_compaction_lags(&self) -> Result<(), Refusal> {
        let (min, max) = (self.number("min.compaction.lag.ms"), self.number("max.compaction.lag.ms"));
        if min > max {
            let why =
                format!("conflict topic config setting min.compaction.lag.ms ({min}) > max.compaction.lag.ms ({max})");
            return Err(Refusal::config(why));
        }
        Ok(())
    }

    fn ensure_remote(&self, system_enabled: bool) -> Result<(), Refusal> {
        if !system_enabled {
            let why = "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage.";
            return Err(Refusal::config(why));
        }
        let policy = (self.find)("cleanup.policy").as_list().unwrap_or_default();
        if !policy.is_empty() && policy != ["delete"] {
            let why = "Remote log storage only supports topics with cleanup.policy=delete or cleanup.policy being an empty list.";
            return Err(Refusal::config(why));
        }
        self.ensure_local("bytes")?;
        self.ensure_local("ms")?;
        self.ensure_copy_lag("bytes")?;
        self.ensure_copy_lag("ms")?;
        if self.boolean("remote.log.copy.disable") {
            self.ensure_same_retention("bytes")?;
            self.ensure_same_retention("ms")?;
        }
        Ok(())
    }

    fn ensure_local(&self, unit: &str) -> Result<(), Invalid> {
        let (whole, local) = (format!("retention.{unit}"), format!("local.retention.{unit}"));
        ensure_local_retention((&whole, self.number(&whole)), (&local, self.number(&local)))
    }

    fn ensure_copy_lag(&self, unit: &str) -> Result<(), Invalid> {
        let (lag, local) = (format!("remote.copy.lag.{unit}"), format!("local.retention.{unit}"));
        let whole = self.number(&format!("retention.{unit}"));
        ensure_copy_lag((&lag, self.number(&lag)), (&local, self.number(&local)), whole)
    }

    fn ensure_same_retention(&self, unit: &str) -> Result<(), Refusal> {
        let local = self.number(&format!("local.retention.{unit}"));
        if local == -2 || local == self.number(&format!("retention.{unit}")) {
            return Ok(());
        }
        Err(Refusal::config(format!(
            "When `remote.log.copy.disable` is set to true, the `local.retention.{unit}` and `retention.{unit}` must be set to \
             the identical value because there will be no more logs copied to the remote storage."
        )))
    }

    fn ensure_remote_may_end(&self, was_enabled: bool) -> Result<(), Refusal> {
        if !was_enabled || self.boolean("remote.log.delete.on.disable") {
            return Ok(());
        }
        Err(Refusal::config(
            "It is invalid to disable remote storage without deleting remote data. If you want to keep the remote data and turn \
             to read only, please set `remote.storage.enable=true,remote.log.copy.disable=true`. If you want to disable remote \
             storage and delete all remote data, please set `remote.storage.enable=false,remote.log.delete.on.disable=true`.",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(pairs: &[(&str, &str)]) -> Texts {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn message(overrides: &[(&str, &str)], before: &[(&str, &str)]) -> String {
        let file = [
            ("node.id", "1"),
            ("process.roles", "broker"),
            ("controller.listener.names", "C"),
            ("remote.log.storage.system.enable", "true"),
        ];
        let broker = BrokerSettings::from_file(&texts(&file)).unwrap();
        match validate_topic_overrides(&texts(overrides), &texts(before), &broker, 16 << 20) {
            Ok(()) => String::new(),
            Err(refusal) => refusal.message,
        }
    }

    #[test]
    fn rules_between_values() {
        let remote = ("remote.storage.enable", "true");
        assert_eq!(message(&[remote], &[]), "");
        assert!(message(&[remote, ("cleanup.policy", "compact")], &[]).starts_with("Remote log storage only"));
        assert!(message(&[remote, ("local.retention.ms", "-1")], &[]).contains("Value must not be -1 as retention.ms"));
        let longer = message(&[remote, ("retention.ms", "5"), ("local.retention.ms", "6")], &[]);
        assert!(longer.ends_with("Value must not be more than retention.ms property value: 5"));
        assert!(
            message(&[remote, ("retention.bytes", "5"), ("remote.copy.lag.bytes", "6")], &[])
                .contains("must not exceed")
        );
        let different = [remote, ("remote.log.copy.disable", "true"), ("local.retention.ms", "5")];
        assert!(message(&different, &[]).contains("identical value"));
        assert!(message(&[], &[remote]).starts_with("It is invalid to disable"));
        assert!(
            message(&[("min.compaction.lag.ms", "6"), ("max.compaction.lag.ms", "5")], &[])
                .starts_with("conflict topic")
        );
    }

    #[test]
    fn a_batch_must_fit_the_storage() {
        assert_eq!(message(&[("max.message.bytes", "16777216")], &[]), "");
        assert!(message(&[("max.message.bytes", "16777217")], &[]).contains("no more than 16777216"));
    }
}
