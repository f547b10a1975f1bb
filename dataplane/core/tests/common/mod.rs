//! A dataplane in this process, and the two ends that a test plays: the control plane at the link, a client at the
//! listener.
#![allow(dead_code, reason = "each test uses what it needs")]

use base::*;
use batch::BatchBuilder;
use bytes::{Bytes, BytesMut};
use link::*;
use pollux_data_core::{DataplaneOptions, run};
use settings::NodeConfig;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;
use wire::messages::*;
use wire::{Decoder, KafkaString, Message, Request, encode_request};

pub const CLUSTER: &str = "AAAAAAAAAAAAAAAAAAAAAQ";
pub const TOPIC: TopicId = TopicId(Uuid(4242));
pub const DEADLINE: Duration = Duration::from_secs(20);

pub struct Directory(pub PathBuf);

impl Directory {
    pub fn new(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("pollux-core-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Directory(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub struct Dataplane {
    pub thread: std::thread::JoinHandle<()>,
    pub address: String,
}

pub fn start(directory: &Path, ephemeral: bool, set: &[&str]) -> Dataplane {
    start_with(directory, ephemeral, &[&["listen=\"127.0.0.1:0\""], set].concat())
}

pub fn start_with(directory: &Path, ephemeral: bool, set: &[&str]) -> Dataplane {
    let mut overrides = vec![format!("directory={:?}", directory.display())];
    overrides.extend(set.iter().map(|set| (*set).to_owned()));
    let options = DataplaneOptions {
        config: NodeConfig::laptop(&overrides).unwrap(),
        namespace: directory.join("namespace"),
        ephemeral,
        has_run: directory.join("namespace").exists(),
        cluster_id: CLUSTER.into(),
        directory_id: Uuid(99),
        link: directory.join("link.sock"),
        counters: directory.join("counters"),
        seed: 7,
        log_lines_dropped: || 0,
    };
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        run(options, move |address| sender.send(address).unwrap()).unwrap();
    });
    let address = receiver.recv_timeout(DEADLINE).expect("it listens");
    Dataplane { thread, address }
}

/// The control plane, as far as the link shows it.
pub struct ControlPlane {
    pub socket: UnixStream,
    pub framer: Framer,
    pub hello: Option<Box<UpHello>>,
}

impl ControlPlane {
    pub fn connect(directory: &Path) -> ControlPlane {
        let socket = UnixStream::connect(directory.join("link.sock")).unwrap();
        socket.set_read_timeout(Some(DEADLINE)).unwrap();
        let mut plane = ControlPlane { socket, framer: Framer::default(), hello: None };
        let Up::Hello(hello) = plane.next() else { panic!("hello comes first") };
        plane.hello = Some(hello);
        plane
    }

    pub fn next(&mut self) -> Up {
        loop {
            if let Some(message) = self.framer.poll_message().unwrap() {
                return message;
            }
            let mut bytes = [0; 65536];
            let count = self.socket.read(&mut bytes).unwrap();
            assert!(count > 0, "the link closed");
            self.framer.push(&bytes[..count]);
        }
    }

    pub fn wait(&mut self, mut wanted: impl FnMut(&Up) -> bool) -> Up {
        loop {
            let message = self.next();
            if wanted(&message) {
                return message;
            }
        }
    }

    pub fn say(&mut self, message: Down) {
        let mut bytes = Vec::new();
        frame::encode(&message, &mut bytes);
        self.socket.write_all(&bytes).unwrap();
    }

    /// States everything a node with one topic of `partitions` has to know.
    pub fn state(&mut self, offset: i64, epoch: i32, partitions: i32) {
        let hello = self.hello.clone().unwrap();
        self.say(Down::Hello(DownHello {
            protocol_version: PROTOCOL_VERSION,
            cluster_id: CLUSTER.into(),
            node_id: NodeId(1),
            incarnation: Uuid(5),
        }));
        let provenance =
            Provenance { cluster_id: CLUSTER.into(), quorum_epoch: 1, metadata_offset: offset, caught_up: true };
        let duties = (0..partitions).map(|index| Duty {
            partition: PartitionId { topic: TOPIC, index: PartitionIndex(index) },
            topic_name: "t".into(),
            created_at: 1,
            leader: Some(NodeId(1)),
            leader_epoch: LeaderEpoch(epoch),
            partition_epoch: PartitionEpoch(epoch),
            replicas: vec![NodeId(1)],
            isr: vec![NodeId(1)],
            recovering: false,
            config: vec![],
        });
        let duties = duties.collect();
        let part = DutiesPart { provenance: provenance.clone(), image: true, last: true, duties, removals: vec![] };
        self.say(Down::Duties(Box::new(part)));
        let listener = hello.listeners[0].clone();
        let view_partitions = (0..partitions).map(|index| ViewPartition {
            index: PartitionIndex(index),
            leader: Some(NodeId(1)),
            leader_epoch: LeaderEpoch(epoch),
            partition_epoch: PartitionEpoch(epoch),
            replicas: vec![NodeId(1)],
            isr: vec![NodeId(1)],
            eligible_leader_replicas: vec![],
            last_known_elr: vec![],
            offline: vec![],
        });
        let changes = vec![
            ViewChange::Broker(ViewBroker {
                id: NodeId(1),
                epoch: BrokerEpoch(1),
                incarnation: Uuid(5),
                rack: None,
                fenced: false,
                in_controlled_shutdown: false,
                listeners: vec![(listener.name, listener.advertised_host, listener.advertised_port, 0)],
            }),
            ViewChange::Topic(ViewTopic { id: TOPIC, name: "t".into(), partitions: view_partitions.collect() }),
        ];
        self.say(Down::View(Box::new(ViewPart { provenance, image: true, last: true, changes })));
        self.say(Down::ProducerIds { first: 1000, count: 1000 });
        let mut waiting = 2;
        while waiting > 0 {
            match self.next() {
                Up::DutiesApplied { metadata_offset } | Up::ViewApplied { metadata_offset } => {
                    assert_eq!(metadata_offset, offset);
                    waiting -= 1;
                }
                _ => {}
            }
        }
    }

