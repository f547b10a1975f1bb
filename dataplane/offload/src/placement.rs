//! Where a helper thread runs and how urgently: the calls that differ between systems.

/// Lowers the priority of the calling thread and keeps it on `cpus`, where the system can. Failing is no error: the
/// thread then merely runs where and as it would have.
pub(crate) fn place_current_thread(nice: i32, cpus: &[usize]) {
    if nice > 0 {
        let _ = lower_priority(nice);
    }
    if !cpus.is_empty() {
        let _ = keep_on(cpus);
    }
}

/// On Linux the nice value belongs to the thread; elsewhere it belongs to the process and is left alone.
#[cfg(target_os = "linux")]
fn lower_priority(nice: i32) -> rustix::io::Result<i32> {
    rustix::process::nice(nice)
}

#[cfg(not(target_os = "linux"))]
fn lower_priority(nice: i32) -> rustix::io::Result<i32> {
    Ok(nice)
}

#[cfg(target_os = "linux")]
fn keep_on(cpus: &[usize]) -> rustix::io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    for cpu in cpus.iter().filter(|cpu| **cpu < rustix::thread::CpuSet::MAX_CPU) {
        set.set(*cpu);
    }
    rustix::thread::sched_setaffinity(None, &set)
}

#[cfg(not(target_os = "linux"))]
fn keep_on(_cpus: &[usize]) -> rustix::io::Result<()> {
    Ok(())
}
