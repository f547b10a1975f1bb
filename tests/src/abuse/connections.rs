//! Connections that are slow, half, too many, short-lived, or do not read: each ends with a reason, or waits, and nobody
//! else notices.

use super::behaved::Behaved;
use super::{PATIENCE, ends, held};
use crate::node::Broker;
use crate::reference::Wishes;
use crate::subject::Pollux;
use crate::{Result, wait};
use bytes::BytesMut;
use perf::client::{CallError, Connection, api_versions_request};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use wire::messages::{ApiVersionsRequest, MetadataRequest};
use wire::{ApiKey, KafkaString};

/// More than a frame may take is waited for here.
const SLOW_FRAME: Duration = Duration::from_secs(75);
const IDLE_MAX: Duration = Duration::from_secs(8);
const PER_ADDRESS: usize = 600;
const PIPELINED: usize = 1000;
const STORM: usize = 3000;
const LONGEST: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub struct Plan {
    pub many: usize,
    pub own: Vec<String>,
}

pub fn run(plan: &Plan) -> Result<()> {
    let node_with = |name: &str, value: String| {
        let settings = [(name.to_owned(), value)].into();
        Pollux::start_new(&Wishes { settings, own: plan.own.clone(), ..Wishes::default() })
    };
    let mut impatient = node_with("connections.max.idle.ms", IDLE_MAX.as_millis().to_string())?;
    idle_and_half(&impatient)?;
    impatient.stop()?;
    let mut node = node_with("max.connections.per.ip", PER_ADDRESS.to_string())?;
    let address = node.address();
    let behaved = Behaved::start(address)?;
    let mut slow = SlowFrame::begin(address)?;
    too_many(&node, plan.many)?;
    storm(&node)?;
    pipelined(address)?;
    stopped_and_continued(address)?;
    slow.finish(&node)?;
    let rounds = behaved.finish()?;
    println!("the client that behaves: {}", rounds.told());
    if rounds.quantile(1.0) > LONGEST {
        return Err("the client that behaves was kept waiting".into());
    }
    node.stop()?;
    println!("only the hostile ended");
    Ok(())
}

/// Waits for a line of the node's log that has all the words.
fn logged(node: &Pollux, words: &[&str]) -> Result<()> {
    wait::until(&format!("the node to log {words:?}"), PATIENCE, || {
        let log = node.logged()?;
        Ok(log.lines().any(|line| words.iter().all(|word| line.contains(word))).then_some(()))
    })
}

/// A frame that comes at one byte a second, which is too slow, while the connection is never idle.
struct SlowFrame {
    connection: Connection,
    began: Instant,
}

impl SlowFrame {
    fn begin(address: SocketAddr) -> Result<SlowFrame> {
        let mut connection = Connection::open(address, PATIENCE)?;
        connection.send_bytes(&1000i32.to_be_bytes())?;
        connection.set_patience(Duration::from_secs(1));
        Ok(SlowFrame { connection, began: Instant::now() })
    }

    fn finish(&mut self, node: &Pollux) -> Result<()> {
        while self.began.elapsed() < SLOW_FRAME {
            let told = self.connection.send_bytes(&[0]).err();
            let closed = match self.connection.receive_frame() {
                Err(CallError::TimedOut) => false,
                Ok(_) => return Err("half a frame was answered".into()),
                Err(_) => true,
            };
            if told.is_some() || closed {
                println!("one byte a second: ended after {:.0?}", self.began.elapsed());
                return logged(node, &["connection ended", "TooSlow"]);
            }
        }
        Err("a frame may come at one byte a second for ever".into())
    }
}

fn idle_and_half(node: &Pollux) -> Result<()> {
    let address = node.address();
    let began = Instant::now();
    let mut idle = Connection::open(address, PATIENCE)?;
    idle.call(3, &api_versions_request())?;
    let mut half = Connection::open(address, PATIENCE)?;
    half.send_bytes(&[0, 0, 1, 0, 0, 3])?;
    for connection in [&mut idle, &mut half] {
        connection.set_patience(IDLE_MAX * 3);
        if !ends(connection) {
            return Err("an idle connection does not end".into());
        }
    }
    logged(node, &["connection ended", "Idle"])?;
    println!("a silent connection and half a frame: ended after {:.1?}", began.elapsed());
    // Half a frame and the end of sending: nothing more can come.
    let mut cut = Connection::open(address, PATIENCE)?;
    cut.send_bytes(&[0, 0, 1, 0, 0, 3])?;
    cut.finish_sending()?;
    cut.set_patience(Duration::from_secs(5));
    if !ends(&mut cut) {
        return Err("half a frame at the end of a stream keeps the connection".into());
    }
    Ok(())
}

