//! The protocol's rules, one by one, by hand-made messages to one of three voters.

mod common;

use base::{LeaderEpoch, NodeId, Offset, Random};
use bytes::Bytes;
use common::{Replica, at, config, endpoint, formatted, key};
use pollux_quorum::{
    BeginEpochRequest, CallId, EndEpochRequest, Event, Fault, FetchReply, FetchRequest, FetchSnapshotReply,
    FetchSnapshotRequest, Fetched, FileName, OffsetAndEpoch, Refusal, Reply, ReplyBody, Request, SentRequest,
    StateName, VoteRequest,
};

const ONE: [i32; 3] = [1, 2, 3];

fn voter() -> Replica {
    let mut replica = Replica::load(config(1), formatted(1, &ONE), at(0), 1).unwrap();
    replica.settle(at(0));
    replica.sent.clear();
    replica
}

fn end(epoch: i32, offset: i64) -> OffsetAndEpoch {
    OffsetAndEpoch { offset: Offset(offset), epoch: LeaderEpoch(epoch) }
}

fn ask(replica: &mut Replica, request: Request, time: u64) -> Reply {
    let id = CallId(time * 1000 + replica.replies.len() as u64);
    replica.handle(Event::Call { id, request }, at(time));
    replica.settle(at(time));
    replica.replies.iter().find(|(call, _)| *call == id).expect("it is answered").1.clone()
}

fn vote(candidate: i32, epoch: i32, last: OffsetAndEpoch, pre_vote: bool) -> Request {
    let epoch = LeaderEpoch(epoch);
    Request::Vote(VoteRequest { voter: Some(key(1)), candidate: key(candidate), epoch, last, pre_vote })
}

fn granted(reply: &Reply) -> bool {
    assert_eq!(reply.refusal, None);
    reply.body == ReplyBody::Vote { granted: true }
}

fn begin(leader: i32, epoch: i32) -> Request {
    let (leader, epoch) = (NodeId(leader), LeaderEpoch(epoch));
    Request::BeginEpoch(BeginEpochRequest { voter: Some(key(1)), leader, epoch, endpoints: vec![endpoint(leader.0)] })
}

fn reply(replica: &Replica, body: ReplyBody) -> Reply {
    Reply {
        refusal: None,
        epoch: replica.quorum.epoch(),
        leader: replica.quorum.leader(),
        leader_endpoints: Vec::new(),
        body,
    }
}

fn last_sent(replica: &mut Replica) -> SentRequest {
    let sent = std::mem::take(&mut replica.sent);
    sent.last().expect("something was sent").clone()
}

/// A follower of 2 in epoch 1 whose first fetch brought the log of another leader of epoch 1 with `count` records.
fn follower_with(count: i64, watermark: i64) -> Replica {
    let mut replica = voter();
    ask(&mut replica, begin(2, 1), 1);
    assert_eq!(replica.quorum.state(), StateName::Follower);
    let fetch = last_sent(&mut replica);
    assert!(matches!(fetch.request, Request::Fetch(_)));
    answer_fetch(&mut replica, &fetch, Fetched::Batches((0..count).map(batch).collect()), watermark);
    replica.settle(at(2));
    replica
}

fn answer_fetch(replica: &mut Replica, fetch: &SentRequest, found: Fetched, watermark: i64) {
    let body = FetchReply { high_watermark: Some(Offset(watermark)), log_start: Some(Offset(0)), found };
    let reply = reply(replica, ReplyBody::Fetch(body));
    replica.handle(Event::Reply { id: fetch.id, reply }, at(2));
}

fn batch(offset: i64) -> Bytes {
    let mut builder = batch::BatchBuilder::new();
    builder.base_offset(Offset(offset)).leader_epoch(LeaderEpoch(1));
    builder.append(base::WallMillis(1), None, Some(format!("r{offset}").as_bytes()), &[]);
    builder.build().into()
}

