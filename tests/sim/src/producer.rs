//! A producer as Kafka's clients are: up to five batches under way to a partition, retried with the same sequences in
//! the same order after any doubt; or a plain one, that never sends a batch twice.

use crate::caller::{Arrival, Caller};
use crate::context::Context;
use crate::model::sequence_after;
use crate::pattern::{self, Tag};
use base::{Monotonic, PartitionId, ProducerEpoch, ProducerId, Random, Sequence, WallMillis};
use batch::{BatchBuilder, BatchProducer, Codec};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use wire::messages::produce_request::{PartitionProduceData, TopicProduceData};
use wire::messages::produce_response::PartitionProduceResponse;
use wire::messages::{InitProducerIdRequest, InitProducerIdResponse, ProduceRequest, ProduceResponse};
use wire::{ErrorCode, KafkaString, ResponseKind};

/// Batches of a partition whose fate is open; the node remembers as many.
const UNRESOLVED_MAX: usize = 5;
/// A topic takes batches of a mebibyte.
const BATCH_BYTES_MAX: usize = 900 << 10;
const REQUESTS_MAX: usize = 5;

#[derive(Clone, Debug)]
pub struct ProducerOptions {
    pub idempotent: bool,
    pub acks: i16,
    pub version: i16,
    pub codec: Codec,
    pub value_max: usize,
    pub records_max: u32,
    pub lines: usize,
    /// One in so many steps makes a batch.
    pub laziness: u64,
    pub first_sequence: i32,
}

impl ProducerOptions {
    pub fn some(random: &mut Random) -> ProducerOptions {
        let idempotent = random.chance(2, 3);
        let codec = match random.below(12) {
            0 => Codec::Gzip,
            1 => Codec::Snappy,
            2 => Codec::Lz4,
            3 => Codec::Zstd,
            _ => Codec::None,
        };
        ProducerOptions {
            idempotent,
            acks: if idempotent { -1 } else { [-1, 1, 0][random.below(3) as usize] },
            version: if codec == Codec::Zstd { 7 + random.below(7) } else { 3 + random.below(11) } as i16,
            codec,
            value_max: [200, 200, 2000, 2000, 20_000, 200_000][random.below(6) as usize],
            records_max: 1 + random.below(8) as u32,
            lines: 1 + random.below(4) as usize,
            laziness: 1 + random.below(60),
            // A producer whose sequences pass the largest.
            first_sequence: if random.chance(1, 4) { i32::MAX - random.below(40) as i32 } else { 0 },
        }
    }
}

#[derive(Debug)]
struct Unit {
    batch: u64,
    bytes: Bytes,
    in_flight: bool,
    sends: u32,
    /// Batches before it were unanswered when it was last sent.
    followed: bool,
    /// It was known to stand somewhere when it was last sent.
    repeats: bool,
}

/// The way to one partition.
#[derive(Debug)]
struct Line {
    partition: PartitionId,
    topic: String,
    next_sequence: i32,
    units: VecDeque<Unit>,
    /// Something was acknowledged: from here on the node knows the sequence.
    begun: bool,
}

impl Line {
    /// The unit that may leave now: in order, and never past one that is being repeated.
    fn sendable(&self) -> Option<usize> {
        let index = self.units.iter().position(|unit| !unit.in_flight)?;
        let behind = self.units.iter().skip(index).any(|unit| unit.in_flight);
        let first = self.begun || index == 0;
        (!behind && first).then_some(index)
    }
}

#[derive(Debug)]
pub struct Producer {
    pub caller: Caller,
    options: ProducerOptions,
    id: Option<i64>,
    asking_id: bool,
    /// After a refusal nothing is sent for a while.
    rest_until: Monotonic,
    lines: Vec<Line>,
    requests: BTreeMap<i32, Vec<u64>>,
}

impl Producer {
    pub fn new(name: String, options: ProducerOptions) -> Producer {
        Producer {
            caller: Caller::new(name),
            options,
            id: None,
            asking_id: false,
            rest_until: Monotonic::ZERO,
            lines: Vec::new(),
            requests: BTreeMap::new(),
        }
    }

    /// What is open, for whoever looks for a wedge.
    pub fn describe(&self) -> String {
        let lines = self.lines.iter().filter(|line| !line.units.is_empty()).map(|line| {
            let units: Vec<_> = line.units.iter().map(|unit| (unit.batch, unit.in_flight, unit.sends)).collect();
            format!("{}: (batch, in flight, sends) {units:?}", line.partition)
        });
        format!("{:?} id {:?} {:?}", self.caller, self.id, lines.collect::<Vec<_>>())
    }

