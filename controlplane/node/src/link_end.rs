//! This end of the link: what the connected dataplane is, what it was sent and has applied, and its messages.

use crate::held::{Caller, Then};
use crate::node::Node;
use base::{Monotonic, NodeId, Now, PartitionId, Uuid};
use bytes::{Bytes, BytesMut};
use controller::RequestContext;
use link::{ANSWER_BYTES_MAX, Down, Forward, HeldPartition, PROTOCOL_VERSION, Up, UpHello};
use wire::messages::alter_partition_request::{BrokerState, PartitionData, TopicData};
use wire::messages::{AllocateProducerIdsRequest, AllocateProducerIdsResponse, AlterPartitionRequest};
use wire::{ApiKey, ResponseKind};

/// Producer ids in one block of the controller's.
const PRODUCER_ID_BLOCK: u32 = 1_000;
/// Blocks that a dataplane keeps in hand.
const PRODUCER_ID_BLOCKS: u32 = 2;
/// How many strays are named in the log, one by one.
const STRAYS_LOGGED: usize = 10;

/// The dataplane at the other end.
#[derive(Debug)]
pub(crate) struct Dataplane {
    pub hello: UpHello,
    /// It has been told hello and sent its images.
    served: bool,
    /// The metadata offsets of the last duties and view it was sent, and of those it has applied.
    sent: (i64, i64),
    applied: (i64, i64),
    pub last_heard: Monotonic,
    pub pings: u64,
    /// What it holds, while it is being told.
    held: Vec<HeldPartition>,
    held_whole: bool,
    pub strays: usize,
    /// Directories it reported as failed.
    pub failed_directories: Vec<Uuid>,
    /// Clients' requests that came before it was told hello, which is what it hears first. Its credit bounds them.
    early: Vec<Forward>,
}

impl Dataplane {
    fn new(hello: UpHello, now: Monotonic) -> Dataplane {
        Dataplane {
            hello,
            served: false,
            sent: (-1, -1),
            applied: (-1, -1),
            last_heard: now,
            pings: 0,
            held: Vec::new(),
            held_whole: false,
            strays: 0,
            failed_directories: Vec::new(),
            early: Vec::new(),
        }
    }

    pub fn is_served(&self) -> bool {
        self.served
    }

    pub fn sent(&self) -> (i64, i64) {
        self.sent
    }

    pub fn applied(&self) -> (i64, i64) {
        self.applied
    }

    /// Its duties are in force up to what was sent.
    pub fn duties_in_force(&self) -> bool {
        self.served && self.applied.0 >= self.sent.0
    }

    pub fn take_early(&mut self) -> Vec<Forward> {
        std::mem::take(&mut self.early)
    }

    pub fn note_sent(&mut self, offset: i64, duties: bool, view: bool) {
        assert!(offset >= self.sent.0.max(self.sent.1), "images only get newer");
        self.served = true;
        if duties {
            self.sent.0 = offset;
        }
        if view {
            self.sent.1 = offset;
        }
    }
}

impl Node {
    pub(crate) fn on_up(&mut self, message: Up, now: Now) {
        if let Some(dataplane) = &mut self.dataplane {
            dataplane.last_heard = now.monotonic;
        } else if !matches!(message, Up::Hello(_)) {
            // What a refused dataplane still says.
            return;
        }
        match message {
            Up::Hello(hello) => self.on_hello(*hello, now),
            Up::Held { partitions, last } => self.on_held(partitions, last),
            Up::Forward(forward) => match &mut self.dataplane {
                Some(dataplane) if !dataplane.served => dataplane.early.push(*forward),
                _ => self.dispatch(*forward, now),
            },
            Up::ConnectionClosed(_) | Up::Pong(_) => {}
            Up::AutoCreate { topics, .. } => self.auto_create(&topics, now),
            Up::DutiesApplied { metadata_offset } => self.on_duties_applied(metadata_offset),
            Up::ViewApplied { metadata_offset } => {
                let dataplane = self.dataplane.as_mut().expect("messages come from a dataplane");
                dataplane.applied.1 = dataplane.applied.1.max(metadata_offset);
            }
            Up::InternalAppended { id, result } => self.on_internal_appended(id, result),
            Up::InternalRead { id, result } => self.on_internal_read(id, result),
            Up::ProducerIdsWanted => self.want_producer_ids(1, now),
            Up::ProposeIsr { partition, epoch, partition_epoch, isr } => {
                let proposal = PartitionData {
                    partition_index: partition.index.0,
                    leader_epoch: epoch.0,
                    partition_epoch: partition_epoch.0,
                    ..Default::default()
                };
                self.propose_isr(partition, proposal, &isr, now);
            }
            Up::DirectoryFailed { directory, reason } => self.on_directory_failed(directory, &reason),
            Up::Stopped => self.on_stopped(),
        }
    }

