//! What a seed decides before anything happens: the device, its faults, the promises, who the clients are. What a few
//! seeds would miss by chance follows from the seed's number: consecutive seeds bring every fault and every feature.

use crate::faults::Fault;
use base::{BLOCK_SIZE, Random, Uuid};
use net::sim::SimFaults;
use nvme_device::sim::{FaultPlan, Latency, PerMillion, SimOptions, Tear};
use nvme_log::{Durability, OpenOptions, StoreOptions};
use std::time::Duration;

const MIB: u64 = 1 << 20;

#[derive(Clone, Debug)]
pub struct Scenario {
    pub disk: SimOptions,
    /// What a file may grow to; 0 for a namespace that does not.
    pub blocks_max: u64,
    pub store: StoreOptions,
    /// What goes wrong in each round for certain.
    pub forced: Vec<Fault>,
    /// What the device does wrong while the run lasts.
    pub device_faults: FaultPlan,
    /// The power may go; else processes are killed only.
    pub power: bool,
    pub clean_stops: bool,
    /// The namespace is filled.
    pub full: bool,
    pub deletes: bool,
    pub retention: bool,
    /// The first topic has the node's time.
    pub append_time: bool,
    pub producers: usize,
    pub consumers: usize,
    pub vandals: usize,
    pub topics_max: usize,
    pub cores_max: u16,
    pub receive_bytes: usize,
    pub network: SimFaults,
    /// Nothing goes wrong and nothing dies.
    pub peaceful: bool,
}

impl Scenario {
    /// One core, one producer, one consumer, no fault.
    pub fn plain() -> Scenario {
        Scenario {
            disk: SimOptions::new(256 * MIB / BLOCK_SIZE as u64),
            blocks_max: 0,
            forced: Vec::new(),
            store: StoreOptions { zero_ahead: false, ..small_store() },
            device_faults: FaultPlan::none(),
            power: false,
            clean_stops: false,
            full: false,
            deletes: false,
            retention: false,
            append_time: false,
            producers: 2,
            consumers: 2,
            vandals: 0,
            topics_max: 2,
            cores_max: 1,
            receive_bytes: 8 << 20,
            network: SimFaults::none(),
            peaceful: true,
        }
    }

    /// A node in peace over a namespace of this size, whose topics come and go, are cleaned and led anew.
    pub fn recorded(bytes: u64) -> Scenario {
        Scenario {
            disk: SimOptions::new(bytes / BLOCK_SIZE as u64),
            deletes: true,
            retention: true,
            append_time: true,
            topics_max: 4,
            cores_max: 4,
            ..Scenario::plain()
        }
    }

    pub fn of(seed: u64, random: &mut Random) -> Scenario {
        let pick = |random: &mut Random, of: &[u64]| of[random.below(of.len() as u64) as usize];
        let forced = Fault::of_seed(seed);
        let (full, grows) = (seed.is_multiple_of(6), seed % 3 == 1);
        let most = if full { 40 } else { 192 + random.below(256) };
        let megabytes = if grows { most / 2 + 16 } else { most };
        let mut disk = SimOptions::new(megabytes * MIB / BLOCK_SIZE as u64);
        disk.volatile_write_cache = random.chance(3, 4);
        disk.latency = if random.chance(3, 4) { Latency::SSD } else { Latency::NONE };
        disk.tear = if random.chance(1, 2) { Tear::Sectors } else { Tear::Blocks };
        disk.transfer_max = pick(random, &[32, 256, 1024]) as u32;
        disk.grows = grows;
        let mut store = small_store();
        store.durability = if random.chance(1, 4) { Durability::Cache } else { Durability::Flush };
        store.durable_writes = random.chance(1, 2);
        store.copy_out_window = pick(random, &[256 << 10, 4 << 20]) as usize;
        store.tail_cache = pick(random, &[64 << 10, 8 << 20]) as usize;
        store.read_cache = pick(random, &[256 << 10, 8 << 20]) as usize;
        store.index_cache = pick(random, &[4 << 10, 1 << 20]) as usize;
        store.zero_ahead = random.chance(1, 4);
        let mut device_faults = some_faults(random, store.durability);
        if grows {
            // A growth that is refused is tried again; what has to grow meanwhile waits, or is an opening.
            device_faults.growth_refused = PerMillion(500_000);
        }
        Scenario {
            disk,
            blocks_max: if grows { most * MIB / BLOCK_SIZE as u64 } else { 0 },
            device_faults,
            store,
            power: random.chance(3, 4) || forced.contains(&Fault::PowerLoss),
            forced,
            clean_stops: random.chance(1, 2),
            full,
            deletes: !seed.is_multiple_of(2),
            retention: seed % 3 == 2,
            append_time: seed.is_multiple_of(2),
            producers: 1 + random.below(6) as usize,
            consumers: 1 + random.below(8) as usize,
            vandals: random.below(4) as usize,
            topics_max: 1 + random.below(8) as usize,
            cores_max: 1 + random.below(4) as u16,
            receive_bytes: pick(random, &[4 << 20, 8 << 20, 32 << 20]) as usize,
            network: some_network(random),
            peaceful: false,
        }
    }

