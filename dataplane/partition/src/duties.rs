//! Which partitions this core holds, in which part and with which settings. A partition goes by an explicit removal
//! only; one that an image does not name is stray: kept, not served (design 04).

use crate::operation::ReplicaToken;
use crate::partitions::{Partitions, Stalled};
use crate::replica::{Replica, Standing};
use crate::topic_rules::{log_config, produce_rules};
use base::{LeaderEpoch, NodeId, Now, Offset, PartitionEpoch, PartitionId};
use handoff::{PartitionError, UpCall};
use nvme_log::{ChangeError, LogSlot, Store};
use settings::TopicSettings;
use std::collections::BTreeMap;

/// Topics of coordinators, which are told when their partitions begin to be led here.
const INTERNAL_TOPICS: [&str; 3] = ["__consumer_offsets", "__transaction_state", "__share_group_state"];

/// A partition of this node as the metadata log has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Duty {
    pub partition: PartitionId,
    pub topic_name: String,
    /// Metadata offset of the partition's creation, against which a removal is checked.
    pub created_at: i64,
    pub leader: Option<NodeId>,
    pub leader_epoch: LeaderEpoch,
    pub partition_epoch: PartitionEpoch,
    pub replicas: Vec<NodeId>,
    pub isr: Vec<NodeId>,
    /// The topic's overrides, by Kafka's names; the broker's own settings lie beneath them.
    pub config: Vec<(String, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removal {
    pub partition: PartitionId,
    /// Metadata offset of the record that removed it.
    pub removed_at: i64,
}

/// Why a duty or a removal has no effect, or not its whole effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DutyError {
    /// It is of an older partition epoch than what is known.
    Old,
    /// The removal is older than the partition.
    CreatedLater,
    /// The namespace has stopped.
    Stopped,
    /// There is no room for the partition; it is made when there is.
    Full,
    /// Records of it may be lost: it waits for repair and is refused until then.
    Suspect { from: Offset },
    /// The epoch is one that an earlier run used: it is not led until a new one comes (design 04).
    EpochOfEarlierRun { epoch: LeaderEpoch },
    /// The topic's settings are not ones Kafka takes; the broker's are obeyed instead.
    Settings(String),
}

impl Partitions {
    /// An image begins: what it does not name by `end_image` is stray.
    pub fn begin_image(&mut self) {
        self.image += 1;
        // It names them again, unless they are gone.
        self.stalled.retain(|one| !matches!(one, Stalled::Unplaced(_)));
    }

    /// Duties and removals for which the store has no room yet; they are taken up by themselves.
    pub fn duties_waiting(&self) -> usize {
        self.stalled.iter().filter(|one| matches!(one, Stalled::Duty(_) | Stalled::Removal(_))).count()
    }

    /// Takes a partition on, or changes the part that this node plays for it.
    pub fn apply(&mut self, now: Now, store: &mut Store, duty: Duty) -> Result<(), DutyError> {
        let known = self.by_id.get(&duty.partition).copied();
        if let Some(replica) = known.and_then(|token| self.replica(token))
            && (replica.partition_epoch, replica.standing.epoch()) > (duty.partition_epoch, duty.leader_epoch)
        {
            return Err(DutyError::Old);
        }
        let overrides: BTreeMap<String, String> = duty.config.iter().cloned().collect();
        let (settings, refused) = match self.resolve(&overrides) {
            Ok(settings) => (settings, None),
            Err(error) => (self.defaults.clone(), Some(error.0)),
        };
        let token = match known {
            Some(token) => token,
            None => match self.open(store, now, &duty, &settings) {
                Ok(token) => token,
                Err(ChangeError::Pressure) => {
                    self.stalled.push_back(Stalled::Duty(Box::new(duty)));
                    return Ok(());
                }
                Err(ChangeError::Full) => {
                    let same =
                        |one: &Stalled| matches!(one, Stalled::Unplaced(other) if other.partition == duty.partition);
                    self.stalled.retain(|one| !same(one));
                    self.stalled.push_back(Stalled::Unplaced(Box::new(duty)));
                    return Err(DutyError::Full);
                }
                Err(_) => return Err(DutyError::Stopped),
            },
        };
        self.adopt(store, token, &duty, overrides, settings);
        self.take_part(now, store, token, duty)?;
        refused.map_or(Ok(()), |error| Err(DutyError::Settings(error)))
    }

    /// The partition's log, created where there is none.
    fn open(
        &mut self,
        store: &mut Store,
        now: Now,
        duty: &Duty,
        settings: &TopicSettings,
    ) -> Result<ReplicaToken, ChangeError> {
        let config = log_config(settings);
        let log = match store.find(duty.partition) {
            Some(log) => log,
            None => store.create(now, duty.partition, duty.created_at, config)?,
        };
        let replica = new_replica(store, log, duty, settings.clone(), self.options.inflate_max);
        let Ok(token) = self.replicas.insert(Box::new(replica)) else { unreachable!("the slots grow") };
        let token = ReplicaToken(token);
        self.by_id.insert(duty.partition, token);
        self.by_log.insert(log, token);
        Ok(token)
    }

