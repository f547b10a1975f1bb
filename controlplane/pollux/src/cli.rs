//! The command line, and the configuration that comes of it.

use clap::{Args, Parser, Subcommand};
use settings::NodeConfig;
use std::path::{Path, PathBuf};

/// A Kafka-compatible log broker that owns its network card and its NVMe namespaces, or, on a laptop, sockets and a file.
#[derive(Parser, Debug)]
#[command(name = "pollux", version, about, long_about = None, after_help = AFTER_HELP)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

const AFTER_HELP: &str = "\
First steps:
  pollux start                      a node on 127.0.0.1:9092, its data in ./pollux-data
  pollux start --ephemeral          a node in memory on a free port, for tests: one JSON line says where
  pollux start --set durability=cache --set cores=[0]

Any Kafka client or tool then works against the address. The README explains durability, limits and failures.";

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a node: formats the data directory on first use, starts both processes, and restarts one that dies.
    Start(NodeArgs),
    /// Prepare a data directory without starting; `start` does it by itself.
    Format(FormatArgs),
    /// Run only the dataplane of a node (for a service unit of its own).
    Dataplane(ProcessArgs),
    /// Run only the control plane of a node (for a service unit of its own).
    Controlplane(ProcessArgs),
    /// Read a stopped node's namespace, change nothing, and say what its next start will find.
    #[command(
        after_help = "Exit status: 0 clean, 1 recoverable, 2 suspect partitions, 3 damaged, 4 it could not be checked."
    )]
    Check(crate::media::CheckArgs),
    /// Say what a stopped node has to give up to serve again, and with --accept-loss give it up.
    Repair(crate::media::RepairArgs),
    /// Print what lies where in a stopped node's namespace, one line an item.
    Dump(crate::media::DumpArgs),
    /// Write a partition of a stopped node as a segment file of Apache Kafka's.
    Export(crate::media::RangeArgs),
    /// Fill a new partition, or one that never had a record, from a segment file in a stopped node's namespace.
    Import(crate::media::ExportArgs),
    /// Say the version and what it speaks.
    Version,
    /// Print a table of the README, made from the code: apis, broker-settings, topic-settings, own-settings, metrics.
    #[command(hide = true)]
    Table { name: String },
}

#[derive(Args, Debug, Clone)]
pub struct NodeArgs {
    /// Directory of the node's data [default: ./pollux-data, or as the configuration says].
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Address on which clients are served [default: 127.0.0.1:9092]; port 0 takes a free one.
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Option<String>,
    /// Configuration in TOML [default: DIR/pollux.toml where it exists, else the built-in laptop.toml].
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Set one setting, ours or Kafka's, over the configuration; values are TOML (durability=cache, cores=[0]).
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Keep everything in memory, on a free port; print one JSON line when ready; end with the parent process.
    #[arg(long)]
    pub ephemeral: bool,
}

#[derive(Args, Debug, Clone)]
pub struct FormatArgs {
    #[command(flatten)]
    pub node: NodeArgs,
    /// The cluster's id, 22 characters of URL-safe Base64 [default: a random one].
    #[arg(long, value_name = "ID")]
    pub cluster_id: Option<String>,
}

#[derive(Args, Debug, Clone)]
pub struct ProcessArgs {
    #[command(flatten)]
    pub node: NodeArgs,
    /// Directory where the two processes meet [default: DIR/run].
    #[arg(long, value_name = "DIR")]
    pub run_dir: Option<PathBuf>,
    /// The process of `start` that started this one, and with which it ends.
    #[arg(long, hide = true, value_name = "PID", requires = "run_dir")]
    pub supervisor: Option<i32>,
    /// The node has served under this supervisor: what is missing was taken away since, and is not made anew.
    #[arg(long, hide = true, requires = "supervisor")]
    pub served: bool,
}

/// Why a start is refused; the text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("{0}")]
    Config(#[from] settings::ConfigError),
    #[error("the configuration {} cannot be read: {error}{}", path.display(), daemon::advice(error))]
    ConfigFile { path: PathBuf, error: std::io::Error },
    #[error("{what} {}: {error}{}", path.display(), daemon::advice(error))]
    File { what: &'static str, path: PathBuf, error: std::io::Error },
    #[error("{0}")]
    Dataplane(#[from] data_core::DataplaneError),
    #[error("{0}")]
    ControlPlane(#[from] daemon::DaemonError),
    #[error("{} was taken away while the node ran: put it back, nothing is made in its place; trying again", .0.display())]
    TakenAway(PathBuf),
    #[error("{0}")]
    Invalid(String),
    #[error("the system refused: {0}")]
    System(#[from] std::io::Error),
}

impl NodeArgs {
    /// The node's configuration: the file, then the options, then `--set`.
    pub fn config(&self) -> Result<NodeConfig, StartError> {
        let mut overrides = Vec::new();
        if let Some(data) = &self.data {
            overrides.push(format!("directory={}", quoted(&data.display().to_string())));
        }
        let listen = self.listen.clone().or_else(|| self.ephemeral.then(|| "127.0.0.1:0".to_owned()));
        if let Some(listen) = listen {
            overrides.push(format!("listen={}", quoted(&listen)));
        }
        if self.ephemeral && !self.set.iter().any(|set| set.starts_with("metrics=")) {
            overrides.push("metrics=\"off\"".to_owned());
        }
        overrides.extend(self.set.iter().cloned());
        let in_data = self.data.as_deref().unwrap_or(Path::new("./pollux-data")).join("pollux.toml");
        let file = self.config.clone().or_else(|| in_data.is_file().then_some(in_data));
        match file {
            None => Ok(NodeConfig::laptop(&overrides)?),
            Some(path) => {
                let text = std::fs::read_to_string(&path)
                    .map_err(|error| StartError::ConfigFile { path: path.clone(), error })?;
                Ok(NodeConfig::read(&path.display().to_string(), &text, &overrides)?)
            }
        }
    }

    /// The same arguments for a child process.
    pub fn to_args(&self) -> Vec<String> {
        let mut args = Vec::new();
        let mut option = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                args.extend([name.to_owned(), value]);
            }
        };
        option("--data", self.data.as_ref().map(|path| path.display().to_string()));
        option("--listen", self.listen.clone());
        option("--config", self.config.as_ref().map(|path| path.display().to_string()));
        for set in &self.set {
            option("--set", Some(set.clone()));
        }
        if self.ephemeral {
            args.push("--ephemeral".to_owned());
        }
        args
    }
}

/// A TOML string.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_reach_the_configuration() {
        let cli =
            Cli::parse_from(["pollux", "start", "--data", "/x y", "--listen", "127.0.0.1:7", "--set", "cores=[0]"]);
        let Command::Start(args) = cli.command else { panic!("start") };
        let config = args.config().unwrap();
        assert_eq!(config.data.directory, PathBuf::from("/x y"));
        assert_eq!(config.listeners[0].port, 7);
        let again = Cli::parse_from(["pollux".to_owned(), "start".to_owned()].into_iter().chain(args.to_args()));
        let Command::Start(again) = again.command else { panic!("start") };
        assert_eq!(again.config().unwrap().data.directory, PathBuf::from("/x y"));
    }

    #[test]
    fn an_unknown_key_is_refused_with_its_name() {
        let cli = Cli::parse_from(["pollux", "start", "--set", "durabilty=cache"]);
        let Command::Start(args) = cli.command else { panic!("start") };
        let error = args.config().unwrap_err().to_string();
        assert!(error.contains("durabilty"), "{error}");
    }
}
