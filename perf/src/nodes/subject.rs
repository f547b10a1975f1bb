//! Pollux, the subject: `pollux start` with its two children.

use super::Result;
use super::process::{self, Process};
use super::reference::{PROTOCOLS, Wishes, prefixed};
use super::{Broker, Scratch, Victim, common_settings, free_ports, wait_until_ready};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

pub struct Pollux {
    scratch: Scratch,
    address: SocketAddr,
    process: Option<Process>,
    prefix: Vec<String>,
    own: Vec<String>,
    program: PathBuf,
    /// One listener, named on the command line; several stand in the settings.
    listens: bool,
    /// Its own settings as they were wished for: another node gets them too.
    wished: Vec<String>,
    data: PathBuf,
}

/// The executable: named by POLLUX_BIN, else beside this one.
pub fn program() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os("POLLUX_BIN") {
        let path = PathBuf::from(named);
        return if path.is_file() {
            Ok(path)
        } else {
            Err(format!("POLLUX_BIN: {} is no file", path.display()).into())
        };
    }
    let own = std::env::current_exe()?;
    let beside = own.with_file_name("pollux");
    if beside.is_file() {
        return Ok(beside);
    }
    Err(format!("no executable at {}: build it (cargo build -p pollux) or name it in POLLUX_BIN", beside.display())
        .into())
}

impl Pollux {
    /// Starts a new node, which formats its data by itself.
    pub fn start_new(wishes: &Wishes) -> Result<Pollux> {
        let mut pollux = Pollux::prepare(wishes)?;
        pollux.start()?;
        Ok(pollux)
    }

    /// A new node that was never started.
    pub fn prepare(wishes: &Wishes) -> Result<Pollux> {
        let scratch = Scratch::new("pollux")?;
        let ports = free_ports(2)?;
        let (port, metrics) = (ports[0], ports[1]);
        let mut settings = common_settings();
        settings.extend(wishes.settings.clone());
        if let Some(second) = wishes.second_listener {
            let listeners = format!("PLAINTEXT://127.0.0.1:{port},OTHER://127.0.0.1:{second}");
            settings.insert("listeners".to_owned(), listeners);
            settings.insert(PROTOCOLS.0.to_owned(), PROTOCOLS.1.to_owned());
        }
        write_settings(scratch.path(), &settings, wishes.second_listener.is_none())?;
        let data = wishes.data.clone().unwrap_or_else(|| scratch.path().join("data"));
        Ok(Pollux {
            scratch,
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            process: None,
            prefix: wishes.prefix.clone(),
            own: [vec![format!("metrics=\"127.0.0.1:{metrics}\"")], wishes.own.clone()].concat(),
            program: program()?,
            listens: wishes.second_listener.is_none(),
            wished: wishes.own.clone(),
            data,
        })
    }

    /// Everything the node keeps.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// All it logged.
    pub fn logged(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.log())?)
    }

    fn log(&self) -> PathBuf {
        self.scratch.path().join("log")
    }

    /// The children of the supervisor that run this subcommand.
    fn children(&self, subcommand: &str) -> Result<Vec<u32>> {
        let runs = |pid: &u32| {
            let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            words.split(|byte| *byte == 0).nth(1) == Some(subcommand.as_bytes())
        };
        Ok(self.pids()?.into_iter().filter(runs).collect())
    }
}

/// What a node has whose user names no configuration, but for Kafka's settings.
const BUILT_IN: &str = include_str!("../../../hw-configs/laptop.toml");

fn write_settings(folder: &Path, settings: &BTreeMap<String, String>, listens: bool) -> Result<()> {
    const KAFKA: &str = "[kafka]\n";
    let ours = BUILT_IN.split_once(KAFKA).map_or(BUILT_IN, |(ours, _)| ours);
    // The one listener there and a list of listeners exclude each other.
    let kept = ours.lines().filter(|line| listens || !line.starts_with("listen ="));
    let mut text = kept.fold(String::new(), |text, line| text + line + "\n") + KAFKA;
    for (name, value) in settings {
        // Numbers and truth values are TOML's own; everything else is a string.
        let plain = value.parse::<i64>().is_ok() || value.parse::<bool>().is_ok();
        // Writing to a string cannot fail.
        let _ = if plain { writeln!(text, "\"{name}\" = {value}") } else { writeln!(text, "\"{name}\" = \"{value}\"") };
    }
    Ok(std::fs::write(folder.join("pollux.toml"), text)?)
}

impl Broker for Pollux {
    fn name(&self) -> &'static str {
        "pollux"
    }

    fn address(&self) -> SocketAddr {
        self.address
    }

    fn launch(&mut self) -> Result<()> {
        let mut command = prefixed(&self.prefix, self.program.as_os_str());
        command.arg("start").arg("--data").arg(&self.data);
        command.arg("--config").arg(self.scratch.path().join("pollux.toml"));
        if !self.own.iter().any(|setting| setting.starts_with("node.id=")) {
            command.args(["--set", "node.id=1"]);
        }
        if self.listens {
            command.args(["--listen", &self.address.to_string()]);
        }
        for setting in &self.own {
            command.args(["--set", setting]);
        }
        self.process = Some(Process::start(command, "Pollux", &self.log(), false)?);
        Ok(())
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        wait_until_ready(self.address, self.process.as_mut().ok_or("the node was not launched")?)
    }

    fn stop(&mut self) -> Result<()> {
        self.process.take().map_or(Ok(()), |mut process| process.stop().map(|_| ()))
    }

    fn kill(&mut self, victim: Victim) -> Result<()> {
        let pids = match victim {
            Victim::Everything => self.pids()?,
            Victim::Dataplane => self.children("dataplane")?,
            Victim::ControlPlane => self.children("controlplane")?,
        };
        if pids.is_empty() {
            return Err(format!("no process of the node is the {victim:?}").into());
        }
        // The supervisor is the first of all and goes first, so that it starts nothing again.
        for pid in pids {
            if process::is_alive(pid) {
                process::signal(pid, Signal::KILL)?;
            }
        }
        if victim == Victim::Everything
            && let Some(mut process) = self.process.take()
        {
            process.kill()?;
        }
        Ok(())
    }

    fn pids(&self) -> Result<Vec<u32>> {
        self.process.as_ref().map_or(Ok(Vec::new()), |process| Ok(crate::process::tree(process.id())?))
    }

    fn log_tail(&self) -> String {
        process::tail(&self.log())
    }

    fn another(&self, wishes: &Wishes) -> Result<Box<dyn Broker>> {
        let own = [self.wished.clone(), wishes.own.clone()].concat();
        Ok(Box::new(Pollux::start_new(&Wishes { own, ..wishes.clone() })?))
    }
}
