//! A node on the simulated device: down, opening, or running with its cores, as the process of `pollux dataplane` is.

use crate::plane::{CLUSTER, DIRECTORY, NODE};
use arena::Arena;
use base::counters::{CoreCounters, CoreReadings, Counter, heap_words, readings};
use base::{BLOCK_SIZE, CoreId, ListenerId, Monotonic, Now, Random, Sleeper, Uuid};
use data_core::{Core, CoreParts, HelloFacts, Keeper, LINK_LISTENER, LinkEnd, Office, meshes};
use net::Streams;
use net::sim::{SimNetwork, SimStreams};
use nvme_device::sim::{SimDisk, SimNamespace};
use nvme_log::{Durability, FormatOptions, Formatting, OpenOptions, Opened, Opening, RecoveryReport, Store};
use nvme_plan::{Namespace, Plan};
use offload::InlineOffload;
use session::{NodeFacts, Sessions};
use settings::{BrokerSettings, NodeConfig};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub const LINK: &str = "/run/link";
const MIB: usize = 1 << 20;
/// A real device takes more turns than a simulated one: they do not wait.
const OPENING_TURNS_MAX: u64 = 1 << 32;

pub fn address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 9092))
}

type Held = Vec<(CoreId, Vec<base::PartitionId>)>;
type NodeCore<D> = Core<SimStreams, <D as Disk>::Queue, InlineOffload>;

/// Where a node's namespace lies.
pub trait Disk {
    type Queue: Namespace;

    /// A queue for one core.
    fn queue(&self) -> Self::Queue;

    /// When the next completion is due, on simulated time.
    fn next_event(&self) -> Option<Monotonic>;
}

impl Disk for SimDisk {
    type Queue = SimNamespace;

    fn queue(&self) -> SimNamespace {
        self.open()
    }

    fn next_event(&self) -> Option<Monotonic> {
        SimDisk::next_event(self)
    }
}

/// What every run of the node has.
#[derive(Clone)]
pub struct NodeOptions {
    pub open: OpenOptions,
    pub receive_bytes: usize,
    pub store_bytes: usize,
    pub broker: BrokerSettings,
}

impl NodeOptions {
    pub fn new(open: OpenOptions) -> NodeOptions {
        let broker = NodeConfig::laptop(&[]).expect("the built-in configuration is valid").broker;
        NodeOptions { open, receive_bytes: 8 * MIB, store_bytes: 64 * MIB, broker }
    }
}

enum State<D: Disk> {
    Down,
    Opening { opening: Box<Opening>, queue: D::Queue, plan: Plan, turns: u64 },
    Running { cores: Vec<NodeCore<D>>, readings: Vec<CoreReadings> },
}

pub struct Node<D: Disk = SimDisk> {
    pub disk: D,
    pub network: SimNetwork,
    pub options: NodeOptions,
    state: State<D>,
}

/// What a turn of the node ended with.
#[derive(Debug, PartialEq, Eq)]
pub enum Turned {
    /// Work done.
    Went(usize),
    Opened(RecoveryReport),
    /// The opening failed; the process ended.
    Refused(nvme_log::OpenError),
    /// A clean stop is complete; the process ended.
    Ended,
}

impl<D: Disk> Node<D> {
    pub fn new(disk: D, network: SimNetwork, options: NodeOptions) -> Node<D> {
        Node { disk, network, options, state: State::Down }
    }

    pub fn is_down(&self) -> bool {
        matches!(self.state, State::Down)
    }

    pub fn is_running(&self) -> bool {
        matches!(self.state, State::Running { .. })
    }

    pub fn is_opening(&self) -> bool {
        matches!(self.state, State::Opening { .. })
    }

    /// Its counters, for whoever looks for a wedge.
    pub fn describe(&self) -> String {
        let State::Running { readings, .. } = &self.state else { return "the node does not run".to_owned() };
        let of = |core: &CoreReadings| {
            let told = Counter::ALL.iter().map(|counter| (counter.name(), core.get(*counter)));
            let told: Vec<String> = told.filter(|(_, n)| *n > 0).map(|(name, n)| format!("{name} {n}")).collect();
            format!("core {}: {}", core.core().0, told.join(", "))
        };
        readings.iter().map(of).collect::<Vec<_>>().join("\n")
    }

