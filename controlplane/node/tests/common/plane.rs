//! The other end of the link: a dataplane that follows the protocol's rules and keeps logs in memory.

use super::{CLUSTER, LISTENER, NODE};
use base::{LeaderEpoch, ListenerId, Offset, PartitionId, Uuid};
use batch::Batches;
use bytes::{Bytes, BytesMut};
use link::{
    BoundListener, Down, Duty, InternalAppendRefusal, InternalReadRefusal, InternalSlice, Provenance, Removal, Up,
    UpHello, ViewBroker, ViewChange, ViewTopic,
};
use std::collections::{BTreeMap, VecDeque};

#[derive(Debug, Default)]
pub struct Log {
    pub batches: Vec<(Offset, Bytes)>,
    pub end: Offset,
}

#[derive(Debug)]
pub struct Plane {
    pub hello: UpHello,
    pub incarnation: Option<Uuid>,
    pub duties: BTreeMap<PartitionId, Duty>,
    pub removed: Vec<Removal>,
    pub topics: BTreeMap<String, ViewTopic>,
    pub brokers: Vec<ViewBroker>,
    pub configs: Vec<ViewChange>,
    pub logs: BTreeMap<PartitionId, Log>,
    pub answers: BTreeMap<u64, Option<Bytes>>,
    pub producer_ids: Vec<(i64, u32)>,
    /// Everything that was said on this connection.
    pub heard: Vec<Down>,
    pub stop_asked: bool,
    /// Applied duties and views are not acknowledged while this is set.
    pub silent: bool,
    /// Appends are kept and not answered while this is set.
    pub appends_stall: bool,
    parts: BTreeMap<u64, BytesMut>,
    ups: VecDeque<Up>,
    unsaid: VecDeque<Up>,
}

impl Plane {
    pub fn new(run: u128) -> Plane {
        let hello = UpHello {
            protocol_version: link::PROTOCOL_VERSION,
            software_version: "test".into(),
            cluster_id: CLUSTER.into(),
            node_id: NODE,
            directories: vec![Uuid(0x7000)],
            run_id: Uuid(0x9000 + run),
            boot_id: "boot".into(),
            clean_stop: false,
            damaged: false,
            durability_cache: false,
            duties_offset: None,
            view_offset: None,
            listeners: vec![BoundListener {
                id: ListenerId(0),
                name: LISTENER.into(),
                advertised_host: "localhost".into(),
                advertised_port: 9092,
                security_protocol: 0,
            }],
            producer_ids_in_hand: 0,
            cores: 1,
        };
        Plane {
            hello,
            incarnation: None,
            duties: BTreeMap::new(),
            removed: Vec::new(),
            topics: BTreeMap::new(),
            brokers: Vec::new(),
            configs: Vec::new(),
            logs: BTreeMap::new(),
            answers: BTreeMap::new(),
            producer_ids: Vec::new(),
            heard: Vec::new(),
            stop_asked: false,
            silent: false,
            appends_stall: false,
            parts: BTreeMap::new(),
            ups: VecDeque::new(),
            unsaid: VecDeque::new(),
        }
    }

    /// What it says first.
    pub fn hello(&self) -> Up {
        Up::Hello(Box::new(self.hello.clone()))
    }

    /// The same run on a new connection.
    pub fn reconnected(mut self) -> Plane {
        self.hello.producer_ids_in_hand = self.producer_ids.iter().map(|(_, count)| count).sum();
        (self.heard, self.ups, self.unsaid) = (Vec::new(), VecDeque::new(), VecDeque::new());
        self.answers.clear();
        self
    }

    /// Another run on the same data.
    pub fn restarted(self, run: u128) -> Plane {
        let mut again = self.reconnected();
        again.hello.run_id = Uuid(0x9000 + run);
        // What its last run had applied it does not know.
        again.hello.duties_offset = None;
        again.hello.producer_ids_in_hand = 0;
        again.producer_ids.clear();
        again.hello.clean_stop = again.stop_asked;
        again.stop_asked = false;
        again
    }

    pub fn epoch(&self, topic: &str, index: i32) -> LeaderEpoch {
        self.duty(topic, index).leader_epoch
    }

    pub fn duty(&self, topic: &str, index: i32) -> &Duty {
        let found = self.duties.values().find(|duty| duty.topic_name == topic && duty.partition.index.0 == index);
        found.unwrap_or_else(|| panic!("no duty for {topic}-{index}"))
    }

    pub fn work(&mut self) -> Option<Up> {
        if !self.silent {
            self.ups.append(&mut self.unsaid);
        }
        self.ups.pop_front()
    }

