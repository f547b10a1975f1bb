//! What a node costs that nobody asks anything of: a hundred connections that are silent.

use super::{MIB, PATIENCE, held};
use crate::node::Broker;
use crate::reference::Wishes;
use crate::subject::Pollux;
use crate::{Result, wait};
use perf::client::{Connection, api_versions_request};
use perf::process;
use std::time::{Duration, Instant};

/// After this a node has given back what it only used to start.
const SETTLING: Duration = Duration::from_secs(12);

#[derive(Clone, Debug)]
pub struct Plan {
    pub connections: usize,
    pub duration: Duration,
    /// Of one core.
    pub percent_max: f64,
    pub resident_max: u64,
    pub own: Vec<String>,
}

pub fn run(plan: &Plan) -> Result<()> {
    let mut node = Pollux::start_new(&Wishes { own: plan.own.clone(), ..Wishes::default() })?;
    crate::crash::create(node.address(), "idle", 8)?;
    let mut connections = Vec::new();
    for _ in 0..plan.connections {
        let mut connection = Connection::open(node.address(), PATIENCE)?;
        connection.call(3, &api_versions_request())?;
        connections.push(connection);
    }
    pass(SETTLING)?;
    let before: Vec<_> = each(&node)?;
    let began = Instant::now();
    pass(plan.duration)?;
    let took = began.elapsed().as_secs_f64();
    let after: Vec<_> = each(&node)?;
    let mut sum = 0.0;
    for ((pid, name, then), (_, _, now)) in before.iter().zip(&after) {
        let percent = (now.cpu - then.cpu).as_secs_f64() / took * 100.0;
        sum += percent;
        println!("{name} ({pid}): {percent:.3} % of a core, {} MiB", now.resident_bytes / MIB);
    }
    let resident = held(&node)?.resident / MIB;
    println!("all: {sum:.3} % of a core over {took:.0} s, {resident} MiB, {} connections", connections.len());
    drop(connections);
    node.stop()?;
    if sum > plan.percent_max || resident > plan.resident_max {
        return Err(format!("{} % of a core and {} MiB are allowed", plan.percent_max, plan.resident_max).into());
    }
    println!("idle it is");
    Ok(())
}

/// Nothing is to happen meanwhile, so the time itself is waited for.
fn pass(time: Duration) -> Result<()> {
    let end = Instant::now() + time;
    wait::until("time to pass", time + PATIENCE, || Ok((Instant::now() >= end).then_some(())))
}

fn each(node: &Pollux) -> Result<Vec<(u32, String, process::Usage)>> {
    let one = |pid: u32| {
        let words = std::fs::read(format!("/proc/{pid}/cmdline"))?;
        let name = words.split(|byte| *byte == 0).nth(1).unwrap_or_default();
        Ok((pid, String::from_utf8_lossy(name).into_owned(), process::usage(&[pid])?))
    };
    node.pids()?.into_iter().map(one).collect()
}
