//! When requests are due. The schedule knows nothing of answers: that is what makes the load open.

use base::Random;
use std::time::Duration;

/// How arrivals are spaced at a given rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Arrivals {
    /// One every 1/rate seconds.
    Uniform,
    /// Independent of each other, as many clients together are.
    Poisson,
}

/// The times of arrivals, from the start of the run.
#[derive(Debug)]
pub struct Schedule {
    arrivals: Arrivals,
    mean: f64,
    next: f64,
    random: Random,
}

impl Schedule {
    pub fn new(arrivals: Arrivals, per_second: f64, random: Random) -> Schedule {
        assert!(per_second > 0.0, "a rate above zero");
        Schedule { arrivals, mean: 1.0 / per_second, next: 0.0, random }
    }

    /// The next arrival, in rising order.
    pub fn take(&mut self) -> Duration {
        let due = Duration::from_secs_f64(self.next);
        self.next += match self.arrivals {
            Arrivals::Uniform => self.mean,
            Arrivals::Poisson => self.mean * exponential(&mut self.random),
        };
        due
    }
}

/// A draw from the exponential distribution of mean 1.
fn exponential(random: &mut Random) -> f64 {
    // 53 random bits give every double in (0, 1] the same chance; 0 is left out because its logarithm is infinite.
    let unit = ((random.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
    -unit.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uniform_arrivals_are_evenly_spaced() {
        let mut schedule = Schedule::new(Arrivals::Uniform, 4.0, Random::from_seed(1));
        let times: Vec<u128> = (0..4).map(|_| schedule.take().as_millis()).collect();
        assert_eq!(times, [0, 250, 500, 750]);
    }

    #[test]
    fn poisson_arrivals_have_the_asked_rate_and_an_exponential_spread() {
        let mut schedule = Schedule::new(Arrivals::Poisson, 1000.0, Random::from_seed(7));
        let times: Vec<f64> = (0..100_001).map(|_| schedule.take().as_secs_f64()).collect();
        assert!((times[100_000] - 100.0).abs() < 1.5, "{}", times[100_000]);
        // Of an exponential distribution 36.8 % is above its mean.
        let above = times.windows(2).filter(|pair| pair[1] - pair[0] > 0.001).count();
        assert!((above as f64 / 100_000.0 - 0.368).abs() < 0.01, "{above}");
    }
}
