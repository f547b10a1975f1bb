//! What metrics and the readiness endpoint are told.

use crate::node::Node;
use base::Now;
use std::time::Duration;

/// How far the broker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokerPhase {
    /// For the dataplane, or for the controller.
    Waiting,
    Registering,
    Unfencing,
    Serving,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub forwarded: u64,
    pub answered: u64,
    pub malformed: u64,
}

/// A reading of the node.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// Kafka's name of the quorum's state.
    pub quorum_state: &'static str,
    pub quorum_epoch: i32,
    pub quorum_leader: Option<i32>,
    pub high_watermark: i64,
    pub log_end: i64,
    pub log_start: i64,
    pub latest_snapshot: Option<i64>,
    pub active_controller: bool,
    /// The last offset of the image that is shown.
    pub published_offset: i64,
    pub published_at: i64,
    pub metadata_version: Option<i16>,
    pub broker: BrokerPhase,
    pub link_up: bool,
    /// Since the dataplane was last heard of, while it is connected.
    pub link_silence: Option<Duration>,
    pub duties_sent: i64,
    pub duties_applied: i64,
    pub view_sent: i64,
    pub view_applied: i64,
    pub stray_partitions: usize,
    pub active_brokers: usize,
    pub fenced_brokers: usize,
    pub topics: usize,
    pub partitions: usize,
    pub offline_partitions: usize,
    pub under_min_isr_partitions: usize,
    pub non_preferred_leaders: usize,
    pub answers_held: usize,
    pub forwarded_requests: u64,
    pub answered_requests: u64,
    pub malformed_requests: u64,
    pub ready: bool,
}

impl Node {
    /// The dataplane has in force what it was sent: clients can be served.
    pub fn is_ready(&self) -> bool {
        let in_force = |d: &crate::link_end::Dataplane| d.duties_in_force() && d.applied().1 >= d.sent().1;
        self.broker.is_serving() && self.dataplane.as_ref().is_some_and(in_force) && !self.stopping.has_begun()
    }

    pub fn status(&self, now: Now) -> Status {
        let image = self.loader.image();
        let brokers = image.cluster.brokers.values();
        let fenced_brokers = brokers.filter(|broker| broker.fenced).count();
        let (mut partitions, mut offline, mut under, mut moved) = (0, 0, 0, 0);
        let state = self.controller.state();
        for topic in image.topics.iter() {
            let least = state.effective_min_isr(topic.id);
            for partition in topic.partitions.values() {
                partitions += 1;
                offline += usize::from(partition.leader.is_none());
                under += usize::from(partition.isr.len() < least);
                moved += usize::from(!partition.has_preferred_leader());
            }
        }
        let described = self.quorum.describe(now);
        let dataplane = self.dataplane.as_ref();
        let (sent, applied) = dataplane.map_or(((-1, -1), (-1, -1)), |d| (d.sent(), d.applied()));
        Status {
            quorum_state: state_name(self.quorum.state()),
            quorum_epoch: self.quorum.epoch().0,
            quorum_leader: self.quorum.leader().map(|node| node.0),
            high_watermark: described
                .and_then(|d| d.high_watermark)
                .or(self.quorum.high_watermark())
                .map_or(-1, |w| w.0),
            log_end: self.quorum.log_end().offset.0,
            log_start: self.quorum.log_start().0,
            latest_snapshot: self.quorum.latest_snapshot().map(|id| id.offset.0),
            active_controller: self.controller.is_active(),
            published_offset: image.provenance.offset,
            published_at: image.provenance.append_time,
            metadata_version: image.features.metadata_version.map(|version| version.0),
            broker: self.broker.phase(),
            link_up: dataplane.is_some(),
            link_silence: dataplane.map(|d| now.monotonic.since(d.last_heard)),
            duties_sent: sent.0,
            duties_applied: applied.0,
            view_sent: sent.1,
            view_applied: applied.1,
            stray_partitions: dataplane.map_or(0, |d| d.strays),
            active_brokers: image.cluster.brokers.len() - fenced_brokers,
            fenced_brokers,
            topics: image.topics.len(),
            partitions,
            offline_partitions: offline,
            under_min_isr_partitions: under,
            non_preferred_leaders: moved,
            answers_held: self.held.len(),
            forwarded_requests: self.counts.forwarded,
            answered_requests: self.counts.answered,
            malformed_requests: self.counts.malformed,
            ready: self.is_ready(),
        }
    }
}

fn state_name(state: quorum::StateName) -> &'static str {
    use quorum::StateName;
    match state {
        StateName::Unattached => "unattached",
        StateName::Prospective => "prospective",
        StateName::Candidate => "candidate",
        StateName::Leader => "leader",
        StateName::Follower => "follower",
        StateName::Resigned => "resigned",
        StateName::Observer => "observer",
    }
}
