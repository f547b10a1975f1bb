//! `crash`: rounds of kill -9 under acks=all load, with a checker.
#![forbid(unsafe_code)]

use clap::{Parser, ValueEnum};
use pollux_tests::Result;
use pollux_tests::crash::check::Retention;
use pollux_tests::crash::places::{Mixture, Pace};
use pollux_tests::crash::{self, Plan};
use pollux_tests::node::{Broker, Victim};
use pollux_tests::reference::{Kafka, Wishes};
use pollux_tests::subject::{Pollux, program};
use std::process::{Command, ExitCode};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Against {
    Kafka,
    Pollux,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kill {
    Dataplane,
    Controlplane,
    Both,
    /// Dataplane, control plane and both in turn
    Turns,
}

/// Kills a node again and again and looks whether it lost anything.
#[derive(Parser)]
struct Arguments {
    #[arg(long, value_enum, default_value = "pollux")]
    against: Against,
    #[arg(long, value_enum, default_value = "turns")]
    kill: Kill,
    #[arg(long, default_value_t = 20)]
    rounds: u32,
    #[arg(long, default_value_t = 1)]
    topics: usize,
    /// Of each topic
    #[arg(long, default_value_t = 4)]
    partitions: i32,
    /// Seconds of load before each kill
    #[arg(long, default_value_t = 1.0)]
    load: f64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Milliseconds between two batches of a writer
    #[arg(long, default_value_t = 2.0)]
    between: f64,
    /// Records of a batch, at most; one has up to 3,000 bytes
    #[arg(long, default_value_t = 8)]
    batch: u64,
    /// Each partition compresses with another codec
    #[arg(long)]
    codecs: bool,
    /// Every third partition has a producer that is not idempotent
    #[arg(long)]
    plain: bool,
    /// retention.bytes of the topics
    #[arg(long)]
    retention: Option<u64>,
    /// segment.bytes of topics with a retention
    #[arg(long, default_value_t = 1 << 20)]
    segment: u64,
    /// Beside the writers, create, write to and delete so many topics again and again
    #[arg(long, default_value_t = 0)]
    bulk: usize,
    /// Afterwards `pollux check` reads everything that the stopped node has
    #[arg(long)]
    check: bool,
    /// KEY=VALUE of Pollux (--set), for example cores=[0,1]
    #[arg(long = "set")]
    own: Vec<String>,
}

fn plan(arguments: &Arguments) -> Plan {
    let victims = match (arguments.against, arguments.kill) {
        // One process holds both there.
        (Against::Kafka, _) | (Against::Pollux, Kill::Both) => vec![Victim::Everything],
        (Against::Pollux, Kill::Dataplane) => vec![Victim::Dataplane],
        (Against::Pollux, Kill::Controlplane) => vec![Victim::ControlPlane],
        (Against::Pollux, Kill::Turns) => vec![Victim::Dataplane, Victim::ControlPlane, Victim::Everything],
    };
    Plan {
        rounds: arguments.rounds,
        topics: arguments.topics,
        partitions: arguments.partitions,
        load: Duration::from_secs_f64(arguments.load),
        pace: Pace { between: Duration::from_secs_f64(arguments.between / 1000.0), batch_max: arguments.batch.max(1) },
        mixture: Mixture { codecs: arguments.codecs, plain: arguments.plain },
        retention: arguments.retention.map(|bytes| Retention { bytes, segment: arguments.segment }),
        bulk: arguments.bulk,
        victims,
        seed: arguments.seed,
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let wishes = Wishes { own: arguments.own.clone(), ..Wishes::default() };
    let plan = plan(arguments);
    if arguments.against == Against::Kafka {
        let mut kafka = Kafka::start_new(&wishes)?;
        crash::run(&mut kafka, &plan)?;
        return kafka.stop();
    }
    let mut pollux = Pollux::start_new(&wishes)?;
    crash::run(&mut pollux, &plan)?;
    pollux.stop()?;
    if arguments.check {
        let status = Command::new(program()?).arg("check").arg(pollux.data()).status()?;
        if !status.success() {
            return Err(format!("check of the stopped node ends with {status}").into());
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            println!("FAILED: {fault}");
            ExitCode::FAILURE
        }
    }
}
