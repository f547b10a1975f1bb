//! A topic's settings as the log and the validation want them.

use batch::{Codec, Compression, InflateLimits, Origin, Rules, TimestampType};
use nvme_log::LogConfig;
use settings::{CompressionType, Limit, TopicSettings};
use std::time::Duration;

/// The largest number in Kafka's configuration stands for "never".
fn age(millis: u64) -> Option<Duration> {
    (millis < i64::MAX as u64).then(|| Duration::from_millis(millis))
}

fn limit(limit: Limit) -> Option<u64> {
    match limit {
        Limit::Unlimited => None,
        Limit::At(value) => Some(value),
    }
}

pub(crate) fn log_config(topic: &TopicSettings) -> LogConfig {
    LogConfig {
        segment_bytes: u64::from(topic.segment_bytes),
        segment_age: age(topic.segment_ms),
        segment_jitter: Duration::from_millis(topic.segment_jitter_ms.min(i64::MAX as u64)),
        deletes: topic.cleanup_policy.delete,
        retention_bytes: limit(topic.retention_bytes),
        retention_age: limit(topic.retention_ms).and_then(age),
        flush_messages: (topic.flush_messages < i64::MAX as u64).then_some(topic.flush_messages),
        flush_age: age(topic.flush_ms),
    }
}

/// For clients; `zstd_allowed` is set for each request by its version.
pub(crate) fn produce_rules(topic: &TopicSettings, inflate_max: usize) -> Rules {
    let bound = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    Rules {
        origin: Origin::Client,
        batch_bytes_max: topic.max_message_bytes,
        segment_bytes: topic.segment_bytes,
        inflate: InflateLimits { batch_bytes_max: inflate_max, record_bytes_max: topic.max_decompressed_message_bytes },
        timestamp_type: match topic.message_timestamp_type {
            settings::TimestampType::CreateTime => TimestampType::CreateTime,
            settings::TimestampType::LogAppendTime => TimestampType::LogAppendTime,
        },
        timestamp_before_max_ms: bound(topic.message_timestamp_before_max_ms),
        timestamp_after_max_ms: bound(topic.message_timestamp_after_max_ms),
        compacted: topic.cleanup_policy.compact,
        compression: compression(topic),
        zstd_allowed: true,
    }
}

fn compression(topic: &TopicSettings) -> Option<Compression> {
    let (codec, level) = match topic.compression_type {
        CompressionType::Producer => return None,
        CompressionType::Uncompressed => (Codec::None, None),
        CompressionType::Gzip => (Codec::Gzip, topic.compression_gzip_level),
        CompressionType::Snappy => (Codec::Snappy, None),
        CompressionType::Lz4 => (Codec::Lz4, Some(topic.compression_lz4_level)),
        CompressionType::Zstd => (Codec::Zstd, Some(topic.compression_zstd_level)),
    };
    Some(Compression { codec, level })
}
