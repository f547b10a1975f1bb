//! Fetch against a real store: bounds, epochs, windows, waiters; and the lookups by offset, time and epoch.

mod common;

use base::*;
use batch::{Batches, Codec};
use common::*;
use handoff::*;
use nvme_device::sim::{FaultPlan, PerMillion};
use nvme_log::StoreOptions;
use pollux_partition::{Duty, Removal};
use std::time::Duration;

const P: fn(u128) -> PartitionId = partition;

#[test]
fn a_backlog_comes_from_the_device_in_windows() {
    let mut node = tight_node(1);
    node.lead(P(1), 0, &[]);
    let (mut expected, mut base) = (Vec::new(), 0);
    for number in 0..400usize {
        let size = [300, 9000, 40, 3000, 150_000, 700][number % 6];
        let bytes = batch(1 + number % 3, size);
        if number % 100 == 99 {
            node.produce(Acks::All, P(1), bytes.clone()).expect("appended");
        } else {
            node.produce_async(Acks::None, P(1), bytes.clone());
        }
        expected.extend(stamped(&bytes, base, 0));
        base += 1 + number as i64 % 3;
        node.turn();
    }
    node.turns(200);
    node.outcomes.clear();
    for limit in [1, 30_000, 1 << 20, 20 << 20] {
        assert!(node.consume(P(1), 0, limit) == expected, "with a limit of {limit}");
    }
    let records = node.fetch(P(1), 300, 4 << 20).expect("it can be fetched");
    let ready: usize = records.ready.iter().map(|piece| piece.len()).sum();
    assert!(ready <= 256 << 10, "a window is ready, {ready} bytes are");
    assert!(!records.rest.is_empty() && records.bytes > 1 << 19);
    let in_crumbs = node.whole(records, 7000);
    assert!(expected.windows(in_crumbs.len()).any(|window| window[..100] == in_crumbs[..100] && window == in_crumbs));
    assert_eq!(node.partitions.pending(), 0);
}

/// A reader that could not take what was ready asks again, and finds the same bytes wherever they are by then.
#[test]
fn what_was_let_go_is_found_again_in_memory_and_on_the_device() {
    let roomy = StoreOptions { tail_cache: 2 << 20, read_cache: 64 << 10, ..tight() };
    let mut node = Node::with_store(96, 7, roomy);
    node.lead(P(1), 0, &[]);
    let mut held: Vec<(Vec<u8>, FetchedRecords)> = Vec::new();
    for number in 0..300usize {
        let size = [300, 9000, 40, 3000, 120_000, 700][number % 6];
        let appended = node.produce(Acks::All, P(1), batch(1 + number % 3, size)).expect("appended");
        let from = appended.base_offset.0;
        if number % 20 < 5 {
            // From the batch itself, in the middle of it, and from far before it.
            for offset in [from, from + (number % 3) as i64, from - from.min(40)] {
                let taken = node.fetch(P(1), offset, 200_000).expect("it can be fetched");
                let bytes = node.whole(taken, 70_000);
                let again = node.fetch(P(1), offset, 200_000).expect("it can be fetched");
                let again = node.let_go(again);
                assert!(bytes.len() >= again.bytes as usize || bytes.len() >= 200_000);
                held.push((bytes, again));
            }
        }
    }
    node.turns(100);
    for (number, (bytes, again)) in held.into_iter().enumerate() {
        let length = again.bytes as usize;
        let found = node.whole(again, [999, 64 << 10, 1 << 20][number % 3]);
        assert!(found[..] == bytes[..length], "answer {number}");
    }
    // What retention took is gone, and nothing else is given for it.
    let old = node.fetch(P(1), 0, 100_000).expect("it can be fetched");
    let old = node.let_go(old);
    delete(&mut node, P(1), None).expect("deleted");
    node.produce(Acks::All, P(1), batch(1, 100)).expect("appended");
    node.turns(200);
    let result = node.window(old.rest[..1].to_vec(), 1000).map(|window| window.pieces.len());
    assert_eq!(result, Err(FetchError::Partition(PartitionError::Storage)));
    assert_eq!(node.partitions.pending(), 0);
}

