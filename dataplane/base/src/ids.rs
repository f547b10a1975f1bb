//! Newtypes for Kafka's ids and for ours.

use crate::Uuid;
use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(/** A data core: an index from 0, not the number of a CPU. */ CoreId(u16));
id!(/** A set of partitions owned by one core at a time (fixed count at format). */ ShardId(u16));
id!(/** A journal ring; a core writes one. */ LaneId(u16));
id!(/** A namespace of this node, in the order of its configuration: Kafka's log directory. */ NamespaceId(u16));
id!(/** Kafka's `node.id`, also called broker id. */ NodeId(i32));
id!(/** The index of a partition in its topic. */ PartitionIndex(i32));
id!(/** The epoch of a partition's leadership (KIP-101). */ LeaderEpoch(i32));
id!(/** The version of a partition's replica set, leader and ISR (KIP-497). */ PartitionEpoch(i32));
id!(/** The epoch of a broker's registration (KIP-380, KIP-631). */ BrokerEpoch(i64));
id!(/** Kafka's producer id (KIP-98). */ ProducerId(i64));
id!(/** The epoch of a producer id (KIP-98). */ ProducerEpoch(i16));
id!(/** The number of a record within one producer id and partition (KIP-98); 2^31-1 is followed by 0. */ Sequence(i32));
id!(/** The record's number in its partition. */ Offset(i64));
id!(/** A connection, numbered by its dataplane run; never reused in a run. */ ConnectionId(u64));
id!(/** One listener of the node, in the order of its configuration. */ ListenerId(u16));

/// Kafka's topic id (KIP-516).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TopicId(pub Uuid);

impl fmt::Display for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A partition by topic id: the name that the log, the journal and the handoff use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PartitionId {
    pub topic: TopicId,
    pub index: PartitionIndex,
}

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.topic, self.index)
    }
}

impl Offset {
    pub const ZERO: Offset = Offset(0);

    /// The offset `count` records further on.
    pub fn plus(self, count: u64) -> Offset {
        Offset(self.0 + i64::try_from(count).expect("a log holds fewer than 2^63 records"))
    }
}

impl Sequence {
    /// The number `by` records further on; 2^31-1 is followed by 0 (KIP-98).
    pub fn plus(self, by: u32) -> Sequence {
        Sequence(((self.0 as u32).wrapping_add(by) & 0x7FFF_FFFF) as i32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_wraps_to_zero() {
        assert_eq!(Sequence(i32::MAX).plus(1), Sequence(0));
        assert_eq!(Sequence(i32::MAX - 1).plus(3), Sequence(1));
        assert_eq!(Sequence(5).plus(0), Sequence(5));
    }
}
