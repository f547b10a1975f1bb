//! What the active controller knows of brokers beyond the log: when it last heard of them, how far they have come. It is
//! gone with the leadership, and the next controller gives every unfenced broker a fresh session.

use base::{BrokerEpoch, Monotonic, NodeId};
use image::Cluster;
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Clone, Debug)]
struct Life {
    fenced: bool,
    /// The metadata offset that the broker said it has applied; `None` until it says.
    offset: Option<i64>,
    /// The broker may go once every other active broker has applied this offset.
    shutdown_offset: Option<i64>,
}

/// A broker's state as heartbeats move it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Fenced,
    Unfenced,
    ControlledShutdown,
    ShutdownNow,
}

impl Standing {
    pub fn is_fenced(self) -> bool {
        matches!(self, Standing::Fenced | Standing::ShutdownNow)
    }
}

/// What a heartbeat asks for.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    pub fence: bool,
    pub shut_down: bool,
    pub offset: i64,
}

#[derive(Debug)]
pub struct Heartbeats {
    session_timeout: Duration,
    lives: BTreeMap<NodeId, Life>,
    contacts: BTreeMap<(NodeId, BrokerEpoch), Monotonic>,
}

impl Heartbeats {
    /// At the start of a leadership: whoever is unfenced counts as heard of now.
    pub fn new(session_timeout: Duration, cluster: &Cluster, now: Monotonic) -> Heartbeats {
        let mut heartbeats = Heartbeats { session_timeout, lives: BTreeMap::new(), contacts: BTreeMap::new() };
        for broker in cluster.brokers.values() {
            heartbeats.register(broker.id, broker.fenced);
            if !broker.fenced {
                heartbeats.contacts.insert((broker.id, broker.epoch), now);
            }
        }
        heartbeats
    }

    /// The log says how a broker is registered.
    pub fn register(&mut self, id: NodeId, fenced: bool) {
        let life = self.lives.entry(id).or_insert(Life { fenced, offset: None, shutdown_offset: None });
        let offset = if life.fenced == fenced { None } else { life.offset };
        self.touch(id, fenced, offset);
    }

    pub fn remove(&mut self, id: NodeId) {
        self.lives.remove(&id);
    }

    /// A broker that is fenced has ended its controlled shutdown, too.
    pub fn touch(&mut self, id: NodeId, fenced: bool, offset: Option<i64>) {
        let Some(life) = self.lives.get_mut(&id) else { return };
        life.fenced = fenced;
        life.offset = offset;
        if fenced {
            life.shutdown_offset = None;
        }
    }

    pub fn contact(&mut self, id: NodeId, epoch: BrokerEpoch, now: Monotonic) {
        self.contacts.insert((id, epoch), now);
    }

    fn is_expired(&self, contact: Monotonic, now: Monotonic) -> bool {
        now.since(contact) > self.session_timeout
    }

    pub fn has_session(&self, id: NodeId, epoch: BrokerEpoch, now: Monotonic) -> bool {
        self.contacts.get(&(id, epoch)).is_some_and(|contact| !self.is_expired(*contact, now))
    }

    /// One broker that has not been heard of for too long; it is not named again.
    pub fn take_expired(&mut self, now: Monotonic) -> Option<(NodeId, BrokerEpoch)> {
        let expired = self.contacts.iter().find(|(_, contact)| self.is_expired(**contact, now));
        let key = *expired?.0;
        self.contacts.remove(&key);
        Some(key)
    }

    pub fn is_shutting_down(&self, id: NodeId) -> bool {
        self.lives.get(&id).is_some_and(|life| life.shutdown_offset.is_some())
    }

    /// The records that moved this broker's leaderships away end at `offset`; only the first time counts.
    pub fn begin_shutdown(&mut self, id: NodeId, offset: i64) {
        if let Some(life) = self.lives.get_mut(&id) {
            life.shutdown_offset.get_or_insert(offset);
        }
    }

    /// Every other broker that serves has applied at least this.
    fn lowest_active_offset(&self) -> i64 {
        let active = self.lives.values().filter(|life| !life.fenced && life.shutdown_offset.is_none());
        active.map(|life| life.offset.unwrap_or(-1)).min().unwrap_or(i64::MAX)
    }

    pub fn standing(&self, id: NodeId) -> Standing {
        match self.lives.get(&id) {
            Some(life) if life.shutdown_offset.is_some() => Standing::ControlledShutdown,
            Some(life) if !life.fenced => Standing::Unfenced,
            _ => Standing::Fenced,
        }
    }

    pub fn next_standing(&self, id: NodeId, wish: Wish, registered_at: i64, leads: bool) -> Standing {
        match self.standing(id) {
            Standing::Fenced if wish.shut_down => Standing::ShutdownNow,
            // It must know its own registration before it serves under it.
            Standing::Fenced if !wish.fence && wish.offset >= registered_at => Standing::Unfenced,
            Standing::Fenced => Standing::Fenced,
            Standing::Unfenced if wish.fence && wish.shut_down => Standing::ShutdownNow,
            Standing::Unfenced if wish.fence => Standing::Fenced,
            Standing::Unfenced if wish.shut_down && leads => Standing::ControlledShutdown,
            Standing::Unfenced if wish.shut_down => Standing::ShutdownNow,
            Standing::Unfenced => Standing::Unfenced,
            Standing::ControlledShutdown => {
                let reached = |life: &Life| life.shutdown_offset.is_some_and(|at| at <= self.lowest_active_offset());
                if !leads && self.lives.get(&id).is_some_and(reached) {
                    Standing::ShutdownNow
                } else {
                    Standing::ControlledShutdown
                }
            }
            Standing::ShutdownNow => Standing::ShutdownNow,
        }
    }
}
