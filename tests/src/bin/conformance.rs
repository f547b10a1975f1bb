//! `conformance`: the same cases against Apache Kafka and against Pollux, and what differs.
#![forbid(unsafe_code)]

use clap::{Parser, ValueEnum};
use pollux_tests::cases::known::Known;
use pollux_tests::cases::run::Detail;
use pollux_tests::cases::{self, Case};
use pollux_tests::differential::{self, mask};
use pollux_tests::jvm::Runner;
use pollux_tests::node::{Broker, Scratch};
use pollux_tests::reference::{Kafka, Wishes};
use pollux_tests::subject::Pollux;
use pollux_tests::{Fault, Result};
use std::cell::RefCell;
use std::process::ExitCode;
use wire::ApiKey;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Against {
    /// The reference alone: do the cases get through?
    Kafka,
    /// The reference twice: is every result that is compared the same for two nodes of one kind?
    KafkaTwice,
    Pollux,
    /// The reference, then Pollux, compared.
    Both,
}

/// Runs the conformance cases.
#[derive(Parser)]
struct Arguments {
    #[arg(long, value_enum, default_value = "both")]
    against: Against,
    /// Only cases whose name contains one of these
    filters: Vec<String>,
    /// Leave out cases whose name contains one of these
    #[arg(long)]
    without: Vec<String>,
    /// KEY=VALUE of Pollux (--set), for example cores=[0,1]
    #[arg(long = "set")]
    own: Vec<String>,
    /// Only list the names
    #[arg(long)]
    list: bool,
    /// Print what the first broker answered
    #[arg(long)]
    show: bool,
    /// How many differences of a case are printed
    #[arg(long, default_value_t = 12)]
    differences: usize,
    /// Cases about size take the sizes they are about, which takes long: trap/idle-consumers, trap/large-topics
    #[arg(long)]
    long: bool,
    /// A skipped case counts as failed
    #[arg(long)]
    no_skips: bool,
    /// A file of known differences, a case and a path a line: they are left out, and all others fail the run
    #[arg(long, value_name = "FILE")]
    known: Option<std::path::PathBuf>,
}

fn start(against: Against, wishes: &Wishes) -> Result<Vec<Box<dyn Broker>>> {
    let mut brokers: Vec<Box<dyn Broker>> = Vec::new();
    if against != Against::Pollux {
        brokers.push(Box::new(Kafka::start_new(wishes)?));
    }
    match against {
        Against::Kafka => {}
        Against::KafkaTwice => brokers.push(Box::new(Kafka::start_new(wishes)?)),
        Against::Pollux | Against::Both => brokers.push(Box::new(Pollux::start_new(wishes)?)),
    }
    Ok(brokers)
}

fn chosen(arguments: &Arguments, cases: Vec<Case>) -> Vec<Case> {
    let any = |words: &[String], name: &str| words.iter().any(|word| name.contains(word.as_str()));
    cases
        .into_iter()
        .filter(|case| arguments.filters.is_empty() || any(&arguments.filters, &case.name))
        .filter(|case| !any(&arguments.without, &case.name))
        .collect()
}

fn run(arguments: &Arguments) -> Result<bool> {
    let scratch = Scratch::new("runner")?;
    let java = RefCell::new(Runner::start(&scratch.path().join("log"))?);
    let wishes = Wishes { own: arguments.own.clone(), ..Wishes::default() };
    let mut brokers = start(arguments.against, &wishes)?;
    let subject = brokers.last().ok_or("a broker was started")?;
    let mut advertised = differential::advertised(subject.address())?;
    if subject.name() == "kafka" {
        // The reference serves more than has a script yet; a missing script fails where Pollux advertises the API.
        let scripted: Vec<ApiKey> = differential::scripts::apis().collect();
        advertised.retain(|api, _| scripted.contains(api));
    }
    let served: Vec<ApiKey> = advertised.keys().copied().collect();
    let cases = chosen(arguments, cases::all(&java.borrow_mut().cases()?, &advertised));
    if arguments.list {
        cases.iter().for_each(|case| println!("{}", case.name));
    } else {
        mask::print();
        let detail = Detail { answers: arguments.show, differences: arguments.differences, long: arguments.long };
        let known = arguments.known.as_deref().map_or_else(|| Ok(Known::default()), Known::read)?;
        let summary = cases::run::run(&cases, &mut brokers, &java, &served, &known, detail)?;
        for line in known.stale() {
            println!("listed as a known difference, and equal: {line}");
        }
        for name in summary.failed.iter().filter(|_| arguments.known.is_some()) {
            println!("new: {name}");
        }
        summary.print();
        let ran = !(summary.passed.is_empty() && summary.failed.is_empty());
        if !ran {
            println!("no case has run");
        }
        let skips = arguments.no_skips && !summary.skipped.is_empty();
        stop(brokers, java.into_inner())?;
        return Ok(ran && summary.failed.is_empty() && !skips);
    }
    stop(brokers, java.into_inner())?;
    Ok(true)
}

fn stop(brokers: Vec<Box<dyn Broker>>, java: Runner) -> Result<()> {
    for mut broker in brokers {
        broker.stop()?;
    }
    java.finish()
}

fn main() -> ExitCode {
    let report = |fault: Fault| {
        println!("the run broke off: {fault}");
        ExitCode::FAILURE
    };
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(fault) => report(fault),
    }
}
