//! Fetch of what the device cannot give: never wrong bytes, and no second answer that is begun and cannot be finished.

mod common;

use base::*;
use batch::Batches;
use common::*;
use handoff::*;
use nvme_device::sim::{FaultPlan, PerMillion};
use nvme_log::StoreOptions;

const P: fn(u128) -> PartitionId = partition;

#[test]
fn damaged_bytes_are_refused_and_never_sent() {
    let mut node = tight_node(12);
    node.lead(P(1), 0, &[]);
    for _ in 0..200 {
        node.produce_async(Acks::None, P(1), batch(10, 1000));
        node.turn();
    }
    node.turns(200);
    node.outcomes.clear();
    let good = node.fetch(P(1), 1000, 1 << 20).expect("it can be read");
    node.disk.set_faults(FaultPlan { read_error: PerMillion::ALWAYS, ..FaultPlan::none() });
    let storage = FetchError::Partition(PartitionError::Storage);
    assert_eq!(node.fetch(P(1), 1705, 1 << 20).map(|records| records.bytes), Err(storage));
    node.disk.set_faults(FaultPlan { bit_rot: PerMillion::ALWAYS, ..FaultPlan::none() });
    // The flipped bit may lie beside the bytes asked for, and what precedes it is good.
    let mut refused = false;
    for _ in 0..20 {
        match node.fetch(P(1), 1705, 1 << 20) {
            Ok(records) => {
                let ready: Vec<u8> = records.ready.iter().flat_map(|piece| piece.to_vec()).collect();
                Batches::new(&ready).for_each(|view| view.expect("a batch").check_crc().expect("good bytes"));
            }
            Err(error) => {
                assert_eq!(error, FetchError::Corrupt);
                refused = true;
            }
        }
    }
    assert!(refused);
    // So are the windows of an answer that has begun: its connection ends.
    assert!(!good.rest.is_empty());
    let result = node.window(good.rest, 1 << 20).map(|window| window.pieces.len());
    assert_eq!(result, Err(FetchError::Corrupt));
    assert_eq!(node.partitions.pending(), 0);
}

/// An answer that has begun can only be broken off: so no later one is begun that would reach what could not be read.
#[test]
fn an_answer_ends_before_what_could_not_be_read() {
    let mut node = Node::with_store(96, 14, StoreOptions { index_cache: 1 << 20, ..tight() });
    node.lead(P(1), 0, &[]);
    for number in 0..500 {
        // Large batches of several stretches among small ones.
        node.produce_async(Acks::None, P(1), if number % 13 == 12 { batch(1, 200_000) } else { batch(10, 1000) });
        node.turn();
    }
    node.turns(200);
    node.outcomes.clear();
    // Brings the indexes, without which an answer ends where an extent does.
    node.consume(P(1), 0, 1 << 20);
    let mut refused = Vec::new();
    for from in [0, 700, 1500] {
        let begun = node.fetch(P(1), from, 1 << 20).expect("it can be read");
        let (all, rest) = (begun.bytes, begun.rest);
        assert!(rest.len() > 1);
        node.disk.set_faults(FaultPlan { read_error: PerMillion::ALWAYS, ..FaultPlan::none() });
        assert!(node.window(rest, 64 << 10).is_err(), "the answer is broken off");
        node.disk.set_faults(FaultPlan::none());
        // The next ends in front of it, with a whole batch, and what it describes can be read.
        let records = node.fetch(P(1), from, 1 << 20).expect("it can be read");
        assert!(records.bytes < all, "{} of {all} bytes", records.bytes);
        let bytes = node.whole(records, 64 << 10);
        let last = Batches::new(&bytes).last().expect("there is one").expect("a batch");
        refused.push(last.header().last_offset().0 + 1);
    }
    // Whoever comes to it is told, for as long as it cannot be read, and gets it once it can.
    for from in refused {
        node.disk.set_faults(FaultPlan { read_error: PerMillion::ALWAYS, ..FaultPlan::none() });
        let storage = FetchError::Partition(PartitionError::Storage);
        assert_eq!(node.fetch(P(1), from, 1 << 20).map(|records| records.bytes), Err(storage));
        node.disk.set_faults(FaultPlan::none());
        let records = node.fetch(P(1), from, 1 << 20).expect("it can be read again");
        assert!(records.bytes > 1000 && !node.whole(records, 64 << 10).is_empty());
    }
    assert_eq!(node.partitions.pending(), 0);
}
