//! `compare`: Apache Kafka and Pollux under the same load in one run, alternating, brokers on one core, client on
//! another.
#![forbid(unsafe_code)]

use clap::Parser;
use hdrhistogram::Histogram;
use perf::compare::{self, Row, Window};
use perf::floor::Floor;
use perf::load::Options;
use perf::loopback;
use perf::nodes::reference::{Kafka, Wishes};
use perf::nodes::subject::Pollux;
use perf::nodes::{Broker, Result, java};
use perf::process::{self, StandStill};
use perf::schedule::Arrivals;
use perf::steady::Steady;
use std::process::ExitCode;
use std::time::Duration;

/// Compares Pollux with Apache Kafka, both promises: acknowledged in the cache, acknowledged on the medium.
#[derive(Parser)]
struct Arguments {
    /// Only scenarios whose name begins with one of these
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
    /// Where nothing is flushed, keep both cores awake, and let brokers and client go before the machine's own services
    /// (needs root)
    #[arg(long)]
    steady: bool,
}

/// A promise, as each broker is asked for it, and a rate for each; and what is expected of the first version.
struct Scenario {
    name: &'static str,
    kafka: &'static [(&'static str, &'static str)],
    durability: &'static str,
    kafka_rate: f64,
    pollux_rate: f64,
    gates: &'static [Gate],
}

