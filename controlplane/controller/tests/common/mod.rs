//! What the tests share: options as the recorded controller had them, and reading its recordings.
#![allow(dead_code)]

use base::{Monotonic, NodeId, Now, Uuid, WallMillis};
use image::{FeatureRange, MetadataVersion, Record};
use pollux_controller::{Choices, Options, bootstrap_records};
use settings::{BrokerSettings, Texts};
use std::collections::VecDeque;
use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

pub const CLUSTER: &str = "4L6g3nShT-eMCtK--X86sw";

pub fn options() -> Options {
    let file = [
        ("node.id", "1"),
        ("process.roles", "controller"),
        ("controller.quorum.voters", "1@localhost:19099"),
        ("listeners", "CONTROLLER://localhost:19099"),
        ("controller.listener.names", "CONTROLLER"),
        ("num.partitions", "2"),
        ("default.replication.factor", "2"),
    ];
    let file: Texts = file.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let range = |name: &str, min, max| (name.to_owned(), FeatureRange { min, max });
    Options {
        node: NodeId(1),
        cluster_id: CLUSTER.to_owned(),
        quorum_nodes: vec![NodeId(1)],
        settings: BrokerSettings::from_file(&file).expect("the file is right"),
        supported_features: [
            range("metadata.version", 7, 33),
            range("kraft.version", 0, 1),
            range("transaction.version", 0, 2),
            range("group.version", 0, 1),
            range("eligible.leader.replicas.version", 0, 1),
            range("share.version", 0, 2),
            range("streams.version", 0, 1),
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
        fenced_may_reregister: false,
        largest_batch: u32::MAX,
    }
}

/// java.util.Random: the recorded placements were drawn from it.
pub struct JavaRandom {
    seed: u64,
    pub topic_ids: VecDeque<Uuid>,
}

impl JavaRandom {
    pub fn new(seed: u64) -> JavaRandom {
        JavaRandom { seed: (seed ^ 0x5_DEEC_E66D) & ((1 << 48) - 1), topic_ids: VecDeque::new() }
    }

    fn next_31(&mut self) -> i32 {
        self.seed = self.seed.wrapping_mul(0x5_DEEC_E66D).wrapping_add(0xB) & ((1 << 48) - 1);
        (self.seed >> 17) as i32
    }
}

impl Choices for JavaRandom {
    fn below(&mut self, bound: usize) -> usize {
        let bound = bound as i32;
        if bound & (bound - 1) == 0 {
            return ((i64::from(bound) * i64::from(self.next_31())) >> 31) as usize;
        }
        loop {
            let bits = self.next_31();
            let value = bits % bound;
            if bits.wrapping_sub(value).wrapping_add(bound - 1) >= 0 {
                return value as usize;
            }
        }
    }

    fn topic_id(&mut self) -> Uuid {
        self.topic_ids.pop_front().unwrap_or(Uuid(7))
    }
}

pub fn now(millis: u64) -> Now {
    Now { monotonic: Monotonic(millis * 1_000_000), wall: WallMillis(1_700_000_000_000 + millis as i64) }
}

pub fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/metadata").join(name)
}

pub fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).expect("it is hex")).collect()
}

/// One step of a recording: what was asked (API, version, body) or the milliseconds let pass, and what came of it.
pub struct Step {
    pub request: Option<(i16, i16, Vec<u8>)>,
    /// Time passes in these steps; which of them finds an ended session is up to a hash table of Kafka's.
    pub millis: Vec<u64>,
    pub response: Vec<u8>,
    pub records: Vec<Record>,
}

pub fn recording(path: &std::path::Path) -> (u64, Vec<Step>) {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut text = String::new();
    if path.extension().is_some_and(|e| e == "gz") {
        flate2::read::GzDecoder::new(&bytes[..]).read_to_string(&mut text).expect("it is gzip");
    } else {
        text = String::from_utf8(bytes).expect("it is text");
    }
    let (mut seed, mut steps) = (0, Vec::<Step>::new());
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let empty = Step { request: None, millis: Vec::new(), response: Vec::new(), records: Vec::new() };
        match words[0] {
            "S" => seed = words[3].parse().expect("a seed"),
            "A" => {
                let (api, version) = (words[1].parse().expect("an API"), words[2].parse().expect("a version"));
                steps.push(Step { request: Some((api, version, unhex(words.get(3).unwrap_or(&"")))), ..empty });
            }
            "T" => {
                let more = words[1].parse().expect("milliseconds");
                match steps.last_mut() {
                    Some(last) if last.request.is_none() => last.millis.push(more),
                    _ => steps.push(Step { millis: vec![more], ..empty }),
                }
            }
            "R" => steps.last_mut().expect("a request before").response = unhex(words.get(1).unwrap_or(&"")),
            "M" => {
                let record = Record::decode(&unhex(words[1])).expect("Apache's records are read");
                steps.last_mut().expect("a step before").records.push(record);
            }
            other => panic!("a line of kind {other}"),
        }
    }
    (seed, steps)
}
