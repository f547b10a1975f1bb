//! Mutated frames of every API, random bytes and other protocols against a node, beside a client that behaves.

use super::behaved::Behaved;
use super::{Held, MIB, PATIENCE, end_of, held};
use crate::node::Broker;
use crate::reference::Wishes;
use crate::subject::Pollux;
use crate::{Result, differential, wait};
use base::{Random, WallMillis};
use batch::{BatchBuilder, Codec};
use bytes::BytesMut;
use perf::client::{CallError, Connection};
use pollux_fuzz_targets::sessions::{TOPIC, frames_about_the_topic, golden_frames, one_frame};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use wire::messages::produce_request::{PartitionProduceData, TopicProduceData};
use wire::messages::{ApiVersionsRequest, DeleteTopicsRequest, MetadataRequest, ProduceRequest};
use wire::{ApiKey, KafkaString};

/// Most of them wait for an answer at any time.
const THREADS: usize = 16;
const FRAMES_A_CONNECTION: usize = 6;
/// Some mutations ask to wait for long, which is their right; the others are answered or ended well before.
const ANSWER: Duration = Duration::from_millis(400);
/// The request behind each frame, whose answer says that the frame was dealt with and the connection lives.
const BEHIND: i32 = 0x5EED_0BE1;
const CLIENT: &str = "c";
/// Topics that a campaign made and that go again before memory is looked at, in one request.
const DELETED_AT_ONCE: usize = 500;
/// No round of the client that behaves may take longer, on a machine that is busy with this.
const LONGEST: Duration = Duration::from_secs(5);
/// What a node may hold more at the end than after the first frames: pools that are touched on use, created topics.
const GROWTH_MAX: u64 = 96 * MIB;
const DESCRIPTORS_MORE: usize = 16;

/// The id is none that a mutation comes upon: who unregisters a node that lives disturbs its clients, as is his right.
const OWN: [&str; 2] = ["data.size=\"1GiB\"", "node.id=734011927"];

#[derive(Clone, Debug)]
pub struct Plan {
    /// For each API.
    pub frames: usize,
    pub seed: u64,
    pub only: Vec<String>,
    pub own: Vec<String>,
}

/// What became of frames, and of the connections that they were sent on.
#[derive(Debug, Default)]
struct Tally {
    frames: AtomicUsize,
    connections: AtomicUsize,
    /// The node ended the connection.
    ended: AtomicUsize,
    /// No answer had come when the connection was left.
    left: AtomicUsize,
    answers: AtomicUsize,
}

impl Tally {
    fn counts(&self) -> [usize; 5] {
        [&self.frames, &self.connections, &self.answers, &self.ended, &self.left].map(|of| of.load(Ordering::Relaxed))
    }

    /// Since these counts were taken.
    fn told(&self, since: [usize; 5]) -> String {
        let now = self.counts();
        let [frames, connections, answers, ended, left]: [usize; 5] = std::array::from_fn(|at| now[at] - since[at]);
        format!(
            "{frames} frames over {connections} connections: {answers} answers, {ended} ended by the node, {left} left waiting"
        )
    }
}

pub fn run(plan: &Plan) -> Result<()> {
    let own = [OWN.map(str::to_owned).to_vec(), plan.own.clone()].concat();
    let mut node = Pollux::start_new(&Wishes { own, ..Wishes::default() })?;
    let address = node.address();
    crate::crash::create(address, "t", 3)?;
    let id = super::topic_id(address, "t")?;
    let behaved = Behaved::start(address)?;
    let tally = Arc::new(Tally::default());
    let served: Vec<ApiKey> = differential::advertised(address)?.into_keys().collect();
    let chosen =
        |api: &ApiKey| plan.only.is_empty() || plan.only.iter().any(|only| api.name().eq_ignore_ascii_case(only));
    // A tenth first: what a node takes for good when it is first used is not a leak.
    let mut first = None;
    for (share, from) in [(plan.frames / 10, 0), (plan.frames - plan.frames / 10, 1)] {
        for api in served.iter().copied().filter(chosen) {
            let (began, before) = (Instant::now(), tally.counts());
            let frames = [golden_frames(api), about(api, id)];
            campaign(address, &frames, share, plan.seed ^ from << 48 ^ (api.code() as u64) << 32, &tally)?;
            check(&node, &behaved, first.as_ref(), api.name())?;
            delete_what_was_made(address)?;
            if from == 1 {
                println!("{:28} {} in {:.1?}", api.name(), tally.told(before), began.elapsed());
                if tally.counts()[2] == before[2] {
                    return Err(format!("not one frame of {} was answered", api.name()).into());
                }
            }
        }
        strangers(address, plan.seed ^ from, share.clamp(20, 2000), &tally)?;
        check(&node, &behaved, first.as_ref(), "other protocols")?;
        first.get_or_insert(held(&node)?);
    }
    let before = first.ok_or("a first part was run")?;
    let after = settle(&node, &before)?;
    let rounds = behaved.finish()?;
    println!("{}", tally.told([0; 5]));
    println!(
        "resident {} MiB, then {} MiB; descriptors {}, then {}",
        before.resident / MIB,
        after.resident / MIB,
        before.descriptors,
        after.descriptors
    );
    println!("the client that behaves: {}", rounds.told());
    if rounds.quantile(1.0) > LONGEST {
        return Err("the client that behaves was kept waiting".into());
    }
    node.stop()?;
    println!("nothing was harmed");
    Ok(())
}