/// However much a reader asks for, its answer is described in a bounded list.
#[test]
fn an_answer_has_a_bounded_number_of_descriptions() {
    let mut node = Node::with_store(96, 9, StoreOptions { index_cache: 1 << 20, ..tight() });
    node.lead(P(1), 0, &[]);
    for number in 0..1200 {
        let acks = if number % 100 == 99 { Acks::All } else { Acks::None };
        let gather = node.produce_async(acks, P(1), batch(1, 9000));
        if acks == Acks::All {
            node.produced(gather);
        }
    }
    node.turns(200);
    let records = node.fetch(P(1), 0, 40 << 20).expect("it can be fetched");
    assert!(records.rest.len() <= 512 && records.bytes > 4 << 20, "{} of {} bytes", records.rest.len(), records.bytes);
    node.whole(records, 1 << 20);
}

#[test]
fn bounds_epochs_and_ranges() {
    let mut node = Node::new(64, 2);
    node.lead(P(1), 2, &[]);
    node.produce(Acks::All, P(1), batch(10, 10)).expect("appended");
    node.lead(P(1), 5, &[]);
    node.produce(Acks::All, P(1), batch(10, 10)).expect("appended");
    let ask = |node: &mut Node, offset: i64, current: Option<i32>, last: Option<i32>| {
        let mut one = entry(P(1), offset, 1 << 20);
        one.current_epoch = current.map(LeaderEpoch);
        one.last_fetched_epoch = last.map(LeaderEpoch);
        let command = node.fetch_command(vec![one], false);
        let gather = command.gather;
        node.send(Command::Fetch(command));
        node.fetched(gather).remove(0).result
    };
    let partition_error = |error| Err(FetchError::Partition(error));
    let kind =
        |result: Result<FetchedRecords, FetchError>| result.map(|records| (records.diverging, records.bytes > 0));
    assert_eq!(kind(ask(&mut node, 0, Some(4), None)), partition_error(PartitionError::FencedEpoch));
    assert_eq!(kind(ask(&mut node, 0, Some(6), None)), partition_error(PartitionError::UnknownEpoch));
    assert_eq!(kind(ask(&mut node, 0, Some(5), None)), Ok((None, true)));
    assert_eq!(kind(ask(&mut node, 20, None, None)), Ok((None, false)));
    assert_eq!(kind(ask(&mut node, 21, None, None)), Err(FetchError::OutOfRange));
    assert_eq!(kind(ask(&mut node, 10, Some(5), Some(2))), Ok((None, true)));
    assert_eq!(kind(ask(&mut node, 12, Some(5), Some(2))), Ok((Some((LeaderEpoch(2), Offset(10))), false)));
    assert_eq!(kind(ask(&mut node, 12, Some(5), Some(4))), Ok((Some((LeaderEpoch(2), Offset(10))), false)));
    assert_eq!(kind(ask(&mut node, 12, Some(5), Some(9))), Err(FetchError::OutOfRange));
    assert_eq!(kind(node.fetch(P(7), 0, 1)), partition_error(PartitionError::Unknown));
    let records = node.fetch(P(1), 13, 1 << 20).expect("it can be fetched");
    assert_eq!(
        (records.high_watermark, records.last_stable_offset, records.log_start),
        (Offset(20), Offset(20), Offset(0))
    );
    let bytes = node.whole(records, 1 << 20);
    let first = Batches::new(&bytes).next().expect("a batch").expect("a good one");
    assert_eq!(first.base_offset(), Offset(10), "the batch that contains the offset");
    // What is not durable is not shown.
    node.produce_async(Acks::None, P(1), batch(1, 10));
    assert_eq!(node.fetch(P(1), 20, 1 << 20).map(|records| records.bytes), Ok(0));

    let ends = vec![(0, None), (2, None), (3, None), (5, None), (6, None), (5, Some(4))];
    let entries = ends.into_iter().enumerate().map(|(index, (epoch, current))| EpochEndsEntry {
        index: EntryIndex(index as u32),
        partition: P(1),
        current_epoch: current.map(LeaderEpoch),
        epoch: LeaderEpoch(epoch),
    });
    let command = EpochEnds { gather: node.gather(), entries: entries.collect() };
    node.send(Command::EpochEnds(command));
    let ends = node.wait("epochs", |outcome| matches!(outcome, Outcome::EpochEnds { .. }), |outcome| outcome);
    let Outcome::EpochEnds { entries, .. } = ends else { unreachable!() };
    let pairs: Vec<_> = entries
        .into_iter()
        .map(|(_, end)| end.map(|end| (end.epoch.map(|epoch| epoch.0), end.end.map(|end| end.0))))
        .collect();
    assert_eq!(
        pairs,
        [
            Ok((Some(0), Some(0))),
            Ok((Some(2), Some(10))),
            Ok((Some(2), Some(10))),
            Ok((Some(5), Some(21))),
            Ok((None, None)),
            Err(PartitionError::FencedEpoch)
        ]
    );
}

