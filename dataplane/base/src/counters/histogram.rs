//! Durations in the layout of an HdrHistogram of two significant digits, so that a core adds to one with a few words of
//! its pages, without memory of its own, and whoever reads them makes an `hdrhistogram::Histogram` of them, exactly. 128
//! buckets to every power of two: within 0.8 % of the truth, from 128 ns to 18 minutes.

use hdrhistogram::Histogram;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Below `SUB_BUCKETS` times this, one bucket is as wide as this: 128 ns.
const UNIT_SHIFT: u32 = 7;
const SIGNIFICANT_DIGITS: u8 = 2;
/// The power of two that two digits need.
const SUB_BUCKETS: u64 = 256;
const HALF_SHIFT: u32 = SUB_BUCKETS.trailing_zeros() - 1;
/// What takes this long or longer is counted in the last bucket: 18 minutes.
const LARGEST_NANOS: u64 = (1 << 40) - 1;

pub(super) const BUCKETS: usize = bucket(LARGEST_NANOS) + 1;
/// The words of a distribution beside its buckets.
pub(super) const HEAD_WORDS: usize = 3;
pub(super) const SUM: usize = 0;
pub(super) const LARGEST: usize = 1;
pub(super) const COUNT: usize = 2;

/// The place of a duration, as `hdrhistogram` numbers them.
pub(super) const fn bucket(nanos: u64) -> usize {
    let nanos = if nanos > LARGEST_NANOS { LARGEST_NANOS } else { nanos };
    let row = (nanos | ((SUB_BUCKETS - 1) << UNIT_SHIFT)).ilog2() - (SUB_BUCKETS.trailing_zeros() - 1 + UNIT_SHIFT);
    ((row << HALF_SHIFT) as u64 + (nanos >> (row + UNIT_SHIFT))) as usize
}

