//! A fixed budget of seeds, and every seed that ever failed. `POLLUX_SIM_SEEDS` sets how many run,
//! `POLLUX_SIM_FIRST` the first, `POLLUX_SIM_STEPS` how long each is. Whatever a
//! run is there to show is counted, and a count of zero fails it.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What no scenario and no forced fault brings for certain: many seeds do.
const RARE: [&str; 6] = [
    "refused growths",
    "duplicates answered",
    "DeleteRecords answered",
    "retention audited",
    "steps of the wall clock",
    "refusals for the storage",
];
const FEW_SEEDS: u64 = 6;
const MANY_SEEDS: u64 = 60;

fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")),
        Err(_) => default,
    }
}

/// Lines of "seed steps what it showed"; `#` begins a comment.
fn failed_before() -> Vec<(u64, u64)> {
    let lines = include_str!("../seeds/failed.txt").lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let read = |line: &str| {
        let mut words = line.split_whitespace().map(str::parse);
        let mut next = || words.next().and_then(Result::ok).unwrap_or_else(|| panic!("not a seed: {line}"));
        (next(), next())
    };
    lines.map(read).collect()
}

/// How often what happened, over all seeds.
fn run_all(seeds: impl Iterator<Item = (u64, u64)>) -> BTreeMap<&'static str, u64> {
    let (mut failed, mut counts) = (Vec::new(), BTreeMap::new());
    for (seed, steps) in seeds {
        let Ok(world) = catch_unwind(AssertUnwindSafe(|| pollux_sim::run(seed, steps))) else {
            failed.push((seed, steps));
            continue;
        };
        assert!(world.simulated() >= pollux_sim::TIME_MIN && world.happened.faults() >= pollux_sim::FAULTS_MIN);
        for (name, count) in world.happened.list().into_iter().chain(world.stats().list()) {
            *counts.entry(name).or_default() += count;
        }
    }
    assert!(failed.is_empty(), "sim --seed N --steps M repeats these: {failed:?}");
    counts
}

#[test]
fn seeds_that_failed_before() {
    let seeds = failed_before();
    assert!(!seeds.is_empty(), "there is a list of them");
    run_all(seeds.into_iter());
}

#[test]
fn seeds_of_this_run() {
    let (first, count) = (number("POLLUX_SIM_FIRST", 1), number("POLLUX_SIM_SEEDS", FEW_SEEDS));
    let steps = number("POLLUX_SIM_STEPS", 4000);
    println!("seeds {first}..{} of {steps} steps", first + count);
    let counts = run_all((first..first + count).map(|seed| (seed, steps)));
    println!("{counts:?}");
    let asked = |name: &&str| count >= MANY_SEEDS || (count >= FEW_SEEDS && !RARE.contains(name));
    let missing: Vec<_> =
        counts.iter().filter(|(_, count)| **count == 0).map(|(name, _)| *name).filter(asked).collect();
    assert!(missing.is_empty(), "none of these in {count} seeds from {first}: {missing:?}");
}

#[test]
fn a_seed_repeats_exactly() {
    let (first, second) = (pollux_sim::run(1001, 1500), pollux_sim::run(1001, 1500));
    assert_eq!(first.trace, second.trace);
    assert!(first.stats().served > 0 && first.happened.opened > 0, "it did something");
}

#[test]
fn without_faults_everything_is_served() {
    let world = pollux_sim::run_plain(2, 1500);
    assert!(world.stats().acknowledged > 50 && world.stats().served > 50, "{:?}", world.stats());
    assert_eq!((world.stats().refused.len(), world.happened.opened), (0, 1));
}