#[test]
fn a_size_below_zero_is_refused_where_there_is_something_to_read() {
    let mut node = Node::new(64, 3);
    node.lead(P(1), 0, &[]);
    let at = |node: &mut Node, offset| {
        let command = node.fetch_command(vec![FetchEntry { bytes_max: None, ..entry(P(1), offset, 0) }], false);
        let gather = command.gather;
        node.send(Command::Fetch(command));
        node.fetched(gather).remove(0).result
    };
    assert!(at(&mut node, 0).is_ok(), "there is nothing");
    node.produce(Acks::All, P(1), batch(1, 10)).expect("a good batch");
    assert!(matches!(at(&mut node, 0), Err(FetchError::NegativeSize)));
    assert!(matches!(at(&mut node, 7), Err(FetchError::OutOfRange)), "which is looked at first");
    assert!(at(&mut node, 1).is_ok());
}

fn news(node: &mut Node, gather: GatherId) -> Vec<FetchNews> {
    node.wait(
        "news",
        |outcome| matches!(outcome, Outcome::FetchNews { gather: its, .. } if *its == gather),
        |outcome| match outcome {
            Outcome::FetchNews { entries, .. } => entries,
            other => panic!("{other:?}"),
        },
    )
}

fn wait_at(node: &mut Node, entries: Vec<FetchEntry>, bytes_min: u32) -> GatherId {
    let mut command = node.fetch_command(entries, true);
    command.bytes_min = bytes_min;
    let gather = command.gather;
    node.send(Command::Fetch(command));
    node.fetched(gather);
    gather
}

#[test]
fn waiters_hear_of_news_once_and_leave_all_lists() {
    let mut node = Node::new(64, 4);
    for number in 1..=3 {
        node.lead(P(number), 0, &[]);
    }
    let both = |offset| {
        let mut entries = vec![entry(P(1), offset, 1 << 20), entry(P(2), offset, 1 << 20)];
        entries[1].index = EntryIndex(1);
        entries
    };
    let first = wait_at(&mut node, both(0), 1);
    let second = wait_at(&mut node, both(0), 1);
    let third = wait_at(&mut node, vec![entry(P(3), 0, 10), entry(P(3), 0, 10)], 1);
    assert_eq!(node.partitions.waiting_fetches(), 3);
    node.turns(30);
    assert!(node.outcomes.is_empty(), "nothing happens, nothing is told");
    let bytes = batch(3, 100);
    node.produce(Acks::All, P(2), bytes.clone()).expect("appended");
    for gather in [first, second] {
        let told = news(&mut node, gather);
        assert_eq!(told, [FetchNews { index: EntryIndex(1), readable: bytes.len() as u32, urgent: false }]);
    }
    node.produce(Acks::All, P(2), bytes.clone()).expect("appended");
    node.turns(5);
    assert!(node.outcomes.is_empty(), "one piece of news is out until the fetch comes again");
    node.produce(Acks::All, P(1), bytes.clone()).expect("appended");
    node.turns(5);
    assert!(node.outcomes.is_empty(), "nor of another partition of the same fetch");
    node.send(Command::Cancel(first));
    node.send(Command::Cancel(third));
    assert_eq!(node.partitions.waiting_fetches(), 1);
    node.outcomes.clear();
    node.produce(Acks::All, P(3), bytes.clone()).expect("appended");
    node.turns(5);
    assert!(node.outcomes.is_empty());
    // With data there is nobody to wait, and a fetch takes the place of the one before it.
    let mut again = node.fetch_command(both(0), true);
    again.gather = second;
    node.send(Command::Fetch(again));
    assert!(node.fetched(second).iter().all(|fetched| fetched.result.as_ref().is_ok_and(|records| records.bytes > 0)));
    assert_eq!(node.partitions.waiting_fetches(), 0);
}

