//! Topics created and deleted in bulk while processes are killed: what was acknowledged as created is there and takes a
//! record, what was acknowledged as deleted is gone, whatever died in between.

use crate::Result;
use base::WallMillis;
use batch::BatchBuilder;
use perf::client::{CallError, Connection};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use wire::messages::create_topics_request::CreatableTopic;
use wire::messages::metadata_request::MetadataRequestTopic;
use wire::messages::produce_request::{PartitionProduceData, TopicProduceData};
use wire::messages::{CreateTopicsRequest, DeleteTopicsRequest, MetadataRequest, ProduceRequest};
use wire::{ErrorCode, KafkaString};

const ANSWER: Duration = Duration::from_secs(20);
/// How long one bulk may take, deaths included.
const STUCK: Duration = Duration::from_secs(90);
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(5);

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    bulks: AtomicU64,
    fault: Mutex<Option<String>>,
}

pub struct Bulk {
    shared: Arc<Shared>,
    count: usize,
    thread: Option<JoinHandle<()>>,
}

impl Bulk {
    pub fn start(address: SocketAddr, count: usize) -> Result<Bulk> {
        let shared = Arc::new(Shared::default());
        let own = shared.clone();
        let thread = std::thread::Builder::new().name("bulk".into()).spawn(move || {
            while !own.stop.load(Ordering::Acquire) {
                let number = own.bulks.load(Ordering::Relaxed);
                if let Err(fault) = one(address, number, count) {
                    *own.fault.lock().expect("nobody panics with it") = Some(format!("bulk {number}: {fault}"));
                    return;
                }
                own.bulks.fetch_add(1, Ordering::Relaxed);
            }
        })?;
        Ok(Bulk { shared, count, thread: Some(thread) })
    }

    /// Says how many there were, or what went wrong.
    pub fn tell(&self) -> Result<()> {
        if let Some(fault) = self.shared.fault.lock().map_err(|_| "the thread of bulks panicked")?.clone() {
            return Err(fault.into());
        }
        let bulks = self.shared.bulks.load(Ordering::Relaxed);
        println!("  {bulks} times {} topics created, written to and deleted", self.count);
        Ok(())
    }

    pub fn finish(mut self) -> Result<()> {
        self.end()?;
        self.tell()
    }

    fn end(&mut self) -> Result<()> {
        self.shared.stop.store(true, Ordering::Release);
        self.thread.take().map_or(Ok(()), |thread| thread.join().map_err(|_| "the thread of bulks panicked".into()))
    }
}

impl Drop for Bulk {
    fn drop(&mut self) {
        // A run that failed has its own fault to tell.
        let _ = self.end();
    }
}

/// Creates topics, writes a record to each, and deletes them again; each step until it is acknowledged.
fn one(address: SocketAddr, number: u64, count: usize) -> Result<()> {
    let names: Vec<KafkaString> =
        (0..count).map(|one| KafkaString::from(format!("bulk-{number}-{one}").as_str())).collect();
    let topic = |name: &KafkaString| CreatableTopic {
        name: name.clone(),
        num_partitions: 1,
        replication_factor: 1,
        ..Default::default()
    };
    let create =
        CreateTopicsRequest { topics: names.iter().map(topic).collect(), timeout_ms: 15_000, ..Default::default() };
    attempt(address, "creation", |connection| {
        let answer = connection.call(7, &create)?;
        all(answer.topics.iter().map(|topic| topic.error_code), ErrorCode::TopicAlreadyExists)
    })?;
    let produce = produce_to(&names);
    attempt(address, "a record", |connection| {
        let answer = connection.call(11, &produce)?;
        all(answer.responses.iter().flat_map(|t| &t.partition_responses).map(|p| p.error_code), ErrorCode::None)
    })?;
    expect_known(address, &names, ErrorCode::None)?;
    let delete = DeleteTopicsRequest { topic_names: names.clone(), timeout_ms: 15_000, ..Default::default() };
    attempt(address, "deletion", |connection| {
        let answer = connection.call(5, &delete)?;
        all(answer.responses.iter().map(|topic| topic.error_code), ErrorCode::UnknownTopicOrPartition)
    })?;
    // A dataplane that comes back without its control plane tells what it knew; it hears of the rest in a moment.
    expect_known(address, &names, ErrorCode::UnknownTopicOrPartition)
}

fn produce_to(names: &[KafkaString]) -> ProduceRequest {
    let bytes: bytes::Bytes = BatchBuilder::new().append(WallMillis(1), None, Some(b"bulk"), &[]).build().into();
    let data = |name: &KafkaString| TopicProduceData {
        name: name.clone(),
        partition_data: vec![PartitionProduceData { index: 0, records: Some(bytes.clone()), ..Default::default() }],
        ..Default::default()
    };
    ProduceRequest { acks: -1, timeout_ms: 10_000, topic_data: names.iter().map(data).collect(), ..Default::default() }
}

/// Waits until all topics are told with this code.
fn expect_known(address: SocketAddr, names: &[KafkaString], wanted: ErrorCode) -> Result<()> {
    let topic = |name: &KafkaString| MetadataRequestTopic { name: Some(name.clone()), ..Default::default() };
    // To ask for a topic would make it again.
    let request = MetadataRequest {
        topics: Some(names.iter().map(topic).collect()),
        allow_auto_topic_creation: false,
        ..Default::default()
    };
    attempt(address, wanted.name(), |connection| {
        let answer = connection.call(12, &request)?;
        let code = |code: i16| if code == wanted.code() { Ok(()) } else { Err(End::Again(format!("answers {code}"))) };
        answer.topics.iter().try_for_each(|topic| code(topic.error_code))
    })
}

enum End {
    Again(String),
    Fault(String),
}

impl From<CallError> for End {
    fn from(error: CallError) -> End {
        End::Again(error.to_string())
    }
}

/// Every code is a success, or says that an earlier attempt was one.
fn all(codes: impl Iterator<Item = i16>, done_before: ErrorCode) -> std::result::Result<(), End> {
    let mut again = None;
    for code in codes {
        match ErrorCode::from_code(code) {
            Some(ErrorCode::None) => {}
            Some(error) if error == done_before => {}
            Some(error) if error.is_retriable() => again = Some(error.name()),
            _ => return Err(End::Fault(format!("error {code}"))),
        }
    }
    again.map_or(Ok(()), |name| Err(End::Again(name.to_owned())))
}

/// Tries on connections of its own until it succeeds.
fn attempt(
    address: SocketAddr,
    what: &str,
    mut act: impl FnMut(&mut Connection) -> std::result::Result<(), End>,
) -> Result<()> {
    let until = Instant::now() + STUCK;
    loop {
        let end = Connection::open(address, ANSWER).map_err(End::from).and_then(|mut connection| act(&mut connection));
        match end {
            Ok(()) => return Ok(()),
            Err(End::Again(reason)) if Instant::now() >= until => return Err(format!("{what}: {reason}").into()),
            Err(End::Again(_)) => std::thread::sleep(BETWEEN_ATTEMPTS),
            Err(End::Fault(fault)) => return Err(format!("{what}: {fault}").into()),
        }
    }
}
