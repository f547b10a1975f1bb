//! The loop. One turn of one core, in the order that design 01 argues; generic over the network and the device, and given
//! its time, so that the simulator runs it too. Every step has a budget and says how much it did.

use crate::calibrating::{CALIBRATION, Calibrating};
use crate::duty::DutiesInHand;
use crate::hearing::VIEW_WORK;
use crate::keeper::Keeper;
use crate::link_end::LinkEnd;
use crate::log_events::LogEvents;
use crate::memory::IdleMemory;
use crate::mesh::Mesh;
use crate::message::Message;
use crate::office::TellingHeld;
use crate::tally::Begun;
use crate::watch::{Step, Watch};
use arena::Arena;
use base::counters::{CoreCounters, Counter};
use base::{CoreId, IdMap, Monotonic, Now, Offset, PartitionId, Random};
use handoff::{GatherId, Outcome};
use net::{StreamEvent, Streams};
use nvme_log::{LogEvent, ReadError, StopReason, Store};
use nvme_plan::{Completion, Namespace, Plan};
use offload::{Class, Finished, JobToken, Offload};
use partition::{JobId, Partitions};
use session::{Gate, Sessions, Turn};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Budgets of one turn. A step that used its budget up goes on in the next turn, after the others had theirs.
const COMPLETIONS_A_TURN: usize = 64;
const NET_OPERATIONS_A_TURN: usize = 64;
/// Messages, each counted by the partitions it is about.
const MESSAGES_A_TURN: usize = 128;
const JOBS_A_TURN: usize = 16;
/// What the store tells: a commit may have been that of very many partitions, each with its waiters. As many as a turn
/// appends, and more, so that what waits does not grow.
const LOG_EVENTS_A_TURN: usize = 2 * MESSAGES_A_TURN;
/// Jobs of partitions are numbered from 1, those of sessions from here.
const SESSION_JOBS: u64 = 1 << 63;
/// How long a dataplane whose namespace has stopped still runs: what waits is answered, and the control plane hears of it.
pub const STOPPED_ANSWERS_FOR: Duration = Duration::from_millis(500);

/// One core.
pub struct Core<S: Streams, N, O> {
    pub(crate) id: CoreId,
    pub(crate) net: S,
    pub(crate) namespace: N,
    pub(crate) offload: O,
    pub(crate) arena: Arena,
    pub(crate) store_arena: Arena,
    pub(crate) directory: base::Uuid,
    pub(crate) random: Random,
    pub(crate) store: Store,
    pub(crate) partitions: Partitions,
    pub(crate) sessions: Sessions,
    pub(crate) mesh: Mesh<S::Detached>,
    pub(crate) office: Option<Office>,
    pub(crate) counters: CoreCounters,
    pub(crate) watch: Watch,
    plan: Plan,
    /// What nobody's answer waits for; the turn's end submits it.
    background: Plan,
    /// Work for which the helpers had no room, in order.
    pub(crate) work_waiting: VecDeque<(Class, JobToken, Box<dyn base::Work>)>,
    scratch: Scratch,
    /// Duties that are not yet said to be in force.
    pub(crate) duties_in_hand: Option<DutiesInHand>,
    pub(crate) stopping: bool,
    stopped: bool,
    /// The namespace has failed, here or on another core: when that was heard of, and what failed first.
    failed: Option<(Monotonic, StopReason)>,
    pressure: nvme_log::PressureLevel,
    pub(crate) next_gauges: Monotonic,
    idle_memory: IdleMemory,
    begun: Begun,
    /// What the store told and nobody heard yet, in its order.
    log_events: LogEvents,
    /// What is left of the turn's budgets.
    budget: Budget,
    /// What this core holds is being told to the control plane.
    pub(crate) telling_held: Option<TellingHeld>,
    /// Answers that helpers make.
    session_jobs: IdMap<JobToken, GatherId>,
    next_session_job: u64,
    /// The time of the turn at hand.
    pub(crate) turn_at: Monotonic,
}

/// What a core is made of.
pub struct CoreParts<S: Streams, N, O> {
    pub id: CoreId,
    pub net: S,
    pub namespace: N,
    pub offload: O,
    /// Receive memory, and what is opened of other arenas'.
    pub arena: Arena,
    /// The log's memory; references made from it come home here.
    pub store_arena: Arena,
    pub directory: base::Uuid,
    pub random: Random,
    pub store: Store,
    pub partitions: Partitions,
    pub sessions: Sessions,
    pub mesh: Mesh<S::Detached>,
    /// Core 0's extra office, and its end of the link.
    pub office: Option<Office>,
    pub counters: CoreCounters,
    /// The watchdog's clocks; the simulator has none.
    pub clocks: Option<crate::watch::Clocks>,
}