    pub fn open_options(&self) -> OpenOptions {
        OpenOptions { cores: 1, store: self.store.clone(), boot: Uuid(1), accept_loss: false }
    }

    /// Space that partitions may take; what was deleted takes a while to come back.
    pub fn bytes_max(&self) -> usize {
        if self.full { self.device_bytes() * 4 } else { self.device_bytes() / 10 * 7 }
    }

    /// What the device has, or may grow to.
    pub fn device_bytes(&self) -> usize {
        self.disk.blocks.max(self.blocks_max) as usize * BLOCK_SIZE
    }

    /// Devices that fail now and then: a write, a flush or a read, after which the namespace may stop or not open.
    pub fn device_fails(&self) -> bool {
        let growth_refused = self.device_faults.growth_refused;
        let forced = [Fault::DeviceFails, Fault::OpeningFails].iter().any(|fault| self.forced.contains(fault));
        forced || self.device_faults != FaultPlan { growth_refused, ..FaultPlan::none() }
    }

    /// Appends may be refused: what they need cannot be written, or is not there (yet).
    pub fn refuses_appends(&self) -> bool {
        self.device_fails() || self.full || self.blocks_max > 0
    }
}

fn small_store() -> StoreOptions {
    StoreOptions {
        copy_out_window: 4 << 20,
        tail_cache: 8 << 20,
        read_cache: 8 << 20,
        index_cache: 1 << 20,
        retention_interval: Duration::from_secs(1),
        description_held_max: Duration::from_secs(2),
        write_deadline: Duration::from_secs(3),
        read_deadline: Duration::from_secs(2),
        high_watermark_interval: Duration::from_millis(100),
        ..StoreOptions::default()
    }
}

pub fn some_network(random: &mut Random) -> SimFaults {
    let mut faults = if random.chance(1, 2) { SimFaults::some() } else { SimFaults::none() };
    faults.window = 1 << (10 + random.below(8));
    if random.chance(1, 3) {
        faults.reset = Some(5000 + random.below(50_000));
    }
    faults
}

fn some_faults(random: &mut Random, durability: Durability) -> FaultPlan {
    let mut faults = FaultPlan::none();
    match random.below(8) {
        0 => faults.read_error = PerMillion(3000),
        1 => faults.write_error = PerMillion(300),
        // A page cache forgets what a failed flush should have written: nothing is promised after it.
        2 if durability == Durability::Flush => faults.flush_error = PerMillion(300),
        3 => {
            faults.stall = PerMillion(1000);
            faults.stall_for = Duration::from_millis(1 + random.below(5000));
        }
        _ => {}
    }
    faults
}
