//! Kafka's record batch, version 2: checked views and owned headers, records, builders, control batches, the four
//! codecs, validation as Kafka's log validates an append, and the jobs on batches that are too long for a loop.
//!
//! `partition`, `nvme/log`, `quorum` and the coordinators call it. It knows neither messages nor devices nor offsets
//! beyond the ones in a batch; it reads no clock. Invariants: bytes from outside never panic and never make it allocate
//! more than the caller's cap; whatever `check` accepts has its records numbered 0, 1, 2 .. and a true count, so that
//! everything below may trust a stored batch's header. Golden bytes of Apache Kafka stand in tests/golden/batch and are
//! read by `tests/golden`; the rest is tested beside each module.
#![forbid(unsafe_code)]

pub mod builder;
pub mod check;
pub mod compression;
pub mod control;
pub mod header;
pub mod jobs;
pub mod record;
mod skim;
pub mod stream;
pub mod time;
mod varint;

pub use builder::{BatchBuilder, BatchProducer, emptied};
pub use check::{Checked, InvalidBatch, Origin, RecordReason, RecordRefusal, Refusal, Rules, TimestampStamp};
pub use compression::{Codec, Compression, InflateError, inflate};
pub use control::{ControlKind, ControlRecord, EndTransaction};
pub use header::{
    Attributes, BatchError, BatchHeader, BatchView, Batches, HEADER_SIZE, NO_TIMESTAMP, TimestampType,
    restamp_timestamp, stamp,
};
pub use jobs::{CheckJob, FindTimeJob, RebuildJob};
pub use record::{Header, HeaderView, Record, RecordError, RecordView, Records};
pub use skim::{Skimmed, skim_records};
pub use stream::{InflateLimits, StreamError, Walk, walk_records};
pub use time::{FoundTime, TimeQuery, find_time};