/// What only core 0 has.
pub struct Office {
    pub keeper: Keeper,
    pub link: LinkEnd,
    pub hello: crate::office::HelloFacts,
    pub file_settings: settings::BrokerSettings,
    pub stop_waiting: usize,
    pub log_keeper: nvme_log::Keeper,
    pub calibrating: Calibrating,
}

impl Office {
    /// Every core has stopped, and the copies of the superblock agree.
    pub(crate) fn has_stopped(&self) -> bool {
        self.stop_waiting == 0 && !self.log_keeper.is_updating()
    }
}

/// Of what steps do that are taken twice in a turn, how much it may still do.
#[derive(Clone, Copy, Debug)]
struct Budget {
    messages: usize,
    jobs: usize,
    log_events: usize,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget { messages: MESSAGES_A_TURN, jobs: JOBS_A_TURN, log_events: LOG_EVENTS_A_TURN }
    }
}

/// Lists that live as long as the loop, so that a turn allocates nothing for them.
#[derive(Default)]
pub struct Scratch {
    completions: Vec<Completion>,
    stream_events: Vec<StreamEvent>,
    finished: Vec<Finished>,
    outputs: partition::Outputs,
}

impl<S: Streams, N: Namespace, O: Offload> Core<S, N, O> {
    pub fn new(parts: CoreParts<S, N, O>) -> Core<S, N, O> {
        let mut core = Core {
            id: parts.id,
            net: parts.net,
            namespace: parts.namespace,
            offload: parts.offload,
            arena: parts.arena,
            store_arena: parts.store_arena,
            directory: parts.directory,
            random: parts.random,
            store: parts.store,
            partitions: parts.partitions,
            sessions: parts.sessions,
            mesh: parts.mesh,
            office: parts.office,
            watch: Watch::new(parts.clocks, parts.counters.clone()),
            counters: parts.counters,
            plan: Plan::new(),
            background: Plan::new(),
            work_waiting: VecDeque::new(),
            scratch: Scratch::default(),
            duties_in_hand: None,
            stopping: false,
            stopped: false,
            failed: None,
            pressure: nvme_log::PressureLevel::None,
            next_gauges: Monotonic::ZERO,
            idle_memory: IdleMemory::default(),
            begun: Begun::default(),
            log_events: LogEvents::default(),
            budget: Budget::default(),
            telling_held: None,
            session_jobs: IdMap::default(),
            next_session_job: 0,
            turn_at: Monotonic::ZERO,
        };
        // What was saved is known to every core before it gets a connection, whether the control plane is there or not.
        if let Some(view) = core.office.as_ref().map(|office| Arc::clone(office.keeper.view())) {
            core.sessions.on_view(Arc::clone(&view));
            core.tell_view(&view);
        }
        core
    }

    /// One turn; returns the work done, 0 for an empty one.
    pub fn turn(&mut self, now: Now) -> usize {
        self.watch.begin();
        self.turn_at = now.monotonic;
        self.budget = Budget::default();
        let mut work = 0;
        // 1. Completions first: they free memory and credits that everything below may need.
        work += self.reap(now);
        // 2. and 3. Receive within a budget, cut and route: it makes commands, and replies to be sent below.
        work += self.receive(now);
        // 4. and 5. Take what other cores and helpers sent, and apply: appends are staged here.
        work += self.exchange(now);
        work += self.apply_duties(now) + self.tell_held();
        // 6. Close and submit the next commit if the commit policy lets it: after staging, so that a turn's appends share it.
        work += self.submit(now);
        // 7. What became durable moves watermarks and completes waiters; their outcomes are answered in this turn.
        work += self.settle(now);
        // 8. Timers after completions: an answer that came in time is not called late.
        work += self.expire(now);
        // 9. Everything answered in this turn leaves together.
        self.watch.step(Step::Net);
        self.net.flush(now);
        let mut turn = Turn { now, random: &mut self.random, net: &mut self.net, arena: &self.arena };
        work += self.sessions.on_flushed(&mut turn);
        self.carry_session_outputs();
        // 10. The link, where something is staged for it.
        self.watch.step(Step::Link);
        self.flush_link();
        self.mesh.flush();
        // 11. Last what nobody waits for: a copy-out's write costs its submitter 70 to 115 us in the kernel, which was the
        // 99th percentile of a produce when it went before the answers.
        work += self.submit_background(now);
        self.store_arena.touch_ahead();
        self.arena.touch_ahead();
        if work > 0 {
            self.count_traffic();
        }
        self.watch.end(work);
        work
    }

