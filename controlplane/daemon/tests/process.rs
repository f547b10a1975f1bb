//! The process on real sockets and files, against a dataplane that says the least the protocol allows. One test, since a
//! signal is for the whole process.

use base::counters::{CoreCounters, Counter, mapping_bytes};
use base::{CoreId, ListenerId, NodeId, Uuid};
use link::{BoundListener, Down, Forward, Framer, Up, UpHello, frame};
use pollux_daemon::{Console, DaemonError, DaemonOptions, format, formatted_ids, run};
use settings::NodeConfig;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use wire::Message;
use wire::messages::create_topics_request::CreatableTopic;
use wire::messages::{CreateTopicsRequest, CreateTopicsResponse};

const CLUSTER: &str = "VAZU95LYRcG9RbcNAfiwLA";
const PATIENCE: Duration = Duration::from_secs(20);

struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        let path = std::env::temp_dir().join(format!("pollux-daemon-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _left_behind = std::fs::remove_dir_all(&self.0);
    }
}

fn hello(run: u128) -> Up {
    Up::Hello(Box::new(UpHello {
        protocol_version: link::PROTOCOL_VERSION,
        software_version: "test".into(),
        cluster_id: CLUSTER.into(),
        node_id: NodeId(1),
        directories: vec![Uuid(0x7000)],
        run_id: Uuid(run),
        boot_id: "boot".into(),
        clean_stop: true,
        damaged: false,
        durability_cache: false,
        duties_offset: None,
        view_offset: None,
        listeners: vec![BoundListener {
            id: ListenerId(0),
            name: "PLAINTEXT".into(),
            advertised_host: "localhost".into(),
            advertised_port: 9092,
            security_protocol: 0,
        }],
        producer_ids_in_hand: 0,
        cores: 1,
    }))
}

/// The other end of one connection.
struct Plane {
    stream: UnixStream,
    framer: Framer,
    incarnation: Option<Uuid>,
}

impl Plane {
    fn accept(listener: &UnixListener, run: u128) -> Plane {
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut plane = Plane { stream, framer: Framer::default(), incarnation: None };
        plane.say(&hello(run));
        plane
    }

    fn say(&mut self, up: &Up) {
        let mut bytes = Vec::new();
        frame::encode(up, &mut bytes);
        self.stream.write_all(&bytes).unwrap();
    }

    /// Acknowledges what must be and gives the next message that is wanted.
    fn next(&mut self, wanted: impl Fn(&Down) -> bool) -> Down {
        loop {
            let down = match self.framer.poll_message::<Down>().unwrap() {
                Some(down) => down,
                None => {
                    let mut buffer = [0; 4096];
                    let count = self.stream.read(&mut buffer).unwrap();
                    assert!(count > 0, "the control plane closed the connection");
                    self.framer.push(&buffer[..count]);
                    continue;
                }
            };
            match &down {
                Down::Hello(hello) => self.incarnation = Some(hello.incarnation),
                Down::Duties(part) if part.last => {
                    self.say(&Up::DutiesApplied { metadata_offset: part.provenance.metadata_offset });
                }
                Down::View(part) if part.last => {
                    self.say(&Up::ViewApplied { metadata_offset: part.provenance.metadata_offset });
                }
                _ => {}
            }
            if wanted(&down) {
                return down;
            }
        }
    }
}

fn http(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let status = text.split(' ').nth(1)?.parse().ok()?;
    Some((status, text.split_once("\r\n\r\n")?.1.to_owned()))
}

fn wait_for<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what} does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn start(options: DaemonOptions) -> (JoinHandle<Result<(), DaemonError>>, Receiver<()>) {
    let (tell, ready) = channel();
    (std::thread::spawn(move || run(options, move || tell.send(()).unwrap())), ready)
}

fn terminate() {
    let pid = std::process::id().to_string();
    let status = std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap();
    assert!(status.success());
}

fn options(folder: &Path, console: SocketAddr) -> DaemonOptions {
    let config = NodeConfig::laptop(&[format!("metrics=\"{console}\"")]).unwrap();
    DaemonOptions {
        directory: folder.join("controlplane"),
        link: folder.join("link"),
        counters: folder.join("counters"),
        cluster_id: CLUSTER.to_owned(),
        directory_id: Uuid(0x5000),
        config,
        console: Some(Console::Port(console)),
        seed: 7,
    }
}

fn create_topic(plane: &mut Plane, name: &str) {
    let topic = CreatableTopic { name: name.into(), num_partitions: 2, replication_factor: 1, ..Default::default() };
    let request = CreateTopicsRequest { topics: vec![topic], timeout_ms: 1000, ..Default::default() };
    plane.say(&Up::Forward(Box::new(Forward {
        id: 1,
        connection: base::ConnectionId(1),
        listener: ListenerId(0),
        listener_name: "PLAINTEXT".into(),
        principal: "User:ANONYMOUS".into(),
        client_host: "/127.0.0.1".into(),
        api_key: 19,
        api_version: 7,
        correlation_id: 5,
        client_id: None,
        client_software_name: String::new(),
        client_software_version: String::new(),
        body: request.to_bytes(7).unwrap(),
    })));
    let Down::Answer { response: Some(bytes), .. } = plane.next(|down| matches!(down, Down::Answer { .. })) else {
        panic!("an answer was wanted")
    };
    let mut decoder = wire::Decoder::shared(&bytes);
    assert_eq!(wire::read_response_header(&mut decoder, wire::ApiKey::CreateTopics, 7), Ok(5));
    let response = CreateTopicsResponse::decode(&mut decoder, 7).unwrap();
    assert_eq!(response.topics[0].error_code, 0, "{response:?}");
}

