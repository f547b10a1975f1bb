//! The subcommands that look at a stopped node's namespace: check, repair, dump, export, import.

use crate::cli::StartError;
use crate::processes;
use base::{Offset, PartitionId};
use clap::Args;
use nvme_tools::{CheckOptions, RepairOptions, Status, ToolError, What};
use serde::Serialize;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The tool could not do what it was asked; check's own codes lie below.
const EXIT_REFUSED: u8 = 4;
/// Bytes between two words about progress.
const PROGRESS_STEP: u64 = 1 << 30;
const REPAIR_LOG: &str = "repair.log";

#[derive(Args, Debug, Clone)]
pub struct CheckArgs {
    /// The node's data directory, or a namespace itself (a file or a block device).
    #[arg(value_name = "DIR")]
    pub data: PathBuf,
    /// Leave the extents unread: only what a start reads.
    #[arg(long)]
    pub quick: bool,
    /// Print the report as one JSON object.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug, Clone)]
pub struct RepairArgs {
    /// The node's data directory, or a namespace itself (a file or a block device).
    #[arg(value_name = "DIR")]
    pub data: PathBuf,
    /// Give up what is named without it; what was done is added to DIR/repair.log.
    #[arg(long)]
    pub accept_loss: bool,
    /// Read every extent too, as check does, and name the offsets that cannot be read any more (a start does not mind
    /// them, and a replica may have them).
    #[arg(long)]
    pub extents: bool,
    /// Print the report as one JSON object.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug, Clone)]
pub struct DumpArgs {
    /// The node's data directory, or a namespace itself (a file or a block device).
    #[arg(value_name = "DIR")]
    pub data: PathBuf,
    /// superblock, regions, roots, lanes, lane=N, partitions, or TOPICID-PARTITION for that one's batches.
    #[arg(value_name = "WHAT")]
    pub what: What,
    /// Print one JSON object a line.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug, Clone)]
pub struct ExportArgs {
    /// The node's data directory, or a namespace itself (a file or a block device).
    #[arg(value_name = "DIR")]
    pub data: PathBuf,
    /// TOPICID-PARTITION, as `dump DIR partitions` names it.
    #[arg(value_name = "PARTITION", value_parser = partition)]
    pub partition: PartitionId,
    /// The segment file to write (Kafka's tools want a name like 00000000000000000000.log) or, to import, to read.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

#[derive(Args, Debug, Clone)]
pub struct RangeArgs {
    #[command(flatten)]
    pub place: ExportArgs,
    /// The first offset wanted; the batch that holds it comes whole.
    #[arg(long, default_value_t = 0)]
    pub from: i64,
    /// The offset before which it ends.
    #[arg(long, default_value_t = i64::MAX)]
    pub to: i64,
}

fn partition(text: &str) -> Result<PartitionId, String> {
    match text.parse::<What>() {
        Ok(What::Batches(id)) => Ok(id),
        _ => Err("a partition is a topic's id, a dash and the partition's number".to_owned()),
    }
}

/// The namespace of a data directory; anything but a directory is one itself.
fn namespace(data: &Path) -> PathBuf {
    if data.is_dir() { data.join("namespace") } else { data.to_owned() }
}

/// A tool's refusal in words, with a code that is none of check's.
fn refused(error: &ToolError) -> ExitCode {
    tracing::error!("{error}");
    ExitCode::from(EXIT_REFUSED)
}

/// Prints; a reader that went away has seen enough.
fn print(report: &(impl Display + Serialize), json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let printed = if json {
        serde_json::to_writer(&mut out, report).map_err(io::Error::from).and_then(|()| writeln!(out))
    } else {
        write!(out, "{report}")
    };
    printed.or_else(enough)
}

fn enough(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) }
}

pub fn check(args: &CheckArgs) -> Result<ExitCode, StartError> {
    let speaks = io::stderr().is_terminal();
    let mut next = PROGRESS_STEP;
    let options = CheckOptions { quick: args.quick };
    let report = nvme_tools::check(&namespace(&args.data), options, &mut |progress| {
        if speaks && progress.done_bytes >= next {
            tracing::info!("read {} of {} bytes", progress.done_bytes, progress.all_bytes);
            next = progress.done_bytes + PROGRESS_STEP;
        }
    });
    match report {
        Ok(report) => {
            print(&report, args.json)?;
            Ok(ExitCode::from(report.status.exit_code()))
        }
        Err(error) => Ok(refused(&error)),
    }
}

pub fn repair(args: &RepairArgs) -> Result<ExitCode, StartError> {
    let (options, seed) = (RepairOptions { extents: args.extents }, processes::random()?.next_u64());
    let report = match nvme_tools::repair(&namespace(&args.data), options, args.accept_loss, seed) {
        Ok(report) => report,
        Err(error) => return Ok(refused(&error)),
    };
    if report.accepted && args.data.is_dir() {
        let mut log = File::options().append(true).create(true).open(args.data.join(REPAIR_LOG))?;
        let seconds = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs();
        for line in &report.audit {
            writeln!(log, "{seconds} {line}")?;
        }
        log.sync_all()?;
    }
    print(&report, args.json)?;
    Ok(match report.losses.is_empty() || report.accepted {
        true if report.left.is_empty() => ExitCode::SUCCESS,
        true => ExitCode::from(Status::Damaged.exit_code()),
        false => ExitCode::from(Status::Suspect.exit_code()),
    })
}

pub fn dump(args: &DumpArgs) -> Result<ExitCode, StartError> {
    let mut out = BufWriter::new(io::stdout().lock());
    let dumped = nvme_tools::dump(&namespace(&args.data), args.what, &mut |line| {
        if args.json { writeln!(out, "{}", line.to_json()) } else { writeln!(out, "{line}") }
    });
    match dumped {
        Err(ToolError::System(error)) => enough(error)?,
        Err(error) => return Ok(refused(&error)),
        Ok(()) => {}
    }
    out.flush().or_else(enough)?;
    Ok(ExitCode::SUCCESS)
}

pub fn export(args: &RangeArgs) -> Result<ExitCode, StartError> {
    let place = &args.place;
    let mut out = BufWriter::new(File::create_new(&place.file)?);
    let range = Offset(args.from)..Offset(args.to);
    match nvme_tools::export(&namespace(&place.data), place.partition, range, &mut out) {
        Ok(done) => {
            out.flush()?;
            println!("{}", serde_json::json!(done));
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => Ok(refused(&error)),
    }
}

pub fn import(args: &ExportArgs) -> Result<ExitCode, StartError> {
    let mut segment = File::open(&args.file)?;
    let seed = processes::random()?.next_u64();
    match nvme_tools::import(&namespace(&args.data), args.partition, &mut segment, seed) {
        Ok(done) => {
            println!("{}", serde_json::json!(done));
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => Ok(refused(&error)),
    }
}

#[cfg(test)]
mod tests {
    use crate::cli::{Cli, Command};
    use clap::Parser;

    #[test]
    fn the_arguments_of_each_tool() {
        let parse = |words: &[&str]| Cli::try_parse_from(words).map(|cli| cli.command);
        assert!(matches!(parse(&["pollux", "check", "d", "--quick"]), Ok(Command::Check(args)) if args.quick));
        assert!(matches!(parse(&["pollux", "repair", "d"]), Ok(Command::Repair(args)) if !args.accept_loss));
        assert!(matches!(parse(&["pollux", "repair", "d", "--extents"]), Ok(Command::Repair(args)) if args.extents));
        assert!(parse(&["pollux", "dump", "d", "lane=1", "--json"]).is_ok());
        assert!(parse(&["pollux", "dump", "d", "nonsense"]).is_err());
        let id = "AAAAAAAAAAAAAAAAAAAD6A-0";
        assert!(
            matches!(parse(&["pollux", "export", "d", id, "f", "--from", "7"]), Ok(Command::Export(a)) if a.from == 7)
        );
        assert!(parse(&["pollux", "import", "d", "regions", "f"]).is_err());
    }
}
