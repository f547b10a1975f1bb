//! The metadata log, a snapshot and the bootstrap snapshot that a node of Apache Kafka 4.4 wrote: the log up to the
//! snapshot's end adds up to what the snapshot says, and what we would write in its place says the same.

use pollux_image::{Batch, Loader, MetadataDelta, MetadataImage, MetadataVersion, Provenance, Record};
use std::path::PathBuf;
use wire::MetadataRecordKind;

struct Stored {
    base_offset: i64,
    epoch: i32,
    append_time: i64,
    control: bool,
    values: Vec<Vec<u8>>,
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count);
        self.0 = rest;
        taken
    }

    fn number(&mut self, bytes: usize) -> i64 {
        let taken = self.take(bytes);
        let first = if taken[0] & 0x80 != 0 { -1i64 } else { 0 };
        taken.iter().fold(first, |n, byte| (n << 8) | i64::from(*byte))
    }

    fn varint(&mut self) -> i64 {
        let (mut value, mut shift) = (0u64, 0);
        loop {
            let byte = self.take(1)[0];
            value |= u64::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                return (value >> 1) as i64 ^ -((value & 1) as i64);
            }
            shift += 7;
        }
    }
}

/// Record batches as Kafka's files hold them.
fn batches(name: &str) -> Vec<Stored> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/metadata/apache").join(name);
    let bytes = std::fs::read(path).expect("the golden file is there");
    let mut file = Reader(&bytes);
    let mut batches = Vec::new();
    while file.0.len() > 61 {
        let base_offset = file.number(8);
        let length = file.number(4) as usize;
        let mut r = Reader(file.take(length));
        let epoch = r.number(4) as i32;
        assert_eq!(r.number(1), 2, "a batch of version 2");
        r.take(4);
        let attributes = r.number(2);
        r.take(12);
        let append_time = r.number(8);
        r.take(14);
        let count = r.number(4);
        let value = |_| {
            let length = r.varint() as usize;
            let mut record = Reader(r.take(length));
            record.take(1);
            record.varint();
            record.varint();
            let key = record.varint().max(0) as usize;
            record.take(key);
            let value = record.varint().max(0) as usize;
            record.take(value).to_vec()
        };
        let values = (0..count).map(value).collect();
        batches.push(Stored { base_offset, epoch, append_time, control: attributes & 0x20 != 0, values });
    }
    batches
}

fn data_records(name: &str) -> Vec<Vec<u8>> {
    batches(name).into_iter().filter(|batch| !batch.control).flat_map(|batch| batch.values).collect()
}

fn load(loader: &mut Loader, batches: &[Stored], end: i64) {
    for batch in batches.iter().filter(|batch| batch.base_offset < end) {
        let provenance = Provenance {
            offset: batch.base_offset + batch.values.len() as i64 - 1,
            epoch: batch.epoch,
            append_time: batch.append_time,
        };
        if batch.control {
            loader.skip_to(provenance);
            continue;
        }
        let batch = Batch {
            base_offset: batch.base_offset,
            epoch: batch.epoch,
            append_time: batch.append_time,
            records: &batch.values,
        };
        loader.load_batch(&batch).expect("Apache's log is read");
    }
}

const LOG: &str = "00000000000000000000.log";
const SNAPSHOT: &str = "00000000000000000076-0000000001.checkpoint";
const SNAPSHOT_END: i64 = 76;

/// Kafka writes these two lists in the order of a hash table.
fn in_one_order(mut record: Record) -> Record {
    match &mut record.kind {
        MetadataRecordKind::RegisterBroker(r) => {
            r.features.sort_by_key(|f| f.name.clone());
            r.end_points.sort_by_key(|e| e.name.clone());
        }
        MetadataRecordKind::RegisterController(r) => {
            r.features.sort_by_key(|f| f.name.clone());
            r.end_points.sort_by_key(|e| e.name.clone());
        }
        MetadataRecordKind::ClientQuota(r) => r.entity.sort_by_key(|e| e.entity_type.clone()),
        _ => {}
    }
    record
}

