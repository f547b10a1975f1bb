//! `pollux start`: a small third process that runs the pair, restarts either with a growing pause (never after reported
//! corruption), forwards SIGTERM, and takes its children with it when it ends.

use crate::cli::{NodeArgs, StartError};
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

/// A child that ends with one of these is not started again: the same would happen.
pub const EXIT_CORRUPTION: u8 = 65;
pub const EXIT_CONFIG: u8 = 78;
/// It may go better later (EX_TEMPFAIL): a full file system that someone makes room on. Started again even where it never
/// served.
pub const EXIT_TEMPORARY: u8 = 75;
/// Any other error that a process tells before it ends; a panic or a signal has another.
const EXIT_FAILURE: u8 = 1;

const RESTART_PAUSE_FIRST: Duration = Duration::from_millis(100);
const RESTART_PAUSE_MAX: Duration = Duration::from_secs(10);
/// A child that lived this long starts again with the first pause.
const RESTART_PAUSE_RESET: Duration = Duration::from_secs(60);
/// How long a clean stop of both children may take before they are killed.
const STOP_TIME_MAX: Duration = Duration::from_secs(30);
/// What of it is kept for the dataplane: a control plane that waits for one that no longer answers is killed before.
const DATAPLANE_STOP_TIME: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Dataplane,
    ControlPlane,
}

impl Role {
    fn subcommand(self) -> &'static str {
        match self {
            Role::Dataplane => "dataplane",
            Role::ControlPlane => "controlplane",
        }
    }
}

/// One of the pair, running or about to.
struct Process {
    role: Role,
    child: Option<Child>,
    started: Instant,
    pause: Duration,
    /// When a dead child is started again.
    restart_at: Instant,
}

impl Process {
    fn pause_ms(&self) -> u64 {
        self.pause.as_millis() as u64
    }

    /// It is started again after a pause, which grows.
    fn die(&mut self) {
        self.restart_at = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(RESTART_PAUSE_MAX);
    }
}

/// What becomes of a process next.
enum Turn {
    Ended(std::io::Result<std::process::ExitStatus>),
    RestartDue,
}

enum Event {
    /// A line that a child printed: a JSON object that says what happened.
    Line(Role, serde_json::Value),
}

/// The supervisor keeps off the data cores as everybody does. Its children must not have that from it: they count the
/// CPUs of the start themselves.
struct Placement {
    whole: rustix::thread::CpuSet,
    own: rustix::thread::CpuSet,
}

impl Placement {
    /// Every thread of this process goes to where it belongs; a process that has one CPU stays there.
    fn take(cores: &settings::Cores) -> Result<Placement, StartError> {
        let whole = current_affinity()?;
        let plan = data_core::cpu_plan(cores)?;
        if !plan.others.is_empty() {
            plan.keep_off()?;
        }
        Ok(Placement { whole, own: current_affinity()? })
    }

    fn spawn(&self, command: &mut Command) -> std::io::Result<Child> {
        rustix::thread::sched_setaffinity(None, &self.whole)?;
        let child = command.spawn();
        rustix::thread::sched_setaffinity(None, &self.own)?;
        child
    }
}

fn current_affinity() -> std::io::Result<rustix::thread::CpuSet> {
    Ok(rustix::thread::sched_getaffinity(None)?)
}

/// What `start` was told, resolved.
pub struct Supervisor {
    args: NodeArgs,
    cpus: Placement,
    run_dir: PathBuf,
    events: mpsc::UnboundedSender<Event>,
    inbox: mpsc::UnboundedReceiver<Event>,
    address: Option<serde_json::Value>,
    ready: bool,
    announced: bool,
}

impl Supervisor {
    pub fn new(args: NodeArgs, run_dir: PathBuf, cores: &settings::Cores) -> Result<Supervisor, StartError> {
        let (events, inbox) = mpsc::unbounded_channel();
        let cpus = Placement::take(cores)?;
        Ok(Supervisor { args, cpus, run_dir, events, inbox, address: None, ready: false, announced: false })
    }

