//! A replica with its disk and the state that its deliveries make: the list of all records ever committed.
#![allow(dead_code)]

pub mod disk;

use base::{LeaderEpoch, Monotonic, NodeId, Now, Offset, Random, Uuid, WallMillis};
use bytes::Bytes;
use disk::SimDisk;
use pollux_quorum::{
    CommittedBatch, Config, Delivery, DiskFailed, DiskJob, DiskLane, DiskRead, Endpoint, Event, FormatOptions,
    KRaftVersionRange, Leadership, LoadError, LoadReport, OffsetAndEpoch, Outputs, Quorum, ReplicaKey, SnapshotId,
    Step, Voter, VoterSet, format,
};
use std::collections::VecDeque;
use std::time::Duration;

pub const CLUSTER: &str = "VAZU95LYRcG9RbcNAfiwLA";

pub fn key(id: i32) -> ReplicaKey {
    ReplicaKey { id: NodeId(id), directory: Some(Uuid(0x1000 + id as u128)) }
}

pub fn endpoint(id: i32) -> Endpoint {
    Endpoint { listener: "CONTROLLER".into(), host: "127.0.0.1".into(), port: 9000 + id as u16 }
}

pub fn voters(ids: &[i32]) -> VoterSet {
    VoterSet::new(ids.iter().map(|id| Voter {
        key: key(*id),
        endpoints: vec![endpoint(*id)],
        versions: KRaftVersionRange::OURS,
    }))
}

pub fn config(id: i32) -> Config {
    Config::voter(CLUSTER, key(id), vec![endpoint(id)])
}

pub fn at(millis: u64) -> Now {
    let monotonic = Monotonic::ZERO + Duration::from_millis(millis);
    Now { monotonic, wall: WallMillis(1_790_000_000_000 + millis as i64) }
}

pub fn format_steps(id: i32, ids: &[i32], bootstrap: Vec<Bytes>) -> Vec<Step> {
    let options = FormatOptions {
        cluster_id: CLUSTER.into(),
        node_id: NodeId(id),
        directory_id: key(id).directory.unwrap(),
        voters: voters(ids),
        bootstrap,
    };
    format(&options, at(0))
}

pub fn formatted(id: i32, ids: &[i32]) -> SimDisk {
    let mut disk = SimDisk::default();
    for step in format_steps(id, ids, vec![Bytes::from_static(b"bootstrap")]) {
        disk.step(&step);
    }
    disk
}

/// What a state machine above the quorum has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Model {
    pub records: Vec<Bytes>,
    pub end: Offset,
    pub last: Option<(SnapshotId, WallMillis)>,
    building: Option<Vec<Bytes>>,
    pub leads: Option<(LeaderEpoch, Offset)>,
    pub leadership: Vec<Leadership>,
    pub snapshots_written: Vec<SnapshotId>,
    pub snapshots_loaded: Vec<SnapshotId>,
}

impl Model {
    pub fn take(&mut self, delivery: Delivery) {
        match delivery {
            Delivery::SnapshotBegin { id } => {
                assert!(id.offset >= self.end, "a snapshot never takes the state back");
                self.building = Some(Vec::new());
            }
            Delivery::SnapshotBatch(batch) => self.building.as_mut().unwrap().extend(batch.records),
            Delivery::SnapshotEnd { id } => {
                self.records = self.building.take().unwrap();
                self.end = id.offset;
                self.last = Some((id, WallMillis(0)));
                self.snapshots_loaded.push(id);
            }
            Delivery::Committed(batch) => self.commit(batch),
            Delivery::Leadership(leadership) => {
                self.leads = match leadership {
                    Leadership::Leader { epoch, start } => {
                        assert!(self.end > start, "a leader's state is complete");
                        Some((epoch, start))
                    }
                    _ => None,
                };
                self.leadership.push(leadership);
            }
            Delivery::SnapshotWritten { id } => self.snapshots_written.push(id),
        }
    }

