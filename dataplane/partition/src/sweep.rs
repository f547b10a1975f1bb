//! What is done to every partition now and then, some of them at a time, so that no turn pays for all.

use crate::operation::{ReplicaToken, Timer};
use crate::partitions::Partitions;
use base::{Monotonic, Now, WallMillis};
use nvme_log::Store;
use settings::{BrokerSettings, Invalid, Texts, TopicSettings};
use std::time::Duration;

/// Partitions whose producers are looked through in one turn.
const EXPIRED_A_TURN: usize = 32;
/// Partitions whose settings are resolved in one turn: each takes some microseconds.
const CONFIGURED_A_TURN: usize = 8;

impl Partitions {
    /// The broker's settings changed: those of every topic are resolved anew, a few a turn.
    pub fn set_broker_settings(&mut self, broker: BrokerSettings) {
        if let Ok(defaults) = defaults(&broker) {
            self.defaults = defaults;
        }
        self.broker = broker;
        if self.to_configure.is_empty() {
            self.wheel.insert(Monotonic::ZERO, Timer::Configure);
        }
        self.to_configure = self.replicas.iter().map(|(token, _)| ReplicaToken(token)).collect();
    }

    /// A topic's settings. Most topics set nothing, and are not made to pay for all 38 settings.
    pub(crate) fn resolve(&self, overrides: &Texts) -> Result<TopicSettings, Invalid> {
        if overrides.is_empty() { Ok(self.defaults.clone()) } else { TopicSettings::resolve(overrides, &self.broker) }
    }

    pub(crate) fn configure_some(&mut self, now: Now, store: &mut Store) {
        let inflate_max = self.options.inflate_max;
        for token in self.to_configure.split_off(self.to_configure.len().saturating_sub(CONFIGURED_A_TURN)) {
            let Some(replica) = self.replicas.get(token.0) else { continue };
            // What Kafka would refuse was refused when it was set, and the last good settings stand.
            let Ok(settings) = self.resolve(&replica.overrides) else { continue };
            let replica = self.replicas.get_mut(token.0).expect("just found");
            if replica.settings != settings {
                let config = replica.configure(settings, inflate_max);
                store.configure(replica.log, config).expect("the log of a replica is open");
            }
        }
        if !self.to_configure.is_empty() {
            self.wheel.insert(next_turn(now), Timer::Configure);
        }
    }

    /// Every `producer.id.expiration.check.interval.ms`, by the time of each producer's last batch.
    pub(crate) fn expire_producers(&mut self, now: Now, store: &mut Store) {
        if self.to_expire.is_empty() {
            self.to_expire = self.replicas.iter().map(|(token, _)| ReplicaToken(token)).collect();
        }
        let age = i64::from(self.broker.typed().producer_id_expiration_ms);
        // Kafka forgets a producer that is as old as the limit; the store, what is older than it is told.
        let before = WallMillis(self.deletion_clock.look(now).0.saturating_sub(age).saturating_add(1));
        for token in self.to_expire.split_off(self.to_expire.len().saturating_sub(EXPIRED_A_TURN)) {
            if let Some(replica) = self.replica(token) {
                store.expire_producers(replica.log, before);
            }
        }
        let next =
            if self.to_expire.is_empty() { now.monotonic + expiry_interval(&self.broker) } else { next_turn(now) };
        self.wheel.insert(next, Timer::ProducerExpiry);
    }
}

/// What a topic obeys that sets nothing itself.
pub(crate) fn defaults(broker: &BrokerSettings) -> Result<TopicSettings, Invalid> {
    TopicSettings::resolve(&Texts::new(), broker)
}

/// After everyone else had a turn.
pub(crate) fn next_turn(now: Now) -> Monotonic {
    now.monotonic + Duration::from_nanos(1)
}

pub(crate) fn expiry_interval(broker: &BrokerSettings) -> Duration {
    Duration::from_millis(broker.typed().producer_id_expiration_check_interval_ms.max(1).unsigned_abs().into())
}
