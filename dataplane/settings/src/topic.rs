//! What one topic obeys: its own settings over the broker's, as plain typed data for the dataplane.

use crate::broker::{BrokerSettings, Texts};
use crate::catalog::{Catalog, Setting};
use crate::kind::{Kind, Scope};
use crate::value::{Invalid, Value};
use std::sync::Arc;

/// A bound that may be absent (Kafka's -1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    Unlimited,
    At(u64),
}

/// Both off is Kafka's empty list: nothing is ever removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CleanupPolicy {
    pub delete: bool,
    pub compact: bool,
}

/// What the stored batches are compressed with; `Producer` keeps what was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CompressionType {
    Producer,
    Uncompressed,
    Gzip,
    Snappy,
    Lz4,
    Zstd,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimestampType {
    CreateTime,
    LogAppendTime,
}

/// Which replicas of a topic a throttle of replication applies to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ThrottledReplicas {
    None,
    All,
    /// (partition, broker)
    These(Arc<[(i32, i32)]>),
}

/// All 38 settings of a topic. A clone copies plain data and at most two handles.
#[derive(Clone, PartialEq, Debug)]
pub struct TopicSettings {
    pub cleanup_policy: CleanupPolicy,
    pub compression_type: CompressionType,
    /// None is the codec's own default (Kafka's -1).
    pub compression_gzip_level: Option<i32>,
    pub compression_lz4_level: i32,
    pub compression_zstd_level: i32,
    pub delete_retention_ms: u64,
    pub errors_deadletterqueue_group_enable: bool,
    pub file_delete_delay_ms: u64,
    pub flush_messages: u64,
    pub flush_ms: u64,
    pub follower_replication_throttled_replicas: ThrottledReplicas,
    pub index_interval_bytes: u32,
    pub leader_replication_throttled_replicas: ThrottledReplicas,
    /// None follows `retention_bytes` (Kafka's -2).
    pub local_retention_bytes: Option<Limit>,
    /// None follows `retention_ms` (Kafka's -2).
    pub local_retention_ms: Option<Limit>,
    pub max_compaction_lag_ms: u64,
    pub max_decompressed_message_bytes: u32,
    pub max_message_bytes: u32,
    pub message_timestamp_after_max_ms: u64,
    pub message_timestamp_before_max_ms: u64,
    pub message_timestamp_type: TimestampType,
    pub min_cleanable_dirty_ratio: f64,
    pub min_compaction_lag_ms: u64,
    pub min_insync_replicas: u32,
    pub preallocate: bool,
    /// None follows the local retention (Kafka's -1).
    pub remote_copy_lag_bytes: Option<u64>,
    /// None follows the local retention (Kafka's -1).
    pub remote_copy_lag_ms: Option<u64>,
    pub remote_log_copy_disable: bool,
    pub remote_log_delete_on_disable: bool,
    pub remote_storage_enable: bool,
    pub retention_bytes: Limit,
    pub retention_ms: Limit,
    /// `internal.segment.bytes` where that is set, which may be smaller than the public setting allows.
    pub segment_bytes: u32,
    pub segment_index_bytes: u32,
    pub segment_jitter_ms: u64,
    pub segment_ms: u64,
    pub unclean_leader_election_enable: bool,
}

impl TopicSettings {
    /// The effective settings of a topic that sets `overrides` on this broker.
    pub fn resolve(overrides: &Texts, broker: &BrokerSettings) -> Result<TopicSettings, Invalid> {
        let values = effective(overrides, broker)?;
        Ok(TopicSettings::from_values(&Values { values: &values }))
    }

