//! A partition's life: duties, leadership, failures, full namespaces, deadlines, coordinators.

mod common;

use arena::BufferRef;
use base::*;
use common::*;
use handoff::*;
use nvme_device::sim::{FaultPlan, PerMillion};
use nvme_log::StoreOptions;
use pollux_partition::{Duty, DutyError, FORGOTTEN_A_TURN, ImageEnd, LOOKED_AT_A_TURN, Removal};
use std::time::Duration;

const P: fn(u128) -> PartitionId = partition;

#[test]
fn a_run_never_continues_an_epoch_of_the_last() {
    let mut node = Node::new(64, 1);
    node.lead(P(1), 3, &[]);
    node.lead(P(1), 3, &[("retention.ms", "5")]);
    node.produce(Acks::All, P(1), batch(4, 10)).expect("appended");
    let old = Duty { partition_epoch: PartitionEpoch(2), ..duty(P(1), 2, &[]) };
    assert_eq!(node.apply(old), Err(DutyError::Old));
    let (disk, now) = node.kill();
    let mut node = Node::open(&disk, 2, now, &broker(&[]), store_options());
    let found = end_image(&mut node);
    assert_eq!((found.unnamed, found.strays, found.first_stray), (0, 1, Some(P(1))));
    assert_eq!(node.fetch(P(1), 0, 1).map(|_| ()), Err(FetchError::Partition(PartitionError::Unknown)));
    let refused = DutyError::EpochOfEarlierRun { epoch: LeaderEpoch(3) };
    assert_eq!(node.apply(duty(P(1), 3, &[])), Err(refused));
    let not_leader = Err(FetchError::Partition(PartitionError::NotLeader));
    assert_eq!(node.fetch(P(1), 0, 1).map(|_| ()), not_leader);
    node.lead(P(1), 4, &[]);
    assert_eq!(node.fetch(P(1), 0, 1 << 20).map(|records| records.high_watermark), Ok(Offset(4)));
    assert_eq!(end_image(&mut node).strays, 0);
}

/// Everything that an image did not name, as a loop looks for it.
fn end_image(node: &mut Node) -> ImageEnd {
    let mut end = ImageEnd::default();
    while !end.is_done() {
        let left = end.unnamed;
        let looked = node.partitions.end_image(&mut node.store, &mut end);
        assert!(looked <= LOOKED_AT_A_TURN && end.unnamed - left <= FORGOTTEN_A_TURN, "{looked} in one turn");
    }
    end
}

#[test]
fn very_many_partitions_are_looked_through_in_turns() {
    const MANY: u128 = 2 * LOOKED_AT_A_TURN as u128 + 10;
    let mut node = Node::new(512, 4);
    (0..MANY).for_each(|number| node.lead(P(number), 0, &[]));
    node.partitions.begin_image();
    // Every tenth is named.
    (0..MANY).step_by(10).for_each(|number| node.lead(P(number), 0, &[]));
    let named = MANY.div_ceil(10) as usize;
    let found = end_image(&mut node);
    assert_eq!((found.unnamed, found.strays), (MANY as usize - named, MANY as usize - named));
    assert_eq!(node.partitions.leader_count(), named);
}

#[test]
fn what_an_image_does_not_name_is_kept_and_not_served() {
    let mut node = Node::new(64, 3);
    for number in 1..=3 {
        node.lead(P(number), 0, &[]);
    }
    node.partitions.begin_image();
    node.lead(P(1), 0, &[]);
    let found = end_image(&mut node);
    assert_eq!((found.unnamed, found.strays), (2, 2));
    assert_eq!(node.fetch(P(1), 0, 1).map(|_| ()), Ok(()), "it was named");
    assert_eq!(node.produce(Acks::All, P(2), batch(1, 1)), Err(ProduceError::Partition(PartitionError::Unknown)));
    assert!(node.store.find(P(2)).is_some(), "nothing is deleted by absence");
    let removal = Removal { partition: P(2), removed_at: 10 };
    node.partitions.remove(&mut node.store, removal).expect("removed");
    assert!(node.store.find(P(2)).is_none());
    node.lead(P(3), 1, &[]);
    assert!(node.produce(Acks::All, P(3), batch(1, 1)).is_ok(), "a stray that is named again is served again");
}

