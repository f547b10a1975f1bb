//! Around the coordinators: leadership of their partitions from the image, their appends and reads over the link, clients'
//! requests in and answers out.

use crate::api::Options;
use crate::held::Caller;
use crate::node::Node;
use crate::topics::GROUP_TOPIC;
use base::{LeaderEpoch, Monotonic, Now, Offset, PartitionIndex, Random, TopicId};
use coordinators::{
    AppendId, AppendResult, Client, Coordinators, Event, Output, ReadId, ReadResult, Request, RequestToken, Slice,
};
use image::{MetadataImage, Publication};
use link::{Down, InternalAppend, InternalAppendRefusal, InternalRead, InternalReadRefusal, InternalSlice};
use settings::BrokerSettings;
use std::collections::{BTreeMap, VecDeque};
use wire::{ErrorCode, KafkaString, RequestKind};

/// What the coordinators ask of the metadata.
struct Known<'a>(&'a MetadataImage);

impl coordinators::Topics for Known<'_> {
    fn id(&self, name: &str) -> Option<TopicId> {
        self.0.topics.id(name)
    }

    fn name(&self, id: TopicId) -> Option<KafkaString> {
        self.0.topics.get(id).map(|topic| topic.name.clone())
    }

    fn partitions(&self, name: &str) -> Option<u32> {
        self.0.topics.named(name).map(|topic| topic.partitions.len() as u32)
    }
}

pub(crate) struct Coordination {
    coordinators: Coordinators,
    /// Not yet handed over, in order.
    events: VecDeque<Event>,
    /// Clients' requests, handed over once it is known what is led here: who was parked while the control plane was away
    /// is not told by a node that has just come back that its coordinator is elsewhere.
    requests: VecDeque<Event>,
    offsets_topic: Option<(TopicId, u32)>,
    /// The partitions whose shards are here, with the epoch they were loaded at.
    leading: BTreeMap<PartitionIndex, LeaderEpoch>,
    /// Leadership may differ from `leading`.
    stale: bool,
    callers: BTreeMap<u64, Caller>,
    tokens: u64,
}

impl Coordination {
    pub fn new(options: &Options, random: &mut Random) -> Coordination {
        let random = Random::from_seed(random.next_u64());
        let options = coordinators::Options { settings: options.settings.clone(), random };
        Coordination {
            coordinators: Coordinators::new(options),
            events: VecDeque::new(),
            requests: VecDeque::new(),
            offsets_topic: None,
            leading: BTreeMap::new(),
            stale: false,
            callers: BTreeMap::new(),
            tokens: 0,
        }
    }

    pub fn next_deadline(&self) -> Option<Monotonic> {
        self.coordinators.next_deadline()
    }

    /// Once per event of the node, so that a turn always ends.
    pub fn pass_time(&mut self, now: Now) {
        if self.next_deadline().is_some_and(|at| at <= now.monotonic) {
            self.events.push_back(Event::Time);
        }
    }

    pub fn settings_changed(&mut self, settings: BrokerSettings) {
        self.events.push_back(Event::SettingsChanged(settings));
    }

    pub fn duties_applied(&mut self) {
        self.stale = true;
    }

    pub fn on_publication(&mut self, publication: &Publication) {
        let image = &publication.image;
        let topic = image.topics.named(GROUP_TOPIC).map(|topic| (topic.id, topic.partitions.len() as u32));
        if topic != self.offsets_topic {
            // Where partitions were added, groups hash to other ones: as in Kafka, none keeps its place.
            self.resign_all();
            let gone = self.offsets_topic.map(|(id, _)| (id, 0));
            let told = topic.or(gone).expect("one of the two is there, since they differ");
            self.events.push_back(Event::OffsetsTopic { topic: told.0, partitions: told.1 });
            self.offsets_topic = topic;
        }
        for removed in &publication.delta.removed_topics {
            let (topic, name) = (removed.topic.id, removed.topic.name.clone());
            self.events.push_back(Event::TopicDeleted { topic, name });
        }
        self.stale |= topic.is_some_and(|(id, _)| publication.delta.partitions.contains_key(&id));
    }

    fn resign_all(&mut self) {
        for partition in std::mem::take(&mut self.leading).into_keys() {
            self.events.push_back(Event::Resigned { partition, epoch: None });
        }
        self.stale = true;
    }

    /// Follows the image: what is led no longer, or under another epoch, goes at once; what is led newly comes when the
    /// dataplane leads it too.
    fn follow(&mut self, led: &BTreeMap<PartitionIndex, LeaderEpoch>, in_force: bool) {
        let lost = self.leading.iter().filter(|(at, epoch)| led.get(at) != Some(epoch)).map(|(at, _)| *at);
        for partition in lost.collect::<Vec<_>>() {
            self.leading.remove(&partition);
            self.events.push_back(Event::Resigned { partition, epoch: led.get(&partition).copied() });
        }
        let known = led.keys().all(|partition| self.leading.contains_key(partition));
        if !in_force && !known {
            return;
        }
        for (partition, epoch) in led {
            if !self.leading.contains_key(partition) {
                self.leading.insert(*partition, *epoch);
                self.events.push_back(Event::Leading { partition: *partition, epoch: *epoch });
            }
        }
        self.stale = false;
    }
}

