//! What a turn adds to the core's counters, beside what is counted where it happens.

use crate::turn::Core;
use base::counters::{CoreCounters, Counter, Histogram};
use base::{IdMap, Monotonic, Now};
use net::Streams;
use nvme_log::{LogEvent, ReadError};
use nvme_plan::{Completion, Namespace, Operation, Plan, Token};
use offload::{JobToken, Offload};
use session::Answered;
use std::time::Duration;

/// When things began whose end is another turn's.
#[derive(Default)]
pub(crate) struct Begun {
    reads: IdMap<Token, Monotonic>,
    jobs: IdMap<JobToken, Monotonic>,
}

impl Begun {
    pub(crate) fn note_reads(&mut self, now: Now, plan: &Plan) {
        let reads = plan.iter().filter(|request| matches!(request.operation, Operation::Read { .. }));
        self.reads.extend(reads.map(|request| (request.token, now.monotonic)));
    }

    pub(crate) fn note_completion(&mut self, now: Now, counters: &CoreCounters, completion: &Completion) {
        if !self.reads.is_empty()
            && let Some(began) = self.reads.remove(&completion.token)
        {
            counters.record(Histogram::DeviceRead, now.monotonic.since(began));
        }
    }

    pub(crate) fn note_job(&mut self, at: Monotonic, counters: &CoreCounters, job: JobToken) {
        counters.add(Counter::OffloadJobs, 1);
        self.jobs.insert(job, at);
    }

    pub(crate) fn note_job_done(&mut self, now: Now, counters: &CoreCounters, job: JobToken) {
        if let Some(began) = self.jobs.remove(&job) {
            counters.record(Histogram::Offload, now.monotonic.since(began));
        }
    }
}

impl<S: Streams, N: Namespace, O: Offload> Core<S, N, O> {
    /// Times are taken from turn to turn; what ends within a turn ends so long after the turn's time. Without this a
    /// request that its own turn answers would have taken no time at all.
    fn ended(&self, took: Duration) -> Duration {
        took + self.watch.elapsed()
    }

    pub(crate) fn count_answered(&self, answered: &[Answered]) {
        if answered.is_empty() {
            return;
        }
        let within = self.watch.elapsed();
        for request in answered {
            self.counters.record_request(request.api.code(), request.took + within, request.failed);
        }
    }

    /// What is counted is taken.
    pub(crate) fn count_partitions(&self, tally: &mut partition::Tally) {
        for (counter, count) in [
            (Counter::ProduceBatches, &mut tally.batches),
            (Counter::ProduceBytes, &mut tally.bytes),
            (Counter::ProduceRefused, &mut tally.refused),
            (Counter::FetchWaits, &mut tally.fetch_waits),
        ] {
            if *count > 0 {
                self.counters.add(counter, std::mem::take(count));
            }
        }
        for took in tally.append_times.drain(..) {
            self.counters.record(Histogram::Append, self.ended(took));
        }
    }

    pub(crate) fn count_log_event(&self, event: &LogEvent) {
        match event {
            LogEvent::Committed { bytes, took } => {
                self.counters.add(Counter::Commits, 1);
                self.counters.add(Counter::CommitBytes, *bytes as u64);
                self.counters.record(Histogram::Commit, self.ended(*took));
            }
            LogEvent::ReadDone { result: Err(ReadError::Corrupt), .. } => self.counters.add(Counter::ReadsCorrupt, 1),
            _ => {}
        }
    }

    /// What the network and the rings counted in this turn.
    pub(crate) fn count_traffic(&mut self) {
        let (traffic, mesh) = (self.net.take_traffic(), self.mesh.take_counts());
        for (counter, count) in [
            (Counter::BytesReceived, traffic.received),
            (Counter::BytesSent, traffic.sent),
            (Counter::HandoffSent, mesh.sent),
            (Counter::HandoffWakes, mesh.wakes),
            (Counter::HandoffNoCredit, mesh.congested),
        ] {
            if count > 0 {
                self.counters.add(counter, count);
            }
        }
    }
}
