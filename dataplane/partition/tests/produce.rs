//! Produce against a real store: order of the checks, acknowledgement, idempotence, stamping, recompression.

mod common;

use base::*;
use batch::{BatchView, Codec, TimestampType};
use common::*;
use handoff::*;
use pollux_partition::Duty;

const P: fn(u128) -> PartitionId = partition;

#[test]
fn what_is_acknowledged_is_durable_and_read_back() {
    let mut node = Node::new(64, 1);
    node.lead(P(1), 0, &[]);
    let mut expected = Vec::new();
    for (number, acks) in [Acks::Leader, Acks::All, Acks::None].into_iter().cycle().take(30).enumerate() {
        let bytes = batch(1 + number % 4, 50 + 700 * number);
        let before = node.store.end_offset(node.store.find(P(1)).expect("it is there"));
        let gather = node.produce_async(acks, P(1), bytes.clone());
        let answered = node.outcomes.iter().any(|outcome| matches!(outcome, Outcome::Produced { .. }));
        assert_eq!(answered, acks == Acks::None, "nothing is acknowledged before it is durable");
        let produced = node.produced(gather).remove(0);
        let log = node.store.find(P(1)).expect("it is there");
        let appended = produced.result.expect("it is appended");
        assert_eq!((appended.base_offset, appended.append_time), (before, None));
        if acks != Acks::None {
            assert!(node.store.durable_offset(log) >= node.store.end_offset(log));
        }
        expected.extend(stamped(&bytes, before.0, 0));
    }
    node.turns(20);
    assert_eq!(node.consume(P(1), 0, 100_000), expected);
    assert_eq!(node.consume(P(1), 0, 1), expected);
    assert_eq!(node.partitions.pending(), 0);
}

#[test]
fn refusals_come_in_order_and_change_nothing() {
    let mut node = Node::new(64, 2);
    node.lead(P(1), 3, &[("max.message.bytes", "5000"), ("min.insync.replicas", "2")]);
    node.lead(P(2), 0, &[("cleanup.policy", "compact")]);
    node.apply(Duty { leader: Some(NodeId(2)), ..duty(P(3), 1, &[]) }).expect("it follows");
    node.apply(Duty { replicas: vec![NODE, NodeId(2), NodeId(3)], ..duty(P(4), 1, &[("min.insync.replicas", "2")]) })
        .expect("it leads");
    let unknown = ProduceError::Partition(PartitionError::Unknown);
    assert_eq!(node.produce(Acks::All, P(9), batch(1, 10)), Err(unknown));
    let not_leader = ProduceError::Partition(PartitionError::NotLeader);
    assert_eq!(node.produce(Acks::All, P(3), vec![1, 2, 3]), Err(not_leader));
    assert_eq!(node.produce(Acks::All, P(4), vec![1, 2, 3]), Err(ProduceError::NotEnoughReplicas));
    assert!(node.produce(Acks::Leader, P(4), batch(1, 1)).is_ok(), "only acks=all asks for the ISR");
    assert!(node.produce(Acks::All, P(1), batch(1, 10)).is_ok(), "there are no more replicas than one");
    let mut broken = batch(2, 30);
    *broken.last_mut().expect("a byte") ^= 1;
    let mut two = batch(1, 10);
    two.extend(batch(1, 10));
    let mut compacted = batch::BatchBuilder::new();
    compacted.append(WallMillis(START.wall.0), None, Some(b"v"), &[]);
    compacted.append(WallMillis(START.wall.0), Some(b"k"), Some(b"v"), &[]);
    let command = node.produce_command(
        Acks::All,
        vec![
            (P(1), Some(broken)),
            (P(1), Some(two)),
            (P(1), Some(batch(10, 600))),
            (P(2), Some(compacted.build())),
            (P(1), None),
            (P(1), Some(batch(2, 5))),
        ],
    );
    let gather = command.gather;
    node.send(Command::Produce(command));
    let answers: Vec<_> = node.produced(gather).into_iter().map(|produced| produced.result).collect();
    assert!(matches!(answers[0], Err(ProduceError::Corrupt(_))), "{answers:?}");
    assert!(matches!(answers[1], Err(ProduceError::Unfit(Unfit::NotOneBatch(_)))));
    assert!(matches!(answers[2], Err(ProduceError::TooLarge(_))));
    let Err(ProduceError::InvalidRecord { records, .. }) = &answers[3] else { panic!("{answers:?}") };
    assert_eq!(records.iter().map(|record| record.index).collect::<Vec<_>>(), [0]);
    assert!(matches!(answers[4], Err(ProduceError::Unfit(Unfit::NotOneBatch(_)))));
    assert_eq!(answers[5].as_ref().map(|appended| appended.base_offset), Ok(Offset(1)), "refusals use no offset");
}