    pub fn stop(mut self, dataplane: Dataplane) {
        self.say(Down::Stop);
        self.wait(|up| matches!(up, Up::Stopped));
        dataplane.thread.join().unwrap();
    }
}

pub struct Client {
    pub socket: TcpStream,
    pub next: i32,
}

impl Client {
    pub fn connect(dataplane: &Dataplane) -> Client {
        let socket = TcpStream::connect(&dataplane.address).unwrap();
        socket.set_read_timeout(Some(DEADLINE)).unwrap();
        socket.set_nodelay(true).unwrap();
        Client { socket, next: 0 }
    }

    pub fn ask<R: Request>(&mut self, version: i16, body: &R) -> R::Response
    where
        R::Response: Message,
    {
        self.try_ask(version, body).expect("the connection stays")
    }

    pub fn try_ask<R: Request>(&mut self, version: i16, body: &R) -> std::io::Result<R::Response>
    where
        R::Response: Message,
    {
        self.next += 1;
        let mut out = BytesMut::new();
        encode_request(&mut out, version, self.next, Some("test"), body).unwrap();
        self.socket.write_all(&out)?;
        let mut size = [0; 4];
        self.socket.read_exact(&mut size)?;
        let mut bytes = vec![0; i32::from_be_bytes(size) as usize];
        self.socket.read_exact(&mut bytes)?;
        let bytes = Bytes::from(bytes);
        let mut d = Decoder::shared(&bytes);
        assert_eq!(wire::read_response_header(&mut d, R::API, version), Ok(self.next));
        let response = R::Response::decode(&mut d, version).unwrap();
        d.finish().unwrap();
        Ok(response)
    }

    pub fn produce(&mut self, partition: i32, records: Bytes) -> produce_response::PartitionProduceResponse {
        self.try_produce(partition, records).expect("the connection stays")
    }

    pub fn try_produce(
        &mut self,
        partition: i32,
        records: Bytes,
    ) -> std::io::Result<produce_response::PartitionProduceResponse> {
        use produce_request::{PartitionProduceData, TopicProduceData};
        let data = PartitionProduceData { index: partition, records: Some(records), ..Default::default() };
        let topic = TopicProduceData { name: KafkaString::from("t"), partition_data: vec![data], ..Default::default() };
        let request = ProduceRequest { acks: -1, timeout_ms: 5000, topic_data: vec![topic], ..Default::default() };
        Ok(self.try_ask(9, &request)?.responses.remove(0).partition_responses.remove(0))
    }

    pub fn fetch(&mut self, partition: i32, offset: i64, wait_ms: i32) -> fetch_response::PartitionData {
        self.fetch_of(partition, offset, wait_ms, 1 << 20)
    }

    pub fn fetch_of(
        &mut self,
        partition: i32,
        offset: i64,
        wait_ms: i32,
        bytes_max: i32,
    ) -> fetch_response::PartitionData {
        let asked = fetch_request::FetchPartition {
            partition,
            fetch_offset: offset,
            partition_max_bytes: bytes_max,
            ..Default::default()
        };
        let topic =
            fetch_request::FetchTopic { topic: KafkaString::from("t"), partitions: vec![asked], ..Default::default() };
        let request = FetchRequest {
            max_wait_ms: wait_ms,
            min_bytes: 1,
            max_bytes: 50 << 20,
            topics: vec![topic],
            ..Default::default()
        };
        self.ask(11, &request).responses.remove(0).partitions.remove(0)
    }
}

pub fn records(values: &[&str]) -> Bytes {
    let mut builder = BatchBuilder::new();
    for (i, value) in values.iter().enumerate() {
        builder.append(WallMillis(1_700_000_000_000 + i as i64), None, Some(value.as_bytes()), &[]);
    }
    Bytes::from(builder.build())
}

pub fn values(data: &fetch_response::PartitionData) -> Vec<(i64, String)> {
    let bytes = data.records.clone().unwrap_or_default();
    let mut all = Vec::new();
    for view in batch::Batches::new(&bytes) {
        let view = view.unwrap();
        for record in view.records().expect("uncompressed") {
            let record = record.unwrap();
            let text = String::from_utf8(record.value.unwrap().to_vec()).unwrap();
            all.push((view.base_offset().0 + i64::from(record.offset_delta), text));
        }
    }
    all
}

/// Whether a client is served: it asks, and is answered or finds its connection closed.
pub fn is_served(client: &mut Client) -> bool {
    let mut out = BytesMut::new();
    encode_request(&mut out, 0, 1, Some("test"), &ApiVersionsRequest::default()).unwrap();
    // The other side may have closed before this is written.
    let _ = client.socket.write_all(&out);
    let mut size = [0; 4];
    let served = client.socket.read_exact(&mut size).is_ok();
    if served {
        let mut rest = vec![0; i32::from_be_bytes(size) as usize];
        client.socket.read_exact(&mut rest).unwrap();
    }
    served
}
