//! Requests that a device of the system is working on, in fixed slots. A slot is free again only when the system is done
//! with it: a request whose deadline passed is reported at once, but its buffers stay here until the system answers.

use base::Monotonic;
use nvme_plan::{Completion, DeviceError, Operation, Request, Token};
use std::time::Duration;

/// Who has not looked for this long slept, or did not run at all: a process that is stopped, a frozen container, a machine
/// that is moved. What hands requests to the device may have stood still with it.
const UNWATCHED: Duration = Duration::from_secs(2);
/// What the device has at least from the first look after such a time.
const GRACE: Duration = Duration::from_secs(1);

/// Names a slot while its request is with the system, which gets it back with its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(pub(crate) u32);

struct Held {
    token: Token,
    deadline: Option<Monotonic>,
    operation: Operation,
    timed_out: bool,
}

pub(crate) struct InFlight {
    slots: Vec<Option<Held>>,
    vacant: Vec<u32>,
    timed_out: usize,
    /// Not later than the earliest deadline held, so that most polls look at none of them.
    earliest: Option<Monotonic>,
    /// When deadlines were last looked at.
    looked: Monotonic,
}

impl InFlight {
    pub(crate) fn new(slots: usize) -> InFlight {
        let count = u32::try_from(slots).expect("a queue has fewer than 2^32 slots");
        InFlight {
            slots: (0..count).map(|_| None).collect(),
            vacant: (0..count).rev().collect(),
            timed_out: 0,
            earliest: None,
            looked: Monotonic::ZERO,
        }
    }

    /// Takes a request into a slot. The caller has asked for room.
    pub(crate) fn hold(&mut self, request: Request) -> (Slot, &mut Operation) {
        let index = self.vacant.pop().expect("the queue has room");
        if let Some(deadline) = request.deadline {
            self.earliest = Some(self.earliest.map_or(deadline, |earliest| earliest.min(deadline)));
        }
        let held =
            Held { token: request.token, deadline: request.deadline, operation: request.operation, timed_out: false };
        let place = self.slots[index as usize].insert(held);
        (Slot(index), &mut place.operation)
    }

    pub(crate) fn operation(&self, slot: Slot) -> &Operation {
        &self.slots[slot.0 as usize].as_ref().expect("the slot is held").operation
    }

    /// The system is done with the slot. Nothing to report where its deadline had passed: the buffers go here and now.
    pub(crate) fn release(&mut self, slot: Slot, result: Result<(), DeviceError>) -> Option<Completion> {
        let held = self.slots[slot.0 as usize].take().expect("the system answers once");
        self.vacant.push(slot.0);
        if held.timed_out {
            self.timed_out -= 1;
            return None;
        }
        Some(Completion { token: held.token, operation: Some(held.operation), result })
    }

    /// Reports at most `budget` requests whose deadline has passed, once the system was asked for what is done.
    pub(crate) fn expire(&mut self, now: Monotonic, budget: usize, completions: &mut Vec<Completion>) -> usize {
        let unwatched = now.since(std::mem::replace(&mut self.looked, now)) > UNWATCHED;
        if self.earliest.is_none_or(|earliest| now < earliest) {
            return 0;
        }
        if unwatched {
            self.defer(now + GRACE);
            return 0;
        }
        let mut expired = 0;
        let mut earliest = None;
        for held in self.slots.iter_mut().flatten().filter(|held| !held.timed_out) {
            let Some(deadline) = held.deadline else { continue };
            if deadline <= now && expired < budget {
                held.timed_out = true;
                expired += 1;
                let result = Err(DeviceError::TimedOut);
                completions.push(Completion { token: held.token, operation: None, result });
            } else {
                earliest = Some(earliest.map_or(deadline, |other: Monotonic| other.min(deadline)));
            }
        }
        self.earliest = earliest;
        self.timed_out += expired;
        expired
    }

    /// No deadline passes before this.
    fn defer(&mut self, until: Monotonic) {
        let unreported = self.slots.iter_mut().flatten().filter(|held| !held.timed_out);
        let deadlines = unreported.filter_map(|held| held.deadline.as_mut());
        self.earliest = deadlines
            .map(|deadline| {
                *deadline = (*deadline).max(until);
                *deadline
            })
            .min();
    }