    fn on_hello(&mut self, hello: UpHello, now: Now) {
        if let Err(why) = self.check_hello(&hello) {
            tracing::error!(why, "the dataplane is refused");
            self.out.disconnect = Some(why);
            return;
        }
        tracing::info!(run = %hello.run_id, version = hello.software_version, cores = hello.cores, "the dataplane is connected");
        self.dataplane = Some(Dataplane::new(hello, now.monotonic));
        self.broker.start_over();
    }

    fn check_hello(&self, hello: &UpHello) -> Result<(), String> {
        if self.dataplane.is_some() {
            return Err("it says hello twice on one connection".to_owned());
        }
        if hello.protocol_version != PROTOCOL_VERSION {
            let (theirs, ours) = (hello.protocol_version, PROTOCOL_VERSION);
            return Err(format!("it speaks version {theirs} of the link, this control plane version {ours}"));
        }
        if hello.cluster_id != self.cluster_id {
            let (theirs, ours) = (&hello.cluster_id, &self.cluster_id);
            return Err(format!("its superblock says cluster {theirs}, meta.properties says {ours}"));
        }
        if hello.node_id != self.options.node {
            let (theirs, ours) = (hello.node_id, self.options.node);
            return Err(format!("its superblock says node {theirs}, meta.properties says {ours}"));
        }
        if hello.directories.is_empty() {
            return Err("it names no directory".to_owned());
        }
        Ok(())
    }

    /// Whatever waited for this dataplane waits for nobody now; its appends may or may not be in the log.
    pub(crate) fn on_link_lost(&mut self) {
        if self.dataplane.take().is_some() {
            tracing::warn!("the connection to the dataplane is lost");
        }
        self.held.forget_callers();
        self.broker.start_over();
        self.coordination_lost();
    }

    fn on_held(&mut self, partitions: Vec<HeldPartition>, last: bool) {
        let dataplane = self.dataplane.as_mut().expect("messages come from a dataplane");
        dataplane.held.extend(partitions);
        dataplane.held_whole |= last;
        self.list_strays();
    }

    /// A partition that no metadata speaks of is kept and listed: nothing is deleted by absence. Judged once everything
    /// is known, on both sides.
    pub(crate) fn list_strays(&mut self) {
        let node = self.options.node;
        let Some(dataplane) = self.dataplane.as_mut().filter(|dataplane| dataplane.served && dataplane.held_whole)
        else {
            return;
        };
        let topics = &self.loader.image().topics;
        for held in std::mem::take(&mut dataplane.held) {
            if topics.partition(held.partition).is_some_and(|partition| partition.replicas.contains(&node)) {
                continue;
            }
            if dataplane.strays < STRAYS_LOGGED {
                let (start, end) = (held.log_start, held.end);
                tracing::warn!(partition = %held.partition, %start, %end, "a stray partition is kept and not served");
            }
            dataplane.strays += 1;
        }
        if dataplane.strays > STRAYS_LOGGED {
            tracing::warn!(strays = dataplane.strays, "there are more stray partitions than are listed");
        }
    }

    fn on_duties_applied(&mut self, offset: i64) {
        let dataplane = self.dataplane.as_mut().expect("messages come from a dataplane");
        dataplane.applied.0 = dataplane.applied.0.max(offset);
        // Recorded on its medium: it needs to be told of these removals never again.
        self.loader.forget_removed_until(dataplane.applied.0);
        self.coordination.duties_applied();
    }

