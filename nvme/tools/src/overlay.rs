//! A device whose writes stay in memory over a source that is only read: where an opening is rehearsed.

use crate::source::Source;
use base::{BLOCK_SIZE, BlockRange, Monotonic, Now};
use nvme_plan::{Completion, DeviceError, Geometry, Namespace, Operation, Request};
use std::collections::{HashMap, VecDeque};

/// The system's number for an argument that makes no sense, as a device would answer.
const EINVAL: u32 = 22;

pub struct Overlay<S> {
    source: S,
    geometry: Geometry,
    written: HashMap<u64, Box<[u8]>>,
    done: VecDeque<Completion>,
}

impl<S: Source> Overlay<S> {
    pub fn new(source: S) -> Overlay<S> {
        // It cannot grow: what an opening needs has to be there, as it has to on a full disk.
        let geometry = Geometry { grows: false, trims: false, ..source.geometry() };
        Overlay { source, geometry, written: HashMap::new(), done: VecDeque::new() }
    }

    /// The source, the writes being forgotten.
    pub fn into_source(self) -> S {
        self.source
    }

    fn is_inside(&self, range: &BlockRange) -> bool {
        range.count > 0 && range.end().0 <= self.geometry.blocks
    }

    fn carry_out(&mut self, operation: &mut Operation) -> Result<(), DeviceError> {
        match operation {
            Operation::Write { range, pieces, .. } => {
                let bytes: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
                if !self.is_inside(range) || bytes != range.bytes() {
                    return Err(DeviceError::Failed(EINVAL));
                }
                let blocks = pieces.iter().flat_map(|piece| piece.chunks_exact(BLOCK_SIZE));
                for (block, bytes) in (range.start.0..).zip(blocks) {
                    self.written.insert(block, bytes.into());
                }
                Ok(())
            }
            Operation::WriteZeroes { range } if self.is_inside(range) => {
                for block in range.start.0..range.end().0 {
                    self.written.insert(block, vec![0; BLOCK_SIZE].into());
                }
                Ok(())
            }
            Operation::Read { range, into } if self.is_inside(range) => {
                into.copy_from_slice(&self.read_blocks(*range)?);
                Ok(())
            }
            Operation::Flush => Ok(()),
            Operation::Trim { range } if self.is_inside(range) => Ok(()),
            Operation::Grow { .. } => Err(DeviceError::NoSpace),
            _ => Err(DeviceError::Failed(EINVAL)),
        }
    }
}

impl<S: Source> Source for Overlay<S> {
    fn geometry(&self) -> Geometry {
        self.geometry.clone()
    }

    fn read_blocks(&mut self, range: BlockRange) -> Result<Vec<u8>, DeviceError> {
        let mut bytes = self.source.read_blocks(range)?;
        for (block, chunk) in (range.start.0..).zip(bytes.chunks_exact_mut(BLOCK_SIZE)) {
            if let Some(written) = self.written.get(&block) {
                chunk.copy_from_slice(written);
            }
        }
        Ok(bytes)
    }
}

impl<S: Source> Namespace for Overlay<S> {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&mut self, _now: Now, request: Request) -> Result<(), Request> {
        if self.done.len() >= self.geometry.in_flight_max {
            return Err(request);
        }
        let Request { token, mut operation, .. } = request;
        let result = self.carry_out(&mut operation);
        self.done.push_back(Completion { token, operation: Some(operation), result });
        Ok(())
    }

    fn poll(&mut self, _now: Now, budget: usize, completions: &mut Vec<Completion>) -> usize {
        let count = budget.min(self.done.len());
        completions.extend(self.done.drain(..count));
        count
    }

    fn in_flight(&self) -> usize {
        self.done.len()
    }

    fn next_deadline(&self) -> Option<Monotonic> {
        (!self.done.is_empty()).then_some(Monotonic::ZERO)
    }
}
