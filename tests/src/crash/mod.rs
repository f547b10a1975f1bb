//! Rounds of kill -9 under load: writers that go on until every record is acknowledged, and a checker that reads
//! everything back. Every acknowledged record that retention did not take is there, in order, once.
//!
//! Each partition has one writer, most with an idempotent producer of their own, which number their records 0, 1, 2 ..
//! So record n of an idempotent one has offset n, whatever was sent again in between, and its bytes follow from the
//! place and n.

pub mod bulk;
pub mod check;
pub mod places;
pub mod reader;
pub mod writer;

use crate::node::{Broker, Victim};
use crate::{Result, wait};
use bulk::Bulk;
use check::{Extent, Found, Retention};
use perf::client::Connection;
use places::{Mixture, Pace, Place};
use reader::Reader;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use wire::KafkaString;
use wire::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use wire::messages::{CreateTopicsRequest, DeleteTopicsRequest, InitProducerIdRequest};
use writer::Writers;

const TOPIC: &str = "crash";
const PATIENCE: Duration = Duration::from_secs(90);
/// So many records before the last one that was read are read once more after the next kill.
const OVERLAP: i64 = 1000;
/// Admin works again this long after the control plane is back.
const ADMIN_BACK: Duration = Duration::from_secs(2);

#[derive(Clone, Debug)]
pub struct Plan {
    pub rounds: u32,
    pub topics: usize,
    pub partitions: i32,
    /// How long each round writes before the kill.
    pub load: Duration,
    pub pace: Pace,
    pub mixture: Mixture,
    /// Everything is kept without it.
    pub retention: Option<Retention>,
    /// As many topics are created and deleted all the time; 0 for none.
    pub bulk: usize,
    pub victims: Vec<Victim>,
    pub seed: u64,
}

/// A run while it goes on.
struct Run<'a> {
    plan: &'a Plan,
    places: Vec<Place>,
    writers: Writers,
    reader: Reader,
    bulk: Option<Bulk>,
    /// Where each place is read from after the next kill.
    from: Vec<i64>,
    longest: [Duration; 2],
}

pub fn run(broker: &mut dyn Broker, plan: &Plan) -> Result<()> {
    assert!(!plan.victims.is_empty(), "somebody to kill");
    let address = broker.address();
    let numbered = |number: usize| if number == 0 { TOPIC.to_owned() } else { format!("{TOPIC}-{number}") };
    let topics: Vec<String> = (0..plan.topics.max(1)).map(numbered).collect();
    let kept = plan
        .retention
        .map(|kept| [("segment.bytes", kept.segment.to_string()), ("retention.bytes", kept.bytes.to_string())]);
    for topic in &topics {
        create_with(address, topic, plan.partitions, kept.iter().flatten())?;
    }
    let places = places::places(&topics, plan.partitions, plan.mixture);
    let mut run = Run {
        plan,
        writers: Writers::start(address, &places, plan.pace, plan.seed)?,
        reader: Reader::start(address, TOPIC)?,
        bulk: (plan.bulk > 0).then(|| Bulk::start(address, plan.bulk)).transpose()?,
        from: vec![0; places.len()],
        places,
        longest: [Duration::ZERO; 2],
    };
    for round in 0..plan.rounds {
        run.round(broker, round)?;
    }
    run.finish(address)
}

impl Run<'_> {
    fn round(&mut self, broker: &mut dyn Broker, round: u32) -> Result<()> {
        let Run { plan, writers, reader, .. } = self;
        let victim = plan.victims[round as usize % plan.victims.len()];
        progress(writers, "progress under load", Instant::now() + plan.load)?;
        // What the load alone does to them is not what a kill does.
        writers.take_longest_gap();
        reader.take_longest_gap();
        strike(broker, victim, writers, reader, round)?;
        let told = |fault| format!("round {round}, {victim:?}: {fault}\n{}", broker.log_tail());
        progress(writers, "progress after the kill", Instant::now()).map_err(told)?;
        let answers = reader.answers();
        wait::until("the reader's progress", PATIENCE, || Ok((reader.answers() > answers).then_some(())))?;
        let gaps = [writers.take_longest_gap(), reader.take_longest_gap()];
        self.longest = [self.longest[0].max(gaps[0]), self.longest[1].max(gaps[1])];
        let found = check::verify(
            broker.address(),
            &self.places,
            &self.from,
            self.writers.told(),
            Extent::Acknowledged,
            plan.retention,
        )
        .map_err(told)?;
        if plan.retention.is_none() {
            // What stood well before the last kill was read after an earlier one, and is read again at the end.
            self.from = found.iter().map(|found| (found.end - OVERLAP).max(0)).collect();
        }
        let read = found.iter().map(|found| found.end).sum::<i64>();
        println!("round {round}: {victim:?} killed; {read} records, {} batches sent again", self.writers.resent());
        println!("  longest without an acknowledgement {:?}, without records to read {:?}", gaps[0], gaps[1]);
        println!("  the last disturbance: {}", self.writers.last_disturbance());
        self.bulk.as_ref().map_or(Ok(()), |bulk| bulk.tell())
    }

    fn finish(self, address: SocketAddr) -> Result<()> {
        if let Some(bulk) = self.bulk {
            bulk.finish()?;
        }
        let (places, retention) = (&self.places, self.plan.retention);
        let told = self.writers.finish()?;
        let all =
            |address| check::verify(address, places, &vec![0; places.len()], &told, Extent::Everything, retention);
        let mut found = all(address)?;
        if let Some(kept) = retention {
            // A segment that makes it as much as it has to be stays, and the one that is written to.
            let most = kept.bytes + 2 * kept.segment;
            found = wait::until("retention to take what it should", PATIENCE, || {
                let found = all(address)?;
                Ok(found.iter().all(|found| found.bytes <= most).then_some(found))
            })?;
        }
        let total: u64 = told.iter().map(|told| told.count()).sum();
        for ((place, found), told) in places.iter().zip(&found).zip(&told) {
            if place.idempotent && found.end != told.count() as i64 {
                let Place { topic, partition, .. } = place;
                let written = told.count();
                return Err(
                    format!("{topic}-{partition}: {} records are there, {written} were written", found.end).into()
                );
            }
        }
        let [written, read] = self.longest;
        println!("longest gaps: {written:?} without an acknowledgement, {read:?} without records to read");
        if retention.is_some() {
            let left = found.iter().map(|Found { start, end, .. }| end - start).sum::<i64>();
            println!("retention left {left} of them, {} bytes", found.iter().map(|found| found.bytes).sum::<u64>());
        }
        println!("{total} records acknowledged, all there, in order, once");
        Ok(())
    }
}

