//! The quorum: its directory as a start finds it, other replicas' messages, and whole conversations with them.

use crate::batches::mended;
use crate::golden;
use crate::memory::bounded;
use crate::messages::{api_and_version, api_messages, keyed};
use base::{LeaderEpoch, Monotonic, NodeId, Now, Offset, Random, Uuid, WallMillis};
use bytes::{Bytes, BytesMut};
use quorum::protocol::{decode_reply, decode_request, encode_reply, encode_request, refuse};
use quorum::{
    CallId, Config, DiskFailed, DiskRead, Endpoint, Event, FileName, FormatOptions, KRaftVersionRange, OffsetAndEpoch,
    Outputs, Quorum, ReplicaKey, RequestId, Source, Step, Voter, VoterSet, Whole, format, read_meta,
};
use std::collections::BTreeMap;
use std::time::Duration;
use wire::{ApiKey, Decoder, RequestKind, ResponseKind};

const FACTOR: u64 = 1024;
/// Batches and reads of the metadata log are of up to 8 MiB, and a replica has several at a time.
const BASE: u64 = 64 << 20;
const CLUSTER: &str = "VAZU95LYRcG9RbcNAfiwLA";
const LISTENER: &str = "CONTROLLER";
/// Events after which a conversation is over, whatever still waits.
const EVENTS_MAX: usize = 300;

fn key(id: i32) -> ReplicaKey {
    ReplicaKey { id: NodeId(id), directory: Some(Uuid(0x1000 + id as u128)) }
}

fn endpoint(id: i32) -> Endpoint {
    Endpoint { listener: LISTENER.into(), host: "127.0.0.1".into(), port: 9000 + id as u16 }
}

fn voters(ids: &[i32]) -> VoterSet {
    let voter = |id: &i32| Voter { key: key(*id), endpoints: vec![endpoint(*id)], versions: KRaftVersionRange::OURS };
    VoterSet::new(ids.iter().map(voter))
}

/// Files in memory; everything reaches them at once.
#[derive(Clone, Default)]
struct Disk(BTreeMap<FileName, Vec<u8>>);

impl Disk {
    fn formatted(ids: &[i32]) -> Disk {
        let options = FormatOptions {
            cluster_id: CLUSTER.into(),
            node_id: NodeId(1),
            directory_id: key(1).directory.expect("a replica knows its directory"),
            voters: voters(ids),
            bootstrap: vec![Bytes::from_static(b"bootstrap")],
        };
        let mut disk = Disk::default();
        format(&options, at(0)).iter().for_each(|step| disk.step(step));
        disk
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::CreateFolder | Step::Sync(_) | Step::SyncFolder(_) => {}
            Step::Create(file) => drop(self.0.insert(*file, Vec::new())),
            Step::Write { file, position, bytes } => {
                let content = self.0.get_mut(file).expect("files are created before they are written");
                let from = *position as usize;
                assert!(from <= content.len(), "a write of {file} leaves a hole");
                content.resize(content.len().max(from + bytes.len()), 0);
                content[from..from + bytes.len()].copy_from_slice(bytes);
            }
            Step::Truncate { file, length } => {
                self.0.get_mut(file).expect("only files that are there are cut").truncate(*length as usize);
            }
            Step::Rename { from, to } => {
                let content = self.0.remove(from).expect("only files that are there are renamed");
                self.0.insert(*to, content);
            }
            Step::Remove(file) => drop(self.0.remove(file)),
        }
    }

    fn read_now(&self, read: &DiskRead) -> Result<Bytes, DiskFailed> {
        let read = self.read(read.file, read.position, read.length as usize);
        read.map(Bytes::from).map_err(|error| DiskFailed(error.to_string()))
    }
}

impl Source for Disk {
    fn list(&self) -> std::io::Result<Vec<(FileName, u64)>> {
        Ok(self.0.iter().map(|(file, content)| (*file, content.len() as u64)).collect())
    }

