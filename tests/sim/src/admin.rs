//! A client that asks for what neither producers nor consumers do: offsets, deletions of records, metadata, and requests
//! that go on to the control plane. One question at a time.

use crate::caller::{Arrival, Caller};
use crate::context::Context;
use crate::model::Floor;
use crate::times::ToldTime;
use base::PartitionId;
use wire::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use wire::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use wire::messages::{
    DeleteRecordsRequest, DescribeConfigsRequest, ListGroupsRequest, ListOffsetsRequest, MetadataRequest,
};
use wire::{ErrorCode, KafkaString, ResponseKind};

#[derive(Debug)]
enum Question {
    Delete { partition: PartitionId, offset: i64, floor: Floor },
    Offset { partition: PartitionId, at: i64, floor: Floor },
    Other,
}

#[derive(Debug)]
pub struct Admin {
    pub caller: Caller,
    asked: Option<Question>,
    /// One in so many steps asks.
    laziness: u64,
    pub deletes: bool,
}

impl Admin {
    pub fn new(name: String, laziness: u64, deletes: bool) -> Admin {
        Admin { caller: Caller::new(name), asked: None, laziness, deletes }
    }

    pub fn step(&mut self, context: &mut Context<'_>) {
        for arrival in self.caller.poll(context) {
            match arrival {
                Arrival::Closed => self.asked = None,
                Arrival::Answer(_, answer) => self.on_answer(context, *answer),
            }
        }
        if self.asked.is_some() || context.quiet || !context.random.chance(1, self.laziness) {
            return;
        }
        if self.caller.connect(context) {
            self.ask(context);
        }
    }

    pub fn reset(&mut self) {
        self.caller.reset();
        self.asked = None;
    }

    fn ask(&mut self, context: &mut Context<'_>) {
        let now = context.now.monotonic;
        let Some((partition, topic)) = context.some_partition() else { return };
        let floor = context.model.floor(partition);
        let name = KafkaString::from(topic.as_str());
        let question = match context.random.below(10) {
            0 if self.deletes => {
                let span = (floor.watermark - floor.log_start).max(0) as u64;
                let offset = floor.log_start + context.random.below(span + 1) as i64;
                context.model.ask_to_delete(partition, offset);
                let one = DeleteRecordsPartition { partition_index: partition.index.0, offset, ..Default::default() };
                let topics = vec![DeleteRecordsTopic { name, partitions: vec![one], ..Default::default() }];
                let request = DeleteRecordsRequest { topics, timeout_ms: 10_000, ..Default::default() };
                self.caller.ask(now, context.random.below(3) as i16, &request);
                Question::Delete { partition, offset, floor }
            }
            0..=5 => {
                let at = [-1, -2, -3, context.now.wall.0 - context.random.below(20_000) as i64];
                let at = at[context.random.below(4) as usize];
                let (partition_index, current_leader_epoch) = (partition.index.0, -1);
                let one =
                    ListOffsetsPartition { partition_index, current_leader_epoch, timestamp: at, ..Default::default() };
                let topics = vec![ListOffsetsTopic { name, partitions: vec![one], ..Default::default() }];
                let request = ListOffsetsRequest { replica_id: -1, topics, timeout_ms: 9000, ..Default::default() };
                self.caller.ask(now, 7 + context.random.below(4) as i16, &request);
                Question::Offset { partition, at, floor }
            }
            6 | 7 => {
                self.caller.ask(now, 1 + context.random.below(13) as i16, &MetadataRequest::default());
                Question::Other
            }
            8 => {
                self.caller.ask(now, context.random.below(5) as i16, &ListGroupsRequest::default());
                Question::Other
            }
            _ => {
                self.caller.ask(now, 1 + context.random.below(4) as i16, &DescribeConfigsRequest::default());
                Question::Other
            }
        };
        self.asked = Some(question);
    }

    fn on_answer(&mut self, context: &mut Context<'_>, answer: ResponseKind) {
        let now = context.now.monotonic;
        let question = self.asked.take().expect("it was asked for");
        match (question, answer) {
            (Question::Delete { partition, offset, floor }, ResponseKind::DeleteRecords(answer)) => {
                let told = &answer.topics[0].partitions[0];
                if self.is_fine(context, partition, told.error_code) {
                    let gone = context.model.is_deleted(partition);
                    assert!(told.low_watermark >= offset || gone, "{partition}: {told:?} to {offset}");
                    context.model.promised(now, partition, floor, told.low_watermark);
                    context.model.stats.deleted_records += 1;
                }
            }
            (Question::Offset { partition, at, floor }, ResponseKind::ListOffsets(answer)) => {
                let told = &answer.topics[0].partitions[0];
                if !self.is_fine(context, partition, told.error_code) {
                    return;
                }
                match at {
                    -1 => context.model.told(now, partition, floor, Some(told.offset), None),
                    -2 => context.model.told(now, partition, floor, None, Some(told.offset)),
                    _ => {
                        // The largest time is a deleted record's while its segment is there.
                        let known = at == -3 || told.offset == -1 || told.offset >= floor.log_start;
                        assert!(known || context.model.is_deleted(partition), "{partition}: {told:?} before {floor:?}");
                        let told = ToldTime { offset: told.offset, timestamp: told.timestamp };
                        match at {
                            -3 => context.model.told_largest_time(partition, floor, told),
                            at => context.model.told_time(partition, floor, at, told),
                        }
                    }
                }
            }
            (Question::Other, ResponseKind::Metadata(answer)) => {
                for topic in &answer.topics {
                    let name = topic.name.as_deref().unwrap_or_default();
                    assert!(name.starts_with('t'), "a topic {name:?} is none of ours");
                }
            }
            (Question::Other, _) => {}
            (question, answer) => panic!("{question:?} is answered by {answer:?}"),
        }
    }

    fn is_fine(&self, context: &mut Context<'_>, partition: PartitionId, error: i16) -> bool {
        let expected = match ErrorCode::from_code(error) {
            Some(ErrorCode::None) => return true,
            Some(ErrorCode::UnknownTopicOrPartition | ErrorCode::NotLeaderOrFollower | ErrorCode::RequestTimedOut) => {
                true
            }
            // The epoch began beyond the watermark, which will follow.
            Some(ErrorCode::OffsetNotAvailable) => true,
            Some(ErrorCode::KafkaStorageError) => context.storage_errors,
            // The log start moved on meanwhile, or the records were lost.
            Some(ErrorCode::OffsetOutOfRange) => context.model.losses > 0,
            _ => false,
        };
        assert!(expected, "{partition}: the admin client is told {error} ({:?})", ErrorCode::from_code(error));
        false
    }
}
