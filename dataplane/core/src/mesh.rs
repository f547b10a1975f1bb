//! The rings between cores, seen from one of them. Messages to itself take the same path without atomics.

use crate::message::Message;
use base::{CoreId, Sleeper};
use handoff::ring::{Receiver, Sender, ring};
use std::collections::VecDeque;
use std::sync::Arc;

/// Messages that a ring holds; what a core may have under way to another before it stops reading its sockets.
const RING_CAPACITY: usize = 1024;

/// One core's ends of all rings.
pub struct Mesh<D> {
    core: CoreId,
    /// By the other core's number; `None` at our own.
    senders: Vec<Option<Sender<Message<D>>>>,
    receivers: Vec<Option<Receiver<Message<D>>>>,
    /// What a ring had no room for, in order.
    outboxes: Vec<VecDeque<Message<D>>>,
    own: VecDeque<Message<D>>,
    sleepers: Vec<Arc<Sleeper>>,
    /// Cores to which something was pushed since the last `wake`.
    pushed: Vec<bool>,
    next: usize,
    counts: MeshCounts,
}

/// What a core sent since it was last asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeshCounts {
    pub sent: u64,
    pub wakes: u64,
    /// Turns at whose end a ring could not take all.
    pub congested: u64,
}

/// Makes the ends for all cores.
pub fn meshes<D: Send>(sleepers: &[Arc<Sleeper>]) -> Vec<Mesh<D>> {
    let cores = sleepers.len();
    let mut meshes: Vec<Mesh<D>> = (0..cores)
        .map(|core| Mesh {
            core: CoreId(core as u16),
            senders: (0..cores).map(|_| None).collect(),
            receivers: (0..cores).map(|_| None).collect(),
            outboxes: (0..cores).map(|_| VecDeque::new()).collect(),
            own: VecDeque::new(),
            sleepers: sleepers.to_vec(),
            pushed: vec![false; cores],
            next: 0,
            counts: MeshCounts::default(),
        })
        .collect();
    for from in 0..cores {
        for to in (0..cores).filter(|to| *to != from) {
            let (sender, receiver) = ring(RING_CAPACITY);
            meshes[from].senders[to] = Some(sender);
            meshes[to].receivers[from] = Some(receiver);
        }
    }
    meshes
}

impl<D: Send> Mesh<D> {
    pub fn cores(&self) -> usize {
        self.senders.len()
    }

    pub fn send(&mut self, to: CoreId, message: Message<D>) {
        if to == self.core {
            self.own.push_back(message);
        } else {
            self.outboxes[usize::from(to.0)].push_back(message);
            self.pushed[usize::from(to.0)] = true;
            self.counts.sent += 1;
        }
    }

    /// To every core, our own included.
    pub fn send_all(&mut self, mut message: impl FnMut() -> Message<D>) {
        for core in 0..self.cores() {
            self.send(CoreId(core as u16), message());
        }
    }

    /// Moves what waits into the rings and wakes sleepers that got something.
    pub fn flush(&mut self) {
        for to in 0..self.cores() {
            let Some(sender) = &mut self.senders[to] else { continue };
            while let Some(message) = self.outboxes[to].pop_front() {
                if let Err(message) = sender.push(message) {
                    self.outboxes[to].push_front(message);
                    self.counts.congested += 1;
                    break;
                }
            }
            if std::mem::take(&mut self.pushed[to]) {
                self.counts.wakes += u64::from(self.sleepers[to].notify());
            }
        }
    }

    pub fn take_counts(&mut self) -> MeshCounts {
        std::mem::take(&mut self.counts)
    }

    /// True where a ring could not take all: the core then reads no sockets until it could.
    pub fn is_congested(&self) -> bool {
        self.outboxes.iter().any(|outbox| !outbox.is_empty())
    }

    /// The next message: of our own and of every ring in turn, so that a core with much to say to itself hears the others.
    pub fn receive(&mut self) -> Option<Message<D>> {
        let cores = self.cores();
        for _ in 0..cores {
            let from = self.next;
            self.next = (self.next + 1) % cores;
            let message = match &mut self.receivers[from] {
                Some(receiver) => receiver.pop(),
                None => self.own.pop_front(),
            };
            if message.is_some() {
                return message;
            }
        }
        None
    }

    /// The next message while a turn's budget lasts, which each takes by its weight.
    pub fn receive_within(&mut self, budget: &mut usize) -> Option<Message<D>> {
        if *budget == 0 {
            return None;
        }
        let message = self.receive()?;
        *budget = budget.saturating_sub(message.weight());
        Some(message)
    }

    /// The last look before sleeping.
    pub fn is_empty(&mut self) -> bool {
        self.own.is_empty() && self.receivers.iter_mut().flatten().all(|receiver| receiver.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handoff::{Command, EntryIndex, EpochEnds, EpochEndsEntry, GatherId};

    /// A command about so many partitions.
    fn command(partitions: u32) -> Message<()> {
        let entry = |index| EpochEndsEntry {
            index: EntryIndex(index),
            partition: Default::default(),
            current_epoch: None,
            epoch: base::LeaderEpoch(0),
        };
        let gather = GatherId { core: CoreId(0), slot: 0, generation: 0 };
        let entries = (0..partitions).map(entry).collect();
        Message::Command(Command::EpochEnds(EpochEnds { gather, entries }))
    }

    #[test]
    fn a_turn_takes_messages_by_the_partitions_they_are_about() {
        let sleepers = [Arc::new(Sleeper::new(|| ()))];
        let mut mesh = meshes::<()>(&sleepers).remove(0);
        (0..100).for_each(|_| mesh.send(CoreId(0), command(31)));
        (0..100).for_each(|_| mesh.send(CoreId(0), Message::LinkUp));
        let mut taken = Vec::new();
        while !mesh.is_empty() {
            let (mut budget, mut count) = (128, 0);
            while mesh.receive_within(&mut budget).is_some() {
                count += 1;
            }
            taken.push(count);
        }
        assert_eq!(taken, [vec![4; 25], vec![100]].concat());
        // What is about more than is left is taken whole, and is the last.
        mesh.send(CoreId(0), command(500));
        mesh.send(CoreId(0), command(1));
        let mut budget = 128;
        assert!(mesh.receive_within(&mut budget).is_some());
        assert!(mesh.receive_within(&mut budget).is_none() && !mesh.is_empty());
    }
}
