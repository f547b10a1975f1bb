//! What a client's step may use.

use crate::model::Model;
use crate::plane::Cluster;
use base::{Monotonic, Now, PartitionId, Random};
use net::sim::SimNetwork;
use std::time::Duration;

/// A fingerprint of everything that happened: two runs of a seed have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trace(pub u64);

impl Default for Trace {
    fn default() -> Trace {
        Trace(0xCBF2_9CE4_8422_2325)
    }
}

impl Trace {
    pub fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x100_0000_01B3);
        }
    }

    pub fn number(&mut self, number: u64) {
        self.bytes(&number.to_le_bytes());
    }
}

pub struct Context<'a> {
    pub now: Now,
    pub random: &'a mut Random,
    pub network: &'a SimNetwork,
    pub model: &'a mut Model,
    pub cluster: &'a Cluster,
    pub trace: &'a mut Trace,
    /// No new work is begun; what was begun is brought to its end.
    pub quiet: bool,
    /// Since when nothing has been going wrong.
    pub calm_since: Option<Monotonic>,
    /// Bytes that the device should hold at most.
    pub bytes_max: usize,
    /// Errors of the store are to be expected: the device fails, or is full.
    pub storage_errors: bool,
}

impl Context<'_> {
    /// Nothing went wrong for this long.
    pub fn calm_for(&self, time: Duration) -> bool {
        self.calm_since.is_some_and(|since| self.now.monotonic.since(since) > time)
    }

    /// Some partition that exists, with its topic's name.
    pub fn some_partition(&mut self) -> Option<(PartitionId, String)> {
        let all = self.cluster.partitions();
        if all.is_empty() {
            return None;
        }
        Some(all[self.random.below(all.len() as u64) as usize].clone())
    }
}