    fn from_values(from: &Values<'_>) -> TopicSettings {
        let policy = from.get("cleanup.policy").as_list().unwrap_or_default();
        let gzip = from.integer("compression.gzip.level");
        TopicSettings {
            cleanup_policy: CleanupPolicy {
                delete: policy.iter().any(|entry| entry == "delete"),
                compact: policy.iter().any(|entry| entry == "compact"),
            },
            compression_type: compression_type(from.get("compression.type")),
            compression_gzip_level: (gzip != -1).then_some(gzip as i32),
            compression_lz4_level: from.integer("compression.lz4.level") as i32,
            compression_zstd_level: from.integer("compression.zstd.level") as i32,
            delete_retention_ms: from.positive("delete.retention.ms"),
            errors_deadletterqueue_group_enable: from.boolean("errors.deadletterqueue.group.enable"),
            file_delete_delay_ms: from.positive("file.delete.delay.ms"),
            flush_messages: from.positive("flush.messages"),
            flush_ms: from.positive("flush.ms"),
            follower_replication_throttled_replicas: throttled(from.get("follower.replication.throttled.replicas")),
            index_interval_bytes: from.bytes("index.interval.bytes"),
            leader_replication_throttled_replicas: throttled(from.get("leader.replication.throttled.replicas")),
            local_retention_bytes: from.local_limit("local.retention.bytes"),
            local_retention_ms: from.local_limit("local.retention.ms"),
            max_compaction_lag_ms: from.positive("max.compaction.lag.ms"),
            max_decompressed_message_bytes: from.bytes("max.decompressed.message.bytes"),
            max_message_bytes: from.bytes("max.message.bytes"),
            message_timestamp_after_max_ms: from.positive("message.timestamp.after.max.ms"),
            message_timestamp_before_max_ms: from.positive("message.timestamp.before.max.ms"),
            message_timestamp_type: match from.get("message.timestamp.type").as_text() {
                Some("LogAppendTime") => TimestampType::LogAppendTime,
                _ => TimestampType::CreateTime,
            },
            min_cleanable_dirty_ratio: from.get("min.cleanable.dirty.ratio").as_double().unwrap_or(0.5),
            min_compaction_lag_ms: from.positive("min.compaction.lag.ms"),
            min_insync_replicas: from.bytes("min.insync.replicas"),
            preallocate: from.boolean("preallocate"),
            remote_copy_lag_bytes: u64::try_from(from.integer("remote.copy.lag.bytes")).ok(),
            remote_copy_lag_ms: u64::try_from(from.integer("remote.copy.lag.ms")).ok(),
            remote_log_copy_disable: from.boolean("remote.log.copy.disable"),
            remote_log_delete_on_disable: from.boolean("remote.log.delete.on.disable"),
            remote_storage_enable: from.boolean("remote.storage.enable"),
            retention_bytes: limit(from.integer("retention.bytes")),
            retention_ms: limit(from.integer("retention.ms")),
            segment_bytes: match from.get("internal.segment.bytes").as_integer() {
                Some(bytes) => u32::try_from(bytes).unwrap_or(1).max(1),
                None => from.bytes("segment.bytes"),
            },
            segment_index_bytes: from.bytes("segment.index.bytes"),
            segment_jitter_ms: from.positive("segment.jitter.ms"),
            segment_ms: from.positive("segment.ms"),
            unclean_leader_election_enable: from.boolean("unclean.leader.election.enable"),
        }
    }
}

/// Effective values by name. The table gives every name its type and a default, so a miss is a bug.
struct Values<'a> {
    values: &'a [Value],
}

impl Values<'_> {
    fn get(&self, name: &str) -> &Value {
        let at = Catalog::get().position(Scope::Topic, name).unwrap_or_else(|| panic!("{name} is no topic setting"));
        &self.values[at]
    }

    fn integer(&self, name: &str) -> i64 {
        self.get(name).as_integer().unwrap_or_else(|| panic!("{name} is no integer"))
    }

    fn boolean(&self, name: &str) -> bool {
        self.get(name).as_boolean().unwrap_or_else(|| panic!("{name} is no boolean"))
    }

    /// The checks of the table keep these from being negative.
    fn positive(&self, name: &str) -> u64 {
        self.integer(name).max(0).unsigned_abs()
    }

    fn bytes(&self, name: &str) -> u32 {
        u32::try_from(self.integer(name).max(0)).unwrap_or(u32::MAX)
    }

    fn local_limit(&self, name: &str) -> Option<Limit> {
        let value = self.integer(name);
        (value != -2).then(|| limit(value))
    }
}

/// Any negative number is Kafka's "without limit".
fn limit(value: i64) -> Limit {
    u64::try_from(value).map_or(Limit::Unlimited, Limit::At)
}

fn compression_type(value: &Value) -> CompressionType {
    match value.as_text() {
        Some("uncompressed") => CompressionType::Uncompressed,
        Some("gzip") => CompressionType::Gzip,
        Some("snappy") => CompressionType::Snappy,
        Some("lz4") => CompressionType::Lz4,
        Some("zstd") => CompressionType::Zstd,
        _ => CompressionType::Producer,
    }
}

fn throttled(value: &Value) -> ThrottledReplicas {
    let entries = value.as_list().unwrap_or_default();
    if entries.iter().any(|entry| entry == "*") {
        return ThrottledReplicas::All;
    }
    let pair = |entry: &String| {
        let (partition, broker) = entry.split_once(':')?;
        Some((partition.trim().parse().ok()?, broker.trim().parse().ok()?))
    };
    let these: Vec<(i32, i32)> = entries.iter().filter_map(pair).collect();
    if these.is_empty() { ThrottledReplicas::None } else { ThrottledReplicas::These(these.into()) }
}

/// What a topic gets from its broker where it sets nothing, by position in the catalog.
pub(crate) fn defaults<'a>(broker: &dyn Fn(&str) -> &'a Value) -> Vec<Value> {
    Catalog::get().settings(Scope::Topic).iter().map(|setting| default_of(setting, broker)).collect()
}