    /// The process starts.
    pub fn start(&mut self, now: Now, random: &mut Random, cores: u16) {
        assert!(self.is_down());
        let queue = self.disk.queue();
        self.options.open.cores = cores;
        let arena = Arena::heap(CoreId(0), 128 * MIB);
        let random = Random::from_seed(random.next_u64());
        let opening = Opening::new(self.options.open.clone(), queue.geometry(), arena, random);
        let _ = now;
        self.state = State::Opening { opening: Box::new(opening), queue, plan: Plan::new(), turns: 0 };
    }

    /// The process is killed, whatever it is doing.
    pub fn kill(&mut self) {
        self.state = State::Down;
        self.network.kill_nodes();
    }

    /// The namespace of some core has stopped.
    pub fn has_stopped(&self) -> bool {
        let State::Running { readings, .. } = &self.state else { return false };
        readings.iter().any(|core| core.get(Counter::NamespaceStopped) == 1)
    }

    /// The process would end: its namespace has stopped, on every core, and what waited was answered.
    pub fn has_failed(&self, now: Now) -> bool {
        let State::Running { cores, readings } = &self.state else { return false };
        let failed = cores.iter().any(|core| core.failure(now).is_some());
        let stopped = readings.iter().all(|core| core.get(Counter::NamespaceStopped) == 1);
        assert!(!failed || stopped, "a core goes on though its namespace has stopped elsewhere");
        failed
    }

    /// When something is due though nothing arrives.
    pub fn next_deadline(&self, now: Now) -> Option<Monotonic> {
        match &self.state {
            State::Down => None,
            State::Opening { .. } => self.disk.next_event(),
            State::Running { cores, .. } => cores.iter().filter_map(|core| core.next_deadline(now)).min(),
        }
    }

    /// A turn of some of its cores, in any order.
    pub fn turn(&mut self, now: Now, random: &mut Random) -> Turned {
        match &mut self.state {
            State::Down => Turned::Went(0),
            State::Opening { .. } => self.turn_opening(now, random),
            State::Running { cores, .. } => {
                let mut work = 0;
                let count = cores.len();
                let first = random.below(count as u64) as usize;
                for index in 0..count {
                    // A core may be late.
                    if count == 1 || random.chance(7, 8) {
                        work += cores[(first + index) % count].turn(now);
                    }
                }
                if cores.iter_mut().all(NodeCore::<D>::is_done) {
                    self.kill();
                    return Turned::Ended;
                }
                Turned::Went(work)
            }
        }
    }

    fn turn_opening(&mut self, now: Now, random: &mut Random) -> Turned {
        let State::Opening { opening, queue, plan, turns } = &mut self.state else { unreachable!("it opens") };
        *turns += 1;
        assert!(*turns < OPENING_TURNS_MAX, "the opening does not end");
        match opening.poll(now, plan) {
            Some(Ok(opened)) => {
                let report = opened.report.clone();
                self.state = self.build(now, random, opened);
                return Turned::Opened(report);
            }
            Some(Err(error)) => {
                self.state = State::Down;
                return Turned::Refused(error);
            }
            None => {}
        }
        let mut work = queue.submit_plan(now, plan);
        let mut completions = Vec::new();
        work += queue.poll(now, usize::MAX, &mut completions);
        for completion in completions {
            opening.on_completion(now, completion);
        }
        Turned::Went(work)
    }