#[test]
fn a_fetch_with_too_little_waits_for_more() {
    let mut node = Node::new(64, 5);
    node.lead(P(1), 0, &[]);
    let bytes = batch(1, 1000);
    let length = bytes.len() as u32;
    node.produce(Acks::All, P(1), bytes.clone()).expect("appended");
    let gather = wait_at(&mut node, vec![entry(P(1), 0, 5000)], 3000);
    assert_eq!(node.partitions.waiting_fetches(), 1);
    node.produce(Acks::All, P(1), bytes.clone()).expect("appended");
    assert_eq!(news(&mut node, gather)[0].readable, 2 * length);
    node.produce(Acks::All, P(1), batch(10, 1000)).expect("appended");
    assert_eq!(news(&mut node, gather)[0].readable, 5000, "up to the entry's limit");
    // More than a window lies in memory: the answer brings less than is there, and says so at once.
    for _ in 0..40 {
        node.produce(Acks::All, P(1), batch(1, 15_000)).expect("appended");
    }
    let gather = wait_at(&mut node, vec![entry(P(1), 2, 1 << 20)], 400_000);
    assert!(news(&mut node, gather)[0].readable >= 400_000);
}

#[test]
fn a_waiting_fetch_hears_of_leadership_deletion_and_the_logs_start() {
    let mut node = Node::new(64, 6);
    for number in 1..=3 {
        node.lead(P(number), 0, &[]);
    }
    node.produce(Acks::All, P(3), batch(5, 10)).expect("appended");
    let moved = wait_at(&mut node, vec![entry(P(1), 0, 10)], 1);
    let removed = wait_at(&mut node, vec![entry(P(2), 0, 10)], 1);
    let passed = wait_at(&mut node, vec![entry(P(3), 3, 10)], 100_000);
    node.apply(Duty { leader: Some(NodeId(9)), ..duty(P(1), 1, &[]) }).expect("it follows");
    assert!(news(&mut node, moved)[0].urgent);
    let removal = Removal { partition: P(2), removed_at: 9 };
    assert!(node.partitions.remove(&mut node.store, removal).is_err(), "the removal is older than the partition");
    node.partitions.remove(&mut node.store, Removal { removed_at: 11, ..removal }).expect("removed");
    assert!(news(&mut node, removed)[0].urgent);
    assert_eq!(delete(&mut node, P(3), Some(5)), Ok(Offset(5)));
    assert!(news(&mut node, passed)[0].urgent);
    assert_eq!(node.fetch(P(3), 3, 10).map(|records| records.bytes), Err(FetchError::OutOfRange));
    for gather in [moved, removed, passed] {
        node.send(Command::Cancel(gather));
    }
    assert_eq!(node.partitions.waiting_fetches(), 0);
}

fn delete(node: &mut Node, partition: PartitionId, before: Option<i64>) -> Result<Offset, DeleteRecordsError> {
    delete_within(node, partition, before, Duration::from_secs(5))
}

fn delete_within(
    node: &mut Node,
    partition: PartitionId,
    before: Option<i64>,
    time: Duration,
) -> Result<Offset, DeleteRecordsError> {
    let command = DeleteRecords {
        gather: node.gather(),
        deadline: node.now.monotonic + time,
        entries: vec![DeleteRecordsEntry { index: EntryIndex(0), partition, before: before.map(Offset) }],
    };
    node.send(Command::DeleteRecords(command));
    let done = node.wait("deletion", |outcome| matches!(outcome, Outcome::RecordsDeleted { .. }), |outcome| outcome);
    let Outcome::RecordsDeleted { mut entries, .. } = done else { unreachable!() };
    entries.remove(0).1
}

