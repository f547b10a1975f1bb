//! The world of one seed: a node, its control plane, its clients, time, and what goes wrong. Everything that happens
//! follows from the seed.

use crate::admin::Admin;
use crate::consumer::{Consumer, ConsumerOptions};
use crate::context::{Context, Trace};
use crate::model::{Model, Stats};
use crate::node::{Node, NodeOptions, Turned, format};
use crate::plane::Plane;
use crate::producer::{Producer, ProducerOptions};
use crate::scenario::{Scenario, some_network};
use crate::vandal::Vandal;
use base::{Monotonic, Now, Random, WallMillis};
use net::sim::{SimFaults, SimNetwork};
use nvme_device::sim::{FaultPlan, SimDisk};
use nvme_log::Durability;
use std::time::Duration;

/// Time at which a world begins.
const START: Now = Now { monotonic: Monotonic(1_000_000_000), wall: WallMillis(1_700_000_000_000) };
/// The most that time jumps where nothing is due.
const IDLE_STEP: Duration = Duration::from_millis(3);
/// In which everything must have healed once nothing goes wrong any more.
const HEALING_TIME_MAX: Duration = Duration::from_secs(240);
/// A namespace below 64 MiB, as those that are filled, has slabs of 1 MiB and holds no batch above half of one.
const FULL_BATCH_BYTES_MAX: usize = 500_000;

pub struct World {
    pub scenario: Scenario,
    pub now: Now,
    pub model: Model,
    pub trace: Trace,
    random: Random,
    network: SimNetwork,
    node: Node,
    plane: Plane,
    producers: Vec<Producer>,
    consumers: Vec<Consumer>,
    admins: Vec<Admin>,
    vandals: Vec<Vandal>,
    restart_at: Monotonic,
    calm_since: Monotonic,
    quiet: bool,
    /// A clean stop was asked for.
    stopping: bool,
    /// Crashes inside the recovery under way.
    recovery_crashes: u32,
    pub happened: Happened,
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
    pub opened: u32,
    pub audits: u32,
}

impl World {
    pub fn new(seed: u64, scenario: impl FnOnce(&mut Random) -> Scenario) -> World {
        let mut random = Random::from_seed(seed);
        let scenario = scenario(&mut random);
        let disk = SimDisk::new(scenario.disk.clone(), Random::from_seed(random.next_u64()));
        let mut now = START;
        format(&disk, 4, &mut random, &mut now);
        let network = SimNetwork::new(Random::from_seed(random.next_u64()), scenario.network);
        let mut options = NodeOptions::new(scenario.open_options());
        options.receive_bytes = scenario.receive_bytes;
        let node = Node::new(disk, network.clone(), options);
        let producers = (0..scenario.producers)
            .map(|n| Producer::new(format!("producer {n}"), some_producer(&mut random, &scenario)));
        let producers = producers.collect();
        let consumers = (0..scenario.consumers)
            .map(|n| Consumer::new(format!("consumer {n}"), ConsumerOptions::some(&mut random)))
            .collect();
        let admins =
            (0..2).map(|n| Admin::new(format!("admin {n}"), 1 + random.below(200), scenario.deletes)).collect();
        let vandals = (0..scenario.vandals).map(|n| Vandal::new(format!("vandal {n}"))).collect();
        World {
            now,
            model: Model::default(),
            trace: Trace::default(),
            network,
            node,
            plane: Plane::new(),
            producers,
            consumers,
            admins,
            vandals,
            restart_at: Monotonic::ZERO,
            calm_since: now.monotonic,
            quiet: false,
            stopping: false,
            recovery_crashes: 0,
            happened: Happened::default(),
            scenario,
            random,
        }
    }

    /// A while of work and faults, then peace, an audit, perhaps a crash after it and another audit.
    pub fn round(&mut self, steps: u64) {
        self.quiet = false;
        self.network.set_faults(self.scenario.network);
        self.node.disk.set_faults(self.scenario.device_faults.clone());
        for _ in 0..steps {
            self.disturb();
            self.step();
        }
        self.heal();
        self.audit();
        if !self.scenario.peaceful && self.random.chance(1, 2) {
            self.crash();
            self.heal();
            self.audit();
        }
    }

    pub fn stats(&self) -> &Stats {
        &self.model.stats
    }

    fn happens(&mut self, one_in: u64) -> bool {
        self.random.chance(1, one_in)
    }

    /// Everyone's turn, and some time.
    fn step(&mut self) {
        let mut work = self.turn_node();
        let now = self.now;
        let World { random, network, model, trace, plane, .. } = self;
        plane.step(now, random, network, model, trace);
        self.act_on_events();
        self.turn_clients();
        if self.node.is_running() && self.plane.is_settled() {
            work += 1;
        } else {
            self.calm_since = now.monotonic;
        }
        self.trace.number(work as u64);
        self.pass_time(work > 1);
    }

