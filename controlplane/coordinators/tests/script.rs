//! A script of group requests that Apache Kafka 4.4 played (`tests/golden/groups/Script.java` of the repository sent it),
//! played again: the answers are the same, but for ids.

mod common;

use base::Uuid;
use bytes::Bytes;
use common::World;
use common::groups::protocol;
use pollux_coordinators::RequestToken;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::Duration;
use wire::messages::leave_group_request::MemberIdentity;
use wire::messages::offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use wire::messages::offset_delete_request::{OffsetDeleteRequestPartition, OffsetDeleteRequestTopic};
use wire::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use wire::messages::sync_group_request::SyncGroupRequestAssignment;
use wire::messages::*;
use wire::{KafkaString, ResponseKind};

const SCRIPT: &str = include_str!("../../../tests/golden/groups/script.txt");
const ANSWERS: &str = include_str!("../../../tests/golden/groups/script-answers.txt");
/// The recorder left Kafka so much time after each request.
const STEP: Duration = Duration::from_millis(60);

/// The id of a topic that nobody knows.
const NOWHERE: Uuid = Uuid(7);

fn topic_id(name: &str) -> Uuid {
    if name == "orders" { common::ORDERS.0 } else { NOWHERE }
}

/// A topic's name, whichever way the version tells it.
fn topic(name: &str, id: Uuid, version: i16) -> String {
    match id {
        _ if version < 10 => name.to_owned(),
        id if id == common::ORDERS.0 => "orders".to_owned(),
        NOWHERE => "nowhere".to_owned(),
        id => id.to_string(),
    }
}

struct Player {
    world: World,
    /// Ids by the request that brought them.
    ids: BTreeMap<String, KafkaString>,
    asked: BTreeMap<String, RequestToken>,
}

struct Options<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> Options<'a> {
    fn get(&self, name: &str) -> Option<&'a str> {
        self.0.get(name).copied()
    }
    fn text(&self, name: &str, default: &'static str) -> KafkaString {
        self.get(name).unwrap_or(default).into()
    }
    fn number(&self, name: &str, default: i32) -> i32 {
        self.get(name).map_or(default, |text| text.parse().expect("a number"))
    }
    fn partitions(&self) -> Vec<i32> {
        self.get("partitions").unwrap_or("0").split(',').map(|one| one.parse().expect("a number")).collect()
    }
}

impl Player {
    fn id(&self, name: &str) -> KafkaString {
        self.ids.get(name).cloned().unwrap_or_else(|| name.into())
    }

    fn mask(&self, id: &str) -> String {
        match self.ids.iter().find(|(_, known)| **known == *id) {
            Some((name, _)) => format!("<{name}>"),
            None if id.starts_with("raw-") => "<new>".to_owned(),
            None => id.to_owned(),
        }
    }

    fn ask(&mut self, words: &[&str]) {
        let version: i16 = words[2].parse().expect("a version");
        let options = Options(words[3..].iter().map(|word| word.split_once('=').expect("name=value")).collect());
        let group_id = options.text("group", "g");
        let member_id = self.id(options.get("member").unwrap_or(""));
        let group_instance_id = options.get("instance").map(KafkaString::from);
        let generation_id = options.number("gen", -1);
        let token = match words[1] {
            "join" => self.world.ask_as("raw", version, join_request(group_id, member_id, group_instance_id, &options)),
            "sync" => {
                let assign = options.get("assign").into_iter().flat_map(|list| list.split(','));
                let assignments = assign.map(|one| one.split_once(':').expect("member:text"));
                let assignments = assignments.map(|(name, text)| (self.id(name), text)).collect::<Vec<_>>();
                let request = SyncGroupRequest {
                    group_id,
                    generation_id,
                    member_id,
                    group_instance_id,
                    protocol_type: Some(options.text("type", "consumer")),
                    protocol_name: Some(options.text("protocol", "range")),
                    assignments: assignments.into_iter().map(assignment).collect(),
                    ..Default::default()
                };
                self.world.ask_as("raw", version, request)
            }
            "beat" => {
                let request =
                    HeartbeatRequest { group_id, generation_id, member_id, group_instance_id, ..Default::default() };
                self.world.ask_as("raw", version, request)
            }
            "leave" if version < 3 => {
                self.world.ask_as("raw", version, LeaveGroupRequest { group_id, member_id, ..Default::default() })
            }
            "leave" => {
                let members = vec![MemberIdentity { member_id, group_instance_id, ..Default::default() }];
                self.world.ask_as("raw", version, LeaveGroupRequest { group_id, members, ..Default::default() })
            }
            "commit" => {
                let request = OffsetCommitRequest {
                    group_id,
                    generation_id_or_member_epoch: generation_id,
                    member_id,
                    group_instance_id,
                    topics: vec![committed_topic(&options)],
                    ..Default::default()
                };
                self.world.ask_as("raw", version, request)
            }
            "forget" => {
                let partition = |partition_index| OffsetDeleteRequestPartition { partition_index };
                let topics = vec![OffsetDeleteRequestTopic {
                    name: options.text("topic", "orders"),
                    partitions: options.partitions().into_iter().map(partition).collect(),
                }];
                self.world.ask_as("raw", version, OffsetDeleteRequest { group_id, topics })
            }
            "fetch" => self.world.ask_as("raw", version, fetch_request(group_id, &options, version)),
            "describe" => {
                let request = DescribeGroupsRequest { groups: vec![group_id], ..Default::default() };
                self.world.ask_as("raw", version, request)
            }
            "delete" => {
                let request = DeleteGroupsRequest { groups_names: vec![group_id], ..Default::default() };
                self.world.ask_as("raw", version, request)
            }
            other => panic!("{other} is no request"),
        };
        self.asked.insert(words[0].to_owned(), token);
        self.world.pass(STEP);
    }

