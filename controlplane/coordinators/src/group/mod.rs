//! The group coordinator's state machine: classic groups and committed offsets of one partition of the offsets topic.
//!
//! Offsets and the existence of groups change with records, so that a refused append takes them back. What members are
//! doing lives beside the records, as in Kafka: it changes at once, and an `Effect` says what follows when the record of
//! a change is appended or refused. Groups of other protocols in the log are known to exist, no more.

mod admin;
mod classic;
mod commit;
mod expire;
mod fetch;
mod join;
mod member;
mod membership;
mod offsets;
mod rebalance;
mod record;
pub(crate) mod settings;
mod statics;
mod sync;

pub(crate) use admin::Filter;
pub(crate) use commit::CommitRequest;
pub(crate) use fetch::nothing as nothing_committed;

use crate::answer::{Answer, Asker, To};
use crate::runtime::{Encoded, Machine, Place, Turn, Written};
use base::{DeletionClock, Offset, ProducerId};
use bytes::Bytes;
use classic::ClassicGroup;
use offsets::{Before, Offsets};
use record::{GroupRecord, Loaded};
use settings::GroupSettings;
use std::collections::{BTreeMap, BTreeSet};
use wire::messages::{JoinGroupResponse, SyncGroupResponse};
use wire::{DecodeError, EncodeError, ErrorCode, KafkaString};

pub(crate) type GroupTurn<'a> = Turn<'a, GroupMachine>;
pub(crate) type GroupWritten = Written<GroupMachine>;

#[derive(Clone, Debug)]
pub(crate) struct GroupMachine {
    settings: GroupSettings,
    groups: BTreeMap<KafkaString, ClassicGroup>,
    /// Groups of protocols that are not served yet.
    others: BTreeSet<KafkaString>,
    offsets: Offsets,
    /// Offsets expire by it.
    clock: DeletionClock,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// A member has not been heard of; group and member.
    Session(KafkaString, KafkaString),
    /// Members had time to join.
    Join(KafkaString),
    /// Members had time to ask for their assignment.
    Sync(KafkaString),
    /// Offsets may have expired.
    Cleanup,
}

/// What takes a record back.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all of them are commits, which would gain nothing from a box")]
pub(crate) enum Undo {
    Nothing,
    Commit { before: Before, made_group: bool },
    GroupRemoved(Box<ClassicGroup>),
}

/// What follows when a record is appended or refused.
#[derive(Debug)]
pub(crate) enum Effect {
    /// The first record of a group.
    Created { group: KafkaString },
    /// The leader's assignment for a generation.
    Assigned { group: KafkaString, generation: i32, assignment: BTreeMap<KafkaString, Bytes> },
    /// A static member took the place of its former self in a stable group.
    Replaced(Box<statics::Replaced>),
}

impl GroupMachine {
    pub fn new(settings: GroupSettings) -> GroupMachine {
        let clock = DeletionClock::default();
        GroupMachine { settings, groups: BTreeMap::new(), others: BTreeSet::new(), offsets: Offsets::default(), clock }
    }

    pub fn set_settings(&mut self, settings: GroupSettings) {
        self.settings = settings;
    }

    /// Drops a group whose first record was refused; whoever joined it starts again.
    fn drop_group(&mut self, turn: &mut GroupTurn<'_>, id: &KafkaString, error: ErrorCode) {
        let Some(group) = self.groups.remove(id) else { return };
        turn.timers.cancel(&Timer::Join(id.clone()));
        turn.timers.cancel(&Timer::Sync(id.clone()));
        for member in group.pending_joins.iter().chain(group.members().map(|member| &member.id)) {
            turn.timers.cancel(&Timer::Session(id.clone(), member.clone()));
        }
        answer_all_waiting(turn, &group, error);
    }
}

/// Answers all members that wait to join or to sync with an error.
fn answer_all_waiting(turn: &mut GroupTurn<'_>, group: &ClassicGroup, error: ErrorCode) {
    for member in group.members() {
        if let Some(asker) = member.awaiting_join {
            answer_join(turn, asker, join_error(&member.id, error));
        }
        if let Some(asker) = member.awaiting_sync {
            answer_sync(turn, asker, sync_error(error));
        }
    }
}

fn answer_join(turn: &mut GroupTurn<'_>, asker: Asker, response: JoinGroupResponse) {
    turn.replies.push((To::Client(asker), Answer::Join(response)));
}

fn answer_sync(turn: &mut GroupTurn<'_>, asker: Asker, response: SyncGroupResponse) {
    turn.replies.push((To::Client(asker), Answer::Sync(response)));
}

fn join_error(member: &str, error: ErrorCode) -> JoinGroupResponse {
    JoinGroupResponse { member_id: member.into(), error_code: error.code(), ..Default::default() }
}

fn sync_error(error: ErrorCode) -> SyncGroupResponse {
    SyncGroupResponse { error_code: error.code(), ..Default::default() }
}

impl Machine for GroupMachine {
    type Record = GroupRecord;
    type Undo = Undo;
    type Effect = Effect;
    type Answer = Answer;
    type To = To;
    type Timer = Timer;

