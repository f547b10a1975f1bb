//! Core 0's extra office: the view, the placement of partitions on cores, duties on their way to the cores, producer ids
//! in hand, and which core serves the next client. Pure state; core 0's turn carries the messages.

use crate::doors::{ConnectionLimits, Doors};
use crate::message::DutiesForCore;
use base::{CoreId, ListenerId, NodeId, PartitionId};
use link::{ConfigResource, DutiesPart};
use net::StreamId;
use settings::{BrokerSettings, Texts};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use view::{DutySetId, ProducerIds, View, ViewBuilder, ViewDesk, ViewStep};

/// Ids a core's share is filled up with at once.
pub const PRODUCER_IDS_SHARE: u32 = 250;
/// Below this the control plane is asked for another block.
const PRODUCER_IDS_LOW: u32 = 1000;

/// A set of duties, shared out to the cores as its parts come.
#[derive(Debug)]
struct DutySet {
    metadata_offset: i64,
    parts: Vec<DutiesForCore>,
    placed: Vec<(PartitionId, Option<CoreId>)>,
}

#[derive(Debug)]
struct InForce {
    number: u64,
    metadata_offset: i64,
    waiting: BTreeSet<CoreId>,
    placed: Vec<(PartitionId, Option<CoreId>)>,
}

#[derive(Debug)]
pub struct Keeper {
    cluster_id: String,
    node: NodeId,
    cores: u16,
    pub(crate) view: ViewDesk,
    /// The core of every partition that this node holds.
    placements: HashMap<PartitionId, CoreId>,
    partitions_on: Vec<usize>,
    connections_on: Vec<usize>,
    pub(crate) doors: Doors<StreamId>,
    pub producer_ids: ProducerIds,
    producer_ids_asked: bool,
    collecting: Option<DutySet>,
    queue: VecDeque<DutySet>,
    in_force: Option<InForce>,
    next_number: u64,
    /// Sets below this number came over an earlier link.
    told_from: u64,
    pub duties_applied: Option<i64>,
    held_waiting: BTreeSet<CoreId>,
    /// How often was asked what is held.
    held_number: u64,
    /// The cluster's and our own overrides that the settings in force are made of.
    dynamic: Option<(Texts, Texts)>,
}

/// Why the control plane's word was refused; the link is closed, and the next connection states everything anew.
#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    #[error("duties of cluster {theirs}, but this namespace belongs to {ours}")]
    OtherCluster { ours: String, theirs: String },
    #[error("duties up to metadata offset {offered} are older than {applied}, which is in force")]
    Older { applied: i64, offered: i64 },
    #[error("duties from a control plane that has not caught up with its quorum")]
    NotCaughtUp,
}

impl Keeper {
    pub fn new(cluster_id: String, node: NodeId, cores: u16, saved: View) -> Keeper {
        Keeper {
            view: ViewDesk::new(ViewBuilder::new(cluster_id.clone(), saved)),
            cluster_id,
            node,
            cores,
            placements: HashMap::new(),
            partitions_on: vec![0; usize::from(cores)],
            connections_on: vec![0; usize::from(cores)],
            doors: Doors::default(),
            producer_ids: ProducerIds::default(),
            producer_ids_asked: false,
            collecting: None,
            queue: VecDeque::new(),
            in_force: None,
            next_number: 0,
            told_from: 0,
            duties_applied: None,
            held_waiting: BTreeSet::new(),
            held_number: 0,
            dynamic: None,
        }
    }

    pub fn view(&self) -> &Arc<View> {
        self.view.published()
    }

    /// What a core holds at its start.
    pub fn on_recovered(&mut self, core: CoreId, partitions: impl IntoIterator<Item = PartitionId>) {
        for partition in partitions {
            self.placements.insert(partition, core);
            self.partitions_on[usize::from(core.0)] += 1;
        }
    }

    /// The node's effective settings under the view: what the cluster says of brokers, over the file. None where they are
    /// what they were, since every core resolves every topic's settings anew for them.
    pub fn settings_if_changed(&mut self, file: &BrokerSettings, view: &View) -> Option<BrokerSettings> {
        let texts = |resource| Texts::from_iter(view.overrides(&resource).iter().cloned());
        let dynamic = (texts(ConfigResource::BrokerDefault), texts(ConfigResource::Broker(self.node)));
        if self.dynamic.as_ref() == Some(&dynamic) {
            return None;
        }
        let (settings, ignored) = file.with_dynamic(&dynamic.0, &dynamic.1);
        for setting in ignored {
            tracing::warn!(name = setting.name, why = setting.why, "a dynamic setting is ignored");
        }
        self.dynamic = Some(dynamic);
        Some(settings)
    }