    fn commit(&mut self, batch: CommittedBatch) {
        assert!(self.building.is_none());
        assert_eq!(batch.base_offset, self.end, "commits have no gap");
        self.end = batch.last_offset.plus(1);
        self.last = Some((OffsetAndEpoch { offset: self.end, epoch: batch.epoch }, batch.appended_at));
        self.records.extend(batch.records);
    }
}

/// A replica on its disk; jobs and reads wait until they are run.
pub struct Replica {
    pub quorum: Quorum,
    pub disk: SimDisk,
    pub jobs: VecDeque<DiskJob>,
    pub reads: VecDeque<DiskRead>,
    pub model: Model,
    pub sent: Vec<pollux_quorum::SentRequest>,
    pub replies: Vec<(pollux_quorum::CallId, pollux_quorum::Reply)>,
    pub fault: Option<pollux_quorum::Fault>,
    pub report: LoadReport,
    lanes: Random,
}

impl Replica {
    pub fn load(config: Config, disk: SimDisk, now: Now, seed: u64) -> Result<Replica, LoadError> {
        let (quorum, report) = Quorum::load(config, &disk, now, Random::from_seed(seed))?;
        let mut replica = Replica {
            quorum,
            disk,
            jobs: VecDeque::new(),
            reads: VecDeque::new(),
            model: Model::default(),
            sent: Vec::new(),
            replies: Vec::new(),
            fault: None,
            report,
            lanes: Random::from_seed(seed),
        };
        replica.poll(now);
        Ok(replica)
    }

    pub fn take(&mut self, out: Outputs) {
        self.jobs.extend(out.jobs);
        self.reads.extend(out.reads);
        self.sent.extend(out.requests);
        self.replies.extend(out.replies);
        for delivery in out.deliveries {
            self.model.take(delivery);
        }
        if out.fault.is_some() {
            self.fault = out.fault;
        }
    }

    pub fn poll(&mut self, now: Now) {
        let out = self.quorum.poll(now);
        self.take(out);
    }

    pub fn handle(&mut self, event: Event, now: Now) {
        let out = self.quorum.handle(event, now);
        self.take(out);
    }

    /// The next job of either lane, the lanes in no particular order.
    pub fn next_job(&mut self) -> Option<DiskJob> {
        let lane = if self.lanes.chance(1, 2) { DiskLane::Log } else { DiskLane::Snapshots };
        let first = self.jobs.iter().position(|job| job.lane == lane).unwrap_or(0);
        self.jobs.remove(first)
    }

    /// Runs one job or one read; false if there was none.
    pub fn work(&mut self, now: Now) -> bool {
        if let Some(job) = self.next_job() {
            for step in &job.steps {
                self.disk.step(step);
            }
            self.handle(Event::DiskDone { ticket: job.ticket, result: Ok(()) }, now);
            return true;
        }
        if let Some(read) = self.reads.pop_front() {
            let result = self.disk.read_now(&read).map_err(DiskFailed);
            self.handle(Event::ReadDone { ticket: read.ticket, result }, now);
            return true;
        }
        false
    }

    pub fn settle(&mut self, now: Now) {
        while self.work(now) {}
        assert_eq!(self.fault, None);
    }

    pub fn append(&mut self, records: &[Bytes], now: Now) -> Result<Offset, pollux_quorum::AppendError> {
        let epoch = self.quorum.epoch();
        let offset = self.quorum.append(epoch, records.to_vec(), now)?;
        self.poll(now);
        Ok(offset)
    }

    /// Writes a snapshot of the model, as the states above would.
    pub fn snapshot(&mut self, now: Now) -> Result<SnapshotId, pollux_quorum::SnapshotError> {
        let (id, time) = self.model.last.expect("something is committed");
        self.quorum.begin_snapshot(id, time, now)?;
        for part in self.model.records.chunks(7) {
            self.quorum.append_snapshot(part, now)?;
        }
        self.quorum.finish_snapshot(now)?;
        self.poll(now);
        Ok(id)
    }
}
