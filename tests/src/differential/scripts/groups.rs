//! Groups of the classic protocol and their offsets.

use super::{GROUP_TOPIC, NOWHERE, PATIENCE, text, topic};
use crate::differential::Script;
use crate::{Result, wait};
use base::Uuid;
use bytes::Bytes;
use serde_json::Value;
use wire::KafkaString;
use wire::messages::join_group_request::JoinGroupRequestProtocol;
use wire::messages::leave_group_request::MemberIdentity;
use wire::messages::metadata_request::MetadataRequestTopic;
use wire::messages::offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use wire::messages::offset_delete_request::{OffsetDeleteRequestPartition, OffsetDeleteRequestTopic};
use wire::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use wire::messages::sync_group_request::SyncGroupRequestAssignment;
use wire::messages::{
    DeleteGroupsRequest, DescribeGroupsRequest, FindCoordinatorRequest, HeartbeatRequest, JoinGroupRequest,
    LeaveGroupRequest, ListGroupsRequest, MetadataRequest, OffsetCommitRequest, OffsetDeleteRequest,
    OffsetFetchRequest, SyncGroupRequest,
};

const COORDINATOR_LOAD_IN_PROGRESS: i64 = 14;
const COORDINATOR_NOT_AVAILABLE: i64 = 15;
const NOT_COORDINATOR: i64 = 16;
const MEMBER_ID_REQUIRED: i64 = 79;
const NO_GENERATION: i32 = -1;

/// Waits until the coordinator of a group serves: on a fresh node the offsets topic is made first.
fn coordinated(s: &mut Script<'_>, group: &str) -> Result<()> {
    wait::until("the group's coordinator", PATIENCE, || {
        let find = FindCoordinatorRequest { coordinator_keys: vec![text(group)], ..Default::default() };
        let found = s.prepare(4, find)?;
        if found["answer"]["Coordinators"][0]["ErrorCode"] != 0 {
            return Ok(None);
        }
        let probe = HeartbeatRequest { group_id: text(group), member_id: text("nobody"), ..Default::default() };
        let error = s.prepare(4, probe)?["answer"]["ErrorCode"].as_i64();
        let busy = [COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR];
        Ok(error.filter(|error| !busy.contains(error)).map(|_| ()))
    })
}

/// Waits until there is an offsets topic. Returns its id.
pub(super) fn offsets_topic(s: &mut Script<'_>) -> Result<Uuid> {
    let anyone = s.name("anyone");
    coordinated(s, &anyone)?;
    let topic = MetadataRequestTopic { name: Some(text(GROUP_TOPIC)), ..Default::default() };
    let told = s.prepare(12, MetadataRequest { topics: Some(vec![topic]), ..Default::default() })?;
    let id = told["answer"]["Topics"][0]["TopicId"].as_str().and_then(|id| id.parse().ok());
    id.ok_or_else(|| format!("the offsets topic has no id: {told}").into())
}

pub fn find_coordinator(s: &mut Script<'_>) -> Result<()> {
    let group = s.name("found");
    coordinated(s, &group)?;
    let of = |version: i16, keys: &[&str], kind: i8| {
        let keys: Vec<KafkaString> = keys.iter().map(|key| text(key)).collect();
        match (version, keys.first()) {
            (0..=3, Some(key)) => FindCoordinatorRequest { key: key.clone(), key_type: kind, ..Default::default() },
            _ => FindCoordinatorRequest { coordinator_keys: keys, key_type: kind, ..Default::default() },
        }
    };
    let version = s.version;
    s.send("success", of(version, &[&group], 0))?;
    s.send("empty key", of(version, &[""], 0))?;
    if version >= 1 {
        s.send("unknown kind", of(version, &[&group], 9))?;
        s.reconnect();
    }
    if version >= 4 {
        s.send("two keys", of(version, &[&group, "another"], 0))?;
        s.send("no keys", of(version, &[], 0))?;
    }
    Ok(())
}

fn join(group: &str, member: &str, protocols: &[&str]) -> JoinGroupRequest {
    let protocol = |name: &&str| JoinGroupRequestProtocol {
        name: text(name),
        metadata: Bytes::from_static(b"subscribed"),
        ..Default::default()
    };
    JoinGroupRequest {
        group_id: text(group),
        session_timeout_ms: 6_000,
        rebalance_timeout_ms: 1_000,
        member_id: text(member),
        protocol_type: text("consumer"),
        protocols: protocols.iter().map(protocol).collect(),
        ..Default::default()
    }
}

