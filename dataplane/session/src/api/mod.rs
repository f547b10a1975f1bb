//! One file per API that the dataplane answers from the view alone. Each is a function from the decoded request to the
//! decoded response; the connection encodes it.

pub mod api_versions;
pub mod describe_cluster;
pub mod describe_topic_partitions;
pub mod find_coordinator;
pub mod init_producer_id;
pub mod metadata;

use base::NodeId;
use view::View;
use wire::KafkaString;

/// What an answer may depend on besides the request.
#[derive(Clone, Copy)]
pub struct Asker<'a> {
    pub view: &'a View,
    pub node: NodeId,
    pub cluster_id: &'a str,
    /// Addresses are those of the listener on which the request came (KIP-103).
    pub listener_name: &'a str,
}

/// An address as clients are told it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub node: NodeId,
    pub host: KafkaString,
    pub port: i32,
    pub rack: Option<KafkaString>,
}

impl Asker<'_> {
    /// A live broker's address on the asker's listener; `None` where it is fenced, unknown or lacks the listener.
    pub fn endpoint(&self, node: NodeId) -> Option<Endpoint> {
        self.view.broker(node).filter(|broker| !broker.fenced).and_then(|broker| self.endpoint_of(broker))
    }

    /// A broker's address on the asker's listener, fenced or not.
    pub fn endpoint_of(&self, broker: &link::ViewBroker) -> Option<Endpoint> {
        let (_, host, port, _) = broker.listeners.iter().find(|(name, ..)| name == self.listener_name)?;
        Some(Endpoint {
            node: broker.id,
            host: KafkaString::from(host.as_str()),
            port: i32::from(*port),
            rack: broker.rack.as_deref().map(KafkaString::from),
        })
    }

    /// Live brokers that have the asker's listener, in the order of their ids.
    pub fn endpoints(&self) -> impl Iterator<Item = Endpoint> {
        self.view.brokers().filter(|broker| !broker.fenced).filter_map(|broker| self.endpoint_of(broker))
    }
}

/// Operations on a resource, as the bit field that Metadata and the Describe APIs carry (KIP-430).
pub mod operations {
    /// The field's value where nobody asked for it.
    pub const NOT_ASKED: i32 = i32::MIN;
    const CREATE: i32 = 1 << 5;
    const ALTER: i32 = 1 << 7;
    const DESCRIBE: i32 = 1 << 8;
    const DESCRIBE_CONFIGS: i32 = 1 << 10;
    const ALTER_CONFIGS: i32 = 1 << 11;
    /// Everything that can be allowed on a topic: without an authorizer all of it is.
    pub const TOPIC: i32 =
        (1 << 3) | (1 << 4) | CREATE | (1 << 6) | ALTER | DESCRIBE | DESCRIBE_CONFIGS | ALTER_CONFIGS;
    /// The same of the cluster.
    pub const CLUSTER: i32 = CREATE | ALTER | DESCRIBE | (1 << 9) | DESCRIBE_CONFIGS | ALTER_CONFIGS | (1 << 12);
}

/// Kafka's rule for topic names (`Topic.validate`).
pub fn is_valid_topic_name(name: &str) -> bool {
    const NAME_LENGTH_MAX: usize = 249;
    !name.is_empty()
        && name != "."
        && name != ".."
        && name.len() <= NAME_LENGTH_MAX
        && name.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-'))
}

#[cfg(test)]
pub(crate) mod test_view {
    //! A cluster of two brokers for the tests of this folder.

    use ::view::{View, ViewBuilder};
    use base::*;
    use link::*;
    use std::sync::Arc;

    pub fn partition(index: i32, leader: Option<i32>) -> ViewPartition {
        ViewPartition {
            index: PartitionIndex(index),
            leader: leader.map(NodeId),
            leader_epoch: LeaderEpoch(4),
            partition_epoch: PartitionEpoch(0),
            replicas: vec![NodeId(1), NodeId(2)],
            isr: vec![NodeId(1)],
            eligible_leader_replicas: vec![],
            last_known_elr: vec![],
            offline: vec![],
        }
    }

    pub fn broker(id: i32, fenced: bool, listeners: &[&str]) -> ViewChange {
        ViewChange::Broker(ViewBroker {
            id: NodeId(id),
            epoch: BrokerEpoch(1),
            incarnation: Uuid(1),
            rack: None,
            fenced,
            in_controlled_shutdown: false,
            listeners: listeners.iter().map(|l| (l.to_string(), format!("h{id}"), 9092, 0)).collect(),
        })
    }

    pub fn topic(id: u128, name: &str, leaders: &[Option<i32>]) -> ViewChange {
        let partitions = leaders.iter().enumerate().map(|(i, leader)| partition(i as i32, *leader)).collect();
        ViewChange::Topic(ViewTopic { id: TopicId(Uuid(id)), name: name.into(), partitions })
    }

    pub fn view(changes: Vec<ViewChange>) -> Arc<View> {
        let provenance = Provenance { cluster_id: "c".into(), quorum_epoch: 1, metadata_offset: 9, caught_up: true };
        let mut builder = ViewBuilder::new("c".into(), View::default());
        builder.apply(ViewPart { provenance, image: true, last: true, changes }).unwrap().unwrap()
    }
}
