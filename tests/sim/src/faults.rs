//! What goes wrong in a world: at random, and in each round one fault for certain, so that no run goes without.

use crate::consumer::Consumer;
use crate::node::Disk;
use crate::producer::Producer;
use crate::world::{LAST_WORDS_TIME, World};
use base::Monotonic;
use nvme_device::sim::{FaultPlan, PerMillion};
use nvme_log::Durability;
use std::time::Duration;

/// Crashes inside one recovery at most, beside the one that may be forced.
const RECOVERY_CRASHES_MAX: u32 = 3;
/// Turns of an opening before a forced crash inside it, at most.
const RECOVERY_TURNS_MAX: u64 = 100;
/// In which a forced fault has struck.
const FORCING_TIME_MAX: Duration = Duration::from_secs(120);

/// What can be made to go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Kill,
    PowerLoss,
    /// The process dies, and once more while it opens its namespace.
    RecoveryCrash,
    PlaneDeath,
    CleanStop,
    /// A write fails, whose outcome nobody knows then.
    DeviceFails,
    /// The device cannot be read while the namespace opens.
    OpeningFails,
}

impl Fault {
    const ALL: [Fault; 7] = [
        Fault::RecoveryCrash,
        Fault::PowerLoss,
        Fault::PlaneDeath,
        Fault::Kill,
        Fault::DeviceFails,
        Fault::CleanStop,
        Fault::OpeningFails,
    ];

    /// One for each round of a seed; four consecutive seeds have them all.
    pub fn of_seed(seed: u64) -> Vec<Fault> {
        (0..crate::ROUNDS).map(|round| Fault::ALL[((seed * crate::ROUNDS + round) % 7) as usize]).collect()
    }
}

/// A fault that is to strike, and has not yet.
#[derive(Clone, Copy, Debug)]
pub struct Pending {
    fault: Fault,
    since: Monotonic,
    /// How often it had happened before.
    before: u32,
    /// Turns of an opening until the crash inside it.
    turns: u64,
}

/// What went wrong, and how often.
#[derive(Clone, Debug, Default)]
pub struct Happened {
    pub kills: u32,
    pub power_losses: u32,
    pub recovery_crashes: u32,
    pub clean_stops: u32,
    pub stopped_namespaces: u32,
    pub refused_openings: u32,
    pub plane_deaths: u32,
    pub client_resets: u32,
    pub clock_steps: u32,
    pub growths_refused: u32,
    /// Blocks that the namespace has grown by.
    pub blocks_grown: u64,
    pub opened: u32,
    pub audits: u32,
}

impl Happened {
    /// Deaths of a process, with or without the power, and failures of the device.
    pub fn faults(&self) -> u32 {
        self.kills + self.plane_deaths + self.refused_openings
    }

    fn of(&self, fault: Fault) -> u32 {
        match fault {
            Fault::Kill => self.kills,
            Fault::PowerLoss => self.power_losses,
            Fault::RecoveryCrash => self.recovery_crashes,
            Fault::PlaneDeath => self.plane_deaths,
            Fault::CleanStop => self.clean_stops,
            Fault::DeviceFails => self.stopped_namespaces,
            Fault::OpeningFails => self.refused_openings,
        }
    }

    /// Everything by name, for whoever wants to know that it really happened.
    pub fn list(&self) -> Vec<(&'static str, u64)> {
        let counts = [
            ("kills", self.kills),
            ("power losses", self.power_losses),
            ("crashes inside a recovery", self.recovery_crashes),
            ("clean stops", self.clean_stops),
            ("stopped namespaces", self.stopped_namespaces),
            ("refused openings", self.refused_openings),
            ("deaths of the control plane", self.plane_deaths),
            ("connections reset by clients", self.client_resets),
            ("steps of the wall clock", self.clock_steps),
            ("refused growths", self.growths_refused),
            ("openings", self.opened),
            ("audits", self.audits),
        ];
        let counts = counts.into_iter().map(|(name, count)| (name, u64::from(count)));
        counts.chain([("blocks grown", self.blocks_grown)]).collect()
    }
}

impl World {
    /// Lets a fault happen as soon as it can.
    pub(crate) fn force(&mut self, fault: Fault) {
        let turns = 1 + self.random.below(RECOVERY_TURNS_MAX);
        let before = self.happened.of(fault);
        self.pending = Some(Pending { fault, since: self.now.monotonic, before, turns });
    }

    /// Something may go wrong, or change.
    pub(crate) fn disturb(&mut self) {
        self.change_topics();
        if self.scenario.peaceful {
            return;
        }
        self.pursue();
        if self.node.is_opening() && self.recovery_crashes < RECOVERY_CRASHES_MAX && self.happens(300) {
            self.crash_in_recovery();
        }
        if self.node.is_running() && self.happens(6000) {
            self.crash();
        }
        if self.plane.is_up() && self.happens(5000) {
            self.plane_dies();
        }
        if self.scenario.clean_stops && self.happens(15_000) {
            self.stop_cleanly();
        }
        if self.happens(3000) {
            self.network.set_faults(crate::scenario::some_network(&mut self.random));
        }
        if self.happens(5000) {
            self.happened.clock_steps += 1;
            self.now.wall.0 += self.random.below(4000) as i64 - 2000;
        }
        if self.happens(400) {
            self.happened.client_resets += 1;
            self.reset_someone();
        }
    }

