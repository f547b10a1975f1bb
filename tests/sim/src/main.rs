//! Campaigns of the simulation: one seed, or many.

use clap::Parser;
use std::panic::AssertUnwindSafe;

/// Runs the dataplane in the simulator.
#[derive(Parser)]
struct Arguments {
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many seeds.
    #[arg(long, default_value_t = 1)]
    count: u64,
    /// Steps of each.
    #[arg(long, default_value_t = 20_000)]
    steps: u64,
    /// Prints what happens.
    #[arg(long)]
    verbose: bool,
    /// Nothing goes wrong.
    #[arg(long)]
    plain: bool,
    /// Runs each seed twice and compares.
    #[arg(long)]
    twice: bool,
}

fn main() -> std::process::ExitCode {
    let arguments = Arguments::parse();
    if arguments.verbose {
        tracing_subscriber::fmt().without_time().with_max_level(tracing::Level::DEBUG).init();
    }
    let run = |seed| match arguments.plain {
        true => pollux_sim::run_plain(seed, arguments.steps),
        false => pollux_sim::run(seed, arguments.steps),
    };
    let mut failed = Vec::new();
    for seed in arguments.seed..arguments.seed + arguments.count {
        match std::panic::catch_unwind(AssertUnwindSafe(|| run(seed))) {
            Ok(world) => {
                println!(
                    "seed {seed}: {:?} {:?} {:?} {:?}",
                    world.simulated(),
                    world.trace,
                    world.happened,
                    world.stats()
                );
                if arguments.twice {
                    assert_eq!(run(seed).trace, world.trace, "seed {seed} repeats");
                }
            }
            Err(_) => {
                println!("seed {seed} failed");
                failed.push(seed);
            }
        }
    }
    println!("failed: {failed:?}");
    if failed.is_empty() { std::process::ExitCode::SUCCESS } else { std::process::ExitCode::FAILURE }
}
