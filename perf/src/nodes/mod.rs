//! A broker under test, whichever it is: started on a port that it keeps, stopped, killed, started again.

use process::Process;
use reference::Wishes;

use crate::client::{CallError, Connection, api_versions_request};

pub mod java;
pub mod process;
pub mod reference;
pub mod subject;
pub mod wait;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;
use wire::messages::MetadataRequest;

/// What went wrong, in words for whoever reads the run's output.
pub type Fault = Box<dyn std::error::Error + Send + Sync>;
pub type Result<T> = std::result::Result<T, Fault>;

/// How long a node may take to serve after its start. Apache Kafka on a busy machine of two cores needs 20 s.
const READY: Duration = Duration::from_secs(90);
/// The longest a call of the harness itself waits.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Settings that both brokers get, so that what they tell of their settings is comparable and nothing waits for minutes.
pub fn common_settings() -> BTreeMap<String, String> {
    let settings = [
        ("offsets.topic.replication.factor", "1"),
        ("offsets.topic.num.partitions", "8"),
        ("transaction.state.log.replication.factor", "1"),
        ("transaction.state.log.min.isr", "1"),
        ("share.coordinator.state.topic.replication.factor", "1"),
        ("share.coordinator.state.topic.min.isr", "1"),
        ("group.initial.rebalance.delay.ms", "0"),
        // Records of the cases carry fixed times, which are old; topics that test retention set their own.
        ("log.retention.ms", "-1"),
        ("log.retention.check.interval.ms", "500"),
        ("log.initial.task.delay.ms", "500"),
    ];
    settings.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

/// A process of a node that can be ended alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    Dataplane,
    ControlPlane,
    /// Every process of the node.
    Everything,
}

pub trait Broker {
    /// `kafka` or `pollux`.
    fn name(&self) -> &'static str;
    fn address(&self) -> SocketAddr;
    /// Starts the node on its data, or for the first time, and waits for nothing.
    fn launch(&mut self) -> Result<()>;
    /// Waits until a launched node serves clients, or has ended.
    fn wait_until_ready(&mut self) -> Result<()>;
    /// Starts the node and waits until clients are served.
    fn start(&mut self) -> Result<()> {
        self.launch()?;
        self.wait_until_ready()
    }
    /// Stops it in order (SIGTERM).
    fn stop(&mut self) -> Result<()>;
    /// Ends processes without a word. What is not killed goes on; whoever supervises it may start the killed one again.
    fn kill(&mut self, victim: Victim) -> Result<()>;
    /// All its processes.
    fn pids(&self) -> Result<Vec<u32>>;
    /// The last lines it logged.
    fn log_tail(&self) -> String;
    /// A new node of the same kind beside this one, started as this one was and with these wishes.
    fn another(&self, wishes: &Wishes) -> Result<Box<dyn Broker>>;
}

/// A folder of this run's own, removed with its last user unless a failure is to be looked into.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    keep: bool,
}

impl Scratch {
    pub fn new(name: &str) -> Result<Scratch> {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("pollux-proof-{}-{number}-{name}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        let keep = std::env::var_os("POLLUX_KEEP").is_some();
        Ok(Scratch { path, keep })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.keep {
            // Somebody may hold files in it still; what stays is in the system's temporary folder.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// Ports that nobody listens on now. They come from below the range from which the system takes ports for outgoing
/// connections, so that no client of this run gets one of them meanwhile.
pub fn free_ports(count: usize) -> Result<Vec<u16>> {
    use std::sync::atomic::{AtomicU16, Ordering};
    static NEXT: AtomicU16 = AtomicU16::new(0);
    const FIRST: u16 = 20_000;
    const RANGE: u16 = 10_000;
    let own = (std::process::id() % 200) as u16 * 50;
    let mut ports = Vec::new();
    for _ in 0..RANGE {
        let port = FIRST + (own + NEXT.fetch_add(1, Ordering::Relaxed)) % RANGE;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            ports.push(port);
        }
        if ports.len() == count {
            return Ok(ports);
        }
    }
    Err("no free ports".into())
}

/// Waits until a node answers Metadata with itself in it, or its process has ended.
pub fn wait_until_ready(address: SocketAddr, process: &mut Process) -> Result<()> {
    wait::until("the node to serve", READY, || {
        if let Some(status) = process.ended()? {
            return Err(format!("the node ended with {status}:\n{}", process.tail()).into());
        }
        Ok(answers(address).ok().filter(|ready| *ready).map(|_| ()))
    })
    .map_err(|fault| format!("{fault}\n{}", process.tail()).into())
}

fn answers(address: SocketAddr) -> std::result::Result<bool, CallError> {
    let mut connection = Connection::open(address, Duration::from_secs(5))?;
    connection.call(3, &api_versions_request())?;
    let metadata = connection.call(12, &MetadataRequest { topics: Some(vec![]), ..Default::default() })?;
    Ok(!metadata.brokers.is_empty() && metadata.controller_id >= 0)
}