    fn emptied(&self) -> GroupMachine {
        GroupMachine::new(self.settings)
    }

    fn load(&mut self, place: Place, key: &[u8], value: Option<&[u8]>) -> Result<(), DecodeError> {
        match record::decode(place.offset, key, value)? {
            Loaded::Nothing => {}
            Loaded::Other(group, true) => {
                self.groups.remove(&group);
                self.others.insert(group);
            }
            Loaded::Other(group, false) => {
                self.others.remove(&group);
            }
            Loaded::Ours(GroupRecord::Group(group, Some(value))) => {
                self.others.remove(&group);
                self.groups.insert(group.clone(), ClassicGroup::from_record(group, value));
            }
            Loaded::Ours(GroupRecord::Group(group, None)) => {
                self.groups.remove(&group);
            }
            Loaded::Ours(GroupRecord::Commit(key, commit)) => match (commit, place.transaction) {
                (Some(commit), transaction) => {
                    self.ensure_group(&key.group, commit.committed_at);
                    match transaction {
                        Some(producer) => self.offsets.put_pending(producer, &key, commit),
                        None => drop(self.offsets.apply(key, Some(commit))),
                    }
                }
                (None, _) => drop(self.offsets.apply(key, None)),
            },
        }
        Ok(())
    }

    fn load_marker(&mut self, producer: ProducerId, committed: bool) {
        self.offsets.end_transaction(producer, committed);
    }

    fn on_loaded(&mut self, turn: &mut GroupTurn<'_>) -> GroupWritten {
        self.clock.look(turn.now);
        turn.timers.set(Timer::Cleanup, turn.now.monotonic + self.settings.offsets_retention_check_interval);
        let mut written = GroupWritten::nothing();
        for group in self.groups.values_mut() {
            let ids: Vec<KafkaString> = group.members().map(|member| member.id.clone()).collect();
            ids.iter().for_each(|id| rebalance::restart_session(turn, group, id));
            // The limit may have been lowered: members get the chance to commit before some of them are turned away.
            if group.members_count() > self.settings.members_max {
                written.records.extend(rebalance::prepare(turn, group, &self.settings).records);
            }
        }
        written
    }

    fn on_unloading(&mut self, turn: &mut GroupTurn<'_>, error: ErrorCode) {
        for group in self.groups.values() {
            answer_all_waiting(turn, group, error);
        }
        self.groups.clear();
    }

    fn encode(record: &GroupRecord) -> Result<Encoded, EncodeError> {
        record.encode()
    }

    fn apply(&mut self, offset: Offset, record: GroupRecord) -> Undo {
        match record {
            GroupRecord::Commit(key, commit) => {
                let made_group =
                    commit.as_ref().is_some_and(|commit| self.ensure_group(&key.group, commit.committed_at));
                let commit = commit.map(|commit| record::Commit { record: offset, ..commit });
                Undo::Commit { before: self.offsets.apply(key, commit), made_group }
            }
            // The group is as the record says already; what follows is its effect.
            GroupRecord::Group(_, Some(_)) => Undo::Nothing,
            GroupRecord::Group(group, None) => {
                self.groups.remove(&group).map_or(Undo::Nothing, |group| Undo::GroupRemoved(Box::new(group)))
            }
        }
    }

    fn undo(&mut self, undo: Undo) {
        match undo {
            Undo::Nothing => {}
            Undo::Commit { before, made_group } => {
                let group = before.key().group.clone();
                self.offsets.undo(before);
                if made_group && self.groups.get(&group).is_some_and(ClassicGroup::is_bare) {
                    self.groups.remove(&group);
                }
            }
            // A group that was made since under the same name keeps its members: the removed one had none.
            Undo::GroupRemoved(group) => drop(self.groups.entry(group.id.clone()).or_insert(*group)),
        }
    }

    fn settle(&mut self, turn: &mut GroupTurn<'_>, effect: Effect, result: Result<(), ErrorCode>) -> GroupWritten {
        match effect {
            Effect::Created { group } => {
                if let Err(error) = result {
                    self.drop_group(turn, &group, error);
                }
                GroupWritten::nothing()
            }
            Effect::Assigned { group, generation, assignment } => {
                self.settle_assignment(turn, &group, generation, assignment, result)
            }
            Effect::Replaced(replaced) => self.settle_replacement(turn, *replaced, result),
        }
    }

    fn on_timer(&mut self, turn: &mut GroupTurn<'_>, timer: Timer) -> GroupWritten {
        match timer {
            Timer::Session(group, member) => self.expire_member(turn, &group, &member),
            Timer::Join(group) => match self.groups.get_mut(&group) {
                Some(group) => rebalance::on_join_timer(turn, group, &self.settings),
                None => GroupWritten::nothing(),
            },
            Timer::Sync(group) => match self.groups.get_mut(&group) {
                Some(group) => rebalance::on_sync_timer(turn, group, &self.settings),
                None => GroupWritten::nothing(),
            },
            Timer::Cleanup => self.clean_up(turn),
        }
    }

    fn failed(answer: Answer, error: ErrorCode) -> Answer {
        answer.failed(error)
    }
}
