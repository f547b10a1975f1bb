//! What sockets and the scheduler alone make of the load: the same client, and a thread on the brokers' core that answers
//! every request with the same success and does nothing else. It sleeps between requests, as brokers do.
//!
//! No broker on this machine can have better percentiles than this; what of a figure is the machine's is seen here.

use crate::client::CallError;
use crate::load::{self, Options, Outcome, PRODUCE_VERSION};
use crate::process;
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use wire::frame;
use wire::messages::ProduceResponse;
use wire::messages::produce_response::{PartitionProduceResponse, TopicProduceResponse};

/// Larger than any request of the load.
const REQUEST_MAX: usize = 1 << 20;

/// Runs the load against the answering thread on `core`.
pub fn measure(core: usize, options: &Options) -> Result<Outcome, CallError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let options = Options { bootstrap: listener.local_addr()?, ..options.clone() };
    let streams: io::Result<Vec<TcpStream>> =
        (0..options.connections).map(|_| TcpStream::connect(options.bootstrap)).collect();
    let streams = streams?;
    let accepted: io::Result<Vec<TcpStream>> = streams.iter().map(|_| Ok(listener.accept()?.0)).collect();
    let accepted = accepted?;
    std::thread::scope(|scope| {
        let answering = scope.spawn(|| process::pin_to(core).and_then(|()| answer(accepted)));
        // The client's streams end with it, and with them the thread.
        let outcome = load::run_over(streams, &options, || {});
        answering.join().expect("the answering thread does not panic")?;
        outcome
    })
}

struct Peer {
    stream: TcpStream,
    received: Vec<u8>,
}

/// Answers until every peer has closed.
fn answer(streams: Vec<TcpStream>) -> io::Result<()> {
    let mut peers: Vec<Peer> = streams.into_iter().map(|stream| Peer { stream, received: Vec::new() }).collect();
    for peer in &peers {
        peer.stream.set_nodelay(true)?;
    }
    let mut chunk = vec![0; 64 << 10];
    while !peers.is_empty() {
        let mut waiting: Vec<PollFd<'_>> = peers.iter().map(|p| PollFd::new(&p.stream, PollFlags::IN)).collect();
        match poll(&mut waiting, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<bool> = waiting.iter().map(|waiting| !waiting.revents().is_empty()).collect();
        let mut ready = ready.into_iter();
        let mut outcome = Ok(());
        peers.retain_mut(|peer| {
            if !ready.next().unwrap_or(false) || outcome.is_err() {
                return true;
            }
            match serve(peer, &mut chunk) {
                Ok(open) => open,
                Err(error) => {
                    outcome = Err(error);
                    false
                }
            }
        });
        outcome?;
    }
    Ok(())
}

/// Returns whether the peer is still there.
fn serve(peer: &mut Peer, chunk: &mut [u8]) -> io::Result<bool> {
    let count = peer.stream.read(chunk)?;
    if count == 0 {
        return Ok(false);
    }
    peer.received.extend_from_slice(&chunk[..count]);
    let mut answers = Vec::new();
    while let Some(range) = frame::split(&peer.received, REQUEST_MAX).map_err(io::Error::other)? {
        let at = range.start + load::CORRELATION_AT - 4;
        let correlation = peer.received[at..at + 4].first_chunk().map_or(0, |bytes| i32::from_be_bytes(*bytes));
        answers.extend(success(correlation)?);
        peer.received.drain(..range.end);
    }
    peer.stream.write_all(&answers)?;
    Ok(true)
}

fn success(correlation: i32) -> io::Result<Vec<u8>> {
    let topic =
        TopicProduceResponse { partition_responses: vec![PartitionProduceResponse::default()], ..Default::default() };
    let response = ProduceResponse { responses: vec![topic], ..Default::default() };
    let mut out = bytes::BytesMut::new();
    wire::encode_response(&mut out, PRODUCE_VERSION, correlation, &response).map_err(io::Error::other)?;
    Ok(out.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Arrivals;
    use std::time::Duration;

    #[test]
    fn every_request_is_answered_and_the_thread_ends_with_its_clients() {
        let options = Options {
            bootstrap: (Ipv4Addr::LOCALHOST, 0).into(),
            topic: "any".into(),
            partitions: 1,
            configs: Vec::new(),
            connections: 3,
            record_size: 1024,
            acks: -1,
            rate: 500.0,
            arrivals: Arrivals::Uniform,
            warm_up: Duration::ZERO,
            duration: Duration::from_millis(200),
            sleep: true,
            seed: 1,
        };
        let outcome = measure(0, &options).expect("measured");
        assert_eq!((outcome.counted, outcome.unanswered), (100, 0));
        assert!(outcome.errors.is_empty(), "{:?}", outcome.errors);
    }
}
