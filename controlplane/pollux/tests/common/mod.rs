//! A node of the built executable: started in a folder of its own, asked, and ended by its id.
#![allow(dead_code, reason = "each test file uses its part")]

use perf::client::Connection;
use perf::load;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `look` gives something, and says what was waited for when it does not.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A folder that goes with the test.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("pollux-process-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _left_behind = fs::remove_dir_all(&self.0);
    }
}

pub fn ports() -> (u16, u16) {
    let ports = perf::nodes::free_ports(2).expect("free ports");
    (ports[0], ports[1])
}

/// `pollux start`, running.
pub struct Running {
    pub child: Child,
    pub port: u16,
    pub metrics: u16,
    log: PathBuf,
}

impl Running {
    pub fn start(data: &Path, set: &[&str]) -> Running {
        let (port, metrics) = ports();
        Running::start_on(data, port, metrics, set)
    }

    pub fn start_on(data: &Path, port: u16, metrics: u16, set: &[&str]) -> Running {
        Running::launch(&[], data, port, metrics, set)
    }

    /// Behind another command.
    pub fn start_under(data: &Path, prefix: &[&str]) -> Running {
        let (port, metrics) = ports();
        Running::launch(prefix, data, port, metrics, &[])
    }

    fn launch(prefix: &[&str], data: &Path, port: u16, metrics: u16, set: &[&str]) -> Running {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let folder = data.ancestors().skip(1).find(|path| path.is_dir()).expect("the test's folder");
        let log = folder.join(format!("log-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
        let file = fs::File::create(&log).expect("a log");
        let words: Vec<&str> = prefix.iter().copied().chain([env!("CARGO_BIN_EXE_pollux")]).collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg("start").arg("--data").arg(data).arg("--listen").arg(format!("127.0.0.1:{port}"));
        command.args(["--set", &format!("metrics=\"127.0.0.1:{metrics}\""), "--set", "size=\"256MiB\""]);
        command.args(["--set", "lane_ring=\"8MiB\""]);
        command.args(set.iter().flat_map(|setting| ["--set", setting]));
        command.stdin(Stdio::null()).stdout(file.try_clone().expect("a log")).stderr(file);
        Running { child: command.spawn().expect("it starts"), port, metrics, log }
    }

    pub fn ready(self) -> Running {
        until("the node to be ready", || self.http("/ready").filter(|answer| answer.starts_with("HTTP/1.1 200")));
        self
    }

    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    pub fn client(&self) -> Connection {
        Connection::open(self.address(), PATIENCE).expect("it accepts")
    }

    /// One answer of the metrics port, headers and all.
    pub fn http(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.metrics)).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: node\r\n\r\n").as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    pub fn metrics(&self) -> String {
        let answer = until("metrics", || self.http("/metrics"));
        answer.split_once("\r\n\r\n").expect("a body").1.to_owned()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Its child that runs this subcommand, where it runs now.
    pub fn part(&self, subcommand: &str) -> Option<u32> {
        children(self.child.id()).into_iter().find(|pid| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            words.split(|byte| *byte == 0).nth(1) == Some(subcommand.as_bytes())
        })
    }

    /// Load of 1 KiB records for a moment.
    pub fn produce(&self, topic: &str, rate: f64, seconds: f64) {
        let options = load::Options {
            bootstrap: self.address(),
            topic: topic.to_owned(),
            partitions: 1,
            configs: Default::default(),
            connections: 2,
            record_size: 1024,
            acks: -1,
            rate,
            arrivals: perf::schedule::Arrivals::Uniform,
            warm_up: Duration::ZERO,
            duration: Duration::from_secs_f64(seconds),
            sleep: true,
            seed: 1,
        };
        load::prepare(&options).expect("the topic is there");
        load::run(&options, || {}).expect("the load runs");
    }

    pub fn wait_end(&mut self) -> ExitStatus {
        until("its end", || self.child.try_wait().expect("it is a child"))
    }

    /// SIGTERM, and the end.
    pub fn stop(&mut self) -> ExitStatus {
        signal(self.child.id(), Signal::TERM);
        self.wait_end()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            // Its children end with it.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}

pub fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid as i32).expect("a process id");
    kill_process(pid, signal).expect("it is ours");
}

pub fn is_alive(pid: u32) -> bool {
    let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    state.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

fn children(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let text = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        found.extend(text.split_whitespace().filter_map(|word| word.parse::<u32>().ok()));
    }
    found
}
