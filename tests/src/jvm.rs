//! The one long-lived JVM of the Java client's cases.

use crate::node::Scratch;
use crate::process::{self, Finished, Process};
use crate::reference::prefixed;
use crate::{Result, wait};
pub use perf::nodes::java::{jars, java, kafka_options, quick_options};
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

    /// One run of a command-line tool inside that JVM, which costs a tenth of a process of its own.
    pub fn tool(&mut self, class: &str, words: &[&str]) -> Result<Finished> {
        let answer = self.ask(&json!({ "tool": class, "words": words }))?;
        let text = |name: &str| answer[name].as_str().unwrap_or_default().to_owned();
        let code = answer["code"].as_i64().and_then(|code| i32::try_from(code).ok());
        Ok(Finished { success: code == Some(0), code, out: text("out"), err: text("err") })
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