fn two_replicas(partition: PartitionId, epoch: i32, isr: &[i32]) -> Duty {
    Duty {
        replicas: vec![NODE, NodeId(2)],
        isr: isr.iter().map(|node| NodeId(*node)).collect(),
        ..duty(partition, epoch, &[("min.insync.replicas", "1")])
    }
}

fn follow(node: &mut Node, partition: PartitionId, offset: i64) {
    let mut command = node.fetch_command(vec![entry(partition, offset, 1)], false);
    command.reader = Reader::Follower(NodeId(2));
    let gather = command.gather;
    node.send(Command::Fetch(command));
    node.fetched(gather);
}

/// A node that stops hands its partitions back while commits are on their way: what they hold will be in the log, so to
/// refuse it would have a producer without sequence numbers send it again.
#[test]
fn what_is_on_its_way_when_nobody_leads_any_more_is_acknowledged() {
    let mut node = Node::new(64, 6);
    let mut epoch = 0;
    let mut next = |leader: Option<NodeId>, isr: &[NodeId]| {
        epoch += 1;
        Duty { leader, isr: isr.to_vec(), ..duty(P(1), epoch, &[]) }
    };
    let (alone, other) = ([NODE], NodeId(2));
    // The last member leaves the ISR for the ELR (KIP-966), where there is one.
    for (isr, end) in [(&alone[..], 0), (&[], 6)] {
        node.apply(next(Some(NODE), &alone)).expect("it leads");
        node.produce(Acks::All, P(1), batch(3, 10)).expect("appended");
        let all = node.produce_async(Acks::All, P(1), batch(2, 10));
        let leader = node.produce_async(Acks::Leader, P(1), batch(1, 10));
        assert!(node.outcomes.is_empty(), "both are on their way");
        node.apply(next(None, isr)).expect("taken");
        let late = node.produce(Acks::All, P(1), batch(1, 10));
        assert_eq!(late, Err(ProduceError::Partition(PartitionError::NotLeader)), "nothing more is taken");
        assert_eq!(node.produced(all)[0].result.as_ref().map(|one| one.base_offset), Ok(Offset(end + 3)));
        assert_eq!(node.produced(leader)[0].result.as_ref().map(|one| one.base_offset), Ok(Offset(end + 5)));
    }
    // Where another node is in sync, or leads, its log may be another.
    for (leader, isr) in [(None, &[NODE, other][..]), (None, &[other]), (Some(other), &alone)] {
        node.apply(next(Some(NODE), &alone)).expect("it leads");
        let lost = node.produce_async(Acks::All, P(1), batch(1, 10));
        node.apply(next(leader, isr)).expect("taken");
        assert_eq!(node.produced(lost)[0].result, Err(ProduceError::Partition(PartitionError::NotLeader)));
    }
}