/// As many at once as are asked for; those above the limit of an address end, those below are served.
fn too_many(node: &Pollux, many: usize) -> Result<()> {
    let address = node.address();
    let mut open = Vec::new();
    for _ in 0..many {
        if let Ok(connection) = Connection::open(address, PATIENCE) {
            open.push(connection);
        }
    }
    let mut served = 0;
    for connection in &mut open {
        connection.set_patience(Duration::from_secs(10));
        served += usize::from(connection.call(3, &api_versions_request()).is_ok());
    }
    println!("{} connections at once, {PER_ADDRESS} allowed: {served} served", open.len());
    if served > PER_ADDRESS || served + 20 < PER_ADDRESS.min(many) {
        return Err(format!("{served} of {many} were served").into());
    }
    drop(open);
    wait::until("room for connections again", PATIENCE, || {
        let mut connection = Connection::open(address, PATIENCE)?;
        Ok(connection.call(3, &api_versions_request()).ok().map(|_| ()))
    })
}

/// Opened and closed, politely and not, with and without a request: no descriptor stays.
fn storm(node: &Pollux) -> Result<()> {
    let address = node.address();
    let before = held(node)?;
    let began = Instant::now();
    for number in 0..STORM {
        let Ok(mut connection) = Connection::open(address, PATIENCE) else { continue };
        match number % 4 {
            0 => {}
            1 => connection.send_bytes(&[0, 0, 0])?,
            2 => drop(connection.send(3, &api_versions_request())),
            _ => {
                let stream = connection.into_stream();
                rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
            }
        }
    }
    let took = began.elapsed();
    let after = wait::until("descriptors to come back", PATIENCE, || {
        let now = held(node)?;
        Ok((now.descriptors <= before.descriptors + 4).then_some(now))
    })?;
    after.expect_same_processes(&before, node)?;
    println!(
        "{STORM} connections opened and closed in {took:.1?}: {} descriptors, then {}",
        before.descriptors, after.descriptors
    );
    Ok(())
}

/// A thousand requests before the first answer is read: all are answered, in order.
fn pipelined(address: SocketAddr) -> Result<()> {
    let mut connection = Connection::open(address, PATIENCE)?;
    let mut frames = BytesMut::new();
    for number in 0..PIPELINED {
        let put = if number.is_multiple_of(2) {
            let request = MetadataRequest::default();
            wire::encode_request(&mut frames, 12, number as i32, Some("unread"), &request)
        } else {
            let name = KafkaString::from_static("unread");
            let request = ApiVersionsRequest {
                client_software_name: name.clone(),
                client_software_version: name,
                ..Default::default()
            };
            wire::encode_request(&mut frames, 3, number as i32, Some("unread"), &request)
        };
        put.map_err(|error| error.to_string())?;
    }
    connection.send_bytes(&frames)?;
    for number in 0..PIPELINED {
        let (api, version) = if number.is_multiple_of(2) { (ApiKey::Metadata, 12) } else { (ApiKey::ApiVersions, 3) };
        connection.receive_kind(api, version, number as i32)?;
    }
    println!("{PIPELINED} requests before the first answer was read: all answered in order");
    Ok(())
}

/// Connections that ask for much, read nothing for a while, and then read all of it.
fn stopped_and_continued(address: SocketAddr) -> Result<()> {
    const REQUESTS: usize = 8_000;
    let stream = std::net::TcpStream::connect(address)?;
    rustix::net::sockopt::set_socket_recv_buffer_size(&stream, 64 << 10)?;
    let mut connection = Connection::over(stream, PATIENCE)?;
    let mut reader = Connection::over(connection.try_clone_stream()?, PATIENCE)?;
    let writer = std::thread::spawn(move || -> Result<()> {
        // Long enough that all of them fit into no socket.
        let name = KafkaString::from("x".repeat(2000).as_str());
        let request = ApiVersionsRequest { client_software_name: name, ..api_versions_request() };
        for _ in 0..REQUESTS {
            connection.send(3, &request)?;
        }
        Ok(())
    });
    // The writer comes to stand still: neither end takes more.
    let until = Instant::now() + Duration::from_secs(2);
    wait::until("a while without reading", PATIENCE, || Ok((Instant::now() >= until).then_some(())))?;
    if writer.is_finished() {
        return Err("a node takes requests without end from a peer that reads no answer".into());
    }
    for number in 0..REQUESTS {
        reader.receive_kind(ApiKey::ApiVersions, 3, number as i32 + 1)?;
    }
    writer.join().map_err(|_| "the writer panicked")??;
    println!("{REQUESTS} answers left unread for a while and read then: all there, in order");
    Ok(())
}
