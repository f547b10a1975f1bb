//! Clients that behave badly: half frames, nonsense, frames of any announced length, readers that never read, trickles.
//! Nobody else may notice them.

use crate::caller::{Caller, Pace};
use crate::context::Context;
use wire::messages::fetch_request::{FetchPartition, FetchTopic};
use wire::messages::{FetchRequest, MetadataRequest};

#[derive(Debug)]
enum Mood {
    New,
    /// Bytes still to be trickled.
    Trickle(Vec<u8>),
    /// Asks and does not read.
    Deaf,
    /// Waits for its end.
    Done,
}

#[derive(Debug)]
pub struct Vandal {
    caller: Caller,
    mood: Mood,
}

impl Vandal {
    pub fn new(name: String) -> Vandal {
        Vandal { caller: Caller::new(name), mood: Mood::New }
    }

    pub fn step(&mut self, context: &mut Context<'_>) {
        if context.quiet {
            return self.reset();
        }
        if context.random.chance(1, 300) {
            return self.reset();
        }
        if !self.caller.is_connected() {
            self.mood = Mood::New;
        }
        if !context.random.chance(1, 10) || !self.caller.connect(context) {
            return;
        }
        match &mut self.mood {
            Mood::New => self.begin(context),
            Mood::Trickle(bytes) => {
                let count = (1 + context.random.below(10) as usize).min(bytes.len());
                let piece: Vec<u8> = bytes.drain(..count).collect();
                let over = bytes.is_empty();
                self.caller.raw(&piece);
                if over {
                    self.mood = Mood::Done;
                }
            }
            Mood::Deaf if self.caller.waiting() < 50 => self.ask_much(context),
            Mood::Deaf | Mood::Done => {}
        }
    }

    pub fn reset(&mut self) {
        self.caller.reset();
        self.mood = Mood::New;
    }

    fn begin(&mut self, context: &mut Context<'_>) {
        let mut junk = vec![0; context.random.below(200) as usize];
        context.random.fill(&mut junk);
        self.mood = match context.random.below(5) {
            // A length, and less than it.
            0 => {
                let length = [1, 100, 1 << 20, 99 << 20, i32::MAX, -1][context.random.below(6) as usize];
                self.caller.raw(&length.to_be_bytes());
                self.caller.raw(&junk);
                Mood::Done
            }
            // A whole frame of nonsense.
            1 => {
                self.caller.raw(&(junk.len() as i32).to_be_bytes());
                self.caller.raw(&junk);
                Mood::Done
            }
            // The header of a real request, then nonsense.
            2 => {
                let api = context.random.below(20) as u16;
                let mut frame = vec![0, api as u8, 0, context.random.below(14) as u8, 0, 0, 0, 1, 255, 255];
                frame.extend_from_slice(&junk);
                self.caller.raw(&(frame.len() as i32).to_be_bytes());
                self.caller.raw(&frame);
                Mood::Done
            }
            3 => Mood::Trickle([&(junk.len() as i32 + 8).to_be_bytes()[..], &junk].concat()),
            _ => {
                self.caller.pace = Pace::Slow(0);
                Mood::Deaf
            }
        };
    }

    fn ask_much(&mut self, context: &mut Context<'_>) {
        let now = context.now.monotonic;
        let Some((partition, topic)) = context.some_partition() else { return };
        if context.random.chance(1, 10) {
            self.caller.ask(now, 4, &MetadataRequest::default());
            return;
        }
        let one = FetchPartition {
            partition: partition.index.0,
            fetch_offset: context.model.floor(partition).log_start,
            partition_max_bytes: 1 << 20,
            ..Default::default()
        };
        let topics = vec![FetchTopic { topic: topic.as_str().into(), partitions: vec![one], ..Default::default() }];
        let request = FetchRequest { max_bytes: 5 << 20, max_wait_ms: 100, topics, ..Default::default() };
        self.caller.ask(now, 11, &request);
    }
}
