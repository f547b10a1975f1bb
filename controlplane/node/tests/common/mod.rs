//! A node between a disk in memory and the other end of the link.
#![allow(dead_code)]

pub mod disk;
pub mod plane;

use base::{Monotonic, NodeId, Now, Random, Uuid, WallMillis};
use bytes::{Bytes, BytesMut};
use disk::MemoryDisk;
use link::{Down, Forward, Up};
use plane::Plane;
use pollux_node::{DiskWork, End, Event, FormatRequest, Node, Options, Outputs, StartError, Status, format_steps};
use settings::NodeConfig;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use wire::{ApiKey, Decoder, Request, RequestKind, ResponseKind};

pub const CLUSTER: &str = "VAZU95LYRcG9RbcNAfiwLA";
pub const NODE: NodeId = NodeId(1);
pub const LISTENER: &str = "PLAINTEXT";

pub fn options(overrides: &[&str]) -> Options {
    let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
    let settings = NodeConfig::laptop(&overrides).expect("a configuration").broker;
    Options { node: NODE, settings, largest_batch: 16 << 20 }
}

pub fn formatted() -> MemoryDisk {
    let request = FormatRequest {
        cluster_id: CLUSTER.to_owned(),
        node: NODE,
        directory: Uuid(0x5000),
        controller: quorum::Endpoint { listener: "CONTROLLER".into(), host: "localhost".into(), port: 9093 },
    };
    let mut disk = MemoryDisk::default();
    for step in format_steps(&request, Now::default()) {
        disk.step(&step);
    }
    disk
}

/// A node, its files, and perhaps a connected dataplane.
pub struct World {
    pub node: Node,
    pub disk: MemoryDisk,
    pub plane: Option<Plane>,
    pub now: Now,
    pub end: Option<End>,
    pub refused: Option<String>,
    /// Disk work is left undone while this is set.
    pub disk_stalls: bool,
    disk_work: VecDeque<DiskWork>,
    forwards: u64,
    options: Options,
}

impl World {
    pub fn new() -> World {
        World::start(options(&[]), formatted(), Now { monotonic: Monotonic(1), wall: WallMillis(1_700_000_000_000) })
            .expect("a formatted directory")
    }

    pub fn start(options: Options, disk: MemoryDisk, now: Now) -> Result<World, StartError> {
        let mut world = World::load(options, disk, now)?;
        world.event(Event::Time);
        world.settle();
        Ok(world)
    }

    fn load(options: Options, disk: MemoryDisk, now: Now) -> Result<World, StartError> {
        let random = Random::from_seed(now.monotonic.0);
        let (node, _) = Node::load(options.clone(), &disk, disk.run_file.as_deref(), now, random)?;
        Ok(World {
            node,
            disk,
            plane: None,
            now,
            end: None,
            refused: None,
            disk_stalls: false,
            disk_work: VecDeque::new(),
            forwards: 0,
            options,
        })
    }

    /// With a dataplane of run 1 that has everything it was sent.
    pub fn served() -> World {
        let mut world = World::new();
        world.connect(Plane::new(1));
        world.settle();
        assert!(world.status().ready, "{:?}", world.status());
        world
    }

    pub fn status(&self) -> Status {
        self.node.status(self.now)
    }

    pub fn connect(&mut self, plane: Plane) {
        let hello = plane.hello();
        self.plane = Some(plane);
        self.event(Event::Up(hello));
    }

    pub fn plane(&mut self) -> &mut Plane {
        self.plane.as_mut().expect("a dataplane is connected")
    }

    /// The connection breaks; the dataplane lives on.
    pub fn disconnect(&mut self) -> Plane {
        let plane = self.plane.take().expect("a dataplane is connected");
        self.event(Event::LinkLost);
        plane
    }

    /// Ends the process at this instant and starts another on its files.
    pub fn restart_node(mut self) -> World {
        let plane = self.plane.take();
        let now = Now { monotonic: self.now.monotonic + Duration::from_secs(1), wall: self.now.wall };
        let mut world = World::start(self.options, self.disk, now).expect("the files are whole");
        if let Some(plane) = plane {
            world.connect(plane.reconnected());
            world.settle();
        }
        world
    }

    /// The same, with a disk that does nothing yet.
    pub fn restart_node_stalled(self) -> World {
        let now = Now { monotonic: self.now.monotonic + Duration::from_secs(1), wall: self.now.wall };
        let mut world = World::load(self.options, self.disk, now).expect("the files are whole");
        world.disk_stalls = true;
        world.event(Event::Time);
        world
    }

    pub fn event(&mut self, event: Event) {
        let outputs = self.node.handle(event, self.now);
        self.take(outputs);
    }

    fn take(&mut self, outputs: Outputs) {
        self.disk_work.extend(outputs.disk);
        if let Some(plane) = &mut self.plane {
            outputs.down.into_iter().for_each(|down| plane.take(down));
        }
        if let Some(why) = outputs.disconnect {
            self.refused = Some(why);
            self.plane = None;
            self.event(Event::LinkLost);
        }
        self.end = self.end.take().or(outputs.end);
    }

    /// Lets disk and dataplane do what they were asked, until nothing is left.
    pub fn settle(&mut self) {
        loop {
            let work = if self.disk_stalls { None } else { self.disk_work.pop_front() };
            if let Some(work) = work {
                let event = self.disk.run(work);
                self.event(event);
            } else if let Some(up) = self.plane.as_mut().and_then(Plane::work) {
                self.event(Event::Up(up));
            } else {
                return;
            }
        }
    }

