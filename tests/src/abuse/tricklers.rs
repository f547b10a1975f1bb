//! Clients that are slow on purpose, or go at the wrong moment, many of them at once beside one that behaves: bytes one at
//! a time on hundreds of connections, connections opened and ended as fast as they can be, ends of sending with answers
//! owed, resets in the middle of answers, a producer that never reads its acknowledgements. Each is counted, and what is
//! held afterwards is what was held before.

use super::behaved::Behaved;
use super::{Held, MIB, PATIENCE, held};
use crate::node::Broker;
use crate::reference::Wishes;
use crate::subject::Pollux;
use crate::{Result, wait};
use base::WallMillis;
use batch::BatchBuilder;
use bytes::BytesMut;
use perf::client::{CallError, Connection, api_versions_request, fetch_request, produce_request};
use rustix::net::sockopt::set_socket_linger;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use wire::ApiKey;
use wire::messages::ProduceRequest;

/// Between two bytes of a trickling connection.
const TRICKLE: Duration = Duration::from_millis(20);
/// The value of records that fetches are cut short in.
const VALUE: usize = 900_000;
const RECORDS: usize = 20;
/// Answers that come after the end of sending.
const HALF_CLOSED_REQUESTS: usize = 50;
/// What one producer that reads nothing may get rid of; it is stopped long before.
const UNREAD_BYTES_MAX: u64 = 512 * MIB;
/// The receive budget and a few descriptors.
const GROWTH_MAX: u64 = 64 * MIB;
const DESCRIPTORS_MORE: usize = 6;
const LONGEST: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub struct Plan {
    pub connections: usize,
    pub duration: Duration,
    pub resident_max: u64,
    pub own: Vec<String>,
}

/// What all threads share: when to stop, and what they did.
#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    trickled: AtomicU64,
    trickle_ends: AtomicU64,
    opened: AtomicU64,
    half_closed: AtomicU64,
    resets: AtomicU64,
    unread: AtomicU64,
}

impl Shared {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Acquire)
    }
}

pub fn run(plan: &Plan) -> Result<()> {
    let mut node = Pollux::start_new(&Wishes { own: plan.own.clone(), ..Wishes::default() })?;
    let address = node.address();
    let behaved = Behaved::start(address)?;
    crate::crash::create(address, "large", 1)?;
    crate::crash::create(address, "unread", 1)?;
    for _ in 0..RECORDS {
        Connection::open(address, PATIENCE)?.call(11, &produce("large", VALUE))?;
    }
    let before = held(&node)?;
    let (most, shared) = attack(plan, &node, &behaved, address)?;
    let rounds = behaved.finish()?;
    println!("the client that behaves: {}", rounds.told());
    let after = wait::until("what they held to come back", PATIENCE, || {
        let now = held(&node)?;
        let back = now.descriptors <= before.descriptors + DESCRIPTORS_MORE;
        Ok((back && now.resident <= before.resident + GROWTH_MAX).then_some(now))
    })?;
    after.expect_same_processes(&before, &node)?;
    println!(
        "{} bytes one at a time ({} connections ended for it), {} connections opened and ended, {} ends of sending, {} \
         resets, {} MiB sent without reading an answer",
        shared.trickled.load(Ordering::Relaxed),
        shared.trickle_ends.load(Ordering::Relaxed),
        shared.opened.load(Ordering::Relaxed),
        shared.half_closed.load(Ordering::Relaxed),
        shared.resets.load(Ordering::Relaxed),
        shared.unread.load(Ordering::Relaxed) / MIB,
    );
    println!(
        "descriptors {} before, {} at most, {} after; resident {} MiB before, {} at most, {} after",
        before.descriptors,
        most.descriptors,
        after.descriptors,
        before.resident / MIB,
        most.resident / MIB,
        after.resident / MIB
    );
    if most.resident > plan.resident_max * MIB || rounds.quantile(1.0) > LONGEST {
        return Err("memory grew beyond its limit, or the client that behaves was kept waiting".into());
    }
    if shared.unread.load(Ordering::Relaxed) >= UNREAD_BYTES_MAX {
        return Err("a producer that never reads is taken from without end".into());
    }
    node.stop()
}

/// What one thread does until it is told to stop; the count is of its connections.
type Act = fn(SocketAddr, &Shared, usize) -> Result<()>;

/// Everything at once for a while; what was held at the worst moment.
fn attack(plan: &Plan, node: &Pollux, behaved: &Behaved, address: SocketAddr) -> Result<(Held, Arc<Shared>)> {
    let shared = Arc::new(Shared::default());
    let acts: [Act; 5] = [trickle, churn, half_close, reset, never_read];
    let threads = acts.map(|act| {
        let (own, connections) = (shared.clone(), plan.connections);
        std::thread::spawn(move || {
            let ended = act(address, &own, connections);
            // One that cannot go on is no reason for the others to go on without it.
            own.stop.store(true, Ordering::Release);
            ended
        })
    });
    let until = Instant::now() + plan.duration;
    let mut most = held(node)?;
    while Instant::now() < until && shared.goes_on() && behaved.is_running() {
        let now = held(node)?;
        most.resident = most.resident.max(now.resident);
        most.descriptors = most.descriptors.max(now.descriptors);
        std::thread::sleep(Duration::from_millis(50));
    }
    shared.stop.store(true, Ordering::Release);
    for thread in threads {
        join(thread)?;
    }
    Ok((most, shared))
}

fn join(thread: JoinHandle<Result<()>>) -> Result<()> {
    thread.join().map_err(|_| "a hostile client panicked")?
}

fn produce(topic: &str, value: usize) -> ProduceRequest {
    let mut builder = BatchBuilder::new();
    builder.append(WallMillis(1), None, Some(&vec![7; value]), &[]);
    produce_request(topic, 0, builder.build().into(), -1, PATIENCE)
}

