//! Where replicas go: striped over racks, then over the brokers of a rack, with a leader that is not fenced. The order
//! starts at random and is reshuffled when every unfenced broker has led once, so that the pairs of brokers vary.
//! It draws numbers in the order in which Kafka's own placer draws them.

use crate::error::ApiError;
use base::{NodeId, Random, Uuid};
use std::collections::BTreeMap;
use wire::{ErrorCode, KafkaString};

/// What an event may leave to chance.
pub trait Choices {
    /// A number below `bound`, which is above 0.
    fn below(&mut self, bound: usize) -> usize;
    fn topic_id(&mut self) -> Uuid;
}

impl Choices for Random {
    fn below(&mut self, bound: usize) -> usize {
        Random::below(self, bound as u64) as usize
    }

    fn topic_id(&mut self) -> Uuid {
        Uuid::random(self)
    }
}

/// A broker that replicas may be put on.
#[derive(Clone, Debug)]
pub struct UsableBroker {
    pub id: NodeId,
    pub rack: Option<KafkaString>,
    pub fenced: bool,
}

/// The brokers of a rack that are fenced, or those that are not. In round `epoch` each is handed out once, starting one
/// further than in the round before.
#[derive(Default)]
struct BrokerList {
    brokers: Vec<NodeId>,
    index: usize,
    offset: usize,
    epoch: usize,
}

impl BrokerList {
    fn initialize(&mut self, choices: &mut dyn Choices) {
        if !self.brokers.is_empty() {
            self.brokers.sort_unstable();
            self.offset = choices.below(self.brokers.len());
        }
    }

    fn next(&mut self, epoch: usize) -> Option<NodeId> {
        let count = self.brokers.len();
        if count == 0 {
            return None;
        }
        if self.epoch != epoch {
            self.epoch = epoch;
            self.index = 0;
            self.offset = (self.offset + 1) % count;
        }
        if self.index >= count {
            return None;
        }
        let broker = self.brokers[(self.index + self.offset) % count];
        self.index += 1;
        Some(broker)
    }
}

#[derive(Default)]
struct Rack {
    fenced: BrokerList,
    unfenced: BrokerList,
}

struct Racks {
    racks: BTreeMap<Option<KafkaString>, Rack>,
    names: Vec<Option<KafkaString>>,
    total: usize,
    unfenced: usize,
    epoch: usize,
    offset: usize,
}

fn shuffle<T>(items: &mut [T], choices: &mut dyn Choices) {
    for size in (2..=items.len()).rev() {
        items.swap(size - 1, choices.below(size));
    }
}

impl Racks {
    fn new(brokers: &[UsableBroker], choices: &mut dyn Choices) -> Racks {
        let mut racks: BTreeMap<Option<KafkaString>, Rack> = BTreeMap::new();
        for broker in brokers {
            let rack = racks.entry(broker.rack.clone()).or_default();
            let list = if broker.fenced { &mut rack.fenced } else { &mut rack.unfenced };
            list.brokers.push(broker.id);
        }
        for rack in racks.values_mut() {
            rack.fenced.initialize(choices);
            rack.unfenced.initialize(choices);
        }
        let names: Vec<Option<KafkaString>> = racks.keys().cloned().collect();
        let unfenced = brokers.iter().filter(|broker| !broker.fenced).count();
        let offset = if names.is_empty() { 0 } else { choices.below(names.len()) };
        Racks { racks, names, total: brokers.len(), unfenced, epoch: 0, offset }
    }

    fn rack(&mut self, at: usize) -> &mut Rack {
        self.racks.get_mut(&self.names[at]).expect("every name is that of a rack")
    }

