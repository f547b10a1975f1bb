//! The limits under which clients come in, and how long they may stay, on a running dataplane.

mod common;

use common::*;
use std::io::Read;
use std::time::{Duration, Instant};

#[test]
fn an_address_gets_as_many_connections_as_it_may() {
    let directory = Directory::new("per-ip");
    let set = ["cores=2", "max.connections.per.ip=3", "max.connections.per.ip.overrides=\"10.9.9.9:1\""];
    let dataplane = start(&directory.0, true, &set);
    let mut plane = ControlPlane::connect(&directory.0);
    plane.state(10, 0, 1);
    let mut clients: Vec<Client> = (0..3).map(|_| Client::connect(&dataplane)).collect();
    assert!(clients.iter_mut().all(is_served));
    assert!(!is_served(&mut Client::connect(&dataplane)), "a fourth is closed");
    assert!(clients.iter_mut().all(is_served), "and the others do not notice");
    clients.pop();
    // Somebody has to notice that it went.
    let began = Instant::now();
    while !is_served(&mut Client::connect(&dataplane)) {
        assert!(began.elapsed() < DEADLINE, "its place is never given away");
    }
    plane.stop(dataplane);
}

#[test]
fn clients_beyond_the_most_connections_wait_for_a_place() {
    let directory = Directory::new("most");
    let dataplane = start(&directory.0, true, &["cores=2", "max.connections=2"]);
    let mut plane = ControlPlane::connect(&directory.0);
    plane.state(10, 0, 1);
    let mut clients: Vec<Client> = (0..2).map(|_| Client::connect(&dataplane)).collect();
    assert!(clients.iter_mut().all(is_served));
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let mut client = Client::connect(&dataplane);
            std::thread::spawn(move || is_served(&mut client))
        })
        .collect();
    // What is served again and again had its turns: nobody who waits was let in meanwhile.
    for _ in 0..200 {
        assert!(clients.iter_mut().all(is_served));
    }
    assert!(waiting.iter().all(|client| !client.is_finished()));
    drop(clients);
    for client in waiting {
        assert!(client.join().unwrap(), "each got its place when another went");
    }
    plane.stop(dataplane);
}

#[test]
fn an_address_may_have_a_limit_of_its_own() {
    let directory = Directory::new("override");
    let set = ["cores=2", "max.connections.per.ip=3", "max.connections.per.ip.overrides=\"127.0.0.1:1,10.9.9.9:5\""];
    let dataplane = start(&directory.0, true, &set);
    let plane = ControlPlane::connect(&directory.0);
    let mut client = Client::connect(&dataplane);
    assert!(is_served(&mut client));
    assert!(!is_served(&mut Client::connect(&dataplane)), "a second is closed");
    assert!(is_served(&mut client));
    plane.stop(dataplane);
}

#[test]
fn clients_come_in_no_faster_than_they_may() {
    // What came at most in the windows before the running one: 20 clients at once, then one each 50 ms.
    let (burst, late) = (20, 8);
    let directory = Directory::new("rate");
    let set = ["cores=2", "max.connection.creation.rate=20", "quota.window.num=2", "quota.window.size.seconds=1"];
    let dataplane = start(&directory.0, true, &set);
    let plane = ControlPlane::connect(&directory.0);
    let began = Instant::now();
    let mut clients: Vec<Client> = (0..burst + late).map(|_| Client::connect(&dataplane)).collect();
    assert!(clients[..burst].iter_mut().all(is_served));
    let at_once = began.elapsed();
    assert!(clients[burst..].iter_mut().all(is_served), "they wait, and nobody is refused");
    let all = began.elapsed();
    assert!(all >= Duration::from_millis(50 * (late as u64 - 1)), "{late} more came in within {all:?} ({at_once:?})");
    plane.stop(dataplane);
}

#[test]
fn a_connection_that_is_idle_for_too_long_ends() {
    let directory = Directory::new("idle");
    let dataplane = start(&directory.0, true, &["cores=2", "connections.max.idle.ms=400"]);
    let plane = ControlPlane::connect(&directory.0);
    let (mut silent, mut busy) = (Client::connect(&dataplane), Client::connect(&dataplane));
    assert!(is_served(&mut silent));
    let began = Instant::now();
    silent.socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    // The other one asks all the while.
    let ended = loop {
        assert!(is_served(&mut busy), "it is not idle");
        assert!(began.elapsed() < DEADLINE, "it never ends");
        match silent.socket.read(&mut [0; 16]) {
            Ok(0) => break began.elapsed(),
            Ok(count) => panic!("{count} bytes that nobody asked for"),
            Err(_) => {}
        }
    };
    assert!(ended >= Duration::from_millis(390), "it ended after {ended:?}");
    while began.elapsed() < 3 * ended {
        assert!(is_served(&mut busy));
    }
    plane.stop(dataplane);
}
