//! Metadata records and what they add up to: image, delta, loader, and this node's share of it for the link.
//!
//! `controller` folds records into the same image before they commit, `node` feeds the loader with what the quorum
//! commits and sends duties and view down the link. It may not know voting, files or sockets. Invariants: the records of
//! an image replay to that image; what is published holds whole batches and whole metadata transactions only; no record
//! that Apache Kafka 4.4 wrote loses anything here.
//! Tests: beside the code, and `tests/` (a log and a snapshot written by Apache Kafka, in tests/golden/metadata).
#![forbid(unsafe_code)]

pub mod cluster;
mod delta;
pub mod duties;
mod image;
mod loader;
pub mod map;
mod record;
mod replay;
pub mod topics;
mod write;

pub use cluster::{Broker, Cluster, Controller, Endpoint, FeatureRange};
pub use delta::{MetadataDelta, RemovedTopic};
pub use image::{
    FEATURE_ELR, FEATURE_KRAFT, Features, MetadataImage, Overrides, Provenance, QuotaEntity, Resource, ScramUser,
    resource_type,
};
pub use loader::{Batch, LoadError, Loader, Publication};
pub use map::{Map, Set};
pub use record::{MetadataVersion, Record};
pub use replay::ReplayError;
pub use topics::{Partition, Topic, Topics};
