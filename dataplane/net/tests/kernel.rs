//! Kernel sockets over loopback, with plain clients of the standard library.

mod common;

use arena::{Arena, BufferRef};
use base::{CoreId, ListenerId, Now};
use common::{LISTENER, Node, PATIENCE, kernel_node, pattern};
use pollux_net::kernel_socket::{DetachedSocket, KernelStreams, SocketOptions};
use pollux_net::{Close, CloseReason, ListenError, StreamId, Streams};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

fn connect(address: SocketAddr) -> TcpStream {
    let client = TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.set_write_timeout(Some(PATIENCE)).unwrap();
    client
}

/// Closes with a reset instead of a finish.
fn reset(client: TcpStream) {
    rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
}

fn read_all(mut client: TcpStream) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        client.read_to_end(&mut bytes).unwrap();
        bytes
    })
}

#[test]
fn many_streams_echo_what_each_sent() {
    const CLIENTS: u64 = 60;
    let (mut node, address) = kernel_node(8 * MIB);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|seed| {
            thread::spawn(move || {
                let client = connect(address);
                let sent = pattern(seed, 50_000 + seed as usize * 1000);
                let reader = read_all(client.try_clone().unwrap());
                for part in sent.chunks(1 + seed as usize * 97) {
                    (&client).write_all(part).unwrap();
                }
                client.shutdown(Shutdown::Write).unwrap();
                assert_eq!(reader.join().unwrap(), sent, "client {seed}");
            })
        })
        .collect();
    node.until("all clients to have been answered", |node| {
        let received = std::mem::take(&mut node.received);
        for (stream, bytes) in received {
            for piece in bytes.chunks(700) {
                node.streams.send(stream, BufferRef::from_vec(piece.to_vec()));
            }
        }
        for stream in std::mem::take(&mut node.finished) {
            node.streams.close(stream, Close::AfterSending);
        }
        node.closed.len() == CLIENTS as usize
    });
    assert!(node.closed.values().all(|reason| *reason == CloseReason::Local));
    assert_eq!(node.streams.len(), 0);
    for client in clients {
        client.join().unwrap();
    }
    assert!(node.arena.used_bytes() <= 64 << 10, "only the chunk under way is held");
}

#[test]
fn a_large_frame_goes_straight_into_its_buffer() {
    let (mut node, address) = kernel_node(8 * MIB);
    let client = connect(address);
    let stream = node.next_stream();
    let frame = pattern(1, 5 * MIB);
    let writer = thread::spawn({
        let (frame, mut client) = (frame.clone(), client.try_clone().unwrap());
        move || {
            client.write_all(&frame).unwrap();
            client.write_all(b"and after").unwrap();
        }
    });
    node.until("its beginning", |node| node.received(stream).len() >= 100);
    let head = node.received.remove(&stream).unwrap();
    let mut target = node.arena.try_allocate(frame.len()).unwrap();
    target[..head.len()].copy_from_slice(&head);
    node.streams.set_target(stream, target, head.len());
    assert!(node.streams.detach(stream).is_none(), "a stream with a target is not at a boundary");
    node.until("the frame", |node| !node.filled.is_empty());
    let (filled_stream, buffer) = node.filled.pop().unwrap();
    assert_eq!(filled_stream, stream);
    assert!(buffer[..] == frame[..]);
    node.until("what follows", |node| node.received(stream) == b"and after");
    writer.join().unwrap();
}

