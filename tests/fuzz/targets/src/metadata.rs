//! The metadata log as the states above the quorum read it, and the controller's requests.

use crate::golden;
use crate::memory::bounded;
use crate::messages::{api_and_version, api_messages, keyed};
use base::{Monotonic, NodeId, Now, Random, WallMillis};
use batch::{BatchView, Codec, Records};
use controller::{Circumstances, Controller, Options, Outcome, RequestContext, SERVED, bootstrap_records};
use image::{Batch, FeatureRange, Loader, MetadataImage, MetadataVersion, Provenance, Record};
use std::time::Duration;
use wire::{ApiKey, Decoder, RequestKind, ResponseKind};

const FACTOR: u64 = 2048;
const BASE: u64 = 4 << 20;

/// Records with their lengths, as one committed batch after the other; what is published is written as a snapshot, whose
/// replay says the same.
pub fn metadata_log(data: &[u8]) {
    let mut records: Vec<&[u8]> = Vec::new();
    let mut rest = data;
    while let Some((record, after)) = keyed(rest) {
        records.push(record);
        rest = after;
    }
    bounded(data, FACTOR, BASE, || {
        let mut loader = Loader::default();
        for (number, records) in records.chunks(3).enumerate() {
            let base_offset = number as i64 * 3;
            if loader.load_batch(&Batch { base_offset, epoch: 1, append_time: 5, records }).is_err() {
                return;
            }
            if let Some(publication) = loader.poll_publication() {
                crate::depth::reached();
                assert_replays(&publication.image);
            }
        }
    });
}

/// A snapshot of an image is read, and says the same as its own snapshot. At the newest level it says all that the image
/// did; an older one, or one without eligible leader replicas, cannot say all that a record of a newer one may have.
fn assert_replays(image: &MetadataImage) {
    let once = replayed(image);
    assert!(replayed(&once).says_the_same(&once), "a snapshot of a snapshot says the same");
    let newest = image.features.metadata_version == Some(MetadataVersion::LATEST);
    if newest && image.features.has_eligible_leader_replicas() {
        assert!(once.says_the_same(image), "a snapshot says what its image does");
    }
}

fn replayed(image: &MetadataImage) -> MetadataImage {
    let records: Vec<Vec<u8>> = image.records().map(|record| record.encode().to_vec()).collect();
    let mut again = Loader::default();
    let provenance = Provenance { offset: 1 << 20, ..image.provenance };
    again.load_snapshot(provenance, &records).expect("a snapshot of what was replayed is replayed");
    again.poll_publication().map_or_else(MetadataImage::default, |publication| publication.image)
}

fn options() -> Options {
    let range = |name: &str, min, max| (name.to_owned(), FeatureRange { min, max });
    Options {
        node: NodeId(1),
        cluster_id: "c".to_owned(),
        quorum_nodes: vec![NodeId(1)],
        settings: crate::options::broker().clone(),
        supported_features: [
            range("metadata.version", 7, 33),
            range("kraft.version", 0, 1),
            range("group.version", 0, 1),
            range("eligible.leader.replicas.version", 0, 1),
        ]
        .into(),
        bootstrap: bootstrap_records(
            MetadataVersion::LATEST,
            &[("eligible.leader.replicas.version".to_owned(), 1)].into(),
        ),
        session_timeout: Duration::from_secs(9),
        leader_balance_interval: Some(Duration::from_secs(300)),
        unclean_election_interval: Duration::from_secs(300),
        idle_interval: Some(Duration::from_millis(500)),
        fenced_may_reregister: true,
        largest_batch: 16 << 20,
    }
}

/// Requests with their lengths to a controller that leads an almost empty cluster. Its own records must apply (it panics
/// where they do not), be written and read again; every answer must have a form in the request's version.
pub fn controller_request(data: &[u8]) {
    bounded(data, FACTOR, 4 * BASE, || {
        let mut world = World::new();
        let mut rest = data;
        for _ in 0..20 {
            let Some((request, after)) = keyed(rest) else { break };
            rest = after;
            let Some((api, version, body)) = api_and_version(request) else { continue };
            if !SERVED.contains(&api) || !api.stable_versions().contains(version) {
                continue;
            }
            let mut d = Decoder::new(body);
            let Ok(request) = RequestKind::decode(api, version, &mut d) else { continue };
            world.ask(&request, version);
        }
        assert_replays(world.controller.committed_image());
    });
}

struct World {
    controller: Controller,
    random: Random,
    now: Now,
}

impl World {
    fn new() -> World {
        let now = Now { monotonic: Monotonic(1_000_000_000), wall: WallMillis(1_700_000_000_000) };
        let mut world = World { controller: Controller::new(options()), random: Random::from_seed(3), now };
        world.controller.claim(1, 1, now).expect("a new cluster");
        world.commit();
        world
    }

    fn commit(&mut self) {
        self.controller.on_committed(self.controller.next_offset() - 1);
    }

    fn ask(&mut self, request: &RequestKind, version: i16) {
        self.now.monotonic = self.now.monotonic + Duration::from_millis(100);
        let context = RequestContext::of_version(version);
        crate::depth::reached();
        for _ in 0..3 {
            let circumstances = Circumstances { now: self.now, choices: &mut self.random, kraft_version: 1 };
            let outcome = self.controller.handle(circumstances, &context, request).expect("it is served");
            for record in outcome.append().records() {
                let again = Record::decode(&record.encode()).expect("our own record is read");
                assert_eq!(&again, record);
            }
            self.commit();
            if let Outcome::Done { response, .. } = outcome {
                return assert_written(&response, version);
            }
        }
    }
}

