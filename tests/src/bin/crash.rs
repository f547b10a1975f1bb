//! `crash`: rounds of kill -9 under acks=all load, with a checker.
#![forbid(unsafe_code)]

use clap::{Parser, ValueEnum};
use pollux_tests::Result;
use pollux_tests::crash::{self, Plan};
use pollux_tests::node::{Broker, Victim};
use pollux_tests::reference::{Kafka, Wishes};
use pollux_tests::subject::Pollux;
use std::process::ExitCode;
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
    #[arg(long, default_value_t = 4)]
    partitions: i32,
    /// Seconds of load before each kill
    #[arg(long, default_value_t = 1.0)]
    load: f64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// KEY=VALUE of Pollux (--set), for example cores=[0,1]
    #[arg(long = "set")]
    own: Vec<String>,
}

fn run(arguments: &Arguments) -> Result<()> {
    let wishes = Wishes { own: arguments.own.clone(), ..Wishes::default() };
    let mut broker: Box<dyn Broker> = match arguments.against {
        Against::Kafka => Box::new(Kafka::start_new(&wishes)?),
        Against::Pollux => Box::new(Pollux::start_new(&wishes)?),
    };
    let victims = match (arguments.against, arguments.kill) {
        // One process holds both there.
        (Against::Kafka, _) | (Against::Pollux, Kill::Both) => vec![Victim::Everything],
        (Against::Pollux, Kill::Dataplane) => vec![Victim::Dataplane],
        (Against::Pollux, Kill::Controlplane) => vec![Victim::ControlPlane],
        (Against::Pollux, Kill::Turns) => vec![Victim::Dataplane, Victim::ControlPlane, Victim::Everything],
    };
    let plan = Plan {
        rounds: arguments.rounds,
        partitions: arguments.partitions,
        load: Duration::from_secs_f64(arguments.load),
        victims,
        seed: arguments.seed,
    };
    crash::run(broker.as_mut(), &plan)?;
    broker.stop()
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