    fn read(&self, file: FileName, position: u64, length: usize) -> std::io::Result<Vec<u8>> {
        let content = self.0.get(&file).ok_or(std::io::ErrorKind::NotFound)?;
        let from = usize::try_from(position).unwrap_or(usize::MAX).min(content.len());
        Ok(content[from..from.saturating_add(length).min(content.len())].to_vec())
    }
}

fn at(millis: u64) -> Now {
    let monotonic = Monotonic::ZERO + Duration::from_millis(millis);
    Now { monotonic, wall: WallMillis(1_790_000_000_000 + millis as i64) }
}

/// A replica whose disk does at once what it is asked.
struct Replica {
    quorum: Quorum,
    disk: Disk,
    millis: u64,
    waiting: Vec<RequestId>,
    events: usize,
    faulted: bool,
}

impl Replica {
    fn load(disk: Disk) -> Option<Replica> {
        let config = Config::voter(CLUSTER, key(1), vec![endpoint(1)]);
        let (quorum, report) = Quorum::load(config, &disk, at(0), Random::from_seed(1)).ok()?;
        let bytes: usize = disk.0.values().map(Vec::len).sum();
        assert!(report.torn_bytes <= bytes as u64);
        Some(Replica { quorum, disk, millis: 0, waiting: Vec::new(), events: 0, faulted: false })
    }

    fn handle(&mut self, event: Event) {
        let out = self.quorum.handle(event, at(self.millis));
        self.take(out);
    }

    fn take(&mut self, out: Outputs) {
        let mut queue = vec![out];
        while let Some(out) = queue.pop() {
            assert!(!self.faulted || out.jobs.is_empty(), "nothing comes after a fault");
            self.faulted |= out.fault.is_some();
            self.waiting.extend(out.requests.iter().map(|sent| sent.id));
            for request in &out.requests {
                let newest = encode_request(&request.request, 0, CLUSTER).api().versions().max;
                let message = encode_request(&request.request, newest, CLUSTER);
                message.encode(&mut BytesMut::new(), newest).expect("our own request has the newest version's form");
            }
            for (_, reply) in &out.replies {
                let message = encode_reply(reply, 0, LISTENER);
                for version in message.api().versions().iter() {
                    let message = encode_reply(reply, version, LISTENER);
                    message.encode(&mut BytesMut::new(), version).expect("our own reply has every version's form");
                }
            }
            for job in out.jobs {
                self.events += 1;
                if self.events > EVENTS_MAX {
                    return;
                }
                job.steps.iter().for_each(|step| self.disk.step(step));
                let done = Event::DiskDone { ticket: job.ticket, result: Ok(()) };
                queue.push(self.quorum.handle(done, at(self.millis)));
            }
            for read in out.reads {
                self.events += 1;
                if self.events > EVENTS_MAX {
                    return;
                }
                let done = Event::ReadDone { ticket: read.ticket, result: self.disk.read_now(&read) };
                queue.push(self.quorum.handle(done, at(self.millis)));
            }
        }
    }

    fn pass(&mut self, millis: u64) {
        self.millis += millis;
        let out = self.quorum.poll(at(self.millis));
        self.take(out);
    }
}

/// The files that a start reads, by number.
fn file_of(choice: u8) -> FileName {
    let snapshot = OffsetAndEpoch { offset: Offset(76), epoch: LeaderEpoch(1) };
    let files = [
        FileName::Whole(Whole::MetaProperties),
        FileName::Whole(Whole::QuorumState),
        FileName::Whole(Whole::LeaderEpochs),
        FileName::Whole(Whole::PartitionMetadata),
        FileName::Snapshot(OffsetAndEpoch::BOOTSTRAP),
        FileName::Log(Offset(0)),
        FileName::Index(Offset(0)),
        FileName::TimeIndex(Offset(0)),
        FileName::Snapshot(snapshot),
        FileName::BootstrapCheckpoint,
        FileName::Log(Offset(76)),
        FileName::Partial(snapshot),
    ];
    files[usize::from(choice) % files.len()]
}

const MEND: u8 = 0x80;