/// The shortest duration that the bucket counts.
fn bucket_start(bucket: usize) -> u64 {
    let row = (bucket >> HALF_SHIFT).saturating_sub(1);
    ((bucket - (row << HALF_SHIFT)) as u64) << (row as u32 + UNIT_SHIFT)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A distribution as it was when it was read.
#[derive(Clone, Debug)]
pub struct HistogramSnapshot {
    sum_nanos: u64,
    largest_nanos: u64,
    counts: Histogram<u64>,
}

impl HistogramSnapshot {
    /// Pages that were never written are not read, since even that would take memory.
    pub(super) fn read(head: &[AtomicU64], buckets: &[AtomicU64]) -> HistogramSnapshot {
        let mut snapshot = HistogramSnapshot::empty();
        if head[COUNT].load(Relaxed) == 0 {
            return snapshot;
        }
        snapshot.sum_nanos = head[SUM].load(Relaxed);
        snapshot.largest_nanos = head[LARGEST].load(Relaxed);
        for (bucket, count) in buckets.iter().enumerate() {
            let count = count.load(Relaxed);
            if count > 0 {
                snapshot.counts.record_n(bucket_start(bucket), count).expect("a bucket's start is within the bounds");
            }
        }
        snapshot
    }

    pub fn empty() -> HistogramSnapshot {
        let counts = Histogram::new_with_bounds(1 << UNIT_SHIFT, LARGEST_NANOS, SIGNIFICANT_DIGITS);
        HistogramSnapshot { sum_nanos: 0, largest_nanos: 0, counts: counts.expect("the bounds are right") }
    }

    /// Adds another core's distribution to this.
    pub fn merge(&mut self, other: &HistogramSnapshot) {
        self.sum_nanos = self.sum_nanos.wrapping_add(other.sum_nanos);
        self.largest_nanos = self.largest_nanos.max(other.largest_nanos);
        self.counts.add(&other.counts).expect("the bounds are the same");
    }

    /// What was counted after `earlier` was read of the same pages. Its longest is known as well as its quantiles are.
    pub fn since(&self, earlier: &HistogramSnapshot) -> HistogramSnapshot {
        let mut later = self.clone();
        later.sum_nanos = self.sum_nanos.wrapping_sub(earlier.sum_nanos);
        later.counts.subtract(&earlier.counts).expect("counts only grow");
        later.largest_nanos = later.counts.max().min(self.largest_nanos);
        later
    }

    pub fn count(&self) -> u64 {
        self.counts.len()
    }

    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_nanos)
    }

    pub fn largest(&self) -> Duration {
        Duration::from_nanos(self.largest_nanos)
    }

    /// A duration that the given share of the counted ones (0 to 1) does not exceed; none where nothing was counted.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let value = || Duration::from_nanos(self.counts.value_at_quantile(share).min(self.largest_nanos));
        (!self.counts.is_empty()).then(value)
    }

    /// How many counted durations are certainly at most each of these bounds, which rise: cumulative buckets of coarser
    /// bounds.
    pub fn counts_up_to(&self, bounds: &[Duration]) -> Vec<u64> {
        let mut recorded = self.counts.iter_recorded().peekable();
        let mut seen = 0;
        let up_to = |bound: &Duration| {
            while let Some(bucket) =
                recorded.next_if(|bucket| self.counts.highest_equivalent(bucket.value_iterated_to()) <= nanos(*bound))
            {
                seen += bucket.count_since_last_iteration();
            }
            seen
        };
        bounds.iter().map(up_to).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words as a core has them.
    fn words() -> (Vec<AtomicU64>, Vec<AtomicU64>) {
        let zeroes = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
        (zeroes(HEAD_WORDS), zeroes(BUCKETS))
    }

    fn record((head, buckets): &(Vec<AtomicU64>, Vec<AtomicU64>), nanos: u64) {
        head[SUM].fetch_add(nanos, Relaxed);
        head[LARGEST].fetch_max(nanos, Relaxed);
        head[COUNT].fetch_add(1, Relaxed);
        buckets[bucket(nanos)].fetch_add(1, Relaxed);
    }

    #[test]
    fn the_pages_are_what_hdrhistogram_would_have_counted() {
        let words = words();
        let mut expected = HistogramSnapshot::empty().counts;
        assert_eq!(expected.distinct_values(), BUCKETS);
        let mut random = crate::Random::from_seed(5);
        for round in 0..200_000u32 {
            let nanos = random.below(1 << (1 + round % 45));
            record(&words, nanos);
            expected.saturating_record(nanos);
        }
        assert_eq!(HistogramSnapshot::read(&words.0, &words.1).counts, expected);
        for bucket_number in 0..BUCKETS {
            let start = bucket_start(bucket_number);
            assert_eq!(bucket(start), bucket_number);
            assert_eq!(start, expected.lowest_equivalent(start));
            let width = expected.highest_equivalent(start) + 1 - start;
            assert!(width <= 128.max(start / 127), "{width} ns wide from {start} ns on");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn three_hundred_microseconds_are_not_four_hundred() {
        for (micros, seen) in [(300, 300.0..303.0), (310, 310.0..313.0), (400, 400.0..404.0)] {
            let words = words();
            (0..100).for_each(|_| record(&words, micros * 1000));
            record(&words, 1_000_000_000);
            let p99 = HistogramSnapshot::read(&words.0, &words.1).quantile(0.99).unwrap().as_secs_f64() * 1e6;
            assert!(seen.contains(&p99), "{p99}");
        }
    }

    #[test]
    fn quantiles_and_sums_of_merged_distributions() {
        let words = words();
        assert_eq!(HistogramSnapshot::read(&words.0, &words.1).quantile(0.5), None);
        (1..=1000).for_each(|micros| record(&words, micros * 1000));
        let once = HistogramSnapshot::read(&words.0, &words.1);
        let mut all = once.clone();
        all.merge(&once);
        assert_eq!(all.count(), 2000);
        assert_eq!(all.sum(), Duration::from_micros(2 * 500 * 1001));
        assert_eq!(all.largest(), Duration::from_micros(1000));
        for (share, micros) in [(0.0005, 1.0), (0.5, 500.0), (0.99, 990.0), (1.0, 1000.0)] {
            let got = all.quantile(share).unwrap().as_secs_f64() * 1e6;
            assert!(got >= micros && got <= micros * 1.01 + 0.13, "{share}: {got}");
        }
        let bounds = [Duration::from_nanos(5), Duration::from_micros(500), Duration::from_secs(2)];
        let up_to = all.counts_up_to(&bounds);
        assert_eq!((up_to[0], up_to[2]), (0, 2000));
        assert!((990..=1000).contains(&up_to[1]), "{up_to:?}");
        record(&words, 77_000_000);
        let later = HistogramSnapshot::read(&words.0, &words.1).since(&once);
        assert_eq!((later.count(), later.sum()), (1, Duration::from_millis(77)));
        assert!((76..79).contains(&later.largest().as_millis()));
    }
}
