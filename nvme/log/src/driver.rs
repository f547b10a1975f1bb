//! Steps of device work for formatting and opening: everything a step asks for is done before the next one runs.

use arena::Arena;
use base::{BLOCK_SIZE, Block, BlockRange, SlotToken, Slots};
use nvme_plan::{Class, Completion, DeviceError, Geometry, Operation, Plan, Promise, Request, Token};
use std::collections::VecDeque;

/// Device reads are at most this long (rule 14).
const READ_BLOCKS: u32 = 32;
const WRITE_BLOCKS: u32 = 256;
const IN_FLIGHT: usize = 16;

enum Job {
    Read { range: BlockRange, result: usize, at: usize },
    Write { range: BlockRange, bytes: Vec<u8> },
    Zero(BlockRange),
}

#[derive(Clone, Copy)]
enum Waiting {
    Read { result: usize, at: usize },
    Other,
}

pub struct Driver {
    arena: Arena,
    transfer_max: u32,
    in_flight_max: usize,
    jobs: VecDeque<Job>,
    /// Flushes run when everything before them is complete.
    flush: bool,
    waiting: Slots<Waiting>,
    results: Vec<Vec<u8>>,
    error: Option<DeviceError>,
}

impl Driver {
    pub fn new(arena: Arena, geometry: &Geometry) -> Driver {
        Driver {
            arena,
            transfer_max: geometry.transfer_max,
            in_flight_max: IN_FLIGHT.min(geometry.in_flight_max),
            jobs: VecDeque::new(),
            flush: false,
            waiting: Slots::growable(),
            results: Vec::new(),
            error: None,
        }
    }

    /// Forgets the results of the step before.
    pub fn clear(&mut self) {
        self.results.clear();
    }

    /// Reads a range; `result` gives its bytes when the step is over.
    pub fn read(&mut self, range: BlockRange) -> usize {
        let result = self.results.len();
        self.results.push(vec![0; range.bytes() as usize]);
        let step = READ_BLOCKS.min(self.transfer_max);
        let mut done = 0;
        while done < range.count {
            let count = step.min(range.count - done);
            let part = BlockRange::new(Block(range.start.0 + u64::from(done)), count);
            self.jobs.push_back(Job::Read { range: part, result, at: done as usize * BLOCK_SIZE });
            done += count;
        }
        result
    }

    pub fn result(&self, result: usize) -> &[u8] {
        &self.results[result]
    }

    pub fn write(&mut self, start: Block, bytes: Vec<u8>) {
        let step = WRITE_BLOCKS.min(self.transfer_max) as usize * BLOCK_SIZE;
        for (number, part) in bytes.chunks(step).enumerate() {
            let start = Block(start.0 + (number * step / BLOCK_SIZE) as u64);
            let range = BlockRange::new(start, (part.len() / BLOCK_SIZE) as u32);
            self.jobs.push_back(Job::Write { range, bytes: part.to_vec() });
        }
    }

    pub fn zero(&mut self, start: Block, blocks: u64) {
        let step = u64::from(WRITE_BLOCKS.min(self.transfer_max));
        let mut done = 0;
        while done < blocks {
            let count = step.min(blocks - done);
            self.jobs.push_back(Job::Zero(BlockRange::new(Block(start.0 + done), count as u32)));
            done += count;
        }
    }

    /// The step ends with a flush of all its writes.
    pub fn flush(&mut self) {
        self.flush = true;
    }

    /// Emits what may be in flight; says whether the step is over.
    pub fn poll(&mut self, plan: &mut Plan) -> Result<bool, DeviceError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        while self.waiting.len() < self.in_flight_max {
            let Some(job) = self.jobs.pop_front() else { break };
            let (waiting, operation) = match job {
                Job::Read { range, result, at } => match self.arena.try_allocate(range.bytes() as usize) {
                    Some(into) => (Waiting::Read { result, at }, Operation::Read { range, into }),
                    None => {
                        self.jobs.push_front(Job::Read { range, result, at });
                        break;
                    }
                },
                Job::Write { range, bytes } => match self.arena.copy(&bytes) {
                    Some(piece) => {
                        let pieces = vec![piece];
                        (Waiting::Other, Operation::Write { range, pieces, promise: Promise::Accepted })
                    }
                    None => {
                        self.jobs.push_front(Job::Write { range, bytes });
                        break;
                    }
                },
                Job::Zero(range) => (Waiting::Other, Operation::WriteZeroes { range }),
            };
            self.emit(plan, waiting, operation);
        }
        if self.jobs.is_empty() && self.waiting.is_empty() && std::mem::take(&mut self.flush) {
            self.emit(plan, Waiting::Other, Operation::Flush);
        }
        Ok(self.jobs.is_empty() && self.waiting.is_empty())
    }

    fn emit(&mut self, plan: &mut Plan, waiting: Waiting, operation: Operation) {
        let Ok(slot) = self.waiting.insert(waiting) else { unreachable!("the slots grow") };
        plan.push_back(Request { token: Token(slot.to_bits()), class: Class::Background, deadline: None, operation });
    }

    pub fn on_completion(&mut self, completion: Completion) {
        let Some(waiting) = self.waiting.remove(SlotToken::from_bits(completion.token.0)) else { return };
        if let Err(error) = completion.result {
            self.error.get_or_insert(error);
            return;
        }
        if let (Waiting::Read { result, at }, Some(Operation::Read { into, .. })) = (waiting, completion.operation) {
            self.results[result][at..at + into.len()].copy_from_slice(&into);
        }
    }
}
