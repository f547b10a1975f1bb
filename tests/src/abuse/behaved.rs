//! A client that does nothing wrong: an idempotent producer and a consumer that reads back what it wrote.

use super::{PATIENCE, name_of};
use crate::Result;
use base::{ProducerEpoch, ProducerId, Sequence, WallMillis};
use batch::{BatchBuilder, BatchProducer};
use perf::client::{Connection, fetch_request, produce_request};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use wire::messages::InitProducerIdRequest;

pub const TOPIC: &str = "well-behaved";
/// Between two rounds of it.
const PACE: Duration = Duration::from_millis(5);

/// How its rounds went: produce acknowledged by all, and the record read back.
#[derive(Clone, Debug, Default)]
pub struct Rounds {
    pub latencies: Vec<Duration>,
}

impl Rounds {
    pub fn quantile(&self, of: f64) -> Duration {
        let mut sorted = self.latencies.clone();
        sorted.sort();
        let at = ((sorted.len() as f64 * of) as usize).min(sorted.len().saturating_sub(1));
        sorted.get(at).copied().unwrap_or_default()
    }

    pub fn told(&self) -> String {
        let [half, most, all] = [0.5, 0.99, 1.0].map(|of| self.quantile(of));
        format!("{} rounds, p50 {half:?}, p99 {most:?}, longest {all:?}", self.latencies.len())
    }
}

pub struct Behaved {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Rounds>>,
}

impl Behaved {
    /// Creates its topic and begins.
    pub fn start(address: SocketAddr) -> Result<Behaved> {
        crate::crash::create(address, TOPIC, 1)?;
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        let thread = std::thread::Builder::new().name("behaved".into()).spawn(move || run(address, &told))?;
        Ok(Behaved { stop, thread })
    }

    pub fn is_running(&self) -> bool {
        !self.thread.is_finished()
    }

    /// Its rounds, none of which may have had an error.
    pub fn finish(self) -> Result<Rounds> {
        self.stop.store(true, Ordering::Release);
        self.thread.join().map_err(|_| "the client that behaves panicked")?
    }
}

fn run(address: SocketAddr, stop: &AtomicBool) -> Result<Rounds> {
    let (mut writer, mut reader) = (Connection::open(address, PATIENCE)?, Connection::open(address, PATIENCE)?);
    let init = InitProducerIdRequest { transactional_id: None, transaction_timeout_ms: 60_000, ..Default::default() };
    let id = writer.call(4, &init)?;
    if id.error_code != 0 {
        return Err(format!("InitProducerId answers {}", name_of(id.error_code)).into());
    }
    let mut rounds = Rounds::default();
    for number in 0.. {
        if stop.load(Ordering::Acquire) {
            break;
        }
        let began = Instant::now();
        let round = || format!("round {number} of the client that behaves");
        let offset = produce(&mut writer, id.producer_id, number).map_err(|fault| format!("{}: {fault}", round()))?;
        read_back(&mut reader, offset, number).map_err(|fault| format!("{}: {fault}", round()))?;
        rounds.latencies.push(began.elapsed());
        std::thread::sleep(PACE);
    }
    Ok(rounds)
}

fn value(number: i32) -> Vec<u8> {
    (0..200).map(|at| (number.wrapping_mul(31) + at) as u8).collect()
}

fn produce(connection: &mut Connection, producer: i64, number: i32) -> Result<i64> {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as i64;
    let mut builder = BatchBuilder::new();
    let base_sequence = Some(Sequence(number));
    builder.producer(BatchProducer { id: ProducerId(producer), epoch: ProducerEpoch(0), base_sequence });
    builder.append(WallMillis(wall), None, Some(&value(number)), &[]);
    let request = produce_request(TOPIC, 0, builder.build().into(), -1, Duration::from_secs(30));
    let answer = connection.call(11, &request)?;
    let partition = answer.responses.first().and_then(|topic| topic.partition_responses.first());
    match partition {
        Some(partition) if partition.error_code == 0 => Ok(partition.base_offset),
        Some(partition) => Err(format!("Produce answers {}", name_of(partition.error_code)).into()),
        None => Err("Produce answers nothing".into()),
    }
}

fn read_back(connection: &mut Connection, offset: i64, number: i32) -> Result<()> {
    let request = fetch_request(TOPIC, 0, offset, 1 << 20, Duration::from_secs(10));
    let answer = connection.call(12, &request)?;
    let partition = answer.responses.first().and_then(|topic| topic.partitions.first()).ok_or("no partition")?;
    if partition.error_code != 0 {
        return Err(format!("Fetch answers {}", name_of(partition.error_code)).into());
    }
    let records = partition.records.as_deref().unwrap_or_default();
    let wanted = value(number);
    let found = records.windows(wanted.len()).any(|window| window == wanted);
    if found { Ok(()) } else { Err(format!("{} bytes came, the record is not among them", records.len()).into()) }
}
