//! The log on a raw namespace: append, locate, durable, recover, retain; it emits plans and takes completions.
//!
//! `partition` and `dataplane/core` call it; it knows neither SPDK nor ISR. `Formatting` and `Opening` are state
//! machines of their own; an opening yields one seed per core, from which `Store` is made on that core's thread, and
//! the `Keeper` of core 0. Invariant: the state after a recovery is the fold of the durable commits (design 02), an
//! extent's block is written once per tenancy, and nothing is called durable before it and everything before it is.
//! Order of reading: store, append, lane, commit, partition/fold, checkpoint, opening. Tests: tests/simulation.rs (a
//! model, and a crash at any step), tests/basic.rs, and beside the modules.
#![forbid(unsafe_code)]

mod api;
mod append;
mod cache;
mod change;
mod checkpoint;
mod commit;
mod config;
mod copy_out;
mod describe;
mod driver;
mod formatting;
mod io;
mod keeper;
mod lane;
mod locate;
mod opening;
mod partition;
mod pending;
mod reads;
mod relocate;
mod retention;
mod ring_zeroes;
mod seed;
mod shard;
mod space;
mod store;
mod superblock_update;
mod tails;
mod truncate;

pub use api::*;
pub use config::{Durability, LogConfig, StoreOptions};
pub use formatting::{FormatError, FormatOptions, Formatting};
pub use keeper::Keeper;
pub use nvme_format::blob::{AbortedRange, EpochStart, ProducerBatch, ProducerState, Segment};
pub use nvme_format::superblock::FlushMethod;
pub use opening::{Damage, OpenError, OpenOptions, Opened, Opening, RecoveryReport};
pub use partition::epochs::EpochTable;
pub use partition::producers::{ProducerTable, Transactions};
pub use seed::{ShardSeed, StoreSeed};
pub use shard::SavedView;
pub use store::Store;