    /// Parts that were half told are dropped with the connection.
    pub fn on_link_down(&mut self) {
        self.view.push(ViewStep::Disconnected);
        self.collecting = None;
        self.told_from = self.next_number;
        self.producer_ids_asked = false;
        self.held_waiting.clear();
    }

    /// Takes a part of the duties; complete sets are put in force one after another.
    pub fn on_duties_part(&mut self, part: DutiesPart) -> Result<(), KeeperError> {
        let provenance = part.provenance;
        if provenance.cluster_id != self.cluster_id {
            return Err(KeeperError::OtherCluster { ours: self.cluster_id.clone(), theirs: provenance.cluster_id });
        }
        if !provenance.caught_up {
            return Err(KeeperError::NotCaughtUp);
        }
        let offered = provenance.metadata_offset;
        // What the view was saved at is a floor too: both come from one log.
        let applied = self.duties_applied.or(self.view().metadata_offset());
        if let Some(applied) = applied.filter(|applied| offered < *applied) {
            return Err(KeeperError::Older { applied, offered });
        }
        let mut set = match self.collecting.take() {
            Some(set) => set,
            None => self.new_set(part.image),
        };
        set.metadata_offset = offered;
        for duty in part.duties {
            let core = self.core_for(duty.partition);
            set.placed.push((duty.partition, Some(core)));
            set.parts[usize::from(core.0)].duties.push(duty);
        }
        for removal in part.removals {
            let Some(core) = self.placements.remove(&removal.partition) else { continue };
            self.partitions_on[usize::from(core.0)] -= 1;
            set.placed.push((removal.partition, None));
            set.parts[usize::from(core.0)].removals.push(removal);
        }
        if part.last {
            self.queue.push_back(set);
        } else {
            self.collecting = Some(set);
        }
        Ok(())
    }

    fn new_set(&mut self, image: bool) -> DutySet {
        let number = self.next_number;
        self.next_number += 1;
        let part = DutiesForCore { number, image, duties: Vec::new(), removals: Vec::new() };
        DutySet { metadata_offset: 0, parts: vec![part; usize::from(self.cores)], placed: Vec::new() }
    }

    /// The next set for the cores, once the one before it is in force everywhere.
    pub fn next_duties(&mut self) -> Option<Vec<(CoreId, DutiesForCore)>> {
        if self.in_force.is_some() {
            return None;
        }
        let DutySet { metadata_offset, parts, placed } = self.queue.pop_front()?;
        let number = parts.first().expect("there is a core").number;
        let waiting = (0..self.cores).map(CoreId).collect();
        self.in_force = Some(InForce { number, metadata_offset, waiting, placed });
        Some(parts.into_iter().enumerate().map(|(core, part)| (CoreId(core as u16), part)).collect())
    }

    /// Where a partition lives, or, for a new one, the core with the fewest.
    fn core_for(&mut self, partition: PartitionId) -> CoreId {
        let cores = usize::from(self.cores);
        *self.placements.entry(partition).or_insert_with(|| {
            let core = (0..cores).min_by_key(|core| self.partitions_on[*core]).expect("there is a core");
            self.partitions_on[core] += 1;
            CoreId(core as u16)
        })
    }

    /// A core has its part in force; where it was the last, the view is to say where the partitions are.
    pub fn on_duties_done(&mut self, core: CoreId, number: u64) {
        let Some(in_force) = self.in_force.as_mut().filter(|in_force| in_force.number == number) else { return };
        in_force.waiting.remove(&core);
        if in_force.waiting.is_empty() {
            let done = self.in_force.take().expect("just looked");
            self.duties_applied = Some(done.metadata_offset);
            let duties = DutySetId { number: done.number, metadata_offset: done.metadata_offset };
            self.view.push(ViewStep::Place(duties, done.placed));
        }
    }

    /// Whether the set came over this link. One that came over an earlier link is none of this one's, whose control plane may
    /// have told the same offset in an image that is still under way.
    pub fn is_of_this_link(&self, duties: DutySetId) -> bool {
        duties.number >= self.told_from
    }

    /// A share of producer ids for a core, and whether the control plane should be asked for more.
    pub fn share_producer_ids(&mut self) -> (Option<(i64, u32)>, bool) {
        let share = self.producer_ids.split(PRODUCER_IDS_SHARE);
        let ask = self.producer_ids.in_hand() < PRODUCER_IDS_LOW && !self.producer_ids_asked;
        self.producer_ids_asked |= ask;
        (share, ask)
    }

