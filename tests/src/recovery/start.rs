//! A first start: `pollux start` on nothing, and `--ephemeral` with its line.

use super::client::{Known, PRODUCE_VERSION, Waiting, partition_data, produce_request, small_batch};
use crate::node::process::Process;
use crate::node::{Broker, Scratch};
use crate::reference::prefixed;
use crate::{Result, crash, subject};
use perf::client::Connection;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const TOPIC: &str = "first";
const PATIENCE: Duration = Duration::from_secs(60);

/// From the launch of a node that was never started to its first acknowledged produce.
pub fn first_start(broker: &mut dyn Broker) -> Result<Duration> {
    let beginning = Instant::now();
    broker.launch()?;
    let produced = first_produce(broker.address(), beginning)?;
    broker.stop()?;
    Ok(produced)
}

/// A client that waits for the node, makes a topic and writes to it.
fn first_produce(address: SocketAddr, beginning: Instant) -> Result<Duration> {
    while Connection::open(address, PATIENCE).is_err() {
        if beginning.elapsed() > PATIENCE {
            return Err("nobody listens".into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    crash::create(address, TOPIC, 1)?;
    let known = [Known { partition: 0, offset: 0 }];
    let served = Waiting { address, topic: TOPIC, known: &known, beginning, round: 0 }.serve()?;
    Ok(served.first_produced)
}

/// What a user of `--ephemeral` waits for.
#[derive(Clone, Copy, Debug)]
pub struct Ephemeral {
    /// The line with the address.
    pub ready: Duration,
    /// A topic's creation and the first produce after it.
    pub produced: Duration,
}

pub fn ephemeral(own: &[String]) -> Result<Ephemeral> {
    let scratch = Scratch::new("ephemeral")?;
    let mut command = prefixed(&[], subject::program()?.as_os_str());
    command.args(["start", "--ephemeral"]);
    for setting in own {
        command.args(["--set", setting]);
    }
    let beginning = Instant::now();
    let mut process = Process::start(command, "pollux start --ephemeral", &scratch.path().join("log"), true)?;
    let out = process.child().stdout.take().ok_or("its output was asked for")?;
    let mut line = String::new();
    BufReader::new(out).read_line(&mut line)?;
    let ready = beginning.elapsed();
    let told: serde_json::Value = serde_json::from_str(&line).map_err(|error| format!("{line:?}: {error}"))?;
    let address: SocketAddr = told["bootstrap"].as_str().ok_or("a line without an address")?.parse()?;
    // Whoever was told that it is ready gets answers at once.
    crash::create(address, TOPIC, 1)?;
    let mut connection = Connection::open(address, PATIENCE)?;
    let request = produce_request(TOPIC, vec![partition_data(0, small_batch(0, 0))]);
    let answer = connection.call(PRODUCE_VERSION, &request)?;
    let produced = beginning.elapsed();
    let codes = answer.responses.iter().flat_map(|topic| &topic.partition_responses);
    if let Some(refused) = codes.into_iter().find(|partition| partition.error_code != 0) {
        return Err(format!("the first produce is answered with {}", refused.error_code).into());
    }
    process.stop()?;
    Ok(Ephemeral { ready, produced })
}
