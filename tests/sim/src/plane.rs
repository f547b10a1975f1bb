//! The control plane as far as the link shows it: a metadata log of its own that survives everything, topics that come,
//! change and go, duties and views in parts, answers to forwarded requests; it dies and comes back at random.

use crate::context::Trace;
use crate::model::{Floor, Model, Rules};
use base::*;
use bytes::{Bytes, BytesMut};
use link::*;
use net::sim::{PeerState, SimNetwork, SimPeer};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use wire::{ApiKey, ResponseKind};

pub const CLUSTER: &str = "AAAAAAAAAAAAAAAAAAAAAQ";
pub const NODE: NodeId = NodeId(1);
pub const DIRECTORY: Uuid = Uuid(99);

#[derive(Clone, Debug)]
pub struct Topic {
    pub name: String,
    created_at: i64,
    config: Vec<(String, String)>,
    /// Leader and partition epoch by index; both rise together.
    epochs: Vec<i32>,
    led: bool,
}

/// The metadata, as a fold of its log.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    offset: i64,
    topics: BTreeMap<TopicId, Topic>,
    deleted: BTreeMap<TopicId, (Topic, i64)>,
}

impl Cluster {
    pub fn partitions(&self) -> Vec<(PartitionId, String)> {
        let of = |(id, topic): (&TopicId, &Topic)| {
            let (topic_id, name) = (*id, topic.name.clone());
            (0..topic.epochs.len() as i32)
                .map(move |index| (PartitionId { topic: topic_id, index: PartitionIndex(index) }, name.clone()))
        };
        self.topics.iter().flat_map(of).collect()
    }

    pub fn name_of(&self, id: TopicId) -> String {
        let deleted = self.deleted.get(&id).map(|(topic, _)| topic);
        self.topics.get(&id).or(deleted).map(|topic| topic.name.clone()).expect("a topic of ours")
    }

    /// It rises with every change.
    pub fn offset(&self) -> i64 {
        self.offset
    }

    pub fn topics(&self) -> usize {
        self.topics.len()
    }

    fn provenance(&self) -> Provenance {
        Provenance { cluster_id: CLUSTER.into(), quorum_epoch: 1, metadata_offset: self.offset, caught_up: true }
    }

    fn duties(&self, id: TopicId) -> Vec<Duty> {
        let topic = &self.topics[&id];
        let duty = |(index, epoch): (usize, &i32)| Duty {
            partition: PartitionId { topic: id, index: PartitionIndex(index as i32) },
            topic_name: topic.name.clone(),
            created_at: topic.created_at,
            leader: topic.led.then_some(NODE),
            leader_epoch: LeaderEpoch(*epoch),
            partition_epoch: PartitionEpoch(*epoch),
            replicas: vec![NODE],
            isr: vec![NODE],
            recovering: false,
            config: topic.config.clone(),
        };
        topic.epochs.iter().enumerate().map(duty).collect()
    }

    fn view(&self, id: TopicId) -> ViewTopic {
        let topic = &self.topics[&id];
        let partition = |(index, epoch): (usize, &i32)| ViewPartition {
            index: PartitionIndex(index as i32),
            leader: topic.led.then_some(NODE),
            leader_epoch: LeaderEpoch(*epoch),
            partition_epoch: PartitionEpoch(*epoch),
            replicas: vec![NODE],
            isr: vec![NODE],
            eligible_leader_replicas: vec![],
            last_known_elr: vec![],
            offline: vec![],
        };
        let partitions = topic.epochs.iter().enumerate().map(partition).collect();
        ViewTopic { id, name: topic.name.clone(), partitions }
    }
}

#[derive(Debug)]
pub struct Plane {
    pub cluster: Cluster,
    peer: Option<SimPeer>,
    framer: Framer,
    hello: Option<Box<UpHello>>,
    run: Option<Uuid>,
    incarnation: u128,
    next_topic: u128,
    next_producer_id: i64,
    answers: VecDeque<(Monotonic, Down)>,
    /// Partitions that the dataplane has said to be in force: a later run must still hold them.
    in_force: BTreeSet<PartitionId>,
    duties_told: VecDeque<(i64, Vec<PartitionId>)>,
    held: BTreeSet<PartitionId>,
    /// What clients had been told when the link was opened: what is held is no less.
    floors: BTreeMap<PartitionId, Floor>,
    pub retry_at: Monotonic,
    ping: u64,
    pings: VecDeque<(u64, Monotonic)>,
    /// What the next hello of a new run must say.
    pub expect_clean: Option<bool>,
    /// The dataplane said that its directory failed.
    pub directory_failed: bool,
    /// The run at hand was told to stop.
    stop_asked: bool,
}

