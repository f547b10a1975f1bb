//! A consumer: from the start or at the tip, with a fetch session or without, fast or slow. It checks every answer
//! against what was known when it asked.

use crate::caller::{Arrival, Caller, Pace};
use crate::context::Context;
use crate::model::Floor;
use base::{PartitionId, PartitionIndex, Random, TopicId};
use std::collections::BTreeMap;
use wire::messages::fetch_request::{FetchPartition, FetchTopic, ForgottenTopic};
use wire::messages::fetch_response::PartitionData;
use wire::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use wire::messages::{FetchRequest, FetchResponse, ListOffsetsRequest, ListOffsetsResponse};
use wire::{ErrorCode, KafkaString, ResponseKind};

pub const EARLIEST: i64 = -2;
pub const LATEST: i64 = -1;

#[derive(Clone, Debug)]
pub struct ConsumerOptions {
    pub version: i16,
    pub session: bool,
    pub read_committed: bool,
    pub wait_max_ms: i32,
    pub bytes_min: i32,
    pub bytes_max: i32,
    pub partition_bytes_max: i32,
    pub partitions: usize,
    /// Where it begins, and begins anew when its offset is gone.
    pub reset: i64,
    pub pace: Pace,
    /// It reads what exists and never changes its partitions.
    pub auditor: bool,
}

impl ConsumerOptions {
    pub fn some(random: &mut Random) -> ConsumerOptions {
        let version = 4 + random.below(15) as i16;
        let bytes = |random: &mut Random| [1, 500, 10_000, 300_000, 5 << 20][random.below(5) as usize];
        ConsumerOptions {
            version,
            session: version >= 7 && random.chance(2, 3),
            read_committed: random.chance(1, 3),
            wait_max_ms: [0, 10, 100, 500, 5000][random.below(5) as usize],
            bytes_min: [0, 1, 1, 10_000, 1 << 20][random.below(5) as usize],
            bytes_max: bytes(random),
            partition_bytes_max: bytes(random),
            partitions: 1 + random.below(6) as usize,
            reset: [EARLIEST, EARLIEST, LATEST][random.below(3) as usize],
            pace: if random.chance(1, 4) { Pace::Slow(1 + random.below(3000) as usize) } else { Pace::Prompt },
            auditor: false,
        }
    }

    pub fn auditor(random: &mut Random) -> ConsumerOptions {
        ConsumerOptions {
            bytes_max: 5 << 20,
            partition_bytes_max: 1 << 20,
            bytes_min: 1,
            wait_max_ms: 100,
            reset: EARLIEST,
            pace: Pace::Prompt,
            auditor: true,
            ..ConsumerOptions::some(random)
        }
    }
}

#[derive(Clone, Debug)]
struct Followed {
    topic: String,
    /// None until it is known where to begin.
    position: Option<i64>,
    /// Where the first record was read from.
    began: i64,
    /// The offset that was said to be out of range, and what was known when that was asked.
    out_of_range: Option<(i64, Floor)>,
    watermark: i64,
}

#[derive(Clone, Copy, Debug)]
struct Question {
    position: i64,
    floor: Floor,
}

#[derive(Debug)]
enum Asked {
    Nothing,
    Fetch { id: i32, partitions: BTreeMap<PartitionId, Question> },
    Offsets { id: i32, floors: BTreeMap<PartitionId, Floor> },
}

#[derive(Debug)]
pub struct Consumer {
    name: String,
    pub caller: Caller,
    options: ConsumerOptions,
    followed: BTreeMap<PartitionId, Followed>,
    asked: Asked,
    session_id: i32,
    session_epoch: i32,
    /// What the session at the node holds: positions as last told.
    in_session: BTreeMap<PartitionId, Question>,
}

impl Consumer {
    pub fn new(name: String, options: ConsumerOptions) -> Consumer {
        let mut caller = Caller::new(name.clone());
        caller.pace = options.pace;
        Consumer {
            name,
            caller,
            options,
            followed: BTreeMap::new(),
            asked: Asked::Nothing,
            session_id: 0,
            session_epoch: 0,
            in_session: BTreeMap::new(),
        }
    }

    /// What is not yet read, for whoever looks for a wedge.
    pub fn describe(&self, context: &Context<'_>) -> String {
        let behind = self.followed.iter().filter(|(id, followed)| {
            followed.position.is_none_or(|position| position < context.model.floor(**id).watermark)
        });
        let behind = behind.map(|(id, one)| format!("{id} at {:?} of {:?}", one.position, context.model.floor(*id)));
        format!("{:?} {:?} {:?} {:?}", self.caller, self.options, self.asked, behind.collect::<Vec<_>>())
    }

