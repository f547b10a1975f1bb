//! The node: its parts, its turn, and what it is loaded from.

use crate::api::{End, Event, Options, Outputs};
use crate::broker::BrokerLife;
use crate::coordinate::Coordination;
use crate::features::supported_features;
use crate::format::read_bootstrap;
use crate::held::Held;
use crate::link_end::Dataplane;
use crate::metadata::Metadata;
use crate::run_record::RunRecord;
use crate::status::Counts;
use crate::stop::Stopping;
use crate::topics::Creating;
use base::{Monotonic, Now, Random};
use controller::Controller;
use image::{Loader, Record};
use quorum::{
    Config, Endpoint, KRaftVersionRange, LoadReport, Quorum, ReplicaKey, SnapshotPolicy, Source, Voter, VoterSet,
};
use settings::BrokerSettings;
use std::time::Duration;

/// The directory is not one that this node can run on.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Load(#[from] quorum::LoadError),
    #[error(
        "the metadata names the voters {0}; this version runs a quorum of one voter, this node on its own directory"
    )]
    OtherVoters(String),
}

pub struct Node {
    pub(crate) options: Options,
    pub(crate) cluster_id: String,
    pub(crate) quorum: Quorum,
    pub(crate) controller: Controller,
    pub(crate) loader: Loader,
    pub(crate) metadata: Metadata,
    /// The file's settings under what the published image says.
    pub(crate) settings: BrokerSettings,
    pub(crate) broker: BrokerLife,
    pub(crate) dataplane: Option<Dataplane>,
    pub(crate) held: Held,
    pub(crate) creating: Creating,
    pub(crate) coordination: Coordination,
    pub(crate) stopping: Stopping,
    pub(crate) random: Random,
    pub(crate) out: Outputs,
    pub(crate) counts: Counts,
    pub(crate) ended: bool,
}

impl Node {
    /// Loads a formatted directory. `run_file` is what `RUN_FILE` beside `meta.properties` holds, if it is there.
    pub fn load(
        options: Options,
        source: &dyn Source,
        run_file: Option<&[u8]>,
        now: Now,
        mut random: Random,
    ) -> Result<(Node, LoadReport), StartError> {
        let meta = quorum::read_meta(source)?.ok_or(quorum::LoadError::NotFormatted)?;
        let config = quorum_config(&options, &meta);
        let seed = Random::from_seed(random.next_u64());
        let (quorum, report) = Quorum::load(config, source, now, seed)?;
        if !quorum.voters().is_only(&quorum.local()) {
            let voters: Vec<String> = quorum.voters().iter().map(|voter| voter.key.to_string()).collect();
            return Err(StartError::OtherVoters(voters.join(", ")));
        }
        let bootstrap = read_bootstrap(quorum.bootstrap_records());
        let record = run_file.and_then(|bytes| {
            let unreadable =
                |error: &String| tracing::warn!(error, "the file of the dataplane's last run is not readable");
            RunRecord::decode(bytes).inspect_err(unreadable).ok()
        });
        let (bootstrap, refusal) = match bootstrap {
            Ok(records) => (records, None),
            Err(why) => (Vec::new(), Some(why)),
        };
        let controller = Controller::new(controller_options(&options, &meta.cluster_id, bootstrap));
        let coordination = Coordination::new(&options, &mut random);
        let node = Node {
            cluster_id: meta.cluster_id,
            quorum,
            controller,
            loader: Loader::default(),
            metadata: Metadata::new(refusal),
            settings: options.settings.clone(),
            broker: BrokerLife::new(record),
            dataplane: None,
            held: Held::default(),
            creating: Creating::default(),
            coordination,
            stopping: Stopping::No,
            random,
            out: Outputs::default(),
            counts: Counts::default(),
            ended: false,
            options,
        };
        Ok((node, report))
    }

    pub fn cluster_id(&self) -> &str {
        &self.cluster_id
    }

    /// Takes an event in and gives out what is to be done.
    pub fn handle(&mut self, event: Event, now: Now) -> Outputs {
        if !self.ended {
            match event {
                Event::Up(message) => self.on_up(message, now),
                Event::LinkLost => self.on_link_lost(),
                Event::Quorum(event) => {
                    let outputs = self.quorum.handle(event, now);
                    self.absorb(outputs, now);
                }
                Event::RunStored(result) => self.on_run_stored(result, now),
                Event::Stop => self.on_stop(now),
                Event::Time => {}
            }
            self.turn(now);
        }
        std::mem::take(&mut self.out)
    }

