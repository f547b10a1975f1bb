//! Gather slots: one per request that waits for cores or helpers, on its connection's core. The slot alone keeps the
//! deadline and puts the answers in the order of the request.
//!
//! What a request asks goes to the cores in runs of `ENTRIES_A_COMMAND` partitions, in its order; a core is asked for the
//! next run when it has answered the one before, so that a request with very many holds no loop for long.

use crate::connection::Request;
use crate::fetch::FetchGather;
use crate::limits::{ENTRIES_A_COMMAND, ITEMS_ON_THE_LOOP_MAX, PRODUCE_COMMANDS_MAX};
use crate::lists::{DeleteRecordsGather, EpochEndsGather, ListOffsetsGather, LogsGather, ProducersGather};
use crate::produce::{ProduceGather, ProduceRun};
use crate::replies::ReplyNumber;
use crate::sessions::{Sessions, Turn};
use arena::BufferRef;
use base::{CoreId, ListenerId, Monotonic, Now, PartitionId, TimerToken};
use handoff::*;
use net::{StreamId, Streams};
use std::collections::VecDeque;
use wire::{ApiKey, Decoder, RequestHeaderView};

#[derive(Debug)]
pub struct Gather {
    pub stream: StreamId,
    pub reply: ReplyNumber,
    pub listener: ListenerId,
    pub api: ApiKey,
    pub version: i16,
    pub correlation_id: i32,
    pub began: Monotonic,
    pub timer: Option<TimerToken>,
    pub work: GatherWork,
    /// What has not gone to its cores yet.
    pub later: Later,
    /// The frame whose records have not all gone.
    frame: BufferRef,
    /// Commands whose last outcome has not come.
    pub outstanding: usize,
}

#[derive(Debug)]
pub enum GatherWork {
    Produce(ProduceGather),
    Fetch(FetchGather),
    ListOffsets(ListOffsetsGather),
    EpochEnds(EpochEndsGather),
    DeleteRecords(DeleteRecordsGather),
    Producers(ProducersGather),
    Logs(LogsGather),
    /// A helper has it.
    OffLoop,
    /// Stored bytes of a response that is being sent; it has no reply of its own.
    Window,
}

impl GatherWork {
    /// Partitions that the answer tells of.
    pub fn items(&self) -> usize {
        match self {
            GatherWork::Produce(work) => work.items(),
            GatherWork::Fetch(work) => work.items(),
            GatherWork::ListOffsets(work) => work.items,
            GatherWork::EpochEnds(work) => work.items,
            GatherWork::DeleteRecords(work) => work.items,
            GatherWork::Producers(work) => work.items,
            GatherWork::Logs(work) => work.items(),
            GatherWork::OffLoop | GatherWork::Window => 0,
        }
    }

    /// More than a loop puts together, encodes or lets go of at once.
    pub fn is_long(&self) -> bool {
        self.items() > ITEMS_ON_THE_LOOP_MAX
    }
}

/// A request that was read and routed.
#[derive(Debug)]
pub struct Opened {
    pub work: GatherWork,
    pub later: Later,
}

/// Entries in the order of the request, each with the core that answers it.
pub type Waiting<E> = VecDeque<(CoreId, E)>;

#[derive(Debug, Default)]
pub enum Later {
    #[default]
    Nothing,
    Produce(ProduceRun),
    ListOffsets(Reader, i16, Waiting<ListOffsetsEntry>),
    EpochEnds(Waiting<EpochEndsEntry>),
    DeleteRecords(Monotonic, Waiting<DeleteRecordsEntry>),
    Producers(Waiting<(EntryIndex, PartitionId)>),
    /// Every core is asked for what the namespace has, also where it holds none of the partitions.
    Logs {
        cores: u16,
        entries: Waiting<PartitionId>,
    },
}

/// The next run of entries, by core.
pub(crate) fn next_run<E>(waiting: &mut Waiting<E>) -> Vec<(CoreId, Vec<E>)> {
    let count = waiting.len().min(ENTRIES_A_COMMAND);
    by_core(waiting.drain(..count), count)
}

/// Each core's entries, in their order.
pub(crate) fn by_core<E>(entries: impl Iterator<Item = (CoreId, E)>, count: usize) -> Vec<(CoreId, Vec<E>)> {
    let mut by_core: Vec<(CoreId, Vec<E>)> = Vec::new();
    for (core, entry) in entries {
        match by_core.iter_mut().find(|(known, _)| *known == core) {
            Some((_, entries)) => entries.push(entry),
            None => {
                let mut entries = Vec::with_capacity(count);
                entries.push(entry);
                by_core.push((core, entries));
            }
        }
    }
    by_core
}

impl Later {
    /// Commands that may be under way at once before a further run goes. Appends are on their way to the medium together;
    /// everything else takes turns with other requests.
    fn at_once_max(&self) -> usize {
        if matches!(self, Later::Produce(_)) { PRODUCE_COMMANDS_MAX } else { 1 }
    }

