//! Which CPUs the data cores have.

use crate::options::{DataplaneError, system};
use std::sync::OnceLock;

/// Which CPUs the data cores have, and which are left to everybody else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuPlan {
    pub data: Vec<usize>,
    pub others: Vec<usize>,
}

/// The id of a fetch session names its core.
pub const CORES_MAX: usize = 1 << session::limits::FETCH_SESSION_ID_CORE_BITS;

/// Data cores take the last CPUs of the start's affinity: the first ones serve the system's interrupts more often.
pub fn cpu_plan(cores: &settings::Cores) -> Result<CpuPlan, DataplaneError> {
    let allowed = allowed_at_start()?.to_vec();
    let count = match cores {
        settings::Cores::Auto => allowed.len().saturating_sub(1).clamp(1, CORES_MAX),
        settings::Cores::Count(count) if usize::from(*count) > CORES_MAX => {
            return Err(DataplaneError::TooManyCores { wanted: usize::from(*count), most: CORES_MAX });
        }
        settings::Cores::Count(count) => usize::from(*count).max(1),
        settings::Cores::Cpus(cpus) => {
            let data: Vec<usize> = cpus.iter().map(|cpu| usize::from(*cpu)).collect();
            if let Some(cpu) = data.iter().copied().find(|cpu| !allowed.contains(cpu)) {
                return Err(DataplaneError::NoSuchCpu { cpu, allowed });
            }
            let others = allowed.into_iter().filter(|cpu| !data.contains(cpu)).collect();
            return Ok(CpuPlan { data, others });
        }
    };
    // More cores than CPUs share them; that is slow, and allowed for tests.
    let data: Vec<usize> = (0..count).map(|core| allowed[allowed.len() - 1 - core % allowed.len()]).collect();
    let others = allowed.into_iter().filter(|cpu| !data.contains(cpu)).collect();
    Ok(CpuPlan { data, others })
}

/// The CPUs that this process might use before any of its threads was moved: a plan keeps threads off CPUs, and a thread that
/// was moved must not take that for all there is when it makes another.
fn allowed_at_start() -> Result<&'static [usize], DataplaneError> {
    static ALLOWED: OnceLock<Vec<usize>> = OnceLock::new();
    if let Some(allowed) = ALLOWED.get() {
        return Ok(allowed);
    }
    let set = rustix::thread::sched_getaffinity(None).map_err(|error| system("the affinity mask")(error.into()))?;
    let found = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect();
    Ok(ALLOWED.get_or_init(|| found))
}

/// Journal lanes of a namespace to be formatted: one for each CPU that the process may use, or for each data core where
/// there are more of them.
pub(crate) fn lanes_wanted(plan: &CpuPlan) -> u16 {
    let mut cpus: Vec<usize> = plan.data.iter().chain(&plan.others).copied().collect();
    cpus.sort();
    cpus.dedup();
    u16::try_from(cpus.len().max(plan.data.len())).unwrap_or(u16::MAX)
}

/// The nice value of whatever has to share its only CPU with a data core.
pub const NICE_ON_A_SHARED_CPU: i32 = 10;

impl CpuPlan {
    /// Data cores have no neighbours: every thread that this process has now keeps off their CPUs, or gives way to them
    /// where there is no other. Threads that these start later are as they are.
    pub fn keep_off(&self) -> std::io::Result<()> {
        threads_of_this_process()?.into_iter().try_for_each(|thread| self.place(Some(thread)))
    }

    /// The same for every thread but the calling one, which is going to be a data core.
    pub(crate) fn keep_others_off(&self) -> std::io::Result<()> {
        let own = rustix::thread::gettid();
        threads_of_this_process()?.into_iter().filter(|thread| *thread != own).try_for_each(|one| self.place(Some(one)))
    }

    /// The same for the calling thread, or another one of this process.
    pub(crate) fn place(&self, thread: Option<rustix::process::Pid>) -> std::io::Result<()> {
        let placed = if self.others.is_empty() {
            rustix::process::setpriority_process(thread, NICE_ON_A_SHARED_CPU)
        } else {
            let mut set = rustix::thread::CpuSet::new();
            self.others.iter().for_each(|cpu| set.set(*cpu));
            rustix::thread::sched_setaffinity(thread, &set)
        };
        match placed {
            // It has ended meanwhile.
            Err(rustix::io::Errno::SRCH) => Ok(()),
            other => Ok(other?),
        }
    }
}

fn threads_of_this_process() -> std::io::Result<Vec<rustix::process::Pid>> {
    let mut threads = Vec::new();
    for entry in std::fs::read_dir("/proc/self/task")? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.parse().ok()).and_then(rustix::process::Pid::from_raw);
        threads.extend(number);
    }
    Ok(threads)
}

/// The calling thread runs on this CPU alone.
pub(crate) fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        tracing::warn!(cpu, %error, "a core's thread is not pinned");
    }
}
