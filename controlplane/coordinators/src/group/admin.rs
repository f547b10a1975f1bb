//! DescribeGroups, ListGroups and DeleteGroups of one shard.

use super::classic::State;
use super::record::GroupRecord;
use super::{GroupMachine, GroupWritten};
use crate::answer::{Answer, To};
use wire::messages::delete_groups_response::DeletableGroupResult;
use wire::messages::describe_groups_response::DescribedGroup;
use wire::messages::list_groups_response::ListedGroup;
use wire::{ErrorCode, KafkaString};

/// The type of all groups here, as ListGroups shows it and filters by it.
const CLASSIC: &str = "classic";
/// From this version on a group that does not exist is an error; before, it is Dead.
const UNKNOWN_GROUP_SINCE: i16 = 6;

/// Which groups are listed; an empty filter lets everything through.
#[derive(Clone, Debug)]
pub(crate) struct Filter {
    pub states: Vec<KafkaString>,
    pub types: Vec<KafkaString>,
}

impl Filter {
    fn lets_through(&self, state: State) -> bool {
        let names = |filter: &[KafkaString], name: &str| {
            filter.is_empty() || filter.iter().any(|one| one.trim().eq_ignore_ascii_case(name))
        };
        names(&self.states, state.name()) && names(&self.types, CLASSIC)
    }
}

impl GroupMachine {
    pub fn list(&self, to: To, filter: &Filter) -> GroupWritten {
        let shown = self.groups.values().filter(|group| filter.lets_through(group.state()));
        let groups = shown.map(|group| ListedGroup {
            group_id: group.id.clone(),
            protocol_type: group.protocol_type.clone().unwrap_or_default(),
            group_state: group.state().name().into(),
            group_type: CLASSIC.into(),
            ..Default::default()
        });
        GroupWritten::reply(to, Answer::Listed(Ok(groups.collect())))
    }

    /// Each group with its place in the request.
    pub fn describe(&self, to: To, groups: &[(usize, KafkaString)], version: i16) -> GroupWritten {
        let described = groups.iter().map(|(place, group)| (*place, self.describe_one(group, version)));
        GroupWritten::reply(to, Answer::Described(described.collect()))
    }

    fn describe_one(&self, id: &KafkaString, version: i16) -> DescribedGroup {
        let Some(group) = self.groups.get(id) else {
            let mut answer = DescribedGroup { group_id: id.clone(), group_state: "Dead".into(), ..Default::default() };
            if version >= UNKNOWN_GROUP_SINCE {
                answer.error_code = ErrorCode::GroupIdNotFound.code();
                let other = self.others.contains(id);
                let what = if other { "is not a classic group." } else { "not found." };
                answer.error_message = Some(format!("Group {id} {what}").into());
            }
            return answer;
        };
        let protocol = group.protocol.as_deref().filter(|_| group.state() == State::Stable);
        DescribedGroup {
            group_id: id.clone(),
            group_state: group.state().name().into(),
            protocol_type: group.protocol_type.clone().unwrap_or_default(),
            protocol_data: protocol.unwrap_or_default().into(),
            members: group.members().map(|member| member.describe(protocol)).collect(),
            ..Default::default()
        }
    }

    /// Each group with its place in the request. All that can be deleted is deleted together.
    pub fn delete(&self, to: To, groups: &[(usize, KafkaString)]) -> GroupWritten {
        let mut records = Vec::new();
        let mut results = Vec::with_capacity(groups.len());
        for (place, id) in groups {
            let error = match self.groups.get(id).map(|group| group.state()) {
                Some(State::Empty) => {
                    let keys = self.offsets.keys_of(id).into_iter();
                    records.extend(keys.map(|key| GroupRecord::Commit(key, None)));
                    records.push(GroupRecord::Group(id.detached(), None));
                    ErrorCode::None
                }
                Some(_) => ErrorCode::NonEmptyGroup,
                None if self.others.contains(id) => ErrorCode::NonEmptyGroup,
                None => ErrorCode::GroupIdNotFound,
            };
            let result = DeletableGroupResult { group_id: id.clone(), error_code: error.code(), ..Default::default() };
            results.push((*place, result));
        }
        GroupWritten::records(records).with_reply(to, Answer::Deleted(results))
    }
}