    /// Everything but the leadership.
    fn adopt(
        &mut self,
        store: &mut Store,
        token: ReplicaToken,
        duty: &Duty,
        overrides: BTreeMap<String, String>,
        settings: TopicSettings,
    ) {
        let (image, node, inflate_max) = (self.image, self.options.node, self.options.inflate_max);
        let Some(replica) = self.replica_mut(token) else { return };
        replica.image = image;
        replica.overrides = overrides;
        replica.partition_epoch = duty.partition_epoch;
        replica.replicas = duty.replicas.len();
        if !replica.resigns_alone(node, duty) {
            replica.isr = duty.isr.clone();
        }
        let others: Vec<NodeId> = duty.isr.iter().copied().filter(|member| *member != node).collect();
        replica.others.retain(|member, _| others.contains(member));
        for member in others {
            // Nothing is known of its log until it fetches.
            replica.others.entry(member).or_insert(Offset::ZERO);
        }
        if replica.settings != settings {
            let config = replica.configure(settings, inflate_max);
            let log = replica.log;
            store.configure(log, config).expect("the log of a replica is open");
        } else {
            store.configure(replica.log, log_config(&settings)).expect("the log of a replica is open");
        }
    }

    fn take_part(&mut self, now: Now, store: &mut Store, token: ReplicaToken, duty: Duty) -> Result<(), DutyError> {
        let led = self.leads(token);
        let result = self.stand(now, store, token, duty);
        self.leaders = self.leaders + usize::from(self.leads(token)) - usize::from(led);
        result
    }

    fn leads(&self, token: ReplicaToken) -> bool {
        self.replica(token).is_some_and(Replica::is_leader)
    }

    fn stand(&mut self, now: Now, store: &mut Store, token: ReplicaToken, duty: Duty) -> Result<(), DutyError> {
        let node = self.options.node;
        let Some(replica) = self.replica_mut(token) else { return Ok(()) };
        if let Some(from) = store.suspect_from(replica.log) {
            replica.failed = true;
            return Err(DutyError::Suspect { from });
        }
        let epoch = duty.leader_epoch;
        if duty.leader != Some(node) {
            let is_sole = replica.resigns_alone(node, &duty);
            let standing = if is_sole { Standing::Sole { epoch } } else { Standing::Follower { epoch } };
            let was = std::mem::replace(&mut replica.standing, standing);
            if was != standing && is_sole {
                self.refuse_unplaced(store, token, PartitionError::NotLeader);
            } else if was != standing {
                self.refuse_everything(store, token, PartitionError::NotLeader);
            }
            return Ok(());
        }
        if replica.standing == (Standing::Leader { epoch }) {
            self.advance(now, store, token);
            return Ok(());
        }
        let end = store.end_offset(replica.log);
        match store.start_epoch(replica.log, epoch, end) {
            Ok(()) => {}
            Err(ChangeError::Pressure) => {
                // Not led before its start is on the way to the medium: no append may come before it.
                replica.standing = Standing::Follower { epoch };
                self.stalled.push_back(Stalled::Duty(Box::new(duty)));
                self.refuse_everything(store, token, PartitionError::NotLeader);
                return Ok(());
            }
            Err(ChangeError::Stopped) => return Err(DutyError::Stopped),
            Err(_) => {
                replica.standing = Standing::Follower { epoch };
                self.refuse_everything(store, token, PartitionError::NotLeader);
                return Err(DutyError::EpochOfEarlierRun { epoch });
            }
        }
        replica.standing = Standing::Leader { epoch };
        replica.epoch_start = end;
        // Answers are given under another epoch now; what waits for the log itself goes on.
        self.wake_urgently(store, token);
        self.advance(now, store, token);
        if INTERNAL_TOPICS.contains(&duty.topic_name.as_str()) {
            self.out.up_calls.push(UpCall::Leads { partition: duty.partition, epoch, end });
        }
        Ok(())
    }

    /// The only way a partition goes. Its bytes are freed in the background.
    pub fn remove(&mut self, store: &mut Store, removal: Removal) -> Result<(), DutyError> {
        let gone = |duty: &Duty| duty.partition == removal.partition && duty.created_at <= removal.removed_at;
        self.stalled.retain(|one| !matches!(one, Stalled::Duty(duty) | Stalled::Unplaced(duty) if gone(duty)));
        let Some(log) = store.find(removal.partition) else { return Ok(()) };
        if removal.removed_at < store.created_at(log) {
            return Err(DutyError::CreatedLater);
        }
        match store.delete(log) {
            Ok(()) => {}
            Err(ChangeError::Pressure) => {
                self.stalled.push_back(Stalled::Removal(removal));
                return Ok(());
            }
            Err(_) => return Err(DutyError::Stopped),
        }
        if let Some(token) = self.by_id.get(&removal.partition).copied() {
            self.forget(store, token);
        }
        Ok(())
    }

    /// Whoever waits for the partition is told that it is not here.
    pub(crate) fn forget(&mut self, store: &mut Store, token: ReplicaToken) {
        self.refuse_everything(store, token, PartitionError::Unknown);
        if let Some(mut replica) = self.replicas.remove(token.0) {
            self.orphan_watchers(&mut replica);
            self.leaders -= usize::from(replica.is_leader());
            self.by_id.remove(&replica.id);
            self.by_log.remove(&replica.log);
        }
    }
}

fn new_replica(store: &Store, log: LogSlot, duty: &Duty, settings: TopicSettings, inflate_max: usize) -> Replica {
    Replica {
        id: duty.partition,
        log,
        standing: Standing::Follower { epoch: duty.leader_epoch },
        epoch_start: store.end_offset(log),
        partition_epoch: duty.partition_epoch,
        replicas: duty.replicas.len(),
        isr: Vec::new(),
        others: BTreeMap::new(),
        rules: produce_rules(&settings, inflate_max),
        overrides: BTreeMap::new(),
        settings,
        high_watermark: store.high_watermark_hint(log).max(store.log_start(log)),
        last_append_time: store.last_appended_at(log),
        queue: Default::default(),
        acknowledgements: Default::default(),
        watchers: Vec::new(),
        deletes: Vec::new(),
        bytes: Default::default(),
        failed: false,
        image: 0,
    }
}
