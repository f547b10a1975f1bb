//! Rows of the table of traps about groups of the classic protocol, told with raw requests.

use super::Bench;
use crate::raw::Raw;
use crate::{Result, wait};
use bytes::Bytes;
use perf::client::Connection;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use wire::KafkaString;
use wire::messages::join_group_request::JoinGroupRequestProtocol;
use wire::messages::sync_group_request::SyncGroupRequestAssignment;
use wire::messages::{
    FindCoordinatorRequest, HeartbeatRequest, JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest, SyncGroupRequest,
};

type Run = fn(&mut Bench<'_>) -> Result<Value>;

pub const CASES: &[(&str, Run)] =
    &[("trap/silent-after-joining", silent_after_joining), ("trap/live-members-only", live_members_only)];

const PATIENCE: Duration = Duration::from_secs(60);
/// The smallest that the broker's settings allow.
const SESSION: Duration = Duration::from_secs(6);
const JOIN: i16 = 5;
const SYNC: i16 = 3;
const HEARTBEAT: i16 = 3;
const MEMBER_ID_REQUIRED: i16 = 79;
const REBALANCE_IN_PROGRESS: i16 = 27;

fn text(text: &str) -> KafkaString {
    KafkaString::from(text)
}

/// Waits until the coordinator of a group serves.
pub(crate) fn coordinated(raw: &mut Raw, group: &str) -> Result<()> {
    // Kafka answers a heartbeat with 0 while it loads.
    const BUSY: [i64; 4] = [0, 14, 15, 16];
    wait::until("the group's coordinator", PATIENCE, || {
        let find = FindCoordinatorRequest { coordinator_keys: vec![text(group)], ..Default::default() };
        let found = raw.ask(4, &find.into())?;
        if found["answer"]["Coordinators"][0]["ErrorCode"] != 0 {
            return Ok(None);
        }
        let probe = HeartbeatRequest { group_id: text(group), member_id: text("nobody"), ..Default::default() };
        let error = raw.ask(4, &probe.into())?["answer"]["ErrorCode"].as_i64();
        Ok(error.filter(|error| !BUSY.contains(error)).map(|_| ()))
    })
}

/// A member of a group with a connection of its own.
struct Member {
    connection: Connection,
    group: String,
    id: KafkaString,
    metadata: Bytes,
    rebalance: Duration,
}

impl Member {
    fn new(bench: &Bench<'_>, group: &str, metadata: &'static [u8], rebalance: Duration) -> Result<Member> {
        let connection = Connection::open(bench.address(), PATIENCE)?;
        let metadata = Bytes::from_static(metadata);
        Ok(Member { connection, group: group.to_owned(), id: KafkaString::default(), metadata, rebalance })
    }

    fn joining(&self) -> JoinGroupRequest {
        let protocol =
            |name: &str, metadata: Bytes| JoinGroupRequestProtocol { name: text(name), metadata, ..Default::default() };
        JoinGroupRequest {
            group_id: text(&self.group),
            session_timeout_ms: SESSION.as_millis() as i32,
            rebalance_timeout_ms: self.rebalance.as_millis() as i32,
            member_id: self.id.clone(),
            protocol_type: text("consumer"),
            // The chosen protocol is the first that all have; of the other the leader must see nothing.
            protocols: vec![
                protocol("chosen", self.metadata.clone()),
                protocol("other", Bytes::from_static(b"of another protocol")),
            ],
            ..Default::default()
        }
    }

    /// Sends a join without waiting for its answer, which comes when the others have joined.
    fn begin_join(&mut self) -> Result<i32> {
        if self.id.is_empty() {
            let answer = self.connection.call(JOIN, &self.joining())?;
            if answer.error_code != MEMBER_ID_REQUIRED {
                return Err(format!("a join without an id was answered {}", answer.error_code).into());
            }
            self.id = answer.member_id.detached();
        }
        let request = self.joining();
        Ok(self.connection.send(JOIN, &request)?)
    }

    fn end_join(&mut self, correlation: i32) -> Result<JoinGroupResponse> {
        Ok(self.connection.receive::<JoinGroupRequest>(JOIN, correlation)?)
    }

    fn sync(&mut self, generation: i32, members: &[KafkaString]) -> Result<i16> {
        let assignment = |id: &KafkaString| SyncGroupRequestAssignment {
            member_id: id.clone(),
            assignment: Bytes::from_static(b"yours"),
            ..Default::default()
        };
        let request = SyncGroupRequest {
            group_id: text(&self.group),
            generation_id: generation,
            member_id: self.id.clone(),
            assignments: members.iter().map(assignment).collect(),
            ..Default::default()
        };
        Ok(self.connection.call(SYNC, &request)?.error_code)
    }

    fn beat(&mut self, generation: i32) -> Result<i16> {
        let request = HeartbeatRequest {
            group_id: text(&self.group),
            generation_id: generation,
            member_id: self.id.clone(),
            ..Default::default()
        };
        Ok(self.connection.call(HEARTBEAT, &request)?.error_code)
    }

    fn leave(&mut self) -> Result<i16> {
        let request =
            LeaveGroupRequest { group_id: text(&self.group), member_id: self.id.clone(), ..Default::default() };
        Ok(self.connection.call(2, &request)?.error_code)
    }
}

/// Joins both and says which of them leads: the leader is first in the answer.
fn join_both(first: Member, second: Member) -> Result<(Member, Member, JoinGroupResponse)> {
    let (mut first, mut second) = (first, second);
    let mut alone = first.begin_join()?;
    let answer = first.end_join(alone)?;
    // The second one's join makes the first join again.
    let waits = second.begin_join()?;
    wait::until("the rebalance", PATIENCE, || {
        Ok((first.beat(answer.generation_id)? == REBALANCE_IN_PROGRESS).then_some(()))
    })?;
    alone = first.begin_join()?;
    let (one, other) = (first.end_join(alone)?, second.end_join(waits)?);
    let second_leads = other.leader == second.id;
    Ok(if second_leads { (second, first, other) } else { (first, second, one) })
}

/// Two members join, the leader syncs, the other only heartbeats: it is put out when the rebalance's time is over.
fn silent_after_joining(bench: &mut Bench<'_>) -> Result<Value> {
    const REBALANCE: Duration = Duration::from_secs(3);
    let group = bench.name("silent");
    coordinated(&mut bench.raw(), &group)?;
    let first = Member::new(bench, &group, b"first", REBALANCE)?;
    let second = Member::new(bench, &group, b"second", REBALANCE)?;
    let (mut leader, mut silent, joined) = join_both(first, second)?;
    let began = Instant::now();
    let members: Vec<KafkaString> = joined.members.iter().map(|member| member.member_id.clone()).collect();
    let synced = leader.sync(joined.generation_id, &members)?;
    let mut while_it_waits = 0;
    let put_out = wait::until("the silent member to be put out", PATIENCE, || {
        // Both are alive as far as their heartbeats tell.
        leader.beat(joined.generation_id)?;
        let its = silent.beat(joined.generation_id)?;
        while_it_waits = while_it_waits.max(i32::from(its == 0));
        let is_out = its != 0 && its != REBALANCE_IN_PROGRESS;
        // What the leader is told is asked behind it: the other may have been put out since the leader's last.
        Ok(if is_out { Some((leader.beat(joined.generation_id)?, its)) } else { None })
    })?;
    let took = began.elapsed();
    let again = leader.begin_join()?;
    let rejoined = leader.end_join(again)?;
    let alone: Vec<bool> = rejoined.members.iter().map(|member| member.member_id == leader.id).collect();
    let again = leader.sync(rejoined.generation_id, &[leader.id.clone()])?;
    leader.leave()?;
    Ok(json!({
        "synced": synced,
        "its heartbeats were good": while_it_waits,
        "told to the leader and to it": [put_out.0, put_out.1],
        "not before its time": took >= REBALANCE - Duration::from_millis(500),
        "long before the session's": took < SESSION,
        "the leader alone": alone,
        "and stable": again,
    }))
}

/// A member dies without a word: after its session the leader's next join lists whoever is left, with its own metadata.
fn live_members_only(bench: &mut Bench<'_>) -> Result<Value> {
    const REBALANCE: Duration = Duration::from_secs(20);
    let group = bench.name("living");
    coordinated(&mut bench.raw(), &group)?;
    let first = Member::new(bench, &group, b"the one's own bytes", REBALANCE)?;
    let second = Member::new(bench, &group, b"the other's own bytes", REBALANCE)?;
    let (mut leader, mut other, joined) = join_both(first, second)?;
    let told = |response: &JoinGroupResponse| {
        let mut told: Vec<String> =
            response.members.iter().map(|member| String::from_utf8_lossy(&member.metadata).into_owned()).collect();
        told.sort();
        told
    };
    let both = told(&joined);
    let members: Vec<KafkaString> = joined.members.iter().map(|member| member.member_id.clone()).collect();
    let synced = (leader.sync(joined.generation_id, &members)?, other.sync(joined.generation_id, &[])?);
    // The leader dies: who is left must lead, and see nothing of it.
    let dead = leader.id.clone();
    drop(leader);
    let began = Instant::now();
    wait::until("the dead member's end", PATIENCE, || {
        Ok((other.beat(joined.generation_id)? == REBALANCE_IN_PROGRESS).then_some(()))
    })?;
    let expired = began.elapsed() + Duration::from_secs(1) >= SESSION;
    let again = other.begin_join()?;
    let rejoined = other.end_join(again)?;
    let own = String::from_utf8_lossy(&other.metadata).into_owned();
    let left: Vec<bool> = told(&rejoined).iter().map(|metadata| *metadata == own).collect();
    other.leave()?;
    Ok(json!({
        "both": both,
        "synced": [synced.0, synced.1],
        "after its session": expired,
        "left": left,
        "leads": rejoined.leader == other.id && rejoined.leader != dead,
        "protocol": rejoined.protocol_name.as_deref(),
    }))
}