#[test]
fn zstd_needs_version_seven_and_times_a_window() {
    let mut node = Node::new(64, 3);
    node.lead(P(1), 0, &[("message.timestamp.after.max.ms", "1000")]);
    let zstd = builder(3, 100, START.wall.0).compression(Codec::Zstd.into()).build();
    let mut command = node.produce_command(Acks::All, vec![(P(1), Some(zstd))]);
    command.version = 6;
    let gather = command.gather;
    node.send(Command::Produce(command));
    assert!(matches!(node.produced(gather)[0].result, Err(ProduceError::Unfit(Unfit::Zstd(_)))));
    let future = builder(3, 10, START.wall.0 + 1_000_000).build();
    let Err(ProduceError::InvalidTimestamp { records, .. }) = node.produce(Acks::All, P(1), future) else {
        panic!("a record of the future")
    };
    assert_eq!(records.len(), 3);
}

#[test]
fn append_times_are_stamped_and_never_fall() {
    let mut node = Node::new(64, 4);
    node.lead(P(1), 0, &[("message.timestamp.type", "LogAppendTime")]);
    let first = node.produce(Acks::All, P(1), builder(2, 10, 5).build()).expect("appended");
    let at = first.append_time.expect("a broker's time");
    assert!(at >= START.wall.0);
    node.now.wall = WallMillis(node.now.wall.0 - 60_000);
    let second = node.produce(Acks::All, P(1), producer_batch(2, 7, 0, 0)).expect("appended");
    assert!(second.append_time >= first.append_time, "a wall clock that steps back lowers nothing");
    let again = node.produce(Acks::All, P(1), producer_batch(2, 7, 0, 0)).expect("a duplicate");
    assert_eq!((again.base_offset, again.append_time), (second.base_offset, second.append_time));
    let bytes = node.consume(P(1), 0, 1 << 20);
    let (view, _) = BatchView::parse(&bytes).expect("a batch");
    assert_eq!((view.timestamp_type(), view.max_timestamp().0), (TimestampType::LogAppendTime, at));
}

#[test]
fn a_topics_codec_is_what_is_stored() {
    let mut node = Node::new(64, 5);
    node.lead(P(1), 0, &[("compression.type", "gzip")]);
    for codec in [Codec::None, Codec::Lz4, Codec::Gzip] {
        let bytes = builder(40, 100, START.wall.0).compression(codec.into()).build();
        node.produce(Acks::All, P(1), bytes).expect("appended");
    }
    let bytes = node.consume(P(1), 0, 1 << 20);
    let mut rest: &[u8] = &bytes;
    for base in [0, 40, 80] {
        let (view, after) = BatchView::parse(rest).expect("a batch");
        assert_eq!((view.codec(), view.base_offset()), (Ok(Codec::Gzip), Offset(base)));
        rest = after;
    }
}

#[test]
fn a_batch_behind_a_helper_keeps_its_place() {
    let mut node = Node::new(64, 6);
    node.lead(P(1), 0, &[]);
    node.hold_work = true;
    let packed = builder(2000, 100, START.wall.0).compression(Codec::Zstd.into()).build();
    let first = node.produce_async(Acks::All, P(1), packed);
    let plain = node.produce_async(Acks::All, P(1), batch(1, 10));
    node.turns(50);
    assert_eq!((node.work.len(), node.outcomes.len()), (1, 0));
    node.hold_work = false;
    assert_eq!(node.produced(first)[0].result.as_ref().map(|one| one.base_offset), Ok(Offset(0)));
    assert_eq!(node.produced(plain)[0].result.as_ref().map(|one| one.base_offset), Ok(Offset(2000)));
    // A refusal by a helper lets the ones behind it pass.
    node.hold_work = true;
    let mut broken = builder(2000, 100, START.wall.0).compression(Codec::Gzip.into()).build();
    let size = broken.len();
    broken[size - 200..size - 10].fill(0);
    let crc = crc_of(&mut broken);
    let first = node.produce_async(Acks::All, P(1), crc);
    let plain = node.produce_async(Acks::All, P(1), batch(1, 10));
    node.turns(5);
    node.hold_work = false;
    assert!(node.produced(first)[0].result.is_err());
    assert_eq!(node.produced(plain)[0].result.as_ref().map(|one| one.base_offset), Ok(Offset(2001)));
}

/// Makes the checksum right again.
fn crc_of(bytes: &mut [u8]) -> Vec<u8> {
    let max = BatchView::parse(bytes).expect("a batch").0.max_timestamp();
    batch::restamp_timestamp(bytes, TimestampType::CreateTime, max);
    bytes.to_vec()
}

