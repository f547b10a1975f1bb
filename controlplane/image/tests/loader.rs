//! What may be shown when: whole batches, whole metadata transactions, and the parts that go down the link.

use base::{NodeId, PartitionIndex, TopicId, Uuid};
use image::duties::{Origin, duties_delta, duties_image, removals, view_delta, view_image};
use link::{ConfigResource, DutiesPart, IMAGE_ITEMS_MAX, ViewChange, ViewPart};
use pollux_image as image;
use pollux_image::{Batch, LoadError, Loader, Publication, Record, ReplayError};
use wire::messages::*;

struct Log {
    loader: Loader,
    next: i64,
}

impl Log {
    fn new() -> Log {
        Log { loader: Loader::default(), next: 0 }
    }

    fn append(&mut self, records: Vec<Record>) -> Result<(), LoadError> {
        let values: Vec<bytes::Bytes> = records.iter().map(Record::encode).collect();
        let batch = Batch { base_offset: self.next, epoch: 1, append_time: 7, records: &values };
        self.next += values.len() as i64;
        self.loader.load_batch(&batch)
    }

    fn publish(&mut self, records: Vec<Record>) -> Publication {
        self.append(records).unwrap();
        self.loader.poll_publication().expect("there is news")
    }
}

fn topic(id: u128, name: &str) -> Record {
    Record::v0(TopicRecord { name: name.into(), topic_id: Uuid(id), ..Default::default() })
}

fn partition(topic: u128, index: i32, replicas: &[i32]) -> Record {
    let record = PartitionRecord {
        partition_id: index,
        topic_id: Uuid(topic),
        replicas: replicas.to_vec(),
        isr: replicas.to_vec(),
        leader: replicas[0],
        leader_epoch: 0,
        partition_epoch: 0,
        directories: vec![Uuid(1); replicas.len()],
        eligible_leader_replicas: None,
        last_known_elr: None,
        ..Default::default()
    };
    Record::new(record, 2)
}

fn moved(topic: u128, index: i32, replicas: &[i32]) -> Record {
    let record = PartitionChangeRecord {
        partition_id: index,
        topic_id: Uuid(topic),
        replicas: Some(replicas.to_vec()),
        directories: Some(vec![Uuid(1); replicas.len()]),
        isr: Some(replicas.to_vec()),
        leader: replicas[0],
        ..Default::default()
    };
    Record::new(record, 2)
}

fn remove(topic: u128) -> Record {
    Record::v0(RemoveTopicRecord { topic_id: Uuid(topic), ..Default::default() })
}

fn config(kind: i8, resource: &str, name: &str, value: Option<&str>) -> Record {
    Record::v0(ConfigRecord {
        resource_type: kind,
        resource_name: resource.into(),
        name: name.into(),
        value: value.map(Into::into),
        ..Default::default()
    })
}

fn begin() -> Record {
    Record::v0(BeginTransactionRecord::default())
}

fn end() -> Record {
    Record::v0(EndTransactionRecord::default())
}

fn abort() -> Record {
    Record::v0(AbortTransactionRecord::default())
}

fn origin() -> Origin {
    Origin { cluster_id: "c".to_owned(), caught_up: true, kraft_version: 1, controller: Some(NodeId(1)) }
}

#[test]
fn a_transaction_shows_at_its_end_or_never() {
    let mut log = Log::new();
    log.append(vec![topic(10, "before"), begin(), topic(11, "inside")]).unwrap();
    let seen = log.loader.poll_publication().unwrap();
    assert_eq!(seen.image.topics.len(), 1);
    assert!(log.loader.in_transaction());
    assert_eq!(seen.image.provenance.offset, 0);
    log.append(vec![topic(12, "more"), remove(10)]).unwrap();
    assert!(log.loader.poll_publication().is_none());
    let seen = log.publish(vec![end()]);
    assert_eq!((seen.image.topics.len(), seen.delta.created_topics.len(), seen.delta.removed_topics.len()), (2, 2, 1));

    log.append(vec![begin(), remove(11), remove(12)]).unwrap();
    assert!(log.loader.poll_publication().is_none());
    let seen = log.publish(vec![abort()]);
    assert!(seen.delta.is_empty());
    assert_eq!((seen.image.topics.len(), seen.image.provenance.offset), (2, log.next - 1));
}

