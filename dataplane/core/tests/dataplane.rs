//! The dataplane of the kernel build, whole, in this process: the test plays the control plane at the link's other end and
//! a client at the listener.

use base::*;
use batch::BatchBuilder;
use bytes::{Bytes, BytesMut};
use link::*;
use nvme_format::Superblock;
use nvme_format::region::superblock_candidates;
use nvme_format::superblock::{FlushMethod, Reading, choose, read};
use pollux_data_core::{DataplaneOptions, run};
use settings::NodeConfig;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use wire::messages::*;
use wire::{ApiKey, Decoder, KafkaString, Message, Request, encode_request};

const CLUSTER: &str = "AAAAAAAAAAAAAAAAAAAAAQ";
const TOPIC: TopicId = TopicId(Uuid(4242));
const DEADLINE: Duration = Duration::from_secs(20);

struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
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

struct Dataplane {
    thread: std::thread::JoinHandle<()>,
    address: String,
}

fn start(directory: &Path, ephemeral: bool, set: &[&str]) -> Dataplane {
    start_with(directory, ephemeral, &[&["listen=\"127.0.0.1:0\""], set].concat())
}

fn start_with(directory: &Path, ephemeral: bool, set: &[&str]) -> Dataplane {
    let mut overrides = vec![format!("directory={:?}", directory.display())];
    overrides.extend(set.iter().map(|set| (*set).to_owned()));
    let options = DataplaneOptions {
        config: NodeConfig::laptop(&overrides).unwrap(),
        namespace: directory.join("namespace"),
        ephemeral,
        has_run: false,
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
struct ControlPlane {
    socket: UnixStream,
    framer: Framer,
    hello: Option<Box<UpHello>>,
}

impl ControlPlane {
    fn connect(directory: &Path) -> ControlPlane {
        let socket = UnixStream::connect(directory.join("link.sock")).unwrap();
        socket.set_read_timeout(Some(DEADLINE)).unwrap();
        let mut plane = ControlPlane { socket, framer: Framer::default(), hello: None };
        let Up::Hello(hello) = plane.next() else { panic!("hello comes first") };
        plane.hello = Some(hello);
        plane
    }

    fn next(&mut self) -> Up {
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

    fn wait(&mut self, mut wanted: impl FnMut(&Up) -> bool) -> Up {
        loop {
            let message = self.next();
            if wanted(&message) {
                return message;
            }
        }
    }

    fn say(&mut self, message: Down) {
        let mut bytes = Vec::new();
        frame::encode(&message, &mut bytes);
        self.socket.write_all(&bytes).unwrap();
    }

    /// States everything a node with one topic of `partitions` has to know.
    fn state(&mut self, offset: i64, epoch: i32, partitions: i32) {
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

    fn stop(mut self, dataplane: Dataplane) {
        self.say(Down::Stop);
        self.wait(|up| matches!(up, Up::Stopped));
        dataplane.thread.join().unwrap();
    }
}

struct Client {
    socket: TcpStream,
    next: i32,
}

impl Client {
    fn connect(dataplane: &Dataplane) -> Client {
        let socket = TcpStream::connect(&dataplane.address).unwrap();
        socket.set_read_timeout(Some(DEADLINE)).unwrap();
        socket.set_nodelay(true).unwrap();
        Client { socket, next: 0 }
    }

    fn ask<R: Request>(&mut self, version: i16, body: &R) -> R::Response
    where
        R::Response: Message,
    {
        self.next += 1;
        let mut out = BytesMut::new();
        encode_request(&mut out, version, self.next, Some("test"), body).unwrap();
        self.socket.write_all(&out).unwrap();
        let mut size = [0; 4];
        self.socket.read_exact(&mut size).unwrap();
        let mut bytes = vec![0; i32::from_be_bytes(size) as usize];
        self.socket.read_exact(&mut bytes).unwrap();
        let bytes = Bytes::from(bytes);
        let mut d = Decoder::shared(&bytes);
        assert_eq!(wire::read_response_header(&mut d, R::API, version), Ok(self.next));
        let response = R::Response::decode(&mut d, version).unwrap();
        d.finish().unwrap();
        response
    }

    fn produce(&mut self, partition: i32, records: Bytes) -> produce_response::PartitionProduceResponse {
        use produce_request::{PartitionProduceData, TopicProduceData};
        let data = PartitionProduceData { index: partition, records: Some(records), ..Default::default() };
        let topic = TopicProduceData { name: KafkaString::from("t"), partition_data: vec![data], ..Default::default() };
        let request = ProduceRequest { acks: -1, timeout_ms: 5000, topic_data: vec![topic], ..Default::default() };
        self.ask(9, &request).responses.remove(0).partition_responses.remove(0)
    }

    fn fetch(&mut self, partition: i32, offset: i64, wait_ms: i32) -> fetch_response::PartitionData {
        self.fetch_of(partition, offset, wait_ms, 1 << 20)
    }

    fn fetch_of(&mut self, partition: i32, offset: i64, wait_ms: i32, bytes_max: i32) -> fetch_response::PartitionData {
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

fn records(values: &[&str]) -> Bytes {
    let mut builder = BatchBuilder::new();
    for (i, value) in values.iter().enumerate() {
        builder.append(WallMillis(1_700_000_000_000 + i as i64), None, Some(value.as_bytes()), &[]);
    }
    Bytes::from(builder.build())
}

fn values(data: &fetch_response::PartitionData) -> Vec<(i64, String)> {
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

#[test]
fn a_client_produces_and_reads_back_also_without_the_control_plane() {
    for (name, set) in [("one", &["cores=[0]"][..]), ("cache", &["durability=\"cache\"", "cores=[0]"])] {
        let directory = Directory::new(name);
        let dataplane = start(&directory.0, false, &[set, &["size=\"256MiB\""]].concat());
        let mut plane = ControlPlane::connect(&directory.0);
        plane.state(10, 0, 3);
        let mut client = Client::connect(&dataplane);
        let metadata = client.ask(12, &MetadataRequest { topics: None, ..Default::default() });
        assert_eq!(metadata.topics[0].partitions.len(), 3);
        let first = client.produce(1, records(&["a", "b"]));
        assert_eq!((first.error_code, first.base_offset), (0, 0));
        assert_eq!(client.produce(1, records(&["c"])).base_offset, 2);
        let expected = vec![(0, "a".to_owned()), (1, "b".to_owned()), (2, "c".to_owned())];
        let read = client.fetch(1, 0, 500);
        assert_eq!((values(&read), read.high_watermark), (expected.clone(), 3));
        drop(plane);
        assert_eq!(client.produce(2, records(&["alone"])).base_offset, 0);
        let ids = client.ask(4, &InitProducerIdRequest { transactional_id: None, ..Default::default() });
        assert_eq!((ids.error_code, ids.producer_id >= 1000), (0, true));
        assert_eq!(values(&client.fetch(2, 0, 500)).len(), 1);
        // A control plane comes back and stops the node; what was acknowledged is there afterwards.
        let mut plane = ControlPlane::connect(&directory.0);
        plane.state(11, 0, 3);
        plane.stop(dataplane);
        let dataplane = start(&directory.0, false, &[set, &["size=\"256MiB\""]].concat());
        let mut plane = ControlPlane::connect(&directory.0);
        assert!(plane.hello.as_ref().unwrap().clean_stop);
        plane.state(20, 1, 3);
        let mut client = Client::connect(&dataplane);
        assert_eq!(values(&client.fetch(1, 0, 500)), expected);
        assert_eq!(client.produce(1, records(&["d"])).base_offset, 3);
        plane.stop(dataplane);
    }
}

/// The superblock of a stopped node and those of its copies that differ.
fn superblock(directory: &Path) -> (Superblock, Vec<usize>) {
    let namespace = std::fs::read(directory.join("namespace")).unwrap();
    let block = |at: Block| &namespace[at.0 as usize * BLOCK_SIZE..][..BLOCK_SIZE];
    let blocks = (namespace.len() / BLOCK_SIZE) as u64;
    let places = superblock_candidates(blocks).into_iter().map(|places| (places, read(places.map(block))));
    match choose(blocks, places) {
        (_, Reading::Present { superblock, differing }) => (*superblock, differing),
        (_, other) => panic!("{other:?}"),
    }
}

/// Whenever it is told to stop: before what was measured of the device is written down, meanwhile, or after it.
#[test]
fn a_clean_stop_leaves_copies_of_the_superblock_that_agree() {
    let mut kept = 0;
    for round in 0..8 {
        let directory = Directory::new("superblock");
        let dataplane = start(&directory.0, false, &["cores=[0]", "size=\"64MiB\""]);
        let mut plane = ControlPlane::connect(&directory.0);
        plane.state(10, 0, 1);
        // No wait for something: where in the measurement the stop comes is what differs.
        std::thread::sleep(Duration::from_millis(150 + 20 * round));
        plane.stop(dataplane);
        let (superblock, differing) = superblock(&directory.0);
        assert_eq!(differing, Vec::<usize>::new(), "round {round}");
        kept += u32::from(superblock.flush != FlushMethod::Unknown);
    }
    println!("{kept} of 8 stops came after the measurement");
}

#[test]
fn a_waiting_consumer_is_woken_by_a_produce_and_answered_when_its_time_is_up() {
    let directory = Directory::new("wait");
    let dataplane = start(&directory.0, true, &[]);
    let mut plane = ControlPlane::connect(&directory.0);
    plane.state(10, 0, 1);
    let began = Instant::now();
    let mut consumer = Client::connect(&dataplane);
    assert_eq!(values(&consumer.fetch(0, 0, 200)), vec![]);
    assert!(began.elapsed() >= Duration::from_millis(200));
    let mut producer = Client::connect(&dataplane);
    let waiting = std::thread::spawn(move || values(&consumer.fetch(0, 0, 15_000)));
    producer.produce(0, records(&["news"]));
    assert_eq!(waiting.join().unwrap(), vec![(0, "news".to_owned())]);
    plane.stop(dataplane);
}

#[test]
fn several_cores_serve_connections_and_partitions_of_each_other() {
    let directory = Directory::new("cores");
    let dataplane = start(&directory.0, true, &["cores=3"]);
    let mut plane = ControlPlane::connect(&directory.0);
    plane.state(10, 0, 12);
    let mut clients: Vec<Client> = (0..6).map(|_| Client::connect(&dataplane)).collect();
    for (c, client) in clients.iter_mut().enumerate() {
        for partition in 0..12 {
            let text = format!("{c}-{partition}");
            assert_eq!(client.produce(partition, records(&[&text])).base_offset, c as i64);
        }
    }
    for client in &mut clients {
        for partition in 0..12 {
            assert_eq!(values(&client.fetch(partition, 0, 500)).len(), 6);
        }
    }
    assert_eq!(ApiKey::Fetch.code(), 1);
    plane.stop(dataplane);
}

/// A helper looks up and encodes what would hold a loop; the connection's next request waits for it.
#[test]
fn a_long_metadata_request_is_answered_off_the_loop_and_in_order() {
    let directory = Directory::new("long");
    let dataplane = start(&directory.0, true, &[]);
    let mut plane = ControlPlane::connect(&directory.0);
    plane.state(10, 0, 1);
    let mut client = Client::connect(&dataplane);
    let name = |number: usize| KafkaString::from(format!("a-topic-that-nobody-has-made-{number:04}"));
    let topic = |number| metadata_request::MetadataRequestTopic { name: Some(name(number)), ..Default::default() };
    for round in 0..3 {
        let topics = Some((0..400).map(topic).collect());
        let answer = client.ask(9, &MetadataRequest { topics, ..Default::default() });
        assert_eq!(answer.topics.len(), 400);
        for (number, topic) in answer.topics.iter().enumerate() {
            let unknown = wire::ErrorCode::UnknownTopicOrPartition.code();
            assert_eq!((topic.error_code, topic.name.clone()), (unknown, Some(name(number))));
        }
        assert_eq!(client.produce(0, records(&["between"])).base_offset, round);
    }
    plane.stop(dataplane);
}

/// A backlog larger than every cache is read from the device in windows, to its end.
#[test]
fn a_backlog_larger_than_the_caches_is_read_to_its_end() {
    let directory = Directory::new("backlog");
    let dataplane = start(&directory.0, true, &["tail_cache=\"4MiB\"", "read_cache=\"4MiB\""]);
    let mut plane = ControlPlane::connect(&directory.0);
    plane.state(10, 0, 1);
    let mut client = Client::connect(&dataplane);
    let text = "y".repeat(64_000);
    let batch = records(&[&text]);
    let total = 1_000;
    for offset in 0..total {
        assert_eq!(client.produce(0, batch.clone()).base_offset, offset);
    }
    let mut next = 0;
    while next < total {
        let read = client.fetch(0, next, 500);
        assert_eq!(read.error_code, 0, "at {next}");
        let values = values(&read);
        assert_eq!(values.first().map(|value| value.0), Some(next));
        next += values.len() as i64;
    }
    // One response of many windows to a socket that takes all at once: no event of the network says that it may go on.
    let mut asked = 0;
    while asked < total {
        let read = client.fetch_of(0, asked, 500, 40 << 20);
        let values = values(&read);
        assert_eq!(values.first().map(|value| value.0), Some(asked));
        asked += values.len() as i64;
    }
    plane.stop(dataplane);
}

/// Whether a client is served: it asks, and is answered or finds its connection closed.
fn is_served(client: &mut Client) -> bool {
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

#[test]
fn an_address_gets_as_many_connections_as_it_may() {
    let directory = Directory::new("per-ip");
    let set = ["cores=2", "max.connections.per.ip=3", "max.connections.per.ip.overrides=\"10.9.9.9:1\""];
    let dataplane = start(&directory.0, true, &set);
    let mut plane = ControlPlane::connect(&directory.0);
    plane.state(10, 0, 1);
    let mut clients: Vec<Client> = (0..3).map(|_| Client::connect(&dataplane)).collect();
    assert!(clients.iter_mut().all(is_served));
    assert!(!is_served(&mut Client::connect(&dataplane)), "a fourth is closed");
    assert!(clients.iter_mut().all(is_served), "and the others do not notice");
    clients.pop();
    // Somebody has to notice that it went.
    let began = Instant::now();
    while !is_served(&mut Client::connect(&dataplane)) {
        assert!(began.elapsed() < DEADLINE, "its place is never given away");
    }
    plane.stop(dataplane);
}

#[test]
fn clients_beyond_the_most_connections_wait_for_a_place() {
    let directory = Directory::new("most");
    let dataplane = start(&directory.0, true, &["cores=2", "max.connections=2"]);
    let mut plane = ControlPlane::connect(&directory.0);
    plane.state(10, 0, 1);
    let mut clients: Vec<Client> = (0..2).map(|_| Client::connect(&dataplane)).collect();
    assert!(clients.iter_mut().all(is_served));
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let mut client = Client::connect(&dataplane);
            std::thread::spawn(move || is_served(&mut client))
        })
        .collect();
    // What is served again and again had its turns: nobody who waits was let in meanwhile.
    for _ in 0..200 {
        assert!(clients.iter_mut().all(is_served));
    }
    assert!(waiting.iter().all(|client| !client.is_finished()));
    drop(clients);
    for client in waiting {
        assert!(client.join().unwrap(), "each got its place when another went");
    }
    plane.stop(dataplane);
}

#[test]
fn sockets_are_set_up_as_asked() {
    let directory = Directory::new("sockets");
    let set = [
        "cores=[0]",
        "socket.listen.backlog.size=17",
        "socket.send.buffer.bytes=20000",
        "socket.receive.buffer.bytes=30000",
    ];
    let dataplane = start(&directory.0, true, &set);
    let mut plane = ControlPlane::connect(&directory.0);
    plane.state(10, 0, 1);
    let mut client = Client::connect(&dataplane);
    assert!(is_served(&mut client));
    let port = client.socket.local_addr().unwrap().port();
    let told = |words: &[&str]| {
        let told = std::process::Command::new("ss").args(words).output().ok()?;
        Some(String::from_utf8_lossy(&told.stdout).into_owned())
    };
    let listening = dataplane.address.rsplit_once(':').unwrap().1;
    match told(&["-ltnH", "sport", &format!("= :{listening}")]) {
        Some(listener) => {
            let words: Vec<&str> = listener.split_whitespace().collect();
            assert_eq!(words[..3], ["LISTEN", "0", "17"], "{listener}");
            // Linux keeps twice what was asked, and counts its own bookkeeping in it.
            let served = told(&["-tmnH", "dport", &format!("= :{port}")]).unwrap();
            assert!(served.contains("rb60000") && served.contains("tb40000"), "{served}");
        }
        None => println!("skipped: ss is not installed"),
    }
    plane.stop(dataplane);
}

#[test]
fn old_records_go_when_the_broker_looks() {
    let directory = Directory::new("looks");
    let dataplane = start(&directory.0, true, &["cores=[0]", "log.retention.check.interval.ms=50"]);
    let mut plane = ControlPlane::connect(&directory.0);
    plane.state(10, 0, 1);
    let mut client = Client::connect(&dataplane);
    // Their times are years ago, and a topic keeps a week.
    assert_eq!(client.produce(0, records(&["a", "b"])).error_code, 0);
    let began = Instant::now();
    while client.fetch(0, 0, 0).error_code != wire::ErrorCode::OffsetOutOfRange.code() {
        assert!(began.elapsed() < DEADLINE, "nobody looks");
    }
    plane.stop(dataplane);
}

#[test]
fn a_node_says_who_it_is_and_where() {
    for id in ["node.id=7", "broker.id=7"] {
        let directory = Directory::new("who");
        let set = [
            "cores=[0]",
            id,
            "listeners=\"PLAINTEXT://127.0.0.1:0,INSIDE://127.0.0.1:0\"",
            "advertised.listeners=\"PLAINTEXT://example.org:1234,INSIDE://127.0.0.1:0\"",
            "listener.security.protocol.map=\"PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT\"",
        ];
        let dataplane = start_with(&directory.0, true, &set);
        let mut plane = ControlPlane::connect(&directory.0);
        let hello = plane.hello.clone().unwrap();
        assert_eq!(hello.node_id, NodeId(7));
        let told: Vec<_> = hello.listeners.iter().map(|l| (l.name.as_str(), l.advertised_host.as_str())).collect();
        assert_eq!(told, [("PLAINTEXT", "example.org"), ("INSIDE", "127.0.0.1")]);
        assert_eq!(hello.listeners[0].advertised_port, 1234);
        // Port 0 is whichever the system chose, and somebody listens there.
        let mut client =
            Client { socket: TcpStream::connect(("127.0.0.1", hello.listeners[1].advertised_port)).unwrap(), next: 0 };
        client.socket.set_read_timeout(Some(DEADLINE)).unwrap();
        assert!(is_served(&mut client));
        plane.say(Down::Hello(DownHello {
            protocol_version: PROTOCOL_VERSION,
            cluster_id: CLUSTER.into(),
            node_id: NodeId(7),
            incarnation: Uuid(5),
        }));
        plane.stop(dataplane);
    }
}
