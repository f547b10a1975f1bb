//! The owner of the partitions, and the control plane, as the dice have it: every command is answered, with success, with
//! each refusal there is, late, or in several outcomes; a forwarded request with an answer, in parts, or not at all.

use arena::{Arena, Parcel};
use base::{LeaderEpoch, Offset, PartitionId, ProducerEpoch, ProducerId, Random, Sequence};
use bytes::{BufMut, Bytes, BytesMut};
use handoff::*;
use link::Forward;
use std::collections::HashMap;
use wire::{ApiKey, ResponseKind};

/// Remembers who waits for news.
#[derive(Default)]
pub struct Owner {
    waiting: HashMap<GatherId, Vec<EntryIndex>>,
}

impl Owner {
    pub fn answer(&mut self, command: Command, arena: &Arena, random: &mut Random) -> Vec<Outcome> {
        match command {
            Command::Produce(produce) => produced(produce, random),
            Command::Fetch(fetch) => self.fetched(fetch, arena, random),
            Command::ReadWindow(window) => vec![read_window(window, arena, random)],
            Command::Cancel(gather) => {
                self.waiting.remove(&gather);
                Vec::new()
            }
            Command::ListOffsets(list) => {
                let entries = list.entries.iter().map(|entry| (entry.index, listed(random))).collect();
                vec![Outcome::OffsetsListed { gather: list.gather, entries }]
            }
            Command::EpochEnds(ends) => {
                let end = |random: &mut Random| match random.below(4) {
                    0 => Err(partition_error(random)),
                    1 => Ok(EpochEnd { epoch: None, end: None }),
                    _ => Ok(EpochEnd { epoch: Some(LeaderEpoch(1)), end: Some(Offset(9)) }),
                };
                let entries = ends.entries.iter().map(|entry| (entry.index, end(random))).collect();
                vec![Outcome::EpochEnds { gather: ends.gather, entries }]
            }
            Command::DeleteRecords(delete) => {
                let entries = delete.entries.iter().map(|entry| (entry.index, deleted(random))).collect();
                vec![Outcome::RecordsDeleted { gather: delete.gather, entries }]
            }
            Command::DescribeProducers(describe) => {
                let entries = describe.entries.iter().map(|(index, _)| (*index, producers(random))).collect();
                vec![Outcome::ProducersDescribed { gather: describe.gather, entries }]
            }
            Command::DescribeLogs(describe) => vec![logs(describe, random)],
            Command::Internal(_) => panic!("nobody asked for an internal append or read"),
        }
    }

    fn fetched(&mut self, fetch: Fetch, arena: &Arena, random: &mut Random) -> Vec<Outcome> {
        let silent = fetch.wait && random.chance(1, 2);
        let mut bytes = 0u32;
        let mut refused = false;
        let entries: Vec<Fetched> = fetch
            .entries
            .iter()
            .map(|entry| {
                let result = match random.below(6) {
                    _ if silent => Ok(FetchedRecords::default()),
                    0 => Err(fetch_error(random)),
                    _ => Ok(found(entry, arena, random)),
                };
                match &result {
                    Ok(records) => {
                        bytes = bytes.saturating_add(records.bytes);
                        refused |= records.diverging.is_some();
                    }
                    Err(_) => refused = true,
                }
                Fetched { index: entry.index, result }
            })
            .collect();
        let waits = fetch.wait && !refused && bytes < fetch.bytes_min;
        let indexes: Vec<EntryIndex> = fetch.entries.iter().map(|entry| entry.index).collect();
        if waits && !indexes.is_empty() {
            self.waiting.insert(fetch.gather, indexes);
        } else {
            self.waiting.remove(&fetch.gather);
        }
        vec![Outcome::Fetched { gather: fetch.gather, entries }]
    }

    /// News for one of those who wait, once each.
    pub fn news(&mut self, random: &mut Random) -> Option<Outcome> {
        let mut waiting: Vec<GatherId> = self.waiting.keys().copied().collect();
        waiting.sort_by_key(|gather| (gather.slot, gather.generation));
        let gather = *waiting.get(random.below(waiting.len().max(1) as u64) as usize)?;
        let indexes = self.waiting.remove(&gather)?;
        let news = |index| FetchNews { index, readable: random.below(1 << 20) as u32, urgent: random.chance(1, 3) };
        Some(Outcome::FetchNews { gather, entries: indexes.into_iter().map(news).collect() })
    }

    pub fn waiters(&self) -> usize {
        self.waiting.len()
    }
}