#[test]
fn a_slow_reader_gets_everything_and_its_progress_is_told() {
    let (mut node, address) = kernel_node(MIB);
    let mut client = connect(address);
    let stream = node.next_stream();
    let sent = pattern(2, 12 * MIB);
    for piece in sent.chunks(100_000) {
        node.streams.send(stream, BufferRef::from_vec(piece.to_vec()));
    }
    assert_eq!(node.streams.queued(stream), sent.len());
    node.for_a_while();
    let stuck = node.streams.queued(stream);
    assert!(stuck > MIB, "the client reads nothing: {stuck}");
    let before = node.turns;
    node.for_a_while();
    assert_eq!(node.streams.queued(stream), stuck);
    assert!(node.turns - before < 100, "a full socket makes no work");
    node.writable.clear();
    let mut part = vec![0; 8 * MIB];
    let mut got = Vec::new();
    let reader = thread::spawn(move || {
        while got.len() < 12 * MIB {
            let count = client.read(&mut part).unwrap();
            got.extend_from_slice(&part[..count]);
        }
        got
    });
    node.until("the queue to drain", |node| node.streams.queued(stream) == 0);
    assert!(reader.join().unwrap() == sent);
    assert!(node.writable.iter().all(|(id, _)| *id == stream));
    assert!(node.writable.iter().map(|(_, queued)| *queued).is_sorted_by(|a, b| a > b));
    assert_eq!(node.writable.last(), Some(&(stream, 0)));
}

#[test]
fn a_paused_stream_is_not_read() {
    let (mut node, address) = kernel_node(MIB);
    let mut client = connect(address);
    let stream = node.next_stream();
    node.streams.pause(stream);
    client.write_all(b"early").unwrap();
    node.for_a_while();
    assert_eq!(node.received(stream), b"");
    node.streams.resume(stream);
    node.until("the bytes", |node| node.received(stream) == b"early");
    node.streams.pause(stream);
    node.streams.resume(stream);
    client.write_all(b", late").unwrap();
    node.until("more bytes", |node| node.received(stream) == b"early, late");
}

#[test]
fn a_peer_that_finished_still_gets_its_answer() {
    let (mut node, address) = kernel_node(MIB);
    let mut client = connect(address);
    let stream = node.next_stream();
    client.write_all(b"question").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    node.until("the finish", |node| node.finished.contains(&stream));
    assert_eq!(node.received(stream), b"question");
    node.for_a_while();
    assert!(node.closed.is_empty(), "the owner closes it, nobody else");
    node.streams.send(stream, BufferRef::from_static(b"answer"));
    node.streams.close(stream, Close::AfterSending);
    node.streams.send(stream, BufferRef::from_static(b"too late"));
    node.until("the end", |node| node.closed.contains_key(&stream));
    assert_eq!(read_all(client).join().unwrap(), b"answer");
    assert_eq!(node.closed[&stream], CloseReason::Local);
}

#[test]
fn a_last_answer_survives_input_that_nobody_reads() {
    let (mut node, address) = kernel_node(MIB);
    let client = connect(address);
    let stream = node.next_stream();
    node.streams.pause(stream);
    let mut writer = client.try_clone().unwrap();
    writer.write_all(&pattern(3, 200_000)).unwrap();
    node.streams.send(stream, BufferRef::from_vec(pattern(4, 300_000)));
    node.streams.close(stream, Close::AfterSending);
    node.for_a_while();
    assert!(node.closed.is_empty(), "it lingers until the client finishes");
    let _ = writer.write_all(&pattern(5, 100_000));
    let reader = read_all(client);
    node.until("all to be sent", |node| node.streams.queued(stream) == 0);
    assert!(reader.join().unwrap() == pattern(4, 300_000));
    drop(writer);
    node.until("the end", |node| node.closed.contains_key(&stream));
    assert_eq!(node.closed[&stream], CloseReason::Local);
}

#[test]
fn a_peer_that_neither_reads_nor_finishes_is_left_after_a_while() {
    let (mut node, address) = kernel_node(MIB);
    let clients = [connect(address), connect(address)];
    let (full, silent) = (node.next_stream(), node.opened.last().unwrap().0);
    let silent = if silent == full { node.next_stream() } else { silent };
    node.streams.send(full, BufferRef::from_vec(vec![1; 12 * MIB]));
    node.for_a_while();
    node.streams.close(full, Close::AfterSending);
    node.streams.close(silent, Close::AfterSending);
    let later = |seconds| {
        let mut now = node.now();
        now.monotonic = now.monotonic + Duration::from_secs(seconds);
        now
    };
    let (soon, late) = (later(5), later(40));
    node.turn_at(soon, 64);
    assert_eq!(node.closed.get(&silent), Some(&CloseReason::Local), "it lingered for a second");
    assert_eq!(node.closed.get(&full), None);
    node.turn_at(late, 64);
    assert_eq!(node.closed.get(&full), Some(&CloseReason::TimedOut));
    drop(clients);
}

