//! The executable: the command line, the configuration, and the supervisor that runs the pair.
//!
//! `start` is a small process of its own; `dataplane` and `controlplane` are the two that do the work. It knows how they
//! are started and nothing of how they work. Invariant: the pair never outlives its supervisor. Tests: beside the code,
//! and tests/ runs the built executable.
#![forbid(unsafe_code)]

mod cli;
mod console;
mod media;
mod processes;
mod supervisor;
mod tables;

use clap::Parser;
use cli::{Cli, Command, NodeArgs, StartError};
use std::process::ExitCode;
use std::sync::OnceLock;

/// Lines that wait for whoever reads the log; more are dropped. Their places are memory from the start on: 32 bytes each.
const LOG_LINES_MAX: usize = 4096;

static LOG_ERRORS: OnceLock<tracing_appender::non_blocking::ErrorCounter> = OnceLock::new();

/// Lines of the log that found no place.
fn log_lines_dropped() -> u64 {
    LOG_ERRORS.get().map_or(0, |errors| errors.dropped_lines() as u64)
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let (writer, _flushed_at_exit) = tracing_appender::non_blocking::NonBlockingBuilder::default()
        .buffered_lines_limit(LOG_LINES_MAX)
        .finish(std::io::stderr());
    // Set once, here.
    let _unset = LOG_ERRORS.set(writer.error_counter());
    let filter = tracing_subscriber::EnvFilter::try_from_env("POLLUX_LOG");
    tracing_subscriber::fmt()
        .with_writer(writer)
        .with_env_filter(filter.unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info")))
        .with_ansi(false)
        .with_target(false)
        .init();
    match run(cli.command) {
        Ok(code) => code,
        Err(error) => {
            tracing::error!("{error}");
            exit_code(&error)
        }
    }
}

fn run(command: Command) -> Result<ExitCode, StartError> {
    match command {
        Command::Start(args) => start(args),
        Command::Format(args) => processes::format(&args),
        Command::Dataplane(args) => processes::dataplane(&args),
        Command::Controlplane(args) => processes::controlplane(&args),
        Command::Check(args) => media::check(&args),
        Command::Repair(args) => media::repair(&args),
        Command::Dump(args) => media::dump(&args),
        Command::Export(args) => media::export(&args),
        Command::Import(args) => media::import(&args),
        Command::Version => {
            println!("pollux {} (Apache Kafka 4.4 protocol, metadata.version 4.4-IV2)", env!("CARGO_PKG_VERSION"));
            Ok(ExitCode::SUCCESS)
        }
        Command::Table { name } => match tables::table(&name) {
            Some(table) => {
                print!("{table}");
                Ok(ExitCode::SUCCESS)
            }
            None => Err(StartError::Invalid(format!("there is no table {name}"))),
        },
    }
}

fn start(mut args: NodeArgs) -> Result<ExitCode, StartError> {
    let config = args.config()?;
    let temporary = args.ephemeral.then(processes::temporary_directory).transpose()?;
    if let Some(directory) = &temporary {
        args.data = Some(directory.path().to_owned());
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))
            .map_err(std::io::Error::from)?;
    } else {
        processes::prepare_directory(&config.data.directory)?;
    }
    let data = args.data.clone().unwrap_or_else(|| config.data.directory.clone());
    let run_dir = processes::run_directory(&data)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        if let Some(address) = config.node.metrics {
            let failed = |error| {
                StartError::Invalid(format!(
                    "metrics on {address}: {error}; choose another port (--set 'metrics=\"HOST:PORT\"'), or none \
                     (--set 'metrics=\"off\"')"
                ))
            };
            console::serve(address, run_dir.path().to_owned()).await.map_err(failed)?;
        }
        supervisor::Supervisor::new(args, run_dir.path().to_owned(), &config.node.cores)?.run().await
    })
}

/// Codes that tell the supervisor (and a service manager) that starting again is useless.
fn exit_code(error: &StartError) -> ExitCode {
    match error {
        StartError::Config(_) | StartError::ConfigFile { .. } | StartError::Invalid(_) => {
            ExitCode::from(supervisor::EXIT_CONFIG)
        }
        StartError::Dataplane(error) if error.is_final() => ExitCode::from(supervisor::EXIT_CORRUPTION),
        // Its files were in order when it began.
        StartError::ControlPlane(daemon::DaemonError::Fault(_)) => ExitCode::from(supervisor::EXIT_TEMPORARY),
        // The other half may serve meanwhile.
        StartError::TakenAway(_) => ExitCode::from(supervisor::EXIT_TEMPORARY),
        _ => ExitCode::FAILURE,
    }
}