/// What the median over the pairs has to keep to.
#[derive(Clone, Copy)]
enum Gate {
    /// Pollux's figure is at most so many times Kafka's.
    AtMost(&'static str, f64),
    /// Pollux's figure is at least so many times Kafka's.
    AtLeast(&'static str, f64),
    /// Pollux's figure is below so much.
    Below(&'static str, f64),
}

impl Gate {
    fn check(self, rows: &[Row]) -> Option<(String, bool)> {
        let row = |name: &str| rows.iter().find(|row| row.name == name);
        Some(match self {
            Gate::AtMost(name, times) => {
                let ratio = row(name)?.ratio.median;
                (format!("{name} at most {times} x Kafka's: {ratio:.3}"), ratio <= times)
            }
            Gate::AtLeast(name, times) => {
                let ratio = row(name)?.ratio.median;
                (format!("{name} at least {times} x Kafka's: {ratio:.2}"), ratio >= times)
            }
            Gate::Below(name, limit) => {
                let most = row(name)?.subject.max;
                (format!("{name} below {limit}: {most:.1}"), most < limit)
            }
        })
    }
}

const FLUSHED: &[(&str, &str)] = &[("flush.messages", "1")];

const fn at_one_rate(
    name: &'static str,
    kafka: &'static [(&'static str, &'static str)],
    durability: &'static str,
    rate: f64,
    gates: &'static [Gate],
) -> Scenario {
    Scenario { name, kafka, durability, kafka_rate: rate, pollux_rate: rate, gates }
}

const HALF: &[Gate] = &[Gate::AtMost("p99", 0.5)];
const HALF_AND_SMALL: &[Gate] = &[Gate::AtMost("p99", 0.5), Gate::Below("resident MiB", 300.0)];

const SCENARIOS: &[Scenario] = &[
    at_one_rate("cache-1k", &[], "cache", 1_000.0, HALF),
    at_one_rate("cache-5k", &[], "cache", 5_000.0, HALF),
    at_one_rate("cache-20k", &[], "cache", 20_000.0, HALF_AND_SMALL),
    // Against what Kafka does by default: each acknowledgement of Pollux means more here.
    at_one_rate("flush-against-cache-1k", &[], "flush", 1_000.0, &[Gate::AtMost("p99", 1.5)]),
    at_one_rate("flush-against-cache-5k", &[], "flush", 5_000.0, &[Gate::AtMost("p99", 1.5)]),
    at_one_rate("flush-against-cache-20k", &[], "flush", 20_000.0, &[Gate::AtMost("p99", 0.25)]),
    // The same promise on both sides.
    at_one_rate("flush-1k", FLUSHED, "flush", 1_000.0, &[]),
    // Both are asked for more than Kafka can do: what they achieve is their ceiling.
    Scenario {
        name: "flush-ceiling",
        kafka: FLUSHED,
        durability: "flush",
        kafka_rate: 4_000.0,
        pollux_rate: 30_000.0,
        gates: &[Gate::AtLeast("achieved/s", 10.0)],
    },
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
        rate: if kafka { scenario.kafka_rate } else { scenario.pollux_rate },
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
    floor: Floor,
    /// Ends with them.
    steady: Steady,
}

/// The reference's code is compiled while it runs: windows that are not counted go on until the CPU time of a request
/// falls no more, at most so many.
const WARMING_MAX: usize = 24;
const WARMING_RATE: f64 = 5_000.0;
/// A window that costs less than this share of the cheapest before it says that the code still changes.
const SETTLED: f64 = 0.93;
/// So many windows in a row without a fall are the end.
const SETTLED_WINDOWS: usize = 3;

impl Pair {
    fn start(arguments: &Arguments, durability: &str) -> Result<Pair> {
        let cores = [arguments.broker_core, arguments.client_core];
        let steady = if arguments.steady && durability == "cache" { Steady::begin(&cores)? } else { Steady::default() };
        let prefix: Vec<String> = ["taskset", "-c", &arguments.broker_core.to_string()].map(str::to_owned).to_vec();
        let wishes = Wishes {
            prefix,
            jvm_options: Some(java::kafka_options()),
            own: vec![format!("durability=\"{durability}\"")],
            // Kafka's own default in place of the tests' haste; and a session that outlives the windows in which a broker
            // stands still.
            settings: [("log.retention.check.interval.ms", "300000"), ("broker.session.timeout.ms", "3600000")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            ..Wishes::default()
        };
        let kafka = Kafka::start_new(&wishes)?;
        let pollux = if arguments.kafka_only { None } else { Some(Pollux::start_new(&wishes)?) };
        Ok(Pair { kafka, pollux, floor: Floor::make(&std::env::temp_dir())?, steady })
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
        let window = compare::window(broker, &self.pids()?, arguments.broker_core, &self.steady, &options)
            .map_err(|fault| format!("{}: {fault}\n{}", broker.name(), broker.log_tail()))?;
        println!(
            "  {:6} {}; others took {:.1} % of a core{}",
            broker.name(),
            perf::report::text(&options, &window.outcome, Some(window.spent)),
            window.others * 100.0,
            if window.is_disturbed() { " (disturbed)" } else { "" },
        );
        Ok(window)
    }

    /// On a topic of its own, under a rate at which a request costs enough to be seen.
    fn warm(&self, arguments: &Arguments) -> Result<()> {
        let warming = at_one_rate("warming", &[], "", WARMING_RATE, &[]);
        let options = Options { warm_up: Duration::ZERO, ..options(arguments, &warming, true) };
        let (mut cheapest, mut settled) = (f64::INFINITY, 0);
        for number in 1..=WARMING_MAX {
            let window = compare::window(&self.kafka, &self.pids()?, arguments.broker_core, &self.steady, &options)?;
            let cost = window.spent.cpu.as_secs_f64() * 1e6 / window.outcome.counted.max(1) as f64;
            settled = if cost < cheapest * SETTLED { 0 } else { settled + 1 };
            cheapest = cheapest.min(cost);
            if settled == SETTLED_WINDOWS {
                println!("  kafka is warm after {number} windows at {WARMING_RATE}/s: {cost:.1} us CPU a request");
                return Ok(());
            }
        }
        println!("  kafka still gets cheaper after {WARMING_MAX} windows");
        Ok(())
    }

    fn stop(mut self) -> Result<()> {
        self.kafka.stop()?;
        self.pollux.as_mut().map_or(Ok(()), Broker::stop)
    }
}

/// The record, its batch and its commit take about so much more than its value.
const OVERHEAD: usize = 150;

/// What the machine alone makes of the scenario, while both brokers are idle: sockets and the scheduler, and for a promise
/// about the medium the device.
fn machine(arguments: &Arguments, scenario: &Scenario, brokers: Vec<u32>, floor: &Floor) -> Result<()> {
    let (core, rate) = (arguments.broker_core, scenario.pollux_rate);
    let told = |what: &str, latencies: &Histogram<u64>, how: &str| {
        print!("  {what:6}");
        for (name, percentile) in perf::report::PERCENTILES {
            print!(" {name} {}", latencies.value_at_percentile(percentile));
        }
        println!(" max {} us: {how}", latencies.max());
    };
    let _brokers = StandStill::begin(brokers)?;
    rustix::fs::sync();
    let outcome = loopback::measure(core, &options(arguments, scenario, false))?;
    told("socket", &outcome.latencies, "a thread on the brokers' core that answers and does nothing else");
    if scenario.durability != "flush" {
        return Ok(());
    }
    let measured = std::thread::scope(|scope| {
        let measuring = scope.spawn(|| {
            process::pin_to(core)?;
            floor.measure(1024 + OVERHEAD, rate, Duration::from_secs_f64(arguments.duration))
        });
        measuring.join()
    });
    let latencies = measured.map_err(|_| "the measurement of the device panicked")??;
    told("device", &latencies, "one write and one flush at a time, for all that is due");
    Ok(())
}

/// Returns how many of its gates were missed.
fn scenario(arguments: &Arguments, scenario: &Scenario, pair: &Pair) -> Result<usize> {
    println!("{} (Pollux: durability {}, Kafka: {:?})", scenario.name, scenario.durability, scenario.kafka);
    // Once each at the rate itself, not counted either.
    pair.window(arguments, scenario, true)?;
    if !arguments.kafka_only {
        pair.window(arguments, scenario, false)?;
    }
    let (mut kept, mut dropped) = (Vec::new(), 0);
    for number in 0..arguments.pairs {
        machine(arguments, scenario, pair.pids()?, &pair.floor)?;
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
    println!("  {} pairs counted, {dropped} dropped because others took more than 1 % of a core", kept.len());
    let rows = compare::table(&kept);
    for row in &rows {
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
    if arguments.kafka_only {
        return Ok(0);
    }
    let mut missed = 0;
    for gate in scenario.gates {
        let (text, held) = gate.check(&rows).unwrap_or_else(|| ("no undisturbed pair to judge by".to_owned(), false));
        println!("  {}: {text}", if held { "held" } else { "MISSED" });
        missed += usize::from(!held);
    }
    Ok(missed)
}

/// Returns how many gates were missed.
fn run(arguments: &Arguments) -> Result<usize> {
    process::pin_to(arguments.client_core)?;
    let chosen = |scenario: &&Scenario| {
        arguments.filters.is_empty()
            || arguments.filters.iter().any(|filter| scenario.name.starts_with(filter.as_str()))
    };
    let mut missed = 0;
    let chosen: Vec<&Scenario> = SCENARIOS.iter().filter(chosen).collect();
    // The reference is warmed once for all scenarios under the same promise.
    for scenarios in chosen.chunk_by(|a, b| a.durability == b.durability) {
        let pair = Pair::start(arguments, scenarios[0].durability)?;
        pair.warm(arguments)?;
        for chosen in scenarios {
            missed += scenario(arguments, chosen, &pair)?;
        }
        pair.stop()?;
    }
    Ok(missed)
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(missed) => {
            println!("{missed} of the figures are not what is expected of them");
            ExitCode::FAILURE
        }
        Err(fault) => {
            println!("the comparison broke off: {fault}");
            ExitCode::FAILURE
        }
    }
}