    fn spawn(&self, role: Role) -> Result<Child, StartError> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg(role.subcommand())
            .args(self.args.to_args())
            .arg("--run-dir")
            .arg(&self.run_dir)
            .args(["--supervisor", &std::process::id().to_string()])
            .args(self.announced.then_some("--served"))
            // What a terminal sends to all of its group (Ctrl-C, its end) comes to the supervisor alone, which stops the
            // pair in order.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let mut child = self.cpus.spawn(&mut command)?;
        let lines = child.stdout.take().expect("it was asked for");
        let events = self.events.clone();
        tokio::spawn(async move {
            let mut lines = BufReader::new(lines).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                if let Ok(value) = serde_json::from_str(&line)
                    && events.send(Event::Line(role, value)).is_err()
                {
                    return;
                }
            }
        });
        tracing::info!(process = role.subcommand(), pid = child.id(), "started");
        Ok(child)
    }

    fn process(&self, role: Role) -> Result<Process, StartError> {
        let child = Some(self.spawn(role)?);
        let now = Instant::now();
        Ok(Process { role, child, started: now, pause: RESTART_PAUSE_FIRST, restart_at: now })
    }

    /// Runs until a signal or until a child says that starting again is useless.
    pub async fn run(mut self) -> Result<ExitCode, StartError> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hangup = hangup()?;
        let mut dataplane = self.process(Role::Dataplane)?;
        let mut controlplane = self.process(Role::ControlPlane)?;
        loop {
            tokio::select! {
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                () = hung_up(&mut hangup) => break,
                Some(Event::Line(role, value)) = self.inbox.recv() => self.on_line(role, &value),
                turn = next(&mut dataplane) => {
                    if let Some(code) = self.on_turn(&mut dataplane, turn)? {
                        stop(&mut controlplane, Instant::now() + STOP_TIME_MAX).await;
                        return Ok(code);
                    }
                }
                turn = next(&mut controlplane) => {
                    if let Some(code) = self.on_turn(&mut controlplane, turn)? {
                        stop(&mut dataplane, Instant::now() + STOP_TIME_MAX).await;
                        return Ok(code);
                    }
                }
            }
        }
        // The control plane takes the node out of service and has the dataplane stop cleanly; the dataplane's own signal
        // comes after it, for the case that there was no control plane to do so.
        let until = Instant::now() + STOP_TIME_MAX;
        stop(&mut controlplane, until - DATAPLANE_STOP_TIME).await;
        stop(&mut dataplane, until).await;
        tracing::info!("stopped");
        Ok(ExitCode::SUCCESS)
    }

    fn on_line(&mut self, role: Role, value: &serde_json::Value) {
        match (role, value["event"].as_str()) {
            (Role::Dataplane, Some("listening")) => self.address = Some(value["bootstrap"].clone()),
            (Role::ControlPlane, Some("ready")) => self.ready = true,
            _ => tracing::debug!(process = role.subcommand(), %value, "unknown line"),
        }
        let Some(address) = self.address.as_ref().filter(|_| self.ready && !self.announced) else { return };
        self.announced = true;
        tracing::info!(bootstrap = address.as_str(), "ready");
        if self.args.ephemeral {
            println!("{}", serde_json::json!({ "bootstrap": address }));
        }
    }

    /// Restarts are for what has worked: who never did, and says why, has a port that is taken or a directory that is in
    /// use, and trying again would bury the reason.
    fn has_served(&self, role: Role) -> bool {
        match role {
            Role::Dataplane => self.address.is_some(),
            Role::ControlPlane => self.ready,
        }
    }

    /// The exit code to end with, where starting again is useless.
    fn on_turn(&self, process: &mut Process, turn: Turn) -> Result<Option<ExitCode>, StartError> {
        let name = process.role.subcommand();
        let Turn::Ended(status) = turn else {
            process.started = Instant::now();
            match self.spawn(process.role) {
                Ok(child) => process.child = Some(child),
                // A host that has no process to give now may have one later, and the other half serves meanwhile.
                Err(error) => {
                    tracing::error!(process = name, %error, pause_ms = process.pause_ms(), "cannot be started; trying again");
                    process.die();
                }
            }
            return Ok(None);
        };
        let code = status?.code().and_then(|code| u8::try_from(code).ok());
        process.child = None;
        if let Some(code) = code.filter(|code| [EXIT_CORRUPTION, EXIT_CONFIG].contains(code)) {
            tracing::error!(process = name, code, "ended and would end again: not restarted");
            return Ok(Some(ExitCode::from(code)));
        }
        if code == Some(EXIT_FAILURE) && !self.has_served(process.role) {
            tracing::error!(process = name, "could not start: the reason stands above");
            return Ok(Some(ExitCode::FAILURE));
        }
        if process.started.elapsed() >= RESTART_PAUSE_RESET {
            process.pause = RESTART_PAUSE_FIRST;
        }
        if self.args.ephemeral && process.role == Role::Dataplane {
            tracing::error!(process = name, ?code, "ended, and what it held in memory with it");
            return Ok(Some(ExitCode::FAILURE));
        }
        tracing::warn!(process = name, ?code, pause_ms = process.pause_ms(), "ended; starting again");
        process.die();
        Ok(None)
    }
}

/// The end of the terminal stops the node as SIGTERM does, but where the start was told not to care (`nohup`).
fn hangup() -> std::io::Result<Option<Signal>> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let own = 1 << (SignalKind::hangup().as_raw_value() - 1);
    if ignored & own == 0 { signal(SignalKind::hangup()).map(Some) } else { Ok(None) }
}

async fn hung_up(hangup: &mut Option<Signal>) {
    match hangup {
        Some(hangup) => drop(hangup.recv().await),
        None => std::future::pending().await,
    }
}

async fn next(process: &mut Process) -> Turn {
    match &mut process.child {
        Some(child) => Turn::Ended(child.wait().await),
        None => {
            tokio::time::sleep_until(process.restart_at.into()).await;
            Turn::RestartDue
        }
    }
}

/// Asks a child to stop, and kills it when it does not in time.
async fn stop(process: &mut Process, until: Instant) {
    let Some(child) = &mut process.child else { return };
    if let Some(pid) = child.id().and_then(|pid| rustix::process::Pid::from_raw(pid as i32)) {
        // It may just have ended by itself.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
    if tokio::time::timeout_at(until.into(), child.wait()).await.is_err() {
        tracing::error!(process = process.role.subcommand(), "did not stop in time and is killed");
        let _ = child.kill().await;
    }
}
