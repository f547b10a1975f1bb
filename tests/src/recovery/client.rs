//! A client that was waiting while the node was away: it asks until its first acks=all produce and its first fetch have
//! succeeded on every partition.

use crate::Result;
use crate::crash::check::value_of;
use base::{Offset, WallMillis};
use batch::{BatchBuilder, BatchView, Batches, Records};
use bytes::Bytes;
use perf::client::{CallError, Connection};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use wire::messages::fetch_request::{FetchPartition, FetchTopic};
use wire::messages::produce_request::{PartitionProduceData, TopicProduceData};
use wire::messages::{FetchRequest, ProduceRequest};
use wire::{ErrorCode, KafkaString};

pub const PRODUCE_VERSION: i16 = 11;
const FETCH_VERSION: i16 = 12;
/// Longer than Apache Kafka takes for what is measured, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);
/// Between two attempts while the node is away: a fraction of what is measured.
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(1);
/// Partitions in one request, as a client with one node to talk to sends them.
const TOGETHER: usize = 250;
const FETCH_BYTES: i32 = 16 << 20;

/// When what had succeeded, from the given beginning on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Served {
    pub first_connected: Duration,
    pub first_produced: Duration,
    pub all_produced: Duration,
    pub all_fetched: Duration,
}

/// One of the records that the node had before: its partition, its offset and its number.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    pub partition: i32,
    pub offset: i64,
}

pub struct Waiting<'a> {
    pub address: SocketAddr,
    pub topic: &'a str,
    /// The last record that was acknowledged in each partition: the fetch begins there.
    pub known: &'a [Known],
    pub beginning: Instant,
    /// The number of the records that are produced: of the round.
    pub round: u64,
}

impl Waiting<'_> {
    /// Asks until every partition has answered.
    pub fn serve(&self) -> Result<Served> {
        let mut served = Served::default();
        let mut produced: Vec<Option<i64>> = vec![None; self.known.len()];
        let mut fetched = vec![false; self.known.len()];
        while !fetched.iter().all(|done| *done) {
            if self.beginning.elapsed() > PATIENCE {
                let missing = fetched.iter().filter(|done| !**done).count();
                return Err(format!("{missing} partitions are not served after {PATIENCE:?}").into());
            }
            match self.connection(&mut served, &mut produced, &mut fetched) {
                Ok(()) => {}
                Err(Trouble::Call(CallError::Malformed(what))) => return Err(what.into()),
                Err(Trouble::Wrong(what)) => return Err(what.into()),
                Err(Trouble::Call(_) | Trouble::NotYet) => std::thread::sleep(BETWEEN_ATTEMPTS),
            }
        }
        Ok(served)
    }

    fn connection(
        &self,
        served: &mut Served,
        produced: &mut [Option<i64>],
        fetched: &mut [bool],
    ) -> std::result::Result<(), Trouble> {
        let mut connection = Connection::open(self.address, PATIENCE)?;
        note(&mut served.first_connected, self.beginning);
        loop {
            let missing: Vec<usize> = (0..produced.len()).filter(|index| produced[*index].is_none()).collect();
            if missing.is_empty() {
                break;
            }
            let before = missing.len();
            self.produce(&mut connection, &missing, produced)?;
            let left = produced.iter().filter(|offset| offset.is_none()).count();
            if left < before {
                note(&mut served.first_produced, self.beginning);
            }
            if left == before {
                return Err(Trouble::NotYet);
            }
        }
        note(&mut served.all_produced, self.beginning);
        while fetched.iter().any(|done| !done) {
            let missing: Vec<usize> = (0..fetched.len()).filter(|index| !fetched[*index]).collect();
            self.fetch(&mut connection, &missing, produced, fetched)?;
        }
        note(&mut served.all_fetched, self.beginning);
        Ok(())
    }

    fn produce(
        &self,
        connection: &mut Connection,
        missing: &[usize],
        produced: &mut [Option<i64>],
    ) -> std::result::Result<(), Trouble> {
        for group in missing.chunks(TOGETHER) {
            let data = group.iter().map(|index| {
                let partition = self.known[*index].partition;
                partition_data(partition, small_batch(partition, self.round))
            });
            let answer = connection.call(PRODUCE_VERSION, &produce_request(self.topic, data.collect()))?;
            for told in answer.responses.iter().flat_map(|topic| &topic.partition_responses) {
                let index = group.iter().find(|index| self.known[**index].partition == told.index);
                let index = *index.ok_or_else(|| Trouble::Wrong("an answer to nothing".into()))?;
                if accepted(told.index, told.error_code)? {
                    produced[index] = Some(told.base_offset);
                }
            }
        }
        Ok(())
    }

    fn fetch(
        &self,
        connection: &mut Connection,
        missing: &[usize],
        produced: &[Option<i64>],
        fetched: &mut [bool],
    ) -> std::result::Result<(), Trouble> {
        let mut progress = false;
        for group in missing.chunks(TOGETHER) {
            let partitions = group.iter().map(|index| FetchPartition {
                partition: self.known[*index].partition,
                fetch_offset: self.known[*index].offset,
                partition_max_bytes: 64 << 10,
                ..Default::default()
            });
            let topic = FetchTopic { topic: self.topic.into(), partitions: partitions.collect(), ..Default::default() };
            let request = FetchRequest {
                max_wait_ms: 100,
                min_bytes: 1,
                max_bytes: FETCH_BYTES,
                topics: vec![topic],
                ..Default::default()
            };
            let answer = connection.call(FETCH_VERSION, &request)?;
            for told in answer.responses.iter().flat_map(|topic| &topic.partitions) {
                let index = group.iter().find(|index| self.known[**index].partition == told.partition_index);
                let index = *index.ok_or_else(|| Trouble::Wrong("an answer to nothing".into()))?;
                let bytes = told.records.as_deref().unwrap_or_default();
                if accepted(told.partition_index, told.error_code)? && !bytes.is_empty() {
                    let wanted = produced[index].expect("all were produced before");
                    check_records(bytes, &self.known[index], wanted).map_err(Trouble::Wrong)?;
                    (fetched[index], progress) = (true, true);
                }
            }
        }
        if progress { Ok(()) } else { Err(Trouble::NotYet) }
    }
}

