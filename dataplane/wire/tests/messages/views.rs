//! Views say what the owned structs say, of good bytes and of bad.

use crate::contents::{Dice, bytes};
use crate::random::schema;
use wire::messages::fetch_request::{FetchRequest, FetchRequestView};
use wire::messages::produce_request::{ProduceRequest, ProduceRequestView};
use wire::{Decoder, Message, MessageView, TextView};

fn same_produce(view: &ProduceRequestView<'_>, owned: &ProduceRequest, frame: &[u8]) {
    assert_eq!(view.transactional_id.map(TextView::lossy).as_deref(), owned.transactional_id.as_deref());
    assert_eq!((view.acks, view.timeout_ms), (owned.acks, owned.timeout_ms));
    assert_eq!(view.topic_data.len(), owned.topic_data.len());
    for (view, owned) in view.topic_data.iter().zip(&owned.topic_data) {
        assert_eq!((&*view.name.lossy(), view.topic_id), (owned.name.as_str(), owned.topic_id));
        assert_eq!(view.partition_data.len(), owned.partition_data.len());
        for (view, owned) in view.partition_data.iter().zip(&owned.partition_data) {
            assert_eq!(view.index, owned.index);
            assert_eq!(view.records.as_deref(), owned.records.as_deref());
            if let Some(records) = view.records {
                assert_eq!(&frame[records.range()], records.bytes());
            }
        }
    }
}

fn same_fetch(view: &FetchRequestView<'_>, owned: &FetchRequest) {
    assert_eq!(view.cluster_id.map(TextView::lossy).as_deref(), owned.cluster_id.as_deref());
    assert_eq!((view.replica_id, view.max_wait_ms), (owned.replica_id, owned.max_wait_ms));
    assert_eq!(view.replica_state.replica_epoch, owned.replica_state.replica_epoch);
    assert_eq!((view.min_bytes, view.max_bytes), (owned.min_bytes, owned.max_bytes));
    assert_eq!((view.isolation_level, view.session_id), (owned.isolation_level, owned.session_id));
    assert_eq!((view.session_epoch, &*view.rack_id.lossy()), (owned.session_epoch, owned.rack_id.as_str()));
    assert_eq!(view.topics.len(), owned.topics.len());
    for (view, owned) in view.topics.iter().zip(&owned.topics) {
        assert_eq!((&*view.topic.lossy(), view.topic_id), (owned.topic.as_str(), owned.topic_id));
        assert_eq!(view.partitions.len(), owned.partitions.len());
        for (view, owned) in view.partitions.iter().zip(&owned.partitions) {
            assert_eq!((view.partition, view.fetch_offset), (owned.partition, owned.fetch_offset));
            assert_eq!(view.current_leader_epoch, owned.current_leader_epoch);
            assert_eq!(view.last_fetched_epoch, owned.last_fetched_epoch);
            assert_eq!(
                (view.log_start_offset, view.partition_max_bytes),
                (owned.log_start_offset, owned.partition_max_bytes)
            );
            assert_eq!(
                (view.replica_directory_id, view.high_watermark),
                (owned.replica_directory_id, owned.high_watermark)
            );
        }
    }
    for (view, owned) in view.forgotten_topics_data.iter().zip(&owned.forgotten_topics_data) {
        assert_eq!((&*view.topic.lossy(), view.topic_id), (owned.topic.as_str(), owned.topic_id));
        assert_eq!(view.partitions.iter().collect::<Vec<i32>>(), owned.partitions);
    }
    assert_eq!(view.forgotten_topics_data.len(), owned.forgotten_topics_data.len());
}

/// Bytes of every version, whole and cut at every length: a view reads exactly where the owned struct does.
fn frames(name: &str, mut check: impl FnMut(i16, &[u8])) {
    let schema = schema();
    let message = schema.find(name).unwrap();
    let (low, high) = message.versions.range().unwrap();
    let mut dice = Dice(9);
    for version in low..=high {
        for _ in 0..40 {
            let bytes = bytes(message, version, &mut dice);
            (0..=bytes.len()).rev().step_by(3).for_each(|end| check(version, &bytes[..end]));
        }
    }
}

#[test]
fn produce_views_agree() {
    frames("ProduceRequest", |version, frame| {
        let (mut d, mut e) = (Decoder::new(frame), Decoder::new(frame));
        match (ProduceRequestView::decode_view(&mut d, version), ProduceRequest::decode(&mut e, version)) {
            (Ok(view), Ok(owned)) => same_produce(&view, &owned, frame),
            (Err(view), Err(owned)) => assert_eq!(view, owned),
            (view, owned) => panic!("version {version}: {view:?} but {owned:?}"),
        }
        assert_eq!(d.position(), e.position());
    });
}

#[test]
fn fetch_views_agree() {
    frames("FetchRequest", |version, frame| {
        let (mut d, mut e) = (Decoder::new(frame), Decoder::new(frame));
        match (FetchRequestView::decode_view(&mut d, version), FetchRequest::decode(&mut e, version)) {
            (Ok(view), Ok(owned)) => same_fetch(&view, &owned),
            (Err(view), Err(owned)) => assert_eq!(view, owned),
            (view, owned) => panic!("version {version}: {view:?} but {owned:?}"),
        }
        assert_eq!(d.position(), e.position());
    });
}
