//! A core built on its own thread, from what the start prepared.

use crate::calibrating::Calibrating;
use crate::clock::{Clock, WATCH_CLOCKS};
use crate::doors::ConnectionLimits;
use crate::keeper::Keeper;
use crate::link_end::LinkEnd;
use crate::office::{HelloFacts, LINK_LISTENER};
use crate::options::{DataplaneError, DataplaneOptions, system};
use crate::turn::{Core, CoreParts, Office};
use arena::{Arena, Region};
use base::counters::{CoreCounters, Words};
use base::{CoreId, ListenerId, Random, Sleeper, Uuid};
use link::BoundListener;
use net::Streams;
use net::kernel_socket::{KernelStreams, SocketOptions};
use nvme_device::{Calibration, Device, Queue};
use nvme_log::StoreOptions;
use session::{NodeFacts, Sessions};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Everything a core's thread needs to build its core.
pub(crate) struct CoreSeed {
    pub(crate) core: CoreId,
    pub(crate) cpu: usize,
    /// The core shares its CPU with others: it never spins.
    pub(crate) shares_cpu: bool,
    pub(crate) store: nvme_log::StoreSeed,
    pub(crate) mesh: crate::mesh::Mesh<<KernelStreams as Streams>::Detached>,
    pub(crate) offload: offload::ThreadedOffload,
    pub(crate) sleeper: Arc<Sleeper>,
    pub(crate) waker: Arc<std::sync::OnceLock<net::Waker>>,
    pub(crate) shared: Arc<Shared>,
}

/// What all cores share.
pub(crate) struct Shared {
    pub(crate) options: DataplaneOptions,
    pub(crate) clock: Clock,
    pub(crate) device: Device,
    pub(crate) words: Words,
    pub(crate) facts: Arc<NodeFacts>,
    pub(crate) cores: u16,
    pub(crate) worker_cpus: Vec<usize>,
    pub(crate) durability: nvme_log::Durability,
    /// Told by a setting, or measured by an earlier run; until then commits are written and flushed.
    pub(crate) prefers_durable_writes: AtomicBool,
    pub(crate) terminate: Arc<AtomicBool>,
}

pub(crate) const MIB: usize = 1 << 20;
/// Beyond the caches: commits, checkpoints and reads under way.
pub(crate) const STAGING_BYTES: usize = 32 * MIB;
/// The least receive memory a core works with.
pub(crate) const RECEIVE_BYTES_MIN: usize = 4 * MIB;
/// The most that one compressed batch may inflate to while it is checked.
pub(crate) const INFLATE_BYTES_MAX: usize = 256 * MIB;

impl Shared {
    pub(crate) fn share(&self, budget: u64) -> usize {
        (usize::try_from(budget).unwrap_or(usize::MAX) / usize::from(self.cores)).max(MIB)
    }

    pub(crate) fn store_options(&self) -> StoreOptions {
        let network = &self.options.config.network;
        StoreOptions {
            durability: self.durability,
            durable_writes: self.prefers_durable_writes.load(Ordering::Acquire)
                && self.device.geometry().durable_writes,
            copy_out_window: self.share(network.copy_out_window),
            tail_cache: self.share(network.tail_cache),
            read_cache: self.share(network.read_cache),
            index_cache: self.share(network.index_budget),
            retention_interval: Duration::from_millis(
                self.options.config.broker.typed().log_retention_check_interval_ms.max(1) as u64,
            ),
            zero_ahead: !self.options.ephemeral,
            ..StoreOptions::default()
        }
    }

    /// Kafka's -1 leaves a buffer to the system.
    fn socket_options(&self) -> SocketOptions {
        let values = self.options.config.broker.typed();
        let buffer = |bytes: i32| usize::try_from(bytes).ok().filter(|bytes| *bytes > 0);
        SocketOptions {
            backlog: values.socket_listen_backlog_size.max(1),
            send_buffer: buffer(values.socket_send_buffer_bytes),
            receive_buffer: buffer(values.socket_receive_buffer_bytes),
        }
    }

