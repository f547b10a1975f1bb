//! The file system of the host is full: under a namespace that grows, and under the quorum's files.

use super::full::{Filled, fill, goes_on};
use super::{MIB, PATIENCE, delete_topic};
use crate::node::{Broker, Scratch, Victim};
use crate::reference::Wishes;
use crate::subject::Pollux;
use crate::{Result, wait};
use perf::client::Connection;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use wire::KafkaString;
use wire::messages::CreateTopicsRequest;
use wire::messages::create_topics_request::CreatableTopic;

const SYSTEM_MIB: u64 = 1200;
/// What somebody else leaves once the node runs: less than the namespace grows by.
const LEFT: u64 = 16 * MIB;

/// A small file system in memory, mounted for as long as this lives.
struct Mounted {
    folder: Scratch,
}

impl Mounted {
    fn new() -> Result<Option<Mounted>> {
        let folder = Scratch::new("mounted")?;
        let size = format!("size={SYSTEM_MIB}m");
        let status =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "pollux-abuse"]).arg(folder.path()).status();
        match status {
            Ok(status) if status.success() => Ok(Some(Mounted { folder })),
            _ => Ok(None),
        }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn free(&self) -> Result<u64> {
        let stat = rustix::fs::statvfs(self.path())?;
        Ok(stat.f_bavail * stat.f_frsize)
    }

    /// Takes all but `left` bytes away, in a file of somebody else's.
    fn crowd(&self, name: &str, left: u64) -> Result<PathBuf> {
        let path = self.path().join(name);
        let file = std::fs::File::create(&path)?;
        let take = self.free()?.saturating_sub(left);
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, take)?;
        Ok(path)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Lazily: a process that is still ending may hold files there.
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

pub fn run(own: &[String]) -> Result<()> {
    let Some(mounted) = Mounted::new()? else {
        println!("skipped: a file system of its own cannot be mounted here (needs root)");
        return Ok(());
    };
    let own = [vec!["data.size=\"1000MiB\"".to_owned()], own.to_vec()].concat();
    let wishes = Wishes { own, data: Some(mounted.path().join("data")), ..Wishes::default() };
    let mut node = Pollux::start_new(&wishes)?;
    let mut topics = vec![Filled::new(&node, "first")?, Filled::new(&node, "second")?];
    // The namespace was promised more than what it gets from here on.
    let somebody_elses = mounted.crowd("somebody-elses", LEFT)?;
    let text = fill(&mut topics)?;
    println!(
        "the host is full after {} and {} records, {} MiB are free: {text:?}",
        topics[0].acknowledged,
        topics[1].acknowledged,
        mounted.free()? / MIB
    );
    topics.iter().try_for_each(Filled::verify)?;
    node.kill(Victim::Everything)?;
    node.start()?;
    wait::until("the node to serve while its host is full", PATIENCE, || Ok(topics[0].read(0).ok().map(|_| ())))?;
    topics.iter().try_for_each(Filled::verify)?;
    println!("killed and started while the host is full: all records are there");
    quorum(&node, &mounted)?;
    start_without_room(&mut node, &mounted)?;
    for topic in &topics {
        // The dataplane serves before it has been told again what it leads.
        wait::until("its topics to be led again", PATIENCE, || Ok(topic.read(0).ok().map(|_| ())))?;
    }
    topics.iter().try_for_each(Filled::verify)?;
    let gone = topics.swap_remove(0);
    delete_topic(node.address(), "first")?;
    let took = goes_on(&mut topics[0], 20)?;
    println!("a topic of {} records deleted: produce goes on after {took:.1?}", gone.acknowledged);
    // And with room in the file system the namespace grows again.
    fill(&mut topics)?;
    std::fs::remove_file(somebody_elses)?;
    let took = goes_on(&mut topics[0], 300)?;
    println!("room on the host again: the namespace grows, produce goes on after {took:.1?}");
    topics[0].verify()?;
    let log = node.logged()?;
    node.stop()?;
    if let Some(line) = log.lines().find(|line| line.contains("panicked")) {
        return Err(format!("a process panicked: {line}").into());
    }
    println!("no acknowledged record was lost");
    Ok(())
}

/// The metadata log cannot be appended to: the control plane stops with a word, is started again with a growing pause, and
/// does its work when there is room; reading and writing of records never needed it.
fn quorum(node: &Pollux, mounted: &Mounted) -> Result<()> {
    let crowd = mounted.crowd("more-of-it", 0)?;
    let mut failed = 0;
    for number in 0..4000 {
        if create(node, &format!("{}-{number}", "x".repeat(200))).is_err() {
            failed += 1;
            if failed > 3 {
                break;
            }
        }
    }
    if failed == 0 {
        return Err("topics could be created on a full disk without end".into());
    }
    let told = wait::until("the control plane to say why it stops", PATIENCE, || {
        let log = node.logged()?;
        let line = log.lines().find(|line| line.contains("No space left") || line.contains("StorageFull"));
        Ok(line.map(str::to_owned))
    })
    .map_err(|fault| format!("{fault}\n{}", node.log_tail()))?;
    println!("the control plane says: {}", told.trim());
    if !told.contains("make room") {
        return Err("it does not say what to do".into());
    }
    std::fs::remove_file(crowd)?;
    wait::until("admin to work again", Duration::from_secs(60), || Ok(create(node, "after").ok()))?;
    println!("admin works again once there is room");
    Ok(())
}

/// Started where not even the quorum's small files can be written, the node says so and goes on trying: whoever makes room
/// need not know that it has to be started again.
fn start_without_room(node: &mut Pollux, mounted: &Mounted) -> Result<()> {
    let told = |log: &str| log.matches("make room").count();
    let before = told(&node.logged()?);
    node.kill(Victim::Everything)?;
    let crowd = mounted.crowd("the-rest", 0)?;
    node.launch()?;
    wait::until("a start without room to say so", PATIENCE, || Ok((told(&node.logged()?) > before).then_some(())))?;
    std::fs::remove_file(crowd)?;
    node.wait_until_ready()?;
    println!("started without any room: it serves once there is some");
    Ok(())
}

fn create(node: &Pollux, name: &str) -> Result<()> {
    let topic = CreatableTopic {
        name: KafkaString::from(name),
        num_partitions: 1,
        replication_factor: 1,
        ..Default::default()
    };
    let request = CreateTopicsRequest { topics: vec![topic], timeout_ms: 3000, ..Default::default() };
    let mut connection = Connection::open(node.address(), Duration::from_secs(12))?;
    let answer = connection.call(7, &request)?;
    match answer.topics.first().map(|topic| topic.error_code) {
        Some(0 | 36) => Ok(()),
        code => Err(format!("CreateTopics answers {code:?}").into()),
    }
}
