//! Starting the dataplane of a node: the device is opened, the namespace recovered, listeners bound, one pinned thread per
//! core run.

use crate::build::{CoreSeed, MIB, OfficeSeed, Shared, build};
use crate::clock::Clock;
use crate::cpus::{CpuPlan, cpu_plan, lanes_wanted, pin};
use crate::driver::run_core;
use crate::mesh::meshes;
use crate::open::{boot_id, boot_uuid, log_durability, may_have_lost, open_device, open_namespace};
use crate::options::{DataplaneError, DataplaneOptions, system};
use arena::{Arena, Region, SharedPages};
use base::counters::{self, Words};
use base::{CoreId, NodeId, Sleeper};
use nvme_device::{Device, Queue, QueueOptions, Wake};
use nvme_log::Opened;
use offload::{HelperThreads, HelperThreadsOptions};
use session::NodeFacts;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Runs the dataplane until it is told to stop. `listening` is called once with the first client listener's address.
pub fn run(options: DataplaneOptions, listening: impl FnOnce(String)) -> Result<(), DataplaneError> {
    abort_on_panic();
    let clock = Clock::start();
    let plan = cpu_plan(&options.config.node.cores)?;
    let cores = plan.data.len() as u16;
    // Before this thread is pinned: afterwards the system counts one CPU.
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let lanes = lanes_wanted(&plan);
    // The log's thread runs already.
    plan.keep_others_off().map_err(system("placing its threads"))?;
    pin(plan.data[0]);
    let device = open_device(&options, lanes)?;
    tracing::info!(device = %device, "opened");
    let waker = Arc::new(std::sync::OnceLock::<net::Waker>::new());
    let mut queue = attach(&device, &waker, &plan.others)?;
    let opening_arena = Arena::new(CoreId(0), Region::anonymous(OPENING_BYTES).map_err(system("memory"))?);
    let boot = boot_id();
    let words = shared_counters(&options, cores)?;
    let listeners: Vec<settings::Listener> =
        options.config.listeners.iter().filter(|listener| !listener.controller).cloned().collect();
    let facts = NodeFacts {
        node: NodeId(options.config.node.id),
        cluster_id: options.cluster_id.clone(),
        listeners: listeners.iter().map(|listener| listener.name.clone()).collect(),
        log_dir: options.config.data.directory.display().to_string(),
    };
    let shared = Arc::new(Shared {
        durability: log_durability(options.config.data.durability),
        prefers_durable_writes: AtomicBool::new(options.config.data.sync == settings::SyncMethod::Dsync),
        clock,
        device: device.clone(),
        words,
        facts: Arc::new(facts),
        cores,
        worker_cpus: plan.others.clone(),
        terminate: Arc::new(AtomicBool::new(false)),
        options,
    });
    let open =
        nvme_log::OpenOptions { cores, store: shared.store_options(), boot: boot_uuid(&boot), accept_loss: false };
    let opened = open_namespace(&shared.options, &mut queue, &device, &opening_arena, open, lanes, clock)?;
    // What an opening held is of no use to a node that serves.
    drop(opening_arena);
    report(&opened);
    check_identity(&shared, &opened)?;
    follow_measurement(&shared, opened.superblock.flush);
    let wakers: Vec<Arc<std::sync::OnceLock<net::Waker>>> =
        (0..cores).map(|core| if core == 0 { Arc::clone(&waker) } else { Arc::default() }).collect();
    let sleepers: Vec<Arc<Sleeper>> = wakers.iter().map(|waker| Arc::new(sleeper_for(Arc::clone(waker)))).collect();
    let helpers = HelperThreadsOptions { threads: 1, capacity: HELPER_JOBS, nice: 5, cpus: plan.others.clone() };
    let (_helpers, offloads) = HelperThreads::start(&helpers, sleepers.clone()).map_err(system("helper threads"))?;
    let held: Vec<(CoreId, Vec<base::PartitionId>)> =
        opened.seeds.iter().map(|seed| (seed.core, seed.partition_ids())).collect();
    let mut seeds: Vec<CoreSeed> = opened
        .seeds
        .into_iter()
        .zip(meshes(&sleepers))
        .zip(offloads)
        .enumerate()
        .map(|(core, ((store, mesh), offload))| CoreSeed {
            core: CoreId(core as u16),
            cpu: plan.data[core],
            shares_cpu: usize::from(cores) >= cpus,
            store,
            mesh,
            offload,
            sleeper: Arc::clone(&sleepers[core]),
            waker: Arc::clone(&wakers[core]),
            shared: Arc::clone(&shared),
        })
        .collect();
    let others = seeds.split_off(1);
    let mut threads = Vec::new();
    for seed in others {
        let name = format!("core-{}", seed.core.0);
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            pin(seed.cpu);
            let queue = attach(&seed.shared.device, &seed.waker, &seed.shared.worker_cpus)?;
            run_core(build(seed, queue, None, |_| Ok(()))?)
        });
        threads.push(thread.map_err(system("a core's thread"))?);
    }
    let office = OfficeSeed {
        keeper: opened.keeper,
        view: opened.view,
        damaged: may_have_lost(&opened.report),
        clean_stop: opened.report.clean,
        boot_id: boot,
        listeners,
        held,
    };
    let seed = seeds.pop().expect("there is a core 0");
    watch_signals(&shared, &waker, plan)?;
    let core = build(seed, queue, Some(office), |address| {
        listening(address);
        Ok(())
    })?;
    let mut result = run_core(core);
    for thread in threads {
        let ended = thread.join().unwrap_or_else(|_| unreachable!("a panic aborts"));
        result = result.and(ended);
    }
    result
}