enum Trouble {
    Call(CallError),
    Wrong(String),
    NotYet,
}

impl From<CallError> for Trouble {
    fn from(error: CallError) -> Trouble {
        Trouble::Call(error)
    }
}

fn note(place: &mut Duration, beginning: Instant) {
    if place.is_zero() {
        *place = beginning.elapsed();
    }
}

/// Whether a partition did what was asked; what no client would try again is a fault. A partition that is not known yet
/// is one of those that a client asks again.
fn accepted(partition: i32, code: i16) -> std::result::Result<bool, Trouble> {
    match ErrorCode::from_code(code) {
        Some(ErrorCode::None) => Ok(true),
        Some(error) if error.is_retriable() => Ok(false),
        _ => Err(Trouble::Wrong(format!("partition {partition} answers {code}"))),
    }
}

/// The record at the known offset is the one that was there before; the new one stands where it was acknowledged, if the
/// answer reaches so far.
fn check_records(bytes: &[u8], known: &Known, produced: i64) -> std::result::Result<(), String> {
    let mut seen = false;
    for batch in Batches::new(bytes) {
        let view = batch.and_then(|batch| BatchView::parse_whole(batch.bytes()));
        let view = view.map_err(|error| format!("partition {}: {error}", known.partition))?;
        for record in Records::new(view.body(), view.records_count()) {
            let record = record.map_err(|error| error.to_string())?;
            let Offset(offset) = view.header().offset_at(record.offset_delta);
            let value = record.value.unwrap_or_default();
            let own = value.get(..4) == Some(&known.partition.to_be_bytes());
            seen |= offset == known.offset && own;
            if (offset == known.offset || offset == produced) && !own {
                return Err(format!("partition {}: offset {offset} holds another record", known.partition));
            }
        }
    }
    if seen { Ok(()) } else { Err(format!("partition {}: offset {} is not there", known.partition, known.offset)) }
}

pub fn small_batch(partition: i32, number: u64) -> Bytes {
    let mut builder = BatchBuilder::new();
    builder.append(WallMillis(super::fill::wall()), None, Some(&value_of(partition, number)), &[]);
    builder.build().into()
}

pub fn partition_data(index: i32, records: Bytes) -> PartitionProduceData {
    PartitionProduceData { index, records: Some(records), ..Default::default() }
}

pub fn produce_request(topic: &str, partition_data: Vec<PartitionProduceData>) -> ProduceRequest {
    let topic = TopicProduceData { name: KafkaString::from(topic), partition_data, ..Default::default() };
    ProduceRequest { acks: -1, timeout_ms: 60_000, topic_data: vec![topic], ..Default::default() }
}