/// Which file, then its content in an otherwise good directory of a single voter; with the choice's highest bit the
/// batches in it have right checksums. What loads runs until it leads or stops.
pub fn quorum_directory(data: &[u8]) {
    let Some((choice, content)) = data.split_first() else { return };
    let content = if choice & MEND != 0 { mended(content) } else { content.to_vec() };
    let mut disk = Disk::formatted(&[1]);
    disk.0.insert(file_of(choice & !MEND), content);
    bounded(data, FACTOR, BASE, || {
        let _ = read_meta(&disk);
        let Some(mut replica) = Replica::load(disk) else { return };
        crate::depth::reached();
        for _ in 0..8 {
            replica.pass(700);
        }
        let _ = (replica.quorum.describe(at(replica.millis)), replica.quorum.next_deadline());
        // What a replica leaves behind is loaded again.
        let (disk, faulted) = (replica.disk.clone(), replica.faulted);
        if !faulted && replica.events <= EVENTS_MAX {
            assert!(Replica::load(disk).is_some(), "a directory that ran loads again");
        }
    });
}

/// API and version, a byte that says request or reply, then the message. Its meaning survives being sent on.
pub fn quorum_message(data: &[u8]) {
    let Some((api, version, rest)) = api_and_version(data) else { return };
    let Some((kind, body)) = rest.split_first() else { return };
    if !QUORUM_APIS.contains(&api) {
        return;
    }
    bounded(data, FACTOR, 1 << 20, || {
        if kind & 1 == 0 {
            let Ok(message) = RequestKind::decode(api, version, &mut Decoder::new(body)) else { return };
            match decode_request(&message, version, CLUSTER) {
                Ok(request) => {
                    crate::depth::reached();
                    let sent = encode_request(&request, version, CLUSTER);
                    sent.encode(&mut BytesMut::new(), version).expect("a request has its version's form");
                    // Limits are cut to ours once.
                    let once = decode_request(&sent, version, CLUSTER).expect("our own form is read");
                    let again = decode_request(&encode_request(&once, version, CLUSTER), version, CLUSTER);
                    assert_eq!(again, Ok(once));
                }
                Err(refusal) => {
                    let answer = refuse(&message, refusal);
                    answer.encode(&mut BytesMut::new(), version).expect("a refusal has its version's form");
                }
            }
        } else {
            let Ok(message) = ResponseKind::decode(api, version, &mut Decoder::new(body)) else { return };
            let Ok(reply) = decode_reply(&message, LISTENER) else { return };
            crate::depth::reached();
            let sent = encode_reply(&reply, version, LISTENER);
            sent.encode(&mut BytesMut::new(), version).expect("a reply has its version's form");
            let once = decode_reply(&sent, LISTENER).expect("our own form is read");
            assert_eq!(decode_reply(&encode_reply(&once, version, LISTENER), LISTENER), Ok(once));
        }
    });
}

const QUORUM_APIS: [ApiKey; 5] =
    [ApiKey::Vote, ApiKey::BeginQuorumEpoch, ApiKey::EndQuorumEpoch, ApiKey::Fetch, ApiKey::FetchSnapshot];

/// Messages with their lengths, as `quorum_message` has them, to one replica of three: requests are calls, replies answer
/// the oldest request that waits. The last byte of each says how much time passes.
pub fn quorum_conversation(data: &[u8]) {
    let disk = Disk::formatted(&[1, 2, 3]);
    bounded(data, FACTOR, BASE, || {
        let mut replica = Replica::load(disk).expect("a formatted directory loads");
        replica.pass(0);
        let mut rest = data;
        for number in 0..30 {
            let Some((message, after)) = keyed(rest) else { break };
            rest = after;
            if replica.faulted || replica.events > EVENTS_MAX {
                return;
            }
            replica.pass(message.last().map_or(0, |last| u64::from(*last) * 10));
            let Some((api, version, message)) = api_and_version(message) else { continue };
            let Some((kind, body)) = message.split_first() else { continue };
            if !QUORUM_APIS.contains(&api) {
                continue;
            }
            if kind & 1 == 0 {
                let Ok(message) = RequestKind::decode(api, version, &mut Decoder::new(body)) else { continue };
                let Ok(request) = decode_request(&message, version, CLUSTER) else { continue };
                crate::depth::reached();
                replica.handle(Event::Call { id: CallId(number), request });
            } else if let Some(id) = replica.waiting.first().copied() {
                let Ok(message) = ResponseKind::decode(api, version, &mut Decoder::new(body)) else { continue };
                replica.waiting.remove(0);
                match decode_reply(&message, LISTENER) {
                    Ok(reply) => {
                        crate::depth::reached();
                        replica.handle(Event::Reply { id, reply });
                    }
                    Err(_) => replica.handle(Event::NoReply { id }),
                }
            }
        }
        replica.pass(3000);
    });
}