#[test]
fn records_are_deleted_up_to_the_watermark() {
    let mut node = Node::new(64, 7);
    node.lead(P(1), 0, &[]);
    node.lead(P(2), 0, &[("cleanup.policy", "compact")]);
    node.produce(Acks::All, P(1), batch(10, 10)).expect("appended");
    assert_eq!(delete(&mut node, P(2), Some(0)), Err(DeleteRecordsError::PolicyViolation));
    assert_eq!(delete(&mut node, P(1), Some(11)), Err(DeleteRecordsError::OutOfRange));
    assert_eq!(delete(&mut node, P(1), Some(4)), Ok(Offset(4)));
    assert_eq!(delete(&mut node, P(1), Some(2)), Ok(Offset(4)));
    // A request without any time: what it takes to write the start is not counted.
    let slow = FaultPlan { stall: PerMillion::ALWAYS, stall_for: Duration::from_millis(50), ..FaultPlan::none() };
    node.disk.set_faults(slow);
    assert_eq!(delete_within(&mut node, P(1), Some(6), Duration::ZERO), Ok(Offset(6)));
    node.disk.set_faults(FaultPlan::none());
    assert_eq!(delete(&mut node, P(1), None), Ok(Offset(10)));
    assert_eq!(delete(&mut node, P(8), None), Err(DeleteRecordsError::Partition(PartitionError::Unknown)));
    assert_eq!(list(&mut node, P(1), OffsetQuery::Earliest).map(|found| found.offset), Ok(Some(Offset(10))));
}

fn list(node: &mut Node, partition: PartitionId, query: OffsetQuery) -> Result<ListedOffset, ListOffsetsError> {
    list_as(node, partition, query, Reader::Consumer(Isolation::ReadUncommitted), 11)
}

fn list_as(
    node: &mut Node,
    partition: PartitionId,
    query: OffsetQuery,
    reader: Reader,
    version: i16,
) -> Result<ListedOffset, ListOffsetsError> {
    let entries = vec![ListOffsetsEntry { index: EntryIndex(0), partition, current_epoch: None, query }];
    let gather = node.gather();
    node.send(Command::ListOffsets(ListOffsets { gather, reader, version, entries }));
    let listed = node.wait("offsets", |outcome| matches!(outcome, Outcome::OffsetsListed { .. }), |outcome| outcome);
    let Outcome::OffsetsListed { mut entries, .. } = listed else { unreachable!() };
    assert_eq!(entries.len(), 1);
    entries.remove(0).1
}

fn found(result: Result<ListedOffset, ListOffsetsError>) -> Result<(i64, i64), ListOffsetsError> {
    result.map(|found| (found.offset.map_or(-1, |offset| offset.0), found.timestamp.unwrap_or(-1)))
}

#[test]
fn offsets_by_special_values_and_times() {
    let mut node = Node::new(64, 8);
    node.lead(P(1), 4, &[]);
    let empty =
        [OffsetQuery::MaxTimestamp, OffsetQuery::At(0), OffsetQuery::LatestTiered, OffsetQuery::EarliestPendingUpload];
    for query in empty {
        assert_eq!(found(list(&mut node, P(1), query)), Ok((-1, -1)), "{query:?}");
    }
    // The batches of design 07, one compressed; times go backwards.
    for (codec, times) in [(Codec::None, [5, 9]), (Codec::Gzip, [1, 2]), (Codec::Zstd, [7, 8])] {
        let mut builder = batch::BatchBuilder::new();
        builder.compression(codec.into());
        for time in times {
            builder.append(WallMillis(time), None, Some(b"v"), &[]);
        }
        node.produce(Acks::All, P(1), builder.build()).expect("appended");
    }
    for (time, expected) in [(3, (0, 5)), (6, (1, 9)), (8, (1, 9)), (9, (1, 9)), (10, (-1, -1)), (0, (0, 5))] {
        assert_eq!(found(list(&mut node, P(1), OffsetQuery::At(time))), Ok(expected), "time {time}");
    }
    assert_eq!(found(list(&mut node, P(1), OffsetQuery::MaxTimestamp)), Ok((1, 9)));
    let latest = list(&mut node, P(1), OffsetQuery::Latest).expect("known");
    assert_eq!(latest, ListedOffset { offset: Some(Offset(6)), timestamp: None, epoch: Some(LeaderEpoch(4)) });
    let earliest = ListedOffset { offset: Some(Offset(0)), timestamp: None, epoch: Some(LeaderEpoch(4)) };
    assert_eq!(list(&mut node, P(1), OffsetQuery::Earliest), Ok(earliest));
    assert_eq!(list(&mut node, P(1), OffsetQuery::EarliestLocal), Ok(earliest));
    assert_eq!(delete(&mut node, P(1), Some(2)), Ok(Offset(2)));
    for (time, expected) in [(0, (2, 1)), (2, (3, 2)), (3, (4, 7)), (8, (5, 8)), (9, (-1, -1))] {
        assert_eq!(found(list(&mut node, P(1), OffsetQuery::At(time))), Ok(expected), "time {time} after a deletion");
    }
    let unsupported = |query, version| (query, version, Err(ListOffsetsError::UnsupportedVersion));
    for (query, version, expected) in [
        unsupported(OffsetQuery::MaxTimestamp, 6),
        unsupported(OffsetQuery::EarliestLocal, 7),
        unsupported(OffsetQuery::LatestTiered, 8),
        unsupported(OffsetQuery::EarliestPendingUpload, 10),
        unsupported(OffsetQuery::At(-7), 11),
    ] {
        let reader = Reader::Consumer(Isolation::ReadUncommitted);
        assert_eq!(list_as(&mut node, P(1), query, reader, version), expected);
    }
    // What is not committed is not named, but to who debugs.
    node.produce_async(Acks::None, P(1), builder(1, 10, 100).build());
    assert_eq!(found(list(&mut node, P(1), OffsetQuery::At(50))), Ok((-1, -1)));
}

