//! The state is a fold over records: after random events, commits, lost leaderships and snapshots it equals what a fresh
//! controller reads out of the log. And events stay bounded however much one broker holds.

mod common;

use base::{NodeId, Random, Uuid};
use common::{CLUSTER, now, options};
use image::{Provenance, Record};
use pollux_controller::{Circumstances, Controller, Outcome, RECORDS_MAX, RequestContext};
use wire::messages::*;
use wire::{RequestKind, ResponseKind};

struct World {
    controller: Controller,
    /// All that was appended and not undone; its index is the offset.
    log: Vec<Record>,
    committed: usize,
    /// Where batches end: the log commits and is cut there only.
    ends: Vec<usize>,
    millis: u64,
    epoch: i32,
    random: Random,
}

impl World {
    fn new(seed: u64) -> World {
        let mut world = World {
            controller: Controller::new(options()),
            log: Vec::new(),
            committed: 0,
            ends: vec![0],
            millis: 1_000,
            epoch: 1,
            random: Random::from_seed(seed),
        };
        let append = world.controller.claim(1, 0, now(world.millis)).unwrap();
        world.append(&append);
        world
    }

    fn append(&mut self, append: &pollux_controller::Append) {
        assert_eq!(append.base_offset, self.log.len() as i64);
        for batch in &append.batches {
            assert!(!batch.is_empty() && batch.len() <= RECORDS_MAX);
            self.log.extend(batch.iter().cloned());
            self.ends.push(self.log.len());
        }
    }

    /// The answer, and the largest number of records that one event made on the way to it.
    fn ask(&mut self, request: impl Into<RequestKind>) -> (ResponseKind, usize) {
        let request = request.into();
        let mut largest = 0;
        loop {
            let circumstances = Circumstances { now: now(self.millis), choices: &mut self.random, kraft_version: 1 };
            let context = RequestContext::of_version(request.api().stable_versions().max);
            let outcome = self.controller.handle(circumstances, &context, &request).unwrap();
            self.append(outcome.append());
            largest = largest.max(outcome.append().records().count());
            if let Outcome::Done { response, answer_at, .. } = outcome {
                assert_eq!(answer_at, self.log.len() as i64 - 1);
                return (response, largest);
            }
        }
    }

    fn pass(&mut self, millis: u64) {
        self.millis += millis;
        while let Some(append) = self.controller.poll(now(self.millis)) {
            self.append(&append);
        }
    }

    fn commit(&mut self, to: usize) {
        self.committed = self.committed.max(to);
        self.controller.on_committed(self.committed as i64 - 1);
    }

    /// The end of some batch that is committed last or not yet.
    fn some_end(&mut self) -> usize {
        let from = self.ends.partition_point(|end| *end < self.committed);
        self.ends[from + self.random.below((self.ends.len() - from) as u64) as usize]
    }

    fn check(&self) {
        assert!(self.controller.state().is_consistent());
        let read = |records: &[Record]| {
            let mut follower = Controller::new(options());
            follower.load_batch(0, records).unwrap();
            follower
        };
        assert!(read(&self.log).image().says_the_same(self.controller.image()));
        assert!(read(&self.log[..self.committed]).image().says_the_same(self.controller.committed_image()));
    }

    fn register(&mut self, id: i32) -> i64 {
        let range = |name: &str, min, max| broker_registration_request::Feature {
            name: name.into(),
            min_supported_version: min,
            max_supported_version: max,
            ..Default::default()
        };
        let (response, _) = self.ask(BrokerRegistrationRequest {
            broker_id: id,
            cluster_id: CLUSTER.into(),
            incarnation_id: Uuid::random(&mut self.random.clone()),
            features: vec![
                range("metadata.version", 7, 33),
                range("kraft.version", 0, 1),
                range("eligible.leader.replicas.version", 0, 1),
            ],
            rack: None,
            log_dirs: vec![Uuid(1000 + id as u128)],
            previous_broker_epoch: -1,
            ..Default::default()
        });
        self.random.next_u64();
        let ResponseKind::BrokerRegistration(response) = response else { panic!("{response:?}") };
        response.broker_epoch
    }

    fn heartbeat(&mut self, id: i32, fence: bool) -> (BrokerHeartbeatResponse, usize) {
        let broker = self.controller.image().cluster.broker(NodeId(id));
        let (response, largest) = self.ask(BrokerHeartbeatRequest {
            broker_id: id,
            broker_epoch: broker.map_or(0, |broker| broker.epoch.0),
            current_metadata_offset: self.log.len() as i64,
            want_fence: fence,
            ..Default::default()
        });
        let ResponseKind::BrokerHeartbeat(response) = response else { panic!("{response:?}") };
        (response, largest)
    }

