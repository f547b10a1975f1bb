//! `load`: one run of the open-loop load generator against one broker.
#![forbid(unsafe_code)]

use clap::Parser;
use perf::load::{self, Options};
use perf::process;
use perf::report::{self, Spent};
use perf::schedule::Arrivals;
use std::error::Error;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

/// Sends one record a request, when due, and measures from the due time.
#[derive(Parser)]
struct Arguments {
    /// HOST:PORT of the broker
    #[arg(long, default_value = "127.0.0.1:9092")]
    bootstrap: String,
    #[arg(long, default_value = "load")]
    topic: String,
    #[arg(long, default_value_t = 1)]
    partitions: i32,
    /// NAME=VALUE of the topic, if this run creates it
    #[arg(long = "topic-config")]
    topic_configs: Vec<String>,
    #[arg(long, default_value_t = 4)]
    connections: usize,
    /// Bytes of a record's value
    #[arg(long, default_value_t = 1024)]
    size: usize,
    /// 1, or -1 for all
    #[arg(long, default_value_t = -1, allow_hyphen_values = true)]
    acks: i16,
    /// Requests per second over all connections
    #[arg(long, default_value_t = 1000.0)]
    rate: f64,
    #[arg(long, value_enum, default_value = "uniform")]
    arrivals: Arrivals,
    /// Seconds that are not counted
    #[arg(long, default_value_t = 5.0)]
    warm_up: f64,
    /// Seconds that are counted
    #[arg(long, default_value_t = 20.0)]
    duration: f64,
    /// Sleep between requests instead of spinning
    #[arg(long)]
    sleep: bool,
    /// The core this client stays on
    #[arg(long)]
    core: Option<usize>,
    /// Broker process whose CPU time is measured, with all its descendants; may be given several times
    #[arg(long = "pid")]
    pids: Vec<u32>,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

fn options(arguments: &Arguments) -> Result<Options, Box<dyn Error>> {
    let bootstrap: SocketAddr =
        arguments.bootstrap.to_socket_addrs()?.next().ok_or("the bootstrap address names no host")?;
    let mut configs = Vec::new();
    for config in &arguments.topic_configs {
        let (name, value) = config.split_once('=').ok_or("a topic config is NAME=VALUE")?;
        configs.push((name.to_owned(), value.to_owned()));
    }
    if arguments.acks == 0 || arguments.connections == 0 || arguments.partitions < 1 || arguments.rate <= 0.0 {
        return Err("acks, connections, partitions and rate are not 0".into());
    }
    Ok(Options {
        bootstrap,
        topic: arguments.topic.clone(),
        partitions: arguments.partitions,
        configs,
        connections: arguments.connections,
        record_size: arguments.size,
        acks: arguments.acks,
        rate: arguments.rate,
        arrivals: arguments.arrivals,
        warm_up: Duration::from_secs_f64(arguments.warm_up),
        duration: Duration::from_secs_f64(arguments.duration),
        sleep: arguments.sleep,
        seed: arguments.seed,
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let options = options(&arguments)?;
    if let Some(core) = arguments.core {
        process::pin_to(core)?;
    }
    let mut pids = Vec::new();
    for pid in &arguments.pids {
        pids.extend(process::tree(*pid)?);
    }
    load::prepare(&options)?;
    let mut before = None;
    let outcome = load::run(&options, || before = process::usage(&pids).ok())?;
    let spent = match before {
        Some(before) if !pids.is_empty() => Some(Spent::between(before, process::usage(&pids)?)),
        _ => None,
    };
    if arguments.json {
        println!("{}", report::json(&options, &outcome, spent));
    } else {
        println!("{}", report::text(&options, &outcome, spent));
    }
    if outcome.unanswered > 0 || !outcome.errors.is_empty() {
        return Err("not every request was acknowledged".into());
    }
    Ok(())
}
