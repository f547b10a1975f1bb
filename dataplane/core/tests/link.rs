//! A control plane that connects and reads nothing: what clients ask of it does not pile up here, and produce and fetch
//! go on.

mod common;

use arena::SharedPages;
use base::counters::{Counter, readings};
use bytes::{Bytes, BytesMut};
use common::*;
use link::{Down, Up};
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::encode_request;
use wire::messages::*;

const CLIENTS: usize = 200;

/// Resident bytes of this process, of which the dataplane is a part.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

fn large() -> Bytes {
    use sync_group_request::SyncGroupRequestAssignment;
    let assignment = Bytes::from(vec![1; 900_000]);
    let assignments = vec![SyncGroupRequestAssignment { assignment, ..Default::default() }];
    let request = SyncGroupRequest { group_id: "g".into(), assignments, ..Default::default() };
    let mut out = BytesMut::new();
    encode_request(&mut out, 3, 1, Some("test"), &request).unwrap();
    out.freeze()
}

#[test]
fn a_control_plane_that_reads_nothing_makes_nothing_grow() {
    let directory = Directory::new("deaf");
    let dataplane = start(&directory.0, true, &["cores=2"]);
    let mut plane = ControlPlane::connect(&directory.0);
    plane.state(10, 0, 2);
    let words: base::counters::Words = Arc::new(SharedPages::open(&directory.0.join("counters")).unwrap());
    let sum = |counter| readings(&words).iter().map(|core| core.get(counter)).sum::<u64>();
    let mut good = Client::connect(&dataplane);
    assert_eq!(good.produce(0, records(&["before"])).error_code, 0);
    let before = resident();
    let request = large();
    // The dataplane may stop reading, or end the connection.
    let send = |_| {
        let mut client = Client::connect(&dataplane);
        client.socket.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
        let _ = client.socket.write_all(&request);
        client
    };
    let clients: Vec<Client> = (0..CLIENTS).map(send).collect();
    let began = Instant::now();
    while sum(Counter::LinkNoCredit) == 0 {
        assert!(began.elapsed() < DEADLINE, "nobody waits for credit");
        assert_eq!(good.produce(1, records(&["meanwhile"])).error_code, 0);
    }
    for _ in 0..50 {
        assert_eq!(good.produce(0, records(&["meanwhile"])).error_code, 0, "produce goes on");
        assert_eq!(good.fetch(0, 0, 0).error_code, 0, "and fetch");
    }
    let under_way = sum(Counter::LinkForwarded);
    assert!(under_way <= link::FORWARD_CREDIT_BYTES as u64, "{under_way} bytes are under way");
    // Twice the credit (a request is kept until it is answered, and lies in the link), the receive memory, and as much
    // again of what waits outside it; the clients have sent 180 MB.
    let grown = resident().saturating_sub(before);
    assert!(grown < 100 << 20, "{} MiB more than before", grown >> 20);
    drop(clients);
    drop(plane);
    // Another one finds nothing of it, and the node stops in order.
    let plane = ControlPlane::connect(&directory.0);
    let began = Instant::now();
    while sum(Counter::LinkForwarded) > 0 {
        assert!(began.elapsed() < DEADLINE, "credit is not given back");
        assert_eq!(good.produce(0, records(&["afterwards"])).error_code, 0);
    }
    plane.stop(dataplane);
}

/// Clients whose requests lie in the link, unread, and a node that is told to stop.
fn stopping(directory: &Directory) -> (Dataplane, ControlPlane, Vec<Client>) {
    let dataplane = start(&directory.0, true, &["cores=2"]);
    let mut plane = ControlPlane::connect(&directory.0);
    plane.state(10, 0, 2);
    let words: base::counters::Words = Arc::new(SharedPages::open(&directory.0.join("counters")).unwrap());
    let request = large();
    let mut clients: Vec<Client> = (0..6).map(|_| Client::connect(&dataplane)).collect();
    for client in &mut clients {
        client.socket.set_write_timeout(Some(DEADLINE)).unwrap();
        client.socket.write_all(&request).unwrap();
    }
    let forwarded = || readings(&words).iter().map(|core| core.get(Counter::LinkForwarded)).sum::<u64>();
    let began = Instant::now();
    while forwarded() < 5 << 20 {
        assert!(began.elapsed() < DEADLINE, "{} bytes are under way", forwarded());
        std::thread::yield_now();
    }
    plane.say(Down::Stop);
    let mut good = Client::connect(&dataplane);
    // It is told that the storage has stopped, or nothing, where the partition's core has ended already.
    good.socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    while good.try_produce(1, records(&["still"])).is_ok_and(|answer| answer.error_code == 0) {
        assert!(began.elapsed() < DEADLINE, "it does not stop");
    }
    (dataplane, plane, clients)
}

#[test]
fn a_stop_ends_when_the_control_plane_has_read_what_was_said_to_it() {
    let directory = Directory::new("backlog");
    let (dataplane, mut plane, clients) = stopping(&directory);
    // The store is closed within milliseconds; what was said is far more than a socket holds.
    let closed = Instant::now();
    while closed.elapsed() < Duration::from_millis(300) {
        assert!(!dataplane.thread.is_finished(), "it ends before all is read");
        std::thread::yield_now();
    }
    let mut requests = 0;
    plane.wait(|up| {
        requests += usize::from(matches!(up, Up::Forward(_)));
        matches!(up, Up::Stopped)
    });
    assert_eq!(requests, clients.len(), "what was said before is read before");
    dataplane.thread.join().unwrap();
}

#[test]
fn a_stop_does_not_wait_for_ever_for_a_control_plane_that_reads_nothing() {
    let directory = Directory::new("deaf-stop");
    let (dataplane, plane, clients) = stopping(&directory);
    let began = Instant::now();
    while !dataplane.thread.is_finished() {
        assert!(began.elapsed() < DEADLINE, "it waits for ever");
        std::thread::sleep(Duration::from_millis(5));
    }
    dataplane.thread.join().unwrap();
    drop((plane, clients));
}