/// What is on its way to the medium has no time yet that may be told, and hides none that may be.
#[test]
fn the_largest_time_is_of_what_is_committed_while_more_is_appended() {
    let mut node = tight_node(10);
    node.lead(P(1), 0, &[("message.timestamp.before.max.ms", "9223372036854775807"), ("segment.bytes", "1048576")]);
    let mut random = Random::from_seed(11);
    let (mut batches, mut beside) = (Vec::new(), 0);
    for number in 0..400i64 {
        let time = 1000 * number - random.below(20_000) as i64;
        let (time, size) = (time.max(0), 1 + random.below(9000) as usize);
        batches.push((number, time));
        let mut builder = batch::BatchBuilder::new();
        builder.append(WallMillis(time), None, Some(&vec![7; size]), &[]);
        node.produce_async(Acks::None, P(1), builder.build());
        node.turns(random.below(3) as usize);
        if !random.chance(1, 3) {
            continue;
        }
        let entry =
            |index, query| ListOffsetsEntry { index: EntryIndex(index), partition: P(1), current_epoch: None, query };
        let entries = vec![entry(0, OffsetQuery::Latest), entry(1, OffsetQuery::MaxTimestamp)];
        let reader = Reader::Consumer(Isolation::ReadUncommitted);
        let gather = node.gather();
        node.send(Command::ListOffsets(ListOffsets { gather, reader, version: 11, entries }));
        let listed = node.wait("both", |outcome| matches!(outcome, Outcome::OffsetsListed { .. }), |outcome| outcome);
        let Outcome::OffsetsListed { entries, .. } = listed else { unreachable!() };
        let told: Vec<_> = entries.into_iter().map(|(_, result)| found(result).expect("it is led")).collect();
        let end = told[0].0;
        let best = batches.iter().filter(|(at, _)| *at < end).fold(None, |best: Option<(i64, i64)>, (at, time)| {
            if best.is_none_or(|(_, known)| *time > known) { Some((*at, *time)) } else { best }
        });
        assert_eq!(told[1], best.unwrap_or((-1, -1)), "below {end} of {}", number + 1);
        beside += u32::from(end > 0 && end <= number);
    }
    assert!(beside > 20, "most were asked beside appends: {beside}");
}

#[test]
fn times_are_found_on_the_device_in_every_codec() {
    for codec in Codec::ALL {
        let mut node = tight_node(9);
        node.lead(P(1), 0, &[("message.timestamp.before.max.ms", "9223372036854775807")]);
        for number in 0..100i64 {
            let bytes = builder(10, 1000, 1000 * number).compression(codec.into()).build();
            node.produce_async(Acks::None, P(1), bytes);
            node.turn();
        }
        node.turns(150);
        node.outcomes.clear();
        for number in [0, 1, 7, 50, 98, 99] {
            let at = OffsetQuery::At(1000 * number + 4);
            assert_eq!(found(list(&mut node, P(1), at)), Ok((10 * number + 4, 1000 * number + 4)), "{codec:?}");
            let at = OffsetQuery::At(1000 * number + 500);
            let next = if number == 99 { (-1, -1) } else { (10 * number + 10, 1000 * number + 1000) };
            assert_eq!(found(list(&mut node, P(1), at)), Ok(next));
        }
        assert_eq!(found(list(&mut node, P(1), OffsetQuery::MaxTimestamp)), Ok((999, 99_009)));
    }
}

