//! The load: N connections, one record a request, sent when due whether or not earlier answers have come.
//!
//! One thread does everything, so that client threads never wait for each other. By default it spins, which keeps the
//! client's own wake-ups out of the figures; it then wants a core of its own.

use crate::client::{CallError, Connection, produce_request};
use crate::schedule::{Arrivals, Schedule};
use base::{Random, WallMillis};
use batch::BatchBuilder;
use bytes::{Bytes, BytesMut};
use hdrhistogram::Histogram;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use wire::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use wire::messages::{CreateTopicsRequest, MetadataRequest, ProduceResponse};
use wire::{ApiKey, Decoder, ErrorCode, KafkaString, Message, read_response_header};

/// The newest version that names topics by name, so that one frame fits every broker.
pub(crate) const PRODUCE_VERSION: i16 = 11;
const CREATE_TOPICS_VERSION: i16 = 7;
const PATIENCE: Duration = Duration::from_secs(30);
/// How long answers may still come after the last request was sent.
const DRAIN: Duration = Duration::from_secs(30);
/// A sleeping client wakes this much before a request is due and spins for the rest: timers are not exact.
const EARLY: Duration = Duration::from_micros(100);

#[derive(Clone, Debug)]
pub struct Options {
    pub bootstrap: SocketAddr,
    pub topic: String,
    pub partitions: i32,
    /// Settings of the topic, if the run creates it.
    pub configs: Vec<(String, String)>,
    pub connections: usize,
    pub record_size: usize,
    pub acks: i16,
    /// Requests per second, over all connections.
    pub rate: f64,
    pub arrivals: Arrivals,
    /// Requests of the first part of the run are sent but not counted.
    pub warm_up: Duration,
    pub duration: Duration,
    /// Sleep between requests instead of spinning.
    pub sleep: bool,
    pub seed: u64,
}

/// What a run showed. Latencies are in microseconds from the due time to the arrival of the answer.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub latencies: Histogram<u64>,
    /// How late requests left, in microseconds: a client that cannot keep up shows here.
    pub lateness: Histogram<u64>,
    pub counted: u64,
    pub errors: BTreeMap<String, u64>,
    /// Requests that never got an answer.
    pub unanswered: u64,
    /// Answers per second over the counted part, up to the last counted answer.
    pub achieved: f64,
}

/// Creates the topic unless it exists, and waits until its partitions have a leader.
pub fn prepare(options: &Options) -> Result<(), CallError> {
    let mut connection = Connection::open(options.bootstrap, PATIENCE)?;
    let configs = options.configs.iter().map(|(name, value)| CreatableTopicConfig {
        name: KafkaString::from(name.as_str()),
        value: Some(KafkaString::from(value.as_str())),
        ..Default::default()
    });
    let topic = CreatableTopic {
        name: KafkaString::from(options.topic.as_str()),
        num_partitions: options.partitions,
        replication_factor: 1,
        configs: configs.collect(),
        ..Default::default()
    };
    let request = CreateTopicsRequest { topics: vec![topic], timeout_ms: 30_000, ..Default::default() };
    let response = connection.call(CREATE_TOPICS_VERSION, &request)?;
    let code = response.topics.first().map_or(-1, |topic| topic.error_code);
    if code != ErrorCode::None.code() && code != ErrorCode::TopicAlreadyExists.code() {
        return Err(CallError::Malformed(format!("CreateTopics answered {}", error_name(code))));
    }
    wait_for_leaders(&mut connection, options)
}

fn wait_for_leaders(connection: &mut Connection, options: &Options) -> Result<(), CallError> {
    use wire::messages::metadata_request::MetadataRequestTopic;
    let topic = MetadataRequestTopic { name: Some(KafkaString::from(options.topic.as_str())), ..Default::default() };
    let request = MetadataRequest { topics: Some(vec![topic]), ..Default::default() };
    let until = Instant::now() + PATIENCE;
    loop {
        let response = connection.call(12, &request)?;
        let led = response.topics.iter().flat_map(|topic| &topic.partitions).filter(|p| p.leader_id >= 0).count();
        if led as i32 >= options.partitions {
            return Ok(());
        }
        if Instant::now() > until {
            return Err(CallError::TimedOut);
        }
        std::thread::yield_now();
    }
}

fn error_name(code: i16) -> String {
    ErrorCode::from_code(code).map_or_else(|| format!("error {code}"), |error| error.name().to_owned())
}

