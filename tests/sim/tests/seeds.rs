//! A fixed budget of seeds, and every seed that ever failed. `POLLUX_SIM_SEEDS` sets how many run, `POLLUX_SIM_FIRST`
//! the first, `POLLUX_SIM_STEPS` how long each is.

use std::panic::{AssertUnwindSafe, catch_unwind};

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

fn run_all(seeds: impl Iterator<Item = (u64, u64)>) {
    let mut failed = Vec::new();
    for (seed, steps) in seeds {
        if catch_unwind(AssertUnwindSafe(|| pollux_sim::run(seed, steps))).is_err() {
            failed.push((seed, steps));
        }
    }
    assert!(failed.is_empty(), "sim --seed N --steps M repeats these: {failed:?}");
}

#[test]
fn seeds_that_failed_before() {
    run_all(failed_before().into_iter());
}

#[test]
fn seeds_of_this_run() {
    let (first, count) = (number("POLLUX_SIM_FIRST", 1), number("POLLUX_SIM_SEEDS", 6));
    let steps = number("POLLUX_SIM_STEPS", 4000);
    run_all((first..first + count).map(|seed| (seed, steps)));
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