    pub(crate) fn store_arena(&self, core: CoreId) -> Result<Arena, DataplaneError> {
        let options = self.store_options();
        let bytes = options.copy_out_window + options.tail_cache + options.read_cache + STAGING_BYTES;
        Ok(Arena::new(core, Region::anonymous(bytes).map_err(system("memory for the log"))?))
    }
}
/// What core 0 starts its office with.
pub(crate) struct OfficeSeed {
    pub(crate) keeper: nvme_log::Keeper,
    pub(crate) view: Option<nvme_log::SavedView>,
    pub(crate) damaged: bool,
    pub(crate) clean_stop: bool,
    pub(crate) boot_id: String,
    pub(crate) listeners: Vec<settings::Listener>,
    pub(crate) held: Vec<(CoreId, Vec<base::PartitionId>)>,
}

pub(crate) type KernelCore = Core<KernelStreams, Queue, offload::ThreadedOffload>;

/// A core about to run, with what its driver needs.
pub(crate) struct Built {
    pub(crate) core: KernelCore,
    pub(crate) sleeper: Arc<Sleeper>,
    pub(crate) shares_cpu: bool,
    pub(crate) shared: Arc<Shared>,
}

/// Builds a core on its own thread.
pub(crate) fn build(
    seed: CoreSeed,
    queue: Queue,
    office: Option<OfficeSeed>,
    listening: impl FnOnce(String) -> Result<(), DataplaneError>,
) -> Result<Built, DataplaneError> {
    let shared = Arc::clone(&seed.shared);
    let now = shared.clock.now();
    let receive = shared.share(shared.options.config.network.receive_budget).max(RECEIVE_BYTES_MIN);
    let arena = Arena::new(seed.core, Region::anonymous(receive).map_err(system("receive memory"))?);
    let mut net = KernelStreams::new(arena.clone(), shared.socket_options(), now).map_err(system("epoll"))?;
    seed.waker.set(net.waker()).unwrap_or_else(|_| unreachable!("a core is built once"));
    #[cfg(target_os = "linux")]
    if let Some(descriptor) = queue.wake_descriptor() {
        net.watch(descriptor).map_err(system("watching the ring"))?;
    }
    let mut random = Random::from_seed(shared.options.seed ^ u64::from(seed.core.0) << 32);
    let store_arena = shared.store_arena(seed.core)?;
    let store_random = Random::from_seed(random.next_u64());
    let store = nvme_log::Store::from_seed(seed.store, shared.store_options(), store_arena.clone(), store_random);
    let file_settings = shared.options.config.broker.clone();
    let partition_options = partition::Options {
        node: shared.facts.node,
        core: seed.core,
        link_core: CoreId(0),
        inflate_max: INFLATE_BYTES_MAX,
    };
    let counters = CoreCounters::new(Arc::clone(&shared.words), seed.core);
    let sessions =
        Sessions::new(now, seed.core, shared.cores, Arc::clone(&shared.facts), file_settings.clone(), receive / 2);
    let office = match office {
        None => None,
        Some(seed) => {
            let office = open_office(&shared, seed, &mut net, &mut random)?;
            let first = office.hello.listeners.first();
            let address = first.map(|l| format!("{}:{}", l.advertised_host, l.advertised_port));
            listening(address.unwrap_or_default())?;
            Some(office)
        }
    };
    let core = Core::new(CoreParts {
        id: seed.core,
        partitions: partition::Partitions::new(now, partition_options, file_settings),
        net,
        namespace: queue,
        offload: seed.offload,
        arena,
        store_arena,
        directory: shared.options.directory_id,
        random,
        store,
        sessions,
        mesh: seed.mesh,
        office,
        counters,
        clocks: Some(WATCH_CLOCKS),
    });
    Ok(Built { core, sleeper: seed.sleeper, shares_cpu: seed.shares_cpu, shared })
}