    pub fn on_producer_ids(&mut self, first: i64, count: u32) {
        self.producer_ids_asked = false;
        self.producer_ids.add(first, count);
    }

    /// The core that serves the next client: the one with the fewest.
    pub fn core_for_connection(&mut self) -> CoreId {
        let least = (0..self.connections_on.len()).min_by_key(|core| self.connections_on[*core]);
        let core = least.expect("there is a core");
        self.connections_on[core] += 1;
        CoreId(core as u16)
    }

    /// The limits under which clients come in from now on; without this call there are none.
    pub fn set_connection_limits(&mut self, limits: ConnectionLimits) {
        self.doors.set_limits(limits);
    }

    pub fn on_connection_ended(&mut self, core: CoreId, listener: ListenerId, peer: Option<SocketAddr>) {
        self.doors.on_ended(listener, peer);
        let count = &mut self.connections_on[usize::from(core.0)];
        *count = count.saturating_sub(1);
    }

    /// A new control plane wants to know what is held: every core is asked, under this number.
    pub fn ask_held(&mut self) -> u64 {
        self.held_waiting = (0..self.cores).map(CoreId).collect();
        self.held_number += 1;
        self.held_number
    }

    /// A core has told some of what it holds, or the last of it: whether that was the last of all, and nothing where
    /// another control plane had asked.
    pub fn on_held(&mut self, core: CoreId, number: u64, last: bool) -> Option<bool> {
        if number != self.held_number || !self.held_waiting.contains(&core) {
            return None;
        }
        if last {
            self.held_waiting.remove(&core);
        }
        Some(self.held_waiting.is_empty())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use base::{LeaderEpoch, PartitionEpoch, PartitionIndex, TopicId, Uuid};
    use link::{Duty, Provenance, Removal};
    use view::ViewDone;

    pub(crate) fn id(index: i32) -> PartitionId {
        PartitionId { topic: TopicId(Uuid(9)), index: PartitionIndex(index) }
    }

    pub(crate) fn duty(index: i32) -> Duty {
        Duty {
            partition: id(index),
            topic_name: "t".into(),
            created_at: 1,
            leader: Some(NodeId(1)),
            leader_epoch: LeaderEpoch(0),
            partition_epoch: PartitionEpoch(0),
            replicas: vec![NodeId(1)],
            isr: vec![NodeId(1)],
            recovering: false,
            config: vec![],
        }
    }

    fn part(offset: i64, duties: Vec<Duty>, removals: Vec<Removal>, last: bool) -> DutiesPart {
        let provenance =
            Provenance { cluster_id: "c".into(), quorum_epoch: 1, metadata_offset: offset, caught_up: true };
        DutiesPart { provenance, image: false, last, duties, removals }
    }

    /// What a helper makes of the placements.
    fn placed(keeper: &mut Keeper) -> (DutySetId, Arc<View>) {
        let mut work = keeper.view.next_work().expect("there is something to do");
        work.run();
        match keeper.view.on_work(work).as_slice() {
            [ViewDone::Placed(duties, view)] => (*duties, Arc::clone(view)),
            other => panic!("{other:?}"),
        }
    }

    /// Seed 1797100386 of the node's simulation: duties of the last link were said to be applied over this one.
    #[test]
    fn what_came_over_an_earlier_link_is_not_told_over_this_one() {
        let mut keeper = Keeper::new("c".into(), NodeId(1), 1, View::default());
        let put_in_force = |keeper: &mut Keeper| {
            let number = keeper.next_duties().expect("it is complete")[0].1.number;
            keeper.on_duties_done(CoreId(0), number);
            placed(keeper).0
        };
        keeper.on_duties_part(part(5, vec![duty(0)], vec![], true)).unwrap();
        keeper.on_duties_part(part(6, vec![duty(1)], vec![], true)).unwrap();
        let first = put_in_force(&mut keeper);
        assert_eq!(first.metadata_offset, 5);
        assert!(keeper.is_of_this_link(first));
        keeper.on_link_down();
        let of_the_last = put_in_force(&mut keeper);
        assert_eq!(of_the_last.metadata_offset, 6);
        assert!(!keeper.is_of_this_link(of_the_last));
        keeper.on_duties_part(part(6, vec![duty(1)], vec![], true)).unwrap();
        let of_this = put_in_force(&mut keeper);
        assert_eq!(of_this.metadata_offset, 6);
        assert!(keeper.is_of_this_link(of_this));
    }

    #[test]
    fn a_set_is_in_force_when_every_core_says_so() {
        let mut keeper = Keeper::new("c".into(), NodeId(1), 2, View::default());
        keeper.on_duties_part(part(5, vec![duty(0), duty(1)], vec![], false)).unwrap();
        assert!(keeper.next_duties().is_none(), "half told");
        keeper.on_duties_part(part(5, vec![duty(2)], vec![], true)).unwrap();
        keeper.on_duties_part(part(6, vec![], vec![Removal { partition: id(0), removed_at: 6 }], true)).unwrap();
        let parts = keeper.next_duties().unwrap();
        let counts: Vec<usize> = parts.iter().map(|(_, part)| part.duties.len()).collect();
        assert_eq!(counts, vec![2, 1], "spread over the cores");
        assert!(keeper.next_duties().is_none(), "one set at a time");
        keeper.on_duties_done(CoreId(1), 0);
        assert!(keeper.view.next_work().is_none(), "core 0 is not ready");
        keeper.on_duties_done(CoreId(0), 0);
        let (duties, view) = placed(&mut keeper);
        assert_eq!(
            (duties.metadata_offset, view.core_of(id(0)), view.core_of(id(1))),
            (5, Some(CoreId(0)), Some(CoreId(1)))
        );
        let parts = keeper.next_duties().unwrap();
        assert_eq!((parts[0].1.removals.len(), parts[1].1.removals.len()), (1, 0));
        keeper.on_duties_done(CoreId(0), 1);
        keeper.on_duties_done(CoreId(1), 1);
        assert_eq!(placed(&mut keeper).1.core_of(id(0)), None);
        let older = keeper.on_duties_part(part(4, vec![], vec![], true));
        assert!(matches!(older, Err(KeeperError::Older { applied: 6, offered: 4 })));
    }

    #[test]
    fn what_was_recovered_keeps_its_core() {
        let mut keeper = Keeper::new("c".into(), NodeId(1), 2, View::default());
        keeper.on_recovered(CoreId(1), [id(7)]);
        keeper.on_duties_part(part(1, vec![duty(7)], vec![], true)).unwrap();
        let parts = keeper.next_duties().unwrap();
        assert_eq!((parts[0].1.duties.len(), parts[1].1.duties.len()), (0, 1));
    }

    #[test]
    fn held_partitions_are_told_once_all_cores_answered() {
        let mut keeper = Keeper::new("c".into(), NodeId(1), 2, View::default());
        let first = keeper.ask_held();
        assert_eq!(keeper.on_held(CoreId(0), first, false), Some(false));
        let second = keeper.ask_held();
        assert_eq!(keeper.on_held(CoreId(0), first, true), None, "another control plane asked");
        assert_eq!(keeper.on_held(CoreId(0), second, true), Some(false));
        assert_eq!(keeper.on_held(CoreId(1), second, false), Some(false));
        assert_eq!(keeper.on_held(CoreId(1), second, true), Some(true));
        assert_eq!(keeper.on_held(CoreId(1), second, true), None, "it has told all");
    }

    #[test]
    fn settings_are_told_when_they_change_only() {
        let file = settings::NodeConfig::laptop(&[]).unwrap().broker;
        let mut keeper = Keeper::new("c".into(), NodeId(1), 2, View::default());
        let provenance =
            |offset| Provenance { cluster_id: "c".into(), quorum_epoch: 1, metadata_offset: offset, caught_up: true };
        let mut builder = view::ViewBuilder::new("c".into(), View::default());
        let mut told = |changes, offset| {
            let part = link::ViewPart { provenance: provenance(offset), image: offset == 1, last: true, changes };
            let view = builder.apply(part).unwrap().unwrap();
            let settings = keeper.settings_if_changed(&file, &view)?;
            settings.value("log.retention.bytes").and_then(settings::Value::as_integer)
        };
        let set = |resource, value: &str| link::ViewChange::Config {
            resource,
            entries: vec![("log.retention.bytes".into(), value.into())],
        };
        assert_eq!(told(vec![], 1), Some(-1));
        assert_eq!(told(vec![], 2), None);
        assert_eq!(told(vec![set(ConfigResource::Topic("t".into()), "5")], 3), None);
        assert_eq!(told(vec![set(ConfigResource::BrokerDefault, "1000")], 4), Some(1000));
        assert_eq!(told(vec![set(ConfigResource::Broker(NodeId(2)), "5")], 5), None);
        assert_eq!(told(vec![set(ConfigResource::Broker(NodeId(1)), "2000")], 6), Some(2000));
    }
}
