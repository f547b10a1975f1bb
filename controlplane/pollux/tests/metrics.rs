//! What the metrics port of a running node says: that it is Prometheus' text, and that every number is fed.

mod common;

use common::*;
use rustix::process::Signal;
use std::collections::{BTreeMap, BTreeSet};

/// Names and labels with their values.
type Samples = BTreeMap<String, f64>;

/// Checks the text as a scraper reads it: one HELP and one TYPE a metric, before its samples, which stand together.
fn parse(text: &str) -> Samples {
    let (mut kinds, mut samples) = (BTreeMap::new(), Samples::new());
    let (mut helped, mut current) = (BTreeSet::new(), String::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a help text");
            assert!(helped.insert(name.to_owned()), "{name} is described twice");
            assert!(!help.is_empty(), "{name}");
            current = name.to_owned();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type");
            assert_eq!(name, current, "HELP and TYPE stand together");
            assert!(["counter", "gauge", "histogram", "summary"].contains(&kind), "{line}");
            assert!(kinds.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} has two types");
        } else {
            let (name, value) = line.rsplit_once(' ').expect("a sample");
            let bare = name.split('{').next().expect("a name");
            let suffixes: &[&str] = match kinds[&current].as_str() {
                "histogram" => &["_bucket", "_sum", "_count"],
                "summary" => &["", "_sum", "_count"],
                _ => &[""],
            };
            assert!(suffixes.iter().any(|suffix| bare == format!("{current}{suffix}")), "{line} under {current}");
            let value = value.parse().unwrap_or_else(|_| panic!("{line}"));
            assert!(samples.insert(name.to_owned(), value).is_none(), "{name} twice");
        }
    }
    samples
}

/// The sum over all label sets.
fn sum(samples: &Samples, name: &str) -> f64 {
    let of = |sample: &&String| **sample == name || sample.starts_with(&format!("{name}{{"));
    let found: Vec<f64> = samples.iter().filter(|(sample, _)| of(sample)).map(|(_, value)| *value).collect();
    assert!(!found.is_empty(), "there is no {name}");
    found.iter().sum()
}

fn check_distributions(samples: &Samples) {
    for (name, count) in samples {
        let Some((base, labels)) = name.split_once("_count{") else { continue };
        let labels = labels.trim_end_matches('}');
        if let Some(infinite) = samples.get(&format!("{base}_bucket{{{labels},le=\"+Inf\"}}")) {
            assert_eq!(infinite, count, "{name}");
        } else {
            let quantile = |share: f64| samples[&format!("{base}{{{labels},quantile=\"{share}\"}}")];
            let quantiles = [0.5, 0.9, 0.99, 0.999, 1.0].map(quantile);
            assert!(quantiles.is_sorted() && quantiles[4] > 0.0, "{name}: {quantiles:?}");
        }
    }
}

const FED_BY_LOAD: [&str; 22] = [
    "pollux_loop_turns_total",
    "pollux_loop_busy_nanoseconds_total",
    "pollux_loop_slept_nanoseconds_total",
    "pollux_connections_opened_total",
    "pollux_received_bytes_total",
    "pollux_sent_bytes_total",
    "pollux_receive_capacity_bytes",
    "pollux_produce_batches_total",
    "pollux_produce_bytes_total",
    "pollux_partitions",
    "pollux_leader_partitions",
    "pollux_log_commits_total",
    "pollux_log_commit_bytes_total",
    "pollux_device_flushes_total",
    "pollux_device_writes_total",
    "pollux_device_write_bytes_total",
    "pollux_journal_capacity_bytes",
    "pollux_namespace_free_bytes",
    "pollux_link_sent_bytes_total",
    "pollux_link_received_bytes_total",
    "pollux_log_append_seconds_count",
    "pollux_log_commit_seconds_count",
];

#[test]
fn a_scrape_is_valid_and_every_number_is_fed() {
    let folder = Folder::new();
    let mut node = Running::start(&folder.0.join("data"), &["durability=\"cache\""]).ready();
    node.produce("measured", 500.0, 1.5);
    let samples = until("the gauges", || {
        let samples = parse(&node.metrics());
        (sum(&samples, "pollux_leader_partitions") > 0.0).then_some(samples)
    });
    check_distributions(&samples);
    for name in FED_BY_LOAD {
        assert!(sum(&samples, name) > 0.0, "{name} stands still");
    }
    let produced = sum(&samples, "pollux_produce_batches_total");
    assert!(produced >= 700.0, "{produced}");
    assert!(sum(&samples, "pollux_produce_bytes_total") >= produced * 1024.0);
    assert_eq!(sum(&samples, "pollux_log_append_seconds_count"), produced, "each waited for its acknowledgement");
    assert_eq!(samples["pollux_request_seconds_count{api=\"Produce\"}"], produced);
    // Both are made of the same counts: as many took at most half a millisecond as the quantiles say.
    let half = samples["pollux_request_seconds_bucket{api=\"Produce\",le=\"0.0005\"}"] / produced;
    for share in [0.5, 0.9, 0.99] {
        let quantile = samples[&format!("pollux_request_latency_seconds{{api=\"Produce\",quantile=\"{share}\"}}")];
        assert!(
            quantile <= 0.00051 || half <= share,
            "{quantile} s at {share}, but {half} are below half a millisecond"
        );
        assert!(
            quantile > 0.00049 || half >= share,
            "{quantile} s at {share}, but {half} are below half a millisecond"
        );
    }
    // Under `cache` a request is answered in the turn in which it came: that is no time of zero.
    assert!(samples["pollux_request_seconds_sum{api=\"Produce\"}"] / produced > 5e-6);
    assert_eq!(samples["pollux_request_errors_total{api=\"Produce\"}"], 0.0);
    assert_eq!(samples["pollux_controlplane_up"], 1.0);
    assert_eq!(samples["pollux_ready"], 1.0);
    assert!(samples["pollux_controlplane_contact_age_seconds"] < 30.0);

    // Without the control plane the same port serves the dataplane's pages, and says so.
    let controlplane = node.part("controlplane").expect("it runs");
    signal(controlplane, Signal::KILL);
    until("the page without a control plane", || {
        let samples = parse(&node.metrics());
        let alone = samples["pollux_controlplane_up"] == 0.0;
        assert!(!alone || samples.contains_key("pollux_controlplane_contact_age_seconds"));
        assert!(!alone || sum(&samples, "pollux_produce_batches_total") >= produced);
        alone.then_some(())
    });
    until("its return", || (parse(&node.metrics())["pollux_controlplane_up"] == 1.0).then_some(()));
    until("readiness", || node.http("/ready").filter(|answer| answer.starts_with("HTTP/1.1 200")));
    assert!(node.stop().success());
}