#[test]
fn the_process_serves_a_dataplane_and_stops() {
    let folder = Folder::new();
    let console = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let options = options(&folder.0, console);
    assert_eq!(formatted_ids(&options.directory).unwrap(), None);
    let listener = UnixListener::bind(&options.link).unwrap();
    let pages = arena::SharedPages::create(&options.counters, mapping_bytes(1)).unwrap();
    let counters = CoreCounters::new(Arc::new(pages), CoreId(0));
    counters.add(Counter::ProduceBytes, 4242);
    counters.record_request(3, Duration::from_millis(3), true);

    // First start: formats, has no dataplane, then has one.
    let (process, ready) = start(options.clone());
    let before = wait_for("the console", || http(console, "/ready"));
    assert_eq!(before.0, 503);
    let mut plane = Plane::accept(&listener, 1);
    plane.next(|down| matches!(down, Down::ProducerIds { first: 1000, .. }));
    ready.recv_timeout(PATIENCE).unwrap();
    assert_eq!(http(console, "/ready").unwrap(), (200, "ready\n".to_owned()));
    create_topic(&mut plane, "t");
    let (status, page) = http(console, "/metrics").unwrap();
    assert_eq!(status, 200);
    for line in [
        "pollux_produce_bytes_total{core=\"0\"} 4242",
        "pollux_request_seconds_count{api=\"Metadata\"} 1",
        "pollux_request_seconds_bucket{api=\"Metadata\",le=\"0.005\"} 1",
        "pollux_request_latency_seconds{api=\"Metadata\",quantile=\"0.99\"} 0.003",
        "pollux_request_errors_total{api=\"Metadata\"} 1",
        "pollux_ready 1",
        "pollux_topics 1",
        "pollux_cluster_partitions 2",
        "pollux_quorum_state{state=\"leader\"} 1",
        "pollux_forwarded_requests_total 1",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
    }
    for line in pollux_daemon::metric_names_markdown().lines().skip(2) {
        let ours = line.split('`').nth(3).unwrap();
        assert!(page.contains(&format!("# TYPE {ours} ")), "{ours} is not shown");
    }
    assert_eq!(http(console, "/nothing").unwrap().0, 404);
    assert_eq!(formatted_ids(&options.directory).unwrap(), Some((CLUSTER.to_owned(), Uuid(0x5000))));
    assert!(matches!(
        format(&options.directory, CLUSTER, Uuid(0x5000), &options.config),
        Err(DaemonError::File { .. })
    ));

    // The connection is lost: it comes again, as the same run, and nothing is registered anew.
    let incarnation = plane.incarnation;
    drop(plane);
    let mut plane = Plane::accept(&listener, 1);
    plane.next(|down| matches!(down, Down::Hello(_)));
    assert_eq!(plane.incarnation, incarnation);

    // A clean stop.
    plane.next(|down| matches!(down, Down::View(_)));
    terminate();
    plane.next(|down| matches!(down, Down::Stop));
    plane.say(&Up::Stopped);
    process.join().unwrap().unwrap();

    assert!(matches!(
        format(&options.directory, CLUSTER, Uuid(0x5000), &options.config),
        Err(DaemonError::Formatted(_))
    ));
    let other = DaemonOptions { cluster_id: "another".to_owned(), ..options.clone() };
    assert!(matches!(run(other, || ()), Err(DaemonError::OtherCluster { .. })));

    // Another start finds everything.
    let (process, ready) = start(DaemonOptions { seed: 8, ..options.clone() });
    let mut plane = Plane::accept(&listener, 2);
    plane.next(|down| matches!(down, Down::View(_)));
    ready.recv_timeout(PATIENCE).unwrap();
    assert_ne!(plane.incarnation, incarnation, "what left in order has a successor");
    let (_, page) = http(console, "/metrics").unwrap();
    assert!(page.lines().any(|line| line == "pollux_topics 1"));

    // A dataplane of another cluster is sent away, and the process lives on.
    drop(plane);
    let (stream, _) = listener.accept().unwrap();
    let mut stranger = Plane { stream, framer: Framer::default(), incarnation: None };
    let Up::Hello(mut wrong) = hello(3) else { unreachable!("it is a hello") };
    wrong.cluster_id = "another".into();
    stranger.say(&Up::Hello(wrong));
    let mut rest = Vec::new();
    stranger.stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stranger.stream.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());
    let mut plane = Plane::accept(&listener, 2);
    plane.next(|down| matches!(down, Down::View(_)));
    terminate();
    plane.next(|down| matches!(down, Down::Stop));
    drop(plane);
    process.join().unwrap().unwrap();
}