#[test]
fn a_reset_ends_a_stream_whatever_it_does() {
    let (mut node, address) = kernel_node(MIB);
    for pause in [false, true] {
        let client = connect(address);
        let stream = node.next_stream();
        if pause {
            node.streams.pause(stream);
        }
        reset(client);
        node.until("the reset", |node| node.closed.contains_key(&stream));
        assert_eq!(node.closed[&stream], CloseReason::PeerReset);
    }
    let client = connect(address);
    let stream = node.next_stream();
    node.streams.send(stream, BufferRef::from_vec(vec![1; 12 * MIB]));
    node.for_a_while();
    drop(client);
    node.until("the broken pipe", |node| node.closed.contains_key(&stream));
    assert_eq!((node.closed[&stream], node.streams.len()), (CloseReason::PeerReset, 0));
}

#[test]
fn an_id_that_ended_does_nothing() {
    let (mut node, address) = kernel_node(MIB);
    let _client = connect(address);
    let stream = node.next_stream();
    node.streams.close(stream, Close::Now);
    node.turn();
    assert_eq!(node.closed[&stream], CloseReason::Local);
    let _other = connect(address);
    let other = node.next_stream();
    assert_eq!(other.index(), stream.index());
    node.streams.send(stream, BufferRef::from_static(b"x"));
    node.streams.set_target(stream, node.arena.try_allocate(5).unwrap(), 0);
    node.streams.close(stream, Close::Now);
    node.streams.resume(stream);
    node.streams.set_essential(stream);
    assert!(node.streams.detach(stream).is_none());
    assert_eq!((node.streams.queued(stream), node.streams.queued(other)), (0, 0));
    node.for_a_while();
    assert!(!node.closed.contains_key(&other));
}

#[test]
fn a_stream_moves_to_another_core_with_what_it_owes() {
    let (mut node, address) = kernel_node(MIB);
    let (to_other, inbox) = mpsc::channel::<DetachedSocket>();
    let other = thread::spawn(move || {
        let arena = Arena::heap(CoreId(1), MIB);
        let streams = KernelStreams::new(arena.clone(), SocketOptions::default(), Now::default()).unwrap();
        let mut node = Node::new(streams, arena);
        let stream = node.streams.attach(inbox.recv().unwrap()).unwrap();
        node.until("the second half", |node| node.received(stream) == b"second");
        node.until("the debt to be paid", |node| node.streams.queued(stream) == 0);
        assert_eq!(node.writable.last(), Some(&(stream, 0)));
        node.streams.send(stream, BufferRef::from_static(b"end"));
        node.streams.close(stream, Close::AfterSending);
        node.until("the end", |node| node.closed.contains_key(&stream));
    });
    let mut client = connect(address);
    let stream = node.next_stream();
    client.write_all(b"first").unwrap();
    node.until("the first half", |node| node.received(stream) == b"first");
    let owed = pattern(6, 12 * MIB);
    for part in owed.chunks(MIB / 2) {
        let copy = BufferRef::from_vec(part.to_vec());
        node.streams.send(stream, copy.slice(0..5));
        node.streams.send(stream, node.arena.copy(&copy[5..6]).unwrap());
        node.streams.send(stream, copy.slice(6..copy.len()));
    }
    node.for_a_while();
    let detached = node.streams.detach(stream).unwrap();
    assert_eq!((node.streams.len(), node.streams.queued(stream)), (0, 0));
    client.write_all(b"second").unwrap();
    to_other.send(detached).unwrap();
    let got = read_all(client).join().unwrap();
    assert!(got[..owed.len()] == owed[..] && got[owed.len()..] == *b"end");
    other.join().unwrap();
    node.for_a_while();
    assert!(node.closed.is_empty(), "it did not end here");
    node.arena.poll_returns(usize::MAX);
    assert!(node.arena.used_bytes() <= 64 << 10);
}