#[test]
fn a_cancelled_fetch_that_reads_is_answered_and_waits_for_nothing() {
    let mut node = tight_node(10);
    node.lead(P(1), 0, &[]);
    for _ in 0..200 {
        node.produce_async(Acks::None, P(1), batch(10, 1000));
        node.turn();
    }
    node.turns(200);
    node.outcomes.clear();
    let mut command = node.fetch_command(vec![entry(P(1), 3, 1 << 20)], true);
    command.bytes_min = 1 << 30;
    let gather = command.gather;
    node.send(Command::Fetch(command));
    assert!(node.outcomes.is_empty(), "it reads");
    node.send(Command::Cancel(gather));
    assert!(node.fetched(gather)[0].result.as_ref().is_ok_and(|records| records.bytes > 0));
    assert_eq!((node.partitions.pending(), node.partitions.waiting_fetches()), (0, 0));
    node.turns(20);
    assert!(node.outcomes.is_empty());
}

/// A record with the largest time is named as long as its segment is kept, like in Kafka, though it was deleted.
#[test]
fn the_largest_time_is_that_of_what_is_kept() {
    let mut node = Node::new(64, 8);
    node.lead(P(1), 4, &[("internal.segment.bytes", "300")]);
    // Two batches in the first segment.
    for (codec, times) in [(Codec::Gzip, [5, 90]), (Codec::None, [8, 7]), (Codec::None, [1, 2]), (Codec::None, [3, 4])]
    {
        let mut builder = batch::BatchBuilder::new();
        builder.compression(codec.into());
        for time in times {
            builder.append(WallMillis(time), None, Some(&[7; 50]), &[]);
        }
        node.produce(Acks::All, P(1), builder.build()).expect("appended");
    }
    for (start, expected) in [(0, (1, 90)), (1, (1, 90)), (3, (1, 90)), (4, (7, 4)), (7, (7, 4)), (8, (-1, -1))] {
        assert_eq!(delete(&mut node, P(1), Some(start)), Ok(Offset(start)));
        let largest = list(&mut node, P(1), OffsetQuery::MaxTimestamp);
        let epoch = largest.as_ref().ok().and_then(|found| found.epoch);
        assert_eq!(epoch, (start < 8).then_some(LeaderEpoch(4)));
        assert_eq!(found(largest), Ok(expected), "from {start} on");
    }
}

#[test]
fn retention_moves_the_start_and_wakes_who_waits_before_it() {
    let options = StoreOptions { retention_interval: Duration::from_secs(1), ..store_options() };
    let mut node = Node::with_store(64, 11, options);
    let config = [("retention.ms", "10000"), ("internal.segment.bytes", "3000")];
    node.lead(P(1), 0, &config);
    for _ in 0..20 {
        let at = node.now.wall.0;
        node.produce(Acks::All, P(1), builder(1, 1000, at).build()).expect("appended");
    }
    let gather = wait_at(&mut node, vec![entry(P(1), 3, 10_000)], 1 << 20);
    for _ in 0..15 {
        node.pass(Duration::from_secs(1));
    }
    assert!(news(&mut node, gather)[0].urgent);
    assert_eq!(node.fetch(P(1), 3, 10).map(|records| records.bytes), Err(FetchError::OutOfRange));
    // The log is empty now: its ends are one offset that can be read, and no time leads anywhere.
    assert_eq!(list(&mut node, P(1), OffsetQuery::Earliest).map(|found| found.offset), Ok(Some(Offset(20))));
    assert_eq!(node.fetch(P(1), 20, 10).map(|records| (records.bytes, records.log_start)), Ok((0, Offset(20))));
    assert_eq!(found(list(&mut node, P(1), OffsetQuery::At(0))), Ok((-1, -1)));
    assert_eq!(found(list(&mut node, P(1), OffsetQuery::MaxTimestamp)), Ok((-1, -1)));
}
