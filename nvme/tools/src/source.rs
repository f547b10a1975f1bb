//! Reading blocks of a namespace that nothing else writes meanwhile.

use crate::error::ToolError;
use arena::Arena;
use base::{BLOCK_SIZE, Block, BlockRange, CoreId, Monotonic, Now, WallMillis};
use nvme_device::{Access, Device, Engine, FileOptions, Medium, OpenOptions, Queue, QueueOptions};
use nvme_plan::{Class, Completion, DeviceError, Geometry, Namespace, Operation, Request, Token};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Blocks of one read.
const READ_BLOCKS: u64 = 256;
/// Memory for reads in flight, of which there is one.
const READ_BYTES: usize = 2 * READ_BLOCKS as usize * BLOCK_SIZE;

/// Why blocks could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unread {
    #[error("blocks {from}..{to} are outside the namespace")]
    Outside { from: u64, to: u64 },
    #[error("blocks {from}..{to} cannot be read: {error}")]
    Device { from: u64, to: u64, error: DeviceError },
}

/// Something that has the blocks of a namespace.
pub trait Source {
    fn geometry(&self) -> Geometry;

    /// A range that lies within the namespace.
    fn read_blocks(&mut self, range: BlockRange) -> Result<Vec<u8>, DeviceError>;
}

/// Reads a run of blocks, however long, wherever its place was learned from.
pub(crate) fn read<S: Source + ?Sized>(source: &mut S, start: Block, blocks: u64) -> Result<Vec<u8>, Unread> {
    let (from, total) = (start.0, source.geometry().blocks);
    let to = from.checked_add(blocks).filter(|to| *to <= total && blocks > 0);
    let Some(to) = to else { return Err(Unread::Outside { from, to: from.saturating_add(blocks) }) };
    let mut bytes = Vec::new();
    let mut at = from;
    while at < to {
        let count = READ_BLOCKS.min(to - at) as u32;
        let part = source.read_blocks(BlockRange::new(Block(at), count));
        bytes.extend_from_slice(&part.map_err(|error| Unread::Device {
            from: at,
            to: at + u64::from(count),
            error,
        })?);
        at += u64::from(count);
    }
    Ok(bytes)
}

/// As `read` for bytes that start somewhere in a block.
pub(crate) fn read_bytes<S: Source + ?Sized>(
    source: &mut S,
    start: Block,
    from: u64,
    len: u64,
) -> Result<Vec<u8>, Unread> {
    const BLOCK: u64 = BLOCK_SIZE as u64;
    let first = from / BLOCK;
    let blocks = (from.saturating_add(len)).div_ceil(BLOCK) - first;
    let bytes = read(source, Block(start.0.saturating_add(first)), blocks.max(1))?;
    let at = (from - first * BLOCK) as usize;
    Ok(bytes[at..at + len as usize].to_vec())
}

/// What a real device would hold after every write that was made: tests and crash images.
impl Source for Medium {
    fn geometry(&self) -> Geometry {
        Geometry {
            blocks: self.blocks(),
            volatile_write_cache: true,
            durable_writes: true,
            trims: false,
            grows: false,
            transfer_max: READ_BLOCKS as u32,
            in_flight_max: 64,
        }
    }

    fn read_blocks(&mut self, range: BlockRange) -> Result<Vec<u8>, DeviceError> {
        Ok(Medium::read_range(self, range))
    }
}

/// Wall and monotonic time, for devices that are real.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub fn start() -> Clock {
        Clock(Instant::now())
    }

    pub fn now(&self) -> Now {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now {
            monotonic: Monotonic(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)),
            wall: WallMillis(i64::try_from(wall.as_millis()).unwrap_or(i64::MAX)),
        }
    }
}

/// A namespace in a file or on a block device, locked against a node and, where it is to be written, against everyone.
pub(crate) fn open_device(path: &Path, access: Access) -> Result<Device, ToolError> {
    let mut file = FileOptions::new(path);
    file.access = access;
    nvme_device::open(&OpenOptions::File { file, engine: Engine::Threaded }).map_err(ToolError::Open)
}

/// A namespace file that is only read, under a shared lock: no node can open it meanwhile.
pub struct FileSource {
    queue: Queue,
    arena: Arena,
    clock: Clock,
}

impl FileSource {
    pub fn open(path: &Path) -> Result<FileSource, ToolError> {
        FileSource::on(&open_device(path, Access::ReadOnly)?)
    }

    pub(crate) fn on(device: &Device) -> Result<FileSource, ToolError> {
        let queue = device.attach(&QueueOptions::default())?;
        Ok(FileSource { queue, arena: Arena::heap(CoreId(0), READ_BYTES), clock: Clock::start() })
    }

    fn carry_out(&mut self, operation: Operation) -> Completion {
        let request = Request { token: Token(0), class: Class::Background, deadline: None, operation };
        let taken = self.queue.submit(self.clock.now(), request);
        assert!(taken.is_ok(), "an idle device takes a request");
        let mut completions = Vec::with_capacity(1);
        while self.queue.poll(self.clock.now(), 1, &mut completions) == 0 {
            std::thread::sleep(Duration::from_micros(20));
        }
        completions.pop().expect("it was polled")
    }
}

impl Source for FileSource {
    fn geometry(&self) -> Geometry {
        self.queue.geometry().clone()
    }

    fn read_blocks(&mut self, range: BlockRange) -> Result<Vec<u8>, DeviceError> {
        let into = self.arena.try_allocate(range.bytes() as usize).expect("the arena holds two reads");
        let completion = self.carry_out(Operation::Read { range, into });
        completion.result?;
        match completion.operation {
            Some(Operation::Read { into, .. }) => Ok(into.to_vec()),
            _ => Err(DeviceError::TimedOut),
        }
    }
}