#[test]
fn what_cannot_follow_stops_the_loader_and_shows_nothing_of_it() {
    let mut log = Log::new();
    log.publish(vec![topic(10, "a")]);
    let cases: Vec<(Record, ReplayError)> = vec![
        (topic(11, "a"), ReplayError::DuplicateTopic("a".into())),
        (remove(99), ReplayError::UnknownTopic(TopicId(Uuid(99)))),
        (end(), ReplayError::Transaction("EndTransactionRecord")),
        (abort(), ReplayError::Transaction("AbortTransactionRecord")),
    ];
    for (record, expected) in cases {
        let image = log.loader.image().clone();
        let offset = log.next;
        assert_eq!(log.append(vec![record]), Err(LoadError::Replay { offset, error: expected }));
        assert!(log.loader.poll_publication().is_none());
        assert_eq!(*log.loader.image(), image);
    }
    let bad = Batch { base_offset: log.next, epoch: 1, append_time: 0, records: &[vec![9u8, 9, 9]] };
    assert!(matches!(log.loader.load_batch(&bad), Err(LoadError::Decode { .. })));
}

#[test]
fn security_records_are_kept_whole() {
    let mut log = Log::new();
    let token = DelegationTokenRecord { token_id: "t".into(), owner: "User:a".into(), ..Default::default() };
    let acl = AccessControlEntryRecord { id: Uuid(5), principal: "User:a".into(), ..Default::default() };
    let scram = UserScramCredentialRecord { name: "a".into(), mechanism: 1, iterations: 4096, ..Default::default() };
    let image = log.publish(vec![Record::v0(token), Record::v0(acl), Record::v0(scram)]).image;
    assert_eq!((image.tokens.len(), image.acls.len(), image.scram.len(), image.records().count()), (1, 1, 1, 3));
    let gone = log.publish(vec![
        Record::v0(RemoveDelegationTokenRecord { token_id: "t".into(), ..Default::default() }),
        Record::v0(RemoveAccessControlEntryRecord { id: Uuid(5), ..Default::default() }),
        Record::v0(RemoveUserScramCredentialRecord { name: "a".into(), mechanism: 1, ..Default::default() }),
    ]);
    assert_eq!(gone.image.records().count(), 0);
    assert_eq!((gone.delta.tokens.len(), gone.delta.acls.len(), gone.delta.scram.len()), (1, 1, 1));
}

/// Parts are well-formed: only the last says so, none is too large; and their contents as one.
fn whole(parts: impl Iterator<Item = DutiesPart>) -> Option<DutiesPart> {
    let parts: Vec<DutiesPart> = parts.collect();
    let mut whole = parts.first()?.clone();
    for (at, part) in parts.iter().enumerate() {
        assert_eq!(part.last, at + 1 == parts.len());
        assert!(part.duties.len() + part.removals.len() <= IMAGE_ITEMS_MAX);
        let mut encoded = Vec::new();
        link::frame::encode(part, &mut encoded);
    }
    for part in parts.into_iter().skip(1) {
        whole.duties.extend(part.duties);
        whole.removals.extend(part.removals);
    }
    Some(whole)
}

#[test]
fn a_node_is_told_its_partitions_and_what_becomes_of_them() {
    let mut log = Log::new();
    let mut records = vec![topic(10, "a"), config(2, "a", "retention.ms", Some("5")), topic(20, "b")];
    records.extend((0..2500).map(|index| partition(10, index, if index % 5 == 0 { &[2] } else { &[1, 2] })));
    records.push(partition(20, 0, &[2]));
    let first = log.publish(records);
    let all = whole(duties_image(&first.image, NodeId(1), &origin())).unwrap();
    assert!(all.image && all.provenance.metadata_offset == 2503 && all.provenance.quorum_epoch == 1);
    assert_eq!((all.duties.len(), all.removals.len()), (2000, 0));
    let duty = &all.duties[0];
    assert_eq!((duty.partition.index, duty.created_at, duty.leader), (PartitionIndex(1), 4, Some(NodeId(1))));
    assert_eq!(duty.config, [("retention.ms".to_owned(), "5".to_owned())]);
    assert_eq!(whole(duties_delta(&first, NodeId(1), &origin())).unwrap().duties.len(), 2000);
    let none = whole(duties_image(&first.image, NodeId(9), &origin())).unwrap();
    assert!(none.duties.is_empty() && none.last);

    // Away from one node, to another; nothing for who is not concerned.
    let next = log.publish(vec![moved(10, 1, &[2, 3])]);
    let away = whole(duties_delta(&next, NodeId(1), &origin())).unwrap();
    assert_eq!((away.duties.len(), away.removals.len(), away.removals[0].removed_at), (0, 1, log.next - 1));
    assert_eq!(whole(duties_delta(&next, NodeId(3), &origin())).unwrap().duties.len(), 1);
    assert!(whole(duties_delta(&next, NodeId(9), &origin())).is_none());

    // Overrides of a topic reach every partition of it.
    let next = log.publish(vec![config(2, "a", "retention.ms", None)]);
    let told = whole(duties_delta(&next, NodeId(1), &origin())).unwrap();
    assert!(told.duties.len() == 1999 && told.duties.iter().all(|duty| duty.config.is_empty()));

    // A topic that goes, and one that comes and goes unseen.
    let next = log.publish(vec![topic(30, "c"), partition(30, 0, &[1]), remove(30), remove(10)]);
    let gone = whole(duties_delta(&next, NodeId(1), &origin())).unwrap();
    assert_eq!((gone.duties.len(), gone.removals.len()), (0, 1999));
    assert!(gone.removals.iter().all(|removal| removal.removed_at == log.next - 1));
    // A dataplane that was away is told from what the loader kept.
    let missed: Vec<_> = log.loader.removed_since(log.next - 3).collect();
    assert_eq!(missed.iter().map(|removed| removals(removed, NodeId(1)).count()).sum::<usize>(), 2000);
}

