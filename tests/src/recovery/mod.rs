//! How long a node takes until clients are served: after kill -9 with much data, at a first start, and `--ephemeral`.

pub mod client;
pub mod fill;
pub mod start;

use crate::node::{Broker, Victim};
use crate::{Result, crash};
use client::{Known, Served, Waiting};
use std::time::Instant;

const TOPIC: &str = "recovery";

#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub bytes: u64,
    /// Written again before every kill but the first, so that the journal is as full each time.
    pub bytes_between: u64,
    pub partitions: i32,
    pub rounds: u32,
    /// The supervisor starts the killed pair again; else everything is killed and a new `start` begins.
    pub supervised: bool,
}

/// Fills the node, then kills it again and again and measures until a waiting client is served on every partition.
pub fn run(broker: &mut dyn Broker, plan: &Plan) -> Result<Vec<Served>> {
    crash::create(broker.address(), TOPIC, plan.partitions)?;
    let mut all = Vec::new();
    for round in 1..=plan.rounds {
        let bytes = if round == 1 { plan.bytes } else { plan.bytes_between };
        let mut known = fill::fill(broker.address(), TOPIC, plan.partitions, bytes)?;
        known.sort_by_key(|known| known.partition);
        if known.len() != plan.partitions as usize {
            return Err(format!("{} of {} partitions were written", known.len(), plan.partitions).into());
        }
        let served = strike(broker, plan, &known, u64::from(round))?;
        println!(
            "{} round {round}: connected {:?}, first produce {:?}, all produced {:?}, all fetched {:?}",
            broker.name(),
            served.first_connected,
            served.first_produced,
            served.all_produced,
            served.all_fetched
        );
        all.push(served);
    }
    Ok(all)
}

fn strike(broker: &mut dyn Broker, plan: &Plan, known: &[Known], round: u64) -> Result<Served> {
    let beginning = if plan.supervised {
        let beginning = Instant::now();
        broker.kill(Victim::ControlPlane)?;
        broker.kill(Victim::Dataplane)?;
        beginning
    } else {
        broker.kill(Victim::Everything)?;
        let beginning = Instant::now();
        broker.launch()?;
        beginning
    };
    let waiting = Waiting { address: broker.address(), topic: TOPIC, known, beginning, round };
    waiting.serve()
}
