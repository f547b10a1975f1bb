//! A clean stop under load: what is refused is not stored, and what is acknowledged is.

mod common;

use base::WallMillis;
use batch::{BatchBuilder, Batches, Records};
use common::*;
use perf::client::{CallError, Connection, fetch_request, produce_request};
use rustix::process::Signal;
use std::collections::{HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, UNIX_EPOCH};
use wire::messages::create_topics_request::CreatableTopic;
use wire::messages::{CreateTopicsRequest, FetchRequest, ProduceRequest};

const TOPIC: &str = "stopped";
const PARTITIONS: i32 = 4;
const WRITERS: u32 = 8;
/// Requests that a writer has out.
const PIPELINED: usize = 16;
const STOPS: u32 = 3;
/// Acknowledged before the stop comes.
const BEFORE_STOP: usize = 1000;
const PATIENCE: Duration = Duration::from_secs(30);

/// What became of the values that were sent.
#[derive(Default)]
struct Told {
    acknowledged: Vec<u64>,
    refused: Vec<u64>,
}

fn partition_of(value: u64) -> i32 {
    (value % PARTITIONS as u64) as i32
}

fn request(value: u64) -> ProduceRequest {
    let mut builder = BatchBuilder::new();
    let wall = UNIX_EPOCH.elapsed().expect("a clock past 1970").as_millis() as i64;
    builder.append(WallMillis(wall), None, Some(&value.to_be_bytes()), &[]);
    produce_request(TOPIC, partition_of(value), builder.build().into(), -1, PATIENCE)
}

/// Sends until the node takes the connection away. Values of one writer and stop are its own.
fn write(address: SocketAddr, first: u64, acknowledged: &AtomicUsize) -> Told {
    let mut node = Connection::open(address, PATIENCE).expect("a connection");
    let (mut told, mut out, mut next) = (Told::default(), VecDeque::new(), first);
    loop {
        while out.len() < PIPELINED {
            match node.send(9, &request(next)) {
                Ok(correlation) => out.push_back((correlation, next)),
                Err(CallError::Io(_) | CallError::Closed) => break,
                Err(other) => panic!("{other}"),
            }
            next += 1;
        }
        let Some((correlation, value)) = out.pop_front() else { return told };
        match node.receive::<ProduceRequest>(9, correlation) {
            Ok(answer) if answer.responses[0].partition_responses[0].error_code == 0 => {
                acknowledged.fetch_add(1, Ordering::Relaxed);
                told.acknowledged.push(value);
            }
            Ok(_) => told.refused.push(value),
            // The connection is gone, and what became of what is out is not known.
            Err(CallError::Io(_) | CallError::Closed) => return told,
            Err(other) => panic!("{other}"),
        }
    }
}

fn stored(node: &mut Connection) -> HashSet<u64> {
    let mut found = HashSet::new();
    for partition in 0..PARTITIONS {
        let mut from = 0;
        loop {
            let request = fetch_request(TOPIC, partition, from, 1 << 20, Duration::ZERO);
            let answer = until("an answer without an error", || {
                let answer = node.call::<FetchRequest>(11, &request).expect("answered");
                let told = answer.responses[0].partitions[0].clone();
                (told.error_code == 0).then_some(told)
            });
            let records = answer.records.unwrap_or_default();
            for view in Batches::new(&records).map_while(Result::ok) {
                for record in Records::new(view.body(), view.records_count()) {
                    let value = record.expect("a good record").value.expect("a value");
                    assert!(found.insert(u64::from_be_bytes(value.try_into().expect("a value of ours"))), "once");
                }
                from = view.header().last_offset().0 + 1;
            }
            if from >= answer.high_watermark {
                break;
            }
        }
    }
    found
}

/// What is on its way to the medium when the node is told to stop will be there: a producer without sequence numbers that
/// is refused sends it again, and it is there twice.
#[test]
fn a_stop_under_load_stores_nothing_that_it_refuses() {
    let folder = Folder::new();
    let data = folder.0.join("data");
    let mut all = Told::default();
    for stop in 0..STOPS {
        let mut node = Running::start(&data, &[]).ready();
        if stop == 0 {
            let topic = CreatableTopic {
                name: TOPIC.into(),
                num_partitions: PARTITIONS,
                replication_factor: 1,
                ..Default::default()
            };
            let request = CreateTopicsRequest { topics: vec![topic], timeout_ms: 30_000, ..Default::default() };
            assert_eq!(node.client().call(7, &request).expect("answered").topics[0].error_code, 0);
        }
        let (address, acknowledged) = (node.address(), AtomicUsize::new(0));
        let told: Vec<Told> = std::thread::scope(|scope| {
            let writer = |number: u32| u64::from(stop * WRITERS + number) << 32;
            let acknowledged = &acknowledged;
            let writers: Vec<_> =
                (0..WRITERS).map(|number| scope.spawn(move || write(address, writer(number), acknowledged))).collect();
            until("records before the stop", || (acknowledged.load(Ordering::Relaxed) >= BEFORE_STOP).then_some(()));
            signal(node.child.id(), Signal::TERM);
            assert!(node.wait_end().success());
            writers.into_iter().map(|writer| writer.join().expect("it ends")).collect()
        });
        for mut one in told {
            all.acknowledged.append(&mut one.acknowledged);
            all.refused.append(&mut one.refused);
        }
    }
    let mut node = Running::start(&data, &[]).ready();
    let stored = stored(&mut node.client());
    let lost = all.acknowledged.iter().filter(|value| !stored.contains(value)).count();
    let kept = all.refused.iter().filter(|value| stored.contains(value)).count();
    println!("{} acknowledged, {} refused, {} stored", all.acknowledged.len(), all.refused.len(), stored.len());
    assert_eq!((lost, kept), (0, 0), "acknowledged and lost; refused and stored");
    assert!(node.stop().success());
}
