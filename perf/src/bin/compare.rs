//! `compare`: Apache Kafka and Pollux under the same load in one run, alternating, brokers on one core, client on
//! another.
#![forbid(unsafe_code)]

use clap::Parser;
use perf::compare::{self, Window};
use perf::load::Options;
use perf::nodes::reference::{Kafka, Wishes};
use perf::nodes::subject::Pollux;
use perf::nodes::{Broker, Result, java};
use perf::process;
use perf::schedule::Arrivals;
use std::process::ExitCode;
use std::time::Duration;

/// Compares Pollux with Apache Kafka, both promises: acknowledged in the cache, acknowledged on the medium.
#[derive(Parser)]
struct Arguments {
    /// Only scenarios whose name contains one of these
    filters: Vec<String>,
    /// Pairs of windows for each scenario
    #[arg(long, default_value_t = 5)]
    pairs: usize,
    /// Seconds of each window that are counted
    #[arg(long, default_value_t = 10.0)]
    duration: f64,
    #[arg(long, default_value_t = 3.0)]
    warm_up: f64,
    #[arg(long, default_value_t = 0)]
    broker_core: usize,
    #[arg(long, default_value_t = 1)]
    client_core: usize,
    /// Count windows in which others took more than 1 % of a core too
    #[arg(long)]
    keep_disturbed: bool,
    /// Measure Apache Kafka alone
    #[arg(long)]
    kafka_only: bool,
}

/// A promise, as each broker is asked for it, and a rate.
struct Scenario {
    name: &'static str,
    kafka: &'static [(&'static str, &'static str)],
    durability: &'static str,
    rate: f64,
}

const FLUSHED: &[(&str, &str)] = &[("flush.messages", "1")];

const SCENARIOS: &[Scenario] = &[
    Scenario { name: "cache-1k", kafka: &[], durability: "cache", rate: 1_000.0 },
    Scenario { name: "cache-5k", kafka: &[], durability: "cache", rate: 5_000.0 },
    Scenario { name: "cache-20k", kafka: &[], durability: "cache", rate: 20_000.0 },
    // Against what Kafka does by default: each acknowledgement of Pollux means more here.
    Scenario { name: "flush-against-cache-1k", kafka: &[], durability: "flush", rate: 1_000.0 },
    Scenario { name: "flush-against-cache-5k", kafka: &[], durability: "flush", rate: 5_000.0 },
    Scenario { name: "flush-against-cache-20k", kafka: &[], durability: "flush", rate: 20_000.0 },
    // The same promise on both sides.
    Scenario { name: "flush-1k", kafka: FLUSHED, durability: "flush", rate: 1_000.0 },
];

fn options(arguments: &Arguments, scenario: &Scenario, kafka: bool) -> Options {
    let configs = if kafka { scenario.kafka } else { &[] };
    Options {
        bootstrap: std::net::SocketAddr::from((std::net::Ipv4Addr::LOCALHOST, 0)),
        topic: format!("load-{}", scenario.name),
        partitions: 1,
        configs: configs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        connections: 4,
        record_size: 1024,
        acks: -1,
        rate: scenario.rate,
        arrivals: Arrivals::Uniform,
        warm_up: Duration::from_secs_f64(arguments.warm_up),
        duration: Duration::from_secs_f64(arguments.duration),
        sleep: false,
        seed: 1,
    }
}

/// The brokers, reference first.
struct Pair {
    kafka: Kafka,
    pollux: Option<Pollux>,
}

impl Pair {
    fn start(arguments: &Arguments, durability: &str) -> Result<Pair> {
        let prefix: Vec<String> = ["taskset", "-c", &arguments.broker_core.to_string()].map(str::to_owned).to_vec();
        let wishes = Wishes {
            prefix,
            jvm_options: Some(java::kafka_options()),
            own: vec![format!("durability=\"{durability}\"")],
            // Kafka's own default in place of the tests' haste.
            settings: [("log.retention.check.interval.ms".to_owned(), "300000".to_owned())].into(),
        };
        let kafka = Kafka::start_new(&wishes)?;
        let pollux = if arguments.kafka_only { None } else { Some(Pollux::start_new(&wishes)?) };
        Ok(Pair { kafka, pollux })
    }

    fn pids(&self) -> Result<Vec<u32>> {
        let mut pids = self.kafka.pids()?;
        if let Some(pollux) = &self.pollux {
            pids.extend(pollux.pids()?);
        }
        Ok(pids)
    }

    fn window(&self, arguments: &Arguments, scenario: &Scenario, kafka: bool) -> Result<Window> {
        let broker: &dyn Broker = match (&self.pollux, kafka) {
            (Some(pollux), false) => pollux,
            _ => &self.kafka,
        };
        let options = options(arguments, scenario, kafka);
        let window = compare::window(broker, &self.pids()?, arguments.broker_core, &options)?;
        println!(
            "  {:6} {}; others took {:.1} % of a core{}",
            broker.name(),
            perf::report::text(&options, &window.outcome, Some(window.spent)),
            window.others * 100.0,
            if window.is_disturbed() { " (disturbed)" } else { "" },
        );
        Ok(window)
    }

    fn stop(mut self) -> Result<()> {
        self.kafka.stop()?;
        self.pollux.as_mut().map_or(Ok(()), Broker::stop)
    }
}

fn scenario(arguments: &Arguments, scenario: &Scenario) -> Result<()> {
    println!("{} (Pollux: durability {}, Kafka: {:?})", scenario.name, scenario.durability, scenario.kafka);
    let pair = Pair::start(arguments, scenario.durability)?;
    // The reference's code is compiled while it runs: what is counted comes after that.
    pair.window(arguments, scenario, true)?;
    let (mut kept, mut dropped) = (Vec::new(), 0);
    for number in 0..arguments.pairs {
        // Each goes first as often as the other.
        let kafka_first = number % 2 == 0;
        let first = pair.window(arguments, scenario, kafka_first)?;
        let second = if arguments.kafka_only { first.clone() } else { pair.window(arguments, scenario, !kafka_first)? };
        if !arguments.keep_disturbed && (first.is_disturbed() || second.is_disturbed()) {
            dropped += 1;
            continue;
        }
        kept.push(if kafka_first { (first, second) } else { (second, first) });
    }
    pair.stop()?;
    println!("  {} pairs counted, {dropped} dropped because others took more than 1 % of a core", kept.len());
    for row in compare::table(&kept) {
        println!(
            "  {:13} kafka {:9.1} ({:.1} to {:.1})  pollux {:9.1} ({:.1} to {:.1})  ratio {:.3} ({:.3} to {:.3})",
            row.name,
            row.reference.median,
            row.reference.min,
            row.reference.max,
            row.subject.median,
            row.subject.min,
            row.subject.max,
            row.ratio.median,
            row.ratio.min,
            row.ratio.max,
        );
    }
    Ok(())
}

fn run(arguments: &Arguments) -> Result<()> {
    process::pin_to(arguments.client_core)?;
    let chosen = |scenario: &&Scenario| {
        arguments.filters.is_empty() || arguments.filters.iter().any(|filter| scenario.name.contains(filter.as_str()))
    };
    for chosen in SCENARIOS.iter().filter(chosen) {
        scenario(arguments, chosen)?;
    }
    Ok(())
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            println!("the comparison broke off: {fault}");
            ExitCode::FAILURE
        }
    }
}
