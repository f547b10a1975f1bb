//! Power cuts at every step: what was delivered as committed is there again, in order, once; the epoch never falls; and a
//! cut inside the recovery changes none of that.

mod common;

use base::{LeaderEpoch, Now, Random};
use bytes::Bytes;
use common::disk::SimDisk;
use common::{Model, Replica, at, config, format_steps, formatted};
use pollux_quorum::{Config, Event, LoadError, read_meta};

const SEEDS: u64 = 200;
const OPERATIONS: u64 = 150;

/// Segments, snapshots and retention so small that every mechanism runs within a few hundred operations.
fn small(seed: u64) -> Config {
    let mut config = config(1);
    config.log.segment_bytes = 1500;
    config.log.segment_bytes_at_snapshot = if seed.is_multiple_of(2) { 600 } else { 1 << 20 };
    config.log.tail_bytes = 300;
    config.snapshots.bytes_between = 1200;
    config.snapshots.retention_bytes = 2500;
    config
}

struct Run {
    random: Random,
    config: Config,
    clock: u64,
    written: u64,
    /// What was committed in any run so far.
    acknowledged: Model,
    epoch: LeaderEpoch,
    crashes: u32,
    crashes_in_recovery: u32,
    torn: u64,
}

impl Run {
    fn now(&mut self) -> Now {
        self.clock += self.random.below(40);
        at(self.clock)
    }

    fn load(&mut self, disk: SimDisk) -> Replica {
        let now = self.now();
        let seed = self.random.next_u64();
        let replica = Replica::load(self.config.clone(), disk, now, seed).unwrap_or_else(|e| panic!("load: {e}"));
        assert!(replica.quorum.epoch() >= self.epoch, "a stored epoch never falls");
        self.torn += replica.report.torn_bytes;
        replica
    }

    /// Everything acknowledged before is there, in its place.
    fn check(&self, model: &Model) {
        let known = self.acknowledged.records.len().min(model.records.len());
        assert_eq!(model.records[..known], self.acknowledged.records[..known]);
    }

    fn note(&mut self, replica: &Replica) {
        assert_eq!(replica.fault, None);
        self.check(&replica.model);
        if replica.model.end > self.acknowledged.end {
            self.acknowledged = replica.model.clone();
        }
        // A vote is a promise once its job is done; what is led or answered in was stored before.
        if replica.model.leads.is_some() {
            self.epoch = self.epoch.max(replica.quorum.epoch());
        }
    }

    /// Runs some of the waiting work; the last job perhaps only in part. True if the power went.
    fn work(&mut self, replica: &mut Replica, crash: bool) -> bool {
        let now = self.now();
        let mut left = self.random.below(12);
        while left > 0 {
            left -= 1;
            if crash && self.random.chance(1, 4) {
                if let Some(job) = replica.next_job() {
                    let done = self.random.below(job.steps.len() as u64 + 1) as usize;
                    job.steps[..done].iter().for_each(|step| replica.disk.step(step));
                }
                return true;
            }
            if !replica.work(now) {
                break;
            }
            self.note(replica);
        }
        crash && self.random.chance(1, 4)
    }

    fn operation(&mut self, replica: &mut Replica) {
        let now = self.now();
        match self.random.below(10) {
            0..=6 => {
                let count = 1 + self.random.below(4);
                let records: Vec<Bytes> = (0..count)
                    .map(|_| {
                        self.written += 1;
                        let filler = "x".repeat(self.random.below(80) as usize);
                        Bytes::from(format!("{} {filler}", self.written))
                    })
                    .collect();
                // Not leading yet, or the disk is behind: the caller tries again.
                let _ = replica.append(&records, now);
            }
            7 => {
                // A state above that just lost a race with a newer snapshot, or is not caught up, is told so.
                if replica.model.last.is_some() && replica.quorum.snapshot_due(now).is_some() {
                    let _ = replica.snapshot(now);
                }
            }
            _ => replica.poll(now),
        }
        self.note(replica);
    }

    fn run(&mut self) {
        let mut replica = self.load(formatted(1, &[1]));
        for _ in 0..OPERATIONS {
            self.operation(&mut replica);
            let crash = self.random.chance(1, 12);
            if !self.work(&mut replica, crash) {
                continue;
            }
            loop {
                self.crashes += 1;
                let mut disk = replica.disk;
                // A killed process leaves its unsynced writes in the system's cache, where a later power cut finds them.
                if self.random.chance(2, 3) {
                    disk.cut_power(&mut self.random);
                }
                replica = self.load(disk);
                if self.random.chance(1, 2) {
                    break;
                }
                self.crashes_in_recovery += 1;
                self.work(&mut replica, true);
            }
            let now = self.now();
            replica.settle(now);
            self.note(&replica);
            assert!(
                replica.model.records.len() >= self.acknowledged.records.len(),
                "{} of {} acknowledged records are there",
                replica.model.records.len(),
                self.acknowledged.records.len()
            );
        }
    }
}