    fn turn_node(&mut self) -> usize {
        if self.node.is_down() {
            if self.now.monotonic >= self.restart_at {
                let cores = 1 + self.random.below(u64::from(self.scenario.cores_max)) as u16;
                tracing::info!(at = self.now.monotonic.millis(), cores, "the node starts");
                self.node.start(self.now, &mut self.random, cores);
            }
            return 1;
        }
        match self.node.turn(self.now, &mut self.random) {
            Turned::Went(work) => work,
            Turned::Opened(report) => {
                tracing::info!(at = self.now.monotonic.millis(), ?report, "the node is open");
                let honest = report.damages.is_empty()
                    && report.suspects.is_empty()
                    && report.older_checkpoints.is_empty()
                    && report.unreadable_shards.is_empty();
                assert!(honest, "damage without a fault: {report:?}");
                self.happened.opened += 1;
                self.recovery_crashes = 0;
                self.stopping = false;
                1
            }
            Turned::Refused(error) => {
                assert!(self.scenario.device_fails(), "the namespace does not open: {error}");
                tracing::info!(at = self.now.monotonic.millis(), %error, "the opening fails");
                self.happened.refused_openings += 1;
                self.go_down();
                1
            }
            Turned::Ended => {
                assert!(self.stopping, "nobody asked the node to stop");
                tracing::info!(at = self.now.monotonic.millis(), "the node has stopped");
                self.happened.clean_stops += 1;
                self.plane.expect_clean = Some(true);
                self.go_down();
                1
            }
        }
    }

    fn act_on_events(&mut self) {
        if std::mem::take(&mut self.plane.directory_failed) {
            assert!(self.scenario.device_fails(), "the directory failed");
        }
        if self.node.has_stopped() {
            assert!(self.scenario.device_fails(), "the namespace stopped without a fault");
            // Some die before they have told everybody.
            if self.node.has_failed(self.now) || self.happens(1000) {
                self.happened.stopped_namespaces += 1;
                self.kill("the namespace stopped");
            }
        }
    }

    fn turn_clients(&mut self) {
        let World { producers, consumers, admins, vandals, .. } = self;
        let mut context = Context {
            now: self.now,
            random: &mut self.random,
            network: &self.network,
            model: &mut self.model,
            cluster: &self.plane.cluster,
            trace: &mut self.trace,
            quiet: self.quiet,
            calm_since: Some(self.calm_since),
            bytes_max: self.scenario.bytes_max(),
            storage_errors: self.scenario.device_fails() || self.scenario.full || self.stopping,
        };
        producers.iter_mut().for_each(|client| client.step(&mut context));
        consumers.iter_mut().for_each(|client| client.step(&mut context));
        admins.iter_mut().for_each(|client| client.step(&mut context));
        vandals.iter_mut().for_each(|client| client.step(&mut context));
    }

    /// Time goes on a little, or to the next thing that is due.
    fn pass_time(&mut self, busy: bool) {
        let before = self.now.monotonic;
        let step = if busy {
            Duration::from_nanos(self.random.below(100_000))
        } else {
            let due = self.node.next_deadline(self.now).map_or(IDLE_STEP, |at| at.since(before));
            due.clamp(Duration::from_micros(20), IDLE_STEP)
        };
        self.now.monotonic = before + step;
        self.now.wall.0 += (self.now.monotonic.millis() - before.millis()) as i64;
    }

    /// Something may go wrong, or change.
    fn disturb(&mut self) {
        self.change_topics();
        if self.scenario.peaceful {
            return;
        }
        if self.node.is_opening() && self.recovery_crashes < 3 && self.happens(300) {
            self.recovery_crashes += 1;
            self.happened.recovery_crashes += 1;
            self.crash();
        }
        if self.node.is_running() && self.happens(6000) {
            self.crash();
        }
        if self.plane.is_up() && self.happens(5000) {
            let away = [1, 100, 3000, 12_000][self.random.below(4) as usize];
            tracing::info!(at = self.now.monotonic.millis(), away, "the control plane dies");
            self.happened.plane_deaths += 1;
            self.plane.die(self.now.monotonic, Duration::from_millis(away));
        }
        if self.scenario.clean_stops && self.node.is_running() && self.plane.is_settled() && self.happens(15_000) {
            tracing::info!(at = self.now.monotonic.millis(), "the control plane stops the node");
            self.stopping = true;
            self.plane.stop();
        }
        if self.happens(3000) {
            self.network.set_faults(some_network(&mut self.random));
        }
        if self.happens(5000) {
            self.now.wall.0 += self.random.below(4000) as i64 - 2000;
        }
        if self.happens(400) {
            self.reset_someone();
        }
    }

    fn reset_someone(&mut self) {
        let pick = self.random.next_u64() as usize;
        match pick % 3 {
            0 => self.producers[pick / 3 % self.scenario.producers].reset(),
            1 => self.consumers[pick / 3 % self.scenario.consumers].reset(),
            _ => self.admins[pick / 3 % 2].reset(),
        }
    }

    fn change_topics(&mut self) {
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
        if self.happens(4) {
            config.push(("message.timestamp.type", "LogAppendTime".to_owned()));
        }
        config
    }