fn check(node: &Pollux, behaved: &Behaved, before: Option<&Held>, what: &str) -> Result<()> {
    let now = held(node)?;
    if let Some(before) = before {
        now.expect_same_processes(before, node).map_err(|fault| format!("after {what}: {fault}"))?;
    }
    if now.pids.len() < 3 || !behaved.is_running() {
        return Err(format!("after {what}: {} processes run\n{}", now.pids.len(), node.log_tail()).into());
    }
    Ok(())
}

/// Frames of an API that name what this node has.
fn about(api: ApiKey, id: base::Uuid) -> Vec<Vec<u8>> {
    let (placeholder, id) = (TOPIC.0.0.to_be_bytes(), id.0.to_be_bytes());
    let mut frames = frames_about_the_topic(api);
    if api == ApiKey::Produce {
        frames.extend(whole_batches());
    }
    for frame in &mut frames {
        while let Some(at) = frame.windows(16).position(|window| window == placeholder) {
            frame[at..at + 16].copy_from_slice(&id);
        }
    }
    frames
}

/// Produce requests that append, so that what is changed in them is a batch that would have been taken.
fn whole_batches() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for version in ApiKey::Produce.stable_versions().iter() {
        for (index, codec) in [(0, Codec::None), (1, Codec::Gzip), (2, Codec::Lz4), (0, Codec::Zstd)] {
            let mut builder = BatchBuilder::new();
            for value in [&b"one"[..], b"another", b""] {
                builder.append(WallMillis(1_700_000_000_000), Some(b"key"), Some(value), &[]);
            }
            let batch = builder.compression(codec.into()).build();
            let data = PartitionProduceData { index, records: Some(batch.into()), ..Default::default() };
            let (name, topic_id) = (KafkaString::from("t"), TOPIC.0);
            let topic = TopicProduceData { name, topic_id, partition_data: vec![data], ..Default::default() };
            let request = ProduceRequest { acks: 1, timeout_ms: 100, topic_data: vec![topic], ..Default::default() };
            let mut frame = BytesMut::new();
            // Versions that are advertised and not served have no such request.
            if wire::encode_request(&mut frame, version, 3, Some(CLIENT), &request).is_ok() {
                frames.push(frame.to_vec());
            }
        }
    }
    frames
}

fn campaign(address: SocketAddr, seeds: &[Vec<Vec<u8>>; 2], count: usize, seed: u64, tally: &Tally) -> Result<()> {
    std::thread::scope(|scope| {
        let part = |number: usize| {
            let mut left = count / THREADS + usize::from(number < count % THREADS);
            let mut random = Random::from_seed(seed ^ (number as u64) << 40);
            scope.spawn(move || -> Result<()> {
                while left > 0 {
                    let here = left.min(1 + random.below(FRAMES_A_CONNECTION as u64) as usize);
                    let frames: Vec<Vec<u8>> = (0..here).map(|_| one_frame(seeds, &mut random)).collect();
                    // Most frames are dealt with before the next is sent, else what ends one connection hides the others.
                    match random.below(8) {
                        0 => visit(address, &frames.concat(), tally)?,
                        _ => one_after_the_other(address, &frames, tally)?,
                    }
                    tally.frames.fetch_add(here, Ordering::Relaxed);
                    left -= here;
                }
                Ok(())
            })
        };
        let threads: Vec<_> = (0..THREADS).map(part).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
    })
}

