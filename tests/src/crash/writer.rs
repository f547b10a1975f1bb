//! Writers: one thread for each partition, several requests under way, everything sent again until it is acknowledged.

use super::check::value_of;
use super::places::{Pace, Place};
use crate::Result;
use base::{ProducerEpoch, ProducerId, Random, Sequence, WallMillis};
use batch::{BatchBuilder, BatchProducer, Compression};
use bytes::Bytes;
use perf::client::{CallError, Connection, produce_request};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use wire::ErrorCode;
use wire::messages::{InitProducerIdRequest, ProduceRequest};

const PRODUCE_VERSION: i16 = 11;
/// As many as an idempotent producer of Kafka's client has, and a broker remembers.
const UNDER_WAY: usize = 5;
/// What a writer that has nothing to do waits.
const PAUSE: Duration = Duration::from_millis(2);
/// How long a writer tries without any progress before the run fails.
const STUCK: Duration = Duration::from_secs(90);
const ANSWER: Duration = Duration::from_secs(20);
/// The time of records. It is the real one, because a broker that rebuilds its producers after a crash forgets those whose last batch is older than producer.id.expiration.ms.
fn wall() -> WallMillis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    WallMillis(since.as_millis() as i64)
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    resent: AtomicU64,
    /// Times that a connection was lost or an error answered.
    disturbances: AtomicU64,
    /// Microseconds between two acknowledgements of a writer.
    longest_gap: AtomicU64,
    last_disturbance: Mutex<String>,
    fault: Mutex<Option<String>>,
}

/// What a place was told: how many of its records are acknowledged, and where batches of one without an idempotent
/// producer stand.
#[derive(Debug, Default)]
pub struct Told {
    count: AtomicU64,
    stands: Mutex<Vec<Stands>>,
}

/// A batch that was acknowledged: its first record and that one's offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stands {
    pub offset: i64,
    pub first: u64,
}

impl Told {
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// The acknowledged batches from an offset on.
    pub fn stands_from(&self, offset: i64) -> Vec<Stands> {
        let stands = self.stands.lock().expect("a writer panicked");
        let from = stands.partition_point(|one| one.offset < offset);
        stands[from..].to_vec()
    }
}

pub struct Writers {
    shared: Arc<Shared>,
    told: Vec<Arc<Told>>,
    threads: Vec<JoinHandle<()>>,
}

impl Writers {
    pub fn start(address: SocketAddr, places: &[Place], pace: Pace, seed: u64) -> Result<Writers> {
        let shared = Arc::new(Shared::default());
        let mut writers = Writers { shared, told: Vec::new(), threads: Vec::new() };
        for place in places {
            let told = Arc::new(Told::default());
            let writer = Writer {
                address,
                place: place.clone(),
                pace,
                shared: writers.shared.clone(),
                told: told.clone(),
                random: Random::from_seed(seed.wrapping_add(place.key as u64)),
                producer: None,
                next: 0,
                unacknowledged: VecDeque::new(),
                progress: Instant::now(),
                due: Instant::now(),
            };
            writers.told.push(told);
            let name = format!("writer-{}", place.key);
            writers.threads.push(std::thread::Builder::new().name(name).spawn(|| writer.run())?);
        }
        Ok(writers)
    }

    /// How many records of each place are acknowledged.
    pub fn acknowledged(&self) -> Vec<u64> {
        self.told.iter().map(|told| told.count()).collect()
    }

    /// What each place was told.
    pub fn told(&self) -> &[Arc<Told>] {
        &self.told
    }

    pub fn resent(&self) -> u64 {
        self.shared.resent.load(Ordering::Relaxed)
    }

    pub fn disturbances(&self) -> u64 {
        self.shared.disturbances.load(Ordering::Relaxed)
    }

    /// The longest time that a writer had no acknowledgement since this was asked the last time.
    pub fn take_longest_gap(&self) -> Duration {
        Duration::from_micros(self.shared.longest_gap.swap(0, Ordering::Relaxed))
    }