    /// Passes time in the steps that the node asks for.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now.monotonic + time;
        let start = self.now;
        loop {
            let next = self.node.next_deadline().map_or(end, |at| at.max(self.now.monotonic).min(end));
            self.now.monotonic = next;
            self.now.wall = WallMillis(start.wall.0 + next.since(start.monotonic).as_millis() as i64);
            self.event(Event::Time);
            self.settle();
            if next >= end {
                return;
            }
            if self.node.next_deadline().is_some_and(|at| at <= self.now.monotonic) {
                // A deadline that stays in the past would have the node turn for ever.
                self.event(Event::Time);
                self.settle();
                let still = self.node.next_deadline().filter(|at| *at <= self.now.monotonic);
                assert!(still.is_none(), "a deadline stays in the past: {still:?} at {:?}", self.now.monotonic);
            }
        }
    }

    /// Forwards a request without waiting for its answer.
    pub fn forward<R: Request>(&mut self, version: i16, request: &R) -> u64 {
        let mut body = BytesMut::new();
        request.encode(&mut body, version).expect("the request fits its version");
        self.forward_bytes(R::API.code(), version, body.freeze())
    }

    pub fn forward_bytes(&mut self, api_key: i16, api_version: i16, body: Bytes) -> u64 {
        self.forwards += 1;
        let id = self.forwards;
        let forward = Forward {
            id,
            connection: base::ConnectionId(7),
            listener: base::ListenerId(0),
            listener_name: LISTENER.to_owned(),
            principal: "User:ANONYMOUS".to_owned(),
            client_host: "/127.0.0.1".to_owned(),
            api_key,
            api_version,
            correlation_id: 1000 + id as i32,
            client_id: Some("client".to_owned()),
            client_software_name: String::new(),
            client_software_version: String::new(),
            body,
        };
        self.event(Event::Up(Up::Forward(Box::new(forward))));
        id
    }

    /// The answer to a request, if it is there: decoded, its header checked.
    pub fn answer(&mut self, id: u64, api: ApiKey, version: i16) -> Option<ResponseKind> {
        let bytes = self.plane().answers.remove(&id)?.expect("the connection is not closed");
        let mut decoder = Decoder::shared(&bytes);
        let correlation = wire::read_response_header(&mut decoder, api, version).expect("a header");
        assert_eq!(correlation, 1000 + id as i32);
        let response = ResponseKind::decode(api, version, &mut decoder).expect("a response");
        decoder.finish().expect("nothing follows");
        Some(response)
    }

    /// Asks and waits until everything is quiet.
    pub fn ask<R: Request>(&mut self, version: i16, request: &R) -> R::Response
    where
        R::Response: TryFromKind,
    {
        let id = self.forward(version, request);
        self.settle();
        let response = self.answer(id, R::API, version).expect("an answer");
        R::Response::from_kind(response)
    }

    pub fn is_closed(&mut self, id: u64) -> bool {
        self.plane().answers.remove(&id) == Some(None)
    }
}

pub trait TryFromKind {
    fn from_kind(kind: ResponseKind) -> Self;
}

macro_rules! from_kind {
    ($($variant:ident $response:ident;)*) => {
        $(impl TryFromKind for wire::messages::$response {
            fn from_kind(kind: ResponseKind) -> Self {
                match kind {
                    ResponseKind::$variant(response) => response,
                    other => panic!("{:?} is another response", other.api()),
                }
            }
        })*
    };
}

from_kind! {
    CreateTopics CreateTopicsResponse;
    DeleteTopics DeleteTopicsResponse;
    CreatePartitions CreatePartitionsResponse;
    DescribeConfigs DescribeConfigsResponse;
    IncrementalAlterConfigs IncrementalAlterConfigsResponse;
    AlterConfigs AlterConfigsResponse;
    ListConfigResources ListConfigResourcesResponse;
    FindCoordinator FindCoordinatorResponse;
    DescribeQuorum DescribeQuorumResponse;
    UpdateFeatures UpdateFeaturesResponse;
    UnregisterBroker UnregisterBrokerResponse;
    OffsetCommit OffsetCommitResponse;
    OffsetFetch OffsetFetchResponse;
    JoinGroup JoinGroupResponse;
    SyncGroup SyncGroupResponse;
    Heartbeat HeartbeatResponse;
    ListGroups ListGroupsResponse;
}

/// What a request is, for tables of requests.
pub fn encoded(request: &RequestKind, version: i16) -> Bytes {
    let mut body = BytesMut::new();
    request.encode(&mut body, version).expect("the request fits its version");
    body.freeze()
}

/// Downs by kind, for assertions about what was said.
pub fn count_downs(downs: &[Down]) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for down in downs {
        let name = match down {
            Down::Hello(_) => "hello",
            Down::Duties(_) => "duties",
            Down::View(_) => "view",
            Down::Answer { .. } => "answer",
            Down::AnswerPart { .. } => "part",
            Down::InternalAppend(_) => "append",
            Down::InternalRead(_) => "read",
            Down::ProducerIds { .. } => "producer ids",
            Down::Stop => "stop",
            Down::Ping(_) => "ping",
        };
        *counts.entry(name).or_default() += 1;
    }
    counts
}