    /// The replicas of one partition. There is an unfenced broker and there are enough brokers.
    fn place(&mut self, replicas: usize, choices: &mut dyn Choices) -> Vec<NodeId> {
        if self.epoch == self.unfenced && self.unfenced > 1 {
            shuffle(&mut self.names, choices);
            for rack in self.racks.values_mut() {
                shuffle(&mut rack.fenced.brokers, choices);
                shuffle(&mut rack.unfenced.brokers, choices);
            }
            self.epoch = 0;
        }
        let (epoch, racks) = (self.epoch, self.names.len());
        if self.offset == racks {
            self.offset = 0;
        }
        let mut chosen = Vec::with_capacity(replicas);
        let mut first = self.offset;
        let leader = loop {
            if let Some(broker) = self.rack(first).unfenced.next(epoch) {
                break broker;
            }
            first = (first + 1) % racks;
        };
        chosen.push(leader);
        // The leader's rack has given its one; it is passed over the first time around.
        let (mut at, mut skip) = (self.offset, Some(first));
        while chosen.len() < replicas {
            if skip == Some(at) {
                skip = None;
            } else {
                let rack = self.rack(at);
                let broker = rack.unfenced.next(epoch).or_else(|| rack.fenced.next(epoch));
                chosen.extend(broker);
            }
            at = (at + 1) % racks;
        }
        self.epoch += 1;
        self.offset += 1;
        chosen
    }
}

/// The replicas of `partitions` new partitions, the leader first.
pub fn place(
    brokers: &[UsableBroker],
    partitions: usize,
    replicas: usize,
    choices: &mut dyn Choices,
) -> Result<Vec<Vec<NodeId>>, ApiError> {
    let refuse = |message: String| Err(ApiError::new(ErrorCode::InvalidReplicationFactor, message));
    let mut racks = Racks::new(brokers, choices);
    if replicas == 0 {
        return refuse("Invalid replication factor 0: the replication factor must be positive.".to_owned());
    }
    if racks.unfenced == 0 {
        return refuse("All brokers are currently fenced, or have all their log directories cordoned.".to_owned());
    }
    if replicas > racks.total {
        return refuse(format!(
            "The target replication factor of {replicas} cannot be reached because only {} broker(s) are registered or \
             some brokers have all their log directories cordoned.",
            racks.total
        ));
    }
    Ok((0..partitions).map(|_| racks.place(replicas, choices)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broker(id: i32, rack: &str, fenced: bool) -> UsableBroker {
        UsableBroker { id: NodeId(id), rack: (!rack.is_empty()).then(|| rack.into()), fenced }
    }

    #[test]
    fn replicas_are_distinct_spread_over_racks_and_led_by_the_unfenced() {
        let mut random = Random::from_seed(9);
        let brokers: Vec<UsableBroker> =
            (0..9).map(|id| broker(id, ["a", "b", "c"][id as usize % 3], id == 4)).collect();
        let mut leads = [0; 9];
        for placed in place(&brokers, 900, 3, &mut random).unwrap() {
            let racks: std::collections::BTreeSet<i32> = placed.iter().map(|node| node.0 % 3).collect();
            assert_eq!((placed.len(), racks.len()), (3, 3), "{placed:?}");
            leads[placed[0].0 as usize] += 1;
        }
        assert_eq!(leads[4], 0);
        assert!(leads.iter().enumerate().all(|(id, count)| id == 4 || (70..=180).contains(count)), "{leads:?}");
    }

    #[test]
    fn more_replicas_than_racks_still_differ() {
        let mut random = Random::from_seed(2);
        let brokers: Vec<UsableBroker> = (0..5).map(|id| broker(id, if id < 4 { "a" } else { "b" }, id == 0)).collect();
        for mut placed in place(&brokers, 200, 5, &mut random).unwrap() {
            assert_ne!(placed[0], NodeId(0));
            placed.sort_unstable();
            assert_eq!(placed, (0..5).map(NodeId).collect::<Vec<_>>());
        }
    }

    #[test]
    fn what_cannot_be_placed_is_refused_with_the_reason() {
        let mut random = Random::from_seed(2);
        let mut message =
            |brokers: &[UsableBroker], replicas| place(brokers, 1, replicas, &mut random).unwrap_err().message.unwrap();
        assert!(message(&[broker(1, "", true)], 1).starts_with("All brokers are currently fenced"));
        assert!(message(&[], 1).starts_with("All brokers are currently fenced"));
        assert!(message(&[broker(1, "", false)], 2).contains("only 1 broker(s) are registered"));
    }
}