impl Node {
    pub(crate) fn coordinate(&mut self, now: Now) -> bool {
        if self.coordination.stale {
            self.follow_leadership();
        }
        if !self.coordination.stale {
            let requests = std::mem::take(&mut self.coordination.requests);
            self.coordination.events.extend(requests);
        }
        let mut outputs = Vec::new();
        let any = !self.coordination.events.is_empty();
        while let Some(event) = self.coordination.events.pop_front() {
            self.coordination.coordinators.handle(now, event, &Known(self.loader.image()), &mut outputs);
        }
        self.coordination.coordinators.end_turn(now, &mut outputs);
        let moved = any || !outputs.is_empty();
        for output in outputs {
            self.on_coordinator_output(output);
        }
        moved
    }

    fn follow_leadership(&mut self) {
        let node = self.options.node;
        let topic = self.coordination.offsets_topic.and_then(|(id, _)| self.loader.image().topics.get(id));
        let partitions = topic.into_iter().flat_map(|topic| topic.partitions.iter());
        let led = partitions.filter(|(_, partition)| partition.leader == Some(node));
        let led = led.map(|(index, partition)| (*index, partition.leader_epoch)).collect();
        let in_force = self.dataplane.as_ref().is_some_and(|dataplane| dataplane.duties_in_force());
        self.coordination.follow(&led, in_force);
    }

    /// The dataplane is gone: the end of every append is unknown, so every shard goes, and is loaded again from the log
    /// when the partitions are led again. Nobody waits for an answer any more.
    pub(crate) fn coordination_lost(&mut self) {
        self.coordination.resign_all();
        self.coordination.callers.clear();
        self.coordination.requests.clear();
    }

    /// A client's request to a coordinator.
    pub(crate) fn ask_coordinator(&mut self, caller: Caller, client_id: &str, client_host: &str, body: RequestKind) {
        self.coordination.tokens += 1;
        let token = self.coordination.tokens;
        self.coordination.callers.insert(token, caller);
        let client = Client {
            client_id: client_id.into(),
            // The dataplane names hosts as Kafka shows them.
            host: client_host.strip_prefix('/').unwrap_or(client_host).into(),
        };
        let request = Request { token: RequestToken(token), version: caller.version, client, body };
        self.coordination.requests.push_back(Event::Request(Box::new(request)));
    }

    fn on_coordinator_output(&mut self, output: Output) {
        match output {
            Output::Respond { token, response } => {
                // Without a caller the dataplane that asked is gone.
                if let Some(caller) = self.coordination.callers.remove(&token.0) {
                    self.answer(caller, &response);
                }
            }
            Output::Append { id, partition, expected_epoch, batches } if self.dataplane.is_some() => {
                let append = InternalAppend { id: id.0, partition, expected_epoch, batches };
                self.out.down.push(Down::InternalAppend(append));
            }
            Output::Read { id, partition, expected_epoch, offset, bytes_max } if self.dataplane.is_some() => {
                let read = InternalRead { id: id.0, partition, expected_epoch, offset, bytes_max };
                self.out.down.push(Down::InternalRead(read));
            }
            // Sent to nobody. The shards that wait are dropped by `resign_all`, which was told before.
            Output::Append { .. } | Output::Read { .. } => {}
        }
    }

    pub(crate) fn on_internal_appended(&mut self, id: u64, result: Result<Offset, InternalAppendRefusal>) {
        let result = match result {
            Ok(base) => AppendResult::Done { base },
            Err(InternalAppendRefusal::Refused { error_code, message }) => {
                tracing::warn!(error_code, message, "a coordinator's append was refused");
                AppendResult::Refused(ErrorCode::try_from(error_code).unwrap_or(ErrorCode::UnknownServerError))
            }
            Err(InternalAppendRefusal::OtherEpoch { .. }) => AppendResult::OtherEpoch,
            Err(InternalAppendRefusal::Unknown) => AppendResult::Unknown,
        };
        self.coordination.events.push_back(Event::Appended { id: AppendId(id), result });
    }

    pub(crate) fn on_internal_read(&mut self, id: u64, result: Result<InternalSlice, InternalReadRefusal>) {
        let result = match result {
            Ok(InternalSlice { batches, high_watermark, next, .. }) => {
                ReadResult::Slice(Slice { batches, high_watermark, next })
            }
            Err(InternalReadRefusal::OtherEpoch { .. }) => ReadResult::OtherEpoch,
            Err(InternalReadRefusal::OutOfRange { log_start }) => ReadResult::OutOfRange { log_start },
            Err(InternalReadRefusal::Failed { message }) => ReadResult::Failed(message),
        };
        self.coordination.events.push_back(Event::Read { id: ReadId(id), result });
    }
}
