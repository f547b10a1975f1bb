//! The counters of a core: names, the layout of its pages, and who may write them.
//!
//! A core's pages are words of a shared mapping with one writer, its own thread, which adds by a plain load and store;
//! anyone may read them, in this process or another, and sums over the cores. Words of different counters are not read
//! at one instant. A new counter is one line in a table below; both ends of a mapping come from one build, which the
//! layout's fingerprint in the header checks.

use crate::CoreId;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

mod histogram;
pub use histogram::HistogramSnapshot;
use histogram::{BUCKETS, HEAD_WORDS};

/// Whether a value only grows or goes up and down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterKind {
    Total,
    Gauge,
}

macro_rules! counters {
    ($($name:ident $kind:ident $text:literal $help:literal,)*) => {
        /// One number of a core.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Counter { $(#[doc = $help] $name,)* }

        impl Counter {
            pub const ALL: &[Counter] = &[$(Counter::$name,)*];

            /// The name under which metrics show it.
            pub fn name(self) -> &'static str {
                match self { $(Counter::$name => $text,)* }
            }

            pub fn help(self) -> &'static str {
                match self { $(Counter::$name => $help,)* }
            }

            pub fn kind(self) -> CounterKind {
                match self { $(Counter::$name => CounterKind::$kind,)* }
            }
        }
    };
}