impl Plane {
    pub fn new() -> Plane {
        Plane {
            cluster: Cluster { offset: 10, ..Cluster::default() },
            peer: None,
            framer: Framer::default(),
            hello: None,
            run: None,
            incarnation: 1,
            next_topic: 1 << 64,
            next_producer_id: 1000,
            answers: VecDeque::new(),
            in_force: BTreeSet::new(),
            duties_told: VecDeque::new(),
            held: BTreeSet::new(),
            floors: BTreeMap::new(),
            retry_at: Monotonic::ZERO,
            ping: 0,
            pings: VecDeque::new(),
            expect_clean: None,
            directory_failed: false,
            stop_asked: false,
        }
    }

    pub fn is_up(&self) -> bool {
        self.hello.is_some()
    }

    /// Everything that was told is in force.
    pub fn is_settled(&self) -> bool {
        self.is_up() && self.duties_told.is_empty()
    }

    /// The process dies; it comes back after `away`.
    pub fn die(&mut self, now: Monotonic, away: Duration) {
        self.peer = None;
        self.hello = None;
        self.framer = Framer::default();
        self.answers.clear();
        self.duties_told.clear();
        self.pings.clear();
        self.held.clear();
        self.retry_at = now + away;
    }

    /// A power loss under the weaker durability may take partitions that were in force.
    pub fn forget_in_force(&mut self) {
        self.in_force.clear();
    }

    pub fn step(&mut self, now: Now, random: &mut Random, network: &SimNetwork, model: &mut Model, trace: &mut Trace) {
        if self.peer.is_none() {
            if now.monotonic < self.retry_at {
                return;
            }
            self.peer = network.connect_local(std::path::Path::new(crate::node::LINK));
            self.retry_at = now.monotonic + Duration::from_millis(5);
            self.floors = model.live().into_iter().map(|id| (id, model.floor(id))).collect();
        }
        let Some(peer) = &mut self.peer else { return };
        let bytes = peer.read();
        let over = peer.state() != PeerState::Open;
        trace.bytes(&bytes);
        self.framer.push(&bytes);
        while let Some(up) = self.framer.poll_message::<Up>().expect("the dataplane speaks the link's language") {
            self.on_up(now, random, model, up);
        }
        if over {
            return self.die(now.monotonic, Duration::from_millis(1 + random.below(20)));
        }
        while let Some((_, down)) = self.answers.front().filter(|(at, _)| *at <= now.monotonic).cloned() {
            self.answers.pop_front();
            self.say(&down);
        }
    }

    fn say(&mut self, message: &Down) {
        let mut bytes = Vec::new();
        frame::encode(message, &mut bytes);
        if let Some(peer) = &mut self.peer {
            peer.write(&bytes);
        }
    }

    fn on_up(&mut self, now: Now, random: &mut Random, model: &mut Model, up: Up) {
        match up {
            Up::Hello(hello) => self.on_hello(random, model, hello),
            Up::Held { partitions, last } => self.on_held(random, model, partitions, last),
            Up::Forward(forward) => {
                model.stats.forwarded += 1;
                let at = now.monotonic + Duration::from_micros(random.below(30_000));
                let at = self.answers.back().map_or(at, |(last, _)| at.max(*last));
                self.answers.push_back((at, Down::Answer { id: forward.id, response: answer(&forward) }));
            }
            Up::DutiesApplied { metadata_offset } => {
                let told = self.duties_told.iter().position(|(offset, _)| *offset == metadata_offset);
                let told = told.unwrap_or_else(|| panic!("duties up to {metadata_offset} were never told"));
                for (_, partitions) in self.duties_told.drain(..=told) {
                    self.in_force.extend(partitions);
                }
                self.in_force.retain(|id| self.cluster.topics.contains_key(&id.topic));
            }
            Up::ViewApplied { metadata_offset } => assert!(metadata_offset <= self.cluster.offset),
            Up::ProducerIdsWanted => self.give_producer_ids(random),
            Up::DirectoryFailed { directory, .. } => {
                assert_eq!(directory, DIRECTORY);
                self.directory_failed = true;
            }
            // Its last word may be read when the process is gone already.
            Up::Stopped => assert!(self.stop_asked, "nobody asked the node to stop"),
            Up::Pong(number) => {
                let (wanted, _) = self.pings.pop_front().expect("a ping came before");
                assert_eq!(number, wanted, "pings are answered in their order");
            }
            Up::ConnectionClosed(_) => {}
            other => panic!("the dataplane says {other:?}"),
        }
    }