    fn reap(&mut self, now: Now) -> usize {
        self.watch.step(Step::Device);
        let mut completions = std::mem::take(&mut self.scratch.completions);
        let count = self.namespace.poll(now, COMPLETIONS_A_TURN, &mut completions);
        self.watch.step(Step::Log);
        for completion in completions.drain(..) {
            self.complete(now, completion);
        }
        self.scratch.completions = completions;
        count + self.hear_log(now)
    }

    /// What the store told, as far as the turn's budget goes.
    fn hear_log(&mut self, now: Now) -> usize {
        let mut count = 0;
        while let Some(event) = self.log_events.pop_within(&mut self.budget.log_events) {
            count += 1;
            self.on_log_event(now, event);
        }
        count
    }

    fn receive(&mut self, now: Now) -> usize {
        self.set_gate(now);
        self.watch.step(Step::Net);
        let mut events = std::mem::take(&mut self.scratch.stream_events);
        let count = self.net.poll(now, NET_OPERATIONS_A_TURN, &mut events);
        self.watch.step(Step::Session);
        for event in events.drain(..) {
            self.on_stream_event(now, event);
        }
        self.scratch.stream_events = events;
        let mut turn = Turn { now, random: &mut self.random, net: &mut self.net, arena: &self.arena };
        let begun = self.sessions.on_events_taken(&mut turn);
        self.carry_session_outputs();
        self.watch.step(Step::Link);
        count + begun + self.poll_link(now)
    }

    /// Producers wait while the journal has to catch up, and everybody while another core has.
    fn set_gate(&mut self, now: Now) {
        let gate = match self.pressure {
            _ if self.mesh.is_congested() => Gate::Closed,
            nvme_log::PressureLevel::None => Gate::Open,
            _ => Gate::NoProduce,
        };
        let mut turn = Turn { now, random: &mut self.random, net: &mut self.net, arena: &self.arena };
        self.sessions.set_gate(&mut turn, gate);
    }

    /// Takes messages until there are none, or the budget is used: a command to ourselves is answered in the same turn.
    fn exchange(&mut self, now: Now) -> usize {
        let mut count = 0;
        self.watch.step(Step::Handoff);
        while let Some(message) = self.mesh.receive_within(&mut self.budget.messages) {
            count += 1;
            self.on_message(now, message);
        }
        let mut finished = std::mem::take(&mut self.scratch.finished);
        let jobs = self.offload.poll(self.budget.jobs, &mut finished);
        self.budget.jobs -= jobs;
        count += jobs;
        self.watch.step(Step::Partition);
        for job in finished.drain(..) {
            if job.token == CALIBRATION {
                self.on_calibration(job.work);
                continue;
            }
            if job.token == VIEW_WORK {
                self.on_view_work(job.work);
                continue;
            }
            self.begun.note_job_done(now, &self.counters, job.token);
            match self.session_jobs.remove(&job.token) {
                Some(gather) => {
                    let mut turn = Turn { now, random: &mut self.random, net: &mut self.net, arena: &self.arena };
                    self.sessions.on_work(&mut turn, gather, job.work);
                    self.carry_session_outputs();
                }
                None => self.partitions.on_work(now, &mut self.store, JobId(job.token.0), job.work),
            }
        }
        self.scratch.finished = finished;
        self.carry_partition_outputs();
        self.answer_duties();
        count
    }

    fn submit(&mut self, now: Now) -> usize {
        self.watch.step(Step::Log);
        self.store.poll(now, &mut self.plan, self.log_events.inlet());
        self.poll_calibration();
        if let Some(office) = &mut self.office {
            office.log_keeper.poll(now, &mut self.plan);
        }
        for _ in 0..self.plan.len() {
            let Some(request) = self.plan.pop_front() else { break };
            let queue = if request.class.is_awaited() { &mut self.plan } else { &mut self.background };
            queue.push_back(request);
        }
        self.watch.step(Step::Device);
        let count = if self.plan.is_empty() {
            0
        } else {
            self.begun.note_reads(now, &self.plan);
            self.namespace.submit_plan(now, &mut self.plan)
        };
        self.watch.step(Step::Partition);
        let heard = self.hear_log(now);
        self.carry_keeper_requests(now);
        count + heard
    }