#[test]
fn the_watermark_waits_for_the_isr_and_a_request_for_its_deadline() {
    let mut node = Node::new(64, 4);
    node.apply(two_replicas(P(1), 0, &[1, 2])).expect("it leads");
    let watermark = |node: &mut Node| node.fetch(P(1), 0, 1).expect("fetched").high_watermark.0;
    assert!(node.produce(Acks::Leader, P(1), batch(3, 10)).is_ok(), "acks=1 is the leader's device alone");
    let all = node.produce_async(Acks::All, P(1), batch(2, 10));
    node.turns(30);
    assert_eq!((watermark(&mut node), node.outcomes.len()), (0, 0));
    follow(&mut node, P(1), 4);
    assert_eq!(watermark(&mut node), 4);
    follow(&mut node, P(1), 5);
    assert_eq!(node.produced(all)[0].result.as_ref().map(|one| one.base_offset), Ok(Offset(3)));
    let mut late = node.produce_command(Acks::All, vec![(P(1), Some(batch(1, 10)))]);
    late.deadline = node.now.monotonic + Duration::from_millis(50);
    let gather = late.gather;
    node.send(Command::Produce(late));
    node.turns(10);
    assert!(node.outcomes.is_empty());
    node.pass(Duration::from_millis(60));
    assert_eq!(node.produced(gather)[0].result, Err(ProduceError::TimedOut));
    follow(&mut node, P(1), 6);
    assert_eq!(watermark(&mut node), 6, "the record stays");
    // The ISR shrinks to the leader, and what waited goes on.
    let shrunk = node.produce_async(Acks::All, P(1), batch(1, 10));
    node.turns(10);
    node.apply(Duty { partition_epoch: PartitionEpoch(1), ..two_replicas(P(1), 0, &[1]) }).expect("applied");
    assert!(node.produced(shrunk)[0].result.is_ok());
    // Leadership moves: nobody is told of success.
    node.apply(Duty { partition_epoch: PartitionEpoch(2), ..two_replicas(P(1), 0, &[1, 2]) }).expect("applied");
    let lost = node.produce_async(Acks::All, P(1), batch(1, 10));
    node.turns(10);
    let moved = Duty { leader: Some(NodeId(2)), partition_epoch: PartitionEpoch(3), ..two_replicas(P(1), 1, &[1, 2]) };
    node.apply(moved).expect("it follows");
    assert_eq!(node.produced(lost)[0].result, Err(ProduceError::Partition(PartitionError::NotLeader)));
}

#[test]
fn a_deadline_does_not_cut_the_own_device_short() {
    let mut node = Node::new(64, 5);
    node.lead(P(1), 0, &[]);
    let mut command = node.produce_command(Acks::All, vec![(P(1), Some(batch(1, 10)))]);
    command.deadline = node.now.monotonic;
    let gather = command.gather;
    node.send(Command::Produce(command));
    node.partitions.on_time(node.now, &mut node.store);
    assert_eq!(node.produced(gather)[0].result.as_ref().err(), None);
}

#[test]
fn a_namespace_that_stops_acknowledges_nothing() {
    let mut node = Node::new(64, 6);
    node.lead(P(1), 0, &[]);
    node.lead(P(2), 0, &[]);
    node.produce(Acks::All, P(1), batch(1, 10)).expect("appended");
    let mut waits = node.fetch_command(vec![entry(P(2), 0, 10)], true);
    waits.bytes_min = 1;
    let waits_gather = waits.gather;
    node.send(Command::Fetch(waits));
    node.fetched(waits_gather);
    node.disk.set_faults(FaultPlan { write_error: PerMillion::ALWAYS, ..FaultPlan::none() });
    let storage = ProduceError::Partition(PartitionError::Storage);
    let lost = [Acks::Leader, Acks::All].map(|acks| node.produce_async(acks, P(1), batch(1, 10)));
    let append = internal(P(1), 0, batch(1, 10), node.now.monotonic + Duration::from_secs(9));
    node.send(Command::Internal(Internal::Append(append)));
    for gather in lost {
        assert_eq!(node.produced(gather)[0].result, Err(storage.clone()));
    }
    assert_eq!(internal_result(&mut node), Err(InternalAppendError::Unknown { from: Offset(3) }));
    node.wait("news", |outcome| matches!(outcome, Outcome::FetchNews { entries, .. } if entries[0].urgent), drop);
    assert!(node.up_calls.iter().any(|call| matches!(call, UpCall::DirectoryFailed { .. })));
    assert_eq!(node.produce(Acks::None, P(2), batch(1, 10)), Err(storage));
    assert_eq!(node.fetch(P(1), 0, 10).map(|_| ()), Err(FetchError::Partition(PartitionError::Storage)));
    assert_eq!(node.partitions.pending(), 0);
}

