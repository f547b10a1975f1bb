//! What `/metrics` shows: the dataplane's counter pages, read where they lie, and the control plane's own numbers.

use crate::prometheus::Page;
use arena::SharedPages;
use base::counters::{self, CoreReadings, Counter, CounterKind, Histogram, HistogramSnapshot, Words};
use hdrhistogram::Histogram as HdrHistogram;
use node::{BrokerPhase, Status};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use wire::ApiKey;

/// Events of the node are timed from a microsecond to a minute, within a hundredth.
const EVENT_MICROS_MAX: u64 = 60_000_000;
const EVENT_DIGITS: u8 = 2;

/// Numbers of the process around the node.
#[derive(Clone, Debug)]
pub(crate) struct OwnMetrics {
    pub links_lost: u64,
    events: HdrHistogram<u64>,
    event_time: Duration,
}

impl Default for OwnMetrics {
    fn default() -> OwnMetrics {
        let events = HdrHistogram::new_with_bounds(1, EVENT_MICROS_MAX, EVENT_DIGITS);
        OwnMetrics { links_lost: 0, events: events.expect("the bounds are right"), event_time: Duration::ZERO }
    }
}

impl OwnMetrics {
    pub fn record(&mut self, took: Duration) {
        self.events.saturating_record(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        self.event_time += took;
    }
}

/// The pages of a dataplane that runs or has run; none where there is no file, or one of another build.
pub(crate) fn open_pages(path: &Path) -> Option<Words> {
    let pages = SharedPages::open(path).ok()?;
    let words: Words = Arc::new(pages);
    Some(words)
}

/// The dataplane's part of the page, by the path of its counter pages: also for whoever serves metrics while the control
/// plane is away.
pub fn dataplane_metrics(counters: &Path) -> String {
    let mut page = Page::default();
    put_dataplane(&mut page, counters, false);
    page.into_text()
}

fn put_dataplane(page: &mut Page, counters: &Path, controlplane_up: bool) {
    let cores = open_pages(counters).map(|words| counters::readings(&words)).unwrap_or_default();
    page.gauge("controlplane_up", "1 where the control plane answers.", flag(controlplane_up));
    put_contact(page, &cores);
    for counter in Counter::ALL {
        let kind = match counter.kind() {
            CounterKind::Total => "counter",
            CounterKind::Gauge => "gauge",
        };
        page.begin(counter.name(), kind, counter.help());
        for core in &cores {
            page.sample(counter.name(), &format!("core=\"{}\"", core.core()), core.get(*counter));
        }
    }
    for histogram in Histogram::ALL {
        page.begin(histogram.name(), "histogram", histogram.help());
        for core in &cores {
            let labels = format!("core=\"{}\"", core.core());
            page.distribution(histogram.name(), &labels, &core.histogram(*histogram));
        }
    }
    put_requests(page, &cores);
}

/// How long the dataplane has not heard of the control plane, whoever asks.
fn put_contact(page: &mut Page, cores: &[CoreReadings]) {
    let last = cores.iter().map(|core| core.get(Counter::LinkContact)).max().filter(|last| *last > 0);
    let name = "controlplane_contact_age_seconds";
    page.begin(name, "gauge", "Since the dataplane last heard of the control plane; no sample before it has.");
    if let Some(last) = last {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        page.sample(name, "", now.saturating_sub(Duration::from_millis(last)).as_secs_f64());
    }
}

/// Of all cores together: which one holds a connection says nothing to who asks.
fn put_requests(page: &mut Page, cores: &[CoreReadings]) {
    let of = |api: ApiKey| {
        let mut sum = HistogramSnapshot::empty();
        cores.iter().for_each(|core| sum.merge(&core.requests(api.code())));
        let errors: u64 = cores.iter().map(|core| core.request_errors(api.code())).sum();
        (api, sum, errors)
    };
    let seen: Vec<_> = ApiKey::ALL.iter().map(|api| of(*api)).filter(|(_, sum, _)| sum.count() > 0).collect();
    page.begin("request_seconds", "histogram", "Requests by API, from their last byte to their answer's first.");
    for (api, sum, _) in &seen {
        page.distribution("request_seconds", &format!("api=\"{}\"", api.name()), sum);
    }
    let help = "The same requests since the start, by API: quantiles within 0.8 %, and the longest.";
    page.begin("request_latency_seconds", "summary", help);
    for (api, sum, _) in &seen {
        page.summary("request_latency_seconds", &format!("api=\"{}\"", api.name()), sum);
    }
    page.begin("request_errors_total", "counter", "Produce and Fetch requests that were refused a partition, by API.");
    for (api, _, errors) in &seen {
        page.sample("request_errors_total", &format!("api=\"{}\"", api.name()), errors);
    }
}

/// The whole page.
pub(crate) fn metrics(status: &Status, own: &OwnMetrics, counters: &Path) -> String {
    let mut page = Page::default();
    put_dataplane(&mut page, counters, true);
    put_quorum(&mut page, status);
    put_cluster(&mut page, status);
    put_link(&mut page, status, own);
    put_events(&mut page, own);
    page.into_text()
}

fn flag(value: bool) -> u8 {
    u8::from(value)
}

fn put_quorum(page: &mut Page, status: &Status) {
    page.begin("quorum_state", "gauge", "1 at the state of this node in the quorum.");
    let states = ["leader", "candidate", "follower", "observer", "prospective", "resigned", "unattached"];
    for state in states {
        page.sample("quorum_state", &format!("state=\"{state}\""), flag(state == status.quorum_state));
    }
    page.gauge("quorum_epoch", "Epoch of the quorum.", status.quorum_epoch);
    let leader = status.quorum_leader.unwrap_or(-1);
    page.gauge("quorum_leader", "Node that leads the quorum, -1 where none is known.", leader);
    let watermark = status.high_watermark;
    page.gauge("quorum_high_watermark", "End of what is committed of the metadata log.", watermark);
    page.gauge("quorum_log_end", "End of the metadata log.", status.log_end);
    page.gauge("quorum_log_start", "Start of the metadata log.", status.log_start);
    let snapshot = status.latest_snapshot.unwrap_or(-1);
    page.gauge("quorum_latest_snapshot", "End of the newest snapshot of the metadata, -1 without one.", snapshot);
}

fn put_cluster(page: &mut Page, status: &Status) {
    page.gauge("active_controller", "1 where this node is the controller.", flag(status.active_controller));
    page.gauge("metadata_offset", "Last offset of the metadata that is shown.", status.published_offset);
    let level = status.metadata_version.unwrap_or(-1);
    page.gauge("metadata_version", "Finalized level of metadata.version, -1 before the first.", level);
    page.gauge("active_brokers", "Registered brokers that are not fenced.", status.active_brokers);
    page.gauge("fenced_brokers", "Registered brokers that are fenced.", status.fenced_brokers);
    page.gauge("topics", "Topics of the cluster.", status.topics);
    page.gauge("cluster_partitions", "Partitions of the cluster.", status.partitions);
    page.gauge("offline_partitions", "Partitions without a leader.", status.offline_partitions);
    let under = status.under_min_isr_partitions;
    page.gauge("under_min_isr_partitions", "Partitions whose ISR is below its least.", under);
    let moved = status.non_preferred_leaders;
    page.gauge("non_preferred_leaders", "Partitions that the preferred replica does not lead.", moved);
    page.begin("broker_state", "gauge", "1 at the state of this node's broker.");
    for (state, name) in [
        (BrokerPhase::Waiting, "waiting"),
        (BrokerPhase::Registering, "registering"),
        (BrokerPhase::Unfencing, "unfencing"),
        (BrokerPhase::Serving, "serving"),
    ] {
        page.sample("broker_state", &format!("state=\"{name}\""), flag(state == status.broker));
    }
}

fn put_link(page: &mut Page, status: &Status, own: &OwnMetrics) {
    page.gauge("dataplane_up", "1 while the link to the dataplane stands.", flag(status.link_up));
    page.gauge("ready", "1 while clients can be served.", flag(status.ready));
    let silence = status.link_silence.unwrap_or(Duration::ZERO).as_secs_f64();
    page.gauge("link_silence_seconds", "Since the dataplane was last heard of.", silence);
    page.counter("links_lost_total", "Connections to the dataplane that were lost.", own.links_lost);
    page.begin("link_metadata_offset", "gauge", "Metadata offsets sent to and applied by the dataplane.");
    for (what, state, offset) in [
        ("duties", "sent", status.duties_sent),
        ("duties", "applied", status.duties_applied),
        ("view", "sent", status.view_sent),
        ("view", "applied", status.view_applied),
    ] {
        page.sample("link_metadata_offset", &format!("what=\"{what}\",state=\"{state}\""), offset);
    }
    page.gauge("stray_partitions", "Partitions held that no metadata speaks of.", status.stray_partitions);
    let forwarded = status.forwarded_requests;
    page.counter("forwarded_requests_total", "Clients' requests that reached the control plane.", forwarded);
    page.counter("forwarded_answers_total", "Answers to them.", status.answered_requests);
    let malformed = status.malformed_requests;
    page.counter("forwarded_malformed_total", "Of them, those that could not be read or are not served.", malformed);
    page.gauge("answers_held", "Answers that wait for a commit or for the dataplane.", status.answers_held);
}

fn put_events(page: &mut Page, own: &OwnMetrics) {
    page.begin("controlplane_event_seconds", "summary", "Time of one event of the control plane.");
    for quantile in [0.5, 0.99, 0.999, 1.0] {
        let value = Duration::from_micros(own.events.value_at_quantile(quantile)).as_secs_f64();
        page.sample("controlplane_event_seconds", &format!("quantile=\"{quantile}\""), value);
    }
    page.sample("controlplane_event_seconds_sum", "", own.event_time.as_secs_f64());
    page.sample("controlplane_event_seconds_count", "", own.events.len());
}
