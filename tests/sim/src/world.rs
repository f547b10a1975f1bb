//! The world of one seed: a node, its control plane, its clients, time, and what goes wrong. Everything that happens
//! follows from the seed.

use crate::admin::Admin;
use crate::consumer::{Consumer, ConsumerOptions};
use crate::context::{Context, Trace};
use crate::faults::{Fault, Happened, Pending};
use crate::model::{Model, Stats};
use crate::node::{Disk, Node, NodeOptions, Turned, format};
use crate::plane::Plane;
use crate::producer::{Producer, ProducerOptions};
use crate::scenario::Scenario;
use crate::vandal::Vandal;
use base::{Monotonic, Now, Random, WallMillis};
use net::sim::{SimFaults, SimNetwork};
use nvme_device::sim::{FaultPlan, InjectedFault, SimDisk};
use nvme_log::RecoveryReport;
use std::time::{Duration, Instant};

/// Time at which a world begins.
pub(crate) const START: Now = Now { monotonic: Monotonic(1_000_000_000), wall: WallMillis(1_700_000_000_000) };
/// The most that time jumps where nothing is due, while clients are busy and while they are not.
pub(crate) const IDLE_STEP: Duration = Duration::from_millis(3);
const LEISURE_STEP: Duration = Duration::from_millis(20);
/// What clients leave between two of their acts at most, while they are not busy.
const LEISURE_MAX: Duration = Duration::from_millis(400);
/// Simulated time of a round before it heals.
const ROUND_TIME: Duration = Duration::from_secs(30);
/// In which everything must have healed once nothing goes wrong any more.
const HEALING_TIME_MAX: Duration = Duration::from_secs(240);
/// In which clients have read what a node told them before its end.
pub(crate) const LAST_WORDS_TIME: Duration = Duration::from_secs(1);
/// A namespace below 64 MiB, as those that are filled, has slabs of 1 MiB and holds no batch above half of one.
const FULL_BATCH_BYTES_MAX: usize = 500_000;

pub struct World<D: Disk = SimDisk> {
    pub scenario: Scenario,
    pub now: Now,
    pub model: Model,
    pub trace: Trace,
    pub(crate) random: Random,
    pub(crate) network: SimNetwork,
    pub(crate) node: Node<D>,
    pub(crate) plane: Plane,
    pub(crate) clients: Clients,
    pub(crate) restart_at: Monotonic,
    /// When the node last ran: nobody flushes while it does not.
    pub(crate) ran_at: Monotonic,
    calm_since: Monotonic,
    quiet: bool,
    /// A clean stop was asked for.
    pub(crate) stopping: bool,
    /// Until when clients may still read what a node told them as it stopped.
    pub(crate) last_words_until: Monotonic,
    /// Crashes inside the recovery under way.
    pub(crate) recovery_crashes: u32,
    pub(crate) pending: Option<Pending>,
    pub happened: Happened,
    /// Of the last opening.
    pub(crate) report: Option<RecoveryReport>,
    /// Where time is the machine's: when it began.
    pub(crate) clock: Option<Instant>,
}

#[derive(Default)]
pub(crate) struct Clients {
    pub producers: Vec<Producer>,
    pub consumers: Vec<Consumer>,
    pub admins: Vec<Admin>,
    pub vandals: Vec<Vandal>,
}

impl Clients {
    fn some(random: &mut Random, scenario: &Scenario) -> Clients {
        let producers = (0..scenario.producers)
            .map(|n| Producer::new(format!("producer {n}"), some_producer(random, scenario)))
            .collect();
        let consumers = (0..scenario.consumers)
            .map(|n| Consumer::new(format!("consumer {n}"), ConsumerOptions::some(random)))
            .collect();
        let admins =
            (0..2).map(|n| Admin::new(format!("admin {n}"), 1 + random.below(200), scenario.deletes)).collect();
        let vandals = (0..scenario.vandals).map(|n| Vandal::new(format!("vandal {n}"))).collect();
        Clients { producers, consumers, admins, vandals }
    }
}

