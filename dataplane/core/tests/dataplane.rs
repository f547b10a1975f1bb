//! The dataplane of the kernel build, whole, in this process: the test plays the control plane at the link's other end and
//! a client at the listener.

mod common;

use base::*;
use common::*;
use link::*;
use nvme_format::Superblock;
use nvme_format::region::superblock_candidates;
use nvme_format::superblock::{FlushMethod, Reading, choose, read};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};
use wire::messages::*;
use wire::{ApiKey, KafkaString};

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

/// Cores other than the first knew no topic before the control plane had spoken: clients took what they answered for the end of
/// their topics.
#[test]
fn every_core_knows_the_saved_topics_before_the_control_plane_comes() {
    let directory = Directory::new("alone");
    let set = &["cores=3", "size=\"256MiB\""];
    let dataplane = start(&directory.0, false, set);
    let mut plane = ControlPlane::connect(&directory.0);
    plane.state(10, 0, 12);
    plane.stop(dataplane);
    let dataplane = start(&directory.0, false, set);
    let mut clients: Vec<Client> = (0..6).map(|_| Client::connect(&dataplane)).collect();
    for client in &mut clients {
        let metadata = client.ask(12, &MetadataRequest { topics: None, ..Default::default() });
        let known: Vec<usize> = metadata.topics.iter().map(|topic| topic.partitions.len()).collect();
        assert_eq!((metadata.brokers.len(), known), (1, vec![12]));
    }
    let plane = ControlPlane::connect(&directory.0);
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