    /// Does everything that can be done now. Each step may make work for the ones before it, so they take turns until
    /// none has any.
    fn turn(&mut self, now: Now) {
        self.coordination.pass_time(now);
        while !self.ended {
            let mut moved = self.poll_quorum(now);
            moved |= self.poll_controller(now);
            moved |= self.publish(now);
            moved |= self.release(now);
            moved |= self.advance_broker(now);
            moved |= self.coordinate(now);
            moved |= self.advance_stop(now);
            if !moved {
                break;
            }
        }
        if !self.ended {
            self.snapshot_if_due(now);
        }
    }

    /// When `handle` is next needed if nothing happens before.
    pub fn next_deadline(&self) -> Option<Monotonic> {
        // The broker's steps are requests to the controller: without either of the two there is nothing to wake for.
        let may_advance = self.dataplane.is_some() && self.controller.is_active();
        let deadlines = [
            self.quorum.next_deadline(),
            self.controller.next_deadline(),
            self.broker.next_deadline().filter(|_| may_advance),
            self.coordination.next_deadline(),
            self.stopping.next_deadline(),
        ];
        if self.ended { None } else { deadlines.into_iter().flatten().min() }
    }

    pub(crate) fn end(&mut self, end: End) {
        if !self.ended {
            if let End::Fault(why) = &end {
                tracing::error!(why, "the control plane must stop");
            }
            self.ended = true;
            self.out.end = Some(end);
        }
    }

    pub(crate) fn fault(&mut self, why: impl std::fmt::Display) {
        self.end(End::Fault(why.to_string()));
    }
}

fn milliseconds(value: i64) -> Duration {
    Duration::from_millis(u64::try_from(value).unwrap_or(0))
}

fn quorum_config(options: &Options, meta: &quorum::MetaProperties) -> Config {
    let local = ReplicaKey { id: options.node, directory: Some(meta.directory_id) };
    let values = options.settings.typed();
    let mut config = Config::voter(&meta.cluster_id, local, vec![default_controller()]);
    // Where voters are not in the log (kraft.version 0) the file would name them; one node is its own only voter.
    let own = Voter { key: local, endpoints: config.endpoints.clone(), versions: KRaftVersionRange::OURS };
    config.static_voters = VoterSet::new([own]);
    config.snapshots = SnapshotPolicy {
        bytes_between: u64::try_from(values.metadata_log_max_record_bytes_between_snapshots).unwrap_or(u64::MAX),
        interval: match values.metadata_log_max_snapshot_interval_ms {
            // Kafka's 0 writes none for age.
            0 => Duration::MAX,
            interval => milliseconds(interval),
        },
        retention_bytes: u64::try_from(values.metadata_max_retention_bytes).unwrap_or(u64::MAX),
        retention: match values.metadata_max_retention_ms {
            // Kafka's -1 keeps what age alone would remove.
            negative if negative < 0 => Duration::MAX,
            age => milliseconds(age),
        },
    };
    config.log.segment_bytes = u64::try_from(values.metadata_log_segment_bytes).unwrap_or(u64::MAX);
    config.log.segment_age_ms = values.metadata_log_segment_ms;
    config
}

/// Where other controllers would reach this one. A single node's listens to nobody, but a voter has an address.
fn default_controller() -> Endpoint {
    Endpoint { listener: "CONTROLLER".to_owned(), host: "localhost".to_owned(), port: 9093 }
}

fn controller_options(options: &Options, cluster_id: &str, bootstrap: Vec<Record>) -> controller::Options {
    let setting = |name: &str| options.settings.value(name);
    let number = |name: &str| setting(name).and_then(settings::Value::as_integer).unwrap_or(0);
    let balances = setting("auto.leader.rebalance.enable").and_then(settings::Value::as_boolean).unwrap_or(false);
    let balance_interval = milliseconds(number("leader.imbalance.check.interval.seconds").saturating_mul(1000));
    controller::Options {
        node: options.node,
        cluster_id: cluster_id.to_owned(),
        quorum_nodes: vec![options.node],
        settings: options.settings.clone(),
        supported_features: supported_features(),
        bootstrap,
        session_timeout: milliseconds(options.settings.typed().broker_session_timeout_ms.into()),
        leader_balance_interval: balances.then_some(balance_interval),
        unclean_election_interval: milliseconds(number("unclean.leader.election.interval.ms")),
        // Kafka's 0 writes no such records; neither does a voter that is alone.
        idle_interval: Some(milliseconds(options.settings.typed().metadata_max_idle_interval_ms.into()))
            .filter(|interval| !interval.is_zero()),
        fenced_may_reregister: true,
        largest_batch: options.largest_batch,
    }
}
