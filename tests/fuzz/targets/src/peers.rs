//! The link between the two processes in both directions, and the view that the dataplane keeps on the medium.

use crate::memory::bounded;
use ::view::{View, ViewBuilder};
use base::{
    BrokerEpoch, ConnectionId, CoreId, LeaderEpoch, ListenerId, NodeId, Offset, PartitionEpoch, PartitionId,
    PartitionIndex, TopicId, Uuid,
};
use bytes::Bytes;
use link::*;
use std::fmt::Debug;

const FACTOR: u64 = 256;
/// A list announces its length, and room for it is taken up to 1 MiB before its elements come: lists nest four deep, and
/// a target reads twice.
const BASE: u64 = 10 << 20;

/// Feeds a stream in pieces of `piece` bytes and gives what comes out to `take`, until the stream is no longer one.
fn each_message<M>(data: &[u8], mut take: impl FnMut(M))
where
    M: serde::Serialize + serde::de::DeserializeOwned + PartialEq + Debug,
{
    let Some((piece, stream)) = data.split_first() else { return };
    let mut framer = Framer::default();
    for chunk in stream.chunks(usize::from(*piece) + 1) {
        framer.push(chunk);
        loop {
            match framer.poll_message::<M>() {
                Ok(Some(message)) => {
                    crate::depth::reached();
                    let mut again = Vec::new();
                    link::frame::encode(&message, &mut again);
                    let mut other = Framer::default();
                    other.push(&again);
                    let read = other.poll_message::<M>().expect("what was written is read");
                    assert_eq!(read.as_ref(), Some(&message));
                    take(message);
                }
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
}

/// The piece size, then a stream from the dataplane.
pub fn link_up(data: &[u8]) {
    bounded(data, FACTOR, BASE, || each_message::<Up>(data, drop));
}

/// The piece size, then a stream from the control plane; what it says of the view is applied.
pub fn link_down(data: &[u8]) {
    bounded(data, FACTOR, BASE, || {
        let mut builder = ViewBuilder::new("c".into(), View::default());
        each_message::<Down>(data, |message| {
            let Down::View(part) = message else { return };
            let placed: Vec<_> = part.changes.iter().filter_map(first_partition).collect();
            if let Ok(Some(view)) = builder.apply(*part) {
                ask_view(&view);
                ask_view(&builder.place(placed));
            }
        });
    });
}

fn first_partition(change: &ViewChange) -> Option<(PartitionId, Option<CoreId>)> {
    let ViewChange::Topic(topic) = change else { return None };
    let partition = topic.partitions.first()?;
    Some((PartitionId { topic: topic.id, index: partition.index }, Some(CoreId(0))))
}

/// All that a session asks a view.
fn ask_view(view: &View) {
    for topic in view.topics() {
        let _ = (topic.is_internal(), view.topic_by_id(topic.id), view.topic(&topic.name));
        for partition in topic.partitions.iter() {
            assert!(topic.partition(partition.index).is_some());
            let _ = view.core_of(PartitionId { topic: topic.id, index: partition.index });
        }
        let _ = view.overrides(&ConfigResource::Topic(topic.name.to_string()));
    }
    assert_eq!(view.topics().count(), view.topic_count());
    let _ = (view.brokers().count(), view.features(), view.controller(), view.metadata_offset());
}

/// What is read is written and read again as the same.
pub fn saved_view(data: &[u8]) {
    bounded(data, FACTOR, BASE, || {
        let Ok(view) = View::from_bytes(data) else { return };
        crate::depth::reached();
        ask_view(&view);
        let bytes = view.to_bytes().expect("a view that was saved has a provenance");
        let again = View::from_bytes(&bytes).expect("what was written is read");
        assert_eq!(again.provenance(), view.provenance());
        assert_eq!(again.topic_count(), view.topic_count());
        let sorted = |view: &View| {
            let mut changes: Vec<Vec<u8>> = view.to_changes().iter().map(encoded).collect();
            changes.sort();
            changes
        };
        assert_eq!(sorted(&again), sorted(&view));
    });
}

fn encoded<M: serde::Serialize>(message: &M) -> Vec<u8> {
    let mut bytes = Vec::new();
    link::frame::encode(message, &mut bytes);
    bytes
}

fn stream(piece: u8, messages: &[impl serde::Serialize]) -> Vec<u8> {
    let mut bytes = vec![piece];
    messages.iter().for_each(|message| link::frame::encode(message, &mut bytes));
    bytes
}

fn partition_id() -> PartitionId {
    PartitionId { topic: TopicId(Uuid(3)), index: PartitionIndex(1) }
}

fn provenance(offset: i64) -> Provenance {
    Provenance { cluster_id: "c".into(), quorum_epoch: 2, metadata_offset: offset, caught_up: true }
}

pub fn link_up_seeds() -> Vec<Vec<u8>> {
    let hello = UpHello {
        protocol_version: PROTOCOL_VERSION,
        software_version: "0.1.0".into(),
        cluster_id: "c".into(),
        node_id: NodeId(1),
        directories: vec![Uuid(5)],
        run_id: Uuid(6),
        boot_id: "boot".into(),
        clean_stop: true,
        damaged: false,
        durability_cache: false,
        duties_offset: Some(4),
        view_offset: None,
        listeners: vec![BoundListener {
            id: ListenerId(0),
            name: "PLAINTEXT".into(),
            advertised_host: "localhost".into(),
            advertised_port: 9092,
            security_protocol: 0,
        }],
        producer_ids_in_hand: 2000,
        cores: 2,
    };
    let held = HeldPartition {
        partition: partition_id(),
        directory: Uuid(5),
        leader_epoch: Some(LeaderEpoch(3)),
        log_start: Offset(0),
        end: Offset(9),
    };
    let forward = Forward {
        id: 7,
        connection: ConnectionId(3),
        listener: ListenerId(0),
        listener_name: "PLAINTEXT".into(),
        principal: "User:ANONYMOUS".into(),
        client_host: "/127.0.0.1".into(),
        api_key: 12,
        api_version: 4,
        correlation_id: 5,
        client_id: Some("client".into()),
        client_software_name: "x".into(),
        client_software_version: "1".into(),
        body: Bytes::from_static(b"body"),
    };
    let slice = InternalSlice {
        batches: Bytes::from_static(b"batches"),
        log_start: Offset(0),
        high_watermark: Offset(9),
        next: Offset(5),
    };
    let messages = vec![
        Up::Hello(Box::new(hello)),
        Up::Held { partitions: vec![held], last: true },
        Up::Forward(Box::new(forward)),
        Up::ConnectionClosed(ConnectionId(3)),
        Up::AutoCreate { topics: vec!["t".into()], principal: "p".into(), client_host: "h".into() },
        Up::DutiesApplied { metadata_offset: 4 },
        Up::ViewApplied { metadata_offset: 4 },
        Up::InternalAppended { id: 1, result: Ok(Offset(4)) },
        Up::InternalAppended {
            id: 1,
            result: Err(InternalAppendRefusal::Refused { error_code: 2, message: "m".into() }),
        },
        Up::InternalAppended { id: 1, result: Err(InternalAppendRefusal::Unknown) },
        Up::InternalRead { id: 2, result: Ok(slice) },
        Up::InternalRead { id: 2, result: Err(InternalReadRefusal::OutOfRange { log_start: Offset(3) }) },
        Up::ProducerIdsWanted,
        Up::ProposeIsr {
            partition: partition_id(),
            epoch: LeaderEpoch(1),
            partition_epoch: PartitionEpoch(2),
            isr: vec![NodeId(1), NodeId(2)],
        },
        Up::DirectoryFailed { directory: Uuid(5), reason: "rot".into() },
        Up::Stopped,
        Up::Pong(9),
    ];
    let mut seeds: Vec<Vec<u8>> = messages.iter().map(|message| stream(20, std::slice::from_ref(message))).collect();
    seeds.push(stream(3, &messages));
    seeds
}

fn changes() -> Vec<ViewChange> {
    let partition = |index| ViewPartition {
        index: PartitionIndex(index),
        leader: Some(NodeId(1)),
        leader_epoch: LeaderEpoch(0),
        partition_epoch: PartitionEpoch(0),
        replicas: vec![NodeId(1), NodeId(2)],
        isr: vec![NodeId(1)],
        eligible_leader_replicas: vec![NodeId(2)],
        last_known_elr: vec![],
        offline: vec![],
    };
    let broker = ViewBroker {
        id: NodeId(1),
        epoch: BrokerEpoch(1),
        incarnation: Uuid(1),
        rack: Some("r".into()),
        fenced: false,
        in_controlled_shutdown: false,
        listeners: vec![("PLAINTEXT".into(), "localhost".into(), 9092, 0)],
    };
    vec![
        ViewChange::Broker(broker),
        ViewChange::Topic(ViewTopic {
            id: TopicId(Uuid(3)),
            name: "t".into(),
            partitions: vec![partition(1), partition(0)],
        }),
        ViewChange::Topic(ViewTopic { id: TopicId(Uuid(4)), name: "__consumer_offsets".into(), partitions: vec![] }),
        ViewChange::Partitions { topic: TopicId(Uuid(3)), partitions: vec![partition(2)] },
        ViewChange::Config {
            resource: ConfigResource::Topic("t".into()),
            entries: vec![("retention.ms".into(), "5".into())],
        },
        ViewChange::Config { resource: ConfigResource::Broker(NodeId(1)), entries: vec![] },
        ViewChange::Features { epoch: 70, levels: vec![("metadata.version".into(), 33)] },
        ViewChange::Controller(Some(NodeId(1))),
        ViewChange::TopicRemoved(TopicId(Uuid(4))),
        ViewChange::BrokerRemoved(NodeId(9)),
    ]
}

pub fn link_down_seeds() -> Vec<Vec<u8>> {
    let hello = DownHello {
        protocol_version: PROTOCOL_VERSION,
        cluster_id: "c".into(),
        node_id: NodeId(1),
        incarnation: Uuid(5),
    };
    let duty = Duty {
        partition: partition_id(),
        topic_name: "t".into(),
        created_at: 4,
        leader: Some(NodeId(1)),
        leader_epoch: LeaderEpoch(0),
        partition_epoch: PartitionEpoch(0),
        replicas: vec![NodeId(1)],
        isr: vec![NodeId(1)],
        recovering: false,
        config: vec![("retention.ms".into(), "5".into())],
    };
    let duties = DutiesPart {
        provenance: provenance(9),
        image: true,
        last: true,
        duties: vec![duty],
        removals: vec![Removal { partition: partition_id(), removed_at: 8 }],
    };
    let view =
        |image, last, changes| Down::View(Box::new(ViewPart { provenance: provenance(9), image, last, changes }));
    let append = InternalAppend {
        id: 3,
        partition: partition_id(),
        expected_epoch: LeaderEpoch(3),
        batches: Bytes::from_static(b"batches"),
    };
    let read = InternalRead {
        id: 4,
        partition: partition_id(),
        expected_epoch: LeaderEpoch(3),
        offset: Offset(0),
        bytes_max: 1 << 20,
    };
    let messages = vec![
        Down::Hello(hello),
        Down::Duties(Box::new(duties)),
        view(true, true, changes()),
        view(false, false, changes()[2..].to_vec()),
        view(false, true, changes()[3..].to_vec()),
        Down::Answer { id: 7, response: Some(Bytes::from_static(b"answer")) },
        Down::Answer { id: 7, response: None },
        Down::AnswerPart { id: 7, bytes: Bytes::from_static(b"part") },
        Down::InternalAppend(append),
        Down::InternalRead(read),
        Down::ProducerIds { first: 1000, count: 1000 },
        Down::Stop,
        Down::Ping(9),
    ];
    let mut seeds: Vec<Vec<u8>> = messages.iter().map(|message| stream(20, std::slice::from_ref(message))).collect();
    seeds.push(stream(7, &messages));
    seeds
}

pub fn saved_view_seeds() -> Vec<Vec<u8>> {
    let saved = |changes: Vec<ViewChange>| {
        let mut builder = ViewBuilder::new("c".into(), View::default());
        let part = ViewPart { provenance: provenance(7), image: true, last: true, changes };
        let view = builder.apply(part).expect("a good image").expect("its last part");
        view.to_bytes().expect("an image was applied")
    };
    vec![saved(changes()), saved(changes()[..2].to_vec()), saved(Vec::new())]
}
