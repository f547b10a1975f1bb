//! The keeper of a namespace, beside the store of core 0: gives slabs to shards, grows a file, and keeps in the
//! superblock what was learned about the device.

use crate::api::{KeeperReply, KeeperRequest, SlabNeed};
use crate::ring_zeroes::{ZERO_BLOCKS, pace};
use crate::superblock_update::SuperblockUpdate;
use arena::Arena;
use base::{Block, BlockRange, CoreId, Monotonic, Now, ShardId};
use nvme_format::region::{GROWTH_STEP, RegionMap};
use nvme_format::superblock::FlushMethod;
use nvme_format::{SlabId, Superblock};
use nvme_plan::{Class, Completion, DeviceError, Geometry, Operation, Plan, Request, Token};
use std::collections::VecDeque;
use std::time::Duration;

const BLOCK: u64 = base::BLOCK_SIZE as u64;
/// A file grows when less than this is left beside the reserve, so that whoever needs a slab finds one that was
/// written with zeroes.
const GROWTH_AHEAD: u64 = 128 * 1024 * 1024;
/// After a refusal of the file system it is asked again.
const GROWTH_RETRY: Duration = Duration::from_secs(10);
/// A write or flush of the superblock that takes longer has failed (rule 6).
const SUPERBLOCK_DEADLINE: Duration = Duration::from_secs(30);
/// Tell the keeper's requests from those of the store on the same queue, whose tokens name slots: none has such a number.
const GROWTH_TOKEN: Token = Token(u64::MAX);
const SUPERBLOCK_TOKEN: Token = Token(u64::MAX - 1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Growth {
    Idle,
    Growing(BlockRange),
    /// What was grown, written with zeroes up to `done`: so far it is in the pool.
    Zeroing {
        done: u64,
        until: u64,
        in_flight: bool,
        next: Monotonic,
    },
    Refused {
        at: Monotonic,
    },
}

/// Where the slabs are. It is told what happens, and asks the device for growth.
pub struct Keeper {
    map: RegionMap,
    owners: Vec<Option<ShardId>>,
    /// Slabs below this block are in the pool.
    pool: u64,
    cores: u16,
    grows: bool,
    transfer_max: u64,
    /// Rings that are yet to be written with zeroes, and share a budget with what is grown; `None` where nothing is
    /// zeroed ahead of use.
    zeroes: Option<u16>,
    growth: Growth,
    waiting: VecDeque<ShardId>,
    replies: VecDeque<(CoreId, KeeperReply)>,
    superblock: Superblock,
    update: Option<SuperblockUpdate>,
}

impl Keeper {
    pub fn new(
        superblock: Superblock,
        geometry: &Geometry,
        cores: u16,
        owned: &[(SlabId, ShardId)],
        zeroes: Option<u16>,
    ) -> Keeper {
        let map = superblock.map;
        let mut owners = vec![None; map.slabs_within(map.blocks_max.max(geometry.blocks)) as usize];
        for (slab, shard) in owned {
            owners[slab.0 as usize] = Some(*shard);
        }
        Keeper {
            map,
            owners,
            pool: geometry.blocks,
            cores,
            grows: geometry.grows,
            transfer_max: u64::from(geometry.transfer_max),
            zeroes,
            growth: Growth::Idle,
            waiting: VecDeque::new(),
            replies: VecDeque::new(),
            superblock,
            update: None,
        }
    }

    /// What the medium says now: an opening ends with it.
    pub(crate) fn set_superblock(&mut self, superblock: Superblock) {
        self.superblock = superblock;
    }

    /// Blocks that hold nothing.
    pub fn scratch(&self) -> Option<BlockRange> {
        self.map.scratch()
    }

    /// How commits reach the medium, as far as it was measured.
    pub fn flush_method(&self) -> FlushMethod {
        self.superblock.flush
    }

    /// An update of the superblock is on its way: a clean stop waits for its end, since until then the copies differ.
    pub fn is_updating(&self) -> bool {
        self.update.is_some()
    }

    /// Keeps in the superblock how commits are to reach the medium; false where that cannot begin now.
    pub fn keep_flush_method(&mut self, method: FlushMethod, arena: &Arena) -> bool {
        if self.superblock.flush == method {
            return true;
        }
        if self.is_updating() {
            return false;
        }
        let mut next = self.superblock.clone();
        next.sequence += 1;
        next.flush = method;
        let Some(update) = SuperblockUpdate::new(&next, arena) else { return false };
        (self.update, self.superblock) = (Some(update), next);
        true
    }

    /// Slabs beside the reserve below which a file grows.
    fn ahead(&self) -> usize {
        (GROWTH_AHEAD / self.map.slab_bytes()).max(1) as usize
    }

    fn reserved(&self) -> usize {
        self.map.reserved_slabs(self.pool) as usize
    }

    fn in_pool(&self) -> usize {
        (self.map.slabs_within(self.pool) as usize).min(self.owners.len())
    }

    /// Slabs that nobody owns.
    pub fn unowned(&self) -> usize {
        self.owners[..self.in_pool()].iter().filter(|owner| owner.is_none()).count()
    }

    /// Bytes of the slabs that nobody owns.
    pub fn unowned_bytes(&self) -> u64 {
        self.unowned() as u64 * self.map.slab_bytes()
    }

    /// Blocks of the namespace, as far as they may be used.
    pub(crate) fn blocks(&self) -> u64 {
        self.pool
    }

    /// Bytes of the namespace that are in use or can be given out without growth.
    pub fn pool_bytes(&self) -> u64 {
        self.pool * BLOCK
    }

    pub fn on_request(&mut self, now: Now, request: KeeperRequest) {
        match request {
            KeeperRequest::Released { slab } => self.owners[slab.0 as usize] = None,
            KeeperRequest::RingWritten => self.zeroes = self.zeroes.map(|rings| rings.saturating_sub(1)),
            KeeperRequest::Slab { shard, need } => {
                let keep = match need {
                    SlabNeed::Internal => 0,
                    SlabNeed::Data => self.reserved(),
                    SlabNeed::Ahead => self.reserved() + self.ahead().max(self.in_pool() / 4),
                };
                match self.give(shard, keep) {
                    Some(slab) => self.reply_slab(shard, slab),
                    None if need == SlabNeed::Ahead => self.reply(KeeperReply::NotNow { shard }),
                    None => self.wait_for_growth(now, shard),
                }
            }
        }
        self.serve_waiting();
    }

    fn give(&mut self, shard: ShardId, keep: usize) -> Option<SlabId> {
        if self.unowned() <= keep {
            return None;
        }
        let pool = self.in_pool();
        let free = self.owners[..pool].iter().position(Option::is_none)?;
        self.owners[free] = Some(shard);
        Some(SlabId(free as u32))
    }

    fn reply_slab(&mut self, shard: ShardId, slab: SlabId) {
        let reserve = self.unowned() < self.reserved();
        self.reply(KeeperReply::Slab { shard, slab, reserve });
    }

    fn reply(&mut self, reply: KeeperReply) {
        let (KeeperReply::Slab { shard, .. } | KeeperReply::Full { shard } | KeeperReply::NotNow { shard }) = reply;
        self.replies.push_back((CoreId(shard.0 % self.cores), reply));
    }

    /// A reply and the core it is for.
    pub fn take_reply(&mut self) -> Option<(CoreId, KeeperReply)> {
        self.replies.pop_front()
    }

    fn can_grow(&self, now: Now) -> bool {
        let rested = match self.growth {
            Growth::Refused { at } => now.monotonic.since(at) >= GROWTH_RETRY,
            _ => true,
        };
        self.grows && rested && self.pool + self.map.slab_blocks <= self.map.blocks_max
    }

    fn wait_for_growth(&mut self, now: Now, shard: ShardId) {
        let coming = matches!(self.growth, Growth::Growing(_) | Growth::Zeroing { .. });
        if coming || self.can_grow(now) {
            self.waiting.push_back(shard);
        } else {
            self.reply(KeeperReply::Full { shard });
        }
    }

    fn serve_waiting(&mut self) {
        let keep = self.reserved();
        while let Some(shard) = self.waiting.front().copied() {
            let Some(slab) = self.give(shard, keep) else { return };
            self.waiting.pop_front();
            self.reply_slab(shard, slab);
        }
    }

    /// Grows ahead of need, and writes what was grown with zeroes: a hole doubles the latency of the writes into it.
    pub fn poll(&mut self, now: Now, plan: &mut Plan) {
        if let Some(operation) = self.update.as_mut().and_then(SuperblockUpdate::next) {
            let (class, deadline) = (Class::Background, Some(now.monotonic + SUPERBLOCK_DEADLINE));
            plan.push_back(Request { token: SUPERBLOCK_TOKEN, class, deadline, operation });
        }
        match self.growth {
            Growth::Idle | Growth::Refused { .. } => {
                let short = !self.waiting.is_empty() || self.unowned() < self.reserved() + self.ahead();
                if short && self.can_grow(now) {
                    let step = (GROWTH_STEP / BLOCK).max(self.map.slab_blocks).min(self.map.blocks_max - self.pool);
                    let range = BlockRange::new(Block(self.pool), step as u32);
                    self.growth = Growth::Growing(range);
                    self.emit(plan, Operation::Grow { range });
                }
            }
            Growth::Growing(_) => {}
            Growth::Zeroing { done, until, in_flight: false, next } => {
                if done >= until || !self.waiting.is_empty() {
                    // Whoever waits takes it as it is: slower writes are better than none.
                    self.pool = until;
                    self.growth = Growth::Idle;
                    self.serve_waiting();
                } else if now.monotonic >= next {
                    let count = ZERO_BLOCKS.min(self.transfer_max).min(until - done);
                    let range = BlockRange::new(Block(done), count as u32);
                    let next = now.monotonic + pace(1 + self.zeroes.unwrap_or(0));
                    self.growth = Growth::Zeroing { done: done + count, until, in_flight: true, next };
                    self.emit(plan, Operation::WriteZeroes { range });
                }
            }
            Growth::Zeroing { .. } => {}
        }
    }

    fn emit(&mut self, plan: &mut Plan, operation: Operation) {
        plan.push_back(Request { token: GROWTH_TOKEN, class: Class::Background, deadline: None, operation });
    }

    /// Whether a completion is of one of its requests.
    pub fn owns(token: Token) -> bool {
        token == GROWTH_TOKEN || token == SUPERBLOCK_TOKEN
    }

    /// A shard waits for growth.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Something of it is on its way to the device.
    pub(crate) fn is_busy(&self) -> bool {
        self.is_updating() || matches!(self.growth, Growth::Growing(_) | Growth::Zeroing { in_flight: true, .. })
    }

    /// Takes a completion of its own. A superblock that could not be written stops the namespace (rule 6).
    pub fn on_completion(&mut self, now: Now, completion: &Completion) -> Result<(), DeviceError> {
        if completion.token == SUPERBLOCK_TOKEN {
            completion.result?;
            let done = self.update.as_mut().is_none_or(SuperblockUpdate::on_complete);
            if done {
                self.update = None;
            }
            return Ok(());
        }
        self.on_growth(now, completion);
        Ok(())
    }

    fn on_growth(&mut self, now: Now, completion: &Completion) {
        match (self.growth, completion.result) {
            (Growth::Growing(range), Ok(())) => {
                let (done, until) = (range.start.0, range.end().0);
                let done = if self.zeroes.is_some() { done } else { until };
                self.growth = Growth::Zeroing { done, until, in_flight: false, next: now.monotonic };
            }
            (Growth::Growing(_), Err(error)) => {
                debug_assert!(matches!(
                    error,
                    DeviceError::NoSpace | DeviceError::Failed(_) | DeviceError::Gone | DeviceError::TimedOut
                ));
                self.growth = Growth::Refused { at: now.monotonic };
                for shard in std::mem::take(&mut self.waiting) {
                    self.reply(KeeperReply::Full { shard });
                }
            }
            // Zeroes are only for speed: where they fail, what was grown is used as it is.
            (Growth::Zeroing { done, until, next, .. }, result) => {
                let done = if result.is_ok() { done } else { until };
                self.growth = Growth::Zeroing { done, until, in_flight: false, next };
                self.pool = self.pool.max(done);
                self.serve_waiting();
            }
            (Growth::Idle | Growth::Refused { .. }, _) => {}
        }
    }

    pub fn next_deadline(&self) -> Option<Monotonic> {
        match self.growth {
            Growth::Zeroing { in_flight: false, next, .. } => Some(next),
            _ => None,
        }
    }
}