    /// Everything known to be there was read.
    pub fn has_caught_up(&self, context: &Context<'_>) -> bool {
        let lacks = self.options.auditor && self.followed.len() < context.model.live().len();
        let behind = |(partition, followed): (&PartitionId, &Followed)| {
            let watermark = context.model.floor(*partition).watermark;
            !context.model.is_deleted(*partition) && followed.position.is_none_or(|position| position < watermark)
        };
        !lacks && !self.followed.iter().any(behind)
    }

    /// What was read whole: each partition with its first offset and the one after its last.
    pub fn read(&self) -> impl Iterator<Item = (PartitionId, i64, i64)> {
        self.followed.iter().filter_map(|(id, followed)| Some((*id, followed.began, followed.position?)))
    }

    pub fn step(&mut self, context: &mut Context<'_>) {
        self.caller.pace = if context.quiet { Pace::Prompt } else { self.options.pace };
        for arrival in self.caller.poll(context) {
            match arrival {
                Arrival::Closed => self.on_closed(),
                Arrival::Answer(id, answer) => match *answer {
                    ResponseKind::Fetch(answer) => self.on_fetched(context, id, &answer),
                    ResponseKind::ListOffsets(answer) => self.on_listed(context, id, &answer),
                    other => panic!("{}: is told {other:?}", self.name),
                },
            }
        }
        self.choose(context);
        if self.followed.is_empty() || !self.caller.connect(context) || !matches!(self.asked, Asked::Nothing) {
            return;
        }
        if context.quiet && !self.options.auditor && self.has_caught_up(context) {
            return;
        }
        if self.followed.values().any(|followed| followed.position.is_none()) {
            self.ask_offsets(context);
        } else {
            self.fetch(context);
        }
    }

    pub fn on_closed(&mut self) {
        self.asked = Asked::Nothing;
        // Whether the node saw the last request is unknown: the session begins anew.
        self.session_epoch = 0;
    }

    pub fn reset(&mut self) {
        self.caller.reset();
        self.on_closed();
    }

    /// The node may have lost what was read: everything begins anew.
    pub fn forget(&mut self) {
        self.reset();
        self.followed.clear();
    }

    fn choose(&mut self, context: &mut Context<'_>) {
        self.followed.retain(|partition, _| !context.model.is_deleted(*partition));
        if self.options.auditor {
            for (partition, topic) in context.cluster.partitions() {
                self.follow(partition, topic);
            }
            return;
        }
        if self.followed.len() > 1 && context.random.chance(1, 10_000) {
            self.followed.pop_first();
        }
        if self.followed.len() < self.options.partitions
            && context.random.chance(1, 20)
            && let Some((partition, topic)) = context.some_partition()
        {
            self.follow(partition, topic);
        }
    }

    fn follow(&mut self, partition: PartitionId, topic: String) {
        let new = Followed { topic, position: None, began: 0, out_of_range: None, watermark: 0 };
        self.followed.entry(partition).or_insert(new);
    }

    fn ask_offsets(&mut self, context: &mut Context<'_>) {
        let mut floors = BTreeMap::new();
        let mut topics = Vec::new();
        for (partition, followed) in self.followed.iter().filter(|(_, followed)| followed.position.is_none()) {
            floors.insert(*partition, context.model.floor(*partition));
            let one = ListOffsetsPartition {
                partition_index: partition.index.0,
                current_leader_epoch: -1,
                timestamp: self.options.reset,
                ..Default::default()
            };
            let name = KafkaString::from(followed.topic.as_str());
            topics.push(ListOffsetsTopic { name, partitions: vec![one], ..Default::default() });
        }
        let request = ListOffsetsRequest { replica_id: -1, topics, timeout_ms: 5000, ..Default::default() };
        let version = 1 + context.random.below(10) as i16;
        let id = self.caller.ask(context.now.monotonic, version, &request);
        self.asked = Asked::Offsets { id, floors };
    }

