//! Fetches that come in runs: what one run registered stays when the next comes, and very many waiters leave their lists
//! in turns, though nothing is told to them from the first on.

mod common;

use base::*;
use common::*;
use handoff::*;
use pollux_partition::Removal;

const P: fn(u128) -> PartitionId = partition;

/// Sends a run of entries of one fetch, which all wait at their partition's end.
fn run(node: &mut Node, gather: GatherId, first: u32, entries: Vec<FetchEntry>) {
    let mut command = node.fetch_command(entries, true);
    (command.gather, command.goes_on) = (gather, first > 0);
    for (at, entry) in command.entries.iter_mut().enumerate() {
        entry.index = EntryIndex(first + at as u32);
    }
    node.send(Command::Fetch(command));
    node.fetched(gather);
}

fn told(node: &mut Node, gather: GatherId) -> Vec<u32> {
    node.wait(
        "news",
        |outcome| matches!(outcome, Outcome::FetchNews { gather: its, .. } if *its == gather),
        |outcome| match outcome {
            Outcome::FetchNews { entries, .. } => entries.into_iter().map(|news| news.index.0).collect(),
            other => panic!("{other:?}"),
        },
    )
}

#[test]
fn a_run_that_goes_on_leaves_the_waiters_before_it() {
    let mut node = Node::new(64, 21);
    (1..=3).for_each(|number| node.lead(P(number), 0, &[]));
    let gather = node.gather();
    run(&mut node, gather, 0, vec![entry(P(1), 0, 1000), entry(P(2), 0, 1000)]);
    run(&mut node, gather, 2, vec![entry(P(3), 0, 1000)]);
    assert_eq!(node.partitions.waiting_fetches(), 1, "it is one fetch");
    node.produce(Acks::All, P(2), batch(1, 10)).expect("appended");
    assert_eq!(told(&mut node, gather), [1]);
    node.produce(Acks::All, P(3), batch(1, 10)).expect("appended");
    node.turns(5);
    assert!(node.outcomes.is_empty(), "it was told of enough");
    // A first run begins anew.
    run(&mut node, gather, 0, vec![entry(P(1), 0, 1000)]);
    node.produce(Acks::All, P(2), batch(1, 10)).expect("appended");
    node.turns(5);
    assert!(node.outcomes.is_empty(), "it waits at the first partition alone");
    node.produce(Acks::All, P(1), batch(1, 10)).expect("appended");
    assert_eq!(told(&mut node, gather), [0]);
    node.send(Command::Cancel(gather));
    assert_eq!(node.partitions.waiting_fetches(), 0);
}

#[test]
fn very_many_waiters_are_told_nothing_more_and_leave_in_turns() {
    const WAITERS: u32 = 2000;
    let mut node = Node::new(64, 22);
    (1..=4).for_each(|number| node.lead(P(number), 0, &[]));
    let (many, other) = (node.gather(), node.gather());
    for first in (0..WAITERS).step_by(50) {
        let entries = (first..first + 50).map(|at| entry(P(1 + u128::from(at) % 4), 0, 1000));
        run(&mut node, many, first, entries.collect());
    }
    run(&mut node, other, 0, vec![entry(P(2), 0, 1000)]);
    assert_eq!(node.partitions.waiting_fetches(), 2);
    node.send(Command::Cancel(many));
    assert_eq!(node.partitions.waiting_fetches(), 1);
    assert_eq!(node.partitions.next_deadline(), Some(Monotonic::ZERO), "their lists still hold some");
    node.produce(Acks::All, P(1), batch(1, 10)).expect("appended");
    node.turns(2);
    assert!(node.outcomes.is_empty(), "nobody hears of it");
    let mut turns = 0;
    while node.partitions.next_deadline() == Some(Monotonic::ZERO) {
        node.turns(1);
        turns += 1;
        assert!(turns < 100, "they never leave");
    }
    // The one that stayed has its place in the list still, and hears of news once.
    node.produce(Acks::All, P(2), batch(1, 10)).expect("appended");
    assert_eq!(told(&mut node, other), [0]);
    node.send(Command::Cancel(other));
    node.produce(Acks::All, P(2), batch(1, 10)).expect("appended");
    node.turns(5);
    assert!(node.outcomes.is_empty());
}

/// Fetches of one partition's end, one for each reader.
fn readers(node: &mut Node, count: usize) -> Vec<GatherId> {
    let gathers: Vec<GatherId> = (0..count).map(|_| node.gather()).collect();
    for gather in &gathers {
        run(node, *gather, 0, vec![entry(P(1), 0, 1000)]);
    }
    gathers
}

fn news(outcomes: &[Outcome]) -> Vec<(GatherId, bool)> {
    let of = |outcome: &Outcome| match outcome {
        Outcome::FetchNews { gather, entries } => Some((*gather, entries[0].urgent)),
        _ => None,
    };
    outcomes.iter().filter_map(of).collect()
}

#[test]
fn very_many_readers_of_one_partition_hear_in_turns_and_all_of_them() {
    const READERS: usize = 1000;
    for urgently in [false, true] {
        let mut node = Node::new(64, 24);
        node.lead(P(1), 0, &[]);
        let gathers = readers(&mut node, READERS);
        if urgently {
            node.partitions.remove(&mut node.store, Removal { partition: P(1), removed_at: 10 }).expect("removed");
        } else {
            node.produce_async(Acks::All, P(1), batch(1, 10));
        }
        let (mut heard, mut turns) = (std::collections::HashSet::new(), 0);
        while heard.len() < READERS {
            // Some leave while others have still to hear.
            if let Some(gone) = gathers.get(turns * 7).filter(|_| turns < 2) {
                heard.insert(*gone);
                node.send(Command::Cancel(*gone));
            }
            node.turn();
            let told = news(&std::mem::take(&mut node.outcomes));
            assert!(told.len() <= 2 * 256, "{} in one turn", told.len());
            assert!(told.iter().all(|(_, its)| *its == urgently));
            heard.extend(told.into_iter().map(|(gather, _)| gather));
            turns += 1;
            assert!(turns < 50, "{} heard", heard.len());
        }
        assert!(turns >= READERS / 512, "{turns} turns");
    }
}

#[test]
fn an_answer_in_memory_is_no_larger_than_the_run_may_have() {
    let mut node = Node::new(64, 23);
    (1..=3).for_each(|number| node.lead(P(number), 0, &[]));
    for number in 1..=3 {
        node.produce(Acks::All, P(number), batch(1, 3000)).expect("appended");
    }
    let mut command = node.fetch_command((1..=3).map(|number| entry(P(number), 0, 1 << 20)).collect(), false);
    let gather = command.gather;
    (command.goes_on, command.has_bytes, command.ready_max) = (true, true, 4000);
    command.entries.iter_mut().zip(0..).for_each(|(entry, at)| entry.index = EntryIndex(at));
    node.send(Command::Fetch(command));
    let bytes: Vec<u32> =
        node.fetched(gather).into_iter().map(|fetched| fetched.result.expect("it is read").bytes).collect();
    // A batch that has begun is whole.
    assert!(bytes[0] > 3000 && bytes[1] > 3000 && bytes[2] == 0, "{bytes:?}");
    // Where an entry before them has bytes and the response is full, no first batch is given beyond it.
    let mut command = node.fetch_command(vec![entry(P(1), 0, 1 << 20)], false);
    let gather = command.gather;
    (command.goes_on, command.has_bytes, command.bytes_max) = (true, true, 100);
    node.send(Command::Fetch(command));
    assert_eq!(node.fetched(gather).remove(0).result.expect("it is read").bytes, 0);
}
