//! Durations in fixed buckets, so that a distribution is a few words in a page: sixteen to every power of two, hence
//! within 6.25 % of the truth, from 128 ns to 18 minutes.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Resolution below the first powers of two: 128 ns.
const UNIT_SHIFT: u32 = 7;
/// Sixteen buckets a power of two.
const PRECISION: u32 = 4;
/// Units at or above this power of two are counted in the last bucket.
const POWERS: u32 = 33;

pub(super) const BUCKETS: usize = ((POWERS - PRECISION + 1) << PRECISION) as usize;
pub(super) const SUM: usize = 0;
pub(super) const LARGEST: usize = 1;
pub(super) const FIRST_BUCKET: usize = 2;
pub(super) const HISTOGRAM_WORDS: usize = FIRST_BUCKET + BUCKETS;

pub(super) fn bucket(nanos: u64) -> usize {
    let units = nanos >> UNIT_SHIFT;
    if units < 1 << PRECISION {
        return units as usize;
    }
    let power = units.ilog2();
    let fraction = (units >> (power - PRECISION)) & ((1 << PRECISION) - 1);
    let bucket = u64::from((power - PRECISION + 1) << PRECISION) | fraction;
    (bucket as usize).min(BUCKETS - 1)
}

/// The first duration above those that the bucket counts.
fn bucket_end(bucket: usize) -> u64 {
    let bucket = bucket as u64 + 1;
    if bucket < 1 << PRECISION {
        return bucket << UNIT_SHIFT;
    }
    let (row, fraction) = (bucket >> PRECISION, bucket & ((1 << PRECISION) - 1));
    ((1 << PRECISION) | fraction) << (row - 1) << UNIT_SHIFT
}

/// A distribution as it was when it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistogramSnapshot {
    sum_nanos: u64,
    largest_nanos: u64,
    buckets: Vec<u64>,
}

impl HistogramSnapshot {
    pub(super) fn read(words: &[AtomicU64]) -> HistogramSnapshot {
        HistogramSnapshot {
            sum_nanos: words[SUM].load(Relaxed),
            largest_nanos: words[LARGEST].load(Relaxed),
            buckets: words[FIRST_BUCKET..].iter().map(|word| word.load(Relaxed)).collect(),
        }
    }

    pub fn empty() -> HistogramSnapshot {
        HistogramSnapshot { sum_nanos: 0, largest_nanos: 0, buckets: vec![0; BUCKETS] }
    }

    /// Adds another core's distribution to this.
    pub fn merge(&mut self, other: &HistogramSnapshot) {
        self.sum_nanos = self.sum_nanos.wrapping_add(other.sum_nanos);
        self.largest_nanos = self.largest_nanos.max(other.largest_nanos);
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(mine, theirs)| *mine += theirs);
    }

    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_nanos)
    }

    pub fn largest(&self) -> Duration {
        Duration::from_nanos(self.largest_nanos)
    }

    /// A duration that the given share of the counted ones (0 to 1) does not exceed; none where nothing was counted.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let count = self.count();
        let rank = ((share.clamp(0.0, 1.0) * count as f64).ceil() as u64).max(1);
        let mut seen = 0;
        let bucket = self.buckets.iter().position(|n| {
            seen += n;
            seen >= rank
        })?;
        Some(Duration::from_nanos(bucket_end(bucket).min(self.largest_nanos)))
    }

    /// How many counted durations are certainly at most `bound`: for cumulative buckets of coarser bounds.
    pub fn count_up_to(&self, bound: Duration) -> u64 {
        let bound = u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX);
        (0..BUCKETS).take_while(|bucket| bucket_end(*bucket) - 1 <= bound).map(|bucket| self.buckets[bucket]).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_contiguous_and_as_fine_as_promised() {
        for bucket_number in 0..BUCKETS - 1 {
            let end = bucket_end(bucket_number);
            assert_eq!(bucket(end - 1), bucket_number);
            assert_eq!(bucket(end), bucket_number + 1);
            if bucket_number >= 1 << PRECISION {
                let start = bucket_end(bucket_number - 1);
                assert!((end - start) as f64 / start as f64 <= 0.0626);
            }
        }
        assert_eq!(bucket(0), 0);
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert!(bucket_end(BUCKETS - 1) > Duration::from_secs(18 * 60).as_nanos() as u64);
    }

    #[test]
    fn quantiles_and_sums_of_merged_distributions() {
        let words: Vec<_> = (0..HISTOGRAM_WORDS).map(|_| AtomicU64::new(0)).collect();
        assert_eq!(HistogramSnapshot::read(&words).quantile(0.5), None);
        for micros in 1..=1000u64 {
            let nanos = micros * 1000;
            words[SUM].fetch_add(nanos, Relaxed);
            words[LARGEST].fetch_max(nanos, Relaxed);
            words[FIRST_BUCKET + bucket(nanos)].fetch_add(1, Relaxed);
        }
        let mut all = HistogramSnapshot::empty();
        all.merge(&HistogramSnapshot::read(&words));
        all.merge(&HistogramSnapshot::read(&words));
        assert_eq!(all.count(), 2000);
        assert_eq!(all.sum(), Duration::from_micros(2 * 500 * 1001));
        assert_eq!(all.largest(), Duration::from_micros(1000));
        for (share, micros) in [(0.0, 1.0), (0.5, 500.0), (0.99, 990.0), (1.0, 1000.0)] {
            let got = all.quantile(share).unwrap().as_secs_f64() * 1e6;
            assert!(got >= micros && got <= micros * 1.07 + 0.13, "{share}: {got}");
        }
        let half = all.count_up_to(Duration::from_micros(500));
        assert!((930..=1000).contains(&half), "{half}");
        assert_eq!(all.count_up_to(Duration::from_secs(2)), 2000);
    }
}