    /// The answer as the recorder writes it; a request is given a second.
    fn wait(&mut self, name: &str, version: i16) -> String {
        let token = self.asked[name];
        let mut left = 100;
        while !self.world.is_answered(token) {
            if left == 0 {
                return "waits".to_owned();
            }
            left -= 1;
            self.world.pass(Duration::from_millis(10));
        }
        match self.world.answer(token).expect("it is answered") {
            ResponseKind::JoinGroup(response) => self.joined(name, &response, version),
            ResponseKind::SyncGroup(response) => {
                let named = |text: &Option<KafkaString>| null_or(&text.clone().filter(|_| version >= 5));
                format!(
                    "error={} type={} protocol={} assignment=[{}]",
                    response.error_code,
                    named(&response.protocol_type),
                    named(&response.protocol_name),
                    text(&response.assignment)
                )
            }
            ResponseKind::Heartbeat(response) => format!("error={}", response.error_code),
            ResponseKind::LeaveGroup(response) => {
                let mut told = format!("error={}", response.error_code);
                for member in &response.members {
                    let (id, instance) = (self.mask(&member.member_id), null_or(&member.group_instance_id));
                    write!(told, " {id}/{instance}={}", member.error_code).expect("memory");
                }
                told
            }
            ResponseKind::OffsetCommit(response) => {
                let mut told = "committed".to_owned();
                for topic in &response.topics {
                    for one in &topic.partitions {
                        let name = self::topic(&topic.name, topic.topic_id, version);
                        write!(told, " {name}/{}={}", one.partition_index, one.error_code).expect("memory");
                    }
                }
                told
            }
            ResponseKind::OffsetFetch(response) => fetched(&response, version),
            ResponseKind::OffsetDelete(response) => {
                let mut told = format!("error={}", response.error_code);
                for topic in &response.topics {
                    for one in &topic.partitions {
                        write!(told, " {}/{}={}", topic.name, one.partition_index, one.error_code).expect("memory");
                    }
                }
                told
            }
            ResponseKind::DescribeGroups(response) => self.described(&response.groups[0]),
            ResponseKind::DeleteGroups(response) => {
                let one = &response.results[0];
                format!("deleted {}={}/{}", one.group_id, one.error_code, null_or(&one.error_message))
            }
            other => panic!("{other:?}"),
        }
    }

    fn joined(&mut self, name: &str, response: &JoinGroupResponse, version: i16) -> String {
        let id = &response.member_id;
        if matches!(response.error_code, 0 | 79) && !self.ids.values().any(|known| known == id) {
            self.ids.insert(name.to_owned(), id.clone());
        }
        let members: BTreeSet<String> = response
            .members
            .iter()
            .map(|one| {
                format!("{}/{}/{}", self.mask(&one.member_id), null_or(&one.group_instance_id), text(&one.metadata))
            })
            .collect();
        format!(
            "error={} gen={} type={} protocol=[{}] leader={} skip={} member={} members=[{}]",
            response.error_code,
            response.generation_id,
            null_or(&response.protocol_type.clone().filter(|_| version >= 7)),
            null_or(&response.protocol_name),
            if response.leader == *id { "me".to_owned() } else { self.mask(&response.leader) },
            response.skip_assignment,
            self.mask(id),
            members.into_iter().collect::<Vec<_>>().join(", ")
        )
    }

    fn described(&self, group: &describe_groups_response::DescribedGroup) -> String {
        let members: BTreeSet<String> = group
            .members
            .iter()
            .map(|one| {
                format!(
                    "{}/{}/{}/{}/{}",
                    self.mask(&one.member_id),
                    null_or(&one.group_instance_id),
                    one.client_id,
                    text(&one.member_metadata),
                    text(&one.member_assignment)
                )
            })
            .collect();
        format!(
            "error={} message={} state={} type=[{}] protocol=[{}] members=[{}]",
            group.error_code,
            null_or(&group.error_message),
            group.group_state,
            group.protocol_type,
            group.protocol_data,
            members.into_iter().collect::<Vec<_>>().join(", ")
        )
    }
}