/// The id that a JoinGroup answer gives, whether or not the member has to come again with it.
fn member_id(answer: &Value) -> String {
    answer["answer"]["MemberId"].as_str().unwrap_or_default().to_owned()
}

pub fn hide_leader(_: &Script<'_>, value: &mut Value) {
    crate::differential::mask::hide_fields(value, &["Leader"]);
}

/// A group with one member in generation 1, stable. Returns the member's id.
fn stable(s: &mut Script<'_>, group: &str) -> Result<String> {
    coordinated(s, group)?;
    // A coordinator that has just loaded may still be refused its first write.
    let member = wait::until("a member id", PATIENCE, || {
        let first = s.prepare(5, join(group, "", &["range"]))?;
        let given = first["answer"]["ErrorCode"] == MEMBER_ID_REQUIRED;
        Ok(given.then(|| member_id(&first)))
    })?;
    let joined = s.prepare(5, join(group, &member, &["range"]))?;
    let synced = s.prepare(3, sync(group, 1, &member, &[&member]))?;
    if joined["answer"]["ErrorCode"] != 0 || synced["answer"]["ErrorCode"] != 0 {
        return Err(format!("the group does not form: {joined}, {synced}").into());
    }
    Ok(member)
}

fn sync(group: &str, generation: i32, member: &str, assigned: &[&str]) -> SyncGroupRequest {
    let assignment = |member: &&str| SyncGroupRequestAssignment {
        member_id: text(member),
        assignment: Bytes::from_static(b"yours"),
        ..Default::default()
    };
    SyncGroupRequest {
        group_id: text(group),
        generation_id: generation,
        member_id: text(member),
        assignments: assigned.iter().map(assignment).collect(),
        ..Default::default()
    }
}

pub fn join_group(s: &mut Script<'_>) -> Result<()> {
    let group = s.name("joins");
    coordinated(s, &group)?;
    s.malform(join("", "", &["range"]))?;
    let first = s.send("success", join(&group, "", &["range"]))?;
    let member = member_id(&first);
    if s.version >= 4 {
        s.send("with the id given", join(&group, &member, &["range"]))?;
    }
    s.send("unknown member", join(&group, "nobody", &["range"]))?;
    s.send("no group", join("", "", &["range"]))?;
    s.send("no protocols", join(&s.name("joins-none"), "", &[]))?;
    s.send("another protocol", join(&group, "", &["other"]))?;
    let short = JoinGroupRequest { session_timeout_ms: 1, ..join(&s.name("joins-short"), "", &["range"]) };
    s.send("short session", short)?;
    let long = JoinGroupRequest { session_timeout_ms: i32::MAX, ..join(&s.name("joins-long"), "", &["range"]) };
    s.send("long session", long)?;
    let another = JoinGroupRequest { protocol_type: text("other"), ..join(&group, "", &["range"]) };
    s.send("another protocol type", another)?;
    if s.version >= 5 {
        let fixed =
            JoinGroupRequest { group_instance_id: Some(text("one")), ..join(&s.name("joins-static"), "", &["range"]) };
        s.send("static", fixed)?;
    }
    Ok(())
}

pub fn sync_group(s: &mut Script<'_>) -> Result<()> {
    let group = s.name("syncs");
    let member = stable(s, &group)?;
    let typed = |request: SyncGroupRequest, kind: &str, name: &str| SyncGroupRequest {
        protocol_type: Some(text(kind)),
        protocol_name: Some(text(name)),
        ..request
    };
    s.send("success", typed(sync(&group, 1, &member, &[]), "consumer", "range"))?;
    s.send("old generation", typed(sync(&group, 0, &member, &[]), "consumer", "range"))?;
    s.send("unknown member", typed(sync(&group, 1, "nobody", &[]), "consumer", "range"))?;
    s.send("unknown group", typed(sync(&s.name("syncs-none"), 1, "nobody", &[]), "consumer", "range"))?;
    s.send("no group", typed(sync("", 1, &member, &[]), "consumer", "range"))?;
    if s.version >= 5 {
        s.send("another type", typed(sync(&group, 1, &member, &[]), "other", "range"))?;
        s.send("another name", typed(sync(&group, 1, &member, &[]), "consumer", "other"))?;
        s.send("no type", sync(&group, 1, &member, &[]))?;
    }
    Ok(())
}

pub fn heartbeat(s: &mut Script<'_>) -> Result<()> {
    let group = s.name("beats");
    let member = stable(s, &group)?;
    let of = |group: &str, generation: i32, member: &str| HeartbeatRequest {
        group_id: text(group),
        generation_id: generation,
        member_id: text(member),
        ..Default::default()
    };
    s.send("success", of(&group, 1, &member))?;
    s.send("old generation", of(&group, 0, &member))?;
    s.send("unknown member", of(&group, 1, "nobody"))?;
    s.send("unknown group", of(&s.name("beats-none"), 1, "nobody"))?;
    s.send("no group", of("", 1, &member))?;
    Ok(())
}

