//! A run's figures as JSON for programs and as text for people.

use crate::load::{Options, Outcome};
use crate::process::Usage;
use serde_json::{Value, json};
use std::fmt::Write;
use std::time::Duration;

/// The percentiles that every report names.
pub const PERCENTILES: [(&str, f64); 3] = [("p50", 50.0), ("p99", 99.0), ("p99.9", 99.9)];

/// What the broker's processes spent over the counted part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spent {
    pub cpu: Duration,
    pub run_delay: Duration,
    pub resident_bytes: u64,
}

impl Spent {
    pub fn between(before: Usage, after: Usage) -> Spent {
        Spent {
            cpu: after.cpu.saturating_sub(before.cpu),
            run_delay: after.run_delay.saturating_sub(before.run_delay),
            resident_bytes: after.resident_bytes,
        }
    }
}

pub fn json(options: &Options, outcome: &Outcome, spent: Option<Spent>) -> Value {
    let latencies = &outcome.latencies;
    let mut value = json!({
        "connections": options.connections,
        "record_bytes": options.record_size,
        "acks": options.acks,
        "rate": options.rate,
        "seconds": options.duration.as_secs_f64(),
        "achieved": outcome.achieved,
        "answers": outcome.counted,
        "unanswered": outcome.unanswered,
        "errors": outcome.errors,
        "latency_us": { "max": latencies.max(), "mean": latencies.mean() },
        "client_lateness_us": { "p99": outcome.lateness.value_at_percentile(99.0), "max": outcome.lateness.max() },
    });
    for (name, percentile) in PERCENTILES {
        value["latency_us"][name] = json!(latencies.value_at_percentile(percentile));
    }
    if let Some(spent) = spent {
        value["broker"] = json!({
            "cpu_us_per_request": cpu_per_request(outcome, spent),
            "run_delay_ms": spent.run_delay.as_secs_f64() * 1e3,
            "resident_mib": spent.resident_bytes as f64 / f64::from(1 << 20),
        });
    }
    value
}

fn cpu_per_request(outcome: &Outcome, spent: Spent) -> f64 {
    spent.cpu.as_secs_f64() * 1e6 / outcome.counted.max(1) as f64
}

pub fn text(options: &Options, outcome: &Outcome, spent: Option<Spent>) -> String {
    let latencies = &outcome.latencies;
    let mut line = format!(
        "{} B, {} connections, acks {}: {:.0}/s asked, {:.0}/s achieved; latency",
        options.record_size, options.connections, options.acks, options.rate, outcome.achieved
    );
    // Writing to a string cannot fail.
    for (name, percentile) in PERCENTILES {
        let _ = write!(line, " {name} {}", latencies.value_at_percentile(percentile));
    }
    let _ = write!(line, " max {} us (sent late: p99 {})", latencies.max(), outcome.lateness.value_at_percentile(99.0));
    if let Some(spent) = spent {
        let _ = write!(line, "; broker {:.1} us CPU a request", cpu_per_request(outcome, spent));
    }
    if outcome.unanswered > 0 || !outcome.errors.is_empty() {
        let _ = write!(line, "; {} unanswered, errors {:?}", outcome.unanswered, outcome.errors);
    }
    line
}
