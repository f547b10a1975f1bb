//! The keeper of a namespace, beside the store of core 0: gives slabs to shards and grows a file.

use crate::api::{KeeperReply, KeeperRequest};
use base::{Block, BlockRange, CoreId, Monotonic, Now, ShardId};
use nvme_format::SlabId;
use nvme_format::region::RegionMap;
use nvme_plan::{Class, Completion, DeviceError, Geometry, Operation, Plan, Request, Token};
use std::collections::VecDeque;
use std::time::Duration;

const BLOCK: u64 = base::BLOCK_SIZE as u64;
const GROWTH_STEP: u64 = 256 * 1024 * 1024;
/// After a refusal of the file system it is asked again.
const GROWTH_RETRY: Duration = Duration::from_secs(10);
/// Zeroes written ahead of use: 1 MiB every 20 ms is 50 MB/s.
const ZERO_BLOCKS: u64 = 256;
const ZERO_EVERY: Duration = Duration::from_millis(20);
/// Tells the keeper's requests from those of the store on the same queue.
const TOKEN: u64 = 1 << 63;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Growth {
    Idle,
    Growing(BlockRange),
    /// What was grown, written with zeroes up to `done`.
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
    zero_ahead: bool,
    growth: Growth,
    waiting: VecDeque<ShardId>,
    replies: VecDeque<(CoreId, KeeperReply)>,
}

impl Keeper {
    pub fn new(
        map: RegionMap,
        geometry: &Geometry,
        cores: u16,
        owned: &[(SlabId, ShardId)],
        zero_ahead: bool,
    ) -> Keeper {
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
            zero_ahead,
            growth: Growth::Idle,
            waiting: VecDeque::new(),
            replies: VecDeque::new(),
        }
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

    /// Bytes of the namespace that are in use or can be given out without growth.
    pub fn pool_bytes(&self) -> u64 {
        self.pool * BLOCK
    }

    pub fn on_request(&mut self, now: Now, request: KeeperRequest) {
        match request {
            KeeperRequest::Released { slab } => self.owners[slab.0 as usize] = None,
            KeeperRequest::Slab { shard, internal: true } => match self.give(shard, 0) {
                Some(slab) => self.reply(KeeperReply::Slab { shard, slab }),
                None => self.wait_for_growth(now, shard),
            },
            KeeperRequest::Slab { shard, internal: false } => {
                match self.give(shard, self.map.reserved_slabs(self.pool) as usize) {
                    Some(slab) => self.reply(KeeperReply::Slab { shard, slab }),
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

    fn reply(&mut self, reply: KeeperReply) {
        let (KeeperReply::Slab { shard, .. } | KeeperReply::Full { shard }) = reply;
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
        let keep = self.map.reserved_slabs(self.pool) as usize;
        while let Some(shard) = self.waiting.front().copied() {
            let Some(slab) = self.give(shard, keep) else { return };
            self.waiting.pop_front();
            self.reply(KeeperReply::Slab { shard, slab });
        }
    }

    /// Grows ahead of need, and writes what was grown with zeroes: a hole doubles the latency of the writes into it.
    pub fn poll(&mut self, now: Now, plan: &mut Plan) {
        match self.growth {
            Growth::Idle | Growth::Refused { .. } => {
                let keep = self.map.reserved_slabs(self.pool) as usize;
                let short = !self.waiting.is_empty() || self.unowned() <= keep;
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
                    // Whoever waits takes it as it is.
                    self.pool = until;
                    self.growth = Growth::Idle;
                    self.serve_waiting();
                } else if now.monotonic >= next {
                    let count = ZERO_BLOCKS.min(until - done);
                    let range = BlockRange::new(Block(done), count as u32);
                    let next = now.monotonic + ZERO_EVERY;
                    self.growth = Growth::Zeroing { done: done + count, until, in_flight: true, next };
                    self.emit(plan, Operation::WriteZeroes { range });
                }
            }
            Growth::Zeroing { .. } => {}
        }
    }

    fn emit(&mut self, plan: &mut Plan, operation: Operation) {
        plan.push_back(Request { token: Token(TOKEN), class: Class::Background, deadline: None, operation });
    }

    /// Whether a completion is of one of its requests.
    pub fn owns(token: Token) -> bool {
        token.0 == TOKEN
    }

    pub fn on_completion(&mut self, now: Now, completion: &Completion) {
        match (self.growth, completion.result) {
            (Growth::Growing(range), Ok(())) => {
                let (done, until) = (range.start.0, range.end().0);
                let done = if self.zero_ahead { done } else { until };
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
