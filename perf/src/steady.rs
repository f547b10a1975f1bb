//! Cores that stay awake and are the load's own, on a machine that is neither left alone nor real.
//!
//! A virtual machine's idle core is taken away by the hypervisor and has to be waited for, and services of the machine that
//! run at raised niceness hold a core for milliseconds; both then make the 99th percentile of whatever is measured. With
//! this an idle core spins at idle priority, which gives way to everything, and what is measured goes before everything
//! but the kernel: for every broker alike. Not where a flush is measured: the kernel's threads that write are of the
//! normal class, and starved behind a broker that goes before them (20,000 flushed requests/s became 12,000).

use std::io;
use std::process::{Child, Command, Stdio};

/// Before everything of the normal class (setpriority(2)).
const FIRST: i32 = -20;

/// While it lives, its cores do not sleep.
#[derive(Debug, Default)]
pub struct Steady {
    spinners: Vec<(usize, Child)>,
}

impl Steady {
    /// For this process and all that it starts from here on, on these cores. Needs the right to raise its niceness
    /// (CAP_SYS_NICE), and chrt, taskset and setpriv of util-linux.
    pub fn begin(cores: &[usize]) -> io::Result<Steady> {
        rustix::process::setpriority_process(None, FIRST).map_err(|error| {
            io::Error::other(format!("niceness {FIRST} is refused ({error}): run it as root, or without --steady"))
        })?;
        let mut steady = Steady::default();
        for core in cores {
            // It ends with this process, however that ends.
            let spinner = Command::new("setpriv")
                .args(["--pdeathsig", "KILL", "chrt", "--idle", "0", "taskset", "-c", &core.to_string()])
                .args(["sh", "-c", "while :; do :; done"])
                .stdin(Stdio::null())
                .spawn()
                .map_err(|error| io::Error::other(format!("setpriv (util-linux) cannot be started: {error}")))?;
            steady.spinners.push((*core, spinner));
        }
        Ok(steady)
    }

    /// The spinners on a core.
    pub fn on(&self, core: usize) -> Vec<u32> {
        self.spinners.iter().filter(|(at, _)| *at == core).map(|(_, child)| child.id()).collect()
    }

    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.spinners.iter().map(|(_, child)| child.id())
    }
}

impl Drop for Steady {
    fn drop(&mut self) {
        if self.spinners.is_empty() {
            return;
        }
        // Everybody may be modest.
        let _ = rustix::process::setpriority_process(None, 0);
        for (_, child) in &mut self.spinners {
            // One that has ended already is what is wanted.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
