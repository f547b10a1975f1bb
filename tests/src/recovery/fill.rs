//! Fills a topic: so many bytes over so many partitions, and at the end a small record in each.

use super::client::{Known, PRODUCE_VERSION, partition_data, produce_request, small_batch};
use crate::{Result, wait};
use base::{Random, WallMillis};
use batch::BatchBuilder;
use bytes::Bytes;
use perf::client::Connection;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use wire::messages::ProduceRequest;

const THREADS: u64 = 4;
const BATCH: usize = 64 << 10;
const RECORD: usize = 1 << 10;
/// Partitions of one request: 1 MiB.
const TOGETHER: i32 = 16;
const UNDER_WAY: usize = 2;
const PATIENCE: Duration = Duration::from_secs(120);

pub fn wall() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as i64
}

/// A batch of records that do not compress.
fn large_batch() -> Bytes {
    let mut random = Random::from_seed(7);
    let mut builder = BatchBuilder::new();
    let mut value = vec![0u8; RECORD];
    for _ in 0..BATCH / RECORD {
        random.fill(&mut value);
        builder.append(WallMillis(wall()), None, Some(&value), &[]);
    }
    builder.build().into()
}

/// Writes `bytes` over all partitions and returns where the last record of each stands.
pub fn fill(address: SocketAddr, topic: &str, partitions: i32, bytes: u64) -> Result<Vec<Known>> {
    // A topic that was just made may not be led yet.
    wait::until("every partition's leader", PATIENCE, || Ok(last_records(address, topic, partitions).ok()))?;
    let batch = large_batch();
    let groups = (partitions as u64).div_ceil(TOGETHER as u64);
    let rounds = bytes / (batch.len() as u64 * partitions as u64);
    let (next, failed) = (AtomicU64::new(0), AtomicBool::new(false));
    let started = Instant::now();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    let result = write(address, topic, partitions, &batch, rounds * groups, groups, &next, &failed);
                    if result.is_err() {
                        failed.store(true, Ordering::Relaxed);
                    }
                    result
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a writer panicked")?)
    })?;
    let written = rounds * partitions as u64 * batch.len() as u64;
    let rate = written as f64 / started.elapsed().as_secs_f64() / f64::from(1 << 20);
    println!("{} MiB written over {partitions} partitions, {rate:.0} MiB/s", written >> 20);
    last_records(address, topic, partitions)
}

#[allow(clippy::too_many_arguments, reason = "what the threads of one fill share")]
fn write(
    address: SocketAddr,
    topic: &str,
    partitions: i32,
    batch: &Bytes,
    total: u64,
    groups: u64,
    next: &AtomicU64,
    failed: &AtomicBool,
) -> Result<()> {
    let mut connection = Connection::open(address, PATIENCE)?;
    let mut under_way: VecDeque<(i32, ProduceRequest)> = VecDeque::new();
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let over = number >= total || failed.load(Ordering::Relaxed);
        if !over {
            let first = (number % groups) as i32 * TOGETHER;
            let data = (first..partitions.min(first + TOGETHER)).map(|index| partition_data(index, batch.clone()));
            let request = produce_request(topic, data.collect());
            under_way.push_back((connection.send(PRODUCE_VERSION, &request)?, request));
        }
        while under_way.len() >= UNDER_WAY || (over && !under_way.is_empty()) {
            let (correlation, _) = under_way.pop_front().ok_or("nothing is under way")?;
            let answer = connection.receive::<ProduceRequest>(PRODUCE_VERSION, correlation)?;
            let codes = answer.responses.iter().flat_map(|topic| &topic.partition_responses);
            if let Some(refused) = codes.into_iter().find(|partition| partition.error_code != 0) {
                return Err(format!("partition {} answers {}", refused.index, refused.error_code).into());
            }
        }
        if over {
            return Ok(());
        }
    }
}

fn last_records(address: SocketAddr, topic: &str, partitions: i32) -> Result<Vec<Known>> {
    let mut connection = Connection::open(address, PATIENCE)?;
    let mut known = Vec::new();
    let all: Vec<i32> = (0..partitions).collect();
    for group in all.chunks(TOGETHER as usize) {
        let data = group.iter().map(|partition| partition_data(*partition, small_batch(*partition, 0)));
        let answer = connection.call(PRODUCE_VERSION, &produce_request(topic, data.collect()))?;
        for told in answer.responses.iter().flat_map(|topic| &topic.partition_responses) {
            if told.error_code != 0 {
                return Err(format!("partition {} answers {}", told.index, told.error_code).into());
            }
            known.push(Known { partition: told.index, offset: told.base_offset });
        }
    }
    Ok(known)
}