/// Memory of an opening: it reads and writes checkpoints, and copies out.
const OPENING_BYTES: usize = 128 * MIB;
/// Jobs that one core may have with the helpers.
const HELPER_JOBS: usize = 64;

/// A core that panics ends the dataplane: a node never goes on with one core dead.
fn abort_on_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        print(info);
        std::process::abort();
    }));
}
fn attach(
    device: &Device,
    waker: &Arc<std::sync::OnceLock<net::Waker>>,
    worker_cpus: &[usize],
) -> Result<Queue, DataplaneError> {
    let waker = Arc::clone(waker);
    let wake = Wake::new(move || {
        if let Some(waker) = waker.get() {
            waker.wake();
        }
    });
    let options = QueueOptions { wake: Some(wake), worker_cpus: worker_cpus.to_vec(), ..QueueOptions::default() };
    device.attach(&options).map_err(system("a queue of the device"))
}

fn sleeper_for(waker: Arc<std::sync::OnceLock<net::Waker>>) -> Sleeper {
    Sleeper::new(move || {
        if let Some(waker) = waker.get() {
            waker.wake();
        }
    })
}
/// Where the file system is full the node serves all the same: reading, and deleting to make room, matter more.
fn shared_counters(options: &DataplaneOptions, cores: u16) -> Result<Words, DataplaneError> {
    let bytes = counters::mapping_bytes(usize::from(cores));
    match SharedPages::create(&options.counters, bytes) {
        Ok(pages) => Ok(Arc::new(pages)),
        Err(error) if error.kind() == std::io::ErrorKind::StorageFull => {
            let path = options.counters.display();
            tracing::warn!(%path, %error, "the dataplane's metrics are not shown until it is started with room for them");
            // An empty or cut one would be taken for this run's.
            let _ = std::fs::remove_file(&options.counters);
            Ok(counters::heap_words(usize::from(cores)))
        }
        Err(error) => Err(system("the counters' mapping")(error)),
    }
}

/// How commits reach the medium, where no setting says it. What was measured on another device, or by chance, is not
/// followed where a durable write is two commands.
fn follow_measurement(shared: &Shared, measured: nvme_log::FlushMethod) {
    if shared.options.config.data.sync != settings::SyncMethod::Auto {
        return;
    }
    let one_command = shared.device.may_force_unit_access();
    tracing::info!(?measured, one_command, "how commits reach the medium, as an earlier run measured it");
    let durable = measured == nvme_log::FlushMethod::DurableWrite && one_command;
    shared.prefers_durable_writes.store(durable, Ordering::Release);
}

fn report(opened: &Opened) {
    let report = &opened.report;
    tracing::info!(
        clean = report.clean,
        first = report.first,
        commits = report.commits,
        partitions = report.partitions,
        steps = ?report.steps,
        "recovered"
    );
    for damage in &report.damages {
        tracing::error!(?damage, "the journal is damaged");
    }
    for shard in &report.older_checkpoints {
        tracing::warn!(shard = shard.0, "the newest checkpoint could not be used; the one before it was");
    }
    for (partition, from) in &report.suspects {
        tracing::error!(%partition, from = from.0, "records may be lost; the partition is refused until it is repaired");
    }
}

/// A namespace of another cluster or node is not ours to serve, nor one whose partitions nobody knows by name any more.
fn check_identity(shared: &Shared, opened: &Opened) -> Result<(), DataplaneError> {
    let ours = (&shared.options.cluster_id, shared.facts.node, shared.options.directory_id);
    let theirs = (&opened.superblock.cluster, opened.superblock.node, opened.superblock.directory);
    if ours != theirs {
        return Err(DataplaneError::Identity {
            namespace: format!("cluster {}, node {}, directory {}", theirs.0, theirs.1, theirs.2),
            expected: format!("cluster {}, node {}, directory {}", ours.0, ours.1, ours.2),
        });
    }
    let partitions = opened.report.partitions;
    if partitions > 0 && !shared.options.has_run && !shared.options.ephemeral {
        return Err(DataplaneError::MetadataLost { partitions });
    }
    Ok(())
}

/// A thread of its own waits for SIGTERM and SIGINT.
fn watch_signals(
    shared: &Arc<Shared>,
    waker: &Arc<std::sync::OnceLock<net::Waker>>,
    plan: CpuPlan,
) -> Result<(), DataplaneError> {
    let signals = [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT];
    let mut signals = signal_hook::iterator::Signals::new(signals).map_err(system("signal handlers"))?;
    // Not the whole of what cores share: the device closes when they end.
    let (terminate, waker) = (Arc::clone(&shared.terminate), Arc::clone(waker));
    let thread = std::thread::Builder::new().name("signals".into()).spawn(move || {
        // It was started by a data core.
        if let Err(error) = plan.place(None) {
            tracing::warn!(%error, "the thread for signals is not kept off the data cores");
        }
        for _ in signals.forever() {
            terminate.store(true, Ordering::Release);
            if let Some(waker) = waker.get() {
                waker.wake();
            }
        }
    });
    thread.map(drop).map_err(system("a thread for signals"))
}