pub fn quorum_directory_seeds() -> Vec<Vec<u8>> {
    let disk = Disk::formatted(&[1]);
    let mut ran = Replica::load(disk.clone()).expect("a formatted directory loads");
    (0..4).for_each(|_| ran.pass(700));
    let apache_log = golden::file("metadata/apache/00000000000000000000.log");
    let apache_snapshot = golden::file("metadata/apache/00000000000000000076-0000000001.checkpoint");
    let apache_bootstrap = golden::file("metadata/apache/00000000000000000000-0000000000.checkpoint");
    let mut seeds = Vec::new();
    for choice in 0..12u8 {
        let file = file_of(choice);
        let ours = [&disk, &ran.disk].into_iter().filter_map(|disk| disk.0.get(&file).cloned());
        let apaches = match file {
            FileName::Log(_) => Some(apache_log.clone()),
            FileName::Snapshot(id) if id == OffsetAndEpoch::BOOTSTRAP => Some(apache_bootstrap.clone()),
            FileName::Snapshot(_) | FileName::Partial(_) | FileName::BootstrapCheckpoint => {
                Some(apache_snapshot.clone())
            }
            _ => None,
        };
        for content in ours.chain(apaches).chain([Vec::new()]) {
            seeds.push([&[choice], &content[..]].concat());
            seeds.push([&[choice | MEND], &content[..]].concat());
        }
    }
    seeds
}

fn message_seed(api: ApiKey, version: i16, kind: u8, body: &[u8]) -> Vec<u8> {
    [&api.code().to_be_bytes()[..], &version.to_be_bytes(), &[kind], body].concat()
}

/// What a quorum says, in every version that can say it; `newest` leaves the older ones out.
fn our_messages(newest: bool) -> Vec<Vec<u8>> {
    let versions = |api: ApiKey| {
        let range = api.versions();
        if newest { range.max..=range.max } else { range.iter() }
    };
    let mut seeds = Vec::new();
    for request in requests() {
        let api = encode_request(&request, 0, CLUSTER).api();
        for version in versions(api) {
            let mut body = BytesMut::new();
            // A version that lacks a field, such as one before pre-votes, is not asked in.
            if encode_request(&request, version, CLUSTER).encode(&mut body, version).is_ok() {
                seeds.push(message_seed(api, version, 0, &body));
            }
        }
    }
    for reply in replies() {
        let api = encode_reply(&reply, 0, LISTENER).api();
        for version in versions(api) {
            let mut body = BytesMut::new();
            encode_reply(&reply, version, LISTENER)
                .encode(&mut body, version)
                .expect("a reply has every version's form");
            seeds.push(message_seed(api, version, 1, &body));
        }
    }
    seeds
}

