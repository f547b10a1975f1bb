//! The process: opens or formats the directory, loads the node, and turns events into its outputs until it ends.

use crate::clock::Clock;
use crate::console::{self, Question};
use crate::disk::{self, Disk};
use crate::link_client::{self, LinkEvent, Writer};
use crate::metrics::OwnMetrics;
use crate::{DaemonError, DaemonOptions, directory};
use base::{NodeId, Random};
use link::Down;
use node::{End, Event, Node, Options};
use settings::NodeConfig;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::Receiver;

/// Events handled before what they put out is sent on: a burst shares its messages, and none waits long.
const BURST: usize = 64;
/// An event that takes longer is named in the log.
const SLOW_EVENT: Duration = Duration::from_millis(100);
/// The largest batch any namespace takes, and the share of a slab that a batch may be.
const LARGEST_BATCH: u64 = 16 << 20;
const SLABS_PER_SMALL_NAMESPACE: u64 = 64;
const SMALL_NAMESPACE: u64 = 4 << 30;
const SMALLEST_SLAB: u64 = 4 << 20;

/// Runs the control plane until it is told to stop (SIGTERM, SIGINT) or must. `on_ready` is called once, when clients can
/// be served.
pub fn run(options: DaemonOptions, on_ready: impl FnOnce()) -> Result<(), DaemonError> {
    let mut files = directory::open(&options.directory)?;
    let path = &options.directory;
    match directory::formatted_ids(path)? {
        None => {
            tracing::info!(directory = %path.display(), cluster = options.cluster_id, "formatting the metadata");
            let (cluster_id, id) = (&options.cluster_id, options.directory_id);
            directory::format_files(&mut files, path, cluster_id, id, &options.config)?;
        }
        Some((found, _)) if found != options.cluster_id => {
            let expected = options.cluster_id.clone();
            return Err(DaemonError::OtherCluster { path: path.clone(), found, expected });
        }
        Some(_) => {}
    }
    let clock = Clock::start();
    let node_options = Options {
        node: NodeId(options.config.node.id),
        settings: options.config.broker.clone(),
        largest_batch: largest_batch(&options.config),
    };
    let run_file = disk::read_run(path)?;
    let random = Random::from_seed(options.seed);
    let (node, report) = Node::load(node_options, &files, run_file.as_deref(), clock.now(), random)?;
    tracing::info!(
        cluster = node.cluster_id(),
        batches = report.batches,
        snapshots = report.snapshots,
        torn_bytes = report.torn_bytes,
        "the metadata is loaded"
    );
    let disk = Disk::start(files, path, NodeId(options.config.node.id))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let process =
        Process { node, clock, disk, writer: None, down: Vec::new(), metrics: OwnMetrics::default(), end: None };
    runtime.block_on(process.serve(options, on_ready))
}

/// A batch never spans extents, so a small namespace's slabs bound it (design 02). What a namespace of a size yet unknown
/// has is known when it is opened, and a larger batch is refused there.
fn largest_batch(config: &NodeConfig) -> u32 {
    let small = config.data.size.filter(|size| *size < SMALL_NAMESPACE);
    let slab = config.data.slab.or(small.map(|size| (size / SLABS_PER_SMALL_NAMESPACE).max(SMALLEST_SLAB)));
    // A slab is a power of two.
    let slab = slab.map(|slab| 1u64 << slab.ilog2());
    slab.map_or(LARGEST_BATCH, |slab| (slab / 2).min(LARGEST_BATCH)) as u32
}

struct Process {
    node: Node,
    clock: Clock,
    disk: Disk,
    /// Of the connection whose events are being handled.
    writer: Option<Writer>,
    /// Not yet sent on it.
    down: Vec<Down>,
    metrics: OwnMetrics,
    end: Option<End>,
}

/// What the loop waits for.
enum Woken {
    Event(Event),
    Link(LinkEvent),
    Question(Question),
}