fn partition_error(random: &mut Random) -> PartitionError {
    use PartitionError::*;
    [Unknown, NotLeader, FencedEpoch, UnknownEpoch, Storage, Busy][random.below(6) as usize]
}

fn fetch_error(random: &mut Random) -> FetchError {
    match random.below(4) {
        0 => FetchError::OutOfRange,
        1 => FetchError::NegativeSize,
        2 => FetchError::Corrupt,
        _ => FetchError::Partition(partition_error(random)),
    }
}

fn unfit(random: &mut Random) -> Unfit {
    let made: [fn(String) -> Unfit; 4] = [Unfit::NotOneBatch, Unfit::Framing, Unfit::Zstd, Unfit::UnknownCodec];
    made[random.below(4) as usize]("why".to_owned())
}

fn produce_error(random: &mut Random) -> ProduceError {
    let message = || "why".to_owned();
    let records = || vec![RecordError { index: 0, message: None }, RecordError { index: 3, message: Some(message()) }];
    match random.below(17) {
        0 => ProduceError::Corrupt(message()),
        1 => ProduceError::InvalidRecord { message: message(), records: records() },
        2 => ProduceError::InvalidTimestamp { message: message(), records: records() },
        3 => ProduceError::TooLarge(message()),
        4 => ProduceError::BatchTooLarge(message()),
        5 => ProduceError::Unfit(unfit(random)),
        6 => ProduceError::UnsupportedForMessageFormat(message()),
        7 => ProduceError::Undecodable(message()),
        8 => ProduceError::NotEnoughReplicas,
        9 => ProduceError::NotEnoughReplicasAfterAppend,
        10 => ProduceError::TimedOut,
        11 => ProduceError::OutOfOrderSequence(message()),
        12 => ProduceError::InvalidProducerEpoch(message()),
        13 => ProduceError::InvalidTransactionState(message()),
        14 => ProduceError::UnknownProducer(message()),
        15 => ProduceError::Full,
        _ => ProduceError::Partition(partition_error(random)),
    }
}

/// Entries in one outcome or one by one, in any order; the records go back to the arena with the command.
fn produced(produce: Produce, random: &mut Random) -> Vec<Outcome> {
    let gather = produce.gather;
    let mut entries: Vec<Produced> = produce
        .entries
        .iter()
        .map(|entry| {
            let appended = Appended {
                base_offset: Offset(random.below(1000) as i64),
                append_time: random.chance(1, 2).then_some(5),
                log_start: Offset(0),
            };
            let result = if random.chance(1, 4) { Err(produce_error(random)) } else { Ok(appended) };
            Produced { index: entry.index, result, epoch: Some(LeaderEpoch(1)), log_start: Offset(0) }
        })
        .collect();
    if random.chance(1, 2) {
        return vec![Outcome::Produced { gather, last: true, entries }];
    }
    let mut outcomes = Vec::new();
    while !entries.is_empty() {
        let entry = entries.swap_remove(random.below(entries.len() as u64) as usize);
        outcomes.push(Outcome::Produced { gather, last: entries.is_empty(), entries: vec![entry] });
    }
    outcomes
}

/// Some bytes at hand and some to be asked for.
fn found(entry: &FetchEntry, arena: &Arena, random: &mut Random) -> FetchedRecords {
    let mut records = FetchedRecords {
        high_watermark: Offset(random.below(100) as i64),
        last_stable_offset: Offset(50),
        log_start: Offset(0),
        aborted: if random.chance(1, 3) { vec![(ProducerId(4), Offset(2))] } else { Vec::new() },
        ..FetchedRecords::default()
    };
    if entry.last_fetched_epoch.is_some() && random.chance(1, 4) {
        records.diverging = Some((LeaderEpoch(0), Offset(3)));
        return records;
    }
    if let Some(piece) = random.chance(2, 3).then(|| piece(arena, 1 + random.below(5000) as usize)).flatten() {
        records.bytes += piece.len() as u32;
        records.again = Some(stretch(entry.partition, piece.len() as u32));
        records.ready.push(piece);
    }
    for _ in 0..random.below(3) {
        let length = 1 + random.below(400_000) as u32;
        records.rest.push(stretch(entry.partition, length));
        records.bytes += length;
    }
    records.first_batch = if records.bytes == 0 { 0 } else { 1 + random.below(u64::from(records.bytes)) as u32 };
    records
}

pub fn stretch(partition: PartitionId, length: u32) -> Stretch {
    Stretch { owner: base::CoreId(0), partition, length, inside: [7; 6] }
}

