//! Reads partitions back and holds them against what was acknowledged.

use super::places::Place;
use super::writer::{Stands, Told};
use crate::Result;
use base::Random;
use batch::{BatchView, Batches, Records, inflate};
use perf::client::{CallError, Connection, fetch_request};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::messages::ListOffsetsRequest;
use wire::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use wire::{ErrorCode, KafkaString};

const FETCH_VERSION: i16 = 12;
const PATIENCE: Duration = Duration::from_secs(60);
const LIST_OFFSETS_VERSION: i16 = 6;
const EARLIEST: i64 = -2;
const INFLATED_MAX: usize = 16 << 20;
const VALUE_MAX: u64 = 3000;

/// The bytes of a record: partition and number, then a pattern that follows from both.
pub fn value_of(partition: i32, number: u64) -> Vec<u8> {
    let mut random = Random::from_seed((partition as u64) << 40 ^ number);
    let mut value = vec![0u8; 12 + random.below(VALUE_MAX) as usize];
    random.fill(&mut value);
    value[..4].copy_from_slice(&partition.to_be_bytes());
    value[4..12].copy_from_slice(&number.to_be_bytes());
    value
}

/// How far partitions are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Past what was acknowledged when the reading began: writers go on meanwhile.
    Acknowledged,
    /// To the end.
    Everything,
}

/// What the topics of a run keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// retention.bytes
    pub bytes: u64,
    /// segment.bytes
    pub segment: u64,
}

/// What was read of a place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The first offset that was read: the log's start, where reading began below it.
    pub start: i64,
    pub end: i64,
    pub bytes: u64,
}

/// Reads places from the given offsets on and holds them against what was acknowledged: every record that retention did
/// not take, with its bytes, in order, once.
pub fn verify(
    address: SocketAddr,
    places: &[Place],
    from: &[i64],
    told: &[Arc<Told>],
    extent: Extent,
    retention: Option<Retention>,
) -> Result<Vec<Found>> {
    let mut found = Vec::new();
    for ((place, from), told) in places.iter().zip(from).zip(told) {
        let read = Reading::new(address, place, *from, told, retention)?.run(extent);
        found.push(read.map_err(|fault| format!("{}-{}: {fault}", place.topic, place.partition))?);
    }
    Ok(found)
}

/// A place while it is read.
struct Reading<'a> {
    address: SocketAddr,
    connection: Connection,
    place: &'a Place,
    /// How many records were acknowledged when reading began.
    acknowledged: u64,
    told: &'a Told,
    retention: Option<Retention>,
    numbers: Numbers,
    found: Found,
    /// The high watermark of the first answer from `found.start` on.
    goal: Option<i64>,
}

impl Reading<'_> {
    fn new<'a>(
        address: SocketAddr,
        place: &'a Place,
        from: i64,
        told: &'a Told,
        retention: Option<Retention>,
    ) -> Result<Reading<'a>> {
        let connection = Connection::open(address, PATIENCE)?;
        let (acknowledged, numbers) = (told.count(), Numbers::new(place, told, from));
        let found = Found { start: from, end: from, bytes: 0 };
        Ok(Reading { address, connection, place, acknowledged, told, retention, numbers, found, goal: None })
    }

    fn run(mut self, extent: Extent) -> Result<Found> {
        let until = Instant::now() + PATIENCE;
        loop {
            let next = self.found.end;
            if Instant::now() > until {
                return Err(format!("it cannot be read past offset {next}").into());
            }
            let Place { topic, partition, .. } = self.place;
            let request = fetch_request(topic, *partition, next, 4 << 20, Duration::from_millis(100));
            let answer = match self.connection.call(FETCH_VERSION, &request) {
                // What a reader was slow to take and retention took meanwhile cannot be sent any more; its connection ends
                // in the middle of the answer.
                Err(CallError::Closed) if self.retention.is_some() => {
                    self.connection = Connection::open(self.address, PATIENCE)?;
                    continue;
                }
                answer => answer?,
            };
            let Some(told) = answer.responses.first().and_then(|topic| topic.partitions.first()) else {
                return Err("an answer without the partition".into());
            };
            match ErrorCode::from_code(told.error_code) {
                Some(ErrorCode::None) => {}
                Some(ErrorCode::OffsetOutOfRange) if self.retention.is_some() => {
                    self.skip_to_start()?;
                    continue;
                }
                Some(error) if error.is_retriable() => continue,
                _ => return Err(format!("Fetch at {next} answers {}", told.error_code).into()),
            }
            let bytes = told.records.as_deref().unwrap_or_default();
            let (end, size) = read_batches(bytes, self.place.key, next, &mut self.numbers)?;
            self.found = Found { end, bytes: self.found.bytes + size, ..self.found };
            let at_the_end = end == next && told.high_watermark <= next;
            // What retention left is as large as it has to be only up to here.
            let goal = *self.goal.get_or_insert(told.high_watermark);
            let enough = self.numbers.reached(self.acknowledged, end) && end >= goal && extent == Extent::Acknowledged;
            if at_the_end || enough {
                return self.finish();
            }
        }
    }

    /// Retention took what comes next.
    fn skip_to_start(&mut self) -> Result<()> {
        let start = log_start(&mut self.connection, &self.place.topic, self.place.partition)?;
        if start <= self.found.end {
            return Err(format!("offset {} is out of range, and the log starts at {start}", self.found.end).into());
        }
        self.found = Found { start, end: start, bytes: 0 };
        self.numbers = Numbers::new(self.place, self.told, start);
        self.goal = None;
        Ok(())
    }

    fn finish(self) -> Result<Found> {
        if !self.numbers.reached(self.acknowledged, self.found.end) {
            return Err(format!("{} records were acknowledged, {:?} are there", self.acknowledged, self.numbers).into());
        }
        let Found { start, end, bytes } = self.found;
        if let Some(retention) = self.retention.filter(|retention| start > 0 && bytes < retention.bytes) {
            let kept = retention.bytes;
            return Err(format!("retention left {bytes} bytes ({start} to {end}) where it has to leave {kept}").into());
        }
        Ok(self.found)
    }
}