    fn on_listed(&mut self, context: &mut Context<'_>, id: i32, answer: &ListOffsetsResponse) {
        let Asked::Offsets { id: wanted, floors } = std::mem::replace(&mut self.asked, Asked::Nothing) else {
            panic!("{}: offsets that nobody asked for", self.name)
        };
        assert_eq!(id, wanted);
        let told: Vec<_> =
            answer.topics.iter().flat_map(|topic| topic.partitions.iter().map(|one| (&topic.name, one))).collect();
        assert_eq!(told.len(), floors.len(), "{}: {answer:?} to {floors:?}", self.name);
        for (name, one) in told {
            let of = |(id, followed): &(&PartitionId, &mut Followed)| {
                followed.topic == name.as_str() && id.index.0 == one.partition_index
            };
            let Some((partition, followed)) = self.followed.iter_mut().find(of) else { continue };
            let partition = *partition;
            if one.error_code != 0 {
                return self.name_error(context, partition, one.error_code);
            }
            let floor = floors[&partition];
            if self.options.reset == EARLIEST {
                context.model.told(context.now.monotonic, partition, floor, None, Some(one.offset));
                if let Some((gone, known)) = followed.out_of_range.take() {
                    let deleted = context.model.is_deleted(partition) || context.model.losses > 0;
                    // A run that died may have moved the start, and not have made it durable.
                    let fell = !known.is_of_run(&floor) && context.model.may_have_moved(partition, gone);
                    let explained = one.offset > gone || deleted || fell;
                    assert!(explained, "{partition} starts at {}, {gone} was refused", one.offset);
                }
            } else {
                context.model.told(context.now.monotonic, partition, floor, Some(one.offset), None);
            }
            (followed.position, followed.began) = (Some(one.offset), one.offset);
        }
    }

    fn name_error(&self, context: &mut Context<'_>, partition: PartitionId, error: i16) {
        *context.model.stats.fetch_errors.entry(error).or_default() += 1;
        let expected = match ErrorCode::from_code(error) {
            Some(ErrorCode::UnknownTopicOrPartition | ErrorCode::UnknownTopicId | ErrorCode::NotLeaderOrFollower) => {
                true
            }
            Some(ErrorCode::InconsistentTopicId | ErrorCode::RequestTimedOut | ErrorCode::OffsetNotAvailable) => true,
            Some(ErrorCode::KafkaStorageError) => context.storage_errors,
            _ => false,
        };
        assert!(expected, "{}: {partition} gives {error} ({:?})", self.name, ErrorCode::from_code(error));
    }

    /// Asks for everything followed, or for what changed since the session was last told.
    fn fetch(&mut self, context: &mut Context<'_>) {
        let incremental = self.options.session && self.session_id != 0 && self.session_epoch > 0;
        let question = |(partition, followed): (&PartitionId, &Followed)| {
            let position = followed.position.expect("it was asked before");
            (*partition, Question { position, floor: context.model.floor(*partition) })
        };
        let partitions: BTreeMap<PartitionId, Question> = self.followed.iter().map(question).collect();
        let told = |partition, question: &Question| {
            let known: Option<&Question> = self.in_session.get(partition);
            incremental && known.is_some_and(|known| known.position == question.position)
        };
        let changed: Vec<PartitionId> =
            partitions.iter().filter(|(id, question)| !told(id, question)).map(|(id, _)| *id).collect();
        let topics = changed.iter().map(|id| self.fetch_topic(*id, partitions[id].position)).collect();
        let gone = self.in_session.keys().filter(|id| incremental && !partitions.contains_key(id));
        let forgotten = gone.map(|id| ForgottenTopic {
            topic: KafkaString::from(context.cluster.name_of(id.topic).as_str()),
            topic_id: id.topic.0,
            partitions: vec![id.index.0],
            ..Default::default()
        });
        let request = FetchRequest {
            replica_id: -1,
            // Nothing new comes: waiting for more than there is would take forever.
            max_wait_ms: if context.quiet { 100 } else { self.options.wait_max_ms },
            min_bytes: if context.quiet { 1 } else { self.options.bytes_min },
            max_bytes: self.options.bytes_max,
            isolation_level: i8::from(self.options.read_committed),
            session_id: if self.options.session { self.session_id } else { 0 },
            session_epoch: if self.options.session { self.session_epoch } else { -1 },
            topics,
            forgotten_topics_data: forgotten.collect(),
            ..Default::default()
        };
        self.in_session = partitions.clone();
        context.model.stats.fetches += 1;
        let id = self.caller.ask(context.now.monotonic, self.options.version, &request);
        self.asked = Asked::Fetch { id, partitions };
    }

    fn fetch_topic(&self, partition: PartitionId, fetch_offset: i64) -> FetchTopic {
        let one = FetchPartition {
            partition: partition.index.0,
            current_leader_epoch: -1,
            fetch_offset,
            last_fetched_epoch: -1,
            log_start_offset: -1,
            partition_max_bytes: self.options.partition_bytes_max,
            ..Default::default()
        };
        let topic = KafkaString::from(self.followed[&partition].topic.as_str());
        FetchTopic { topic, topic_id: partition.topic.0, partitions: vec![one], ..Default::default() }
    }