    /// Nothing is open.
    pub fn is_idle(&self) -> bool {
        self.lines.iter().all(|line| line.units.is_empty())
    }

    pub fn step(&mut self, context: &mut Context<'_>) {
        for arrival in self.caller.poll(context) {
            match arrival {
                Arrival::Closed => self.on_closed(),
                Arrival::Answer(id, answer) => match *answer {
                    ResponseKind::Produce(answer) => self.on_answer(context, id, &answer),
                    ResponseKind::InitProducerId(answer) => self.on_id(context, &answer),
                    other => panic!("a producer is told {other:?}"),
                },
            }
        }
        self.forget_deleted(context);
        if self.is_idle() && context.quiet {
            return;
        }
        if !self.caller.connect(context) {
            return;
        }
        if self.options.idempotent && self.id.is_none() {
            if !self.asking_id {
                self.asking_id = true;
                let request = InitProducerIdRequest { transactional_id: None, ..Default::default() };
                self.caller.ask(context.now.monotonic, context.random.below(6) as i16, &request);
            }
            return;
        }
        self.make(context);
        if context.now.monotonic >= self.rest_until {
            self.send(context);
        }
    }

    fn on_id(&mut self, context: &mut Context<'_>, answer: &InitProducerIdResponse) {
        self.asking_id = false;
        if answer.error_code == 0 {
            context.model.grant(answer.producer_id);
            self.id = Some(answer.producer_id);
        }
    }

    /// The connection is over: what was under way is repeated, or given up by those who repeat nothing.
    pub fn on_closed(&mut self) {
        self.asking_id = false;
        self.requests.clear();
        for line in &mut self.lines {
            if self.options.idempotent {
                line.units.iter_mut().for_each(|unit| unit.in_flight = false);
            } else {
                line.units.retain(|unit| !unit.in_flight);
            }
        }
    }

    /// A reset by the client itself.
    pub fn reset(&mut self) {
        self.caller.reset();
        self.on_closed();
    }

    fn forget_deleted(&mut self, context: &mut Context<'_>) {
        self.lines.retain(|line| !context.model.is_deleted(line.partition));
        while self.lines.len() < self.options.lines && !context.quiet {
            let Some((partition, topic)) = context.some_partition() else { return };
            if self.lines.iter().any(|line| line.partition == partition) {
                return;
            }
            let next_sequence = self.options.first_sequence;
            self.lines.push(Line { partition, topic, next_sequence, units: VecDeque::new(), begun: false });
        }
    }

    fn make(&mut self, context: &mut Context<'_>) {
        let full = context.model.space_needed() > context.bytes_max;
        for line in &mut self.lines {
            let room = line.units.len() < UNRESOLVED_MAX;
            if context.quiet || full || !room || !context.random.chance(1, self.options.laziness) {
                continue;
            }
            let records = 1 + context.random.below(u64::from(self.options.records_max)) as u32;
            let producer = self.id.map(|id| (id, line.next_sequence));
            let now = context.now.wall.0;
            let times: Vec<i64> = (0..records).map(|_| now - context.random.below(1000) as i64).collect();
            let batch = context.model.send(line.partition, times.clone(), producer);
            let mut builder = BatchBuilder::new();
            builder.compression(self.options.codec.into());
            if let Some((id, sequence)) = producer {
                let base_sequence = Some(Sequence(sequence));
                builder.producer(BatchProducer { id: ProducerId(id), epoch: ProducerEpoch(0), base_sequence });
            }
            for (record, at) in (0..records).zip(times) {
                let tag = Tag { partition: line.partition, batch, record };
                let most = self.options.value_max.min(BATCH_BYTES_MAX / records as usize);
                let length = context.random.below(most as u64) as usize;
                builder.append(WallMillis(at), None, Some(&pattern::value(tag, length)), &[]);
            }
            line.next_sequence = sequence_after(line.next_sequence, records);
            let bytes = Bytes::from(builder.build());
            context.model.weigh(line.partition, bytes.len());
            line.units.push_back(Unit { batch, bytes, in_flight: false, sends: 0, followed: false, repeats: false });
        }
    }

