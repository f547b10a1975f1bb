//! Apache Kafka, the reference: one node, broker and controller in one process, from the published jars.

use super::process::{self, Process};
use super::{Broker, Scratch, Victim, common_settings, free_ports, wait_until_ready};
use super::{Result, java};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const FORMATTING: Duration = Duration::from_secs(60);
/// The levels that a Pollux node finalizes: APIs above them would answer differently for that reason alone.
const FEATURES: [&str; 6] = [
    "metadata.version=33",
    "eligible.leader.replicas.version=1",
    "group.version=0",
    "transaction.version=0",
    "share.version=0",
    "streams.version=0",
];

pub struct Kafka {
    scratch: Scratch,
    address: SocketAddr,
    process: Option<Process>,
    /// Put before `java`: taskset and its like.
    prefix: Vec<String>,
    options: Vec<String>,
}

/// What a node of either kind may be given.
#[derive(Clone, Debug, Default)]
pub struct Wishes {
    /// Settings beside the common ones, under Kafka's names.
    pub settings: BTreeMap<String, String>,
    /// Words before the command: `taskset -c 0`.
    pub prefix: Vec<String>,
    /// JVM options for Kafka in place of those that make a short test quick.
    pub jvm_options: Option<Vec<String>>,
    /// Pollux's own settings, `KEY=VALUE`.
    pub own: Vec<String>,
    /// The port of a second listener, which is called OTHER.
    pub second_listener: Option<u16>,
    /// Where Pollux keeps its data, if not in a folder of the run's own.
    pub data: Option<std::path::PathBuf>,
}

/// How the listeners of a node with two are called, and that neither of them is encrypted.
pub(super) const PROTOCOLS: (&str, &str) =
    ("listener.security.protocol.map", "PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT,CONTROLLER:PLAINTEXT");

impl Kafka {
    /// Formats a new node and starts it.
    pub fn start_new(wishes: &Wishes) -> Result<Kafka> {
        let mut kafka = Kafka::prepare(wishes)?;
        kafka.start()?;
        Ok(kafka)
    }

    /// A new node, formatted and never started.
    pub fn prepare(wishes: &Wishes) -> Result<Kafka> {
        let scratch = Scratch::new("kafka")?;
        let ports = free_ports(2)?;
        let (port, controller) = (ports[0], ports[1]);
        let mut settings = common_settings();
        settings.extend(wishes.settings.clone());
        write_settings(scratch.path(), (port, controller, wishes.second_listener), &settings)?;
        let options = wishes.jvm_options.clone().unwrap_or_else(java::quick_options);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let kafka = Kafka { scratch, address, process: None, prefix: wishes.prefix.clone(), options };
        kafka.format()?;
        Ok(kafka)
    }

    fn format(&self) -> Result<()> {
        let mut command = java::java(&java::quick_options(), &[])?;
        command.args(["kafka.tools.StorageTool", "format", "--standalone", "-t", "cG9sbHV4LXRlc3QtMDAwMA", "-c"]);
        command.arg(self.settings_path());
        for feature in FEATURES {
            command.args(["--feature", feature]);
        }
        let finished = process::run(command, "kafka-storage", b"", FORMATTING)?;
        if finished.success {
            Ok(())
        } else {
            Err(format!("kafka-storage failed:\n{}{}", finished.out, finished.err).into())
        }
    }

    fn settings_path(&self) -> std::path::PathBuf {
        self.scratch.path().join("server.properties")
    }

    fn log(&self) -> std::path::PathBuf {
        self.scratch.path().join("log")
    }
}

fn write_settings(
    folder: &Path,
    (port, controller, second): (u16, u16, Option<u16>),
    common: &BTreeMap<String, String>,
) -> Result<()> {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "process.roles=broker,controller\nnode.id=1");
    let _ = writeln!(text, "controller.quorum.bootstrap.servers=127.0.0.1:{controller}");
    let _ = write!(text, "listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}");
    let _ = match second {
        Some(second) => writeln!(text, ",OTHER://127.0.0.1:{second}\n{}={}", PROTOCOLS.0, PROTOCOLS.1),
        None => writeln!(text),
    };
    let _ = writeln!(text, "controller.listener.names=CONTROLLER");
    let _ = writeln!(text, "log.dirs={}", folder.join("data").display());
    for (name, value) in common {
        let _ = writeln!(text, "{name}={value}");
    }
    Ok(std::fs::write(folder.join("server.properties"), text)?)
}

impl Broker for Kafka {
    fn name(&self) -> &'static str {
        "kafka"
    }

    fn address(&self) -> SocketAddr {
        self.address
    }

    fn launch(&mut self) -> Result<()> {
        let mut command = java::java(&self.options, &self.prefix)?;
        command.arg("kafka.Kafka").arg(self.settings_path());
        self.process = Some(Process::start(command, "Apache Kafka", &self.log(), false)?);
        Ok(())
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        wait_until_ready(self.address, self.process.as_mut().ok_or("the node was not launched")?)
    }

    fn stop(&mut self) -> Result<()> {
        self.process.take().map_or(Ok(()), |mut process| process.stop().map(|_| ()))
    }

    fn kill(&mut self, _: Victim) -> Result<()> {
        self.process.take().map_or(Ok(()), |mut process| process.kill().map(|_| ()))
    }

    fn pids(&self) -> Result<Vec<u32>> {
        Ok(self.process.iter().map(Process::id).collect())
    }

    fn log_tail(&self) -> String {
        process::tail(&self.log())
    }

    fn another(&self, wishes: &Wishes) -> Result<Box<dyn Broker>> {
        Ok(Box::new(Kafka::start_new(wishes)?))
    }
}

/// A command with words before it, which may be none. It ends with this process, however that ends.
pub fn prefixed(prefix: &[String], program: &std::ffi::OsStr) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).args(prefix).arg(program);
    command
}
