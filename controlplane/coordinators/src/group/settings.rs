//! The settings that groups obey.

use batch::{Codec, Compression};
use settings::BrokerSettings;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupSettings {
    pub session_timeout_min: Duration,
    pub session_timeout_max: Duration,
    pub initial_rebalance_delay: Duration,
    pub members_max: usize,
    pub offset_metadata_units_max: usize,
    pub offsets_retention: Duration,
    pub offsets_retention_check_interval: Duration,
    pub commit_timeout: Duration,
    pub compression: Compression,
    pub load_bytes_max: u32,
    pub message_bytes_max: usize,
}

/// The link carries no larger message than 8 MiB, so a read stays below.
const LOAD_BYTES_MAX: i64 = 4 << 20;
/// One append is one batch within Kafka's default for the offsets topic; the broker's own limit may be lower.
const MESSAGE_BYTES_MAX: i32 = 1_048_588;

fn millis(value: i64) -> Duration {
    Duration::from_millis(u64::try_from(value).unwrap_or(0))
}

impl GroupSettings {
    pub fn from_broker(broker: &BrokerSettings) -> GroupSettings {
        let values = broker.typed();
        let codec = u8::try_from(values.offsets_topic_compression_codec).map(Codec::from_id);
        let load_bytes = broker.value("offsets.load.buffer.size").and_then(settings::Value::as_integer);
        GroupSettings {
            session_timeout_min: millis(values.group_min_session_timeout_ms.into()),
            session_timeout_max: millis(values.group_max_session_timeout_ms.into()),
            initial_rebalance_delay: millis(values.group_initial_rebalance_delay_ms.into()),
            members_max: usize::try_from(values.group_max_size).unwrap_or(1),
            offset_metadata_units_max: usize::try_from(values.offset_metadata_max_bytes).unwrap_or(0),
            offsets_retention: millis(i64::from(values.offsets_retention_minutes) * 60_000),
            offsets_retention_check_interval: millis(values.offsets_retention_check_interval_ms.max(1)),
            commit_timeout: millis(values.offsets_commit_timeout_ms.into()),
            // A number that is no codec is refused with the file, so what is left here means none.
            compression: codec.ok().and_then(Result::ok).unwrap_or(Codec::None).into(),
            load_bytes_max: load_bytes.unwrap_or(LOAD_BYTES_MAX).clamp(1, LOAD_BYTES_MAX) as u32,
            message_bytes_max: values.message_max_bytes.clamp(0, MESSAGE_BYTES_MAX) as usize,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load_bytes(set: Option<&str>) -> u32 {
        let minimal = [("node.id", "1"), ("process.roles", "broker,controller"), ("controller.listener.names", "C")];
        let set = set.map(|value| ("offsets.load.buffer.size", value));
        let texts = minimal.into_iter().chain(set).map(|(name, value)| (name.to_owned(), value.to_owned()));
        GroupSettings::from_broker(&BrokerSettings::from_file(&texts.collect()).expect("good settings")).load_bytes_max
    }

    #[test]
    fn a_read_while_loading_is_as_large_as_is_set_and_fits_the_link() {
        assert_eq!(load_bytes(None), 4 << 20, "Kafka's 5 MiB would leave no room for what stands around them");
        assert_eq!(load_bytes(Some("70000")), 70_000);
        assert_eq!(load_bytes(Some("2000000000")), 4 << 20);
    }
}
