//! Consumers that ask for much and never read: what each of them was given can be looked at without taking it.

use super::{MIB, PATIENCE};
use crate::{Result, wait};
use base::Random;
use perf::client::Connection;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use wire::KafkaString;
use wire::messages::FetchRequest;
use wire::messages::fetch_request::{FetchPartition, FetchTopic};

/// What a consumer that does not read takes into its socket.
const RECEIVE_BUFFER: usize = 8 << 10;
/// One more request behind the unread answer, for one after the other.
const NEXT_REQUEST: Duration = Duration::from_millis(20);
/// Until each has the first bytes of an answer, however slow the machine: they are owed to all, whatever the others leave
/// unread.
const FIRST_BYTES: Duration = Duration::from_secs(120);
const ASKED_BYTES_MIN: i32 = 1 << 20;

/// Records that can be asked for: from each of these offsets on a partition has `ASKED_BYTES_MIN` and more.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    pub topic: &'static str,
    pub partitions: i32,
    pub offsets: u64,
}

pub struct Consumers {
    stop: Arc<AtomicBool>,
    asking: JoinHandle<Result<Vec<Connection>>>,
}

impl Consumers {
    /// Ends when each of them holds the beginning of an answer; until they are told to stop they ask for more.
    pub fn start(address: SocketAddr, count: usize, wanted: &[Wanted], seed: u64) -> Result<Consumers> {
        let consumer = |number: usize| -> Result<Connection> {
            let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
            rustix::net::sockopt::set_socket_recv_buffer_size(&stream, RECEIVE_BUFFER)?;
            let mut connection = Connection::over(stream, PATIENCE)?;
            ask(&mut connection, number, wanted, seed)?;
            Ok(connection)
        };
        let mut consumers = (0..count).map(consumer).collect::<Result<Vec<_>>>()?;
        let mut last = Tally::default();
        let holding = wait::until("every consumer to hold the beginning of an answer", FIRST_BYTES, || {
            last = Tally::of(&consumers)?;
            last.refuse_others()?;
            Ok((last.unread == count).then_some(()))
        });
        holding.map_err(|fault| format!("{fault}: {}", last.told()))?;
        let stop = Arc::new(AtomicBool::new(false));
        let (told, wanted) = (stop.clone(), wanted.to_vec());
        let asking = std::thread::spawn(move || {
            for number in (0..count).cycle() {
                if told.load(Ordering::Acquire) {
                    break;
                }
                ask(&mut consumers[number], number, &wanted, seed.wrapping_add(7))?;
                std::thread::sleep(NEXT_REQUEST);
            }
            Ok(consumers)
        });
        Ok(Consumers { stop, asking })
    }

    /// Ends them, and shows that they did what they are for: each still holds an answer that it has not read.
    pub fn finish(self) -> Result<()> {
        self.stop.store(true, Ordering::Release);
        let consumers = self.asking.join().map_err(|_| "a consumer panicked")??;
        let tally = Tally::of(&consumers)?;
        println!("  {}", tally.told());
        tally.refuse_others()?;
        match tally.unread == consumers.len() {
            true => Ok(()),
            false => Err(format!("not every consumer holds an unread answer: {}", tally.told()).into()),
        }
    }
}

/// What consumers hold in their sockets.
#[derive(Clone, Debug, Default)]
struct Tally {
    /// The beginning of an answer whose end is not there.
    unread: usize,
    /// Nothing, or less than the size of an answer.
    nothing: usize,
    /// An answer that is there whole, and how large it is at most: then there is nothing to leave unread.
    whole: usize,
    whole_most: u64,
    /// The node ended the connection.
    ended: usize,
    /// Bytes of the first answers, and those that are there.
    owed: u64,
    there: u64,
}

impl Tally {
    fn of(consumers: &[Connection]) -> Result<Tally> {
        let mut tally = Tally::default();
        for consumer in consumers {
            tally.add(consumer.stream())?;
        }
        Ok(tally)
    }