/// Runs elections of its own until it leads: 2 grants everything, 3 is silent.
fn elect(replica: &mut Replica) -> u64 {
    let mut time = 10_000;
    replica.poll(at(time));
    while replica.quorum.state() != StateName::Leader {
        assert!(time < 60_000, "it is elected");
        for sent in std::mem::take(&mut replica.sent) {
            if matches!(sent.request, Request::Vote(_)) && sent.to.node == Some(NodeId(2)) {
                let mut reply = reply(replica, ReplyBody::Vote { granted: true });
                reply.leader = None;
                replica.handle(Event::Reply { id: sent.id, reply }, at(time));
            }
        }
        replica.settle(at(time));
        if let Some(deadline) = replica.quorum.next_deadline().filter(|_| replica.sent.is_empty()) {
            time = time.max(deadline.0.div_ceil(1_000_000));
        }
        replica.poll(at(time));
    }
    replica.settle(at(time));
    time
}

#[test]
fn a_vote_goes_once_an_epoch_and_to_no_shorter_log() {
    let mut replica = follower_with(5, 0);
    assert!(!granted(&ask(&mut replica, vote(2, 3, end(1, 4), false), 5)), "its log is shorter");
    assert_eq!(replica.quorum.epoch(), LeaderEpoch(3), "the epoch is learned all the same");
    assert!(!granted(&ask(&mut replica, vote(3, 4, end(0, 100), false), 6)), "its last epoch is older");
    assert!(granted(&ask(&mut replica, vote(3, 4, end(1, 5), false), 7)));
    assert!(granted(&ask(&mut replica, vote(3, 4, end(1, 5), false), 8)), "the same again");
    assert!(!granted(&ask(&mut replica, vote(2, 4, end(2, 50), false), 9)), "another in the same epoch");
    assert_eq!(ask(&mut replica, vote(2, 3, end(1, 5), false), 10).refusal, Some(Refusal::FencedLeaderEpoch));
    assert_eq!(ask(&mut replica, vote(2, 5, end(5, 5), false), 11).refusal, Some(Refusal::InvalidRequest));
    let mut other = vote(2, 6, end(1, 5), false);
    if let Request::Vote(request) = &mut other {
        request.voter = Some(pollux_quorum::ReplicaKey { id: NodeId(1), directory: Some(base::Uuid(99)) });
    }
    assert_eq!(ask(&mut replica, other, 12).refusal, Some(Refusal::InvalidVoterKey), "a disk that was replaced");
}

#[test]
fn a_pre_vote_spends_nothing_and_protects_a_living_leader() {
    let mut replica = voter();
    assert!(granted(&ask(&mut replica, vote(2, 0, end(0, 0), true), 1)));
    assert!(granted(&ask(&mut replica, vote(3, 0, end(0, 0), true), 2)));
    assert!(granted(&ask(&mut replica, vote(3, 1, end(0, 0), false), 3)), "the vote is still there");
    let mut replica = follower_with(3, 3);
    assert!(!granted(&ask(&mut replica, vote(3, 1, end(1, 9), true), 5)), "the leader answers");
    let mut replica = voter();
    ask(&mut replica, begin(2, 1), 1);
    assert!(granted(&ask(&mut replica, vote(3, 1, end(0, 0), true), 2)), "this leader never answered");
    replica.poll(at(3000));
    assert_eq!(replica.quorum.state(), StateName::Prospective);
    let late = ask(&mut replica, vote(3, 1, end(0, 0), false), 3000);
    assert!(!granted(&late), "an epoch with a leader has no vote left");
}

#[test]
fn a_follower_fetches_only_what_follows_its_disk() {
    let mut replica = voter();
    ask(&mut replica, begin(2, 1), 1);
    let fetch = last_sent(&mut replica);
    answer_fetch(&mut replica, &fetch, Fetched::Batches(vec![batch(0), batch(1)]), 2);
    assert!(replica.sent.is_empty(), "not before the sync");
    assert_eq!(replica.quorum.high_watermark(), None);
    replica.settle(at(2));
    let Request::Fetch(next) = last_sent(&mut replica).request else { panic!("it fetches on") };
    assert_eq!((next.offset, next.last_epoch, next.high_watermark), (Offset(2), LeaderEpoch(1), Some(Offset(2))));
    assert_eq!(replica.model.records.len(), 2);
}