    fn create(&mut self, name: &str, partitions: i32, replicas: i16) {
        let topic = create_topics_request::CreatableTopic {
            name: name.into(),
            num_partitions: partitions,
            replication_factor: replicas,
            ..Default::default()
        };
        self.ask(CreateTopicsRequest { topics: vec![topic], ..Default::default() });
    }

    fn step(&mut self) {
        let id = self.random.below(4) as i32;
        let name = format!("t{}", self.random.below(8));
        match self.random.below(14) {
            0 => drop(self.register(id)),
            1..=4 => drop(self.heartbeat(id, self.log.len().is_multiple_of(7))),
            5..=7 => self.create(&name, 1 + id, 1 + (id as i16 % 3)),
            8 => drop(self.ask(DeleteTopicsRequest {
                topics: vec![delete_topics_request::DeleteTopicState {
                    name: Some(name.as_str().into()),
                    ..Default::default()
                }],
                ..Default::default()
            })),
            9 => {
                let config = incremental_alter_configs_request::AlterableConfig {
                    name: if id < 2 { "min.insync.replicas" } else { "retention.ms" }.into(),
                    value: Some((1 + id).to_string().as_str().into()),
                    ..Default::default()
                };
                let resource = incremental_alter_configs_request::AlterConfigsResource {
                    resource_type: 2,
                    resource_name: name.as_str().into(),
                    configs: vec![config],
                    ..Default::default()
                };
                self.ask(IncrementalAlterConfigsRequest { resources: vec![resource], ..Default::default() });
            }
            10 => drop(self.ask(UnregisterBrokerRequest { broker_id: id, ..Default::default() })),
            11 => drop(self.ask(ElectLeadersRequest { topic_partitions: None, ..Default::default() })),
            _ => self.pass(self.millis % 2500),
        }
    }
}

#[test]
fn state_is_a_fold_through_commits_and_lost_leaderships() {
    for seed in 0..5 {
        let mut world = World::new(seed);
        for step in 0..300 {
            world.step();
            if world.random.chance(1, 3) {
                let to = world.some_end();
                world.commit(to);
            }
            if step % 25 == 0 {
                world.check();
            }
            if world.random.chance(1, 30) {
                // Another leads for a while: of what was not committed some stays, the rest is cut.
                world.controller.renounce();
                assert!(!world.controller.is_active());
                let kept = world.some_end();
                world.log.truncate(kept);
                world.ends.retain(|end| *end <= kept);
                let late = world.log[world.committed..].to_vec();
                world.controller.load_batch(world.committed as i64, &late).unwrap();
                world.committed = world.log.len();
                world.check();
                if world.random.chance(1, 2) {
                    let mut image = world.controller.image().clone();
                    image.provenance = Provenance { offset: world.log.len() as i64 - 1, epoch: 1, append_time: 0 };
                    world.controller = Controller::new(options());
                    world.controller.load_snapshot(image);
                }
                world.epoch += 1;
                let append = world.controller.claim(world.epoch, world.log.len() as i64, now(world.millis)).unwrap();
                assert!(
                    append.is_empty()
                        || world.log.is_empty()
                        || world.controller.image().features.metadata_version.is_some()
                );
                world.append(&append);
            }
        }
        world.commit(world.log.len());
        world.check();
        assert!(world.log.len() > 100, "seed {seed} did something");
    }
}

#[test]
fn a_leadership_lost_inside_the_bootstrap_transaction_starts_over() {
    let mut controller = Controller::new(options());
    let append = controller.claim(1, 0, now(0)).unwrap();
    let records: Vec<Record> = append.records().cloned().collect();
    // The first of its records committed, the others did not.
    for kept in 0..records.len() {
        let mut next = Controller::new(options());
        next.load_batch(0, &records[..kept]).unwrap();
        let again = next.claim(2, kept as i64, now(0)).unwrap();
        assert_eq!(again.records().count(), records.len() + usize::from(kept > 0), "{kept}");
        assert!(next.image().says_the_same(controller.image()) && next.state().is_consistent());
    }
    let mut next = Controller::new(options());
    next.load_batch(0, &records).unwrap();
    assert!(next.claim(2, records.len() as i64, now(0)).unwrap().is_empty());
}

