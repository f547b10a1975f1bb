//! Rounds of kill -9 under load: writers that go on until every record is acknowledged, and a checker that reads
//! everything back. Every acknowledged record is there, in order, once.
//!
//! Each partition has one writer with an idempotent producer of its own, which numbers its records 0, 1, 2 .. So record
//! n has offset n, whatever was sent again in between, and its bytes follow from partition and n.

pub mod check;
pub mod reader;
pub mod writer;

use crate::node::{Broker, Victim};
use crate::{Result, wait};
use check::Extent;
use perf::client::Connection;
use reader::Reader;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use wire::KafkaString;
use wire::messages::create_topics_request::CreatableTopic;
use wire::messages::{CreateTopicsRequest, DeleteTopicsRequest, InitProducerIdRequest};
use writer::Writers;

const TOPIC: &str = "crash";
const PATIENCE: Duration = Duration::from_secs(90);
/// So many records before the last one that was read are read once more after the next kill.
const OVERLAP: u64 = 1000;
/// Admin works again this long after the control plane is back.
const ADMIN_BACK: Duration = Duration::from_secs(2);

#[derive(Clone, Debug)]
pub struct Plan {
    pub rounds: u32,
    pub partitions: i32,
    /// How long each round writes before the kill.
    pub load: Duration,
    pub victims: Vec<Victim>,
    pub seed: u64,
}

pub fn run(broker: &mut dyn Broker, plan: &Plan) -> Result<()> {
    assert!(!plan.victims.is_empty(), "somebody to kill");
    create(broker.address(), TOPIC, plan.partitions)?;
    let writers = Writers::start(broker.address(), TOPIC, plan.partitions, plan.seed)?;
    let reader = Reader::start(broker.address(), TOPIC)?;
    let mut longest = [Duration::ZERO; 2];
    let mut verified = vec![0u64; plan.partitions as usize];
    for round in 0..plan.rounds {
        let victim = plan.victims[round as usize % plan.victims.len()];
        let before = writers.acknowledged();
        let wanted = Instant::now() + plan.load;
        wait::until("progress under load", PATIENCE, || {
            writers.fail_early()?;
            let grown = writers.acknowledged().iter().zip(&before).all(|(now, then)| now > then);
            Ok((grown && Instant::now() >= wanted).then_some(()))
        })?;
        // What the load alone does to them is not what a kill does.
        writers.take_longest_gap();
        reader.take_longest_gap();
        strike(broker, victim, &writers, &reader, round)?;
        let after_kill = writers.acknowledged();
        wait::until("progress after the kill", PATIENCE, || {
            writers.fail_early()?;
            let grown = writers.acknowledged().iter().zip(&after_kill).all(|(now, then)| now > then);
            Ok(grown.then_some(()))
        })
        .map_err(|fault| format!("round {round}, {victim:?}: {fault}\n{}", broker.log_tail()))?;
        let answers = reader.answers();
        wait::until("the reader's progress", PATIENCE, || Ok((reader.answers() > answers).then_some(())))?;
        let gaps = [writers.take_longest_gap(), reader.take_longest_gap()];
        longest = [longest[0].max(gaps[0]), longest[1].max(gaps[1])];
        // What stood well before the last kill was read after an earlier one, and is read again at the end.
        let from: Vec<u64> = verified.iter().map(|count| count.saturating_sub(OVERLAP)).collect();
        verified = check::verify(broker.address(), TOPIC, &from, &writers.acknowledged(), Extent::Acknowledged)
            .map_err(|fault| format!("round {round}, {victim:?}: {fault}"))?;
        let (read, again) = (verified.iter().sum::<u64>(), writers.resent());
        println!("round {round}: {victim:?} killed; {read} records, {again} batches sent again");
        println!("  longest without an acknowledgement {:?}, without records to read {:?}", gaps[0], gaps[1]);
        println!("  the last disturbance: {}", writers.last_disturbance());
    }
    let acknowledged = writers.finish()?;
    let counts =
        check::verify(broker.address(), TOPIC, &vec![0; acknowledged.len()], &acknowledged, Extent::Everything)?;
    let read: u64 = counts.iter().sum();
    let total: u64 = acknowledged.iter().sum();
    if read != total {
        return Err(format!("{read} records are there, {total} were written").into());
    }
    println!("longest gaps: {:?} without an acknowledgement, {:?} without records to read", longest[0], longest[1]);
    println!("{total} records acknowledged, all there, in order, once");
    Ok(())
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
    const EXISTS: i16 = 36;
    let topic = CreatableTopic {
        name: KafkaString::from(name),
        num_partitions: partitions,
        replication_factor: 1,
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