#[test]
fn a_follower_cuts_what_its_leader_does_not_have_but_nothing_committed() {
    let mut replica = follower_with(6, 2);
    let fetch = last_sent(&mut replica);
    answer_fetch(&mut replica, &fetch, Fetched::Diverging(end(1, 4)), 2);
    replica.settle(at(3));
    assert_eq!(replica.quorum.log_end(), end(1, 4));
    let log = replica.disk.content(FileName::Log(Offset(0))).unwrap();
    assert_eq!(log.len(), (0..4).map(|n| batch(n).len()).sum::<usize>());
    let fetch = last_sent(&mut replica);
    let Request::Fetch(request) = &fetch.request else { panic!("it fetches on") };
    assert_eq!(request.offset, Offset(4));
    answer_fetch(&mut replica, &fetch, Fetched::Diverging(end(1, 1)), 2);
    let watermark = Offset(2);
    assert_eq!(replica.fault, Some(Fault::CutBelowWatermark { asked: Offset(1), high_watermark: watermark }));
}

#[test]
fn what_cannot_follow_the_log_ends_the_node() {
    for wrong in [batch(7), Bytes::from_static(b"no batch at all")] {
        let mut replica = follower_with(3, 0);
        let fetch = last_sent(&mut replica);
        answer_fetch(&mut replica, &fetch, Fetched::Batches(vec![wrong]), 0);
        assert!(matches!(replica.fault, Some(Fault::BadReplication(_))));
    }
}

#[test]
fn the_watermark_waits_for_an_entry_of_the_leaders_own_epoch() {
    let mut replica = follower_with(5, 0);
    let time = elect(&mut replica);
    let epoch = replica.quorum.epoch();
    let start = Offset(5);
    assert_eq!(replica.quorum.log_end().offset, Offset(8), "its LeaderChange, version and voters");
    let fetch = |offset: i64, last_epoch: LeaderEpoch| {
        Request::Fetch(FetchRequest {
            replica: Some(key(2)),
            epoch,
            offset: Offset(offset),
            last_epoch,
            wait_ms: 0,
            max_bytes: 1 << 20,
            high_watermark: None,
        })
    };
    // Two of three have all of epoch 1 on disk, and still nothing of it is committed (Raft, 5.4.2).
    ask(&mut replica, fetch(5, LeaderEpoch(1)), time + 1);
    assert_eq!(replica.quorum.high_watermark(), Some(Offset(0)), "what its former leader told");
    assert!(replica.model.records.is_empty() && replica.model.leads.is_none());
    ask(&mut replica, fetch(8, epoch), time + 2);
    assert_eq!(replica.quorum.high_watermark(), Some(Offset(8)));
    assert_eq!(replica.model.records.len(), 5);
    assert_eq!(replica.model.leads, Some((epoch, start)));
    // A fetch from further back takes nothing away.
    ask(&mut replica, fetch(5, LeaderEpoch(1)), time + 3);
    assert_eq!(replica.quorum.high_watermark(), Some(Offset(8)));
    // What a fetcher has that this log has not is cut by it.
    let diverged = ask(&mut replica, fetch(7, LeaderEpoch(1)), time + 4);
    let ReplyBody::Fetch(body) = diverged.body else { panic!("a fetch is answered as one") };
    assert_eq!(body.found, Fetched::Diverging(end(1, 5)));
}

#[test]
fn a_leader_counts_itself_only_once_it_has_synced() {
    let mut replica = voter();
    let time = elect(&mut replica);
    let epoch = replica.quorum.epoch();
    let fetch = |offset: Offset| {
        Request::Fetch(FetchRequest {
            replica: Some(key(2)),
            epoch,
            offset,
            last_epoch: epoch,
            wait_ms: 0,
            max_bytes: 1 << 20,
            high_watermark: None,
        })
    };
    let end = replica.quorum.log_end().offset;
    ask(&mut replica, fetch(end), time + 1);
    assert_eq!(replica.quorum.high_watermark(), Some(end));
    replica.append(&[Bytes::from_static(b"one")], at(time + 2)).unwrap();
    // The follower is served the record, and has it on its disk, before the leader has.
    let next = replica.quorum.log_end().offset;
    assert_eq!(next, end.plus(1));
    let out = replica.quorum.handle(Event::Call { id: CallId(1), request: fetch(next) }, at(time + 3));
    assert!(out.replies.len() == 1 && replica.quorum.high_watermark() == Some(end));
    replica.settle(at(time + 4));
    assert_eq!(replica.quorum.high_watermark(), Some(next));
}