impl Process {
    async fn serve(mut self, options: DaemonOptions, on_ready: impl FnOnce()) -> Result<(), DaemonError> {
        let mut link = link_client::start(options.link.clone());
        let mut questions = console::start(options.console.clone(), options.counters.clone()).await?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut on_ready = Some(on_ready);
        self.handle(Event::Time);
        while self.end.is_none() {
            let deadline = self.node.next_deadline().map(|at| self.clock.instant(at));
            let woken = tokio::select! {
                biased;
                Some(event) = self.disk.done.recv() => Woken::Event(event),
                Some(event) = link.recv() => Woken::Link(event),
                Some(question) = questions.recv() => Woken::Question(question),
                _ = terminate.recv() => Woken::Event(Event::Stop),
                _ = interrupt.recv() => Woken::Event(Event::Stop),
                () = sleep_until(deadline) => Woken::Event(Event::Time),
            };
            self.wake(woken);
            self.handle_burst(&mut link);
            self.flush();
            if on_ready.is_some() && self.node.is_ready() {
                tracing::info!("clients can be served");
                on_ready.take().into_iter().for_each(|tell| tell());
            }
        }
        self.disk.close();
        match self.end.expect("the loop ends with one") {
            End::Stopped => {
                tracing::info!("the control plane has stopped");
                Ok(())
            }
            End::Fault(why) => Err(DaemonError::Fault(why)),
        }
    }

    fn wake(&mut self, woken: Woken) {
        match woken {
            Woken::Event(event) => self.handle(event),
            Woken::Link(event) => self.on_link(event),
            Woken::Question(question) => {
                let status = self.node.status(self.clock.now());
                // Whoever asked may have gone.
                let _gone = question.send((status, self.metrics.clone()));
            }
        }
    }

    /// What else is there already.
    fn handle_burst(&mut self, link: &mut Receiver<LinkEvent>) {
        for _ in 0..BURST {
            if self.end.is_some() {
                return;
            }
            if let Ok(event) = self.disk.done.try_recv() {
                self.handle(event);
            } else if let Ok(event) = link.try_recv() {
                self.on_link(event);
            } else {
                return;
            }
        }
    }

    fn on_link(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Connected(writer) => {
                // What was for the connection before is lost with it.
                self.down.clear();
                self.writer = Some(writer);
            }
            LinkEvent::Message(message) => self.handle(Event::Up(message)),
            LinkEvent::Lost => {
                self.down.clear();
                self.writer = None;
                self.metrics.links_lost += 1;
                self.handle(Event::LinkLost);
            }
        }
    }

    fn handle(&mut self, event: Event) {
        let began = Instant::now();
        let name = event_name(&event);
        let outputs = self.node.handle(event, self.clock.now());
        let took = began.elapsed();
        self.metrics.record(took);
        if took > SLOW_EVENT {
            tracing::warn!(event = name, millis = took.as_millis() as u64, "a slow event");
        }
        self.down.extend(outputs.down);
        for work in outputs.disk {
            if !self.disk.submit(work) {
                self.end = Some(End::Fault("the thread of the metadata's files is gone".to_owned()));
            }
        }
        if outputs.disconnect.is_some() {
            self.flush();
            if let Some(writer) = self.writer.take() {
                writer.close();
            }
        }
        self.end = self.end.take().or(outputs.end);
    }

    fn flush(&mut self) {
        if self.down.is_empty() {
            return;
        }
        let down = std::mem::take(&mut self.down);
        if let Some(writer) = &self.writer
            && !writer.send(&down)
        {
            tracing::error!("the dataplane does not read; its connection is given up");
            self.writer.take().expect("it was just there").close();
        }
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

fn event_name(event: &Event) -> &'static str {
    match event {
        Event::Up(link::Up::Forward(_)) => "request",
        Event::Up(_) => "link message",
        Event::LinkLost => "link lost",
        Event::Quorum(_) => "disk",
        Event::RunStored(_) => "run stored",
        Event::Stop => "stop",
        Event::Time => "time",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_bounded_by_the_slabs() {
        let of = |overrides: &[&str]| {
            let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
            largest_batch(&NodeConfig::laptop(&overrides).expect("a configuration"))
        };
        assert_eq!(of(&[]), 16 << 20);
        assert_eq!(of(&["slab=\"4MiB\""]), 2 << 20);
        assert_eq!(of(&["slab=\"64MiB\""]), 16 << 20);
        assert_eq!(of(&["size=\"64MiB\""]), 2 << 20);
        assert_eq!(of(&["size=\"1000MiB\""]), 4 << 20);
        assert_eq!(of(&["size=\"8GiB\""]), 16 << 20);
    }
}