pub fn log_start(connection: &mut Connection, topic: &str, partition: i32) -> std::result::Result<i64, CallError> {
    let partition = ListOffsetsPartition { partition_index: partition, timestamp: EARLIEST, ..Default::default() };
    let topic = ListOffsetsTopic { name: KafkaString::from(topic), partitions: vec![partition], ..Default::default() };
    let request = ListOffsetsRequest { replica_id: -1, topics: vec![topic], ..Default::default() };
    let answer = connection.call(LIST_OFFSETS_VERSION, &request)?;
    let told = answer.topics.first().and_then(|topic| topic.partitions.first());
    let told = told.filter(|told| told.error_code == 0);
    told.map(|told| told.offset).ok_or_else(|| CallError::Malformed("ListOffsets answers an error".into()))
}

/// Which records may follow one another in a place.
enum Numbers {
    /// Record n at offset n.
    Offsets,
    /// What was not acknowledged may stand there again, as whole batches; what was, stands where it was told to be.
    Again { last: Option<u64>, highest: Option<u64>, stands: std::vec::IntoIter<Stands>, wanted: Option<Stands> },
}

impl std::fmt::Debug for Numbers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Numbers::Offsets => f.write_str("fewer"),
            Numbers::Again { highest, wanted, .. } => write!(f, "those up to {highest:?} (next is {wanted:?})"),
        }
    }
}

impl Numbers {
    fn new(place: &Place, told: &Told, from: i64) -> Numbers {
        if place.idempotent {
            return Numbers::Offsets;
        }
        Numbers::again(told.stands_from(from))
    }

    fn again(stands: Vec<Stands>) -> Numbers {
        let mut stands = stands.into_iter();
        let wanted = stands.next();
        Numbers::Again { last: None, highest: None, stands, wanted }
    }

    /// Judges the record at an offset, which says it is number `number`.
    fn next(&mut self, offset: i64, number: u64, begins_batch: bool) -> Result<()> {
        match self {
            Numbers::Offsets if number == offset as u64 => Ok(()),
            Numbers::Offsets => Err(format!("offset {offset} holds record {number}").into()),
            Numbers::Again { last, highest, stands, wanted } => {
                let follows = last.is_none_or(|last| number == last + 1 || (number <= last && begins_batch));
                if !follows {
                    return Err(format!("record {number} at {offset} follows {last:?}").into());
                }
                if let Some(stand) = wanted.filter(|wanted| wanted.offset <= offset) {
                    if stand != (Stands { offset, first: number }) {
                        return Err(format!("record {number} stands at {offset}, acknowledged was {stand:?}").into());
                    }
                    *wanted = stands.next();
                }
                *last = Some(number);
                *highest = Some(highest.map_or(number, |highest| highest.max(number)));
                Ok(())
            }
        }
    }

    /// Whether as many records as were acknowledged were seen, where reading came to `end`.
    fn reached(&self, acknowledged: u64, end: i64) -> bool {
        match self {
            Numbers::Offsets => end >= acknowledged as i64,
            Numbers::Again { highest, wanted, .. } => {
                let seen = highest.map_or(0, |highest| highest + 1);
                acknowledged == 0 || (seen >= acknowledged && wanted.is_none_or(|wanted| wanted.first >= acknowledged))
            }
        }
    }
}