#[test]
fn a_full_namespace_refuses_serves_and_recovers() {
    let mut node = Node::new(24, 7);
    node.lead(P(1), 0, &[]);
    node.lead(P(2), 0, &[]);
    let mut sizes = 0;
    let refused = loop {
        match node.produce(Acks::All, P(1), batch(1, 100_000)) {
            Ok(_) => sizes += 1,
            Err(error) => break error,
        }
        assert!(sizes < 1000, "it never fills");
    };
    assert_eq!(refused, ProduceError::Full);
    assert_eq!(node.fetch(P(1), 0, 1).map(|records| records.high_watermark.0), Ok(sizes));
    assert_eq!(node.produce(Acks::All, P(1), batch(1, 100_000)), Err(ProduceError::Full));
    // Partitions are refused too, and no removal waits behind them.
    let unplaced = (100..1000).find(|number| node.apply(duty(P(*number), 0, &[])) == Err(DutyError::Full));
    let unplaced = P(unplaced.expect("partitions are never refused"));
    assert_eq!((node.store.find(unplaced), node.partitions.duties_waiting()), (None, 0));
    node.partitions.remove(&mut node.store, Removal { partition: P(1), removed_at: 11 }).expect("removed");
    for _ in 0..2000 {
        node.pass(Duration::from_millis(5));
        if node.produce(Acks::All, P(2), batch(1, 100_000)).is_ok() && node.store.find(unplaced).is_some() {
            return;
        }
    }
    panic!("there is no room again");
}

#[test]
fn appends_wait_for_room_in_their_order() {
    let (disk, mut now) = (new_disk(64, 8), START);
    format(&disk, &mut now);
    let options = StoreOptions { copy_out_window: 256 << 10, ..store_options() };
    let mut node = Node::open(&disk, 8, now, &broker(&[]), options);
    node.lead(P(1), 0, &[]);
    let gathers: Vec<_> = (0..200).map(|_| node.produce_async(Acks::Leader, P(1), batch(1, 3500))).collect();
    for (number, gather) in gathers.into_iter().enumerate() {
        let base = node.produced(gather).remove(0).result.map(|one| one.base_offset.0);
        assert_eq!(base, Ok(number as i64));
    }
    // One that finds no room until its time is over was never appended.
    let late: Vec<_> = (0..200)
        .map(|_| {
            let mut command = node.produce_command(Acks::Leader, vec![(P(1), Some(batch(1, 3500)))]);
            command.deadline = node.now.monotonic;
            let gather = command.gather;
            node.send(Command::Produce(command));
            gather
        })
        .collect();
    node.partitions.on_time(node.now, &mut node.store);
    let answers: Vec<_> = late.into_iter().map(|gather| node.produced(gather).remove(0).result).collect();
    let refused = answers.iter().filter(|answer| **answer == Err(ProduceError::TimedOut)).count();
    let taken = answers.iter().filter(|answer| answer.is_ok()).count();
    assert!(refused > 0 && taken > 0 && refused + taken == 200, "{refused} refused, {taken} taken");
    node.turns(50);
    let log = node.store.find(P(1)).expect("it is there");
    assert_eq!(node.store.end_offset(log).0 as usize, 200 + taken);
}

fn internal(partition: PartitionId, epoch: i32, bytes: Vec<u8>, deadline: Monotonic) -> InternalAppend {
    let batches = BufferRef::from_vec(bytes).into_parcel();
    InternalAppend { id: 77, partition, expected_epoch: LeaderEpoch(epoch), batches, deadline }
}

fn internal_result(node: &mut Node) -> Result<Offset, InternalAppendError> {
    node.wait(
        "an internal append",
        |outcome| matches!(outcome, Outcome::InternalAppended { id: 77, .. }),
        |outcome| match outcome {
            Outcome::InternalAppended { result, .. } => result,
            other => panic!("{other:?}"),
        },
    )
}

