//! What each process of a node is started with: directories, ids, and the options of its room.

use crate::cli::{FormatArgs, ProcessArgs, StartError};
use base::{Random, Uuid};
use settings::NodeConfig;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

/// Longest path of a Unix socket (sun_path, less the terminating zero).
const SOCKET_PATH_MAX: usize = 107;
/// The control plane's own directory within the node's.
const CONTROLPLANE: &str = "controlplane";
const LINK_SOCKET: &str = "link.sock";
const IDS_FILE: &str = "ids.json";
const COUNTERS_FILE: &str = "counters";
const CONSOLE_SOCKET: &str = "console.sock";

/// The dataplane's counter pages.
pub fn counters_path(run_dir: &Path) -> PathBuf {
    run_dir.join(COUNTERS_FILE)
}

/// The control plane's console, behind the supervisor's port.
pub fn console_path(run_dir: &Path) -> PathBuf {
    run_dir.join(CONSOLE_SOCKET)
}

/// A directory that is removed when this is dropped.
#[derive(Debug)]
pub struct OwnedDirectory {
    path: PathBuf,
    remove: bool,
}

impl OwnedDirectory {
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for OwnedDirectory {
    fn drop(&mut self) {
        if self.remove
            && let Err(error) = std::fs::remove_dir_all(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "a temporary directory stays behind");
        }
    }
}

pub fn random() -> Result<Random, StartError> {
    let mut seed = [0u8; 8];
    rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty()).map_err(std::io::Error::from)?;
    Ok(Random::from_seed(u64::from_le_bytes(seed)))
}

/// A fresh directory that belongs to this process.
pub fn temporary_directory() -> Result<OwnedDirectory, StartError> {
    let name = format!("pollux-{}-{:x}", std::process::id(), random()?.next_u64());
    let path = std::env::temp_dir().join(name);
    create(&path)?;
    Ok(OwnedDirectory { path, remove: true })
}

pub fn prepare_directory(data: &Path) -> Result<(), StartError> {
    create(data)
}

fn create(path: &Path) -> Result<(), StartError> {
    std::fs::create_dir_all(path).map_err(of_file("making the directory", path))
}

/// The system's reason, with the file and what was to be done to it.
fn of_file(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> StartError {
    move |error| StartError::File { what, path: path.to_owned(), error }
}

/// Where the two processes meet: inside the data directory, unless its path is too long for a socket's name.
pub fn run_directory(data: &Path) -> Result<OwnedDirectory, StartError> {
    let inside = data.join("run");
    if inside.join(LINK_SOCKET).as_os_str().len() > SOCKET_PATH_MAX {
        return temporary_directory();
    }
    create(&inside)?;
    Ok(OwnedDirectory { path: inside, remove: false })
}

/// The ids that both processes of a node must agree on.
struct Ids {
    cluster_id: String,
    directory_id: Uuid,
}

/// Ids from the control plane's meta.properties where it is formatted; else those that were drawn for the first start and
/// wait in the run directory, so that both processes read the same.
fn ids(data: &Path, run_dir: &Path, cluster_id: Option<&str>) -> Result<Ids, StartError> {
    let formatted = daemon::formatted_ids(&data.join(CONTROLPLANE))?;
    if let Some((cluster_id, directory_id)) = formatted {
        return Ok(Ids { cluster_id, directory_id });
    }
    let path = run_dir.join(IDS_FILE);
    if !path.exists() && daemon::has_run(&data.join(CONTROLPLANE)) {
        // Ids of another draw would make a stranger of the namespace.
        return Err(StartError::Invalid(format!(
            "{} has no meta.properties, though this node has run: put it back, or a copy of it; the ids that belong in it \
             stand in the namespace (`pollux dump {} superblock`)",
            data.join(CONTROLPLANE).display(),
            data.display()
        )));
    }
    let cluster_id = match cluster_id {
        Some(given) => Uuid::from_str(given).map_err(|error| StartError::Invalid(format!("--cluster-id: {error}")))?,
        None => Uuid::random(&mut random()?),
    };
    let drawn = serde_json::json!({
        "cluster_id": cluster_id.to_string(),
        "directory_id": Uuid::random(&mut random()?).to_string(),
    });
    // Whoever comes first draws: `link` fails where the name is taken, and then the other's draw holds.
    let own = run_dir.join(format!("{IDS_FILE}.{}", std::process::id()));
    let written = std::fs::write(&own, drawn.to_string());
    let linked = written.and_then(|()| std::fs::hard_link(&own, &path));
    // Where it could not be written there may be nothing to remove.
    let _removed = std::fs::remove_file(&own);
    if let Err(error) = linked
        && error.kind() != std::io::ErrorKind::AlreadyExists
    {
        return Err(of_file("writing", &path)(error));
    }
    let text = std::fs::read_to_string(&path).map_err(of_file("reading", &path))?;
    let broken =
        || StartError::Invalid(format!("{} holds no ids: remove it, and the next start draws others", path.display()));
    let value: serde_json::Value = serde_json::from_str(&text).map_err(|_| broken())?;
    let field = |name: &str| value[name].as_str().map(str::to_owned).ok_or_else(broken);
    let directory_id = Uuid::from_str(&field("directory_id")?).map_err(|_| broken())?;
    Ok(Ids { cluster_id: field("cluster_id")?, directory_id })
}

/// What both processes derive from their arguments.
struct Place {
    config: NodeConfig,
    data: PathBuf,
    run_dir: PathBuf,
    /// Keeps a run directory of our own until the process ends.
    _own_run_dir: Option<OwnedDirectory>,
    ids: Ids,
}

fn place(args: &ProcessArgs, cluster_id: Option<&str>) -> Result<Place, StartError> {
    let config = args.node.config()?;
    let data = config.data.directory.clone();
    if args.served {
        // Who has served has registered, which stands in the control plane's directory: an empty one is not that.
        let metadata = data.join(CONTROLPLANE);
        if !daemon::has_run(&metadata) {
            return Err(StartError::TakenAway(if data.is_dir() { metadata } else { data }));
        }
        // What both processes keep there is made again.
        args.run_dir.iter().try_for_each(|run_dir| create(run_dir))?;
    } else {
        create(&data)?;
    }
    let (run_dir, own) = match &args.run_dir {
        Some(given) => (given.clone(), None),
        None => {
            let own = run_directory(&data)?;
            (own.path().to_owned(), Some(own))
        }
    };
    let ids = ids(&data, &run_dir, cluster_id)?;
    Ok(Place { config, data, run_dir, _own_run_dir: own, ids })
}

/// The children of `start` end with it, also where it was gone before they could ask for that.
fn end_with_supervisor(args: &ProcessArgs) -> Result<Remains, StartError> {
    if let Some(supervisor) = args.supervisor {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))
            .map_err(std::io::Error::from)?;
        if rustix::process::Pid::as_raw(rustix::process::getppid()) != supervisor {
            return Err(StartError::Invalid(format!("process {supervisor}, which started this one, has ended")));
        }
    }
    let made_by_start = args.supervisor.is_some() && args.node.ephemeral;
    let directories = made_by_start.then(|| args.node.data.iter().chain(&args.run_dir).cloned().collect());
    Ok(Remains { supervisor: rustix::process::getppid(), directories: directories.unwrap_or_default() })
}