    fn submit_background(&mut self, now: Now) -> usize {
        self.watch.step(Step::Log);
        self.store.poll_background(now, &mut self.background, self.log_events.inlet());
        if self.background.is_empty() {
            return 0;
        }
        self.watch.step(Step::Device);
        self.namespace.submit_plan(now, &mut self.background)
    }

    /// A device that completes within the submission (the page cache) is answered in the turn that wrote.
    fn settle(&mut self, now: Now) -> usize {
        let mut count = self.reap(now);
        self.carry_partition_outputs();
        count += self.exchange(now);
        count
    }

    fn expire(&mut self, now: Now) -> usize {
        self.watch.step(Step::Timers);
        self.partitions.on_time(now, &mut self.store);
        self.carry_partition_outputs();
        self.poll_doors(now);
        let mut turn = Turn { now, random: &mut self.random, net: &mut self.net, arena: &self.arena };
        self.sessions.on_time(&mut turn);
        self.carry_session_outputs();
        self.store_arena.poll_returns(MESSAGES_A_TURN);
        self.arena.poll_returns(MESSAGES_A_TURN);
        self.idle_memory.poll(now, &[&self.arena, &self.store_arena]);
        self.refresh_gauges(now);
        0
    }

    fn complete(&mut self, now: Now, completion: Completion) {
        crate::gauges::count_completion(&self.counters, &completion);
        self.begun.note_completion(now, &self.counters, &completion);
        match &mut self.office {
            Some(office) if nvme_log::Keeper::owns(completion.token) => {
                let was_updating = office.log_keeper.is_updating();
                if let Err(error) = office.log_keeper.on_completion(now, &completion) {
                    self.store.stop_namespace(StopReason::Superblock(error));
                }
                if self.stopping && was_updating && office.has_stopped() {
                    // The cores were done before the superblock was.
                    office.link.stage_stopped(now.monotonic);
                }
            }
            _ => self.store.on_completion(now, completion, self.log_events.inlet()),
        }
    }

    fn on_log_event(&mut self, now: Now, event: LogEvent) {
        self.count_log_event(&event);
        match event {
            LogEvent::NamespaceStopped { reason } => {
                tracing::error!(core = self.id.0, %reason, "the namespace stopped; its partitions are offline");
                self.counters.set(Counter::NamespaceStopped, 1);
                self.failed.get_or_insert((now.monotonic, reason));
                // Rule 6: all lanes of the namespace stop, since one flush covers what all of them wrote.
                self.mesh.send_all(|| Message::NamespaceStopped { reason });
                self.partitions.on_log_event(now, &mut self.store, event);
            }
            LogEvent::Pressure { level } => self.pressure = level,
            LogEvent::ViewSaved { .. } => {}
            LogEvent::Unreadable { partition, from, error } => self.warn_of_unreadable(partition, from, error),
            LogEvent::Stopped => {
                self.stopped = true;
                self.mesh.send(CoreId(0), Message::Stopped);
            }
            other => self.partitions.on_log_event(now, &mut self.store, other),
        }
    }

    fn warn_of_unreadable(&self, partition: PartitionId, from: Offset, error: ReadError) {
        let topic = self.sessions.view().topic_by_id(partition.topic);
        tracing::warn!(
            topic = topic.map(|topic| &*topic.name),
            %partition,
            from = from.0,
            %error,
            "records from about this offset on cannot be read; fetches before and behind them go on. If it stays so, stop \
             the node: `pollux repair --extents` names the offsets"
        );
    }

    pub(crate) fn carry_partition_outputs(&mut self) {
        let mut outputs = std::mem::take(&mut self.scratch.outputs);
        self.partitions.take_outputs(&mut outputs);
        self.count_partitions(&mut outputs.tally);
        if !outputs.is_empty() {
            for (core, outcome) in outputs.outcomes.drain(..) {
                self.mesh.send(core, Message::Outcome(outcome));
            }
            for (id, work) in outputs.work.drain(..) {
                self.work_waiting.push_back((Class::Request, JobToken(id.0), work));
            }
            for call in outputs.up_calls.drain(..) {
                self.carry_up_call(call);
            }
        }
        self.scratch.outputs = outputs;
        self.submit_work();
    }

