//! What a node does while its control plane is down, API by API: answered from what the dataplane knows; or parked, and
//! answered when the control plane is back in time, else with a retriable error or a close; and what was sent and not
//! answered is never sent again.
//!
//! The pair runs without a supervisor, so that the control plane stays away for as long as it takes.

pub mod requests;

use crate::node::process::{Process, signal};
use crate::node::{Scratch, free_ports, wait_until_ready};
use crate::raw::Raw;
use crate::reference::prefixed;
use crate::{Result, crash, subject, wait};
use requests::{Asked, TOPIC};
use rustix::process::Signal;
use serde_json::Value;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};
use wire::ApiKey;

/// An answer that needs no control plane comes within this.
const AT_ONCE: Duration = Duration::from_secs(1);
/// How long requests are parked, and how much earlier or later than that the refusals may come.
const PARKED: Duration = Duration::from_secs(10);
const SLACK: Duration = Duration::from_secs(2);
/// The control plane is back this long after its requests were parked.
const AWAY: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(30);

struct Pair {
    scratch: Scratch,
    address: SocketAddr,
    dataplane: Process,
    controlplane: Process,
}

fn launch(scratch: &Scratch, address: SocketAddr, subcommand: &str, own: &[String]) -> Result<Process> {
    let mut command = prefixed(&[], subject::program()?.as_os_str());
    command.arg(subcommand).arg("--data").arg(scratch.path().join("data"));
    command.args(["--listen", &address.to_string(), "--set", "metrics=\"off\""]);
    for setting in own {
        command.args(["--set", setting]);
    }
    Process::start(command, subcommand, &scratch.path().join(subcommand), false)
}

impl Pair {
    fn start(own: &[String]) -> Result<Pair> {
        let scratch = Scratch::new("outage")?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_ports(1)?[0]));
        let controlplane = launch(&scratch, address, "controlplane", own)?;
        let mut dataplane = launch(&scratch, address, "dataplane", own)?;
        wait_until_ready(address, &mut dataplane)?;
        Ok(Pair { scratch, address, dataplane, controlplane })
    }

    fn ask(&self, asked: &Asked) -> Result<(Value, Duration)> {
        let began = Instant::now();
        let answer = Raw::new(self.address).ask(asked.version, &asked.request)?;
        Ok((answer, began.elapsed()))
    }

    /// Asks each on a connection of its own, all at the same time.
    fn ask_all(&self, all: &[Asked], meanwhile: impl FnOnce() -> Result<()>) -> Result<Vec<(Value, Duration)>> {
        std::thread::scope(|scope| {
            let asking: Vec<_> = all.iter().map(|asked| scope.spawn(|| self.ask(asked))).collect();
            meanwhile()?;
            asking.into_iter().map(|thread| thread.join().map_err(|_| "an asker panicked")?).collect()
        })
    }
}

/// Every error code in an answer that is none of success.
fn errors(value: &Value, into: &mut Vec<i64>) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                match value.as_i64().filter(|_| name == "ErrorCode") {
                    Some(0) => {}
                    Some(code) => into.push(code),
                    None => errors(value, into),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| errors(value, into)),
        _ => {}
    }
}

fn errors_of(value: &Value) -> Vec<i64> {
    let mut found = Vec::new();
    errors(value, &mut found);
    found
}

fn is_answer(value: &Value) -> bool {
    value.get("answer").is_some()
}

pub fn run(own: &[String]) -> Result<()> {
    let mut pair = Pair::start(own)?;
    let result = scenes(&mut pair, own);
    result.map_err(|fault| format!("{fault}\n{}\n{}", pair.controlplane.tail(), pair.dataplane.tail()).into())
}

fn scenes(pair: &mut Pair, own: &[String]) -> Result<()> {
    let member = prepare(pair)?;
    pair.controlplane.kill()?;
    answered(pair)?;
    every_api_is_asked(&member);
    parked_too_long(pair, &member)?;
    parked_in_time(pair, &member, own)?;
    sent_and_unanswered(pair, &member)?;
    pair.controlplane = launch(&pair.scratch, pair.address, "controlplane", own)?;
    back(pair)?;
    pair.controlplane.stop()?;
    pair.dataplane.stop()?;
    Ok(())
}

/// A topic with a record, and a group with a member and an offset. Returns the member's id.
fn prepare(pair: &Pair) -> Result<String> {
    crash::create(pair.address, TOPIC, 2)?;
    let mut raw = Raw::new(pair.address);
    wait::until("the coordinator", PATIENCE, || {
        let found = raw.ask(4, &requests::find_coordinator().into())?;
        Ok((is_answer(&found) && errors_of(&found).is_empty()).then_some(()))
    })?;
    let id = raw.ask(4, &requests::init_producer().into())?["answer"]["ProducerId"].as_i64().ok_or("a producer id")?;
    let produced = raw.ask(11, &requests::produce(TOPIC, id, 0).into())?;
    let member = wait::until("a member", PATIENCE, || {
        let joined = raw.ask(3, &requests::join(requests::GROUP, "").into())?;
        let id = joined["answer"]["MemberId"].as_str().unwrap_or_default().to_owned();
        Ok((is_answer(&joined) && errors_of(&joined).is_empty()).then_some(id))
    })?;
    let synced = raw.ask(3, &requests::sync(&member).into())?;
    let committed = raw.ask(8, &requests::commit(&member).into())?;
    for told in [&produced, &synced, &committed] {
        if !is_answer(told) || !errors_of(told).is_empty() {
            return Err(format!("the beginning fails: {told}").into());
        }
    }
    Ok(member)
}

