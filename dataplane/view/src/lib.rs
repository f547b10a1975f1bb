//! What clients may be told, as immutable snapshots: brokers, listeners, topics, leaders, owner cores, configs, features.
//!
//! Core 0 folds the link's view messages into the next `View` and hands it to every core; sessions read it and nobody
//! changes it. It knows neither sockets nor the log. Invariant: a view is a whole batch of metadata, never half of one,
//! and its metadata offset only rises within a cluster. Tests: beside the code.
#![forbid(unsafe_code)]

mod buckets;
mod builder;
mod producer_ids;
mod saved;
mod snapshot;
mod work;

pub use builder::{ViewBuilder, ViewError};
pub use producer_ids::ProducerIds;
pub use saved::SavedViewError;
pub use snapshot::{Topic, View};
pub use work::{DutySetId, ViewDesk, ViewDone, ViewStep};