/// Checks whole batches from an offset on; returns the offset after the last, and the size of those it read.
fn read_batches(bytes: &[u8], place: i32, from: i64, numbers: &mut Numbers) -> Result<(i64, u64)> {
    let (mut next, mut size) = (from, 0);
    for batch in Batches::new(bytes) {
        let view = batch.and_then(|batch| BatchView::parse_whole(batch.bytes())).map_err(|error| error.to_string())?;
        let header = view.header();
        let body = inflate(view.codec()?, view.body(), INFLATED_MAX).map_err(|error| error.to_string())?;
        size += u64::from(header.size);
        for record in Records::new(&body, view.records_count()) {
            let record = record.map_err(|error| error.to_string())?;
            let offset = header.offset_at(record.offset_delta).0;
            // A fetch from inside a batch gets the whole batch.
            if offset < next {
                continue;
            }
            if offset != next {
                return Err(format!("offset {offset} follows {next}").into());
            }
            let value = record.value.unwrap_or_default();
            let (key, number) = named(value).ok_or_else(|| format!("offset {offset} holds no record of ours"))?;
            if key != place || value != value_of(place, number) {
                return Err(format!("offset {offset} holds another record (number {number} of place {key})").into());
            }
            numbers.next(offset, number, record.offset_delta == 0)?;
            next += 1;
        }
    }
    Ok((next, size))
}

/// The place and the number that a record says it is.
fn named(value: &[u8]) -> Option<(i32, u64)> {
    let (key, rest) = value.split_first_chunk()?;
    Some((i32::from_be_bytes(*key), u64::from_be_bytes(*rest.first_chunk()?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{Offset, WallMillis};
    use batch::BatchBuilder;

    fn batch(base: i64, values: &[Vec<u8>]) -> Vec<u8> {
        let mut builder = BatchBuilder::new();
        builder.base_offset(Offset(base));
        for value in values {
            builder.append(WallMillis(1), None, Some(value), &[]);
        }
        builder.build()
    }

    fn read(bytes: &[u8], from: i64) -> Result<i64> {
        read_batches(bytes, 3, from, &mut Numbers::Offsets).map(|(end, _)| end)
    }

    #[test]
    fn good_batches_are_counted_and_a_cut_one_is_left() {
        let (first, second) = (batch(0, &[value_of(3, 0), value_of(3, 1)]), batch(2, &[value_of(3, 2)]));
        let both = [first.clone(), second.clone()].concat();
        assert_eq!(read(&both, 0).ok(), Some(3));
        assert_eq!(read(&both[..both.len() - 1], 0).ok(), Some(2));
        assert_eq!(read(&both, 1).ok(), Some(3), "from inside a batch");
    }

    #[test]
    fn lost_repeated_and_swapped_records_are_found() {
        let lost = [batch(0, &[value_of(3, 0)]), batch(2, &[value_of(3, 2)])].concat();
        assert!(read(&lost, 0).is_err());
        let repeated = [batch(0, &[value_of(3, 0)]), batch(1, &[value_of(3, 0)])].concat();
        assert!(read(&repeated, 0).is_err());
        assert!(read(&batch(0, &[value_of(2, 0)]), 0).is_err(), "another partition's record");
        let mut flipped = batch(0, &[value_of(3, 0)]);
        let last = flipped.len() - 1;
        flipped[last] ^= 1;
        assert!(read(&flipped, 0).is_err());
    }

    #[test]
    fn without_an_idempotent_producer_batches_may_repeat_and_must_not_be_missing() {
        let stands = || vec![Stands { offset: 0, first: 0 }, Stands { offset: 4, first: 2 }];
        let mut numbers = Numbers::again(stands());
        for (offset, number, begins) in
            [(0, 0, true), (1, 1, false), (2, 2, true), (3, 3, false), (4, 2, true), (5, 3, false)]
        {
            numbers.next(offset, number, begins).expect("a batch that was sent again");
        }
        assert!(numbers.reached(4, 6) && !numbers.reached(5, 6));
        assert!(Numbers::again(stands()).next(0, 1, true).is_err(), "not where it was acknowledged");
        let mut gap = Numbers::again(stands());
        gap.next(0, 0, true).expect("the first");
        assert!(gap.next(1, 2, true).is_err(), "one is missing");
        let mut inside = Numbers::again(stands());
        inside.next(0, 0, true).expect("the first");
        inside.next(1, 1, false).expect("the second");
        assert!(inside.next(2, 1, false).is_err(), "half a batch again");
    }
}
