//! How long events take at 1,000,000 partitions of three replicas. Run by hand:
//! cargo test --release -p pollux-controller --test million -- --ignored --nocapture

mod common;

use base::{NodeId, PartitionIndex, Random, Uuid};
use common::{CLUSTER, now, options};
use pollux_controller::{Append, Circumstances, Controller, Outcome, RequestContext};
use std::time::{Duration, Instant};
use wire::messages::*;
use wire::{RequestKind, ResponseKind};

struct Bench {
    controller: Controller,
    random: Random,
    log: Vec<image::Record>,
}

impl Bench {
    /// The answer, how many events it took, and the longest of them.
    fn ask(&mut self, request: impl Into<RequestKind>) -> (ResponseKind, usize, Duration) {
        let request = request.into();
        let (mut events, mut longest) = (0, Duration::ZERO);
        loop {
            let context = RequestContext::of_version(request.api().stable_versions().max);
            let circumstances = Circumstances { now: now(1_000), choices: &mut self.random, kraft_version: 1 };
            let start = Instant::now();
            let outcome = self.controller.handle(circumstances, &context, &request).unwrap();
            longest = longest.max(start.elapsed());
            events += 1;
            self.commit(outcome.append());
            if let Outcome::Done { response, .. } = outcome {
                return (response, events, longest);
            }
        }
    }

    fn commit(&mut self, append: &Append) {
        self.log.extend(append.records().cloned());
        self.controller.on_committed(self.controller.next_offset() - 1);
    }

    fn register_brokers(&mut self) {
        for id in 1..=9 {
            let range = |name: &str, max| broker_registration_request::Feature {
                name: name.into(),
                min_supported_version: 0,
                max_supported_version: max,
                ..Default::default()
            };
            self.ask(BrokerRegistrationRequest {
                broker_id: id,
                cluster_id: CLUSTER.into(),
                incarnation_id: Uuid(id as u128),
                features: vec![
                    range("metadata.version", 33),
                    range("kraft.version", 1),
                    range("eligible.leader.replicas.version", 1),
                ],
                rack: None,
                log_dirs: vec![Uuid(1000 + id as u128)],
                ..Default::default()
            });
            self.heartbeat(id, false);
        }
    }

    fn report_isrs(&mut self) {
        // A leader reports 1,000 changed ISRs, again and again.
        let mut times = Vec::new();
        for round in 0..20 {
            let image = self.controller.image().clone();
            let mut topics = Vec::new();
            for topic in image.topics.iter().skip(round * 40).take(40) {
                let led = topic.partitions.iter().filter(|(_, partition)| partition.leader == Some(NodeId(1)));
                let data = led.take(25).map(|(index, partition)| alter_partition_request::PartitionData {
                    partition_index: index.0,
                    leader_epoch: partition.leader_epoch.0,
                    partition_epoch: partition.partition_epoch.0,
                    new_isr_with_epochs: vec![alter_partition_request::BrokerState {
                        broker_id: 1,
                        ..Default::default()
                    }],
                    ..Default::default()
                });
                let partitions = data.collect();
                topics.push(alter_partition_request::TopicData {
                    topic_id: topic.id.0,
                    partitions,
                    ..Default::default()
                });
            }
            drop(image);
            let broker_epoch = self.controller.image().cluster.broker(NodeId(1)).unwrap().epoch.0;
            let before = self.log.len();
            let request = AlterPartitionRequest { broker_id: 1, broker_epoch, topics, ..Default::default() };
            times.push(self.ask(request).2);
            assert_eq!(self.log.len() - before, 1000);
        }
        times.sort();
        println!("1,000 ISR changes in one event: median {:?}, the longest {:?}", times[10], times[19]);
    }

    fn heartbeat(&mut self, id: i32, fence: bool) -> (usize, Duration) {
        let epoch = self.controller.image().cluster.broker(NodeId(id)).map_or(0, |broker| broker.epoch.0);
        let (_, events, longest) = self.ask(BrokerHeartbeatRequest {
            broker_id: id,
            broker_epoch: epoch,
            current_metadata_offset: i64::MAX,
            want_fence: fence,
            ..Default::default()
        });
        (events, longest)
    }
}

fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) / 1024
}

#[test]
#[ignore = "takes a minute and 2 GiB"]
fn a_million_partitions() {
    let mut bench = Bench { controller: Controller::new(options()), random: Random::from_seed(1), log: Vec::new() };
    let append = bench.controller.claim(1, 0, now(0)).unwrap();
    bench.commit(&append);
    bench.register_brokers();
    let mut longest = Duration::ZERO;
    let start = Instant::now();
    for topic in 0..1000 {
        let topic = create_topics_request::CreatableTopic {
            name: format!("topic{topic}").as_str().into(),
            num_partitions: 1000,
            replication_factor: 3,
            ..Default::default()
        };
        longest = longest.max(bench.ask(CreateTopicsRequest { topics: vec![topic], ..Default::default() }).2);
    }
    println!("create 1,000 topics of 1,000 partitions: {:?}, the longest {longest:?}", start.elapsed());
    println!("resident (with the log as records): {} MiB", resident_mib());

    bench.report_isrs();

    // The plain fold of such a batch, as a follower applies it.
    let batch: Vec<image::Record> = bench.log[bench.log.len() - 1000..].to_vec();
    let mut follower = bench.controller.state().clone();
    let next = bench.controller.next_offset();
    let start = Instant::now();
    for (at, record) in batch.iter().enumerate() {
        follower.replay(&record.kind, next + at as i64).unwrap();
    }
    println!("1,000 partition changes applied to a copy of the state: {:?}", start.elapsed());

    let start = Instant::now();
    let (events, longest) = bench.heartbeat(2, true);
    println!("fencing a broker of 333,333 replicas: {:?} in {events} events, the longest {longest:?}", start.elapsed());
    let start = Instant::now();
    let written = bench.controller.image().records().map(|record| record.encode().len()).sum::<usize>();
    println!("snapshot: {:?}, {} MiB", start.elapsed(), written >> 20);
    let start = Instant::now();
    let loaded = Controller::new(options()).state().with_image(bench.controller.image().clone());
    println!("indexes from an image: {:?}", start.elapsed());
    assert_eq!(loaded.image.topics.len(), 1000);
    assert!(loaded.image.topics.iter().all(|topic| topic.partition(PartitionIndex(999)).is_some()));
    println!("resident: {} MiB", resident_mib());
}
