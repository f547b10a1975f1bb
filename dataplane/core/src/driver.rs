//! The driver of a core: turns while there is work, a short spin where work comes often, else sleep in the kernel.

use crate::build::{Built, KernelCore, Shared};
use crate::options::DataplaneError;
use base::counters::Counter;
use base::limits::SPIN_TIME;
use base::{CoreId, Sleeper};
use net::Streams;
use nvme_plan::Namespace;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Busy turns closer together than this make the next wait begin with spinning: a few thousand requests a second.
pub(crate) const SPIN_WHEN_GAP_BELOW: Duration = Duration::from_micros(300);

/// Work that follows work as closely as this is most often there already: another turn finds it. Beyond it a turn would
/// find nothing, and the wait is next.
pub(crate) const LOOK_AGAIN_WHEN_GAP_BELOW: Duration = Duration::from_micros(60);

/// The driver: turns while there is work; spins shortly where work comes often; else sleeps in the kernel.
pub(crate) fn run_core(built: Built) -> Result<(), DataplaneError> {
    let Built { mut core, sleeper, shares_cpu, shared } = built;
    let mut last_work = shared.clock.now().monotonic;
    let mut gap = Duration::from_secs(1);
    let mut signalled = false;
    let mut counted = base::Monotonic::ZERO;
    loop {
        let now = shared.clock.now();
        if core.id == CoreId(0) && !signalled && shared.terminate.load(Ordering::Acquire) {
            signalled = true;
            core.on_signal();
        }
        if let Some(reason) = core.failure(now) {
            return Err(DataplaneError::Stopped(reason));
        }
        if core.turn(now) > 0 {
            // An average of the pauses between pieces of work, each new one an eighth of it.
            gap = (gap * 7 + now.monotonic.since(last_work)) / 8;
            last_work = now.monotonic;
            if gap < LOOK_AGAIN_WHEN_GAP_BELOW {
                continue;
            }
        } else if core.is_done() {
            // Not after a turn with work: what it said over the link leaves with the next one.
            return Ok(());
        }
        let idle = now.monotonic.since(last_work);
        if !shares_cpu && gap < SPIN_WHEN_GAP_BELOW && idle < SPIN_TIME {
            std::hint::spin_loop();
            continue;
        }
        if core.next_gauges != counted {
            counted = core.next_gauges;
            count_process(&core, &shared);
        }
        sleep(&mut core, &sleeper, &shared);
    }
}

/// What is counted outside the loop; as often as gauges are set.
fn count_process(core: &KernelCore, shared: &Shared) {
    let total = |counter: Counter, value: u64| {
        core.counters.add(counter, value.saturating_sub(core.counters.get(counter)));
    };
    total(Counter::DevicePunted, core.namespace.counts().punted);
    if core.id == CoreId(0) {
        total(Counter::LogLinesDropped, (shared.options.log_lines_dropped)());
    }
}

/// Announce it, look at everything once more, then sleep (design 01, step 11). The last look asks the system nothing: the
/// wait itself does, and returns at once where a socket is ready. An empty turn before the announcement, and its own
/// question to the system, cost two calls a request where requests come one by one.
pub(crate) fn sleep(core: &mut KernelCore, sleeper: &Sleeper, shared: &Shared) {
    core.watch.before_sleep();
    sleeper.announce();
    core.namespace.announce_sleep(true);
    core.net.wait_follows();
    let again = shared.clock.now();
    if core.turn(again) == 0 && core.may_sleep() && !core.is_done() {
        let until = core.next_deadline(again);
        core.net.wait(again, until);
        let slept = shared.clock.now().monotonic.since(again.monotonic);
        core.counters.add(Counter::SleptNanos, slept.as_nanos() as u64);
        core.watch.note_slept(slept);
    }
    core.namespace.announce_sleep(false);
    sleeper.retract();
}