counters! {
    Turns Total "loop_turns_total" "Turns of the loop.",
    BusyNanos Total "loop_busy_nanoseconds_total" "Time in turns that did some work.",
    SleptNanos Total "loop_slept_nanoseconds_total" "Time asleep in the kernel.",
    SlowDevice Total "loop_slow_turns_device_total" "Turns above 1 ms, most of it reaping completions or submitting.",
    SlowNet Total "loop_slow_turns_net_total" "Turns above 1 ms, most of it receiving or sending.",
    SlowSession Total "loop_slow_turns_session_total" "Turns above 1 ms, most of it parsing, routing or encoding.",
    SlowHandoff Total "loop_slow_turns_handoff_total" "Turns above 1 ms, most of it taking from other cores.",
    SlowPartition Total "loop_slow_turns_partition_total" "Turns above 1 ms, most of it in partitions.",
    SlowLog Total "loop_slow_turns_log_total" "Turns above 1 ms, most of it in the log.",
    SlowTimers Total "loop_slow_turns_timers_total" "Turns above 1 ms, most of it in timers.",
    SlowLink Total "loop_slow_turns_link_total" "Turns above 1 ms, most of it at the link.",
    SlowOffCpu Total "loop_slow_turns_off_cpu_total" "Turns above 1 ms of which the loop ran 1 ms or less: it waited for a CPU, or in a call.",
    Connections Gauge "connections" "Open client connections.",
    ConnectionsOpened Total "connections_opened_total" "Client connections accepted.",
    ConnectionsClosed Total "connections_closed_total" "Client connections ended.",
    ConnectionsRefused Total "connections_refused_total" "Client connections refused by a limit.",
    AcceptErrors Total "accept_errors_total" "Failed accepts, for example for want of file descriptors.",
    BytesReceived Total "received_bytes_total" "Bytes from clients and replicas.",
    BytesSent Total "sent_bytes_total" "Bytes to clients and replicas.",
    FramesRefused Total "frames_refused_total" "Connections ended for a malformed or oversized frame.",
    ReceiveUsed Gauge "receive_used_bytes" "Receive memory in use.",
    ReceiveCapacity Gauge "receive_capacity_bytes" "This core's share of the receive budget.",
    ProduceBatches Total "produce_batches_total" "Batches appended for clients.",
    ProduceBytes Total "produce_bytes_total" "Bytes appended for clients.",
    ProduceRefused Total "produce_refused_total" "Batches refused.",
    FetchBytes Total "fetch_bytes_total" "Record bytes sent to clients and replicas.",
    FetchWaits Total "fetch_waits_total" "Fetches that waited for data.",
    FetchSessions Gauge "fetch_sessions" "Fetch sessions.",
    FetchSessionsEvicted Total "fetch_sessions_evicted_total" "Fetch sessions that gave way to another.",
    FetchSessionsRefused Total "fetch_sessions_refused_total" "Fetch sessions refused for want of a slot.",
    Partitions Gauge "partitions" "Partitions this core owns.",
    Leaders Gauge "leader_partitions" "Partitions this core leads.",
    Commits Total "log_commits_total" "Commits of the journal lane that completed.",
    CommitBytes Total "log_commit_bytes_total" "Bytes of those commits.",
    Flushes Total "device_flushes_total" "Flushes that completed.",
    DeviceWrites Total "device_writes_total" "Writes that completed.",
    DeviceWriteBytes Total "device_write_bytes_total" "Bytes of those writes.",
    DeviceReads Total "device_reads_total" "Reads that completed.",
    DeviceReadBytes Total "device_read_bytes_total" "Bytes of those reads.",
    DeviceErrors Total "device_errors_total" "Operations that failed or timed out.",
    DevicePunted Total "device_punted_total" "io_uring requests that the kernel gave to its workers.",
    ReadsCorrupt Total "log_corrupt_reads_total" "Reads whose bytes failed their checksum.",
    JournalUsed Gauge "journal_used_bytes" "Un-trimmed bytes of the lane.",
    JournalCapacity Gauge "journal_capacity_bytes" "Bytes of the lane.",
    NamespaceUsed Gauge "namespace_used_bytes" "Bytes of extents in use by this core's partitions.",
    NamespaceFree Gauge "namespace_free_bytes" "Bytes of free extents in this core's slabs.",
    NamespaceStopped Gauge "namespace_stopped" "1 while this core's lane is stopped by an error.",
    HandoffSent Total "handoff_sent_total" "Messages to other cores.",
    HandoffWakes Total "handoff_wakes_total" "Sleeping cores woken by this one.",
    HandoffNoCredit Total "handoff_no_credit_total" "Turns after which a core stopped reading for want of a credit.",
    OffloadJobs Total "offload_jobs_total" "Jobs given to helper threads.",
    OffloadWaiting Gauge "offload_waiting" "Jobs not yet back from helper threads.",
    LinkUp Gauge "link_up" "1 while the link to the control plane stands.",
    LinkContact Gauge "link_last_contact_unix_milliseconds" "When the control plane was last heard, 0 before it was.",
    LinkSent Total "link_sent_bytes_total" "Bytes to the control plane.",
    LinkForwarded Gauge "link_forwarded_bytes" "Bytes of forwarded requests that are not answered yet.",
    LinkNoCredit Total "link_no_credit_total" "Requests that waited for the control plane to answer others.",
    LinkDropped Total "link_dropped_total" "Wishes for topics not passed on because the control plane reads nothing.",
    LinkReceived Total "link_received_bytes_total" "Bytes from the control plane.",
    LogLinesDropped Total "log_lines_dropped_total" "Lines of the text log dropped because its channel was full.",
}

macro_rules! histograms {
    ($($name:ident $text:literal $help:literal,)*) => {
        /// One distribution of durations of a core; those of requests by API come beside these.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Histogram { $(#[doc = $help] $name,)* }

        impl Histogram {
            pub const ALL: &[Histogram] = &[$(Histogram::$name,)*];

            /// The name under which metrics show it.
            pub fn name(self) -> &'static str {
                match self { $(Histogram::$name => $text,)* }
            }

            pub fn help(self) -> &'static str {
                match self { $(Histogram::$name => $help,)* }
            }
        }
    };
}