    pub fn last_disturbance(&self) -> String {
        self.shared.last_disturbance.lock().map(|last| last.clone()).unwrap_or_default()
    }

    /// The first fault of a writer, as soon as there is one.
    pub fn fail_early(&self) -> Result<()> {
        let fault = self.shared.fault.lock().map_err(|_| "a writer panicked")?;
        fault.clone().map_or(Ok(()), |fault| Err(fault.into()))
    }

    /// Has the writers end once everything they sent is acknowledged.
    pub fn finish(mut self) -> Result<Vec<Arc<Told>>> {
        self.shared.stop.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            thread.join().map_err(|_| "a writer panicked")?;
        }
        self.fail_early()?;
        Ok(std::mem::take(&mut self.told))
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
    }
}

/// Records `first` to `first + count`, as one batch.
#[derive(Clone, Debug)]
struct Sent {
    first: u64,
    count: u64,
    bytes: Bytes,
}

struct Writer {
    address: SocketAddr,
    place: Place,
    pace: Pace,
    shared: Arc<Shared>,
    told: Arc<Told>,
    random: Random,
    producer: Option<i64>,
    next: u64,
    unacknowledged: VecDeque<Sent>,
    progress: Instant,
    due: Instant,
}

/// What ends one connection's work.
enum End {
    Finished,
    Again(String),
    Fault(String),
}

impl From<CallError> for End {
    fn from(error: CallError) -> End {
        End::Again(error.to_string())
    }
}

impl Writer {
    fn run(mut self) {
        loop {
            let end = self.connection();
            let fault = match end {
                End::Finished => return,
                End::Again(reason) if self.progress.elapsed() > STUCK => format!("no progress any more: {reason}"),
                End::Again(reason) => {
                    if let Ok(mut last) = self.shared.last_disturbance.lock() {
                        *last = format!("{}-{}: {reason}", self.place.topic, self.place.partition);
                    }
                    // That a namespace is full for a moment is nobody's death.
                    let full = reason == ErrorCode::KafkaStorageError.name();
                    self.shared.disturbances.fetch_add(u64::from(!full), Ordering::Relaxed);
                    // The node is away; asking faster does not bring it back sooner.
                    std::thread::sleep(Duration::from_millis(5));
                    continue;
                }
                End::Fault(fault) => fault,
            };
            if let Ok(mut place) = self.shared.fault.lock() {
                let Place { topic, partition, .. } = &self.place;
                place.get_or_insert(format!("{topic}-{partition}: {fault}"));
            }
            return;
        }
    }

    fn connection(&mut self) -> End {
        match self.work() {
            Ok(()) => End::Finished,
            Err(end) => end,
        }
    }

    fn work(&mut self) -> std::result::Result<(), End> {
        let mut connection = Connection::open(self.address, ANSWER)?;
        let producer = self.producer_id(&mut connection)?;
        let mut correlations = VecDeque::new();
        for sent in &self.unacknowledged {
            correlations.push_back(connection.send(PRODUCE_VERSION, &self.request(sent))?);
            self.shared.resent.fetch_add(1, Ordering::Relaxed);
        }
        loop {
            let stopping = self.shared.stop.load(Ordering::Acquire);
            while !stopping && self.unacknowledged.len() < self.under_way_max() && self.is_due() {
                let sent = self.make(producer);
                self.unacknowledged.push_back(sent.clone());
                correlations.push_back(connection.send(PRODUCE_VERSION, &self.request(&sent))?);
            }
            let Some(correlation) = correlations.pop_front() else {
                if stopping {
                    return Ok(());
                }
                std::thread::sleep(PAUSE);
                continue;
            };
            let answer = connection.receive::<ProduceRequest>(PRODUCE_VERSION, correlation)?;
            let told = answer.responses.first().and_then(|topic| topic.partition_responses.first());
            let Some(told) = told else { return Err(End::Fault("an answer without the partition".into())) };
            self.take(told.error_code, told.base_offset)?;
        }
    }

