//! `outage`: what clients get while a node's control plane is down, API by API.
#![forbid(unsafe_code)]

use clap::Parser;
use std::process::ExitCode;

/// Kills the control plane alone and asks every API.
#[derive(Parser)]
struct Arguments {
    /// KEY=VALUE of Pollux (--set), for example cores=2
    #[arg(long = "set")]
    own: Vec<String>,
}

fn main() -> ExitCode {
    match pollux_tests::outage::run(&Arguments::parse().own) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            println!("FAILED: {fault}");
            ExitCode::FAILURE
        }
    }
}
