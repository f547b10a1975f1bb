//! Jobs on the caller's own thread, in an order that the seed alone decides: for the simulator and for tests.

use crate::{Class, Finished, JobToken, Offload};
use base::{Random, Work};

/// Runs jobs inside `poll`.
pub struct InlineOffload {
    capacity: usize,
    waiting: Vec<(Class, JobToken, Box<dyn Work>)>,
    /// With it, a poll lets some jobs wait for a later one, and any job may overtake any other.
    disorder: Option<Random>,
}

impl InlineOffload {
    /// Runs jobs by class, oldest first, as many as the budget allows.
    pub fn in_order(capacity: usize) -> InlineOffload {
        InlineOffload { capacity, waiting: Vec::new(), disorder: None }
    }

    /// Runs jobs late and out of order, as helper threads may.
    pub fn disordered(capacity: usize, random: Random) -> InlineOffload {
        InlineOffload { capacity, waiting: Vec::new(), disorder: Some(random) }
    }

    fn pick(&mut self) -> Option<usize> {
        match &mut self.disorder {
            None => (0..self.waiting.len()).min_by_key(|index| self.waiting[*index].0),
            Some(_) if self.waiting.is_empty() => None,
            Some(random) => {
                let stays = random.chance(1, 3);
                (!stays).then(|| random.below(self.waiting.len() as u64) as usize)
            }
        }
    }
}

impl Offload for InlineOffload {
    fn submit(&mut self, class: Class, token: JobToken, work: Box<dyn Work>) -> Result<(), Box<dyn Work>> {
        if self.room() == 0 {
            return Err(work);
        }
        self.waiting.push((class, token, work));
        Ok(())
    }

    fn poll(&mut self, budget: usize, finished: &mut Vec<Finished>) -> usize {
        for done in 0..budget {
            let Some(index) = self.pick() else { return done };
            let (_, token, mut work) = self.waiting.remove(index);
            work.run();
            finished.push(Finished { token, work });
        }
        budget
    }

    fn in_flight(&self) -> usize {
        self.waiting.len()
    }

    fn room(&self) -> usize {
        self.capacity - self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::any::Any;

    struct Noop;
    impl Work for Noop {
        fn run(&mut self) {}
        fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
            self
        }
    }

    fn tokens(offload: &mut InlineOffload, budget: usize) -> Vec<u64> {
        let mut finished = Vec::new();
        assert_eq!(offload.poll(budget, &mut finished), finished.len());
        finished.iter().map(|job| job.token.0).collect()
    }

    #[test]
    fn classes_go_first_and_then_age() {
        let mut offload = InlineOffload::in_order(4);
        for (token, class) in [Class::Background, Class::Request, Class::Image, Class::Request].into_iter().enumerate()
        {
            assert!(offload.submit(class, JobToken(token as u64), Box::new(Noop)).is_ok());
        }
        assert!(offload.submit(Class::Request, JobToken(9), Box::new(Noop)).is_err());
        assert_eq!(tokens(&mut offload, 3), [1, 3, 2]);
        assert_eq!((offload.in_flight(), offload.room()), (1, 3));
        assert_eq!(tokens(&mut offload, 3), [0]);
    }

    #[test]
    fn disorder_loses_nothing_and_repeats_with_its_seed() {
        let run = |seed| {
            let mut offload = InlineOffload::disordered(100, Random::from_seed(seed));
            for token in 0..100 {
                assert!(offload.submit(Class::Request, JobToken(token), Box::new(Noop)).is_ok());
            }
            let mut order = Vec::new();
            while offload.in_flight() > 0 {
                order.extend(tokens(&mut offload, 10));
            }
            order
        };
        let order = run(1);
        assert_eq!(order, run(1));
        assert_ne!(order, run(2));
        assert!(!order.is_sorted());
        let mut sorted = order;
        sorted.sort_unstable();
        assert_eq!(sorted, (0..100).collect::<Vec<_>>());
    }
}