pub fn leave_group(s: &mut Script<'_>) -> Result<()> {
    let group = s.name("leaves");
    let member = stable(s, &group)?;
    let version = s.version;
    let of = |group: &str, members: &[&str]| {
        let one = |member: &&str| MemberIdentity { member_id: text(member), ..Default::default() };
        let (single, several) = match version {
            0..=2 => (members.first().copied().unwrap_or(""), vec![]),
            _ => ("", members.iter().map(one).collect()),
        };
        LeaveGroupRequest { group_id: text(group), member_id: text(single), members: several, ..Default::default() }
    };
    s.send("success", of(&group, &[&member]))?;
    s.send("again", of(&group, &[&member]))?;
    s.send("unknown group", of(&s.name("leaves-none"), &["nobody"]))?;
    s.send("no group", of("", &["nobody"]))?;
    if version >= 3 {
        s.send("two unknown members", of(&group, &["nobody", "neither"]))?;
        s.send("no members", of(&group, &[]))?;
    }
    Ok(())
}

pub fn describe_groups(s: &mut Script<'_>) -> Result<()> {
    let group = s.name("described");
    stable(s, &group)?;
    let of = |groups: &[&str]| DescribeGroupsRequest {
        groups: groups.iter().map(|group| text(group)).collect(),
        ..Default::default()
    };
    s.send("success", of(&[&group]))?;
    s.send("unknown", of(&[&s.name("described-none")]))?;
    s.send("empty name", of(&[""]))?;
    s.send("two", of(&[&group, &s.name("described-none")]))?;
    s.send("no groups", of(&[]))?;
    if s.version >= 3 {
        s.send("operations", DescribeGroupsRequest { include_authorized_operations: true, ..of(&[&group]) })?;
    }
    Ok(())
}

/// Other scripts leave groups behind; only this script's are compared.
pub fn only_own(s: &Script<'_>, value: &mut Value) {
    let own = s.name("listed");
    if let Some(groups) = value.pointer_mut("/answer/Groups").and_then(Value::as_array_mut) {
        groups.retain(|group| group["GroupId"].as_str() == Some(&own));
    }
}

pub fn list_groups(s: &mut Script<'_>) -> Result<()> {
    let group = s.name("listed");
    stable(s, &group)?;
    let of = |states: &[&str], types: &[&str]| ListGroupsRequest {
        states_filter: states.iter().map(|state| text(state)).collect(),
        types_filter: types.iter().map(|kind| text(kind)).collect(),
        ..Default::default()
    };
    s.send("success", of(&[], &[]))?;
    if s.version >= 4 {
        s.send("stable ones", of(&["Stable"], &[]))?;
        s.send("empty ones", of(&["Empty"], &[]))?;
        s.send("unknown state", of(&["Odd"], &[]))?;
    }
    if s.version >= 5 {
        s.send("classic ones", of(&[], &["classic"]))?;
        s.send("unknown type", of(&[], &["odd"]))?;
    }
    Ok(())
}

pub fn delete_groups(s: &mut Script<'_>) -> Result<()> {
    let group = s.name("deleted");
    let member = stable(s, &group)?;
    let of = |groups: &[&str]| DeleteGroupsRequest {
        groups_names: groups.iter().map(|group| text(group)).collect(),
        ..Default::default()
    };
    s.send("not empty", of(&[&group]))?;
    s.prepare(2, LeaveGroupRequest { group_id: text(&group), member_id: text(&member), ..Default::default() })?;
    s.send("success", of(&[&group]))?;
    s.send("again", of(&[&group]))?;
    s.send("no name", of(&[""]))?;
    s.send("no groups", of(&[]))?;
    Ok(())
}

fn commit(group: &str, generation: i32, member: &str, topics: &[(&str, Uuid, i32, i64)]) -> OffsetCommitRequest {
    let one = |(name, id, partition, offset): &(&str, Uuid, i32, i64)| OffsetCommitRequestTopic {
        name: text(name),
        topic_id: *id,
        partitions: vec![OffsetCommitRequestPartition {
            partition_index: *partition,
            committed_offset: *offset,
            committed_metadata: Some(text("note")),
            ..Default::default()
        }],
        ..Default::default()
    };
    OffsetCommitRequest {
        group_id: text(group),
        generation_id_or_member_epoch: generation,
        member_id: text(member),
        topics: topics.iter().map(one).collect(),
        ..Default::default()
    }
}

