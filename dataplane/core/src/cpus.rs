//! Which CPUs the data cores have.

use crate::options::{DataplaneError, system};

/// Which CPUs the data cores have, and which are left to everybody else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuPlan {
    pub data: Vec<usize>,
    pub others: Vec<usize>,
}

/// Data cores take the last CPUs of the start's affinity: the first ones serve the system's interrupts more often.
pub fn cpu_plan(cores: &settings::Cores) -> Result<CpuPlan, DataplaneError> {
    let set = rustix::thread::sched_getaffinity(None).map_err(|error| system("the affinity mask")(error.into()))?;
    let allowed: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect();
    let count = match cores {
        settings::Cores::Auto => allowed.len().saturating_sub(1).max(1),
        settings::Cores::Count(count) => usize::from(*count).max(1),
        settings::Cores::Cpus(cpus) => {
            let data: Vec<usize> = cpus.iter().map(|cpu| usize::from(*cpu)).collect();
            let others = allowed.into_iter().filter(|cpu| !data.contains(cpu)).collect();
            return Ok(CpuPlan { data, others });
        }
    };
    // More cores than CPUs share them; that is slow, and allowed for tests.
    let data: Vec<usize> = (0..count).map(|core| allowed[allowed.len() - 1 - core % allowed.len()]).collect();
    let others = allowed.into_iter().filter(|cpu| !data.contains(cpu)).collect();
    Ok(CpuPlan { data, others })
}

/// Journal lanes of a namespace to be formatted: one for each CPU that the process may use, or for each data core where
/// there are more of them.
pub(crate) fn lanes_wanted(plan: &CpuPlan) -> u16 {
    let mut cpus: Vec<usize> = plan.data.iter().chain(&plan.others).copied().collect();
    cpus.sort();
    cpus.dedup();
    u16::try_from(cpus.len().max(plan.data.len())).unwrap_or(u16::MAX)
}

pub(crate) fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        tracing::warn!(cpu, %error, "a core's thread is not pinned");
    }
}
