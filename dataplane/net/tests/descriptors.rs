//! What happens when the process runs out of file descriptors; alone in its process, since the limit is the process's.

mod common;

use common::kernel_node;
use pollux_net::{Close, Streams};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::net::TcpStream;
use std::time::{Duration, Instant};

#[test]
fn accepting_pauses_and_goes_on_when_descriptors_are_back() {
    let (mut node, address) = kernel_node(1 << 20);
    let first = TcpStream::connect(address).unwrap();
    let stream = node.next_stream();
    let second = TcpStream::connect(address).unwrap();
    let old = getrlimit(Resource::Nofile);
    let in_use = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64 - 1;
    setrlimit(Resource::Nofile, Rlimit { current: Some(in_use), ..old }).unwrap();
    node.until("the failure", |node| node.accept_failures > 0);
    let (start, before, turns) = (Instant::now(), node.accept_failures, node.turns);
    while start.elapsed() < Duration::from_millis(350) {
        node.turn();
        let now = node.now();
        node.streams.wait(now, Some(now.monotonic + Duration::from_millis(50)));
    }
    assert!(node.accept_failures > before, "it tries again");
    assert!(node.accept_failures - before <= 5 && node.turns - turns < 40, "and does not spin");
    node.streams.close(stream, Close::Now);
    node.until("the second client", |node| node.opened.len() == 2);
    setrlimit(Resource::Nofile, old).unwrap();
    assert!(second.peer_addr().is_ok());
    drop(first);
}
