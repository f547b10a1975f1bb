//! What the sessions leave for their core.

use crate::connection::EndReason;
use crate::off_loop::OffLoop;
use base::CoreId;
use handoff::Command;
use link::Up;
use std::net::SocketAddr;
use std::time::Duration;
use wire::ApiKey;

/// A request that was answered in this turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    pub api: ApiKey,
    /// From the turn in which its last byte came to this one.
    pub took: Duration,
    /// The answer refuses a partition; known of those that are gathered here.
    pub failed: bool,
}

/// What a turn leaves for the core to carry away.
#[derive(Debug, Default)]
pub struct Outputs {
    pub commands: Vec<(CoreId, Command)>,
    pub up: Vec<Up>,
    /// Answers that helpers make; they come back by `on_work`.
    pub work: Vec<OffLoop>,
    /// The share of producer ids is used up.
    pub producer_ids_wanted: bool,
    /// Answered requests, for the histograms.
    pub answered: Vec<Answered>,
    /// Record bytes of answers to fetches.
    pub fetched: u64,
    /// Connections that ended from our side, for the log.
    pub ended: Vec<(Option<SocketAddr>, EndReason)>,
}

impl Outputs {
    /// Nothing is to be carried, and nothing to be counted.
    pub fn is_empty(&self) -> bool {
        let Outputs { commands, up, work, producer_ids_wanted, answered, fetched, ended } = self;
        let nothing_sent = commands.is_empty() && up.is_empty() && work.is_empty() && !producer_ids_wanted;
        nothing_sent && answered.is_empty() && *fetched == 0 && ended.is_empty()
    }
}
