//! Java: the reference's jars, the command line of a JVM, and the one long-lived JVM of the client cases.

use crate::node::Scratch;
use crate::process::{self, Process};
use crate::reference::prefixed;
use crate::{Result, wait};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

const COMPILING: Duration = Duration::from_secs(180);
const CASE: Duration = Duration::from_secs(240);

/// The folder of this crate's sources.
pub fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The folder of Apache Kafka's jars: named by KAFKA_LIBS, else `target/kafka-libs` of the workspace.
pub fn jars() -> Result<PathBuf> {
    let default = || folder().join("../target/kafka-libs");
    let path = std::env::var_os("KAFKA_LIBS").map_or_else(default, PathBuf::from);
    let broker = path.join("kafka_2.13-4.4.0.jar");
    if broker.is_file() {
        return Ok(path);
    }
    Err(format!(
        "{} is missing: run mvn -f tests/conformance/reference/pom.xml dependency:copy-dependencies \
         -DoutputDirectory=$PWD/target/kafka-libs, or name the folder of the jars in KAFKA_LIBS",
        broker.display()
    )
    .into())
}

/// Options that start a JVM quickly and keep it small.
pub fn quick_options() -> Vec<String> {
    ["-Xshare:auto", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx768m"].map(str::to_owned).into()
}

/// The options of Kafka's own start script, for measuring.
pub fn kafka_options() -> Vec<String> {
    [
        "-Xmx1G",
        "-Xms1G",
        "-server",
        "-XX:+UseG1GC",
        "-XX:MaxGCPauseMillis=20",
        "-XX:InitiatingHeapOccupancyPercent=35",
        "-XX:+ExplicitGCInvokesConcurrent",
        "-XX:MaxInlineLevel=15",
        "-Djava.awt.headless=true",
    ]
    .map(str::to_owned)
    .into()
}

/// A JVM with the jars and our classes' settings; the main class and its arguments are the caller's.
pub fn java(options: &[String], prefix: &[String]) -> Result<Command> {
    let mut command = prefixed(prefix, OsStr::new("java"));
    let logging = folder().join("conformance/java/log4j2.properties");
    command.args(options).arg(format!("-Dlog4j2.configurationFile={}", logging.display()));
    command.arg("-cp").arg(format!("{}/*", jars()?.display()));
    Ok(command)
}

/// The runner of the Java cases.
pub struct Runner {
    process: Process,
    answers: Receiver<String>,
    // Holds the classes while the JVM lives.
    _classes: Scratch,
}

impl Runner {
    pub fn start(log: &Path) -> Result<Runner> {
        let classes = Scratch::new("classes")?;
        compile(classes.path())?;
        let mut command = prefixed(&[], OsStr::new("java"));
        let sources = folder().join("conformance/java");
        command.args(quick_options());
        command.arg(format!("-Dlog4j2.configurationFile={}", sources.join("log4j2.properties").display()));
        command.arg("-cp").arg(format!("{}:{}/*", classes.path().display(), jars()?.display())).arg("Runner");
        let mut process = Process::start(command, "the Java runner", log, true)?;
        let out = process.child().stdout.take().ok_or("the runner's output is piped")?;
        let answers = lines(out);
        Ok(Runner { process, answers, _classes: classes })
    }

    fn ask(&mut self, command: &Value) -> Result<Value> {
        let stdin = self.process.child().stdin.as_mut().ok_or("the runner's input is piped")?;
        writeln!(stdin, "{command}")?;
        stdin.flush()?;
        let line = self
            .answers
            .recv_timeout(CASE)
            .map_err(|_| format!("the Java runner gives no answer:\n{}", self.process.tail()))?;
        Ok(serde_json::from_str(&line)?)
    }

    /// The names of all Java cases.
    pub fn cases(&mut self) -> Result<Vec<String>> {
        let answer = self.ask(&json!({ "list": true }))?;
        let names = answer["cases"].as_array().ok_or("the runner lists its cases")?;
        Ok(names.iter().filter_map(Value::as_str).map(str::to_owned).collect())
    }

    /// What a case returned.
    pub fn run(&mut self, case: &str, bootstrap: SocketAddr, prefix: &str) -> Result<Value> {
        let answer = self.ask(&json!({ "case": case, "bootstrap": bootstrap.to_string(), "prefix": prefix }))?;
        if answer["ok"] == json!(true) {
            return Ok(answer["result"].clone());
        }
        Err(answer["error"].as_str().unwrap_or("the runner names no error").to_owned().into())
    }

    /// Closes its input and waits for its end.
    pub fn finish(mut self) -> Result<()> {
        drop(self.process.child().stdin.take());
        let process = &mut self.process;
        wait::until("the end of the Java runner", Duration::from_secs(30), || process.ended())?;
        Ok(())
    }
}

fn lines(out: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = channel();
    // Ends with the process, whose end closes the pipe.
    std::thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(std::result::Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

fn compile(classes: &Path) -> Result<()> {
    let sources = folder().join("conformance/java");
    let mut command = Command::new("javac");
    command.args(["-Xlint:all,-processing", "-Werror", "-d"]).arg(classes);
    command.arg("-cp").arg(format!("{}/*", jars()?.display()));
    let mut found = false;
    for entry in std::fs::read_dir(&sources)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "java") {
            command.arg(path);
            found = true;
        }
    }
    if !found {
        return Err(format!("no Java sources in {}", sources.display()).into());
    }
    let finished = process::run(command, "javac", b"", COMPILING)?;
    if finished.success { Ok(()) } else { Err(format!("javac:\n{}{}", finished.out, finished.err).into()) }
}
