//! A child process with its output in a file, ended by its id and waited for.

use super::{Result, wait};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// What a process may take to end after it was told to.
const ENDING: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Process {
    child: Child,
    name: String,
    log: PathBuf,
}

impl Process {
    /// Starts the command; what it prints is appended to `log`. Standard output stays with the caller if it is piped.
    pub fn start(mut command: Command, name: &str, log: &Path, piped: bool) -> Result<Process> {
        let file = File::options().create(true).append(true).open(log)?;
        let out = if piped { Stdio::piped() } else { Stdio::from(file.try_clone()?) };
        let child = command
            .stdin(Stdio::piped())
            .stdout(out)
            .stderr(Stdio::from(file))
            .spawn()
            .map_err(|error| format!("{name} does not start: {error}"))?;
        Ok(Process { child, name: name.to_owned(), log: log.to_owned() })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    pub fn log(&self) -> &Path {
        &self.log
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Asks it to end (SIGTERM) and waits.
    pub fn stop(&mut self) -> Result<ExitStatus> {
        self.end(Signal::TERM)
    }

    /// Ends it without a word (SIGKILL) and waits.
    pub fn kill(&mut self) -> Result<ExitStatus> {
        self.end(Signal::KILL)
    }

    fn end(&mut self, signal: Signal) -> Result<ExitStatus> {
        if let Some(status) = self.ended()? {
            return Ok(status);
        }
        self::signal(self.id(), signal)?;
        let name = format!("the end of {}", self.name);
        let child = &mut self.child;
        wait::until(&name, ENDING, || Ok(child.try_wait()?))
    }

    /// The last lines of its log, for a failure's report.
    pub fn tail(&self) -> String {
        tail(&self.log)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A test that failed half-way leaves its process; nobody else will end it.
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Sends a signal to a process that this run started, directly or through one of its children.
pub fn signal(pid: u32, signal: Signal) -> Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or("a process id is positive")?;
    Ok(kill_process(pid, signal)?)
}

/// Whether a process is there and not a zombie.
pub fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next()).is_some_and(|state| state != "Z")
        && !stat.is_empty()
}

pub fn tail(log: &Path) -> String {
    const LINES: usize = 25;
    let text = fs::read_to_string(log).unwrap_or_else(|error| format!("({error})"));
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

/// Runs a command to its end within `patience`; input is given, output returned.
pub fn run(mut command: Command, name: &str, input: &[u8], patience: Duration) -> Result<Finished> {
    use std::io::{Read, Write};
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{name} does not start: {error}"))?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let input = input.to_vec();
    let feeder = std::thread::spawn(move || {
        // A tool may end before it has read everything; its exit status tells what that means.
        let _ = stdin.map(|mut stdin| stdin.write_all(&input));
    });
    let collect = |pipe: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut text));
            String::from_utf8_lossy(&text).into_owned()
        })
    };
    let out = collect(stdout.map(|pipe| Box::new(pipe) as Box<dyn Read + Send>));
    let err = collect(stderr.map(|pipe| Box::new(pipe) as Box<dyn Read + Send>));
    let waited = wait::until(&format!("the end of {name}"), patience, || Ok(child.try_wait()?));
    if waited.is_err() {
        child.kill()?;
        child.wait()?;
    }
    let joined = |thread: std::thread::JoinHandle<String>| thread.join().map_err(|_| "a reader of output panicked");
    let (out, err) = (joined(out)?, joined(err)?);
    feeder.join().map_err(|_| "a writer of input panicked")?;
    let status = waited.map_err(|fault| format!("{fault}\n{out}\n{err}"))?;
    Ok(Finished { success: status.success(), code: status.code(), out, err })
}

/// What a command that has ended left.
#[derive(Clone, Debug)]
pub struct Finished {
    pub success: bool,
    /// None if a signal ended it.
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_and_status_of_a_command_are_returned() {
        let mut command = Command::new("sh");
        command.args(["-c", "cat; echo problem >&2; exit 3"]);
        let finished = run(command, "sh", b"input", Duration::from_secs(10)).expect("it runs");
        assert_eq!((finished.success, finished.out.as_str(), finished.err.as_str()), (false, "input", "problem\n"));
    }

    #[test]
    fn a_command_that_does_not_end_is_ended() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo begun; exec cat >/dev/null < /dev/zero"]);
        let error = run(command, "sh", b"", Duration::from_millis(200)).expect_err("it takes too long");
        assert!(error.to_string().contains("begun"), "{error}");
    }
}