    fn on_fetched(&mut self, context: &mut Context<'_>, id: i32, answer: &FetchResponse) {
        let Asked::Fetch { id: wanted, partitions } = std::mem::replace(&mut self.asked, Asked::Nothing) else {
            panic!("{}: a fetch that nobody asked for", self.name)
        };
        assert_eq!(id, wanted);
        if answer.error_code != 0 {
            let code = ErrorCode::from_code(answer.error_code);
            let session = matches!(code, Some(ErrorCode::FetchSessionIdNotFound | ErrorCode::InvalidFetchSessionEpoch));
            let topic = matches!(code, Some(ErrorCode::FetchSessionTopicIdError | ErrorCode::KafkaStorageError));
            assert!(session || topic, "{}: the fetch gives {code:?}", self.name);
            *context.model.stats.fetch_errors.entry(answer.error_code).or_default() += 1;
            (self.session_id, self.session_epoch) = (0, 0);
            return;
        }
        if self.options.session {
            self.session_id = answer.session_id;
            self.session_epoch = if answer.session_id == 0 { 0 } else { self.session_epoch % i32::MAX + 1 };
        }
        let (mut total, mut first) = (0, 0);
        for topic in &answer.responses {
            for told in &topic.partitions {
                let Some(partition) = self.partition_of(&topic.topic, topic.topic_id.0, told.partition_index) else {
                    continue;
                };
                let Some(question) = partitions.get(&partition) else {
                    panic!("{}: {partition} was not asked for: {told:?}", self.name)
                };
                let bytes = told.records.as_ref().map_or(0, |records| records.len());
                if total == 0 && bytes > 0 {
                    first = self.first_batch(told);
                }
                total += bytes;
                self.on_partition(context, partition, *question, told);
            }
        }
        let most = (self.options.bytes_max as usize).max(first);
        assert!(total <= most, "{}: {total} bytes where {most} are the most", self.name);
    }

    fn first_batch(&self, told: &PartitionData) -> usize {
        let records = told.records.as_deref().unwrap_or_default();
        batch::BatchView::parse(records).map_or(0, |(view, _)| view.size())
    }

    fn partition_of(&self, name: &KafkaString, id: u128, index: i32) -> Option<PartitionId> {
        if self.options.version >= 13 {
            let id = PartitionId { topic: TopicId(base::Uuid(id)), index: PartitionIndex(index) };
            return self.followed.contains_key(&id).then_some(id);
        }
        let named = |(id, followed): &(&PartitionId, &Followed)| followed.topic == name.as_str() && id.index.0 == index;
        self.followed.iter().find(named).map(|(id, _)| *id)
    }

    fn on_partition(
        &mut self,
        context: &mut Context<'_>,
        partition: PartitionId,
        question: Question,
        told: &PartitionData,
    ) {
        let records = told.records.clone().unwrap_or_else(|| panic!("{}: null records: {told:?}", self.name));
        if told.error_code != 0 {
            assert!(records.is_empty(), "{}: records beside an error", self.name);
            // An error is told once more after it clears; the session starts from what it knows.
            if told.error_code != ErrorCode::OffsetOutOfRange.code() {
                return self.name_error(context, partition, told.error_code);
            }
            *context.model.stats.fetch_errors.entry(told.error_code).or_default() += 1;
            let lossy = context.model.losses > 0 || context.model.is_deleted(partition);
            let known = question.position <= question.floor.watermark;
            assert!(known || lossy, "{}: {question:?} of {partition} came from the node itself", self.name);
            let followed = self.followed.get_mut(&partition).expect("it was found");
            (followed.position, followed.out_of_range) = (None, Some((question.position, question.floor)));
            if self.options.reset == LATEST {
                followed.out_of_range = None;
            }
            return;
        }
        let log_start = (self.options.version >= 5).then_some(told.log_start_offset);
        context.model.told(context.now.monotonic, partition, question.floor, Some(told.high_watermark), log_start);
        let next = context.model.served(context.now.monotonic, partition, question.position, &records);
        assert!(
            next <= told.high_watermark.max(question.position),
            "{}: {partition} shows records up to {next}, its watermark is {}",
            self.name,
            told.high_watermark
        );
        assert_eq!(told.last_stable_offset, told.high_watermark, "{}: no transaction is open", self.name);
        let followed = self.followed.get_mut(&partition).expect("it was found");
        followed.watermark = told.high_watermark;
        if followed.position == Some(question.position) {
            followed.position = Some(next);
        }
    }
}
