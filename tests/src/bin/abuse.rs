//! `abuse`: hostile clients, full disks and idle hours against a node of Pollux.
#![forbid(unsafe_code)]

use clap::{Parser, Subcommand};
use pollux_tests::Result;
use pollux_tests::abuse::{connections, frames, full, hosts_disk, idle, many, neighbours, tricklers};
use std::process::ExitCode;
use std::time::Duration;

/// Does to a node what a node has to bear; POLLUX_BIN names the executable.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    mode: Mode,
    /// KEY=VALUE of Pollux (--set), for example cores=2
    #[arg(long = "set", global = true)]
    own: Vec<String>,
}

#[derive(Subcommand)]
enum Mode {
    /// Consumers that never read and decompression bombs beside a steady load, in alternating windows
    Neighbours {
        #[arg(long, default_value_t = 5)]
        pairs: usize,
        #[arg(long, default_value_t = 500)]
        consumers: usize,
        #[arg(long, default_value_t = 5000.0)]
        rate: f64,
        /// Seconds of each window that are counted
        #[arg(long, default_value_t = 10.0)]
        duration: f64,
        #[arg(long, default_value_t = 2.0)]
        warm_up: f64,
        /// MiB of old data for consumers to ask for
        #[arg(long, default_value_t = 256)]
        old: u64,
        #[arg(long, default_value_t = 2.0)]
        ratio_max: f64,
        #[arg(long, default_value_t = 300)]
        resident_max: u64,
        /// Only the consumers
        #[arg(long)]
        without_bombs: bool,
        /// The core that this program keeps to
        #[arg(long)]
        client_core: Option<usize>,
    },
    /// Mutated frames of every API, random bytes and other protocols
    Frames {
        /// For each API; the full campaign is 10000
        #[arg(long, default_value_t = 200)]
        count: usize,
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Only these APIs
        only: Vec<String>,
    },
    /// A full namespace
    Full {
        #[arg(long, default_value = "64MiB")]
        size: String,
    },
    /// A full file system below the namespace and the metadata log (needs root)
    HostsDisk,
    /// Slow, half, many, short-lived and unreading connections
    Connections {
        #[arg(long, default_value_t = 2000)]
        many: usize,
    },
    /// Bytes one at a time, connections by the thousand, half-closed and reset ones, acknowledgements never read
    Tricklers {
        #[arg(long, default_value_t = 400)]
        connections: usize,
        #[arg(long, default_value_t = 20.0)]
        duration: f64,
        #[arg(long, default_value_t = 300)]
        resident_max: u64,
    },
    /// Requests that name very many topics: how long loops are held
    Many {
        #[arg(long, default_value_t = 20_000)]
        topics: usize,
        /// Microseconds that a step of a turn may take; above it the run fails
        #[arg(long)]
        longest: Option<u64>,
    },
    /// What an idle node costs
    Idle {
        #[arg(long, default_value_t = 100)]
        connections: usize,
        #[arg(long, default_value_t = 60.0)]
        duration: f64,
        #[arg(long, default_value_t = 0.5)]
        percent_max: f64,
        #[arg(long, default_value_t = 150)]
        resident_max: u64,
    },
}

fn run(arguments: Arguments) -> Result<()> {
    let own = arguments.own;
    let seconds = Duration::from_secs_f64;
    match arguments.mode {
        Mode::Neighbours {
            pairs,
            consumers,
            rate,
            duration,
            warm_up,
            old,
            ratio_max,
            resident_max,
            without_bombs,
            client_core,
        } => {
            let (warm_up, duration) = (seconds(warm_up), seconds(duration));
            neighbours::run(&neighbours::Plan {
                pairs,
                consumers,
                rate,
                warm_up,
                duration,
                old,
                ratio_max,
                resident_max,
                own,
                client_core,
                without_bombs,
            })
        }
        Mode::Frames { count, seed, only } => frames::run(&frames::Plan { frames: count, seed, only, own }),
        Mode::Full { size } => full::run(&full::Plan { size, own }),
        Mode::HostsDisk => hosts_disk::run(&own),
        Mode::Connections { many } => connections::run(&connections::Plan { many, own }),
        Mode::Tricklers { connections, duration, resident_max } => {
            tricklers::run(&tricklers::Plan { connections, duration: seconds(duration), resident_max, own })
        }
        Mode::Many { topics, longest } => {
            many::run(&many::Plan { topics, longest: longest.map(Duration::from_micros), own })
        }
        Mode::Idle { connections, duration, percent_max, resident_max } => {
            idle::run(&idle::Plan { connections, duration: seconds(duration), percent_max, resident_max, own })
        }
    }
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            println!("FAILED: {fault}");
            ExitCode::FAILURE
        }
    }
}
