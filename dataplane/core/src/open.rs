//! The device and the namespace, opened before any client is served.

use crate::build::STAGING_BYTES;
use crate::clock::Clock;
use crate::options::{DataplaneError, DataplaneOptions, system};
use arena::{Arena, Region};
use base::{CoreId, NodeId, Now, Random, Uuid};
use nvme_device::{Device, OpenOptions, Queue, QueueOptions};
use nvme_log::{FormatOptions, Formatting, Opened, Opening};
use nvme_plan::{Namespace, Plan};
use settings::Durability;

/// Opens the device as the configuration says.
pub(crate) fn open_device(options: &DataplaneOptions, cpus: u16) -> Result<Device, DataplaneError> {
    let data = &options.config.data;
    if options.ephemeral {
        let bytes = data.size.unwrap_or(EPHEMERAL_BYTES);
        return Ok(nvme_device::open(&OpenOptions::Memory { blocks: bytes / base::BLOCK_SIZE as u64 })?);
    }
    if options.has_run && is_lost(&options.namespace) {
        return Err(DataplaneError::Lost(options.namespace.clone()));
    }
    let parent = options.namespace.parent().unwrap_or(std::path::Path::new("."));
    let size = match data.size {
        Some(size) => size,
        None => nvme_device::free_bytes(parent).map_err(system("the free space"))? / 10 * 9,
    };
    let mut file = nvme_device::FileOptions::new(&options.namespace);
    file.create = Some(first_size(options, size, cpus));
    let engine = match data.io {
        settings::IoEngine::Auto => nvme_device::Engine::Automatic,
        settings::IoEngine::Uring => nvme_device::Engine::Uring,
        settings::IoEngine::Threads => nvme_device::Engine::Threaded,
    };
    Ok(nvme_device::open(&OpenOptions::File { file, engine })?)
}