pub(crate) fn default_number<'a>(name: &str, broker: &dyn Fn(&str) -> &'a Value) -> i64 {
    let setting = Catalog::get().find(Scope::Topic, name);
    setting.and_then(|setting| default_of(setting, broker).as_integer()).unwrap_or(-1)
}

fn default_of<'a>(setting: &Setting, broker: &dyn Fn(&str) -> &'a Value) -> Value {
    let set = |name: &str| Some(broker(name)).filter(|value| **value != Value::Null);
    let found = setting.synonyms.iter().find_map(|synonym| set(synonym.name).map(|value| (value, synonym.factor)));
    let Some((value, factor)) = found else {
        return setting.default_value();
    };
    match (value.as_integer(), setting.kind) {
        // Every negative retention is the same: without limit.
        (Some(number), Kind::Long) if setting.name == "retention.ms" => {
            Value::Long(if number < 0 { -1 } else { number.saturating_mul(factor) })
        }
        (Some(number), Kind::Long) => Value::Long(number.saturating_mul(factor)),
        _ => value.clone(),
    }
}

/// The effective values of a topic, by position in the catalog; the first override that Kafka would not take is told.
pub(crate) fn effective(overrides: &Texts, broker: &BrokerSettings) -> Result<Vec<Value>, Invalid> {
    let mut values = broker.topic_defaults().to_vec();
    for (setting, value) in Catalog::get().settings(Scope::Topic).iter().zip(&mut values) {
        if let Some(text) = overrides.get(setting.name) {
            *value = setting.parse(text)?;
        }
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(pairs: &[(&str, &str)]) -> Texts {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn broker(more: &[(&str, &str)]) -> BrokerSettings {
        let mut file = texts(&[("node.id", "1"), ("process.roles", "broker"), ("controller.listener.names", "C")]);
        file.extend(texts(more));
        BrokerSettings::from_file(&file).unwrap()
    }

    #[test]
    fn a_fresh_topic_has_kafkas_defaults() {
        let topic = TopicSettings::resolve(&Texts::new(), &broker(&[])).unwrap();
        assert_eq!(topic.cleanup_policy, CleanupPolicy { delete: true, compact: false });
        assert_eq!(topic.compression_type, CompressionType::Producer);
        assert_eq!(topic.compression_gzip_level, None);
        assert_eq!(topic.retention_ms, Limit::At(604_800_000));
        assert_eq!(topic.retention_bytes, Limit::Unlimited);
        assert_eq!(topic.segment_bytes, 1 << 30);
        assert_eq!(topic.segment_ms, 604_800_000);
        assert_eq!(topic.local_retention_ms, None);
        assert_eq!(topic.remote_copy_lag_ms, Some(0));
        assert_eq!(topic.remote_copy_lag_bytes, None);
        assert_eq!(topic.max_message_bytes, 1_048_588);
        assert_eq!(topic.flush_messages, i64::MAX as u64);
        assert_eq!(topic.leader_replication_throttled_replicas, ThrottledReplicas::None);
    }

    #[test]
    fn the_brokers_finest_unit_wins() {
        let at = |more: &[(&str, &str)]| TopicSettings::resolve(&Texts::new(), &broker(more)).unwrap().retention_ms;
        assert_eq!(at(&[("log.retention.hours", "2")]), Limit::At(7_200_000));
        assert_eq!(at(&[("log.retention.hours", "2"), ("log.retention.minutes", "3")]), Limit::At(180_000));
        assert_eq!(at(&[("log.retention.minutes", "3"), ("log.retention.ms", "4")]), Limit::At(4));
        assert_eq!(at(&[("log.retention.ms", "-7")]), Limit::Unlimited);
        assert_eq!(at(&[("log.retention.hours", "-1")]), Limit::Unlimited);
    }

    #[test]
    fn overrides_win_and_are_checked() {
        let overrides = texts(&[
            ("cleanup.policy", "compact, delete"),
            ("message.timestamp.type", "LogAppendTime"),
            ("leader.replication.throttled.replicas", "0:1,2:3"),
            ("internal.segment.bytes", "4096"),
            ("local.retention.ms", "-1"),
        ]);
        let topic = TopicSettings::resolve(&overrides, &broker(&[])).unwrap();
        assert_eq!(topic.cleanup_policy, CleanupPolicy { delete: true, compact: true });
        assert_eq!(topic.message_timestamp_type, TimestampType::LogAppendTime);
        assert_eq!(topic.leader_replication_throttled_replicas, ThrottledReplicas::These([(0, 1), (2, 3)].into()));
        assert_eq!(topic.segment_bytes, 4096);
        assert_eq!(topic.local_retention_ms, Some(Limit::Unlimited));
        let error = TopicSettings::resolve(&texts(&[("retention.ms", "-2")]), &broker(&[])).unwrap_err();
        assert_eq!(error.0, "Invalid value -2 for configuration retention.ms: Value must be at least -1");
    }
}
