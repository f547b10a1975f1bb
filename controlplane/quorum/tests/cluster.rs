//! Several replicas on simulated time, network and disks, with cuts of network and power: one leader an epoch, one history
//! for everybody, nothing acknowledged lost, and a cluster that comes back when the faults end.

mod common;

use base::{LeaderEpoch, Now, Random};
use bytes::Bytes;
use common::disk::SimDisk;
use common::{Replica, at, config, endpoint, formatted};
use pollux_quorum::{CallId, Config, DiskFailed, DiskLane, Event, Reply, Request, RequestId, StateName};
use std::collections::{BTreeMap, BTreeSet};

/// A replica that may be down, and what is on its way from and to it.
struct Member {
    id: i32,
    replica: Option<Replica>,
    disk: Option<SimDisk>,
    /// Counts restarts: what belongs to an earlier run is not delivered.
    run: u64,
    disk_busy_until: [u64; 2],
    back_at: u64,
    /// How much of its history was compared with the cluster's.
    compared: usize,
    snapshots_seen: usize,
    written: u64,
}

#[derive(Clone)]
enum Packet {
    Request { to: i32, from: i32, run: u64, id: RequestId, request: Request },
    Reply { to: i32, run: u64, id: RequestId, reply: Reply },
    Lost { to: i32, run: u64, id: RequestId },
}

struct Cluster {
    random: Random,
    voters: Vec<i32>,
    members: Vec<Member>,
    packets: BTreeMap<(u64, u64), Packet>,
    sequence: u64,
    calls: BTreeMap<(i32, CallId), (i32, u64, RequestId)>,
    next_call: u64,
    clock: u64,
    /// Pairs that cannot hear each other.
    cut: BTreeSet<(i32, i32)>,
    leaders: BTreeMap<LeaderEpoch, i32>,
    history: Vec<Bytes>,
    /// Delivered to the leader that appended it: its client was told.
    acknowledged: usize,
    faults: bool,
    crashes: u32,
    drop_in_100: u64,
}

fn small(id: i32, voters: &[i32]) -> Config {
    let mut config = config(id);
    config.can_vote = voters.contains(&id);
    config.bootstrap_servers = voters.iter().map(|id| endpoint(*id)).collect();
    config.log.segment_bytes = 3000;
    config.log.segment_bytes_at_snapshot = 1000;
    config.log.tail_bytes = 600;
    config.snapshots.bytes_between = 4000;
    config.snapshots.retention_bytes = 7000;
    config
}

impl Cluster {
    fn new(seed: u64, voters: &[i32], observers: &[i32]) -> Cluster {
        let mut cluster = Cluster {
            random: Random::from_seed(seed),
            voters: voters.to_vec(),
            members: Vec::new(),
            packets: BTreeMap::new(),
            sequence: 0,
            calls: BTreeMap::new(),
            next_call: 0,
            clock: 0,
            cut: BTreeSet::new(),
            leaders: BTreeMap::new(),
            history: Vec::new(),
            acknowledged: 0,
            faults: true,
            crashes: 0,
            drop_in_100: 2,
        };
        for id in voters.iter().chain(observers) {
            let disk = formatted(*id, if voters.contains(id) { voters } else { &[] });
            cluster.members.push(Member {
                id: *id,
                replica: None,
                disk: Some(disk),
                run: 0,
                disk_busy_until: [0, 0],
                back_at: 0,
                compared: 0,
                snapshots_seen: 0,
                written: 0,
            });
        }
        cluster
    }

    fn now(&self) -> Now {
        at(self.clock)
    }

    fn place(&self, id: i32) -> usize {
        self.members.iter().position(|m| m.id == id).expect("a member")
    }

    fn send(&mut self, packet: Packet) {
        self.sequence += 1;
        let slowest = if self.random.chance(1, 20) { 200 } else { 8 };
        let delay = 1 + self.random.below(slowest);
        self.packets.insert((self.clock + delay, self.sequence), packet);
    }

    fn hears(&mut self, from: i32, to: i32) -> bool {
        let lost = self.faults && self.random.chance(self.drop_in_100, 100);
        !self.cut.contains(&(from, to)) && !lost
    }

    fn start_members(&mut self) {
        let now = self.now();
        for i in 0..self.members.len() {
            if self.members[i].replica.is_some() || self.clock < self.members[i].back_at {
                continue;
            }
            let seed = self.random.next_u64();
            let member = &mut self.members[i];
            let disk = member.disk.take().expect("a member is up or has a disk");
            let config = small(member.id, &self.voters);
            let replica =
                Replica::load(config, disk, now, seed).unwrap_or_else(|e| panic!("member {}: {e}", member.id));
            member.replica = Some(replica);
            member.run += 1;
            member.compared = 0;
            member.snapshots_seen = 0;
            self.collect(i);
        }
    }