    fn build(&self, now: Now, random: &mut Random, opened: Opened) -> State<D> {
        let count = self.options.open.cores;
        let sleepers: Vec<Arc<Sleeper>> = (0..count).map(|_| Arc::new(Sleeper::new(|| {}))).collect();
        let words = heap_words(usize::from(count));
        let facts = Arc::new(NodeFacts {
            node: NODE,
            cluster_id: CLUSTER.into(),
            listeners: vec!["PLAINTEXT".into()],
            log_dir: "/data".into(),
        });
        let held: Held = opened.seeds.iter().map(|seed| (seed.core, seed.partition_ids())).collect();
        let report = opened.report.clone();
        let mut office = Some((opened.keeper, opened.view, held));
        let mut cores = Vec::new();
        for (seed, mesh) in opened.seeds.into_iter().zip(meshes(&sleepers)) {
            let id = seed.core;
            let mut random = Random::from_seed(random.next_u64());
            let arena = Arena::heap(id, self.options.receive_bytes);
            let mut net = SimStreams::new(self.network.clone(), arena.clone(), now);
            let store_arena = Arena::heap(id, self.options.store_bytes);
            let store_random = Random::from_seed(random.next_u64());
            let store = Store::from_seed(seed, self.options.open.store.clone(), store_arena.clone(), store_random);
            let broker = self.options.broker.clone();
            let partition_options =
                partition::Options { node: NODE, core: id, link_core: CoreId(0), inflate_max: 64 * MIB };
            let share = self.options.receive_bytes / 2;
            let sessions = Sessions::new(now, id, count, Arc::clone(&facts), broker.clone(), share);
            let recovered = office.take();
            let office = recovered.map(|recovered| self.open_office(&mut net, &mut random, &report, recovered));
            let offload = InlineOffload::disordered(64, Random::from_seed(random.next_u64()));
            cores.push(Core::new(CoreParts {
                id,
                net,
                namespace: self.disk.queue(),
                offload,
                arena,
                store_arena,
                directory: DIRECTORY,
                partitions: partition::Partitions::new(now, partition_options, broker),
                random,
                store,
                sessions,
                mesh,
                office,
                counters: CoreCounters::new(Arc::clone(&words), id),
                clocks: None,
            }));
        }
        State::Running { cores, readings: readings(&words) }
    }

    fn open_office(
        &self,
        net: &mut SimStreams,
        random: &mut Random,
        report: &RecoveryReport,
        (log_keeper, saved, held): (nvme_log::Keeper, Option<nvme_log::SavedView>, Held),
    ) -> Office {
        net.listen(ListenerId(0), address()).expect("the address is free");
        net.listen_local(LINK_LISTENER, Path::new(LINK)).expect("the path is free");
        let saved = saved.map(|saved| view::View::from_bytes(&saved.bytes).expect("a view that was saved reads back"));
        let cores = self.options.open.cores;
        let mut keeper = Keeper::new(CLUSTER.into(), NODE, cores, saved.unwrap_or_default());
        for (core, partitions) in held {
            keeper.on_recovered(core, partitions);
        }
        let hello = HelloFacts {
            cluster_id: CLUSTER.into(),
            node_id: NODE,
            directory: DIRECTORY,
            run_id: Uuid::random(random),
            boot_id: "boot".into(),
            clean_stop: report.clean,
            damaged: !report.suspects.is_empty() || !report.damages.is_empty(),
            durability_cache: self.options.open.store.durability == Durability::Cache,
            listeners: vec![link::BoundListener {
                id: ListenerId(0),
                name: "PLAINTEXT".into(),
                advertised_host: "localhost".into(),
                advertised_port: address().port(),
                security_protocol: 0,
            }],
            cores,
        };
        Office {
            keeper,
            link: LinkEnd::default(),
            hello,
            file_settings: self.options.broker.clone(),
            stop_waiting: 0,
            calibrating: Default::default(),
            log_keeper,
        }
    }
}

/// Formats an empty disk; nothing fails meanwhile.
pub fn format<D: Disk>(disk: &D, cpus: u16, blocks_max: u64, random: &mut Random, now: &mut Now) {
    let mut queue = disk.queue();
    let mut options = FormatOptions::new(CLUSTER, NODE, DIRECTORY, cpus);
    options.bytes_max = blocks_max * BLOCK_SIZE as u64;
    let arena = Arena::heap(CoreId(0), 16 * MIB);
    let mut formatting = Formatting::new(options, queue.geometry(), arena, random).expect("the disk is large enough");
    let mut plan = Plan::new();
    let mut completions = Vec::new();
    loop {
        if let Some(result) = formatting.poll(&mut plan) {
            result.expect("an empty disk is formatted");
            return;
        }
        queue.submit_plan(*now, &mut plan);
        now.monotonic = disk.next_event().unwrap_or(now.monotonic).max(now.monotonic + Duration::from_micros(1));
        queue.poll(*now, usize::MAX, &mut completions);
        completions.drain(..).for_each(|completion| formatting.on_completion(completion));
    }
}
