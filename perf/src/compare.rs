//! Apache Kafka and Pollux in one run, alternating, as ratios with their spread.

use crate::load::{self, Options, Outcome};
use crate::nodes::{Broker, Result};
use crate::process::{self, StandStill, Usage};
use crate::report::{PERCENTILES, Spent};
use crate::steady::Steady;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// A window is dropped when somebody else took more of the machine than this share of one core, or the hypervisor did.
const OTHERS_MAX: f64 = 0.01;

/// One run of the load against one broker.
#[derive(Clone, Debug)]
pub struct Window {
    pub outcome: Outcome,
    pub spent: Spent,
    /// Time that the broker's core was busy, whoever kept it busy.
    pub core_busy: Duration,
    /// Time that other processes and the hypervisor took meanwhile, as a share of one core.
    pub others: f64,
}

impl Window {
    pub fn is_disturbed(&self) -> bool {
        self.others > OTHERS_MAX
    }

    /// The figures that are compared, by name.
    pub fn figures(&self) -> Vec<(&'static str, f64)> {
        let latencies = &self.outcome.latencies;
        let requests = self.outcome.counted.max(1) as f64;
        let mut figures: Vec<(&'static str, f64)> = PERCENTILES
            .iter()
            .map(|(name, percentile)| (*name, latencies.value_at_percentile(*percentile) as f64))
            .collect();
        figures.push(("max", latencies.max() as f64));
        figures.push(("achieved/s", self.outcome.achieved));
        figures.push(("run delay us", self.spent.run_delay.as_secs_f64() * 1e6 / requests));
        figures.push(("cpu/request", self.spent.cpu.as_secs_f64() * 1e6 / requests));
        figures.push(("core/request", self.core_busy.as_secs_f64() * 1e6 / requests));
        figures.push(("resident MiB", self.spent.resident_bytes as f64 / f64::from(1 << 20)));
        figures
    }
}

/// Everything that is read from /proc at one moment.
struct Reading {
    at: Instant,
    broker: Usage,
    core_busy: Duration,
    stolen: Duration,
    others: Duration,
}

fn read(broker: &[u32], ours: &BTreeSet<u32>, core: usize, idlers: &[u32]) -> std::io::Result<Reading> {
    let time = process::core_time(core)?;
    Ok(Reading {
        at: Instant::now(),
        broker: process::usage(broker)?,
        core_busy: time.busy.saturating_sub(process::usage(idlers)?.cpu),
        stolen: time.stolen,
        others: process::cpu_of_others(ours)?,
    })
}

/// Runs the load against a broker whose processes are bound to `core`. `brokers` are the processes of all brokers of
/// the run: the others stand still meanwhile. They are no strangers, and neither is what keeps cores awake.
pub fn window(broker: &dyn Broker, brokers: &[u32], core: usize, steady: &Steady, options: &Options) -> Result<Window> {
    let (pids, idlers) = (broker.pids()?, steady.on(core));
    let ours: BTreeSet<u32> = brokers.iter().copied().chain(steady.pids()).chain([std::process::id()]).collect();
    let options = Options { bootstrap: broker.address(), ..options.clone() };
    let _others = StandStill::begin(brokers.iter().copied().filter(|pid| !pids.contains(pid)).collect())?;
    load::prepare(&options)?;
    // What earlier windows left in the page cache, one broker's more than the other's, is not written in this one.
    rustix::fs::sync();
    let mut before = None;
    let outcome = load::run(&options, || before = Some(read(&pids, &ours, core, &idlers)))?;
    let before = before.ok_or("the counted part never began")??;
    let after = read(&pids, &ours, core, &idlers)?;
    let span = after.at.duration_since(before.at).as_secs_f64();
    let taken = after.others.saturating_sub(before.others) + after.stolen.saturating_sub(before.stolen);
    Ok(Window {
        outcome,
        spent: Spent::between(before.broker, after.broker),
        core_busy: after.core_busy.saturating_sub(before.core_busy),
        others: taken.as_secs_f64() / span,
    })
}

/// Median, smallest and largest of some numbers; `None` of none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

pub fn spread(numbers: &[f64]) -> Option<Spread> {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (min, max) = (*sorted.first()?, *sorted.last()?);
    let middle = sorted.len() / 2;
    let odd = sorted.len() % 2 == 1;
    let median = if odd { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
    Some(Spread { median, min, max })
}

/// The figures of pairs of windows, reference first: each figure's values and the ratio subject / reference.
pub fn table(pairs: &[(Window, Window)]) -> Vec<Row> {
    let Some((first, _)) = pairs.first() else { return Vec::new() };
    let names: Vec<&'static str> = first.figures().iter().map(|(name, _)| *name).collect();
    let row = |(index, name): (usize, &&'static str)| {
        let of = |window: &Window| window.figures()[index].1;
        let reference: Vec<f64> = pairs.iter().map(|(reference, _)| of(reference)).collect();
        let subject: Vec<f64> = pairs.iter().map(|(_, subject)| of(subject)).collect();
        let ratios: Vec<f64> = reference.iter().zip(&subject).map(|(r, s)| s / r).collect();
        Some(Row { name, reference: spread(&reference)?, subject: spread(&subject)?, ratio: spread(&ratios)? })
    };
    names.iter().enumerate().filter_map(row).collect()
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    pub name: &'static str,
    pub reference: Spread,
    pub subject: Spread,
    pub ratio: Spread,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_of_numbers_in_any_order() {
        assert_eq!(spread(&[3.0, 1.0, 2.0]), Some(Spread { median: 2.0, min: 1.0, max: 3.0 }));
        assert_eq!(spread(&[4.0, 1.0]), Some(Spread { median: 2.5, min: 1.0, max: 4.0 }));
        assert_eq!(spread(&[]), None);
        assert!(table(&[]).is_empty());
    }
}