    fn crash(&mut self, i: usize) {
        let member = &mut self.members[i];
        let Some(mut replica) = member.replica.take() else { return };
        self.crashes += 1;
        if let Some(job) = replica.next_job() {
            let done = self.random.below(job.steps.len() as u64 + 1) as usize;
            job.steps[..done].iter().for_each(|step| replica.disk.step(step));
        }
        let mut disk = replica.disk;
        if self.random.chance(3, 4) {
            disk.cut_power(&mut self.random);
        }
        member.disk = Some(disk);
        member.back_at = self.clock + 200 + self.random.below(6000);
    }

    /// Sends what a member wants sent, and checks what it says.
    fn collect(&mut self, i: usize) {
        let (id, run) = (self.members[i].id, self.members[i].run);
        let replica = self.members[i].replica.as_mut().expect("it is up");
        assert_eq!(replica.fault, None, "member {id}");
        let (sent, replies) = (std::mem::take(&mut replica.sent), std::mem::take(&mut replica.replies));
        if replica.quorum.state() == StateName::Leader {
            let epoch = replica.quorum.epoch();
            let leader = *self.leaders.entry(epoch).or_insert(id);
            assert_eq!(leader, id, "two leaders in epoch {epoch}");
        }
        for request in sent {
            let to = request.to.node.map_or(i32::from(request.to.endpoint.port) - 9000, |n| n.0);
            let packet = if self.hears(id, to) {
                Packet::Request { to, from: id, run, id: request.id, request: request.request }
            } else {
                Packet::Lost { to: id, run, id: request.id }
            };
            self.send(packet);
        }
        for (call, reply) in replies {
            let Some((to, to_run, request)) = self.calls.remove(&(id, call)) else { continue };
            let packet = if self.hears(id, to) {
                Packet::Reply { to, run: to_run, id: request, reply }
            } else {
                Packet::Lost { to, run: to_run, id: request }
            };
            self.send(packet);
        }
        self.compare(i);
    }

    /// Everybody's history is the beginning of the same one.
    fn compare(&mut self, i: usize) {
        let member = &mut self.members[i];
        let model = &member.replica.as_ref().expect("it is up").model;
        if model.snapshots_loaded.len() != member.snapshots_seen {
            member.snapshots_seen = model.snapshots_loaded.len();
            member.compared = 0;
        }
        let records = &model.records;
        for (n, record) in records.iter().enumerate().skip(member.compared) {
            match self.history.get(n) {
                Some(known) => assert_eq!(record, known, "member {} record {n}", member.id),
                None => self.history.push(record.clone()),
            }
        }
        member.compared = records.len();
        // A leader that was cut off may not know yet that others lead a later epoch, and lacks what those acknowledged.
        let latest = self.leaders.last_key_value().map(|(epoch, _)| *epoch);
        match model.leads {
            Some((epoch, _)) if Some(epoch) == latest => {
                assert!(records.len() >= self.acknowledged, "a leader lacks acknowledged records");
                self.acknowledged = records.len();
            }
            _ => (),
        }
    }

    fn deliver(&mut self, packet: Packet) {
        let now = self.now();
        match packet {
            Packet::Request { to, from, run, id, request } => {
                let i = self.place(to);
                let Some(replica) = &mut self.members[i].replica else {
                    return self.send(Packet::Lost { to: from, run, id });
                };
                self.next_call += 1;
                let call = CallId(self.next_call);
                self.calls.insert((to, call), (from, run, id));
                replica.handle(Event::Call { id: call, request }, now);
                self.collect(i);
            }
            Packet::Reply { to, run, id, reply } => self.event(to, run, Event::Reply { id, reply }),
            Packet::Lost { to, run, id } => {
                // Mostly nothing tells; the timeout does.
                if self.random.chance(1, 3) {
                    self.event(to, run, Event::NoReply { id });
                }
            }
        }
    }

    fn event(&mut self, to: i32, run: u64, event: Event) {
        let (i, now) = (self.place(to), self.now());
        if self.members[i].run != run {
            return;
        }
        if let Some(replica) = &mut self.members[i].replica {
            replica.handle(event, now);
            self.collect(i);
        }
    }