fn piece(arena: &Arena, size: usize) -> Option<Parcel> {
    let mut buffer = arena.try_allocate(size)?;
    buffer.truncate(size);
    buffer.fill(0x77);
    Some(buffer.freeze().into_parcel())
}

/// At most what was asked for, at least something while anything is left.
fn read_window(window: ReadWindow, arena: &Arena, random: &mut Random) -> Outcome {
    let gather = window.gather;
    if random.chance(1, 20) {
        return Outcome::Window { gather, result: Err(fetch_error(random)) };
    }
    let mut left = window.bytes_max;
    let mut pieces = Vec::new();
    let mut rest = Vec::new();
    for stretch in window.stretches {
        let take = stretch.length.min(left);
        let taken = if take > 0 { piece(arena, take as usize) } else { None };
        let got = taken.as_ref().map_or(0, |piece| piece.len() as u32);
        pieces.extend(taken.map(|piece| (piece, stretch.first(got))));
        left -= got;
        if got < stretch.length {
            left = 0;
            rest.push(stretch.after(got));
        }
    }
    if pieces.is_empty() {
        return Outcome::Window { gather, result: Err(FetchError::Partition(PartitionError::Busy)) };
    }
    Outcome::Window { gather, result: Ok(Window { pieces, rest }) }
}

fn listed(random: &mut Random) -> Result<ListedOffset, ListOffsetsError> {
    match random.below(6) {
        0 => Err(ListOffsetsError::Partition(partition_error(random))),
        1 => Err(ListOffsetsError::OffsetNotAvailable),
        2 => Err(ListOffsetsError::UnsupportedVersion),
        3 => Err(ListOffsetsError::Corrupt),
        4 => Ok(ListedOffset { offset: None, timestamp: None, epoch: None }),
        _ => Ok(ListedOffset { offset: Some(Offset(7)), timestamp: Some(8), epoch: Some(LeaderEpoch(1)) }),
    }
}

fn deleted(random: &mut Random) -> Result<Offset, DeleteRecordsError> {
    match random.below(5) {
        0 => Err(DeleteRecordsError::Partition(partition_error(random))),
        1 => Err(DeleteRecordsError::OutOfRange),
        2 => Err(DeleteRecordsError::TimedOut),
        3 => Err(DeleteRecordsError::PolicyViolation),
        _ => Ok(Offset(3)),
    }
}

fn producers(random: &mut Random) -> Result<Vec<ProducerFacts>, PartitionError> {
    if random.chance(1, 4) {
        return Err(partition_error(random));
    }
    let facts = ProducerFacts {
        id: ProducerId(4),
        epoch: ProducerEpoch(1),
        last_sequence: random.chance(1, 2).then_some(Sequence(3)),
        last_timestamp: 5,
        coordinator_epoch: random.chance(1, 2).then_some(6),
        transaction_start: random.chance(1, 2).then_some(Offset(2)),
    };
    Ok(vec![facts; random.below(3) as usize])
}

fn logs(describe: DescribeLogs, random: &mut Random) -> Outcome {
    let facts = |partition| LogFacts { partition, size: random.below(1 << 30), lag: 0, future: false };
    Outcome::LogsDescribed {
        gather: describe.gather,
        logs: describe.partitions.into_iter().map(facts).collect(),
        total: 1 << 40,
        usable: 1 << 39,
    }
}

/// What the control plane says: the parts before the last, and the last; `None` closes the connection. A response is one
/// of its API and version with nothing in it.
pub fn forwarded(forward: &Forward, random: &mut Random) -> (Vec<Bytes>, Option<Bytes>) {
    if random.chance(1, 6) {
        return (Vec::new(), None);
    }
    let api = ApiKey::from_code(forward.api_key).expect("only known requests are forwarded");
    let mut bytes = BytesMut::new();
    wire::put_response_header(&mut bytes, api, forward.api_version, forward.correlation_id).expect("no tags");
    match empty_response(api, forward.api_version) {
        Some(response) => response.encode(&mut bytes, forward.api_version).expect("it was read in this version"),
        None => bytes.put_slice(&[0; 40]),
    }
    let mut bytes = bytes.freeze();
    let mut parts = Vec::new();
    while random.chance(1, 4) && bytes.len() > 1 {
        parts.push(bytes.split_to(bytes.len() / 2));
    }
    (parts, Some(bytes))
}

/// Zeros are an empty response of most APIs.
fn empty_response(api: ApiKey, version: i16) -> Option<ResponseKind> {
    ResponseKind::decode(api, version, &mut wire::Decoder::new(&[0; 64])).ok()
}