    /// The commands of the next run; none where everything has gone.
    fn next_commands(&mut self, gather: GatherId, frame: &BufferRef) -> Vec<(CoreId, Command)> {
        fn each<E>(runs: Vec<(CoreId, Vec<E>)>, command: impl Fn(Vec<E>) -> Command) -> Vec<(CoreId, Command)> {
            runs.into_iter().map(|(core, entries)| (core, command(entries))).collect()
        }
        match self {
            Later::Nothing => Vec::new(),
            Later::Produce(run) => run.next_commands(gather, frame),
            Later::ListOffsets(reader, version, entries) => {
                let (reader, version) = (*reader, *version);
                each(next_run(entries), |entries| {
                    Command::ListOffsets(ListOffsets { gather, reader, version, entries })
                })
            }
            Later::EpochEnds(entries) => {
                each(next_run(entries), |entries| Command::EpochEnds(EpochEnds { gather, entries }))
            }
            Later::DeleteRecords(deadline, entries) => {
                let deadline = *deadline;
                each(next_run(entries), |entries| Command::DeleteRecords(DeleteRecords { gather, deadline, entries }))
            }
            Later::Producers(entries) => {
                each(next_run(entries), |entries| Command::DescribeProducers(DescribeProducers { gather, entries }))
            }
            Later::Logs { cores, entries } => {
                let mut runs = next_run(entries);
                for core in (0..std::mem::take(cores)).map(CoreId) {
                    if !runs.iter().any(|(known, _)| *known == core) {
                        runs.push((core, Vec::new()));
                    }
                }
                each(runs, |partitions| Command::DescribeLogs(DescribeLogs { gather, partitions }))
            }
        }
    }
}

impl Gather {
    /// A request that waits; what for is put in later.
    pub fn new(
        stream: StreamId,
        reply: ReplyNumber,
        listener: ListenerId,
        request: &Request,
        began: Monotonic,
    ) -> Gather {
        Gather {
            stream,
            reply,
            listener,
            api: request.api,
            version: request.version,
            correlation_id: request.correlation_id,
            began,
            timer: None,
            work: GatherWork::OffLoop,
            later: Later::Nothing,
            frame: BufferRef::empty(),
            outstanding: 0,
        }
    }

    /// The request once more, from its frame.
    pub fn into_request(self, frame: BufferRef) -> Request {
        let mut decoder = Decoder::new(&frame);
        let header = RequestHeaderView::decode(&mut decoder).expect("it was read before");
        let (client_id, body) = (header.client_id.map(|id| id.lossy().into_owned()), decoder.position());
        let (api, version, correlation_id) = (self.api, self.version, self.correlation_id);
        Request { api, version, correlation_id, client_id, frame, body }
    }

    pub fn window(stream: StreamId, began: Monotonic) -> Gather {
        Gather {
            stream,
            reply: ReplyNumber(u64::MAX),
            listener: ListenerId(0),
            api: ApiKey::Fetch,
            version: 0,
            correlation_id: 0,
            began,
            timer: None,
            work: GatherWork::Window,
            later: Later::Nothing,
            frame: BufferRef::empty(),
            outstanding: 0,
        }
    }
}

impl Sessions {
    /// The request goes to its cores, or is answered at once where none is asked.
    pub(crate) fn dispatch<S: Streams>(
        &mut self,
        turn: &mut Turn<'_, S>,
        id: GatherId,
        opened: Opened,
        frame: BufferRef,
    ) {
        let Some(gather) = self.gathers.get_mut(Self::token(id)) else { return };
        gather.work = opened.work;
        gather.later = opened.later;
        gather.frame = frame;
        self.send_more(turn, id);
    }

    /// A command of the request is answered whole.
    pub(crate) fn on_command_done<S: Streams>(&mut self, turn: &mut Turn<'_, S>, id: GatherId) {
        let Some(gather) = self.gathers.get_mut(Self::token(id)) else { return };
        gather.outstanding -= 1;
        self.send_more(turn, id);
    }

    /// Sends the next commands, or finishes where all are answered.
    fn send_more<S: Streams>(&mut self, turn: &mut Turn<'_, S>, id: GatherId) {
        let Some(gather) = self.gathers.get_mut(Self::token(id)) else { return };
        while gather.outstanding < gather.later.at_once_max() {
            let commands = gather.later.next_commands(id, &gather.frame);
            if commands.is_empty() {
                // What it kept of the receive memory is with the entries.
                gather.frame = BufferRef::empty();
                break;
            }
            gather.outstanding += commands.len();
            self.out.commands.extend(commands);
        }
        if gather.outstanding == 0 {
            self.finish(turn, id);
        }
    }

    pub(crate) fn note_answered(&mut self, now: Now, gather: &Gather, failed: bool) {
        let took = now.monotonic.since(gather.began);
        self.out.answered.push(crate::outputs::Answered { api: gather.api, took, failed });
    }
}