histograms! {
    Turn "loop_turn_seconds" "Turns that did some work.",
    TurnOnCpu "loop_slow_turn_on_cpu_seconds" "Of turns above 1 ms, the time on a CPU.",
    Commit "log_commit_seconds" "From closing a commit to its completion.",
    Append "log_append_seconds" "From staging an append to its being durable.",
    DeviceRead "device_read_seconds" "From submitting a read to its completion.",
    Offload "offload_seconds" "From giving a job away to its return.",
    StepDevice "loop_step_device_seconds" "Of a turn, 100 us or more spent reaping completions or submitting.",
    StepNet "loop_step_net_seconds" "Of a turn, 100 us or more spent receiving or sending.",
    StepSession "loop_step_session_seconds" "Of a turn, 100 us or more spent parsing, routing or encoding.",
    StepHandoff "loop_step_handoff_seconds" "Of a turn, 100 us or more spent taking from other cores.",
    StepPartition "loop_step_partition_seconds" "Of a turn, 100 us or more spent in partitions.",
    StepLog "loop_step_log_seconds" "Of a turn, 100 us or more spent in the log.",
    StepTimers "loop_step_timers_seconds" "Of a turn, 100 us or more spent in timers.",
    StepLink "loop_step_link_seconds" "Of a turn, 100 us or more spent at the link.",
}

/// Requests are timed by API key below this; the last place takes keys at or above.
pub const API_KEYS: usize = 128;

const HEADER_WORDS: usize = 8;
const MAGIC: u64 = u64::from_be_bytes(*b"polluxco");
const CLEARING: u64 = 1;
const COUNTERS_AT: usize = HEADER_WORDS;
const API_ERRORS_AT: usize = COUNTERS_AT + Counter::ALL.len();
/// Sums and counts lie together: whoever reads them touches no page that nobody wrote.
const HEADS_AT: usize = API_ERRORS_AT + API_KEYS;
const DISTRIBUTIONS: usize = Histogram::ALL.len() + API_KEYS;
const BUCKETS_AT: usize = HEADS_AT + DISTRIBUTIONS * HEAD_WORDS;
const WORDS_PER_BLOCK: usize = crate::BLOCK_SIZE / size_of::<u64>();
/// Whole blocks, so that two cores never share a cache line.
const CORE_WORDS: usize = (BUCKETS_AT + DISTRIBUTIONS * BUCKETS).next_multiple_of(WORDS_PER_BLOCK);

/// Words of one mapping that holds the pages of all cores; `arena::SharedPages` is one.
pub type Words = Arc<dyn AsRef<[AtomicU64]> + Send + Sync>;

/// The bytes that a mapping for so many cores needs. Pages that stay zero take no memory.
pub fn mapping_bytes(cores: usize) -> usize {
    cores * CORE_WORDS * size_of::<u64>()
}

/// Words from the heap, for tests and for a node whose counters nobody else reads.
pub fn heap_words(cores: usize) -> Words {
    Arc::new((0..cores * CORE_WORDS).map(|_| AtomicU64::new(0)).collect::<Box<[AtomicU64]>>())
}