    fn kill(&mut self, why: &str) {
        tracing::info!(at = self.now.monotonic.millis(), why, "the node is killed");
        self.happened.kills += 1;
        self.plane.expect_clean = None;
        self.model.forget_starts();
        self.node.kill();
        self.go_down();
    }

    /// The process dies, and perhaps the power goes.
    fn crash(&mut self) {
        let power = self.scenario.power && self.happens(2);
        self.kill(if power { "with the power" } else { "alone" });
        if !power {
            return;
        }
        self.happened.power_losses += 1;
        self.node.disk.power_loss(&mut self.random);
        if self.scenario.store.durability == Durability::Cache {
            self.model.lose_young(self.now.monotonic);
            self.plane.forget_in_force();
            // What was answered and not yet read may be gone: nobody reads it.
            self.producers.iter_mut().for_each(Producer::reset);
            self.consumers.iter_mut().for_each(Consumer::forget);
            self.admins.iter_mut().for_each(Admin::reset);
        }
    }

    fn go_down(&mut self) {
        self.stopping = false;
        let most = if self.happens(4) { 2_000_000 } else { 2000 };
        let away = Duration::from_micros(self.random.below(most));
        self.restart_at = self.now.monotonic + away;
    }

    /// Nothing goes wrong any more: in time everybody is served and everything told is there.
    fn heal(&mut self) {
        self.quiet = true;
        self.node.disk.set_faults(FaultPlan::none());
        self.network.set_faults(SimFaults { window: 64 << 10, ..SimFaults::none() });
        self.plane.retry_at = Monotonic::ZERO;
        if self.node.has_stopped() {
            self.kill("to heal");
        }
        self.calm_since = self.now.monotonic;
        let began = self.now.monotonic;
        let mut led = false;
        loop {
            self.step();
            if self.node.has_stopped() {
                // A request of before failed late.
                self.kill("to heal");
            }
            if self.plane.is_settled() && !led {
                led = true;
                if self.scenario.full {
                    self.make_room();
                }
                self.plane.lead_all(&mut self.random);
            }
            if led && self.node.is_running() && self.plane.is_settled() && self.everyone_is_done() {
                return;
            }
            if self.now.monotonic.since(began) > HEALING_TIME_MAX {
                self.tell_the_wedge();
            }
        }
    }

    fn tell_the_wedge(&mut self) -> ! {
        let (up, running) = (self.plane.is_settled(), self.node.is_running());
        let World { producers, consumers, .. } = self;
        let context = Context {
            now: self.now,
            random: &mut self.random,
            network: &self.network,
            model: &mut self.model,
            cluster: &self.plane.cluster,
            trace: &mut self.trace,
            quiet: true,
            calm_since: None,
            bytes_max: 0,
            storage_errors: false,
        };
        let waiting = producers.iter().filter(|one| !one.is_idle()).map(Producer::describe);
        let behind = consumers.iter().filter(|one| !one.has_caught_up(&context)).map(|one| one.describe(&context));
        let all: Vec<String> = waiting.chain(behind).collect();
        let stats = &self.model.stats;
        panic!("it does not heal: running {running}, plane settled {up}, {stats:?}\n{}", all.join("\n"));
    }

    fn make_room(&mut self) {
        for _ in 0..self.plane.cluster.topics().div_ceil(2) {
            let World { random, model, plane, .. } = self;
            plane.delete(random, model, 0);
        }
    }

    fn everyone_is_done(&mut self) -> bool {
        let World { producers, consumers, .. } = self;
        let context = Context {
            now: self.now,
            random: &mut self.random,
            network: &self.network,
            model: &mut self.model,
            cluster: &self.plane.cluster,
            trace: &mut self.trace,
            quiet: true,
            calm_since: None,
            bytes_max: 0,
            storage_errors: false,
        };
        producers.iter().all(Producer::is_idle) && consumers.iter().all(|consumer| consumer.has_caught_up(&context))
    }

    /// Reads everything there is and compares.
    fn audit(&mut self) {
        let mut auditor = Consumer::new("auditor".into(), ConsumerOptions::auditor(&mut self.random));
        let began = self.now.monotonic;
        loop {
            let mut context = Context {
                now: self.now,
                random: &mut self.random,
                network: &self.network,
                model: &mut self.model,
                cluster: &self.plane.cluster,
                trace: &mut self.trace,
                quiet: true,
                calm_since: Some(self.calm_since),
                bytes_max: 0,
                storage_errors: false,
            };
            auditor.step(&mut context);
            if auditor.has_caught_up(&context) {
                break;
            }
            self.step();
            assert!(self.now.monotonic.since(began) < HEALING_TIME_MAX, "the audit does not end: {auditor:?}");
        }
        for (partition, start, end) in auditor.read() {
            self.model.audit(partition, start, end);
        }
        self.happened.audits += 1;
    }
}

fn some_producer(random: &mut Random, scenario: &Scenario) -> ProducerOptions {
    let mut options = ProducerOptions::some(random);
    if scenario.full {
        let largest = FULL_BATCH_BYTES_MAX / options.records_max as usize;
        options.value_max = options.value_max.max(20_000).min(largest);
        options.laziness = 1 + options.laziness / 4;
    }
    options
}