    fn add(&mut self, stream: &TcpStream) -> Result<()> {
        let mut polled = [PollFd::new(stream, PollFlags::IN | PollFlags::RDHUP)];
        poll(&mut polled, Some(&Timespec::default()))?;
        let found = polled[0].revents();
        if found.intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR) {
            self.ended += 1;
            return Ok(());
        }
        let mut front = [0; 4 * RECEIVE_BUFFER];
        let count = match found.contains(PollFlags::IN).then(|| stream.peek(&mut front)) {
            None => 0,
            Some(Ok(count)) => count,
            Some(Err(error)) if error.kind() == ErrorKind::ConnectionReset => {
                self.ended += 1;
                return Ok(());
            }
            Some(Err(error)) => return Err(error.into()),
        };
        let Some(size) = front[..count].first_chunk().map(|size| i32::from_be_bytes(*size)) else {
            self.nothing += 1;
            return Ok(());
        };
        let size = u64::try_from(size)? + 4;
        self.owed += size;
        self.there += count as u64;
        match size > count as u64 {
            true => self.unread += 1,
            false => {
                self.whole += 1;
                self.whole_most = self.whole_most.max(size);
            }
        }
        Ok(())
    }

    /// No time makes these better.
    fn refuse_others(&self) -> Result<()> {
        match self.ended + self.whole {
            0 => Ok(()),
            _ => Err(format!("consumers were ended, or given less than they asked for: {}", self.told()).into()),
        }
    }

    fn told(&self) -> String {
        let Tally { unread, nothing, whole, whole_most, ended, owed, there } = self;
        format!(
            "{unread} consumers hold an unread answer, {nothing} nothing, {whole} a whole one ({whole_most} bytes at most), \
             {ended} were ended; {} MiB are owed, {} MiB are in their sockets",
            owed / MIB,
            there / MIB
        )
    }
}

/// One of them asks for the records of one partition, from some offset on to the end.
fn ask(connection: &mut Connection, number: usize, wanted: &[Wanted], seed: u64) -> Result<()> {
    let mut random = Random::from_seed(seed ^ number as u64);
    let Wanted { topic, partitions, offsets } = wanted[number % wanted.len()];
    let partition = FetchPartition {
        partition: (number / wanted.len()) as i32 % partitions,
        fetch_offset: random.below(offsets) as i64,
        partition_max_bytes: i32::MAX,
        ..Default::default()
    };
    let topic = FetchTopic { topic: KafkaString::from(topic), partitions: vec![partition], ..Default::default() };
    let request = FetchRequest {
        max_wait_ms: 30_000,
        min_bytes: ASKED_BYTES_MIN,
        max_bytes: i32::MAX,
        topics: vec![topic],
        ..Default::default()
    };
    connection.send(12, &request)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::TcpListener;

    /// A consumer, and the node's end of its connection.
    fn pair() -> (Connection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        (Connection::over(stream, PATIENCE).expect("a connection"), listener.accept().expect("it came").0)
    }

    fn seen(consumer: &Connection, wanted: impl Fn(&Tally) -> usize) {
        let look = || {
            let mut tally = Tally::default();
            tally.add(consumer.stream())?;
            Ok((wanted(&tally) == 1).then_some(()))
        };
        wait::until("what the socket holds to be seen", PATIENCE, look).expect("it is seen");
    }

    #[test]
    fn what_a_socket_holds_is_told_without_taking_it() {
        let (consumer, mut node) = pair();
        seen(&consumer, |tally| tally.nothing);
        node.write_all(&[0, 0, 0, 8, 1, 2]).expect("sent");
        seen(&consumer, |tally| tally.unread);
        seen(&consumer, |tally| tally.unread);
        node.write_all(&[3, 4, 5, 6, 7, 8]).expect("sent");
        seen(&consumer, |tally| tally.whole);
        drop(node);
        seen(&consumer, |tally| tally.ended);
    }
}