    fn on_directory_failed(&mut self, directory: Uuid, reason: &str) {
        tracing::error!(%directory, reason, "a directory of the dataplane failed");
        let dataplane = self.dataplane.as_mut().expect("messages come from a dataplane");
        if dataplane.hello.directories.contains(&directory) && !dataplane.failed_directories.contains(&directory) {
            dataplane.failed_directories.push(directory);
            self.broker.beat_now();
        }
    }

    /// The blocks that a dataplane lacks when it connects.
    pub(crate) fn fill_producer_ids(&mut self, in_hand: u32, now: Now) {
        let lacking = (PRODUCER_ID_BLOCKS * PRODUCER_ID_BLOCK).saturating_sub(in_hand) / PRODUCER_ID_BLOCK;
        self.want_producer_ids(lacking, now);
    }

    fn want_producer_ids(&mut self, blocks: u32, now: Now) {
        let Some(epoch) = self.broker.epoch() else { return };
        let request =
            AllocateProducerIdsRequest { broker_id: self.options.node.0, broker_epoch: epoch, ..Default::default() };
        for _ in 0..blocks {
            let context = own_context(ApiKey::AllocateProducerIds);
            self.ask(&context, &request.clone().into(), Then::ProducerIds, now);
        }
    }

    pub(crate) fn on_producer_ids(&mut self, response: &AllocateProducerIdsResponse) {
        if response.error_code != 0 {
            tracing::warn!(code = response.error_code, "no block of producer ids was given");
            return;
        }
        if self.dataplane.as_ref().is_some_and(Dataplane::is_served) {
            let count = u32::try_from(response.producer_id_len).unwrap_or(0);
            self.out.down.push(Down::ProducerIds { first: response.producer_id_start, count });
        }
    }

    fn propose_isr(&mut self, partition: PartitionId, proposal: PartitionData, isr: &[NodeId], now: Now) {
        let Some(epoch) = self.broker.epoch() else { return };
        let cluster = &self.loader.image().cluster;
        let member = |id: &NodeId| BrokerState {
            broker_id: id.0,
            // -1 where it is not registered: the controller will say so.
            broker_epoch: cluster.broker(*id).map_or(-1, |broker| broker.epoch.0),
            ..Default::default()
        };
        let proposal = PartitionData { new_isr_with_epochs: isr.iter().map(member).collect(), ..proposal };
        let topic = TopicData { topic_id: partition.topic.0, partitions: vec![proposal], ..Default::default() };
        let request = AlterPartitionRequest {
            broker_id: self.options.node.0,
            broker_epoch: epoch,
            topics: vec![topic],
            ..Default::default()
        };
        self.ask(&own_context(ApiKey::AlterPartition), &request.into(), Then::Isr(partition), now);
    }

    pub(crate) fn answer(&mut self, caller: Caller, response: &ResponseKind) {
        assert_eq!(response.api(), caller.api, "an answer is of its request's API");
        let mut out = BytesMut::new();
        let encoded = wire::put_response_header(&mut out, caller.api, caller.version, caller.correlation_id)
            .and_then(|()| response.encode(&mut out, caller.version));
        if let Err(error) = encoded {
            tracing::error!(api = %caller.api, version = caller.version, ?error, "an answer cannot be written");
            return self.close(caller.id);
        }
        let mut rest = out.freeze();
        while rest.len() > ANSWER_BYTES_MAX {
            let bytes = rest.split_to(ANSWER_BYTES_MAX);
            self.out.down.push(Down::AnswerPart { id: caller.id, bytes });
        }
        self.push_answer(caller.id, Some(rest));
    }

    /// Ends the client's connection: there is no answer, or no way to say it.
    pub(crate) fn close(&mut self, id: u64) {
        self.push_answer(id, None);
    }

    fn push_answer(&mut self, id: u64, response: Option<Bytes>) {
        if self.dataplane.is_some() {
            self.counts.answered += 1;
            self.out.down.push(Down::Answer { id, response });
        }
    }
}

/// Of a request that this node makes itself, in the newest version.
pub(crate) fn own_context(api: ApiKey) -> RequestContext {
    RequestContext::of_version(api.stable_versions().max)
}
