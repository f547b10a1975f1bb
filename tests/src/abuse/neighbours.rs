//! Consumers that never read what they asked for and a producer of decompression bombs, beside a steady load: windows
//! with and without them in turn, in one run.

use super::unreading::{Consumers, Wanted};
use super::{MIB, PATIENCE, bombs, held};
use crate::node::Broker;
use crate::reference::Wishes;
use crate::subject::Pollux;
use crate::topics;
use crate::{Result, raw::Raw};
use base::{Random, WallMillis};
use batch::BatchBuilder;
use perf::client::{Connection, produce_request};
use perf::load::{self, Options, Outcome};
use perf::process;
use perf::schedule::Arrivals;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const LOAD_TOPIC: &str = "load";
const OLD_TOPIC: &str = "old";
const BOMB_TOPIC: &str = "bombs";
const LOAD_PARTITIONS: i32 = 4;
/// What the load's topic has before the first window, so that consumers find enough in it however slow the load was.
const LOAD_MIB_FIRST: u64 = 16;
/// Every second consumer asks for old data, the others for the load's own.
const WANTED: [Wanted; 2] = [
    Wanted { topic: OLD_TOPIC, partitions: LOAD_PARTITIONS, offsets: 2000 },
    Wanted { topic: LOAD_TOPIC, partitions: LOAD_PARTITIONS, offsets: 250 },
];

#[derive(Clone, Debug)]
pub struct Plan {
    pub pairs: usize,
    pub consumers: usize,
    pub rate: f64,
    pub warm_up: Duration,
    pub duration: Duration,
    /// Bytes of old data in MiB.
    pub old: u64,
    /// The hostile windows may be so much slower at p99.9.
    pub ratio_max: f64,
    /// The node's budget in MiB, all its processes together.
    pub resident_max: u64,
    pub own: Vec<String>,
    pub client_core: Option<usize>,
    pub without_bombs: bool,
}

pub fn run(plan: &Plan) -> Result<()> {
    let mut node = Pollux::start_new(&Wishes { own: plan.own.clone(), ..Wishes::default() })?;
    let address = node.address();
    let mut raw = Raw::new(address);
    topics::create(&mut raw, LOAD_TOPIC, LOAD_PARTITIONS, &[])?;
    topics::create(&mut raw, OLD_TOPIC, LOAD_PARTITIONS, &[])?;
    topics::create(&mut raw, BOMB_TOPIC, 1, &[])?;
    fill(address, OLD_TOPIC, plan.old)?;
    fill(address, LOAD_TOPIC, LOAD_MIB_FIRST)?;
    if let Some(core) = plan.client_core {
        process::pin_to(core)?;
    }
    let before = held(&node)?;
    println!("before: {} MiB resident, {} descriptors", before.resident / MIB, before.descriptors);
    let (mut quiet, mut loud) = (Vec::new(), Vec::new());
    for pair in 0..plan.pairs {
        quiet.push(window(&node, plan, pair as u64, false)?);
        loud.push(window(&node, plan, pair as u64, true)?);
    }
    held(&node)?.expect_same_processes(&before, &node)?;
    let (quiet, loud) = (Figures::of(&quiet), Figures::of(&loud));
    println!("without: {}\nwith:    {}", quiet.told(), loud.told());
    let ratio = loud.most as f64 / quiet.most.max(1) as f64;
    println!("p99.9 with / without: {ratio:.2}; at most {} MiB resident", loud.resident / MIB);
    node.stop()?;
    if loud.resident > plan.resident_max * MIB {
        return Err(format!("{} MiB resident, {} are the budget", loud.resident / MIB, plan.resident_max).into());
    }
    if ratio > plan.ratio_max {
        return Err(format!("p99.9 is {ratio:.2} times what it is without them").into());
    }
    println!("nobody noticed them");
    Ok(())
}

/// All windows of a kind together, in microseconds.
struct Figures {
    half: u64,
    many: u64,
    most: u64,
    /// How late requests left the client at p50 and p99.9: what the machine's other work did to the client itself.
    late: [u64; 2],
    achieved: f64,
    resident: u64,
    each: Vec<u64>,
}

struct Window {
    outcome: Outcome,
    resident: u64,
}

impl Figures {
    fn of(windows: &[Window]) -> Figures {
        let mut all = windows[0].outcome.latencies.clone();
        let mut lateness = windows[0].outcome.lateness.clone();
        for window in &windows[1..] {
            // Histograms of the same bounds can always be added.
            let _ = all.add(&window.outcome.latencies);
            let _ = lateness.add(&window.outcome.lateness);
        }
        let each = windows.iter().map(|window| window.outcome.latencies.value_at_quantile(0.999)).collect();
        let achieved = windows.iter().map(|window| window.outcome.achieved).sum::<f64>() / windows.len() as f64;
        Figures {
            half: all.value_at_quantile(0.5),
            many: all.value_at_quantile(0.99),
            most: all.value_at_quantile(0.999),
            late: [0.5, 0.999].map(|quantile| lateness.value_at_quantile(quantile)),
            achieved,
            resident: windows.iter().map(|window| window.resident).max().unwrap_or(0),
            each,
        }
    }