#[test]
fn coordinators_append_and_read_under_the_epoch_they_loaded() {
    let mut node = Node::new(64, 9);
    let offsets = Duty { topic_name: "__consumer_offsets".into(), ..duty(P(1), 4, &[("cleanup.policy", "compact")]) };
    node.apply(offsets).expect("it leads");
    let leads = UpCall::Leads { partition: P(1), epoch: LeaderEpoch(4), end: Offset(0) };
    assert_eq!(node.up_calls, [leads]);
    let deadline = node.now.monotonic + Duration::from_secs(5);
    let append = |node: &mut Node, epoch, bytes| {
        node.send(Command::Internal(Internal::Append(internal(P(1), epoch, bytes, deadline))));
        internal_result(node)
    };
    let other = InternalAppendError::OtherEpoch { current: Some(LeaderEpoch(4)) };
    assert_eq!(append(&mut node, 3, batch(2, 10)), Err(other));
    let mut several = batch(2, 10);
    several.extend(batch(3, 2000));
    several.extend(batch(1, 10));
    assert_eq!(append(&mut node, 4, several), Ok(Offset(0)));
    assert_eq!(append(&mut node, 4, batch(1, 10)), Ok(Offset(6)));
    let mut broken = batch(1, 10);
    broken.extend(&batch(1, 10)[..70]);
    assert!(matches!(append(&mut node, 4, broken), Err(InternalAppendError::Refused(_))));
    let mut read = |offset, epoch, bytes_max| {
        let read = InternalRead {
            id: 5,
            partition: P(1),
            expected_epoch: LeaderEpoch(epoch),
            offset: Offset(offset),
            bytes_max,
        };
        node.send(Command::Internal(Internal::Read(read)));
        node.wait(
            "a read",
            |outcome| matches!(outcome, Outcome::InternalRead { .. }),
            |outcome| match outcome {
                Outcome::InternalRead { result, .. } => result.map(|slice| (slice.next.0, slice.high_watermark.0)),
                other => panic!("{other:?}"),
            },
        )
    };
    assert_eq!(read(0, 4, 1), Ok((2, 7)));
    assert_eq!(read(2, 4, 1 << 20), Ok((7, 7)));
    assert_eq!(read(7, 4, 1 << 20), Ok((7, 7)));
    assert_eq!(read(8, 4, 1 << 20), Err(FetchError::OutOfRange));
    assert_eq!(read(0, 3, 1), Err(FetchError::Partition(PartitionError::FencedEpoch)));
}

#[test]
fn producers_and_sizes_are_described() {
    let mut node = Node::new(64, 10);
    node.lead(P(1), 0, &[]);
    node.produce(Acks::All, P(1), producer_batch(3, 9, 2, 0)).expect("appended");
    let gather = node.gather();
    let entries = vec![(EntryIndex(0), P(1)), (EntryIndex(1), P(5))];
    node.send(Command::DescribeProducers(DescribeProducers { gather, entries }));
    let Some(Outcome::ProducersDescribed { entries, .. }) = node.outcomes.pop() else { panic!("no answer") };
    let facts = ProducerFacts {
        id: ProducerId(9),
        epoch: ProducerEpoch(2),
        last_sequence: Some(Sequence(2)),
        last_timestamp: START.wall.0 + 2,
        coordinator_epoch: None,
        transaction_start: None,
    };
    assert_eq!(entries, [(EntryIndex(0), Ok(vec![facts])), (EntryIndex(1), Err(PartitionError::Unknown))]);
    node.send(Command::DescribeLogs(DescribeLogs { gather, partitions: vec![P(7), P(1)] }));
    let Some(Outcome::LogsDescribed { logs, .. }) = node.outcomes.pop() else { panic!("no answer") };
    let size = producer_batch(3, 9, 2, 0).len() as u64;
    assert_eq!(logs, [LogFacts { partition: P(1), size, lag: 0, future: false }]);
}