#[test]
fn no_acknowledged_record_is_lost_at_any_cut() {
    let (mut crashes, mut in_recovery, mut torn) = (0, 0, 0);
    for seed in 0..SEEDS {
        let mut run = Run {
            random: Random::from_seed(seed),
            config: small(seed),
            clock: 0,
            written: 0,
            acknowledged: Model::default(),
            epoch: LeaderEpoch(0),
            crashes: 0,
            crashes_in_recovery: 0,
            torn: 0,
        };
        println!("seed {seed}");
        run.run();
        crashes += run.crashes;
        in_recovery += run.crashes_in_recovery;
        torn += u32::from(run.torn > 0);
    }
    assert!(crashes > 300 && in_recovery > 100 && torn > 10, "{crashes} {in_recovery} {torn}");
}

#[test]
fn formatting_is_done_or_not_at_any_cut() {
    let steps = format_steps(1, &[1], vec![Bytes::from_static(b"bootstrap")]);
    for cut in 0..=steps.len() {
        for seed in 0..20 {
            let mut disk = SimDisk::default();
            steps[..cut].iter().for_each(|step| disk.step(step));
            disk.cut_power(&mut Random::from_seed(seed));
            match read_meta(&disk).expect("it is whole or not there") {
                None => assert!(cut < steps.len(), "a formatted directory stays formatted"),
                Some(_) => {
                    let mut replica = Replica::load(config(1), disk, at(0), seed).expect("it is complete");
                    replica.settle(at(0));
                    assert!(replica.model.leads.is_some());
                    assert_eq!(replica.quorum.bootstrap_records().len(), 1);
                }
            }
        }
    }
}

#[test]
fn damaged_files_are_refused_or_read_but_never_panic() {
    let mut replica = Replica::load(small(1), formatted(1, &[1]), at(0), 1).unwrap();
    replica.settle(at(0));
    for n in 0..60 {
        replica.append(&[Bytes::from(format!("record {n}"))], at(n)).unwrap();
        replica.settle(at(n));
        if n % 20 == 19 {
            replica.snapshot(at(n)).unwrap();
            replica.settle(at(n));
        }
    }
    let files = replica.disk.files();
    let (mut loaded, mut refused) = (0, 0);
    let mut random = Random::from_seed(9);
    for seed in 0..3000 {
        let mut disk = replica.disk.clone();
        for _ in 0..=random.below(3) {
            let file = files[random.below(files.len() as u64) as usize];
            let mut content = disk.content(file).expect("it is there").to_vec();
            match random.below(4) {
                0 => content.truncate(random.below(content.len() as u64 + 1) as usize),
                1 => content.extend((0..random.below(200)).map(|n| n as u8)),
                _ if content.is_empty() => continue,
                _ => {
                    let at = random.below(content.len() as u64) as usize;
                    content[at] = random.next_u64() as u8;
                }
            }
            disk.set_content(file, content);
        }
        match Replica::load(small(1), disk, at(1000), seed) {
            Err(_) => refused += 1,
            Ok(mut replica) => {
                // What is read only later, as snapshots are, may still end the node, with a reason.
                while replica.fault.is_none() && replica.work(at(1000)) {}
                loaded += 1;
            }
        }
    }
    assert!(loaded > 500 && refused > 500, "{loaded} {refused}");
}

#[test]
fn a_vote_survives_any_cut_after_it_was_answered() {
    use common::key;
    use pollux_quorum::{CallId, OffsetAndEpoch, ReplyBody, Request, VoteRequest};
    for seed in 0..100 {
        let mut random = Random::from_seed(seed);
        let mut replica = Replica::load(config(1), formatted(1, &[1, 2, 3]), at(0), seed).unwrap();
        replica.settle(at(0));
        let request = |candidate| {
            Request::Vote(VoteRequest {
                voter: Some(key(1)),
                candidate: key(candidate),
                epoch: LeaderEpoch(5),
                last: OffsetAndEpoch::default(),
                pre_vote: false,
            })
        };
        let granted =
            |replica: &Replica| replica.replies.iter().any(|(_, r)| r.body == ReplyBody::Vote { granted: true });
        replica.handle(Event::Call { id: CallId(1), request: request(2) }, at(1));
        assert!(!granted(&replica), "not before it is on disk");
        while random.chance(2, 3) && replica.work(at(1)) {}
        let answered = granted(&replica);
        let mut disk = replica.disk;
        disk.cut_power(&mut random);
        let mut again: Result<Replica, LoadError> = Replica::load(config(1), disk, at(2), seed);
        let again = again.as_mut().expect("it loads");
        again.settle(at(2));
        again.handle(Event::Call { id: CallId(2), request: request(3) }, at(3));
        again.settle(at(3));
        assert!(!(answered && granted(again)), "two votes in one epoch");
    }
}