/// Waits until every writer was acknowledged something, and it is late enough.
fn progress(writers: &Writers, what: &str, at_least_until: Instant) -> Result<()> {
    let before = writers.acknowledged();
    wait::until(what, PATIENCE, || {
        writers.fail_early()?;
        let grown = writers.acknowledged().iter().zip(&before).all(|(now, then)| now > then);
        Ok((grown && Instant::now() >= at_least_until).then_some(()))
    })
    .map_err(|fault| format!("{fault}; the last disturbance: {}", writers.last_disturbance()).into())
}

fn strike(broker: &mut dyn Broker, victim: Victim, writers: &Writers, reader: &Reader, round: u32) -> Result<()> {
    match victim {
        Victim::Everything => {
            broker.kill(victim)?;
            broker.start()
        }
        // The supervisor starts it again.
        Victim::Dataplane => broker.kill(victim),
        Victim::ControlPlane => {
            let disturbed = [writers.disturbances(), reader.disturbances()];
            broker.kill(victim)?;
            // New producers connect meanwhile.
            let mut connection = Connection::open(broker.address(), PATIENCE)?;
            let id = connection.call(
                4,
                &InitProducerIdRequest { transactional_id: None, transaction_timeout_ms: 60_000, ..Default::default() },
            )?;
            if id.error_code != 0 {
                return Err(format!("without a control plane InitProducerId answers {}", id.error_code).into());
            }
            admin_returns(broker, &format!("admin-{round}"))?;
            if [writers.disturbances(), reader.disturbances()] != disturbed {
                let last = writers.last_disturbance();
                return Err(format!("killing the control plane disturbed a writer or the reader: {last}").into());
            }
            Ok(())
        }
    }
}

/// Waits until a topic can be made and deleted again. The time counts from when the control plane runs again.
fn admin_returns(broker: &dyn Broker, name: &str) -> Result<()> {
    wait::until("the control plane's process", PATIENCE, || Ok((broker.pids()?.len() >= 3).then_some(())))?;
    let back = Instant::now();
    create(broker.address(), name, 1)?;
    let took = back.elapsed();
    let mut connection = Connection::open(broker.address(), PATIENCE)?;
    let names = vec![KafkaString::from(name)];
    connection.call(5, &DeleteTopicsRequest { topic_names: names, timeout_ms: 10_000, ..Default::default() })?;
    if took > ADMIN_BACK {
        return Err(format!("admin took {took:?} after the control plane's return").into());
    }
    Ok(())
}

/// Creates a topic, however long a controller takes to be there.
pub fn create(address: SocketAddr, name: &str, partitions: i32) -> Result<()> {
    create_with(address, name, partitions, [])
}

fn create_with<'a>(
    address: SocketAddr,
    name: &str,
    partitions: i32,
    configs: impl IntoIterator<Item = &'a (&'a str, String)>,
) -> Result<()> {
    const EXISTS: i16 = 36;
    let config = |(name, value): &(&str, String)| CreatableTopicConfig {
        name: KafkaString::from(*name),
        value: Some(KafkaString::from(value.as_str())),
        ..Default::default()
    };
    let topic = CreatableTopic {
        name: KafkaString::from(name),
        num_partitions: partitions,
        replication_factor: 1,
        configs: configs.into_iter().map(config).collect(),
        ..Default::default()
    };
    let request = CreateTopicsRequest { topics: vec![topic], timeout_ms: 30_000, ..Default::default() };
    let mut last = String::from("no answer");
    wait::until("the topic's creation", PATIENCE, || {
        let answer = Connection::open(address, PATIENCE).and_then(|mut connection| connection.call(7, &request));
        last = match &answer {
            Ok(answer) => format!("{:?}", answer.topics.iter().map(|topic| topic.error_code).collect::<Vec<_>>()),
            Err(error) => error.to_string(),
        };
        let made = |code: i16| code == 0 || code == EXISTS;
        Ok(answer.ok().filter(|a| a.topics.iter().all(|topic| made(topic.error_code))).map(|_| ()))
    })
    .map_err(|fault| format!("{fault}: {last}").into())
}