#[test]
fn an_epoch_is_announced_until_it_is_acknowledged() {
    let mut replica = voter();
    let mut time = elect(&mut replica);
    let mut announced = 0;
    for _ in 0..3 {
        for sent in std::mem::take(&mut replica.sent) {
            if let Request::BeginEpoch(request) = &sent.request {
                assert_eq!(request.endpoints, [endpoint(1)]);
                announced += u32::from(sent.to.node == Some(NodeId(3)));
                replica.handle(Event::NoReply { id: sent.id }, at(time));
            }
        }
        // The other voter fetches, so that the leader is not cut off.
        let (epoch, offset) = (replica.quorum.epoch(), Offset(0));
        let request = FetchRequest {
            replica: Some(key(2)),
            epoch,
            offset,
            last_epoch: LeaderEpoch(0),
            wait_ms: 0,
            max_bytes: 100,
            high_watermark: None,
        };
        ask(&mut replica, Request::Fetch(request), time);
        time += 1100;
        replica.poll(at(time));
    }
    assert!(announced >= 3, "{announced}");
}

#[test]
fn a_leader_that_comes_back_does_not_lead_in_its_old_epoch() {
    let mut replica = voter();
    elect(&mut replica);
    let epoch = replica.quorum.epoch();
    let mut again = Replica::load(config(1), replica.disk, at(90_000), 5).unwrap();
    again.settle(at(90_000));
    assert_eq!((again.quorum.state(), again.quorum.epoch()), (StateName::Resigned, epoch));
    assert!(!granted(&ask(&mut again, vote(2, epoch.0, end(0, 9), true), 90_001)));
    again.poll(at(95_000));
    assert!(again.quorum.epoch() > epoch);
}

#[test]
fn the_best_successor_stands_at_once() {
    let successors = |own_place: usize| {
        let mut keys = vec![key(3)];
        keys.insert(own_place, key(1));
        keys
    };
    for (place, at_once) in [(0, true), (1, false)] {
        let mut replica = follower_with(3, 3);
        let request = EndEpochRequest {
            leader: NodeId(2),
            epoch: LeaderEpoch(1),
            successors: successors(place),
            endpoints: Vec::new(),
        };
        ask(&mut replica, Request::EndEpoch(request), 3);
        replica.poll(at(4));
        assert_eq!(replica.quorum.state() == StateName::Prospective, at_once);
        replica.poll(at(1100));
        assert_eq!(replica.quorum.state(), StateName::Prospective, "within the longest backoff");
    }
}

/// Messages as no replica would send them.
struct Nonsense(Random, LeaderEpoch);

impl Nonsense {
    fn below(&mut self, bound: u64) -> i32 {
        self.0.below(bound) as i32
    }

    fn epoch(&mut self) -> LeaderEpoch {
        match self.0.below(40) {
            0 => LeaderEpoch(i32::MAX),
            // One epoch further now and then, else the one the replica is in, or one before.
            1 => LeaderEpoch(self.1.0 + 1),
            2..=5 => LeaderEpoch(self.1.0 - 1),
            _ => self.1,
        }
    }

    fn position(&mut self) -> OffsetAndEpoch {
        end(self.below(6) - 1, i64::from(self.below(12)) - 1)
    }

    fn endpoints(&mut self, id: i32) -> Vec<pollux_quorum::Endpoint> {
        if self.0.chance(1, 3) { Vec::new() } else { vec![endpoint(id)] }
    }