    fn told(&self) -> String {
        let Figures { half, many, most, late, achieved, each, .. } = self;
        format!(
            "p50 {half} us, p99 {many} us, p99.9 {most} us (each window {each:?}), {achieved:.0}/s, sent {} us late at p50, \
             {} at p99.9",
            late[0], late[1]
        )
    }
}

fn window(node: &Pollux, plan: &Plan, seed: u64, hostile: bool) -> Result<Window> {
    let address = node.address();
    let enemies = hostile.then(|| Enemies::start(address, plan, seed)).transpose()?;
    let options = Options {
        bootstrap: address,
        topic: LOAD_TOPIC.into(),
        partitions: LOAD_PARTITIONS,
        configs: Vec::new(),
        connections: LOAD_PARTITIONS as usize,
        record_size: 1024,
        acks: -1,
        rate: plan.rate,
        arrivals: Arrivals::Uniform,
        warm_up: plan.warm_up,
        duration: plan.duration,
        sleep: true,
        seed,
    };
    let peak = Peak::watch(node.pids()?);
    let outcome = load::run(&options, || {})?;
    let resident = peak.finish();
    if !outcome.errors.is_empty() || outcome.unanswered > 0 {
        return Err(format!("the load met {:?}, {} unanswered", outcome.errors, outcome.unanswered).into());
    }
    if let Some(enemies) = enemies {
        enemies.finish()?;
    }
    Ok(Window { outcome, resident })
}

/// The largest sum of resident bytes that was seen.
struct Peak {
    stop: Arc<AtomicBool>,
    most: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Peak {
    fn watch(pids: Vec<u32>) -> Peak {
        let (stop, most) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (told, seen) = (stop.clone(), most.clone());
        let thread = std::thread::spawn(move || {
            while !told.load(Ordering::Acquire) {
                if let Ok(usage) = process::usage(&pids) {
                    seen.fetch_max(usage.resident_bytes, Ordering::Relaxed);
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        Peak { stop, most, thread }
    }

    fn finish(self) -> u64 {
        self.stop.store(true, Ordering::Release);
        // A watcher that panicked has seen less than there was, and the peak says so.
        let _ = self.thread.join();
        self.most.load(Ordering::Relaxed)
    }
}

/// Writes old data: large batches, acknowledged, so that most of it is on the device only.
fn fill(address: SocketAddr, topic: &str, mebibytes: u64) -> Result<()> {
    let mut connection = Connection::open(address, PATIENCE)?;
    let mut value = vec![0; 900 << 10];
    let mut random = Random::from_seed(3);
    for number in 0..mebibytes {
        random.fill(&mut value[..64 << 10]);
        let mut builder = BatchBuilder::new();
        for part in value.chunks(9000) {
            builder.append(WallMillis(1_700_000_000_000), None, Some(part), &[]);
        }
        let partition = (number % LOAD_PARTITIONS as u64) as i32;
        let request = produce_request(topic, partition, builder.build().into(), -1, Duration::from_secs(30));
        let answer = connection.call(11, &request)?;
        let code = answer.responses.first().and_then(|topic| topic.partition_responses.first()).map(|p| p.error_code);
        if code != Some(0) {
            return Err(format!("filling answers {code:?}").into());
        }
    }
    Ok(())
}

struct Enemies {
    stop: Arc<AtomicBool>,
    consumers: Consumers,
    bombs: JoinHandle<Result<bombs::Answers>>,
}

impl Enemies {
    fn start(address: SocketAddr, plan: &Plan, seed: u64) -> Result<Enemies> {
        let began = Instant::now();
        let consumers = Consumers::start(address, plan.consumers, &WANTED, seed)?;
        println!("  {} consumers hold the beginning of an answer after {:.1?}", plan.consumers, began.elapsed());
        let stop = Arc::new(AtomicBool::new(false));
        let (told, without) = (stop.clone(), plan.without_bombs);
        let bombs = std::thread::spawn(move || match without {
            true => Ok(bombs::Answers::new()),
            false => bombs::produce(address, BOMB_TOPIC, &told),
        });
        Ok(Enemies { stop, consumers, bombs })
    }

    /// Ends them, and shows that they did what they are for.
    fn finish(self) -> Result<()> {
        self.stop.store(true, Ordering::Release);
        self.consumers.finish()?;
        let answers = self.bombs.join().map_err(|_| "the producer of bombs panicked")??;
        let told: Vec<String> = answers.iter().map(|((name, told), count)| format!("{name}: {told} {count}")).collect();
        println!("  bombs: {}", told.join(", "));
        Ok(())
    }
}
