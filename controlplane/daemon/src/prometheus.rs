//! Prometheus' text format, version 0.0.4.

use base::counters::HistogramSnapshot;
use std::fmt::{Display, Write};
use std::time::Duration;

/// Every name begins with this.
pub(crate) const PREFIX: &str = "pollux_";

/// Upper bounds of the buckets that are shown: from 30 us to 30 ms none is more than half above the one before
/// it, and from 200 us to 1 ms none more than a quarter, so that quantiles of a window can be taken from them too.
const BOUNDS: [Duration; 34] = [
    Duration::from_micros(30),
    Duration::from_micros(40),
    Duration::from_micros(50),
    Duration::from_micros(70),
    Duration::from_micros(100),
    Duration::from_micros(150),
    Duration::from_micros(200),
    Duration::from_micros(250),
    Duration::from_micros(300),
    Duration::from_micros(350),
    Duration::from_micros(400),
    Duration::from_micros(500),
    Duration::from_micros(600),
    Duration::from_micros(700),
    Duration::from_micros(850),
    Duration::from_millis(1),
    Duration::from_micros(1500),
    Duration::from_millis(2),
    Duration::from_millis(3),
    Duration::from_millis(4),
    Duration::from_millis(5),
    Duration::from_millis(7),
    Duration::from_millis(10),
    Duration::from_millis(15),
    Duration::from_millis(20),
    Duration::from_millis(30),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(30),
];

/// The quantiles of a summary; the last is the longest of all.
const QUANTILES: [f64; 5] = [0.5, 0.9, 0.99, 0.999, 1.0];

/// A page of metrics being written. Names come without the prefix; labels ready, as `name="value"`.
#[derive(Default)]
pub(crate) struct Page {
    text: String,
}

impl Page {
    pub fn into_text(self) -> String {
        self.text
    }

    fn line(&mut self, arguments: std::fmt::Arguments<'_>) {
        self.text.write_fmt(arguments).expect("a string takes everything");
        self.text.push('\n');
    }

    pub fn begin(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {PREFIX}{name} {help}"));
        self.line(format_args!("# TYPE {PREFIX}{name} {kind}"));
    }

    pub fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        if labels.is_empty() {
            self.line(format_args!("{PREFIX}{name} {value}"));
        } else {
            self.line(format_args!("{PREFIX}{name}{{{labels}}} {value}"));
        }
    }

    pub fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.begin(name, "gauge", help);
        self.sample(name, "", value);
    }

    pub fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.begin(name, "counter", help);
        self.sample(name, "", value);
    }

    /// Buckets, sum and count of one distribution under a name that was begun.
    pub fn distribution(&mut self, name: &str, labels: &str, snapshot: &HistogramSnapshot) {
        let separator = if labels.is_empty() { "" } else { "," };
        let bucket = format!("{name}_bucket");
        for (bound, count) in BOUNDS.iter().zip(snapshot.counts_up_to(&BOUNDS)) {
            let le = format!("{labels}{separator}le=\"{}\"", bound.as_secs_f64());
            self.sample(&bucket, &le, count);
        }
        self.sample(&bucket, &format!("{labels}{separator}le=\"+Inf\""), snapshot.count());
        self.sample(&format!("{name}_sum"), labels, snapshot.sum().as_secs_f64());
        self.sample(&format!("{name}_count"), labels, snapshot.count());
    }

    /// Quantiles, sum and count of one distribution under a name that was begun as a summary.
    pub fn summary(&mut self, name: &str, labels: &str, snapshot: &HistogramSnapshot) {
        for share in QUANTILES {
            if let Some(value) = snapshot.quantile(share) {
                self.sample(name, &format!("{labels},quantile=\"{share}\""), value.as_secs_f64());
            }
        }
        self.sample(&format!("{name}_sum"), labels, snapshot.sum().as_secs_f64());
        self.sample(&format!("{name}_count"), labels, snapshot.count());
    }
}