/// One connection's end of the load.
struct Lane {
    stream: TcpStream,
    /// The request's frame, in which only the correlation id changes.
    frame: Vec<u8>,
    unsent: VecDeque<u8>,
    received: BytesMut,
    /// Due times of requests without an answer yet; answers come in order.
    waiting: VecDeque<(i32, Duration)>,
    next_correlation: i32,
}

/// Where the correlation id stands: after the size, the API key and the version.
pub(crate) const CORRELATION_AT: usize = 8;

impl Lane {
    fn over(stream: TcpStream, options: &Options, index: usize, random: &mut Random) -> Result<Lane, CallError> {
        stream.set_nonblocking(true)?;
        let partition = (index as i32) % options.partitions;
        let frame = produce_frame(options, partition, random)?;
        Ok(Lane {
            stream,
            frame,
            unsent: VecDeque::new(),
            received: BytesMut::new(),
            waiting: VecDeque::new(),
            next_correlation: 1,
        })
    }

    fn submit(&mut self, due: Duration) -> io::Result<()> {
        let correlation = self.next_correlation;
        self.next_correlation = correlation.wrapping_add(1);
        self.frame[CORRELATION_AT..CORRELATION_AT + 4].copy_from_slice(&correlation.to_be_bytes());
        self.waiting.push_back((correlation, due));
        let sent = if self.unsent.is_empty() { write_some(&mut self.stream, &self.frame)? } else { 0 };
        self.unsent.extend(&self.frame[sent..]);
        Ok(())
    }

    fn push(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            let (front, _) = self.unsent.as_slices();
            let sent = write_some(&mut self.stream, front)?;
            if sent == 0 {
                break;
            }
            self.unsent.drain(..sent);
        }
        Ok(())
    }

    /// Reads what has come and hands each answer's due time and error code to `each`.
    fn reap(&mut self, each: &mut impl FnMut(Duration, i16)) -> Result<(), CallError> {
        let mut chunk = [0u8; 16 * 1024];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(CallError::Closed),
                Ok(count) => self.received.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            }
            while let Some(range) =
                wire::frame::split(&self.received, 1 << 20).map_err(|error| CallError::Malformed(error.to_string()))?
            {
                let frame: Bytes = self.received.split_to(range.end).freeze().slice(range);
                let (due, code) = self.match_answer(&frame)?;
                each(due, code);
            }
        }
    }

    fn match_answer(&mut self, frame: &Bytes) -> Result<(Duration, i16), CallError> {
        let mut d = Decoder::shared(frame);
        let found = read_response_header(&mut d, ApiKey::Produce, PRODUCE_VERSION)?;
        let (correlation, due) =
            self.waiting.pop_front().ok_or_else(|| CallError::Malformed("an answer nobody asked for".into()))?;
        if found != correlation {
            return Err(CallError::Malformed(format!("the answer to {found} came before that to {correlation}")));
        }
        let response = ProduceResponse::decode(&mut d, PRODUCE_VERSION)?;
        let partition = response.responses.first().and_then(|topic| topic.partition_responses.first());
        Ok((due, partition.map_or(ErrorCode::UnknownServerError.code(), |partition| partition.error_code)))
    }
}

fn write_some(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<usize> {
    match stream.write(bytes) {
        Ok(count) => Ok(count),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        Err(error) => Err(error),
    }
}

fn produce_frame(options: &Options, partition: i32, random: &mut Random) -> Result<Vec<u8>, CallError> {
    let mut value = vec![0u8; options.record_size];
    random.fill(&mut value);
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as i64;
    let mut builder = BatchBuilder::new();
    builder.append(WallMillis(wall), None, Some(&value), &[]);
    let request = produce_request(&options.topic, partition, builder.build().into(), options.acks, PATIENCE);
    let mut out = BytesMut::new();
    wire::encode_request(&mut out, PRODUCE_VERSION, 0, Some(crate::client::CLIENT_ID), &request)
        .map_err(|error| CallError::Malformed(error.to_string()))?;
    Ok(out.to_vec())
}

/// What the loop counts while it runs.
struct Tally {
    start: Instant,
    warm_up: Duration,
    outcome: Outcome,
    last_answer: Duration,
}

impl Tally {
    fn answer(&mut self, due: Duration, code: i16) {
        if due < self.warm_up {
            return;
        }
        let now = self.start.elapsed();
        let outcome = &mut self.outcome;
        outcome.counted += 1;
        self.last_answer = now;
        outcome.latencies.saturating_record(now.saturating_sub(due).as_micros() as u64);
        if code != ErrorCode::None.code() {
            *outcome.errors.entry(error_name(code)).or_default() += 1;
        }
    }
}

/// An empty one for latencies in microseconds.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 120_000_000, 3).expect("bounds in order")
}