#[test]
fn idempotent_batches_by_table() {
    let mut node = Node::new(64, 7);
    node.lead(P(1), 0, &[]);
    let mut send = |id: i64, epoch: i16, sequence: i32, records: usize| {
        node.produce(Acks::All, P(1), producer_batch(records, id, epoch, sequence))
            .map(|appended| appended.base_offset.0)
    };
    assert_eq!(send(1, 0, 0, 5), Ok(0));
    assert_eq!(send(1, 0, 5, 5), Ok(5));
    assert_eq!(send(1, 0, 0, 5), Ok(0), "a retry of any of the last five");
    assert_eq!(send(1, 0, 5, 5), Ok(5));
    assert!(matches!(send(1, 0, 11, 1), Err(ProduceError::OutOfOrderSequence(_))));
    assert!(matches!(send(1, 0, 0, 4), Err(ProduceError::OutOfOrderSequence(_))));
    assert_eq!(send(2, 4, 77, 3), Ok(10), "without state any sequence is taken");
    assert!(matches!(send(2, 3, 80, 3), Err(ProduceError::InvalidProducerEpoch(_))));
    assert!(matches!(send(2, 5, 80, 3), Err(ProduceError::OutOfOrderSequence(_))));
    assert_eq!(send(2, 5, 0, 3), Ok(13));
    assert_eq!(send(3, 0, i32::MAX - 1, 2), Ok(16));
    assert_eq!(send(3, 0, 0, 2), Ok(18), "the largest sequence is followed by 0");
    for number in 0..5 {
        assert_eq!(send(1, 0, 10 + number, 1), Ok(20 + i64::from(number)));
    }
    assert!(matches!(send(1, 0, 5, 5), Err(ProduceError::OutOfOrderSequence(_))), "the sixth is forgotten");
    let mut transactional = builder(1, 10, START.wall.0);
    transactional.transactional(true).producer(batch::BatchProducer {
        id: ProducerId(4),
        epoch: ProducerEpoch(0),
        base_sequence: Some(Sequence(0)),
    });
    let refused = node.produce(Acks::All, P(1), transactional.build());
    assert!(matches!(refused, Err(ProduceError::InvalidTransactionState(_))));
}

#[test]
fn a_duplicate_waits_until_its_original_is_durable() {
    let mut node = Node::new(64, 8);
    node.lead(P(1), 0, &[]);
    let first = node.produce_async(Acks::All, P(1), producer_batch(3, 1, 0, 0));
    let all = node.produce_async(Acks::All, P(1), producer_batch(3, 1, 0, 0));
    let one = node.produce_async(Acks::Leader, P(1), producer_batch(3, 1, 0, 0));
    assert!(node.outcomes.is_empty());
    for gather in [first, all, one] {
        assert_eq!(node.produced(gather)[0].result.as_ref().map(|it| it.base_offset), Ok(Offset(0)));
    }
    let log = node.store.find(P(1)).expect("it is there");
    assert_eq!(node.store.end_offset(log), Offset(3));
}

#[test]
fn producers_expire_by_their_last_batch() {
    let broker = [("producer.id.expiration.ms", "5000"), ("producer.id.expiration.check.interval.ms", "1000")];
    let (disk, mut now) = (new_disk(64, 9), START);
    format(&disk, &mut now);
    let mut node = Node::open(&disk, 9, now, &broker_of(&broker), store_options());
    node.lead(P(1), 0, &[]);
    assert!(node.produce(Acks::All, P(1), producer_batch(1, 1, 0, 0)).is_ok());
    assert!(matches!(
        node.produce(Acks::All, P(1), producer_batch(1, 1, 0, 50)),
        Err(ProduceError::OutOfOrderSequence(_))
    ));
    for _ in 0..8 {
        node.pass(std::time::Duration::from_secs(1));
    }
    assert!(node.produce(Acks::All, P(1), producer_batch(1, 1, 0, 50)).is_ok());
}

fn broker_of(more: &[(&str, &str)]) -> settings::BrokerSettings {
    broker(more)
}

/// Else a duplicate of what it sent is taken again.
#[test]
fn producers_survive_a_clock_that_steps_forth_and_back() {
    let (disk, mut now) = (new_disk(64, 9), START);
    format(&disk, &mut now);
    let broker = broker_of(&[("producer.id.expiration.check.interval.ms", "1000")]);
    let mut node = Node::open(&disk, 9, now, &broker, store_options());
    node.lead(P(1), 0, &[]);
    node.produce(Acks::All, P(1), producer_batch(2, 4, 0, 0)).expect("appended");
    let step = 48 * 3_600_000;
    for by in [step, -2 * step, step] {
        node.now.wall.0 += by;
        for _ in 0..60 {
            node.pass(std::time::Duration::from_secs(10));
        }
    }
    let again = node.produce(Acks::All, P(1), producer_batch(2, 4, 0, 0)).expect("a duplicate");
    assert_eq!(again.base_offset, Offset(0));
}
