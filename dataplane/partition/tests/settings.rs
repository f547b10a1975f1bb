//! What a topic's settings change in what is taken and stored, where no other test shows it.

mod common;

use base::*;
use batch::{BatchView, Codec};
use common::*;
use handoff::*;
use nvme_log::StoreOptions;
use std::time::Duration;

const P: fn(u128) -> PartitionId = partition;

/// A batch as text packs: neither noise nor one byte repeated.
fn text(records: usize) -> Vec<u8> {
    let mut random = Random::from_seed(5);
    let mut builder = batch::BatchBuilder::new();
    for number in 0..records {
        let words: Vec<String> = (0..40).map(|_| format!("word{}", random.below(500))).collect();
        builder.append(WallMillis(START.wall.0 + number as i64), None, Some(words.join(" ").as_bytes()), &[]);
    }
    builder.build()
}

#[test]
fn a_topics_codec_packs_at_the_topics_level() {
    let mut node = Node::new(64, 21);
    let mut stored = |number, config: &[(&str, &str)], codec| {
        node.lead(P(number), 0, config);
        node.produce(Acks::All, P(number), text(100)).expect("appended");
        let bytes = node.consume(P(number), 0, 1 << 20);
        assert_eq!(BatchView::parse(&bytes).expect("a batch").0.codec(), Ok(codec));
        bytes.len()
    };
    let gzip = ["1", "9"].map(|level| [("compression.type", "gzip"), ("compression.gzip.level", level)]);
    assert!(stored(1, &gzip[0], Codec::Gzip) > stored(2, &gzip[1], Codec::Gzip));
    let zstd = ["1", "19"].map(|level| [("compression.type", "zstd"), ("compression.zstd.level", level)]);
    assert!(stored(3, &zstd[0], Codec::Zstd) > stored(4, &zstd[1], Codec::Zstd));
}

#[test]
fn a_record_may_inflate_to_as_much_as_is_set() {
    let mut node = Node::new(64, 22);
    for (number, most) in [(1, "4000"), (2, "6000")] {
        node.lead(P(number), 0, &[("max.decompressed.message.bytes", most)]);
        let bomb = builder(3, 5000, START.wall.0).compression(Codec::Zstd.into()).build();
        let result = node.produce(Acks::All, P(number), bomb);
        assert_eq!(result.is_ok(), number == 2, "{result:?}");
    }
}

#[test]
fn times_before_the_window_are_refused_too() {
    let mut node = Node::new(64, 23);
    node.lead(P(1), 0, &[("message.timestamp.before.max.ms", "1000")]);
    let old = builder(1, 10, START.wall.0 - 5_000).build();
    assert!(matches!(node.produce(Acks::All, P(1), old), Err(ProduceError::InvalidTimestamp { .. })));
    assert!(node.produce(Acks::All, P(1), batch(1, 10)).is_ok());
}

/// The start of a log whose topic sets nothing, an old and a new record in segments of their own.
fn start_under(settings: &[(&str, &str)]) -> i64 {
    let (disk, mut now) = (new_disk(64, 24), START);
    format(&disk, &mut now);
    let options = StoreOptions { retention_interval: Duration::from_secs(1), ..store_options() };
    let mut node = Node::open(&disk, 24, now, &broker(settings), options);
    node.lead(P(1), 0, &[]);
    node.produce(Acks::All, P(1), builder(1, 1000, node.now.wall.0 - 7_200_000).build()).expect("an old one");
    node.produce(Acks::All, P(1), builder(1, 1000, node.now.wall.0).build()).expect("a new one");
    for _ in 0..10 {
        node.pass(Duration::from_secs(1));
    }
    let log = node.store.find(P(1)).expect("it is there");
    node.store.log_start(log).0
}

#[test]
fn a_topic_that_sets_nothing_is_kept_as_long_as_the_broker_says() {
    let roll = ("log.roll.ms", "60000");
    assert_eq!(start_under(&[roll]), 0, "a week");
    for age in [("log.retention.hours", "1"), ("log.retention.minutes", "60"), ("log.retention.ms", "3600000")] {
        assert_eq!(start_under(&[roll, age]), 1, "{age:?}");
        assert_eq!(start_under(&[roll, age, ("log.cleanup.policy", "compact")]), 0, "{age:?}");
    }
    assert_eq!(start_under(&[("log.retention.ms", "3600000")]), 0, "the old record shares a segment with the new one");
    assert_eq!(start_under(&[("log.roll.hours", "1"), ("log.retention.ms", "3600000")]), 1);
    assert_eq!(start_under(&[roll, ("log.retention.bytes", "1000")]), 1);
}