    fn disks(&mut self) {
        let now = self.now();
        for i in 0..self.members.len() {
            let slowest = if self.random.chance(1, 50) { 150 } else { 6 };
            let slow = self.random.below(slowest);
            let member = &mut self.members[i];
            let Some(replica) = &mut member.replica else { continue };
            while let Some(read) = replica.reads.pop_front() {
                let result = replica.disk.read_now(&read).map_err(DiskFailed);
                replica.handle(Event::ReadDone { ticket: read.ticket, result }, now);
            }
            for (lane, busy_until) in [DiskLane::Log, DiskLane::Snapshots].into_iter().zip(&mut member.disk_busy_until)
            {
                let first = replica.jobs.iter().position(|job| job.lane == lane);
                if let Some(job) = first.filter(|_| self.clock >= *busy_until).and_then(|at| replica.jobs.remove(at)) {
                    *busy_until = self.clock + slow;
                    job.steps.iter().for_each(|step| replica.disk.step(step));
                    replica.handle(Event::DiskDone { ticket: job.ticket, result: Ok(()) }, now);
                }
            }
            self.collect(i);
        }
    }

    fn timers(&mut self) {
        let now = self.now();
        for i in 0..self.members.len() {
            let id = self.members[i].id;
            let Some(replica) = &mut self.members[i].replica else { continue };
            if replica.quorum.next_deadline().is_some_and(|deadline| deadline <= now.monotonic) {
                replica.poll(now);
                let next = replica.quorum.next_deadline();
                let stuck = next.is_some_and(|deadline| deadline < now.monotonic);
                assert!(!stuck, "member {id} spins: {:?} {next:?}", replica.quorum.state());
                self.collect(i);
            }
        }
    }

    /// What the states above do: the leader's appends, everybody's snapshots.
    fn work(&mut self) {
        let now = self.now();
        for i in 0..self.members.len() {
            let member = &mut self.members[i];
            let Some(replica) = &mut member.replica else { continue };
            if replica.model.leads.is_some() && self.random.chance(1, 15) {
                for _ in 0..=self.random.below(3) {
                    member.written += 1;
                    let text = format!("{} {} {}", member.id, member.run, member.written);
                    let filler = "y".repeat(self.random.below(60) as usize);
                    let _ = replica.append(&[Bytes::from(text + &filler)], now);
                }
            }
            if replica.quorum.snapshot_due(now).is_some() && replica.model.last.is_some() {
                // Refused where a snapshot of the leader overtook it.
                let _ = replica.snapshot(now);
            }
            self.collect(i);
        }
    }

    fn faults(&mut self) {
        if self.random.chance(1, 2500) {
            let i = self.random.below(self.members.len() as u64) as usize;
            self.crash(i);
        }
        if self.random.chance(1, 4000) {
            let ids: Vec<i32> = self.members.iter().map(|m| m.id).collect();
            let alone = ids[self.random.below(ids.len() as u64) as usize];
            let one_way = self.random.chance(1, 4);
            for id in ids.into_iter().filter(|id| *id != alone) {
                self.cut.insert((alone, id));
                if !one_way {
                    self.cut.insert((id, alone));
                }
            }
        }
        if self.random.chance(1, 3000) {
            self.cut.clear();
        }
    }

    fn tick(&mut self) {
        self.clock += 1;
        self.start_members();
        while let Some(entry) = self.packets.first_entry().filter(|e| e.key().0 <= self.clock) {
            let packet = entry.remove();
            self.deliver(packet);
        }
        self.disks();
        self.timers();
        self.work();
        if self.faults {
            self.faults();
        }
    }

    fn heal(&mut self) {
        self.faults = false;
        self.cut.clear();
        for member in &mut self.members {
            member.back_at = 0;
        }
    }

    fn leader(&self) -> Option<usize> {
        let leads = |m: &Member| m.replica.as_ref().is_some_and(|r| r.model.leads.is_some());
        let leaders: Vec<usize> = (0..self.members.len()).filter(|i| leads(&self.members[*i])).collect();
        if let [leader] = leaders[..] { Some(leader) } else { None }
    }

    fn run_until(&mut self, limit: u64, done: impl Fn(&Cluster) -> bool) {
        let end = self.clock + limit;
        while !done(self) {
            assert!(self.clock < end, "not within {limit} ms: {:?}", self.describe());
            self.tick();
        }
    }