    /// Whether the next batch may leave now; missed turns are made up for, a whole burst at most.
    fn is_due(&mut self) -> bool {
        let now = Instant::now();
        if now < self.due {
            return false;
        }
        let between = self.pace.between;
        self.due = (self.due + between).max(now.checked_sub(between * UNDER_WAY as u32).unwrap_or(now));
        true
    }

    /// A broker takes any first sequence of a producer it does not know, so the first batch goes alone, as with Kafka's
    /// client: else one of its successors might be taken while it is refused.
    /// Without an idempotent producer only one keeps the order.
    fn under_way_max(&self) -> usize {
        if self.told.count() == 0 || !self.place.idempotent { 1 } else { UNDER_WAY }
    }

    fn producer_id(&mut self, connection: &mut Connection) -> std::result::Result<Option<i64>, End> {
        if self.producer.is_some() || !self.place.idempotent {
            return Ok(self.producer);
        }
        let request =
            InitProducerIdRequest { transactional_id: None, transaction_timeout_ms: 60_000, ..Default::default() };
        let answer = connection.call(4, &request)?;
        if answer.error_code != 0 {
            return Err(End::Again(format!("InitProducerId answers {}", answer.error_code)));
        }
        self.producer = Some(answer.producer_id);
        Ok(self.producer)
    }

    fn make(&mut self, producer: Option<i64>) -> Sent {
        let (first, count) = (self.next, 1 + self.random.below(self.pace.batch_max));
        let mut builder = BatchBuilder::new();
        builder.compression(Compression { codec: self.place.codec, ..Compression::NONE });
        if let Some(id) = producer {
            builder.producer(BatchProducer {
                id: ProducerId(id),
                epoch: ProducerEpoch(0),
                base_sequence: Some(Sequence(0).plus(first as u32)),
            });
        }
        for number in first..first + count {
            builder.append(wall(), None, Some(&value_of(self.place.key, number)), &[]);
        }
        self.next = first + count;
        Sent { first, count, bytes: builder.build().into() }
    }

    fn request(&self, sent: &Sent) -> ProduceRequest {
        let Place { topic, partition, .. } = &self.place;
        produce_request(topic, *partition, sent.bytes.clone(), -1, Duration::from_secs(10))
    }

    /// An answer to the oldest batch under way.
    fn take(&mut self, code: i16, base_offset: i64) -> std::result::Result<(), End> {
        let Some(sent) = self.unacknowledged.front() else { return Err(End::Fault("an answer to nothing".into())) };
        match ErrorCode::from_code(code) {
            Some(ErrorCode::None) => {}
            Some(error) if error.is_retriable() => return Err(End::Again(error.name().to_owned())),
            other => {
                let name = other.map_or_else(|| code.to_string(), |error| error.name().to_owned());
                return Err(End::Fault(format!("record {} is answered with {name}", sent.first)));
            }
        }
        if self.place.idempotent && base_offset != sent.first as i64 {
            return Err(End::Fault(format!("record {} is told to be at offset {base_offset}", sent.first)));
        }
        if !self.place.idempotent {
            let mut stands = self.told.stands.lock().expect("no reader panics with it");
            if let Some(last) = stands.last().filter(|last| last.offset >= base_offset) {
                return Err(End::Fault(format!(
                    "record {} is told to be at {base_offset}, after {last:?}",
                    sent.first
                )));
            }
            stands.push(Stands { offset: base_offset, first: sent.first });
        }
        self.told.count.store(sent.first + sent.count, Ordering::Release);
        self.shared.longest_gap.fetch_max(self.progress.elapsed().as_micros() as u64, Ordering::Relaxed);
        self.progress = Instant::now();
        self.unacknowledged.pop_front();
        Ok(())
    }
}
