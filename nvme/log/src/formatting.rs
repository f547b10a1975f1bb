//! Formatting: roots zeroed, then the superblock's four copies. Something that is not empty is never formatted over.

use crate::driver::Driver;
use arena::Arena;
use base::{Block, BlockRange, NodeId, Random, Uuid};
use nvme_format::region::{Plan as RegionPlan, RING_DEFAULT, RegionError, RegionMap, superblock_candidates};
use nvme_format::superblock::{CLUSTER_ID_MAX, FlushMethod, Generation, Reading, Superblock, read};
use nvme_plan::{Completion, DeviceError, Geometry, Plan};

#[derive(Clone, Debug)]
pub struct FormatOptions {
    pub cluster: String,
    pub node: NodeId,
    /// Kafka's directory id of this namespace.
    pub directory: Uuid,
    pub cpus: u16,
    /// Bytes that the namespace may have in the end, where it is a file that grows.
    pub bytes_max: u64,
    pub ring_bytes: u64,
}

impl FormatOptions {
    pub fn new(cluster: &str, node: NodeId, directory: Uuid, cpus: u16) -> FormatOptions {
        FormatOptions { cluster: cluster.to_owned(), node, directory, cpus, bytes_max: 0, ring_bytes: RING_DEFAULT }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    #[error(transparent)]
    Region(#[from] RegionError),
    #[error("the cluster id is longer than {CLUSTER_ID_MAX} bytes")]
    ClusterId,
    #[error("the namespace is formatted already")]
    Formatted,
    #[error("the namespace holds something that is not an intact superblock; it is not formatted over")]
    NotEmpty,
    #[error("{0}")]
    Device(DeviceError),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Look,
    Decide,
    Roots,
    FirstPair,
    SecondPair,
    Done,
}

pub struct Formatting {
    driver: Driver,
    step: Step,
    superblock: Superblock,
    looked_at: Vec<[usize; 4]>,
    blocks: u64,
}

impl Formatting {
    pub fn new(
        options: FormatOptions,
        geometry: &Geometry,
        arena: Arena,
        random: &mut Random,
    ) -> Result<Formatting, FormatError> {
        if options.cluster.len() > CLUSTER_ID_MAX {
            return Err(FormatError::ClusterId);
        }
        let map = RegionMap::compute(RegionPlan {
            blocks: geometry.blocks,
            blocks_max: if geometry.grows { options.bytes_max / base::BLOCK_SIZE as u64 } else { 0 },
            cpus: options.cpus.max(1),
            ring_bytes: options.ring_bytes,
        })?;
        let superblock = Superblock {
            sequence: 1,
            namespace: Uuid::random(random),
            directory: options.directory,
            cluster: options.cluster,
            node: options.node,
            map,
            blocks: geometry.blocks,
            generation: Generation::default(),
            first_sequence: 1,
            cores: 0,
            boot: Uuid::ZERO,
            flush: FlushMethod::Unknown,
            lanes_written: 0,
        };
        let driver = Driver::new(arena, geometry);
        let blocks = geometry.blocks;
        Ok(Formatting { driver, step: Step::Look, superblock, looked_at: Vec::new(), blocks })
    }

    /// Goes on as far as it can; gives the superblock when all is on the medium.
    pub fn poll(&mut self, plan: &mut Plan) -> Option<Result<Superblock, FormatError>> {
        loop {
            match self.driver.poll(plan) {
                Err(error) => return Some(Err(FormatError::Device(error))),
                Ok(false) => return None,
                Ok(true) => {}
            }
            if let Err(error) = self.advance() {
                return Some(Err(error));
            }
            if self.step == Step::Done {
                return Some(Ok(self.superblock.clone()));
            }
        }
    }

    pub fn on_completion(&mut self, completion: Completion) {
        self.driver.on_completion(completion);
    }

    fn advance(&mut self) -> Result<(), FormatError> {
        self.step = match self.step {
            Step::Look => {
                for copies in superblock_candidates(self.blocks) {
                    self.looked_at.push(copies.map(|block| self.driver.read(BlockRange::new(block, 1))));
                }
                Step::Decide
            }
            Step::Decide => {
                for copies in &self.looked_at {
                    match read(copies.map(|copy| self.driver.result(copy))) {
                        Reading::Empty => {}
                        Reading::Present { .. } => return Err(FormatError::Formatted),
                        Reading::Unreadable => return Err(FormatError::NotEmpty),
                    }
                }
                let map = &self.superblock.map;
                self.driver.zero(map.roots, u64::from(map.shards) * 2);
                self.driver.flush();
                Step::Roots
            }
            Step::Roots => {
                self.write_pair(0);
                Step::FirstPair
            }
            Step::FirstPair => {
                self.write_pair(2);
                Step::SecondPair
            }
            Step::SecondPair | Step::Done => Step::Done,
        };
        Ok(())
    }

    fn write_pair(&mut self, first: usize) {
        let copies = self.superblock.map.superblock_copies();
        for copy in [first, first + 1] {
            self.driver.write(Block(copies[copy].0), self.superblock.encode(copy));
        }
        self.driver.flush();
    }
}