    fn request(&mut self) -> Request {
        let (id, epoch) = (self.below(5), self.epoch());
        match self.below(5) {
            0 => Request::Vote(VoteRequest {
                voter: self.0.chance(9, 10).then(|| key(1)),
                candidate: key(id),
                epoch,
                last: self.position(),
                pre_vote: self.0.chance(1, 2),
            }),
            1 => Request::BeginEpoch(BeginEpochRequest {
                voter: Some(key(1)),
                leader: NodeId(id),
                epoch,
                endpoints: self.endpoints(id),
            }),
            2 => Request::EndEpoch(EndEpochRequest {
                leader: NodeId(id),
                epoch,
                successors: (0..self.below(40)).map(key).collect(),
                endpoints: self.endpoints(id),
            }),
            3 => Request::Fetch(FetchRequest {
                replica: self.0.chance(4, 5).then(|| key(id)),
                epoch,
                offset: self.position().offset,
                last_epoch: self.epoch(),
                wait_ms: self.below(600) as u32,
                max_bytes: self.below(1000) as u32,
                high_watermark: self.0.chance(1, 2).then(|| self.position().offset),
            }),
            _ => Request::FetchSnapshot(FetchSnapshotRequest {
                replica: Some(key(id)),
                epoch,
                id: self.position(),
                position: self.0.below(600),
                max_bytes: self.below(1000) as u32,
            }),
        }
    }

    fn reply(&mut self) -> Reply {
        let leader = self.below(5);
        let refusals = [None, None, None, Some(Refusal::FencedLeaderEpoch), Some(Refusal::SnapshotNotFound)];
        let found = match self.below(3) {
            0 => Fetched::Batches((0..self.below(3)).map(|n| batch(i64::from(n))).collect()),
            1 => Fetched::Diverging(self.position()),
            _ => Fetched::Snapshot(self.position()),
        };
        let high_watermark = Some(self.position().offset);
        let body = match self.below(5) {
            0 => ReplyBody::Vote { granted: self.0.chance(1, 2) },
            1 => ReplyBody::BeginEpoch,
            2 => ReplyBody::EndEpoch,
            3 => ReplyBody::Fetch(FetchReply { high_watermark, log_start: None, found }),
            _ => ReplyBody::FetchSnapshot(FetchSnapshotReply {
                id: self.position(),
                size: self.0.below(300),
                position: 0,
                bytes: batch(0),
            }),
        };
        Reply {
            refusal: refusals[self.below(5) as usize],
            epoch: self.epoch(),
            leader: (leader > 0).then_some(NodeId(leader)),
            leader_endpoints: self.endpoints(leader),
            body,
        }
    }
}

#[test]
fn nonsense_from_others_never_panics() {
    let mut states = std::collections::BTreeMap::new();
    for seed in 0..300 {
        let mut nonsense = Nonsense(Random::from_seed(seed), LeaderEpoch(0));
        let mut replica = voter();
        let mut time = 10;
        let mut asked = Vec::new();
        for n in 0..200 {
            time += nonsense.0.below(400);
            nonsense.1 = replica.quorum.epoch();
            match nonsense.below(5) {
                0..=1 => replica.handle(Event::Call { id: CallId(n), request: nonsense.request() }, at(time)),
                2 if !asked.is_empty() => {
                    let id = asked.swap_remove(nonsense.0.below(asked.len() as u64) as usize);
                    let mut reply = nonsense.reply();
                    if nonsense.0.chance(1, 2) {
                        (reply.refusal, reply.leader) = (None, None);
                        reply.body = ReplyBody::Vote { granted: true };
                    }
                    replica.handle(Event::Reply { id, reply }, at(time));
                }
                3 if replica.model.leads.is_some() => {
                    let _ = replica.append(&[Bytes::from_static(b"r")], at(time));
                }
                _ => replica.poll(at(time)),
            }
            asked.extend(replica.sent.drain(..).map(|sent| sent.id));
            while replica.fault.is_none() && nonsense.0.chance(3, 4) && replica.work(at(time)) {}
            *states.entry(format!("{:?}", replica.quorum.state())).or_insert(0) += 1;
            if replica.fault.is_some() {
                break;
            }
        }
    }
    assert!(states.len() >= 5, "{states:?}");
}