#[test]
fn a_refused_client_was_never_read() {
    let (mut node, address) = kernel_node(MIB);
    let mut client = connect(address);
    client.write_all(b"hello").unwrap();
    let stream = node.next_stream();
    assert_eq!(node.received(stream), b"", "opened is the last thing a poll does");
    node.streams.close(stream, Close::Now);
    let error = client.read_to_end(&mut Vec::new()).err().map(|error| error.kind());
    assert!(matches!(error, None | Some(ErrorKind::ConnectionReset)));
}

#[test]
fn listeners_pause_end_and_are_checked() {
    let (mut node, address) = kernel_node(MIB);
    assert!(matches!(node.streams.listen(LISTENER, address), Err(ListenError::Exists)));
    assert!(matches!(node.streams.listen(ListenerId(9), address), Err(ListenError::Address(_))));
    node.streams.pause_listener(LISTENER);
    let _client = connect(address);
    node.for_a_while();
    assert!(node.opened.is_empty());
    node.streams.resume_listener(LISTENER);
    let stream = node.next_stream();
    node.streams.unlisten(LISTENER);
    assert_eq!(TcpStream::connect(address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    node.for_a_while();
    assert!(!node.closed.contains_key(&stream), "clients outlive the listener");
    // The address is free at once although a connection of it lives.
    assert_eq!(node.streams.listen(LISTENER, address).unwrap(), address);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    assert!(matches!(node.streams.listen(ListenerId(9), taken.local_addr().unwrap()), Err(ListenError::Address(_))));
    match node.streams.listen(ListenerId(6), "[::]:0".parse().unwrap()) {
        Ok(both) => {
            let _v4 = connect(SocketAddr::from(([127, 0, 0, 1], both.port())));
        }
        Err(error) => println!("skipped: no IPv6 on this host ({error})"),
    }
}

#[test]
fn a_path_is_a_listener_of_this_user() {
    use std::os::unix::fs::PermissionsExt;
    let (mut node, _) = kernel_node(MIB);
    let path = std::env::temp_dir().join(format!("pollux-net-test-{}", std::process::id()));
    // What a killed process leaves: a socket that nobody listens on.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    node.streams.listen_local(ListenerId(1), &path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(matches!(node.streams.listen_local(ListenerId(2), &path), Err(ListenError::Address(_))));
    let mut client = UnixStream::connect(&path).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(b"link").unwrap();
    // The refused listener had looked whether somebody listens, and left again.
    node.until("the other process", |node| node.local.len() == 2);
    let stream = node.local[1];
    node.streams.set_essential(stream);
    node.until("its bytes", |node| node.received(stream) == b"link");
    node.streams.send(stream, BufferRef::from_static(b"up"));
    node.turn();
    let mut answer = [0; 2];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"up");
    drop(client);
    node.until("its end", |node| node.finished.contains(&stream) || node.closed.contains_key(&stream));
    node.streams.unlisten(ListenerId(1));
    assert!(!path.exists());
    std::fs::write(&path, b"a file").unwrap();
    assert!(node.streams.listen_local(ListenerId(1), &path).is_err());
    assert_eq!(std::fs::read(&path).unwrap(), b"a file", "a file of somebody else is left alone");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn idle_streams_hold_no_memory_and_make_no_work() {
    let (mut node, address) = kernel_node(MIB);
    let clients: Vec<_> = (0..200).map(|_| connect(address)).collect();
    node.until("the clients", |node| node.opened.len() == 200);
    for mut client in &clients {
        client.write_all(b"ping").unwrap();
    }
    node.until("a word from each", |node| node.received.len() == 200);
    assert!(node.arena.used_bytes() <= 64 << 10);
    let start = Instant::now();
    let now = node.now();
    node.streams.wait(now, Some(now.monotonic + Duration::from_millis(80)));
    assert!(start.elapsed() >= Duration::from_millis(79), "nothing is left to do");
}

#[test]
fn short_memory_stops_reading_but_not_of_essential_streams() {
    let (mut node, address) = kernel_node(400 * 4096);
    let mut clients: Vec<_> = (0..2).map(|_| connect(address)).collect();
    node.until("the clients", |node| node.opened.len() == 2);
    let of = |node: &Node<KernelStreams>, client: &TcpStream| -> StreamId {
        let local = client.local_addr().unwrap();
        node.opened.iter().find(|(_, peer)| *peer == local).unwrap().0
    };
    let (plain, essential) = (of(&node, &clients[0]), of(&node, &clients[1]));
    node.streams.set_essential(essential);
    let held: Vec<_> = (0..370).map(|_| node.arena.try_allocate(4096).unwrap()).collect();
    for client in &mut clients {
        client.write_all(b"bytes").unwrap();
    }
    node.until("the essential one", |node| node.received(essential) == b"bytes");
    let before = node.turns;
    node.for_a_while();
    assert_eq!(node.received(plain), b"");
    assert!(node.turns - before < 150, "starving makes little work");
    drop(held);
    node.until("the other one", |node| node.received(plain) == b"bytes");
}

#[test]
fn a_waker_ends_a_sleep_before_and_after_it_began() {
    let (mut node, _) = kernel_node(MIB);
    let waker = node.streams.waker();
    waker.wake();
    let start = Instant::now();
    node.streams.wait(node.now(), None);
    let sleeper = thread::spawn(move || {
        thread::sleep(Duration::from_millis(30));
        waker.clone().wake();
    });
    node.streams.wait(node.now(), Some(node.now().monotonic + PATIENCE));
    assert!(start.elapsed() < PATIENCE / 2);
    sleeper.join().unwrap();
    // Something else of the system may end it too.
    let (other, far) = UnixStream::pair().unwrap();
    node.streams.watch(std::os::fd::AsFd::as_fd(&other)).unwrap();
    (&far).write_all(b"x").unwrap();
    node.streams.wait(node.now(), None);
}

#[test]
fn what_a_full_socket_does_not_take_can_be_had_back() {
    let (mut node, address) = kernel_node(32 * MIB);
    let mut client = connect(address);
    let stream = node.next_stream();
    let bytes = pattern(5, 12 * MIB);
    for chunk in bytes.chunks(300_000) {
        node.streams.send(stream, node.arena.copy(chunk).expect("there is room"));
    }
    node.for_a_while();
    let queued = node.streams.queued(stream);
    assert!(queued > 5000, "the socket is full");
    let forgotten = node.streams.retract(stream, 5000);
    assert_eq!((forgotten, node.streams.queued(stream)), (queued - 5000, 5000));
    assert_eq!(node.streams.retract(stream, 5000), 0);
    node.arena.poll_returns(usize::MAX);
    assert_eq!(node.arena.used_bytes(), 0, "nothing of the arena is held for a peer that does not read");
    // The kept bytes make progress known, and what is sent again follows them.
    let reader = std::thread::spawn(move || {
        let mut all = vec![0; 12 * MIB];
        client.read_exact(&mut all).map(|()| all)
    });
    node.until("the socket to drain", |node| node.writable.contains(&(stream, 0)));
    node.streams.send(stream, BufferRef::from_vec(bytes[bytes.len() - forgotten..].to_vec()));
    node.until("everything to be sent", |node| node.streams.queued(stream) == 0);
    assert!(reader.join().unwrap().unwrap() == bytes);
}
