//! Requests, lost links, restarts of either process, stalled disks and silent dataplanes in any order: what was answered
//! stays, epochs only grow, and in the end everything works.

mod common;

use base::{LeaderEpoch, PartitionId, Random};
use common::World;
use common::plane::Plane;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use wire::messages::create_topics_request::CreatableTopic;
use wire::messages::delete_topics_request::DeleteTopicState;
use wire::messages::{CreateTopicsRequest, DeleteTopicsRequest};
use wire::{ApiKey, ResponseKind};

const SEEDS: u64 = 40;
const STEPS: u32 = 120;

/// What a client was told, and what it may find.
#[derive(Default)]
struct Model {
    asked: BTreeMap<u64, (ApiKey, String)>,
    /// Answered as there, and no deletion was asked for since.
    there: BTreeSet<String>,
    /// Answered as gone.
    gone: BTreeSet<String>,
    epochs: BTreeMap<PartitionId, LeaderEpoch>,
    run: u128,
    names: u32,
}

impl Model {
    fn create(&mut self, world: &mut World) {
        self.names += 1;
        let name = format!("topic-{}", self.names);
        let topic = CreatableTopic {
            name: name.as_str().into(),
            num_partitions: 2,
            replication_factor: 1,
            ..Default::default()
        };
        let request = CreateTopicsRequest { topics: vec![topic], timeout_ms: 1000, ..Default::default() };
        let id = world.forward(7, &request);
        self.asked.insert(id, (ApiKey::CreateTopics, name));
    }

    fn delete(&mut self, world: &mut World, random: &mut Random) {
        if self.there.is_empty() {
            return;
        }
        let at = random.below(self.there.len() as u64) as usize;
        let name = self.there.iter().nth(at).expect("it is below their number").clone();
        self.there.remove(&name);
        let topic = DeleteTopicState { name: Some(name.as_str().into()), ..Default::default() };
        let request = DeleteTopicsRequest { topics: vec![topic], timeout_ms: 1000, ..Default::default() };
        let id = world.forward(6, &request);
        self.asked.insert(id, (ApiKey::DeleteTopics, name));
    }

    /// Takes what was answered, and holds it against what the dataplane has at this moment.
    fn check(&mut self, world: &mut World) {
        let Some(plane) = &mut world.plane else { return };
        for (id, bytes) in std::mem::take(&mut plane.answers) {
            let Some((api, name)) = self.asked.remove(&id) else { panic!("nobody asked {id}") };
            let Some(bytes) = bytes else { continue };
            let version = if api == ApiKey::CreateTopics { 7 } else { 6 };
            let mut decoder = wire::Decoder::shared(&bytes);
            wire::read_response_header(&mut decoder, api, version).expect("a header");
            match ResponseKind::decode(api, version, &mut decoder).expect("a response") {
                ResponseKind::CreateTopics(answer) if answer.topics[0].error_code == 0 => {
                    assert!(plane.topics.contains_key(&name), "{name} is told as created and is not shown");
                    assert_eq!(plane.duties.values().filter(|duty| duty.topic_name == name).count(), 2);
                    self.there.insert(name);
                }
                ResponseKind::DeleteTopics(answer) if answer.responses[0].error_code == 0 => {
                    assert!(!plane.topics.contains_key(&name), "{name} is told as deleted and is shown");
                    self.gone.insert(name);
                }
                _ => {}
            }
        }
        for duty in plane.duties.values() {
            let known = self.epochs.entry(duty.partition).or_insert(duty.leader_epoch);
            assert!(duty.leader_epoch >= *known, "an epoch fell");
            *known = duty.leader_epoch;
        }
    }

    fn connect(&mut self, world: &mut World, plane: Option<Plane>) {
        // Who asked on another connection hears nothing.
        self.asked.clear();
        let plane = plane.unwrap_or_else(|| Plane::new(self.run));
        world.connect(plane);
    }
}

fn step(mut world: World, model: &mut Model, away: &mut Option<Plane>, random: &mut Random) -> World {
    match random.below(20) {
        0..=5 if world.plane.is_some() => model.create(&mut world),
        6..=7 if world.plane.is_some() => model.delete(&mut world, random),
        8 => world.disk_stalls = random.chance(1, 2),
        9 if world.plane.is_some() => world.plane().silent = random.chance(1, 2),
        10 if world.plane.is_some() => *away = Some(world.disconnect()),
        11..=12 if world.plane.is_none() => {
            let plane = away.take().map(|plane| match random.below(3) {
                0 => {
                    model.run += 1;
                    let mut plane = plane.restarted(model.run);
                    plane.hello.damaged = random.chance(1, 4);
                    plane
                }
                _ => plane.reconnected(),
            });
            model.connect(&mut world, plane);
        }
        13 => {
            // The process dies with whatever its disk has not done.
            if world.plane.is_some() {
                *away = world.plane.take();
            }
            world = world.restart_node();
        }
        14..=15 => world.pass(Duration::from_millis(random.below(6000))),
        _ => world.settle(),
    }
    world
}

#[test]
fn whatever_happens_what_was_answered_stays() {
    for seed in 0..SEEDS {
        let mut random = Random::from_seed(seed);
        let (mut model, mut away) = (Model { run: 1, ..Model::default() }, None);
        let mut world = World::served();
        for _ in 0..STEPS {
            world = step(world, &mut model, &mut away, &mut random);
            model.check(&mut world);
        }
        world.disk_stalls = false;
        if world.plane.is_none() {
            let plane = away.take().map(Plane::reconnected);
            model.connect(&mut world, plane);
        }
        world.plane().silent = false;
        world.settle();
        world.pass(Duration::from_secs(12));
        model.check(&mut world);
        assert!(world.status().ready, "seed {seed}: {:?}", world.status());
        for name in &model.there {
            assert!(world.plane().topics.contains_key(name), "seed {seed}: {name} is lost");
            for index in 0..2 {
                assert!(world.plane().duty(name, index).leader.is_some(), "seed {seed}: {name}-{index} has no leader");
            }
        }
        for name in &model.gone {
            assert!(!world.plane().topics.contains_key(name), "seed {seed}: {name} is back");
        }
        let held: BTreeSet<&str> = world.plane().duties.values().map(|duty| duty.topic_name.as_str()).collect();
        assert_eq!(held.len(), world.status().topics, "seed {seed}: the dataplane has what the metadata says");
    }
}
