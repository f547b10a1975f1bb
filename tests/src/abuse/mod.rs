//! Hostile clients, full disks and idle hours against a running node of Pollux: nobody else may notice, nothing leaks,
//! and nothing that was acknowledged is lost.
//!
//! Called by the executable `abuse`. Beside the hostile ones a client that behaves (`behaved`) goes on all the time; its
//! errors and its longest wait are part of every verdict.

pub mod behaved;
pub mod bombs;
pub mod connections;
pub mod frames;
pub mod full;
pub mod hosts_disk;
pub mod idle;
pub mod many;
pub mod neighbours;
pub mod tricklers;
pub mod unreading;

use crate::Result;
use crate::node::Broker;
use perf::client::{CallError, Connection};
use perf::process;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;
use wire::messages::metadata_request::MetadataRequestTopic;
use wire::messages::{DeleteTopicsRequest, MetadataRequest};
use wire::{ErrorCode, KafkaString};

pub const PATIENCE: Duration = Duration::from_secs(30);
pub const MIB: u64 = 1 << 20;

/// What a node's processes hold at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub pids: BTreeSet<u32>,
    pub resident: u64,
    /// Open descriptors of all of them.
    pub descriptors: usize,
}

pub fn held(broker: &dyn Broker) -> Result<Held> {
    let pids = broker.pids()?;
    let usage = process::usage(&pids)?;
    let mut descriptors = 0;
    for pid in &pids {
        descriptors += std::fs::read_dir(format!("/proc/{pid}/fd"))?.count();
    }
    Ok(Held { pids: pids.into_iter().collect(), resident: usage.resident_bytes, descriptors })
}

impl Held {
    /// The same processes run that ran before: none was ended and started again.
    pub fn expect_same_processes(&self, before: &Held, broker: &dyn Broker) -> Result<()> {
        if self.pids == before.pids {
            return Ok(());
        }
        Err(format!("processes {:?} were {:?}\n{}", self.pids, before.pids, broker.log_tail()).into())
    }
}

pub fn name_of(code: i16) -> String {
    ErrorCode::from_code(code).map_or_else(|| format!("error {code}"), |error| error.name().to_owned())
}

/// The id of a topic that is there.
pub fn topic_id(address: SocketAddr, name: &str) -> Result<base::Uuid> {
    let mut connection = Connection::open(address, PATIENCE)?;
    let topic = MetadataRequestTopic { name: Some(KafkaString::from(name)), ..Default::default() };
    let answer = connection.call(12, &MetadataRequest { topics: Some(vec![topic]), ..Default::default() })?;
    Ok(answer.topics.first().ok_or("a topic was asked for")?.topic_id)
}

pub fn delete_topic(address: SocketAddr, name: &str) -> Result<()> {
    let mut connection = Connection::open(address, PATIENCE)?;
    let names = vec![KafkaString::from(name)];
    let answer =
        connection.call(5, &DeleteTopicsRequest { topic_names: names, timeout_ms: 20_000, ..Default::default() })?;
    match answer.responses.first().map(|topic| topic.error_code) {
        Some(0) => Ok(()),
        code => Err(format!("deleting {name} answers {code:?}").into()),
    }
}

/// Whether the other end closed the connection, whatever it sent before.
pub fn ends(connection: &mut Connection) -> bool {
    end_of(connection).1
}

/// How many answers come before the end, and whether there is one.
pub fn end_of(connection: &mut Connection) -> (usize, bool) {
    let mut answers = 0;
    loop {
        match connection.receive_frame() {
            Ok(_) => answers += 1,
            Err(CallError::TimedOut) => return (answers, false),
            Err(_) => return (answers, true),
        }
    }
}
