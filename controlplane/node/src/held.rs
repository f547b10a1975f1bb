//! Answers that wait: first for their records to be committed and published, then, where a client asked, for the
//! dataplane to have them in force, so that what an answer says holds for the client's next request anywhere.

use crate::dispatch::Screened;
use crate::node::Node;
use base::{Now, PartitionId};
use std::collections::VecDeque;
use wire::{ApiKey, ResponseKind};

/// The forwarded request that an answer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    /// The dataplane's number of it.
    pub id: u64,
    pub api: ApiKey,
    pub version: i16,
    pub correlation_id: i32,
}

/// Who wants to know that a request to the controller is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    Answer(Caller),
    /// The same, with what the broker itself refused put in.
    Altered(Caller, Box<Screened>),
    /// The broker's life: its registration, its fencing, its heartbeat.
    Registered,
    Fenced,
    Beat,
    ProducerIds,
    TopicsCreated(Vec<String>),
    Isr(PartitionId),
}

#[derive(Debug)]
struct Uncommitted {
    at: i64,
    then: Then,
    response: ResponseKind,
}

/// Committed; waits for the dataplane to apply duties and view that were sent by then.
#[derive(Debug)]
struct NotInForce {
    duties: i64,
    view: i64,
    caller: Caller,
    response: ResponseKind,
}

#[derive(Debug, Default)]
pub(crate) struct Held {
    /// In the order of the log.
    uncommitted: VecDeque<Uncommitted>,
    not_in_force: VecDeque<NotInForce>,
}

impl Held {
    pub fn push(&mut self, at: i64, then: Then, response: ResponseKind) {
        assert!(self.uncommitted.back().is_none_or(|last| last.at <= at), "answers wait in the order of the log");
        self.uncommitted.push_back(Uncommitted { at, then, response });
    }

    pub fn len(&self) -> usize {
        self.uncommitted.len() + self.not_in_force.len()
    }

    /// Nobody is there any more to be answered.
    pub fn forget_callers(&mut self) {
        self.uncommitted.retain(|held| !matches!(held.then, Then::Answer(_) | Then::Altered(..)));
        self.not_in_force.clear();
    }

    /// The records that these rest on are undone.
    pub fn take_uncommitted(&mut self) -> Vec<Then> {
        self.uncommitted.drain(..).map(|held| held.then).collect()
    }
}

impl Node {
    /// Lets go what need not wait any longer; true if there was any.
    pub(crate) fn release(&mut self, now: Now) -> bool {
        let mut moved = false;
        let published = self.loader.image().provenance.offset;
        while self.held.uncommitted.front().is_some_and(|held| held.at <= published) {
            let Uncommitted { then, response, .. } = self.held.uncommitted.pop_front().expect("it was looked at");
            moved = true;
            match then {
                Then::Answer(caller) => self.hold_until_in_force(caller, response),
                Then::Altered(caller, screened) => self.hold_until_in_force(caller, screened.complete(response)),
                other => self.on_controlled(other, response, now),
            }
        }
        let applied = self.dataplane.as_ref().map_or((-1, -1), |dataplane| dataplane.applied());
        let in_force = |held: &NotInForce| held.duties <= applied.0 && held.view <= applied.1;
        while self.held.not_in_force.front().is_some_and(in_force) {
            let NotInForce { caller, response, .. } = self.held.not_in_force.pop_front().expect("it was looked at");
            self.answer(caller, &response);
            moved = true;
        }
        moved
    }

    fn hold_until_in_force(&mut self, caller: Caller, response: ResponseKind) {
        let Some(dataplane) = &self.dataplane else { return };
        let (duties, view) = dataplane.sent();
        self.held.not_in_force.push_back(NotInForce { duties, view, caller, response });
    }

    /// The leadership, or an append, was lost: nobody is told that something was done which was not.
    pub(crate) fn fail_uncommitted(&mut self) {
        for then in self.held.take_uncommitted() {
            match then {
                Then::Answer(caller) | Then::Altered(caller, _) => self.close(caller.id),
                Then::Registered | Then::Fenced | Then::Beat => self.broker.start_over(),
                Then::TopicsCreated(names) => self.creating.done(&names),
                Then::ProducerIds | Then::Isr(_) => {}
            }
        }
    }

    /// A request of this node's own is committed.
    fn on_controlled(&mut self, then: Then, response: ResponseKind, now: Now) {
        match (then, response) {
            (Then::Registered, ResponseKind::BrokerRegistration(response)) => self.on_registered(&response, now),
            (Then::Fenced, ResponseKind::BrokerHeartbeat(response)) => self.on_fenced(&response, now),
            (Then::Beat, ResponseKind::BrokerHeartbeat(response)) => self.on_beat(&response, now),
            (Then::ProducerIds, ResponseKind::AllocateProducerIds(response)) => self.on_producer_ids(&response),
            (Then::TopicsCreated(names), ResponseKind::CreateTopics(response)) => {
                self.on_topics_created(&names, &response);
            }
            (Then::Isr(partition), ResponseKind::AlterPartition(response)) => on_isr(partition, &response),
            (then, response) => unreachable!("{then:?} is not answered by {:?}", response.api()),
        }
    }
}

/// A refusal needs no message: the leader learns of the partition's state by its duty, which a refused proposal means has
/// changed or will.
fn on_isr(partition: PartitionId, response: &wire::messages::AlterPartitionResponse) {
    let nested = response.topics.iter().flat_map(|topic| &topic.partitions).map(|partition| partition.error_code);
    if let Some(code) = std::iter::once(response.error_code).chain(nested).find(|code| *code != 0) {
        tracing::warn!(%partition, code, "a change of an ISR was refused");
    }
}