#[test]
fn new_broker_settings_reach_every_topic_that_does_not_set_them() {
    let mut node = Node::new(64, 11);
    for number in 0..20 {
        let own = [("max.message.bytes", "5000")];
        node.lead(P(number), 0, if number == 7 { &own } else { &[] });
    }
    node.partitions.set_broker_settings(broker(&[("message.max.bytes", "300")]));
    assert!(node.partitions.next_deadline() <= Some(node.now.monotonic), "there is something to do at once");
    node.turns(100);
    for number in 0..20 {
        let result = node.produce(Acks::All, P(number), batch(1, 1000));
        assert_eq!(result.is_ok(), number == 7, "topic {number}: {result:?}");
    }
}

#[test]
fn many_idle_fetches_and_one_with_many_partitions() {
    let mut node = Node::new(64, 12);
    for number in 0..50 {
        node.lead(P(number), 0, &[]);
    }
    let mut gathers = Vec::new();
    for number in 0..1000u32 {
        let mut entries = vec![entry(P(u128::from(number % 50)), 0, 1000), entry(P(49), 0, 1000)];
        entries[1].index = EntryIndex(1);
        let command = node.fetch_command(entries, true);
        gathers.push(command.gather);
        node.send(Command::Fetch(command));
    }
    node.outcomes.clear();
    assert_eq!(node.partitions.waiting_fetches(), 1000);
    node.turns(20);
    assert!(node.outcomes.is_empty());
    node.produce(Acks::All, P(3), batch(1, 10)).expect("appended");
    assert_eq!(node.outcomes.len(), 20, "those who wait for it and nobody else");
    gathers.into_iter().rev().for_each(|gather| node.send(Command::Cancel(gather)));
    assert_eq!(node.partitions.waiting_fetches(), 0);
    node.outcomes.clear();
    // The response's limit is spent in the order of the entries; the first batch is whole all the same.
    for number in 0..50 {
        node.produce(Acks::All, P(number), batch(1, 5000)).expect("appended");
    }
    let entries = (0..50).map(|number| FetchEntry { index: EntryIndex(number), ..entry(P(number.into()), 0, 1 << 20) });
    let mut command = node.fetch_command(entries.collect(), false);
    command.bytes_max = 20_000;
    let gather = command.gather;
    node.send(Command::Fetch(command));
    let fetched = node.fetched(gather);
    let bytes: Vec<u32> = fetched.iter().map(|one| one.result.as_ref().map_or(0, |records| records.bytes)).collect();
    assert!(bytes[..3].iter().all(|bytes| *bytes > 0) && bytes[4..].iter().all(|bytes| *bytes == 0), "{bytes:?}");
}

/// The node's time in a log never goes back, though its clock does, in one run and from one to the next.
#[test]
fn append_times_never_fall_over_restarts_under_a_clock_that_was_set_back() {
    let mut node = Node::new(64, 90);
    let (config, mut times) = ([("message.timestamp.type", "LogAppendTime")], Vec::new());
    for run in 0..4 {
        node.lead(P(1), run, &config);
        for _ in 0..3 {
            let appended = node.produce(Acks::All, P(1), batch(2, 10)).expect("appended");
            times.push(appended.append_time.expect("it is the node's"));
            node.pass(Duration::from_millis(7));
            node.now.wall.0 -= 3000;
        }
        let (disk, mut now) = node.kill();
        now.wall.0 -= 3_600_000;
        if run == 2 {
            // As a clock that was far behind and is right again.
            now.wall.0 += 36_000_000;
        }
        node = Node::open(&disk, 91, now, &broker(&[]), store_options());
    }
    assert!(times.windows(2).all(|pair| pair[0] <= pair[1]), "{times:?}");
    assert!(times.last() > times.first(), "a clock that goes on is followed: {times:?}");
    node.lead(P(1), 9, &config);
    let bytes = node.consume(P(1), 0, 1 << 20);
    let stored = batch::Batches::new(&bytes).map(|view| view.expect("a good batch").max_timestamp().0);
    assert_eq!(stored.collect::<Vec<_>>(), times, "what was answered is what stands in the log");
}
