//! What it costs a loop to count one answered request: nanoseconds with the words in the core's caches, and with those
//! caches full of other things. Instructions are counted by `valgrind --tool=callgrind --toggle-collect='*count_one*'`.

use base::counters::{CoreCounters, heap_words};
use base::{CoreId, Random};
use clap::Parser;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Durations of requests, from 20 us to 5 ms, so that the buckets are as many as a busy node's.
const DURATIONS: usize = 4096;
/// What another thread's work leaves of a core's own caches.
const OTHERS_BYTES: usize = 4 << 20;
const ROUNDS: usize = 7;

#[derive(Parser)]
struct Options {
    /// Requests in each round.
    #[arg(long, default_value_t = 4_000_000)]
    requests: usize,
    /// Requests counted with cold caches.
    #[arg(long, default_value_t = 2_000)]
    cold: usize,
}

#[inline(never)]
fn count_one(counters: &CoreCounters, took: Duration) {
    counters.record_request(0, took, false);
}

#[inline(never)]
fn count_nothing(_: &CoreCounters, took: Duration) {
    black_box(took);
}

fn nanos(requests: usize, durations: &[Duration], counters: &CoreCounters, act: fn(&CoreCounters, Duration)) -> f64 {
    let began = Instant::now();
    for took in durations.iter().cycle().take(requests) {
        act(black_box(counters), *took);
    }
    began.elapsed().as_nanos() as f64 / requests as f64
}

fn main() {
    let options = Options::parse();
    let counters = CoreCounters::new(heap_words(1), CoreId(0));
    let mut random = Random::from_seed(7);
    // As many in every power of two.
    let duration = |_| Duration::from_nanos((20_000 << random.below(8)) + random.below(20_000));
    let durations: Vec<Duration> = (0..DURATIONS).map(duration).collect();
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let nothing = nanos(options.requests, &durations, &counters, count_nothing);
            nanos(options.requests, &durations, &counters, count_one) - nothing
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    println!(
        "warm: {:.1} ns a request (of {ROUNDS} rounds {:.1} to {:.1})",
        rounds[ROUNDS / 2],
        rounds[0],
        rounds[ROUNDS - 1]
    );
    let mut others = vec![1u8; OTHERS_BYTES];
    let mut cold: Vec<Vec<u128>> = [count_nothing, count_one]
        .into_iter()
        .map(|act: fn(&CoreCounters, Duration)| {
            let timed = durations.iter().cycle().take(options.cold).map(|took| {
                others.iter_mut().step_by(64).for_each(|byte| *byte = byte.wrapping_add(1));
                let began = Instant::now();
                act(black_box(&counters), *took);
                began.elapsed().as_nanos()
            });
            timed.collect()
        })
        .collect();
    cold.iter_mut().for_each(|times| times.sort_unstable());
    let median = |times: &[u128]| times.get(times.len() / 2).copied().unwrap_or_default();
    println!("cold: {} ns a request", median(&cold[1]).saturating_sub(median(&cold[0])));
}