#[test]
fn a_bootstrap_snapshot_of_kafkas_own_format_is_followed() {
    // The order and the levels of `kafka-storage format` of 4.4, which its bootstrap snapshot in tests/golden holds.
    let levels = [("transaction.version", 2), ("group.version", 1), ("share.version", 2), ("streams.version", 1)];
    let levels = levels.into_iter().chain([("eligible.leader.replicas.version", 1), ("kraft.version", 0)]);
    let levels = levels.map(|(name, level)| (name.to_owned(), level)).collect();
    let records = pollux_controller::bootstrap_records(image::MetadataVersion::LATEST, &levels);
    let names = |records: &[Record]| -> Vec<(String, i16)> {
        let level = |record: &Record| match &record.kind {
            wire::MetadataRecordKind::FeatureLevel(r) => (r.name.to_string(), r.feature_level),
            other => (other.name().to_owned(), 0),
        };
        records.iter().map(level).collect()
    };
    let named = |name: &str, level| (name.to_owned(), level);
    let expected = [
        named("metadata.version", 33),
        named("eligible.leader.replicas.version", 1),
        named("group.version", 1),
        named("share.version", 2),
        named("streams.version", 1),
        named("transaction.version", 2),
    ];
    assert_eq!(names(&records), expected);
    let mut controller = Controller::new(pollux_controller::Options { bootstrap: records, ..options() });
    let append = controller.claim(1, 0, now(0)).unwrap();
    assert_eq!(append.records().count(), 9);
    assert_eq!(controller.image().features.level("share.version"), 2);
    let empty = pollux_controller::Options { bootstrap: Vec::new(), ..options() };
    assert!(Controller::new(empty).claim(1, 0, now(0)).is_err());
}

#[test]
fn who_is_not_the_leader_says_so() {
    let mut controller = Controller::new(options());
    let request = AllocateProducerIdsRequest { broker_id: 1, ..Default::default() };
    let Outcome::Done { response, append, .. } = controller.allocate_producer_ids(&request) else {
        panic!("it answers")
    };
    assert_eq!((response.error_code, append.is_empty()), (wire::ErrorCode::NotController.code(), true));
    assert_eq!((controller.poll(now(9_999_999)), controller.next_deadline()), (None, None));
}

#[test]
fn a_broker_that_holds_very_much_goes_and_comes_in_bounded_events() {
    let mut world = World::new(3);
    for id in [1, 2] {
        world.register(id);
        world.heartbeat(id, false);
    }
    for topic in 0..3 {
        world.create(&format!("t{topic}"), 8_000, 2);
    }
    let led = |world: &World, by: Option<NodeId>| {
        let partitions = world.controller.image().topics.iter().flat_map(|topic| topic.partitions.values());
        partitions.filter(|partition| partition.leader == by).count()
    };
    assert!(led(&world, Some(NodeId(1))) > 10_000);
    let (answer, largest) = world.heartbeat(1, true);
    assert!(answer.is_fenced && largest <= 10_001 && world.controller.state().is_consistent());
    assert_eq!((led(&world, Some(NodeId(1))), led(&world, Some(NodeId(2)))), (0, 24_000));

    // The other's session ends, step by step.
    let before = world.log.len();
    world.millis += 9_001;
    let mut steps = 0;
    for _ in 0..3 {
        world.millis += 10;
        while let Some(append) = world.controller.poll(now(world.millis)) {
            assert!(append.records().count() <= 10_001);
            world.append(&append);
            steps += 1;
        }
    }
    // The first one, fenced already, is fenced once more, as Kafka does when a session ends.
    assert_eq!((steps, world.log.len() - before, led(&world, None)), (4, 24_002, 24_000));

    let (answer, largest) = world.heartbeat(2, false);
    assert!(!answer.is_fenced && largest <= 10_001);
    world.pass(0);
    assert_eq!(led(&world, Some(NodeId(2))), 24_000);
    world.commit(world.log.len());
    world.check();
}

#[test]
fn a_lone_voter_writes_nothing_while_idle_and_others_are_shown_that_the_log_moves() {
    let mut world = World::new(4);
    let before = world.log.len();
    world.pass(5_000);
    assert_eq!(world.log.len(), before);
    world.controller.set_alone(false);
    for _ in 0..4 {
        world.pass(500);
    }
    assert_eq!(world.log.len(), before + 4);
}