/// Each frame on a living connection, with a request behind it that is answered or is not.
fn one_after_the_other(address: SocketAddr, frames: &[Vec<u8>], tally: &Tally) -> Result<()> {
    let mut behind = BytesMut::new();
    wire::encode_request(&mut behind, 0, BEHIND, Some(CLIENT), &ApiVersionsRequest::default())?;
    let mut connection = None;
    for frame in frames {
        let mut over = match connection.take() {
            Some(connection) => connection,
            None => connect(address, tally)?,
        };
        let sent = over.send_bytes(&[&frame[..], &behind].concat());
        loop {
            match sent.as_ref().map_err(|_| CallError::Closed).and_then(|()| over.receive_frame()) {
                Ok(answer) if answer.get(..4) == Some(&BEHIND.to_be_bytes()[..]) => {
                    connection = Some(over);
                    break;
                }
                Ok(_) => tally.answers.fetch_add(1, Ordering::Relaxed),
                Err(CallError::TimedOut) => {
                    tally.left.fetch_add(1, Ordering::Relaxed);
                    break;
                }
                Err(_) => {
                    tally.ended.fetch_add(1, Ordering::Relaxed);
                    break;
                }
            };
        }
    }
    Ok(())
}

fn connect(address: SocketAddr, tally: &Tally) -> Result<Connection> {
    let mut connection = Connection::open(address, PATIENCE).map_err(|error| format!("connecting: {error}"))?;
    connection.set_patience(ANSWER);
    tally.connections.fetch_add(1, Ordering::Relaxed);
    Ok(connection)
}

/// All of it at once, and the end behind it: what the node answers before it ends the connection too.
fn visit(address: SocketAddr, bytes: &[u8], tally: &Tally) -> Result<()> {
    let mut connection = connect(address, tally)?;
    // The node may have ended it before all was sent.
    let sent = connection.send_bytes(bytes).and_then(|()| connection.finish_sending());
    let (answers, over) = if sent.is_err() { (0, true) } else { end_of(&mut connection) };
    tally.answers.fetch_add(answers, Ordering::Relaxed);
    let count = if over { &tally.ended } else { &tally.left };
    count.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Requests that were right made topics, some of them of very many partitions: their memory is no leak.
fn delete_what_was_made(address: SocketAddr) -> Result<()> {
    let mut connection = Connection::open(address, PATIENCE)?;
    let all = connection.call(12, &MetadataRequest { topics: None, ..Default::default() })?;
    let names = all.topics.into_iter().filter(|topic| !topic.is_internal).filter_map(|topic| topic.name);
    let made: Vec<KafkaString> = names.filter(|name| !["t", super::behaved::TOPIC].contains(&&**name)).collect();
    for some in made.chunks(DELETED_AT_ONCE) {
        let request = DeleteTopicsRequest { topic_names: some.to_vec(), timeout_ms: 20_000, ..Default::default() };
        let answer = connection.call(5, &request)?;
        if let Some(refused) = answer.responses.iter().find(|topic| topic.error_code != 0) {
            return Err(format!("deleting {:?} answers {}", refused.name, super::name_of(refused.error_code)).into());
        }
    }
    Ok(())
}

/// Bytes that were never meant for a Kafka node.
fn strangers(address: SocketAddr, seed: u64, count: usize, tally: &Tally) -> Result<()> {
    let mut random = Random::from_seed(seed);
    let hello = [&[0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xFC, 0x03, 0x03][..], &[0x11; 508]].concat();
    let spoken: [&[u8]; 6] = [
        &hello,
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"*1\r\n$4\r\nPING\r\n",
        &[0; 4096],
    ];
    for number in 0..count {
        let bytes = match spoken.get(number % 12) {
            Some(bytes) => bytes.to_vec(),
            None => {
                let mut bytes = vec![0; 1 + random.below(9000) as usize];
                random.fill(&mut bytes);
                // Half of it has a length that can be.
                if random.chance(1, 2) && bytes.len() > 4 {
                    let length = random.below(2 * bytes.len() as u64) as i32;
                    bytes[..4].copy_from_slice(&length.to_be_bytes());
                }
                bytes
            }
        };
        visit(address, &bytes, tally)?;
        tally.frames.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Waits until connections are closed and memory is back, as far as it comes back.
fn settle(node: &Pollux, before: &Held) -> Result<Held> {
    let mut last = None;
    let settled = wait::until("what the frames took to come back", PATIENCE, || {
        let now = held(node)?;
        now.expect_same_processes(before, node)?;
        let back =
            now.descriptors <= before.descriptors + DESCRIPTORS_MORE && now.resident <= before.resident + GROWTH_MAX;
        last = Some(now.clone());
        Ok(back.then_some(now))
    });
    settled.map_err(|fault| format!("{fault}: {before:?}, then {last:?}").into())
}