impl World {
    pub fn new(seed: u64, scenario: impl FnOnce(&mut Random) -> Scenario) -> World {
        let mut random = Random::from_seed(seed);
        let scenario = scenario(&mut random);
        let disk = SimDisk::new(scenario.disk.clone(), Random::from_seed(random.next_u64()));
        let mut now = START;
        format(&disk, 4, scenario.blocks_max, &mut random, &mut now);
        let clients = Clients::some(&mut random, &scenario);
        World::on(disk, scenario, clients, random, now)
    }

    /// A while of work and faults, of which one comes for certain; leisure; then peace, an audit, perhaps a crash after it
    /// and another audit.
    pub fn round(&mut self, steps: u64, forced: Option<Fault>) {
        let ends = self.now.monotonic + ROUND_TIME;
        self.quiet = false;
        self.network.set_faults(self.scenario.network);
        self.node.disk.set_faults(self.scenario.device_faults.clone());
        let at = self.random.below(steps);
        for step in 0..steps {
            if let Some(fault) = forced.filter(|_| step == at) {
                self.force(fault);
            }
            self.disturb();
            self.step();
        }
        while self.pending.is_some() {
            self.disturb();
            self.step();
        }
        while self.now.monotonic < ends {
            self.leisure();
        }
        self.heal();
        self.audit();
        if !self.scenario.peaceful && self.happens(2) {
            self.crash();
            self.heal();
            self.audit();
        }
        let refused = |fault: &&InjectedFault| matches!(fault, InjectedFault::GrowthRefused);
        self.happened.growths_refused = self.node.disk.injected().iter().filter(refused).count() as u32;
        self.happened.blocks_grown = self.node.disk.seen().blocks() - self.scenario.disk.blocks;
    }

    /// Everyone acts once, and is left alone for a while.
    fn leisure(&mut self) {
        self.disturb();
        self.step();
        let until = self.now.monotonic + Duration::from_nanos(self.random.below(LEISURE_MAX.as_nanos() as u64));
        while self.now.monotonic < until {
            let work = self.step_servers();
            self.pass_time(work > 1, LEISURE_STEP);
        }
    }

    /// Nothing goes wrong any more: in time everybody is served and everything told is there.
    pub(crate) fn heal(&mut self) {
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

    /// Half of the topics go, and more until what is left takes half of the device at most: a log's last extent is larger
    /// than what it holds, and others' room is of no use to it.
    fn make_room(&mut self) {
        let enough = self.plane.cluster.topics() / 2;
        while self.plane.cluster.topics() > enough || self.model.bytes_kept() > self.scenario.device_bytes() / 2 {
            let World { random, model, plane, .. } = self;
            plane.delete(random, model, 0);
        }
    }
}

impl<D: Disk> World<D> {
    /// A world whose namespace is there already.
    pub(crate) fn on(disk: D, scenario: Scenario, clients: Clients, mut random: Random, now: Now) -> World<D> {
        let network = SimNetwork::new(Random::from_seed(random.next_u64()), scenario.network);
        let mut options = NodeOptions::new(scenario.open_options());
        options.receive_bytes = scenario.receive_bytes;
        World {
            now,
            model: Model::default(),
            trace: Trace::default(),
            node: Node::new(disk, network.clone(), options),
            network,
            plane: Plane::new(),
            clients,
            restart_at: Monotonic::ZERO,
            ran_at: Monotonic::ZERO,
            calm_since: now.monotonic,
            quiet: false,
            stopping: false,
            last_words_until: Monotonic::ZERO,
            recovery_crashes: 0,
            pending: None,
            happened: Happened::default(),
            report: None,
            clock: None,
            scenario,
            random,
        }
    }

    /// Simulated time so far.
    pub fn simulated(&self) -> Duration {
        self.now.monotonic.since(START.monotonic)
    }

    pub fn stats(&self) -> &Stats {
        &self.model.stats
    }

    /// Everyone's turn, and some time.
    pub(crate) fn step(&mut self) {
        let work = self.step_servers();
        self.turn_clients();
        if let Some(late) = &self.model.late {
            panic!("{late}\n{}", self.node.describe());
        }
        self.pass_time(work > 1, IDLE_STEP);
    }

