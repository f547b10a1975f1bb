//! `recovery`: how long a node takes until clients are served.
#![forbid(unsafe_code)]

use clap::{Parser, Subcommand, ValueEnum};
use pollux_tests::Result;
use pollux_tests::node::Broker;
use pollux_tests::recovery::{self, Plan, start};
use pollux_tests::reference::{Kafka, Wishes};
use pollux_tests::subject::Pollux;
use std::process::ExitCode;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Against {
    Kafka,
    Pollux,
}

/// Measures until a node serves.
#[derive(Parser)]
struct Arguments {
    #[arg(long, value_enum, default_value = "pollux", global = true)]
    against: Against,
    /// KEY=VALUE of Pollux (--set), for example cores=2
    #[arg(long = "set", global = true)]
    own: Vec<String>,
    /// Fail if a measurement is longer than so many milliseconds
    #[arg(long, global = true)]
    at_most: Option<u64>,
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Fills a node, kills it with -9, starts it, and waits until every partition takes and gives records
    Kill {
        #[arg(long, default_value_t = 10 << 10)]
        mib: u64,
        /// Written again before every kill but the first
        #[arg(long, default_value_t = 512)]
        mib_between: u64,
        #[arg(long, default_value_t = 1000)]
        partitions: i32,
        #[arg(long, default_value_t = 3)]
        rounds: u32,
        /// Kill only the pair; its supervisor starts it again
        #[arg(long)]
        supervised: bool,
    },
    /// From the launch of a new node (its format included) to its first acknowledged produce
    First {
        #[arg(long, default_value_t = 5)]
        rounds: u32,
    },
    /// From the launch of `pollux start --ephemeral` to its line
    Ephemeral {
        #[arg(long, default_value_t = 5)]
        rounds: u32,
    },
}

fn prepare(arguments: &Arguments) -> Result<Box<dyn Broker>> {
    let wishes = Wishes { own: arguments.own.clone(), ..Wishes::default() };
    Ok(match arguments.against {
        Against::Kafka => Box::new(Kafka::prepare(&wishes)?),
        Against::Pollux => Box::new(Pollux::prepare(&wishes)?),
    })
}

fn measure(arguments: &Arguments) -> Result<Vec<Duration>> {
    match arguments.what {
        What::Kill { mib, mib_between, partitions, rounds, supervised } => {
            let mut broker = prepare(arguments)?;
            broker.start()?;
            let plan = Plan { bytes: mib << 20, bytes_between: mib_between << 20, partitions, rounds, supervised };
            let served = recovery::run(broker.as_mut(), &plan);
            let served = served.map_err(|fault| format!("{fault}\n{}", broker.log_tail()))?;
            broker.stop()?;
            Ok(served.iter().map(|served| served.all_fetched).collect())
        }
        What::First { rounds } => (0..rounds)
            .map(|_| {
                let took = start::first_start(prepare(arguments)?.as_mut())?;
                println!("first produce {took:?} after the launch");
                Ok(took)
            })
            .collect(),
        What::Ephemeral { rounds } => (0..rounds)
            .map(|_| {
                let told = start::ephemeral(&arguments.own)?;
                println!("ready {:?}, first produce {:?} after the launch", told.ready, told.produced);
                Ok(told.ready)
            })
            .collect(),
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let mut times = measure(arguments)?;
    times.sort_unstable();
    let (Some(fastest), Some(slowest)) = (times.first(), times.last()) else { return Err("no rounds".into()) };
    println!("{} measurements: {fastest:?}, median {:?}, {slowest:?}", times.len(), times[times.len() / 2]);
    match arguments.at_most.map(Duration::from_millis) {
        Some(limit) if *slowest > limit => Err(format!("{slowest:?} is longer than {limit:?}").into()),
        _ => Ok(()),
    }
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