    /// Requests with the system that were not reported yet.
    pub(crate) fn unreported(&self) -> usize {
        self.held() - self.timed_out
    }

    /// Requests with the system, reported or not.
    pub(crate) fn held(&self) -> usize {
        self.slots.len() - self.vacant.len()
    }

    /// Requests that were reported as timed out and whose buffers the system still has.
    pub(crate) fn timed_out(&self) -> usize {
        self.timed_out
    }

    pub(crate) fn next_deadline(&self) -> Option<Monotonic> {
        self.earliest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvme_plan::Class;

    fn request(token: u64, deadline: Option<u64>) -> Request {
        let deadline = deadline.map(Monotonic);
        Request { token: Token(token), class: Class::Commit, deadline, operation: Operation::Flush }
    }

    #[test]
    fn a_timed_out_request_keeps_its_slot_until_the_system_answers() {
        let mut in_flight = InFlight::new(2);
        let (one, _) = in_flight.hold(request(1, Some(10)));
        let (two, _) = in_flight.hold(request(2, Some(20)));
        let mut completions = Vec::new();
        assert_eq!(in_flight.expire(Monotonic(9), 8, &mut completions), 0);
        assert_eq!(in_flight.expire(Monotonic(10), 8, &mut completions), 1);
        assert_eq!((completions[0].token, completions[0].result), (Token(1), Err(DeviceError::TimedOut)));
        assert!(completions[0].operation.is_none());
        assert_eq!((in_flight.unreported(), in_flight.held(), in_flight.timed_out()), (1, 2, 1));
        assert_eq!(in_flight.next_deadline(), Some(Monotonic(20)));
        assert!(in_flight.release(one, Ok(())).is_none());
        assert_eq!(in_flight.held(), 1);
        assert_eq!(in_flight.release(two, Ok(())).map(|completion| completion.token), Some(Token(2)));
        assert_eq!((in_flight.unreported(), in_flight.held(), in_flight.timed_out()), (0, 0, 0));
    }

    /// A node that was stopped for longer than a write may take found its flush late as soon as it went on, and ended: the
    /// kernel's thread that was to begin it had been stopped too.
    #[test]
    fn time_in_which_nobody_looked_is_not_held_against_the_device() {
        let seconds = |seconds: u64| Monotonic(seconds * 1_000_000_000);
        let mut in_flight = InFlight::new(2);
        let mut completions = Vec::new();
        assert_eq!(in_flight.expire(seconds(100), 8, &mut completions), 0);
        let (one, _) = in_flight.hold(request(1, Some(seconds(130).0)));
        in_flight.hold(request(2, Some(seconds(200).0)));
        assert_eq!(in_flight.expire(seconds(100), 8, &mut completions), 0);
        assert_eq!(in_flight.expire(seconds(150), 8, &mut completions), 0);
        assert_eq!(in_flight.next_deadline(), Some(seconds(151)));
        assert!(in_flight.release(one, Ok(())).is_some(), "it comes as if nothing had been");
        // One that does not come within the grace is late.
        assert_eq!(in_flight.expire(seconds(210), 8, &mut completions), 0);
        assert_eq!(in_flight.expire(seconds(211), 8, &mut completions), 1);
        assert_eq!((completions[0].token, completions[0].result), (Token(2), Err(DeviceError::TimedOut)));
    }

    #[test]
    fn expiry_keeps_to_its_budget_and_comes_back_for_the_rest() {
        let mut in_flight = InFlight::new(3);
        for token in 0..3 {
            in_flight.hold(request(token, Some(5)));
        }
        let mut completions = Vec::new();
        assert_eq!(in_flight.expire(Monotonic(6), 2, &mut completions), 2);
        assert_eq!(in_flight.next_deadline(), Some(Monotonic(5)));
        assert_eq!(in_flight.expire(Monotonic(6), 2, &mut completions), 1);
        assert_eq!(in_flight.next_deadline(), None);
    }
}