pub(crate) fn open_office(
    shared: &Shared,
    seed: OfficeSeed,
    net: &mut KernelStreams,
    random: &mut Random,
) -> Result<Office, DataplaneError> {
    let mut bound = Vec::new();
    for (i, listener) in seed.listeners.iter().enumerate() {
        let id = ListenerId(i as u16);
        let address = resolve(listener)?;
        let address = net.listen(id, address).map_err(|error| DataplaneError::Listen {
            name: listener.name.clone(),
            address: address.to_string(),
            error,
        })?;
        let told = shared.options.config.advertised.iter().find(|told| told.name == listener.name);
        let (host, port) = told.map_or((listener.host.as_str(), 0), |told| (told.host.as_str(), told.port));
        bound.push(BoundListener {
            id,
            name: listener.name.clone(),
            advertised_host: if host.is_empty() { host_name() } else { host.to_owned() },
            advertised_port: if port == 0 { address.port() } else { port },
            security_protocol: 0,
        });
        tracing::info!(listener = listener.name, %address, "listening");
    }
    net.listen_local(LINK_LISTENER, &shared.options.link).map_err(|error| DataplaneError::Listen {
        name: "link".into(),
        address: shared.options.link.display().to_string(),
        error,
    })?;
    let saved = seed.view.and_then(|saved| match view::View::from_bytes(&saved.bytes) {
        Ok(view) => Some(view),
        Err(error) => {
            tracing::warn!(%error, "the saved view is not used; the control plane will state it");
            None
        }
    });
    let cluster = shared.options.cluster_id.clone();
    let mut keeper = Keeper::new(cluster.clone(), shared.facts.node, shared.cores, saved.unwrap_or_default());
    let names = bound.iter().map(|listener| listener.name.as_str());
    keeper.set_connection_limits(ConnectionLimits::from_settings(&shared.options.config.broker, names));
    for (core, partitions) in seed.held {
        keeper.on_recovered(core, partitions);
    }
    let hello = HelloFacts {
        cluster_id: cluster,
        node_id: shared.facts.node,
        directory: shared.options.directory_id,
        run_id: Uuid::random(random),
        boot_id: seed.boot_id,
        clean_stop: seed.clean_stop,
        damaged: seed.damaged,
        durability_cache: shared.durability == nvme_log::Durability::Cache,
        listeners: bound,
        cores: shared.cores,
    };
    Ok(Office {
        keeper,
        link: LinkEnd::default(),
        hello,
        file_settings: shared.options.config.broker.clone(),
        stop_waiting: 0,
        calibrating: calibrating(shared, &seed.keeper),
        log_keeper: seed.keeper,
    })
}

/// Whether it has to be found out how commits are made durable. Under cache durability nobody waits for that.
fn calibrating(shared: &Shared, keeper: &nvme_log::Keeper) -> Calibrating {
    let unknown = keeper.flush_method() == nvme_log::FlushMethod::Unknown
        && shared.options.config.data.sync == settings::SyncMethod::Auto
        && shared.durability == nvme_log::Durability::Flush
        && shared.device.may_force_unit_access();
    let scratch = keeper.scratch().filter(|_| unknown);
    let calibration = scratch.and_then(|scratch| Calibration::new(&shared.device, scratch));
    calibration.map_or(Calibrating::Needless, |calibration| Calibrating::Wanted(Box::new(calibration)))
}

pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

pub(crate) fn resolve(listener: &settings::Listener) -> Result<SocketAddr, DataplaneError> {
    let host = if listener.host.is_empty() { "0.0.0.0" } else { listener.host.as_str() };
    let failed = |error| DataplaneError::Resolve {
        name: listener.name.clone(),
        host: host.to_owned(),
        port: listener.port,
        error,
    };
    let mut addresses = (host, listener.port).to_socket_addrs().map_err(failed)?;
    addresses.next().ok_or_else(|| failed(std::io::ErrorKind::AddrNotAvailable.into()))
}
