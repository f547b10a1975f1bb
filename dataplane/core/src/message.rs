//! What cores send one another.

use base::CoreId;
use handoff::{Command, Outcome};
use link::{Duty, HeldPartition, Removal, Up};
use nvme_log::{KeeperReply, KeeperRequest, StopReason};
use settings::BrokerSettings;
use std::net::SocketAddr;
use std::sync::Arc;
use view::View;

/// `D` is a stream on its way to another core.
pub enum Message<D> {
    Command(Command),
    Outcome(Outcome),
    /// A client that core 0 accepted and another core is to serve.
    Connection {
        stream: D,
        listener: base::ListenerId,
        peer: Option<SocketAddr>,
    },
    /// A connection of this core ended; core 0 keeps the count.
    ConnectionEnded {
        core: CoreId,
        listener: base::ListenerId,
        peer: Option<SocketAddr>,
    },
    View(Arc<View>),
    Settings(Box<BrokerSettings>),
    ProducerIds {
        first: i64,
        count: u32,
    },
    ProducerIdsWanted {
        core: CoreId,
    },
    LinkUp,
    LinkDown,
    ForwardPart {
        id: u64,
        bytes: bytes::Bytes,
    },
    ForwardAnswer {
        id: u64,
        response: Option<bytes::Bytes>,
    },
    Up(Box<Up>),
    /// What this core is to hold from now on; answered by `DutiesDone` when it is durable.
    Duties(DutiesForCore),
    DutiesDone {
        core: CoreId,
        number: u64,
    },
    /// What does this core hold? Asked for every new control plane, and numbered, since an older one's answer may still
    /// be under way.
    HeldWanted {
        number: u64,
    },
    /// Some of it.
    Held {
        core: CoreId,
        number: u64,
        partitions: Vec<HeldPartition>,
        last: bool,
    },
    Keeper(KeeperRequest),
    KeeperReply(KeeperReply),
    /// How commits are made durable from now on.
    FlushMethod {
        durable_writes: bool,
    },
    /// A write or a flush failed on some core: no core's journal goes on.
    NamespaceStopped {
        reason: StopReason,
    },
    /// Make everything durable and stop; answered by `Stopped`.
    Stop,
    Stopped,
}

impl<D> Message<D> {
    /// How much of a turn's budget it takes: one for itself and every partition it is about.
    pub fn weight(&self) -> usize {
        1 + match self {
            Message::Command(command) => entries_asked(command),
            Message::Outcome(outcome) => entries_answered(outcome),
            Message::Held { partitions, .. } => partitions.len(),
            _ => 0,
        }
    }
}

fn entries_asked(command: &Command) -> usize {
    match command {
        Command::Produce(command) => command.entries.len(),
        Command::Fetch(command) => command.entries.len(),
        Command::ListOffsets(command) => command.entries.len(),
        Command::EpochEnds(command) => command.entries.len(),
        Command::DeleteRecords(command) => command.entries.len(),
        Command::DescribeProducers(command) => command.entries.len(),
        Command::DescribeLogs(command) => command.partitions.len(),
        Command::ReadWindow(command) => command.stretches.len(),
        Command::Cancel(_) | Command::Internal(_) => 0,
    }
}

fn entries_answered(outcome: &Outcome) -> usize {
    match outcome {
        Outcome::Produced { entries, .. } => entries.len(),
        Outcome::Fetched { entries, .. } => entries.len(),
        Outcome::FetchNews { entries, .. } => entries.len(),
        Outcome::OffsetsListed { entries, .. } => entries.len(),
        Outcome::EpochEnds { entries, .. } => entries.len(),
        Outcome::RecordsDeleted { entries, .. } => entries.len(),
        Outcome::ProducersDescribed { entries, .. } => entries.len(),
        Outcome::LogsDescribed { logs, .. } => logs.len(),
        Outcome::Window { .. } | Outcome::InternalAppended { .. } | Outcome::InternalRead { .. } => 0,
    }
}

/// One core's part of an image or a delta of duties.
#[derive(Clone, Debug)]
pub struct DutiesForCore {
    pub number: u64,
    /// Partitions that an image does not name are stray: kept, not served.
    pub image: bool,
    pub duties: Vec<Duty>,
    pub removals: Vec<Removal>,
}