    /// A turn of the node and of its control plane.
    pub(crate) fn step_servers(&mut self) -> usize {
        let mut work = self.turn_node();
        let now = self.now;
        let World { random, network, model, trace, plane, .. } = self;
        plane.step(now, random, network, model, trace);
        self.act_on_events();
        if self.node.is_running() && self.plane.is_settled() {
            work += 1;
        } else {
            self.calm_since = now.monotonic;
        }
        self.trace.number(work as u64);
        work
    }

    fn turn_node(&mut self) -> usize {
        if self.node.is_running() {
            self.ran_at = self.now.monotonic;
        }
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
                self.report = Some(report);
                self.happened.opened += 1;
                self.recovery_crashes = 0;
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

    /// The clients, and what they may use.
    fn clients(&mut self) -> (&mut Clients, Context<'_>) {
        let context = Context {
            now: self.now,
            random: &mut self.random,
            network: &self.network,
            model: &mut self.model,
            cluster: &self.plane.cluster,
            trace: &mut self.trace,
            quiet: self.quiet,
            calm_since: Some(self.calm_since),
            bytes_max: self.scenario.bytes_max(),
            storage_errors: self.scenario.refuses_appends()
                || self.stopping
                || self.now.monotonic < self.last_words_until,
        };
        (&mut self.clients, context)
    }

    pub(crate) fn turn_clients(&mut self) {
        let (clients, mut context) = self.clients();
        clients.producers.iter_mut().for_each(|client| client.step(&mut context));
        clients.consumers.iter_mut().for_each(|client| client.step(&mut context));
        clients.admins.iter_mut().for_each(|client| client.step(&mut context));
        clients.vandals.iter_mut().for_each(|client| client.step(&mut context));
    }

    /// Time goes on a little, or to the next thing that is due.
    pub(crate) fn pass_time(&mut self, busy: bool, idle_step: Duration) {
        let before = self.now.monotonic;
        let step = if let Some(began) = self.clock {
            (START.monotonic + began.elapsed()).since(before)
        } else if busy {
            Duration::from_nanos(self.random.below(100_000))
        } else {
            let due = self.node.next_deadline(self.now).map_or(idle_step, |at| at.since(before));
            due.clamp(Duration::from_micros(20), idle_step)
        };
        self.now.monotonic = before + step;
        self.now.wall.0 += (self.now.monotonic.millis() - before.millis()) as i64;
    }

    fn tell_the_wedge(&mut self) -> ! {
        let (up, running) = (self.plane.is_settled(), self.node.describe());
        let (clients, context) = self.clients();
        let waiting = clients.producers.iter().filter(|one| !one.is_idle()).map(Producer::describe);
        let behind = clients.consumers.iter().filter(|one| !one.has_caught_up(&context));
        let all: Vec<String> = waiting.chain(behind.map(|one| one.describe(&context))).collect();
        let stats = &context.model.stats;
        panic!("it does not heal: running {running}, plane settled {up}, {stats:?}\n{}", all.join("\n"));
    }

    fn everyone_is_done(&mut self) -> bool {
        let (clients, context) = self.clients();
        let caught_up = |consumer: &Consumer| consumer.has_caught_up(&context);
        clients.producers.iter().all(Producer::is_idle) && clients.consumers.iter().all(caught_up)
    }

    /// Reads everything there is and compares.
    pub(crate) fn audit(&mut self) {
        let mut auditor = Consumer::new("auditor".into(), ConsumerOptions::auditor(&mut self.random));
        let began = self.now.monotonic;
        loop {
            let (_, mut context) = self.clients();
            auditor.step(&mut context);
            if auditor.has_caught_up(&context) {
                break;
            }
            self.step();
            assert!(self.now.monotonic.since(began) < HEALING_TIME_MAX, "the audit does not end: {auditor:?}");
        }
        let read: Vec<_> = auditor.read().collect();
        let live = self.model.live();
        assert!(live.iter().all(|id| read.iter().any(|(read, ..)| read == id)), "the auditor left some out");
        for (partition, start, end) in read {
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