fn assert_written(response: &ResponseKind, version: i16) {
    let mut bytes = bytes::BytesMut::new();
    response.encode(&mut bytes, version).unwrap_or_else(|error| panic!("{response:?}: {error}"));
}

/// The values in a file of the metadata log, each with its length.
fn values(file: &str) -> Vec<Vec<u8>> {
    let bytes = golden::file(file);
    let mut rest = &bytes[..];
    let mut values = Vec::new();
    while let Ok((view, after)) = BatchView::parse(rest) {
        rest = after;
        if view.is_control() || view.codec() != Ok(Codec::None) {
            continue;
        }
        for record in Records::new(view.body(), view.records_count()) {
            let value = record.expect("a golden record").value.expect("a metadata record has a value");
            values.push([&(value.len() as u16).to_be_bytes(), value].concat());
        }
    }
    values
}

pub fn metadata_log_seeds() -> Vec<Vec<u8>> {
    let log = values("metadata/apache/00000000000000000000.log");
    let snapshot = values("metadata/apache/00000000000000000076-0000000001.checkpoint");
    let sized = |record: Vec<u8>| [&(record.len() as u16).to_be_bytes(), &record[..]].concat();
    let mut seeds = vec![log.concat(), snapshot.concat()];
    seeds.extend(log.chunks(12).map(<[Vec<u8>]>::concat));
    // Every kind of record beside a topic, so that some of them have something to be about.
    let single = crate::messages::metadata_record_seeds();
    seeds.extend(single.into_iter().map(|record| [log[..log.len().min(20)].concat(), sized(record)].concat()));
    seeds
}

pub fn controller_request_seeds() -> Vec<Vec<u8>> {
    let one = |api: ApiKey, version: i16, body: &[u8]| {
        let request = [&api.code().to_be_bytes()[..], &version.to_be_bytes(), body].concat();
        [&(request.len() as u16).to_be_bytes(), &request[..]].concat()
    };
    let start = opening();
    let served = |(api, _): &(ApiKey, golden::GoldenMessage)| SERVED.contains(api);
    let requests: Vec<Vec<u8>> = api_messages("Request")
        .into_iter()
        .filter(served)
        .map(|(api, message)| one(api, message.version, &message.bytes))
        .collect();
    let mut seeds: Vec<Vec<u8>> = requests.iter().map(|request| [&start[..], request].concat()).collect();
    seeds.extend(requests.chunks(5).map(<[Vec<u8>]>::concat));
    seeds.push(start);
    seeds
}

/// A broker that registers and is unfenced, and a topic on it with settings.
fn opening() -> Vec<u8> {
    use wire::messages::*;
    let listener = broker_registration_request::Listener {
        name: "PLAINTEXT".into(),
        host: "localhost".into(),
        port: 9092,
        ..Default::default()
    };
    let feature = |name: &str, min, max| broker_registration_request::Feature {
        name: name.into(),
        min_supported_version: min,
        max_supported_version: max,
        ..Default::default()
    };
    let register = BrokerRegistrationRequest {
        broker_id: 1,
        cluster_id: "c".into(),
        incarnation_id: base::Uuid(9),
        listeners: vec![listener],
        features: vec![
            feature("metadata.version", 7, 33),
            feature("kraft.version", 0, 1),
            feature("eligible.leader.replicas.version", 0, 1),
        ],
        log_dirs: vec![base::Uuid(0x1_0000)],
        previous_broker_epoch: -1,
        ..Default::default()
    };
    // The first record of a broker's registration stands behind the bootstrap records; its offset is the epoch.
    let epoch = {
        let mut world = World::new();
        world.ask(&register.clone().into(), 4);
        let broker = world.controller.image().cluster.broker(NodeId(1)).expect("it is registered");
        broker.epoch.0
    };
    let beat = BrokerHeartbeatRequest {
        broker_id: 1,
        broker_epoch: epoch,
        current_metadata_offset: 1 << 30,
        want_fence: false,
        ..Default::default()
    };
    let create = |name: &str| CreateTopicsRequest {
        topics: vec![create_topics_request::CreatableTopic {
            name: name.into(),
            num_partitions: 3,
            replication_factor: 1,
            configs: vec![create_topics_request::CreatableTopicConfig {
                name: "retention.ms".into(),
                value: Some("1000".into()),
                ..Default::default()
            }],
            ..Default::default()
        }],
        timeout_ms: 1000,
        ..Default::default()
    };
    let requests: [(RequestKind, i16); 4] =
        [(register.into(), 4), (beat.into(), 1), (create("orders").into(), 7), (create("other").into(), 5)];
    let mut seed = Vec::new();
    for (request, version) in requests {
        let mut body = bytes::BytesMut::new();
        request.encode(&mut body, version).expect("a good request");
        seed.extend_from_slice(&(body.len() as u16 + 4).to_be_bytes());
        seed.extend_from_slice(&request.api().code().to_be_bytes());
        seed.extend_from_slice(&version.to_be_bytes());
        seed.extend_from_slice(&body);
    }
    seed
}
