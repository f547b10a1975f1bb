//! A namespace that is full: appends are refused with a clear text, reads go on, a restart works while it is full, and
//! space comes back by deleting a topic or by lowering retention. The same where the file system below a growing file is
//! full (`hosts_disk`).

use super::{PATIENCE, delete_topic, name_of};
use crate::node::{Broker, Victim};
use crate::reference::Wishes;
use crate::subject::Pollux;
use crate::{Result, wait};
use base::WallMillis;
use batch::{BatchBuilder, BatchView};
use bytes::Bytes;
use perf::client::{Connection, produce_request};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use wire::KafkaString;
use wire::messages::fetch_request::{FetchPartition, FetchTopic};
use wire::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
use wire::messages::{FetchRequest, IncrementalAlterConfigsRequest};

const STORAGE_ERROR: i16 = 56;
const TOPIC_RESOURCE: i8 = 2;
/// The value of a record; its first bytes are its number.
const VALUE: usize = 100_000;
/// How long nothing may be taken before a namespace counts as full: what a deletion gave back is there by then, as
/// retention looks every second and may have to wait for a checkpoint.
const FULL_FOR: Duration = Duration::from_secs(3);
/// Topics in a small namespace, and how many of them are not deleted.
const TOPICS: usize = 12;
const TOPICS_KEPT: usize = 4;

#[derive(Clone, Debug)]
pub struct Plan {
    pub size: String,
    pub own: Vec<String>,
}

pub fn run(plan: &Plan) -> Result<()> {
    let own = [vec![format!("data.size=\"{}\"", plan.size)], plan.own.clone()].concat();
    let mut node = Pollux::start_new(&Wishes { own, ..Wishes::default() })?;
    let mut topics = vec![Filled::new(&node, "first")?, Filled::new(&node, "second")?];
    // Retention takes closed segments only, and a full namespace closes none.
    alter(node.address(), "second", &[("segment.bytes", "1048576")])?;
    let text = fill(&mut topics)?;
    println!("full after {} and {} records: {text:?}", topics[0].acknowledged, topics[1].acknowledged);
    if !text.contains("full") {
        return Err("the refusal does not say that the namespace is full".into());
    }
    topics.iter().try_for_each(Filled::verify)?;
    for victim in [Victim::Everything, Victim::Dataplane, Victim::ControlPlane] {
        let began = Instant::now();
        node.kill(victim)?;
        if victim == Victim::Everything {
            node.start()?;
        }
        wait::until("the node to serve while it is full", PATIENCE, || Ok(topics[0].read(0).ok().map(|_| ())))?;
        topics.iter().try_for_each(Filled::verify)?;
        println!("{victim:?} killed while full: it serves again after {:.1?}, all records are there", began.elapsed());
    }
    // Deleting a topic gives its space to the other.
    let gone = topics.swap_remove(0);
    delete_topic(node.address(), "first")?;
    let took = goes_on(&mut topics[0], 20)?;
    println!("a topic of {} records deleted: produce goes on after {took:.1?}", gone.acknowledged);
    fill(&mut topics)?;
    topics[0].verify()?;
    alter(node.address(), "second", &[("retention.bytes", "2000000")])?;
    let took = goes_on(&mut topics[0], 20)?;
    println!("retention lowered: produce goes on after {took:.1?}");
    topics[0].verify_newest()?;
    let panicked = node.logged()?.contains("panicked");
    node.stop()?;
    if panicked {
        return Err("a process panicked".into());
    }
    println!("no acknowledged record was lost");
    deletions_give_back(plan)
}

/// Most of many topics are deleted while the namespace is full: the others get their space, and not only after a restart.
fn deletions_give_back(plan: &Plan) -> Result<()> {
    let own = [vec!["data.size=\"96MiB\"".to_owned()], plan.own.clone()].concat();
    let mut node = Pollux::start_new(&Wishes { own, ..Wishes::default() })?;
    let mut topics =
        (0..TOPICS).map(|number| Filled::new(&node, &format!("of-many-{number}"))).collect::<Result<Vec<_>>>()?;
    fill(&mut topics)?;
    let gone = topics.split_off(TOPICS_KEPT);
    let records = |topics: &[Filled]| topics.iter().map(|topic| topic.acknowledged).sum::<i64>();
    let (freed, before) = (records(&gone), records(&topics));
    for topic in &gone {
        delete_topic(node.address(), &topic.name)?;
    }
    fill(&mut topics)?;
    let taken = records(&topics) - before;
    println!("{} of {TOPICS} topics, {freed} records, deleted: the others took {taken} more", gone.len());
    topics.iter().try_for_each(Filled::verify)?;
    node.stop()?;
    if taken * 4 < freed * 3 {
        return Err(format!("of the space of {freed} records {taken} came back").into());
    }
    Ok(())
}

/// A topic of one partition, its records numbered by their offsets.
pub struct Filled {
    address: SocketAddr,
    name: String,
    pub acknowledged: i64,
}

/// Appends in turn until all of them have refused for [`FULL_FOR`]; returns the refusal's text.
pub fn fill(topics: &mut [Filled]) -> Result<String> {
    let mut refused_since = None;
    loop {
        for topic in &mut *topics {
            match topic.append()? {
                None => refused_since = None,
                Some((STORAGE_ERROR, text)) => {
                    if refused_since.get_or_insert_with(Instant::now).elapsed() > FULL_FOR {
                        return Ok(text);
                    }
                }
                Some((code, text)) => return Err(format!("Produce answers {}: {text}", name_of(code)).into()),
            }
        }
    }
}