fn replies() -> Vec<quorum::Reply> {
    use quorum::*;
    let batch = golden::batches().swap_remove(0);
    let fetched =
        |found| ReplyBody::Fetch(FetchReply { high_watermark: Some(Offset(1)), log_start: Some(Offset(0)), found });
    let end = OffsetAndEpoch { offset: Offset(2), epoch: LeaderEpoch(0) };
    let snapshot = FetchSnapshotReply { id: end, size: 100, position: 0, bytes: Bytes::from_static(b"part") };
    let bodies = vec![
        (0, ReplyBody::Vote { granted: true }),
        (1, ReplyBody::Vote { granted: true }),
        (1, ReplyBody::BeginEpoch),
        (1, fetched(Fetched::Batches(Vec::new()))),
        (5, fetched(Fetched::Batches(vec![Bytes::from(batch)]))),
        (5, fetched(Fetched::Diverging(end))),
        (5, fetched(Fetched::Snapshot(end))),
        (5, ReplyBody::FetchSnapshot(snapshot)),
        (5, ReplyBody::EndEpoch),
    ];
    let reply = |(epoch, body)| Reply {
        refusal: None,
        epoch: LeaderEpoch(epoch),
        leader: (epoch > 1).then_some(NodeId(2)),
        leader_endpoints: vec![endpoint(2)],
        body,
    };
    let mut replies: Vec<Reply> = bodies.into_iter().map(reply).collect();
    let refused = replies.iter().map(|reply| Reply { refusal: Some(Refusal::FencedLeaderEpoch), ..reply.clone() });
    replies.extend(refused.collect::<Vec<_>>());
    replies
}

fn requests() -> Vec<quorum::Request> {
    use quorum::*;
    let last = OffsetAndEpoch { offset: Offset(3), epoch: LeaderEpoch(1) };
    let vote = |epoch, pre_vote| {
        Request::Vote(VoteRequest { voter: Some(key(1)), candidate: key(2), epoch: LeaderEpoch(epoch), last, pre_vote })
    };
    let begin = BeginEpochRequest {
        voter: Some(key(1)),
        leader: NodeId(2),
        epoch: LeaderEpoch(5),
        endpoints: vec![endpoint(2)],
    };
    let end = EndEpochRequest {
        leader: NodeId(2),
        epoch: LeaderEpoch(5),
        successors: vec![key(1), key(3)],
        endpoints: vec![endpoint(2)],
    };
    let fetch = FetchRequest {
        replica: Some(key(3)),
        epoch: LeaderEpoch(5),
        offset: Offset(0),
        last_epoch: LeaderEpoch(0),
        wait_ms: 500,
        max_bytes: 1 << 20,
        high_watermark: None,
    };
    let snapshot = FetchSnapshotRequest {
        replica: Some(key(3)),
        epoch: LeaderEpoch(5),
        id: OffsetAndEpoch::BOOTSTRAP,
        position: 0,
        max_bytes: 1 << 20,
    };
    vec![
        vote(4, true),
        vote(4, false),
        Request::BeginEpoch(begin),
        Request::Fetch(fetch),
        Request::FetchSnapshot(snapshot),
        Request::EndEpoch(end),
        vote(9, false),
    ]
}

/// Ours, and Apache's newest, most of which are about other topics.
pub fn quorum_message_seeds() -> Vec<Vec<u8>> {
    let mut seeds = our_messages(false);
    for (kind, name) in [(0, "Request"), (1, "Response")] {
        for (api, message) in api_messages(name) {
            if QUORUM_APIS.contains(&api) && message.version == api.versions().max {
                seeds.push(message_seed(api, message.version, kind, &message.bytes));
            }
        }
    }
    seeds
}

/// Runs of messages: an election won, a leader followed, and both in other orders.
pub fn quorum_conversation_seeds() -> Vec<Vec<u8>> {
    let messages: Vec<Vec<u8>> = our_messages(true)
        .into_iter()
        .map(|mut message| {
            // The last byte, which no decoder looks at, is the time that passes.
            message.push(20);
            [&(message.len() as u16).to_be_bytes(), &message[..]].concat()
        })
        .collect();
    let asked = requests().len();
    let (requests, replies) = messages.split_at(asked);
    let mut seeds: Vec<Vec<u8>> =
        (0..asked).map(|first| [&requests[first..], &requests[..first]].concat().concat()).collect();
    for request in requests {
        for some in replies.chunks(4) {
            seeds.push([request, &some.concat()[..], request].concat());
        }
    }
    let won = [&replies[0], &replies[0], &replies[1], &replies[1], &replies[2], &replies[2]].map(|r| &r[..]).concat();
    seeds.push([&won[..], &requests.concat()].concat());
    seeds.push(messages.concat());
    seeds
}