fn answered(pair: &Pair) -> Result<()> {
    let (id, _) = pair.ask(&Asked { request: requests::init_producer().into(), version: 4, error: 0 })?;
    let id = id["answer"]["ProducerId"].as_i64().ok_or_else(|| format!("no producer id: {id}"))?;
    for asked in requests::answered(id) {
        let (told, took) = pair.ask(&asked)?;
        let wanted = if asked.error == 0 { Vec::new() } else { vec![asked.error] };
        let api = asked.request.api();
        if !is_answer(&told) || errors_of(&told) != wanted || took > AT_ONCE {
            return Err(format!("{api} v{} is answered with {told} after {took:?}", asked.version).into());
        }
        println!("{api}: answered in {took:?}");
    }
    Ok(())
}

/// The lists hold every API that the node says it serves.
fn every_api_is_asked(member: &str) {
    let asked: Vec<ApiKey> =
        requests::answered(0).iter().chain(&requests::others(member)).map(|asked| asked.request.api()).collect();
    for api in session::route::served() {
        assert!(asked.contains(&api), "no request of {api} is tried while the control plane is down");
    }
}

fn refused(asked: &Asked, told: &Value) -> Result<()> {
    let closed = told == "closed" && asked.error < 0;
    let refused = is_answer(told) && errors_of(told) == [asked.error];
    if closed || refused {
        return Ok(());
    }
    Err(format!("{} v{} is answered with {told}", asked.request.api(), asked.version).into())
}

fn parked_too_long(pair: &Pair, member: &str) -> Result<()> {
    let others = requests::others(member);
    for (asked, (told, took)) in others.iter().zip(pair.ask_all(&others, || Ok(()))?) {
        refused(asked, &told)?;
        if took + SLACK < PARKED || took > PARKED + SLACK {
            return Err(format!("{} is refused after {took:?}", asked.request.api()).into());
        }
        println!("{}: parked for {took:?}, then {}", asked.request.api(), short(&told));
    }
    Ok(())
}

fn short(told: &Value) -> String {
    if is_answer(told) { format!("error {:?}", errors_of(told)) } else { told.to_string() }
}

fn parked_in_time(pair: &mut Pair, member: &str, own: &[String]) -> Result<()> {
    let others = requests::others(member);
    let (scratch, address) = (&pair.scratch, pair.address);
    let mut started = None;
    let told = pair.ask_all(&others, || {
        std::thread::sleep(AWAY);
        started = Some(launch(scratch, address, "controlplane", own)?);
        Ok(())
    });
    pair.controlplane = started.ok_or("the control plane was not started")?;
    for (asked, (told, took)) in others.iter().zip(told?) {
        let api = asked.request.api();
        if !is_answer(&told) || took < AWAY || took > PARKED {
            return Err(format!("{api} is answered with {told} after {took:?}, the control plane being back").into());
        }
        println!("{api}: parked for {took:?}, then answered, {}", short(&told));
        // The member of before is a member still.
        let heartbeat = asked.request.api() == ApiKey::Heartbeat;
        if heartbeat && !errors_of(&told).is_empty() {
            return Err(format!("the member's heartbeat is answered with {told}").into());
        }
    }
    Ok(())
}

/// The control plane is there and takes nothing; then it dies.
fn sent_and_unanswered(pair: &mut Pair, member: &str) -> Result<()> {
    signal(pair.controlplane.id(), Signal::STOP)?;
    let others = requests::others(member);
    let began = Instant::now();
    let pid = pair.controlplane.id();
    let told = pair.ask_all(&others, || {
        std::thread::sleep(AWAY);
        signal(pid, Signal::KILL)
    })?;
    pair.controlplane.kill()?;
    for (asked, (told, took)) in others.iter().zip(told) {
        refused(asked, &told)?;
        if took > AWAY + SLACK {
            return Err(format!("{} is refused {took:?} after it was sent", asked.request.api()).into());
        }
        println!("{}: sent, unanswered, then {}", asked.request.api(), short(&told));
    }
    println!("all that was sent is refused after {:?}", began.elapsed());
    Ok(())
}

/// What was there before is there.
fn back(pair: &Pair) -> Result<()> {
    let began = Instant::now();
    crash::create(pair.address, "afterwards", 1)?;
    println!("admin works {:?} after the control plane's start", began.elapsed());
    let mut raw = Raw::new(pair.address);
    let mut told = Value::Null;
    wait::until("the group's offset", PATIENCE, || {
        told = raw.ask(8, &requests::offsets().into())?;
        let offset = &told["answer"]["Groups"][0]["Topics"][0]["Partitions"][0]["CommittedOffset"];
        Ok((errors_of(&told).is_empty() && offset == 1).then_some(()))
    })
    .map_err(|fault| format!("{fault}: {told}").into())
}