fn join_request(
    group_id: KafkaString,
    member_id: KafkaString,
    group_instance_id: Option<KafkaString>,
    options: &Options<'_>,
) -> JoinGroupRequest {
    let names = options.get("protocols").unwrap_or("range").split(',').filter(|name| !name.is_empty());
    JoinGroupRequest {
        group_id,
        member_id,
        group_instance_id,
        session_timeout_ms: options.number("session", 10_000),
        rebalance_timeout_ms: options.number("rebalance", 4_000),
        protocol_type: options.text("type", "consumer"),
        protocols: names.map(|name| protocol(name, name.as_bytes())).collect(),
        ..Default::default()
    }
}

fn assignment((member_id, text): (KafkaString, &str)) -> SyncGroupRequestAssignment {
    SyncGroupRequestAssignment { member_id, assignment: Bytes::copy_from_slice(text.as_bytes()), ..Default::default() }
}

fn committed_topic(options: &Options<'_>) -> OffsetCommitRequestTopic {
    let partition = |partition_index| OffsetCommitRequestPartition {
        partition_index,
        committed_offset: 5,
        committed_metadata: Some(KafkaString::default()),
        ..Default::default()
    };
    let name = options.text("topic", "orders");
    OffsetCommitRequestTopic {
        topic_id: topic_id(&name),
        name,
        partitions: options.partitions().into_iter().map(partition).collect(),
        ..Default::default()
    }
}

fn fetch_request(group_id: KafkaString, options: &Options<'_>, version: i16) -> OffsetFetchRequest {
    let name = options.text("topic", "orders");
    let all = name == *"*";
    let partition_indexes = options.partitions();
    let require_stable = version >= 7 && options.get("stable").is_some();
    if version < 8 {
        let topic = OffsetFetchRequestTopic { name, partition_indexes, ..Default::default() };
        let topics = (!all).then(|| vec![topic]);
        return OffsetFetchRequest { group_id, topics, require_stable, ..Default::default() };
    }
    let topic = OffsetFetchRequestTopics { topic_id: topic_id(&name), name, partition_indexes, ..Default::default() };
    let topics = (!all).then(|| vec![topic]);
    let groups = vec![OffsetFetchRequestGroup { group_id, topics, ..Default::default() }];
    OffsetFetchRequest { groups, require_stable, ..Default::default() }
}

fn fetched(response: &OffsetFetchResponse, version: i16) -> String {
    let mut told = format!("error={}", response.error_code);
    let offset = |told: &mut String, name: &str, place: i32, offset: i64, epoch: i32, metadata, error: i16| {
        write!(told, " {name}/{place}={offset}/{epoch}/{}/{error}", null_or(metadata)).expect("memory");
    };
    for topic in &response.topics {
        for one in &topic.partitions {
            let (place, epoch) = (one.partition_index, one.committed_leader_epoch);
            offset(&mut told, &topic.name, place, one.committed_offset, epoch, &one.metadata, one.error_code);
        }
    }
    for group in &response.groups {
        write!(told, " group={} error={}", group.group_id, group.error_code).expect("memory");
        for topic in &group.topics {
            let name = self::topic(&topic.name, topic.topic_id, version);
            for one in &topic.partitions {
                let (place, epoch) = (one.partition_index, one.committed_leader_epoch);
                offset(&mut told, &name, place, one.committed_offset, epoch, &one.metadata, one.error_code);
            }
        }
    }
    told
}

fn null_or(text: &Option<KafkaString>) -> String {
    text.as_ref().map_or("null".to_owned(), |text| text.to_string())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn kafkas_script_gives_kafkas_answers() {
    let mut world = World::new(&[("group.initial.rebalance.delay.ms", "500")]);
    world.topics.0.insert("orders".into(), (common::ORDERS, 2));
    let mut player = Player { world, ids: BTreeMap::new(), asked: BTreeMap::new() };
    let mut answers = ANSWERS.lines();
    let mut versions: BTreeMap<String, i16> = BTreeMap::new();
    for line in SCRIPT.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[0] {
            "pass" => player.world.pass(Duration::from_millis(words[1].parse().expect("milliseconds"))),
            "wait" => {
                let told = format!("{}: {}", words[1], player.wait(words[1], versions[words[1]]));
                assert_eq!(Some(told.as_str()), answers.next());
            }
            _ => {
                versions.insert(words[0].to_owned(), words[2].parse().expect("a version"));
                player.ask(&words);
            }
        }
    }
    assert_eq!(answers.next(), None);
}
