//! All shards of this node, and the way in and out.

use crate::answer::{Answer, GatherId, To};
use crate::api::{Event, Output, Topics};
use crate::finish::{Gather, in_version};
use crate::group::settings::GroupSettings;
use crate::group::{GroupMachine, GroupTurn, GroupWritten};
use crate::place::partition_for;
use crate::runtime::shard::Limits;
use crate::runtime::{Context, Shard};
use base::{LeaderEpoch, Monotonic, Now, PartitionId, PartitionIndex, Random, TopicId};
use settings::BrokerSettings;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use wire::{ApiKey, ErrorCode, KafkaString};

#[derive(Clone, Debug)]
pub struct Options {
    pub settings: BrokerSettings,
    /// Makes member ids.
    pub random: Random,
}

/// The coordinators of one node. `handle` takes one event; `end_turn` sends what the events of a turn want written, so
/// that they share an append.
pub struct Coordinators {
    settings: GroupSettings,
    random: Random,
    ids: u64,
    topic: Option<OffsetsTopic>,
    pub(crate) shards: BTreeMap<PartitionIndex, Shard<GroupMachine>>,
    pub(crate) gathers: BTreeMap<GatherId, Gather>,
    pub(crate) replies: Vec<(To, Answer)>,
    /// Topics that were deleted while a shard was loading.
    deletions: Vec<(PartitionIndex, TopicId, KafkaString)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OffsetsTopic {
    id: TopicId,
    partitions: u32,
}

/// What comes with an event.
pub(crate) struct Turning<'a> {
    pub now: Now,
    pub topics: &'a dyn Topics,
    pub outputs: &'a mut Vec<Output>,
}

impl Coordinators {
    pub fn new(options: Options) -> Coordinators {
        Coordinators {
            settings: GroupSettings::from_broker(&options.settings),
            random: options.random,
            ids: 0,
            topic: None,
            shards: BTreeMap::new(),
            gathers: BTreeMap::new(),
            replies: Vec::new(),
            deletions: Vec::new(),
        }
    }

    /// Whether requests of this API are for the coordinators.
    pub fn serves(api: ApiKey) -> bool {
        matches!(
            api,
            ApiKey::OffsetCommit
                | ApiKey::OffsetFetch
                | ApiKey::OffsetDelete
                | ApiKey::JoinGroup
                | ApiKey::SyncGroup
                | ApiKey::Heartbeat
                | ApiKey::LeaveGroup
                | ApiKey::DescribeGroups
                | ApiKey::ListGroups
                | ApiKey::DeleteGroups
        )
    }

    pub fn handle(&mut self, now: Now, event: Event, topics: &dyn Topics, outputs: &mut Vec<Output>) {
        let mut turning = Turning { now, topics, outputs };
        match event {
            Event::Request(request) => self.on_request(&mut turning, *request),
            Event::Appended { id, result } => {
                if let Some(at) = self.find(|shard| shard.awaits_append(id)) {
                    self.with(&mut turning, at, |shard, context| shard.on_appended(context, id, result));
                }
            }
            Event::Read { id, result } => {
                if let Some(at) = self.find(|shard| shard.awaits_read(id)) {
                    self.with(&mut turning, at, |shard, context| shard.on_read(context, id, result));
                    self.forget_deleted_topics(&mut turning, at);
                }
            }
            Event::OffsetsTopic { topic, partitions } => self.on_offsets_topic(&mut turning, topic, partitions),
            Event::Leading { partition, epoch } => self.on_leading(&mut turning, partition, epoch),
            Event::Resigned { partition, epoch } => self.on_resigned(&mut turning, partition, epoch),
            Event::TopicDeleted { topic, name } => {
                self.deletions.extend(self.shards.keys().map(|at| (*at, topic, name.clone())));
                let all: Vec<PartitionIndex> = self.shards.keys().copied().collect();
                all.into_iter().for_each(|at| self.forget_deleted_topics(&mut turning, at));
            }
            Event::SettingsChanged(settings) => {
                self.settings = GroupSettings::from_broker(&settings);
                self.shards.values_mut().for_each(|shard| shard.machine_mut().set_settings(self.settings));
            }
            Event::Time => {
                let all: Vec<PartitionIndex> = self.shards.keys().copied().collect();
                for at in all {
                    self.with(&mut turning, at, |shard, context| shard.on_time(context));
                }
            }
        }
        self.deliver(&mut turning);
    }

    /// Sends what was gathered since the last turn, one batch a shard, where no batch of the shard is under way.
    pub fn end_turn(&mut self, now: Now, outputs: &mut Vec<Output>) {
        let limits = self.limits();
        for shard in self.shards.values_mut() {
            shard.flush(&mut Context {
                now,
                random: &mut self.random,
                limits,
                ids: &mut self.ids,
                replies: &mut self.replies,
                outputs,
            });
        }
    }

    /// When `Event::Time` is due at the latest.
    pub fn next_deadline(&self) -> Option<Monotonic> {
        self.shards.values().filter_map(Shard::next_deadline).min()
    }

    fn limits(&self) -> Limits {
        Limits {
            batch_bytes_max: self.settings.message_bytes_max,
            compression: self.settings.compression,
            reply_wait_max: self.settings.commit_timeout,
            read_bytes_max: self.settings.load_bytes_max,
        }
    }