    /// The forced fault strikes where it can now.
    fn pursue(&mut self) {
        let Some(pending) = self.pending else { return };
        if self.happened.of(pending.fault) > pending.before {
            self.pending = None;
            self.node.disk.set_faults(self.scenario.device_faults.clone());
            if pending.fault == Fault::CleanStop {
                // Which is no fault by itself.
                self.force(Fault::Kill);
            }
            return;
        }
        let waited = self.now.monotonic.since(pending.since);
        assert!(waited < FORCING_TIME_MAX, "{pending:?} does not strike: {:?}", self.happened);
        let running = self.node.is_running();
        let faults = self.scenario.device_faults.clone();
        match pending.fault {
            Fault::Kill if running => self.kill("alone"),
            Fault::PowerLoss if running => {
                self.kill("with the power");
                self.lose_power();
            }
            Fault::RecoveryCrash => self.pursue_recovery(),
            Fault::PlaneDeath if self.plane.is_up() => self.plane_dies(),
            Fault::CleanStop => self.stop_cleanly(),
            Fault::DeviceFails => {
                let write_error = if running { PerMillion::ALWAYS } else { faults.write_error };
                self.node.disk.set_faults(FaultPlan { write_error, ..faults });
            }
            Fault::OpeningFails if running => self.kill("to open again"),
            Fault::OpeningFails => {
                self.node.disk.set_faults(FaultPlan { read_error: PerMillion::ALWAYS, ..faults });
            }
            _ => {}
        }
    }

    /// A crash after some turns of an opening; one that is over before is begun anew, and crashes earlier.
    fn pursue_recovery(&mut self) {
        let Some(pending) = &mut self.pending else { return };
        if self.node.is_running() {
            pending.turns = 1 + pending.turns / 2;
            return self.kill("to crash while it opens");
        }
        if !self.node.is_opening() {
            return;
        }
        match pending.turns.checked_sub(1) {
            Some(left) => pending.turns = left,
            None => self.crash_in_recovery(),
        }
    }

    fn crash_in_recovery(&mut self) {
        self.recovery_crashes += 1;
        self.happened.recovery_crashes += 1;
        self.crash();
    }

    fn plane_dies(&mut self) {
        let away = [1, 100, 3000, 12_000][self.random.below(4) as usize];
        tracing::info!(at = self.now.monotonic.millis(), away, "the control plane dies");
        self.happened.plane_deaths += 1;
        self.plane.die(self.now.monotonic, Duration::from_millis(away));
    }

    fn reset_someone(&mut self) {
        let pick = self.random.next_u64() as usize;
        let clients = &mut self.clients;
        match pick % 3 {
            0 => clients.producers[pick / 3 % self.scenario.producers].reset(),
            1 => clients.consumers[pick / 3 % self.scenario.consumers].reset(),
            _ => clients.admins[pick / 3 % 2].reset(),
        }
    }

    /// The process dies, and perhaps the power goes.
    pub(crate) fn crash(&mut self) {
        let power = self.scenario.power && self.happens(2);
        self.kill(if power { "with the power" } else { "alone" });
        if power {
            self.lose_power();
        }
    }

    fn lose_power(&mut self) {
        self.happened.power_losses += 1;
        self.node.disk.power_loss(&mut self.random);
        if self.scenario.store.durability == Durability::Cache {
            self.model.lose_young(self.ran_at);
            self.plane.forget_in_force();
            // What was answered and not yet read may be gone: nobody reads it.
            self.clients.producers.iter_mut().for_each(Producer::reset);
            self.clients.consumers.iter_mut().for_each(Consumer::forget);
            self.clients.admins.iter_mut().for_each(crate::admin::Admin::reset);
        }
    }
}

impl<D: Disk> World<D> {
    pub(crate) fn stop_cleanly(&mut self) {
        if self.stopping || !self.node.is_running() || !self.plane.is_settled() {
            return;
        }
        tracing::info!(at = self.now.monotonic.millis(), "the control plane stops the node");
        self.stopping = true;
        self.plane.stop();
    }

    pub(crate) fn kill(&mut self, why: &str) {
        tracing::info!(at = self.now.monotonic.millis(), why, "the node is killed");
        self.happened.kills += 1;
        self.plane.expect_clean = None;
        self.model.forget_starts();
        self.node.kill();
        self.go_down();
    }

    pub(crate) fn go_down(&mut self) {
        if std::mem::take(&mut self.stopping) {
            self.last_words_until = self.now.monotonic + LAST_WORDS_TIME;
        }
        let most = if self.happens(4) { 2_000_000 } else { 2000 };
        let away = Duration::from_micros(self.random.below(most));
        self.restart_at = self.now.monotonic + away;
    }

    pub(crate) fn change_topics(&mut self) {
        if !self.plane.is_up() {
            return;
        }
        let topics = self.plane.cluster.topics();
        if topics == 0 || (topics < self.scenario.topics_max && self.happens(1000)) {
            let config = self.some_config();
            let World { random, model, plane, .. } = self;
            plane.create(random, model, &config);
        }
        if self.scenario.peaceful {
            return;
        }
        let pick = self.random.next_u64();
        if topics > 1 && self.happens(6000) {
            let World { random, model, plane, .. } = self;
            plane.delete(random, model, pick);
        }
        if self.happens(2500) {
            self.plane.elect(&mut self.random, pick);
        }
        if self.happens(5000) {
            self.plane.say_again(&mut self.random);
        }
        if self.happens(500) {
            self.plane.ping(self.now);
        }
    }

    fn some_config(&mut self) -> Vec<(&'static str, String)> {
        let mut config = Vec::new();
        if self.scenario.retention && self.happens(2) {
            config.push(("segment.bytes", (1 << 20).to_string()));
            config.push(("retention.bytes", (1 << (20 + self.random.below(2))).to_string()));
        }
        let first = self.scenario.append_time && self.plane.cluster.topics() == 0;
        if first || self.happens(4) {
            config.push(("message.timestamp.type", "LogAppendTime".to_owned()));
        }
        config
    }

    pub(crate) fn happens(&mut self, one_in: u64) -> bool {
        self.random.chance(1, one_in)
    }
}