    pub fn take(&mut self, down: Down) {
        self.heard.push(down.clone());
        match down {
            Down::Hello(hello) => {
                assert_eq!((hello.cluster_id.as_str(), hello.node_id), (CLUSTER, NODE));
                assert!(self.incarnation.is_none() || self.heard.len() == 1, "hello comes first, once");
                self.incarnation = Some(hello.incarnation);
            }
            Down::Duties(part) => {
                self.check(&part.provenance, self.hello.duties_offset);
                if part.image && self.heard.iter().filter(|d| matches!(d, Down::Duties(_))).count() == 1 {
                    self.duties.clear();
                }
                for duty in part.duties {
                    self.duties.insert(duty.partition, duty);
                }
                for removal in part.removals {
                    let known = self.duties.remove(&removal.partition);
                    assert!(known.is_none_or(|duty| removal.removed_at > duty.created_at), "{removal:?}");
                    self.logs.remove(&removal.partition);
                    self.removed.push(removal);
                }
                if part.last {
                    self.hello.duties_offset = Some(part.provenance.metadata_offset);
                    self.unsaid.push_back(Up::DutiesApplied { metadata_offset: part.provenance.metadata_offset });
                }
            }
            Down::View(part) => {
                self.check(&part.provenance, self.hello.view_offset);
                part.changes.into_iter().for_each(|change| self.take_change(change));
                if part.last {
                    self.hello.view_offset = Some(part.provenance.metadata_offset);
                    self.unsaid.push_back(Up::ViewApplied { metadata_offset: part.provenance.metadata_offset });
                }
            }
            Down::AnswerPart { id, bytes } => self.parts.entry(id).or_default().extend_from_slice(&bytes),
            Down::Answer { id, response } => {
                let begun = self.parts.remove(&id).unwrap_or_default();
                let whole = response.map(|rest| {
                    let mut all = begun;
                    all.extend_from_slice(&rest);
                    all.freeze()
                });
                assert!(self.answers.insert(id, whole).is_none(), "one answer a request");
            }
            Down::InternalAppend(append) => {
                if !self.appends_stall {
                    let result = self.append(append.partition, append.expected_epoch, &append.batches);
                    self.ups.push_back(Up::InternalAppended { id: append.id, result });
                }
            }
            Down::InternalRead(read) => {
                let result = self.read(read.partition, read.expected_epoch, read.offset);
                self.ups.push_back(Up::InternalRead { id: read.id, result });
            }
            Down::ProducerIds { first, count } => self.producer_ids.push((first, count)),
            Down::Stop => {
                self.stop_asked = true;
                self.ups.push_back(Up::Stopped);
            }
            Down::Ping(number) => self.ups.push_back(Up::Pong(number)),
        }
    }

    fn check(&self, provenance: &Provenance, applied: Option<i64>) {
        assert_eq!(provenance.cluster_id, CLUSTER);
        assert!(provenance.caught_up);
        assert!(applied.is_none_or(|applied| provenance.metadata_offset >= applied), "images only get newer");
        assert!(matches!(self.heard.first(), Some(Down::Hello(_))), "hello comes first");
    }

    fn take_change(&mut self, change: ViewChange) {
        match change {
            ViewChange::Topic(topic) => {
                self.topics.insert(topic.name.clone(), topic);
            }
            ViewChange::TopicRemoved(id) => self.topics.retain(|_, topic| topic.id != id),
            ViewChange::Broker(broker) => {
                self.brokers.retain(|known| known.id != broker.id);
                self.brokers.push(broker);
            }
            ViewChange::BrokerRemoved(id) => self.brokers.retain(|known| known.id != id),
            config @ ViewChange::Config { .. } => self.configs.push(config),
            ViewChange::Partitions { .. } | ViewChange::Features { .. } | ViewChange::Controller(_) => {}
        }
    }

    fn append(
        &mut self,
        partition: PartitionId,
        epoch: LeaderEpoch,
        batches: &Bytes,
    ) -> Result<Offset, InternalAppendRefusal> {
        let current = self.leads(partition);
        if current != Some(epoch) {
            return Err(InternalAppendRefusal::OtherEpoch { current });
        }
        let log = self.logs.entry(partition).or_default();
        let base = log.end;
        let (mut records, mut bytes) = (0, BytesMut::from(&batches[..]));
        for view in Batches::new(batches) {
            records += view.expect("a whole batch").last_offset_delta() as u64 + 1;
        }
        // Offset and epoch are stamped, outside the checksum.
        bytes[0..8].copy_from_slice(&base.0.to_be_bytes());
        bytes[12..16].copy_from_slice(&epoch.0.to_be_bytes());
        log.batches.push((base, bytes.freeze()));
        log.end = base.plus(records);
        Ok(base)
    }

    fn leads(&self, partition: PartitionId) -> Option<LeaderEpoch> {
        let duty = self.duties.get(&partition)?;
        (duty.leader == Some(NODE)).then_some(duty.leader_epoch)
    }

    fn read(
        &mut self,
        partition: PartitionId,
        epoch: LeaderEpoch,
        offset: Offset,
    ) -> Result<InternalSlice, InternalReadRefusal> {
        let current = self.leads(partition);
        if current != Some(epoch) {
            return Err(InternalReadRefusal::OtherEpoch { current });
        }
        let log = self.logs.entry(partition).or_default();
        let mut batches = BytesMut::new();
        for (_, bytes) in log.batches.iter().filter(|(base, _)| *base >= offset) {
            batches.extend_from_slice(bytes);
        }
        Ok(InternalSlice { batches: batches.freeze(), log_start: Offset::ZERO, high_watermark: log.end, next: log.end })
    }
}