pub fn offset_commit(s: &mut Script<'_>) -> Result<()> {
    let (name, group) = (s.name("commits"), s.name("committing"));
    let id = topic(s, &name, 2, &[])?;
    let member = stable(s, &group)?;
    let here = [(name.as_str(), id, 0, 5)];
    s.send("success", commit(&group, 1, &member, &here))?;
    s.send("old generation", commit(&group, 0, &member, &here))?;
    s.send("unknown member", commit(&group, 1, "nobody", &here))?;
    s.send("by a stranger", commit(&group, NO_GENERATION, "", &here))?;
    s.send("without a group of members", commit(&s.name("simple"), NO_GENERATION, "", &here))?;
    s.send("no group", commit("", NO_GENERATION, "", &here))?;
    s.send("missing partition", commit(&group, 1, &member, &[(&name, id, 7, 5)]))?;
    s.send("missing topic", commit(&group, 1, &member, &[(NOWHERE, super::NO_SUCH_ID, 0, 5)]))?;
    s.send("negative offset", commit(&group, 1, &member, &[(&name, id, 0, -4)]))?;
    let mut long = commit(&group, 1, &member, &here);
    long.topics[0].partitions[0].committed_metadata = Some(text(&"x".repeat(5000)));
    s.send("long metadata", long)?;
    s.send("nothing", commit(&group, 1, &member, &[]))?;
    Ok(())
}

pub fn offset_fetch(s: &mut Script<'_>) -> Result<()> {
    let (name, group) = (s.name("fetches"), s.name("fetching"));
    let id = topic(s, &name, 3, &[])?;
    coordinated(s, &group)?;
    s.prepare(8, commit(&group, NO_GENERATION, "", &[(&name, id, 1, 42)]))?;
    let version = s.version;
    let of = |group: &str, topics: Option<&[(&str, Uuid, &[i32])]>| {
        if version < 8 {
            let one = |(name, _, partitions): &(&str, Uuid, &[i32])| OffsetFetchRequestTopic {
                name: text(name),
                partition_indexes: partitions.to_vec(),
                ..Default::default()
            };
            let topics = topics.map(|topics| topics.iter().map(one).collect());
            return OffsetFetchRequest { group_id: text(group), topics, ..Default::default() };
        }
        let one = |(name, id, partitions): &(&str, Uuid, &[i32])| OffsetFetchRequestTopics {
            name: text(name),
            topic_id: *id,
            partition_indexes: partitions.to_vec(),
            ..Default::default()
        };
        let topics = topics.map(|topics| topics.iter().map(one).collect());
        let group = OffsetFetchRequestGroup { group_id: text(group), topics, ..Default::default() };
        OffsetFetchRequest { groups: vec![group], ..Default::default() }
    };
    let three: &[(&str, Uuid, &[i32])] = &[(&name, id, &[0, 1, 2])];
    s.send("success", of(&group, Some(three)))?;
    s.send("unknown group", of(&s.name("fetching-none"), Some(three)))?;
    s.send("missing topic", of(&group, Some(&[(NOWHERE, super::NO_SUCH_ID, &[0])])))?;
    s.send("missing partition", of(&group, Some(&[(&name, id, &[1, 9])])))?;
    s.send("no group", of("", Some(three)))?;
    s.send("no topics", of(&group, Some(&[])))?;
    if version >= 2 {
        s.send("all", of(&group, None))?;
    }
    if version >= 7 {
        s.send("stable", OffsetFetchRequest { require_stable: true, ..of(&group, Some(three)) })?;
    }
    Ok(())
}

pub fn offset_delete(s: &mut Script<'_>) -> Result<()> {
    let (name, group) = (s.name("drops"), s.name("dropping"));
    let id = topic(s, &name, 2, &[])?;
    coordinated(s, &group)?;
    s.prepare(8, commit(&group, NO_GENERATION, "", &[(&name, id, 1, 42)]))?;
    let of = |group: &str, name: &str, partition: i32| OffsetDeleteRequest {
        group_id: text(group),
        topics: vec![OffsetDeleteRequestTopic {
            name: text(name),
            partitions: vec![OffsetDeleteRequestPartition { partition_index: partition }],
        }],
    };
    s.send("success", of(&group, &name, 1))?;
    s.send("again", of(&group, &name, 1))?;
    s.send("missing topic", of(&group, NOWHERE, 0))?;
    s.send("unknown group", of(&s.name("dropping-none"), &name, 0))?;
    s.send("no group", of("", &name, 0))?;
    Ok(())
}