    pub(crate) fn submit_work(&mut self) {
        while let Some((class, token, work)) = self.work_waiting.pop_front() {
            if let Err(work) = self.offload.submit(class, token, work) {
                self.work_waiting.push_front((class, token, work));
                break;
            }
            self.begun.note_job(self.turn_at, &self.counters, token);
        }
    }

    pub(crate) fn carry_session_outputs(&mut self) {
        let out = &mut self.sessions.out;
        if out.is_empty() {
            return self.submit_work();
        }
        for (core, command) in out.commands.drain(..) {
            self.mesh.send(core, Message::Command(command));
        }
        for up in out.up.drain(..) {
            self.mesh.send(CoreId(0), Message::Up(Box::new(up)));
        }
        for session::OffLoop { gather, work } in out.work.drain(..) {
            self.next_session_job += 1;
            let token = JobToken(SESSION_JOBS | self.next_session_job);
            self.session_jobs.insert(token, gather);
            self.work_waiting.push_back((Class::Request, token, work));
        }
        let answered = std::mem::take(&mut out.answered);
        self.counters.add(Counter::FetchBytes, std::mem::take(&mut out.fetched));
        for (peer, reason) in out.ended.drain(..) {
            self.counters.add(Counter::FramesRefused, 1);
            tracing::info!(core = self.id.0, peer = peer.map(|peer| peer.to_string()), ?reason, "connection ended");
        }
        if std::mem::take(&mut out.producer_ids_wanted) {
            let core = self.id;
            self.mesh.send(CoreId(0), Message::ProducerIdsWanted { core });
        }
        self.submit_work();
        self.count_answered(&answered);
        // Its room serves the next turns too.
        self.sessions.out.answered = answered;
        self.sessions.out.answered.clear();
    }

    /// When the loop has something to do though nothing arrives.
    pub fn next_deadline(&self, now: Now) -> Option<Monotonic> {
        let applying = self.duties_in_hand.as_ref().is_some_and(|duties| !duties.is_applied());
        let goes_on = applying || self.telling_held.is_some() || !self.log_events.is_empty();
        [
            goes_on.then_some(now.monotonic),
            self.store.next_deadline(),
            self.partitions.next_deadline(),
            self.sessions.next_deadline(now),
            self.net.next_deadline(),
            self.namespace.next_deadline(),
            self.office.as_ref().and_then(|office| office.log_keeper.next_deadline()),
            self.office.as_ref().and_then(|office| office.keeper.doors.next_deadline()),
            self.office.as_ref().and_then(|office| office.link.next_deadline()),
            self.failed.map(|(since, _)| since + STOPPED_ANSWERS_FOR),
            self.idle_memory.next_deadline(now, &[&self.arena, &self.store_arena]),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// The last look before sleeping: nothing may have come since the turn.
    pub fn may_sleep(&mut self) -> bool {
        let nothing_to_submit = self.plan.is_empty() && self.background.is_empty() && !self.store.is_owed_a_turn();
        self.mesh.is_empty() && !self.mesh.is_congested() && nothing_to_submit && self.log_events.is_empty()
    }

    /// Why the dataplane has to end, once what waited for the namespace has been answered: only an opening can say what
    /// the medium has (rule 6), and that is the next process's first act.
    pub fn failure(&self, now: Now) -> Option<StopReason> {
        let (since, reason) = self.failed?;
        (now.monotonic.since(since) >= STOPPED_ANSWERS_FOR).then_some(reason)
    }

    /// Stopped, and whoever asked has been told: the control plane has read it, or had its time to.
    pub fn is_done(&mut self) -> bool {
        let at = self.turn_at;
        self.stopped
            && self.mesh.is_empty()
            && !self.mesh.is_congested()
            && self.office.as_ref().is_none_or(|office| office.has_stopped() && office.link.has_ended(at))
    }

    pub(crate) fn on_outcome(&mut self, now: Now, outcome: Outcome) {
        match outcome {
            Outcome::InternalAppended { id, result } => self.on_internal_appended(id, result),
            Outcome::InternalRead { id, result } => self.on_internal_read(id, result),
            other => {
                let mut turn = Turn { now, random: &mut self.random, net: &mut self.net, arena: &self.arena };
                self.sessions.on_outcome(&mut turn, other);
                self.carry_session_outputs();
            }
        }
    }
}