    fn send(&mut self, context: &mut Context<'_>) {
        while self.requests.len() < REQUESTS_MAX {
            let mut topics = Vec::new();
            let mut batches = Vec::new();
            for line in &mut self.lines {
                let Some(index) = line.sendable() else { continue };
                let unit = &mut line.units[index];
                (unit.in_flight, unit.followed) = (true, index > 0);
                unit.sends += 1;
                unit.repeats = context.model.is_placed(unit.batch);
                context.model.stats.retries += u64::from(unit.sends > 1);
                batches.push(unit.batch);
                let records = Some(unit.bytes.clone());
                let data = PartitionProduceData { index: line.partition.index.0, records, ..Default::default() };
                let mut topic = TopicProduceData { partition_data: vec![data], ..Default::default() };
                if self.options.version >= 13 {
                    topic.topic_id = line.partition.topic.0;
                } else {
                    topic.name = KafkaString::from(line.topic.as_str());
                }
                topics.push(topic);
                if context.random.chance(1, 3) {
                    break;
                }
            }
            if batches.is_empty() {
                return;
            }
            let timeout_ms = 500 + context.random.below(20_000) as i32;
            let request =
                ProduceRequest { acks: self.options.acks, timeout_ms, topic_data: topics, ..Default::default() };
            if self.options.acks == 0 {
                self.caller.tell(context.now.monotonic, self.options.version, &request);
                self.lines.iter_mut().for_each(|line| line.units.retain(|unit| !unit.in_flight));
                return;
            }
            let id = self.caller.ask(context.now.monotonic, self.options.version, &request);
            self.requests.insert(id, batches);
        }
    }

    fn on_answer(&mut self, context: &mut Context<'_>, id: i32, answer: &ProduceResponse) {
        // A reset of the producer forgets what is under way.
        let Some(batches) = self.requests.remove(&id) else { return };
        let partitions: Vec<_> = answer.responses.iter().flat_map(|topic| &topic.partition_responses).collect();
        assert_eq!(partitions.len(), batches.len(), "one answer for each partition");
        for (batch, told) in batches.into_iter().zip(partitions) {
            let found = self.lines.iter().position(|line| line.units.iter().any(|unit| unit.batch == batch));
            let Some(line) = found else { continue };
            assert_eq!(told.index, self.lines[line].partition.index.0, "answers come in the order of the request");
            self.on_told(context, line, batch, told);
        }
    }

    fn on_told(&mut self, context: &mut Context<'_>, line: usize, batch: u64, told: &PartitionProduceResponse) {
        let (error, base_offset) = (told.error_code, told.base_offset);
        let line = &mut self.lines[line];
        let index = line.units.iter().position(|unit| unit.batch == batch).expect("just found");
        if error == 0 {
            let unit = line.units.remove(index).expect("just found");
            line.begun = true;
            let (now, append_time) = (context.now.monotonic, told.log_append_time_ms);
            context.model.stats.duplicates += u64::from(unit.repeats);
            context.model.acknowledged(now, batch, base_offset, append_time, unit.bytes.len());
            return;
        }
        *context.model.stats.refused.entry(error).or_default() += 1;
        let unit = &mut line.units[index];
        let lossy = context.model.losses > 0;
        let expected = match ErrorCode::from_code(error) {
            Some(ErrorCode::UnknownTopicOrPartition | ErrorCode::UnknownTopicId | ErrorCode::NotLeaderOrFollower) => {
                true
            }
            Some(ErrorCode::RequestTimedOut) => true,
            Some(ErrorCode::KafkaStorageError) => context.storage_errors,
            // An earlier one was refused or lost: this one comes again after it.
            Some(ErrorCode::OutOfOrderSequenceNumber) => unit.followed || lossy,
            _ => false,
        };
        assert!(
            expected,
            "batch {batch} of {} is refused with {error} ({:?}): {} sends, {} before it, {:?}; {} bytes of {} are taken",
            line.partition,
            ErrorCode::from_code(error),
            unit.sends,
            index,
            told.error_message,
            context.model.space_needed(),
            context.bytes_max
        );
        unit.in_flight = false;
        self.rest_until = context.now.monotonic + Duration::from_millis(context.random.below(100));
        let again = self.options.idempotent;
        if error == ErrorCode::OutOfOrderSequenceNumber.code() && lossy && !unit.followed {
            return self.start_anew();
        }
        if !again {
            line.units.remove(index);
        }
    }

    /// What the node knew of this producer is lost: a new id, and nothing is repeated.
    fn start_anew(&mut self) {
        self.id = None;
        self.requests.clear();
        self.caller.close();
        self.asking_id = false;
        for line in &mut self.lines {
            line.units.clear();
            (line.next_sequence, line.begun) = (self.options.first_sequence, false);
        }
    }
}
