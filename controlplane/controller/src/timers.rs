//! What the active controller does on its own: ending sessions, balancing leaders, unclean elections.

use crate::controller::{Append, Controller, Decision, ELECTIONS_MAX, Outcome};
use base::{Monotonic, Now};
use image::Record;
use std::time::Duration;
use wire::messages::NoOpRecord;

/// Between two brokers whose sessions have ended: other events get their turn.
const FENCE_PAUSE: Duration = Duration::from_millis(10);

impl Controller {
    /// When `poll` has something to do at the earliest.
    pub fn next_deadline(&self) -> Option<Monotonic> {
        let active = self.active.as_ref()?;
        if active.electing.is_some() || active.fencing.is_some() {
            return Some(Monotonic::ZERO);
        }
        let idle = active.next_idle.filter(|_| !self.alone);
        let timers = [Some(active.next_fence_check), active.next_balance, Some(active.next_unclean), idle];
        timers.into_iter().flatten().min()
    }

    /// One event of the timers that are due; `None` when nothing is left to do now.
    pub fn poll(&mut self, now: Now) -> Option<Append> {
        let now = now.monotonic;
        loop {
            if self.next_deadline()? > now {
                return None;
            }
            let outcome = self.decide(|controller| Ok(controller.decide_timer(now)), |_| ());
            let (Outcome::Done { append, .. } | Outcome::Again { append }) = outcome;
            if !append.is_empty() {
                return Some(append);
            }
        }
    }

    fn decide_timer(&mut self, now: Monotonic) -> Decision<()> {
        let mut records = Vec::new();
        let active = self.active.as_ref().expect("timers run while active");
        if let Some(from) = active.electing {
            let next = self.elect_leaderless(None, Some(from), &mut records);
            self.active.as_mut().expect("timers run while active").electing = next;
        } else if active.fencing.is_some() || active.next_fence_check <= now {
            self.fence_one_expired(now, &mut records);
        } else if active.next_balance.is_some_and(|at| at <= now) {
            self.balance_leaders(&mut records);
            let interval = self.options.leader_balance_interval.filter(|_| records.len() < ELECTIONS_MAX);
            let next = interval.map_or(now, |interval| now + interval);
            self.active.as_mut().expect("timers run while active").next_balance = Some(next);
        } else if active.next_idle.is_some_and(|at| at <= now && !self.alone) {
            records.push(Record::v0(NoOpRecord::default()));
            let next = self.options.idle_interval.map(|interval| now + interval);
            self.active.as_mut().expect("timers run while active").next_idle = next;
        } else {
            self.elect_unclean(&mut records);
            let more = records.len() >= ELECTIONS_MAX;
            let next = if more { now } else { now + self.options.unclean_election_interval };
            self.active.as_mut().expect("timers run while active").next_unclean = next;
        }
        Decision::loose(records, ())
    }

    /// Brokers are fenced one at a time, each in as many events as its leaderships need; when nobody is left the timer
    /// waits for its next turn.
    fn fence_one_expired(&mut self, now: Monotonic, records: &mut Vec<Record>) {
        let interval = self.fence_check_interval();
        let active = self.active.as_mut().expect("timers run while active");
        let Some((id, epoch)) = active.fencing.take().or_else(|| active.heartbeats.take_expired(now)) else {
            active.next_fence_check = now + interval;
            return;
        };
        active.next_fence_check = now + FENCE_PAUSE;
        match self.state.image.cluster.broker(id) {
            None => active.heartbeats.remove(id),
            Some(broker) if broker.epoch != epoch => {}
            Some(_) => {
                let more = self.fence(id, epoch, records);
                self.active.as_mut().expect("timers run while active").fencing = more.then_some((id, epoch));
            }
        }
    }
}