    fn describe(&self) -> Vec<String> {
        let member = |m: &Member| match &m.replica {
            Some(r) => format!(
                "{} {:?} epoch {} leader {:?} end {} watermark {:?} records {}",
                m.id,
                r.quorum.state(),
                r.quorum.epoch(),
                r.quorum.leader(),
                r.quorum.log_end(),
                r.quorum.high_watermark(),
                r.model.records.len()
            ),
            None => format!("{} down", m.id),
        };
        self.members.iter().map(member).collect()
    }
}

fn all_have(cluster: &Cluster, count: usize) -> bool {
    cluster.members.iter().all(|m| m.replica.as_ref().is_some_and(|r| r.model.records.len() >= count))
}

#[test]
fn faults_neither_lose_nor_fork_the_history() {
    let (mut crashes, mut epochs, mut records, mut fetched_snapshots) = (0, 0, 0, 0);
    for seed in 0..10 {
        println!("seed {seed}");
        let voters: &[i32] = if seed % 3 == 0 { &[1, 2, 3, 4, 5] } else { &[1, 2, 3] };
        let mut cluster = Cluster::new(seed, voters, if seed % 2 == 0 { &[9] } else { &[] });
        while cluster.clock < 60_000 {
            cluster.tick();
        }
        cluster.heal();
        cluster.run_until(20_000, |c| c.leader().is_some());
        let before = cluster.acknowledged;
        cluster.run_until(20_000, |c| c.acknowledged > before + 10 && all_have(c, before + 10));
        crashes += cluster.crashes;
        epochs += cluster.leaders.len();
        records += cluster.history.len();
        fetched_snapshots += cluster.members.iter().map(|m| m.snapshots_seen.saturating_sub(1)).sum::<usize>();
    }
    println!("{crashes} crashes, {epochs} epochs led, {records} records, {fetched_snapshots} snapshots fetched");
    assert!(crashes > 100 && epochs > 40 && records > 10_000, "{crashes} {epochs} {records}");
}

#[test]
fn a_quiet_cluster_keeps_its_leader() {
    let mut cluster = Cluster::new(100, &[1, 2, 3], &[9]);
    cluster.faults = false;
    cluster.run_until(10_000, |c| c.leader().is_some());
    let epochs = cluster.leaders.len();
    for _ in 0..30_000 {
        cluster.tick();
    }
    assert_eq!(cluster.leaders.len(), epochs, "nobody stands against a living leader");
    assert!(cluster.acknowledged > 1000);
    let leader = cluster.leader().expect("it still leads");
    let described = cluster.members[leader].replica.as_ref().unwrap().quorum.describe(cluster.now()).unwrap();
    assert_eq!((described.voters.len(), described.observers.len()), (3, 1));
    assert!(described.voters.iter().all(|v| v.last_caught_up.is_some()));
}

#[test]
fn a_leader_that_stops_hands_over_at_once() {
    let mut cluster = Cluster::new(7, &[1, 2, 3], &[]);
    cluster.faults = false;
    cluster.run_until(10_000, |c| c.acknowledged > 20);
    let leader = cluster.leader().expect("it leads");
    let epoch = cluster.members[leader].replica.as_ref().unwrap().quorum.epoch();
    let (now, id) = (cluster.now(), cluster.members[leader].id);
    cluster.members[leader].replica.as_mut().unwrap().handle(Event::Stop, now);
    cluster.collect(leader);
    // Well below the fetch timeout of two seconds, which would otherwise have to pass.
    cluster.run_until(1000, |c| c.leader().is_some_and(|l| c.members[l].id != id));
    assert!(*cluster.leaders.last_key_value().unwrap().0 > epoch);
    let now = cluster.now();
    assert!(cluster.members[leader].replica.as_ref().unwrap().quorum.is_stopped(now));
}

#[test]
fn a_cut_off_leader_resigns_and_its_appends_are_lost_to_nobody() {
    let mut cluster = Cluster::new(8, &[1, 2, 3], &[]);
    cluster.faults = false;
    cluster.run_until(10_000, |c| c.acknowledged > 20);
    let old = cluster.leader().expect("it leads");
    let old_id = cluster.members[old].id;
    for id in [1, 2, 3] {
        cluster.cut.extend([(old_id, id), (id, old_id)]);
    }
    cluster.run_until(4000, |c| c.members[old].replica.as_ref().unwrap().model.leads.is_none());
    cluster.run_until(8000, |c| c.leader().is_some_and(|l| l != old));
    let before = cluster.acknowledged;
    cluster.run_until(4000, |c| c.acknowledged > before + 20);
    cluster.cut.clear();
    let count = cluster.acknowledged;
    cluster.run_until(10_000, |c| all_have(c, count));
}