    fn on_hello(&mut self, random: &mut Random, model: &mut Model, hello: Box<UpHello>) {
        assert_eq!((hello.cluster_id.as_str(), hello.node_id), (CLUSTER, NODE));
        assert!(!hello.damaged || model.losses > 0, "damage is reported and nothing was damaged");
        assert!(hello.duties_offset.is_none_or(|offset| offset <= self.cluster.offset));
        assert!(hello.view_offset.is_none_or(|offset| offset <= self.cluster.offset));
        if self.run != Some(hello.run_id) {
            self.run = Some(hello.run_id);
            self.stop_asked = false;
            if let Some(clean) = self.expect_clean.take() {
                assert_eq!(hello.clean_stop, clean, "the hello says how the last run ended");
            }
            // A run never continues an epoch.
            self.cluster.offset += 1;
            for topic in self.cluster.topics.values_mut() {
                topic.epochs.iter_mut().for_each(|epoch| *epoch += 1);
            }
        }
        self.hello = Some(hello);
        self.say(&Down::Hello(DownHello {
            protocol_version: PROTOCOL_VERSION,
            cluster_id: CLUSTER.into(),
            node_id: NODE,
            incarnation: Uuid(self.incarnation),
        }));
        let topics: Vec<TopicId> = self.cluster.topics.keys().copied().collect();
        self.tell(random, true, &topics, vec![]);
        self.give_producer_ids(random);
    }

    fn give_producer_ids(&mut self, random: &mut Random) {
        let count = 1 + random.below(1000) as u32;
        self.say(&Down::ProducerIds { first: self.next_producer_id, count });
        self.next_producer_id += i64::from(count);
    }

    /// Everything that was in force and that nobody removed is held still, whole.
    fn on_held(&mut self, random: &mut Random, model: &mut Model, partitions: Vec<HeldPartition>, last: bool) {
        for held in partitions {
            let id = held.partition;
            assert!(self.held.insert(id), "{id} is held twice");
            let floor = self.floors.get(&id).copied().unwrap_or_default();
            let known = model.is_deleted(id) || (held.end.0 >= floor.watermark && held.log_start.0 >= floor.log_start);
            assert!(known, "{held:?} is not what was told: {floor:?}");
        }
        if !last {
            return;
        }
        for id in &self.in_force {
            let live = self.cluster.topics.contains_key(&id.topic);
            // Until something was appended to it, the next image creates it anew.
            let empty = self.floors.get(id).is_none_or(|floor| floor.watermark == 0);
            assert!(!live || empty || self.held.contains(id), "{id} was in force and is not held");
        }
        let gone = |id: &PartitionId| self.cluster.deleted.get(&id.topic).map(|(_, at)| (*id, *at));
        let removals: Vec<Removal> = self
            .held
            .iter()
            .filter_map(gone)
            .map(|(partition, removed_at)| Removal { partition, removed_at })
            .collect();
        self.held.clear();
        if !removals.is_empty() {
            self.cluster.offset += 1;
            self.tell(random, false, &[], removals);
        }
    }

    /// States the topics, or what changed of them, in parts of any size.
    fn tell(&mut self, random: &mut Random, image: bool, topics: &[TopicId], removals: Vec<Removal>) {
        let Some(hello) = self.hello.clone() else { return };
        let provenance = self.cluster.provenance();
        let duties: Vec<Duty> = topics.iter().flat_map(|id| self.cluster.duties(*id)).collect();
        let told = duties.iter().map(|duty| duty.partition).collect();
        self.duties_told.push_back((self.cluster.offset, told));
        let piece = 1 + random.below(8) as usize;
        let mut pieces: Vec<Vec<Duty>> = duties.chunks(piece).map(<[Duty]>::to_vec).collect();
        let mut rest = pieces.pop().unwrap_or_default();
        for duties in pieces {
            let provenance = provenance.clone();
            let part = DutiesPart { provenance, image, last: false, duties, removals: vec![] };
            self.say(&Down::Duties(Box::new(part)));
        }
        let gone: BTreeSet<TopicId> = removals.iter().map(|removal| removal.partition.topic).collect();
        let duties = std::mem::take(&mut rest);
        let part = DutiesPart { provenance: provenance.clone(), image, last: true, duties, removals };
        let listener = &hello.listeners[0];
        let mut changes: Vec<ViewChange> = Vec::new();
        if image {
            let host = (listener.name.clone(), listener.advertised_host.clone(), listener.advertised_port, 0);
            changes.push(ViewChange::Broker(ViewBroker {
                id: NODE,
                epoch: BrokerEpoch(1),
                incarnation: Uuid(self.incarnation),
                rack: None,
                fenced: false,
                in_controlled_shutdown: false,
                listeners: vec![host],
            }));
        }
        changes.extend(topics.iter().map(|id| ViewChange::Topic(self.cluster.view(*id))));
        changes.extend(gone.into_iter().map(ViewChange::TopicRemoved));
        let duties = Down::Duties(Box::new(part));
        let view = Down::View(Box::new(ViewPart { provenance, image, last: true, changes }));
        // The two are independent: either may come first.
        let order = if random.chance(1, 2) { [duties, view] } else { [view, duties] };
        order.iter().for_each(|message| self.say(message));
    }