/// What a layout is told by: names and order of everything in it.
fn fingerprint() -> u64 {
    let names = Counter::ALL.iter().map(|c| c.name()).chain(Histogram::ALL.iter().map(|h| h.name()));
    // FNV-1a.
    names.flat_map(|name| name.bytes().chain([0])).fold(0xCBF2_9CE4_8422_2325 ^ BUCKETS as u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

/// The writing end of one core's pages. It stays on the thread that made it; clones write the same words.
#[derive(Clone)]
pub struct CoreCounters {
    words: Words,
    start: usize,
    /// Not `Send`: a second writer would lose counts.
    on_its_thread: PhantomData<Rc<()>>,
}

impl CoreCounters {
    /// Starts the pages of `core` anew; by that core's thread. The mapping must hold its pages.
    pub fn new(words: Words, core: CoreId) -> CoreCounters {
        let start = usize::from(core.0) * CORE_WORDS;
        let all = (*words).as_ref();
        assert!(all.len() >= start + CORE_WORDS, "the mapping has no pages for core {core}");
        let page = &all[start..start + CORE_WORDS];
        // A new mapping is zero and stays untouched, since even reading a page of it would take memory. One of an earlier
        // run is zeroed; CLEARING tells the next run to do it again should this one end in the middle.
        if page[0].load(Relaxed) != 0 {
            page[0].store(CLEARING, Relaxed);
            page.iter().skip(1).for_each(|word| word.store(0, Relaxed));
        }
        page[1].store(fingerprint(), Relaxed);
        page[2].store(u64::from(core.0), Relaxed);
        page[0].store(MAGIC, Release);
        CoreCounters { words, start, on_its_thread: PhantomData }
    }

    /// Counters that nobody reads from outside.
    pub fn detached() -> CoreCounters {
        CoreCounters::new(heap_words(1), CoreId(0))
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        &(*self.words).as_ref()[self.start + index]
    }

    fn raise(&self, index: usize, by: u64) {
        let word = self.word(index);
        // One writer: no locked instruction is needed.
        word.store(word.load(Relaxed).wrapping_add(by), Relaxed);
    }

    pub fn add(&self, counter: Counter, by: u64) {
        self.raise(COUNTERS_AT + counter as usize, by);
    }

    pub fn subtract(&self, gauge: Counter, by: u64) {
        debug_assert_eq!(gauge.kind(), CounterKind::Gauge, "a total never falls");
        self.raise(COUNTERS_AT + gauge as usize, by.wrapping_neg());
    }

    pub fn set(&self, gauge: Counter, value: u64) {
        debug_assert_eq!(gauge.kind(), CounterKind::Gauge, "a total is only added to");
        self.word(COUNTERS_AT + gauge as usize).store(value, Relaxed);
    }

    pub fn get(&self, counter: Counter) -> u64 {
        self.word(COUNTERS_AT + counter as usize).load(Relaxed)
    }

    pub fn record(&self, histogram: Histogram, took: Duration) {
        self.record_in(histogram as usize, took);
    }

    /// One answered request of an API; `failed` where the answer carried an error.
    /// It takes 96 instructions, 6.3 ns with the words in the core's caches and 60 ns with those full of other things (`cargo
    /// run --release -p pollux-perf --bin counting`, on a busy machine of two cores).
    pub fn record_request(&self, api_key: i16, took: Duration, failed: bool) {
        let api = api_place(api_key);
        self.record_in(Histogram::ALL.len() + api, took);
        if failed {
            self.raise(API_ERRORS_AT + api, 1);
        }
    }

    fn record_in(&self, distribution: usize, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let head = HEADS_AT + distribution * HEAD_WORDS;
        self.raise(head + histogram::SUM, nanos);
        let largest = self.word(head + histogram::LARGEST);
        if nanos > largest.load(Relaxed) {
            largest.store(nanos, Relaxed);
        }
        self.raise(head + histogram::COUNT, 1);
        self.raise(BUCKETS_AT + distribution * BUCKETS + histogram::bucket(nanos), 1);
    }
}

fn api_place(api_key: i16) -> usize {
    usize::try_from(api_key).unwrap_or(API_KEYS).min(API_KEYS - 1)
}

/// The reading end: one core's pages as they are now.
#[derive(Clone)]
pub struct CoreReadings {
    words: Words,
    start: usize,
}

/// The readings of every core that has started its pages; empty where the mapping comes from another build.
pub fn readings(words: &Words) -> Vec<CoreReadings> {
    let all = (**words).as_ref();
    let cores = all.chunks_exact(CORE_WORDS).enumerate();
    cores
        .filter(|(core, page)| {
            page[0].load(Acquire) == MAGIC
                && page[1].load(Relaxed) == fingerprint()
                && page[2].load(Relaxed) == *core as u64
        })
        .map(|(core, _)| CoreReadings { words: words.clone(), start: core * CORE_WORDS })
        .collect()
}

impl CoreReadings {
    fn words(&self) -> &[AtomicU64] {
        &(*self.words).as_ref()[self.start..self.start + CORE_WORDS]
    }

    pub fn core(&self) -> CoreId {
        CoreId((self.start / CORE_WORDS) as u16)
    }

    pub fn get(&self, counter: Counter) -> u64 {
        self.words()[COUNTERS_AT + counter as usize].load(Relaxed)
    }

    pub fn histogram(&self, histogram: Histogram) -> HistogramSnapshot {
        self.distribution(histogram as usize)
    }

    /// The times of one API's requests.
    pub fn requests(&self, api_key: i16) -> HistogramSnapshot {
        self.distribution(Histogram::ALL.len() + api_place(api_key))
    }

    /// How many of them were answered with an error.
    pub fn request_errors(&self, api_key: i16) -> u64 {
        self.words()[API_ERRORS_AT + api_place(api_key)].load(Relaxed)
    }

    fn distribution(&self, number: usize) -> HistogramSnapshot {
        let (head, buckets) = (HEADS_AT + number * HEAD_WORDS, BUCKETS_AT + number * BUCKETS);
        HistogramSnapshot::read(&self.words()[head..head + HEAD_WORDS], &self.words()[buckets..buckets + BUCKETS])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_see_what_each_core_wrote() {
        let words = heap_words(3);
        let (a, c) = (CoreCounters::new(words.clone(), CoreId(0)), CoreCounters::new(words.clone(), CoreId(2)));
        a.add(Counter::Turns, 5);
        a.clone().add(Counter::Turns, 1);
        c.add(Counter::Turns, 10);
        c.set(Counter::Connections, 7);
        c.subtract(Counter::Connections, 3);
        c.record(Histogram::Turn, Duration::from_micros(10));
        c.record_request(3, Duration::from_millis(1), true);
        c.record_request(i16::MAX, Duration::from_millis(1), false);
        c.record_request(-1, Duration::from_millis(1), false);
        let seen = readings(&words);
        assert_eq!(seen.iter().map(CoreReadings::core).collect::<Vec<_>>(), [CoreId(0), CoreId(2)]);
        assert_eq!(seen.iter().map(|core| core.get(Counter::Turns)).sum::<u64>(), 16);
        assert_eq!(seen[1].get(Counter::Connections), 4);
        assert_eq!(seen[1].histogram(Histogram::Turn).count(), 1);
        assert_eq!((seen[1].requests(3).count(), seen[1].request_errors(3)), (1, 1));
        assert_eq!((seen[1].requests(500).count(), seen[1].request_errors(500)), (2, 0));
        assert_eq!(seen[0].requests(3).count(), 0);
    }

    #[test]
    fn a_new_run_starts_at_zero_and_another_layout_is_not_read() {
        let words = heap_words(1);
        CoreCounters::new(words.clone(), CoreId(0)).add(Counter::Turns, 5);
        let again = CoreCounters::new(words.clone(), CoreId(0));
        assert_eq!(again.get(Counter::Turns), 0);
        (*words).as_ref()[1].store(1, Relaxed);
        assert!(readings(&words).is_empty());
        assert_eq!(mapping_bytes(1) % crate::BLOCK_SIZE, 0);
    }

    #[test]
    fn names_are_distinct_and_totals_say_so() {
        let mut names: Vec<_> = Counter::ALL.iter().map(|c| c.name()).collect();
        names.extend(Histogram::ALL.iter().map(|h| h.name()));
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
        for counter in Counter::ALL {
            assert_eq!(counter.name().ends_with("_total"), counter.kind() == CounterKind::Total, "{counter:?}");
            assert!(counter.help().ends_with('.'));
        }
        assert!(Histogram::ALL.iter().all(|h| h.name().ends_with("_seconds") && h.help().ends_with('.')));
    }
}