    pub(crate) fn session_bounds_ms(&self) -> RangeInclusive<i32> {
        let millis = |time: std::time::Duration| i32::try_from(time.as_millis()).unwrap_or(i32::MAX);
        millis(self.settings.session_timeout_min)..=millis(self.settings.session_timeout_max)
    }

    pub(crate) fn take_id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }

    fn find(&self, wanted: impl Fn(&Shard<GroupMachine>) -> bool) -> Option<PartitionIndex> {
        self.shards.iter().find(|(_, shard)| wanted(shard)).map(|(at, _)| *at)
    }

    /// The shard that a group belongs to, if it is here and ready.
    pub(crate) fn shard_of(&self, group: &str) -> Result<PartitionIndex, ErrorCode> {
        let topic = self.topic.ok_or(ErrorCode::NotCoordinator)?;
        let at = partition_for(group, topic.partitions);
        let shard = self.shards.get(&at).ok_or(ErrorCode::NotCoordinator)?;
        shard.refusal().map_or(Ok(at), Err)
    }

    pub(crate) fn call(
        &mut self,
        turning: &mut Turning<'_>,
        at: PartitionIndex,
        operation: impl FnOnce(&mut GroupMachine, &mut GroupTurn<'_>) -> GroupWritten,
    ) {
        self.with(turning, at, |shard, context| shard.call(context, operation));
    }

    fn with(
        &mut self,
        turning: &mut Turning<'_>,
        at: PartitionIndex,
        act: impl FnOnce(&mut Shard<GroupMachine>, &mut Context<'_, GroupMachine>),
    ) {
        let limits = self.limits();
        let Some(shard) = self.shards.get_mut(&at) else { return };
        let mut context = Context {
            now: turning.now,
            random: &mut self.random,
            limits,
            ids: &mut self.ids,
            replies: &mut self.replies,
            outputs: turning.outputs,
        };
        act(shard, &mut context);
    }

    /// Another topic of the same name: nothing of the former one's shards counts any more.
    fn on_offsets_topic(&mut self, turning: &mut Turning<'_>, id: TopicId, partitions: u32) {
        if self.topic.is_some_and(|topic| topic.id != id) || partitions == 0 {
            let all: Vec<PartitionIndex> = self.shards.keys().copied().collect();
            all.into_iter().for_each(|at| self.drop_shard(turning, at));
        }
        self.topic = (partitions > 0).then_some(OffsetsTopic { id, partitions });
    }

    fn on_leading(&mut self, turning: &mut Turning<'_>, partition: PartitionIndex, epoch: LeaderEpoch) {
        let Some(topic) = self.topic else { return };
        if let Some(shard) = self.shards.get(&partition) {
            let is_news = epoch > shard.epoch() || (epoch == shard.epoch() && shard.has_failed());
            if !is_news {
                return;
            }
        }
        self.drop_shard(turning, partition);
        let limits = self.limits();
        let mut context = Context {
            now: turning.now,
            random: &mut self.random,
            limits,
            ids: &mut self.ids,
            replies: &mut self.replies,
            outputs: turning.outputs,
        };
        let id = PartitionId { topic: topic.id, index: partition };
        let shard = Shard::loading(&mut context, id, epoch, GroupMachine::new(self.settings));
        self.shards.insert(partition, shard);
    }

    fn on_resigned(&mut self, turning: &mut Turning<'_>, partition: PartitionIndex, epoch: Option<LeaderEpoch>) {
        let Some(shard) = self.shards.get(&partition) else { return };
        if epoch.is_none_or(|epoch| epoch >= shard.epoch()) {
            self.drop_shard(turning, partition);
        }
    }

    fn drop_shard(&mut self, turning: &mut Turning<'_>, partition: PartitionIndex) {
        self.with(turning, partition, |shard, context| shard.unload(context, ErrorCode::NotCoordinator));
        self.shards.remove(&partition);
        self.deletions.retain(|(at, _, _)| *at != partition);
    }

    /// Writes tombstones for deleted topics as soon as the shard is loaded.
    fn forget_deleted_topics(&mut self, turning: &mut Turning<'_>, at: PartitionIndex) {
        if self.shards.get(&at).is_none_or(|shard| shard.refusal().is_some()) {
            return;
        }
        let (here, others) = std::mem::take(&mut self.deletions).into_iter().partition(|(owner, _, _)| *owner == at);
        self.deletions = others;
        let here: Vec<(PartitionIndex, TopicId, KafkaString)> = here;
        for (_, topic, name) in here {
            self.call(turning, at, |machine, _| machine.forget_topic(topic, &name));
        }
    }

    fn deliver(&mut self, turning: &mut Turning<'_>) {
        for (to, answer) in std::mem::take(&mut self.replies) {
            match to {
                To::Client(asker) => {
                    let response = answer.into_response().expect("parts go to a gather");
                    let response = in_version(response, asker.version);
                    turning.outputs.push(Output::Respond { token: asker.token, response });
                }
                To::Gather(id) => {
                    let gather = self.gathers.get_mut(&id).expect("a gather stays until all its parts are there");
                    gather.take(answer);
                    if gather.left == 0 {
                        let gather = self.gathers.remove(&id).expect("it is there");
                        self.finish(turning, gather);
                    }
                }
            }
        }
    }

    pub(crate) fn finish(&mut self, turning: &mut Turning<'_>, gather: Gather) {
        let token = gather.asker.token;
        turning.outputs.push(Output::Respond { token, response: gather.finish(turning.topics) });
    }
}
