//! `commits`: OffsetCommit against Apache Kafka and Pollux in one run, alternating, brokers on one core, client on
//! another. A commit goes through the control plane and its link, so its tail is the tail of both.
#![forbid(unsafe_code)]

use clap::Parser;
use hdrhistogram::Histogram;
use perf::client::Connection;
use perf::compare::{Spread, spread};
use perf::nodes::reference::{Kafka, Wishes};
use perf::nodes::subject::Pollux;
use perf::nodes::{Broker, PATIENCE, Result, java, wait};
use perf::process;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use wire::KafkaString;
use wire::messages::create_topics_request::CreatableTopic;
use wire::messages::offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use wire::messages::{CreateTopicsRequest, OffsetCommitRequest};

/// Compares the latency of offset commits, one group a connection, at one rate over all of them.
#[derive(Parser)]
struct Arguments {
    #[arg(long, default_value_t = 5)]
    pairs: usize,
    /// Seconds of each window
    #[arg(long, default_value_t = 5.0)]
    duration: f64,
    /// Commits a second
    #[arg(long, default_value_t = 500.0)]
    rate: f64,
    #[arg(long, default_value_t = 4)]
    connections: usize,
    /// Commits that warm the reference's code
    #[arg(long, default_value_t = 20_000)]
    warming: usize,
    /// What the median of the p99s may be of Kafka's
    #[arg(long, default_value_t = 2.0)]
    ratio_max: f64,
    #[arg(long, default_value = "cache")]
    durability: String,
    #[arg(long, default_value_t = 0)]
    broker_core: usize,
    #[arg(long, default_value_t = 1)]
    client_core: usize,
}

const TOPIC: &str = "committed";
/// Longest latency told apart, microseconds.
const LATENCY_MAX: u64 = 60_000_000;

fn commit(group: usize, offset: i64) -> OffsetCommitRequest {
    let partition = OffsetCommitRequestPartition { committed_offset: offset, ..Default::default() };
    let topic = OffsetCommitRequestTopic { name: TOPIC.into(), partitions: vec![partition], ..Default::default() };
    OffsetCommitRequest {
        group_id: KafkaString::from(format!("group-{group}")),
        // A consumer that is no member: what a client with its own assignment sends.
        generation_id_or_member_epoch: -1,
        topics: vec![topic],
        ..Default::default()
    }
}

fn ask(connection: &mut Connection, group: usize, offset: i64) -> Result<i16> {
    let answer = connection.call(8, &commit(group, offset))?;
    Ok(answer.topics[0].partitions[0].error_code)
}

/// Connections whose groups have a coordinator.
fn connect(broker: &dyn Broker, arguments: &Arguments) -> Result<Vec<Connection>> {
    let open = |_| Ok(Connection::open(broker.address(), PATIENCE)?);
    let mut connections = (0..arguments.connections).map(open).collect::<Result<Vec<Connection>>>()?;
    let topic =
        CreatableTopic { name: TOPIC.into(), num_partitions: 1, replication_factor: 1, ..CreatableTopic::default() };
    let create = CreateTopicsRequest { topics: vec![topic], timeout_ms: 30_000, ..Default::default() };
    connections[0].call(7, &create)?;
    // Whoever asks for a coordinator makes its topic.
    let find = wire::messages::FindCoordinatorRequest { key: "group-0".into(), ..Default::default() };
    for (group, connection) in connections.iter_mut().enumerate() {
        wait::until("the group's coordinator", PATIENCE, || {
            connection.call(1, &find)?;
            Ok((ask(connection, group, 0)? == 0).then_some(()))
        })?;
    }
    Ok(connections)
}

/// One window, in open loop: a commit that is due while another is under way waits, and its wait counts. Microseconds.
fn window(connections: &mut [Connection], arguments: &Arguments) -> Result<Histogram<u64>> {
    let mut latencies = Histogram::new_with_bounds(1, LATENCY_MAX, 3)?;
    let count = (arguments.rate * arguments.duration) as usize;
    let began = Instant::now();
    for number in 0..count {
        let due = began + Duration::from_secs_f64(number as f64 / arguments.rate);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let group = number % connections.len();
        match ask(&mut connections[group], group, number as i64)? {
            0 => latencies.saturating_record(due.elapsed().as_micros() as u64),
            code => return Err(format!("a commit answers error {code}").into()),
        }
    }
    Ok(latencies)
}

/// p50, p99 and p99.9 of a window; of both brokers, the reference first.
type Figures = [f64; 3];
type Pair = (Figures, Figures);

fn figures(latencies: &Histogram<u64>) -> Figures {
    [0.5, 0.99, 0.999].map(|share| latencies.value_at_quantile(share) as f64)
}

/// Whether the tail is as short as it is to be.
fn run(arguments: &Arguments) -> Result<bool> {
    process::pin_to(arguments.client_core)?;
    let wishes = Wishes {
        prefix: ["taskset", "-c", &arguments.broker_core.to_string()].map(str::to_owned).to_vec(),
        jvm_options: Some(java::kafka_options()),
        own: vec![format!("durability=\"{}\"", arguments.durability)],
        ..Wishes::default()
    };
    let (mut kafka, mut pollux) = (Kafka::start_new(&wishes)?, Pollux::start_new(&wishes)?);
    let (mut to_kafka, mut to_pollux) = (connect(&kafka, arguments)?, connect(&pollux, arguments)?);
    for number in 0..arguments.warming {
        let group = number % to_kafka.len();
        ask(&mut to_kafka[group], group, number as i64)?;
    }
    let mut pairs: Vec<Pair> = Vec::new();
    for number in 0..arguments.pairs {
        // Each goes first as often as the other.
        let (reference, subject) = if number % 2 == 0 {
            let reference = window(&mut to_kafka, arguments)?;
            (reference, window(&mut to_pollux, arguments)?)
        } else {
            let subject = window(&mut to_pollux, arguments)?;
            (window(&mut to_kafka, arguments)?, subject)
        };
        pairs.push((figures(&reference), figures(&subject)));
        println!("  kafka p50/p99/p99.9 {:?} us, pollux {:?} us", figures(&reference), figures(&subject));
    }
    kafka.stop()?;
    pollux.stop()?;
    let mut held = true;
    for (at, name) in ["p50", "p99", "p99.9"].iter().enumerate() {
        let of = |number: &dyn Fn(&Pair) -> f64| -> Result<Spread> {
            Ok(spread(&pairs.iter().map(number).collect::<Vec<f64>>()).ok_or("there is no pair")?)
        };
        let (reference, subject) = (of(&|pair| pair.0[at])?, of(&|pair| pair.1[at])?);
        let ratio = of(&|pair| pair.1[at] / pair.0[at])?;
        println!(
            "  {name:6} kafka {:8.0} us  pollux {:8.0} us  ratio {:.3} ({:.3} to {:.3})",
            reference.median, subject.median, ratio.median, ratio.min, ratio.max
        );
        held &= *name != "p99" || ratio.median <= arguments.ratio_max;
    }
    println!("  p99 at most {} x Kafka's: {}", arguments.ratio_max, if held { "held" } else { "MISSED" });
    Ok(held)
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(fault) => {
            println!("the comparison broke off: {fault}");
            ExitCode::FAILURE
        }
    }
}
