//! A consumer that reads the first partition's end all the time, and counts what disturbed it.

use super::check::log_start;
use crate::Result;
use perf::client::{CallError, Connection, fetch_request};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const FETCH_VERSION: i16 = 12;
const ANSWER: Duration = Duration::from_secs(20);
const OUT_OF_RANGE: i16 = 1;
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(5);

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    answers: AtomicU64,
    /// Errors answered and connections lost.
    disturbances: AtomicU64,
    longest_gap: AtomicU64,
}

pub struct Reader {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Reader {
    pub fn start(address: SocketAddr, topic: &str) -> Result<Reader> {
        let shared = Arc::new(Shared::default());
        let (own, topic) = (shared.clone(), topic.to_owned());
        let thread = std::thread::Builder::new().name("reader".into()).spawn(move || {
            let mut offset = 0;
            let mut last = Instant::now();
            while !own.stop.load(Ordering::Acquire) {
                if read(&own, address, &topic, &mut offset, &mut last).is_err() {
                    own.disturbances.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(BETWEEN_ATTEMPTS);
                }
            }
        })?;
        Ok(Reader { shared, thread: Some(thread) })
    }

    pub fn answers(&self) -> u64 {
        self.shared.answers.load(Ordering::Relaxed)
    }

    pub fn disturbances(&self) -> u64 {
        self.shared.disturbances.load(Ordering::Relaxed)
    }

    /// The longest time between two answers with records since this was asked the last time.
    pub fn take_longest_gap(&self) -> Duration {
        Duration::from_micros(self.shared.longest_gap.swap(0, Ordering::Relaxed))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // It has nothing to tell: what it counted was read.
            let _ = thread.join();
        }
    }
}

/// Reads until it is told to stop, or something disturbs it.
fn read(
    shared: &Shared,
    address: SocketAddr,
    topic: &str,
    offset: &mut i64,
    last: &mut Instant,
) -> std::result::Result<(), CallError> {
    let mut connection = Connection::open(address, ANSWER)?;
    while !shared.stop.load(Ordering::Acquire) {
        let request = fetch_request(topic, 0, *offset, 1 << 20, Duration::from_millis(50));
        let answer = connection.call(FETCH_VERSION, &request)?;
        let told = answer.responses.first().and_then(|topic| topic.partitions.first());
        if told.is_some_and(|told| told.error_code == OUT_OF_RANGE) {
            // Retention overtook it; the checker looks whether it might.
            *offset = log_start(&mut connection, topic, 0)?;
            continue;
        }
        let told = told.filter(|told| told.error_code == 0 && answer.error_code == 0);
        let told = told.ok_or_else(|| CallError::Malformed("an error".into()))?;
        let bytes = told.records.as_deref().unwrap_or_default();
        let batches = batch::Batches::new(bytes).map_while(std::result::Result::ok);
        if let Some(next) = batches.last().map(|batch| batch.header().next_offset().0) {
            *offset = (*offset).max(next);
            shared.longest_gap.fetch_max(last.elapsed().as_micros() as u64, Ordering::Relaxed);
            shared.answers.fetch_add(1, Ordering::Relaxed);
            *last = Instant::now();
        }
    }
    Ok(())
}