/// Runs the load. `measuring` is called once, when the counted part begins.
pub fn run(options: &Options, measuring: impl FnOnce()) -> Result<Outcome, CallError> {
    let open = |_| {
        let mut connection = Connection::open(options.bootstrap, PATIENCE)?;
        connection.call(3, &crate::client::api_versions_request())?;
        Ok(connection.into_stream())
    };
    let streams: Result<Vec<TcpStream>, CallError> = (0..options.connections).map(open).collect();
    run_over(streams?, options, measuring)
}

/// Runs the load over connections that stand.
pub(crate) fn run_over(
    streams: Vec<TcpStream>,
    options: &Options,
    measuring: impl FnOnce(),
) -> Result<Outcome, CallError> {
    assert!(options.acks != 0, "without answers there is no latency");
    assert!(options.connections > 0 && options.partitions > 0, "somewhere to send to");
    let mut random = Random::from_seed(options.seed);
    let lanes = streams.into_iter().enumerate();
    let lanes: Result<Vec<Lane>, CallError> =
        lanes.map(|(index, stream)| Lane::over(stream, options, index, &mut random)).collect();
    let mut lanes = lanes?;
    let mut schedule = Schedule::new(options.arrivals, options.rate, random);
    let outcome = Outcome {
        latencies: histogram(),
        lateness: histogram(),
        counted: 0,
        errors: BTreeMap::new(),
        unanswered: 0,
        achieved: 0.0,
    };
    let (start, warm_up) = (Instant::now(), options.warm_up);
    let mut tally = Tally { start, warm_up, outcome, last_answer: Duration::ZERO };
    send_and_reap(options, &mut lanes, &mut schedule, &mut tally, measuring)?;
    let mut outcome = tally.outcome;
    outcome.unanswered = lanes.iter().map(|lane| lane.waiting.len() as u64).sum();
    let span = tally.last_answer.saturating_sub(options.warm_up).as_secs_f64();
    outcome.achieved = if span > 0.0 { outcome.counted as f64 / span } else { 0.0 };
    Ok(outcome)
}

fn send_and_reap(
    options: &Options,
    lanes: &mut [Lane],
    schedule: &mut Schedule,
    tally: &mut Tally,
    measuring: impl FnOnce(),
) -> Result<(), CallError> {
    let end = options.warm_up + options.duration;
    let mut measuring = Some(measuring);
    let mut due = schedule.take();
    let mut turn = 0usize;
    loop {
        let now = tally.start.elapsed();
        if now >= options.warm_up
            && let Some(measuring) = measuring.take()
        {
            measuring();
        }
        while due < end && due <= tally.start.elapsed() {
            let lane = &mut lanes[turn % options.connections];
            lane.submit(due)?;
            turn += 1;
            if due >= options.warm_up {
                let late = tally.start.elapsed().saturating_sub(due);
                tally.outcome.lateness.saturating_record(late.as_micros() as u64);
            }
            due = schedule.take();
        }
        for lane in lanes.iter_mut() {
            lane.push()?;
            lane.reap(&mut |due, code| tally.answer(due, code))?;
        }
        if due >= end && (now > end + DRAIN || lanes.iter().all(|lane| lane.waiting.is_empty())) {
            return Ok(());
        }
        if options.sleep {
            wait(lanes, if due < end { due } else { end + DRAIN }, tally.start)?;
        }
    }
}

/// Sleeps until a socket has something or the next request is nearly due.
fn wait(lanes: &[Lane], due: Duration, start: Instant) -> io::Result<()> {
    let left = due.saturating_sub(start.elapsed() + EARLY);
    if left.is_zero() {
        return Ok(());
    }
    let flags = |lane: &Lane| if lane.unsent.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
    let mut descriptors: Vec<PollFd<'_>> = lanes.iter().map(|lane| PollFd::new(&lane.stream, flags(lane))).collect();
    let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
    match poll(&mut descriptors, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
