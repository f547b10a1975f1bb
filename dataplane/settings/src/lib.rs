//! Every setting of Apache Kafka 4.4 and our own in one table: name, type, default, check, synonyms and what Pollux does
//! with it. The facts about Kafka's lie in `table/`, read out of its own definitions by `compare/Extract.java`; the
//! status of each, which is ours to say, in `table/status.txt`.
//!
//! Called by the executable (the configuration file), by the view and the controller (DescribeConfigs, AlterConfigs,
//! validation) and, through the plain structs `TopicSettings` and `BrokerValues`, by everything that obeys a setting.
//! It may not know who reads a setting, nor any wire message: sources and types carry Kafka's numbers, no more.
//!
//! Invariant: a value that passed here is one Kafka 4.4 would take, and a refusal reads as Kafka's does; names are
//! looked up when settings change, never on the data path.
//! Tests: beside the code; `tests/golden.rs` against what a running Kafka answered; `tests/compare.rs` against its jars.
#![forbid(unsafe_code)]

mod alter;
mod broker;
mod catalog;
mod check;
mod config;
mod config_file;
mod consistent;
mod describe;
mod java;
mod kind;
mod listeners;
mod markdown;
mod own;
mod reconfigure;
mod resource;
mod status;
mod topic;
mod validate;
mod value;

pub use alter::{Change, Operation, apply_changes, check_broker_change, controller_refusal, replacement};
pub use broker::{BrokerSettings, BrokerValues, Ignored, Texts};
pub use catalog::{Catalog, DefaultValue, Setting, Synonym};
pub use check::Check;
pub use config::{Cores, Durability, IoEngine, NodeConfig, NodeOptions};
pub use config::{DataOptions, NetworkOptions, SyncMethod};
pub use config_file::{ConfigError, Place};
pub use describe::{
    Entry, SynonymEntry, describe_broker, describe_client_metrics, describe_cluster_default, describe_created_topic,
    describe_group, describe_topic,
};
pub use kind::{Importance, Kind, Mutability, Scope, Source};
pub use listeners::Listener;
pub use markdown::{own_settings_markdown, settings_markdown};
pub use own::{OWN_SETTINGS, OwnSetting};
pub use resource::{validate_client_metrics, validate_group_overrides};
pub use status::Status;
pub use topic::{CleanupPolicy, CompressionType, Limit, ThrottledReplicas, TimestampType, TopicSettings};
pub use validate::validate_topic_overrides;
pub use value::{Invalid, Refusal, RefusalKind, Value};