/// Puts a request behind what is in the frame.
fn encode<R: wire::Request>(frame: &mut BytesMut, version: i16, number: i32, request: &R) -> Result<()> {
    Ok(wire::encode_request(frame, version, number, Some("tricklers"), request).map_err(|error| error.to_string())?)
}

/// A produce request one byte at a time, on each of many connections; whoever is ended for it begins anew.
fn trickle(address: SocketAddr, shared: &Shared, connections: usize) -> Result<()> {
    let mut frame = BytesMut::new();
    encode(&mut frame, 11, 1, &produce("large", 20_000))?;
    let open = || -> Result<(TcpStream, usize)> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok((stream, 0))
    };
    let mut all = (0..connections).map(|_| open()).collect::<Result<Vec<_>>>()?;
    while shared.goes_on() {
        let began = Instant::now();
        for (stream, sent) in &mut all {
            let alive = stream.write(&frame[*sent..=*sent]).is_ok() && *sent + 1 < frame.len();
            if alive {
                *sent += 1;
                shared.trickled.fetch_add(1, Ordering::Relaxed);
            } else {
                shared.trickle_ends.fetch_add(1, Ordering::Relaxed);
                (*stream, *sent) = open()?;
            }
        }
        std::thread::sleep(TRICKLE.saturating_sub(began.elapsed()));
    }
    Ok(())
}

/// Opens and ends as fast as one thread can, in every way there is.
fn churn(address: SocketAddr, shared: &Shared, _: usize) -> Result<()> {
    let mut frame = BytesMut::new();
    encode(&mut frame, 3, 1, &api_versions_request())?;
    while shared.goes_on() {
        let number = shared.opened.fetch_add(1, Ordering::Relaxed);
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        // Whether the node takes it is not what this is about.
        let _told = match number % 4 {
            0 => Ok(()),
            1 => stream.write_all(&frame[..frame.len() / 2]),
            2 => stream.write_all(&frame),
            _ => stream.write_all(&frame).and_then(|()| stream.read(&mut [0; 3]).map(drop)),
        };
        // Ends by a reset, which leaves no port waiting on this host.
        set_socket_linger(&stream, Some(Duration::ZERO))?;
    }
    Ok(())
}

/// Requests, then the end of sending: every answer comes, and then the other end.
fn half_close(address: SocketAddr, shared: &Shared, _: usize) -> Result<()> {
    while shared.goes_on() {
        let mut connection = Connection::open(address, PATIENCE)?;
        for _ in 0..HALF_CLOSED_REQUESTS {
            connection.send(3, &api_versions_request())?;
        }
        connection.send(12, &fetch_request("large", 0, 0, 4 << 20, Duration::from_millis(100)))?;
        connection.stream().shutdown(Shutdown::Write)?;
        for number in 0..HALF_CLOSED_REQUESTS {
            connection.receive_kind(ApiKey::ApiVersions, 3, number as i32 + 1)?;
        }
        connection.receive_kind(ApiKey::Fetch, 12, HALF_CLOSED_REQUESTS as i32 + 1)?;
        match connection.receive_frame() {
            Err(CallError::Closed) => {}
            other => return Err(format!("after the end of sending and all answers: {other:?}").into()),
        }
        shared.half_closed.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Asks for megabytes, takes some of the answer, and resets.
fn reset(address: SocketAddr, shared: &Shared, _: usize) -> Result<()> {
    let mut taken = [0; 4096];
    while shared.goes_on() {
        let mut connection = Connection::open(address, PATIENCE)?;
        connection.send(12, &fetch_request("large", 0, 0, 16 << 20, Duration::from_millis(100)))?;
        let mut stream = connection.into_stream();
        let pieces = shared.resets.fetch_add(1, Ordering::Relaxed) % 40;
        for _ in 0..pieces {
            if stream.read(&mut taken)? == 0 {
                return Err("the node ends a connection that reads its answer".into());
            }
        }
        set_socket_linger(&stream, Some(Duration::ZERO))?;
    }
    Ok(())
}

/// Produces and never reads an acknowledgement; sooner or later nothing more of it is taken.
fn never_read(address: SocketAddr, shared: &Shared, _: usize) -> Result<()> {
    let mut frame = BytesMut::new();
    // Many small requests: their answers are what fills up.
    for number in 0..200 {
        encode(&mut frame, 11, number, &produce("unread", 10))?;
    }
    let open = || -> Result<TcpStream> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        rustix::net::sockopt::set_socket_recv_buffer_size(&stream, 8 << 10)?;
        stream.set_write_timeout(Some(Duration::from_millis(100)))?;
        Ok(stream)
    };
    let mut stream = open()?;
    while shared.goes_on() && shared.unread.load(Ordering::Relaxed) < UNREAD_BYTES_MAX {
        match stream.write(&frame) {
            Ok(0) => stream = open()?,
            Ok(count) => {
                // A piece of a request would make rubbish of what comes behind it.
                let rest = frame.len() - count;
                if rest > 0 && stream.write_all(&frame[count..]).is_err() && shared.goes_on() {
                    stream = wait_and_open(shared, &open)?;
                }
                shared.unread.fetch_add(count as u64, Ordering::Relaxed);
            }
            Err(_) => stream = wait_and_open(shared, &open)?,
        }
    }
    Ok(())
}

/// Its caller's stands still, or was ended, and stays a while as it is; another comes in its place.
fn wait_and_open(shared: &Shared, open: &impl Fn() -> Result<TcpStream>) -> Result<TcpStream> {
    let until = Instant::now() + Duration::from_millis(500);
    while shared.goes_on() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    open()
}
