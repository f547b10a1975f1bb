//! A clean stop: the broker leaves as Kafka's does (its leaderships go to others where there are any), the dataplane makes
//! everything durable, the quorum ends with everything on disk. Each part has a time after which the next goes on.

use crate::api::End;
use crate::node::Node;
use base::{Monotonic, Now};
use link::Down;
use std::time::Duration;

/// For the controller to move leaderships away.
const LEAVING_MAX: Duration = Duration::from_secs(10);
/// For the dataplane to make everything durable.
const STOPPING_MAX: Duration = Duration::from_secs(30);
/// For the quorum's last writes.
const CLOSING_MAX: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stopping {
    No,
    /// Heartbeats ask the controller for leave.
    Leaving {
        until: Monotonic,
    },
    /// The dataplane was told to stop.
    Dataplane {
        until: Monotonic,
    },
    Quorum {
        until: Monotonic,
    },
}

impl Stopping {
    pub fn has_begun(self) -> bool {
        self != Stopping::No
    }

    /// The quorum takes no more appends.
    pub fn is_closing(self) -> bool {
        matches!(self, Stopping::Quorum { .. })
    }

    pub fn next_deadline(self) -> Option<Monotonic> {
        match self {
            Stopping::No => None,
            Stopping::Leaving { until } | Stopping::Dataplane { until } | Stopping::Quorum { until } => Some(until),
        }
    }
}

impl Node {
    pub(crate) fn on_stop(&mut self, now: Now) {
        if self.stopping == Stopping::No {
            tracing::info!("a stop was asked for");
            self.stopping = Stopping::Leaving { until: now.monotonic + LEAVING_MAX };
            self.broker.leave();
        }
    }

    pub(crate) fn on_stopped(&mut self) {
        if let Stopping::Dataplane { until } = &mut self.stopping {
            tracing::info!("the dataplane has stopped");
            *until = Monotonic::ZERO;
        }
    }

    /// Goes on to the next part where one is over; true if so.
    pub(crate) fn advance_stop(&mut self, now: Now) -> bool {
        let at = now.monotonic;
        match self.stopping {
            Stopping::No => false,
            Stopping::Leaving { until } => {
                let over = self.broker.may_go() || !self.broker.is_serving() || at >= until;
                if over {
                    self.stop_dataplane(at);
                }
                over
            }
            Stopping::Dataplane { until } => {
                let over = at >= until || self.dataplane.is_none();
                if over {
                    self.stopping = Stopping::Quorum { until: at + CLOSING_MAX };
                    let outputs = self.quorum.handle(quorum::Event::Stop, now);
                    self.absorb(outputs, now);
                }
                over
            }
            Stopping::Quorum { until } => {
                if self.quorum.is_stopped(now) {
                    self.end(End::Stopped);
                } else if at >= until {
                    self.fault("the metadata log could not be closed in time");
                }
                false
            }
        }
    }

    fn stop_dataplane(&mut self, at: Monotonic) {
        let served = self.dataplane.as_ref().is_some_and(|dataplane| dataplane.is_served());
        if served {
            self.out.down.push(Down::Stop);
        }
        // One that was told nothing yet has nothing to stop.
        let until = if served { at + STOPPING_MAX } else { at };
        self.stopping = Stopping::Dataplane { until };
    }
}