/// Missing, or a file without a byte, which opening would give its first size before formatting refused it.
fn is_lost(namespace: &std::path::Path) -> bool {
    match std::fs::metadata(namespace) {
        Ok(found) => found.is_file() && found.len() == 0,
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

/// A memory namespace takes what is written to it: holes stay holes.
pub(crate) const EPHEMERAL_BYTES: u64 = 64 << 30;
/// The size a file is created with: what the regions of a namespace of `size` take, with the first slabs. One too small
/// for its regions is created whole, and formatting says what is missing.
fn first_size(options: &DataplaneOptions, size: u64, cpus: u16) -> u64 {
    let block = base::BLOCK_SIZE as u64;
    let ring_bytes = options.config.data.lane_ring;
    let plan = nvme_format::region::Plan { blocks: 0, blocks_max: size / block, cpus, ring_bytes };
    nvme_format::region::initial_blocks(plan).unwrap_or(size / block) * block
}

/// Drives a state machine of the log against a device until it ends; used before any client is served.
pub(crate) fn drive<R>(
    queue: &mut Queue,
    clock: Clock,
    mut step: impl FnMut(Now, &mut Plan, Option<nvme_plan::Completion>) -> Option<R>,
) -> R {
    let mut plan = Plan::new();
    let mut completions = Vec::new();
    loop {
        let now = clock.now();
        if let Some(end) = step(now, &mut plan, None) {
            return end;
        }
        queue.submit_plan(now, &mut plan);
        let count = queue.poll(now, usize::MAX, &mut completions);
        for completion in completions.drain(..) {
            step(now, &mut plan, Some(completion));
        }
        if count == 0 {
            std::thread::yield_now();
        }
    }
}

pub(crate) fn format_namespace(
    options: &DataplaneOptions,
    queue: &mut Queue,
    device: &Device,
    arena: &Arena,
    cpus: u16,
    clock: Clock,
    random: &mut Random,
) -> Result<(), DataplaneError> {
    let node = NodeId(options.config.node.id);
    let mut format = FormatOptions::new(&options.cluster_id, node, options.directory_id, cpus);
    format.ring_bytes = options.config.data.lane_ring;
    if !options.ephemeral {
        let parent = options.namespace.parent().unwrap_or(std::path::Path::new("."));
        let free = nvme_device::free_bytes(parent).map_err(system("the free space"))?;
        format.bytes_max = options.config.data.size.unwrap_or(free / 10 * 9);
    }
    let mut formatting = Formatting::new(format, &device.geometry(), arena.clone(), random)?;
    let superblock = drive(queue, clock, |_, plan, completion| match completion {
        Some(completion) => {
            formatting.on_completion(completion);
            None
        }
        None => formatting.poll(plan),
    })?;
    tracing::info!(namespace = %superblock.namespace, lanes = superblock.map.lanes, "formatted the namespace");
    Ok(())
}

/// Opens (and, where it is empty, formats) the namespace.
pub(crate) fn open_namespace(
    options: &DataplaneOptions,
    queue: &mut Queue,
    device: &Device,
    arena: &Arena,
    open: nvme_log::OpenOptions,
    cpus: u16,
    clock: Clock,
) -> Result<Opened, DataplaneError> {
    let mut random = Random::from_seed(options.seed ^ 0x6F70_656E);
    for attempt in 0..2 {
        let random = Random::from_seed(random.next_u64());
        let mut opening = Opening::new(open.clone(), &device.geometry(), arena.clone(), random);
        let opened = drive(queue, clock, |now, plan, completion| match completion {
            Some(completion) => {
                opening.on_completion(now, completion);
                None
            }
            None => opening.poll(now, plan),
        });
        match opened {
            Err(nvme_log::OpenError::NotFormatted) if options.has_run => {
                return Err(DataplaneError::Lost(options.namespace.clone()));
            }
            Err(nvme_log::OpenError::NotFormatted) if attempt == 0 => {
                let mut random = Random::from_seed(options.seed);
                format_namespace(options, queue, device, arena, cpus, clock, &mut random)?;
            }
            other => return Ok(other?),
        }
    }
    unreachable!("the second attempt ends it")
}
pub(crate) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// The boot id as a number: its hexadecimal digits. Never zero, which a tool leaves behind that changed the namespace.
pub(crate) fn boot_uuid(text: &str) -> Uuid {
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    Uuid(u128::from_str_radix(&digits, 16).unwrap_or(0).max(1))
}

/// Whether the last run may have lost something of what it reported: damage was found, a partition is suspect, or a tool
/// (which leaves no boot id) was here since, and may have given something up.
pub(crate) fn may_have_lost(report: &nvme_log::RecoveryReport) -> bool {
    let repaired = !report.first && report.previous_boot == Uuid::ZERO;
    repaired || !report.suspects.is_empty() || !report.damages.is_empty() || !report.unreadable_shards.is_empty()
}

pub(crate) fn log_durability(durability: Durability) -> nvme_log::Durability {
    match durability {
        Durability::Flush => nvme_log::Durability::Flush,
        Durability::Cache => nvme_log::Durability::Cache,
    }
}
/// Only formats; refuses a namespace that holds something.
pub fn format(options: DataplaneOptions) -> Result<(), DataplaneError> {
    let cpus = crate::cpus::lanes_wanted(&crate::cpus::cpu_plan(&options.config.node.cores)?);
    let device = open_device(&options, cpus)?;
    let mut queue = device.attach(&QueueOptions::default()).map_err(system("a queue of the device"))?;
    let arena = Arena::new(CoreId(0), Region::anonymous(STAGING_BYTES).map_err(system("memory"))?);
    let mut random = Random::from_seed(options.seed);
    format_namespace(&options, &mut queue, &device, &arena, cpus, Clock::start(), &mut random)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvme_log::RecoveryReport;

    #[test]
    fn a_repaired_namespace_may_have_lost_something() {
        let boot = boot_uuid("c0ffee00-1234-5678-9abc-def012345678\n");
        let sound = RecoveryReport { previous_boot: boot, ..RecoveryReport::default() };
        assert!(!may_have_lost(&sound));
        assert!(!may_have_lost(&RecoveryReport { first: true, previous_boot: Uuid::ZERO, ..sound.clone() }));
        assert!(may_have_lost(&RecoveryReport { previous_boot: Uuid::ZERO, ..sound.clone() }));
        let suspects = vec![(base::PartitionId::default(), base::Offset(4))];
        assert!(may_have_lost(&RecoveryReport { suspects, ..sound }));
        assert_ne!(boot_uuid(""), Uuid::ZERO, "a host without a boot id is not taken for a tool");
    }
}
