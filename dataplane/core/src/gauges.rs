//! What the counters show of devices, memory and logs.

use crate::turn::Core;
use base::Now;
use base::counters::{CoreCounters, Counter};
use net::Streams;
use nvme_plan::{Completion, Namespace, Operation};
use offload::Offload;
use std::time::Duration;

/// Gauges are set this often at most, and only in turns that happen anyway: an idle loop is not woken for them.
const GAUGES_INTERVAL: Duration = Duration::from_millis(250);

pub fn count_completion(counters: &CoreCounters, completion: &Completion) {
    if completion.result.is_err() {
        counters.add(Counter::DeviceErrors, 1);
    }
    match &completion.operation {
        Some(Operation::Write { range, .. }) => {
            counters.add(Counter::DeviceWrites, 1);
            counters.add(Counter::DeviceWriteBytes, range.bytes());
        }
        Some(Operation::Read { range, .. }) => {
            counters.add(Counter::DeviceReads, 1);
            counters.add(Counter::DeviceReadBytes, range.bytes());
        }
        Some(Operation::Flush) => counters.add(Counter::Flushes, 1),
        _ => {}
    }
}

impl<S: Streams, N: Namespace, O: Offload> Core<S, N, O> {
    pub(crate) fn refresh_gauges(&mut self, now: Now) {
        if now.monotonic < self.next_gauges {
            return;
        }
        self.next_gauges = now.monotonic + GAUGES_INTERVAL;
        let block = base::BLOCK_SIZE as u64;
        let (journal_used, journal) = self.store.journal_use();
        let (free, owned) = self.store.space_use();
        let (sessions, _, evicted, refused) = self.sessions.fetch_session_facts();
        let (forwarded, waited) = self.sessions.forward_facts();
        for (gauge, value) in [
            (Counter::LinkForwarded, forwarded as u64),
            (Counter::JournalUsed, journal_used * block),
            (Counter::JournalCapacity, journal * block),
            (Counter::NamespaceFree, free),
            (Counter::NamespaceUsed, owned.saturating_sub(free)),
            (Counter::Leaders, self.partitions.leader_count() as u64),
            (Counter::Partitions, self.store.partition_count() as u64),
            (Counter::ReceiveUsed, self.arena.used_bytes() as u64),
            (Counter::ReceiveCapacity, self.arena.capacity() as u64),
            (Counter::OffloadWaiting, self.offload.in_flight() as u64),
            (Counter::FetchSessions, sessions as u64),
        ] {
            self.counters.set(gauge, value);
        }
        for (total, value) in [
            (Counter::FetchSessionsEvicted, evicted),
            (Counter::FetchSessionsRefused, refused),
            (Counter::LinkNoCredit, waited),
        ] {
            self.counters.add(total, value - self.counters.get(total));
        }
    }
}
