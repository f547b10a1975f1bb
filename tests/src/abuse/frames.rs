//! Mutated frames of every API, random bytes and other protocols against a node, beside a client that behaves.

use super::behaved::Behaved;
use super::{Held, MIB, PATIENCE, end_of, held};
use crate::node::Broker;
use crate::reference::Wishes;
use crate::subject::Pollux;
use crate::{Result, differential, wait};
use base::Random;
use perf::client::Connection;
use pollux_fuzz_targets::mutate::mutated;
use pollux_fuzz_targets::sessions::{TOPIC, frames_about_the_topic, golden_frames};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use wire::ApiKey;

const THREADS: usize = 4;
const FRAMES_A_CONNECTION: usize = 6;
/// Some mutations ask to wait for long, which is their right; the others are answered or ended well before.
const ANSWER: Duration = Duration::from_millis(400);
/// No round of the client that behaves may take longer, on a machine that is busy with this.
const LONGEST: Duration = Duration::from_secs(5);
/// What a node may hold more at the end than after the first frames: pools that are touched on use, created topics.
const GROWTH_MAX: u64 = 96 * MIB;
const DESCRIPTORS_MORE: usize = 16;

#[derive(Clone, Debug)]
pub struct Plan {
    /// For each API.
    pub frames: usize,
    pub seed: u64,
    pub only: Vec<String>,
    pub own: Vec<String>,
}

/// What became of connections.
#[derive(Debug, Default)]
struct Tally {
    frames: AtomicUsize,
    connections: AtomicUsize,
    /// The node ended them.
    ended: AtomicUsize,
    /// They waited for an answer when they were left.
    left: AtomicUsize,
    answers: AtomicUsize,
}

pub fn run(plan: &Plan) -> Result<()> {
    // Topics that mutated requests make stay small in number.
    let own = [vec!["data.size=\"1GiB\"".to_owned()], plan.own.clone()].concat();
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
            let began = Instant::now();
            let frames = [golden_frames(api), about(api, id)];
            campaign(address, &frames, share, plan.seed ^ from << 48 ^ (api.code() as u64) << 32, &tally)?;
            check(&node, &behaved, first.as_ref(), api.name())?;
            if from == 1 {
                println!("{:28} {share} frames in {:.1?}", api.name(), began.elapsed());
            }
        }
        strangers(address, plan.seed ^ from, share.clamp(20, 2000), &tally)?;
        check(&node, &behaved, first.as_ref(), "other protocols")?;
        first.get_or_insert(held(&node)?);
    }
    let before = first.ok_or("a first part was run")?;
    let after = settle(&node, &before)?;
    let rounds = behaved.finish()?;
    let of = |count: &AtomicUsize| count.load(Ordering::Relaxed);
    println!(
        "{} frames over {} connections: {} answers, {} connections ended by the node, {} left waiting",
        of(&tally.frames),
        of(&tally.connections),
        of(&tally.answers),
        of(&tally.ended),
        of(&tally.left)
    );
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
    for frame in &mut frames {
        while let Some(at) = frame.windows(16).position(|window| window == placeholder) {
            frame[at..at + 16].copy_from_slice(&id);
        }
    }
    frames
}

fn campaign(address: SocketAddr, seeds: &[Vec<Vec<u8>>; 2], count: usize, seed: u64, tally: &Tally) -> Result<()> {
    std::thread::scope(|scope| {
        let part = |number: usize| {
            let share = count / THREADS + usize::from(number < count % THREADS);
            let mut random = Random::from_seed(seed ^ (number as u64) << 40);
            scope.spawn(move || -> Result<()> {
                let mut left = share;
                while left > 0 {
                    let here = left.min(1 + random.below(FRAMES_A_CONNECTION as u64) as usize);
                    let frames: Vec<u8> = (0..here).flat_map(|_| one(seeds, &mut random)).collect();
                    visit(address, &frames, tally)?;
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

/// A valid frame that was changed; most have their true length in front, some do not.
fn one(seeds: &[Vec<Vec<u8>>; 2], random: &mut Random) -> Vec<u8> {
    let mut any = || {
        let of = if seeds[1].is_empty() || random.chance(1, 2) { &seeds[0] } else { &seeds[1] };
        &of[random.below(of.len() as u64) as usize][..]
    };
    let (seed, other) = (any(), any());
    match random.below(12) {
        // The length itself is changed too, a frame is cut short, or a valid one is sent as it is.
        0 => mutated(seed, other, random),
        1 => seed[..random.below(seed.len() as u64) as usize].to_vec(),
        2 => seed.to_vec(),
        _ => {
            let content = mutated(&seed[4..], other, random);
            [&(content.len() as i32).to_be_bytes()[..], &content].concat()
        }
    }
}

fn visit(address: SocketAddr, bytes: &[u8], tally: &Tally) -> Result<()> {
    let mut connection = Connection::open(address, PATIENCE).map_err(|error| format!("connecting: {error}"))?;
    connection.set_patience(ANSWER);
    tally.connections.fetch_add(1, Ordering::Relaxed);
    // The node may have ended it before all was sent.
    let sent = connection.send_bytes(bytes).and_then(|()| connection.finish_sending());
    let (answers, over) = if sent.is_err() { (0, true) } else { end_of(&mut connection) };
    tally.answers.fetch_add(answers, Ordering::Relaxed);
    let count = if over { &tally.ended } else { &tally.left };
    count.fetch_add(1, Ordering::Relaxed);
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
