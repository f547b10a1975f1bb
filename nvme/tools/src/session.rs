//! Driving an opening, and then one store, over a device of any kind: what the executable's loop does, without a loop.

use crate::error::ToolError;
use arena::{Arena, Region};
use base::{CoreId, Now, Random, Uuid};
use nvme_log::{Keeper, LogEvent, OpenOptions, Opened, Opening, RecoveryReport, StopReason, Store, StoreOptions};
use nvme_plan::{Completion, Namespace, Plan};

/// Memory for commits, copy-out and checkpoints; touched on use.
const ARENA_BYTES: usize = 256 << 20;
/// Turns without any work after which nothing is expected to come any more.
const IDLE_TURNS_MAX: u32 = 50_000;

/// Where the time of a session comes from.
pub(crate) type Time<'a> = &'a mut dyn FnMut() -> Now;

/// Memory of the system, which costs nothing before it is touched.
fn arena() -> Result<Arena, ToolError> {
    Ok(Arena::new(CoreId(0), Region::anonymous(ARENA_BYTES)?))
}

fn store_options() -> StoreOptions {
    StoreOptions { zero_ahead: false, ..StoreOptions::default() }
}

/// An opening by one core. The boot id that it leaves is none: the next start can tell that a tool was here.
fn open_options(accept_loss: bool) -> OpenOptions {
    OpenOptions { cores: 1, store: store_options(), boot: Uuid::ZERO, accept_loss }
}

pub(crate) fn open<N: Namespace>(
    queue: &mut N,
    time: Time<'_>,
    accept_loss: bool,
    seed: u64,
) -> Result<Opened, ToolError> {
    let geometry = queue.geometry().clone();
    let mut opening = Opening::new(open_options(accept_loss), &geometry, arena()?, Random::from_seed(seed));
    let mut plan = Plan::new();
    let mut completions: Vec<Completion> = Vec::new();
    let mut idle = 0;
    loop {
        let now = time();
        match opening.poll(now, &mut plan) {
            Some(Ok(opened)) => return Ok(opened),
            Some(Err(nvme_log::OpenError::NotFormatted)) => return Err(ToolError::NotFormatted),
            Some(Err(nvme_log::OpenError::Unreadable)) => return Err(ToolError::Unreadable),
            Some(Err(error)) => return Err(ToolError::Refused(error)),
            None => {}
        }
        let submitted = queue.submit_plan(now, &mut plan);
        let count = queue.poll(now, usize::MAX, &mut completions);
        for completion in completions.drain(..) {
            opening.on_completion(now, completion);
        }
        idle = if submitted + count > 0 || queue.in_flight() > 0 { 0 } else { idle + 1 };
        if idle > IDLE_TURNS_MAX {
            return Err(ToolError::Stuck("it waits for something that does not come".into()));
        }
    }
}

/// A namespace opened by one core.
pub(crate) struct Session<'a, N> {
    queue: &'a mut N,
    time: Time<'a>,
    pub store: Store,
    keeper: Keeper,
    pub report: RecoveryReport,
    plan: Plan,
    completions: Vec<Completion>,
    pub events: Vec<LogEvent>,
    idle: u32,
}

impl<'a, N: Namespace> Session<'a, N> {
    pub fn open(queue: &'a mut N, time: Time<'a>, accept_loss: bool, seed: u64) -> Result<Session<'a, N>, ToolError> {
        let mut opened = open(queue, &mut *time, accept_loss, seed)?;
        let one = opened.seeds.pop().filter(|_| opened.seeds.is_empty()).expect("one core was asked for");
        let store = Store::from_seed(one, store_options(), arena()?, Random::from_seed(seed ^ 1));
        let (plan, completions, events) = (Plan::new(), Vec::new(), Vec::new());
        let (keeper, report) = (opened.keeper, opened.report);
        Ok(Session { queue, time, store, keeper, report, plan, completions, events, idle: 0 })
    }

    pub fn now(&mut self) -> Now {
        (self.time)()
    }

    /// One turn of the store, its keeper and the device.
    pub fn turn(&mut self) -> Result<(), ToolError> {
        let now = (self.time)();
        let Session { queue, store, keeper, plan, completions, events, .. } = self;
        store.poll(now, plan, events);
        store.poll_background(now, plan, events);
        while let Some(request) = store.take_keeper_request() {
            keeper.on_request(now, request);
        }
        while let Some((_, reply)) = keeper.take_reply() {
            store.on_keeper_reply(now, reply);
        }
        keeper.poll(now, plan);
        let submitted = queue.submit_plan(now, plan);
        let count = queue.poll(now, usize::MAX, completions);
        for completion in completions.drain(..) {
            if Keeper::owns(completion.token) {
                let written = keeper.on_completion(now, &completion);
                written.map_err(|error| ToolError::Stopped(StopReason::Superblock(error)))?;
            } else {
                store.on_completion(now, completion, events);
            }
        }
        if let Some(reason) = store.stop_reason() {
            return Err(ToolError::Stopped(reason));
        }
        self.idle = if submitted + count > 0 || self.queue.in_flight() > 0 { 0 } else { self.idle + 1 };
        if self.idle > IDLE_TURNS_MAX {
            return Err(ToolError::Stuck("the store waits for something that does not come".into()));
        }
        Ok(())
    }

    /// Turns until it holds.
    pub fn until(&mut self, mut holds: impl FnMut(&mut Self) -> bool) -> Result<(), ToolError> {
        while !holds(self) {
            self.turn()?;
        }
        Ok(())
    }

    /// Ends cleanly: a checkpoint, and the commit that says so.
    pub fn stop(mut self) -> Result<(), ToolError> {
        self.store.stop();
        self.until(|session| session.events.drain(..).any(|event| matches!(event, LogEvent::Stopped)))
    }
}