#[test]
fn every_record_of_the_log_is_read_and_written_byte_for_byte() {
    for name in [LOG, SNAPSHOT, "00000000000000000000-0000000000.checkpoint"] {
        for value in data_records(name) {
            let record = Record::decode(&value).unwrap();
            assert_eq!(record.encode(), value, "{record:?}");
        }
    }
}

#[test]
fn the_log_adds_up_to_the_snapshot_and_our_snapshot_says_the_same() {
    let mut from_log = Loader::default();
    load(&mut from_log, &batches(LOG), SNAPSHOT_END);
    let from_log = from_log.poll_publication().expect("there is something to see").image;
    let mut loader = Loader::default();
    let provenance = Provenance { offset: SNAPSHOT_END - 1, epoch: 1, append_time: 0 };
    loader.load_snapshot(provenance, data_records(SNAPSHOT)).unwrap();
    let from_snapshot = loader.poll_publication().expect("there is something to see").image;
    assert!(from_snapshot.says_the_same(&from_log));

    // All of it is there: none of the kinds that this node was made to write is missing.
    assert_eq!(from_log.features.metadata_version, Some(MetadataVersion::LATEST));
    let sizes = (from_log.topics.len(), from_log.acls.len(), from_log.scram.len(), from_log.quotas.len());
    assert_eq!(sizes, (3, 1, 1, 2));
    assert_eq!((from_log.configs.len(), from_log.next_producer_id), (5, Some(1000)));

    let sorted = |records: Vec<Record>| {
        let mut bytes: Vec<Vec<u8>> = records.into_iter().map(|r| in_one_order(r).encode().to_vec()).collect();
        bytes.sort();
        bytes
    };
    let theirs = data_records(SNAPSHOT).iter().map(|value| Record::decode(value).unwrap()).collect();
    assert_eq!(sorted(from_log.records().collect()), sorted(theirs));
}

#[test]
fn an_image_written_and_read_is_the_image() {
    let mut loader = Loader::default();
    load(&mut loader, &batches(LOG), i64::MAX);
    let image = loader.poll_publication().unwrap().image;
    let mut again = MetadataImage::default();
    for record in image.records() {
        again.replay(&record.kind, image.provenance.offset, &mut MetadataDelta::default()).unwrap();
    }
    assert!(again.says_the_same(&image));
    assert!(MetadataDelta::between(&image, &again).is_empty());
}

#[test]
fn a_snapshot_over_an_older_image_tells_what_went() {
    let mut loader = Loader::default();
    let all = batches(LOG);
    // Far enough that the topic "gone" is there.
    let created = all.iter().filter(|batch| !batch.control).find(|batch| {
        let named = |value: &Vec<u8>| matches!(Record::decode(value).unwrap().kind, MetadataRecordKind::Topic(t) if t.name == "gone");
        batch.values.iter().any(named)
    });
    load(&mut loader, &all, created.expect("it was created").base_offset + 1);
    assert!(loader.poll_publication().unwrap().image.topics.id("gone").is_some());
    let provenance = Provenance { offset: SNAPSHOT_END - 1, epoch: 1, append_time: 0 };
    loader.load_snapshot(provenance, data_records(SNAPSHOT)).unwrap();
    let publication = loader.poll_publication().unwrap();
    let removed: Vec<&str> = publication.delta.removed_topics.iter().map(|r| r.topic.name.as_str()).collect();
    assert_eq!(removed, ["gone"]);
    assert!(publication.delta.created_topics.keys().all(|id| publication.before.topics.get(*id).is_none()));
    assert_eq!(loader.removed_since(0).count(), 1);
    loader.forget_removed_until(SNAPSHOT_END);
    assert_eq!(loader.removed_since(0).count(), 0);
}
