//! What an operator does to a namespace while no node runs on it: check, repair, dump, export, import.
//!
//! The executable calls it; it knows neither ISR nor settings. Nothing here writes but `repair` (with `accept_loss`) and
//! `import`: `check` rehearses the next opening by running `nvme/log`'s own over an overlay that keeps every write in
//! memory, and reads the media beside it with eyes of its own, so that the two can disagree. Invariant: what `check`
//! predicts is what the next opening finds; what is unreadable is never formatted over. Tests: tests/check.rs damages
//! namespaces in each way and opens them afterwards; tests/tools.rs runs the tools on a real file.
#![forbid(unsafe_code)]

mod blobs;
mod check;
mod dump;
mod error;
mod extents;
mod holes;
mod image;
mod journal;
mod overlay;
mod ownership;
mod records;
mod rehearsal;
mod repair;
mod report;
mod session;
mod source;
mod stream;
mod transfer;

pub use check::{CheckOptions, Progress, check, check_source};
pub use dump::{Line, What, WhatError, dump, dump_source};
pub use error::ToolError;
pub use repair::{Loss, RepairOptions, RepairReport, plan_repair, repair, repair_device};
pub use report::{CheckReport, Finding, GivenUpOffsets, LaneReport, Prediction, Severity, Status, SuspectPartition};
pub use source::{FileSource, Source, Unread};
pub use transfer::{Transferred, export, export_source, import, import_device};