/// Appends until `count` are acknowledged in a row; returns how long the first took to be.
pub fn goes_on(topic: &mut Filled, count: usize) -> Result<std::time::Duration> {
    let began = Instant::now();
    wait::until("produce to go on", PATIENCE, || Ok(topic.append()?.is_none().then_some(())))?;
    let took = began.elapsed();
    for _ in 0..count {
        wait::until("produce to go on", PATIENCE, || Ok(topic.append()?.is_none().then_some(())))?;
    }
    Ok(took)
}

impl Filled {
    pub fn new(node: &Pollux, name: &str) -> Result<Filled> {
        crate::crash::create(node.address(), name, 1)?;
        Ok(Filled { address: node.address(), name: name.to_owned(), acknowledged: 0 })
    }

    /// One record; an error code with its text where it is refused.
    pub fn append(&mut self) -> Result<Option<(i16, String)>> {
        let mut connection = Connection::open(self.address, PATIENCE)?;
        let mut builder = BatchBuilder::new();
        let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_millis() as i64;
        builder.append(WallMillis(wall), None, Some(&value(self.acknowledged)), &[]);
        let request = produce_request(&self.name, 0, builder.build().into(), -1, Duration::from_secs(20));
        let answer = connection.call(11, &request)?;
        let partition = answer.responses.first().and_then(|topic| topic.partition_responses.first());
        let partition = partition.ok_or("Produce answers nothing")?;
        if partition.error_code != 0 {
            let text = partition.error_message.as_deref().unwrap_or_default().to_owned();
            return Ok(Some((partition.error_code, text)));
        }
        if partition.base_offset != self.acknowledged {
            return Err(format!("record {} has offset {}", self.acknowledged, partition.base_offset).into());
        }
        self.acknowledged += 1;
        Ok(None)
    }

    /// The records from an offset on that one fetch gives, and where the log starts.
    pub fn read(&self, offset: i64) -> Result<(Vec<(i64, Bytes)>, i64)> {
        let mut connection = Connection::open(self.address, PATIENCE)?;
        let partition = FetchPartition { fetch_offset: offset, partition_max_bytes: 4 << 20, ..Default::default() };
        let topic = FetchTopic {
            topic: KafkaString::from(self.name.as_str()),
            partitions: vec![partition],
            ..Default::default()
        };
        let request = FetchRequest { max_bytes: 8 << 20, topics: vec![topic], ..Default::default() };
        let answer = connection.call(12, &request)?;
        let partition = answer.responses.first().and_then(|topic| topic.partitions.first()).ok_or("no partition")?;
        if partition.error_code != 0 {
            return Err(format!("Fetch of {} answers {}", self.name, name_of(partition.error_code)).into());
        }
        let mut bytes = partition.records.clone().unwrap_or_default();
        let mut found = Vec::new();
        while let Ok((batch, _)) = BatchView::parse(&bytes) {
            let (base, size) = (batch.base_offset().0, batch.size());
            found.push((base, bytes.split_to(size)));
        }
        Ok((found, partition.log_start_offset))
    }

    fn verify_from(&self, mut next: i64) -> Result<()> {
        while next < self.acknowledged {
            let (found, _) = self.read(next)?;
            if found.is_empty() {
                return Err(format!("{}: record {next} of {} is not there", self.name, self.acknowledged).into());
            }
            for (base, batch) in found {
                let wanted = value(base);
                if base != next || !batch.windows(wanted.len()).any(|window| window == wanted) {
                    return Err(format!("{}: {base} stands where {next} is", self.name).into());
                }
                next += 1;
            }
        }
        Ok(())
    }

    /// Every acknowledged record is there, in order.
    pub fn verify(&self) -> Result<()> {
        self.verify_from(0)
    }

    /// The same for what retention leaves, once it has taken something.
    fn verify_newest(&self) -> Result<()> {
        let start = wait::until("retention to move the log's start", PATIENCE, || {
            let start = self.read(self.acknowledged)?.1;
            Ok((start > 0).then_some(start))
        })?;
        if start >= self.acknowledged {
            return Err(format!("the log of {} records starts at {start}", self.acknowledged).into());
        }
        self.verify_from(start)
    }
}

fn value(number: i64) -> Vec<u8> {
    let mut value = number.to_be_bytes().to_vec();
    value.resize(VALUE, number as u8);
    value
}

fn alter(address: SocketAddr, topic: &str, configs: &[(&str, &str)]) -> Result<()> {
    let configs = configs.iter().map(|(name, value)| AlterableConfig {
        name: KafkaString::from(*name),
        config_operation: 0,
        value: Some(KafkaString::from(*value)),
        ..Default::default()
    });
    let resource = AlterConfigsResource {
        resource_type: TOPIC_RESOURCE,
        resource_name: KafkaString::from(topic),
        configs: configs.collect(),
        ..Default::default()
    };
    let request = IncrementalAlterConfigsRequest { resources: vec![resource], ..Default::default() };
    let answer = Connection::open(address, PATIENCE)?.call(1, &request)?;
    match answer.responses.first().map(|response| response.error_code) {
        Some(0) => Ok(()),
        code => Err(format!("altering {topic} answers {code:?}").into()),
    }
}