/// What `start --ephemeral` made and can no longer remove when it was killed: then the last of its children does.
struct Remains {
    supervisor: Option<rustix::process::Pid>,
    directories: Vec<PathBuf>,
}

impl Drop for Remains {
    fn drop(&mut self) {
        if rustix::process::getppid() != self.supervisor {
            for directory in &self.directories {
                // The other child may still write there, or have removed it already.
                let _ = std::fs::remove_dir_all(directory);
            }
        }
    }
}

fn dataplane_options(args: &ProcessArgs, place: &Place) -> Result<data_core::DataplaneOptions, StartError> {
    Ok(data_core::DataplaneOptions {
        config: place.config.clone(),
        namespace: place.data.join("namespace"),
        ephemeral: args.node.ephemeral,
        has_run: !args.node.ephemeral && daemon::has_run(&place.data.join(CONTROLPLANE)),
        cluster_id: place.ids.cluster_id.clone(),
        directory_id: place.ids.directory_id,
        link: place.run_dir.join(LINK_SOCKET),
        counters: counters_path(&place.run_dir),
        seed: random()?.next_u64(),
        log_lines_dropped: crate::log_lines_dropped,
    })
}

pub fn dataplane(args: &ProcessArgs) -> Result<ExitCode, StartError> {
    let _remains = end_with_supervisor(args)?;
    let place = place(args, None)?;
    let options = dataplane_options(args, &place)?;
    data_core::run(options, |bootstrap| {
        println!("{}", serde_json::json!({ "event": "listening", "bootstrap": bootstrap }));
    })?;
    Ok(ExitCode::SUCCESS)
}

pub fn controlplane(args: &ProcessArgs) -> Result<ExitCode, StartError> {
    let _remains = end_with_supervisor(args)?;
    let place = place(args, None)?;
    data_core::cpu_plan(&place.config.node.cores)?.keep_off()?;
    let options = daemon::DaemonOptions {
        directory: place.data.join(CONTROLPLANE),
        link: place.run_dir.join(LINK_SOCKET),
        counters: counters_path(&place.run_dir),
        cluster_id: place.ids.cluster_id.clone(),
        directory_id: place.ids.directory_id,
        config: place.config.clone(),
        // Under a supervisor the port is the supervisor's.
        console: match (args.supervisor, place.config.node.metrics) {
            (_, None) => None,
            (Some(_), Some(_)) => Some(daemon::Console::Socket(console_path(&place.run_dir))),
            (None, Some(address)) => Some(daemon::Console::Port(address)),
        },
        seed: random()?.next_u64(),
    };
    daemon::run(options, || println!("{}", serde_json::json!({ "event": "ready" })))?;
    Ok(ExitCode::SUCCESS)
}

/// Prepares both halves of a data directory; refuses one that is in use or holds something.
pub fn format(args: &FormatArgs) -> Result<ExitCode, StartError> {
    let process = ProcessArgs { node: args.node.clone(), run_dir: None, supervisor: None, served: false };
    let place = place(&process, args.cluster_id.as_deref())?;
    data_core::format(dataplane_options(&process, &place)?)?;
    daemon::format(&place.data.join(CONTROLPLANE), &place.ids.cluster_id, place.ids.directory_id, &place.config)?;
    println!("formatted {} for cluster {}", place.data.display(), place.ids.cluster_id);
    Ok(ExitCode::SUCCESS)
}
