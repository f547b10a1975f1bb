//! A classic group: its members, its state, and the rules between them. Time, timers and answers are its callers'.

use super::member::{Member, Protocol};
use crate::place::java_hash;
use base::WallMillis;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use wire::messages::join_group_request::JoinGroupRequestProtocol;
use wire::messages::join_group_response::JoinGroupResponseMember;
use wire::messages::{ConsumerProtocolSubscription, GroupMetadataValue};
use wire::{Decoder, ErrorCode, KafkaString, Message};

/// The protocol type of consumers: the only one whose metadata the coordinator looks into.
pub(crate) const CONSUMER: &str = "consumer";

/// Kafka also has Dead; here a group that is gone is not in the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Empty,
    Preparing(Preparing),
    Completing,
    Stable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Preparing {
    /// The group was empty: members are given time to come together, and more when one comes (KIP-134).
    Initial { joined_since: bool, delay: Duration, remaining: Duration },
    /// Members are called back.
    Again,
}

impl State {
    /// Kafka's name.
    pub fn name(self) -> &'static str {
        match self {
            State::Empty => "Empty",
            State::Preparing(_) => "PreparingRebalance",
            State::Completing => "CompletingRebalance",
            State::Stable => "Stable",
        }
    }

    fn may_follow(self, before: State) -> bool {
        match self {
            State::Preparing(_) => !matches!(before, State::Preparing(_)),
            State::Completing | State::Empty => matches!(before, State::Preparing(_)),
            State::Stable => before == State::Completing,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ClassicGroup {
    pub id: KafkaString,
    state: State,
    /// Unknown where the group comes from a record before version 2.
    pub since: Option<WallMillis>,
    pub protocol_type: Option<KafkaString>,
    pub protocol: Option<KafkaString>,
    pub generation: i32,
    pub leader: Option<KafkaString>,
    members: BTreeMap<KafkaString, Member>,
    /// Member ids by instance id.
    instances: BTreeMap<KafkaString, KafkaString>,
    /// Ids given out that have not been used to join yet (KIP-394).
    pub pending_joins: BTreeSet<KafkaString>,
    /// Members told of the generation that have not asked for their assignment.
    pub pending_syncs: BTreeSet<KafkaString>,
    /// How many members know each protocol.
    supported: BTreeMap<KafkaString, usize>,
    awaiting_join: usize,
    /// Topics of all members, where the group is of consumers that can be understood.
    pub subscribed: Option<BTreeSet<KafkaString>>,
}

impl ClassicGroup {
    pub fn new(id: KafkaString, since: WallMillis) -> ClassicGroup {
        ClassicGroup {
            id,
            state: State::Empty,
            since: Some(since),
            protocol_type: None,
            protocol: None,
            generation: 0,
            leader: None,
            members: BTreeMap::new(),
            instances: BTreeMap::new(),
            pending_joins: BTreeSet::new(),
            pending_syncs: BTreeSet::new(),
            supported: BTreeMap::new(),
            awaiting_join: 0,
            subscribed: None,
        }
    }

    pub fn from_record(id: KafkaString, value: GroupMetadataValue) -> ClassicGroup {
        let mut group = ClassicGroup::new(id, WallMillis(value.current_state_timestamp));
        group.state = if value.members.is_empty() { State::Empty } else { State::Stable };
        group.since = group.since.filter(|since| since.0 != -1);
        group.protocol_type = Some(value.protocol_type).filter(|name| !name.is_empty());
        group.protocol = value.protocol;
        group.generation = value.generation;
        group.leader = value.leader;
        for member in value.members {
            let member = Member::from_record(member, group.protocol.as_ref());
            group.insert(member);
        }
        group.subscribed = group.subscriptions();
        group
    }

    /// What is written of the group, with these assignments.
    pub fn to_record(&self, mut assignment: impl FnMut(&Member) -> Bytes) -> GroupMetadataValue {
        let protocol = self.protocol.clone().unwrap_or_default();
        GroupMetadataValue {
            protocol_type: self.protocol_type.clone().unwrap_or_default(),
            generation: self.generation,
            protocol: self.protocol.clone(),
            leader: self.leader.clone(),
            current_state_timestamp: self.since.map_or(-1, |since| since.0),
            members: self.members().map(|member| member.to_record(&protocol, assignment(member))).collect(),
            ..Default::default()
        }
    }

    pub fn state(&self) -> State {
        self.state
    }

    pub fn transition_to(&mut self, state: State, now: WallMillis) {
        assert!(state.may_follow(self.state), "{:?} does not follow {:?}", state, self.state);
        tracing::debug!(group = %self.id, generation = self.generation, from = self.state.name(), to = state.name());
        self.state = state;
        self.since = Some(now);
    }

    /// The details of preparing change; the state does not.
    pub fn set_preparing(&mut self, preparing: Preparing) {
        assert!(matches!(self.state, State::Preparing(_)));
        self.state = State::Preparing(preparing);
    }

    pub fn is_preparing(&self) -> bool {
        matches!(self.state, State::Preparing(_))
    }

    pub fn is_consumers(&self) -> bool {
        self.protocol_type.as_ref().is_some_and(|name| *name == CONSUMER)
    }

    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    pub fn member(&self, id: &str) -> Option<&Member> {
        self.members.get(id)
    }

    /// For what does not touch protocols, waiting to join or the instance: those have methods of their own.
    pub fn member_mut(&mut self, id: &str) -> Option<&mut Member> {
        self.members.get_mut(id)
    }

    pub fn members_count(&self) -> usize {
        self.members.len()
    }

    pub fn awaiting_join_count(&self) -> usize {
        self.awaiting_join
    }

    pub fn is_leader(&self, id: &str) -> bool {
        self.leader.as_ref().is_some_and(|leader| *leader == *id)
    }

    pub fn member_of_instance(&self, instance: &str) -> Option<&KafkaString> {
        self.instances.get(instance)
    }

    /// Nothing of it is worth keeping: no record names it, nobody is in it.
    pub fn is_bare(&self) -> bool {
        self.state == State::Empty
            && self.generation == 0
            && self.protocol_type.is_none()
            && self.pending_joins.is_empty()
            && self.members.is_empty()
    }

    pub fn insert(&mut self, member: Member) {
        if let Some(instance) = &member.instance {
            let before = self.instances.insert(instance.clone(), member.id.clone());
            assert!(before.is_none(), "an instance is one member");
        }
        self.leader.get_or_insert_with(|| member.id.clone());
        self.count_protocols(&member.protocols, true);
        self.awaiting_join += usize::from(member.awaiting_join.is_some());
        self.pending_joins.remove(&member.id);
        let before = self.members.insert(member.id.clone(), member);
        assert!(before.is_none(), "a member joins once");
    }

    pub fn remove(&mut self, id: &str) -> Option<Member> {
        let removed = self.members.remove(id);
        if let Some(member) = &removed {
            self.count_protocols(&member.protocols, false);
            self.awaiting_join -= usize::from(member.awaiting_join.is_some());
            if let Some(instance) = &member.instance {
                self.instances.remove(instance);
            }
        }
        if self.is_leader(id) {
            self.leader = self.members.keys().next().cloned();
        }
        self.pending_joins.remove(id);
        self.pending_syncs.remove(id);
        removed
    }

    fn count_protocols(&mut self, protocols: &[Protocol], more: bool) {
        for protocol in protocols {
            let count = self.supported.entry(protocol.name.clone()).or_default();
            *count = if more { *count + 1 } else { count.saturating_sub(1) };
            if *count == 0 {
                self.supported.remove(&protocol.name);
            }
        }
    }

    pub fn set_protocols(&mut self, id: &str, protocols: Vec<Protocol>) {
        let Some(member) = self.members.get_mut(id) else { return };
        let before = std::mem::replace(&mut member.protocols, protocols);
        let after = member.protocols.clone();
        self.count_protocols(&before, false);
        self.count_protocols(&after, true);
    }

    /// Lets a member wait, or takes the one out that waited.
    pub fn set_awaiting_join(&mut self, id: &str, asker: Option<crate::answer::Asker>) -> Option<crate::answer::Asker> {
        let member = self.members.get_mut(id)?;
        self.awaiting_join += usize::from(asker.is_some());
        let before = std::mem::replace(&mut member.awaiting_join, asker);
        self.awaiting_join -= usize::from(before.is_some());
        before
    }

    /// A static member comes back under a new id and takes the old one's place.
    pub fn rename_static(&mut self, instance: &KafkaString, old: &str, new: &KafkaString) {
        let mut member = self.members.remove(old).expect("the instance's member is in the group");
        assert!(member.awaiting_join.is_none() && member.awaiting_sync.is_none(), "who waited has been answered");
        member.id = new.clone();
        // As in Kafka, the new one is not waited for: it is neither new nor due to sync.
        member.is_new = false;
        self.members.insert(new.clone(), member);
        if self.is_leader(old) {
            self.leader = Some(new.clone());
        }
        if self.pending_syncs.remove(old) {
            self.pending_syncs.insert(new.clone());
        }
        self.instances.insert(instance.clone(), new.clone());
    }

    pub fn all_have_joined(&self) -> bool {
        self.members.len() == self.awaiting_join && self.pending_joins.is_empty()
    }

    /// The longest that any member needs.
    pub fn rebalance_timeout_ms(&self) -> i32 {
        self.members.values().map(|member| member.rebalance_timeout_ms).max().unwrap_or(0)
    }

    /// A leader that has not joined again gives way to one that has. False where nobody has, or nobody is left.
    pub fn elect_joined_leader(&mut self) -> bool {
        let Some(leader) = self.leader.as_ref().and_then(|leader| self.members.get(leader)) else { return false };
        if leader.awaiting_join.is_some() {
            return true;
        }
        match self.members.values().find(|member| member.awaiting_join.is_some()) {
            Some(joined) => {
                self.leader = Some(joined.id.clone());
                true
            }
            None => false,
        }
    }

    pub fn supports(&self, protocol_type: &str, offered: &[JoinGroupRequestProtocol]) -> bool {
        if self.state == State::Empty {
            return !protocol_type.is_empty() && !offered.is_empty();
        }
        let everyone = self.members.len();
        self.protocol_type.as_ref().is_some_and(|own| *own == *protocol_type)
            && offered.iter().any(|offer| self.supported.get(&offer.name).copied().unwrap_or(0) == everyone)
    }

    /// Each member votes for the first of its protocols that all know. Of equal ones Java's hash table decides.
    pub fn select_protocol(&self) -> Option<KafkaString> {
        let everyone = self.members.len();
        let known_by_all = |name: &KafkaString| self.supported.get(name) == Some(&everyone);
        let mut votes: Vec<(&KafkaString, usize)> = Vec::new();
        for member in self.members.values() {
            let vote = member.protocols.iter().map(|protocol| &protocol.name).find(|name| known_by_all(name))?;
            match votes.iter_mut().find(|(name, _)| *name == vote) {
                Some((_, count)) => *count += 1,
                None => votes.push((vote, 1)),
            }
        }
        votes.sort_by_key(|(name, _)| bucket(name));
        let most = votes.iter().map(|(_, count)| *count).max()?;
        votes.iter().find(|(_, count)| *count == most).map(|(name, _)| (*name).clone())
    }

    /// Begins the next generation, with members or without.
    pub fn begin_generation(&mut self, now: WallMillis) {
        self.generation = self.generation.wrapping_add(1);
        self.protocol = self.select_protocol();
        self.subscribed = self.subscriptions();
        self.transition_to(if self.members.is_empty() { State::Empty } else { State::Completing }, now);
        self.pending_syncs.clear();
    }

    /// Topics that the members name, read in the first version of their metadata, which all later ones begin with.
    pub fn subscriptions(&self) -> Option<BTreeSet<KafkaString>> {
        if !self.is_consumers() {
            return None;
        }
        if self.members.is_empty() {
            return Some(BTreeSet::new());
        }
        let protocol = self.protocol.as_ref()?;
        let mut topics = BTreeSet::new();
        for member in self.members.values() {
            let metadata = member.metadata(protocol)?;
            let mut decoder = Decoder::new(metadata);
            if decoder.i16().ok()? < 0 {
                return None;
            }
            let subscription = ConsumerProtocolSubscription::decode(&mut decoder, 0).ok()?;
            topics.extend(subscription.topics);
        }
        Some(topics)
    }

    pub fn is_subscribed_to(&self, topic: &str) -> bool {
        self.subscribed.as_ref().map_or(self.is_consumers(), |topics| topics.contains(topic))
    }

    /// What the leader is told of everyone.
    pub fn members_for_leader(&self) -> Vec<JoinGroupResponseMember> {
        let protocol = self.protocol.as_deref().unwrap_or("");
        let tell = |member: &Member| JoinGroupResponseMember {
            member_id: member.id.clone(),
            group_instance_id: member.instance.clone(),
            metadata: member.metadata(protocol).cloned().unwrap_or_default(),
            ..Default::default()
        };
        self.members.values().map(tell).collect()
    }

    pub fn validate_member(&self, id: &str, instance: Option<&KafkaString>) -> Result<(), ErrorCode> {
        if let Some(instance) = instance {
            match self.instances.get(instance) {
                None => return Err(ErrorCode::UnknownMemberId),
                Some(known) if *known != *id => return Err(ErrorCode::FencedInstanceId),
                Some(_) => {}
            }
        }
        if self.members.contains_key(id) { Ok(()) } else { Err(ErrorCode::UnknownMemberId) }
    }
}

/// Where a small `java.util.HashMap` keeps a string, and so when it is visited.
fn bucket(name: &str) -> u32 {
    let hash = java_hash(name) as u32;
    (hash ^ (hash >> 16)) & 15
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [State; 4] = [State::Empty, State::Preparing(Preparing::Again), State::Completing, State::Stable];

    #[test]
    fn states_follow_each_other_as_in_kafka() {
        // Rows: from; columns: to.
        let allowed = [
            [false, true, false, false],
            [true, false, true, false],
            [false, true, false, true],
            [false, true, false, false],
        ];
        for (from, row) in STATES.iter().zip(allowed) {
            for (to, allowed) in STATES.iter().zip(row) {
                assert_eq!(to.may_follow(*from), allowed, "{from:?} to {to:?}");
            }
        }
    }

    fn member(id: &str, protocols: &[&str]) -> Member {
        Member {
            id: id.into(),
            instance: None,
            client_id: "c".into(),
            client_host: "/h".into(),
            rebalance_timeout_ms: 1,
            session_timeout_ms: 1,
            protocols: protocols.iter().map(|name| Protocol { name: (*name).into(), metadata: Bytes::new() }).collect(),
            assignment: Bytes::new(),
            awaiting_join: None,
            awaiting_sync: None,
            is_new: false,
        }
    }

    fn group_of(members: &[(&str, &[&str])]) -> ClassicGroup {
        let mut group = ClassicGroup::new("g".into(), WallMillis(0));
        for (id, protocols) in members {
            group.insert(member(id, protocols));
        }
        group
    }

    #[test]
    fn the_protocol_with_most_votes_of_those_all_know_wins() {
        let select = |members: &[(&str, &[&str])]| group_of(members).select_protocol().map(|name| name.to_string());
        assert_eq!(select(&[("a", &["x", "y"]), ("b", &["y", "x"]), ("c", &["y", "x"])]).as_deref(), Some("y"));
        assert_eq!(select(&[("a", &["x", "y"]), ("b", &["y"])]).as_deref(), Some("y"));
        assert_eq!(select(&[("a", &["x"]), ("b", &["y"])]), None);
        assert_eq!(select(&[]), None);
        // One vote each: what Apache Kafka chooses, since its table visits it first.
        assert_eq!(
            select(&[("a", &["roundrobin", "range"]), ("b", &["range", "roundrobin"])]).as_deref(),
            Some("range")
        );
        let sticky: &[&str] = &["sticky", "cooperative-sticky"];
        assert_eq!(select(&[("a", &["cooperative-sticky", "sticky"]), ("b", sticky)]).as_deref(), Some("sticky"));
    }

    #[test]
    fn counts_follow_members_that_come_change_and_go() {
        let mut group = group_of(&[("a", &["x", "y"]), ("b", &["y"])]);
        assert_eq!(group.leader.as_deref(), Some("a"));
        group.set_protocols("b", vec![Protocol { name: "x".into(), metadata: Bytes::new() }]);
        assert_eq!(group.select_protocol().as_deref(), Some("x"));
        let asker = crate::answer::Asker { token: crate::api::RequestToken(1), version: 9 };
        assert_eq!((group.set_awaiting_join("b", Some(asker)), group.awaiting_join_count()), (None, 1));
        assert_eq!((group.set_awaiting_join("b", Some(asker)), group.awaiting_join_count()), (Some(asker), 1));
        assert!(group.elect_joined_leader() && group.is_leader("b"));
        group.remove("b");
        assert_eq!((group.awaiting_join_count(), group.leader.as_deref()), (0, Some("a")));
        assert_eq!(group.select_protocol().as_deref(), Some("x"));
        assert!(!group.elect_joined_leader());
        group.remove("a");
        assert_eq!((group.leader.clone(), group.is_bare()), (None, true));
    }

    #[test]
    fn topics_of_consumers_are_known_only_if_all_can_be_read() {
        let mut group = group_of(&[("a", &["x"])]);
        assert_eq!(group.subscriptions(), None);
        group.protocol_type = Some(CONSUMER.into());
        group.protocol = Some("x".into());
        assert_eq!(group.subscriptions(), None, "no metadata at all");
        assert!(!group.is_bare());
        let metadata =
            Bytes::from_static(b"\x00\x05\x00\x00\x00\x01\x00\x01t\xff\xff\xff\xff and what is new in version 5");
        group.set_protocols("a", vec![Protocol { name: "x".into(), metadata }]);
        assert_eq!(group.subscriptions(), Some(BTreeSet::from(["t".into()])));
        group.subscribed = None;
        assert!(group.is_subscribed_to("anything"), "who cannot be read may read anything");
    }
}
