//! What processes and cores spent, read from /proc: CPU time, memory, and time spent waiting for a core.

use rustix::process::{Pid, Signal};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::time::Duration;

/// Sums over a set of processes at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// User and system time of all their threads, living or ended.
    pub cpu: Duration,
    /// Time their living threads were ready to run but had no core (schedstat).
    pub run_delay: Duration,
    pub resident_bytes: u64,
}

/// A process that has ended counts as an error: its figures would be missing from the sum.
pub fn usage(pids: &[u32]) -> io::Result<Usage> {
    let mut sum = Usage::default();
    for pid in pids {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        sum.cpu += parse_stat(&stat).ok_or_else(|| odd("stat"))?.cpu;
        let statm = fs::read_to_string(format!("/proc/{pid}/statm"))?;
        let pages: u64 = statm.split_whitespace().nth(1).and_then(|n| n.parse().ok()).ok_or_else(|| odd("statm"))?;
        sum.resident_bytes += pages * rustix::param::page_size() as u64;
        sum.run_delay += run_delay(*pid)?;
    }
    Ok(sum)
}

fn run_delay(pid: u32) -> io::Result<Duration> {
    let mut sum = Duration::ZERO;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end while the folder is read.
        let Ok(text) = fs::read_to_string(task?.path().join("schedstat")) else { continue };
        let nanos = text.split_whitespace().nth(1).and_then(|n| n.parse().ok()).ok_or_else(|| odd("schedstat"))?;
        sum += Duration::from_nanos(nanos);
    }
    Ok(sum)
}

fn odd(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("/proc: {what} reads otherwise than expected"))
}

struct Stat {
    parent: u32,
    cpu: Duration,
}

/// The name in parentheses may hold anything, so fields are counted from its end.
fn parse_stat(text: &str) -> Option<Stat> {
    let fields: Vec<&str> = text.get(text.rfind(')')? + 1..)?.split_whitespace().collect();
    let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    let per_second = rustix::param::clock_ticks_per_second();
    Some(Stat { parent: fields.get(1)?.parse().ok()?, cpu: Duration::from_micros(ticks * 1_000_000 / per_second) })
}

/// The process and all that descend from it, the process first.
pub fn tree(root: u32) -> io::Result<Vec<u32>> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let Ok(text) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        if let Some(stat) = parse_stat(&text) {
            parents.push((pid, stat.parent));
        }
    }
    let mut found = vec![root];
    let mut at = 0;
    while let Some(parent) = found.get(at).copied() {
        found.extend(parents.iter().filter(|(_, p)| *p == parent).map(|(pid, _)| *pid));
        at += 1;
    }
    Ok(found)
}

/// CPU time of every process but the given ones and the kernel's threads, whose work is part of what is measured. A
/// process that ends between two readings is missed.
pub fn cpu_of_others(ours: &BTreeSet<u32>) -> io::Result<Duration> {
    const KERNEL_THREADS: u32 = 2;
    let mut sum = Duration::ZERO;
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let Ok(text) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        if let Some(stat) = parse_stat(&text)
            && stat.parent != KERNEL_THREADS
            && !ours.contains(&pid)
        {
            sum += stat.cpu;
        }
    }
    Ok(sum)
}

/// Time a core was not idle, and time the hypervisor took from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreTime {
    pub busy: Duration,
    pub stolen: Duration,
}

pub fn core_time(core: usize) -> io::Result<CoreTime> {
    let text = fs::read_to_string("/proc/stat")?;
    parse_core(&text, core).ok_or_else(|| odd("stat"))
}

fn parse_core(text: &str, core: usize) -> Option<CoreTime> {
    let name = format!("cpu{core}");
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(&name))?;
    let fields: Vec<u64> = line.split_whitespace().skip(1).map_while(|n| n.parse().ok()).collect();
    let time = |ticks: u64| Duration::from_micros(ticks * 1_000_000 / rustix::param::clock_ticks_per_second());
    // user nice system idle iowait irq softirq steal
    let busy = [0, 1, 2, 5, 6].iter().map(|at| fields.get(*at).copied().unwrap_or(0)).sum();
    Some(CoreTime { busy: time(busy), stolen: time(fields.get(7).copied().unwrap_or(0)) })
}

/// Binds this process's calling thread, and threads it starts later, to a core.
pub fn pin_to(core: usize) -> io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_with_spaces_and_parentheses_is_passed_over() {
        let text = "42 (a (b) c) S 7 1 1 0 -1 4194304 10 0 0 0 150 50 0 0 20 0 1 0 5 1 1";
        let stat = parse_stat(text).expect("a stat line");
        assert_eq!((stat.parent, stat.cpu), (7, Duration::from_secs(2)));
        assert!(parse_stat("42 nothing").is_none());
    }

    #[test]
    fn this_process_spends_time_and_is_in_its_own_tree() {
        let me = std::process::id();
        let before = usage(&[me]).expect("readable");
        let mut sum = 0u64;
        while usage(&[me]).expect("readable").cpu == before.cpu {
            sum = (0..100_000u64).fold(sum, u64::wrapping_add);
        }
        assert!(before.resident_bytes > 0, "{sum}");
        assert_eq!(tree(me).expect("readable").first(), Some(&me));
        assert!(usage(&[u32::MAX]).is_err(), "an ended process is told");
    }

    #[test]
    fn a_core_is_found_by_its_whole_name() {
        let text = "cpu  9 9 9 9 9 9 9 9\ncpu1 100 0 100 500 7 0 50 3 0 0\ncpu10 1 1 1 1 1 1 1 1\n";
        let time = parse_core(text, 1).expect("cpu1");
        assert_eq!((time.busy, time.stolen), (Duration::from_millis(2500), Duration::from_millis(30)));
        assert_eq!(parse_core(text, 2), None);
    }
}

/// Processes that stand still while it lives: those of a broker that is not measured, whose timers would run on the one core
/// that it shares with the one that is.
#[derive(Debug)]
pub struct StandStill {
    pids: Vec<u32>,
}

impl StandStill {
    pub fn begin(pids: Vec<u32>) -> io::Result<StandStill> {
        let still = StandStill { pids };
        still.send(Signal::STOP)?;
        Ok(still)
    }

    fn send(&self, signal: Signal) -> io::Result<()> {
        for pid in self.pids.iter().filter_map(|pid| Pid::from_raw(pid.cast_signed())) {
            rustix::process::kill_process(pid, signal)?;
        }
        Ok(())
    }
}

impl Drop for StandStill {
    fn drop(&mut self) {
        // One that has ended needs no waking.
        let _ = self.send(Signal::CONT);
    }
}