fn changes(parts: impl Iterator<Item = ViewPart>) -> Vec<ViewChange> {
    let parts: Vec<ViewPart> = parts.collect();
    for (at, part) in parts.iter().enumerate() {
        assert_eq!(part.last, at + 1 == parts.len());
        let mut encoded = Vec::new();
        link::frame::encode(part, &mut encoded);
    }
    parts.into_iter().flat_map(|part| part.changes).collect()
}

fn register(id: i32, directories: Vec<Uuid>) -> Record {
    let record = RegisterBrokerRecord {
        broker_id: id,
        broker_epoch: 3,
        log_dirs: directories,
        rack: None,
        cordoned_log_dirs: None,
        ..Default::default()
    };
    Record::new(record, 4)
}

#[test]
fn clients_are_told_what_changed_and_nothing_else() {
    let mut log = Log::new();
    let mut records = vec![register(1, vec![Uuid(500)]), register(2, vec![Uuid(600)]), topic(10, "a")];
    records.extend((0..2500).map(|index| partition(10, index, &[1, 2])));
    records.push(config(4, "", "message.max.bytes", Some("7")));
    let first = log.publish(records);
    let all = changes(view_image(&first.image, &origin()));
    let partitions = |change: &ViewChange| match change {
        ViewChange::Topic(topic) => topic.partitions.len(),
        ViewChange::Partitions { partitions, .. } => partitions.len(),
        _ => 0,
    };
    let counts: Vec<usize> = all.iter().map(partitions).collect();
    let (parts, last) = (&counts[4..counts.len() - 2], counts[counts.len() - 2]);
    assert_eq!(counts[..4], [0; 4]);
    assert!(parts.iter().all(|count| *count == IMAGE_ITEMS_MAX), "{counts:?}");
    assert!(last > 0 && parts.len() * IMAGE_ITEMS_MAX + last == 2500, "{counts:?}");
    assert!(matches!(&all[0], ViewChange::Features { levels, .. } if levels == &[("kraft.version".to_owned(), 1)]));
    assert!(
        matches!(all.last(), Some(ViewChange::Config { resource: ConfigResource::BrokerDefault, entries }) if entries.len() == 1)
    );

    // The broker goes: its replicas are offline, which only partitions say.
    let unregister = UnregisterBrokerRecord { broker_id: 2, broker_epoch: 3, ..Default::default() };
    let next = log.publish(vec![Record::v0(unregister)]);
    let told = changes(view_delta(&next, &origin()));
    assert_eq!(told[0], ViewChange::BrokerRemoved(NodeId(2)));
    assert_eq!(told.iter().map(partitions).sum::<usize>(), 2500);
    let offline = |change: &ViewChange| match change {
        ViewChange::Partitions { partitions, .. } => partitions.iter().all(|p| p.offline == [NodeId(2)]),
        _ => true,
    };
    assert!(told.iter().all(offline));

    let next = log.publish(vec![Record::v0(NoOpRecord::default())]);
    assert_eq!(changes(view_delta(&next, &origin())), []);
    let next = log.publish(vec![moved(10, 7, &[1]), remove(10), topic(11, "a"), partition(11, 0, &[1])]);
    let told = changes(view_delta(&next, &origin()));
    assert_eq!(told[0], ViewChange::TopicRemoved(TopicId(Uuid(10))));
    assert!(
        matches!(&told[1], ViewChange::Topic(topic) if topic.id == TopicId(Uuid(11)) && topic.partitions.len() == 1)
    );
    assert_eq!(told.len(), 2);
}
