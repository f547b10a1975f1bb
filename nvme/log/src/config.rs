//! What a store and a log are told: plain data, defaults as in Kafka and in the design.

use std::time::Duration;

/// The settings of one partition's log. A recovered log keeps everything until it is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// `segment.bytes`.
    pub segment_bytes: u64,
    /// `segment.ms`, by the batches' time.
    pub segment_age: Option<Duration>,
    /// `segment.jitter.ms`: a roll by age comes earlier by up to this.
    pub segment_jitter: Duration,
    /// `cleanup.policy` contains `delete`.
    pub deletes: bool,
    /// `retention.bytes`.
    pub retention_bytes: Option<u64>,
    /// `retention.ms`.
    pub retention_age: Option<Duration>,
    /// `flush.messages`, which matters under `Durability::Cache` only.
    pub flush_messages: Option<u64>,
    /// `flush.ms`, which matters under `Durability::Cache` only.
    pub flush_age: Option<Duration>,
}

impl LogConfig {
    /// What a log has before anyone configured it: nothing is ever deleted.
    pub fn keep_everything() -> LogConfig {
        LogConfig {
            segment_bytes: 1 << 30,
            segment_age: Some(Duration::from_secs(7 * 24 * 3600)),
            segment_jitter: Duration::ZERO,
            deletes: false,
            retention_bytes: None,
            retention_age: None,
            flush_messages: None,
            flush_age: None,
        }
    }
}

/// What "acknowledged" means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// On the medium.
    Flush,
    /// In the kernel's page cache or the device's volatile cache: survives the death of the process.
    Cache,
}

/// The settings of one core's store. Budgets are this core's share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    pub durability: Durability,
    /// Commits carry the promise themselves where the device can; else each is followed by a flush.
    pub durable_writes: bool,
    /// Bytes of inline appends that no extent holds yet.
    pub copy_out_window: usize,
    pub tail_cache: usize,
    pub read_cache: usize,
    pub index_cache: usize,
    /// A partition's bytes of one append, with its partial tail, from which whole blocks go to the extent first.
    pub data_first_from: usize,
    pub retention_interval: Duration,
    /// A commit that nothing follows for this long is stated durable by a marker.
    pub marker_delay: Duration,
    /// Under `Durability::Cache`.
    pub cache_flush_interval: Duration,
    /// A freed extent waits this long at most for readers that hold a description of it.
    pub description_held_max: Duration,
    /// A commit, data write or flush that takes longer has failed.
    pub write_deadline: Duration,
    pub read_deadline: Duration,
    /// A changed high watermark is journaled after this time.
    pub high_watermark_interval: Duration,
    /// The rings are zero-written before first use, and so is what a file grows by.
    pub zero_ahead: bool,
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        const MIB: usize = 1024 * 1024;
        StoreOptions {
            durability: Durability::Flush,
            durable_writes: false,
            copy_out_window: 64 * MIB,
            tail_cache: 96 * MIB,
            read_cache: 64 * MIB,
            index_cache: 16 * MIB,
            data_first_from: 16 * 1024,
            retention_interval: Duration::from_secs(300),
            marker_delay: Duration::from_millis(2),
            cache_flush_interval: Duration::from_millis(20),
            description_held_max: Duration::from_secs(60),
            write_deadline: Duration::from_secs(30),
            read_deadline: Duration::from_secs(10),
            high_watermark_interval: Duration::from_secs(5),
            zero_ahead: true,
        }
    }
}