    /// Creates a topic.
    pub fn create(&mut self, random: &mut Random, model: &mut Model, config: &[(&str, String)]) {
        self.cluster.offset += 1 + random.below(3) as i64;
        self.next_topic += 1;
        let id = TopicId(Uuid(self.next_topic));
        let name = format!("t{}", self.next_topic - (1 << 64));
        let partitions = 1 + random.below(6) as usize;
        let config: Vec<(String, String)> =
            config.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        let value = |name: &str| config.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        let rules = Rules {
            retention_bytes: value("retention.bytes").and_then(|bytes| bytes.parse().ok()),
            append_time: value("message.timestamp.type") == Some("LogAppendTime"),
        };
        for index in 0..partitions {
            model.add_partition(PartitionId { topic: id, index: PartitionIndex(index as i32) }, rules);
        }
        let created_at = self.cluster.offset;
        let topic = Topic { name, created_at, config, epochs: vec![0; partitions], led: true };
        self.cluster.topics.insert(id, topic);
        self.tell(random, false, &[id], vec![]);
    }

    pub fn delete(&mut self, random: &mut Random, model: &mut Model, pick: u64) {
        let Some(id) = self.pick(pick) else { return };
        self.cluster.offset += 1;
        let removed_at = self.cluster.offset;
        let topic = self.cluster.topics.remove(&id).expect("it was picked");
        let partition = |index| PartitionId { topic: id, index: PartitionIndex(index as i32) };
        let partitions: Vec<PartitionId> = (0..topic.epochs.len()).map(partition).collect();
        partitions.iter().for_each(|partition| model.delete_partition(*partition));
        self.cluster.deleted.insert(id, (topic, removed_at));
        let removals = partitions.into_iter().map(|partition| Removal { partition, removed_at }).collect();
        self.tell(random, false, &[], removals);
    }

    fn pick(&self, pick: u64) -> Option<TopicId> {
        let count = self.cluster.topics.len() as u64;
        (count > 0).then(|| *self.cluster.topics.keys().nth((pick % count) as usize).expect("it is below"))
    }

    /// A topic's partitions are led anew, or by nobody for a while.
    pub fn elect(&mut self, random: &mut Random, pick: u64) {
        let Some(id) = self.pick(pick) else { return };
        self.cluster.offset += 1;
        let topic = self.cluster.topics.get_mut(&id).expect("it was picked");
        topic.epochs.iter_mut().for_each(|epoch| *epoch += 1);
        topic.led = !topic.led || random.chance(1, 2);
        self.tell(random, false, &[id], vec![]);
    }

    /// Every topic has its leader.
    pub fn lead_all(&mut self, random: &mut Random) {
        let unled: Vec<TopicId> =
            self.cluster.topics.iter().filter(|(_, topic)| !topic.led).map(|(id, _)| *id).collect();
        for id in unled {
            self.cluster.offset += 1;
            let topic = self.cluster.topics.get_mut(&id).expect("just found");
            topic.led = true;
            topic.epochs.iter_mut().for_each(|epoch| *epoch += 1);
            self.tell(random, false, &[id], vec![]);
        }
    }

    pub fn ping(&mut self, now: Now) {
        if self.is_up() {
            self.ping += 1;
            self.pings.push_back((self.ping, now.monotonic));
            self.say(&Down::Ping(self.ping));
        }
    }

    pub fn stop(&mut self) {
        self.stop_asked = true;
        self.say(&Down::Stop);
    }

    /// The same metadata under a new connection.
    pub fn say_again(&mut self, random: &mut Random) {
        let topics: Vec<TopicId> = self.cluster.topics.keys().copied().collect();
        self.tell(random, true, &topics, vec![]);
    }
}

/// Header and body of an answer that says little.
fn answer(forward: &Forward) -> Option<Bytes> {
    let api = ApiKey::try_from(forward.api_key).expect("only known requests are forwarded");
    let mut answer = match api {
        ApiKey::ListGroups => ResponseKind::from(wire::messages::ListGroupsResponse::default()),
        ApiKey::DescribeConfigs => ResponseKind::from(wire::messages::DescribeConfigsResponse::default()),
        ApiKey::CreateTopics => ResponseKind::from(wire::messages::CreateTopicsResponse::default()),
        // Only nonsense asks for more: its connection is closed.
        _ => return None,
    };
    if let ResponseKind::DescribeConfigs(answer) = &mut answer {
        answer.throttle_time_ms = forward.correlation_id;
    }
    let mut out = BytesMut::new();
    answer.encode_frame(&mut out, forward.api_version, forward.correlation_id).expect("an answer can be written");
    Some(out.split_off(4).freeze())
}
